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

// The index among 0 ... last that has the values of `index`: its image, or the end beside it.
__device__ __forceinline__ int kept_in(int index, int last, bool wraps) {
    return wraps ? wrapped(index, last - 1) : min(max(index, 0), last);
}

template <typename V> __device__ __forceinline__ V from_left(V value) {
    return __shfl_up_sync(EVERY_LANE, value, 1);
}
template <typename V> __device__ __forceinline__ V from_right(V value) {
    return __shfl_down_sync(EVERY_LANE, value, 1);
}

// Barrier n is for the warps n - 1 and n. In each step a warp arrives at its two barriers once it
// has finished with shared memory, and waits at both before it reads the values that the warps
// beside it have left. It is ahead of these warps by at most one step, but may be ahead of other
// warps by more: so the warps do not all read shared memory at once, and then all compute. Every
// lane arrives by itself: its reads and writes then come before those of the lanes that wait.
#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ void arrive_beside(unsigned barriers, int warp, int last) {
    if (warp > 0) arrive(barriers, warp);
    if (warp < last) arrive(barriers, warp + 1);
}
__device__ __forceinline__ void await_beside(unsigned barriers, int warp, int last, int parity) {
    if (warp > 0) await_all(barriers, warp, parity);
    if (warp < last) await_all(barriers, warp + 1, parity);
}
#else
__device__ __forceinline__ void arrive_beside(unsigned, int, int) {}
__device__ __forceinline__ void await_beside(unsigned, int, int, int) { __syncthreads(); }
#endif

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
