"""CUDA C of passes of a multigrid cycle in three dimensions: coloured sweeps of one plane in place.

A block owns a tile of columns along z and goes up the planes; a thread owns two rows of them, of
sixteen bytes each if it can: what shared memory moves at once.
Points of one colour have neighbours of the other colour only, so a sweep needs no second copy of
the field: as plane z arrives, sweep 1 updates plane z - 1, sweep 2 plane z - 2, and so on, each in
place. A thread keeps its own points of all these planes in registers. Others read the newest plane
where it arrived, in a ring of planes in shared memory, and of each sweep the colour that it moved,
a step later; so a warp waits once a step, and only for the warps beside it. Which points move is
known when the text is compiled: tiles begin at even columns and rows. The outermost points of a
tile, one layer for each sweep, are wrong and are made again by the tile beside it, as in
`pass_source_3d`.

A pass may begin with the interpolation of a correction. The residual and its restriction, which
widens a tile's halo by three, are a pass of their own, without sweeps (see `device_cycles`); it may
find the residual's norm, too.
"""

from dataclasses import dataclass
from functools import cache

from heatsolve.backends.gpu.pass_source import Pass, assembled
from heatsolve.backends.gpu.pass_source_3d import Reads


@dataclass(frozen=True)
class Shape:
    """How a kernel is cut: tuned for a device."""

    warps: int = 16
    """Warps of a block, one below the other along y, each with two rows; no more than barriers."""
    ahead: int = 3
    """Planes that are on their way."""

    def right(self, work: Pass) -> tuple[int, int]:
        """Rows and columns of a tile that are right in the end."""
        return 2 * self.warps - sum(halo(work, 2)), width(work) - sum(halo(work, columns(work)))

    def first(self, work: Pass, low: int) -> int:
        """Where the columns begin that the first tile covers: those read begin at a sector."""
        left, _ = halo(work, columns(work))
        return (low - left) // (2 * columns(work)) * (2 * columns(work)) + left

    def more_planes(self, work: Pass) -> int:
        """Planes that a block goes up besides those of its piece."""
        return sum(reach(work)) + work.restricts

    def planes(self, work: Pass) -> tuple[int, int]:
        """Planes in shared memory of the field, and of the array that is fetched with it."""
        beside = 0 if work.from_zero else 1 if work.corrects else 2
        return beside and self.ahead + beside, self.ahead + 1

    def bytes_shared(self, work: Pass) -> int:
        """Shared memory of a block."""
        tile = 2 * self.warps * width(work) * work.bytes
        return tile * self.planes_in_all(work) + BARRIER * self.warps

    def planes_in_all(self, work: Pass) -> int:
        """Planes in shared memory, those that sweeps leave for each other included."""
        left_over = 1 if work.restricts else work.sweeps - 1 + work.corrects
        return left_over + sum(self.planes(work))


BARRIER = 8
"""Bytes of a barrier, of which each warp but the first has one."""


def columns(work: Pass) -> int:
    """Columns of a thread: sixteen bytes, or a pair where rows begin anywhere else."""
    return min(16 // work.bytes, max(work.aligned, 2))


def width(work: Pass) -> int:
    """Columns of a tile."""
    return 32 * columns(work)


def reach(work: Pass) -> tuple[int, int]:
    """Points below and above a piece of the result on which it depends.

    A coarse point q takes from the points 2q - 2 ... 2q + 1, a residual from its neighbours.
    """
    return (3, 2) if work.restricts else (work.sweeps, work.sweeps)


def halo(work: Pass, own: int) -> tuple[int, int]:
    """Points at both sides of a tile that are wrong in the end; threads have so many together."""
    low, high = (-(-points // own) * own for points in reach(work))
    return low, high


FIELD: dict[tuple[int, ...], str] = {
    (0, 0, 0): "u[t + 1][r][k]",
    (-1, 0, 0): "u[t + 2][r][k]",
    (1, 0, 0): "u[t][r][k]",
    (0, -1, 0): "below",
    (0, 1, 0): "above",
    (0, 0, -1): "left",
    (0, 0, 1): "right",
}
"""The field at a point and at its six neighbours: no others are at hand."""


@cache
def source(work: Pass, shape: Shape) -> str:
    """CUDA C of the kernel `sweeps`; written once, as each level of a hierarchy asks."""
    along = fetched_along(work)
    if work.restricts:
        assert work.transfer is not None and work.transfer.residual is not None
        taken = dict(enumerate(work.transfer.operands, 1))
        reads = Reads(work, work.transfer.residual, taken, FIELD, "m", along, ("2", "C"))
    else:
        own = {number: number for number in range(len(work.signature.arguments))}
        reads = Reads(work, work.tape, own, FIELD, along=along, across=("2", "C"))
    before, after = reach(work)
    low, high = halo(work, 2)
    left, right = halo(work, columns(work))
    defines = {
        "T": work.sweeps, "LEVELS": max(work.sweeps, 1),
        "WARPS": shape.warps, "C": columns(work), "X": width(work), "Y": 2 * shape.warps,
        "TILE": 2 * shape.warps * width(work), "AHEAD": shape.ahead,
        # A pair where rows begin anywhere comes and goes by single elements.
        "GROUP": columns(work) if work.aligned > 1 else 1, "SECTOR": 2 * columns(work),
        "MARGIN": work.margin or 0, "RING": shape.planes(work)[0],
        "PLANES": shape.planes_in_all(work),
        "LOW": low, "HIGH": high, "LEFT": left, "RIGHT": right,
        "BEFORE": before, "AFTER": after, "ODD": work.odd, "WRAPS_I": work.wraps[0],
        "WRAPS_J": work.wraps[1], "WRAPS_K": work.wraps[2],
    }  # fmt: skip
    arguments = "RESIDUAL_ARGUMENTS" if work.restricts else "POINT_ARGUMENTS"
    pieces = {
        "PREPARE": [*work.numbers(), *reads.lines], "READ_PLANE": reads.planes,
        arguments: ", ".join(reads.given), "ALONG": f"a{along}",
        "BLACK": ", ".join(str(int(colour < 0)) for colour in work.colours),
        "ROW": ", ".join(f"u[T][r][{k}]" for k in range(columns(work))),
    }  # fmt: skip
    return assembled("cycle_leg_3d.cuh", work, defines, pieces)


def fetched_along(work: Pass) -> int:
    """The number of the array whose planes are fetched with the field: b; 0 if there is none."""
    arguments = work.signature.arguments
    found = [
        number
        for number, shift in work.tape.loads()
        if number and not any(arguments[number]) and not any(distance for distance, _ in shift)
    ]
    return min(found, default=0)
