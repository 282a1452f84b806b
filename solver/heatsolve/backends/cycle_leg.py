"""A leg of a multigrid cycle, as a backend may make it in one pass through memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heatsolve.stencil.grid import Region
from heatsolve.stencil.language import Point


@dataclass(frozen=True, eq=False)
class CycleLeg:
    """What a cycle of multigrid does on one level before the correction, or after it.

    Sweep n is u[p] = point(p, u, *stages[n]) at the points p of `region` whose colour is
    colours[n]: 1 red, where the sum of the indices is even, -1 black, 0 both. `shape` is that of
    the field; along an axis in `wraps` it is periodic. From row to row of its arrays, and of all
    others that vary along all axes, there are `pitch` elements: rows may have room for more.

    If it `restricts` it is the half before the correction: after the sweeps residual(p, u,
    *operands) is restricted into the array `coarse`. Otherwise it is the one after it: the sweeps
    begin at u plus what is interpolated from `coarse`; or it is the rest of that one, where there
    is no `coarse`. Where `from_zero`, u is 0 at the beginning. The terms of a `norm`, an
    Accumulator, of the residual of the result are added to it. Operands are b and the coefficients;
    a stage is b, a weight, perhaps the inverse of the diagonal, and the coefficients (there is one
    even without sweeps); inverse(p, *coefficients) is what makes that inverse. With a `margin` all
    of them but b have the same value at all points with so many layers between them and the walls.
    The coarse field has the `coarse_shape`; rows of its array may have room, too. `weights` holds
    four for each axis, slowest first: what a coarse point takes of the points 2q - 2 ... 2q + 1, or
    what the points 2q and then 2q + 1 take of the coarse points q and q + 1.
    """

    point: Point
    stages: Sequence[Sequence[Any]]
    colours: Sequence[int]
    shape: tuple[int, ...]
    pitch: int
    region: Region
    wraps: Sequence[bool]
    coarse: Any
    coarse_shape: tuple[int, ...]
    weights: Sequence[Any]
    restricts: bool = False
    residual: Point | None = None
    operands: Sequence[Any] = ()
    from_zero: bool = False
    norm: Any = None
    margin: int | None = None
    inverse: Point | None = None
