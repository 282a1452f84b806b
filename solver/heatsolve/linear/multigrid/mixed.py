"""Mixed precision: a solution to double precision by cycles of multigrid in single precision."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from heatsolve.backends import Accumulator
from heatsolve.errors import InputError
from heatsolve.linear.multigrid.cycle import Correction
from heatsolve.linear.multigrid.smoothers import finest_smoother, smoother_of
from heatsolve.linear.system import Coefficients, Method, System, with_norm_of_change
from heatsolve.stencil.grid import whole
from heatsolve.stencil.language import ONE, ZERO, Point, scaled, term, where

CYCLES = {1: 2, 2: 2, 3: 4}
"""Cycles for each correction, by dimension.

In 2D the rounding of single precision leaves 2e-4 of the residual on 8192 x 8192 points, as much as
two cycles leave. In 3D it leaves 5e-7 on 512 cubed, so more cycles pay: they save corrections, of
40 bytes a point each. A solution to 1e-10 takes three corrections in 2D, two in 3D.
"""
LARGEST_RESIDUAL = 40
"""The exponent to which the first residual is scaled: single precision holds values 2^80 times
larger, and values smaller by the 2^53 of a double and a further 2^110."""
EASY = range(-20, 61)
"""Exponents of residuals that need no scaling: values 2^60 times larger and smaller still fit."""
WIDEST = 2.0**60
"""The ratio of diagonal elements of A up to which all of them fit into single precision."""
MOST = 1000
"""The largest exponent in double precision, with room to spare."""


class Refinement(Method):
    """Iterative refinement: r = b - A u in double precision, A e = r in single, u + e in double.

    A e = r is solved by cycles of `Multigrid` from e = 0. Rounding errors of e act like the errors
    that a cycle leaves, so u converges to the rounding level of double precision (N. J.
    Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 12.1; D. Goeddeke, R.
    Strzodka and S. Turek, Int. J. Parallel Emergent Distrib. Syst. 22 (2007), 221).

    A and r are scaled by powers of two, which rounds nothing: the largest diagonal element of A to
    at most 1, and the initial residual to 2^40 unless its exponent is EASY.
    Raises InputError where the elements of A differ too much for single precision.
    """

    reduces_smooth_errors = True
    checks_per_floor = 4
    checks_without_fall = 2

    def __init__(
        self, system: System, u: Any, cycle: str = "V", smoother: str = "red-black",
        sweeps: int | None = None,
    ):  # fmt: skip
        super().__init__(system, u)
        self._errors, self._exponent = in_single(system)
        dimension = system.grid.dimension
        on_coarser = smoother_of(smoother, dimension, sweeps=sweeps)
        args = on_coarser, finest_smoother(on_coarser, dimension), cycle, CYCLES[dimension]
        self._correction = Correction(self._errors, *args)
        self._residual_of_step: int | None = None
        self._largest = system.backend.accumulator("max")

    def step(self, number: int, change: Accumulator | None) -> None:
        system = self.system
        if self._residual_of_step != number:
            self._find_residual()
        if "exponent" not in self.scalars:
            self._choose_exponent(self._largest.take())
        e = self._correction()
        self._residual_of_step = None
        point, out = with_norm_of_change(corrected, self.u, change)
        back = math.ldexp(1.0, -self._exponent - int(self.scalars["exponent"]))
        system.backend.sweep(point, out, system.grid.interior, self.u, e, back)

    def _choose_exponent(self, largest: float) -> None:
        """Choose the exponent by which residuals are scaled, from the first, unscaled residual."""
        self.scalars["exponent"] = 0.0
        # The test of convergence reports a residual that is 0 or not finite.
        if 0.0 < largest < math.inf and math.frexp(largest)[1] not in EASY:
            wanted = LARGEST_RESIDUAL - math.frexp(largest)[1]
            low, high = max(-MOST, -MOST - self._exponent), min(MOST, MOST - self._exponent)
            self.scalars["exponent"] = float(min(max(wanted, low), high))
            self._find_residual()

    def _find_residual(
        self, norm: Accumulator | None = None, of_b: Accumulator | None = None
    ) -> None:
        """Find r, scaled, in single precision; add terms of norms of the unscaled r, and of b."""
        system, scale = self.system, math.ldexp(1.0, int(self.scalars.get("exponent", 0.0)))
        norms = [] if norm is None else [norm]
        if "exponent" not in self.scalars:
            self._largest.clear()
            norms.append(self._largest)
        kinds = tuple(norm.kind for norm in norms)
        point = scaled_residual(system.residual, kinds, of_b and of_b.kind)
        out = (self._errors.b, *norms, *([] if of_b is None else [of_b]))
        system.sweep(point, out, self.u, system.b, scale, *system.coefficients)

    def residual_norm(self, steps: int, into: Accumulator) -> None:
        """Add the terms of a norm of the residual, which the next step then uses."""
        self._find_residual(into)
        self._residual_of_step = steps

    def first_values(self, into: Accumulator, *of_b: Accumulator) -> list[float]:
        """As `Method.first_values`; the largest residual is read from the device with them."""
        self._find_residual(into, *of_b)
        self._residual_of_step = 0
        *values, largest = self.system.backend.values([into, *of_b, self._largest])
        if "exponent" not in self.scalars:
            self._choose_exponent(largest)
        return values

    def restart(self) -> None:
        self.scalars.clear()
        self._residual_of_step = None


def in_single(system: System) -> tuple[System, int]:
    """The system of corrections in single precision, and n: its matrix is A / 2^n (asks all).

    Its walls have the value 0, and its right side is an array of its own.
    """
    backend, grid = system.backend, system.grid
    single = backend.single()
    args = (grid.interior, *system.coefficients)
    largest = backend.reduce("max", system.diagonal, *args)
    of_smallest = backend.reduce("max", reciprocal(system.diagonal), *args)
    if not largest * of_smallest <= WIDEST:
        raise InputError(
            f"solver.precision: the coefficients differ by a factor of {largest * of_smallest:.1e},"
            " too much for single precision"
        )
    exponent = math.frexp(largest)[1]

    def rounded(array: Any, factor: float) -> Any:
        if array is ONE:
            return array
        result = single.zeros(array.shape)
        backend.sweep(scaled, result, whole(array.shape), array, factor)
        return result

    share = math.ldexp(1.0, -exponent)
    coefficients = system.coefficients
    errors = replace(
        system,
        backend=single,
        halo=system.halo.of(grid, single),
        coefficients=Coefficients(
            rounded(coefficients.capacity, coefficients.s * share),
            ZERO if coefficients.s is ZERO else 1.0,
            tuple(rounded(array, share) for array in coefficients.conductances),
            tuple(rounded(array, 1.0) for array in coefficients.ratios),
        ),
        b=single.zeros(grid.shape),
    )
    return errors, exponent


def corrected(at, u, e, factor):
    """u + factor e."""
    return u[at] + factor * e[at]


@cache
def scaled_residual(residual: Point, kinds: tuple[str, ...], kind_of_b: str | None = None) -> Point:
    """factor (b - A u), with the terms of norms of b - A u, and of one of b."""

    def scaled_with_norms(at, u, b, factor, *coefficients):
        value = residual(at, u, b, *coefficients)
        terms = [term(value, kind) for kind in kinds]
        if kind_of_b is not None:
            terms.append(term(b[at], kind_of_b))
        return (factor * value, *terms)

    return scaled_with_norms


@cache
def reciprocal(diagonal: Point) -> Callable[..., Any]:
    """1 / d for the diagonal element d; 0 for d = 0, as of a single unknown without walls."""

    def inverse(at, *coefficients):
        value = diagonal(at, *coefficients)
        return where(value > 0.0, 1.0 / value, 0.0 * value)

    return inverse
