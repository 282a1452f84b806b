"""What makes the error smooth on a level of multigrid: sweeps that differ by one number each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import cos, pi
from typing import Any

from heatsolve.linear import System
from heatsolve.linear.colours import of_colour, signs
from heatsolve.points import ONES, Point

WEIGHTS = {1: 1.0, 2: 1.15, 3: 1.2}
"""Of red-black sweeps, by dimension: over-relaxation smooths better where there are many axes.

I. Yavneh, SIAM J. Sci. Comput. 17 (1996), 180. To 1e-10 it takes a cycle or two less here; on a
line the plain sweep is exact.
"""


@dataclass(frozen=True)
class Smoother:
    """Sweeps before a correction and after it, each told apart by its number.

    Where the sweeps after it are the adjoint of those before it, a cycle is a symmetric operator.
    `coloured`: whether the number is the colour of the points that a sweep updates, by `weight`
    times their step, or else a weight of all.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]
    coloured: bool
    weight: float = 1.0


def red_black(dimension: int, sweeps: int, symmetric: bool) -> Smoother:
    """Gauss-Seidel, red points before black ones; if `symmetric`, in reverse after a correction.

    The same order before and after is the faster one, the other one is for conjugate gradients.
    """
    order = (1.0, -1.0)
    after = order[::-1] if symmetric else order
    return Smoother(order * sweeps, after * sweeps, True, WEIGHTS[dimension])


def chebyshev(dimension: int, sweeps: int) -> Smoother:
    """Jacobi's iteration, weighted with the inverse roots of a Chebyshev polynomial.

    It is the smallest one on the upper part of the spectrum of D^-1 A, [2 / (2 d), 2], with
    Gershgorin's bound 2: of the modes that no coarse grid knows, the lowest has the eigenvalue
    1 / d (M. Adams et al., J. Comput. Phys. 188 (2003), 593). A product of such sweeps is
    its own adjoint. As the red and the black points of a sweep are two, so are its two roots.
    """
    high = 2.0
    low = high / (2.0 * dimension)
    roots = [
        0.5 * (high + low) + 0.5 * (high - low) * cos(pi * (2 * n + 1) / (4 * sweeps))
        for n in range(2 * sweeps)
    ]
    weights = tuple(1.0 / root for root in roots)
    return Smoother(weights, weights, False)


def first_of(smoother: Smoother, dimension: int, nested: bool = False) -> Smoother:
    """The smoother of the first level of cycles: in space all coloured sweeps after the correction.

    With those before the correction of the next cycle they are as many, so only the beginning and
    the end of an iteration differ; and the residual that is restricted is that of a whole cycle's
    result, whose norm is wanted anyway. Not where a cycle stands for itself (`nested`).
    """
    if dimension < 3 or nested or not smoother.coloured:
        return smoother
    return replace(smoother, before=(), after=smoother.before + smoother.after)


def smoother_of(
    name: str,
    dimension: int,
    symmetric: bool = False,
    sweeps: int | None = None,
    nested: bool = False,
) -> Smoother:
    """A smoother by the name that cases call it by, with so many sweeps on each side.

    By default two. One of red-black where cycles stand alone in three dimensions: to 1e-10 there
    are ten instead of seven between nodes, of little more than half the work each. And one of it in
    full multigrid (`nested`), to which a cycle that leaves a tenth is enough.
    """
    if sweeps is None:
        one = name == "red-black" and not symmetric and (dimension == 3 or nested)
        sweeps = 1 if one else 2
    if name == "chebyshev":
        return chebyshev(dimension, sweeps)
    return red_black(dimension, sweeps, symmetric)


class Relaxation:
    """The sweeps of a smoother on one level.

    They multiply by the inverse of the diagonal where it is constant along an axis, so that it
    needs no memory traffic; and where each coefficient varies along one axis at most, as beside the
    last interval of coarse levels: one array more takes less time there than divisions.
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
        self.inverse_point: Point | None = None
        self._weight: Any = smoother.weight
        self._relaxed, self._begun = points["relaxed"], points["begun"]
        lines = not any(sum(n > 1 for n in shape) > 1 for shape in shapes)
        if lines or not all(varies):
            self._relaxed, self._begun = points["relaxed by"], points["begun by"]
            shape = [n if v else 1 for n, v in zip(grid.shape, varies, strict=True)]
            region = [own if v else (0, 1) for own, v in zip(grid.interior, varies, strict=True)]
            self._inverse = (backend.zeros(shape),)
            self.inverse_point = inverse_of(system.diagonal, self._weight)
            backend.sweep(self.inverse_point, self._inverse[0], tuple(region), *coefficients)
            self._weight = 1.0
        if self._weight == 1.0:
            self._weight = ONES

    def smooth(self, old: Any, new: Any, numbers: tuple[float, ...]) -> None:
        """Sweeps from one array into the other and back; ghosts are brought before each."""
        system = self.system
        for number in numbers:
            system.sweep(self._relaxed, new, old, system.b, *self._arguments(number))
            old, new = new, old

    def _arguments(self, number: float) -> tuple[Any, ...]:
        """What a sweep takes after b."""
        coefficients = self.system.coefficients
        if self.smoother.coloured:
            return (self._weight, *self._inverse, number, *self._lines, *coefficients)
        return (number, *self._inverse, *coefficients)

    def uncoloured(
        self, numbers: Sequence[float]
    ) -> tuple[Point, list[tuple[Any, ...]], tuple[int, ...]]:
        """The same sweeps, told by a point function of all points, its arguments, and colours."""
        system, coloured = self.system, self.smoother.coloured
        points = points_of(system.residual, system.diagonal, False)
        weights = [self._weight] * len(numbers) if coloured else numbers
        colours = tuple(int(number) if coloured else 0 for number in numbers)
        more = (*self._inverse, *system.coefficients)
        stages = [(system.b, weight, *more) for weight in weights]
        return points["relaxed by" if self._inverse else "relaxed"], stages, colours

    def begin(self, new: Any, old: Any) -> None:
        """The sweeps before a correction, from zero; they end in `old`."""
        system, (first, *others) = self.system, self.smoother.before
        given = (system.grid.interior, system.b, *self._arguments(first))
        system.backend.sweep(self._begun, new, *given)
        self.smooth(new, old, tuple(others))


@cache
def points_of(residual: Point, diagonal: Point, coloured: bool) -> dict[str, Point]:
    """The point functions of a smoother; made once, as backends know a sweep by its function.

    After b, a weight, and the inverse if there is one, they take a colour and its lines if
    `coloured`, and the coefficients.
    """

    def divided(more, at):
        colour_and_lines = len(at) + 1 if coloured else 0
        return more[:colour_and_lines], more[colour_and_lines:]

    def moved(old, new, at, which):
        """The new value, at the points of one colour if there is one."""
        return of_colour(at, which[0], which[1:], new, old) if coloured else new

    def relaxed(at, u, b, weight, *more):
        which, coefficients = divided(more, at)
        step = residual(at, u, b, *coefficients) / diagonal(at, *coefficients)
        return moved(u[at], u[at] + weight * step, at, which)

    def relaxed_by(at, u, b, weight, inverse, *more):
        which, coefficients = divided(more, at)
        step = residual(at, u, b, *coefficients) * inverse[at]
        return moved(u[at], u[at] + weight * step, at, which)

    def begun(at, b, weight, *more):
        """`relaxed` for u = 0."""
        which, coefficients = divided(more, at)
        return moved(zero(b[at]), weight * (b[at] / diagonal(at, *coefficients)), at, which)

    def begun_by(at, b, weight, inverse, *more):
        which, _ = divided(more, at)
        return moved(zero(b[at]), weight * (b[at] * inverse[at]), at, which)

    return {
        "relaxed": relaxed,
        "relaxed by": relaxed_by,
        "begun": begun,
        "begun by": begun_by,
    }


@cache
def inverse_of(diagonal: Point, weight: float) -> Point:
    """The point function of the inverse, with the weight of all sweeps."""

    def inverse(at, *coefficients):
        return weight / diagonal(at, *coefficients)

    return inverse


def zero(value):
    """0 in the precision of a field: one that `where` chooses is not converted."""
    return value - value
