"""Levels of multigrid whose blocks overlap: cycles of many processes to the bits of one.

test_overlap.py, under mpiexec, compares all grids, on a GPU that is emulated.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from emulated import Emulated
from test_ranks import launch, mpi
from test_solvers import case_text

from heatsolve.backends import device_cycles
from heatsolve.backends.numpy import NumpyBackend
from heatsolve.case import parse
from heatsolve.conduction import Conduction
from heatsolve.converge import make_method
from heatsolve.linear import division
from heatsolve.ranks import Ranks, World
from heatsolve.study.noise import noise_inside

GRIDS = {
    "nodes": ("nodes = [66, 259]\nupper = [65, 258]", "vvvv", ""),
    "odd": ("nodes = [67, 262]\nupper = [66, 261]", "gvrv", ""),
    "cells": ("cells = [65, 257]\nupper = [65, 257]", "rgvg", "cycle = 'W'"),
    "smoothed otherwise": ("cells = [65, 258]\nupper = [65, 258]", "rgvv",
                           "smoother = 'chebyshev'"),
    "ring": ("cells = [64, 256]\nupper = [64, 256]\nperiodic = ['y']", "vg--", ""),
    "ring beside": ("cells = [64, 258]\nupper = [64, 258]\nperiodic = ['x']", "--vr", ""),
    "space": ("nodes = [20, 19, 131]\nupper = [19, 18, 130]", "vgvrvv", ""),
    "cells in space": ("cells = [19, 20, 130]\nupper = [19, 20, 130]", "rgvvgr", ""),
    "one source": ("nodes = [66, 259]\nupper = [65, 258]", "vvgv", "", 1.5),
    "torus": ("cells = [16, 16, 128]\nupper = [16, 16, 128]\nperiodic = ['x', 'y', 'z']",
              "------", ""),
}  # fmt: skip


def solved(given, backend, ranks):
    """The field after three cycles, with the residual's norm of each; how many levels overlap."""
    grid, walls, solver, *source = given
    dims = [1] * (len(walls) // 2 - 1) + [ranks.size]
    text = case_text(grid, walls, solver=f"method = 'multigrid'\n{solver}",
                     parallel=f"ranks = {dims}")  # fmt: skip
    case = parse(text, "case")
    problem = Conduction(case, backend, ranks=ranks)
    window = tuple(slice(a.start, a.start + a.unknowns + 2) for a in problem.grid.axes)
    b = np.full((1,) * len(dims), source) if source else noise_inside(problem.whole.shape)[window]
    system = problem.system(backend.to_device(np.ascontiguousarray(b)))
    if system.singular:
        system.remove_mean(system.b)
    method = make_method(case, system, problem.temperature)
    norms, change = [], method.accumulator("sum")
    for number in range(3):
        method.step(number, change if number == 1 else None)
        into = method.accumulator("max")
        method.residual_norm(number + 1, into)
        norms.append(into.value)
    own = problem.own(method.solution(3))
    overlapping = sum(level.overlap is not None for level in method._levels)
    places = [slice(a.start, a.start + a.unknowns) for a in problem.grid.axes]
    return own, (*norms, change.value), tuple(places), overlapping


@mpi
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler, g++")
@pytest.mark.parametrize("processes", [2, 3])
def test_cycles_have_the_bits_of_one_process(processes):
    done = launch(processes, Path(__file__).name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("compared") == len(GRIDS)


def main(names):
    ranks = World()
    device_cycles.FEWEST_POINTS = {2: 0, 3: 0}
    division.GATHERED_UP_TO = 1
    for name in names or GRIDS:
        expected, norms, _, _ = solved(GRIDS[name], NumpyBackend(), Ranks())
        block, found, places, overlapping = solved(GRIDS[name], Emulated(), ranks)
        assert overlapping >= 2, (name, overlapping)
        assert np.array_equal(block, expected[places]), name
        assert found == norms
        if ranks.rank == 0:
            print("compared", name, overlapping, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
