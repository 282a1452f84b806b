"""The common part of both GPU backends: sweeps of arrays of any shapes, messages, the gate."""

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any

import numpy as np

from heatsolve.backends import (
    MOST_RESIDENT,
    Accumulator,
    ArrayLibrary,
    Backend,
    CycleLeg,
    Message,
    Region,
    Signature,
    SweepSequence,
    converted,
    demand_apart,
    digest,
)
from heatsolve.backends import exact_sums as sums
from heatsolve.backends.compilation import compiling, load_or_make, load_or_make_all, read
from heatsolve.backends.gpu.cycle_legs import (
    LegKernels,
    fewest_points,
    is_small,
    kernels_of,
    makes_leg,
    padded,
)
from heatsolve.backends.gpu.device import Limits
from heatsolve.backends.gpu.emit import GROUPS, OPTIONS, check_source, kernel_source
from heatsolve.backends.gpu.fused_kernel import FusedSweeps
from heatsolve.backends.gpu.fused_sweeps import (
    LARGEST,
    FusedKernel,
    deepest,
    reads_neighbours,
    shape_for,
    work_of,
)
from heatsolve.backends.gpu.graphs import MOST_BESIDE, Replay, SmallSweep, may_share, points_of
from heatsolve.backends.gpu.launch import (
    FEW_POINTS,
    SPREAD,
    Compiled,
    Launch,
    Shape,
    arrays_of,
    begin_with_lines,
    begin_with_pairs,
    launches,
    layout,
    may_pair,
    shape_of,
)
from heatsolve.backends.gpu.links import Link, connect_nccl
from heatsolve.backends.gpu.peers import connect_peers
from heatsolve.backends.gpu.resident import (
    FEWEST_SWEEPS,
    LARGEST_CLUSTER,
    Cluster,
    cluster_of,
    first_norm,
    launch_of,
    source_of,
    sweeps_at_once,
)
from heatsolve.stencil.grid import slices, whole
from heatsolve.stencil.language import Point
from heatsolve.stencil.trace import Tape

BEYOND = MOST_RESIDENT
"""The most checks that a queue's last fused sweeps may add beyond the checks asked for."""
MOST_WITH_NORMS = 7
"""The most sweeps that are fused where more than two have norms, which need registers, too."""
GATE_MARGIN = 1e-6
"""The gate closes this much (relative) above the threshold of a sum; the host decides exactly."""

MOST_AT_ONCE = 1 << 23
"""Bytes of the largest copy to the host that is made at once; of a piece of a larger copy, which
has one row or plane at least."""
LARGEST_PLANE = 1 << 26
"""Bytes of the largest plane that is a piece."""
PIECES = 4
"""Pieces of pinned memory, and threads, for a large copy."""
MOST_POSTED = 64
"""The most lists of registers whose memory is kept for `posted_values`."""
HEAD, CLEARED = 4, 3
"""Integers of a device's state before the rows of the ledger: its gates; and those of them that are
cleared when a ledger is posted, all but the gate of work that continues behind it."""
NUMBERS, LETTERS = 64, 8
"""The most numbers that a kernel reads from pinned memory, and the pieces of such memory, which
take turns: a copy keeps the device waiting for 10 us, and its host for longer."""
ONE_BLOCK = Launch((1, 1, 1), (GROUPS * sums.WIDTH, 1, 1), ())


def queued(method: Callable[..., None]) -> Callable[..., None]:
    """A method of a device whose work is queued, or recorded while sweeps are recorded."""

    @wraps(method)
    def queue(backend: "DeviceBackend", *args: Any) -> None:
        backend.enqueue(partial(method, backend, *args))

    return queue


@dataclass(frozen=True)
class Posted:
    """Registers at some addresses that are merged and posted: the call that queues this, and the
    pinned memory with a row for each register; for each process, if no kernel exchanges them."""

    post: Callable[[], None]
    readback: np.ndarray


@dataclass
class Later:
    """A kernel that is compiled together with others, before its first launch."""

    file: str
    make: Callable[[], bytes]
    load: Callable[[bytes], Compiled]
    alone: bool
    queue: Compiled | None = None

    def __call__(self, launch: Launch, args: tuple[Any, ...]) -> None:
        if self.queue is None:  # an error came between
            self.queue = self.load(made_now(self.file, self.make))
        self.queue(launch, args)


def made_now(file: str, make: Callable[[], bytes]) -> bytes:
    """The code of a file that is not in the cache."""
    with compiling():
        return load_or_make(file, make)


class DeviceBackend(Backend):
    """A GPU that queues its sweeps.

    A check is a small kernel: it merges the copies of a register into the next row of the ledger,
    clears them, counts the row, and closes the gate where the value meets the threshold. `_gate`
    holds two integers: whether the gate is closed, and the number of checks. Behind them lies
    whether there was a `confirm`, then `_ahead`, the gate of work that continues behind a ledger.
    """

    lookahead = 64
    on_device = True
    most_wrapped = 1 << 19
    vectors = False
    """Whether generated kernels may load and store pairs of elements."""
    limits: Limits
    """The limits of the device."""
    _later: list[Later] | None = None
    """The kernels that wait for the end of `compiling_at_once`; None outside of it."""
    link: Link | None = None
    """The link between the devices of all processes, if one works."""
    _gathering: Replay | None = None
    """A recorded gathering of the rows of all processes, by the present link."""
    _peers: Any
    """The argument with which kernels merge the registers of all processes: the link's table of
    peers, or 0."""
    _gate: Any
    _ahead: Any

    @abstractmethod
    def integers(self, count: int) -> Any:
        """A device array of 64-bit zeros."""

    @abstractmethod
    def stored(self, values: np.ndarray) -> Any:
        """A device array of these 64-bit integers."""

    @abstractmethod
    def address(self, array: Any) -> int:
        """The address of an array in the memory of the device."""

    @abstractmethod
    def zero(self, array: Any) -> None:
        """Queue the zeroing of an array, whether or not launches are being recorded."""

    def _queue_check(self, register: Any, copies: int, kind: str, limit: float) -> None:
        """Queue the kernel of a check."""
        numbers = self.integer(copies), self.integer(kind == "sum"), np.float64(limit)
        gates = self._gate, self._rows, self._ahead, self.integer(self._continues_at)
        self._of_checks("check")(ONE_BLOCK, (register, *numbers, *gates, self._peers))

    def _queue_checks(self, first: Any, count: int, kind: str, limit: float) -> None:
        """Queue the kernels that check a series of registers, which a cluster has filled."""
        copies, gate = self.integer(LARGEST_CLUSTER), self._gate
        blocks = replace(ONE_BLOCK, grid=(count, 1, 1))
        self._of_checks("merge_series")(blocks, (first, copies, gate, self._rows))
        numbers = self.integer(count), self.integer(kind == "sum"), np.float64(limit)
        self._of_checks("close_gate")(ONE_BLOCK, (*numbers, gate, self._rows))

    def _of_checks(self, name: str) -> Compiled:
        """A kernel of `check.cuh`."""
        if name not in self._check_kernels:
            self._check_kernels[name] = self.compiled(check_source(), name)
        return self._check_kernels[name]

    @abstractmethod
    def pinned(self, shape: Sequence[int], dtype: Any = None) -> np.ndarray:
        """An array in pinned memory of the host, which the device copies to and from by itself; of
        the backend's precision unless another type is named."""

    def mapped(self, host: np.ndarray) -> Any:
        """The argument with which a kernel writes to pinned memory, which has the same address on
        the device: a copy of some numbers keeps the device waiting for 10 us."""
        return self.integer(host.ctypes.data)

    @abstractmethod
    def mark(self) -> Callable[[], None]:
        """Mark a place in the queue; return a call that waits until the device has reached it."""

    @abstractmethod
    def queue_to_host(self, host: np.ndarray, array: Any) -> None:
        """Queue a copy of an array into pinned memory."""

    @abstractmethod
    def queue_to_device(self, array: Any, host: np.ndarray) -> None:
        """Queue a copy of pinned memory into an array."""

    def to_host(self, array: Any) -> np.ndarray:
        if array.nbytes > MOST_AT_ONCE and len(array.shape) > 1:
            return self._brought(array, slices(whole(array.shape)))
        host = np.empty(array.shape, array.dtype)
        self.queue_to_host(host, array)
        self.sync()
        return host

    def take(self, array: Any, region: Region) -> np.ndarray:
        if array.nbytes > MOST_AT_ONCE and len(array.shape) > 1:
            return self._brought(array, slices(region))
        return super().take(array, region)

    def _brought(self, array: Any, part: tuple[slice, ...]) -> np.ndarray:
        """A part of a large array, by way of pinned memory: the device fills one piece of it, of
        whole rows or planes, while threads empty others."""
        (first, stop), shape = (part[0].start, part[0].stop), tuple(array.shape[1:])
        extents = [stop - first, *[side.stop - side.start for side in part[1:]]]
        result, size = np.empty(extents, array.dtype), math.prod(shape)
        if size * array.dtype.itemsize > LARGEST_PLANE and len(shape) > 1:
            for row in range(first, stop):
                result[row - first] = self._brought(self.part(array, shape, row * size), part[1:])
            return result
        rows = max(1, MOST_AT_ONCE // (size * array.dtype.itemsize))
        count = min(PIECES, -(-(stop - first) // rows))
        pieces = [self.pinned((rows, *shape), array.dtype) for _ in range(count)]
        emptied: list[Future[None] | None] = [None] * PIECES
        coming: deque[tuple[Callable[[], None], int, int]] = deque()
        with ThreadPoolExecutor(PIECES) as pool:

            def take() -> None:
                wait, number, row = coming.popleft()
                wait()
                own = result[row - first : row - first + rows]
                arrived = pieces[number][: len(own)][(slice(None), *part[1:])]
                emptied[number] = pool.submit(np.copyto, own, arrived)

            for turn, row in enumerate(range(first, stop, rows)):
                number, count = turn % len(pieces), min(rows, stop - row)
                if (before := emptied[number]) is not None:
                    before.result()
                some = self.part(array, (count, *shape), row * size)
                self.queue_to_host(pieces[number][:count], some)
                coming.append((self.mark(), number, row))
                if len(coming) > 1:
                    take()
            take()
        return result

    def compiled(self, source: str, name: str, bytes_shared: int = 0) -> Compiled:
        """A kernel of CUDA C, by NVRTC or from the cache; `bytes_shared`: shared memory of a
        block."""
        version, compile_c = self._nvrtc()
        options = (*OPTIONS, f"--gpu-architecture={self.limits.architecture}")
        key = digest(source, options, version)
        make = partial(compile_c, source, options)
        return self._made(f"heatsolve_{name}_{key}.cubin", make, name, bytes_shared)

    def _made(
        self,
        file: str,
        make: Callable[[], bytes],
        name: str,
        bytes_shared: int,
        alone: bool = False,
    ) -> Compiled:
        """The kernel `name` in the code of a file, made now or at the end of `compiling_at_once`.

        `alone`: whether no two threads can use the compiler at once.
        """

        def load(code: bytes) -> Compiled:
            return self._loaded(code, name, bytes_shared)

        code = read(file)
        if code is None and self._later is not None:
            self._later.append(Later(file, make, load, alone))
            return self._later[-1]
        return load(made_now(file, make) if code is None else code)

    @contextmanager
    def compiling_at_once(self) -> Iterator[None]:
        """At the end of this context the kernels met in it are compiled, several at a time.

        Work in it is recorded: a launch in it would compile its kernel at once.
        """
        later: list[Later] = []
        before, self._later = self._later, later
        try:
            yield
        finally:
            self._later = before
        if not later:
            return
        alone, others = (
            {kernel.file: kernel.make for kernel in later if kernel.alone == which}
            for which in (True, False)
        )
        with compiling():
            made = load_or_make_all(others, alone)
        for kernel in later:
            kernel.queue = kernel.load(made[kernel.file])

    @abstractmethod
    def _nvrtc(self) -> tuple[Any, Callable[[str, tuple[str, ...]], bytes]]:
        """The version of NVRTC, and a function that compiles a source with some options.

        It returns machine code; for pretended limits PTX, which any newer device compiles.
        """

    @abstractmethod
    def _loaded(self, code: bytes, name: str, bytes_shared: int) -> Compiled:
        """The kernel of this name in compiled code."""

    def _kernel(self, name: str, signature: Signature, tape: Tape) -> Compiled:
        """The compiled kernel of a point function.

        It takes the gate, bounds, extents in the order of `emit.extent_names`, and operands.
        """
        return self.compiled(kernel_source(name, signature, tape), "sweep")

    def _compile(self, point: Point, signature: Signature, tape: Tape) -> Any:
        arrays = arrays_of(signature)
        kernels: dict[Any, tuple[Compiled, Shape]] = {}
        known: dict[Any, tuple[Signature, tuple[int, ...], bool]] = {}

        def kernel_of(here: Signature, pairs: bool, few: bool) -> tuple[Compiled, Shape]:
            key = here.apart, here.aligned, pairs, few
            if key not in kernels:
                here = replace(here, pairs=pairs, few=few)
                kernels[key] = self._kernel(point.__name__, here, tape), shape_of(here, tape)
            return kernels[key]

        def run(region: Region, targets: Sequence[Any], arguments: Sequence[Any]) -> None:
            operands = (*targets, *arguments)
            args = [operands[array.place] for array in arrays]
            shapes = tuple([array.shape for array in args])
            key = (shapes, region) if signature.wraps else shapes
            if key not in known:
                none = (), (1,) * (len(region) - 1)  # for a sum of numbers alone
                apart, extents = layout(arrays, shapes) if arrays else none
                aligned = begin_with_lines(extents, len(region))
                here = replace(signature, apart=apart, aligned=aligned)
                around = zip(region, signature.wraps, strict=False)
                extents += tuple([high - low for (low, high), wraps in around if wraps])
                extents = tuple(map(self.integer, extents))
                known[key] = here, extents, self.vectors and may_pair(tape, here, extents)
            here, extents, pairs = known[key]

            def ready() -> Callable[[], None]:
                few = points_of(region) <= FEW_POINTS and not signature.reduces
                may = pairs and not few
                addresses = [self.address(array) for array in args] if may else []
                paired = may and begin_with_pairs(region, addresses, self.dtype.itemsize)
                kernel, cut = kernel_of(here, paired, few)

                def queue() -> None:
                    for launch in launches(region, cut):
                        bounds = map(self.integer, launch.bounds)
                        kernel(launch, (self._gate, *bounds, *extents, *operands))

                return queue

            recorded = self._progress.recorded
            if recorded is not None and may_share(signature, region):
                recorded.append(SmallSweep(here, tape, region, extents, operands, ready))
                return
            self.enqueue(ready())

        return run

    def enqueue(self, work: Callable[[], None]) -> None:
        if self._progress.recorded is None:
            self._progress.launches += 1
            work()
        else:
            self._progress.recorded.append(work)

    def c_kernel(self, source: str, bytes_shared: int) -> Compiled:
        """The kernel `sweeps` of a CUDA C source, which takes the gate, operands, and bounds."""
        key = source, bytes_shared
        if key not in self._c_kernels:
            self._c_kernels[key] = self.compiled(source, "sweeps", bytes_shared)
        compiled = self._c_kernels[key]

        def queue(launch: Launch, operands: tuple[Any, ...]) -> None:
            args = (self._gate, *operands, *map(self.integer, launch.bounds))
            self.enqueue(lambda: compiled(launch, args))

        return queue

    def most_fused(self, sweeps: SweepSequence) -> int:
        stages, changes = sweeps.stages, sweeps.changes
        if not self.limits.has_fused_sweeps or max(sweeps.u.shape) > LARGEST:
            return 1
        if len(stages) >= FEWEST_SWEEPS and self._cluster(sweeps) is not None:
            count = sweeps_at_once(stages, changes)
            if count >= FEWEST_SWEEPS:
                return count
        most = min(self._analysed(deepest, sweeps, self.limits), len(stages))
        if sum(change is not None for change in changes[:most]) > 2:
            most = min(most, MOST_WITH_NORMS)
        # An exact sum costs as much as many sweeps: it pays only in the last fused sweep.
        sums_at = [n for n, change in enumerate(changes) if change and change.kind == "sum"]
        return min([most, *[n + 1 for n in sums_at]])

    def _cluster(self, sweeps: SweepSequence) -> Cluster | None:
        """The cluster that keeps the field of these sweeps on the chip; None if no cluster can."""
        if not self._analysed(reads_neighbours, sweeps):
            return None
        shape = tuple(sweeps.u.shape)
        return cluster_of(sweeps.region, shape, self.dtype.itemsize, self.limits)

    def fused_sweeps(self, sweeps: SweepSequence, new: Any, counted: Region) -> None:
        point, u, region, stages, wraps, changes = sweeps
        many = len(stages) >= FEWEST_SWEEPS and sweeps_at_once(stages, changes) == len(stages)
        if not many or (cluster := self._cluster(sweeps)) is None:
            Backend.fused_sweeps(self, sweeps, new, counted)
            return
        demand_apart(sweeps, new)
        kind = None if changes[-1] is None else changes[-1].kind
        key = (point, sweeps.described(), kind, wraps, self.gated, cluster, region, tuple(u.shape))
        if key not in self._compiled:
            self._compiled[key] = self._prepare_resident(sweeps, kind, cluster)
        queue, launch, converts, bytes_moved = self._compiled[key]
        first = first_norm(changes)
        registers = [change.register for change in changes[first : first + 1] if change]
        args = converted(stages[0], converts)
        queue(launch(len(stages), first, counted), (new, u, *args, *registers))
        points = math.prod([high - low for low, high in region])
        self.count(points * len(stages), points * bytes_moved)

    def _prepare_resident(
        self, sweeps: SweepSequence, kind: str | None, cluster: Cluster
    ) -> tuple[Any, Any, Any, int]:
        """The kernel of resident sweeps, its launch, its arguments' conversions, bytes a point."""
        described, wraps = sweeps.described(), sweeps.wraps
        signature = self._signature(described, len(wraps), self.gated)
        tape = signature.tape(sweeps.point)
        work = FusedSweeps(tape, signature, (), (kind,), wraps, 1)
        queue = self.c_kernel(source_of(work, cluster), cluster.bytes_shared)
        launch = partial(launch_of, cluster, sweeps.region, tuple(sweeps.u.shape))
        return queue, launch, self._converts(described[1:]), signature.bytes_moved(tape)

    def _compile_fused(
        self,
        point: Point,
        signature: Signature,
        tape: Tape,
        wraps: tuple[bool, ...],
        kinds: tuple[str | None, ...],
    ) -> Any:
        known: dict[Any, tuple[FusedKernel, Compiled, Launch]] = {}

        def run(
            new: Any,
            u: Any,
            region: Region,
            stages: Sequence[Sequence[Any]],
            registers: Sequence[Any],
            counted: Region,
        ) -> None:
            pitch = u.shape[-1]
            work = work_of(tape, signature, stages, kinds, wraps, pitch)
            key = work.varying, work.aligned, region, counted, u.shape
            if key not in known:
                kernel = FusedKernel(work, self.limits, shape_for(work, region, self.limits))
                launch, pieces = kernel.launch(region, counted)
                bounds = [bound for pair in (*region, *counted) for bound in pair]
                launch = replace(launch, bounds=(*bounds, *pieces, *u.shape, pitch))
                queue = self.c_kernel(kernel.source, kernel.bytes_shared)
                known[key] = kernel, queue, launch
            kernel, queue, launch = known[key]
            queue(launch, tuple(kernel.operands(new, u, stages, registers)))

        return run

    def fewest_in_legs(self, dimension: int) -> int:
        return fewest_points(dimension) if self.limits.has_fused_sweeps else 0

    def padded(self, shape: Sequence[int]) -> tuple[int, ...]:
        return padded(shape) if self.limits.has_fused_sweeps else tuple(shape)

    def reads_other_ends(self, leg: CycleLeg) -> bool:
        return is_small(leg)

    def cycle_leg(self, leg: CycleLeg) -> Callable[[Any, Any], None] | None:
        if not self.limits.has_fused_sweeps or not makes_leg(leg, self.precision, self.limits):
            return None
        kernels: dict[bool, LegKernels] = {}

        def run(new: Any, u: Any) -> None:
            if self.gated not in kernels:
                kernels[self.gated] = kernels_of(self, leg, self.gated)
            points, arrays = kernels[self.gated](new, u)
            self.count(points, arrays * self.dtype.itemsize)

        return run

    def joins(self, regions: Sequence[Region]) -> bool:
        return self.records and max(map(points_of, regions)) <= MOST_BESIDE

    @abstractmethod
    def captured(self, calls: Sequence[Callable[[], None]]) -> Callable[[], None]:
        """A call that launches a graph of the kernels that these calls queue."""

    def replayed(
        self, work: Callable[[], None], gated: bool = True, continues: bool = False
    ) -> Callable[[], None]:
        return Replay(self, work, gated and self.lookahead > 1, continues)

    @property
    def continues(self) -> bool:  # type: ignore[override]
        return self.lookahead > 1

    @contextmanager
    def continuing(self) -> Iterator[None]:
        before = self.gated, self._gate
        self.gated, self._gate = True, self._ahead
        try:
            yield
        finally:
            self.gated, self._gate = before

    def connect(self, ranks: Any, name: str) -> tuple[Link | None, str]:
        return (connect_peers if name == "peer" else connect_nccl)(self, ranks)

    def join(self, combine: Callable[[np.ndarray], np.ndarray], link: Link | None = None) -> None:
        self.combine, self.link = combine, link
        self._gathering, self._peers = None, self.integer(0)
        self._posted.clear()
        if link is None:
            self.lookahead = 1
            return
        if link.peer_table is not None:
            self._peers = link.peer_table
            return
        self._own_row = self.integers(sums.WIDTH)
        self._all_rows = self.integers(link.size * sums.WIDTH)

    @property
    def failure(self) -> str:
        return "" if self.link is None else self.link.failure

    @abstractmethod
    def in_line(self, work: Callable[[int], None]) -> None:
        """Queue `work` between earlier and later work; it takes the handle of the stream."""

    @abstractmethod
    def aside(self, work: Callable[[int], None]) -> None:
        """Queue `work` on a second stream: after earlier work, beside later work until `rejoin`.

        `work` takes the handle of that stream; kernels that it launches go to the stream, too.
        """

    @abstractmethod
    def rejoin(self) -> None:
        """Let all later work wait for the work on the second stream."""

    def message(self, shape: Sequence[int], direct: bool = False) -> Message:
        array = self.zeros(shape)
        return DeviceMessage(array, array if direct else self.pinned(shape), self)

    def _make_gate(self) -> None:
        self._c_kernels: dict[tuple[str, int], Compiled] = {}
        self._check_kernels: dict[str, Compiled] = {}
        self._readbacks: dict[int, np.ndarray] = {}
        self._posted: dict[tuple[int, ...], Posted] = {}
        self._peers = self.integer(0)
        self._letters: list[tuple[np.ndarray, Callable[[], None]]] = []
        rows = (self.lookahead + BEYOND + 1) * sums.WIDTH  # one more for `confirm`
        self._state = self.integers(HEAD + rows)
        self._head = self.part(self._state, (HEAD,))
        self._gate, self._open = self.part(self._state, (2,)), self.integers(1)
        self._ahead, self._continues_at = self.part(self._state, (1,), 3), 0
        self._rows, self._confirms = self.part(self._state, (rows,), HEAD), False
        self._kinds: list[str] = []
        self._work: list[tuple[int, int]] = []
        self._copied = self.pinned((HEAD + rows,), np.int64)

    def new_register(self) -> Any:
        return self.integers(SPREAD * sums.WIDTH)

    def accumulators(self, kind: str, count: int) -> list[Accumulator]:
        """A series of accumulators, whose registers are contiguous in memory."""
        registers, width = self.integers(count * SPREAD * sums.WIDTH), SPREAD * sums.WIDTH
        parts = [self.part(registers, (width,), n * width) for n in range(count)]
        return [Accumulator(kind, register, self, registers) for register in parts]

    def clear(self, accumulators: Sequence[Accumulator]) -> None:
        if len(accumulators) == 1:
            super().clear(accumulators)
        else:
            self.clear_register(accumulators[0].series)

    def clear_register(self, register: Any) -> None:
        self.enqueue(partial(self.zero, register))

    def put(self, array: Any, region: Region, values: np.ndarray) -> None:
        """As any backend; a few numbers of an array go by a kernel, whether or not a gate is
        closed, and the host waits for nothing."""
        few = values.size <= NUMBERS and self.precision == "float64"
        if not (few and region == whole(array.shape)):
            super().put(array, region, values)
            return
        while len(self._letters) < LETTERS:
            self._letters.append((self.pinned((NUMBERS,)), lambda: None))
        numbers, await_reading = self._letters.pop(0)
        await_reading()
        numbers[: values.size] = values.reshape(-1)
        counts = self.integer(values.size), self.integer(0)
        self._of_checks("post")(ONE_BLOCK, (self.mapped(numbers), *counts, array))
        self._letters.append((numbers, self.mark()))

    def read_register(self, register: Any) -> np.ndarray:
        return sums.merge(self.to_host(register).reshape(SPREAD, sums.WIDTH))

    def post_register(self, register: Any) -> None:
        readback = self._readback_of(register)  # made here: no memory is allocated during a capture

        args = register, self.integer(SPREAD), self._open, self.mapped(readback)
        self.enqueue(partial(self._of_checks("merge"), ONE_BLOCK, args))

    def posted_register(self, register: Any) -> Callable[[], np.ndarray]:
        readback, wait = self._readback_of(register), self.mark()

        def read() -> np.ndarray:
            wait()
            return sums.merge(readback)

        return read

    def _readback_of(self, register: Any) -> np.ndarray:
        """The pinned memory to which a register is posted."""
        if id(register) not in self._readbacks:
            self._readbacks[id(register)] = self.pinned((1, sums.WIDTH), np.int64)
        return self._readbacks[id(register)]

    def open_gate(self, continues_at: int = 0) -> None:
        if self.lookahead == 1:
            super().open_gate()
            return
        if not self.is_clear:  # the last ledger was not read, because an error came between
            self.zero(self._head)
        self.is_clear = False
        self._kinds, self._work, self._continues_at = [], [], continues_at
        self.gated, self._confirms, self.confirmed = True, False, None

    def scalars(self, count: int) -> sums.Scalars:
        return sums.Scalars(self, count) if self.lookahead == 1 else DeviceScalars(self, count)

    def check(self, accumulators: Sequence[Accumulator], threshold: float) -> None:
        if self.lookahead == 1:
            super().check(accumulators, threshold)
            return
        if len(self._kinds) + len(accumulators) > self.lookahead + BEYOND:
            raise ValueError(f"a ledger holds {self.lookahead + BEYOND} checks")
        self._kinds += [accumulator.kind for accumulator in accumulators]
        self._work += [(self.points_updated, self.bytes_moved)] * len(accumulators)
        limit = threshold if threshold >= 0.0 else -1.0
        if accumulators and accumulators[0].kind == "sum":
            limit *= 1.0 + GATE_MARGIN
        if len(accumulators) >= FEWEST_SWEEPS and self.link is None:  # of resident sweeps
            first = accumulators[0]
            self._queue_checks(first.register, len(accumulators), first.kind, limit)
            return
        for accumulator in accumulators:
            self._check_alone(accumulator, limit)

    def _check_alone(self, accumulator: Accumulator, limit: float) -> None:
        register, copies = self._of_all(accumulator, self._gate)
        self._queue_check(register, copies, accumulator.kind, limit)

    def confirm(self, accumulator: Accumulator, threshold: float) -> None:
        self._confirms = True
        register, copies = self._of_all(accumulator, self._ahead)
        numbers = self.integer(copies), np.float64(threshold)
        args = register, *numbers, self._head, self._rows, self._ahead, self._peers
        self._of_checks("confirm")(ONE_BLOCK, args)

    def _of_all(self, accumulator: Accumulator, gate: Any) -> tuple[Any, int]:
        """The copies of a register and their number, or with a link whose registers no kernel
        exchanges, the registers of all processes and their number."""
        register, link = accumulator.register, self.link
        if link is None or link.peer_table is not None:
            return register, SPREAD
        args = register, self.integer(SPREAD), gate, self._own_row
        self.enqueue(partial(self._of_checks("merge"), ONE_BLOCK, args))
        gather = partial(link.gather, self._own_row, self._all_rows)
        if self.records or not link.replays:
            gather()
            return self._all_rows, link.size
        # A recording costs the host less. All processes must record it together, so it holds
        # nothing but the gathering, which is the same for all registers.
        if self._gathering is None:
            self._gathering = Replay(self, gather, self.gated)
        self._gathering()
        return self._all_rows, link.size

    def queue_quotient(
        self, total: Accumulator | None, number: int, above: int, below: int, kept: Any, out: Any
    ) -> None:
        """Queue the kernel of `Scalars.divide` for the sums in the array `kept`."""
        # The gate in use now: recorded work is queued later, when another gate may be in use.
        gate = self._gate if self.gated else self._open
        register, copies = (self._open, 0) if total is None else self._of_all(total, gate)
        numbers = map(self.integer, (copies, number, above, below, self.precision == "float32"))
        args = register, *numbers, gate, kept, out, self._peers
        self.enqueue(partial(self._of_checks("quotient"), ONE_BLOCK, args))

    def posted_ledger(self) -> Callable[[], list[float]]:
        if self.lookahead == 1:
            return super().posted_ledger()
        self.gated = False
        copied = self._copied[: HEAD + (len(self._work) + self._confirms) * sums.WIDTH]
        numbers = self.integer(copied.size), self.integer(CLEARED)
        self._of_checks("post")(ONE_BLOCK, (self._state, *numbers, self.mapped(copied)))
        wait, asked = self.mark(), self._continues_at > 0
        self.is_clear = not asked  # else its reader opens the gate of work that continues
        work, kinds, confirms = self._work, self._kinds, self._confirms
        done = self.points_updated, self.bytes_moved

        def read() -> list[float]:
            wait()
            _, passed, confirmed, not_continued = map(int, copied[:HEAD])
            self.continued = asked and not not_continued
            if asked and not_continued:
                self.zero(self._ahead)
                self.points_updated, self.bytes_moved = done
            self.is_clear |= asked
            # The sweeps behind a closed gate have done nothing.
            if 0 < passed < len(work) or (passed > 0 and confirms and not confirmed):
                self.points_updated, self.bytes_moved = work[passed - 1]
            rows = copied[HEAD:].reshape(-1, sums.WIDTH)
            self.confirmed = sums.max_of(rows[passed]) if confirmed else None
            return sums.values_of(kinds[:passed], rows[:passed])

        return read

    def posted_values(self, accumulators: Sequence[Accumulator]) -> Callable[[], list[float]]:
        if not accumulators:
            return list
        posted, linked = self._posted_of(accumulators), self.link is not None
        posted.post()
        wait = self.mark()

        def read() -> list[float]:
            wait()
            # The call holds the accumulators: others at their addresses would be posted over them.
            kinds = [each.kind for each in accumulators]
            rows = posted.readback.reshape(-1, len(kinds), sums.WIDTH)
            return sums.values_of(kinds, sums.merge(rows) if linked else self.combine(rows[0]))

        return read

    def _posted_of(self, accumulators: Sequence[Accumulator]) -> "Posted":
        """The memory for these accumulators: by addresses, at which the accumulators of one solve
        after the other lie."""
        key = tuple([self.address(each.register) for each in accumulators])
        if key not in self._posted:
            while len(self._posted) >= MOST_POSTED:
                del self._posted[next(iter(self._posted))]
            self._posted[key] = self._posting(self.stored(np.array(key, np.int64)))
        return self._posted[key]

    def _posting(self, table: Any) -> Posted:
        """The posting of the registers at the addresses in a table."""
        (count,), link, width = table.shape, self.link, sums.WIDTH
        merge = self._of_checks("merge_several")
        if link is None or link.peer_table is not None:
            readback, launches = self.pinned((count * width,), np.int64), []
            most = count if link is None else link.most_registers
            for first in range(0, count, most):
                some = min(count - first, most)
                rows = self.mapped(readback[first * width :])
                args = self.part(table, (some,), first), rows, self._peers
                launches.append(partial(merge, replace(ONE_BLOCK, grid=(some, 1, 1)), args))

            def post() -> None:
                for launch in launches:
                    launch()

            return Posted(post, readback)
        readback = self.pinned((link.size * count * width,), np.int64)
        own, of_all = (self.integers(n * count * width) for n in (1, link.size))
        launch, numbers = replace(ONE_BLOCK, grid=(count, 1, 1)), (readback.size, 0)
        args = of_all, *map(self.integer, numbers), self.mapped(readback)
        to_host = partial(self._of_checks("post"), ONE_BLOCK, args)

        def work() -> None:
            self.enqueue(partial(merge, launch, (table, own, self.integer(0))))
            link.gather(own, of_all)
            self.enqueue(to_host)

        return Posted(work, readback)


class DeviceScalars(sums.Scalars):
    """Sums that a device keeps and divides."""

    def __init__(self, backend: DeviceBackend, count: int):
        super().__init__(backend, count)
        self._device, self._kept = backend, backend.integers(count)

    def divide(
        self, total: Accumulator | None, number: int, above: int, below: int, out: Any
    ) -> None:
        self._device.queue_quotient(total, number, above, below, self._kept, out)

    @property
    def sums(self) -> list[float]:
        return self._device.to_host(self._kept).view(np.float64).tolist()

    @sums.setter
    def sums(self, values: list[float]) -> None:
        kept = self._device.stored(np.array(values).view(np.int64))
        self._device.copy(self._kept, kept)
        self._device.sync()


class DeviceMessage(Message):
    """A message of a device: MPI reads and writes the array itself, or pinned memory beside it."""

    def __init__(self, array: Any, buffer: Any, backend: DeviceBackend):
        super().__init__(array, buffer)
        self._backend, self._staged = backend, buffer is not array

    def to_buffer(self) -> None:
        if self._staged:
            self._backend.queue_to_host(self.buffer, self.array)
        self._backend.sync()

    def from_buffer(self) -> None:
        if self._staged:
            self._backend.queue_to_device(self.array, self.buffer)


class CupyLibrary(ArrayLibrary):
    """CuPy on arrays of its own, in its current stream; it keeps the plans of its FFTs."""

    def __init__(self, cupy: Any, fft: Any):
        super().__init__()
        self.namespace, self.fft = cupy, fft

    def fft_among_ghosts(self, lengths: Sequence[int], dtype: np.dtype) -> "FftAmongGhosts | None":
        even = (lengths[-1] + 2) % 2 == 0  # cuFFT needs rows of whole pairs
        fits = even and 2 <= len(lengths) <= 3
        return FftAmongGhosts(self.namespace, lengths, dtype) if fits else None


class FftAmongGhosts:
    """cuFFT on the unknowns of arrays that have a layer of ghosts around them.

    cuFFT needs the first unknown at an even element of memory, so an array begins `before`
    elements, 0 or 1, into its memory. `spectrum` is the array of the transform.
    """

    def __init__(self, cupy: Any, lengths: Sequence[int], dtype: np.dtype):
        from cupy.cuda import cufft

        shape = tuple([length + 2 for length in lengths])
        half, last = (*lengths[:-1], lengths[-1] // 2 + 1), len(lengths) - 1
        double = dtype == np.float64
        kinds = (cufft.CUFFT_D2Z, cufft.CUFFT_Z2D) if double else (cufft.CUFFT_R2C, cufft.CUFFT_C2R)
        real, complex_ = (shape, 1, math.prod(shape)), (half, 1, math.prod(half))
        one = (1, "C", last)
        self._forward = cufft.PlanNd(tuple(lengths), *real, *complex_, kinds[0], *one, half[-1])
        self._inverse = cufft.PlanNd(tuple(lengths), *complex_, *real, kinds[1], *one, lengths[-1])
        self._directions = cufft.CUFFT_FORWARD, cufft.CUFFT_INVERSE
        self._cupy, self._first = cupy, sum(math.prod(shape[n + 1 :]) for n in range(len(shape)))
        self.before = self._first % 2
        self.spectrum = cupy.empty(half, np.complex128 if double else np.complex64)

    def forward(self, array: Any) -> None:
        """Write an array's transform to `spectrum`, which holds one half along the last axis."""
        self._forward.fft(self._unknowns(array), self.spectrum, self._directions[0])

    def inverse(self, array: Any) -> None:
        """Write an array's unknowns from `spectrum`, which changes; not divided by their number."""
        self._inverse.fft(self.spectrum, self._unknowns(array), self._directions[1])

    def _unknowns(self, array: Any) -> Any:
        """The array from its first unknown on."""
        pointer = array.data + self._first * array.itemsize
        return self._cupy.ndarray((array.size - self._first,), array.dtype, memptr=pointer)
