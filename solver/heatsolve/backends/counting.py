"""The counting backend: it stands for a machine, and only counts the machine's work.

Arrays are counted, and large arrays are not made. While a problem is set up, small arrays are made
and computed, so that objects that depend on their values, such as coarse levels, are as in a run.
Afterwards sweeps are counted, too, and nothing is computed: every norm is 0.
"""

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from heatsolve.backends import (
    MOST_FUSED,
    ArrayLibrary,
    Backend,
    CycleLeg,
    FusedSweeps,
    Region,
    Signature,
    SweepSequence,
)
from heatsolve.backends.host.numpy import NumpyBackend, plan, slabs
from heatsolve.stencil.language import Point
from heatsolve.stencil.trace import CONDITIONS, Tape

MADE_UP_TO = 1 << 21
"""The most elements of an array that is made."""


class Counted:
    """A stand-in for an array, without memory; `host`: the NumPy array that it copies, if known."""

    def __init__(self, shape: Sequence[int], dtype: np.dtype, host: np.ndarray | None = None):
        self.shape, self.dtype, self.host = tuple(map(int, shape)), dtype, host

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def reshape(self, *shape: Any) -> "Counted":
        extents = list(shape[0] if isinstance(shape[0], tuple | list) else shape)
        if -1 in extents:
            extents[extents.index(-1)] = -self.size // math.prod(extents)
        return _View(self, extents)

    def view(self, dtype: Any) -> "Counted":
        return self


class _View(Counted):
    """The same memory in another shape."""

    def __init__(self, of: Counted, shape: Sequence[int]):
        super().__init__(shape, of.dtype)
        self._of = of


@dataclass
class Tally:
    """Bytes of the arrays that exist, the most bytes at any time, and calls of kernels.

    `rooms`: the bytes that each kind of pass keeps besides arrays, by its sweeps and its extents.
    """

    bytes: int = 0
    most: int = 0
    calls: int = 0
    rooms: dict[Any, int] = field(default_factory=dict)

    def take(self, count: int) -> None:
        self.bytes += count
        self.most = max(self.most, self.bytes)

    def give_back(self, count: int) -> None:
        self.bytes -= count


class CountingBackend(NumpyBackend):
    """Counts the work of `machine`, which chooses as in a run, but neither compiles nor computes.

    `stretch`: how many times longer the axes of the real arrays are than the counted axes.
    """

    def __init__(self, machine: Backend, stretch: float = 1.0):
        super().__init__(machine.precision)
        self.machine, self.tally = machine, Tally()
        self.name, self.on_device = machine.name, machine.on_device
        self.most_wrapped = machine.most_wrapped
        self._stretch, self._computes = stretch, True

    def _twin(self, precision: str) -> Self:
        twin = super()._twin(precision)
        twin.machine = self.machine.single() if precision == "float32" else self.machine.double()
        return twin

    def memory(self) -> tuple[int, int]:
        return self.machine.memory()

    @contextmanager
    def only_counting(self) -> Iterator[None]:
        """A context in which nothing is computed."""
        self._computes = False
        try:
            yield
        finally:
            self._computes = True

    # ---- arrays ------------------------------------------------------------------------------

    def zeros(self, shape: Sequence[int]) -> Any:
        return self._made(shape, None)

    def to_device(self, host: np.ndarray) -> Any:
        return self._made(host.shape, host)

    def _made(self, shape: Sequence[int], host: np.ndarray | None) -> Any:
        array: Any
        if math.prod(shape) > MADE_UP_TO:
            array = Counted(shape, self.dtype, host)
        elif host is None:
            array = super().zeros(shape)
        else:
            array = super().to_device(host)
        self.tally.take(array.nbytes)
        weakref.finalize(array, self.tally.give_back, array.nbytes)
        return array

    def to_host(self, array: Any) -> np.ndarray:
        if not isinstance(array, Counted):
            return super().to_host(array)
        return array.host if array.host is not None else np.broadcast_to(0.0, array.shape)

    take = Backend.take

    def copy(self, target: Any, source: Any) -> None:
        self.tally.calls += 1
        self.bytes_moved += target.nbytes + source.nbytes

    def part(self, array: Any, shape: Sequence[int], first: int = 0) -> Any:
        if isinstance(array, Counted):
            return _View(array, shape)
        return super().part(array, shape, first)

    def fewest_in_legs(self, dimension: int) -> int:
        return self.machine.fewest_in_legs(dimension)

    def padded(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self.machine.padded(shape)

    def library(self) -> ArrayLibrary:
        self.machine.library()  # may raise InputError
        return CountingLibrary(self)

    # ---- sweeps ------------------------------------------------------------------------------

    def _compile(self, point: Point, signature: Signature, tape: Tape) -> Any:
        computed = super()._compile(point, signature, tape)
        steps = plan(tape, signature.outputs == ("array",)) if self.name == "numpy" else []

        def run(region: Region, targets: Sequence[Any], arguments: Sequence[Any]) -> None:
            self.tally.calls += 1
            if self._computes and not any(isinstance(a, Counted) for a in (*targets, *arguments)):
                computed(region, targets, arguments)
            if steps:
                block = next(slabs(region)) if signature.reduces else region
                extents = tuple([high - low for low, high in block])
                for step in steps:
                    if step.scratch is not None:
                        self._take_scratch(extents, step.name in CONDITIONS, step.scratch)

        return run

    def _take_scratch(self, extents: tuple[int, ...], condition: bool, number: int) -> None:
        key = (extents, condition, number)
        if key not in self._compiled:
            self._compiled[key] = True
            self.tally.take(math.prod(extents) * (1 if condition else self.dtype.itemsize))

    replayed = Backend.replayed

    def most_fused(self, sweeps: SweepSequence) -> int:
        u, stretch = sweeps.u, self._stretch
        real = Counted([round(extent * stretch) for extent in u.shape], u.dtype)
        region = tuple((low, round(high * stretch)) for low, high in sweeps.region)
        return self.machine.most_fused(sweeps._replace(u=real, region=region))

    def _compile_fused(
        self,
        point: Point,
        signature: Signature,
        tape: Tape,
        wraps: tuple[bool, ...],
        kinds: tuple[str | None, ...],
    ) -> FusedSweeps | None:
        # A sweep of a field that stays on the chip takes at least half the time of a call.
        calls = 1 if len(kinds) <= MOST_FUSED else len(kinds) // 2

        def run(new: Any, u: Any, region: Region, *others: Any) -> None:
            self.tally.calls += calls
            extents = tuple([round((high - low) * self._stretch) for low, high in region])
            key = point, signature, kinds, extents
            self.tally.rooms[key] = self.machine.room_of_pass(extents, len(kinds), tape)

        return run

    def reads_other_ends(self, leg: CycleLeg) -> bool:
        return self.machine.reads_other_ends(leg)

    def cycle_leg(self, leg: CycleLeg) -> Callable[[Any, Any], None] | None:
        if self.machine.cycle_leg(leg) is None:
            return None
        points = math.prod(high - low for low, high in leg.region)
        operands = {id(a): a for a in (*leg.stages[0], *leg.operands) if hasattr(a, "shape")}
        read = sum(1 not in array.shape for array in operands.values())
        arrays = read + (not leg.from_zero) + bool(leg.colours)
        coarse = 0 if leg.coarse is None else math.prod(leg.coarse_shape)

        def run(new: Any, u: Any) -> None:
            self.tally.calls += 1
            moved = (points * arrays + coarse) * self.dtype.itemsize
            self.count(points * len(leg.colours), moved)

        return run


class CountingLibrary(ArrayLibrary):
    """An array library whose transforms are counted, too."""

    def __init__(self, backend: CountingBackend):
        super().__init__()
        self.transforms = CountedTransforms(backend)


class CountedTransforms:
    """Fast transforms along axes: each reads and writes all values."""

    def __init__(self, backend: CountingBackend):
        self._backend = backend

    def _count(self, x: Any, times: int = 1) -> None:
        self._backend.tally.calls += times
        self._backend.bytes_moved += 2 * times * x.nbytes

    def real(self, x: Any, transform: str, kind: int, axis: int) -> Any:
        self._count(x)
        return x

    def spectrum(self, x: Any, axes: tuple[int, ...]) -> Any:
        self._count(x, len(axes))
        extents = list(x.shape)
        extents[axes[-1]] = extents[axes[-1]] // 2 + 1
        extents[-1] *= 2
        return self._backend.zeros(extents)

    def values(self, z: Any, lengths: tuple[int, ...], axes: tuple[int, ...]) -> Any:
        self._count(z, len(axes))
        extents = list(z.shape)
        extents[-1] //= 2
        for axis, length in zip(axes, lengths, strict=True):
            extents[axis] = length
        return self._backend.zeros(extents)
