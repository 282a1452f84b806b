"""CUDA C of passes of a multigrid cycle in three dimensions: coloured sweeps of one plane in place.

A block owns a tile of 64 columns along z and goes up the planes; a thread owns two by two of them.
Points of one colour have neighbours of the other colour only, so a sweep needs no second copy of
the field: as plane z arrives, sweep 1 updates plane z - 1, sweep 2 plane z - 2, and so on, each in
place. A thread keeps its own points of all these planes in registers; what others read is in a ring
of planes in shared memory. Nobody reads there what is written in the same step, because it has the
other colour, so one barrier a step is enough. Which points move is known when the text is compiled:
tiles begin at even columns and rows. The outermost points of a tile, one layer for each sweep, are
wrong and are made again by the tile beside it, as in `pass_source_3d`.

A pass may begin with the interpolation of a correction and may end with the residual and its
restriction. Restriction widens a tile's halo by three; so it is a pass of its own, without sweeps
(see `device_cycles`).
"""

from dataclasses import dataclass
from functools import cache

from heatsolve.backends.cycle_text_3d import (
    CORRECTION,
    FROM_ZERO,
    INTERPOLATION,
    KERNEL,
    NEIGHBOURS,
    PLANE,
    RESTRICTION,
    RESTRICTION_STATE,
    STORE,
    SWEEPS,
)
from heatsolve.backends.pass_source import Pass, filled
from heatsolve.backends.pass_source_3d import Reads


@dataclass(frozen=True)
class Shape:
    """How a kernel is cut: tuned for a device."""

    warps: int = 16
    """Warps of a block, one below the other along y, each with two rows."""
    ahead: int = 3
    """Planes that are on their way."""

    def right(self, work: Pass) -> tuple[int, int]:
        """Rows and columns of a tile that are right in the end."""
        low, high = halo(work)
        return 2 * self.warps - low - high, 64 - low - high

    def more_planes(self, work: Pass) -> int:
        """Planes that a block goes up besides those of its piece."""
        return sum(reach(work)) + work.restricts

    def planes(self, work: Pass) -> tuple[int, int]:
        """Planes in shared memory of the field, and of the array that is fetched with it."""
        return levels(work) + 1 + self.ahead, self.ahead + 1

    def bytes_shared(self, work: Pass) -> int:
        """Shared memory of a block."""
        return 128 * self.warps * (sum(self.planes(work)) + work.restricts) * work.bytes


def levels(work: Pass) -> int:
    """Planes on which a step works: one for each sweep, and one for the residual."""
    return work.sweeps + work.restricts


def reach(work: Pass) -> tuple[int, int]:
    """Points below and above a piece of the result on which it depends.

    A coarse point q takes from the points 2q - 2 ... 2q + 1, a residual from its neighbours.
    """
    return (work.sweeps + 3, work.sweeps + 2) if work.restricts else (work.sweeps, work.sweeps)


def halo(work: Pass) -> tuple[int, int]:
    """Rows and columns at both sides of a tile that are wrong in the end: threads have pairs."""
    low, high = reach(work)
    return low + low % 2, high + high % 2


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
    lines = work.numbers()
    state = correct = sweeps = restriction = ""
    last_plane = "region_i.high"
    if work.sweeps:
        own = {number: number for number in range(len(work.signature.arguments))}
        reads = Reads(work, work.tape, own, FIELD, along=along, across=("2", "2"))
        lines += reads.lines
        black = ", ".join(str(int(colour < 0)) for colour in work.colours)
        sweeps = _with(reads, SWEEPS).replace("@BLACK@", black)
    if work.restricts:
        assert work.transfer is not None and work.transfer.residual is not None
        taken = dict(enumerate(work.transfer.operands, 1))
        reads = Reads(work, work.transfer.residual, taken, FIELD, "m", along, ("2", "2"))
        lines += reads.lines
        state, restriction = RESTRICTION_STATE, _with(reads, RESTRICTION)
        # Coarse points may lie one beyond the last unknown.
        last_plane = "max(region_i.high, 2 * int(coarse_i) - 3)"
    elif work.transfer is not None:
        state, correct = INTERPOLATION, CORRECTION
    fetches = [f"fetch_plane(a{along}, start + n - 1, RING + beside);"]
    if work.from_zero:
        correct = FROM_ZERO
    else:
        fetches.append("fetch_plane(a0, start + n, into);")
    before, after = reach(work)
    low, high = halo(work)
    defines = {
        "T": work.sweeps, "LEVELS": levels(work), "RESTRICTS": work.restricts,
        "WARPS": shape.warps, "X": 64, "Y": 2 * shape.warps,
        "TILE": 128 * shape.warps, "AHEAD": shape.ahead,
        "MARGIN": work.margin or 0, "RING": shape.planes(work)[0], "LOW": low, "HIGH": high,
        "BEFORE": before, "AFTER": after, "ODD": work.odd, "WRAPS_I": work.wraps[0],
        "WRAPS_J": work.wraps[1], "WRAPS_K": work.wraps[2], "ALIGNED": work.aligned,
    }  # fmt: skip
    return filled(
        KERNEL, work, defines,
        LINES="\n    ".join(lines), FETCHES="\n            ".join(fetches),
        ARRIVED="0" if work.from_zero else "own[slot * TILE + r * X + k]",
        TRANSFER_STATE=state, CORRECT=correct, SWEEPS=sweeps, RESTRICT=restriction,
        STORE=STORE if work.sweeps else "", LAST_PLANE=last_plane,
    )  # fmt: skip


def fetched_along(work: Pass) -> int:
    """The number of the array whose planes are fetched with the field: b; 0 if there is none."""
    arguments = work.signature.arguments
    found = [
        number
        for number, shift in work.tape.loads()
        if number and not any(arguments[number]) and not any(distance for distance, _ in shift)
    ]
    return min(found, default=0)


def _with(reads: Reads, template: str) -> str:
    """A template with what is read."""
    return (
        template.replace("@PLANE@", PLANE)
        .replace("@PLANES@", "\n            ".join(reads.planes))
        .replace("@NEIGHBOURS@", NEIGHBOURS)
        .replace("@GIVEN@", ", ".join(reads.given))
    )
