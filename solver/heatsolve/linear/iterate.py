"""The loop to convergence, and the methods by name."""

import math
import sys
import time as clock
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeVar

from heatsolve.backends import MOST_FUSED, Accumulator
from heatsolve.linear.fft import Fourier
from heatsolve.linear.krylov import ConjugateGradients, MultigridCG
from heatsolve.linear.multigrid.cycle import Multigrid
from heatsolve.linear.multigrid.mixed import Refinement
from heatsolve.linear.stationary import Chebyshev, Jacobi, Sor
from heatsolve.linear.stopping import (
    FARTHEST,
    IN_RANGE,
    ConvergenceTest,
    Criterion,
    IterationState,
    OutOfRange,
    ResidualCheck,
    StoppingOptions,
    kind_of,
    largest_of,
    lost_digits,
)
from heatsolve.linear.system import Method, System
from heatsolve.stencil.grid import whole
from heatsolve.stencil.language import scaled

T = TypeVar("T")
FEWEST_ON_DEVICE = 3
"""The fewest iterations queued on a device before the host waits for a norm."""
LONGEST_QUEUE = 0.25
"""Seconds of work that the host queues on a device before it reads the norms."""


class Watcher(Protocol):
    """An observer of the progress of a run; see `report`."""

    def warn(self, sentence: str) -> None: ...

    def aim(self, goal: Criterion) -> None: ...

    def progress(self, number: int, norm: float | None, total: int | None = None) -> None: ...


class Saved(Protocol):
    """A state from which an iteration goes on: see `control`."""

    number: int
    record: dict[str, Any]

    @property
    def finished(self) -> bool: ...
    @property
    def lists(self) -> dict[str, list[Any]]: ...


class Controller(Protocol):
    """Saves a running iteration, or stops it by an exception; see `control`.

    It checks at iteration `next`. `stride`: the iterations of one pass; `least`: the fewest
    iterations between two of its checks. `state` makes a state to be saved from a number, a record
    of plain numbers and words, a history and arrays.
    """

    next: int
    stride: int
    least: int

    @property
    def state(self) -> Callable[..., Any]: ...

    def begin(self, number: int, finished: bool = False) -> None: ...

    def check(self, number: int, capture: Callable[[], Any]) -> None: ...

    def finish(self, capture: Callable[[], Any]) -> None: ...


class Undisturbed:
    """A controller that neither saves nor stops."""

    next, stride, least = sys.maxsize, 1, 1

    def state(self, *args: Any) -> Any:
        return args

    def begin(self, number: int, finished: bool = False) -> None:
        pass

    def check(self, number: int, capture: Callable[[], Any]) -> None:
        pass

    def finish(self, capture: Callable[[], Any]) -> None:
        pass


class Until(Protocol):
    """The place of the next pause: after `number` iterations, or as soon as possible if `hurried`.
    A reason to `stop` ends the iteration at once."""

    @property
    def number(self) -> int: ...
    @property
    def stop(self) -> str: ...
    @property
    def hurried(self) -> bool: ...


Following = Callable[[int], Callable[[], None] | None]
"""Gives the work that follows an iteration that ends after this number of steps; None: unknown."""


class Iterate(NamedTuple):
    """An iteration at a pause: its number, the norm that was checked last, and the array that holds
    u multiplied by 1 / `back`."""

    number: int
    norm: float
    u: Any
    back: float


Iterates = Generator[Iterate, Until | None, "Outcome"]
"""An iteration as a generator of its pauses, the first one before the first step. At each pause it
is sent the place of the next pause; None: go on to the end."""


def finished(parts: Generator[Any, Any, T]) -> T:
    """The result of an iteration, or of a march, without a pause."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return end.value


@dataclass
class Outcome:
    """How an iteration or a march ended.

    `ending`: "tolerance", "rounding" (the residual is at rounding level and falls no further),
    "lost" (the same, but the residual is no smaller than for u = 0), "count" (the fixed number of
    iterations, or the end time), "limit" (not converged) or "stopped" (for the `reason` that was
    given at a pause). `threshold` is a share of the norm `scale`, which
    `relative_to` names (empty: an absolute tolerance).
    """

    ending: str
    count: int
    norm: float
    floor: float = math.nan
    threshold: float = 0.0
    history: dict[str, list[float]] = field(default_factory=dict)
    scale: float = 1.0
    relative_to: str = ""
    reason: str = ""

    @property
    def converged(self) -> bool:
        return self.ending in ("tolerance", "rounding")

    @property
    def failed(self) -> bool:
        """Whether it ended without the solution."""
        return self.ending in ("limit", "lost")

    def times(self, factor: float) -> "Outcome":
        """This outcome with all norms multiplied by `factor`."""
        if factor == 1.0:
            return self
        norms = [factor * norm for norm in self.history["residual"]]
        return replace(
            self,
            norm=factor * self.norm,
            floor=factor * self.floor,
            threshold=factor * self.threshold,
            scale=factor * self.scale,
            history=self.history | {"residual": norms},
        )


class Options(StoppingOptions, Protocol):
    """The keys of `[solver]` for the end of an iteration and for its method."""

    @property
    def cycle(self) -> str: ...
    @property
    def smoother(self) -> str: ...
    @property
    def sweeps(self) -> int | None: ...
    @property
    def weight(self) -> float: ...
    @property
    def omega(self) -> float | None: ...
    @property
    def precision(self) -> str: ...


def make_method(name: str, options: Options, system: System, u: Any) -> Method:
    """The method of this name, which begins at u."""
    if name == "jacobi":
        return Jacobi(system, u, options.weight)
    if name == "sor":
        return Sor(system, u, options.omega)
    if name == "chebyshev":
        return Chebyshev(system, u)
    args = (system, u, options.cycle, options.smoother, options.sweeps)
    if name == "multigrid" and options.precision != "mixed":
        every = options.check_interval == 1 and options.iterations in (None, 1)
        tested = options.monitor == "residual" and every
        return Multigrid(*args, kind_of(options.norm) if tested else None)
    if name in ("multigrid", "mgcg"):
        return (MultigridCG if name == "mgcg" else Refinement)(*args)
    return (Fourier if name == "fft" else ConjugateGradients)(system, u)


Beginning = Callable[[System, int], tuple[Method, Criterion]]
"""Makes the method and criterion of a system whose u and b are multiplied by 2 to this power."""


def solving(
    system: System,
    u: Any,
    begin: Beginning,
    reset: Callable[[], None],
    watcher: Watcher,
    controller: Controller | None = None,
    resumed: Saved | None = None,
) -> Iterates:
    """Solve A u = b by `iterating`, for numbers of any size.

    Where squares in norms overflow or underflow, `reset` restores the initial u, and u and b are
    multiplied by a power of two, which rounds nothing; at the end u is divided by it. Raises
    InputError if u then overflows; warns if u underflows.
    """
    exponent = resumed.record.get("exponent", 0) if resumed is not None else 0
    if exponent == 0:
        try:
            return (yield from iterating(*begin(system, 0), watcher, controller, resumed))
        except OutOfRange as error:
            exponent = error.exponent
            reset()
    backend, everything = system.backend, system.grid.everything
    factor, back = math.ldexp(1.0, exponent), math.ldexp(1.0, -exponent)
    b = backend.zeros(system.b.shape)
    backend.sweep(scaled, b, whole(b.shape), system.b, factor)
    backend.sweep(scaled, u, everything, u, factor)
    of_scaled = begin(replace(system, b=b), exponent)
    outcome = yield from iterating(*of_scaled, watcher, controller, resumed)
    largest = largest_of(system, u) * back
    backend.sweep(scaled, u, everything, u, back)
    if lost := lost_digits(system, u, largest):
        watcher.warn(lost)
    return outcome.times(back)


@contextmanager
def in_range(method: Method, scale: Callable[[], float]) -> Iterator[float]:
    """A power of two by which u and b of a method are multiplied within the context.

    It is 1 unless the method takes sums of squares of a residual, near the norm `scale`, that
    single precision cannot hold. Without under- and overflow it changes no bit of the solution.
    """
    backend, (smallest, largest) = method.system.backend, IN_RANGE[method.system.backend.precision]
    norm = scale() if method.recurrent and backend.precision == "float32" else 1.0
    farthest, _ = FARTHEST[backend.precision]
    exponent = 0 if norm == 0.0 or smallest <= norm <= largest else -math.frexp(norm)[1]
    factor = 2.0 ** max(-farthest, min(farthest, exponent))

    def multiply(*arrays: Any, by: float) -> None:
        for array in arrays if by != 1.0 else ():
            backend.sweep(scaled, array, whole(array.shape), array, by)

    multiply(method.u, method.system.b, by=factor)
    try:
        yield factor
    finally:
        multiply(method.u, method.system.b, by=1.0 / factor)


def iterate(
    method: Method,
    criterion: Criterion,
    watcher: Watcher,
    expected: int = 0,
    following: Following | None = None,
) -> Outcome:
    """Iterate as `iterating` does, without a pause."""
    return finished(iterating(method, criterion, watcher, expected=expected, following=following))


def iterating(
    method: Method,
    criterion: Criterion,
    watcher: Watcher,
    controller: Controller | None = None,
    resumed: Saved | None = None,
    expected: int = 0,
    following: Following | None = None,
) -> Iterates:
    """Iterate to the first check that meets the criterion, or to the limit.

    The host reads the norms of many checks at once, but the device stops at the check that ends the
    iteration. The solution is then in `method.u`. `controller` may save or stop the iteration on
    the way. An iteration that goes on from a `resumed` state gives the bits of an uninterrupted
    one. `expected`: the number of iterations to queue on a device at first. `following` gives the
    work, made in `Backend.continuing`, that follows if the tolerance is met after this number of
    iterations; a device begins the work before the host has read the norms, and `Backend.continued`
    tells whether it was done.
    Raises Diverged for a norm that is not finite or has grown too much.
    """
    backend, ranks = method.system.backend, method.system.halo.ranks
    test = ConvergenceTest(method, criterion)
    queue = Queue(method, criterion)
    controller = controller if controller is not None else Undisturbed()
    controller.stride = method.longest
    if backend.on_device:
        controller.least = max(FEWEST_ON_DEVICE, method.longest)
    done, ahead, short = 0, min(controller.least, backend.lookahead), False

    def capture() -> Any:
        record: dict[str, Any] = {"unit": "iterations", "judge": asdict(test.state)}
        record |= {"method": method.record(done), "exponent": criterion.exponent or 0}
        return controller.state(done, record, test.history, method.memory(done))

    if resumed is not None:
        done = resumed.number
        method.recall(done, resumed.record["method"])
        test.recall(IterationState(**resumed.record["judge"]), resumed.lists)
    else:
        test.begin()
    watcher.aim(criterion)
    controller.begin(done, resumed is not None and resumed.finished)
    back = math.ldexp(1.0, -(criterion.exponent or 0))
    exact = criterion.kind == "max" and criterion.monitor == "residual"
    if not (backend.continues and exact):
        following = None  # only the host finds where such an iteration ends
    pause, reason, asked = -1, "", None
    while True:
        if done >= pause or (asked is not None and asked.hurried):
            asked = yield Iterate(done, back * test.state.norm, method.solution(done), back)
            pause, reason = (sys.maxsize, "") if asked is None else (asked.number, asked.stop)
        if test.state.ending or reason or done >= criterion.limit:
            break
        if done >= controller.next:
            controller.check(done, capture)
        until = min(criterion.limit, controller.next, pause)
        if criterion.check_after(done) > until:  # a pause or a stop comes before the next check
            method.march(done, until)
            backend.sync()
            done = until
            continue
        if done < expected:
            wanted = min(expected - done, backend.lookahead)
        else:
            to_come = test.checks_to_come()
            # All devices must queue the same work where they exchange ghosts in their own queues.
            grows = done and ahead < min(to_come, backend.lookahead)
            if grows and all(ranks.gather(short)):
                ahead = min(2 * ahead, backend.lookahead)
            wanted = int(min(ahead, to_come))
        began = clock.perf_counter()
        count = test.most_checks(wanted) if method.queues else 1
        work = None
        if following is not None and done + count == expected and test.ends_without_floor(count):
            work = None if method.finish_copies(expected) else following(expected)
        checks = queue.run(done, until, count, lambda: test.gate, count if work else 0)
        if work is not None and method.recurrent:
            method.confirm_ahead(criterion.kind, criterion.gate())
        ledger = backend.posted_ledger()
        if work is not None:
            work()
        done = queue.evaluate(checks, test, ledger())
        watcher.progress(done, test.state.norm)
        short = clock.perf_counter() - began < LONGEST_QUEUE
    controller.finish(capture)
    method.finish(done)
    otherwise = "stopped" if reason else "count" if criterion.fixed else "limit"
    ending, state = test.state.ending or otherwise, test.state
    end = Outcome(ending, done, state.norm, state.floor, criterion.threshold, test.history)
    return replace(end, scale=criterion.scale, relative_to=criterion.relative_to, reason=reason)


class Queue:
    """Makes the iterations up to the next checks; a device may run behind its host.

    Each iteration of the longest pass has an accumulator, because each may be checked.
    """

    def __init__(self, method: Method, criterion: Criterion):
        self._method, self._criterion = method, criterion
        self.accumulators = method.accumulators(criterion.kind, method.longest)

    def run(
        self,
        done: int,
        until: int,
        count: int,
        gate: Callable[[], float],
        continues_at: int = 0,
    ) -> list[ResidualCheck]:
        """Make iterations from `done` on: `count` checks, but no iteration after `until`.

        A check whose value is at most `gate` ends the iterations, too. `gate` may wait for the
        device, so it is called after the first iterations are queued. A pass may make more checks
        than `count`; the last pass holds the last check. `continues_at`: see `Backend.open_gate`.
        """
        method, criterion, backend = self._method, self._criterion, self._method.system.backend
        afterwards = criterion.monitor == "residual" or criterion.total is not None
        checks: list[ResidualCheck] = []
        gate = cache(gate)
        backend.open_gate(continues_at)
        while len(checks) < count and done < (following := criterion.check_after(done)) <= until:
            done = method.march(done, following - method.longest)
            longest = min(method.longest, (following if afterwards else until) - done)
            if criterion.every > 1:  # a pass beyond MOST_FUSED has a norm of its last sweep only
                longest = min(longest, max(MOST_FUSED, following - done))
            changes: list[Accumulator | None] = [None] * longest
            if not afterwards:
                for n, accumulator in zip(range(longest), self.accumulators, strict=False):
                    changes[n] = accumulator if criterion.checks(done + n + 1) else None
            stop = done + method.advance(done, changes)
            if afterwards and stop == following:
                criterion.find(method, stop, self.accumulators[0])
                changes[stop - done - 1] = self.accumulators[0]
            made = [(n, c) for n, c in enumerate(changes[: stop - done], done + 1) if c is not None]
            backend.check([change for _, change in made], gate())
            checks += [ResidualCheck(number, done, stop) for number, _ in made]
            done = stop
        return checks

    def evaluate(
        self, checks: Sequence[ResidualCheck], test: ConvergenceTest, values: Sequence[float]
    ) -> int:
        """Test the checks of a queue in turn, by the values of its ledger; return the number of
        iterations that the method has then made."""
        passed = test.pass_over(checks, values)
        check = checks[max(passed, 1) - 1]
        for check, value in zip(checks[passed:], values[passed:], strict=False):
            test.examine(check, value)
            if test.state.ending:
                break
        if test.state.ending or len(values) < len(checks):  # a gate closed, perhaps a little early
            if check is not checks[-1]:  # discard the norms of the pass after this check
                self._method.system.backend.clear(self.accumulators)
            check.go_back(self._method)
            return check.number
        return check.stop
