"""The levels of multigrid: coarse grids, and the same system on each.

A x = b keeps its form on every level, with other conductances and ratios; so every level is
solved by the same point functions. An axis is halved only where its spacing is among the smallest
(h^2 < 2 h_min^2): points then stay coupled about equally along all axes that are halved, which is
what makes a smoother of single points enough (semicoarsening; U. Trottenberg, C. Oosterlee and
A. Schueller, "Multigrid", 2001, section 5.1).
"""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from heatsolve.errors import InputError
from heatsolve.grid import Grid
from heatsolve.halo import Halo
from heatsolve.linear import System
from heatsolve.linear.colours import of_colour, signs
from heatsolve.linear.lines import Halving, Line, finest
from heatsolve.linear.transfer import Transfer
from heatsolve.points import Point, where

SAME = (1.0, -1.0, 1.0, -1.0)
"""Colours of the half-sweeps before a correction, and after it: the fastest order."""
REVERSED = (-1.0, 1.0, -1.0, 1.0)
"""Colours after a correction that make a cycle a symmetric operator."""

JUMP = 2.0
"""Ratio of neighbouring conductances from which no linear profile is expected between them."""


class Level:
    """One grid of the hierarchy: its system, two arrays for u, the way to the next level."""

    def __init__(self, system: System, u: Any, other: Any):
        self.system = system
        self.u, self.other = u, other
        self.transfer: Transfer | None = None
        self._points = points_of(system.residual, system.diagonal)
        self._given = (*signs(system.grid, system.backend), *system.coefficients)

    def relax(self, old: Any, new: Any, colours: tuple[float, ...]) -> None:
        """Half-sweeps of Gauss-Seidel, from one array into the other and back."""
        system = self.system
        for colour in colours:
            system.sweep(self._points["relaxed"], new, old, system.b, colour, *self._given)
            old, new = new, old

    def begin(self) -> None:
        """The half-sweeps before a correction, from u = 0; they end in `other`."""
        system = self.system
        sweep, interior = system.backend.sweep, system.grid.interior
        sweep(self._points["begun"], self.u, interior, system.b, SAME[0], *self._given)
        self.relax(self.u, self.other, SAME[1:])

    def settle(self) -> None:
        """The solution of a system of one unknown, in `other`."""
        system = self.system
        given = (system.b, *system.coefficients)
        system.backend.sweep(self._points["settled"], self.other, system.grid.interior, *given)

    def find_residual(self, u: Any) -> None:
        """The residual, where the transfer takes it from."""
        system, transfer = self.system, self.transfer
        assert transfer is not None
        system.sweep(system.residual, transfer.finer, u, system.b, *system.coefficients)
        system.halo.exchange(transfer.finer)

    def add_correction(self, u: Any) -> None:
        """u plus what the transfer has interpolated."""
        system, transfer = self.system, self.transfer
        assert transfer is not None
        system.backend.sweep(added, u, system.grid.interior, u, transfer.finer)


@cache
def points_of(residual: Point, diagonal: Point) -> dict[str, Point]:
    """The point functions of a level; made once, as backends know a sweep by its function."""

    def relaxed(at, u, b, colour, *more):
        lines, coefficients = more[: len(at)], more[len(at) :]
        value = u[at] + residual(at, u, b, *coefficients) / diagonal(at, *coefficients)
        return of_colour(at, colour, lines, value, u[at])

    def begun(at, b, colour, *more):
        """`relaxed` for u = 0."""
        lines, coefficients = more[: len(at)], more[len(at) :]
        return of_colour(at, colour, lines, b[at] / diagonal(at, *coefficients), 0.0)

    def settled(at, b, *coefficients):
        """0 where the only unknown is free: then b is what rounding left."""
        own = diagonal(at, *coefficients)
        return where(own > 0.0, b[at] / own, 0.0)

    return {"relaxed": relaxed, "begun": begun, "settled": settled}


def added(at, u, correction):
    """u + correction."""
    return u[at] + correction[at]


def hierarchy(system: System, u: Any, other: Any) -> list[Level]:
    """The levels from that of a system down to a single unknown.

    The coefficients of the system are those of `heat`: a capacity, its factor, and conductances
    and ratios for x, y, z. Raises InputError on several processes.
    """
    if system.halo.ranks.size > 1:
        raise InputError("solver.method: multigrid runs on one process, not on several")
    backend, grid = system.backend, system.grid
    capacity, s, *pairs = system.coefficients
    ratios = [backend.to_host(ratio).reshape(-1) for ratio in reversed(system.ratios)]
    lines = [finest(axis, ratio) for axis, ratio in zip(grid.axes, ratios, strict=True)]
    arrays = [backend.to_host(array) for array in (*pairs[0::2], capacity)]
    levels = [Level(system, u, other)]
    linear = all(_smooth(arrays[grid.dimension - 1 - n], n) for n in range(grid.dimension))
    while any(line.can_coarsen for line in lines):
        halvings = {}
        for number in _halved(lines):
            own = grid.dimension - 1 - number
            ends = _ends(lines[number], arrays[own], number)
            halving = halvings[number] = Halving(lines[number], linear, ends)
            arrays = [
                _coarsened(array, halving, number, own=place == own)
                for place, array in enumerate(arrays)
            ]
            lines[number] = halving.coarse
        finer = levels[-1]
        levels.append(_level(finer.system, lines, arrays, s))
        coarse = levels[-1]
        shape = finer.system.grid.shape
        finer.transfer = Transfer(backend, halvings, shape, coarse.system.b, coarse.other)
    return levels


def _halved(lines: list[Line]) -> list[int]:
    """The axes to halve: those of the smallest spacing among those that can be."""
    least = min(line.spacing for line in lines if line.can_coarsen)
    return [
        number
        for number, line in enumerate(lines)
        if line.can_coarsen and line.spacing * line.spacing < 2.0 * least * least
    ]


def _smooth(faces: np.ndarray, number: int) -> bool:
    """Whether no conductance, but those of walls, is much larger than those beside it."""
    inside = np.moveaxis(faces, number, 0)[2:-1]
    return all(
        bool(np.all((a <= JUMP * b) & (b <= JUMP * a)))
        for lines in (np.moveaxis(inside, n, 0) for n in range(inside.ndim))
        for a, b in [(lines[1:], lines[:-1])]
    )


def _ends(line: Line, faces: np.ndarray, number: int) -> tuple[float, float]:
    """How far beyond the ends of a line a linear profile vanishes."""
    axis, distances = line.axis, line.distances
    if axis.on_nodes:
        low, high = axis.fixed
        return (distances[1] if low else math.inf), (distances[-1] if high else math.inf)
    along = np.moveaxis(faces, number, 0).reshape(faces.shape[number], -1)
    ends = []
    for wall, inside in ((1, 2), (-1, -2)):
        most = float(along[wall].max())
        conductivity = float(along[inside].max()) * distances[inside]
        ends.append(conductivity / most if most > 0.0 else math.inf)
    return ends[0], ends[1]


def _coarsened(array: np.ndarray, halving: Halving, number: int, own: bool) -> np.ndarray:
    """Conductances, or a capacity, with one axis halved; `own`: faces along this axis."""
    if array.shape[number] == 1 and not own:
        return array
    last = np.moveaxis(array, number, -1)
    result = halving.conductances(last) if own else halving.mean(last)
    return np.ascontiguousarray(np.moveaxis(result, -1, number))


def _level(finer: System, lines: list[Line], arrays: list[np.ndarray], s: float) -> Level:
    backend = finer.backend
    grid = Grid(tuple(line.axis for line in lines))
    ratios = [backend.to_device(grid.along(n, line.ratio)) for n, line in enumerate(lines)]
    ratios.reverse()  # as the coefficients: x, y, z
    *faces, capacity = [backend.to_device(array) for array in arrays]
    pairs = [array for pair in zip(faces, ratios, strict=True) for array in pair]
    b, u, other = (backend.zeros(grid.shape) for _ in range(3))
    system = replace(
        finer,
        grid=grid,
        halo=Halo(grid, backend),
        coefficients=(capacity, s, *pairs),
        b=b,
        ratios=tuple(ratios),
    )
    return Level(system, u, other)
