"""Compare two files of results: how far apart their fields are, and where they first differ.

Fields on one grid are compared bit for bit; else the file of more points is interpolated, linearly
along each axis, to the points of the other file.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heatsolve.errors import InputError
from heatsolve.io.layout import BLOCK_BYTES
from heatsolve.io.reader import Block, Frame, Solution, blocks, read, values_of
from heatsolve_post.view import domain_of


@dataclass(frozen=True)
class Difference:
    """How far apart a field is in two files, a and b.

    `differing` of `count` values differ, in their bits or by more than a tolerance. `largest` is
    max |a - b|, infinite where one value is NaN, `rms` the root of the mean of (a - b)^2, and
    `scale` max |a|. `first` is the place of the first differing value, in the order of the file,
    and both values.
    """

    field: str
    count: int
    differing: int
    largest: float
    rms: float
    scale: float
    first: str
    mean: float = 0.0
    """The mean of |a - b|."""
    interpolated: bool = False
    """Whether the values of one file are interpolated between its points."""

    def __str__(self) -> str:
        if self.interpolated:
            norms = {
                "at most": self.largest,
                "root mean square": self.rms,
                "mean magnitude": self.mean,
            }
            size = f" of the largest value {self.scale:.6g}" if self.scale > 0.0 else ""
            parts = [f"{words} {value / (self.scale or 1.0):.3g}" for words, value in norms.items()]
            return f"{self.field}: apart in {self.count} values by {', '.join(parts)}{size}"
        if not self.differing:
            same = "the same bits" if self.largest == 0.0 else f"apart by {self.largest:.3g}"
            return f"{self.field}: {same} in all {self.count} values"
        relative = self.largest / self.scale if self.scale > 0.0 else math.inf
        return (
            f"{self.field}: {self.differing} of {self.count} values differ, by at most "
            f"{self.largest:.6g} ({relative:.3g} of the largest value), root mean square "
            f"{self.rms:.6g}; first at {self.first}"
        )


def compare(
    path: Path, other: Path, fields: Sequence[str] = (), tolerance: float = 0.0
) -> Iterator[Difference | str]:
    """The differences of all or some `fields`, and a sentence for each field of one file only.

    A value counts as different when |a - b| > tolerance max |a|, or, with a tolerance of 0, when
    its bits differ; two NaN do not differ. Files are read block by block. On
    different grids or times a sentence says which file is interpolated, and at which times. Raises
    InputError for files of different boxes or without a common time, and as `read` does.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0.0):
        raise InputError(f"--tolerance must be a number of at least 0, not {tolerance:g}")
    one, two = (read(Path(p), fields=()) for p in (path, other))
    pairing = _pairing(one, two)
    if pairing is not None:
        yield from pairing.said(one, two)
    names = [each.names for each in (one, two)]
    for name in fields or dict.fromkeys(names[0] + names[1]):
        missing = [each.path for each, known in zip((one, two), names, strict=True)
                   if name not in known and not fields]  # fmt: skip
        yield (
            f"{name}: not in {missing[0]}"
            if missing
            else _difference(one, two, name, tolerance, pairing)
        )


class Remark(str):
    """A sentence on how files are compared; it reports no difference."""


@dataclass(frozen=True)
class Pairing:
    """The values that are compared in two files of different points or times.

    `finer`: the number, 0 or 1, of the file that is interpolated. `frames`: pairs of the numbers of
    a frame in both files, as in a `Block`.
    """

    finer: int
    frames: tuple[tuple[Frame, Frame], ...]

    def said(self, one: Solution, two: Solution) -> "Iterator[Remark]":
        """The remarks on this pairing."""
        files = (one, two)
        fine, coarse = files[self.finer], files[1 - self.finer]
        yield Remark(
            f"{fine.path} ({_points(fine)} points) is interpolated to the {_points(coarse)} "
            f"points of {coarse.path}"
        )
        times = [f"t = {file.time[frame]:g}" for pair in self.frames[:1]
                 for file, frame in zip(files, pair, strict=True)
                 if file.time is not None]  # fmt: skip
        if len(times) == 1:
            yield Remark(f"the last frame, {times[0]}, is compared with the steady solution")
        elif times and any(len(self.frames) < len(f.time) for f in files if f.time is not None):
            count = len(self.frames)
            many = f"the {count} times that both files have are"
            yield Remark(f"only {many if count > 1 else f'{times[0]} is'} compared")


def _points(solution: Solution) -> str:
    return " x ".join(str(len(line)) for line in reversed(solution.coordinates.values()))


def _pairing(one: Solution, two: Solution) -> Pairing | None:
    """The pairing of two files; None for the same points and times: compare bit for bit."""
    axes = [each.coordinates for each in (one, two)]
    if list(axes[0]) != list(axes[1]):
        words = [", ".join(reversed(each)) for each in axes]
        raise InputError(f"{one.path} has the axes {words[0]}, {two.path} has {words[1]}")
    frames = _common_frames(one, two)
    if all(alike(axes[0][axis], axes[1][axis]) for axis in axes[0]):
        counts = [0 if each.time is None else len(each.time) for each in (one, two)]
        if counts[0] != counts[1]:
            raise InputError(f"{one.path} has {counts[0]} frames, {two.path} has {counts[1]}")
        if counts[0] and len(frames) != counts[0]:
            raise InputError(f"time is not the same in {one.path} and {two.path}")
        return None
    sizes = [math.prod(map(len, each.values())) for each in axes]
    finer = int(sizes[1] > sizes[0])
    for axis, line in axes[1 - finer].items():
        fine = axes[finer][axis]
        reach = (fine[-1] - fine[0]) / max(len(fine) - 1, 1) + 1e-9 * np.abs(line).max()
        if line[0] < fine[0] - reach or line[-1] > fine[-1] + reach:
            ends = [f"{each[0]:g} to {each[-1]:g}" for each in (line, fine)]
            files = (two, one) if finer == 0 else (one, two)
            raise InputError(
                f"{axis} goes from {ends[0]} in {files[0].path}, from {ends[1]} in {files[1].path}:"
                " nothing can be interpolated there"
            )
    return Pairing(finer, frames)


def alike(line: np.ndarray, other: np.ndarray) -> bool:
    reach = np.abs(line).max(initial=0.0)
    return line.shape == other.shape and np.allclose(line, other, rtol=0.0, atol=1e-9 * reach)


def _common_frames(one: Solution, two: Solution) -> tuple[tuple[Frame, Frame], ...]:
    """The frames at times that both files have; for a march and a steady file the last frame."""
    if one.time is None or two.time is None:
        return ((one.last, two.last),)
    pairs = []
    near = 1e-9 * max(float(np.abs(one.time).max()), float(np.abs(two.time).max()))
    for n, time in enumerate(one.time):
        m = int(np.argmin(np.abs(two.time - time)))
        if abs(two.time[m] - time) <= near:
            pairs.append(((n,), (m,)))
    if not pairs:
        raise InputError(f"{one.path} and {two.path} have no time in common")
    return tuple(pairs)


def _paired(one: Solution, two: Solution, field: str, pairing: Pairing) -> Iterator[Block]:
    """The values of two files that are compared, block by block, as `blocks` yields them."""
    files = (one, two)
    fine, coarse = files[pairing.finer], files[1 - pairing.finer]
    lines, targets = list(fine.coordinates.values()), list(coarse.coordinates.values())
    periods = domain_of(fine).periods
    around = [
        brackets(line, target, periods.get(axis, 0.0))
        for axis, line, target in zip(fine.coordinates, lines, targets, strict=True)
    ]
    with ExitStack() as stack:
        values = [stack.enter_context(values_of(each, field))[1] for each in files]
        row = math.prod(len(line) for line in lines[1:]) * 8
        rows = max(1, BLOCK_BYTES // (row * -(-len(lines[0]) // len(targets[0]))))
        for pair in pairing.frames:
            for start in range(0, len(targets[0]), rows):
                slab = slice(start, start + rows)
                result = []
                for number, (each, place) in enumerate(zip(values, pair, strict=True)):
                    if number != pairing.finer:
                        result.append(each[(*place, slab)])
                        continue
                    low, share = around[0][0][slab], around[0][1][slab]
                    first, stop = int(low.min()), int(low.max()) + 2
                    piece = _layers(each, place, first, stop, len(lines[0])).astype(float)
                    inside = [(low - first, share), *around[1:]]
                    for axis, (numbers, weights) in enumerate(inside):
                        piece = _interpolated(piece, axis, numbers, weights)
                    result.append(piece)
                yield pair[0], start, result


def _layers(values: Any, frame: Frame, first: int, stop: int, count: int) -> np.ndarray:
    """Layers of a field along its slowest axis: layer -1 is the last one, layer `count` the first
    one."""
    parts = [values[(*frame, slice(max(first, 0), min(stop, count)))]]
    if first < 0:
        parts.insert(0, values[(*frame, slice(count - 1, count))])
    if stop > count:
        parts.append(values[(*frame, slice(0, 1))])
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def brackets(
    line: np.ndarray, at: np.ndarray, period: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """The number of the point before each position, and the weight of the point behind it.

    Beyond the ends the first or last two points extrapolate; on an axis with a `period` (0: none)
    the other end follows, so numbers begin at -1, the last point.
    """
    if len(line) == 1:
        return np.zeros(len(at), int), np.zeros(len(at))
    low = np.searchsorted(line, at, side="right") - 1
    before = int(period > 0.0)
    if before:
        line = np.concatenate([[line[-1] - period], line, [line[0] + period]])
    low = np.clip(low + before, 0, len(line) - 2)
    return low - before, (at - line[low]) / (line[low + 1] - line[low])


def _interpolated(
    values: np.ndarray, axis: int, numbers: np.ndarray, shares: np.ndarray
) -> np.ndarray:
    """Values interpolated along one axis; at a point of the file they are the file's own."""
    shape = [1] * values.ndim
    shape[axis] = len(shares)
    weights = shares.reshape(shape)
    low = np.take(values, numbers, axis=axis, mode="wrap")
    high = np.take(values, numbers + 1, axis=axis, mode="wrap")
    between = (1.0 - weights) * low + weights * high
    return np.where(weights == 0.0, low, np.where(weights == 1.0, high, between))


def _difference(
    one: Solution, two: Solution, field: str, tolerance: float, pairing: Pairing | None
) -> Difference:
    scale, largest, total, count, differing, first = 0.0, 0.0, 0.0, 0, 0, ""
    absolute = 0.0

    def pairs() -> Iterator[Block]:
        return _paired(one, two, field, pairing) if pairing else blocks([one, two], field)

    frames = [frame for frame, _ in pairing.frames] if pairing else None
    for _, _, (a,) in blocks([one], field, frames):
        scale = max(scale, float(np.abs(a[np.isfinite(a)]).max(initial=0.0)))
    grid = one if pairing is None or pairing.finer != 0 else two
    for frame, start, (a, b) in pairs():
        apart, differ = _apart(a, b, tolerance * scale)
        if not first and differ.any():
            place = np.unravel_index(int(np.argmax(differ)), differ.shape)
            at = start + int(place[0]), *map(int, place[1:])
            where = _place(grid, frame, at, one.time)
            first = f"{where}: {float(a[place])!r} and {float(b[place])!r}"
        largest, count = max(largest, float(apart.max(initial=0.0))), count + a.size
        differing += int(np.count_nonzero(differ))
        with np.errstate(over="ignore"):
            total += float(np.sum(apart * apart))
            absolute += float(np.sum(apart))
    rms = math.sqrt(total / count) if count else 0.0
    mean, interpolated = absolute / count if count else 0.0, pairing is not None
    return Difference(field, count, differing, largest, rms, scale, first, mean, interpolated)


def _apart(a: np.ndarray, b: np.ndarray, limit: float) -> tuple[np.ndarray, np.ndarray]:
    """|a - b|, and which values count as different."""
    nothing = np.isnan(a) & np.isnan(b)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(a.astype(float) - b.astype(float))
    apart[nothing | (a == b)] = 0.0  # infinities too
    apart[np.isnan(apart)] = math.inf
    if limit > 0.0:
        return apart, apart > limit
    # The zeros 0.0 and -0.0 are equal, but their bits differ.
    return apart, ~nothing & ((a != b) | (np.signbit(a) != np.signbit(b)))


def _place(
    solution: Solution, frame: tuple[int, ...], index: tuple[int, ...], times: np.ndarray | None
) -> str:
    """A place in words: coordinates, one of the times, and its indices in the file."""
    pairs = list(zip(solution.coordinates.items(), index, strict=True))[::-1]
    words = [f"{axis} = {line[number]:g}" for (axis, line), number in pairs]
    if frame and times is not None:
        words.append(f"t = {times[frame[0]]:g}")
    return f"{', '.join(words)} [{', '.join(map(str, (*frame, *index)))}]"
