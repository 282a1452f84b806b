"""Text of CUDA C of the ways between two levels, in a tile that goes up the planes.

What `cycle_source_3d` puts into the kernel of `cycle_text_3d`, by whose names it goes: before
sweeps the interpolation of a correction, or without any the restriction of a residual, and its
norm.
"""

INTERPOLATION = """\
const int last_p = int(coarse_i) - 2, last_q = int(coarse_j) - 2, last_s = int(coarse_k) - 2;
    // Tiles begin at even rows and columns: a pair of rows or columns lies between the same coarse
    // ones. Ghosts of the coarse array hold what periodic axes need beyond its ends.
    auto below = [&](int n, int last, bool wraps) {  // the coarse point below n and n + 1
        return EDGE && wraps ? wrapped((n >> 1) + 1, last) - 1 : n >> 1;
    };
    auto in_array = [&](int q, int last) { return EDGE ? min(max(q, 0), last + 1) : q; };
    // Where the shares of an unknown are: those of ghosts are not there.
    auto row_of = [&](int q, int odd, int last, bool wraps) {
        return EDGE && wraps && !odd && q == 0 ? last : in_array(q, last);
    };
    const int q = below(y, last_q, WRAPS_J);
    int at_s[C / 2 + 1];  // what lies around a thread's columns in the coarse array
    // The shares of both neighbours along y, of the even and the odd row, and along x.
    real share_j[2][2], share_k[C][2];
    for (int r = 0; r < 2; r++) {
        const bool none = EDGE && q > last_q;
        const int j = row_of(q, r, last_q, WRAPS_J);
        share_j[r][0] = none ? 0 : (r ? line_j2 : line_j0)[j];
        share_j[r][1] = none ? 0 : (r ? line_j3 : line_j1)[j];
    }
    for (int k = 0; k < C; k++) {
        const int s = below(x + k, last_s, WRAPS_K), row = row_of(s, k & 1, last_s, WRAPS_K);
        const bool none = EDGE && s > last_s;
        share_k[k][0] = none ? 0 : (k & 1 ? line_k2 : line_k0)[row];
        share_k[k][1] = none ? 0 : (k & 1 ? line_k3 : line_k1)[row];
        at_s[k / 2] = in_array(s, last_s);
        at_s[k / 2 + 1] = in_array(s + 1, last_s);
    }
    const size_t coarse_plane = (size_t)coarse_j * coarse_pitch;
    const real* corners[2];
    for (int n = 0; n < 2; n++)
        corners[n] = coarse + (size_t)in_array(q + n, last_q) * coarse_pitch + at_s[0];
    real known[2][C / 2 + 1];  // of a coarse plane
    auto know = [&](int p) {
        const size_t from = min(max(p, 0), last_p + 1) * coarse_plane;
        for (int n = 0; n < 2; n++)
            for (int m = 0; m <= C / 2; m++)
                known[n][m] = corners[n][from + (EDGE ? at_s[m] - at_s[0] : m)];
    };
    // The coarse planes around z, interpolated along x and y.
    real around[2][2][C];
    auto turn_up = [&]() {
        for (int r = 0; r < 2; r++) for (int k = 0; k < C; k++) {
            const int m = k / 2;
            around[0][r][k] = around[1][r][k];
            around[1][r][k] =
                share_j[r][0] * (share_k[k][0] * known[0][m] + share_k[k][1] * known[0][m + 1])
                + share_j[r][1] * (share_k[k][0] * known[1][m] + share_k[k][1] * known[1][m + 1]);
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
            for (int r = 0; r < 2; r++) for (int k = 0; k < C; k++) {
                const real correction =
                    share_below * around[0][r][k] + share_above * around[1][r][k];
                if (unknown && !fixed_y[r] && !fixed_x[k]) u[0][r][k] += correction;
            }
            leave(Number<PARITY>(), turn, -1, u[0]);
        }"""

RESTRICTION_STATE = """\
const int last_p = int(coarse_i) - 2, last_q = int(coarse_j) - 2, last_s = int(coarse_k) - 2;
    const int q = y >> 1, s = x >> 1;
    const int known_q = min(max(q, 0), last_q + 1);
    const real share_j0 = line_j0[known_q], share_j1 = line_j1[known_q];
    const real share_j2 = line_j2[known_q], share_j3 = line_j3[known_q];
    real share_k[C / 2][4];
    for (int m = 0; m < C / 2; m++) {
        const int known_s = min(max(s + m, 0), last_s + 1);
        share_k[m][0] = line_k0[known_s], share_k[m][1] = line_k1[known_s];
        share_k[m][2] = line_k2[known_s], share_k[m][3] = line_k3[known_s];
    }
    const bool coarse_mine = mine && q >= 1 && q <= last_q;
    // What is restricted along z is left here for the warp below, which needs it a step later.
    real* const sheet = own + (RING + AHEAD + 1) * TILE;
    const int beyond = warp == 0 ? 0 : -2 * X;
    real mine_of_sheet[2][C];
    real past[3][2][C];
    for (int n = 0; n < 3; n++)
        for (int r = 0; r < 2; r++) for (int k = 0; k < C; k++) past[n][r][k] = 0;"""

RESTRICTION_OUTER = """\
real outer[1][2][C];  // the rows beside a thread's own
        for (int k = 0; k < C; k++) {
            outer[0][0][k] = FROM_ZERO ? 0 : own[before * TILE + up * X + k];
            outer[0][1][k] = FROM_ZERO ? 0 : own[before * TILE + down * X + k];
        }"""

RESTRICTION = """\
{
            constexpr int t = 0;
            @PLANE@
            real rest[2][C];
            #pragma unroll
            for (int r = 0; r < 2; r++)
                for (int k = 0; k < C; k++) {
                    @NEIGHBOURS@
                    rest[r][k] = residual(@GIVEN@);
                    if (EDGE && (still || fixed_y[r] || fixed_x[k])) rest[r][k] = 0;
                }
            @NORM@
            if (PARITY == 0) {  // planes are complete, here >> 1 in the coarse grid
                const int p = min(max(here >> 1, 0), last_p + 1);
                const real share_i0 = line_i0[p], share_i1 = line_i1[p];
                const real share_i2 = line_i2[p], share_i3 = line_i3[p];
                for (int r = 0; r < 2; r++) for (int k = 0; k < C; k++)
                    mine_of_sheet[r][k] = sheet[r * X + k] =
                        share_i0 * past[2][r][k] + share_i1 * past[1][r][k]
                        + share_i2 * past[0][r][k] + share_i3 * rest[r][k];
                done_with_shared_memory();
            } else {  // the sheet is that of the step before
                const int p = (here - 1) >> 1;
                real down[C];
                for (int k = 0; k < C; k++)
                    down[k] = share_j0 * sheet[beyond + k] + share_j1 * sheet[beyond + X + k]
                            + share_j2 * mine_of_sheet[0][k] + share_j3 * mine_of_sheet[1][k];
                done_with_shared_memory();
                real even = from_left(down[C - 2]), odd = from_left(down[C - 1]);
                const bool plane = coarse_mine && 2 * p >= begin && 2 * p < end && p <= last_p;
                for (int m = 0; m < C / 2; m++) {
                    store_if(plane && s + m >= 1 && s + m <= last_s,
                             coarse + ((integer)p * coarse_j + q) * coarse_pitch + s + m,
                             share_k[m][0] * even + share_k[m][1] * odd
                             + share_k[m][2] * down[2 * m] + share_k[m][3] * down[2 * m + 1]);
                    even = down[2 * m], odd = down[2 * m + 1];
                }
            }
            for (int r = 0; r < 2; r++) for (int k = 0; k < C; k++) {
                past[2][r][k] = past[1][r][k];
                past[1][r][k] = past[0][r][k];
                past[0][r][k] = rest[r][k];
            }
        }"""

NORM = """\
{
                double terms[2 * C];
                const bool counted =
                    mine && here >= begin && here < end && (!EDGE || in_range(here, region_i));
                for (int r = 0; r < 2; r++)
                    for (int k = 0; k < C; k++) {
                        const real left_over = rest[r][k];
                        const bool counts = counted && (!EDGE || in_range(y + r, region_j) &&
                                                                     in_range(x + k, region_k));
                        @TERM@
                    }
                @AFTER@
            }"""
