"""The decomposition of a grid: the process grid, and the block of each process."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from heatsolve.errors import InputError
from heatsolve.stencil.grid import Grid


def process_grid(grid: Grid, size: int, wanted: Sequence[int] | None = None) -> tuple[int, ...]:
    """Processes along each axis of the grid (slowest first): as wanted, or with least surface.

    `wanted` is in the order of the case, x first. Raises InputError if no such process grid exists.
    """
    counts = [axis.all_unknowns for axis in grid.axes]
    if wanted is not None:
        dims = tuple(reversed(wanted))
        if len(dims) != grid.dimension or int(np.prod(dims)) != size:
            raise InputError(
                f"parallel.ranks: {list(wanted)} does not give {size} processes in {len(counts)}D"
            )
        if any(p > n for p, n in zip(dims, counts, strict=True)):
            raise InputError(f"parallel.ranks: {list(wanted)} leaves processes without unknowns")
        return dims
    fitting = [
        dims
        for dims in factorisations(size, grid.dimension)
        if all(p <= n for p, n in zip(dims, counts, strict=True))
    ]
    if not fitting:
        unknowns = " x ".join(map(str, reversed(counts)))
        raise InputError(f"{size} processes are too many for {unknowns} unknowns")
    periodic = [axis.periodic for axis in grid.axes]
    return min(fitting, key=lambda dims: (surface(counts, dims, periodic), [-p for p in dims]))


def factorisations(number: int, factors: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as an ordered product of `factors` factors."""
    if factors == 1:
        yield (number,)
        return
    low = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    for first in sorted({*low, *[number // n for n in low]}):
        for rest in factorisations(number // first, factors - 1):
            yield (first, *rest)


def surface(counts: Sequence[int], dims: Sequence[int], periodic: Sequence[bool]) -> float:
    """The number of faces that the busiest block shares with other blocks."""
    sides = [-(-n // p) for n, p in zip(counts, dims, strict=True)]
    ends = [most_neighbours(*args) for args in zip(dims, periodic, strict=True)]
    return sum(n * math.prod(sides) / side for n, side in zip(ends, sides, strict=True))


def most_neighbours(parts: int, periodic: bool) -> int:
    """The most ends of an axis, divided into `parts`, at which one block faces another."""
    return 0 if parts == 1 else 2 if parts > 2 or periodic else 1


def block_of(count: int, parts: int, number: int) -> tuple[int, int]:
    """Part `number` of `count` unknowns; the first parts hold the remainder, one unknown each."""
    length, longer = divmod(count, parts)
    start = number * length + min(number, longer)
    return start, start + length + (number < longer)


def block_of_rank(whole: Grid, dims: Sequence[int], rank: int, depth: int = 1) -> Grid:
    """The block of one process; its arrays hold `depth` layers of each neighbour's unknowns.

    The outermost layer is ghosts, the other layers the margin, which the process may update itself.
    Raises InputError where a neighbour has fewer layers.
    """
    blocks, margins = [], []
    place = np.unravel_index(rank, tuple(dims))
    for axis, parts, number in zip(whole.axes, dims, map(int, place), strict=True):
        if parts > 1 and axis.all_unknowns // parts < depth:
            raise InputError(
                f"parallel.halo: {depth} layers are more than the {axis.all_unknowns // parts} "
                f"unknowns along {axis.name} of a process"
            )
        blocks.append(block_of(axis.all_unknowns, parts, number))
        facing = [parts > 1 and (axis.periodic or number != end) for end in (0, parts - 1)]
        margins.append(((depth - 1) * facing[0], (depth - 1) * facing[1]))
    return whole.block(blocks, margins)


def largest_block(whole: Grid, dims: Sequence[int], depth: int = 1) -> Grid:
    """The block whose arrays are the largest. Raises InputError as `block_of_rank` does."""
    place = []
    for axis, parts in zip(whole.axes, dims, strict=True):
        one_axis = Grid((axis,))
        # The longest blocks are among the first, and inner blocks have the most margin.
        shapes = [block_of_rank(one_axis, (parts,), n, depth).shape for n in range(min(parts, 3))]
        place.append(shapes.index(max(shapes)))
    return block_of_rank(whole, dims, int(np.ravel_multi_index(place, tuple(dims))), depth)
