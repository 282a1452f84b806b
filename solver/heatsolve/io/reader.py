"""Read and summarise files of results, whether their values lie in them or in parts."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from heatsolve.case.load import recorded
from heatsolve.case.toml import loads
from heatsolve.errors import FileFailure, InputError
from heatsolve.io import subfiles as parts
from heatsolve.io.disk import failing
from heatsolve.io.layout import (
    BLOCK_BYTES,
    attributes,
    axes_of,
    field_names,
    inspect,
    is_column_axis,
    survives,
)
from heatsolve.report import shown

Frame = tuple[int, ...]
"""The number of a frame, () in a steady file."""


@dataclass(frozen=True, eq=False)
class Solution:
    """The content of a field file, in memory; the file itself is closed.

    Functions that read a file take a Solution, too: fields in memory are used, other fields are
    read from the file, as long as no other file has replaced it.
    """

    path: Path
    mark: tuple[int, ...]  # identifies the file, also where another file has its name now
    fields: dict[str, np.ndarray]  # axes as in `coordinates`, after time if there is time
    coordinates: dict[str, np.ndarray]  # slowest axis first, without time
    time: np.ndarray | None  # the times of the frames; None for a steady run
    attributes: dict[str, Any]  # of the root, as plain Python values
    history: dict[str, np.ndarray]
    units: dict[str, str]  # of every field in the file (read or not), every axis, and time
    notes: tuple[str, ...] = ()  # sentences on keys with another meaning in an earlier version

    @property
    def norm(self) -> str:
        """The norm in the history, in words: from the file or, in older files, from the case."""
        if isinstance(words := self.attributes.get("norm_of"), str):
            return words
        case = recorded(str(self.attributes.get("case", ""))).case
        if case is not None and case.norm_words != "l2 of the rate of change":
            return case.norm_words
        return "residual" if self.time is None else "l2 of the change in a step"

    @property
    def relative(self) -> tuple[float, str]:
        """The divisor of the norm and of the `threshold`, and the words for it; 1 and no words if
        the tolerance is absolute."""
        scale, words = (self.attributes.get(key) for key in ("scale", "relative_to"))
        if isinstance(scale, float) and scale > 0.0 and isinstance(words, str):
            return scale, f" relative to {shown(words)}"
        return 1.0, ""

    @property
    def names(self) -> list[str]:
        """The fields of the file, read or not, in alphabetical order."""
        return [name for name in self.units if name not in {*self.coordinates, "time"}]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each field."""
        frames = () if self.time is None else (len(self.time),)
        return (*frames, *map(len, self.coordinates.values()))

    @property
    def last(self) -> Frame:
        """The last frame."""
        return () if self.time is None else (len(self.time) - 1,)

    @property
    def case(self) -> dict[str, Any]:
        """The case that made the file, as parsed TOML; empty if there is none or a broken one."""
        try:
            return loads(self.attributes.get("case", ""))
        except (ValueError, RecursionError):
            return {}

    @property
    def title(self) -> str:
        """The first line of the case's title, else the name of the file."""
        section = self.case.get("case")
        title = str(section.get("title", "")) if isinstance(section, dict) else ""
        return shown(next(iter(title.strip().splitlines()), self.path.stem))


Source = Path | str | Solution
"""A field file, or its content in memory."""


def read(source: Source, fields: Sequence[str] | None = None) -> Solution:
    """Read a field file, or only some of its `fields`; a Solution gets the fields that it lacks.

    Raises InputError for a missing file or field, FileFailure for a file that is damaged, locked,
    no output of heatsolve, or replaced since a Solution was read from it.
    """
    if isinstance(source, Solution):
        wanted = source.names if fields is None else fields
        _demand(wanted, source.names, source.path)
        missing = [name for name in wanted if name not in source.fields]
        if not missing:
            return source
        with opened(source) as file:
            return replace(
                source, fields=source.fields | {n: field_of(file, n)[:] for n in missing}
            )
    path = Path(source)
    with opened(path) as file:
        names = field_names(file)
        _demand(fields or (), names, path)
        time, axes = file.get("time"), axes_of(file)
        about = attributes(file)
        notes: tuple[str, ...] = ()
        if "case" in about:
            _, about["case"], notes = recorded(about["case"])
        return Solution(
            path=path,
            mark=_mark(file),
            fields={n: field_of(file, n)[:] for n in (names if fields is None else fields)},
            coordinates={axis: file[axis][:] for axis in axes},
            time=time[:] if time else None,
            attributes=about,
            history={
                name: values[:]
                for name, values in file["history"].items()
                if not is_column_axis(name)
            },
            units={
                name: str(file[name].attrs["units"])
                for name in (*names, *axes, *(["time"] if time else []))
            },
            notes=notes,
        )


Values = Any
"""Something whose items are values of a field: an array, a dataset or `parts.Linked`."""


@contextmanager
def values_of(source: Source, field: str) -> Iterator[tuple[Solution, Values]]:
    """A field of a file, to be read piece by piece, and a Solution of all that is no field."""
    solution = read(source, fields=())
    _demand([field], solution.names, solution.path)
    if field in solution.fields:
        yield solution, solution.fields[field]
    else:
        with opened(solution) as file:
            yield solution, field_of(file, field)


def cuts(
    source: Source, field: str, frames: Sequence[int], at: Mapping[str, int], most: int
) -> Iterator[np.ndarray]:
    """Planes or lines of a field, one for each of some frames (a steady file has frame 0 alone).

    `at`: the number of the point at which the field is cut, by axis. Along each other axis at most
    `most` points are read, as `evenly` picks them. Raises as `read`.
    """
    with values_of(source, field) as (solution, values):
        axes = list(solution.coordinates)
        extents = [
            n for n, axis in zip(values.shape[-len(axes) :], axes, strict=True) if axis not in at
        ]
        kept = [evenly(n, most) for n in extents]
        rows = kept[0].tolist() if len(kept[0]) < extents[0] else [slice(None)]
        for frame in frames:
            start = (frame,) if values.ndim > len(axes) else ()
            pieces = []
            for row in rows:
                ways = iter([row, *[slice(None)] * (len(extents) - 1)])
                key = start + tuple(at[axis] if axis in at else next(ways) for axis in axes)
                piece = values[key].reshape(-1, *extents[1:])
                pieces.append(piece[np.ix_(np.arange(len(piece)), *kept[1:])])
            yield np.concatenate(pieces)


def evenly(count: int, most: int) -> np.ndarray:
    """At most `most` of the numbers 0 to `count` - 1, evenly spread, with both ends."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


Block = tuple[Frame, int, list[np.ndarray]]
"""The frame, the first row, and the values in each of some files."""


def blocks(
    sources: Sequence[Source], field: str, frames: Sequence[Frame] | None = None
) -> Iterator[Block]:
    """One field of several files, of one shape, block by block: the files may exceed the memory.

    `frames`: by default all. Raises as `read` does.
    """
    with ExitStack() as stack:
        opened = [stack.enter_context(values_of(source, field)) for source in sources]
        first, axes = opened[0][1], len(opened[0][0].coordinates)
        extent, *rest = first.shape[-axes:]
        rows = max(1, BLOCK_BYTES // (math.prod(rest) * first.dtype.itemsize))
        for frame in np.ndindex(first.shape[:-axes]) if frames is None else frames:
            for start in range(0, extent, rows):
                place = (*frame, slice(start, start + rows))
                yield frame, start, [values[place] for _, values in opened]


def summary(source: Source) -> str:
    """The text of `heatsolve info`: the run, its grid and the range of each field.

    Fields are read block by block, so a file may exceed the memory; of a transient file only the
    last frame is read. Raises as `read` does.
    """
    solution = read(source, fields=())
    rows = [["title", solution.title]]
    scale, relative = solution.relative
    norms = {"residual": solution.norm, "threshold": "tolerance"}
    for name, value in solution.attributes.items():
        if name == "converged":
            marched = solution.time is not None and "threshold" not in solution.attributes
            rows.append(["reached its end" if marched else name, "yes" if value else "no"])
        elif name in norms and isinstance(value, float):
            rows.append([norms[name], _number(value / scale) + relative])
        elif name not in ("case", "scale", "relative_to", "norm_of"):
            rows.append([name.replace("_", " "), _number(value)])
    for axis, line in {**solution.coordinates, "time": solution.time}.items():
        if line is not None:
            ends = f"{_number(line[0])} to {_number(line[-1])} {solution.units[axis]}"
            rows.append([axis, f"{ends} ({len(line)} {'frames' if axis == 'time' else 'points'})"])
    rows += [["note", note] for note in solution.notes]
    table = [["field", "unit", "min", "max", "mean", "NaN"]]
    for name, statistics in ranges(solution).items():
        table.append([name, solution.units[name], *map(_number, statistics)])
    return "\n".join([*_columns(rows), "", *_columns(table)])


def ranges(source: Source) -> dict[str, tuple[float, float, float, int]]:
    """Minimum, maximum, mean of each field's last frame without NaN, and the number of its NaN.

    Read block by block. Raises as `read` does.
    """
    solution, result = read(source, fields=()), {}
    for name in solution.names:
        low, high, total, valid, missing = math.inf, -math.inf, 0.0, 0, 0
        for _, _, (block,) in blocks([solution], name, [solution.last]):
            numbers = block[~np.isnan(block)]
            valid, missing = valid + numbers.size, missing + block.size - numbers.size
            low, high = numbers.min(initial=low), numbers.max(initial=high)
            with np.errstate(all="ignore"):  # the mean of an infinite field may be inf or NaN
                total += numbers.sum(dtype=float)
        known = (low, high, total / valid) if valid else (math.nan, math.nan, math.nan)
        result[name] = (*known, missing)
    return result


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def _columns(rows: list[list[str]]) -> list[str]:
    """Lines of left-aligned columns, two blanks apart."""
    rows = [list(map(shown, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


@contextmanager
def opened(source: Path | Solution) -> Iterator[h5py.File]:
    """A field file, open for reading; for a Solution the file that it was read from."""
    path = source.path if isinstance(source, Solution) else source
    with failing("read", path):
        if not path.exists():
            raise InputError(f"there is no file {path}")
        about = path.stat()
        _try_out(path, about.st_mtime_ns, about.st_size)
        with h5py.File(path, "r", locking="best-effort") as file:
            if isinstance(source, Solution) and _mark(file) != source.mark:
                raise FileFailure(f"{path} has been replaced since it was first read")
            inspect(file)
            parts.check(path.resolve().parent, parts.recorded(file, "parts", "size"))
            yield file


def _mark(file: h5py.File) -> tuple[int, ...]:
    """Numbers that tell an open file from every other file that had or will have its name."""
    about = os.fstat(file.id.get_vfd_handle())
    return about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size


@lru_cache(maxsize=64)
def _try_out(path: Path, *_: int) -> None:
    """Inspect a file, and the parts that it names, in a process of its own, which may crash."""

    def look() -> None:
        with h5py.File(path, "r", locking="best-effort") as file:
            inspect(file)
            for name in field_names(file):
                if file[name].is_virtual:
                    parts.Linked(file[name]).look()

    survives(path, look)


def _demand(fields: Sequence[str], names: Sequence[str], path: Path) -> None:
    """Raise InputError for a field that a file does not have."""
    for field in fields:
        if field not in names:
            where = path if path.name else "the result in memory"
            raise InputError(f"{where} has no field {field!r}, only {', '.join(names)}")


def field_of(file: h5py.File, name: str) -> h5py.Dataset | parts.Linked:
    """A field to read from, whether its values lie in the file or in parts."""
    return parts.Linked(file[name]) if file[name].is_virtual else file[name]
