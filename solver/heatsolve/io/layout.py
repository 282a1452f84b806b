"""The layout of a field file, and the check of a file's layout before its values are read.

A file holds one dataset per field at its root, axes `(y, x)` or `(z, y, x)` (a transient run has a
leading `time`), the coordinates as dimension scales, and a group `history`: the subset of netCDF-4
that xarray, h5py and (through the `.xdmf` beside it) ParaView all open.

A file may come from a stranger or from a disk that fails. A reference out of it (a link, a dataset
whose values lie in another file) would show the content of other files, or lead the HDF5 library
in a circle until it crashes; shapes that do not fit would cause an error far from their origin.
"""

import math
import os
import resource
import signal
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from heatsolve.case.output import LINE_TIME, SAMPLE_TIME
from heatsolve.errors import FileFailure
from heatsolve.stencil.grid import AXIS_NAMES

BLOCK_BYTES = 64 * 2**20  # bound on a chunk of a file, and on a block of it in memory
FORMAT = "v110"
"""The format of HDF5 1.10 (2016): checksums guard the bytes around the values. Without them a
flipped bit may crash the library, or let it loop without end."""

POINTS, WAVES = "points_", "wave_number_"
"""How the names of the second axes of history columns begin: `points_N` for lines of N points,
`wave_number_x` for spectra along x; profiles have axes of the grid."""
ROW_TIMES = {"line_": LINE_TIME, "profile_": SAMPLE_TIME, "spectrum_": SAMPLE_TIME}
"""The axis of the rows of history columns with times of their own, by the begin of their names."""

NUMBERS = "fiu"
"""The kinds of NumPy's types that are numbers."""
TEXTS = {
    "changes",
    "case",
    "data",
    "heatsolve_version",
    "backend",
    "precision",
    "machine",
    "relative_to",
    "norm_of",
    "output",
}
MEASURES = {
    "schema", "ranks", "iterations", "steps", "converged", "threshold", "scale", "residual",
    "solve_seconds", "points_updated", "bytes_moved", "launches", "wall_seconds",
}  # fmt: skip
"""The attributes of a run that are texts, and that are numbers, besides numbers `error_...`."""
MOST_BYTES = 8 * 2**20
"""The largest size of an attribute; a case, the longest attribute, is not larger."""
MOST_LETTERS, MOST_SHOWN = 255, 100
"""The most letters of a name in a file, and of a name in a message."""
PATIENCE = 60
"""Seconds of a trial: a sound file takes a moment, a damaged file may take forever."""


def survives(path: Path, look: Callable[[], object]) -> None:
    """Raise FileFailure for a file on which the HDF5 library crashes, or loops without end.

    The library does so on some damaged files, so a process of its own calls `look` first. Errors
    that `look` raises there are ignored, because it will raise them here, too.
    """
    child = os.fork()
    if not child:
        try:
            for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            signal.alarm(PATIENCE)
            # A crash shall leave no core file and no message of the C library.
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            look()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        raise FileFailure(f"{path} is damaged: the HDF5 library fails on it")


def attributes(file: h5py.File) -> dict[str, Any]:
    """The attributes of a file as plain Python values: a known attribute is a number or a text.

    Raises FileFailure for a known attribute of another type, and for any one above MOST_BYTES.
    """
    result = {}
    for name in file.attrs:
        about = file.attrs.get_id(name)
        size = math.prod(about.shape or ()) * about.dtype.itemsize
        value = _plain(file.attrs[name]) if size <= MOST_BYTES else None
        size = max(size, len(value) if isinstance(value, str) else 0)
        if size > MOST_BYTES:
            raise damage(file, name, f"is an attribute of {size / 2**20:.0f} MiB")
        if name in TEXTS and not isinstance(value, str):
            raise damage(file, name, "is an attribute that is no text")
        measured = name in MEASURES or name.startswith("error_")
        if measured and not isinstance(value, int | float):
            raise damage(file, name, "is an attribute that is no number")
        result[name] = value
    return result


def _plain(value: Any) -> Any:
    """An attribute's value as a plain Python value; bytes that are no text become escapes."""
    array = np.asarray(value)
    if array.dtype.kind == "V":  # its item would be bytes, too
        return array
    result = array.item() if array.size == 1 else array.tolist()
    if isinstance(result, str):
        result = result.encode("utf-8", "surrogateescape")
    return result.decode("utf-8", "backslashreplace") if isinstance(result, bytes) else result


def members(group: h5py.Group) -> Iterator[str]:
    """The names in a group.

    Raises FileFailure for a name that heatsolve never gives, and for a link to elsewhere.
    """
    for name in group:
        if not isinstance(name, str) or not name.isprintable() or len(name) > MOST_LETTERS:
            raise damage(group, str(name), "is not a name of ours")
        _demand_no_link(group, name)
        yield name


def _demand_no_link(group: h5py.Group, name: str) -> None:
    if name in group and not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise damage(group, name, "is a link to elsewhere")


def demand_group(group: h5py.Group, name: str) -> h5py.Group:
    """The group of this name. Raises FileFailure for anything else."""
    _demand_no_link(group, name)
    result = group[name]
    if not isinstance(result, h5py.Group):
        raise damage(group, name, "is no group")
    return result


def demand_values(group: h5py.Group, name: str, kinds: str = NUMBERS) -> h5py.Dataset:
    """The dataset of this name, whose values lie in the same file and are of these `kinds`.

    Raises FileFailure for anything else.
    """
    _demand_no_link(group, name)
    result = group[name]
    if not isinstance(result, h5py.Dataset) or result.shape is None:
        raise damage(group, name, "holds no values")
    if result.dtype.kind not in kinds:
        raise damage(group, name, f"is of type {result.dtype}")
    if result.is_virtual or result.external:
        raise damage(group, name, "has its values elsewhere")
    stored, wanted = result.id.get_storage_size(), result.size * result.dtype.itemsize
    if stored < wanted and not result.id.get_create_plist().get_nfilters():
        raise damage(group, name, f"has {stored} bytes in place of {wanted}")
    return result


def demand_unit(group: h5py.Group, name: str) -> None:
    """Raise FileFailure unless a dataset names its unit."""
    if not isinstance(group[name].attrs.get("units"), str):
        raise damage(group, name, "has no unit")


def damage(group: h5py.Group, name: str, what: str) -> FileFailure:
    """The error for an item of a group that is not as heatsolve writes it."""
    place = f"{group.name.rstrip('/')}/{name}".lstrip("/")
    short = place if len(place) <= MOST_SHOWN else f"{place[:MOST_SHOWN]}..."
    return FileFailure(f"{group.file.filename} is damaged: {short!r} {what}")


def is_column_axis(name: str) -> bool:
    """Whether a dataset of the history is an axis along which columns have several values."""
    return name.startswith((POINTS, WAVES)) or name in AXIS_NAMES


def column_axis(name: str, count: int) -> str:
    """The axis along which a column of the history has `count` values."""
    kind, axis, *_ = name.split("_")
    return {"profile": axis, "spectrum": f"{WAVES}{axis}"}.get(kind, f"{POINTS}{count}")


def along_column_axis(axis: str, count: int, coordinates: Mapping[str, np.ndarray]) -> np.ndarray:
    """Positions on an axis of columns: points of the grid, wave numbers, or numbers of points."""
    if axis in coordinates:
        return coordinates[axis]
    if not axis.startswith(WAVES):
        return np.arange(count)
    line = coordinates[axis.removeprefix(WAVES)]
    spacing = (line[-1] - line[0]) / max(1, len(line) - 1)
    return 2.0 * np.pi * np.fft.rfftfreq(len(line), spacing)


def row_axis(name: str, axis: str, history: Container[str]) -> str:
    """The axis of the rows of a column: its ROW_TIMES if the history has them, else `axis`."""
    for begin, times in ROW_TIMES.items():
        if times in history and (name == times or name.startswith(begin)):
            return times
    return axis


def field_names(file: h5py.File) -> list[str]:
    """The datasets at the root that are not axes, in alphabetical order."""
    return [n for n, d in file.items() if isinstance(d, h5py.Dataset) and not d.is_scale]


def versions() -> str:
    """The versions of h5py and HDF5."""
    return f"h5py {h5py.version.version}, HDF5 {h5py.version.hdf5_version}"


def axes_of(file: h5py.File) -> list[str]:
    """The axes of space, slowest first."""
    return [axis for axis in ("z", "y", "x") if axis in file]


def inspect(file: h5py.File) -> None:
    """Raise FileFailure for a file that is no output of heatsolve, or is damaged."""
    names = list(members(file))
    if not ({"history", "x"} <= set(names) and field_names(file)):
        raise FileFailure(f"{file.filename} is not an output of heatsolve")
    axes = ["time"] * ("time" in names) + axes_of(file)
    shape = tuple(_length(file, axis) for axis in axes)
    for name in field_names(file):
        field = file[name] if file[name].is_virtual else demand_values(file, name)
        if field.shape != shape:
            raise damage(file, name, f"has the shape {field.shape}, its axes have {shape}")
    for name in (*axes, *field_names(file)):
        demand_unit(file, name)
    attributes(file)
    history = demand_group(file, "history")
    for name in members(history):
        demand_values(history, name)
        demand_unit(history, name)
    lengths: dict[str, set[int]] = {}
    for name in history:
        if not is_column_axis(name):
            axis = row_axis(name, "iteration", history)
            lengths.setdefault(axis, set()).add(len(history[name]))
    if any(len(result) > 1 for result in lengths.values()):
        raise damage(file, "history", "has columns of several lengths")


def _length(file: h5py.File, axis: str) -> int:
    """The number of points or times of an axis. Raises FileFailure for any other dataset."""
    line = demand_values(file, axis)
    points = line[:] if line.ndim == 1 else np.empty(0)
    ascends = axis == "time" or (points[1:] > points[:-1]).all()
    if not (points.size and np.isfinite(points).all() and ascends):
        raise damage(file, axis, "is no axis")
    return points.size
