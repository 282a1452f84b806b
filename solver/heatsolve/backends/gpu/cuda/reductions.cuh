// The exact sum and the largest magnitude of terms by a warp, for generic sweeps that reduce.

__device__ int thread() { return threadIdx.y * blockDim.x + threadIdx.x; }
__device__ int lane() { return thread() & 31; }

#if __CUDA_ARCH__ < 800
__device__ int __reduce_add_sync(unsigned, int value) {
    for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(EVERY_LANE, value, step);
    return value;
}
#endif
// The largest value of a warp, in every lane.
__device__ int warp_max(int value) { return __reduce_max_sync(EVERY_LANE, value); }
__device__ integer warp_max(integer value) {
    const int high = warp_max((int)(value >> 32));  // values are not negative
    const unsigned low = (int)(value >> 32) == high ? (unsigned)value : 0u;
    return ((integer)high << 32) + __reduce_max_sync(EVERY_LANE, low);
}

// Warps add their terms each for itself: one that waits for the others of its block reads nothing.
template <int N> __device__ void add_largest(const double (&terms)[N], integer* reg) {
    integer mine = 0;
    for (int n = 0; n < N; n++) mine = max(mine, __double_as_longlong(terms[n]) & MAGNITUDE);
    const integer largest = warp_max(mine);
    if (largest < INFINITE) {
        if (lane() == 0) atomicMax(reg + LARGEST, largest);
    } else if (mine >= INFINITE)
        atomicAdd((word*)(reg + NOT_FINITE), 1ull);
}

// Slices are whole units, so a warp adds them as integers. The sum with an anchor holds one in its
// lower half: that of a term is 2^27 units at most, those of eight fit an int.
template <int N> __device__ void add_sum(double (&terms)[N], integer* reg) {
    static_assert(N <= 8, "the terms of a thread");
    const int mine = upper_half(terms), largest = warp_max(mine);
    if (largest >= INFINITE >> 32) {
        if (mine >= INFINITE >> 32) atomicAdd((word*)(reg + NOT_FINITE), 1ull);
        return;
    }
    const int top = top_slice(largest);
    const double scale = scale_of(top);
    for (int n = 0; n < N; n++) terms[n] *= scale;
    integer units = 0;  // a lane takes the slice of its number
    double anchor = ANCHOR;
    for (int k = 0; k < SLICES; k++, anchor *= NEXT_ANCHOR) {
        int sum = 0;
        for (int n = 0; n < N; n++) {
            const double lifted = terms[n] + anchor;
            sum += __double2loint(lifted);
            terms[n] -= lifted - anchor;
        }
        const int low = __reduce_add_sync(EVERY_LANE, sum & 0xFFFF);
        const int high = __reduce_add_sync(EVERY_LANE, sum >> 16);
        if (lane() == k) units = (integer)high * 0x10000 + low;
    }
    if (lane() < SLICES) atomicAdd((word*)(reg + top + SLICES - 1 - lane()), (word)units);
    if (lane() == 0) atomicMax(reg + TOP, (integer)top + 1);
}
