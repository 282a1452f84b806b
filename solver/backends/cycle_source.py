"""What a pass of a multigrid cycle does besides its sweeps, in two dimensions: text of CUDA C.

Before a correction it ends with the residual, one more level behind the last sweep, restricted to
the coarse level; after one it begins with what is interpolated from there. So neither residual nor
correction ever goes to memory. A lane holds the columns 2q and 2q + 1 of the coarse column q.
"""

from dataclasses import dataclass

from heatsolve.backends import pass_source_2d
from heatsolve.backends.pass_source import Pass


@dataclass(frozen=True)
class Pieces:
    """The pieces that `pass_source_2d.KERNEL` leaves open."""

    lines: list[str]
    state: str
    restrict: str
    arrive: str
    last_row: str
    last_column: str
    fetch: str = ""
    look_ahead: str = ""


COARSE_ROWS = 8
"""Rows of the coarse array that a warp holds: those around a row, and those for rows on the way."""


ARRIVE = "for (int k = 0; k < C; k++) newest[0][k] = own[n % RING * (32 * C) + k];"
NO_PIECES = Pieces([], "", "", ARRIVE, "region_i.high", "region_j.high")


def pieces(work: Pass) -> Pieces:
    """The pieces of a transfer."""
    transfer = work.transfer
    assert transfer is not None
    if transfer.residual is None:
        ends = "region_i.high", "region_j.high"
        return Pieces([], INTERPOLATION, "", CORRECTED, *ends, FETCH_COARSE, LOOK_AHEAD)
    reads = pass_source_2d.Reads(work, transfer.residual, (0, *transfer.operands), "T")
    restrict = (
        RESTRICTION.replace("@ROWS@", "\n            ".join(reads.rows))
        .replace("@SHUFFLES@", "\n            ".join(sorted(reads.shuffles)))
        .replace("@GIVEN@", ", ".join(reads.given))
    )
    arrive = "for (int k = 0; k < C; k++) newest[0][k] = 0;" if work.from_zero else ARRIVE
    # Coarse points may lie one beyond the last unknown.
    last_row, last_column = (
        f"max(region_{axis}.high, 2 * int(coarse_{axis}) - 3)" for axis in "ij"
    )
    given = reads.lines, SHARES, restrict, arrive, last_row, last_column
    return Pieces(*given, look_ahead=NEXT_SHARES)


SHARES = """\
const int q = (column >> 1), last_q = int(coarse_j) - 2, last_p = int(coarse_i) - 2;
    const int known_q = min(max(q, 0), last_q + 1);
    const real share0 = line_j0[known_q], share1 = line_j1[known_q];
    const real share2 = line_j2[known_q], share3 = line_j3[known_q];
    // Of the coarse row that the next row may complete: loads take longer than a row.
    real down_share[4];
    auto look_at_shares = [&](int row) {
        const int p = min(max(row >> 1, 0), last_p + 1);
        down_share[0] = line_i0[p], down_share[1] = line_i1[p];
        down_share[2] = line_i2[p], down_share[3] = line_i3[p];
    };
    look_at_shares(begin);
    real past[3][C];
    for (int n = 0; n < 3; n++) for (int k = 0; k < C; k++) past[n][k] = 0;"""

RESTRICTION = """\
{
            const int row = y - 2 * (T + 1);
            @ROWS@
            @SHUFFLES@
            const bool still = EDGE && !WRAPS_I && (row < region_i.low || row >= region_i.high);
            real left_over[C];
            #pragma unroll
            for (int k = 0; k < C; k++) {
                left_over[k] = residual(@GIVEN@);
                if (EDGE && (still || fixed[k])) left_over[k] = 0;
            }
            #pragma unroll
            for (int k = 0; k < C; k++) {
                older[T][k] = newer[T][k];
                newer[T][k] = newest[T][k];
            }
            const int p = row >> 1;
            if ((row & 1) && 2 * p >= begin && 2 * p < end && p <= last_p) {
                real down[C];
                for (int k = 0; k < C; k++)
                    down[k] = down_share[0] * past[2][k] + down_share[1] * past[1][k]
                            + down_share[2] * past[0][k] + down_share[3] * left_over[k];
                const real even = from_left(down[0]), odd = from_left(down[1]);
                store_if(mine && q >= 1 && q <= last_q, coarse + p * coarse_j + q,
                         share0 * even + share1 * odd + share2 * down[0] + share3 * down[1]);
            }
            for (int k = 0; k < C; k++) {
                past[2][k] = past[1][k];
                past[1][k] = past[0][k];
                past[0][k] = left_over[k];
            }
        }"""

NEXT_SHARES = "look_at_shares(y + 1 - 2 * (T + 1));"

INTERPOLATION = """\
const int last_p = int(coarse_i) - 2, last_q = int(coarse_j) - 2;
    int across[C];
    real share_left[C], share_right[C];
    for (int k = 0; k < C; k++) {
        const int j = EDGE ? at[k] : column + k;
        across[k] = EDGE ? min(j >> 1, last_q) : column >> 1;
        const bool odd = EDGE ? j & 1 : k & 1;
        const bool none = EDGE && (j >> 1) > last_q;
        share_left[k] = none ? 0 : (odd ? line_j2 : line_j0)[across[k]];
        share_right[k] = none ? 0 : (odd ? line_j3 : line_j1)[across[k]];
    }
    // The coarse points around those of a row, and their shares: in a strip that is an edge for the
    // row that arrives next, elsewhere from a ring that is filled as the field's.
    real near[2][2][C], share_below = 0, share_above = 0;
    real* const coarse_ring = ring + (RING + KEPT * KEPT_ROWS) * (32 * C) + lane;
    const unsigned coarse_place = (unsigned)__cvta_generic_to_shared(coarse_ring);
    auto fetch_coarse = [&](int p) {
        const real* const from = coarse + p * coarse_j + (column >> 1);
        const unsigned to = coarse_place + p % COARSE_ROWS * (64 * sizeof(real));
        fetch<sizeof(real)>(to, from);
        fetch<sizeof(real)>(to + 32 * sizeof(real), from + 1);
    };
    auto look_ahead = [&](int i) {
        const int row = of_row(i), p = EDGE ? min(row >> 1, last_p) : row >> 1;
        const bool odd = row & 1, none = EDGE && (row >> 1) > last_p;
        share_below = none ? 0 : (odd ? line_i2 : line_i0)[p];
        share_above = none ? 0 : (odd ? line_i3 : line_i1)[p];
        if (!EDGE) return;
        for (int side = 0; side < 2; side++) {
            const real* const from = coarse + (p + side) * coarse_j;
            for (int k = 0; k < C; k++) {
                near[side][0][k] = from[across[k]];
                near[side][1][k] = from[across[k] + 1];
            }
        }
    };
    look_ahead(begin - REACH);"""

FETCH_COARSE = """\
if (!EDGE) {
                const int i = start + n;
                if (n == 0) fetch_coarse(i >> 1);
                if (n == 0 || (i & 1) == 0) fetch_coarse((i >> 1) + 1);
            }"""

LOOK_AHEAD = "look_ahead(y + 1);"

CORRECTED = """\
if (!EDGE)
            for (int side = 0; side < 2; side++) {
                const real* const row = coarse_ring + ((y >> 1) + side) % COARSE_ROWS * 64;
                for (int k = 0; k < C; k++) near[side][0][k] = row[0], near[side][1][k] = row[32];
            }
        const bool unknown = !EDGE || WRAPS_I || (y >= region_i.low && y < region_i.high);
        for (int k = 0; k < C; k++) {
            const real below = share_left[k] * near[0][0][k] + share_right[k] * near[0][1][k];
            const real above = share_left[k] * near[1][0][k] + share_right[k] * near[1][1][k];
            const real arrived = own[n % RING * (32 * C) + k];
            const real corrected = arrived + (share_below * below + share_above * above);
            newest[0][k] = !EDGE || (unknown && !fixed[k]) ? corrected : arrived;
        }"""
