"""Levels of multigrid whose blocks overlap, so that a pass makes many sweeps for one exchange.

A process takes layers of its neighbours into its arrays, enough of them that after all sweeps of
half a cycle its own points have what they would have without any blocks: what is stale at the
outermost layer spoils one layer a sweep. It then works on the block with its layers as if it were
alone. That is so along the slowest axis only, where blocks are slabs, and where a machine makes
half a cycle in one pass: for single sweeps an exchange each is cheaper than sweeps of layers that
others own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from heatsolve.backends import Accumulator, Backend, Region
from heatsolve.linear.multigrid.coarsening import AxisCoarsening
from heatsolve.linear.multigrid.levels import FusedLevel, Legs, Level, Plan, Step, plan_of
from heatsolve.linear.multigrid.partition import HostCoefficient
from heatsolve.linear.multigrid.smoothers import Relaxation, Smoother
from heatsolve.linear.multigrid.transfer import AxisTransfer, Transfer
from heatsolve.parallel.halo import Halo
from heatsolve.stencil.grid import Grid
from heatsolve.stencil.language import shifted, term_of

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

    @classmethod
    def of(cls, plan: Plan, layers: int) -> "Overlap":
        """That of a level with so many layers."""
        slowest, *others = [metric.axis for metric in plan.metrics]
        partition = plan.partition
        (low, high), *_ = partition.blocks()
        place, last = partition.place()[0], partition.dims[0] - 1
        below, above = ((layers - 1) * (slowest.periodic or place != end) for end in (0, last))
        below += (low - below) % 2
        first, unknowns = low - below, below + high - low + above
        start = AWAY if slowest.periodic else first
        lone = replace(slowest, block=(start, start + unknowns), periodic=False)
        beside = replace(slowest, block=(low, high), margin=(below, above))
        halo = plan.system.halo.of(Grid((beside, *others)), layers=layers)
        return cls(Grid((lone, *others)), first, halo, plan.system.backend)

    @property
    def own(self) -> Region:
        return self.halo.grid.interior

    @property
    def below(self) -> int:
        """Layers of the neighbour below."""
        return self.halo.grid.axes[0].margin[0]

    def take(self, wide: Any, array: Any) -> None:
        """Fill an array from one of the block alone, its ghosts included, and bring the layers."""
        (low, high), *_ = self.own
        region = ((low - 1, high + 1), *[(0, extent) for extent in self.grid.shape[1:]])
        self.backend.sweep(shifted, wide, region, array, *self._distances(-1))
        self.halo.exchange(wide)

    def give(self, array: Any, wide: Any, interior: Region) -> None:
        """The reverse, for the unknowns of the block alone."""
        self.backend.sweep(shifted, array, interior, wide, *self._distances(1))

    def _distances(self, sign: int) -> tuple[int, ...]:
        return (sign * self.below, *[0] * (self.grid.dimension - 1))

    def widened(self, coefficient: HostCoefficient) -> HostCoefficient:
        """A coefficient at all points of a block with layers of its neighbours."""
        if not coefficient.varies[0]:
            return coefficient
        layers = self.halo.depth + 2
        values = np.moveaxis(coefficient.widened(0, layers), -1, 0)
        count = self.grid.axes[0].unknowns + (coefficient.along == 0)
        return replace(coefficient, values=values[layers - self.below :][:count])

    def halved(self, coarsening: AxisCoarsening) -> AxisTransfer:
        """How the slowest axis of a block is halved, whose layers have come already."""
        axis, whole = self.grid.axes[0], coarsening.fine.axis
        ends = not whole.periodic and self.first + axis.unknowns == whole.all_unknowns
        count = coarsening.count - self.first // 2 if ends else axis.unknowns // 2
        return alone(coarsening, (axis.start, axis.unknowns), (axis.start // 2, count))


@dataclass(frozen=True)
class Overlapping:
    """A level whose blocks overlap, all but the next level.

    `plan` has the arrays of the `overlap`, `interior` is that of the block alone. The passes lead
    to arrays `b` and `other` of the next level, which has the overlap `below`.
    """

    plan: Plan
    interior: Region
    relaxation: Relaxation
    step: Step
    legs: Legs
    overlap: Overlap
    below: Overlap
    b: Any
    other: Any


def overlapping(
    plans: Sequence[Plan], steps: Sequence[Step], smoothers: Sequence[Smoother]
) -> list[Overlapping]:
    """The levels that can overlap: from the first one on, as long as they can (asks all)."""
    result: list[Overlapping] = []
    pairs = zip(pairwise(plans), steps, pairwise(smoothers), strict=True)
    for (fine, coarse), step, (smoother, next_smoother) in pairs:
        layers, backend = layers_of(smoother), fine.system.backend
        if not (step.is_in_blocks and can_overlap(fine, coarse, step, layers)):
            break
        overlap, below = Overlap.of(fine, layers), Overlap.of(coarse, layers_of(next_smoother))
        grid, shape = overlap.grid, backend.padded(overlap.grid.shape)
        if result:
            b, other = result[-1].b, result[-1].other
        else:  # a source that is the same in all layers is so in those of others
            constant = fine.system.b.shape[0] == 1
            b, other = fine.system.b if constant else backend.zeros(shape), backend.zeros(shape)
        coefficients = [overlap.widened(each) for each in fine.coefficients]
        args = fine.system, fine.partition, fine.metrics, coefficients, grid, Halo(grid, backend)
        plan = plan_of(*args, b, backend.zeros(shape), other)
        relaxation = Relaxation(plan.system, smoother, shape)
        transfers = {
            axis: alone(each, (0, grid.axes[axis].unknowns), (0, each.count))
            for axis, each in step.coarsenings.items()
        }
        transfers[0] = overlap.halved(step.coarsenings[0])
        # Rows of the next level's arrays, in which its points are where they would be alone.
        first, rows = overlap.first // 2 - below.first, transfers[0].coarse[1] + 2
        shape = backend.padded(below.grid.shape)
        b, other = backend.zeros(shape), backend.zeros(shape)
        down, up = (
            backend.part(array, (rows, *shape[1:]), first * math.prod(shape[1:]))
            for array in (b, other)
        )
        transfer = Transfer(backend, transfers, grid.shape, down, up)
        legs = Legs(plan, relaxation, transfer, down, up, (rows, *below.grid.shape[1:]))
        if not all(fine.partition.ranks.gather(bool(legs.passes))):
            break
        interior, wide_step = fine.system.grid.interior, replace(step, transfer=transfer)
        result.append(
            Overlapping(plan, interior, relaxation, wide_step, legs, overlap, below, b, other)
        )
    return result


def can_overlap(fine: Plan, coarse: Plan, step: Step, layers: int) -> bool:
    """Whether blocks of both levels are slabs, thick enough; all processes find the same."""
    ring, b = fine.metrics[0].axis.periodic, fine.system.b
    return (
        fine.system.backend.on_device
        and are_slabs(fine, THICK * layers)
        and are_slabs(coarse, layers)
        and (b.shape[0] == 1 or b.shape == fine.u.shape)
        and not (ring and not is_even(step.coarsenings[0]))
    )


def are_slabs(plan: Plan, thickness: int) -> bool:
    """Whether blocks are slabs of this thickness, on a ring of an even number of points."""
    (parts, *others), ends = plan.partition.dims, plan.partition.ends[0]
    return (
        parts > 1
        and all(number == 1 for number in others)
        and int(np.diff(ends).min()) >= thickness
        and not (plan.metrics[0].axis.periodic and ends[-1] % 2 == 1)
    )


def is_even(coarsening: AxisCoarsening) -> bool:
    """Whether all points of an axis are halved alike: on a ring no block then has a place."""
    columns = [column for half in coarsening.weights for column in half.T]
    lines = [*coarsening.restriction_weights, *columns]
    full = coarsening.fine.ratio.size == 1
    return full and all(bool(np.all(line[1:-1] == line[1])) for line in lines)


def alone(
    coarsening: AxisCoarsening, fine: tuple[int, int], coarse: tuple[int, int]
) -> AxisTransfer:
    """The transfer along an axis whose arrays need no neighbours."""
    return AxisTransfer(coarsening, fine, coarse, lambda shape: lambda array: None)


class OverlappedLevel(FusedLevel):
    """A fused level whose arrays hold the block and layers of its neighbours."""

    overlaps = True

    def __init__(self, overlapping: Overlapping, coarse: Level):
        args = overlapping.plan, overlapping.relaxation, coarse, overlapping.step
        super().__init__(*args, overlapping.legs)
        self._overlap, self._below = overlapping.overlap, overlapping.below
        self._interior = overlapping.interior
        self._b, self._other = overlapping.b, overlapping.other
        # Whether u and b have been taken into the arrays, and whether u is behind them since.
        self._is_taken = self._is_ahead = False

    def add_norm_on_the_way(self, norm: Accumulator, restricts: bool) -> bool:
        return False  # it would count the neighbours' points, too

    def descend(self, u: Any, other: Any) -> Any:
        self._overlap.halo.exchange(u)
        result = super().descend(u, other)
        self._exchange_residual()
        return result

    def descend_from_zero(self) -> Any:
        result = super().descend_from_zero()
        self._exchange_residual()
        return result

    def _exchange_residual(self) -> None:
        """What b of the next level needs of other processes."""
        if self.coarse.overlaps:
            self._below.halo.exchange(self._b)
        else:
            system = self.coarse.system
            self._below.give(system.b, self._b, system.grid.interior)

    def _exchange_correction(self) -> None:
        if self.coarse.overlaps:
            self._below.halo.exchange(self._other)
        else:
            self._below.take(self._other, self.coarse.other)

    def residual_norm(self, u: Any, into: Accumulator) -> None:
        """Add the terms of a norm of b - A u at the points of the block alone."""
        system = self.system
        self._overlap.halo.exchange(u)
        point = term_of(system.residual, into.kind)
        args = (u, system.b, *system.coefficients)
        system.backend.sweep(point, into, self._overlap.own, *args)

    # ---- between its arrays and those of the block ----

    def take(self, u: Any, b: Any) -> None:
        """Take u, into both arrays, and b from the block, unless they are here; a cycle follows."""
        if not self._is_taken:
            for array in (self.u, self.other):
                self._overlap.take(array, u)
            self.take_b(b)
        self._is_taken = self._is_ahead = True

    def take_b(self, b: Any) -> None:
        """The same for b alone, each time."""
        if self.system.b is not b:
            self._overlap.take(self.system.b, b)

    def give(self, u: Any, own: Any) -> None:
        """Fill u of the block from an array of this level."""
        self._overlap.give(u, own, self._interior)

    def solution(self, u: Any, own: Any) -> Any:
        """u of the block, filled from an array of this level if it is behind it."""
        if self._is_ahead:
            self.give(u, own)
            self._is_ahead = False
        return u

    def forget(self) -> None:
        """Take u and b anew before the next cycle."""
        self._is_taken = self._is_ahead = False
