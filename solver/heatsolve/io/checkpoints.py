"""Checkpoints: written whole or not at all, and checked whole before they are read.

The folder `CASE.checkpoints/` holds a folder for each checkpoint, named by its number of iterations
or steps: one HDF5 part from each process that wrote it, and `manifest.json`, with the size and the
checksum of every part and its own checksum. A checkpoint is written under a hidden name, forced to
the disk and renamed before an older one is removed: at whatever moment a run is killed, the last
complete checkpoint is there.

The checksum is CRC-32. It finds every flipped bit, every burst of up to 32 flipped bits, and all
but one in 2**32 of other accidents; SHA-256 takes several times as long, to guard against intent.
"""

import errno
import json
import os
import re
import secrets
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import h5py
import numpy as np
from pydantic import BaseModel, Field, ValidationError, model_validator

from heatsolve import __version__
from heatsolve.control.controller import Agree, Start, State
from heatsolve.errors import Diverged, FileFailure, HeatsolveError, InputError
from heatsolve.io.disk import Disk, failing, reserve, sync
from heatsolve.io.layout import damage, demand_group, demand_values, members
from heatsolve.parallel.ranks import Ranks, agreed
from heatsolve.report import Report
from heatsolve.stencil.grid import intersection

T = TypeVar("T")
CHUNK_BYTES = 8 * 2**20

Arrays = Mapping[str, np.ndarray]
Window = Sequence[tuple[int, int]]
"""The part of the whole grid that an array holds, as (low, high) of each axis."""
Places = Sequence[tuple[int, np.ndarray]]

Kind = Annotated[str, Field(pattern=r"^[<>|]?[fiu]\d$")]
"""The type of an array, as NumPy writes it."""


class PartRecord(BaseModel, strict=True):
    """A part in the manifest: the checksum guards against accidents, the types against intent."""

    name: Annotated[str, Field(pattern=r"^part-\d{4,}\.h5$")]
    window: list[tuple[int, int]]
    points: list[tuple[int, int]] = []
    bytes: int
    crc32: int


class Manifest(BaseModel, strict=True):
    """The manifest of a checkpoint. `fields`: the types of the fields, by name; `points`: the types
    of the arrays at the points of a file, whose windows are the `points` of the parts."""

    heatsolve: str
    number: int
    shape: list[int]
    fields: dict[str, Kind]
    points: dict[str, Kind] = {}
    parts: list[PartRecord]
    record: dict[str, Any]

    @model_validator(mode="after")
    def _windows_have_the_axes_of_the_grid(self) -> "Manifest":
        windows = [part.window for part in self.parts]
        windows += [part.points for part in self.parts if self.points]
        if any(len(window) != len(self.shape) for window in windows):
            raise ValueError("a window has other axes than the grid")
        return self

    @property
    def state(self) -> State:
        """Number and record of the checkpoint."""
        return State(self.number, self.record)


class CheckpointStore:
    """The checkpoints of one run; all processes call each method together.

    folder: the folder of all checkpoints; made when the first one is saved.
    shape: the shape of the whole grid of unknowns, slowest axis first.
    window: the part of the grid that this process has, as ((low, high), ...). More or fewer
        processes, with other windows, may have written a checkpoint.
    keep: the number of checkpoints to keep, the newest ones.
    points: the window of this process in the points of a file, for the arrays at these points.

    If one process fails, all processes raise its error.
    """

    def __init__(
        self,
        folder: Path,
        shape: Sequence[int],
        window: Window,
        ranks: Ranks,
        keep: int = 2,
        points: Window = (),
    ):
        self.folder = Path(folder)
        self.damaged: list[str] = []
        """The checkpoints that `newest` had to skip and why, one sentence each."""
        self._shape, self._window = tuple(shape), tuple(window)
        self._points = tuple(points)
        self._ranks, self._keep = ranks, keep
        self._deleting: threading.Thread | None = None

    def save(self, snapshot: State) -> Path:
        """Write a checkpoint, remove older checkpoints beyond `keep`, and return its folder.

        Checkpoints of a higher number are removed, too: they belong to a run that was given up.

        Raises Diverged for a field with NaN or Inf, FileFailure if the disk fails; earlier
        checkpoints are then untouched. Raises ValueError for a block that does not fit the window,
        TypeError for a record that JSON cannot hold.
        """
        for window, arrays in ((self._window, snapshot.fields), (self._points, snapshot.points)):
            if any(values.shape != _extent(window) for values in arrays.values()):
                raise ValueError(f"every field has the shape {_extent(window)} of the window")
        json.dumps(snapshot.record)  # all processes raise a TypeError here
        self._refuse_not_finite(snapshot)
        place = self.folder / f"{snapshot.number:012d}"
        aside = self._on_first(lambda: self._begin(place))
        try:
            parts = self._on_all(lambda: self._write_part(aside, place, snapshot))
            self._on_first(lambda: self._finish(aside, place, snapshot, parts))
        except FileFailure:
            with suppress(OSError):  # else the next save deletes it
                if self._ranks.rank == 0:
                    delete(aside)
            raise
        return place

    def newest(self, agree: Agree | None = None) -> State | None:
        """The newest valid checkpoint, None if there is none; see `load`.

        Damaged checkpoints are skipped, and `damaged` lists them.
        """
        self.damaged = []
        for path in self._on_first(self._newest_first):
            try:
                return self.load(path, agree)
            except FileFailure as failure:
                self.damaged.append(str(failure))
        return None

    def latest(self) -> State | None:
        """The newest checkpoint with a readable manifest: only its number and its record."""

        def look() -> State | None:
            for path in self._newest_first():
                with suppress(HeatsolveError):
                    return read_manifest(path).state
            return None

        return self._on_first(look)

    def load(self, path: Path, agree: Agree | None = None) -> State:
        """The checkpoint in this folder, with the blocks of this process's window.

        agree: called with the number and the record before any field is read; it raises an error
            if the run cannot go on from this checkpoint.

        Raises FileFailure for a damaged checkpoint, InputError for a missing one and for one of
        another grid.
        """
        path = Path(path)
        manifest = self._on_first(lambda: read_manifest(path))
        if agree is not None:
            agree(manifest.state)
        if tuple(manifest.shape) != self._shape:
            old, new = (" x ".join(map(str, reversed(s))) for s in (manifest.shape, self._shape))
            raise InputError(f"the checkpoint {path} is of {old} unknowns, the case has {new}")
        mine = manifest.parts[self._ranks.rank :: self._ranks.size]
        self._on_all(lambda: verify(path, mine))
        snapshot = manifest.state
        self._on_all(lambda: self._read(path, manifest, snapshot))
        return snapshot

    def clear(self) -> None:
        """Remove all checkpoints, and no other files. Raises FileFailure."""

        def clear() -> None:
            self._wait()
            with failing("remove", self.folder):
                for path in folders(self.folder, COMPLETE):
                    remove(path)
                for path in folders(self.folder, ASIDE):
                    delete(path)
            with suppress(OSError):  # it is not empty, or was never there
                self.folder.rmdir()

        self._on_first(clear)

    # ---- all processes together --------------------------------------------------------------

    def _on_all(self, work: Callable[[], T]) -> list[T]:
        """The result of the work on each process; if one process fails, all raise its error."""
        with agreed(self._ranks):
            result = work()
        return self._ranks.gather(result)

    def _on_first(self, work: Callable[[], T]) -> T:
        """Do the work on rank 0, and return its result on every process."""
        return self._on_all(work if self._ranks.rank == 0 else lambda: None)[0]  # type: ignore

    def _refuse_not_finite(self, snapshot: State) -> None:
        own = [
            name
            for name, values in (*snapshot.fields.items(), *snapshot.points.items())
            if not all(np.isfinite(piece).all() for piece in chunks(values))
        ]
        for name, *_ in filter(None, self._ranks.gather(own)):
            unit = snapshot.record.get("unit", "iterations")
            raise Diverged(
                f"diverged: {name.replace('_', ' ')} is not finite (NaN or Inf) after "
                f"{snapshot.number} {unit}, no checkpoint is made of it"
            )

    # ---- writing -----------------------------------------------------------------------------

    def _begin(self, place: Path) -> Path:
        """Remove the files of a killed run; return a new hidden folder."""
        self._wait()
        if not self.folder.is_dir():
            with failing("write", self.folder):
                self.folder.mkdir()
                sync(self.folder.parent)
        with failing("write", place):
            for path in folders(self.folder, ASIDE):
                delete(path)
            for path in folders(self.folder, COMPLETE):
                if path.suffix:
                    replace(path)
            if os.path.lexists(place) and place not in folders(self.folder, COMPLETE):
                raise FileExistsError(errno.EEXIST, "")
            aside = hidden(place)
            aside.mkdir()
        return aside

    def _write_part(self, aside: Path, place: Path, snapshot: State) -> dict[str, Any]:
        """Write the part of this process; return its entry in the manifest."""
        rank = self._ranks.rank
        name = f"part-{rank:04d}.h5"
        history = snapshot.history if rank == 0 else {}
        arrays = {key: np.asarray(values) for key, values in history.items()}
        with failing("write", place):
            args = self._window, snapshot.fields, arrays, snapshot.points
            size, checksum = write_part(aside / name, *args)
        entry = {"name": name, "window": self._window, "bytes": size, "crc32": checksum}
        return entry | ({"points": self._points} if snapshot.points else {})

    def _finish(
        self, aside: Path, place: Path, snapshot: State, parts: list[dict[str, Any]]
    ) -> None:
        """Write the manifest, give the folder its name, remove checkpoints beyond `keep`."""
        content = {
            "schema": SCHEMA,
            "heatsolve": __version__,
            "number": snapshot.number,
            "shape": self._shape,
            "fields": {name: values.dtype.str for name, values in snapshot.fields.items()},
            "points": {name: values.dtype.str for name, values in snapshot.points.items()},
            "parts": parts,
            "record": snapshot.record,
        }
        with failing("write", place):
            (aside / MANIFEST).write_bytes(_sealed(json.dumps(content).encode()))
            sync(aside / MANIFEST)
            sync(aside)
            occupied = place.exists()
            final = place.with_suffix(".new") if occupied else place
            aside.rename(final)
            sync(self.folder)
            if occupied:
                replace(final)
        complete = {number_of(path): path for path in folders(self.folder, COMPLETE)}
        kept = sorted(number for number in complete if number <= snapshot.number)[-self._keep :]
        needless = [complete[number] for number in complete.keys() - kept]
        with suppress(OSError):  # the next save tries again
            asides = {path.rename(hidden(path)): path for path in needless}

            def delete_all() -> None:
                for aside, path in asides.items():
                    with suppress(OSError):
                        delete(aside, path)

            # Beside the run: to delete checkpoints can take half as long as to write them.
            self._deleting = threading.Thread(target=delete_all)
            self._deleting.start()

    def _wait(self) -> None:
        if self._deleting is not None:
            self._deleting.join()

    # ---- reading -----------------------------------------------------------------------------

    def _newest_first(self) -> list[Path]:
        return sorted(
            folders(self.folder, COMPLETE),
            key=lambda path: (number_of(path), path.suffix),
            reverse=True,
        )

    def _read(self, path: Path, manifest: Manifest, snapshot: State) -> None:
        """Fill in the history, and the fields from all parts that overlap the window."""
        for name, kind in manifest.fields.items():
            snapshot.fields[name] = np.empty(_extent(self._window), kind)
        for name, kind in manifest.points.items():
            snapshot.points[name] = np.empty(_extent(self._points), kind)
        for rank, part in enumerate(manifest.parts):
            groups = [("fields", snapshot.fields, part.window, self._window)]
            if manifest.points:
                groups.append(("points", snapshot.points, part.points, self._points))
            shared = [(*each, both) for each in groups if (both := _both(each[2], each[3]))]
            file = path / part.name
            if rank == 0 or shared:
                with failing("read", file), h5py.File(file, "r", locking="best-effort") as stored:
                    if rank == 0:
                        history = demand_group(stored, "history")
                        lines = {name: demand_values(history, name) for name in members(history)}
                        snapshot.history = {name: line[:] for name, line in lines.items()}
                    for group, arrays, window, wanted, both in shared:
                        read_fields(stored, window, arrays, wanted, both, group)


# ---- where a run begins -------------------------------------------------------------------------

RECORD = {"case": str, "unit": str, "frames": list}
"""The keys in the record of every checkpoint, and their types."""


def find_state(
    store: CheckpointStore, start: Start, refusal: Callable[[State], str], report: Report
) -> State | None:
    """The state to begin from, None for a fresh start; asks all processes.

    `refusal` returns the reason why this run cannot go on from a state, "" if it can, and raises
    InputError for a state of another case. Raises InputError where the case has changed too
    much since, or where a fresh start would remove the checkpoints of an unfinished run;
    FileFailure for a damaged `start.checkpoint`.
    """
    passed_by: list[str] = []

    def agree(state: State, error: type[HeatsolveError] = FileFailure) -> None:
        if not all(isinstance(state.record.get(key), kind) for key, kind in RECORD.items()):
            raise FileFailure(f"the checkpoint after {state.number} is not one of a run")
        reason = refusal(state)
        if reason:
            passed_by.append(
                f"this run cannot go on from the checkpoint after {state.number} "
                f"{state.record['unit']} in {store.folder}: {reason}"
            )
            raise error(passed_by[-1])

    state = None
    if start.checkpoint is not None:
        state = store.load(start.checkpoint, lambda state: agree(state, InputError))
        if state.record["frames"] and start.checkpoint.parent.resolve() != store.folder.resolve():
            raise InputError(
                "--restart-from: a march goes on only in the file of its first frames, "
                f"the one beside {start.checkpoint.parent}"
            )
    elif start.restart:
        state = store.newest(agree)
        refused = passed_by[0] if state is None and passed_by else ""
        for sentence in store.damaged:
            if sentence != refused:
                report.warn(sentence)
        if refused:
            raise InputError(f"{refused} (--overwrite starts anew)")
        if state is None:
            report.line(f"no checkpoint in {store.folder}, a fresh start")
    elif not start.overwrite:
        latest = store.latest()
        if latest is not None and not latest.finished:
            raise InputError(
                f"{store.folder} holds an unfinished run, stopped after {latest.number} "
                f"{latest.record['unit']}: go on with --restart, or begin anew with --overwrite"
            )
    if state is not None:
        report.line(f"goes on after {state.number} {state.record['unit']}")
    return state


# ---- folders: files of other programs in them are never removed --------------------------------

COMPLETE = re.compile(r"(\d{12,})(\.new)?")
"""The name of a checkpoint; with `.new` it replaces an older checkpoint of the same number."""
ASIDE = re.compile(r"\.\d{12,}(\.new)?\.[0-9a-f]{8}")
"""The name of a checkpoint that is being written or removed."""
OURS = re.compile(r"manifest\.json|part-\d{4,}\.h5")


def folders(where: Path, pattern: re.Pattern[str]) -> list[Path]:
    """The folders in the folder `where` whose names match the pattern. Raises FileFailure."""
    if not where.is_dir():
        return []
    with failing("read", where):
        named = [path for path in where.iterdir() if pattern.fullmatch(path.name)]
    return [path for path in named if path.is_dir() and not path.is_symlink()]


def number_of(path: Path) -> int:
    """Iterations or steps of a checkpoint."""
    return int(path.name.removesuffix(".new"))


def hidden(path: Path) -> Path:
    """A unique hidden name for a checkpoint while it is written or removed."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def replace(newer: Path) -> None:
    """Let a `.new` checkpoint replace the older one of its number; meanwhile the `.new` is valid.

    Raises OSError, as `remove` and `delete` do.
    """
    place = newer.with_suffix("")
    if place.exists():
        remove(place)
    newer.rename(place)
    sync(place.parent)


def remove(path: Path) -> None:
    """Rename a checkpoint, then delete it: a half-deleted checkpoint never looks complete."""
    delete(path.rename(hidden(path)), path)


def delete(aside: Path, path: Path | None = None) -> None:
    """Delete a checkpoint's files and its folder; a folder with other files is renamed to `path`.

    A missing file is no failure: the thread of an earlier run may be deleting the same folder.
    """
    with suppress(FileNotFoundError):
        for file in list(aside.iterdir()):
            if OURS.fullmatch(file.name):
                file.unlink(missing_ok=True)
    with suppress(OSError):
        aside.rmdir()
    if path is not None and aside.exists():
        aside.rename(path)


# ---- manifests: JSON with size and checksum of every part, and its own checksum ----------------

SCHEMA = 1
MANIFEST = "manifest.json"


def read_manifest(path: Path) -> Manifest:
    """The content of a checkpoint's manifest.

    Raises InputError where there is no checkpoint, FileFailure if the manifest is damaged or of
    a version that is not known here.
    """
    if not path.is_dir():
        raise InputError(f"there is no checkpoint {path}")
    if not (path / MANIFEST).exists():
        raise _damage(path, f"{MANIFEST} is missing")
    with failing("read", path / MANIFEST):
        data = (path / MANIFEST).read_bytes()
    content = data.partition(b"\n")[2][:-2]
    if data != _sealed(content):
        raise _damage(path, f"{MANIFEST} is not what was written")
    with failing("read", path / MANIFEST):
        manifest = json.loads(content)
        if not isinstance(manifest, dict) or "schema" not in manifest:
            raise ValueError("no manifest")
    if manifest["schema"] != SCHEMA:
        raise FileFailure(
            f"the checkpoint {path} is in the form {manifest['schema']} of heatsolve "
            f"{manifest.get('heatsolve')}, which is not known here"
        )
    try:
        return Manifest.model_validate_json(content)
    except ValidationError:
        raise _damage(path, f"{MANIFEST} has not the form of one") from None


def verify(path: Path, parts: list[PartRecord]) -> None:
    """Raise FileFailure unless each part has the size and the checksum of the manifest."""
    for part in parts:
        file = path / part.name
        if not file.exists():
            raise _damage(path, f"{file.name} is missing")
        with failing("read", file):
            size, checksum = checksum_of(file)
        if size != part.bytes:
            raise _damage(path, f"{file.name} has {size} bytes in place of {part.bytes}")
        if checksum != part.crc32:
            raise _damage(path, f"{file.name} is not what was written")


def _sealed(content: bytes) -> bytes:
    return b'{"crc32": %d, "content":\n%s}\n' % (zlib.crc32(content), content)


def _damage(path: Path, what: str) -> FileFailure:
    return FileFailure(f"the checkpoint {path} is damaged: {what}")


# ---- parts: the blocks that one process writes, and their checksum ------------------------------


def write_part(
    path: Path, window: Window, fields: Arrays, history: Arrays, points: Arrays | None = None
) -> tuple[int, int]:
    """Write a part and force it to the disk; return its size (bytes) and its checksum.

    Raises OSError if the disk fails.
    """
    with closing(Disk(path, "x+")) as disk:
        groups = {"fields": fields, "history": history} | ({"points": points} if points else {})
        places = _lay_out(disk, window, groups)
        disk.check()
        if end := max((offset + values.nbytes for offset, values in places), default=0):
            reserve(disk.fileno(), 0, end)
        for offset, values in places:
            for chunk in chunks(values):
                offset = _write(disk.fileno(), _bytes(chunk), offset)
        # The checksum is computed from memory, not from the disk, while the disk writes.
        with ThreadPoolExecutor(1) as helper:
            written = helper.submit(os.fsync, disk.fileno())
            size_and_checksum = _checksum(disk.fileno(), places)
            written.result()
        return size_and_checksum


def checksum_of(path: Path) -> tuple[int, int]:
    """Size (bytes) and checksum of a file."""
    checksum, buffer = 0, bytearray(CHUNK_BYTES)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            checksum = zlib.crc32(memoryview(buffer)[:count], checksum)
        return file.tell(), checksum


def read_fields(
    file: h5py.File,
    window: Window,
    fields: Arrays,
    wanted: Window,
    region: Window,
    group: str,
) -> None:
    """Fill `region` in arrays that hold the window `wanted`, from a part that holds `window`."""
    for name, values in fields.items():
        stored = demand_values(demand_group(file, group), name)
        if stored.shape != _extent(window):
            raise damage(stored.parent, name, "does not fit its window")
        stored.read_direct(values, _within(window, region), _within(wanted, region))


def chunks(values: np.ndarray) -> Iterator[np.ndarray]:
    """Pieces of an array along its first axis, small enough to stay in a cache while in use."""
    rows = max(1, CHUNK_BYTES * len(values) // max(1, values.nbytes))
    for start in range(0, len(values), rows):
        yield values[start : start + rows]


def _lay_out(disk: Disk, window: Window, groups: Mapping[str, Arrays]) -> Places:
    """Make the file without values; return each array with its offset in it, in ascending order."""
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
    """Size (bytes) and checksum of a whole file: values from memory, the other bytes from it."""
    position = checksum = 0
    for offset, values in places:
        checksum = zlib.crc32(os.pread(descriptor, offset - position, position), checksum)
        for chunk in chunks(values):
            checksum = zlib.crc32(_bytes(chunk), checksum)
        position = offset + values.nbytes
    size = max(position, os.fstat(descriptor).st_size)
    return size, zlib.crc32(os.pread(descriptor, size - position, position), checksum)


def _write(descriptor: int, data: memoryview, offset: int) -> int:
    """Write all the data at an offset; return the offset behind the data."""
    while len(data):  # the system may take less than all of it
        count = os.pwrite(descriptor, data, offset)
        data, offset = data[count:], offset + count
    return offset


def _bytes(values: np.ndarray) -> memoryview:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def _extent(window: Window) -> tuple[int, ...]:
    """The shape of an array that holds a window."""
    return tuple(high - low for low, high in window)


def _both(window: Window, other: Window) -> Window:
    """The region that two windows share; empty if they share none."""
    both = intersection((tuple(window), tuple(other)))
    return both if all(low < high for low, high in both) else ()


def _within(window: Window, region: Window) -> tuple[slice, ...]:
    """A region of the grid as slices of an array that holds a window of it."""
    return tuple(
        slice(low - first, high - first)
        for (first, _), (low, high) in zip(window, region, strict=True)
    )
