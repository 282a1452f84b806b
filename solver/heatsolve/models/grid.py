"""The grid of a case, its walls, and the boxes of its initial values."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from heatsolve.case.case import Case
from heatsolve.stencil.grid import TOUCH, WALLS, Axis, Grid, Region, make_grid, sampled
from heatsolve.stencil.language import ZERO

if TYPE_CHECKING:
    from heatsolve.backends import Backend

EVALUATED_UP_TO = 1 << 20
"""Unknowns up to which `check` evaluates expressions at all points: a quarter of a second."""
SAMPLED = 1 << 18
"""Unknowns at which `check` evaluates expressions on a larger grid."""


@dataclass(frozen=True)
class Wall:
    """One wall: its place, its name in the case, and its condition there."""

    axis: int
    side: int
    name: str
    condition: Any

    def beside(self, array: np.ndarray, ghosts: bool = False) -> np.ndarray:
        """The layer of an array beside the wall (or of its ghosts), of extent 1 across it."""
        if array.shape[self.axis] == 1:
            return array
        place = (0, -1)[self.side] if ghosts else (1, -2)[self.side]
        return np.take(array, [place], axis=self.axis)


def walls_of(case: Case, grid: Grid, field: str = "temperature") -> Iterator[Wall]:
    """The walls at which a grid, or a block of one, ends, and where a field has a condition."""
    for number, axis in enumerate(grid.axes):
        for side, name in enumerate(WALLS[axis.name]):
            if axis.at_walls[side] and (condition := case.condition(field, name)) is not None:
                yield Wall(number, side, name, condition)


def mirrors(walls: Sequence[Wall], grid: Grid, backend: "Backend") -> tuple[Any, ...]:
    """The lines that `Mirrored` takes: one for a wall of given gradient, ZERO for other walls."""
    mirroring = {(w.axis, w.side) for w in walls if w.condition.gradient is not None}
    return tuple(
        backend.to_device(grid.beside(number, side)) if (number, side) in mirroring else ZERO
        for number in range(grid.dimension)
        for side in (0, 1)
    )


def grid_of(case: Case) -> Grid:
    """The grid of a case: nodes on a wall of given values are no unknowns.

    Neither are wall nodes that copy the nodes inside, as in teaching codes.
    """
    walls = {name: getattr(case.boundary, name) for pair in WALLS.values() for name in pair}

    def fixed(name: str) -> bool:
        wall = walls[name]
        given = [getattr(wall, field) for field in case.field_names] if wall is not None else []
        if not given or case.grid.kind == "cells":
            return False
        return copies or all(condition.value is not None for condition in given)

    copies = case.solver.update is not None or case.scheme == "collocated"

    ends = {axis: (fixed(low), fixed(high)) for axis, (low, high) in WALLS.items()}
    grid = case.grid
    return make_grid(grid.counts, grid.lower, grid.upper, grid.kind == "nodes", grid.periodic, ends)


def sample_of(grid: Grid, names: Collection[str] | None = None) -> Grid:
    """The points at which `check` evaluates expressions: all points, or a sample of many.

    Along axes that are not among the `names` a few points stand for all.
    """
    if names is None and grid.all_unknowns <= EVALUATED_UP_TO:
        return grid
    most = EVALUATED_UP_TO if grid.all_unknowns <= EVALUATED_UP_TO else SAMPLED
    return sampled(grid, most, names)


def regions_of(box: Any, grid: Grid) -> list[Region]:
    """The unknowns of a block in a box of initial values, and in the box's images along periodic
    axes."""
    corners = zip(grid.axes, *map(reversed, box.corners), strict=True)
    return list(product(*[_ranges_of(box, axis, low, high) for axis, low, high in corners]))


def _ranges_of(box: Any, axis: Axis, low: float, high: float) -> Iterator[tuple[int, int]]:
    """The ranges of an axis's own unknowns between two ends, and between their images."""
    lines = axis.numbers if box.by_index else axis.coordinates
    near = 0.0 if box.by_index else TOUCH * axis.spacing
    period = axis.points if box.by_index else axis.upper - axis.lower
    first, stop = axis.own
    own = lines[first:stop]
    if axis.periodic and high - low >= period:
        yield first, stop
        return
    images = [0.0]
    if axis.periodic and own.size:
        first_image = math.ceil((own[0] - high - near) / period)
        last_image = math.floor((own[-1] - low + near) / period)
        images = [n * period for n in range(first_image, last_image + 1)]
    for shift in images:
        inside = np.flatnonzero((own >= low + shift - near) & (own <= high + shift + near))
        if inside.size:
            yield int(first + inside[0]), int(first + inside[-1]) + 1
