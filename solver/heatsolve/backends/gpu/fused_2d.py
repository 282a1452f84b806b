"""Fused sweeps in two dimensions: a warp marches down a strip of columns.

Temporal blocking in two dimensions. A warp owns a strip of 32 C columns and goes down the rows, two
at a time. Rows y and y + 1 of the field arrive; sweep 1 then has all it needs for the rows y - 1
and y, sweep 2 for y - 2 and y - 1, and so on: each sweep keeps the last two rows of what it reads
in registers, the neighbours to the left and right come from the other lanes. The outermost columns
of a strip, one for each sweep, are wrong and are made again by the strip beside it. Rows arrive
ahead of time by `cp.async` in a ring in shared memory, of the own warp, so nobody waits for others.
The idea of one strip for a warp: K. Matsumura et al., "AN5D", CGO 2020; of registers for levels:
L. Zhang et al., "Revisiting Temporal Blocking Stencil Optimizations", ICS 2023.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from heatsolve.backends.gpu.fused_kernel import FusedSweeps, assembled, place_of
from heatsolve.stencil.trace import Tape

PAIR = 2
"""Rows that a warp goes down at a time."""
COARSE_ROWS = 8
"""Rows of the coarse array that a warp holds: one for each pair of rows of the ring, at least."""


@dataclass(frozen=True)
class Shape:
    """How a kernel of two dimensions is cut: tuned for a device."""

    columns: int = 2
    """Columns of a lane."""
    ahead: int = 8
    """Rows of the ring: those that have just arrived, and those on their way."""
    warps: int = 4
    """Warps of a block, each with a strip of its own."""
    blocks: int = 4
    """Blocks that shall fit a multiprocessor: bounds the registers of a thread."""

    def halo(self, work: FusedSweeps) -> int:
        """Columns at each side of a strip that are wrong in the end."""
        return -(-reach(work) // self.columns) * self.columns

    def kept_rows(self, work: FusedSweeps) -> int:
        """Rows of an array that all sweeps read, on their way and down to the last sweep's.

        A power of two, so that the place of a row is a matter of bits.
        """
        rows = self.ahead + work.sweeps + work.has_residual + 1
        return 1 << (rows - 1).bit_length()

    def bytes_shared(self, work: FusedSweeps) -> int:
        """Shared memory of a block."""
        rows = self.ahead + len(kept(work)) * self.kept_rows(work)
        coarse = COARSE_ROWS * 2 if work.corrects else 0
        return (rows * self.columns + coarse) * 32 * self.warps * work.bytes

    def width(self, work: FusedSweeps) -> int:
        """Columns of a strip that are right in the end."""
        return 32 * self.columns - 2 * self.halo(work)


def reach(work: FusedSweeps) -> int:
    """Points around a piece of the result on which it depends."""
    return work.sweeps + (3 if work.restricts else work.has_residual)


def even(work: FusedSweeps) -> bool:
    """Whether pieces begin at even rows: where rows differ by colour, or belong to coarse ones."""
    return any(work.colours) or work.transfer is not None


def lead(work: FusedSweeps) -> int:
    """Rows above a piece at which a warp begins.

    The pairs of rows whose residual is restricted then begin at even rows, as do the pairs that
    arrive where a correction is interpolated.
    """
    rows = reach(work)
    return rows + rows % PAIR if even(work) and not work.restricts else rows


def kept(work: FusedSweeps) -> list[int]:
    """The arguments that all sweeps read point by point: their rows are fetched once, and kept.

    Rows are fetched where a periodic field has them; a ghost row of the array itself is another.
    Uniform ones are read at the edges only.
    """
    arguments, wraps = work.signature.arguments, work.wraps[0]
    result: dict[int, bool] = {}
    for number, ((di, _), (dj, _)) in work.tape.loads():
        if number > 0 and not any(arguments[number]) and dj == 0 and not work.is_uniform(number):
            result[number] = result.get(number, True) and (di == 0 or not wraps)
    return sorted(number for number, all_rows in result.items() if all_rows)


@cache
def source(work: FusedSweeps, shape: Shape) -> str:
    """CUDA C of the kernel `sweeps`; written once, as each level of a hierarchy asks."""
    reads = Reads(work, work.tape, range(len(work.signature.arguments)), "t")
    state, each, last = _norms(work)
    keeps, lines = reads.keeps, [*work.numbers(), *reads.lines]
    defines = {
        "T": work.sweeps, "LEVELS": work.sweeps + work.has_residual, "LEAD": lead(work),
        "TAIL": work.sweeps + work.has_residual, "EVEN": even(work), "C": shape.columns,
        "RING": shape.ahead, "PAIRS": shape.ahead // PAIR, "WARPS": shape.warps,
        "BLOCKS": shape.blocks, "MARGIN": work.margin or 0, "HALO": shape.halo(work),
        "STRIP": shape.width(work),
        "WRAPS_I": work.wraps[0], "WRAPS_J": work.wraps[1], "ALIGNED": work.aligned > 1,
        "KEPT": len(keeps), "KEPT_ROWS": shape.kept_rows(work), "COARSE_ROWS": COARSE_ROWS,
        "COARSE": 2 * COARSE_ROWS if work.corrects else 0, "COLOURED": any(work.colours),
    }  # fmt: skip
    pieces = {
        "FETCH_ROW": _fetches(work, keeps),
        "READ_ROW": [*reads.rows, *sorted(reads.shuffles)],
        "POINT_ARGUMENTS": ", ".join(reads.args),
        "COLOURS": ", ".join({1: "0", -1: "1", 0: "2"}[colour] for colour in work.colours),
        "CHANGE_STATE": state, "CHANGE_OF_ROW": each, "CHANGE_END": last,
    }  # fmt: skip
    if work.transfer is not None and work.transfer.residual is not None:
        numbers = (0, *work.transfer.operands)
        reads = Reads(work, work.transfer.residual, numbers, "T", "m")
        lines += reads.lines
        pieces["READ_ROW_OF_RESIDUAL"] = [*reads.rows, *sorted(reads.shuffles)]
        pieces["RESIDUAL_ARGUMENTS"] = ", ".join(reads.args)
    return assembled("sweeps_2d.cuh", work, defines, {"PREPARE": lines, **pieces})


class Reads:
    """What the point function of a level reads, as statements before it and as its arguments.

    `arguments` are the numbers of the kernel's arguments that it takes; `level` is the level;
    `letter` begins its names. `on_any_row`: it is far from the ends, and asks uniform arguments.
    """

    def __init__(
        self, work: FusedSweeps, tape: Tape, arguments: Sequence[int], level: str,
        letter: str = "l", on_any_row: bool = False,
    ):  # fmt: skip
        self._work, self._level, self._on_any_row = work, level, on_any_row
        self.keeps = kept(work)
        self.lines: list[str] = []
        self.rows: list[str] = []
        self.args: list[str] = []
        self.shuffles: set[str] = set()
        for place, operation in enumerate(tape.operations):
            if operation.name == "scalar":
                self.args.append(work.scalar(arguments[operation.operands[0]]))
            elif operation.name == "load":
                number, ((di, _), (dj, _)) = operation.operands
                if arguments[number] == 0:
                    self.args.append(self._of_field(di, dj))
                else:
                    name = f"{letter}{place}"
                    self.args.append(self._of_array(name, arguments[number], di, dj))

    def _of_array(self, name: str, number: int, di: int, dj: int) -> str:
        array, constant = f"a{number}", self._work.signature.arguments[number]
        uniform = self._work.is_uniform(number)
        inside = f"{name}_inside"
        if uniform and not all(constant):
            middle = place_of(constant, ["extent_i / 2", "extent_j / 2"])
            self.lines.append(f"const real {inside} = {array}[{middle}];")
        if constant == (True, True):
            self.lines.append(f"const real {name} = {array}[0];")
            return name
        if constant == (True, False):
            self.lines.append(f"real {name}[C];")
            value = f"{array}[inner[k] + {dj}]"
            if uniform:
                value = f"SIDES ? {value} : {inside}"
            self.lines.append(f"for (int k = 0; k < C; k++) {name}[k] = {value};")
            return f"{name}[k]"
        if constant == (False, True):
            value = f"{array}[inner_row(row) + {di}]"
            if self._on_any_row:
                return inside
            if uniform:
                value = f"ENDS ? {value} : {inside}"
            self.rows.append(f"const real {name} = {value};")
            return name
        if self._work.is_recomputed(number):
            assert self._work.inverse is not None
            args = self._work, self._work.inverse, self._work.made_of, self._level
            made, beside = Reads(*args, f"{name}_"), Reads(*args, f"{name}s_", True)
            self.rows += made.rows
            self.lines += [
                *made.lines, *beside.lines, f"real {name}_side[C];",
                f"for (int k = 0; k < C; k++) "
                f"{name}_side[k] = SIDES ? inverse({', '.join(beside.args)}) : {inside};",
            ]  # fmt: skip
            return f"(ENDS ? inverse({', '.join(made.args)}) : {name}_side[k])"
        if number in self.keeps and dj == 0:
            behind = f"r - {self._level} - 1 + {di}"
            self.rows.append(f"const int {name} = (2 * n + ({behind})) & (KEPT_ROWS - 1);")
            slot = f"RING + {self.keeps.index(number)} * KEPT_ROWS + {name}"
            return f"own[({slot}) * (32 * C) + k]"
        row = f"(size_t)(inner_row(row) + {di}) * pitch + {dj}"
        self.rows.append(f"const real* {name} = {array} + {row};")
        value = f"{name}[inner[k]]"
        return f"(SIDES ? {value} : {inside})" if uniform else value

    def _of_field(self, di: int, dj: int) -> str:
        """An element of the field: of the own columns, or by a shuffle of those beside them."""
        window = {-1: "older", 0: "newer", 1: "newest"}[di]
        if dj == 0:
            return f"{window}[k]"
        side = {-1: "left", 1: "right"}[dj]
        name, edge = f"{side}_{window}", "C - 1" if dj < 0 else "0"
        self.shuffles.add(f"const real {name} = from_{side}({window}[{edge}]);")
        inside = f"{window}[k {'-' if dj < 0 else '+'} 1]"
        return f"(k == {'0' if dj < 0 else 'C - 1'} ? {name} : {inside})"


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


def _norms(work: FusedSweeps) -> tuple[list[str], list[str], list[str]]:
    """The statements of the norms: before the rows, after each row of a sweep, and at the end."""
    if not any(work.norms):
        return [], [], []
    state = [
        "bool within[C];",
        "for (int k = 0; k < C; k++)",
        "    within[k] = mine && column + k >= counted_j.low && column + k < counted_j.high;",
        "const int copy = COPY;",
    ]
    each, last = [], []
    here = "row >= begin && row < end && (!ENDS || row >= counted_i.low && row < counted_i.high)"
    for t, kind in enumerate(work.norms):
        if kind == "max":
            state.append(f"integer most{t} = 0;")
            each.append(
                f"if (t == {t} && {here}) for (int k = 0; k < C; k++) if (!SIDES || within[k]) "
                f"most{t} = max(most{t}, magnitude(value[k] - newer[k]));"
            )
            last.append(f"add_largest(mine ? most{t} : 0, reg{t} + copy * WIDTH);")
        elif kind == "sum":
            state.append(f"double terms{t}[2 * C];")
            state.append(f"Sum sum{t}(reg{t} + copy * WIDTH);")
            each += [
                f"if (t == {t}) for (int k = 0; k < C; k++) {{",
                "    const real change = value[k] - newer[k];",
                f"    const bool counts = {here} && (SIDES ? within[k] : mine);",
                f"    terms{t}[r * C + k] = counts ? (double)(change * change) : 0.0;",
                "}",
                f"if (t == {t} && r == 1) sum{t}.add(terms{t});",
            ]
            last.append(f"sum{t}.finish();")
    return state, each, last
