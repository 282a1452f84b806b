"""Fields at single points and along lines, for the history of a march.

Between points of the grid by multilinear interpolation. Beside an obstacle a pressure is that of
the plane, of least squares weighted by 1 / r^4, through the fluid's cells around.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heatsolve.errors import InputError
from heatsolve.models.base import Model
from heatsolve.models.flow.immersed_boundary import owners
from heatsolve.stencil.grid import Axis

LINE_TIME = "line_time"
"""The column of the times at which lines are read: those of the frames."""

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
    """Reads the fields of a problem where its case wants them: at `output.probes`, or along `lines`
    (`output.line`)."""

    def __init__(self, problem: Model, lines: bool = False):
        self._problem = problem
        output, kind = problem.case.output, "line" if lines else "probe"
        probes = [[position] for position in output.probes]
        points = [line.positions() for line in output.lines] if lines else probes
        self._places = [
            Place(f"{kind}_{n}_{name}", name, tuple(
                tuple(self._shares(name, position)) for position in given
            ), not lines)
            for n, given in enumerate(points)
            for name in problem.case.field_names
        ]  # fmt: skip
        self._names = {place.field for place in self._places}
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
        values, result = iter(backend.values(self._sums)), {}
        scales = {name: self._problem.scale(name, fields) for name in self._names}
        for place in self._places:
            datum, factor = scales[place.field]
            several = [(next(values) - datum) * factor for _ in place.shares]
            result[place.column] = several[0] if place.single else several
        return result

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
        problem = self._problem
        given = list(zip(problem.places(name).axes, position[::-1], strict=True))
        corners = itertools.product(*[_linear(axis, at) for axis, at in given])
        shares = [tuple(zip(*corner, strict=True)) for corner in corners]
        if problem.case.obstacles and name == "pressure":
            cells = itertools.product(*[_around(axis, at, 2) for axis, at in given])
            fluid = [numbers for numbers in cells if not self._inside(numbers)]
            if not {numbers for numbers, _ in shares} <= set(fluid):
                if not fluid:
                    words = ", ".join(f"{x:g}" for x in position)
                    raise InputError(f"output: no fluid is beside the point ({words})")
                shares = [(numbers, (height,)) for numbers, height in _plane(fluid, given)]
        for numbers, weights in shares:
            wrapped = [
                number % axis.points if axis.periodic else number
                for number, (axis, _) in zip(numbers, given, strict=True)
            ]
            yield tuple(wrapped), float(np.prod(weights))

    def _inside(self, numbers: Sequence[int]) -> bool:
        """Whether the centre of a cell lies in an obstacle."""
        positions = {}
        for axis, number in zip(self._problem.grid.axes, numbers, strict=True):
            wrapped = number % axis.points if axis.periodic else number
            positions[axis.name] = np.array(axis.lower + (wrapped + 0.5) * axis.spacing)
        ordered = dict(reversed(positions.items()))
        return bool(owners(self._problem.case.obstacles, ordered) > 0)


def _plane(
    points: Sequence[tuple[int, ...]], given: Sequence[tuple[Axis, float]]
) -> Iterator[tuple[tuple[int, ...], float]]:
    """The weights that give the height of a plane at a position, or of a level one.

    That is so where too few points are there for another.
    """
    at = np.array([_number(axis, x) for axis, x in given])
    offsets = np.array(points) - at
    weights = (0.01 + (offsets * offsets).sum(axis=1)) ** -2.0
    rows = np.column_stack([np.ones(len(points)), offsets])
    if np.linalg.matrix_rank(rows) < rows.shape[1]:
        rows = rows[:, :1]
    inverse = np.linalg.pinv(rows * np.sqrt(weights)[:, None])
    yield from zip(points, map(float, inverse[0] * np.sqrt(weights)), strict=True)


def _number(axis: Axis, at: float) -> float:
    """The number that a point at a position would have."""
    offset = 0.0 if axis.on_nodes else 1.0 if axis.on_faces else 0.5
    return (at - axis.lower) / axis.spacing - offset


def _around(axis: Axis, at: float, reach: int) -> list[int]:
    """The numbers of the points so many before and behind a position."""
    low = math.floor(_number(axis, at))
    numbers = range(low + 1 - reach, low + 1 + reach)
    first = -1 if axis.on_faces else 0
    return [n for n in numbers if axis.periodic or first <= n < axis.points]


def _linear(axis: Axis, at: float) -> list[tuple[int, float]]:
    """Two points, extrapolating beside the ends, and their weights."""
    number = _number(axis, at)
    low = math.floor(number)
    if not axis.periodic:
        low = min(max(low, -1 if axis.on_faces else 0), axis.points - 2)
    share = number - low
    return [(low, 1.0 - share), (low + 1, share)]


def scaled(at: Any, u: Any, weight: Any) -> Any:
    """u times a number."""
    return weight * u[at]
