// The machine that runs a kernel without a GPU: a fiber for each thread of a block.
#include <ucontext.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "emulated.h"


Triple threadIdx, blockIdx, blockDim, gridDim;
alignas(16) unsigned char shared[1 << 18], memory[1 << 18], of_blocks[16][1 << 18];

constexpr size_t STACK = 1 << 16;
struct Copy { unsigned to; const void* from; int bytes; };
// GCC's own jumps: the library's, which also mask signals or mangle pointers, take several times as
// long, and a warp makes 32 for each shuffle.
typedef void* Place[5];
struct Fiber {
    Place here;
    std::unique_ptr<char[]> stack{new char[STACK]};  // only what is used takes memory
    bool begun = false, done = false;
    int shuffles = 0, of_cluster = 0;
    std::vector<Copy> open;
    std::vector<std::vector<Copy>> groups;
};
static std::vector<Fiber> fibers;
static void (*work)(void*);
static void* given;
static Place scheduler;
static int now, last, live, of_block;  // `last`: the thread behind the warp that goes on
static long moves;  // arrivals and ends: a round of a warp without any shows that it waits
constexpr int BLOCK = 128;
static int arrived[BLOCK + 1], turn[BLOCK + 1];  // of each warp; the last one is for the block
struct Barrier { int threads, missing, turn; };
static Barrier barriers[64], cluster;
static uint64_t slots[2][32 * BLOCK];
static bool late;
static unsigned char* base;

void prepare(bool copies_come_late, unsigned char* of_shared_memory) {
    late = copies_come_late;
    base = of_shared_memory;
}

static void entry();
static void resume(int n) {
    now = n;
    threadIdx.x = n % of_block;
    Fiber& fiber = fibers[n];
    if (fiber.begun) __builtin_longjmp(fiber.here, 1);
    fiber.begun = true;
    ucontext_t start;
    getcontext(&start);
    start.uc_stack.ss_sp = fiber.stack.get();
    start.uc_stack.ss_size = STACK;
    makecontext(&start, entry, 0);
    setcontext(&start);
}
// The next thread of the warp goes on, or the scheduler behind the last one.
[[noreturn, gnu::noinline]] static void leave() {
    for (int n = now + 1; n < last; n++)
        if (!fibers[n].done) resume(n);
    __builtin_longjmp(scheduler, 1);
}
[[gnu::noinline]] static void yield() {
    if (!__builtin_setjmp(fibers[now].here)) leave();
}
static void meet(int group, int count) {
    const int mine = turn[group];
    moves++;
    if (++arrived[group] == count) {
        arrived[group] = 0;
        turn[group]++;
    }
    while (turn[group] == mine) yield();
}
void __syncthreads() { meet(BLOCK, live); }
bool __syncthreads_or(bool condition) {
    static int votes, counted;
    votes += condition;
    __syncthreads();
    const bool any = votes;
    if (++counted == live) votes = counted = 0;
    __syncthreads();
    return any;
}
uint64_t nanoseconds_now() {
    yield();  // who asks for the time waits for something
    return std::chrono::steady_clock::now().time_since_epoch().count();
}
int block_of_cluster() { return now / of_block; }
void arrive_at_cluster() {
    fibers[now].of_cluster = cluster.turn;
    moves++;
    if (--cluster.missing == 0) cluster.missing = cluster.threads, cluster.turn++;
}
void await_cluster() {
    while (cluster.turn == fibers[now].of_cluster) yield();
}
void make_barrier(unsigned, int number, int threads) { barriers[number] = {threads, threads, 0}; }
void arrive(unsigned, int number) {
    Barrier& b = barriers[number];
    moves++;
    if (--b.missing < 0) __builtin_trap();  // more threads than it was made for
    if (b.missing == 0) b.missing = b.threads, b.turn++;
}
void await_all(unsigned, int number, int parity) {
    while ((barriers[number].turn & 1) == parity) yield();
}
void __syncwarp() { meet(now / 32, 32); }
uint64_t exchange(uint64_t value, int lane) {
    uint64_t* slot = slots[fibers[now].shuffles++ & 1];
    slot[now] = value;
    const int warp = now / 32;
    meet(warp, 32);
    return slot[warp * 32 + lane];
}

unsigned place_of(const void* p) { return (const unsigned char*)p - base; }
void begin_copy(unsigned to, const void* from, int bytes) {
    if (late) fibers[now].open.push_back({to, from, bytes});
    else memcpy(base + to, from, bytes);
}
void close_group() {
    fibers[now].groups.push_back(fibers[now].open);
    fibers[now].open.clear();
}
void await_groups(int all_but) {
    auto& groups = fibers[now].groups;
    while ((int)groups.size() > all_but) {
        for (const Copy& c : groups.front()) memcpy(base + c.to, c.from, c.bytes);
        groups.erase(groups.begin());
    }
}

static void entry() {
    for (;;) {  // one block after the other
        work(given);
        fibers[now].done = true;
        moves++;
        live--;
        yield();
    }
}
[[gnu::noinline]] static void round_of_warp(int first) {
    now = first - 1;
    if (!__builtin_setjmp(scheduler)) leave();
}
// A warp goes on for as long as it can, then the next one does; if copies come late, the last warp
// is the first. So warps that should wait for each other and do not are as far apart as they may be.
void run_block(int threads, int blocks, void (*kernel)(void*), void* operands) {
    of_block = threads;
    threads *= blocks;
    if (threads > 32 * BLOCK) __builtin_trap();
    cluster = {threads, threads, 0};
    work = kernel;
    given = operands;
    if ((int)fibers.size() != threads) fibers = std::vector<Fiber>(threads);
    threadIdx = {0, 0, 0};
    for (Fiber& fiber : fibers) {
        fiber.done = false;
        fiber.shuffles = fiber.of_cluster = 0;
        fiber.open.clear();
        fiber.groups.clear();
    }
    live = threads;
    std::fill(arrived, arrived + BLOCK + 1, 0);
    std::fill(barriers, barriers + 64, Barrier());
    const int warps = (threads + 31) / 32;
    for (bool any = true; any;) {
        any = false;
        for (int w = 0; w < warps; w++) {
            const int first = 32 * (late ? warps - 1 - w : w);
            last = std::min(first + 32, threads);
            for (long before = -1; before != moves;) {
                before = moves;
                round_of_warp(first);
            }
            for (int n = first; n < last; n++) any |= !fibers[n].done;
        }
    }
}
void release() { fibers = std::vector<Fiber>(); }
