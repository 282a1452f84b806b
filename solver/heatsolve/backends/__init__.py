"""What a machine must offer so that the solver runs on it: the backend interface.

Four backends implement it: `numpy`, `numba` (threads), `cupy` and `cuda` (Numba-CUDA). Each runs
the same point functions and gives the same bits. Arrays hold a grid's unknowns and their ring of
ghosts; a *region* is `((low, high), ...)`, a half-open range of array indices for each axis,
slowest axis first.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from heatsolve.backends.accumulator import Accumulator
from heatsolve.backends.cycle_leg import CycleLeg
from heatsolve.backends.gpu.nccl import Nccl
from heatsolve.backends.library import ArrayLibrary
from heatsolve.backends.machine import Converts, converted
from heatsolve.backends.message import Message
from heatsolve.backends.passes import LONGEST_PASS, Passes
from heatsolve.stencil.language import ONE, Point
from heatsolve.stencil.signature import Region, Signature, describe, place_of
from heatsolve.stencil.trace import Tape


class Prepared(NamedTuple):
    """A compiled sweep, and the bytes of full arrays that it moves for each point."""

    run: Callable[[Region, Sequence[Any], Sequence[Any]], None]
    converts: Converts
    bytes_touched: int


class Backend(Passes, ABC):
    """A machine that sweeps point functions over regions of arrays.

    Its precision and the count of its work are those of a `Machine`. What is not abstract has a
    meaning for every machine; `Passes` are a gain that only some have.
    """

    lookahead = 1
    """How many steps it pays to queue before the host looks at a result."""
    on_device = False
    """Whether arrays lie in the memory of a device, which not every MPI can read."""

    def __init__(self, precision: str = "float64"):
        super().__init__(precision)
        self.combine: Callable[[np.ndarray], np.ndarray] = _alone

    def join(self, combine: Callable[[np.ndarray], np.ndarray], nccl: Nccl | None = None) -> None:
        """From now on `combine` makes the registers of all processes one.

        Without NCCL between devices a gate cannot know what other processes found, so the
        host looks every time.
        """
        self.combine = combine
        self.lookahead = 1

    def connect(self, ranks: Any) -> tuple[Nccl | None, str]:
        """NCCL among the devices of these processes, or why there is none; all ask together."""
        return None, "there is no GPU"

    @abstractmethod
    def zeros(self, shape: Sequence[int]) -> Any:
        """A new array of zeros in the backend's precision."""

    def padded(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The extents of an array of a shape in whose memory the backend's passes are fastest.

        Rows may have room for more elements. Those stay 0, and count nowhere.
        """
        return tuple(shape)

    @abstractmethod
    def to_device(self, host: np.ndarray) -> Any:
        """A copy of a host array on the device, in the backend's precision."""

    def factor(self, host: np.ndarray) -> Any:
        """The same of an array that is only multiplied and divided by; ONE where it is 1."""
        return ONE if np.all(host == 1.0) else self.to_device(host)

    @abstractmethod
    def to_host(self, array: Any) -> np.ndarray:
        """A copy of a device array on the host."""

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

    @abstractmethod
    def sync(self) -> None:
        """Wait until all sweeps are done."""

    def replayed(self, work: Callable[[], None]) -> Callable[[], None]:
        """What does `work`: sweeps of the same arrays with the same numbers at each call.

        A backend may note them down once and play them back, without the host's part in each. It
        calls `work` for that ahead of time, without effect: so it only sweeps, and reads no result.
        """
        return work

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
        points = math.prod([max(0, high - low) for low, high in region])
        if points == 0:  # nothing is compiled for it
            return
        outputs = out if isinstance(out, tuple) else (out,)
        kinds = tuple([o.kind if isinstance(o, Accumulator) else "array" for o in outputs])
        in_place = tuple([place_of(o, arguments) for o in outputs])
        described = tuple([describe(a) for a in arguments])
        course = self._course
        narrow = () if self._single is None else _narrow(outputs, arguments)
        key = (point, described, kinds, in_place, len(region), course.gated, narrow)
        known = self._compiled.get(key)
        if known is None:
            known = self._compiled[key] = self._prepare(*key)
        run, converts, bytes_touched = known
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
        run(region, targets, converted(arguments, converts))
        course.points_updated += points
        course.bytes_moved += points * bytes_touched

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
        self._checks.append(accumulator.take())

    def ledger(self) -> list[float]:
        """The values of the checks up to the one that closed the gate; ends the gate (waits)."""
        return self._checks

    def values(self, accumulators: Sequence[Accumulator]) -> list[float]:
        """The values of several accumulators, which then begin anew: one wait for all (waits)."""
        return [accumulator.take() for accumulator in accumulators]

    def _prepare(
        self,
        point: Point,
        described: Any,
        kinds: Any,
        in_place: Any,
        axes: int,
        gated: bool,
        narrow: tuple[str, ...],
    ) -> Prepared:
        signature = Signature(
            described, kinds, in_place, self.precision, axes, gated, narrow=narrow
        )
        tape = signature.tape(point)
        if any(tape.read_at_a_shift(number) for number in in_place if number is not None):
            raise ValueError(f"{point.__name__} reads its output at a shift")
        run = self._compile(point, signature, tape)
        return Prepared(run, self._converts(described), signature.bytes_touched(tape))

    def reduce(self, kind: str, point: Point, region: Region, *arguments: Any) -> float:
        """The sum, or the largest magnitude, of a point function over a region.

        The sum does not depend on the order of its terms (see `sums`); either is NaN when a value
        is not finite.
        """
        accumulator = self.accumulator(kind)
        self.sweep(point, accumulator, region, *arguments)
        return accumulator.value


SINGLE = np.dtype("float32")


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


__all__ = [
    "LONGEST_PASS",
    "Accumulator",
    "ArrayLibrary",
    "Backend",
    "CycleLeg",
    "Message",
    "Nccl",
    "Region",
    "Signature",
]
