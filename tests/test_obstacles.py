"""Obstacles in a flow, and what is read from one: exact solutions, orders, balances, refusals."""

import math
import re

import h5py
import numpy as np
import pytest
import xarray
from tests.test_flow import text

import heatsolve
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.backends.registry import make
from heatsolve.case.load import load, parse
from heatsolve.control.controller import Start, State
from heatsolve.errors import CaseError, InputError
from heatsolve.io.reader import read, summary
from heatsolve.io.writer import gather
from heatsolve.linear import iterate
from heatsolve.models.base import Substep, make_model
from heatsolve.models.flow.immersed_boundary import Obstacles
from heatsolve.models.flow.staggered import Staggered
from heatsolve.models.heat.conduction import Conduction
from heatsolve.runner import run
from heatsolve.stencil.grid import make_grid
from heatsolve.time.history import Log, plane_weights
from heatsolve.tools.check import preview

CIRCLE = "[[obstacle]]\nshape = 'circle'\ncenter = [0.52, 0.47]\nradius = 0.23\n"
RING = "[[obstacle]]\nshape = 'x**2 + y**2 <= 0.16 or x**2 + y**2 >= 1'\n"
STILL = "\n".join(f"{wall}.kind = 'no-slip'" for wall in ("left", "right", "bottom", "top"))


def solved(path, backend="numba", **given):
    case = parse(text(**given), "case")
    run(case, backend, path)
    return read(path)


# ---- where they are --------------------------------------------------------------------------


def test_surfaces_are_found_where_they_are():
    case = parse(text(walls=STILL + "\n" + CIRCLE, cells=[20, 24]), "case")
    grid = make_grid([20, 24], [0.0, 0.0], [1.0, 1.0], on_nodes=False)
    found = Obstacles(case, grid)
    y, x = grid.axes[0].coordinates[:, None], grid.axes[1].coordinates[None, :]
    inside = (x - 0.52) ** 2 + (y - 0.47) ** 2 <= 0.23**2
    assert np.array_equal(found.owner == 1, inside)
    cuts = found.surface_cuts(1, 1)
    rows, columns = np.nonzero(cuts.owner)
    assert rows.size > 4
    surface = 0.52 - np.sqrt(0.23**2 - (y[rows, 0] - 0.47) ** 2)
    distance = (surface - x[0, columns]) * 20.0
    assert np.allclose(cuts.share[rows, columns], distance, rtol=0, atol=1e-11)
    assert np.all(cuts.share[cuts.owner == 0] == 1.0)


@pytest.mark.parametrize("shift", [0.1, -0.7, 0.3, 1.1])
@pytest.mark.parametrize("length, cells, low, high", [
    (1.2, 12, 0.4, 0.8), (2.4, 24, 1.0, 1.4), (2.2, 110, 0.54, 1.38), (0.41, 41, 0.13, 0.29),
])  # fmt: skip
def test_a_surface_on_faces_of_the_grid_is_found_at_all_of_them(length, cells, low, high, shift):
    """The coordinates of faces, and the numbers of a case that name them, round differently."""
    first, last = round(low / length * cells), round(high / length * cells)
    for start in (0.0, shift):
        lower, upper = (round(start + end, 9) for end in (low, high))
        body = f"[[obstacle]]\nshape = 'box'\nlower = [{lower}, 0]\nupper = [{upper}, 0.5]\n"
        case = parse(text(walls=STILL + "\n" + body, cells=[cells, 10]), "case")
        grid = make_grid([cells, 10], [start, 0.0], [start + length, 1.0], on_nodes=False)
        along_y, along_x = (Obstacles(case, grid.faces(number)).owner > 0 for number in (0, 1))
        # Face n lies above cell n, in row or column n of the array.
        columns = np.flatnonzero(along_x[3])
        assert columns.tolist() == list(range(first, last + 1))
        rows = np.flatnonzero(along_y[:, first + 1])
        assert rows.tolist() == list(range(6))


@pytest.mark.parametrize("shape, same", [
    ("shape = 'circle'\ncenter = [0.5, 0.5]\nradius = 0.2", "(x - 0.5)**2 + (y - 0.5)**2 <= 0.04"),
    ("shape = 'box'\nlower = [0.3, 0.2]\nupper = [0.61, 0.7]",
     "x >= 0.3 and x <= 0.61 and y >= 0.2 and y <= 0.7"),
])  # fmt: skip
def test_a_shape_is_its_expression(shape, same):
    found = []
    for obstacle in (shape, f"shape = '{same}'"):
        case = parse(text(walls=f"{STILL}\n[[obstacle]]\n{obstacle}\n"), "case")
        bodies = Staggered(case, NumpyBackend()).bodies
        found.append(bodies.mobility("velocity_x", 0.01))
    assert 0 < (found[0] == 0.0).sum() < found[0].size
    assert np.abs(found[0] - found[1]).max() < 1e-9


# ---- exact solutions -------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_parabola_between_walls_anywhere_is_exact(tmp_path):
    """A driven flow between walls that lie anywhere between the points."""
    low, high = 0.137, 0.861
    obstacles = "".join(
        f"[[obstacle]]\nshape = 'box'\nlower = [-1, {a}]\nupper = [2, {b}]\n"
        for a, b in ((-1, low), (high, 2))
    )
    solution = solved(
        tmp_path / "case.h5", nu=0.1, cells=[4, 8], grid="upper = [0.25, 1]\nperiodic = ['x']",
        walls="bottom.kind = 'no-slip'\ntop.kind = 'no-slip'\n" + obstacles
        + "[source]\nvelocity_x = 0.8", end=100, time="cfl = 0.9\ntolerance = 1e-9",
    )  # fmt: skip
    y = solution.coordinates["y"]
    inside = (y > low) & (y < high)
    exact = np.where(inside, 4.0 * (y - low) * (high - y), 0.0)
    assert np.abs(solution.fields["velocity_x"][-1] - exact[:, None]).max() < 1e-8
    drag = sum(solution.history[f"force_x_{n}"][-1] for n in (0, 1))
    assert drag == pytest.approx(0.8 * 0.25 * inside.sum() / 8, rel=1e-7)
    assert abs(solution.history["force_y_0"][-1] + solution.history["force_y_1"][-1]) < 1e-12


def ring_error(path, n):
    """u_theta between two circles, driven by f_theta = 8 r: -r^3 + a r + b / r, nu = 1."""
    a = (1.0 - 0.4**4) / (1.0 - 0.4**2)
    b = 1.0 - a
    solution = solved(
        path, nu=1.0, cells=[n, n], grid="lower = [-1.1, -1.1]\nupper = [1.1, 1.1]",
        walls=STILL + "\n" + RING + "[source]\nvelocity_x = '-8*y'\nvelocity_y = '8*x'",
        end=1, time="cfl = 0.9\ntolerance = 1e-3\n", tolerance=1e-6,
    )  # fmt: skip
    y, x = solution.coordinates["y"][:, None], solution.coordinates["x"][None, :]
    r = np.hypot(x, y)
    # Files hold means of two faces; a cell away from the walls these are of second order.
    away = (r > 0.4 + 3.2 / n) & (r < 1.0 - 3.2 / n)
    exact = -y / r * (-(r**3) + a * r + b / r)
    squares = (solution.fields["velocity_x"][-1] - exact)[away] ** 2
    return math.sqrt(squares.mean())


@pytest.mark.thorough
def test_round_walls_are_of_an_order_above_first(tmp_path):
    """Derivatives at walls are of second, faces that are closed of first order: 1.6 together."""
    errors = [ring_error(tmp_path / "case.h5", n) for n in (20, 40)]
    assert errors[0] < 0.004
    assert math.log2(errors[0] / errors[1]) > 1.5


def conduction(path, n):
    """Heat between two circles at rest."""
    obstacles = (
        "[[obstacle]]\nshape = 'circle'\ncenter = [0, 0]\nradius = 0.4\ntemperature = 1\n"
        "[[obstacle]]\nshape = 'x**2 + y**2 >= 1'\ntemperature = 0\n"
    )
    insulated = "\n".join(
        f"{wall} = {{ kind = 'no-slip', temperature.gradient = 0 }}"
        for wall in ("left", "right", "bottom", "top")
    )
    return solved(
        path, nu=1.0, cells=[n, n], grid="lower = [-1.1, -1.1]\nupper = [1.1, 1.1]",
        model="thermal_diffusivity = 1", walls=f"{insulated}\n{obstacles}", end=1,
        time="cfl = 0.9\ntolerance = 1e-5",
    )  # fmt: skip


@pytest.mark.thorough
def test_heat_between_warm_and_cold_surfaces(tmp_path):
    errors = []
    for n in (20, 40):
        solution = conduction(tmp_path / "case.h5", n)
        x = solution.coordinates["x"]
        r = np.hypot(x[:, None], x[None, :])
        exact = np.log(np.clip(r, 0.4, 1.0)) / math.log(0.4)
        errors.append(float(np.abs(solution.fields["temperature"][-1] - exact).max()))
    given = [float(solution.history[f"temperature_released_{n}"][-1]) for n in (0, 1)]
    assert math.log2(errors[0] / errors[1]) > 1.7
    assert given[0] == pytest.approx(2.0 * math.pi / math.log(2.5), rel=0.005)
    assert given[1] == pytest.approx(-given[0], rel=1e-4)


@pytest.mark.few(1, among="numpy")
def test_nothing_goes_through_an_insulated_surface(backend, tmp_path):
    solution = solved(
        tmp_path / "case.h5", backend, cells=[24, 20], model="diffusivity = 0.01",
        grid="periodic = ['x', 'y']", initial="velocity_x = 1\nconcentration = 'x*(1 - x)'",
        walls="[[obstacle]]\nshape = 'circle'\ncenter = [0.5, 0.5]\nradius = 0.2\n", end=0.05,
        time="step = 0.005", tolerance=1e-12,
    )  # fmt: skip
    first, last = solution.fields["concentration"]
    assert abs(first.sum() - last.sum()) < 1e-10 * first.sum()


@pytest.mark.few(1, among="numpy")
def test_flow_about_an_obstacle_has_no_divergence(backend, tmp_path):
    solution = solved(
        tmp_path / "case.h5", backend, cells=[40, 24], grid="upper = [2, 1.2]",
        initial="velocity_x = 1", walls="left = { kind = 'inflow', velocity_x.value = 1 }\n"
        f"right.kind = 'outflow'\nbottom.kind = 'free-slip'\ntop.kind = 'no-slip'\n{CIRCLE}",
        end=0.2, time="step = 0.005",
    )  # fmt: skip
    assert solution.history["divergence"].max() <= 1e-8
    assert solution.history["force_x"][-1] > 0.1


@pytest.mark.few(1, among="numpy")
def test_steps_of_lengths_in_turn(backend):
    """The pressure's system belongs to a length: what was recorded for one goes with it."""
    settings = ["constants.n=41", "grid.cells=[66, 12]", "solver.method=multigrid"]
    problem = make_model(load("cylinder-re20", settings), make(backend))
    first, second, third = 0.004, 0.003, 0.0035
    stepper, time = problem.stepper(0.0, first), 0.0
    stepper.prepare()
    for step in (second, *[first] * 4, third, *[first] * 4):
        part = Substep(time, step, 0.0)
        stepper.make_solvers((part,))
        stepper.step((part,), None, None)
        time += step
        assert stepper.posted_measures()()[1]["divergence"] < 1e-5


@pytest.mark.few(1)
@pytest.mark.parametrize("obstacle", [
    "shape = 'box'\nlower = [0.7, 0.2]\nupper = [2, 0.6]",
    "shape = 'circle'\ncenter = [1, 0.5]\nradius = 0.2",
])  # fmt: skip
def test_an_obstacle_may_reach_the_outflow(obstacle, tmp_path):
    solution = solved(
        tmp_path / "case.h5", cells=[16, 16], initial="velocity_x = 1", end=0.05,
        walls="left = { kind = 'inflow', velocity_x.value = 1 }\nright.kind = 'outflow'\n"
        f"bottom.kind = 'no-slip'\ntop.kind = 'no-slip'\n[[obstacle]]\n{obstacle}\n",
    )  # fmt: skip
    assert solution.history["divergence"].max() <= 1e-8
    assert solution.history["courant"].max() < 1.0


@pytest.mark.parametrize("walls", ["bottom.kind = 'no-slip'\ntop.kind = 'no-slip'", STILL])
def test_a_fluid_at_rest_stays_at_rest(walls, backend, tmp_path):
    """A force that a pressure balances, and an obstacle that it lifts."""
    obstacle = "[[obstacle]]\nshape = 'circle'\ncenter = [0.5, 0.5]\nradius = 0.2\n"
    solution = solved(
        tmp_path / "case.h5", backend, cells=[16, 16], end=0.2,
        grid="" if walls is STILL else "periodic = ['x']",
        walls=f"{walls}\n[source]\nvelocity_y = -1\n{obstacle}",
    )  # fmt: skip
    assert np.abs(solution.fields["velocity_y"]).max() < 1e-10
    lift = solution.history["force_y"]
    assert lift[-1] == pytest.approx(lift[0], rel=1e-6)
    assert lift[-1] == pytest.approx(math.pi * 0.04, rel=0.1)


def test_where_an_obstacle_stands_makes_no_difference(tmp_path):
    """Also where it touches the end of a periodic axis."""
    forces = []
    for left in (0.0, 0.5):
        solution = solved(
            tmp_path / "case.h5", cells=[16, 12], grid="periodic = ['x']", end=0.05,
            initial="velocity_x = 1", walls="bottom.kind = 'no-slip'\ntop.kind = 'no-slip'\n"
            f"[[obstacle]]\nshape = 'box'\nlower = [{left}, 0.3]\nupper = [{left + 0.3}, 0.6]\n",
        )  # fmt: skip
        forces.append(solution.history["force_x"][-1])
    assert forces[0] == pytest.approx(forces[1], rel=1e-9)


@pytest.mark.parametrize("form", ["central", "upwind3"])
def test_a_force_has_the_level_of_the_pressure_in_the_file(form, tmp_path):
    """Also on a box on a wall, whatever constant the pressure's iteration has added."""
    forces = []
    for method in ("mgcg", "multigrid"):
        solution = solved(
            tmp_path / "case.h5", cells=[16, 12], grid="periodic = ['x']", end=0.05, nu=0.05,
            initial="velocity_x = 'y**3'\nvelocity_y = '2*sin(2*pi*x)*sin(pi*y)'", form=form,
            tolerance=f"1e-10\nmethod = '{method}'",
            walls="bottom.kind = 'no-slip'\ntop = { kind = 'no-slip', velocity_x.value = 1 }\n"
            "[[obstacle]]\nshape = 'box'\nlower = [0.25, 0]\nupper = [0.75, 0.34]\n",
        )  # fmt: skip
        forces.append([solution.history[f"force_{axis}"][-1] for axis in "xy"])
    assert abs(forces[0][1]) > 0.01
    assert forces[0] == pytest.approx(forces[1], rel=1e-7)


def test_a_source_does_not_heat_what_insulates(tmp_path):
    cold = "\n".join(f"{w} = {{ kind = 'no-slip', temperature.value = 0 }}"
                     for w in ("left", "right", "bottom", "top"))  # fmt: skip
    solution = solved(
        tmp_path / "case.h5", nu=0.1, cells=[12, 12], model="thermal_diffusivity = 1", end=10,
        walls=f"{cold}\n{CIRCLE}[source]\ntemperature = 1\n",
        time="cfl = 0.9\ntolerance = 1e-6",
    )  # fmt: skip
    assert solution.attributes["converged"]
    x, y = solution.coordinates["x"], solution.coordinates["y"]
    deep = np.hypot(x[None, :] - 0.52, y[:, None] - 0.47) < 0.2
    assert np.all(solution.fields["temperature"][-1][deep] == 0.0)


@pytest.mark.slow
def test_a_sphere_is_a_circle_in_space(tmp_path):
    solution = solved(
        tmp_path / "case.h5", nu=0.1, cells=[12, 10, 10], grid="periodic = ['x', 'y', 'z']",
        initial="velocity_x = 1", end=0.02, time="step = 0.005",
        walls="[[obstacle]]\nshape = 'circle'\ncenter = [0.5, 0.5, 0.5]\nradius = 0.2\n",
    )  # fmt: skip
    history = solution.history
    assert history["force_x"][-1] > 0.01
    assert abs(history["force_y"][-1]) < 1e-6 > abs(history["force_z"][-1])


# ---- what is read ----------------------------------------------------------------------------


def test_probes_and_lines_are_exact_for_linear_fields(backend, tmp_path):
    """A uniform flow that a force would drive: there the pressure balances it."""
    given = text(
        cells=[20, 16], walls=STILL + "\n[source]\nvelocity_x = 3\nvelocity_y = -2\n" + CIRCLE,
        end=0.02, time="step = 0.01",
    )  # fmt: skip
    given += (
        "[output]\nprobes = [[0.31, 0.22], [0.3, 0.45], [0.0, 1.0]]\n"
        "[[output.line]]\nfrom = [0.1, 0.9]\nto = [0.9, 0.9]\npoints = 9\n"
    )
    run(parse(given, "case"), backend, tmp_path / "case.h5")
    history = read(tmp_path / "case.h5").history
    first, beside, corner = (history[f"probe_{n}_pressure"][-1] for n in range(3))
    assert beside - first == pytest.approx(3.0 * -0.01 - 2.0 * 0.23, abs=1e-6)
    assert corner - first == pytest.approx(3.0 * -0.31 - 2.0 * 0.78, abs=1e-6)
    line = history["line_0_pressure"][-1]
    assert np.allclose(np.diff(line), 0.3, atol=1e-6)
    assert line[0] - first == pytest.approx(3.0 * -0.21 - 2.0 * 0.68, abs=1e-6)
    gather(tmp_path / "case.h5", tmp_path / "copy.h5")
    with xarray.open_dataset(tmp_path / "copy.h5", engine="h5netcdf", group="history") as found:
        assert found.line_0_pressure.dims == ("line_time", "points_9")
        assert np.array_equal(found.line_0_pressure[-1], line)
        assert np.array_equal(found.line_time, [0.0, 0.02])


def test_a_probe_reads_transport(tmp_path):
    case = parse(
        "[model]\nkind = 'transport'\nvelocity = [1]\n[grid]\nnodes = [11]\n[initial]\n"
        "concentration = '2*x'\n[boundary]\nleft = { concentration.value = '-2*t' }\n"
        "right = { concentration.value = '2 - 2*t' }\n[time]\nend = 0.05\nstep = 0.01\n"
        "[output]\nprobes = [[0.55], [0.0], [1.0]]\n", "case",
    )  # fmt: skip
    run(case, "numpy", tmp_path / "case.h5")
    history = read(tmp_path / "case.h5").history
    for n, x in enumerate((0.55, 0.0, 1.0)):
        expected = 2.0 * (x - history["time"])
        assert np.allclose(history[f"probe_{n}_concentration"], expected, atol=1e-12)


MARCH = """[model]
steady = false
[grid]
cells = [4]
[initial]
temperature = "x"
[boundary]
left.temperature.value = 0
right.temperature.value = 1
[source]
temperature = 1
[time]
end = 0.25
step = 1e-3
[output]
"""
LINE = "[[output.line]]\nfrom = [0.125]\nto = [0.875]\npoints = 4\n"


def marched(path, added="", *overrides, **given):
    run(parse(MARCH + added, "case", overrides), "numpy", path, **given)
    return read(path)


def test_no_row_of_a_probe_is_dropped(tmp_path):
    """There is one for each step; of norms alone every second one is enough here."""
    history = marched(tmp_path / "a.h5", "probes = [[0.3]]").history
    assert np.array_equal(history["iteration"], np.arange(1, 251))
    assert marched(tmp_path / "b.h5").history["iteration"].size == 125
    assert marched(tmp_path / "b.h5", "", "solver.check_every=1").history["time"].size == 250
    checked = marched(tmp_path / "b.h5", "probes = [[0.3]]", "solver.check_every=50").history
    assert np.array_equal(checked["probe_0_temperature"], history["probe_0_temperature"][49::50])


@pytest.mark.parametrize("sample, rows", [
    ("7", [*range(7, 101, 7), 100]),
    ("1", range(1, 101)),
    ("'0.02 s'", range(20, 101, 20)),
    ("'3e-2 s'", [30, 60, 90, 100]),
    ("'0.0025 s'", [n for n in range(1, 101) if n % 5 in (0, 3)]),
    ("'1e-9 s'", range(1, 101)),
    ("'1 h'", [100]),
])  # fmt: skip
def test_samples_of_the_history(tmp_path, sample, rows):
    """A row after every so many steps, or at the first step from each moment on; and the last."""
    given = f"probes = [[0.3]]\nsample = {sample}"
    history = marched(tmp_path / "a.h5", given, "time.end=0.1").history
    assert history["iteration"].tolist() == list(rows)
    every = marched(tmp_path / "b.h5", "probes = [[0.3]]", "time.end=0.1").history
    for name, values in history.items():
        assert np.array_equal(values, every[name][np.array(rows) - 1]), name


def test_lines_are_read_with_the_frames(tmp_path):
    found = marched(tmp_path / "a.h5", "every = 15\n" + LINE, "time.end=0.1")
    assert np.array_equal(found.history["line_time"], found.time)
    assert found.time.size == 8
    line = found.history["line_0_temperature"]
    assert np.allclose(line, found.fields["temperature"], rtol=1e-14, atol=0.0)


@pytest.mark.parametrize("end", [0.05, 0.045])
@pytest.mark.parametrize("rows", ["sample = '0.01 s'", "[solver]\ncheck_every = 10\n"])
def test_rows_and_lines_go_on_behind_a_restart(rows, end, tmp_path):
    """The row at the end of the first run is not one of the whole march, unless the case asks for
    it; nor does it stop the march."""
    given = f"every = 15\nprobes = [[0.3]]\n{rows}\n{LINE}[checkpoint]\nevery = 33\n"
    given += "[stop]\nwhen = 'abs(time - 0.045) < 1e-4 or time > 0.085'\n"
    whole = marched(tmp_path / "a.h5", given, "time.end=0.1").history
    assert whole["time"][-1] == pytest.approx(0.09)
    marched(tmp_path / "b.h5", given, f"time.end={end}")
    rows_of_first = read(tmp_path / "b.h5").history["time"]
    case = parse(MARCH + given, "case", ["time.end=0.1"])
    with heatsolve.Simulation(case, backend="numpy", output=tmp_path / "b.h5", restart=True):
        pass  # no step: the last row of the first run is still the last row
    assert read(tmp_path / "b.h5").history["time"].tolist() == rows_of_first.tolist()
    again = marched(tmp_path / "b.h5", given, "time.end=0.1", start=Start(restart=True)).history
    assert whole.keys() == again.keys()
    for name, values in whole.items():
        assert np.array_equal(values, again[name]), name
    # An earlier version read lines in every row, and kept no times for them.
    case = parse(MARCH + given, "case")
    rows = {name: np.array([1.0, 2.0]) for name in ("iteration", "residual", "time", "dt")}
    old = State(2, {"march": {"time": 2.0}}, rows | {"line_0_temperature": np.zeros((2, 4))}, {})
    log = Log(Conduction(case, NumpyBackend()))
    log.recall(old)
    assert log.history["line_time"] == [1.0, 2.0]
    assert log.state.looks == 2


@pytest.mark.parametrize("scheme", ["explicit", "backward-euler", "crank-nicolson"])
def test_a_short_last_step_does_not_bend_the_history(tmp_path, scheme):
    """Norms are per time: a source of 1 between insulated walls warms four cells by 1 a second."""
    insulated = ["boundary.left.temperature.gradient=0", "boundary.right.temperature.gradient=0"]
    given = [f"time.scheme={scheme}", "time.end=0.0101", "initial.temperature=0"]
    found = marched(tmp_path / "a.h5", "", *given, *insulated)
    assert found.history["dt"][-1] == pytest.approx(1e-4)
    assert found.history["residual"] == pytest.approx(2.0, rel=1e-6)
    assert found.attributes["residual"] == found.history["residual"][-1]
    assert found.norm == "l2 of the rate of change"
    said = summary(tmp_path / "a.h5")
    assert re.search(r"^reached its end +yes$", said, re.M) and "converged" not in said
    assert re.search(r"^l2 of the rate of change +2$", said, re.M)


def test_norms_of_an_earlier_version_were_those_of_changes(tmp_path):
    """In its files they are called so, and a march that goes on makes rates of them."""
    rows = {"iteration": [5, 9], "residual": [1.0, 0.5], "time": [1.0, 1.5], "dt": [0.5, 0.25]}
    rows = {name: np.array(values) for name, values in rows.items()}
    log = Log(Conduction(parse(MARCH, "case"), NumpyBackend()))
    log.recall(State(9, {"march": {"time": 1.5, "norm": 0.5, "largest": 1.0}}, rows, {}))
    assert log.history["residual"] == [2.0, 2.0]
    marched(tmp_path / "a.h5", "", "time.end=0.01")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        del file.attrs["norm_of"]
    assert read(tmp_path / "a.h5").norm == "l2 of the change in a step"


def test_a_march_to_a_steady_state_converges(tmp_path):
    solved(tmp_path / "a.h5", "numpy", cells=[4, 4], walls=STILL, time="step = 0.01\ntolerance = 1")
    assert re.search(r"^converged +yes$", summary(tmp_path / "a.h5"), re.M)


@pytest.mark.parametrize("given, said", [
    ("", "125 rows of 4 columns, about 4000 bytes"),
    ("probes = [[0.3], [0.4]]", "250 rows of 6 columns, about 12000 bytes"),
    ("sample = '0.01 s'\nprobes = [[0.3]]", "25 rows of 5 columns, about 1000 bytes"),
    ("every = 10\nsample = 5\n" + LINE,
     "50 rows of 4 columns, 26 of lines, about 2640 bytes"),
])  # fmt: skip
def test_check_says_what_the_history_needs(tmp_path, given, said):
    (row,) = (row for row in preview(parse(MARCH + given, "case")) if row.startswith("history"))
    assert row == f"history     {said}"
    history = marched(tmp_path / "a.h5", given).history
    assert sum(values.nbytes for values in history.values()) == int(said.split()[-2])


def test_check_counts_the_columns_of_a_flow(tmp_path):
    """With what obstacles and walls give off, and with the force that drives it."""
    walls = "".join(
        f"{wall} = {{ kind = 'no-slip', temperature.value = 0 }}\n" for wall in ("bottom", "top")
    )
    case = parse(text(cells=[12, 12], model="thermal_diffusivity = 1", grid="periodic = ['x']",
                      walls=f"{walls}{CIRCLE}temperature = 1\n{RING}", time="step = 1e-3",
                      end=2e-3), "case")  # fmt: skip
    (row,) = (row for row in preview(case, "numpy") if row.startswith("history"))
    run(case, "numpy", tmp_path / "a.h5")
    columns = len(read(tmp_path / "a.h5").history)
    assert row.startswith(f"history     2 rows of {columns} columns")


def test_energy_is_lost_as_the_enstrophy_says(tmp_path):
    solution = solved(
        tmp_path / "case.h5", nu=0.02, form="skew", cells=[24, 24],
        grid="upper = ['2*pi', '2*pi']\nperiodic = ['x', 'y']",
        initial="velocity_x = 'sin(x)*cos(2*y) + sin(y)'\nvelocity_y = 'cos(x)*sin(x+y)'",
        end=0.02, time="step = 0.001", tolerance=1e-12,
    )  # fmt: skip
    history = solution.history
    rate = np.diff(history["kinetic_energy"]) / np.diff(history["time"])
    between = 0.5 * (history["enstrophy"][1:] + history["enstrophy"][:-1])
    assert np.allclose(rate, -2.0 * 0.02 * between, rtol=1e-5)


@pytest.mark.thorough
def test_upwind_biased_convection_conserves_and_damps(tmp_path):
    energies = {}
    for form in ("skew", "central4", "upwind3"):
        solution = solved(
            tmp_path / "case.h5", nu=0.0, form=form, cells=[16, 16], model="diffusivity = 0",
            grid="upper = ['2*pi', '2*pi']\nperiodic = ['x', 'y']", end=0.2,
            initial="velocity_x = '1 + sin(4*y)'\nvelocity_y = 'cos(3*x)'\n"
            "concentration = 'sin(x)'", time="step = 0.01\nallow_unstable = true",
        )  # fmt: skip
        energies[form] = solution.history["kinetic_energy"]
        for name in ("velocity_x", "velocity_y", "concentration"):
            first, last = solution.fields[name]
            assert abs(first.sum() - last.sum()) < 1e-8 * np.abs(first).sum()
    lost = {form: 1.0 - energy[-1] / energy[0] for form, energy in energies.items()}
    assert abs(lost["skew"]) < 1e-5 and abs(lost["central4"]) < 1e-5 < 1e-2 < lost["upwind3"]


def test_a_force_holds_the_mean_velocity(backend, tmp_path):
    n, mean, nu = 16, 0.5, 0.1
    solution = solved(
        tmp_path / "case.h5", backend, nu=nu, cells=[4, n], end=100,
        grid="upper = [0.25, 1]\nperiodic = ['x']", time="cfl = 0.9\ntolerance = 1e-10",
        walls=f"bottom.kind = 'no-slip'\ntop.kind = 'no-slip'\n[source]\nmean_velocity_x = {mean}",
    )  # fmt: skip
    assert solution.fields["velocity_x"][-1].mean() == pytest.approx(mean, abs=1e-14)
    force = 12.0 * nu * mean / (1.0 + 2.0 / n**2)
    assert solution.history["driving_force_x"][-1] == pytest.approx(force, rel=1e-8)


# ---- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("obstacle, sentence", [
    ("shape = 'circle'\nradius = 1", "obstacle.0.center: missing"),
    ("shape = 'circle'\nradius = 1\ncenter = [0]", "obstacle.0: needs 2 numbers"),
    ("shape = 'circle'\nradius = 1\ncenter = [0, 0]\nlower = [0, 0]", "only for shape = \"box\""),
    ("shape = 'box'\nlower = [0, 1]\nupper = [1, 1]", "must be above lower"),
    ("shape = 'x < q'", "unknown name .q"),
    ("shape = 3", "must be \"circle\", \"box\" or an expression"),
    ("shape = 'x < 0.5'\ntemperature = 1", "the flow carries none"),
    ("shape = 'x < 0.5'\n[source]\nmean_velocity_x = 1", "only where x is periodic"),
    ("shape = 'x < 0.5'\n[[output.line]]\nfrom = [0, 0]\nto = [1, 1]\npoints = 1", "at least 2"),
    ("shape = 'x < 0.5'\n[output]\nprobes = [[2, 0]]", "is outside 0 to 1 along x"),
    ("shape = 'x < 0.5'\n[output]\nprobes = [[0.5]]", "must have length 2"),
])  # fmt: skip
def test_refusals(obstacle, sentence):
    with pytest.raises(CaseError, match=sentence):
        parse(text(walls=f"{STILL}\n[[obstacle]]\n{obstacle}\n"), "case")


@pytest.mark.parametrize("obstacle, sentence", [
    ("shape = 'circle'\nradius = 0.1\ncenter = [3, 0]", "no point of the grid lies in it"),
    ("shape = '1'", "they leave no fluid"),
    ("shape = 'x < 0.3'", "what flows in there meets an obstacle"),
])  # fmt: skip
def test_refusals_that_need_the_grid(obstacle, sentence):
    inflow = STILL.replace("left.kind = 'no-slip'",
                           "left = { kind = 'inflow', velocity_x.value = 1 }")  # fmt: skip
    walls = inflow.replace("right.kind = 'no-slip'", "right.kind = 'outflow'")
    case = parse(text(walls=f"{walls}\n[[obstacle]]\n{obstacle}\n"), "case")
    with pytest.raises(InputError, match=sentence):
        Staggered(case, NumpyBackend())


def test_a_probe_needs_fluid_and_a_restart_the_same_ones(tmp_path):
    given = text(walls=f"{STILL}\n{CIRCLE}", end=0.02, time="step = 0.01")
    case = parse(given + "[output]\nprobes = [[0.5, 0.5]]\n", "case")
    with pytest.raises(InputError, match="no fluid is beside the point"):
        run(case, "numpy", tmp_path / "case.h5")
    probe = "[output]\nprobes = [[0.1, %s]]\n[checkpoint]\nevery = 1\n"
    run(parse(given + probe % 0.5, "case"), "numpy", tmp_path / "case.h5")
    with pytest.raises(InputError, match=r"output\.probes: was"):
        run(parse(given + probe % 0.6, "case", ["time.end=0.03"]), "numpy", tmp_path / "case.h5",
            start=Start(restart=True))  # fmt: skip


IMPLICIT = "diffusion = 'crank-nicolson'"


def test_a_fluid_at_rest_below_rounding_does_not_diverge(tmp_path):
    """Its pressure carries a force; the residual is rounding, from which iterations grow."""
    still = text(walls=STILL, cells=[20, 20], end=0.004, time="step = 0.0002", tolerance=1e-12)
    box = "[[obstacle]]\nshape = 'box'\nlower = [0.3, 0.3]\nupper = [0.6, 0.7]\n"
    case = parse(f"{still}[source]\nvelocity_y = -3.0\n{box}", "case")
    result = run(case, "numpy", tmp_path / "case.h5")
    assert result.outcome.ending == "count"
    assert np.ptp(read(result.path).fields["pressure"]) == pytest.approx(3.0 * 0.95, rel=1e-6)


@pytest.mark.parametrize("cells", [[16, 8], [32, 16]])
def test_a_wall_under_an_obstacle_takes_no_heat(cells, tmp_path):
    """In a fluid at rest as much heat enters at the top as leaves at the bottom."""
    walls = "\n".join(f"{wall}.kind = 'no-slip'\n{wall}.temperature.value = {value}"
                      for wall, value in (("bottom", 0.5), ("top", 1.0)))  # fmt: skip
    box = "\n[[obstacle]]\nshape = 'box'\nlower = [0.7, -0.1]\nupper = [1.3, 0.3]\n"
    case = parse(text(
        walls=walls + box, cells=cells, grid="upper = [2.0, 1.0]\nperiodic = ['x']", nu=0.5,
        model="thermal_diffusivity = 0.3", end=4.0, time="cfl = 0.9",
    ), "case")  # fmt: skip
    history = read(run(case, "numba", tmp_path / "case.h5").path).history
    top, bottom = (history[f"temperature_gradient_{wall}"][-1] for wall in ("top", "bottom"))
    assert top == pytest.approx(0.41, abs=0.03)
    assert bottom == pytest.approx(-top, rel=1e-3)


def of_speed(speed, method, scheme="rk3"):
    """A flow past a circle whose velocities are multiplied by `speed`, and times divided by it;
    diffusion is implicit, and there is no circle, with `adams-bashforth`."""
    step = f"step = {0.01 / speed!r}"
    step, circle = (step, CIRCLE) if scheme == "rk3" else (f"{step}\n{IMPLICIT}", "")
    walls = "\n".join(["left.kind = 'inflow'", f"left.velocity_x.value = {speed!r}",
                       "right.kind = 'outflow'", "bottom.kind = 'free-slip'",
                       "top.kind = 'free-slip'\n"])  # fmt: skip
    solver = f"[solver]\nmethod = '{method}'\nprecision = 'float32'\nmax_iterations = 500\n"
    given = text(walls=walls, nu=0.01 * speed, end=0.1 / speed, time=step, scheme=scheme)
    given = given.replace("tolerance = 1e-08", "tolerance = 1e-4")
    return given.replace("[solver]\n", solver) + circle


@pytest.mark.parametrize("scheme", ["rk3", "adams-bashforth"])
@pytest.mark.parametrize("method", ["cg", "mgcg"])
def test_speeds_whose_squares_float32_does_not_hold(method, scheme, tmp_path):
    """As far as the tolerance of the pressure tells."""
    fields = []
    for power in (0, -40, 40):
        case = parse(of_speed(2.0**power, method, scheme), "case")
        result = run(case, "numpy", tmp_path / "case.h5")
        assert result.outcome.converged or result.outcome.ending == "count"
        fields.append(2.0**-power * read(result.path).fields["velocity_x"].astype(float))
    usual, *others = fields
    for other in others:
        assert abs(other - usual).max() < 2e-3 * abs(usual).max()


@pytest.mark.parametrize("method", ["cg", "mgcg"])
def test_factors_of_a_pressure_change_no_bits(method, tmp_path, monkeypatch):
    def velocity():
        result = run(parse(of_speed(1.0, method), "case"), "numpy", tmp_path / "case.h5")
        return read(result.path).fields["velocity_x"]

    usual = velocity()
    monkeypatch.setattr(iterate, "IN_RANGE", {"float32": (1e30, 1e31)})
    assert velocity().tobytes() == usual.tobytes()


def test_obstacles_are_for_flow_only():
    with pytest.raises(CaseError, match="only for a flow on the staggered grid"):
        parse("[grid]\nnodes = [5]\n[boundary]\nleft.temperature.value = 0\n"
              "right.temperature.value = 1\n[[obstacle]]\nshape = 'x < 0.5'\n", "case")  # fmt: skip


@pytest.mark.parametrize("dimension", [2, 3])
def test_values_beside_a_probe_give_the_height_of_their_plane(dimension, monkeypatch):
    """Exactly, without a library of linear algebra: those round by the processor."""
    monkeypatch.setattr(np, "linalg", None)
    grid = make_grid((4,) * dimension, (0,) * dimension, (4,) * dimension, on_nodes=False)
    at = (1.3, 2.1, 0.7)[:dimension]
    numbers = [axis.number_at(x) for axis, x in zip(grid.axes, at, strict=True)]
    slopes = (2.0, -3.0, 0.5)[:dimension]

    def height(places):
        return 1.0 + math.fsum(a * b for a, b in zip(slopes, places, strict=True))

    fluid = [n for n in np.ndindex((4,) * dimension) if sum(n) % 3]
    weights = dict(plane_weights(fluid, list(zip(grid.axes, at, strict=True))))
    found = math.fsum(weight * height(n) for n, weight in weights.items())
    assert found == pytest.approx(height(numbers), rel=1e-14)
    line = [(k,) * dimension for k in range(3)]  # no plane, but a weighted mean
    weights = dict(plane_weights(line, list(zip(grid.axes, at, strict=True))))
    assert min(weights.values()) > 0.0 and sum(weights.values()) == pytest.approx(1.0, rel=1e-14)
