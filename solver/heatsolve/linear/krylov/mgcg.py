"""Conjugate gradients preconditioned by multigrid."""

import math
from dataclasses import replace
from typing import Any

from heatsolve.backends import Accumulator
from heatsolve.linear import System
from heatsolve.linear.krylov.cg import SCALED, ConjugateGradients, weighted_product
from heatsolve.linear.multigrid.multigrid import Correction
from heatsolve.linear.multigrid.smoothers import smoother_of
from heatsolve.stencil.language import copy


class MultigridCG(ConjugateGradients):
    """Conjugate gradients with one symmetric V cycle for z = B r in place of z = D^-1 r.

    Jumps of the conductivity leave a few errors that a cycle hardly reduces; conjugate gradients
    take these out one by one (O. Tatebe, Copper Mountain Conf. on Multigrid Methods 6 (1993), 621).
    """

    def __init__(
        self, system: System, u: Any, cycle: str = "V", smoother: str = "red-black",
        sweeps: int | None = None,
    ):  # fmt: skip
        self._cycle = cycle
        self._smoother = smoother_of(smoother, system.grid.dimension, True, sweeps)
        super().__init__(system, u)

    def _prepare(self) -> None:
        super()._prepare()
        errors = replace(self.system, b=self._r)
        self._correction = Correction(errors, self._smoother, self._smoother, self._cycle)

    def step(self, number: int, change: Accumulator | None) -> None:
        system, interior = self.system, self.system.grid.interior
        sweep = system.backend.sweep
        more = (*system.ratios, *system.coefficients)
        pap, old = self._sums[0], self.scalars["rz"]
        pap.clear()
        system.sweep(self._apply, (self._ap, pap), self._p, self._zero, *more)
        curvature = pap.value
        alpha = old / curvature if curvature > 0.0 else 0.0
        given = (self.u, self._r, self._p, self._ap, alpha)
        sweep(_advance, (self.u, self._r), interior, *given)
        if change is not None:
            sweep(SCALED[change.kind], change, interior, self._p, alpha)
        z, new = self._preconditioned()
        beta = new / old if old > 0.0 else 0.0
        self.scalars["rz"] = new
        sweep(_turn, self._p, interior, self._p, z, beta)

    def _preconditioned(self) -> tuple[Any, float]:
        """z = B r and <r, z>."""
        system, rz = self.system, self._sums[1]
        z = self._correction()
        rz.clear()
        given = (self._r, z, *system.ratios)
        system.backend.sweep(_product, rz, system.grid.interior, *given)
        return z, rz.value

    def confirm(self, steps: int) -> None:
        """Begin anew from the true residual, from which the recurrence slowly departs."""
        system, interior = self.system, self.system.grid.interior
        system.sweep(system.residual, self._r, self.u, system.b, *system.coefficients)
        z, value = self._preconditioned()
        system.backend.sweep(copy, self._p, interior, z)
        # The norm of the residual tells the caller of a NaN.
        self.scalars["rz"] = 0.0 if math.isnan(value) else value


def _advance(at, u, r, p, ap, alpha):
    """u and r."""
    return u[at] + alpha * p[at], r[at] - alpha * ap[at]


def _turn(at, p, z, beta):
    """z + beta p."""
    return z[at] + beta * p[at]


def _product(at, r, z, *ratios):
    """The term of <r, z>."""
    return weighted_product(r[at], z[at], at, ratios)
