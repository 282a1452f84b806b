"""Geometric multigrid: cycles of smoothing and of corrections from coarser grids."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from heatsolve.backends import Accumulator, Region
from heatsolve.linear.multigrid.hierarchy import hierarchy
from heatsolve.linear.multigrid.levels import FusedLevel
from heatsolve.linear.multigrid.overlap import OverlappedLevel
from heatsolve.linear.multigrid.smoothers import Smoother, finest_smoother, smoother_of
from heatsolve.linear.system import Pairwise, System
from heatsolve.stencil.language import change as change_of
from heatsolve.stencil.language import copy, term_of


class Multigrid(Pairwise):
    """V cycles: smooth, correct by the solution of a coarser grid, smooth.

    In 3D, and for FMG in 2D, the finest grid has no pre-smoothing (`finest_smoother`).
    Smoothing is one or more sweeps (`smoother_of`) of over-relaxed Gauss-Seidel, red points before
    black ones (A. Brandt, Math. Comp. 31 (1977), 333; U. Trottenberg, C. Oosterlee and
    A. Schueller, "Multigrid", 2001, section 2.4), or of Chebyshev's iteration. A W cycle solves
    every coarser system by two cycles. FMG replaces the given initial guess by full multigrid, and
    goes on with V cycles. Cycles may diverge where the conductivity jumps: use `mgcg` there.
    """

    reduces_smooth_errors = True
    # A cycle is worth many sweeps, and a run needs about ten.
    checks_per_floor = 4
    checks_without_fall = 2
    fall = 0.5

    def __init__(
        self, system: System, u: Any, cycle: str = "V", smoother: str = "red-black",
        sweeps: int | None = None, norm: str | None = None,
    ):  # fmt: skip
        """`norm`: the kind of the residual's norm, if it is needed after every cycle."""
        if system.backend.on_device and system.grid.dimension == 3:
            system = replace(system, b=everywhere(system))
        super().__init__(system, u)
        self._cycle_index, self._nested = CYCLE_INDEX[cycle], cycle == "FMG"
        dimension = system.grid.dimension
        on_coarser = smoother_of(smoother, dimension, sweeps=sweeps, nested=self._nested)
        on_finest = finest_smoother(on_coarser, dimension, self._nested)
        args = (*self._pair, on_coarser, on_finest, not self._nested)
        self._levels = hierarchy(system, *args)
        self._finest = self._levels[0]
        self._overlapped = self._finest if isinstance(self._finest, OverlappedLevel) else None
        if self._overlapped is not None:
            self._pair = self._overlapped.u, self._overlapped.other
        self._own: dict[int, Any] = {}
        """For each overlapped array, by its id, the part that is the array of the block; see
        `settle`."""
        self._begins_with_layers = False
        """Whether the sweep that gives u and b also brings their layers to an overlapped level."""
        self._is_begun = False
        """Whether the first half of the first cycle has been made."""
        self._norm: FusedNorm | None = None
        if norm is not None:
            total = system.backend.accumulator(norm)
            in_descent = not (on_finest.before or self._nested)
            if self._finest.fuse_norm(total, in_descent):
                self._norm = FusedNorm(total, in_descent)
        self._swaps = self._finest.swaps
        if self._nested and self._swaps:  # full multigrid makes its start in the other array
            self._finest.u, self._finest.other = self._pair = self._pair[::-1]
        self._old: Any = None
        # Recorded cycles, by the array that a cycle begins with. Full multigrid records its V
        # cycles only when they are needed.
        self._cycles: dict[int, Callable[[], None]] = {}
        if self._nested:
            self._full = system.replayed(self._solve)
        else:
            for number in range(1 + self._swaps):
                self._replayed_cycle(number)

    def step(self, number: int, change: Accumulator | None) -> None:
        norm = self._norm
        if norm is not None:
            norm.forget()
        # Full multigrid overwrites the given start.
        keeps = self._finest.keeps_start and self._overlapped is None
        copies = not keeps or (self._nested and number == 0)
        if change is not None and copies:
            self._old = self.system.like(self.solution(number), self._old)
        begun, self._is_begun = self._is_begun, False
        if begun:
            self._play(self._end_first, *self._arrays_of(number))
        elif norm is not None and norm.in_descent and norm.descended_after != number:
            # The norm of the initial residual is not needed.
            along, arrays = self._copy_in(number), self._arrays_of(number)
            descend: Callable[..., Any] = self._fused.descend
            if number == 0 and self._begins_with_layers:
                descend, along = self._fused.descend_after_bringing, ()
            arrays = (*arrays, *along)
            key = "whole cycle", descend.__name__, *map(id, arrays)
            self.play(key, partial(self._whole_cycle, descend, *arrays))
        else:
            self._bring(*self._copy_in(number))
            (self._replayed_cycle(number) if number or not self._nested else self._full)()
        if self._overlapped is not None:
            self._overlapped.is_newer = True
        if norm is not None:
            norm.valid_after = number + 1
            norm.descended_after = number + 1 if norm.in_descent else None
        if change is not None:
            interior, new = self.system.grid.interior, self.solution(number + 1)
            old = self._old if copies else self.solution(number)
            self.system.backend.sweep(term_of(change_of, change.kind), change, interior, new, old)

    def _replayed_cycle(self, number: int) -> Callable[[], None]:
        """Cycle `number`, recorded for replay."""
        u, other = self._arrays_of(number)
        if id(u) not in self._cycles:
            self._cycles[id(u)] = self.system.replayed(partial(self._cycle, u, other))
        return self._cycles[id(u)]

    def _cycle(self, u: Any, other: Any) -> None:
        """A cycle; if the descent adds the norm, from behind its own to that of the next cycle."""
        if self._norm is None or not self._norm.in_descent:
            self._finest.cycle(u, other, self._cycle_index)
            return
        self._fused.solve_next(self._cycle_index, u)
        self._end(u, u, other)

    def _whole_cycle(self, descend: Callable[..., Any], u: Any, other: Any, *along: Any) -> None:
        """A cycle with its own descent, and the descent of the next cycle, which adds the norm."""
        descend(u, other, *along)
        self._fused.solve_next(self._cycle_index)
        self._end(u, u, other)

    def _begin_first(self, u: Any, other: Any) -> None:
        """The first half of the first cycle, where the layers of neighbours are there."""
        self._fused.descend_after_bringing(u, other)
        self._fused.solve_next(self._cycle_index)

    def _end_first(self, u: Any, other: Any) -> None:
        """The second half of the first cycle."""
        self._end(other if self._fused.smoother.before else u, u, other)

    def _end(self, smoothed: Any, u: Any, other: Any) -> None:
        """Ascend; if the descent adds the norm, descend at once to the next cycle."""
        result = self._fused.end_cycle(smoothed, u, other)
        if self._norm is not None and self._norm.in_descent:
            self._fused.descend_with_norm(result)

    @property
    def _fused(self) -> FusedLevel:
        """The finest level, where its passes add the norm or begin the first cycle."""
        assert isinstance(self._finest, FusedLevel)
        return self._finest

    def _descend(self, steps: int, norm: "FusedNorm") -> None:
        """Make the descent of cycle `steps`, which adds the norm of the residual before it."""
        norm.forget()
        along = self._copy_in(steps)
        self._play(self._fused.descend_with_norm, self._newest(steps), *along)
        norm.descended_after = norm.valid_after = steps

    def _solve(self) -> None:
        self._finest.begin_nested(self._finest.u)
        self._cycle(*self._pair)

    def accumulator(self, kind: str) -> Accumulator:
        """The accumulator that the cycles fill, if it is of this kind."""
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
            if norm.in_descent and norm.descended_after != steps:
                self._descend(steps, norm)
            if norm.valid_after == steps:
                norm.valid_after = None  # the cycle has added all terms
                return
        self._bring(*self._copy_in(steps))
        level = self.system if self._overlapped is None else self._overlapped
        self._add_norm(level.residual_norm, self._newest(steps), into)

    def begin_ahead(self) -> None:
        queued = self.system.backend.on_device and self.system.replays
        if not queued or not isinstance(self._finest, FusedLevel) or self._nested:
            return
        u, other = self._arrays_of(0)
        # Where the norm came from a descent, it is the descent of the first cycle.
        if self._norm is not None and self._norm.descended_after == 0:
            work = partial(self._finest.solve_next, self._cycle_index, u)
            self.play(("next level", id(u)), work)
        else:
            self._play(self._begin_first, u, other)
        self._is_begun = True

    def _copy_in(self, steps: int) -> tuple[Any, ...]:
        """Copy u after these steps, and b, into the arrays of an overlapped finest level, unless
        they are there; a cycle or a norm follows. Return the arrays whose layers must still be
        exchanged: b, or none."""
        if (level := self._overlapped) is None:
            return ()
        there, level.is_copied_in = level.is_copied_in, True
        if there:
            return ()
        newest = self._newest(steps)
        if not self._own:
            self._play(level.copy_in, newest, self.u, self.system.b)
            return ()
        if not self.system.homogeneous:
            self._play(level.copy_walls, newest, self._own[id(newest)])
        return () if level.system.b is self.system.b else (level.system.b,)

    def _bring(self, *arrays: Any) -> None:
        """Exchange the layers of these arrays, if any, of an overlapped finest level."""
        if arrays:
            assert self._overlapped is not None
            self._play(self._overlapped.bring, *arrays)

    def _play(self, work: Callable[..., Any], *arrays: Any) -> None:
        """Play back work on these arrays."""
        self.play((work.__name__, *map(id, arrays)), partial(work, *arrays))

    def _arrays_of(self, number: int) -> tuple[Any, Any]:
        """The array with which cycle `number` begins, and the other one."""
        start = number % 2 if self._swaps else 0
        return self._pair[start], self._pair[1 - start]

    def _newest(self, steps: int) -> Any:
        """The array of the finest level that holds the solution after these steps."""
        if steps == 0 and self._nested and self._swaps:
            return self._pair[1]  # the given array: full multigrid makes its start in the other one
        return self._pair[steps % 2 if self._swaps else 0]

    def solution(self, steps: int) -> Any:
        newest = self._newest(steps)
        if self._overlapped is None:
            return newest
        if self._own:
            return self._own[id(newest)]
        return self._overlapped.solution(self.u, newest)

    def settle(self, from_zero: bool = False) -> None:
        super().settle(from_zero)
        level, system = self._overlapped, self.system
        parts = level.own_parts(self.u, system.b) if level else []
        if not (level and parts):
            return
        u, other, b = parts
        system.like(self.u, other)
        self._work_in(u, b)
        self._own = {id(level.u): u, id(level.other): other}
        # The descent that adds the norm has brought the layers.
        self.brings_neighbours = self._norm is not None and self._norm.in_descent

    def sweep_start(self, sweep: Callable[[Region], None]) -> None:
        if not self.brings_neighbours:
            super().sweep_start(sweep)
            return
        assert self._overlapped is not None
        self._begins_with_layers, interior = True, self.system.grid.interior
        self._overlapped.sweep_and_bring(sweep, interior, self._newest(0))

    def finish(self, steps: int) -> None:
        newest = self.solution(steps)
        if self.stays or self._nested or newest is self.u:  # full multigrid keeps its arrays
            super().finish(steps)
        else:
            self.u, self._pair = newest, self._pair[::-1]

    def finish_copies(self, steps: int) -> bool:
        if self._overlapped is not None and not self._own:
            return True  # out of the overlapping arrays
        return (self.stays or self._nested) and super().finish_copies(steps)

    def restart(self) -> None:
        """Start again after a change of u, b, or the walls' values, which both arrays hold."""
        if self._overlapped is None:
            super().restart()
        self._forget()

    def recall(self, steps: int, scalars: dict[str, float]) -> None:
        super().recall(steps, scalars)
        self._forget()

    def _forget(self) -> None:
        self._is_begun = False
        if self._overlapped is not None:
            self._overlapped.forget()
        if self._norm is not None:
            self._norm.forget()
            self._norm.descended_after = None


@dataclass
class FusedNorm:
    """The norm of the residual, which the passes of a cycle add to `total`.

    `in_descent`: whether the descent adds the norm, which is then the norm at the start of a cycle;
    each step then also makes the descent of the next cycle. `valid_after`: the number of cycles
    after which `total` is the norm. `descended_after`: the number of cycles after which the descent
    of the next cycle has been made.
    """

    total: Accumulator
    in_descent: bool
    valid_after: int | None = None
    descended_after: int | None = None

    def forget(self) -> None:
        """Clear a norm that was not read."""
        if self.valid_after is not None:
            self.total.clear()
            self.valid_after = None


class Correction:
    """The solution e of A e = r, by `cycles` of multigrid from e = 0; r is b of the system.

    Iterative refinement finds its corrections with it; it preconditions conjugate gradients.
    """

    def __init__(
        self, system: System, smoother: Smoother, finest: Smoother, cycle: str, cycles: int = 1
    ):
        """`finest` smooths the finest level, `smoother` all coarser levels."""
        self._system, self._args = system, (CYCLE_INDEX[cycle], cycles)
        u, self._e = (system.backend.zeros(system.grid.shape) for _ in range(2))
        self._levels = hierarchy(system, u, self._e, smoother, finest, overlaps=True)

    @cached_property
    def _solve(self) -> Callable[[], None]:
        return self._system.replayed(self.sweep)

    def __call__(self) -> Any:
        """The array of e."""
        self._solve()
        return self._e

    def sweep(self) -> Any:
        """Make the sweeps without recording, for a caller that records; return the array of e."""
        finest = self._levels[0]
        if isinstance(finest, OverlappedLevel):
            finest.copy_in_b(self._system.b)
            finest.solve_from_zero(*self._args)
            finest.copy_out(self._e, finest.other)
        else:
            finest.solve_from_zero(*self._args)
        return self._e


def everywhere(system: System) -> Any:
    """b as an array of all points: passes in 3D load its planes together with the planes of u."""
    b, shape = system.b, system.grid.shape
    if b.shape == shape:
        return b
    array = system.backend.zeros(shape)
    system.backend.sweep(copy, array, system.grid.interior, b)
    return array


CYCLE_INDEX = {"V": 1, "W": 2, "FMG": 1}
"""The cycle index gamma: the number of cycles that solve each coarser system."""
