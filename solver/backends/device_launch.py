"""How the threads of a GPU cover a region: the numbers of a launch.

A thread takes one column of the innermost axis and a few consecutive points of the slowest axis.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from heatsolve.backends import Region, Signature

ROWS = {1: 1, 2: 4, 3: 3}
"""Points of the slowest axis that one thread updates, by dimension."""
ROWS_REDUCED = {1: 1, 2: 8, 3: 4}
"""The same where a sweep reduces: more points share the work of a block's reduction."""
BLOCK = {1: (256, 1), 2: (128, 2), 3: (64, 4)}
"""Threads of a block along the innermost axis and along the next."""
THREADS = 256
"""Threads of every block; those of a reduction are whole warps."""
ALIGNMENT = 32
"""Threads begin at a column that is a multiple of this: a warp then touches whole cache lines."""
SPREAD = 64
"""Copies of a register over which the blocks of a launch spread their atomic additions."""
MOST_BLOCKS = 65535
"""Blocks that CUDA takes along the second and third axis of a launch."""


@dataclass(frozen=True)
class Launch:
    """The numbers of one kernel launch; `bounds` are those of its part of the region."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    bounds: tuple[int, ...]


def rows_of(signature: Signature) -> int:
    """Points of the slowest axis that one thread updates."""
    reduces = signature.outputs.count("array") < len(signature.outputs)
    return (ROWS_REDUCED if reduces else ROWS)[signature.dimension]


def launches(region: Region, rows: int) -> Iterator[Launch]:
    """The launches that cover a region; more than one where CUDA's limits end.

    Axes of a launch: x is the innermost axis, y the next, z the slowest of three; a thread takes
    ROWS points of the slowest axis.
    """
    dimension = len(region)
    x, y = BLOCK[dimension]
    width = region[-1][1] - region[-1][0] // ALIGNMENT * ALIGNMENT
    if dimension == 3 and width < x:  # few points along the innermost axis: threads for the next
        x = 1 << (max(width, 1) - 1).bit_length()
        y = THREADS // x
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
