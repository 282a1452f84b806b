// Instructions that only PTX has: asynchronous copies and barriers, predicated stores, and clusters
// of blocks.

#if __CUDA_ARCH__ >= 800
template <int N> __device__ __forceinline__ void fetch(unsigned to, const void* from) {
    if constexpr (N == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(N));
}
__device__ __forceinline__ void fetched() { asm volatile("cp.async.commit_group;"); }
template <int N> __device__ __forceinline__ void await_all_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
// Barriers in shared memory, eight bytes each: threads arrive, and wait for other threads later.
__device__ __forceinline__ void make_barrier(unsigned barriers, int number, int threads) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barriers + 8 * number), "r"(threads)
                 : "memory");
}
__device__ __forceinline__ void arrive(unsigned barriers, int number) {
    asm volatile(
        "{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(barriers + 8 * number)
        : "memory");
}
// Waits until all threads have arrived for the n-th time, where n has the parity of `parity`.
__device__ __forceinline__ void await_all(unsigned barriers, int number, int parity) {
#if __CUDA_ARCH__ >= 900
#define ASK "mbarrier.try_wait.parity.shared.b64"
#else
#define ASK "mbarrier.test_wait.parity.shared.b64"
#endif
    asm volatile("{\n.reg .pred done;\nASK:\n" ASK
                 " done, [%0], %1;\n@!done bra ASK;\n}" ::"r"(barriers + 8 * number),
                 "r"(parity)
                 : "memory");
}
#else
// Before compute capability 8.0 a thread copies synchronously, and there are no such barriers.
template <int N> __device__ __forceinline__ void fetch(unsigned to, const void* from) {
    if constexpr (N == 16) {
        const int4 a = *reinterpret_cast<const int4*>(from);
        asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a.x), "r"(a.y),
                     "r"(a.z), "r"(a.w)
                     : "memory");
    } else if constexpr (N == 8) {
        const int2 a = *reinterpret_cast<const int2*>(from);
        asm volatile("st.shared.v2.s32 [%0], {%1, %2};" ::"r"(to), "r"(a.x), "r"(a.y) : "memory");
    } else {
        const int a = *reinterpret_cast<const int*>(from);
        asm volatile("st.shared.s32 [%0], %1;" ::"r"(to), "r"(a) : "memory");
    }
}
__device__ __forceinline__ void fetched() {}
template <int N> __device__ __forceinline__ void await_all_but() {}
__device__ __forceinline__ void make_barrier(unsigned, int, int) {}
#endif
// Stores where a condition holds, without a branch: behind a branch that may divide a warp the
// compiler tests before every shuffle whether the warp has converged, and moves nothing across.
__device__ __forceinline__ void store_if(bool wanted, double* to, double a) {
    asm volatile(
        "{.reg .pred p; setp.ne.s32 p, %0, 0; @p st.global.cs.f64 [%1], %2;}" ::"r"(int(wanted)),
        "l"(to), "d"(a)
        : "memory");
}
__device__ __forceinline__ void store_if(bool wanted, float* to, float a) {
    asm volatile(
        "{.reg .pred p; setp.ne.s32 p, %0, 0; @p st.global.cs.f32 [%1], %2;}" ::"r"(int(wanted)),
        "l"(to), "f"(a)
        : "memory");
}
__device__ __forceinline__ void store_if(bool wanted, double* to, double a, double b) {
    asm volatile(
        "{.reg .pred p; setp.ne.s32 p, %0, 0; @p st.global.cs.v2.f64 [%1], {%2, %3};}" ::"r"(
            int(wanted)),
        "l"(to), "d"(a), "d"(b)
        : "memory");
}
__device__ __forceinline__ void store_if(bool wanted, float* to, float a, float b) {
    asm volatile(
        "{.reg .pred p; setp.ne.s32 p, %0, 0; @p st.global.cs.v2.f32 [%1], {%2, %3};}" ::"r"(
            int(wanted)),
        "l"(to), "f"(a), "f"(b)
        : "memory");
}
__device__ __forceinline__ void store_if(bool wanted, float* to, float a, float b, float c,
                                         float d) {
    asm volatile(
        "{.reg .pred p; setp.ne.s32 p, %0, 0; "
        "@p st.global.cs.v4.f32 [%1], {%2, %3, %4, %5};}" ::"r"(int(wanted)),
        "l"(to), "f"(a), "f"(b), "f"(c), "f"(d)
        : "memory");
}

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ int block_of_cluster() {
    unsigned number;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(number));
    return number;
}
// The address in the shared memory of a block of the cluster that corresponds to `own` in this one.
template <typename V> __device__ __forceinline__ V* in_block(V* own, int block) {
    unsigned long long place;
    asm("mapa.u64 %0, %1, %2;" : "=l"(place) : "l"(own), "r"(block));
    return reinterpret_cast<V*>(place);
}
// All threads of the cluster arrive, and wait for each other later; each then sees all writes.
__device__ __forceinline__ void arrive_at_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void await_cluster() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
#endif
