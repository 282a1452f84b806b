"""The walls of a case at the ends of a grid, each with the condition that a field has there."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from heatsolve.case.case import Case
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


def walls_of(case: Case, grid: Grid, field: str = "temperature") -> Iterator[Wall]:
    """The walls of a case at which a grid, or a block of one, ends, with the conditions there."""
    for number, axis in enumerate(grid.axes):
        for side, name in enumerate(WALLS[axis.name]):
            if not axis.periodic and axis.at_ends[side]:
                yield Wall(number, side, name, getattr(getattr(case.boundary, name), field))
