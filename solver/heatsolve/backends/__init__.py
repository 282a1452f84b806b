"""The backend interface: arrays, sweeps, norms, and optional fused passes of a machine.

Four backends implement it: `numpy`, `numba` (threads), `cupy` and `cuda` (Numba-CUDA). Each runs
the same point functions and gives the same bits. Arrays hold a grid's unknowns and their ring of
ghosts; a *region* is `((low, high), ...)`, a half-open range of array indices for each axis,
slowest axis first.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy as duplicate
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, NamedTuple, Self

import numpy as np

from heatsolve.backends.compilation import cache_folder as cache_folder
from heatsolve.backends.compilation import digest as digest
from heatsolve.backends.compilation import kept as kept
from heatsolve.backends.compilation import told as told
from heatsolve.backends.compilation import trouble as trouble
from heatsolve.backends.compilation import wanted_folder as wanted_folder
from heatsolve.backends.exact_sums import Accumulator as Accumulator
from heatsolve.backends.exact_sums import Scalars, values_of
from heatsolve.backends.exact_sums import exact_sum as exact_sum
from heatsolve.backends.exact_sums import from_message as from_message
from heatsolve.backends.exact_sums import to_message as to_message
from heatsolve.backends.gpu.links import Link as Link
from heatsolve.backends.machine import cores as cores
from heatsolve.backends.machine import host_memory as host_memory
from heatsolve.stencil.grid import Region as Region
from heatsolve.stencil.grid import intersection, without
from heatsolve.stencil.language import ONE, Point, together
from heatsolve.stencil.trace import INTEGER, Held, Tape, describe, place_of
from heatsolve.stencil.trace import Signature as Signature

MOST_FUSED = 15
"""The most sweeps of one pass through memory."""
MOST_RESIDENT = 511
"""The most sweeps that are made at once of a field that stays on the chip."""
SINGLE = np.dtype("float32")

Converts = tuple[Callable[[Any], Any] | None, ...]
"""For each argument of a compiled sweep the type it is converted to; None for an array."""
FusedSweeps = Callable[[Any, Any, Region, Sequence[Sequence[Any]], Sequence[Any], Region], None]
"""Takes new, u, the region, the stages, a register or None for each sweep, the region counted."""


class PointSweep(NamedTuple):
    """out[p] = point(p, *arguments) for every p of a region, see `Backend.sweep`."""

    point: Point
    out: Any
    region: Region
    arguments: tuple[Any, ...]


class Prepared(NamedTuple):
    """Compiled sweeps, and the bytes of full arrays that they move for each point."""

    run: Callable[..., None]
    converts: Converts
    bytes_moved: int


@dataclass
class Progress:
    """The work that the sweeps of a machine have done, and whether they now obey its gate."""

    points_updated: int = 0
    bytes_moved: int = 0
    launches: int = 0
    gated: bool = False
    recorded: list[Any] | None = None
    """The calls that are recorded and not queued; None while nothing is recorded."""


def _of_progress(name: str) -> Any:
    """An attribute of a machine's progress, shared with the same machine in another precision."""

    def get(machine: "Backend") -> Any:
        return getattr(machine._progress, name)

    def change(machine: "Backend", value: Any) -> None:
        setattr(machine._progress, name, value)

    return property(get, change)


class Message:
    """An array on its way between processes: packed by a sweep, moved by MPI, unpacked by a sweep.

    `array` is what sweeps write and read, `buffer` is what MPI sends or receives. On a host they
    are the same, and nothing happens between packing and sending.
    """

    def __init__(self, array: Any, buffer: Any):
        self.array, self.buffer = array, buffer

    def to_buffer(self) -> None:
        """Bring the packed array into the buffer; once this returns, MPI may send it."""

    def from_buffer(self) -> None:
        """Bring what MPI has received into the array, for the sweeps that follow.

        A device does so in its own time: MPI may receive into the buffer again only after a later
        `to_buffer`, of any message of the backend, has returned.
        """


@dataclass(frozen=True, eq=False)
class CycleLeg:
    """One half of a multigrid cycle on one level: before the correction, or after it.

    Sweep n is u[p] = point(p, u, *stages[n]) at the points p of `region` whose colour is
    colours[n]: 1 red, where the sum of the indices is even, -1 black, 0 both. `shape` is the shape
    of the field, periodic along the axes in `wraps`. `pitch`: elements from row to row of its
    arrays, and of all others that vary along all axes; rows may be padded.

    restricts: this is the half before the correction. After the sweeps residual(p, u, *operands) is
        restricted into the array `coarse`.
    coarse: in the half after the correction the sweeps begin at u plus the correction that is
        interpolated from it; without it the leg is the rest of that half.
    from_zero: u is 0 at the beginning.
    norm: an Accumulator; the terms of a norm of the result's residual are added to it.
    counted: the layers along the slowest axis whose terms these are, in 3D; None: all.
    operands: b and the coefficients.
    stages: each is b, a weight, perhaps the inverse of the diagonal, and the coefficients; there is
        one even without sweeps.
    inverse: inverse(p, *coefficients) is the inverse of the diagonal in a stage.
    margin: with more than this number of layers between a point and the walls all operands but b
        have the same value.
    coarse_shape: the shape of the coarse field; the rows of its array may be padded, too.
    weights: four for each axis, slowest first: of the points 2q - 2 ... 2q + 1 in the coarse point
        q, or of the coarse points q and q + 1 in the point 2q and then in the point 2q + 1.
    functions: the operations along one axis, with this order of values: `restricted` takes four
        pairs of a weight and a value, `interpolated` two, `corrected` these and the former value;
        `coloured` takes a colour, the new value, the former one, and the sign of the point.
    """

    point: Point
    stages: Sequence[Sequence[Any]]
    colours: Sequence[int]
    shape: tuple[int, ...]
    pitch: int
    region: Region
    wraps: Sequence[bool]
    coarse: Any
    coarse_shape: tuple[int, ...]
    weights: Sequence[Any]
    restricts: bool = False
    residual: Point | None = None
    operands: Sequence[Any] = ()
    from_zero: bool = False
    norm: Any = None
    counted: tuple[int, int] | None = None
    margin: int | None = None
    inverse: Point | None = None
    functions: Mapping[str, Tape] = field(default_factory=dict)


class ArrayLibrary:
    """NumPy, which shares the memory of a host backend; `threads` are those that it may use.

    `namespace` has NumPy's functions. `fft` has the real FFTs of `scipy.fft`, or is None on a host,
    where a caller uses SciPy itself. `transforms` are ready sine and cosine transforms, if any.
    """

    namespace: Any = np
    fft: Any = None
    transforms: Any = None

    def __init__(self, threads: int = 1):
        self.threads = threads

    @contextmanager
    def queue(self) -> Iterator[None]:
        """A context in which the library's work is queued in order with the backend's sweeps."""
        yield

    def view(self, array: Any) -> Any:
        """An array of the backend as one of the library, in the same memory."""
        return array

    def lend(self, array: Any) -> Any:
        """A contiguous array of the library as one of the backend, in the same memory."""
        return array

    def fft_among_ghosts(self, lengths: Sequence[int], dtype: np.dtype) -> Any:
        """An FFT along all axes that reads and writes the unknowns of arrays among a layer of
        ghosts; None: there is none."""
        return None


class Backend(ABC):
    """A machine that sweeps point functions over regions of arrays, in one precision.

    `points_updated` and `bytes_moved` count what its sweeps have done: a point once for each
    sweep, a byte for each array element that a sweep, or a pass of several sweeps, must read or
    write at least once. `launches` counts kernels that were queued, nodes of a graph among them, or
    calls of a host. What is not abstract has a meaning for every machine; fused sweeps and legs of
    cycles are a gain that only some have.
    """

    name: str
    integer: Callable[[Any], Any] = int
    """The type in which compiled sweeps take an integer argument."""
    lookahead = 1
    """The number of steps that it pays to queue before the host reads a result."""
    threads = 1
    """Threads of the host that run its sweeps."""
    points_updated: int = _of_progress("points_updated")
    bytes_moved: int = _of_progress("bytes_moved")
    launches: int = _of_progress("launches")
    gated: bool = _of_progress("gated")
    """Whether sweeps now obey the gate; only devices that queue work have one."""
    most_wrapped = 0
    """Points of a region up to which a sweep may read the other end of a periodic axis itself."""
    on_device = False
    """Whether arrays lie in the memory of a device, which not every MPI can read."""

    def __init__(self, precision: str = "float64"):
        self.precision = precision
        self.dtype = np.dtype(precision)
        self.combine: Callable[[np.ndarray], np.ndarray] = _alone
        self._progress = Progress()
        # Compiled sweeps, fused sweeps, and analyses of sweeps, each by all that it depends on;
        # their keys differ in length.
        self._compiled: dict[Any, Any] = {}
        self._single: Self | None = None
        self._double: Self | None = None

    def single(self) -> Self:
        """The same machine in single precision.

        Its sweeps share the queue, the gate and the count of work with this machine. Sweeps of
        this machine also take its arrays: they read them exactly, compute in double precision, and
        round the results.
        """
        if self._single is None:
            self._single = self._twin("float32")
        return self._single

    def double(self) -> Self:
        """The same machine in double precision; a machine in single precision is its `single`."""
        if self.precision == "float64":
            return self
        if self._double is None:
            self._double = self._twin("float64")
            self._double._single = self
        return self._double

    def _twin(self, precision: str) -> Self:
        """The same machine in another precision; it shares the progress."""
        twin = duplicate(self)
        twin.precision, twin.dtype, twin._compiled = precision, np.dtype(precision), {}
        return twin

    def join(self, combine: Callable[[np.ndarray], np.ndarray], link: Link | None = None) -> None:
        """From now on `combine` adds up the registers of all processes.

        Without a link a device's gate cannot depend on other processes' sums, so the host reads
        every check.
        """
        self.combine = combine
        self.lookahead = 1

    def connect(self, ranks: Any, name: str) -> tuple[Link | None, str]:
        """The link, "peer" or "nccl", between the devices of these processes, or why there is none;
        all ask together."""
        return None, "there is no GPU"

    @property
    def failure(self) -> str:
        """Why a device can do no more, as far as it knows; else ""."""
        return ""

    def count(self, points: int, moved: int, launches: int = 0) -> None:
        """Count points that sweeps have updated, bytes that they have moved, and launches."""
        progress = self._progress
        progress.launches += launches
        progress.points_updated += points
        progress.bytes_moved += moved

    # ---- arrays ----------------------------------------------------------------------------------

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the memory of its arrays."""
        return host_memory()

    @property
    def threading(self) -> str:
        """The threads of the host that run its sweeps, in words."""
        return "one thread"

    @abstractmethod
    def zeros(self, shape: Sequence[int]) -> Any:
        """A new array of zeros in the backend's precision."""

    def padded(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The extents of an array of this shape with which fused sweeps are fastest.

        Rows may be padded with elements that stay 0 and are never read as values.
        """
        return tuple(shape)

    @abstractmethod
    def to_device(self, host: np.ndarray) -> Any:
        """A copy of a host array on the device, in the backend's precision."""

    def factor(self, host: np.ndarray) -> Any:
        """As `to_device`, for an array that is only a factor or a divisor; ONE if all is 1."""
        return ONE if np.all(host == 1.0) else self.to_device(host)

    @abstractmethod
    def to_host(self, array: Any) -> np.ndarray:
        """A copy of a device array on the host."""

    def lent(self, array: Any) -> Any:
        """The array itself, as the library of arrays of its device has it."""
        return array

    def part(self, array: Any, shape: Sequence[int], first: int = 0) -> Any:
        """The elements of an array from number `first` on, as an array of a shape: no copy."""
        return array.reshape(-1)[first : first + math.prod(shape)].reshape(tuple(shape))

    def copy(self, target: Any, source: Any) -> None:
        """target = source, all of it, by the fastest copy that the machine has."""
        np.copyto(target, source)

    def message(self, shape: Sequence[int], direct: bool = False) -> Message:
        """A message of zeros; `direct`: MPI takes an array of the device as it is."""
        array = self.zeros(shape)
        return Message(array, array)

    def library(self) -> ArrayLibrary:
        """The array library of the backend's memory. Raises InputError where there is none."""
        return ArrayLibrary()

    # ---- the queue -------------------------------------------------------------------------------

    @abstractmethod
    def sync(self) -> None:
        """Wait until all sweeps are done."""

    def replayed(
        self, work: Callable[[], None], gated: bool = True, continues: bool = False
    ) -> Callable[[], None]:
        """A call that does `work`: sweeps of the same arrays with the same numbers at each call.

        A backend may record the sweeps once and replay them, without the host's part in each. To
        record them it calls `work` ahead of time, without effect; so `work` may only sweep, and
        read no result. `gated`: whether the gate is in use at the first replay. `continues`:
        whether the work is work of `continuing`.
        """
        return work

    def enqueue(self, work: Callable[[], None]) -> None:
        """Do some work in order with the sweeps, or record it while they are recorded."""
        work()

    def joins(self, regions: Sequence[Region]) -> bool:
        """Whether sweeps over these regions, of which none depends on another, would share one
        launch: only while they are recorded."""
        return False

    def record(self, work: Callable[[], None]) -> tuple[list[Any], int, int]:
        """The calls that `work` would make or queue, its points updated, its bytes moved."""
        progress = self._progress
        before, progress.recorded = replace(progress), []
        try:
            work()
        finally:
            recorded, progress.recorded = progress.recorded, before.recorded
        points = progress.points_updated - before.points_updated
        moved = progress.bytes_moved - before.bytes_moved
        progress.points_updated, progress.bytes_moved = before.points_updated, before.bytes_moved
        return recorded, points, moved

    def stopwatch(self) -> Callable[[], float]:
        """Begin to measure time; return a call for the seconds since, to be called once.

        It waits until all work is done. A device with a clock of its own measures the time between
        the two places in its queue.
        """
        self.sync()
        began = time.perf_counter()

        def seconds() -> float:
            self.sync()
            return time.perf_counter() - began

        return seconds

    # ---- sweeps ----------------------------------------------------------------------------------

    def sweep(
        self,
        point: Point,
        out: Any,
        region: Region,
        *arguments: Any,
        wraps: tuple[bool, ...] = (),
    ) -> None:
        """out[p] = point(p, *arguments) for every p of the region.

        `out` is an array, an Accumulator, or a tuple of them for a point function that returns as
        many values. Raises ValueError when an output is also read at a shift or is too small.
        Where the first argument `wraps`, the region is all of its unknowns, and in place of its
        ghosts the other end of the axis is read: for regions of up to `most_wrapped` points.
        """
        points = math.prod([max(0, high - low) for low, high in region])
        if points == 0:  # nothing is compiled for it
            return
        outputs = out if isinstance(out, tuple) else (out,)
        kinds = tuple([o.kind if isinstance(o, Accumulator) else "array" for o in outputs])
        in_place = tuple([place_of(o, arguments) for o in outputs])
        described = tuple([describe(a) for a in arguments])
        progress = self._progress
        narrow = () if self._single is None else _narrow(outputs, arguments)
        key = (point, described, kinds, in_place, len(region), progress.gated, narrow, wraps)
        known = self._compiled.get(key)
        if known is None:
            known = self._compiled[key] = self._prepare(*key)
        run, converts, bytes_moved = known
        targets = []
        for output, kind in zip(outputs, kinds, strict=True):
            if kind != "array":
                targets.append(output.register)
                continue
            # Compiled loops do not check bounds.
            for (_, high), extent in zip(region, output.shape, strict=True):
                if high > extent:
                    raise ValueError(f"region {region} does not fit an output of {output.shape}")
            targets.append(output)
        run(region, targets, converted(arguments, converts))
        self.count(points, points * bytes_moved)

    def sweep_together(self, sweeps: Sequence[PointSweep]) -> None:
        """Make sweeps of which none reads what another one writes, and that write each point once.

        The points that all regions share take one sweep, which loads once what several read; what
        is left of each region takes one of its own.
        """
        if len(sweeps) == 1:
            point, out, region, arguments = sweeps[0]
            self.sweep(point, out, region, *arguments)
            return
        shared = intersection([each.region for each in sweeps])
        if any(low >= high for low, high in shared):
            for each in sweeps:
                self.sweep_together([each])
            return
        known = {id(argument): argument for each in sweeps for argument in each.arguments}
        number = {key: n for n, key in enumerate(known)}
        places = tuple([tuple([number[id(a)] for a in each.arguments]) for each in sweeps])
        outputs: list[Any] = []
        for each in sweeps:
            outputs += each.out if isinstance(each.out, tuple) else [each.out]
        joint = together(tuple([each.point for each in sweeps]), places)
        self.sweep(joint, tuple(outputs), shared, *known.values())
        for point, out, region, arguments in sweeps:
            for slab in without(region, shared):
                self.sweep(point, out, slab, *arguments)

    def _prepare(
        self,
        point: Point,
        described: Any,
        kinds: Any,
        in_place: Any,
        axes: int,
        gated: bool,
        narrow: tuple[str, ...],
        wraps: tuple[bool, ...],
    ) -> Prepared:
        signature = Signature(
            described, kinds, in_place, self.precision, axes, gated, narrow=narrow, wraps=wraps
        )
        tape = signature.tape(point)
        if any(tape.read_at_a_shift(number) for number in in_place if number is not None):
            raise ValueError(f"{point.__name__} reads its output at a shift")
        run = self._compile(point, signature, tape)
        return Prepared(run, self._converts(described), signature.bytes_moved(tape))

    def _converts(self, described: Sequence[Any]) -> Converts:
        """Conversions of numbers to the types of a compiled sweep; None for arrays."""
        return tuple(
            attrgetter("array") if type(argument) is Held
            else None if not isinstance(argument, str)
            else self.integer if argument == INTEGER else self.dtype.type
            for argument in described
        )  # fmt: skip

    @abstractmethod
    def _compile(self, point: Point, signature: Signature, tape: Tape) -> Any:
        """A callable (region, targets, arguments) that runs the point function.

        The targets are arrays and registers; numbers have the types of `dtype` and `integer`.
        """

    # ---- sums and largest magnitudes, the gate ---------------------------------------------------

    def accumulator(self, kind: str) -> Accumulator:
        """A new, empty accumulator: kind "sum" or "max" (of magnitudes)."""
        return Accumulator(kind, self.new_register(), self)

    def accumulators(self, kind: str, count: int) -> list[Accumulator]:
        """A series of them, for the norms of sweeps that follow each other."""
        return [self.accumulator(kind) for _ in range(count)]

    def scalars(self, count: int) -> Scalars:
        """Some sums, all 0, and quotients of them."""
        return Scalars(self, count)

    def reduce(self, kind: str, point: Point, region: Region, *arguments: Any) -> float:
        """The sum, or the largest magnitude, of a point function over a region.

        The sum does not depend on the order of its terms (see `exact_sums`); either is NaN when a
        value is not finite.
        """
        accumulator = self.accumulator(kind)
        self.sweep(point, accumulator, region, *arguments)
        return accumulator.value

    continues = False
    """Whether work can be queued behind a ledger before the host has read it."""
    continued = False
    """Whether the work that was queued behind the ledger read last has been done."""

    def continuing(self) -> AbstractContextManager[None]:
        """A context for work that is queued behind a ledger, or recorded for that.

        It is done only if the ledger ends at the check for which `open_gate` was told so.
        """
        return nullcontext()

    def open_gate(self, continues_at: int = 0) -> None:
        """Begin a ledger of checks.

        A device that queues work has a gate, too: once the value of a check is at most its
        threshold, the sweeps queued after it do nothing. So the device stops at the very step that
        meets a criterion although the host reads it later. The gate may close a little early (the
        host then decides to go on), never late; for the largest magnitude it closes exactly.
        `continues_at`: the number of the check at which the gate must close for a finite value if
        the work of `continuing` is to be done; 0: it is done in any case.
        """
        self._checks: list[float] = []

    def clear(self, accumulators: Sequence[Accumulator]) -> None:
        """Empty accumulators: one, or a whole series."""
        for accumulator in accumulators:
            accumulator.clear()

    def check(self, accumulators: Sequence[Accumulator], threshold: float) -> None:
        """Enter the values of accumulators into the ledger, and clear the accumulators."""
        self._checks += [accumulator.take() for accumulator in accumulators]

    def ledger(self) -> list[float]:
        """The values of the checks up to the one that closed the gate; ends the gate (waits)."""
        return self.posted_ledger()()

    def posted_ledger(self) -> Callable[[], list[float]]:
        """End the gate; a call for the ledger, which alone waits."""
        return self._checks.copy

    def values(self, accumulators: Sequence[Accumulator]) -> list[float]:
        """The values of several accumulators, which are then cleared: one message and one wait for
        all (waits)."""
        if not accumulators:
            return []
        rows = np.array([self.read_register(each.register) for each in accumulators])
        for each in accumulators:
            each.clear()
        return values_of([each.kind for each in accumulators], self.combine(rows))

    @abstractmethod
    def new_register(self) -> Any:
        """An empty register for an Accumulator."""

    @abstractmethod
    def read_register(self, register: Any) -> np.ndarray:
        """The integers of a register, on the host (waits)."""

    def post_register(self, register: Any) -> None:
        """Send the integers of a register to the host, in order with the sweeps, and clear it.

        A backend without a queue does nothing here; see `posted_register`.
        """

    def posted_register(self, register: Any) -> Callable[[], np.ndarray]:
        """A call for the integers that were posted last (the call waits)."""
        integers = np.array(self.read_register(register))
        self.clear_register(register)
        return lambda: integers

    @abstractmethod
    def clear_register(self, register: Any) -> None:
        """Empty a register."""

    # ---- several sweeps in one pass through memory: optional, the same bits ----------------------

    def most_fused(
        self,
        point: Point,
        u: Any,
        region: Region,
        stages: Sequence[Sequence[Any]],
        wraps: Sequence[bool],
        changes: Sequence[Accumulator | None],
    ) -> int:
        """The number of these sweeps that it pays to make in one pass; 1 if a pass gains nothing.

        Arguments as of `fused_sweeps`. The result changes no bits.
        """
        return 1

    def fused_sweeps(
        self,
        point: Point,
        new: Any,
        u: Any,
        region: Region,
        stages: Sequence[Sequence[Any]],
        wraps: Sequence[bool],
        changes: Sequence[Accumulator | None],
        counted: Region,
    ) -> None:
        """new = the result of several sweeps in turn, each from the one before; u is not changed.

        Sweep n is point(p, u_n, *stages[n]) at the points p of `region`; the stages differ in
        numbers only. Outside the region every u_n keeps the values of u, but along an axis in
        `wraps` (a bool for each axis) u_n is periodic: index 0 is the image of index n, and index
        n + 1 that of index 1. The ghosts of u are up to date; `new` is written inside the region
        only. changes[n], an Accumulator or None, takes the norm of u_{n+1} - u_n (the sum of its
        squares, or its largest magnitude) over the region `counted`. Called for 2 to `most_fused`
        sweeps. Raises ValueError when `new` is also read or is too small, and on a machine that
        makes one sweep at a time.
        """
        if any(high <= low for low, high in region):
            return
        demand_apart(point, new, region, (u, *stages[0]))
        described = tuple([describe(a) for a in (u, *stages[0])])
        kinds = tuple([None if change is None else change.kind for change in changes])
        key = (point, described, kinds, tuple(wraps), self.gated)
        known = self._compiled.get(key)
        if known is None:
            known = self._compiled[key] = self._prepare_fused(*key)
        run, converts, bytes_moved = known
        args = [converted(stage, converts) for stage in stages]
        registers = [None if change is None else change.register for change in changes]
        run(new, u, region, args, registers, counted)
        points = math.prod([high - low for low, high in region])
        self.count(points * len(stages), points * bytes_moved)

    def _analysed(
        self,
        find: Callable[[Tape, Signature], Any],
        point: Point,
        u: Any,
        stages: Sequence[Sequence[Any]],
    ) -> Any:
        """The result of `find` for a sweep, kept for each kind of sweep; for `most_fused`."""
        described = tuple([describe(a) for a in (u, *stages[0])])
        key = find, point, described
        if key not in self._compiled:
            axes = len(u.shape)
            signature = Signature(described, ("array",), (None,), self.precision, axes)
            self._compiled[key] = find(signature.tape(point), signature)
        return self._compiled[key]

    def cycle_leg(self, leg: CycleLeg) -> Callable[[Any, Any], None] | None:
        """A callable (new, u) for half a cycle in a pass or two; None if the backend has none.

        It writes the result to `new` and does not change u. Before the call the ghosts of u and of
        the coarse array are up to date, and at walls the ghosts of `new` equal those of u (0 for
        `from_zero`). Without sweeps there is nothing to write, and `new` is u.
        """
        return None

    def _prepare_fused(
        self, point: Point, described: Any, kinds: Any, wraps: tuple[bool, ...], gated: bool
    ) -> Prepared:
        axes = len(wraps)
        signature = Signature(described, ("array",), (None,), self.precision, axes, gated)
        tape = signature.tape(point)
        run = self._compile_fused(point, signature, tape, wraps, kinds)
        if run is None:
            raise ValueError(f"{self.name} makes one sweep at a time")
        converts = self._converts(described[1:])
        return Prepared(run, converts, signature.bytes_moved(tape))

    def _compile_fused(
        self,
        point: Point,
        signature: Signature,
        tape: Tape,
        wraps: tuple[bool, ...],
        kinds: tuple[str | None, ...],
    ) -> FusedSweeps | None:
        """Compiled fused sweeps; None on a machine that makes one sweep at a time.

        `kinds`: for each sweep the norm of its change, or None without one; its register is then
        None, too.
        """
        return None


def demand_apart(point: Point, new: Any, region: Region, arguments: Sequence[Any]) -> None:
    """Raise ValueError where fused sweeps would read what they write, or `new` is too small."""
    for (_, high), extent in zip(region, new.shape, strict=True):
        if high > extent:
            raise ValueError(f"region {region} does not fit an output of {new.shape}")
    if place_of(new, arguments) is not None:
        raise ValueError(f"{point.__name__}: a fused sweep does not write what it reads")


def converted(arguments: Sequence[Any], converts: Converts) -> list[Any]:
    """The arguments as a compiled sweep takes them."""
    return [
        a if convert is None else convert(a) for a, convert in zip(arguments, converts, strict=True)
    ]


def _narrow(outputs: Sequence[Any], arguments: Sequence[Any]) -> tuple[str, ...]:
    """The arrays in single precision, by their names in generated code."""
    return tuple(
        [
            f"{letter}{number}"
            for letter, operands in (("o", outputs), ("a", arguments))
            for number, operand in enumerate(operands)
            if getattr(operand, "dtype", None) is not None and operand.dtype == SINGLE
        ]
    )


def _alone(register: np.ndarray) -> np.ndarray:
    return register
