"""When an iteration is looked at, and when it ends."""

import math
from collections.abc import Callable
from typing import Any

from heatsolve.backends import Accumulator
from heatsolve.case.load import Case
from heatsolve.errors import Diverged, InputError
from heatsolve.linear import Method, System
from heatsolve.stencil.language import copy, fill


def kind_of(norm: str) -> str:
    """The kind of accumulator that finds a norm."""
    return "max" if norm == "max" else "sum"


IN_RANGE = {"float64": (2.0**-400, 2.0**400), "float32": (2.0**-30, 2.0**50)}
"""Norms between them are in range: their squares are, to the end of a run, by precision.

The norm of a residual in float32 falls by 2^24 and has terms smaller by 2^12 or more, whose squares
still are above 2^-149, the smallest number.
"""
FARTHEST = {"float64": (1000, 1000), "float32": (120, 50)}
"""The largest n of a factor 2^n, and of the 2^n that u times it does not pass, up or down."""
NORMAL = {"float64": 2.0**-1022, "float32": 2.0**-126}
"""The smallest number with all of its digits."""


class OutOfRange(Exception):
    """Squares overflow or underflow; u and b times 2^exponent would be in range."""

    def __init__(self, exponent: int):
        super().__init__()
        self.exponent = exponent


class Criterion:
    """When an iteration ends: the norm of its update or of its residual, against a tolerance.

    A relative tolerance is a share of the norm of b with the walls' values moved into it; where
    that is 0, of the norm at the first check. `relative_to` says which of them, in words.
    """

    def __init__(
        self,
        case: Case,
        system: System,
        u: Any,
        scratch: Any = None,
        total: Callable[[Any, Accumulator], None] | None = None,
        scale: float | None = None,
        looks_first: bool = True,
        exponent: int | None = None,
    ):
        """`total` adds the magnitudes of a field at all points, for "sum-abs-change"; `scale` is
        what the tolerance is relative to, if the caller knows; `looks_first` tells whether a
        residual is looked at before the first iteration; `exponent`: u and b were multiplied with 2
        to this power, 0 if they were not, None if it does not matter that they are out of range.
        """
        self.exponent = exponent
        self.looks_first = looks_first
        solver = case.solver
        self.total = total if solver.norm == "sum-abs-change" else None
        self.kind = kind_of(solver.norm)
        self.monitor = solver.monitor
        self.fixed = solver.iterations is not None
        self.limit = solver.iterations or solver.max_iterations
        self.every = solver.check_every
        if self.fixed and "check_every" not in solver.model_fields_set:
            self.every = self.limit
        self._system, self._tolerance = system, 0.0 if self.fixed else solver.tolerance
        relative = solver.is_relative and not self.fixed and scale is None
        self.relative_to = "the right side" if relative else ""
        self._scale: float | None = math.ldexp(1.0, exponent or 0) if scale is None else scale
        if relative:
            self._scale = self._norm_of_right_side(u, scratch)

    def _norm_of_right_side(self, u: Any, scratch: Any) -> float | None:
        """None where no wall has a value: then it is the norm of b, found when it is needed."""
        system = self._system
        if system.homogeneous or (scratch is None and not _values_at_walls(system, u)):
            return None
        return self._norm_with_walls(u, scratch)

    @property
    def scale(self) -> float:
        """What the tolerance is relative to, 1 if to nothing; `first_residual` may have found it.

        It is 0 for b = 0 up to the first check.
        """
        if self._scale is None:
            accumulator = self._system.backend.accumulator(self.kind)
            self._system.norm_of_b(accumulator)
            self._scale = self.norm(accumulator.value)
        return self._scale

    @property
    def waits(self) -> bool:
        """Whether the first check will say what the tolerance is relative to."""
        return bool(self.relative_to) and self.scale == 0.0

    def begin_with(self, first: float) -> None:
        """Take the norm of the first check."""
        if self.waits and first > 0.0:
            self._scale, self.relative_to = first, f"the first {self.monitor}"

    def demand_range(self, norm: float, u: Any) -> None:
        """Raise OutOfRange where squares of the first norm, or of the scale, have no numbers.

        The scale of an absolute norm is 1; a relative one of 0 begins with the solution.
        """
        if self.exponent != 0 or self.total is not None:
            return
        solved = norm == 0.0 and self.relative_to and self._in_range(self.scale)
        if solved or (self._in_range(norm) and (self._in_range(self.scale) or self.scale == 0.0)):
            return
        system = self._system
        given = (system.rounding, u, system.b, *system.coefficients)
        largest = system.reduce("max", *given)
        if not self._in_range(largest) and (exponent := self._exponent_of(largest, u)):
            raise OutOfRange(exponent)

    def _in_range(self, norm: float) -> bool:
        smallest, largest = IN_RANGE[self._system.backend.precision]
        return smallest <= norm <= largest

    def _exponent_of(self, largest: float, u: Any) -> int:
        """n with which the largest |A| |u| + |b| times 2^n is near 1, as far as u allows.

        Where that overflows, u and b stand for it. It is 0 where u and b have no digits to bring
        into range. Raises InputError where no n serves.
        """
        system = self._system
        backend, grid = system.backend, system.grid
        of_u = largest_of(system, u)
        size = of_u + backend.reduce("max", copy, grid.interior, system.b)
        if not NORMAL[backend.precision] <= size < math.inf:
            return 0
        overflows = not largest < math.inf
        farthest, of_field = FARTHEST[backend.precision]
        exponent = -math.frexp(size if overflows else largest)[1]
        if of_u > 0.0:
            place = math.frexp(of_u)[1]
            exponent = max(-of_field - place, min(of_field - place, exponent))
        exponent = max(-farthest, min(farthest, exponent))
        if not overflows and not self._in_range(math.ldexp(largest, exponent)):
            raise InputError(
                f"solver.precision: {backend.precision} does not hold both the temperatures, up to "
                f"{of_u:.1e}, and the fluxes between them, up to {largest:.1e}, with their squares;"
                ' take solver.precision = "float64", or other units'
            )
        return exponent

    @property
    def said(self) -> str:
        """How a norm over `scale` is said."""
        relative = f" relative to {self.relative_to}" if self.relative_to else ""
        return f"norm of the {self.monitor} {{:.3e}}{relative}"

    @property
    def threshold(self) -> float:
        """The norm below which an iteration ends."""
        return self._tolerance * self.scale

    def first_residual(self, method: Method) -> float:
        """The value of the residual's accumulator before the first step."""
        norms = [method.accumulator(self.kind)]
        if self._scale is None:
            norms.append(self._system.backend.accumulator(self.kind))
        value, *of_b = method.first_values(*norms)
        if of_b:
            self._scale = self.norm(of_b[0])
        return value

    def find(self, method: Method, steps: int, into: Accumulator) -> None:
        """Add the terms of what is looked at after so many steps, where a step does not."""
        if self.total is not None:
            self.total(method.solution(steps), into)
        else:
            method.residual_norm(steps, into)

    def norm(self, value: float, before: float = math.nan) -> float:
        """The norm of an accumulator's value; `before`: that of the check before."""
        if self.total is not None:
            scale = before if before != 0.0 else value
            return abs(value - before) / scale if value != before else 0.0
        return math.sqrt(value) if self.kind == "sum" else value

    def check_after(self, number: int) -> int:
        """The iteration of the first check after iteration `number`."""
        return min(number - number % self.every + self.every, self.limit)

    def checks(self, number: int) -> bool:
        """Whether there is a check after iteration `number`."""
        return number % self.every == 0 or number == self.limit

    def met(self, norm: float) -> bool:
        return not self.fixed and (norm < self.threshold or norm == 0.0)

    @property
    def gate(self) -> float:
        """The threshold for the value of an accumulator."""
        if self.fixed or self.total is not None or self.waits:
            return -1.0
        # A product: a power of floats raises an error where it overflows.
        return self.threshold * self.threshold if self.kind == "sum" else self.threshold

    def _norm_with_walls(self, u: Any, scratch: Any) -> float:
        """The norm of b with the walls' values moved into it: the residual of u = 0 inside."""
        system = self._system
        bare = system.backend.zeros(system.grid.shape) if scratch is None else scratch
        if scratch is not None:
            system.backend.sweep(fill, bare, system.grid.interior, 0.0)
        for ghosts in system.grid.ghosts:
            system.backend.sweep(copy, bare, ghosts, u)
        accumulator = system.backend.accumulator(self.kind)
        system.residual_norm(bare, accumulator)
        return self.norm(accumulator.value)


def largest_of(system: System, u: Any) -> float:
    """The largest magnitude of u and of its walls' values, NaN where one is not finite."""
    return system.backend.reduce("max", copy, system.grid.everything, u)


def lost_digits(system: System, u: Any, largest: float) -> str:
    """What to say of a u of this largest magnitude that was brought back from a factor 2^n.

    Empty where it has all of its digits. Raises Diverged where it overflowed.
    """
    precision = system.backend.precision
    if not largest_of(system, u) < math.inf:
        raise Diverged(f"diverged: {precision} holds no temperature of {largest:.1e}")
    if not 0.0 < largest < NORMAL[precision]:
        return ""
    return (
        f"solver.precision: temperatures are {largest:.1e} at most, and below "
        f"{NORMAL[precision]:.1e} {precision} does not have all of its digits; take other units"
    )


def _values_at_walls(system: System, u: Any) -> bool:
    largest = system.backend.accumulator("max")
    for ghosts in system.grid.ghosts:
        system.backend.sweep(copy, largest, ghosts, u)
    return largest.value != 0.0
