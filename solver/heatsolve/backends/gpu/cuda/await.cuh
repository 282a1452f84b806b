// How kernels of the GPUs of one host wait for each other, by their memory.

__device__ integer nanoseconds() {
    integer now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Waits until something that a peer sends `has_come`; returns the time that it took (ns). If the
// peer is silent until the deadline (ns), `state` becomes 1, and `lost`, in the memory of the host,
// tells the host. If the silence is `fatal`, the kernel traps, and no other work follows.
template <class Predicate>
__device__ integer await(Predicate has_come, integer* state, volatile integer* lost,
                         integer deadline, integer fatal) {
    const integer began = nanoseconds();
    while (!has_come())
        if (nanoseconds() - began > deadline) {
            *lost = *state = 1;
            __threadfence_system();
            if (fatal) __trap();
            break;
        }
    return nanoseconds() - began;
}

// Counts a message when the last of its blocks has finished; one thread of each block calls this.
// The counts: of messages, and of the blocks that have finished.
__device__ void count_message(integer* counts, integer blocks) {
    if (atomicAdd((unsigned long long*)(counts + 1), 1ull) != blocks - 1) return;
    counts[1] = 0;
    counts[0] += 1;
}
