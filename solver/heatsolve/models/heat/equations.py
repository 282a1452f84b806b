"""Heat conduction: rho c dT/dt = div(k grad T) + q, in finite volumes.

Each unknown owns a control volume; heat crosses the face between two neighbours at the rate
`c (T_neighbour - T)` for each unit of volume, with the face's *conductance* c = k / h^2 (W/(m3 K)),
k the harmonic mean of both sides. A wall is a face to the ghost beyond it, see `heat.walls`. At a
node on a wall the control volume is half a cell, so its balance along that axis counts twice:
the *ratio* r of a full cell to the point's volume is 1 or 2. `c[at]` is the conductance of the
face between a point and the point below it along an axis.

The linear system is A T = b with A T = m s T - div(k grad T), m = rho c, and s = 0 (steady) or
s = 1 / (theta dt) (one implicit time step). Where s is ZERO its term costs nothing, as does a
ratio that is ONE. Source: S. V. Patankar, "Numerical Heat Transfer and Fluid Flow" (1980),
chapter 4.
"""

from functools import cache

from heatsolve.stencil.language import (
    ZERO,
    Mirrored,
    Point,
    magnitude,
    neighbour,
    where,
)


def harmonic_mean(a, b):
    """2 a b / (a + b), Patankar (4.9); exactly a where both are equal."""
    return where(a == b, a, 2.0 * (a * b) / (a + b))


def sides(at, faces):
    """For x, y, z: the indices of both neighbours of a point, and c and r along this axis."""
    for n, axis in enumerate(reversed(range(len(at)))):
        yield neighbour(at, axis, -1), neighbour(at, axis, 1), faces[2 * n], faces[2 * n + 1]


def flux_divergence(at, t, *faces):
    """div(k grad T): heat that a unit of volume gains from its neighbours (W/m3).

    `faces` are c and r along x, y, z in turn. Heat that enters through the face above a point
    leaves the point above: it is the same product, so that a kernel computes it once.
    """
    gains = [
        r[at] * (c[upper] * (t[upper] - t[at]) - c[at] * (t[at] - t[lower]))
        for lower, upper, c, r in sides(at, faces)
    ]
    return sum(gains[1:], gains[0])


def conductance(at, *faces):
    """The sum of the conductances around a point: the diagonal of -div(k grad)."""
    along = [r[at] * (c[upper] + c[at]) for _, upper, c, r in sides(at, faces)]
    return sum(along[1:], along[0])


def residual(at, t, b, m, s, *faces):
    """b - A T = b + div(k grad T) - m s T (W/m3)."""
    gained = b[at] + flux_divergence(at, t, *faces)
    return gained if s is ZERO else gained - m[at] * s * t[at]


def diagonal(at, m, s, *faces):
    """The diagonal of A."""
    around = conductance(at, *faces)
    return around if s is ZERO else m[at] * s + around


class MagnitudesAround:
    """-|T| at a point and |T| elsewhere.

    So `flux_divergence` adds magnitudes where it subtracts temperatures.
    """

    def __init__(self, array, at):
        self._array, self._here = array, at

    def __getitem__(self, index):
        index = index if isinstance(index, tuple) else (index,)
        value = magnitude(self._array[index])
        return -value if index == self._here else value


def rounding(at, t, b, m, s, *faces):
    """|A| |T| + |b|: its rounding error is the least residual that a computer can reach."""
    total = magnitude(b[at]) + flux_divergence(at, MagnitudesAround(t, at), *faces)
    return total if s is ZERO else total + m[at] * s * magnitude(t[at])


def gershgorin(at, one, m, *faces):
    """Gershgorin's bound of the eigenvalues of A / (rho c).

    `one` is 1 at all unknowns and 0 at walls: a row's sum of magnitudes is twice its diagonal minus
    its conductances to walls.
    """
    return (2.0 * conductance(at, *faces) + flux_divergence(at, one, *faces)) / m[at]


def rate(at, dt, m):
    """a = dt / (rho c)."""
    return dt / m[at]


def explicit_step(at, t, b, a, *faces):
    """T + a (div(k grad T) + q), a = dt / (rho c): one step of explicit Euler.

    Where b is ZERO there is no source.
    """
    gained = flux_divergence(at, t, *faces)
    return t[at] + a[at] * (gained if b is ZERO else b[at] + gained)


def implicit_source(at, t, b_old, b_new, m, s, old_share, *faces):
    """The right side of one implicit step, m s T + (1/theta - 1)(div(k grad T) + b_old) + b_new.

    With s = 1 / (theta dt) and old_share = 1/theta - 1, A T_new = right side is the theta scheme:
    theta = 1 is backward Euler, 1/2 Crank-Nicolson.
    """
    old = flux_divergence(at, t, *faces) + b_old[at]
    return m[at] * s * t[at] + old_share * old + b_new[at]


# ---- literal updates of teaching codes: their own order of operations, hence their own bits ----


def laplace(i, j, u, f, h2):
    """0.25 (u[i-1,j] + u[i+1,j] + u[i,j-1] + u[i,j+1] + h^2 f): the hands-on Jacobi listing."""
    return 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1] + h2 * f[i, j])


def laplace_unequal(i, j, u, f, dx2, dy2, both):
    """(dy^2 (u[i,j+1] + u[i,j-1]) + dx^2 (u[i+1,j] + u[i-1,j]) + f dx^2 dy^2) / (2 (dx^2 + dy^2)):
    the listings of lessons 9 and 10 of CFD Python, `both` = 2 (dx^2 + dy^2)."""
    along_x = dy2 * (u[i, j + 1] + u[i, j - 1])
    along_y = dx2 * (u[i + 1, j] + u[i - 1, j])
    return (along_x + along_y + f[i, j] * dx2 * dy2) / both


def five_point_mean(i, j, u, f, h2):
    """0.2 (centre + north + east + west + south), north the previous row: Legate's stencil."""
    return 0.2 * (u[i, j] + u[i - 1, j] + u[i, j + 1] + u[i, j - 1] + u[i + 1, j])


def four_point_mean(i, j, u, f, h2):
    """0.25 (right + left + next row + previous row): NVIDIA's multi-GPU Jacobi."""
    return 0.25 * (u[i, j + 1] + u[i, j - 1] + u[i + 1, j] + u[i - 1, j])


@cache
def mirrored(update: Point) -> Point:
    """An update where some wall nodes copy the row inside after each sweep; see `Mirrored`."""

    def inside(at, u, f, *args):
        scales, walls = args[: -2 * len(at)], args[-2 * len(at) :]
        return update(*at, Mirrored(u, at, walls), f, *scales)

    return inside


LITERAL_UPDATES = {
    "laplace": laplace,
    "five-point-mean": five_point_mean,
    "four-point-mean": four_point_mean,
}


def literal_update(name: str, dx: float, dy: float, equal: bool) -> tuple[Point, tuple[float, ...]]:
    """The point function of a literal update in 2D, and its arguments made of the spacings.

    Only "laplace" has a form for spacings that are not `equal`.
    """
    if equal:
        return LITERAL_UPDATES[name], (dx * dx,)
    return laplace_unequal, (dx * dx, dy * dy, 2.0 * (dx * dx + dy * dy))
