"""How the unknowns of a level are divided among the processes, and its coefficients on the host.

The process that owns the fine point 2q - 1 owns the coarse point q, so that the blocks of a process
cover the same part of the box on all levels. A level is gathered on every process before one of its
blocks would be too small to be halved. Every process then computes the whole level for itself, to
the same bits: this takes no more time than waiting for one process to do it, and saves a message.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from heatsolve.backends import Backend, Message, Region
from heatsolve.linear.multigrid.coarsening import AxisCoarsening
from heatsolve.parallel.decomposition import block_of
from heatsolve.parallel.halo import Halo, message_of_rows
from heatsolve.parallel.ranks import Ranks
from heatsolve.parallel.transport import QueuedTransport
from heatsolve.stencil.grid import Axis, Grid
from heatsolve.stencil.language import shifted

LEAST = 8
"""The least number of unknowns of a block along a divided axis; smaller levels are gathered."""
GATHERED_UP_TO = 1 << 14
"""Unknowns up to which a level is gathered: its messages would take longer than its sweeps."""
GATHERED_ON_DEVICES = 1 << 20
"""Unknowns up to which devices gather b of a coarse level, which each device then solves alone: the
exchanges of a level of 64 x 64 x 128 took 115 us a cycle, packing included (two H200, NCCL)."""
GATHERED_TO_FUSE = 1 << 22
"""The same where a block has too few points for passes: each of its half-sweeps would wait for an
exchange of 20 us, while a device makes all of the level in passes of some 30 us."""
LAYERS = 3
"""The most layers of the neighbours' coefficients that a coarse block depends on."""
JUMP = 2.0
"""The ratio of neighbouring conductances above which interpolation is not linear."""


@dataclass(frozen=True)
class Partition:
    """The processes, their number along each axis, and the ends of their blocks along it.

    `ends` holds for each axis 0 and the number of the last unknown of each block; `periodic` tells
    which axes are periodic.
    """

    ranks: Ranks
    dims: tuple[int, ...]
    ends: tuple[tuple[int, ...], ...]
    periodic: tuple[bool, ...]

    @classmethod
    def of(cls, halo: Halo) -> "Partition":
        """The partition of the finest level: the decomposition of the run."""
        ends = []
        for axis, parts in zip(halo.grid.axes, halo.dims, strict=True):
            blocks = [block_of(axis.all_unknowns, parts, place) for place in range(parts)]
            ends.append((0, *(stop for _, stop in blocks)))
        periodic = tuple(axis.periodic for axis in halo.grid.axes)
        return cls(halo.ranks, halo.dims, tuple(ends), periodic)

    @property
    def divided(self) -> bool:
        return any(parts > 1 for parts in self.dims)

    @property
    def in_slabs(self) -> bool:
        """Whether only the slowest axis may be divided."""
        return all(parts == 1 for parts in self.dims[1:])

    @property
    def too_fine(self) -> bool:
        """Whether the level is to be gathered before it is halved."""
        smallest = min(
            int(np.diff(ends).min())
            for parts, ends in zip(self.dims, self.ends, strict=True)
            if parts > 1
        )
        return smallest < LEAST or self.all_unknowns <= GATHERED_UP_TO

    def is_gathered_on_devices(self, fewest: int) -> bool:
        """Whether devices gather b of the level.

        `fewest`: the fewest points of a pass, 0 if devices make none. There are passes for slabs
        only. Layers of the neighbours do not count as points.
        """
        points = math.prod(int(np.diff(ends).min()) + 2 for ends in self.ends)
        swept = fewest > 0 and (points < fewest or not self.in_slabs)
        most = GATHERED_TO_FUSE if swept else GATHERED_ON_DEVICES
        return self.divided and self.all_unknowns <= most

    @property
    def all_unknowns(self) -> int:
        return math.prod(ends[-1] for ends in self.ends)

    def place(self, rank: int | None = None) -> tuple[int, ...]:
        """The place of a process, by default of this one, along each axis of the process grid."""
        rank = (self.ranks.rank if rank is None else rank) if self.divided else 0
        return tuple(map(int, np.unravel_index(rank, self.dims)))

    def blocks(self, rank: int | None = None) -> list[tuple[int, int]]:
        """The block of a process along each axis: (first unknown, last unknown + 1), from 0."""
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

    def halved(self, axis: int, coarsening: AxisCoarsening) -> "Partition":
        """The partition of the next level, with one axis halved."""
        *inner, _ = self.ends[axis]
        coarse = (*((end + 1) // 2 for end in inner), coarsening.count)
        return replace(self, ends=(*self.ends[:axis], coarse, *self.ends[axis + 1 :]))

    def gathered(self) -> "Partition":
        """The partition of the same level if every process holds all of it."""
        ends = tuple((0, ends[-1]) for ends in self.ends)
        return Partition(Ranks(), (1,) * len(self.dims), ends, self.periodic)

    def pass_on(self, value: Any, axis: int, step: int) -> Any:
        """Send a value to the process at distance `step` along an axis; return the value received.

        It is None at the end of an axis, and `value` on a periodic axis that is not divided.
        """

        def at(distance: int) -> int | None:
            place = list(self.place())
            place[axis] += distance
            if self.periodic[axis]:
                place[axis] %= self.dims[axis]
            if not 0 <= place[axis] < self.dims[axis]:
                return None
            return int(np.ravel_multi_index(place, self.dims))

        if self.dims[axis] == 1:
            return value if self.periodic[axis] else None
        return self.ranks.trade(value, at(step), at(-step))


class Assembly:
    """Gathers the blocks of all processes in a whole array on every process, by one message.

    `own` is the region of this process's block in its own array, `regions` holds the region of each
    process's block in the whole array. Where blocks are whole rows of both arrays, devices send
    them from one to the other; elsewhere they travel in boxes of the size of the largest block.
    """

    def __init__(self, backend: Backend, halo: Halo, own: Region, regions: Sequence[Region]):
        self._backend, self._transport, self._ranks = backend, halo.transport, halo.ranks
        self._own, self._regions = own, regions
        self._are_rows: dict[Any, bool] = {}
        """By the shapes of two arrays: whether blocks are whole rows of both, on all processes."""

    @cached_property
    def _boxes(self) -> tuple[Message, Message, list[tuple[Region, tuple[int, ...]]]]:
        """The boxes that leave and that arrive, these along the slowest axis; and for each block
        its region and the distances from there to its box."""
        sizes = [[high - low for low, high in region] for region in self._regions]
        box = [max(extents) for extents in zip(*sizes, strict=True)]
        return (
            self._transport.message(self._backend, box),
            self._transport.message(self._backend, (len(sizes) * box[0], *box[1:])),
            [
                (region, (rank * box[0] - region[0][0], *(-low for low, _ in region[1:])))
                for rank, region in enumerate(self._regions)
            ],
        )

    def bring(self, whole: Any, array: Any, below: int = 0) -> None:
        """Fill `whole` from the blocks in the `array` of each process, which holds this number of
        further layers below the block (asks all processes at first)."""
        (first, stop), *others = self._own
        own = ((first + below, stop + below), *others)
        transport, shapes = self._transport, (whole.shape, array.shape)
        if shapes not in self._are_rows:
            undivided = len({tuple(region[1:]) for region in self._regions}) == 1
            are_rows = undivided and whole.shape[1:] == array.shape[1:]
            self._are_rows[shapes] = all(self._ranks.gather(are_rows))
        if isinstance(transport, QueuedTransport) and self._are_rows[shapes]:
            parts = [message_of_rows(whole, rows, self._backend) for rows, *_ in self._regions]
            transport.spread(message_of_rows(array, own[0], self._backend), parts)
            return
        sweep, (leaving, arriving, places) = self._backend.sweep, self._boxes
        packed = tuple((0, high - low) for low, high in own)
        sweep(shifted, leaving.array, packed, array, *(low for low, _ in own))
        transport.gather(leaving, arriving)
        for region, distances in places:
            sweep(shifted, whole, region, arriving.array, *distances)


# ---- coefficients on the host --------------------------------------------------------------------


@dataclass(frozen=True)
class HostCoefficient:
    """A conductance or a capacity at this process's own points; its extent is 1 where constant.

    `varies`: whether it varies along each axis, on any process. `along`: the axis whose faces it
    belongs to, None for a capacity. Along that axis it varies, and holds the face below each point
    and the face above the last point. Where a coarse point is made of fine points of another
    process, their coefficients are passed on, a few layers at a time.
    """

    values: np.ndarray
    varies: tuple[bool, ...]
    along: int | None
    partition: Partition

    def last(self, axis: int) -> np.ndarray:
        """The values, with this axis moved to the last place."""
        return np.moveaxis(self.values, axis, -1)

    def first_of(self, axis: int) -> "HostCoefficient":
        """The first layer along an axis, along which the coefficient is constant."""
        varies = (*self.varies[:axis], False, *self.varies[axis + 1 :])
        return replace(self, values=np.take(self.values, [0], axis=axis), varies=varies)

    def widened(self, axis: int, layers: int = LAYERS) -> np.ndarray:
        """The values with more layers on both sides along an axis, moved to the last place.

        Beyond the ends of the axis the outermost values are repeated.
        """
        values = self.last(axis)
        count = values.shape[-1] - (axis == self.along)
        core = values[..., :count]
        lowest = np.take(core, np.arange(layers), axis=-1, mode="wrap")
        highest = np.take(core, np.arange(count - layers, count), axis=-1, mode="wrap")
        below = self.partition.pass_on(highest, axis, 1)
        above = self.partition.pass_on(lowest, axis, -1)
        if below is None:
            below = np.repeat(values[..., :1], layers, axis=-1)
        if above is None:
            above = np.repeat(values[..., -1:], layers, axis=-1)
        return np.concatenate([below, core, above], axis=-1)

    def is_constant(self, axis: int) -> bool:
        """Whether all values along an axis are equal (asks all processes)."""
        if not self.varies[axis]:
            return True
        wide = self.widened(axis)
        same = bool(np.all(wide == wide[..., :1]) and np.all(self.last(axis) == wide[..., :1]))
        return all(self.partition.ranks.gather(same))

    def shortened(self) -> "HostCoefficient":
        """This coefficient, with an extent of 1 along all axes but `along` where it is constant."""
        result = self
        for axis in range(len(self.varies)):
            if axis != self.along and result.is_constant(axis):
                result = result.first_of(axis)
        return result

    def to_device(
        self, grid: Grid, backend: Backend, shape: Sequence[int], known: Any = None
    ) -> Any:
        """The array for point functions, with an extent of 1 along axes where it is constant.

        It has the shape of the field's arrays if it varies along all axes. `known`, an array of the
        coefficient, is returned if it has the right shape. Element 0 of faces is not read.
        """
        kept, faces = self, self.along
        if faces is not None and self.is_constant(faces):
            kept, faces = self.first_of(faces), None
        extents: list[int] = []
        window = []
        for number, (axis, varies) in enumerate(zip(grid.axes, kept.varies, strict=True)):
            first, stop = axis.own
            extents.append(axis.unknowns + 2 if varies else 1)
            window.append(slice(first, stop + (number == faces)) if varies else slice(0, 1))
        if all(kept.varies):
            extents = list(shape)
        if known is not None and known.shape == tuple(extents):
            return known
        host = np.zeros(extents)
        host[tuple(window)] = kept.values
        return backend.to_device(host)

    def halved(self, axis: int, coarsening: AxisCoarsening, coarse: Partition) -> "HostCoefficient":
        """The coefficient of the next level, with one axis halved."""
        if not self.varies[axis]:
            return replace(self, partition=coarse)
        first = self.partition.blocks()[axis][0] + 1 - LAYERS
        rule = coarsening.conductances if axis == self.along else coarsening.mean
        values = np.moveaxis(rule(self.widened(axis), first, coarse.blocks()[axis]), -1, axis)
        return replace(self, values=np.ascontiguousarray(values), partition=coarse)

    def gathered(self) -> "HostCoefficient":
        """The coefficient of all points, on every process."""
        partition, extents = self.partition, list(self.values.shape)
        for axis, ends in enumerate(partition.ends):
            if self.varies[axis]:
                extents[axis] = ends[-1] + (axis == self.along)
        whole = np.empty(extents)
        for rank, values in enumerate(partition.ranks.gather(self.values)):
            starts = [low for low, _ in partition.blocks(rank)]
            places = zip(starts, values.shape, self.varies, strict=True)
            whole[tuple(slice(s, s + n) if varies else slice(None) for s, n, varies in places)] = (
                values
            )
        return replace(self, values=whole, partition=partition.gathered())

    def is_even(self) -> bool:
        """Whether no conductance here is much larger than its neighbours, except at walls."""
        assert self.along is not None
        first, stop = self.partition.blocks()[self.along]
        # The walls' faces have the numbers 1 and n + 1.
        last = stop == self.partition.ends[self.along][-1]
        inside = slice(int(first == 0), self.values.shape[self.along] - last)
        trimmed = self.values[(slice(None),) * self.along + (inside,)]
        points = replace(self, values=trimmed, along=None)
        holds = True
        for axis in range(len(self.varies)):
            values = points.last(axis)
            if axis != self.along and self.varies[axis]:
                wide = points.widened(axis)
                values = wide[..., LAYERS : wide.shape[-1] - LAYERS + 1]
            a, b = values[..., 1:], values[..., :-1]
            holds &= bool(np.all((a <= JUMP * b) & (b <= JUMP * a)))
        return holds

    def at_walls(self) -> list[tuple[float, float]]:
        """For both walls of the axis `along`: the largest conductance at the wall and beside it.

        Asks all processes.
        """
        assert self.along is not None
        values, place = self.last(self.along), self.partition.place()[self.along]
        at_ends = (place == 0, place == self.partition.dims[self.along] - 1)
        mine = [
            (float(values[..., wall].max()), float(values[..., beside].max()))
            if here
            else (0.0, 0.0)
            for here, wall, beside in zip(at_ends, (0, -1), (1, -2), strict=True)
        ]
        largest = np.max(self.partition.ranks.gather(mine), axis=0)
        return [(float(wall), float(beside)) for wall, beside in largest]


def coefficients_of(
    arrays: Sequence[Any], grid: Grid, partition: Partition, backend: Backend
) -> list[HostCoefficient]:
    """The coefficients of a system's arrays: conductances of the faces along each axis, a capacity.

    Asks all processes: conditions at a wall may make conductances vary on some processes only.
    """
    mine = [[extent > 1 for extent in array.shape] for array in arrays]
    anywhere = np.any(partition.ranks.gather(mine), axis=0)
    np.fill_diagonal(anywhere, True)  # the axes of the faces
    result = []
    for along, (array, varies) in enumerate(zip(arrays, anywhere, strict=True)):
        bounds = [
            (first, stop + (axis == along)) if varies[axis] else (0, 1)
            for axis, (first, stop) in enumerate(grid.interior)
        ]
        host = np.asarray(backend.to_host(array), float)
        window = tuple(
            slice(None) if extent == 1 else slice(*pair)
            for extent, pair in zip(host.shape, bounds, strict=True)
        )
        values = np.broadcast_to(host[window], [high - low for low, high in bounds])
        place = along if along < grid.dimension else None
        coefficient = HostCoefficient(values, tuple(map(bool, varies)), place, partition)
        result.append(coefficient.shortened())
    return result


def are_even(faces: Sequence[HostCoefficient]) -> bool:
    """Whether no conductance is much larger than its neighbours, except at walls (asks all)."""
    mine = [coefficient.is_even() for coefficient in faces]  # no short cut: each call asks all
    return all(faces[0].partition.ranks.gather(all(mine)))


def margin_of(arrays: Sequence[np.ndarray]) -> int | None:
    """The number of layers at the ends of all axes; between them each array is constant.

    An array has an extent of 1 along axes where it is constant. None if one varies along two axes.
    """
    layers = 0
    for values in arrays:
        count = values.size
        if count > max(values.shape):
            return None
        line = values.reshape(-1)
        (others,) = np.nonzero(line != line[count // 2])
        layers = max([layers, *(np.minimum(others, count - 1 - others) + 1)])
    return int(layers)
