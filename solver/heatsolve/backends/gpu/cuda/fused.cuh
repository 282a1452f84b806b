// What all kernels of fused sweeps have in common: indices, shuffles, and norms by a warp.

template <int N> struct Number {
    static constexpr int value = N;
};
struct Range {
    int low, high;
};
__device__ __forceinline__ bool in_range(int index, Range range) {
    return index >= range.low && index < range.high;
}

// The index among 1 ... n of which an index is the periodic image.
__device__ __forceinline__ int wrapped(int index, int n) {
    const int rest = (index - 1) % n;
    return (rest < 0 ? rest + n : rest) + 1;
}

template <typename V> __device__ __forceinline__ V from_left(V value) {
    return __shfl_up_sync(EVERY_LANE, value, 1);
}
template <typename V> __device__ __forceinline__ V from_right(V value) {
    return __shfl_down_sync(EVERY_LANE, value, 1);
}

// |value| as the bits of a double, which order like integers.
__device__ __forceinline__ integer magnitude(double value) {
    return __double_as_longlong(value) & MAGNITUDE;
}

// The largest magnitude that a warp has seen.
__device__ void add_largest(integer mine, integer* reg) {
    for (int step = 16; step; step >>= 1) mine = max(mine, __shfl_xor_sync(EVERY_LANE, mine, step));
    if (threadIdx.x & 31) return;
    if (mine >= INFINITE)
        atomicAdd((word*)(reg + NOT_FINITE), 1ull);
    else
        atomicMax(reg + LARGEST, mine);
}

// The terms of a warp in slices, as in `sums`: exact, so in any order; 2^24 of them at most.
// They stay with their threads until `finish`, or until there is a larger one.
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

// A norm of values of points, whose terms a warp takes several at a time, each in its place.
template <int KIND, int POINTS> struct Norm;
template <int POINTS> struct Norm<max_NORM, POINTS> {
    integer* const reg;
    integer most = 0;

    __device__ __forceinline__ explicit Norm(integer* reg) : reg(reg) {}
    __device__ __forceinline__ void take(int, real value, bool counts) {
        if (counts) most = max(most, magnitude(max_term(value)));
    }
    __device__ __forceinline__ void add() {}
    __device__ __forceinline__ void finish() { add_largest(most, reg); }
};
template <int POINTS> struct Norm<sum_NORM, POINTS> {
    Sum sum;
    double terms[POINTS];

    __device__ __forceinline__ explicit Norm(integer* reg) : sum(reg) {}
    __device__ __forceinline__ void take(int place, real value, bool counts) {
        terms[place] = counts ? (double)sum_term(value) : 0.0;
    }
    __device__ __forceinline__ void add() { sum.add(terms); }
    __device__ __forceinline__ void finish() { sum.finish(); }
};
