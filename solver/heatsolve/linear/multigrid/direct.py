"""The solution of a small system, by the inverse of its matrix."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from heatsolve.linear.system import System, added
from heatsolve.stencil.grid import Grid, whole
from heatsolve.stencil.language import copy

ROW = 20
"""Terms of the sum at one point: a product with the inverse is two sweeps of ROW terms each."""
MOST = ROW * ROW
"""Elements of an array, ghosts included, up to which a system is small.

The set-up takes 5 to 10 ms, and 60 ms where an axis is periodic or no wall has a given value. A
solution takes a third of the time of a cycle through the levels below (H200).
"""
SOUND = 1e-2
"""The relative rounding error of a solution up to which cycles converge as they do without it."""


class Inverse:
    """x = u + A^-1 (b - A u).

    Where A is singular, A^-1 is the inverse of A plus a matrix of rank one (see `matrix_of`): it
    leaves the mean of u unchanged if the mean of b is 0. `is_sound`: whether the inverse is precise
    enough; it is not where single precision cannot tell A from a singular matrix. The host finds
    the inverse by operations on single elements, and sweeps sum products in a fixed order, so both
    have the same bits everywhere.
    """

    def __init__(self, system: System):
        self._system, self._backend = system, system.backend
        backend, shape = system.backend, system.grid.shape
        size = int(np.prod(shape))
        matrix = matrix_of(system)
        with np.errstate(all="ignore"):  # a matrix of single precision may have no inverse
            inverse = inverse_of(matrix)
        # Largest elements instead of sums: the bound is the same number on every machine.
        bound = len(matrix) * np.abs(matrix).max() * np.abs(inverse).max()
        self.is_sound = bool(np.finfo(backend.dtype).eps * bound <= SOUND)
        # An element is a sum over unknowns only. A ghost of a periodic axis gets the sum of its
        # unknown, any other ghost 0.
        own, numbers = np.flatnonzero(inside(system.grid)), numbers_of(system.grid).reshape(-1)
        given = np.flatnonzero(numbers >= 0)
        spread = np.zeros((MOST, size))
        spread[np.ix_(own, given)] = inverse.T[:, numbers[given]]
        self._inverse = backend.to_device(spread.reshape(ROW, ROW, size))
        residual, self._sums = backend.zeros((MOST,)), backend.zeros((1, ROW, size))
        self._change = backend.zeros(shape)
        self._residual = backend.part(residual, shape)
        self._columns = backend.part(residual, (ROW, ROW, 1))
        self._line = backend.part(self._change, (1, 1, size))

    def solve(self, u: Any, x: Any) -> None:
        """x from u, which may be the same array; the ghosts of x stay as they are."""
        system, sweep = self._system, self._backend.sweep
        system.sweep(system.residual, self._residual, u, system.b, *system.coefficients)
        self._multiply(self._line)
        sweep(added, x, system.grid.interior, u, self._change)

    def solve_from_zero(self, x: Any) -> None:
        """x = A^-1 b, ghosts of periodic axes included; 0 at all other ghosts."""
        system, sweep = self._system, self._backend.sweep
        sweep(copy, self._residual, system.grid.interior, system.b)
        self._multiply(self._backend.part(x, self._line.shape))

    def _multiply(self, line: Any) -> None:
        """A^-1 times the residual."""
        sweep = self._backend.sweep
        sweep(products, self._sums, whole(self._sums.shape), self._inverse, self._columns)
        sweep(sums, line, whole(line.shape), self._sums)


def products(i, j, k, inverse, b):
    """The sum of the products with every ROW-th element of b, from element j on."""
    total = inverse[i, j, k] * b[i, j, k]
    for n in range(1, ROW):
        total = total + inverse[i + n, j, k] * b[i + n, j, k]
    return total


def sums(i, j, k, a):
    """The sum of the ROW sums of `products`."""
    total = a[i, j, k]
    for n in range(1, ROW):
        total = total + a[i, j + n, k]
    return total


def inside(grid: Grid) -> np.ndarray:
    """A mask of the elements of an array that are unknowns."""
    result = np.zeros(grid.shape, bool)
    result[tuple(slice(*own) for own in grid.interior)] = True
    return result


def numbers_of(grid: Grid) -> np.ndarray:
    """The number of the unknown that each element of an array holds, periodic ghosts too, or -1."""
    numbers, unknowns = np.full(grid.shape, -1), inside(grid)
    numbers[unknowns] = np.arange(unknowns.sum())
    for number, axis in enumerate(grid.axes):
        if axis.periodic:
            lines = np.moveaxis(numbers, number, 0)
            lines[0], lines[-1] = lines[-2].copy(), lines[1].copy()
    return numbers


def matrix_of(system: System) -> np.ndarray:
    """The matrix A, from residuals of patterns: every third element along each axis is 1.

    A point reads at most one of these elements, because point functions of a system read no further
    than the neighbours of a point.
    """
    backend, grid = system.backend, system.grid
    unknowns, numbers = inside(grid), numbers_of(grid)
    own = np.argwhere(unknowns)
    matrix = np.zeros((len(own), len(own)))
    nothing, residual = backend.zeros(grid.shape), backend.zeros(grid.shape)
    for places, pattern in patterns(grid):
        u = backend.to_device(pattern)
        args = (u, nothing, *system.coefficients)
        backend.sweep(system.residual, residual, grid.interior, *args)
        values = backend.to_host(residual)[unknowns]
        read = own + (places - own + 1) % 3 - 1
        columns = numbers[tuple(read.T)]
        rows = np.flatnonzero(columns >= 0)
        matrix[rows, columns[rows]] -= values[rows]
    if system.singular:
        # The constants are the null space of A; the points' volumes, of its transpose.
        volumes = np.ones(grid.shape)
        for ratio in system.coefficients.ratios:
            volumes = volumes / (ratio if isinstance(ratio, float) else backend.to_host(ratio))
        matrix += (matrix.diagonal().max() or 1.0) * (volumes[unknowns] / len(own))
    return matrix


def patterns(grid: Grid) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each pattern: its first element, and an array that is 1 at every third one from there."""
    indices = np.indices(grid.shape)
    for places in product(range(3), repeat=grid.dimension):
        there = [index % 3 == place for index, place in zip(indices, places, strict=True)]
        yield np.array(places), np.logical_and.reduce(there).astype(float)


def inverse_of(matrix: np.ndarray) -> np.ndarray:
    """The inverse by Gaussian elimination without pivots, row by row within the matrix's band.

    A is weakly diagonally dominant, or the sum of such a matrix and a matrix of rank one.
    """
    if not matrix.any():  # an only unknown that is free, but for what rounding left
        return matrix
    upper, inverse = matrix.copy(), np.eye(len(matrix))
    rows, columns = np.nonzero(matrix)
    band = int(np.abs(rows - columns).max(initial=0)) + 1
    for k in range(len(matrix)):
        below = slice(k + 1, k + band)
        factors = upper[below, k : k + 1] / upper[k, k]
        upper[below, k + 1 : k + band] -= factors * upper[k, k + 1 : k + band]
        inverse[below, : k + 1] -= factors * inverse[k, : k + 1]
    for k in reversed(range(len(matrix))):
        inverse[k] /= upper[k, k]
        above = slice(max(0, k - band + 1), k)
        inverse[above] -= upper[above, k : k + 1] * inverse[k]
    return inverse
