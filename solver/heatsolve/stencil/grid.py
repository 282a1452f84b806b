"""The grid: shape, spacing, the ring of ghosts, and regions as data.

An array holds a grid's unknowns and one ghost on each side of every axis, slowest axis first
(`[y, x]`, `[z, y, x]`), so that the unknowns are 1 ... n of n + 2 along each axis. On a node grid
the ghost beside a wall of given value *is* the wall's node; on every other wall, and on cell
grids, it lies outside.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

Region = tuple[tuple[int, int], ...]

AXIS_NAMES = ("x", "y", "z")
WALLS = {
    "x": ("left", "right"),
    "y": ("bottom", "top"),
    "z": ("back", "front"),
}
"""Names of the low and the high wall of each axis."""
TOUCH = 1e-9
"""The share of a spacing that counts as rounding: positions this near are the same."""

FEW = 5
"""The number of unknowns that a sample takes along an axis along which nothing varies."""


def even_part(extent: int, most: int) -> int:
    """The size of the parts into which an extent is cut evenly, each of at most `most` points."""
    parts = -(-extent // max(1, most))
    return -(-extent // parts)


def slices(region: Region) -> tuple[slice, ...]:
    """The region of a NumPy array."""
    return tuple([slice(*bounds) for bounds in region])


def whole(shape: Sequence[int]) -> Region:
    """All elements of an array."""
    return tuple((0, extent) for extent in shape)


def intersection(regions: Sequence[Region]) -> Region:
    """The points that all regions share; an axis of it may be empty."""
    return tuple(
        (max(low for low, _ in bounds), min(high for _, high in bounds))
        for bounds in zip(*regions, strict=True)
    )


def without(region: Region, part: Region) -> Iterator[Region]:
    """The points of a region that are not in a part of it, in slabs; the part is not empty."""
    rest = list(region)
    for axis, (low, high) in enumerate(part):
        for slab in ((rest[axis][0], low), (high, rest[axis][1])):
            if slab[0] < slab[1]:
                yield (*rest[:axis], slab, *rest[axis + 1 :])
        rest[axis] = (low, high)


@dataclass(frozen=True)
class Axis:
    """One direction of a grid, or of the block of it that one process owns.

    `points`: the number of nodes or cells, as the case counts them; `on_nodes`: whether they are
    nodes; `fixed`: for the low and the high end, whether a node there carries a given value and is
    no unknown; `block`: the unknowns of this process, (first, last + 1) from 0 (None: all);
    `margin`: the number of unknowns of the neighbours below and above that its arrays hold, too;
    `on_faces`: whether positions are at the faces above the cells, or midway above the nodes.
    """

    name: str
    points: int
    lower: float
    upper: float
    on_nodes: bool
    periodic: bool = False
    fixed: tuple[bool, bool] = (False, False)
    block: tuple[int, int] | None = None
    margin: tuple[int, int] = (0, 0)
    on_faces: bool = False

    @property
    def intervals(self) -> int:
        return self.points - 1 if self.on_nodes and not self.periodic else self.points

    @property
    def all_unknowns(self) -> int:
        """Unknowns of all processes."""
        return self.points - sum(self.fixed)

    @property
    def start(self) -> int:
        """The number, among all, of the first unknown in this process's arrays."""
        return (self.block[0] if self.block else 0) - self.margin[0]

    @property
    def unknowns(self) -> int:
        """Unknowns in this process's arrays: its own, and its margin's."""
        own = self.block[1] - self.block[0] if self.block else self.all_unknowns
        return self.margin[0] + own + self.margin[1]

    @property
    def own(self) -> tuple[int, int]:
        """The array indices of this process's own unknowns."""
        return 1 + self.margin[0], 1 + self.unknowns - self.margin[1]

    @property
    def at_ends(self) -> tuple[bool, bool]:
        """Whether this process's block reaches the low and the high end."""
        first, stop = self.block or (0, self.all_unknowns)
        return first == 0, stop == self.all_unknowns

    @property
    def at_walls(self) -> tuple[bool, bool]:
        """Whether this process's block reaches a wall at the low and at the high end."""
        low, high = self.at_ends
        return low and not self.periodic, high and not self.periodic

    @property
    def spacing(self) -> float:
        return (self.upper - self.lower) / self.intervals

    @property
    def half_volumes(self) -> tuple[bool, bool]:
        """For the low and the high end, whether this process's unknown there is on the wall itself.

        Its control volume is then half a cell.
        """
        low, high = (self.on_nodes and at_wall for at_wall in self.at_walls)
        return low and not self.fixed[0], high and not self.fixed[1]

    def number(self, index: int) -> int:
        """The array index of the point that the case counts as `index` (from 0)."""
        return index + (0 if self.fixed[0] else 1) - self.start

    def number_at(self, position: float) -> float:
        """The number that a point at a position would have, as the case counts."""
        offset = 0.0 if self.on_nodes else 1.0 if self.on_faces else 0.5
        return (position - self.lower) / self.spacing - offset

    def linear(self, position: float) -> list[tuple[int, float]]:
        """The numbers of the two points around a position, and the weights of their values, which
        extrapolate beyond the ends."""
        number = self.number_at(position)
        low = math.floor(number)
        if not self.periodic:
            low = min(max(low, -1 if self.on_faces else 0), self.points - 2)
        share = number - low
        return [(low, 1.0 - share), (low + 1, share)]

    @property
    def stored(self) -> tuple[int, int]:
        """The array indices of the points that this process writes: its share of all points."""
        low, high = self.at_walls
        first = self.number(0) if low else self.own[0]
        return first, self.number(self.points) if high else self.own[1]

    @property
    def stored_at(self) -> tuple[int, int]:
        """The points of `stored` as the case counts them, (first, last + 1)."""
        first, stop = self.stored
        return first - self.number(0), stop - self.number(0)

    @property
    def numbers(self) -> np.ndarray:
        """The number, as the case counts points, of every array element."""
        return np.arange(self.unknowns + 2) - self.number(0)

    @cached_property
    def coordinates(self) -> np.ndarray:
        """Positions of all array elements; an outside ghost has its neighbour's, or its image's.

        So expressions are evaluated only where the field has a value.
        """
        numbers = self.numbers.astype(float)
        if self.periodic:
            numbers %= self.points
        else:
            numbers = np.clip(numbers, -1.0 if self.on_faces else 0.0, self.points - 1.0)
        if not self.on_nodes:
            numbers += 1.0 if self.on_faces else 0.5
        elif self.on_faces:  # half a cell ends on the wall
            numbers += 0.5
            numbers = numbers if self.periodic else np.clip(numbers, 0.0, self.points - 1.0)
        # Whole numbers stay exact where the length is a multiple of the number of intervals.
        positions = self.lower + numbers * (self.upper - self.lower) / self.intervals
        return np.minimum(positions, self.upper)


@dataclass(frozen=True)
class SampledAxis(Axis):
    """Evenly chosen points of another axis, with their positions, and with that axis's spacing.

    The first and the last unknown are among them.
    """

    whole: Axis | None = None

    @classmethod
    def of(cls, whole: Axis, unknowns: int) -> Axis:
        """This number of unknowns of an axis; the axis itself where it has no more."""
        if whole.all_unknowns <= unknowns:
            return whole
        given = {field.name: getattr(whole, field.name) for field in fields(whole)}
        return cls(**{**given, "points": unknowns + sum(whole.fixed)}, whole=whole)

    @property
    def whole_axis(self) -> Axis:
        assert self.whole is not None
        return replace(self.whole, on_faces=self.on_faces)

    @property
    def spacing(self) -> float:
        return self.whole_axis.spacing

    @property
    def _chosen(self) -> np.ndarray:
        """For each element of this axis, the array index on the whole axis."""
        count, last = self.all_unknowns, self.whole_axis.all_unknowns
        inside = 1 + np.arange(count) * (last - 1) // max(1, count - 1)
        return np.array([0, *inside, last + 1])

    @property
    def numbers(self) -> np.ndarray:
        return self.whole_axis.numbers[self._chosen]

    @cached_property
    def coordinates(self) -> np.ndarray:
        return self.whole_axis.coordinates[self._chosen]


@dataclass(frozen=True)
class Grid:
    """A box of points: its axes, slowest first."""

    axes: tuple[Axis, ...]

    @property
    def dimension(self) -> int:
        return len(self.axes)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Extents of an array, ghosts included."""
        return tuple(axis.unknowns + 2 for axis in self.axes)

    @property
    def equal_spacings(self) -> bool:
        """Whether all axes have the same spacing, but for rounding."""
        first, *others = (axis.spacing for axis in self.axes)
        return all(math.isclose(first, other, rel_tol=1e-9) for other in others)

    @property
    def all_unknowns(self) -> int:
        """Unknowns of all processes."""
        return math.prod(axis.all_unknowns for axis in self.axes)

    def block(
        self, blocks: Sequence[tuple[int, int]], margins: Sequence[tuple[int, int]]
    ) -> "Grid":
        """The part of this grid with these unknowns, and these margins, along each axis."""
        axes = zip(self.axes, blocks, margins, strict=True)
        return replace(self, axes=tuple(replace(a, block=b, margin=m) for a, b, m in axes))

    def faces(self, number: int) -> "Grid":
        """This grid with the positions of the faces above the points along one axis."""
        axes = list(self.axes)
        axes[number] = replace(axes[number], on_faces=True)
        return replace(self, axes=tuple(axes))

    @cached_property
    def interior(self) -> Region:
        """All unknowns of this process."""
        return tuple(axis.own for axis in self.axes)

    @cached_property
    def everything(self) -> Region:
        """All unknowns and all ghosts."""
        return whole(self.shape)

    @property
    def stored(self) -> Region:
        """The points that a file holds."""
        return tuple(axis.stored for axis in self.axes)

    def ghost(self, number: int, side: int) -> Region:
        """The ghosts beyond one wall (axis number, side 0 or 1).

        They reach into the corners along the faster axes: where two walls meet, the wall of the
        slower axis, which is applied later, owns the corner.
        """
        extents = self.shape
        region = [(1, extent - 1) for extent in extents[:number]]
        region.append((0, 1) if side == 0 else (extents[number] - 1, extents[number]))
        region += [(0, extent) for extent in extents[number + 1 :]]
        return tuple(region)

    @property
    def ghosts(self) -> tuple[Region, ...]:
        """All ghosts."""
        walls = itertools.product(range(self.dimension), (0, 1))
        return tuple(self.ghost(number, side) for number, side in walls)

    def along(self, number: int, values: np.ndarray) -> np.ndarray:
        """A line of values, shaped to vary along one axis and be constant along all others."""
        shape = [1] * self.dimension
        shape[number] = values.size
        return values.reshape(shape)

    def beside(self, number: int, side: int) -> np.ndarray:
        """A line along an axis that is 1 at the unknowns beside a wall of it, 0 elsewhere."""
        line = np.zeros(self.shape[number])
        line[(1, -2)[side]] = 1.0
        return self.along(number, line)

    def positions(self) -> dict[str, np.ndarray]:
        """Coordinates by axis name, each shaped to vary along its own axis."""
        return {axis.name: self.along(n, axis.coordinates) for n, axis in enumerate(self.axes)}

    def to_evaluate(self, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        """The values of variables, such as positions, at which an expression is evaluated."""
        return variables

    def place(self, index: Sequence[int], shape: Sequence[int]) -> str:
        """The position of an element of an array of this shape, such as "x = 0.5, y = 0.25".

        An axis along which the array does not vary is left out.
        """
        words = [
            f"{axis.name} = {axis.coordinates[number]:g}"
            for axis, number, extent in zip(self.axes, index, shape, strict=True)
            if extent > 1
        ]
        return ", ".join(reversed(words))


@dataclass(frozen=True)
class Outline(Grid):
    """A grid whose arrays are only counted: where they are large, one point stands for all."""

    most: int = 1 << 20
    """The most elements of an array that are all evaluated."""

    @property
    def is_large(self) -> bool:
        """Whether an array of all points is large."""
        return math.prod(self.shape) > self.most

    def to_evaluate(self, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        shape = np.broadcast_shapes(*[np.shape(values) for values in variables.values()])
        if math.prod(shape) <= self.most:
            return variables
        return {name: np.ravel(values)[np.size(values) // 2] for name, values in variables.items()}


def sampled(grid: Grid, most: int, names: Collection[str] | None = None) -> Grid:
    """A sample of a grid, of about `most` unknowns at most.

    Along axes that are not among the `names` nothing varies: a few points stand for all.
    """
    few = {axis.name for axis in grid.axes if names is not None and axis.name not in names}
    counts = {a.name: min(a.all_unknowns, FEW) if a.name in few else 0 for a in grid.axes}
    left, room = [a for a in grid.axes if a.name not in few], most
    for count in counts.values():
        room //= count or 1
    # The shortest axis first: longer axes share the room that it leaves.
    for number, axis in enumerate(sorted(left, key=lambda axis: axis.all_unknowns)):
        share = max(FEW, int(room ** (1.0 / (len(left) - number))))
        counts[axis.name] = min(axis.all_unknowns, share)
        room = max(1, room // counts[axis.name])
    return Grid(tuple(SampledAxis.of(axis, counts[axis.name]) for axis in grid.axes))


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
