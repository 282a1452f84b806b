"""The loop to convergence: when it ends, and what is said of it."""

import math
import time as clock
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from heatsolve import heat
from heatsolve.backends import Accumulator
from heatsolve.case import Case
from heatsolve.criterion import Criterion
from heatsolve.errors import Diverged
from heatsolve.keeper import Keeper, Questions, State
from heatsolve.linear import Method, System
from heatsolve.linear.cg import ConjugateGradients
from heatsolve.linear.chebyshev import Chebyshev
from heatsolve.linear.fft import Fourier
from heatsolve.linear.jacobi import Jacobi
from heatsolve.linear.mgcg import MultigridCG
from heatsolve.linear.mixed import Refinement
from heatsolve.linear.multigrid import Multigrid
from heatsolve.linear.sor import Sor

GROWTH = 1e12
"""Growth of a norm beyond its first value that counts as divergence."""
LONGEST_QUEUE = 0.25
"""Seconds of work that the host queues before it looks at a device."""


class Watcher(Protocol):
    """Who wants to know how a run goes; see `report`."""

    def warn(self, sentence: str) -> None: ...

    def aim(self, threshold: float) -> None: ...

    def progress(self, number: int, norm: float | None) -> None: ...


@dataclass
class Outcome:
    """How an iteration or a march ended.

    `ending`: "tolerance", "rounding" (the residual is at rounding level and falls no further),
    "count" (the fixed number of iterations, or the end time) or "limit" (not converged).
    """

    ending: str
    count: int
    norm: float
    floor: float = math.nan
    threshold: float = 0.0
    history: dict[str, list[float]] = field(default_factory=dict)

    @property
    def converged(self) -> bool:
        return self.ending in ("tolerance", "rounding")


def method_name(case: Case) -> str:
    """The method that a case asks for; `auto` is the fastest one for the case.

    A literal update is Jacobi's. Multigrid alone is enough where the conductivity is constant.
    """
    if case.solver.update is not None:
        return "jacobi"
    if case.solver.method != "auto":
        return case.solver.method
    return "mgcg" if case.model.conductivity.names else "multigrid"


def make_method(case: Case, system: System, u: Any) -> Method:
    """The method of a case, ready to begin at u."""
    solver = case.solver
    if solver.update is not None:
        h = system.grid.axes[-1].spacing
        update = heat.LITERAL_UPDATES[solver.update]
        return Jacobi(system, u, update=update, arguments=(system.b, h * h))
    name = method_name(case)
    if name == "jacobi":
        return Jacobi(system, u, solver.weight)
    if name == "sor":
        return Sor(system, u, solver.omega)
    if name == "chebyshev":
        return Chebyshev(system, u)
    if name in ("multigrid", "mgcg"):
        make = Multigrid if name == "multigrid" else MultigridCG
        if solver.precision == "mixed":
            make = Refinement
        return make(system, u, solver.cycle, solver.smoother)
    return (Fourier if name == "fft" else ConjugateGradients)(system, u)


def iterate(
    method: Method,
    criterion: Criterion,
    watcher: Watcher,
    questions: Questions | None = None,
    resumed: State | None = None,
) -> Outcome:
    """Iterate to the first check that meets the criterion, or to the limit.

    The host looks at the device once in many checks, but the device stops at the right one. The
    solution is then in `method.u`. `questions` may save it or stop it on the way; from a `resumed`
    state it goes on as if it had not stopped. Raises Diverged when a norm is not finite or has
    grown.
    """
    backend = method.system.backend
    judge = Judge(method, criterion)
    queue = Queue(method, criterion)
    questions = questions or Keeper()
    questions.stride = method.longest
    done, ahead = 0, 1

    def capture() -> State:
        record = {"unit": "iterations", "judge": asdict(judge.course), "method": method.scalars}
        return State(done, record, judge.history, method.memory(done))

    if resumed is not None:
        done = resumed.number
        method.recall(resumed.record["method"])
        judge.recall(Course(**resumed.record["judge"]), resumed.lists)
    elif criterion.monitor == "residual" and not criterion.fixed:
        initial = backend.accumulator(criterion.kind)
        method.residual_norm(0, initial)
        judge.judge(Look(0, 0, 0), initial.value)
    questions.begin(done, resumed is not None and resumed.finished)
    while not judge.ending and done < criterion.limit:
        if done >= questions.next:
            questions.attend(done, capture)
        until = min(criterion.limit, questions.next)
        if criterion.check_after(done) > until:  # a question comes before the next check
            queue.march(done, until)
            backend.sync()
            done = until
            continue
        began = clock.perf_counter()
        looks = queue.look(done, until, judge.most_checks(ahead) if method.queues else 1)
        values = backend.ledger()
        for look, value in zip(looks, values, strict=False):
            judge.judge(look, value)
            if judge.ending:
                break
        if judge.ending or len(values) < len(looks):  # a gate closed, perhaps a little early
            queue.clear()
            look.go_back(method)
            done = look.number
        else:
            done = look.stop
        watcher.progress(done, judge.norm)
        if clock.perf_counter() - began < LONGEST_QUEUE:
            ahead = min(2 * ahead, backend.lookahead)
    questions.conclude(capture)
    method.finish(done)
    ending = judge.ending or ("count" if criterion.fixed else "limit")
    course = judge.course
    return Outcome(ending, done, course.norm, course.floor, criterion.threshold, judge.history)


@dataclass(frozen=True)
class Look:
    """A check after iteration `number`, made in a pass from iteration `start` to `stop`."""

    number: int
    start: int
    stop: int

    def go_back(self, method: Method) -> None:
        """Bring the method from the end of the pass to the check."""
        if self.number < self.stop:
            for number in range(self.start, self.number):
                method.step(number, None)


class Queue:
    """Makes iterations on the way to the next checks; a device may be behind its host.

    There is an accumulator for each iteration of the longest pass: each may be one to check.
    """

    def __init__(self, method: Method, criterion: Criterion):
        self._method, self._criterion = method, criterion
        new = method.system.backend.accumulator
        self.accumulators = [new(criterion.kind) for _ in range(method.longest)]

    def clear(self) -> None:
        """Forget what a pass found beyond the check at which the gate closed."""
        for accumulator in self.accumulators:
            accumulator.clear()

    def march(self, done: int, until: int) -> None:
        """The iterations from `done` to `until`, unchecked."""
        while done < until:
            done += self._method.advance(done, [None] * min(self._method.longest, until - done))

    def look(self, done: int, until: int, checks: int) -> list[Look]:
        """Iterations from `done` on, until so many checks are made, or those up to `until`.

        A pass may bring more checks than were asked for; the last pass holds the last check.
        """
        method, criterion, backend = self._method, self._criterion, self._method.system.backend
        by_residual = criterion.monitor == "residual"
        looks: list[Look] = []
        backend.open_gate()
        while len(looks) < checks and done < (following := criterion.check_after(done)) <= until:
            count = min(method.longest, (following if by_residual else until) - done)
            changes: list[Accumulator | None] = [None] * count
            if not by_residual:
                for n, accumulator in zip(range(count), self.accumulators, strict=False):
                    changes[n] = accumulator if criterion.checks(done + n + 1) else None
            stop = done + method.advance(done, changes)
            if by_residual and stop == following:
                method.residual_norm(stop, self.accumulators[0])
                changes[stop - done - 1] = self.accumulators[0]
            for number, change in enumerate(changes[: stop - done], done + 1):
                if change is not None:
                    backend.check(change, criterion.gate)
                    looks.append(Look(number, done, stop))
            done = stop
        return looks


@dataclass
class Course:
    """How an iteration went so far: what the judge of its checks remembers.

    `floor` is the rounding level of the residual, `first` and `lowest` are norms; `confirmed` is
    the last true residual of a method that updates it by recurrence.
    """

    norm: float = math.nan
    floor: float = math.nan
    checks: int = 0
    first: float = math.nan
    lowest: float = math.inf
    without_fall: int = 0
    confirmed: float = math.inf
    ending: str = ""


class Judge:
    """Decides, check by check, whether an iteration is at its end; keeps the history."""

    def __init__(self, method: Method, criterion: Criterion):
        self._method, self._criterion = method, criterion
        self.course = Course()
        self.history: dict[str, list[float]] = {"iteration": [], "residual": []}

    @property
    def ending(self) -> str:
        """How the iteration ended; empty while it goes on."""
        return self.course.ending

    @property
    def norm(self) -> float:
        """The norm at the last check."""
        return self.course.norm

    def recall(self, course: Course, history: dict[str, list[float]]) -> None:
        """Go on from an earlier course; an end holds only if the criterion still says so."""
        self.course = course
        self.history = history
        if course.ending == "tolerance" and not self._criterion.met(course.norm):
            course.ending = ""

    def most_checks(self, wanted: int) -> int:
        """So many checks may be queued without passing one at which the host must decide."""
        if self._criterion.monitor == "update":
            return wanted
        course = self.course
        method = self._method
        until_floor = method.checks_per_floor - course.checks % method.checks_per_floor
        return min(wanted, until_floor, method.checks_without_fall - course.without_fall)

    def judge(self, look: Look, value: float) -> None:
        """Take the value of a check."""
        criterion, course, number = self._criterion, self.course, look.number
        course.norm = criterion.norm(value)
        self.history["iteration"].append(number)
        self.history["residual"].append(course.norm)
        if course.checks == 0:
            course.first = course.norm
        self._demand_finite(look)
        course.checks += 1
        if criterion.met(course.norm) and not self._method.recurrent:
            course.ending = "tolerance"
        elif criterion.monitor == "residual" and not criterion.fixed:
            self._judge_rounding(number)
        elif criterion.met(course.norm):
            course.ending = "tolerance"

    def _judge_rounding(self, number: int) -> None:
        course, method = self.course, self._method
        if course.checks % method.checks_per_floor == 0 or (method.direct and number > 0):
            self._find_floor(number)
        if method.recurrent:
            if self._criterion.met(course.norm) or course.norm < 0.25 * course.floor:
                self._confirm(number)
            return
        falls = course.norm < method.fall * course.lowest
        if course.norm <= course.floor and not falls:
            course.without_fall += 1
        course.lowest = min(course.lowest, course.norm)
        if course.without_fall == method.checks_without_fall:
            course.ending = "rounding"

    def _find_floor(self, number: int) -> None:
        method, kind = self._method, self._criterion.kind
        self.course.floor = method.system.residual_floor(method.solution(number), kind)

    def _confirm(self, number: int) -> None:
        """A recurrence says converged: look at the true residual, and go on from it."""
        course, method = self.course, self._method
        method.confirm(number)
        accumulator = method.system.backend.accumulator(self._criterion.kind)
        method.residual_norm(number, accumulator)
        course.norm = self.history["residual"][-1] = self._criterion.norm(accumulator.value)
        if self._criterion.met(course.norm):
            course.ending = "tolerance"
            return
        self._find_floor(number)
        if course.norm <= course.floor and course.norm > 0.5 * course.confirmed:
            course.ending = "rounding"
        course.confirmed = course.norm

    def _demand_finite(self, look: Look) -> None:
        norm, first = self.course.norm, self.course.first
        if math.isfinite(norm) and not norm > GROWTH * first > 0.0:
            return
        what, number = self._criterion.monitor, look.number
        look.go_back(self._method)
        place = first_not_finite(self._method.system, self._method.solution(number))
        where = place or f"the {what} grew from {first:g} to {norm:g}"
        raise Diverged(f"diverged by iteration {number}: {where}")


def first_not_finite(system: System, u: Any) -> str:
    """Where a field is not finite, in words; empty if it is finite (asks all processes)."""
    own = system.grid.interior
    inside = system.backend.to_host(u)[tuple(slice(*pair) for pair in own)]
    bad = ~np.isfinite(inside)
    found = ""
    if bad.any():
        place = np.unravel_index(int(np.argmax(bad)), bad.shape)
        position = [
            f"{axis.name} = {axis.coordinates[first + index]:g}"
            for axis, (first, _), index in zip(system.grid.axes, own, place, strict=True)
        ]
        found = f"temperature is {inside[place]:g} at {', '.join(reversed(position))}"
    return next((words for words in system.halo.ranks.gather(found) if words), "")
