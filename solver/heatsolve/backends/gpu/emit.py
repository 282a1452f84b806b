"""Kernels from a trace: the tape of a point function as CUDA C, or as Python for Numba-CUDA.

The tape is unrolled over the points of a thread, so that a value that two points read is loaded
once, and nothing is stored before everything is loaded. CUDA C and Python for Numba-CUDA differ in
a few words only, which a `Dialect` holds.

A kernel has one set of strides for all arrays of a sweep, named `stride_i` and so on. An array of
another shape, such as a packed layer of ghosts, is *apart*: its own extents are passed, too, and
the names that belong to it end in its name, `stride_i_a0`.

A thread may march along the slowest axis with a pair of columns, k and k + 1. A pair begins at an
even place of its array, so that it is loaded and stored at once. The elements before and after the
pair are loaded singly: they lie in cache lines that neighbouring threads load. Values that the next
row reads again stay in registers, in a ring of names, so that a row needs few loads and many
threads work at once. Where a region begins or ends within a pair, its thread computes both columns
and stores one: a branch of its own would delay all threads of its warp, in one block of five.
"""

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from heatsolve.backends import Signature
from heatsolve.backends import exact_sums as sums
from heatsolve.backends.gpu.launch import SPREAD, Shape, shape_of
from heatsolve.stencil.language import INDEX_NAMES
from heatsolve.stencil.trace import INTEGER, LEAVES, Coordinate, Operation, Tape, spelled


def indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


@dataclass(frozen=True)
class Dialect:
    """The words in which CUDA C and Python differ."""

    end: str
    """The end of a statement."""
    branch: str
    conjunction: str
    otherwise: str
    close: tuple[str, ...]
    """The lines that end a branch."""
    where: str
    sqrt: str
    assign: str
    assign_integer: str
    wide: str
    """A conversion to 64 bits: threads of a launch are counted in 32 bits."""
    real: str
    """A conversion to double precision, which is exact."""
    launch: str
    """The prefix of `blockIdx`, `blockDim` and `threadIdx`."""
    constants: dict[str, str]

    def constant(self, value: float, precision: str) -> str:
        if not math.isfinite(value):
            raise ValueError("a point function holds a constant that is not finite")
        return self.constants[precision].format(value=value, hex=_hex(value, precision))

    def chosen(
        self, conditions: Sequence[str], lines: Sequence[str], otherwise: Sequence[str] = ()
    ) -> list[str]:
        """The lines of a branch: `lines` where all conditions hold, elsewhere `otherwise`."""
        result = [self.branch.format(self.conjunction.join(conditions)), *indented(lines)]
        if otherwise:
            result += [self.otherwise, *indented(otherwise)]
        return [*result, *self.close]

    def integer(self, name: str, value: str) -> str:
        return self.assign_integer.format(name=name, value=value)

    def with_indices(self, kind: str) -> "Dialect":
        """This dialect with integers of another C type."""
        return replace(self, assign_integer=f"const {kind} {{name}} = {{value}};")

    def block(self, axis: str) -> str:
        return self.wide.format(f"{self.launch}blockIdx.{axis}")

    def thread(self, axis: str) -> str:
        return f"{self.block(axis)} * {self.launch}blockDim.{axis} + {self.launch}threadIdx.{axis}"


def _hex(value: float, precision: str) -> str:
    return float(np.dtype(precision).type(value)).hex()


def extent_names(signature: Signature) -> list[str]:
    """The parameters for the extents of the axes after the first, of all arrays and then of each
    array apart; and for the unknowns along each periodic axis."""
    suffixes = ["", *[signature.suffix(name) for name in signature.apart]]
    axes = INDEX_NAMES[1 : signature.dimension]
    names = [f"extent_{axis}{suffix}" for suffix in suffixes for axis in axes]
    around = zip(INDEX_NAMES, signature.wraps, strict=False)
    return names + [f"unknowns_{axis}" for axis, wraps in around if wraps]


def thread_indices(signature: Signature, dialect: Dialect, shape: Shape) -> list[str]:
    """The statements that find a thread's first point and its place in the arrays."""
    axes, rows = INDEX_NAMES[: signature.dimension], shape.rows
    thread = dialect.thread("x") if shape.columns == 1 else f"({dialect.thread('x')}) * 2"
    aligned = f" - low_{axes[-1]} % {shape.alignment}" if shape.alignment > 1 else ""
    x = f"{thread}{aligned}"
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
        for axis in reversed(range(dimension - 1)):
            extents = [f"extent_{faster}{suffix}" for faster in axes[axis + 1 :]]
            values[f"stride_{axes[axis]}{suffix}"] = " * ".join(extents)
        terms = [f"{axis} * stride_{axis}{suffix}" for axis in axes[:-1]]
        values[f"p{suffix}"] = " + ".join([*terms, axes[-1]])
    return [dialect.integer(name, value) for name, value in values.items()]


def unrolled(tape: Tape, rows: int, columns: int = 1) -> Tape:
    """The tape for `rows` neighbours along the slowest axis and `columns` along the innermost.

    Its results are those of the first row, column by column, then of the second row, and so on.
    """
    wide = Tape(tape.dimension)
    results: list[int] = []
    for row, column in itertools.product(range(rows), range(columns)):
        places: list[int] = []
        for operation in tape.operations:
            operands = operation.operands
            if operation.name == "load":
                number, subscript = operands
                moved = list(subscript)
                moved[0] = moved[0].moved(row)
                moved[-1] = moved[-1].moved(column)
                places.append(wide.add("load", number, tuple(moved)))
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

    They read the variables of `thread_indices`: `i`, `j`, `k` (the thread's first point), `p` (its
    place in an array) and the strides; they leave terms of reductions in `t{output}_{row}`.
    """
    shifted = unrolled(tape, first_row + rows)
    wanted = shifted.results[first_row * len(tape.results) :]
    lines = list(_wrapped(shifted, wanted, signature, dialect)) if any(signature.wraps) else []
    lines += [
        dialect.assign.format(
            name=f"v{place}", value=expression(shifted, place, signature, dialect)
        )
        for place in needed(shifted, wanted)
    ]
    for row in range(first_row, first_row + rows):
        for n, kind in enumerate(signature.outputs):
            target = element(signature, n, row) if kind == "array" else f"t{n}_{row}"
            value = f"v{shifted.results[row * len(tape.results) + n]}"
            lines.append(f"{target} = {value}{dialect.end}")
    return lines


def updates(signature: Signature, tape: Tape, dialect: Dialect) -> list[str]:
    """The lines that update the points of one column where they are in the region."""
    axes, rows = INDEX_NAMES[: tape.dimension], shape_of(signature, tape).rows
    inside = [f"{axes[-1]} >= low_{axes[-1]}", *[f"{axis} < high_{axis}" for axis in axes[1:]]]
    one_by_one: list[str] = []
    for row in range(rows - 1):
        update = body(tape, signature, dialect, row, 1)
        one_by_one += dialect.chosen([f"i + {row} < high_i"], update)
    at_once = body(tape, signature, dialect, 0, rows)
    return dialect.chosen(inside, dialect.chosen([f"i + {rows - 1} < high_i"], at_once, one_by_one))


def needed(tape: Tape, wanted: Sequence[int], without: Collection[int] = ()) -> list[int]:
    """The places on a tape that the results `wanted` need, in order, but not those in `without`."""
    result: set[int] = set()
    waiting = list(wanted)
    while waiting:
        place = waiting.pop()
        if place in result or place in without:
            continue
        result.add(place)
        operation = tape.operations[place]
        if operation.name not in LEAVES:
            waiting += operation.operands
    return sorted(result)


def expression(tape: Tape, place: int, signature: Signature, dialect: Dialect) -> str:
    """The expression for the value of a place on a tape."""
    operation = tape.operations[place]
    name, operands = operation.name, operation.operands
    if name == "constant":
        return dialect.constant(float.fromhex(operands[0]), signature.precision)
    if name == "scalar":
        return f"a{operands[0]}"
    if name == "load":
        number, subscript = operands
        name, wraps = f"a{number}", signature.wraps if number == 0 else ()
        constant, suffix = signature.arguments[number], signature.suffix(name)
        place_of = address(subscript, constant, suffix, wraps)
        result = f"{name}[{place_of}]"
        return dialect.real.format(result) if name in signature.narrow else result
    return spelled(operation, dialect.where, dialect.sqrt)


def element(signature: Signature, output: int, row: int) -> str:
    """The element of an output array that belongs to a row of the thread."""
    name = signature.target(output)
    suffix = signature.suffix(name)
    below = f" + {row} * stride_i{suffix}" if row else ""
    return f"{name}[p{suffix}{below}]"


def address(
    subscript: tuple[Any, ...],
    constant: tuple[bool, ...],
    suffix: str,
    wraps: tuple[bool, ...] = (),
) -> str:
    """The place of an element in an array that may be constant along some axes."""
    dimension = len(subscript)
    if not any(constant) and all(place.scale == 1 for place in subscript):
        return f"p{suffix} + {place_at(subscript, suffix, wraps)}"
    terms = []
    for axis, place in enumerate(subscript):
        if constant[axis]:
            continue
        around = place.scale != 1 and any(wraps[axis : axis + 1])
        index = _name_of(axis, place) if around else _index(axis, place)
        strides = [
            f"extent_{INDEX_NAMES[a]}{suffix}"
            for a in range(axis + 1, dimension)
            if not constant[a]
        ]
        terms.append(" * ".join([f"({index})", *strides]))
    return " + ".join(terms) or "0"


def _index(axis: int, place: Coordinate) -> str:
    """A coordinate along an axis."""
    shift, added, scale = place
    name = INDEX_NAMES[axis]
    index = " + ".join([f"2 * {name}" if scale == 2 else name] + [str(shift)] * bool(shift))
    if scale < 0:
        index = f"(({index}) >> 1)"
    return " + ".join([index, *[f"a{number}" for number in added]])


def place_at(subscript: tuple[Any, ...], suffix: str, wraps: tuple[bool, ...] = ()) -> str:
    """The place of an element of an array relative to the thread's point; along periodic axes by
    the distances that `_wrapped` names."""
    terms = []
    for axis, (shift, added, _) in enumerate(subscript):
        distance = _distance(axis, shift) if any(wraps[axis : axis + 1]) else str(shift)
        offsets = ([distance] if shift else []) + [f"a{number}" for number in added]
        last = axis == len(subscript) - 1
        stride = "" if last else f" * stride_{INDEX_NAMES[axis]}{suffix}"
        terms += [f"{offset}{stride}" for offset in offsets]
    return " + ".join(terms) or "0"


# ---- periodic axes ------------------------------------------------------------------------------


def _wrapped(
    tape: Tape, wanted: Sequence[int], signature: Signature, dialect: Dialect
) -> Iterator[str]:
    """The statements that find the distances to neighbours, and the coordinates on a finer or
    coarser grid, across the ends of periodic axes.

    Unknowns have the indices from 1 on.
    """
    operations = [tape.operations[place] for place in needed(tape, wanted)]
    loads = [each.operands for each in operations if each.name == "load"]
    subscripts = [subscript for number, subscript in loads if number == 0]
    for axis in [axis for axis, wraps in enumerate(signature.wraps) if wraps]:
        index = INDEX_NAMES[axis]
        places = {subscript[axis] for subscript in subscripts}
        scaled = sorted(place for place in places if place.scale != 1)
        if scaled and (len(scaled) < len(places) or any(place.added for place in scaled)):
            raise ValueError("across periodic ends an array is read on one grid, at known shifts")
        for place in scaled:
            count = f"unknowns_{index} * 2" if place.scale == 2 else f"(unknowns_{index} >> 1)"
            name, plain = _name_of(axis, place), _index(axis, place)
            value = dialect.where.format(f"{plain} < 1", f"{plain} + {count}", plain)
            value = dialect.where.format(f"{plain} > {count}", f"{plain} - {count}", value)
            yield dialect.integer(name, value)
        for shift in sorted({place.shift for place in places if place.scale == 1} - {0}):
            beyond, before = f"{index} + {shift} > unknowns_{index}", f"{index} + {shift} < 1"
            back, ahead = f"{shift} - unknowns_{index}", f"{shift} + unknowns_{index}"
            value = dialect.where.format(before, ahead, str(shift))
            value = dialect.where.format(beyond, back, value)
            yield dialect.integer(_distance(axis, shift), value)


def _distance(axis: int, shift: int) -> str:
    return f"to_{INDEX_NAMES[axis]}_{_signed(shift)}"


def _name_of(axis: int, place: Coordinate) -> str:
    scaled = "twice" if place.scale == 2 else "half"
    return f"{scaled}_{INDEX_NAMES[axis]}_{_signed(place.shift)}"


def _signed(shift: int) -> str:
    return f"{'minus_' if shift < 0 else ''}{abs(shift)}"


# ---- pairs of columns ---------------------------------------------------------------------------

KINDS = {"float64": ("double", "double2"), "float32": ("float", "float2")}
"""The types of an element and of a pair, by precision."""


@dataclass(frozen=True)
class Word:
    """A single load: an element of an argument, or the pair that begins with it."""

    number: int
    subscript: tuple[Any, ...]
    places: tuple[int, ...]
    """The places of the elements on the tape."""

    def next_row(self) -> tuple[int, tuple[Any, ...], int]:
        """The key of the word whose value this word takes in the next row."""
        first, *others = self.subscript
        return self.number, (first.moved(1), *others), len(self.places)

    @property
    def key(self) -> tuple[int, tuple[Any, ...], int]:
        return self.number, self.subscript, len(self.places)

    @property
    def column(self) -> int:
        """The column of its first element, counted from the thread's own column."""
        return self.subscript[-1].shift

    def values(self, name: str) -> Iterator[str]:
        """Yield the statements that name the elements of a word by their places on the tape."""
        parts = (".x", ".y") if len(self.places) == 2 else ("",)
        for place, part in zip(self.places, parts, strict=True):
            yield f"const auto v{place} = {name}{part};"


def words_of(tape: Tape, varying: Sequence[bool]) -> list[Word]:
    """The loads of a tape from arguments that vary along all axes, two in one word where
    possible."""
    loads = {
        operation.operands: place
        for place, operation in enumerate(tape.operations)
        if operation.name == "load" and varying[operation.operands[0]]
    }
    words: list[Word] = []
    paired: set[int] = set()
    for (number, (*others, column)), place in loads.items():
        beside = loads.get((number, (*others, column.moved(1))))
        if column.shift % 2 == 0 and not column.added and beside is not None:
            words.append(Word(number, (*others, column), (place, beside)))
            paired |= {place, beside}
    words += [
        Word(number, subscript, (place,))
        for (number, subscript), place in loads.items()
        if place not in paired
    ]
    return words


def chains_of(words: Sequence[Word]) -> list[list[Word]]:
    """Chains of words: in the next row each word takes the value of the word after it in the chain.

    So only the last word of a chain is loaded. Chains whose last word lies ahead come last: that
    word comes from memory, while other threads have loaded the words around, which may wait for it.
    """
    at = {word.key: word for word in words}
    followed = {word.next_row() for word in words}
    chains = []
    for word in words:
        if word.key not in followed:
            chain = [word]
            while (following := at.get(chain[-1].next_row())) is not None:
                chain.append(following)
            chains.append(chain)
    return sorted(chains, key=lambda chain: (chain[-1].subscript[0].shift, len(chain[-1].places)))


def march(tape: Tape, signature: Signature, dialect: Dialect, rows: int) -> list[str]:
    """The lines of a thread with one or two points in the region: `first` and `second` tell which.

    They read the variables of `thread_indices`.
    """
    wide, (_, vector) = unrolled(tape, 1, 2), KINDS[signature.precision]
    varying = [not isinstance(kind, str) and not any(kind) for kind in signature.arguments]
    words = words_of(wide, varying)
    chains = chains_of(words)
    period = max([len(chain) for chain in chains], default=1)
    targets = [signature.target(n) for n in range(len(tape.results))]
    pointers = sorted({f"a{word.number}" for word in words} | set(targets))

    lines = [f"auto at_{name} = {name} + p;" for name in pointers]
    lines += _insides(wide, signature, INDEX_NAMES[tape.dimension - 1])
    for number, chain in enumerate(chains):
        if len(chain) > 1:
            kind = KINDS[signature.precision][len(chain[0].places) - 1]
            lines.append(f"{kind} {', '.join(f'w{number}_{n}' for n in range(period))};")
            lines += [f"w{number}_{n} = {_load(w, kind)};" for n, w in enumerate(chain[:-1])]
    lines += [
        f"const long long i_0 = i, end = min(i + {rows}, high_i);",
        "for (long long i = i_0;;) {",
    ]
    for row in range(period):
        loads: list[str] = []
        values: list[str] = []
        for number, chain in enumerate(chains):
            names = [f"w{number}_{(n + row) % period}" for n in range(len(chain))]
            kind = KINDS[signature.precision][len(chain[0].places) - 1]
            new = f"const {kind} " if len(chain) == 1 else ""
            loads.append(f"{new}{names[-1]} = {_load(chain[-1], kind)};")
            for name, word in zip(names, chain, strict=True):
                values += word.values(name)
        loaded = {place for word in words for place in word.places}
        for place in needed(wide, wide.results, loaded):
            value = expression(wide, place, signature, dialect)
            column = _column_read(wide.operations[place], signature)
            if column not in (None, 0, 1):
                element = KINDS[signature.precision][0]
                value = f"{_inside(column)} ? {value} : {element}{{}}"
            values.append(dialect.assign.format(name=f"v{place}", value=value))
        for n, target in enumerate(targets):
            pair = ", ".join(f"v{result}" for result in wide.results[n :: len(targets)])
            values.append(f"store(at_{target}, first, second, make_{vector}({pair}));")
        values += [f"at_{name} += stride_i;" for name in pointers]
        values.append("if (++i >= end) break;")
        lines += ["    {", *[f"        {line}" for line in loads + values], "    }"]
    return [*lines, "}"]


def _load(word: Word, kind: str) -> str:
    element = f"at_a{word.number}[{place_at(word.subscript, '')}]"
    value = f"*(const {kind}*)&{element}" if len(word.places) == 2 else element
    return value if word.column in (0, 1) else f"{_inside(word.column)} ? {value} : {kind}{{}}"


def _inside(column: int) -> str:
    return f"inside_{abs(column)}_{'before' if column < 0 else 'ahead'}"


def _column_read(operation: Operation, signature: Signature) -> int | None:
    """The column that a load reads, counted from the thread's own; None if it has no column."""
    if operation.name != "load":
        return None
    number, subscript = operation.operands
    return None if signature.arguments[number][-1] else subscript[-1].shift


def _insides(wide: Tape, signature: Signature, axis: str) -> Iterator[str]:
    """Yield the conditions that elements beside a pair lie in its row.

    Rows are whole pairs, so a pair lies in its row if its first element does.
    """
    columns = {_column_read(operation, signature) for operation in wide.operations}
    for column in sorted(n for n in columns if n not in (None, 0, 1)):
        condition = f"{axis} >= {-column}" if column < 0 else f"{axis} + {column} < extent_{axis}"
        yield f"const bool {_inside(column)} = {condition};"


# ---- kernels of CUDA C --------------------------------------------------------------------------

# CuPy's RawKernel cannot be used: it adds -ftz=true to its options, which loses denormals.
OPTIONS = (
    "--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true",
    "--device-as-default-execution-space",
)  # fmt: skip
"""As on a CPU: a * b + c rounds twice, denormals are kept, division and square root are rounded
correctly. Lambdas in kernels are functions of the device."""

REAL_OF = {"float64": "double", "float32": "float"}

C_DIALECT = Dialect(
    end=";",
    branch="if ({0}) {{",
    conjunction=" && ",
    otherwise="} else {",
    close=("}",),
    where="({0} ? {1} : {2})",
    sqrt="sqrt({0})",
    assign="const auto {name} = {value};",
    assign_integer="const long long {name} = {value};",
    wide="(long long){0}",
    real="(double){0}",
    launch="",
    constants={"float64": "{hex}", "float32": "{hex}f"},
)


@cache
def cuda_text(name: str) -> str:
    """The text of a file of CUDA C."""
    return (files("heatsolve.backends.gpu") / "cuda" / name).read_text(encoding="utf-8")


def macro(name: str, value: str | Sequence[str]) -> str:
    """The definition of a macro: one expression, or lines."""
    if isinstance(value, str):
        return f"#define {name} {value}\n"
    return " \\\n    ".join([f"#define {name}", *value]) + "\n"


def constants() -> str:
    """The layout of a register as macros, and the functions on registers that kernels share."""
    names = ("SLICE_BITS", "SLICES", "LOWEST", "TOP", "NOT_FINITE", "LARGEST", "WIDTH")
    values = {name: getattr(sums, name) for name in names} | {"SPREAD": SPREAD}
    defines = "".join(f"#define {name} {value}\n" for name, value in values.items())
    return defines + cuda_text("sums.cuh")


def paired(signature: Signature, tape: Tape, dialect: Dialect) -> list[str]:
    """The lines that update the points of two columns where they are in the region."""
    axes = INDEX_NAMES[: tape.dimension]
    last, between = axes[-1], [f"{axis} < high_{axis}" for axis in axes[1:-1]]
    return [
        f"const bool first = {last} >= low_{last} && {last} < high_{last};",
        f"const bool second = {last} + 1 >= low_{last} && {last} + 1 < high_{last};",
        *dialect.chosen(
            [*between, "(first || second)"],
            march(tape, signature, dialect, shape_of(signature, tape).rows),
        ),
    ]


def kernel_source(name: str, signature: Signature, tape: Tape) -> str:
    """CUDA C of the kernel `sweep` for a point function."""
    axes = INDEX_NAMES[: tape.dimension]
    real = REAL_OF[signature.precision]
    parameters = ["const long long* gate"]
    parameters += [f"long long {end}_{axis}" for axis in axes for end in ("low", "high")]
    parameters += [f"long long {name}" for name in extent_names(signature)]
    parameters += [
        f"{REAL_OF[signature.real_of(f'o{n}')]}* __restrict__ o{n}"
        if kind == "array"
        else f"long long* o{n}"
        for n, kind in enumerate(signature.outputs)
    ]
    for n, kind in enumerate(signature.arguments):
        constant = "" if n in signature.in_place else "const "
        element = REAL_OF[signature.real_of(f"a{n}")]
        number = "long long" if kind == INTEGER else real
        kind_type = number if isinstance(kind, str) else f"{constant}{element}* __restrict__"
        parameters.append(f"{kind_type} a{n}")
    shape = shape_of(signature, tape)
    rows, (x, y) = shape.rows, shape.block
    reductions = [n for n, kind in enumerate(signature.outputs) if kind != "array"]
    lines = ["    if (*gate) return;"] if signature.gated else []
    lines += indented(thread_indices(signature, C_DIALECT, shape))
    lines += [f"    {real} {', '.join(f't{n}_{r} = 0' for r in range(rows))};" for n in reductions]
    lines += indented((paired if signature.pairs else updates)(signature, tape, C_DIALECT))
    for n in reductions:
        terms = ", ".join(f"(double)t{n}_{r}" for r in range(rows))
        warp = "(thread() >> 5) + blockIdx.x * 3 + blockIdx.y * 7 + blockIdx.z * 13"
        lines.append(f"    double terms{n}[] = {{{terms}}};")
        call = {"sum": "add_sum", "max": "add_largest"}[signature.outputs[n]]
        lines.append(f"    {call}(terms{n}, o{n} + ({warp}) % {SPREAD} * WIDTH);")
    head = cuda_text("pairs.cuh") if signature.pairs else ""
    if reductions:
        head = constants()
    return (
        f"// {name}\n{head}\n"
        f'extern "C" __global__ void __launch_bounds__({x * y})\n'
        f"sweep({', '.join(parameters)}) {{\n" + "\n".join(lines) + "\n}\n"
    )


GROUPS = 8
"""Groups of threads that merge the copies of a register, a thread for each of its integers."""


def check_source() -> str:
    """CUDA C of the kernels of checks and of quotients."""
    head = f"#define GROUPS {GROUPS}\n" + constants()
    return head + cuda_text("await.cuh") + cuda_text("check.cuh")


def peer_source(threads: int, flag: int) -> str:
    """CUDA C of the kernel of exchanges through peer memory, with `threads` threads a block and
    `flag` bytes a flag."""
    defines = f"#define THREADS {threads}\n#define FLAG {flag}\ntypedef long long integer;\n"
    return defines + cuda_text("await.cuh") + cuda_text("peers.cuh")


def c_function(name: str, tape: Tape, precision: str, result: int | None = None) -> str:
    """A point function as a C function of all values that it reads, in the order of the tape.

    `result`: the place of the value to return, if not the point function's own result.
    """
    parameters, lines = [], []
    for place, operation in enumerate(tape.operations):
        if operation.name in ("load", "scalar", "carried"):
            parameters.append(f"const real v{place}")
            continue
        if operation.name == "constant":
            value = C_DIALECT.constant(float.fromhex(operation.operands[0]), precision)
        else:
            value = spelled(operation, C_DIALECT.where, C_DIALECT.sqrt)
        lines.append(f"    const auto v{place} = {value};\n")
    if result is None:
        (result,) = tape.results
    return (
        f"__device__ __forceinline__ real {name}({', '.join(parameters)}) {{\n"
        f"{''.join(lines)}    return v{result};\n}}\n"
    )
