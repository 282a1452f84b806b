"""The grid: shape, spacing, the ring of ghosts, and regions as data.

An array holds a grid's unknowns and one ghost on each side of every axis, slowest axis first
(`[y, x]`, `[z, y, x]`), so that the unknowns are 1 ... n of n + 2 along each axis. On a node grid
the ghost beside a wall of given value *is* the wall's node; on every other wall, and on cell
grids, it lies outside.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

Region = tuple[tuple[int, int], ...]

AXIS_NAMES = ("x", "y", "z")
WALLS = {
    "x": ("left", "right"),
    "y": ("bottom", "top"),
    "z": ("back", "front"),
}
"""Names of the low and the high wall of each axis."""


@dataclass(frozen=True)
class Axis:
    """One direction of a grid.

    `points`: nodes or cells as the case counts them; `on_nodes`: which of the two; `fixed`: for
    the low and the high end, whether a node there carries a given value and is no unknown.
    """

    name: str
    points: int
    lower: float
    upper: float
    on_nodes: bool
    periodic: bool = False
    fixed: tuple[bool, bool] = (False, False)

    @property
    def intervals(self) -> int:
        return self.points - 1 if self.on_nodes and not self.periodic else self.points

    @property
    def unknowns(self) -> int:
        return self.points - sum(self.fixed)

    @property
    def spacing(self) -> float:
        return (self.upper - self.lower) / self.intervals

    @property
    def half_volumes(self) -> tuple[bool, bool]:
        """For the low and the high end, whether the last unknown sits on the wall itself.

        Its control volume is then half a cell.
        """
        on_wall = self.on_nodes and not self.periodic
        return (on_wall and not self.fixed[0], on_wall and not self.fixed[1])

    def number(self, index: int) -> int:
        """The array index of the point that the case counts as `index` (from 0)."""
        return index + (0 if self.fixed[0] else 1)

    @property
    def stored(self) -> tuple[int, int]:
        """The array indices of the points that a file holds: all that the case counts."""
        first = self.number(0)
        return first, first + self.points

    @cached_property
    def coordinates(self) -> np.ndarray:
        """Positions of all array elements; a ghost outside takes the wall's, or its image's."""
        numbers = np.arange(self.unknowns + 2) - float(self.number(0))
        if self.periodic:
            numbers %= self.points
        if not self.on_nodes:
            numbers += 0.5
        # Whole numbers stay exact where the length is a multiple of the number of intervals.
        positions = self.lower + numbers * (self.upper - self.lower) / self.intervals
        return np.clip(positions, self.lower, self.upper)


@dataclass(frozen=True)
class Grid:
    """A box of points: its axes, slowest first."""

    axes: tuple[Axis, ...]

    @property
    def dimension(self) -> int:
        return len(self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of an array, ghosts included."""
        return tuple(axis.unknowns + 2 for axis in self.axes)

    @property
    def unknowns(self) -> int:
        count = 1
        for axis in self.axes:
            count *= axis.unknowns
        return count

    @cached_property
    def interior(self) -> Region:
        """All unknowns."""
        return tuple((1, axis.unknowns + 1) for axis in self.axes)

    @property
    def everything(self) -> Region:
        """All unknowns and all ghosts."""
        return tuple((0, extent) for extent in self.shape)

    @property
    def stored(self) -> Region:
        """The points that a file holds."""
        return tuple(axis.stored for axis in self.axes)

    def ghost(self, number: int, side: int) -> Region:
        """The ghosts beyond one wall (axis number, side 0 or 1).

        They reach into the corners along the faster axes, so that of two walls that meet the one
        of the slower axis, applied later, owns the corner.
        """
        region = list(self.interior)
        for faster in range(number + 1, self.dimension):
            region[faster] = (0, self.shape[faster])
        region[number] = (0, 1) if side == 0 else (self.shape[number] - 1, self.shape[number])
        return tuple(region)

    def along(self, number: int, values: np.ndarray) -> np.ndarray:
        """A line of values, shaped to vary along one axis and be constant along the others."""
        shape = [1] * self.dimension
        shape[number] = values.size
        return values.reshape(shape)

    def positions(self) -> dict[str, np.ndarray]:
        """Coordinates by axis name, each shaped to vary along its own axis."""
        return {axis.name: self.along(n, axis.coordinates) for n, axis in enumerate(self.axes)}


def make_grid(
    points: Sequence[int],
    lower: Sequence[float],
    upper: Sequence[float],
    on_nodes: bool,
    periodic: Sequence[str] = (),
    fixed: dict[str, tuple[bool, bool]] | None = None,
) -> Grid:
    """A grid from values in the order x, y, z, as case files give them."""
    axes = [
        Axis(
            name,
            points[n],
            lower[n],
            upper[n],
            on_nodes,
            name in periodic,
            (fixed or {}).get(name, (False, False)) if on_nodes else (False, False),
        )
        for n, name in enumerate(AXIS_NAMES[: len(points)])
    ]
    return Grid(tuple(reversed(axes)))
