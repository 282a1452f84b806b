"""One part of a checkpoint: what one process wrote of each field, and the checksum of it all.

An HDF5 file with a contiguous dataset for each array. HDF5 only lays it out; the values are written
to their places by the system: as fast as raw, and a disk that fails in between is an error like
any other, where HDF5 would crash on closing its file.
"""

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import h5py
import numpy as np

from heatsolve.io.disk import Disk, reserve
from heatsolve.io.layout import damage, demand_group, demand_values, members

CHUNK_BYTES = 8 * 2**20

Arrays = Mapping[str, np.ndarray]
Window = Sequence[tuple[int, int]]
"""The part of the whole grid that an array holds, as (low, high) of each axis."""
Places = Sequence[tuple[int, np.ndarray]]


def write_part(path: Path, window: Window, fields: Arrays, history: Arrays) -> tuple[int, int]:
    """Write a part and force it to the disk; return its bytes and its checksum.

    Raises OSError if the disk fails.
    """
    with closing(Disk(path, "x+")) as disk:
        places = _lay_out(disk, window, {"fields": fields, "history": history})
        disk.check()
        if end := max((offset + values.nbytes for offset, values in places), default=0):
            reserve(disk.fileno(), 0, end)
        for offset, values in places:
            for chunk in chunks(values):
                offset = _write(disk.fileno(), _bytes(chunk), offset)
        # The checksum is of the memory, not of what the disk gives back, and done while it writes.
        with ThreadPoolExecutor(1) as helper:
            written = helper.submit(os.fsync, disk.fileno())
            size_and_checksum = _checksum(disk.fileno(), places)
            written.result()
        return size_and_checksum


def checksum_of(path: Path) -> tuple[int, int]:
    """Bytes and checksum of a file."""
    checksum, buffer = 0, bytearray(CHUNK_BYTES)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            checksum = zlib.crc32(memoryview(buffer)[:count], checksum)
        return file.tell(), checksum


def read_history(path: Path) -> dict[str, np.ndarray]:
    """The history in a part."""
    with h5py.File(path, "r", locking="best-effort") as file:
        history = demand_group(file, "history")
        return {name: demand_values(history, name)[:] for name in members(history)}


def read_fields(path: Path, window: Window, fields: Arrays, wanted: Window) -> None:
    """Fill in, of arrays that hold the window `wanted`, what a part with this `window` has."""
    both = [
        (max(low, first), min(high, last))
        for (low, high), (first, last) in zip(window, wanted, strict=True)
    ]
    if all(low < high for low, high in both):
        with h5py.File(path, "r", locking="best-effort") as file:
            for name, values in fields.items():
                stored = demand_values(demand_group(file, "fields"), name)
                if stored.shape != tuple(high - low for low, high in window):
                    raise damage(stored.parent, name, "does not fit its window")
                stored.read_direct(values, _within(window, both), _within(wanted, both))


def chunks(values: np.ndarray) -> Iterator[np.ndarray]:
    """An array in pieces along its first axis, which stay in a cache while they are worked on."""
    rows = max(1, CHUNK_BYTES * len(values) // max(1, values.nbytes))
    for start in range(0, len(values), rows):
        yield values[start : start + rows]


def _lay_out(disk: Disk, window: Window, groups: Mapping[str, Arrays]) -> Places:
    """Make the file but for its values; return where those of each array belong, in order."""
    places = []
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(disk, "w") as file:
        file.attrs["window"] = np.array(window)
        for group, arrays in groups.items():
            parent = file.create_group(group)
            for name, values in arrays.items():
                kind, space = h5py.h5t.py_create(values.dtype), h5py.h5s.create_simple(values.shape)
                dataset = h5py.h5d.create(parent.id, name.encode(), kind, space, plan)
                if values.nbytes:
                    places.append((dataset.get_offset(), values))
    return sorted(places, key=lambda place: place[0])


def _checksum(descriptor: int, places: Places) -> tuple[int, int]:
    """Bytes and checksum of a whole file: the values from memory, the rest as it was laid out."""
    position = checksum = 0
    for offset, values in places:
        checksum = zlib.crc32(os.pread(descriptor, offset - position, position), checksum)
        for chunk in chunks(values):
            checksum = zlib.crc32(_bytes(chunk), checksum)
        position = offset + values.nbytes
    size = max(position, os.fstat(descriptor).st_size)
    return size, zlib.crc32(os.pread(descriptor, size - position, position), checksum)


def _write(descriptor: int, data: memoryview, offset: int) -> int:
    """Write all the data at an offset; return the offset behind it."""
    while len(data):  # the system may take less than all of it
        count = os.pwrite(descriptor, data, offset)
        data, offset = data[count:], offset + count
    return offset


def _bytes(values: np.ndarray) -> memoryview:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def _within(window: Window, region: Window) -> tuple[slice, ...]:
    """A region of the grid as slices of an array that holds a window of it."""
    return tuple(
        slice(low - first, high - first)
        for (first, _), (low, high) in zip(window, region, strict=True)
    )
