"""`heatsolve scale`: one case on more and more processes, each number in a launch of its own.

A *weak* study gives every process the same number of unknowns, a *strong* study divides the same
case among more processes. Throughput is units of work (solves, iterations, steps) times unknowns a
second; efficiency is the throughput of a process over its throughput in the smallest launch, or on
GPUs over the throughput of each GPU alone, which the same launch measures in turn.

python -m heatsolve.tools.scaling CASE KIND PER_RANK BACKEND FILE [KEY=VALUE ...]

is a launch: it measures solves, iterations or steps and writes a record of them to a file of JSON.
"""

import csv
import gc
import io
import math
import os
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from heatsolve.backends.registry import ON_GPU, count_gpus, gpu_name
from heatsolve.case.case import Case
from heatsolve.case.load import load, locating
from heatsolve.errors import CaseError, FileFailure, HeatsolveError, InputError
from heatsolve.io.disk import write_json, write_text
from heatsolve.linear.iterate import finished, solving
from heatsolve.linear.stopping import Criterion
from heatsolve.linear.system import Method, System
from heatsolve.models.base import THICK_SLAB, Model, Silent, demand_converged
from heatsolve.models.grid import grid_of
from heatsolve.models.heat.solver import make_method, method_name
from heatsolve.parallel.decomposition import factorisations, process_grid, surface
from heatsolve.parallel.ranks import Ranks, find_ranks, python
from heatsolve.parallel.transport import ring
from heatsolve.report import Report, printable, shown
from heatsolve.report import count as number
from heatsolve.runner import machine_of, set_up, shares
from heatsolve.stencil.grid import AXIS_NAMES, make_grid
from heatsolve.time.loop import TimeLoop, steps_per_check
from heatsolve.time.pause import Until
from heatsolve.time.step_size import time_step_controller
from heatsolve.tools.measure import time_of, times_of
from heatsolve.tools.submit import directives, pmi, wall_seconds
from heatsolve.tools.timeline import (
    MOST_PROCESSES,
    MOST_SPANS,
    clocked,
    clocked_transport,
    parts_of,
    spans_of,
)

KINDS = ("weak", "strong")
LAUNCHERS = ("mpiexec", "srun")
PER_RANK = 12_264_004
"""Unknowns of a process, as in the weak-scaling figures that NVIDIA published for cuNumeric."""
MOST_UNKNOWNS = 1e15
"""Unknowns of a process, more than any machine holds."""
MOST_OF_MODEL = 2048
LARGEST_RECORD = 1 << 20
"""Bytes of the largest record."""


@dataclass(frozen=True)
class Study:
    """A study: its case and the folder of its records; `per_rank` of None keeps the case's size."""

    kind: str
    case: str
    backend: str | None
    per_rank: float | None
    overrides: tuple[str, ...]
    folder: Path

    def command(self, ranks: int) -> list[str]:
        """The command that measures one size, without its launcher."""
        per_rank = "-" if self.per_rank is None else repr(self.per_rank)
        path = str(self.folder / f"{ranks}.json")
        args = [self.case, self.kind, per_rank, self.backend or "-", path, *self.overrides]
        return python("-m", "heatsolve.tools.scaling", *args)


def plan(
    kind: str, case: str, ranks: str, backend: str | None = None, per_rank: float | None = None,
    overrides: Sequence[str] = (), output: Path | None = None,
) -> tuple[Study, list[int]]:  # fmt: skip
    """A study and its numbers of processes; raises InputError where every launch would fail."""
    counts = numbers(ranks)
    if per_rank is not None and not 1.0 <= per_rank < MOST_UNKNOWNS:
        raise InputError(
            f"--per-rank must be at least 1 and less than {MOST_UNKNOWNS:g}, not {per_rank:g}"
        )
    for count in counts:
        sizes = of_kind(kind, case, overrides, count, per_rank, backend)
    folder = output or Path(f"scale-{kind}-{sizes.name}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileFailure(f"cannot make the folder {folder}: {error.strerror}") from None
    return Study(kind, case, backend, per_rank, tuple(overrides), folder), counts


def numbers(text: str) -> list[int]:
    """Numbers of processes, as "1,2,4". Raises InputError."""
    if not re.fullmatch(r"[1-9]\d{0,8}(,[1-9]\d{0,8})*", text, re.ASCII):
        raise InputError(f"--ranks {shown(text)!r} must be numbers of processes, such as 1,2,4")
    return sorted(set(map(int, text.split(","))))


def launch(study: Study, ranks: int, launcher: str) -> None:
    """Measure one size now. Raises InputError where the launch fails, with its last line; without
    its time line a record is complete, and there is only a warning."""
    record = study.folder / f"{ranks}.json"
    earlier = _written_at(record)
    done = subprocess.run([*launched_by(launcher, ranks), *study.command(ranks)],
                          capture_output=True, text=True)  # fmt: skip
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith("heatsolve: ")]
        last = (said or done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        last = last.removeprefix("heatsolve: ")
        if _written_at(record) == earlier:
            raise InputError(f"{ranks} processes: {last}")
        Report().warn(f"{ranks} processes: there is no time line ({last})")


def _written_at(path: Path) -> int | None:
    """The time at which a file was written (ns); None if there is no file."""
    return path.stat().st_mtime_ns if path.exists() else None


def launched_by(launcher: str, ranks: int) -> list[str]:
    """The command that starts the processes. Raises InputError where there is no such launcher."""
    beside = Path(sys.executable).with_name(launcher)
    program = str(beside) if beside.exists() else shutil.which(launcher)
    if program is None:
        hint = "install heatsolve[mpich]" if launcher == "mpiexec" else "that is Slurm's"
        raise InputError(f"there is no {launcher} here: {hint}")
    more = [f"--mpi={pmi()}", "--overlap"] if launcher == "srun" else []
    return [program, *more, "-n", str(ranks)]


# ---- the case of a size --------------------------------------------------------------------------

SIZES = ("n", "N")
"""Constants of a case on which its grid may depend."""
LEAST_EVEN = 24
"""Counts from 2, 4, 8 and 16 times this number on become multiples of 2, 4, 8 and 16."""
MOST_AWAY = 50
"""The distance from the wanted size at which the search for a valid size ends."""


def sized(source: str, overrides: Sequence[str], unknowns: float) -> list[str]:
    """Overrides that give a case about `unknowns` unknowns, the given overrides first.

    If the case has a constant n (or N), it gets the nearest value for which all numbers of points
    are whole; else the grid gets other counts, covers its old box, and keeps the ratio of its
    spacings. Both become multiples of a power of two, which multigrid can halve. Raises CaseError
    as `load` does.
    """
    case = load(source, overrides)
    grid = grid_of(case)
    factor = (unknowns / grid.all_unknowns) ** (1.0 / grid.dimension)
    for name in SIZES:
        if name in case.constants:
            return _with_constant(source, overrides, name, even(case.constants[name] * factor))
    intervals = {axis.name: even(axis.intervals * factor) for axis in grid.axes}
    wider = max(axis.intervals / intervals[axis.name] for axis in grid.axes)
    return [*overrides, *_resized(case, intervals, wider), *_numbered(case, intervals)]


def even(count: float) -> int:
    """The nearest multiple of a power of two, which grows with the count: see LEAST_EVEN."""
    unit = 2 ** min(4, max(0, int(math.log2(max(count, 1.0) / LEAST_EVEN))))
    return max(1, round(count / unit)) * unit


def _resized(case: Case, intervals: Mapping[str, int], wider: float = 1.0) -> list[str]:
    """The overrides that give a case these intervals along its axes, `wider` times as wide."""
    axes = list(reversed(grid_of(case).axes))
    counts = [intervals[axis.name] + axis.points - axis.intervals for axis in axes]
    upper = [axis.lower + intervals[axis.name] * (wider * axis.spacing) for axis in axes]
    return [f"grid.{case.grid.kind}={counts}", f"grid.upper={upper}"]


def _numbered(case: Case, intervals: Mapping[str, int]) -> Iterator[str]:
    """The overrides that keep sources and boxes, given by indices, at their places."""
    axes = list(reversed(grid_of(case).axes))
    indices = {f"source.point.{n}.index": point.index for n, point in enumerate(case.source.points)}
    for n, box in enumerate(case.initial.boxes):
        indices |= {f"initial.box.{n}.{end}": getattr(box, end) for end in ("first", "last")}
    for key, numbers in indices.items():
        if numbers is not None:
            pairs = zip(numbers, axes, strict=True)
            moved = [int(i) * intervals[axis.name] // axis.intervals for i, axis in pairs]
            yield f"{key}={moved}"


def _with_constant(
    source: str, overrides: Sequence[str], name: str, nearest: int
) -> list[str]:  # fmt: skip
    refusal: CaseError | None = None
    for away in range(MOST_AWAY):
        for n in dict.fromkeys((nearest - away, nearest + away)):
            try:
                if n > 0:
                    changed = [*overrides, f"constants.{name}={n}"]
                    load(source, changed)
                    return changed
            except CaseError as error:
                refusal = refusal or error
    assert refusal is not None
    raise refusal


def of_kind(
    kind: str,
    source: str,
    overrides: Sequence[str],
    ranks: int,
    per_rank: float | None,
    backend: str | None = None,
) -> Case:
    """The case of a weak study for `ranks` processes; of a strong study for any number.

    In a weak study every process has the block of one process alone: counts and extents
    grow along the axes that are divided.
    """
    changed = list(overrides) if per_rank is None else sized(source, overrides, per_rank)
    case = load(source, changed)
    if kind == "strong" or ranks == 1:
        return case
    name = backend or case.parallel.backend
    on_device = name in ON_GPU or (name == "auto" and count_gpus() > 0)
    axes = grid_of(case).axes
    dims = growth([axis.all_unknowns for axis in axes], ranks, on_device)
    intervals = {
        axis.name: axis.intervals + (parts - 1) * axis.all_unknowns
        for axis, parts in zip(axes, dims, strict=True)
    }
    grown = [*_resized(case, intervals), f"parallel.ranks={list(reversed(dims))}"]
    return load(source, [*changed, *grown])


def growth(block: Sequence[int], ranks: int, on_device: bool) -> tuple[int, ...]:
    """The factors by which the axes of a block grow with the processes, slowest first.

    The factors are as even as possible, the slowest axis has the largest; devices have slabs, as in
    a run, if the slabs are thick.
    """
    if on_device and block[0] >= THICK_SLAB:
        return (ranks, *[1] * (len(block) - 1))
    ways = factorisations(ranks, len(block))
    return min(ways, key=lambda dims: (sum(dims), [-parts for parts in dims]))


# ---- a launch ------------------------------------------------------------------------------------

REPEATS = 12
SECONDS_A_REPEAT = 0.25
WARM_UP = (0.04, 0.4, *[1.0] * 10)
"""Warm-up runs, in shares of a repeat, until the times of a unit in two runs differ by less than a
factor of two: each is as many units long as the time of the run before it tells. They make
connections, compile and record graphs, and do not count."""
MESSAGES = (64, 1 << 20)
"""Elements of the messages that tell the latency and the bandwidth of a transport."""
EXCHANGES = 20
BEFORE = {"solve": 3, "iteration": 3, "step": 20}
"""Units of work before the unit of the time line, as long as they take no more than WARMED (s)."""
WARMED = 20.0
MANY = 35
"""Iterations that count as a unit of the time line, where a halo has fewer layers."""

MOST_BESIDE = 0.8
"""The share of free memory that the case of one process may take beside the case of all."""
SOLVED = ("multigrid", "mgcg", "cg", "fft")
"""Methods that solve a steady case within some iterations: whole solves are measured."""
BEYOND = 1e6
"""The end of a measured march, in end times of its case."""


class Worker:
    """Makes units of work: whole solves, iterations of slow methods, or steps in time.

    A solve begins from the initial field and makes all checks to the tolerance; a march chooses
    its steps, and checks them, as in a run, but has no end. `unit` is the name of the unit;
    `made`: the steps or iterations so far; `iterations`: of a solve; `pause`: the present one of a
    march.
    """

    def __init__(self, problem: Model):
        self._problem, self.machine, self.made = problem, problem.backend, 0
        self.iterations: int | None = None
        case = problem.case
        if case.time is not None:
            self.unit, self.make = "step", self._steps
            every = steps_per_check(problem, time_step_controller(problem).count)
            end = {"end": BEYOND * case.march.end, "tolerance": None}
            check = {"check_every": every}
            problem.case = case.altered(time=end, solver=check, stop={"when": None})
            time_steps = time_step_controller(problem)
            self._march = TimeLoop(problem, time_steps, Report(quiet=True, mute=True), ()).run()
            self.pause = next(self._march)
            return
        (field,) = problem.fields.values()
        self._system = problem.steady_system()
        self._method = make_method(case, self._system, field)
        self._method.settle()
        solves = method_name(case) in SOLVED
        self.unit, self.make = ("solve", self._solves) if solves else ("iteration", self._iterate)
        if solves:
            self._start = problem.sweeps.like(field)

    def _steps(self, count: int) -> None:
        self.made += count
        self.pause = self._march.send(Until(self.made))

    def _iterate(self, count: int) -> None:
        self.made = self._method.march(self.made, self.made + count)

    def _solves(self, count: int) -> None:
        problem = self._problem
        for _ in range(count):
            problem.take(u := problem.sweeps.like(self._start, self._method.u))
            outcome = finished(solving(self._system, u, self._begin, problem.reset, Silent()))
            problem.take(self._solved_by.u)
            demand_converged(outcome, "the solve")
            self.iterations = outcome.count

    def _begin(self, system: System, exponent: int) -> tuple[Method, Criterion]:
        problem, total = self._problem, self._problem.add_magnitudes
        (u,) = problem.fields.values()
        criterion = Criterion(problem.case.solver, system, u, total=total, exponent=exponent)
        method = make_method(problem.case, system, u) if exponent != 0 else self._method
        method.restart()
        self._solved_by = method
        return method, criterion


def measure(
    case: Case,
    kind: str,
    backend: str | None,
    ranks: Ranks,
    earlier: dict[str, Any] | None = None,
    one: Case | None = None,
) -> dict[str, Any]:
    """The record of this size; all processes together.

    A march takes longer where its steps take more iterations, so all sizes should measure the same
    `steps`: the number before the first repeat, and the number of a repeat. `earlier`: the record
    from which they are taken, if it is of the same study.

    `seconds`: the time of a unit of work on the slowest process, for each repeat. `alone`: for each
    repeat the mean time of a unit where each GPU makes the case `one` of one process alone, and
    `slowest_alone` the time of the slowest GPU; None where it is not measured. `updates`, `bytes`:
    of a unit, over all processes; `launches`: of a unit, on a GPU, one process. `iterations`: of a
    solve. `halo`: the layers of an exchange. `waited`: the share of the time in which a process
    only waited for messages (None where a device waits and does not tell). `balance`: unknowns of
    the mean process over the largest. `latency`, `bandwidth`: of an exchange with both neighbours
    (s, B/s).
    """
    quiet = Report(quiet=True)
    problem = set_up(case, machine_of(case, backend, quiet, ranks), quiet, ranks)
    machine, transport = problem.backend, problem.halo.transport
    steps = steps_of(earlier, problem, kind, ranks.size)
    work = Worker(problem)
    marches = work.unit == "step"
    if marches and steps is not None:
        before, count = steps
        seconds_of_all(work, before, ranks)  # more than a repeat: all is compiled and recorded
    else:
        seconds = max(seconds_of_all(work, 1, ranks))
        for share in WARM_UP:
            count = max(1, int(share * SECONDS_A_REPEAT / max(seconds, 1e-7)))
            last = seconds
            # Of two runs of as many units the second one compiles and records nothing.
            _, seconds = [max(seconds_of_all(work, count, ranks)) for _ in range(2)]
            if share == 1.0 and max(last, seconds) < 2.0 * min(last, seconds):
                break
        before = work.made
    alone = None if one is None else alone_on_device(one, backend, problem, ranks)
    if alone is not None:
        for units in (before,) if marches else (count, count):
            seconds_of_all(alone, units, ranks)
    machine.points_updated = machine.bytes_moved = machine.launches = 0
    transport.restart_clocks()
    together: list[float] = []
    apart: list[list[float]] = []
    for turn in range(REPEATS):
        for each in (work, alone) if turn % 2 == 0 else (alone, work):  # clocks follow the load
            if each is work:
                together.append(max(seconds_of_all(each, count, ranks)))
            elif each is not None:
                apart.append(seconds_of_all(each, count, ranks))
    cost = shares(problem, count * sum(together))
    work_done = ranks.gather((machine.points_updated, machine.bytes_moved))
    updates, moved = (sum(each) / (count * REPEATS) for each in zip(*work_done, strict=True))
    launches = machine.launches / (count * REPEATS) if machine.on_device else None
    latency, bandwidth = speed_of(problem) if ranks.size > 1 else (None, None)
    return {
        "case": case.name, "kind": kind, "ranks": ranks.size, "backend": machine.name,
        "precision": case.solver.precision, "unit": work.unit, "link": transport.name(machine),
        "dims": list(reversed(problem.dims)), "counts": list(case.grid.counts),
        "periodic": list(case.grid.periodic), "halo": problem.halo.depth,
        "unknowns": problem.whole.all_unknowns, "seconds": together,
        "alone": list(map(statistics.mean, apart)) or None,
        "slowest_alone": list(map(max, apart)) or None,
        "iterations": work.iterations, "steps": [before, count] if marches else None,
        "launches": launches,
        "updates": updates, "bytes": moved, "waited": cost.waited, "balance": cost.balance,
        "latency": latency, "bandwidth": bandwidth,
        "machine": {"node": platform.node(), "nodes": len(set(ranks.gather(platform.node()))),
                    "cores": os.cpu_count(), "gpu": gpu_name(ranks.local_rank)},
    }  # fmt: skip


def seconds_of_all(work: "Worker", count: int, ranks: Ranks) -> list[float]:
    """The time of one of `count` units of work on each process; all begin together."""

    def units() -> None:
        work.make(count)
        work.machine.sync()

    work.machine.sync()
    return [seconds / count for seconds in times_of(ranks, units)]


def alone_on_device(
    one: Case, backend: str | None, problem: Model, ranks: Ranks
) -> "Worker | None":
    """The work of the case `one` on each GPU by itself, if there is memory for it beside `problem`.

    There is none on a host, and where processes share a GPU, which no link joins: processes that
    share memory are no processes alone.
    """
    machine, quiet = problem.backend, Report(quiet=True)
    if not machine.on_device or problem.halo.transport.link is None:
        return None
    free, total = machine.memory()
    share = grid_of(one).all_unknowns * ranks.size / problem.whole.all_unknowns
    if not all(ranks.gather(share * (total - free) < MOST_BESIDE * free)):
        return None
    one = one.altered(parallel={"ranks": "auto"})
    return Worker(set_up(one, machine_of(one, backend, quiet, ranks), quiet, Ranks()))


def steps_of(
    earlier: dict[str, Any] | None, problem: Model, kind: str, ranks: int
) -> Sequence[int] | None:
    """The steps of a march that an earlier record tells, if it has fewer processes and is of the
    same study: the same case, backend and precision, and about the same size."""
    if earlier is None or earlier["ranks"] >= ranks:
        return None
    case, machine, size = problem.case, problem.backend, problem.whole.all_unknowns
    told = [earlier[key] for key in ("case", "kind", "backend", "precision")]
    if told != [case.name, kind, machine.name, case.solver.precision]:
        return None
    grown = earlier["unknowns"] * (ranks / earlier["ranks"] if kind == "weak" else 1)
    return earlier["steps"] if math.isclose(size, grown, rel_tol=0.05) else None


def time_line(case: Case, backend: str | None, ranks: Ranks, seconds: float) -> dict[str, Any]:
    """The time line of a unit of work, as entries of a record; all processes together.

    The problem is set up again; `seconds` is the time of a unit.

    `timeline`: the first spans of the first processes; `sweeping`, `exchanging`: seconds of a unit
    in which the mean process sweeps, and only exchanges.
    """
    gc.collect()  # the arrays that were measured
    ranks.gather(None)
    quiet = Report(quiet=True)
    machine = machine_of(case, backend, quiet, ranks)
    clock = clocked(machine)
    problem = set_up(case, machine, quiet, ranks)
    clocked_transport(problem.halo.transport, clock)
    work = Worker(problem)
    depth = problem.halo.depth
    count = 1 if work.unit != "iteration" else depth * -(-MANY // depth)
    for _ in range(max(1, min(BEFORE[work.unit], int(WARMED / (count * seconds))))):
        work.make(count)
    spans = spans_of(lambda: work.make(count), clock, ranks)
    sweeping, exchanging = np.mean(ranks.gather(parts_of(spans)), axis=0) / count
    first = ranks.gather(spans[:MOST_SPANS])[:MOST_PROCESSES]
    return {"timeline": first, "sweeping": float(sweeping), "exchanging": float(exchanging)}


def speed_of(problem: Model) -> tuple[float, float]:
    """Latency (s) and bandwidth (bytes a second) of an exchange between neighbours in a ring.

    An exchange sends to both neighbours and receives from both.
    """
    ranks, machine, transport = problem.ranks, problem.backend, problem.halo.transport
    times = []
    for count in MESSAGES:
        sides = ring(transport, machine, count, ranks)

        def exchanges(times: int, sides: Any = sides) -> None:
            for _ in range(times):
                transport.exchange(sides)
            machine.sync()

        exchanges(1)
        times.append(time_of(ranks, partial(exchanges, EXCHANGES)) / EXCHANGES)
    more = 2 * (MESSAGES[1] - MESSAGES[0]) * machine.dtype.itemsize
    return times[0], more / max(times[1] - times[0], 1e-12)


# ---- results -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """One number of processes: the median time of a unit of work (s), and rates.

    `throughput`, `lowest`, `highest`: unknowns a second of one process, in the median, the slowest
    and the fastest repeat. `alone`: the median time of a unit where each GPU works alone (s), and
    `slowest_alone` that of the slowest GPU.
    `waited`: the share of the time that is spent only on waiting.
    `iterations`: of a solve; `steps`: of a march; `launches`: of a unit, on a GPU; `halo`: layers
    of an exchange. `sweeping`, `exchanging`: seconds in which the mean process sweeps, and only
    exchanges.
    """

    ranks: int
    unknowns: int
    unit: str
    seconds: float
    throughput: float
    lowest: float
    highest: float
    efficiency: float
    alone: float | None
    slowest_alone: float | None
    updates_per_second: float
    bytes_per_second: float
    waited: float | None
    balance: float
    iterations: int | None
    steps: str | None
    launches: float | None
    halo: int
    link: str
    sweeping: float | None
    exchanging: float | None
    backend: str
    precision: str
    machine: str


class Machine(BaseModel):
    """The machine on which a size was measured, and its number of nodes."""

    node: str
    nodes: PositiveInt
    cores: PositiveInt | None
    gpu: str | None


class Record(BaseModel):
    """The record that a launch writes to a file in a study's folder."""

    model_config = ConfigDict(allow_inf_nan=False)

    case: str
    kind: Literal["weak", "strong"]
    ranks: PositiveInt
    backend: str
    precision: str
    unit: str
    link: str
    dims: list[PositiveInt]
    counts: list[PositiveInt]
    periodic: list[str]
    unknowns: PositiveInt
    seconds: Annotated[list[PositiveFloat], Field(min_length=1)]
    alone: Annotated[list[PositiveFloat], Field(min_length=1)] | None = None
    slowest_alone: Annotated[list[PositiveFloat], Field(min_length=1)] | None = None
    updates: NonNegativeFloat
    bytes: NonNegativeFloat
    waited: float | None
    balance: PositiveFloat
    iterations: PositiveInt | None = None
    steps: tuple[PositiveInt, PositiveInt] | None = None
    launches: NonNegativeFloat | None = None
    halo: PositiveInt = 1
    latency: PositiveFloat | None = None
    bandwidth: PositiveFloat | None = None
    timeline: list[list[tuple[str, float, float]]] = []
    sweeping: NonNegativeFloat | None = None
    exchanging: NonNegativeFloat | None = None
    machine: Machine

    @model_validator(mode="after")
    def _agrees(self) -> "Record":
        if not 1 <= len(self.dims) == len(self.counts) <= 3 or math.prod(self.dims) != self.ranks:
            raise ValueError("dims, counts and ranks do not agree")
        return self


def records(folder: Path, warn: Callable[[str], None]) -> list[dict[str, Any]]:
    """The records of a study's folder, the fewest processes first.

    A file that is no record is left out with a warning. Raises InputError where there is no record,
    or where the records are of different studies.
    """
    measured = []
    for path in sorted(folder.glob("*.json")):
        if not path.stem.isdigit():
            continue
        try:
            if path.stat().st_size > LARGEST_RECORD:
                raise ValueError("it is too large")
            measured.append(Record.model_validate_json(path.read_bytes()).model_dump())
        except (OSError, ValueError) as error:
            why = printable(_first(error))
            warn(f"{printable(str(path))} is no record of a scaling study and is left out: {why}")
    if not measured:
        raise InputError(f"{folder} holds no record of a scaling study")
    for key in ("case", "kind", "unit"):
        if len({record[key] for record in measured}) > 1:
            raise InputError(f"{folder} holds records of several studies: they differ in {key}")
    return sorted(measured, key=lambda record: record["ranks"])


def _first(error: Exception) -> str:
    """The first thing that is wrong, in words."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        return f"{where}: {first['msg']}" if where else first["msg"]
    return str(error)


def machine_name(record: Mapping[str, Any]) -> str:
    """The GPU, or the cores, on which a size was measured."""
    machine = record["machine"]
    return machine["gpu"] or f"{machine['cores']} cores"


def differences(sizes: Sequence[Size]) -> Iterator[str]:
    """A sentence for each of backend, precision, machine, number of iterations and steps in which
    the sizes differ: they do not measure scaling alone then."""
    for what in ("backend", "precision", "machine", "iterations", "steps"):
        ranks: dict[str, list[str]] = {}
        for size in sizes:
            ranks.setdefault(getattr(size, what), []).append(str(size.ranks))
        if len(ranks) > 1:
            each = "; ".join(f"{name} ({', '.join(counts)})" for name, counts in ranks.items())
            names = {"iterations": "number of iterations", "steps": "range of steps"}
            many = names.get(what, what)
            yield f"The numbers of processes were measured with more than one {many}: {each}"


def table(measured: Sequence[dict[str, Any]]) -> list[Size]:
    """The sizes of the records; efficiency compares each size with its GPUs alone, or where these
    were not measured with the first size."""
    sizes: list[Size] = []
    for record in measured:
        ranks, unknowns, times = record["ranks"], record["unknowns"], record["seconds"]
        seconds = statistics.median(times)
        share = unknowns / ranks
        reference = sizes[0].throughput if sizes else share / seconds
        alone, slowest = (
            statistics.median(record[key]) if record[key] else None
            for key in ("alone", "slowest_alone")
        )
        if alone is not None:
            reference = (share if record["kind"] == "weak" else unknowns) / alone
        sizes.append(Size(
            ranks, unknowns, record["unit"], seconds,
            share / seconds, share / max(times), share / min(times), share / seconds / reference,
            alone, slowest, record["updates"] / seconds, record["bytes"] / seconds,
            record["waited"], record["balance"],
            record["iterations"], _range_of(record["steps"]), record["launches"], record["halo"],
            record["link"] if ranks > 1 else "",
            record["sweeping"], record["exchanging"],
            record["backend"], record["precision"], machine_name(record),
        ))  # fmt: skip
    return sizes


def _range_of(steps: Sequence[int] | None) -> str | None:
    """The steps that the repeats of a march make: "92 to 582"."""
    return f"{steps[0]} to {steps[0] + REPEATS * steps[1]}" if steps else None


def write(folder: Path, measured: Sequence[dict[str, Any]]) -> list[Path]:
    """The table of a study as CSV, JSON and Markdown. Raises FileFailure."""
    sizes = table(measured)
    rows = [asdict(size) for size in sizes]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    paths = [folder / f"table.{kind}" for kind in ("csv", "json", "md")]
    write_text(paths[0], text.getvalue())
    write_json(paths[1], rows)
    write_text(paths[2], markdown(sizes))
    return paths


def title(measured: Sequence[dict[str, Any]]) -> str:
    """The title of the study in two lines: the case and its size, the backend and machine."""
    record = measured[0]
    weak = record["kind"] == "weak"
    size = number(record["unknowns"] / (record["ranks"] if weak else 1)).rstrip()
    on = ", ".join(
        next(iter(values)) if len(values) == 1 else f"several {what}"
        for what, values in {
            "backends": {each["backend"] for each in measured},
            "machines": {machine_name(each) for each in measured},
        }.items()
    )
    if len({each["precision"] for each in measured}) > 1:
        on += ", several precisions"
    return (
        f"{record['case']}, {record['kind']} scaling, {size} unknowns "
        f"{'a process' if weak else 'in all'}\n{on}"
    )


def markdown(sizes: Sequence[Size]) -> str:
    """A table in Markdown."""
    unit = sizes[0].unit
    rows = [
        f"| processes | unknowns | {unit} (ms) | M unknowns/s a process | spread | efficiency "
        "| iterations | launches | halo | waited | balance | link |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for size in sizes:
        spread = f"{size.lowest / 1e6:.4g} to {size.highest / 1e6:.4g}"
        waited = "" if size.waited is None else f"{100.0 * size.waited:.1f} %"
        launches = "" if size.launches is None else f"{size.launches:.4g}"
        rows.append(
            f"| {size.ranks} | {size.unknowns} | {size.seconds * 1e3:.4g} "
            f"| {size.throughput / 1e6:.4g} | {spread} | {size.efficiency:.3f} "
            f"| {size.iterations or ''} | {launches} | {size.halo} "
            f"| {waited} | {size.balance:.3f} | {size.link} |"
        )
    of_sizes = [*_of_efficiency(sizes), *map(_of_time_line, sizes)]
    said = [*of_sizes, *[f"{each}." for each in differences(sizes)]]
    return "\n".join([*rows, *[f"\n{each}" for each in said if each]]) + "\n"


def _of_efficiency(sizes: Sequence[Size]) -> Iterator[str]:
    """What the efficiency of each size compares, if any size was compared with its GPUs alone."""
    if all(size.alone is None for size in sizes):
        return
    for size in sizes[1:] if sizes[0].alone is None else sizes:
        other = f"the launch of {sizes[0].ranks}"
        if size.alone is not None:
            other = f"the mean of its GPUs alone, measured in turn, {1e3 * size.alone:.4g} ms"
            if size.slowest_alone is not None:
                other += f"; the slowest takes {1e3 * size.slowest_alone:.4g} ms"
        yield f"Efficiency of {size.ranks}: over {other}."


def _of_time_line(size: Size) -> str:
    """The sentence on the time line of a size; "" if there is none."""
    if size.sweeping is None or size.exchanging is None:
        return ""
    rest = max(0.0, size.seconds - size.sweeping - size.exchanging)
    return (
        f"Time line of {size.ranks}, for one {size.unit}: {1e3 * size.sweeping:.4g} ms of sweeps, "
        f"{1e3 * size.exchanging:.4g} ms of exchanges beside no sweep, {1e3 * rest:.4g} ms of "
        "neither."
    )


# ---- prediction ----------------------------------------------------------------------------------


def prediction(measured: Sequence[dict[str, Any]]) -> Iterator[tuple[int, float]]:
    """Throughput of a process (unknowns/s) for 1, 2, 4, ... processes, by a model.

    A unit of work takes t = c N + e x: N is the number of unknowns of a process, x the time of one
    exchange without overlap, latency for each divided axis plus the ghosts of a block over the
    bandwidth, both as measured in the largest launch. The constants c and e are fitted to the
    measured times of the launches (see `fitted`), e not below 0. Raises InputError without a launch
    of several processes.
    """
    several = [record for record in measured if record["latency"] is not None]
    if not several:
        raise InputError("--model needs a launch of several processes")
    latency, bandwidth = several[-1]["latency"], several[-1]["bandwidth"]
    item = 4 if several[-1]["precision"] == "float32" else 8

    def exchange(counts: Sequence[int], periodic: Sequence[str], dims: Sequence[int]) -> float:
        """The time x of one exchange; the arguments are along x, y, z."""
        faces = surface(counts, dims, [axis in periodic for axis in AXIS_NAMES[: len(counts)]])
        return latency * sum(parts > 1 for parts in dims) + item * faces / bandwidth

    terms = np.array([
        [r["unknowns"] / r["ranks"], exchange(r["counts"], r["periodic"], r["dims"])]
        for r in fitted(measured)
    ])  # fmt: skip
    times = np.array([statistics.median(r["seconds"]) for r in fitted(measured)])
    # Relative errors count, so each line is divided by its time.
    (cost, part), *_ = np.linalg.lstsq(terms / times[:, None], np.ones(len(times)), rcond=None)
    if part < 0.0 or cost < 0.0:
        cost, part = float(np.mean(times / terms[:, 0])), 0.0
    last, ranks = measured[-1], 1
    on_device = last["backend"] in ON_GPU
    block = [max(1, n // parts) for n, parts in zip(last["counts"], last["dims"], strict=True)]
    while ranks <= MOST_OF_MODEL:
        if last["kind"] == "weak":
            dims = growth(block[::-1], ranks, on_device)[::-1]
            counts = [n * parts for n, parts in zip(block, dims, strict=True)]
            share = last["unknowns"] / last["ranks"]
        else:
            counts, share = last["counts"], last["unknowns"] / ranks
            grid = make_grid(counts, (0,) * 3, (1,) * 3, False, last["periodic"])
            try:
                dims = process_grid(grid, ranks)[::-1]
            except InputError:  # more processes than unknowns
                return
        time = cost * share + part * exchange(counts, last["periodic"], dims)
        yield ranks, share / time
        ranks *= 2


def fitted(measured: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The launches to which the model is fitted: of four and more all but the largest, which then
    checks it."""
    return measured[:-1] if len(measured) > 3 else measured


def checked(measured: Sequence[dict[str, Any]], predicted: Sequence[tuple[int, float]]) -> str:
    """What the largest launch says of a model that was fitted to the others; "" if it says
    nothing."""
    last = table(measured)[-1]
    expected = dict(predicted).get(last.ranks)
    if expected is None or fitted(measured) is measured:
        return ""
    return (
        f"model: fitted without {last.ranks} processes, where {last.throughput:.4g} unknowns/s "
        f"each were measured, {last.throughput / expected:.3f} of the prediction"
    )


# ---- jobs ----------------------------------------------------------------------------------------

SCRIPT = """\
#!/bin/bash
# One size of a scaling study of heatsolve under Slurm: {kind}, {case}, {ranks} processes.
#
# Edit:   the resources and the environment
# Submit: sbatch THIS_FILE; when all sizes are done: heatsolve scale collect {folder}

{asked}

# module load mpich
# source ~/venv/bin/activate

# How srun starts the ranks: pmi2 for MPICH, pmix for Open MPI, else see srun --mpi=list.
mpi=${{HEATSOLVE_MPI:-{pmi}}}
export OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1

srun --mpi="$mpi" --kill-on-bad-exit=0 --wait=5 \\
    {command}
"""


def _output(folder: Path) -> str:
    """The pattern of the output of a job in a folder, as Slurm reads it in a script.

    Raises InputError for a name that no line of a script can hold.
    """
    name = str(folder)
    if not name.isprintable():
        raise InputError(f"--output {name!r}: a folder of jobs needs a name that can be printed")
    # In quotes a backslash escapes the next character; a % begins a pattern.
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}/%x-%j.out"'


def write_jobs(study: Study, counts: Sequence[int], ranks_per_node: int, time: str) -> list[Path]:
    """A job script for each size, in the study's folder. Raises InputError and FileFailure."""
    wall_seconds(time)
    if ranks_per_node < 1:
        raise InputError(f"--ranks-per-node must be at least 1, not {ranks_per_node}")
    paths = []
    for ranks in counts:
        nodes = math.ceil(ranks / ranks_per_node)
        if ranks % nodes:
            raise InputError(f"--ranks: {ranks} processes do not fill {nodes} nodes evenly")
        on_each = ranks // nodes
        asked = {
            "job-name": f"scale-{study.kind}-{ranks}", "nodes": nodes, "ntasks": ranks,
            "ntasks-per-node": on_each, "cpus-per-task": 1,
            "gpus-per-node": on_each if study.backend in ON_GPU else None,
            "time": time, "output": _output(study.folder),
        }  # fmt: skip
        text = SCRIPT.format(
            kind=study.kind, case=printable(Path(study.case).name), ranks=ranks,
            folder=printable(shlex.quote(str(study.folder))),
            asked=directives(asked), pmi=pmi(), command=shlex.join(study.command(ranks)),
        )  # fmt: skip
        path = study.folder / f"{ranks}.sbatch"
        write_text(path, text)
        paths.append(path)
    return paths


def _smallest(folder: Path) -> dict[str, Any] | None:
    """The record of a study's launch with the fewest processes so far; None if there is none."""
    try:
        return records(folder, lambda sentence: None)[0]
    except InputError:
        return None


def main(arguments: Sequence[str]) -> None:
    """Measure, and let rank 0 write the record; an error ends all processes with its code."""
    source, kind, per_rank, backend, path, *overrides = arguments
    ranks = find_ranks()
    try:
        wanted = float(per_rank) if per_rank != "-" else None
        named = None if backend == "-" else backend
        case = of_kind(kind, source, overrides, ranks.size, wanted, named)
        if case.parallel.threads is None:  # one thread for any number of processes: comparable
            case = case.altered(parallel={"threads": 1})
        with locating(case):
            earlier = _smallest(Path(path).parent) if ranks.rank == 0 else None
            one = of_kind(kind, source, overrides, 1, wanted, named) if ranks.size > 1 else None
            record = measure(case, kind, named, ranks, ranks.gather(earlier)[0], one)
            if ranks.rank == 0:  # before a time line, for which memory may be too small
                write_json(Path(path), record)
            record |= time_line(case, named, ranks, statistics.median(record["seconds"]))
        if ranks.rank == 0:
            write_json(Path(path), record)
    except HeatsolveError as error:
        ranks.fail(f"heatsolve: {error}", error.exit_code)
        print(f"heatsolve: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except Exception:
        ranks.fail(traceback.format_exc(), 1)
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
