"""Transport: orders of accuracy, conservation, walls, limits of stability, what is refused."""

import math
from contextlib import suppress

import numpy as np
import pytest
from many import Impatient

import heatsolve
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.case.load import load, parse, recorded
from heatsolve.control.controller import Start
from heatsolve.errors import CaseError, Diverged, InputError, Interrupted
from heatsolve.io.reader import read
from heatsolve.models import stability
from heatsolve.models.base import Recordings
from heatsolve.models.transport.convection import Convection
from heatsolve.report import Report
from heatsolve.runner import run
from heatsolve.tools.check import preview

CASE = """
[model]
kind = "transport"
{model}
[grid]
{grid}
[initial]
{initial}
[boundary]
{walls}
[time]
end = {end}
{time}
"""


def solve(backend, path, model, grid, initial, end, time, walls="", more=""):
    text = CASE.format(model=model, grid=grid, initial=initial, walls=walls, end=end, time=time)
    return run(parse(text + more, "case"), backend, path / "case.h5")


def errors_of(backend, path, sizes, text, name="concentration", norm="l2"):
    """The error norms that runs of `text(n)` report."""
    found = []
    for n in sizes:
        result = run(parse(text(n), "case"), backend, path / f"{n}.h5")
        found.append(read(result.path).attributes[f"error_{norm}_{name}"])
    return found


def order(errors):
    return math.log2(errors[-2] / errors[-1])


# ---- accuracy -----------------------------------------------------------------------------------

WAVE = """
[model]
kind = "transport"
velocity = [{v}]
convection = "{convection}"
[grid]
{kind} = [{n}]
periodic = ["x"]
[initial]
concentration = "sin(2*pi*x)"
[time]
end = 0.25
cfl = {cfl}
scheme = "{scheme}"
[reference.exact]
concentration = "sin(2*pi*(x - {v}*t))"
"""


@pytest.mark.few(3, among="numpy")
@pytest.mark.parametrize("v", [1.0, -1.0])
@pytest.mark.parametrize(
    "convection, scheme, least, most",
    [("upwind", "explicit", 0.9, 1.1), ("central", "rk3", 1.95, 2.05),
     ("upwind3", "rk3", 2.95, 3.05), ("tvd", "rk2", 1.7, 2.3)],
)  # fmt: skip
def test_order_of_convection(backend, tmp_path, convection, scheme, least, most, v):
    def text(n):
        return WAVE.format(n=n, v=v, convection=convection, scheme=scheme, cfl=0.4, kind="cells")

    assert least < order(errors_of(backend, tmp_path, (64, 128), text)) < most


@pytest.mark.parametrize("scheme, expected", [("explicit", 1), ("rk2", 2), ("rk3", 3)])
def test_order_in_time(tmp_path, scheme, expected):
    """Of one space discretisation: against a step that is much shorter."""

    def field(steps):
        model = "velocity = 'self'\ndiffusivity = 0.02\nconvection = 'central'"
        result = solve(
            "numpy", tmp_path, model, "cells = [32]\nperiodic = ['x']",
            "velocity_x = 'sin(2*pi*x)'", 0.08, f"step = '0.08/{steps}'\nscheme = '{scheme}'",
        )  # fmt: skip
        return result.fields["velocity_x"]

    exact = field(2560)
    errors = [np.abs(field(steps) - exact).max() for steps in (40, 80, 160)]
    assert expected - 0.2 < order(errors) < expected + 0.2


MANUFACTURED = """
[constants]
nu = 0.1
[model]
kind = "transport"
velocity = [1, "0.5 + x"]
diffusivity = "nu"
convection = "{convection}"
[grid]
{kind} = [{n}, {n}]
[initial]
concentration = "sin(x + 2*y)"
[source]
concentration = "cos(x + 2*y - t)*(-1 + 1 + 2*(0.5 + x)) + 5*nu*sin(x + 2*y - t)"
[boundary]
left.concentration = {{ value = "sin(2*y - t)" }}
right.concentration = {{ gradient = "cos(1 + 2*y - t)" }}
bottom.concentration = {{ gradient = "-2*cos(x - t)" }}
top.concentration = {{ value = "sin(x + 2 - t)" }}
[time]
end = 0.2
cfl = 0.5
scheme = "rk3"
[reference.exact]
concentration = "sin(x + 2*y - t)"
"""


ORDERS = [("central", 1.9, 2.2), ("tvd", 1.7, 3.3), ("upwind3", 1.8, 3.3)]


@pytest.mark.few(1, among="numpy")
@pytest.mark.parametrize("convection, least, most", ORDERS)
@pytest.mark.parametrize("kind", ["nodes", "cells"])
def test_order_of_a_manufactured_solution(backend, tmp_path, convection, kind, least, most):
    """With a source, and walls of values and of gradients that vary with time."""
    sizes = (33, 65) if kind == "nodes" else (32, 64)

    def text(n):
        return MANUFACTURED.format(n=n, convection=convection, kind=kind)

    assert least < order(errors_of(backend, tmp_path, sizes, text)) < most


DIVERGING = """
[model]
kind = "transport"
velocity = ["1 + x/2"{vy}]
convection = "{convection}"
form = "{form}"
[grid]
{kind} = [{n}{ny}]
[initial]
concentration = "sin({wave})"
[source]
concentration = "{rate}*cos({wave} - t) + {div}*sin({wave} - t)"
[boundary]
left.concentration = {{ value = "sin({wave} - t)" }}
right.concentration = {{ gradient = "cos({wave} - t)" }}
{more}
[time]
end = {end}
cfl = 0.5
scheme = "rk3"
[reference.exact]
concentration = "sin({wave} - t)"
"""
LINE = {"end": 0.3, "vy": "", "ny": "", "wave": "x", "rate": "(x/2)", "more": ""}
PLANE = {
    "end": 0.15,
    "vy": ', "-0.5 - y"',
    "wave": "(x + 2*y)",
    "rate": "(-1 + 1 + x/2 - 1 - 2*y)",
    "more": "bottom.concentration = { gradient = '-2*cos(x + 2*y - t)' }\n"
    "top.concentration = { value = 'sin(x + 2*y - t)' }",
}


FORMS = [(1, "flux"), (2, "flux"), (1, "advective")]


@pytest.mark.few(4)
@pytest.mark.parametrize("convection, least, most", [("upwind", 0.85, 1.2), *ORDERS])
@pytest.mark.parametrize("kind", ["nodes", "cells"])
@pytest.mark.parametrize("dimension, form", FORMS)
def test_order_with_a_velocity_that_diverges(
    tmp_path, dimension, kind, convection, least, most, form
):
    """The flux form has c div v more than the advective one; the gradient is at an outlet."""

    def text(n):
        given = LINE if dimension == 1 else PLANE | {"ny": f", {n}"}
        div = {1: 0.5, 2: -0.5}[dimension] if form == "flux" else 0.0
        return DIVERGING.format(n=n, convection=convection, kind=kind, form=form, div=div, **given)

    sizes = (25, 49) if kind == "nodes" else (24, 48)
    assert least < order(errors_of("numpy", tmp_path, sizes, text)) < most


@pytest.mark.few(3)
@pytest.mark.parametrize("convection, least, most", [("upwind", 0.85, 1.2), *ORDERS])
@pytest.mark.parametrize("kind", ["nodes", "cells"])
@pytest.mark.parametrize("direction", [1, -1])
def test_order_of_a_velocity_that_carries_itself(
    tmp_path, kind, convection, least, most, direction
):
    def text(n):
        inlet, outlet = ("left", "right")[::direction]
        wave, start = f"{direction}*x - t", f"sin({direction}*x)"
        return f"""
[model]
kind = "transport"
velocity = "self"
convection = "{convection}"
[grid]
{kind} = [{n}]
[initial]
velocity_x = "{2 * direction} + {start}"
[source]
velocity_x = "cos({wave})*(-1 + {direction}*({2 * direction} + sin({wave})))"
[boundary]
{inlet}.velocity_x.value = "{2 * direction} + sin({wave})"
{outlet}.velocity_x.gradient = "cos({wave})"
[time]
end = 0.2
step = "0.1/{n}"
scheme = "rk3"
[reference.exact]
velocity_x = "{2 * direction} + sin({wave})"
"""

    sizes = (17, 33) if kind == "nodes" else (16, 32)
    errors = errors_of("numpy", tmp_path, sizes, text, "velocity_x")
    assert least < order(errors) < most


@pytest.mark.few(1, among="numpy")
def test_diffusion_in_space(backend, tmp_path):
    def text(n):
        return f"""
[model]
kind = "transport"
diffusivity = 1
[grid]
nodes = [{n}, {n}, {n}]
[initial]
concentration = "sin(pi*x)*sin(pi*y)*cos(pi*z)"
[boundary]
left.concentration = {{ value = 0 }}
right.concentration = {{ value = 0 }}
bottom.concentration = {{ value = 0 }}
top.concentration = {{ value = 0 }}
back.concentration = {{ gradient = 0 }}
front.concentration = {{ gradient = 0 }}
[time]
end = 0.02
step = "0.1/({n} - 1)**2"
[reference.exact]
concentration = "exp(-3*pi**2*t)*sin(pi*x)*sin(pi*y)*cos(pi*z)"
"""

    assert 1.9 < order(errors_of(backend, tmp_path, (9, 17), text)) < 2.1


# ---- what is conserved, what is bounded ----------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("convection", ["upwind", "central", "upwind3", "tvd"])
def test_constant_velocity_conserves(backend, tmp_path, convection):
    result = solve(
        backend, tmp_path, f"velocity = [0.7, -1.3]\nconvection = '{convection}'",
        "cells = [24, 30]\nperiodic = ['x', 'y']", "concentration = 'exp(sin(2*pi*x))*cos(y)'",
        0.2, "cfl = 0.4\nscheme = 'rk3'",
    )  # fmt: skip
    frames = read(result.path).fields["concentration"]
    sums = frames.sum(axis=(1, 2))
    assert abs(sums[-1] - sums[0]) < 1e-13 * np.abs(frames[0]).sum()


HAT = "concentration = 1\n[[initial.box]]\nfield = 'concentration'\nvalue = 2\n"


@pytest.mark.few(4, among="numpy")
@pytest.mark.parametrize("scheme", ["explicit", "rk2", "rk3"])
def test_tvd_makes_no_extremum(backend, tmp_path, scheme):
    result = solve(
        backend, tmp_path, "velocity = [1]\nconvection = 'tvd'",
        "cells = [100]\nperiodic = ['x']", HAT + "lower = [0.2]\nupper = [0.5]", 0.4,
        f"cfl = 1\nscheme = '{scheme}'\n[output]\nevery = 5",
    )  # fmt: skip
    frames = read(result.path).fields["concentration"]
    variations = np.abs(np.diff(frames, axis=1, append=frames[:, :1])).sum(axis=1)
    assert frames.min() >= 1.0 - 1e-14 and frames.max() <= 2.0 + 1e-14
    assert np.all(np.diff(variations) < 1e-13)


def test_boxes_by_index_and_by_coordinates(tmp_path):
    for grid, corners in (
        ("nodes = [11, 6]\nperiodic = ['x', 'y']", "first = [3, 0]\nlast = [5, 2]"),
        ("cells = [10, 5]\nperiodic = ['x', 'y']", "lower = [0.3, 0]\nupper = [0.55, 0.5]"),
    ):
        more = "[output]\nevery = 1"
        result = solve("numpy", tmp_path, "", grid, HAT + corners, 0.1, f"step = 0.1\n{more}")
        first = read(result.path).fields["concentration"][0]
        expected = np.ones_like(first)
        expected[0:3, 3:6] = 2.0
        assert np.array_equal(first, expected)


# ---- the flux form ------------------------------------------------------------------------------

CLOSED = "\n".join(
    f"{wall}.concentration.gradient = 0" for wall in ("left", "right", "bottom", "top")
)
CONVECTIONS = ["upwind", "central", "upwind3", "tvd"]


def mass(field, on_nodes):
    """The integral in units of a cell; a node on a wall owns half of one along that axis."""
    for axis in range(field.ndim):
        ends = [1.0] * field.shape[axis]
        if on_nodes:
            ends[0] = ends[-1] = 0.5
        shape = [1] * field.ndim
        shape[axis] = -1
        field = field * np.reshape(ends, shape)
    return field.sum()


@pytest.mark.parametrize("convection", CONVECTIONS)
@pytest.mark.parametrize("kind", ["nodes", "cells"])
def test_nothing_is_lost_in_a_closed_box(tmp_path, convection, kind):
    """Also by a velocity that diverges; a source adds what it has."""
    result = solve(
        "numpy", tmp_path, "velocity = ['sin(pi*x)*(1 + y)', '-cos(pi*x + 0.3)*sin(pi*y)']\n"
        f"convection = '{convection}'\ndiffusivity = 0.003", f"{kind} = [18, 15]",
        "concentration = '1 + exp(sin(2*pi*x))*cos(y)'", 0.2, "step = 0.005\nscheme = 'rk3'",
        CLOSED, "\n[source]\nconcentration = 0.5",
    )  # fmt: skip
    frames = read(result.path).fields["concentration"]
    first, last = (mass(frame, kind == "nodes") for frame in (frames[0], frames[-1]))
    given = 0.5 * 0.2 * mass(np.ones_like(frames[0]), kind == "nodes")
    assert last == pytest.approx(first + given, rel=1e-13)


@pytest.mark.parametrize("convection", CONVECTIONS)
def test_what_flows_in_is_the_value_at_the_wall(tmp_path, convection):
    """On cells v times the value, before anything leaves."""
    for side, v in (("left", "2 + y"), ("right", "-2 - y")):
        other = {"left": "right", "right": "left"}[side]
        result = solve(
            "numpy", tmp_path, f"velocity = ['{v}', 0]\nconvection = '{convection}'",
            "cells = [40, 4]\nperiodic = ['y']", "concentration = 0", 0.05,
            "step = 0.0025\nscheme = 'rk3'",
            f"{side}.concentration.value = '1 + y'\n{other}.concentration.gradient = 0",
        )  # fmt: skip
        y = (np.arange(4) + 0.5) / 4
        found = result.fields["concentration"].sum(axis=1) / 40
        assert found == pytest.approx(0.05 * (2 + y) * (1 + y), rel=1e-6)


@pytest.mark.parametrize("convection", ["backward", *CONVECTIONS])
@pytest.mark.parametrize("grid", ["nodes = [17, 14]", "nodes = [16, 14]\nperiodic = ['x', 'y']"])
def test_both_forms_are_alike_where_velocity_is_constant(tmp_path, convection, grid):
    walls = (
        "left.concentration.value = 'y'\nright.concentration.gradient = 0.3\n"
        "bottom.concentration.gradient = 1\ntop.concentration.gradient = 0.2"
    )
    v = "[0.7, 1.3]" if convection == "backward" else "[0.7, -1.3]"
    first, second = (
        solve(
            "numpy", tmp_path, f"velocity = {v}\nconvection = '{convection}'\nform = '{form}'\n"
            "diffusivity = 0.003", grid, "concentration = 'exp(sin(2*pi*x))*cos(y)'", 0.05,
            "step = 0.005\nscheme = 'rk3'", "" if "periodic" in grid else walls,
        ).fields["concentration"]
        for form in ("flux", "advective")
    )  # fmt: skip
    assert np.abs(first - second).max() < 1e-13


@pytest.mark.parametrize("convection, scheme", [("upwind", "explicit"), ("tvd", "rk2")])
@pytest.mark.parametrize("kind, n", [("cells", 100), ("nodes", 101)])
def test_jumps_of_burgers_equation(tmp_path, kind, n, convection, scheme):
    def at_end(low, high, middle, end):
        result = solve(
            "numpy", tmp_path, f"velocity = 'self'\nconvection = '{convection}'",
            f"{kind} = [{n}]", f"velocity_x = '{low} if x < {middle} else {high}'", end,
            f"step = 0.004\nscheme = '{scheme}'",
            f"left.velocity_x.value = {low}\nright.velocity_x.value = {high}",
        )  # fmt: skip
        return read(result.path).coordinates["x"], result.fields["velocity_x"]

    x, u = at_end(1, 0, 0.3, 0.8)
    assert x[np.argmax(u < 0.5)] == pytest.approx(0.7, abs=0.01)
    assert u.min() >= 0.0 and u.max() <= 1.0 + 1e-14
    x, u = at_end(1, -1, 0.5, 0.2)
    assert x[np.argmax(u < 0.0)] == pytest.approx(0.5, abs=0.01)
    x, u = at_end(-1, 1, 0.5, 0.3)
    error = np.abs(u - np.clip((x - 0.5) / 0.3, -1.0, 1.0))
    assert error.max() < 0.11 and error.mean() < 0.03


def test_velocities_in_a_plane_carry_themselves_as_on_a_line(tmp_path):
    """What does not vary along y is Burgers' equation along x, and the other way round."""
    for axis, grid in (("x", "cells = [40, 5]"), ("y", "cells = [5, 40]")):
        other = {"x": "y", "y": "x"}[axis]
        given = f"1 + exp(-50*({axis} - 0.4)**2)"
        plane, line = (
            solve(
                "numpy", tmp_path, "velocity = 'self'\nconvection = 'tvd'",
                f"{cells}\nperiodic = {axes}", initial, 0.2, "step = 0.002\nscheme = 'rk2'",
            ).fields[name]
            for cells, axes, initial, name in (
                (grid, ["x", "y"], f"velocity_{axis} = '{given}'\nvelocity_{other} = 0.5",
                 f"velocity_{axis}"),
                ("cells = [40]", ["x"], f"velocity_x = '{given.replace(axis, 'x')}'", "velocity_x"),
            )
        )  # fmt: skip
        lines = plane if axis == "x" else plane.T
        assert np.abs(lines - line).max() < 1e-13


@pytest.mark.parametrize("scheme", ["explicit", "rk2", "rk3"])
def test_tvd_makes_no_extremum_where_velocity_varies(tmp_path, scheme):
    result = solve(
        "numpy", tmp_path, "velocity = ['sin(pi*x)*cos(pi*y)', '-cos(pi*x)*sin(pi*y)']\n"
        "convection = 'tvd'", "cells = [24, 24]",
        HAT + "lower = [0.2, 0.1]\nupper = [0.5, 0.6]", 1.0, f"cfl = 1\nscheme = '{scheme}'",
        more="", walls=CLOSED,
    )  # fmt: skip
    last = result.fields["concentration"]
    assert last.min() >= 1.0 - 1e-13 and last.max() <= 2.0 + 1e-13


@pytest.mark.parametrize("convection", ["upwind", "tvd"])
@pytest.mark.parametrize("kind", ["nodes", "cells"])
def test_nothing_becomes_negative_where_velocity_diverges(tmp_path, kind, convection):
    """A cell that is left on both sides bounds the step, too."""
    text = CASE.format(
        model=f"velocity = ['-1 if x < 0.5 else 1']\nconvection = '{convection}'",
        grid=f"{kind} = [11]", initial="concentration = '1 + sin(9*x)'", walls="\n".join(
            f"{wall}.concentration.gradient = 0" for wall in ("left", "right")),
        end=1, time="cfl = 1",
    )  # fmt: skip
    largest = Convection(parse(text, "case"), NumpyBackend()).largest_step()
    spacing = 0.1 if kind == "nodes" else 1 / 11
    assert largest == pytest.approx(spacing / 2 / (2 if convection == "tvd" else 1))
    assert run(parse(text, "case"), "numpy", tmp_path / "a.h5").fields["concentration"].min() >= 0.0


@pytest.mark.few(6)
@pytest.mark.parametrize("convection", CONVECTIONS)
@pytest.mark.parametrize("form", ["flux", "advective"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_pulse_leaves_through_a_node_without_reflection(tmp_path, convection, form, side):
    other, v = {"left": ("right", -1), "right": ("left", 1)}[side]
    result = solve(
        "numpy", tmp_path, f"velocity = [{v}]\nconvection = '{convection}'\nform = '{form}'",
        "nodes = [101]", "concentration = 'exp(-((x - 0.5)/0.1)**2)'", 0.9,
        "cfl = 0.4\nscheme = 'rk3'",
        f"{side}.concentration.gradient = 0\n{other}.concentration.value = 0",
    )  # fmt: skip
    assert np.abs(result.fields["concentration"]).max() < 0.01


def test_central_differences_are_of_second_order_while_a_pulse_leaves(tmp_path):
    def text(n):
        return CASE.format(
            model="velocity = [1]\nconvection = 'central'", grid=f"nodes = [{n}]",
            initial="concentration = 'exp(-((x - 0.5)/0.2)**2)'",
            walls="left.concentration.value = 'exp(-((0.5 + t)/0.2)**2)'\n"
            "right.concentration.gradient = 0", end=0.5, time="cfl = 0.4\nscheme = 'rk3'",
        ) + "\n[reference.exact]\nconcentration = 'exp(-((x - t - 0.5)/0.2)**2)'"  # fmt: skip

    assert 1.9 < order(errors_of("numpy", tmp_path, (65, 129), text, norm="max")) < 2.1


def test_the_form_of_a_case(tmp_path):
    for overrides, form in (
        ([], "flux"), (["model.convection=backward"], "advective"),
        (["model.convection=backward", "model.form=flux"], "flux"),
        (["model.form=advective"], "advective"),
    ):  # fmt: skip
        case = parse(wave(), "case", overrides)
        assert case.model.form == form
        result = run(case, "numpy", tmp_path / "a.h5")
        assert f'form = "{form}"' in read(result.path).attributes["case"]
    assert not hasattr(load("hotspot").model, "form")
    with pytest.raises(CaseError, match=r'model\.form: only for kind = "transport"'):
        load("hotspot", ["model.form=flux"])


def test_a_file_without_a_form_is_an_advective_one():
    held = recorded(wave())
    assert parse(held.text, "case").model.form == held.case.model.form == "advective"
    assert any("model.form" in note and "advective" in note for note in held.notes)
    assert not recorded(load("cfdpython-05").text).notes


@pytest.mark.parametrize(
    "v, form, told",
    [("'x', '-y'", "flux", False), ("'x', 'y'", "flux", True), ("'x', 'y'", "advective", False)],
)
def test_check_tells_of_a_velocity_with_divergence(v, form, told):
    text = CASE.format(
        model=f"velocity = [{v}]\nform = '{form}'", grid="cells = [8, 8]", walls=CLOSED,
        initial="concentration = 1", end=1, time="cfl = 0.5",
    )  # fmt: skip
    rows = "\n".join(preview(parse(text, "case"), "numpy"))
    assert ("div v is not 0" in rows) == told
    assert ("div(v u)" in rows) == (form == "flux")


# ---- stability ----------------------------------------------------------------------------------


def test_limits_of_stability():
    h = 0.1

    def limit(convection, scheme, speeds, nu, spacings):
        return stability.largest_step(convection, scheme, speeds, (nu,), spacings)

    assert limit("upwind", "explicit", (2.0,), 0.0, (h,)) == pytest.approx(h / 2)
    assert limit("upwind", "explicit", (1.0, 3.0), 0.0, (h, h)) == pytest.approx(h / 4)
    assert limit("upwind", "explicit", (0.0,), 0.3, (h,)) == pytest.approx(h * h / 0.6)
    both = 1.0 / (2.0 / h + 4 * 0.05 / h**2)
    assert limit("upwind", "explicit", (1.0, 1.0), 0.05, (h, h)) == pytest.approx(both)
    assert limit("central", "rk3", (1.0,), 0.0, (h,)) == pytest.approx(math.sqrt(3.0) * h)
    # Hirsch (2007), 8.3: with little diffusion 2 nu / v^2, with much h^2 / 2 nu.
    assert limit("central", "explicit", (1.0,), 0.01, (h,)) == pytest.approx(0.02, rel=1e-4)
    assert limit("central", "explicit", (1.0,), 0.5, (h,)) == pytest.approx(h * h / 1.0)
    assert limit("upwind3", "rk3", (1.0,), 0.0, (h,)) == pytest.approx(1.6259 * h, rel=1e-3)
    fastest = math.sin(1.7974) * (4.0 - math.cos(1.7974)) / 3.0
    longest = math.sqrt(3.0) * h / fastest
    assert limit("central4", "rk3", (1.0,), 0.0, (h,)) == pytest.approx(longest, rel=1e-3)
    never = (("central", "explicit"), ("central", "rk2"), ("upwind3", "explicit"))
    for convection, scheme in never:
        assert limit(convection, scheme, (1.0,), 0.0, (h,)) == 0.0
    assert limit("upwind", "explicit", (0.0,), 0.0, (h,)) == math.inf


def test_a_step_is_stable_for_all_diffusivities():
    """The rounding of a step short enough for much diffusion hides the growth without any."""
    args = (1.0,), (0.1,)
    much = stability.largest_step("central", "explicit", args[0], (50.0,), args[1])
    assert much == pytest.approx(1e-4)
    for diffusivities in ((50.0, 0.0), (0.0, 50.0), (5e6, 0.0)):
        assert stability.largest_step("central", "explicit", args[0], diffusivities, args[1]) == 0.0


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "convection, scheme",
    [("upwind", "explicit"), ("central", "rk3"), ("upwind3", "rk3"), ("upwind3", "rk2")],
)
@pytest.mark.parametrize("nu", [0.0, 0.004])
def test_a_step_at_the_limit_is_stable_and_beyond_it_is_not(tmp_path, convection, scheme, nu):
    def largest(cfl):
        model = f"velocity = [1, 1]\ndiffusivity = {nu}\nconvection = '{convection}'"
        noise = "concentration = 'sin(1e4*x*x + 3e3*y) + sin(7e3*x*y)'"
        result = solve(
            "numba", tmp_path, model, "cells = [32, 32]\nperiodic = ['x', 'y']", noise, 12.0,
            f"cfl = {cfl}\nscheme = '{scheme}'\nallow_unstable = true",
        )  # fmt: skip
        return np.abs(result.fields["concentration"]).max()

    assert largest(0.99) < 3.0
    with suppress(Diverged):
        assert largest(1.2) > 10.0


def refused(text, overrides=()):
    with pytest.raises(InputError) as caught:
        run(parse(text, "case", overrides), "numpy")
    return str(caught.value)


def wave(**changes):
    given = {"n": 20, "v": 1, "convection": "upwind", "scheme": "explicit", "cfl": 0.5}
    return WAVE.format(**given | {"kind": "cells"} | changes)


def test_unstable_steps_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sentence = refused(wave(cfl=1.01))
    assert "time.cfl: a step of 0.0505 is unstable, explicit Euler allows at most 0.05" in sentence
    assert "rk3 allows at most" in refused(wave(cfl=1.01, scheme="rk3"))
    assert "no step is stable" in refused(wave(convection="central"))
    assert '"backward" is unstable where' in refused(wave(convection="backward", v=-1))
    assert not list(tmp_path.iterdir())
    result = run(parse(wave(cfl=1.01), "case", ["time.allow_unstable=true"]), "numpy")
    assert result.exit_code == 0


def test_divergence_names_field_cell_and_step(tmp_path):
    text = load("cfdpython-08").text
    with pytest.raises(Diverged, match=r"diverged by step \d+ .*velocity [xy] is .* at x = "):
        overrides = ["time.step=0.2", "time.end=100", "time.allow_unstable=true"]
        run(parse(text, "case", overrides), "numpy", tmp_path / "case.h5")


@pytest.mark.parametrize(
    "overrides, sentence",
    [
        (["model.velocity=[1, 2]"], "model.velocity: must have length 1"),
        (["model.velocity=1"], "model.velocity: must be a list of numbers or expressions"),
        (["model.velocity=['x', 'q']"], "model.velocity.1"),
        (["model.diffusivity=-1"], "model.diffusivity"),
        (["model.conductivity=2"], 'model.conductivity: only for kind = "heat"'),
        (["model.steady=true"], 'model.steady: must be false with kind = "transport"'),
        (["time.scheme=crank-nicolson", "time.step=0.1"], "time.scheme"),
        (["solver.method=cg"], 'solver.method: has no effect with model.kind = "transport"'),
        (["initial.temperature=2"], "initial.temperature: the model has no such field"),
        (["output.fields=['velocity_x']"], "output.fields.0: the model has no velocity_x"),
        (["grid.periodic=[]"], "boundary.left: missing"),
        (["parallel.halo=2"], "parallel.halo: must be 1"),
    ],
)
def test_refusals(overrides, sentence):
    with pytest.raises(CaseError) as caught:
        parse(wave(), "case.toml", overrides)
    assert sentence in str(caught.value)


def test_a_wall_needs_a_condition_for_every_field():
    text = load("cfdpython-06").text
    text = text.replace("left = { velocity_x = { value = 1 }, ", "left = { ")
    with pytest.raises(CaseError, match=r"boundary\.left\.velocity_x: missing"):
        parse(text, "case")
    text = load("cfdpython-06").text.replace(
        "left = { velocity_x = { value = 1 }", "left = { velocity_x = { gradient = 1 }"
    )
    with pytest.raises(CaseError, match=r"boundary\.left: on nodes, all fields of a wall"):
        parse(text, "case")


# ---- boxes, once more ---------------------------------------------------------------------------


def test_boxes_may_vary_and_belong_to_heat_too(backend, tmp_path):
    box = "[[initial.box]]\nfield = '{}'\nvalue = 'x'\nfirst = [8]\nlast = [10]"
    transport = "[model]\nkind = 'transport'\n"
    heat = "[model]\nsteady = false\nconductivity = 1e-30\n"
    for model, field in ((transport, "concentration"), (heat, "temperature")):
        text = f"{model}[grid]\ncells = [16]\nperiodic = ['x']\n{box.format(field)}\n"
        text += "[time]\nend = 0.1\nstep = 0.1"
        path = tmp_path / f"{field}.h5"
        run(parse(text, "case"), backend, path)
        values = read(path).fields[field][0]
        x = (np.arange(16) + 0.5) / 16
        assert np.array_equal(values, np.where((x > 0.5) & (x < 0.7), x, 0.0))


@pytest.mark.parametrize("due, step", [(0.25, 1), (0.5, 1), (1.8, 4), (0.001, 1)])
def test_a_box_is_set_again_at_the_first_step_from_then_on(tmp_path, due, step):
    """Also where the last step is shorter than the others."""
    hat = HAT + f"first = [2]\nlast = [4]\nagain = [{due}]"
    result = solve(
        "numpy", tmp_path, "diffusivity = 0.001", "cells = [20]\nperiodic = ['x']", hat, 2.1,
        "step = 0.5\n[output]\nevery = 1",
    )  # fmt: skip
    sums = read(result.path).fields["concentration"].sum(axis=1)
    rises = [n for n in range(1, len(sums)) if sums[n] > sums[n - 1] + 1e-6]
    assert rises == [step + 1]


PULSE = """[[initial.box]]
field = "{field}"
value = {value}
lower = [0.3]
upper = [0.6]
again = [{again}]
"""


def test_no_box_is_forgotten_in_silence(tmp_path, capsys):
    """No step begins after its time."""
    for due, told in ((0.9, False), (0.95, True)):
        text = CASE.format(
            model="diffusivity = 0.01", grid="cells = [16]\nperiodic = ['x']", walls="", end=1,
            initial="concentration = 0", time="step = 0.1",
        )  # fmt: skip
        case = parse(text + PULSE.format(field="concentration", value=1, again=due), "case")
        run(case, "numpy", tmp_path / f"{due}.h5", Report())
        said = "initial.box.0.again: no step begins at t = 0.95 or later, so the box is not set"
        assert (said in capsys.readouterr().err) == told


EMPTIED = "left.concentration.value = 0\nright.concentration.gradient = 0"


@pytest.mark.parametrize("every", [1, 50])
@pytest.mark.parametrize("due", [6.0, 6.003])
def test_a_march_is_not_steady_before_its_last_box(tmp_path, due, every):
    """It is at rest from t = 4.4 on. 6.003 lies within a step."""
    box = PULSE.format(field="concentration", value=1, again=due)
    more = f"{box}\n[solver]\ncheck_every = {every}\n"
    result = solve(
        "numpy", tmp_path, "velocity = [1]\ndiffusivity = 0.05", "cells = [20]",
        "concentration = 0", 20, "cfl = 0.5\ntolerance = 1e-6", EMPTIED, more,
    )  # fmt: skip
    assert 10 < result.outcome.history["time"][-1] < 12 and result.outcome.ending == "tolerance"


def test_a_march_is_steady_by_the_norm_of_its_last_step(tmp_path):
    """Not by a norm from before a wall changed."""
    walls = EMPTIED.replace("value = 0", "value = 'where(t > 6, 1, 0)'")
    result = solve(
        "numpy", tmp_path, "velocity = [1]\ndiffusivity = 0.05", "cells = [20]",
        "concentration = 0", 20, "cfl = 0.5\ntolerance = 1e-6", walls,
        "[solver]\ncheck_every = 50\n",
    )  # fmt: skip
    assert result.outcome.history["time"][-1] > 10
    assert result.fields["concentration"].mean() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("second", [0.92, 0.95])
def test_boxes_due_in_one_step_are_set_in_the_order_of_their_times(tmp_path, second):
    """Whatever their order in the case."""
    boxes = "".join(
        PULSE.format(field="concentration", value=value, again=due)
        for value, due in ((7, 0.93), (9, second))
    )
    result = solve(
        "numpy", tmp_path, "", "cells = [10]\nperiodic = ['x']", "concentration = 0", 2,
        "step = 0.5", more=boxes,
    )  # fmt: skip
    assert result.fields["concentration"].max() == (9 if second > 0.93 else 7)


def test_a_fluid_at_rest_waits_for_its_box(tmp_path):
    """Nothing moves before: no step follows from `time.cfl`."""
    hidden = PULSE.format(field="velocity_x", value=0, again="").replace("again = []\n", "")
    boxes = PULSE.format(field="velocity_x", value=5, again=1.0) + hidden
    given = "cells = [40]\nperiodic = ['x']", "velocity_x = 0", 2
    fields = []
    for time in ("cfl = 0.5", "step = 0.002"):
        path = tmp_path / time
        path.mkdir()
        result = solve("numpy", path, "velocity = 'self'", *given, time, more=boxes)
        fields.append(result.fields["velocity_x"])
    assert fields[0].min() >= 0.0 and fields[0].max() == pytest.approx(fields[1].max(), rel=0.02)
    assert fields[0].mean() == pytest.approx(fields[1].mean(), rel=1e-3)
    with pytest.raises(InputError, match="is unstable where a velocity is negative"):
        solve("numpy", tmp_path, "velocity = 'self'\nconvection = 'backward'", *given,
              "step = 0.002", more=boxes.replace("value = 5", "value = -5"))  # fmt: skip


FAST = "cells = [100]\nupper = [4]", "velocity_x = 0"
LEFT_TO_RIGHT = "left.velocity_x.value = 0\nright.velocity_x.gradient = 0"


def test_steps_are_chosen_for_the_values_of_a_box(tmp_path):
    """Upwind differences keep the values in their range."""
    box, model = PULSE.format(field="velocity_x", value=5, again=1.5), "velocity = 'self'"
    given = model, *FAST, 1.6, "cfl = 0.8", LEFT_TO_RIGHT, box
    field = solve("numpy", tmp_path, *given).fields["velocity_x"]
    assert field.min() >= 0.0 and 3.0 < field.max() <= 5.0
    later = PULSE.format(field="velocity_x", value=0, again=1.0)
    hidden = box + later  # at the start the second box hides the first
    with pytest.raises(InputError, match=r"a step of 0\.05 is unstable"):
        solve("numpy", tmp_path / "b", model, *FAST, 1.6, "step = 0.05", LEFT_TO_RIGHT, hidden)


@pytest.mark.parametrize("grid, share", [("cells = [20]", 0.4), ("nodes = [20]", 0.4)])
def test_boxes_across_a_periodic_end(tmp_path, grid, share):
    model = '[model]\nkind = "transport"\n'
    for lower, upper in ((2.1, 2.3), (0.8, 1.2), (-0.2, 0.2), (-0.2 + 1e-12, 1.2 - 1e-12)):
        text = f"{model}[grid]\n{grid}\nperiodic = ['x']\n[[initial.box]]\nfield = "
        text += f"'concentration'\nvalue = 'x'\nlower = [{lower}]\nupper = [{upper}]\n"
        run(parse(text + "[time]\nend = 1\nstep = 1", "case"), "numpy", tmp_path / f"{lower}.h5")
        found = read(tmp_path / f"{lower}.h5")
        x = found.coordinates["x"]
        inside = [(x >= low - 1e-9) & (x <= high + 1e-9)
                  for low, high in ((lower + n, upper + n) for n in range(-2, 2))]  # fmt: skip
        expected = np.where(np.any(inside, axis=0), x, 0.0)
        assert np.array_equal(found.fields["concentration"][-1], expected)
    assert (expected > 0).sum() >= share * len(x)


DRIVES = {
    "reversed": ("velocity = [1]\ndiffusivity = 0.01", "'where(t < 5, 1, -1)'", 0, -1.0),
    "hidden": ("diffusivity = 1", "1", "'min(0.5, max(0, t - 5))'", 0.75),
    "a pulse": ("velocity = [1]\ndiffusivity = 0.01", "'where(t > 5 and t < 5.5, 1, 0)'", 0, None),
}


@pytest.mark.parametrize("drive", DRIVES)
def test_a_march_is_not_steady_before_its_drive_rests(tmp_path, drive):
    """Also where the largest magnitude of all walls stays the same."""
    model, left, right, mean = DRIVES[drive]
    kind = "value" if drive == "hidden" else "gradient"
    walls = f"left.concentration.value = {left}\nright.concentration.{kind} = {right}"
    result = solve(
        "numpy", tmp_path, model, "cells = [16]", "concentration = 0", 10,
        "cfl = 0.5\ntolerance = 1e-6", walls,
    )  # fmt: skip
    assert result.outcome.history["time"][-1] > 5.5
    if mean is not None:
        assert result.fields["concentration"].mean() == pytest.approx(mean, abs=1e-5)


def test_a_source_in_time_needs_a_step(tmp_path):
    """Where nothing moves, no step follows from `time.cfl`."""
    case = CASE + "[source]\nconcentration = 'sin(3*t)'"
    text = case.format(model="", grid="cells = [4]\nperiodic = ['x']", walls="", end=1,
                       initial="concentration = 0", time="cfl = 0.5")  # fmt: skip
    with pytest.raises(InputError, match=r"give time\.step instead"):
        run(parse(text, "case"), "numpy", tmp_path / "a.h5")


def test_nothing_that_moves_takes_one_step(tmp_path):
    result = solve(
        "numpy", tmp_path, "", "cells = [8]\nperiodic = ['x']", "concentration = 'x'", 2.0,
        "cfl = 0.5",
    )  # fmt: skip
    assert result.outcome.count == 1
    assert np.array_equal(result.fields["concentration"], (np.arange(8) + 0.5) / 8)


INFLOW = CASE.format(
    model="velocity = 'self'\nform = 'advective'", grid="cells = [50]", initial="velocity_x = 1",
    walls="left.velocity_x.value = '1 + 1000*t'\nright.velocity_x.gradient = 0", end=0.1,
    time="cfl = 0.9",
)  # fmt: skip


@pytest.mark.parametrize("more", [[], ["solver.check_every=2"], ["solver.check_every=100"]])
def test_a_blow_up_in_the_first_steps_is_told(tmp_path, more):
    """Of steps that were right for the first inflow."""
    overrides = ["time.step=0.018", "time.allow_unstable=true", *more]
    with pytest.raises(Diverged, match=r"diverged by step 6 \(t = 0.1\): the field changes by 5"):
        run(parse(INFLOW, "case", overrides), "numpy", tmp_path / "a.h5")


NOISE = "1e-15*sin(9*x)"
HEATED = (
    "[model]\nsteady = false\n[grid]\ncells = [16]\n[initial]\ntemperature = '%s'\n[boundary]\n"
)
DRIVEN = {
    "a warm wall": HEATED % NOISE + "left.temperature.value = 300\nright.temperature.value = 0\n"
    "[time]\nscheme = 'backward-euler'\nstep = 0.1\nend = 0.3",
    "warm air": HEATED % NOISE + "left.temperature.robin = { h = 9, ambient = 300 }\n"
    "right.temperature.gradient = 0\n[time]\nstep = 1e-3\nend = 0.01",
    "heat through a wall": HEATED % NOISE + "left.temperature.gradient = 300\n"
    "right.temperature.gradient = 0\n[time]\nstep = 1e-3\nend = 0.01",
    "a pulse": HEATED % "0" + "left.temperature.gradient = 0\nright.temperature.gradient = 0\n"
    "[source]\ntemperature = 'exp(-((t - 1)/0.1)**2)'\n[time]\nscheme = 'backward-euler'\n"
    "step = 0.005\nend = 1",
    "a lid": "[model]\nkind = 'flow'\nviscosity = 0.01\n[grid]\ncells = [8, 8]\n[initial]\n"
    f"velocity_x = '{NOISE}'\n[boundary]\nleft.kind = 'no-slip'\nright.kind = 'no-slip'\n"
    "bottom.kind = 'no-slip'\ntop = { kind = 'no-slip', velocity_x.value = 1 }\n"
    "[time]\nend = 0.1\ncfl = 0.7",
    "a mean velocity": "[model]\nkind = 'flow'\nviscosity = 0.01\n[grid]\ncells = [8, 8]\n"
    f"periodic = ['x', 'y']\n[initial]\nvelocity_x = '{NOISE}'\n[source]\n"
    "mean_velocity_x = 1\n[time]\nend = 0.1\nstep = 0.01",
    "an inflow": "[model]\nkind = 'transport'\nvelocity = [1]\n[grid]\ncells = [16]\n"
    f"[initial]\nconcentration = '{NOISE}'\n[boundary]\nleft.concentration.value = 1\n"
    "right.concentration.gradient = 0\n[time]\nend = 0.1\ncfl = 0.5",
}  # fmt: skip


@pytest.mark.parametrize("text", DRIVEN.values(), ids=DRIVEN)
def test_what_drives_a_march_from_outside_is_no_blow_up(tmp_path, text):
    """Of fields that begin with noise, or with nothing."""
    assert run(parse(text, "case"), "numpy", tmp_path / "a.h5").exit_code == 0


def test_a_blow_up_after_steps_in_which_nothing_happens_is_told(tmp_path):
    """An inflow that is too fast for the step begins after ten steps that change nothing."""
    case = parse(INFLOW, "case", [
        "model.form=flux", "initial.velocity_x=0", "time.step=0.009", "time.allow_unstable=true",
        "time.end=0.38", "boundary.left.velocity_x.value='where(t > 0.3, 5, 0)'",
        "grid.cells=[100]",
    ])  # fmt: skip
    with pytest.raises(Diverged, match=r"the field changes by .*e\+\d\d in one step"):
        run(case, "numpy", tmp_path / "a.h5")


@pytest.mark.parametrize("form", ["flux", "advective"])
def test_steps_follow_a_velocity_that_carries_itself(tmp_path, form):
    """Those of walls until a step's end, too: nothing overshoots."""
    case = parse(INFLOW, "case", [f"model.form={form}"])
    result = run(case, "numpy", tmp_path / "a.h5")
    history, u = read(result.path).history, result.fields["velocity_x"]
    assert u.min() > 0.0 and u.max() < 101.0
    assert history["time"] == pytest.approx(np.cumsum(history["dt"]), rel=1e-12)
    ends = 1.0 + 1000.0 * history["time"]
    assert np.all(history["dt"] * ends <= 0.9 * 0.02 * (1.0 + 1e-9))
    assert np.all((history["dt"] * ends)[5:-1] > 0.5 * 0.02)
    with pytest.raises(InputError, match=r"time\.cfl: a step of .* explicit Euler allows at most"):
        run(parse(INFLOW, "case", ["time.cfl=1.1"]), "numpy", tmp_path / "b.h5")


def test_steps_that_follow_go_on_after_a_stop(tmp_path):
    """Boxes are set once more in the same step; the file is the same, bit for bit."""
    box = "[[initial.box]]\nfield = 'velocity_x'\nvalue = 3\nlower = [0.2]\nupper = [0.4]\n"
    text = INFLOW + f"[checkpoint]\nevery = 10\n{box}again = [0.03, 0.0702]\n"
    whole = run(parse(text, "case"), "numpy", tmp_path / "whole.h5")
    path = tmp_path / "parts.h5"
    with pytest.raises(Interrupted):
        run(parse(text, "case"), "numpy", path, request=Impatient(5))
    result = run(parse(text, "case"), "numpy", path, start=Start(restart=True))
    assert result.fields["velocity_x"].tobytes() == whole.fields["velocity_x"].tobytes()
    for name, values in read(whole.path).history.items():
        assert np.array_equal(values, read(path).history[name])


def test_speeds_are_those_of_cells_and_walls():
    walls = "\n".join(
        f"{wall} = {{ velocity_x = {{ value = 1 }}, velocity_y = {{ value = 1 }} }}"
        for wall in ("left", "right", "bottom", "top")
    )
    text = CASE.format(
        model="velocity = 'self'", grid="cells = [20, 20]", walls=walls, end=1, time="cfl = 1",
        initial="velocity_x = 1\nvelocity_y = 1",
    )  # fmt: skip
    assert Convection(parse(text, "case"), NumpyBackend()).largest_step() == pytest.approx(0.025)


@pytest.mark.parametrize(
    "overrides, sentence",
    [
        (["model.velocity=['y']"], "model.velocity.0: the case has no y axis"),
        (["output.fields=[]"], "output.fields: must name a field"),
        (["grid.upper=[1e-320]"], "no step is stable"),
    ],
)
def test_more_refusals(overrides, sentence, tmp_path):
    with pytest.raises(InputError) as caught:
        run(parse(wave(), "case.toml", overrides), "numpy", tmp_path / "a.h5")
    assert sentence in str(caught.value)


def test_another_choice_of_fields_is_no_restart(tmp_path):
    case = load("cfdpython-06", ["output.fields=['velocity_y']", "checkpoint.every=20"])
    path = tmp_path / "a.h5"
    run(case, "numpy", path)
    assert list(read(path).fields) == ["velocity_y"]
    other = load("cfdpython-06", ["checkpoint.every=20"])
    with pytest.raises(InputError, match=r"output\.fields: was"):
        run(other, "numpy", path, start=Start(restart=True))


def test_a_box_of_initial_values_holds_points_on_its_ends():
    """Whose coordinates rounding may put beside a decimal number: 0.3999... for 0.4."""
    box = {"field": "concentration", "lower": [0.4], "upper": [0.8], "value": 1}
    case = {
        "model": {"kind": "transport", "velocity": [0]},
        "grid": {"nodes": [11], "lower": [-1], "upper": [1]},
        "boundary": {s: {"concentration": {"gradient": 0}} for s in ("left", "right")},
        "initial": {"box": [box]},
        "time": {"end": 0.1, "step": 0.1},
    }  # fmt: skip
    sim = heatsolve.Simulation(case, backend="numpy")
    assert list(sim["concentration"].values) == [0] * 7 + [1, 1, 1, 0]


@pytest.mark.parametrize("scheme", ["explicit", "rk2", "rk3"])
def test_recorded_steps_between_frames_and_checks(scheme, tmp_path, monkeypatch):
    """The same norms and fields as without records, although frames move the fields to others."""
    text = RECORDED.format(scheme=scheme)
    results = []
    for name in ("recorded", "not"):
        result = run(parse(text, "case"), "numpy", tmp_path / f"{name}.h5")
        results.append(read(result.path))
        monkeypatch.setattr(Recordings, "make", lambda self, key, work, first=None: work())
    ours, wanted = results
    assert min(wanted.history["residual"]) > 0.0 and len(wanted.history["residual"]) == 20
    for column, values in wanted.history.items():
        assert np.array_equal(ours.history[column], values), column
    for field, values in wanted.fields.items():
        assert ours.fields[field].tobytes() == values.tobytes()


RECORDED = """
[model]
kind = "transport"
velocity = [1, 0.5]
diffusivity = 0.01
[grid]
cells = [12, 10]
periodic = ["x", "y"]
[initial]
concentration = "sin(2*pi*x)*cos(2*pi*y)"
[time]
scheme = "{scheme}"
step = 0.005
end = 0.3
[solver]
check_every = 3
[output]
every = 4
"""
