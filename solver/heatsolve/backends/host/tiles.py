"""How deep a pass of several sweeps goes, and how its region is cut into tiles: by the caches."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

LINE = 64
"""Bytes of a cache line."""
PAGE = 4096
"""Loads that lie a multiple of this behind a store wait for it; rows of a ring keep away from it
(from 0.27 to 0.18 ns a point)."""
APART = 512


def cache_size(level: int, otherwise: int) -> int:
    """Bytes of a processor's cache of this level; `otherwise` where the system does not tell."""
    try:
        return os.sysconf(f"SC_LEVEL{level}_CACHE_SIZE") or otherwise
    except (ValueError, OSError, AttributeError):
        return otherwise


@dataclass(frozen=True)
class Tiling:
    """The numbers that decide; none changes any bits.

    `worth`: bytes of a field from which passes pay, which is where two of them do not stay in the
    cache that the cores share. `ring`: bytes that the levels of one tile take, four times a core's
    own cache, because in 3D wide tiles gain more than what stays closest. `depth`: sweeps of a
    pass, and `row`: points of a tile along the innermost axis, by dimension. `height`: the most
    points of a tile along the slowest axis.
    """

    worth: int = field(default_factory=lambda: cache_size(3, 32 << 20))
    ring: int = field(default_factory=lambda: 4 * cache_size(2, 1 << 20))
    depth: tuple[int, int, int] = (15, 11, 5)
    row: tuple[int, int, int] = (4096, 2048, 512)
    height: int = 1024

    def levels(
        self, extents: Sequence[int], reach: Sequence[int], wraps: Sequence[bool], most: int
    ) -> int:
        """Sweeps of a pass, at most so many, over a region of these extents."""
        levels = min(most, self.depth[len(extents) - 1])
        # What a tile makes around itself goes at most once around a periodic axis.
        for extent, radius, wrap in zip(extents, reach, wraps, strict=True):
            if wrap and radius:
                levels = min(levels, extent // radius)
        return levels

    def tile(
        self, extents: Sequence[int], levels: int, reach: Sequence[int], size: int, chunks: int
    ) -> tuple[int, ...]:
        """The points of a tile along each axis, for elements of `size` bytes.

        There are at least as many tiles as chunks, if the region is not too small for them.
        """
        tile = list(extents)
        tile[-1] = even_part(extents[-1], self.row[len(extents) - 1])
        if len(extents) == 3:
            rows = self.ring // (ring_row(tile[-1], levels, reach[-1], size) * size)
            rows //= (levels - 1) * (2 * reach[0] + 1)
            tile[1] = even_part(extents[1], max(rows - 2 * levels * reach[1], 8))
        if len(extents) > 1:
            beside = 1
            for extent, part in zip(extents[1:], tile[1:], strict=True):
                beside *= -(-extent // part)
            shares = -(-chunks // beside)
            tallest = min(self.height, max(-(-extents[0] // shares), 4 * levels * reach[0]))
            tile[0] = even_part(extents[0], tallest)
        return tuple(tile)

    def ring_shape(
        self, tile: Sequence[int], levels: int, reach: Sequence[int], size: int
    ) -> tuple[int, ...]:
        """The shape of the levels between the first and the last of one tile."""
        inner = ring_row(tile[-1], levels, reach[-1], size)
        if len(tile) == 1:
            return levels - 1, inner
        middle = [n + 2 * levels * r for n, r in zip(tile[1:-1], reach[1:-1], strict=True)]
        return levels - 1, 2 * reach[0] + 1, *middle, inner


def even_part(extent: int, most: int) -> int:
    """The size of the parts into which an extent is cut evenly, each of at most so many points."""
    parts = -(-extent // max(1, most))
    return -(-extent // parts)


def ring_row(tile: int, levels: int, reach: int, size: int) -> int:
    """Elements from one row of a ring to the next."""
    row = -(-(tile + 2 * levels * reach) * size // LINE) * LINE
    while not APART <= row % PAGE <= PAGE - APART:
        row += LINE
    return row // size
