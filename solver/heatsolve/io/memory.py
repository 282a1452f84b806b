"""The results of a run that writes no file, kept in memory."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from heatsolve.io.reader import Solution
from heatsolve.parallel.ranks import Ranks

Arrays = Mapping[str, np.ndarray]
Window = Sequence[tuple[int, int]]


def whole(blocks: Sequence[tuple[Window, np.ndarray]], shape: Sequence[int]) -> np.ndarray:
    """The whole array from the blocks of all processes, each with its window; axes of the blocks
    before the axes of the windows, such as time, stay as they are."""
    (_, first), *others = blocks
    if not others:
        return first
    result = np.empty((*first.shape[: first.ndim - len(shape)], *shape), first.dtype)
    for window, block in blocks:
        place: Any = (..., *(slice(*pair) for pair in window))
        result[place] = block
    return result


class Kept(AbstractContextManager["Kept"]):
    """The results of a run in the making, in memory, with the methods of `Results`.

    Coordinates, units and window are as for `Results`. Each process keeps its own block of the
    frames; at the end each has the whole frames.
    """

    def __init__(
        self,
        coordinates: Arrays,
        units: Mapping[str, str],
        window: Window,
        ranks: Ranks,
        *,
        transient: bool,
    ) -> None:
        self._coordinates, self._units, self._transient = dict(coordinates), units, transient
        self._window, self._ranks = tuple(window), ranks
        self._frames: list[dict[str, np.ndarray]] = []
        self._times: list[float | None] = []

    def __exit__(self, *_: object) -> None:
        self._frames = []

    @property
    def last(self) -> float | None:
        """The time of the last frame, None before the first."""
        return self._times[-1] if self._times else None

    def append(self, fields: Arrays, time: float | None = None) -> None:
        """Keep this process's block of one frame, at its time in a transient run."""
        self._frames.append({name: values.copy() for name, values in fields.items()})
        self._times.append(time)

    def secure(self) -> list[dict[str, Any]]:
        """Nothing: frames in memory are not safe, so no restart can go on from them."""
        return []

    def finish(self, attributes: Mapping[str, object], history: Arrays) -> Solution:
        """The content of the file that the run would have written (asks all processes)."""
        shape = [len(line) for line in self._coordinates.values()]
        fields = {}
        for name in self._frames[0]:
            blocks = [frame[name] for frame in self._frames]
            mine = np.stack(blocks) if self._transient else blocks[-1]
            fields[name] = whole(self._ranks.gather((self._window, mine)), shape)
        units = {axis: self._units.get("length", "1") for axis in self._coordinates}
        if self._transient:
            units["time"] = self._units.get("time", "1")
        plain = {k: int(v) if isinstance(v, bool) else v for k, v in attributes.items()}
        return Solution(
            path=Path(),
            mark=(),
            fields=fields,
            coordinates=self._coordinates,
            time=np.array(self._times, float) if self._transient else None,
            attributes={key: value for key, value in plain.items() if value is not None},
            history=dict(history),
            units={name: self._units.get(name, "1") for name in sorted(fields)} | units,
        )
