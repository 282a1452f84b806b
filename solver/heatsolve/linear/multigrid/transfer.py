"""Residuals to the next coarser level, corrections and solutions back: one axis after the other.

On a device both axes of a plane at once, if arrays hold all of them (see `plane`).

Arrays are seen as pairs of layers, as in `interpolation`. Where a block begins decides which
elements belong to the coarse point q; the shifts that lead to them are integers that a sweep is
given.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from heatsolve.backends import Backend
from heatsolve.linear.multigrid.coarsening import AxisCoarsening
from heatsolve.linear.multigrid.interpolation import (
    Interpolation,
    Parity,
    around,
    parities_of,
    roomy,
)
from heatsolve.linear.multigrid.plane import PlaneInterpolation, PlaneRestriction
from heatsolve.stencil.language import shifted

Exchange = Callable[[Any], None]


@dataclass(frozen=True)
class AxisTransfer:
    """One halved axis of a block: how it is halved, and the block's bounds on both levels.

    `fine` and `coarse` are the first number in the arrays (that of their element 0) and how many
    unknowns they hold. `exchange` brings one layer below and two above into an array of the fine
    level.
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
    def offset(self) -> int:
        """The coarse element c takes from the elements 2c + offset ... 2c + offset + 3."""
        return 2 * self.coarse[0] - 2 - self.fine[0]


class Transfer:
    """Between a level and the next one; `transfers` holds the axes that are halved.

    `coarse_b` and `coarse_u` belong to the coarse level. The arrays between them are made when they
    are first needed: a level that is halved in passes of the backend needs none.
    """

    def __init__(
        self,
        backend: Backend,
        transfers: Mapping[int, AxisTransfer],
        shape: tuple[int, ...],
        coarse_b: Any,
        coarse_u: Any,
    ):
        extents = list(shape)
        self._backend, self.transfers, self._shape = backend, transfers, shape
        self._coarse_b, self._coarse_u, self._extents = coarse_b, coarse_u, extents
        for number, along in transfers.items():
            room = extents[number] + 1  # for the second layer above
            reach = along.coarse[1] + (along.offset + 3) // 2  # the pair of the last element taken
            extents[number] = max(room + room % 2, 2 * (reach + 1))
        self.halves_all = len(transfers) == len(shape)
        self._lines = [
            Lines.of(backend, along, extents[number]) for number, along in transfers.items()
        ]
        self._plane: PlaneRestriction | None = None
        if at_once(backend, transfers, shape):
            coarsenings = [along.coarsening for along in transfers.values()]
            self._plane = PlaneRestriction(backend, coarse_b, coarsenings)
            weights = [coarsening.weights for coarsening in coarsenings]
            unknowns = [along.fine[1] for along in transfers.values()]
            self._plane_up = PlaneInterpolation(backend, coarse_u, weights, unknowns)
            self._exchanges = [along.exchange(tuple(extents)) for along in transfers.values()]

    @cached_property
    def finer(self) -> Any:
        """The array of the fine level that is restricted and into which is interpolated.

        Where the interpolation leaves it alone its ghosts stay 0.
        """
        return self._backend.zeros(self._extents)

    @cached_property
    def _steps(self) -> "list[Step]":
        backend, extents, held = self._backend, list(self._extents), list(self._shape)
        steps: list[Step] = []
        fine = memory = self.finer
        following = [*list(self.transfers)[1:], None]
        transfers = zip(self.transfers.items(), self._lines, following, strict=True)
        for (number, along), lines, then in transfers:
            held[number] = extents[number] = along.coarse[1] + 2
            if then is None:
                below, down, up = None, self._coarse_b, self._coarse_u
            else:
                below, down = roomy(backend, extents, then)
                up = down
            steps.append(Step(backend, along, lines, number, fine, memory, down, up, held))
            memory, fine = below, down
        return steps

    @property
    def shares(self) -> list[Any]:
        """For each axis, what a coarse point takes of the four points 2q - 2 ... 2q + 1."""
        return [share for lines in self._lines for share in lines.shares]

    @property
    def weights(self) -> list[Any]:
        """For each axis, what the points 2q, and 2q + 1, take of the coarse points q and q + 1."""
        return [weight for lines in self._lines for weight in lines.weights]

    def restrict(self) -> None:
        """b of the coarse level from the residual in `finer`."""
        if self._plane is None:
            for step in self._steps:
                step.restrict(step.lines.shares)
        else:
            self._exchange()
            self._plane(self.finer, self._plane.shares)

    def _exchange(self) -> None:
        """The ghosts of `finer` that a plane's restriction reads."""
        for exchange in self._exchanges:
            exchange(self.finer)

    def average(self, quantity: Any = None) -> None:
        """b of the coarse level, ghosts included, from means of `finer` over coarse volumes.

        No mean takes a ghost along with a point: ghosts are carried over, and along a wall
        averaged like points. So one array brings a right side and the values at the walls.
        Or from an array of the level that `can_average`: then `finer` holds its ghosts only.
        """
        plane, inside_is_made = self._plane, False
        if plane is not None and quantity is None:
            self._exchange()
            plane(self.finer, plane.means)
            inside_is_made = True
        elif plane is not None and plane.takes_alone(quantity.shape):
            plane(quantity, plane.means)
            quantity, inside_is_made = None, True
        for step in self._steps:
            step.restrict(step.lines.means, quantity, along_walls=inside_is_made)
            step.carry_ghosts()
            quantity = None  # what follows goes on from there

    def can_average(self, shape: tuple[int, ...]) -> bool:
        """Whether means can be taken of an array as the level has it, that has no neighbours.

        That is in a plane, where the first axis to be halved is that of rows; and the rows must
        make up all pairs.
        """
        return takes_rows(self.transfers, shape) and self.transfers[0].coarse[1] < shape[0] // 2

    def interpolate(self, into: Any = None) -> None:
        """`finer` from u of the coarse level, all its ghosts up to date.

        Or it is added to the unknowns of the array `into`, if that `takes_rows`.
        """
        if into is not None and self._plane is not None:
            self._plane_up(into, adds=True)
            return
        last, *others = self._steps
        for step in reversed(others):
            step.interpolate()
        last.interpolate(into, adds=into is not None)


def takes_rows(transfers: Mapping[int, AxisTransfer], shape: Sequence[int]) -> bool:
    """Whether an array of a level can be seen as pairs of rows, the axis of rows being halved."""
    return len(shape) < 3 and 0 in transfers


def at_once(backend: Backend, transfers: Mapping[int, AxisTransfer], shape: Sequence[int]) -> bool:
    """Whether both axes of a plane are halved in one sweep: see `plane`.

    A host's loops along an axis are faster in two.
    """
    return (
        backend.on_device
        and len(shape) == len(transfers) == 2
        and all(along.is_whole for along in transfers.values())
    )


@dataclass(frozen=True)
class Lines:
    """What is taken along one axis: of fine layers and, by `parities`, of coarse ones."""

    shares: list[Any]
    means: list[Any]
    parities: list[Parity]

    @classmethod
    def of(cls, backend: Backend, along: AxisTransfer, extent: int) -> "Lines":
        """Along an axis of this extent in the fine array."""
        fine, (first, count) = along.fine[0], along.coarse
        kinds = along.coarsening.shares, along.coarsening.mean_shares
        shares, means = (
            [backend.to_device(line[first : first + count + 2].reshape(1, -1, 1)) for line in lines]
            for lines in kinds
        )
        return cls(
            shares,
            means,
            parities_of(backend, along.coarsening.weights, extent, fine, first, count),
        )

    @property
    def weights(self) -> list[Any]:
        """Of both parities."""
        return [weight for half in self.parities for weight in half.weights]


class Step:
    """The transfer along one axis, between an array `fine`, in `memory`, and those below it.

    `held`: how much these hold along each axis, ghosts included.
    """

    def __init__(
        self,
        backend: Backend,
        along: AxisTransfer,
        lines: Lines,
        number: int,
        fine: Any,
        memory: Any,
        down: Any,
        up: Any,
        held: Sequence[int],
    ):
        self._sweep, self._part, self._around = backend.sweep, backend.part, tuple(held)
        before, after = around(fine.shape, number)
        self._before, self._after = before, after
        (fine_first, self._fine_count), (coarse_first, self._count) = along.fine, along.coarse
        # Rows of the coarse level's arrays may have room for more elements.
        pairs, coarse = fine.shape[number] // 2, (before, down.shape[number], after)
        self._fine, self._exchange = fine, along.exchange(fine.shape)
        self._number, self._whole_down = number, down
        self._off_centre = [
            (coarse - coarse_first, place - fine_first)
            for coarse, place in along.coarsening.off_centre
            if 1 <= coarse - coarse_first <= self._count
        ]
        self._pairs = fine.reshape((before, pairs, 2 * after))
        self._down, self.lines = down.reshape(coarse), lines
        self._taps = [divmod(place, 2) for place in range(along.offset, along.offset + 4)]
        self.interpolate = Interpolation(backend, number, up, memory, fine.shape, lines.parities)

    def restrict(
        self, shares: Sequence[Any], quantity: Any = None, along_walls: bool = False
    ) -> None:
        """Into the array below; from another one than the own, if `Transfer.can_average` it.

        In a plane perhaps only what lies beyond the walls of the other axis.
        """
        pairs, after = self._pairs, self._after
        if quantity is None:
            self._exchange(self._fine)
        else:
            after = math.prod(quantity.shape[1:])
            pairs = self._part(quantity, (1, quantity.shape[0] // 2, 2 * after))
        taps = [shift for pair, parity in self._taps for shift in (pair, parity * after)]
        layers, widths = (1, 1 + self._count), [(0, self._before), (0, after)]
        parts = [widths]
        if along_walls:
            other = 1 - self._number
            ghosts = (0, self._around[other] - 1)
            parts = [[(g, g + 1), (0, 1)] if other == 0 else [(0, 1), (g, g + 1)] for g in ghosts]
        for before, behind in parts:
            self._sweep(restricted, self._down, (before, layers, behind), pairs, *shares, *taps)

    def carry_ghosts(self) -> None:
        """The ghosts at both ends of the axis, and those along walls that a mean would displace."""
        around = [(0, extent) for extent in self._whole_down.shape]
        for coarse, fine in self._off_centre:
            for number, extent in enumerate(self._around):
                for ghost in (0, extent - 1) if number != self._number else ():
                    beside = list(around)
                    beside[number] = (ghost, ghost + 1)
                    self._carry(beside, coarse, fine)
        for coarse, fine in ((0, 0), (self._count + 1, self._fine_count + 1)):
            self._carry(around, coarse, fine)

    def _carry(self, around: Sequence[tuple[int, int]], coarse: int, fine: int) -> None:
        """A layer across the axis as it is."""
        region, distances = list(around), [0] * len(around)
        region[self._number] = (coarse, coarse + 1)
        distances[self._number] = fine - coarse
        self._sweep(shifted, self._whole_down, tuple(region), self._fine, *distances)


def restricted(i, j, k, pairs, a, b, c, d, j0, k0, j1, k1, j2, k2, j3, k3):
    """The mean over a coarse volume, from the points 2q - 2 ... 2q + 1."""
    return (
        a[i, j, k] * pairs[i, j + j0, k + k0]
        + b[i, j, k] * pairs[i, j + j1, k + k1]
        + c[i, j, k] * pairs[i, j + j2, k + k2]
        + d[i, j, k] * pairs[i, j + j3, k + k3]
    )
