"""The part of a file that a figure shows: a field, its cuts, its times, walls and obstacles."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from typing import Any

import numpy as np

from heatsolve.case.case import Case
from heatsolve.case.load import recorded
from heatsolve.errors import InputError
from heatsolve.io.reader import Solution, Source, cuts, evenly, read
from heatsolve.report import shown

DRAWN_POINTS = 1000
"""The most points along an axis of a figure."""
LARGEST, SMALLEST_SPAN = 1e100, 1e-100
"""Bounds of the magnitude of a figure's limits, and of the distance between them."""
MOMENTS = 6
"""Frames of a march that are drawn as lines in one figure."""
LETTERS_OF_UNIT = 30
"""The most letters of a unit; further letters are cut off."""
FINE, PARTS = 600, 3
"""Squares along the longer side of a plane for which the solid share is computed, and test points
along each side of a square."""

MOST_TESTS = 10**8
"""Tests of points against obstacles: with many obstacles the squares are larger."""

Place = tuple[tuple[str, float], ...]
"""The place of a plane or a line: the axes across which it is cut, with the positions."""


@dataclass(frozen=True, eq=False)
class Domain:
    """The ends of each axis, the periodic axes, and the obstacles.

    Fields on cells end half a cell before the walls, periodic fields before they repeat.
    """

    ends: Mapping[str, tuple[float, float]]
    periodic: frozenset[str]
    obstacles: tuple[Any, ...]

    @property
    def periods(self) -> dict[str, float]:
        """The lengths of the periodic axes."""
        return {axis: self.ends[axis][1] - self.ends[axis][0] for axis in self.periodic}


@dataclass(frozen=True)
class View:
    """A field of a file, on the points that a figure shows.

    `axes`: the positions drawn, by axis, slowest axis first. `at`: the numbers of the points at
    which the field is cut, by axis. `frames`: the numbers of the frames that are shown.
    """

    solution: Solution
    field: str
    axes: Mapping[str, np.ndarray]
    at: Mapping[str, int]
    frames: Sequence[int]

    @cached_property
    def values(self) -> list[np.ndarray]:
        """One array for each frame."""
        return list(self.read(self.field))

    def read(self, field: str) -> list[np.ndarray]:
        """Any field of the file at the same place, one array for each frame."""
        return list(self.every(field))

    def every(self, field: str) -> Iterator[np.ndarray]:
        """The values of a field, frame by frame; NaN within obstacles where it has no meaning.

        Points just inside a surface have the mean of their neighbours outside.
        """
        lines = self.solution.coordinates
        positions = {axis: np.array(lines[axis][number]) for axis, number in self.at.items()}
        meshes = np.meshgrid(*self.axes.values(), indexing="ij", sparse=True)
        inside = hidden(self.domain, field, positions | dict(zip(self.axes, meshes, strict=True)))
        for values in cuts(self.solution, field, self.frames, self.at, DRAWN_POINTS):
            plain = values.astype(float)
            yield (
                plain if inside is None else continued(plain, np.broadcast_to(inside, plain.shape))
            )

    @cached_property
    def domain(self) -> Domain:
        """The walls and the obstacles of the case."""
        return domain_of(self.solution)

    @property
    def ends(self) -> list[tuple[float, float]]:
        """Where the axes begin and end, slowest first: at the walls."""
        return [self.domain.ends[axis] for axis in self.axes]

    def solid(self) -> tuple[list[np.ndarray], np.ndarray] | None:
        """The solid share of the line or plane, see `solid`."""
        lines = self.solution.coordinates
        place = tuple((axis, float(lines[axis][n])) for axis, n in self.at.items())
        return solid(self.domain, tuple(self.axes), place)

    def up_to_the_walls(self, values: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Positions and values, continued to the walls where cells end half a cell before them.

        Values at walls are extrapolated linearly, within the range of the values, or on a periodic
        axis interpolated between its two ends.
        """
        lines = list(self.axes.values())
        finite = values[np.isfinite(values)]
        bounds = finite.min(initial=np.inf), finite.max(initial=-np.inf)
        for number, (axis, (lower, upper)) in enumerate(zip(self.axes, self.ends, strict=True)):
            x = lines[number]
            low_gap, high_gap = x[0] - lower, upper - x[-1]
            first, second, last_but_one, last = (
                np.take(values, [n], axis=number) for n in (0, 1, -2, -1)
            )
            with np.errstate(invalid="ignore"):  # of infinite values
                if axis in self.domain.periodic:
                    at_low = at_high = (high_gap * first + low_gap * last) / (low_gap + high_gap)
                else:
                    at_low = first + (first - second) * (low_gap / (x[1] - x[0]))
                    at_high = last + (last - last_but_one) * (high_gap / (x[-1] - x[-2]))
            pieces = [(x, values)]
            tiny = 1e-9 * (upper - lower)
            if low_gap > tiny:
                pieces.insert(0, (np.array([lower]), np.clip(at_low, *bounds)))
            if high_gap > tiny:
                pieces.append((np.array([upper]), np.clip(at_high, *bounds)))
            lines[number] = np.concatenate([line for line, _ in pieces])
            values = np.concatenate([piece for _, piece in pieces], axis=number)
        return lines, values

    def label(self, name: str) -> str:
        return label_of(self.solution, name)

    def cut(self, axis: str, number: int) -> "View":
        """The same view, cut at a point of one more axis."""
        kept = {name: line for name, line in self.axes.items() if name != axis}
        return replace(self, axes=kept, at={**self.at, axis: number})

    @property
    def place(self) -> str:
        """Where it is cut, as "z = 0.5 m"."""
        lines, units = self.solution.coordinates, self.solution.units
        return ", ".join(quantity(axis, lines[axis][n], units[axis]) for axis, n in self.at.items())

    def moment(self, frame: int) -> str:
        """The time of a frame, as "t = 2 s"; "" for a steady file."""
        if self.solution.time is None:
            return ""
        return quantity("t", self.solution.time[frame], self.solution.units["time"])

    @property
    def title(self) -> str:
        """The title of the case, with the place, and the time if there is one."""
        when = self.moment(self.frames[0]) if len(self.frames) == 1 else ""
        return ", ".join(filter(None, (self.solution.title, self.place, when)))


def look(
    source: Source,
    field: str | None = None,
    slices: Mapping[str, float] | None = None,
    time: float | None = None,
) -> View:
    """A view of a field of a file, by default of the temperature or else of the first field.

    `slices`: positions at which the field is cut, by axis. `time`: a time of a march, by default
    its end, for lines several times. The nearest points and frames are taken. Raises InputError for
    an axis, a place or a time that the file does not have, and as `read` does.
    """
    solution = read(source, fields=())
    lines = solution.coordinates
    at = {axis: _nearest(solution, axis, place) for axis, place in (slices or {}).items()}
    at |= {axis: 0 for axis, line in lines.items() if len(line) == 1}  # the file holds a plane
    if len(at) == len(lines):
        if not slices:
            raise InputError(f"{solution.path} holds one point, of which nothing can be drawn")
        raise InputError(f"--slice leaves no axis to draw: {solution.path} has {', '.join(lines)}")
    axes = {
        axis: line[evenly(len(line), DRAWN_POINTS)]
        for axis, line in lines.items()
        if axis not in at
    }
    field = field or main_field(solution)
    return View(solution, field, axes, at, _frames(solution, time, several=len(axes) == 1))


def main_field(solution: Solution) -> str:
    """The temperature, or else the first field that is no statistic of another field."""
    if "temperature" in solution.names:
        return "temperature"
    case = _of_text(str(solution.attributes.get("case", "")))
    statistics = case[0].statistic_fields if case is not None else {}
    return next((n for n in solution.names if n not in statistics), solution.names[0])


def _frames(solution: Solution, time: float | None, several: bool) -> Sequence[int]:
    """The numbers of the frames to draw."""
    times = solution.time
    if times is None:
        if time is not None:
            raise InputError(f"{solution.path} is steady, and has no time")
        return (0,)
    last = len(times) - 1
    if time is not None:
        if not times[0] <= time <= times[-1]:
            ends = f"{times[0]:g} to {times[-1]:g}"
            raise InputError(f"t = {time:g} is outside the frames of {solution.path}, {ends}")
        return (int(np.argmin(np.abs(times - time))),)
    return evenly(last + 1, MOMENTS).tolist() if several else (last,)


def _nearest(solution: Solution, axis: str, place: float) -> int:
    """The number of the point nearest to a position along an axis."""
    line = solution.coordinates.get(axis)
    if line is None:
        raise InputError(
            f"{solution.path} has no axis {axis}, only {', '.join(solution.coordinates)}"
        )
    room = 0.5005 * (line[-1] - line[0]) / max(1, len(line) - 1)
    domain = domain_of(solution)
    low, high = domain.ends[axis]
    if axis in domain.periodic and line[-1] + room < place <= high + 1e-9 * (high - low):
        place = line[0]  # a periodic axis ends where it begins
    if not line[0] - room <= place <= line[-1] + room:  # walls lie half a cell beyond cells
        ends = f"outside {max(low, line[0] - room):g} to {min(high, line[-1] + room):g}"
        alone = f"not in {solution.path}, which has the plane {axis} = {line[0]:g} alone"
        raise InputError(f"{axis} = {place:g} is {alone if len(line) == 1 else ends}")
    return int(np.argmin(np.abs(line - place)))


def parse_slices(texts: Sequence[str]) -> dict[str, float]:
    """Positions by axis, from texts such as "z=0.5". Raises InputError for other texts."""
    slices: dict[str, float] = {}
    for text in texts:
        axis, _, place = (part.strip() for part in text.partition("="))
        try:
            position = float(place)
        except ValueError:
            position = np.nan
        if axis not in ("x", "y", "z") or not np.isfinite(position):
            raise InputError(f"--slice {text!r} must be one axis and a position, such as z=0.5")
        if axis in slices:
            raise InputError(f"--slice {text!r}: a picture has one position of {axis}")
        slices[axis] = position
    return slices


def limits_of(limits: Any) -> tuple[float, float] | None:
    """The lowest and the highest value to show, also from a text such as "-1,1"; None for all.

    Raises InputError for anything but two numbers.
    """
    if limits is None:
        return None
    limits = limits.split(",") if isinstance(limits, str) else limits
    try:
        low, high = map(float, limits)
    except (TypeError, ValueError):
        low = high = np.nan
    # Matplotlib's ticks overflow for huge limits, and its colours for tiny spans.
    if not -LARGEST <= low < high <= LARGEST or high - low < SMALLEST_SPAN:
        said = ",".join(map(str, limits)) if isinstance(limits, list | tuple) else str(limits)
        raise InputError(
            f"--limits {shown(said)!r} must be two numbers, the lower one first, as -1,1 "
            f"(at most {LARGEST:g}, and {SMALLEST_SPAN:g} apart)"
        )
    return low, high


# ---- names and units -------------------------------------------------------------------------


def label_of(solution: Solution, name: str) -> str:
    """Name and unit, as `velocity x (m/s)`."""
    unit = shown(solution.units[name], LETTERS_OF_UNIT)
    return name.replace("_", " ") + (f" ({unit})" if unit != "1" else "")


def quantity(name: str, value: float, unit: str) -> str:
    """Name, value and unit, as `t = 0.5 s`."""
    return f"{name} = {value:.4g}" + (f" {shown(unit, LETTERS_OF_UNIT)}" if unit != "1" else "")


# ---- the domain behind a file: its walls, and the obstacles in it ----------------------------


@lru_cache(maxsize=8)
def solid(
    domain: Domain, axes: tuple[str, ...], at: Place
) -> tuple[list[np.ndarray], np.ndarray] | None:
    """The solid share of each square of a line or a plane: positions by axis, and the shares.

    `axes` slowest first. The outermost positions are on the walls. None without obstacles.
    """
    if not domain.obstacles:
        return None
    squares = min(FINE, round((MOST_TESTS / len(domain.obstacles)) ** 0.5 / PARTS))
    spans = [high - low for low, high in (domain.ends[axis] for axis in axes)]
    counts = [max(FINE // 10, round(squares * span / max(spans))) for span in spans]
    points: dict[str, np.ndarray] = {axis: np.array(position) for axis, position in at}
    lines = []
    for number, (axis, count) in enumerate(zip(axes, counts, strict=True)):
        low, high = domain.ends[axis]
        width = (high - low) / (count * PARTS)
        fine = low + width * (np.arange(count * PARTS) + 0.5)
        points[axis] = fine.reshape([-1 if n == number else 1 for n in range(len(axes))])
        middles = fine.reshape(count, PARTS).mean(axis=1)
        lines.append(np.concatenate([[low], middles, [high]]))
    inside = within(domain.obstacles, points)
    whole = np.broadcast_to(inside, [count * PARTS for count in counts])
    parts = whole.reshape([n for count in counts for n in (count, PARTS)])
    share = parts.mean(axis=tuple(range(1, 2 * len(axes), 2)))
    return lines, np.pad(share, 1, mode="edge")


STATISTIC = re.compile("^(mean|variance|minimum|maximum|covariance)_")
"""The begin of the name of a statistic, whose meaning inside obstacles is the field's."""


def hidden(domain: Domain, field: str, positions: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Whether points lie in obstacles where a field has no meaning; None without such obstacles.

    A pressure has no meaning there, nor has a quantity without a value of the obstacle: it keeps
    its initial value. `positions`: along the axes, in the shape of the points.
    """
    field = STATISTIC.sub("", field)
    if field.startswith("velocity_") or field == "speed":
        return None
    mute = [each for each in domain.obstacles if getattr(each, field, None) is None]
    return within(mute, positions) if mute else None


def within(obstacles: Sequence[Any], positions: Mapping[str, np.ndarray]) -> np.ndarray:
    """Whether points lie in any of some obstacles."""
    ordered = dict(sorted(positions.items()))
    return reduce(np.logical_or, [obstacle.contains(ordered) for obstacle in obstacles])


def continued(values: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Values outside obstacles; just inside, the mean of the neighbours outside; deeper, NaN.

    So the contours beside a surface do not bend towards the values behind it.
    """
    outside = np.pad(np.where(inside, np.nan, values), 1, constant_values=np.nan)
    total, count = np.zeros(values.shape), np.zeros(values.shape)
    for start in itertools.product(range(3), repeat=values.ndim):
        near = outside[tuple(slice(n, n + k) for n, k in zip(start, values.shape, strict=True))]
        total += np.nan_to_num(near, nan=0.0)
        count += ~np.isnan(near)
    mean = np.divide(total, count, out=np.full(values.shape, np.nan), where=count > 0)
    return np.where(inside, mean, values)


def domain_of(solution: Solution) -> Domain:
    """The domain of the case in a file; without a case, between the first and last points.

    The domain of a file of some points ends at them, along axes of which the file lacks points.
    """
    case = _of_text(str(solution.attributes.get("case", "")))
    lines = solution.coordinates
    if case is not None and "output" in solution.attributes and set(lines) == set(case[1].ends):
        whole = dict(zip(case[0].grid.axes, case[0].grid.counts, strict=True))
        cut = {axis for axis, line in lines.items() if len(line) != whole[axis]}
        ends = {axis: (line[0], line[-1]) for axis, line in lines.items() if axis in cut}
        return replace(case[1], ends={**case[1].ends, **ends}, periodic=case[1].periodic - cut)
    if case is not None and _is_grid_of(case, lines):
        return case[1]
    return Domain({axis: (line[0], line[-1]) for axis, line in lines.items()}, frozenset(), ())


@lru_cache(maxsize=8)
def _of_text(text: str) -> tuple[Case, Domain] | None:
    case = recorded(text).case
    if case is None:  # a model that is not registered here, or no case at all
        return None
    grid, data = case.grid, dict(case.data())
    ends = zip(grid.lower, grid.upper, strict=True)
    # Files of shapes need not be here.
    bodies = [o for n, o in enumerate(case.obstacles) if f"obstacle.{n}.shape" not in data]
    lines = dict(zip(grid.axes, ends, strict=True))
    return case, Domain(lines, frozenset(grid.periodic), tuple(bodies))


def _is_grid_of(case: tuple[Case, Domain], lines: Mapping[str, np.ndarray]) -> bool:
    """Whether points lie on the grid of a case: a stranger's file may hold any."""
    (read, domain), counts = case, {axis: len(line) for axis, line in lines.items()}
    return counts == dict(zip(read.grid.axes, read.grid.counts, strict=True)) and all(
        low - 1e-6 * (high - low) <= line[0] and line[-1] <= high + 1e-6 * (high - low)
        for line, (low, high) in ((lines[axis], domain.ends[axis]) for axis in lines)
    )
