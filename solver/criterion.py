"""When an iteration is looked at, and when it ends."""

import math
from typing import Any

from heatsolve.case import Case
from heatsolve.linear import System, term_of
from heatsolve.points import copy, fill

TERMS = {kind: term_of(copy, kind) for kind in ("sum", "max")}
"""The terms of the norms of an array."""


def kind_of(norm: str) -> str:
    """The kind of accumulator that finds a norm."""
    return "sum" if norm == "l2" else "max"


class Criterion:
    """When an iteration ends: the norm of its update or of its residual, against a tolerance."""

    def __init__(self, case: Case, system: System, u: Any, scratch: Any = None):
        solver = case.solver
        self.kind = kind_of(solver.norm)
        self.monitor = solver.monitor
        self.fixed = solver.iterations is not None
        self.limit = solver.iterations or solver.max_iterations
        self.every = solver.check_every
        if self.fixed and "check_every" not in solver.model_fields_set:
            self.every = self.limit
        relative = solver.relative and not self.fixed
        scale = self._norm_of_b(system, u, scratch) if relative else 1.0
        self.threshold = 0.0 if self.fixed else solver.tolerance * scale

    def norm(self, value: float) -> float:
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
        if self.fixed:
            return -1.0
        # A product: a power of floats raises an error where it overflows.
        return self.threshold * self.threshold if self.kind == "sum" else self.threshold

    @staticmethod
    def _no_values_at_walls(system: System, u: Any) -> bool:
        largest = system.backend.accumulator("max")
        for ghosts in system.grid.ghosts:
            system.backend.sweep(TERMS["max"], largest, ghosts, u)
        return largest.value == 0.0

    def _norm_of_b(self, system: System, u: Any, scratch: Any) -> float:
        """The norm of b with the walls' values moved into it: the residual of u = 0 inside.

        That is b itself where those values are 0; looked at where an array would have to be made.
        """
        accumulator = system.backend.accumulator(self.kind)
        no_walls = all(axis.periodic for axis in system.grid.axes)
        if no_walls or (scratch is None and self._no_values_at_walls(system, u)):
            system.backend.sweep(TERMS[self.kind], accumulator, system.grid.interior, system.b)
            return self.norm(accumulator.value)
        bare = system.backend.zeros(system.grid.shape) if scratch is None else scratch
        if scratch is not None:
            system.backend.sweep(fill, bare, system.grid.interior, 0.0)
        for ghosts in system.grid.ghosts:
            system.backend.sweep(copy, bare, ghosts, u)
        system.residual_norm(bare, accumulator)
        return self.norm(accumulator.value)
