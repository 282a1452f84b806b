"""`heatsolve bench`: how fast this machine sweeps and solves, in units of its own copy bandwidth.

Copy bandwidth is measured first, in the same run: one array copied to another, counted as read
plus written. A sweep is compared with the time in which its fewest bytes (each array that it
touches, once) could be copied; a solver with the time in which one field could.
"""

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heatsolve.backends import Backend
from heatsolve.backends.registry import choose, gpu_name, processor
from heatsolve.errors import InputError
from heatsolve.io.disk import write_text
from heatsolve.parallel.ranks import Ranks
from heatsolve.tools.bench.flows import collocated, collocated_slices, marching, marching_numpy
from heatsolve.tools.bench.measure import Bench, Row
from heatsolve.tools.bench.processes import COMPARISONS, Comparison, compare
from heatsolve.tools.bench.sweeps import (
    Measure,
    blocked,
    launch,
    numpy_backend,
    seconds_of_copy,
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


PLANE, LARGE_PLANE = (8192, 8192), (16384, 16384)
SPACE, LARGE_SPACE = (256, 256, 256), (640, 640, 640)
SOLVED, LARGE_SOLVED = (2048, 2048), (8192, 8192)
SOLVED_SPACE, LARGE_SOLVED_SPACE = (128, 128, 128), (512, 512, 512)

BENCHMARKS = {
    "jacobi2d": Benchmark(sweep, PLANE, LARGE_PLANE),
    "jacobi2d-blocked": Benchmark(blocked, PLANE, LARGE_PLANE),
    "jacobi2d-source": Benchmark(source, PLANE, LARGE_PLANE),
    "jacobi2d-numpy": Benchmark(numpy_backend, PLANE, (4096, 4096)),
    "jacobi2d-slices": Benchmark(slices, PLANE, LARGE_PLANE),
    "jacobi3d": Benchmark(sweep, SPACE, LARGE_SPACE),
    "jacobi3d-blocked": Benchmark(blocked, SPACE, LARGE_SPACE),
    "jacobi3d-slices": Benchmark(slices, SPACE, LARGE_SPACE),
    "multigrid2d": Benchmark(solving(method="multigrid"), SOLVED, LARGE_SOLVED),
    "multigrid2d-mixed": Benchmark(
        solving(method="multigrid", precision="mixed"), SOLVED, LARGE_SOLVED
    ),
    "multigrid3d": Benchmark(solving(method="multigrid"), SOLVED_SPACE, LARGE_SOLVED_SPACE),
    "multigrid3d-mixed": Benchmark(
        solving(method="multigrid", precision="mixed"), SOLVED_SPACE, LARGE_SOLVED_SPACE
    ),
    # To the accuracy of the discretisation, which takes one cycle.
    "fmg2d": Benchmark(
        solving(method="multigrid", cycle="FMG", iterations=1), SOLVED, LARGE_SOLVED
    ),
    "fft3d": Benchmark(solving(periodic=True, method="fft"), SOLVED_SPACE, LARGE_SOLVED_SPACE),
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
    yield from compare(machine, ranks, compared)
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
        yield bench.sweep_row("copy", shape, seconds, points)
    measured = False
    for name, benchmark in BENCHMARKS.items():
        if name in names:
            yield from benchmark.measure(name, bench, chosen[name])
            measured = True
    if measured:
        yield bench.sweep_row("copy-again", shape, seconds_of_copy(machine, shape), points)


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
