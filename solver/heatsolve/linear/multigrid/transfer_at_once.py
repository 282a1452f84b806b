"""Restriction and interpolation along all axes in one sweep, on a device that holds the whole grid.

The sums are made in the same order as along one axis after the other (see `transfer`), to the same
bits; the arrays between the axes are neither written nor read. A sweep along one axis takes 3 us
on a small grid, mostly its launch.
"""

from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np

from heatsolve.backends import Backend
from heatsolve.linear.multigrid.coarsening import AxisCoarsening
from heatsolve.stencil.language import Point

TAPS = 4
"""Fine points 2q - 2 ... 2q + 1 of which the coarse point q takes the mean."""


def weighted_sum(weights: Sequence[Any], here: tuple[Any, ...], values: Iterable[Any]) -> Any:
    """The sum of the weights at the index `here` times these values, each read after its weight."""
    (first, *others), each = weights, iter(values)
    total = first[here] * next(each)
    for weight in others:
        total = total + weight[here] * next(each)
    return total


class TransferAtOnce:
    """The transfer between a fine grid, whose axes are all halved, and the arrays of a coarse grid.

    `unknowns`: the number along each axis of the fine grid. Along the axes in `wraps`, which are
    periodic, sweeps read the other end of the axis itself; along all other axes they read ghosts.
    """

    def __init__(
        self,
        backend: Backend,
        coarsenings: Sequence[AxisCoarsening],
        unknowns: Sequence[int],
        wraps: Sequence[bool],
        coarse_b: Any,
        coarse_u: Any,
    ):
        self._backend, self._coarse_b, self._coarse_u = backend, coarse_b, coarse_u
        self._coarsenings, self._wraps = coarsenings, tuple(wraps) if any(wraps) else ()
        self._coarse = tuple([(1, coarsening.count + 1) for coarsening in coarsenings])
        self._fine = tuple([(1, count + 1) for count in unknowns])

    @cached_property
    def _weights(self) -> list[Any]:
        """For each axis, a line of fine points for each of the two coarse points."""
        pairs = zip(self._coarsenings, self._fine, strict=True)
        return [
            # The weights [q, parity] are those of the points 2q and 2q + 1.
            self._along(axis, self._backend.to_device(np.ravel(weight)[:stop]))
            for axis, (coarsening, (_, stop)) in enumerate(pairs)
            for weight in coarsening.weights
        ]

    def _along(self, axis: int, line: Any) -> Any:
        return line.reshape([-1 if n == axis else 1 for n in range(len(self._fine))])

    def takes_alone(self, shape: Sequence[int]) -> bool:
        """Whether a fine array of this shape holds all points that are read, without neighbours."""
        read = [2 * stop for _, stop in self._coarse]  # up to the point 2q + 1 of the last q
        return not self._wraps and all(a <= b for a, b in zip(read, shape, strict=True))

    def restrict(self, fine: Any, weights: Sequence[Sequence[Any]]) -> None:
        """Restrict a fine array into b of the coarse grid.

        `weights`: for each axis, lines for the fine points 2q - 2 ... 2q + 1 in the coarse point q.
        """
        lines = [self._along(axis, line) for axis, of in enumerate(weights) for line in of]
        point = restricted(len(self._fine))
        args = self._coarse_b, self._coarse, fine, *lines
        self._backend.sweep(point, *args, wraps=self._wraps)

    def interpolate(self, into: Any, adds: bool) -> None:
        """Interpolate u of the coarse grid into the unknowns of a fine array or, if `adds`, add it
        to them."""
        point = interpolated(len(self._fine), adds)
        args = (*self._weights, into) if adds else tuple(self._weights)
        args = into, self._fine, self._coarse_u, *args
        self._backend.sweep(point, *args, wraps=self._wraps)


@cache
def restricted(axes: int) -> Point:
    """The mean over a coarse volume, of fine points: along the first axis, then along the next.

    It takes the fine array and, for each axis, the weights of its points 2q - 2 ... 2q + 1. Cached,
    because a backend identifies a compiled sweep by its function.
    """

    def mean(at, fine, *weights):
        def along(axis, place):
            if axis < 0:
                return fine[place]
            taps = range(-2, TAPS - 2)
            means = (along(axis - 1, (2 * at[axis] + tap, *place)) for tap in taps)
            return weighted_sum(weights[TAPS * axis :][:TAPS], at, means)

        return along(axes - 1, ())

    return mean


@cache
def interpolated(axes: int, adds: bool) -> Point:
    """A fine point, between two coarse points along each axis: along the last axis first.

    It takes the coarse array, for each axis the weights of the points q and q + 1 in a fine point
    2q or 2q + 1 and, if `adds`, the former value.
    """

    def value(at, coarse, *more):
        def along(axis, place):
            if axis == axes:
                return coarse[place]
            pair = (along(axis + 1, (*place, at[axis] // 2 + tap)) for tap in (0, 1))
            return weighted_sum(more[2 * axis :][:2], at, pair)

        corrected = along(0, ())
        return more[-1][at] + corrected if adds else corrected

    return value
