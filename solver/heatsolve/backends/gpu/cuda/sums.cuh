// Registers of exact sums and largest magnitudes, as in `exact_sums`.

typedef long long integer;
typedef unsigned long long word;
#define MAGNITUDE 0x7FFFFFFFFFFFFFFFll
#define INFINITE 0x7FF0000000000000ll
#define EVERY_LANE 0xffffffffu

#if __CUDA_ARCH__ < 800
template <typename T> __device__ __forceinline__ T __reduce_max_sync(unsigned lanes, T value) {
    for (int step = 16; step; step >>= 1) value = max(value, __shfl_xor_sync(lanes, value, step));
    return value;
}
__device__ __forceinline__ int __reduce_add_sync(unsigned lanes, int value) {
    for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(lanes, value, step);
    return value;
}
#endif
// The largest magnitude of a thread's terms, by a double's upper half, which has the exponent.
template <int N> __device__ __forceinline__ int upper_half(const double (&terms)[N]) {
    int mine = 0;
    for (int n = 0; n < N; n++) mine = max(mine, __double2hiint(terms[n]) & 0x7FFFFFFF);
    return mine;
}
// The slice in which terms begin, by the upper half of the largest term; the scale that brings
// terms below 2^27 units; and the number whose addition and subtraction round terms to whole units.
__device__ __forceinline__ int top_slice(int largest) {
    return max(0, (largest >> 20) - 1022 - LOWEST) / SLICE_BITS;
}
__device__ __forceinline__ double scale_of(int top) {
    return __longlong_as_double((integer)(1023 - (SLICE_BITS * top + LOWEST)) << 52);
}
#define ANCHOR 6755399441055744.0  // 1.5 * 2^52
#define NEXT_ANCHOR (1.0 / (1 << SLICE_BITS))

__device__ int thread() { return threadIdx.y * blockDim.x + threadIdx.x; }
__device__ int lane() { return thread() & 31; }

// The largest value of a warp, in every lane.
__device__ int warp_max(int value) { return __reduce_max_sync(EVERY_LANE, value); }
__device__ integer warp_max(integer value) {
    const int high = warp_max((int)(value >> 32));  // values are not negative
    const unsigned low = (int)(value >> 32) == high ? (unsigned)value : 0u;
    return ((integer)high << 32) + __reduce_max_sync(EVERY_LANE, low);
}

// |value| as the bits of a double, which order like integers.
__device__ __forceinline__ integer magnitude(double value) {
    return __double_as_longlong(value) & MAGNITUDE;
}

// Each warp adds its own terms: a warp that waits for other warps of its block reads nothing.
__device__ void add_largest(integer mine, integer* reg) {
    const integer largest = warp_max(mine);
    if (lane()) return;
    if (largest >= INFINITE)
        atomicAdd((word*)(reg + NOT_FINITE), 1ull);
    else
        atomicMax(reg + LARGEST, largest);
}
template <int N> __device__ void add_largest(const double (&terms)[N], integer* reg) {
    integer mine = 0;
    for (int n = 0; n < N; n++) mine = max(mine, magnitude(terms[n]));
    add_largest(mine, reg);
}

// Slices are whole units, so a warp adds them as integers. The sum of a term and an anchor holds
// the slice in its lower half: a slice is at most 2^27 units, and eight slices fit an int.
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

// The sum of a warp's terms in slices, as in `exact_sums`: exact, so in any order; of at most 2^24
// terms. The slices stay with their threads until `finish`, or until a larger term comes.
struct Sum {
    integer* const reg;
    double slices[SLICES];
    double scale;
    int top = -1, too_large = 0;  // the top slice; the upper half of a double that it cannot hold

    __device__ __forceinline__ explicit Sum(integer* reg) : reg(reg) {}
    template <int N> __device__ __forceinline__ void add(double (&terms)[N]) {
        const int largest = __reduce_max_sync(EVERY_LANE, upper_half(terms));
        if (largest >= too_large) {
            if (largest >= INFINITE >> 32) {
                if ((threadIdx.x & 31) == 0) atomicAdd((word*)(reg + NOT_FINITE), 1ull);
                return;
            }
            finish();
            top = top_slice(largest);
            scale = scale_of(top);
            too_large = min(2047, SLICE_BITS * (top + 1) + LOWEST + 1022) << 20;
            for (int k = 0; k < SLICES; k++) slices[k] = 0;
        }
        double anchor = ANCHOR;
        for (int n = 0; n < N; n++) terms[n] *= scale;
        for (int k = 0; k < SLICES; k++) {
            for (int n = 0; n < N; n++) {
                const double rounded = (terms[n] + anchor) - anchor;
                slices[k] += rounded;
                terms[n] -= rounded;
            }
            anchor *= NEXT_ANCHOR;
        }
    }
    __device__ void finish() {
        if (top < 0) return;
        const bool first = (threadIdx.x & 31) == 0;
        double units = 1.0;
        for (int k = 0; k < SLICES; k++) {
            double sum = slices[k];
            for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(EVERY_LANE, sum, step);
            const word whole = (integer)(sum * units);
            if (first) atomicAdd((word*)(reg + top + SLICES - 1 - k), whole);
            units *= 1 << SLICE_BITS;
        }
        if (first) atomicMax(reg + TOP, (integer)top + 1);
    }
};
