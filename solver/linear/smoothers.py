"""What makes the error smooth on a level of multigrid: sweeps that differ by one number each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import cos, pi
from typing import Any

from heatsolve.linear import System
from heatsolve.linear.colours import of_colour, signs
from heatsolve.points import ONES, Point

SWEEPS = 4
"""Sweeps of a smoothing: two over all points, as two over the points of each colour."""


@dataclass(frozen=True)
class Smoother:
    """Sweeps before a correction and after it, each told apart by its number.

    Where the sweeps after it are the adjoint of those before it, a cycle is a symmetric operator.
    `coloured`: whether the number is the colour of the points that a sweep updates, or else a
    weight of all.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]
    coloured: bool


RED_BLACK = Smoother((1.0, -1.0) * 2, (1.0, -1.0) * 2, True)
"""Gauss-Seidel, red points before black ones, twice: the fastest order."""
SYMMETRIC = Smoother((1.0, -1.0) * 2, (-1.0, 1.0) * 2, True)
"""The same in reverse after a correction, for conjugate gradients."""


def chebyshev(dimension: int) -> Smoother:
    """Jacobi's iteration, weighted with the inverse roots of a Chebyshev polynomial.

    It is the smallest one on the upper part of the spectrum of D^-1 A, [2 / (2 d), 2], with
    Gershgorin's bound 2: of the modes that no coarse grid knows, the lowest has the eigenvalue
    1 / d (M. Adams et al., J. Comput. Phys. 188 (2003), 593). A product of such sweeps is
    its own adjoint.
    """
    high = 2.0
    low = high / (2.0 * dimension)
    roots = [
        0.5 * (high + low) + 0.5 * (high - low) * cos(pi * (2 * n + 1) / (2 * SWEEPS))
        for n in range(SWEEPS)
    ]
    weights = tuple(1.0 / root for root in roots)
    return Smoother(weights, weights, False)


def smoother_of(name: str, dimension: int, symmetric: bool) -> Smoother:
    """A smoother by the name that cases call it by."""
    if name == "chebyshev":
        return chebyshev(dimension)
    return SYMMETRIC if symmetric else RED_BLACK


class Relaxation:
    """The sweeps of a smoother on one level.

    They multiply by the inverse of the diagonal where it is constant along an axis, so that it
    needs no memory traffic; and in two dimensions where no coefficient varies along both axes, as
    beside the last interval of coarse levels: one array more takes less time there than divisions.
    Elsewhere they divide by the diagonal.
    """

    def __init__(self, system: System, smoother: Smoother):
        self.system, self.smoother = system, smoother
        backend, grid, coefficients = system.backend, system.grid, system.coefficients
        points = points_of(system.residual, system.diagonal, smoother.coloured)
        self._lines = signs(grid, backend) if smoother.coloured else ()
        shapes = [array.shape for array in coefficients if not isinstance(array, float)]
        varies = [any(shape[n] > 1 for shape in shapes) for n in range(grid.dimension)]
        self._inverse: tuple[Any, ...] = ()
        self._relaxed, self._begun = points["relaxed"], points["begun"]
        lines = grid.dimension == 2 and not any(min(shape) > 1 for shape in shapes)
        if lines or not all(varies):
            self._relaxed, self._begun = points["relaxed by"], points["begun by"]
            shape = [n if v else 1 for n, v in zip(grid.shape, varies, strict=True)]
            region = [own if v else (0, 1) for own, v in zip(grid.interior, varies, strict=True)]
            self._inverse = (backend.zeros(shape),)
            backend.sweep(points["inverted"], self._inverse[0], tuple(region), *coefficients)

    def smooth(self, old: Any, new: Any, numbers: tuple[float, ...]) -> None:
        """Sweeps from one array into the other and back; ghosts are brought before each."""
        system = self.system
        more = (*self._inverse, *self._lines, *system.coefficients)
        for number in numbers:
            system.sweep(self._relaxed, new, old, system.b, number, *more)
            old, new = new, old

    def uncoloured(
        self, numbers: Sequence[float]
    ) -> tuple[Point, list[tuple[Any, ...]], tuple[int, ...]]:
        """The same sweeps, told by a point function of all points, its arguments, and colours."""
        system, coloured = self.system, self.smoother.coloured
        points = points_of(system.residual, system.diagonal, False)
        weights = [ONES] * len(numbers) if coloured else numbers
        colours = tuple(int(number) if coloured else 0 for number in numbers)
        more = (*self._inverse, *system.coefficients)
        stages = [(system.b, weight, *more) for weight in weights]
        return points["relaxed by" if self._inverse else "relaxed"], stages, colours

    def begin(self, new: Any, old: Any) -> None:
        """The sweeps before a correction, from zero; they end in `old`."""
        system, (first, *others) = self.system, self.smoother.before
        more = (*self._inverse, *self._lines, *system.coefficients)
        interior = system.grid.interior
        system.backend.sweep(self._begun, new, interior, system.b, first, *more)
        self.smooth(new, old, tuple(others))


@cache
def points_of(residual: Point, diagonal: Point, coloured: bool) -> dict[str, Point]:
    """The point functions of a smoother; made once, as backends know a sweep by its function."""
    moved = one_colour if coloured else all_points

    def divided(more, at):
        lines = len(at) if coloured else 0
        return more[:lines], more[lines:]

    def relaxed(at, u, b, number, *more):
        lines, coefficients = divided(more, at)
        step = residual(at, u, b, *coefficients) / diagonal(at, *coefficients)
        return moved(u[at], step, number, at, lines)

    def relaxed_by(at, u, b, number, inverse, *more):
        lines, coefficients = divided(more, at)
        step = residual(at, u, b, *coefficients) * inverse[at]
        return moved(u[at], step, number, at, lines)

    def begun(at, b, number, *more):
        """`relaxed` for u = 0."""
        lines, coefficients = divided(more, at)
        return moved(zero(b[at]), b[at] / diagonal(at, *coefficients), number, at, lines)

    def begun_by(at, b, number, inverse, *more):
        lines, _ = divided(more, at)
        return moved(zero(b[at]), b[at] * inverse[at], number, at, lines)

    def inverted(at, *coefficients):
        return 1.0 / diagonal(at, *coefficients)

    return {
        "relaxed": relaxed,
        "relaxed by": relaxed_by,
        "begun": begun,
        "begun by": begun_by,
        "inverted": inverted,
    }


def zero(value):
    """0 in the precision of a field: one that `where` chooses is not converted."""
    return value - value


def one_colour(u, step, colour, at, lines):
    """u + step at the points of one colour."""
    return of_colour(at, colour, lines, u + step, u)


def all_points(u, step, weight, at, lines):
    """u + weight step."""
    return u + weight * step
