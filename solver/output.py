"""HDF5 fields: written whole or not at all, read back, summarised.

A file holds one dataset per field at its root, axes `(y, x)` or `(z, y, x)` (a transient run has a
leading `time`), the coordinates as dimension scales, and a group `history`: the subset of netCDF-4
that xarray, h5py and (through the `.xdmf` beside it) ParaView all open.
"""

import errno
import math
import os
import secrets
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np

from heatsolve.disk import Disk, failing, sync
from heatsolve.errors import FileFailure, InputError
from heatsolve.xdmf import xdmf

BLOCK_BYTES = 64 * 2**20  # bound on a chunk of a file, and on what a summary holds in memory

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
        self, path: Path, coordinates: Arrays, units: Mapping[str, str], *, transient: bool
    ) -> None:
        for axis, line in coordinates.items():
            steps = np.diff(line)  # XDMF knows an axis by its origin and one spacing
            if steps.size and not 0 < steps.max() < 1.001 * steps.min():
                raise ValueError(f"coordinate {axis} is not ascending and evenly spaced")
        self._path = Path(path)
        self._coordinates = dict(coordinates)
        self._units = units
        self._transient = transient
        with failing("write", self._path):
            if self._path.is_dir():  # found out now, not by the rename after hours of computing
                raise IsADirectoryError(errno.EISDIR, "")
            if self._path.is_file() and self._path.stat().st_size and not h5py.is_hdf5(self._path):
                raise InputError(f"{self._path} is no file of results, it is not overwritten")
            # Exclusive for each writer, so that two runs with one target never mix their data.
            mark = f"{os.getpid()}-{secrets.token_hex(4)}"
            self._part = self._path.with_name(f".{self._path.name}.{mark}.part")
            self._xdmf_part = self._part.with_suffix(".xdmf-part")
            self._disk = Disk(self._part, "x+")
            self._file = h5py.File(self._disk, "w")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
        earlier = _field_names(self._file)
        if (time is not None) != self._transient or (earlier and not self._transient):
            raise ValueError("a steady file takes one frame without, a transient many with a time")
        shape = tuple(map(len, self._coordinates.values()))
        if earlier not in ([], sorted(fields)) or any(a.shape != shape for a in fields.values()):
            raise ValueError(f"every frame has the same fields, in the shape {shape} of the axes")
        with failing("write", self._path):
            if not earlier:
                self._create(fields)
            for name, value in {**fields, "time": time}.items() if self._transient else ():
                dataset = self._file[name]
                dataset.resize(dataset.shape[0] + 1, axis=0)
                dataset[-1] = value
            self._disk.check()

    def finish(self, attributes: Mapping[str, object], history: Arrays) -> None:
        """Complete the file, force it to the disk and give it (and its `.xdmf`) the final name.

        attributes: of the root; None is left out, a bool stored as 0 or 1 (netCDF has none).
        history: arrays of one length, on the axis `step` or else `iteration`.

        Raises ValueError for want of a frame or of an axis of the history, FileFailure if the disk
        fails: an earlier file is then still there.
        """
        if not _field_names(self._file):
            raise ValueError(f"{self._path} has no fields")
        axis = "step" if "step" in history else "iteration"
        if history and (axis not in history or len(set(map(len, history.values()))) > 1):
            raise ValueError("history needs a step or an iteration, and arrays of one length")
        sidecar = self._path.with_name(self._path.name.removesuffix(".h5") + ".xdmf")
        with failing("write", self._path):
            group = self._file.create_group("history")
            for name in sorted(history, key=lambda name: name != axis):  # the axis first
                dataset = group.create_dataset(name, data=history[name])
                self._describe(dataset, name, [] if name == axis else [group[axis]])
            for key, item in attributes.items():
                if item is not None:
                    self._file.attrs[key] = int(item) if isinstance(item, bool | np.bool_) else item
            self._xdmf_part.write_text(
                xdmf(self._path.name, self._file, _field_names(self._file)), encoding="utf-8"
            )
            self._file.close()
            self._disk.check()
            sync(self._part)
            os.replace(self._part, self._path)
            if len(self._coordinates) > 1:
                os.replace(self._xdmf_part, sidecar)
            else:  # XDMF has no 1D; what lies there described the file that was just replaced
                sidecar.unlink(missing_ok=True)
            sync(self._path.parent)

    def _create(self, fields: Arrays) -> None:
        """The axes, and the fields: steady ones with their values, transient ones still empty."""
        scales = []
        if self._transient:
            time = self._file.create_dataset("time", (0,), "f8", maxshape=(None,), chunks=(1024,))
            scales.append(self._describe(time, "time", []))
        for axis, line in self._coordinates.items():
            dataset = self._file.create_dataset(axis, data=line)
            scales.append(self._describe(dataset, "length", []))
        for name, values in fields.items():
            if self._transient:
                rows = -(-len(values) // (values.nbytes // BLOCK_BYTES + 1))
                chunk, endless = (1, rows, *values.shape[1:]), (None, *values.shape)
                dataset = self._file.create_dataset(
                    name, (0, *values.shape), values.dtype, maxshape=endless, chunks=chunk
                )
            else:
                dataset = self._file.create_dataset(name, data=values)
            self._describe(dataset, name, scales)

    def _describe(self, dataset: h5py.Dataset, unit: str, scales: list) -> h5py.Dataset:
        """Give a dataset its unit (by key) and its axes; without axes it is one itself."""
        dataset.attrs["units"] = self._units.get(unit, "1")
        if not scales:
            dataset.make_scale(dataset.name.rpartition("/")[2])
        for dimension, scale in zip(dataset.dims, scales, strict=False):
            dimension.label = scale.name.rpartition("/")[2]
            dimension.attach_scale(scale)
        return dataset


@dataclass(frozen=True, eq=False)
class Solution:
    """What a field file holds, in memory; the file itself is closed."""

    path: Path
    fields: dict[str, np.ndarray]  # axes as in `coordinates`, behind time if that is there
    coordinates: dict[str, np.ndarray]  # slowest axis first, without time
    time: np.ndarray | None  # of the frames read; None of a steady run
    attributes: dict[str, Any]  # of the root, as plain Python values
    history: dict[str, np.ndarray]
    units: dict[str, str]  # of every field in the file (read or not), every axis, and time

    @property
    def case(self) -> dict[str, Any]:
        """The case that made the file, as parsed TOML; empty if it has none or a broken one."""
        try:
            return tomllib.loads(str(self.attributes.get("case", "")))
        except tomllib.TOMLDecodeError:
            return {}

    @property
    def title(self) -> str:
        """The first line of the case's title, else the name of the file."""
        section = self.case.get("case")
        title = str(section.get("title", "")) if isinstance(section, dict) else ""
        return next(iter(title.strip().splitlines()), self.path.stem)


def read(path: Path, fields: Sequence[str] | None = None, *, last_only: bool = False) -> Solution:
    """Read a field file, or only some of its `fields`, or only the last frame of a transient one.

    The last frame keeps its leading axis, so the shapes do not depend on `last_only`.
    Raises InputError for a file or field that is not there, FileFailure for one that is damaged,
    locked or not ours.
    """
    path = Path(path)
    with _open(path) as file:
        names = _field_names(file)
        if unknown := set(fields or ()) - set(names):
            raise InputError(f"{path} has no field {unknown.pop()!r}, only {', '.join(names)}")
        time = file.get("time")
        frames = np.s_[-1:] if last_only and time else np.s_[:]
        axes = [axis for axis in ("z", "y", "x") if axis in file]
        return Solution(
            path=path,
            fields={name: file[name][frames] for name in (names if fields is None else fields)},
            coordinates={axis: file[axis][:] for axis in axes},
            time=time[frames] if time else None,
            attributes={name: np.asarray(value).tolist() for name, value in file.attrs.items()},
            history={name: values[:] for name, values in file["history"].items()},
            units={
                name: str(file[name].attrs["units"])
                for name in (*names, *axes, *(["time"] if time else []))
            },
        )


def summary(path: Path) -> str:
    """What `heatsolve info` prints: the run, its grid and the range of each field, as plain text.

    Fields are read block by block, so a file may exceed the memory; of a transient file only the
    last frame is. Raises as `read` does.
    """
    solution = read(path, fields=())
    rows = [["title", solution.title]]
    for name, value in solution.attributes.items():
        if name == "converged":
            rows.append([name, "yes" if value else "no"])
        elif name != "case":
            rows.append([name.replace("_", " "), _number(value)])
    for axis, line in {**solution.coordinates, "time": solution.time}.items():
        if line is not None:
            ends = f"{_number(line[0])} to {_number(line[-1])} {solution.units[axis]}"
            rows.append([axis, f"{ends} ({len(line)} {'frames' if axis == 'time' else 'points'})"])
    table = [["field", "unit", "min", "max", "mean", "NaN"]]
    with _open(solution.path) as file:
        for name in _field_names(file):
            statistics = _statistics(file[name], len(solution.coordinates))
            table.append([name, solution.units[name], *map(_number, statistics)])
    return "\n".join([*_columns(rows), "", *_columns(table)])


def _statistics(dataset: h5py.Dataset, axes: int) -> tuple[float, float, float, int]:
    """Minimum, maximum and mean of the (last) frame without its NaN, and how many those are."""
    frame = (-1,) * (dataset.ndim - axes)
    shape = dataset.shape[-axes:]
    rows = max(1, BLOCK_BYTES // (math.prod(shape[1:]) * dataset.dtype.itemsize))
    low, high, total, valid = math.inf, -math.inf, 0.0, 0
    for start in range(0, shape[0], rows):
        block = dataset[(*frame, slice(start, start + rows))]
        block = block[~np.isnan(block)]
        valid += block.size
        low, high = block.min(initial=low), block.max(initial=high)
        with np.errstate(all="ignore"):  # an infinite field has no mean, and may say so
            total += block.sum(dtype=float)
    missing = math.prod(shape) - valid
    return (low, high, total / valid, missing) if valid else (*[math.nan] * 3, missing)


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def _columns(rows: list[list[str]]) -> list[str]:
    """Lines of left-aligned columns, two blanks apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


@contextmanager
def _open(path: Path) -> Iterator[h5py.File]:
    """A field file, open for reading."""
    with failing("read", path):
        if not path.exists():
            raise InputError(f"there is no file {path}")
        with h5py.File(path, "r", locking="best-effort") as file:
            if not ({"history", "x"} <= file.keys() and _field_names(file)):
                raise FileFailure(f"{path} is not an output of heatsolve")
            yield file


def _field_names(file: h5py.File) -> list[str]:
    """The datasets at the root that are not axes, in alphabetical order."""
    return [n for n, d in file.items() if isinstance(d, h5py.Dataset) and not d.is_scale]
