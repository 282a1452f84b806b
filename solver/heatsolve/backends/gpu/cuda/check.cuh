// The small kernels of a check: `merge` and `check`.

__device__ void merge_into(integer* row, integer* reg, int copies) {
    for (int place = threadIdx.x; place < WIDTH; place += blockDim.x) {
        integer value = 0;
        for (int copy = 0; copy < copies; copy++) {
            const integer next = reg[copy * WIDTH + place];
            value = place == TOP || place == LARGEST ? max(value, next) : value + next;
        }
        // Stores between the loads would make each of them wait.
        for (int copy = 0; copy < copies; copy++) reg[copy * WIDTH + place] = 0;
        row[place] = value;
    }
}

// Merges a register into a row, and clears it; one block.
extern "C" __global__ void merge(integer* reg, integer copies, integer* gate, integer* row) {
    if (!gate[0]) merge_into(row, reg, copies);
}

// Merges registers of a series, one a block, into the next rows of the ledger, and clears them.
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
extern "C" __global__ void judge(integer count, integer sum, double limit, integer* gate,
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

// Merges a register into a row of the ledger, clears it, and closes the gate; one block.
extern "C" __global__ void check(integer* reg, integer copies, integer sum, double limit,
                                 integer* gate, integer* rows) {
    if (gate[0]) return;
    integer* merged = rows + gate[1] * WIDTH;
    merge_into(merged, reg, copies);
    __syncthreads();
    if (threadIdx.x) return;
    gate[1] += 1;
    if (closes(merged, sum, limit)) gate[0] = 1;
}
