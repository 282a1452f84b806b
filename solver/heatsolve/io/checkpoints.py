"""Checkpoints: written whole or not at all, and checked whole before they are read.

A folder `CASE.checkpoints/` holds a folder for each checkpoint, named by its number of iterations
or steps. In that lie one HDF5 part for each process that wrote it, and `manifest.json`, which
knows size and checksum of every part, and its own. It is written under a hidden name, forced to
the disk and renamed before an older one goes: at whatever moment a run is killed, the last
complete checkpoint is there.

The checksum is CRC-32. It finds every single flipped bit, every burst of up to 32, and all but one
in 2**32 of other accidents; SHA-256 would cost several times as much and guard against intent.
"""

import errno
import json
import os
import re
import secrets
import threading
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from heatsolve import __version__
from heatsolve.control.controller import Agree, State
from heatsolve.errors import Diverged, FileFailure, HeatsolveError, InputError
from heatsolve.io.checkpoint_part import (
    Window,
    checksum_of,
    chunks,
    read_fields,
    read_history,
    write_part,
)
from heatsolve.io.disk import failing, sync
from heatsolve.parallel.ranks import Ranks

T = TypeVar("T")


class CheckpointStore:
    """The checkpoints of one run; all processes call each method together.

    folder: where they are; made when the first is saved.
    shape: of the whole grid of unknowns, slowest axis first.
    window: what of it this process has, as ((low, high), ...). It may differ from that of the
        process which wrote the checkpoint, and so may the number of processes.
    keep: so many are kept, the newest ones.

    A failure of one process is raised by all of them.
    """

    def __init__(
        self, folder: Path, shape: Sequence[int], window: Window, ranks: Ranks, keep: int = 2
    ):
        self.folder = Path(folder)
        self.damaged: list[str] = []
        """What `newest` had to skip and why, one sentence each."""
        self._shape, self._window = tuple(shape), tuple(window)
        self._extent = tuple(high - low for low, high in window)
        self._ranks, self._keep = ranks, keep
        self._deleting: threading.Thread | None = None

    def save(self, snapshot: State) -> Path:
        """Write a checkpoint and remove those that it makes needless; return its folder.

        Those of a higher number go, too: they are of a course that was given up.

        Raises Diverged for a field with NaN or Inf, FileFailure if the disk fails; earlier
        checkpoints are then untouched. Raises ValueError for a block that does not fit the window,
        TypeError for a record that JSON cannot say.
        """
        if any(values.shape != self._extent for values in snapshot.fields.values()):
            raise ValueError(f"every field has the shape {self._extent} of the window")
        json.dumps(snapshot.record)  # what it cannot say, all processes raise here
        self._refuse_not_finite(snapshot)
        place = self.folder / f"{snapshot.number:012d}"
        aside = self._on_first(lambda: self._begin(place))
        try:
            parts = self._on_all(lambda: self._write_part(aside, place, snapshot))
            self._on_first(lambda: self._finish(aside, place, snapshot, parts))
        except FileFailure:
            with suppress(OSError):  # else the next one to be saved does it
                if self._ranks.rank == 0:
                    delete(aside)
            raise
        return place

    def newest(self, agree: Agree | None = None) -> State | None:
        """The newest valid checkpoint, None if there is none; see `load`.

        Damaged ones are passed over, `damaged` then tells of them.
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
                    manifest = read_manifest(path)
                    return State(manifest["number"], manifest["record"])
            return None

        return self._on_first(look)

    def load(self, path: Path, agree: Agree | None = None) -> State:
        """The checkpoint in this folder, with the blocks of this process's window.

        agree: is called with number and record before any field is read, to raise what it has
            against going on from it.

        Raises FileFailure for a damaged one, InputError where there is none or where it is of
        another grid.
        """
        path = Path(path)
        manifest = self._on_first(lambda: read_manifest(path))
        if agree is not None:
            agree(State(manifest["number"], manifest["record"]))
        if tuple(manifest["shape"]) != self._shape:
            old, new = (" x ".join(map(str, reversed(s))) for s in (manifest["shape"], self._shape))
            raise InputError(f"the checkpoint {path} is of {old} unknowns, the case has {new}")
        mine = manifest["parts"][self._ranks.rank :: self._ranks.size]
        self._on_all(lambda: verify(path, mine))
        snapshot = State(manifest["number"], manifest["record"])
        self._on_all(lambda: self._read(path, manifest, snapshot))
        return snapshot

    def clear(self) -> None:
        """Remove all checkpoints, and nothing that is not ours. Raises FileFailure."""

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
        """What the work gives on each process; what one of them cannot do is raised by all."""
        result: tuple[Any, HeatsolveError | None]
        try:
            result = work(), None
        except HeatsolveError as error:
            result = None, error
        results = self._ranks.gather(result)
        for _, failure in results:
            if failure is not None:
                raise failure
        return [value for value, _ in results]

    def _on_first(self, work: Callable[[], T]) -> T:
        """What the work gives on rank 0, on every process."""
        return self._on_all(work if self._ranks.rank == 0 else lambda: None)[0]  # type: ignore

    def _refuse_not_finite(self, snapshot: State) -> None:
        own = [
            name
            for name, values in snapshot.fields.items()
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
        """Clear away what a killed run left; return a new hidden folder."""
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
        """Write the part of this process; return what the manifest says of it."""
        rank = self._ranks.rank
        name = f"part-{rank:04d}.h5"
        history = snapshot.history if rank == 0 else {}
        arrays = {key: np.asarray(values) for key, values in history.items()}
        with failing("write", place):
            size, checksum = write_part(aside / name, self._window, snapshot.fields, arrays)
        return {"name": name, "window": self._window, "bytes": size, "crc32": checksum}

    def _finish(
        self, aside: Path, place: Path, snapshot: State, parts: list[dict[str, Any]]
    ) -> None:
        """Write the manifest, give the folder its name, remove the checkpoints of no more use."""
        content = {
            "heatsolve": __version__,
            "number": snapshot.number,
            "shape": self._shape,
            "fields": {name: values.dtype.str for name, values in snapshot.fields.items()},
            "parts": parts,
            "record": snapshot.record,
        }
        with failing("write", place):
            write_manifest(aside, content)
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
        with suppress(OSError):  # the next one to be saved tries again
            self._delete_meanwhile({path.rename(hidden(path)): path for path in needless})

    def _delete_meanwhile(self, asides: dict[Path, Path]) -> None:
        """Delete folders while the run goes on: that can take half as long as writing them."""

        def delete_all() -> None:
            for aside, path in asides.items():
                with suppress(OSError):
                    delete(aside, path)

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

    def _read(self, path: Path, manifest: dict[str, Any], snapshot: State) -> None:
        """Fill in the history, and the fields from all parts that overlap the window."""
        for name, kind in manifest["fields"].items():
            snapshot.fields[name] = np.empty(self._extent, kind)
        for rank, part in enumerate(manifest["parts"]):
            file = path / part["name"]
            with failing("read", file):
                if rank == 0:
                    snapshot.history = read_history(file)
                read_fields(file, part["window"], snapshot.fields, self._window)


# ---- folders: what is not ours in them is never removed ----------------------------------------

COMPLETE = re.compile(r"(\d{12,})(\.new)?")
"""A checkpoint; `.new` is one that replaces another of its number."""
ASIDE = re.compile(r"\.\d{12,}(\.new)?\.[0-9a-f]{8}")
"""What is being written or removed."""
OURS = re.compile(r"manifest\.json|part-\d{4,}\.h5")


def folders(where: Path, pattern: re.Pattern[str]) -> list[Path]:
    """The folders in a folder whose names have this pattern. Raises FileFailure."""
    if not where.is_dir():
        return []
    with failing("read", where):
        named = [path for path in where.iterdir() if pattern.fullmatch(path.name)]
    return [path for path in named if path.is_dir() and not path.is_symlink()]


def number_of(path: Path) -> int:
    """Iterations or steps of a checkpoint."""
    return int(path.name.removesuffix(".new"))


def hidden(path: Path) -> Path:
    """A name of its own for a checkpoint while it is written or removed."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def replace(newer: Path) -> None:
    """Let a `.new` checkpoint take the place of the other of its number: it is valid meanwhile.

    Raises OSError, as the next two.
    """
    place = newer.with_suffix("")
    if place.exists():
        remove(place)
    newer.rename(place)
    sync(place.parent)


def remove(path: Path) -> None:
    """Remove a checkpoint: out of the way first, so that none which is half removed looks whole."""
    delete(path.rename(hidden(path)), path)


def delete(aside: Path, path: Path | None = None) -> None:
    """Delete our files in a folder, and it; if there are others in it, it goes back to `path`."""
    for file in aside.iterdir():
        if OURS.fullmatch(file.name):
            file.unlink()
    with suppress(OSError):
        aside.rmdir()
    if path is not None and aside.exists():
        aside.rename(path)


# ---- manifests: JSON that knows size and checksum of every part, and carries its own -----------

SCHEMA = 1
MANIFEST = "manifest.json"
FORM = {
    "heatsolve": str, "number": int, "shape": list, "fields": dict, "parts": list, "record": dict
}  # fmt: skip
FORM_OF_PART = {"name": str, "window": list, "bytes": int, "crc32": int}
NUMBER_TYPE, PART_NAME = re.compile(r"[<>|]?[fiu]\d"), re.compile(r"part-\d{4,}\.h5")


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    """Write the manifest and force it to the disk. Raises OSError if that fails."""
    with open(folder / MANIFEST, "xb") as file:
        file.write(_sealed(json.dumps({"schema": SCHEMA, **content}).encode()))
        file.flush()
        os.fsync(file.fileno())


def read_manifest(path: Path) -> dict[str, Any]:
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
    if not _has_form(manifest):
        raise _damage(path, f"{MANIFEST} has not the form of one")
    return manifest


def _has_form(manifest: dict[str, Any]) -> bool:
    """Whether a manifest says what it should: its seal guards against accidents, not intent."""

    def fits(table: Any, form: dict[str, type]) -> bool:
        given = table if isinstance(table, dict) else {}
        return all(isinstance(given.get(key), kind) for key, kind in form.items())

    def is_window(pairs: Any) -> bool:
        return len(pairs) == len(manifest["shape"]) and all(
            isinstance(pair, list) and len(pair) == 2 and all(isinstance(n, int) for n in pair)
            for pair in pairs
        )

    return (
        fits(manifest, FORM)
        and all(isinstance(kind, str) and NUMBER_TYPE.fullmatch(kind)
                for kind in manifest["fields"].values())
        and all(fits(part, FORM_OF_PART) and PART_NAME.fullmatch(part["name"])
                and is_window(part["window"]) for part in manifest["parts"])
    )  # fmt: skip


def verify(path: Path, parts: list[dict[str, Any]]) -> None:
    """Raise FileFailure if one of the parts is not, to the last bit, what was written."""
    for part in parts:
        file = path / part["name"]
        if not file.exists():
            raise _damage(path, f"{file.name} is missing")
        with failing("read", file):
            size, checksum = checksum_of(file)
        if size != part["bytes"]:
            raise _damage(path, f"{file.name} has {size} bytes in place of {part['bytes']}")
        if checksum != part["crc32"]:
            raise _damage(path, f"{file.name} is not what was written")


def _sealed(content: bytes) -> bytes:
    return b'{"crc32": %d, "content":\n%s}\n' % (zlib.crc32(content), content)


def _damage(path: Path, what: str) -> FileFailure:
    return FileFailure(f"the checkpoint {path} is damaged: {what}")
