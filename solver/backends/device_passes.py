"""How a GPU makes several sweeps in one pass: which it can, how many, and how they are launched."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
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
ROWS = (4, 256)
"""Fewest and most rows that a warp goes down."""
PLANES = (8, 110)
"""Fewest and most planes that a block goes up."""
WARPS_WANTED, BLOCKS_WANTED = 1500, 1000
"""Warps (2D) and blocks (3D) of a launch that keep a large device busy, also at its end."""
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

    def launch(self, region: Region) -> tuple[Launch, int]:
        """The launch that covers a region, and the rows or planes of each of its pieces."""
        shape, last = self._shape, region[-1]
        extents = [high - low for low, high in region]
        if self._two:
            strips = _pieces(last[1] - last[0] // 2 * 2, shape.width(self.work))
            rows = _length(extents[0], strips, WARPS_WANTED, ROWS)
            grid = (_pieces(strips, shape.warps), _pieces(extents[0], rows), 1)
        else:
            down, across = shape.right(self.work)
            tiles = _pieces(extents[1], down), _pieces(last[1] - last[0] // 2 * 2, across)
            rows = _length(extents[0], tiles[0] * tiles[1], BLOCKS_WANTED, PLANES)
            grid = (tiles[1], tiles[0], _pieces(extents[0], rows))
        return Launch(grid, (32 * shape.warps, 1, 1), ()), rows

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


Compiled = Callable[[Launch, tuple[Any, ...]], None]
"""Takes a launch and all that the kernel takes after the gate."""


class DevicePasses:
    """The passes of one point function on a device, for arrays of any extents.

    `compiled` makes the kernel of a source with so much shared memory for a block.
    """

    def __init__(
        self,
        compiled: Callable[[str, int], Compiled],
        tape: Tape,
        signature: Signature,
        norms: Sequence[str | None],
        wraps: Sequence[bool],
    ):
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
        launch, rows = kernel.launch(region)
        bounds = [bound for where in (region, counted) for pair in where for bound in pair]
        operands = kernel.operands(new, u, stages, registers)
        queue(replace(launch, bounds=(*bounds, rows, *u.shape)), tuple(operands))
