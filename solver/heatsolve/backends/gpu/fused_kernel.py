"""CUDA C of fused sweeps, several in one pass through memory, in two and in three dimensions.

The first argument of the point function is the field that the sweeps advance. All other arrays are
the same for every sweep; numbers may differ. Temporal blocking: a kernel loads a part of the field,
makes all sweeps, and stores the result. The outermost points of the part, one layer for each sweep,
are wrong; the part beside it computes them again.

In two dimensions a warp owns a `Strip` of 32 C columns and goes down the rows, two at a time. Rows
y and y + 1 of the field arrive; sweep 1 then has all it needs for the rows y - 1 and y, sweep 2 for
y - 2 and y - 1, and so on: each sweep keeps the last two rows that it reads in registers, and the
neighbours to the left and right come from the other lanes. Rows arrive ahead of time by `cp.async`
in the warp's own ring in shared memory, so warps do not wait for each other. A value that depends
on two rows, such as the flux through the face between two points, is kept for the next row. The
idea of one strip for each warp: K. Matsumura et al., "AN5D", CGO 2020; of registers for levels: L.
Zhang et al., "Revisiting Temporal Blocking Stencil Optimizations", ICS 2023.

In three dimensions a block owns a `Tile` of columns along z and goes up the planes. Plane z
arrives; sweep 1 then has all it needs for plane z - 1, sweep 2 for plane z - 2, and so on. For each
sweep a thread keeps its own points of two planes in registers; the neighbours along x come from the
other lanes, the neighbours along y from a copy of the newest plane in shared memory. That copy was
written one step before, so one wait for the warps beside it in each step is enough for all sweeps
(A. Nguyen et al., "3.5-D Blocking Optimization for Stencil Computations", SC 2010).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from heatsolve.backends.gpu.emit import REAL_OF, c_function, constants, cuda_text, macro
from heatsolve.stencil.language import change, copy, term_of
from heatsolve.stencil.trace import ARRAY, BYTES_OF, Signature, Tape, record

INVERSE = 3
"""The number of the argument with the inverse of the diagonal: after the field, b, and weight."""


@dataclass(frozen=True)
class FusedSweeps:
    """Sweeps of one point function, fused in one kernel: all that its code depends on.

    varying: the numbers of the scalar arguments that differ from sweep to sweep.
    norms: for each sweep None, "max" or "sum".
    aligned: rows begin at multiples of this number of elements, 4, 2 or 1.
    colours: for each sweep 1 if it updates only red points, -1 if only black points, 0 if both.
    odd: whether the index of the first plane that is read is odd.
    from_zero: whether the sweeps begin at u = 0.
    margin: layers beside the walls; beyond these, all arrays but the field and b are constant.
    inverse: the function that computes argument INVERSE from the arguments after it, if any.

    A leg of a multigrid cycle that `corrects` begins with the correction, interpolated from the
    coarse level. It may end with the `residual` of its result, whose arguments after the field have
    the numbers `residual_operands` in the kernel. A leg that `restricts` restricts the residual;
    `residual_norm` is the kind of its norm, if one is wanted. `functions`: see `CycleLeg`.
    carried: the places on the tape of the values that the next row or plane takes over.
    """

    tape: Tape
    signature: Signature
    varying: tuple[int, ...]
    norms: tuple[str | None, ...]
    wraps: tuple[bool, ...]
    aligned: int
    colours: tuple[int, ...] = ()
    odd: bool = False
    from_zero: bool = False
    margin: int | None = None
    inverse: Tape | None = None
    restricts: bool = False
    corrects: bool = False
    residual: Tape | None = None
    residual_operands: tuple[int, ...] = ()
    residual_norm: str | None = None
    functions: tuple[tuple[str, Tape], ...] = ()
    carried: tuple[int, ...] = ()

    @property
    def edges(self) -> set[int]:
        """The numbers of the arguments that are 0 except beside walls.

        Only the parts at the ENDS or SIDES update points beside walls: all other parts take 0.
        Kernels in 3D do not use this property.
        """
        return self.tape.edges if self.signature.dimension == 2 else set()

    def is_uniform(self, number: int) -> bool:
        """Whether an argument has the same value at all points far from walls."""
        return self.margin is not None and number > 1

    @property
    def sweeps(self) -> int:
        return len(self.norms)

    @property
    def has_residual(self) -> bool:
        """Whether the residual of the result is computed, to be restricted or for its norm."""
        return self.residual is not None

    def carrying(self) -> "FusedSweeps":
        """The same sweeps, where a row takes over the values between it and the row before.

        Legs of a cycle take 4 % longer with these values, for which they hold too much else.
        """
        if self.restricts or self.corrects or any(self.colours) or not self.sweeps:
            return self
        tape, carried = self.tape.between_rows(self.signature.constant_from_row_to_row())
        return replace(self, tape=tape, carried=tuple(carried))

    @property
    def real(self) -> str:
        return REAL_OF[self.signature.precision]

    @property
    def bytes(self) -> int:
        return BYTES_OF[self.signature.precision]

    @property
    def own(self) -> range:
        """The numbers of the arguments that the point function takes."""
        return range(len(self.signature.arguments))

    def operands(self) -> list[tuple[str, str]]:
        """The C types and the names of a kernel's parameters between gate and bounds."""
        array = f"const {self.real}* __restrict__"
        result = [(f"{self.real}* __restrict__", "o0"), (array, "a0")]
        for number, kind in enumerate(self.signature.arguments[1:], 1):
            if not isinstance(kind, str):
                result.append((array, f"a{number}"))
            elif number in self.varying:
                result += [(self.real, f"a{number}_{t}") for t in range(self.sweeps)]
            else:
                result.append((self.real, f"a{number}"))
        result += [("integer*", f"reg{t}") for t, kind in enumerate(self.norms) if kind]
        if self.residual_norm is not None:
            result.append(("integer*", "reg_residual"))
        if self.restricts or self.corrects:
            coarse = f"{self.real}* __restrict__"
            result.append((coarse if self.restricts else f"const {coarse}", "coarse"))
            axes = "ijk"[: self.signature.dimension]
            result += [(array, f"weights_{axis}{n}") for axis in axes for n in range(4)]
            result += [("integer", f"coarse_{end}") for end in (*axes, "pitch")]
        return result

    def numbers(self) -> list[str]:
        """The statements that collect the numbers that differ from sweep to sweep."""
        return [
            f"const real s{n}[T] = {{{', '.join(f'a{n}_{t}' for t in range(self.sweeps))}}};"
            for n in self.varying
        ]

    def scalar(self, number: int) -> str:
        """The expression of a scalar argument in sweep t."""
        return f"s{number}[t]" if number in self.varying else f"a{number}"


def assembled(
    file: str,
    work: FusedSweeps,
    numbers: Mapping[str, int],
    pieces: Mapping[str, str | Sequence[str]],
) -> str:
    """The source of a kernel: its numbers, pieces and point functions, then the text of a file.

    A piece is an expression, or a sequence of lines of statements.
    """
    operands, precision = work.operands(), work.signature.precision
    defines = {
        **numbers, "GATED": work.signature.gated, "RESTRICTS": work.restricts,
        "CORRECTS": work.corrects, "FROM_ZERO": work.from_zero, "CHANGES": any(work.norms),
        **NORMS, "RESIDUAL_NORM": NORMS.get(f"{work.residual_norm}_NORM".upper(), 0),
    }  # fmt: skip
    defined = {
        "PARAMETERS": ", ".join(f"{kind} {name}" for kind, name in operands),
        "ARGUMENTS": ", ".join(name for _, name in operands),
        **changes(work), **pieces,
    }  # fmt: skip
    head = "".join(f"#define {name} {int(value)}\n" for name, value in defines.items())
    head += "".join(macro(name, value) for name, value in defined.items())
    types = f"typedef {work.real} real;\ntypedef {work.real}2 pack;\n"
    functions = {"point": work.tape, **terms_of_norms(), **dict(work.functions)}
    if work.residual is not None:
        functions["residual"] = work.residual
    if work.inverse is not None:
        functions["inverse"] = work.inverse
    texts = [c_function(name, tape, precision) for name, tape in functions.items()]
    for n, place in enumerate(work.carried):
        texts.append(c_function(f"carried{n}", work.tape, precision, place))
    common = cuda_text("ptx.cuh") + "".join(texts) + cuda_text("fused.cuh")
    return constants() + head + types + common + cuda_text(file)


NORMS = {"MAX_NORM": 1, "SUM_NORM": 2}
"""Numbers of the kinds of norms in kernels."""


@cache
def terms_of_norms() -> dict[str, Tape]:
    """A change, and the terms of the norms of values: point functions of arrays."""
    terms = {f"{kind}_term": record(term_of(copy, kind), (ARRAY,), 1) for kind in ("max", "sum")}
    return {"change": record(change, (ARRAY, ARRAY), 1), **terms}


def changes(work: FusedSweeps) -> dict[str, list[str]]:
    """The statements of norms of changes: before all points, for a row, after rows, at the end."""
    norms = {t: kind for t, kind in enumerate(work.norms) if kind is not None}
    return {
        "CHANGE_STATE": [
            f"Norm<{kind.upper()}_NORM, POINTS> norm{t}(reg{t} + copy * WIDTH, mine);"
            for t, kind in norms.items()
        ],
        "CHANGE_TAKE": [
            f"if (t == {t}) norm{t}.take_row(r * C, moved_by, counted, counts);" for t in norms
        ],
        "CHANGE_ADD": [f"if (t == {t}) norm{t}.add();" for t in norms],
        "CHANGE_END": [f"norm{t}.finish();" for t in norms],
    }


Shift = tuple[int, ...]
"""The distance of a load from the point, along each axis."""


@dataclass(frozen=True)
class Layout:
    """Where a kernel holds the values that a point function reads: expressions of CUDA C.

    `indices`: a point's indices in the arrays, never a ghost's; `loops`: the variables and the
    counts of the loops over a thread's points, along all axes but the first; `near`: for each axis
    the expression by which the compiler knows that a part lies near the walls; `at_ends`: the
    expression that a plane lies near the first axis's walls, empty in two dimensions. `field`: the
    values of the field by shift, no other shifts are held; `fetched`: the values fetched along with
    the field, by the number of the argument and the shift; `held`: the extents and the indices of
    what a thread holds for each sweep and each of its points.
    """

    indices: tuple[str, ...]
    loops: tuple[tuple[str, str], ...]
    near: tuple[str, ...]
    at_ends: str
    field: Mapping[Shift, str]
    fetched: Mapping[tuple[int, Shift], str]
    held: tuple[str, str] = ("", "")

    @property
    def near_any(self) -> str:
        """The expression by which the compiler knows that a part lies near walls."""
        return f"({' || '.join(dict.fromkeys(self.near))})"

    @property
    def holds_ends(self) -> bool:
        """Whether a thread holds the arguments' values in the rows near the first axis's walls."""
        return not self.at_ends

    @property
    def loop(self) -> str:
        """The head of the loops over a thread's points."""
        return " ".join(f"for (int {v} = 0; {v} < {n}; {v}++)" for v, n in self.loops)

    @property
    def extents(self) -> str:
        """The extents of a variable that has an element for each of a thread's points."""
        return "".join(f"[{count}]" for _, count in self.loops)

    @property
    def point(self) -> str:
        """The indices of such an element in the loops."""
        return "".join(f"[{variable}]" for variable, _ in self.loops)


def place_of(constant: tuple[bool, ...], indices: Sequence[str]) -> str:
    """The place of an element of an array that may be constant along some axes.

    The rows of an array that varies along all axes may be padded: a row takes `pitch` elements.
    """
    varying = [axis for axis, same in enumerate(constant) if not same]
    extents = [f"extent_{axis}" for axis in "ijk"[: len(constant)]]
    if not any(constant):
        extents[-1] = "pitch"
    terms = []
    for axis in varying:
        below = [extents[other] for other in varying if other > axis]
        terms.append(" * ".join([f"(size_t)({indices[axis]})", *below]))
    return " + ".join(terms)


NOWHERE = Layout((), (), (), "", {}, {})


class Reads:
    """The loads of a point function, as statements before its call, and its arguments.

    `numbers`: for each of its arguments the number in the kernel; `letter`: how its variables'
    names begin. The statements `lines` come before all rows or planes, the statements `rows` before
    the points of each row or plane. `far`: the points are far from the ends of the first axis, and
    the function reads uniform arguments only.
    """

    def __init__(
        self, work: FusedSweeps, tape: Tape, numbers: Sequence[int], layout: Layout | None = None,
        letter: str = "l", far: bool = False,
    ):  # fmt: skip
        self._work, self._layout, self._far = work, layout or NOWHERE, far
        self.lines: list[str] = []
        self.rows: list[str] = []
        self.args: list[str] = []
        for place, operation in enumerate(tape.operations):
            if operation.name == "scalar":
                self.args.append(work.scalar(numbers[operation.operands[0]]))
            elif operation.name == "load":
                number, subscript = operation.operands
                shift = tuple(place.shift for place in subscript)
                self.args.append(self._element(f"{letter}{place}", numbers[number], shift))
            elif operation.name == "carried":
                self.args.append(f"carry{operation.operands[0]}{self._layout.held[1]}")

    def carries(self) -> dict[str, Sequence[str]]:
        """The macros for what a row leaves to the next row: variables, and how they change."""
        extents, point = self._layout.held
        numbers, args = range(len(self._work.carried)), ", ".join(self.args)
        changed = [f"const real next{n} = carried{n}({args});" for n in numbers]
        return {
            "CARRY": [f"real carry{n}{extents} = {{}};" for n in numbers],
            "CARRY_ON": [*changed, *[f"carry{n}{point} = next{n};" for n in numbers]],
        }

    def pieces(self, function: str, more: Sequence[str] = ()) -> dict[str, str | Sequence[str]]:
        """The macros for the statements and the arguments of a kernel's POINT or RESIDUAL."""
        args = ", ".join(self.args)
        return {f"READ_{function}": [*self.rows, *more], f"{function}_ARGUMENTS": args}

    def _element(self, name: str, number: int, shift: Shift) -> str:
        """An element of an array; a thread holds it if it is the same for all rows or planes."""
        layout = self._layout
        if number == 0:
            return layout.field[shift]
        if (number, shift) in layout.fetched:
            return layout.fetched[number, shift]
        array, constant = f"a{number}", self._work.signature.arguments[number]
        varying = [axis for axis, same in enumerate(constant) if not same]
        indices = [f"{index} + {d}" for index, d in zip(layout.indices, shift, strict=True)]
        if not varying:
            self.lines.append(f"const real {name} = {array}[0];")
            return name
        if not layout.loops:  # nothing else is held
            return f"{array}[{place_of(constant, indices)}]"
        remade = number == INVERSE and self._work.inverse is not None  # it lies in no cache there
        if remade and self._work.is_uniform(number) and not any(constant):
            return self._beside_walls(None, name, number, self._made_anew(name))
        if len(varying) > 1:
            value = f"{array}[{place_of(constant, indices)}]"
            return self._beside_walls(None, name, number, value)
        (axis,) = varying
        if axis == 0 and self._far:
            return self._inside(name, number)
        value = f"{array}[{indices[axis]}]"
        if axis == 0 and self._work.is_uniform(number) and layout.holds_ends:
            value = self._unless_at_ends(name, self._inside(name, number), value)
        else:
            value = self._beside_walls(axis, name, number, value)
        if axis > 0:
            variable, count = layout.loops[axis - 1]
            loop = f"for (int {variable} = 0; {variable} < {count}; {variable}++)"
            self.lines += [f"real {name}[{count}];", f"{loop} {name}[{variable}] = {value};"]
            return f"{name}[{variable}]"
        self.rows.append(f"const real {name} = {value};")
        return name

    def _beside_walls(self, axis: int | None, name: str, number: int, value: str) -> str:
        """A value, or far from the axis's walls the value that the argument has everywhere there;
        without an axis, far from all walls."""
        near = self._layout.near_any if axis is None else self._layout.near[axis]
        if number in self._work.edges:
            return f"({near} ? {value} : 0)"
        if not self._work.is_uniform(number):
            return value
        return f"({near} ? {value} : {self._inside(name, number)})"

    def _inside(self, name: str, number: int) -> str:
        """The value that an argument has far from walls."""
        constant = self._work.signature.arguments[number]
        middle = place_of(constant, [f"extent_{axis} / 2" for axis in "ijk"])
        self.lines.append(f"const real {name}_inside = a{number}[{middle}];")
        return f"{name}_inside"

    def _unless_at_ends(
        self, name: str, elsewhere: str, value: str, rows: Sequence[str] = (), points: bool = False
    ) -> str:
        """A value in two dimensions: `elsewhere` or, in a row near the first axis's walls, `value`.

        The latter is made once for each of these rows, by the statements `rows`, and for each of
        the `points` or for all. Loads, and divisions behind a branch, in each sweep of each row at
        the ends would take longer than all else there.
        """
        layout, margin = self._layout, self._work.margin
        assert margin is not None
        each = layout.loop, layout.extents, layout.point
        loop, extents, point = each if points else ("", "", "")
        ends = [f"region_i.low + {n}" for n in range(margin)]
        ends += [f"region_i.high - {n + 1}" for n in range(margin)]
        for n, end in enumerate(ends):
            self.lines += [
                f"real {name}_end{n}{extents};",
                f"{{ const int row = {end}; {' '.join(rows)}",
                f"    {loop} {name}_end{n}{point} = ENDS ? {value} : 0; }}",
            ]
            elsewhere = f"(ENDS && of_row(row) == {end} ? {name}_end{n}{point} : {elsewhere})"
        return elsewhere

    def _made_anew(self, name: str) -> str:
        """The inverse of the diagonal: once for each row near the first axis's walls, in three
        dimensions anew for each plane there; elsewhere only once."""
        work, layout = self._work, self._layout
        assert work.inverse is not None
        args = work, work.inverse, work.own[INVERSE + 1 :], layout
        made, beside = Reads(*args, f"{name}_"), Reads(*args, f"{name}s_", True)
        value, aside = (f"inverse({', '.join(reads.args)})" for reads in (made, beside))
        side = f"{name}_side{layout.point}"
        self.lines += [
            *made.lines, *beside.lines, f"real {name}_side{layout.extents};",
            f"{layout.loop} {side} = {layout.near_any} ? {aside} : 0;",
        ]  # fmt: skip
        if layout.holds_ends:
            return self._unless_at_ends(name, side, value, made.rows, points=True)
        self.rows += made.rows
        return f"({layout.at_ends} ? {value} : {side})"


@dataclass(frozen=True)
class Part:
    """The part of the points that a warp or a block goes through, tuned for a device."""

    columns: int = 2
    """Columns of a lane."""

    def halo(self, work: FusedSweeps) -> int:
        """Columns at each side whose results are wrong, rounded up to whole lanes."""
        return rounded_up(reach(work), self.columns)


def rounded_up(points: int, together: int) -> int:
    """`points`, rounded up to a multiple of `together`, the adjacent points of a lane."""
    return -(-points // together) * together


# ---- two dimensions ------------------------------------------------------------------------------

PAIR = 2
"""Rows that a warp goes down at a time."""
COARSE_ROWS = 8
"""Rows of the coarse array that a warp holds: at least one for each pair of rows of the ring."""


@dataclass(frozen=True)
class Strip(Part):
    """The columns of a warp in a kernel of two dimensions."""

    ahead: int = 8
    """Rows of the ring: the rows that have just arrived, and the rows on their way."""
    warps: int = 4
    """Warps of a block, each with a strip of its own."""
    blocks: int = 4
    """Blocks that must fit a multiprocessor, which bounds the registers of a thread."""

    def kept_rows(self, work: FusedSweeps) -> int:
        """Rows held of an array that all sweeps read: from rows on their way to the last sweep's.

        A power of two, so that a bit mask gives the place of a row.
        """
        rows = self.ahead + work.sweeps + work.has_residual + 1
        return 1 << (rows - 1).bit_length()

    def bytes_shared(self, work: FusedSweeps) -> int:
        """Shared memory of a block."""
        rows = self.ahead + len(ring_arguments(work)) * self.kept_rows(work)
        coarse = COARSE_ROWS * 2 if work.corrects else 0
        return (rows * self.columns + coarse) * 32 * self.warps * work.bytes

    def width(self, work: FusedSweeps) -> int:
        """Columns of a strip whose results are right."""
        return 32 * self.columns - 2 * self.halo(work)


def reach(work: FusedSweeps) -> int:
    """The layers of points around a piece of the result on which the piece depends."""
    return work.sweeps + (3 if work.restricts else work.has_residual)


def even(work: FusedSweeps) -> bool:
    """Whether pieces begin at even rows: where rows differ by colour, or belong to coarse rows."""
    return any(work.colours) or work.restricts or work.corrects


def lead(work: FusedSweeps) -> int:
    """Rows above a piece at which a warp begins.

    The pairs of rows whose residual is restricted then begin at even rows, as do the pairs that
    arrive where a correction is interpolated.
    """
    rows = reach(work)
    return rows + rows % PAIR if even(work) and not work.restricts else rows


def ring_arguments(work: FusedSweeps) -> list[int]:
    """The arguments that all sweeps read point by point: their rows are fetched once, and kept.

    Along a periodic axis a fetched row is the periodic image, not a ghost row of the array: so
    arrays that are read at a shift along the axis are not kept. Uniform arguments are read before
    all rows, or at the edges only.
    """
    arguments, wraps = work.signature.arguments, work.wraps[0]
    result: dict[int, bool] = {}
    for number, (row, column) in work.tape.loads():
        varies = number > 0 and not any(arguments[number]) and not work.is_uniform(number)
        if varies and column.shift == 0:
            result[number] = result.get(number, True) and (row.shift == 0 or not wraps)
    return sorted(number for number, all_rows in result.items() if all_rows)


@cache
def source_2d(work: FusedSweeps, strip: Strip) -> str:
    """CUDA C of the kernel `sweeps`; cached, because each level of a hierarchy asks for it."""
    work = work.carrying()
    functions = {"POINT": Reads(work, work.tape, work.own, layout_2d(work, "t"))}
    if work.residual is not None:
        args = work.residual, (0, *work.residual_operands), layout_2d(work, "T")
        functions["RESIDUAL"] = Reads(work, *args, "m")
    keeps = ring_arguments(work)
    defines = {
        "T": work.sweeps, "LEVELS": work.sweeps + work.has_residual, "LEAD": lead(work),
        "TAIL": work.sweeps + work.has_residual, "EVEN": even(work), "C": strip.columns,
        "RING": strip.ahead, "PAIRS": strip.ahead // PAIR, "WARPS": strip.warps,
        "BLOCKS": strip.blocks, "MARGIN": work.margin or 0, "HALO": strip.halo(work),
        "STRIP": strip.width(work),
        "WRAPS_I": work.wraps[0], "WRAPS_J": work.wraps[1], "ALIGNED": work.aligned > 1,
        "KEPT": len(keeps), "KEPT_ROWS": strip.kept_rows(work), "COARSE_ROWS": COARSE_ROWS,
        "COARSE": 2 * COARSE_ROWS if work.corrects else 0, "COLOURED": any(work.colours),
    }  # fmt: skip
    pieces: dict[str, str | Sequence[str]] = {
        "PREPARE": [*work.numbers(), *[line for f in functions.values() for line in f.lines]],
        "FETCH_ROW": _fetches(work, keeps),
        "COLOURS": ", ".join(map(str, work.colours)),
    }
    pieces |= functions["POINT"].carries()
    for name, reads in functions.items():
        text = " ".join(reads.args)
        pieces |= reads.pieces(name, [line for value, line in SHUFFLES.items() if value in text])
    return assembled("sweeps_2d.cuh", work, defines, pieces)


WINDOW = {-1: "older", 0: "newer", 1: "newest"}
"""The names of a lane's own columns in the row above, in the row itself, and in the row below."""
SHUFFLES = {
    f"{side}_{row}": f"const real {side}_{row} = from_{side}({row}[{edge}]);"
    for side, edge in (("left", "C - 1"), ("right", "0"))
    for row in WINDOW.values()
}
"""The statements that take elements from the neighbouring lanes."""
FIELD_2D: dict[Shift, str] = {
    (di, dj): f"{row}[k]" if dj == 0
    else f"(k == 0 ? left_{row} : {row}[k - 1])" if dj < 0
    else f"(k == C - 1 ? right_{row} : {row}[k + 1])"
    for di, row in WINDOW.items()
    for dj in (-1, 0, 1)
}  # fmt: skip


def layout_2d(work: FusedSweeps, level: str) -> Layout:
    """The layout of a level of a strip; see `sweeps_2d.cuh`."""
    fetched: dict[tuple[int, Shift], str] = {
        (number, (di, 0)): f"own[(RING + {n} * KEPT_ROWS + "
        f"((2 * n + (r - {level} - 1 + {di})) & (KEPT_ROWS - 1))) * (32 * C) + k]"
        for n, number in enumerate(ring_arguments(work))
        for di in WINDOW
    }
    indices, near = ("inner_row(row)", "inner[k]"), ("ENDS", "SIDES")
    held = "[T][C]", "[t][k]"
    return Layout(indices, (("k", "C"),), near, "", FIELD_2D, fetched, held)


def _fetches(work: FusedSweeps, keeps: list[int]) -> list[str]:
    """The statements that fetch a row of the field, and of each kept array."""
    piece = 2 * work.bytes
    result = []
    for n, name in enumerate(["a0", *[f"a{number}" for number in keeps]]):
        if n == 0 and work.from_zero:
            continue
        slot = "n % PAIRS * 2 + r"
        if n > 0:
            slot = f"RING + {n - 1} * KEPT_ROWS + ((2 * n + r) & (KEPT_ROWS - 1))"
        result += [
            f"const unsigned to{n} = place + ({slot}) * (32 * C * sizeof(real));",
            f"const real* const from{n} = {name} + row;",
            f"if (WHOLE) for (int k = 0; k < C; k += {piece // work.bytes})",
            f"    fetch<{piece}>(to{n} + k * sizeof(real), from{n} + (SIDES ? at[k] : k));",
            "else for (int k = 0; k < C; k++) fetch<sizeof(real)>(",
            f"    to{n} + 32 * k * sizeof(real), from{n} + (SIDES ? side_by_side[k] : 32 * k));",
        ]
    return result


# ---- three dimensions ----------------------------------------------------------------------------

BARRIER = 8
"""Bytes of a barrier; each warp except the first has one."""


Tiles = tuple[int, int]
"""The numbers of tiles along y and along x."""


@dataclass(frozen=True)
class Tile(Part):
    """The columns along z of a block in a kernel of three dimensions."""

    rows: int = 3
    """Points of a thread along y."""
    warps: int = 16
    """Warps of a block, one below the other along y."""
    ahead: int = 3
    """Planes that are on their way."""

    def tiles(self, work: FusedSweeps, rows: tuple[int, int], across: tuple[int, int]) -> Tiles:
        """The tiles that cover the rows, and across the columns, from the first to the second
        number.

        Columns beside the region keep their values, so the first tile begins with such a column,
        and the last one ends with one, in place of a halo, unless the axis is periodic.
        """
        (low, high), halos = across, 2 * self.halo(work)
        right = 32 * self.columns - halos
        down = -(-(rows[1] - rows[0]) // (self.rows * self.warps - 2 * reach(work)))
        if work.wraps[-1]:
            return down, -(-(high - low // 2 * 2) // right)
        return down, max(1, -(-(high + 1 - (low - 1) // 2 * 2 - halos) // right))

    def more_planes(self, work: FusedSweeps) -> int:
        """Planes that a block goes through in addition to the planes of its piece."""
        return 2 * work.sweeps

    def bytes_shared(self, work: FusedSweeps) -> int:
        """Shared memory of a block: planes on their way, and rims of each further sweep."""
        row = 32 * self.columns * self.warps * work.bytes
        planes = self.rows * (self.ahead + 2) + 4 * (work.sweeps - 1)
        return row * planes + BARRIER * self.warps


FIELD_3D: dict[Shift, str] = {
    (0, 0, 0): "newer[t][r][k]",
    (-1, 0, 0): "older[t][r][k]",
    (1, 0, 0): "arrived[r][k]",
    (0, -1, 0): "(r == 0 ? above[k] : newer[t][r - 1][k])",
    (0, 1, 0): "(r == R - 1 ? below[k] : newer[t][r + 1][k])",
    (0, 0, -1): "(k == 0 ? left : newer[t][r][k - 1])",
    (0, 0, 1): "(k == C - 1 ? right : newer[t][r][k + 1])",
}
"""The field at a point and at its six neighbours: no other values are held."""


def layout_3d(field: Mapping[Shift, str], along: int = 0) -> Layout:
    """The layout of a tile; `along`: the number of the array that is loaded with the field."""
    indices = "inner_plane(here)", "inside(ys[r], last_j)", "inside(xs[k], last_k)"
    at_ends = "(here < region_i.low + MARGIN || here >= region_i.high - MARGIN)"
    fetched: dict[tuple[int, Shift], str] = {(along, (0, 0, 0)): "b[t][r][k]"} if along else {}
    loops, held = (("r", "R"), ("k", "C")), ("[T][R][C]", "[t][r][k]")
    near = "ENDS", "SIDES", "SIDES"
    return Layout(indices, loops, near, at_ends, field, fetched, held)


@cache
def source_3d(work: FusedSweeps, tile: Tile) -> str:
    """CUDA C of the kernel `sweeps`; cached, because each level of a hierarchy asks for it."""
    work = work.carrying()
    reads = Reads(work, work.tape, work.own, layout_3d(FIELD_3D))
    width, height = 32 * tile.columns, tile.rows * tile.warps
    defines = {
        "T": work.sweeps, "C": tile.columns, "R": tile.rows, "WARPS": tile.warps,
        "X": width, "Y": height, "TILE": width * height,
        "RIMS": 2 * width * tile.warps, "AHEAD": tile.ahead,
        "RING": tile.ahead + 2, "HALO": tile.halo(work), "WRAPS_I": work.wraps[0],
        "WRAPS_J": work.wraps[1], "WRAPS_K": work.wraps[2], "ALIGNED": work.aligned > 1,
        "ENDS_APART": tile.rows < 3,
    }  # fmt: skip
    pieces = {
        "PREPARE": [*work.numbers(), *reads.lines],
        **reads.pieces("POINT"),
        **reads.carries(),
    }
    return assembled("sweeps_3d.cuh", work, defines, pieces)
