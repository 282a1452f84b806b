"""CUDA C of several sweeps in one pass through memory: a warp marches down a strip of columns.

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

from heatsolve.backends import cycle_source
from heatsolve.backends.pass_source import Pass, filled
from heatsolve.backends.tape import Tape

PAIR = 2
"""Rows that a warp goes down at a time."""


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

    def halo(self, work: Pass) -> int:
        """Columns at each side of a strip that are wrong in the end."""
        return -(-reach(work) // self.columns) * self.columns

    def kept_rows(self, work: Pass) -> int:
        """Rows of an array that all sweeps read, on their way and down to the last sweep's.

        A power of two, so that the place of a row is a matter of bits.
        """
        rows = self.ahead + work.sweeps + work.looks + 1
        return 1 << (rows - 1).bit_length()

    def bytes_shared(self, work: Pass) -> int:
        """Shared memory of a block."""
        rows = self.ahead + len(kept(work)) * self.kept_rows(work)
        interpolates = work.transfer is not None and not work.restricts
        coarse = cycle_source.COARSE_ROWS * 2 if interpolates else 0
        return (rows * self.columns + coarse) * 32 * self.warps * work.bytes

    def width(self, work: Pass) -> int:
        """Columns of a strip that are right in the end."""
        return 32 * self.columns - 2 * self.halo(work)


def reach(work: Pass) -> int:
    """Points around a piece of the result on which it depends."""
    return work.sweeps + (3 if work.restricts else work.looks)


def even(work: Pass) -> bool:
    """Whether pieces begin at even rows: where rows differ by colour, or belong to coarse ones."""
    return any(work.colours) or work.transfer is not None


def lead(work: Pass) -> int:
    """Rows above a piece at which a warp begins.

    The pairs of rows whose residual is restricted then begin at even rows, as do the pairs that
    arrive where a correction is interpolated.
    """
    rows = reach(work)
    return rows + rows % PAIR if even(work) and not work.restricts else rows


KERNEL = """
// ENDS: rows at the upper or lower end of the region; SIDES: columns at the left or right one.
template <bool ENDS, bool SIDES> __device__ __forceinline__ void strip(
    @PARAMETERS@, Range region_i, Range region_j, Range counted_i, Range counted_j, int extent_i,
    int extent_j, int first_column, int begin, int end, real* ring
) {
    const int lane = threadIdx.x & 31;
    const int column = first_column + lane * C;
    const int last_i = extent_i - 1, last_j = extent_j - 1;
    const bool mine = lane * C >= HALO && lane * C < 32 * C - HALO;
    // Where a column, or a row, lies in the arrays.
    auto of_column = [&](int j) {
        if (!SIDES) return j;
        if (WRAPS_J) return wrapped(j, last_j - 1);
        return min(max(j, 0), last_j);
    };
    auto of_row = [&](int i) {
        if (!ENDS) return i;
        if (WRAPS_I) return wrapped(i, last_i - 1);
        return min(max(i, 0), last_i);
    };
    auto inner_row = [&](int i) { return ENDS ? min(max(of_row(i), 1), last_i - 1) : i; };
    int at[C], inner[C], side_by_side[C];
    bool fixed[C];
    // Aligned groups of columns are all in the array or all outside, where any values will do.
    // Elsewhere lanes fetch and store single elements, side by side, for one another.
    constexpr bool WHOLE = ALIGNED && (!SIDES || !WRAPS_J);
    for (int k = 0; k < C; k++) {
        at[k] = WHOLE && SIDES ? min(max(column + k - k % 2, 0), last_j - 1) + k % 2
                              : of_column(column + k);
        inner[k] = SIDES ? min(max(at[k], 1), last_j - 1) : at[k];
        fixed[k] = SIDES && !WRAPS_J && (column + k < region_j.low || column + k >= region_j.high);
        side_by_side[k] = of_column(first_column + lane + 32 * k);
    }
    const int start = begin - LEAD, pairs = (end + TAIL - start + 1) / 2;
    @LINES@
    @TRANSFER_STATE@
    // The rows that a level reads: the two before, and those that have come to it.
    real before[LEVELS][2][C], current[2][C];
    for (int t = 0; t < LEVELS; t++)
        for (int r = 0; r < 2; r++) for (int k = 0; k < C; k++) before[t][r][k] = 0;
    @NORM_STATE@
    real* const own = ring + lane * C;
    const unsigned place = (unsigned)__cvta_generic_to_shared(WHOLE ? own : ring + lane);
    // Of a row that lies where it seems to; and of the first column, unless those are looked up.
    size_t from = (size_t)start * extent_j + (SIDES ? 0 : WHOLE ? column : first_column + lane);
    auto issue = [&](int n) {
        if (n < pairs) {
            #pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = start + 2 * n + r;
                const size_t row = ENDS ? (size_t)of_row(i) * extent_j : from;
                @FETCHES@
                from += extent_j;
            }
            @FETCH_COARSE@
        }
        fetched();
    };
    for (int n = 0; n < PAIRS - 1; n++) issue(n);
    real* to = o0 + (start - T) * (integer)extent_j + (ALIGNED ? column : first_column + lane);
    for (int n = 0; n < pairs; n++) {
        await_all_but<PAIRS - 2>();
        __syncwarp();  // what others have fetched is here, what they read before may be replaced
        const int y = start + 2 * n;
        real* const arrived = own + n % PAIRS * (2 * 32 * C);
        @ARRIVE@
        issue(n + PAIRS - 1);
        #pragma unroll
        for (int t = 0; t < T; t++) {
            real moved[2][C];
            #pragma unroll
            for (int r = 0; r < 2; r++) {
                const int row = y - t - 1 + r;
                @WINDOW@
                @ROWS@
                @SHUFFLES@
                const bool still =
                    ENDS && !WRAPS_I && (row < region_i.low || row >= region_i.high);
                real value[C];
                #pragma unroll
                for (int k = 0; k < C; k++) {
                    @POINT@
                    if (SIDES && (still || fixed[k])) value[k] = newer[k];
                    moved[r][k] = value[k];
                }
                @NORMS@
            }
            #pragma unroll
            for (int r = 0; r < 2; r++) for (int k = 0; k < C; k++) {
                before[t][r][k] = current[r][k];
                current[r][k] = moved[r][k];
            }
        }
        @RESTRICT@
        if (!ALIGNED) {  // the elements change lanes where they came in
            for (int r = 0; r < 2; r++) for (int k = 0; k < C; k++)
                arrived[r * (32 * C) + k] = current[r][k];
            __syncwarp();
        }
        const bool whole = !SIDES || (column >= region_j.low && column + C <= region_j.high);
        #pragma unroll
        for (int r = 0; r < 2; r++) {
            const int out = y - T + r;
            const bool stored = out >= (ENDS ? max(begin, region_i.low) : begin) &&
                                out < (ENDS ? min(end, region_i.high) : end);
            #pragma unroll
            for (int k = 0; k < C; k++) {
                if (ALIGNED) {
                    if (k % 2 == 0)
                        store_if(stored && mine && whole, to + k, current[r][k], current[r][k + 1]);
                    if (!SIDES) continue;
                    const bool inside = column + k >= region_j.low && column + k < region_j.high;
                    store_if(stored && mine && inside && !whole, to + k, current[r][k]);
                } else {
                    const int place = lane + 32 * k, j = first_column + place;
                    const bool inside = place >= HALO && place < 32 * C - HALO &&
                                        (!SIDES || (j >= region_j.low && j < region_j.high));
                    const real* const row = arrived - lane * C + r * (32 * C);
                    store_if(stored && inside, to + 32 * k, row[place]);
                }
            }
            to += extent_j;
        }
    }
    @NORM_END@
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
sweeps(const integer* gate, @PARAMETERS@, integer low_i, integer high_i, integer low_j,
       integer high_j, integer count_low_i, integer count_high_i, integer count_low_j,
       integer count_high_j, integer rows, integer fewer, integer extent_i, integer extent_j) {
    @GATE@
    const Range region_i{int(low_i), int(high_i)}, region_j{int(low_j), int(high_j)};
    const Range counted_i{int(count_low_i), int(count_high_i)};
    const Range counted_j{int(count_low_j), int(count_high_j)};
    extern __shared__ __align__(16) unsigned char shared[];
    // A shuffle tells the compiler that the number is the same in all lanes.
    const int warp = __shfl_sync(EVERY_LANE, int(threadIdx.x >> 5), 0);
    const int first = (region_j.low & ~1) + (blockIdx.x * WARPS + warp) * STRIP;
    if (first >= @LAST_COLUMN@) return;
    const int column = first - HALO;
    const int top = EVEN ? region_i.low & ~1 : region_i.low, piece = blockIdx.y * int(rows);
    const int begin = top + max(piece - int(fewer), 0);
    const int end = min(top + piece + int(rows) - int(fewer), @LAST_ROW@);
    const int share = ((RING + KEPT * KEPT_ROWS) * C + COARSE) * 32;
    real* ring = reinterpret_cast<real*>(shared) + warp * share;
    const bool ends = begin - LEAD - LEVELS - 1 < region_i.low || end + TAIL + 2 > region_i.high ||
                      begin < counted_i.low || end > counted_i.high;
    const bool sides = column < region_j.low || column + 32 * C > region_j.high ||
                       column + HALO < counted_j.low || column + 32 * C - HALO > counted_j.high;
    if (ends)
        strip<true, true>(@NAMES@, region_i, region_j, counted_i, counted_j, extent_i, extent_j,
                          column, begin, end, ring);
    else if (sides)
        strip<false, true>(@NAMES@, region_i, region_j, counted_i, counted_j, extent_i, extent_j,
                           column, begin, end, ring);
    else
        strip<false, false>(@NAMES@, region_i, region_j, counted_i, counted_j, extent_i, extent_j,
                            column, begin, end, ring);
}
"""

WINDOW = """\
real older[C], newer[C], newest[C];
                for (int k = 0; k < C; k++) {
                    older[k] = before[@LEVEL@][r][k];
                    newer[k] = r == 0 ? before[@LEVEL@][1][k] : current[0][k];
                    newest[k] = current[r][k];
                }"""
"""The rows above a row, of it, and below it, as a level reads them."""


def kept(work: Pass) -> list[int]:
    """The arguments that all sweeps read point by point: their rows are fetched once, and kept.

    Rows are fetched where a periodic field has them; a ghost row of the array itself is another.
    """
    arguments, wraps = work.signature.arguments, work.wraps[0]
    found: dict[int, bool] = {}
    for number, ((di, _), (dj, _)) in work.tape.loads():
        if number > 0 and not any(arguments[number]) and dj == 0:
            found[number] = found.get(number, True) and (di == 0 or not wraps)
    return sorted(number for number, all_rows in found.items() if all_rows)


@cache
def source(work: Pass, shape: Shape) -> str:
    """CUDA C of the kernel `sweeps`; written once, as each level of a hierarchy asks."""
    reads = Reads(work, work.tape, range(len(work.signature.arguments)), "t")
    state, each, last = _norms(work)
    transfer = cycle_source.pieces(work) if work.transfer else cycle_source.NO_PIECES
    keeps = reads.keeps
    defines = {
        "T": work.sweeps, "LEVELS": work.sweeps + work.looks, "LEAD": lead(work),
        "TAIL": work.sweeps + work.looks, "EVEN": even(work), "C": shape.columns,
        "RING": shape.ahead, "PAIRS": shape.ahead // PAIR, "WARPS": shape.warps,
        "BLOCKS": shape.blocks, "HALO": shape.halo(work), "STRIP": shape.width(work),
        "WRAPS_I": work.wraps[0], "WRAPS_J": work.wraps[1], "ALIGNED": work.aligned,
        "KEPT": len(keeps), "KEPT_ROWS": shape.kept_rows(work),
        "COARSE_ROWS": cycle_source.COARSE_ROWS,
        "COARSE": 2 * cycle_source.COARSE_ROWS if transfer.fetch else 0,
    }  # fmt: skip
    point = f"value[k] = point({', '.join(reads.given)});"
    if any(work.colours):
        colours = ", ".join({1: "0", -1: "1", 0: "2"}[colour] for colour in work.colours)
        point = COLOURED.replace("@COLOURS@", colours).replace("@POINT@", point)
    return filled(
        KERNEL, work, defines,
        LINES="\n    ".join([*work.numbers(), *reads.lines, *transfer.lines]),
        ROWS="\n                ".join(reads.rows),
        SHUFFLES="\n                ".join(sorted(reads.shuffles)), POINT=point,
        WINDOW=WINDOW.replace("@LEVEL@", "t"),
        FETCHES="\n                ".join(_fetches(work, keeps)),
        NORM_STATE="\n    ".join(state), NORMS="\n                ".join(each),
        NORM_END="\n    ".join([*last, transfer.end]), TRANSFER_STATE=transfer.state,
        RESTRICT=transfer.restrict, ARRIVE=transfer.arrive, FETCH_COARSE=transfer.fetch,
        LAST_COLUMN=transfer.last_column, LAST_ROW=transfer.last_row,
    )  # fmt: skip


COLOURED = """\
constexpr int colours[] = {@COLOURS@};
                    // Where points lie where they seem to, the compiler knows their colours.
                    const int chess = ENDS || (SIDES && WRAPS_J)
                        ? (of_row(row) + at[k]) & 1 : (LEAD + t + 1 + r + k) & 1;
                    const bool moves = colours[t] == 2 || colours[t] == chess;
                    @POINT@
                    if (!moves) value[k] = newer[k];"""


class Reads:
    """What the point function of a level reads, as statements before it and as its arguments.

    `arguments` are the numbers of the kernel's arguments that it takes; `level` is the level.
    """

    def __init__(self, work: Pass, tape: Tape, arguments: Sequence[int], level: str):
        self._work, self._level = work, level
        self.keeps = kept(work)
        self.lines: list[str] = []
        self.rows: list[str] = []
        self.given: list[str] = []
        self.shuffles: set[str] = set()
        for place, operation in enumerate(tape.operations):
            if operation.name == "scalar":
                self.given.append(work.scalar(arguments[operation.operands[0]]))
            elif operation.name == "load":
                number, ((di, _), (dj, _)) = operation.operands
                if number == 0:
                    self.given.append(self._of_field(di, dj))
                else:
                    name = f"{'l' if level == 't' else 'm'}{place}"
                    self.given.append(self._of_array(name, arguments[number], di, dj))

    def _of_array(self, name: str, number: int, di: int, dj: int) -> str:
        array, constant = f"a{number}", self._work.signature.arguments[number]
        if constant == (True, True):
            self.lines.append(f"const real {name} = {array}[0];")
            return name
        if constant == (True, False):
            self.lines.append(f"real {name}[C];")
            self.lines.append(f"for (int k = 0; k < C; k++) {name}[k] = {array}[inner[k] + {dj}];")
            return f"{name}[k]"
        if constant == (False, True):
            self.rows.append(f"const real {name} = {array}[inner_row(row) + {di}];")
            return name
        if number in self.keeps and dj == 0:
            behind = f"r - {self._level} - 1 + {di}"
            self.rows.append(f"const int {name} = (2 * n + ({behind})) & (KEPT_ROWS - 1);")
            slot = f"RING + {self.keeps.index(number)} * KEPT_ROWS + {name}"
            return f"own[({slot}) * (32 * C) + k]"
        row = f"(size_t)(inner_row(row) + {di}) * extent_j + {dj}"
        self.rows.append(f"const real* {name} = {array} + {row};")
        return f"{name}[inner[k]]"

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


def _fetches(work: Pass, keeps: list[int]) -> list[str]:
    """The statements that fetch a row of the field, and of each kept array."""
    piece = 2 * work.bytes
    found = []
    for n, name in enumerate(["a0", *[f"a{number}" for number in keeps]]):
        if n == 0 and work.from_zero:
            continue
        slot = "n % PAIRS * 2 + r"
        if n > 0:
            slot = f"RING + {n - 1} * KEPT_ROWS + ((2 * n + r) & (KEPT_ROWS - 1))"
        found += [
            f"const unsigned to{n} = place + ({slot}) * (32 * C * sizeof(real));",
            f"const real* const from{n} = {name} + row;",
            f"if (WHOLE) for (int k = 0; k < C; k += {piece // work.bytes})",
            f"    fetch<{piece}>(to{n} + k * sizeof(real), from{n} + (SIDES ? at[k] : k));",
            "else for (int k = 0; k < C; k++) fetch<sizeof(real)>(",
            f"    to{n} + 32 * k * sizeof(real), from{n} + (SIDES ? side_by_side[k] : 32 * k));",
        ]
    return found


def _norms(work: Pass) -> tuple[list[str], list[str], list[str]]:
    """The statements of the norms: before the rows, after each row of a sweep, and at the end."""
    if not any(work.norms):
        return [], [], []
    state = [
        "bool within[C];  // at the sides",
        "for (int k = 0; k < C; k++)",
        "    within[k] = mine && column + k >= counted_j.low && column + k < counted_j.high;",
        "const int copy = (blockIdx.x * WARPS + (threadIdx.x >> 5) + blockIdx.y * 7) % SPREAD;",
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
            each += [
                f"if (t == {t}) for (int k = 0; k < C; k++) {{",
                "    const real change = value[k] - newer[k];",
                f"    const bool counts = {here} && (SIDES ? within[k] : mine);",
                f"    terms{t}[r * C + k] = counts ? (double)(change * change) : 0.0;",
                "}",
                f"if (t == {t} && r == 1) add_sum(terms{t}, reg{t} + copy * WIDTH);",
            ]
    return state, each, last
