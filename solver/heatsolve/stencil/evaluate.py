"""Expressions at the points of a grid, and along its walls.

They are evaluated on the host and with NumPy, so that their bits do not depend on the backend. A
quantity that does not vary along an axis stays an array of extent 1 along it: constants need no
memory.
"""

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from heatsolve.errors import InputError
from heatsolve.stencil.expressions import Expression
from heatsolve.stencil.grid import Grid


class End(Protocol):
    """An end of the grid: an axis, slowest first, and its low (0) or high (1) side."""

    @property
    def axis(self) -> int: ...
    @property
    def side(self) -> int: ...


def evaluate(
    grid: Grid,
    path: str,
    expression: Expression,
    time: float = 0.0,
    positive: bool = False,
    wall: End | None = None,
) -> np.ndarray:
    """An expression at all points of a grid, or along a wall; finite, or InputError.

    `path` is the key that messages speak of.
    """
    positions = grid.positions()
    if wall is not None:
        axis = grid.axes[wall.axis]
        at_wall = np.array([(axis.lower, axis.upper)[wall.side]])
        positions[axis.name] = grid.along(wall.axis, at_wall)
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
