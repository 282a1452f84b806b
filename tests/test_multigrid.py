"""Multigrid: few cycles whatever the size, the shape and the walls; the same bits everywhere."""

import math
import re

import numpy as np
import pytest
from emulated import read_other_ends
from many import Impatient
from test_solvers import PROBLEMS, TIGHT, case_text, solve

from heatsolve.backends import Backend
from heatsolve.backends.host import numba
from heatsolve.backends.host.time_tiling import Tiling
from heatsolve.backends.registry import make
from heatsolve.case.load import parse
from heatsolve.control.controller import Start
from heatsolve.errors import Interrupted
from heatsolve.linear.krylov import MultigridCG
from heatsolve.linear.multigrid import transfer
from heatsolve.linear.multigrid.cycle import Multigrid
from heatsolve.linear.multigrid.direct import MOST as MOST_OF_LAST_LEVEL
from heatsolve.linear.multigrid.hierarchy import hierarchy
from heatsolve.linear.multigrid.mixed import Refinement
from heatsolve.linear.multigrid.partition import Partition
from heatsolve.linear.multigrid.smoothers import smoother_of
from heatsolve.linear.multigrid.transfer_2d import Interpolation2D
from heatsolve.linear.multigrid.transfer_at_once import TransferAtOnce
from heatsolve.models.heat.conduction import Conduction
from heatsolve.models.heat.solver import make_method
from heatsolve.parallel.ranks import Ranks
from heatsolve.runner import run
from heatsolve.stencil.language import ONE
from heatsolve.tools.measure import noise_inside

METHODS = {"multigrid": Multigrid, "mgcg": MultigridCG}
MOST = 60


def noisy_system(grid, walls, conductivity="1", backend="numpy"):
    """A system with white noise on its right side, and a start of zero."""
    model = f'conductivity = "{conductivity}"'
    text = case_text(grid, walls.replace("v", "0"), model=model)
    text = re.sub(r"ambient = [\d.]+", "ambient = 0", text)
    problem = Conduction(
        parse(text, "case"), make(backend) if isinstance(backend, str) else backend
    )
    b = noise_inside(problem.grid.shape)
    system = problem.system(problem.backend.to_device(b))
    if system.singular:
        system.remove_mean(system.b)
    return system, problem.temperature


def residual(system, u):
    norm = system.backend.accumulator("sum")
    system.residual_norm(u, norm)
    return norm.value**0.5


def cycles(method, grid, walls, conductivity="1", options=(), backend="numpy"):
    """Cycles until l2(b - A u) is at most 1e-10 l2(b), or at rounding level."""
    system, u = noisy_system(grid, walls, conductivity, backend)
    first = residual(system, u)
    iteration = METHODS[method](system, u, *options)
    for number in range(MOST):
        iteration.step(number, None)
        floor = system.residual_floor(iteration.solution(number + 1), "sum")
        if residual(system, iteration.solution(number + 1)) <= max(1e-10 * first, floor):
            return number + 1
    return MOST + 1


@pytest.fixture(params=[MOST_OF_LAST_LEVEL, 9])
def last_level(request, monkeypatch):
    """Elements of the last level: as shipped, and so few that small grids have many levels."""
    monkeypatch.setattr("heatsolve.linear.multigrid.hierarchy.MOST", request.param)


# ---- how many cycles ---------------------------------------------------------------------------


@pytest.mark.few(10)
@pytest.mark.parametrize("walls", ["vvvv", "gvgr", "rrrr", "gggg", "vg--", "----"])
@pytest.mark.parametrize("size", [(64, 64), (129, 128), (97, 65), (98, 67), (63, 127)])
@pytest.mark.parametrize(("kind", "most"), [("nodes", 10), ("cells", 12)])
def test_cycles_in_2d(kind, most, size, walls):
    periodic = {"vg--": ["y"], "----": ["x", "y"]}.get(walls, [])
    grid = f"{kind} = {list(size)}\nperiodic = {periodic}"
    # Odd rings of cells, with a seam where the last cell of a level is short, take one more.
    odd_torus = kind == "cells" and walls == "----" and size == (98, 67)
    assert cycles("multigrid", grid, walls) <= most + odd_torus
    assert cycles("mgcg", grid, walls) <= most


@pytest.mark.few(2)
@pytest.mark.parametrize("walls", ["vvvvvv", "vgrgvr", "gggggg"])
@pytest.mark.parametrize(
    ("grid", "most", "of_one_sweep"),
    [
        ("nodes = [98, 67, 35]", 11, 15),
        ("cells = [97, 65, 33]", 13, 15),
        ("cells = [32, 32, 32]", 13, 13),
        ("nodes = [33, 33, 33]", 11, 12),
    ],
)
def test_cycles_in_3d(grid, most, of_one_sweep, walls):
    """Of two sweeps on each side, or of one, as multigrid has by default."""
    assert cycles("multigrid", grid, walls, options=("V", "red-black", 2)) <= most
    assert cycles("multigrid", grid, walls) <= of_one_sweep
    assert cycles("mgcg", grid, walls) <= most


@pytest.mark.few(1)
@pytest.mark.parametrize("grid", ["nodes = [1000, 777]", "cells = [1000, 777]"])
def test_cycles_of_an_awkward_size(grid):
    assert cycles("multigrid", grid, "gvrv") <= (10 if "nodes" in grid else 12)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["nodes", "cells"])
def test_cycles_do_not_depend_on_the_size(kind):
    most = {"nodes": 6, "cells": 8}[kind]
    for n in (64, 128, 256, 512, 4096):
        assert cycles("multigrid", f"{kind} = [{n}, {n}]", "vvvv", backend="numba") == most


@pytest.mark.few(8)
@pytest.mark.parametrize("walls", ["vvvv", "gvrv", "gggv"])
@pytest.mark.parametrize("aspect", [2, 10, 100, 1000])
@pytest.mark.parametrize(("kind", "most"), [("nodes", 10), ("cells", 12)])
def test_cycles_of_stretched_grids(kind, most, aspect, walls):
    for upper in ([aspect, 1], [1, aspect]):
        grid = f"{kind} = [100, 77]\nupper = {upper}"
        assert cycles("multigrid", grid, walls) <= most
        assert cycles("mgcg", grid, walls) <= most


@pytest.mark.parametrize("walls", ["vv", "vg", "rv", "gg"])
@pytest.mark.parametrize("grid", ["nodes = [1000]", "cells = [1000]", "cells = [77]"])
def test_cycles_in_1d(grid, walls):
    assert cycles("multigrid", grid, walls) <= 10


JUMPS = {
    "inclusion": ("where((x-0.5)**2 + (y-0.4)**2 < 0.06, 1e4, 1)", 16),
    "insulator": ("where((x-0.5)**2 + (y-0.4)**2 < 0.06, 1, 1e4)", 16),
    "layers": ("where(sin(8*pi*y) > 0, 1e4, 1)", 16),
    "fins": ("where((y < 0.15) or ((sin(10*pi*x) > 0) and (y < 0.8)), 1e4, 1)", 16),
    "checkerboard": ("where(sin(8*pi*x)*sin(8*pi*y) > 0, 1e4, 1)", 35),
    "smooth": ("exp(5*x)", 12),
}


@pytest.mark.parametrize("walls", ["vvvv", "gvrg"])
@pytest.mark.parametrize("name", JUMPS)
def test_cycles_with_jumps_of_the_conductivity(name, walls):
    conductivity, most = JUMPS[name]
    for n in (64, 128):
        assert cycles("mgcg", f"cells = [{n}, {n}]", walls, conductivity) <= most


@pytest.mark.parametrize("name", ["inclusion", "insulator", "layers", "smooth"])
def test_cycles_with_jumps_on_nodes(name):
    conductivity, most = JUMPS[name]
    assert cycles("mgcg", "nodes = [129, 129]", "gvrg", conductivity) <= most


@pytest.mark.parametrize("options", [("W", "red-black"), ("V", "chebyshev"), ("W", "chebyshev")])
@pytest.mark.parametrize("kind", ["nodes", "cells"])
def test_cycles_of_other_kinds(kind, options):
    for method in METHODS:
        assert cycles(method, f"{kind} = [129, 97]", "gvrv", options=options) <= 14


EXACT = "exp(x*y)*sin(3*x+1)*cos(5*y)"
MINUS_LAPLACIAN = (
    "-((x*x + y*y - 34)*exp(x*y)*sin(3*x+1)*cos(5*y) + 6*y*exp(x*y)*cos(3*x+1)*cos(5*y)"
    " - 10*x*exp(x*y)*sin(3*x+1)*sin(5*y))"
)


ALONG_X = "y*exp(x*y)*sin(3*x+1)*cos(5*y) + 3*exp(x*y)*cos(3*x+1)*cos(5*y)"
ALONG_Y = "x*exp(x*y)*sin(3*x+1)*cos(5*y) - 5*exp(x*y)*sin(3*x+1)*sin(5*y)"
OUTWARD = {"left": f"-({ALONG_X})", "right": ALONG_X, "bottom": f"-({ALONG_Y})", "top": ALONG_Y}
EXACT_WALLS = {
    "v": '{{ value = "{0}" }}',
    "g": '{{ gradient = "{1}" }}',
    "r": '{{ robin = {{ h = 2, ambient = "{0} + ({1})/2" }} }}',
}


def nested_ratios(grid, walls, backend="numpy", smoother="red-black"):
    """What one pass leaves over the error of the discretisation: l2, and max."""
    boundary = "\n".join(
        f"{name}.temperature = {EXACT_WALLS[letter].format(EXACT, slope)}"
        for letter, (name, slope) in zip(walls, OUTWARD.items(), strict=True)
    )
    text = case_text(grid, "", MINUS_LAPLACIAN, boundary=boundary)
    problem = Conduction(parse(text, "case"), make(backend))
    b = np.ascontiguousarray(np.broadcast_to(problem.source(0.0), problem.grid.shape))
    system, u = problem.system(problem.backend.to_device(b)), problem.temperature
    iteration = Multigrid(system, u, "FMG", smoother)
    iteration.step(0, None)
    once = problem.own(u)
    for number in range(1, 14):
        iteration.step(number, None)
    solution = problem.own(u)
    x, y = problem.grid.positions()["x"], problem.grid.positions()["y"]
    exact = np.exp(x * y) * np.sin(3 * x + 1) * np.cos(5 * y)
    left, error = once - solution, solution - exact[1:-1, 1:-1]
    return np.linalg.norm(left) / np.linalg.norm(error), np.abs(left).max() / np.abs(error).max()


@pytest.mark.thorough
@pytest.mark.parametrize("n", [256, 512, 1024, pytest.param(4096, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["nodes", "cells"])
def test_full_multigrid_finds_the_solution_in_one_pass(kind, n):
    """What it leaves is at most half the error of the discretisation."""
    points = n + (kind == "nodes")
    assert max(nested_ratios(f"{kind} = [{points}, {points}]", "vvvv", "numba")) <= 0.5


@pytest.mark.parametrize("kind", ["nodes", "cells"])
def test_full_multigrid_with_the_other_smoother(kind):
    assert max(nested_ratios(f"{kind} = [129, 129]", "vvvv", smoother="chebyshev")) <= 0.5


@pytest.mark.parametrize(("sweeps", "steps"), [(None, 4), (1, 2), (3, 6)])
@pytest.mark.parametrize("smoother", ["red-black", "chebyshev"])
def test_sweeps_of_a_case(sweeps, steps, smoother):
    """Those of two colours, or of Jacobi's iteration."""
    solver = f"method = 'multigrid'\nsmoother = '{smoother}'\n"
    solver += f"sweeps = {sweeps}" if sweeps else ""
    case = parse(case_text("nodes = [9, 9]", "0000", solver=solver), "case")
    problem = Conduction(case, make("numpy"))
    b = problem.backend.zeros(problem.grid.shape)
    method = make_method(case, problem.system(b), problem.temperature)
    found = method._levels[0].smoother
    assert len(found.before) == len(found.after) == steps


@pytest.mark.few(10)
@pytest.mark.parametrize("walls", ["vvvv", "gvrv", "gggv", "rrrr"])
@pytest.mark.parametrize("size", [(129, 129), (128, 128), (200, 131), (97, 333)])
@pytest.mark.parametrize("kind", ["nodes", "cells"])
def test_full_multigrid_with_other_walls_and_sizes(kind, size, walls):
    """Errors of first order at a wall, an end of it, or a short interval would show here."""
    assert max(nested_ratios(f"{kind} = {list(size)}", walls)) <= 0.6


@pytest.mark.parametrize("kind", ["nodes", "cells"])
@pytest.mark.parametrize("n", [9, 12, 15, 16, 31])
def test_solutions_are_interpolated_by_cubics(kind, n):
    """Inside exactly; beside a wall quadratics are, because there only three points are near."""
    text = case_text(f"{kind} = [{n}]", "vv")
    problem = Conduction(parse(text, "case"), make("numpy"))
    system, u = problem.system(problem.backend.zeros(problem.grid.shape)), problem.temperature
    fine, coarse, *_ = hierarchy(system, u, system.like(u), smoother_of("red-black", 1, False))
    coarsening, size = fine._transfer.axes[0].coarsening, n
    position, others = (numbers / size for numbers in coarsening._positions)
    for power, inside in ((1, 0), (2, 0), (3, 3)):
        coarse.other[...] = others**power
        fine._prolong(u)
        known = slice(1 + inside, position.size - 1 - inside)
        assert np.abs(u[known] - position[known] ** power).max() < 1e-14


GRIDS_2D = [
    ("nodes = [64, 66]\nupper = [63, 65]", "vgvr"),
    ("nodes = [65, 130]\nupper = [64, 129]", "grvv"),
    ("nodes = [35, 34]\nupper = [34, 33]", "gggv"),
    ("cells = [50, 47]\nupper = [50, 47]", "vrgv"),
    ("cells = [33, 66]\nupper = [33, 66]", "ggrv"),
    ("nodes = [61, 60]\nupper = [60, 60]\nperiodic = ['y']", "vg--"),
    ("nodes = [60, 61]\nupper = [60, 60]\nperiodic = ['x']", "--rv"),
    ("cells = [48, 40]\nupper = [48, 40]\nperiodic = ['x', 'y']", "----"),
    ("cells = [62, 66]\nupper = [62, 66]\nperiodic = ['y']", "vv--"),  # odd on the next level
]
"""Grids both of whose axes are halved, even and odd, with all kinds of walls."""


def even(number):
    return number + number % 2


GRIDS_3D = [
    ("nodes = [17, 20, 13]\nupper = [16, 19, 12]", "vgvrgv"),
    ("cells = [16, 11, 18]\nupper = [16, 11, 18]\nperiodic = ['x', 'z']", "--vg--"),
    ("cells = [8, 16, 12]\nupper = [8, 16, 12]\nperiodic = ['x', 'y', 'z']", "------"),
]


@pytest.mark.few(3, among="numpy")
@pytest.mark.parametrize(
    ("grid", "walls", "method", "wide"),
    [(*grid, *way) for grid in GRIDS_2D
     for way in (("V", 2000), ("mixed", 2000), ("FMG", 2000), ("FMG", 0))]
    + [(*grid, method, 2000) for grid in GRIDS_3D for method in ("V", "mixed")],
)  # fmt: skip
def test_all_axes_at_once_have_the_bits_of_one_after_the_other(
    grid, walls, method, wide, backend, monkeypatch
):
    """As on a device; numpy goes along one axis after the other."""
    monkeypatch.setattr(transfer, "WIDE", wide)
    calls = []  # whether they read an array without its outermost layer
    for kind, name in ((TransferAtOnce, "restrict"), (Interpolation2D, "__call__")):
        call = getattr(kind, name)

        def noted(self, *given, call=call, **more):
            calls.append(getattr(self, "_inner", None) is not None)
            call(self, *given, **more)

        monkeypatch.setattr(kind, name, noted)
    fields = []
    for machine, at_once in ((make("numpy"), False), (make(backend), True)):
        if at_once and not machine.on_device:
            read_other_ends(machine, monkeypatch)
            monkeypatch.setattr(machine, "padded", lambda shape: (*shape[:-1], even(shape[-1])))
        machine.on_device = at_once
        monkeypatch.setattr(machine, "cycle_leg", lambda leg: None)  # legs have tests of their own
        problem = Conduction(parse(case_text(grid, walls), "case"), machine)
        b = np.random.default_rng(1).normal(size=problem.grid.shape)
        system, u = problem.system(machine.to_device(b)), problem.temperature
        start = np.random.default_rng(2).normal(size=problem.grid.shape)
        problem.place(u, problem.grid.interior, start)
        mixed = method == "mixed"
        iteration = Refinement(system, u) if mixed else Multigrid(system, u, method)
        for number in range(2):
            iteration.step(number, None)
        fields.append(problem.own(iteration.solution(2)))
        assert bool(calls) == at_once
    assert any(calls) == (wide == 0)
    assert fields[0].tobytes() == fields[1].tobytes()


@pytest.mark.parametrize("method", ["V", "FMG"])
@pytest.mark.parametrize(
    ("grid", "walls"),
    [
        ("cells = [24, 20, 32]\nupper = [24, 20, 32]\nperiodic = ['x', 'y', 'z']", "------"),
        ("nodes = [16, 17, 12]\nupper = [16, 16, 12]\nperiodic = ['x', 'z']", "--gv--"),
        ("cells = [20, 12]\nupper = [20, 12]\nperiodic = ['y']", "rg--"),
    ],
)
def test_restriction_without_ghosts_has_the_bits_of_one_with_them(grid, walls, method):
    """As on a device, in one kernel with the layers that take points of the other end."""
    fields, machines = [], [make("numpy") for _ in range(2)]
    machines[1].joins = lambda regions: True
    for machine in machines:
        problem = Conduction(parse(case_text(grid, walls), "case"), machine)
        b = np.random.default_rng(1).normal(size=problem.grid.shape)
        system, u = problem.system(machine.to_device(b)), problem.temperature
        start = np.random.default_rng(2).normal(size=problem.grid.shape)
        problem.place(u, problem.grid.interior, start)
        iteration = Multigrid(system, u, method)
        for number in range(2):
            iteration.step(number, None)
        fields.append(problem.own(iteration.solution(2)))
    assert machines[1].points_updated != machines[0].points_updated
    assert fields[0].tobytes() == fields[1].tobytes()


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "method", ["multigrid", "W", "FMG", "chebyshev", "three", "two passes", "mgcg", "mixed"]
)
@pytest.mark.parametrize(
    ("grid", "walls"),
    [
        *GRIDS_2D,
        ("nodes = [17, 18, 13]\nupper = [16, 17, 12]", "vgrvgv"),
        ("cells = [16, 12, 20]\nupper = [16, 12, 20]\nperiodic = ['x', 'y', 'z']", "------"),
    ],
)
def test_smoothing_in_one_pass_has_the_bits_of_single_sweeps(grid, walls, method, monkeypatch):
    """On large levels of a host, from any start and from zero, in cycles of every kind."""
    solver = {
        "W": "method = 'multigrid'\ncycle = 'W'",
        "FMG": "method = 'multigrid'\ncycle = 'FMG'",
        "chebyshev": "method = 'multigrid'\nsmoother = 'chebyshev'",
        "three": "method = 'multigrid'\nsweeps = 3",
        "two passes": "method = 'multigrid'",
        "mixed": "precision = 'mixed'\nmethod = 'multigrid'",
    }.get(method, f"method = '{method}'")
    depth = (3, 3, 3) if method == "two passes" else (9, 9, 9)
    pass_over, made, fields = Backend.fused_sweeps, [], []

    def noted(self, sweeps, *args):
        made.append(len(sweeps.stages))
        pass_over(self, sweeps, *args)

    monkeypatch.setattr(Backend, "fused_sweeps", noted)
    for machine, passes in ((make("numpy"), False), (make("numba"), True)):
        machine.tiling = Tiling(worth=0, depth=depth, row=(64, 64, 64), ring=20000, height=8)
        problem = Conduction(parse(case_text(grid, walls, "0", solver), "case"), machine)
        b = np.random.default_rng(1).normal(size=problem.grid.shape)
        system = problem.system(machine.to_device(b - b.mean()))
        start = np.random.default_rng(2).normal(size=problem.grid.shape)
        problem.place(problem.temperature, problem.grid.interior, start)
        iteration = make_method(problem.case, system, problem.temperature)
        found = [residual(system, iteration.solution(0))]
        for number, kind in enumerate(("max", "sum", None)):
            change = kind and iteration.accumulator(kind)
            iteration.step(number, change)
            found.append(change and change.take())
        fields.append((problem.own(iteration.solution(3)), found))
        assert bool(made) == passes and max(made, default=0) <= depth[0]
    (one, norms), (other, same) = fields
    assert one.tobytes() == other.tobytes() and norms == same


@pytest.mark.thorough
@pytest.mark.parametrize("problem", ["3D nodes", "cells, mixed", "nodes, periodic", "torus"])
def test_full_multigrid_has_the_same_bits_on_backends(problem, other_backend, tmp_path, last_level):
    grid, walls, source = PROBLEMS[problem]
    for conductivity in ("1", "where(x < 0.4, 100, 1)") if "3D" not in problem else ("1",):
        solver = "method = 'multigrid'\ncycle = 'FMG'\niterations = 1"
        text = case_text(grid, walls, source, solver, f"conductivity = '{conductivity}'")
        reference, other = (solve(text, tmp_path, name) for name in ("numpy", other_backend))
        assert other.fields["temperature"].tobytes() == reference.fields["temperature"].tobytes()


# ---- what they find ----------------------------------------------------------------------------


@pytest.mark.few(10)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_agrees_with_conjugate_gradients(problem, method, tmp_path):
    grid, walls, source = PROBLEMS[problem]
    result, other = (
        solve(case_text(grid, walls, source, f"method = '{name}'\n{TIGHT}"), tmp_path)
        for name in (method, "cg")
    )
    assert result.outcome.ending == "tolerance"
    assert result.outcome.count <= 14
    assert np.abs(result.fields["temperature"] - other.fields["temperature"]).max() < 1e-8


@pytest.mark.parametrize("method", METHODS)
def test_exact_discrete_solution(method, tmp_path):
    """For the sine source it is the source over the eigenvalue, 8 sin(pi h / 2)^2 / h^2."""
    solver = f"method = '{method}'\ntolerance = 1e-30"
    text = case_text("nodes = [65, 65]", "0000", "sin(pi*x)*sin(pi*y)", solver)
    result = solve(text, tmp_path)
    assert result.outcome.ending == "rounding"
    x = np.linspace(0.0, 1.0, 65)
    exact = np.outer(np.sin(np.pi * x), np.sin(np.pi * x)) / (8 * 64**2 * np.sin(np.pi / 128) ** 2)
    assert np.abs(result.fields["temperature"] - exact).max() < 1e-12


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["nodes", "cells"])
def test_implicit_steps_with_walls_in_time(kind, method, tmp_path):
    """T = x t + y is linear in time and space, so that backward Euler carries it exactly."""
    walls = "\n".join(
        f"{name}.temperature = {{ value = '{text}' }}"
        for name, text in (("left", "y"), ("right", "t + y"), ("bottom", "x*t"), ("top", "x*t + 1"))
    )
    text = case_text(
        f"{kind} = [9, 6]", "", "x", f"method = '{method}'\n{TIGHT}", "steady = false",
        boundary=walls, initial="temperature = 'y'",
        reference="exact = { temperature = 'x*t + y' }",
        time="end = 0.35\nstep = 0.05\nscheme = 'backward-euler'",
    )  # fmt: skip
    result = solve(text, tmp_path)
    height, width = result.fields["temperature"].shape
    along = [(np.arange(n) + (0 if kind == "nodes" else 0.5)) / (n - (kind == "nodes"))
             for n in (height, width)]  # fmt: skip
    exact = 0.35 * along[1] + along[0][:, None]
    assert np.abs(result.fields["temperature"] - exact).max() < 1e-9


SYMMETRIC = {
    "nodes": ("nodes = [34, 21]", "gvrg"),
    "cells": ("cells = [33, 21]", "gvrg"),
    "odd ring of nodes": ("nodes = [34, 21]\nperiodic = ['y']", "gr--"),
    "odd ring of cells": ("cells = [33, 21]\nperiodic = ['y']", "gr--"),
    "even ring of nodes": ("nodes = [34, 24]\nperiodic = ['y']", "vr--"),
}


@pytest.mark.parametrize("name", SYMMETRIC)
@pytest.mark.parametrize("conductivity", ["1", "where(x < 0.4, 100, 1)"])
def test_a_cycle_is_symmetric_and_positive(name, conductivity):
    """In the volume-weighted product: else it is no preconditioner of conjugate gradients."""
    system, _ = noisy_system(*SYMMETRIC[name], conductivity, "numpy")
    backend, shape = system.backend, system.grid.shape
    smoother = smoother_of("red-black", system.grid.dimension, symmetric=True)
    levels = hierarchy(system, backend.zeros(shape), backend.zeros(shape), smoother)
    volume = 1.0
    for ratio in (ratio for ratio in system.coefficients.ratios if ratio is not ONE):
        volume = volume / backend.to_host(ratio)
    rng = np.random.default_rng(5)
    inside = tuple(slice(1, -1) for _ in shape)
    given, found = [], []
    for _ in range(2):
        b = np.zeros(shape)
        b[inside] = rng.normal(size=b[inside].shape)
        system.b[...] = b
        levels[0].solve_from_zero(1, 1)
        given.append(b)
        found.append(backend.to_host(levels[0].other))
    cross = [np.sum((volume * given[n] * found[1 - n])[inside]) for n in (0, 1)]
    own = [np.sum((volume * given[n] * found[n])[inside]) for n in (0, 1)]
    assert min(own) > 0.0
    assert abs(cross[0] - cross[1]) < 1e-12 * max(own)


@pytest.mark.few(1)
@pytest.mark.parametrize("conductivity", ["1", "where(x < 0.3, 1, 1000)"])
@pytest.mark.parametrize("kind", ["nodes", "cells"])
def test_tiny_grids(kind, conductivity, last_level):
    """Every small size meets every way in which an axis can end."""
    for size in range(3, 10):
        for walls in ("vvvv", "gvrg", "gvgv", "gggg", "vv--", "gr--"):
            periodic = ["y"] if walls.endswith("--") else []
            grid = f"{kind} = [{size}, {12 - size}]\nperiodic = {periodic}"
            assert cycles("mgcg", grid, walls, conductivity) <= 14, grid
            if conductivity == "1":
                # A ring of three has two red neighbours, which one half-sweep changes together.
                assert cycles("multigrid", grid, walls) <= (22 if periodic else 14), grid


# ---- bits, restarts, refusals ------------------------------------------------------------------


@pytest.mark.few(1, among="nodes, periodic")
@pytest.mark.parametrize("problem", ["3D nodes", "cells, mixed", "nodes, periodic", "1D cells"])
def test_backends_give_the_same_bits(problem, other_backend, tmp_path, last_level):
    grid, walls, source = PROBLEMS[problem]
    for method in METHODS:
        # Each precision is compiled anew, and conformance tests know every point in both.
        precisions = (("float64", 1e-9), ("float32", 1e-4))
        for precision, tolerance in precisions if problem == "cells, mixed" else precisions[:1]:
            solver = (f"method = '{method}'\nprecision = '{precision}'\nrelative = true\n"
                      f"tolerance = {tolerance}")  # fmt: skip
            text = case_text(grid, walls, source, solver, "conductivity = '1 + 9*x'")
            reference, other = (solve(text, tmp_path, name) for name in ("numpy", other_backend))
            assert other.outcome.history == reference.outcome.history
            assert (
                other.fields["temperature"].tobytes() == reference.fields["temperature"].tobytes()
            )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("grid", "walls"),
    [
        ("cells = [19, 17, 14]", "vgrgvr"),
        # A quick run of test_conformance has each point function of 2D in threads.
        pytest.param("nodes = [67, 50]", "gvrv", marks=pytest.mark.slow),
    ],
)
def test_threads_give_the_same_bits(grid, walls, monkeypatch):
    """The finest levels on all threads, those after them on one, as on large grids."""
    monkeypatch.setattr(numba, "THREADED_FROM", 1 << 9)
    found = []
    for name in ("numpy", "numba"):
        system, u = noisy_system(grid, walls, backend=name)
        iteration = Multigrid(system, u)
        for number in range(2):
            iteration.step(number, None)
        found.append(system.backend.to_host(iteration.solution(2)))
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize("monitor", ["update", "residual"])
@pytest.mark.parametrize("method", METHODS)
def test_goes_on_bit_for_bit(method, monitor, tmp_path):
    solver = f"method = '{method}'\nmonitor = '{monitor}'\ntolerance = 1e-9"
    text = case_text("cells = [24, 21]", "vgrv", "x", solver, checkpoint="every = 2")
    case = parse(text, "case")
    alone = run(case, "numpy", tmp_path / "alone.h5")
    start = Start(restart=True)
    with pytest.raises(Interrupted):
        run(case, "numpy", tmp_path / "two.h5", start=start, request=Impatient(2))
    resumed = run(case, "numpy", tmp_path / "two.h5", start=start)
    assert resumed.outcome.history == alone.outcome.history
    assert resumed.fields["temperature"].tobytes() == alone.fields["temperature"].tobytes()


@pytest.mark.parametrize(("dims", "rows", "columns", "gathered"), [
    ((4, 1), 514, 514, True),  # 264,000 points a block are too few for passes
    ((4, 1), 700, 700, False),
    ((2, 2), 700, 700, True),  # only slabs have passes
    ((2, 1), 400, 400, True),  # fewer than a million in all
    ((16, 1), 512, 513, False),  # more than four million
    ((1, 1), 512, 512, False),  # nothing to gather
])  # fmt: skip
def test_levels_that_devices_gather(dims, rows, columns, gathered):
    """Blocks of these rows and columns, on devices whose passes need 300,000 points."""
    counts = (rows, columns)
    ends = tuple(
        tuple(count * n for n in range(parts + 1))
        for count, parts in zip(counts, dims, strict=True)
    )
    level = Partition(Ranks(), dims, ends, (False, False))
    assert level.is_gathered_on_devices(300_000) is gathered
    if dims[1] == 1:  # without any passes only the size of the level counts
        small = math.prod(dims) * rows * columns <= 1 << 20
        assert level.is_gathered_on_devices(0) is (small and dims != (1, 1))
