"""Text of CUDA C that `cycle_source_3d` puts together: a tile going up the planes, and its stages.

u[n] is the field on plane z - n; level t works on plane z - t - 1 in place.
"""

from heatsolve.backends.pass_text_3d import ENTRY

KERNEL = (
    """
template <bool EDGE> __device__ __forceinline__ void tile(
    @PARAMETERS@, Range region_i, Range region_j, Range region_k, int extent_i, int extent_j,
    int extent_k, int first_j, int first_k, int warp, int begin, int end, real* shared
) {
    const int lane = threadIdx.x & 31;
    const int x = first_k + 2 * lane, y = first_j + 2 * warp;
    const int last_i = extent_i - 1, last_j = extent_j - 1, last_k = extent_k - 1;
    auto of = [&](int n, int last, bool wraps) {
        return !EDGE ? n : wraps ? wrapped(n, last - 1) : min(max(n, 0), last);
    };
    auto inside = [&](int n, int last) { return EDGE ? min(max(n, 1), last - 1) : n; };
    int xs[2], ys[2];
    bool fixed_x[2], fixed_y[2];
    // Aligned pairs of columns are in the array or outside, where any values will do.
    constexpr bool WHOLE = ALIGNED && (!EDGE || !WRAPS_K);
    for (int n = 0; n < 2; n++) {
        xs[n] = WHOLE && EDGE ? min(max(x, 0), last_k - 1) + n : of(x + n, last_k, WRAPS_K);
        ys[n] = of(y + n, last_j, WRAPS_J);
        fixed_x[n] = EDGE && !WRAPS_K && (x + n < region_k.low || x + n >= region_k.high);
        fixed_y[n] = EDGE && !WRAPS_J && (y + n < region_j.low || y + n >= region_j.high);
    }
    const bool mine = 2 * lane >= LOW && 2 * lane < X - HIGH && 2 * warp >= LOW &&
                      2 * warp < Y - HIGH;
    const int start = begin - BEFORE, loads = end - begin + BEFORE + AFTER;
    @LINES@
    // Of plane z - n; of the array fetched with the field, of plane z - n - 1.
    real u[LEVELS + 2][2][2], b[LEVELS][2][2];
    for (int r = 0; r < 2; r++) for (int k = 0; k < 2; k++) {
        for (int n = 0; n < LEVELS + 2; n++) u[n][r][k] = 0;
        for (int n = 0; n < LEVELS; n++) b[n][r][k] = 0;
    }
    real* const own = shared + warp * 2 * X + lane * 2;
    const unsigned place = (unsigned)__cvta_generic_to_shared(own);
    const size_t plane = (size_t)extent_j * extent_k;
    const size_t corner = EDGE ? 0 : (size_t)y * extent_k + x;
    auto fetch_plane = [&](const real* array, int i, int into) {
        const real* const base = array + of(i, last_i, WRAPS_I) * plane + corner;
        const unsigned to = place + into * (TILE * sizeof(real));
        for (int r = 0; r < 2; r++) {
            const real* const row = base + (size_t)(EDGE ? ys[r] : r) * extent_k;
            if (WHOLE) fetch<2 * sizeof(real)>(to + r * X * sizeof(real), row + (EDGE ? xs[0] : 0));
            else
                for (int k = 0; k < 2; k++)
                    fetch<sizeof(real)>(to + (r * X + k) * sizeof(real), row + (EDGE ? xs[k] : k));
        }
    };
    auto issue = [&](int n, int into, int beside) {
        if (n < loads) {
            @FETCHES@
        }
        fetched();
    };
    for (int n = 0; n < AHEAD; n++) issue(n, n, n);
    // The rows beside a thread's own; a tile has none beyond its ends.
    const int up = warp == 0 ? 0 : -X, down = warp == WARPS - 1 ? X : 2 * X;
    int slot = 0, beside = 0;  // where the planes lie that arrive
    real* to = o0 + begin * (integer)plane + (integer)y * extent_k + x;
    @TRANSFER_STATE@
    auto advance = [&](int n, auto turn) {
        constexpr int PARITY = (ODD + decltype(turn)::value) & 1;  // that of z
        await_all_but<AHEAD - 1>();
        __syncthreads();
        const int z = start + n;
        int next = slot + AHEAD, next_beside = beside + AHEAD;
        if (next >= RING) next -= RING;
        if (next_beside > AHEAD) next_beside -= AHEAD + 1;
        issue(n + AHEAD, next, next_beside);
        #pragma unroll
        for (int r = 0; r < 2; r++) for (int k = 0; k < 2; k++) {
            for (int t = LEVELS - 1; t > 0; t--) b[t][r][k] = b[t - 1][r][k];
            b[0][r][k] = own[(RING + beside) * TILE + r * X + k];
            for (int m = LEVELS + 1; m > 0; m--) u[m][r][k] = u[m - 1][r][k];
            u[0][r][k] = @ARRIVED@;
        }
        @CORRECT@
        @SWEEPS@
        @RESTRICT@
        if (++slot == RING) slot = 0;
        if (++beside > AHEAD) beside = 0;
        @STORE@
    };
    for (int n = 0; n < loads + RESTRICTS; n += 2) {
        advance(n, Number<0>());
        advance(n + 1, Number<1>());
    }
}

"""
    + ENTRY
    + """    const Range region_i{int(low_i), int(high_i)}, region_j{int(low_j), int(high_j)};
    const Range region_k{int(low_k), int(high_k)};
    extern __shared__ __align__(16) unsigned char memory[];
    real* shared = reinterpret_cast<real*>(memory);
    // A shuffle tells the compiler that the number is the same in all lanes.
    const int warp = __shfl_sync(EVERY_LANE, int(threadIdx.x >> 5), 0);
    const int first_k = (region_k.low & ~1) + blockIdx.x * (X - LOW - HIGH) - LOW;
    const int first_j = (region_j.low & ~1) + blockIdx.y * (Y - LOW - HIGH) - LOW;
    const int begin = region_i.low + blockIdx.z * int(planes);
    const int end = min(begin + int(planes), @LAST_PLANE@);
    const bool edge =
        first_k < region_k.low + MARGIN || first_k + X > region_k.high - MARGIN ||
        first_j < region_j.low + MARGIN || first_j + Y > region_j.high - MARGIN ||
        begin - BEFORE - 1 < region_i.low + MARGIN || end + AFTER + 2 > region_i.high - MARGIN;
    if (edge)
        tile<true>(@NAMES@, region_i, region_j, region_k, extent_i, extent_j, extent_k, first_j,
                   first_k, warp, begin, end, shared);
    else
        tile<false>(@NAMES@, region_i, region_j, region_k, extent_i, extent_j, extent_k, first_j,
                    first_k, warp, begin, end, shared);
}
"""
)

PLANE = """\
const int here = z - t - 1;
            real* const near = own + (slot > t ? slot - t - 1 : slot - t - 1 + RING) * TILE;
            const bool still = EDGE && !WRAPS_I && (here < region_i.low || here >= region_i.high);
            @PLANES@"""

SWEEPS = """\
#pragma unroll
        for (int t = 0; t < T; t++) {
            @PLANE@
            #pragma unroll
            for (int r = 0; r < 2; r++) {
                constexpr int black[] = {@BLACK@};
                const int k = (PARITY + t + 1 + r + black[t]) & 1;  // the column that moves
                @NEIGHBOURS@
                real value = point(@GIVEN@);
                if (EDGE && (still || fixed_y[r] || fixed_x[k])) value = u[t + 1][r][k];
                u[t + 1][r][k] = near[r * X + k] = value;
            }
        }"""

NEIGHBOURS = """\
const real below = r == 0 ? near[up + k] : u[t + 1][0][k];
                const real above = r == 1 ? near[down + k] : u[t + 1][1][k];
                const real left = k == 0 ? from_left(u[t + 1][r][1]) : u[t + 1][r][0];
                const real right = k == 1 ? from_right(u[t + 1][r][0]) : u[t + 1][r][1];"""

FROM_ZERO = """\
for (int r = 0; r < 2; r++)
            for (int k = 0; k < 2; k++) own[slot * TILE + r * X + k] = 0;"""

STORE = """\
const int out = z - T;
        const bool stored = mine && out >= begin && out < min(end, region_i.high);
        for (int r = 0; r < 2; r++) {
            const bool row = stored && !(EDGE && (y + r < region_j.low || y + r >= region_j.high));
            const bool whole = !EDGE || (x >= region_k.low && x + 2 <= region_k.high);
            real* const at = to + r * (integer)extent_k;
            if (ALIGNED) store_if(row && whole, at, u[T][r][0], u[T][r][1]);
            if (!ALIGNED || EDGE)
                for (int k = 0; k < 2; k++) {
                    const bool column = x + k >= region_k.low && x + k < region_k.high;
                    store_if(row && column && !(ALIGNED && whole), at + k, u[T][r][k]);
                }
        }
        if (out >= begin) to += plane;"""

INTERPOLATION = """\
const int last_p = int(coarse_i) - 2, last_q = int(coarse_j) - 2, last_s = int(coarse_k) - 2;
    // Tiles begin at even rows and columns: the four points of a thread lie between the same coarse
    // ones. Ghosts of the coarse array hold what periodic axes need beyond its ends.
    auto below = [&](int n, int last, bool wraps) {  // the coarse point below n and n + 1
        return EDGE && wraps ? wrapped((n >> 1) + 1, last) - 1 : n >> 1;
    };
    auto in_array = [&](int q, int last) { return EDGE ? min(max(q, 0), last + 1) : q; };
    // Where the shares of an unknown are: those of ghosts are not there.
    auto row_of = [&](int q, int odd, int last, bool wraps) {
        return EDGE && wraps && !odd && q == 0 ? last : in_array(q, last);
    };
    const int q = below(y, last_q, WRAPS_J), s = below(x, last_s, WRAPS_K);
    const int known_s = in_array(s, last_s);
    // The shares of both neighbours along y and x, of even and odd points.
    real share_j[2][2], share_k[2][2];
    for (int n = 0; n < 2; n++) {
        const bool none_j = EDGE && q > last_q, none_k = EDGE && s > last_s;
        const int j = row_of(q, n, last_q, WRAPS_J), k = row_of(s, n, last_s, WRAPS_K);
        share_j[n][0] = none_j ? 0 : (n ? line_j2 : line_j0)[j];
        share_j[n][1] = none_j ? 0 : (n ? line_j3 : line_j1)[j];
        share_k[n][0] = none_k ? 0 : (n ? line_k2 : line_k0)[k];
        share_k[n][1] = none_k ? 0 : (n ? line_k3 : line_k1)[k];
    }
    const size_t coarse_plane = (size_t)coarse_j * coarse_k;
    const real* corners[2];
    for (int n = 0; n < 2; n++)
        corners[n] = coarse + (size_t)in_array(q + n, last_q) * coarse_k + known_s;
    const int beside_it = in_array(s + 1, last_s) - known_s;
    real known[2][2];  // the corners of a coarse plane
    auto know = [&](int p) {
        const size_t from = min(max(p, 0), last_p + 1) * coarse_plane;
        for (int n = 0; n < 2; n++) {
            known[n][0] = corners[n][from];
            known[n][1] = corners[n][from + beside_it];
        }
    };
    // The coarse planes around z, interpolated along x and y.
    real around[2][2][2];
    auto turn_up = [&]() {
        for (int r = 0; r < 2; r++) for (int k = 0; k < 2; k++) {
            around[0][r][k] = around[1][r][k];
            around[1][r][k] =
                share_j[r][0] * (share_k[k][0] * known[0][0] + share_k[k][1] * known[0][1])
                + share_j[r][1] * (share_k[k][0] * known[1][0] + share_k[k][1] * known[1][1]);
        }
    };
    for (int n = 0; n < 1 + ODD; n++) {
        know(below(start, last_p, WRAPS_I) + n);
        turn_up();
    }
    know(below(start + 1, last_p, WRAPS_I) + 1);"""

CORRECTION = """\
{
            const int p = below(z, last_p, WRAPS_I);
            const bool none = EDGE && p > last_p;
            const int row = row_of(p, PARITY, last_p, WRAPS_I);
            const real share_below = none ? 0 : (PARITY ? line_i2 : line_i0)[row];
            const real share_above = none ? 0 : (PARITY ? line_i3 : line_i1)[row];
            const bool unknown = !EDGE || WRAPS_I || (z >= region_i.low && z < region_i.high);
            if (PARITY == 0) {
                turn_up();
                know(below(z + 2, last_p, WRAPS_I) + 1);
            }
            #pragma unroll
            for (int r = 0; r < 2; r++) for (int k = 0; k < 2; k++) {
                const real correction =
                    share_below * around[0][r][k] + share_above * around[1][r][k];
                if (unknown && !fixed_y[r] && !fixed_x[k]) u[0][r][k] += correction;
                own[slot * TILE + r * X + k] = u[0][r][k];
            }
        }"""

RESTRICTION_STATE = """\
const int last_p = int(coarse_i) - 2, last_q = int(coarse_j) - 2, last_s = int(coarse_k) - 2;
    const int q = y >> 1, s = x >> 1;
    const int known_q = min(max(q, 0), last_q + 1), known_s = min(max(s, 0), last_s + 1);
    const real share_j0 = line_j0[known_q], share_j1 = line_j1[known_q];
    const real share_j2 = line_j2[known_q], share_j3 = line_j3[known_q];
    const real share_k0 = line_k0[known_s], share_k1 = line_k1[known_s];
    const real share_k2 = line_k2[known_s], share_k3 = line_k3[known_s];
    const bool coarse_mine = mine && q >= 1 && q <= last_q && s >= 1 && s <= last_s;
    // What is restricted along z is left here for the warp below, which needs it a step later.
    real* const sheet = own + (RING + AHEAD + 1) * TILE;
    const int before = warp == 0 ? 0 : -2 * X;
    real past[3][2][2];
    for (int n = 0; n < 3; n++)
        for (int r = 0; r < 2; r++) for (int k = 0; k < 2; k++) past[n][r][k] = 0;"""

RESTRICTION = """\
{
            constexpr int t = T;
            @PLANE@
            real left_over[2][2];
            #pragma unroll
            for (int r = 0; r < 2; r++) for (int k = 0; k < 2; k++) {
                @NEIGHBOURS@
                left_over[r][k] = residual(@GIVEN@);
                if (EDGE && (still || fixed_y[r] || fixed_x[k])) left_over[r][k] = 0;
            }
            if (((PARITY + T + 1) & 1) == 1) {  // planes are complete, here >> 1 in the coarse grid
                const int p = min(max(here >> 1, 0), last_p + 1);
                const real share_i0 = line_i0[p], share_i1 = line_i1[p];
                const real share_i2 = line_i2[p], share_i3 = line_i3[p];
                for (int r = 0; r < 2; r++) for (int k = 0; k < 2; k++)
                    sheet[r * X + k] = share_i0 * past[2][r][k] + share_i1 * past[1][r][k]
                                     + share_i2 * past[0][r][k] + share_i3 * left_over[r][k];
            } else {  // the sheet is that of the step before
                const int p = (here - 1) >> 1;
                real down[2];
                for (int k = 0; k < 2; k++)
                    down[k] = share_j0 * sheet[before + k] + share_j1 * sheet[before + X + k]
                            + share_j2 * sheet[k] + share_j3 * sheet[X + k];
                const real even = from_left(down[0]), odd = from_left(down[1]);
                store_if(coarse_mine && 2 * p >= begin && 2 * p < end && p <= last_p,
                         coarse + ((integer)p * coarse_j + q) * coarse_k + s,
                         share_k0 * even + share_k1 * odd + share_k2 * down[0]
                         + share_k3 * down[1]);
            }
            for (int r = 0; r < 2; r++) for (int k = 0; k < 2; k++) {
                past[2][r][k] = past[1][r][k];
                past[1][r][k] = past[0][r][k];
                past[0][r][k] = left_over[r][k];
            }
        }"""
