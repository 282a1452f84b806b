// Messages between the GPUs of one host, by stores into each other's memory.
//
// A row of `parcels`: the address of an array, the address of its place in a mailbox, its bytes,
// and the row of its peer; parcels that leave first, then those that arrive. A row of `peers`: the
// flag of this process in the peer's memory, the peer's flag here, and the address of the number of
// messages so far. A mailbox has two places, for even and for odd messages, `place` bytes apart:
// a peer that has raised its flag for message n has taken message n - 1 before.

#define PARCEL 4
#define PEER 3
#define IN_FLIGHT 4

template <class T> __device__ void move_as(char* to, const char* from, integer bytes) {
    const integer count = bytes / sizeof(T), step = gridDim.x * blockDim.x;
    integer n = blockIdx.x * blockDim.x + threadIdx.x;
    T* const target = (T*)to;
    const T* const source = (const T*)from;
    for (; n + (IN_FLIGHT - 1) * step < count; n += IN_FLIGHT * step) {
        T values[IN_FLIGHT];
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; k++) values[k] = __ldcg(source + n + k * step);
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; k++) target[n + k * step] = values[k];
    }
    for (; n < count; n += step) target[n] = __ldcg(source + n);
}

__device__ void move(integer to, integer from, integer bytes) {
    const integer all = to | from | bytes;
    if (all % 16 == 0)
        move_as<longlong2>((char*)to, (const char*)from, bytes);
    else if (all % 8 == 0)
        move_as<integer>((char*)to, (const char*)from, bytes);
    else
        move_as<int>((char*)to, (const char*)from, bytes);
}

__device__ integer nanoseconds() {
    integer now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// `state` counts the blocks that have sent, and the blocks that have finished; then it says whether
// a peer was silent until the deadline (ns), after which there are no more exchanges. `lost`, in the
// memory of the host, tells it so. If the silence is `fatal`, nothing else follows either.
extern "C" __global__ void exchange(const integer* parcels, integer leaving, integer arriving,
                                    const integer* peers, integer count, integer place,
                                    integer* state, volatile integer* lost, integer deadline,
                                    integer fatal) {
    __shared__ integer number[MOST_PEERS + 1];  // the last one of this process itself
    const int thread = threadIdx.x;
    if (state[2]) return;
    if (thread <= count) number[thread] = thread < count ? *(integer*)peers[PEER * thread + 2] : 0;
    __syncthreads();
    for (int n = 0; n < leaving; n++) {
        const integer* row = parcels + PARCEL * n;
        move(row[1] + (number[row[3]] & 1) * place, row[0], row[2]);
    }
    __threadfence_system();
    __syncthreads();
    if (!thread && atomicAdd((unsigned long long*)state, 1ull) == gridDim.x - 1) {
        state[0] = 0;
        __threadfence_system();
        for (int p = 0; p < count; p++) *(volatile integer*)peers[PEER * p] = number[p] + 1;
    }
    if (thread < count) {
        const volatile integer* flag = (const volatile integer*)peers[PEER * thread + 1];
        const integer began = nanoseconds();
        while (*flag <= number[thread])
            if (nanoseconds() - began > deadline) {
                *lost = state[2] = 1;
                __threadfence_system();
                if (fatal) __trap();
                break;
            }
        __threadfence_system();
    }
    __syncthreads();
    for (int n = leaving; n < leaving + arriving; n++) {
        const integer* row = parcels + PARCEL * n;
        move(row[0], row[1] + (number[row[3]] & 1) * place, row[2]);
    }
    __syncthreads();
    if (!thread && atomicAdd((unsigned long long*)(state + 1), 1ull) == gridDim.x - 1) {
        state[1] = 0;
        for (int p = 0; p < count; p++) *(integer*)peers[PEER * p + 2] = number[p] + 1;
    }
}
