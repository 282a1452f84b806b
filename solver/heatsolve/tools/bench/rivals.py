"""The same work done otherwise: as one writes it first, in plain C, by other programs.

Each is measured in turn with the program's own way, on arrays of the same shape.
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from heatsolve.backends.registry import make
from heatsolve.errors import InputError
from heatsolve.tools.bench.measure import Bench, Repeat, Row, in_turn, inner_points, repeat_of
from heatsolve.tools.bench.noise import noise
from heatsolve.tools.bench.solvers import TOLERANCE, Solution
from heatsolve.tools.bench.sweeps import fields, one_sweep


def sweep_row(
    name: str, bench: Bench, shape: Sequence[int], other: Repeat, backend: str
) -> Row:  # fmt: skip
    """The row of another way to make one sweep."""
    own = repeat_of(one_sweep(bench.machine, shape), bench.machine)
    (seconds,), speedup = in_turn(own, other)
    row = bench.sweep_row(name, shape, seconds, inner_points(shape), backend=backend)
    return replace(row, rival_of=f"jacobi{len(shape)}d", speedup=speedup)


def numpy_backend(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """The same sweep on the numpy backend."""
    machine = make("numpy", bench.machine.precision)
    yield sweep_row(name, bench, shape, repeat_of(one_sweep(machine, shape), machine), "numpy")


def slices(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """The same sweep with slices of NumPy arrays, or of CuPy arrays on a GPU that has CuPy."""
    try:
        machine = make("cupy" if bench.machine.on_device else "numpy", bench.machine.precision)
    except InputError:
        return
    u, v = fields(machine, shape)

    def plane() -> None:
        v[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])

    def space() -> None:
        v[1:-1, 1:-1, 1:-1] = (1.0 / 6.0) * (
            u[:-2, 1:-1, 1:-1] + u[2:, 1:-1, 1:-1] + u[1:-1, :-2, 1:-1]
            + u[1:-1, 2:, 1:-1] + u[1:-1, 1:-1, :-2] + u[1:-1, 1:-1, 2:]
        )  # fmt: skip

    other = repeat_of({2: plane, 3: space}[len(shape)], machine)
    yield sweep_row(name, bench, shape, other, f"{machine.name} slices")


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
        given = [str(program), *map(str, shape), "2"]

        def repeat() -> list[float]:
            printed = subprocess.run(given, capture_output=True, text=True, check=True).stdout
            return [float(printed.split()[-1])]  # the first sweep is warm-up

        yield sweep_row(name, bench, shape, repeat, "gcc -O3")


def algebraic(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """The same system by PyAMG's Ruge-Stueben solver; nothing where PyAMG is not installed."""
    try:
        import pyamg
    except ImportError:
        return
    matrix = pyamg.gallery.poisson([extent - 2 for extent in shape], format="csr")
    b = noise(matrix.shape[0])
    residuals: list[float] = []

    def repeat() -> tuple[float, float]:
        began = time.perf_counter()
        solver = pyamg.ruge_stuben_solver(matrix)
        ready = time.perf_counter()
        residuals.clear()
        solver.solve(b, tol=TOLERANCE, residuals=residuals)
        return ready - began, time.perf_counter() - ready

    own = Solution(bench.machine, shape, {"method": "multigrid"})
    (setup, seconds), speedup = in_turn(own.repeat, repeat)
    solved = residuals[-1] <= TOLERANCE * float(np.linalg.norm(b))
    note = f"{'' if solved else 'NOT solved in '}{len(residuals) - 1} iterations"
    row = bench.solver_row(name, shape, setup, seconds, b.size, "pyamg", "float64", note)
    yield replace(row, rival_of=f"multigrid{len(shape)}d", speedup=speedup)
