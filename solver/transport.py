"""Transport of a quantity u by a velocity v: du/dt + v . grad u = nu div grad u + f.

Along each axis v du/dx is one of (h the spacing, v the velocity at the point itself):

- `backward`: v (u_i - u_i-1) / h, whatever the sign of v: the teaching codes' choice, which is
  unstable where v is negative;
- `upwind`: the same, or v (u_i+1 - u_i) / h where v is negative (R. Courant, E. Isaacson and
  M. Rees, Comm. Pure Appl. Math. 5 (1952), 243);
- `central`: v (u_i+1 - u_i-1) / 2h;
- `upwind3` and `tvd`: v (u_right - u_left) / h with values at the faces of a point's cell, which
  its upwind neighbour reaches to by its *slope*, half the change of u across its cell. `upwind3`
  is of third order, the kappa scheme with kappa = 1/3 (B. van Leer, J. Comput. Phys. 23 (1977),
  276); `tvd` limits the slope so that no new extremum appears, van Leer's harmonic mean (J. Comput.
  Phys. 14 (1974), 361).

The advective form conserves u only where v is constant. A quantity may be a velocity, and its own.
Runge-Kutta stages are those of C.-W. Shu and S. Osher (J. Comput. Phys. 77 (1988), 439, eqs. 2.16
to 2.18): each is a mean of the field at the step's start and of a step of explicit Euler.
"""

from collections.abc import Sequence
from functools import cache

from heatsolve.points import (
    NOTHING,
    ONES,
    Point,
    magnitude,
    maximum,
    neighbour,
    shifted,
    where,
)

CONVECTIONS = ("backward", "upwind", "central", "upwind3", "tvd")
SLOPES = {"upwind3": 2, "tvd": 1}
"""Slopes of a point along each axis: towards the point behind and the one before it, or one."""


def backward(u, at, axis, v, h):
    return v * (u[at] - u[neighbour(at, axis, -1)]) / h


def upwind(u, at, axis, v, h):
    below, above = u[neighbour(at, axis, -1)], u[neighbour(at, axis, 1)]
    return where(v > 0.0, v * (u[at] - below) / h, v * (above - u[at]) / h)


def central(u, at, axis, v, h):
    return v * (u[neighbour(at, axis, 1)] - u[neighbour(at, axis, -1)]) / (2.0 * h)


def by_slopes(u, at, axis, v, h, rising, falling):
    """By faces to which the upwind neighbour reaches, with slopes from below and from above."""
    before, behind = neighbour(at, axis, -1), neighbour(at, axis, 1)
    from_below = (u[at] + rising[at]) - (u[before] + rising[before])
    from_above = (u[behind] - falling[behind]) - (u[at] - falling[at])
    return where(v > 0.0, v * from_below / h, v * from_above / h)


def diffusion(u, at, axis, nu, h):
    """nu d2u/dx2, central."""
    return nu * (u[neighbour(at, axis, 1)] - 2.0 * u[at] + u[neighbour(at, axis, -1)]) / (h * h)


def laplacian(u, at, *spacings):
    """div grad u, central; the spacings are along x, y, z."""
    along = [diffusion(u, at, len(spacings) - 1 - n, ONES, h) for n, h in enumerate(spacings)]
    return sum(along[1:], along[0])


def advanced(u, at, start, rate, a, b, dt):
    """What a stage makes of u: a u_0 + b (u + dt rate); Euler's step where a is NOTHING."""
    stepped = u[at] + dt * rate
    return stepped if a is NOTHING else a * start[at] + b * stepped


@cache
def slopes(convection: str, axis: int) -> Point:
    """The slopes of u at a point along an axis: (rising, falling) of `upwind3`, that of `tvd`."""

    def third_order(at, u):
        below = u[at] - u[neighbour(at, axis, -1)]
        above = u[neighbour(at, axis, 1)] - u[at]
        return below / 6.0 + above / 3.0, above / 6.0 + below / 3.0

    def limited(at, u):
        below = u[at] - u[neighbour(at, axis, -1)]
        above = u[neighbour(at, axis, 1)] - u[at]
        alike = (below > 0.0) & (above > 0.0) | (below < 0.0) & (above < 0.0)
        total = where(alike, below + above, 1.0)  # no division by 0
        return where(alike, below * (above / total), 0.0 * below)

    return {"upwind3": third_order, "tvd": limited}[convection]


@cache
def stage(dimension: int, count: int, convection: str, own: bool, diffusive: bool) -> Point:
    """The point function of one stage: a u_0 + b (u + dt L(u)) for each of `count` quantities.

    Its arguments: the quantities at the start of the step, those now, the sources, the velocities
    along x, y, z (none where the quantities are their `own` velocities), the slopes of `slopes`
    (for each quantity, for each axis), then a, b, dt, nu and the spacings along x, y, z.
    """
    each = SLOPES.get(convection, 0)
    axes = [dimension - 1 - n for n in range(dimension)]  # of x, y, z
    formula = {"backward": backward, "upwind": upwind, "central": central}.get(convection)

    def stepped(at, *given):
        start, given = given[:count], given[count:]
        now, given = given[:count], given[count:]
        sources, given = given[:count], given[count:]
        velocities = now if own else given[:dimension]
        given = given if own else given[dimension:]
        reach, (a, b, dt, nu, *spacings) = given[: -4 - dimension], given[-4 - dimension :]
        new = []
        for number in range(count):
            u = now[number]
            rate = sources[number][at]
            for n, (axis, h) in enumerate(zip(axes, spacings, strict=True)):
                v = velocities[n][at]
                if formula is not None:
                    rate = rate - formula(u, at, axis, v, h)
                else:
                    first = (number * dimension + n) * each
                    rising, falling = reach[first], reach[first + each - 1]
                    rate = rate - by_slopes(u, at, axis, v, h, rising, falling)
                if diffusive:
                    rate = rate + diffusion(u, at, axis, nu, h)
            new.append(advanced(u, at, start[number], rate, a, b, dt))
        return tuple(new)

    return stepped


def about_value(at, u, value, *distances):
    """A ghost of a cell grid, 2 value - u: halfway to the point so far on lies the value."""
    return 2.0 * value[at] - shifted(at, u, *distances)


def with_rise(at, u, rise, *distances):
    """A ghost that lies `rise` above the point so far on."""
    return shifted(at, u, *distances) + rise[at]


def slope_at_wall(at, u, sign, *distances):
    """The slope of a ghost: half the rise to the point inside, `sign` -1 beyond a high wall."""
    return 0.5 * sign * (shifted(at, u, *distances) - u[at])


RUNGE_KUTTA: dict[str, Sequence[tuple[float, float]]] = {
    "explicit": ((NOTHING, ONES),),
    "rk2": ((NOTHING, ONES), (0.5, 0.5)),
    "rk3": ((NOTHING, ONES), (0.75, 0.25), (1.0 / 3.0, 2.0 / 3.0)),
}
"""For each stage, the shares a of the start and b of the step of Euler's."""
TIMES = {"explicit": (0.0,), "rk2": (0.0, 1.0), "rk3": (0.0, 1.0, 0.5)}
"""The time, in steps, at which each stage begins."""


def against(at, v):
    """The part of a velocity that is negative."""
    return where(v[at] < 0.0, v[at], 0.0 * v[at])


@cache
def changes(count: int, kind: str) -> Point:
    """The change of `count` quantities, of which the old ones come first.

    For a "sum" the sum of squares, for a "max" the largest magnitude.
    """

    def change(at, *given):
        total = every = 0.0
        for old, new in zip(given[:count], given[count:], strict=True):
            difference = new[at] - old[at]
            every = every + difference
            if kind == "sum":
                total = total + difference * difference
            else:
                total = maximum(total, magnitude(difference))
        # A maximum may lose a NaN.
        return total if kind == "sum" else total + 0.0 * every

    return change
