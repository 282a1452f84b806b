"""Transport of a quantity u by a velocity v: du/dt + div(v u) = nu div grad u + f.

In this *flux* form v is at the faces of a point's cell, and flux out of a cell enters the next.
Along each axis div(v u) is (F_above - F_below) / h, h the spacing and F = v u_face, where u_face is

- `upwind`: u at the point that v comes from (R. Courant, E. Isaacson and M. Rees, Comm. Pure Appl.
  Math. 5 (1952), 243); `backward`: at the point before the face, whatever the sign of v: the
  teaching codes' choice, which is unstable where v is negative;
- `central`: the mean of both;
- `upwind3` and `tvd`: u extrapolated from the upwind point by its *slope*, half the change of u
  across its cell. `upwind3` is of third order, the kappa scheme with kappa = 1/3 (B. van Leer, J.
  Comput. Phys. 23 (1977), 276); `tvd` limits the slope so that no new extremum appears, van Leer's
  harmonic mean (J. Comput. Phys. 14 (1974), 361).

In *advective* form, v . grad u, the term is v (u_above - u_below) / h, with u at the same faces and
v at the point itself; this conserves u only where v is constant.

A velocity may carry itself: along its own axis F = u^2/2. From the states u_l and u_r on both sides
of a face F is the exact solution of Riemann's problem there (S. K. Godunov, Mat. Sbornik 47 (1959),
271), max(max(u_l, 0)^2, min(u_r, 0)^2) / 2, which lets a jump up open into a rarefaction; `central`
has (u_l^2 + u_l u_r + u_r^2) / 6, which conserves u^2, too (E. Tadmor, Math. Comp. 49 (1987), 91).
Along the other axes the term is in advective form.

A node on a wall of given gradient owns half a cell; the face at its outer end is on the wall. An
outward flux carries u of the node through this face: nothing comes back.

Runge-Kutta stages are those of C.-W. Shu and S. Osher (J. Comput. Phys. 77 (1988), 439, eqs. 2.16
to 2.18): each is a mean of the field at the step's start and of a step of explicit Euler.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from heatsolve.stencil.language import (
    ONE,
    ZERO,
    Point,
    magnitude,
    maximum,
    minimum,
    neighbour,
    shifted,
    where,
)

CONVECTIONS = ("backward", "upwind", "central", "upwind3", "tvd")
SLOPES = {"upwind3": 2, "tvd": 1}
"""Slopes of a point along each axis: 2, towards the points behind and before it, or 1 for both."""
SECOND_ORDER = ("central", *SLOPES)
"""Forms of convection with face values of second order: u of a node on a wall is u at the face."""


# ---- the advective form --------------------------------------------------------------------------


def backward(u, at, axis, v, h):
    return v * (u[at] - u[neighbour(at, axis, -1)]) / h


def upwind(u, at, axis, v, h):
    below, above = u[neighbour(at, axis, -1)], u[neighbour(at, axis, 1)]
    return where(v > 0.0, v * (u[at] - below) / h, v * (above - u[at]) / h)


def central(u, at, axis, v, h, low=ZERO, high=ZERO):
    """Beyond a node on an outgoing wall (see `marked`) u is extrapolated from two nodes."""
    below, above = u[neighbour(at, axis, -1)], u[neighbour(at, axis, 1)]
    before, behind = below, above
    if low is not ZERO:
        before = where(marked(low, at) & (v < 0.0), 2.0 * u[at] - above, below)
    if high is not ZERO:
        behind = where(marked(high, at) & (v > 0.0), 2.0 * u[at] - below, above)
    return v * (behind - before) / (2.0 * h)


def by_slopes(u, at, axis, v, h, rising, falling, low=ZERO, high=ZERO):
    """By face values, extrapolated from upwind: from below by `rising`, from above by `falling`.

    A node on an outgoing wall lies at the outer face of its half cell, and has the value there.
    """
    before, behind = neighbour(at, axis, -1), neighbour(at, axis, 1)
    from_below = (u[at] + rising[at]) - (u[before] + rising[before])
    from_above = (u[behind] - falling[behind]) - (u[at] - falling[at])
    if high is not ZERO:
        half = 2.0 * (u[at] - (u[before] + rising[before]))
        from_below = where(marked(high, at), half, from_below)
    if low is not ZERO:
        half = 2.0 * ((u[behind] - falling[behind]) - u[at])
        from_above = where(marked(low, at), half, from_above)
    return where(v > 0.0, v * from_below / h, v * from_above / h)


def marked(wall, at):
    """Whether a point lies beside, or on, a wall: by a line that is 1 there and 0 elsewhere."""
    return wall[at] > 0.5


# ---- the flux form -------------------------------------------------------------------------------


def states(u, before, behind, reach):
    """u on both sides of the face between two points; `reach`: slopes, if there are any."""
    if not reach:
        return u[before], u[behind]
    rising, falling = reach[0], reach[-1]
    return u[before] + rising[before], u[behind] - falling[behind]


def at_face(convection, left, right, v):
    """The value of u that a velocity carries through a face, from the states on both sides."""
    if convection == "backward":
        return left
    return 0.5 * (left + right) if convection == "central" else where(v > 0.0, left, right)


def own_flux(convection, left, right):
    """u^2 / 2 at a face, of the states on both sides."""
    if convection == "backward":
        return 0.5 * (left * left)
    if convection == "central":
        return (1.0 / 6.0) * (left * left + left * right + right * right)
    left, right = where(left < 0.0, 0.0, left), where(right > 0.0, 0.0, right)
    return 0.5 * maximum(left * left, right * right)


def flux_difference(convection, u, v, at, axis, reach=(), walls=(ZERO, ZERO), on_nodes=True):
    """F_above - F_below of a point's cell; v at the face above each point, None for u itself.

    `walls`: lines (see `marked`) of the nodes that own half a cell at the low and the high wall; on
    a grid of cells, of the cells beside a given value, which the face on the wall then has.
    """
    below, above = neighbour(at, axis, -1), neighbour(at, axis, 1)
    faces, points = (below, at), (below, at, above)
    sides = [list(states(u, points[n], points[n + 1], reach)) for n in (0, 1)]
    for n, wall in enumerate(walls):
        if wall is ZERO or on_nodes or reach:  # slopes reach to a wall's value by themselves
            continue
        value = 0.5 * (u[points[n]] + u[points[n + 1]])
        for side in (0, 1) if convection == "central" else (n,):
            sides[n][side] = where(marked(wall, at), value, sides[n][side])
    if v is None:
        through = [own_flux(convection, left, right) for left, right in sides]
    else:
        carried = [at_face(convection, sides[n][0], sides[n][1], v[faces[n]]) for n in (0, 1)]
        through = [v[faces[n]] * carried[n] for n in (0, 1)]
    outer = list(through)
    # Half a cell: take a face as far outside, so that the flux at the wall is the mean of both.
    first_order = convection not in SECOND_ORDER  # a face has u half a spacing away
    for n, (wall, outward) in enumerate(zip(walls, (-1.0, 1.0), strict=True)):
        if wall is ZERO or not on_nodes or (v is None and first_order):
            continue
        if v is None:
            leaves = marked(wall, at) & (outward * u[at] > 0.0)
            outer[n] = where(leaves, u[at] * u[at] - through[1 - n], through[n])
            continue
        at_wall, speed = 0.5 * (carried[0] + carried[1]), v[faces[n]]
        if not first_order:
            at_wall = where(outward * speed > 0.0, u[at], at_wall)
        outer[n] = where(marked(wall, at), 2.0 * (speed * at_wall) - through[1 - n], through[n])
    return outer[1] - outer[0]


# ---- both forms ----------------------------------------------------------------------------------


def diffusion(u, at, axis, nu, h):
    """nu d2u/dx2, central."""
    return nu * (u[neighbour(at, axis, 1)] - 2.0 * u[at] + u[neighbour(at, axis, -1)]) / (h * h)


def laplacian(u, at, *spacings):
    """div grad u, central; the spacings are along x, y, z."""
    along = [diffusion(u, at, len(spacings) - 1 - n, ONE, h) for n, h in enumerate(spacings)]
    return sum(along[1:], along[0])


def advanced(u, at, start, rate, a, b, dt):
    """u after a stage: a u_0 + b (u + dt rate); Euler's step where a is ZERO."""
    stepped = u[at] + dt * rate
    return stepped if a is ZERO else a * start[at] + b * stepped


@cache
def slopes(convection: str, axis: int) -> Point:
    """The slopes of u at a point along an axis: (rising, falling) for `upwind3`, one for `tvd`."""

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
def stage(
    dimension: int,
    count: int,
    convection: str,
    form: str,
    own: bool = False,
    diffusive: bool = True,
    on_nodes: bool = True,
) -> Point:
    """The point function of one stage: a u_0 + b (u + dt L(u)) for each of `count` quantities.

    Its arguments: the quantities at the start of the step and now, the sources, the velocities
    along x, y, z (none where the quantities are their `own` velocities; in flux form each at the
    faces above the points along its axis), the slopes of `slopes` (for each quantity, for each
    axis), for each axis the lines of its low and its high wall (see `flux_difference`), a, b, dt;
    in flux form 1 / h and then nu / h^2 along x, y, z, in advective form nu and the spacings.
    """
    each = SLOPES.get(convection, 0)
    axes = [dimension - 1 - n for n in range(dimension)]  # of x, y, z
    advective = {"backward": backward, "upwind": upwind, "central": central}.get(
        convection, by_slopes
    )

    def stepped(at, *args):
        parts = []
        for length in (count, count, count, 0 if own else dimension, count * dimension * each):
            parts.append(args[:length])
            args = args[length:]
        start, now, sources, velocities, slopes = parts
        velocities = now if own else velocities
        walls, (a, b, dt, *numbers) = args[: 2 * dimension], args[2 * dimension :]
        if form == "flux":
            rates, spreads = numbers[:dimension], numbers[dimension:]
        else:
            nu, *spacings = numbers
        new = []
        for number, u in enumerate(now):
            rate = sources[number][at]
            for n, axis in enumerate(axes):
                first = (number * dimension + n) * each
                reach = (slopes[first], slopes[first + each - 1]) if each else ()
                ends = walls[2 * n : 2 * n + 2]
                at_ends = ends if convection in SECOND_ORDER and on_nodes else ()
                if form == "advective":
                    h = spacings[n]
                    rate = rate - advective(u, at, axis, velocities[n][at], h, *reach, *at_ends)
                elif own and number != n:
                    v = velocities[n][at] * rates[n]
                    rate = rate - advective(u, at, axis, v, 1.0, *reach, *at_ends)
                else:
                    v = None if own else velocities[n]
                    flux = flux_difference(convection, u, v, at, axis, reach, ends, on_nodes)
                    rate = rate - rates[n] * flux
                if diffusive:
                    scale = (spreads[n], 1.0) if form == "flux" else (nu, spacings[n])
                    rate = rate + diffusion(u, at, axis, *scale)
            new.append(advanced(u, at, start[number], rate, a, b, dt))
        return tuple(new)

    return stepped


def about_value(at, u, value, *distances):
    """A ghost of a cell grid, 2 value - u: the value lies halfway to the point at `distances`."""
    return 2.0 * value[at] - shifted(at, u, *distances)


def with_rise(at, u, rise, *distances):
    """A ghost that lies `rise` above the point at `distances`."""
    return shifted(at, u, *distances) + rise[at]


def slope_at_wall(at, u, sign, *distances):
    """The slope of a ghost: half the rise to the point inside, `sign` -1 beyond a high wall."""
    return 0.5 * sign * (shifted(at, u, *distances) - u[at])


class Stage(NamedTuple):
    """Stage `number` of a Runge-Kutta scheme: u = a u_n + b (u + dt L(u)); `begin` and `end` are
    its times in steps."""

    number: int
    a: float
    b: float
    begin: float
    end: float


RUNGE_KUTTA = {
    "explicit": (Stage(0, ZERO, ONE, 0.0, 1.0),),
    "rk2": (Stage(0, ZERO, ONE, 0.0, 1.0), Stage(1, 0.5, 0.5, 1.0, 1.0)),
    "rk3": (
        Stage(0, ZERO, ONE, 0.0, 1.0),
        Stage(1, 0.75, 0.25, 1.0, 0.5),
        Stage(2, 1.0 / 3.0, 2.0 / 3.0, 0.5, 1.0),
    ),
}
"""The stages of each scheme, in their order."""


def divergence(at, *args):
    """div v of a cell; the components at the faces above the points, and then 1 / h of each axis,
    slowest axis first."""
    count = len(args) // 2
    total = 0.0
    for axis, (v, per_h) in enumerate(zip(args[:count], args[count:], strict=True)):
        total = total + (v[at] - v[neighbour(at, axis, -1)]) * per_h
    return total


def negative_part(at, v):
    """The part of a velocity that is negative."""
    return where(v[at] < 0.0, v[at], 0.0 * v[at])


@cache
def negative_part_at_faces(axis: int) -> Point:
    """The negative part at both faces of a cell, of velocities at the face above each point."""

    def lowest(at, v):
        below = v[neighbour(at, axis, -1)]
        return minimum(minimum(v[at], below), 0.0 * v[at])

    return lowest


@cache
def speed_out(axis: int) -> Point:
    """The speed with which a quantity leaves a cell through both faces; at least the larger speed.

    Where velocities diverge, a quantity leaves a cell on both sides.
    """

    def speed(at, v):
        below, above = v[neighbour(at, axis, -1)], v[at]
        out = maximum(above, 0.0) - minimum(below, 0.0)
        return maximum(out, maximum(magnitude(below), magnitude(above)))

    return speed


def change_of(old: Sequence[Any], new: Sequence[Any], kind: str) -> Any:
    """The change of quantities at a point: for a "sum" the sum of squares, for a "max" the largest
    magnitude."""
    total = every = 0.0
    for before, after in zip(old, new, strict=True):
        difference = after - before
        every = every + difference
        if kind == "sum":
            total = total + difference * difference
        else:
            total = maximum(total, magnitude(difference))
    # A maximum may lose a NaN.
    return total if kind == "sum" else total + 0.0 * every


@cache
def changes(count: int, kind: str) -> Point:
    """`change_of` of `count` quantities; arguments: the old quantities, then the new ones."""

    def change(at, *args):
        old, new = ([array[at] for array in part] for part in (args[:count], args[count:]))
        return change_of(old, new, kind)

    return change
