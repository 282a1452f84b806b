"""A leg of a multigrid cycle on a small grid, on a GPU: one kernel, whose blocks own small tiles.

The time of a small sweep is the latency of its launch and of its loads, not its traffic. So a block
makes a whole leg for a tile in shared memory: it repeats the sweeps of the points around the tile
on which the tile depends, and waits for no other block. A leg of two sweeps, the residual and its
restriction takes one launch in place of four, or of six in 2D.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from heatsolve.backends import Region
from heatsolve.backends.gpu.device import Limits
from heatsolve.backends.gpu.fused_kernel import FusedSweeps, Layout, Reads, Shift, assembled
from heatsolve.backends.gpu.fused_sweeps import reads_neighbours
from heatsolve.backends.gpu.launch import Launch

THREADS = 512
"""Threads of a block: with 256 a cycle on 64 cubed takes 64 us instead of 58 (H200)."""
ROUNDS = 2
"""The blocks of a multiprocessor up to which smaller tiles are preferred: with one block a cycle on
256 squared takes 34 us instead of 33, with half a block 39."""
BYTES_OF_INDEX = 4


@dataclass(frozen=True)
class SmallTile:
    """The points of a block, their number even along each axis."""

    own: tuple[int, ...]
    warps: int = THREADS // 32

    def extents(self, work: FusedSweeps) -> list[int]:
        """The extents of the tile with its surroundings."""
        return [points + 2 * reach(work) for points in self.own]

    def bytes_shared(self, work: FusedSweeps) -> int:
        """Shared memory of a block: the field, the residual, and the indices along each axis."""
        extents = self.extents(work)
        indices = len(extents) * max(extents) * BYTES_OF_INDEX
        return math.prod(extents) * work.bytes * (1 + work.has_residual) + indices

    def launch(self, region: Region) -> Launch:
        """The blocks that cover a region; its last axis first, as CUDA counts."""
        pairs = zip(region, self.own, strict=True)
        counts = [-(-(high - low) // points) for (low, high), points in pairs]
        x, y, z = (*reversed(counts), 1, 1)[:3]
        return Launch((x, y, z), (32 * self.warps, 1, 1), ())


TILES = {
    2: [SmallTile(own) for own in ((8, 8), (8, 16), (16, 16), (16, 32), (32, 32))],
    3: [SmallTile(own) for own in ((4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8), (8, 8, 16))],
}
"""Tiles by dimension, the smallest first."""


RUNS = {2: 2, 3: 4}
"""By dimension, the points along the first axis for which a thread interpolates a correction."""


def reach(work: FusedSweeps) -> int:
    """The layers around a tile on which it depends: one for each sweep and for the residual, and
    one because coarse point q depends on the points 2q - 2 ... 2q + 1."""
    return work.sweeps + work.has_residual + work.restricts


def loading_all(work: FusedSweeps) -> FusedSweeps:
    """The same work by a kernel that loads all coefficients: it asks neither where walls are nor
    how rows are aligned, so more levels share it."""
    return replace(work, margin=None, inverse=None, aligned=1, odd=False)


def tile_of(work: FusedSweeps, region: Region, limits: Limits) -> SmallTile | None:
    """The smallest tile that keeps a device busy for a few rounds only, or the largest that fits;
    None if none fits."""
    best = None
    for tile in TILES[len(region)]:
        if limits.blocks(32 * tile.warps, tile.bytes_shared(work)) == 0:
            break
        best = tile
        if math.prod(tile.launch(region).grid) <= ROUNDS * limits.processors:
            break
    return best


def makes_small_leg(work: FusedSweeps, region: Region, limits: Limits) -> bool:
    """Whether a small leg makes this work, whose sweeps may be made in place: of the field, points
    read direct neighbours only."""
    tapes = [tape for tape in (work.tape, work.residual) if tape is not None]
    shifts = [
        [abs(place.shift) for place in subscript]
        for tape in tapes
        for number, subscript in tape.loads()
        if number == 0
    ]
    return (
        all(reads_neighbours(tape, work.signature) for tape in tapes)
        and all(sum(shift) <= 1 for shift in shifts)
        and all(low == 1 for low, _ in region)
        and tile_of(work, region, limits) is not None
    )


def layout(strides: Sequence[int]) -> Layout:
    """The layout of a tile: the field lies in shared memory, all other arrays are loaded.

    `strides`: the distance in shared memory of neighbours along each axis.
    """
    axes = len(strides)
    field: dict[Shift, str] = {(0,) * axes: "u[at]"}
    for axis, stride in enumerate(strides):
        for shift in (-1, 1):
            place = tuple(shift if other == axis else 0 for other in range(axes))
            field[place] = f"u[at + {shift * stride}]"
    indices = tuple(f"c[{axis}]" for axis in range(axes))
    return Layout(indices, (), ("true",) * axes, "true", field, {})


@cache
def source(work: FusedSweeps, tile: SmallTile) -> str:
    """CUDA C of the kernel `sweeps`; cached, because each level of a hierarchy asks for it."""
    axes = work.signature.dimension
    names = "ijk"[:axes]
    extents = tile.extents(work)
    strides = [math.prod(extents[axis + 1 :]) for axis in range(axes)]
    reads = {"POINT": Reads(work, work.tape, work.own, layout(strides))}
    if work.residual is not None:
        numbers = (0, *work.residual_operands)
        reads["RESIDUAL"] = Reads(work, work.residual, numbers, layout(strides), "m")
    bounds = [*[f"extent_{name}" for name in names], "pitch"]
    parameters = [f"{kind} {name}" for kind, name in work.operands()]
    defines = {
        "AXES": axes, "T": work.sweeps, "REACH": reach(work), "THREADS": 32 * tile.warps,
        "RUN_LENGTH": RUNS[axes], "TILE": math.prod(extents), "LONGEST": max(extents),
        "HAS_RESIDUAL": work.has_residual,
    }  # fmt: skip

    def listed(values: Iterable[object]) -> str:
        return ", ".join(map(str, values))

    pieces = {
        "PARAMETERS": listed([*parameters, *[f"integer {bound}" for bound in bounds]]),
        "PREPARE": [*work.numbers(), *[line for of in reads.values() for line in of.lines]],
        "COLOURS": listed(work.colours), "OWN_POINTS": listed(tile.own),
        "TILE_EXTENTS": listed(extents), "STRIDES": listed(strides),
        "WRAPS": listed(map(int, work.wraps)),
        "BLOCK": listed([f"int(blockIdx.{name})" for name in "zyx"[-axes:]]),
        "EXTENTS": listed([f"int({bound})" for bound in bounds[:-1]]),
        "COARSE_EXTENTS": listed([f"int(coarse_{name})" for name in names]),
        "WEIGHTS": listed(
            "{" + listed([f"weights_{name}{n}" for n in range(4)]) + "}" for name in names
        ),
    }  # fmt: skip
    for name, of in reads.items():
        pieces |= of.pieces(name)
    return assembled("cycle_leg_small.cuh", work, defines, pieces)
