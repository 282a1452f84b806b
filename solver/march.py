"""A steady solution, and the march to the end time."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from heatsolve import heat
from heatsolve.backends import Accumulator
from heatsolve.case import Case
from heatsolve.conduction import Conduction
from heatsolve.converge import (
    GROWTH,
    Outcome,
    Watcher,
    first_not_finite,
    iterate,
    make_method,
)
from heatsolve.criterion import Criterion
from heatsolve.errors import Diverged, InputError, NotConverged
from heatsolve.keeper import Keeper, Questions, State, Stopped
from heatsolve.linear import Method, System, weighted, weighted_magnitude
from heatsolve.points import copy

MOST_STEPS = 2.0**53
SHORTEST_STEP = 1e-290
"""Bounds between which steps can be counted, and 1 / step computed."""
FUZZ = 1e-9
"""A last step shorter than the others by less than this (relative) is one of them."""
LOOKS_AT_START = 10
"""Looks at a march whose largest change is what later ones are compared with."""
COMPATIBLE = 1e-10
"""Relative imbalance of sources up to which a problem without given values has a solution."""


def steady(
    problem: Conduction,
    watcher: Watcher,
    keeper: Keeper | None = None,
    resumed: State | None = None,
) -> Outcome:
    """Solve div(k grad T) + q = 0; the solution is left in `problem.temperature`.

    From a `resumed` state it goes on as if it had not stopped.
    """
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
    if resumed is not None:
        for name, array in method.memory(resumed.number).items():
            problem.restore(array, resumed.fields[name])
    outcome = iterate(method, criterion, watcher, keeper, resumed)
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
        system.halo.exchange(system.b)  # the margin reads it, too


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
    return max(1, math.ceil(end / step - FUZZ))


def substeps(problem: Conduction, number: int, step: float, count: int) -> Iterator[Substep]:
    """The parts of step `number`.

    Crank-Nicolson does not damp the jumps of a start, so its first two steps are four half-steps
    of backward Euler (R. Rannacher, Numer. Math. 43 (1984), 309).
    """
    time = problem.case.time
    assert time is not None
    start = number * step
    left = time.end - start
    # What rounding takes from the last step is left to it: a march to a later end is the same.
    length = left if number == count - 1 and left < step * (1.0 - FUZZ) else step
    theta = {"explicit": 0.0, "crank-nicolson": 0.5, "backward-euler": 1.0}[time.scheme]
    if time.scheme == "crank-nicolson" and number < 2:
        yield Substep(start, 0.5 * length, 1.0)
        yield Substep(start + 0.5 * length, 0.5 * length, 1.0)
    else:
        yield Substep(start, length, theta)


@dataclass
class Course:
    """How a march went so far: the time, the norm of the last change that was looked at, the
    largest such norm at the start, and whether the last step was shorter than the others."""

    time: float = 0.0
    norm: float = math.nan
    largest: float = 0.0
    shortened: bool = False


def on_the_way(case: Case, step: float, state: State) -> bool:
    """Whether the march, or the iteration, of a case passes through a state of an earlier one."""
    if case.time is None:
        return case.solver.iterations is None or state.number <= case.solver.iterations
    course, count = Course(**state.record["march"]), count_steps(case.time.end, step)
    if state.number == count:
        return abs(course.time - case.time.end) <= FUZZ * step
    return state.number < count and not course.shortened


def transient(
    problem: Conduction,
    step: float,
    watcher: Watcher,
    frame: Frame,
    keeper: Keeper | None = None,
    resumed: State | None = None,
) -> Outcome:
    """March to the end time; `frame(t)` is called whenever the field is to be written.

    From a `resumed` state it goes on as if it had not stopped.
    """
    case, backend = problem.case, problem.backend
    assert case.time is not None
    count = count_steps(case.time.end, step)
    every = case.output.every
    look = max(case.solver.check_every, count // 1000)
    keeper = keeper or Keeper()
    number, course = 0, Course()
    history: dict[str, list[float]] = {"iteration": [], "residual": [], "time": [], "dt": []}
    if resumed is not None:
        number, course = resumed.number, Course(**resumed.record["march"])
        history = resumed.lists
        problem.restore(problem.temperature, resumed.fields["temperature"])
        problem.set_walls(problem.temperature, course.time)
    stepper = (Explicit if case.time.scheme == "explicit" else Implicit)(problem, course.time)
    change = backend.accumulator("sum")

    def capture() -> State:
        record = {"unit": "steps", "march": asdict(course)}
        return State(number, record, history, {"temperature": stepper.field})

    if resumed is None:
        frame(0.0)
    keeper.begin(number, resumed is not None and resumed.finished)
    while number < count:
        if number >= keeper.next:
            backend.sync()
            keeper.attend(number, capture)
        looks = number + 1 == count or (number + 1) % look == 0
        try:
            parts = list(substeps(problem, number, step, count))
            stepper.begin(len(parts))
            for part in parts:
                stepper.advance(part, change if looks else None, keeper.inside)
        except Stopped:
            stepper.undo()
            keeper.interrupt(capture)
        except NotConverged as error:
            watcher.warn(str(error))
            stepper.finish()
            frame(part.start + part.length)
            return Outcome("limit", number + 1, stepper.norm, history=history)
        number += 1
        course.time = part.start + part.length
        course.shortened = number == count and part.length < step * (1.0 - FUZZ)
        if looks:
            course.norm = math.sqrt(change.value)
            change.clear()
            # Heat that grows without bound has an unstable step: what it began with is small.
            if len(history["residual"]) < LOOKS_AT_START:
                course.largest = max(course.largest, course.norm)
            bound = GROWTH * course.largest or math.inf
            _demand_bounded(stepper, course.norm, bound, number, course.time)
            row = {"iteration": number, "residual": course.norm}
            row |= {"time": course.time, "dt": part.length}
            for name, value in row.items():
                history[name].append(value)
            watcher.progress(number, course.norm)
        if every and number % every == 0:
            stepper.finish()
            frame(course.time if number < count else case.time.end)
    # A last frame that a march to a later end would not have is not kept for one.
    keeper.conclude(capture)
    if not (every and number % every == 0):
        stepper.finish()
        frame(case.time.end)
    return Outcome("count", number, course.norm, history=history)


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

    def __init__(self, problem: Conduction, time: float):
        self.problem = problem
        place = problem.backend.to_device
        self.system = problem.system(place(problem.source(time)))
        self._b = self.system.b
        self.field = problem.temperature
        self._next = self.system.like(self.field)
        self._sweeps = 0

    def advance(self, part: Substep, change: Accumulator | None, questions: Any) -> None:
        problem = self.problem
        if problem.walls_vary:
            problem.set_walls(self.field, part.start)
        if problem.source_varies:
            self._b = problem.backend.to_device(problem.source(part.start))
        given = (self._b, part.length, problem.capacity, *problem.faces)
        self.system.update(
            heat.explicit_step, self._next, self.field, *given, change=change, number=self._sweeps
        )
        self._sweeps += 1
        self.field, self._next = self._next, self.field
        if problem.walls_vary:
            problem.set_walls(self.field, part.start + part.length)

    def begin(self, parts: int) -> None:
        """A step begins, of so many parts."""

    def undo(self) -> None:
        """An explicit step is never left half done."""

    def finish(self) -> None:
        """Leave the newest field in `problem.temperature`."""
        if self.field is not self.problem.temperature:
            everything = self.problem.grid.everything
            self.problem.backend.sweep(copy, self._next, everything, self.field)
            self.field, self._next = self._next, self.field


class Implicit:
    """The theta scheme: each step solves rho c s T - div(k grad T) = b, s = 1 / (theta dt)."""

    def __init__(self, problem: Conduction, time: float):
        self.problem = problem
        backend = problem.backend
        self.field = problem.temperature
        self._right = backend.zeros(problem.grid.shape)
        self._old = backend.zeros(problem.grid.shape)
        relative = problem.case.solver.relative
        self._scratch = backend.zeros(problem.grid.shape) if relative else None
        self._b = backend.to_device(problem.source(time))
        self._solvers: dict[float, tuple[Method, System]] = {}
        self.norm = math.nan

    def advance(
        self, part: Substep, change: Accumulator | None, questions: Questions | None
    ) -> None:
        problem, backend, grid = self.problem, self.problem.backend, self.problem.grid
        t, end = problem.temperature, part.start + part.length
        s = 1.0 / (part.theta * part.length)
        self._restore(self._old, t)
        b_new = self._b
        if problem.source_varies:
            b_new = backend.to_device(problem.source(end))
        given = (self._b, b_new, problem.capacity, s, 1.0 / part.theta - 1.0, *problem.faces)
        problem.halo.exchange(t)
        backend.sweep(heat.implicit_source, self._right, grid.interior, t, *given)
        if problem.halo.depth > 1:
            problem.halo.exchange(self._right)  # the margin reads it, too
        self._b = b_new
        if problem.walls_vary:
            problem.set_walls(t, end)
        method, self.system = self._solver(s)
        method.restart()
        criterion = Criterion(problem.case, self.system, t, self._scratch)
        outcome = iterate(method, criterion, Silent(), questions)
        self.norm = outcome.norm
        if outcome.ending == "limit":
            raise NotConverged(
                f"the step to t = {end:g} did not converge in {outcome.count} iterations "
                f"(norm {outcome.norm:.3g})"
            )
        if change is not None:
            backend.sweep(squared_difference, change, grid.interior, t, self._old)

    def begin(self, parts: int) -> None:
        """A step begins, of so many parts."""
        self._before = self._old
        if parts > 1:  # each of which overwrites the old field
            self._before = self.problem.backend.zeros(self.problem.grid.shape)
            self._restore(self._before, self.field)

    def undo(self) -> None:
        """Go back to the field before the step that was left half done."""
        self._restore(self.field, self._before)

    def _restore(self, array: Any, source: Any) -> None:
        self.problem.backend.sweep(copy, array, self.problem.grid.everything, source)

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
