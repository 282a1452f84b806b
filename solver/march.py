"""The loop to convergence and the loop to the end time."""

import math
import time as clock
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from heatsolve import heat
from heatsolve.backends import Accumulator
from heatsolve.case import Case
from heatsolve.conduction import Conduction
from heatsolve.errors import Diverged, InputError, NotConverged
from heatsolve.linear import Method, System, weighted, weighted_magnitude, with_change
from heatsolve.linear.cg import ConjugateGradients
from heatsolve.linear.chebyshev import Chebyshev
from heatsolve.linear.jacobi import Jacobi
from heatsolve.linear.sor import Sor
from heatsolve.points import copy, fill

CHECKS_PER_FLOOR = 50
"""Checks after which the rounding level of the residual is computed anew."""
CHECKS_WITHOUT_FALL = 10
"""Checks below the rounding level without a new lowest residual that end an iteration."""
GROWTH = 1e12
"""Growth of a norm beyond its first value that counts as divergence."""
LONGEST_QUEUE = 0.25
"""Seconds of work that the host queues before it looks at a device."""
MOST_STEPS = 2.0**53
SHORTEST_STEP = 1e-290
"""Bounds between which steps can be counted, and 1 / step computed."""
LOOKS_AT_START = 10
"""Looks at a march whose largest change is what later ones are compared with."""
COMPATIBLE = 1e-10
"""Relative imbalance of sources up to which a problem without given values has a solution."""


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


class Criterion:
    """When an iteration ends: the norm of its update or of its residual, against a tolerance."""

    def __init__(self, case: Case, system: System, u: Any, scratch: Any = None):
        solver = case.solver
        self.kind = "sum" if solver.norm == "l2" else "max"
        self.monitor = solver.monitor
        self.fixed = solver.iterations is not None
        self.limit = solver.iterations or solver.max_iterations
        self.every = solver.check_every
        if self.fixed and "check_every" not in solver.model_fields_set:
            self.every = self.limit
        relative = solver.relative and not self.fixed
        scale = self._norm_of_b(system, u, scratch) if relative else 1.0
        self.threshold = 0.0 if self.fixed else solver.tolerance * scale

    def norm(self, value: float) -> float:
        return math.sqrt(value) if self.kind == "sum" else value

    def met(self, norm: float) -> bool:
        return not self.fixed and (norm < self.threshold or norm == 0.0)

    @property
    def gate(self) -> float:
        """The threshold for the value of an accumulator."""
        if self.fixed:
            return -1.0
        # A product: a power of floats raises an error where it overflows.
        return self.threshold * self.threshold if self.kind == "sum" else self.threshold

    def _norm_of_b(self, system: System, u: Any, scratch: Any) -> float:
        """The norm of b with the walls' values moved into it: the residual of u = 0 inside."""
        bare = system.like(u, scratch)
        system.backend.sweep(fill, bare, system.grid.interior, 0.0)
        accumulator = system.backend.accumulator(self.kind)
        system.residual_norm(bare, accumulator)
        return self.norm(accumulator.value)


def make_method(case: Case, system: System, u: Any) -> Method:
    """The method that a case asks for; `auto` is the fastest one for the case."""
    solver = case.solver
    if solver.update is not None:
        h = system.grid.axes[-1].spacing
        update = heat.LITERAL_UPDATES[solver.update]
        return Jacobi(system, u, update=update, arguments=(system.b, h * h))
    if solver.method == "jacobi":
        return Jacobi(system, u, solver.weight)
    if solver.method == "sor":
        return Sor(system, u, solver.omega)
    if solver.method == "chebyshev":
        return Chebyshev(system, u)
    return ConjugateGradients(system, u)


def iterate(method: Method, criterion: Criterion, watcher: Watcher) -> Outcome:
    """Iterate to the first check that meets the criterion, or to the limit.

    The host looks at the device once in many checks, but the device stops at the right one. The
    solution is then in `method.u`. Raises Diverged when a norm is not finite or has grown.
    """
    judge = Judge(method, criterion)
    accumulator = method.system.backend.accumulator(criterion.kind)
    done, ahead = 0, 1
    if criterion.monitor == "residual" and not criterion.fixed:
        method.residual_norm(0, accumulator)
        judge.judge(0, accumulator.value)
        accumulator.clear()
    while not judge.ending and done < criterion.limit:
        began = clock.perf_counter()
        numbers = _queue(method, criterion, accumulator, done, judge.most_checks(ahead))
        for number, value in zip(numbers, method.system.backend.ledger(), strict=False):
            done = number
            judge.judge(done, value)
            if judge.ending:
                break
        watcher.progress(done, judge.norm)
        if clock.perf_counter() - began < LONGEST_QUEUE:
            ahead = min(2 * ahead, method.system.backend.lookahead)
    method.finish(done)
    ending = judge.ending or ("count" if criterion.fixed else "limit")
    return Outcome(ending, done, judge.norm, judge.floor, criterion.threshold, judge.history)


def _queue(
    method: Method, criterion: Criterion, accumulator: Accumulator, done: int, checks: int
) -> list[int]:
    """Queue the steps up to so many checks; the iterations at which the checks stand."""
    backend = method.system.backend
    if not method.queues:
        checks = 1
    numbers = []
    backend.open_gate()
    for _ in range(checks):
        following = min(done + criterion.every, criterion.limit)
        if following == done:
            break
        for number in range(done, following):
            looks = criterion.monitor == "update" and number + 1 == following
            method.step(number, accumulator if looks else None)
        done = following
        if criterion.monitor == "residual":
            method.residual_norm(done, accumulator)
        backend.check(accumulator, criterion.gate)
        numbers.append(done)
    return numbers


class Judge:
    """Decides, check by check, whether an iteration is at its end; keeps the history."""

    def __init__(self, method: Method, criterion: Criterion):
        self._method, self._criterion = method, criterion
        self.ending = ""
        self.norm = math.nan
        self.floor = math.nan
        self.history: dict[str, list[float]] = {"iteration": [], "residual": []}
        self._checks = 0
        self._first = math.nan
        self._lowest = math.inf
        self._without_fall = 0
        self._confirmed = math.inf

    def most_checks(self, wanted: int) -> int:
        """So many checks may be queued without passing one at which the host must decide."""
        if self._criterion.monitor == "update":
            return wanted
        until_floor = CHECKS_PER_FLOOR - self._checks % CHECKS_PER_FLOOR
        return min(wanted, until_floor, CHECKS_WITHOUT_FALL - self._without_fall)

    def judge(self, number: int, value: float) -> None:
        """Take the value of the check after iteration `number`."""
        criterion = self._criterion
        self.norm = criterion.norm(value)
        self.history["iteration"].append(number)
        self.history["residual"].append(self.norm)
        if self._checks == 0:
            self._first = self.norm
        self._demand_finite(number)
        self._checks += 1
        if criterion.met(self.norm) and not self._method.recurrent:
            self.ending = "tolerance"
        elif criterion.monitor == "residual" and not criterion.fixed:
            self._judge_rounding(number)
        elif criterion.met(self.norm):
            self.ending = "tolerance"

    def _judge_rounding(self, number: int) -> None:
        if self._checks % CHECKS_PER_FLOOR == 0:
            self._find_floor(number)
        if self._method.recurrent:
            if self._criterion.met(self.norm) or self.norm < 0.25 * self.floor:
                self._confirm(number)
            return
        if self.norm <= self.floor and self.norm >= self._lowest:
            self._without_fall += 1
        self._lowest = min(self._lowest, self.norm)
        if self._without_fall == CHECKS_WITHOUT_FALL:
            self.ending = "rounding"

    def _find_floor(self, number: int) -> None:
        system = self._method.system
        self.floor = system.residual_floor(self._method.solution(number), self._criterion.kind)

    def _confirm(self, number: int) -> None:
        """A recurrence says converged: look at the true residual, and go on from it."""
        self._method.confirm(number)
        accumulator = self._method.system.backend.accumulator(self._criterion.kind)
        self._method.residual_norm(number, accumulator)
        self.norm = self.history["residual"][-1] = self._criterion.norm(accumulator.value)
        if self._criterion.met(self.norm):
            self.ending = "tolerance"
            return
        self._find_floor(number)
        if self.norm <= self.floor and self.norm > 0.5 * self._confirmed:
            self.ending = "rounding"
        self._confirmed = self.norm

    def _demand_finite(self, number: int) -> None:
        if math.isfinite(self.norm) and not self.norm > GROWTH * self._first > 0.0:
            return
        what = self._criterion.monitor
        place = first_not_finite(self._method.system, self._method.solution(number))
        where = place or f"the {what} grew from {self._first:g} to {self.norm:g}"
        raise Diverged(f"diverged by iteration {number}: {where}")


def first_not_finite(system: System, u: Any) -> str:
    """Where a field is not finite, in words; empty if it is finite (asks all processes)."""
    inside = system.backend.to_host(u)[tuple(slice(1, -1) for _ in system.grid.axes)]
    bad = ~np.isfinite(inside)
    found = ""
    if bad.any():
        place = np.unravel_index(int(np.argmax(bad)), bad.shape)
        position = [
            f"{axis.name} = {axis.coordinates[index + 1]:g}"
            for axis, index in zip(system.grid.axes, place, strict=True)
        ]
        found = f"temperature is {inside[place]:g} at {', '.join(reversed(position))}"
    return next((words for words in system.halo.ranks.gather(found) if words), "")


# ---- steady ------------------------------------------------------------------------------------


def steady(problem: Conduction, watcher: Watcher) -> Outcome:
    """Solve div(k grad T) + q = 0; the solution is left in `problem.temperature`."""
    source = problem.source(0.0)
    if problem.singular:  # make_compatible writes to all of it
        source = np.broadcast_to(source, problem.grid.shape)
    system = problem.system(problem.backend.to_device(source))
    if system.singular:
        make_compatible(system)
    # The criterion first: the array that it needs is free again when the method makes its own.
    criterion = Criterion(problem.case, system, problem.temperature)
    watcher.aim(criterion.threshold)
    method = make_method(problem.case, system, problem.temperature)
    outcome = iterate(method, criterion, watcher)
    if system.singular:
        system.remove_mean(problem.temperature)
    return outcome


def make_compatible(system: System) -> None:
    """Without any given value, sources and fluxes must cancel: refuse, or remove their rounding."""
    given = (system.grid.interior, system.b, *system.ratios)
    total = system.backend.reduce("sum", weighted, *given)
    size = system.backend.reduce("sum", weighted_magnitude, *given)
    if abs(total) > COMPATIBLE * size:
        raise InputError(
            "no steady state: no wall gives a temperature, and sources and wall fluxes do not "
            f"cancel (sum {total:.6g} of magnitudes {size:.6g})"
        )
    if total != 0.0:
        system.remove_mean(system.b)


# ---- transient ---------------------------------------------------------------------------------

Frame = Callable[[float], None]


@dataclass(frozen=True)
class Substep:
    """One step of the theta scheme, from `start` over `length`; theta = 0 is explicit Euler."""

    start: float
    length: float
    theta: float


def step_length(problem: Conduction) -> tuple[float, str]:
    """The time step of a case (s), and a warning if it is unstable and allowed to be.

    Raises InputError where explicit Euler would be unstable.
    """
    time = problem.case.time
    assert time is not None
    if time.scheme != "explicit":
        return time.step, ""
    limit = problem.largest_step()
    step = time.step if time.step is not None else time.cfl * limit
    # A step chosen at the limit may exceed it by rounding.
    if step <= limit * (1.0 + 1e-12):
        return step, ""
    key = "step" if time.step is not None else "cfl"
    sentence = (
        f"time.{key}: a step of {step:.6g} is unstable, explicit Euler allows at most {limit:.6g}"
    )
    if not time.allow_unstable:
        raise InputError(f"{sentence} here (or set time.allow_unstable = true)")
    return step, sentence


def count_steps(end: float, step: float) -> int:
    """Steps to the end time; the last one is shortened where the step does not divide it."""
    if min(step, end) < SHORTEST_STEP or end > step * MOST_STEPS:
        raise InputError(f"time: a step of {step:.6g} is too small to reach t = {end:.6g}")
    return max(1, math.ceil(end / step - 1e-9))


def substeps(problem: Conduction, number: int, step: float, count: int) -> Iterator[Substep]:
    """The parts of step `number`.

    Crank-Nicolson does not damp the jumps of a start, so its first two steps are four half-steps
    of backward Euler (R. Rannacher, Numer. Math. 43 (1984), 309).
    """
    time = problem.case.time
    assert time is not None
    start = number * step
    length = time.end - start if number == count - 1 else step
    theta = {"explicit": 0.0, "crank-nicolson": 0.5, "backward-euler": 1.0}[time.scheme]
    if time.scheme == "crank-nicolson" and number < 2:
        yield Substep(start, 0.5 * length, 1.0)
        yield Substep(start + 0.5 * length, 0.5 * length, 1.0)
    else:
        yield Substep(start, length, theta)


def transient(problem: Conduction, step: float, watcher: Watcher, frame: Frame) -> Outcome:
    """March to the end time; `frame(t)` is called whenever the field is to be written."""
    case, backend = problem.case, problem.backend
    assert case.time is not None
    count = count_steps(case.time.end, step)
    every = case.output.every or count
    look = max(case.solver.check_every, count // 1000)
    stepper = Explicit(problem) if case.time.scheme == "explicit" else Implicit(problem)
    change = backend.accumulator("sum")
    history: dict[str, list[float]] = {"iteration": [], "residual": [], "time": [], "dt": []}
    norm, time = math.nan, 0.0
    frame(0.0)
    largest = 0.0
    for number in range(count):
        last = number == count - 1
        looks = last or (number + 1) % look == 0
        try:
            for part in substeps(problem, number, step, count):
                stepper.advance(part, change if looks else None)
                time = part.start + part.length
        except NotConverged as error:
            watcher.warn(str(error))
            stepper.finish()
            frame(part.start + part.length)
            return Outcome("limit", number + 1, stepper.norm, history=history)
        if looks:
            norm = math.sqrt(change.value)
            change.clear()
            # Heat that grows without bound has an unstable step: what it began with is small.
            largest = max(largest, norm) if len(history["residual"]) < LOOKS_AT_START else largest
            _demand_bounded(stepper, norm, GROWTH * largest or math.inf, number + 1, time)
            for key, value in zip(history, (number + 1, norm, time, part.length), strict=True):
                history[key].append(value)
            watcher.progress(number + 1, norm)
        if last or (number + 1) % every == 0:
            stepper.finish()
            frame(case.time.end if last else time)
    return Outcome("count", count, norm, history=history)


def _demand_bounded(
    stepper: "Explicit | Implicit", norm: float, bound: float, number: int, time: float
) -> None:
    """Refuse to go on with a field that is not finite or has grown beyond any bound."""
    if math.isfinite(norm) and norm <= bound:
        return
    stepper.finish()
    where = first_not_finite(stepper.system, stepper.problem.temperature)
    where = where or f"the field changes by {norm:.3g} in one step"
    raise Diverged(f"diverged by step {number} (t = {time:g}): {where}")


class Explicit:
    """Explicit Euler: T + dt (div(k grad T) + q) / (rho c), from one array into another."""

    norm = math.nan

    def __init__(self, problem: Conduction):
        self.problem = problem
        place = problem.backend.to_device
        self.system = problem.system(place(problem.source(0.0)))
        self._b = self.system.b
        self._now = problem.temperature
        self._next = self.system.like(self._now)
        self._changed = {None: heat.explicit_step, "sum": with_change(heat.explicit_step, "sum")}

    def advance(self, part: Substep, change: Accumulator | None) -> None:
        problem = self.problem
        if problem.walls_vary:
            problem.set_walls(self._now, part.start)
        if problem.source_varies:
            self._b = problem.backend.to_device(problem.source(part.start))
        point = self._changed[change and change.kind]
        out = self._next if change is None else (self._next, change)
        given = (self._b, part.length, problem.capacity, *problem.faces)
        self.system.sweep(point, out, self._now, *given)
        self._now, self._next = self._next, self._now
        if problem.walls_vary:
            problem.set_walls(self._now, part.start + part.length)

    def finish(self) -> None:
        """Leave the newest field in `problem.temperature`."""
        if self._now is not self.problem.temperature:
            everything = self.problem.grid.everything
            self.problem.backend.sweep(copy, self._next, everything, self._now)
            self._now, self._next = self._next, self._now


class Implicit:
    """The theta scheme: each step solves rho c s T - div(k grad T) = b, s = 1 / (theta dt)."""

    def __init__(self, problem: Conduction):
        self.problem = problem
        backend = problem.backend
        self._right = backend.zeros(problem.grid.shape)
        self._old = backend.zeros(problem.grid.shape)
        relative = problem.case.solver.relative
        self._scratch = backend.zeros(problem.grid.shape) if relative else None
        self._b = backend.to_device(problem.source(0.0))
        self._solvers: dict[float, tuple[Method, System]] = {}
        self.norm = math.nan

    def advance(self, part: Substep, change: Accumulator | None) -> None:
        problem, backend, grid = self.problem, self.problem.backend, self.problem.grid
        t, end = problem.temperature, part.start + part.length
        s = 1.0 / (part.theta * part.length)
        backend.sweep(copy, self._old, grid.everything, t)
        b_new = self._b
        if problem.source_varies:
            b_new = backend.to_device(problem.source(end))
        given = (self._b, b_new, problem.capacity, s, 1.0 / part.theta - 1.0, *problem.faces)
        problem.halo.exchange(t)
        backend.sweep(heat.implicit_source, self._right, grid.interior, t, *given)
        self._b = b_new
        if problem.walls_vary:
            problem.set_walls(t, end)
        method, self.system = self._solver(s)
        method.restart()
        criterion = Criterion(problem.case, self.system, t, self._scratch)
        outcome = iterate(method, criterion, Silent())
        self.norm = outcome.norm
        if outcome.ending == "limit":
            raise NotConverged(
                f"the step to t = {end:g} did not converge in {outcome.count} iterations "
                f"(norm {outcome.norm:.3g})"
            )
        if change is not None:
            backend.sweep(squared_difference, change, grid.interior, t, self._old)

    def _solver(self, s: float) -> tuple[Method, System]:
        if s not in self._solvers:
            system = self.problem.system(self._right, s)
            method = make_method(self.problem.case, system, self.problem.temperature)
            self._solvers[s] = (method, system)
        return self._solvers[s]

    def finish(self) -> None:
        """The newest field is always in `problem.temperature`."""


class Silent:
    """A watcher of the iterations inside a time step."""

    def warn(self, sentence: str) -> None:
        pass

    def aim(self, threshold: float) -> None:
        pass

    def progress(self, number: int, norm: float | None) -> None:
        pass


def squared_difference(at, u, v):
    difference = u[at] - v[at]
    return difference * difference
