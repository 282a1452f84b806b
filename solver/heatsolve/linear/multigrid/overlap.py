"""Levels of multigrid whose blocks overlap, so that a pass makes many sweeps for one exchange.

The arrays of a process hold layers of its neighbours' blocks, too: as many as the sweeps of a cycle
spoil, one layer for each sweep, because the outermost layer is not updated. The process then works
on its block and these layers as if there were no other process, and its own points get the values
of a run on one process. The next level's solution is right in as many of the neighbours' layers as
its interpolation reads, so it is not exchanged.

Blocks overlap along the slowest axis only, where they are slabs and the backend makes half a cycle
in one pass. For single sweeps, an exchange before each costs less than sweeps of neighbours'
layers.
"""

import math
from collections.abc import Callable, Iterator, Sequence
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
from heatsolve.parallel.halo import Halo, Neighbours, inner_and_rim, replaced
from heatsolve.stencil.grid import Grid
from heatsolve.stencil.language import shifted, term_of

READ_BY_DESCENT = 3
"""The layers that a descent without sweeps reads: the residual at a point reads one layer more, its
restriction two layers below the block."""
MIN_THICKNESS = 3
"""The least thickness of a block, in multiples of the layers of its overlap."""
MOST_ELEMENTS = 1 << 17
"""The most elements of further layers that are computed and sent to save an exchange on the next
level: to send and to compute them takes less than half the time of an exchange (H200)."""
PERIODIC_START = 2
"""The number given to a block's first unknown on a periodic axis: even, and away from the ends."""


def layers_of(smoothers: Sequence[Smoother]) -> Iterator[int]:
    """The layers that the overlap of each level needs, from the finest level on.

    Each sweep spoils one layer, and the descent reads READ_BY_DESCENT more. On the finest level the
    residual after the ascent is wanted for its norm, unless there is no pre-smoothing: the descent
    then adds it. On other levels the result is wanted in the layers from which the next finer level
    is corrected. The outermost layer holds no unknowns, so it gets no correction.
    """
    wanted = 1 if smoothers[0].before else 0
    for smoother in smoothers:
        before, corrected = len(smoother.before), wanted + len(smoother.after)
        yield max(before + READ_BY_DESCENT, before + corrected, corrected + 1)
        wanted = (corrected + 1) // 2 + 1


def with_layers_below(
    least: Sequence[int], plans: Sequence[Plan], smoothers: Sequence[Smoother]
) -> list[int]:
    """The layers of each level, the `least` or more, so that few of these plans need exchanges.

    If a level has enough layers, restriction finds all layers of the next level's b: two layers
    for each, and the layers that the descent spoils.
    """
    layers = list(least)
    for number in reversed(range(len(plans) - 1)):
        wide, layer = _layers_for(layers[number + 1], smoothers[number]), plans[number].u.shape[1:]
        few = (wide - layers[number]) * math.prod(layer) <= MOST_ELEMENTS
        if few and are_slabs(plans[number], MIN_THICKNESS * wide):
            layers[number] = max(layers[number], wide)
    return layers


def _layers_for(below: int, smoother: Smoother) -> int:
    """The layers from which restriction finds `below` layers of the next level's b."""
    return 2 * below + len(smoother.before) + READ_BY_DESCENT


@dataclass(frozen=True)
class Overlap:
    """The block of a level with layers of its neighbours.

    `grid`: the grid of its arrays, as if there were no other process. The first unknown in the
    arrays is number `first` + 1 of the whole axis, an odd number, like all points of the next
    level. `halo` brings the layers; the process's own points are the region `own`.
    """

    grid: Grid
    first: int
    halo: Halo
    backend: Backend

    @classmethod
    def of(cls, plan: Plan, layers: int) -> "Overlap":
        """The overlap of a level with this number of layers."""
        slowest, *others = [metric.axis for metric in plan.metrics]
        partition = plan.partition
        (low, high), *_ = partition.blocks()
        place, last = partition.place()[0], partition.dims[0] - 1
        below, above = ((layers - 1) * (slowest.periodic or place != end) for end in (0, last))
        below += (low - below) % 2
        first, unknowns = low - below, below + high - low + above
        start = PERIODIC_START if slowest.periodic else first
        local = replace(slowest, block=(start, start + unknowns), periodic=False)
        with_margin = replace(slowest, block=(low, high), margin=(below, above))
        halo = plan.system.halo.of(Grid((with_margin, *others)), layers=layers)
        return cls(Grid((local, *others)), first, halo, plan.system.backend)

    @property
    def own(self) -> Region:
        return self.halo.grid.interior

    @property
    def below(self) -> int:
        """Layers of the neighbour below."""
        return self.halo.grid.axes[0].margin[0]

    def copy_in(self, overlapped: Any, array: Any) -> None:
        """Copy an array of the block into an overlapped array; exchange its layers."""
        self.copy_own(overlapped, array)
        self.halo.exchange(overlapped)

    @property
    def of_block(self) -> Region:
        """All points of the block's array, ghosts included."""
        (low, high), *_ = self.own
        return ((low - 1, high + 1), *[(0, extent) for extent in self.grid.shape[1:]])

    def copy_own(self, overlapped: Any, array: Any) -> None:
        """Copy an array of the block, ghosts included, into an overlapped array."""
        self.backend.sweep(shifted, overlapped, self.of_block, array, *self._offsets(-1))

    def copy_ghosts(self, overlapped: Any, array: Any) -> None:
        """Copy the ghosts of an array of the block into an overlapped array."""
        for axis, (low, high) in enumerate(self.of_block):
            for end in ((low, low + 1), (high - 1, high)):
                region = replaced(self.of_block, axis, end)
                self.backend.sweep(shifted, overlapped, region, array, *self._offsets(-1))

    def copy_whole(self, overlapped: Any, array: Any, count: int) -> None:
        """Copy all layers of an overlapped array from an array of the whole axis, which has `count`
        unknowns and a ghost at each end."""
        first, last = self.first, count + 1
        extent, *others = self.grid.shape
        bounds = 0, min(max(-first, 0), extent), min(max(last + 1 - first, 0), extent), extent
        for (low, high), around in zip(pairwise(bounds), (count, 0, -count), strict=True):
            region = ((low, high), *[(0, other) for other in others])
            distances = (first + around, *[0] * len(others))
            self.backend.sweep(shifted, overlapped, region, array, *distances)

    def own_part(self, overlapped: Any, shape: tuple[int, ...]) -> Any:
        """The part of an overlapped array that is an array of the block; None: its rows differ."""
        if overlapped.shape[1:] != shape[1:]:
            return None
        first = self.own[0][0] - 1
        return self.backend.part(overlapped, shape, first * math.prod(shape[1:]))

    def copy_out(self, array: Any, overlapped: Any, interior: Region) -> None:
        """Copy the unknowns of the block from an overlapped array."""
        self.backend.sweep(shifted, array, interior, overlapped, *self._offsets(1))

    def _offsets(self, sign: int) -> tuple[int, ...]:
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
        """The transfer along the slowest axis, with the neighbours' layers in the arrays."""
        axis, whole = self.grid.axes[0], coarsening.fine.axis
        ends = not whole.periodic and self.first + axis.unknowns == whole.all_unknowns
        count = coarsening.count - self.first // 2 if ends else axis.unknowns // 2
        return local_transfer(coarsening, (axis.start, axis.unknowns), (axis.start // 2, count))


@dataclass(frozen=True)
class OverlappedPlan:
    """The parts of a level with overlapping blocks, except the next level.

    `plan` has the arrays of the `overlap`. `interior` is the region of the unknowns in arrays of
    the block. The passes restrict to `b` and interpolate from `other`, which are arrays of the next
    level with the overlap `below`; `finds_layers`: whether restriction finds enough layers of b.
    """

    plan: Plan
    interior: Region
    relaxation: Relaxation
    step: Step
    legs: Legs
    overlap: Overlap
    below: Overlap
    finds_layers: bool
    b: Any
    other: Any


def overlapped_plans(
    plans: Sequence[Plan], steps: Sequence[Step], smoothers: Sequence[Smoother]
) -> list[OverlappedPlan]:
    """The plans of the finest levels, above the first that cannot overlap (asks all processes)."""
    result: list[OverlappedPlan] = []
    count, least = 0, list(layers_of(smoothers))
    blocks = [
        plan if step.gathering is None else step.gathering.plan
        for plan, step in zip(plans[1:], steps, strict=True)
    ]
    while count < len(steps) and steps[count].is_in_blocks:
        pair = plans[count], blocks[count]
        if not can_overlap(*pair, steps[count], least[count : count + 2]):
            break
        count += 1
    # A level is right in its `layers`. It stores and sends `width` layers: what lies between may be
    # wrong, and never reaches the others.
    layers = with_layers_below(least, plans[:count], smoothers)
    width, backend = 0, plans[0].system.backend
    for number in range(count):
        fine, coarse, step = plans[number], blocks[number], steps[number]
        width = max(layers[number], width // 2 + 2)  # room for all that restriction finds
        next_width = max(layers[number + 1], width // 2 + 2)
        overlap, below = Overlap.of(fine, width), Overlap.of(coarse, next_width)
        grid, shape = overlap.grid, overlap.grid.shape
        # In 2D rows of the finest level are as long as the block's, so that a solve copies nothing.
        # In 3D padded rows save more than copies take: a solve of nine cycles on two H200 with 527
        # cubed unknowns each takes 41.3 ms instead of 45.1.
        if result or grid.dimension == 3:
            shape = backend.padded(shape)
        if result:
            b, other = result[-1].b, result[-1].other
        else:  # a source constant along the axis is the same in the neighbours' layers
            constant = fine.system.b.shape[0] == 1
            b, other = fine.system.b if constant else backend.zeros(shape), backend.zeros(shape)
        coefficients = [overlap.widened(field) for field in fine.coefficients]
        args = fine.system, fine.partition, fine.metrics, coefficients, grid, Halo(grid, backend)
        plan = plan_of(*args, b, backend.zeros(shape), other)
        relaxation = Relaxation(plan.system, smoothers[number], shape)
        transfers = {
            axis: local_transfer(halving, (0, grid.axes[axis].unknowns), (0, halving.count))
            for axis, halving in step.coarsenings.items()
        }
        transfers[0] = overlap.halved(step.coarsenings[0])
        # The rows of the next level's arrays that one process alone would have for this block.
        first, rows = overlap.first // 2 - below.first, transfers[0].coarse[1] + 2
        shape = backend.padded(below.grid.shape)
        b, other = backend.zeros(shape), backend.zeros(shape)
        down, up = (
            backend.part(array, (rows, *shape[1:]), first * math.prod(shape[1:]))
            for array in (b, other)
        )
        transfer = Transfer(backend, transfers, grid.shape, down, up)
        coarse_shape = rows, *below.grid.shape[1:]
        legs = Legs(plan, relaxation, transfer, down, up, coarse_shape, overlap.own[0])
        if not all(fine.partition.ranks.gather(bool(legs.passes))):
            break
        interior, overlapped_step = fine.system.grid.interior, replace(step, transfer=transfer)
        result.append(
            OverlappedPlan(
                plan, interior, relaxation, overlapped_step, legs, overlap, below,
                layers[number] >= _layers_for(layers[number + 1], smoothers[number]), b, other,
            )
        )  # fmt: skip
    return result


def can_overlap(fine: Plan, coarse: Plan, step: Step, layers: Sequence[int]) -> bool:
    """Whether the blocks of both levels, with these layers, are thick enough slabs; the same on all
    processes."""
    periodic, b = fine.metrics[0].axis.periodic, fine.system.b
    return (
        fine.system.backend.on_device
        and are_slabs(fine, MIN_THICKNESS * layers[0])
        and are_slabs(coarse, max(layers))
        and (b.shape[0] == 1 or b.shape == fine.u.shape)
        and not (periodic and not is_uniform(step.coarsenings[0]))
    )


def are_slabs(plan: Plan, thickness: int) -> bool:
    """Whether blocks are slabs of this thickness; a periodic axis must have an even point count."""
    partition, ends = plan.partition, plan.partition.ends[0]
    return (
        partition.divided
        and partition.in_slabs
        and int(np.diff(ends).min()) >= thickness
        and not (plan.metrics[0].axis.periodic and ends[-1] % 2 == 1)
    )


def is_uniform(coarsening: AxisCoarsening) -> bool:
    """Whether all points of an axis are halved by the same weights, whatever their position."""
    columns = [column for half in coarsening.weights for column in half.T]
    lines = [*coarsening.restriction_weights, *columns]
    full = coarsening.fine.ratio.size == 1
    return full and all(bool(np.all(line[1:-1] == line[1])) for line in lines)


def local_transfer(
    coarsening: AxisCoarsening, fine: tuple[int, int], coarse: tuple[int, int]
) -> AxisTransfer:
    """The transfer along an axis whose arrays need no exchange."""
    return AxisTransfer(coarsening, fine, coarse, lambda shape: lambda array: None)


class OverlappedLevel(FusedLevel):
    """A fused level whose arrays hold the block and layers of its neighbours."""

    overlaps = True

    def __init__(self, plan: OverlappedPlan, coarse: Level):
        super().__init__(plan.plan, plan.relaxation, coarse, plan.step, plan.legs)
        self._overlap, self._below = plan.overlap, plan.below
        self._interior, self._ranks = plan.interior, plan.plan.partition.ranks
        self._b, self._other, self._finds_layers = plan.b, plan.other, plan.finds_layers
        # The layers that a descent behind a cycle reads; and those that only another cycle reads,
        # which travel with its b, because the last cycle of an iteration has no successor.
        self._nearest: Neighbours | None = None
        halo = plan.overlap.halo
        sends_b = coarse.overlaps and not plan.finds_layers
        if sends_b and not self.smoother.before and halo.depth > READ_BY_DESCENT:
            self._nearest = halo.layers(0, READ_BY_DESCENT)
            self._others = halo.layers(0, halo.depth, beyond=READ_BY_DESCENT)
        # Whether u and b have been copied into the arrays, and whether the arrays are newer than u.
        self.is_copied_in = self.is_newer = False

    def fuse_norm(self, norm: Accumulator, restricts: bool) -> bool:
        before = dict(self.passes)
        if all(self._ranks.gather(super().fuse_norm(norm, restricts))):
            return True
        self.passes.clear()
        self.passes.update(before)
        return False

    def descend(self, u: Any, other: Any, *along: Any) -> Any:
        """As `FusedLevel.descend`; the layers of the arrays `along` are exchanged, too."""
        self.bring(u, *along)
        return super().descend(u, other)

    def descend_with_norm(self, u: Any, *along: Any) -> None:
        if self._nearest is None or along:
            self.bring(u, *along)
        else:
            self._nearest.exchange(u)
        super().descend_with_norm(u)

    def solve_next(self, cycle_index: int, u: Any = None) -> None:
        # Not in the descent, which adds the norm: after the last cycle nobody needs these layers.
        if u is None or self._nearest is None:
            self._exchange_residual()
        else:
            self._below.halo.across_blocks.exchange_with([self._b], (self._others, u))
        super().solve_next(cycle_index)

    def descend_from_zero(self) -> Any:
        result = super().descend_from_zero()
        self._exchange_residual()
        return result

    def bring(self, *arrays: Any) -> None:
        """Bring the neighbours' layers. Ghosts of periodic axes are not needed: passes read the
        other end of the array."""
        self._overlap.halo.exchange_along(0, *arrays)

    def sweep_and_bring(self, sweep: Callable[[Region], None], interior: Region, u: Any) -> None:
        """Make a sweep over the block's `interior` that gives u and b, the layers that leave first,
        and bring the neighbours' layers while it makes the others."""
        across = self._overlap.halo.across_blocks
        inner, rim = inner_and_rim(interior, {0: across.present}, self._overlap.halo.depth)
        across.exchange_beside(sweep, inner, rim, (u, self.system.b))

    def _exchange_residual(self) -> None:
        """Bring the layers of the next level's b from other processes, unless they are there."""
        if self.coarse.overlaps:
            if not self._finds_layers:
                self._below.halo.exchange_along(0, self._b)
        elif self._gathering is not None:
            self._gathering.bring(self._b, self._below.below)
        else:
            system = self.coarse.system
            self._below.copy_out(system.b, self._b, system.grid.interior)

    def _exchange_correction(self) -> None:
        if self.coarse.overlaps:
            self._below.halo.wrap(self._other)  # the neighbours' layers are right where needed
        elif self._gathering is not None:
            self._exchange_ghosts()
            count = self._gathering.whole.system.grid.axes[0].unknowns
            self._below.copy_whole(self._other, self.coarse.other, count)
        else:
            self._below.copy_in(self._other, self.coarse.other)

    def residual_norm(self, u: Any, into: Accumulator) -> None:
        """Add the terms of a norm of b - A u at the block's own points."""
        system = self.system
        self._overlap.halo.exchange(u)
        point = term_of(system.residual, into.kind)
        args = (u, system.b, *system.coefficients)
        system.backend.sweep(point, into, self._overlap.own, *args)

    # ---- copies between its arrays and the arrays of the block ----

    def own_parts(self, u: Any, b: Any) -> list[Any]:
        """The parts of u, `other` and b that are arrays of the block; an empty list if a part
        cannot be. The level may use the given b itself."""
        parts = [self._overlap.own_part(array, u.shape) for array in (self.u, self.other)]
        own_b = self.system.b
        parts.append(b if own_b is b else self._overlap.own_part(own_b, u.shape))
        return [] if any(part is None for part in parts) else parts

    def copy_in(self, into: Any, u: Any, b: Any) -> None:
        """Copy b, and u into the array that a cycle or a norm begins with.

        The cycle or norm exchanges the layers of u. The other array needs only the walls' values.
        """
        self._overlap.copy_own(into, u)
        if not self.system.homogeneous:
            self.copy_walls(into, u)
        self.copy_in_b(b)

    def copy_walls(self, first: Any, u: Any) -> None:
        """Copy the walls' values from u of the block to the array with which a cycle does not
        begin; `first` is the one with which it begins."""
        other = self.other if first is self.u else self.u
        self._overlap.copy_ghosts(other, u)
        self.bring(other)

    def copy_in_b(self, b: Any) -> None:
        """Copy b alone, and exchange its layers, unless the level uses the array b itself."""
        if self.system.b is not b:
            self._overlap.copy_own(self.system.b, b)
            self.bring(self.system.b)

    def copy_out(self, u: Any, own: Any) -> None:
        """Copy an array of this level into u of the block."""
        self._overlap.copy_out(u, own, self._interior)

    def solution(self, u: Any, own: Any) -> Any:
        """u of the block, copied from an array of this level if that is newer."""
        if self.is_newer:
            self.copy_out(u, own)
            self.is_newer = False
        return u

    def forget(self) -> None:
        """Let the next cycle copy u and b again."""
        self.is_copied_in = self.is_newer = False
