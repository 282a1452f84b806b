"""Interpolation of a solution, by cubics, along both axes of a 2D grid in one sweep.

The sums are made in the same order as along one axis after the other (see `transfer`), to the same
bits, but the array between the axes is neither written nor read. The arrays must hold all of both
axes. Both rows of a pair are made at once, from the same coarse values.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from heatsolve.backends import Backend
from heatsolve.linear.multigrid.transfer_at_once import weighted_sum
from heatsolve.stencil.language import Point


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

    def __call__(self, into: Any) -> None:
        """Write the unknowns of an array."""
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
            args = (*self._columns, *weights)
            for columns, of_pair in _together(unknown_columns, far_columns):
                region = (rows, columns, (of_pair[0], of_pair[-1] + 1))
                is_far = rows == far_rows and columns == far_columns
                point = interpolated_2d(len(self._columns), len(parities), int(is_far))
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
def interpolated_2d(taps: int, rows: int, back: int) -> Point:
    """One or two `rows` of a pair, from `taps` coarse points along each axis.

    It takes the coarse array, which lacks its first `back` layers, the weights of columns and the
    weights of each row. Cached, because a backend identifies a compiled sweep by its function.
    """

    def interpolated(i, j, k, u, *more):
        columns, places = more[:taps], range(-back, taps - back)
        along = [
            weighted_sum(columns, (i, j, k), (u[i + above, j + right, k] for right in places))
            for above in places
        ]
        values = [
            weighted_sum(more[(1 + row) * taps : (2 + row) * taps], (i, j, k), along)
            for row in range(rows)
        ]
        return values[0] if len(values) == 1 else tuple(values)

    return interpolated
