"""Launches that a device records once and plays back: graphs, and small sweeps in one kernel.

A kernel takes two microseconds, however few points it has. A barrier of a block takes a tenth of a
microsecond, and a sweep between two barriers about one microsecond, the time of its loads. So small
sweeps that are replayed share a kernel, which goes down a table: each row holds the number of a
point function, its region and its arguments. Independent sweeps (none reads or writes a part that
another one writes), for instance along the walls of a grid, need no barrier between them: each has
its own threads. A kernel with independent sweeps alone has as many blocks as their points fill.
"""

import gc
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from heatsolve.backends.gpu.emit import (
    C_DIALECT,
    REAL_OF,
    body,
    cuda_text,
    extent_names,
    macro,
    places,
)
from heatsolve.backends.gpu.launch import Compiled, Launch
from heatsolve.stencil.dependencies import Dependencies, Part, Place, place_at
from heatsolve.stencil.grid import Region, whole
from heatsolve.stencil.language import INDEX_NAMES
from heatsolve.stencil.trace import INTEGER, Signature, Tape

if TYPE_CHECKING:
    from heatsolve.backends.gpu.backend import DeviceBackend

MOST_POINTS = 1300
"""The most points of a small sweep: with more, one block takes longer than many blocks (H200)."""
MOST_OF_A_BLOCK = 1 << 12
"""The most points of independent sweeps that one block makes beside each other."""
MOST_BESIDE = 1 << 17
"""The most points of a sweep that may share a kernel with independent sweeps."""
MOST_SWEEPS = 150
"""The most sweeps of a kernel."""
WORDS = 74
"""The most words of a row of a kernel's table, which lies in shared memory."""
QUOTIENT_BITS = 44
"""A point's number times the inverse of a row's length, shifted by these bits, is the number of
rows before it: exact for up to MOST_BESIDE points. A division takes ten times as long."""
MOST_IN_32_BITS = (1 << 31) - 1
"""The most elements of an array that indices of 32 bits reach."""
THREADS, WARP = 1024, 32
THREADS_BESIDE = 256
"""Threads of a block that has one sweep only."""


def may_share(signature: Signature, region: Region) -> bool:
    """Whether a sweep may share a kernel; it must not reduce."""
    return points_of(region) <= MOST_BESIDE and all(kind == "array" for kind in signature.outputs)


def points_of(region: Region) -> int:
    return math.prod(high - low for low, high in region)


@dataclass(frozen=True)
class SmallSweep:
    """A sweep that may share a kernel: its function, its region, and the kernel's arguments.

    `extents` in the order of `extent_names`; `operands`: outputs, then arguments. `alone` compiles
    it as a kernel of its own.
    """

    signature: Signature
    tape: Tape
    region: Region
    extents: tuple[int, ...]
    operands: tuple[Any, ...]
    alone: Callable[[], Callable[[], None]]

    @property
    def points(self) -> int:
        return points_of(self.region)

    @property
    def function(self) -> "Function":
        """Its function: with indices of 32 bits where they reach all elements, which is faster."""
        shapes = [getattr(operand, "shape", ()) for operand in self.operands]
        narrow = all(math.prod(shape) <= MOST_IN_32_BITS for shape in shapes)
        signature = replace(self.signature, aligned=False)  # which says nothing of its text
        return signature, self.tape, "int" if narrow else "integer"

    def dependencies(self, address: Callable[[Any], int]) -> Dependencies:
        """The parts of arrays that the sweep writes and reads."""
        count = len(self.signature.outputs)
        arguments = self.operands[count:]

        def place_of(array: Any) -> Place:
            return place_at(address(array), array.dtype.itemsize, tuple(array.shape))

        written = [(place_of(array), self.region) for array in self.operands[:count]]
        read: dict[Part, None] = {}
        for number, subscript in self.tape.loads():
            array = arguments[number]
            if number == 0 and self.signature.wraps:
                read[place_of(array), whole(array.shape)] = None
                continue
            region = tuple(
                [
                    (0, 1) if extent == 1
                    else (place.at(low, arguments), place.at(high - 1, arguments) + 1)
                    for (low, high), place, extent in zip(
                        self.region, subscript, array.shape, strict=True
                    )
                ]
            )  # fmt: skip
            part = place_of(array), region
            if part not in written:
                read[part] = None
        return Dependencies(written, list(read))

    def row(self, address: Callable[[Any], int]) -> list[int]:
        """The sweep's row in the kernel's table, after the number of its function."""
        words = [bound for pair in self.region for bound in pair]
        # Rounded up, so that products with a point's number find quotients: see `QUOTIENT_BITS`.
        words += [-((-1 << QUOTIENT_BITS) // (high - low)) for low, high in self.region[1:]]
        words += self.extents
        for (_, kind), operand in zip(_operands(self.signature), self.operands, strict=True):
            if kind == INTEGER:
                words.append(int(operand))
            elif isinstance(kind, str) and kind != "array":
                words.append(struct.unpack("q", struct.pack("d", operand))[0])
            else:
                words.append(address(operand))
        return words


Function: TypeAlias = tuple[Signature, Tape, str]
"""A function of a kernel: its operands, its operations, and the type of its indices."""


class Group:
    """Independent sweeps: none reads or writes a part that another one writes."""

    def __init__(self, sweep: SmallSweep, dependencies: Dependencies):
        self.sweeps, self.dependencies = [sweep], dependencies

    def add(self, sweep: SmallSweep, dependencies: Dependencies) -> None:
        self.sweeps.append(sweep)
        self.dependencies = self.dependencies.and_of(dependencies)

    def fits_a_block(self, *more: SmallSweep) -> bool:
        """Whether one block makes these sweeps, and some more, as fast as many blocks do."""
        points = [sweep.points for sweep in (*self.sweeps, *more)]
        return max(points) <= MOST_POINTS and sum(points) <= MOST_OF_A_BLOCK


def _operands(signature: Signature) -> list[tuple[str, Any]]:
    """The names and kinds of a kernel's operands: outputs, which are arrays, then arguments."""
    outputs = [(f"o{n}", "array") for n in range(len(signature.outputs))]
    return outputs + [(f"a{n}", kind) for n, kind in enumerate(signature.arguments)]


@cache
def source(functions: tuple[Function, ...], width: int, beside: bool) -> str:
    """CUDA C of the kernel `sweeps` for these point functions, with table rows of `width` words;
    `beside`: for sweeps beside each other, not in turn."""
    threads, head = (THREADS_BESIDE, 2) if beside else (THREADS, 4)
    numbers = range(len(functions))
    row = f"reinterpret_cast<const longlong2*>(row + {head})"
    cases = [f"case {n}: sweep_{n}({row}, n, points, threads); break;" for n in numbers]
    texts = [_function(n, *function) for n, function in enumerate(functions)]
    gated = any(signature.gated for signature, *_ in functions)
    lines = f"#define WIDTH {width}\n#define THREADS {threads}\n#define GATED {int(gated)}\n"
    lines += macro("SWEEP_CASES", cases)
    lines += "typedef long long integer;\ntypedef unsigned long long word;\n"
    kernel = cuda_text("sweeps_beside.cuh" if beside else "small_sweeps.cuh")
    return lines + "".join(texts) + kernel


def _function(number: int, signature: Signature, tape: Tape, index: str) -> str:
    """The C function of a sweep, which reads all its operands from its row of the table."""
    axes, dialect = INDEX_NAMES[: tape.dimension], C_DIALECT.with_indices(index)
    bounds = [f"{end}_{axis}" for axis in axes for end in ("low", "high")]
    inverses = [f"inverse_{axis}" for axis in axes[1:]]
    extents, operands = extent_names(signature), dict(_operands(signature))
    names = [*bounds, *inverses, *extents, *operands]  # in the order of `SmallSweep.row`
    words = {name: f"w{place // 2}.{'xy'[place % 2]}" for place, name in enumerate(names)}
    lines = [f"const longlong2 w{n} = row[{n}];" for n in range(-(-len(words) // 2))]
    lines += [dialect.integer(name, words[name]) for name in (*bounds, *extents)]
    lines += [f"const word {name} = {words[name]};" for name in inverses]
    for name, kind in operands.items():
        if kind == INTEGER:
            lines.append(dialect.integer(name, words[name]))
        elif isinstance(kind, str) and kind != "array":
            real = REAL_OF[signature.precision]
            lines.append(f"const {real} {name} = ({real})__longlong_as_double({words[name]});")
        else:
            real = REAL_OF[signature.real_of(name)]
            lines.append(f"{real}* const {name} = reinterpret_cast<{real}*>({words[name]});")
    indices, rest = [], "n"
    for axis in reversed(axes[1:]):
        indices.append(f"const unsigned q_{axis} = {rest} * inverse_{axis} >> {QUOTIENT_BITS};")
        across = f"unsigned(high_{axis} - low_{axis})"
        indices.append(dialect.integer(axis, f"low_{axis} + {rest} - q_{axis} * {across}"))
        rest = f"q_{axis}"
    indices.append(dialect.integer(axes[0], f"low_{axes[0]} + {rest}"))
    inside = [*indices, *places(signature, dialect), *body(tape, signature, dialect, 0, 1)]
    return (
        f"__device__ void sweep_{number}(const longlong2* row, unsigned n, unsigned points, "
        "unsigned threads) {\n    "
        + "\n    ".join(lines)
        + "\n    for (; n < points; n += threads) {\n        "
        + "\n        ".join(inside)
        + "\n    }\n}\n"
    )


def together(
    backend: "DeviceBackend", sweeps: Sequence[SmallSweep]
) -> Iterator[Callable[[], None]]:
    """Yield compiled calls that queue these sweeps, in as few kernels as possible."""
    most = min(MOST_SWEEPS, backend.limits.shared_of_block // (8 * WORDS))
    groups = grouped(sweeps, backend.address, most)
    for in_one_block, some in groupby(groups, Group.fits_a_block):
        if not in_one_block:
            yield from (_in_turn(backend, [group.sweeps]) for group in some)
            continue
        chain: list[Sequence[SmallSweep]] = []
        for group in some:
            if sum(map(len, chain)) + len(group.sweeps) > most:
                yield _in_turn(backend, chain)
                chain = []
            chain.append(group.sweeps)
        yield _in_turn(backend, chain)


def grouped(sweeps: Sequence[SmallSweep], address: Callable[[Any], int], most: int) -> list[Group]:
    """Groups of up to `most` sweeps: each joins the first group after all that it depends on.

    A sweep skips a group that would no longer fit into a block, unless the group is the last one.
    """
    groups: list[Group] = []
    for sweep in sweeps:
        dependencies = sweep.dependencies(address)
        first = len(groups)
        while first > 0 and not groups[first - 1].dependencies.depends_on(dependencies):
            first -= 1
        for group in groups[first:]:
            keeps = group is groups[-1] or group.fits_a_block() == group.fits_a_block(sweep)
            if keeps and len(group.sweeps) < most:
                group.add(sweep, dependencies)
                break
        else:
            groups.append(Group(sweep, dependencies))
    return groups


def _in_turn(
    backend: "DeviceBackend", groups: Sequence[Sequence[SmallSweep]]
) -> Callable[[], None]:
    """A call that queues these groups in turn, in one block; a single group takes many blocks."""
    sweeps = [sweep for group in groups for sweep in group]
    if len(sweeps) == 1:
        return sweeps[0].alone()
    if len(groups) == 1:
        return _beside(backend, sweeps)
    order = []
    for number, group in enumerate(groups):
        begins = 0
        for place, sweep in enumerate(group):
            order.append([int(number > 0 and place == 0), begins % THREADS, sweep.points])
            begins += -(-sweep.points // WARP) * WARP
    functions, table = _table(backend, sweeps, order)
    few_sizes = 1 << (8 * table.size - 1).bit_length()  # each size is a kernel of its own
    bytes_shared = min(few_sizes, backend.limits.shared_of_block)
    kernel = backend.c_kernel(source(functions, table.shape[1], False), bytes_shared)
    args = backend.stored(table.reshape(-1)), backend.integer(len(sweeps))
    return partial(_queue, kernel, Launch((1, 1, 1), (THREADS, 1, 1), ()), args, sweeps)


def _beside(backend: "DeviceBackend", sweeps: Sequence[SmallSweep]) -> Callable[[], None]:
    """A call that queues independent sweeps, each in blocks of its own."""
    functions, table = _table(backend, sweeps, [[sweep.points] for sweep in sweeps])
    counts = [-(-sweep.points // THREADS_BESIDE) for sweep in sweeps]
    owners = np.array([(row, n) for row, count in enumerate(counts) for n in range(count)])
    kernel = backend.c_kernel(source(functions, table.shape[1], True), 0)
    launch = Launch((len(owners), 1, 1), (THREADS_BESIDE, 1, 1), ())
    args = backend.stored(table.reshape(-1)), backend.stored(owners.reshape(-1))
    return partial(_queue, kernel, launch, args, sweeps)


def _table(
    backend: "DeviceBackend", sweeps: Sequence[SmallSweep], order: Sequence[Sequence[int]]
) -> tuple[tuple[Function, ...], np.ndarray]:
    """The point functions of sweeps; and for each sweep a row with the number of its function, the
    numbers of its `order`, and its operands."""
    called = [sweep.function for sweep in sweeps]
    functions = tuple(dict.fromkeys(called))
    number_of = {function: number for number, function in enumerate(functions)}
    rows = [
        [number_of[function], *numbers, *sweep.row(backend.address)]
        for function, sweep, numbers in zip(called, sweeps, order, strict=True)
    ]
    width = max(map(len, rows))
    table = np.zeros((len(rows), width + width % 2), np.int64)  # functions read pairs of words
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    return functions, table


def _queue(
    kernel: Compiled, launch: Launch, args: tuple[Any, ...], sweeps: Sequence[SmallSweep]
) -> None:
    """Queue a kernel; `sweeps` keeps the arrays alive whose addresses the table holds."""
    kernel(launch, args)


# ---- graphs --------------------------------------------------------------------------------------

RecordedLaunch: TypeAlias = Callable[[], None] | SmallSweep
"""A call that queues a kernel, or a sweep that may share a kernel with others."""


class Replay:
    """Work that a device replays from a graph: about a microsecond for each kernel.

    Its kernels are recorded, small sweeps are joined, and all are compiled before they are
    captured; the host does this once, before the first call. Kernels with the gate differ from
    kernels without it; each kind is recorded when it is first needed. Work that `continues` always
    has a gate of its own.
    """

    def __init__(
        self,
        backend: "DeviceBackend",
        work: Callable[[], None],
        gated: bool,
        continues: bool = False,
    ):
        self._backend, self._work, self._continues = backend, work, continues
        self._graphs: dict[bool, tuple[Callable[[], None], int, int, int]] = {}
        self._kept: list[Callable[[], None]] = []  # they hold the tables that kernels read
        self._prepare(gated)

    def _prepare(self, gated: bool) -> None:
        if self._continues:
            with self._backend.continuing():
                self._capture(False)
            return
        backend, before = self._backend, self._backend.gated
        backend.gated = gated
        try:
            self._capture(gated)
        finally:
            backend.gated = before

    def _capture(self, gated: bool) -> None:
        backend = self._backend
        with backend.compiling_at_once():
            launches, points, moved = backend.record(self._work)
            queued = list(joined(backend, launches))
        self._kept += queued
        before_capture = backend.launches
        with uncollected():
            play = backend.captured(queued)
        backend.launches = before_capture
        self._graphs[gated] = play, points, moved, len(queued)

    def __call__(self) -> None:
        backend = self._backend
        gated = backend.gated and not self._continues
        if gated not in self._graphs:
            self._prepare(gated)
        play, *work = self._graphs[gated]
        play()
        backend.count(*work)


@contextmanager
def uncollected() -> Iterator[None]:
    """A context in which Python collects no garbage: a graph in it, of an earlier run in the same
    process, would be destroyed, and CUDA would give up the capture that is under way."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def joined(
    backend: "DeviceBackend", launches: Iterable[RecordedLaunch]
) -> Iterator[Callable[[], None]]:
    """Yield calls that queue these launches; consecutive small sweeps share a kernel."""
    waiting: list[SmallSweep] = []

    def waited_for() -> Iterator[Callable[[], None]]:
        yield from together(backend, waiting)
        waiting.clear()

    for launch in launches:
        if isinstance(launch, SmallSweep):
            waiting.append(launch)
        else:
            yield from waited_for()
            yield launch
    yield from waited_for()
