"""The point language: how a stencil is written, once, for every backend.

A *point function* is a plain Python function of an index and of the arrays it reads::

    def four_point_mean(i, j, u, f, h2):
        return 0.25 * (u[i-1, j] + u[i+1, j] + u[i, j-1] + u[i, j+1] + h2 * f[i, j])

Its leading parameters `i`, `j`, `k` (as many as there are dimensions, slowest axis first) are the
index; the others are arrays, real numbers, or integers that only shift an index. It returns one
value, or a tuple of values, one for each output of the sweep. The rules:

* arithmetic, comparison, `&` and `|` of comparisons, subscripts, the words of this module, and
  calls of other functions that keep these rules; nothing else, in particular no `**`;
* the index is used in subscripts only, `u[i - 1, j + 1]`, and every array takes all of it; an
  array whose extent along an axis is 1 is constant along that axis;
* no branch: `where` evaluates both sides;
* an output is not read at a shift, because points are updated in any order;
* a literal takes the precision of the field, it does not raise float32 to float64.
"""

import inspect
from collections.abc import Callable
from functools import cache
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
    """|a|, with |-0| = 0 or -0 alike on every backend."""
    return where(a < 0.0, -a, a)


@cache
def dimension(point: Point) -> int:
    """The number of leading index parameters of a point function."""
    names = list(inspect.signature(point).parameters)
    count = 0
    while count < min(3, len(names)) and names[count] == INDEX_NAMES[count]:
        count += 1
    if count == 0:
        raise TypeError(f"{point.__name__} is no point function: its first parameter is not i")
    return count


def by_dimension(*points: Point) -> dict[int, Point]:
    """The versions of one formula, by the number of dimensions of the grid they are for."""
    return {dimension(point): point for point in points}


def copy_1d(i, a):
    return a[i]


def copy_2d(i, j, a):
    return a[i, j]


def copy_3d(i, j, k, a):
    return a[i, j, k]


def shifted_1d(i, a, di):
    return a[i + di]


def shifted_2d(i, j, a, di, dj):
    return a[i + di, j + dj]


def shifted_3d(i, j, k, a, di, dj, dk):
    return a[i + di, j + dj, k + dk]


copy = by_dimension(copy_1d, copy_2d, copy_3d)
"""out = a."""

shifted = by_dimension(shifted_1d, shifted_2d, shifted_3d)
"""out = a, `di`, `dj`, `dk` points further on: periodic walls, and packing and unpacking halos."""
