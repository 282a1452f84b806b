"""Points of incompressible flow: du/dt + u . grad u = -grad p / rho + nu div grad u + f, div u = 0.

The collocated scheme is that of a well-known course: u and p on the same nodes, convection by
backward differences, all other derivatives central, and in each step a number of Jacobi sweeps for
the pressure, whose equation is the divergence of the momentum equation with div u = 0 at the
step's end (L. A. Barba and G. F. Forsyth, J. Open Source Educ. 2 (2018), 21, steps 11 and 12). In a
plane, u and v along x and y.
"""

from heatsolve.points import Mirrored


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
