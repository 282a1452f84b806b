// One leg of a multigrid cycle in three dimensions: sweeps in place, perhaps after the
// interpolation of a correction; or the restriction of a residual and its norm.
//
// A tile goes up the planes. u[n] is the field on plane z - n; sweep t works on plane z - t - 1.
// ENDS: planes at the lower or upper end of the region; SIDES: rows or columns at its sides.

// The copy of a register to which a warp adds its norm.
#define COPY (blockIdx.x * 3 + blockIdx.y * 5 + blockIdx.z * 7 + warp) % SPREAD

#if FROM_ZERO
#define FIELD_HERE 0
#else
#define FIELD_HERE own[slot * TILE + r * X + k]
#endif
#if RESTRICTS  // coarse points may lie one beyond the last unknown
#define BESIDE k
#define LAST_PLANE max(region_i.high, 2 * int(coarse_i) - 3)
#else
#define BESIDE k / 2
#define LAST_PLANE region_i.high
#endif

template <bool ENDS, bool SIDES>
__device__ __forceinline__ void tile(PARAMETERS, Range region_i, Range region_j, Range region_k,
                                     Range counted_i, int extent_i, int extent_j, int extent_k,
                                     int pitch, int first_j, int first_k, int warp, int begin,
                                     int end, real* shared, unsigned barriers) {
    const int lane = threadIdx.x & 31;
    const int x = first_k + C * lane, y = first_j + 2 * warp;
    const int last_i = extent_i - 1, last_j = extent_j - 1, last_k = extent_k - 1;
    auto plane_of = [&](int n) { return ENDS ? kept_in(n, last_i, WRAPS_I) : n; };
    auto of = [&](int n, int last, bool wraps) { return SIDES ? kept_in(n, last, wraps) : n; };
    auto inner_plane = [&](int n) { return ENDS ? min(max(plane_of(n), 1), last_i - 1) : n; };
    auto inside = [&](int n, int last) { return SIDES ? min(max(n, 1), last - 1) : n; };
    int xs[C], ys[2];
    bool fixed_x[C], fixed_y[2];
    // The columns that a lane fetches, for itself or for other lanes: lanes fetch side by side. An
    // aligned group of columns lies in a row's memory or outside, where any values will do.
    constexpr int TOGETHER = SIDES && WRAPS_K ? 1 : GROUP;
    int fetched_x[C / TOGETHER];
    for (int n = 0; n < C / TOGETHER; n++) {
        const int column = first_k + (32 * n + lane) * TOGETHER, most = pitch - TOGETHER;
        fetched_x[n] = TOGETHER == 1 ? of(column, last_k, WRAPS_K)
                       : SIDES       ? min(max(column, 0), most)
                                     : column;
    }
    for (int k = 0; k < C; k++) {
        xs[k] = of(x + k, last_k, WRAPS_K);
        fixed_x[k] = SIDES && !WRAPS_K && (x + k < region_k.low || x + k >= region_k.high);
    }
    for (int r = 0; r < 2; r++) {
        ys[r] = of(y + r, last_j, WRAPS_J);
        fixed_y[r] = SIDES && !WRAPS_J && (y + r < region_j.low || y + r >= region_j.high);
    }
    const bool mine =
        C * lane >= LEFT && C * lane < X - RIGHT && 2 * warp >= LOW && 2 * warp < Y - HIGH;
    const int start = begin - BEFORE, loads = end - begin + BEFORE + AFTER;
    PREPARE
    // u[n]: the field on plane z - n; b[n]: the array fetched with it, on plane z - n - 1.
    real u[LEVELS + 2][2][C], b[LEVELS][2][C];
    for (int r = 0; r < 2; r++)
        for (int k = 0; k < C; k++) {
            for (int n = 0; n < LEVELS + 2; n++) u[n][r][k] = 0;
            for (int n = 0; n < LEVELS; n++) b[n][r][k] = 0;
        }
    real* const own = shared + warp * 2 * X + lane * C;
    const unsigned place =
        (unsigned)__cvta_generic_to_shared(shared + warp * 2 * X + lane * TOGETHER);
    const size_t plane = (size_t)extent_j * pitch;
    const size_t corner = SIDES ? 0 : (size_t)y * pitch;
    auto fetch_plane = [&](const real* array, int i, int into) {
        const real* const base = array + plane_of(i) * plane + corner;
        const unsigned to = place + into * (TILE * sizeof(real));
        for (int r = 0; r < 2; r++) {
            const real* const row = base + (size_t)(SIDES ? ys[r] : r) * pitch;
            for (int n = 0; n < C / TOGETHER; n++)
                fetch<TOGETHER * sizeof(real)>(to + (r * X + 32 * n * TOGETHER) * sizeof(real),
                                               row + fetched_x[n]);
        }
    };
    auto issue = [&](int n, int into, int beside) {
        if (n < loads) {
            fetch_plane(ALONG, start + n - 1, RING + beside);
#if !FROM_ZERO
            fetch_plane(a0, start + n, into);
#endif
        }
        fetched();
    };
    for (int n = 0; n < AHEAD; n++) issue(n, n, n);
    // Offsets of the rows beside a thread's own rows; a tile has none beyond its ends.
    const int up = warp == 0 ? 0 : -1, down = warp == WARPS - 1 ? 1 : 2;
    int slot = 0, beside = 0;  // the places of the planes that arrive
    real* to = o0 + begin * (integer)plane + (integer)y * pitch + x;

#if RESTRICTS
    const int last_p = int(coarse_i) - 2, last_q = int(coarse_j) - 2, last_s = int(coarse_k) - 2;
    const int q = y >> 1, s = x >> 1;
    const int known_q = min(max(q, 0), last_q + 1);
    const real weight_j0 = weights_j0[known_q], weight_j1 = weights_j1[known_q];
    const real weight_j2 = weights_j2[known_q], weight_j3 = weights_j3[known_q];
    real weight_k[C / 2][4];
    for (int m = 0; m < C / 2; m++) {
        const int known_s = min(max(s + m, 0), last_s + 1);
        weight_k[m][0] = weights_k0[known_s], weight_k[m][1] = weights_k1[known_s];
        weight_k[m][2] = weights_k2[known_s], weight_k[m][3] = weights_k3[known_s];
    }
    const bool coarse_mine = mine && q >= 1 && q <= last_q;
    // The residual restricted along z is left here for the warp below, which needs it a step later.
    real* const sheet = own + (RING + AHEAD + 1) * TILE;
    const int beyond = warp == 0 ? 0 : -2 * X;
    real mine_of_sheet[2][C];
    real past[3][2][C];
    for (int n = 0; n < 3; n++)
        for (int r = 0; r < 2; r++)
            for (int k = 0; k < C; k++) past[n][r][k] = 0;
#if RESIDUAL_NORM
    Norm<RESIDUAL_NORM, 2 * C> norm(reg_residual + (COPY)*WIDTH, true);
#endif

#else
    // The rows that a sweep or the correction leaves for the next sweep of other threads: of two
    // steps, because that sweep reads them a step later; only the columns that were updated,
    // because that sweep updates the other columns.
    real* const left_over = shared + (RING + AHEAD + 1) * TILE + warp * X + lane * (C / 2);
    // The first column that is updated, of every two, as by `coloured`: in integers, because the
    // compiler must know it before it unrolls loops.
    auto moving = [](int parity, int t, int r) {
        constexpr int colours[] = {COLOURS};
        return (parity + t + 1 + r + ((t < 0 ? -colours[0] : colours[t]) < 0)) & 1;
    };
    auto leave = [&](auto parity, auto turn, int t, const real(&plane)[2][C]) {
        for (int r = 0; r < 2; r++)
            for (int m = 0; m < C / 2; m++)
                left_over[(2 * (t + CORRECTS) + turn.value) * (TILE / 2) + r * (X / 2) + m] =
                    plane[r][2 * m + moving(parity.value, t, r)];
    };
#if CORRECTS
    const int last_p = int(coarse_i) - 2, last_q = int(coarse_j) - 2, last_s = int(coarse_k) - 2;
    // Tiles begin at even rows and columns: a pair of rows or columns lies between two coarse ones.
    // Ghosts of the coarse array hold the values that periodic axes need beyond its ends.
    // `near`: whether the tile lies near the walls of the axis.
    auto below = [](bool near, int n, int last, bool wraps) {  // the coarse point below n and n + 1
        return near && wraps ? wrapped((n >> 1) + 1, last) - 1 : n >> 1;
    };
    auto in_array = [](bool near, int q, int last) { return near ? min(max(q, 0), last + 1) : q; };
    // The index of an unknown's weights: ghosts have no weights.
    auto row_of = [&](bool near, int q, int odd, int last, bool wraps) {
        return near && wraps && !odd && q == 0 ? last : in_array(near, q, last);
    };
    const int q = below(SIDES, y, last_q, WRAPS_J);
    int at_s[C / 2 + 1];  // the coarse columns around a thread's columns
    // The weights of both neighbours along y, of the even and the odd row, and along x.
    real weight_j[2][2], weight_k[C][2];
    for (int r = 0; r < 2; r++) {
        const bool none = SIDES && q > last_q;
        const int j = row_of(SIDES, q, r, last_q, WRAPS_J);
        weight_j[r][0] = none ? 0 : (r ? weights_j2 : weights_j0)[j];
        weight_j[r][1] = none ? 0 : (r ? weights_j3 : weights_j1)[j];
    }
    for (int k = 0; k < C; k++) {
        const int s = below(SIDES, x + k, last_s, WRAPS_K);
        const int row = row_of(SIDES, s, k & 1, last_s, WRAPS_K);
        const bool none = SIDES && s > last_s;
        weight_k[k][0] = none ? 0 : (k & 1 ? weights_k2 : weights_k0)[row];
        weight_k[k][1] = none ? 0 : (k & 1 ? weights_k3 : weights_k1)[row];
        at_s[k / 2] = in_array(SIDES, s, last_s);
        at_s[k / 2 + 1] = in_array(SIDES, s + 1, last_s);
    }
    const size_t coarse_plane = (size_t)coarse_j * coarse_pitch;
    const real* corners[2];
    for (int n = 0; n < 2; n++)
        corners[n] = coarse + (size_t)in_array(SIDES, q + n, last_q) * coarse_pitch + at_s[0];
    auto coarse_plane_of = [&](int n) { return below(ENDS, n, last_p, WRAPS_I); };
    real known[2][C / 2 + 1];  // values of a coarse plane
    auto know = [&](int p) {
        const size_t from = in_array(true, p, last_p) * coarse_plane;
        for (int n = 0; n < 2; n++)
            for (int m = 0; m <= C / 2; m++)
                known[n][m] = corners[n][from + (SIDES ? at_s[m] - at_s[0] : m)];
    };
    // The coarse planes around z, interpolated along x and y.
    real around[2][2][C];
    auto turn_up = [&]() {
        for (int r = 0; r < 2; r++)
            for (int k = 0; k < C; k++) {
                const int m = k / 2;
                around[0][r][k] = around[1][r][k];
                const real below =
                    interpolated(weight_k[k][0], known[0][m], weight_k[k][1], known[0][m + 1]);
                const real above =
                    interpolated(weight_k[k][0], known[1][m], weight_k[k][1], known[1][m + 1]);
                around[1][r][k] = interpolated(weight_j[r][0], below, weight_j[r][1], above);
            }
    };
    for (int n = 0; n < 1 + ODD; n++) {
        know(coarse_plane_of(start) + n);
        turn_up();
    }
    know(coarse_plane_of(start + 1) + 1);
#endif

#endif

    // Waits for the plane that arrives next; other warps may then replace the values read.
    auto done_with_shared_memory = [&]() {
        await_all_but<AHEAD - 1>();
        arrive_beside(barriers, warp, WARPS - 1);
    };
    done_with_shared_memory();
    auto advance = [&](int n, auto turn) {
        constexpr int TURN = decltype(turn)::value, PARITY = (ODD + TURN) & 1;  // the parity of z
        await_beside(barriers, warp, WARPS - 1, TURN);
        const int z = start + n;
        const int before = slot == 0 ? RING - 1 : slot - 1;
        int next = slot + AHEAD, next_beside = beside + AHEAD;
        if (next >= RING) next -= RING;
        if (next_beside > AHEAD) next_beside -= AHEAD + 1;
        issue(n + AHEAD, next, next_beside);
        #pragma unroll
        for (int r = 0; r < 2; r++)
            for (int k = 0; k < C; k++) {
                for (int t = LEVELS - 1; t > 0; t--) b[t][r][k] = b[t - 1][r][k];
                b[0][r][k] = own[(RING + beside) * TILE + r * X + k];
                for (int m = LEVELS + 1; m > 0; m--) u[m][r][k] = u[m - 1][r][k];
                u[0][r][k] = FIELD_HERE;
            }

#if RESTRICTS
        real outer[1][2][C];  // the rows beside a thread's own
        for (int k = 0; k < C; k++) {
            outer[0][0][k] = FROM_ZERO ? 0 : own[before * TILE + up * X + k];
            outer[0][1][k] = FROM_ZERO ? 0 : own[before * TILE + down * X + k];
        }
#else
        // The rows beside a thread's rows for each sweep: all are loaded before the first sweep.
        real outer[T][2][C / 2];
        #pragma unroll
        for (int t = 0; t < T; t++)
            for (int r = 0; r < 2; r++)
                for (int m = 0; m < C / 2; m++) {
                    const int row = r == 0 ? up : down;
                    const int from =
                        (2 * (t - 1 + CORRECTS) + 1 - TURN) * (TILE / 2) + row * (X / 2);
                    if (t > 0 || CORRECTS)
                        outer[t][r][m] = left_over[from + m];
                    else if (FROM_ZERO)
                        outer[t][r][m] = 0;
                    else
                        outer[t][r][m] =
                            own[before * TILE + row * X + 2 * m + moving(PARITY, t, r)];
                }
#endif

#if CORRECTS
        {
            const int p = coarse_plane_of(z);
            const bool none = ENDS && p > last_p;
            const int row = row_of(ENDS, p, PARITY, last_p, WRAPS_I);
            const real weight_below = none ? 0 : (PARITY ? weights_i2 : weights_i0)[row];
            const real weight_above = none ? 0 : (PARITY ? weights_i3 : weights_i1)[row];
            const bool unknown = !ENDS || WRAPS_I || (z >= region_i.low && z < region_i.high);
            if (PARITY == 0) {
                turn_up();
                know(coarse_plane_of(z + 2) + 1);
            }
            #pragma unroll
            for (int r = 0; r < 2; r++)
                for (int k = 0; k < C; k++) {
                    const real there = corrected(weight_below, around[0][r][k], weight_above,
                                                 around[1][r][k], u[0][r][k]);
                    if (unknown && !fixed_y[r] && !fixed_x[k]) u[0][r][k] = there;
                }
            leave(Number<PARITY>(), turn, -1, u[0]);
        }
#endif

#if RESTRICTS
        {
            constexpr int t = 0;
            const int here = z - t - 1;
            const bool still = ENDS && !WRAPS_I && (here < region_i.low || here >= region_i.high);
            READ_RESIDUAL
            real rest[2][C];
            #pragma unroll
            for (int r = 0; r < 2; r++)
                for (int k = 0; k < C; k++) {
                    const real below = r == 0 ? outer[t][0][BESIDE] : u[t + 1][0][k];
                    const real above = r == 1 ? outer[t][1][BESIDE] : u[t + 1][1][k];
                    const real left = k ? u[t + 1][r][k - 1] : from_left(u[t + 1][r][C - 1]);
                    const real right = k < C - 1 ? u[t + 1][r][k + 1] : from_right(u[t + 1][r][0]);
                    rest[r][k] = residual(RESIDUAL_ARGUMENTS);
                    if (still || fixed_y[r] || fixed_x[k]) rest[r][k] = 0;
                }

#if RESIDUAL_NORM
            {
                const bool counted =
                    mine && here >= begin && here < end && in_range(here, counted_i);
                for (int r = 0; r < 2; r++)
                    for (int k = 0; k < C; k++) {
                        const bool counts = counted && (!SIDES || in_range(y + r, region_j) &&
                                                                      in_range(x + k, region_k));
                        norm.take(r * C + k, rest[r][k], counts);
                    }
                norm.add();
            }
#endif

            if (PARITY == 0) {  // all planes of the coarse plane here >> 1 are known
                const int p = min(max(here >> 1, 0), last_p + 1);
                const real weight_i0 = weights_i0[p], weight_i1 = weights_i1[p];
                const real weight_i2 = weights_i2[p], weight_i3 = weights_i3[p];
                for (int r = 0; r < 2; r++)
                    for (int k = 0; k < C; k++)
                        mine_of_sheet[r][k] = sheet[r * X + k] =
                            restricted(weight_i0, past[2][r][k], weight_i1, past[1][r][k],
                                       weight_i2, past[0][r][k], weight_i3, rest[r][k]);
                done_with_shared_memory();
            } else {  // the sheet is from the step before
                const int p = (here - 1) >> 1;
                real down[C];
                for (int k = 0; k < C; k++)
                    down[k] =
                        restricted(weight_j0, sheet[beyond + k], weight_j1, sheet[beyond + X + k],
                                   weight_j2, mine_of_sheet[0][k], weight_j3, mine_of_sheet[1][k]);
                done_with_shared_memory();
                real even = from_left(down[C - 2]), odd = from_left(down[C - 1]);
                const bool plane = coarse_mine && 2 * p >= begin && 2 * p < end && p <= last_p;
                for (int m = 0; m < C / 2; m++) {
                    store_if(plane && s + m >= 1 && s + m <= last_s,
                             coarse + ((integer)p * coarse_j + q) * coarse_pitch + s + m,
                             restricted(weight_k[m][0], even, weight_k[m][1], odd, weight_k[m][2],
                                        down[2 * m], weight_k[m][3], down[2 * m + 1]));
                    even = down[2 * m], odd = down[2 * m + 1];
                }
            }
            for (int r = 0; r < 2; r++)
                for (int k = 0; k < C; k++) {
                    past[2][r][k] = past[1][r][k];
                    past[1][r][k] = past[0][r][k];
                    past[0][r][k] = rest[r][k];
                }
        }
#else
#pragma unroll
        for (int t = 0; t < T; t++) {
            if (t == T - 1) done_with_shared_memory();
            const int here = z - t - 1;
            const bool still = ENDS && !WRAPS_I && (here < region_i.low || here >= region_i.high);
            READ_POINT
            #pragma unroll
            for (int r = 0; r < 2; r++)
                for (int k = moving(PARITY, t, r); k < C; k += 2) {
                    const real below = r == 0 ? outer[t][0][BESIDE] : u[t + 1][0][k];
                    const real above = r == 1 ? outer[t][1][BESIDE] : u[t + 1][1][k];
                    const real left = k ? u[t + 1][r][k - 1] : from_left(u[t + 1][r][C - 1]);
                    const real right = k < C - 1 ? u[t + 1][r][k + 1] : from_right(u[t + 1][r][0]);
                    real value = point(POINT_ARGUMENTS);
                    if (still || fixed_y[r] || fixed_x[k]) value = u[t + 1][r][k];
                    u[t + 1][r][k] = value;
                }
            if (t < T - 1) leave(Number<PARITY>(), turn, t, u[t + 1]);
        }
#endif

        if (++slot == RING) slot = 0;
        if (++beside > AHEAD) beside = 0;

#if RESTRICTS
// Without sweeps the field has not changed.
#elif GROUP > 1
        const int out = z - T;
        const bool stored = mine && out >= begin && out < min(end, region_i.high);
        for (int r = 0; r < 2; r++) {
            const bool row = stored && !(SIDES && (y + r < region_j.low || y + r >= region_j.high));
            real* const at = to + r * (integer)pitch;
            const bool whole = !SIDES || (x >= region_k.low && x + C <= region_k.high);
            store_if(row && whole, at, ROW);
            if (SIDES)
                for (int k = 0; k < C; k++)
                    store_if(row && !whole && in_range(x + k, region_k), at + k, u[T][r][k]);
        }
        if (out >= begin) to += plane;
#else
        const int out = z - T;
        const bool stored =
            2 * warp >= LOW && 2 * warp < Y - HIGH && out >= begin && out < min(end, region_i.high);
        // Pairs that are not aligned change lanes, so that adjacent lanes store adjacent elements.
        for (int r = 0; r < 2; r++)
            for (int n = 0; n < 2; n++) {
                const int column = 32 * n + lane, owner = column / 2;
                const real even = __shfl_sync(EVERY_LANE, u[T][r][0], owner);
                const real odd = __shfl_sync(EVERY_LANE, u[T][r][1], owner);
                const bool inside =
                    !SIDES || (in_range(y + r, region_j) && in_range(first_k + column, region_k));
                store_if(stored && inside && column >= LEFT && column < X - RIGHT,
                         to - x + first_k + r * (integer)pitch + column, lane & 1 ? odd : even);
            }
        if (out >= begin) to += plane;
#endif
    };
    for (int n = 0; n < loads + RESTRICTS; n += 2) {
        advance(n, Number<0>());
        advance(n + 1, Number<1>());
    }

#if RESIDUAL_NORM
    norm.finish();
#endif
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
    extern __shared__ __align__(16) unsigned char memory[];
    real* shared = reinterpret_cast<real*>(memory);
    const unsigned barriers = (unsigned)__cvta_generic_to_shared(shared + PLANES * TILE);
    if (threadIdx.x > 0 && threadIdx.x < WARPS) make_barrier(barriers, threadIdx.x, 64);
    __syncthreads();
    // A shuffle tells the compiler that the number is the same in all lanes.
    const int warp = __shfl_sync(EVERY_LANE, int(threadIdx.x >> 5), 0);
    const int first_k = ((region_k.low - LEFT) & -SECTOR) + blockIdx.x * (X - LEFT - RIGHT);
    const int first_j = (region_j.low & ~1) + blockIdx.y * (Y - LOW - HIGH) - LOW;
    const int begin = region_i.low + blockIdx.z * int(planes);
    const int end = min(begin + int(planes), LAST_PLANE);
    const bool sides = first_k < region_k.low + MARGIN || first_k + X > region_k.high - MARGIN ||
                       first_j < region_j.low + MARGIN || first_j + Y > region_j.high - MARGIN;
    const bool ends =
        begin - BEFORE - 1 < region_i.low + MARGIN || end + AFTER + 2 > region_i.high - MARGIN;
    // A third specialization pays only where many sweeps leave a thread few registers.
    if (sides || (ends && !ENDS_APART))
        tile<true, true>(ARGUMENTS, region_i, region_j, region_k, counted_i, extent_i, extent_j,
                         extent_k, pitch, first_j, first_k, warp, begin, end, shared, barriers);
#if ENDS_APART
    else if (ends)
        tile<true, false>(ARGUMENTS, region_i, region_j, region_k, counted_i, extent_i, extent_j,
                          extent_k, pitch, first_j, first_k, warp, begin, end, shared, barriers);
#endif
    else
        tile<false, false>(ARGUMENTS, region_i, region_j, region_k, counted_i, extent_i, extent_j,
                           extent_k, pitch, first_j, first_k, warp, begin, end, shared, barriers);
}
