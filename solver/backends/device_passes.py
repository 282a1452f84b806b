"""How a GPU makes several sweeps in one pass: which it can, how many, and how they are launched."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from heatsolve.backends import Region, pass_source_2d, pass_source_3d
from heatsolve.backends.device_launch import Launch
from heatsolve.backends.pass_source import Pass
from heatsolve.backends.signature import Signature
from heatsolve.backends.tape import Tape

LIGHT, HEAVY = 12, 30
"""Operations of a point up to which it is light, and from which it is heavy; a division is ten."""
SHAPES_2D = {
    7: pass_source_2d.Shape(ahead=8, warps=4, blocks=3),
    5: pass_source_2d.Shape(ahead=8, warps=4, blocks=4),
    3: pass_source_2d.Shape(ahead=8, warps=4, blocks=4),
}
SHAPES_3D = {3: pass_source_3d.Shape()}
"""Shapes by the number of sweeps, measured on an H200."""
ROWS = (4, 1024)
"""Fewest and most rows that a warp goes down."""
EDGE_ROWS = 16
"""Rows of a piece at the upper and lower edge, where each takes longer than inside."""
BLOCKS_TO_SATURATE = 2
"""Blocks of a multiprocessor in two dimensions from which on another one costs its own time."""
PLANES = (8, 110)
"""Fewest and most planes that a block goes up."""
BLOCKS_WANTED = 1000
"""Blocks in three dimensions that keep a large device busy, also at its end."""
LARGEST = 1 << 30
"""Extents above which a kernel's 32-bit indices might not do."""


def reads_neighbours(tape: Tape, signature: Signature) -> bool:
    """Whether a pass has all that a point function reads."""
    if signature.dimension == 1:
        return False
    for number, subscript in tape.loads():
        shifts = [abs(shift) for shift, _ in subscript]
        if any(added for _, added in subscript) or max(shifts) > 1:
            return False
        if number == 0 and signature.dimension == 3 and sum(shifts) > 1:
            return False
    return True


def deepest(tape: Tape, signature: Signature) -> int:
    """The most sweeps that one pass makes of a point function; 1 where it makes none.

    The field may be read at the neighbours (in two dimensions also the diagonal ones).
    """
    if not reads_neighbours(tape, signature):
        return 1
    cost = sum(
        {"/": 10, "sqrt": 10, "load": 0, "scalar": 0, "constant": 0}.get(operation.name, 1)
        for operation in tape.operations
    )
    if signature.dimension == 3:
        return 3 if cost < HEAVY else 1
    return 7 if cost <= LIGHT else 5 if cost < HEAVY else 3


def work_of(
    tape: Tape,
    signature: Signature,
    stages: Sequence[Sequence[Any]],
    norms: Sequence[str | None],
    wraps: Sequence[bool],
    extents: Sequence[int],
) -> Pass:
    """The pass that makes these sweeps; `stages` holds the arguments of each after the field."""
    varying = tuple(
        number
        for number, kind in enumerate(signature.arguments[1:], 1)
        if isinstance(kind, str) and any(s[number - 1] != stages[0][number - 1] for s in stages)
    )
    return Pass(tape, signature, varying, tuple(norms), tuple(wraps), extents[-1] % 2 == 0)


class PassKernel:
    """The kernel of a pass: its source, and its launches."""

    def __init__(self, work: Pass, shape: Any = None, room: Any = None):
        """`shape` and `room`: how it is cut, and whose text it is, if not those of plain sweeps."""
        self.work = work
        self._two = work.signature.dimension == 2
        self._shape = shape or (SHAPES_2D if self._two else SHAPES_3D)[work.sweeps]
        room = room or (pass_source_2d if self._two else pass_source_3d)
        self.source = room.source(work, self._shape)
        self.bytes_shared = self._shape.bytes_shared(work)

    def launch(self, region: Region, processors: int) -> tuple[Launch, tuple[int, ...]]:
        """The launch that covers a region, and what tells a block its piece of it.

        That is, in three dimensions, the planes of each piece; in two the rows, and how many of
        them the first piece lacks. The device has so many multiprocessors.
        """
        shape, last = self._shape, region[-1]
        extents = [high - low for low, high in region]
        block = (32 * shape.warps, 1, 1)
        if self._two:
            low, high = region[0]
            extent = high - (low // 2 * 2 if pass_source_2d.even(self.work) else low)
            strips = _pieces(last[1] - last[0] // 2 * 2, shape.width(self.work))
            across = _pieces(strips, shape.warps)
            more = pass_source_2d.lead(self.work) + self.work.sweeps + self.work.restricts
            rows, fewer = rows_of_pieces(extent, across, more, shape.blocks, processors)
            return Launch((across, _pieces(extent + fewer, rows), 1), block, ()), (rows, fewer)
        down, across = shape.right(self.work)
        tiles = _pieces(extents[1], down), _pieces(last[1] - last[0] // 2 * 2, across)
        planes = _length(extents[0], tiles[0] * tiles[1], BLOCKS_WANTED, PLANES)
        grid = (tiles[1], tiles[0], _pieces(extents[0], planes))
        return Launch(grid, block, ()), (planes,)

    def operands(
        self,
        new: Any,
        u: Any,
        stages: Sequence[Sequence[Any]],
        registers: Sequence[Any],
    ) -> Iterator[Any]:
        """What the kernel takes between gate and bounds, in the order of `Pass.operands`."""
        yield new
        yield u
        for number, value in enumerate(stages[0], 1):
            if number in self.work.varying:
                yield from (stage[number - 1] for stage in stages)
            else:
                yield value
        yield from (register for register in registers if register is not None)


def _pieces(extent: int, length: int) -> int:
    return -(-extent // length)


def _length(extent: int, across: int, wanted: int, bounds: tuple[int, int]) -> int:
    """The length of each piece of an extent, so that there are as many pieces as wanted."""
    pieces = max(1, _pieces(wanted, across))
    length = min(max(_pieces(extent, pieces), bounds[0]), bounds[1])
    return length + length % 2  # so that all pieces begin at rows of one colour


@cache
def rows_of_pieces(
    extent: int, across: int, more: int, blocks: int, processors: int
) -> tuple[int, int]:
    """The rows of each piece of an extent, and how many of them the first piece lacks.

    There are `across` blocks beside each other; each goes down `more` rows besides its own, and so
    many `blocks` fit a multiprocessor. Waves of blocks shall be full: of all cuts the one that
    takes least time, where a full multiprocessor takes as long as its blocks one after the other,
    and one with few blocks as long as BLOCKS_TO_SATURATE.
    """
    edges = 2 * EDGE_ROWS if extent > 4 * EDGE_ROWS else 0
    best = (math.inf, 0)
    for pieces in range(1, _pieces(extent, ROWS[0]) + 1):
        rows = _pieces(extent - edges, pieces)
        rows += rows % 2
        if rows > ROWS[1]:
            continue
        inside = _pieces(extent - edges, rows) * across
        at_edges = 2 * across * 2.0 * (EDGE_ROWS + more) / (rows + more) if edges else 0.0
        waves, rest = divmod(inside + at_edges, blocks * processors)
        last = max(BLOCKS_TO_SATURATE, math.ceil(rest / processors)) if rest else 0
        best = min(best, ((waves * blocks + last) * (rows + more), rows))
    rows = best[1]
    return rows, max(rows - EDGE_ROWS, 0) if edges else 0


Compiled = Callable[[Launch, tuple[Any, ...]], None]
"""Takes a launch and all that the kernel takes after the gate."""


class DevicePasses:
    """The passes of one point function on a device, for arrays of any extents.

    `compiled` makes the kernel of a source with so much shared memory for a block; the device has
    so many multiprocessors.
    """

    def __init__(
        self,
        compiled: Callable[[str, int], Compiled],
        tape: Tape,
        signature: Signature,
        norms: Sequence[str | None],
        wraps: Sequence[bool],
        processors: int,
    ):
        self._processors = processors
        self._compiled, self._tape, self._signature = compiled, tape, signature
        self._norms, self._wraps = norms, wraps
        self._known: dict[Any, tuple[PassKernel, Compiled]] = {}

    def __call__(
        self,
        new: Any,
        u: Any,
        region: Region,
        stages: Sequence[Sequence[Any]],
        registers: Sequence[Any],
        counted: Region,
    ) -> None:
        given = (stages, self._norms, self._wraps, u.shape)
        work = work_of(self._tape, self._signature, *given)
        key = work.varying, work.aligned
        if key not in self._known:
            kernel = PassKernel(work)
            self._known[key] = kernel, self._compiled(kernel.source, kernel.bytes_shared)
        kernel, queue = self._known[key]
        launch, pieces = kernel.launch(region, self._processors)
        bounds = [bound for where in (region, counted) for pair in where for bound in pair]
        operands = kernel.operands(new, u, stages, registers)
        queue(replace(launch, bounds=(*bounds, *pieces, *u.shape)), tuple(operands))
