// Registers of exact sums and largest magnitudes, as `exact_sums` has them: what all kernels know.

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
#endif
// The largest magnitude of a warp's terms by the upper half of a double, which holds its exponent:
// that of the own ones, and in every lane that of all.
template <int N> __device__ __forceinline__ int upper_half(const double (&terms)[N]) {
    int mine = 0;
    for (int n = 0; n < N; n++) mine = max(mine, __double2hiint(terms[n]) & 0x7FFFFFFF);
    return mine;
}
// The slice in which terms begin, by that of the largest one; the scale that brings them below 2^27
// units, and the number by which adding and subtracting rounds them to whole ones.
__device__ __forceinline__ int top_slice(int largest) {
    return max(0, (largest >> 20) - 1022 - LOWEST) / SLICE_BITS;
}
__device__ __forceinline__ double scale_of(int top) {
    return __longlong_as_double((integer)(1023 - (SLICE_BITS * top + LOWEST)) << 52);
}
#define ANCHOR 6755399441055744.0  // 1.5 * 2^52
#define NEXT_ANCHOR (1.0 / (1 << SLICE_BITS))
