"""What a pass of a multigrid cycle does besides its sweeps, in two dimensions: text of CUDA C.

Before a correction it ends with the residual, one more level behind the last sweep, restricted to
the coarse level; after one it begins with what is interpolated from there. So neither residual nor
correction ever goes to memory. A lane holds the columns 2q and 2q + 1 of the coarse column q.
"""

from dataclasses import dataclass

from heatsolve.backends.gpu import pass_source_2d
from heatsolve.backends.gpu.pass_source import Pass
from heatsolve.backends.gpu.pass_text_2d import COPY, WINDOW


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
    end: str = ""


COARSE_ROWS = 8
"""Rows of the coarse array that a warp holds: one for each pair of rows of the ring, at least."""


ARRIVE = """\
for (int r = 0; r < 2; r++)
            for (int k = 0; k < C; k++) current[r][k] = arrived[r * (32 * C) + k];"""
ZERO = "for (int r = 0; r < 2; r++) for (int k = 0; k < C; k++) current[r][k] = 0;"
NO_PIECES = Pieces([], "", "", ARRIVE, "region_i.high", "region_j.high")


def pieces(work: Pass) -> Pieces:
    """The pieces of a transfer."""
    transfer = work.transfer
    assert transfer is not None
    ends = "region_i.high", "region_j.high"
    corrected = CORRECTED.replace("@HERE@", "0" if work.from_zero else "arrived[r * (32 * C) + k]")
    if transfer.residual is None:
        assert work.corrects
        return Pieces([], INTERPOLATION, "", corrected, *ends, FETCH_COARSE)
    reads = pass_source_2d.Reads(work, transfer.residual, (0, *transfer.operands), "T", "m")
    look = (
        (RESTRICTION if work.restricts else NORM)
        .replace("@WINDOW@", WINDOW.replace("@LEVEL@", "T"))
        .replace("@ROWS@", "\n                ".join(reads.rows))
        .replace("@SHUFFLES@", "\n                ".join(sorted(reads.shuffles)))
        .replace("@GIVEN@", ", ".join(reads.given))
    )
    if not work.restricts:
        assert transfer.norm is not None
        state, each, after, end = NORMS[transfer.norm]
        look = look.replace("@TERM@", each).replace("@AFTER@", after)
        given = reads.lines, f"{INTERPOLATION}\n    {COPY}\n    {state}", look, corrected
        return Pieces(*given, *ends, FETCH_COARSE, end)
    arrive = ZERO if work.from_zero else ARRIVE
    # Coarse points may lie one beyond the last unknown.
    last_row, last_column = (
        f"max(region_{axis}.high, 2 * int(coarse_{axis}) - 3)" for axis in "ij"
    )
    return Pieces(reads.lines, SHARES, look, arrive, last_row, last_column)


SHARES = """\
const int q = (column >> 1), last_q = int(coarse_j) - 2, last_p = int(coarse_i) - 2;
    const int known_q = min(max(q, 0), last_q + 1);
    const real share0 = line_j0[known_q], share1 = line_j1[known_q];
    const real share2 = line_j2[known_q], share3 = line_j3[known_q];
    // Of the coarse row that the next pair of rows may complete: loads take longer than a pair.
    real down_share[4];
    auto look_at_shares = [&](int row) {
        const int p = min(max(row >> 1, 0), last_p + 1);
        down_share[0] = line_i0[p], down_share[1] = line_i1[p];
        down_share[2] = line_i2[p], down_share[3] = line_i3[p];
    };
    look_at_shares(start - T - 1);
    real past[2][C];  // the residual of the pair before
    for (int r = 0; r < 2; r++) for (int k = 0; k < C; k++) past[r][k] = 0;"""

RESTRICTION = """\
{
            real left_over[2][C];
            #pragma unroll
            for (int r = 0; r < 2; r++) {
                const int row = y - T - 1 + r;
                @WINDOW@
                @ROWS@
                @SHUFFLES@
                const bool still =
                    ENDS && !WRAPS_I && (row < region_i.low || row >= region_i.high);
                #pragma unroll
                for (int k = 0; k < C; k++) {
                    left_over[r][k] = residual(@GIVEN@);
                    if (SIDES && (still || fixed[k])) left_over[r][k] = 0;
                }
            }
            const int first = y - T - 1, p = first >> 1;  // an even row
            real down[C];
            for (int k = 0; k < C; k++)
                down[k] = down_share[0] * past[0][k] + down_share[1] * past[1][k]
                        + down_share[2] * left_over[0][k] + down_share[3] * left_over[1][k];
            const real even = from_left(down[0]), odd = from_left(down[1]);
            const bool coarse_row = first >= begin && first < end && p >= 1 && p <= last_p;
            store_if(coarse_row && mine && q >= 1 && q <= last_q, coarse + p * coarse_pitch + q,
                     share0 * even + share1 * odd + share2 * down[0] + share3 * down[1]);
            look_at_shares(first + 2);
            #pragma unroll
            for (int r = 0; r < 2; r++) for (int k = 0; k < C; k++) {
                before[T][r][k] = current[r][k];
                past[r][k] = left_over[r][k];
            }
        }"""

NORM = """\
{
            double terms[2 * C];
            #pragma unroll
            for (int r = 0; r < 2; r++) {
                const int row = y - T - 1 + r;
                @WINDOW@
                @ROWS@
                @SHUFFLES@
                const bool counted = mine && row >= begin && row < end &&
                                     (!ENDS || in_range(row, region_i));
                #pragma unroll
                for (int k = 0; k < C; k++) {
                    const real left_over = residual(@GIVEN@);
                    const bool counts =
                        counted && (!SIDES || in_range(column + k, region_j));
                    @TERM@
                }
            }
            @AFTER@
            #pragma unroll
            for (int r = 0; r < 2; r++)
                for (int k = 0; k < C; k++) before[T][r][k] = current[r][k];
        }"""
"""The norm of the residual, one more level behind the last sweep."""

NORMS = {
    "sum": (
        "Sum sum(reg_residual + copy * WIDTH);",
        "terms[r * C + k] = counts ? (double)(left_over * left_over) : 0.0;",
        "sum.add(terms);",
        "sum.finish();",
    ),
    "max": (
        "integer most = 0;",
        "if (counts) most = max(most, magnitude(left_over));",
        "",
        "add_largest(most, reg_residual + copy * WIDTH);",
    ),
}
"""By the kind of a norm: what is kept, the term of a point, after a pair of rows, at the end."""

INTERPOLATION = """\
const int last_p = int(coarse_i) - 2, last_q = int(coarse_j) - 2;
    int across[C];
    real share_left[C], share_right[C];
    for (int k = 0; k < C; k++) {
        const int j = SIDES ? at[k] : column + k;
        across[k] = SIDES ? min(j >> 1, last_q) : column >> 1;
        const bool odd = SIDES ? j & 1 : k & 1;
        const bool none = SIDES && (j >> 1) > last_q;
        share_left[k] = none ? 0 : (odd ? line_j2 : line_j0)[across[k]];
        share_right[k] = none ? 0 : (odd ? line_j3 : line_j1)[across[k]];
    }
    auto widened = [&](int k, real left, real right) {
        return share_left[k] * left + share_right[k] * right;
    };
    // A pair of rows lies at and above the coarse row p and below p + 1. The latter comes by a ring
    // that is filled as the field's, and is the former of the next pair; except at the ends, and
    // where a lane may have columns of two coarse ones.
    constexpr bool BY_RING = !ENDS && !(SIDES && WRAPS_J);
    real below[C], up_share[4];
    real* const coarse_ring = ring + (RING + KEPT * KEPT_ROWS) * (32 * C) + lane;
    const unsigned coarse_place = (unsigned)__cvta_generic_to_shared(coarse_ring);
    const real* coarse_from = coarse + (start >> 1) * coarse_pitch + across[0];
    auto look_at_shares = [&](int p) {
        up_share[0] = line_i0[p], up_share[1] = line_i1[p];
        up_share[2] = line_i2[p], up_share[3] = line_i3[p];
    };
    if (BY_RING) {
        look_at_shares(start >> 1);
        for (int k = 0; k < C; k++) below[k] = widened(k, coarse_from[0], coarse_from[1]);
    }"""

FETCH_COARSE = """\
if (BY_RING) {
                coarse_from += coarse_pitch;
                const unsigned to = coarse_place + n % COARSE_ROWS * (64 * sizeof(real));
                fetch<sizeof(real)>(to, coarse_from);
                fetch<sizeof(real)>(to + 32 * sizeof(real), coarse_from + 1);
            }"""

CORRECTED = """\
if (!BY_RING) {
            for (int r = 0; r < 2; r++) {
                const int row = of_row(y + r), p = min(row >> 1, last_p);
                const bool odd = row & 1, none = (row >> 1) > last_p;
                const real share_below = none ? 0 : (odd ? line_i2 : line_i0)[p];
                const real share_above = none ? 0 : (odd ? line_i3 : line_i1)[p];
                const real* const low = coarse + p * coarse_pitch;
                const real* const high = low + coarse_pitch;
                const bool unknown =
                    WRAPS_I || (y + r >= region_i.low && y + r < region_i.high);
                for (int k = 0; k < C; k++) {
                    const real under = widened(k, low[across[k]], low[across[k] + 1]);
                    const real over = widened(k, high[across[k]], high[across[k] + 1]);
                    const real here = @HERE@;
                    const real corrected = here + (share_below * under + share_above * over);
                    current[r][k] = unknown && !fixed[k] ? corrected : here;
                }
            }
        } else {
            const real* const coarse_row = coarse_ring + n % COARSE_ROWS * 64;
            for (int k = 0; k < C; k++) {
                const real above = widened(k, coarse_row[0], coarse_row[32]);
                for (int r = 0; r < 2; r++) {
                    const real here = @HERE@;
                    const real corrected =
                        here + (up_share[2 * r] * below[k] + up_share[2 * r + 1] * above);
                    current[r][k] = fixed[k] ? here : corrected;
                }
                below[k] = above;
            }
            look_at_shares((y >> 1) + 1);
        }"""
