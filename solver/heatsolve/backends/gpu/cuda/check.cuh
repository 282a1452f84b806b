// The small kernels of checks and of quotients: they read registers. Rows may lie in the host's
// memory.

__device__ integer merged(int place, integer one, integer other) {
    return place == TOP || place == LARGEST ? max(one, other) : one + other;
}

// Merges `count` rows, of which `value_of` gives the integers. Each of GROUPS * WIDTH threads
// merges some of the integers at one place: a single thread for each place would wait for one after
// the other.
template <class ValueOf> __device__ void merge_rows(integer* row, int count, ValueOf value_of) {
    __shared__ integer parts[GROUPS][WIDTH];
    const int place = threadIdx.x % WIDTH, group = threadIdx.x / WIDTH;
    integer value = 0;
    for (int n = group; n < count; n += GROUPS) value = merged(place, value, value_of(n, place));
    parts[group][place] = value;
    __syncthreads();
    if (group) return;
    for (int other = 1; other < GROUPS; other++) value = merged(place, value, parts[other][place]);
    row[place] = value;
}

// Merges the copies of a register into a row, and clears them.
__device__ void merge_into(integer* row, integer* reg, int copies) {
    merge_rows(row, copies, [=](int copy, int place) { return reg[copy * WIDTH + place]; });
    for (int n = threadIdx.x; n < copies * WIDTH; n += GROUPS * WIDTH) reg[n] = 0;
}

// Merges the copies of a register into a row, with a table of peers also the registers of all
// processes; clears the copies.
//
// The head of the table: the number of peers, at most GROUPS; the address of the counts; the words
// of a place; and what `await` takes: state, lost, deadline and fatal. Then for each peer the
// addresses of two places for this process there, of the peer's two places here, and of the time
// (ns) waited. The places serve messages in turn: a peer that sends a message has taken the one
// before. A word holds half an integer and the number of its message, so its reader waits for
// nothing else.
#define PEERS 7
#define PEER 3
#define HALF 0xffffffffull
__device__ void merge_of_all(integer* row, integer* reg, int copies, const integer* table) {
    if (!table) {
        merge_into(row, reg, copies);
        return;
    }
    __shared__ integer own[WIDTH];
    const int at = threadIdx.x % WIDTH, group = threadIdx.x / WIDTH, peers = table[0];
    // Read now: each read from memory takes half a microsecond.
    integer *const counts = (integer*)table[1], *const state = (integer*)table[3];
    const integer number = counts[0];
    const bool silent = *state;
    const integer* const peer = table + PEERS + PEER * min(group, peers - 1);
    const integer place = (number & 1) * table[2] + 2 * (WIDTH * blockIdx.x + at);
    volatile word *const there = (word*)peer[0] + place, *const here = (word*)peer[1] + place;
    merge_into(own, reg, copies);
    if (__syncthreads_or(silent)) {
        if (!group) row[at] = own[at];
        return;
    }
    integer value = 0;
    if (group < peers) {
        const word mark = (word)(number + 1) << 32;
        there[0] = mark | ((word)own[at] & HALF);
        there[1] = mark | ((word)own[at] >> 32);
        word low, high;
        const auto has_come = [&] {
            low = here[0], high = here[1];
            return (low ^ mark) <= HALF && (high ^ mark) <= HALF;
        };
        const integer waited =
            await(has_come, state, (integer*)table[4], table[5], table[6]);
        if (!at && !blockIdx.x) *(integer*)peer[2] += waited;
        value = high << 32 | (low & HALF);
    }
    merge_rows(row, peers + 1, [&](int n, int place) { return n < peers ? value : own[place]; });
    if (!threadIdx.x) count_message(counts, gridDim.x);
}

// Merges a register into a row, and clears the register; one block.
extern "C" __global__ void merge(integer* reg, integer copies, integer* gate, integer* row) {
    if (!gate[0]) merge_into(row, reg, copies);
}

// Merges registers, a block for each, into rows; clears them.
extern "C" __global__ void merge_several(integer* const* registers, integer* rows,
                                         const integer* peers) {
    merge_of_all(rows + blockIdx.x * WIDTH, registers[blockIdx.x], SPREAD, peers);
}

// Copies numbers to or from the host's memory, and clears the first `cleared` of them; one block.
extern "C" __global__ void post(integer* from, integer count, integer cleared, integer* to) {
    for (int n = threadIdx.x; n < count; n += blockDim.x) {
        to[n] = from[n];
        if (n < cleared) from[n] = 0;
    }
}

// Merges registers of a series, a block for each, into the next rows of the ledger; clears them.
extern "C" __global__ void merge_series(integer* reg, integer copies, integer* gate,
                                        integer* rows) {
    if (gate[0]) return;
    merge_into(rows + (gate[1] + blockIdx.x) * WIDTH, reg + blockIdx.x * SPREAD * WIDTH, copies);
}

// Whether the value of a row closes the gate.
__device__ bool closes(const integer* row, integer sum, double limit) {
    double value = 0;
    if (!sum)
        value = __longlong_as_double(row[LARGEST]);
    else if (row[TOP])
        for (int k = SLICES - 1; k >= 0; k--)
            value += scalbn((double)row[row[TOP] - 1 + SLICES - 1 - k],
                            (int)(LOWEST + SLICE_BITS * (row[TOP] - 1 - k)));
    return row[NOT_FINITE] || value <= limit;
}

// Counts the next rows of the ledger up to the first one that closes the gate; one block.
extern "C" __global__ void close_gate(integer count, integer sum, double limit, integer* gate,
                                      integer* rows) {
    if (gate[0]) return;
    __shared__ int first;
    if (!threadIdx.x) first = count;
    __syncthreads();
    for (int n = threadIdx.x; n < count; n += blockDim.x)
        if (closes(rows + (gate[1] + n) * WIDTH, sum, limit)) atomicMin(&first, n);
    __syncthreads();
    if (threadIdx.x) return;
    gate[0] = first < count;
    gate[1] += min(integer(first) + 1, count);
}

// Merges a register, with those of `peers`, into a row of the ledger, clears the register, and
// closes the gate if the row `closes` it; one block. With `at` not 0, it opens the gate `ahead` if
// this gate closes at check number `at`, with a finite value, and closes it otherwise.
extern "C" __global__ void check(integer* reg, integer copies, integer sum, double limit,
                                 integer* gate, integer* rows, integer* ahead, integer at,
                                 const integer* peers) {
    if (gate[0]) return;
    integer* merged = rows + gate[1] * WIDTH;
    merge_of_all(merged, reg, copies, peers);
    __syncthreads();
    if (threadIdx.x) return;
    gate[1] += 1;
    const bool closed = closes(merged, sum, limit);
    if (closed) gate[0] = 1;
    if (at) ahead[0] = !(closed && gate[1] == at) || merged[NOT_FINITE];
}

// Merges a register into the row behind the ledger, if the gate `ahead` is open, and closes this
// gate unless the value is at most `limit`; one block. gate[2] tells that it has done so.
extern "C" __global__ void confirm(integer* reg, integer copies, double limit, integer* gate,
                                   integer* rows, integer* ahead, const integer* peers) {
    if (ahead[0]) return;
    integer* merged = rows + gate[1] * WIDTH;
    merge_of_all(merged, reg, copies, peers);
    __syncthreads();
    if (threadIdx.x) return;
    gate[2] = 1;
    ahead[0] = !closes(merged, 0, limit) || merged[NOT_FINITE];
}

// Carries: brings all slices but the last between 0 and 2^SLICE_BITS, with the same sum.
__device__ void carry_on(integer* slices) {
    for (int k = 0; k < SLICES - 1; k++) {
        const integer over = slices[k] >> SLICE_BITS;
        slices[k] -= over * (1 << SLICE_BITS);
        slices[k + 1] += over;
    }
}

// The sum in a row rounded once, as `exact_sums.sum_of` does: to the nearest, ties to even.
__device__ double rounded(const integer* row) {
    if (row[NOT_FINITE]) return __longlong_as_double(0x7FF8000000000000ll);
    if (!row[TOP]) return 0.0;
    integer slices[SLICES];
    for (int k = 0; k < SLICES; k++) slices[k] = row[row[TOP] - 1 + k];
    int exponent = LOWEST + SLICE_BITS * ((int)row[TOP] - SLICES);
    carry_on(slices);
    const bool negative = slices[SLICES - 1] < 0;
    if (negative) {
        for (int k = 0; k < SLICES; k++) slices[k] = -slices[k];
        carry_on(slices);
    }
    // The sum is high * 2^56 + low, and a little more if `behind` is set.
    word high = slices[3], low = ((word)slices[1] << SLICE_BITS) + slices[0], behind = 0;
    if (high < 1ull << 62 - SLICE_BITS) {
        high = (high << SLICE_BITS) + slices[2];
    } else {
        low = ((word)slices[2] << SLICE_BITS) + slices[1];
        behind = slices[0] != 0;
        exponent += SLICE_BITS;
    }
    // Its first 60 bits or more, of which the last bit is also the sticky bit for all that follow.
    int shift = 2 * SLICE_BITS;
    while (shift > 0 && high >> 60 - shift) shift--;
    const int left = 2 * SLICE_BITS - shift;
    word leading = (high << shift) + (low >> left);
    leading |= (low & (1ull << left) - 1) != 0 || behind;
    exponent += left;
    // Bits below the last place of any double are rounded off here, so that the sum is rounded
    // once.
    const int below = -1074 - exponent;
    if (below > 0 && leading >> below < 1ull << 53) {
        const word rest = leading & (1ull << below) - 1, half = 1ull << below - 1;
        leading >>= below;
        leading += rest > half || (rest == half && (leading & 1));
        exponent += below;
    }
    const double size = scalbn((double)leading, exponent);
    return negative ? -size : size;
}

// Keeps the sum in a register, which is cleared, unless `copies` is 0; forms the quotient of two
// kept sums; one block.
extern "C" __global__ void quotient(integer* reg, integer copies, integer number, integer above,
                                    integer below, integer single, integer* gate, double* sums,
                                    void* out, const integer* peers) {
    if (gate[0]) return;
    __shared__ integer row[WIDTH];
    if (copies) merge_of_all(row, reg, copies, peers);
    __syncthreads();
    if (threadIdx.x) return;
    if (copies) sums[number] = rounded(row);
    const double dividend = sums[above], divisor = sums[below];
    const bool has_meaning = divisor > 0.0 && dividend - dividend == 0.0;
    const double value = has_meaning ? dividend / divisor : 0.0;
    if (single)
        *(float*)out = value;
    else
        *(double*)out = value;
}
