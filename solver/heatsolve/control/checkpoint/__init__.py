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
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from heatsolve import __version__
from heatsolve.control.checkpoint.folder import (
    ASIDE,
    COMPLETE,
    delete,
    folders,
    hidden,
    number_of,
    remove,
    replace,
)
from heatsolve.control.checkpoint.manifest import read_manifest, verify, write_manifest
from heatsolve.control.checkpoint.part import Window, chunks, read_fields, read_history, write_part
from heatsolve.control.controller import State
from heatsolve.errors import Diverged, FileFailure, HeatsolveError, InputError
from heatsolve.io.disk import failing, sync
from heatsolve.parallel.ranks import Ranks

T = TypeVar("T")
Agree = Callable[[State], None]


class Store:
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
