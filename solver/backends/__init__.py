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
from copy import copy as duplicate
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from heatsolve.backends import sums
from heatsolve.backends.half_cycle import HalfCycle
from heatsolve.backends.library import ArrayLibrary
from heatsolve.backends.message import Message
from heatsolve.backends.signature import Region, Signature, describe, place_of
from heatsolve.backends.tape import INTEGER, Tape
from heatsolve.points import ONES, Point

LONGEST_PASS = 15
"""Sweeps that one pass through memory makes at most."""


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


class Prepared(NamedTuple):
    """A compiled sweep, the types its arguments are converted to, and its bytes for each point."""

    run: Callable[[Region, Sequence[Any], Sequence[Any]], None]
    converts: tuple[Callable[[Any], Any] | None, ...]
    bytes_touched: int


class PreparedPass(NamedTuple):
    """Several compiled sweeps in one pass through memory; see `Prepared`."""

    run: Callable[[Any, Any, Region, Sequence[Sequence[Any]], Sequence[Any], Region], None]
    converts: tuple[Callable[[Any], Any] | None, ...]
    arrays_touched: int


@dataclass
class Course:
    """What the sweeps of a machine have done, and whether they now obey its gate."""

    points_updated: int = 0
    bytes_moved: int = 0
    gated: bool = False


class Backend(ABC):
    """A machine that sweeps point functions over regions of arrays.

    `points_updated` and `bytes_moved` count what its sweeps have done: a point once for each
    sweep, a byte for each array element that a sweep, or a pass of several sweeps, must read or
    write at least once.
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
        self._course = Course()
        self._single: Backend | None = None
        self._sweeps: dict[Any, Prepared] = {}
        self._passes: dict[Any, PreparedPass] = {}
        self.combine: Callable[[np.ndarray], np.ndarray] = _alone

    def join(self, combine: Callable[[np.ndarray], np.ndarray]) -> None:
        """From now on `combine` makes the registers of all processes one.

        The gate of a device cannot know what other processes found, so the host looks every time.
        """
        self.combine = combine
        self.lookahead = 1

    def single(self) -> "Backend":
        """The same machine in single precision.

        Its sweeps come in turn with those of this one, obey the same gate and count as the same
        work. Sweeps of this one take its arrays, too: they read them exactly, compute in double
        precision, and round what they write.
        """
        if self._single is None:
            single = duplicate(self)
            single.precision, single.dtype = "float32", np.dtype("float32")
            single._sweeps, single._passes = {}, {}
            self._single = single
        return self._single

    @property
    def points_updated(self) -> int:
        return self._course.points_updated

    @points_updated.setter
    def points_updated(self, points: int) -> None:
        self._course.points_updated = points

    @property
    def bytes_moved(self) -> int:
        return self._course.bytes_moved

    @bytes_moved.setter
    def bytes_moved(self, moved: int) -> None:
        self._course.bytes_moved = moved

    @property
    def gated(self) -> bool:
        """Whether sweeps now obey the gate; only devices that queue work have one."""
        return self._course.gated

    @gated.setter
    def gated(self, gated: bool) -> None:
        self._course.gated = gated

    @abstractmethod
    def zeros(self, shape: Sequence[int]) -> Any:
        """A new array of zeros in the backend's precision."""

    @abstractmethod
    def to_device(self, host: np.ndarray) -> Any:
        """A copy of a host array on the device, in the backend's precision."""

    def factor(self, host: np.ndarray) -> Any:
        """The same of an array that is only multiplied and divided by; ONES where it is 1."""
        return ONES if np.all(host == 1.0) else self.to_device(host)

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

    def library(self) -> ArrayLibrary:
        """The array library of the backend's memory. Raises InputError where there is none."""
        return ArrayLibrary()

    @abstractmethod
    def sync(self) -> None:
        """Wait until all sweeps are done."""

    def replayed(self, work: Callable[[], None]) -> Callable[[], None]:
        """What does `work`: sweeps of the same arrays with the same numbers at each call.

        A device may note them down once and play them back, without the host's part in each.
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
        outputs = out if isinstance(out, tuple) else (out,)
        kinds = tuple([o.kind if isinstance(o, Accumulator) else "array" for o in outputs])
        in_place = tuple([place_of(o, arguments) for o in outputs])
        described = tuple([describe(a) for a in arguments])
        course = self._course
        narrow = () if self._single is None else _narrow(outputs, arguments)
        key = (point, described, kinds, in_place, len(region), course.gated, narrow)
        known = self._sweeps.get(key)
        if known is None:
            known = self._sweeps[key] = self._prepare(*key)
        run, converts, bytes_touched = known
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
        run(region, targets, _converted(arguments, converts))
        course.points_updated += points
        course.bytes_moved += points * bytes_touched

    def most_sweeps(
        self,
        point: Point,
        u: Any,
        region: Region,
        stages: Sequence[Sequence[Any]],
        wraps: Sequence[bool],
        changes: Sequence[Accumulator | None],
    ) -> int:
        """How many of these sweeps it pays to make in one pass through memory; 1: none is gained.

        The arguments are those of `sweeps`. The answer changes no bits.
        """
        return 1

    def sweeps(
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
        """new = the result of several sweeps in turn, each from the one before; u is left alone.

        Sweep n is point(p, u_n, *stages[n]) at the points p of `region`; the stages differ in
        numbers only. Outside the region every u_n keeps the values of u, but along an axis in
        `wraps` (a bool for each axis) u_n is periodic: index 0 is the image of index n, and index
        n + 1 that of index 1. The ghosts of u are up to date; `new` is written inside the region
        only. changes[n], an Accumulator or None, takes the norm of u_{n+1} - u_n (the sum of its
        squares, or its largest magnitude) over the region `counted`. Called for at most as many
        sweeps as `most_sweeps` says, if more than 1. Raises ValueError when `new` is read, too, or
        is too small.
        """
        if any(high <= low for low, high in region):
            return
        for (_, high), extent in zip(region, new.shape, strict=True):
            if high > extent:
                raise ValueError(f"region {region} does not fit an output of {new.shape}")
        if place_of(new, (u, *stages[0])) is not None:
            raise ValueError(f"{point.__name__}: a pass does not write what it reads")
        described = tuple([describe(a) for a in (u, *stages[0])])
        kinds = tuple([None if change is None else change.kind for change in changes])
        key = (point, described, kinds, tuple(wraps), self.gated)
        known = self._passes.get(key)
        if known is None:
            known = self._passes[key] = self._prepare_pass(*key)
        run, converts, arrays_touched = known
        given = [_converted(stage, converts) for stage in stages]
        registers = [None if change is None else change.register for change in changes]
        run(new, u, region, given, registers, counted)
        points = math.prod([high - low for low, high in region])
        self.points_updated += points * len(stages)
        self.bytes_moved += points * arrays_touched * self.dtype.itemsize

    def half_cycle(self, half: HalfCycle) -> Callable[[Any, Any], None] | None:
        """A callable (new, u) that does half a cycle in a pass or two; None where there is none.

        It writes the result to `new` and leaves u alone; the ghosts of u, and those of the coarse
        array, are up to date, and at walls those of `new` are as those of u (0 for `from_zero`).
        """
        return None

    def _prepare_pass(
        self, point: Point, described: Any, kinds: Any, wraps: tuple[bool, ...], gated: bool
    ) -> PreparedPass:
        axes = len(wraps)
        signature = Signature(described, ("array",), (None,), self.precision, axes, gated)
        tape = signature.tape(point)
        run = self._compile_pass(point, signature, tape, wraps, kinds)
        converts = self._converts(described[1:])
        return PreparedPass(run, converts, signature.arrays_touched(tape))

    def _compile_pass(
        self,
        point: Point,
        signature: Signature,
        tape: Tape,
        wraps: tuple[bool, ...],
        kinds: tuple[str | None, ...],
    ) -> Any:
        """A callable (new, u, region, stages, registers, counted) that makes the sweeps of a pass.

        `kinds` tells for each sweep which norm of its change is taken, if any; its register is
        None where it is not. Needed where `most_sweeps` is ever more than 1.
        """
        raise NotImplementedError(f"{self.name} makes one sweep at a time")

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

    def _converts(self, described: Any) -> tuple[Callable[[Any], Any] | None, ...]:
        """What makes numbers what loops take; arrays stay as they are."""
        return tuple(
            None if not isinstance(argument, str)
            else self.integer if argument == INTEGER else self.dtype.type
            for argument in described
        )  # fmt: skip

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


def _converted(arguments: Sequence[Any], converts: Sequence[Any]) -> list[Any]:
    return [
        a if convert is None else convert(a) for a, convert in zip(arguments, converts, strict=True)
    ]


__all__ = [
    "LONGEST_PASS",
    "Accumulator",
    "ArrayLibrary",
    "Backend",
    "HalfCycle",
    "Message",
    "Region",
    "Signature",
]
