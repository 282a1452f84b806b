"""Text of CUDA C that `pass_source_2d` puts together: a strip of columns, two rows at a time.

Level t reads the rows y - t - 2 ... y - t + 1 and makes the rows y - t - 1 and y - t.
"""

KERNEL = """
// ENDS: rows at the upper or lower end of the region; SIDES: columns at the left or right one.
template <bool ENDS, bool SIDES> __device__ __forceinline__ void strip(
    @PARAMETERS@, Range region_i, Range region_j, Range counted_i, Range counted_j, int extent_i,
    int extent_j, int pitch, int first_column, int begin, int end, real* ring
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
    // Aligned groups of columns are in a row's memory or outside, where any values will do.
    // Elsewhere lanes fetch and store single elements, side by side, for one another.
    constexpr bool WHOLE = ALIGNED && (!SIDES || !WRAPS_J);
    for (int k = 0; k < C; k++) {
        at[k] = WHOLE && SIDES ? min(max(column + k - k % 2, 0), pitch - 2) + k % 2
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
    size_t from = (size_t)start * pitch + (SIDES ? 0 : WHOLE ? column : first_column + lane);
    auto issue = [&](int n) {
        if (n < pairs) {
            #pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = start + 2 * n + r;
                const size_t row = ENDS ? (size_t)of_row(i) * pitch : from;
                @FETCHES@
                from += pitch;
            }
            @FETCH_COARSE@
        }
        fetched();
    };
    for (int n = 0; n < PAIRS - 1; n++) issue(n);
    real* to = o0 + (start - T) * (integer)pitch + (ALIGNED ? column : first_column + lane);
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
        for (int r = 0; r < (T == 0 ? 0 : 2); r++) {  // without sweeps nothing has changed
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
            to += pitch;
        }
    }
    @NORM_END@
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
sweeps(const integer* gate, @PARAMETERS@, integer low_i, integer high_i, integer low_j,
       integer high_j, integer count_low_i, integer count_high_i, integer count_low_j,
       integer count_high_j, integer rows, integer fewer, integer extent_i, integer extent_j,
       integer pitch) {
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
    const bool ends = begin - LEAD - LEVELS - 1 < region_i.low + MARGIN ||
                      end + TAIL + 2 > region_i.high - MARGIN ||
                      begin < counted_i.low || end > counted_i.high;
    const bool sides = column < region_j.low + MARGIN || column + 32 * C > region_j.high - MARGIN ||
                       column + HALO < counted_j.low || column + 32 * C - HALO > counted_j.high;
    if (ends)
        strip<true, true>(@NAMES@, region_i, region_j, counted_i, counted_j, extent_i, extent_j,
                          pitch, column, begin, end, ring);
    else if (sides)
        strip<false, true>(@NAMES@, region_i, region_j, counted_i, counted_j, extent_i, extent_j,
                           pitch, column, begin, end, ring);
    else
        strip<false, false>(@NAMES@, region_i, region_j, counted_i, counted_j, extent_i, extent_j,
                            pitch, column, begin, end, ring);
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

COPY = "const int copy = (blockIdx.x * WARPS + (threadIdx.x >> 5) + blockIdx.y * 7) % SPREAD;"
"""The copy of a register to which a warp adds its norms."""

COLOURED = """\
constexpr int colours[] = {@COLOURS@};
                    // Where points lie where they seem to, the compiler knows their colours.
                    const int chess = ENDS || (SIDES && WRAPS_J)
                        ? (of_row(row) + at[k]) & 1 : (LEAD + t + 1 + r + k) & 1;
                    const bool moves = colours[t] == 2 || colours[t] == chess;
                    @POINT@
                    if (!moves) value[k] = newer[k];"""
