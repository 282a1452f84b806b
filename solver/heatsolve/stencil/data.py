"""Fields that are data: values on the points of a file, an image or an array, as a function of
position.

`Data` is an `Expression`, so it stands wherever an expression may. Between its points it is linear
along each axis, x first, then y, then z: a point's value follows from its position alone, and so
has the same bits on any number of processes. Only the points around those that are asked for are
read.
"""

import hashlib
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heatsolve.errors import InputError
from heatsolve.stencil.expressions import Expression
from heatsolve.stencil.grid import AXIS_NAMES, Axis, Grid

NEAR = 1e-6
"""A position this near to a point, in spacings, is the point's."""
CHUNK = 1 << 22
"""Bytes of the pieces of which a digest is made, about."""
THREADS = 4
"""Threads that sum up pieces."""
KEPT = 1 << 28
"""Bytes of a block that stays in memory, at most."""

Window = tuple[slice, ...]
Place = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Along an axis: the points below and above positions, and the share of the way between them."""


@dataclass(frozen=True)
class Samples:
    """Values on a rectangular grid of points, wherever they are kept; axes slowest first."""

    axes: tuple[str, ...]
    """The axes of the case along which the values vary."""
    shape: tuple[int, ...]
    lines: tuple[NDArray[np.float64] | None, ...]
    """Ascending positions along each axis; None where the points are spread over the case's box."""
    dtype: np.dtype
    load: Callable[[Window], np.ndarray]
    """Reads the values of a window."""
    cells: bool = False
    """Whether points without positions are centres of cells, whatever the case's grid is."""


def arranged(
    load: Callable[[tuple[Any, ...]], np.ndarray],
    shape: Sequence[int],
    names: Sequence[str | None],
    lines: Sequence[NDArray[np.float64] | None],
    dtype: np.dtype,
    axes: Sequence[str],
    frame: int = -1,
) -> Samples:
    """Samples of an array whose dimensions have these names and positions, as far as known.

    They go by their names where all of these are axes of a case with these `axes` (slowest first),
    or "time"; else by their order, z, y, x. `frame` is the number along the time. Descending
    positions are turned round. Raises InputError for an array of other dimensions.
    """
    known = [name for name in names if name is not None]
    times = [n for n, name in enumerate(names) if name in ("time", "t")]
    if set(known) - {"time", "t"} <= set(axes) and len(known) == len(shape) > len(times):
        own = [axis for axis in axes if axis in known]
        order = [names.index(axis) for axis in own]
    else:
        own = list(axes)
        times = [0] if len(shape) == len(axes) + 1 else []
        order = list(range(len(times), len(shape)))
        if len(order) != len(axes):
            said = " x ".join(map(str, shape))
            raise InputError(f"has {len(shape)} dimensions ({said}), the case has {len(axes)} axes")
    along = [lines[n] for n in order]
    for name, line in zip(own, along, strict=True):
        steps = np.diff(line) if line is not None else np.ones(1)
        if not (np.isfinite(steps).all() and ((steps > 0).all() or (steps < 0).all())):
            raise InputError(f"has positions along {name} that neither ascend nor descend")
    turned = [line is not None and line.size > 1 and line[0] > line[-1] for line in along]

    def read(window: Window) -> np.ndarray:
        key: list[Any] = [0] * len(shape)
        for n in times:
            key[n] = frame % shape[n]
        for n, part, turn in zip(order, window, turned, strict=True):
            key[n] = slice(shape[n] - part.stop, shape[n] - part.start) if turn else part
        values = load(tuple(key))
        values = np.transpose(values, np.argsort(np.argsort(order)))
        flips = tuple(slice(None, None, -1 if turn else 1) for turn in turned)
        return values[flips]

    return Samples(
        tuple(own),
        tuple(shape[n] for n in order),
        tuple(line[::-1] if turn else line for line, turn in zip(along, turned, strict=True)),  # type: ignore[index]
        np.dtype(dtype),
        read,
    )


class Data(Expression):
    """A field of values at points. It must be connected to them before it is called.

    `given` is the table of the case, `folder` the one that its paths start from, and `tree` its
    meaning apart from where the values are kept, which digests compare.
    """

    def __init__(self, text: str, given: Mapping[str, Any], folder: Path):
        meaning = {k: v for k, v in given.items() if k not in ("file", "image", "array")}
        super().__init__(text, frozenset("x"), ("data", *sorted(meaning.items())))
        self._set(
            given=dict(given), folder=folder, samples=None, key="", digest="", _kept=None, _sums={}
        )

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    given: dict[str, Any]
    folder: Path
    key: str
    """The key that messages speak of."""
    samples: Samples | None
    digest: str
    """The digest of all values, once it has been made; see `make_digests`."""
    _lines: list["_Line"]
    _kept: tuple[Window, np.ndarray] | None
    _sums: dict[int, int]
    """The check sums of pieces that have been read, by their first rows."""

    @property
    def nearest(self) -> bool:
        """Whether a position has the value of the point nearest to it."""
        return self.given.get("interpolation") == "nearest"

    def connect(self, key: str, samples: Samples, grid: Grid) -> None:
        """Give it its values, in the box of a case's grid.

        Raises InputError where they do not cover the box.
        """
        boxes = {axis.name: axis for axis in grid.axes}
        lines = []
        for name, line, count in zip(samples.axes, samples.lines, samples.shape, strict=True):
            box = boxes[name]
            if line is None:
                on_nodes = box.on_nodes and not samples.cells
                if count == 1:
                    line = np.array([0.5 * (box.lower + box.upper)])
                else:
                    spread = Axis(name, count, box.lower, box.upper, on_nodes, box.periodic)
                    line = spread.coordinates[1:-1]
            lines.append(_Line(box, line, self.nearest))
            if outside := lines[-1].outside():
                raise InputError(f"{key}: {self.text} {outside}")
        names = frozenset(samples.axes)
        self._set(key=key, samples=samples, _lines=lines, names=names, _kept=None, _sums={})

    def meets(self, grid: Grid) -> bool:
        """Whether every point of a grid is one of its own."""
        axes = {axis.name: axis for axis in grid.axes}
        assert self.samples is not None
        return all(
            not line.locate(axes[name].coordinates)[2].any()
            for name, line in zip(self.samples.axes, self._lines, strict=True)
        )

    def has_digest(self, digits: str) -> None:
        """Note the digest of all values."""
        self._set(digest=digits)

    def read(self, window: Window) -> np.ndarray:
        """The values of a window, from memory where they are there."""
        assert self.samples is not None
        if self._kept is not None:
            first, block = self._kept
            pairs = list(zip(window, first, strict=True))
            if all(f.start <= w.start and w.stop <= f.stop for w, f in pairs):
                return block[tuple(slice(w.start - f.start, w.stop - f.start) for w, f in pairs)]
        return self.samples.load(window)

    def __call__(self, **variables: ArrayLike) -> float | NDArray[np.float64]:
        """The values at positions x, y, z, which are broadcast.

        Raises InputError if it is not connected.
        """
        if self.samples is None:
            raise InputError(f"{self.text} has not been read")
        at = [np.asarray(variables[name], float) for name in self.samples.axes]
        dimension = max(each.ndim for each in at)
        at = [each.reshape((1,) * (dimension - each.ndim) + each.shape) for each in at]
        shape = np.broadcast_shapes(*[each.shape for each in at])
        if 0 in shape:
            return np.zeros(shape)
        along = [[k for k, n in enumerate(each.shape) if n > 1] for each in at]
        ways = [k for each in along for k in each]
        with np.errstate(all="ignore"):
            if ways == sorted(set(ways)) and all(len(each) <= 1 for each in along):
                lines = [each.ravel() for each in at]
                values = self._on_lines(lines)
                extents = [1] * dimension
                for way, line in zip(along, lines, strict=True):
                    if way:
                        extents[way[0]] = line.size
                values = values.reshape(extents)
            else:
                values = self._at([np.broadcast_to(a, shape).ravel() for a in at]).reshape(shape)
        return values if dimension else float(values)

    def _on_lines(self, points: Sequence[np.ndarray]) -> np.ndarray:
        """The values where lines of positions along the axes cross."""
        located, windows = self._located(points)
        counts = [window.stop - window.start for window in windows]
        starts = [window.start for window in windows]
        edges = [
            None if share.any() else _repeated_ends(low - first, count)
            for (low, _, share), first, count in zip(located, starts, counts, strict=True)
        ]
        assert self.samples is not None
        if math.prod(counts) * self.samples.dtype.itemsize > KEPT and None not in edges:
            return self._streamed(windows, [edge or (0, 0) for edge in edges])
        values, located = self._around(located, windows)
        for axis, (low, high, share) in reversed(list(enumerate(located))):
            below = np.take(values, low, axis)
            if not share.any():
                values = below
                continue
            shape = [1] * values.ndim
            shape[axis] = share.size
            values = _between(below, np.take(values, high, axis), share.reshape(shape))
        return values

    def _at(self, points: Sequence[np.ndarray]) -> np.ndarray:
        """The values at single positions; the order of operations is that of `_on_lines`."""
        values, located = self._around(*self._located(points))

        def inner(axis: int, index: tuple[np.ndarray, ...]) -> np.ndarray:
            if axis == len(located):
                return values[index]
            low, high, share = located[axis]
            below = inner(axis + 1, (*index, low))
            return _between(below, inner(axis + 1, (*index, high)), share)

        return inner(0, ())

    def _located(self, points: Sequence[np.ndarray]) -> tuple[list[Place], list[slice]]:
        """Where positions along each axis lie, and the windows around them."""
        located, windows = [], []
        for line, at in zip(self._lines, points, strict=True):
            low, high, share = line.locate(at)
            located.append((low, high, share))
            ends = np.concatenate([low, high])
            windows.append(slice(int(ends.min()), int(ends.max()) + 1))
        return located, windows

    def _around(
        self, located: Sequence[Place], windows: Sequence[slice]
    ) -> tuple[np.ndarray, list[Place]]:
        """The values around positions, and where in them the positions lie."""
        # Along the slowest axis only rows that are asked for: a sample, or both ends of a period.
        rows = np.unique(np.concatenate(located[0][:2]))
        runs = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
        parts = []
        for run in runs:
            window = (slice(int(run[0]), int(run[-1]) + 1), *windows[1:])
            parts.append(np.asarray(self.read(window)))
        values = parts[0] if len(parts) == 1 else np.concatenate(parts)
        kept = self._kept[1].size if self._kept is not None else 0
        if len(parts) == 1 and kept < values.size and values.nbytes <= KEPT:
            self._set(_kept=(window, values))
        inside = [
            (low - window.start, high - window.start, share)
            for (low, high, share), window in zip(located, windows, strict=True)
        ]
        low, high, share = located[0]
        inside[0] = np.searchsorted(rows, low), np.searchsorted(rows, high), share
        return values.astype(np.float64, copy=False), inside

    def _streamed(self, windows: Sequence[slice], edges: Sequence[tuple[int, int]]) -> np.ndarray:
        """A large window with its first and last points repeated, as its grid's ghosts have them.

        It is read piece by piece to its place, and the pieces are summed up on the way, so that
        nothing is read or copied twice.
        """
        assert self.samples is not None
        rows, *others = windows
        before = [low for low, _ in edges]
        counts = [window.stop - window.start for window in windows]
        result = np.empty([n + sum(edge) for n, edge in zip(counts, edges, strict=True)])
        inside = tuple(slice(low, low + n) for low, n in zip(before, counts, strict=True))
        whole = others == [slice(0, n) for n in self.samples.shape[1:]]
        found = {}
        with ThreadPoolExecutor(1) as pool:
            for piece, *_ in pieces(self.samples):
                first, stop = max(piece.start, rows.start), min(piece.stop, rows.stop)
                if first >= stop:
                    continue
                values = self.samples.load((slice(first, stop), *others))
                if whole and (first, stop) == (piece.start, piece.stop):
                    found[first] = pool.submit(_sum, values)
                result[inside][first - rows.start : stop - rows.start] = values
        self._sums.update({first: task.result() for first, task in found.items()})
        for axis, (low, high) in enumerate(edges):
            turned = np.moveaxis(result, axis, 0)
            turned[:low] = turned[low]
            turned[turned.shape[0] - high :] = turned[-1 - high]
        return result

    def sums(self, windows: Sequence[Window]) -> list[int]:
        """The check sums of pieces; those that are not known yet are read."""
        unknown = [window for window in windows if window[0].start not in self._sums]
        new = zip(unknown, sums(self.read, unknown), strict=True)
        self._sums.update({window[0].start: each for window, each in new})
        return [self._sums[window[0].start] for window in windows]


def _repeated_ends(index: np.ndarray, count: int) -> tuple[int, int] | None:
    """How often the first and the last of `count` points are there once more, if otherwise all are
    there once, in their order; else None."""
    low, high = int(np.sum(index == 0)) - 1, int(np.sum(index == count - 1)) - 1
    inside = index[low : index.size - high] if count > 1 else index[low:]
    if min(low, high) < 0 or not np.array_equal(inside, np.arange(count)):
        return None
    return (low, high) if count > 1 else (low, 0)


def _between(below: np.ndarray, above: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Linear between two values; equal ones, and a share of 0, give the value itself."""
    result: np.ndarray = np.where(share == 0.0, below, below + share * (above - below))
    return result


class _Line:
    """The points along one axis of a box."""

    def __init__(self, box: Axis, line: np.ndarray, nearest: bool):
        self._box, self._line, self._nearest = box, line, nearest
        length, last = box.upper - box.lower, line.size - 1
        self._wraps = box.periodic and last > 0 and line[-1] - line[0] < length * (1 - NEAR / last)
        ends = [line[0] + length] if self._wraps else []
        self._knots = np.concatenate([line, ends])

    def outside(self) -> str:
        """A sentence, where the points leave a part of the box out; each reaches half a spacing."""
        line, box = self._line, self._box
        if line.size == 1:
            return ""
        steps = np.diff(line)
        low, high = line[0] - 0.5 * steps[0], line[-1] + 0.5 * steps[-1]
        slack = NEAR * (box.upper - box.lower)
        covered = low <= box.lower + slack and high >= box.upper - slack
        if self._wraps or (box.periodic and high - low >= box.upper - box.lower - slack):
            covered = high - low >= (box.upper - box.lower) - slack
        if covered:
            return ""
        low, high = (0.0 if abs(end) < slack else end for end in (low, high))
        return (
            f"covers {box.name} = {low:g} to {high:g} only, the case {box.lower:g} to {box.upper:g}"
        )

    def locate(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The points below and above positions, and how far these are from the one to the other.

        Beyond the outermost points it is the outermost one.
        """
        line, knots = self._line, self._knots
        if line.size == 1:
            none = np.zeros(at.size, int)
            return none, none, np.zeros(at.size)
        if self._box.periodic:
            length = self._box.upper - self._box.lower
            beyond = (at < line[0]) | (at > line[0] + length)
            at = np.where(beyond, line[0] + (at - line[0]) % length, at)
        low = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, knots.size - 2)
        share = np.clip((at - knots[low]) / (knots[low + 1] - knots[low]), 0.0, 1.0)
        if self._nearest:
            share = np.where(share < 0.5, 0.0, 1.0)
        share = np.where(share < NEAR, 0.0, np.where(share > 1.0 - NEAR, 1.0, share))
        low, share = np.where(share == 1.0, low + 1, low), np.where(share == 1.0, 0.0, share)
        return low % line.size, np.where(share > 0.0, low + 1, low) % line.size, share


# ---- digests ------------------------------------------------------------------------------------


def pieces(samples: Samples) -> list[Window]:
    """The windows of which the digest is made: layers across the slowest axis, the same on any
    number of processes."""
    extent, *rest = samples.shape
    row = max(1, int(np.prod(rest, dtype=float)) * samples.dtype.itemsize)
    rows = max(1, CHUNK // row)
    others = [slice(0, n) for n in rest]
    return [(slice(n, min(n + rows, extent)), *others) for n in range(0, extent, rows)]


def sums(read: Callable[[Window], np.ndarray], windows: Sequence[Window]) -> list[int]:
    """The check sums of the values of windows."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(lambda window: _sum(read(window)), windows))


def _sum(values: np.ndarray) -> int:
    """The check sum (CRC-32) of some values."""
    values = np.ascontiguousarray(values)
    values = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return zlib.crc32(values.reshape(-1).view(np.uint8).data)


def digest(samples: Samples, each: Sequence[int]) -> str:
    """16 digits for the values and their positions, from the check sums of all pieces."""
    result = hashlib.sha256(repr((samples.axes, samples.shape, samples.dtype.name)).encode())
    for line in samples.lines:
        result.update(b"" if line is None else line.astype("<f8").tobytes())
    result.update(np.array(each, "<u4").tobytes())
    return result.hexdigest()[:16]


def array_samples(value: Any, axes: Sequence[str] = ()) -> Samples:
    """Samples of an array of NumPy or xarray in memory, for a case with these axes, slowest first.

    Raises InputError for an array of other dimensions than the axes.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise InputError(f"must be an array of real numbers, not of {array.dtype}")
    names = list(getattr(value, "dims", [None] * array.ndim))
    coordinates = getattr(value, "coords", {})
    lines = [
        np.asarray(coordinates[name], float) if name in AXIS_NAMES and name in coordinates else None
        for name in names
    ]
    axes = axes or tuple(reversed(AXIS_NAMES[: array.ndim]))
    return arranged(lambda key: array[key], array.shape, names, lines, array.dtype, axes)
