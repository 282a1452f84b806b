"""Partition by the diagonal D of A: a multiplication where the inverse costs no memory traffic.

Where D is constant along an axis, its inverse is a line at most that stays in a cache; a division
at every point takes several times as long as all the rest of a sweep that is made in passes.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from heatsolve.backends import Region
from heatsolve.linear import System
from heatsolve.stencil.language import ONE, Point


def variation(system: System) -> list[bool]:
    """Along which axes the coefficients of a system vary, on this process."""
    shapes = [array.shape for array in system.coefficients if not isinstance(array, float)]
    return [any(shape[n] > 1 for shape in shapes) for n in range(system.grid.dimension)]


def inverse(
    system: System, weight: float, varies: Sequence[bool], extents: Sequence[int], region: Region
) -> Any:
    """The array weight / D in a region, of these extents along the axes along which it `varies`."""
    axes = list(zip(varies, extents, region, strict=True))
    array = system.backend.zeros([extent if vary else 1 for vary, extent, _ in axes])
    given = tuple(bounds if vary else (0, 1) for vary, _, bounds in axes)
    system.backend.sweep(inverse_of(system.diagonal, weight), array, given, *system.coefficients)
    return array


@cache
def inverse_of(diagonal: Point, weight: float) -> Point:
    """The point function weight / D."""

    def inverse(at, *coefficients):
        return weight / diagonal(at, *coefficients)

    return inverse


def quotient(system: System, weight: float = 1.0) -> tuple[Point, Any]:
    """`divided` and `scale`, with divided(value, at, scale, *coefficients) = weight value / D.

    All processes ask, and divide alike: a block in the middle may know less variation than others.
    """
    varies = variation(system)
    if all(map(any, zip(*system.halo.ranks.gather(varies), strict=True))):
        return _by_division(system.diagonal), ONE if weight == 1.0 else weight
    return by_inverse, inverse(system, weight, varies, system.grid.shape, system.halo.around(0))


def by_inverse(value, at, scale, *coefficients):
    """weight value / D, from the array `scale` = weight / D."""
    return value * scale[at]


@cache
def _by_division(diagonal: Point) -> Point:
    """The same from the number `scale` = weight."""

    def by_division(value, at, scale, *coefficients):
        return scale * value / diagonal(at, *coefficients)

    return by_division
