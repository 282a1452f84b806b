"""Kernels of passes without a GPU: CUDA C as C++, a fiber for each thread of a block.

A shuffle or a barrier lets the other threads run until all have come to it. Asynchronous copies
arrive as early as they may, when they are begun, or as late as they may, when they are waited for:
what is right in both ways does not depend on when they do.
"""

import ctypes
import functools
import subprocess

import numpy as np

from heatsolve.backends import cache, sums
from heatsolve.backends.device import DeviceBackend
from heatsolve.backends.device_launch import SPREAD
from heatsolve.backends.numpy import NumpyBackend
from heatsolve.backends.pass_source import PTX

SHIM = r"""
#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstring>
#include <functional>
#include <ucontext.h>
#include <vector>
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__
#define __align__(n) alignas(n)
using std::max;
using std::min;
struct double2 { double x, y; };
struct float2 { float x, y; };
struct Triple { int x, y, z; };
static Triple threadIdx, blockIdx, blockDim;
alignas(16) unsigned char shared[1 << 18];
alignas(16) unsigned char memory[1 << 18];

struct Copy { unsigned to; const void* from; int bytes; };
struct Fiber {
    ucontext_t start;
    jmp_buf here;
    std::vector<char> stack = std::vector<char>(1 << 16);
    bool begun = false, done = false;
    int shuffles = 0;
    std::vector<Copy> open;
    std::vector<std::vector<Copy>> groups;
};
static std::vector<Fiber> fibers;
static std::function<void()> work;
static jmp_buf scheduler;
static int now, live;
static int arrived[64], turn[64];  // of each warp; the last one is for the block
static uint64_t slots[2][2048];
static bool late;
static unsigned char* base;

static void yield() {
    if (!_setjmp(fibers[now].here)) _longjmp(scheduler, 1);
}
static void meet(int group, int count) {
    const int mine = turn[group];
    if (++arrived[group] == count) {
        arrived[group] = 0;
        turn[group]++;
    }
    while (turn[group] == mine) yield();
}
static void __syncthreads() { meet(63, live); }
static void __syncwarp() { meet(now / 32, 32); }
template <typename V> V exchange(V value, int lane) {
    Fiber& fiber = fibers[now];
    uint64_t* slot = slots[fiber.shuffles++ & 1];
    std::memcpy(slot + now, &value, sizeof value);
    const int me = now;
    meet(me / 32, 32);
    std::memcpy(&value, slot + me / 32 * 32 + lane, sizeof value);
    return value;
}
template <typename V> V __shfl_up_sync(unsigned, V v, int n) {
    const int lane = now % 32;
    return exchange(v, lane < n ? lane : lane - n);
}
template <typename V> V __shfl_down_sync(unsigned, V v, int n) {
    const int lane = now % 32;
    return exchange(v, lane + n > 31 ? lane : lane + n);
}
template <typename V> V __shfl_xor_sync(unsigned, V v, int n) { return exchange(v, now % 32 ^ n); }
template <typename V> V __shfl_sync(unsigned, V v, int lane) { return exchange(v, lane); }
static int __reduce_max_sync(unsigned, int v) {
    for (int n = 16; n; n >>= 1) v = max(v, __shfl_xor_sync(0u, v, n));
    return v;
}
static long long __double_as_longlong(double v) { long long r; std::memcpy(&r, &v, 8); return r; }
static double __longlong_as_double(long long v) { double r; std::memcpy(&r, &v, 8); return r; }
static int __double2hiint(double v) { return (int)(__double_as_longlong(v) >> 32); }
template <typename A> void atomicAdd(A* to, A v) { *to += v; }
template <typename A> void atomicMax(A* to, A v) { *to = max(*to, v); }
static size_t __cvta_generic_to_shared(const void* p) { return (const unsigned char*)p - base; }
template <int N> void fetch(unsigned to, const void* from) {
    if ((N == 16 || N == 8) && (uintptr_t)from % N) __builtin_trap();  // misaligned on the device
    if (late) fibers[now].open.push_back({to, from, N});
    else std::memcpy(base + to, from, N);
}
static void fetched() {
    fibers[now].groups.push_back(fibers[now].open);
    fibers[now].open.clear();
}
template <int N> void await_all_but() {
    auto& groups = fibers[now].groups;
    while ((int)groups.size() > N) {
        for (const Copy& c : groups.front()) std::memcpy(base + c.to, c.from, c.bytes);
        groups.erase(groups.begin());
    }
}
template <typename V> void store_if(bool wanted, V* to, V a) { if (wanted) *to = a; }
template <typename V> void store_if(bool wanted, V* to, V a, V b) {
    if (!wanted) return;
    if ((uintptr_t)to % (2 * sizeof(V))) __builtin_trap();
    to[0] = a, to[1] = b;
}
template <typename V> void __stcs(V* to, V value) { *to = value; }

static void entry() {
    work();
    fibers[now].done = true;
    live--;
    _longjmp(scheduler, 1);
}
static void run_block(int threads) {
    fibers.clear();
    fibers.resize(threads);
    live = threads;
    std::fill(arrived, arrived + 64, 0);
    for (Fiber& fiber : fibers) {
        getcontext(&fiber.start);
        fiber.start.uc_stack.ss_sp = fiber.stack.data();
        fiber.start.uc_stack.ss_size = fiber.stack.size();
        makecontext(&fiber.start, entry, 0);
    }
    for (bool any = true; any;) {
        any = false;
        for (volatile int n = 0; n < threads; n++) {
            if (fibers[n].done) continue;
            any = true;
            now = n;
            threadIdx = {n, 0, 0};
            if (_setjmp(scheduler)) continue;
            if (fibers[n].begun) _longjmp(fibers[n].here, 1);
            fibers[n].begun = true;
            setcontext(&fibers[n].start);
        }
    }
}
"""

DRIVER = r"""
extern "C" void launch(
    int x, int y, int z, int threads, int waits, unsigned char noise, @PARAMETERS@
) {
    late = waits;
    base = @SHARED@;
    blockDim = {threads, 1, 1};
    for (blockIdx.z = 0; blockIdx.z < z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < x; blockIdx.x++) {
                std::memset(base, noise, 1 << 18);
                work = [&] { sweeps(@NAMES@); };
                run_block(threads);
            }
}
"""


@functools.cache
def library(source):
    """The function `launch` of a kernel's source, and the C types of what it takes."""
    signature = source[source.rindex("sweeps(const integer* gate") :]
    signature = signature[signature.index("(") + 1 : signature.index(") {")]
    parameters = [" ".join(p.split()) for p in signature.split(",")]
    names = [p.split()[-1].lstrip("*") for p in parameters]
    text = source.replace(PTX, "").replace(
        "extern __shared__ __align__(16) unsigned char", "extern unsigned char"
    )
    driver = (
        DRIVER.replace("@PARAMETERS@", ", ".join(parameters))
        .replace("@NAMES@", ", ".join(names))
        .replace("@SHARED@", "memory" if "char memory[]" in source else "shared")
    )
    whole = SHIM + text + driver
    path = cache.folder() / f"emulated_{cache.digest(whole)}.so"
    if not path.exists():
        file = path.with_suffix(".cpp")
        file.write_text(whole)
        command = ["g++", "-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-ffp-contract=off"]
        command += ["-U_FORTIFY_SOURCE", "-fno-strict-aliasing", str(file), "-o", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:3000]
    function = ctypes.CDLL(str(path)).launch
    function.restype = None
    kinds = [
        ctypes.c_void_p if "*" in p else
        {"double": ctypes.c_double, "float": ctypes.c_float}.get(p.split()[0], ctypes.c_longlong)
        for p in parameters
    ]  # fmt: skip
    function.argtypes = [*[ctypes.c_int] * 5, ctypes.c_ubyte, *kinds]
    return function


class Emulated(NumpyBackend):
    """The numpy backend with the passes of a GPU, emulated; `late`: copies arrive late."""

    name = "emulated"
    compiles_c = True
    processors = 2
    integer = int
    lookahead = 1

    def __init__(self, precision="float64", late=False):
        super().__init__(precision)
        self.late = late
        self.launched = 0
        self._depths = {}

    most_sweeps = DeviceBackend.most_sweeps
    half_cycle = DeviceBackend.half_cycle
    _compile_pass = DeviceBackend._compile_pass

    def new_register(self):
        return np.zeros(SPREAD * sums.WIDTH, np.int64)

    def read_register(self, register):
        return sums.merge(register.reshape(SPREAD, sums.WIDTH))

    def c_kernel(self, source, bytes_shared):
        function = library(source)
        gate = np.zeros(2, np.int64)

        def queue(launch, operands):
            self.launched += 1
            given = [
                value.ctypes.data if isinstance(value, np.ndarray) else value
                for value in (gate, *operands, *launch.bounds)
            ]
            # Shared memory begins with anything at all, here with bytes that make NaNs.
            function(*launch.grid, launch.block[0], int(self.late), 255, *given)

        return queue
