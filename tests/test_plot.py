"""Figures: what they show and how they are labelled; each is rendered once."""

import math
import subprocess
import sys
import warnings

import matplotlib
import matplotlib.image
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from heatsolve.case.load import parse
from heatsolve.errors import FileFailure, InputError
from heatsolve.io.reader import read
from heatsolve.io.writer import FieldFile
from heatsolve.runner import run
from heatsolve_post import style
from heatsolve_post.plot import figure, plot
from heatsolve_post.style import colours_of
from heatsolve_post.view import limits_of, look, parse_slices

CASE = '[case]\ntitle = "Hot plate, $5 & $6"\n[solver]\ntolerance = 1e-6\n'
UNITS = {"temperature": "K", "length": "m", "time": "s"}
HISTORY = {"iteration": np.arange(200), "residual": 10.0 ** -np.linspace(0, 7, 200)}


def write(
    folder, extents, times=None, value=None, history=HISTORY, case=CASE, name="temperature", **more
):
    """A field file on 12, 13, ... points of the given extents, slowest axis first."""
    lines = {
        axis: np.linspace(0, extent, 12 + number)
        for number, (axis, extent) in enumerate(zip("zyx"[-len(extents) :], extents, strict=True))
    }
    mesh = np.meshgrid(*lines.values(), indexing="ij")
    values = sum(mesh) if value is None else np.full(mesh[0].shape, value)
    path = folder / "a.h5"
    with FieldFile(path, lines, UNITS, transient=times is not None) as file:
        for time in (None,) if times is None else times:
            file.append({name: values * (1 + (time or 0)), "pressure": values}, time)
        file.finish({"case": case, **more}, history)
    return path


@pytest.mark.few(4)
@pytest.mark.parametrize("extents", [(1.0,), (1.0, 2.0), (0.05, 2.0), (2.0, 0.1), (1.0, 1.5, 2.0)])
@pytest.mark.parametrize("times", [None, (0.0, 0.5)])
def test_png(tmp_path, extents, times):
    image = plot(write(tmp_path, extents, times))
    assert image == tmp_path / "a.png"
    height, width, _ = matplotlib.image.imread(image).shape
    assert 300 < width < 2000 and 300 < height < 1500
    assert matplotlib.image.imread(image)[..., :3].std() > 0.05


def test_2d(tmp_path):
    drawing = figure(write(tmp_path, (1.0, 2.0)))
    (plane,) = drawing.axes
    (bar,) = plane.child_axes
    assert (plane.get_xlabel(), plane.get_ylabel()) == ("x (m)", "y (m)")
    assert plane.get_title() == "Hot plate, $5 & $6"
    assert plane.get_aspect() == 1
    assert bar.get_ylabel() == "temperature (K)"
    (contours,) = plane.collections
    assert contours.get_cmap().name == "inferno"
    np.testing.assert_allclose(contours.get_clim(), (0, 3))


def test_2d_long_boxes_are_not_to_scale(tmp_path):
    drawing = figure(write(tmp_path, (0.05, 2.0)))
    assert drawing.axes[0].get_aspect() == "auto"
    (bar,) = drawing.axes[0].child_axes
    assert bar.get_xlabel() == "temperature (K)"


def test_2d_transient_shows_the_last_frame(tmp_path):
    drawing = figure(write(tmp_path, (1.0, 2.0), (0.0, 0.5)), field="pressure")
    assert drawing.axes[0].get_title() == "Hot plate, $5 & $6, t = 0.5 s"
    assert drawing.axes[0].child_axes[0].get_ylabel() == "pressure"
    assert drawing.axes[0].collections[0].get_cmap().name == "RdBu_r"


def test_3d(tmp_path):
    drawing = figure(write(tmp_path, (1.0, 1.5, 2.0)))
    *panels, bar = drawing.axes
    labels = [(panel.get_xlabel(), panel.get_ylabel()) for panel in panels]
    assert labels == [("x (m)", "y (m)"), ("x (m)", "z (m)"), ("y (m)", "z (m)")]
    assert [panel.get_title() for panel in panels] == ["z = 0.5455 m", "y = 0.75 m", "x = 1.077 m"]
    assert bar.get_ylabel() == "temperature (K)"
    assert len({panel.collections[0].get_clim() for panel in panels}) == 1
    assert drawing.get_suptitle() == "Hot plate, $5 & $6"


def test_1d(tmp_path):
    (ax,) = figure(write(tmp_path, (1.0,))).axes
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x (m)", "temperature (K)")
    assert len(ax.lines) == 1


def test_1d_transient_shows_several_times(tmp_path):
    drawing = figure(write(tmp_path, (1.0,), np.linspace(0, 1, 21)))
    assert len(drawing.axes[0].lines) == 6
    texts = [text.get_text() for text in drawing.legends[0].get_texts()]
    assert (texts[0], texts[-1]) == ("t = 0 s", "t = 1 s")


@pytest.mark.few(5)
@pytest.mark.parametrize("value", [0.0, 300.0, -1e-30, np.nan, np.inf])
@pytest.mark.parametrize("extents", [(1.0,), (1.0, 1.0), (1.0, 1.0, 1.0)])
@pytest.mark.filterwarnings("error")
def test_constant_and_undefined_fields(tmp_path, extents, value):
    assert plot(write(tmp_path, extents, value=value)).stat().st_size > 1000


def test_history(tmp_path):
    path = write(tmp_path, (1.0, 1.0), threshold=1e-6)
    assert plot(path, history=True) == tmp_path / "a_history.png"
    (ax,) = figure(path, history=True).axes
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_yscale()) == ("iteration", "residual", "log")
    residual, tolerance = ax.lines
    np.testing.assert_array_equal(residual.get_ydata(), HISTORY["residual"])
    assert set(tolerance.get_ydata()) == {1e-6}


CRITERIA = {
    "residuals": ("", {"scale": 100.0, "relative_to": "the right side"},
                  "l2 of the residual\nrelative to the right side", 100.0),
    "updates": ("[solver]\nmethod = 'jacobi'\nmonitor = 'update'\nnorm = 'max'", {},
                "max of the update", 1.0),
    "residuals of an earlier version": ("", {}, "l2 of the residual", 1.0),
}  # fmt: skip


@pytest.mark.parametrize(("solver", "given", "label", "scale"), CRITERIA.values(), ids=CRITERIA)
def test_history_says_what_it_is_of(tmp_path, solver, given, label, scale):
    """And what it is relative to: then the tolerance is the number in the case."""
    case = f"[grid]\ncells = [2, 2]\nperiodic = ['x', 'y']\n{solver}"
    path = write(tmp_path, (1.0, 1.0), threshold=1e-6, case=case, **given)
    (ax,) = figure(path, history=True).axes
    assert ax.get_ylabel() == label
    norms, tolerance = ax.lines
    np.testing.assert_array_equal(norms.get_ydata(), HISTORY["residual"] / scale)
    assert set(tolerance.get_ydata()) == {1e-6 / scale}


def test_history_of_steps_with_an_exact_zero_and_without_tolerance(tmp_path):
    history = {"step": np.arange(3), "residual": np.array([1.0, 0.1, 0.0])}
    path = write(tmp_path, (1.0,), history=history, case="[solver]\ntolerance = 'x'")
    (ax,) = figure(path, history=True).axes
    assert ax.get_xlabel() == "step"
    assert len(ax.lines) == 1
    plot(path, history=True)


def test_long_titles_are_broken(tmp_path):
    case = f'[case]\ntitle = "{"word " * 30}"'
    title = figure(write(tmp_path, (1.0, 1.0), case=case)).axes[0].get_title()
    assert max(map(len, title.splitlines())) < 70 and "\n" in title


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("title", "limits"), [("\u70ed\u4f20\u5bfc", None), ("plate", (0.0, 1e-100))]
)
@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_a_picture_is_drawn_without_warnings(title, limits, kind, tmp_path):
    """Also of letters that matplotlib's font lacks, and of values far beyond the limits."""
    path = write(tmp_path, (1.0, 1.0), case=f'[case]\ntitle = "{title}"\n')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plot(path, tmp_path / f"a.{kind}", limits=limits).stat().st_size > 5000
        assert figure(path, limits=limits)._repr_png_()


def test_a_font_for_what_matplotlib_has_no_letters_for(tmp_path, monkeypatch):
    """One that the machine has, behind the usual one."""
    monkeypatch.setattr(style, "EAST_ASIAN", ("Nowhere Sans", "STIXGeneral", "DejaVu Serif"))
    style.families.cache_clear()
    try:
        drawing = figure(write(tmp_path, (1.0, 1.0)))
    finally:
        style.families.cache_clear()
    title = drawing.axes[0].title
    assert title.get_fontproperties().get_family() == ["sans-serif", "STIXGeneral"]


def test_formats_and_failures(tmp_path):
    path = write(tmp_path, (1.0, 1.0), name="concentration", history={})
    assert plot(path, tmp_path / "a.pdf", field="pressure").read_bytes().startswith(b"%PDF")
    assert figure(path).axes[0].child_axes[0].get_ylabel() == "concentration"
    with pytest.raises(InputError, match="txt is not an image format"):
        plot(path, tmp_path / "a.txt")
    with pytest.raises(InputError, match="no field 'speed', only concentration, pressure"):
        plot(path, field="speed")
    with pytest.raises(InputError, match="no residual history"):
        plot(path, history=True)
    with pytest.raises(InputError, match="no file"):
        plot(tmp_path / "b.h5")
    with pytest.raises(FileFailure, match="cannot write"):
        plot(path, path / "a.png")


def test_pyplot_is_not_loaded():
    """It would choose an interactive backend, and fail on a node of a cluster."""
    program = "import sys, heatsolve_post.plot; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def flow(folder, extents=(1.0, 2.0), name="flow.h5", shift=0.0, times=None):
    """A field file with a vortex: velocity and pressure, at several times."""
    lines = {
        axis: np.linspace(0, extent, 21 + 4 * number)
        for number, (axis, extent) in enumerate(zip("zyx"[-len(extents) :], extents, strict=True))
    }
    mesh = dict(zip(lines, np.meshgrid(*lines.values(), indexing="ij"), strict=True))
    u = np.sin(np.pi * mesh["x"] / extents[-1]) * np.cos(np.pi * mesh["y"])
    v = -np.cos(np.pi * mesh["x"] / extents[-1]) * np.sin(np.pi * mesh["y"])
    path = folder / name
    units = {"velocity_x": "m/s", "velocity_y": "m/s", "length": "m", "time": "s"}
    with FieldFile(path, lines, units, transient=times is not None) as file:
        for time in (None,) if times is None else times:
            p = u * u + v * v + shift + (time or 0)
            fields = {"velocity_x": u, "velocity_y": v, "velocity_z": 0 * u, "pressure": p}
            file.append({n: fields[n] for n in fields if n[-1] in lines or n == "pressure"}, time)
        file.finish({"case": CASE}, HISTORY)
    return path


def test_a_slice_of_space_is_a_plane(tmp_path):
    path = flow(tmp_path, (1.0, 1.0, 2.0))
    (plane,) = figure(path, "velocity_x", slices={"z": 0.52}).axes
    assert plane.get_title() == "Hot plate, $5 & $6, z = 0.5 m"
    assert (plane.get_xlabel(), plane.get_ylabel()) == ("x (m)", "y (m)")
    (plane,) = figure(path, "velocity_x", slices={"x": 1.0}).axes
    assert (plane.get_xlabel(), plane.get_ylabel()) == ("y (m)", "z (m)")
    (line,) = figure(path, "velocity_x", slices={"x": 1.0, "z": 0.0}).axes
    np.testing.assert_allclose(line.lines[0].get_ydata(), np.cos(np.pi * np.linspace(0, 1, 25)))
    assert line.get_xlabel() == "y (m)"


@pytest.mark.parametrize("kind", ["nodes", "cells"])
def test_a_slice_at_the_end_of_a_periodic_axis(kind, tmp_path):
    """It is the slice at its start."""
    text = f"""
[grid]
{kind} = [8, 9]
periodic = ["x"]
[source]
temperature = "cos(2*pi*x) + y"
[boundary]
bottom.temperature.value = 0
top.temperature.value = 0
"""
    path = run(parse(text, "case"), "numpy", tmp_path / "a.h5").path
    field, last = read(path).fields["temperature"], 0 if kind == "nodes" else -1
    for x, column in ((0.0, 0), (0.97, last), (1.0, last)):
        view = look(path, slices={"x": x})
        assert view.values[-1].tobytes() == field[:, column].tobytes()
    with pytest.raises(InputError, match=r"x = 1\.2 is outside"):
        look(path, slices={"x": 1.2})


def test_a_slice_of_a_plane_is_a_line(tmp_path):
    (ax,) = figure(flow(tmp_path), "velocity_x", slices={"y": 0.0}).axes
    x = np.linspace(0, 2, 25)
    np.testing.assert_allclose(ax.lines[0].get_xdata(), x)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), np.sin(np.pi * x / 2))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x (m)", "velocity x (m/s)")


def test_a_time_is_that_of_the_nearest_frame(tmp_path):
    path = flow(tmp_path, times=(0.0, 0.5, 2.0))
    (plane,) = figure(path, "pressure", at_time=0.6).axes
    assert plane.get_title().endswith("t = 0.5 s")
    np.testing.assert_allclose(plane.collections[0].levels[[0, -1]], (0.5, 1.5), atol=0.01)
    (ax,) = figure(path, "pressure", slices={"y": 0.5}, at_time=2.0).axes
    assert len(ax.lines) == 1 and ax.get_title().endswith("y = 0.5 m, t = 2 s")


def test_vectors(tmp_path):
    (plane,) = figure(flow(tmp_path), "pressure", vectors=True).axes
    (arrows,) = [each for each in plane.collections if hasattr(each, "U")]
    assert 100 < arrows.U.size < 600
    assert plane.get_title().endswith("longest arrow = 1 m/s")
    x, y = arrows.XY.T
    np.testing.assert_allclose(arrows.U, np.sin(np.pi * x / 2) * np.cos(np.pi * y), atol=1e-12)
    np.testing.assert_allclose(arrows.V, -np.cos(np.pi * x / 2) * np.sin(np.pi * y), atol=1e-12)


def test_streamlines(tmp_path):
    (plane,) = figure(flow(tmp_path), "pressure", streamlines=True).axes
    lines = plane.collections[-1].get_segments()
    points = np.concatenate(lines)
    assert len(lines) > 20
    steps = np.concatenate([np.diff(line, axis=0) for line in lines])
    x, y = np.concatenate([0.5 * (line[1:] + line[:-1]) for line in lines]).T
    u, v = np.sin(np.pi * x / 2) * np.cos(np.pi * y), -np.cos(np.pi * x / 2) * np.sin(np.pi * y)
    across = np.abs(steps[:, 0] * v - steps[:, 1] * u)
    along = np.hypot(*steps.T) * np.hypot(u, v)
    assert np.median(across[along > 1e-6] / along[along > 1e-6]) < 0.02
    assert (points >= 0).all() and points[:, 0].max() <= 2


def test_logarithmic_colours(tmp_path):
    drawing = figure(flow(tmp_path, shift=1e-3), "pressure", log=True)
    (contours,) = drawing.axes[0].collections
    assert type(contours.norm).__name__ == "LogNorm"
    np.testing.assert_allclose(contours.norm.vmin, 1e-3, rtol=0.01)
    (contours,) = figure(flow(tmp_path), "velocity_x", log=True).axes[0].collections
    assert type(contours.norm).__name__ == "SymLogNorm"
    np.testing.assert_allclose(contours.get_clim(), (-1, 1), atol=1e-6)
    (ax,) = figure(flow(tmp_path), "pressure", slices={"y": 0.25}, log=True).axes
    assert ax.get_yscale() == "log"
    (ax,) = figure(flow(tmp_path), "velocity_x", slices={"y": 0.75}, log=True).axes
    assert ax.get_yscale() == "symlog"
    with pytest.raises(InputError, match="0 everywhere has no logarithm"):
        figure(flow(tmp_path, (1.0, 1.0, 1.0)), "velocity_z", slices={"z": 0.5}, log=True)


@pytest.mark.parametrize("shift", [1e-3, 0.9])
def test_a_logarithmic_bar_has_numbers(shift, tmp_path):
    """Also where no power of ten lies within the scale, below which nothing is then drawn."""
    drawing = figure(flow(tmp_path, shift=shift), "pressure", log=True)
    drawing.canvas.draw()
    plane, bar = drawing.axes[0], drawing.axes[0].child_axes[0]
    (contours,) = plane.collections
    low, high = contours.norm.vmin, contours.norm.vmax
    shown = {*bar.get_xticks(), *bar.get_yticks()}
    assert sum(low <= tick <= high for tick in shown) >= 2
    assert contours.extend == "neither"


def test_a_comparison_of_planes(tmp_path):
    drawing = figure(flow(tmp_path), "pressure", compare=flow(tmp_path, name="b.h5", shift=0.25))
    one, two, difference = drawing.axes[:3]
    assert [ax.get_title() for ax in (one, two, difference)] == ["flow.h5", "b.h5", "difference"]
    assert one.collections[0].get_clim() == two.collections[0].get_clim()
    (contours,) = difference.collections
    np.testing.assert_allclose(contours.get_clim(), (-0.25, 0.25))
    np.testing.assert_allclose(contours.get_array().min(), -0.25, atol=0.02)


def test_a_comparison_of_lines(tmp_path):
    other = flow(tmp_path, name="b.h5", shift=0.25)
    above, below = figure(flow(tmp_path), "pressure", slices={"y": 0.5}, compare=other).axes
    assert [text.get_text() for text in above.get_legend().get_texts()] == ["flow.h5", "b.h5"]
    np.testing.assert_allclose(below.lines[0].get_ydata(), -0.25)


def test_a_plane_cannot_be_cut_elsewhere(tmp_path):
    lines = {"z": np.array([0.45]), "y": np.linspace(0, 1, 5), "x": np.linspace(0, 1, 6)}
    with FieldFile(tmp_path / "plane.h5", lines, {}, transient=False) as file:
        file.append({"pressure": np.zeros((1, 5, 6))}, None)
        file.finish({"case": CASE}, HISTORY)
    assert figure(tmp_path / "plane.h5", slices={"z": 0.45})
    with pytest.raises(InputError, match=r"z = 0\.5 is not in .*, which has the plane z = 0\.45"):
        figure(tmp_path / "plane.h5", slices={"z": 0.5})


def test_what_cannot_be_drawn(tmp_path):
    plane, space = flow(tmp_path), flow(tmp_path, (1.0, 1.0, 1.0), "space.h5")
    march = flow(tmp_path, name="march.h5", times=(0.0, 1.0))
    still = write(tmp_path, (1.0, 1.0))
    for path, options, message in [
        (plane, {"slices": {"z": 1.0}}, "has no axis z, only y, x"),
        (plane, {"slices": {"x": 2.1}}, r"x = 2\.1 is outside 0 to 2"),
        (plane, {"slices": {"x": 1.0, "y": 1.0}}, "--slice leaves no axis to draw"),
        (plane, {"at_time": 1.0}, "is steady, and has no time"),
        (march, {"at_time": 1.5}, r"t = 1\.5 is outside the frames of .*, 0 to 1"),
        (space, {"vectors": True}, "vectors are drawn over a plane: cut it out with --slice"),
        (space, {"compare": space}, "cut them out with --slice"),
        (still, {"streamlines": True}, "has no velocity_x, and so no arrows"),
        (
            plane,
            {"field": "pressure", "compare": flow(tmp_path, (1.0, 1.0), "c.h5")},
            "other points",
        ),
    ]:
        with pytest.raises(InputError, match=message):
            figure(path, **options)
    later = flow(tmp_path, name="later.h5", times=(0.0, 2.0))
    with pytest.raises(InputError, match=r"are drawn at t = 1.* and t = 2.*--at-time"):
        figure(march, compare=later)
    assert figure(march, compare=later, at_time=0.0)
    soon = flow(tmp_path, name="soon.h5", times=(0.0, 1.00001))
    with pytest.raises(InputError, match=r"are drawn at t = 1 and t = 1\.00001: "):
        figure(march, compare=soon)
    small = [flow(tmp_path, (size, size), f"{size}.h5") for size in (1e-9, 2e-9)]
    with pytest.raises(InputError, match="other points"):
        figure(small[0], "pressure", compare=small[1])


CHANNEL = """
[case]
title = "A disc and a step"
[model]
kind = "flow"
viscosity = 1
[grid]
cells = [22, 12]
lower = [-1, 0]
upper = [1.2, 1.2]
[boundary]
left = { kind = "no-slip" }
right = { kind = "no-slip" }
bottom = { kind = "no-slip" }
top = { kind = "no-slip" }
[[obstacle]]
shape = "circle"
center = [0, 0.6]
radius = 0.25
[[obstacle]]
shape = "x > 0.9 and y < 0.3"
[time]
end = 1
cfl = 0.5
"""


def channel(folder, times=(0.0, 1.0), case=CHANNEL, **fields):
    """A file on the cells of that case: nothing moves, but for `fields` of x, y and time."""
    x, y = -0.95 + 0.1 * np.arange(22), 0.05 + 0.1 * np.arange(12)
    path = folder / "channel.h5"
    with FieldFile(path, {"y": y, "x": x}, {}, transient=True) as file:
        for time in times:
            zeros = np.zeros((12, 22))
            still = dict.fromkeys(("pressure", "velocity_x", "velocity_y"), zeros)
            moved = {k: f(x[None], y[:, None], time) + zeros for k, f in fields.items()}
            file.append(still | moved, time)
        history = {
            "step": np.arange(3),
            "time": np.arange(3) / 2,
            "force_y": np.array([1.0, -2, 3]),
            "line_0_pressure": np.zeros((3, 4)),
        }
        file.finish({"case": case}, history)
    return path


def colour_at(drawing, ax, *place):
    """Of a figure as it is drawn, where a point of some axes is."""
    canvas = FigureCanvasAgg(drawing)
    canvas.draw()
    image = np.asarray(canvas.buffer_rgba())
    across, up = ax.transData.transform(place)
    return tuple(image[image.shape[0] - 1 - int(up), int(across), :3] / 255)


def test_obstacles_are_filled_and_outlined(tmp_path):
    """Also where the field is as within them; nothing else has their grey."""
    drawing = figure(channel(tmp_path), "velocity_x")
    plane = drawing.axes[0]
    grey = pytest.approx((0.7, 0.7, 0.7), abs=0.01)
    for inside in ((0.0, 0.6), (0.17, 0.76), (0.95, 0.02), (1.19, 0.28)):
        assert colour_at(drawing, plane, *inside) == grey
    for outside in ((0.2, 0.8), (0.85, 0.02), (1.19, 0.33), (-0.99, 1.19)):
        assert colour_at(drawing, plane, *outside) == pytest.approx((0.97,) * 3, abs=0.03)
    edge = colour_at(drawing, plane, 0.25 * np.cos(0.7), 0.6 + 0.25 * np.sin(0.7))
    assert max(edge) < 0.5
    panels = figure(channel(tmp_path), "pressure", vectors=True, compare=channel(tmp_path)).axes[:3]
    assert all(len(ax.collections) >= 3 for ax in panels)


def test_what_a_field_holds_inside_obstacles_is_not_drawn(tmp_path):
    """A pressure is nothing there, and its contours do not bend towards it; a velocity is 0."""

    def field(x, y, t):
        inside = (x * x + (y - 0.6) ** 2 < 0.0625) | ((x > 0.9) & (y < 0.3))
        return np.where(inside, -99.0, 2.0 + 0.1 * x)

    view = look(channel(tmp_path, pressure=field, velocity_x=field), "pressure")
    (values,) = view.values
    assert np.nanmin(values) > 1.8 and np.nanmax(values) < 2.2
    assert np.isnan(values).sum() == 4 + 4  # more than a cell from the fluid
    assert view.read("velocity_x")[0].min() == -99.0
    path = channel(tmp_path, mean_velocity_x=field, speed=field, mean_pressure=field)
    for name, drawn in (("mean_velocity_x", True), ("speed", True), ("mean_pressure", False)):
        assert (np.nanmin(look(path, name).values[-1]) == -99.0) == drawn


def test_obstacles_whose_files_are_not_here_are_not_drawn(tmp_path):
    shape = 'shape = { image = "body.png", black = 1, white = 0 }'
    case = CHANNEL.replace('shape = "x > 0.9 and y < 0.3"', shape)
    assert figure(channel(tmp_path, case=case), "pressure")


def test_a_line_shows_the_obstacles_that_it_crosses(tmp_path):
    (ax,) = figure(channel(tmp_path), "velocity_x", slices={"y": 0.55}, at_time=1.0).axes
    (span,) = ax.patches
    ends = span.get_x(), span.get_x() + span.get_width()
    np.testing.assert_allclose(ends, (-np.sqrt(0.06), np.sqrt(0.06)), atol=0.01)
    assert ax.get_xlim() == (-1, 1.2)


def test_axes_reach_the_walls_and_have_numbers_there(tmp_path):
    path = channel(tmp_path, velocity_x=lambda x, y, t: x + 2 * y)
    drawing = figure(path, "velocity_x")
    plane = drawing.axes[0]
    assert (plane.get_xlim(), plane.get_ylim()) == ((-1, 1.2), (0, 1.2))
    for axis, ends in ((plane.xaxis, (-1, 1.2)), (plane.yaxis, (0, 1.2))):
        ticks = axis.get_majorticklocs()
        assert (ticks[0], ticks[-1]) == ends and 3 <= len(ticks) <= 7
    assert [text.get_text() for text in plane.get_xticklabels()][-1] == "1.2"
    # Nothing is left blank beside them.
    assert colour_at(drawing, plane, -0.99, 0.6) != pytest.approx((0.8, 0.8, 0.8), abs=0.01)


def test_a_plane_that_is_periodic_ends_as_it_begins(tmp_path):
    case = CHANNEL.replace("lower", "periodic = ['x']\nlower")
    case = case.replace('left = { kind = "no-slip" }\nright = { kind = "no-slip" }\n', "")
    case = case.replace('shape = "x > 0.9 and y < 0.3"', 'shape = "x > 9"')
    view = look(
        channel(tmp_path, case=case, pressure=lambda x, y, t: np.cos(x * np.pi / 1.1 + 0.3))
    )
    (_, x), values = view.up_to_the_walls(view.values[-1])
    assert (x[0], x[-1]) == (-1, 1.2)
    np.testing.assert_array_equal(values[:, 0], values[:, -1])
    np.testing.assert_allclose(values[1], np.cos(x * np.pi / 1.1 + 0.3), atol=0.02)


@pytest.mark.parametrize(
    ("field", "low", "high", "diverging"),
    [
        ("velocity_x", -0.2, 1.0, True),
        ("velocity_y", 0.0, 2.0, True),
        ("pressure", -3.0, -1.0, True),
        ("pressure", 1e5, 1e5 + 2, False),  # about 0 all of it would have one colour
        ("temperature", -1.0, 1.0, False),
        ("difference", -1.0, 0.5, True),
    ],
)
def test_signed_fields_are_white_at_0(field, low, high, diverging):
    colours = colours_of(field, [np.array([low, high])])
    assert (colours.levels[0], colours.levels[-1]) == pytest.approx((low, high))
    middle = np.array(colours.map(colours.norm(0.0)))
    assert (min(middle[:3]) > 0.96) == diverging
    if diverging:
        blue, red = (np.array(colours.map(colours.norm(v)))[:3] for v in (-0.1, 0.1))
        assert blue[2] > blue[0] and red[0] > red[2]
        assert colours.norm.vmax == -colours.norm.vmin == max(abs(low), abs(high))


def test_limits(tmp_path):
    path = channel(tmp_path, pressure=lambda x, y, t: x)
    drawing = figure(path, "pressure", limits=(-0.5, 0.25))
    (contours, *_), (bar,) = drawing.axes[0].collections, drawing.axes[0].child_axes
    assert contours.levels[[0, -1]] == pytest.approx((-0.5, 0.25))
    assert contours.extend == "both" and bar.get_ylim() == (-0.5, 0.25)
    # What lies beyond has the colour of the end that is shown, not of the map's.
    ends = [colour_at(drawing, drawing.axes[0], x, 1.0) for x in (0.27, 1.1)]
    np.testing.assert_allclose(*ends, atol=0.03)
    (ax,) = figure(path, "pressure", limits=(-2, 3), slices={"y": 1.1}).axes
    assert ax.get_ylim() == (-2, 3)
    wrongs = ((1, 1), (0, math.inf), 5, (0, 1, 2), ("a", None))
    for wrong, log in (*((each, False) for each in wrongs), ((0, 1), True)):
        with pytest.raises(InputError, match="--limits"):
            figure(write(tmp_path, (1.0, 1.0)), limits=wrong, log=log)


@pytest.mark.parametrize(
    "text", ["1", "1,1", "2,1", "0,inf", "a,b", "0,1,2", "", "1e300,1e308", "0,1e-320"]
)
def test_texts_that_are_no_limits(text):
    assert limits_of("-1, 2e3") == (-1, 2000)
    with pytest.raises(InputError, match="must be two numbers, the lower one first"):
        limits_of(text)


def test_a_pdf_has_truetype_fonts_and_no_seams(tmp_path):
    """Contours side by side let the paper shine through; as one image they do not."""
    with matplotlib.rc_context({"pdf.compression": 0}):
        page = plot(flow(tmp_path), tmp_path / "a.pdf").read_bytes()
    assert b"/Type3" not in page and b"/FontFile2" in page
    assert b"/Subtype /Image" in page
    assert page.count(b"\nf\n") + page.count(b"\nB\n") < 120  # with contours: many hundreds


def test_a_column_of_the_history(tmp_path):
    path = channel(tmp_path)
    (ax,) = figure(path, "force_y", history=True).axes
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("time", "force y")
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [[0, 1], [0.5, -2], [1, 3]])
    assert plot(path, field="force_y", history=True).name == "channel_history_force_y.png"
    with pytest.raises(InputError, match="no history of 'lift', only of force_y"):
        figure(path, "lift", history=True)


@pytest.mark.parametrize("text", ["z", "z=", "w=1", "z=one", "z=nan", "=1", "z=1=2"])
def test_texts_that_are_no_slice(text):
    with pytest.raises(InputError, match="must be one axis and a position"):
        parse_slices([text])


def test_slices_of_texts():
    assert parse_slices(["z=0.5", " x = -1e-3"]) == {"z": 0.5, "x": -1e-3}
    with pytest.raises(InputError, match="'z=1': a picture has one position of z"):
        parse_slices(["z=0.5", "z=1"])


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--slice", "y=0.5", "--log", "--field", "pressure"], 0, "wrote flow.png"),
        (["--vectors", "--field=pressure", "--output=a.svg"], 0, "wrote a.svg"),
        (["--vectors", "--streamlines"], 2, "exclude each other"),
        (["--history", "--log"], 2, "takes no other option"),
        (["--limits", "-1,0.5", "--field=pressure"], 0, "wrote flow.png"),
        (["--limits=1"], 2, "--limits '1' must be two numbers"),
        (["--compare", "none.h5"], 2, "there is no file none.h5"),
    ],
)
def test_the_command(options, code, said, tmp_path):
    flow(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "heatsolve", "plot", "flow.h5", *options],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
