"""Obstacles of a case: where they are, and how far from a grid's points their surfaces lie.

All on the host, as expressions are, and for the points of a block with its ghosts; those of the
ghosts themselves hold only what needs no neighbour beyond.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heatsolve.case.case import Case
from heatsolve.stencil.grid import Grid

HALVINGS = 40
"""Of the distance between two points, until the surface between them is found."""
NEAREST = 1e-6
"""A surface nearer than this (in spacings) is so near: rates stay finite."""


@dataclass(frozen=True)
class SurfaceCuts:
    """The lines from points to their neighbours in one direction that meet a surface.

    `cut` is where they do, from either side. For points in the fluid `share` is the distance to it
    in spacings, and `owner` the number of the obstacle, from 1; elsewhere they are 1 and 0.
    """

    cut: np.ndarray
    share: np.ndarray
    owner: np.ndarray


def owners(obstacles: Sequence[Any], positions: Mapping[str, np.ndarray]) -> np.ndarray:
    """The number, from 1, of the first obstacle that points lie in; 0 in the fluid.

    `positions` are those along x, y, z, in this order.
    """
    owner = np.zeros((), int)
    for number, obstacle in enumerate(obstacles, 1):
        owner = np.where((owner == 0) & obstacle.contains(positions), number, owner)
    return owner


class Obstacles:
    """The obstacles of a case as they lie on a grid of positions."""

    def __init__(self, case: Case, grid: Grid):
        self._obstacles, self._grid = case.obstacles, grid
        positions = dict(reversed(grid.positions().items()))
        self.owner = np.array(np.broadcast_to(self._owners(positions), grid.shape))
        """That of `owners`, for every point."""

    def _owners(self, positions: Mapping[str, np.ndarray]) -> np.ndarray:
        """Also for positions beyond the ends of periodic axes, and with both ends as one place."""
        images: list[dict[str, np.ndarray]] = [dict(positions)]
        for axis in self._grid.axes:
            if axis.periodic:
                length = axis.upper - axis.lower
                x = axis.lower + (positions[axis.name] - axis.lower) % length
                twins = x, np.where(x == axis.lower, axis.upper, x)
                images = [image | {axis.name: twin} for image in images for twin in twins]
        found = [owners(self._obstacles, image) for image in images]
        return np.max(np.broadcast_arrays(*found), axis=0)

    def surface_cuts(self, number: int, side: int) -> SurfaceCuts:
        """Those along an axis, downward (side 0) or upward."""
        step = 1 if side else -1
        beyond = np.roll(self.owner, -step, axis=number)
        outside = (self.owner == 0) & (beyond > 0)
        share, owner = np.ones(self.owner.shape), np.where(outside, beyond, 0)
        share[outside] = self._distances(number, step, np.nonzero(outside))
        return SurfaceCuts((self.owner > 0) != (beyond > 0), share, owner)

    def _distances(self, number: int, step: int, places: Sequence[np.ndarray]) -> np.ndarray:
        """By bisection; a neighbour counts as inside, wherever a periodic axis has it."""
        axes = self._grid.axes
        points = {
            axis.name: axis.coordinates[index]
            for axis, index in reversed(list(zip(axes, places, strict=True)))
        }
        moving, h = axes[number].name, step * axes[number].spacing
        low, high = np.zeros(places[0].size), np.ones(places[0].size)
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            inside = self._owners(points | {moving: points[moving] + middle * h}) > 0
            low, high = np.where(inside, low, middle), np.where(inside, middle, high)
        return np.maximum(high, NEAREST)
