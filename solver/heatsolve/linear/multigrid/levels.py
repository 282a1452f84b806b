"""The levels of multigrid: the operations of a cycle on one grid of the hierarchy.

A `SweptLevel` makes single sweeps, or on a host those of each half of a cycle in one pass. A
`FusedLevel` makes each half of a cycle, its transfer included, in one or two passes of the backend;
an `OverlappedLevel` (see `overlap`) does so on several processes. The `CoarsestLevel` multiplies by
the inverse of its matrix.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from heatsolve.backends import Accumulator, CycleLeg
from heatsolve.linear.multigrid.coarsening import AxisCoarsening, AxisMetrics
from heatsolve.linear.multigrid.direct import Inverse
from heatsolve.linear.multigrid.partition import Assembly, HostCoefficient, Partition, margin_of
from heatsolve.linear.multigrid.smoothers import Relaxation, Smoother, Sweep
from heatsolve.linear.multigrid.transfer import FUNCTIONS, Prolongation, Transfer
from heatsolve.linear.system import Coefficients, System, added
from heatsolve.parallel.halo import Halo
from heatsolve.stencil.grid import Grid, whole
from heatsolve.stencil.language import copy, fill, shifted

LONGEST_ASCENT = {"float64": 4, "float32": 2}
"""The most post-smoothing sweeps, of one colour each, in a pass in 3D without pre-smoothing.

On an H200 four sweeps of 512 cubed take 1.9 ms in one pass and 2.2 ms in two; in single precision,
where a thread has twice the columns, 1.8 ms and 1.3 ms.
"""
LONGEST_SMALL = 2
"""The same on grids below the fewest points in legs, where a block repeats more sweeps of its
neighbours' points: a cycle on 80 cubed takes 73 us instead of 81 (H200)."""


@dataclass(frozen=True)
class Plan:
    """A grid of the hierarchy: its axes and coefficients on the host, its system, arrays for u."""

    partition: Partition
    metrics: tuple[AxisMetrics, ...]
    coefficients: tuple[HostCoefficient, ...]
    system: System
    u: Any
    other: Any

    @cached_property
    def margin(self) -> int | None:
        """The number of layers at the block's ends; between them every coefficient is constant."""
        axes = zip(self.metrics, self.system.grid.axes, strict=True)
        ratios = [metric.ratio_of(axis) for metric, axis in axes]
        inside = [ratio if ratio.size == 1 else ratio[1:-1] for ratio in ratios]
        return margin_of([*[field.values for field in self.coefficients], *inside])


def plan_of(
    fine: System,
    partition: Partition,
    metrics: Sequence[AxisMetrics],
    coefficients: Sequence[HostCoefficient],
    grid: Grid,
    halo: Halo,
    b: Any,
    u: Any,
    other: Any,
) -> Plan:
    """The plan of a level with these coefficients and the point functions of `fine`."""
    backend = fine.backend
    ratios = [
        backend.factor(grid.along(n, metric.ratio_of(axis)))
        for n, (metric, axis) in enumerate(zip(metrics, grid.axes, strict=True))
    ]
    *faces, capacity = [field.to_device(grid, backend, u.shape) for field in coefficients]
    on_device = Coefficients(
        capacity, fine.coefficients.s, tuple(reversed(faces)), tuple(reversed(ratios))
    )
    system = replace(fine, grid=grid, halo=halo, coefficients=on_device, b=b)
    return Plan(partition, tuple(metrics), tuple(coefficients), system, u, other)


@dataclass(frozen=True)
class Gathering:
    """A level whose b arrives in blocks, and which every process solves as a whole.

    `plan`: this process's block. `whole`: all of the level.
    """

    plan: Plan
    whole: Plan
    assembly: Assembly

    def bring(self, b: Any, below: int = 0) -> None:
        """Fill b of the whole level from the arrays `b` of all processes, which hold this number of
        further layers below the block."""
        self.assembly.bring(self.whole.system.b, b, below)

    def hand_out(self) -> None:
        """Fill `other` of the block, ghosts included, from `other` of the whole level."""
        starts = [axis.start for axis in self.plan.system.grid.axes]
        sweep, other = self.plan.system.backend.sweep, self.plan.other
        sweep(shifted, other, whole(other.shape), self.whole.other, *starts)


@dataclass(frozen=True)
class Step:
    """The transfer to the next level.

    `assembly`: every process gathers this level before it is halved. `gathering`: this level is
    halved in blocks, and b of the next level is gathered.
    """

    transfer: Transfer
    coarsenings: dict[int, AxisCoarsening]
    assembly: Assembly | None
    gathering: Gathering | None = None

    @property
    def is_in_blocks(self) -> bool:
        """Whether all axes are halved, and each process halves its own block."""
        return self.transfer.halves_all and self.assembly is None


class Level(ABC):
    """A grid of the hierarchy: a system, two arrays for u, and the operations of a cycle."""

    overlaps = False
    """Whether its arrays are its own, and hold layers of the neighbours' blocks, too."""
    fills_ghosts = False
    """Whether `solve_from_zero` gives the ghosts of its result, too."""
    swaps = False
    """Whether the result of a cycle is in `other`, not in the array `u` that it began with."""
    keeps_start = False
    """Whether a cycle leaves `u` as it was; it then swaps."""

    def __init__(self, plan: Plan):
        self.system, self.u, self.other = plan.system, plan.u, plan.other

    @abstractmethod
    def cycle(self, u: Any, other: Any, cycle_index: int) -> Any:
        """Improve u by one cycle; return the array of the result, `u` or `other`.

        The next level is solved by `cycle_index` cycles. The ghosts of `other` are those of u.
        """

    @abstractmethod
    def solve_from_zero(self, cycle_index: int, cycles: int) -> None:
        """Make cycles from u = 0; the result is in `other`."""

    def begin_nested(self, u: Any) -> None:
        """Full multigrid: the start u, interpolated by cubics from the next level's solution.

        Each level, from the coarsest one up, improves its start by one V cycle; on the finest level
        the caller makes this cycle. The discretisation error of the next level is four times that
        of this level, so a cycle that leaves a tenth of the smooth error brings it below half
        (A. Brandt, Math. Comp. 31 (1977), 333; Trottenberg, Oosterlee and Schueller, section 2.6).
        """

    def solve_nested(self) -> None:
        """Full multigrid for this level, into `other`."""
        self.begin_nested(self.other)
        self.cycle(self.other, self.u, 1)

    def fuse_norm(self, norm: Accumulator, restricts: bool) -> bool:
        """Let a pass add the terms of the residual's norm, if possible; return whether it does.

        The pass of `ascend` adds the residual of its result. If `restricts`, the pass of `descend`
        adds the residual of u; there is then no pre-smoothing.
        """
        return False


class CoarsestLevel(Level):
    """The coarsest level, solved by the inverse of its matrix."""

    def __init__(self, plan: Plan, inverse: Inverse):
        super().__init__(plan)
        self._inverse = inverse

    def cycle(self, u: Any, other: Any, cycle_index: int) -> Any:
        self._inverse.solve(u, u)
        return u

    fills_ghosts = True

    def solve_from_zero(self, cycle_index: int, cycles: int) -> None:
        self._inverse.solve_from_zero(self.other)

    def solve_nested(self) -> None:
        self._inverse.solve(self.u, self.other)  # the arrays hold the walls' values


class SweptLevel(Level):
    """A level above the coarsest one: it smooths, by sweeps, and corrects.

    `descend` is pre-smoothing and restriction: the residual becomes b of the next level. `ascend`
    is interpolation of the next level's solution, in its `other`, and post-smoothing.
    """

    def __init__(self, plan: Plan, relaxation: Relaxation, coarse: Level, step: Step):
        super().__init__(plan)
        self.smoother, self.coarse = relaxation.smoother, coarse
        self._relaxation, self._transfer = relaxation, step.transfer
        self._assembly, self._gathering = step.assembly, step.gathering
        self._reads_other_ends = step.transfer.reads_other_ends
        relaxation.fuse(self.u)
        before, after = map(relaxation.passes, (self.smoother.before, self.smoother.after))
        self.swaps = (len(before) + len(after)) % 2 == 1

    def cycle(self, u: Any, other: Any, cycle_index: int) -> Any:
        smoothed = self.descend(u, other)
        self.solve_next(cycle_index)
        return self.end_cycle(smoothed, u, other)

    def solve_next(self, cycle_index: int, u: Any = None) -> None:
        """Solve the next level for the residual of a descent; u: that of `descend_with_norm`."""
        self.coarse.solve_from_zero(cycle_index, cycle_index)

    def end_cycle(self, smoothed: Any, u: Any, other: Any) -> Any:
        """Ascend from the array that the descent of a cycle returned; return the result's array."""
        result = other if self.swaps else u
        self.ascend(smoothed, result)
        return result

    def solve_from_zero(self, cycle_index: int, cycles: int) -> None:
        smoothed = self.descend_from_zero()
        self.coarse.solve_from_zero(cycle_index, cycle_index)
        self.ascend(smoothed, self.other)
        result, other = self.other, self.u
        for _ in range(cycles - 1):
            result = self.cycle(result, other, cycle_index)
            other = self.u if result is self.other else self.other
        if result is not self.other:  # an even number of cycles that swap
            self.system.like(result, self.other)

    def descend(self, u: Any, other: Any) -> Any:
        """Pre-smooth u and restrict its residual; return the array that then holds u."""
        smoothed = self._relaxation.smooth(u, other, self.smoother.before)
        self._restrict(smoothed)
        return smoothed

    def descend_from_zero(self) -> Any:
        """`descend` from u = 0; return the array that holds u, or None if u is still 0."""
        u, other = self.other, self.u
        if len(self._relaxation.passes(self.smoother.after)) % 2:  # for `ascend` to end in `other`
            u, other = other, u
        if self.smoother.before:
            self._relaxation.begin(u, other)
        else:
            self.system.backend.sweep(fill, u, self.system.grid.interior, 0.0)
        self._restrict(u)
        return u

    def ascend(self, u: Any, result: Any) -> None:
        """Add the next level's solution to u (None: 0), and post-smooth, into `result`."""
        self._exchange_correction()
        self._correct(u)
        other = self.other if u is self.u else self.u
        smoothed = self._relaxation.smooth(u, other, self.smoother.after)
        assert smoothed is result

    def _exchange_correction(self) -> None:
        """Bring the ghosts of the next level's solution; copy a gathered solution to the block."""
        self._exchange_ghosts()
        if self._gathering is not None:
            self._gathering.hand_out()

    def _exchange_ghosts(self) -> None:
        """Bring the ghosts of the next level's solution, unless they are there or not needed."""
        if not (self.coarse.fills_ghosts or self._reads_other_ends):
            self.coarse.system.halo.exchange(self.coarse.other)

    @cached_property
    def _residual(self) -> Any:
        """The array of the residual, or of b in full multigrid, at this process's own points."""
        if self._assembly is None:
            return self._transfer.finer
        return self.system.backend.zeros(self.system.grid.shape)

    def _restrict(self, u: Any) -> None:
        """Restrict the residual b - A u into b of the next level."""
        system = self.system
        system.sweep(system.residual, self._residual, u, system.b, *system.coefficients)
        self._assemble()
        self._transfer.restrict()
        if self._gathering is not None:
            self._gathering.bring(self._gathering.plan.system.b)

    def _assemble(self) -> None:
        if self._assembly is not None:
            self._assembly.bring(self._transfer.finer, self._residual)

    @property
    def _is_interpolated_in_place(self) -> bool:
        # One axis after the other, rows must not be padded.
        fits = self._transfer.in_2d or self.u.shape == self.system.grid.shape
        return self._assembly is None and self._transfer.interpolates_in_place and fits

    @property
    def _starts(self) -> list[int]:
        """The index in the transfer's array at which the arrays of this level begin."""
        axes = self.system.grid.axes
        return [0 if self._assembly is None else axis.start for axis in axes]

    def _correct(self, u: Any) -> None:
        """Add to u the correction, interpolated from `other` of the next level."""
        if self._is_interpolated_in_place:
            self._transfer.interpolate(u)
            return
        self._transfer.interpolate()
        sweep, interior = self.system.backend.sweep, self.system.grid.interior
        if self._assembly is None:
            sweep(added, u, interior, u, self._transfer.finer)
        else:
            sweep(added_from, u, interior, u, self._transfer.finer, *self._starts)

    # ---- full multigrid: the next level holds a solution, with the walls' values ----

    def begin_nested(self, u: Any) -> None:
        self._restrict_solution()
        self.coarse.solve_nested()
        self._prolong(u)

    def _restrict_solution(self) -> None:
        """Restrict b and the values at the walls to the next level, to both of its arrays."""
        system, b, grid, coarse = self.system, self.system.b, self.system.grid, self.coarse
        sweep, residual = system.backend.sweep, self._residual
        neighbours = system.halo.divided or grid.axes[0].periodic or self._assembly is not None
        # A uniform source has no ghosts.
        if b.shape == self.u.shape and not neighbours and self._transfer.can_average(b.shape):
            for ghosts in grid.ghosts:
                sweep(copied, (residual, b), ghosts, self.u)
            self._transfer.average(b)
        else:
            for ghosts in grid.ghosts:
                sweep(copy, residual, ghosts, self.u)
            sweep(copy, residual, grid.interior, b)
            self._assemble()
            self._transfer.average()
        for ghosts in coarse.system.grid.ghosts:
            sweep(copied, (coarse.u, coarse.other), ghosts, coarse.system.b)

    def _prolong(self, u: Any) -> None:
        """Interpolate u from `other` of the next level, then clear its ghosts for corrections."""
        sweep, coarse = self.system.backend.sweep, self.coarse
        coarse.system.halo.exchange(coarse.other)
        if self._is_interpolated_in_place:
            self._prolongation.interpolate(u)
        else:
            self._prolongation.interpolate()
            sweep(shifted, u, self.system.grid.interior, self._transfer.finer, *self._starts)
        for ghosts in coarse.system.grid.ghosts:
            sweep(filled, (coarse.u, coarse.other), ghosts, 0.0)

    @cached_property
    def _prolongation(self) -> Prolongation:
        return Prolongation(self._transfer, self.coarse.system.halo.across)


class Legs:
    """The passes of a backend for the two halves of a cycle; none if the backend lacks one of them.

    They restrict into the array `down`, and interpolate from the array `up`, of the coarse grid. A
    norm is the residual's at the layers `counted` along the slowest axis (None: at all layers).
    """

    def __init__(
        self,
        plan: Plan,
        relaxation: Relaxation,
        transfer: Transfer,
        down: Any,
        up: Any,
        coarse_shape: tuple[int, ...],
        counted: tuple[int, int] | None = None,
    ):
        self._plan, self._relaxation = plan, relaxation
        self._shape, self._counted = coarse_shape, counted
        system, smoother = plan.system, relaxation.smoother
        self._down = down, transfer.restriction_weights
        self._up = up, transfer.interpolation_weights
        self._of_residual: dict[str, Any] = {
            "residual": system.residual,
            "operands": (system.b, *system.coefficients),
        }
        before, after = smoother.before, smoother.after
        descent = self._of_residual | {"restricts": True}
        passes = {
            "descend": self._leg(before, *self._down, **descent),
            "descend from zero": self._leg(before, *self._down, **descent, from_zero=True),
        }
        if before:
            passes["ascend"] = self._leg(after, *self._up)
        else:
            few = math.prod(system.grid.shape) < system.backend.fewest_in_legs(3)
            longest = LONGEST_SMALL if few else LONGEST_ASCENT[system.backend.precision]
            split = len(after) > longest
            half = len(after) // 2 if split and system.grid.dimension == 3 else len(after)
            first, rest = after[:half], after[half:]
            passes["ascend"] = self._leg(first, *self._up)
            passes["ascend from zero"] = self._leg(first, *self._up, from_zero=True)
            if rest:
                passes["go on"] = self._leg(rest, None, ())
        self.passes: dict[str, Any] = passes if all(passes.values()) else {}
        ascent = self._half(after, *self._up)
        self.reads_other_ends = system.backend.reads_other_ends(ascent)
        """Whether the ascent needs no ghosts of periodic axes in the array `up`."""

    def _leg(self, *half: Any, **more: Any) -> Any:
        """Half a cycle in one pass, see `_half`; None if the backend has no such pass."""
        return self._plan.system.backend.cycle_leg(self._half(*half, **more))

    def _half(self, sweeps: Sequence[Sweep], coarse: Any, weights: Any, **more: Any) -> CycleLeg:
        """Half a cycle, described for a backend."""
        plan, system, relaxation = self._plan, self._plan.system, self._relaxation
        # A pass without sweeps has the arguments of a sweep, too.
        point, stages, colours = relaxation.uncoloured(sweeps or relaxation.smoother.after)
        grid = system.grid
        where = (grid.shape, plan.u.shape[-1], grid.interior, system.halo.wraps)
        return CycleLeg(
            point, stages, colours if sweeps else (), *where, coarse, self._shape, weights,
            margin=plan.margin, inverse=relaxation.inverse_point, functions=FUNCTIONS,
            counted=self._counted, **more,
        )  # fmt: skip

    def fuse_norm(self, norm: Accumulator, restricts: bool) -> bool:
        """As `Level.fuse_norm`."""
        if not restricts and "go on" in self.passes:
            return False
        half = ((), *self._down) if restricts else (self._relaxation.smoother.after, *self._up)
        leg = self._leg(*half, norm=norm, restricts=restricts, **self._of_residual)
        if leg:
            self.passes["descend with norm" if restricts else "ascend"] = leg
        return bool(leg)


class FusedLevel(SweptLevel):
    """A level on which each half of a cycle is one or two passes of the backend.

    Only the second half, `end_cycle`, overwrites the array u with which a cycle begins.
    """

    def __init__(self, plan: Plan, relaxation: Relaxation, coarse: Level, step: Step, legs: Legs):
        super().__init__(plan, relaxation, coarse, step)
        self._legs, self.passes = legs, legs.passes
        self._reads_other_ends = legs.reads_other_ends
        self.keeps_start = self.swaps = not self.smoother.before and "go on" not in self.passes

    def fuse_norm(self, norm: Accumulator, restricts: bool) -> bool:
        return self._legs.fuse_norm(norm, restricts)

    def descend(self, u: Any, other: Any) -> Any:
        return self.descend_after_bringing(u, other)

    def descend_after_bringing(self, u: Any, other: Any) -> Any:
        """`descend`, where all layers of the neighbours are there."""
        result = other if self.smoother.before else u
        self.passes["descend"](result, u)
        return result

    def descend_with_norm(self, u: Any) -> None:
        """Restrict the residual, and add its norm, without pre-smoothing."""
        self.passes["descend with norm"](u, u)

    def descend_from_zero(self) -> Any:
        self.passes["descend from zero"](self.u, None)
        return self.u if self.smoother.before else None

    def ascend(self, u: Any, result: Any) -> None:
        self._exchange_correction()
        ascent = self.passes["ascend from zero" if u is None else "ascend"]
        if "go on" not in self.passes:
            ascent(result, u)
            return
        halfway = self.other if result is self.u else self.u
        ascent(halfway, u)
        self.passes["go on"](result, halfway)


def level_of(plan: Plan, smoother: Smoother, coarse: Level, step: Step) -> SweptLevel:
    """A `FusedLevel` if the backend has all passes of a cycle, a `SweptLevel` if not."""
    relaxation = Relaxation(plan.system, smoother, plan.u.shape)
    if step.is_in_blocks and not plan.system.halo.divided:
        shape = coarse.system.grid.shape
        legs = Legs(plan, relaxation, step.transfer, coarse.system.b, coarse.other, shape)
        if legs.passes:
            return FusedLevel(plan, relaxation, coarse, step, legs)
    return SweptLevel(plan, relaxation, coarse, step)


def copied(at, a):
    """a, for two arrays."""
    return a[at], a[at]


def filled(at, value):
    """A number, in two arrays."""
    return value, value


def added_from(at, u, correction, *starts):
    """u + correction, with the correction read at an offset of `starts`."""
    return u[at] + shifted(at, correction, *starts)
