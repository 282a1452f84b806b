"""Parts: the blocks of many processes, and how one field file stands for all of them.

Each process writes its block of the fields into a *part*, an HDF5 file of its own that is never
changed once it has its name. The parts of `NAME.h5` lie beside it in the folder `NAME.parts`. The
fields of `NAME.h5` are virtual datasets over them, by relative names, so file and folder can move
together.

HDF5 fills a virtual dataset whose source is missing, without an error. So heatsolve itself reads
from the parts, one after the other: an error names its part, and few parts are open at once.
"""

import math
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from heatsolve.errors import FileFailure
from heatsolve.io.disk import failing, folder_beside, sync
from heatsolve.io.layout import demand_group, demand_values

NAME = re.compile(r"\.?([0-9a-f]{8})-(\d{4,})-\d{4,}\.h5(\.\d+-[0-9a-f]{8}\.part)?")
"""Run, segment and rank, as in `part_name`; unfinished parts begin with a dot, end with `.part`."""


@dataclass(frozen=True)
class Part:
    """The file of one process: its name, its bytes, and its points, `[[low, high], ...]`."""

    name: str
    size: int
    window: list[list[int]]


@dataclass(frozen=True)
class Segment:
    """Consecutive frames, in one part from each process; together the parts cover the grid.

    times: the times of the frames, [None] for a steady run; fields: the dtypes of fields by name.
    """

    times: list[float | None]
    fields: dict[str, str]
    parts: list[Part]


def folder_of(path: Path) -> Path:
    """The folder of the parts of a field file."""
    return folder_beside(path, "parts")


def part_name(run: str, segment: int, rank: int) -> str:
    """The name of a part: 8 hexadecimal digits for the run, then numbers."""
    return f"{run}-{segment:04d}-{rank:04d}.h5"


def layout(
    folder: str, segments: Sequence[Segment], field: str, shape: tuple[int, ...], *, transient: bool
) -> h5py.VirtualLayout:
    """One field on a grid of `shape`, all its frames, as a virtual dataset over parts in `folder`.

    Raises ValueError unless all segments hold the same fields and each covers the grid once.
    """
    dtype = segments[0].fields[field]
    frames = sum(len(segment.times) for segment in segments)
    whole = h5py.VirtualLayout((frames, *shape) if transient else shape, dtype)
    first = 0
    for segment in segments:
        points = sum(math.prod(b - a for a, b in part.window) for part in segment.parts)
        if segment.fields != segments[0].fields or points != math.prod(shape):
            raise ValueError("every segment has the same fields, and covers the grid once")
        last = first + len(segment.times)
        for part in segment.parts:
            place = ([[first, last]] if transient else []) + part.window
            # HDF5 takes %b in the name of a source for a number.
            name = f"{folder}/{part.name}".replace("%", "%%")
            extent = tuple(b - a for a, b in place)
            source = h5py.VirtualSource(name, field, extent, dtype)
            # The frames are selected, because a part may hold later frames, too.
            own = source[tuple(slice(0, n) for n in extent)]
            whole[tuple(slice(*pair) for pair in place)] = own
        first = last
    return whole


class Linked:
    """A virtual dataset that is read like any dataset, but directly from the parts.

    Raises FileFailure where the parts do not cover it; when read, for a faulty part, by its name.
    """

    def __init__(self, dataset: h5py.Dataset) -> None:
        self.shape, self.dtype, self.ndim = dataset.shape, dataset.dtype, dataset.ndim
        here = Path(dataset.file.filename).resolve().parent
        # Of each part: its path, its dataset, and the indices here where it begins and ends.
        self.sources: list[tuple[Path, str, np.ndarray, np.ndarray]] = []
        for source in dataset.virtual_sources():
            first, last = map(np.array, source.vspace.get_select_bounds())
            path = _place(here, source.file_name.replace("%%", "%"))
            self.sources.append((path, source.dset_name, first, last + 1))
        if sum((last - first).prod() for *_, first, last in self.sources) != dataset.size:
            raise FileFailure(f"{dataset.file.filename} is damaged: parts do not cover its fields")

    def __getitem__(self, key: Any) -> np.ndarray:
        """Values at integers and slices without a step; axes without an index are read whole."""
        key = key if isinstance(key, tuple) else (key,)
        key += (slice(None),) * (self.ndim - len(key))
        low, high, _ = np.transpose(
            [
                item.indices(n) if isinstance(item, slice) else (item % n, item % n + 1, 1)
                for item, n in zip(key, self.shape, strict=True)
            ]
        )
        values = np.empty(np.maximum(high - low, 0), self.dtype)
        for path, name, first, last in self.sources:
            start, stop = np.maximum(low, first), np.minimum(high, last)
            if (start < stop).all():
                there, here = _slices(start - first, stop - first), _slices(start - low, stop - low)
                with self._opened(path, name) as dataset:
                    dataset.read_direct(values, there, here)
        kept = [n for n, item in zip(values.shape, key, strict=True) if isinstance(item, slice)]
        return values.reshape(kept)

    @property
    def compression(self) -> str | None:
        """The compression filter of the parts."""
        path, name, *_ = self.sources[0]
        with self._opened(path, name) as dataset:
            return dataset.compression

    def look(self) -> None:
        """Open each part, as `__getitem__` does."""
        for path, name, *_ in self.sources:
            with self._opened(path, name):
                pass

    @contextmanager
    def _opened(self, path: Path, name: str) -> Iterator[h5py.Dataset]:
        """A dataset of a part."""
        with failing("read", path), h5py.File(path, "r", locking="best-effort") as file:
            yield demand_values(file, name)


def _slices(start: np.ndarray, stop: np.ndarray) -> tuple[slice, ...]:
    return tuple(map(slice, start.tolist(), stop.tolist()))


def _place(folder: Path, name: str) -> Path:
    """The path of the part of a relative name. Raises FileFailure for a name that no part has."""
    *above, part = name.split("/")
    if not NAME.fullmatch(part) or len(above) > 1 or {"", ".", ".."}.intersection(above):
        raise FileFailure(f"{name!r} is not the name of a part")
    return folder / name


def record(file: h5py.File, group: str, column: str, parts: Sequence[tuple[str, int]]) -> None:
    """Write the names of parts, if any, with a number each, as variables that xarray can open."""
    if parts:
        names, numbers = zip(*parts, strict=True)
        place = file.create_group(group)
        place["name"], place[column] = list(names), np.array(numbers, np.int64)
        place["name"].make_scale("name")
        place[column].dims[0].attach_scale(place["name"])


def recorded(file: h5py.File, group: str, column: str) -> list[tuple[str, int]]:
    """The names of the parts, and the numbers, that `record` wrote; none if it wrote nothing."""
    if group not in file:
        return []
    result = demand_group(file, group)
    names = demand_values(result, "name", "O").asstr()[:]
    numbers = demand_values(result, column, "iu")[:]
    return [(str(name), int(number)) for name, number in zip(names, numbers, strict=True)]


def lineage(file: h5py.File, field: str) -> list[tuple[str, int]]:
    """The parts that went into a transient file, and the number of the frame after each.

    These are its own parts, and the parts that a gathered file recorded, even if it is a part now.
    """
    result = recorded(file, "gathered", "frames")
    for path, _, first, last in Linked(file[field]).sources if file[field].is_virtual else ():
        with failing("read", path), h5py.File(path, "r", locking="best-effort") as part:
            earlier = recorded(part, "gathered", "frames")
        result += [(name, frames) for name, frames in earlier if frames <= last[0] - first[0]]
        result.append((path.name, int(last[0])))
    return result


def check(folder: Path, parts: Iterable[tuple[str, int]]) -> None:
    """Raise FileFailure, with its name, for the first part that is missing or not as written."""
    for name, size in parts:
        path = _place(folder, name)
        with failing("read", path):
            if not path.is_file():
                raise FileFailure(f"part {path} is missing")
            if (actual := path.stat().st_size) != size:
                raise FileFailure(f"part {path} is damaged: it has {actual} bytes, not {size}")
            if not h5py.is_hdf5(path):
                raise FileFailure(f"part {path} is damaged: it is no HDF5 file")


def take_over(path: Path, segments: Sequence[Segment], run: str) -> list[Segment]:
    """The segments with which a restart begins, checked.

    If their parts have been gathered into the plain file `path`, that file, under another name,
    becomes their only part: a plain file is never changed either, only replaced. A gathering
    process that was killed may have left some of the parts.

    Raises FileFailure for a part that is missing or damaged.
    """
    folder = folder_of(path)
    parts = [part for segment in segments for part in segment.parts]
    if parts and h5py.is_hdf5(path) and not all((folder / p.name).exists() for p in parts):
        whole = folder / part_name(run, 0, 0)
        times = [time for segment in segments for time in segment.times]
        ends = accumulate(len(segment.times) for segment in segments)
        wanted = {p.name: end for s, end in zip(segments, ends, strict=True) for p in s.parts}
        with failing("read", path), h5py.File(path, "r", locking="best-effort") as file:
            result = wanted.items() <= set(recorded(file, "gathered", "frames"))
            shape = file[next(iter(segments[0].fields))].shape[1:] if result else ()
        if result:
            with failing("write", whole):
                folder.mkdir(exist_ok=True)
                try:
                    os.link(path, whole)
                except OSError:  # not every file system has links
                    shutil.copyfile(path, whole)
                    sync(whole)
                sync(folder)
                part = Part(whole.name, whole.stat().st_size, [[0, extent] for extent in shape])
            return [Segment(times, segments[0].fields, [part])]
    check(folder, [(part.name, part.size) for part in parts])
    return list(segments)


def remove(folder: Path, kept: Collection[str] = (), run: str = "", first: int = 0) -> None:
    """Remove the parts in a folder, of one run if it is given, and the folder if nothing is left.

    kept: names of parts that stay; first: the first segment to remove. Files that are no parts
    stay, and so, without an error, do parts that the system cannot remove.
    """
    with suppress(OSError):
        for name in os.listdir(folder):
            match = NAME.fullmatch(name)
            if match and name not in kept and run in ("", match[1]) and int(match[2]) >= first:
                (folder / name).unlink(missing_ok=True)
        folder.rmdir()
