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


ARRIVE = "for (int k = 0; k < C; k++) newest[0][k] = own[n % RING * (32 * C) + k];"
NO_PIECES = Pieces([], "", "", ARRIVE, "region_i.high", "region_j.high")


def pieces(work: Pass, keeps: list[int]) -> Pieces:
    """The pieces of a transfer."""
    transfer = work.transfer
    assert transfer is not None
    if transfer.residual is None:
        return Pieces([], INTERPOLATION, "", CORRECTED, "region_i.high", "region_j.high")
    reads = pass_source_2d.Reads(work, transfer.residual, (0, *transfer.operands), "T")
    restrict = (
        RESTRICTION.replace("@ROWS@", "\n            ".join(reads.rows))
        .replace("@SHUFFLES@", "\n            ".join(sorted(reads.shuffles)))
        .replace("@GIVEN@", ", ".join(reads.given))
    )
    arrive = "for (int k = 0; k < C; k++) newest[0][k] = 0;" if transfer.from_zero else ARRIVE
    # Coarse points may lie one beyond the last unknown.
    last_row, last_column = (
        f"max(region_{axis}.high, 2 * int(coarse_{axis}) - 3)" for axis in "ij"
    )
    return Pieces(reads.lines, SHARES, restrict, arrive, last_row, last_column)


SHARES = """\
const int q = (column >> 1), last_q = int(coarse_j) - 2, last_p = int(coarse_i) - 2;
    const int known_q = min(max(q, 0), last_q + 1);
    const real share0 = line_j0[known_q], share1 = line_j1[known_q];
    const real share2 = line_j2[known_q], share3 = line_j3[known_q];
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
                    down[k] = line_i0[p] * past[2][k] + line_i1[p] * past[1][k]
                            + line_i2[p] * past[0][k] + line_i3[p] * left_over[k];
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
    // The coarse points around those of the row that arrives next, and their shares.
    real near[2][2][C], share_below = 0, share_above = 0;
    auto look_ahead = [&](int i) {
        const int row = of_row(i), p = EDGE ? min(row >> 1, last_p) : row >> 1;
        const bool odd = row & 1, none = EDGE && (row >> 1) > last_p;
        share_below = none ? 0 : (odd ? line_i2 : line_i0)[p];
        share_above = none ? 0 : (odd ? line_i3 : line_i1)[p];
        for (int side = 0; side < 2; side++) {
            const real* const from = coarse + (p + side) * coarse_j;
            for (int k = 0; k < C; k++) {
                near[side][0][k] = from[across[k]];
                near[side][1][k] = from[across[k] + 1];
            }
        }
    };
    look_ahead(begin - REACH);"""

CORRECTED = """\
const bool unknown = !EDGE || WRAPS_I || (y >= region_i.low && y < region_i.high);
        for (int k = 0; k < C; k++) {
            const real below = share_left[k] * near[0][0][k] + share_right[k] * near[0][1][k];
            const real above = share_left[k] * near[1][0][k] + share_right[k] * near[1][1][k];
            const real arrived = own[n % RING * (32 * C) + k];
            const real corrected = arrived + (share_below * below + share_above * above);
            newest[0][k] = !EDGE || (unknown && !fixed[k]) ? corrected : arrived;
        }
        look_ahead(y + 1);"""
