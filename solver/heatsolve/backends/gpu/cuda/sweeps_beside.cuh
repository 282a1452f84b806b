// Sweeps that need no barrier between them, in one kernel: each has blocks of its own. SWEEP_CASES
// calls the function whose number is in a row.

// A row of the table: the number of a function, its points, and its operands. `owners` holds for
// each block its row, and its number among the blocks of that row.
extern "C" __global__ void __launch_bounds__(THREADS)
    sweeps(const integer* gate, const integer* table, const integer* owners) {
#if GATED
    if (*gate) return;
#endif

    const integer* const row = table + owners[2 * blockIdx.x] * WIDTH;
    const unsigned n = unsigned(owners[2 * blockIdx.x + 1]) * THREADS + threadIdx.x;
    const unsigned threads = ~0u - n, points = unsigned(row[1]);  // a thread has one point at most
    if (n >= points) return;
    switch (int(row[0])) { SWEEP_CASES }
}
