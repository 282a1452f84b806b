"""CUDA C of several sweeps of a field of three dimensions in one pass through memory.

A block of threads owns a tile of columns along z and goes up the planes. Plane z arrives; sweep 1
then has all it needs for plane z - 1, sweep 2 for plane z - 2, and so on. Of what each sweep reads
a thread keeps its own points of two planes in registers; the neighbours along x come from the other
lanes, those along y from a copy of the newest plane in shared memory. That copy was written a step
before, so that one barrier a step is enough for all sweeps. The outermost points of a tile, one
layer for each sweep, are wrong and are made again by the tile beside it (A. Nguyen et al., "3.5-D
Blocking Optimization for Stencil Computations", SC 2010).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from heatsolve.backends.pass_source import Pass, filled
from heatsolve.backends.tape import Tape


@dataclass(frozen=True)
class Shape:
    """How a kernel of three dimensions is cut: tuned for a device."""

    columns: int = 2
    """Points of a thread along x."""
    rows: int = 3
    """Points of a thread along y."""
    warps: int = 16
    """Warps of a block, one below the other along y."""
    ahead: int = 3
    """Planes that are on their way."""

    def halo(self, reach: int) -> int:
        """Columns at each side of a tile that are wrong in the end."""
        return -(-reach // self.columns) * self.columns

    def right(self, work: Pass) -> tuple[int, int]:
        """Rows and columns of a tile that are right in the end."""
        reach = work.sweeps
        return self.rows * self.warps - 2 * reach, 32 * self.columns - 2 * self.halo(reach)

    def more_planes(self, work: Pass) -> int:
        """Planes that a block goes up besides those of its piece."""
        return 3 * work.sweeps

    def bytes_shared(self, work: Pass) -> int:
        """Shared memory of a block: planes on their way, and rims of each further sweep."""
        row = 32 * self.columns * self.warps * work.bytes
        return row * (self.rows * (self.ahead + 2) + 4 * (work.sweeps - 1))


KERNEL = """
template <bool EDGE> __device__ __forceinline__ void tile(
    @PARAMETERS@, Range region_i, Range region_j, Range region_k, Range counted_i, Range counted_j,
    Range counted_k, int extent_i, int extent_j, int extent_k, int first_j, int first_k, int begin,
    int end, real* shared
) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int x = first_k + lane * C, y = first_j + warp * R;
    const int last_i = extent_i - 1, last_j = extent_j - 1, last_k = extent_k - 1;
    auto of = [&](int n, int last, bool wraps) {
        return !EDGE ? n : wraps ? wrapped(n, last - 1) : min(max(n, 0), last);
    };
    auto inside = [&](int n, int last) { return EDGE ? min(max(n, 1), last - 1) : n; };
    int xs[C], ys[R];
    bool fixed_x[C], fixed_y[R];
    // Aligned groups of columns are all in the array or all outside, where any values will do.
    constexpr bool WHOLE = ALIGNED && (!EDGE || !WRAPS_K);
    for (int k = 0; k < C; k++) {
        xs[k] = WHOLE && EDGE ? min(max(x, 0), last_k + 1 - C) + k : of(x + k, last_k, WRAPS_K);
        fixed_x[k] = EDGE && !WRAPS_K && (x + k < region_k.low || x + k >= region_k.high);
    }
    for (int r = 0; r < R; r++) {
        ys[r] = of(y + r, last_j, WRAPS_J);
        fixed_y[r] = EDGE && !WRAPS_J && (y + r < region_j.low || y + r >= region_j.high);
    }
    @LINES@
    real older[T][R][C], newer[T][R][C];
    for (int t = 0; t < T; t++) for (int r = 0; r < R; r++)
        for (int k = 0; k < C; k++) older[t][r][k] = newer[t][r][k] = 0;
    @NORM_STATE@
    const int start = begin - T, loads = end - begin + 2 * T;
    real* const own = shared + warp * R * X + lane * C;
    real* const rim = shared + RING * TILE + warp * 2 * X + lane * C;
    const unsigned place = (unsigned)__cvta_generic_to_shared(own);
    const size_t plane = (size_t)extent_j * extent_k;
    const real* from = EDGE ? a0 : a0 + start * plane + (size_t)y * extent_k + x;
    auto issue = [&](int n, int into) {
        if (n < loads) {
            const real* base = EDGE ? a0 + of(start + n, last_i, WRAPS_I) * plane : from;
            const unsigned to = place + into * (TILE * sizeof(real));
            for (int r = 0; r < R; r++) {
                const real* row = base + (size_t)(EDGE ? ys[r] : r) * extent_k;
                if (WHOLE)
                    fetch<C * sizeof(real)>(to + r * X * sizeof(real), row + (EDGE ? xs[0] : 0));
                else
                    for (int k = 0; k < C; k++)
                        fetch<sizeof(real)>(to + (r * X + k) * sizeof(real),
                                            row + (EDGE ? xs[k] : k));
            }
            from += plane;
        }
        fetched();
    };
    // The rows beside a thread's own, for whoever has them: in a plane, and among the rims.
    const bool first = warp == 0, last = warp == WARPS - 1;
    const int up = first ? 0 : -X, down = last ? (R - 1) * X : R * X;
    const int rim_up = first ? 0 : -X, rim_down = last ? X : 2 * X;
    for (int n = 0; n < AHEAD; n++) issue(n, n);
    int slot = 0;  // where the plane lies that arrives
    real* to = o0 + begin * plane + (size_t)y * extent_k + x;
    auto advance = [&](int n, auto turn) {
        constexpr int TURN = decltype(turn)::value;
        await_all_but<AHEAD - 1>();
        __syncthreads();
        const int z = start + n;
        const int before = slot == 0 ? RING - 1 : slot - 1;
        int next = slot + AHEAD;
        if (next >= RING) next -= RING;
        issue(n + AHEAD, next);
        real arrived[R][C];
        for (int r = 0; r < R; r++) for (int k = 0; k < C; k++)
            arrived[r][k] = own[slot * TILE + r * X + k];
        #pragma unroll
        for (int t = 0; t < T; t++) {
            const int here = z - t - 1;
            real above[C], below[C];
            for (int k = 0; k < C; k++) {
                above[k] = t == 0 ? own[before * TILE + up + k]
                                  : rim[(2 * (t - 1) + 1 - TURN) * RIMS + rim_up + k];
                below[k] = t == 0 ? own[before * TILE + down + k]
                                  : rim[(2 * (t - 1) + 1 - TURN) * RIMS + rim_down + k];
            }
            @PLANES@
            const bool still = EDGE && !WRAPS_I && (here < region_i.low || here >= region_i.high);
            real value[R][C];
            #pragma unroll
            for (int r = 0; r < R; r++) {
                const real left = from_left(newer[t][r][C - 1]);
                const real right = from_right(newer[t][r][0]);
                #pragma unroll
                for (int k = 0; k < C; k++) {
                    value[r][k] = point(@GIVEN@);
                    if (EDGE && (still || fixed_y[r] || fixed_x[k])) value[r][k] = newer[t][r][k];
                }
            }
            @NORMS@
            #pragma unroll
            for (int r = 0; r < R; r++) for (int k = 0; k < C; k++) {
                older[t][r][k] = newer[t][r][k];
                newer[t][r][k] = arrived[r][k];
                arrived[r][k] = value[r][k];
            }
            if (t < T - 1)
                for (int k = 0; k < C; k++) {
                    rim[(2 * t + TURN) * RIMS + k] = arrived[0][k];
                    rim[(2 * t + TURN) * RIMS + X + k] = arrived[R - 1][k];
                }
        }
        if (++slot == RING) slot = 0;
        if (n < 2 * T) return;
        if (z - T < end && lane * C >= HALO && lane * C < X - HALO) {
            for (int r = 0; r < R; r++) {
                if (warp * R + r < T || warp * R + r >= Y - T || y + r >= region_j.high) continue;
                if (ALIGNED && (!EDGE || x >= region_k.low && x + C <= region_k.high)) {
                    for (int k = 0; k < C; k += 2) {
                        pack values;
                        values.x = arrived[r][k];
                        values.y = arrived[r][k + 1];
                        __stcs(reinterpret_cast<pack*>(to + r * extent_k + k), values);
                    }
                } else {
                    for (int k = 0; k < C; k++)
                        if (x + k >= region_k.low && x + k < region_k.high)
                            __stcs(to + r * extent_k + k, arrived[r][k]);
                }
            }
        }
        to += plane;
    };
    for (int n = 0; n < loads; n += 2) {
        advance(n, Number<0>());
        advance(n + 1, Number<1>());
    }
    @NORM_END@
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
sweeps(const integer* gate, @PARAMETERS@, integer low_i, integer high_i, integer low_j,
       integer high_j, integer low_k, integer high_k, integer count_low_i, integer count_high_i,
       integer count_low_j, integer count_high_j, integer count_low_k, integer count_high_k,
       integer planes, integer extent_i, integer extent_j, integer extent_k) {
    @GATE@
    const Range region_i{int(low_i), int(high_i)}, region_j{int(low_j), int(high_j)};
    const Range region_k{int(low_k), int(high_k)}, counted_i{int(count_low_i), int(count_high_i)};
    const Range counted_j{int(count_low_j), int(count_high_j)};
    const Range counted_k{int(count_low_k), int(count_high_k)};
    extern __shared__ __align__(16) unsigned char memory[];
    real* shared = reinterpret_cast<real*>(memory);
    const int first_k = (region_k.low & ~1) + blockIdx.x * (X - 2 * HALO) - HALO;
    const int first_j = region_j.low + blockIdx.y * (Y - 2 * T) - T;
    const int begin = region_i.low + blockIdx.z * int(planes);
    const int end = min(begin + int(planes), region_i.high);
    const bool edge = first_k < region_k.low || first_k + X > region_k.high ||
                      first_j < region_j.low || first_j + Y > region_j.high ||
                      begin - T - 1 < region_i.low || end + T + 2 > region_i.high;
    if (edge)
        tile<true>(@NAMES@, region_i, region_j, region_k, counted_i, counted_j, counted_k,
                   extent_i, extent_j, extent_k, first_j, first_k, begin, end, shared);
    else
        tile<false>(@NAMES@, region_i, region_j, region_k, counted_i, counted_j, counted_k,
                    extent_i, extent_j, extent_k, first_j, first_k, begin, end, shared);
}
"""


INDEX = (
    "inside(of(here, last_i, WRAPS_I), last_i)",
    "inside(ys[r], last_j)",
    "inside(xs[k], last_k)",
)
"""The indices of a point in the arrays, never those of a ghost."""


@cache
def source(work: Pass, shape: Shape) -> str:
    """CUDA C of the kernel `sweeps`; written once, as each level of a hierarchy asks."""
    own = {number: number for number in range(len(work.signature.arguments))}
    reads = Reads(work, work.tape, own, FIELD)
    width, height = 32 * shape.columns, shape.rows * shape.warps
    state, each, last = _norms(work)
    defines = {
        "T": work.sweeps, "C": shape.columns, "R": shape.rows, "WARPS": shape.warps, "X": width,
        "Y": height, "TILE": width * height, "RIMS": 2 * width * shape.warps, "AHEAD": shape.ahead,
        "RING": shape.ahead + 2, "HALO": shape.halo(work.sweeps), "WRAPS_I": work.wraps[0],
        "WRAPS_J": work.wraps[1], "WRAPS_K": work.wraps[2], "ALIGNED": work.aligned,
    }  # fmt: skip
    return filled(
        KERNEL, work, defines,
        LINES="\n    ".join([*work.numbers(), *reads.lines]),
        PLANES="\n            ".join(reads.planes), GIVEN=", ".join(reads.given),
        NORM_STATE="\n    ".join(state), NORMS="\n            ".join(each),
        NORM_END="\n    ".join(last),
    )  # fmt: skip


FIELD: dict[tuple[int, ...], str] = {
    (0, 0, 0): "newer[t][r][k]",
    (-1, 0, 0): "older[t][r][k]",
    (1, 0, 0): "arrived[r][k]",
    (0, -1, 0): "(r == 0 ? above[k] : newer[t][r - 1][k])",
    (0, 1, 0): "(r == R - 1 ? below[k] : newer[t][r + 1][k])",
    (0, 0, -1): "(k == 0 ? left : newer[t][r][k - 1])",
    (0, 0, 1): "(k == C - 1 ? right : newer[t][r][k + 1])",
}
"""The field at a point and at its six neighbours: no others are at hand."""


class Reads:
    """What a point function reads, as statements before it and as its arguments.

    `numbers`: for each argument that it takes after the field, its number among the kernel's;
    `field`: the field at a point and at its neighbours. `letter` begins its names. `along`: the
    number of an array that is fetched with the field and read at the point itself; `across`: rows
    and columns of a thread.
    """

    def __init__(
        self,
        work: Pass,
        tape: Tape,
        numbers: Mapping[int, int],
        field: Mapping[tuple[int, ...], str],
        letter: str = "l",
        along: int = 0,
        across: tuple[str, str] = ("R", "C"),
    ):
        self._across = across
        self.lines: list[str] = []
        self.planes: list[str] = []
        self.given: list[str] = []
        for place, operation in enumerate(tape.operations):
            if operation.name == "scalar":
                self.given.append(work.scalar(numbers[operation.operands[0]]))
            elif operation.name == "load":
                number, subscript = operation.operands
                shift = tuple(distance for distance, _ in subscript)
                if number == 0:
                    self.given.append(field[shift])
                elif numbers[number] == along and not any(shift):
                    self.given.append("b[t][r][k]")
                else:
                    kind = work.signature.arguments[numbers[number]]
                    element = self._element(f"{letter}{place}", f"a{numbers[number]}", kind, shift)
                    self.given.append(element)

    def _element(
        self, name: str, array: str, constant: tuple[bool, ...], shift: tuple[int, ...]
    ) -> str:
        """An element of an array: held by a thread if it is the same on all planes."""
        (rows, columns), (di, dj, dk) = self._across, shift
        if all(constant):
            self.lines.append(f"const real {name} = {array}[0];")
            return name
        if constant == (True, True, False):
            value = f"{array}[{INDEX[2]} + {dk}]"
            self.lines.append(f"real {name}[{columns}];")
            self.lines.append(f"for (int k = 0; k < {columns}; k++) {name}[k] = {value};")
            return f"{name}[k]"
        if constant == (True, False, True):
            value = f"{array}[{INDEX[1]} + {dj}]"
            self.lines.append(f"real {name}[{rows}];")
            self.lines.append(f"for (int r = 0; r < {rows}; r++) {name}[r] = {value};")
            return f"{name}[r]"
        if constant == (False, True, True):
            self.planes.append(f"const real {name} = {array}[{INDEX[0]} + {di}];")
            return name
        return f"{array}[{_place_of(constant, shift)}]"


def _place_of(constant: tuple[bool, ...], shift: tuple[int, ...]) -> str:
    """The place of an element of an array that varies along two axes or three."""
    terms = []
    for axis in range(3):
        if not constant[axis]:
            below = [f"extent_{'ijk'[a]}" for a in range(axis + 1, 3) if not constant[a]]
            terms.append(" * ".join([f"(size_t)({INDEX[axis]} + {shift[axis]})", *below]))
    return " + ".join(terms)


def _norms(work: Pass) -> tuple[list[str], list[str], list[str]]:
    """The statements of the norms: before the planes, after each plane of a sweep, at the end."""
    if not any(work.norms):
        return [], [], []
    loop = "for (int r = 0; r < R; r++) for (int k = 0; k < C; k++)"
    state = [
        "bool within[R][C];",
        loop,
        "    within[r][k] = lane * C >= HALO && lane * C < X - HALO && warp * R + r >= T &&",
        "        warp * R + r < Y - T && y + r >= counted_j.low && y + r < counted_j.high &&",
        "        x + k >= counted_k.low && x + k < counted_k.high;",
        "const int copy = (blockIdx.x * 3 + blockIdx.y * 5 + blockIdx.z * 7 + warp) % SPREAD;",
    ]
    each, last = [], []
    where = "here >= max(begin, counted_i.low) && here < min(end, counted_i.high)"
    for t, kind in enumerate(work.norms):
        if kind == "max":
            state.append(f"integer most{t} = 0;")
            each.append(
                f"if (t == {t} && {where}) {loop} if (within[r][k]) "
                f"most{t} = max(most{t}, magnitude(value[r][k] - newer[t][r][k]));"
            )
            last.append(f"add_largest(most{t}, reg{t} + copy * WIDTH);")
        elif kind == "sum":
            each += [
                f"if (t == {t} && {where}) {{",
                "    double terms[R * C];",
                f"    {loop} {{",
                "        const real change = value[r][k] - newer[t][r][k];",
                "        terms[r * C + k] = within[r][k] ? (double)(change * change) : 0.0;",
                "    }",
                f"    add_sum(terms, reg{t} + copy * WIDTH);",
                "}",
            ]
    return state, each, last
