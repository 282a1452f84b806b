"""The same work done otherwise: as one writes it first, in plain C, by other programs."""

import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from heatsolve.backends import Backend
from heatsolve.backends.choice import make
from heatsolve.errors import InputError
from heatsolve.study.measure import REPEATS, Bench, Row, inner_points, medians_of, seconds_of
from heatsolve.study.noise import noise
from heatsolve.study.solvers import TOLERANCE, solving
from heatsolve.study.sweeps import fields, seconds_of_sweep


def numpy_backend(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """The same sweep on the numpy backend."""
    seconds = seconds_of_sweep(make("numpy", bench.machine.precision), shape)
    yield bench.sweep_row(name, shape, seconds, inner_points(shape), backend="numpy")


def slices(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """The same sweep with slices of NumPy arrays, or of CuPy arrays on a GPU that has CuPy."""
    other: Backend
    try:
        other = make("cupy" if bench.machine.on_device else "numpy", bench.machine.precision)
    except InputError:
        return
    u, v = fields(other, shape)

    def plane() -> None:
        v[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])

    def space() -> None:
        v[1:-1, 1:-1, 1:-1] = (1.0 / 6.0) * (
            u[:-2, 1:-1, 1:-1] + u[2:, 1:-1, 1:-1] + u[1:-1, :-2, 1:-1]
            + u[1:-1, 2:, 1:-1] + u[1:-1, 1:-1, :-2] + u[1:-1, 1:-1, 2:]
        )  # fmt: skip

    seconds = seconds_of({2: plane, 3: space}[len(shape)], other)
    backend = f"{other.name} slices"
    yield bench.sweep_row(name, shape, seconds, inner_points(shape), backend=backend)


C_SOURCE = """
#include <stdio.h>
#include <stdlib.h>
#include <omp.h>
int main(int argc, char **argv) {
    long n = atol(argv[1]), m = atol(argv[2]); int repeats = atoi(argv[3]);
    double *u = malloc(n * m * sizeof *u), *v = malloc(n * m * sizeof *v);
    #pragma omp parallel for
    for (long i = 0; i < n * m; i++) { u[i] = i % 13; v[i] = 0; }
    for (int r = 0; r < repeats; r++) {
        double began = omp_get_wtime();
        #pragma omp parallel for
        for (long i = 1; i < n - 1; i++) for (long j = 1; j < m - 1; j++)
            v[i*m+j] = 0.25 * (u[(i-1)*m+j] + u[(i+1)*m+j] + u[i*m+j-1] + u[i*m+j+1]);
        printf("%.9f\\n", omp_get_wtime() - began);
    }
    return v[m + 1] > 1e300;
}
"""


def plain_c(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """The same sweep as a plain C loop: gcc -O3 -fopenmp; nothing where there is no gcc."""
    compiler = shutil.which("gcc")
    if compiler is None or bench.machine.precision != "float64" or bench.machine.on_device:
        return
    with tempfile.TemporaryDirectory() as folder:
        written, program = Path(folder, "jacobi.c"), Path(folder, "jacobi")
        written.write_text(C_SOURCE)
        command = [compiler, "-O3", "-fopenmp", str(written), "-o", str(program)]
        if subprocess.run(command, capture_output=True).returncode:
            return
        given = [str(program), *map(str, shape), str(3 * REPEATS)]
        printed = subprocess.run(given, capture_output=True, text=True, check=True).stdout
    seconds = statistics.median(float(line) for line in printed.split()[1:])
    yield bench.sweep_row(name, shape, seconds, inner_points(shape), backend="gcc -O3")


def algebraic(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """Algebraic multigrid (Ruge and Stueben, by PyAMG) of the same system; nothing without PyAMG.

    On a GPU, whose own row is of another size, that of this size comes first.
    """
    try:
        import pyamg
    except ImportError:
        return
    if bench.machine.on_device:
        yield from solving(method="multigrid")("multigrid2d", bench, shape)
    matrix = pyamg.gallery.poisson([extent - 2 for extent in shape], format="csr")
    b = noise(matrix.shape[0])
    residuals: list[float] = []

    def once() -> tuple[float, float]:
        began = time.perf_counter()
        solver = pyamg.ruge_stuben_solver(matrix)
        ready = time.perf_counter()
        residuals.clear()
        solver.solve(b, tol=TOLERANCE, residuals=residuals)
        return ready - began, time.perf_counter() - ready

    setup, seconds = medians_of(once)
    solved = residuals[-1] <= TOLERANCE * float(np.linalg.norm(b))
    note = f"{'' if solved else 'NOT solved in '}{len(residuals) - 1} iterations"
    yield bench.solver_row(name, shape, setup, seconds, b.size, "pyamg", "float64", note)
