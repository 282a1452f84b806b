"""The red and the black points of a grid, as on a chessboard."""

from typing import Any

import numpy as np

from heatsolve.backends import Backend
from heatsolve.stencil.grid import Axis, Grid
from heatsolve.stencil.language import where


def signs(grid: Grid, backend: Backend) -> tuple[Any, ...]:
    """For each axis a line of 1 and -1 in turn; a point is red where their product is 1."""
    return tuple(
        backend.to_device(grid.along(n, line_of_signs(axis))) for n, axis in enumerate(grid.axes)
    )


def line_of_signs(axis: Axis) -> np.ndarray:
    """1 and -1 in turn, by the number of the unknown among those of all processes."""
    numbers = np.arange(axis.unknowns + 2) + axis.start
    if axis.periodic:  # a margin may reach around
        numbers = (numbers - 1) % axis.all_unknowns + 1
    return 1.0 - 2.0 * (numbers % 2)


def of_colour(at, colour, signs, value, other):
    """`value` at the points of one colour (1 red, -1 black), `other` at those of the other."""
    for sign in signs:
        colour = colour * sign[at]
    return where(colour > 0.0, value, other)
