"""What the two GPU backends share: the shape of a launch, the generated text, the gate.

A kernel gives each thread one column of the innermost axis and `ROWS` consecutive points of the
slowest axis. The tape is unrolled over those points, so that a value which two of them read is
loaded once, and nothing is stored before everything is loaded. CUDA C and Python for Numba-CUDA
differ in a few words only, which a `Dialect` holds.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heatsolve.backends import Accumulator, Backend, Region, Signature, sums
from heatsolve.backends.tape import Tape
from heatsolve.points import INDEX_NAMES

ROWS = {1: 1, 2: 4, 3: 3}
"""Points of the slowest axis that one thread updates, by dimension."""
ROWS_REDUCED = {1: 1, 2: 8, 3: 4}
"""The same where a sweep reduces: more points share the work of a block's reduction."""
BLOCK = {1: (256, 1), 2: (128, 2), 3: (64, 4)}
"""Threads of a block along the innermost axis and along the next."""
THREADS = 256
"""Threads of every block; the fold of a reduction needs a power of two."""
ALIGNMENT = 32
"""Threads begin at a column that is a multiple of this: a warp then touches whole cache lines."""
SPREAD = 64
"""Copies of a register over which the blocks of a launch spread their atomic additions."""
MOST_BLOCKS = 65535
"""Blocks that CUDA takes along the second and third axis of a launch."""
GATE_MARGIN = 1e-6
"""The gate closes this much (relative) above a threshold; the host decides with exact sums."""


@dataclass(frozen=True)
class Dialect:
    """The words in which CUDA C and Python differ."""

    where: str
    sqrt: str
    assign: str
    constants: dict[str, str]

    def constant(self, value: float, precision: str) -> str:
        if not math.isfinite(value):
            raise ValueError("a point function holds a constant that is not finite")
        return self.constants[precision].format(value=value, hex=_hex(value, precision))


def _hex(value: float, precision: str) -> str:
    return float(np.dtype(precision).type(value)).hex()


def unrolled(tape: Tape, rows: int) -> Tape:
    """The tape for `rows` neighbours along the slowest axis; results row by row."""
    wide = Tape(tape.dimension)
    results: list[int] = []
    for row in range(rows):
        places: list[int] = []
        for operation in tape.operations:
            operands = operation.operands
            if operation.name == "load":
                number, ((shift, added), *rest) = operands
                places.append(wide.add("load", number, ((shift + row, added), *rest)))
            elif operation.name in ("scalar", "constant"):
                places.append(wide.add(operation.name, *operands))
            else:
                places.append(wide.add(operation.name, *[places[o] for o in operands]))
        results += [places[result] for result in tape.results]
    wide.results = tuple(results)
    return wide


def body(
    tape: Tape, signature: Signature, dialect: Dialect, first_row: int, rows: int
) -> list[str]:
    """The statements that update `rows` points of a thread, beginning with row `first_row`.

    They read `i`, `j`, `k` (the thread's first point), `p` (its place in a full array) and the
    strides `stride_i`, `stride_j`; terms of reductions are left in `t{output}_{row}`.
    """
    shifted = unrolled(tape, first_row + rows)
    wanted = shifted.results[first_row * len(tape.results) :]
    lines = [
        dialect.assign.format(
            name=f"v{place}", value=_expression(shifted, place, signature, dialect)
        )
        for place in _needed(shifted, wanted)
    ]
    for row in range(first_row, first_row + rows):
        place = _place(row, tape.dimension)
        for n, kind in enumerate(signature.outputs):
            target = f"{signature.target(n)}[{place}]" if kind == "array" else f"t{n}_{row}"
            lines.append(f"{target} = v{shifted.results[row * len(tape.results) + n]}")
    return lines


def _needed(tape: Tape, wanted: Sequence[int]) -> list[int]:
    found: set[int] = set()
    waiting = list(wanted)
    while waiting:
        place = waiting.pop()
        if place in found:
            continue
        found.add(place)
        operation = tape.operations[place]
        if operation.name not in ("load", "scalar", "constant"):
            waiting += operation.operands
    return sorted(found)


def _expression(tape: Tape, place: int, signature: Signature, dialect: Dialect) -> str:
    operation = tape.operations[place]
    name, operands = operation.name, operation.operands
    if name == "constant":
        return dialect.constant(float.fromhex(operands[0]), signature.precision)
    if name == "scalar":
        return f"a{operands[0]}"
    if name == "load":
        number, subscript = operands
        return f"a{number}[{_address(subscript, signature.arguments[number], tape.dimension)}]"
    values = [f"v{operand}" for operand in operands]
    if name == "where":
        return dialect.where.format(*values)
    if name == "sqrt":
        return dialect.sqrt.format(*values)
    if name == "neg":
        return f"-{values[0]}"
    return f"{values[0]} {name} {values[1]}"


def _place(row: int, dimension: int) -> str:
    return "p" if row == 0 or dimension == 1 else f"p + {row} * stride_i"


def _address(subscript: tuple, constant: tuple[bool, ...], dimension: int) -> str:
    """The place of an element in an array whose rows have the common length, or length 1."""
    if not any(constant):
        terms = ["p"]
        for axis, (shift, added) in enumerate(subscript):
            offsets = ([str(shift)] if shift else []) + [f"a{number}" for number in added]
            stride = "" if axis == dimension - 1 else f" * stride_{INDEX_NAMES[axis]}"
            terms += [f"{offset}{stride}" for offset in offsets]
        return " + ".join(terms)
    terms = []
    for axis, (shift, added) in enumerate(subscript):
        if constant[axis]:
            continue
        index = " + ".join(
            [INDEX_NAMES[axis]] + ([str(shift)] if shift else []) + [f"a{n}" for n in added]
        )
        strides = [
            f"extent_{INDEX_NAMES[a]}" for a in range(axis + 1, dimension) if not constant[a]
        ]
        terms.append(" * ".join([f"({index})", *strides]))
    return " + ".join(terms) or "0"


@dataclass(frozen=True)
class Launch:
    """The numbers of one kernel launch: bounds of the region, then the extents below the first."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    bounds: tuple[int, ...]


def rows_of(signature: Signature) -> int:
    """Points of the slowest axis that one thread updates."""
    reduces = signature.outputs.count("array") < len(signature.outputs)
    return (ROWS_REDUCED if reduces else ROWS)[signature.dimension]


def launches(region: Region, shape: Sequence[int], rows: int) -> Iterator[Launch]:
    """The launches that cover a region of arrays of a shape; more than one where CUDA's limits end.

    Axes of a launch: x is the innermost axis, y the next, z the slowest of three; a thread takes
    ROWS points of the slowest axis.
    """
    dimension = len(region)
    x, y = BLOCK[dimension]
    (low, high), *rest = region
    block = (x, y, 1)
    across = -(-(region[-1][1] - region[-1][0] // ALIGNMENT * ALIGNMENT) // x)
    # The slowest axis is cut so that the launch stays within MOST_BLOCKS.
    deep = rows * (y if dimension == 2 else 1) * MOST_BLOCKS if dimension > 1 else high - low
    for start in range(low, high, max(1, deep)):
        stop = min(high, start + deep)
        threads = -(-(stop - start) // rows)
        if dimension == 1:
            grid = (across, 1, 1)
        elif dimension == 2:
            grid = (across, -(-threads // y), 1)
        else:
            grid = (across, -(-(region[1][1] - region[1][0]) // y), threads)
        bounds = [start, stop, *[bound for pair in rest for bound in pair]]
        yield Launch(grid, block, (*bounds, *shape[1:]))


class DeviceBackend(Backend):
    """A GPU that queues its sweeps.

    A check is a small kernel: it merges the copies of a register into the next row of the ledger,
    clears them, counts, and closes the gate. `_gate` holds two integers: closed, and the count.
    """

    lookahead = 64
    _gate: Any
    _rows: Any
    _kinds: list[str]

    @abstractmethod
    def integers(self, count: int) -> Any:
        """A device array of 64-bit zeros."""

    @abstractmethod
    def zero(self, array: Any) -> None:
        """Queue the zeroing of an array."""

    @abstractmethod
    def read_integers(self, array: Any) -> np.ndarray:
        """A device array of integers, on the host (waits)."""

    @abstractmethod
    def _queue_check(self, register: Any, is_sum: bool, limit: float) -> None:
        """Queue the kernel of a check."""

    def _make_gate(self) -> None:
        self._gate = self.integers(2)
        self._rows = self.integers(self.lookahead * sums.WIDTH)
        self._kinds = []

    def new_register(self) -> Any:
        return self.integers(SPREAD * sums.WIDTH)

    def clear_register(self, register: Any) -> None:
        self.zero(register)

    def read_register(self, register: Any) -> np.ndarray:
        return sums.merge(self.read_integers(register).reshape(SPREAD, sums.WIDTH))

    def open_gate(self) -> None:
        if self.lookahead == 1:
            super().open_gate()
            return
        self.zero(self._gate)
        self._kinds = []
        self.gated = True

    def check(self, accumulator: Accumulator, threshold: float) -> None:
        if self.lookahead == 1:
            super().check(accumulator, threshold)
            return
        if len(self._kinds) == self.lookahead:
            raise ValueError(f"a ledger holds {self.lookahead} checks")
        self._kinds.append(accumulator.kind)
        limit = threshold * (1.0 + GATE_MARGIN) if threshold >= 0.0 else -1.0
        self._queue_check(accumulator.register, accumulator.kind == "sum", limit)

    def ledger(self) -> list[float]:
        if self.lookahead == 1:
            return super().ledger()
        self.gated = False
        passed = int(self.read_integers(self._gate)[1])
        rows = self.read_integers(self._rows).reshape(self.lookahead, sums.WIDTH)
        return [sums.VALUE_OF[kind](row) for kind, row in zip(self._kinds, rows[:passed])]  # noqa: B905

    def _common_shape(self, outputs: tuple, arguments: tuple) -> tuple[int, ...]:
        """The shape of all full arrays of a sweep: generated code has one set of strides."""
        arrays = [x for x in (*outputs, *arguments) if len(getattr(x, "shape", ())) > 0]
        shapes = {tuple(a.shape) for a in arrays if 1 not in a.shape}
        if len(shapes) > 1:
            raise ValueError(f"the full arrays of a sweep differ in shape: {sorted(shapes)}")
        if shapes:
            return shapes.pop()
        return tuple(max(extents) for extents in zip(*[a.shape for a in arrays], strict=True))
