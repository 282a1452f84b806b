"""Restriction and interpolation along both axes of a 2D grid in one sweep.

The sums are made in the same order as along one axis after the other (see `transfer`), to the same
bits, but the array between the axes is neither written nor read. The arrays must hold all of both
axes. A fine array of R rows of C points is viewed as (R / 2, C, 2), the elements of its rows 2i and
2i + 1 in pairs: its element (2i + row, 2j + column) is the element

    i,  j + (C row + column) // 2,  (C row + column) % 2.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from heatsolve.backends import Backend
from heatsolve.linear.multigrid.coarsening import AxisCoarsening
from heatsolve.stencil.language import Point


def weighted_sum(
    weights: Sequence[Any], here: tuple[Any, ...], u: Any, there: Sequence[tuple[Any, ...]]
) -> Any:
    """The sum of the weights at the index `here` times the values of u at the indices `there`."""
    (first, *others), (lowest, *above) = weights, there
    value = first[here] * u[lowest]
    for weight, place in zip(others, above, strict=True):
        value = value + weight[here] * u[place]
    return value


class Restriction2D:
    """Restriction from a fine array into `coarse`; `coarsenings`: of its rows and its columns."""

    def __init__(self, backend: Backend, coarse: Any, coarsenings: Sequence[AxisCoarsening]):
        self._sweep, self._part = backend.sweep, backend.part
        self._coarse = coarse.reshape((*coarse.shape, 1))
        rows, columns = self._counts = [coarsening.count for coarsening in coarsenings]
        self._region = ((1, rows + 1), (1, columns + 1), (0, 1))
        self._periodic = any(coarsening.fine.axis.periodic for coarsening in coarsenings)

    def takes_alone(self, shape: Sequence[int]) -> bool:
        """Whether a fine array of this shape holds all points that are read, without neighbours."""
        return not self._periodic and all(
            2 * count + 1 < extent for count, extent in zip(self._counts, shape, strict=True)
        )

    def __call__(self, fine: Any, of_rows: Sequence[Any], of_columns: Sequence[Any]) -> None:
        """Restrict a fine array, its ghosts up to date, by weights (1, n, 1) of both axes."""
        rows, columns = fine.shape
        pairs = self._part(fine, (rows // 2, columns, 2))
        lines = [*[line.reshape((-1, 1, 1)) for line in of_rows], *of_columns]
        second_row = [number for column in (0, 1) for number in divmod(columns + column, 2)]
        self._sweep(restricted_2d, self._coarse, self._region, pairs, *lines, *second_row)


def restricted_2d(i, j, k, pairs, *more):
    """The mean over a coarse volume, from the points 2i - 2 ... 2i + 1, 2j - 2 ... 2j + 1.

    It takes the fine pairs, four lines of weights of rows and four of columns, and the shifts, in
    pairs and in elements of a pair, to the two elements of the second row.
    """
    of_rows, of_columns, (j0, k0, j1, k1) = more[:4], more[4:8], more[8:]
    means = []
    for column in (-2, -1, 0, 1):
        pair, first = divmod(column, 2)
        there = [
            (i + row // 2, j + pair + (j1 if first else j0), k + (k1 if first else k0))
            if row % 2
            else (i + row // 2, j + pair, k + first)
            for row in (-2, -1, 0, 1)
        ]
        means.append(weighted_sum(of_rows, (i, j, k), pairs, there))
    value = of_columns[0][i, j, k] * means[0]
    for weight, mean in zip(of_columns[1:], means[1:], strict=True):
        value = value + weight[i, j, k] * mean
    return value


class Interpolation2D:
    """Interpolation from an array `coarse` to the unknowns of a fine array.

    `weights`: for rows and for columns, the weights of coarse points in the points 2q and 2q + 1,
    [q, parity] each; the lowest coarse point is number q of the array. `unknowns`: the numbers of
    rows and of columns of unknowns in the fine array. `inner`: the coarse array without the
    outermost layer, which is read instead where only unknowns are read.
    """

    def __init__(
        self,
        backend: Backend,
        coarse: Any,
        weights: Sequence[Sequence[np.ndarray]],
        unknowns: Sequence[int],
        inner: Any = None,
    ):
        self._sweep, self._part = backend.sweep, backend.part
        self._coarse = coarse.reshape((*coarse.shape, 1))
        self._inner = None if inner is None else inner.reshape((*inner.shape, 1))
        self._unknowns = unknowns
        of_rows, of_columns = weights
        self._rows = [
            [backend.to_device(weight[:, parity].reshape(-1, 1, 1)) for weight in of_rows]
            for parity in (0, 1)
        ]
        # Neighbouring threads make neighbouring points of a row, so that they store side by side:
        # the parity of a column is an index, the parity of a row is not.
        self._columns = [backend.to_device(weight.reshape(1, -1, 2)) for weight in of_columns]

    def __call__(self, into: Any, adds: bool = False) -> None:
        """Write the unknowns of an array or, if `adds`, add to them."""
        height, width = into.shape
        unknown_rows, unknown_columns = self._unknowns
        far_rows, far_columns = [(0, 0)] * 2
        if self._inner is not None:
            far_rows, far_columns = ((NEAR, extent - 3 - NEAR) for extent in self._coarse.shape[:2])
        for rows, parities in _together(unknown_rows, far_rows):
            weights = [line for parity in parities for line in self._rows[parity]]
            out = tuple(
                [
                    self._part(into, ((height - parity) // 2, width, 2), parity * width)
                    for parity in parities
                ]
            )
            args = (*self._columns, *weights, *(out if adds else ()))
            for columns, of_pair in _together(unknown_columns, far_columns):
                region = (rows, columns, (of_pair[0], of_pair[-1] + 1))
                is_far = rows == far_rows and columns == far_columns
                point = interpolated_2d(len(self._columns), len(parities), adds, int(is_far))
                source = self._inner if is_far else self._coarse
                self._sweep(point, out, region, source, *args)


NEAR = 2
"""The number of pairs beside a wall whose cubics read points that are not unknowns."""


def _together(unknowns: int, far: tuple[int, int]) -> list[tuple[tuple[int, int], tuple[int, ...]]]:
    """Pairs of points 2q and 2q + 1 that hold unknowns: bounds of q, and parities of the points.

    Unknowns are the points 1 ... `unknowns`; the first one, and a last one of even number, are
    alone in their pairs. Pairs `far` from walls are a part of their own, if there are any.
    """
    last = (unknowns + 1) // 2
    bounds = [1, *far, last] if far[0] < far[1] else [1, last]
    both = sorted(pairwise(bounds), key=lambda pairs: pairs[0] - pairs[1])
    parts = [(pairs, (0, 1)) for pairs in both] + [((0, 1), (1,))]
    parts += [((last, last + 1), (0,))] * (1 - unknowns % 2)
    return [(pairs, parities) for pairs, parities in parts if pairs[0] < pairs[1]]


@cache
def interpolated_2d(taps: int, rows: int, adds: bool, back: int) -> Point:
    """One or two `rows` of a pair, from `taps` coarse points along each axis.

    It takes the coarse array, which lacks its first `back` layers, the weights of columns, the
    weights of each row and, if `adds`, the former values. Cached, because a backend identifies a
    compiled sweep by its function.
    """

    def interpolated(i, j, k, u, *more):
        columns, old = more[:taps], more[(1 + rows) * taps :]
        places = range(-back, taps - back)
        along = [
            weighted_sum(columns, (i, j, k), u, [(i + above, j + right, k) for right in places])
            for above in places
        ]
        values = []
        for row in range(rows):
            first, *others = more[(1 + row) * taps : (2 + row) * taps]
            value = first[i, j, k] * along[0]
            for weight, there in zip(others, along[1:], strict=True):
                value = value + weight[i, j, k] * there
            values.append(value)
        if adds:
            values = [array[i, j, k] + value for array, value in zip(old, values, strict=True)]
        return values[0] if len(values) == 1 else tuple(values)

    return interpolated
