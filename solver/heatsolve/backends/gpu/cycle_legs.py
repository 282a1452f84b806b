"""A leg, one half of a multigrid cycle on a level, on a GPU: one kernel, in 3D one or two.

In 3D coloured sweeps are made in place. A block owns a tile of columns along z and goes up the
planes; a thread owns two rows of the tile, of sixteen bytes each where possible, the size of one
access to shared memory. Points of one colour have neighbours of the other colour only, so a sweep
needs no second copy of the field: as plane z arrives, sweep 1 updates plane z - 1, sweep 2 plane
z - 2, and so on, each in place. A thread keeps its own points of all these planes in registers.
Other threads read the newest plane from a ring of planes in shared memory; one step later they read
the colour that a sweep has updated. So a warp waits once for each step, and only for the warps
beside it. The updated points are known at compile time, because tiles begin at even columns and
rows. The outermost points of a tile, one layer for each sweep, are wrong; the tile beside it
computes them, as in `fused_kernel`.

A leg may begin with the interpolation of a correction. The residual and its restriction, which
widens a tile's halo by three, are a second kernel, without sweeps; it may add the residual's norm,
too. The kernel of sweeps moves 24 bytes a point, the second kernel 16. With two sweeps, one of each
colour, a single kernel would need a halo of 6 and 4 points around a tile of 64 x 32, and so would
do 1.7 times the work: 2.1 ms instead of 1.9 (512 cubed, H200).

Grids of fewer points have the legs of `small_legs`.

In 2D a leg is one kernel of `fused_kernel`. Before the correction it ends with the residual, as one
more level after the last sweep, and restricts it; after the correction it begins with the
interpolation. So neither the residual nor the correction goes to memory. A lane holds the columns
2q and 2q + 1 of the coarse column q.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from heatsolve.backends import CycleLeg, Region
from heatsolve.backends.gpu.device import Limits
from heatsolve.backends.gpu.fused_kernel import (
    BARRIER,
    INVERSE,
    FusedSweeps,
    Reads,
    Shift,
    Tiles,
    assembled,
    layout_3d,
    rounded_up,
)
from heatsolve.backends.gpu.fused_sweeps import (
    LARGEST,
    STRIPS,
    FusedKernel,
    affordable,
    fitting_shape,
    planes_of_leg,
    reads_neighbours,
    work_of,
)
from heatsolve.backends.gpu.launch import Compiled, Launch
from heatsolve.backends.gpu.small_legs import loading_all, makes_small_leg, tile_of
from heatsolve.backends.gpu.small_legs import source as small_source
from heatsolve.stencil.trace import Signature, describe

if TYPE_CHECKING:
    from heatsolve.backends.gpu.backend import DeviceBackend


@dataclass(frozen=True)
class Shape:
    """The shape of a kernel's blocks, tuned for a device."""

    warps: int = 16
    """Warps of a block, one below the other along y, each with two rows."""
    ahead: int = 3
    """Planes that are being loaded ahead."""

    def right(self, work: FusedSweeps) -> tuple[int, int]:
        """Rows and columns of a tile whose results are right."""
        return 2 * self.warps - sum(halo(work, 2)), width(work) - sum(halo(work, columns(work)))

    def tiles(self, work: FusedSweeps, rows: tuple[int, int], across: tuple[int, int]) -> Tiles:
        """The tiles that cover the rows, and across the columns, from the first to the second
        number; the first tile is placed so that its loads begin at a sector."""
        (down, beside), (left, _) = self.right(work), halo(work, columns(work))
        first = (across[0] - left) // (2 * columns(work)) * (2 * columns(work)) + left
        return -(-(rows[1] - rows[0]) // down), -(-(across[1] - first) // beside)

    def more_planes(self, work: FusedSweeps) -> int:
        """The planes that a block takes time for in addition to its piece's own."""
        return sum(reach(work)) + work.restricts + STARTS[work.bytes]

    def planes(self, work: FusedSweeps) -> tuple[int, int]:
        """Planes in shared memory of the field, and of the array that is fetched with it."""
        beside = 0 if work.from_zero else 1 if work.corrects else 2
        return beside and self.ahead + beside, self.ahead + 1

    def bytes_shared(self, work: FusedSweeps) -> int:
        """Shared memory of a block."""
        tile = 2 * self.warps * width(work) * work.bytes
        return tile * self.planes_in_all(work) + BARRIER * self.warps

    def planes_in_all(self, work: FusedSweeps) -> int:
        """All planes in shared memory, with the planes that sweeps leave for each other."""
        left_over = 1 if work.restricts else work.sweeps - 1 + work.corrects
        return left_over + sum(self.planes(work))


def columns(work: FusedSweeps) -> int:
    """Columns of a thread: sixteen bytes, or as many as rows are aligned to, at least a pair."""
    return min(16 // work.bytes, max(work.aligned, 2))


def width(work: FusedSweeps) -> int:
    """Columns of a tile."""
    return 32 * columns(work)


def reach(work: FusedSweeps) -> tuple[int, int]:
    """Points below and above a piece of the result on which the piece depends.

    A coarse point q depends on the points 2q - 2 ... 2q + 1, a residual on its neighbours.
    """
    return (3, 2) if work.restricts else (work.sweeps, work.sweeps)


def halo(work: FusedSweeps, own: int) -> tuple[int, int]:
    """Points at both ends of a tile's axis that its block computes wrongly, and discards.

    Each number is a multiple of `own`, a thread's points along the axis.
    """
    low, high = (rounded_up(points, own) for points in reach(work))
    return low, high


FIELD: dict[Shift, str] = {
    (0, 0, 0): "u[t + 1][r][k]",
    (-1, 0, 0): "u[t + 2][r][k]",
    (1, 0, 0): "u[t][r][k]",
    (0, -1, 0): "below",
    (0, 1, 0): "above",
    (0, 0, -1): "left",
    (0, 0, 1): "right",
}
"""The field at a point and at its six neighbours: no other values are held."""


@cache
def source(work: FusedSweeps, shape: Shape) -> str:
    """CUDA C of the kernel `sweeps`; cached, because each level of a hierarchy asks for it."""
    along = fetched_along(work)
    name, tape, numbers = "POINT", work.tape, tuple(work.own)
    if work.restricts:
        assert work.residual is not None
        name, tape, numbers = "RESIDUAL", work.residual, (0, *work.residual_operands)
    reads = Reads(work, tape, numbers, layout_3d(FIELD, along))
    before, after = reach(work)
    low, high = halo(work, 2)
    left, right = halo(work, columns(work))
    defines = {
        "T": work.sweeps, "LEVELS": max(work.sweeps, 1),
        "WARPS": shape.warps, "C": columns(work), "R": 2, "X": width(work), "Y": 2 * shape.warps,
        "TILE": 2 * shape.warps * width(work), "AHEAD": shape.ahead,
        # Where rows are not aligned, a pair is loaded and stored by single elements.
        "GROUP": columns(work) if work.aligned > 1 else 1, "SECTOR": 2 * columns(work),
        "MARGIN": work.margin or 0, "RING": shape.planes(work)[0],
        "PLANES": shape.planes_in_all(work),
        "LOW": low, "HIGH": high, "LEFT": left, "RIGHT": right,
        "BEFORE": before, "AFTER": after, "ODD": work.odd, "WRAPS_I": work.wraps[0],
        "WRAPS_J": work.wraps[1], "WRAPS_K": work.wraps[2],
        "ENDS_APART": work.sweeps >= MANY_SWEEPS,
    }  # fmt: skip
    pieces = {
        "PREPARE": [*work.numbers(), *reads.lines], **reads.pieces(name), "ALONG": f"a{along}",
        "COLOURS": ", ".join(map(str, work.colours)),
        "ROW": ", ".join(f"u[T][r][{k}]" for k in range(columns(work))),
    }  # fmt: skip
    return assembled("cycle_leg_3d.cuh", work, defines, pieces)


def fetched_along(work: FusedSweeps) -> int:
    """The number of the array whose planes are fetched with the field: b; 0 if there is none."""
    arguments = work.signature.arguments
    result = [
        number
        for number, subscript in work.tape.loads()
        if number and not any(arguments[number]) and not any(place.shift for place in subscript)
    ]
    return min(result, default=0)


SHAPES_3D = [Shape(warps, ahead) for warps in (16, 14, 12, 10, 8, 6) for ahead in (3, 2)]
"""Shapes in 3D. Planes loaded ahead are given up before warps: fewer warps cost more in repeated
work than fewer planes cost in waiting."""
COMPARED = 3
"""The shapes that are compared, the largest that fit: smaller ones do too much twice."""
BESIDES = 10
"""A plane takes a block a time that grows with its warps and these: the numbers of this model, here
and in `planes_of_leg`, were fitted to legs over 128 to 512 cubed, and over slabs, on an H100. The
shapes that it chooses are on the mean 2 % slower than the best of all (10 % at most), in double
precision by a tenth faster than one shape for all."""
STARTS = {8: 10, 4: 2}
"""Planes, in time, before a block's first plane arrives, by the bytes of an element: in single
precision a plane has twice the columns."""
MANY_SWEEPS, ROOMY, CROWDED = 4, 12, 1.3
"""From this number of sweeps on, more than 12 warps leave a thread too few registers: a plane then
takes longer by this factor. Blocks at the ends of the slowest axis, but at no side, then have a
specialization of the template: an ascent on 529 cubed takes 2.13 ms instead of 2.44, with padded
rows 1.72 instead of 1.82 (H200). With fewer sweeps kernels gain nothing by it, and take up to a
twentieth longer on 265 cubed."""
MOST_SWEEPS = 6
"""The most sweeps of a leg, of one colour each: more need too many registers."""
MOST_WHOLE = 2
"""The most arrays that vary along all axes: b, and the inverse of the diagonal."""
MOST_MARGIN = 2
"""The most layers beside the walls that belong to the edge, which a piece of EDGE_ROWS holds."""
FEWEST_POINTS = {2: 250_000, 3: 700_000}
"""Points of a grid below which these kernels are slower than `small_legs`, by dimension.

There are then too few blocks to hide the latency of a row or a plane, and the long code of a fused
kernel comes from memory again for each launch. On an H200 a cycle on 80 cubed takes 106 us by these
kernels, 73 by small legs and 81 by single sweeps, on 96 cubed 102 by these kernels and 117 by small
legs.
"""
TIMES_WITHOUT_FIELDS = 2
"""The factor of the fewest points in 2D where blocks do not overlap: a cycle takes 79 us either way
on 724 squared, 50 us by small legs and 62 by these kernels on 512 squared (H200)."""
TIMES_WITH_FIELDS = 10
"""The factor of the fewest points in 2D for coefficients that vary along both axes, which a lane
loads for each row: a step of a cylinder takes 2.6 ms by legs and 2.05 ms by single sweeps on 0.3
million cells, 4.75 and 4.35 ms on 1.3 million, 6.4 and 6.2 ms on 2.2 million (H200)."""


def fewest_points(dimension: int) -> int:
    """The fewest points of a leg of these kernels; 0 where there are no legs."""
    return FEWEST_POINTS.get(dimension, 0)


def padded(shape: Sequence[int]) -> tuple[int, ...]:
    """The extents of an array of a level; where kernels are fused, rows are whole pairs.

    Two elements are then fetched and stored at once: a cycle on 257 cubed takes 0.36 ms instead of
    0.47 in single precision.
    """
    *slower, last = shape
    if not slower or math.prod(shape) < fewest_points(len(shape)):
        return tuple(shape)
    return *slower, last + last % 2


def makes_leg(leg: CycleLeg, precision: str, limits: Limits) -> bool:
    """Whether kernels make a leg of a cycle. Points must read neighbours only, and arrays that vary
    along all axes must have one pitch.

    On small grids, and in three dimensions, sweeps are made in place: colours must alternate, and a
    periodic axis must have an even number of points, or two points of one colour meet at its ends.
    On large grids in three dimensions all arrays but b and the inverse of the diagonal must be
    constant along some axis, because sweeps read them repeatedly. A block must have room for the
    parts of arrays that it holds, and on these grids may do at most half of its work for its
    neighbours.
    """
    if len(leg.shape) not in (2, 3) or max(leg.shape) > LARGEST:
        return False
    if len(leg.colours) > MOST_SWEEPS:
        return False
    shapes = [getattr(operand, "shape", ()) for operand in (*leg.stages[0], *leg.operands)]
    if any(shape[-1] != leg.pitch for shape in shapes if shape and 1 not in shape):
        return False
    small = is_small(leg)
    if small and leg.counted is not None:
        return False
    if small or len(leg.shape) == 3:
        odd = any(w and n % 2 for w, n in zip(leg.wraps, leg.shape, strict=True))
        alternate = all(a * b == -1 for a, b in pairwise(leg.colours))
        if odd or not all(leg.colours) or not alternate:
            return False
    if small:
        (work,) = parts_of(leg, precision, False)
        return makes_small_leg(work, leg.region, limits)
    if len(leg.shape) == 3:
        if leg.norm is not None and not leg.restricts:  # its kernel only stores the result
            return False
    elif leg.coarse is None or not (leg.colours or leg.restricts):
        return False
    works = list(parts_of(leg, precision, False))
    work = works[-1]
    tapes = [tape for tape in (work.tape, work.residual) if tape is not None]
    near = all(reads_neighbours(tape, work.signature) for tape in tapes)
    fits = all(fitting_shape(work, shapes_of(work), limits) for work in works)
    if len(leg.shape) == 2:
        return near and fits and all(affordable(tape, work.signature) > 1 for tape in tapes)
    whole = {n for n, kind in enumerate(work.signature.arguments) if n and not any(kind)}
    along = fetched_along(work)
    return fits and near and along in whole and len(whole) <= MOST_WHOLE


def is_small(leg: CycleLeg) -> bool:
    """Whether a grid is too small for the kernels of this module, so that small legs, or single
    sweeps, are faster."""
    most = fewest_points(len(leg.shape))
    if len(leg.shape) == 2 and leg.counted is None:
        most *= TIMES_WITH_FIELDS if has_fields(leg) else TIMES_WITHOUT_FIELDS
    return math.prod(leg.shape) < most


def has_fields(leg: CycleLeg) -> bool:
    """Whether coefficients vary along all axes, not only beside walls."""
    coefficients = leg.stages[0][INVERSE if leg.inverse else INVERSE - 1 :]
    whole = [1 not in field.shape for field in coefficients if getattr(field, "shape", ())]
    return leg.margin is None and any(whole)


def shapes_of(work: FusedSweeps) -> Sequence[Any]:
    """The shapes that a kernel of a leg may have."""
    if work.signature.dimension == 2:
        return STRIPS
    return [s for s in SHAPES_3D if s.right(work)[0] >= s.warps and s.right(work)[1] > 0]


def fastest_shape(
    work: FusedSweeps, shapes: Sequence[Shape], region: Region, limits: Limits
) -> Shape:
    """The shape that covers a region in 3D in least time, of the largest that fit the device.

    Where a leg has few blocks, blocks of another size may leave fewer multiprocessors idle: with 14
    warps 256 cubed has 130 blocks of two pieces, with 16 it has 110.
    """
    fitting: dict[int, Shape] = {}
    for shape in shapes:
        if fitting_shape(work, [shape], limits):
            fitting.setdefault(shape.warps, shape)

    def time(shape: Shape) -> float:
        tiles, more = math.prod(shape.tiles(work, *region[1:])), shape.more_planes(work)
        planes = region[0][1] - region[0][0], tiles, more
        crowded = work.sweeps >= MANY_SWEEPS and shape.warps > ROOMY
        of_plane = (BESIDES + shape.warps) * (CROWDED if crowded else 1.0)
        return of_plane * planes_of_leg(*planes, limits.processors)[1]

    return min(list(fitting.values())[:COMPARED], key=time)


def parts_of(leg: CycleLeg, precision: str, gated: bool) -> Iterator[FusedSweeps]:
    """Yield, for each kernel of a leg of a cycle in turn, all that the kernel's text depends on."""
    axes = len(leg.shape)

    def signature(arguments: Sequence[Any]) -> Signature:
        described = ((False,) * axes, *[describe(a) for a in arguments])
        return Signature(described, ("array",), (None,), precision, axes, gated)

    own = signature(leg.stages[0])
    norms = [None] * len(leg.colours)
    work = work_of(own.tape(leg.point), own, leg.stages, norms, leg.wraps, leg.pitch)
    margin = leg.margin if leg.margin is None or leg.margin <= MOST_MARGIN else None
    work = replace(
        work, colours=tuple(leg.colours), functions=tuple(leg.functions.items()),
        from_zero=leg.from_zero, margin=margin,
    )  # fmt: skip
    if leg.inverse is not None and margin is not None:
        coefficients = signature(leg.stages[0][INVERSE:])
        made = replace(coefficients, arguments=coefficients.arguments[1:])  # without the field
        work = replace(work, inverse=made.tape(leg.inverse))
    last = work
    if leg.coarse is not None:
        last = replace(work, restricts=leg.restricts, corrects=not leg.restricts)
        if leg.residual is not None:
            tape, norm = signature(leg.operands).tape(leg.residual), leg.norm and leg.norm.kind
            last = replace(last, residual=tape, residual_operands=_numbers(leg), residual_norm=norm)
    small = is_small(leg)
    is_in_one = axes == 2 or small
    if leg.restricts and not (is_in_one and leg.colours):  # its kernel reads the sweeps' result
        last = replace(last, varying=(), norms=(), colours=())
    if is_in_one:
        yield loading_all(last) if small else last
        return
    first = leg.region[0][0]
    parts = [last]
    if leg.restricts and leg.colours:
        parts = [work, replace(last, from_zero=False)]
    for part in parts:
        yield replace(part, odd=(first - reach(part)[0]) % 2 == 1)


def _numbers(leg: CycleLeg) -> tuple[int, ...]:
    """For each operand of the residual, the number of the same array among a sweep's arguments.

    Both lists begin with b and end with the coefficients; a sweep has its weight between them.
    """
    _, *coefficients = leg.operands
    last = len(leg.stages[0])
    return (1, *range(last - len(coefficients) + 1, last + 1))


LegKernels = Callable[[Any, Any], tuple[int, int]]
"""Takes new and u; returns the numbers of points updated and of array elements moved."""


def kernels_of(backend: "DeviceBackend", leg: CycleLeg, gated: bool) -> LegKernels:
    """A call that queues the kernels of a leg on a device."""
    works = list(parts_of(leg, backend.precision, gated))
    kernels = [_ready(backend, leg, work) for work in works]
    convert = backend.dtype.type
    stages = [[convert(a) if isinstance(a, float) else a for a in stage] for stage in leg.stages]
    points = math.prod(high - low for low, high in leg.region)
    # The kernels read and write the field; one coarse array is read or written, too.
    arrays = sum(
        len(work.signature.arrays_moved(work.tape)) - work.from_zero - (work.sweeps == 0)
        for work in works
    )
    coarse = 0 if leg.coarse is None else math.prod(leg.coarse_shape)
    counts = points * len(leg.colours), points * arrays + coarse

    def queue_all(new: Any, u: Any) -> tuple[int, int]:
        for kernel, queue, launch, more in kernels:
            # A kernel without sweeps is the last one: it reads the result.
            work = kernel.work
            field = new if work.from_zero or not work.sweeps else u
            registers = [leg.norm.register] if work.residual_norm else []
            queue(launch, (*kernel.operands(new, field, stages, registers), *more))
        return counts

    return queue_all


def _ready(
    backend: "DeviceBackend", leg: CycleLeg, work: FusedSweeps
) -> tuple[FusedKernel, Compiled, Launch, tuple[Any, ...]]:
    """A kernel, its compiled form, its launch, and its operands after those of the sweeps."""
    text = source if len(leg.shape) == 3 else None
    covered, more = leg.region, ()
    if work.restricts or work.corrects:
        extents = leg.coarse_shape
        numbers = (*extents, leg.coarse.shape[-1])
        more = (leg.coarse, *leg.weights, *[backend.integer(number) for number in numbers])
        if work.restricts:
            # Coarse points may lie one beyond the last unknown.
            covered = tuple(
                (low, max(high, 2 * extent - 3))
                for (low, high), extent in zip(leg.region, extents, strict=True)
            )
    if is_small(leg):
        tile = tile_of(work, leg.region, backend.limits)
        assert tile is not None  # `makes_leg` has found one
        kernel = FusedKernel(work, backend.limits, tile, small_source)
        launch = replace(tile.launch(covered), bounds=(*leg.shape, leg.pitch))
        return kernel, backend.c_kernel(kernel.source, kernel.bytes_shared), launch, more
    shapes = shapes_of(work)
    if len(leg.shape) == 3:  # tiles begin at even rows
        rows = covered[1][0] // 2 * 2, covered[1][1]
        covered = (covered[0], rows, covered[2])
        shape: Any = fastest_shape(work, shapes, covered, backend.limits)
    else:
        shape = fitting_shape(work, shapes, backend.limits)
    kernel = FusedKernel(work, backend.limits, shape, text)
    counted = leg.region[0] if leg.counted is None else leg.counted, *leg.region[1:]
    launch, pieces = kernel.launch(covered, counted)
    bounds = [bound for pair in (*leg.region, *counted) for bound in pair]
    launch = replace(launch, bounds=(*bounds, *pieces, *leg.shape, leg.pitch))
    return kernel, backend.c_kernel(kernel.source, kernel.bytes_shared), launch, more
