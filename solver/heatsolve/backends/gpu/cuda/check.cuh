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

// Merges a register into a row of the ledger, clears it, and closes the gate; one block.
extern "C" __global__ void check(integer* reg, integer copies, integer sum, double limit,
                                 integer* gate, integer* rows) {
    if (gate[0]) return;
    integer* merged = rows + gate[1] * WIDTH;
    merge_into(merged, reg, copies);
    __syncthreads();
    if (threadIdx.x) return;
    double value = 0;
    if (!sum)
        value = __longlong_as_double(merged[LARGEST]);
    else if (merged[TOP])
        for (int k = SLICES - 1; k >= 0; k--)
            value += scalbn((double)merged[merged[TOP] - 1 + SLICES - 1 - k],
                            (int)(LOWEST + SLICE_BITS * (merged[TOP] - 1 - k)));
    gate[1] += 1;
    if (merged[NOT_FINITE] || value <= limit) gate[0] = 1;
}
