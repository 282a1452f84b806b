// Small sweeps in turn, in a kernel of one block that goes down a table. SWEEP_CASES calls the
// function whose number is in a row.

// A row: a function's number, whether it waits for earlier sweeps, its first thread, its points,
// and its operands.
extern "C" __global__ void __launch_bounds__(THREADS)
    sweeps(const integer* gate, const integer* table, integer count) {
#if GATED
    if (*gate) return;
#endif

    extern __shared__ __align__(16) unsigned char memory[];
    integer* const rows = reinterpret_cast<integer*>(memory);
    for (integer word = threadIdx.x; word < count * WIDTH; word += THREADS)
        rows[word] = table[word];
    __syncthreads();
    for (const integer* row = rows; row < rows + count * WIDTH; row += WIDTH) {
        if (row[1]) __syncthreads();
        const unsigned threads = THREADS, first = unsigned(row[2]), points = unsigned(row[3]);
        const unsigned n = (threadIdx.x + threads - first) % threads;
        if (n >= points) continue;  // most threads have no point of most sweeps
        switch (int(row[0])) { SWEEP_CASES }
    }
}
