"""The field file: what viewers open, what a failure leaves behind, what `info` prints."""

import errno
import os
import subprocess
import sys
import threading
from xml.etree import ElementTree

import h5py
import numpy as np
import pytest
import xarray

from heatsolve.case.load import load, parse, shipped
from heatsolve.errors import FileFailure, InputError
from heatsolve.io import reader, writer
from heatsolve.io.disk import RESERVED_FROM, Disk
from heatsolve.io.reader import cuts, evenly, read, summary
from heatsolve.io.writer import FieldFile
from heatsolve.models.grid import grid_of
from heatsolve.runner import run

AXES = {"z": np.linspace(-1, 1, 4), "y": np.linspace(2, 3, 5), "x": np.linspace(0, 0.6, 7)}
UNITS = {"temperature": "K", "length": "m", "time": "s"}
TIMES = (0.0, 0.1, 0.25)
HISTORY = {"iteration": np.arange(1, 4), "residual": np.array([1.0, 0.1, 0.01])}


def axes(dimensions):
    return dict(list(AXES.items())[-dimensions:])


def field(dimensions, time=0.0, dtype=np.float64):
    shape = tuple(len(line) for line in axes(dimensions).values())
    return (np.arange(np.prod(shape)).reshape(shape) + 1000 * time).astype(dtype)


def test_advice_to_begin_writing_may_fail(monkeypatch, tmp_path):
    """A system may have no thread left: the data are written anyway."""

    def refused(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    path = tmp_path / "a.h5"
    with Disk(path, "x+") as disk:
        assert disk.write(bytes(RESERVED_FROM)) == RESERVED_FROM
        disk.check()
    assert path.stat().st_size == RESERVED_FROM


def write(path, dimensions=2, transient=False, attributes=None, history=HISTORY, **fields):
    with FieldFile(path, axes(dimensions), UNITS, transient=transient) as file:
        for time in TIMES if transient else (None,):
            default = {"temperature": field(dimensions, time or 0)}
            file.append({**default, **fields}, time)
        file.finish(attributes or {}, history)
    return path


def leftovers(folder):
    return [name for name in os.listdir(folder) if "part" in name]


@pytest.mark.parametrize("transient", [False, True])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
class TestShapes:
    def test_xarray_opens_it(self, tmp_path, dimensions, transient):
        path = write(tmp_path / "a.h5", dimensions, transient, {"converged": True})
        with xarray.open_dataset(path, engine="h5netcdf") as data:
            names = ["time"] * transient + list(axes(dimensions))
            assert list(data.temperature.dims) == names
            assert set(data.coords) == set(names)
            assert data.temperature.attrs["units"] == "K"
            for axis, line in axes(dimensions).items():
                np.testing.assert_array_equal(data[axis], line)
                assert data[axis].attrs["units"] == "m"
            if transient:
                np.testing.assert_array_equal(data.time, TIMES)
                assert data.time.attrs["units"] == "s"
            last = data.temperature[-1] if transient else data.temperature
            np.testing.assert_array_equal(last, field(dimensions, TIMES[-1] if transient else 0))
        with xarray.open_dataset(path, engine="h5netcdf", group="history") as data:
            assert data.residual.dims == ("iteration",)
            np.testing.assert_array_equal(data.iteration, HISTORY["iteration"])

    def test_read_returns_what_was_written(self, tmp_path, dimensions, transient):
        path = write(tmp_path / "a.h5", dimensions, transient, {"ranks": 4, "skipped": None})
        solution = read(path)
        assert list(solution.coordinates) == list(axes(dimensions))
        assert solution.attributes == {"ranks": 4}
        assert solution.units["temperature"] == "K"
        np.testing.assert_array_equal(solution.history["residual"], HISTORY["residual"])
        values = solution.fields["temperature"]
        if transient:
            np.testing.assert_array_equal(solution.time, TIMES)
            assert values.shape == (3, *field(dimensions).shape)
        else:
            assert solution.time is None
            np.testing.assert_array_equal(values, field(dimensions))

    def test_cuts_are_thinned_parts_of_the_field(self, tmp_path, dimensions, transient):
        path = write(tmp_path / "a.h5", dimensions, transient)
        values = read(path).fields["temperature"]
        frames = [2, 0] if transient else [0]
        values = values if transient else values[np.newaxis]
        for most in (100, 3):
            kept = [evenly(n, most) for n in values.shape[1:]]
            found = list(cuts(path, "temperature", frames, {}, most))
            for frame, each in zip(frames, found, strict=True):
                np.testing.assert_array_equal(each, values[frame][np.ix_(*kept)])
            for number, axis in enumerate(axes(dimensions) if dimensions > 1 else ()):
                rest = kept[:number] + kept[number + 1 :]
                found = list(cuts(path, "temperature", frames, {axis: 1}, most))
                for frame, each in zip(frames, found, strict=True):
                    plane = values[frame].take(1, axis=number)
                    np.testing.assert_array_equal(each, plane[np.ix_(*rest)])

    def test_xdmf_agrees_with_the_file(self, tmp_path, dimensions, transient):
        path = write(tmp_path / "a & b.h5", dimensions, transient)
        sidecar = tmp_path / "a & b.xdmf"
        if dimensions == 1:
            assert not sidecar.exists()
            return
        tree = ElementTree.parse(sidecar)
        grids = [grid for grid in tree.iter("Grid") if grid.find("Topology") is not None]
        assert len(grids) == (3 if transient else 1)
        for frame, grid in enumerate(grids):
            check_mesh(grid, dimensions)
            item = grid.find("Attribute/DataItem")
            assert item.get("Dimensions") == grid.find("Topology").get("Dimensions")
            if transient:
                assert float(grid.find("Time").get("Value")) == TIMES[frame]
                slab, item = item.findall("DataItem")
                start, stride, count = np.array(slab.text.split(), int).reshape(3, -1)
            target, dataset = item.text.strip().split(":/")
            with h5py.File(tmp_path / target) as file:
                values = file[dataset][...]
            assert np.prod(list(map(int, item.get("Dimensions").split()))) == values.size
            assert (item.get("NumberType"), item.get("Precision")) == ("Float", "8")
            if transient:
                assert (stride == 1).all()
                cut = [slice(a, a + n) for a, n in zip(start, count, strict=True)]
                values = values[tuple(cut)][0]
            np.testing.assert_array_equal(values, field(dimensions, transient * TIMES[frame]))
        assert path.exists()


def check_mesh(grid, dimensions):
    """The mesh of an XDMF grid is that of AXES, slowest axis first, 2D in the plane z = 0."""
    lines = [axes(dimensions).get(axis, np.zeros(1)) for axis in "zyx"]
    topology = grid.find("Topology")
    assert topology.get("TopologyType") == "3DCoRectMesh"
    assert topology.get("Dimensions") == " ".join(str(len(line)) for line in lines)
    origin, spacing = (
        np.array(item.text.split(), float) for item in grid.findall("Geometry/DataItem")
    )
    for axis, line in enumerate(lines):
        np.testing.assert_allclose(origin[axis] + spacing[axis] * np.arange(len(line)), line)


def seen_by_vtk(sidecar, time=None):
    """Point data by name, axes (z, y, x), and coordinates by axis: what VTK's reader makes of it.

    It is the reader of ParaView, and gives values without a word where a file is not as it thinks.
    """
    from vtkmodules.util.numpy_support import vtk_to_numpy
    from vtkmodules.vtkIOXdmf2 import vtkXdmfReader

    reader = vtkXdmfReader()
    reader.SetFileName(str(sidecar))
    reader.UpdateInformation()
    reader.UpdateTimeStep(time) if time is not None else reader.Update()
    image = reader.GetOutputDataObject(0)
    shape = image.GetDimensions()[::-1]
    lines = {
        axis: image.GetOrigin()[n] + image.GetSpacing()[n] * np.arange(image.GetDimensions()[n])
        for n, axis in enumerate("xyz")
    }
    data = image.GetPointData()
    arrays = {}
    for number in range(data.GetNumberOfArrays()):
        array = data.GetArray(number)
        values = vtk_to_numpy(array)
        arrays[array.GetName()] = values.reshape(*shape, *values.shape[1:])
    return arrays, lines


# What is large is small here: one row is lost of few points as of many.
SMALLER = {
    "nvidia-jacobi": ("constants.nx=20", "constants.ny=18"), "legate-stencil": ("constants.N=30",),
    "backward-step": ("constants.n=4",), "cylinder-re20": ("constants.n=41",),
    "cylinder-re100": ("constants.n=41",), "taylor-green-3d": ("constants.n=8",),
}  # fmt: skip
SHOWN = [name for name in shipped() if load(name, SMALLER.get(name, ())).grid.dimension > 1]


@pytest.mark.few(8)
@pytest.mark.parametrize("name", SHOWN)
def test_vtk_reads_the_fields_of_every_shipped_case(name, tmp_path):
    case = load(name, SMALLER.get(name, ()))
    axes = grid_of(case).axes
    lines = {axis.name: axis.coordinates[slice(*axis.stored)] for axis in axes}
    shape = tuple(len(line) for line in lines.values())
    times = (None,) if case.model.steady else (0.0, 0.5)
    random = np.random.default_rng(0)
    dtype = np.float64 if case.solver.precision == "float64" else np.float32
    names = case.output.fields or case.field_names
    frames = [{each: random.standard_normal(shape).astype(dtype) for each in names} for _ in times]
    path = tmp_path / "a.h5"
    with FieldFile(path, lines, {}, transient=not case.model.steady) as file:
        for fields, time in zip(frames, times, strict=True):
            file.append(fields, time)
        file.finish({}, {})
    for fields, time in zip(frames, times, strict=True):
        arrays, seen = seen_by_vtk(path.with_suffix(".xdmf"), time)
        for axis, line in lines.items():
            np.testing.assert_allclose(seen[axis], line, rtol=0, atol=1e-12 * np.ptp(line))
        for each, values in fields.items():
            np.testing.assert_array_equal(arrays.pop(each).reshape(shape), values)
        if "velocity_x" in names:
            components = [fields[f"velocity_{axis}"] for axis in "xyz"[: len(shape)]]
            third = [np.zeros(shape)] * (len(shape) < 3)
            vector = np.stack([*components, *third], axis=-1)
            np.testing.assert_array_equal(arrays.pop("velocity").reshape(vector.shape), vector)
        assert not arrays


def test_vtk_reads_a_run(tmp_path):
    path = tmp_path / "a.h5"
    run(load("cavity-re100", ["constants.n=8", "time.end=0.5", "output.every=5"]), "numpy", path)
    solution = read(path)
    for time, pressure in zip(solution.time, solution.fields["pressure"], strict=True):
        arrays, _ = seen_by_vtk(path.with_suffix(".xdmf"), time)
        np.testing.assert_array_equal(arrays["pressure"][0], pressure)
    assert arrays["velocity"].shape == (1, 8, 8, 3)


class TestFormat:
    def test_dtype_dimension_labels_and_order_of_fields(self, tmp_path):
        path = write(tmp_path / "a.h5", velocity_x=field(2, dtype=np.float32))
        with h5py.File(path) as file:
            assert file["velocity_x"].dtype == np.float32
            assert [dimension.label for dimension in file["velocity_x"].dims] == ["y", "x"]
            assert file["velocity_x"].attrs["units"] == "1"

    def test_step_is_the_history_axis_of_a_transient_run(self, tmp_path):
        history = {"time": np.ones(2), "iteration": np.ones(2), "step": np.arange(2)}
        path = write(tmp_path / "a.h5", transient=True, history=history)
        with xarray.open_dataset(path, engine="h5netcdf", group="history") as data:
            assert data.time.dims == data.iteration.dims == ("step",)
            assert data.time.attrs["units"] == "s"

    def test_a_long_case_and_flags_survive_a_round_trip_through_xarray(self, tmp_path):
        case = "# filler\n" * 20_000  # beyond the 64 KiB of an ordinary HDF5 attribute
        path = write(tmp_path / "a.h5", attributes={"case": case, "converged": np.True_})
        with xarray.open_dataset(path, engine="h5netcdf") as data:
            data.to_netcdf(tmp_path / "copy.nc", engine="h5netcdf")
        with xarray.open_dataset(tmp_path / "copy.nc", engine="h5netcdf") as copy:
            assert copy.attrs["case"] == case and copy.attrs["converged"] == 1

    @pytest.mark.parametrize(
        ("limit", "chunk"),
        [(10**6, (1, 5, 7)), (281, (1, 5, 7)), (280, (1, 3, 7)), (60, (1, 1, 7))],
    )
    def test_chunks_are_frames_or_slabs_under_the_bound(self, tmp_path, monkeypatch, limit, chunk):
        monkeypatch.setattr(writer, "BLOCK_BYTES", limit)
        with h5py.File(write(tmp_path / "a.h5", transient=True)) as file:
            assert file["temperature"].chunks == chunk

    def test_no_history(self, tmp_path):
        path = write(tmp_path / "a.h5", history={})
        assert read(path).history == {}
        xarray.open_dataset(path, engine="h5netcdf").close()

    def test_a_1d_run_removes_the_xdmf_of_the_2d_run_it_replaces(self, tmp_path):
        write(tmp_path / "a.h5", 2)
        write(tmp_path / "a.h5", 1)
        assert os.listdir(tmp_path) == ["a.h5"]


class TestMisuse:
    """ValueError: the solver's own mistakes, found before anything is written."""

    def test_frames_that_do_not_fit(self, tmp_path):
        with FieldFile(tmp_path / "a.h5", axes(2), {}, transient=False) as file:
            with pytest.raises(ValueError, match="no fields"):
                file.finish({}, {})
            with pytest.raises(ValueError, match="time"):
                file.append({"temperature": field(2)}, time=0.0)
            with pytest.raises(ValueError, match="shape"):
                file.append({"temperature": field(2).T})
            file.append({"temperature": field(2)})
            with pytest.raises(ValueError, match="one frame"):
                file.append({"temperature": field(2)})
            with pytest.raises(ValueError, match="step or an iteration"):
                file.finish({}, {"residual": np.ones(3)})
            with pytest.raises(ValueError, match="one length"):
                file.finish({}, {"residual": np.ones(3), "iteration": np.ones(2)})
        with FieldFile(tmp_path / "b.h5", axes(2), {}, transient=True) as file:
            with pytest.raises(ValueError, match="time"):
                file.append({"temperature": field(2)})
            file.append({"temperature": field(2)}, time=0.0)
            with pytest.raises(ValueError, match="same fields"):
                file.append({"pressure": field(2)}, time=1.0)
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("line", [[1.0, 0.0], [0.0, 0.0], [0.0, 1.0, 3.0]])
    def test_uneven_coordinates(self, tmp_path, line):
        with pytest.raises(ValueError, match="coordinate x"):
            FieldFile(tmp_path / "a.h5", {"x": np.array(line)}, {}, transient=False)


class TestFailures:
    @pytest.fixture
    def old(self, tmp_path):
        """A folder with an earlier output, which every failure must leave as it is."""
        path = write(tmp_path / "a.h5", 3)
        before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
        yield path
        assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before

    def test_exception_in_the_run(self, old):
        with pytest.raises(KeyboardInterrupt), FieldFile(old, axes(2), {}, transient=False) as file:
            file.append({"temperature": field(2)})
            assert len(leftovers(old.parent)) == 1
            raise KeyboardInterrupt

    @pytest.mark.parametrize("call", ["fsync", "replace"])
    def test_disk_full_at_the_end(self, old, monkeypatch, call):
        def fail(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, call, fail)
        with pytest.raises(FileFailure, match=r"cannot write .*a\.h5: No space left on device"):
            write(old)

    @pytest.mark.parametrize("transient", [False, True])
    @pytest.mark.parametrize("limit", [100, 5_000, 400_000, 722_000])
    def test_disk_full_in_the_middle(self, old, limit, transient):
        """A real limit, in a process of its own: HDF5 used to end it by a segmentation fault."""
        program = f"""
import pathlib, resource, signal, sys
import numpy as np
from heatsolve.errors import FileFailure
from heatsolve.io.writer import FieldFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
line, time = np.arange(300.0), {0.0 if transient else None}
try:
    with FieldFile(pathlib.{old!r}, dict(y=line, x=line), {{}}, transient={transient}) as file:
        file.append(dict(temperature=np.ones((300, 300))), time)
        file.finish({{}}, {{}})
except FileFailure as failure:
    sys.exit(str(failure))
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr == f"cannot write {old}: File too large\n"

    def test_targets_that_cannot_be(self, old):
        below = old / "below.h5"
        with pytest.raises(FileFailure, match=r"below\.h5: .*a\.h5 is not a directory"):
            FieldFile(below, axes(2), {}, transient=False)
        with pytest.raises(FileFailure, match="missing is not a directory"):
            FieldFile(old.parent / "missing" / "b.h5", axes(2), {}, transient=False)
        with pytest.raises(FileFailure, match="Is a directory"):
            FieldFile(old.parent, axes(2), {}, transient=False)

    def test_two_writers_do_not_mix(self, tmp_path):
        path = tmp_path / "a.h5"
        with (
            FieldFile(path, axes(2), {}, transient=False) as first,
            FieldFile(path, axes(1), {}, transient=False) as second,
        ):
            first.append({"temperature": field(2)})
            second.append({"pressure": field(1)})
            second.finish({}, {})
            assert list(read(path).fields) == ["pressure"]
            first.finish({}, {})
        assert list(read(path).fields) == ["temperature"]
        assert sorted(os.listdir(tmp_path)) == ["a.h5", "a.xdmf"]


class TestRead:
    def test_missing_file_or_field(self, tmp_path):
        with pytest.raises(InputError, match=r"no file .*b\.h5"):
            read(tmp_path / "b.h5")
        with pytest.raises(InputError, match="no field 'pressure', only temperature"):
            read(write(tmp_path / "a.h5"), fields=("pressure",))

    @pytest.mark.parametrize("kept", [0, 4, 100, 2_000, -1])
    def test_truncated(self, tmp_path, kept):
        path = write(tmp_path / "a.h5")
        path.write_bytes(path.read_bytes()[:kept])
        with pytest.raises(FileFailure, match=r"cannot read .*a\.h5"):
            read(path)

    def test_random_bytes(self, tmp_path):
        path = tmp_path / "a.h5"
        path.write_bytes(np.random.default_rng(1).bytes(10_000))
        for use in (read, summary):
            with pytest.raises(FileFailure, match=r"cannot read .*a\.h5"):
                use(path)

    def test_another_hdf5_file(self, tmp_path):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["x"] = np.ones(3)
        with pytest.raises(FileFailure, match="not an output of heatsolve"):
            read(tmp_path / "a.h5")

    def test_locked(self, tmp_path):
        path = write(tmp_path / "a.h5")
        program = "import h5py, sys; f = h5py.File(sys.argv[1], 'r+'); print(flush=True); input()"
        command = [sys.executable, "-c", program, str(path)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            other.stdout.readline()
            with pytest.raises(FileFailure, match="another program has it locked"):
                read(path)
            other.communicate("\n")

    def test_title(self, tmp_path):
        titles = {
            '[case]\ntitle = "Hot plate"': "Hot plate",
            '[case]\ntitle = """\nFirst\nsecond"""': "First",
            "[case]": "a",
            "case = 3": "a",
            "not TOML [": "a",
        }
        for case, title in titles.items():
            assert read(write(tmp_path / "a.h5", attributes={"case": case})).title == title


class TestSummary:
    def test_text(self, tmp_path, monkeypatch):
        monkeypatch.setattr(reader, "BLOCK_BYTES", 60)  # so that statistics come in pieces
        values = np.array(field(2))
        values[1, 2:4] = np.nan
        attributes = {
            "case": '[case]\ntitle = "Hot plate"',
            "heatsolve_version": "0.1.0",
            "converged": True,
            "residual": 1.23456789e-9,
            "error_l2_temperature": 0.5,
        }
        text = summary(write(tmp_path / "a.h5", attributes=attributes, temperature=values))
        rows = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in text.splitlines()}
        assert rows["title"] == "Hot plate"
        assert rows["heatsolve version"] == "0.1.0"
        assert rows["converged"] == "yes"
        assert rows["residual"] == "1.23457e-09"
        assert rows["error l2 temperature"] == "0.5"
        assert rows["y"] == "2 to 3 m (5 points)"
        assert rows["x"] == "0 to 0.6 m (7 points)"
        mean = f"{np.nanmean(values):.6g}"
        assert text.splitlines()[-1].split() == ["temperature", "K", "0", "34", mean, "2"]

    def test_a_norm_is_said_with_what_it_is_of(self, tmp_path):
        """And relative to what; the update of an earlier version is no residual."""
        case = "[grid]\ncells = [5, 7]\nperiodic = ['x', 'y']\n[solver]\nrelative = true\n"
        given = {"residual": 2e-7, "threshold": 1e-6, "scale": 100.0}
        given |= {"relative_to": "the right side", "case": case}
        text = " ".join(summary(write(tmp_path / "a.h5", attributes=given)).split())
        assert "l2 of the residual 2e-09 relative to the right side" in text
        assert "tolerance 1e-08 relative to the right side" in text
        given = {"residual": 2e-7, "threshold": 1e-6}
        given["case"] = case.replace("relative = true", "method = 'jacobi'\nmonitor = 'update'")
        text = " ".join(summary(write(tmp_path / "b.h5", attributes=given)).split())
        assert "l2 of the update 2e-07" in text and "residual" not in text
        assert "tolerance 1e-06" in text and "note" not in text

    def test_a_file_of_an_earlier_version_keeps_its_defaults(self, tmp_path):
        """Its case does not name what was relative to nothing by default, and is now."""
        case = "[grid]\ncells = [5, 7]\nperiodic = ['x', 'y']\n"
        path = write(tmp_path / "a.h5", attributes={"case": case, "residual": 2e-7})
        found = read(path)
        assert parse(found.attributes["case"], "case").solver.relative is False
        (note,) = found.notes
        assert note == (
            "an earlier version wrote it, in which solver.relative was false by default, not true"
        )
        assert note in summary(path)

    def test_transient_shows_the_last_frame(self, tmp_path):
        text = summary(write(tmp_path / "a.h5", 1, transient=True))
        assert "0 to 0.25 s (3 frames)" in text
        assert text.splitlines()[-1].split()[2:] == ["250", "256", "253", "0"]

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_fields_without_numbers(self, tmp_path, value):
        text = summary(write(tmp_path / "a.h5", temperature=np.full((5, 7), value)))
        assert text.splitlines()[-1].split()[2:5] == [str(value)] * 3
