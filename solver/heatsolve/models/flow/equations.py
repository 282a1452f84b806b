"""Points of incompressible flow: du/dt + u . grad u = -grad p / rho + nu div grad u + f, div u = 0.

The collocated scheme comes from a well-known course (L. A. Barba and G. F. Forsyth, J. Open Source
Educ. 2 (2018), 21, steps 11 and 12): u and p on the same nodes, convection by backward differences,
all other derivatives central. The equation of the pressure is the divergence of the momentum
equation with div u = 0 at the end of the step; each step makes a number of Jacobi sweeps for it.
It is 2D, with u and v along x and y.

The staggered scheme is by F. H. Harlow and J. E. Welch (Phys. Fluids 8 (1965), 2182): p at the
centres of cells, each velocity on the faces across it. The face behind a cell has the cell's index,
so a cell lies between the faces [at - 1] and [at]. Convection is the divergence of the flux of
momentum. Its forms:

- central means, which conserve momentum, and energy where div u = 0;
- skew-symmetric, sum F u_neighbour / 2, which conserves energy for any div u (R. W. C. P.
  Verstappen and A. E. P. Veldman, J. Comput. Phys. 187 (2003), 343);
- wider fluxes, central of fourth order or upwind-biased of third.
"""

from functools import cache
from typing import Any

from heatsolve.models.transport.equations import change_of, divergence
from heatsolve.stencil.language import (
    ZERO,
    Mirrored,
    Point,
    magnitude,
    maximum,
    neighbour,
    where,
)


def pressure_source(i, j, u, v, of_b, per_dt, per_2dx, per_2dy):
    """`of_b` times rho (div u / dt - (du/dx)^2 - 2 du/dy dv/dx - (dv/dy)^2).

    The `per_` arguments are reciprocals: a GPU takes longer for a division than for the rest.
    """
    du_dx = (u[i, j + 1] - u[i, j - 1]) * per_2dx
    dv_dy = (v[i + 1, j] - v[i - 1, j]) * per_2dy
    du_dy = (u[i + 1, j] - u[i - 1, j]) * per_2dy
    dv_dx = (v[i, j + 1] - v[i, j - 1]) * per_2dx
    turning = 2.0 * (du_dy * dv_dx)
    return of_b * (per_dt * (du_dx + dv_dy) - du_dx * du_dx - turning - dv_dy * dv_dy)


def pressure_sweep(i, j, p, b, of_x, of_y, *walls):
    """A sweep of Jacobi's for the pressure; b is the result of `pressure_source`, the right side
    times its weight.

    `walls` (see `Mirrored` of `stencil.language`) have nodes that copy the pressure inside.
    """
    p = Mirrored(p, (i, j), walls)
    along_x, along_y = p[i, j + 1] + p[i, j - 1], p[i + 1, j] + p[i - 1, j]
    return of_x * along_x + of_y * along_y - b[i, j]


def pressure_weights(dx: float, dy: float) -> tuple[float, float, float]:
    """The weights of neighbours along x and y and of b: dy^2, dx^2, dx^2 dy^2 over 2 (dx^2 + dy^2).

    Computed once, because a GPU takes longer for a division than for the rest of a sweep.
    """
    both = 2.0 * (dx * dx + dy * dy)
    return dy * dy / both, dx * dx / both, dx * dx * dy * dy / both


def collocated_step(i, j, u, v, p, fx, fy, dt, nu, *weights):
    """u and v after a step of explicit Euler; `weights`: `collocated_weights`."""
    carry_x, carry_y, push_x, push_y, spread_x, spread_y = weights
    here_u, here_v = u[i, j], v[i, j]
    new = []
    gradients = (
        push_x * (p[i, j + 1] - p[i, j - 1]),
        push_y * (p[i + 1, j] - p[i - 1, j]),
    )
    for w, gradient, force in zip((u, v), gradients, (fx, fy), strict=True):
        here, west, east = w[i, j], w[i, j - 1], w[i, j + 1]
        south, north = w[i - 1, j], w[i + 1, j]
        convected = here - here_u * carry_x * (here - west) - here_v * carry_y * (here - south)
        along_x = spread_x * (east - 2.0 * here + west)
        along_y = spread_y * (north - 2.0 * here + south)
        new.append(convected - gradient + nu * (along_x + along_y) + force[i, j] * dt)
    return tuple(new)


@cache
def collocated_step_with_change(kind: str) -> Point:
    """`collocated_step`, and with it the change of u and v."""

    def step(i, j, u, v, *arguments):
        new = collocated_step(i, j, u, v, *arguments)
        return *new, change_of((u[i, j], v[i, j]), new, kind)

    return step


def collocated_weights(dt: Any, rho: Any, dx: Any, dy: Any) -> tuple[Any, ...]:
    """dt / h, dt / (2 rho h) and dt / h^2, each along x and y, computed once, as
    `pressure_weights` are.

    Numbers in the precision of the field give the bits that a sweep would compute.
    """
    pushes = dt / (2 * rho * dx), dt / (2 * rho * dy)
    return dt / dx, dt / dy, *pushes, dt / (dx * dx), dt / (dy * dy)


# ---- the staggered scheme --------------------------------------------------------------------


def face_after(at, axis):
    """The index of the cell behind a face, or of the face behind a cell."""
    return neighbour(at, axis, 1)


def face_before(at, axis):
    """The index of the face before a cell."""
    return neighbour(at, axis, -1)


WIDE = ("central4", "upwind3")
"""Forms of convection whose fluxes take `second_differences`."""


def wide_flux(form, speed, w, lower, upper, second):
    """speed times w at a face: w is the mean of both sides minus a sixth of the second difference.

    The second difference is the mean of both sides (`central4`) or of the upwind side (`upwind3`).
    """
    if form == "upwind3":
        here = where(speed > 0.0, second[lower], second[upper])
    else:
        here = 0.5 * (second[lower] + second[upper])
    return speed * (0.5 * (w[lower] + w[upper]) - here * (1.0 / 6.0))


@cache
def second_differences(dimension: int) -> Point:
    """The second differences of a quantity along each axis, slowest first."""

    def differences(at, w):
        result = []
        for axis in range(dimension):
            lower, upper = w[neighbour(at, axis, -1)], w[neighbour(at, axis, 1)]
            result.append(upper - 2.0 * w[at] + lower)
        return tuple(result)

    return differences


def convection(form, component, velocities, at, inverse_spacings, second=()):
    """div (u u_c) at a face of axis c: from the fluxes through the sides of its volume."""
    w, total = velocities[component], 0.0
    for axis, (v, per_h) in enumerate(zip(velocities, inverse_spacings, strict=True)):
        lower, upper = neighbour(at, axis, -1), neighbour(at, axis, 1)
        if axis == component:
            low, high = 0.5 * (w[lower] + w[at]), 0.5 * (w[at] + w[upper])
        else:
            across = face_after(at, component)
            low = 0.5 * (v[lower] + v[face_before(across, axis)])
            high = 0.5 * (v[at] + v[across])
        if form == "skew":
            total = total + (high * w[upper] - low * w[lower]) * (0.5 * per_h)
        elif form in WIDE:
            out = wide_flux(form, high, w, at, upper, second[axis])
            total = total + (out - wide_flux(form, low, w, lower, at, second[axis])) * per_h
        else:
            out, into = high * (w[at] + w[upper]), low * (w[lower] + w[at])
            total = total + (out - into) * (0.5 * per_h)
    return total


def laplacian(w, at, inverse_spacings, weights=()):
    """div grad w, central; beside obstacles with `weights` of the differences along each axis."""
    total = 0.0
    for axis, per_h in enumerate(inverse_spacings):
        upper, lower = w[neighbour(at, axis, 1)], w[neighbour(at, axis, -1)]
        if weights:
            low, high = weights[2 * axis : 2 * axis + 2]
            difference = high[at] * (upper - w[at]) - low[at] * (w[at] - lower)
        else:
            difference = upper - 2.0 * w[at] + lower
        total = total + difference * (per_h * per_h)
    return total


@cache
def momentum(dimension: int, component: int, form: str, buoyant: bool) -> Point:
    """The momentum equation without its pressure: du_c/dt = f + b - div(u u_c) + nu lap u_c.

    component: c, the number of the axis, slowest axis 0. b: the buoyancy, lift (T - T_neutral).

    Arguments: all components (slowest axis first); the `second_differences` of u_c for `WIDE`
    forms; the force f; if `buoyant`, the temperature T, lift and T_neutral; nu (`ZERO` leaves out
    diffusion) and 1 / h of each axis (slowest first); beside obstacles the weights of `laplacian`.
    """

    def rate(at, *args):
        velocities, args = _split(args, dimension)
        second, args = _split(args, dimension if form in WIDE else 0)
        w, total, args = velocities[component], args[0][at], args[1:]
        if buoyant:
            (temperature, lift, neutral), args = args[:3], args[3:]
            between = 0.5 * (temperature[at] + temperature[face_after(at, component)])
            total = total + lift * (between - neutral)
        (nu, *inverse_spacings), weights = _split(args, 1 + dimension)
        total = total - convection(form, component, velocities, at, inverse_spacings, second)
        return total if nu is ZERO else total + nu * laplacian(w, at, inverse_spacings, weights)

    return rate


def outflow_of(c, at, form, velocities, inverse_spacings, second=()):
    """The terms of div(u c) in a cell, one for each axis."""
    for axis, (v, per_h) in enumerate(zip(velocities, inverse_spacings, strict=True)):
        lower, upper = neighbour(at, axis, -1), neighbour(at, axis, 1)
        if form in WIDE:
            out = wide_flux(form, v[at], c, at, upper, second[axis])
            yield (out - wide_flux(form, v[lower], c, lower, at, second[axis])) * per_h
        else:
            out, into = v[at] * (c[at] + c[upper]), v[lower] * (c[lower] + c[at])
            yield (out - into) * (0.5 * per_h)


@cache
def carried(dimension: int, form: str) -> Point:
    """The transport equation of a quantity at the cells: dc/dt = alpha lap c + f - div(u c).

    Arguments: the quantity, all components of the velocity, the `second_differences` of the
    quantity for `WIDE` forms, the source, alpha (`ZERO` leaves out diffusion) and 1 / h of each
    axis (slowest first); beside obstacles the weights of `laplacian`.
    """

    def rate(at, c, *args):
        velocities, args = _split(args, dimension)
        second, (source, alpha, *args) = _split(args, dimension if form in WIDE else 0)
        inverse_spacings, weights = _split(args, dimension)
        total = source[at]
        if alpha is not ZERO:
            total = total + alpha * laplacian(c, at, inverse_spacings, weights)
        for flux in outflow_of(c, at, form, velocities, inverse_spacings, second):
            total = total - flux
        return total

    return rate


def _split(args, count):
    return args[:count], args[count:]


@cache
def stage(rate: Point, surfaces: int = 0) -> Point:
    """One stage of Runge-Kutta: a u_0 + b (u + dt L(u)).

    Arguments: u at the start of the step and now, a, b, dt; `surfaces` arrays beside obstacles, the
    mobility and, where it is not 0, the value of their surfaces; the arguments of `rate`.
    """

    def advanced(at, start, now, a, b, dt, *args):
        beside, args = _split(args, surfaces)
        new = damp(now[at] + dt * rate(at, *args), at, *beside)
        return new if a is ZERO else a * start[at] + b * new

    return advanced


@cache
def ahead(rate: Point) -> Point:
    """Adams and Bashforth's rate, L(u) + share (L(u) - L_before), and L(u).

    Arguments: the rate of the step before, half the ratio of this step's length to the length of
    the step before, and the arguments of `rate`.
    """

    def extrapolated_rate(at, before, share, *args):
        here = rate(at, *args)
        return here + share * (here - before[at]), here

    return extrapolated_rate


@cache
def adams(rate: Point, surfaces: int = 0) -> Point:
    """A step of Adams and Bashforth, u + dt times the rate `ahead`, and L(u).

    Arguments: u, the rate of the step before, dt, half the ratio of this step's length to the
    length of the step before; then as for `stage`.
    """

    extrapolated = ahead(rate)

    def advanced(at, now, before, dt, share, *args):
        beside, args = _split(args, surfaces)
        value, here = extrapolated(at, before, share, *args)
        return damp(now[at] + dt * value, at, *beside), here

    return advanced


def diffused(at, rate, w, nu, *inverse_spacings):
    """A rate plus nu div grad w."""
    return rate[at] + nu * laplacian(w, at, inverse_spacings)


def blended(at, w, other, share):
    """w + share (other - w)."""
    return w[at] + share * (other[at] - w[at])


def damp(new, at, mobility=ZERO, value=ZERO):
    """A new value beside obstacles: mobility new + (1 - mobility) surface value."""
    if mobility is ZERO:
        return new
    new = mobility[at] * new
    return new if value is ZERO else new + (1.0 - mobility[at]) * value[at]


@cache
def leaving(component: int) -> Point:
    """du/dt of the velocity through an outflow: -max(u, 0) du/dn, upwind.

    I. Orlanski, J. Comput. Phys. 21 (1976), 251, with the speed of the fluid itself.
    """

    def rate(at, w, per_h):
        speed = maximum(w[at], 0.0)
        return -speed * (w[at] - w[face_before(at, component)]) * per_h

    return rate


def scaled_divergence(at, factor, *args):
    """A number times div u: the right side of the pressure's equation."""
    return factor * divergence(at, *args)


@cache
def projected(component: int) -> Point:
    """u - dt dp/dn at a face between two cells (A. J. Chorin, Math. Comp. 22 (1968), 745).

    Beside obstacles the mobility, with which the pressure moves the fluid, is an argument, too.
    """

    def corrected(at, w, p, dt, per_h, mobility=ZERO):
        moved = dt if mobility is ZERO else dt * mobility[at]
        return w[at] - moved * per_h * (p[face_after(at, component)] - p[at])

    return corrected


def projected_outflow(at, w, p, dt, per_h, mobility=ZERO):
    """u - dt dp/dn at an outflow, where p = 0 half a cell behind the cell."""
    moved = dt if mobility is ZERO else dt * mobility[at]
    return w[at] + moved * (2.0 * per_h) * p[at]


def raised(at, w, amount):
    """u plus a number."""
    return w[at] + amount


@cache
def extrapolated(*counts: int) -> Point:
    """Sums of the last pressures times weights, or parts of such sums.

    The first sum is a guess of the next pressure. The newest pressure follows it: it replaces the
    oldest. The other sums are parts of the guesses of the stages after it. The arguments are the
    pressures, the newest first, and for each sum the weights of the last ones, of which `counts`
    holds the number.
    """

    def extrapolation(at, *args):
        values, weights = [p[at] for p in args[: counts[0]]], list(args[counts[0] :])
        results = []
        for count in counts:
            newest, *older = values[:count]
            result = weights.pop(0) * newest
            for value in older:
                result = result + weights.pop(0) * value
            results.append(result)
        guess, *others = results
        return guess, values[0], *others

    return extrapolation


@cache
def centred(component: int) -> Point:
    """The velocity at a cell's centre, the mean of its two faces."""

    def mean(at, w):
        return 0.5 * (w[face_before(at, component)] + w[at])

    return mean


def scaled_pressure(at, p, mean, enclosed, density):
    """The pressure in a file, rho (p - mean); in cells cut off from the flow (`enclosed`) rho p."""
    level = mean if enclosed is ZERO else mean * (1.0 - enclosed[at])
    return (p[at] - level) * density


def kinetic_energy(at, *velocities):
    """The sum over both faces along each axis of u^2 / 4: |u|^2 / 2 of a cell."""
    total = 0.0
    for axis, w in enumerate(velocities):
        low, high = w[face_before(at, axis)], w[at]
        total = total + 0.25 * (low * low + high * high)
    return total


def enstrophy(at, *args):
    """|rot u|^2 / 2 of a cell: for each component of rot u, the mean square at the cell's edges."""
    count = len(args) // 2
    velocities, inverse_spacings, total = args[:count], args[count:], 0.0
    for first in range(count):
        for second in range(first + 1, count):
            for low in (0, -1):
                for left in (0, -1):
                    edge = neighbour(neighbour(at, first, low), second, left)
                    u, v = velocities[first], velocities[second]
                    along = (v[neighbour(edge, first, 1)] - v[edge]) * inverse_spacings[first]
                    across = u[neighbour(edge, second, 1)] - u[edge]
                    turn = along - across * inverse_spacings[second]
                    total = total + 0.125 * (turn * turn)
    return total


def courant(at, *args):
    """The sum over the axes of the larger |u| of a cell's two faces over the spacing (1/s)."""
    count = len(args) // 2
    total = 0.0
    for axis, (w, per_h) in enumerate(zip(args[:count], args[count:], strict=True)):
        total = total + maximum(magnitude(w[face_before(at, axis)]), magnitude(w[at])) * per_h
    return total


@cache
def slope_outward(axis: int, side: int) -> Point:
    """dc/dn at a wall, from the cell beside it and the ghost behind; 0 where the array `fluid`, if
    there are obstacles, is 0."""

    def slope(at, c, per_h, *fluid):
        result = (c[neighbour(at, axis, 1 if side else -1)] - c[at]) * per_h
        return where(fluid[0][at] > 0.0, result, 0.0 * result) if fluid else result

    return slope


# ---- obstacles -------------------------------------------------------------------------------


@cache
def conductance(axis: int) -> Point:
    """The conductance of the pressure at the face before a cell: 1 / h^2 (0 at walls) times the
    mobility."""

    def lessened(at, mobility, line):
        return line[at] * mobility[face_before(at, axis)]

    return lessened


def enclosed(at, *faces):
    """1 for a cell with closed faces only, 0 for other cells; conductances slowest axis first."""
    total = 0.0
    for axis, face in enumerate(faces):
        total = total + (face[at] + face[face_after(at, axis)])
    none = 0.0 * total
    return where(total > 0.0, none, none + 1.0)


def filled(at, c, owner, value):
    """c, and inside obstacles the value of their surfaces."""
    return where(owner[at] < 0.0, value[at], c[at])


def unbalanced(c, at, rest, number, nu, inverse_spacings, weights, drag, value, owner):
    """The loss of a quantity to obstacle `number`.

    Inside the obstacle the loss is the rate of the scheme without obstacles: `rest` plus diffusion.
    Beside the obstacle it is the excess of that rate over the true rate.
    """
    plain = laplacian(c, at, inverse_spacings)
    inside = rest + nu * plain
    altered = laplacian(c, at, inverse_spacings, weights) + drag[at] * (value[at] - c[at])
    beside = nu * (plain - altered)
    return where(owner[at] == -number, inside, where(owner[at] == number, beside, 0.0 * c[at]))


@cache
def force(dimension: int, component: int, form: str) -> Point:
    """The force of the flow on an obstacle along an axis, over rho and a cell's volume.

    Arguments: the pressure, all components of the velocity, the `second_differences` for
    `WIDE` forms; nu and 1 / h of each axis; the weights, the drag, the value and the owner of
    `immersed_boundary.Stencil`; the number of the obstacle.
    """

    def taken(at, p, *args):
        velocities, args = _split(args, dimension)
        second, (nu, *args) = _split(args, dimension if form in WIDE else 0)
        per_h, (*weights, drag, value, owner, number) = _split(args, dimension)
        pressed = (p[face_after(at, component)] - p[at]) * per_h[component]
        rest = -convection(form, component, velocities, at, per_h, second) - pressed
        c = velocities[component]
        return unbalanced(c, at, rest, number, nu, per_h, weights, drag, value, owner)

    return taken


@cache
def release(dimension: int, form: str) -> Point:
    """The gain of a carried quantity from an obstacle, over a cell's volume.

    Arguments: the quantity; then as for `force` after the pressure.
    """

    def given_off(at, c, *args):
        velocities, args = _split(args, dimension)
        second, (alpha, *args) = _split(args, dimension if form in WIDE else 0)
        per_h, (*weights, drag, value, owner, number) = _split(args, dimension)
        rest = 0.0
        for flux in outflow_of(c, at, form, velocities, per_h, second):
            rest = rest - flux
        return -unbalanced(c, at, rest, number, alpha, per_h, weights, drag, value, owner)

    return given_off
