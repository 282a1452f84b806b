"""Files of results in the making: one field file, and the frames of a run in one or many files.

A file is written whole or not at all. The frames of a run go to a plain file, or to parts under
one master. The frames between two checkpoints are a *segment*: a secured segment is never touched
again, and a restart, on any number of processes, continues behind it.
"""

import html
import math
import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from heatsolve.errors import InputError
from heatsolve.io import subfiles as parts
from heatsolve.io.disk import Disk, failing, reserved, sync, target_of
from heatsolve.io.layout import (
    BLOCK_BYTES,
    FORMAT,
    ROW_TIMES,
    along_column_axis,
    column_axis,
    field_names,
    row_axis,
)
from heatsolve.io.reader import field_of, opened, read
from heatsolve.io.subfiles import Part, Segment
from heatsolve.parallel.ranks import Ranks, agreed

Arrays = Mapping[str, np.ndarray]


class FieldFile(AbstractContextManager["FieldFile"]):
    """A field file in the making; it takes its name only when `finish` has secured all of it.

    path: the target. Until `finish` everything goes to a temporary file beside it; leaving the
        context without `finish` removes that file and leaves an earlier target untouched.
    coordinates: the axes, slowest first, as `{"y": ..., "x": ...}`: 1D, ascending, evenly spaced.
    units: the unit of each field by its name, of the axes as "length", of time as "time"; else "1".
    transient: many frames along an unlimited `time` axis, or exactly one frame without this axis.
    compression: a filter of h5py, for the fields.

    Raises ValueError for unusable coordinates, FileFailure when the file cannot be created.
    """

    def __init__(
        self,
        path: Path,
        coordinates: Arrays,
        units: Mapping[str, str],
        *,
        transient: bool,
        compression: str | None = None,
    ) -> None:
        for axis, line in coordinates.items():
            steps = np.diff(line)  # XDMF knows an axis by its origin and one spacing
            if steps.size and not 0 < steps.max() < 1.001 * steps.min():
                raise ValueError(f"coordinate {axis} is not ascending and evenly spaced")
        self._path = target(Path(path))
        self._sidecar = sidecar_of(self._path)
        self._coordinates = dict(coordinates)
        self._shape = tuple(map(len, self._coordinates.values()))
        self._units = units
        self._transient = transient
        self._filters: dict[str, Any] = {}
        if compression:
            self._filters = {"compression": compression, "shuffle": True}
        with failing("write", self._path):
            # Exclusive for each writer, so that two runs with one target never mix their data.
            mark = f"{os.getpid()}-{secrets.token_hex(4)}"
            self._part = self._path.with_name(f".{self._path.name}.{mark}.part")
            self._xdmf_part = self._sidecar.with_name(self._part.with_suffix(".xdmf-part").name)
            self._disk = Disk(self._part, "x+")
            self._file = h5py.File(self._disk, "w", libver=FORMAT)

    def __exit__(self, *_: object) -> None:
        self.discard()

    def discard(self) -> None:
        """Remove the temporary files."""
        with suppress(Exception):  # after a failed write HDF5 may fail to close its file
            self._file.close()
        self._disk.close()
        for part in (self._part, self._xdmf_part):  # none are left after `finish`
            with suppress(OSError):
                part.unlink()

    def append(self, fields: Arrays, time: float | None = None) -> None:
        """Write one frame: host arrays in the shape of the coordinates, kept in their dtype.

        time: the time of this frame, in a transient file only. All frames have the same fields.
        Raises ValueError if the frame does not fit the file, FileFailure if the disk fails.
        """
        earlier = field_names(self._file)
        if (time is not None) != self._transient or (earlier and not self._transient):
            raise ValueError("a steady file takes one frame without, a transient many with a time")
        fits = all(values.shape == self._shape for values in fields.values())
        if not fits or earlier not in ([], sorted(fields)):
            raise ValueError(f"every frame has the same fields, in the shape {self._shape}")
        with failing("write", self._path):
            if not earlier:
                self._create({name: values.dtype for name, values in fields.items()})
            place = self._next(fields, [time])
        self._write(place, fields)

    def copy(
        self, fields: Mapping[str, h5py.Dataset | parts.Linked], times: Sequence[float | None]
    ) -> None:
        """Write all frames of fields of another file, with one block at a time in memory.

        times: the times of the frames, [None] in a steady file. Raises as `append` and the fields.
        """
        with failing("write", self._path):
            self._create({name: source.dtype for name, source in fields.items()})
        for frame, time in enumerate(times):
            with failing("write", self._path):
                place = self._next(fields, [time])
            self._write(place, fields, (frame,) if self._transient else ())

    def link(self, segments: Sequence[parts.Segment]) -> None:
        """Make the fields virtual datasets over the parts of all segments.

        Raises ValueError for segments that do not fit together, FileFailure if the disk fails.
        """
        if not segments:
            raise ValueError(f"{self._path} has no fields")
        folder = parts.folder_of(self._path).name
        layouts = {
            name: parts.layout(folder, segments, name, self._shape, transient=self._transient)
            for name in segments[0].fields
        }
        with failing("write", self._path):
            self._create(layouts)
            self._next((), [time for segment in segments for time in segment.times])
            every = [part for segment in segments for part in segment.parts]
            self.record("parts", "size", [(f"{folder}/{part.name}", part.size) for part in every])

    def record(self, group: str, column: str, sources: Sequence[tuple[str, int]]) -> None:
        """Write the names of the parts to which the file refers, or from which it was made, each
        with a number."""
        with failing("write", self._path):
            parts.record(self._file, group, column, sources)
            self._disk.check()

    def seal(self, path: Path) -> int:
        """Close the file as it is, force it to the disk, name it `path`; return its size (bytes).

        Raises FileFailure if the disk fails.
        """
        with failing("write", path):
            self._file.close()
            self._disk.close()
            self._disk.check()
            sync(self._part)
            size = self._part.stat().st_size
            os.replace(self._part, path)
            return size

    @property
    def sealed(self) -> bool:
        """Whether the file has its name: true even where an interrupt cut `seal` short."""
        return not self._part.exists()

    def finish(self, attributes: Mapping[str, object], history: Arrays) -> None:
        """Complete the file, force it to the disk and give it (and its `.xdmf`) the final name.

        attributes: attributes of the root; None is left out, a bool stored as 0 or 1 for netCDF.
        history: arrays of one length, on the axis `step` or else `iteration`; arrays of lines have
        a second axis, and where their times are given (`ROW_TIMES`) these are the first axis.

        Raises ValueError without a frame or an axis of the history, FileFailure if the disk fails:
        an earlier file is then still there.
        """
        if not field_names(self._file):
            raise ValueError(f"{self._path} has no fields")
        axis = "step" if "step" in history else "iteration"
        axes = {name: row_axis(name, axis, history) for name in history}
        if not all(each in history for each in axes.values()):
            raise ValueError("history needs a step or an iteration")
        if any(len(history[name]) != len(history[each]) for name, each in axes.items()):
            raise ValueError("history needs arrays of one length on each axis")
        with failing("write", self._path):
            group = self._file.create_group("history")
            for name in sorted(history, key=lambda name: name != axes[name]):  # the axes first
                dataset = group.create_dataset(name, data=history[name])
                scales = [] if name == axes[name] else [group[axes[name]]]
                if dataset.ndim > 1:
                    scales.append(self._column_axis(group, name, dataset.shape[1]))
                is_time = name == "dt" or name in ROW_TIMES.values()
                unit = "time" if is_time else OF_A_FIELD.sub("", name)
                self._describe(dataset, unit, scales)
            for key, item in attributes.items():
                if item is not None:
                    self._file.attrs[key] = int(item) if isinstance(item, bool | np.bool_) else item
            text = xdmf(self._path.name, self._file, field_names(self._file))
            self._xdmf_part.write_bytes(text.encode("utf-8", "surrogateescape"))
            self.seal(self._path)
            if len(self._coordinates) > 1:
                os.replace(self._xdmf_part, self._sidecar)
            else:  # XDMF has no 1D; an old sidecar described the file that was just replaced
                self._sidecar.unlink(missing_ok=True)
            sync(self._path.parent)

    def _column_axis(self, group: h5py.Group, column: str, count: int) -> h5py.Dataset:
        """The axis along which a column has several values: positions of a profile, wave numbers of
        a spectrum, numbers of the points of a line (netCDF has no axis without a name)."""
        name = column_axis(column, count)
        if name not in group:
            values = along_column_axis(name, count, self._coordinates)
            unit = "length" if name in self._coordinates else name
            self._describe(group.create_dataset(name, data=values), unit, [])
        return group[name]

    def _create(self, fields: Mapping[str, np.dtype | h5py.VirtualLayout]) -> None:
        """Create the axes, and the fields: empty datasets, or virtual datasets over parts."""
        scales = []
        if self._transient:
            time = self._file.create_dataset("time", (0,), "f8", maxshape=(None,), chunks=(1024,))
            scales.append(self._describe(time, "time", []))
        for axis, line in self._coordinates.items():
            dataset = self._file.create_dataset(axis, data=line)
            scales.append(self._describe(dataset, "length", []))
        for name, kind in fields.items():
            if isinstance(kind, h5py.VirtualLayout):
                # Programs that do not check the parts shall at least read NaN for a lost part.
                dataset = self._file.create_virtual_dataset(name, kind, fillvalue=math.nan)
            else:
                rows, options = (_rows(self._shape, kind), *self._shape[1:]), self._filters
                if self._transient:
                    options = {"maxshape": (None, *self._shape), "chunks": (1, *rows), **options}
                elif options:
                    options = {"chunks": rows, **options}
                shape = (0, *self._shape) if self._transient else self._shape
                dataset = self._file.create_dataset(name, shape, kind, **options)
            self._describe(dataset, name, scales)

    def _next(self, fields: Iterable[str], times: Sequence[float | None]) -> tuple[int, ...]:
        """Make room for the next frames and their times; return the index of the first frame."""
        if not self._transient:
            return ()
        frame = self._file["time"].shape[0]
        for name in ("time", *fields):
            self._file[name].resize(frame + len(times), axis=0)
        self._file["time"][frame:] = times
        return (frame,)

    def _write(
        self, place: tuple[int, ...], fields: Mapping[str, Any], frame: tuple[int, ...] = ()
    ) -> None:
        """Write a frame of arrays or datasets to the index `place` of every field, in blocks."""
        for name, source in fields.items():
            rows = _rows(self._shape, source.dtype)
            for start in range(0, self._shape[0], rows):
                slab = slice(start, start + rows)
                values = source[(*frame, slab)]
                with failing("write", self._path):
                    self._file[name][(*place, slab)] = values
                    self._disk.check()

    def _describe(
        self, dataset: h5py.Dataset, unit: str, scales: list[h5py.Dataset]
    ) -> h5py.Dataset:
        """Give a dataset its unit (by key) and its axes; a dataset without axes becomes an axis."""
        dataset.attrs["units"] = self._units.get(unit, "1")
        if not scales:
            dataset.make_scale(dataset.name.rpartition("/")[2])
        for dimension, scale in zip(dataset.dims, scales, strict=False):
            dimension.label = scale.name.rpartition("/")[2]
            dimension.attach_scale(scale)
        return dataset


def remove_leftovers(path: Path) -> None:
    """Remove the files that killed processes have left beside a target that is reserved."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.\d+-[0-9a-f]{{8}}\.(part|xdmf-part)")
    with suppress(OSError):
        for name in os.listdir(path.parent):
            if ours.fullmatch(name):
                (path.parent / name).unlink()


OF_A_FIELD = re.compile(r"^(probe|line)_\d+_|^profile_[xyz]_")
"""The begin of the name of a column that has values, and so the unit, of a field."""
PICTURES = (".png", ".pdf", ".svg", ".jpg", ".jpeg", ".gif", ".mp4", ".htm", ".html")
"""Suffixes that promise something other than a file of results."""
NOT_IN_XML = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def sidecar_of(path: Path) -> Path:
    """The .xdmf that goes with a file of results: a link is followed; see `disk.target_of`."""
    return target_of(path.with_name(path.name.removesuffix(".h5") + ".xdmf"))


def target(path: Path) -> Path:
    """The file that a run may write by this name: a link is followed; see `disk.target_of`.

    A name that the file or its .xdmf cannot have is refused now, not by the rename after hours of
    computing: raises InputError for anything but a file of results, FileFailure for a directory.
    """
    result = target_of(path)
    if result.suffix.lower() in PICTURES:
        raise InputError(
            f"{path} is the name of a picture: results are HDF5, call them "
            f"{path.with_suffix('.h5').name}, and let heatsolve plot, animate or report draw them"
        )
    try:
        name = os.fsencode(result.name).decode("utf-8")
    except UnicodeDecodeError:
        name = "\0"
    if NOT_IN_XML.search(name):
        raise InputError(f"{str(path)!r} is not a name for results: the .xdmf cannot hold it")
    with failing("write", path):
        if result.is_file() and result.stat().st_size and not h5py.is_hdf5(result):
            raise InputError(f"{path} is no file of results, it is not overwritten")
    sidecar_of(result)
    return result


def _rows(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """The rows (in 3D planes) of a chunk: all of them, or equal parts of at most BLOCK_BYTES."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return -(-shape[0] // (size // BLOCK_BYTES + 1))


class Results(AbstractContextManager["Results"]):
    """The output of a run in the making; all processes call every method together.

    path: the target. Only this run may write it, and it is either complete or as it was before.
    coordinates: the axes of the whole grid, slowest first, as `{"y": ..., "x": ...}`.
    units: the unit of each field by its name, of the axes as "length", of time as "time"; else "1".
    window: this process's points of the whole grid, `(low, high)` of each axis, slowest first; one
        of several processes may have no points.
    transient: many frames, each at its time, or exactly one frame.
    compression: a filter of h5py, for the fields.
    secured: the result of `secure` in the run that this run continues; later frames are dropped.

    One process alone leaves a plain file. Several processes leave a master over their parts: one
    part from each process for each segment.

    Leaving the context without `finish` removes frames that are not secured. Raises ValueError for
    unusable coordinates, InputError or FileFailure for a target that cannot be written or is being
    written by another run, FileFailure for a secured part that is missing or damaged.
    """

    def __init__(
        self,
        path: Path,
        coordinates: Arrays,
        units: Mapping[str, str],
        window: Sequence[tuple[int, int]],
        ranks: Ranks,
        *,
        transient: bool,
        secured: Sequence[Mapping[str, Any]] = (),
        compression: str | None = None,
    ) -> None:
        self._path, self._folder = Path(path), parts.folder_of(Path(path))
        self._coordinates, self._units, self._transient = dict(coordinates), units, transient
        self._window = [[int(low), int(high)] for low, high in window]
        self._empty = any(low == high for low, high in self._window)
        self._compression = compression
        self._ranks = ranks
        self._times: list[float | None] = []  # the times of the segment being written
        self._fields: dict[str, str] = {}
        self._secured = 0  # segments that must outlive a failure of this run
        self._complete = False
        segments = [
            Segment(s["times"], s["fields"], [Part(**part) for part in s["parts"]]) for s in secured
        ]
        self._run = secrets.token_hex(4)
        self._writer: FieldFile | None = None
        with ExitStack() as stack:
            with agreed(ranks):
                if ranks.rank == 0:
                    target(self._path)
                    stack.enter_context(reserved(self._path))
                    remove_leftovers(self._path)
            stack.callback(self._clean)
            with agreed(ranks):
                if ranks.rank == 0:
                    segments = parts.take_over(self._path, segments, self._run)
                    if ranks.size > 1:
                        self._make_folder()
            self._run, taken = ranks.gather((self._run, segments))[0]
            self._segments = list(taken)
            with agreed(ranks):  # no process computes before all can write
                self._writer = self._begin()
            self._end = stack.pop_all()

    def __exit__(self, *_: object) -> None:
        self._end.close()

    def _clean(self) -> None:
        """Remove the files that are neither secured nor finished."""
        if self._writer is not None:
            self._writer.discard()
        if self._ranks.rank == 0 and not self._complete:
            parts.remove(self._folder, run=self._run, first=self._secured)
        with suppress(OSError):  # the last process finds it empty, unless other files are in it
            self._folder.rmdir()

    def append(self, fields: Arrays, time: float | None = None) -> None:
        """Write this process's block of one frame: host arrays in the shape of its window.

        time: the time of this frame, in a transient run only. All frames have the same fields.
        Raises ValueError if the frame does not fit, FileFailure if the disk fails.
        """
        if self._writer is None:
            self._writer = self._begin()
        if self._writer is not None:
            self._writer.append(fields, time)
        self._fields = {name: values.dtype.str for name, values in fields.items()}
        self._times.append(time)

    @property
    def last(self) -> float | None:
        """The time of the last frame, None before the first."""
        times = self._times or (self._segments[-1].times if self._segments else [None])
        return times[-1]

    def secure(self) -> list[dict[str, Any]]:
        """Make all frames so far durable, and describe them for a restart, ready for JSON.

        Raises FileFailure if the disk fails.
        """
        self._close_segment()
        self._secured = len(self._segments)
        return [asdict(segment) for segment in self._segments]

    def finish(self, attributes: Mapping[str, object], history: Arrays) -> None:
        """Complete the output and give it its name; arguments and errors as `FieldFile.finish`.

        If it fails, an earlier output is still there.
        """
        if self._plain and self._writer is not None:
            self._writer.finish(attributes, history)
            if self._ranks.rank == 0:
                parts.remove(self._folder)
        else:
            self._close_segment()
            with agreed(self._ranks):  # no process returns before the output is there
                if self._ranks.rank == 0:
                    self._write_master(attributes, history)
        self._complete = True

    @property
    def _plain(self) -> bool:
        """Whether the frames go straight to the target."""
        return self._ranks.size == 1 and not self._segments

    def _begin(self) -> FieldFile | None:
        """The file for the next frames; None for a process without points."""
        if self._empty:
            return None
        path = self._path if self._plain else self._folder / self._part_name()
        axes = zip(self._coordinates.items(), self._window, strict=True)
        block = {axis: np.asarray(line)[slice(*pair)] for (axis, line), pair in axes}
        return FieldFile(
            path, block, self._units, transient=self._transient, compression=self._compression
        )

    def _part_name(self) -> str:
        return parts.part_name(self._run, len(self._segments), self._ranks.rank)

    def _make_folder(self) -> None:
        with failing("write", self._folder):
            self._folder.mkdir(exist_ok=True)
            sync(self._path.parent)

    def _close_segment(self) -> None:
        """Make a segment of the frames since the last segment, if there are any."""
        if not self._times:
            if self._writer is not None:
                self._writer.discard()
                self._writer = None
            return
        with agreed(self._ranks):
            if self._ranks.size == 1:
                self._make_folder()
        name = self._part_name()  # a file that was begun as the whole output may become a part
        part = None
        with agreed(self._ranks):
            if self._writer is not None:
                part = Part(name, self._writer.seal(self._folder / name), self._window)
        self._writer = None
        written = [part for part in self._ranks.gather(part) if part is not None]
        with agreed(self._ranks), failing("write", self._folder):
            if self._ranks.rank == 0:
                sync(self._folder)
        self._segments.append(Segment(self._times, self._fields, written))
        self._times = []

    def _write_master(self, attributes: Mapping[str, object], history: Arrays) -> None:
        """Write the master, remove needless parts; one process alone then makes a plain file."""
        with FieldFile(
            self._path, self._coordinates, self._units, transient=self._transient
        ) as master:
            try:
                master.link(self._segments)
                master.finish(attributes, history)
            finally:
                self._complete = master.sealed  # from here on the master needs its parts
        names = {part.name for segment in self._segments for part in segment.parts}
        parts.remove(self._folder, kept=names)
        if self._ranks.size == 1:
            _gather(self._path, self._path)


def gather(path: Path, output: Path) -> None:
    """Write a field file and the values in its parts to one plain file.

    If the output is the file itself, it is replaced, and its parts are removed. Raises InputError
    or FileFailure for a file or a part that cannot be read, and for an output that cannot be
    written or is being written by a run.
    """
    plain = target(output)
    with reserved(plain):
        remove_leftovers(plain)
        _gather(path, plain)


def _gather(path: Path, plain: Path) -> None:
    """Write all that a field file holds to one plain file, block by block; remove its parts."""
    solution = read(path, fields=())
    with opened(solution) as file:
        units = {name: str(d.attrs["units"]) for name, d in file["history"].items()}
        units |= solution.units | {"length": solution.units["x"]}
        transient = solution.time is not None
        times = [None] if solution.time is None else solution.time.tolist()
        first = field_of(file, field_names(file)[0])
        with FieldFile(
            plain,
            solution.coordinates,
            units,
            transient=transient,
            compression=first.compression,
        ) as writer:
            writer.copy({name: field_of(file, name) for name in field_names(file)}, times)
            if transient:  # a restart looks here for the frames of removed parts
                writer.record("gathered", "frames", parts.lineage(file, field_names(file)[0]))
            writer.finish(dict(file.attrs), solution.history)
    parts.remove(parts.folder_of(plain))


# ---- XDMF: the sidecar that tells ParaView where the fields lie in an HDF5 file -----------------

AXES = ("z", "y", "x")
KINDS = {"f": "Float", "i": "Int", "u": "UInt"}


def xdmf(name: str, file: Any, fields: Iterable[str]) -> str:
    """The XDMF 3 text that shows ParaView some fields of the 2D or 3D HDF5 `file` called `name`.

    Components such as velocity_x and velocity_y are also shown as one vector, velocity.
    """
    # Slowest axis first. 2D is one plane of a 3D mesh: ParaView lays a 2DCoRectMesh into yz.
    lines = [file[axis][:] if axis in file else np.zeros(1) for axis in AXES]
    spacing = [np.ptp(line) / max(len(line) - 1, 1) or 1 for line in lines]
    # VTK reads as many values of an item as its dimensions say: so each item has all three.
    points = _words(map(len, lines))
    mesh = f"""<Topology TopologyType="3DCoRectMesh" Dimensions="{points}"/>
<Geometry GeometryType="ORIGIN_DXDYDZ">
<DataItem Dimensions="3" Precision="8">{_words(line[0] for line in lines)}</DataItem>
<DataItem Dimensions="3" Precision="8">{_words(spacing)}</DataItem>
</Geometry>"""
    datasets = {field: file[field] for field in fields}
    vectors = _vectors(datasets, [axis for axis in AXES if axis in file])
    grids = ""
    for frame, time in enumerate(file.get("time", [None])):
        clock = f'<Time Value="{time}"/>\n' if time is not None else ""
        grids += f'<Grid Name="frame {frame}">\n{clock}{mesh}\n'
        place = None if time is None else frame
        items = {field: _item(name, data, points, place) for field, data in datasets.items()}
        for field, item in items.items():
            grids += f'<Attribute Name="{field}" Center="Node">\n{item}\n</Attribute>\n'
        for vector, components in vectors.items():
            # A plane has no third component: it is 0 times the first one.
            joined = ", ".join(["$0", "$1", "$2" if len(components) > 2 else "0*$0"])
            inner = "\n".join(items[component] for component in components)
            grids += f"""<Attribute Name="{vector}" AttributeType="Vector" Center="Node">
<DataItem ItemType="Function" Function="JOIN({joined})" Dimensions="{points} 3">
{inner}
</DataItem>
</Attribute>
"""
        grids += "</Grid>\n"
    if "time" in file:
        grids = f'<Grid GridType="Collection" CollectionType="Temporal">\n{grids}</Grid>\n'
    return f'<Xdmf Version="3.0">\n<Domain>\n{grids}</Domain>\n</Xdmf>\n'


def _vectors(fields: Iterable[str], axes: list[str]) -> dict[str, list[str]]:
    """By name, the components along x, y, z of each vector that has one along every axis."""
    known = set(fields)
    stems = [name.removesuffix("_x") for name in known if name.endswith("_x")]
    result = {stem: [f"{stem}_{axis}" for axis in reversed(axes)] for stem in sorted(stems)}
    return {k: v for k, v in result.items() if k not in known and known.issuperset(v)}


def _item(name: str, data: Any, points: str, frame: int | None) -> str:
    """The XDMF item of the values of a field, or of one of its frames."""
    number = f'NumberType="{KINDS[data.dtype.kind]}" Precision="{data.dtype.itemsize}"'
    place = f"{html.escape(name, quote=False)}:{data.name}"
    if frame is None:
        return f'<DataItem Format="HDF" {number} Dimensions="{points}">\n{place}</DataItem>'
    shape = data.shape[1:]
    start, stride = [frame, *[0] * len(shape)], [1] * data.ndim
    return f"""<DataItem ItemType="HyperSlab" Dimensions="{points}">
<DataItem Dimensions="3 {data.ndim}">{_words([*start, *stride, 1, *shape])}</DataItem>
<DataItem Format="HDF" {number} Dimensions="{_words(data.shape)}">
{place}</DataItem></DataItem>"""


def _words(values: Iterable[float]) -> str:
    return " ".join(map(str, values))
