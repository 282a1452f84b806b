// Fused sweeps in three dimensions: a tile going up the planes.
//
// Before the kernel come numbers (T sweeps, C columns and R rows of a thread, ...) and pieces of
// the point function: PREPARE, READ_POINT, POINT_ARGUMENTS and the norms of changes.

#define POINTS (R * C)
// The copy of a register to which a warp adds its norms.
#define COPY (blockIdx.x * 3 + blockIdx.y * 5 + blockIdx.z * 7 + warp) % SPREAD

// ENDS: planes at the lower or upper end of the region; SIDES: rows or columns at its sides.
template <bool ENDS, bool SIDES>
__device__ __forceinline__ void tile(PARAMETERS, Range region_i, Range region_j, Range region_k,
                                     Range counted_i, Range counted_j, Range counted_k,
                                     int extent_i, int extent_j, int extent_k, int pitch,
                                     int first_j, int first_k, int warp, int begin, int end,
                                     real* shared, unsigned barriers) {
    const int lane = threadIdx.x & 31;
    const int x = first_k + lane * C, y = first_j + warp * R;
    const int last_i = extent_i - 1, last_j = extent_j - 1, last_k = extent_k - 1;
    auto plane_of = [&](int n) { return ENDS ? kept_in(n, last_i, WRAPS_I) : n; };
    auto of = [&](int n, int last, bool wraps) { return SIDES ? kept_in(n, last, wraps) : n; };
    auto inner_plane = [&](int n) { return ENDS ? min(max(plane_of(n), 1), last_i - 1) : n; };
    auto inside = [&](int n, int last) { return SIDES ? min(max(n, 1), last - 1) : n; };
    // Beside the region values stay, so a tile there needs no halo.
    const bool first_across = SIDES && !WRAPS_K && blockIdx.x == 0;
    const bool last_across = SIDES && !WRAPS_K && blockIdx.x == gridDim.x - 1;
    const bool right_columns =
        (first_across || lane * C >= HALO) && (last_across || lane * C < X - HALO);
    int xs[C], ys[R];
    unsigned fixed_points = 0, stored_rows = 0;  // a bit for each point, r C + k, and for each row
    // An aligned group of columns lies in a row's memory or outside, where any values will do.
    constexpr bool WHOLE = ALIGNED && (!SIDES || !WRAPS_K);
    for (int k = 0; k < C; k++)
        xs[k] = WHOLE && SIDES ? min(max(x, 0), pitch - C) + k : of(x + k, last_k, WRAPS_K);
    for (int r = 0; r < R; r++) {
        ys[r] = of(y + r, last_j, WRAPS_J);
        for (int k = 0; k < C; k++)
            if (!WRAPS_J && !in_range(y + r, region_j) || !WRAPS_K && !in_range(x + k, region_k))
                fixed_points |= 1u << (r * C + k);
        if (right_columns && warp * R + r >= T && warp * R + r < Y - T && y + r < region_j.high)
            stored_rows |= 1u << r;
    }
    // The compiler would form these bits anew for each plane.
    asm volatile("" : "+r"(fixed_points), "+r"(stored_rows));
    PREPARE
    real older[T][R][C], newer[T][R][C];
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++)
            for (int k = 0; k < C; k++) older[t][r][k] = newer[t][r][k] = 0;
    CARRY
#if CHANGES
    bool within[R][C];
    for (int r = 0; r < R; r++)
        for (int k = 0; k < C; k++)
            within[r][k] = right_columns && warp * R + r >= T && warp * R + r < Y - T &&
                           in_range(y + r, counted_j) && in_range(x + k, counted_k);
    const int copy = COPY;
    const bool mine = true;  // `within` tells it for each point
    CHANGE_STATE
#endif
    const int start = begin - T, loads = end - begin + 2 * T;
    real* const own = shared + warp * R * X + lane * C;
    real* const rim = shared + RING * TILE + warp * 2 * X + lane * C;
    const unsigned place = (unsigned)__cvta_generic_to_shared(own);
    const size_t plane = (size_t)extent_j * pitch;
    const size_t corner = SIDES ? 0 : (size_t)y * pitch + x;
    const real* from = a0 + (ENDS ? 0 : start * plane) + corner;
    auto issue = [&](int n, int into) {
        if (n < loads) {
            const real* base = ENDS ? from + plane_of(start + n) * plane : from;
            const unsigned to = place + into * (TILE * sizeof(real));
            for (int r = 0; r < R; r++) {
                const real* row = base + (size_t)(SIDES ? ys[r] : r) * pitch;
                if (WHOLE)
                    fetch<C * sizeof(real)>(to + r * X * sizeof(real), row + (SIDES ? xs[0] : 0));
                else
                    for (int k = 0; k < C; k++)
                        fetch<sizeof(real)>(to + (r * X + k) * sizeof(real),
                                            row + (SIDES ? xs[k] : k));
            }
            if (!ENDS) from += plane;
        }
        fetched();
    };
    // Offsets of the rows beside a thread's own, where the tile has them: in a plane, in the rims.
    const bool first = warp == 0, last = warp == WARPS - 1;
    const int up = first ? 0 : -X, down = last ? (R - 1) * X : R * X;
    const int rim_up = first ? 0 : -X, rim_down = last ? X : 2 * X;
    for (int n = 0; n < AHEAD; n++) issue(n, n);
    // Waits for the plane that arrives next; other warps may then replace the values read.
    auto done_with_shared_memory = [&]() {
        await_all_but<AHEAD - 1>();
        arrive_beside(barriers, warp, WARPS - 1);
    };
    done_with_shared_memory();
    int slot = 0;  // the place of the plane that arrives
    real* to = o0 + begin * plane + (size_t)y * pitch + x;
    auto advance = [&](int n, auto turn) {
        constexpr int TURN = decltype(turn)::value;
        await_beside(barriers, warp, WARPS - 1, TURN);
        const int z = start + n;
        const int before = slot == 0 ? RING - 1 : slot - 1;
        int next = slot + AHEAD;
        if (next >= RING) next -= RING;
        issue(n + AHEAD, next);
        real arrived[R][C];
        for (int r = 0; r < R; r++)
            for (int k = 0; k < C; k++) arrived[r][k] = own[slot * TILE + r * X + k];
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
            READ_POINT
            const bool still = ENDS && !WRAPS_I && (here < region_i.low || here >= region_i.high);
            const unsigned fixed = still ? ~0u : SIDES ? fixed_points : 0u;
            real value[R][C];
            #pragma unroll
            for (int r = 0; r < R; r++) {
                const real left = from_left(newer[t][r][C - 1]);
                const real right = from_right(newer[t][r][0]);
                #pragma unroll
                for (int k = 0; k < C; k++) {
                    value[r][k] = point(POINT_ARGUMENTS);
                    CARRY_ON
                    if ((ENDS || SIDES) && fixed >> (r * C + k) & 1) value[r][k] = newer[t][r][k];
                }
            }

#if CHANGES
            if (here >= max(begin, counted_i.low) && here < min(end, counted_i.high)) {
                #pragma unroll
                for (int r = 0; r < R; r++) {
                    real moved_by[C];
                    const bool (&counts)[C] = within[r];
                    const bool counted = true;
                    for (int k = 0; k < C; k++) moved_by[k] = change(value[r][k], newer[t][r][k]);
                    CHANGE_TAKE
                }
                CHANGE_ADD
            }
#endif

            #pragma unroll
            for (int r = 0; r < R; r++)
                for (int k = 0; k < C; k++) {
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
        done_with_shared_memory();
        if (++slot == RING) slot = 0;
        if (n < 2 * T) return;
        for (int r = 0; r < R; r++) {
            const bool stored = z - T < end && stored_rows >> r & 1;
            const bool whole = ALIGNED && (!SIDES || x >= region_k.low && x + C <= region_k.high);
            real* const row = to + r * pitch;
            if (ALIGNED)
                for (int k = 0; k < C; k += 2)
                    store_if(stored && whole, row + k, arrived[r][k], arrived[r][k + 1]);
            if (SIDES || !ALIGNED)
                for (int k = 0; k < C; k++)
                    store_if(stored && !whole && in_range(x + k, region_k), row + k, arrived[r][k]);
        }
        to += plane;
    };
    for (int n = 0; n < loads; n += 2) {
        advance(n, Number<0>());
        advance(n + 1, Number<1>());
    }
    CHANGE_END
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    sweeps(const integer* gate, PARAMETERS, integer low_i, integer high_i, integer low_j,
           integer high_j, integer low_k, integer high_k, integer count_low_i, integer count_high_i,
           integer count_low_j, integer count_high_j, integer count_low_k, integer count_high_k,
           integer planes, integer extent_i, integer extent_j, integer extent_k, integer pitch) {
#if GATED
    if (*gate) return;
#endif

    const Range region_i{int(low_i), int(high_i)}, region_j{int(low_j), int(high_j)};
    const Range region_k{int(low_k), int(high_k)}, counted_i{int(count_low_i), int(count_high_i)};
    const Range counted_j{int(count_low_j), int(count_high_j)};
    const Range counted_k{int(count_low_k), int(count_high_k)};
    extern __shared__ __align__(16) unsigned char memory[];
    real* shared = reinterpret_cast<real*>(memory);
    real* const behind = shared + RING * TILE + 2 * (T - 1) * RIMS;
    const unsigned barriers = (unsigned)__cvta_generic_to_shared(behind);
    if (threadIdx.x > 0 && threadIdx.x < WARPS) make_barrier(barriers, threadIdx.x, 64);
    __syncthreads();
    // A shuffle tells the compiler that the number is the same in all lanes.
    const int warp = __shfl_sync(EVERY_LANE, int(threadIdx.x >> 5), 0);
    const int corner_k = WRAPS_K ? (region_k.low & ~1) - HALO : (region_k.low - 1) & ~1;
    const int first_k = corner_k + blockIdx.x * (X - 2 * HALO);
    const int first_j = region_j.low + blockIdx.y * (Y - 2 * T) - T;
    const int begin = region_i.low + blockIdx.z * int(planes);
    const int end = min(begin + int(planes), region_i.high);
    const bool sides = first_k < region_k.low || first_k + X > region_k.high ||
                       first_j < region_j.low || first_j + Y > region_j.high;
    const bool ends = begin - T - 1 < region_i.low || end + T + 2 > region_i.high;
    // A third specialization pays only where the others are short.
    if (sides || (ends && !ENDS_APART))
        tile<true, true>(ARGUMENTS, region_i, region_j, region_k, counted_i, counted_j, counted_k,
                         extent_i, extent_j, extent_k, pitch, first_j, first_k, warp, begin, end,
                         shared, barriers);
#if ENDS_APART
    else if (ends)
        tile<true, false>(ARGUMENTS, region_i, region_j, region_k, counted_i, counted_j, counted_k,
                          extent_i, extent_j, extent_k, pitch, first_j, first_k, warp, begin, end,
                          shared, barriers);
#endif
    else
        tile<false, false>(ARGUMENTS, region_i, region_j, region_k, counted_i, counted_j, counted_k,
                           extent_i, extent_j, extent_k, pitch, first_j, first_k, warp, begin, end,
                           shared, barriers);
}
