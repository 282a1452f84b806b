"""A lower bound of the smallest eigenvalue of -div(k grad) on a grid, axis by axis."""

import math
from collections.abc import Sequence

import numpy as np

from heatsolve.stencil.grid import Axis, Grid

STEPS = 100
ENOUGH = 1e-3
"""Relative change at which the inverse iteration stops: a bound needs no more digits."""


def lowest_eigenvalue(
    grid: Grid, lines: Sequence[np.ndarray], ratios: Sequence[np.ndarray]
) -> float:
    """A lower bound of the smallest eigenvalue that is not 0 (1/s for a unit of rho c).

    A grows with every conductance, so replacing each by the smallest of its layer gives a bound,
    and leaves a sum of operators along the axes, whose smallest eigenvalues add. Without any wall
    of given value it is the smallest step from the constant field, along the slowest axis.
    """
    smallest = [
        0.0 if axis.periodic or line[1] + line[-1] == 0.0 else _smallest(line, ratio.reshape(-1))
        for axis, line, ratio in zip(grid.axes, lines, ratios, strict=True)
    ]
    if sum(smallest) > 0.0:
        return sum(smallest)
    return min(
        _first_mode(axis, float(line[2:-1].min()) if line.size > 3 else 0.0)
        for axis, line in zip(grid.axes, lines, strict=True)
        if axis.unknowns > 1
    )


def _first_mode(axis: Axis, conductance: float) -> float:
    """The smallest eigenvalue above 0 of an axis without walls, of even conductance."""
    half_waves = 1.0 if axis.periodic else 0.5
    return 4.0 * conductance * math.sin(half_waves * math.pi / axis.intervals) ** 2


def _smallest(faces: np.ndarray, ratio: np.ndarray) -> float:
    """The smallest eigenvalue of the operator along one line, by inverse iteration.

    r_i (c_{i+1} (u_i - u_{i+1}) + c_i (u_i - u_{i-1})), made symmetric by the square roots of r.
    The Rayleigh quotient approaches from above: what it still may fall is taken off.
    """
    c = faces[1:]
    n = c.size - 1
    r = np.broadcast_to(ratio[1:-1] if ratio.size > 1 else ratio, (n,))
    diagonal = r * (c[:-1] + c[1:])
    off = -c[1:-1] * np.sqrt(r[:-1] * r[1:])
    pivots, factors = _factorise(diagonal.tolist(), off.tolist())
    u = [1.0] * n
    value = math.inf
    for _ in range(STEPS):
        norm = math.hypot(*u)  # whose squares neither under- nor overflow
        u = [x / norm for x in u]
        solved = _solve(pivots, factors, u)
        estimate = 1.0 / sum(x * y for x, y in zip(u, solved, strict=True))
        done = abs(value - estimate) <= ENOUGH * estimate
        value, u = estimate, solved
        if done:
            break
    return value * (1.0 - 2.0 * ENOUGH)


def _factorise(diagonal: list[float], off: list[float]) -> tuple[list[float], list[float]]:
    pivots, factors = [diagonal[0]], []
    for d, e in zip(diagonal[1:], off, strict=True):
        factors.append(e / pivots[-1])
        pivots.append(d - factors[-1] * e)
    return pivots, factors


def _solve(pivots: list[float], factors: list[float], right: list[float]) -> list[float]:
    u = [right[0]]
    for factor, value in zip(factors, right[1:], strict=True):
        u.append(value - factor * u[-1])
    u = [value / pivot for value, pivot in zip(u, pivots, strict=True)]
    for n in range(len(u) - 2, -1, -1):
        u[n] -= factors[n] * u[n + 1]
    return u
