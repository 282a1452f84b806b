"""How a GPU does half a cycle of multigrid: in one pass, or in three dimensions in two.

In three dimensions a pass of sweeps moves 24 bytes a point, one of the residual and its restriction
16. With two sweeps, one of each colour, all in one pass would need a halo of 6 and 4 points around
a tile of 64 x 32, and so do 1.7 times the work: 2.1 ms instead of 1.9 (512 cubed, H200).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from heatsolve.backends import CycleLeg
from heatsolve.backends.gpu import cycle_source_3d
from heatsolve.backends.gpu.device_passes import (
    LARGEST,
    STRIPS,
    Compiled,
    PassKernel,
    affordable,
    fitting_shape,
    reads_neighbours,
    work_of,
)
from heatsolve.backends.gpu.launch import Launch
from heatsolve.backends.gpu.limits import Limits
from heatsolve.backends.gpu.pass_source import INVERSE, Pass, Transfer
from heatsolve.stencil.signature import Signature, describe

SHAPES_3D = [
    cycle_source_3d.Shape(warps, ahead) for warps in (16, 14, 12, 10, 8, 6) for ahead in (3, 2)
]
"""Shapes of three dimensions, the best first: the first one measured on an H200; fewer warps repeat
more of what their neighbours do than fewer planes on their way keep waiting."""
MOST_SWEEPS = 6
"""Sweeps of half a cycle, those of a colour each for themselves: more need too many registers."""
MOST_WHOLE = 2
"""Arrays that vary along all axes: b, and the inverse of the diagonal."""
MOST_MARGIN = 2
"""Layers beside the walls that belong to the edge; pieces of EDGE_ROWS hold so many."""
FEWEST_POINTS = {2: 300_000, 3: 1_000_000}
"""Points of a grid below which single sweeps are faster, by dimension.

There are too few blocks then to hide what a row or a plane takes, and the text of a pass, which is
long, comes from memory again for each pass.
"""


def padded(shape: Sequence[int]) -> tuple[int, ...]:
    """The extents of an array of a level with room for rows of whole pairs, if passes are for it.

    Two elements are then fetched and stored at once: a cycle on 257 cubed takes 0.36 ms instead of
    0.47 in single precision.
    """
    *slower, last = shape
    if not slower or math.prod(shape) < FEWEST_POINTS[len(shape)]:
        return tuple(shape)
    return *slower, last + last % 2


def can_halve(half: CycleLeg, precision: str, limits: Limits) -> bool:
    """Whether passes do half a cycle: if points read neighbours only.

    In three dimensions sweeps are made in place: colours must alternate, and a periodic axis must
    have an even number of points, or two of one colour meet at its ends. All arrays but b and
    an inverse of the diagonal are constant along some axis, as passes read them again and again.
    Arrays that vary along all axes have rows alike. A block of the device must have room for what
    it holds of arrays, and in three dimensions do no more than half of its work for its neighbours.
    """
    if len(half.shape) not in (2, 3) or max(half.shape) > LARGEST:
        return False
    if math.prod(half.shape) < FEWEST_POINTS[len(half.shape)]:
        return False
    if len(half.colours) > MOST_SWEEPS:
        return False
    shapes = [getattr(given, "shape", ()) for given in (*half.stages[0], *half.operands)]
    if any(shape[-1] != half.pitch for shape in shapes if shape and 1 not in shape):
        return False
    if len(half.shape) == 3:
        if half.norm is not None and not half.restricts:  # of a result that a pass only leaves
            return False
        odd = any(w and n % 2 for w, n in zip(half.wraps, half.shape, strict=True))
        alternate = all(a * b == -1 for a, b in pairwise(half.colours))
        if odd or not all(half.colours) or not alternate:
            return False
    elif half.coarse is None or not (half.colours or half.restricts):
        return False
    works = list(works_of(half, precision, False))
    work = works[-1]
    tapes = [work.tape]
    if work.transfer is not None and work.transfer.residual is not None:
        tapes.append(work.transfer.residual)
    near = all(reads_neighbours(tape, work.signature) for tape in tapes)
    fits = all(fitting_shape(work, shapes_of(work), limits) for work in works)
    if len(half.shape) == 2:
        return near and fits and all(affordable(tape, work.signature) > 1 for tape in tapes)
    whole = {n for n, kind in enumerate(work.signature.arguments) if n and not any(kind)}
    along = cycle_source_3d.fetched_along(work)
    return fits and near and along in whole and len(whole) <= MOST_WHOLE


def shapes_of(work: Pass) -> Sequence[Any]:
    """The shapes that a pass of a cycle may have."""
    if work.signature.dimension == 2:
        return STRIPS
    return [s for s in SHAPES_3D if s.right(work)[0] >= s.warps and s.right(work)[1] > 0]


def works_of(half: CycleLeg, precision: str, gated: bool) -> Iterator[Pass]:
    """The passes that do half a cycle, in turn."""
    axes = len(half.shape)

    def signature(arguments: Sequence[Any]) -> Signature:
        described = ((False,) * axes, *[describe(a) for a in arguments])
        return Signature(described, ("array",), (None,), precision, axes, gated)

    transfer = None if half.coarse is None else Transfer(half.restricts)
    if transfer is not None and half.residual is not None:
        tape = signature(half.operands).tape(half.residual)
        norm = half.norm and half.norm.kind
        transfer = Transfer(half.restricts, tape, _numbers(half), norm)
    own = signature(half.stages[0])
    norms = [None] * len(half.colours)
    work = work_of(own.tape(half.point), own, half.stages, norms, half.wraps, half.pitch)
    margin = half.margin if half.margin is None or half.margin <= MOST_MARGIN else None
    work = replace(work, colours=tuple(half.colours), from_zero=half.from_zero, margin=margin)
    if half.inverse is not None and margin is not None:
        coefficients = signature(half.stages[0][INVERSE:])
        made = replace(coefficients, arguments=coefficients.arguments[1:])  # it takes no field
        work = replace(work, inverse=made.tape(half.inverse))
    last = replace(work, transfer=transfer)
    if axes == 2 and half.colours:
        yield last
        return
    if half.restricts:  # without sweeps, whose result it looks at
        last = replace(last, varying=(), norms=(), colours=())
    if axes == 2:
        yield last
        return
    first = half.region[0][0]
    parts = [last]
    if half.restricts and half.colours:
        parts = [work, replace(last, from_zero=False)]
    for part in parts:
        yield replace(part, odd=(first - cycle_source_3d.reach(part)[0]) % 2 == 1)


def _numbers(half: CycleLeg) -> tuple[int, ...]:
    """For each operand of the residual, the number of the argument of a sweep that it is.

    Both begin with b and end with the coefficients; a sweep has its weight between them.
    """
    _, *coefficients = half.operands
    last = len(half.stages[0])
    return (1, *range(last - len(coefficients) + 1, last + 1))


class Ready(NamedTuple):
    """A pass that can be queued: its kernel, its launch, and what it takes after the sweeps'."""

    kernel: PassKernel
    queue: Compiled
    launch: Launch
    more: tuple[Any, ...]


class CyclePasses:
    """Half a cycle of multigrid on a device."""

    def __init__(self, backend: Any, half: CycleLeg, gated: bool):
        works = list(works_of(half, backend.precision, gated))
        self._passes = [self._ready(backend, half, work) for work in works]
        self._registers = [] if half.norm is None else [half.norm.register]
        convert = backend.dtype.type
        self._stages = [
            [convert(a) if isinstance(a, float) else a for a in stage] for stage in half.stages
        ]
        points = math.prod(high - low for low, high in half.region)
        # The passes read and write the field; one coarse array is read or written, too.
        arrays = sum(
            work.signature.arrays_touched(work.tape) - work.from_zero - (work.sweeps == 0)
            for work in works
        )
        coarse = 0 if half.coarse is None else math.prod(half.coarse_shape)
        self._work = points * len(half.colours), points * arrays + coarse

    @staticmethod
    def _ready(backend: Any, half: CycleLeg, work: Pass) -> Ready:
        room = cycle_source_3d if len(half.shape) == 3 else None
        kernel = PassKernel(work, backend.limits, shapes_of(work), room)
        covered, more = half.region, ()
        if work.transfer is not None:
            extents = half.coarse_shape
            numbers = (*extents, half.coarse.shape[-1])
            more = (half.coarse, *half.weights, *[backend.integer(number) for number in numbers])
            if work.restricts:
                # Coarse points may lie one beyond the last unknown.
                covered = tuple(
                    (low, max(high, 2 * extent - 3))
                    for (low, high), extent in zip(half.region, extents, strict=True)
                )
        if len(half.shape) == 3:  # tiles begin at even rows
            rows = covered[1][0] // 2 * 2, covered[1][1]
            covered = (covered[0], rows, covered[2])
        launch, pieces = kernel.launch(covered)
        bounds = [bound for pair in (*half.region, *half.region) for bound in pair]
        launch = replace(launch, bounds=(*bounds, *pieces, *half.shape, half.pitch))
        return Ready(kernel, backend.c_kernel(kernel.source, kernel.bytes_shared), launch, more)

    def __call__(self, new: Any, u: Any) -> tuple[int, int]:
        """Queue it; how many points it updates, and how many array elements it moves."""
        for kernel, queue, launch, more in self._passes:
            # A pass without sweeps is the last one: it looks at the result.
            work = kernel.work
            field = new if work.from_zero or not work.sweeps else u
            registers = self._registers if work.transfer and work.transfer.norm else ()
            queue(launch, (*kernel.operands(new, field, self._stages, registers), *more))
        return self._work
