"""The page about a run: what it says, that it needs nothing else, and how a browser shows it."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import h5py
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import heatsolve
from heatsolve.case.load import parse
from heatsolve.case.sections import Profile
from heatsolve.cli import app
from heatsolve.errors import CaseError, FileFailure, InputError
from heatsolve.io.reader import read
from heatsolve.runner import run
from heatsolve.tools import measure
from heatsolve_post.curves import (
    holds_profile,
    profile_figure,
    profile_of,
    roofline_figure,
    watched,
    watched_figure,
)
from heatsolve_post.page import report

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium: its package is called chromium")
CASES = {
    "line": ("cfdpython-04", {}),
    "plane": ("hot-plate", {"grid.nodes": [17, 17]}),
    "flow": ("cavity-re100", {"constants.n": 16, "time.end": 2.0}),
    "space": ("sine-source-3d", {"grid.nodes": [9, 9, 9]}),
    "not converged": (
        "hot-plate",
        {"grid.nodes": [9, 9], "solver.method": "jacobi", "solver.max_iterations": 5},
    ),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The file of each case."""
    folder = tmp_path_factory.mktemp("results")
    for name, (case, changes) in CASES.items():
        heatsolve.run(case, backend="numpy", overrides=changes, output=folder / f"{name}.h5")
    return folder


class Reader(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def read_page(path, **options):
    return Reader(report(path, path.with_suffix(".html"), **options).read_text())


@pytest.mark.few(2)
@pytest.mark.parametrize("name", CASES)
def test_a_page_needs_nothing_else(results, name):
    found = read_page(results / f"{name}.h5", bandwidth=1e10)
    images = [given for tag, given in found.tags if tag == "img"]
    assert all(given["src"].startswith("data:image/png;base64,") for given in images)
    assert not [given for _, given in found.tags if "href" in given]
    assert not {"script", "link", "iframe"} & {tag for tag, _ in found.tags}
    drawn, solution = {given["alt"] for given in images}, read(results / f"{name}.h5")
    assert drawn >= {*solution.fields, solution.norm, "roofline"}
    case, _ = CASES[name]
    assert heatsolve.load(case).about.title in found.text
    assert "backend" in found.text and "numpy" in found.text


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "mood", "verdict"),
    [
        (
            "plane",
            "good",
            r"Converged in \d+ iterations, norm [\d.e-]+ relative to the right side\.",
        ),
        ("flow", "bad", r"Not converged in \d+ steps, norm"),  # far from steady at t = 2
        ("line", "good", r"Came to t = [\d.]+ in \d+ steps\."),
        ("not converged", "bad", r"Not converged in 5 iterations, norm \d"),
    ],
)
def test_the_verdict(results, name, mood, verdict):
    found = read_page(results / f"{name}.h5", bandwidth=1e10)
    assert ("p", {"class": f"verdict {mood}"}) in found.tags
    assert re.search(verdict, found.text)


@pytest.mark.thorough
def test_what_was_watched_is_drawn_over_time(results):
    found = read_page(results / "flow.h5", bandwidth=1e10)
    assert "In the course of time" in found.text and "Change from step to step" in found.text
    images = [given["alt"] for tag, given in found.tags if tag == "img"]
    drawn = next(said for said in images if "kinetic_energy" in said)
    assert "enstrophy" in drawn and "residual" not in drawn and "courant" not in drawn
    solution = read(results / "flow.h5")
    panels = watched_figure(solution).axes
    assert [ax.get_title("left") for ax in panels] == [
        name.replace("_", " ") for name in watched(solution)
    ]
    for ax, name in zip(panels, watched(solution), strict=True):
        assert np.array_equal(ax.lines[0].get_ydata(), solution.history[name])
    for name in ("line", "plane"):
        assert "In the course" not in read_page(results / f"{name}.h5", bandwidth=1e10).text


@pytest.mark.thorough
def test_profiles_stand_beside_the_reference(results):
    found = read_page(results / "flow.h5", bandwidth=1e10)
    assert "Beside the reference" in found.text
    apart = [float(n) for n in re.findall(r"velocity [xy]: at most ([\d.]+) apart", found.text)]
    assert len(apart) == 2 and all(0.001 < n < 0.5 for n in apart)
    assert "Beside the reference" not in read_page(results / "plane.h5", bandwidth=1e10).text


def test_a_profile_is_interpolated_across_the_line(results):
    solution = read(results / "space.h5")
    wanted = Profile.model_construct(
        field="temperature", along="y", through=(0.3, 0.0, 0.55), positions=(), values=()
    )
    line, values = profile_of(solution, wanted)
    z, y, x = (solution.coordinates[axis] for axis in "zyx")
    field = solution.fields["temperature"]
    for number, at in enumerate(y):
        plane = field[:, number, :]
        rows = [np.interp(0.3, x, row) for row in plane]
        assert values[number] == pytest.approx(np.interp(0.55, z, rows), abs=1e-14)
        assert line[number] == at


@pytest.mark.parametrize("kind", ["nodes", "cells"])
def test_profiles_around_a_periodic_axis(kind, tmp_path):
    profile = PROFILE["reference.profile"][0] | {"field": "temperature", "values": [0.0, 9.0]}
    text = f"""[grid]
{kind} = [9, 8]
periodic = ["y"]
[boundary]
left.temperature.value = "cos(2*pi*y)"
right.temperature.value = "cos(2*pi*y)"
[source]
temperature = "4*pi**2*cos(2*pi*y)"
"""
    run(parse(text, "case"), "numpy", tmp_path / "a.h5")
    solution = read(tmp_path / "a.h5")
    field, y = solution.fields["temperature"], solution.coordinates["y"]
    for place in (0.0, 0.03, 0.93, 1.0):
        wanted = Profile.model_validate(profile | {"along": "x", "through": [0.0, place],
                                                   "positions": [0.5, 2.0]})  # fmt: skip
        assert holds_profile(solution, wanted)
        _, values = profile_of(solution, wanted)
        around = [np.interp(place, y, column, period=1.0) for column in field.T]
        assert values == pytest.approx(around, abs=1e-13)
        assert profile_figure(solution, wanted)[1].endswith("apart at the 1 of 2 positions between "
                                                            "points of this file")  # fmt: skip
    along = {"along": "y", "through": [0.5, 0.0], "positions": [0.0, 1.0], "values": [9, 9]}
    along = Profile.model_validate(profile | along)
    line, values = profile_of(solution, along)
    assert np.interp(1.0, line, values) == pytest.approx(np.interp(0.0, line, values), abs=1e-13)
    assert profile_figure(solution, along)[1].endswith("apart")


def test_a_profile_through_points_that_a_file_lacks_is_not_drawn(tmp_path):
    """A file of a box: elsewhere its nearest points would stand for the line."""
    box = {"output.file": [{"name": "part", "lower": [0.0, 0.0], "upper": [0.25, 1.0]}]}
    profile = PROFILE["reference.profile"][0]
    case = PROFILE | box | {"grid.nodes": [9, 9]}
    for x, files in ((0.125, ("a", "a_part")), (0.9, ("a",))):
        case["reference.profile"] = [profile | {"along": "y", "through": [x, 0.5]}]
        heatsolve.run("hot-plate", backend="numpy", overrides=case, output=tmp_path / "a.h5",
                      overwrite=True)  # fmt: skip
        for name in ("a", "a_part"):
            text = read_page(tmp_path / f"{name}.h5", bandwidth=1e10).text
            assert ("Beside the reference" in text) == (name in files)


def test_a_page_says_that_a_program_stopped_the_run(tmp_path):
    given = {"grid.cells": [8, 8], "time.end": 0.2}
    heatsolve.run("taylor-green", backend="numpy", overrides=given, output=tmp_path / "a.h5",
                  each=lambda sim: "seen enough" if sim.steps == 2 else None)  # fmt: skip
    found = read_page(tmp_path / "a.h5", bandwidth=1e10)
    assert ("p", {"class": "verdict bad"}) in found.tags
    assert "Stopped in 2 steps: seen enough." in found.text and "Not converged" not in found.text


def test_a_profile_without_a_position_in_the_file_tells_no_difference(tmp_path):
    profile = PROFILE["reference.profile"][0] | {"along": "x", "through": [0.5, 0.5],
                                                 "positions": [0.6], "values": [5.0]}  # fmt: skip
    case = {"grid.nodes": [9, 9], "reference.profile": [profile],
            "output.file": [{"name": "part", "lower": [0, 0], "upper": [0.25, 1]}]}  # fmt: skip
    heatsolve.run("hot-plate", backend="numpy", overrides=case, output=tmp_path / "a.h5")
    for name, said in (("a", r"temperature: at most \d"), ("a_part", "temperature: no position")):
        assert re.search(said, read_page(tmp_path / f"{name}.h5", bandwidth=1e10).text)


def test_errors_and_ranges(results):
    found = read_page(results / "space.h5", bandwidth=1e10)
    solution = read(results / "space.h5")
    assert f"{solution.attributes['error_max_temperature']:.4g}" in found.text
    assert f"{solution.fields['temperature'].max():.6g}" in found.text


def test_a_run_notes_what_it_did(results):
    given = read(results / "plane.h5").attributes
    assert 0 < given["solve_seconds"] <= given["wall_seconds"]
    assert given["points_updated"] > 15 * 15 and given["bytes_moved"] > 16 * 15 * 15
    assert "cores" in given["machine"]


def test_the_roof_is_that_of_this_machine_only(results, monkeypatch):
    given = read(results / "plane.h5").attributes
    monkeypatch.setattr(measure, "COPIED", 1 << 20)
    measured = measure.copy_bandwidth(given)
    assert 1e8 < measured < 1e13
    assert measure.copy_bandwidth(given | {"machine": "another"}) is None
    assert measure.copy_bandwidth(given | {"ranks": 2}) is None
    assert measure.copy_bandwidth(given | {"backend": "cupy"}) is None
    point, *_ = [line for line in roofline_figure(given, 1e10).axes[0].lines
                 if len(line.get_xdata()) == 1]  # fmt: skip
    assert point.get_ydata()[0] == pytest.approx(given["points_updated"] / given["solve_seconds"])


def test_another_machine_is_said(results, tmp_path):
    path = shutil.copy(results / "plane.h5", tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        file.attrs["machine"] = "another"
    found = read_page(path, bandwidth=measure.copy_bandwidth)
    assert "Without a roofline" in found.text
    assert "roofline" not in {given.get("alt") for _, given in found.tags}


def test_a_stranger_cannot_put_tags_into_a_page(results, tmp_path):
    path = shutil.copy(results / "plane.h5", tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        bad = "<script>alert(1)</script>"
        file.attrs["case"] = f'[case]\ntitle = "{bad}"\ndescription = "$title {bad}"\n'
        file.attrs["machine"] = file.attrs["backend"] = bad
        file["temperature"].attrs["units"] = bad
    found = read_page(path, bandwidth=1e10)
    assert "script" not in {tag for tag, _ in found.tags}
    assert found.text.count("alert(1)") >= 5


def test_the_page_of_a_file_of_an_earlier_version(results, tmp_path):
    path = shutil.copy(results / "plane.h5", tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        file.attrs["case"] = file.attrs["case"].replace("relative = true\n", "")
    found = read_page(path, bandwidth=1e10)
    assert "in which solver.relative was false by default, not true." in found.text
    assert "relative = false" in found.text


def test_a_file_with_little_in_it(results, tmp_path):
    """Attributes that are missing, a broken case, NaN and no history; then one of another kind."""
    path = shutil.copy(results / "plane.h5", tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        for name in list(file.attrs):
            del file.attrs[name]
        file.attrs["case"] = "= broken"
        for name in ("residual", "iteration"):
            del file["history"][name]
        file["temperature"][3] = np.nan
    found = read_page(path)
    assert "Not converged." in found.text and "Convergence" not in found.text
    with h5py.File(path, "r+") as file:
        file.attrs["residual"] = "text"
    with pytest.raises(FileFailure, match="'residual' is an attribute that is no number"):
        read_page(path)


def test_the_command(results):
    done = CliRunner().invoke(app, ["report", str(results / "plane.h5"), "--bandwidth=20"])
    assert done.exit_code == 0 and done.stdout.strip() == f"wrote {results / 'plane.html'}"
    with pytest.raises(InputError, match="--bandwidth must be a number"):
        CliRunner().invoke(app, ["report", "a.h5", "--bandwidth=-1"], catch_exceptions=False)
    with pytest.raises(InputError, match="there is no file"):
        report(results / "none.h5")
    with pytest.raises(InputError, match=r"a report is an \.html file"):
        report(results / "plane.h5", results / "plane.pdf")
    (results / "taken.html").mkdir()
    with pytest.raises(FileFailure, match="cannot write"):
        report(results / "plane.h5", results / "taken.html", 1e10)


PROFILE = {
    "reference.profile": [
        {"field": "temperature", "along": "x", "through": [0.5, 0.5], "positions": [0.1],
         "values": [1]}
    ]
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"field": "pressure"}, "reference.profile.0.field: the model has no pressure"),
        ({"along": "z"}, "reference.profile.0.along: the case has no z axis"),
        ({"through": [2.0, 0.5]}, "reference.profile.0.through: 2 is outside 0 to 1"),
        ({"through": [0.5]}, "reference.profile.0.through: must have length 2"),
        ({"values": [1, 2]}, "values: must be as many as positions, not 1 positions and 2 values"),
        ({"positions": [1.5]}, "positions.0: 1.5 is outside 0 to 1 along x"),
    ],
)
def test_mistakes_in_a_profile(change, message):
    assert heatsolve.load("hot-plate", PROFILE).reference.profiles[0].values == (1.0,)
    with pytest.raises(CaseError) as caught:
        heatsolve.load(
            "hot-plate", {"reference.profile": [PROFILE["reference.profile"][0] | change]}
        )
    assert message in str(caught.value)


def look(page, width, picture):
    """What a browser of that width makes of a page: the width it needs, and broken images."""
    probe = (
        "<script>onload = () => { const broken = [...document.images].filter("
        "image => !image.naturalWidth).length; document.title = JSON.stringify("
        "[document.documentElement.scrollWidth, innerWidth, broken]) }</script>"
    )
    probed = page.with_name("probed.html")
    probed.write_text(page.read_text().replace("</body>", f"{probe}</body>"))
    common = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        f"--user-data-dir={picture.parent / 'profile'}", f"--window-size={width},1600",
    ]  # fmt: skip
    shown = subprocess.run(
        [*common, "--virtual-time-budget=5000", "--dump-dom", probed.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    subprocess.run(
        [*common, f"--screenshot={picture}", page.as_uri()],
        capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    title = re.search(r"<title>(.*?)</title>", shown.stdout)[1]
    return json.loads(title)


@pytest.mark.few(1)
@browser
@pytest.mark.parametrize("width", [500, 1100])
def test_a_browser_shows_all_of_it(results, width, tmp_path):
    page = report(results / "flow.h5", tmp_path / "page.html", 1e10)
    needed, given, broken = look(page, width, tmp_path / "shot.png")
    assert needed <= given and not broken
    with Image.open(tmp_path / "shot.png") as picture:
        shown = np.asarray(picture.convert("RGB"))
    assert shown.shape[1] == width
    # Its colours are those of the fields, in a good part of the page; about 0 they are pale.
    colour = np.ptp(shown, axis=2)
    assert (colour > 4).mean() > 0.1
    assert (colour > 60).mean() > 0.02
