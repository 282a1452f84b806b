"""Geometric multigrid: cycles of smoothing and of corrections from coarser grids."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from heatsolve.backends import Accumulator
from heatsolve.linear.multigrid.hierarchy import hierarchy
from heatsolve.linear.multigrid.levels import FusedLevel
from heatsolve.linear.multigrid.overlap import OverlappedLevel
from heatsolve.linear.multigrid.smoothers import Smoother, first_of, smoother_of
from heatsolve.linear.system import Pairwise, System
from heatsolve.stencil.language import change as change_of
from heatsolve.stencil.language import copy, term_of


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
        args = (*self._pair, smoother_here, first, not self._nested)
        self._levels = hierarchy(system, *args)
        self._first = self._levels[0]
        self._wide = self._first if isinstance(self._first, OverlappedLevel) else None
        if self._wide is not None:
            self._pair = self._wide.u, self._wide.other
        self._norm: NormOnTheWay | None = None
        if norm is not None:
            total = system.backend.accumulator(norm)
            begins_next = not (first.before or self._nested)
            if self._first.add_norm_on_the_way(total, begins_next):
                self._norm = NormOnTheWay(total, begins_next)
        self._swaps = self._first.swaps
        if self._nested and self._swaps:  # a start of its own is made in the other array
            self._first.u, self._first.other = self._pair = self._pair[::-1]
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
        norm = self._norm
        if norm is not None:
            norm.forget()
        # Full multigrid makes a start of its own where the given one stands.
        copies = not self._swaps or self._wide is not None or (self._nested and number == 0)
        if change is not None and copies:
            self._old = self.system.like(self.solution(number), self._old)
        if norm is not None and norm.begins_next and norm.begun != number:
            self._begin_next(number, norm)
            norm.forget()
        if self._wide is not None:
            self._wide.take(self.u, self.system.b)
        (self._cycle(number) if number or not self._nested else self._full)()
        if norm is not None:
            norm.known = number + 1
            norm.begun = number + 1 if norm.begins_next else None
        if change is not None:
            interior, new = self.system.grid.interior, self.solution(number + 1)
            old = self._old if copies else self.solution(number)
            self.system.backend.sweep(term_of(change_of, change.kind), change, interior, new, old)

    def _cycle(self, number: int) -> Callable[[], None]:
        """What makes cycle `number`."""
        first = number % 2 if self._swaps else 0
        u, other = self._pair[first], self._pair[1 - first]
        if id(u) not in self._cycles:
            self._cycles[id(u)] = self.system.replayed(partial(self._improve, u, other))
        return self._cycles[id(u)]

    def _improve(self, u: Any, other: Any) -> None:
        level = self._first
        if self._norm is None or not self._norm.begins_next:
            level.improve(u, other, self._visits)
            return
        assert isinstance(level, FusedLevel)
        result = level.end(u, u, other, self._visits)
        level.descend(result, other if result is u else u)

    def _begin_next(self, steps: int, norm: "NormOnTheWay") -> None:
        """Begin the cycle after these, and find the norm of their residual."""
        norm.forget()
        u = self.solution(steps)
        assert isinstance(self._first, FusedLevel)
        self._first.descend(u, self._pair[u is self.u])
        norm.begun = norm.known = steps

    def _solve(self) -> None:
        self._first.begin_nested(self._first.u)
        self._improve(*self._pair)

    def accumulator(self, kind: str) -> Accumulator:
        """That of the cycles themselves, if it is of this kind."""
        if self._norm is None or kind != self._norm.total.kind:
            return super().accumulator(kind)
        return self._norm.total

    def accumulators(self, kind: str, count: int) -> list[Accumulator]:
        if self._norm is None or kind != self._norm.total.kind:
            return super().accumulators(kind, count)
        return [self._norm.total]

    def residual_norm(self, steps: int, into: Accumulator) -> None:
        norm = self._norm
        if norm is not None and into is norm.total:
            if norm.begins_next and norm.begun != steps:
                self._begin_next(steps, norm)
            if norm.known == steps:
                norm.known = None  # it has all terms already
                return
        if self._wide is not None:
            self._wide.take(self.u, self.system.b)
            self._wide.residual_norm(self._newest(steps), into)
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
        """The array of the first level that holds the solution after these steps."""
        return self._pair[steps % 2 if self._swaps else 0]

    def solution(self, steps: int) -> Any:
        newest = self._newest(steps)
        return newest if self._wide is None else self._wide.solution(self.u, newest)

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
        self._forget()

    def recall(self, steps: int, scalars: dict[str, float]) -> None:
        super().recall(steps, scalars)
        self._forget()

    def _forget(self) -> None:
        if self._wide is not None:
            self._wide.forget()
        if self._norm is not None:
            self._norm.forget()
            self._norm.begun = None


@dataclass
class NormOnTheWay:
    """The norm of the residual that cycles find in their own passes, in `total`.

    `known`: the number of cycles whose norm it is. Cycles that begin with the residual find that
    of their start, so the one before `begins_next`; `begun`: the number of cycles after which the
    next one is begun already.
    """

    total: Accumulator
    begins_next: bool
    known: int | None = None
    begun: int | None = None

    def forget(self) -> None:
        """Nobody asked for the norm of the last cycle."""
        if self.known is not None:
            self.total.clear()
            self.known = None


class Correction:
    """e with A e = r, by `cycles` of multigrid from e = 0; r is the right side of the system.

    The solver of another method: refinement, conjugate gradients.
    """

    def __init__(
        self, system: System, smoother: Smoother, first: Smoother, cycle: str, cycles: int = 1
    ):
        self._system, self._args = system, (VISITS[cycle], cycles)
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
        if isinstance(first, OverlappedLevel):
            first.take_b(self._system.b)
            first.solve_from_zero(*self._args)
            first.give(self._e, first.other)
        else:
            first.solve_from_zero(*self._args)
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
