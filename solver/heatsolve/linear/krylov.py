"""Conjugate gradients, preconditioned with the diagonal of A or with a multigrid cycle."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

from heatsolve.backends import Accumulator
from heatsolve.linear.multigrid.cycle import Correction
from heatsolve.linear.multigrid.smoothers import smoother_of
from heatsolve.linear.stationary import division_by_diagonal
from heatsolve.linear.system import Method, System, share_of
from heatsolve.stencil.language import Point, copy, term_of


class ConjugateGradients(Method):
    """Conjugate gradients, preconditioned with the diagonal D; inner products weighted by volume.

    alpha = <r, z> / <p, A p>, u += alpha p, r -= alpha A p, z = D^-1 r, beta = <r, z>_new /
    <r, z>, p = z + beta p (Hestenes and Stiefel 1952; Y. Saad, "Iterative Methods for Sparse
    Linear Systems", 2003, algorithm 9.1). The sums are exact, so alpha, beta and every bit of u are
    independent of the order of addition. A step begins with z, beta and p for the residual of the
    step before: after the last step they are not needed.

    alpha and beta are arrays of one element, so that a device computes them without its host. The
    sums `<r, z>` of even and of odd steps have separate places.
    """

    recurrent = True

    def __init__(self, system: System, u: Any):
        super().__init__(system, u)
        backend, shape = system.backend, system.grid.shape
        self._r, self._p, self._ap = (backend.zeros(shape) for _ in range(3))
        one = (1,) * system.grid.dimension
        self._alpha, self._beta, self._zero = (backend.zeros(one) for _ in range(3))
        self._pap, self._rz = (backend.accumulator("sum") for _ in range(2))
        self._sums = backend.scalars(3)
        self._begins = True
        """Whether the next direction p is z, without a share of the direction before."""
        self._true: dict[str, Accumulator] = {}
        """Norms of the true residual, by kind."""
        self._weights = (*system.coefficients.ratios, *system.coefficients)
        self._prepare()
        self._begin(0)

    def _prepare(self) -> None:
        divided, self._scale = division_by_diagonal(self.system)
        points = points_of(self.system.residual, divided)
        self._first, self._apply, self._advance, self._turn = points

    def step(self, number: int, change: Accumulator | None) -> None:
        system, key = self.system, (number % 2, self._begins)
        self.play(key, partial(self._make_step, *key))
        self._begins = False
        if change is not None:
            point = term_of(_moved_by, change.kind)
            system.backend.sweep(point, change, system.grid.interior, self._p, self._alpha)

    def _make_step(self, number: int, begins: bool) -> None:
        system = self.system
        self._find_direction(number, begins)
        system.sweep(self._apply, (self._ap, self._pap), self._p, self._zero, *self._weights)
        self._sums.divide(self._pap, CURVATURE, number % 2, CURVATURE, self._alpha)
        self._move(number)

    def _keep_product(self, number: int, total: Accumulator | None) -> None:
        """Keep <r, z> of a step; beta is its ratio to <r, z> of the step before."""
        self._sums.divide(total, number % 2, number % 2, (number + 1) % 2, self._beta)

    def replace_residual(self, steps: int) -> None:
        self._begins = True
        self.play(("replace", steps % 2), partial(self._begin, steps))

    def confirm(self, kind: str) -> float:
        if self.system.backend.confirmed is not None:
            return self.system.backend.confirmed
        norm = self._true_norm(kind)

        def work() -> None:
            self.system.residual_norm(self.u, norm)
            norm.post()

        self.play(("confirm", kind), work)
        return norm.posted()()

    def confirm_ahead(self, kind: str, threshold: float) -> None:
        backend, norm = self.system.backend, self._true_norm(kind)
        work = partial(self.system.residual_norm, self.u, norm)
        with backend.continuing():
            self.play(("ahead", kind), work, continues=True)
            backend.confirm(norm, threshold)

    def _true_norm(self, kind: str) -> Accumulator:
        if kind not in self._true:
            self._true[kind] = self.system.backend.accumulator(kind)
        return self._true[kind]

    def restart(self) -> None:
        def work() -> None:
            for total in (self._pap, self._rz):  # an iteration before may have ended by an error
                total.clear()
            self._begin(0)

        self._begins = True
        self.play("restart", work)

    def record(self, steps: int) -> dict[str, float]:
        """<r, z> of the last step, and of the next step if the last one has computed it already."""
        sums = self._sums.sums
        before, this = sums[(steps + 1) % 2], sums[steps % 2]
        return {"rz": before, "next rz": this, "begins": float(self._begins)}

    def recall(self, steps: int, scalars: dict[str, float]) -> None:
        if "begins" not in scalars:  # checkpoints from before 2026-12 held the next direction
            self.replace_residual(steps)
            return
        self._begins = bool(scalars["begins"])
        pair = scalars.get("next rz", 0.0), scalars["rz"]
        self._sums.sums = [*(pair if steps % 2 == 0 else reversed(pair)), 0.0]
        self._keep_product(steps, None)

    # ---- the sweeps that depend on the preconditioner; with the diagonal z is never stored ----

    def _begin(self, steps: int) -> None:
        """r = b - A u; with the diagonal also p = z and <r, z>."""
        system, out = self.system, (self._r, self._p, self._rz)
        system.sweep(self._first, out, self.u, system.b, self._scale, *self._weights)
        self._keep_product(steps, self._rz)

    def _find_direction(self, number: int, begins: bool) -> None:
        """Find <r, z> and p = z + beta p; with the diagonal <r, z> and the first p are known."""
        if begins:
            return
        system = self.system
        args = (self._p, self._r, self._beta, self._scale, *system.coefficients)
        system.backend.sweep(self._turn, self._p, system.grid.interior, *args)

    def _move(self, number: int) -> None:
        """u += alpha p, r -= alpha A p; with the diagonal also <r, z> of the next step."""
        arrays = (self.u, self._r, self._p, self._ap)
        self.system.backend.sweep(
            self._advance, (self.u, self._r, self._rz), self.system.grid.interior,
            *arrays, self._alpha, self._scale, *self._weights,
        )  # fmt: skip
        self._keep_product(number + 1, self._rz)

    def memory(self, steps: int) -> dict[str, Any]:
        return {"u": self.u, "r": self._r, "p": self._p}

    def residual_norm(self, steps: int, into: Accumulator) -> None:
        system = self.system
        system.backend.sweep(term_of(copy, into.kind), into, system.grid.interior, self._r)


class MultigridCG(ConjugateGradients):
    """Conjugate gradients with one symmetric V cycle for z = B r in place of z = D^-1 r.

    Jumps of the conductivity leave a few errors that a cycle hardly reduces; conjugate gradients
    take these out one by one (O. Tatebe, Copper Mountain Conf. on Multigrid Methods 6 (1993), 621).
    """

    reduces_smooth_errors = True

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

    def _begin(self, steps: int) -> None:
        system = self.system
        system.sweep(system.residual, self._r, self.u, system.b, *system.coefficients)

    def _find_direction(self, number: int, begins: bool) -> None:
        backend, interior = self.system.backend, self.system.grid.interior
        z = self._correction.sweep()
        ratios = self.system.coefficients.ratios
        backend.sweep(_product, self._rz, interior, self._r, z, *ratios)
        self._keep_product(number, self._rz)
        if begins:
            backend.sweep(copy, self._p, interior, z)
        else:
            backend.sweep(_redirected, self._p, interior, self._p, z, self._beta)

    def _move(self, number: int) -> None:
        arrays = (self.u, self._r, self._p, self._ap)
        interior = self.system.grid.interior
        self.system.backend.sweep(_moved, (self.u, self._r), interior, *arrays, self._alpha)


@cache
def points_of(residual: Point, divided: Point) -> tuple[Point, Point, Point, Point]:
    """The point functions of `ConjugateGradients`: first, apply, advance, turn.

    Cached, because a backend identifies a compiled sweep by its function.
    """

    def first(at, u, b, scale, *more):
        """r, z = p and the term of <r, z>."""
        ratios, coefficients = more[: len(at)], more[len(at) :]
        r = residual(at, u, b, *coefficients)
        z = divided(r, at, scale, *coefficients)
        return r, z, share_of(r * z, at, ratios)

    def apply(at, p, zero, *more):
        """A p and the term of <p, A p>."""
        ratios, coefficients = more[: len(at)], more[len(at) :]
        ap = -residual(at, p, zero, *coefficients)
        return ap, share_of(p[at] * ap, at, ratios)

    def advance(at, u, r, p, ap, alpha, scale, *more):
        """u, r, and the term of <r, z>."""
        ratios, coefficients = more[: len(at)], more[len(at) :]
        new = r[at] - alpha[at] * ap[at]
        z = divided(new, at, scale, *coefficients)
        return u[at] + alpha[at] * p[at], new, share_of(new * z, at, ratios)

    def turn(at, p, r, beta, scale, *coefficients):
        """z + beta p."""
        return divided(r[at], at, scale, *coefficients) + beta[at] * p[at]

    return first, apply, advance, turn


def _moved_by(at, p, alpha):
    """alpha p, the change of a step."""
    return alpha[at] * p[at]


CURVATURE = 2
"""The place of <p, A p> among the sums, after <r, z> of even and of odd steps."""


def _moved(at, u, r, p, ap, alpha):
    """u + alpha p and r - alpha A p."""
    return u[at] + alpha[at] * p[at], r[at] - alpha[at] * ap[at]


def _redirected(at, p, z, beta):
    """z + beta p."""
    return z[at] + beta[at] * p[at]


def _product(at, r, z, *ratios):
    """The term of <r, z>."""
    return share_of(r[at] * z[at], at, ratios)
