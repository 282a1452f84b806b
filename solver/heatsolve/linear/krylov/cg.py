"""The method of conjugate gradients."""

import math
from typing import Any

from heatsolve.backends import Accumulator
from heatsolve.linear import Method, System
from heatsolve.linear.diagonal import quotient


class ConjugateGradients(Method):
    """Conjugate gradients, preconditioned with the diagonal D, in the volume-weighted product.

    alpha = <r, z> / <p, A p>, u += alpha p, r -= alpha A p, z = D^-1 r, beta = <r, z>_new /
    <r, z>, p = z + beta p (Hestenes and Stiefel 1952; Y. Saad, "Iterative Methods for Sparse
    Linear Systems", 2003, algorithm 9.1). The sums are exact, so alpha and beta, and with them
    every bit, do not depend on the order in which they are added.
    """

    queues = False
    recurrent = True

    def __init__(self, system: System, u: Any):
        super().__init__(system, u)
        backend, shape = system.backend, system.grid.shape
        self._r, self._p, self._ap = (backend.zeros(shape) for _ in range(3))
        self._zero = backend.zeros((1,) * system.grid.dimension)
        self._sums = [backend.accumulator("sum") for _ in range(2)]
        self._prepare()
        self.confirm(0)

    def _prepare(self) -> None:
        residual = self.system.residual
        divided, self._scale = quotient(self.system)
        axes = self.system.grid.dimension

        def first(at, u, b, scale, *more):
            """r, z = p and the term of <r, z>."""
            ratios, coefficients = more[:axes], more[axes:]
            r = residual(at, u, b, *coefficients)
            z = divided(r, at, scale, *coefficients)
            return r, z, weighted_product(r, z, at, ratios)

        def apply(at, p, zero, *more):
            """A p and the term of <p, A p>."""
            ratios, coefficients = more[:axes], more[axes:]
            ap = -residual(at, p, zero, *coefficients)
            return ap, weighted_product(p[at], ap, at, ratios)

        def advance(at, u, r, p, ap, alpha, scale, *more):
            """u, r, and the term of <r, z>."""
            ratios, coefficients = more[:axes], more[axes:]
            new = r[at] - alpha * ap[at]
            z = divided(new, at, scale, *coefficients)
            return u[at] + alpha * p[at], new, weighted_product(new, z, at, ratios)

        def turn(at, p, r, beta, scale, *coefficients):
            """z + beta p."""
            return divided(r[at], at, scale, *coefficients) + beta * p[at]

        self._first, self._apply, self._advance, self._turn = first, apply, advance, turn

    def step(self, number: int, change: Accumulator | None) -> None:
        system, interior = self.system, self.system.grid.interior
        sweep = system.backend.sweep
        more = (*system.ratios, *system.coefficients)
        pap, rz = self._sums
        old = self.scalars["rz"]
        pap.clear()
        system.sweep(self._apply, (self._ap, pap), self._p, self._zero, *more)
        curvature = pap.value
        alpha = old / curvature if curvature > 0.0 else 0.0
        rz.clear()
        sweep(
            self._advance, (self.u, self._r, rz), interior,
            self.u, self._r, self._p, self._ap, alpha, self._scale, *more,
        )  # fmt: skip
        if change is not None:
            sweep(SCALED[change.kind], change, interior, self._p, alpha)
        new = rz.value
        beta = new / old if old > 0.0 else 0.0
        self.scalars["rz"] = new
        given = (self._p, self._r, beta, self._scale, *system.coefficients)
        sweep(self._turn, self._p, interior, *given)

    def solution(self, steps: int) -> Any:
        return self.u

    def memory(self, steps: int) -> dict[str, Any]:
        return {"u": self.u, "r": self._r, "p": self._p}

    def residual_norm(self, steps: int, into: Accumulator) -> None:
        self.system.backend.sweep(_value[into.kind], into, self.system.grid.interior, self._r)

    def restart(self) -> None:
        self.confirm(0)

    def confirm(self, steps: int) -> None:
        """Begin anew from the true residual, from which the recurrence slowly departs."""
        system, rz = self.system, self._sums[1]
        rz.clear()
        given = (system.b, self._scale, *system.ratios, *system.coefficients)
        system.sweep(self._first, (self._r, self._p, rz), self.u, *given)
        value = rz.value
        # The norm of the residual tells the caller of a NaN.
        self.scalars["rz"] = 0.0 if math.isnan(value) else value


def weighted_product(a, b, at, ratios):
    product = a * b
    for ratio in ratios:
        product = product / ratio[at]
    return product


def _square(at, u):
    return u[at] * u[at]


def _plain(at, u):
    return u[at]


def _scaled_square(at, p, alpha):
    return (alpha * p[at]) * (alpha * p[at])


def _scaled_plain(at, p, alpha):
    return alpha * p[at]


_value = {"sum": _square, "max": _plain}
SCALED = {"sum": _scaled_square, "max": _scaled_plain}
