"""The solution of a coarse level on the next finer one, by cubics along one axis after the other.

A correction is interpolated linearly; a solution needs two orders more, or its interpolation adds
high frequencies as large as the error of the discretisation, and one cycle would not remove them
(U. Trottenberg, C. Oosterlee and A. Schueller, "Multigrid", 2001, section 2.6).

A cubic takes two coarse points on each side. A block has one layer of ghosts, so the solution is
copied to an array with one layer more around it. Beyond an end of an axis that layer takes no
part; the weights see to that by the points' numbers along the whole axis, so that the result does
not depend on the blocks.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from heatsolve.backends import Backend, Region
from heatsolve.linear.transfer import Cut, Exchange, Parity, around, takes_rows
from heatsolve.points import Point, shifted


class Prolongation:
    """From a coarse level to the next finer one; `cuts` holds the axes that are halved.

    `coarse` is the array of the solution, `finer` that into which is interpolated. `across` makes
    for an axis and a shape the exchange of two layers with the neighbours there.
    """

    def __init__(
        self,
        backend: Backend,
        cuts: Mapping[int, Cut],
        finer: Any,
        coarse: Any,
        across: Callable[[int, Sequence[int]], Exchange],
    ):
        self._sweep, self._coarse = backend.sweep, coarse
        more = [int(number in cuts) for number in range(len(coarse.shape))]
        extents = [extent + 2 * m for extent, m in zip(coarse.shape, more, strict=True)]
        self._copied = tuple((m, extent - m) for extent, m in zip(extents, more, strict=True))
        self._wide = source = backend.zeros(extents)
        # Rows of a plane lie together, those of a block in space do not.
        self.can_leave_ghosts = takes_rows(cuts, extents)
        self._steps: list[Step] = []
        for number, cut in reversed(list(cuts.items())):
            extents[number] = finer.shape[number]
            shape, memory = tuple(extents), finer
            if len(self._steps) < len(cuts) - 1:
                memory = backend.zeros((math.prod(shape) + 2 * around(shape, number)[1],))
            walls = [other for other in cuts if other < number]  # their turn is yet to come
            step = Step(backend, cut, number, source, memory, shape, walls)
            step.exchange = across(number, source.shape)
            self._steps.append(step)
            source = backend.part(memory, shape)

    def interpolate(self, into: Any = None) -> None:
        """`finer` from the coarse solution, its ghosts up to date.

        Or the unknowns of the array `into`, if it `can_leave_ghosts`: those of `into` stay.
        """
        distances = [-low for low, _ in self._copied]
        self._sweep(shifted, self._wide, self._copied, self._coarse, *distances)
        *others, last = self._steps
        for step in others:
            step.interpolate()
        last.interpolate(into)


class Step:
    """The interpolation along one axis, also in the ghosts of the axes `walls`.

    The result is an array of a shape in `memory`. Two layers at a time are made, from the same
    layers of the source, where the axis is the first one or memory has room for two layers more.
    """

    exchange: Exchange

    def __init__(
        self,
        backend: Backend,
        cut: Cut,
        number: int,
        source: Any,
        memory: Any,
        shape: tuple[int, ...],
        walls: Sequence[int],
    ):
        self._backend, self._source, self._memory = backend, source, memory
        before, after = around(shape, number)
        self._extents = before, shape[number], after
        self._seen = source.reshape((before, source.shape[number], after))
        self._room = math.prod(memory.shape) // after - before * shape[number]

        def line(values: np.ndarray) -> Any:
            return backend.to_device(values.reshape(1, -1, 1))

        bounds = (cut.fine[0], cut.coarse[0], shape[number] // 2, cut.coarse[1])
        weights = cut.halving.solution_weights
        self._parities = [Parity(weights, parity, *bounds, line) for parity in (0, 1)]
        self._corners = list(_corners(cut, number, source.shape, walls))

    def interpolate(self, into: Any = None) -> None:
        """The result, or the unknowns of an array `into`, whose first axis is this one."""
        sweep, part = self._backend.sweep, self._backend.part
        self.exchange(self._source)
        for region, share, steps in self._corners:
            sweep(extrapolated, self._source, region, self._source, share, *steps)
        array, room, (before, layers, length), ghosts = self._memory, self._room, self._extents, 0
        even, odd = self._parities
        evens, odds = even.pairs, odd.pairs
        if into is not None:
            array, room, layers, ghosts = into, 0, into.shape[0], len(into.shape) - 1
            length = math.prod(into.shape[1:])
            evens = max(evens[0], 1), min(evens[1], layers // 2)
            odds = odds[0], min(odds[1], (layers - 1) // 2)
        # An odd layer goes with the even one before it or, if that is none, with the one after it.
        lag = int(odds[0] < evens[0])
        most = (layers + room - 1 - lag) // 2
        low = max(evens[0] - lag, odds[0])
        high = max(low, min(evens[1] - lag, odds[1], most)) if before == 1 or room else low
        if high > low:
            shape = (before, layers // 2 if room else most, 2 * length)
            out = tuple([part(array, shape, first * length) for first in (2 * lag, 1)])
            region = ((0, before), (low, high), (ghosts, length - ghosts))
            ahead = odd.shift - even.shift - lag
            first = even.shift + lag + min(ahead, 0)
            places = range(first, first + 4 + abs(ahead))
            given = (*even.weights, *odd.weights, *places)
            sweep(cubics(lag, ahead), out, region, self._seen, *given)
        pairs = part(array, (before, layers // 2, 2 * length))
        for half, (start, stop), done in ((even, evens, lag), (odd, odds, 0)):
            first = length if half is odd else 0
            across = (first + ghosts, first + length - ghosts)
            places = range(half.shift, half.shift + 4)  # one layer more stands before them
            for rest in ((start, low + done), (high + done, stop)):
                region = ((0, before), rest, across)
                sweep(cubic, pairs, region, self._seen, *half.weights, *places, -first)


def _corners(
    cut: Cut, number: int, shape: Sequence[int], walls: Sequence[int]
) -> Iterator[tuple[Region, float, tuple[int, ...]]]:
    """Where walls of other axes end at those of this one: regions, shares, steps to two points.

    There cells have no value of their own: the ghost holds that of half a cell before.
    """
    first, count = cut.coarse
    at_ends = (first == 0, first + count == cut.halving.count)
    ends = zip(at_ends, cut.halving.end_shares, (1, count + 2), (1, -1), strict=True)
    for here, share, place, inward in ends:
        if not here or share is None:
            continue
        steps = [0] * (2 * len(shape))
        steps[number] = inward
        steps[len(shape) + number] = 2 * inward
        for wall in walls:
            for ghost in (1, shape[wall] - 2):
                region = [(0, extent) for extent in shape]
                region[number], region[wall] = (place, place + 1), (ghost, ghost + 1)
                yield tuple(region), share, tuple(steps)


def extrapolated(at, u, share, *steps):
    """The line through two points, so much of their distance further on."""
    near = shifted(at, u, *steps[: len(at)])
    far = shifted(at, u, *steps[len(at) :])
    return near + share * (near - far)


@cache
def cubics(lag: int, ahead: int) -> Point:
    """`cubic` for an even layer and an odd one; made once, as backends know it by its function.

    `lag`: whether the even one is of the next pair; `ahead`: by how many coarse points the odd one
    takes those that lie further on.
    """

    def both(i, j, k, u, a, b, c, d, e, f, g, h, *places):
        here, there = max(0, -ahead), max(0, ahead)
        even = [weight[i, j + lag, k] for weight in (a, b, c, d)]
        odd = [weight[i, j, k] for weight in (e, f, g, h)]
        return tuple(
            w[0] * u[i, j + places[n], k]
            + w[1] * u[i, j + places[n + 1], k]
            + w[2] * u[i, j + places[n + 2], k]
            + w[3] * u[i, j + places[n + 3], k]
            for w, n in ((even, here), (odd, there))
        )

    return both


def cubic(i, j, k, u, a, b, c, d, j0, j1, j2, j3, back):
    """Between the second and the third of four coarse points."""
    return (
        a[i, j, k] * u[i, j + j0, k + back]
        + b[i, j, k] * u[i, j + j1, k + back]
        + c[i, j, k] * u[i, j + j2, k + back]
        + d[i, j, k] * u[i, j + j3, k + back]
    )
