// What CUDA C needs to be C++: the words of a kernel, kept by the machine of emulated.cpp.
// It includes next to nothing, because it is read again for every kernel.
#include <stdint.h>
#include <string.h>
#define __CUDA_ARCH__ 800
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __shared__
#define __align__(n) alignas(n)

struct alignas(16) double2 { double x, y; };
struct longlong2 { long long x, y; };
struct alignas(8) float2 { float x, y; };
inline double2 make_double2(double x, double y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
struct Triple { int x, y, z; };
extern Triple threadIdx, blockIdx, blockDim, gridDim;
extern unsigned char shared[1 << 18], memory[1 << 18], of_blocks[16][1 << 18];

void prepare(bool copies_come_late, unsigned char* of_shared_memory);
// Of `threads` threads; `blocks` of them at a time are a cluster.
void run_block(int threads, int blocks, void (*kernel)(void*), void* operands);
void release();  // every kernel has a machine of its own: it must not keep the memory of its threads
uint64_t exchange(uint64_t value, int lane);
unsigned place_of(const void* in_shared_memory);
void begin_copy(unsigned to, const void* from, int bytes);
void close_group();
void await_groups(int all_but);
void __syncthreads();
bool __syncthreads_or(bool condition);
void __syncwarp();
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __trap() { __builtin_trap(); }
uint64_t nanoseconds_now();
template <typename V> V __ldcg(const V* from) { return *from; }

template <typename V> V min(V a, V b) { return b < a ? b : a; }
template <typename V> V max(V a, V b) { return a < b ? b : a; }
inline float sqrt(float v) { return __builtin_sqrtf(v); }
inline double sqrt(double v) { return __builtin_sqrt(v); }
inline double scalbn(double v, int n) { return __builtin_scalbn(v, n); }

template <typename V> V from_lane(V value, int lane) {
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = exchange(bits, lane);
    memcpy(&value, &bits, sizeof value);
    return value;
}
template <typename V> V __shfl_up_sync(unsigned, V v, int n) {
    const int lane = threadIdx.x % 32;
    return from_lane(v, lane < n ? lane : lane - n);
}
template <typename V> V __shfl_down_sync(unsigned, V v, int n) {
    const int lane = threadIdx.x % 32;
    return from_lane(v, lane + n > 31 ? lane : lane + n);
}
template <typename V> V __shfl_xor_sync(unsigned, V v, int n) {
    return from_lane(v, threadIdx.x % 32 ^ n);
}
template <typename V> V __shfl_sync(unsigned, V v, int lane) { return from_lane(v, lane); }
template <typename V> V __reduce_max_sync(unsigned, V v) {
    for (int n = 16; n; n >>= 1) v = max(v, __shfl_xor_sync(0u, v, n));
    return v;
}
inline int __reduce_add_sync(unsigned, int v) {
    for (int n = 16; n; n >>= 1) v += __shfl_xor_sync(0u, v, n);
    return v;
}
inline long long __double_as_longlong(double v) { long long r; memcpy(&r, &v, 8); return r; }
inline double __longlong_as_double(long long v) { double r; memcpy(&r, &v, 8); return r; }
inline int __double2loint(double v) { return (int)__double_as_longlong(v); }
inline int __double2hiint(double v) { return (int)(__double_as_longlong(v) >> 32); }
template <typename A> A atomicAdd(A* to, A v) { return (*to += v) - v; }
template <typename A> void atomicMin(A* to, A v) { *to = min(*to, v); }
template <typename A> void atomicMax(A* to, A v) { *to = max(*to, v); }

inline size_t __cvta_generic_to_shared(const void* p) { return place_of(p); }
template <int N> void fetch(unsigned to, const void* from) {
    if ((N == 16 || N == 8) && (uintptr_t)from % N) __builtin_trap();  // misaligned on the device
    begin_copy(to, from, N);
}
inline void fetched() { close_group(); }
template <int N> void await_all_but() { await_groups(N); }
int block_of_cluster();
template <typename V> V* in_block(V* own, int block) {
    return (V*)((unsigned char*)own + (of_blocks[block] - of_blocks[block_of_cluster()]));
}
void arrive_at_cluster();
void await_cluster();
void make_barrier(unsigned barriers, int number, int threads);
void arrive(unsigned barriers, int number);
void await_all(unsigned barriers, int number, int parity);
template <typename V> void store_if(bool wanted, V* to, V a) { if (wanted) *to = a; }
template <typename V> void store_if(bool wanted, V* to, V a, V b) {
    if (!wanted) return;
    if ((uintptr_t)to % (2 * sizeof(V))) __builtin_trap();
    to[0] = a, to[1] = b;
}
template <typename V> void store_if(bool wanted, V* to, V a, V b, V c, V d) {
    if (!wanted) return;
    if ((uintptr_t)to % (4 * sizeof(V))) __builtin_trap();
    to[0] = a, to[1] = b, to[2] = c, to[3] = d;
}
template <typename V> void __stcs(V* to, V value) { *to = value; }
