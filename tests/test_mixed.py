"""Mixed precision: answers of double precision from cycles in single, the same bits everywhere."""

import re

import numpy as np
import pytest
from conformance import same
from emulated import Emulated
from many import Impatient
from test_multigrid import residual
from test_solvers import PROBLEMS, TIGHT, case_text, solve

from heatsolve.backends.gpu import cycle_legs
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.backends.registry import make
from heatsolve.case.load import parse
from heatsolve.control.controller import Start
from heatsolve.errors import InputError, Interrupted
from heatsolve.linear.multigrid.mixed import corrected
from heatsolve.models.heat.conduction import Conduction
from heatsolve.models.heat.solver import make_method
from heatsolve.runner import run
from heatsolve.tools.check import preview
from heatsolve.tools.measure import noise_inside

MIXED = "precision = 'mixed'\nmethod = 'multigrid'\n"
MARCH = "end = 0.35\nstep = 0.05\nscheme = '{}'"


def noisy(grid, walls, machine, options="", model="", factor=1.0):
    """A method from zero, with white noise on its right side."""
    text = case_text(grid, walls.replace("v", "0"), solver=MIXED + options, model=model)
    case = parse(re.sub(r"ambient = [\d.]+", "ambient = 0", text), "case")
    problem = Conduction(case, machine)
    b = problem.backend.to_device(factor * noise_inside(problem.grid.shape))
    system = problem.system(b)
    if system.singular:
        system.remove_mean(system.b)
    return make_method(case, system, problem.temperature)


def corrections(method, tolerance=1e-10, most=9):
    """Iterations until l2(b - A u) has fallen by so much, or is at rounding level."""
    first = residual(method.system, method.u)
    for number in range(most):
        method.step(number, None)
        floor = method.system.residual_floor(method.u, "sum")
        if residual(method.system, method.u) <= max(tolerance * first, floor):
            return number + 1
    return most + 1


# ---- sweeps of both precisions -----------------------------------------------------------------


def product(at, a, b, factor):
    """Of two arrays: in single precision it would be rounded."""
    value = factor * a[at] * b[at]
    return value, value, value


def wide_fields(shape, seed):
    """Mixed signs, and magnitudes beyond those of single precision."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=shape) * 10.0 ** rng.uniform(-50, 50, shape)
    values.flat[::7] = 0.0
    return values


@pytest.mark.parametrize("shape", [(69,), (6, 37), (5, 4, 35)])
@np.errstate(over="ignore")
def test_a_sweep_of_arrays_in_single_precision(shape, backend):
    """Read exactly, computed in double precision, rounded once: as NumPy's own arithmetic does."""
    machine = make(backend)
    single = machine.single()
    a, b = (wide_fields(shape, seed).astype("float32") for seed in (1, 2))
    a[~np.isfinite(a)], b[~np.isfinite(b)] = 2.5, -1e-40
    region = tuple((1, n - 1) for n in shape)
    inside = tuple(slice(*pair) for pair in region)
    narrow, wide, norm = single.zeros(shape), machine.zeros(shape), machine.accumulator("max")
    machine.sweep(
        product, (narrow, wide, norm), region, single.to_device(a), single.to_device(b), 0.3
    )
    expected = np.zeros(shape)
    expected[inside] = (0.3 * a.astype(float) * b.astype(float))[inside]
    assert same(machine.to_host(wide), expected)
    assert single.to_host(narrow).dtype == np.float32
    assert same(single.to_host(narrow), expected.astype("float32"))
    assert norm.value == np.abs(expected).max()


def test_work_in_both_precisions_counts_as_one(backend):
    machine = make(backend)
    single = machine.single()
    assert machine.single() is single
    shape, region = (6, 8), ((1, 5), (1, 7))
    u, e = machine.zeros(shape), single.zeros(shape)
    machine.sweep(corrected, u, region, u, e, 1.0)
    single.sweep(corrected, e, region, e, e, 1.0)
    assert machine.points_updated == 2 * 24
    assert machine.bytes_moved == 24 * (8 + 4 + 8) + 24 * (4 + 4 + 4)


# ---- how many corrections, and how good --------------------------------------------------------


@pytest.mark.parametrize("walls", ["vvvv", "gvgr", "gggg", "vg--", "----"])
@pytest.mark.parametrize(("grid", "most"), [("nodes = [129, 128]", 3), ("cells = [97, 65]", 5)])
def test_corrections_in_2d(grid, most, walls):
    """Of two cycles each: multigrid in double precision needs at most 10 cycles, on cells 12."""
    periodic = {"vg--": ["y"], "----": ["x", "y"]}.get(walls, [])
    # An odd extent makes rings whose cycles gain less.
    odd_ring = "97" in grid and walls.endswith("--")
    method = noisy(f"{grid}\nperiodic = {periodic}", walls, NumpyBackend())
    assert corrections(method) <= most + (walls != "vvvv") + odd_ring


@pytest.mark.parametrize("options", ["cycle = 'W'", "smoother = 'chebyshev'"])
def test_corrections_of_other_cycles(options):
    assert corrections(noisy("nodes = [129, 128]", "gvrv", NumpyBackend(), options)) <= 5


def test_corrections_in_3d():
    """Of five cycles each."""
    assert corrections(noisy("nodes = [33, 34, 35]", "vvvvvv", NumpyBackend())) <= 3


def test_corrections_do_not_depend_on_the_size():
    counts = [corrections(noisy(f"nodes = [{n}, {n}]", "vvvv", NumpyBackend())) for n in (65, 513)]
    assert counts == [3, 3]


@pytest.mark.parametrize("factor", [1e-250, 1e-30, 1e30, 1e140])
@pytest.mark.parametrize("model", ["", "conductivity = 1e-30", "conductivity = 1e30"])
def test_any_magnitude(factor, model):
    """Powers of two round nothing: neither b nor the conductivity need fit single precision."""
    machine = NumpyBackend()
    first, other = (noisy("nodes = [17, 14]", "gvgv", machine, model=text, factor=f)
                    for text, f in (("", 1.0), (model, factor)))  # fmt: skip
    for method in (first, other):
        for number in range(4):
            method.step(number, None)
        method.u /= np.abs(method.u).max()
    assert np.abs(first.u - other.u).max() < 1e-13


@pytest.mark.parametrize("problem", PROBLEMS)
def test_as_good_as_double_precision(problem, tmp_path):
    """The same rounding level ends both, and there both hold the same solution."""
    grid, walls, source = PROBLEMS[problem]
    mixed, double = (
        solve(case_text(grid, walls, source, solver + "tolerance = 1e-30"), tmp_path)
        for solver in (MIXED, "method = 'multigrid'\n")
    )
    assert mixed.outcome.ending == double.outcome.ending == "rounding"
    assert mixed.outcome.floor == pytest.approx(double.outcome.floor)
    a, b = mixed.fields["temperature"], double.fields["temperature"]
    assert a.dtype == np.float64
    assert np.abs(a - b).max() < 1e-12 * max(1.0, np.abs(b).max())


def test_exact_discrete_solution(tmp_path):
    """For the sine source it is the source over the eigenvalue, 8 sin(pi h / 2)^2 / h^2."""
    text = case_text("nodes = [65, 65]", "0000", "sin(pi*x)*sin(pi*y)", MIXED + "tolerance = 1e-30")
    result = solve(text, tmp_path)
    assert result.outcome.ending == "rounding"
    x = np.linspace(0.0, 1.0, 65)
    exact = np.outer(np.sin(np.pi * x), np.sin(np.pi * x)) / (8 * 64**2 * np.sin(np.pi / 128) ** 2)
    assert np.abs(result.fields["temperature"] - exact).max() < 1e-15


@pytest.mark.parametrize("scheme", ["backward-euler", "crank-nicolson"])
def test_implicit_steps_with_walls_in_time(scheme, tmp_path):
    """T = x t + y is linear in time and space, so that both schemes carry it exactly."""
    walls = "\n".join(
        f"{name}.temperature = {{ value = '{text}' }}"
        for name, text in (("left", "y"), ("right", "t + y"), ("bottom", "x*t"), ("top", "x*t + 1"))
    )
    text = case_text(
        "nodes = [9, 6]", "", "7*x", f"{MIXED}{TIGHT}", "steady = false\ndensity = 7",
        boundary=walls, initial="temperature = 'y'", time=MARCH.format(scheme),
    )  # fmt: skip
    field = solve(text, tmp_path).fields["temperature"]
    exact = 0.35 * np.linspace(0, 1, 9) + np.linspace(0, 1, 6)[:, None]
    assert np.abs(field - exact).max() < 1e-12


# ---- bits, restarts, refusals ------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("problem", "monitor"),
    [("3D nodes", "residual"), ("nodes, periodic", "residual"), ("1D cells", "update")],
)
def test_backends_give_the_same_bits(problem, monitor, other_backend, tmp_path):
    grid, walls, source = PROBLEMS[problem]
    solver = f"{MIXED}monitor = '{monitor}'\nrelative = true\ntolerance = 1e-9"
    text = case_text(grid, walls, source, solver)
    reference, other = (solve(text, tmp_path, name) for name in ("numpy", other_backend))
    assert other.outcome.history == reference.outcome.history
    assert other.fields["temperature"].tobytes() == reference.fields["temperature"].tobytes()


def test_the_norm_that_is_kept_is_that_of_the_residual():
    method = noisy("cells = [24, 21]", "vgrv", NumpyBackend())
    for number in range(3):
        method.step(number, None)
        kept, plain = (method.system.backend.accumulator("sum") for _ in range(2))
        method.residual_norm(number + 1, kept)
        method.system.residual_norm(method.u, plain)
        assert kept.value == plain.value > 0.0


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("grid", "walls"), [("nodes = [67, 50]", "gvrv"), ("cells = [30, 21, 20]", "vvgrvg")]
)
def test_cycle_legs_of_gpus_give_the_same_bits(grid, walls, monkeypatch):
    monkeypatch.setattr(cycle_legs, "FEWEST_POINTS", {2: 0, 3: 0})
    monkeypatch.setattr("heatsolve.linear.multigrid.hierarchy.MOST", 9)
    emulated, plain = Emulated(), NumpyBackend()
    methods = [noisy(grid, walls, machine) for machine in (emulated, plain)]
    for method in methods:
        method.step(0, None)
    assert emulated.single().launched > 10
    assert methods[0].u.tobytes() == methods[1].u.tobytes()


@pytest.mark.few(1)
@pytest.mark.parametrize("monitor", ["update", "residual"])
@pytest.mark.parametrize("questions", [0, 1, 2])
def test_goes_on_bit_for_bit(monitor, questions, tmp_path):
    solver = f"{MIXED}monitor = '{monitor}'\ntolerance = 1e-10"
    text = case_text("cells = [24, 21]", "vgrv", "x", solver, checkpoint="every = 1")
    case = parse(text, "case")
    alone = run(case, "numpy", tmp_path / "alone.h5")
    start = Start(restart=True)
    with pytest.raises(Interrupted):
        run(case, "numpy", tmp_path / "two.h5", start=start, request=Impatient(questions))
    resumed = run(case, "numba", tmp_path / "two.h5", start=start)
    assert resumed.outcome.history == alone.outcome.history
    assert resumed.fields["temperature"].tobytes() == alone.fields["temperature"].tobytes()


REFUSED = {
    "method = 'cg'": 'only for method = "multigrid", not "cg"',
    "method = 'mgcg'": 'only for method = "multigrid", not "mgcg"',
    "update = 'laplace'\nmonitor = 'update'": 'only for method = "multigrid", not "jacobi"',
    "method = 'multigrid'\ncycle = 'FMG'": 'must be "V" or "W" with precision = "mixed"',
}


@pytest.mark.parametrize("solver", REFUSED)
def test_refused_in_one_sentence(solver):
    text = case_text("nodes = [9, 9]", "vvvv", solver=f"precision = 'mixed'\n{solver}")
    with pytest.raises(InputError, match=re.escape(REFUSED[solver])):
        parse(text, "case")


def test_refused_where_auto_means_another_method():
    text = case_text("nodes = [9, 9]", "vvvv", "1", "precision = 'mixed'", "conductivity = '1 + x'")
    with pytest.raises(InputError, match='auto means "mgcg" here'):
        parse(text, "case")


def test_refused_with_explicit_steps():
    text = case_text(
        "nodes = [9, 9]", "vvvv", "1", "precision = 'mixed'", "steady = false",
        time=MARCH.format("explicit"),
    )  # fmt: skip
    with pytest.raises(InputError, match="not explicit steps"):
        parse(text, "case")


def test_refused_where_single_precision_is_too_narrow(tmp_path):
    model = "conductivity = 'where(x < 0.5, 1, 1e25)'"
    with pytest.raises(InputError, match="too much for single precision"):
        solve(case_text("cells = [8, 8]", "vvvv", "1", MIXED, model), tmp_path)


def test_check_tells_of_it():
    """Its own arrays need less memory than those of double precision."""
    mixed, double = (
        list(preview(parse(case_text("nodes = [99, 99]", "vvvv", "1", solver), "case"), "numpy"))
        for solver in (MIXED, "method = 'multigrid'")
    )
    assert any("in single precision, corrections in double" in line for line in mixed)
    assert any(line.startswith("backend") and line.endswith("mixed") for line in mixed)
    memory = [
        next(line for line in lines if line.startswith("memory")) for lines in (mixed, double)
    ]
    amounts = [float(re.search(r"[\d.]+", line).group()) for line in memory]
    assert amounts[0] < amounts[1]
