"""Pictures and films that a case asks for: drawn by its run, on one process or many."""

import subprocess
import sys

import matplotlib.image
import pytest
from PIL import Image
from test_ranks import launch, mpi

import heatsolve
from heatsolve.errors import CaseError
from heatsolve.io.reader import read
from heatsolve_post import animate

COOLING = ("cooling-cube", "--set=grid.nodes=[9, 8, 7]", "--set=output.every=4", "--backend=numpy")


@pytest.fixture
def without_encoder(monkeypatch):
    monkeypatch.setattr(animate, "_encoder", lambda: "")


def program(folder, *given):
    return subprocess.run(
        [sys.executable, "-m", "heatsolve", "run", *given],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip


def test_a_run_draws_what_its_case_wants(tmp_path):
    done = program(
        tmp_path, *COOLING, "--set=output.plot=['temperature']", "--set=output.film=true"
    )
    assert done.returncode == 0, done.stderr
    assert "wrote cooling-cube_temperature.png" in done.stdout
    picture = matplotlib.image.imread(tmp_path / "cooling-cube_temperature.png")
    assert picture[..., :3].std() > 0.05
    film = next(path for path in tmp_path.iterdir() if path.suffix in (".gif", ".mp4"))
    assert film.stem == "cooling-cube" and f"wrote {film.name}" in done.stdout


def test_a_run_draws_nothing_by_itself(tmp_path):
    assert program(tmp_path, *COOLING).returncode == 0
    assert {path.suffix for path in tmp_path.iterdir()} == {".h5", ".xdmf"}


@mpi
def test_many_processes_draw_once_and_gather_nothing(tmp_path):
    done = launch(2, "-m", "heatsolve", "run", *COOLING, "--set=output.plot=['temperature']",
                  "--output", tmp_path / "many.h5")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("many_temperature.png") == 1
    alone = program(tmp_path, *COOLING, "--set=output.plot=['temperature']", "--output=one.h5")
    assert alone.returncode == 0
    one, many = (
        matplotlib.image.imread(tmp_path / f"{name}_temperature.png") for name in ("one", "many")
    )
    assert (one == many).all()
    assert (tmp_path / "many.parts").is_dir()


def test_films_of_fields(tmp_path, without_encoder):
    case = {"constants.n": 8, "time.end": 0.5, "output.every": 2}
    drawn = {"output.film": ["pressure", "velocity_x"], "output.plot": ["velocity_y"]}
    result = heatsolve.run("cavity-re100", overrides=case | drawn, output=tmp_path / "a.h5")
    names = {path.name for path in tmp_path.iterdir()} - {"a.h5", "a.xdmf"}
    assert names == {"a_pressure.gif", "a_velocity_x.gif", "a_velocity_y.png"}
    with Image.open(tmp_path / "a_pressure.gif") as film:
        assert film.n_frames == len(result.time)


def test_a_picture_that_cannot_be_drawn_is_a_warning(tmp_path, without_encoder, capsys):
    (tmp_path / "a_temperature.png").mkdir()
    result = heatsolve.run(
        "hot-plate", overrides={"grid.nodes": [9, 9], "output.plot": ["temperature"]},
        output=tmp_path / "a.h5",
    )  # fmt: skip
    assert result.converged and "temperature" in read(tmp_path / "a.h5").fields
    said = capsys.readouterr().err
    assert said.startswith("heatsolve: warning: a_temperature.png is not drawn: cannot write")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("case", "settings", "message"),
    [
        ("hot-plate", {"output.plot": ["presure"]}, "output.plot.0: the model has no presure (it"),
        ("cavity-re100", {"output.film": ["presure"], "output.every": 1}, 'mean "pressure"?'),
        ("hot-plate", {"output.film": True}, "output.film: needs a transient case"),
        ("cavity-re100", {"output.film": True}, "output.film: needs output.every, the steps from"),
        ("hot-plate", {"output.film": "yes"}, 'output.film: must be true, false or a list of f'),
        ("hot-plate", {"output.film": [1]}, "output.film: must be a list of names of fields"),
        (
            "cavity-re100",
            {"output.fields": ["pressure"], "output.plot": ["velocity_x"]},
            "output.plot.0: velocity_x is not among output.fields",
        ),
    ],
)  # fmt: skip
def test_mistakes(case, settings, message):
    with pytest.raises(CaseError) as caught:
        heatsolve.load(case, settings)
    assert message in str(caught.value)
