"""The point language: how a stencil is written, once, for every backend.

A *point function* is a plain Python function of an index and of the arrays it reads::

    def four_point_mean(i, j, u, f, h2):
        return 0.25 * (u[i-1, j] + u[i+1, j] + u[i, j-1] + u[i, j+1] + h2 * f[i, j])

Its leading parameters `i`, `j`, `k` (as many as there are dimensions, slowest axis first) are the
index; a function that is the same in every dimension takes the whole index as `at` and reads
`u[at]`. The others are arrays, real numbers, or integers that only shift an index. It returns one
value, or a tuple of values, one for each output of the sweep. The rules:

* arithmetic, comparison, `&` and `|` of comparisons, subscripts, the words of this module, and
  calls of other functions that keep these rules; nothing else, in particular no `**`;
* the index is used in subscripts only, `u[i - 1, j + 1]`, and every array takes all of it; an
  array whose extent along an axis is 1 is constant along that axis;
* arrays of a grid twice as fine or as coarse are read at `2 * i + 1` or `i // 2 + 1`;
* no branch: `where` evaluates both sides;
* an output is not read at a shift, because points are updated in any order;
* a literal takes the precision of the field, it does not raise float32 to float64.
"""

import inspect
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np

Point = Callable[..., Any]

INDEX_NAMES = ("i", "j", "k")


def where(condition: Any, a: Any, b: Any) -> Any:
    """`a` where the condition holds, else `b`; both are evaluated."""
    if hasattr(condition, "choose_point"):
        return condition.choose_point(a, b)
    if isinstance(condition, np.ndarray):
        return np.where(condition, a, b)
    return a if condition else b


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two, as `where(a < b, a, b)`, so that NaN and signed zero agree everywhere."""
    return where(a < b, a, b)


def maximum(a: Any, b: Any) -> Any:
    """The larger of two, as `where(a > b, a, b)`, so that NaN and signed zero agree everywhere."""
    return where(a > b, a, b)


def sqrt(a: Any) -> Any:
    """The correctly rounded square root."""
    return a.sqrt_point() if hasattr(a, "sqrt_point") else np.sqrt(a)


def magnitude(a: Any) -> Any:
    """|a|; the sign of |-0| is the same on every backend."""
    return where(a < 0.0, -a, a)


def largest_magnitude(at, *arrays):
    """The largest magnitude of several arrays at a point; NaN where one of them is NaN."""
    largest = magnitude(arrays[0][at])
    for array in arrays[1:]:
        here = magnitude(array[at])
        unordered = largest + here
        largest = where(largest >= here, largest, where(here > largest, here, unordered))
    return largest


class Mirrored:
    """An array that, read beyond some walls, gives the value of the point beside the wall.

    A Jacobi sweep then reads the value of a wall node which has copied the row inside after the
    sweep before. `walls` holds for each axis two lines of numbers, 1 at the points beside the low
    and the high wall and 0 elsewhere, or ZERO for a wall that is not mirrored.
    """

    def __init__(self, array: Any, at: tuple[Any, ...], walls: tuple[Any, ...]):
        self._array, self._at = array, at
        self._beyond = [
            (neighbour(at, n // 2, -1 if n % 2 == 0 else 1), line)
            for n, line in enumerate(walls)
            if line is not ZERO
        ]
        for _, line in self._beyond:
            if hasattr(line, "stands_at_edges"):
                line.stands_at_edges()

    def __getitem__(self, index: Any) -> Any:
        for beyond, line in self._beyond:
            if index == beyond:
                return where(line[self._at] > 0.5, self._array[self._at], self._array[index])
        return self._array[index]


class Known(float):
    """A number that is known when a sweep is compiled, or an array of this number, not stored."""

    def __getitem__(self, _: Any) -> float:
        return float(self)

    def __reduce__(self) -> str:
        """Copies are the same object, ONE or ZERO."""
        return "ONE" if self == 1.0 else "ZERO"


ONE = Known(1.0)
"""A factor that is 1: no backend multiplies by it."""
ZERO = Known(0.0)
"""A factor that is 0: a point function leaves its terms out where it finds this object."""


@cache
def dimension(point: Point) -> int:
    """The number of leading index parameters of a point function, 0 if it takes `at`."""
    names = list(inspect.signature(point).parameters)
    if names[:1] == ["at"]:
        return 0
    count = 0
    while count < min(3, len(names)) and names[count] == INDEX_NAMES[count]:
        count += 1
    if count == 0:
        raise TypeError(
            f"{point.__name__} is no point function: its first parameter is neither i nor at"
        )
    return count


def evaluate(point: Point, at: tuple[Any, ...], *arguments: Any) -> Any:
    """The value of a point function at an index, which it takes as `at` or as `i, j, k`."""
    return point(*at, *arguments) if dimension(point) else point(at, *arguments)


@lru_cache(1 << 8)
def together(points: tuple[Point, ...], places: tuple[tuple[int, ...], ...]) -> Point:
    """Several point functions as one, which returns all of their values in turn.

    `places`: for each function, the numbers of the arguments that it takes.
    """

    def values(at, *arguments):
        result: list[Any] = []
        for point, own in zip(points, places, strict=True):
            value = evaluate(point, at, *[arguments[n] for n in own])
            result += value if isinstance(value, tuple) else [value]
        return tuple(result)

    return values


def neighbour(at: tuple[Any, ...], axis: int, distance: int) -> tuple[Any, ...]:
    """The index of the point at this distance along one axis."""
    return (*at[:axis], at[axis] + distance, *at[axis + 1 :])


def term(value: Any, kind: str) -> Any:
    """The term of a norm: a square for the sum of an l2 norm, the value itself for a maximum."""
    return value * value if kind == "sum" else value


@lru_cache(1 << 8)
def term_of(point: Point, kind: str) -> Point:
    """The point function whose sum is the square of the l2 norm, or whose maximum is the max norm.

    Cached, because backends identify a compiled sweep by its point function.
    """

    def squared(at, *arguments):
        return term(evaluate(point, at, *arguments), kind)

    return squared if kind == "sum" else point


def copy(at, a):
    """a."""
    return a[at]


def scaled(at, a, factor):
    """factor a."""
    return factor * a[at]


def change(at, new, old):
    """new - old."""
    return new[at] - old[at]


def fill(at, value):
    """A number, everywhere."""
    return value


def shifted(at, a, *distances):
    """a, at these distances along the axes: periodic walls, packing and unpacking halos."""
    return a[tuple([index + distance for index, distance in zip(at, distances, strict=True)])]
