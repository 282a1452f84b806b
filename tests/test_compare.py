"""`heatsolve compare`: how far apart two files are, where first, and its exit code."""

import math
import shutil

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from heatsolve.case.load import load, parse
from heatsolve.cli import app
from heatsolve.errors import ExitCode, FileFailure, InputError
from heatsolve.io import reader
from heatsolve.io.reader import read
from heatsolve.runner import run
from heatsolve_post.compare import compare


@pytest.fixture(scope="module")
def steady(tmp_path_factory):
    path = tmp_path_factory.mktemp("steady") / "a.h5"
    run(load("hot-plate", ["grid.nodes=[9, 7]"]), "numpy", path)
    return path


@pytest.fixture(scope="module")
def march(tmp_path_factory):
    path = tmp_path_factory.mktemp("march") / "a.h5"
    run(
        load("cavity-re100", ["constants.n=8", "time.end=0.4", "time.cfl=0.3", "output.every=1"]),
        "numpy",
        path,
    )
    return path


def changed(path, name, changes):
    """A copy of a file with other values at some places."""
    other = path.with_name("b.h5")
    shutil.copy(path, other)
    with h5py.File(other, "r+") as file:
        for place, value in changes.items():
            file[name][place] = value
    return other


def test_the_same_bits(steady, march):
    for path in (steady, march):
        found = list(compare(path, path))
        assert not any(each.differing for each in found)
        assert all("the same bits in all" in str(each) for each in found)
    assert [each.field for each in found] == ["pressure", "velocity_x", "velocity_y"]


def test_norms_and_the_first_place(march):
    with h5py.File(march) as file:
        values, times = file["velocity_x"][:], file["time"][:]
        x, y = file["x"][:], file["y"][:]
    first, later = (1, 5, 2), (2, 0, 0)
    a, b = float(values[first]), float(values[later])
    other = changed(march, "velocity_x", {first: a + 0.5, later: b - 0.25})
    (found,) = compare(march, other, ["velocity_x"])
    assert (found.differing, found.count) == (2, values.size)
    assert found.largest == 0.5
    assert math.isclose(found.rms, math.sqrt((0.25 + 0.0625) / values.size))
    assert found.scale == np.abs(values).max()
    where = f"x = {x[2]:g}, y = {y[5]:g}, t = {times[1]:g} [1, 5, 2]: {a!r} and {a + 0.5!r}"
    assert found.first == where
    assert f"first at {where}" in str(found)


def test_blocks_of_rows_find_the_same(march, monkeypatch):
    other = changed(march, "pressure", {(1, 6, 3): 7.0, (1, 7, 0): 8.0})
    whole = list(compare(march, other))
    monkeypatch.setattr(reader, "BLOCK_BYTES", 1)
    rows = list(compare(march, other))
    assert [each.first for each in rows] == [each.first for each in whole]
    assert [(each.differing, each.largest) for each in rows] == [
        (each.differing, each.largest) for each in whole
    ]


def test_tolerance_is_of_the_largest_value(steady):
    other = changed(steady, "temperature", {(3, 3): 0.25 + 1e-9})
    (bits,) = compare(steady, other)
    assert bits.differing == 1
    for tolerance, differing in ((1e-8, 0), (1e-10, 1)):
        (found,) = compare(steady, other, tolerance=tolerance * bits.largest / 1e-9)
        assert found.differing == differing
    assert "apart by" in str(next(compare(steady, other, tolerance=1.0)))


def test_numbers_that_are_none(steady):
    """NaN beside NaN is the same, beside a number infinitely far; zeros differ in their sign."""
    nan = changed(steady, "temperature", {(3, 3): np.nan})
    (found,) = compare(steady, nan)
    assert found.differing == 1 and found.largest == math.inf and "nan" in found.first
    (found,) = compare(nan, nan)
    assert not found.differing
    zero = changed(steady, "temperature", {(0, 4): -0.0})
    (found,) = compare(steady, zero)
    assert (found.differing, found.largest) == (1, 0.0)


def test_other_grids_times_and_fields(steady, march, tmp_path):
    other = tmp_path / "b.h5"
    run(load("cavity-re100", ["constants.n=8", "time.end=0.4", "time.cfl=0.3"]), "numpy", other)
    with pytest.raises(InputError, match="frames"):
        list(compare(march, other))
    run(load("hot-plate", ["grid.nodes=[9, 7]", "grid.upper=[2, 1]"]), "numpy", other)
    with pytest.raises(InputError, match=r"x goes from 0 to 2 in .*b.h5, from 0 to 1 in .*a.h5: n"):
        list(compare(steady, other))
    shutil.copy(march, other)
    with h5py.File(other, "r+") as file:
        del file["pressure"]
    assert next(compare(march, other)) == f"pressure: not in {other}"
    with pytest.raises(InputError, match="no field 'pressure', only velocity_x, velocity_y"):
        list(compare(march, other, ["pressure"]))


def slope(path, kind, points):
    """A steady field 1 + 2 x - 3 y: on any grid its own interpolant."""
    walls = [f"boundary.{w}.temperature.value='1+2*x-3*y'"
             for w in ("left", "right", "bottom", "top")]  # fmt: skip
    settings = [f"grid.{kind}={points}", *walls, "solver.tolerance=1e-13"]
    return run(load("hot-plate", settings), "numpy", path).path


@pytest.mark.parametrize("kinds", [("nodes", "nodes"), ("cells", "cells"), ("nodes", "cells")])
def test_a_finer_grid_is_interpolated(kinds, tmp_path, monkeypatch):
    """A linear field is the same on all grids; beyond the last cells it is extrapolated."""
    fine = slope(tmp_path / "fine.h5", kinds[0], "[21, 17]")
    coarse = slope(tmp_path / "coarse.h5", kinds[1], "[8, 9]")
    said, found = compare(fine, coarse)
    assert said == f"{fine} (21 x 17 points) is interpolated to the 8 x 9 points of {coarse}"
    assert found.count == 72 and found.largest < 1e-11 and found.interpolated
    said, turned = compare(coarse, fine, tolerance=1e-10)
    assert (turned.rms, turned.differing) == (found.rms, 0)
    monkeypatch.setattr("heatsolve_post.compare.BLOCK_BYTES", 1)
    assert list(compare(fine, coarse)) == [said, found]
    values = {(3, 3): 9.0}
    moved = changed(coarse, "temperature", values)
    with h5py.File(coarse) as file:
        apart = 9.0 - file["temperature"][3, 3]
    _, one = compare(fine, moved, tolerance=1e-9)
    assert one.differing == 1 and "[3, 3]" in one.first
    assert one.largest == pytest.approx(apart) and one.mean == pytest.approx(apart / 72)
    assert one.rms == pytest.approx(apart / math.sqrt(72))
    for words in ("at most", "root mean square", "mean"):
        assert words in str(one)
    for pair, code in (((fine, coarse), 0), ((fine, moved), ExitCode.FAILED)):
        done = CliRunner().invoke(app, ["compare", *map(str, pair), "--tolerance", "1e-9"])
        assert (done.exit_code, "is interpolated to" in done.stdout) == (code, True)


@pytest.mark.parametrize("kinds", [("cells", "nodes"), ("nodes", "cells"), ("cells", "cells")])
def test_interpolation_goes_around_a_periodic_axis(kinds, tmp_path, monkeypatch):
    """Also along the slowest axis, in blocks; the scale is of file A itself."""
    wave, paths = "sin(2*pi*x+0.6)+cos(2*pi*y+0.9)", []
    for kind, n in zip(kinds, (20, 7), strict=True):
        text = f"""
[model]
steady = false
[grid]
{kind} = [{n}, {n + 1}]
periodic = ["x", "y"]
[initial]
temperature = "{wave}"
[time]
step = 1e-12
end = 1e-12
"""
        paths.append(run(parse(text, "case"), "numpy", tmp_path / f"{n}.h5").path)
    _, found = compare(*paths)
    fine, coarse = (read(path) for path in paths)
    with h5py.File(paths[0]) as file:
        assert found.scale == np.abs(file["temperature"]).max()
    largest = 0.0
    for frame in range(2):
        values, lines = fine.fields["temperature"][frame], fine.coordinates.values()
        for axis, (line, at) in enumerate(zip(lines, coarse.coordinates.values(), strict=True)):
            values = np.apply_along_axis(
                lambda v, line=line, at=at: np.interp(at, line, v, period=1.0), axis, values
            )
        apart = np.abs(values - coarse.fields["temperature"][frame]).max()
        largest = max(largest, apart)
    assert found.largest == pytest.approx(largest, rel=1e-9)
    monkeypatch.setattr("heatsolve_post.compare.BLOCK_BYTES", 1)
    _, by_rows = compare(*paths)
    assert (by_rows.largest, by_rows.count) == (found.largest, found.count)


def test_times_that_both_files_have_are_compared(march, tmp_path):
    settings = ["time.end=0.4", "time.cfl=0.3", "output.every=[0.1]"]
    path = run(load("cavity-re100", ["constants.n=16", *settings]), "numpy", tmp_path / "b.h5").path
    said = list(map(str, compare(march, path)))
    assert "b.h5 (16 x 16 points) is interpolated to the 8 x 8 points" in said[0]
    assert said[1] == "only the 2 times that both files have are compared"
    assert said[2].startswith("pressure: apart in 128 values by at most ")
    planes = [f"output.file=[{{name='mid', lower=[0, {y}], upper=[1, {y}]}}]" for y in (0.5, 0.1)]
    for number, plane in enumerate(planes):
        run(load("cavity-re100", ["constants.n=8", *settings[:2], plane]), "numpy",
            tmp_path / f"{number}.h5")  # fmt: skip
    _, _, *fields = compare(march, tmp_path / "0_mid.h5")
    assert [each.largest for each in fields] == [0.0, 0.0, 0.0]
    with pytest.raises(InputError, match="y goes from"):
        list(compare(tmp_path / "0_mid.h5", tmp_path / "1_mid.h5"))


def test_the_first_place_has_the_time_of_the_first_file(march, tmp_path):
    """Which may be the finer one, and have more frames."""
    settings = ["time.end=0.4", "time.cfl=0.3", "output.every=1"]
    fine = run(load("cavity-re100", ["constants.n=16", *settings]), "numpy", tmp_path / "f.h5").path
    few = [*settings[:2], "output.every=[0.4]"]
    coarse = run(load("cavity-re100", ["constants.n=8", *few]), "numpy", tmp_path / "c.h5").path
    with h5py.File(fine, "r+") as file:
        for name in ("pressure", "velocity_x", "velocity_y"):
            file[name][0] = 0.0
    with h5py.File(coarse, "r+") as file:
        for name in ("pressure", "velocity_x", "velocity_y"):
            file[name][0] = 0.0
    for _, _, *fields in (compare(fine, coarse), compare(coarse, fine)):
        assert all("t = 0.4" in each.first for each in fields)


def test_what_is_no_file_of_results_is_said(steady, tmp_path):
    np.save(tmp_path / "x.npy", np.ones(3))
    for pair in ((tmp_path / "x.npy", steady), (steady, tmp_path / "x.npy")):
        with pytest.raises(FileFailure, match=r"cannot read .*x\.npy: it is no HDF5 file"):
            list(compare(*pair))


def test_the_command(steady, tmp_path):
    other = changed(steady, "temperature", {(3, 3): 9.0})
    for given, code, said in (
        ([steady, steady], 0, "temperature: the same bits in all 63 values"),
        ([steady, other], ExitCode.FAILED, "1 of 63 values differ"),
        ([steady, other, "--tolerance", 10], 0, "apart by"),
    ):
        done = CliRunner().invoke(app, ["compare", *map(str, given)])
        assert (done.exit_code, said in done.stdout) == (code, True), done.stdout
    for given, error in (
        (["--tolerance", -1], InputError), (["--tolerance", "nan"], InputError),
        (["--field", "heat"], InputError),
    ):  # fmt: skip
        done = CliRunner().invoke(app, ["compare", *map(str, [steady, other, *given])])
        assert isinstance(done.exception, error)
    damaged = tmp_path / "c.h5"
    damaged.write_bytes(steady.read_bytes()[:1000])
    done = CliRunner().invoke(app, ["compare", str(steady), str(damaged)])
    assert isinstance(done.exception, FileFailure)
