"""Figures: what they show and how they are labelled; each is rendered once."""

import subprocess
import sys

import matplotlib.image
import numpy as np
import pytest

from heatsolve.errors import FileFailure, InputError
from heatsolve.output import FieldFile
from heatsolve.postprocess import pieces
from heatsolve.postprocess.plot import figure, plot

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
    assert drawing.axes[0].collections[0].get_cmap().name == "viridis"


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


def test_history_of_steps_with_an_exact_zero_and_without_tolerance(tmp_path):
    history = {"step": np.arange(3), "residual": np.array([1.0, 0.1, 0.0])}
    path = write(tmp_path, (1.0,), history=history, case="[solver]\ntolerance = 'x'")
    (ax,) = figure(path, history=True).axes
    assert ax.get_xlabel() == "step"
    assert len(ax.lines) == 1
    plot(path, history=True)


def test_thinning_keeps_both_ends():
    kept = pieces.thinned(16_384)
    assert len(kept) == pieces.DRAWN_POINTS
    assert (kept[0], kept[-1]) == (0, 16_383)
    np.testing.assert_array_equal(pieces.thinned(5), np.arange(5))


def test_long_titles_are_broken(tmp_path):
    case = f'[case]\ntitle = "{"word " * 30}"'
    title = figure(write(tmp_path, (1.0, 1.0), case=case)).axes[0].get_title()
    assert max(map(len, title.splitlines())) < 70 and "\n" in title


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
    program = "import sys, heatsolve.postprocess.plot; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
