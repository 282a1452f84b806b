"""The text that both GPU backends generate from a tape.

The tape is unrolled over the points of a thread, so that a value which two of them read is loaded
once, and nothing is stored before everything is loaded. CUDA C and Python for Numba-CUDA differ in
a few words only, which a `Dialect` holds.

A kernel has one set of strides for all arrays of a sweep, named `stride_i` and so on. An array of
another shape, such as a packed layer of ghosts, is *apart*: its own extents are passed, too, and
the names that belong to it end in its name, `stride_i_a0`.
"""

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from heatsolve.backends import Signature
from heatsolve.backends.gpu.launch import ALIGNMENT, Shape
from heatsolve.stencil.language import INDEX_NAMES
from heatsolve.stencil.trace import Tape, spelled


@dataclass(frozen=True)
class Dialect:
    """The words in which CUDA C and Python differ."""

    where: str
    sqrt: str
    assign: str
    assign_integer: str
    wide: str
    """A conversion to 64 bits: threads of a launch are counted in 32."""
    real: str
    """A conversion to double precision, which is exact."""
    launch: str
    """What precedes the names of a thread's place in its launch."""
    constants: dict[str, str]

    def constant(self, value: float, precision: str) -> str:
        if not math.isfinite(value):
            raise ValueError("a point function holds a constant that is not finite")
        return self.constants[precision].format(value=value, hex=_hex(value, precision))

    def integer(self, name: str, value: str) -> str:
        return self.assign_integer.format(name=name, value=value)

    def block(self, axis: str) -> str:
        return self.wide.format(f"{self.launch}blockIdx.{axis}")

    def thread(self, axis: str) -> str:
        return f"{self.block(axis)} * {self.launch}blockDim.{axis} + {self.launch}threadIdx.{axis}"


def _hex(value: float, precision: str) -> str:
    return float(np.dtype(precision).type(value)).hex()


def extent_names(signature: Signature) -> list[str]:
    """The parameters for the extents below the first axis: of all arrays, then of those apart."""
    suffixes = ["", *[signature.suffix(name) for name in signature.apart]]
    axes = INDEX_NAMES[1 : signature.dimension]
    return [f"extent_{axis}{suffix}" for suffix in suffixes for axis in axes]


def thread_indices(signature: Signature, dialect: Dialect, shape: Shape) -> list[str]:
    """The statements that find a thread's first point and its place in the arrays."""
    axes, rows = INDEX_NAMES[: signature.dimension], shape.rows
    thread = dialect.thread("x") if shape.columns == 1 else f"({dialect.thread('x')}) * 2"
    x = f"{thread} - low_{axes[-1]} % {ALIGNMENT}"
    values = {
        1: {"i": f"low_i + {x}"},
        2: {"j": f"low_j + {x}", "i": f"low_i + ({dialect.thread('y')}) * {rows}"},
        3: {
            "k": f"low_k + {x}",
            "j": f"low_j + {dialect.thread('y')}",
            "i": f"low_i + {dialect.block('z')} * {rows}",
        },
    }[signature.dimension]
    indices = [dialect.integer(name, value) for name, value in values.items()]
    return indices + places(signature, dialect)


def places(signature: Signature, dialect: Dialect) -> list[str]:
    """The statements that find the place of the point i, j, k in the arrays, and their strides."""
    dimension = signature.dimension
    axes = INDEX_NAMES[:dimension]
    values = {}
    for suffix in ("", *[signature.suffix(name) for name in signature.apart]):
        for number in reversed(range(dimension - 1)):
            extents = [f"extent_{axis}{suffix}" for axis in axes[number + 1 :]]
            values[f"stride_{axes[number]}{suffix}"] = " * ".join(extents)
        terms = [f"{axis} * stride_{axis}{suffix}" for axis in axes[:-1]]
        values[f"p{suffix}"] = " + ".join([*terms, axes[-1]])
    return [dialect.integer(name, value) for name, value in values.items()]


def unrolled(tape: Tape, rows: int, columns: int = 1) -> Tape:
    """The tape for `rows` neighbours along the slowest axis and `columns` along the innermost.

    Its results are those of the first row, column by column, and so on.
    """
    wide = Tape(tape.dimension)
    results: list[int] = []
    for row, column in itertools.product(range(rows), range(columns)):
        places: list[int] = []
        for operation in tape.operations:
            operands = operation.operands
            if operation.name == "load":
                number, subscript = operands
                shifts = [shift for shift, _ in subscript]
                shifts[0] += row
                shifts[-1] += column
                added = [integers for _, integers in subscript]
                places.append(wide.add("load", number, tuple(zip(shifts, added, strict=True))))
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

    They read what `thread_indices` wrote: `i`, `j`, `k` (the thread's first point), `p` (its place
    in an array) and the strides; terms of reductions are left in `t{output}_{row}`.
    """
    shifted = unrolled(tape, first_row + rows)
    wanted = shifted.results[first_row * len(tape.results) :]
    lines = [
        dialect.assign.format(
            name=f"v{place}", value=expression(shifted, place, signature, dialect)
        )
        for place in needed(shifted, wanted)
    ]
    for row in range(first_row, first_row + rows):
        for n, kind in enumerate(signature.outputs):
            target = element(signature, n, row) if kind == "array" else f"t{n}_{row}"
            lines.append(f"{target} = v{shifted.results[row * len(tape.results) + n]}")
    return lines


def needed(tape: Tape, wanted: Sequence[int], without: Collection[int] = ()) -> list[int]:
    """The places on a tape that results need, in their order; not those found before."""
    found: set[int] = set()
    waiting = list(wanted)
    while waiting:
        place = waiting.pop()
        if place in found or place in without:
            continue
        found.add(place)
        operation = tape.operations[place]
        if operation.name not in ("load", "scalar", "constant"):
            waiting += operation.operands
    return sorted(found)


def expression(tape: Tape, place: int, signature: Signature, dialect: Dialect) -> str:
    """The value of a place on a tape."""
    operation = tape.operations[place]
    name, operands = operation.name, operation.operands
    if name == "constant":
        return dialect.constant(float.fromhex(operands[0]), signature.precision)
    if name == "scalar":
        return f"a{operands[0]}"
    if name == "load":
        number, subscript = operands
        name = f"a{number}"
        place_of = address(subscript, signature.arguments[number], signature.suffix(name))
        found = f"{name}[{place_of}]"
        return dialect.real.format(found) if name in signature.narrow else found
    return spelled(operation, dialect.where, dialect.sqrt)


def element(signature: Signature, output: int, row: int) -> str:
    """The element of an output array that belongs to a row of the thread."""
    name = signature.target(output)
    suffix = signature.suffix(name)
    below = f" + {row} * stride_i{suffix}" if row else ""
    return f"{name}[p{suffix}{below}]"


def address(subscript: tuple, constant: tuple[bool, ...], suffix: str) -> str:
    """The place of an element in an array that may be constant along some axes."""
    dimension = len(subscript)
    if not any(constant):
        return f"p{suffix} + {place_at(subscript, suffix)}"
    terms = []
    for axis, (shift, added) in enumerate(subscript):
        if constant[axis]:
            continue
        index = " + ".join(
            [INDEX_NAMES[axis]] + ([str(shift)] if shift else []) + [f"a{n}" for n in added]
        )
        strides = [
            f"extent_{INDEX_NAMES[a]}{suffix}"
            for a in range(axis + 1, dimension)
            if not constant[a]
        ]
        terms.append(" * ".join([f"({index})", *strides]))
    return " + ".join(terms) or "0"


def place_at(subscript: tuple, suffix: str) -> str:
    """The place of an element of an array from that of the thread's point on."""
    terms = []
    for axis, (shift, added) in enumerate(subscript):
        offsets = ([str(shift)] if shift else []) + [f"a{number}" for number in added]
        last = axis == len(subscript) - 1
        stride = "" if last else f" * stride_{INDEX_NAMES[axis]}{suffix}"
        terms += [f"{offset}{stride}" for offset in offsets]
    return " + ".join(terms) or "0"
