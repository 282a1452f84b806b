"""Fields that are data: values on the points of a file, an image or an array, as a function of
position.

`Data` is an `Expression`, so it may stand wherever an expression may. Between its points it is
linear along each axis, x first, then y, z and the time, unless another interpolation is named: a
point's value follows from its position alone, and so has the same bits on any number of processes.
Only the points around the requested positions are read.
"""

import hashlib
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
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
"""The distance from a point, in spacings, within which a position counts as the point."""
CHUNK = 1 << 22
"""The approximate number of bytes in a piece; a digest is made of pieces."""
THREADS = 4
"""Threads that compute the check sums of pieces."""
KEPT = 1 << 28
"""The most bytes of a block that stays in memory."""

Window = tuple[slice, ...]
Place = list[tuple[np.ndarray, np.ndarray]]
"""Along an axis: for each position the numbers of some points, and their shares of its value. The
first point has the remaining share."""
TIME = ("time", "t")
"""Names of an axis of time; in samples it is "t"."""


@dataclass(frozen=True)
class Samples:
    """Values on a rectangular grid of points, wherever they are kept; axes slowest first."""

    axes: tuple[str, ...]
    """The axes of the case along which the values vary, "t" first where they vary in time."""
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
    across: str | None = None,
    frame: int | None = -1,
) -> Samples:
    """Samples of an array whose dimensions have these names and positions, as far as known.

    Dimensions named x, y, z and time belong to the axes of these names, all other dimensions, in
    the order z, y, x, to the axes that are left. An array for a wall may lack the axis `across` it;
    a dimension of one point along an axis that the case lacks is dropped. `frame` is the index
    along the time, None where the values vary in time. Descending positions are reversed. Raises
    InputError for dimensions that do not fit.
    """
    said = " x ".join(map(str, shape))
    if 0 in shape:
        raise InputError(f"is empty ({said})")
    times = [n for n, name in enumerate(names) if name in TIME]
    foreign = [n for n, name in enumerate(names) if name in AXIS_NAMES and name not in axes]
    for n in foreign:
        if shape[n] > 1:
            has = " and ".join(reversed(axes))
            raise InputError(f"has an axis {names[n]}, the case has {has}: cut a plane out of it")
    placed = {name: n for n, name in enumerate(names) if name in axes}
    others = [n for n in range(len(shape)) if n not in (*times, *foreign, *placed.values())]
    free = [axis for axis in axes if axis not in placed]
    if others and len(others) != len(free):
        free = [axis for axis in free if axis != across]
    if times and not (placed or others) and frame is not None:
        raise InputError('varies in time alone: give time = "t"')
    if len(times) > 1 or len(others) not in (0, len(free)) or not (times or placed or others):
        dimensions = "1 dimension" if len(shape) == 1 else f"{len(shape)} dimensions"
        has = "1 axis" if len(axes) == 1 else f"{len(axes)} axes"
        cut = ": take one frame of it, or one layer" if len(others) > len(free) else ""
        raise InputError(f"has {dimensions} ({said}), the case has {has}{cut}")
    placed |= dict(zip(free, others, strict=False))
    own = [axis for axis in axes if axis in placed]
    order = [placed[axis] for axis in own]
    if frame is None and times:
        own, order, times = ["t", *own], [*times, *order], []
    along = [lines[n] for n in order]
    for name, line in zip(own, along, strict=True):
        steps = np.diff(line) if line is not None else np.ones(1)
        if not (np.isfinite(steps).all() and ((steps > 0).all() or (steps < 0).all())):
            raise InputError(f"has positions along {name} that neither ascend nor descend")
    turned = [line is not None and line.size > 1 and line[0] > line[-1] for line in along]

    def read(window: Window) -> np.ndarray:
        key: list[Any] = [0] * len(shape)  # the only point of a foreign axis
        for n in times:
            key[n] = (frame or 0) % shape[n]
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
    """A field of values at points. It must be connected to its samples before it is called.

    `given` is the table of the case, `folder` the folder from which its paths start. `tree`, which
    digests compare, is the table without the place where the values are kept. `in_time` tells
    whether its key may vary in time.
    """

    def __init__(self, text: str, given: Mapping[str, Any], folder: Path, in_time: bool = False):
        meaning = {k: v for k, v in given.items() if k not in ("file", "image", "solid", "array")}
        super().__init__(text, frozenset("x"), ("data", *sorted(meaning.items())))
        self._set(
            given=dict(given), folder=folder, in_time=in_time, samples=None, key="", digest=""
        )

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    given: dict[str, Any]
    folder: Path
    in_time: bool
    key: str
    """The key that messages name."""
    samples: Samples | None
    digest: str
    """The digest of all values, once it has been made; see `make_digests`."""
    _lines: list["_Line"]
    _kept: tuple[Window, np.ndarray] | None
    _sums: dict[int, int]
    """The check sums of pieces that have been read, by their first rows."""

    @property
    def interpolation(self) -> str:
        """The interpolation between its points: linear, nearest or conservative."""
        return str(self.given.get("interpolation", "linear"))

    def connect(self, key: str, samples: Samples, grid: Grid, end: float | None = None) -> None:
        """Set the samples, for the box of a case's grid and a march until the time `end`.

        Raises InputError where the samples do not cover the box or the march.
        """
        boxes = {axis.name: axis for axis in grid.axes}
        if "t" in samples.axes:
            if end is None or not self.in_time:
                why = "the key may not" if end is not None else "a steady case has no time"
                raise InputError(f"{key}: {self.text} varies in time, and {why}")
            boxes["t"] = Axis("t", 2, 0.0, end, on_nodes=True)
        lines = []
        for name, line, count in zip(samples.axes, samples.lines, samples.shape, strict=True):
            box = boxes[name]
            if line is None:
                if name == "t":
                    raise InputError(f"{key}: {self.text} has no values of its times")
                on_nodes = box.on_nodes and not samples.cells
                if count == 1:
                    line = np.array([0.5 * (box.lower + box.upper)])
                else:
                    spread = Axis(name, count, box.lower, box.upper, on_nodes, box.periodic)
                    line = spread.coordinates[1:-1]
            how = "linear" if name == "t" else self.interpolation
            lines.append(_Line(box, line, how))
            if outside := lines[-1].outside():
                raise InputError(f"{key}: {self.text} {outside}")
        names = frozenset(samples.axes)
        self._set(key=key, samples=samples, _lines=lines, names=names, _kept=None, _sums={})

    def meets(self, grid: Grid) -> bool:
        """Whether every point of a grid is a point of the samples."""
        axes = {axis.name: axis for axis in grid.axes}
        assert self.samples is not None
        return all(
            len(line.locate(axes[name].coordinates)) == 1
            for name, line in zip(self.samples.axes, self._lines, strict=True)
            if name != "t"
        )

    def set_digest(self, digits: str) -> None:
        """Note the digest of all values."""
        self._set(digest=digits)

    def _read(self, window: Window, keep: bool = False) -> np.ndarray:
        """The values of a window, from memory if held there; `keep`: hold them if they are few."""
        assert self.samples is not None
        if self._kept is not None:
            first, block = self._kept
            pairs = list(zip(window, first, strict=True))
            if all(f.start <= w.start and w.stop <= f.stop for w, f in pairs):
                return block[tuple(slice(w.start - f.start, w.stop - f.start) for w, f in pairs)]
        values = np.asarray(self.samples.load(window))
        if keep and values.nbytes <= KEPT:
            self._set(_kept=(window, values))
        return values

    def __call__(self, **variables: ArrayLike) -> float | NDArray[np.float64]:
        """The values at positions x, y, z and times t, which are broadcast.

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
        edges = [
            _repeated_ends(place[0][0] - window.start, count) if len(place) == 1 else None
            for place, window, count in zip(located, windows, counts, strict=True)
        ]
        assert self.samples is not None
        if math.prod(counts) * self.samples.dtype.itemsize > KEPT and None not in edges:
            return self._streamed(windows, [edge or (0, 0) for edge in edges])
        values, located = self._around(located, windows)
        own = False
        for axis, place in reversed(list(enumerate(located))):
            if len(place) == 1 and np.array_equal(place[0][0], np.arange(values.shape[axis])):
                continue
            shape = [1] * values.ndim
            shape[axis] = place[0][0].size
            parts = ((np.take(values, index, axis), part.reshape(shape)) for index, part in place)
            values, own = _blended(parts), True
        return values if own else values.copy()

    def _at(self, points: Sequence[np.ndarray]) -> np.ndarray:
        """The values at single positions; the order of operations is that of `_on_lines`."""
        values, located = self._around(*self._located(points))

        def inner(axis: int, index: tuple[np.ndarray, ...]) -> np.ndarray:
            if axis == len(located):
                return values[index]
            return _blended((inner(axis + 1, (*index, at)), part) for at, part in located[axis])

        return inner(0, ())

    def _located(self, points: Sequence[np.ndarray]) -> tuple[list[Place], list[slice]]:
        """Where positions along each axis lie, and the windows around them."""
        located, windows = [], []
        for line, at in zip(self._lines, points, strict=True):
            place = line.locate(at)
            located.append(place)
            every = np.concatenate([index for index, _ in place])
            windows.append(slice(int(every.min()), int(every.max()) + 1))
        return located, windows

    def _around(
        self, located: Sequence[Place], windows: Sequence[slice]
    ) -> tuple[np.ndarray, list[Place]]:
        """The values around positions, and the places of the positions among these values."""
        # Along the slowest axis only needed rows are read: of a sample, or both ends of a period.
        rows = np.unique(np.concatenate([index for index, _ in located[0]]))
        runs = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
        parts = []
        for run in runs:
            window = (slice(int(run[0]), int(run[-1]) + 1), *windows[1:])
            parts.append(self._read(window, keep=len(runs) == 1))
        values = parts[0] if len(parts) == 1 else np.concatenate(parts)
        inside = [
            [(index - window.start, part) for index, part in place]
            for place, window in zip(located, windows, strict=True)
        ]
        inside[0] = [(np.searchsorted(rows, index), part) for index, part in located[0]]
        return values.astype(np.float64, copy=False), inside

    def _streamed(self, windows: Sequence[slice], edges: Sequence[tuple[int, int]]) -> np.ndarray:
        """A large window with its first and last points repeated, as the ghosts of its grid need.

        Each piece is read into its place, and its check sum is computed at once, so that nothing is
        read or copied twice.
        """
        assert self.samples is not None
        rows, *others = windows
        before = [low for low, _ in edges]
        counts = [window.stop - window.start for window in windows]
        result = np.empty([n + sum(edge) for n, edge in zip(counts, edges, strict=True)])
        inside = tuple(slice(low, low + n) for low, n in zip(before, counts, strict=True))
        whole = others == [slice(0, n) for n in self.samples.shape[1:]]
        found, last = {}, None
        with ThreadPoolExecutor(1) as pool:
            for piece, *_ in pieces(self.samples):
                first, stop = max(piece.start, rows.start), min(piece.stop, rows.stop)
                if first >= stop:
                    continue
                values = self.samples.load((slice(first, stop), *others))
                if whole and (first, stop) == (piece.start, piece.stop):
                    if last is not None:
                        last.result()  # no more than one piece waits
                    last = found[first] = pool.submit(_sum, values)
                result[inside][first - rows.start : stop - rows.start] = values
        self._sums.update({first: task.result() for first, task in found.items()})
        for axis, (low, high) in enumerate(edges):
            turned = np.moveaxis(result, axis, 0)
            turned[:low] = turned[low]
            turned[turned.shape[0] - high :] = turned[-1 - high]
        return result

    def sums(self, windows: Sequence[Window]) -> list[int]:
        """The check sums of pieces; a piece whose check sum is not known yet is read."""
        unknown = [window for window in windows if window[0].start not in self._sums]
        new = zip(unknown, sums(self._read, unknown), strict=True)
        self._sums.update({window[0].start: each for window, each in new})
        return [self._sums[window[0].start] for window in windows]


def _repeated_ends(index: np.ndarray, count: int) -> tuple[int, int] | None:
    """How often `index` repeats the first and the last of `count` points, if it otherwise holds
    each point once and in order; None if it does not."""
    low, high = int(np.sum(index == 0)) - 1, int(np.sum(index == count - 1)) - 1
    inside = index[low : index.size - high] if count > 1 else index[low:]
    if min(low, high) < 0 or not np.array_equal(inside, np.arange(count)):
        return None
    return (low, high) if count > 1 else (low, 0)


def _blended(parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Values weighted by shares, in this order; equal values, or shares of 0, give the first."""
    each = iter(parts)
    first, _ = next(each)
    result = first
    for value, share in each:
        result = np.where(share == 0.0, result, result + share * (value - first))
    return result


class _Line:
    """The points along one axis of a box, and the interpolation between them."""

    def __init__(self, box: Axis, line: np.ndarray, how: str):
        self._box, self._how = box, how
        self._length, last = box.upper - box.lower, line.size - 1
        extent = line[-1] - line[0]
        self._wraps = box.periodic and extent <= self._length * (1 + NEAR)
        if self._wraps and last > 1 and extent >= self._length * (1 - NEAR / last):
            line = line[:-1]  # it is the first point once more
        self._line = line
        ends = [line[0] + self._length] if self._wraps else []
        self._knots = np.concatenate([line, ends])

    def outside(self) -> str:
        """A sentence, if the points do not cover the box; each point reaches half a spacing."""
        line, box = self._line, self._box
        if line.size == 1:
            return ""
        steps = np.diff(line)
        reach = (0.5 * steps[0], 0.5 * steps[-1]) if box.name != "t" else (0.0, 0.0)
        low, high = line[0] - reach[0], line[-1] + reach[1]
        slack = NEAR * self._length
        covered = low <= box.lower + slack and high >= box.upper - slack
        if covered or (self._wraps and high - low >= self._length - slack):
            return ""
        low, high = (0.0 if abs(end) < slack else end for end in (low, high))
        return (
            f"covers {box.name} = {low:g} to {high:g} only, the case {box.lower:g} to {box.upper:g}"
        )

    def locate(self, at: np.ndarray) -> Place:
        """The points from which positions take their values, and the shares of the points.

        Beyond the outermost points a position takes the value of the outermost point.
        """
        if self._line.size == 1:
            return [(np.zeros(at.size, int), np.ones(at.size))]
        if self._how == "conservative":
            return self._means(at)
        line, knots = self._line, self._knots
        if self._wraps:
            beyond = (at < line[0]) | (at > line[0] + self._length)
            at = np.where(beyond, line[0] + (at - line[0]) % self._length, at)
        low = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, knots.size - 2)
        share = np.clip((at - knots[low]) / (knots[low + 1] - knots[low]), 0.0, 1.0)
        if self._how == "nearest":
            share = np.where(share < 0.5, 0.0, 1.0)
        share = np.where(share < NEAR, 0.0, np.where(share > 1.0 - NEAR, 1.0, share))
        low, share = np.where(share == 1.0, low + 1, low), np.where(share == 1.0, 0.0, share)
        place = [(low % line.size, 1.0 - share)]
        if share.any():
            place.append((np.where(share > 0.0, low + 1, low) % line.size, share))
        return place

    def _means(self, at: np.ndarray) -> Place:
        """The means over the case's cells of a field that is constant around each point, up to the
        middle between neighbouring points."""
        line, box = self._line, self._box
        low, high = at - 0.5 * box.spacing, at + 0.5 * box.spacing
        if self._wraps:
            line = np.concatenate([line + n * self._length for n in (-1, 0, 1)])
        elif not box.periodic:
            low, high = np.maximum(low, box.lower), np.minimum(high, box.upper)
        middles = 0.5 * (line[1:] + line[:-1])
        first = np.searchsorted(middles, low + NEAR * (high - low), side="right")
        last = np.searchsorted(middles, high - NEAR * (high - low), side="right")
        ends = np.concatenate([[-np.inf], middles, [np.inf]])
        place = []
        for n in range(int(np.max(last - first)) + 1):
            index = np.minimum(first + n, last)
            share = np.minimum(high, ends[index + 1]) - np.maximum(low, ends[index])
            share = np.where(first + n <= last, share / (high - low), 0.0)
            place.append((index % self._line.size, share))
        return place


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
    """16 hexadecimal digits for all values and positions, from the check sums of the pieces."""
    result = hashlib.sha256(repr((samples.axes, samples.shape, samples.dtype.name)).encode())
    for line in samples.lines:
        result.update(b"" if line is None else line.astype("<f8").tobytes())
    result.update(np.array(each, "<u4").tobytes())
    return result.hexdigest()[:16]


def array_samples(
    value: Any, axes: Sequence[str], across: str | None = None, frame: int | None = -1
) -> Samples:
    """Samples of an array of NumPy or xarray in memory; `axes`, `across` and `frame` as in
    `arranged`.

    Raises InputError where `arranged` does, for masked values, and for other than real numbers.
    """
    array = _numbers_of(value)
    names, lines = _placed(value, array.ndim)
    get = array.__getitem__
    return arranged(get, array.shape, names, lines, array.dtype, axes, across, frame)


def array_digest(value: Any) -> str:
    """The digest of a whole array of NumPy or xarray, whatever the axes of the case.

    Raises InputError for masked values, and for values other than real numbers.
    """
    array = _numbers_of(value)
    names, lines = _placed(value, array.ndim)
    axes, get = tuple(map(str, names)), array.__getitem__
    samples = Samples(axes, array.shape, tuple(lines), array.dtype, get)
    return digest(samples, sums(samples.load, pieces(samples)))


def _numbers_of(value: Any) -> np.ndarray:
    if np.ma.is_masked(value):
        raise InputError("has masked values: fill them first, for example by .filled(0)")
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise InputError(f"must be an array of real numbers, not of {array.dtype}")
    return array


def _placed(value: Any, count: int) -> tuple[list[Any], list[NDArray[np.float64] | None]]:
    """The names of an array's dimensions and the positions along them, None where it has none."""
    names = list(getattr(value, "dims", [None] * count))
    coordinates = getattr(value, "coords", {})
    along = [np.asarray(coordinates[name]) if name in coordinates else None for name in names]
    return names, [
        line.astype(float) if line is not None and line.dtype.kind in "fiu" else None
        for line in along
    ]
