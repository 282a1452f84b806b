"""What a run would do, in words: the answer of `heatsolve check`."""

import itertools
import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np

from heatsolve.backends import Backend
from heatsolve.backends.registry import choose, make
from heatsolve.budget import Budget, budget_of
from heatsolve.case.case import Case
from heatsolve.case.output import OutputFile
from heatsolve.case.sections import IMPLICIT
from heatsolve.errors import InputError
from heatsolve.io.data import connect
from heatsolve.models.base import Model, dims_of, model_class
from heatsolve.models.grid import grid_of, sample_of
from heatsolve.models.heat.solver import method_name
from heatsolve.models.unused import warn_of_unused
from heatsolve.outputs import points_of
from heatsolve.parallel.decomposition import largest_block, most_neighbours
from heatsolve.report import Report, duration, shown, size
from heatsolve.stencil.grid import Grid
from heatsolve.time.loop import steps_per_check
from heatsolve.time.sampling import samples_of
from heatsolve.time.schedule import Schedule
from heatsolve.time.step_size import TimeStepController, follows, time_step_controller
from heatsolve.tools.measure import Speed, speed_of

XDMF_BYTES = 300  # for each frame, and each field in it
NORMS, OF_FLOW = 4, 4
"""Columns in the history of every march (steps, times, norms), and further columns of a flow."""
H5_BYTES = 11000  # for the case, the attributes and the axes, whatever the size of the grid
MACHINES = {"h200": ("one NVIDIA H200", Speed(4.27e12, 1.2e13, 1.2e-6))}
"""Machines of the tables in docs/performance.md, each with its name."""


def preview(
    case: Case,
    backend: str | None = None,
    ranks: int = 1,
    report: Report | None = None,
    strict: bool = False,
    timed: bool = False,
    known: str | None = None,
) -> Iterator[str]:
    """The lines of `heatsolve check`: equation, grid, walls, method, machine, memory and files.

    `ranks`: the processes of the run. Keys that have no effect are warned of, or refused if
    `strict`, as a run does. `timed` adds a lower bound of the time of a run, on this machine or on
    the machine `known`, one of MACHINES.

    Raises InputError where a run would do so before its first step, as for an unstable step, as far
    as the case, the options, the machine and a sample of the points tell.
    """
    if known is not None and known not in MACHINES:
        raise InputError(f"--machine {known!r} must be one of {', '.join(MACHINES)}")
    wanted, precision = backend or case.parallel.backend, case.solver.field_precision
    machine, reason = choose(wanted, precision, case.parallel.threads)
    warn_of_unused(case, machine, ranks, (report or Report(mute=True)).warn, strict)
    grid = grid_of(case)
    connect(case, grid)
    if case.origin is not None and case.origin.note:
        yield case.origin.note
    yield f"{case.name}: {shown(case.about.title) or 'untitled'}"
    # The same precision as the run's, so that the limit of stability has the same bits.
    with np.errstate(all="ignore"):
        one = case.altered(parallel={"ranks": "auto"})  # a process that stands for all
        problem = model_class(case).dry_run(one, make("numpy", precision))
    yield from itertools.starmap(Row, problem.summary())
    problem.demand_machine(machine, ranks)
    time_steps = None
    if case.time is not None:
        time_steps = yield from steps(problem)
    yield from itertools.starmap(Row, problem.cautions())
    said = f"{machine.name} ({reason}), {case.solver.precision}"
    yield Row("backend", said, unknowns=grid.all_unknowns)
    yield from process_rows(case, machine, grid, ranks)
    budget = budget_of(case, machine, ranks, time_steps)
    yield memory_row(budget, machine, ranks)
    yield Row("files", files(case, grid, time_steps.count if time_steps is not None else 1))
    if timed:
        yield from time_rows(case, machine, budget, time_steps, ranks, known)
    if (sample := sample_of(grid)) is not grid:
        said = "initial values and sources, but at a sample of "
        yield Row("not checked", f"{said}{sample.all_unknowns} of the unknowns")


class Row(str):
    """A line of an answer: a label and a text, and the numbers in it by their names."""

    label: str
    text: str
    numbers: dict[str, Any]

    def __new__(cls, label: str, text: str, **numbers: Any) -> Self:
        result = super().__new__(cls, f"{label:<12}{text}")
        result.label, result.text, result.numbers = label, text, numbers
        return result


class Check(dict[str, str]):
    """What a run of a case would do: the rows of `heatsolve check` as a dictionary from labels to
    texts, their numbers as attributes. `str` is the whole answer, as a notebook shows it."""

    unknowns: int
    """Unknowns of one field, or of one equation."""
    steps: int | None = None
    """The number of steps of a march, or of iterations of a steady case, where it is known before
    the run."""
    step: float | None = None
    """The length of the first step (s)."""
    stable_step: float | None = None
    """The largest stable step of an explicit scheme (s)."""
    memory: int
    """Bytes that each process needs: on the device where there is one, else on the host."""
    seconds: float | None = None
    """A lower bound of the seconds of one iteration or step, if it was asked for."""

    def __init__(self, lines: Iterable[str]):
        self._lines = list(lines)
        for line in self._lines:
            if isinstance(line, Row):
                self[line.label] = line.text
                vars(self).update(line.numbers)

    def __str__(self) -> str:
        return "\n".join(self._lines)

    __repr__ = __str__


def steps(problem: Model) -> Generator[str, None, TimeStepController]:
    """The rows on the limit of stability, the steps and the history; returns the controller."""
    time = problem.case.march
    limit = math.inf if time.scheme in IMPLICIT else problem.largest_step()
    if limit < math.inf:
        yield Row("stability", f"a step of at most {limit:.6g}", stable_step=limit)
    time_steps = time_step_controller(problem)
    step = min(time_steps.step, time.end)
    warning = ", UNSTABLE but allowed" if time_steps.warning else ""
    at_first = ", at first: they follow the flow" if time_steps.follows else ""
    yield Row(
        "steps",
        f"{time_steps.count} of {step:.6g} to t = {time.end:g}{at_first}{warning}",
        steps=time_steps.count,
        step=step,
    )
    yield Row("history", history(problem, time_steps.count))
    return time_steps


def history(problem: Model, count: int) -> str:
    """In words, the rows of the history of a march of about `count` steps, and their size."""
    case = problem.case
    output, fields = case.output, len(case.probed)
    samples = Schedule.of(output.sample)
    rows = math.ceil(count / steps_per_check(problem, count))
    if not samples.empty:
        rows = samples.count_with_last(count, case.march.end)
    columns = NORMS + fields * len(output.probes)
    columns += sum(len(integral.fields) for integral in case.statistics.integrals)
    if output.heat_flow:
        columns += sum(wall is not None for _, wall in case.boundary)
    if case.scheme == "staggered":
        own = [case.velocity_names, *([n] for n in case.diffusivities)]
        fixed = [[name for name in names if "velocity" in name or getattr(body, name) is not None]
                for body in case.obstacles for names in own]  # fmt: skip
        walls = sum(wall is not None for _, wall in case.boundary)
        columns += OF_FLOW + walls * len(case.diffusivities) + sum(map(len, fixed))
        columns += sum(name.startswith("mean") for name in case.source.model_fields_set)
    said = f"{rows} rows of {columns} columns"
    values, frames = rows * columns, frames_of(case, count)
    if output.lines:
        said += f", {frames} of lines"
        values += frames * (1 + fields * sum(line.points for line in output.lines))
    if recorded := case.statistics.recorded:
        taken = samples_of(case, count)
        said += f", {taken} samples of profiles or spectra"
        for (kind, axis), names in recorded.items():
            points = case.grid.counts[case.grid.axes.index(axis)]
            values += taken * len(names) * (points // 2 + 1 if kind == "spectrum" else points)
    return f"{said}, about {size(8 * values)}"


def process_rows(case: Case, machine: Backend, grid: Grid, ranks: int) -> Iterator[str]:
    """The processes of a run, and their messages."""
    if ranks == 1:
        return
    dims, depth = dims_of(case, grid, ranks, machine.on_device), case.parallel.layers
    block = largest_block(grid, dims, depth)
    along = " x ".join(map(str, reversed(dims)))
    own = " x ".join(str(stop - first) for first, stop in reversed(block.interior))
    yield Row("processes", f"{ranks} as {along}, blocks of at most {own} unknowns")
    ends = [most_neighbours(n, axis.periodic) for n, axis in zip(dims, block.axes, strict=True)]
    ghosts = [math.prod(high - low for low, high in block.ghost(n, 0)) for n in range(len(dims))]
    values = depth * sum(n * layer for n, layer in zip(ends, ghosts, strict=True))
    sent = size(values * np.dtype(case.solver.field_precision).itemsize)
    layers = "1 layer" if depth == 1 else f"{depth} layers"
    often = "" if depth == 1 else f", once in {depth} sweeps"
    yield Row("halo", f"{layers}, at most {sent} to {sum(ends)} neighbours in each exchange{often}")


def memory_row(budget: Budget, machine: Backend, ranks: int) -> str:
    """The memory of each process, and the memory of this machine where it is too small."""
    each = " for each process" if ranks > 1 else ""
    if machine.on_device:
        text = f"about {size(budget.arrays)} on the device, {size(budget.host)} on the host{each}"
    else:
        text = f"about {size(budget.needed(False))} on the host{each}, there is no device"
    _, total = machine.memory()
    if budget.needed(machine.on_device) > total:
        text += f"; more than the {size(total)} here"
    return Row("memory", text, memory=int(budget.needed(machine.on_device)))


def frames_of(case: Case, count: int, file: OutputFile | None = None) -> int:
    """The frames of a march of `count` steps in the file of all points, or in `file`."""
    if case.time is None:
        return 1
    every = (file or case.output).every
    return 1 + Schedule.of(every).count_with_last(count, case.time.end)


def files(case: Case, grid: Grid, count: int) -> str:
    """The files of a run, with their sizes."""
    frames, names = frames_of(case, count), case.written
    points = [axis.points for axis in grid.axes]
    item = len(names) * np.dtype(case.solver.field_precision).itemsize
    h5 = H5_BYTES + math.prod(points) * item * frames + 8 * sum(points)
    varies = follows(case) and case.output.every
    more = ", or more, as steps follow the flow" if varies else ""
    counted = "" if case.time is None else f", {frames} frames{more}"
    squeezed = ", less as compressed" if case.output.compression else ""
    said = [f"{case.name}.h5 (about {size(h5)}{counted}{squeezed})"]
    said += _xdmf(case.name, grid, names, frames)
    return ", ".join([*said, *_others(case, grid, count), *_drawn(case)])


def _xdmf(name: str, grid: Grid, names: Sequence[str], frames: int) -> Iterator[str]:
    """The XDMF file beside a file of fields in 2D or 3D, with its size."""
    if grid.dimension > 1:
        # A velocity is in the file twice: as components, and as a vector.
        items = 1 + sum(1 + field.startswith("velocity_") for field in names)
        yield f"{name}.xdmf (about {size(frames * items * XDMF_BYTES)})"


def _others(case: Case, grid: Grid, count: int) -> Iterator[str]:
    """The files of `[[output.file]]`, with their sizes."""
    for file in case.output.files:
        points = math.prod(p.coordinates.size for p in points_of(file, case, grid, grid))
        names, frames = file.fields or case.field_names, frames_of(case, count, file)
        item = np.dtype(file.precision or case.solver.field_precision).itemsize
        bulk = H5_BYTES + points * len(names) * item * frames
        counted = "" if case.time is None else f", {frames} frames"
        squeezed = ", less as compressed" if file.compression else ""
        yield f"{case.name}_{file.name}.h5 (about {size(bulk)}{counted}{squeezed})"
        yield from _xdmf(f"{case.name}_{file.name}", grid, names, frames)


def _drawn(case: Case) -> Iterator[str]:
    """The pictures and films that the case asks for."""
    for field in case.output.plot:
        yield f"{case.name}_{field}.png"
    for field in case.output.films:
        yield f"{case.name}{field and '_'}{field}.mp4 (or .gif)"


# ---- time ----------------------------------------------------------------------------------------


def time_rows(
    case: Case,
    machine: Backend,
    budget: Budget,
    time_steps: TimeStepController | None,
    processes: int,
    known: str | None,
) -> Iterator[str]:
    """A lower bound of the time of a run: its bytes and its calls at the best speed of a machine.

    Processes on this machine share its memory, unless it is a GPU; each process on a known machine
    has a memory of its own. Start-up, compilation, files and pictures come on top.
    """
    sharing = 1
    if known is None:
        speed, where = speed_of(machine), "here"
        sharing = 1 if machine.on_device else processes
    else:
        name, speed = MACHINES[known]
        where = f"on {name}" if processes == 1 else f"on {processes} processes, each with {name}"
    seconds = sharing * speed.least(budget)
    unit = "iteration" if time_steps is None else "step"
    work = f"{size(budget.moved)} in {calls_in_words(budget.calls, unit)}"
    said = f"at least {_words(seconds)} for each {unit} {where}: {work}"
    yield Row("time", said, seconds=seconds)
    count, said = _units(case, time_steps)
    said = said if count is None else f"at least {_words(count * seconds)}: {said}"
    yield Row("in all", said, **({} if count is None else {"steps": count}))


def _units(case: Case, time_steps: TimeStepController | None) -> tuple[int | None, str]:
    """The number of iterations or steps, None if it is not known, and the words for it."""
    if time_steps is None:
        if method_name(case) == "fft":
            return 1, "1 iteration"
        count = case.solver.iterations
        if count is not None:
            return count, f"{count} iterations"
        return None, "not known, for the number of iterations is not"
    if case.march.tolerance is not None:
        return None, f"not known: it ends when it is steady, or after {time_steps.count} steps"
    if case.stop.when is not None:
        return None, f"not known: it ends when stop.when holds, or after {time_steps.count} steps"
    if_steady = ", if the flow stays as fast as at t = 0" if time_steps.follows else ""
    return time_steps.count, f"{time_steps.count} steps{if_steady}"


def calls_in_words(number: float, unit: str) -> str:
    """In words, the mean number of kernel calls in one iteration or step, which may be below 1."""
    if number <= 0.75:
        return f"1 call for about {round(1.0 / number)} {unit}s" if number > 0.0 else "no call"
    count = round(number)
    return "1 call" if count == 1 else f"{count} calls"


def _words(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= factor:
            return duration(seconds) if seconds > 60.0 else f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
