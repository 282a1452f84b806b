"""Fields from files, images and arrays: their values, interpolation, restarts, refusals."""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray
from many import Impatient
from PIL import Image
from test_ranks import launch, mpi

import heatsolve
from heatsolve.case.load import load, parse
from heatsolve.control.controller import Start
from heatsolve.errors import CaseError, FileFailure, InputError, Interrupted
from heatsolve.io import data as files
from heatsolve.io.reader import read
from heatsolve.models.flow.immersed_boundary import Obstacles
from heatsolve.models.grid import grid_of
from heatsolve.parallel.ranks import Ranks
from heatsolve.report import Report
from heatsolve.runner import run
from heatsolve.stencil.data import Data, arranged, pieces
from heatsolve.stencil.grid import make_grid
from heatsolve.stencil.solid import Surface
from heatsolve.tools.check import preview

SIDES = ("left", "right", "bottom", "top", "back", "front")
PLATE = """
[grid]
{grid}
[model]
steady = false
{model}
[initial]
temperature = {initial}
[boundary]
{walls}
[time]
end = 0.001
step = 1e-5
"""


def text(initial="0", grid="cells = [32, 24]", model="", walls=4):
    each = "\n".join(f"{side}.temperature = {{ value = 0 }}" for side in SIDES[:walls])
    return PLATE.format(grid=grid, model=model, initial=initial, walls=each)


def values_of(given, folder, grid="cells = [32, 24]", **positions):
    """A field of a case at the points of its grid, or at others."""
    case = parse(text(given, grid), "case", folder=folder)
    box = grid_of(case)
    files.connect(case, box)
    inside = {axis.name: box.along(n, axis.coordinates[1:-1]) for n, axis in enumerate(box.axes)}
    return np.asarray(case.initial.temperature(**{**inside, **positions}))


@pytest.fixture
def noise(tmp_path):
    """The same 24 x 32 values in a file of every kind."""
    values = np.random.default_rng(3).random((24, 32))
    x, y = (np.arange(32) + 0.5) / 32, (np.arange(24) + 0.5) / 24
    np.save(tmp_path / "a.npy", values)
    np.savetxt(tmp_path / "a.csv", values, fmt="%.17g", delimiter=",")
    rows = np.array([(v, y[j], x[i]) for (j, i), v in np.ndenumerate(values)])
    shuffled = np.random.default_rng(4).permutation(rows)
    table = {"fmt": "%.17g", "delimiter": ", ", "header": "T, y, x"}
    np.savetxt(tmp_path / "b.csv", shuffled, **table)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["inside/T"] = values
    array = xarray.DataArray(values, {"y": y, "x": x}, ("y", "x"), "T")
    array.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    swapped = array[::-1].T.expand_dims(time=[0.0, 1.0]).copy()
    swapped[0] = -1.0
    swapped.to_netcdf(tmp_path / "b.nc", engine="h5netcdf")
    return values


KINDS = {
    "a.npy": '{ file = "a.npy" }',
    "a matrix": '{ file = "a.csv" }',
    "a table": '{ file = "b.csv" }',
    "a.h5": '{ file = "a.h5", field = "inside/T" }',
    "a.nc": '{ file = "a.nc", field = "T" }',
    "turned, in time": '{ file = "b.nc" }',
    "at a time": '{ file = "b.nc", time = 0.9 }',
}


@pytest.mark.parametrize("given", KINDS.values(), ids=KINDS)
def test_every_kind_of_file_gives_its_values(given, noise, tmp_path):
    assert np.array_equal(values_of(given, tmp_path), noise)


def test_packed_values_are_unpacked(tmp_path):
    stored = xarray.DataArray(
        np.linspace(-3.0, 4.0, 24 * 32).reshape(24, 32), dims=("y", "x"), name="T"
    )
    stored[3, 5] = np.nan
    packing = {"scale_factor": 0.001, "add_offset": 2.0, "dtype": "int16", "_FillValue": -9999}
    stored.to_netcdf(tmp_path / "p.nc", engine="h5netcdf",
                     encoding={"T": packing})  # fmt: skip
    found = values_of('{ file = "p.nc" }', tmp_path)
    assert np.isnan(found[3, 5]) and np.nanmax(np.abs(found - stored.values)) < 0.00051
    with pytest.raises(InputError, match=r"initial.temperature: must be finite, but is nan at x ="):
        run(parse(text('{ file = "p.nc" }'), "case", folder=tmp_path), "numpy", tmp_path / "o.h5")


def field_on(grid, values, lines=None, axes=None, **given):
    """Data of an array, in the box of a grid."""
    axes = axes or [axis.name for axis in grid.axes]
    names = axes if lines else [None] * values.ndim
    samples = arranged(lambda key: values[key], values.shape, names, lines or names, values.dtype,
                       [axis.name for axis in grid.axes])  # fmt: skip
    data = Data("an array", given, Path())
    data.connect("here", samples, grid)
    return data


def at_points(data, grid):
    lines = {a.name: grid.along(n, a.coordinates[1:-1]) for n, a in enumerate(grid.axes)}
    return np.asarray(data(**lines)), lines


@pytest.mark.parametrize("on_nodes", [True, False])
def test_a_product_of_lines_is_met_between_the_points(on_nodes):
    """(1 + x)(2 - y)(1 - 3 z) is linear along each axis."""
    lines = [np.linspace(0.0, 1.0, n) for n in (5, 6, 4)]
    z, y, x = np.meshgrid(*lines, indexing="ij")
    grid = make_grid((13, 9, 11), (0, 0, 0), (1, 1, 1), on_nodes)
    data = field_on(grid, (1 + x) * (2 - y) * (1 - 3 * z), lines)
    found, at = at_points(data, grid)
    exact = (1 + at["x"]) * (2 - at["y"]) * (1 - 3 * at["z"])
    assert found.shape == (11, 9, 13) and np.allclose(found, exact, rtol=0, atol=1e-14)
    # Scattered positions take another way through the program, with the same bits.
    scattered = {name: np.broadcast_to(line, found.shape).copy() for name, line in at.items()}
    assert np.array_equal(data(**scattered), found)
    assert data(x=at["x"][0, 0, 7], y=at["y"][0, 3, 0], z=at["z"][5, 0, 0]) == found[5, 3, 7]
    assert data(x=np.empty(0), y=np.empty(0), z=np.empty(0)).shape == (0,)


def test_equal_values_stay_equal_and_points_keep_theirs():
    fine, coarse = (make_grid((n, n), (0, 0), (1, 1), True) for n in (65, 17))
    assert (at_points(field_on(fine, np.full((7, 9), 0.1)), fine)[0] == 0.1).all()
    values = np.random.default_rng(0).random((65, 65))
    values[1, 1] = np.nan  # which no coarse point needs
    assert np.array_equal(at_points(field_on(coarse, values), coarse)[0], values[::4, ::4])
    assert field_on(coarse, values).meets(coarse) and not field_on(fine, values[::3]).meets(fine)


def test_nearest():
    grid = make_grid((8,), (0,), (1,), False)
    found, _ = at_points(field_on(grid, np.array([1.0, 5.0, 2.0]), interpolation="nearest"), grid)
    assert found.tolist() == [1, 1, 1, 5, 5, 2, 2, 2]


@pytest.mark.parametrize("on_nodes", [True, False])
@pytest.mark.parametrize("periodic", [(), ("x",)])
def test_conservative_means_keep_integrals(on_nodes, periodic):
    """Finer and coarser data, and data whose cells meet those of the grid nowhere."""
    for count in (3, 37, 200):
        values = np.random.default_rng(count).random((count, count + 1))
        grid = make_grid((24, 15), (0, -1), (1, 1), on_nodes, periodic)
        data = field_on(grid, values, interpolation="conservative")
        found, _ = at_points(data, grid)

        def shares(axis, n, placed):
            halves = placed.on_nodes and not placed.periodic
            weights = np.ones(n)
            weights[[0, -1]] = 0.5 if halves else 1.0
            return weights / weights.sum()

        totals = [
            np.einsum("ij,i,j", field, *map(shares, "yx", field.shape, grid.axes))
            for field in (found, values)
        ]
        assert totals[0] == pytest.approx(totals[1], rel=1e-12)
        scattered = np.broadcast_arrays(*at_points(data, grid)[1].values())
        copies = {name: each.copy() for name, each in zip("yx", scattered, strict=True)}
        assert np.array_equal(data(**copies), found)
    level = field_on(grid, np.full((7, 9), 0.1), interpolation="conservative")
    assert (at_points(level, grid)[0] == 0.1).all()


@pytest.mark.parametrize("how", ["linear", "nearest", "conservative"])
def test_data_of_several_periods_have_the_places_that_they_give(how, tmp_path):
    x = np.linspace(-1.0, 2.0, 31)
    rows = np.column_stack([x, np.arange(31.0)])
    np.savetxt(tmp_path / "a.csv", rows, delimiter=",", header="x,f", comments="")
    start = {"file": str(tmp_path / "a.csv"), "interpolation": how}
    case = {
        "model": {"kind": "transport"}, "grid": {"nodes": [10], "periodic": ["x"]},
        "initial": {"concentration": start}, "time": {"end": 0.01, "step": 0.01},
    }  # fmt: skip
    first = heatsolve.Simulation(case, backend="numpy")["concentration"].values
    assert np.allclose(first, np.arange(10.0, 20.0), rtol=0, atol=1e-9)


def test_periodic_axes_go_round():
    """With and without the end repeated, and with positions of another period."""
    grid = make_grid((24,), (0,), (1,), False, ["x"])
    wave = lambda x: np.cos(2 * np.pi * x)  # noqa: E731
    for start, count in ((0.0, 400), (-0.5, 400), (0.3, 401)):
        line = start + np.linspace(0.0, 1.0, 401)[:count]
        data = field_on(grid, wave(line), [line])
        found, at = at_points(data, grid)
        assert np.abs(found - wave(at["x"])).max() < 5e-5
    unplaced = np.arange(4.0)
    assert at_points(field_on(grid, unplaced), grid)[0][[0, -1]] == pytest.approx([1.25, 1.75])


def test_only_the_points_around_a_block_are_read():
    asked = []
    values = np.random.default_rng(0).random((64, 48))
    whole = make_grid((96, 128), (0, 0), (1, 1), False)
    block = whole.block([(32, 64), (0, 24)], [(1, 1), (0, 1)])
    data = field_on(whole, values)
    load = data.samples.load
    object.__setattr__(data.samples, "load", lambda key: asked.append(key) or load(key))
    found = np.asarray(data(**block.positions()))
    ((rows, columns),) = asked
    assert rows.stop - rows.start <= 20 and columns.stop - columns.start <= 14
    everything = np.asarray(field_on(whole, values)(**whole.positions()))
    assert np.array_equal(found[1:-1, 1:-1], everything[32:66, 1:26])
    asked.clear()
    data(**block.positions())
    at_wall = data(x=np.zeros((1, 1)), y=block.positions()["y"][4:-4])
    assert at_wall.shape == (28, 1) and not asked  # it is in memory
    found[:] = 0.0
    assert np.asarray(data(**block.positions())).any()  # and nobody else's


# ---- runs ----------------------------------------------------------------------------------------

COPPER = """
[grid]
cells = [40, 30]
[model]
conductivity = { file = "k.npy" }
[source]
temperature = { image = "q.png", black = -2, white = 7, interpolation = "nearest" }
[initial]
temperature = { file = "a.csv", interpolation = "conservative" }
[boundary]
left.temperature = { value = { file = "a.npy" } }
right.temperature = { robin = { h = { file = "k.npy" }, ambient = 1 } }
bottom.temperature = { gradient = 0 }
top.temperature = { value = 0 }
"""
CARRIED = """
[grid]
cells = [40, 30]
periodic = ["y"]
[model]
kind = "transport"
velocity = [{ file = "v.h5", field = "u" }, { file = "v.h5", field = "v" }]
[initial]
concentration = { file = "a.npy" }
[[initial.box]]
field = "concentration"
value = { file = "k.npy" }
lower = [0.2, 0.2]
upper = [0.6, 0.5]
[boundary]
left.concentration = { value = 0 }
right.concentration = { gradient = 0 }
[time]
end = 0.05
cfl = 0.5
scheme = "rk2"
"""
PAST = """
[grid]
cells = [40, 30]
periodic = ["y"]
[model]
kind = "flow"
viscosity = 0.01
[initial]
velocity_x = { file = "v.h5", field = "u" }
[[obstacle]]
shape = { image = "body.png", black = 1, white = 0 }
[boundary]
left = { kind = "inflow", velocity_x = { value = 1 } }
right.kind = "outflow"
[time]
end = 0.02
step = 0.002
scheme = "rk3"
[solver]
method = "mgcg"
"""
CASES = {"heat": COPPER, "transport": CARRIED, "flow": PAST}


@pytest.fixture
def folder(noise, tmp_path):
    """The files of these cases; a disc of radius 0.15 in the middle of body.png."""
    rng = np.random.default_rng(5)
    np.save(tmp_path / "k.npy", 1.0 + rng.random((11, 17)))
    y, x = (np.arange(21) + 0.5)[:, None] / 21, (np.arange(16) + 0.5)[None, :] / 16
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file["u"] = (1.0 + 0.3 * np.sin(2 * np.pi * y) + 0.0 * x).astype("f4")
        file["v"] = 0.2 * np.cos(2 * np.pi * y) * np.ones_like(x)
    Image.fromarray(rng.integers(0, 256, (9, 14), np.uint8)).save(tmp_path / "q.png")
    y, x = (np.mgrid[0:90, 0:90] + 0.5) / 90 - 0.5
    grey = np.clip(0.5 + 20.0 * (np.hypot(x, y) - 0.15), 0.0, 1.0)
    Image.fromarray(np.round(255 * grey).astype(np.uint8)).save(tmp_path / "body.png")
    for name, case in CASES.items():
        (tmp_path / f"{name}.toml").write_text(case)
    return tmp_path


def ran(name, folder, backend, **options):
    output = folder / f"{name}-{backend}.h5"
    run(load(folder / f"{name}.toml"), backend, output, **options)
    return read(output)


def assert_same(one, two):
    assert one.names == two.names
    for name in one.names:
        assert np.array_equal(one.fields[name], two.fields[name]), name


@pytest.mark.few(1, among="transport")
@pytest.mark.parametrize("name", CASES)
def test_same_bits_on_every_backend(name, folder, other_backend):
    assert_same(ran(name, folder, "numpy"), ran(name, folder, other_backend))


@mpi
@pytest.mark.parametrize(
    ("ranks", "name"),
    [(3, "heat"), *[
        pytest.param(ranks, name, marks=pytest.mark.thorough)
        for ranks in (2, 4) for name in CASES
    ]],
)  # fmt: skip
def test_same_bits_on_ranks(ranks, name, folder):
    one = ran(name, folder, "numpy")
    many = folder / "many.h5"
    args = "-m", "heatsolve", "run", folder / f"{name}.toml", "--backend", "numpy", "--output", many
    done = launch(ranks, *args)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same(one, read(many))
    assert one.attributes["data"] == read(many).attributes["data"]
    if name == "heat":  # in parts, which are data as well
        given = '{ file = "many.h5", field = "temperature" }'
        found = values_of(given, folder, "cells = [40, 30]")
        assert np.array_equal(found, one.fields["temperature"])


def test_a_run_and_a_check_say_what_they_read(folder):
    said = []
    report = Report(quiet=True)
    report.line = said.append
    ran("heat", folder, "numpy", report=report)
    text = "\n".join(said)
    assert "model.conductivity: k.npy, 17 x 11 points, interpolated linearly" in text
    assert "source.temperature: q.png, 14 x 9 points, each point takes the nearest one" in text
    assert "boundary.right.temperature.robin.h: k.npy" in text
    assert "initial.temperature: a.csv, 32 x 24 points, averaged over cells" in text
    lines = "\n".join(preview(load(folder / "heat.toml")))
    assert "k = k.npy, q = q.png" in lines
    ran("flow", folder, "numpy", report=report)
    assert "the velocities are projected: the march begins without divergence" in said


@pytest.mark.parametrize(("form", "how"), [("flux", "linearly"), ("advective", "point by point")])
def test_a_velocity_from_data_that_diverges_is_told(form, how, tmp_path, capsys):
    """A vortex in a box, at the centres of cells: between them it is interpolated to faces."""
    centres = (np.arange(24) + 0.5) / 24
    x, y = np.meshgrid(np.pi * centres, np.pi * centres)
    np.save(tmp_path / "u.npy", np.sin(x) * np.cos(y))
    np.save(tmp_path / "v.npy", -np.cos(x) * np.sin(y))
    closed = {"concentration": {"gradient": 0}}
    velocity = [{"file": str(tmp_path / name)} for name in ("u.npy", "v.npy")]
    case = {
        "model": {"kind": "transport", "velocity": velocity, "form": form},
        "grid": {"cells": [24, 24]},
        "initial": {"concentration": 1},
        "boundary": dict.fromkeys(("left", "right", "bottom", "top"), closed),
        "time": {"end": 0.1, "cfl": 0.5},
    }
    result = heatsolve.run(case, backend="numpy", quiet=False)
    said = capsys.readouterr()
    assert f"24 x 24 points, {how}" in said.out.replace("interpolated ", "")
    assert ("div v is up to 1.54 /s" in said.err) == (form == "flux")
    spread = np.ptp(np.asarray(result["concentration"][-1]))
    assert spread > 0.1 if form == "flux" else spread < 1e-14


def test_a_users_model_reads_data(folder, monkeypatch):
    monkeypatch.setattr("heatsolve.case.load.REGISTERED", {})

    @heatsolve.model("decay", fields=("u",), parameters={"rate": 1.0})
    def decay(at, u, rate, *spacings):
        return -rate * u[at]

    case = parse("""
        [model]
        kind = "decay"
        [grid]
        cells = [32, 24]
        periodic = ["x", "y"]
        [initial]
        u = { file = "a.npy" }
        [time]
        end = 0.1
        step = 0.1
        """, "case", folder=folder)  # fmt: skip
    run(case, "numpy", folder / "decay.h5")
    fields, values = read(folder / "decay.h5").fields, np.load(folder / "a.npy")
    assert np.array_equal(fields["u"][0], values)
    assert np.allclose(fields["u"][1], 0.9 * values, rtol=1e-15)


def test_a_drawing_is_an_obstacle(folder):
    """The surface lies half-way from black to white: a disc with a soft edge is a circle."""
    line = 'shape = { image = "body.png", black = 1, white = 0 }'
    circle = "shape = 'circle'\ncenter = [0.5, 0.5]\nradius = 0.15"
    assert line in PAST
    found = []
    for given in (PAST, PAST.replace(line, circle)):
        case = parse(given, "case", folder=folder)
        files.connect(case, grid_of(case))
        found.append(Obstacles(case, grid_of(case)))
    drawn, round_ = found
    assert np.array_equal(drawn.owner, round_.owner) and drawn.owner.sum() > 80
    for axis, side in ((0, 0), (0, 1), (1, 0), (1, 1)):
        one, two = (each.surface_cuts(axis, side) for each in found)
        assert np.array_equal(one.cut, two.cut) and one.cut.any()
        assert np.abs(one.share - two.share).max() < 0.02


def test_rows_of_an_image_run_from_the_top(tmp_path):
    picture = np.zeros((24, 32), np.uint8)
    picture[0, :] = 255
    picture[5, 3] = 51
    Image.fromarray(picture).save(tmp_path / "a.png")
    found = values_of('{ image = "a.png", black = 1, white = "10*5 + 1" }', tmp_path)
    assert (found[-1] == 51.0).all() and (found[:-1, 4:] == 1.0).all()
    assert found[18, 3] == 11.0
    deep = (np.arange(24 * 32).reshape(24, 32) * 85).astype(np.uint16)
    deep[0, 0] = 65535
    Image.fromarray(deep).save(tmp_path / "deep.png")
    assert np.allclose(values_of('{ image = "deep.png" }', tmp_path), deep[::-1] / 65535)


def test_an_earlier_result_of_another_size_is_a_start(folder):
    """The fields that have no key of their own; a flow begins without divergence."""
    coarse = ran("flow", folder, "numpy")
    shutil.copy(folder / "flow-numpy.h5", folder / "coarse.h5")
    start = PAST.replace('velocity_x = { file = "v.h5", field = "u" }', 'file = "coarse.h5"')
    (folder / "flow.toml").write_text(start.replace("[40, 30]", "[56, 44]"))
    fine = ran("flow", folder, "numpy")
    first = fine.fields["velocity_x"][0]
    x = (np.arange(56) + 0.5) / 56
    last = coarse.fields["velocity_x"][-1].mean(axis=0)
    near = np.interp(x, (np.arange(40) + 0.5) / 40, last)
    assert np.abs(first.mean(axis=0) - near).max() < 0.05
    assert fine.history["divergence"][0] < 1e-7
    keys = [line.split(" = ")[0] for line in fine.attributes["data"].split(", ")]
    assert {"initial.velocity_x", "initial.velocity_y", "obstacle.0.shape"} <= set(keys)
    assert "initial.velocity_z" not in keys


def test_the_parts_of_a_result_are_no_fields(folder):
    """A file of many processes says how large their parts are."""
    path = folder / "many.h5"
    run(load("hot-plate", ["grid.nodes=[9, 9]"]), "numpy", path)
    part = folder / "many.parts" / "0123abcd-0000-0000.h5"
    part.parent.mkdir()
    shutil.copy(path, part)
    with h5py.File(path, "r+") as file:
        file["parts/name"], file["parts/size"] = [f"many.parts/{part.name}"], [part.stat().st_size]
    again = load("hot-plate", ["grid.nodes=[9, 9]", f"initial.temperature={{file='{path}'}}"])
    assert run(again, "numpy", folder / "again.h5").outcome.count < 20


def test_a_start_of_which_nothing_is_taken_is_told(folder):
    case = text("{ file = 'a.npy' }\nfile = 'none.h5'")
    with pytest.raises(CaseError, match=r"initial.file: has no effect: every field has a key of"):
        run(parse(case, "case", folder=folder), "numpy", folder / "o.h5", strict=True)


def test_data_stay_during_a_march(folder):
    """Of a simulation other values may be set, and its data are those of the run."""
    case = load(folder / "transport.toml")
    with heatsolve.Simulation(case, backend="numpy") as sim:
        sim.step(2)
        sim.set("source.concentration", "x")
        sim.step(2)
        with pytest.raises(InputError, match="data cannot be set during a run"):
            sim.set("source.concentration", {"file": "a.npy"})
    assert sim.result.attributes["data"].startswith("model.velocity.0 = ")


def test_a_run_does_not_replace_its_data(folder):
    ran("heat", folder, "numpy")
    again = load(folder / "heat.toml", ['initial={file="heat-numpy.h5"}'])
    with pytest.raises(InputError, match=r"the run would replace .*: name another --output"):
        run(again, "numpy", folder / "heat-numpy.h5")
    run(again, "numpy", folder / "other.h5")
    Image.new("L", (8, 8)).save(folder / "film.gif")
    given = ["initial.concentration={image='film.gif'}", "output.film=true", "output.every=1"]
    filmed = load(folder / "transport.toml", given)
    with pytest.raises(InputError, match=r"the run would replace .*film.gif: name another"):
        run(filmed, "numpy", folder / "film.h5")


def heated(left, folder, **options):
    case = text("0", "cells = [16, 12]").replace("left.temperature = { value = 0 }", left)
    run(parse(case, "case", folder=folder), "numpy", folder / "wall.h5", **options)
    return read(folder / "wall.h5").fields["temperature"][-1]


def test_a_wall_has_data_along_itself_and_in_time(tmp_path):
    """Given without the axis across the wall; linear tables are expressions that are linear."""
    y = (np.arange(12) + 0.5) / 12
    np.save(tmp_path / "y.npy", 1.0 + y)
    (tmp_path / "y.csv").write_text("y T\n0 1\n1 2\n")
    (tmp_path / "t.csv").write_text("t,T\n0,0\n5e-4,1\n2e-3,4\n")
    (tmp_path / "ty.csv").write_text("t,y,T\n0,0,0\n1,0,0\n0,1,0\n1,1,1e3\n")
    times = {"time": [0.0, 1.0], "x": [0.0, 1.0], "y": [0.0, 1.0]}
    array = xarray.DataArray(np.zeros((2, 2, 2)), times, ("time", "x", "y"), "T")
    array[1, :, 1] = 1e3
    array.to_netcdf(tmp_path / "ty.nc", engine="h5netcdf")
    for given, same in {
        '{ file = "y.npy" }': "'1 + y'",
        '{ file = "y.csv" }': "'1 + y'",
        '{ file = "t.csv" }': "'2000*t'",
        '{ file = "ty.csv" }': "'1000*t*y'",
        '{ file = "ty.nc", time = "t" }': "'1000*t*y'",
    }.items():
        one = heated(f"left.temperature.value = {given}", tmp_path)
        two = heated(f"left.temperature.value = {same}", tmp_path)
        assert np.allclose(one, two, rtol=0, atol=1e-14) and one.max() > 1e-3, given
    (tmp_path / "y.csv").write_text("# measured\n1 2 3 4\n")
    assert heated('left.temperature.value = { file = "y.csv" }', tmp_path).max() > 1.0


def test_the_columns_may_be_named_below_a_title(tmp_path):
    """As `numpy.savetxt` writes a header of several lines."""
    y, x = np.mgrid[0:4, 0:4] / 3.0
    table = np.column_stack([x.ravel(), y.ravel(), (x + 2.0 * y).ravel()])
    plain = {"model": {"steady": False}, "grid": {"nodes": [4, 4]},
             "time": {"end": 1.0, "step": 0.1, "scheme": "backward-euler"},
             "boundary": {s: {"temperature": {"gradient": 0}} for s in SIDES[:4]}}  # fmt: skip
    for header in ("x,y,T", "made by me\nx,y,T", "x,y,T\nmade by me, at t = 3", "a, b\n\nx,y,T"):
        np.savetxt(tmp_path / "c.csv", table, delimiter=",", header=header)
        case = plain | {"initial": {"temperature": {"file": str(tmp_path / "c.csv")}}}
        start = heatsolve.Simulation(case, backend="numpy")["temperature"].values
        assert np.allclose(start, x + 2.0 * y, rtol=0, atol=1e-14), header


def test_a_source_varies_in_time(tmp_path):
    times = {"time": [0.0, 0.001], "y": [0.0, 1.0], "x": [0.0, 1.0]}
    ramp = xarray.DataArray(np.zeros((2, 2, 2)), times, ("time", "y", "x"))
    ramp[1] = 2.0
    source = {"temperature": {"array": ramp, "time": "t"}}
    case = {
        "model": {"steady": False},
        "grid": {"cells": [4, 4], "periodic": ["x", "y"]},
        "source": source,
        "time": {"end": 0.001, "step": 1e-4},
    }
    result = heatsolve.run(case, backend="numpy", output=tmp_path / "o.h5")
    assert np.allclose(result["temperature"][-1], 0.9e-3, rtol=1e-12)  # of explicit Euler
    again = heatsolve.run(case, backend="numba", output=tmp_path / "p.h5")
    assert np.array_equal(again["temperature"], result["temperature"])
    del case["source"], case["time"]
    case["model"] = {"conductivity": {"array": ramp + 1.0, "time": "t"}}
    case["initial"] = {"temperature": 1}
    with pytest.raises(InputError, match="varies in time, and a steady case has no time"):
        heatsolve.run(case, output=tmp_path / "o.h5")
    case["time"] = {"end": 0.001, "step": 1e-4}
    case["model"]["steady"] = False
    with pytest.raises(InputError, match="varies in time, and the key may not"):
        heatsolve.run(case, output=tmp_path / "o.h5")
    case["model"] = {"steady": False}
    case["source"] = source
    case["time"]["end"] = 0.002
    with pytest.raises(InputError, match=r"covers t = 0 to 0.001 only, the case 0 to 0.002"):
        heatsolve.run(case, output=tmp_path / "o.h5")


# ---- solids --------------------------------------------------------------------------------------

BODY = """
[grid]
cells = [24, 20, 16]
[model]
conductivity = {{ solid = "{solid}", inside = 10, outside = 2, {more} }}
[boundary]
left.temperature = {{ value = 1 }}
right.temperature = {{ value = 0 }}
bottom.temperature = {{ gradient = 0 }}
top.temperature = {{ gradient = 0 }}
back.temperature = {{ gradient = 0 }}
front.temperature = {{ gradient = 0 }}
"""
PUSHED = """
[grid]
cells = [12, 12, 12]
[model]
kind = "flow"
viscosity = 0.1
[source]
velocity_x = "y"
[[obstacle]]
shape = {shape}
[time]
end = 0.02
step = 0.005
[boundary]
"""


@pytest.fixture
def trimesh():
    return pytest.importorskip("trimesh", reason="solids need heatsolve[solid]")


def test_winding_numbers_of_solids(trimesh):
    """Of a cube at all its corners, edges and faces; of a sphere in a sphere, against r."""
    cube = Surface(np.asarray(trimesh.creation.box((2, 2, 2)).triangles))
    line = np.linspace(-2.0, 2.0, 17)
    z, y = np.meshgrid(line, line, indexing="ij")
    found = cube.along(line, y, z).reshape(17, 17, 17)
    inside = (line >= -1.0) & (line < 1.0)
    assert np.array_equal(found, inside[:, None, None] & inside[:, None] & inside)
    outer, inner = trimesh.creation.icosphere(4), trimesh.creation.icosphere(4, radius=0.5)
    both = Surface(np.concatenate([outer.triangles, inner.triangles]))
    line = np.linspace(-1.1, 1.1, 40)
    z, y, x = np.meshgrid(line, line, line, indexing="ij")
    found = both.along(line, y[:, :, 0], z[:, :, 0]).reshape(z.shape)
    r = np.sqrt(x * x + y * y + z * z)
    sure = (np.abs(r - 1.0) > 0.005) & (np.abs(r - 0.5) > 0.005)
    exact = (r < 1.0).astype(int) + (r < 0.5)
    assert np.array_equal(found[sure], exact[sure])
    assert np.array_equal(both.at(x.ravel(), y.ravel(), z.ravel()), found.ravel())
    turned = Surface(both.corners[:, ::-1])
    assert np.array_equal(turned.along(line, y[:, :, 0], z[:, :, 0]), -found.reshape(-1, 40))


def test_a_solid_is_a_material_and_an_obstacle(trimesh, tmp_path):
    trimesh.creation.icosphere(4, radius=250.0).export(tmp_path / "ball.stl")
    more = "scale = 1e-3, shift = [0.5, '1/2', 0.5]"
    case = parse(BODY.format(solid="ball.stl", more=more), "case", folder=tmp_path)
    said = []
    report = Report(quiet=True)
    report.line = said.append
    run(case, "numpy", tmp_path / "ball.h5", report=report)
    begin = "model.conductivity: ball.stl, 5120 triangles, x = 0.25 to 0.75, y = 0.25 to 0.75"
    assert any(line.startswith(begin) for line in said)
    at = grid_of(case).positions()
    ball = sum((at[axis] - 0.5) ** 2 for axis in "xyz") < 0.25**2
    found = np.asarray(case.model.conductivity(**at))
    assert np.mean(found != np.where(ball, 10.0, 2.0)) < 2e-3 and (found == 10.0).sum() > 300
    walls = "\n".join(f"{side}.kind = 'no-slip'" for side in SIDES)
    circle = "'circle'\ncenter = [0.5, 0.5, 0.5]\nradius = 0.25"
    results = []
    for shape in (f'{{ solid = "ball.stl", {more} }}', circle):
        pushed = PUSHED.format(shape=shape) + walls
        run(parse(pushed, "case", folder=tmp_path), "numpy", tmp_path / "flow.h5")
        results.append(read(tmp_path / "flow.h5").fields["velocity_x"][-1])
    assert np.abs(results[0] - results[1]).max() < 0.02 * np.abs(results[1]).max()


@mpi
@pytest.mark.thorough
def test_a_solid_has_the_same_bits_on_ranks(trimesh, tmp_path):
    trimesh.creation.torus(0.3, 0.12).export(tmp_path / "ring.ply")
    given = BODY.format(solid="ring.ply", more="shift = [0.5, 0.5, 0.5]")
    (tmp_path / "heat.toml").write_text(given)
    one = ran("heat", tmp_path, "numpy")
    args = "-m", "heatsolve", "run", tmp_path / "heat.toml", "--backend", "numpy", "--output"
    done = launch(4, *args, tmp_path / "many.h5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same(one, read(tmp_path / "many.h5"))


def test_mistaken_solids(trimesh, tmp_path):
    mesh = trimesh.creation.icosphere(1, radius=0.3)
    trimesh.Trimesh(mesh.vertices, mesh.faces[1:]).export(tmp_path / "hole.stl")
    mesh.export(tmp_path / "ball.stl")
    (tmp_path / "words.stl").write_text("no solid\n")
    for name, sentence in {
        "hole.stl": "has a surface with holes or with triangles the wrong way round: repair it",
        "words.stl": "is no solid that trimesh can read|has no triangles",
        "none.stl": "there is no file",
    }.items():
        case = parse(BODY.format(solid=name, more="scale = 1"), "case", folder=tmp_path)
        with pytest.raises(InputError, match=rf"model.conductivity: .*({sentence})"):
            run(case, "numpy", tmp_path / "o.h5")
    with pytest.raises(InputError, match="is a solid, for cases with three axes"):
        run(parse(text('{ solid = "ball.stl" }'), "case", folder=tmp_path), "numpy")
    with pytest.raises(CaseError, match=r"initial.temperature.shift: must be a list of 3 numbers"):
        parse(text('{ solid = "ball.stl", shift = [1, 2] }'), "case")


# ---- restarts ------------------------------------------------------------------------------------


def test_a_restart_compares_the_data(folder):
    name = folder / "transport.toml"
    steps = CARRIED.replace("cfl = 0.5", "step = 0.002")
    name.write_text(steps + "[checkpoint]\nevery = 3\n")
    whole = ran("transport", folder, "numpy")
    with pytest.raises(Interrupted):
        run(load(name), "numpy", folder / "part.h5", request=Impatient(7))
    restart = Start(restart=True)
    kept = (folder / "k.npy").read_bytes()
    values = np.load(folder / "k.npy")
    values[3, 4] = np.nextafter(values[3, 4], 2.0)
    np.save(folder / "k.npy", values)
    sentence = (
        r"initial.box.0.value: the data are not those of the checkpoint, their digest was \w{16} "
        r"and is \w{16}; restore the file \(--overwrite starts anew\)"
    )
    with pytest.raises(InputError, match=sentence):
        run(load(name), "numpy", folder / "part.h5", start=restart)
    # The same values elsewhere, and of another kind, are the same data.
    (folder / "moved.npy").write_bytes(kept)
    moved = load(name, ['initial.box.0.value={file="moved.npy"}'])
    run(moved, "numpy", folder / "part.h5", start=restart)
    assert_same(whole, read(folder / "part.h5"))
    nearest = load(name, ['model.velocity=[{file="a.npy"}, "x"]'])
    with pytest.raises(InputError, match=r"model.velocity"):
        run(nearest, "numpy", folder / "part.h5", start=restart)


def test_a_digest_depends_on_every_value_and_position():
    grid = make_grid((600, 2000), (0, 0), (1, 1), False)
    values = np.random.default_rng(0).random((2000, 600))

    def digest(data):
        files.make_digests(Holder(data), Ranks())
        return data.digest

    first = digest(field_on(grid, values))
    assert len(pieces(field_on(grid, values).samples)) > 1
    assert digest(field_on(grid, values.copy())) == first
    for place in ((0, 0), (1999, 599), (1000, 17)):
        changed = values.copy()
        changed[place] = np.nextafter(changed[place], 2.0)
        assert digest(field_on(grid, changed)) != first
    assert digest(field_on(grid, values[::-1])) != first
    lines = [axis.coordinates[1:-1] for axis in grid.axes]
    assert digest(field_on(grid, values, lines)) != first


class Holder:
    """In place of a case: one field of data."""

    def __init__(self, data):
        self._data = data

    def data(self):
        yield "here", self._data


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_large_blocks_are_read_once_and_not_kept(dtype, monkeypatch):
    monkeypatch.setattr("heatsolve.stencil.data.KEPT", 1000)
    monkeypatch.setattr("heatsolve.stencil.data.CHUNK", 5 * 24 * 8)
    values = np.random.default_rng(0).random((30, 24)).astype(dtype)
    grid = make_grid((24, 30), (0, 0), (1, 1), False)
    small = field_on(grid, values)
    data, asked = field_on(grid, values), []
    load = data.samples.load
    object.__setattr__(data.samples, "load", lambda key: asked.append(key) or load(key))
    found = np.asarray(data(**grid.positions()))
    assert np.array_equal(found, np.pad(values.astype(float), 1, "edge"))
    for each in (small, data):
        files.make_digests(Holder(each), Ranks())
    assert data.digest == small.digest
    rows = [key[0] for key in asked]
    assert len(rows) > 2 and sum(each.stop - each.start for each in rows) == 30
    assert data._kept is None
    block = grid.block([(4, 20), (0, 24)], [(1, 1), (0, 0)])
    assert np.array_equal(np.asarray(data(**block.positions())), found[3:23])


# ---- Python --------------------------------------------------------------------------------------


def test_arrays_from_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = np.random.default_rng(3).random((24, 32))
    x, y = (np.arange(32) + 0.5) / 32, (np.arange(24) + 0.5) / 24
    array = xarray.DataArray(values[::-1].T, {"x": x, "y": y[::-1]}, ("x", "y"))
    digests = []
    for given in (values, array, values.astype("f4")):
        case = {
            "grid": {"cells": [32, 24], "periodic": ["x", "y"]},
            "model": {"kind": "transport", "velocity": [1.0, np.ones((24, 32))]},
            "initial": {"concentration": given},
            "time": {"end": 0.01, "cfl": 0.5},
        }
        result = heatsolve.run(case, backend="numpy")
        exact = values if given is array else given
        assert np.array_equal(result["concentration"][0], exact)
        digests.append(result.attributes["data"])
    assert len(set(digests)) == 3
    text = result.attributes["case"]
    with pytest.raises(InputError, match=r"was given from Python, and is not in the case's text"):
        run(parse(text, "case"), "numpy")
    probes = {"output.probes": np.array([[0.5, 0.5], [0.2, 0.2]])}
    assert heatsolve.load(case | {"initial": {}}, probes).output.probes == ((0.5, 0.5), (0.2, 0.2))
    loaded = heatsolve.load(case, {"initial.concentration": 2 * values})
    values[:] = 0.0  # the case has a copy
    files.connect(loaded, grid_of(loaded))
    assert loaded.initial.concentration(x=x[3], y=y[2]) > 0.0


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "sentence"), [
    ('{ file = "a.h5", image = "b.png" }', "must have only one of file, image"),
    ('{ field = "T" }', "an expression, not a table without file, image or solid"),
    ('{ file = 3 }', "initial.temperature.file: must be a text, not 3"),
    ('{ file = "" }', "initial.temperature.file: must be a text"),
    ('{ file = "a.h5", feld = "T" }', 'temperature.feld: unknown key, did you mean "field"'),
    ('{ file = "a.h5", black = 1 }', "initial.temperature.black: unknown key, not with file"),
    ('{ image = "a.png", black = "bright" }', 'initial.temperature.black: unknown name "bright"'),
    ('{ file = "a.h5", interpolation = "cubic" }', '"nearest" or "conservative", not "cubic"'),
    ('[1, 2]', "must be a number or an expression, not a list"),
])  # fmt: skip
def test_mistaken_tables(given, sentence):
    with pytest.raises(CaseError, match=sentence):
        parse(text(given), "case")


@pytest.mark.parametrize(("given", "sentence"), [
    ('{ file = "none.h5" }', "there is no file .*none.h5"),
    ('{ file = "a.h5", field = "U" }', 'a.h5 has no field "U", only inside/T'),
    ('{ file = "two.h5" }', "two.h5 has several fields: give field, one of S, T"),
    ('{ file = "cube.npy" }', "has 4 dimensions .2 x 2 x 2 x 2., the case has 2 axes"),
    ('{ file = "a.npy", field = "T" }', "holds one array: leave field out"),
    ('{ file = "a.h5", time = 1 }', "there is no axis of times with values: leave time out"),
    ('{ file = "short.csv" }', "short.csv covers x = 0 to 0.4 only, the case 0 to 1"),
    ('{ file = "holes.csv" }', "has 3 points, which are no grid of 2 x 2"),
    ('{ file = "words.csv" }', 'words.csv, line 1, column 1: "a" is no number .a header needs'),
    ('{ file = "words.txt2" }', "is none of HDF5, netCDF-4, NPY .* and CSV"),
    ('{ file = "old.nc" }', "is netCDF-3: convert it"),
    ('{ file = "objects.npy" }', "is no NPY file of numbers"),
    ('{ image = "words.csv" }', "is no image that can be read"),
    ('{ array = "0123" }', "was given from Python, and is not in the case's text"),
])  # fmt: skip
def test_mistaken_files(given, sentence, folder):
    (folder / "words.csv").write_text("a,b\n1\n")
    (folder / "words.txt2").write_text("a,b\n1\n")
    (folder / "old.nc").write_bytes(b"CDF\x01" + bytes(40))
    (folder / "holes.csv").write_text("x,y,T\n0,0,1\n1,0,2\n0,1,3\n")
    (folder / "short.csv").write_text("x,y,T\n0.1,0,1\n0.1,1,2\n0.3,0,3\n0.3,1,3\n")
    np.save(folder / "cube.npy", np.ones((2, 2, 2, 2)))
    np.save(folder / "objects.npy", np.array([{}, 1], object), allow_pickle=True)
    with h5py.File(folder / "two.h5", "w") as file:
        file["S"], file["T"] = np.ones((2, 2)), np.ones((2, 2))
    case = parse(text(given), "case.toml", folder=folder)
    with pytest.raises(InputError, match=rf"case.toml:8: initial.temperature: .*{sentence}"):
        run(case, "numpy", folder / "o.h5")
    with pytest.raises(InputError, match=sentence):
        list(preview(case))


def started(given, **more):
    """The first frame of a plate of 6 x 8 cells that starts from this."""
    case = {
        "grid": {"cells": [8, 6], "periodic": ["x", "y"]},
        "model": {"steady": False},
        "initial": {"temperature": given},
        "time": {"end": 0.004, "step": 0.002},
    }
    result = heatsolve.run(case | more, backend="numpy", output=False)
    return np.asarray(result["temperature"])


def named(shape, *dims, **coords):
    return xarray.DataArray(np.arange(np.prod(shape, dtype=float)).reshape(shape), coords, dims)


@pytest.mark.parametrize(("given", "sentence"), [
    (named((4, 6, 8), "z", "y", "x"), "has an axis z, the case has x and y: cut a plane out of it"),
    (named((6, 8), "z", "x"), "has an axis z, the case has x and y: cut a plane out of it"),
    (named((2, 6, 8), "member", "y", "x"), r"has 3 dimensions \(2 x 6 x 8\), the case has 2 axes"),
    (named((3,), "time", time=[0.0, 1.0, 2.0]), 'varies in time alone: give time = "t"'),
    (np.ones((4, 6, 8)), "the case has 2 axes: take one frame of it, or one layer"),
    (np.ones((0, 8)), r"is empty \(0 x 8\)"),
    (np.ma.masked_array(np.ones((6, 8)), np.eye(6, 8) > 0), "has masked values: fill them first"),
    ({"array": named((2, 6, 8), "time", "y", "x", time=np.array([0, 1], "M8[s]").astype("M8[ns]")),
      "time": 0.5}, "its times are dates: give numbers, in the case's unit of time"),
    ({"array": named((1,), "time", time=np.array([0], "m8[ns]")), "time": "t"},
      "its times are durations: give numbers, in the case's unit of time"),
    (named((2, 2), "y", "x", y=[0.25, 0.75], x=[0.1, 0.2]), "the array covers x = "),
])  # fmt: skip
def test_mistaken_arrays(given, sentence):
    with pytest.raises(CaseError, match=rf"initial.temperature: .*{sentence}"):
        started(given)


@pytest.mark.parametrize(("units", "time", "fine"), [
    ("days since 2000-01-01", "'t'", False),
    ("hours since 2000-01-01 12:00", "1.0", False),
    ("seconds since 2000-01-01", "1.0", True),
    ("s", "2.0", True),
])  # fmt: skip
def test_times_that_are_dates_are_refused(units, time, fine, tmp_path):
    """A day is 86400 s, and the case's unit of time may be another one."""
    values = named((3, 2, 2), "time", "y", "x", time=[0.0, 1.0, 2.0], y=[0.0, 1.0], x=[0.0, 1.0])
    values["time"].attrs["units"] = units
    values.rename("T").to_netcdf(tmp_path / "dates.nc", engine="h5netcdf")
    given = f"{{file='dates.nc', time={time}}}"
    if fine:
        assert values_of(given, tmp_path, t=1.0).min() >= 4
        return
    with pytest.raises(InputError, match=f"temperature: its times are {units}: give them in the"):
        values_of(given, tmp_path, t=1.0)
    with pytest.raises(CaseError, match=f"temperature: .*its times are {units}: give them in the"):
        started({"array": values, "time": 1.0})


def test_a_table_with_two_columns_of_one_name_is_refused(tmp_path):
    (tmp_path / "twice.csv").write_text("x,y,T,T\n0,0,1,2\n1,0,1,2\n0,1,1,2\n1,1,1,2\n")
    with pytest.raises(InputError, match=r"twice.csv has two columns T"):
        values_of("{file='twice.csv', field='T'}", tmp_path)


def test_a_file_with_another_axis_is_refused(tmp_path):
    """Its z is no time; a layer of one point is a plane."""
    cube = named((4, 6, 8), "z", "y", "x")
    cube.to_netcdf(tmp_path / "cube.nc", engine="h5netcdf")
    cube[3:].to_netcdf(tmp_path / "plane.nc", engine="h5netcdf")
    (tmp_path / "cube.csv").write_text("x,y,z,T\n0,0,0,1\n0,0,1,2\n")
    np.save(tmp_path / "cube.npy", cube.values)
    for name, sentence in {
        "cube.nc": "cube.nc has an axis z, the case has x and y: cut a plane out of it",
        "cube.csv": "cube.csv has an axis z, the case has x and y: cut a plane out of it",
        "cube.npy": "has 3 dimensions .4 x 6 x 8., the case has 2 axes: take one frame of it",
    }.items():
        with pytest.raises(InputError, match=sentence):
            values_of(f'{{ file = "{name}" }}', tmp_path)
    found = values_of('{ file = "plane.nc" }', tmp_path, "cells = [8, 6]")
    assert np.array_equal(found, cube[3])


def test_names_of_axes_come_before_their_order():
    """An axis without a name of x, y, z takes the axis that is left."""
    array = named((8, 6), "x", "r")
    assert np.array_equal(started(array)[0], array.T)
    assert np.array_equal(started(named((6, 8), "s", "x"))[0], named((6, 8), "s", "x"))


def test_arrays_in_time_alone_and_with_one_last_frame():
    """A table of times; and arrays that differ in their first frames only are two arrays."""
    ramp = named((3,), "time", time=[0.0, 0.002, 1.0]).clip(0.0, 1.0)
    found = started(0.0, source={"temperature": {"array": ramp, "time": "t"}})
    assert np.allclose(found[-1], 0.002, rtol=1e-12)  # of explicit Euler
    first = named((2, 6, 8), "time", "y", "x", time=[0.0, 1.0])
    second = first.copy()
    second[0] += 1.0
    case = {"array": first, "time": 0.0}, {"array": second, "time": 0.0}
    found = started(case[0], source={"temperature": case[1]})
    assert np.array_equal(found[0], first[0])
    assert np.isclose(found[1].mean() - found[0].mean(), 0.004 * second[0].mean())
    assert (started(xarray.DataArray(3.0))[0] == 3.0).all()


@pytest.mark.parametrize(("table", "sentence"), [
    (b"1,,3\n2,2,3\n", "a.csv, line 1, column 2: is empty"),
    (b"1,2,3\n\n# more\n2,2,\n3,3,3\n", "a.csv, line 4, column 3: is empty"),
    (b"1,2,3\n2,2\n", "a.csv, line 2: has 2 cells, the first row has 3"),
    (b"x,y,T\n0,0,1\ninf,0,1\n", "a.csv, line 3: x is inf, positions must be finite"),
    (b"x,y,T\n0,0,1\n0,nan,1\n", "a.csv, line 3: y is nan, positions must be finite"),
    (b'1,"2\n3,4\n', "a.csv has a quotation mark without its other"),
    (b"1 " + b"2" * 140000, "a.csv, line 1: field larger than field limit"),
    (b"x,y,T\n", "a.csv has a header and no rows"),
    (b"X,Y,T\n0,0,1\n", '"X,Y,T" is no header .a header needs columns x, y, z or t, in lower case'),
    (b"# X Y T\n0 0 1\n", 'line 1: "# X Y T" is no header .a header needs columns x, y, z or t'),
    (b"time,T\n0,1\n", '"time,T" is no header .a header needs columns x, y, z or t, in lower'),
    (b"T,S\n0,1\n", '"T" is no number .a header needs columns x, y, z or t, in lower case'),
    (b"x;y;T\n0;0;1,5\n", 'a.csv, line 2, column 3: "1,5" is no number: write 1.5, not 1,5'),
    (b"1,5;2\n", 'a.csv, line 1, column 1: "1,5" is no number: write 1.5, not 1,5'),
    ("x,T\u00b0\n0,1\n".encode("latin-1"), "a.csv is no text in UTF-8: save it as UTF-8"),
    ("1,2\n".encode("utf-16"), "a.csv is no text in UTF-8: save it as UTF-8"),
])  # fmt: skip
def test_mistaken_tables_of_numbers(table, sentence, tmp_path):
    (tmp_path / "a.csv").write_bytes(table)
    with pytest.raises(InputError, match=rf"initial.temperature: .*{sentence}"):
        values_of('{ file = "a.csv" }', tmp_path)


def test_a_last_comma_is_no_cell(tmp_path):
    (tmp_path / "a.csv").write_text("1,2,\n3,4,\n")
    assert values_of('{ file = "a.csv" }', tmp_path, "cells = [2, 2]").tolist() == [[1, 2], [3, 4]]
    (tmp_path / "a.csv").write_text("x,y,T,\n0.5,0.5,7,\n")
    assert (values_of('{ file = "a.csv" }', tmp_path) == 7.0).all()


def test_folders_and_starts_without_names(tmp_path):
    (tmp_path / "folder.h5").mkdir()
    with pytest.raises(InputError, match=r"folder.h5 is a folder: name a file in it"):
        values_of('{ file = "folder.h5" }', tmp_path)
    np.save(tmp_path / "a.npy", np.ones((24, 32)))
    case = text().replace("temperature = 0", 'file = "a.npy"', 1)
    with pytest.raises(InputError, match=r"\(initial.file needs a file with named fields\)"):
        run(parse(case, "case", folder=tmp_path), "numpy", tmp_path / "o.h5")


def test_no_array_is_set_during_a_run(folder):
    array = np.ones((30, 40))
    with heatsolve.Simulation(load(folder / "transport.toml"), backend="numpy") as sim:
        for given in (array, {"array": array}, {"file": "a.npy"}):
            with pytest.raises(InputError) as error:
                sim.set("source.concentration", given)
            assert str(error.value) == "set: source.concentration: data cannot be set during a run"


@pytest.mark.parametrize("kind", ["int32", "float32"])
def test_images_of_32_bits_are_refused(kind, tmp_path):
    Image.fromarray(np.ones((6, 8), kind)).save(tmp_path / "a.tif")
    with pytest.raises(InputError, match=r"a.tif is an image of 32-bit numbers, .*: save it with"):
        values_of('{ image = "a.tif" }', tmp_path)


def test_transparency_of_16_bits_is_white(tmp_path):
    deep = np.zeros((6, 8), np.uint16)
    deep[0] = 60000
    Image.fromarray(deep).save(tmp_path / "a.png", transparency=0)
    found = values_of('{ image = "a.png" }', tmp_path, "cells = [8, 6]")[::-1]
    assert np.array_equal(found[0], deep[0] / 65535) and (found[1:] == 1.0).all()


def test_a_damaged_file_is_a_failure_of_files(folder):
    (folder / "a.h5").write_bytes((folder / "a.h5").read_bytes()[:900])
    with pytest.raises(FileFailure, match=r"a.h5"):
        run(parse(text(KINDS["a.h5"]), "case", folder=folder), "numpy", folder / "o.h5")


def test_paths_are_relative_to_the_case(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    result = heatsolve.run(folder / "heat.toml", backend="numpy", output=folder / "here.h5")
    assert "initial.temperature" in result.attributes["data"]
