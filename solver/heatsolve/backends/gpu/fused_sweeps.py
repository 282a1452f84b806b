"""How a GPU fuses sweeps in one pass through memory: which sweeps, how many, and their launches."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from heatsolve.backends import Region
from heatsolve.backends.gpu.device import Limits
from heatsolve.backends.gpu.fused_kernel import (
    PAIR,
    FusedSweeps,
    Strip,
    Tile,
    even,
    lead,
    ring_arguments,
    rounded_up,
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


ROW_TIMES = {(2, 8): (0.6, 1.0), (2, 4): (0.6, 1.0), (4, 8): (4.4, 0.0), (4, 4): (3.7, 0.0)}
"""The time of a row of a block, by the columns of a thread and the bytes of a number: a time that
does not depend on other blocks, and a time for each warp of a scheduler, of which a multiprocessor
has SCHEDULERS. Narrow strips take turns; wide ones wait for their own results instead."""
SCHEDULERS = 4
EDGE_TIMES = {2: 1.6, 4: 2.4}
"""The time of a row of the first piece relative to a row inside, by the columns of a thread."""
WAIT = 0.06
"""The share of a round of blocks for which the last pieces keep other blocks waiting."""
SHORTER = 0.4
"""In three dimensions, the share of its time that a last round of blocks saves where it has hardly
any block."""
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
    fewer values twice (16384 squared in an eighth less time), but a small field has too few of them
    to keep a device busy, see `shape_for`. In double precision they are slower where rows of other
    arrays are kept. In space two rows a thread leave registers for all values (a pass of Jacobi's
    iteration with a source on 256 cubed takes 227 us; with 20 warps, and three quarters of the
    registers, 301).
    """
    carries = bool(work.carrying().carried)
    if work.signature.dimension == 2:
        wide = carries and (work.bytes == 4 or not ring_arguments(work))
        return (*WIDE_STRIPS, *STRIPS) if wide else STRIPS
    return (TWO_ROWED_TILE, *TILES) if carries else TILES


def fitting_shape(work: FusedSweeps, shapes: Sequence[Any], limits: Limits) -> Any | None:
    """The first shape whose block fits the device; None if no shape fits."""
    fitting = (s for s in shapes if limits.blocks(32 * s.warps, s.bytes_shared(work)) > 0)
    return next(fitting, None)


def shape_for(work: FusedSweeps, region: Region, limits: Limits) -> Any:
    """The shape that makes plain sweeps of a region in least time; raises ValueError if none fits.

    In two dimensions the first shape of each width that fits the device is tried by `cut_of`.
    """
    shapes = shapes_of(work)
    two = work.signature.dimension == 2
    of_widths = [[s for s in shapes if s.columns == c] for c in (4, 2)] if two else [shapes]
    fitting = [s for s in (fitting_shape(work, some, limits) for some in of_widths) if s]
    if not fitting:
        raise ValueError("fused sweeps for which a block of this device has no room")
    if len(fitting) == 1:
        return fitting[0]
    return min(fitting, key=lambda strip: cut_of(work, strip, region, limits).time)


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
    """The kernel of fused sweeps: its source, and its launches.

    `source` writes its text, if not the text of plain sweeps.
    """

    def __init__(
        self, work: FusedSweeps, limits: Limits, shape: Any, source: Source | None = None
    ):  # fmt: skip
        self.work, self._limits, self._shape = work, limits, shape
        self._is_leg = source is not None  # in three dimensions
        self._two = work.signature.dimension == 2
        source = source or (source_2d if self._two else source_3d)
        self.source = source(work, shape)
        self.bytes_shared = shape.bytes_shared(work)

    def launch(
        self, region: Region, counted: Region | None = None
    ) -> tuple[Launch, tuple[int, ...]]:
        """The launch that covers a region, and the numbers by which a block finds its piece; norms
        are taken over the points `counted`, by default all.

        The numbers are, in three dimensions, the planes of each piece; in two dimensions the rows
        of each piece, and the number of rows that the first piece lacks.
        """
        shape, block = self._shape, (32 * self._shape.warps, 1, 1)
        if self._two:
            cut = cut_of(self.work, shape, region, self._limits, counted)
            return Launch((cut.across, cut.pieces, 1), block, ()), (cut.rows, cut.fewer)
        extent = region[0][1] - region[0][0]
        tiles = shape.tiles(self.work, *region[1:])
        more, processors = shape.more_planes(self.work), self._limits.processors
        args = extent, tiles[0] * tiles[1], more
        if self._is_leg:
            planes, _ = planes_of_leg(*args, processors)
        else:
            planes = planes_of_piece(*args, processors)
        return Launch((tiles[1], tiles[0], _pieces(extent, planes)), block, ()), (planes,)

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
    """The even numbers of planes that pieces of an extent may have."""
    least, most = (min(bound, extent + extent % 2) for bound in LENGTHS)
    for length in range(least, most + 1, 2):
        if _pieces(extent, length) < MOST_BLOCKS:
            yield length


class Cut(NamedTuple):
    """A region in strips, `across` blocks of them beside each other, and below each other `pieces`
    of `rows`, of which the first lacks `fewer`; and the time of all."""

    time: float
    across: int
    pieces: int
    rows: int
    fewer: int


def cut_of(
    work: FusedSweeps, strip: Strip, region: Region, limits: Limits, counted: Region | None = None
) -> Cut:
    """The cut of a region into strips that takes least time; `counted`: see `launch`."""
    (low, high), last = region
    top = low // 2 * 2 if even(work) else low
    extent = high - top
    across = _pieces(_pieces(last[1] - last[0] // 2 * 2, strip.width(work)), strip.warps)
    # With fewer rows in the first or last piece, the piece beside it would be an edge, too.
    beyond = work.sweeps + work.has_residual + 2 + (work.margin or 0)
    least_first, least_last = max(EDGE_ROWS, rounded_up(lead(work) + beyond, 2)), beyond
    more = lead(work) + work.sweeps + work.has_residual
    skipped = 0 if work.wraps[0] else (lead(work) - 1 + low - top) // PAIR * PAIR
    blocks = min(strip.blocks, limits.blocks(32 * strip.warps, strip.bytes_shared(work)))
    times = ROW_TIMES[strip.columns, work.bytes]
    of_blocks = tuple(row_time(times, (n + 1) * strip.warps) for n in range(blocks))
    of_edge = EDGE_TIMES[strip.columns]

    def cut(*at_edges: int) -> Cut:
        down = more, more - skipped
        return cut_extent(extent, across, down, of_blocks, limits.processors, at_edges, of_edge)

    if counted is not None and (work.residual_norm or any(work.norms)):
        # So is a piece of which only some rows have a norm, unless pieces are too short for that.
        (first, stop), _ = counted
        wide_first = max(least_first, rounded_up(first - top, 2))
        wide_last = max(least_last, high - stop)
        wide = cut(wide_first, wide_last)
        last_rows = extent - (wide.pieces - 1) * wide.rows + wide.fewer
        if wide.rows - wide.fewer >= wide_first and last_rows >= wide_last:
            return wide
    return cut(least_first, least_last)


def row_time(times: tuple[float, float], warps: int) -> float:
    """The time of a row of a strip on a multiprocessor with this number of warps."""
    always, of_warp = times
    return always + of_warp * _pieces(warps, SCHEDULERS)


@cache
def cut_extent(
    extent: int,
    across: int,
    more: tuple[int, int],
    of_blocks: tuple[float, ...],
    processors: int,
    at_edges: tuple[int, int],
    of_edge: float,
) -> Cut:
    """The pieces of an extent, `across` beside each other.

    Each goes down `more[0]` rows in addition to its own, a first one of its own length `more[1]`;
    `of_blocks` are the times of a row for 1, 2, ... blocks on a multiprocessor, `of_edge` the time
    of a row of the first piece relative to these. By `at_edges` the first piece has at least the
    first number of rows, and the last piece, which is begun last, about the second, unless pieces
    are shorter; all others are equal, and the first takes the rows that are left over. Of these
    cuts this one takes least time by a model: blocks run in rounds, in a last round as many on each
    multiprocessor as are left; the last pieces keep the other blocks waiting; the kernel ends no
    earlier than its first piece. Fitted to 6,000 cuts of 89 passes and legs on an H100 and an H200:
    the chosen cut takes 3 % longer than the best one, on the mean.
    """
    least_first, least_last = at_edges
    edges = least_first + least_last
    if extent <= max(4 * least_first, 2 * edges):
        edges = 0
    full, most = of_blocks[-1], len(of_blocks) * processors
    found = []
    for length in _equal_lengths(extent - edges, rounded_up=not edges):
        first = min(least_first + (extent - edges) % length // 2 * 2, length) if edges else length
        pieces = _pieces(extent + length - first, length)
        rounds, rest = divmod(across * pieces, most)
        last = of_blocks[_pieces(rest, processors) - 1] if rest else 0.0
        time = (rounds * full + last + WAIT * full) * (length + more[0])
        if edges:
            time = max(time, of_edge * (full if rounds else last) * (first + more[1]))
        found.append(Cut(time, across, pieces, length, length - first))
    return min(found)


def _equal_lengths(extent: int, rounded_up: bool) -> set[int]:
    """The lengths of 1, 2, 3, ... equal pieces of an extent: even numbers, so that all pieces begin
    at rows of one colour, `rounded_up` where no other piece takes the rows that are left over."""
    least, most = LENGTHS
    shortest = max(least, extent // MOST_BLOCKS + 2)
    fewest = _pieces(extent, most)
    counts = range(fewest, max(extent // shortest, fewest) + 1)
    halves = (_pieces(extent, 2 * n) if rounded_up else extent // (2 * n) for n in counts)
    return {max(least, min(2 * half, most)) for half in halves}
