// Fused sweeps in two dimensions: a strip of columns, two rows at a time.
//
// Level t reads the rows y - t - 2 ... y - t + 1 and makes the rows y - t - 1 and y - t. Before the
// kernel come numbers (T sweeps, C columns of a lane, ...) and pieces of the point function:
// PREPARE, FETCH_ROW, READ_POINT, POINT_ARGUMENTS, CARRY (values that a row leaves to the next row)
// and the norms of changes, CHANGE_STATE and so on.

// The row above a row, the row itself, and the row below, as a level reads them.
#define WINDOW(level)                                            \
    real older[C], newer[C], newest[C];                          \
    for (int k = 0; k < C; k++) {                                \
        older[k] = before[level][r][k];                          \
        newer[k] = r == 0 ? before[level][1][k] : current[0][k]; \
        newest[k] = current[r][k];                               \
    }
#define POINTS (2 * C)
// The copy of a register to which a warp adds its norms.
#define COPY (blockIdx.x * WARPS + (threadIdx.x >> 5) + blockIdx.y * 7) % SPREAD
#if RESTRICTS  // coarse points may lie one beyond the last unknown
#define LAST(axis) max(region_##axis.high, 2 * int(coarse_##axis) - 3)
#else
#define LAST(axis) region_##axis.high
#endif
#if FROM_ZERO
#define FIELD_HERE 0
#else
#define FIELD_HERE arrived[r * (32 * C) + k]
#endif

// ENDS: rows at the upper or lower end of the region; SIDES: columns at the left or right end.
template <bool ENDS, bool SIDES>
__device__ __forceinline__ void strip(PARAMETERS, Range region_i, Range region_j, Range counted_i,
                                      Range counted_j, int extent_i, int extent_j, int pitch,
                                      int first_column, int begin, int end, real* ring) {
    const int lane = threadIdx.x & 31;
    const int column = first_column + lane * C;
    const int last_i = extent_i - 1, last_j = extent_j - 1;
    const bool mine = lane * C >= HALO && lane * C < 32 * C - HALO;
    // Where a column, or a row, lies in the arrays.
    auto of_column = [&](int j) { return SIDES ? kept_in(j, last_j, WRAPS_J) : j; };
    auto of_row = [&](int i) { return ENDS ? kept_in(i, last_i, WRAPS_I) : i; };
    auto inner_row = [&](int i) { return ENDS ? min(max(of_row(i), 1), last_i - 1) : i; };
    int at[C], inner[C], side_by_side[C];
    bool fixed[C];
    // An aligned group of columns lies in a row's memory or outside, where any values will do.
    // Otherwise lanes fetch and store single elements, side by side, for one another.
    constexpr bool WHOLE = ALIGNED && (!SIDES || !WRAPS_J);
    for (int k = 0; k < C; k++) {
        at[k] = WHOLE && SIDES ? min(max(column + k - k % 2, 0), pitch - 2) + k % 2
                               : of_column(column + k);
        inner[k] = SIDES ? min(max(at[k], 1), last_j - 1) : at[k];
        fixed[k] = SIDES && !WRAPS_J && (column + k < region_j.low || column + k >= region_j.high);
        side_by_side[k] = of_column(first_column + lane + 32 * k);
    }
    // Rows above the region keep their values: the row beside it is all that is needed of them.
    const int skipped = ENDS && !WRAPS_I ? max(region_i.low - 1 - (begin - LEAD), 0) & ~1 : 0;
    const int start = begin - LEAD + skipped, pairs = (end + TAIL - start + 1) / 2;
    PREPARE

#if CORRECTS
    const int last_p = int(coarse_i) - 2, last_q = int(coarse_j) - 2;
    int across[C];
    real weight_left[C], weight_right[C];
    for (int k = 0; k < C; k++) {
        const int j = SIDES ? at[k] : column + k;
        across[k] = SIDES ? min(j >> 1, last_q) : column >> 1;
        const bool odd = SIDES ? j & 1 : k & 1;
        const bool none = SIDES && (j >> 1) > last_q;
        weight_left[k] = none ? 0 : (odd ? weights_j2 : weights_j0)[across[k]];
        weight_right[k] = none ? 0 : (odd ? weights_j3 : weights_j1)[across[k]];
    }
    auto widened = [&](int k, real left, real right) {
        return interpolated(weight_left[k], left, weight_right[k], right);
    };
    // A pair of rows lies between the coarse rows p and p + 1. Row p + 1 comes by a ring that is
    // filled as the field's, and is row p of the next pair; except where rows wrap, and where a
    // lane may have columns of two coarse columns.
    constexpr bool BY_RING = !(ENDS && WRAPS_I) && !(SIDES && WRAPS_J);
    real below[C], up_weight[4];
    real* const coarse_ring = ring + (RING + KEPT * KEPT_ROWS) * (32 * C) + lane;
    const unsigned coarse_place = (unsigned)__cvta_generic_to_shared(coarse_ring);
    const real* coarse_from = coarse + (start >> 1) * coarse_pitch + across[0];
    auto look_at_weights = [&](int p) {
        if (ENDS) p = min(p, last_p);  // there are no unknowns beyond
        up_weight[0] = weights_i0[p], up_weight[1] = weights_i1[p];
        up_weight[2] = weights_i2[p], up_weight[3] = weights_i3[p];
    };
    if (BY_RING) {
        look_at_weights(start >> 1);
        for (int k = 0; k < C; k++) below[k] = widened(k, coarse_from[0], coarse_from[1]);
    }
#elif RESTRICTS
    const int q = (column >> 1), last_q = int(coarse_j) - 2, last_p = int(coarse_i) - 2;
    const int known_q = min(max(q, 0), last_q + 1);
    const real weight0 = weights_j0[known_q], weight1 = weights_j1[known_q];
    const real weight2 = weights_j2[known_q], weight3 = weights_j3[known_q];
    // Weights of the coarse row that the next pair may complete: a load takes longer than a pair.
    real down_weight[4];
    auto look_at_weights = [&](int row) {
        const int p = min(max(row >> 1, 0), last_p + 1);
        down_weight[0] = weights_i0[p], down_weight[1] = weights_i1[p];
        down_weight[2] = weights_i2[p], down_weight[3] = weights_i3[p];
    };
    look_at_weights(start - T - 1);
    real past[2][C];  // the residual of the pair before
    for (int r = 0; r < 2; r++)
        for (int k = 0; k < C; k++) past[r][k] = 0;
#endif

#if CHANGES || RESIDUAL_NORM
    const int copy = COPY;
#endif
#if RESIDUAL_NORM
    Norm<RESIDUAL_NORM, POINTS> norm(reg_residual + copy * WIDTH, mine);
#endif
#if CHANGES
    bool within[C];
    for (int k = 0; k < C; k++) within[k] = !SIDES || in_range(column + k, counted_j);
    CHANGE_STATE
#endif

    // The rows that a level reads: the two rows before, and the two rows that have just come.
    real before[LEVELS][2][C], current[2][C];
    for (int t = 0; t < LEVELS; t++)
        for (int r = 0; r < 2; r++)
            for (int k = 0; k < C; k++) before[t][r][k] = 0;
    CARRY
    real* const own = ring + lane * C;
    const unsigned place = (unsigned)__cvta_generic_to_shared(WHOLE ? own : ring + lane);
    // The place of a row, without ENDS, and of its first column, without SIDES.
    size_t from = (size_t)start * pitch + (SIDES ? 0 : WHOLE ? column : first_column + lane);
    auto issue = [&](int n) {
        if (n < pairs) {
            #pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = start + 2 * n + r;
                const size_t row = ENDS ? (size_t)of_row(i) * pitch : from;
                FETCH_ROW
                from += pitch;
            }

#if CORRECTS
            if (BY_RING) {
                if (!ENDS || (start >> 1) + n <= last_p) coarse_from += coarse_pitch;
                const unsigned to = coarse_place + n % COARSE_ROWS * (64 * sizeof(real));
                fetch<sizeof(real)>(to, coarse_from);
                fetch<sizeof(real)>(to + 32 * sizeof(real), coarse_from + 1);
            }
#endif
        }
        fetched();
    };
    for (int n = 0; n < PAIRS - 1; n++) issue(n);
    real* to = o0 + (start - T) * (integer)pitch + (ALIGNED ? column : first_column + lane);
    for (int n = 0; n < pairs; n++) {
        await_all_but<PAIRS - 2>();
        __syncwarp();  // other lanes' fetches are here, and rows read before may be replaced
        const int y = start + 2 * n;
        real* const arrived = own + n % PAIRS * (2 * 32 * C);

#if CORRECTS
        if (!BY_RING) {
            for (int r = 0; r < 2; r++) {
                const int row = of_row(y + r), p = min(row >> 1, last_p);
                const bool odd = row & 1, none = (row >> 1) > last_p;
                const real weight_below = none ? 0 : (odd ? weights_i2 : weights_i0)[p];
                const real weight_above = none ? 0 : (odd ? weights_i3 : weights_i1)[p];
                const real* const low = coarse + p * coarse_pitch;
                const real* const high = low + coarse_pitch;
                const bool unknown = WRAPS_I || in_range(y + r, region_i);
                for (int k = 0; k < C; k++) {
                    const real under = widened(k, low[across[k]], low[across[k] + 1]);
                    const real over = widened(k, high[across[k]], high[across[k] + 1]);
                    const real here = FIELD_HERE;
                    const real there = corrected(weight_below, under, weight_above, over, here);
                    current[r][k] = unknown && !fixed[k] ? there : here;
                }
            }
        } else {
            const real* const coarse_row = coarse_ring + n % COARSE_ROWS * 64;
            for (int k = 0; k < C; k++) {
                const real above = widened(k, coarse_row[0], coarse_row[32]);
                for (int r = 0; r < 2; r++) {
                    const real here = FIELD_HERE;
                    const real there =
                        corrected(up_weight[2 * r], below[k], up_weight[2 * r + 1], above, here);
                    const bool unknown = !ENDS || in_range(y + r, region_i);
                    current[r][k] = unknown && !fixed[k] ? there : here;
                }
                below[k] = above;
            }
            look_at_weights((y >> 1) + 1);
        }
#elif RESTRICTS && FROM_ZERO
        for (int r = 0; r < 2; r++)
            for (int k = 0; k < C; k++) current[r][k] = 0;
#else
        for (int r = 0; r < 2; r++)
            for (int k = 0; k < C; k++) current[r][k] = arrived[r * (32 * C) + k];
#endif

        issue(n + PAIRS - 1);
        #pragma unroll
        for (int t = 0; t < T; t++) {
            real moved[2][C];
            #pragma unroll
            for (int r = 0; r < 2; r++) {
                const int row = y - t - 1 + r;
                WINDOW(t)
                READ_POINT

                const bool still = ENDS && !WRAPS_I && !in_range(row, region_i);
                real value[C];
                #pragma unroll
                for (int k = 0; k < C; k++) {
#if COLOURED
                    constexpr int colours[] = {COLOURS};
                    // Where no axis wraps, the compiler knows the colours.
                    constexpr bool WRAPS = (ENDS && WRAPS_I) || (SIDES && WRAPS_J);
                    const int chess =
                        WRAPS ? (of_row(row) + at[k]) & 1 : (LEAD + t + 1 + r + k) & 1;
                    value[k] = point(POINT_ARGUMENTS);
                    if (colours[t] != 0)
                        value[k] = coloured(colours[t], value[k], newer[k], chess ? -1 : 1);
#else
                    value[k] = point(POINT_ARGUMENTS);
#endif

                    CARRY_ON
                    if (SIDES && (still || fixed[k])) value[k] = newer[k];
                    moved[r][k] = value[k];
                }

#if CHANGES
                const bool counted =
                    row >= begin && row < end && (!ENDS || in_range(row, counted_i));
                real moved_by[C];
                const bool (&counts)[C] = within;
                #pragma unroll
                for (int k = 0; k < C; k++) moved_by[k] = change(value[k], newer[k]);
                CHANGE_TAKE
#endif
            }
            CHANGE_ADD
            #pragma unroll
            for (int r = 0; r < 2; r++)
                for (int k = 0; k < C; k++) {
                    before[t][r][k] = current[r][k];
                    current[r][k] = moved[r][k];
                }
        }

#if RESTRICTS
        {
            real left_over[2][C];
            #pragma unroll
            for (int r = 0; r < 2; r++) {
                const int row = y - T - 1 + r;
                WINDOW(T)
                READ_RESIDUAL

                const bool still = ENDS && !WRAPS_I && !in_range(row, region_i);
                #pragma unroll
                for (int k = 0; k < C; k++) {
                    left_over[r][k] = residual(RESIDUAL_ARGUMENTS);
                    if (SIDES && (still || fixed[k])) left_over[r][k] = 0;
                }
            }
            const int first = y - T - 1, p = first >> 1;  // an even row
            real down[C];
            for (int k = 0; k < C; k++)
                down[k] =
                    restricted(down_weight[0], past[0][k], down_weight[1], past[1][k],
                               down_weight[2], left_over[0][k], down_weight[3], left_over[1][k]);
            const real even = from_left(down[0]), odd = from_left(down[1]);
            const bool coarse_row = first >= begin && first < end && p >= 1 && p <= last_p;
            store_if(coarse_row && mine && q >= 1 && q <= last_q, coarse + p * coarse_pitch + q,
                     restricted(weight0, even, weight1, odd, weight2, down[0], weight3, down[1]));
            look_at_weights(first + 2);
            #pragma unroll
            for (int r = 0; r < 2; r++)
                for (int k = 0; k < C; k++) {
                    before[T][r][k] = current[r][k];
                    past[r][k] = left_over[r][k];
                }
        }
#elif RESIDUAL_NORM
        {
            #pragma unroll
            for (int r = 0; r < 2; r++) {
                const int row = y - T - 1 + r;
                WINDOW(T)
                READ_RESIDUAL

                const bool counted =
                    row >= begin && row < end && (!ENDS || in_range(row, counted_i));
                #pragma unroll
                for (int k = 0; k < C; k++) {
                    const real left_over = residual(RESIDUAL_ARGUMENTS);
                    const bool counts = counted && (!SIDES || in_range(column + k, region_j));
                    norm.take(r * C + k, left_over, counts);
                }
            }
            norm.add();
            #pragma unroll
            for (int r = 0; r < 2; r++)
                for (int k = 0; k < C; k++) before[T][r][k] = current[r][k];
        }
#endif

        if (!ALIGNED) {  // the elements change lanes in the ring
            for (int r = 0; r < 2; r++)
                for (int k = 0; k < C; k++) arrived[r * (32 * C) + k] = current[r][k];
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
    CHANGE_END
#if RESIDUAL_NORM
    norm.finish();
#endif
}

// The strips of a block, and its piece of the rows.
struct Place {
    int beside, below;
};

// Strips at the sides take longest, so blocks of plain sweeps begin with them; legs of a cycle, which
// share rows of the coarse grid, are slower in this order.
__device__ Place place_of_block() {
    const int across = gridDim.x, down = gridDim.y, number = blockIdx.y * across + blockIdx.x;
    if (CORRECTS || RESTRICTS || across < 3) return {int(blockIdx.x), int(blockIdx.y)};
    if (number < 2 * down) return {number % 2 * (across - 1), number / 2};
    const int inner = number - 2 * down;
    return {1 + inner % (across - 2), inner / (across - 2)};
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    sweeps(const integer* gate, PARAMETERS, integer low_i, integer high_i, integer low_j,
           integer high_j, integer count_low_i, integer count_high_i, integer count_low_j,
           integer count_high_j, integer rows, integer fewer, integer extent_i, integer extent_j,
           integer pitch) {
#if GATED
    if (*gate) return;
#endif

    const Range region_i{int(low_i), int(high_i)}, region_j{int(low_j), int(high_j)};
    const Range counted_i{int(count_low_i), int(count_high_i)};
    const Range counted_j{int(count_low_j), int(count_high_j)};
    extern __shared__ __align__(16) unsigned char shared[];
    // A shuffle tells the compiler that the number is the same in all lanes.
    const int warp = __shfl_sync(EVERY_LANE, int(threadIdx.x >> 5), 0);
    const Place place = place_of_block();
    const int first = (region_j.low & ~1) + (place.beside * WARPS + warp) * STRIP;
    if (first >= LAST(j)) return;
    const int column = first - HALO;
    const int top = EVEN ? region_i.low & ~1 : region_i.low, piece = place.below * int(rows);
    const int begin = top + max(piece - int(fewer), 0);
    const int end = min(top + piece + int(rows) - int(fewer), LAST(i));
    const int share = ((RING + KEPT * KEPT_ROWS) * C + COARSE) * 32;
    real* ring = reinterpret_cast<real*>(shared) + warp * share;
    // Where norms are wanted, a piece or a strip of which only some points count is an edge, too.
    const bool ends = begin - LEAD - LEVELS - 1 < region_i.low + MARGIN ||
                      end + TAIL + 2 > region_i.high - MARGIN ||
                      ((CHANGES || RESIDUAL_NORM) &&
                       (begin < counted_i.low || end > counted_i.high));
    const bool sides =
        column < region_j.low + MARGIN || column + 32 * C > region_j.high - MARGIN ||
        (CHANGES && (column + HALO < counted_j.low || column + 32 * C - HALO > counted_j.high));
    if (ends)
        strip<true, true>(ARGUMENTS, region_i, region_j, counted_i, counted_j, extent_i, extent_j,
                          pitch, column, begin, end, ring);
    else if (sides)
        strip<false, true>(ARGUMENTS, region_i, region_j, counted_i, counted_j, extent_i, extent_j,
                           pitch, column, begin, end, ring);
    else
        strip<false, false>(ARGUMENTS, region_i, region_j, counted_i, counted_j, extent_i, extent_j,
                            pitch, column, begin, end, ring);
}
