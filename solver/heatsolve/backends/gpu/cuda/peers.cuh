// Messages between the GPUs of one host, by stores into each other's memory.
//
// A row of `parcels`: the address of an array, the address of its place in a mailbox, its bytes,
// and the block of its first tile. A row of `peers`: the first leaving parcel and the parcel behind
// the last, the same for arriving parcels, which follow, the flags of this process in the peer's
// memory (0: the peer is this process), the peer's flags here, the counts, the number of blocks,
// and the time (ns) that the first block has waited for the peer. A mailbox has two places, for
// even and for odd messages, `place` bytes apart: a peer that sends a message has taken the message
// before it.
//
// A block exchanges its tiles of all parcels with, and waits for, only the same block of the peer.
// The tiles of a parcel begin at the block behind those of the parcel before it.

#define PARCEL 4
#define ROWS 64
#define PEER 9
#define TILE (16 * THREADS)
#define IN_FLIGHT 4

template <class T>
__device__ void move_as(T* to, const T* from, integer bytes, integer block, integer blocks) {
    const integer in_tile = TILE / sizeof(T), count = bytes / sizeof(T), step = blocks * in_tile;
    for (integer in_it = threadIdx.x; in_it < in_tile; in_it += THREADS) {
        integer n = block * in_tile + in_it;
        for (; n + (IN_FLIGHT - 1) * step < count; n += IN_FLIGHT * step) {
            T values[IN_FLIGHT];
#pragma unroll
            for (int k = 0; k < IN_FLIGHT; k++) values[k] = __ldcg(from + n + k * step);
#pragma unroll
            for (int k = 0; k < IN_FLIGHT; k++) to[n + k * step] = values[k];
        }
        for (; n < count; n += step) to[n] = __ldcg(from + n);
    }
}

__device__ void move(integer to, integer from, integer bytes, integer block, integer blocks) {
    if (block * TILE >= bytes) return;
    const integer all = to | from | bytes;
    if (all % 16 == 0)
        move_as((longlong2*)to, (const longlong2*)from, bytes, block, blocks);
    else if (all % 8 == 0)
        move_as((integer*)to, (const integer*)from, bytes, block, blocks);
    else
        move_as((int*)to, (const int*)from, bytes, block, blocks);
}

// The number of a block counted from the block of a parcel's first tile.
__device__ integer counted_from(integer first, integer block, integer blocks) {
    return block < first ? block + blocks - first : block - first;
}

// `state`, `lost`, `deadline` and `fatal`: see `await`. After a silence there are no more
// exchanges.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    exchange(const integer* parcels, const integer* peers, integer place, integer* state,
             volatile integer* lost, integer deadline, integer fatal) {
    const integer* const peer = peers + PEER * blockIdx.y;
    const integer block = blockIdx.x, first = peer[0], last = peer[3], there = peer[4];
    const integer blocks = peer[7];
    if (block >= blocks || __syncthreads_or(*state != 0)) return;  // all threads, or none
    // All rows at once: each read from memory takes half a microsecond.
    __shared__ integer rows[ROWS * PARCEL];
    for (integer n = threadIdx.x; n < ROWS * PARCEL && n < (last - first) * PARCEL; n += THREADS)
        rows[n] = parcels[first * PARCEL + n];
    integer* const counts = (integer*)peer[6];
    const integer number = there ? counts[0] : 0, shift = (number & 1) * place;
    const integer sent = peer[1], taken = peer[2];
    auto row_of = [&](integer n) {
        return n - first < ROWS ? rows + PARCEL * (n - first) : parcels + PARCEL * n;
    };
    __syncthreads();
    for (integer n = first; n < sent; n++) {
        const integer* const row = row_of(n);
        move(row[1] + shift, row[0], row[2], counted_from(row[3], block, blocks), blocks);
    }
    if (there) {
        __threadfence_system();
        __syncthreads();
        if (!threadIdx.x) {
            *(volatile integer*)(there + FLAG * block) = number + 1;
            const volatile integer* flag = (const volatile integer*)(peer[5] + FLAG * block);
            const integer waited =
                await([=] { return *flag > number; }, state, lost, deadline, fatal);
            if (!block) *(integer*)peer[8] += waited;
            __threadfence_system();
        }
        __syncthreads();
    }
    for (integer n = taken; n < last; n++) {
        const integer* const row = row_of(n);
        move(row[0], row[1] + shift, row[2], counted_from(row[3], block, blocks), blocks);
    }
    if (!there) return;
    __syncthreads();
    if (!threadIdx.x) count_message(counts, blocks);
}
