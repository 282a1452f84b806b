"""What a machine must offer so that the solver runs on it: the backend interface.

Four backends implement it: `numpy`, `numba` (threads), `cupy` and `cuda` (Numba-CUDA). Each runs
the same point functions and gives the same bits. Arrays hold a grid's unknowns and their ring of
ghosts; a *region* is `((low, high), ...)`, a half-open range of array indices for each axis,
slowest axis first.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from heatsolve.backends import sums
from heatsolve.backends.tape import ARRAY, INTEGER, REAL, Tape, record
from heatsolve.points import Point

Region = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Signature:
    """What a compiled sweep depends on besides its point function.

    `arguments`: for each argument REAL, INTEGER, or for an array a tuple that tells for each axis
    whether the array is constant along it. `outputs`: for each result "array", "sum" or "max".
    `in_place`: for each output, the number of the argument that is the same array, or None.
    `gated`: whether the sweep does nothing once the device's gate is closed. `apart`: the arrays,
    by their names in generated code, whose extents are not those that the others share.
    """

    arguments: tuple[Any, ...]
    outputs: tuple[str, ...]
    in_place: tuple[int | None, ...]
    precision: str
    dimension: int
    gated: bool = False
    apart: tuple[str, ...] = ()

    def tape(self, point: Point) -> Tape:
        kinds = [argument if isinstance(argument, str) else ARRAY for argument in self.arguments]
        tape = record(point, kinds, self.dimension)
        if len(tape.results) != len(self.outputs):
            raise TypeError(
                f"{point.__name__} returns {len(tape.results)} values, "
                f"the sweep has {len(self.outputs)} outputs"
            )
        return tape

    def target(self, output: int) -> str:
        """The name by which generated code writes an array output: one name for one array."""
        argument = self.in_place[output]
        return f"o{output}" if argument is None else f"a{argument}"

    def suffix(self, name: str) -> str:
        """What generated code appends to the names of an array's extents, strides and place."""
        return f"_{name}" if name in self.apart else ""

    def arrays_touched(self, tape: Tape) -> int:
        """How many full arrays one sweep moves through memory, read plus written."""
        read = {number for number, _ in tape.loads() if not any(self.arguments[number])}
        return len(read) + self.outputs.count("array")


class Accumulator:
    """Where a sweep puts the sum, or the largest magnitude, of a value over its region.

    A device keeps it without telling the host; `value` waits for it.
    """

    def __init__(self, kind: str, register: Any, backend: "Backend"):
        self.kind, self.register, self._backend = kind, register, backend

    @property
    def value(self) -> float:
        register = self._backend.read_register(self.register)
        return sums.VALUE_OF[self.kind](self._backend.combine(register))

    def clear(self) -> None:
        """Begin anew."""
        self._backend.clear_register(self.register)


class Message:
    """An array on its way between processes: packed by a sweep, moved by MPI, unpacked by a sweep.

    `array` is what sweeps write and read, `buffer` is what MPI sends or receives. On a host they
    are the same, and nothing is to be done between packing and sending.
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


class Prepared(NamedTuple):
    """A compiled sweep, the types that its arguments are converted to, and its memory traffic."""

    run: Callable[[Region, Sequence[Any], Sequence[Any]], None]
    converts: tuple[Callable[[Any], Any] | None, ...]
    arrays_touched: int


class Backend(ABC):
    """A machine that sweeps point functions over regions of arrays.

    `points_updated` and `bytes_moved` count what its sweeps have done: a point once for each
    sweep, a byte for each array element that a sweep must read or write at least once.
    """

    name: str
    lookahead = 1
    """How many steps it pays to queue before the host looks at a result."""
    on_device = False
    """Whether arrays lie in the memory of a device, which not every MPI can read."""
    integer: Callable[[Any], Any] = int
    """The type in which compiled sweeps take an integer argument."""

    def __init__(self, precision: str = "float64"):
        self.precision = precision
        self.dtype = np.dtype(precision)
        self.points_updated = 0
        self.bytes_moved = 0
        self._sweeps: dict[Any, Prepared] = {}
        self.combine: Callable[[np.ndarray], np.ndarray] = _alone

    def join(self, combine: Callable[[np.ndarray], np.ndarray]) -> None:
        """From now on `combine` makes the registers of all processes one.

        The gate of a device cannot know what other processes found, so the host looks every time.
        """
        self.combine = combine
        self.lookahead = 1

    @abstractmethod
    def zeros(self, shape: Sequence[int]) -> Any:
        """A new array of zeros in the backend's precision."""

    @abstractmethod
    def to_device(self, host: np.ndarray) -> Any:
        """A copy of a host array on the device, in the backend's precision."""

    @abstractmethod
    def to_host(self, array: Any) -> np.ndarray:
        """A copy of a device array on the host."""

    def copy(self, target: Any, source: Any) -> None:
        """target = source, all of it, by the fastest copy that the machine has."""
        np.copyto(target, source)

    def message(self, shape: Sequence[int], direct: bool = False) -> Message:
        """A message of zeros; `direct`: MPI takes an array of the device as it is."""
        array = self.zeros(shape)
        return Message(array, array)

    @abstractmethod
    def sync(self) -> None:
        """Wait until all sweeps are done."""

    def stopwatch(self) -> Callable[[], float]:
        """Begin to measure time; what is returned gives the seconds since, and may be called once.

        It waits until all work is done. Where a device has a clock of its own, the time is that
        between the two places in its queue.
        """
        self.sync()
        began = time.perf_counter()

        def seconds() -> float:
            self.sync()
            return time.perf_counter() - began

        return seconds

    @abstractmethod
    def new_register(self) -> Any:
        """An empty register for an Accumulator."""

    @abstractmethod
    def read_register(self, register: Any) -> np.ndarray:
        """The integers of a register, on the host (waits)."""

    @abstractmethod
    def clear_register(self, register: Any) -> None:
        """Empty a register."""

    @abstractmethod
    def _compile(self, point: Point, signature: Signature, tape: Tape) -> Any:
        """A callable (region, targets, arguments) that runs the point function.

        The targets are arrays and registers; numbers have the types of `dtype` and `integer`.
        """

    def accumulator(self, kind: str) -> Accumulator:
        """A new, empty accumulator: kind "sum" or "max" (of magnitudes)."""
        return Accumulator(kind, self.new_register(), self)

    def sweep(self, point: Point, out: Any, region: Region, *arguments: Any) -> None:
        """out[p] = point(p, *arguments) for every p of the region.

        `out` is an array, an Accumulator, or a tuple of them for a point function that returns as
        many values. Raises ValueError when an output is also read at a shift or is too small.
        """
        outputs = out if isinstance(out, tuple) else (out,)
        kinds = tuple([o.kind if isinstance(o, Accumulator) else "array" for o in outputs])
        in_place = tuple([_place_of(o, arguments) for o in outputs])
        described = tuple([_describe(a) for a in arguments])
        key = (point, described, kinds, in_place, len(region), self.gated)
        known = self._sweeps.get(key)
        if known is None:
            known = self._sweeps[key] = self._prepare(*key)
        run, converts, arrays_touched = known
        points = 1
        for low, high in region:
            if high <= low:
                return
            points *= high - low
        targets = []
        for output, kind in zip(outputs, kinds, strict=True):
            if kind != "array":
                targets.append(output.register)
                continue
            # Compiled loops do not look where they write.
            for (_, high), extent in zip(region, output.shape, strict=True):
                if high > extent:
                    raise ValueError(f"region {region} does not fit an output of {output.shape}")
            targets.append(output)
        given = [
            a if convert is None else convert(a)
            for a, convert in zip(arguments, converts, strict=True)
        ]
        run(region, targets, given)
        self.points_updated += points
        self.bytes_moved += points * arrays_touched * self.dtype.itemsize

    gated = False
    """Whether sweeps now obey the gate; only devices that queue work have one."""

    def open_gate(self) -> None:
        """Begin a ledger of checks.

        A device that queues work has a gate, too: once the value of a check is at most its
        threshold, the sweeps queued after it do nothing. So the device stops at the very step that
        meets a criterion though the host looks later. The gate may close a little early (the host
        decides, and goes on), never late.
        """
        self._checks: list[float] = []

    def check(self, accumulator: Accumulator, threshold: float) -> None:
        """Enter the value of an accumulator into the ledger, and clear the accumulator."""
        self._checks.append(accumulator.value)
        accumulator.clear()

    def ledger(self) -> list[float]:
        """The values of the checks up to the one that closed the gate; ends the gate (waits)."""
        return self._checks

    def _prepare(
        self, point: Point, described: Any, kinds: Any, in_place: Any, axes: int, gated: bool
    ) -> Prepared:
        signature = Signature(described, kinds, in_place, self.precision, axes, gated)
        tape = signature.tape(point)
        if any(tape.read_at_a_shift(number) for number in in_place if number is not None):
            raise ValueError(f"{point.__name__} reads its output at a shift")
        types: dict[Any, Callable[[Any], Any]] = {REAL: self.dtype.type, INTEGER: self.integer}
        converts = tuple(types.get(argument) for argument in described)
        run = self._compile(point, signature, tape)
        return Prepared(run, converts, signature.arrays_touched(tape))

    def reduce(self, kind: str, point: Point, region: Region, *arguments: Any) -> float:
        """The sum, or the largest magnitude, of a point function over a region.

        The sum does not depend on the order of its terms (see `sums`); either is NaN when a value
        is not finite.
        """
        accumulator = self.accumulator(kind)
        self.sweep(point, accumulator, region, *arguments)
        return accumulator.value


def _alone(register: np.ndarray) -> np.ndarray:
    return register


def _place_of(output: Any, arguments: Sequence[Any]) -> int | None:
    for number, argument in enumerate(arguments):
        if argument is output:
            return number
    return None


def _describe(argument: Any) -> Any:
    shape = getattr(argument, "shape", None)
    if shape:
        return tuple([extent == 1 for extent in shape])
    return INTEGER if isinstance(argument, int) else REAL


__all__ = ["Accumulator", "Backend", "Message", "Region", "Signature"]
