"""Derived fields: their exact values, their order, and the same bits everywhere."""

import numpy as np
import pytest
from test_ranks import launch, mpi

from heatsolve.case.load import load, parse
from heatsolve.errors import CaseError
from heatsolve.io.reader import read
from heatsolve.runner import run
from heatsolve.tools.check import preview

AXES = ("x", "y", "z")
BOX = """
[grid]
{kind} = [{n}, {m}, {n}]
upper = [1.0, 0.8, 1.2]
{periodic}
[boundary]
left.temperature = {{ value = "{exact}" }}
right.temperature = {{ value = "{exact}" }}
bottom.temperature = {{ value = "{exact}" }}
top.temperature = {{ value = "{exact}" }}
back.temperature = {{ value = "{exact}" }}
front.temperature = {{ value = "{exact}" }}
[model]
steady = false
[initial]
temperature = "{exact}"
[time]
end = 1e-9
step = 1e-9
[output]
fields = ["temperature", "temperature_gradient_x", "temperature_gradient_y", "temperature_gradient_z"]
"""  # noqa: E501


def fields_of(text, path, backend="numpy", *settings):
    found = read(run(parse(text, "case", settings), backend, path).path)
    last = {name: values[-1] if found.time is not None else values
            for name, values in found.fields.items()}  # fmt: skip
    return found, last


def positions(found):
    lines = found.coordinates
    return dict(zip(lines, np.meshgrid(*lines.values(), indexing="ij", sparse=True), strict=True))


@pytest.mark.parametrize("kind", ["nodes", "cells"])
def test_gradients_of_a_parabola_are_exact(kind, backend, tmp_path):
    """Central differences inside and parabolas at walls: those of x^2 + 2 y z - y^2."""
    text = BOX.format(kind=kind, n=7, m=6, periodic="", exact="x*x + 2*y*z - y*y")
    found, last = fields_of(text, tmp_path / "a.h5", backend)
    at = positions(found)
    exact = {"x": 2 * at["x"], "y": 2 * at["z"] - 2 * at["y"], "z": 2 * at["y"]}
    for axis, values in exact.items():
        assert np.abs(last[f"temperature_gradient_{axis}"] - values).max() < 1e-6, axis


def test_gradients_converge_with_order_2(tmp_path):
    """Also at walls; `numpy.gradient` takes the same differences."""
    errors = []
    for n in (16, 32):
        text = BOX.format(kind="cells", n=n, m=n, periodic="", exact="sin(3*x)*cos(2*y)*exp(z)")
        found, last = fields_of(text, tmp_path / "a.h5")
        at = positions(found)
        exact = 3 * np.cos(3 * at["x"]) * np.cos(2 * at["y"]) * np.exp(at["z"])
        errors.append(np.abs(last["temperature_gradient_x"] - exact).max())
        lines = list(found.coordinates.values())
        for axis, values in zip("zyx", np.gradient(last["temperature"], *lines, edge_order=2),
                                strict=True):  # fmt: skip
            assert last[f"temperature_gradient_{axis}"] == pytest.approx(values, rel=1e-9, abs=1e-9)
    assert 1.8 < np.log2(errors[0] / errors[1]) < 2.3


FLOW = """
[model]
kind = "flow"
viscosity = 1e-6
[grid]
cells = {cells}
upper = {upper}
periodic = {periodic}
[initial]
{initial}
[time]
end = 1e-6
step = 1e-6
scheme = "rk3"
[output]
fields = {fields}
[units]
velocity_x = "m/s"
length = "m"
"""
TAYLOR = 'velocity_x = "sin(x)*cos(y)"\nvelocity_y = "-cos(x)*sin(y)"'


def test_of_taylor_and_greens_vortices(backend, tmp_path):
    """omega = 2 sin x sin y; Q = -(cos^2 x cos^2 y - sin^2 x sin^2 y): of difference quotients,
    which multiply a wave by sin h / h. A velocity at a cell's centre is a mean of two faces."""
    text = FLOW.format(cells=[32, 32], upper=["2*pi", "2*pi"], periodic=["x", "y"], initial=TAYLOR,
                       fields=["speed", "vorticity", "q_criterion", "stream_function"])  # fmt: skip
    found, last = fields_of(text, tmp_path / "a.h5", backend)
    at, h = positions(found), 2 * np.pi / 32
    x, y = at["x"], at["y"]
    mean, slope = np.cos(h / 2), np.cos(h / 2) * np.sin(h) / h
    assert last["vorticity"] == pytest.approx(2 * slope * np.sin(x) * np.sin(y), abs=1e-4)
    exact = mean * np.hypot(np.sin(x) * np.cos(y), np.cos(x) * np.sin(y))
    assert last["speed"] == pytest.approx(exact, abs=1e-4)
    turning = (np.sin(x) * np.sin(y)) ** 2 - (np.cos(x) * np.cos(y)) ** 2
    assert last["q_criterion"] == pytest.approx(slope**2 * turning, abs=1e-4)
    # At corners h/2 / sin(h/2) times sin x sin y; at a centre the mean of four.
    flows = 0.5 * h / np.sin(0.5 * h) * mean**2 * np.sin(x) * np.sin(y)
    assert last["stream_function"] == pytest.approx(flows, abs=1e-5)
    assert found.units["stream_function"] == "m/s m"
    assert found.units["speed"] == "m/s" and found.units["vorticity"] == "m/s/m"
    assert found.units["q_criterion"] == "(m/s/m)^2"


def test_vorticity_in_space(tmp_path):
    """rot (z, x, y) = (1, 1, 1), a strain without rotation has Q < 0 and vorticity 0."""
    names = [f"vorticity_{axis}" for axis in AXES]
    upper, fields = ["2*pi"] * 3, [*names, "q_criterion"]
    turning = "\n".join(f'velocity_{a} = "sin({b})"' for a, b in zip(AXES, "zxy", strict=True))
    text = FLOW.format(cells=[16] * 3, upper=upper, periodic=list(AXES), initial=turning,
                       fields=fields)  # fmt: skip
    found, last = fields_of(text, tmp_path / "a.h5")
    at, h = positions(found), 2 * np.pi / 16
    slope = np.sin(h) / h
    # u = (sin z, sin x, sin y) on faces: along its own axis it does not vary.
    for axis, other in zip(AXES, "yzx", strict=True):
        exact = np.broadcast_to(slope * np.cos(at[other]), (16,) * 3)
        assert last[f"vorticity_{axis}"] == pytest.approx(exact, abs=1e-4), axis


@pytest.mark.few(6, among="numpy")
@pytest.mark.parametrize("walls", ["value", "robin", "gradient"])
@pytest.mark.parametrize("kind", ["nodes", "cells"])
def test_the_flux_of_heat_through_layers(kind, walls, backend, tmp_path):
    """One flux through two conductors, where temperatures have a kink; at walls, too."""
    n = 22 if kind == "nodes" else 20  # the interface on a face
    width = 2.1 if kind == "nodes" else 2.0
    right = {"value": "{ value = 1 }", "robin": "{ robin = { h = 4, ambient = 1 } }",
             "gradient": "{ gradient = '0.3/5' }"}[walls]  # fmt: skip
    text = f"""
[model]
conductivity = "where(x < {width / 2}, 1, 5)"
[grid]
{kind} = [{n}, 6]
upper = [{width}, 1]
[boundary]
left.temperature.value = 0
right.temperature = {right}
bottom.temperature.gradient = 0
top.temperature.gradient = 0
[solver]
tolerance = 1e-13
[output]
fields = ["heat_flux_x", "heat_flux_y"]
"""
    _, last = fields_of(text, tmp_path / "a.h5", backend)
    resistance = width / 2 + width / 2 / 5 + (0.25 if walls == "robin" else 0.0)
    flux = -0.3 if walls == "gradient" else -1.0 / resistance
    assert last["heat_flux_x"] == pytest.approx(np.full_like(last["heat_flux_x"], flux), rel=1e-8)
    assert last["heat_flux_y"] == pytest.approx(np.zeros_like(last["heat_flux_y"]), abs=1e-10)


@pytest.mark.parametrize("more", ["", "method = 'jacobi'\nupdate = 'five-point-mean'"])
def test_the_flux_through_a_wall_of_given_gradient_where_it_meets_others(more, tmp_path):
    """T = x y: nodes of both walls have the flux of the given gradient. A literal update knows of
    insulated walls only, whose nodes copy the nodes beside them."""
    exact, gradient = ("y", 0) if more else ("x*y", "x")
    text = f"""
[grid]
nodes = [9, 9]
[boundary]
left.temperature.value = 0
right.temperature.value = "{exact}"
bottom.temperature.{"gradient" if more else "value"} = 0
top.temperature.gradient = "{gradient}"
[solver]
tolerance = 1e-12
monitor = "update"
{more}
[output]
fields = ["heat_flux_y"]
"""
    found, last = fields_of(text, tmp_path / "a.h5")
    exact = 0.0 * found.coordinates["x"] if more else -found.coordinates["x"]
    assert last["heat_flux_y"][-1] == pytest.approx(exact, abs=1e-9)
    if not more:
        assert last["heat_flux_y"] == pytest.approx(np.broadcast_to(exact, (9, 9)), abs=1e-9)


@pytest.mark.few(4)
@pytest.mark.parametrize("right", ["value", "gradient", "robin"])
@pytest.mark.parametrize("top", ["value", "gradient", "robin"])
@pytest.mark.parametrize("kind", ["nodes", "cells"])
def test_the_flux_of_heat_where_two_walls_meet(kind, top, right, tmp_path):
    """T = x y + 2 x - y has the flux (-y - 2, 1 - x) everywhere."""
    robin = "{{ h = 2, ambient = '{} + ({})/2' }}"
    walls = {
        "right": {"value": "'2'", "gradient": "'y + 2'", "robin": robin.format("2", "y + 2")},
        "top": {"value": "'3*x-1'", "gradient": "'x-1'", "robin": robin.format("3*x-1", "x-1")},
    }  # fmt: skip
    text = f"""
[grid]
{kind} = [5, 4]
[boundary]
left.temperature.value = "-y"
bottom.temperature.value = "2*x"
right.temperature.{right} = {walls["right"][right]}
top.temperature.{top} = {walls["top"][top]}
[solver]
tolerance = 1e-13
[output]
fields = ["heat_flux_x", "heat_flux_y"]
"""
    found, last = fields_of(text, tmp_path / "a.h5")
    x, y = found.coordinates["x"], found.coordinates["y"][:, None]
    assert last["heat_flux_x"] == pytest.approx(-y - 2.0 + 0.0 * x, abs=1e-9)
    assert last["heat_flux_y"] == pytest.approx(1.0 - x + 0.0 * y, abs=1e-9)


@mpi
@pytest.mark.parametrize("ranks, dims", [
    (2, "[2,1]"),
    pytest.param(3, "[1,3]", marks=pytest.mark.thorough),
    pytest.param(4, "[2,2]", marks=pytest.mark.thorough),
])  # fmt: skip
@pytest.mark.parametrize("name, settings", [
    ("cavity-re100", ["grid.cells=[20,18]", "time.end=0.05", "output.probes=[[0.3,0.4]]",
                      "output.fields=['speed','vorticity','q_criterion','stream_function']"]),
    ("hot-plate", ["output.fields=['heat_flux_x','heat_flux_y','temperature_gradient_y']"]),
])  # fmt: skip
def test_the_same_bits_on_many_processes(name, settings, ranks, dims, tmp_path):
    run(load(name, settings), "numpy", tmp_path / "one.h5")
    more = [word for setting in settings for word in ("--set", setting)]
    done = launch(ranks, "-m", "heatsolve", "run", name, "--backend", "numpy", *more,
                  "--set", f"parallel.ranks={dims}", "--output", tmp_path / "many.h5")  # fmt: skip
    assert done.returncode in (0, 3), done.stderr  # the cavity is not steady yet
    one, many = read(tmp_path / "one.h5"), read(tmp_path / "many.h5")
    assert one.fields.keys() == many.fields.keys() and len(one.fields) > 2
    for field, values in one.fields.items():
        assert np.array_equal(values, many.fields[field]), field
        assert np.abs(values).max() > 0.0
    for column, values in one.history.items():
        assert np.array_equal(values, many.history[column]), column
    if "velocity_x" in one.history:
        assert "probe_0_vorticity" in one.history


def test_probes_hold_derived_fields_that_are_written(tmp_path):
    settings = ["grid.cells=[8,8]", "output.fields=['vorticity']", "time.end=0.2"]
    case = load("cavity-re100", [*settings, "output.every=1", "output.probes=[[0.5625,0.5625]]"])
    found = read(run(case, "numpy", tmp_path / "a.h5").path)
    assert np.array_equal(found.history["probe_0_vorticity"], found.fields["vorticity"][1:, 4, 4])
    (row,) = (row for row in preview(case) if row.startswith("history"))
    assert "columns" in row


@pytest.mark.parametrize("fields, said", [
    ("['vortisity']", 'the model has no vortisity, did you mean "vorticity"?'),
    ("['heat_flux_x']", "the model has no heat_flux_x"),
    ("['vorticity_x']", "the model has no vorticity_x"),
])  # fmt: skip
def test_fields_that_a_model_cannot_derive(fields, said):
    with pytest.raises(CaseError) as refused:
        load("cavity-re100", [f"output.fields={fields}"])
    assert said in str(refused.value)
    with pytest.raises(CaseError, match=r"is not among output\.fields"):
        load("cavity-re100", ["output.plot=['vorticity']"])
