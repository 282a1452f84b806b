"""Fused sweeps and cycle legs of GPUs, to the bit: on GPUs, and emulated without one."""

import shutil
from functools import cache

import numpy as np
import pytest
from emulated import Ahead, Emulated
from test_multigrid import noisy_system
from test_solvers import case_text

from heatsolve.backends import SweepSequence
from heatsolve.backends.gpu import backend as gpu_backend
from heatsolve.backends.gpu import cycle_legs, fused_sweeps, small_legs
from heatsolve.backends.gpu.fused_sweeps import (
    DEPTHS,
    cut_extent,
    planes_of_leg,
    planes_of_piece,
)
from heatsolve.backends.gpu.launch import MOST_BLOCKS
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.backends.registry import make
from heatsolve.budget import budget_of
from heatsolve.case.load import parse
from heatsolve.linear.iterate import iterate
from heatsolve.linear.krylov import MultigridCG
from heatsolve.linear.multigrid import hierarchy
from heatsolve.linear.multigrid.cycle import Multigrid
from heatsolve.linear.multigrid.levels import FusedLevel
from heatsolve.linear.stopping import Criterion, kind_of
from heatsolve.linear.system import with_change
from heatsolve.models.base import make_model
from heatsolve.models.flow import equations as flow
from heatsolve.models.heat import equations as heat
from heatsolve.models.heat.conduction import Conduction
from heatsolve.models.heat.solver import make_method
from heatsolve.report import Report
from heatsolve.stencil.language import ONE, ZERO, fill, shifted
from heatsolve.tools.measure import noise_inside

COMPILER = pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler, g++")
MACHINES = [
    pytest.param("early", marks=COMPILER),
    pytest.param("late", marks=COMPILER),
    pytest.param("cupy", marks=pytest.mark.gpu),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
"""Emulated with copies that arrive early, or late; and the real ones."""


def machine(name, precision="float64"):
    if name in ("early", "late"):
        return Emulated(precision, late=name == "late")
    return make(name, precision)


def mean_of_nine(i, j, u, weights):
    """All neighbours, the diagonal ones too, weighted from row to row."""
    near = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]
    far = (u[i - 1, j - 1] + u[i + 1, j + 1]) + (u[i - 1, j + 1] + u[i + 1, j - 1])
    return 0.2 * near + weights[i, j] * far + 0.1 * u[i, j]


def jacobi(at, u, b, weight, m, s, *faces):
    residual = heat.residual(at, u, b, m, s, *faces)
    return u[at] + weight * residual / heat.diagonal(at, m, s, *faces)


def mean_of_six(i, j, k, u, sixth):
    near = u[i - 1, j, k] + u[i + 1, j, k] + u[i, j - 1, k] + u[i, j + 1, k]
    return sixth * (near + u[i, j, k - 1] + u[i, j, k + 1])


def heat_arguments(shape, rng, varies):
    """What `jacobi` takes after u, with conductances that vary along their own axis, or all."""
    faces = []
    for axis in reversed(range(len(shape))):
        line = [n if varies or a == axis else 1 for a, n in enumerate(shape)]
        faces += [rng.random(line) + 0.5, np.ones([1] * len(shape))]
    return [rng.standard_normal(shape), 0.9, np.ones([1] * len(shape)), 0.3, *faces]


def explicit_arguments(shape, rng):
    """What `explicit_step` takes after T; only the conductance along x varies, along x."""
    uniform, line = [1] * len(shape), [*[1] * (len(shape) - 1), shape[-1]]
    faces = [rng.random(line) + 0.5, ONE]
    for _ in shape[1:]:
        faces += [rng.random(uniform) + 0.5, ONE]
    return [ZERO, 0.1 * rng.random(uniform), *faces]


def mirrored_arguments(shape, rng):
    """What `pressure_sweep` takes after p, with walls at all sides that copy what is inside."""
    lines = [np.zeros((shape[0], 1)) for _ in range(2)] + [np.zeros((1, shape[1])) for _ in "lr"]
    for line, beside in zip(lines, (1, -2, 1, -2), strict=True):
        line.reshape(-1)[beside] = 1.0
    return [rng.standard_normal(shape), 0.2, 0.3, *lines]


CASES = {
    "mean of nine": (mean_of_nine, lambda shape, rng: [rng.random((shape[0], 1))], (41, 131), 7),
    "laplace": (heat.laplace, lambda shape, rng: [rng.standard_normal(shape), 0.1], (70, 90), 7),
    "heat": (jacobi, lambda shape, rng: heat_arguments(shape, rng, False), (45, 130), 3),
    "heat, varying": (jacobi, lambda shape, rng: heat_arguments(shape, rng, True), (33, 71), 3),
    "tiny": (heat.four_point_mean, lambda shape, rng: [0.0, 0.0], (4, 5), 5),
    "mirrored at walls": (
        flow.pressure_sweep,
        lambda shape, rng: mirrored_arguments(shape, rng),
        (200, 131),
        5,
    ),
    "explicit heat": (heat.explicit_step, explicit_arguments, (40, 400), 7),
    "explicit heat 3D": (heat.explicit_step, explicit_arguments, (17, 80, 130), 3),
    "mean of six": (mean_of_six, lambda shape, rng: [1.0 / 6.0], (19, 53, 70), 3),
}
WALLS = {"walls": (), "periodic": (0,), "torus": (0, 1)}


def wrap(backend, u, wraps):
    """The images of both ends, one axis after the other."""
    for axis, periodic in enumerate(wraps):
        n = u.shape[axis] - 2
        for ghost, distance in ((0, n), (n + 1, -n)) if periodic else ():
            region = [(0, extent) for extent in u.shape]
            region[axis] = (ghost, ghost + 1)
            distances = [distance if a == axis else 0 for a in range(len(u.shape))]
            backend.sweep(shifted, u, tuple(region), u, *distances)


@pytest.mark.few(16)
@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("walls", WALLS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_fused_sweeps_have_the_bits_of_single_sweeps(precision, case, walls, name):
    point, arguments, shape, sweeps = CASES[case]
    if precision == "float32" and (walls == "walls" or name == "late"):
        pytest.skip("other combinations tell as much")
    rng = np.random.default_rng(1)
    backend = machine(name, precision)
    given = [
        backend.to_device(a) if isinstance(a, np.ndarray) else a for a in arguments(shape, rng)
    ]
    stages = [list(given) for _ in range(sweeps)]
    for number, stage in enumerate(stages):
        if point is jacobi:
            stage[1] = 0.5 + 0.1 * number
    wraps = tuple(axis in WALLS[walls] for axis in range(len(shape)))
    region = tuple((1, extent - 1) for extent in shape)
    counted = tuple((2, extent - 1) for extent in shape)
    u = backend.to_device(rng.standard_normal(shape))
    wrap(backend, u, wraps)
    old, new, got = (backend.to_device(backend.to_host(u)) for _ in range(3))
    kinds = ["max", None, *["max"] * (sweeps - 3), "sum"]
    changes = [kind and backend.accumulator(kind) for kind in kinds]
    sequence = SweepSequence(point, u, region, stages, wraps, changes)
    assert backend.most_fused(sequence) == sweeps
    backend.fused_sweeps(sequence, got, counted)
    for kind, change, stage in zip(kinds, changes, stages, strict=True):
        wrap(backend, old, wraps)
        if kind is not None:
            expected = backend.accumulator(kind)
            backend.sweep(with_change(point, kind), (new, expected), counted, old, *stage)
            assert change.value == expected.value
        backend.sweep(point, new, region, old, *stage)
        old, new = new, old
    inside = tuple(slice(*pair) for pair in region)
    assert backend.to_host(got)[inside].tobytes() == backend.to_host(old)[inside].tobytes()


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("walls", WALLS)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_wide_strips_have_the_bits_of_single_sweeps(precision, walls, name, monkeypatch):
    """They are made to be the faster ones; a small field has narrow strips."""
    faster = {(4, 8): (0.1, 0.0), (4, 4): (0.1, 0.0)}
    monkeypatch.setattr(fused_sweeps, "ROW_TIMES", fused_sweeps.ROW_TIMES | faster)
    chosen = []
    fastest = gpu_backend.shape_for
    monkeypatch.setattr(gpu_backend, "shape_for", lambda *args: noted(chosen, fastest(*args)))
    test_fused_sweeps_have_the_bits_of_single_sweeps(precision, "explicit heat", walls, name)
    assert {shape.columns for shape in chosen} == {4}


def noted(results, result):
    results.append(result)
    return result


@COMPILER
def test_a_sum_ends_a_pass():
    """An exact sum costs as much as many sweeps."""
    backend = Emulated()
    u, region = np.zeros((20, 20)), ((1, 19),) * 2
    changes = [None, None, backend.accumulator("sum"), None, None]
    given = (heat.four_point_mean, u, region, [(0.0, 0.0)] * 5, (False, False), changes)
    assert backend.most_fused(SweepSequence(*given)) == 3
    assert max(DEPTHS[2]) == 7


FEWEST_POINTS = cycle_legs.FEWEST_POINTS


@pytest.fixture(autouse=True)
def fused_on_small_grids(monkeypatch):
    monkeypatch.setattr(cycle_legs, "FEWEST_POINTS", {2: 0, 3: 0})
    monkeypatch.setattr(hierarchy, "MOST", 9)  # small grids have many levels


# ---- multigrid ---------------------------------------------------------------------------------

GRIDS = {
    "nodes": ("nodes = [131, 98]", "gvrv", ""),
    "even rows": ("nodes = [98, 66]", "vvvv", ""),
    "cells": ("cells = [97, 65]", "rgvg", "smoother = 'chebyshev'"),
    "periodic": ("nodes = [67, 98]\nperiodic = ['y']", "vg--", ""),
    "odd torus": ("nodes = [99, 67]\nperiodic = ['x', 'y']", "----", ""),
    "stretched": ("nodes = [150, 41]\nupper = [3, 1]", "vgvv", "cycle = 'W'"),
    # Its second level is uneven two layers deep, where a strip ends at the right wall.
    "uneven": ("cells = [229, 97]\nupper = [229, 97]", "rgvg", ""),
    "three sweeps": ("cells = [66, 40]", "vvgv", "sweeps = 3"),
}


BOTH = ("multigrid", "mgcg")


def two_steps(
    backend, grid, walls, solver, method, model="", before=lambda iteration: None
):  # fmt: skip
    """The field after two iterations from zero, white noise on the right side, and the method."""
    text = case_text(grid, walls, solver=f"method = '{method}'\n{solver}", model=model)
    case = parse(text, "case")
    problem = Conduction(case, backend)
    system = problem.system(backend.to_device(noise_inside(problem.grid.shape)))
    if system.singular:
        system.remove_mean(system.b)
    iteration = make_method(case, system, problem.temperature)
    before(iteration)
    for number in range(2):
        iteration.step(number, None)
    return backend.to_host(iteration.solution(2))


@cache
def two_plain_steps(*given):
    """Those of single sweeps, once for all machines."""
    return two_steps(NumpyBackend(), *given)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("method", BOTH)
@pytest.mark.parametrize("grid", GRIDS)
def test_cycle_legs_have_the_bits_of_single_sweeps(grid, method, name):
    backend = machine(name)
    expected = two_plain_steps(*GRIDS[grid], method)
    got = two_steps(backend, *GRIDS[grid], method)
    assert not isinstance(backend, Emulated) or backend.launched > 10
    inside = INSIDE[: got.ndim]
    assert got[inside].tobytes() == expected[inside].tobytes()


INSIDE = (slice(1, -1),) * 3
"""Of an array; only single sweeps need ghosts of a periodic axis."""


ROOMY = {
    "2D": ("nodes = [98, 131]\nupper = [97, 130]", "gvrv", "", "multigrid"),
    "ring": ("nodes = [98, 66]\nupper = [97, 66]\nperiodic = ['y']", "vg--", "", "multigrid"),
    "varying": (
        "nodes = [98, 66]\nupper = [97, 65]", "vvvv", "", "multigrid", "conductivity = '1 + x * y'"
    ),
    "nested": ("nodes = [98, 66]\nupper = [97, 65]", "gvrv", "cycle = 'FMG'", "multigrid"),
    "nested, insulated": (  # means of b take what lies beyond its ghosts, times 0
        "nodes = [98, 67]\nupper = [97, 66]", "vgvg", "cycle = 'FMG'", "multigrid"
    ),
    "3D": ("nodes = [36, 28, 27]\nupper = [35, 27, 26]", "vgvrvv", "", "multigrid"),
    "3D, nested": (
        "nodes = [36, 28, 27]\nupper = [35, 27, 26]", "vgvrvv", "cycle = 'FMG'", "multigrid"
    ),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("grid", ROOMY)
def test_nothing_depends_on_the_room_in_rows(grid, name):
    """Rows of an odd length have room for one element more on coarse levels."""
    expected = two_plain_steps(*ROOMY[grid])
    backend, rooms, sources, nested = machine(name), [], [], "nested" in grid

    def fill_room(iteration):
        for level in iteration._levels[1:]:
            *slower, last = level.system.grid.shape
            rooms.append(level.u.shape[-1] - last)
            sources.append((level.system.b, last))
            for array in (level.u, level.other, *([] if nested else [level.system.b])):
                region = (*[(0, extent) for extent in slower], (last, array.shape[-1]))
                backend.sweep(fill, array, region, np.nan)

    got = two_steps(backend, *ROOMY[grid], before=fill_room)
    assert set(rooms) == {0, 1}
    if nested:
        assert not any(np.any(backend.to_host(b)[..., last:]) for b, last in sources)
    assert got[INSIDE[: got.ndim]].tobytes() == expected[INSIDE[: got.ndim]].tobytes()


class Counting(Emulated):
    """Adds up the bytes of its arrays."""

    name = "cupy"
    made = 0

    def zeros(self, shape):
        array = super().zeros(shape)
        Counting.made += array.nbytes
        return array

    def to_device(self, host):
        array = super().to_device(host)
        Counting.made += array.nbytes
        return array

    def c_kernel(self, source, bytes_shared):
        return lambda launch, operands: None  # nothing is computed: g++ would take a minute


@pytest.mark.parametrize(
    "solver", ["", "method = 'multigrid'\ncycle = 'FMG'", "precision = 'mixed'", "method = 'mgcg'"]
)
@pytest.mark.parametrize(
    ("grid", "walls"),
    [
        ("nodes = [259, 258]\nupper = [258, 257]", "vvvv"),
        ("cells = [256, 258]\nupper = [256, 258]", "vgvg"),
        ("nodes = [51, 50, 52]\nupper = [50, 49, 51]", "vvvvvv"),
        ("cells = [50, 50, 52]\nupper = [50, 50, 52]", "vgvgvg"),
    ],
)
def test_the_memory_of_multigrid_is_known_before(grid, walls, solver, monkeypatch):
    """Cycle legs write no residual, so the arrays for it are not made."""
    monkeypatch.setattr(cycle_legs, "FEWEST_POINTS", {2: 0, 3: 0})
    text = case_text(grid, walls, "x", solver)
    case = parse(text, "case")
    needed = budget_of(case, Counting(case.solver.field_precision)).arrays
    monkeypatch.setattr(Counting, "made", 0)
    problem = Conduction(case, Counting(case.solver.field_precision))
    system = problem.system(problem.backend.to_device(problem.source(0.0)))
    iteration = make_method(case, system, problem.temperature)
    iteration.step(0, None)
    assert 0.9 < needed / Counting.made < 1.02


LOOKED_AT = {
    "nodes": ("nodes = [131, 98]", "gvrv", "norm = 'l2'"),
    "even rows, largest": ("nodes = [98, 66]\nupper = [97, 65]", "vvvv", "norm = 'max'"),
    "cells": ("cells = [97, 65]\nupper = [97, 65]", "rgvg", "smoother = 'chebyshev'"),
    "periodic": ("nodes = [67, 98]\nupper = [66, 98]\nperiodic = ['y']", "vg--", "cycle = 'FMG'"),
    "odd torus": (
        "nodes = [99, 67]\nupper = [99, 67]\nperiodic = ['x', 'y']", "----", "norm = 'max'"
    ),
    "3D": ("nodes = [33, 31, 20]\nupper = [32, 30, 19]", "vgvrvv", "norm = 'l2'"),
    "3D, largest": ("cells = [19, 20, 21]", "rgvvgr", "norm = 'max'\ncycle = 'W'"),
    "3D torus": ("nodes = [24, 24, 24]\nperiodic = ['x', 'y', 'z']", "------", ""),
}  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("fewest", [{2: 0, 3: 0}, FEWEST_POINTS])
@pytest.mark.parametrize("grid", LOOKED_AT)
def test_norms_that_cycles_find_on_their_way(grid, fewest, name, monkeypatch):
    """Every check of a run is that of the residual, whoever computes it."""
    monkeypatch.setattr(cycle_legs, "FEWEST_POINTS", fewest)
    without = fewest is FEWEST_POINTS and grid in ("cells", "odd torus")  # no small legs

    def history(backend):
        given, walls, solver = LOOKED_AT[grid]
        solver += "\nmethod = 'multigrid'\nmonitor = 'residual'\nmax_iterations = 3"
        case = parse(case_text(given, walls, solver=solver), "case")
        problem = Conduction(case, backend)
        system = problem.system(backend.to_device(noise_inside(problem.grid.shape)))
        iteration = make_method(case, system, problem.temperature)
        looks = iteration.accumulator(kind_of(case.solver.norm))
        assert (looks is iteration.accumulator(kind_of(case.solver.norm))) == (
            backend.name != "numpy" and not without
        )
        criterion = Criterion(case.solver, system, problem.temperature)
        return iterate(iteration, criterion, Report(quiet=True, mute=True)).history

    assert len(history(NumpyBackend())["residual"]) == 4
    assert history(machine(name)) == history(NumpyBackend())


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_the_first_change_of_full_multigrid_is_that_of_the_given_start(kind):
    """Though it makes another start, where the given one stands if arrays take turns."""

    def changes(backend):
        problem = Conduction(parse(case_text("nodes = [66, 64]", "vvvv"), "case"), backend)
        system = problem.system(backend.to_device(noise_inside(problem.grid.shape)))
        iteration, found = Multigrid(system, problem.temperature, "FMG"), []
        for number in range(3):
            change = backend.accumulator(kind)
            iteration.step(number, change)
            found.append(change.value)
        return found, iteration._swaps

    expected, plain = changes(NumpyBackend())
    got, swaps = changes(Emulated())
    assert swaps and not plain
    assert got == expected


SPACES = {
    "nodes": ("nodes = [33, 33, 33]", "vvvvvv", "", "multigrid"),
    "with a tile inside": (
        "nodes = [132, 66, 33]\nupper = [4, 2, 1]", "vgvrvv", "", "multigrid",
    ),
    "odd, insulated": ("nodes = [30, 29, 31]", "vgrggg", "cycle = 'W'", "multigrid"),
    "cells": ("cells = [19, 20, 21]", "rgvvgr", "", "mgcg"),
    "periodic": ("cells = [26, 24, 25]\nperiodic = ['x', 'y']", "----vg", "", "mgcg"),
    "torus": ("nodes = [24, 24, 24]\nperiodic = ['x', 'y', 'z']", "------", "", "multigrid"),
    "small": ("cells = [4, 3, 5]\nupper = [4, 3, 5]", "vvgrvv", "", "multigrid"),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize(
    "grid",
    [pytest.param(g, marks=pytest.mark.slow if g == "with a tile inside" else ()) for g in SPACES],
)
def test_cycle_legs_in_3d_have_the_bits_of_single_sweeps(grid, name):
    backend = machine(name)
    expected = two_plain_steps(*SPACES[grid])
    got = two_steps(backend, *SPACES[grid])
    assert not isinstance(backend, Emulated) or backend.launched >= 6
    assert got[INSIDE].tobytes() == expected[INSIDE].tobytes()


IN_SMALL_LEGS = {
    **{f"{grid}, {method}": (*GRIDS[grid], method) for grid in GRIDS for method in BOTH},
    **SPACES,
    "FMG": ("nodes = [36, 28, 27]", "vgvrvv", "cycle = 'FMG'", "multigrid"),
    "FMG in 2D": ("nodes = [67, 98]\nperiodic = ['y']", "vg--", "cycle = 'FMG'", "multigrid"),
    "single precision": ("nodes = [66, 131]", "gvrv", "precision = 'float32'", "multigrid"),
}


@pytest.mark.few(6)
@pytest.mark.parametrize("name", [MACHINES[0], *MACHINES[2:]])  # there are no copies to be late
@pytest.mark.parametrize("rounds", [0, 1000])
@pytest.mark.parametrize("grid", IN_SMALL_LEGS)
def test_small_legs_have_the_bits_of_single_sweeps(grid, rounds, name, monkeypatch):
    """With the largest tiles and with the smallest ones."""
    monkeypatch.setattr(cycle_legs, "FEWEST_POINTS", FEWEST_POINTS)
    monkeypatch.setattr(small_legs, "ROUNDS", rounds)
    given = IN_SMALL_LEGS[grid]
    precision = "float32" if "float32" in given[2] else "float64"
    expected = two_steps(NumpyBackend(precision), *given)
    backend = machine(name, precision)
    got = two_steps(backend, *given)
    inside = INSIDE[: got.ndim]
    assert got[inside].tobytes() == expected[inside].tobytes()
    without = grid.startswith(("cells, ", "odd torus, "))  # weighted Jacobi; colours that meet
    assert not isinstance(backend, Emulated) or without or backend.launched >= 4


def test_small_legs_need_two_colours():
    given = "cells = [97, 65]", "rgvg", "smoother = 'chebyshev'", "multigrid"
    emulated = Emulated()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cycle_legs, "FEWEST_POINTS", FEWEST_POINTS)
        assert two_steps(emulated, *given).tobytes() == two_plain_steps(*given).tobytes()
    assert emulated.launched == 0


@pytest.mark.few(2)
@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("fewest", [{2: 0, 3: 0}, FEWEST_POINTS])
@pytest.mark.parametrize("solver", ["method = 'multigrid'", "method = 'multigrid'\ncycle = 'FMG'"])
def test_a_source_that_is_the_same_everywhere(solver, fewest, name, monkeypatch):
    """Legs of large grids in 3D want an array of it."""
    monkeypatch.setattr(cycle_legs, "FEWEST_POINTS", fewest)

    def solved(backend):
        case = parse(case_text("nodes = [21, 20, 22]", "vgvrvv", "1.5", solver), "case")
        problem = Conduction(case, backend)
        system = problem.system(backend.to_device(problem.source(0.0)))
        iteration, norm = make_method(case, system, problem.temperature), system.residual_norm
        for number in range(2):
            iteration.step(number, None)
        left = backend.accumulator("sum")
        norm(iteration.solution(2), left)
        return (
            problem.own(iteration.solution(2)),
            left.value,
            isinstance(iteration._levels[0], FusedLevel),
        )

    field, left, none = solved(NumpyBackend())
    got, found, passes = solved(machine(name))
    assert passes and not none
    assert found == left
    assert got.tobytes() == field.tobytes()


AHEAD = [
    "monitor = 'residual'\ntolerance = 1e-6\nrelative = true",
    "monitor = 'residual'\ntolerance = 1e-6\ncheck_every = 3",
    "monitor = 'residual'\ntolerance = 1e-30\nnorm = 'max'\ncycle = 'W'",
    "monitor = 'update'\ntolerance = 1e-6",
    "iterations = 5",
]


@pytest.mark.few(1)
@COMPILER
@pytest.mark.parametrize("early", [1.0, 1e3, 1e12])
@pytest.mark.parametrize("solver", AHEAD)
def test_arrays_that_swap(solver, early):
    """Cycles that leave their result in the other array, and are begun by the one before."""

    def solution(backend):
        text = case_text("cells = [12, 13, 14]", "vgrvvg", solver=f"method = 'multigrid'\n{solver}")
        case = parse(text, "case")
        problem = Conduction(case, backend)
        system = problem.system(backend.to_device(noise_inside(problem.grid.shape)))
        iteration = make_method(case, system, problem.temperature)
        criterion = Criterion(case.solver, system, problem.temperature)
        outcome = iterate(iteration, criterion, Report(quiet=True, mute=True))
        return outcome, np.array(problem.temperature[INSIDE]), iteration

    expected, plain, _ = solution(NumpyBackend())
    backend = Ahead()
    backend.early = early
    got, field, iteration = solution(backend)
    assert iteration.solution(1) is not iteration.solution(2)
    assert (got.count, got.ending, got.history) == (
        expected.count, expected.ending, expected.history
    )  # fmt: skip
    assert field.tobytes() == plain.tobytes()


@pytest.mark.few(1)
@COMPILER
@pytest.mark.parametrize(
    ("grid", "walls"), [("cells = [48, 50]", "vgrv"), ("cells = [24, 26, 28]", "vgrvvg")]
)
def test_a_device_begins_a_cycle_while_its_host_waits(grid, walls, monkeypatch):
    """The first half of the first cycle leaves a start as it was: at a solution none follows."""
    monkeypatch.setattr(cycle_legs, "FEWEST_POINTS", {2: 0, 3: 0})
    begun, ended, solve_next, end = [], [], FusedLevel.solve_next, Multigrid._end_first

    def counted(self, *args):
        begun.append(self)
        solve_next(self, *args)

    def ending(self, *args):
        ended.append(self)
        end(self, *args)

    monkeypatch.setattr(FusedLevel, "solve_next", counted)
    monkeypatch.setattr(Multigrid, "_end_first", ending)
    told = []
    for backend in (NumpyBackend(), Ahead()):
        text = case_text(grid, walls, solver="method = 'multigrid'\nrelative = true")
        problem = make_model(parse(text, "case"), backend)
        system, field = problem.steady_system(), problem.temperature
        method = make_method(problem.case, system, field)
        for exact in (False, True):
            tolerance = {"tolerance": 1e-30} if exact else {}
            options = problem.case.altered(solver=tolerance).solver
            method.restart()
            criterion = Criterion(options, system, method.u)
            outcome = iterate(method, criterion, Report(quiet=True, mute=True))
            told += [outcome.count, outcome.ending, outcome.norm, outcome.history]
            told.append(np.array(method.u).tobytes())
        finest = method._levels[0]
    half = len(told) // 2
    assert told[half:] == told[:half]
    assert len(ended) == 2 and begun.count(finest) == told[0] + told[5]
    start, at_solution = np.array(method.u), Criterion(problem.case.solver, system, method.u)
    at_solution._scale = 1e30
    method.restart()
    assert iterate(method, at_solution, Report(quiet=True, mute=True)).count == 0
    assert np.array(method.u).tobytes() == start.tobytes()
    assert len(ended) == 2 and begun.count(finest) == told[0] + told[5] + 1


WIDE = {
    "fours": ("nodes = [35, 20, 19]\nupper = [34, 19, 18]", "vgvrvv", "", "multigrid"),
    "pairs": ("nodes = [33, 20, 19]\nupper = [32, 19, 18]", "vgvrvv", "", "multigrid"),
    "odd": ("nodes = [36, 20, 19]\nupper = [35, 19, 18]", "vgvrvv", "", "multigrid"),
    "periodic": ("cells = [30, 24, 25]\nperiodic = ['x', 'y']", "----vg", "", "mgcg"),
    "tiles": ("cells = [262, 20, 19]\nupper = [262, 20, 19]", "vgvrvv", "", "multigrid"),
}


@pytest.mark.thorough
@COMPILER
@pytest.mark.parametrize("grid", WIDE)
def test_cycle_legs_in_single_precision(grid):
    """Threads of four columns, where rows begin at multiples of that, or of two."""
    expected = two_steps(NumpyBackend("float32"), *WIDE[grid])
    backend = Emulated("float32")
    assert two_steps(backend, *WIDE[grid])[INSIDE].tobytes() == expected[INSIDE].tobytes()
    assert backend.launched >= 6


@pytest.mark.thorough
@COMPILER
@pytest.mark.parametrize(
    ("grid", "walls", "precision"),
    [
        ("cells = [135, 41, 30]", "vgrvvv", "float64"),
        ("cells = [135, 41, 30]\nperiodic = ['z']", "vgrv--", "float64"),
        ("nodes = [139, 41, 32]", "vgrvvv", "float64"),
        ("cells = [262, 41, 20]", "vgrvvv", "float32"),
    ],
)
def test_tiles_inside(grid, walls, precision, monkeypatch):
    """Small blocks and short pieces, so that some touch no wall, on two levels."""
    monkeypatch.setattr(cycle_legs, "SHAPES_3D", [cycle_legs.Shape(warps=10)])
    for module in (fused_sweeps, cycle_legs):
        monkeypatch.setattr(module, "planes_of_leg", lambda *_: (6, 1.0))
    upper = grid.split("\n")[0].replace("cells", "upper").replace("nodes", "upper")
    given = f"{grid}\n{upper}", walls, "", "multigrid"
    expected, backend = two_steps(NumpyBackend(precision), *given), Emulated(precision)
    assert two_steps(backend, *given)[INSIDE].tobytes() == expected[INSIDE].tobytes()
    assert backend.launched >= 6


@COMPILER
@pytest.mark.parametrize("sweeps", [4, 8])
def test_too_many_sweeps_for_a_pass(sweeps):
    for grid, walls in (("cells = [12, 13, 14]", "vvvvvv"), ("nodes = [40, 30]", "vvgv")):
        given, emulated = (grid, walls, f"sweeps = {sweeps}", "multigrid"), Emulated()
        assert two_steps(emulated, *given).tobytes() == two_steps(NumpyBackend(), *given).tobytes()
        assert emulated.launched == 0


@pytest.mark.thorough
@COMPILER
def test_no_sweeps_in_place_where_neighbours_have_one_colour():
    given = "nodes = [16, 16, 15]\nperiodic = ['x', 'y', 'z']\nupper = [16, 16, 15]"
    expected = two_steps(NumpyBackend(), given, "------", "", "multigrid")
    got = two_steps(Emulated(), given, "------", "", "multigrid")
    assert got[INSIDE].tobytes() == expected[INSIDE].tobytes()
    emulated = Emulated()
    given = "cells = [8, 8, 8]", "vvvvvv", "smoother = 'chebyshev'", "multigrid"
    expected = two_steps(NumpyBackend(), *given)
    assert two_steps(emulated, *given).tobytes() == expected.tobytes()
    assert emulated.launched == 0


# ---- a field that stays on the chip --------------------------------------------------------------

SMALL = {
    "mean of nine": (mean_of_nine, lambda shape, rng: [rng.random((shape[0], 1))], (41, 63)),
    "laplace": (heat.laplace, lambda shape, rng: [rng.standard_normal(shape), 0.1], (70, 90)),
    "heat": (jacobi, lambda shape, rng: heat_arguments(shape, rng, False), (45, 50)),
    "heat, varying": (jacobi, lambda shape, rng: heat_arguments(shape, rng, True), (33, 71)),
    "tiny": (heat.four_point_mean, lambda shape, rng: [0.0, 0.0], (4, 5)),
    "mean of six": (mean_of_six, lambda shape, rng: [1.0 / 6.0], (11, 13, 20)),
    "heat in 3D": (jacobi, lambda shape, rng: heat_arguments(shape, rng, True), (19, 9, 12)),
}
NORMS_OF_SWEEPS = {
    "none": lambda kinds: [None] * len(kinds),
    "last": lambda kinds: [*[None] * (len(kinds) - 1), kinds[-1]],
    "all": lambda kinds: kinds,
}
HOSTED = [pytest.param("early", marks=COMPILER), *MACHINES[2:]]


@pytest.mark.few(24)
@pytest.mark.parametrize("name", HOSTED)
@pytest.mark.parametrize("kind", ["sum", "max"])
@pytest.mark.parametrize("norms", NORMS_OF_SWEEPS)
@pytest.mark.parametrize("walls", WALLS)
@pytest.mark.parametrize("case", SMALL)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_resident_sweeps_have_the_bits_of_single_sweeps(precision, case, walls, norms, kind, name):
    point, arguments, shape = SMALL[case]
    rng = np.random.default_rng(2)
    backend = machine(name, precision)
    if backend.limits.cluster == 0:
        pytest.skip("clusters come with compute capability 9.0")
    count = 11
    args = [backend.to_device(a) if isinstance(a, np.ndarray) else a for a in arguments(shape, rng)]
    wraps = tuple(axis in WALLS[walls] for axis in range(len(shape)))
    region = tuple(
        (1, n - 1) if wraps[axis] else (1 + axis % 2, n - 2 + axis % 2)
        for axis, n in enumerate(shape)
    )
    counted = tuple((low + 1, high) for low, high in region)
    u = backend.to_device(rng.standard_normal(shape))
    wrap(backend, u, wraps)
    old, new, got = (backend.to_device(backend.to_host(u)) for _ in range(3))
    changes = NORMS_OF_SWEEPS[norms](backend.accumulators(kind, count))
    sequence = SweepSequence(point, u, region, [args] * count, wraps, changes)
    assert backend.most_fused(sequence) == count
    backend.fused_sweeps(sequence, got, counted)
    for change in changes:
        wrap(backend, old, wraps)
        if change is not None:
            expected = backend.accumulator(kind)
            backend.sweep(with_change(point, kind), (new, expected), counted, old, *args)
            assert change.value == expected.value
        backend.sweep(point, new, region, old, *args)
        old, new = new, old
    inside = tuple(slice(*pair) for pair in region)
    assert backend.to_host(got)[inside].tobytes() == backend.to_host(old)[inside].tobytes()


@COMPILER
def test_resident_sweeps_refuse_what_does_not_fit():
    backend, u, region = Emulated(), np.zeros((20, 20)), ((1, 19),) * 2
    args = 0.0, 0.0
    given = region, [args] * 11, (False, False), [None] * 11
    sweeps = SweepSequence(heat.four_point_mean, u, *given)
    with pytest.raises(ValueError, match="does not write what it reads"):
        backend.fused_sweeps(sweeps, u, region)
    with pytest.raises(ValueError, match="does not fit an output"):
        backend.fused_sweeps(sweeps, np.zeros((20, 18)), region)


@pytest.mark.parametrize("name", MACHINES[2:])
@pytest.mark.parametrize("kind", ["sum", "max"])
@pytest.mark.parametrize("closing", [0, 17, 38, None])
def test_a_gate_closes_within_resident_sweeps(closing, kind, name):
    """The ledger ends with the check that meets the threshold; later work does nothing."""
    host, backend, count, region = NumpyBackend(), machine(name), 39, ((1, 19), (1, 29))
    args = 0.0, 0.0
    u = np.random.default_rng(5).standard_normal((20, 30))
    pair, values = [u.copy(), u.copy()], []
    for n in range(count):
        change, old, new = host.accumulator(kind), pair[n % 2], pair[1 - n % 2]
        point = with_change(heat.four_point_mean, kind)
        host.sweep(point, (new, change), region, old, *args)
        values.append(change.take())
    assert values == sorted(values, reverse=True)
    first, second = backend.to_device(u), backend.to_device(u)
    series = backend.accumulators(kind, count)
    backend.open_gate()
    stages = [args] * count
    given = region, stages, (False, False), series
    backend.fused_sweeps(SweepSequence(heat.four_point_mean, first, *given), second, region)
    backend.check(series, -1.0 if closing is None else values[closing])
    backend.fused_sweeps(SweepSequence(heat.four_point_mean, second, *given), first, region)
    backend.check(series[:1], -1.0)
    found = backend.ledger()
    if closing is None:
        assert found[:count] == values and len(found) == count + 1
        assert backend.to_host(first).tobytes() != u.tobytes()
    else:
        assert found == values[: closing + 1]
        assert backend.to_host(first).tobytes() == u.tobytes()
    assert backend.to_host(second).tobytes() == pair[count % 2].tobytes()


@pytest.mark.parametrize("tiles", [1, 12, 135, 192, 4000])
@pytest.mark.parametrize("extent", [1, 2, 5, 64, 510, 5000])
def test_pieces_in_space(extent, tiles):
    """An even number of planes, no more than the field has; large fields keep all processors busy
    for a third longer than their own planes take, or less."""
    planes = planes_of_piece(extent, tiles, 6, 132)
    assert planes % 2 == 0 and 2 <= planes <= extent + extent % 2
    pieces = -(-extent // planes)
    assert pieces < MOST_BLOCKS
    if tiles >= 132 and extent >= 510:
        most = -(-pieces * tiles // 132)  # of one processor
        assert most * (planes + 6) < 1.35 * tiles * extent / 132


@pytest.mark.parametrize("tiles", [1, 12, 65, 192, 4000])
@pytest.mark.parametrize("extent", [1, 2, 5, 64, 256, 510])
def test_pieces_of_legs_in_space(extent, tiles):
    """The time is not less than that of all planes, shared by all processors."""
    planes, time = planes_of_leg(extent, tiles, 18, 132)
    assert planes % 2 == 0 and 2 <= planes <= max(4, extent + extent % 2)
    assert -(-extent // planes) < MOST_BLOCKS
    assert time > tiles * extent / 132 or tiles * extent < 132
    if tiles >= 132 and extent >= 256:
        assert time < 1.4 * tiles * extent / 132


@pytest.mark.parametrize("extent", [1, 2, 9, 40, 63, 513, 4097, 16382, 1 << 25])
def test_pieces_in_two_dimensions(extent):
    """They cover all rows, and are even, so that they begin at rows of one colour. The first piece,
    which may be shorter, has the fewest rows or more."""
    for across in (1, 19, 86):
        cut = cut_extent(extent, across, (14, 8), (1.6, 2.6, 3.6, 4.6), 132, (16, 9), 1.6)
        assert cut.rows % 2 == cut.fewer % 2 == 0 and 0 <= cut.fewer < cut.rows
        assert cut.rows - cut.fewer >= 16 or not cut.fewer
        whole = cut.pieces * cut.rows - cut.fewer
        assert whole - cut.rows < extent <= whole and cut.pieces < MOST_BLOCKS


@pytest.mark.parametrize("extent", [7, 25, 33, 63])
def test_a_piece_takes_a_single_row_that_is_left_over(extent):
    assert cut_extent(extent, 2000, (14, 8), (1.6, 2.6, 3.6, 4.6), 132, (16, 9), 1.6).pieces == 1


@pytest.mark.parametrize(
    ("nodes", "conductivity", "small"),
    [([52, 42], "1", False), ([52, 42], "1 + y", False), ([52, 42], "1 + x*y", True),
     ([110, 100], "1 + x*y", False), ([40, 30], "1", True)],
)  # fmt: skip
def test_legs_where_they_are_faster(nodes, conductivity, small, monkeypatch):
    """Coefficients that vary along both axes are loaded for each row: legs of large grids then need
    larger grids."""
    monkeypatch.setattr(cycle_legs, "FEWEST_POINTS", {2: 1000})
    system, u = noisy_system(f"nodes = {nodes}", "vvvv", conductivity, Emulated())
    finest = MultigridCG(system, u)._correction._levels[0]
    assert isinstance(finest, FusedLevel)
    assert finest._reads_other_ends is small  # as only small legs do
