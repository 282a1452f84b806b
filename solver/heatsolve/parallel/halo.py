"""The exchange of ghosts between the processes of a run.

A ghost that is an unknown elsewhere is brought up to date before an array is read at a shift: from
another process, or, on a periodic axis that is not divided, from the other end of the same array.
Axes are exchanged one at a time, the fastest first, each with the ghosts of the axes before it, so
that corners are right; if one axis is divided and all others are periodic, its messages may also go
first. `start` begins an exchange, `finish` ends it, `exchange` does both. `sweep_and_exchange`
makes a sweep, the layers that leave first, and sends them while it makes the others.

A halo of depth d brings d layers at once: the ghosts and a margin of d - 1 unknowns inside them. A
process can then make d sweeps before the next exchange, each over a margin one layer thinner than
the margin before; every point is computed from the values that its owner uses, to the same bits.
"""

import itertools
import math
from collections.abc import Callable, Container, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from heatsolve.backends import Backend, Message, Region
from heatsolve.parallel.ranks import Ranks
from heatsolve.parallel.transport import Peer, Transport
from heatsolve.stencil.grid import Grid, whole, without
from heatsolve.stencil.language import shifted

FEWEST_BESIDE = 1 << 18
"""The fewest elements whose messages gain by a sweep beside them: two more launches take as long as
the messages of fewer elements (H200)."""


class Halo:
    """The exchange of the ghosts of a block with the blocks that own them.

    `dims` are the processes along each axis, and the `transport` carries their messages; without
    them this process is alone.
    """

    def __init__(
        self,
        grid: Grid,
        backend: Backend,
        ranks: Ranks | None = None,
        dims: Sequence[int] | None = None,
        depth: int = 1,
        transport: Transport | None = None,
    ):
        self.grid, self.ranks, self.depth = grid, ranks or Ranks(), depth
        self.dims = dims = tuple(dims or (1,) * grid.dimension)
        self.backend, self.transport = backend, transport or Transport(self.ranks)
        layers = (depth, depth)
        exchanges = [
            self._exchange_of(axis, grid.ghost(axis, 0), layers)
            for axis in reversed(range(grid.dimension))
        ]
        self._exchanges = [each for each in exchanges if each is not None]
        # Before the first divided axis ghosts are copied at once, from there on messages take time.
        others = [isinstance(each, Neighbours) for each in self._exchanges]
        self._first = others.index(True) if any(others) else len(others)
        dependent = {each.axis: each.present for each in self._exchanges} if any(others) else {}
        self.overlaps = backend.on_device
        """Whether sweeps overlap with messages: of MPI, hosts hide less than separate sweeps of the
        rim cost."""
        self.inner, self.rim = inner_and_rim(grid.interior, dependent if self.overlaps else {})
        facing = {e.axis: e.present for e in self._exchanges if isinstance(e, Neighbours)}
        self._widened = [widened(grid.interior, facing, width) for width in range(depth)]
        self._margins = [tuple(without(around, grid.interior)) for around in self._widened]
        own = [each.axis for each in self._exchanges if isinstance(each, PeriodicWrap)]
        self.wraps = tuple(axis in own for axis in range(grid.dimension))
        """For each axis, whether its ghosts come from the other end of the same array."""
        if facing:
            undivided = [around for axis, around in enumerate(self.wraps) if axis not in facing]
            any_order = len(facing) == 1 and all(undivided)
        else:  # with walls between two periodic axes the ghosts depend on the order of all three
            any_order = self.wraps != (True, False, True)
        self._ends = list(ends_of(grid, self.wraps, facing)) if any_order else []
        self._beyond = [region for region, _ in self._ends]
        self._leaving = inner_and_rim(grid.interior, facing if self.overlaps else {}, depth)

    def _exchange_of(
        self, axis: int, around: Region, layers: tuple[int, int]
    ) -> "PeriodicWrap | Neighbours | None":
        """The exchange along one axis, over `around` along all other axes; None: there is none."""
        if self.dims[axis] > 1:
            return Neighbours(self, self.grid, axis, around, layers)
        if self.grid.axes[axis].periodic:
            return PeriodicWrap(self.grid, self.backend, axis, around)
        return None

    def along(
        self, axis: int, shape: Sequence[int], layers: tuple[int, int]
    ) -> Callable[[Any], None]:
        """The exchange along one axis alone, of these numbers of layers below and above.

        It is for arrays of this shape, which hold this block and room for the layers.
        """
        along = self._exchange_of(axis, whole(shape), layers)
        return _nothing if along is None else along.exchange

    def across(self, axis: int, shape: Sequence[int]) -> Callable[[Any], None]:
        """The exchange of two layers on both sides along one axis, if that axis is divided.

        It is for arrays of this shape, which hold this block and two layers around it.
        """
        if self.dims[axis] == 1:
            return _nothing
        axes = list(self.grid.axes)
        axes[axis] = replace(axes[axis], margin=(1, 1))
        return Neighbours(self, Grid(tuple(axes)), axis, whole(shape), (2, 2)).exchange

    def layers(self, axis: int, count: int, beyond: int = 0) -> "Neighbours":
        """The exchange of this number of layers along a divided axis, but for the `beyond` nearest
        ones."""
        around = self.grid.ghost(axis, 0)
        return Neighbours(self, self.grid, axis, around, (count, count), beyond)

    def of(self, grid: Grid, backend: Backend | None = None, layers: int = 1) -> "Halo":
        """The exchange of `layers` by the same processes, for their blocks of another grid.

        The `backend` may have another precision.
        """
        machine = backend or self.backend
        return Halo(grid, machine, self.ranks, self.dims, layers, self.transport)

    def start(self, *arrays: Any) -> None:
        """Begin the exchange: the ghosts of the fastest divided axis are on their way."""
        if self._joins_ends and not self.divided:
            self._wrap_all(arrays)
            return
        for each in self._exchanges[: self._first + 1]:
            each.start(*arrays)

    @property
    def _joins_ends(self) -> bool:
        """Whether the ghosts of all periodic axes may be filled in any order, after messages, and
        the backend gains by it."""
        return bool(self._ends) and self.backend.joins(self._beyond)

    def _wrap_all(self, arrays: Sequence[Any]) -> None:
        """Fill all ghosts that come from the same array, in any order."""
        for array in arrays:
            for region, distances in self._ends:
                self.backend.sweep(shifted, array, region, array, *distances)

    def finish(self, *arrays: Any) -> None:
        """Complete the exchange begun by `start`."""
        for each in self._exchanges[self._first : self._first + 1]:
            each.finish(*arrays)
        for each in self._exchanges[self._first + 1 :]:
            each.exchange(*arrays)

    def exchange(self, *arrays: Any) -> None:
        """Fill the ghosts and the margins of arrays; the messages of all arrays travel together.

        Unlike with `start` and `finish`, layers may be sent from the arrays without packing.
        """
        if not self._joins_ends:
            for each in self._exchanges:
                each.exchange(*arrays)
            return
        if self.divided:
            self.across_blocks.exchange(*arrays)
        self._wrap_all(arrays)

    def sweep_and_exchange(self, sweep: Callable[[Region], None], *arrays: Any) -> None:
        """Make a sweep of the interior, which gives it the region of each part, and `exchange`.

        A device sends many layers while it sweeps the other points.
        """
        inner, rim = self._leaving
        count = len(arrays) * sum(math.prod(high - low for low, high in slab) for slab in rim)
        if not rim or not self._joins_ends or count < FEWEST_BESIDE:
            sweep(self.grid.interior)
            self.exchange(*arrays)
            return
        self.across_blocks.exchange_beside(sweep, inner, rim, arrays)
        self._wrap_all(arrays)

    @property
    def across_blocks(self) -> "Neighbours":
        """The exchange along the first divided axis."""
        each = self._exchanges[self._first]
        assert isinstance(each, Neighbours)
        return each

    def exchange_along(self, axis: int, *arrays: Any) -> None:
        """Fill the ghosts at the ends of one axis only."""
        for each in self._exchanges:
            if each.axis == axis:
                each.exchange(*arrays)

    def wrap(self, array: Any) -> None:
        """Fill the ghosts that come from the same array: only these are old between exchanges."""
        if self._joins_ends:
            self._wrap_all([array])
            return
        for each in self._exchanges:
            if isinstance(each, PeriodicWrap):
                each.exchange(array)

    def margin(self, sweep: int) -> Sequence[Region]:
        """The slabs of the margin that a sweep after an exchange (0, 1, ...) can still update."""
        return self._margins[self.depth - 1 - sweep]

    def around(self, sweep: int) -> Region:
        """All unknowns that a sweep after an exchange can still update: own and margin."""
        return self._widened[self.depth - 1 - sweep]

    def sweeps_left(self, sweep: int) -> float:
        """The number of sweeps, this one included, before the next sweep that must exchange."""
        return self.depth - sweep % self.depth if self.divided else math.inf

    @property
    def divided(self) -> bool:
        """Whether ghosts come from other processes."""
        return self._first < len(self._exchanges)


def _nothing(array: Any) -> None:
    """The exchange along an axis that has none."""


def replaced(region: Region, axis: int, bounds: tuple[int, int]) -> Region:
    """A region with other bounds along one axis."""
    return (*region[:axis], bounds, *region[axis + 1 :])


def inner_and_rim(
    interior: Region, dependent: dict[int, tuple[bool, bool]], layers: int = 1
) -> tuple[Region, tuple[Region, ...]]:
    """The unknowns beyond the first `layers` at dependent ends, and the unknowns of these layers,
    in slabs."""
    inner = list(interior)
    for axis, sides in dependent.items():
        low, high = inner[axis]
        first = min(low + layers * sides[0], high)
        inner[axis] = first, max(high - layers * sides[1], first)
    return tuple(inner), tuple(without(interior, tuple(inner)))


def widened(interior: Region, facing: dict[int, tuple[bool, bool]], width: int) -> Region:
    """The interior and `width` layers beyond it on the sides that face other blocks."""
    around = list(interior)
    for axis, sides in facing.items():
        low, high = around[axis]
        around[axis] = (low - width * sides[0], high + width * sides[1])
    return tuple(around)


def ends_of(
    grid: Grid, wraps: Sequence[bool], divided: Container[int] = ()
) -> Iterator[tuple[Region, tuple[int, ...]]]:
    """The ghosts beyond faces, edges and corners of periodic axes, and the distances to the
    unknowns of the same value: all may be copied at once, ghosts along `divided` axes included.
    """
    sides = [(-1, 0, 1) if around else (0,) for around in wraps]
    for place in itertools.product(*sides):
        ghosts = [axis for axis, side in enumerate(place) if side]
        region = []
        for axis, (side, around) in enumerate(zip(place, wraps, strict=True)):
            last = grid.axes[axis].unknowns
            bounds = {-1: (0, 1), 0: (1, last + 1), 1: (last + 1, last + 2)}[side]
            # As in `Grid.ghost`: walls of faster axes are copied, walls of slower axes come later.
            corner = axis in divided or (not around and ghosts and axis > ghosts[0])
            region.append((0, grid.shape[axis]) if corner else bounds)
        if ghosts:
            distances = [-side * grid.axes[axis].unknowns for axis, side in enumerate(place)]
            yield tuple(region), tuple(distances)


class PeriodicWrap:
    """A periodic axis that is not divided: the other end of the same array."""

    present = (True, True)

    def __init__(self, grid: Grid, backend: Backend, axis: int, around: Region):
        self.axis, self._backend = axis, backend
        last = grid.axes[axis].unknowns
        distances = [0] * grid.dimension
        distances[axis] = last
        self._copies = (
            (replaced(around, axis, (0, 1)), tuple(distances)),
            (replaced(around, axis, (last + 1, last + 2)), tuple(-d for d in distances)),
        )

    def start(self, *arrays: Any) -> None:
        for array in arrays:
            for region, distances in self._copies:
                self._backend.sweep(shifted, array, region, array, *distances)

    def finish(self, *arrays: Any) -> None:
        """All is done by `start`."""

    exchange = start


class Neighbours:
    """A divided axis: the processes below and above, by messages of layers."""

    def __init__(
        self,
        halo: Halo,
        grid: Grid,
        axis: int,
        around: Region,
        layers: tuple[int, int],
        beyond: int = 0,
    ):
        """`grid`: that of the halo, or its block with another margin. Of the `layers`, those
        `beyond` the nearest ones travel."""
        self.axis, self._backend, self._transport = axis, halo.backend, halo.transport
        self._sides = []
        # Layers across the slowest axis lie together in memory.
        self._goes_as_it_is = (
            not self._transport.packs and axis == 0 and around[1:] == whole(grid.shape[1:])
        )
        # Sweeps between start and finish may write to all layers but the outermost, so several
        # layers are packed.
        self._packs = not self._goes_as_it_is or layers != (1, 1)
        dims, place = halo.dims, np.unravel_index(halo.ranks.rank, halo.dims)
        for side, step in enumerate((-1, 1)):
            other = list(place)
            other[axis] += step
            if grid.axes[axis].periodic:
                other[axis] %= dims[axis]
            if 0 <= other[axis] < dims[axis]:
                peer = int(np.ravel_multi_index(other, dims))
                own = grid.axes[axis].own
                self._sides.append(Side(axis, side, peer, own, around, layers, beyond))
        self._packed: list[list[Side]] = []
        if not self._goes_as_it_is:
            self._of(0)
        present = {each.side for each in self._sides}
        self.present = (0 in present, 1 in present)

    def _of(self, number: int) -> "list[Side]":
        """Both ends, with the messages for array `number` of an exchange."""
        while number >= len(self._packed):
            sides = [copy(side) for side in self._sides]
            for side in sides:
                side.leaving, side.arriving = (
                    self._transport.message(self._backend, [high - low for low, high in region])
                    for region in (side.packed, side.ghosts)
                )
            self._packed.append(sides)
        return self._packed[number]

    def _pairs(self, arrays: Sequence[Any]) -> "list[tuple[Any, Side]]":
        """Each array with each of its packed ends."""
        return [(array, side) for n, array in enumerate(arrays) for side in self._of(n)]

    def start(self, *arrays: Any) -> None:
        if not self._packs:
            self._transport.start(self._within(arrays))
            return
        self._transport.start(self._pack(arrays))

    def finish(self, *arrays: Any) -> None:
        if not self._packs:
            self._transport.finish(self._sides)
            return
        self._transport.finish([side for _, side in self._pairs(arrays)])
        self._unpack(arrays)

    def exchange(self, *arrays: Any) -> None:
        self.exchange_with(arrays)

    def exchange_with(self, arrays: Sequence[Any], *more: "tuple[Neighbours, Any]") -> None:
        """Exchange layers of arrays, and with them those of `more` arrays, each by its own."""
        parts = [(self, arrays), *[(other, [array]) for other, array in more]]
        self._transport.exchange([peer for each, of in parts for peer in each._leaving(of)])
        for each, of in parts:
            if not each._goes_as_it_is:
                each._unpack(of)

    def _leaving(self, arrays: Sequence[Any]) -> Sequence[Peer]:
        """All ends, with their messages, which are filled."""
        return self._within(arrays) if self._goes_as_it_is else self._pack(arrays)

    def exchange_beside(
        self,
        sweep: Callable[[Region], None],
        inner: Region,
        rim: Sequence[Region],
        arrays: Sequence[Any],
    ) -> None:
        """Sweep the layers that leave, in `rim`, and exchange them while sweeping the `inner`."""
        for slab in rim:
            sweep(slab)
        # The sweep changes no layer that travels, so layers that lie together need no packing.
        peers = self._leaving(arrays)
        self._transport.start(peers)
        sweep(inner)
        self._transport.finish(peers)
        if not self._goes_as_it_is:
            self._unpack(arrays)

    def _pack(self, arrays: Sequence[Any]) -> "list[Side]":
        """Fill the messages that leave; return all ends."""
        pairs = self._pairs(arrays)
        for array, side in pairs:
            self._backend.sweep(shifted, side.leaving.array, side.packed, array, *side.from_edge)
        return [side for _, side in pairs]

    def _unpack(self, arrays: Sequence[Any]) -> None:
        """Copy the messages that have arrived into ghosts."""
        for array, side in self._pairs(arrays):
            self._backend.sweep(shifted, array, side.ghosts, side.arriving.array, *side.from_ghosts)

    def _within(self, arrays: Sequence[Any]) -> list[Peer]:
        """Messages from and to the arrays themselves."""
        return [side.within(array, self._backend) for array in arrays for side in self._sides]


class Side(Peer):
    """One end of a divided axis: the process that it faces, and the layers that travel."""

    def __init__(
        self,
        axis: int,
        side: int,
        peer: int,
        own: tuple[int, int],
        around: Region,
        layers: tuple[int, int],
        beyond: int,
    ):
        self.side, self.rank = side, peer
        (first, stop), (below, above) = own, layers
        # The layers that leave at the low side are the upper ghosts of the peer, and the reverse.
        edge = ((first + beyond, first + above), (stop - below, stop - beyond))[side]
        ghosts = ((first - below, first - beyond), (stop + beyond, stop + above))[side]
        edges = replaced(around, axis, edge)
        self.ghosts = replaced(around, axis, ghosts)
        self.packed = tuple((0, high - low) for low, high in edges)
        self.from_edge = tuple(low for low, _ in edges)
        self.from_ghosts = tuple(-low for low, _ in self.ghosts)
        # A layer sent down arrives at an upper end: the tag is the side at which it arrives.
        self.tags = (2 * axis + 1 - side, 2 * axis + side)

    def within(self, array: Any, backend: Backend) -> Peer:
        """This end, for layers that lie together in an array, so that they are not packed."""
        edge = self.from_edge[0], self.from_edge[0] + self.packed[0][1]
        leaving, arriving = (
            message_of_rows(array, each, backend) for each in (edge, self.ghosts[0])
        )
        return Peer(leaving, arriving, self.rank, self.tags)


def message_of_rows(array: Any, bounds: tuple[int, int], backend: Backend) -> Message:
    """A message of whole rows of an array, along its slowest axis, which lie together in memory."""
    (first, stop), size = bounds, math.prod(array.shape[1:])
    together = backend.part(array, (size * (stop - first),), first * size)
    return Message(together, together)
