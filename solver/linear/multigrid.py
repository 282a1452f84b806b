"""Geometric multigrid: V(2,2) cycles with red-black Gauss-Seidel smoothing."""

from typing import Any

from heatsolve.backends import Accumulator
from heatsolve.linear import Method, System
from heatsolve.linear.levels import SAME, Level, hierarchy
from heatsolve.points import Point

Colours = tuple[float, ...]


class Multigrid(Method):
    """V cycles: smooth, correct by the solution of a coarser grid, smooth.

    Each smoothing is two sweeps of Gauss-Seidel, red points before black ones (A. Brandt, Math.
    Comp. 31 (1977), 333; U. Trottenberg, C. Oosterlee and A. Schueller, "Multigrid", 2001, section
    2.4). Where the conductivity jumps the cycles may diverge: `mgcg` is for that.
    """

    def __init__(self, system: System, u: Any):
        super().__init__(system, u)
        self._levels = hierarchy(system, u, system.like(u))
        self._old: Any = None

    def step(self, number: int, change: Accumulator | None) -> None:
        if change is not None:
            self._old = self.system.like(self.u, self._old)
        finest = self._levels[0]
        finest.relax(finest.u, finest.other, SAME)
        improve(self._levels, finest.u, SAME)
        finest.relax(finest.u, finest.other, SAME)
        if change is not None:
            interior = self.system.grid.interior
            self.system.backend.sweep(_changes[change.kind], change, interior, self.u, self._old)

    def solution(self, steps: int) -> Any:
        return self.u

    def restart(self) -> None:
        """Walls may have new values: both arrays hold them."""
        self.system.like(self.u, self._levels[0].other)


def solve_from_zero(levels: list[Level], after: Colours) -> None:
    """One V cycle from u = 0 for the system of the first of these levels; ends in its `other`.

    With the reverse of `SAME` after each correction it is a symmetric operator on b, in the
    volume-weighted product.
    """
    level = levels[0]
    if len(levels) == 1:
        level.settle()
        return
    level.begin()
    improve(levels, level.other, after)
    level.relax(level.other, level.u, after)


def improve(levels: list[Level], u: Any, after: Colours) -> None:
    """Correct u on the first of these levels by one V cycle on the others, if there are any."""
    if len(levels) == 1:
        return
    fine, coarse = levels[:2]
    fine.find_residual(u)
    assert fine.transfer is not None
    fine.transfer.restrict()
    solve_from_zero(levels[1:], after)
    coarse.system.halo.exchange(coarse.other)
    fine.transfer.interpolate()
    fine.add_correction(u)


def _change(at, u, old):
    return u[at] - old[at]


def _squared_change(at, u, old):
    return (u[at] - old[at]) * (u[at] - old[at])


_changes: dict[str, Point] = {"sum": _squared_change, "max": _change}
