"""HDF5 fields: written whole or not at all.

A file holds one dataset per field at its root, axes `(y, x)` or `(z, y, x)` (a transient run has a
leading `time`), the coordinates as dimension scales, and a group `history`: the subset of netCDF-4
that xarray, h5py and (through the `.xdmf` beside it) ParaView all open.
"""

import math
import os
import re
import secrets
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np

from heatsolve.errors import InputError
from heatsolve.io import subfiles as parts
from heatsolve.io.disk import Disk, failing, sync, target_of
from heatsolve.io.xdmf import xdmf

BLOCK_BYTES = 64 * 2**20  # bound on a chunk of a file, and on what is held of it in memory
FORMAT = "v110"
"""Of HDF5, since 2016: a checksum guards what lies around the values. Where there is none, a
flipped bit may crash the library, or let it loop without end."""

POINTS = "points_"
"""What the axes of lines in the history are called, with the number of points."""
LINES, LINE_TIME = "line_", "line_time"
"""What the columns of lines begin with, and the axis of the times at which they are read."""

Arrays = Mapping[str, np.ndarray]


class FieldFile:
    """A field file in the making; it takes its name only when `finish` has secured all of it.

    path: the target; until `finish` everything goes to a temporary name beside it, and leaving
        the context without `finish` removes that and leaves an earlier target untouched.
    coordinates: the axes, slowest first, as `{"y": ..., "x": ...}`: 1D, ascending, evenly spaced.
    units: of each field by its name, of the axes as "length", of time as "time"; missing is "1".
    transient: many frames along an unlimited `time` axis, or else exactly one without that axis.

    Raises ValueError for unusable coordinates, FileFailure when the file cannot be created.
    """

    def __init__(
        self,
        path: Path,
        coordinates: Arrays,
        units: Mapping[str, str],
        *,
        transient: bool,
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
        with failing("write", self._path):
            # Exclusive for each writer, so that two runs with one target never mix their data.
            mark = f"{os.getpid()}-{secrets.token_hex(4)}"
            self._part = self._path.with_name(f".{self._path.name}.{mark}.part")
            self._xdmf_part = self._sidecar.with_name(self._part.with_suffix(".xdmf-part").name)
            self._disk = Disk(self._part, "x+")
            self._file = h5py.File(self._disk, "w", libver=FORMAT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def discard(self) -> None:
        """Remove what has not been given a name."""
        with suppress(Exception):  # after a failed write HDF5 may find its own file odd
            self._file.close()
        self._disk.close()
        for part in (self._part, self._xdmf_part):  # none are left after `finish`
            with suppress(OSError):
                part.unlink()

    def append(self, fields: Arrays, time: float | None = None) -> None:
        """Write one frame: host arrays in the shape of the coordinates, kept in their dtype.

        time: of this frame, for a transient file only. All frames have the same fields.
        Raises ValueError if the frame does not fit the file, FileFailure if the disk fails.
        """
        if any(values.shape != self._shape for values in fields.values()):
            raise ValueError(f"every frame has the same fields, in the shape {self._shape}")
        earlier = field_names(self._file)
        if (time is not None) != self._transient or (earlier and not self._transient):
            raise ValueError("a steady file takes one frame without, a transient many with a time")
        if earlier not in ([], sorted(fields)):
            raise ValueError(f"every frame has the same fields, in the shape {self._shape}")
        with failing("write", self._path):
            if not earlier:
                self._create({name: values.dtype for name, values in fields.items()})
            place = self._next(fields, [time])
        self._write(place, fields)

    def copy(
        self, fields: Mapping[str, h5py.Dataset | parts.Linked], times: Sequence[float | None]
    ) -> None:
        """Write all frames of fields that lie elsewhere, of which it never holds more than a block.

        times: of the frames, or one None for a steady file. Raises as `append` and the fields do.
        """
        with failing("write", self._path):
            self._create({name: source.dtype for name, source in fields.items()})
        for frame, time in enumerate(times):
            with failing("write", self._path):
                place = self._next(fields, [time])
            self._write(place, fields, (frame,) if self._transient else ())

    def link(self, segments: Sequence[parts.Segment]) -> None:
        """Let the fields be the frames of all segments, wherever their parts are read from.

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
        """Note the parts that the file stands for or was made from, with a number each."""
        with failing("write", self._path):
            parts.record(self._file, group, column, sources)
            self._disk.check()

    def seal(self, path: Path) -> int:
        """Close the file as it is, force it to the disk and give it a name: how many bytes it has.

        Raises FileFailure if the disk fails.
        """
        with failing("write", path):
            self._close()
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

        attributes: of the root; None is left out, a bool stored as 0 or 1 (netCDF has none).
        history: arrays of one length, on the axis `step` or else `iteration`; those of lines have
        a second axis, and where `line_time` is given that is the first.

        Raises ValueError for want of a frame or of an axis of the history, FileFailure if the disk
        fails: an earlier file is then still there.
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
                    scales.append(self._points_of_line(group, dataset.shape[1]))
                self._describe(dataset, "time" if name == LINE_TIME else name, scales)
            for key, item in attributes.items():
                if item is not None:
                    self._file.attrs[key] = int(item) if isinstance(item, bool | np.bool_) else item
            text = xdmf(self._path.name, self._file, field_names(self._file))
            self._xdmf_part.write_bytes(text.encode("utf-8", "surrogateescape"))
            self.seal(self._path)
            if len(self._coordinates) > 1:
                os.replace(self._xdmf_part, self._sidecar)
            else:  # XDMF has no 1D; what lies there described the file that was just replaced
                self._sidecar.unlink(missing_ok=True)
            sync(self._path.parent)

    def _points_of_line(self, group: h5py.Group, count: int) -> h5py.Dataset:
        """The axis that all lines of so many points share: netCDF has none without a name."""
        name = f"{POINTS}{count}"
        if name not in group:
            self._describe(group.create_dataset(name, data=np.arange(count)), name, [])
        return group[name]

    def _close(self) -> None:
        self._file.close()
        self._disk.close()
        self._disk.check()

    def _create(self, fields: Mapping[str, np.dtype | h5py.VirtualLayout]) -> None:
        """The axes, and the fields, still empty: datasets of some type, or laid out over parts."""
        scales = []
        if self._transient:
            time = self._file.create_dataset("time", (0,), "f8", maxshape=(None,), chunks=(1024,))
            scales.append(self._describe(time, "time", []))
        for axis, line in self._coordinates.items():
            dataset = self._file.create_dataset(axis, data=line)
            scales.append(self._describe(dataset, "length", []))
        for name, kind in fields.items():
            if isinstance(kind, h5py.VirtualLayout):
                # To programs that do not look, a part that is lost shall at least be no number.
                dataset = self._file.create_virtual_dataset(name, kind, fillvalue=math.nan)
            elif self._transient:
                chunk = (1, _rows(self._shape, kind), *self._shape[1:])
                dataset = self._file.create_dataset(
                    name,
                    (0, *self._shape),
                    kind,
                    maxshape=(None, *self._shape),
                    chunks=chunk,
                )
            else:
                dataset = self._file.create_dataset(name, self._shape, kind)
            self._describe(dataset, name, scales)

    def _next(self, fields: Iterable[str], times: Sequence[float | None]) -> tuple[int, ...]:
        """Where the next frame goes, after room for its time and its fields has been made."""
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
        """Fill a place of every field with a frame of what can be indexed, block by block."""
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
        """Give a dataset its unit (by key) and its axes; without axes it is one itself."""
        dataset.attrs["units"] = self._units.get(unit, "1")
        if not scales:
            dataset.make_scale(dataset.name.rpartition("/")[2])
        for dimension, scale in zip(dataset.dims, scales, strict=False):
            dimension.label = scale.name.rpartition("/")[2]
            dimension.attach_scale(scale)
        return dataset


def row_axis(name: str, axis: str, history: Container[str]) -> str:
    """The axis of the rows of a column: that of lines, if their times are there, or `axis`."""
    return LINE_TIME if name.startswith(LINES) and LINE_TIME in history else axis


def remove_leftovers(path: Path) -> None:
    """Remove what processes that were killed have left beside a target that is reserved."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.\d+-[0-9a-f]{{8}}\.(part|xdmf-part)")
    with suppress(OSError):
        for name in os.listdir(path.parent):
            if ours.fullmatch(name):
                (path.parent / name).unlink()


PICTURES = (".png", ".pdf", ".svg", ".jpg", ".jpeg", ".gif", ".mp4", ".htm", ".html")
"""Names that promise something else than a file of results."""
NOT_IN_XML = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def sidecar_of(path: Path) -> Path:
    """The .xdmf that goes with a file of results: a link is followed; see `disk.target_of`."""
    return target_of(path.with_name(path.name.removesuffix(".h5") + ".xdmf"))


def target(path: Path) -> Path:
    """The file that a run may write by this name: a link is followed; see `disk.target_of`.

    What cannot be, of it or of its .xdmf, is said now, not by the rename after hours of computing:
    raises InputError for anything but a file of results, FileFailure for a directory.
    """
    found = target_of(path)
    if found.suffix.lower() in PICTURES:
        raise InputError(
            f"{path} is the name of a picture: results are HDF5, call them "
            f"{path.with_suffix('.h5').name}, and let heatsolve plot, animate or report draw them"
        )
    try:
        name = os.fsencode(found.name).decode("utf-8")
    except UnicodeDecodeError:
        name = "\0"
    if NOT_IN_XML.search(name):
        raise InputError(f"{str(path)!r} is not a name for results: the .xdmf cannot hold it")
    with failing("write", path):
        if found.is_file() and found.stat().st_size and not h5py.is_hdf5(found):
            raise InputError(f"{path} is no file of results, it is not overwritten")
    sidecar_of(found)
    return found


def _rows(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """How many rows (or planes) a chunk has: all of them, or equal shares under the bound."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return -(-shape[0] // (size // BLOCK_BYTES + 1))


def versions() -> str:
    """Of h5py and HDF5."""
    return f"h5py {h5py.version.version}, HDF5 {h5py.version.hdf5_version}"


def field_names(file: h5py.File) -> list[str]:
    """The datasets at the root that are not axes, in alphabetical order."""
    return [n for n, d in file.items() if isinstance(d, h5py.Dataset) and not d.is_scale]
