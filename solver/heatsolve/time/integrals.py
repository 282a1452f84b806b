"""Integrals of fields over boxes, planes and walls, and means over planes along an axis, for the
history of a march.

A point stands for its control volume: a cell of the grid or, on nodes, all places nearer to this
node than to any other. Of a volume at the rim of a box the part inside counts. Along an axis on
which a box has no extent, values are interpolated as for a probe. Terms are added exactly, so that
sums do not depend on which process has which point.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from heatsolve.backends import Accumulator
from heatsolve.case.statistics import Integral
from heatsolve.models.base import Model
from heatsolve.parallel.halo import replaced
from heatsolve.stencil.grid import TOUCH, Axis, Region


def weighted(at: Any, u: Any, *weights: Any) -> Any:
    """u times a product of weights."""
    value = u[at]
    for w in weights:
        value = value * w[at]
    return value


class Integrals:
    """Reads the integrals that the case of a model asks for (`statistics.integral`)."""

    def __init__(self, problem: Model):
        self._problem, case = problem, problem.case
        self._sections = case.statistics.integrals
        self._parts = [_part(problem, section) for section in self._sections]
        names = [name for section in self._sections for name in section.fields]
        self._names = list(dict.fromkeys(names))
        self._sums = [problem.backend.accumulator("sum") for _ in names]

    def __bool__(self) -> bool:
        return bool(self._sums)

    def read(self, fields: Mapping[str, Any]) -> dict[str, float]:
        """The integrals by their columns, as `integral_NAME_temperature`; `fields`: see
        `Model.at_points` (asks all processes)."""
        problem, columns = self._problem, list[str]()
        # In the same order on all processes: derived fields exchange ghosts.
        arrays = {name: problem.written(name, fields) for name in self._names}
        for section, (region, weights) in zip(self._sections, self._parts, strict=True):
            for name, column in zip(section.fields, section.columns, strict=True):
                into = self._sums[len(columns)]
                problem.backend.sweep(weighted, into, region, arrays[name], *weights)
                columns.append(column)
        return dict(zip(columns, problem.backend.values(self._sums), strict=True))


def asked(problem: Model, kind: str) -> list[tuple[int, str]]:
    """The numbers of the axes, and the fields, of which a case wants profiles or spectra."""
    numbers = {axis.name: n for n, axis in enumerate(problem.grid.axes)}
    wanted = problem.case.statistics.recorded.items()
    return [(numbers[axis], name) for (k, axis), names in wanted if k == kind for name in names]


class Profiles:
    """Reads the means over planes across axes that the case of a model asks for
    (`statistics.profile`).

    Each plane has its own exact sum, to which each process adds its part of the plane.
    """

    def __init__(self, problem: Model):
        self._problem, self._asked = problem, asked(problem, "profile")
        weights = [weights_along(axis, axis.lower, axis.upper) for axis in problem.grid.axes]
        to_device, along = problem.backend.to_device, problem.grid.along
        self._lines = [to_device(along(n, line)) for n, line in enumerate(weights) if self._asked]
        self._sums: dict[int, list[Accumulator]] = {}
        """The sums of all planes, by the number of points of their axis."""

    def __bool__(self) -> bool:
        return bool(self._asked)

    def read(self, fields: Mapping[str, Any]) -> dict[str, list[float]]:
        """A list for each profile by columns, as `profile_y_temperature`; `fields`: see
        `Model.at_points` (asks all processes)."""
        problem, backend, result = self._problem, self._problem.backend, {}
        names = dict.fromkeys(name for _, name in self._asked)
        arrays = {name: problem.written(name, fields) for name in names}
        for number, name in self._asked:
            axis, whole = problem.grid.axes[number], problem.whole.axes
            others = [line for n, line in enumerate(self._lines) if n != number]
            if axis.points not in self._sums:
                self._sums[axis.points] = backend.accumulators("sum", axis.points)
            sums = self._sums[axis.points]
            first, _ = axis.stored_at
            for n, index in enumerate(range(*axis.stored), first):
                layer = replaced(problem.grid.stored, number, (index, index + 1))
                backend.sweep(weighted, sums[n], layer, arrays[name], *others)
            areas = [each.upper - each.lower for n, each in enumerate(whole) if n != number]
            area = math.prod(areas)
            values = backend.values(sums)
            result[f"profile_{axis.name}_{name}"] = [value / area for value in values]
        return result


def _part(problem: Model, section: Integral) -> tuple[Region, list[Any]]:
    """The points of this process that count, and the weights along each axis, slowest first."""
    case, region, lines = problem.case, [], []
    low, high = section.ends(case.grid)
    for number, axis in enumerate(problem.grid.axes):
        line = weights_along(axis, low[-1 - number], high[-1 - number])
        first, stop = axis.stored
        inside = first + np.flatnonzero(line[first:stop])
        region.append((int(inside[0]), int(inside[-1]) + 1) if inside.size else (0, 0))
        lines.append(problem.backend.to_device(problem.grid.along(number, line)))
    return tuple(region), lines


def weights_along(axis: Axis, low: float, high: float) -> np.ndarray:
    """The length of each point's part of an axis, between two positions; for equal positions, the
    weights of the points around them. 0 at points of other processes."""
    first, stop = axis.stored
    line = np.zeros(axis.unknowns + 2)
    if abs(high - low) <= TOUCH * axis.spacing:
        for number, weight in axis.linear(low):
            index = axis.number(number % axis.points if axis.periodic else number)
            if first <= index < stop:
                line[index] += weight
        return line
    # In spacings from the low end; an end of the box within TOUCH of a volume's end moves there.
    ends = np.array([(position - axis.lower) / axis.spacing for position in (low, high)])
    near = np.round(2.0 * ends) / 2.0
    begin, end = np.where(np.abs(ends - near) < TOUCH, near, ends)
    below = axis.numbers[first:stop] - (0.5 if axis.on_nodes else 0.0)
    # The node at the start of a periodic axis also stands for half a spacing at its end.
    for shift in (0, axis.points) if axis.periodic and axis.on_nodes else (0,):
        share = np.minimum(below + shift + 1.0, end) - np.maximum(below + shift, begin)
        line[first:stop] += axis.spacing * np.maximum(share, 0.0)
    return line
