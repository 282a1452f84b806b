"""How the threads of a GPU cover a region: the numbers of a launch.

A thread takes one column of the innermost axis and a few consecutive points of the slowest axis.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from heatsolve.backends import Region, Signature

ALIGNMENT = 32
"""Threads begin at a column that is a multiple of this: a warp then touches whole cache lines."""
SPREAD = 64
"""Copies of a register over which the blocks of a launch spread their atomic additions."""
MOST_BLOCKS = 65535
"""Blocks that CUDA takes along the second and third axis of a launch."""


@dataclass(frozen=True)
class Shape:
    """How the threads of a sweep are cut: tuned for a device."""

    block: tuple[int, int]
    """Threads of a block along the innermost axis and along the next: whole warps."""
    rows: int
    """Points of the slowest axis that one thread updates."""


SHAPES = {1: Shape((256, 1), 1), 2: Shape((128, 2), 4), 3: Shape((64, 4), 3)}
"""By dimension, measured on an H200."""
REDUCING = {1: Shape((256, 1), 1), 2: Shape((128, 2), 8), 3: Shape((64, 2), 8)}
"""The same where a sweep reduces: more points share the work of a warp's reduction."""


def shape_of(signature: Signature) -> Shape:
    """How the threads of a sweep are cut."""
    reduces = signature.outputs.count("array") < len(signature.outputs)
    return (REDUCING if reduces else SHAPES)[signature.dimension]


@dataclass(frozen=True)
class Launch:
    """The numbers of one kernel launch; `bounds` are those of its part of the region."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    bounds: tuple[int, ...]


def launches(region: Region, shape: Shape) -> Iterator[Launch]:
    """The launches that cover a region; more than one where CUDA's limits end.

    Axes of a launch: x is the innermost axis, y the next, z the slowest of three.
    """
    dimension, rows = len(region), shape.rows
    x, y = shape.block
    width = region[-1][1] - region[-1][0] // ALIGNMENT * ALIGNMENT
    if dimension == 3 and width < x:  # few points along the innermost axis: threads for the next
        narrow = 1 << (max(width, 1) - 1).bit_length()
        x, y = narrow, x * y // narrow
    (low, high), *rest = region
    block = (x, y, 1)
    across = -(-width // x)
    # The slowest axis is cut so that the launch stays within MOST_BLOCKS.
    deep = rows * (y if dimension == 2 else 1) * MOST_BLOCKS if dimension > 1 else high - low
    for start in range(low, high, max(1, deep)):
        stop = min(high, start + deep)
        threads = -(-(stop - start) // rows)
        if dimension == 1:
            grid = (across, 1, 1)
        elif dimension == 2:
            grid = (across, -(-threads // y), 1)
        else:
            grid = (across, -(-(region[1][1] - region[1][0]) // y), threads)
        yield Launch(grid, block, (start, stop, *[bound for pair in rest for bound in pair]))
