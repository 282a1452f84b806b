"""Levels of multigrid whose blocks overlap: cycles of many processes to the bits of one.

test_overlap.py, under mpiexec, compares all grids, on a GPU that is emulated.
"""

import shutil
import sys
from pathlib import Path

import emulated
import numpy as np
import pytest
from emulated import Emulated
from test_messages import Pretending
from test_ranks import launch, mpi
from test_solvers import case_text

from heatsolve.backends.gpu import cycle_legs
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.case.load import load, parse
from heatsolve.linear.multigrid import overlap, partition
from heatsolve.linear.multigrid.cycle import Multigrid
from heatsolve.linear.stopping import kind_of
from heatsolve.models.flow.staggered import Staggered
from heatsolve.models.heat.conduction import Conduction
from heatsolve.models.heat.solver import make_method
from heatsolve.parallel.ranks import Ranks, World
from heatsolve.stencil.language import scaled
from heatsolve.time.step_size import step_length, substeps
from heatsolve.tools.measure import noise_inside

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
    "one source": ("nodes = [66, 259]\nupper = [65, 258]", "vvgv", "", "1.5"),
    "one source in space": ("nodes = [20, 19, 131]\nupper = [19, 18, 130]", "vgvrvv", "", "1.5"),
    "heated at one end": ("nodes = [66, 259]\nupper = [65, 258]", "vvhv", "", "y"),
    "heated by one wall": ("nodes = [66, 259]\nupper = [65, 258]", "vvhv", "", "1.5"),
    "conjugate gradients": ("nodes = [66, 259]\nupper = [65, 258]", "vgvr", "method = 'mgcg'"),
    "conjugate gradients in space": ("cells = [19, 20, 260]\nupper = [19, 20, 260]", "rgvvgr",
                                     "method = 'mgcg'"),
    "mixed": ("nodes = [66, 259]\nupper = [65, 258]", "vgvr", "precision = 'mixed'"),
    "mixed in space": ("nodes = [20, 19, 131]\nupper = [19, 18, 130]", "vgvrvv",
                       "precision = 'mixed'"),
    "tall": ("nodes = [34, 1503]\nupper = [33, 1502]", "vgvr", "cycle = 'W'"),
    "too thin": ("cells = [64, 40]\nupper = [64, 40]\nperiodic = ['y']", "vg--", ""),
    "recalled in space": ("nodes = [20, 19, 131]\nupper = [19, 18, 130]", "000000", ""),
    "recalled": ("nodes = [66, 259]\nupper = [65, 258]", "0000", ""),
    "torus": ("cells = [16, 16, 128]\nupper = [16, 16, 128]\nperiodic = ['x', 'y', 'z']",
              "------", ""),
}  # fmt: skip


FLOWS = {
    "cavity-re100": ["constants.n=112"],
    "taylor-green": ["constants.n=128"],
    "rayleigh-benard": ["constants.n=100"],
    "taylor-green-3d": ["grid.cells=[16, 16, 128]", "grid.upper=['2*pi', '2*pi', '16*pi']"],
    "taylor-green-3d, between walls": [
        "grid.cells=[15, 16, 128]", "grid.upper=['2*pi', '2*pi', '16*pi']",
        "grid.periodic=['y', 'z']", "boundary.left.kind=no-slip", "boundary.right.kind=no-slip",
    ],
}  # fmt: skip
"""Flows whose pressure is found so, on walls and on a ring, by the name of a case; the last one has
rows of an odd length, which are padded."""


class Spreading(Pretending):
    """A link that counts its messages to all processes."""

    sent_to_all = 0

    def exchange(self, leaving, arriving):
        Spreading.sent_to_all += any(peer == self._comm.rank for _, peer in leaving)
        super().exchange(leaving, arriving)


class Linked(Emulated):
    """A GPU whose link sends rows of arrays as they lie in memory."""

    def connect(self, ranks, name):
        return (Spreading(ranks), "") if name == "nccl" else (None, "it is another link")


SOME = ("tall", "cells in space", "too thin")
GROUP = {True: "some", False: "others"}


def solved(given, backend, ranks, settled=False):
    """The fields after three cycles and, from a start with other walls, after one more, with the
    residual's norm of each; how many levels overlap, and how many of these find the layers of the
    next level's b."""
    grid, walls, solver, *own = given  # the source of a case, with fluxes through its walls
    dims = [1] * (len(walls) // 2 - 1) + [ranks.size]
    if "method" not in solver:
        solver = f"method = 'multigrid'\n{solver}"
    text = case_text(grid, walls, *own, solver=solver, parallel=f"ranks = {dims}")
    case = parse(text, "case")
    problem = Conduction(case, backend, ranks=ranks)
    window = tuple(slice(a.start, a.start + a.unknowns + 2) for a in problem.grid.axes)
    b = problem.source(0.0) if own else noise_inside(problem.whole.shape)[window]
    system = problem.system(backend.to_device(np.ascontiguousarray(b)))
    if system.singular:
        system.remove_mean(system.b)
    method = make_method(case, system, problem.temperature)
    start = system.like(problem.temperature)
    backend.sweep(scaled, start, problem.grid.everything, start, 2.0)
    if settled:
        method.settle()
    norms, change = [], backend.accumulator("sum")
    for number in range(3):
        method.step(number, change if number == 1 else None)
        into = method.accumulator(kind_of(case.solver.norm))  # which passes add, where they can
        method.residual_norm(number + 1, into)
        norms.append(into.take())
        if number == 0 and "000" in walls:  # as a restart does: there u lies in either array
            method = recalled(method, case, system, problem.temperature, settled)
    fields = [problem.own(method.solution(3)).copy()]
    method.finish(3)
    system.like(start, method.u)
    method.restart()
    method.step(0, None)
    method.residual_norm(1, into := method.accumulator(kind_of(case.solver.norm)))
    norms.append(into.take())
    fields.append(problem.own(method.solution(1)))
    levels = getattr(method, "_correction", method)._levels
    overlapping = [level for level in levels if level.overlaps]
    if settled and overlapping and isinstance(method, Multigrid):
        arrays = method._overlapped.u, method._overlapped.other
        alike = problem.grid.dimension < 3 or method.u.shape[-1] % 2 == 0  # else rows are padded
        assert any(np.shares_memory(method.u, array) for array in arrays) == alike
    finding = sum(level._finds_layers for level in overlapping)
    places = [slice(a.start, a.start + a.unknowns) for a in problem.grid.axes]
    return fields, (*norms, change.value), tuple(places), len(overlapping), finding


def recalled(method, case, system, u, settled):
    """A new method that goes on after the first step of another one."""
    kept = {name: array.copy() for name, array in method.memory(1).items()}
    record = dict(method.record(1))
    u[...] = 0.0
    result = make_method(case, system, u)
    if settled:
        result.settle()
    for name, array in result.memory(1).items():
        array[...] = kept[name]
    result.recall(1, record)
    return result


def marched(case, backend, ranks):
    """The fields after two steps, and where they are."""
    problem = Staggered(case, backend, ranks=ranks)
    step, _ = step_length(problem)
    stepper = problem.stepper(0.0, step)
    stepper.prepare()
    for number in range(2):
        stepper.step(list(substeps(case.time, number, step, 1 << 20)), None, None)
    stepper.finish()
    places = tuple(slice(a.start, a.start + a.unknowns) for a in problem.grid.axes)
    return {name: problem.own(array) for name, array in problem.fields.items()}, places


@mpi
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler, g++")
@pytest.mark.parametrize(
    ("processes", "what"),
    [
        (2, "some"),
        pytest.param(2, "others", marks=pytest.mark.thorough),
        pytest.param(3, "all", marks=pytest.mark.thorough),
    ],
)
def test_cycles_have_the_bits_of_one_process(processes, what):
    done = launch(processes, Path(__file__).name, what)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("compared") == len(chosen(GRIDS, what)) + len(chosen(FLOWS, what))


def chosen(given, what):
    """Some of the grids or flows by name, those that are left, or all."""
    return {name: of for name, of in given.items() if what in ("all", GROUP[name in SOME])}


SEVERAL, FEW = overlap.MOST_ELEMENTS, 2200
"""Elements of further layers: for several levels in turn, and not for the finest one."""


def variants(name):
    """Unknowns up to which levels are gathered, the fewest points of a pass, and the most elements
    of further layers."""
    yield from [(1, 0, SEVERAL), (1 << 20, 0, SEVERAL)]
    if name in ("odd", "cells in space"):  # blocks too small for passes are gathered
        yield 1, {"odd": 3000, "cells in space": 9000}[name], SEVERAL
    if name in ("tall", "cells in space"):
        yield 1, 0, FEW


def main(what):
    ranks = World()
    partition.GATHERED_UP_TO = 1
    emulated.LEVEL = "-O2"  # kernels run often here
    for name, given in chosen(GRIDS, what).items():
        expected, norms, *_ = solved(given, NumpyBackend(), Ranks())
        for gathered, fewest, most in variants(name):
            partition.GATHERED_ON_DEVICES, overlap.MOST_ELEMENTS = gathered, most
            cycle_legs.FEWEST_POINTS = dict.fromkeys((2, 3), fewest)
            backend = Emulated() if gathered == 1 else Linked()
            settled = gathered > 1
            blocks, found, places, overlapping, finding = solved(given, backend, ranks, settled)
            least = 0 if name == "too thin" else 1 if gathered > 1 or fewest else 2
            assert overlapping >= least, (name, overlapping)
            sent, Spreading.sent_to_all = Spreading.sent_to_all, 0
            assert bool(sent) == (gathered > 1), (name, sent)
            if fewest:
                assert overlapping == 1, (name, overlapping)
            if name == "tall" and gathered == 1:
                assert finding == 2 - (most < SEVERAL), finding
            if name == "cells in space" and most < SEVERAL:
                assert finding == 0, finding
            for block, whole in zip(blocks, expected, strict=True):
                assert np.array_equal(block, whole[places]), name
            assert found == norms, name
        if ranks.rank == 0:
            print("compared", name, flush=True)
    cycle_legs.FEWEST_POINTS = {2: 0, 3: 0}
    for name, overrides in chosen(FLOWS, what).items():
        case = load(name.split(",")[0], overrides)
        expected, _ = marched(case, NumpyBackend(), Ranks())
        for gathered, most in ((1, SEVERAL), (1, FEW), (1 << 20, SEVERAL)):
            partition.GATHERED_ON_DEVICES, overlap.MOST_ELEMENTS = gathered, most
            backend = Emulated() if gathered == 1 else Linked()
            blocks, places = marched(case, backend, ranks)
            assert backend.launched > 50, backend.launched
            sent, Spreading.sent_to_all = Spreading.sent_to_all, 0
            assert bool(sent) == (gathered > 1), (name, sent)
            for field, block in blocks.items():
                assert np.array_equal(block, expected[field][places]), (name, field)
        if ranks.rank == 0:
            print("compared", name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
