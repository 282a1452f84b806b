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

// A norm of values of points, whose terms a warp takes several at a time, each in its place.
template <int KIND, int POINTS> struct Norm;
template <int POINTS> struct Norm<MAX_NORM, POINTS> {
    integer* const reg;
    integer most = 0;

    __device__ __forceinline__ explicit Norm(integer* reg) : reg(reg) {}
    __device__ __forceinline__ void take(int, real value, bool counts) {
        if (counts) most = max(most, magnitude(max_term(value)));
    }
    __device__ __forceinline__ void add() {}
    __device__ __forceinline__ void finish() { add_largest(most, reg); }
};
template <int POINTS> struct Norm<SUM_NORM, POINTS> {
    Sum sum;
    double terms[POINTS];

    __device__ __forceinline__ explicit Norm(integer* reg) : sum(reg) {}
    __device__ __forceinline__ void take(int place, real value, bool counts) {
        terms[place] = counts ? (double)sum_term(value) : 0.0;
    }
    __device__ __forceinline__ void add() { sum.add(terms); }
    __device__ __forceinline__ void finish() { sum.finish(); }
};
