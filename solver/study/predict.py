"""How long a run would take: tried for a moment, and extrapolated.

A few iterations or steps are made of the case itself, or of the same case on fewer points where it
is large. What a unit of work takes then grows with the unknowns; how many units there are follows
from the march, from the number asked for, or from the rate at which the norm fell.
"""

import math
import time as clock
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from heatsolve import march
from heatsolve.backends import Backend
from heatsolve.backends.choice import choose
from heatsolve.case import Case
from heatsolve.conduction import Conduction
from heatsolve.converge import method_name
from heatsolve.errors import HeatsolveError, InputError, Interrupted
from heatsolve.keeper import Capture, Keeper, State
from heatsolve.pace import EvenPace, FollowingPace, Pace, pace_of
from heatsolve.preview_rows import row
from heatsolve.problem import Problem, grid_of
from heatsolve.report import duration
from heatsolve.runner import make_problem
from heatsolve.study.one_size import sized
from heatsolve.study.sweeps import seconds_of_copy

TRIED_SECONDS = 1.5
"""So long the case is tried."""
LOADED = 0.3
"""Seconds of a run to load what is compiled for it, and to write its file."""
LONGEST_START = 3.0
"""Seconds: what took longer to start has compiled something, which the next one finds."""
MOST_UNKNOWNS = 1 << 21
"""A larger case is tried on fewer points: these are beyond most caches."""
COPIED = 1 << 23
"""Doubles of the copy that measures this machine."""
COARSER = 4
"""Times fewer points along an axis has the grid on which a trial comes farther."""
GROWTH = {"jacobi": 2.0, "sor": 1.0, "chebyshev": 1.0, "cg": 1.0}
"""By what power of the points along an axis the iterations grow; those of multigrid do not."""


@dataclass(frozen=True)
class Known:
    """A machine of the table in docs/performance.md: a name, bytes copied a second (read plus
    written), and the seconds of the shortest unit of work."""

    name: str
    bandwidth: float
    shortest: float


MACHINES = {"h200": Known("one NVIDIA H200", 4.27e12, 3e-5)}


class Trying(Keeper):
    """Notes when a run came where, and stops it some seconds after its first iteration or step."""

    def __init__(self, seconds: float):
        self._limit = seconds
        self.marks: list[tuple[int, float]] = []
        self.states: list[State] = []
        super().__init__(save=self.states.append)

    def attend(self, number: int, capture: Capture | None = None) -> None:
        assert capture is not None
        self.ask(number)
        self.marks.append((number, clock.perf_counter()))
        if number > 0 and self.marks[-1][1] - self.marks[0][1] >= self._limit:
            self.interrupt(capture)

    @property
    def pace(self) -> float:
        """Seconds of a unit of work in the later half: a start may need more for each."""
        half = len(self.marks) // 2 - 1 if len(self.marks) > 3 else 0
        (n0, t0), (n1, t1) = self.marks[half], self.marks[-1]
        return (t1 - t0) / max(1, n1 - n0)


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
        return number + math.ceil(max(0.0, time - now) / step)


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
    watching, keeper = Watching(), Trying(seconds)
    trial = watching.trial
    if case.time is not None:
        trial.threshold = case.time.tolerance or 0.0
    began = clock.perf_counter()
    problem = make_problem(case, machine)
    try:
        outcome = _solve(problem, watching, keeper)
        machine.sync()
        trial.units, trial.ended = outcome.count, outcome.ending != "limit"
        keeper.marks.append((outcome.count, clock.perf_counter()))
        trial.history = outcome.history
    except Interrupted:
        trial.units, trial.history = keeper.states[-1].number, keeper.states[-1].history
    trial.before = keeper.marks[0][1] - began
    trial.seconds = keeper.pace
    return trial


def trial_of(case: Case, machine: Backend) -> Trial:
    """That of TRIED_SECONDS; what one before it has compiled is kept."""
    tried(case, machine, 0.0)
    return tried(case, machine, TRIED_SECONDS)


def _solve(problem: Problem, watching: Watching, keeper: Keeper) -> march.Outcome:
    if problem.case.model.steady:
        assert isinstance(problem, Conduction)
        return march.steady(problem, watching, keeper)
    return march.transient(problem, pace_of(problem), watching, lambda time: None, keeper)


def predictions(
    case: Case,
    source: str,
    overrides: Sequence[str],
    backend: str | None = None,
    ranks: int = 1,
    known: str | None = None,
) -> Iterator[str]:
    """The rows of `heatsolve check` on time: of one unit of work, and of all.

    `source` and `overrides` are what the case was loaded from; `known` names one of MACHINES, else
    the time is that of this machine, which `ranks` processes share. Raises InputError for a machine
    that is not known.
    """
    if known is not None and known not in MACHINES:
        raise InputError(f"--machine {known!r} must be one of {', '.join(MACHINES)}")
    wanted, precision = backend or case.parallel.backend, case.solver.field_precision
    machine, _ = choose(wanted if known is None else "auto", precision, case.parallel.threads)
    started = start_up()
    unknowns = grid_of(case).all_unknowns
    small = case
    try:
        if unknowns > MOST_UNKNOWNS:
            small = sized(source, overrides, MOST_UNKNOWNS)
        with np.errstate(all="ignore"):
            trial = trial_of(small, machine)

            def farther() -> tuple[Case, Trial]:
                with suppress(InputError):  # a coarser grid may lack what the case names
                    coarse = sized(source, overrides, unknowns / COARSER**case.grid.dimension)
                    return coarse, trial_of(coarse, machine)
                return small, trial

            if case.time is None:
                units, said = _iterations(case, small, trial, farther)
            else:
                pace = pace_of(make_problem(small, machine))
                units, said = _steps(case, small, trial, farther, pace)
    except HeatsolveError as error:
        yield row("time", f"not predicted: {str(error).splitlines()[0]}")
        return
    larger = unknowns / grid_of(small).all_unknowns
    seconds, before, where = trial.seconds * larger, trial.before * larger, "here"
    if known is not None:
        there = MACHINES[known]
        faster = there.bandwidth / (16 * COPIED / seconds_of_copy(machine, (COPIED,)))
        seconds = max(seconds / faster / ranks, there.shortest)
        before = before / faster / ranks
        where = (
            f"on {there.name}" if ranks == 1 else f"on {ranks} processes, each with {there.name}"
        )
    unit = "step" if case.time is not None else "iteration"
    yield row("time", f"{_seconds(seconds)} for each {unit} {where}")
    if math.isfinite(units):
        total = duration(started + before + units * seconds)
        yield row("in all", f"about {total}: {said}, {trial.units} were tried")
    else:
        yield row("in all", f"unknown: in {trial.units} {unit}s the norm has not fallen")


def start_up() -> float:
    """Seconds that a run takes before and after all else: to start, as this process did; and to
    load and to write."""
    return min(clock.process_time(), LONGEST_START) + LOADED


Farther = Callable[[], tuple[Case, Trial]]
"""Makes a trial on a coarser grid, which comes farther in its time."""


def _iterations(case: Case, small: Case, trial: Trial, farther: Farther) -> tuple[float, str]:
    """Iterations in all, and how they are known, from a trial of a `small` case."""
    if case.solver.iterations is not None:
        return case.solver.iterations, f"{case.solver.iterations} iterations"
    method = method_name(case)
    if method == "cg" and not trial.ended:  # its norm falls faster and faster
        small, trial = farther()
    growth = _finer(case, small) ** GROWTH.get(method, 0.0)
    count = min(trial.end() * growth, case.solver.max_iterations)
    return count, f"some {count:.0f} iterations"


def _steps(
    case: Case, small: Case, trial: Trial, farther: Farther, pace: Pace
) -> tuple[float, str]:
    """Steps in all, and how they are known, from a trial of a `small` case with this pace."""
    time = case.time
    assert time is not None
    # Between the limits of convection (h) and of diffusion (h^2), for all that is known.
    diffusive = case.model.kind == "heat" or case.model.equations is not None
    growth = 0.0 if time.step is not None else 2.0 if diffusive else 1.0
    end, known, unless = time.end, "", ""
    if time.tolerance is not None:  # a steady state is reached at about the same time on any grid
        end = min(end, (trial if trial.ended else farther()[1]).end("time"))
        known = "some " if end < time.end else "at most "
    elif isinstance(pace, FollowingPace):
        unless = ", unless the flow becomes faster"
    even = isinstance(pace, EvenPace) and end == time.end
    count = pace.count if even or not trial.history.get("dt") else trial.steps_to(end)
    count *= _finer(case, small) ** growth
    return count, f"{known}{count:.0f} steps{unless}"


def _finer(case: Case, small: Case) -> float:
    """How many times more points a case has along an axis."""
    return max(case.grid.counts) / max(small.grid.counts)


def _seconds(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
