"""How long the steps of a march are, and which one is the last."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from heatsolve.case.case import Case
from heatsolve.case.sections import IMPLICIT, Time
from heatsolve.errors import InputError
from heatsolve.models.base import Model, Stepper, Substep

MOST_STEPS = 2.0**53
SHORTEST_STEP = 1e-290
"""Bounds between which steps can be counted, and 1 / step computed."""
SHORTFALL = 1e-9
"""A last step that is shorter by less than this (relative) counts as a full step."""
HEADROOM = 1.1
"""When velocities outgrow a step, the next step is made for velocities this many times larger."""
SLOWER = 0.7
"""A step becomes longer when velocities fall below this share of the velocities it allows."""
GROWTH = 2.0
"""A step is at most this many times as long as the step before it."""
SHORTER = 8.0
ENDS = (0.0, 1.0)
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
WITHIN = tuple(n * GOLDEN % 1.0 for n in range(1, 9))
"""Shares of a step after which walls and forces are evaluated while the step is chosen: multiples
of the golden section, so that no periodic change hides between them."""
FLOOR = 0.05
"""The least share of the sum over the axes of speed / h that a step allows along each axis."""
REACH = 50.0
"""The longest step of implicit diffusion, times the sum over the axes of 2 nu / h^2."""
LARGEST_RATE = 1e300
DIGITS = 6
"""Digits to which a step that follows velocities is rounded down, so that all machines agree."""


@dataclass(frozen=True)
class TimeStep:
    """One step of a march, in its parts; whether it ends the march, and was shortened for that."""

    parts: tuple[Substep, ...]
    last: bool
    shortened: bool = False

    @property
    def length(self) -> float:
        """The length of its last part (s)."""
        return self.parts[-1].length


class TimeStepController(ABC):
    """Chooses the steps of a march of `problem`; `warning` tells of an unstable, allowed step.

    Raises InputError where the case's explicit scheme would be unstable.
    """

    step: float
    """The length of the next step, as far as is known (s)."""
    count: int
    """Steps to the end, as far as is known before the march."""
    warning = ""
    follows = False
    """Whether steps follow the present velocities."""

    def __init__(self, case: Case):
        self.case, self.time = case, case.march

    @property
    def state(self) -> dict[str, float]:
        """The numbers that a march needs to go on."""
        return {}

    def recall(self, state: Mapping[str, float]) -> None:
        """Go on from an earlier march."""

    def drive_anew(self) -> None:
        """Walls or sources have changed: steps that follow are chosen anew."""

    @abstractmethod
    def over(self, number: int, time: float) -> bool:
        """Whether a march is at its end after this number of steps."""

    @abstractmethod
    def next_step(self, number: int, time: float, stepper: Stepper) -> TimeStep:
        """Step `number` (from 0), from a time and the newest fields of a stepper."""

    def steps_of_one_length(self, number: int) -> int:
        """Steps of one length from step `number` on, as far as is known; at least 1."""
        return 1

    @abstractmethod
    def contains_step(self, number: int, time: float, shortened: bool) -> bool:
        """Whether this march passes through a step of an earlier march."""

    def steps_in_all(self, number: int, time: float) -> int:
        """Steps of the whole march, as far as is known after `number` steps."""
        return self.count


class EvenTimeSteps(TimeStepController):
    """Steps of one length; the last step is shortened if they do not divide the end time."""

    def __init__(self, problem: Model):
        super().__init__(problem.case)
        self.step, self.warning = step_length(problem)
        self.count = count_steps(self.time.end, self.step)

    def over(self, number: int, time: float) -> bool:
        return number >= self.count

    def next_step(self, number: int, time: float, stepper: Stepper) -> TimeStep:
        parts = tuple(substeps(self.time, number, self.step, self.count))
        last = number == self.count - 1
        shortened = parts[-1].length < self.step * (1.0 - SHORTFALL)
        # Where nothing moves, a march to a later end has another step.
        ends_all = self.time.step is None and self.step == self.time.end
        return TimeStep(parts, last, last and (shortened or ends_all))

    def steps_of_one_length(self, number: int) -> int:
        return max(1, self.count - 1 - number)  # the last step may be shorter

    def contains_step(self, number: int, time: float, shortened: bool) -> bool:
        if number == self.count:
            return abs(time - self.time.end) <= SHORTFALL * self.step
        return number < self.count and not shortened


class FollowingTimeSteps(TimeStepController):
    """Steps that `time.cfl` allows for the present velocities, and for walls until a step's end.

    The length stays the same while velocities allow it, but no much longer step. So there are few
    lengths: some linear systems serve one length, and equal steps are more accurate.
    """

    follows = True

    def __init__(self, problem: Model):
        super().__init__(problem.case)
        self._problem, self.step = problem, 0.0
        self._chosen_for: list[float] = []
        self._rate, self._ends_all = math.inf, False
        problem.demand_scheme()
        self._choose(0.0, problem.fields, partial(problem.speeds, problem.fields), 1.0, math.inf)
        assert self.time.cfl is not None
        if self.time.cfl > 1.0 and self._chosen_for:
            limit = problem.stable_step_at(self._chosen_for)
            if math.isfinite(limit):
                self.warning = unstable(self.time, self.time.cfl * limit, limit)
        self.count = count_steps(self.time.end, self.step)

    @property
    def state(self) -> dict[str, float]:
        speeds = {f"speed {number}": speed for number, speed in enumerate(self._chosen_for)}
        return {"step": self.step, "rate": self._rate, **speeds}

    def recall(self, state: Mapping[str, float]) -> None:
        if not state:  # by an earlier version, with even steps of transport
            return
        self.step, self._rate = state["step"], state["rate"]
        known = [speed for key, speed in state.items() if key.startswith("speed ")]
        self._chosen_for = known or [0.0] * self._problem.grid.dimension

    def drive_anew(self) -> None:
        self._rate = LARGEST_RATE

    def over(self, number: int, time: float) -> bool:
        return self.time.end - time <= SHORTFALL * self.step

    def next_step(self, number: int, time: float, stepper: Stepper) -> TimeStep:
        self._follow(time, stepper)
        left = self.time.end - time
        length = left if left < self.step * (1.0 - SHORTFALL) else self.step
        last = left <= self.step * (1.0 + SHORTFALL)
        # Where only the end bounds a step, a march to a later end makes a longer one.
        shortened = length < self.step or (last and self._ends_all)
        return TimeStep((Substep(time, length, 0.0),), last, shortened)

    def _follow(self, time: float, stepper: Stepper) -> None:
        speeds = stepper.speeds(*self._times(time, self.step, ENDS))
        rate = self._courant_rate(speeds)
        if not math.isfinite(rate):
            return
        if any(now > known for now, known in zip(speeds, self._chosen_for, strict=True)):
            self._choose(time, stepper.fields, stepper.speeds, HEADROOM, GROWTH * self.step)
        elif rate < SLOWER * self._rate:
            self._choose(time, stepper.fields, stepper.speeds, 1.0, GROWTH * self.step)

    def _choose(
        self,
        time: float,
        fields: Mapping[str, Any],
        speeds_at: Callable[..., list[float]],
        spare: float,
        longest: float,
    ) -> None:
        """Choose the longest step for `spare` times the velocities, and the forces, until its end.

        Walls and forces vary until the end of a step. So a step that they do not allow is tried
        again, shorter by a factor of SHORTER at most: it may only have reached too far ahead. The
        first trial takes the present alone, so that a march to a later end has the same step.
        """
        problem, end = self._problem, self.time.end
        assert self.time.cfl is not None
        step, times, to_box = min(longest, self._reach()), [time], math.inf
        while True:
            now = speeds_at(*times)
            floor = FLOOR * self._courant_rate(now) if spare > 1.0 else 0.0
            speeds = [
                max(spare * speed, floor * h)
                for speed, h in zip(now, problem.steps_along_axes, strict=True)
            ]
            try:
                limit = self.time.cfl * problem.stable_step_at(speeds)
            except InputError:
                if not problem.walls_vary or len(times) == 1 or step < SHORTEST_STEP:
                    raise
                limit = 0.0  # walls are too fast later in the step
            else:
                if limit == 0.0:  # allowed to be unstable, and no step is stable
                    return
            allowed = min(limit, self._step_of_forces(times, fields))
            if len(times) == 1:
                if not math.isfinite(allowed):  # nothing moves before the next box
                    to_box = self._time_to_box(time)
                step = min(step, allowed, end, to_box)
                self._ends_all = step == end
                if not problem.driven_in_time:  # later times would tell the same
                    break
            elif step <= allowed * (1.0 + SHORTFALL):
                break
            else:
                step, self._ends_all = max(allowed, step / SHORTER), False
            times = self._times(time, step, ENDS + WITHIN)
        short = step == longest
        self._chosen_for = speeds
        # Where only the step before bounds this step, the next step is chosen anew.
        self._rate = LARGEST_RATE if short else self._courant_rate(speeds)
        count_steps(end, step)  # raises for a step too short to count or round
        self.step = step if step == to_box else rounded_down(step)

    def _time_to_box(self, time: float) -> float:
        """The time to the next one at which a box is set again (s); infinite if there is none."""
        dues = (due for box in self.case.initial.boxes for due in box.again)
        return min((due - time for due in dues if due > time), default=math.inf)

    def _courant_rate(self, speeds: Sequence[float]) -> float:
        """The sum over the axes of speed / h (1/s); for accelerations in 1/s2."""
        return sum(u / h for u, h in zip(speeds, self._problem.steps_along_axes, strict=True))

    def _times(self, time: float, step: float, shares: Sequence[float]) -> list[float]:
        """The times after these fractions of a step, not beyond the end."""
        return [min(time + share * step, self.time.end) for share in shares]

    def _reach(self) -> float:
        """The longest step of implicit diffusion (s): a longer step is stable, but inaccurate."""
        problem = self._problem
        if self.time.diffusion == "explicit":
            return math.inf
        nu = max(problem.moved.values())
        rate = nu * sum(2.0 / (h * h) for h in problem.steps_along_axes)
        return REACH / rate if rate > 0.0 else math.inf

    def _step_of_forces(self, times: Sequence[float], fields: Mapping[str, Any]) -> float:
        """The step in which forces alone take a fluid from rest to a Courant number of `cfl`.

        A fluid at rest has no velocity yet that could bound the step.
        """
        rate = self._courant_rate(self._problem.accelerations(fields, *times))
        assert self.time.cfl is not None
        if not math.isfinite(rate):
            raise InputError("source: forces are too large for any step")
        step = math.sqrt(self.time.cfl / rate) if rate > 0.0 else math.inf
        return rounded_down(step) if math.isfinite(step) else step

    def contains_step(self, number: int, time: float, shortened: bool) -> bool:
        left = self.time.end - time
        return abs(left) <= SHORTFALL * self.step or (left > 0.0 and not shortened)

    def steps_in_all(self, number: int, time: float) -> int:
        return number + math.ceil((self.time.end - time) / self.step - SHORTFALL)


def time_step_controller(problem: Model) -> TimeStepController:
    """Steps that follow velocities, or even steps."""
    if follows(problem.case):
        return FollowingTimeSteps(problem)
    return EvenTimeSteps(problem)


def follows(case: Case) -> bool:
    """Whether the steps of a case follow its velocities: by `time.cfl`, where they change."""
    return case.velocity_changes and case.time is not None and case.time.cfl is not None


def rounded_down(step: float) -> float:
    """A step rounded down to `DIGITS` digits."""
    unit = 10.0 ** (math.floor(math.log10(step)) - DIGITS + 1)
    return math.floor(step / unit) * unit or step


def step_length(problem: Model) -> tuple[float, str]:
    """The first time step of a case (s), and a warning if it is unstable and allowed to be.

    Raises InputError where the case's explicit scheme would be unstable.
    """
    time = problem.case.march
    if time.scheme in IMPLICIT:
        assert time.step is not None
        return time.step, ""
    limit, step = problem.largest_step(), time.step
    if step is None:
        assert time.cfl is not None
        step = time.cfl * limit
        if not math.isfinite(limit):  # nothing moves: one step
            step = time.end
            if problem.driven_in_time:
                raise InputError(
                    "time.cfl: nothing moves or diffuses, so no step follows from it, but walls or "
                    "sources vary in time (give time.step instead)"
                )
    # A step chosen at the limit may exceed it by rounding.
    return step, "" if step <= limit * (1.0 + 1e-12) else unstable(time, step, limit)


def unstable(time: Time, step: float, limit: float) -> str:
    """The warning for a step that is longer than a scheme allows, if the case permits it.

    Raises InputError if the case does not.
    """
    name = "explicit Euler" if time.scheme == "explicit" else time.scheme
    key = "step" if time.step is not None else "cfl"
    sentence = f"time.{key}: a step of {step:.6g} is unstable, {name} allows at most {limit:.6g}"
    if not time.allow_unstable:
        raise InputError(f"{sentence} here (or set time.allow_unstable = true)")
    return sentence


def count_steps(end: float, step: float) -> int:
    """Steps to the end time; the last step is shortened if the length does not divide it."""
    if min(step, end) < SHORTEST_STEP or end > step * MOST_STEPS:
        raise InputError(f"time: a step of {step:.6g} is too small to reach t = {end:.6g}")
    return max(1, math.ceil(end / step - SHORTFALL))


def substeps(time: Time, number: int, step: float, count: int) -> Iterator[Substep]:
    """The parts of step `number`, of steps of equal length.

    Crank-Nicolson does not damp the jumps of a start, so its first two steps are four half-steps
    of backward Euler (R. Rannacher, Numer. Math. 43 (1984), 309).
    """
    start = number * step
    left = time.end - start
    # A last step shorter by rounding only stays full, as it is in a march to a later end.
    length = left if number == count - 1 and left < step * (1.0 - SHORTFALL) else step
    theta = {"crank-nicolson": 0.5, "backward-euler": 1.0}.get(time.scheme, 0.0)
    if time.scheme == "crank-nicolson" and number < 2:
        yield Substep(start, 0.5 * length, 1.0)
        yield Substep(start + 0.5 * length, 0.5 * length, 1.0)
    else:
        yield Substep(start, length, theta)
