"""Restriction of residuals, interpolation of corrections and solutions: one axis after the other.

An array is viewed as (before, layers, after) around an axis. A fine array with an even number of
layers is viewed as (before, pair, parity and after), with layer 2p + parity in pair p, because the
elements that belong to the coarse point q depend on where a block begins; the shifts to them are
integer arguments of a sweep.

On a device all axes are transferred at once, if one process holds all of them: see
`transfer_at_once` and, for solutions in 2D, `transfer_2d`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from heatsolve.backends import Backend, Region
from heatsolve.linear.multigrid.coarsening import AxisCoarsening
from heatsolve.linear.multigrid.transfer_2d import NEAR, Interpolation2D
from heatsolve.linear.multigrid.transfer_at_once import TransferAtOnce, weighted_sum
from heatsolve.linear.stationary import of_colour
from heatsolve.stencil.language import Point, neighbour, shifted
from heatsolve.stencil.trace import ARRAY, INTEGER, REAL, Tape, record

WIDE = 2000
"""Coarse points along each axis of a 2D grid from which on only points near walls are copied.

With fewer points, copying all of them takes no longer (H200).
"""

Exchange = Callable[[Any], None]


@dataclass(frozen=True)
class AxisTransfer:
    """One halved axis of a block: how it is halved, and the block's bounds on both levels.

    `fine` and `coarse` hold, for each level, the number of the point in element 0 of the arrays,
    and the number of unknowns. `exchange` takes a shape, and makes the exchange of one layer below
    and two above for a fine array of this shape.
    """

    coarsening: AxisCoarsening
    fine: tuple[int, int]
    coarse: tuple[int, int]
    exchange: Callable[[tuple[int, ...]], Exchange]

    @property
    def is_whole(self) -> bool:
        """Whether the block holds all of the axis."""
        return self.fine[0] == 0 and self.coarse == (0, self.coarsening.count)

    @property
    def wraps(self) -> bool:
        """Whether the ends of the axis are neighbours in one array, and its points are even in
        number."""
        periodic, count = self.coarsening.fine.axis.periodic, self.coarsening.count
        return self.is_whole and periodic and self.fine[1] == 2 * count >= 4

    @property
    def is_alone(self) -> bool:
        """Whether the axis needs no exchange: its block is whole, and wraps if it is periodic."""
        return self.is_whole and (self.wraps or not self.coarsening.fine.axis.periodic)

    @property
    def offset(self) -> int:
        """The coarse element c is restricted from the elements 2c + offset ... 2c + offset + 3."""
        return 2 * self.coarse[0] - 2 - self.fine[0]

    def room(self, extent: int) -> int:
        """The even extent of the array that is restricted, if level arrays have this extent."""
        room = extent + 1  # for the second layer above
        reach = self.coarse[1] + (self.offset + 3) // 2  # the pair of the last element taken
        return max(room + room % 2, 2 * (reach + 1))

    def lines(self, backend: Backend, weights: Sequence[np.ndarray]) -> list[Any]:
        """Weights of restriction for the coarse points of the block."""
        first, count = self.coarse
        return [
            backend.to_device(line[first : first + count + 2].reshape(1, -1, 1)) for line in weights
        ]


class Transfer:
    """The transfer between a level and the next one; `axes` holds the axes that are halved.

    `coarse_b` and `coarse_u` are arrays of the coarse level. Intermediate arrays are made when they
    are first needed: a level that is halved in passes of the backend needs none.
    """

    def __init__(
        self,
        backend: Backend,
        axes: Mapping[int, AxisTransfer],
        shape: tuple[int, ...],
        coarse_b: Any,
        coarse_u: Any,
    ):
        self.backend, self.axes, self._shape = backend, axes, shape
        self._coarse_b, self.coarse_u = coarse_b, coarse_u
        self.halves_all = len(axes) == len(shape)
        # Whether an array of the level can be seen as pairs of rows, the axis of rows being halved.
        self.takes_rows = len(shape) < 3 and 0 in axes
        self.interpolates_in_place = 0 in axes
        self._extents = list(shape)
        for axis, along in axes.items():
            self._extents[axis] = along.room(shape[axis])
        self._restriction = [
            along.lines(backend, along.coarsening.restriction_weights) for along in axes.values()
        ]
        self._mean = [
            along.lines(backend, along.coarsening.mean_weights) for along in axes.values()
        ]
        self._parities = [
            parities_of(backend, along, along.coarsening.weights, self._extents[axis])
            for axis, along in axes.items()
        ]
        self._at_once: TransferAtOnce | None = None
        # On a host, loops along one axis after the other are faster.
        all_whole = self.halves_all and all(along.is_alone for along in axes.values())
        wraps = [along.wraps for along in axes.values()]
        may_wrap = backend.most_wrapped > 0 or not any(wraps)
        if backend.on_device and len(shape) > 1 and all_whole and may_wrap:
            coarsenings = [along.coarsening for along in axes.values()]
            unknowns = [along.fine[1] for along in axes.values()]
            args = coarsenings, unknowns, wraps, coarse_b, coarse_u
            self._at_once = TransferAtOnce(backend, *args)

    @property
    def in_2d(self) -> bool:
        """Whether both axes of a 2D grid are transferred at once."""
        return self._at_once is not None and len(self._shape) == 2

    @property
    def reads_other_ends(self) -> bool:
        """Whether the interpolation needs no ghosts of periodic axes."""
        return self._at_once is not None

    @property
    def restriction_weights(self) -> list[Any]:
        """For each axis, the weights of the points 2q - 2 ... 2q + 1 in the coarse point q."""
        return [line for lines in self._restriction for line in lines]

    @property
    def interpolation_weights(self) -> list[Any]:
        """For each axis, the weights of coarse points q and q + 1 in the points 2q and 2q + 1."""
        return [line for both in self._parities for parity in both for line in parity.weights]

    @cached_property
    def finer(self) -> Any:
        """The array of the fine level that restriction reads and interpolation writes.

        Ghosts that the interpolation does not write stay 0.
        """
        return self.backend.zeros(self._extents)

    @cached_property
    def _steps(self) -> "list[Step]":
        backend, extents, block = self.backend, list(self._extents), list(self._shape)
        steps: list[Step] = []
        fine = memory = self.finer
        for n, (axis, along) in enumerate(self.axes.items()):
            block[axis] = extents[axis] = along.coarse[1] + 2
            if n == len(self.axes) - 1:
                below, down, up = None, self._coarse_b, self.coarse_u
            else:
                below, down = roomy(backend, extents, list(self.axes)[n + 1])
                up = down
            back = Interpolation(backend, axis, up, memory, fine.shape, self._parities[n])
            steps.append(Step(backend, along, axis, fine, down, block, back))
            memory, fine = below, down
        return steps

    def restrict(self) -> None:
        """Restrict the residual in `finer` to b of the coarse level."""
        if self._at_once is not None:
            self._at_once.restrict(self.finer, self._restriction)
            return
        for step, weights in zip(self._steps, self._restriction, strict=True):
            step.restrict(weights)

    def average(self, quantity: Any = None) -> None:
        """Fill b of the coarse level, ghosts included, with means of `finer` over coarse volumes.

        No mean includes both ghosts and unknowns: across a wall ghosts are copied, along it they
        are averaged like points. So one array brings a right side and the values at the walls.
        `quantity`: an array that `can_average` accepts, of which the means are taken instead;
        `finer` then holds its ghosts only.
        """
        inside_is_made = False
        once = self._at_once if self.in_2d else None
        if once is not None and (quantity is None or once.takes_alone(quantity.shape)):
            once.restrict(self.finer if quantity is None else quantity, self._mean)
            quantity, inside_is_made = None, True
        for step, weights in zip(self._steps, self._mean, strict=True):
            step.restrict(weights, quantity, along_walls=inside_is_made)
            step.carry_ghosts()
            quantity = None  # the next axis goes on from there

    def can_average(self, shape: tuple[int, ...]) -> bool:
        """Whether means can be taken of an array of the level directly, if it has no neighbours.

        All pairs of rows must lie in it.
        """
        return self.takes_rows and self.axes[0].coarse[1] < shape[0] // 2

    def interpolate(self, into: Any = None) -> None:
        """Interpolate u of the coarse level, all its ghosts up to date, into `finer`.

        Or add it to the unknowns of the array `into`, if the transfer `interpolates_in_place`.
        """
        if self._at_once is not None:
            self._at_once.interpolate(self.finer if into is None else into, into is not None)
            return
        last, *others = self._steps
        for step in reversed(others):
            step.interpolate()
        last.interpolate(into, adds=into is not None)


class Step:
    """Restriction along one axis, from an array `fine` into the array `down`.

    `block`: the extents of the block in `down`, ghosts included. `interpolate` is the way back.
    """

    def __init__(
        self,
        backend: Backend,
        along: AxisTransfer,
        axis: int,
        fine: Any,
        down: Any,
        block: Sequence[int],
        interpolate: "Interpolation",
    ):
        self.interpolate = interpolate
        self._sweep, self._part, self._block = backend.sweep, backend.part, tuple(block)
        self._joins = backend.joins
        self._axis, self._along, self._whole_down = axis, along, down
        self._before, self._after = around(fine.shape, axis)
        self._fine, self._exchange = fine, along.exchange(fine.shape)
        self._pairs = fine.reshape((self._before, fine.shape[axis] // 2, 2 * self._after))
        # Rows of the coarse level's arrays may be padded.
        self._down = down.reshape((self._before, down.shape[axis], self._after))

    def restrict(
        self, weights: Sequence[Any], quantity: Any = None, along_walls: bool = False
    ) -> None:
        """Restrict into `down`: the array `fine`, or a `quantity` (see `Transfer.can_average`).

        `along_walls`: in 2D, restrict only the ghosts beyond the walls of the other axis.
        """
        pairs, after, last = self._pairs, self._after, self._along.coarse[1]
        everything: Region = ((0, self._before), (1, 1 + last), (0, after))
        layers = {everything[1]: (0, 0, 0, 0)}
        if quantity is not None:
            after = math.prod(quantity.shape[1:])
            pairs = self._part(quantity, (1, quantity.shape[0] // 2, 2 * after))
        elif self._along.wraps and self._joins([everything]):
            # In one kernel: the first and the last layer read a point at the other end.
            layers = {(1, 2): (last, 0, 0, 0), (last, 1 + last): (0, 0, 0, -last)}
            layers[2, last] = (0, 0, 0, 0)
        else:
            self._exchange(self._fine)
        offset = self._along.offset
        places = [divmod(place, 2) for place in range(offset, offset + 4)]
        parts = [((0, self._before), (0, after))]
        if along_walls:
            other = 1 - self._axis
            ghosts = [(ghost, ghost + 1) for ghost in (0, self._block[other] - 1)]
            parts = [(ghost, (0, 1)) if other == 0 else ((0, 1), ghost) for ghost in ghosts]
        for before, behind in parts:
            for some, around in layers.items():
                shifts = []
                for (pair, parity), pairs_around in zip(places, around, strict=True):
                    shifts += [pair + pairs_around, parity * after]
                region = (before, some, behind)
                self._sweep(restricted, self._down, region, pairs, *weights, *shifts)

    def carry_ghosts(self) -> None:
        """Copy the ghosts at both ends of the axis, and ghosts along walls that means would
        move."""
        if self._along.wraps:  # `restrict` may not have exchanged
            self._exchange(self._fine)
        everything = [(0, extent) for extent in self._whole_down.shape]
        (fine_first, fine_count), (coarse_first, count) = self._along.fine, self._along.coarse
        for number, place in self._along.coarsening.off_centre:
            coarse, fine = number - coarse_first, place - fine_first
            if not 1 <= coarse <= count:
                continue
            for axis, extent in enumerate(self._block):
                for ghost in (0, extent - 1) if axis != self._axis else ():
                    beside = list(everything)
                    beside[axis] = (ghost, ghost + 1)
                    self._carry(beside, coarse, fine)
        self._carry(everything, 0, 0)
        self._carry(everything, count + 1, fine_count + 1)

    def _carry(self, bounds: Sequence[tuple[int, int]], coarse: int, fine: int) -> None:
        """Copy a layer across the axis: layer `coarse` from layer `fine`."""
        region, distances = list(bounds), [0] * len(bounds)
        region[self._axis] = (coarse, coarse + 1)
        distances[self._axis] = fine - coarse
        self._sweep(shifted, self._whole_down, tuple(region), self._fine, *distances)


def restricted(i, j, k, pairs, a, b, c, d, j0, k0, j1, k1, j2, k2, j3, k3):
    """The mean over a coarse volume, from the points 2q - 2 ... 2q + 1."""
    return (
        a[i, j, k] * pairs[i, j + j0, k + k0]
        + b[i, j, k] * pairs[i, j + j1, k + k1]
        + c[i, j, k] * pairs[i, j + j2, k + k2]
        + d[i, j, k] * pairs[i, j + j3, k + k3]
    )


# ---- interpolation along one axis ----------------------------------------------------------------


def around(shape: Sequence[int], axis: int) -> tuple[int, int]:
    """The number of elements across the axes before an axis, and across the axes after it."""
    return math.prod(shape[:axis]), math.prod(shape[axis + 1 :])


def roomy(backend: Backend, shape: Sequence[int], axis: int) -> tuple[Any, Any]:
    """A new array that interpolation along an axis writes: its memory, with spare room, and it."""
    memory = backend.zeros((math.prod(shape) + 2 * around(shape, axis)[1],))
    return memory, backend.part(memory, shape)


@dataclass(frozen=True)
class Parity:
    """The layers of one parity of a fine array.

    Their layer p lies between the coarse layers p + shift and p + shift + 1; p is within the bounds
    `pairs`. `weights` holds a line for each coarse layer that is read, the lowest first.
    """

    shift: int
    pairs: tuple[int, int]
    weights: list[Any]


def parities_of(
    backend: Backend, along: AxisTransfer, weights: Sequence[np.ndarray], extent: int
) -> list[Parity]:
    """The even and the odd layers of a fine array of this extent along the axis.

    `weights`: for each coarse point that is read, [q, parity]: its weights in points 2q + parity.
    """
    (first, count), pairs, result = along.coarse, extent // 2, []
    for layer in (0, 1):
        below, parity = divmod(layer + along.fine[0], 2)
        shift = below - first
        numbers = np.clip(np.arange(pairs) + below, 0, len(weights[0]) - 1)
        lines = [backend.to_device(weight[numbers, parity].reshape(1, -1, 1)) for weight in weights]
        result.append(Parity(shift, (max(0, -shift), min(pairs, count + 1 - shift)), lines))
    return result


class Interpolation:
    """Interpolation along one axis, from an array `coarse` to an array of this shape in `memory`.

    Where possible two layers, of one pair or of two neighbouring pairs, are made at a time: both
    read the same coarse layers.
    """

    def __init__(
        self,
        backend: Backend,
        axis: int,
        coarse: Any,
        memory: Any,
        shape: Sequence[int],
        parities: Sequence[Parity],
    ):
        self._backend, self._memory, self._parities = backend, memory, parities
        before, after = around(shape, axis)
        self._extents = before, shape[axis], after
        self._whole = coarse
        self._coarse = coarse.reshape((before, coarse.shape[axis], after))
        self._room = math.prod(memory.shape) // after - before * shape[axis]

    def __call__(self, into: Any = None, adds: bool = False) -> None:
        """Write all of the array, or the unknowns of an array `into`, along its first axis.

        If `adds`, add to the unknowns of `into`.
        """
        sweep, part = self._backend.sweep, self._backend.part
        array, room, (before, layers, length) = self._memory, self._room, self._extents
        even, odd = self._parities
        evens, odds, source, axis, ghosts = even.pairs, odd.pairs, self._coarse, 1, 0
        if into is not None:
            array, room, layers, ghosts = into, 0, into.shape[0], int(len(into.shape) > 1)
            length = math.prod(into.shape[1:])
            evens = max(evens[0], 1), min(evens[1], layers // 2)
            odds = odds[0], min(odds[1], (layers - 1) // 2)
        # Elements of a layer along the axis after the axis of pairs; the axes before and after.
        across = length
        first_axes: Sequence[int] = (before,)
        last_axes: Sequence[int] = ()
        if into is not None and len(into.shape) == 3:  # a plane has ghosts along both of its axes
            source, axis = self._whole, 0
            across, first_axes, last_axes = into.shape[1], (), (into.shape[2],)

        def pairs_from(first: int, count: int) -> Any:
            """`count` pairs of layers, from one layer on."""
            return part(array, (*first_axes, count, 2 * across, *last_axes), first * length)

        def region(pairs: tuple[int, int], shift: int = 0) -> Region:
            behind = [(1, extent - 1) for extent in last_axes]
            there = shift + ghosts, shift + across - ghosts
            return (*[(0, extent) for extent in first_axes], pairs, there, *behind)

        shape = [-1 if n == axis else 1 for n in range(3)]
        lines = [[line.reshape(shape) for line in half.weights] for half in (even, odd)]
        taps = len(even.weights)
        # An odd layer is made with the even layer before it or, if there is none, the next one.
        lag = int(odds[0] < evens[0])
        most = (layers + room - 1 - lag) // 2
        low = max(evens[0] - lag, odds[0])
        high = max(low, min(evens[1] - lag, odds[1], most)) if before == 1 or room else low
        if high > low:
            count = layers // 2 if room else most
            out = tuple([pairs_from(first, count) for first in (2 * lag, 1)])
            ahead = odd.shift - even.shift - lag
            first = even.shift + lag + min(ahead, 0)
            places = range(first, first + taps + abs(ahead))
            args = (*lines[0], *lines[1], *places, *(out if adds else ()))
            point = interpolated_pair(taps, lag, ahead, adds, axis)
            sweep(point, out, region((low, high)), source, *args)
        pairs = pairs_from(0, layers // 2)
        for half, line, (start, stop), done in zip(
            (even, odd), lines, (evens, odds), (lag, 0), strict=True
        ):
            shift = across if half is odd else 0
            places = range(half.shift, half.shift + taps)
            args = (*line, *places, -shift, *([pairs] if adds else []))
            for rest in ((start, low + done), (high + done, stop)):
                point = interpolated(taps, adds, axis)
                sweep(point, pairs, region(rest, shift), source, *args)


@cache
def interpolated(taps: int, adds: bool, axis: int = 1) -> Point:
    """A layer across the axis of pairs, from `taps` coarse layers.

    It takes the coarse array, the weights, the shifts to the coarse layers, the shift along the
    next axis from an element of the pair to the coarse element and, if `adds`, the former values.
    Cached, because a backend identifies a compiled sweep by its function.
    """

    def interpolated(i, j, k, u, *more):
        weights, places, (back, *old) = more[:taps], more[taps : 2 * taps], more[2 * taps :]
        beside = neighbour((i, j, k), axis + 1, back)
        there = [neighbour(beside, axis, place) for place in places]
        value = weighted_sum(weights, (i, j, k), (u[place] for place in there))
        return old[0][i, j, k] + value if adds else value

    return interpolated


@cache
def interpolated_pair(taps: int, lag: int, ahead: int, adds: bool, axis: int = 1) -> Point:
    """An even layer and an odd layer at once, each from `taps` coarse layers.

    `lag`: 1 if the even layer is in the next pair, else 0; `ahead`: the number of coarse layers by
    which the odd layer reads further on than the even layer.
    """

    def interpolated_both(i, j, k, u, *more):
        even, odd = more[:taps], more[taps : 2 * taps]
        places, old = more[2 * taps : 3 * taps + abs(ahead)], more[3 * taps + abs(ahead) :]
        values, here = [], (i, j, k)
        for weights, later, first in ((even, lag, max(0, -ahead)), (odd, 0, max(0, ahead))):
            there = [neighbour(here, axis, place) for place in places[first : first + taps]]
            beside = neighbour(here, axis, later)
            values.append(weighted_sum(weights, beside, (u[place] for place in there)))
        if adds:
            return tuple([old[n][i, j, k] + value for n, value in enumerate(values)])
        return tuple(values)

    return interpolated_both


# ---- the solution of a coarse level, by cubics ---------------------------------------------------


class Prolongation:
    """The solution of a coarse level on the next finer level, by cubics along each axis in turn.

    A correction is interpolated linearly. A solution needs two orders more: otherwise interpolation
    adds high frequencies as large as the discretisation error, which one cycle would not remove (U.
    Trottenberg, C. Oosterlee and A. Schueller, "Multigrid", 2001, section 2.6).

    A cubic takes two coarse points on each side. A block has one layer of ghosts, so the solution
    is copied to an array with one layer more around it. Beyond an end of an axis that layer has the
    weight 0; weights depend on the points' numbers along the whole axis, so that the result is
    independent of the blocks. `across` takes an axis and a shape, and makes the exchange of two
    layers with the neighbours along this axis.
    """

    def __init__(self, transfer: Transfer, across: Callable[[int, Sequence[int]], Exchange]):
        backend, coarse = transfer.backend, transfer.coarse_u
        self._transfer, self._across = transfer, across
        starts, extents = [0] * len(coarse.shape), list(coarse.shape)
        for axis, along in transfer.axes.items():  # rows of its arrays may be padded
            starts[axis], extents[axis] = 1, along.coarse[1] + 4
        self._copied = tuple((m, extent - m) for m, extent in zip(starts, extents, strict=True))
        self._distances = [-m for m in starts]
        self._wide = backend.zeros(extents)
        if transfer.in_2d:
            self._near, inner = [self._copied], None
            if min(coarse.shape) >= max(WIDE, 2 * (NEAR + 2)):
                self._near, inner = list(_layers(self._copied, NEAR + 2)), coarse
            along_both = transfer.axes.values()
            weights = [along.coarsening.solution_weights for along in along_both]
            unknowns = [along.fine[1] for along in along_both]
            self._interpolate_2d = Interpolation2D(backend, self._wide, weights, unknowns, inner)
            self._ghosts = [self._ghosts_of(axis, self._wide) for axis in (1, 0)]

    def _ghosts_of(self, axis: int, source: Any) -> "Ghosts":
        axes = self._transfer.axes
        # Axes that are interpolated later; a ghost of a periodic axis has the value of its image.
        later = [(number, along) for number, along in axes.items() if number < axis]
        walls = [number for number, along in later if not along.coarsening.fine.axis.periodic]
        exchange = self._across(axis, source.shape)
        return Ghosts(self._transfer.backend, axes[axis], axis, source, exchange, walls)

    @cached_property
    def _steps(self) -> list[tuple["Ghosts", Interpolation]]:
        """For each axis in turn, the ghosts of its source and the interpolation from it."""
        transfer, backend = self._transfer, self._transfer.backend
        source, extents = self._wide, list(self._wide.shape)
        steps: list[tuple[Ghosts, Interpolation]] = []
        for axis, along in reversed(list(transfer.axes.items())):
            extents[axis] = transfer.finer.shape[axis]
            memory = result = transfer.finer
            if len(steps) < len(transfer.axes) - 1:
                memory, result = roomy(backend, extents, axis)
            # The source has one layer more before the layers of the coarse array.
            parities = parities_of(backend, along, along.coarsening.solution_weights, extents[axis])
            make = Interpolation(backend, axis, source, memory, tuple(extents), parities)
            steps.append((self._ghosts_of(axis, source), make))
            source = result
        return steps

    def interpolate(self, into: Any = None) -> None:
        """Interpolate the coarse solution, its ghosts up to date, into `finer` of the transfer.

        Or into the unknowns of the array `into`, whose ghosts stay, if the transfer
        `interpolates_in_place`.
        """
        if into is not None and self._transfer.in_2d:
            for region in self._near:
                self._widen(region)
            for ghosts in self._ghosts:
                ghosts.complete()
            self._interpolate_2d(into)
            return
        self._widen(self._copied)
        *others, (ghosts, make_last) = self._steps
        for before, make in others:
            before.complete()
            make()
        ghosts.complete()
        make_last(into)

    def _widen(self, region: Region) -> None:
        """Copy a region of the coarse solution to the array with one layer more around it."""
        transfer = self._transfer
        args = (transfer.coarse_u, *self._distances)
        transfer.backend.sweep(shifted, self._wide, region, *args)


def _layers(region: Region, depth: int) -> Iterator[Region]:
    """The outermost layers of a 2D region: rows, and the columns between them."""
    (low, high), columns = region
    yield (low, low + depth), columns
    yield (high - depth, high), columns
    for pair in ((columns[0], columns[0] + depth), (columns[1] - depth, columns[1])):
        yield (low + depth, high - depth), pair


class Ghosts:
    """The ghosts of an array at the ends of one axis, and in its corners with the axes `walls`.

    Cells have no value at a corner: the ghost there holds the value of half a cell before.
    """

    def __init__(
        self,
        backend: Backend,
        along: AxisTransfer,
        axis: int,
        array: Any,
        exchange: Exchange,
        walls: Sequence[int],
    ):
        self._sweep, self._array, self._exchange = backend.sweep, array, exchange
        # Regions, shares of the distance between two points, and the steps to both points.
        self._corners: list[tuple[Region, float, list[int]]] = []
        dimension, (first, count) = len(array.shape), along.coarse
        at_ends = (first == 0, first + count == along.coarsening.count)
        ends = zip(at_ends, along.coarsening.end_shares, (1, count + 2), (1, -1), strict=True)
        for here, share, place, inward in ends:
            if not here or share is None:
                continue
            steps = [0] * (2 * dimension)
            steps[axis], steps[dimension + axis] = inward, 2 * inward
            for wall in walls:
                for ghost in (1, array.shape[wall] - 2):
                    region = [(0, extent) for extent in array.shape]
                    region[axis], region[wall] = (place, place + 1), (ghost, ghost + 1)
                    self._corners.append((tuple(region), share, steps))

    def complete(self) -> None:
        """Fill the ghosts from the array's neighbours, and at corners from the array itself."""
        self._exchange(self._array)
        for region, share, steps in self._corners:
            self._sweep(extrapolated, self._array, region, self._array, share, *steps)


def extrapolated(at, u, share, *steps):
    """The line through two points, extrapolated by this share of their distance."""
    near = shifted(at, u, *steps[: len(at)])
    far = shifted(at, u, *steps[len(at) :])
    return near + share * (near - far)


# ---- operations that a backend makes on values in its registers ----------------------------------


def coloured(at, value, other, colour, *signs):
    """`value` at the points of a colour, `other` elsewhere."""
    return of_colour(value[at], other[at], at, colour, signs)


def _tape(point: Point, *kinds: str) -> Tape:
    return record(point, kinds, 3)


_PLACES = (INTEGER,) * 2
FUNCTIONS = {
    "restricted": _tape(restricted, *[ARRAY] * 5, *_PLACES * 4),
    "interpolated": _tape(interpolated(2, False), *[ARRAY] * 3, *_PLACES, INTEGER),
    "corrected": _tape(interpolated(2, True), *[ARRAY] * 3, *_PLACES, INTEGER, ARRAY),
    "coloured": _tape(coloured, ARRAY, ARRAY, REAL, ARRAY),
}
"""The operations of a sweep along one axis, for legs of cycles: see `CycleLeg`."""
