// Sweeps of a field that stays in the shared memory of a cluster of blocks until the last one.
//
// A block has some planes of the field (in two dimensions a plane is one line), in two copies: a
// sweep reads one copy and writes the other. A block also writes into the memory of the blocks
// beside it the points that these blocks read. Before the kernel come numbers (CLUSTER blocks of
// the cluster, OWN points of a thread, ...) and the pieces PREPARE, PREPARE_POINT and
// POINT_ARGUMENTS of the point function.

// Where a point lies: in the first or the last plane of its block, and beside a periodic end.
enum { FIRST = 1, LAST = 2, LOW_J = 4, HIGH_J = 8, LOW_K = 16, HIGH_K = 32 };

// `count` sweeps; sweeps from number `from` on have norms, each in a register of its own.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS)
    sweeps(const integer* gate, PARAMETERS, integer count, integer from, integer low_i,
           integer high_i, integer low_j, integer high_j, integer low_k, integer high_k,
           integer count_low_i, integer count_high_i, integer count_low_j, integer count_high_j,
           integer count_low_k, integer count_high_k, integer extent_i, integer extent_j,
           integer extent_k, integer pitch) {
#if GATED
    if (*gate) return;
#endif
    const int block = block_of_cluster(), line = int(extent_k), plane = int(extent_j) * line;
    extern __shared__ __align__(16) unsigned char shared[];
    real* const own = reinterpret_cast<real*>(shared);
    const int planes = int(high_i - low_i), copy = ((planes + CLUSTER - 1) / CLUSTER + 2) * plane;
    auto start = [&](int n) { return int(low_i) + planes * n / CLUSTER; };
    const int first = start(block), last = start(block + 1);
    auto of_array = [&](int i, int j, int k) { return ((size_t)i * extent_j + j) * pitch + k; };
    for (int n = threadIdx.x; n < (last - first + 2) * plane; n += THREADS)
        own[n] = own[copy + n] = a0[of_array(first - 1 + n / plane, n % plane / line, n % line)];

    // The planes of the blocks beside that hold copies of this block's first and last plane.
    const int before = (block + CLUSTER - 1) % CLUSTER, behind = (block + 1) % CLUSTER;
    real* const below = in_block(own, before) + (start(before + 1) - start(before) + 1) * plane;
    real* const above = in_block(own, behind);
    const bool has_below = WRAPS_I || block > 0, has_above = WRAPS_I || block < CLUSTER - 1;

    // The points of this thread, and their values in other arrays: the same in all sweeps.
    const int width = int(high_k - low_k), lines = int(high_j - low_j);
    int at[OWN], edges[OWN];
    unsigned mine = 0, counted = 0;
    PREPARE
    #pragma unroll
    for (int n = 0; n < OWN; n++) {
        int p = threadIdx.x + n * THREADS;
        if (p < (last - first) * lines * width)
            mine |= 1u << n;
        else
            p = 0;  // any point will do
        const int i = first + p / (lines * width), j = int(low_j) + p / width % lines;
        const int k = int(low_k) + p % width;
        at[n] = (i - first + 1) * plane + j * line + k;
        edges[n] = (has_below && i == first ? FIRST : 0) | (has_above && i == last - 1 ? LAST : 0);
        if (WRAPS_J) edges[n] |= (j == 1 ? LOW_J : 0) | (j == extent_j - 2 ? HIGH_J : 0);
        if (WRAPS_K) edges[n] |= (k == 1 ? LOW_K : 0) | (k == extent_k - 2 ? HIGH_K : 0);
        if (mine >> n & 1 && i >= count_low_i && i < count_high_i && j >= count_low_j &&
            j < count_high_j && k >= count_low_k && k < count_high_k)
            counted |= 1u << n;
        PREPARE_POINT
    }
    // Stores a value, and its images beyond the periodic ends of a plane.
    auto put = [&](real* to, int edge, real value) {
        *to = value;
        if (WRAPS_K && edge & LOW_K) to[line - 2] = value;
        if (WRAPS_K && edge & HIGH_K) to[2 - line] = value;
        if (WRAPS_J && edge & LOW_J) to[plane - 2 * line] = value;
        if (WRAPS_J && edge & HIGH_J) to[2 * line - plane] = value;
    };
    arrive_at_cluster();
    await_cluster();

    for (int t = 0; t < count; t++) {
        const int from_copy = t & 1 ? copy : 0, to_copy = copy - from_copy;
#if CHANGES
        real moved[OWN];
#endif
        #pragma unroll
        for (int n = 0; n < OWN; n++) {
            const real* const field = own + from_copy + at[n];
            const real value = point(POINT_ARGUMENTS);
#if CHANGES
            moved[n] = change(value, *field);
#endif
            if (!(mine >> n & 1)) continue;
            put(own + to_copy + at[n], edges[n], value);
            if (edges[n] & FIRST) put(below + to_copy + at[n] - plane, edges[n], value);
            if (edges[n] & LAST)
                put(above + to_copy + at[n] - (last - first) * plane, edges[n], value);
        }
        arrive_at_cluster();  // meanwhile the norm is computed
#if CHANGES
        if (t >= from) {
            integer* const reg = reg0 + ((t - from) * SPREAD + block) * WIDTH;
#if NORM == SUM_NORM
            double terms[OWN];
            for (int n = 0; n < OWN; n++)
                terms[n] = counted >> n & 1 ? (double)sum_term(moved[n]) : 0.0;
            add_sum(terms, reg);
#else
            integer most = 0;
            for (int n = 0; n < OWN; n++)
                if (counted >> n & 1) most = max(most, magnitude(max_term(moved[n])));
            add_largest(most, reg);
#endif
        }
#endif
        await_cluster();
    }

    const real* const result = own + (count & 1 ? copy : 0);
    #pragma unroll
    for (int n = 0; n < OWN; n++) {
        const int p = threadIdx.x + n * THREADS;
        if (p < (last - first) * lines * width)
            o0[of_array(first + p / (lines * width), int(low_j) + p / width % lines,
                        int(low_k) + p % width)] = result[at[n]];
    }
}
