"""How a GPU fuses sweeps in one pass through memory: which sweeps, how many, and their launches."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from heatsolve.backends import Region
from heatsolve.backends.gpu.device import Limits
from heatsolve.backends.gpu.fused_kernel import (
    FusedSweeps,
    Strip,
    Tile,
    even,
    lead,
    source_2d,
    source_3d,
)
from heatsolve.backends.gpu.launch import MOST_BLOCKS, Launch
from heatsolve.stencil.trace import LEAVES, Signature, Tape

LIGHT, HEAVY = 12, 30
"""The most operations of a light point function, the fewest of a heavy one; a division is ten."""
DEPTHS = {2: (7, 5, 3), 3: (3,)}
"""The numbers of sweeps that a kernel fuses, by dimension."""
STRIPS = tuple(Strip(ahead=8, warps=n, blocks=16 // n) for n in (4, 2, 1))
"""Shapes in two dimensions, the best first (measured on an H200). Warps share nothing, so smaller
blocks are as good where coefficients need so much shared memory that no large block fits."""
WIDE_STRIPS = tuple(Strip(columns=4, ahead=8, warps=n, blocks=8 // n) for n in (2, 1))
TILES = (
    Tile(),
    Tile(ahead=2),
    Tile(warps=8),
    Tile(warps=6, ahead=2),
)
"""Shapes in three dimensions, the best first: measured on an H200, then the shapes that fit an A100
(163 KiB a block), an RTX 4090 (99) and a T4 (64) in double precision."""
TWO_ROWED_TILE = Tile(rows=2)
LENGTHS = (4, 1024)
"""Fewest and most rows that a warp goes down, or planes that a block goes up."""
EDGE_ROWS = 16
"""The fewest rows of the piece at the upper edge, where a row takes longer than inside."""


@dataclass(frozen=True)
class Costs:
    """The times of pieces in 2D relative to a piece inside.

    `edges`: of a row of the first and the last piece among others; `first`: of a row of the first
    piece alone; `sides`: the time for which the last pieces keep other blocks waiting; `rounds_up`:
    whether a single row that is left over counts as a piece.
    """

    edges: float
    first: float
    sides: float
    rounds_up: bool


LEG = Costs(edges=2.0, first=2.5, sides=0.3, rounds_up=True)
"""Of legs of a cycle, measured in 2D on an H200."""
PLAIN = Costs(edges=1.4, first=2.0, sides=0.1, rounds_up=False)
"""Of plain sweeps in 2D, whose blocks begin at the sides: fitted to passes of seven sweeps over
2118 to 16382 rows on an H200."""
SHORTER = 0.4
"""The share of its time that a last round of blocks saves where it has hardly any block."""
SATURATING = 2
"""Blocks of a multiprocessor in 2D from which on another block adds its full time."""
LARGEST = 1 << 25
"""The largest extent: beyond it CUDA may allow too few blocks, or 32-bit indices may overflow."""


def reads_neighbours(tape: Tape, signature: Signature) -> bool:
    """Whether a fused kernel holds all elements that a point function reads."""
    if signature.dimension == 1:
        return False
    for number, subscript in tape.loads():
        shifts = [abs(place.shift) for place in subscript]
        if max(shifts) > 1 or any(place.added or place.scale != 1 for place in subscript):
            return False
        if number == 0 and signature.dimension == 3 and sum(shifts) > 1:
            return False
    return True


def shapes_of(work: FusedSweeps) -> Sequence[Any]:
    """The shapes that a kernel of plain sweeps may have, the best first.

    Where rows take over values from each other, arithmetic is much of the time: wide strips compute
    fewer values twice (on an H200 by a tenth less time, the mean of four neighbours 7 % more). In
    space two rows a thread leave registers for all values (a pass of Jacobi's iteration with a
    source on 256 cubed takes 227 us; with 20 warps, and three quarters of the registers, 301).
    """
    carries = bool(work.carrying().carried)
    if work.signature.dimension == 2:
        return (*WIDE_STRIPS, *STRIPS) if carries else STRIPS
    return (TWO_ROWED_TILE, *TILES) if carries else TILES


def fitting_shape(work: FusedSweeps, shapes: Sequence[Any], limits: Limits) -> Any | None:
    """The first shape whose block fits the device; None if no shape fits."""
    fitting = (s for s in shapes if limits.blocks(32 * s.warps, s.bytes_shared(work)) > 0)
    return next(fitting, None)


def deepest(tape: Tape, signature: Signature, limits: Limits) -> int:
    """The most sweeps of a point function that are fused; 1 where none are.

    The field may be read at the neighbours (in two dimensions also at the diagonal neighbours), and
    the device must have room for the parts of arrays that a block holds.
    """
    if not reads_neighbours(tape, signature):
        return 1
    wraps = (False,) * signature.dimension
    for sweeps in DEPTHS[signature.dimension]:
        work = FusedSweeps(tape, signature, (), (None,) * sweeps, wraps, 1)
        if sweeps <= affordable(tape, signature) and fitting_shape(work, shapes_of(work), limits):
            return sweeps
    return 1


def affordable(tape: Tape, signature: Signature) -> int:
    """The most sweeps that are fused before arithmetic and registers, not memory, are the limit."""
    carrying, _ = tape.between_rows(signature.constant_from_row_to_row())
    costs = {"/": 10, "sqrt": 10, **dict.fromkeys(LEAVES, 0)}
    cost = sum(costs.get(operation.name, 1) for operation in carrying.operations)
    if signature.dimension == 3:
        return 3 if cost < HEAVY else 1
    return 7 if cost <= LIGHT else 5 if cost < HEAVY else 3


def work_of(
    tape: Tape,
    signature: Signature,
    stages: Sequence[Sequence[Any]],
    norms: Sequence[str | None],
    wraps: Sequence[bool],
    pitch: int,
) -> FusedSweeps:
    """These sweeps, fused; `stages` holds each sweep's arguments after the field.

    `pitch`: elements from row to row of the field.
    """
    varying = tuple(
        number
        for number, kind in enumerate(signature.arguments[1:], 1)
        if isinstance(kind, str) and any(s[number - 1] != stages[0][number - 1] for s in stages)
    )
    return FusedSweeps(tape, signature, varying, tuple(norms), tuple(wraps), math.gcd(pitch, 4))


Source = Callable[[FusedSweeps, Any], str]
"""Writes the CUDA C of a kernel for one of its shapes."""


class FusedKernel:
    """The kernel of fused sweeps: its source, and its launches."""

    def __init__(
        self,
        work: FusedSweeps,
        limits: Limits,
        shapes: Sequence[Any] = (),
        source: Source | None = None,
    ):
        """`shapes` and `source`: its possible shapes and its text, if not those of plain sweeps."""
        self.work, self._limits = work, limits
        self._is_leg = source is not None or work.corrects or work.restricts
        self._two = work.signature.dimension == 2
        shape = fitting_shape(work, shapes or shapes_of(work), limits)
        if shape is None:
            raise ValueError("fused sweeps for which a block of this device has no room")
        self._shape: Any = shape
        source = source or (source_2d if self._two else source_3d)
        self.source = source(work, self._shape)
        self.bytes_shared = self._shape.bytes_shared(work)

    def launch(self, region: Region) -> tuple[Launch, tuple[int, ...]]:
        """The launch that covers a region, and the numbers by which a block finds its piece.

        The numbers are, in three dimensions, the planes of each piece; in two dimensions the rows
        of each piece, and the number of rows that the first piece lacks.
        """
        shape, last, processors = self._shape, region[-1], self._limits.processors
        extents = [high - low for low, high in region]
        block = (32 * shape.warps, 1, 1)
        if self._two:
            low, high = region[0]
            extent = high - (low // 2 * 2 if even(self.work) else low)
            strips = _pieces(last[1] - last[0] // 2 * 2, shape.width(self.work))
            across = _pieces(strips, shape.warps)
            more = lead(self.work) + self.work.sweeps + self.work.has_residual
            blocks = min(shape.blocks, self._limits.blocks(block[0], self.bytes_shared))
            # With fewer rows in the first or last piece, the piece beside it would be an edge, too.
            beyond = self.work.sweeps + self.work.has_residual + 2 + (self.work.margin or 0)
            least_first = lead(self.work) + beyond
            edges = max(EDGE_ROWS, least_first + least_first % 2), beyond
            costs = LEG if self._is_leg else PLAIN
            rows, fewer = cut(extent, across, more, blocks, processors, edges, costs)
            return Launch((across, _pieces(extent + fewer, rows), 1), block, ()), (rows, fewer)
        tiles = shape.tiles(self.work, *region[1:])
        more = shape.more_planes(self.work)
        args = extents[0], tiles[0] * tiles[1], more
        if self._is_leg:
            planes, _ = planes_of_leg(*args, processors)
        else:
            planes = planes_of_piece(*args, processors)
        return Launch((tiles[1], tiles[0], _pieces(extents[0], planes)), block, ()), (planes,)

    def operands(
        self,
        new: Any,
        u: Any,
        stages: Sequence[Sequence[Any]],
        registers: Sequence[Any],
    ) -> Iterator[Any]:
        """The kernel's operands between gate and bounds, in the order of `FusedSweeps.operands`."""
        yield new
        yield u
        for number, value in enumerate(stages[0], 1):
            if number in self.work.varying:
                yield from (stage[number - 1] for stage in stages)
            else:
                yield value
        yield from (register for register in registers if register is not None)


@cache
def planes_of_piece(extent: int, tiles: int, more: int, processors: int) -> int:
    """The planes of each piece of a tile of plain sweeps; the last piece, begun last, has the rest.

    A block goes through `more` planes in addition to its own. Of all lengths this one takes least
    time by a model: multiprocessors share all planes, and at the end wait for half a last piece;
    they take no less than as many whole pieces in turn as one of them gets; and a piece more,
    because blocks take different times. Fitted to passes of three sweeps over 512 and 640 cubed on
    an H200.
    """

    def time(length: int) -> float:
        whole = _pieces(extent, length) - 1
        last = extent - whole * length + more
        shared = tiles * (whole * (length + more) + last) / processors + 0.5 * last
        in_turn = _pieces(whole * tiles, processors) * (length + more)
        return max(shared, in_turn) + length + more

    return min(_lengths(extent), key=time)


@cache
def planes_of_leg(extent: int, tiles: int, more: int, processors: int) -> tuple[int, float]:
    """The planes of each piece of a tile of a leg; and the time of all pieces, in planes.

    A multiprocessor has one block at a time, so blocks run in rounds. A block takes the time of
    `more` planes in addition to its own. Of all lengths this one takes least time by a model: a
    last round with fewer blocks than multiprocessors is shorter, by up to SHORTER.
    """

    def time(length: int) -> float:
        rounds, rest = divmod(tiles * _pieces(extent, length), processors)
        last = 1.0 - SHORTER * (1.0 - rest / processors) if rest else 0.0
        return (rounds + last) * (length + more)

    planes = min(_lengths(extent), key=time)
    return planes, time(planes)


def _pieces(extent: int, length: int) -> int:
    return -(-extent // length)


def _lengths(extent: int) -> Iterator[int]:
    """The lengths that pieces of an extent may have: even, so all begin at rows of one colour."""
    least, most = (min(bound, extent + extent % 2) for bound in LENGTHS)
    for length in range(least, most + 1, 2):
        if _pieces(extent, length) < MOST_BLOCKS:
            yield length


@cache
def cut(
    extent: int,
    across: int,
    more: int,
    blocks: int,
    processors: int,
    at_edges: tuple[int, int],
    costs: Costs,
) -> tuple[int, int]:
    """The length of each piece of an extent, and by how much the first piece is shorter.

    `across` blocks lie beside each other; each goes down `more` rows in addition to its own;
    `blocks` of them fit a multiprocessor. By `at_edges` the first piece has at least the first
    number of rows, and the last piece, which is begun last, about the second. Of all cuts this one
    takes least time by a model: a full multiprocessor takes as long as its blocks one after the
    other, a multiprocessor with few blocks as long as SATURATING blocks; the last pieces keep the
    other blocks waiting; the kernel ends no earlier than its first piece.
    """
    least_first, least_last = at_edges
    edges = sum(at_edges) if extent > 4 * least_first else 0
    saturating = min(SATURATING, blocks)
    best = (math.inf, 0, 0)
    for length in _lengths(extent):
        first, blocks_like_it = length, float(across * _pieces(extent, length))
        if edges:
            first = min(least_first + (extent - edges) % length // 2 * 2, length)
            at_ends = costs.edges * (first + least_last + 2 * more) / (length + more)
            others = extent - first - least_last
            count = _pieces(others, length) if costs.rounds_up else others // length
            blocks_like_it = across * (count + at_ends)
        waves, rest = divmod(blocks_like_it, blocks * processors)
        last = max(saturating, math.ceil(rest / processors)) if rest else 0
        time = (waves * blocks + last + costs.sides * blocks) * (length + more)
        if edges:
            time = max(time, costs.first * (blocks if waves else last) * (first + more))
        best = min(best, (time, -length, length - first))
    _, length, fewer = best
    return -length, fewer
