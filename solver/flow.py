"""Points of incompressible flow: du/dt + u . grad u = -grad p / rho + nu div grad u + f, div u = 0.

The collocated scheme is that of a well-known course: u and p on the same nodes, convection by
backward differences, all other derivatives central, and in each step a number of Jacobi sweeps for
the pressure, whose equation is the divergence of the momentum equation with div u = 0 at the
step's end (L. A. Barba and G. F. Forsyth, J. Open Source Educ. 2 (2018), 21, steps 11 and 12). In a
plane, u and v along x and y.

The staggered scheme is that of F. H. Harlow and J. E. Welch (Phys. Fluids 8 (1965), 2182): p at
the centres of cells, each velocity on the faces across it. The velocity behind a cell has the
cell's index, so a cell lies between the faces [at - 1] and [at]. Convection is the divergence of
the flux of momentum, by central means, which conserve momentum, and where div u = 0 also energy; or
in skew-symmetric form, sum F u_neighbour / 2, which conserves energy whatever div u is (R. W. C. P.
Verstappen and A. E. P. Veldman, J. Comput. Phys. 187 (2003), 343).
"""

from functools import cache

from heatsolve.points import NOTHING, Mirrored, Point, maximum, neighbour


def pressure_source(i, j, u, v, dt, rho, dx, dy):
    """b = rho (div u / dt - (du/dx)^2 - 2 du/dy dv/dx - (dv/dy)^2)."""
    du_dx = (u[i, j + 1] - u[i, j - 1]) / (2.0 * dx)
    dv_dy = (v[i + 1, j] - v[i - 1, j]) / (2.0 * dy)
    du_dy = (u[i + 1, j] - u[i - 1, j]) / (2.0 * dy)
    dv_dx = (v[i, j + 1] - v[i, j - 1]) / (2.0 * dx)
    turning = 2.0 * (du_dy * dv_dx)
    return rho * (1.0 / dt * (du_dx + dv_dy) - du_dx * du_dx - turning - dv_dy * dv_dy)


def pressure_sweep(i, j, p, b, of_x, of_y, of_b, *walls):
    """A sweep of Jacobi's for div grad p = b, with the weights of `pressure_weights`.

    `walls`, see `points.Mirrored`, are those whose node copies the pressure inside.
    """
    p = Mirrored(p, (i, j), walls)
    along_x, along_y = p[i, j + 1] + p[i, j - 1], p[i + 1, j] + p[i - 1, j]
    return of_x * along_x + of_y * along_y - of_b * b[i, j]


def pressure_weights(dx: float, dy: float) -> tuple[float, float, float]:
    """Those of the neighbours along x and y and of b: dy^2, dx^2, dx^2 dy^2 over 2 (dx^2 + dy^2).

    Formed once, as a GPU takes longer for a division than for all the rest of a sweep.
    """
    both = 2.0 * (dx * dx + dy * dy)
    return dy * dy / both, dx * dx / both, dx * dx * dy * dy / both


def collocated_step(i, j, u, v, p, fx, fy, dt, rho, nu, dx, dy):
    """u and v after a step of explicit Euler."""
    here_u, here_v = u[i, j], v[i, j]
    new = []
    gradients = (
        dt / (2.0 * rho * dx) * (p[i, j + 1] - p[i, j - 1]),
        dt / (2.0 * rho * dy) * (p[i + 1, j] - p[i - 1, j]),
    )
    for w, gradient, force in zip((u, v), gradients, (fx, fy), strict=True):
        here, west, east = w[i, j], w[i, j - 1], w[i, j + 1]
        south, north = w[i - 1, j], w[i + 1, j]
        convected = here - here_u * dt / dx * (here - west) - here_v * dt / dy * (here - south)
        along_x = dt / (dx * dx) * (east - 2.0 * here + west)
        along_y = dt / (dy * dy) * (north - 2.0 * here + south)
        new.append(convected - gradient + nu * (along_x + along_y) + force[i, j] * dt)
    return tuple(new)


# ---- the staggered scheme --------------------------------------------------------------------


def face_after(at, axis):
    """The index of the cell behind a face, or of the face behind a cell."""
    return neighbour(at, axis, 1)


def face_before(at, axis):
    """The index of the face before a cell."""
    return neighbour(at, axis, -1)


def convection(form, component, velocities, at, spacings):
    """div (u u_c) at a face of axis c: from the fluxes through the sides of its volume."""
    w, total = velocities[component], 0.0
    for axis, (v, h) in enumerate(zip(velocities, spacings, strict=True)):
        before, behind = neighbour(at, axis, -1), neighbour(at, axis, 1)
        if axis == component:
            low, high = 0.5 * (w[before] + w[at]), 0.5 * (w[at] + w[behind])
        else:
            across = face_after(at, component)
            low = 0.5 * (v[before] + v[face_before(across, axis)])
            high = 0.5 * (v[at] + v[across])
        if form == "skew":
            total = total + (high * w[behind] - low * w[before]) / (2.0 * h)
        else:
            out, into = high * (w[at] + w[behind]), low * (w[before] + w[at])
            total = total + (out - into) / (2.0 * h)
    return total


def laplacian(w, at, spacings):
    """div grad w, central."""
    total = 0.0
    for axis, h in enumerate(spacings):
        behind, before = w[neighbour(at, axis, 1)], w[neighbour(at, axis, -1)]
        total = total + (behind - 2.0 * w[at] + before) / (h * h)
    return total


def stepped(old, now, rate, a, b, dt):
    """One stage of Runge-Kutta: a u_0 + b (u + dt L(u))."""
    new = now + dt * rate
    return new if a is NOTHING else a * old + b * new


@cache
def momentum(dimension: int, component: int, form: str, buoyant: bool) -> Point:
    """One stage for the velocity along an axis (counted as arrays are), before its projection.

    Arguments: the component at the start of the step, all components now (slowest axis first), the
    force; the temperature, the acceleration for each of its units and the temperature at which
    there is none, if `buoyant`; a, b, dt, nu and the spacings (slowest axis first).
    """

    def advanced(at, start, *given):
        velocities, force, more = given[:dimension], given[dimension], given[dimension + 1 :]
        w, rate = velocities[component], force[at]
        if buoyant:
            (temperature, lift, neutral), more = more[:3], more[3:]
            between = 0.5 * (temperature[at] + temperature[face_after(at, component)])
            rate = rate + lift * (between - neutral)
        a, b, dt, nu, *spacings = more
        rate = rate - convection(form, component, velocities, at, spacings)
        rate = rate + nu * laplacian(w, at, spacings)
        return stepped(start[at], w[at], rate, a, b, dt)

    return advanced


@cache
def carried(dimension: int) -> Point:
    """One stage for a quantity at the cells: dc/dt + div (u c) = alpha div grad c + f.

    Arguments: the quantity at the start of the step and now, all components of the velocity, the
    source, a, b, dt, alpha and the spacings (slowest axis first).
    """

    def advanced(at, start, c, *given):
        velocities, (source, a, b, dt, alpha, *spacings) = given[:dimension], given[dimension:]
        rate = source[at] + alpha * laplacian(c, at, spacings)
        for axis, (v, h) in enumerate(zip(velocities, spacings, strict=True)):
            before, behind = neighbour(at, axis, -1), neighbour(at, axis, 1)
            out, into = v[at] * (c[at] + c[behind]), v[before] * (c[before] + c[at])
            rate = rate - (out - into) / (2.0 * h)
        return stepped(start[at], c[at], rate, a, b, dt)

    return advanced


@cache
def leaving(component: int) -> Point:
    """One stage for the velocity through an outflow: du/dt + max(u, 0) du/dn = 0, upwind.

    I. Orlanski, J. Comput. Phys. 21 (1976), 251, with the speed of the fluid itself.
    """

    def advanced(at, start, w, a, b, dt, h):
        speed = maximum(w[at], 0.0)
        rate = -speed * (w[at] - w[face_before(at, component)]) / h
        return stepped(start[at], w[at], rate, a, b, dt)

    return advanced


def divergence(at, *given):
    """div u of a cell; the components and then the spacings, slowest axis first."""
    count = len(given) // 2
    total = 0.0
    for axis, (v, h) in enumerate(zip(given[:count], given[count:], strict=True)):
        total = total + (v[at] - v[face_before(at, axis)]) / h
    return total


def scaled_divergence(at, factor, *given):
    """A number times `divergence`: the right side of the pressure's equation."""
    return factor * divergence(at, *given)


@cache
def projected(component: int) -> Point:
    """u - dt dp/dn at a face between two cells (A. J. Chorin, Math. Comp. 22 (1968), 745)."""

    def corrected(at, w, p, dt, h):
        return w[at] - dt * (p[face_after(at, component)] - p[at]) / h

    return corrected


def projected_outflow(at, w, p, dt, h):
    """The same at an outflow, where p = 0 half a cell behind the cell."""
    return w[at] + dt * p[at] / (0.5 * h)


def extrapolated(at, p, before, reach):
    """A pressure from the last one and the one before, and what is now the one before."""
    return p[at] + reach * (p[at] - before[at]), p[at]


@cache
def centred(component: int) -> Point:
    """The velocity at a cell's centre, the mean of its two faces'."""

    def mean(at, w):
        return 0.5 * (w[face_before(at, component)] + w[at])

    return mean


def kinetic_energy(at, *velocities):
    """The sum over both faces along each axis of u^2 / 4: |u|^2 / 2 of a cell."""
    total = 0.0
    for axis, w in enumerate(velocities):
        low, high = w[face_before(at, axis)], w[at]
        total = total + 0.25 * (low * low + high * high)
    return total
