"""How the unknowns of a level are divided among the processes.

The process that owns the fine point 2q - 1 owns the coarse point q, so that blocks of all levels
lie over each other, whatever their bounds; a level is gathered on every process before a block of
it would be too small to be halved. What is computed from all of a level is then computed by every
process for itself, to the same bits: that costs no more time than to wait for one that does it,
and one message less.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heatsolve.linear.multigrid.coarsening import AxisCoarsening
from heatsolve.parallel.decomposition import block_of
from heatsolve.parallel.halo import Halo
from heatsolve.parallel.ranks import Ranks
from heatsolve.stencil.grid import Axis, Grid, Region

LEAST = 8
"""Unknowns along a divided axis that every block of a divided level has."""
GATHERED_UP_TO = 1 << 14
"""Unknowns of a level up to which messages would take longer than its sweeps."""


@dataclass(frozen=True)
class Partition:
    """The processes, how many there are along each axis, and the ends of their blocks there.

    `ends` holds for each axis 0 and the number of the last unknown of each block.
    """

    ranks: Ranks
    dims: tuple[int, ...]
    ends: tuple[tuple[int, ...], ...]

    @property
    def divided(self) -> bool:
        return any(parts > 1 for parts in self.dims)

    @property
    def too_fine(self) -> bool:
        """Whether the level is better gathered than halved in its blocks."""
        smallest = min(
            int(np.diff(ends).min())
            for parts, ends in zip(self.dims, self.ends, strict=True)
            if parts > 1
        )
        unknowns = math.prod(ends[-1] for ends in self.ends)
        return smallest < LEAST or unknowns <= GATHERED_UP_TO

    def place(self, rank: int | None = None) -> tuple[int, ...]:
        """The place of a process, by default of this one, among those along each axis."""
        rank = (self.ranks.rank if rank is None else rank) if self.divided else 0
        return tuple(map(int, np.unravel_index(rank, self.dims)))

    def blocks(self, rank: int | None = None) -> list[tuple[int, int]]:
        """The block of a process along each axis: from its first unknown to before its last."""
        return [
            (ends[place], ends[place + 1])
            for ends, place in zip(self.ends, self.place(rank), strict=True)
        ]

    def grid(self, axes: Sequence[Axis]) -> Grid:
        """This process's block of a grid of whole axes."""
        blocks = self.blocks() if self.divided else [None] * len(axes)
        return Grid(tuple(replace(a, block=b) for a, b in zip(axes, blocks, strict=True)))

    def region_in_whole(self, rank: int) -> Region:
        """Where the unknowns of a process, and the ghosts at ends of axes, lie in a whole array."""
        return tuple(
            (low + 1 - (low == 0), high + 1 + (high == ends[-1]))
            for (low, high), ends in zip(self.blocks(rank), self.ends, strict=True)
        )

    def halved(self, number: int, coarsening: AxisCoarsening) -> "Partition":
        """The partition of the next level, with one axis halved."""
        *inner, _ = self.ends[number]
        coarse = (*((end + 1) // 2 for end in inner), coarsening.count)
        return replace(self, ends=(*self.ends[:number], coarse, *self.ends[number + 1 :]))

    def gathered(self) -> "Partition":
        """The same level where every process has all of it."""
        return Partition(Ranks(), (1,) * len(self.dims), tuple((0, ends[-1]) for ends in self.ends))

    def pass_on(self, value: Any, number: int, step: int, periodic: bool) -> Any:
        """Give a value to the next process along an axis, and get that of the one before.

        None at the end of an axis; on a periodic one that is not divided a process gets its own.
        """

        def at(distance: int) -> int | None:
            place = list(self.place())
            place[number] += distance
            if periodic:
                place[number] %= self.dims[number]
            if not 0 <= place[number] < self.dims[number]:
                return None
            return int(np.ravel_multi_index(place, self.dims))

        if self.dims[number] == 1:
            return value if periodic else None
        return self.ranks.trade(value, at(step), at(-step))


def partition_of(halo: Halo) -> Partition:
    """The partition of the finest level: that of the run."""
    ends = []
    for axis, parts in zip(halo.grid.axes, halo.dims, strict=True):
        blocks = [block_of(axis.all_unknowns, parts, place) for place in range(parts)]
        ends.append((0, *(stop for _, stop in blocks)))
    return Partition(halo.ranks, halo.dims, tuple(ends))
