"""heatsolve from Python: runs, results as arrays or with xarray, notebooks, mistakes."""

import inspect
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from test_ranks import launch, mpi

import heatsolve
from heatsolve import api, cli
from heatsolve.case.load import parse
from heatsolve.errors import CaseError, Diverged, FileFailure, InputError
from heatsolve.io.reader import read
from heatsolve_post.plot import figure

WALLS = ("left", "right", "bottom", "top")
TABLE = {
    "case": {"title": 'A "plate" <b>'},
    "grid": {"cells": (6, 4), "upper": (3, 2)},
    "source": {"temperature": 1},
    "boundary": {side: {"temperature": {"value": 1.5}} for side in WALLS},
    "units": {"temperature": "K", "length": "m"},
}


def plate(wall):
    return TABLE | {"boundary": {side: {"temperature": {"value": wall}} for side in WALLS}}


MARCH = TABLE | {"model": {"steady": False}, "time": {"end": 0.5, "step": 0.05}}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_field_has_its_coordinates_and_units():
    found = heatsolve.run(TABLE, backend="numpy")["temperature"]
    assert found.dims == ("y", "x")
    assert (found.attrs["units"], found.x.attrs["units"]) == ("K", "m")
    assert np.array_equal(found.x, [0.25, 0.75, 1.25, 1.75, 2.25, 2.75])
    assert np.array_equal(found.values, read("case.h5").fields["temperature"])
    march = heatsolve.run(MARCH, backend="numpy", overrides=["output.every=4"], output="m.h5")
    found = march["temperature"]
    assert found.dims == ("time", "y", "x")
    assert found.sel(time=0.4, method="nearest").shape == (4, 6)
    assert np.array_equal(march.time, found.time)
    assert march.history["iteration"].tolist() == list(range(1, 11))


def test_a_field_is_an_array_without_xarray(monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    found = heatsolve.run(TABLE, backend="numpy")
    assert isinstance(found["temperature"], np.ndarray)
    assert found.coordinates["y"].tolist() == [0.25, 0.75, 1.25, 1.75]


def test_a_result_is_a_mapping():
    result = heatsolve.run("cfdpython-11", backend="numpy", overrides={"time.end": 0.01})
    assert list(result) == ["pressure", "velocity_x", "velocity_y"] and len(result) == 3
    assert "pressure" in result and "temperature" not in result
    with pytest.raises(KeyError, match="no field 'temperature', only pressure, velocity_x"):
        result["temperature"]
    assert result.path.name == "cfdpython-11.h5" and result.path.exists()
    assert result.attributes["backend"] == "numpy" and result.converged
    assert result.attributes["launches"] > 10 * result.attributes["steps"]
    assert repr(result) == "<heatsolve.Result cfdpython-11.h5: pressure, velocity_x, velocity_y>"
    again = heatsolve.open("cfdpython-11.h5")
    assert np.array_equal(again["pressure"], result["pressure"])


def test_overrides_of_all_kinds():
    values = {"grid.cells": (8, 8), "solver.relative": True, "solver.method": "cg",
              "case.title": 'say "a"\n', "solver.tolerance": 1e-3}  # fmt: skip
    case = heatsolve.load(TABLE, values)
    assert (case.grid.counts, case.solver.relative, case.about.title) == ((8, 8), True, 'say "a"\n')
    texts = ["grid.cells=[8, 8]", "solver.relative=true", "solver.method=cg",
             'case.title="say \\"a\\"\\n"', "solver.tolerance=0.001"]  # fmt: skip
    assert heatsolve.load(TABLE, texts) == case
    assert parse(case.text, "case") == case


def test_a_case_may_be_loaded_before():
    case = heatsolve.load("hot-plate", {"grid.nodes": [17, 17]})
    assert heatsolve.run(case)["temperature"].shape == (17, 17)


def test_a_run_that_has_not_converged_is_no_error():
    result = heatsolve.run(TABLE, overrides={"solver.method": "jacobi", "solver.max_iterations": 2})
    assert not result.converged
    assert result.attributes["iterations"] == 2


@pytest.mark.parametrize(
    ("case", "given", "error", "message"),
    [
        ("hotspt", {}, InputError, 'did you mean "hotspot"'),
        (TABLE, {"overrides": {"grid.cels": [2, 2]}}, CaseError, "--set grid.cels"),
        (TABLE, {"backend": "fortran"}, InputError, "fortran"),
        (
            MARCH,
            {"overrides": {"time.allow_unstable": True, "time.end": 5000}},
            Diverged,
            "diverged",
        ),
        (TABLE, {"output": "missing/a.h5"}, FileFailure, "missing"),
    ],
)
def test_errors_are_those_of_the_command_line(case, given, error, message):
    if case is MARCH:
        given["overrides"]["time.step"] = 5
    with pytest.raises(error, match=message):
        heatsolve.run(case, **given)


def test_a_file_that_is_none_of_ours(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        heatsolve.open("nothing.h5")
    (tmp_path / "text.h5").write_text("text")
    with pytest.raises(FileFailure):
        heatsolve.open("text.h5")


def test_quiet_by_default(capsys):
    heatsolve.run(TABLE, backend="numpy")
    assert capsys.readouterr() == ("", "")
    heatsolve.run(TABLE, backend="numpy", quiet=False)
    assert "wrote case.h5" in capsys.readouterr().out


def test_restart():
    first = heatsolve.run(MARCH, overrides={"checkpoint.every": 2})
    assert first.attributes["steps"] == 10
    further = heatsolve.run(
        MARCH, overrides={"checkpoint.every": 2, "time.end": 1.0}, restart=True, quiet=False
    )
    alone = heatsolve.run(MARCH, overrides={"time.end": 1.0}, output="alone.h5")
    assert np.array_equal(further["temperature"][-1], alone["temperature"][-1])


def test_a_notebook_shows_a_picture_and_the_summary():
    shown = heatsolve.run(TABLE)._repr_html_()
    tags = []
    reader = HTMLParser()
    reader.handle_starttag = lambda tag, attrs: tags.append((tag, dict(attrs)))
    reader.feed(shown)
    assert [tag for tag, _ in tags] == ["img", "pre"]  # the title's <b> is no tag
    assert tags[0][1]["src"].startswith("data:image/png;base64,iVBOR")
    assert re.search(r"temperature +K +1\.5\d* ", shown)


# ---- results that keep their data --------------------------------------------------------------


def test_results_keep_their_own_data(tmp_path):
    """Cases given as tables have files of their own, by their text: the same one has the same."""
    found = {wall: heatsolve.run(plate(wall), backend="numpy") for wall in (10, 20, 30)}
    for wall, result in found.items():
        assert result["temperature"].min() == pytest.approx(wall, abs=0.5)
        assert f"temperature  K     {wall}." in result._repr_html_()
        contours = result.figure().axes[0].collections[0]
        assert contours.norm.vmin == pytest.approx(wall, abs=0.5)
    names = ["case.h5", "case-2.h5", "case-3.h5"]
    assert [result.path.name for result in found.values()] == names
    assert heatsolve.run(heatsolve.load(plate(20)), backend="numpy").path.name == "case-2.h5"
    changed = heatsolve.run(plate(10), backend="numpy", overrides={"solver.tolerance": 1e-3})
    assert changed.path.name == "case-4.h5"


@pytest.mark.parametrize("kept", [True, False])
def test_a_result_whose_file_was_replaced(kept, monkeypatch):
    """It goes on with what it has in memory, or says that it cannot."""
    if not kept:
        monkeypatch.setattr("heatsolve.result.KEPT_BYTES", 0)
    given = {"backend": "numpy", "output": "same.h5"}
    first = heatsolve.run(plate(10), **given)
    assert first["temperature"].min() < 11.0
    second = heatsolve.run(plate(20), **given)
    assert second["temperature"].min() > 19.0
    for use in (lambda: first["temperature"].min(), lambda: first.figure(compare=second)):
        if kept:
            use()
        else:
            with pytest.raises(FileFailure, match=r"same\.h5 has been replaced since"):
                use()
    if kept:
        second.path.unlink()
        first["temperature"][:] = 0.0  # a copy is handed out
        assert 10.0 < first["temperature"].min() < 11.0


def test_a_restart_finds_the_file_of_its_table():
    """In this process and in the next one, whatever other tables were run between."""
    saved = {"checkpoint.every": 2}
    other = MARCH | {"boundary": plate(7)["boundary"]}
    for table in (MARCH, other):
        heatsolve.run(table, overrides=saved, backend="numpy")
    longer = saved | {"time.end": 1.0}
    api.WRITTEN.clear()
    for table, name in ((other, "case-2.h5"), (MARCH, "case.h5")):
        further = heatsolve.run(table, overrides=longer, backend="numpy", restart=True)
        assert further.path.name == name
        alone = heatsolve.run(table, overrides=longer, backend="numpy", output="alone.h5")
        assert further.attributes["steps"] == 20
        assert np.array_equal(further["temperature"][-1], alone["temperature"][-1])
    new = heatsolve.run(plate(3), backend="numpy", restart=True)  # which has no checkpoint
    assert new.path.name == "case-3.h5"


def test_a_name_that_was_given_stays_taken():
    """Also after a restart that finds no checkpoint, or one under another name."""
    names = [
        heatsolve.run(plate(hot), backend="numpy", restart=restart).path.name
        for hot, restart in ((1, False), (2, False), (2, True), (3, False), (2, False), (1, True))
    ]
    assert names == ["case.h5", "case-2.h5", "case-2.h5", "case-3.h5", "case-2.h5", "case.h5"]


def test_a_name_in_a_result_reads_nothing(monkeypatch):
    monkeypatch.setattr("heatsolve.result.KEPT_BYTES", 0)
    result = heatsolve.run(TABLE, backend="numpy")
    result.path.unlink()
    assert "temperature" in result and "pressure" not in result and 1 not in result
    with pytest.raises(InputError, match="there is no file"):
        result["temperature"]


def test_values_of_numpy():
    """In tables and overrides arrays are lists, scalars numbers."""
    table = TABLE | {
        "grid": {"cells": np.array([6, 4]), "upper": np.array([3.0, 2.0])},
        "constants": {"k": np.float32(0.5), "n": np.int64(3), "a": np.array(2.5)},
        "solver": {"relative": np.True_, "tolerance": np.float64(1e-9)},
    }
    case = heatsolve.load(table, {"grid.lower": np.zeros(2), "solver.max_iterations": np.int32(9)})
    assert case.grid.counts == (6, 4) and case.grid.lower == (0.0, 0.0)
    assert case.constants == {"k": 0.5, "n": 3.0, "a": 2.5}
    assert (case.solver.relative, case.solver.tolerance) == (True, 1e-9)
    assert case.solver.max_iterations == 9
    assert parse(case.text, "case") == case


@pytest.mark.parametrize(
    ("table", "overrides", "message"),
    [
        (TABLE | {"solver": {"tolerance": None}}, {}, "solver.tolerance: NoneType is no number"),
        (TABLE, {"grid.cells": [8, 1j]}, "grid.cells.1: complex is no number"),
        (TABLE | {1: 2}, {}, "a key is a text, not 1"),
    ],
)
def test_values_that_no_case_has(table, overrides, message):
    with pytest.raises(CaseError, match=re.escape(f"the case: {message}")):
        heatsolve.load(table, overrides)


def test_names_of_the_package():
    classes = {"Result", "Simulation", "Check"}
    functions = {"run", "march", "check", "open", "load", "model"}
    assert set(dir(heatsolve)) == {"__version__", *classes, *functions}
    assert all(inspect.isclass(getattr(heatsolve, name)) for name in classes)
    assert all(inspect.isfunction(getattr(heatsolve, name)) for name in functions)
    assert callable(heatsolve.main)


def test_figures_take_the_options_of_plot():
    """By the same names; and a notebook shows what is returned."""
    options = inspect.signature(cli.plot).parameters.keys() - {"file", "output"}
    assert options == inspect.signature(figure).parameters.keys() - {"source"}
    result = heatsolve.run(MARCH, backend="numpy", overrides={"output.every": 5})
    for given in (
        {"history": True},
        {"slices": {"y": 1.0}, "at_time": 0.25, "log": True},
        {"field": "temperature", "compare": result},
    ):
        assert result.figure(**given)._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="exclude each other"):
        result.figure(vectors=True, streamlines=True)


@mpi
def test_several_processes_have_the_whole_result(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        f"import os, heatsolve\nos.chdir({str(tmp_path)!r})\n"
        "found = heatsolve.run('hot-plate', backend='numpy', overrides={'grid.nodes': [17, 17]})\n"
        "with open(f'{os.getpid()}.txt', 'w') as file:\n"
        "    print(found.attributes['ranks'], found['temperature'].shape, file=file)\n"
        "heatsolve.run('hotspt')\n"
    )
    done = launch(2, script)
    assert [path.read_text() for path in tmp_path.glob("*.txt")] == ["2 (17, 17)\n"] * 2
    assert done.returncode == 2
    assert "did you mean" in done.stderr


def test_importing_is_light():
    script = "import sys, heatsolve; print('numpy' in sys.modules, heatsolve.__version__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["False", heatsolve.__version__]
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        heatsolve.runn  # noqa: B018


def test_keys_without_effect(capfd):
    """They are warned of, or refused with `strict`."""
    heatsolve.run(TABLE | {"output": {"every": 2}}, backend="numpy")
    assert "warning: the case:" in (said := capfd.readouterr().err)
    assert said.endswith("output.every: has no effect: a steady case has no time\n")
    with pytest.raises(CaseError, match=r"output\.every: has no effect: a steady case has no"):
        heatsolve.run(TABLE | {"output": {"every": 2}}, backend="numpy", strict=True)
    heatsolve.run(TABLE, backend="numpy", strict=True)
    assert capfd.readouterr().err == ""
