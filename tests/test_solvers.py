"""The four methods on all kinds of grids and walls: the same solution, known iteration counts."""

import numpy as np
import pytest

from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.backends.registry import make
from heatsolve.case.load import parse
from heatsolve.errors import CaseError, Diverged, InputError
from heatsolve.io.reader import read
from heatsolve.linear.krylov import ConjugateGradients, MultigridCG
from heatsolve.linear.stationary import Sor, division_by_diagonal
from heatsolve.models.heat import equations as heat
from heatsolve.models.heat.conduction import Conduction, Volumes
from heatsolve.models.heat.solver import make_method
from heatsolve.parallel.decomposition import block_of_rank
from heatsolve.runner import run
from heatsolve.stencil.language import copy, term_of
from heatsolve.tools.check import preview
from heatsolve.tools.measure import noise_inside

WALL_NAMES = ("left", "right", "bottom", "top", "back", "front")
CONDITIONS = {
    "v": "value = {}",
    "0": "value = 0",
    "g": "gradient = 0",
    "h": "gradient = 1",
    "r": "robin = {{ h = 2, ambient = {} }}",
}


def case_text(grid, walls, source="1", solver="", model="", **sections):
    """A case from letters for its walls: v value, 0 the value 0, g gradient, r Robin, - none."""
    lines = ["[model]", model, "[grid]", grid, "[source]", f"temperature = {source!r}", "[solver]",
             solver]  # fmt: skip
    for number, (name, letter) in enumerate(zip(WALL_NAMES, walls, strict=False)):
        if letter != "-":
            condition = CONDITIONS[letter].format(0.3 * number)
            lines += [f"[boundary.{name}]", f"temperature = {{ {condition} }}"]
    for name, text in sections.items():
        lines += [f"[{name}]", text]
    return "\n".join(lines)


def solve(text, path, backend="numpy"):
    return run(parse(text, "case"), backend, path / "case.h5")


PROBLEMS = {
    "nodes, values": ("nodes = [17, 13]", "vvvv", "1"),
    "cells, values": ("cells = [16, 12]", "vvvv", "1"),
    "nodes, mixed": ("nodes = [9, 13]", "gvrv", "1"),
    "cells, mixed": ("cells = [8, 12]", "gvrv", "1"),
    "cells, periodic": ("cells = [8, 12]\nperiodic = ['y']", "vv--", "sin(2*pi*y)"),
    "nodes, periodic": ("nodes = [9, 12]\nperiodic = ['y']", "vv--", "sin(2*pi*y)"),
    "cells, no value": ("cells = [8, 12]", "gggg", "cos(pi*x)"),
    "nodes, no value": ("nodes = [9, 13]", "gggg", "cos(pi*x)"),
    "torus": ("cells = [8, 12]\nperiodic = ['x', 'y']", "----", "sin(2*pi*x)*cos(2*pi*y)"),
    "3D cells": ("cells = [6, 5, 7]", "vgrvgv", "x + z"),
    "3D nodes": ("nodes = [6, 5, 7]", "vgrvgv", "x + z"),
    "1D cells": ("cells = [20]", "vr", "1"),
    "stretched": ("cells = [16, 4]\nupper = [1, 2]", "vvvg", "1"),
}
TIGHT = "relative = true\ntolerance = 1e-11\n"


@pytest.mark.few(6)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_methods_agree(problem, tmp_path):
    grid, walls, source = PROBLEMS[problem]
    fields = {}
    for method in ("cg", "jacobi", "sor", "chebyshev"):
        weight = "weight = 0.9\n" if method == "jacobi" else ""
        solver = f"method = '{method}'\n{weight}{TIGHT}"
        result = solve(case_text(grid, walls, source, solver), tmp_path)
        assert result.outcome.converged
        fields[method] = result.fields["temperature"]
    for method, field in fields.items():
        assert np.abs(field - fields["cg"]).max() < 1e-8, method


@pytest.mark.parametrize("method", ["cg", "mgcg", "jacobi", "sor", "chebyshev"])
def test_a_method_for_another_step_compiles_nothing_anew(method):
    """As a march whose steps have ever new lengths makes one for each of them."""
    solver = f"method = '{method}'"
    case = parse(case_text("cells = [17, 12]", "vgvr", "1", solver), "case")
    problem = Conduction(case, NumpyBackend())
    known = []
    for _ in range(3):
        system = problem.system(problem.backend.to_device(problem.source(0.0)))
        made = make_method(case, system, problem.temperature)
        for step in range(2):
            made.step(step, None)
        known.append(len(problem.backend._compiled))
    assert known[0] == known[1] == known[2]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_solution_satisfies_the_equation(problem, tmp_path):
    """Against a dense solve of the balance of every cell, written down independently."""
    if problem not in ("cells, mixed", "1D cells", "stretched"):
        pytest.skip("the dense solve below knows cells in 1D and 2D")
    grid, walls, source = PROBLEMS[problem]
    case = parse(case_text(grid, walls, source, f"method = 'cg'\n{TIGHT}"), "case")
    counts = case.grid.counts[::-1]
    spacing = [(u - low) / n for u, low, n in
               zip(case.grid.upper[::-1], case.grid.lower[::-1], counts, strict=True)]  # fmt: skip
    names = [WALL_NAMES[2 * n : 2 * n + 2] for n in range(len(counts))][::-1]
    size = int(np.prod(counts))
    matrix, right = np.zeros((size, size)), np.ones(size)
    for place in np.ndindex(*counts):
        row = np.ravel_multi_index(place, counts)
        for axis, h in enumerate(spacing):
            for side, step in enumerate((-1, 1)):
                other = list(place)
                other[axis] += step
                if 0 <= other[axis] < counts[axis]:
                    column = np.ravel_multi_index(other, counts)
                    matrix[row, row] += 1 / h**2
                    matrix[row, column] -= 1 / h**2
                    continue
                letter = walls[WALL_NAMES.index(names[axis][side])]
                value = 0.3 * WALL_NAMES.index(names[axis][side])
                weight = {"v": 2 / h**2, "g": 0.0, "r": 1 / (h / 2 + 1 / 2) / h}[letter]
                matrix[row, row] += weight
                right[row] += weight * value
    expected = np.linalg.solve(matrix, right).reshape(counts)
    result = run(case, "numpy", tmp_path / "case.h5")
    assert np.abs(result.fields["temperature"] - expected).max() < 1e-8


@pytest.mark.few(1, among="float64")
@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
def test_backends_give_the_same_bits(precision, tolerance, other_backend, tmp_path):
    grid, walls, source = PROBLEMS["3D nodes"]
    for method in ("cg", "jacobi", "sor", "chebyshev"):
        solver = (f"method = '{method}'\nprecision = '{precision}'\nrelative = true\n"
                  f"tolerance = {tolerance}")  # fmt: skip
        text = case_text(grid, walls, source, solver, "conductivity = '1 + x*y'")
        reference, other = (solve(text, tmp_path, name) for name in ("numpy", other_backend))
        assert other.outcome.history == reference.outcome.history
        assert other.fields["temperature"].tobytes() == reference.fields["temperature"].tobytes()


ROD = """
[grid]
cells = [16]
upper = [1000]
[boundary]
left.temperature = { value = 1 }
right.temperature = { value = 0 }
[model]
conductivity = 1e-6
"""
"""In SI units, in which residuals are small numbers: 1 km, 1e-6 W/m/K."""


@pytest.mark.few(1, among="numba-crank")
@pytest.mark.parametrize("scheme", ["crank-nicolson", "backward-euler"])
def test_implicit_steps_of_small_numbers_move(scheme, backend, tmp_path):
    """With the default tolerance, as with a tight one."""
    march = f"steady = false\n[time]\nend = 5e11\nstep = 1e10\nscheme = '{scheme}'\n"
    field = solve(ROD + march, tmp_path, backend).fields["temperature"]
    tight = solve(ROD + march + f"[solver]\n{TIGHT}", tmp_path, backend).fields["temperature"]
    assert tight[0] > 0.5
    assert np.abs(field - tight).max() < 1e-6


def test_steady_solutions_of_small_numbers(tmp_path):
    """With the default tolerance: a slab of low conductivity, and a source of 1e-10."""
    field = solve(ROD, tmp_path).fields["temperature"]
    assert np.abs(field - (1.0 - (np.arange(16) + 0.5) / 16)).max() < 1e-6
    weak, strong = (
        solve(case_text("cells = [8, 8]", "0000", source), tmp_path).fields["temperature"]
        for source in ("1e-10", "1")
    )
    assert np.abs(1e10 * weak - strong).max() < 1e-7 * strong.max()


@pytest.mark.few(3)
@pytest.mark.parametrize("monitor", ["residual", "update"])
@pytest.mark.parametrize("walls", ["0000", "ggg0"])
def test_without_a_right_side_the_first_norm_is_the_scale(walls, monitor, backend, tmp_path):
    """b = 0, and a start that is not 0: relative to the first residual, or update."""
    solver = f"method = 'jacobi'\nrelative = true\nmonitor = '{monitor}'\ntolerance = 1e-3"
    start = {"initial": "temperature = '1 + x'"}
    result = solve(case_text("cells = [6, 6]", walls, "0", solver, **start), tmp_path, backend)
    norms = result.outcome.history["residual"]
    assert result.outcome.ending == "tolerance"
    assert norms[-1] < 1e-3 * norms[0] <= norms[-2]
    assert result.outcome.relative_to == f"the first {monitor}"
    assert result.outcome.threshold == pytest.approx(1e-3 * norms[0])


@pytest.mark.few(4, among="numpy")
@pytest.mark.parametrize("method", ["jacobi", "cg", "multigrid", "mgcg"])
def test_a_solve_makes_an_iteration_unless_it_begins_at_rounding_level(method, backend, tmp_path):
    """T = 1 + x in steps of 1/8 is the solution to the last bit; 1e-9 beside it is not."""
    walls = {"boundary": "\n".join(f"{wall}.temperature = {{ value = '{text}' }}" for wall, text in
             (("left", "1"), ("right", "2"), ("bottom", "1 + x"), ("top", "1 + x")))}  # fmt: skip
    solver = f"method = '{method}'\ntolerance = 1e-6"

    def count(start):
        text = case_text("nodes = [9, 9]", "", "0", solver, initial=f"temperature = {start!r}",
                         **walls)  # fmt: skip
        outcome = solve(text, tmp_path, backend).outcome
        assert outcome.converged
        return outcome.count

    assert count("1 + x") == 0
    assert count("1 + x + 1e-9*sin(pi*x)*sin(pi*y)") == 1


SIZES = [-680, 680]
"""Powers of two, about 1e-205 and 1e205, whose squares no number holds."""
CRITERIA = {
    "relative": "tolerance = 1e-6",
    "update": "tolerance = {}\nmonitor = 'update'\nmethod = 'jacobi'",
    "absolute": "tolerance = {}\nrelative = false\nmethod = 'mgcg'",
    "cg": "tolerance = 1e-6\nmethod = 'cg'\nnorm = 'max'",
    "fixed": "iterations = 3\nmethod = 'cg'",
    "mixed": "tolerance = 1e-6\nprecision = 'mixed'",
}


def of_size(power, solver, march=""):
    """A case whose temperatures are multiplied by a power of two, as is an absolute tolerance."""
    factor = 2.0**power
    walls = "\n".join(f"{wall}.temperature = {{ value = {value * factor!r} }}" for wall, value in
                      (("left", 1.0), ("right", 0.25), ("bottom", 0.0), ("top", 0.5)))  # fmt: skip
    tables = {"time": march} if march else {}
    return case_text("cells = [8, 6]", "", repr(3.0 * factor), solver.format(1e-6 * factor),
                     "steady = false" if march else "", boundary=walls, **tables)  # fmt: skip


@pytest.mark.few(2, among="numpy")
@pytest.mark.parametrize("power", SIZES)
@pytest.mark.parametrize("solver", CRITERIA.values(), ids=CRITERIA)
def test_numbers_whose_squares_no_number_holds(solver, power, backend, tmp_path):
    """They give the same bits as numbers of usual size, but for their exponents."""
    usual, other = (solve(of_size(n, solver), tmp_path, backend) for n in (0, power))
    assert other.outcome.ending == usual.outcome.ending
    assert other.outcome.count == usual.outcome.count
    back = 2.0**-power
    assert (back * other.fields["temperature"]).tobytes() == usual.fields["temperature"].tobytes()
    norms = [back * norm for norm in other.outcome.history["residual"]]
    assert norms == usual.outcome.history["residual"]


@pytest.mark.few(1, among="numpy")
@pytest.mark.parametrize("power", SIZES)
@pytest.mark.parametrize("scheme", ["explicit", "crank-nicolson"])
def test_steps_of_numbers_whose_squares_no_number_holds(scheme, power, backend, tmp_path):
    march = f"end = 0.01\nstep = 0.002\nscheme = '{scheme}'"
    solver = "tolerance = 1e-6"
    usual, other = (solve(of_size(n, solver, march), tmp_path, backend) for n in (0, power))
    assert other.outcome.count == usual.outcome.count
    field = 2.0**-power * other.fields["temperature"]
    assert field.tobytes() == usual.fields["temperature"].tobytes()


SINGLE = "precision = 'float32'\n"
SIZES_OF_SINGLE = [-83, 66]
"""Powers of two, about 1e-25 and 1e20, whose squares float32 does not hold."""


@pytest.mark.few(2, among="numpy")
@pytest.mark.parametrize("power", SIZES_OF_SINGLE)
@pytest.mark.parametrize("name", [name for name in CRITERIA if name != "mixed"])
def test_numbers_whose_squares_float32_does_not_hold(name, power, backend, tmp_path):
    test_numbers_whose_squares_no_number_holds(SINGLE + CRITERIA[name], power, backend, tmp_path)


@pytest.mark.few(1, among="numpy")
@pytest.mark.parametrize("power", SIZES_OF_SINGLE)
def test_steps_of_numbers_whose_squares_float32_does_not_hold(power, backend, tmp_path):
    march = "end = 0.01\nstep = 0.002\nscheme = 'backward-euler'"
    solver = SINGLE + "tolerance = 1e-6"
    usual, other = (solve(of_size(n, solver, march), tmp_path, backend) for n in (0, power))
    field = 2.0**-power * other.fields["temperature"]
    assert field.tobytes() == usual.fields["temperature"].tobytes()


def between_walls(left, model="", extent="", precision="float32", source="0"):
    """Steady conduction from `left` to 0."""
    walls = f"left.temperature = {{ value = {left!r} }}\nright.temperature = {{ value = 0.0 }}\n"
    sides = "\n".join(f"{wall}.temperature = {{ gradient = 0.0 }}" for wall in ("bottom", "top"))
    return case_text(f"cells = [16, 16]\n{extent}", "", source, f"precision = '{precision}'", model,
                     boundary=walls + sides)  # fmt: skip


@pytest.mark.few(1, among="numpy")
@pytest.mark.parametrize(
    ("left", "model", "extent", "source"),
    [
        (300.0, "conductivity = 400.0", "upper = [1e-6, 1e-6]", "0"),
        (300.0, "conductivity = 1e-15", "", "0"),
        (1e-36, "", "", "0"),
        (1e37, "", "", "0"),
        (0.0, "", "", "1e20"),
        (0.0, "", "", "1e-30"),
    ],
)
def test_float32_solves_what_it_holds(left, model, extent, source, backend, tmp_path):
    single, double = (
        solve(between_walls(left, model, extent, precision, source), tmp_path, backend)
        for precision in ("float32", "float64")
    )
    want = double.fields["temperature"]
    assert single.outcome.converged
    assert single.fields["temperature"] == pytest.approx(want, abs=1e-4 * abs(want).max())


def test_lost_digits_of_float32_are_told(capsys, tmp_path):
    solve(between_walls(0.0, "conductivity = 1e8", source="1e-30"), tmp_path)
    assert "float32 does not have all of its digits" in capsys.readouterr().err


@pytest.mark.few(4, among="numpy")
@pytest.mark.parametrize(
    ("left", "model", "source"),
    [
        (1.0, "conductivity = 1e-35", "0"),
        (1e-50, "", "0"),
        (1e39, "", "0"),
        (0.0, "conductivity = 1e-10", "1e35"),
    ],
)
def test_what_float32_does_not_hold_is_told(left, model, source, backend, tmp_path):
    with pytest.raises(InputError, match=r"float32 (does not hold|holds no)"):
        solve(between_walls(left, model, source=source), tmp_path, backend)


@pytest.mark.parametrize(("left", "extent", "source", "error", "said"), [
    (1e-310, "", "0", CaseError, "float64 holds no digits below 2.2e-308; take other units"),
    (0.0, "", "1e-310*x", InputError, "float64 does not have all of its digits"),
    (0.0, "upper = [100.0, 1.0]", "1e307", InputError, "float64 holds no temperatures beyond"),
    (1e300, "upper = [1e-150, 1.0]", "0", Diverged, "float64 does not hold the norm"),
])  # fmt: skip
def test_what_float64_does_not_hold_is_told(left, extent, source, error, said, tmp_path):
    with pytest.raises(error, match=said):
        solve(between_walls(left, "", extent, "float64", source), tmp_path)


@pytest.mark.few(2)
@pytest.mark.parametrize("method", ["multigrid", "cg", "jacobi"])
def test_every_implicit_step_makes_an_iteration(method, backend, tmp_path):
    """A step whose start meets the tolerance is not left out: the field still moves."""
    text = case_text(
        "cells = [8, 8]", "0000", "0", f"method = '{method}'\ntolerance = 1e-6",
        "steady = false", initial="temperature = 1e-10",
        time="end = 1e-9\nstep = 1e-10\nscheme = 'backward-euler'",
    )  # fmt: skip
    change = read(solve(text, tmp_path, backend).path).history["residual"]
    assert (change > 0.0).all()


@pytest.mark.parametrize(
    ("method", "count"), [("jacobi", 713), ("sor", 49), ("chebyshev", 73), ("cg", 1)]
)
def test_iteration_counts(method, count, tmp_path):
    """For the sine source the initial residual is the eigenvector of the lowest eigenvalue.

    Jacobi's residual falls by rho = cos(pi h) each sweep: ln(1e-6) / ln(rho) = 712.1. Chebyshev's
    falls by at least 1 / T_k(1 / rho): arcosh(1e6) / arcosh(1 / rho) = 73.7, and a little faster
    because the bound of the spectrum lies below it. cg needs one step. SOR's count is measured.
    """
    solver = f"method = '{method}'\nrelative = true\ntolerance = 1e-6"
    source = "2*pi**2*sin(pi*x)*sin(pi*y)"
    result = solve(case_text("nodes = [17, 17]", "0000", source, solver), tmp_path)
    assert result.outcome.count == count


@pytest.mark.parametrize(
    ("grid", "walls", "model", "inverse"),
    [
        ("nodes = [9, 7]", "vvvv", "", (1, 1)),
        ("nodes = [9, 7]", "gvvv", "", (1, 10)),
        ("nodes = [9, 7]", "vvvr", "", (8, 1)),
        ("nodes = [9, 7]", "vvvv", "conductivity = '1 + x'", (1, 9)),
        ("nodes = [9, 8]\nperiodic = ['y']", "vv--", "", (1, 1)),
        ("cells = [9, 7]\nperiodic = ['x']", "--vg", "", (9, 1)),
        ("nodes = [9, 7]", "gvgv", "", None),
        ("cells = [9, 7]", "vvvv", "", None),
        ("nodes = [9, 7]", "vvvv", "conductivity = '1 + x*y'", None),
    ],
)
def test_divided_by_the_diagonal(grid, walls, model, inverse):
    """By a multiplication wherever the diagonal is constant along an axis."""
    problem, system = system_of(case_text(grid, walls, model=model))
    divided, scale = division_by_diagonal(system, 0.7)
    assert getattr(scale, "shape", None) == inverse

    def quotients(at, u, scale, *coefficients):
        return divided(u[at], at, scale, *coefficients)

    def expected(at, u, *coefficients):
        return 0.7 * u[at] / heat.diagonal(at, *coefficients)

    u, found, wanted = (problem.backend.zeros(problem.grid.shape) for _ in range(3))
    u[:] = np.random.default_rng(1).standard_normal(u.shape)
    problem.backend.sweep(quotients, found, problem.grid.interior, u, scale, *system.coefficients)
    problem.backend.sweep(expected, wanted, problem.grid.interior, u, *system.coefficients)
    assert found.any()
    np.testing.assert_array_max_ulp(found, wanted, maxulp=2)


def system_of(text):
    problem = Conduction(parse(text, "case"), make("numpy"))
    return problem, problem.system(problem.backend.to_device(problem.source(0.0)))


def test_young_optimum():
    """On the unit square Young's omega is 2 / (1 + sin(pi h))."""
    problem, system = system_of(case_text("nodes = [33, 33]", "vvvv"))
    exact = 2.0 / (1.0 + np.sin(np.pi / 32))
    assert Sor(system, problem.temperature).omega == pytest.approx(exact, rel=2e-3)


def test_over_relaxation_around_an_odd_periodic_axis(tmp_path):
    """Neighbours across its end have one colour: Young's optimum diverged."""
    for cells in (7, 8, 9):
        text = f"""[grid]
cells = [{cells}, 5]
upper = [0.61, 1.03]
periodic = ["x"]
[model]
conductivity = "1 + x*x"
[source]
temperature = 1
[boundary]
bottom.temperature.value = 0
top.temperature.gradient = 0
[solver]
method = "sor"
"""
        problem, system = system_of(text)
        assert (Sor(system, problem.temperature).omega == 1.0) == (cells % 2 == 1)
        assert run(parse(text, "case"), "numpy", tmp_path / f"{cells}.h5").outcome.converged


def test_update_and_max_norms(tmp_path):
    """The stop is at the first iteration whose norm meets the criterion, for each norm."""
    for norm in ("l2", "max"):
        for monitor in ("update", "residual"):
            solver = f"method = 'jacobi'\nnorm = '{norm}'\nmonitor = '{monitor}'\ntolerance = 1e-3"
            solver += "\nrelative = false"
            result = solve(case_text("nodes = [9, 9]", "vvvv", "1", solver), tmp_path)
            history = result.outcome.history["residual"]
            assert history[-1] < 1e-3
            assert min(history[:-1]) >= 1e-3
            assert result.outcome.history["iteration"][-1] == result.outcome.count


def test_check_every(tmp_path):
    every_one = "method = 'jacobi'\nmonitor = 'update'\ntolerance = 1e-4\n"
    text = case_text("nodes = [9, 9]", "vvvv", "1", every_one)
    exact = solve(text, tmp_path).outcome.count
    rarely = text.replace(every_one, every_one + "check_every = 7\n")
    rare = solve(rarely, tmp_path).outcome.count
    assert rare == -(-exact // 7) * 7


def test_exactly_so_many_iterations(tmp_path):
    text = case_text("nodes = [9, 9]", "vvvv", "1", "method = 'jacobi'\niterations = 13")
    result = solve(text, tmp_path)
    assert (result.outcome.count, result.exit_code) == (13, 0)


def test_not_converged(tmp_path):
    text = case_text("nodes = [9, 9]", "vvvv", "1", "method = 'jacobi'\nmax_iterations = 5")
    result = solve(text, tmp_path)
    assert result.exit_code == 3
    stored = read(result.path)
    assert not stored.attributes["converged"]
    assert stored.attributes["iterations"] == 5


def test_incompatible_problem_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"do not cancel \(sum 64 of magnitudes 64\)"):
        solve(case_text("cells = [8, 8]", "gggg", "1"), tmp_path)


def test_compatible_problem_has_zero_mean(tmp_path):
    text = case_text("nodes = [9, 9]", "gggg", "cos(pi*x)", "relative = true\ntolerance = 1e-12")
    field = solve(text, tmp_path).fields["temperature"]
    weights = np.ones(9)
    weights[[0, -1]] = 0.5
    assert abs(np.einsum("ij,i,j", field, weights, weights)) < 1e-12


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("grid", "walls", "solver", "warned"),
    [
        ("cells = [6, 5]", "gggg", "method = 'jacobi'", True),
        ("nodes = [5, 5]", "gggg", "method = 'jacobi'", True),
        ("cells = [6, 4]\nperiodic = ['x', 'y']", "----", "method = 'jacobi'", True),
        ("cells = [5, 4]\nperiodic = ['x', 'y']", "----", "method = 'jacobi'", False),
        ("cells = [6, 5]", "gggg", "method = 'jacobi'\nweight = 0.9", False),
        ("cells = [6, 5]", "gggg", "method = 'jacobi'\niterations = 200", False),
        ("cells = [6, 5]", "gggr", "method = 'jacobi'", False),
        ("cells = [6, 5]", "gggg", "", False),
    ],
)
def test_an_iteration_that_stalls_is_told_before_it_runs(
    grid, walls, solver, warned, tmp_path, capsys
):
    """The checkerboard, which two sources of one magnitude wake up, never fades."""
    points = "".join(
        f"[[source.point]]\nfield = 'temperature'\nindex = {index}\nvalue = {value}\n"
        for index, value in (([1, 1], 1), ([2, 1], -1))
    )
    text = case_text(grid, walls, "0", f"max_iterations = 3000\n{solver}")
    case = parse(f"{text}\n{points}", "case")
    result = run(case, "numpy", tmp_path / "case.h5")
    assert (result.outcome.ending == "limit") == warned
    sentence = "a weight below 1, such as solver.weight = 0.9"
    assert (sentence in capsys.readouterr().err) == warned
    assert (sentence in "\n".join(preview(case, "numpy"))) == warned


@pytest.mark.parametrize(("lowest", "tolerance", "warned"), [
    (1e-4, 1e-8, False), (1e-8, 1e-8, True), (1e-8, 1e-12, False), (1.0, 0.2, False),
])  # fmt: skip
def test_conductivities_that_differ_more_than_a_tolerance_tells(lowest, tolerance, warned):
    model = f"conductivity = 'where(x < 0.5, 1, {lowest})'"
    text = case_text("cells = [6, 5]", "vvgg", solver=f"tolerance = {tolerance}", model=model)
    said = "\n".join(preview(parse(text, "case"), "numpy"))
    assert ("conductivities differ by a factor of" in said) == warned


def test_divergence_is_told(tmp_path):
    text = case_text("nodes = [9, 9]", "vvvv", "1", "method = 'jacobi'\nweight = 2.0")
    with pytest.raises(Diverged, match="diverged by iteration"):
        solve(text, tmp_path)
    assert not (tmp_path / "case.h5").exists()


def test_the_first_value_that_is_not_finite_is_named():
    from heatsolve.linear.stopping import first_not_finite

    problem = Conduction(parse(case_text("cells = [6, 5]", "vvvv"), "case"), make("numpy"))
    system = problem.system(problem.backend.to_device(problem.source(0.0)))
    field = problem.temperature
    assert first_not_finite(system, field) == ""
    field[0, 3] = np.nan  # behind a wall, told at the cell beside it
    assert first_not_finite(system, field) == "temperature is nan at x = 0.416667, y = 0.1"
    field[2, 2], field[3, 1] = -np.inf, np.nan  # what lies inside comes first
    assert first_not_finite(system, field) == "temperature is -inf at x = 0.25, y = 0.3"


def test_unstable_step_is_refused(tmp_path):
    time = {"time": "end = 1\nstep = 0.1"}
    text = case_text("cells = [8, 8]", "vvvv", model="steady = false", **time)
    # 2 / (8 / h^2), h = 1/8: Gershgorin's bound is 8 / h^2 in every cell, at the walls as well.
    with pytest.raises(InputError, match=r"time\.step.*unstable.*at most 0\.00390625"):
        solve(text, tmp_path)


def test_unstable_step_may_be_allowed(tmp_path):
    time = {"time": "end = 60\nstep = 0.1\nallow_unstable = true"}
    text = case_text("cells = [8, 8]", "vvvv", model="steady = false", **time)
    with pytest.raises(Diverged, match="diverged by step"):
        solve(text, tmp_path)


@pytest.mark.parametrize(
    ("scheme", "tolerance"),
    [("explicit", 1e-12), ("crank-nicolson", 1e-9), ("backward-euler", 1e-9)],
)
def test_amplitude_of_an_eigenmode(scheme, tolerance, tmp_path):
    """On the lowest mode each scheme multiplies by a known factor every step."""
    h, step, count = 1.0 / 16, 5e-4, 20
    z = step * 2 * 4 * np.sin(np.pi * h / 2) ** 2 / h**2
    factors = {"explicit": 1 - z, "backward-euler": 1 / (1 + z),
               "crank-nicolson": (1 - z / 2) / (1 + z / 2)}  # fmt: skip
    amplitude = factors[scheme] ** count
    if scheme == "crank-nicolson":  # four half-steps of backward Euler in place of the first two
        amplitude = factors[scheme] ** (count - 2) / (1 + z / 2) ** 4
    text = case_text(
        "nodes = [17, 17]", "0000", "0", "relative = true\ntolerance = 1e-12", "steady = false",
        initial="temperature = 'sin(pi*x)*sin(pi*y)'",
        time=f"end = {step * count}\nstep = {step}\nscheme = '{scheme}'",
    )  # fmt: skip
    assert solve(text, tmp_path).fields["temperature"][8, 8] == pytest.approx(
        amplitude, rel=tolerance
    )


@pytest.mark.parametrize(("every", "asked"), [(1, 11), (5, 4)])
def test_what_drives_a_march_is_evaluated_once_a_time(every, asked, monkeypatch, tmp_path):
    """The end of a step that is checked is the start of the next; rho c is evaluated once more than
    the coefficients are made."""
    times, capacities = [], []
    drive, capacity = Conduction.driving_magnitudes, Volumes.capacity
    monkeypatch.setattr(
        Conduction, "driving_magnitudes", lambda *a: times.append(a[1]) or drive(*a)
    )
    monkeypatch.setattr(Volumes, "capacity", lambda self: capacities.append(1) or capacity(self))
    text = case_text(
        "cells = [4]", "vv", "sin(t)", f"check_every = {every}", "steady = false",
        time="step = 0.001\nend = 0.01",
    )  # fmt: skip
    solve(text, tmp_path)
    assert times == sorted(set(times)) and len(times) == asked
    assert len(capacities) == 2


@pytest.mark.parametrize(
    ("walls", "source", "driven"),
    [
        ("value = 't'", "1", (True, False)),
        ("robin = { h = 1, ambient = 't' }", "1", (True, False)),
        ("gradient = 't'", "1", (False, True)),
        ("gradient = 0", "t", (False, True)),
        ("gradient = 0", "x", (False, False)),
    ],
)
def test_whether_walls_or_sources_vary_is_known_to_all_blocks(walls, source, driven):
    """Also to a block that does not end at the wall."""
    text = case_text(
        "cells = [8]", "", source, model="steady = false", time="step = 0.001\nend = 0.01",
        boundary=f"left.temperature = {{ {walls} }}\nright.temperature.value = 0",
    )  # fmt: skip
    problem = Conduction(parse(text, "case"), NumpyBackend())
    problem.grid, problem.walls = block_of_rank(problem.whole, (2,), 1, 1), problem.walls[1:]
    assert (problem.walls_vary, problem.sources_vary) == driven
    assert problem.driven_in_time == any(driven)


@pytest.mark.parametrize("scheme", ["explicit", "crank-nicolson", "backward-euler"])
def test_walls_and_sources_in_time(scheme, tmp_path):
    """T = x t + y: linear in t and space, so every scheme carries it exactly."""
    walls = "\n".join(
        f"{name}.temperature = {{ value = '{text}' }}"
        for name, text in (("left", "y"), ("right", "t + y"), ("bottom", "x*t"), ("top", "x*t + 1"))
    )
    text = case_text(
        "cells = [8, 6]", "", "x", "relative = true\ntolerance = 1e-12", "steady = false",
        boundary=walls, initial="temperature = 'y'",
        reference="exact = { temperature = 'x*t + y' }",
        time=f"end = 0.35\nstep = 0.002\nscheme = '{scheme}'", output="every = 50",
    )  # fmt: skip
    result = solve(text, tmp_path)
    stored = read(result.path)
    assert list(stored.time) == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.35])
    assert stored.attributes["error_max_temperature"] < (2e-3 if scheme == "explicit" else 1e-9)


@pytest.mark.parametrize("grid", ["nodes = [{n}]", "cells = [{n}]"])
@pytest.mark.parametrize("wall", ["gradient = 1", "robin = {{ h = 2, ambient = '{ambient}' }}"])
def test_order_with_conductivity_that_varies_up_to_the_wall(grid, wall, tmp_path):
    """T = log(1 + 4x) with k = 1 + 4x: the flux is 4 everywhere."""
    errors = []
    for n in (20, 40, 80):
        # dT/dn = 4/5 at x = 1; -k dT/dn = h (T - ambient) gives the ambient.
        ambient = np.log(5.0) + 4.0 / 2.0
        condition = wall.format(ambient=ambient).replace("gradient = 1", "gradient = 0.8")
        text = "\n".join(
            ["[model]", "conductivity = '1 + 4*x'", "[grid]", grid.format(n=n), "[boundary]",
             "left.temperature = { value = 0 }", f"right.temperature = {{ {condition} }}",
             "[solver]", "relative = true", "tolerance = 1e-12",
             "[reference]", "exact.temperature = 'log(1 + 4*x)'"]
        )  # fmt: skip
        errors.append(read(solve(text, tmp_path).path).attributes["error_max_temperature"])
    orders = np.log2(np.divide(errors[:-1], errors[1:]))
    assert np.all(orders > 1.7), (errors, orders)


def test_expressions_are_asked_only_where_a_cell_is(tmp_path):
    """1 / sqrt(x) is infinite on the wall, where no cell is."""
    text = case_text("cells = [8, 4]", "vggg", "1/sqrt(x)", TIGHT)
    assert solve(text, tmp_path).outcome.converged


def test_growth_is_divergence_though_it_is_finite(tmp_path):
    march = {"time": "end = 2\nstep = 0.006\nallow_unstable = true"}
    text = case_text("cells = [8, 8]", "vvvv", model="steady = false", **march)
    with pytest.raises(Diverged, match="the field changes by"):
        solve(text, tmp_path)


def test_a_short_pulse_is_no_divergence(tmp_path):
    """A march whose sources vary is checked often enough to see them: every second step here."""
    march = {"time": "end = 2\nstep = 1e-3"}
    source = "exp(-((t - 1.007)/0.002)**2)"
    text = case_text("nodes = [8]", "vv", source, model="steady = false", **march)
    history = read(solve(text, tmp_path).path).history
    assert history["time"].size == 1000 and np.max(history["residual"]) > 0.1
    constant = text.replace(source, "1")  # its steps between two checks are made in passes
    assert read(solve(constant, tmp_path).path).history["time"].size == 100


@pytest.mark.parametrize("kind", [ConjugateGradients, MultigridCG])
def test_a_new_start_forgets_the_sums_of_an_iteration_that_broke_off(kind, backend):
    machine, fields = make(backend), []
    for broken in (False, True):
        problem = Conduction(parse(case_text("nodes = [40, 30]", "vgvr"), "case"), machine)
        b = machine.to_device(noise_inside(problem.grid.shape))
        method = kind(problem.system(b), problem.temperature)
        for _ in range(3):  # the second and the third are played back
            method.restart()
            if broken:
                for total in (method._pap, method._rz):
                    machine.sweep(term_of(copy, "sum"), total, problem.grid.interior, b)
        method.restart()
        for number in range(3):
            method.step(number, None)
        fields.append(machine.to_host(method.solution(3)).tobytes())
    assert fields[0] == fields[1]


def test_a_file_that_is_no_result_is_not_overwritten(tmp_path):
    text = case_text("cells = [4, 4]", "vvvv")
    target = tmp_path / "case.h5"
    target.write_text(text)
    with pytest.raises(InputError, match="it is not overwritten"):
        solve(text, tmp_path)
    assert target.read_text() == text
