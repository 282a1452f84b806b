"""CUDA C of several sweeps in one pass through memory: a warp marches down a strip of columns.

Temporal blocking in two dimensions. A warp owns a strip of 32 C columns and goes down the rows.
Row y of the field arrives; sweep 1 then has all it needs for row y - 1, sweep 2 for row y - 2, and
so on: each sweep keeps the last two rows of what it reads in registers, the neighbours to the left
and right come from the other lanes. The outermost columns of a strip, one for each sweep, are
wrong and are made again by the strip beside it. Rows arrive ahead of time by `cp.async` in a ring
in shared memory, each lane reading only what it has fetched itself, so nobody waits for others.
The idea of one strip for a warp: K. Matsumura et al., "AN5D", CGO 2020; of registers for levels:
L. Zhang et al., "Revisiting Temporal Blocking Stencil Optimizations", ICS 2023.
"""

from dataclasses import dataclass

from heatsolve.backends.pass_source import Pass, filled


@dataclass(frozen=True)
class Shape:
    """How a kernel of two dimensions is cut: tuned for a device."""

    columns: int = 2
    """Columns of a lane."""
    ahead: int = 8
    """Rows that are on their way."""
    warps: int = 4
    """Warps of a block, each with a strip of its own."""
    blocks: int = 4
    """Blocks that shall fit a multiprocessor: bounds the registers of a thread."""
    rows: int = 128
    """Rows that a warp goes down."""

    def halo(self, reach: int) -> int:
        """Columns at each side of a strip that are wrong in the end."""
        return -(-reach // self.columns) * self.columns

    def kept_rows(self, sweeps: int) -> int:
        """Rows of an array that all sweeps read: on their way, and down to the last sweep's."""
        return self.ahead + 2 * sweeps + 1

    def bytes_shared(self, work: Pass) -> int:
        """Shared memory of a block."""
        rows = self.ahead + len(kept(work)) * self.kept_rows(work.sweeps)
        return rows * 32 * self.columns * self.warps * work.bytes

    def width(self, reach: int) -> int:
        """Columns of a strip that are right in the end."""
        return 32 * self.columns - 2 * self.halo(reach)


TURNS = 3
"""Rows after which the rows of a window stand in the same registers again."""

KERNEL = """
template <bool EDGE> __device__ __forceinline__ void strip(
    @PARAMETERS@, Range region_i, Range region_j, Range counted_i, Range counted_j, int extent_i,
    int extent_j, int first_column, int begin, int end, real* ring
) {
    const int lane = threadIdx.x & 31;
    const int column = first_column + lane * C;
    const int last_i = extent_i - 1, last_j = extent_j - 1;
    const bool mine = lane * C >= HALO && lane * C < 32 * C - HALO;
    // Where a column, or a row, lies in the arrays.
    auto of_column = [&](int j) {
        if (!EDGE) return j;
        if (WRAPS_J) return wrapped(j, last_j - 1);
        return min(max(j, 0), last_j);
    };
    auto of_row = [&](int i) {
        if (!EDGE) return i;
        if (WRAPS_I) return wrapped(i, last_i - 1);
        return min(max(i, 0), last_i);
    };
    auto inner_row = [&](int i) { return EDGE ? min(max(of_row(i), 1), last_i - 1) : i; };
    int at[C], inner[C];
    bool fixed[C];
    // Aligned groups of columns are all in the array or all outside, where any values will do.
    constexpr bool WHOLE = ALIGNED && (!EDGE || !WRAPS_J);
    for (int k = 0; k < C; k++) {
        at[k] = WHOLE && EDGE ? min(max(column + k - k % 2, 0), last_j - 1) + k % 2
                              : of_column(column + k);
        inner[k] = EDGE ? min(max(at[k], 1), last_j - 1) : at[k];
        fixed[k] = EDGE && !WRAPS_J && (column + k < region_j.low || column + k >= region_j.high);
    }
    @LINES@
    real older[T][C], newer[T][C], newest[T][C];
    for (int t = 0; t < T; t++)
        for (int k = 0; k < C; k++) older[t][k] = newer[t][k] = newest[t][k] = 0;
    @NORM_STATE@
    const int start = begin - T, loads = end - begin + 2 * T, steps = loads + T;
    real* const own = ring + lane * C;
    const unsigned place = (unsigned)__cvta_generic_to_shared(own);
    size_t from = EDGE ? 0 : (size_t)start * extent_j + column;
    int into = 0;  // the slot of the kept arrays that is filled next
    auto issue = [&](int n) {
        if (n < loads) {
            const size_t row = EDGE ? (size_t)of_row(start + n) * extent_j : from;
            @FETCHES@
            from += extent_j;
        }
        @KEPT_NEXT@
        fetched();
    };
    for (int n = 0; n < AHEAD - 1; n++) issue(n);
    int slot = 0;  // the slot of the row that arrives
    real* to = o0 + (size_t)begin * extent_j + column;
    auto advance = [&](int n, auto turn) {
        constexpr int TURN = decltype(turn)::value;
        await_all_but<AHEAD - 2>();
        const int y = start + n;
        real result[C];
        #pragma unroll
        for (int t = T - 1; t >= 0; t--) {
            const int row = y - 2 * (t + 1);
            @ROWS@
            @SHUFFLES@
            const bool still = EDGE && !WRAPS_I && (row < region_i.low || row >= region_i.high);
            real value[C];
            #pragma unroll
            for (int k = 0; k < C; k++) {
                value[k] = point(@GIVEN@);
                if (EDGE && (still || fixed[k])) value[k] = newer[t][k];
            }
            @NORMS@
            #pragma unroll
            for (int k = 0; k < C; k++) {
                older[t][k] = newer[t][k];
                newer[t][k] = newest[t][k];
                if (t == T - 1) result[k] = value[k];
                else newest[t + 1][k] = value[k];
            }
        }
        for (int k = 0; k < C; k++) newest[0][k] = own[n % RING * (32 * C) + k];
        issue(n + AHEAD - 1);
        @SLOT_NEXT@
        if (n < 3 * T) return;
        if (mine && y - 2 * T < end) {
            if (ALIGNED &&
                (!EDGE || column >= region_j.low && column + C <= region_j.high)) {
                #pragma unroll
                for (int k = 0; k < C; k += 2) {
                    pack values;
                    values.x = result[k];
                    values.y = result[k + 1];
                    __stcs(reinterpret_cast<pack*>(to + k), values);
                }
            } else {
                for (int k = 0; k < C; k++)
                    if (column + k >= region_j.low && column + k < region_j.high)
                        __stcs(to + k, result[k]);
            }
        }
        to += extent_j;
    };
    for (int n = 0; n < steps; n += TURNS) {
        @TURNS@
    }
    @NORM_END@
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
sweeps(const integer* gate, @PARAMETERS@, integer low_i, integer high_i, integer low_j,
       integer high_j, integer count_low_i, integer count_high_i, integer count_low_j,
       integer count_high_j, integer rows, integer extent_i, integer extent_j) {
    @GATE@
    const Range region_i{int(low_i), int(high_i)}, region_j{int(low_j), int(high_j)};
    const Range counted_i{int(count_low_i), int(count_high_i)};
    const Range counted_j{int(count_low_j), int(count_high_j)};
    extern __shared__ __align__(16) unsigned char shared[];
    const int warp = threadIdx.x >> 5;
    const int first = (region_j.low & ~1) + (blockIdx.x * WARPS + warp) * STRIP;
    if (first >= region_j.high) return;
    const int column = first - HALO;
    const int begin = region_i.low + blockIdx.y * rows;
    const int end = min(begin + int(rows), region_i.high);
    real* ring = reinterpret_cast<real*>(shared) + warp * ((RING + KEPT * KEPT_ROWS) * 32 * C);
    const bool edge = column < region_j.low || column + 32 * C > region_j.high ||
                      begin - T - 1 < region_i.low || end + T + TURNS > region_i.high;
    if (edge)
        strip<true>(@NAMES@, region_i, region_j, counted_i, counted_j, extent_i, extent_j, column,
                    begin, end, ring);
    else
        strip<false>(@NAMES@, region_i, region_j, counted_i, counted_j, extent_i, extent_j, column,
                     begin, end, ring);
}
"""


def kept(work: Pass) -> list[int]:
    """The arguments that all sweeps read point by point: their rows are fetched once, and kept."""
    return sorted(
        {
            number
            for number, ((di, _), (dj, _)) in work.tape.loads()
            if number > 0 and not any(work.signature.arguments[number]) and dj == 0 and abs(di) <= 1
        }
    )


def source(work: Pass, shape: Shape) -> str:
    """CUDA C of the kernel `sweeps`."""
    arguments, tape = work.signature.arguments, work.tape
    keeps = kept(work)
    lines, rows, given = work.numbers(), [], []
    shuffles: set[str] = set()
    for place, operation in enumerate(tape.operations):
        if operation.name == "scalar":
            given.append(work.scalar(operation.operands[0]))
        if operation.name != "load":
            continue
        number, ((di, _), (dj, _)) = operation.operands
        name, array = f"l{place}", f"a{number}"
        if number == 0:
            given.append(_of_field(di, dj, shuffles))
        elif arguments[number] == (True, True):
            lines.append(f"const real {name} = {array}[0];")
            given.append(name)
        elif arguments[number] == (True, False):
            lines.append(f"real {name}[C];")
            lines.append(f"for (int k = 0; k < C; k++) {name}[k] = {array}[inner[k] + {dj}];")
            given.append(f"{name}[k]")
        elif arguments[number] == (False, True):
            rows.append(f"const real {name} = {array}[inner_row(row) + {di}];")
            given.append(name)
        elif number in keeps and dj == 0:
            rows.append(f"int {name} = slot - 2 * (t + 1) + {di};")
            rows.append(f"if ({name} < 0) {name} += KEPT_ROWS;")
            slot = f"RING + {keeps.index(number)} * KEPT_ROWS + {name}"
            given.append(f"own[({slot}) * (32 * C) + k]")
        else:
            place_of_row = f"(size_t)(inner_row(row) + {di}) * extent_j + {dj}"
            rows.append(f"const real* {name} = {array} + {place_of_row};")
            given.append(f"{name}[inner[k]]")
    state, each, last = _norms(work)
    defines = {
        "T": work.sweeps, "C": shape.columns, "AHEAD": shape.ahead, "RING": shape.ahead,
        "WARPS": shape.warps, "BLOCKS": shape.blocks, "HALO": shape.halo(work.sweeps),
        "STRIP": shape.width(work.sweeps), "WRAPS_I": work.wraps[0], "WRAPS_J": work.wraps[1],
        "ALIGNED": work.aligned, "KEPT": len(keeps), "KEPT_ROWS": shape.kept_rows(work.sweeps),
        "TURNS": TURNS,
    }  # fmt: skip
    return filled(
        KERNEL, work, defines,
        LINES="\n    ".join(lines), ROWS="\n            ".join(rows),
        SHUFFLES="\n            ".join(sorted(shuffles)), GIVEN=", ".join(given),
        FETCHES="\n            ".join(_fetches(work, shape, keeps)),
        KEPT_NEXT="if (++into == KEPT_ROWS) into = 0;" if keeps else "",
        SLOT_NEXT="if (++slot == KEPT_ROWS) slot = 0;" if keeps else "",
        TURNS=" ".join(f"advance(n + {turn}, Number<{turn}>());" for turn in range(TURNS)),
        NORM_STATE="\n    ".join(state), NORMS="\n            ".join(each),
        NORM_END="\n    ".join(last),
    )  # fmt: skip


def _of_field(di: int, dj: int, shuffles: set[str]) -> str:
    """An element of the field: of the own columns, or by a shuffle of those beside them."""
    window = {-1: "older[t]", 0: "newer[t]", 1: "newest[t]"}[di]
    if dj == 0:
        return f"{window}[k]"
    side = {-1: "left", 1: "right"}[dj]
    name = f"{side}_{window.removesuffix('[t]')}"
    edge = "C - 1" if dj < 0 else "0"
    shuffles.add(f"const real {name} = from_{side}({window}[{edge}]);")
    inside = f"{window}[k {'-' if dj < 0 else '+'} 1]"
    return f"(k == {'0' if dj < 0 else 'C - 1'} ? {name} : {inside})"


def _fetches(work: Pass, shape: Shape, keeps: list[int]) -> list[str]:
    """The statements that fetch a row of the field, and of each kept array."""
    piece = 2 * work.bytes
    found = []
    for n, name in enumerate(["a0", *[f"a{number}" for number in keeps]]):
        slot = "n % RING" if n == 0 else f"RING + {n - 1} * KEPT_ROWS + into"
        found += [
            f"const unsigned to{n} = place + ({slot}) * (32 * C * sizeof(real));",
            f"if (WHOLE) for (int k = 0; k < C; k += {piece // work.bytes})",
            f"    fetch<{piece}>(to{n} + k * sizeof(real), {name} + row + (EDGE ? at[k] : k));",
            "else for (int k = 0; k < C; k++) fetch<sizeof(real)>(",
            f"    to{n} + k * sizeof(real), {name} + row + (EDGE ? at[k] : k));",
        ]
    return found


def _norms(work: Pass) -> tuple[list[str], list[str], list[str]]:
    """The statements of the norms: before the rows, after each row of a sweep, and at the end."""
    if not any(work.norms):
        return [], [], []
    state = [
        "bool within[C];",
        "for (int k = 0; k < C; k++)",
        "    within[k] = mine && column + k >= counted_j.low && column + k < counted_j.high;",
        "const int copy = (blockIdx.x * WARPS + (threadIdx.x >> 5) + blockIdx.y * 7) % SPREAD;",
    ]
    each, last = [], []
    here = "row >= max(begin, counted_i.low) && row < min(end, counted_i.high)"
    for t, kind in enumerate(work.norms):
        if kind == "max":
            state.append(f"integer most{t} = 0;")
            each.append(
                f"if (t == {t} && {here}) for (int k = 0; k < C; k++) if (within[k]) "
                f"most{t} = max(most{t}, magnitude(value[k] - newer[t][k]));"
            )
            last.append(f"add_largest(most{t}, reg{t} + copy * WIDTH);")
        elif kind == "sum":
            state.append(f"double terms{t}[TURNS * C];")
            each += [
                f"if (t == {t}) for (int k = 0; k < C; k++) {{",
                "    const real change = value[k] - newer[t][k];",
                f"    const bool counts = {here} && within[k];",
                f"    terms{t}[TURN * C + k] = counts ? (double)(change * change) : 0.0;",
                "}",
                f"if (t == {t} && TURN == TURNS - 1) add_sum(terms{t}, reg{t} + copy * WIDTH);",
            ]
    return state, each, last
