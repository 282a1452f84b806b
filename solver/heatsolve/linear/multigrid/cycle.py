"""Geometric multigrid: cycles of smoothing and of corrections from coarser grids."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from heatsolve.backends import Accumulator
from heatsolve.linear.multigrid.hierarchy import hierarchy
from heatsolve.linear.multigrid.levels import Level
from heatsolve.linear.multigrid.smoothers import Smoother, first_of, smoother_of
from heatsolve.linear.system import Pairwise, System
from heatsolve.stencil.language import change, copy, term_of


class Multigrid(Pairwise):
    """V cycles: smooth, correct by the solution of a coarser grid, smooth.

    In space, and with FMG in a plane, all smoothing of the finest grid comes last (`first_of`).
    Each smoothing is a sweep or some (see `smoother_of`) of Gauss-Seidel, red points before black
    ones and over-relaxed (A. Brandt, Math. Comp. 31 (1977), 333; U. Trottenberg, C. Oosterlee and
    A. Schueller, "Multigrid", 2001, section 2.4), or of Chebyshev's iteration. A W cycle solves
    every coarser system by two cycles. FMG begins with full multigrid, in place of the start that
    it is given, and goes on with V cycles. Where the conductivity jumps the cycles may diverge:
    `mgcg` is for that.
    """

    # A cycle is worth many sweeps, and a run needs about ten.
    checks_per_floor = 4
    checks_without_fall = 2
    fall = 0.5

    def __init__(
        self, system: System, u: Any, cycle: str = "V", smoother: str = "red-black",
        sweeps: int | None = None, norm: str | None = None,
    ):  # fmt: skip
        """`norm`: the kind of that of the residual, if it will be asked for after every cycle."""
        if system.backend.on_device and system.grid.dimension == 3:
            system = replace(system, b=everywhere(system))
        super().__init__(system, u)
        self._visits, self._nested = VISITS[cycle], cycle == "FMG"
        dimension = system.grid.dimension
        smoother_here = smoother_of(smoother, dimension, sweeps=sweeps, nested=self._nested)
        first = first_of(smoother_here, dimension, self._nested)
        levels = hierarchy(system, *self._pair, smoother_here, first, overlaps=not self._nested)
        self._levels = levels
        # A first level whose blocks overlap has arrays of its own: whether u and b have been taken
        # into them, and whether u is behind them since.
        self._wide = levels[0].overlap
        self._taken = self._behind = False
        if self._wide is not None:
            self._work_in(levels[0].u, levels[0].other)
        # The norm that a cycle finds on its way, and the number of cycles whose norm it is.
        self._norm: Accumulator | None = None
        self._known: int | None = None
        # Cycles that begin with the residual find that of their start: so each is begun by the one
        # before it. The number of cycles after which the next one is begun already.
        self._begun: int | None = None
        self._begins_next = False
        if norm is not None:
            total = system.backend.accumulator(norm)
            restricts = not (first.before or self._nested)
            self._norm = total if self._levels[0].look_on_the_way(total, restricts) else None
            self._begins_next = self._norm is not None and restricts
        self._swaps = self._levels[0].swaps
        if self._nested and self._swaps:  # a start of its own is made in the other array
            self._work_in(*self._pair[::-1])
            self._levels[0].u, self._levels[0].other = self._pair
        self._old: Any = None
        # By the array that a cycle begins with; full multigrid may need none but its first. And
        # norms of residuals, by the array of the solution.
        self._cycles: dict[int, Callable[[], None]] = {}
        self._norms: dict[tuple[int, int], Callable[[], None]] = {}
        if self._nested:
            self._full = system.replayed(self._solve)
        else:
            for number in range(1 + self._swaps):
                self._cycle(number)

    def step(self, number: int, change: Accumulator | None) -> None:
        self._forget()
        # Full multigrid makes a start of its own where the given one stands.
        copies = not self._swaps or self._wide is not None or (self._nested and number == 0)
        if change is not None and copies:
            self._old = self.system.like(self.solution(number), self._old)
        if self._begins_next and self._begun != number:
            self._begin_next(number)
            self._forget()
        self._take()
        (self._cycle(number) if number or not self._nested else self._full)()
        self._behind = self._wide is not None
        if self._norm is not None:
            self._known = number + 1
        if self._begins_next:
            self._begun = number + 1
        if change is not None:
            interior, new = self.system.grid.interior, self.solution(number + 1)
            old = self._old if copies else self.solution(number)
            self.system.backend.sweep(_changes[change.kind], change, interior, new, old)

    def _take(self) -> None:
        """Take u and b into the arrays of blocks that overlap, unless they are there."""
        if self._wide is None or self._taken:
            return
        for array in self._pair:
            self._wide.take(array, self.u)
        if (b := self._levels[0].system.b) is not self.system.b:
            self._wide.take(b, self.system.b)
        self._taken = True

    def _cycle(self, number: int) -> Callable[[], None]:
        """What makes cycle `number`."""
        first = number % 2 if self._swaps else 0
        u, other = self._pair[first], self._pair[1 - first]
        if id(u) not in self._cycles:
            self._cycles[id(u)] = self.system.replayed(partial(self._improve, u, other))
        return self._cycles[id(u)]

    def _improve(self, u: Any, other: Any) -> None:
        if not self._begins_next:
            improve(self._levels, u, other, self._visits)
            return
        result = end(self._levels, u, u, other, self._visits)
        self._levels[0].descend(result, other if result is u else u)

    def _begin_next(self, steps: int) -> None:
        """Begin the cycle after so many, and find the norm of their residual."""
        self._forget()
        u = self.solution(steps)
        self._levels[0].descend(u, self._pair[u is self.u])
        self._begun = self._known = steps

    def _solve(self) -> None:
        begin_nested(self._levels)
        self._improve(*self._pair)

    def accumulator(self, kind: str) -> Accumulator:
        """That of the cycles themselves, if it is of this kind."""
        if self._norm is None or kind != self._norm.kind:
            return super().accumulator(kind)
        return self._norm

    def accumulators(self, kind: str, count: int) -> list[Accumulator]:
        if self._norm is None or kind != self._norm.kind:
            return super().accumulators(kind, count)
        return [self._norm]

    def residual_norm(self, steps: int, into: Accumulator) -> None:
        if into is self._norm and self._begins_next and self._begun != steps:
            self._begin_next(steps)
        if into is self._norm and self._known == steps:
            self._known = None  # it has all terms already
            return
        if self._wide is not None and self._behind:
            system, u = self._levels[0].system, self._newest(steps)
            self._wide.exchange(u)
            args = (u, system.b, *system.coefficients)
            system.backend.sweep(term_of(system.residual, into.kind), into, self._wide.own, *args)
            return
        if into not in self._series.get(into.kind, ()):
            super().residual_norm(steps, into)
            return
        u = self.solution(steps)
        key = id(u), id(into)
        if key not in self._norms:
            self._norms[key] = self.system.replayed(partial(self.system.residual_norm, u, into))
        self._norms[key]()

    def _newest(self, steps: int) -> Any:
        """The array of the first level that holds the solution after so many steps."""
        return self._pair[steps % 2 if self._swaps else 0]

    def solution(self, steps: int) -> Any:
        if self._wide is None:
            return self._newest(steps)
        if self._behind:
            self._wide.give(self.u, self._newest(steps), self.system.grid.interior)
            self._behind = False
        return self.u

    def finish(self, steps: int) -> None:
        newest = self.solution(steps)
        if self.stays or self._nested or newest is self.u:  # full multigrid knows its arrays
            super().finish(steps)
        else:
            self.u, self._pair = newest, self._pair[::-1]

    def restart(self) -> None:
        """Walls may have new values: both arrays hold them."""
        if self._wide is None:
            super().restart()
        self._taken = self._behind = False
        self._begun = None
        self._forget()

    def recall(self, steps: int, scalars: dict[str, float]) -> None:
        super().recall(steps, scalars)
        self._taken = self._behind = False
        self._begun = None
        self._forget()

    def _forget(self) -> None:
        """Nobody asked for the norm of the last cycle."""
        if self._norm is not None and self._known is not None:
            self._norm.clear()
            self._known = None


class Correction:
    """e with A e = r, by `cycles` of multigrid from e = 0; r is the right side of the system.

    The solver of another method: refinement, conjugate gradients.
    """

    def __init__(
        self, system: System, smoother: Smoother, first: Smoother, cycle: str, cycles: int = 1
    ):
        self._system, self._given = system, (VISITS[cycle], cycles)
        u, self._e = (system.backend.zeros(system.grid.shape) for _ in range(2))
        self._levels = hierarchy(system, u, self._e, smoother, first, overlaps=True)

    @cached_property
    def _solve(self) -> Callable[[], None]:
        return self._system.replayed(self.sweep)

    def __call__(self) -> Any:
        """The array of e."""
        self._solve()
        return self._e

    def sweep(self) -> Any:
        """Its sweeps, for whoever plays them back with others; the array of e."""
        first = self._levels[0]
        if first.overlap is not None:
            first.overlap.take(first.system.b, self._system.b)
        solve_from_zero(self._levels, *self._given)
        if first.overlap is not None:
            first.overlap.give(self._e, first.other, self._system.grid.interior)
        return self._e


def everywhere(system: System) -> Any:
    """b as an array of all points: passes in space fetch its planes along with those of u."""
    b, shape = system.b, system.grid.shape
    if b.shape == shape:
        return b
    array = system.backend.zeros(shape)
    system.backend.sweep(copy, array, system.grid.interior, b)
    return array


VISITS = {"V": 1, "W": 2, "FMG": 1}
"""Cycles by which a cycle solves each coarser system."""


def begin_nested(levels: list[Level]) -> None:
    """Full multigrid: u of the first level from the solution of the next one, found likewise.

    From the coarsest level up, each level begins with the solution of the one below, interpolated
    by cubics, and improves it by one V cycle; that of the first level is left to the caller. The
    next level's error of discretisation is four times this one's, so a cycle that leaves a tenth of
    what is smooth brings it below half (A. Brandt, Math. Comp. 31 (1977), 333; Trottenberg,
    Oosterlee and Schueller, section 2.6).
    """
    for level in levels[:-1]:
        level.restrict_solution()
    if len(levels) > 1:
        levels[-1].coarse_solve(levels[-1].u, levels[-1].other)
        for number in range(len(levels) - 2, 0, -1):
            level = levels[number]
            level.prolong(level.other)
            improve(levels[number:], level.other, level.u, VISITS["FMG"])
        levels[0].prolong(levels[0].u)


def improve(levels: list[Level], u: Any, other: Any, visits: int) -> Any:
    """One cycle on these levels for u of the first one; which array it ends in.

    `other` is as u outside the unknowns.
    """
    if len(levels) == 1:
        levels[0].coarse_solve(u, u)
        return u
    return end(levels, levels[0].descend(u, other), u, other, visits)


def end(levels: list[Level], smoothed: Any, u: Any, other: Any, visits: int) -> Any:
    """The rest of such a cycle, after b of the next level."""
    solve_from_zero(levels[1:], visits, visits)
    result = other if levels[0].swaps else u
    levels[0].ascend(smoothed, result)
    return result


def solve_from_zero(levels: list[Level], visits: int, cycles: int) -> None:
    """So many cycles from zero for the first level; they end in `other`."""
    level = levels[0]
    if len(levels) == 1:
        level.coarse_solve_from_zero()
        return
    assert not level.swaps
    smoothed = level.descend_from_zero()
    solve_from_zero(levels[1:], visits, visits)
    level.ascend(smoothed, level.other)
    for _ in range(cycles - 1):
        improve(levels, level.other, level.u, visits)


_changes = {kind: term_of(change, kind) for kind in ("sum", "max")}
