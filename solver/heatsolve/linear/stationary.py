"""Stationary iterations: Jacobi's, red-black over-relaxation, the Chebyshev semi-iteration.

They share two things with the smoothers of multigrid: division by the diagonal D of A, and the
colours of the points, red and black as on a chessboard.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from heatsolve.backends import Accumulator, Backend, Region
from heatsolve.linear.system import Pairwise, System
from heatsolve.stencil.grid import Axis, Grid
from heatsolve.stencil.language import ONE, Point, where

SWEEPS_PLAYED_BACK = 16
"""The fewest sweeps that are replayed together, so that the host has little to do."""


class Jacobi(Pairwise):
    """u <- u + weight D^-1 (b - A u).

    A given `update` replaces this formula: it is called as `update(at, u, *arguments)`.
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
        divided, scale = division_by_diagonal(system, weight)
        self.point = update or jacobi_of(system.residual, divided)
        self.args = tuple(arguments) if update else (system.b, scale, *system.coefficients)
        self.longest = system.longest_pass(self.point, u, self.args)
        # After a period u is in the same array again, and an exchange of ghosts is due.
        period = math.lcm(2, system.halo.depth, self.longest)
        self._at_once = period * -(-SWEEPS_PLAYED_BACK // period)
        self._many: Callable[[], None] | None = None

    def step(self, number: int, change: Accumulator | None) -> None:
        old, new = self.solution(number), self.solution(number + 1)
        self.system.update(self.point, new, old, *self.args, change=change, number=number)

    def advance(self, number: int, changes: Sequence[Accumulator | None]) -> int:
        old, new = self.solution(number), self.solution(number + 1)
        stages = [self.args] * len(changes)
        return self.system.updates(self.point, new, old, stages, changes, number)

    def march(self, number: int, until: int) -> int:
        while until - number - -number % self._at_once >= self._at_once:
            number = super().march(number, number + -number % self._at_once)
            if self._many is None:
                self._many = self.system.replayed(self._march_at_once)
            self._many()
            number += self._at_once
        return super().march(number, until)

    def _march_at_once(self) -> None:
        super().march(0, self._at_once)


class Sor(Pairwise):
    """u <- u + omega D^-1 (b - A u), first at the red points of a chessboard, then at the black.

    Points of one colour are no neighbours, so each half is one sweep whose points may be updated
    in any order. Without `omega`: Young's optimum 2 / (1 + sqrt(1 - rho^2)), rho the spectral
    radius of Jacobi's iteration (D. M. Young, "Iterative Solution of Large Linear Systems", 1971,
    chapter 6); but 1 where a periodic axis has an odd number of points: neighbours across its end
    then have one colour, and over-relaxation may diverge.
    """

    def __init__(self, system: System, u: Any, omega: float | None = None):
        super().__init__(system, u)
        if omega is None:
            rho = 1.0 - system.spectrum()[0]
            odd = any(axis.periodic and axis.all_unknowns % 2 for axis in system.grid.axes)
            omega = 1.0 if odd else 2.0 / (1.0 + math.sqrt(1.0 - rho * rho))
        self.omega = omega
        divided, self._scale = division_by_diagonal(system, omega)
        self._point = one_colour_of(system.residual, divided)
        self._signs = signs(system.grid, system.backend)

    def step(self, number: int, change: Accumulator | None) -> None:
        first, second = self._pair
        halves = ((first, second, 1.0), (second, first, -1.0))
        for half, (old, new, colour) in enumerate(halves):
            args = (self.system.b, self._scale, colour, *self._signs, *self.system.coefficients)
            self.system.update(
                self._point, new, old, *args, change=change, number=2 * number + half
            )

    def solution(self, steps: int) -> Any:
        return self.u


class Chebyshev(Pairwise):
    """u_{k+1} = omega_{k+1} (u_k + gamma D^-1 (b - A u_k) - u_{k-1}) + u_{k-1}.

    For eigenvalues of D^-1 A in [low, high]: gamma = 2 / (low + high), mu = (high - low) /
    (high + low), omega_1 = 1, omega_2 = 1 / (1 - mu^2 / 2), omega_{k+1} = 1 / (1 - mu^2
    omega_k / 4) (G. H. Golub and R. S. Varga, Numer. Math. 3 (1961), 147). It needs no inner
    product, so a device can run ahead of its host.
    """

    reads_before = True

    def __init__(self, system: System, u: Any):
        super().__init__(system, u)
        low, high = system.spectrum()
        self._mu2 = ((high - low) / (high + low)) ** 2
        self._omegas = [1.0]
        divided, self._scale = division_by_diagonal(system, 2.0 / (low + high))
        self._point = chebyshev_of(system.residual, divided)

    def step(self, number: int, change: Accumulator | None) -> None:
        old, new = self.solution(number), self.solution(number + 1)
        halo = self.system.halo
        if halo.depth > 1 and number % halo.depth == 0:
            halo.exchange(new)  # the iterate before the last is read in the margin, too
        args = (new, self.system.b, self._omega(number), self._scale, *self.system.coefficients)
        self.system.update(self._point, new, old, *args, change=change, number=number)

    def memory(self, steps: int) -> dict[str, Any]:
        return {"u": self.solution(steps), "previous": self.solution(steps + 1)}

    def _omega(self, number: int) -> float:
        while len(self._omegas) <= number:
            last = self._omegas[-1]
            divisor = 2.0 if len(self._omegas) == 1 else 4.0
            self._omegas.append(1.0 / (1.0 - self._mu2 * last / divisor))
        return self._omegas[number]


# ---- point functions: cached, because a backend identifies a compiled sweep by its function ------


@cache
def jacobi_of(residual: Point, divided: Point) -> Point:
    """u + weight D^-1 (b - A u)."""

    def jacobi(at, u, b, scale, *coefficients):
        r = residual(at, u, b, *coefficients)
        return u[at] + divided(r, at, scale, *coefficients)

    return jacobi


@cache
def one_colour_of(residual: Point, divided: Point) -> Point:
    """u + omega D^-1 (b - A u) at the points of one colour, u at the points of the other."""

    def one_colour(at, u, b, scale, colour, *more):
        signs, coefficients = more[: len(at)], more[len(at) :]
        r = residual(at, u, b, *coefficients)
        value = u[at] + divided(r, at, scale, *coefficients)
        return of_colour(value, u[at], at, colour, signs)

    return one_colour


@cache
def chebyshev_of(residual: Point, divided: Point) -> Point:
    """omega (u + weight D^-1 (b - A u) - u_previous) + u_previous."""

    def chebyshev(at, u, previous, b, omega, scale, *coefficients):
        step = divided(residual(at, u, b, *coefficients), at, scale, *coefficients)
        return omega * (u[at] + step - previous[at]) + previous[at]

    return chebyshev


# ---- division by the diagonal: a multiplication where the inverse costs no memory traffic --------
#
# Where D is constant along an axis, its inverse is a small array that stays in a cache; a division
# at every point takes several times as long as the rest of a sweep that is made in passes.


def variation(system: System) -> list[bool]:
    """For each axis, whether a coefficient of the system varies along it, on this process."""
    shapes = [array.shape for array in system.coefficients if not isinstance(array, float)]
    return [any(shape[n] > 1 for shape in shapes) for n in range(system.grid.dimension)]


def inverse(
    system: System, weight: float, varies: Sequence[bool], extents: Sequence[int], region: Region
) -> Any:
    """The array weight / D in a region, of `extents` along axes where it `varies`, elsewhere 1."""
    axes = list(zip(varies, extents, region, strict=True))
    array = system.backend.zeros([extent if vary else 1 for vary, extent, _ in axes])
    bounds = tuple(pair if vary else (0, 1) for vary, _, pair in axes)
    system.backend.sweep(inverse_of(system.diagonal, weight), array, bounds, *system.coefficients)
    return array


@cache
def inverse_of(diagonal: Point, weight: float) -> Point:
    """The point function weight / D."""

    def inverse(at, *coefficients):
        return weight / diagonal(at, *coefficients)

    return inverse


def division_by_diagonal(system: System, weight: float = 1.0) -> tuple[Point, Any]:
    """`divided` and `scale`, with divided(value, at, scale, *coefficients) = weight value / D.

    All processes must call it, and choose the same way of division: coefficients may vary on the
    blocks of some processes only.
    """
    varies = variation(system)
    if all(map(any, zip(*system.halo.ranks.gather(varies), strict=True))):
        return _by_division(system.diagonal), ONE if weight == 1.0 else weight
    return by_inverse, inverse(system, weight, varies, system.grid.shape, system.halo.around(0))


def by_inverse(value, at, scale, *coefficients):
    """weight value / D, from the array `scale` = weight / D."""
    return value * scale[at]


@cache
def _by_division(diagonal: Point) -> Point:
    """weight value / D, from the number `scale` = weight."""

    def by_division(value, at, scale, *coefficients):
        return scale * value / diagonal(at, *coefficients)

    return by_division


# ---- colours ------------------------------------------------------------------------------------


def signs(grid: Grid, backend: Backend) -> tuple[Any, ...]:
    """For each axis a line of 1 and -1 in turn; a point is red where their product is 1."""
    return tuple(
        backend.to_device(grid.along(n, line_of_signs(axis))) for n, axis in enumerate(grid.axes)
    )


def line_of_signs(axis: Axis) -> np.ndarray:
    """1 and -1 in turn, by the number of the unknown on the whole axis."""
    numbers = np.arange(axis.unknowns + 2) + axis.start
    if axis.periodic:  # a margin may reach around
        numbers = (numbers - 1) % axis.all_unknowns + 1
    return 1.0 - 2.0 * (numbers % 2)


def of_colour(value, other, at, colour, signs):
    """`value` at the points of one colour (1 red, -1 black), `other` at all others."""
    for sign in signs:
        colour = colour * sign[at]
    return where(colour > 0.0, value, other)
