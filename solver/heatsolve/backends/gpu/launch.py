"""How the threads of a GPU cover a region, and how the arrays of a sweep lie in its memory.

A thread takes one or two columns of the innermost axis, and a few consecutive points of the slowest
axis.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from heatsolve.backends import Region, Signature
from heatsolve.stencil.trace import Tape

ALIGNMENT = 32
"""Where rows of arrays are multiples of this, threads begin at such a column: a warp then touches
whole cache lines. Elsewhere they begin at the region's first column, which spares a block a row."""
SPREAD = 64
"""Copies of a register over which the warps of a launch spread their atomic additions."""
MOST_BLOCKS = 65535
"""The most blocks that CUDA allows along the second and third axis of a launch."""


@dataclass(frozen=True)
class Shape:
    """How a region is divided among threads; tuned for a device."""

    block: tuple[int, int]
    """Threads of a block along the innermost axis and along the next: whole warps."""
    rows: int
    """Points of the slowest axis that one thread updates."""
    columns: int = 1
    """Points of the innermost axis that one thread updates: one or two."""
    alignment: int = 1
    """Threads begin at a column that is a multiple of this."""


SHAPES = {1: Shape((256, 1), 1), 2: Shape((128, 2), 4), 3: Shape((64, 4), 3)}
"""Shapes by dimension, measured on an H200."""
SEVERAL = {1: Shape((256, 1), 1), 2: Shape((128, 2), 1), 3: Shape((256, 2), 1)}
"""Shapes for sweeps of several outputs."""
MANY_LOADS = 12
"""The fewest values read by a sweep of several outputs of which neighbours share many."""
SEVERAL_OF_MANY = {1: Shape((256, 1), 1), 2: Shape((64, 2), 4), 3: Shape((32, 4), 4)}
"""Shapes for such sweeps: a thread keeps the values for its next point in registers."""
FEW_POINTS = 1 << 19
"""The most points of a sweep whose time is the latency of a thread, not the traffic."""
FEW = {1: Shape((256, 1), 1), 2: Shape((64, 2), 1), 3: Shape((64, 2), 2)}
"""Shapes for such sweeps, unless they reduce: a cycle of multigrid takes 110 us instead of 121 on
64 cubed, 44 instead of 47 on 16 cubed, 96 instead of 114 on 256 squared (H200)."""
REDUCING = {1: Shape((256, 1), 1), 2: Shape((128, 2), 8), 3: Shape((64, 2), 8)}
"""Shapes for sweeps that reduce: more points share the work of a warp's reduction."""
MOST_REDUCING = {1: Shape((256, 1), 1), 2: Shape((128, 2), 4), 3: Shape((64, 2), 4)}
"""Shapes for sweeps that reduce and have more than two outputs in all."""

PAIRS = {3: Shape((32, 8), 4, 2)}
"""Shapes for threads that take pairs of columns.

In 2D, sweeps without pairs are as fast as a copy. In 3D, pairs need half as many loads, and so few
registers that a multiprocessor has room for all its threads. They take 6 % off the mean of six
neighbours and 7 to 22 % off sweeps with variable coefficients (H200).
"""


def shape_of(signature: Signature, tape: Tape) -> Shape:
    """The shape for the threads of a sweep."""
    shape = _tuned(signature, tape)
    return replace(shape, alignment=ALIGNMENT if signature.aligned else shape.columns)


def _tuned(signature: Signature, tape: Tape) -> Shape:
    """The measured shape for the kind of a sweep."""
    if signature.pairs:
        return PAIRS[signature.dimension]
    count = len(signature.outputs)
    if signature.reduces:
        return (MOST_REDUCING if count > 2 else REDUCING)[signature.dimension]
    if signature.few:
        return FEW[signature.dimension]
    if count == 1:
        return SHAPES[signature.dimension]
    many = sum(1 for _ in tape.loads()) >= MANY_LOADS
    return (SEVERAL_OF_MANY if many else SEVERAL)[signature.dimension]


@dataclass(frozen=True)
class Launch:
    """The numbers of one kernel launch; `bounds` are the bounds of its part of the region."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    bounds: tuple[int, ...]


Compiled = Callable[[Launch, tuple[Any, ...]], None]
"""Queues a kernel: takes its launch, and its arguments."""


@lru_cache(1 << 12)
def launches(region: Region, shape: Shape) -> tuple[Launch, ...]:
    """The launches that cover a region; several where a single launch would exceed CUDA's limits.

    Cached, because the same sweeps come again and again.
    Axes of a launch: x is the innermost axis, y the next, z the slowest of three.
    """
    x, y = shape.block
    width = region[-1][1] - region[-1][0] // shape.alignment * shape.alignment
    if len(region) == 3 and width < x:  # few points along the innermost axis: threads for the next
        narrow = 1 << (max(width, 1) - 1).bit_length()
        x, y = narrow, x * y // narrow
    # Points of a block along the slower axes, which are cut so that a launch keeps to MOST_BLOCKS.
    covered = {1: (), 2: (shape.rows * y,), 3: (shape.rows, y)}[len(region)]
    pieces = [
        [(low, min(low + most, stop)) for low in range(start, stop, most)]
        for (start, stop), most in zip(region[:-1], (n * MOST_BLOCKS for n in covered), strict=True)
    ]
    result = []
    for piece in itertools.product(*pieces):
        blocks = [-(-(high - low) // n) for (low, high), n in zip(piece, covered, strict=True)]
        down, deep = (*reversed(blocks), 1, 1)[:2]
        bounds = [bound for pair in (*piece, region[-1]) for bound in pair]
        across = -(-width // (x * shape.columns))
        result.append(Launch((across, down, deep), (x, y, 1), tuple(bounds)))
    return tuple(result)


WIDE = 64
"""The fewest points along the innermost axis for which pairs of columns pay."""


@dataclass(frozen=True)
class ArrayOperand:
    """An array among the operands of a sweep (outputs, then arguments).

    `name`: its name in generated code; `constant`: for each axis whether the array is read as
    constant along it, which an output never is.
    """

    name: str
    place: int
    constant: tuple[bool, ...]


def arrays_of(signature: Signature) -> tuple[ArrayOperand, ...]:
    """The arrays of a sweep; an array that is both output and argument comes once."""
    count = len(signature.outputs)
    whole = (False,) * signature.dimension
    outputs = [
        ArrayOperand(signature.target(n), n, whole)
        for n, kind in enumerate(signature.outputs)
        if kind == "array"
    ]
    read = [
        ArrayOperand(f"a{n}", count + n, constant)
        for n, constant in enumerate(signature.arguments)
        if not isinstance(constant, str) and n not in signature.in_place
    ]
    return (*outputs, *read)


def layout(
    arrays: Sequence[ArrayOperand], shapes: Sequence[tuple[int, ...]]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The names of the arrays that are apart, and the extents that the kernel takes.

    The largest array has the common extents. Only extents below the first axis along which an array
    varies matter for its strides: a layer of a few rows is not apart, a layer of a few columns is.
    """
    pairs = list(zip(arrays, shapes, strict=True))
    whole = [shape for array, shape in pairs if not any(array.constant)]
    # Where every array is constant along some axis, the common extents are the largest of all.
    widest = tuple(max(extents) for extents in zip(*shapes, strict=True))
    common = max(whole, key=math.prod, default=widest)
    apart = []
    for array, shape in pairs:
        varying = [axis for axis, constant in enumerate(array.constant) if not constant]
        if any(shape[axis] != common[axis] for axis in varying[1:]):
            apart.append((array.name, shape))
    extents = [extent for shape in (common, *[shape for _, shape in apart]) for extent in shape[1:]]
    return tuple(name for name, _ in apart), tuple(extents)


def begin_with_lines(extents: Sequence[int], dimension: int) -> bool:
    """Whether the rows of the arrays begin with a cache line. `extents`: see `layout`."""
    return dimension == 1 or extents[dimension - 2] % ALIGNMENT == 0


def may_pair(tape: Tape, signature: Signature, extents: tuple[int, ...]) -> bool:
    """Whether pairs pay for a sweep, and its arrays' rows begin with a pair if the arrays do.

    Pairs pay where a sweep reads values of a row again for the next row, unless it has several
    outputs; a sweep that copies is as fast without. `extents`: the extents that the kernel takes,
    see `layout`. Memory does not limit sums, and two precisions would need two kinds of pairs.
    """
    loads = tape.loads()
    return (
        signature.dimension in PAIRS
        and not signature.reduces
        and len(signature.outputs) == 1
        and not signature.apart
        and not signature.wraps
        and not signature.narrow
        and extents[-1] % 2 == 0
        and not any(subscript[-1].added for _, subscript in loads)  # unknown columns
        and all(place.scale == 1 for _, subscript in loads for place in subscript)
        and any(
            (number, (first.moved(1), *others)) in loads
            for number, (first, *others) in loads
            if not any(signature.arguments[number])
        )
    )


def begin_with_pairs(region: Region, addresses: Sequence[int], itemsize: int) -> bool:
    """Whether a region is worth pairs, and arrays at these addresses begin with a pair."""
    (low, high) = region[-1]
    return high - low >= WIDE and all(address % (2 * itemsize) == 0 for address in addresses)
