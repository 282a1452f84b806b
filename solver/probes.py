"""Fields at single points and along lines, for the history of a march.

Between points of the grid by multilinear interpolation. Beside an obstacle a pressure is that of
the plane, of least squares weighted by 1 / r^4, through the fluid's cells around.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heatsolve.grid import Axis, Grid
from heatsolve.obstacles import owners
from heatsolve.problem import Problem

Share = tuple[tuple[int, ...], float]
"""The numbers of a point along each axis, as the case counts, and its weight."""


@dataclass(frozen=True)
class Place:
    """What is read: a column of the history, and the points that make each of its values."""

    column: str
    field: str
    shares: tuple[tuple[Share, ...], ...]
    single: bool


class Probes:
    """Reads the fields of a problem where its case wants them; see `[output]`."""

    def __init__(self, problem: Problem):
        self._problem = problem
        output = problem.case.output
        points = [("probe", n, [point]) for n, point in enumerate(output.probes)]
        points += [("line", n, line.positions()) for n, line in enumerate(output.lines)]
        self._places = [
            Place(f"{kind}_{n}_{name}", name, tuple(
                tuple(self._shares(name, position)) for position in positions
            ), kind == "probe")
            for kind, n, positions in points
            for name in problem.case.field_names
        ]  # fmt: skip
        count = sum(len(place.shares) for place in self._places)
        self._sums = [problem.backend.accumulator("sum") for _ in range(count)]

    def __bool__(self) -> bool:
        return bool(self._sums)

    def read(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A number for each probe and a list for each line, by columns (asks all processes)."""
        backend, sums = self._problem.backend, iter(self._sums)
        for place in self._places:
            for shares in place.shares:
                into = next(sums)
                for numbers, weight in shares:
                    region = self._own(place.field, numbers)
                    if region is not None:
                        backend.sweep(scaled, into, region, fields[place.field], weight)
        values, found = iter(backend.values(self._sums)), {}
        for place in self._places:
            several = [next(values) for _ in place.shares]
            found[place.column] = several[0] if place.single else several
        return found

    def _own(self, name: str, numbers: Sequence[int]) -> Any:
        """The region of one point, if this process has it."""
        region = []
        for axis, number in zip(self._problem.places(name).axes, numbers, strict=True):
            index = axis.number(number)
            first, stop = axis.stored
            if axis.on_faces and axis.at_ends[0] and not axis.periodic:
                first -= 1
            if not first <= index < stop:
                return None
            region.append((index, index + 1))
        return tuple(region)

    def _shares(self, name: str, position: Sequence[float]) -> Iterator[Share]:
        """The points around a position along x, y, z, and the weights of their values."""
        problem, ordered = self._problem, position[::-1]
        axes = Grid(tuple(problem.places(name).axes)).axes
        given = list(zip(axes, ordered, strict=True))
        if problem.case.obstacles and name == "pressure":
            numbers = list(itertools.product(*[_around(axis, at, 2) for axis, at in given]))
            near = list(itertools.product(*[_around(axis, at, 1) for axis, at in given]))
            fluid = [point for point in numbers if not self._inside(point)]
            if not set(near) <= set(fluid):
                yield from self._plane(fluid, ordered)
                return
        for corner in itertools.product(*[_linear(axis, at) for axis, at in given]):
            yield tuple(number for number, _ in corner), float(np.prod([w for _, w in corner]))

    def _inside(self, numbers: Sequence[int]) -> bool:
        """Whether the centre of a cell lies in an obstacle."""
        axes = reversed(self._problem.grid.axes)
        given = zip(axes, reversed(numbers), strict=True)
        positions = {axis.name: np.array(_position(axis, number)) for axis, number in given}
        return bool(owners(self._problem.case.obstacles, positions) > 0)

    def _plane(self, numbers: Sequence[tuple[int, ...]], at: Sequence[float]) -> Iterator[Share]:
        """The weights that give the height of a plane at a position."""
        axes = self._problem.grid.axes
        offsets = np.array([
            [(_position(axis, number) - x) / axis.spacing
             for axis, number, x in zip(axes, point, at, strict=True)]
            for point in numbers
        ]).reshape(len(numbers), len(axes))  # fmt: skip
        weights = (0.01 + (offsets * offsets).sum(axis=1)) ** -2.0
        rows = np.column_stack([np.ones(len(numbers)), offsets])
        normal = np.linalg.pinv(rows * weights[:, None] ** 0.5)
        heights = normal[0] * weights**0.5
        yield from zip(numbers, map(float, heights), strict=True)


def _position(axis: Axis, number: float) -> float:
    """Where a point of this number is."""
    offset = 0.0 if axis.on_nodes else 1.0 if axis.on_faces else 0.5
    return axis.lower + (number + offset) * axis.spacing


def _around(axis: Axis, at: float, reach: int) -> list[int]:
    """The numbers of the points so many before and behind a position."""
    offset = 0.0 if axis.on_nodes else 1.0 if axis.on_faces else 0.5
    low = int(np.floor((at - axis.lower) / axis.spacing - offset))
    numbers = range(low + 1 - reach, low + 1 + reach)
    if axis.periodic:
        return [number % axis.points for number in numbers]
    first = -1 if axis.on_faces else 0
    return [number for number in numbers if first <= number < axis.points]


def _linear(axis: Axis, at: float) -> list[tuple[int, float]]:
    """Two points, extrapolating beside the ends, and their weights."""
    numbers = _around(axis, at, 1)
    if len(numbers) < 2:  # beside an end
        first = -1 if axis.on_faces else 0
        low = min(max(numbers[0] - 1, first), axis.points - 2) if numbers else first
        numbers = [low, low + 1]
    low, high = numbers
    share = (at - _position(axis, low)) / axis.spacing
    if axis.periodic:
        share -= np.floor(share)
    return [(low, 1.0 - share), (high, float(share))]


def scaled(at, u, weight):
    """u times a number."""
    return weight * u[at]
