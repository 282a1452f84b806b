"""A case tried for a moment, and what it tells of the rest of the run."""

import math
import time as clock
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import numpy as np

from heatsolve import march
from heatsolve.backends import Backend
from heatsolve.case import Case
from heatsolve.conduction import Conduction
from heatsolve.errors import Interrupted
from heatsolve.keeper import Capture, Keeper, State
from heatsolve.pace import pace_of
from heatsolve.problem import Problem, grid_of
from heatsolve.runner import make_problem

TRIED_SECONDS = 1.5
"""So long the case is tried."""
HELD_UP = 5.0
"""Times as long as others takes a unit of work during which something was compiled."""


@dataclass(frozen=True)
class Mark:
    """Where a run was: units of work made, the clock in seconds, points updated until then."""

    units: int
    clock: float
    points: int


def later_half(marks: Sequence[Mark]) -> tuple[Mark, Mark]:
    """The ends of it: a start may need more for each unit of work."""
    return marks[len(marks) // 2 - 1 if len(marks) > 3 else 0], marks[-1]


@dataclass
class Trial:
    """What was tried: units of work made, the seconds of one, those before the first, and the
    history of what was looked at. `ended`: whether the run came to its own end."""

    units: int = 0
    seconds: float = 0.0
    before: float = 0.0
    ended: bool = False
    threshold: float = 0.0
    history: Mapping[str, Sequence[float]] = field(default_factory=dict)
    marks: Sequence[Mark] = ()
    unknowns: int = 1

    @property
    def held_up(self) -> bool:
        """Whether a part of the later half took far longer than others, as if it had compiled."""
        half, _ = later_half(self.marks)
        timed = pairwise(mark for mark in self.marks if mark.units >= half.units)
        each = [(b.clock - a.clock) / (b.units - a.units) for a, b in timed if b.units > a.units]
        return bool(each) and max(each) > HELD_UP * median(each)

    def end(self, along: str = "iteration") -> float:
        """The iteration, or the time, at which the norm is at its threshold, if it goes on to fall
        as in the later half of the trial; inf if it does not fall."""
        places, norms = (np.asarray(self.history.get(name, ())) for name in (along, "residual"))
        if self.ended:
            return float(places[-1]) if len(places) else self.units
        if len(norms) < 2:
            return math.inf
        half = len(norms) // 2 if len(norms) > 3 else 0
        fallen = math.log(norms[half] / norms[-1]) if min(norms[half], norms[-1]) > 0.0 else 0.0
        if fallen <= 0.0 or not self.threshold > 0.0:
            return math.inf
        left = math.log(norms[-1] / self.threshold) * (places[-1] - places[half]) / fallen
        return float(places[-1] + max(0.0, left))

    def steps_to(self, time: float) -> float:
        """The steps of a march up to a time, the others as long as the last one looked at."""
        number, now, step = (self.history[name][-1] for name in ("iteration", "time", "dt"))
        if time > now:
            return number + math.ceil((time - now) / step)
        return float(np.interp(time, [0.0, *self.history["time"]], [0, *self.history["iteration"]]))

    def step_at(self, time: float) -> float:
        """The length of the step of a march at a time."""
        return float(np.interp(time, self.history["time"], self.history["dt"]))

    def work_to(self, time: float) -> float:
        """The sweeps, of all unknowns each, up to a time; in the other steps as many as in the
        later half."""
        steps, (half, last) = self.steps_to(time), later_half(self.marks)
        if steps <= last.units:
            units, points = zip(*((mark.units, mark.points) for mark in self.marks), strict=True)
            return float(np.interp(steps, units, points)) / self.unknowns
        of_one = (last.points - half.points) / max(1, last.units - half.units)
        return (last.points + (steps - last.units) * of_one) / self.unknowns

    def work_of_a_step(self, begin: float, end: float) -> float:
        """The mean of those that make a step between two times."""
        steps = self.steps_to(end) - self.steps_to(begin)
        return (self.work_to(end) - self.work_to(begin)) / steps if steps > 0 else math.nan

    @property
    def timed(self) -> tuple[float, float]:
        """The times between which lie the steps whose seconds are known."""
        numbers, times = [0, *self.history["iteration"]], [0.0, *self.history["time"]]
        begin, end = np.interp([mark.units for mark in later_half(self.marks)], numbers, times)
        return float(begin), float(end)

    def shorter(self, now: float, end: float) -> float:
        """How many times as many steps it is from now to the end as with steps as long as now's."""
        steps = self.steps_to(end) - self.steps_to(now)
        return steps * self.step_at(now) / (end - now) if end > now else 1.0

    def harder(self, other: "Trial", end: float) -> float:
        """How many times as much work all steps of another trial's march are in the mean as those
        that it timed, if work falls on its grid to what it falls to here, and as fast."""
        begin, now = other.timed
        at_last, first = self.work_of_a_step(end / 2, end), self.work_of_a_step(begin, now)
        timed = other.work_of_a_step(begin, now)
        if not (timed > at_last and first > at_last):
            return 1.0
        remaining = (self.work_of_a_step(0.0, end) - at_last) / (first - at_last)
        return (at_last + min(max(0.0, remaining), 1.0) * (timed - at_last)) / timed


class Trying(Keeper):
    """Notes when a run came where, and stops it some seconds after its first iteration or step."""

    def __init__(self, seconds: float, machine: Backend):
        self._limit, self._machine = seconds, machine
        self.marks: list[Mark] = []
        self.states: list[State] = []
        super().__init__(save=self.states.append)

    def attend(self, number: int, capture: Capture | None = None) -> None:
        assert capture is not None
        self.ask(number)
        self.mark(number)
        if number > 0 and self.marks[-1].clock - self.marks[0].clock >= self._limit:
            self.interrupt(capture)

    def mark(self, number: int) -> None:
        self.marks.append(Mark(number, clock.perf_counter(), self._machine.points_updated))


@dataclass
class Watching:
    """Notes the norm to reach."""

    trial: Trial = field(default_factory=Trial)

    def warn(self, sentence: str) -> None:
        """Said by the run."""

    def aim(self, threshold: float) -> None:
        self.trial.threshold = threshold

    def progress(self, number: int, norm: float | None, total: int | None = None) -> None:
        """Said by the run."""


def tried(case: Case, machine: Backend, seconds: float) -> Trial:
    """Make iterations or steps of a case for so long."""
    watching, keeper = Watching(), Trying(seconds, machine)
    trial = watching.trial
    trial.unknowns = grid_of(case).all_unknowns
    if case.time is not None:
        trial.threshold = case.time.tolerance or 0.0
    began = clock.perf_counter()
    problem = make_problem(case, machine)
    try:
        outcome = _solve(problem, watching, keeper)
        machine.sync()
        trial.units, trial.ended = outcome.count, outcome.ending != "limit"
        keeper.mark(outcome.count)
        trial.history = outcome.history
    except Interrupted:
        trial.units, trial.history = keeper.states[-1].number, keeper.states[-1].history
    half, last = later_half(keeper.marks)
    trial.before = keeper.marks[0].clock - began
    trial.seconds = (last.clock - half.clock) / max(1, last.units - half.units)
    trial.marks = keeper.marks
    return trial


def trial_of(case: Case, machine: Backend) -> Trial:
    """That of TRIED_SECONDS; what has been compiled in one before it is kept."""
    tried(case, machine, 0.0)
    trial = tried(case, machine, TRIED_SECONDS)
    return tried(case, machine, TRIED_SECONDS) if trial.held_up else trial


def _solve(problem: Problem, watching: Watching, keeper: Keeper) -> march.Outcome:
    if problem.case.model.steady:
        assert isinstance(problem, Conduction)
        return march.steady(problem, watching, keeper)
    return march.transient(problem, pace_of(problem), watching, lambda time: None, keeper)
