"""The hierarchy of multigrid: coarse grids, and the same system on each.

A x = b keeps its form on every level, with other conductances and ratios; so every level is
solved by the same point functions. An axis is halved only where its spacing is among the smallest
(h^2 < 2 h_min^2): points then stay coupled about equally along all axes that are halved, which is
what makes a smoother of single points enough (semicoarsening; U. Trottenberg, C. Oosterlee and
A. Schueller, "Multigrid", 2001, section 5.1).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from heatsolve.backends import Backend
from heatsolve.linear.assembly import Assembly
from heatsolve.linear.coefficients import (
    Coefficient,
    coefficients_of,
    even,
    gathered,
    halved,
    margin,
    placed,
    shortened,
    strongest,
)
from heatsolve.linear.metrics import AxisMetrics, finest
from heatsolve.linear.multigrid.coarsening import AxisCoarsening
from heatsolve.linear.multigrid.direct import MOST
from heatsolve.linear.multigrid.levels import Level
from heatsolve.linear.multigrid.overlap import (
    Overlap,
    Passage,
    axis_transfer_of,
    can_overlap,
    is_even,
    layers_of,
    overlap_of,
    overlapping,
    with_nobody,
)
from heatsolve.linear.multigrid.partition import Partition, partition_of
from heatsolve.linear.multigrid.smoothers import Smoother
from heatsolve.linear.multigrid.transfer import AxisTransfer, Transfer
from heatsolve.linear.system import Coefficients, System
from heatsolve.parallel.halo import Halo
from heatsolve.stencil.grid import Grid


@dataclass(frozen=True)
class Plan:
    """What a level is made of, and how its axes are halved on the way to the next one."""

    partition: Partition
    metrics: tuple[AxisMetrics, ...]
    given: tuple[Coefficient, ...]
    coarsenings: dict[int, AxisCoarsening]


def hierarchy(
    system: System, u: Any, other: Any, smoother: Smoother, first: Smoother | None = None,
    overlaps: bool = False,
) -> list[Level]:  # fmt: skip
    """The levels from that of a system down to a small one (asks all processes).

    `first`: the smoother of the first level, if it is another one. `overlaps`: whether blocks may
    overlap on the levels for whose half cycles the backend has passes; the first level then has
    arrays of its own.
    """
    grid, backend, s = system.grid, system.backend, system.coefficients.s
    arrays = [*reversed(system.coefficients.conductances), system.coefficients.capacity]
    partition = partition_of(system.halo)
    metrics = [finest(axis) for axis in grid.axes]
    given = [
        shortened(found, partition, grid)
        for found in coefficients_of(arrays, grid, partition, backend)
    ]
    linear = even(given[:-1], partition, grid)
    here = (partition, grid, backend)
    coefficients = _placed(given, s, system.coefficients.ratios, *here, u.shape, arrays)
    finest_system = replace(system, coefficients=coefficients)
    levels = [Level(finest_system, u, other, first or smoother, _margin(given, metrics, grid))]
    plans = []
    while not _is_last(levels, metrics):
        fine = levels[-1]
        grid, halo, assembly = fine.system.grid, fine.system.halo, None
        before = partition, tuple(metrics), tuple(given)
        # The last level is whole on every process, so one that may lead to it is gathered; it is
        # too fine for blocks already, unless the constants of `partition` are others, as in tests.
        if partition.divided and (
            partition.too_fine or _elements(metrics) <= MOST << grid.dimension
        ):
            assembly = _assembly(fine.system, partition)
            given = [gathered(found, partition) for found in given]
            partition = partition.gathered()
            grid = partition.grid([metric.axis for metric in metrics])
            halo = Halo(grid, backend)
        transfers = {}
        for number in _halved(metrics):
            ends = _ends(metrics[number], strongest(given[number], partition))
            coarsening = AxisCoarsening(metrics[number], linear, ends)
            after = partition.halved(number, coarsening)
            given = [halved(found, number, coarsening, partition, after) for found in given]
            metrics[number], partition = coarsening.coarse, after
            block, below = grid.axes[number], partition.blocks()[number]
            transfers[number] = AxisTransfer(
                coarsening,
                (block.start, block.unknowns),
                (below[0], below[1] - below[0]),
                partial(halo.along, number, layers=(1, 2)),
            )
        evenly = len(transfers) == len(_halved(metrics)) == grid.dimension
        roomy = evenly and not partition.divided and _elements(metrics) > MOST
        coarse = _level(fine.system, smoother, metrics, given, s, partition, halo, roomy)
        transfer = Transfer(backend, transfers, grid.shape, coarse.system.b, coarse.other)
        fine.lead_to(coarse, transfer, assembly)
        levels.append(coarse)
        plans.append(
            Plan(*before, {number: along.coarsening for number, along in transfers.items()})
        )
    plans.append(Plan(partition, tuple(metrics), tuple(given), {}))
    if overlaps:
        _overlap(levels, plans, s)
    return levels


def _overlap(levels: list[Level], plans: Sequence[Plan], s: float) -> None:
    """Let levels overlap, from the first one on, as long as they can (asks all processes)."""
    passage: Passage | None = None
    for number, (level, (plan, below)) in enumerate(zip(levels[:-1], pairwise(plans), strict=True)):
        system, backend = level.system, level.system.backend
        layers, ring = layers_of(level.smoother), system.grid.axes[0].periodic
        if not (
            level.is_halved_in_blocks
            and can_overlap(system, plan.partition, layers)
            and can_overlap(levels[number + 1].system, below.partition, layers, thick=1)
            and (system.b.shape[0] == 1 or system.b.shape == level.u.shape)
            and not (ring and not is_even(plan.coarsenings[0]))
        ):
            return
        here, there = (
            overlap_of(
                [metric.axis for metric in each.metrics], each.partition, system.halo, backend, n
            )
            for each, n in ((plan, layers), (below, layers_of(levels[number + 1].smoother)))
        )
        wide = _overlapping(level, plan, here, s, passage)
        transfers = {
            n: AxisTransfer(each, (0, here.grid.axes[n].unknowns), (0, each.count), with_nobody)
            for n, each in plan.coarsenings.items()
        }
        transfers[0] = axis_transfer_of(plan.coarsenings[0], here)
        shape = backend.padded(there.grid.shape)
        first, rows = here.first // 2 - there.first, transfers[0].coarse[1] + 2
        after = Passage(there, backend.zeros(shape), backend.zeros(shape), first, rows)
        transfer = Transfer(backend, transfers, here.grid.shape, after.down, after.up)
        if not all(plan.partition.ranks.gather(wide.overlap_with(here, transfer, after))):
            return
        coarse = levels[number + 1]
        after.block = coarse.system.b, coarse.other, coarse.system.grid.interior
        if passage is not None:
            passage.block = None
        levels[number], passage = wide, after


def _overlapping(
    level: Level, plan: Plan, overlap: Overlap, s: float, passage: Passage | None
) -> Level:
    """The same level, whose block holds layers of its neighbours; arrays of a `passage` to it."""
    backend, grid = level.system.backend, overlap.grid
    shape = backend.padded(grid.shape)
    given = [overlapping(found, plan.partition, overlap) for found in plan.given]
    ratios = _ratios(backend, grid, plan.metrics)
    u, b = backend.zeros(shape), level.system.b
    if passage is None:
        other = backend.zeros(shape)
        # A source that is the same in all layers is so in those of others.
        b = b if b.shape[0] == 1 else backend.zeros(shape)
    else:
        b, other = passage.b, passage.other
    system = replace(
        level.system, grid=grid, halo=Halo(grid, backend), b=b,
        coefficients=_placed(given, s, ratios, plan.partition, grid, backend, shape),
    )  # fmt: skip
    return Level(system, u, other, level.smoother, _margin(given, plan.metrics, grid))


def _is_last(levels: Sequence[Level], metrics: Sequence[AxisMetrics]) -> bool:
    """Make the level the last one, if it can be; a small one is whole on every process."""
    if not any(metric.can_coarsen for metric in metrics):
        return levels[-1].be_last(if_sound=False)
    small = _elements(metrics) <= MOST and len(levels) > 1
    return small and levels[-1].be_last(if_sound=True)


def _elements(metrics: Sequence[AxisMetrics]) -> int:
    """Of an array of all of a level, ghosts included."""
    return math.prod(metric.axis.unknowns + 2 for metric in metrics)


def _halved(metrics: Sequence[AxisMetrics]) -> list[int]:
    """The axes to halve: those of the smallest spacing among those that can be."""
    least = min((metric.spacing for metric in metrics if metric.can_coarsen), default=0.0)
    return [
        number
        for number, metric in enumerate(metrics)
        if metric.can_coarsen and metric.spacing * metric.spacing < 2.0 * least * least
    ]


def _ends(metric: AxisMetrics, strongest: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """How far beyond the ends of an axis a linear profile vanishes.

    `strongest` are the largest conductances of the wall and beside it, for both ends.
    """
    axis, distances = metric.axis, metric.distances
    if axis.on_nodes:
        fixed = axis.fixed
        return (
            distances[1] if fixed[0] else math.inf,
            distances[-1] if fixed[1] else math.inf,
        )
    low, high = (
        beside * distances[inside] / wall if wall > 0.0 else math.inf
        for (wall, beside), inside in zip(strongest, (2, -2), strict=True)
    )
    return low, high


def _placed(
    given: Sequence[Coefficient],
    s: float,
    ratios: Sequence[Any],
    partition: Partition,
    grid: Grid,
    backend: Backend,
    shape: Sequence[int],
    known: Sequence[Any] | None = None,
) -> Coefficients:
    """The coefficients as arrays of a block; those that are `known` are not made anew."""
    *faces, capacity = [
        placed(found, partition, grid, backend, shape, known and known[number])
        for number, found in enumerate(given)
    ]
    return Coefficients(capacity, s, tuple(reversed(faces)), tuple(ratios))


def _level(
    fine: System,
    smoother: Smoother,
    metrics: Sequence[AxisMetrics],
    given: Sequence[Coefficient],
    s: float,
    partition: Partition,
    halo: Halo,
    roomy: bool,
) -> Level:
    """The level of axes with these metrics; `roomy`: whether rows of its arrays may have room.

    That is so where all axes are halved, on the way to it and from it: a transfer along some axes
    takes all others together, without any room.
    """
    backend = fine.backend
    grid = partition.grid([metric.axis for metric in metrics])
    ratios = _ratios(backend, grid, metrics)
    shape = backend.padded(grid.shape) if roomy else grid.shape
    b, u, other = (backend.zeros(shape) for _ in range(3))
    system = replace(
        fine,
        grid=grid,
        halo=halo.of(grid) if partition.divided else Halo(grid, backend),
        coefficients=_placed(given, s, ratios, partition, grid, backend, shape),
        b=b,
    )
    return Level(system, u, other, smoother, _margin(given, metrics, grid))


def _ratios(backend: Backend, grid: Grid, metrics: Sequence[AxisMetrics]) -> tuple[Any, ...]:
    """Ratios of a full cell to each control volume, for x, y, z."""
    ratios = [
        backend.factor(grid.along(number, metric.ratio_of(grid.axes[number])))
        for number, metric in enumerate(metrics)
    ]
    return tuple(reversed(ratios))


def _margin(given: Sequence[Coefficient], metrics: Sequence[AxisMetrics], grid: Grid) -> int | None:
    """Layers beside the walls of a block beyond which all coefficients are the same."""
    ratios = [metric.ratio_of(axis) for metric, axis in zip(metrics, grid.axes, strict=True)]
    inside = [ratio if ratio.size == 1 else ratio[1:-1] for ratio in ratios]
    return margin([*[found.values for found in given], *inside])


def _assembly(system: System, partition: Partition) -> Assembly:
    """What brings a whole array of a level to every process, ghosts at its ends included."""
    own = tuple(
        (first - at_low, stop + at_high)
        for (first, stop), axis in zip(system.grid.interior, system.grid.axes, strict=True)
        for at_low, at_high in [axis.at_ends]
    )
    regions = [partition.region_in_whole(rank) for rank in range(partition.ranks.size)]
    return Assembly(system.backend, system.halo.transport, own, regions)
