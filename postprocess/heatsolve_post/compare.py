"""Two files of results against each other: how far apart their fields are, and where first."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heatsolve.errors import InputError
from heatsolve.io.reader import Solution, blocks, read


@dataclass(frozen=True)
class Difference:
    """How far apart a field is in two files, a and b.

    `differing` of `count` values are not the same: bit for bit, or beyond a tolerance. `largest` is
    max |a - b|, infinite where one is no number, `rms` the root of the mean of (a - b)^2, and
    `scale` max |a|. `first` is where the first of them is, in the order of the file, with the
    values there.
    """

    field: str
    count: int
    differing: int
    largest: float
    rms: float
    scale: float
    first: str

    def __str__(self) -> str:
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
    """The differences of all fields, or of some, and a sentence for each field of one file only.

    A value counts as different when |a - b| > tolerance max |a|, or, with a tolerance of 0, when
    its bits are others; two that are no numbers are the same. Files are read block by block. Raises
    InputError for files on different grids or times, and as `read` does.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0.0):
        raise InputError(f"--tolerance must be a number of at least 0, not {tolerance:g}")
    one, two = (read(Path(p), fields=()) for p in (path, other))
    _demand_one_grid(one, two)
    names = [each.names for each in (one, two)]
    for name in fields or dict.fromkeys(names[0] + names[1]):
        missing = [each.path for each, known in zip((one, two), names, strict=True)
                   if name not in known and not fields]  # fmt: skip
        yield f"{name}: not in {missing[0]}" if missing else _difference(one, two, name, tolerance)


def _demand_one_grid(one: Solution, two: Solution) -> None:
    """Raise InputError unless both have the same points and times."""
    axes = [each.coordinates for each in (one, two)]
    times = [np.empty(0) if each.time is None else each.time for each in (one, two)]
    points = [" x ".join(str(len(line)) for line in reversed(each.values())) for each in axes]
    for what, sizes in (("points", points), ("frames", [str(len(time)) for time in times])):
        if sizes[0] != sizes[1]:
            raise InputError(f"{one.path} has {sizes[0]} {what}, {two.path} has {sizes[1]}")
    for name, line in {**axes[0], "time": times[0]}.items():
        other = {**axes[1], "time": times[1]}[name]
        reach = np.abs(line).max(initial=0.0)
        if not np.allclose(line, other, rtol=0.0, atol=1e-9 * reach):
            raise InputError(f"{name} is not the same in {one.path} and {two.path}")


def _difference(one: Solution, two: Solution, field: str, tolerance: float) -> Difference:
    scale, largest, total, count, differing, first = 0.0, 0.0, 0.0, 0, 0, ""
    for _, _, (a,) in blocks([one], field):
        scale = max(scale, float(np.abs(a[np.isfinite(a)]).max(initial=0.0)))
    for frame, start, (a, b) in blocks([one, two], field):
        apart, differ = _apart(a, b, tolerance * scale)
        if not first and differ.any():
            place = np.unravel_index(int(np.argmax(differ)), differ.shape)
            where = _place(one, frame, (start + int(place[0]), *map(int, place[1:])))
            first = f"{where}: {float(a[place])!r} and {float(b[place])!r}"
        largest, count = max(largest, float(apart.max(initial=0.0))), count + a.size
        differing += int(np.count_nonzero(differ))
        with np.errstate(over="ignore"):
            total += float(np.sum(apart * apart))
    rms = math.sqrt(total / count) if count else 0.0
    return Difference(field, count, differing, largest, rms, scale, first)


def _apart(a: np.ndarray, b: np.ndarray, limit: float) -> tuple[np.ndarray, np.ndarray]:
    """|a - b|, and which values count as different."""
    nothing = np.isnan(a) & np.isnan(b)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(a.astype(float) - b.astype(float))
    apart[nothing | (a == b)] = 0.0  # infinities too
    apart[np.isnan(apart)] = math.inf
    if limit > 0.0:
        return apart, apart > limit
    # The bits of zeros differ in their sign.
    return apart, ~nothing & ((a != b) | (np.signbit(a) != np.signbit(b)))


def _place(solution: Solution, frame: tuple[int, ...], index: tuple[int, ...]) -> str:
    """A place in words: coordinates and time, and the numbers by which a file holds it."""
    pairs = list(zip(solution.coordinates.items(), index, strict=True))[::-1]
    words = [f"{axis} = {line[number]:g}" for (axis, line), number in pairs]
    if frame and solution.time is not None:
        words.append(f"t = {solution.time[frame[0]]:g}")
    return f"{', '.join(words)} [{', '.join(map(str, (*frame, *index)))}]"
