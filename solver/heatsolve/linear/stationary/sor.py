"""Successive over-relaxation in red-black order."""

import math
from typing import Any

from heatsolve.backends import Accumulator
from heatsolve.linear import Pairwise, System
from heatsolve.linear.colours import of_colour, signs
from heatsolve.linear.diagonal import quotient


class Sor(Pairwise):
    """u <- u + omega D^-1 (b - A u), first at the red points of a chessboard, then at the black.

    Points of one colour are no neighbours, so each half is one sweep whose points may be updated
    in any order. Without `omega`: Young's optimum 2 / (1 + sqrt(1 - rho^2)), rho the spectral
    radius of Jacobi's iteration (D. M. Young, "Iterative Solution of Large Linear Systems", 1971,
    chapter 6).
    """

    def __init__(self, system: System, u: Any, omega: float | None = None):
        super().__init__(system, u)
        if omega is None:
            rho = 1.0 - system.spectrum()[0]
            omega = 2.0 / (1.0 + math.sqrt(1.0 - rho * rho))
        self.omega = omega
        residual = system.residual
        divided, self._scale = quotient(system, omega)

        def one_colour(at, u, b, scale, colour, *more):
            signs, coefficients = more[: len(at)], more[len(at) :]
            r = residual(at, u, b, *coefficients)
            value = u[at] + divided(r, at, scale, *coefficients)
            return of_colour(at, colour, signs, value, u[at])

        self._point = one_colour
        self._signs = signs(system.grid, system.backend)

    def step(self, number: int, change: Accumulator | None) -> None:
        first, second = self._pair
        halves = ((first, second, 1.0), (second, first, -1.0))
        for half, (old, new, colour) in enumerate(halves):
            given = (self.system.b, self._scale, colour, *self._signs, *self.system.coefficients)
            self.system.update(
                self._point, new, old, *given, change=change, number=2 * number + half
            )

    def solution(self, steps: int) -> Any:
        return self.u
