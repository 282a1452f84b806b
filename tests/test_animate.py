"""`heatsolve animate`: every frame of a file on one scale, as a GIF or an MP4."""

import importlib.util
import subprocess

import h5py
import numpy as np
import pytest
from PIL import Image
from test_plot import channel, colour_at
from typer.testing import CliRunner

from heatsolve.case.load import load
from heatsolve.cli import app
from heatsolve.errors import FileFailure, InputError
from heatsolve.io.reader import read
from heatsolve.runner import run
from heatsolve_post import animate as room
from heatsolve_post.animate import animate
from heatsolve_post.style import colours_of

CASES = {
    "line": ("cfdpython-04", "output.every=20"),
    "plane": ("cavity-re100", "constants.n=8", "time.end=1", "output.every=1"),
    "long plane": ("channel", "constants.n=8", "grid.cells=[32, 8]", "grid.upper=[4, 1]",
                   "output.every=10", "time.tolerance=1e-2", "time.end=200"),
    "space": ("cooling-cube", "grid.nodes=[9, 8, 7]", "output.every=4"),
}  # fmt: skip
ENCODER = pytest.mark.skipif(
    importlib.util.find_spec("imageio_ffmpeg") is None, reason="no encoder: heatsolve[video]"
)


@pytest.fixture(scope="module", params=CASES)
def film(request, tmp_path_factory):
    name, *overrides = CASES[request.param]
    path = tmp_path_factory.mktemp("film") / "a.h5"
    run(load(name, overrides), "numpy", path)
    return path


def pictures(path):
    with Image.open(path) as gif:
        found = []
        for number in range(gif.n_frames):
            gif.seek(number)
            found.append((np.asarray(gif.convert("RGB")), gif.info["duration"]))
        return found


@pytest.mark.few(1)
def test_frames_and_pace(film):
    output = animate(film, film.with_suffix(".gif"), rate=20)
    with h5py.File(film) as file:
        count = len(file["time"])
    found = pictures(output)
    assert len(found) == count > 3
    assert {duration for _, duration in found} == {50}
    assert len({picture.shape for picture, _ in found}) == 1
    first, last = found[0][0], found[-1][0]
    assert np.mean(np.any(first != last, axis=2)) > 0.002
    assert np.all(last[-2:] == 255) and np.all(last[:, -2:] == 255)  # nothing is cut off


def test_one_scale_for_all_frames(tmp_path):
    """A point that keeps its value keeps its colour, though others get larger."""
    path, output = tmp_path / "a.h5", tmp_path / "a.gif"
    run(load("cavity-re100", ["constants.n=8", "time.end=1", "output.every=1"]), "numpy", path)
    with h5py.File(path, "r+") as file:
        field = file["velocity_x"]
        for number in range(len(field)):
            field[number] = 0.5
            field[number, 0, 0] = number
        field[2, 7, 7] = np.nan
        field[3, 7, 7] = np.inf
    animate(path, output, "velocity_x")
    found = [picture for picture, _ in pictures(output)]
    height, width, _ = found[0].shape
    middles = {tuple(picture[int(0.45 * height), int(0.5 * width)]) for picture in found}
    assert len(middles) == 1


@pytest.mark.thorough
def test_colours_are_those_of_the_settled_part(tmp_path):
    """A start that is set off suddenly is brief; what decays or grows keeps all of its range."""
    path = tmp_path / "a.h5"
    run(
        load("cavity-re100", ["constants.n=8", "time.end=0.5", "time.cfl=0.2", "output.every=1"]),
        "numpy",
        path,
    )
    with h5py.File(path) as file:
        count = len(file["time"])
    share = np.arange(count) / (count - 1)
    assert count >= 10
    sudden = np.where(np.arange(count) < 2, 100.0, 1.0)
    for heights, highest in (
        (sudden, 1.0), (np.exp(-5 * share), 1.0), (1 + share, 2.0), (np.ones(count), 1.0),
    ):  # fmt: skip
        with h5py.File(path, "r+") as file:
            file["pressure"][:] = np.linspace(-1, 1, 64).reshape(8, 8) * heights[:, None, None]
        _, (low, high) = room._ranges(room._view(path, "pressure", None))
        assert (low, high) == pytest.approx((-highest, highest))
    film = [picture for picture, _ in pictures(animate(path, tmp_path / "a.gif", "pressure"))]
    limited = pictures(animate(path, tmp_path / "b.gif", "pressure", limits=(-9.0, 9.0)))
    coloured = [(np.ptp(shown, axis=2) > 100).mean() for shown in (film[-1], limited[-1][0])]
    assert coloured[0] > 0.1 > 2 * coloured[1]


def test_a_film_shows_obstacles_and_walls(tmp_path):
    view = room._view(channel(tmp_path), "velocity_x", None)
    drawing, show = room._plane(view, colours_of("velocity_x", view.values))
    show(1, view.values[1])
    grey = pytest.approx((0.7, 0.7, 0.7), abs=0.01)
    assert colour_at(drawing, drawing.axes[0], 0.0, 0.6) == grey
    assert drawing.axes[0].get_xlim() == (-1.0, 1.2)


@pytest.mark.few(1)
def test_of_many_frames_some_are_shown(film, monkeypatch):
    monkeypatch.setattr(room, "MOST_FRAMES", 3)
    assert len(pictures(animate(film, film.with_name("few.gif")))) == 3


@ENCODER
def test_mp4(film):
    import imageio_ffmpeg

    output = animate(film)
    assert output == film.with_suffix(".mp4")
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(output), "-f", "null", "-"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "h264" in said and "yuv420p" in said and "15 fps" in said


@pytest.mark.few(1)
def test_without_an_encoder_a_gif(film, monkeypatch):
    monkeypatch.setattr(room, "_encoder", lambda: "")
    assert animate(film) == film.with_suffix(".gif")
    with pytest.raises(InputError, match="needs an encoder: install heatsolve"):
        animate(film, film.with_suffix(".mp4"))


@pytest.mark.few(1)
def test_a_film_of_a_field_has_its_name(film, monkeypatch):
    monkeypatch.setattr(room, "_encoder", lambda: "")
    field = next(iter(read(film).fields))
    assert animate(film, field=field) == film.with_name(f"{film.stem}_{field}.gif")


@pytest.mark.few(1)
def test_mistakes(tmp_path, film):
    steady = tmp_path / "steady.h5"
    run(load("hot-plate", ["grid.nodes=[9, 7]"]), "numpy", steady)
    for given, sentence in (
        ((steady,), "has one frame"), ((film, tmp_path / "a.avi"), "one of mp4, gif"),
        ((film, None, "heat"), "no field 'heat'"), ((film, None, None, 0), "1 to 100 frames"),
        ((tmp_path / "none.h5",), "there is no file"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=sentence):
            animate(*given)
    with pytest.raises(FileFailure, match="cannot write"):
        animate(film, tmp_path / "none" / "a.gif")
    done = CliRunner().invoke(app, ["animate", str(film), "--output", str(tmp_path / "a.gif")])
    assert done.exit_code == 0 and done.stdout == f"wrote {tmp_path / 'a.gif'}\n"
