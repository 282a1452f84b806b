"""What a backend may do in one pass through memory: several sweeps, or half a multigrid cycle.

All of it is optional: the same bits, only faster. Nothing here is needed for a result to be right.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from heatsolve.backends.accumulator import Accumulator
from heatsolve.backends.cycle_leg import CycleLeg
from heatsolve.backends.machine import Converts, Machine, converted
from heatsolve.stencil.language import Point
from heatsolve.stencil.signature import Region, Signature, describe, place_of
from heatsolve.stencil.trace import Tape

LONGEST_PASS = 15
"""Sweeps that one pass through memory makes at most."""

Pass = Callable[[Any, Any, Region, Sequence[Sequence[Any]], Sequence[Any], Region], None]
"""Takes new, u, the region, the stages, a register or None for each sweep, the region counted."""


class Prepared(NamedTuple):
    """A compiled pass, and how many arrays it moves through memory."""

    run: Pass
    converts: Converts
    arrays_touched: int


class Passes(Machine):
    """A machine with passes, if it overrides `most_sweeps` and `_compile_pass`.

    As it is here, it makes one sweep at a time.
    """

    def most_sweeps(
        self,
        point: Point,
        u: Any,
        region: Region,
        stages: Sequence[Sequence[Any]],
        wraps: Sequence[bool],
        changes: Sequence[Accumulator | None],
    ) -> int:
        """How many of these sweeps it pays to make in one pass through memory; 1: none is gained.

        The arguments are those of `sweeps`. The answer changes no bits.
        """
        return 1

    def sweeps(
        self,
        point: Point,
        new: Any,
        u: Any,
        region: Region,
        stages: Sequence[Sequence[Any]],
        wraps: Sequence[bool],
        changes: Sequence[Accumulator | None],
        counted: Region,
    ) -> None:
        """new = the result of several sweeps in turn, each from the one before; u is left alone.

        Sweep n is point(p, u_n, *stages[n]) at the points p of `region`; the stages differ in
        numbers only. Outside the region every u_n keeps the values of u, but along an axis in
        `wraps` (a bool for each axis) u_n is periodic: index 0 is the image of index n, and index
        n + 1 that of index 1. The ghosts of u are up to date; `new` is written inside the region
        only. changes[n], an Accumulator or None, takes the norm of u_{n+1} - u_n (the sum of its
        squares, or its largest magnitude) over the region `counted`. Called for at most as many
        sweeps as `most_sweeps` says, if more than 1. Raises ValueError when `new` is read, too, or
        is too small, and where there are no passes.
        """
        if any(high <= low for low, high in region):
            return
        for (_, high), extent in zip(region, new.shape, strict=True):
            if high > extent:
                raise ValueError(f"region {region} does not fit an output of {new.shape}")
        if place_of(new, (u, *stages[0])) is not None:
            raise ValueError(f"{point.__name__}: a pass does not write what it reads")
        described = tuple([describe(a) for a in (u, *stages[0])])
        kinds = tuple([None if change is None else change.kind for change in changes])
        key = (point, described, kinds, tuple(wraps), self.gated)
        known = self._compiled.get(key)
        if known is None:
            known = self._compiled[key] = self._prepare_pass(*key)
        run, converts, arrays_touched = known
        given = [converted(stage, converts) for stage in stages]
        registers = [None if change is None else change.register for change in changes]
        run(new, u, region, given, registers, counted)
        points = math.prod([high - low for low, high in region])
        self.points_updated += points * len(stages)
        self.bytes_moved += points * arrays_touched * self.dtype.itemsize

    def _told(
        self,
        find: Callable[[Tape, Signature], Any],
        point: Point,
        u: Any,
        stages: Sequence[Sequence[Any]],
    ) -> Any:
        """What `find` tells of a sweep, for `most_sweeps`: it is asked once for each kind."""
        described = tuple([describe(a) for a in (u, *stages[0])])
        key = point, described
        if key not in self._compiled:
            axes = len(u.shape)
            signature = Signature(described, ("array",), (None,), self.precision, axes)
            self._compiled[key] = find(signature.tape(point), signature)
        return self._compiled[key]

    def cycle_leg(self, half: CycleLeg) -> Callable[[Any, Any], None] | None:
        """A callable (new, u) that does half a cycle in a pass or two; None where there is none.

        It writes the result to `new` and leaves u alone; the ghosts of u, and those of the coarse
        array, are up to date, and at walls those of `new` are as those of u (0 for `from_zero`).
        Without sweeps there is nothing to write, and `new` is u.
        """
        return None

    def _prepare_pass(
        self, point: Point, described: Any, kinds: Any, wraps: tuple[bool, ...], gated: bool
    ) -> Prepared:
        axes = len(wraps)
        signature = Signature(described, ("array",), (None,), self.precision, axes, gated)
        tape = signature.tape(point)
        run = self._compile_pass(point, signature, tape, wraps, kinds)
        if run is None:
            raise ValueError(f"{self.name} makes one sweep at a time")
        converts = self._converts(described[1:])
        return Prepared(run, converts, signature.arrays_touched(tape))

    def _compile_pass(
        self,
        point: Point,
        signature: Signature,
        tape: Tape,
        wraps: tuple[bool, ...],
        kinds: tuple[str | None, ...],
    ) -> Pass | None:
        """The sweeps of a pass, compiled; None where a machine has no passes.

        `kinds` tells for each sweep which norm of its change is taken, if any; its register is
        None where it is not.
        """
        return None
