"""The smoothers of multigrid: sweeps of red-black Gauss-Seidel or of Chebyshev's iteration."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import cos, pi
from typing import Any, NamedTuple

from heatsolve.backends import SweepSequence
from heatsolve.linear.stationary import inverse, inverse_of, of_colour, signs, variation
from heatsolve.linear.system import System
from heatsolve.stencil.grid import even_part
from heatsolve.stencil.language import ONE, Point

WEIGHTS = {1: 1.0, 2: 1.15, 3: 1.2}
"""Weights of red-black sweeps, by dimension: with more axes more over-relaxation smooths better.

I. Yavneh, SIAM J. Sci. Comput. 17 (1996), 180. Over-relaxation saves a cycle or two to 1e-10 here;
on a line the plain sweep is exact.
"""
IN_SPACE, FIRST_IN_SPACE = ((1.74, 1.3), (1.15, 1.6)), 1.14
"""Weights in 3D with one sweep on each side: (red, black) of pre-smoothing, of post-smoothing; and
the weight of the finest level.

On coarser levels the first half-sweep begins at 0, and the last one completes the correction, which
is otherwise too small. Found by search, on nodes and cells: with these weights 1e-10 takes 8 cycles
instead of 9 on nodes, 11 instead of 12 or 13 on cells, and never more on twelve other grids.
"""


class Sweep(NamedTuple):
    """A sweep of the points of one colour (1 red, -1 black, 0 all), relaxed by `weight`."""

    colour: float
    weight: float


@dataclass(frozen=True)
class Smoother:
    """Sweeps `before` a correction (pre-smoothing) and `after` it (post-smoothing).

    If post-smoothing is the adjoint of pre-smoothing, a cycle is a symmetric operator.
    """

    before: tuple[Sweep, ...]
    after: tuple[Sweep, ...]

    @property
    def coloured(self) -> bool:
        """Whether each sweep updates the points of one colour."""
        return self.after[0].colour != 0.0

    @property
    def weight(self) -> float | None:
        """The weight that all sweeps share; None if there are several."""
        weights = {sweep.weight for sweep in (*self.before, *self.after)}
        return weights.pop() if len(weights) == 1 else None


def red_black(dimension: int, sweeps: int, symmetric: bool) -> Smoother:
    """Gauss-Seidel, red points before black ones; if `symmetric`, post-smoothing in reverse order.

    The same order on both sides converges faster; conjugate gradients need the symmetric order.
    """
    red, black = (Sweep(colour, WEIGHTS[dimension]) for colour in (1.0, -1.0))
    after = (black, red) if symmetric else (red, black)
    return Smoother((red, black) * sweeps, after * sweeps)


def chebyshev(dimension: int, sweeps: int) -> Smoother:
    """Jacobi's iteration, weighted with the inverse roots of a Chebyshev polynomial.

    The polynomial is smallest on the upper part of the spectrum of D^-1 A, [1 / d, 2]: 2 is
    Gershgorin's bound, 1 / d the lowest eigenvalue of the modes that no coarse grid resolves (M.
    Adams et al., J. Comput. Phys. 188 (2003), 593). A product of such sweeps is its own adjoint.
    Each of the `sweeps` has two roots, as a red-black sweep has two colours.
    """
    high = 2.0
    low = high / (2.0 * dimension)
    roots = [
        0.5 * (high + low) + 0.5 * (high - low) * cos(pi * (2 * n + 1) / (4 * sweeps))
        for n in range(2 * sweeps)
    ]
    sweeps_here = tuple(Sweep(0.0, 1.0 / root) for root in roots)
    return Smoother(sweeps_here, sweeps_here)


def finest_smoother(smoother: Smoother, dimension: int, nested: bool = False) -> Smoother:
    """The smoother of the finest level: where it pays, all sweeps are post-smoothing.

    The post-smoothing of one cycle is followed by the pre-smoothing of the next, so only the
    beginning and the end of an iteration differ. In 3D the restricted residual then belongs to the
    result of a whole cycle, and its norm is needed anyway; in full multigrid (`nested`), where one
    cycle should be enough, the norm is not needed. In full multigrid in 2D pre-smoothing would
    begin with an interpolated solution, whose error is smooth already; without pre-smoothing one
    array less is written.
    """
    one_sweep = len(smoother.before) == 2
    pays = (dimension == 2 and one_sweep) if nested else dimension == 3
    if not (pays and smoother.coloured):
        return smoother
    weight = FIRST_IN_SPACE if smoother.weight is None else smoother.weight
    both = smoother.before + smoother.after
    return Smoother((), tuple(Sweep(sweep.colour, weight) for sweep in both))


def smoother_of(
    name: str,
    dimension: int,
    symmetric: bool = False,
    sweeps: int | None = None,
    nested: bool = False,
) -> Smoother:
    """The smoother that a case names, with this number of `sweeps` on each side of a correction.

    The default is two, with two exceptions for red-black: one sweep in 3D without conjugate
    gradients (eight cycles to 1e-10 on nodes instead of seven, each of little more than half the
    work), and one sweep in full multigrid (`nested`), which needs only a reduction to a tenth.
    """
    if sweeps is None:
        one = name == "red-black" and not symmetric and (dimension == 3 or nested)
        sweeps = 1 if one else 2
    if name == "chebyshev":
        return chebyshev(dimension, sweeps)
    if sweeps == 1 and dimension == 3 and not symmetric and not nested:
        return Smoother(*[(Sweep(1.0, red), Sweep(-1.0, black)) for red, black in IN_SPACE])
    return red_black(dimension, sweeps, symmetric)


class Relaxation:
    """The sweeps of a smoother on one level.

    They multiply by the inverse of the diagonal in two cases: where the inverse is constant along
    an axis, because it then needs no memory traffic; and where each coefficient varies along one
    axis at most, as beside the last interval of coarse levels, because reading one more array takes
    less time than divisions. Elsewhere they divide by the diagonal.
    """

    def __init__(self, system: System, smoother: Smoother, extents: Sequence[int]):
        """`extents`: the shape of the field's arrays."""
        self.system, self.smoother = system, smoother
        backend, grid, coefficients = system.backend, system.grid, system.coefficients
        self._lines = signs(grid, backend) if smoother.coloured else ()
        varies = variation(system)
        self._inverse: tuple[Any, ...] = ()
        self.inverse_point: Point | None = None
        common = smoother.weight
        arrays = [array for array in coefficients if not isinstance(array, float)]
        lines = not any(sum(n > 1 for n in array.shape) > 1 for array in arrays)
        if lines or not all(varies):
            weight = 1.0 if common is None else common
            shape = extents if all(varies) else grid.shape
            self._inverse = (inverse(system, weight, varies, shape, grid.interior),)
            self.inverse_point = inverse_of(system.diagonal, weight)
            common = None if common is None else 1.0
        self._relaxed, self._begun = self._points(smoother.coloured)
        # All sweeps of a level take a weight, or none does.
        self._plain = common == 1.0
        self._together = 1

    def _points(self, coloured: bool) -> tuple[Point, Point]:
        system = self.system
        return points_of(system.residual, system.diagonal, coloured, bool(self._inverse))

    def fuse(self, u: Any) -> None:
        """Make several sweeps in a pass from now on, where a host gains from it on arrays like u.

        It does if no other process shares the case. Each half of a cycle becomes as few passes as
        possible. Devices have legs of cycles instead, and join the sweeps of coarse levels.
        """
        backend = self.system.backend
        if not (backend.on_device or backend.joined):
            half = max(self.smoother.before, self.smoother.after, key=len)
            most = backend.most_fused(self._sequence(u, half))
            self._together = even_part(len(half), most)

    def passes(self, sweeps: Sequence[Sweep]) -> list[Sequence[Sweep]]:
        """The sweeps of each pass; each pass goes from one array into the other."""
        together = self._together
        return [sweeps[n : n + together] for n in range(0, len(sweeps), together)]

    def _sequence(self, u: Any, sweeps: Sequence[Sweep]) -> SweepSequence:
        system, none = self.system, [None] * len(sweeps)
        stages = [(system.b, *self._arguments(sweep)) for sweep in sweeps]
        wraps = system.halo.wraps
        return SweepSequence(self._relaxed, u, system.grid.interior, stages, wraps, none)

    def smooth(self, old: Any, new: Any, sweeps: tuple[Sweep, ...]) -> Any:
        """Make sweeps of the field in `old`; return the array of the result.

        Each pass exchanges ghosts and goes from one array into the other.
        """
        system = self.system
        for some in self.passes(sweeps):
            if len(some) == 1:
                system.sweep(self._relaxed, new, old, system.b, *self._arguments(some[0]))
            else:
                system.halo.exchange(old)
                system.backend.fused_sweeps(self._sequence(old, some), new, system.grid.interior)
            old, new = new, old
        return old

    def _weight(self, sweep: Sweep) -> Any:
        return ONE if self._plain else sweep.weight

    def _arguments(self, sweep: Sweep) -> tuple[Any, ...]:
        """The arguments of a sweep after b."""
        colour = (sweep.colour, *self._lines) if self.smoother.coloured else ()
        return (self._weight(sweep), *self._inverse, *colour, *self.system.coefficients)

    def uncoloured(
        self, sweeps: Sequence[Sweep]
    ) -> tuple[Point, list[tuple[Any, ...]], tuple[int, ...]]:
        """The `sweeps` for a fused pass: a point function of all points, its arguments for each
        sweep, and the colours."""
        system = self.system
        more = (*self._inverse, *system.coefficients)
        stages = [(system.b, self._weight(sweep), *more) for sweep in sweeps]
        colours = tuple(int(sweep.colour) for sweep in sweeps)
        return self._points(False)[0], stages, colours

    def begin(self, u: Any, other: Any) -> None:
        """Pre-smooth from u = 0, with the help of the array `other`."""
        system, (first, *others) = self.system, self.smoother.before
        start, end = (other, u) if len(self.passes(others)) % 2 else (u, other)
        args = (system.grid.interior, system.b, *self._arguments(first))
        system.backend.sweep(self._begun, start, *args)
        self.smooth(start, end, tuple(others))


@cache
def points_of(
    residual: Point, diagonal: Point, coloured: bool, has_inverse: bool
) -> tuple[Point, Point]:
    """The point functions of a sweep, and of a sweep from u = 0.

    After b and a weight they take the inverse of the diagonal if `has_inverse`, a colour and the
    signs along each axis if `coloured`, and the coefficients. Cached, because a backend identifies
    a compiled sweep by its function.
    """

    def stepped(old, r, at, weight, *more):
        """old + weight r / D, at the points of one colour if there is one."""
        inverse, more = more[:has_inverse], more[has_inverse:]
        colours = len(at) + 1 if coloured else 0
        colour, coefficients = more[:colours], more[colours:]
        step = r * inverse[0][at] if has_inverse else r / diagonal(at, *coefficients)
        new = weight * step if old is None else old + weight * step
        if not coloured:
            return new
        # 0 in the precision of the field: `where` does not convert a literal 0.
        return of_colour(new, r - r if old is None else old, at, colour[0], colour[1:])

    def relaxed(at, u, b, weight, *more):
        coefficients = more[has_inverse + (len(at) + 1 if coloured else 0) :]
        return stepped(u[at], residual(at, u, b, *coefficients), at, weight, *more)

    def begun(at, b, weight, *more):
        return stepped(None, b[at], at, weight, *more)

    return relaxed, begun
