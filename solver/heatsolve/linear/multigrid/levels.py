"""A level of multigrid: what a cycle does on one grid of the hierarchy."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from heatsolve.backends import Accumulator, CycleLeg
from heatsolve.linear.assembly import Assembly
from heatsolve.linear.multigrid.direct import Inverse
from heatsolve.linear.multigrid.overlap import Overlap, Passage
from heatsolve.linear.multigrid.smoothers import Relaxation, Smoother, Sweep
from heatsolve.linear.multigrid.transfer import FUNCTIONS, Prolongation, Transfer
from heatsolve.linear.system import System, added
from heatsolve.stencil.language import copy, fill, shifted

LONGEST_ASCENT = {"float64": 4, "float32": 2}
"""Sweeps, of a colour each, of a pass in space after a correction where there are none before it.

On an H200 all four in one pass take 1.9 ms (512 cubed), in two 2.2; in single precision, where a
thread has twice the columns, 1.8 and 1.3.
"""


class Level:
    """One grid of the hierarchy: its system, two arrays for u, the way to the next level.

    What a cycle asks of it: `descend`, sweeps after which the next level gets the residual as its
    b; and `ascend`, which adds the next level's solution, found in its `other`, before more sweeps.
    A backend may do either in one or two passes through memory. Of the last level it asks
    `coarse_solve`.
    """

    def __init__(
        self, system: System, u: Any, other: Any, smoother: Smoother, margin: int | None = None
    ):
        """`margin`: layers beside the walls beyond which all coefficients are the same."""
        self.system, self._margin = system, margin
        self.u, self.other = u, other
        self.smoother = smoother
        self._relaxation = Relaxation(system, smoother, u.shape)
        self._passes: dict[str, Any] = {}
        self._inverse: Inverse | None = None
        self.overlap: Overlap | None = None
        """Of a block that holds layers of its neighbours."""
        self._passage: Passage | None = None

    def be_last(self, if_sound: bool) -> bool:
        """Let there be no next level: the system is solved by the inverse of its matrix.

        `if_sound`: only if rounding allows; whether it is the last one.
        """
        inverse = Inverse(self.system)
        if inverse.is_sound or not if_sound:
            self._inverse = inverse
        return self._inverse is not None

    def lead_to(self, coarse: "Level", transfer: Transfer, assembly: Assembly | None) -> None:
        """Set the next level; with an `assembly` every process has all of it."""
        self._coarse, self._transfer, self._assembly = coarse, transfer, assembly
        self._down, self._up = coarse.system.b, coarse.other
        self._extents = coarse.system.grid.shape
        if assembly is None and transfer.halves_all and not self.system.halo.divided:
            self._passes = self._fused()

    @cached_property
    def _residual(self) -> Any:
        """The array of the residual, or in full multigrid of b: this process's own points."""
        if self._assembly is None:
            return self._transfer.finer
        return self.system.backend.zeros(self.system.grid.shape)

    @property
    def is_halved_in_blocks(self) -> bool:
        """Whether the next level is made along all axes, by each process for itself."""
        return self._transfer.halves_all and self._assembly is None

    def overlap_with(self, overlap: Overlap, transfer: Transfer, passage: Passage) -> bool:
        """Let its block hold layers of the neighbours; whether the backend has passes for it."""
        self.overlap, self._transfer, self._passage = overlap, transfer, passage
        self._down, self._up, self._extents = passage.down, passage.up, passage.extents
        self._passes = self._fused()
        return bool(self._passes)

    def _fused(self) -> dict[str, Any]:
        """What the backend does in one pass; nothing, unless it is all."""
        transfer, smoother = self._transfer, self.smoother
        given = self._of_residual | {"restricts": True}
        before, after = smoother.before, smoother.after
        descent = before, self._down, transfer.restriction_weights
        correction = self._up, transfer.interpolation_weights
        result = {
            "descend": self._half(*descent, **given),
            "descend from zero": self._half(*descent, **given, from_zero=True),
        }
        if before:
            result["ascend"] = self._half(after, *correction)
        else:
            split = len(after) > LONGEST_ASCENT[self.system.backend.precision]
            half = len(after) // 2 if split and self.system.grid.dimension == 3 else len(after)
            first, rest = after[:half], after[half:]
            result["ascend"] = self._half(first, *correction)
            result["ascend from zero"] = self._half(first, *correction, from_zero=True)
            if rest:
                result["go on"] = self._half(rest, None, ())
        return result if all(result.values()) else {}

    def _half(self, sweeps: Sequence[Sweep], coarse: Any, lines: Any, **more: Any) -> Any:
        """Half a cycle in one pass, if the backend has it."""
        system = self.system
        # A pass without sweeps has the arguments of one, too.
        point, stages, colours = self._relaxation.uncoloured(sweeps or self.smoother.after)
        grid = system.grid
        where = (grid.shape, self.u.shape[-1], grid.interior, system.halo.wraps)
        cycle = CycleLeg(
            point, stages, colours if sweeps else (), *where, coarse, self._extents, lines,
            margin=self._margin, inverse=self._relaxation.inverse_point, functions=FUNCTIONS,
            **more,
        )  # fmt: skip
        return system.backend.cycle_leg(cycle)

    def look_on_the_way(self, norm: Accumulator, restricts: bool) -> bool:
        """Have a pass add the terms of a norm of the residual, too, if it can.

        `ascend` adds those of its result or, if it `restricts`, `descend` those of u: then no
        sweeps come first.
        """
        if not self._passes or (not restricts and "go on" in self._passes) or self.overlap:
            return False
        transfer = self._transfer
        half = (self.smoother.after, self._up, transfer.interpolation_weights)
        if restricts:
            half = ((), self._down, transfer.restriction_weights)
        result = self._half(*half, norm=norm, restricts=restricts, **self._of_residual)
        if result:
            self._passes["descend" if restricts else "ascend"] = result
        return bool(result)

    @property
    def swaps(self) -> bool:
        """Whether a cycle's result is not in the array that it began with, but in the other one."""
        return bool(self._passes) and not self.smoother.before and "go on" not in self._passes

    @property
    def _of_residual(self) -> dict[str, Any]:
        """What half a cycle takes that computes a residual."""
        system = self.system
        return {"residual": system.residual, "operands": (system.b, *system.coefficients)}

    def descend(self, u: Any, other: Any) -> Any:
        """Sweeps of u, and b of the next level; which of the two arrays holds u then."""
        if self._passes:
            result = other if self.smoother.before else u
            if self.overlap is not None:
                self.overlap.exchange(u)
            self._passes["descend"](result, u)
            self._bring_down()
            return result
        self._relaxation.smooth(u, other, self.smoother.before)
        self._restrict(u)
        return u

    def descend_from_zero(self) -> Any:
        """The same from u = 0; None if u still is."""
        if self._passes:
            self._passes["descend from zero"](self.u, None)
            self._bring_down()
            return self.u if self.smoother.before else None
        if self.smoother.before:
            self._relaxation.begin(self.u, self.other)
        else:
            system = self.system
            system.backend.sweep(fill, self.other, system.grid.interior, 0.0)
        self._restrict(self.other)
        return self.other

    def ascend(self, u: Any, result: Any) -> None:
        """u, or 0 for None, plus the next level's solution, after more sweeps, in `result`."""
        self._bring_up()
        ascent = self._passes.get("ascend from zero" if u is None else "ascend")
        if ascent and "go on" in self._passes:
            halfway = self.other if result is self.u else self.u
            ascent(halfway, u)
            self._passes["go on"](result, halfway)
            return
        if ascent:
            ascent(result, u)
            return
        assert u is result
        self._correct(u)
        self._relaxation.smooth(u, self.other if u is self.u else self.u, self.smoother.after)

    def _restrict(self, u: Any) -> None:
        """b of the next level is the residual b - A u, restricted."""
        system = self.system
        system.sweep(system.residual, self._residual, u, system.b, *system.coefficients)
        self._assemble()
        self._transfer.restrict()

    def _correct(self, u: Any) -> None:
        """u += what is interpolated from `other` of the next level."""
        if self._assembly is None and self._transfer.takes_rows:
            self._transfer.interpolate(u)
            return
        self._transfer.interpolate()
        sweep, interior = self.system.backend.sweep, self.system.grid.interior
        if self._assembly is None:
            sweep(added, u, interior, u, self._transfer.finer)
        else:
            sweep(added_from, u, interior, u, self._transfer.finer, *self._starts)

    def _bring_down(self) -> None:
        """What b of the next level needs of other processes."""
        if self._passage is not None:
            self._passage.go_down()

    def _bring_up(self) -> None:
        """What the correction needs of them."""
        if self._passage is not None:
            self._passage.go_up()
        else:
            self._coarse.system.halo.exchange(self._coarse.other)

    def coarse_solve(self, u: Any, result: Any) -> None:
        """The solution of the last level, from u or what it has of it: the walls' values."""
        assert self._inverse is not None
        self._inverse.solve(u, result)

    def coarse_solve_from_zero(self) -> None:
        """The same in `other` where walls hold 0."""
        assert self._inverse is not None
        self._inverse.solve_from_zero(self.other)

    # ---- full multigrid: not corrections, but solutions, with the walls' values ----

    def restrict_solution(self) -> None:
        """The next level gets b, restricted, and the values at the walls in both its arrays."""
        system, b, grid, coarse = self.system, self.system.b, self.system.grid, self._coarse
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

    def prolong(self, u: Any) -> None:
        """u is interpolated from `other` of the next level, which is for corrections from now."""
        sweep, coarse = self.system.backend.sweep, self._coarse
        coarse.system.halo.exchange(coarse.other)
        if self._assembly is None and self._transfer.takes_rows:
            self._prolongation.interpolate(u)
        else:
            self._prolongation.interpolate()
            sweep(shifted, u, self.system.grid.interior, self._transfer.finer, *self._starts)
        for ghosts in coarse.system.grid.ghosts:
            sweep(filled, (coarse.u, coarse.other), ghosts, 0.0)

    @cached_property
    def _prolongation(self) -> Prolongation:
        return Prolongation(self._transfer, self._coarse.system.halo.across)

    def _assemble(self) -> None:
        if self._assembly is not None:
            self._assembly.bring(self._transfer.finer, self._residual)

    @property
    def _starts(self) -> list[int]:
        """Where the arrays of this level begin in that of the transfer."""
        axes = self.system.grid.axes
        return [0 if self._assembly is None else axis.start for axis in axes]


def copied(at, a):
    """a, for two arrays."""
    return a[at], a[at]


def filled(at, value):
    """A number, in two arrays."""
    return value, value


def added_from(at, u, correction, *starts):
    """u + correction, which is found so much further on."""
    return u[at] + shifted(at, correction, *starts)
