"""The hierarchy of multigrid: coarse grids, and the same system on each.

A x = b keeps its form on every level, with other conductances and ratios, so the same point
functions solve every level. An axis of spacing h is halved only where h is among the smallest, with
h^2 < 2 h_min^2: points then stay coupled about equally along all axes that are halved, so a
pointwise smoother is enough (semicoarsening; U. Trottenberg, C. Oosterlee and A. Schueller,
"Multigrid", 2001, section 5.1).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from heatsolve.backends import Backend
from heatsolve.linear.multigrid.coarsening import AxisCoarsening, AxisMetrics, finest_metrics
from heatsolve.linear.multigrid.direct import MOST, Inverse
from heatsolve.linear.multigrid.levels import (
    CoarsestLevel,
    Gathering,
    Level,
    Plan,
    Step,
    level_of,
    plan_of,
)
from heatsolve.linear.multigrid.overlap import OverlappedLevel, overlapped_plans
from heatsolve.linear.multigrid.partition import (
    Assembly,
    HostCoefficient,
    Partition,
    are_even,
    coefficients_of,
)
from heatsolve.linear.multigrid.smoothers import Smoother
from heatsolve.linear.multigrid.transfer import AxisTransfer, Transfer
from heatsolve.linear.system import Coefficients, System
from heatsolve.parallel.halo import Halo
from heatsolve.stencil.grid import Grid


def hierarchy(
    system: System, u: Any, other: Any, smoother: Smoother, finest: Smoother | None = None,
    overlaps: bool = False,
) -> list[Level]:  # fmt: skip
    """The levels of a system, from the finest to the coarsest (asks all processes).

    `finest`: the smoother of the finest level, if not `smoother`. `overlaps`: whether blocks may
    overlap, on levels for which the backend has passes for half a cycle; the finest level then has
    arrays of its own. Devices then also gather coarse levels earlier.
    """
    plans, steps = [finest_plan(system, u, other)], []
    linear = are_even(plans[0].coefficients[:-1])
    backend, ranks = system.backend, plans[0].partition.ranks
    fewest = min(ranks.gather(backend.fewest_in_legs(system.grid.dimension)))  # GPUs may differ
    while (inverse := _inverse_of_last(plans)) is None:
        coarse, step = coarsened(plans[-1], linear)
        gathers = coarse.partition.is_gathered_on_devices(fewest)
        if overlaps and backend.on_device and gathers:
            coarse, step = gathered(coarse, step)
        plans.append(coarse)
        steps.append(step)
    smoothers = [finest or smoother, *[smoother] * len(steps)]
    overlapped = overlapped_plans(plans, steps, smoothers) if overlaps else []
    levels: list[Level] = [CoarsestLevel(plans[-1], inverse)]
    for number in reversed(range(len(steps))):
        if number < len(overlapped):
            level: Level = OverlappedLevel(overlapped[number], levels[0])
        else:
            level = level_of(plans[number], smoothers[number], levels[0], steps[number])
        levels.insert(0, level)
    return levels


def finest_plan(system: System, u: Any, other: Any) -> Plan:
    """The finest level, with the arrays of the system where possible."""
    grid, backend, partition = system.grid, system.backend, Partition.of(system.halo)
    arrays = [*reversed(system.coefficients.conductances), system.coefficients.capacity]
    host = coefficients_of(arrays, grid, partition, backend)
    *faces, capacity = [
        field.to_device(grid, backend, u.shape, array)
        for field, array in zip(host, arrays, strict=True)
    ]
    s, ratios = system.coefficients.s, system.coefficients.ratios
    coefficients = Coefficients(capacity, s, tuple(reversed(faces)), ratios)
    metrics = tuple(finest_metrics(axis) for axis in grid.axes)
    shortest = replace(system, coefficients=coefficients)
    return Plan(partition, metrics, tuple(host), shortest, u, other)


def coarsened(fine: Plan, linear: bool) -> tuple[Plan, Step]:
    """The next level and the step to it; `linear`: whether interpolation is linear."""
    system, backend, partition = fine.system, fine.system.backend, fine.partition
    grid, halo, assembly = system.grid, system.halo, None
    metrics, coefficients = list(fine.metrics), list(fine.coefficients)
    # Every process holds the whole coarsest level, so the level above it is gathered. Its blocks
    # are `too_fine` already, unless tests have changed the constants of `partition`.
    if partition.divided and (
        partition.too_fine or _element_count(metrics) <= MOST << grid.dimension
    ):
        assembly = _assembly(system, partition)
        partition, coefficients, grid, halo = _whole(fine)
    transfers: dict[int, AxisTransfer] = {}
    coarsenings: dict[int, AxisCoarsening] = {}
    for axis in _axes_to_halve(metrics):
        ends = _ends(metrics[axis], coefficients[axis])
        coarsening = coarsenings[axis] = AxisCoarsening(metrics[axis], linear, ends)
        partition = partition.halved(axis, coarsening)
        coefficients = [each.halved(axis, coarsening, partition) for each in coefficients]
        metrics[axis] = coarsening.coarse
        block, (low, high) = grid.axes[axis], partition.blocks()[axis]
        transfers[axis] = AxisTransfer(
            coarsening,
            (block.start, block.unknowns),
            (low, high - low),
            partial(halo.along, axis, layers=(1, 2)),
        )
    coarse_grid = partition.grid([metric.axis for metric in metrics])
    padded = len(transfers) == grid.dimension and not partition.divided
    shape = _shape(coarse_grid, metrics, backend) if padded else coarse_grid.shape
    b, u, other = (backend.zeros(shape) for _ in range(3))
    coarse_halo = halo.of(coarse_grid) if partition.divided else Halo(coarse_grid, backend)
    args = partition, metrics, coefficients, coarse_grid, coarse_halo
    coarse = plan_of(system, *args, b, u, other)
    return coarse, Step(Transfer(backend, transfers, grid.shape, b, other), coarsenings, assembly)


def gathered(blocks: Plan, step: Step) -> tuple[Plan, Step]:
    """The whole of a level in place of its blocks, and the step to it (asks all processes)."""
    system = blocks.system
    partition, coefficients, grid, halo = _whole(blocks)
    shape = _shape(grid, blocks.metrics, system.backend)
    b, u, other = (system.backend.zeros(shape) for _ in range(3))
    args = partition, blocks.metrics, coefficients, grid, halo
    whole = plan_of(system, *args, b, u, other)
    assembly = _assembly(system, blocks.partition)
    return whole, replace(step, gathering=Gathering(blocks, whole, assembly))


def _shape(grid: Grid, metrics: Sequence[AxisMetrics], backend: Backend) -> tuple[int, ...]:
    """The extents of the arrays of a level that no transfer along only some of the axes fills.

    Rows may be padded if the next level is halved along all axes, too: a transfer along some axes
    views all other axes as one, which allows no padding.
    """
    evenly = len(_axes_to_halve(metrics)) == grid.dimension and _element_count(metrics) > MOST
    return backend.padded(grid.shape) if evenly else grid.shape


def _whole(blocks: Plan) -> tuple[Partition, list[HostCoefficient], Grid, Halo]:
    """The partition, coefficients, grid and halo of a whole level on each process (asks all)."""
    partition = blocks.partition.gathered()
    grid = partition.grid([metric.axis for metric in blocks.metrics])
    coefficients = [each.gathered() for each in blocks.coefficients]
    return partition, coefficients, grid, Halo(grid, blocks.system.backend)


def _inverse_of_last(plans: Sequence[Plan]) -> Inverse | None:
    """The inverse of the last level if that is coarse enough, else None."""
    metrics = plans[-1].metrics
    can_coarsen = any(metric.can_coarsen for metric in metrics)
    if can_coarsen and (_element_count(metrics) > MOST or len(plans) == 1):
        return None
    inverse = Inverse(plans[-1].system)
    return inverse if inverse.is_sound or not can_coarsen else None


def _element_count(metrics: Sequence[AxisMetrics]) -> int:
    """The number of elements in an array of a whole level, ghosts included."""
    return math.prod(metric.axis.unknowns + 2 for metric in metrics)


def _axes_to_halve(metrics: Sequence[AxisMetrics]) -> list[int]:
    """The axes to be halved: their spacing is about the smallest of all that can be halved."""
    least = min((metric.spacing for metric in metrics if metric.can_coarsen), default=0.0)
    return [
        axis
        for axis, metric in enumerate(metrics)
        if metric.can_coarsen and metric.spacing * metric.spacing < 2.0 * least * least
    ]


def _ends(metric: AxisMetrics, conductance: HostCoefficient) -> tuple[float, float]:
    """The distances beyond both ends of an axis at which a linear profile vanishes."""
    at_walls = conductance.at_walls()
    axis, distances = metric.axis, metric.distances
    if axis.on_nodes:
        low, high = (
            distances[place] if fixed else math.inf
            for fixed, place in zip(axis.fixed, (1, -1), strict=True)
        )
    else:
        low, high = (
            beside * distances[inside] / wall if wall > 0.0 else math.inf
            for (wall, beside), inside in zip(at_walls, (2, -2), strict=True)
        )
    return low, high


def _assembly(system: System, partition: Partition) -> Assembly:
    """The assembly of a whole array of a level on every process, ghosts at its ends included."""
    own = tuple(
        (first - at_low, stop + at_high)
        for (first, stop), axis in zip(system.grid.interior, system.grid.axes, strict=True)
        for at_low, at_high in [axis.at_ends]
    )
    regions = [partition.region_in_whole(rank) for rank in range(partition.ranks.size)]
    return Assembly(system.backend, system.halo, own, regions)
