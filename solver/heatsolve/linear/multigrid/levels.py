"""The levels of multigrid: what a cycle does on one grid of the hierarchy.

A `SweptLevel` makes single sweeps; a `FusedLevel` has passes of the backend that make half a cycle
each; an `OverlappedLevel` (see `overlap`) has them although there are several processes; the
`CoarsestLevel` multiplies with the inverse of its matrix.
"""

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
from heatsolve.stencil.grid import Grid
from heatsolve.stencil.language import copy, fill, shifted

LONGEST_ASCENT = {"float64": 4, "float32": 2}
"""Sweeps, of a colour each, of a pass in 3D after a correction where there are none before it.

On an H200 all four in one pass take 1.9 ms (512 cubed), in two 2.2; in single precision, where a
thread has twice the columns, 1.8 and 1.3.
"""


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
        """Layers beside the walls of the block beyond which all coefficients are the same."""
        axes = zip(self.metrics, self.system.grid.axes, strict=True)
        ratios = [metric.ratio_of(axis) for metric, axis in axes]
        inside = [ratio if ratio.size == 1 else ratio[1:-1] for ratio in ratios]
        return margin_of([*[each.values for each in self.coefficients], *inside])


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
    """A level with these coefficients, and with the point functions of a finer system."""
    backend = fine.backend
    ratios = [
        backend.factor(grid.along(n, metric.ratio_of(axis)))
        for n, (metric, axis) in enumerate(zip(metrics, grid.axes, strict=True))
    ]
    *faces, capacity = [each.to_device(grid, backend, u.shape) for each in coefficients]
    on_device = Coefficients(
        capacity, fine.coefficients.s, tuple(reversed(faces)), tuple(reversed(ratios))
    )
    system = replace(fine, grid=grid, halo=halo, coefficients=on_device, b=b)
    return Plan(partition, tuple(metrics), tuple(coefficients), system, u, other)


@dataclass(frozen=True)
class Step:
    """The way to the next level; with an `assembly` every process has all of that."""

    transfer: Transfer
    coarsenings: dict[int, AxisCoarsening]
    assembly: Assembly | None

    @property
    def is_in_blocks(self) -> bool:
        """Whether all axes are halved, by each process for itself."""
        return self.transfer.halves_all and self.assembly is None


class Level(ABC):
    """A grid of the hierarchy: a system, two arrays for u, and what a cycle asks of it."""

    overlaps = False
    """Whether its block holds layers of its neighbours, in arrays of its own."""
    swaps = False
    """Whether a cycle's result is not in the array that it began with, but in the other one."""

    def __init__(self, plan: Plan):
        self.system, self.u, self.other = plan.system, plan.u, plan.other

    @abstractmethod
    def improve(self, u: Any, other: Any, visits: int) -> Any:
        """One cycle for u, which solves the next level by `visits` cycles; which array it ends in.

        `other` is as u outside the unknowns.
        """

    @abstractmethod
    def solve_from_zero(self, visits: int, cycles: int) -> None:
        """Cycles from zero; they end in `other`."""

    def begin_nested(self, u: Any) -> None:
        """Full multigrid: u by cubics from the solution of the next level, found likewise.

        From the coarsest level up, each level improves such a start by one V cycle; that of the
        first level is left to the caller. The next level's error of discretisation is four times
        this one's, so a cycle that leaves a tenth of what is smooth brings it below half
        (A. Brandt, Math. Comp. 31 (1977), 333; Trottenberg, Oosterlee and Schueller, section 2.6).
        """

    def solve_nested(self) -> None:
        """Full multigrid for this level, into `other`."""
        self.begin_nested(self.other)
        self.improve(self.other, self.u, 1)

    def add_norm_on_the_way(self, norm: Accumulator, restricts: bool) -> bool:
        """Have a pass add the terms of a norm of the residual, too, if it can.

        `ascend` adds those of its result or, if it `restricts`, `descend` those of u: then no
        sweeps come first.
        """
        return False


class CoarsestLevel(Level):
    """The last level: the inverse of its matrix solves it."""

    def __init__(self, plan: Plan, inverse: Inverse):
        super().__init__(plan)
        self._inverse = inverse

    def improve(self, u: Any, other: Any, visits: int) -> Any:
        self._inverse.solve(u, u)
        return u

    def solve_from_zero(self, visits: int, cycles: int) -> None:
        self._inverse.solve_from_zero(self.other)

    def solve_nested(self) -> None:
        self._inverse.solve(self.u, self.other)  # the arrays hold the walls' values


class SweptLevel(Level):
    """A level that is not the last one: it smooths, by single sweeps, and corrects.

    `descend` makes sweeps after which the next level gets the residual as its b; `ascend` adds the
    next level's solution, found in its `other`, before more sweeps.
    """

    def __init__(self, plan: Plan, relaxation: Relaxation, coarse: Level, step: Step):
        super().__init__(plan)
        self.smoother, self.coarse = relaxation.smoother, coarse
        self._relaxation, self._transfer = relaxation, step.transfer
        self._assembly = step.assembly

    def improve(self, u: Any, other: Any, visits: int) -> Any:
        return self.end(self.descend(u, other), u, other, visits)

    def end(self, smoothed: Any, u: Any, other: Any, visits: int) -> Any:
        """The rest of a cycle, after b of the next level."""
        self.coarse.solve_from_zero(visits, visits)
        result = other if self.swaps else u
        self.ascend(smoothed, result)
        return result

    def solve_from_zero(self, visits: int, cycles: int) -> None:
        assert not self.swaps
        smoothed = self.descend_from_zero()
        self.coarse.solve_from_zero(visits, visits)
        self.ascend(smoothed, self.other)
        for _ in range(cycles - 1):
            self.improve(self.other, self.u, visits)

    def descend(self, u: Any, other: Any) -> Any:
        """Sweeps of u, and b of the next level; which of the two arrays holds u then."""
        self._relaxation.smooth(u, other, self.smoother.before)
        self._restrict(u)
        return u

    def descend_from_zero(self) -> Any:
        """The same from u = 0; None if u still is."""
        if self.smoother.before:
            self._relaxation.begin(self.u, self.other)
        else:
            self.system.backend.sweep(fill, self.other, self.system.grid.interior, 0.0)
        self._restrict(self.other)
        return self.other

    def ascend(self, u: Any, result: Any) -> None:
        """u, or 0 for None, plus the next level's solution, after more sweeps, in `result`."""
        assert u is result
        self.coarse.system.halo.exchange(self.coarse.other)
        self._correct(u)
        self._relaxation.smooth(u, self.other if u is self.u else self.u, self.smoother.after)

    @cached_property
    def _residual(self) -> Any:
        """The array of the residual, or in full multigrid of b: this process's own points."""
        if self._assembly is None:
            return self._transfer.finer
        return self.system.backend.zeros(self.system.grid.shape)

    def _restrict(self, u: Any) -> None:
        """b of the next level is the residual b - A u, restricted."""
        system = self.system
        system.sweep(system.residual, self._residual, u, system.b, *system.coefficients)
        self._assemble()
        self._transfer.restrict()

    def _assemble(self) -> None:
        if self._assembly is not None:
            self._assembly.bring(self._transfer.finer, self._residual)

    @property
    def _is_interpolated_in_place(self) -> bool:
        return self._assembly is None and self._transfer.takes_rows

    @property
    def _starts(self) -> list[int]:
        """Where the arrays of this level begin in that of the transfer."""
        axes = self.system.grid.axes
        return [0 if self._assembly is None else axis.start for axis in axes]

    def _correct(self, u: Any) -> None:
        """u += what is interpolated from `other` of the next level."""
        if self._is_interpolated_in_place:
            self._transfer.interpolate(u)
            return
        self._transfer.interpolate()
        sweep, interior = self.system.backend.sweep, self.system.grid.interior
        if self._assembly is None:
            sweep(added, u, interior, u, self._transfer.finer)
        else:
            sweep(added_from, u, interior, u, self._transfer.finer, *self._starts)

    # ---- full multigrid: not corrections, but solutions, with the walls' values ----

    def begin_nested(self, u: Any) -> None:
        self._restrict_solution()
        self.coarse.solve_nested()
        self._prolong(u)

    def _restrict_solution(self) -> None:
        """The next level gets b, restricted, and the values at the walls in both its arrays."""
        system, b, grid, coarse = self.system, self.system.b, self.system.grid, self.coarse
        sweep, residual = system.backend.sweep, self._residual
        neighbours = system.halo.divided or grid.axes[0].periodic or self._assembly is not None
        # A source that is the same everywhere has no ghosts.
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
        """u is interpolated from `other` of the next level, which is for corrections from now."""
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
    """The passes of a backend that make half a cycle each; none if it has not all of them.

    They restrict into the array `down` and interpolate from `up`, of a coarse grid of a shape.
    """

    def __init__(
        self,
        plan: Plan,
        relaxation: Relaxation,
        transfer: Transfer,
        down: Any,
        up: Any,
        coarse_shape: tuple[int, ...],
    ):
        self._plan, self._relaxation = plan, relaxation
        self._shape = coarse_shape
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
            split = len(after) > LONGEST_ASCENT[system.backend.precision]
            half = len(after) // 2 if split and system.grid.dimension == 3 else len(after)
            first, rest = after[:half], after[half:]
            passes["ascend"] = self._leg(first, *self._up)
            passes["ascend from zero"] = self._leg(first, *self._up, from_zero=True)
            if rest:
                passes["go on"] = self._leg(rest, None, ())
        self.passes: dict[str, Any] = passes if all(passes.values()) else {}

    def _leg(self, sweeps: Sequence[Sweep], coarse: Any, weights: Any, **more: Any) -> Any:
        """Half a cycle in one pass, if the backend has it."""
        plan, system, relaxation = self._plan, self._plan.system, self._relaxation
        # A pass without sweeps has the arguments of one, too.
        point, stages, colours = relaxation.uncoloured(sweeps or relaxation.smoother.after)
        grid = system.grid
        where = (grid.shape, plan.u.shape[-1], grid.interior, system.halo.wraps)
        leg = CycleLeg(
            point, stages, colours if sweeps else (), *where, coarse, self._shape, weights,
            margin=plan.margin, inverse=relaxation.inverse_point, functions=FUNCTIONS, **more,
        )  # fmt: skip
        return system.backend.cycle_leg(leg)

    def add_norm(self, norm: Accumulator, restricts: bool) -> bool:
        """See `Level.add_norm_on_the_way`."""
        if not restricts and "go on" in self.passes:
            return False
        half = ((), *self._down) if restricts else (self._relaxation.smoother.after, *self._up)
        leg = self._leg(*half, norm=norm, restricts=restricts, **self._of_residual)
        if leg:
            self.passes["descend" if restricts else "ascend"] = leg
        return bool(leg)


class FusedLevel(SweptLevel):
    """A level whose half cycles the backend makes in one or two passes through memory."""

    def __init__(self, plan: Plan, relaxation: Relaxation, coarse: Level, step: Step, legs: Legs):
        super().__init__(plan, relaxation, coarse, step)
        self._legs, self.passes = legs, legs.passes
        self.swaps = not self.smoother.before and "go on" not in self.passes

    def add_norm_on_the_way(self, norm: Accumulator, restricts: bool) -> bool:
        return self._legs.add_norm(norm, restricts)

    def descend(self, u: Any, other: Any) -> Any:
        result = other if self.smoother.before else u
        self.passes["descend"](result, u)
        return result

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

    def _exchange_correction(self) -> None:
        """What the correction needs of other processes."""
        self.coarse.system.halo.exchange(self.coarse.other)


def level_of(plan: Plan, smoother: Smoother, coarse: Level, step: Step) -> SweptLevel:
    """A level in passes of the backend, if it has them for all that a cycle does, or in sweeps."""
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
    """u + correction, which is found so much further on."""
    return u[at] + shifted(at, correction, *starts)
