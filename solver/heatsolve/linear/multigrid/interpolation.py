"""Interpolation along one axis: the layers of a fine array from those of a coarse one.

Arrays are seen as (before, layers, after), and a fine one with an even number of layers as pairs
(before, pair, parity and after), so that its layer 2p + parity is the pair's: the point language
knows no index 2q. Two layers of a pair, or of two neighbours, are made at a time where they can be:
both read the same coarse layers.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from heatsolve.backends import Backend
from heatsolve.stencil.language import Point


def around(shape: Sequence[int], number: int) -> tuple[int, int]:
    """How many elements an index along one axis stands for: those of the axes before, and after."""
    return math.prod(shape[:number]), math.prod(shape[number + 1 :])


def roomy(backend: Backend, shape: Sequence[int], number: int) -> tuple[Any, Any]:
    """A new array that is interpolated along an axis: its memory, with room for that, and it."""
    memory = backend.zeros((math.prod(shape) + 2 * around(shape, number)[1],))
    return memory, backend.part(memory, shape)


class Parity:
    """The layers of one parity: between which coarse ones they lie, what they take of each.

    Layer p of them lies between the coarse layers p + shift and p + shift + 1. `weights` holds a
    line for each coarse layer that is taken, from the lowest on.
    """

    def __init__(
        self,
        shares: Sequence[np.ndarray],
        parity: int,
        fine_first: int,
        coarse_first: int,
        pairs: int,
        count: int,
        line: Callable[[np.ndarray], Any],
    ):
        """See `parities_of`."""
        below = (parity + fine_first) // 2
        self.shift = below - coarse_first
        self.pairs = (max(0, -self.shift), min(pairs, count + 1 - self.shift))
        taken = [share[:, (parity + fine_first) % 2] for share in shares]
        numbers = np.clip(np.arange(pairs) + below, 0, taken[0].size - 1)
        self.weights = [line(share[numbers]) for share in taken]


def parities_of(
    backend: Backend,
    shares: Sequence[np.ndarray],
    extent: int,
    fine: int,
    first: int,
    count: int,
) -> list[Parity]:
    """How the layers of an array are made, of so many as its extent along an axis tells.

    `shares`, `fine`, `first` and `count`: what a layer takes of the coarse ones around it, by its
    number along the whole axis; the number of the first layer of the fine array, and of the coarse
    one, and how many coarse unknowns there are.
    """

    def line(values: np.ndarray) -> Any:
        return backend.to_device(values.reshape(1, -1, 1))

    bounds = fine, first, extent // 2, count
    return [Parity(shares, parity, *bounds, line) for parity in (0, 1)]


class Interpolation:
    """From an array `coarse` to one of a shape in `memory`, along axis `number`."""

    def __init__(
        self,
        backend: Backend,
        number: int,
        coarse: Any,
        memory: Any,
        shape: Sequence[int],
        parities: Sequence[Parity],
    ):
        self._backend, self._memory, self._parities = backend, memory, parities
        before, after = around(shape, number)
        self._extents = before, shape[number], after
        self._coarse = coarse.reshape((before, coarse.shape[number], after))
        self._room = math.prod(memory.shape) // after - before * shape[number]

    def __call__(self, into: Any = None, adds: bool = False) -> None:
        """Write all, or the unknowns of an array `into`, whose first axis this is.

        If it `adds`, they are added to those of `into`.
        """
        sweep, part = self._backend.sweep, self._backend.part
        array, room, (before, layers, length), ghosts = self._memory, self._room, self._extents, 0
        even, odd = self._parities
        evens, odds = even.pairs, odd.pairs
        if into is not None:
            array, room, layers, ghosts = into, 0, into.shape[0], len(into.shape) - 1
            length = math.prod(into.shape[1:])
            evens = max(evens[0], 1), min(evens[1], layers // 2)
            odds = odds[0], min(odds[1], (layers - 1) // 2)
        taps = len(even.weights)
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
            places = range(first, first + taps + abs(ahead))
            args = (*even.weights, *odd.weights, *places, *(out if adds else ()))
            sweep(of_two(taps, lag, ahead, adds), out, region, self._coarse, *args)
        pairs = part(array, (before, layers // 2, 2 * length))
        for half, (start, stop), done in ((even, evens, lag), (odd, odds, 0)):
            first = length if half is odd else 0
            across = (first + ghosts, first + length - ghosts)
            places = range(half.shift, half.shift + taps)
            args = (*half.weights, *places, -first, *([pairs] if adds else []))
            for rest in ((start, low + done), (high + done, stop)):
                region = ((0, before), rest, across)
                sweep(of_one(taps, adds), pairs, region, self._coarse, *args)


def taken(
    weights: Sequence[Any], here: tuple[Any, ...], u: Any, there: Sequence[tuple[Any, ...]]
) -> Any:
    """The sum of what is taken of coarse layers, the weights being found here."""
    (first, *others), (lowest, *above) = weights, there
    value = first[here] * u[lowest]
    for weight, place in zip(others, above, strict=True):
        value = value + weight[here] * u[place]
    return value


@cache
def of_one(taps: int, adds: bool) -> Point:
    """A layer from so many coarse ones; made once, as backends know a sweep by its function.

    It takes the coarse array, weights, shifts to the coarse layers, and to an element of the coarse
    array from that of the pair; and the former values, if it `adds`.
    """

    def interpolated(i, j, k, u, *more):
        weights, places, (back, *old) = more[:taps], more[taps : 2 * taps], more[2 * taps :]
        value = taken(weights, (i, j, k), u, [(i, j + place, k + back) for place in places])
        return old[0][i, j, k] + value if adds else value

    return interpolated


@cache
def of_two(taps: int, lag: int, ahead: int, adds: bool) -> Point:
    """The same for an even layer and an odd one.

    `lag`: whether the even one is of the next pair; `ahead`: how many coarse layers further on the
    odd one takes its own.
    """

    def interpolated_both(i, j, k, u, *more):
        even, odd = more[:taps], more[taps : 2 * taps]
        places, old = more[2 * taps : 3 * taps + abs(ahead)], more[3 * taps + abs(ahead) :]
        values = []
        for weights, later, first in ((even, lag, max(0, -ahead)), (odd, 0, max(0, ahead))):
            there = [(i, j + place, k) for place in places[first : first + taps]]
            values.append(taken(weights, (i, j + later, k), u, there))
        if adds:
            return tuple([old[n][i, j, k] + value for n, value in enumerate(values)])
        return tuple(values)

    return interpolated_both
