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
from heatsolve.linear import System
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
from heatsolve.linear.lines import Line, finest
from heatsolve.linear.multigrid.coarsening import Halving
from heatsolve.linear.multigrid.direct import MOST
from heatsolve.linear.multigrid.levels import Level
from heatsolve.linear.multigrid.overlap import (
    Overlap,
    Passage,
    can_overlap,
    cut_of,
    is_even,
    layers_of,
    overlap_of,
    overlapping,
    with_nobody,
)
from heatsolve.linear.multigrid.partition import Division, division_of
from heatsolve.linear.multigrid.smoothers import Smoother
from heatsolve.linear.multigrid.transfer import Cut, Transfer
from heatsolve.parallel.halo import Halo
from heatsolve.stencil.grid import Grid


@dataclass(frozen=True)
class Plan:
    """What a level is made of, and how its axes are halved on the way to the next one."""

    division: Division
    lines: tuple[Line, ...]
    given: tuple[Coefficient, ...]
    halvings: dict[int, Halving]


def hierarchy(
    system: System, u: Any, other: Any, smoother: Smoother, first: Smoother | None = None,
    overlaps: bool = False,
) -> list[Level]:  # fmt: skip
    """The levels from that of a system down to a small one (asks all processes).

    `first`: the smoother of the first level, if it is another one. `overlaps`: whether blocks may
    overlap on the levels for whose half cycles the backend has passes; the first level then has
    arrays of its own.
    The coefficients of the system are those of `heat`: a capacity, its factor, and conductances
    and ratios for x, y, z.
    """
    grid, backend = system.grid, system.backend
    capacity, s, *pairs = system.coefficients
    arrays = [*reversed(pairs[0::2]), capacity]
    division = division_of(system.halo)
    lines = [finest(axis) for axis in grid.axes]
    given = [
        shortened(found, division, grid)
        for found in coefficients_of(arrays, grid, division, backend)
    ]
    linear = even(given[:-1], division, grid)
    here = (division, grid, backend)
    coefficients = _arguments(given, s, system.ratios, *here, u.shape, arrays)
    finest_system = replace(system, coefficients=coefficients)
    levels = [Level(finest_system, u, other, first or smoother, _margin(given, lines, grid))]
    plans = []
    while not _is_last(levels, lines):
        fine = levels[-1]
        grid, halo, assembly = fine.system.grid, fine.system.halo, None
        before = division, tuple(lines), tuple(given)
        # The last level is whole on every process, so one that may lead to it is gathered; it is
        # too fine for blocks already, unless the constants of `division` are others, as in tests.
        if division.divided and (division.too_fine or _elements(lines) <= MOST << grid.dimension):
            assembly = _assembly(fine.system, division)
            given = [gathered(found, division) for found in given]
            division = division.gathered()
            grid = division.grid([line.axis for line in lines])
            halo = Halo(grid, backend)
        cuts = {}
        for number in _halved(lines):
            ends = _ends(lines[number], strongest(given[number], division))
            halving = Halving(lines[number], linear, ends)
            after = division.halved(number, halving)
            given = [halved(found, number, halving, division, after) for found in given]
            lines[number], division = halving.coarse, after
            block, below = grid.axes[number], division.blocks()[number]
            cuts[number] = Cut(
                halving,
                (block.start, block.unknowns),
                (below[0], below[1] - below[0]),
                partial(halo.along, number, layers=(1, 2)),
            )
        evenly = len(cuts) == len(_halved(lines)) == grid.dimension
        roomy = evenly and not division.divided and _elements(lines) > MOST
        coarse = _level(fine.system, smoother, lines, given, s, division, halo, roomy)
        transfer = Transfer(backend, cuts, grid.shape, coarse.system.b, coarse.other)
        fine.lead_to(coarse, transfer, assembly)
        levels.append(coarse)
        plans.append(Plan(*before, {number: cut.halving for number, cut in cuts.items()}))
    plans.append(Plan(division, tuple(lines), tuple(given), {}))
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
            and can_overlap(system, plan.division, layers)
            and can_overlap(levels[number + 1].system, below.division, layers, thick=1)
            and (system.b.shape[0] == 1 or system.b.shape == level.u.shape)
            and not (ring and not is_even(plan.halvings[0]))
        ):
            return
        here, there = (
            overlap_of([line.axis for line in each.lines], each.division, system.halo, backend, n)
            for each, n in ((plan, layers), (below, layers_of(levels[number + 1].smoother)))
        )
        wide = _overlapping(level, plan, here, s, passage)
        cuts = {n: Cut(halving, (0, here.grid.axes[n].unknowns), (0, halving.count), with_nobody)
                for n, halving in plan.halvings.items()}  # fmt: skip
        cuts[0] = cut_of(plan.halvings[0], here)
        shape = backend.padded(there.grid.shape)
        first, rows = here.first // 2 - there.first, cuts[0].coarse[1] + 2
        after = Passage(there, backend.zeros(shape), backend.zeros(shape), first, rows)
        transfer = Transfer(backend, cuts, here.grid.shape, after.down, after.up)
        if not all(plan.division.ranks.gather(wide.overlap_with(here, transfer, after))):
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
    given = [overlapping(found, plan.division, overlap) for found in plan.given]
    ratios = _ratios(backend, grid, plan.lines)
    u, b = backend.zeros(shape), level.system.b
    if passage is None:
        other = backend.zeros(shape)
        # A source that is the same in all layers is so in those of others.
        b = b if b.shape[0] == 1 else backend.zeros(shape)
    else:
        b, other = passage.b, passage.other
    system = replace(
        level.system, grid=grid, halo=Halo(grid, backend), b=b, ratios=ratios,
        coefficients=_arguments(given, s, ratios, plan.division, grid, backend, shape),
    )  # fmt: skip
    return Level(system, u, other, level.smoother, _margin(given, plan.lines, grid))


def _is_last(levels: Sequence[Level], lines: Sequence[Line]) -> bool:
    """Make the level the last one, if it can be; a small one is whole on every process."""
    if not any(line.can_coarsen for line in lines):
        return levels[-1].be_last(if_sound=False)
    small = _elements(lines) <= MOST and len(levels) > 1
    return small and levels[-1].be_last(if_sound=True)


def _elements(lines: Sequence[Line]) -> int:
    """Of an array of all of a level, ghosts included."""
    return math.prod(line.axis.unknowns + 2 for line in lines)


def _halved(lines: Sequence[Line]) -> list[int]:
    """The axes to halve: those of the smallest spacing among those that can be."""
    least = min((line.spacing for line in lines if line.can_coarsen), default=0.0)
    return [
        number
        for number, line in enumerate(lines)
        if line.can_coarsen and line.spacing * line.spacing < 2.0 * least * least
    ]


def _ends(line: Line, strongest: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """How far beyond the ends of a line a linear profile vanishes.

    `strongest` are the largest conductances of the wall and beside it, for both ends.
    """
    axis, distances = line.axis, line.distances
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


def _arguments(
    given: Sequence[Coefficient],
    s: float,
    ratios: Sequence[Any],
    division: Division,
    grid: Grid,
    backend: Backend,
    shape: Sequence[int],
    known: Sequence[Any] | None = None,
) -> tuple[Any, ...]:
    """The coefficients as point functions take them; those that are `known` are not made anew."""
    *faces, capacity = [
        placed(found, division, grid, backend, shape, known and known[number])
        for number, found in enumerate(given)
    ]
    pairs = zip(reversed(faces), ratios, strict=True)  # x, y, z
    return (capacity, s, *(array for pair in pairs for array in pair))


def _level(
    fine: System,
    smoother: Smoother,
    lines: Sequence[Line],
    given: Sequence[Coefficient],
    s: float,
    division: Division,
    halo: Halo,
    roomy: bool,
) -> Level:
    """The level of these lines; `roomy`: whether rows of its arrays may have room.

    That is so where all axes are halved, on the way to it and from it: a transfer along some axes
    takes all others together, without any room.
    """
    backend = fine.backend
    grid = division.grid([line.axis for line in lines])
    ratios = _ratios(backend, grid, lines)
    shape = backend.padded(grid.shape) if roomy else grid.shape
    b, u, other = (backend.zeros(shape) for _ in range(3))
    system = replace(
        fine,
        grid=grid,
        halo=halo.of(grid) if division.divided else Halo(grid, backend),
        coefficients=_arguments(given, s, ratios, division, grid, backend, shape),
        b=b,
        ratios=ratios,
    )
    return Level(system, u, other, smoother, _margin(given, lines, grid))


def _ratios(backend: Backend, grid: Grid, lines: Sequence[Line]) -> tuple[Any, ...]:
    """Those of full cells to control volumes, in the order of the coefficients: x, y, z."""
    ratios = [
        backend.factor(grid.along(number, line.ratio_of(grid.axes[number])))
        for number, line in enumerate(lines)
    ]
    return tuple(reversed(ratios))


def _margin(given: Sequence[Coefficient], lines: Sequence[Line], grid: Grid) -> int | None:
    """Layers beside the walls of a block beyond which all coefficients are the same."""
    ratios = [line.ratio_of(axis) for line, axis in zip(lines, grid.axes, strict=True)]
    inside = [ratio if ratio.size == 1 else ratio[1:-1] for ratio in ratios]
    return margin([*[found.values for found in given], *inside])


def _assembly(system: System, division: Division) -> Assembly:
    """What brings a whole array of a level to every process, ghosts at its ends included."""
    own = tuple(
        (first - at_low, stop + at_high)
        for (first, stop), axis in zip(system.grid.interior, system.grid.axes, strict=True)
        for at_low, at_high in [axis.at_ends]
    )
    regions = [division.region_in_whole(rank) for rank in range(division.ranks.size)]
    return Assembly(system.backend, system.halo.link, own, regions)
