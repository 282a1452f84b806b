"""Residuals to the next coarser level, corrections back: one axis after the other.

A field whose extent along an axis is even is seen as pairs (before, pair, parity and after), so
that the point 2q + p is element (q, p) of the pairs: the point language knows no index 2q.
"""

from typing import Any

from heatsolve.backends import Backend
from heatsolve.linear.lines import Halving


class Transfer:
    """Between a level and the next one; `lines` holds the axes that are halved, by their number.

    `finer` is the array of the fine level that is restricted and into which is interpolated; where
    the interpolation leaves it alone its ghosts stay 0. `coarse_b` and `coarse_u` belong to the
    coarse level.
    """

    def __init__(
        self,
        backend: Backend,
        halvings: dict[int, Halving],
        shape: tuple[int, ...],
        coarse_b: Any,
        coarse_u: Any,
    ):
        extents = list(shape)
        for number, halving in halvings.items():
            even = extents[number] + extents[number] % 2
            extents[number] = max(even, 2 * (halving.count + 1))
        self.finer = backend.zeros(extents)
        self._steps = []
        down = self.finer
        for step, (number, halving) in enumerate(halvings.items()):
            extents[number] = halving.count + 2
            last = step == len(halvings) - 1
            between = coarse_b if last else backend.zeros(extents)
            up = coarse_u if last else between
            self._steps.append(Step(backend, halving, number, down, between, up))
            down = between

    def restrict(self) -> None:
        """b of the coarse level from the residual in `finer`, all its ghosts up to date."""
        for step in self._steps:
            step.restrict()

    def interpolate(self) -> None:
        """`finer` from u of the coarse level, all its ghosts up to date."""
        for step in reversed(self._steps):
            step.interpolate()


class Step:
    """The transfer along one axis."""

    def __init__(
        self, backend: Backend, halving: Halving, number: int, fine: Any, down: Any, up: Any
    ):
        self._sweep = backend.sweep
        before, after = 1, 1
        for extent in fine.shape[:number]:
            before *= extent
        for extent in fine.shape[number + 1 :]:
            after *= extent
        coarse = (before, halving.count + 2, after)
        self._pairs = fine.reshape((before, fine.shape[number] // 2, 2 * after))
        self._down, self._up = down.reshape(coarse), up.reshape(coarse)

        def line(values: Any) -> Any:
            return backend.to_device(values.reshape(1, -1, 1))

        left, right = halving.weights
        self._weights = [(line(left[:, parity]), line(right[:, parity])) for parity in (0, 1)]
        self._shares = tuple(line(share) for share in halving.shares)
        self._before, self._after, self._count = before, after, halving.count

    def restrict(self) -> None:
        region = ((0, self._before), (1, 1 + self._count), (0, self._after))
        self._sweep(restricted, self._down, region, self._pairs, *self._shares, self._after)

    def interpolate(self) -> None:
        for parity, weights in enumerate(self._weights):
            first = parity * self._after
            region = ((0, self._before), (0, 1 + self._count), (first, first + self._after))
            self._sweep(interpolated, self._pairs, region, self._up, *weights, -first)


def restricted(i, j, k, pairs, a, b, c, d, odd):
    """The mean over a coarse volume, from the points 2j - 2 ... 2j + 1."""
    return (
        a[i, j, k] * pairs[i, j - 1, k]
        + b[i, j, k] * pairs[i, j - 1, k + odd]
        + c[i, j, k] * pairs[i, j, k]
        + d[i, j, k] * pairs[i, j, k + odd]
    )


def interpolated(i, j, k, u, left, right, back):
    """Between the coarse points j and j + 1."""
    return left[i, j, k] * u[i, j, k + back] + right[i, j, k] * u[i, j + 1, k + back]
