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
from heatsolve.backends.compilation import load_or_make as load_or_make
from heatsolve.backends.compilation import trouble as trouble
from heatsolve.backends.compilation import wanted_folder as wanted_folder
from heatsolve.backends.compilation import watched as watched
from heatsolve.backends.exact_sums import Accumulator as Accumulator
from heatsolve.backends.exact_sums import Scalars, values_of
from heatsolve.backends.exact_sums import exact_sum as exact_sum
from heatsolve.backends.exact_sums import from_message as from_message
from heatsolve.backends.exact_sums import to_message as to_message
from heatsolve.backends.gpu.links import Link as Link
from heatsolve.backends.machine import cores as cores
from heatsolve.backends.machine import host_memory as host_memory
from heatsolve.stencil.grid import Region as Region
from heatsolve.stencil.grid import intersection, slices, without
from heatsolve.stencil.language import ONE, Point, shifted, together
from heatsolve.stencil.trace import INTEGER, Held, Tape, describe, place_of
from heatsolve.stencil.trace import Signature as Signature

MOST_FUSED = 15
"""The most sweeps of one pass through memory."""
MOST_RESIDENT = 511
"""The most sweeps of one kernel that keeps the field on the chip."""
LARGEST_PUT = 1 << 28
"""Bytes that `put` copies at once, by way of an array of their own; one row or plane at least."""
SINGLE = np.dtype("float32")

Converts = tuple[Callable[[Any], Any] | None, ...]
"""For each argument of a compiled sweep, the function that converts it; None for an array."""
FusedSweeps = Callable[[Any, Any, Region, Sequence[Sequence[Any]], Sequence[Any], Region], None]
"""Takes new, u, region, stages, a register or None for each sweep, and the region of the norms."""


class PointSweep(NamedTuple):
    """out[p] = point(p, *arguments) for every p of a region, see `Backend.sweep`."""

    point: Point
    out: Any
    region: Region
    arguments: tuple[Any, ...]


class SweepSequence(NamedTuple):
    """Sweeps in turn, each from the result of the sweep before: see `Backend.fused_sweeps`.

    Sweep n is u_{n+1}[p] = point(p, u_n, *stages[n]) at the points p of `region`, with u_0 = u; the
    stages differ in numbers only. Outside the region every u_n keeps the values of u, but along an
    axis in `wraps` (a bool for each axis) u_n is periodic: with m points, index 0 is the image of
    index m, and index m + 1 the image of index 1. changes[n], an Accumulator or None, takes the
    norm of u_{n+1} - u_n (the sum of its squares, or its largest magnitude).
    """

    point: Point
    u: Any
    region: Region
    stages: Sequence[Sequence[Any]]
    wraps: tuple[bool, ...]
    changes: Sequence[Accumulator | None]

    def described(self) -> tuple[Any, ...]:
        """The properties of u and of the arguments on which compiled code depends."""
        return tuple([describe(a) for a in (self.u, *self.stages[0])])

    def up_to(self, count: int) -> "SweepSequence":
        """The first `count` sweeps."""
        return self._replace(stages=self.stages[:count], changes=self.changes[:count])


class Prepared(NamedTuple):
    """Compiled sweeps, and the bytes of full arrays that they move for each point."""

    run: Callable[..., None]
    converts: Converts
    bytes_moved: int


@dataclass
class Progress:
    """The work that a machine's sweeps have done, and the state of its gates."""

    points_updated: int = 0
    bytes_moved: int = 0
    launches: int = 0
    gated: bool = False
    is_clear: bool = True
    recorded: list[Any] | None = None
    """The calls recorded instead of queued; None while nothing is recorded."""


def _of_progress(name: str) -> Any:
    """A property for an attribute of a machine's `Progress`, shared by all its precisions."""

    def get(machine: "Backend") -> Any:
        return getattr(machine._progress, name)

    def change(machine: "Backend", value: Any) -> None:
        setattr(machine._progress, name, value)

    return property(get, change)


class Message:
    """An array on its way between processes: packed by a sweep, moved by MPI, unpacked by a sweep.

    Sweeps write and read `array`; MPI sends or receives `buffer`. On a host both are one array, and
    nothing happens between packing and sending.
    """

    def __init__(self, array: Any, buffer: Any):
        self.array, self.buffer = array, buffer

    def to_buffer(self) -> None:
        """Copy the packed array into the buffer; MPI may send the buffer once this call returns."""

    def from_buffer(self) -> None:
        """Copy the received buffer into the array, for the sweeps that follow.

        A device copies in the order of its queue: MPI may receive into the buffer again only after
        a later `to_buffer`, of any message of the backend, has returned.
        """


@dataclass(frozen=True, eq=False)
class CycleLeg:
    """One half of a multigrid cycle on one level: before the correction, or after it.

    Sweep n is u[p] = point(p, u, *stages[n]) at the points p of `region` whose colour is
    colours[n]: 1 red, where the sum of the indices is even, -1 black, 0 both. `shape` is the shape
    of the field, periodic along the axes in `wraps`. `pitch`: the elements from row to row of the
    field, and of all other arrays that vary along all axes; rows may be padded.

    restricts: whether this is the half before the correction. After its sweeps it restricts
        residual(p, u, *operands) into the array `coarse`.
    coarse: an array of the coarse level. In the half after the correction the sweeps begin at u
        plus the correction interpolated from `coarse`; None: the leg is the rest of that half.
    from_zero: whether u is 0 at the beginning.
    norm: an Accumulator that takes the terms of a norm of the result's residual; None: no norm.
    counted: where blocks overlap, the block's own layers along the slowest axis, whose terms the
        norm takes; None: all.
    operands: the arguments of `residual`: b and the coefficients.
    stages: the arguments of each sweep: b, a weight, perhaps the inverse of the diagonal, and the
        coefficients; there is one stage even without sweeps.
    inverse: inverse(p, *coefficients) is the inverse of the diagonal in a stage.
    margin: each operand but b is constant over the points that have more than this number of layers
        between them and the walls.
    coarse_shape: the shape of the coarse field; the rows of its array may be padded, too.
    weights: four arrays for each axis, slowest axis first: in the coarse point q, the weights of
        the points 2q - 2 ... 2q + 1; or in the point 2q, then in the point 2q + 1, the weights of
        the coarse points q and q + 1.
    functions: the operations along one axis, with their values in this order: `restricted` takes
        four pairs of a weight and a value, `interpolated` two pairs, `corrected` two pairs and the
        former value; `coloured` takes a colour, the new and the former value, and the point's sign.
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
    """NumPy on the memory of a host backend; `threads`: the number of threads that it may use.

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
        """An array of the backend as an array of the library, in the same memory."""
        return array

    def lend(self, array: Any) -> Any:
        """A contiguous array of the library as an array of the backend, in the same memory."""
        return array

    def fft_among_ghosts(self, lengths: Sequence[int], dtype: np.dtype) -> Any:
        """An FFT along all axes of the unknowns of arrays that have a layer of ghosts around them;
        None if the library has none."""
        return None


class Backend(ABC):
    """A machine that sweeps point functions over regions of arrays, in one precision.

    `points_updated` and `bytes_moved` count the work of its sweeps: a point once for each sweep,
    and the bytes of each array element that a sweep, or a pass of several sweeps, must read or
    write at least once. `launches` counts the kernels that a device has queued, including the nodes
    of graphs, or the calls that a host has made. Methods that are not abstract work on every
    machine; fused sweeps and legs of cycles are a gain of some machines only.
    """

    name: str
    integer: Callable[[Any], Any] = int
    """The type in which compiled sweeps take an integer argument."""
    lookahead = 1
    """The number of steps that are worth queuing before the host reads a result."""
    threads = 1
    """Threads of the host that run its sweeps."""
    points_updated: int = _of_progress("points_updated")
    bytes_moved: int = _of_progress("bytes_moved")
    launches: int = _of_progress("launches")
    gated: bool = _of_progress("gated")
    """Whether sweeps now obey the gate; only devices that queue work have one."""
    is_clear: bool = _of_progress("is_clear")
    """Whether the gates of a device are open, and its ledger is empty."""
    most_wrapped = 0
    """The most points of a region whose sweep may read the other end of a periodic axis itself."""
    on_device = False
    """Whether arrays lie in the memory of a device, which not every MPI can read."""

    def __init__(self, precision: str = "float64"):
        self.precision = precision
        self.dtype = np.dtype(precision)
        self.combine: Callable[[np.ndarray], np.ndarray] = _alone
        self._progress = Progress()
        # Compiled sweeps, fused sweeps, and analyses of sweeps, each by everything that it depends
        # on; the keys of the three differ in length.
        self._compiled: dict[Any, Any] = {}
        self._single: Self | None = None
        self._double: Self | None = None

    def single(self) -> Self:
        """The same machine in single precision.

        Its sweeps share the queue, the gate and the count of work with this machine. Sweeps of this
        machine also take arrays in single precision: they read them exactly, compute in double
        precision, and round the results.
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
        """Use `combine` from now on to add up the registers of all processes.

        Without a link a device's gate cannot depend on other processes' sums, so the host reads
        every check.
        """
        self.combine = combine
        self.lookahead = 1

    @property
    def joined(self) -> bool:
        """Whether other processes share the case."""
        return self.combine is not _alone

    def connect(self, ranks: Any, name: str) -> tuple[Link | None, str]:
        """The link "peer" or "nccl" between the devices of these processes, or the reason why there
        is none; all processes call this together."""
        return None, "there is no GPU"

    @property
    def failure(self) -> str:
        """Why a device can do no more work; "" while no failure is known."""
        return ""

    def count(self, points: int, moved: int, launches: int = 0) -> None:
        """Count points that sweeps have updated, bytes that they have moved, and launches."""
        progress = self._progress
        progress.launches += launches
        progress.points_updated += points
        progress.bytes_moved += moved

    # ---- arrays ----------------------------------------------------------------------------------

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the memory that holds its arrays."""
        return host_memory()

    @property
    def threading(self) -> str:
        """The threads of the host that run its sweeps, in words."""
        return "one thread"

    @abstractmethod
    def zeros(self, shape: Sequence[int]) -> Any:
        """A new array of zeros in the backend's precision."""

    def fewest_in_legs(self, dimension: int) -> int:
        """The fewest points of a block for which half a cycle of multigrid is one pass; 0 if their
        number does not matter."""
        return 0

    def padded(self, shape: Sequence[int]) -> tuple[int, ...]:
        """This shape, padded so that fused sweeps are fastest.

        The elements that pad rows stay 0 and are never read as values.
        """
        return tuple(shape)

    @abstractmethod
    def to_device(self, host: np.ndarray) -> Any:
        """A copy of a host array on the device, in the backend's precision."""

    def factor(self, host: np.ndarray) -> Any:
        """As `to_device`, for an array used only as factor or divisor; ONE if all elements are
        1."""
        return ONE if np.all(host == 1.0) else self.to_device(host)

    @abstractmethod
    def to_host(self, array: Any) -> np.ndarray:
        """A copy of a device array on the host."""

    def take(self, array: Any, region: Region) -> np.ndarray:
        """A contiguous copy of a region of a device array, on the host."""
        return np.ascontiguousarray(self.to_host(array)[slices(region)])

    def put(self, array: Any, region: Region, values: np.ndarray) -> None:
        """Copy a host array into a region of the same shape."""
        (low, _), *others = region
        rows = max(1, LARGEST_PUT // max(1, values[:1].nbytes))
        for first in range(0, len(values), rows):
            some = np.ascontiguousarray(values[first : first + rows])
            bounds = ((low + first, low + first + len(some)), *others)
            distances = [-begin for begin, _ in bounds]
            self.sweep(shifted, array, bounds, self.to_device(some), *distances)

    def lent(self, array: Any) -> Any:
        """The same memory as an array of the device's array library."""
        return array

    def part(self, array: Any, shape: Sequence[int], first: int = 0) -> Any:
        """The elements of an array from number `first` on, with this shape, without a copy."""
        return array.reshape(-1)[first : first + math.prod(shape)].reshape(tuple(shape))

    def copy(self, target: Any, source: Any) -> None:
        """target = source for whole arrays, by the machine's fastest copy."""
        np.copyto(target, source)

    def message(self, shape: Sequence[int], direct: bool = False) -> Message:
        """A message of zeros; `direct`: MPI reads and writes the array of the device itself."""
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
        """A call that does `work`: it must sweep the same arrays with the same numbers each time.

        A backend may record the sweeps once and replay them, without work of the host for each
        sweep. To record, it calls `work` ahead of time, without effect; so `work` may only sweep,
        and must not read a result. `gated`: whether the gate is in use at the first replay.
        `continues`: whether the work belongs inside `continuing`.
        """
        return work

    def enqueue(self, work: Callable[[], None]) -> None:
        """Do some work in order with the sweeps, or record it while sweeps are recorded."""
        work()

    def joins(self, regions: Sequence[Region]) -> bool:
        """Whether independent sweeps over these regions would share one launch, which only recorded
        sweeps do."""
        return False

    @property
    def records(self) -> bool:
        """Whether calls are now recorded instead of queued."""
        return self._progress.recorded is not None

    def record(self, work: Callable[[], None]) -> tuple[list[Any], int, int]:
        """The calls that `work` would make or queue, its points updated, and its bytes moved."""
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

    def now(self) -> Any:
        """The present place in the queue; on a host the time at which all work is done."""
        self.sync()
        return time.perf_counter()

    def elapsed(self, began: Any, ended: Any) -> float:
        """Seconds between two places in the queue, by the device's clock (waits for the second)."""
        return float(ended - began)

    def stopwatch(self) -> Callable[[], float]:
        """Start a clock; return a call for the seconds since (waits until all work is done)."""
        began = self.now()
        return lambda: self.elapsed(began, self.now())

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

        `out` is an array, an Accumulator, or, for a point function of several values, a tuple of
        these. Raises ValueError when an output is also read at a shift or is too small. `wraps`:
        the periodic axes of the first argument; the sweep reads the axis's other end in place of
        ghosts. The region must then be all unknowns: of the argument's own grid, at most
        `most_wrapped`, or of a grid twice as coarse or as fine, any number.
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
            more = self.precision, len(region), progress.gated
            signature = Signature(described, kinds, in_place, *more, narrow=narrow, wraps=wraps)
            known = self._compiled[key] = self._prepare(point, signature)
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

    def sweep_together(self, sweeps: Sequence[PointSweep], part: Region | None = None) -> None:
        """Make sweeps, none of which reads or writes an element that another one writes; with
        `part` only in this part of their regions.

        One sweep covers the points that all regions share, and loads once a value that several
        sweeps read. The rest of each region takes sweeps of its own.
        """
        if part is not None:
            cut = [each._replace(region=intersection([each.region, part])) for each in sweeps]
            sweeps = [each for each in cut if all(low < high for low, high in each.region)]
            if not sweeps:
                return
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

    def _prepare(self, point: Point, signature: Signature) -> Prepared:
        """A compiled sweep. Raises ValueError where an output is also read at a shift."""
        tape = signature.tape(point)
        if any(tape.read_at_a_shift(number) for number in signature.in_place if number is not None):
            raise ValueError(f"{point.__name__} reads its output at a shift")
        run = self._compile(point, signature, tape)
        return Prepared(run, self._converts(signature.arguments), signature.bytes_moved(tape))

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
        """A series of accumulators, for the norms of consecutive sweeps."""
        return [self.accumulator(kind) for _ in range(count)]

    def scalars(self, count: int) -> Scalars:
        """Scalars that keep `count` sums, all 0, and form their quotients."""
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
    """Whether work can be queued behind a ledger before the host has read the ledger."""
    continued = False
    """Whether the work queued behind the ledger that the host read last has been done."""

    confirmed: float | None = None
    """The value that `confirm` found for the ledger that the host read last, if it was done."""

    def continuing(self) -> AbstractContextManager[None]:
        """A context for work that is queued behind a ledger, or recorded for such use.

        The work is done only if the ledger ends at the check `continues_at` of `open_gate`.
        """
        return nullcontext()

    def confirm(self, accumulator: Accumulator, threshold: float) -> None:
        """Check a largest magnitude as work that continues, before the ledger is posted.

        The value is in no ledger but `confirmed`. Work that continues later is done only if the
        value is at most the threshold.
        """
        raise NotImplementedError

    def open_gate(self, continues_at: int = 0) -> None:
        """Begin a ledger of checks.

        A device that queues work has a gate, too: once the value of a check is at most its
        threshold, the sweeps queued after the check do nothing. So the device stops at the very
        step that meets a criterion, although the host reads the value later. The gate may close a
        little early (the host then decides to go on), never late; for the largest magnitude it
        closes exactly. `continues_at`: the number of the check at which the gate must close, with a
        finite value, for the work of `continuing` to be done; 0: that work is done in any case.
        """
        self._checks: list[float] = []
        self.confirmed = None

    def clear(self, accumulators: Sequence[Accumulator]) -> None:
        """Empty accumulators: one, or a whole series."""
        for accumulator in accumulators:
            accumulator.clear()

    def check(self, accumulators: Sequence[Accumulator], threshold: float) -> None:
        """Enter the values of accumulators into the ledger, and clear the accumulators."""
        self._checks += [accumulator.take() for accumulator in accumulators]

    def ledger(self) -> list[float]:
        """End the gate; the values of the checks up to the check that closed it (waits)."""
        return self.posted_ledger()()

    def posted_ledger(self) -> Callable[[], list[float]]:
        """End the gate without waiting; return a call that waits for the ledger and returns it."""
        return self._checks.copy

    def values(self, accumulators: Sequence[Accumulator]) -> list[float]:
        """The values of several accumulators, by one message and one wait; clears all (waits)."""
        return self.posted_values(accumulators)()

    def posted_values(self, accumulators: Sequence[Accumulator]) -> Callable[[], list[float]]:
        """Clear several accumulators; return a call that waits for their values, before the next
        post of the same accumulators (all processes call both together)."""
        if not accumulators:
            return list
        rows = np.array([self.read_register(each.register) for each in accumulators])
        for each in accumulators:
            each.clear()
        return lambda: values_of([each.kind for each in accumulators], self.combine(rows))

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

    def most_fused(self, sweeps: SweepSequence) -> int:
        """The number of these sweeps that are worth fusing in one pass; 1 if a pass gains nothing.

        The result changes no bits.
        """
        return 1

    def room_of_pass(self, extents: tuple[int, ...], levels: int, tape: Tape) -> int:
        """Bytes that a pass of `levels` sweeps keeps besides arrays."""
        return 0

    def fused_sweeps(self, sweeps: SweepSequence, new: Any, counted: Region) -> None:
        """new = the result of several sweeps, each from the result of the sweep before; u is kept.

        The ghosts of u are up to date; `new` is written inside the region only. Norms of changes
        are taken over the region `counted`. Called for 2 to `most_fused` sweeps. Raises ValueError
        when `new` is also read or is too small, and on a machine that makes one sweep at a time.
        """
        point, u, region, stages, wraps, changes = sweeps
        if any(high <= low for low, high in region):
            return
        demand_apart(sweeps, new)
        kinds = tuple([None if change is None else change.kind for change in changes])
        described = sweeps.described()
        key = (point, described, kinds, wraps, self.gated)
        known = self._compiled.get(key)
        if known is None:
            signature = self._signature(described, len(wraps), self.gated)
            tape = signature.tape(point)
            run = self._compile_fused(point, signature, tape, wraps, kinds)
            if run is None:
                raise ValueError(f"{self.name} makes one sweep at a time")
            converts = self._converts(described[1:])
            known = self._compiled[key] = Prepared(run, converts, signature.bytes_moved(tape))
        run, converts, bytes_moved = known
        args = [converted(stage, converts) for stage in stages]
        registers = [None if change is None else change.register for change in changes]
        run(new, u, region, args, registers, counted)
        points = math.prod([high - low for low, high in region])
        self.count(points * len(stages), points * bytes_moved)

    def _signature(self, described: Any, axes: int, gated: bool = False) -> Signature:
        """The signature of sweeps of a pass."""
        return Signature(described, ("array",), (None,), self.precision, axes, gated)

    def _analysed(self, find: Callable[..., Any], sweeps: SweepSequence, *more: Any) -> Any:
        """The result of `find` for a sweep, found once for each kind of sweep; for `most_fused`."""
        described = sweeps.described()
        key = find, sweeps.point, described
        if key not in self._compiled:
            signature = self._signature(described, len(sweeps.region))
            self._compiled[key] = find(signature.tape(sweeps.point), signature, *more)
        return self._compiled[key]

    def cycle_leg(self, leg: CycleLeg) -> Callable[[Any, Any], None] | None:
        """A callable (new, u) for half a cycle in one or two passes; None if the backend has none.

        The callable writes the result to `new` and does not change u. Before the call the ghosts of
        u and of the coarse array (but see `reads_other_ends`) are up to date, and at walls the
        ghosts of `new` equal those of u (0 for `from_zero`). Without sweeps there is nothing to
        write, and `new` is u.
        """
        return None

    def reads_other_ends(self, leg: CycleLeg) -> bool:
        """Whether this leg needs no ghosts of the coarse array at the ends of periodic axes."""
        return False

    def _compile_fused(
        self,
        point: Point,
        signature: Signature,
        tape: Tape,
        wraps: tuple[bool, ...],
        kinds: tuple[str | None, ...],
    ) -> FusedSweeps | None:
        """Compiled fused sweeps; None on a machine that makes one sweep at a time.

        `kinds`: for each sweep the kind of the norm of its change; None for a sweep without a norm,
        whose register is None, too.
        """
        return None


def demand_apart(sweeps: SweepSequence, new: Any) -> None:
    """Raise ValueError where fused sweeps would read the array `new`, or `new` is too small."""
    for (_, high), extent in zip(sweeps.region, new.shape, strict=True):
        if high > extent:
            raise ValueError(f"region {sweeps.region} does not fit an output of {new.shape}")
    if place_of(new, (sweeps.u, *sweeps.stages[0])) is not None:
        raise ValueError(f"{sweeps.point.__name__}: a fused sweep does not write what it reads")


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
