"""Expressions of a case, at the points of a grid and along its walls.

They are evaluated on the host and with NumPy, so that their bits do not depend on the backend. A
quantity that does not vary along an axis stays an array of extent 1 along it: constants need no
memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from heatsolve.case.load import Case
from heatsolve.errors import InputError
from heatsolve.stencil.grid import WALLS, Grid


@dataclass(frozen=True)
class Wall:
    """One wall: its place, its name in the case, and its condition there."""

    number: int
    side: int
    name: str
    condition: Any

    def beside(self, array: np.ndarray, ghosts: bool = False) -> np.ndarray:
        """The layer of an array beside the wall (or of its ghosts), of extent 1 across it."""
        if array.shape[self.number] == 1:
            return array
        place = (0, -1)[self.side] if ghosts else (1, -2)[self.side]
        return np.take(array, [place], axis=self.number)

    @property
    def ghost(self) -> Any:
        """What its ghosts hold, an expression: its value, or the ambient; None for a gradient."""
        condition = self.condition
        return condition.robin.ambient if condition.robin is not None else condition.value


def walls_of(case: Case, grid: Grid, field: str = "temperature") -> Iterator[Wall]:
    """The walls of a case at which a grid, or a block of one, ends, with the conditions there."""
    for number, axis in enumerate(grid.axes):
        for side, name in enumerate(WALLS[axis.name]):
            if not axis.periodic and axis.at_ends[side]:
                yield Wall(number, side, name, getattr(getattr(case.boundary, name), field))


def evaluate(
    grid: Grid,
    path: str,
    expression: Any,
    time: float = 0.0,
    positive: bool = False,
    wall: Wall | None = None,
) -> np.ndarray:
    """An expression at all points of a grid, or along a wall; finite, or InputError.

    `path` is the key that messages speak of.
    """
    positions = grid.positions()
    if wall is not None:
        axis = grid.axes[wall.number]
        at_wall = np.array([(axis.lower, axis.upper)[wall.side]])
        positions[axis.name] = grid.along(wall.number, at_wall)
    known: dict[str, ArrayLike] = {**positions, "t": time}
    variables = {name: known[name] for name in expression.names}
    given = variables if wall is not None else grid.to_evaluate(variables)
    values = np.asarray(expression(**given), float)
    values = values if values.ndim else values.reshape((1,) * grid.dimension)
    if "t" in expression.names and time > 0.0:
        path = f"{path} at t = {time:g}"
    demand(grid, np.isfinite(values), values, path, "be finite")
    if positive:
        demand(grid, values > 0.0, values, path, "be greater than 0")
    if given is not variables:
        shapes = [np.shape(each) for each in variables.values()]
        values = np.broadcast_to(values, np.broadcast_shapes(*shapes))
    return values


def demand(grid: Grid, holds: np.ndarray, values: np.ndarray, path: str, what: str) -> None:
    """Raise InputError, with the first place where it does not hold."""
    if holds.all():
        return
    index = tuple(int(n) for n in np.unravel_index(int(np.argmin(holds)), values.shape))
    where = grid.place(index, values.shape)
    at = f" at {where}" if where else ""
    raise InputError(f"{path}: must {what}, but is {values[index]:g}{at}")
