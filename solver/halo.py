"""Ghosts that are somebody's unknowns: brought up to date before an array is read at a shift."""

from typing import Any

from heatsolve.backends import Backend
from heatsolve.grid import Grid
from heatsolve.points import shifted


class Halo:
    """The exchange of ghosts on a grid; on one process, that of its periodic axes with itself."""

    def __init__(self, grid: Grid, backend: Backend):
        self._backend = backend
        # One axis at a time, the fastest first, each over the ghosts of those before it: so corners
        # come right.
        self._copies = []
        for number, axis in reversed(list(enumerate(grid.axes))):
            if not axis.periodic:
                continue
            distances = [0] * grid.dimension
            distances[number] = axis.unknowns
            self._copies.append((grid.ghost(number, 0), tuple(distances)))
            self._copies.append((grid.ghost(number, 1), tuple(-d for d in distances)))

    def exchange(self, array: Any) -> None:
        """Fill the ghosts of an array."""
        for region, distances in self._copies:
            self._backend.sweep(shifted, array, region, array, *distances)
