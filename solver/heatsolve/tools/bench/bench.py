"""`heatsolve bench`: how fast this machine sweeps and solves, in units of its own copy bandwidth.

Copy bandwidth is measured first, in the same run: one array copied to another, counted as read
plus written. A sweep is compared with the time in which its fewest bytes (each array that it
touches, once) could be copied; a solver with the time in which one field could.
"""

import itertools
import json
import os
import platform
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heatsolve.backends import Backend
from heatsolve.backends.registry import choose, gpu_name, processor
from heatsolve.case.load import parse
from heatsolve.control.controller import State
from heatsolve.errors import InputError
from heatsolve.io.checkpoints import CheckpointStore
from heatsolve.io.disk import write_text
from heatsolve.io.writer import FieldFile, Results
from heatsolve.linear.stationary import Jacobi
from heatsolve.models.heat.conduction import Conduction
from heatsolve.models.heat.solver import make_method
from heatsolve.parallel.ranks import Ranks
from heatsolve.tools.bench.measure import Bench, Comparison, Row, seconds_of_copy, time_of
from heatsolve.tools.bench.rows import (
    Measure,
    blocked,
    collocated,
    collocated_slices,
    launch,
    marching,
    marching_numpy,
    numpy_backend,
    slices,
    solving,
    source,
    sweep,
)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Benchmark:
    """How a row is measured, and on arrays of which shape: small for a CPU, large for a GPU."""

    measure: Measure
    small: Shape
    large: Shape


SWEPT_2D, LARGE_2D = (8192, 8192), (16384, 16384)
SWEPT_3D, LARGE_3D = (256, 256, 256), (640, 640, 640)
SOLVED_2D, LARGE_SOLVED_2D = (2048, 2048), (8192, 8192)
SOLVED_3D, LARGE_SOLVED_3D = (128, 128, 128), (512, 512, 512)

BENCHMARKS = {
    "jacobi2d": Benchmark(sweep, SWEPT_2D, LARGE_2D),
    "jacobi2d-blocked": Benchmark(blocked, SWEPT_2D, LARGE_2D),
    "jacobi2d-source": Benchmark(source, SWEPT_2D, LARGE_2D),
    "jacobi2d-numpy": Benchmark(numpy_backend, SWEPT_2D, (4096, 4096)),
    "jacobi2d-slices": Benchmark(slices, SWEPT_2D, LARGE_2D),
    "jacobi3d": Benchmark(sweep, SWEPT_3D, LARGE_3D),
    "jacobi3d-blocked": Benchmark(blocked, SWEPT_3D, LARGE_3D),
    "jacobi3d-slices": Benchmark(slices, SWEPT_3D, LARGE_3D),
    "multigrid2d": Benchmark(solving(method="multigrid"), SOLVED_2D, LARGE_SOLVED_2D),
    "multigrid2d-mixed": Benchmark(
        solving(method="multigrid", precision="mixed"), SOLVED_2D, LARGE_SOLVED_2D
    ),
    "multigrid3d": Benchmark(solving(method="multigrid"), SOLVED_3D, LARGE_SOLVED_3D),
    "multigrid3d-mixed": Benchmark(
        solving(method="multigrid", precision="mixed"), SOLVED_3D, LARGE_SOLVED_3D
    ),
    # To the accuracy of the discretisation, which takes one cycle.
    "fmg2d": Benchmark(
        solving(method="multigrid", cycle="FMG", iterations=1), SOLVED_2D, LARGE_SOLVED_2D
    ),
    "fft3d": Benchmark(solving(periodic=True, method="fft"), SOLVED_3D, LARGE_SOLVED_3D),
    "flow2d": Benchmark(marching, (514, 514), (2050, 2050)),
    "flow2d-numpy": Benchmark(marching_numpy, (514, 514), (514, 514)),
    "flow3d": Benchmark(marching, (66, 66, 66), (258, 258, 258)),
    "collocated2d": Benchmark(collocated, (1024, 1024), (4096, 4096)),
    "collocated2d-slices": Benchmark(collocated_slices, (1024, 1024), (4096, 4096)),
    "launch": Benchmark(launch, (64, 64), (64, 64)),
}
NAMES = ("copy", *BENCHMARKS)


def bench(
    backend: str = "auto",
    only: Sequence[str] = (),
    precision: str = "float64",
    ranks: Ranks | None = None,
    shapes: Mapping[str, Shape] | None = None,
) -> Iterator[Row | Comparison]:
    """The rows of the table, as they are measured; `shapes` replaces shapes by name.

    Of several processes, and of one that is asked for them: the comparisons of `processes`.
    Raises InputError for an unknown name, and where the backend cannot work.
    """
    ranks = ranks or Ranks()
    known = (*NAMES, *COMPARISONS) if ranks.size == 1 else tuple(COMPARISONS)
    for name in only:
        if name not in known:
            raise InputError(f"no benchmark {name!r} here: there are {', '.join(known)}")
    threads = 1 if ranks.size > 1 else None
    machine, _ = choose(backend, precision, threads, ranks.local_rank, ranks.gather)
    compared = [name for name in COMPARISONS if name in only or (ranks.size > 1 and not only)]
    for name in compared:
        own, plain = COMPARISONS[name](machine, ranks)
        yield Comparison(name, machine.name, ranks.size, own, plain)
    measured = [name for name in NAMES if name in only or not only]
    if ranks.size == 1 and measured:
        yield from table(machine, measured, shapes or {})


def table(machine: Backend, names: Sequence[str], shapes: Mapping[str, Shape]) -> Iterator[Row]:
    """The rows of these names; copy bandwidth is measured in any case, and once more at the end.

    The second time tells how much of the machine others took in between.
    """
    chosen = {
        name: shapes.get(name, benchmark.large if machine.on_device else benchmark.small)
        for name, benchmark in BENCHMARKS.items()
    }
    shape = chosen["jacobi2d"]
    points = int(np.prod(shape))
    seconds = seconds_of_copy(machine, shape)
    bench = Bench(machine, 2 * points * machine.dtype.itemsize / seconds)
    if "copy" in names:
        yield bench.row("copy", shape, seconds, points, arrays=2)
    measured = False
    for name, benchmark in BENCHMARKS.items():
        if name in names:
            yield from benchmark.measure(name, bench, chosen[name])
            measured = True
    if measured:
        yield bench.row("copy-again", shape, seconds_of_copy(machine, shape), points, arrays=2)


def records(rows: Sequence[Row | Comparison], ranks: Ranks | None = None) -> list[dict[str, Any]]:
    """The rows as dictionaries, each with the machine that it was measured on."""
    machine = {
        "node": platform.machine(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "gpu": gpu_name((ranks or Ranks()).local_rank),
    }
    return [asdict(row) | {"machine": machine} for row in rows]


def write_json(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Rows as `records` makes them, as JSON. Raises FileFailure."""
    write_text(path, json.dumps(rows, indent=1))


# ---- the cost of several processes --------------------------------------------------------------

REPEATS = 9
SECONDS_A_REPEAT = 0.2
POINTS = 2048
"""Unknowns of a process along each axis, for the halo."""
FIELD = 4096
"""Points along each axis of the field that is written."""

CASE = """
[grid]
cells = [{x}, {y}]
upper = [{x}, {y}]
[boundary]
left.temperature = {{ value = 1 }}
right.temperature = {{ value = 0 }}
bottom.temperature = {{ value = 0 }}
top.temperature = {{ value = 0 }}
[solver]
method = "jacobi"
"""


def together(
    ranks: Ranks,
    works: list[Callable[[], Any]],
    least: float,
    tidy: Callable[[], None] = lambda: None,
) -> list[float]:
    """The median seconds of each work, in turn, begun by all at once, of the slowest process.

    A work is repeated for `least` seconds; `tidy` is called between them and not timed.
    """

    def run(work: Callable[[], Any], times: int = 1) -> float:
        tidy()
        return time_of(ranks, work, times)

    counts = []
    for work in works:
        run(work)
        counts.append(max(1, int(least / max(run(work), 1e-7))))
    rounds = [[run(w, n) for w, n in zip(works, counts, strict=True)] for _ in range(REPEATS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def _halo(machine: Backend, ranks: Ranks) -> list[float]:
    """A step of Jacobi's iteration, and its sweep alone over the same points."""
    case = parse(CASE.format(x=POINTS * ranks.size, y=POINTS), "halo", [
        f"parallel.ranks=[{ranks.size}, 1]"])  # fmt: skip
    problem = Conduction(case, machine, ranks=ranks)
    b = machine.to_device(problem.source(0.0))
    method = make_method(case, problem.system(b), problem.temperature)
    assert isinstance(method, Jacobi)
    steps, sweeps = itertools.count(), itertools.count()

    def step() -> None:
        method.step(next(steps), None)
        machine.sync()

    def sweep() -> None:
        number = next(sweeps)
        old, new = method.solution(number), method.solution(number + 1)
        machine.sweep(method.point, new, problem.grid.interior, old, *method.args)
        machine.sync()

    return together(ranks, [step, sweep], SECONDS_A_REPEAT)


def _output(machine: Backend, ranks: Ranks) -> list[float]:
    """A field of FIELD squared doubles in parts, and gathered by one process that writes it."""
    windows = _windows(ranks)
    window = windows[ranks.rank]
    block = np.random.default_rng(ranks.rank).random([high - low for low, high in window])
    line = np.arange(FIELD, dtype=float)
    axes, attributes = {"y": line, "x": line}, {"case": ""}
    with _folder(ranks) as folder:

        def in_parts() -> None:
            path = folder / "parts.h5"
            with Results(path, axes, {}, window, ranks, transient=False) as results:
                results.append({"temperature": block})
                results.finish(attributes, {})

        def gathered() -> None:
            blocks = ranks.collect(block)
            if blocks is not None:
                field = np.empty((FIELD, FIELD))
                for values, place in zip(blocks, windows, strict=True):
                    field[tuple(slice(*pair) for pair in place)] = values
                with FieldFile(folder / "plain.h5", axes, {}, transient=False) as file:
                    file.append({"temperature": field})
                    file.finish(attributes, {})

        def tidy() -> None:
            if ranks.rank == 0:
                shutil.rmtree(folder / "parts.parts", ignore_errors=True)
                for path in folder.glob("*.h5"):
                    path.unlink()

        return together(ranks, [in_parts, gathered], 0.0, tidy)


def _checkpoint(machine: Backend, ranks: Ranks) -> list[float]:
    """A checkpoint of three fields, and the same bytes written raw and flushed."""
    window = _windows(ranks)[ranks.rank]
    shape = [high - low for low, high in window]
    rng = np.random.default_rng(ranks.rank)
    fields = {name: rng.random(shape) for name in ("u", "r", "p")}
    numbers = itertools.count(1)
    with _folder(ranks) as folder:
        store = CheckpointStore(folder / "case.checkpoints", (FIELD, FIELD), window, ranks)

        def saved() -> None:
            store.save(State(next(numbers), {}, {}, fields))

        def raw() -> None:
            with open(folder / f"raw-{ranks.rank}", "wb") as file:
                for values in fields.values():
                    values.tofile(file)
                file.flush()
                os.fsync(file.fileno())
            # Checkpoints replace others, too.
            with suppress(OSError):
                os.replace(folder / f"raw-{ranks.rank}", folder / f"old-{ranks.rank}")

        return together(ranks, [saved, raw], 0.0)


def _windows(ranks: Ranks) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """The rows of the field that each process has."""
    cuts = np.linspace(0, FIELD, ranks.size + 1).astype(int).tolist()
    return [(pair, (0, FIELD)) for pair in itertools.pairwise(cuts)]


@contextmanager
def _folder(ranks: Ranks) -> Iterator[Path]:
    """A temporary folder in the current one, known to all processes."""
    with ExitStack() as stack:
        name = ""
        if ranks.rank == 0:
            name = stack.enter_context(tempfile.TemporaryDirectory(dir=".", prefix="heatsolve-"))
        yield Path(ranks.gather(name)[0])
        ranks.gather(None)  # nobody needs it any more


COMPARISONS = {"halo": _halo, "output": _output, "checkpoint": _checkpoint}
