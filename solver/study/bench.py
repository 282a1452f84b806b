"""`heatsolve bench`: how fast this machine sweeps, as fractions of its own copy bandwidth.

Copy bandwidth is measured first, in the same run: one array copied to another, counted as read
plus written. A sweep is compared with the time in which its fewest bytes (each array that it
touches, once) could be copied. Medians of repeats, warm-up excluded.
"""

import json
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heatsolve.backends import Backend
from heatsolve.backends.choice import choose, make
from heatsolve.errors import FileFailure, InputError
from heatsolve.points import copy
from heatsolve.ranks import Ranks
from heatsolve.study.processes import COMPARISONS, Comparison, compare

REPEATS = 7
SECONDS_A_REPEAT = 0.1


def jacobi2d(i, j, u):
    """The four-point mean: 16 bytes a point in double precision."""
    return 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1])


def jacobi3d(i, j, k, u, sixth):
    """The six-point mean: 16 bytes a point in double precision."""
    return sixth * (
        u[i - 1, j, k] + u[i + 1, j, k] + u[i, j - 1, k]
        + u[i, j + 1, k] + u[i, j, k - 1] + u[i, j, k + 1]
    )  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One line of the table; `seconds` for one sweep (or copy)."""

    name: str
    backend: str
    shape: tuple[int, ...]
    dtype: str
    seconds: float
    glups: float
    fraction_of_copy: float

    def __str__(self) -> str:
        shape = " x ".join(map(str, self.shape))
        return (
            f"{self.name:18} {self.backend:12} {shape:16} {self.dtype:8} "
            f"{self.seconds * 1e3:10.4f} ms {self.glups:9.3f} GLUP/s "
            f"{self.fraction_of_copy:7.3f} of copy"
        )


def bench(
    backend: str = "auto",
    only: Sequence[str] = (),
    precision: str = "float64",
    ranks: Ranks | None = None,
) -> Iterator[Row | Comparison]:
    """The rows of the table, as they are measured. Raises InputError for an unknown name.

    Of several processes, and of one that is asked for them: the comparisons of `processes`.
    """
    ranks = ranks or Ranks()
    known = (*BENCHMARKS, *COMPARISONS) if ranks.size == 1 else tuple(COMPARISONS)
    for name in only:
        if name not in known:
            raise InputError(f"no benchmark {name!r} here: there are {', '.join(known)}")
    threads = 1 if ranks.size > 1 else None
    machine, _ = choose(backend, precision, threads, ranks.local_rank, ranks.gather)
    wanted = [name for name in COMPARISONS if name in only or (ranks.size > 1 and not only)]
    yield from compare(machine, ranks, wanted)
    if ranks.size > 1 or (only and len(wanted) == len(only)):
        return
    sizes = LARGE if machine.name in ("cupy", "cuda") else SMALL
    seconds = _seconds_of_copy(machine, sizes["jacobi2d"])
    bandwidth = 2 * np.prod(sizes["jacobi2d"]) * machine.dtype.itemsize / seconds
    if not only or "copy" in only:
        yield _row("copy", machine, sizes["jacobi2d"], seconds, bandwidth)
    for name, measure in BENCHMARKS.items():
        if measure is not None and (not only or name in only):
            yield from measure(name, machine, sizes.get(name, ()), bandwidth)


def write_json(rows: Sequence[Row | Comparison], path: Path) -> None:
    """The rows and the machine, as JSON."""
    machine = {"node": platform.machine(), "processor": processor(), "cores": os.cpu_count()}
    try:
        path.write_text(json.dumps([asdict(row) | {"machine": machine} for row in rows], indent=1))
    except OSError as error:
        raise FileFailure(f"cannot write {path}: {error.strerror}") from None


def processor() -> str:
    """The processor's own name, where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def seconds_of(work: Callable[[], Any], machine: Backend | None = None) -> float:
    """The median time of one call, over REPEATS runs of SECONDS_A_REPEAT each."""
    wait = machine.sync if machine else lambda: None

    def run(times: int) -> float:
        wait()
        began = time.perf_counter()
        for _ in range(times):
            work()
        wait()
        return (time.perf_counter() - began) / times

    run(1)
    times = max(1, int(SECONDS_A_REPEAT / max(run(2), 1e-7)))
    return statistics.median(run(times) for _ in range(REPEATS))


def _row(name: str, machine: Backend, shape: Sequence[int], seconds: float, bandwidth: float,
         backend: str | None = None) -> Row:  # fmt: skip
    points = int(np.prod(shape))
    ideal = 2 * points * machine.dtype.itemsize / bandwidth
    return Row(name, backend or machine.name, tuple(shape), machine.precision, seconds,
               points / seconds / 1e9, ideal / seconds)  # fmt: skip


def _fields(machine: Backend, shape: Sequence[int]) -> tuple[Any, Any]:
    """Two arrays with noise in the first: zeros would be kinder than real data."""
    u, v = machine.zeros(shape), machine.zeros(shape)
    rng = np.random.default_rng(1)
    region = tuple((0, extent) for extent in shape)
    line = rng.standard_normal((*shape[:-1], 1))
    machine.sweep(copy, u, region, machine.to_device(line))
    return u, v


def _seconds_of_copy(machine: Backend, shape: Sequence[int]) -> float:
    u, v = _fields(machine, shape)
    region = tuple((0, extent) for extent in shape)
    swept = seconds_of(lambda: machine.sweep(copy, v, region, u), machine)
    return min(swept, seconds_of(lambda: machine.copy(v, u), machine))


def _sweeps(name: str, machine: Backend, shape: Sequence[int], bandwidth: float) -> Iterator[Row]:
    """One sweep of the Jacobi iteration, generic kernels."""
    u, v = _fields(machine, shape)
    region = tuple((1, extent - 1) for extent in shape)
    point, given = {2: (jacobi2d, ()), 3: (jacobi3d, (1.0 / 6.0,))}[len(shape)]
    seconds = seconds_of(lambda: machine.sweep(point, v, region, u, *given), machine)
    yield _row(name, machine, shape, seconds, bandwidth)


def _numpy_backend(
    name: str, machine: Backend, shape: Sequence[int], bandwidth: float
) -> Iterator[Row]:
    """The same sweep on the numpy backend."""
    yield from _sweeps(name, make("numpy", machine.precision), shape, bandwidth)


def _newcomer(name: str, machine: Backend, shape: Sequence[int], bandwidth: float) -> Iterator[Row]:
    """The same sweep as one writes it first, with slices of NumPy or CuPy arrays."""
    if machine.name in ("cupy", "cuda"):
        try:
            import heatsolve.backends.cupy as gpu
        except ImportError:
            return
        other: Backend = gpu.CupyBackend(machine.precision)
    else:
        other = make("numpy", machine.precision)
    u, v = _fields(other, shape)

    def sweep() -> None:
        v[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])

    yield _row(name, other, shape, seconds_of(sweep, other), bandwidth, f"{other.name} slices")


C_SOURCE = """
#include <stdio.h>
#include <stdlib.h>
#include <omp.h>
int main(int argc, char **argv) {
    long n = atol(argv[1]); int repeats = atoi(argv[2]);
    double *u = malloc(n * n * sizeof *u), *v = malloc(n * n * sizeof *v);
    #pragma omp parallel for
    for (long i = 0; i < n * n; i++) { u[i] = i % 13; v[i] = 0; }
    for (int r = 0; r < repeats; r++) {
        double began = omp_get_wtime();
        #pragma omp parallel for
        for (long i = 1; i < n - 1; i++) for (long j = 1; j < n - 1; j++)
            v[i*n+j] = 0.25 * (u[(i-1)*n+j] + u[(i+1)*n+j] + u[i*n+j-1] + u[i*n+j+1]);
        printf("%.9f\\n", omp_get_wtime() - began);
    }
    return v[n + 1] > 1e300;
}
"""


def _plain_c(name: str, machine: Backend, shape: Sequence[int], bandwidth: float) -> Iterator[Row]:
    """The same sweep as a plain C loop: gcc -O3 -fopenmp; nothing where there is no gcc."""
    compiler = shutil.which("gcc")
    if compiler is None or machine.precision != "float64" or machine.name in ("cupy", "cuda"):
        return
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "jacobi.c"), Path(folder, "jacobi")
        source.write_text(C_SOURCE)
        command = [compiler, "-O3", "-fopenmp", str(source), "-o", str(program)]
        if subprocess.run(command, capture_output=True).returncode:
            return
        given = [str(program), str(shape[0]), str(3 * REPEATS)]
        printed = subprocess.run(given, capture_output=True, text=True, check=True).stdout
    seconds = statistics.median(float(line) for line in printed.split()[1:])
    yield _row(name, machine, shape, seconds, bandwidth, "gcc -O3")


BENCHMARKS: dict[str, Any] = {
    "copy": None,
    "jacobi2d": _sweeps,
    "jacobi2d-numpy": _numpy_backend,
    "jacobi2d-slices": _newcomer,
    "jacobi2d-c": _plain_c,
    "jacobi3d": _sweeps,
    "launch": _sweeps,
}
SMALL = {"jacobi2d": (4096, 4096), "jacobi2d-numpy": (4096, 4096), "jacobi2d-slices": (4096, 4096),
         "jacobi2d-c": (4096, 4096), "jacobi3d": (256, 256, 256), "launch": (64, 64)}  # fmt: skip
LARGE = SMALL | {"jacobi2d": (16384, 16384), "jacobi2d-slices": (16384, 16384),
                 "jacobi3d": (640, 640, 640)}  # fmt: skip
