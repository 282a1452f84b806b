"""Where the frames of a run go: a plain file, or parts under one master.

The frames between two checkpoints are a *segment*. What a checkpoint has secured is never touched
again, and a restart, on any number of processes, continues behind it.
"""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np

from heatsolve.io import subfiles as parts
from heatsolve.io.disk import failing, reserved, sync
from heatsolve.io.fieldfile import Arrays, FieldFile, remove_leftovers, target
from heatsolve.io.output import copy
from heatsolve.io.subfiles import Part, Segment
from heatsolve.parallel.ranks import Ranks, agreed


class Results:
    """The output of a run in the making; every method is called by all processes together.

    path: the target, which this run alone may write, and which is complete or else as it was.
    coordinates: the axes of the whole grid, slowest first, as `{"y": ..., "x": ...}`.
    units: of each field by its name, of the axes as "length", of time as "time"; missing is "1".
    window: this process's points of the whole grid, `(low, high)` of each axis, slowest first.
    transient: many frames, each at its time, or else exactly one.
    secured: what `secure` returned to the run that this one continues; later frames are dropped.

    Alone, a process leaves a plain file. Several leave a master over their parts, one of each
    process for each segment.

    Leaving the context without `finish` removes what has not been secured. Raises ValueError for
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
    ) -> None:
        self._path, self._folder = Path(path), parts.folder_of(Path(path))
        self._coordinates, self._units, self._transient = dict(coordinates), units, transient
        self._window = [[int(low), int(high)] for low, high in window]
        self._ranks = ranks
        self._times: list[float | None] = []  # of the segment being written
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
            with agreed(ranks):  # nobody computes before all can write
                self._writer = self._begin()
            self._end = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()

    def _clean(self) -> None:
        """Remove what has neither been secured nor finished."""
        if self._writer is not None:
            self._writer.discard()
        if self._ranks.rank == 0 and not self._complete:
            parts.remove(self._folder, run=self._run, first=self._secured)
        with suppress(OSError):  # the last to leave finds it empty, if nothing else is in it
            self._folder.rmdir()

    def append(self, fields: Arrays, time: float | None = None) -> None:
        """Write this process's block of one frame: host arrays in the shape of its window.

        time: of this frame, for a transient run only. All frames have the same fields.
        Raises ValueError if the frame does not fit, FileFailure if the disk fails.
        """
        if self._writer is None:
            self._writer = self._begin()
        self._writer.append(fields, time)
        self._fields = {name: values.dtype.str for name, values in fields.items()}
        self._times.append(time)

    def secure(self) -> list[dict[str, Any]]:
        """Make all frames so far durable, and describe them for a restart, ready for JSON.

        Raises FileFailure if the disk fails.
        """
        self._close_segment()
        self._secured = len(self._segments)
        return [asdict(segment) for segment in self._segments]

    def finish(self, attributes: Mapping[str, object], history: Arrays) -> None:
        """Complete the output and give it its name; attributes and history as of `FieldFile`.

        Raises ValueError for want of a frame or of an axis of the history, FileFailure if the disk
        fails: an earlier output is then still there.
        """
        if self._plain and self._writer is not None:
            self._writer.finish(attributes, history)
            if self._ranks.rank == 0:
                parts.remove(self._folder)
        else:
            self._close_segment()
            with agreed(self._ranks):  # nobody returns before the output is there
                if self._ranks.rank == 0:
                    self._write_master(attributes, history)
        self._complete = True

    @property
    def _plain(self) -> bool:
        """Whether the frames go straight to the target."""
        return self._ranks.size == 1 and not self._segments

    def _begin(self) -> FieldFile:
        """The file that the next frames go to."""
        path = self._path if self._plain else self._folder / self._part_name()
        axes = zip(self._coordinates.items(), self._window, strict=True)
        block = {axis: np.asarray(line)[slice(*pair)] for (axis, line), pair in axes}
        return FieldFile(path, block, self._units, transient=self._transient)

    def _part_name(self) -> str:
        return parts.part_name(self._run, len(self._segments), self._ranks.rank)

    def _make_folder(self) -> None:
        with failing("write", self._folder):
            self._folder.mkdir(exist_ok=True)
            sync(self._path.parent)

    def _close_segment(self) -> None:
        """Make the frames since the last segment, if any, one of their own."""
        if self._writer is None:
            return
        if not self._times:
            self._writer.discard()
            self._writer = None
            return
        with agreed(self._ranks):
            if self._ranks.size == 1:
                self._make_folder()
        name = self._part_name()
        with agreed(self._ranks):
            size = self._writer.seal(self._folder / name)
        self._writer = None
        found = self._ranks.gather(Part(name, size, self._window))
        with agreed(self._ranks), failing("write", self._folder):
            if self._ranks.rank == 0:
                sync(self._folder)
        self._segments.append(Segment(self._times, self._fields, found))
        self._times = []

    def _write_master(self, attributes: Mapping[str, object], history: Arrays) -> None:
        """Put the master in place, then remove what it does not need; alone, make it plain."""
        with FieldFile(
            self._path, self._coordinates, self._units, transient=self._transient
        ) as master:
            try:
                master.link(self._segments)
                master.finish(attributes, history)
            finally:
                self._complete = master.sealed  # from here on it needs its parts
        names = {part.name for segment in self._segments for part in segment.parts}
        parts.remove(self._folder, kept=names)
        if self._ranks.size == 1:
            _gather(self._path, self._path)


def gather(path: Path, output: Path) -> None:
    """Write a field file, and what lies in its parts, to one plain file.

    An output that is the file itself takes its place, and its parts are removed. Raises InputError
    or FileFailure for a file or a part that cannot be read, and for an output that cannot be
    written or is being written by a run.
    """
    plain = target(output)
    with reserved(plain):
        remove_leftovers(plain)
        _gather(path, plain)


def _gather(path: Path, plain: Path) -> None:
    copy(path, plain)
    parts.remove(parts.folder_of(plain))
