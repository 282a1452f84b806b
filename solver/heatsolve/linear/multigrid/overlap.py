"""Levels of multigrid whose blocks overlap, so that a pass makes many sweeps for one exchange.

A process takes so many layers of its neighbours into its arrays that after all sweeps of half a
cycle its own points have what they would have without any blocks: what is stale at the outermost
layer spoils one layer a sweep. It then works on the block with its layers as if it were alone. That
is so along the slowest axis only, where blocks are slabs, and where a machine makes half a cycle in
one pass: for single sweeps an exchange each is cheaper than sweeps of layers that others own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heatsolve.backends import Backend, Region
from heatsolve.linear.coefficients import Coefficient, widened
from heatsolve.linear.multigrid.coarsening import AxisCoarsening
from heatsolve.linear.multigrid.partition import Partition
from heatsolve.linear.multigrid.smoothers import Smoother
from heatsolve.linear.multigrid.transfer import AxisTransfer, Exchange
from heatsolve.linear.system import System
from heatsolve.parallel.halo import Halo
from heatsolve.stencil.grid import Axis, Grid
from heatsolve.stencil.language import shifted

THICK = 4
"""Times its layers a block is thick at least."""
AWAY = 2
"""The first number that a block on a ring is given: it is nowhere near an end, and even."""


def layers_of(smoother: Smoother) -> int:
    """The layers that half a cycle before the correction spoils, and after it another half.

    The residual at a point reads one layer, and its restriction two points below the block. The
    outermost layer is nobody's unknown, so it gets no correction.
    """
    before, after = len(smoother.before), len(smoother.after)
    return max(before + 3, before + after, after + 1)


@dataclass(frozen=True)
class Overlap:
    """The block of a level with layers of its neighbours.

    `grid`: that of its arrays, as if there were no other process; the first unknown in them has the
    number `first` + 1 among those of all, which is odd, as for the next level's points it must be.
    `halo` brings the layers; the process's own points are the region `own`.
    """

    grid: Grid
    first: int
    halo: Halo
    backend: Backend

    @property
    def own(self) -> Region:
        return self.halo.grid.interior

    @property
    def below(self) -> int:
        """Layers of the neighbour below."""
        return self.halo.grid.axes[0].margin[0]

    def exchange(self, array: Any) -> None:
        """Bring the layers of the neighbours."""
        self.halo.exchange(array)

    def take(self, wide: Any, array: Any) -> None:
        """Fill an array from one of the block alone, its ghosts included, and bring the layers."""
        (low, high), *_ = self.own
        region = ((low - 1, high + 1), *[(0, extent) for extent in self.grid.shape[1:]])
        self.backend.sweep(shifted, wide, region, array, *self._distances(-1))
        self.exchange(wide)

    def give(self, array: Any, wide: Any, interior: Region) -> None:
        """The reverse, for the unknowns of the block alone."""
        self.backend.sweep(shifted, array, interior, wide, *self._distances(1))

    def _distances(self, sign: int) -> tuple[int, ...]:
        return (sign * self.below, *[0] * (self.grid.dimension - 1))


class Passage:
    """Between an overlapping level and the next one, whose arrays overlap, too.

    `b` and `other` are those arrays, `block` holds the same two of that level where it does not
    overlap itself. `down` and `up` are what a pass makes of them and takes from them: so many rows
    from the `first` on, in which its points are where they are alone.
    """

    block: tuple[Any, Any, Region] | None

    def __init__(self, overlap: Overlap, b: Any, other: Any, first: int, rows: int):
        self._overlap, self.b, self.other = overlap, b, other
        self.extents = (rows, *overlap.grid.shape[1:])
        self.down, self.up = (
            overlap.backend.part(
                array, (rows, *array.shape[1:]), first * math.prod(array.shape[1:])
            )
            for array in (b, other)
        )

    def go_down(self) -> None:
        """After the restriction."""
        if self.block is None:
            self._overlap.exchange(self.b)
        else:
            b, _, interior = self.block
            self._overlap.give(b, self.b, interior)

    def go_up(self) -> None:
        """Before the interpolation."""
        if self.block is None:
            self._overlap.exchange(self.other)
        else:
            _, other, _ = self.block
            self._overlap.take(self.other, other)


def can_overlap(system: System, partition: Partition, layers: int, thick: int = THICK) -> bool:
    """Whether blocks are slabs, so many times as thick; all processes find the same."""
    parts, *others = partition.dims
    thinnest = int(np.diff(partition.ends[0]).min())
    ring = system.grid.axes[0].periodic
    return (
        system.backend.on_device
        and parts > 1
        and all(number == 1 for number in others)
        and thinnest >= thick * layers
        and not (ring and partition.ends[0][-1] % 2)
    )


def overlap_of(
    axes: Sequence[Axis], partition: Partition, halo: Halo, backend: Backend, layers: int
) -> Overlap:
    """That of a level with these whole axes; `halo`: one of the same processes."""
    slowest, *others = axes
    (low, high), *_ = partition.blocks()
    place, last = partition.place()[0], partition.dims[0] - 1
    below, above = ((layers - 1) * (slowest.periodic or place != end) for end in (0, last))
    below += (low - below) % 2
    first, unknowns = low - below, below + high - low + above
    start = AWAY if slowest.periodic else first
    alone = replace(slowest, block=(start, start + unknowns), periodic=False)
    beside = replace(slowest, block=(low, high), margin=(below, above))
    brought = halo.of(Grid((beside, *others)), layers=layers)
    return Overlap(Grid((alone, *others)), first, brought, backend)


def overlapping(given: Coefficient, partition: Partition, overlap: Overlap) -> Coefficient:
    """A coefficient at all points of a block with layers of its neighbours."""
    if not given.varies[0]:
        return given
    layers, periodic = overlap.halo.depth + 2, overlap.halo.grid.axes[0].periodic
    values = np.moveaxis(widened(given, 0, partition, periodic, layers), -1, 0)
    count = overlap.grid.axes[0].unknowns + (given.along == 0)
    return replace(given, values=values[layers - overlap.below :][:count])


def is_even(coarsening: AxisCoarsening) -> bool:
    """Whether all points of an axis are halved alike: on a ring no block then has a place."""
    columns = [column for half in coarsening.weights for column in half.T]
    lines = [*coarsening.restriction_weights, *columns]
    full = coarsening.fine.ratio.size == 1
    return full and all(bool(np.all(line[1:-1] == line[1])) for line in lines)


def axis_transfer_of(coarsening: AxisCoarsening, block: Overlap) -> AxisTransfer:
    """How the slowest axis of a block is halved, whose layers have come already."""
    axis, whole = block.grid.axes[0], coarsening.fine.axis
    ends = not whole.periodic and block.first + axis.unknowns == whole.all_unknowns
    count = coarsening.count - block.first // 2 if ends else axis.unknowns // 2
    return AxisTransfer(
        coarsening, (axis.start, axis.unknowns), (axis.start // 2, count), with_nobody
    )


def with_nobody(shape: tuple[int, ...]) -> Exchange:
    """An exchange of an array that needs none."""
    return lambda array: None
