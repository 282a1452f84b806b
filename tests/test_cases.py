"""Every shipped case gives what it promises, on every backend."""

import hashlib
import math

import numpy as np
import pytest

from heatsolve.backends import registry as choice
from heatsolve.case.load import load, shipped
from heatsolve.io.reader import read
from heatsolve.linear.iterate import finished
from heatsolve.models.heat.conduction import Conduction
from heatsolve.report import Report
from heatsolve.runner import run
from heatsolve.tools.verify import VERIFICATIONS

# sha256 of the stored arrays, and values, from the published listings run in NumPy.
SPACE = {"taylor-green-3d"}
"""Tried in test_flow."""
HOTSPOT = "6f6665e23c83d2adac4b51ac9408f69728383c6cd3ceee4114dd1c035ea564c3"
LEGATE = "d3ac5b4ab14a36e351df1c4d23f626ac72c484d43b8596875805eb62a9345efa"
LEGATE_FLOAT32 = "1428cbfb9f327e63537cd51fafda77cc7999e116ab7310ccf1d0e20254a8aba6"


TEACHING = {
    "cfdpython-01": ("concentration", 51.9994559586048, 1.97104072570801),
    "cfdpython-02": ("velocity_x", 45.0254251598721, 2.0),
    "cfdpython-03": ("concentration", 51.9994784879949, 1.94957196448191),
    "cfdpython-04": ("velocity_x", 384.223887567688, 5.7165341684335),
    "cfdpython-05": ("concentration", 7001.99968515438, 1.9827446682477698),
    "cfdpython-06": ("velocity_x", 10760.833754631883, 1.9858946684557695),
    "cfdpython-07": ("concentration", 1074.844853661326, 1.5161819034094774),
    "cfdpython-08": ("velocity_x", 1796.079269618067, 1.99994348299249),
}
"""Field, its sum and its largest value, from the published lessons run in NumPy."""


def solve(name, backend, path, *overrides):
    return run(load(name, overrides), backend, path / "case.h5")


def sha256(field):
    return hashlib.sha256(field.tobytes()).hexdigest()


def test_all_cases_are_tried_here():
    tried = {"hotspot", "legate-stencil", "nvidia-jacobi", "hot-plate", "sine-source",
             "sine-source-3d", "composite-wall", "cooling-cube", "heat-sink",
             *TEACHING, "cfdpython-09", "cfdpython-09-correct", "cfdpython-10", "cfdpython-11",
             "cfdpython-12", "cfdpython-12-correct", "legate-cfd", *VERIFICATIONS,
             *SPACE}  # fmt: skip
    assert set(shipped()) == tried


@pytest.mark.few(1, among="numba")
def test_hotspot(backend, tmp_path):
    result = solve("hotspot", backend, tmp_path)
    field = result.fields["temperature"]
    assert result.outcome.count == 19008
    assert result.outcome.converged
    assert field[128, 128].hex() == "0x1.365401a3bc5eap-3"
    assert sha256(field) == HOTSPOT
    stored = read(result.path)
    assert stored.attributes["iterations"] == 19008
    assert sha256(stored.fields["temperature"]) == HOTSPOT
    # The listing's own norms at a few iterations.
    norms = dict(zip(stored.history["iteration"], stored.history["residual"], strict=True))
    assert norms[1] == 0.03814697265625
    assert norms[10000] == pytest.approx(0.00019855966371232507, rel=1e-14)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("size", "count", "digest"),
    [
        (128, 11524, "e7b75e796fcac5eae0da2e43d4d383cf8a84eea78e9d7acde16eb114129ad6ac"),
        (512, 2896, "b52c7769638e235cefff7d7a8e92f613c1e3fc9a0188eb1e037dff44fa8099c3"),
    ],
)
def test_hotspot_at_other_sizes(size, count, digest, tmp_path):
    sets = [f"constants.dx=1/{size}", f"grid.nodes=[{size}, {size}]",
            f"grid.upper=['{size - 1}*dx', '{size - 1}*dx']",
            f"source.point.0.index=[{size // 2}, {size // 2}]"]  # fmt: skip
    result = solve("hotspot", "numba", tmp_path, *sets)
    assert result.outcome.count == count
    assert sha256(result.fields["temperature"]) == digest


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("precision", "digest"), [("float64", LEGATE), ("float32", LEGATE_FLOAT32)]
)
def test_legate_stencil(backend, precision, digest, tmp_path):
    result = solve("legate-stencil", backend, tmp_path, f"solver.precision={precision}")
    assert result.outcome.count == 100
    assert sha256(result.fields["temperature"]) == digest


def test_nvidia_jacobi(backend, tmp_path):
    nx, ny, sweeps = 70, 43, 30
    edge = np.sin(2.0 * np.pi * np.arange(ny) / (ny - 1))
    a = np.zeros((ny, nx))
    a[:, 0] = a[:, -1] = edge
    for _ in range(sweeps):
        new = a.copy()
        new[1:-1, 1:-1] = 0.25 * (a[1:-1, 2:] + a[1:-1, :-2] + a[2:, 1:-1] + a[:-2, 1:-1])
        new[0], new[-1] = new[-2], new[1]
        a = new
    sets = (f"constants.nx={nx}", f"constants.ny={ny}", f"solver.iterations={sweeps}")
    result = solve("nvidia-jacobi", backend, tmp_path, *sets)
    assert np.array_equal(result.fields["temperature"], a[1:-1])


# Values of the series at (x, y), from 40-digit arithmetic.
PLATE = {(0.25, 0.25): 0.06797166811306164, (0.25, 0.5): 0.18202833188693834,
         (0.25, 0.75): 0.43202833188693834}  # fmt: skip


def test_hot_plate(backend, tmp_path):
    errors = []
    for intervals in (40, 80, 160):
        nodes = intervals + 1
        result = solve("hot-plate", backend, tmp_path, f"grid.nodes=[{nodes}, {nodes}]")
        field = result.fields["temperature"]
        assert result.outcome.converged
        assert abs(field[intervals // 2, intervals // 2] - 0.25) < 1e-10
        errors.append([field[round(y * intervals), round(x * intervals)] - exact
                       for (x, y), exact in PLATE.items()])  # fmt: skip
    orders = np.log2(np.abs(np.divide(errors[:-1], errors[1:])))
    assert np.all((orders > 1.9) & (orders < 2.1))


def exact_discrete(intervals, dimension):
    """The five- or seven-point solution for the sine source, in closed form."""
    h = 1.0 / intervals
    line = np.sin(np.pi * np.arange(intervals + 1) * h)
    field = (math.pi * h / 2) ** 2 / math.sin(math.pi * h / 2) ** 2
    for axis in range(dimension):
        field = field * line.reshape([-1 if axis == n else 1 for n in range(dimension)])
    return field


@pytest.mark.few(2, among="numpy")
@pytest.mark.parametrize(
    ("name", "intervals"),
    [("sine-source", 32), ("sine-source", 129), ("sine-source-3d", 16), ("sine-source-3d", 33)],
)
def test_sine_source(name, intervals, backend, tmp_path):
    dimension = 3 if name.endswith("3d") else 2
    nodes = f"grid.nodes={[intervals + 1] * dimension}"
    result = solve(name, backend, tmp_path, nodes)
    assert result.outcome.ending == "rounding"
    difference = result.fields["temperature"] - exact_discrete(intervals, dimension)
    assert np.abs(difference).max() < 1e-12


def test_sine_source_is_second_order(tmp_path):
    errors = []
    for intervals in (16, 32, 64):
        nodes = f"grid.nodes=[{intervals + 1}, {intervals + 1}]"
        result = solve("sine-source", "numba", tmp_path, nodes)
        errors.append(read(result.path).attributes["error_l2_temperature"])
    orders = np.log2(np.divide(errors[:-1], errors[1:]))
    assert np.all((orders > 1.95) & (orders < 2.05))


@pytest.mark.slow
def test_sine_source_at_1024(tmp_path):
    result = solve("sine-source", "numba", tmp_path, "grid.nodes=[1025, 1025]")
    difference = result.fields["temperature"] - exact_discrete(1024, 2)
    assert np.abs(difference).max() < 1e-12


@pytest.mark.few(2, among="numpy")
@pytest.mark.parametrize("contrast", [20.0, 1e4])
def test_composite_wall(contrast, backend, tmp_path):
    result = solve("composite-wall", backend, tmp_path, f"constants.k2={0.8 / contrast}")
    case = load("composite-wall")
    span = case.constants["hot"] - case.constants["outside"]
    error = read(result.path).attributes["error_max_temperature"]
    assert error < 1e-9 * span


def test_composite_wall_flux(tmp_path):
    case = load("composite-wall")
    problem, _ = solved(case, "numpy")
    left, right = (heat_through(problem, wall) for wall in problem.walls)
    assert left == pytest.approx(case.constants["q"], rel=1e-8)
    assert right == pytest.approx(-case.constants["q"], rel=1e-8)


def heat_through(problem, wall):
    """The heat that enters through a wall (W, or W/m and W/m2 in 2D and 1D)."""
    volumes, axes = problem.volumes, problem.grid.axes
    t = problem.backend.to_host(problem.temperature)
    rise = wall.beside(t, ghosts=True) - wall.beside(t)
    ratio = wall.beside(volumes.ratios[wall.axis])
    gain = ratio * volumes.wall_conductance(wall) * rise + volumes.flux(wall, 0.0)
    for full_to_own in volumes.ratios:
        gain = gain / wall.beside(full_to_own)
    layer = [slice(1, -1)] * gain.ndim
    layer[wall.axis] = slice(None)
    return gain[tuple(layer)].sum() * np.prod([axis.spacing for axis in axes])


def solved(case, backend):
    from heatsolve.report import Report
    from heatsolve.time import loop as march

    problem = Conduction(case, choice.make(backend))
    return problem, finished(march.iterating(problem, Report(quiet=True)))


# The slab's series at the centre, cubed, at alpha t = 0.05, from 40-digit arithmetic.
COOLED = 0.4606570110171877


def centre(result):
    field = result.fields["temperature"]
    return float(field[tuple(n // 2 for n in field.shape)])


@pytest.mark.few(1, among="numpy")
def test_cooling_cube(backend, tmp_path):
    sets = ("grid.nodes=[17, 17, 17]", "time.step=0.0025")
    result = solve("cooling-cube", backend, tmp_path, *sets)
    assert result.outcome.count == 20
    assert abs(centre(result) - COOLED) < 4e-3
    assert read(result.path).fields["temperature"].shape == (5, 17, 17, 17)


@pytest.mark.thorough
def test_cooling_cube_is_second_order_in_space(tmp_path):
    # The step falls with h^2, so that the error in time (order 1) falls as the one in space.
    errors = []
    for intervals in (8, 16, 32):
        nodes = f"grid.nodes={[intervals + 1] * 3}"
        sets = (nodes, "time.scheme=explicit", "time.cfl=0.6")
        errors.append(centre(solve("cooling-cube", "numba", tmp_path, *sets)) - COOLED)
    orders = np.log2(np.abs(np.divide(errors[:-1], errors[1:])))
    assert np.all((orders > 1.9) & (orders < 2.1))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("scheme", "order"), [("explicit", 1), ("backward-euler", 1), ("crank-nicolson", 2)]
)
def test_cooling_cube_in_time(scheme, order, tmp_path):
    steps = [0.0005, 0.00025, 0.000125] if scheme == "explicit" else [0.0025, 0.00125, 0.000625]
    values = [
        centre(solve("cooling-cube", "numba", tmp_path, "grid.nodes=[17, 17, 17]",
                     f"time.step={step}", f"time.scheme={scheme}"))
        for step in steps
    ]  # fmt: skip
    measured = math.log2((values[0] - values[1]) / (values[1] - values[2]))
    assert abs(measured - order) < 0.1


def resistance(problem):
    """(Mean temperature of the base - ambient) / heat, K/W."""
    constants = problem.case.constants
    layer = problem.backend.to_host(problem.temperature)[1, 1:-1, 1:-1]
    heat = constants["flux"] * constants["width"] * constants["depth"]
    return (float(layer.mean()) - constants["ambient"]) / heat


@pytest.mark.few(1)
@pytest.mark.parametrize("backend_name", ["numpy", "numba"])
def test_heat_sink_balance(backend_name):
    case = load("heat-sink", ["grid.cells=[28, 10, 24]"])
    problem, _ = solved(case, backend_name)
    flows = {wall.name: heat_through(problem, wall) for wall in problem.walls}
    given = case.constants["flux"] * case.constants["width"] * case.constants["depth"]
    assert flows["back"] == pytest.approx(given, rel=1e-12)
    assert abs(sum(flows.values())) < 1e-8 * given


@pytest.mark.thorough
def test_heat_sink_resistance():
    """Within 1 % of its Richardson value, from grids that all put the fins' sides on faces."""
    values = []
    for n in (1, 2, 4):
        case = load("heat-sink", [f"grid.cells=[{14 * n}, {5 * n}, {12 * n}]"])
        values.append(resistance(solved(case, "numba")[0]))
    richardson = values[2] + (values[2] - values[1]) / 3.0
    assert abs(values[2] / richardson - 1.0) < 0.01


@pytest.mark.thorough
def test_single_fin():
    """A fin's efficiency is tanh(mL) / (mL), m^2 = 2 h / (k t), where Bi = h t / k is small."""
    k, h, thickness, length, root = 200.0, 100.0, 0.002, 0.08, 1.0
    overrides = [
        "grid.cells=[8, 2, 200]",
        f"grid.upper=[{thickness}, 0.01, {length}]",
        f"model.conductivity={k}",
        f"boundary.back.temperature={{value={root}}}",
        "boundary.front.temperature={gradient=0}",
        "boundary.bottom.temperature={gradient=0}",
        "boundary.top.temperature={gradient=0}",
        f"boundary.left.temperature={{robin={{h={h}, ambient=0}}}}",
        f"boundary.right.temperature={{robin={{h={h}, ambient=0}}}}",
    ]
    problem, _ = solved(load("heat-sink", overrides), "numba")
    assert h * thickness / k < 0.01
    m = math.sqrt(2.0 * h / (k * thickness))
    heat = next(heat_through(problem, wall) for wall in problem.walls if wall.name == "back")
    ideal = h * 2.0 * length * 0.01 * root
    assert heat / ideal == pytest.approx(math.tanh(m * length) / (m * length), rel=0.02)


@pytest.mark.parametrize("source", ["0", "x - 0.5"])
def test_a_wall_that_exchanges_no_heat_is_insulated(source, tmp_path):
    """Also where nothing else is given: no number is then too small for the precision."""
    found = []
    for wall in ("{robin={h=0, ambient=1}}", "{gradient=0}"):
        walls = [f"boundary.{end}.temperature={wall}" for end in ("left", "right", "bottom", "top")]
        case = load("hot-plate", ["grid.nodes=[17, 17]", f"source.temperature={source}", *walls])
        found.append(run(case, "numpy", tmp_path / f"{len(found)}.h5").fields["temperature"])
    assert found[0].tobytes() == found[1].tobytes()
    assert np.any(found[0]) == (source != "0")


# ---- CFD Python ---------------------------------------------------------------------------------


@pytest.mark.few(16, among="numpy")
@pytest.mark.parametrize("name", TEACHING)
def test_teaching_case(name, backend, tmp_path):
    field, total, largest = TEACHING[name]
    values = solve(name, backend, tmp_path).fields[field]
    if name == "cfdpython-04":  # the lesson stores the first point again as the last
        values = np.append(values, values[0])
    assert abs(values.sum() - total) <= 1e-12 * np.abs(values).sum()
    assert values.max() == pytest.approx(largest, rel=1e-12)


@pytest.mark.few(2)
def test_teaching_velocities_are_the_same(backend, tmp_path):
    for name in ("cfdpython-06", "cfdpython-08"):
        fields = solve(name, backend, tmp_path).fields
        assert np.array_equal(fields["velocity_x"], fields["velocity_y"])


def test_the_hat_that_is_set_again(backend, tmp_path):
    frames = read(solve("cfdpython-07", backend, tmp_path).path).fields["concentration"]
    for step, total in ((11, 1041.943124294281), (26, 1070.007616933009)):
        assert frames[step].sum() == pytest.approx(total, rel=1e-12)


def test_the_source_and_the_sink(backend, tmp_path):
    result = solve("cfdpython-10", backend, tmp_path)
    p = result.fields["temperature"]
    assert result.outcome.count == 100
    assert np.unravel_index(p.argmax(), p.shape) == (37, 37)
    assert p[37, 37] == pytest.approx(0.0450872002698242, rel=1e-12)
    assert np.abs(p).sum() == pytest.approx(3.102797905084505, rel=1e-12)
    assert np.sqrt((p * p).sum()) == pytest.approx(0.17577394984242445, rel=1e-12)
    assert abs(p.sum()) <= 1e-12 * np.abs(p).sum()


def test_laplace_stopped_early(backend, tmp_path):
    result = solve("cfdpython-09", backend, tmp_path)
    p = result.fields["temperature"]
    assert (result.outcome.count, result.outcome.ending) == (1132, "tolerance")
    assert result.outcome.norm == pytest.approx(9.992746401261962e-05, rel=1e-9)
    assert p.sum() == pytest.approx(231.8167538742652, rel=1e-13)
    assert p.max() == p[29, 30] == pytest.approx(29 / 30, rel=1e-15)
    assert np.array_equal(p[0], p[1]) and np.array_equal(p[-1], p[-2])  # corners, too


def lesson_9(p, y, dx, dy, b, sweeps):
    """The listing of CFD Python's lesson 9, with the source of its lesson 10."""
    for _ in range(sweeps):
        pn = p.copy()
        p[1:-1, 1:-1] = (
            (dy**2 * (pn[1:-1, 2:] + pn[1:-1, 0:-2]))
            + (dx**2 * (pn[2:, 1:-1] + pn[0:-2, 1:-1]))
            - b[1:-1, 1:-1] * dx**2 * dy**2
        ) / (2 * (dx**2 + dy**2))
        p[:, 0] = 0
        p[:, -1] = y
        p[0, :] = p[1, :]
        p[-1, :] = p[-2, :]
    return p


@pytest.mark.parametrize("source", ["0", "sin(3*x) - y"])
def test_laplace_with_different_spacings_is_the_listing(backend, source, tmp_path):
    """Every bit of it, with dx = 2 dy as the lesson has its box; p = y on the right."""
    overrides = ["grid.upper=[2, 1]", "boundary.right.temperature.value=y", "solver.iterations=50",
                 f"source.temperature={source}"]  # fmt: skip
    result = solve("cfdpython-09", backend, tmp_path, *overrides)
    found, axes = result.fields["temperature"], read(result.path).coordinates
    x, y = axes["x"], axes["y"]  # linspace's last bits are others
    b = np.sin(3 * x)[None, :] - y[:, None] if source != "0" else np.zeros((31, 31))
    p = np.zeros((31, 31))
    p[:, -1] = y
    p[0, :] = p[1, :]
    p[-1, :] = p[-2, :]
    assert np.array_equal(found, lesson_9(p, y, 2 / 30, 1 / 30, -b, 50))


@pytest.mark.few(1, among="numpy")
def test_laplace_as_it_is_stated(backend, tmp_path):
    def exact(x, y):
        n = np.arange(1, 60, 2) * np.pi
        return x / 4 - 4 * (np.sinh(n * x) * np.cos(n * y) / (n * n * np.sinh(2 * n))).sum()

    errors = []
    for points in (31, 61):
        nodes = f"grid.nodes=[{points}, {points}]"
        p = solve("cfdpython-09-correct", backend, tmp_path, nodes).fields["temperature"]
        errors.append(p[0, points // 2] - exact(1.0, 0.0))
    assert math.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=0.03)


@pytest.mark.few(1, among="numpy")
@pytest.mark.parametrize(
    "end, sums, lowest",
    [
        (0.1, (65.4394259257574, 0.00243044625509048, 11.3224980373747), -0.0400974695557),
        (0.7, (57.125839299091, 0.0780621000406851, -13.4896732822381), -0.147405305478),
    ],
)
def test_cavity_of_the_lesson(end, sums, lowest, backend, tmp_path):
    fields = solve("cfdpython-11", backend, tmp_path, f"time.end={end}").fields
    for values, total in zip(fields.values(), sums, strict=True):
        assert abs(values.sum() - total) <= 1e-12 * np.abs(values).sum()
    assert fields["velocity_x"][:, 20].min() == pytest.approx(lowest, rel=1e-10)


@pytest.mark.few(2)
def test_channel_of_the_lesson(backend, tmp_path, capsys):
    report = Report()
    result = run(load("cfdpython-12"), backend, tmp_path / "case.h5", report)
    assert "a step of 0.01 is unstable" in capsys.readouterr().err
    assert (result.outcome.count, result.outcome.ending) == (499, "tolerance")
    u = result.fields["velocity_x"]
    assert u[20, 20] == 3.494896156028711
    assert abs(u.sum() - 3892.64070952243) <= 1e-12 * u.sum()
    assert np.all(result.fields["pressure"] == 1.0)
    assert read(result.path).attributes["converged"]


def test_channel_as_it_is_meant(tmp_path):
    result = solve("cfdpython-12-correct", "numba", tmp_path)
    assert result.outcome.ending == "tolerance"
    assert result.fields["velocity_x"][10] == pytest.approx(5.0, abs=1e-8)


def test_channel_of_cupynumeric(backend, tmp_path):
    result = solve("legate-cfd", backend, tmp_path)
    u = result.fields["velocity_x"]
    assert result.outcome.count == 51
    assert abs(u.sum() - 1.8327658261354953) <= 1e-12 * u.sum()
