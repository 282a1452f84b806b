"""How long a run would take: tried for a moment, and extrapolated.

A few iterations or steps are made of the case itself, or of the same case on fewer points where it
is large. What a unit of work takes then grows with the unknowns; how many units there are follows
from the march, from the number asked for, or from the rate at which the norm fell. A coarser grid
tells when a march will be steady, and how its steps change until it ends.
"""

import math
import os
import tempfile
import time as clock
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from heatsolve.backends import Backend
from heatsolve.backends.choice import choose
from heatsolve.case import Case
from heatsolve.converge import method_name
from heatsolve.errors import HeatsolveError, InputError
from heatsolve.memory import needed
from heatsolve.pace import EvenPace, FollowingPace, Pace, pace_of
from heatsolve.preview_rows import file_bytes, frames_of, row
from heatsolve.problem import grid_of
from heatsolve.report import duration
from heatsolve.runner import make_problem
from heatsolve.study.one_size import sized
from heatsolve.study.sweeps import seconds_of_copy
from heatsolve.study.trial import Trial, trial_of

LOADED = 0.3
"""Seconds of a run to load what is compiled for it, and to write its file."""
LONGEST_START = 3.0
"""Seconds: what took longer to start has compiled something, which the next one finds."""
MOST_UNKNOWNS = {False: 1 << 21, True: 1 << 26}
"""A larger case is tried on fewer points, on a device on more of them than on a host: these are
beyond its caches."""
COPIED = 1 << 23
"""Doubles of the copy that measures this machine."""
WRITTEN = 1 << 26
"""Bytes of the file that measures this disk; writing fewer takes no time to speak of."""
COARSER, COARSER_IN_TIME = 4, 2
"""Times fewer points along an axis has the grid on which a trial comes farther: as far as to a
solution, and where a march to a given time shall meet the flow of the case itself."""
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
    try:
        small = _to_try(case, source, overrides, machine)
        with np.errstate(all="ignore"):
            trial = trial_of(small, machine)

            def farther(coarser: int) -> tuple[Case, Trial]:
                fewer = grid_of(small).all_unknowns / coarser**case.grid.dimension
                with suppress(InputError):  # a coarser grid may lack what the case names
                    coarse = sized(source, overrides, fewer)
                    # The bits, and so the counts, are those of any backend; few points a host's.
                    quick = choose("numba", precision)[0] if machine.on_device else machine
                    return coarse, trial_of(coarse, quick)
                return small, trial

            harder = 1.0
            if case.time is None:
                units, said = _iterations(case, small, trial, farther)
            else:
                pace = pace_of(make_problem(small, machine))
                units, harder, said = _steps(case, small, trial, farther, pace)
    except HeatsolveError as error:
        yield row("time", f"not predicted: {str(error).splitlines()[0]}")
        return
    larger = unknowns / grid_of(small).all_unknowns
    seconds, before, where = trial.seconds * harder * larger, trial.before * larger, "here"
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
        written = seconds_to_write(file_bytes(case, grid_of(case), frames_of(case, units)))
        total = duration(started + before + units * seconds + written)
        drawn = ", without its pictures" if case.output.drawn else ""
        yield row("in all", f"about {total}: {said}, {trial.units} were tried{drawn}")
    else:
        yield row("in all", f"unknown: in {trial.units} {unit}s the norm has not fallen")


def _to_try(case: Case, source: str, overrides: Sequence[str], machine: Backend) -> Case:
    """The case, or, where it is large, the same on fewer points, if it can have fewer.

    Raises InputError where it is too large for this machine, and can have no fewer.
    """
    most = MOST_UNKNOWNS[machine.on_device]
    if grid_of(case).all_unknowns <= most:
        return case
    try:
        return sized(source, overrides, most)
    except InputError:
        if needed(case, machine) > machine.memory()[0]:
            raise
        return case


def start_up() -> float:
    """Seconds that a run takes before and after all else: to start, as this process did; and to
    load and to write."""
    return min(clock.thread_time(), LONGEST_START) + LOADED


def seconds_to_write(count: int) -> float:
    """Seconds to write so many bytes into this folder and force them to the disk; few take none."""
    if count < WRITTEN:
        return 0.0
    began = clock.perf_counter()
    try:
        with tempfile.TemporaryFile(dir=".") as file:
            file.write(bytes(WRITTEN))
            file.flush()
            os.fsync(file.fileno())
    except OSError:  # the run will say so
        return 0.0
    return (clock.perf_counter() - began) * count / WRITTEN


Farther = Callable[[int], tuple[Case, Trial]]
"""Makes a trial on a grid so many times coarser, which comes farther in its time."""


def _iterations(case: Case, small: Case, trial: Trial, farther: Farther) -> tuple[float, str]:
    """Iterations in all, and how they are known, from a trial of a `small` case."""
    if case.solver.iterations is not None:
        return case.solver.iterations, f"{case.solver.iterations} iterations"
    method = method_name(case)
    if method == "cg" and not trial.ended:  # its norm falls faster and faster
        small, trial = farther(COARSER)
    growth = _finer(case, small) ** GROWTH.get(method, 0.0)
    count = min(trial.end() * growth, case.solver.max_iterations)
    return count, f"some {count:.0f} iterations"


def _steps(
    case: Case, small: Case, trial: Trial, farther: Farther, pace: Pace
) -> tuple[float, float, str]:
    """Steps in all, how many times as much work each is as those that were timed, and how that is
    known, from a trial of a `small` case with this pace."""
    time = case.time
    assert time is not None
    # Between the limits of convection (h) and of diffusion (h^2), for all that is known.
    diffusive = case.model.kind == "heat" or case.model.equations is not None
    growth = 0.0 if time.step is not None else 2.0 if diffusive else 1.0
    end, coarse, known, unless = time.end, trial, "", ""
    if time.tolerance is not None:  # a steady state is reached at about the same time on any grid
        coarse = trial if trial.ended else farther(COARSER)[1]
        end = min(end, coarse.end("time"))
        known = "some " if end < time.end else "at most "
    elif isinstance(pace, FollowingPace):
        coarse = trial if trial.ended else farther(COARSER_IN_TIME)[1]
        unless = ", unless the flow becomes faster"
    count, harder = float(pace.count), 1.0
    if trial.history.get("dt") and not (isinstance(pace, EvenPace) and end == time.end):
        now = min(trial.history["time"][-1], end)
        made = trial.steps_to(now)
        count = made + (trial.steps_to(end) - made) * coarse.shorter(now, end)
        harder = coarse.harder(trial, end)
    count *= _finer(case, small) ** growth
    return count, harder, f"{known}{count:.0f} steps{unless}"


def _finer(case: Case, small: Case) -> float:
    """How many times more points a case has along an axis."""
    return max(case.grid.counts) / max(small.grid.counts)


def _seconds(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
