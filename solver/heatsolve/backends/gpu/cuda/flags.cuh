// Flags in the memory of the GPUs of one host, by which kernels of two GPUs wait for each other.

__device__ integer nanoseconds() {
    integer now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Tells a peer, by the flag `there`, that message `number` has come to it, and waits until the flag
// `here` tells the same; returns the time that it waited (ns). If the peer is silent until the
// deadline (ns), `state` becomes 1, and `lost`, in the memory of the host, tells the host. If the
// silence is `fatal`, the kernel traps, and no other work follows.
__device__ integer meet(integer there, integer here, integer number, integer* state,
                        volatile integer* lost, integer deadline, integer fatal) {
    *(volatile integer*)there = number + 1;
    const volatile integer* flag = (const volatile integer*)here;
    const integer began = nanoseconds();
    while (*flag <= number)
        if (nanoseconds() - began > deadline) {
            *lost = *state = 1;
            __threadfence_system();
            if (fatal) __trap();
            break;
        }
    __threadfence_system();
    return nanoseconds() - began;
}

// Counts a message with a peer when the last of its blocks has finished. The counts: of messages,
// and of the blocks that have finished.
__device__ void count_message(integer* counts, integer blocks) {
    if (atomicAdd((unsigned long long*)(counts + 1), 1ull) != blocks - 1) return;
    counts[1] = 0;
    counts[0] += 1;
}
