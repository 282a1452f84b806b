"""Jacobi's iteration."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from heatsolve.backends import Accumulator
from heatsolve.linear import Pairwise, System
from heatsolve.linear.diagonal import quotient
from heatsolve.stencil.language import Point

SWEEPS_PLAYED_BACK = 16
"""Sweeps that are played back together, at least: so often the host has something to do."""


class Jacobi(Pairwise):
    """u <- u + weight D^-1 (b - A u).

    `update` replaces that formula by a literal one, `update(at, u, *arguments)`.
    """

    def __init__(
        self,
        system: System,
        u: Any,
        weight: float = 1.0,
        update: Point | None = None,
        arguments: Sequence[Any] = (),
    ):
        super().__init__(system, u)
        residual = system.residual
        divided, scale = quotient(system, weight)

        def jacobi(at, u, b, scale, *coefficients):
            r = residual(at, u, b, *coefficients)
            return u[at] + divided(r, at, scale, *coefficients)

        self.point = update or jacobi
        self.given = tuple(arguments) if update else (system.b, scale, *system.coefficients)
        self.longest = system.longest_pass(self.point, u, self.given)
        # After so many sweeps the arrays have their places again, and the next exchange is due.
        period = math.lcm(2, system.halo.depth, self.longest)
        self._at_once = period * -(-SWEEPS_PLAYED_BACK // period)
        self._many: Callable[[], None] | None = None

    def step(self, number: int, change: Accumulator | None) -> None:
        old, new = self.solution(number), self.solution(number + 1)
        given = self.given
        self.system.update(self.point, new, old, *given, change=change, number=number)

    def advance(self, number: int, changes: Sequence[Accumulator | None]) -> int:
        old, new = self.solution(number), self.solution(number + 1)
        stages = [self.given] * len(changes)
        return self.system.updates(self.point, new, old, stages, changes, number)

    def march(self, number: int, until: int) -> int:
        while until - number >= 2 * self._at_once:
            number = super().march(number, number + -number % self._at_once)
            if self._many is None:
                self._many = self.system.replayed(self._march_at_once)
            self._many()
            number += self._at_once
        return super().march(number, until)

    def _march_at_once(self) -> None:
        super().march(0, self._at_once)
