// The common part of all kernels of fused sweeps: indices, shuffles, and norms by a warp.

template <int N> struct Number {
    static constexpr int value = N;
};
struct Range {
    int low, high;
};
__device__ __forceinline__ bool in_range(int index, Range range) {
    return index >= range.low && index < range.high;
}

// The index among 1 ... n whose periodic image is `index`.
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
// `mine`: whether the points of this lane count at all. All lanes of a warp count a row, or none
// does, so a largest magnitude skips a row by one branch and tests `mine` at its end.
template <int KIND, int POINTS> struct Norm;
template <int POINTS> struct Norm<MAX_NORM, POINTS> {
    integer* const reg;
    const bool mine;
    integer most = 0;

    __device__ __forceinline__ Norm(integer* reg, bool mine) : reg(reg), mine(mine) {}
    __device__ __forceinline__ void take(int, real value, bool counts) {
        if (counts) most = max(most, magnitude(max_term(value)));
    }
    template <int N>
    __device__ __forceinline__ void take_row(int place, const real (&values)[N], bool counted,
                                             const bool (&counts)[N]) {
        if (counted)
            for (int k = 0; k < N; k++) take(place + k, values[k], counts[k]);
    }
    __device__ __forceinline__ void add() {}
    __device__ __forceinline__ void finish() { add_largest(mine ? most : 0, reg); }
};
template <int POINTS> struct Norm<SUM_NORM, POINTS> {
    Sum sum;
    const bool mine;
    double terms[POINTS];

    __device__ __forceinline__ Norm(integer* reg, bool mine) : sum(reg), mine(mine) {}
    __device__ __forceinline__ void take(int place, real value, bool counts) {
        terms[place] = mine && counts ? (double)sum_term(value) : 0.0;
    }
    template <int N>
    __device__ __forceinline__ void take_row(int place, const real (&values)[N], bool counted,
                                             const bool (&counts)[N]) {
        for (int k = 0; k < N; k++) take(place + k, values[k], counted && counts[k]);
    }
    __device__ __forceinline__ void add() { sum.add(terms); }
    __device__ __forceinline__ void finish() { sum.finish(); }
};
