"""The levels of multigrid: coarse grids, and the same system on each.

A x = b keeps its form on every level, with other conductances and ratios; so every level is
solved by the same point functions. An axis is halved only where its spacing is among the smallest
(h^2 < 2 h_min^2): points then stay coupled about equally along all axes that are halved, which is
what makes a smoother of single points enough (semicoarsening; U. Trottenberg, C. Oosterlee and
A. Schueller, "Multigrid", 2001, section 5.1).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import Any

from heatsolve.assembly import Assembly
from heatsolve.backends import Accumulator, Backend, HalfCycle
from heatsolve.grid import Grid
from heatsolve.halo import Halo
from heatsolve.linear import System
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
from heatsolve.linear.division import Division, division_of
from heatsolve.linear.lines import Halving, Line, finest
from heatsolve.linear.prolongation import Prolongation
from heatsolve.linear.smoothers import Relaxation, Smoother, zero
from heatsolve.linear.transfer import Cut, Transfer
from heatsolve.points import Point, copy, fill, shifted, where


class Level:
    """One grid of the hierarchy: its system, two arrays for u, the way to the next level.

    What a cycle asks of it: `descend`, sweeps after which the next level gets the residual as its
    b; `ascend`, which adds the next level's solution, found in its `other`, before more sweeps; and
    on the last level `settle`. A backend may do either in one pass through memory.
    """

    def __init__(
        self, system: System, u: Any, other: Any, smoother: Smoother, margin: int | None = None
    ):
        """`margin`: layers beside the walls beyond which all coefficients are the same."""
        self.system, self._margin = system, margin
        self.u, self.other = u, other
        self.smoother = smoother
        self._relaxation = Relaxation(system, smoother)
        self._passes: dict[str, Any] = {}

    def lead_to(self, coarse: "Level", transfer: Transfer, assembly: Assembly | None) -> None:
        """Set the next level; with an `assembly` every process has all of it."""
        self._coarse, self._transfer, self._assembly = coarse, transfer, assembly
        self._residual = transfer.finer
        if assembly is not None:
            self._residual = self.system.backend.zeros(self.system.grid.shape)
        elif transfer.halves_all and not self.system.halo.divided:
            self._passes = self._fused()

    def _fused(self) -> dict[str, Any]:
        """What the backend does in one pass; nothing, unless it is all."""
        system, transfer, smoother = self.system, self._transfer, self.smoother
        down = self._coarse.system.b
        given: dict[str, Any] = {
            "residual": system.residual, "operands": (system.b, *system.coefficients)
        }  # fmt: skip
        before = smoother.before, down, transfer.shares
        found = {
            "ascend": self._half(smoother.after, self._coarse.other, transfer.weights),
            "descend": self._half(*before, **given),
            "descend from zero": self._half(*before, **given, from_zero=True),
        }
        return found if all(found.values()) else {}

    def _half(self, numbers: Sequence[float], coarse: Any, lines: Any, **more: Any) -> Any:
        """Half a cycle in one pass, if the backend has it."""
        system = self.system
        point, stages, colours = self._relaxation.uncoloured(numbers)
        where = (system.grid.shape, system.grid.interior, system.halo.wraps)
        cycle = HalfCycle(
            point, stages, colours, *where, coarse, lines,
            margin=self._margin, inverse=self._relaxation.inverse_point, **more,
        )  # fmt: skip
        return system.backend.half_cycle(cycle)

    def look_on_the_way(self, norm: Accumulator) -> bool:
        """Have `ascend` add the terms of a norm of its residual, if a pass can do that, too."""
        system = self.system
        found = self._passes and self._half(
            self.smoother.after, self._coarse.other, self._transfer.weights, norm=norm,
            residual=system.residual, operands=(system.b, *system.coefficients),
        )  # fmt: skip
        if found:
            self._passes["ascend"] = found
        return bool(found)

    def descend(self, u: Any, other: Any) -> Any:
        """Sweeps of u, and b of the next level; which of the two arrays holds u then."""
        if self._passes:
            self._passes["descend"](other, u)
            return other
        self._relaxation.smooth(u, other, self.smoother.before)
        self._restrict(u)
        return u

    def descend_from_zero(self) -> Any:
        """The same from u = 0."""
        if self._passes:
            self._passes["descend from zero"](self.u, None)
            return self.u
        self._relaxation.begin(self.u, self.other)
        self._restrict(self.other)
        return self.other

    def ascend(self, u: Any, result: Any) -> None:
        """u plus the next level's solution, after more sweeps, in `result`."""
        self._coarse.system.halo.exchange(self._coarse.other)
        if self._passes:
            self._passes["ascend"](result, u)
            return
        assert u is result
        self._correct(u)
        self._relaxation.smooth(u, self.other if u is self.u else self.u, self.smoother.after)

    def relax(self, u: Any, other: Any) -> None:
        """All sweeps of u, where there is no other level."""
        for numbers in (self.smoother.before, self.smoother.after):
            self._relaxation.smooth(u, other, numbers)

    def _restrict(self, u: Any) -> None:
        """b of the next level is the residual b - A u, restricted."""
        system = self.system
        system.sweep(system.residual, self._residual, u, system.b, *system.coefficients)
        self._assemble()
        self._transfer.restrict()

    def _correct(self, u: Any) -> None:
        """u += what is interpolated from `other` of the next level."""
        self._interpolate()
        sweep, interior = self.system.backend.sweep, self.system.grid.interior
        if self._assembly is None:
            sweep(added, u, interior, u, self._transfer.finer)
        else:
            sweep(added_from, u, interior, u, self._transfer.finer, *self._starts)

    def settle(self) -> None:
        """The solution of a system of one unknown, in `other`."""
        system = self.system
        point = settling(system.residual, system.diagonal)
        given = (self.u, system.b, *system.coefficients)
        system.sweep(point, self.other, *given)

    # ---- full multigrid: not corrections, but solutions, with the walls' values ----

    def pass_down(self) -> None:
        """The next level gets b, restricted, and the values at the walls in both its arrays."""
        sweep, grid, coarse = self.system.backend.sweep, self.system.grid, self._coarse
        for ghosts in grid.ghosts:
            sweep(copy, self._residual, ghosts, self.u)
        sweep(copy, self._residual, grid.interior, self.system.b)
        self._assemble()
        self._transfer.average()
        for array in (coarse.u, coarse.other):
            for ghosts in coarse.system.grid.ghosts:
                sweep(copy, array, ghosts, coarse.system.b)

    def take_up(self, u: Any) -> None:
        """u is interpolated from `other` of the next level, which is for corrections from now."""
        sweep, coarse = self.system.backend.sweep, self._coarse
        coarse.system.halo.exchange(coarse.other)
        self._prolongation.interpolate()
        sweep(shifted, u, self.system.grid.interior, self._transfer.finer, *self._starts)
        for array in (coarse.u, coarse.other):
            for ghosts in coarse.system.grid.ghosts:
                sweep(fill, array, ghosts, 0.0)

    @cached_property
    def _prolongation(self) -> Prolongation:
        coarse, transfer = self._coarse, self._transfer
        given = (transfer.cuts, transfer.finer, coarse.other, coarse.system.halo.across)
        return Prolongation(self.system.backend, *given)

    def _assemble(self) -> None:
        if self._assembly is not None:
            self._assembly.bring(self._transfer.finer, self._residual)

    def _interpolate(self) -> None:
        self._coarse.system.halo.exchange(self._coarse.other)
        self._transfer.interpolate()

    @property
    def _starts(self) -> list[int]:
        """Where the arrays of this level begin in that of the transfer."""
        axes = self.system.grid.axes
        return [0 if self._assembly is None else axis.start for axis in axes]


@cache
def settling(residual: Point, diagonal: Point) -> Point:
    """The point function of `settle`; made once, as backends know a sweep by its function."""

    def settled(at, u, b, *coefficients):
        """0 where the only unknown is free: then b is what rounding left."""
        own = diagonal(at, *coefficients)
        solution = u[at] + residual(at, u, b, *coefficients) / own
        return where(own > 0.0, solution, zero(b[at]))

    return settled


def added(at, u, correction):
    """u + correction."""
    return u[at] + correction[at]


def added_from(at, u, correction, *starts):
    """u + correction, which is found so much further on."""
    return u[at] + shifted(at, correction, *starts)


def hierarchy(system: System, u: Any, other: Any, smoother: Smoother) -> list[Level]:
    """The levels from that of a system down to a single unknown (asks all processes).

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
    coefficients = _arguments(given, s, system.ratios, division, grid, backend, arrays)
    finest_system = replace(system, coefficients=coefficients)
    levels = [Level(finest_system, u, other, smoother, _margin(given, lines, grid))]
    while any(line.can_coarsen for line in lines):
        fine = levels[-1]
        grid, halo, assembly = fine.system.grid, fine.system.halo, None
        if division.divided and division.too_fine:
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
        coarse = _level(fine, lines, given, s, division, halo)
        transfer = Transfer(backend, cuts, grid.shape, coarse.system.b, coarse.other)
        fine.lead_to(coarse, transfer, assembly)
        levels.append(coarse)
    return levels


def _halved(lines: Sequence[Line]) -> list[int]:
    """The axes to halve: those of the smallest spacing among those that can be."""
    least = min(line.spacing for line in lines if line.can_coarsen)
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
        low, high = axis.fixed
        return (distances[1] if low else math.inf), (distances[-1] if high else math.inf)
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
    known: Sequence[Any] | None = None,
) -> tuple[Any, ...]:
    """The coefficients as point functions take them; those that are `known` are not made anew."""
    *faces, capacity = [
        placed(found, division, grid, backend, known and known[number])
        for number, found in enumerate(given)
    ]
    pairs = zip(reversed(faces), ratios, strict=True)  # x, y, z
    return (capacity, s, *(array for pair in pairs for array in pair))


def _level(
    fine: Level,
    lines: Sequence[Line],
    given: Sequence[Coefficient],
    s: float,
    division: Division,
    halo: Halo,
) -> Level:
    backend = fine.system.backend
    grid = division.grid([line.axis for line in lines])
    ratios = [
        backend.factor(grid.along(number, line.ratio_of(grid.axes[number])))
        for number, line in enumerate(lines)
    ]
    ratios.reverse()  # as the coefficients: x, y, z
    b, u, other = (backend.zeros(grid.shape) for _ in range(3))
    system = replace(
        fine.system,
        grid=grid,
        halo=halo.of(grid) if division.divided else Halo(grid, backend),
        coefficients=_arguments(given, s, ratios, division, grid, backend),
        b=b,
        ratios=tuple(ratios),
    )
    return Level(system, u, other, fine.smoother, _margin(given, lines, grid))


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
    return Assembly(system.backend, division.ranks, own, regions, system.halo.direct)
