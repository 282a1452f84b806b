"""Peer memory: its messages, and its kernel as C++ between threads that stand for GPUs."""

import ctypes
import random
import shutil
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from queue import Queue
from threading import Barrier
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from emulated import TIMER, Emulated, compiled

from heatsolve.backends import exact_sums as sums
from heatsolve.backends.gpu import peers
from heatsolve.backends.gpu.emit import GROUPS, check_source, peer_source
from heatsolve.backends.gpu.launch import SPREAD, Launch
from heatsolve.backends.gpu.links import Link
from heatsolve.backends.gpu.peers import FLAG, PeerMemory, Slabs, connect_peers, head_of

# One thread a block: what only concerns the threads of a block is left out.
HEAD = """
#include <atomic>
#include <chrono>
#include <cstdlib>
#define __device__
#define __global__
#define __launch_bounds__(...)
#define __shared__ static thread_local
#define __syncthreads()
#define __syncthreads_or(condition) (condition)
#define __threadfence_system() std::atomic_thread_fence(std::memory_order_seq_cst)
#define __trap() abort()
struct longlong2 { long long x, y; };
struct Triple { int x, y; };
static thread_local Triple threadIdx, blockIdx;
template <class T> T __ldcg(const T* p) { return *p; }
static unsigned long long atomicAdd(unsigned long long* p, unsigned long long v) {
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);
}
"""
CLOCK = "now = std::chrono::steady_clock::now().time_since_epoch().count();"
LAUNCH = """
extern "C" void launch(int x, int y, const integer* parcels, const integer* peers, integer place,
                       integer* state, integer* lost, integer deadline, integer fatal) {
    threadIdx = {0, 0};
    for (blockIdx.y = 0; blockIdx.y < y; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < x; blockIdx.x++)
            exchange(parcels, peers, place, state, lost, deadline, fatal);
}
"""


@cache
def library():
    source = peer_source(1, FLAG)
    assert TIMER in source and "#define ROWS 64" in source
    source = source.replace("#define ROWS 64", "#define ROWS 3")  # others are read from memory
    text = HEAD + source.replace(TIMER, CLOCK) + LAUNCH
    return ctypes.CDLL(str(compiled("so", text, "-O2", "-shared"))).launch


class Backend:
    """Arrays of the host, and the kernel as it runs there."""

    integer = int

    def compiled(self, source, name):
        def queue(launch, args):
            given = [a.ctypes.data if isinstance(a, np.ndarray) else int(a) for a in args]
            library()(*launch.grid[:2], *map(ctypes.c_longlong, given))

        return queue

    def pinned(self, shape, dtype):
        return np.zeros(shape, dtype)

    def integers(self, count):
        return np.zeros(count, np.int64)

    def to_host(self, array):
        return array

    def zero(self, array):
        array[:] = 0

    def stored(self, values):
        return values

    def address(self, array):
        return array.ctypes.data

    def part(self, array, shape, first):
        return array.reshape(-1)[first : first + shape[0]]

    def in_line(self, work):
        work(0)

    aside = in_line

    def rejoin(self):
        pass


@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler, g++")
@pytest.mark.parametrize(("size", "in_host"), [(2, 2), (3, 3), (5, 5), (4, 2)])
def test_messages_arrive_as_they_were_sent(size, in_host, monkeypatch):
    """Of all lengths, in one part or in several, from both neighbours in a ring, many in a row;
    from one host to another by the other link."""
    monkeypatch.setattr(peers, "PLACE", 1 << 15)
    monkeypatch.setattr(peers, "MOST_BLOCKS", 8)
    monkeypatch.setattr(peers, "BLOCKS_BESIDE", 2)  # of exchanges that are started
    library()  # before threads ask for it
    bytes_of_slab = head_of(in_host) + 2 * peers.PLACE * in_host
    slabs = [np.zeros(bytes_of_slab // 8 + 2, np.int64) for _ in range(size)]
    addresses = [(slab.ctypes.data + 15) // 16 * 16 for slab in slabs]
    together, post, rows = Barrier(size), defaultdict(Queue), [np.zeros(0)] * size

    class Far(Link):
        name = "the post"

        def _transfers(self, leaving, arriving, beside=False):
            def work(stream):
                for array, peer in leaving:
                    post[self.rank, peer].put(array.copy())
                for array, peer in arriving:
                    array[:] = post[peer, self.rank].get(timeout=60)

            return work

        def gather(self, mine, all_of_them):
            rows[self.rank] = mine
            together.wait(60)
            all_of_them[:] = np.concatenate(rows)
            together.wait(60)

    def values(rank, side, number, shape, dtype):
        of = np.random.default_rng([rank, side, number])
        return of.integers(-(2**30), 2**30, shape).astype(dtype)

    def process(rank):
        first = rank // in_host * in_host
        here = {peer: addresses[peer] for peer in range(first, first + in_host)}
        far = Far(Backend(), size) if in_host < size else None
        if far is not None:
            far.rank = rank
        link = PeerMemory(Backend(), size, Slabs(rank, here), far)
        assert link.name == "GPU peer memory" + " and the post" * (in_host < size)
        draw = random.Random(7)  # the same in all processes
        wrong = 0
        for number in range(60):
            dtype = draw.choice((np.float64, np.float32))
            count, sizes = (
                draw.choice((1, 3)),
                [draw.choice((1, 7, 130, 5000, 9001)) for _ in "abc"],
            )
            shapes = [(n,) for n in sizes[:count]]
            below, above = (rank - 1) % size, (rank + 1) % size
            # As `QueuedTransport` pairs them: what leaves below arrives there above.
            leaving = [
                (values(rank, 2 * k + side, number, shape, dtype), peer)
                for side, peer in ((0, below), (1, above))
                for k, shape in enumerate(shapes)
            ]
            arriving = [
                (np.zeros(shape, dtype), peer) for peer in (above, below) for shape in shapes
            ]
            if number % 2:
                link.exchange(leaving, arriving)
            else:
                link.start(leaving, arriving)
                link.rejoin()
            expected = [
                values(peer, 2 * k + side, number, shape, dtype)
                for side, peer in ((0, above), (1, below))
                for k, shape in enumerate(shapes)
            ]
            wrong += sum(
                not np.array_equal(got, wanted)
                for (got, _), wanted in zip(arriving, expected, strict=True)
            )
            if number % 5 == 0:
                mine, everything = np.full(sizes[0], float(rank)), np.zeros(size * sizes[0])
                link.gather(mine, everything)
                wrong += not np.array_equal(everything, np.repeat(np.arange(size), sizes[0]))
            if number % 17 == 0:
                together.wait(60)
        assert link.waited > 0.0
        link.restart_clock()
        assert link.waited == 0.0
        return wrong, link.failure

    with ThreadPoolExecutor(size) as pool:
        assert list(pool.map(process, range(size))) == [(0, "")] * size


CHECKS = """
extern "C" __global__ void sweeps(const integer* gate, integer* registers, integer* state,
                                  double limit, integer several, integer* const* list,
                                  integer* rows, const integer* peers) {
    if (several)
        merge_several(list, rows, peers);
    else
        check(registers, SPREAD, 0, limit, state, state + 4, state + 3, 0, peers);
}
"""


WAITS = "const integer waited ="
LINGERS = "{ const integer began = nanoseconds(); while (nanoseconds() - began < 2000000); }"


def checks_of(rank, lingers=False):
    """The kernels of checks of a process, which have variables of their own; `lingers`: 2 ms before
    it reads what has come."""
    source = "#undef __shared__\n#define __shared__ static\n" + check_source() + CHECKS
    assert source.count(WAITS) == 1
    source = source.replace(WAITS, LINGERS + WAITS) if lingers else source
    return Emulated(late=rank % 2 == 1).c_kernel(source + f"// {rank}", 0)


@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler, g++")
@pytest.mark.parametrize("size", [2, 3, GROUPS + 1])
def test_checks_merge_the_registers_of_all_processes(size, monkeypatch):
    """Between exchanges; behind a closed gate nothing travels; several registers at once."""
    monkeypatch.setattr(peers, "PLACE", 1 << 15)
    library()
    slabs = [
        np.zeros((head_of(size) + 2 * peers.PLACE * size) // 8 + 2, np.int64) for _ in "a" * size
    ]
    addresses = {rank: (slab.ctypes.data + 15) // 16 * 16 for rank, slab in enumerate(slabs)}
    kernels = [checks_of(rank) for rank in range(size)]
    block = GROUPS * sums.WIDTH, 1, 1

    def register(*seed):
        """Copies of a register, with a largest value and terms of a sum."""
        random, copies = np.random.default_rng(seed), np.zeros((SPREAD, sums.WIDTH), np.int64)
        for copy in (1, 9, SPREAD - 1):
            sums.add_largest(random.random(3) / (1 + seed[0]), copies[copy])
            sums.add_block(random.normal(size=5), copies[copy])
        return copies

    def merged(*seed):
        return sums.merge(np.array([sums.merge(register(rank, *seed)) for rank in range(size)]))

    def process(rank):
        link = PeerMemory(Backend(), size, Slabs(rank, addresses))
        table, kernel = link.peer_table, kernels[rank]
        state, right = np.zeros(4 + 4 * sums.WIDTH, np.int64), True
        none = np.zeros(1, np.int64)
        limit = sums.max_of(merged(2))  # met by the third check, and perhaps by an earlier one
        passed = 1 + next(n for n in range(3) if sums.max_of(merged(n)) <= limit)
        for number in range(4):
            mine = register(rank, number)
            args = mine.reshape(-1), state, limit, 0, none, none, table
            kernel(Launch((1, 1, 1), block, ()), args)
            right &= mine.any() == (number >= passed)
            arrived = np.zeros(7)
            below, above = (rank - 1) % size, (rank + 1) % size
            link.exchange([(np.full(7, 1.0 + rank), below)], [(arrived, above)])
            right &= (arrived == 1.0 + above).all()
        right &= state[:4].tolist() == [1, passed, 0, 0]
        for number, row in enumerate(state[4:].reshape(4, -1)):
            right &= np.array_equal(row, merged(number) if number < passed else 0 * row)
        several = [register(rank, 7, n) for n in range(3)]
        rows = np.zeros((3, sums.WIDTH), np.int64)
        places = np.array([each.ctypes.data for each in several])
        args = none, state, limit, 1, places, rows, table
        kernel(Launch((3, 1, 1), block, ()), args)
        right &= all(np.array_equal(row, merged(7, n)) for n, row in enumerate(rows))
        right &= not np.any(several)
        return bool(right), link.failure, link.waited > 0.0

    with ThreadPoolExecutor(size) as pool:
        assert list(pool.map(process, range(size))) == [(True, "", True)] * size


@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler, g++")
def test_registers_are_read_before_the_next_ones_come(monkeypatch):
    """One message right behind the other, of one block to four; one process is slow to read."""
    size, width = 3, sums.WIDTH
    monkeypatch.setattr(peers, "PLACE", 1 << 15)
    monkeypatch.setattr(peers, "PATIENCE", dict.fromkeys((False, True), 5.0))
    library()
    count = (head_of(size) + 2 * peers.PLACE * size) // 8 + 2
    slabs = [np.zeros(count, np.int64) for _ in range(size)]
    addresses = {rank: (slab.ctypes.data + 15) // 16 * 16 for rank, slab in enumerate(slabs)}
    kernels = [checks_of(rank, lingers=rank == 1) for rank in range(size)]

    def process(rank):
        link, none, wrong = PeerMemory(Backend(), size, Slabs(rank, addresses)), np.zeros(1), 0
        for number in range(1, 25):
            blocks = 1 + number % 4
            copies = [np.full(SPREAD * width, (1 + rank) * number) for _ in range(blocks)]
            places = np.array([each.ctypes.data for each in copies])
            rows, block = np.zeros((blocks, width), np.int64), (GROUPS * width, 1, 1)
            args = none, none, -1.0, 1, places, rows, link.peer_table
            kernels[rank](Launch((blocks, 1, 1), block, ()), args)
            wanted = np.full(width, (1 + 2 + 3) * number * SPREAD)
            wanted[[sums.TOP, sums.LARGEST]] = 3 * number
            wrong += not (rows == wanted).all()
        return wrong, link.failure

    with ThreadPoolExecutor(size) as pool:
        assert list(pool.map(process, range(size))) == [(0, "")] * size


@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler, g++")
def test_a_silent_peer_is_given_up(monkeypatch):
    monkeypatch.setattr(peers, "PATIENCE", {False: 0.05})
    slabs = [np.zeros(head_of(2) // 8 + 4 * peers.PLACE // 8, np.int64) for _ in range(2)]
    addresses = {rank: slab.ctypes.data for rank, slab in enumerate(slabs)}
    link = PeerMemory(Backend(), 2, Slabs(0, addresses))
    monkeypatch.setitem(peers.PATIENCE, True, 0.05)
    assert not link.failure
    for _ in range(2):  # the second time at once
        link.exchange([(np.ones(3), 1)], [(np.zeros(3), 1)])
    assert "another process has sent nothing" in link.failure


@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler, g++")
def test_a_check_gives_up_a_silent_peer(monkeypatch):
    monkeypatch.setattr(peers, "PATIENCE", dict.fromkeys((False, True), 0.05))
    slabs = [np.zeros(head_of(2) // 8 + 4 * peers.PLACE // 8, np.int64) for _ in range(2)]
    link = PeerMemory(Backend(), 2, Slabs(0, {n: slab.ctypes.data for n, slab in enumerate(slabs)}))
    state, none = np.zeros(4 + 2 * sums.WIDTH, np.int64), np.zeros(1, np.int64)
    register = np.ones(SPREAD * sums.WIDTH, np.int64)
    for _ in range(2):
        args = register, state, -1.0, 0, none, none, link.peer_table
        checks_of(0)(Launch((1, 1, 1), (GROUPS * sums.WIDTH, 1, 1), ()), args)
    assert "another process has sent nothing" in link.failure


def test_links_to_many_or_far_processes_have_no_table():
    """A group of threads has one peer."""
    for size, far in ((GROUPS + 2, None), (4, Link)):
        slabs = Slabs(0, dict.fromkeys(range(size if far is None else 2), 4096))
        link = PeerMemory(Backend(), size, slabs, far and SimpleNamespace(name="far"))
        assert link.peer_table is None


def test_slabs_are_mapped_once_and_cleared_for_each_run(monkeypatch):
    class Two:
        rank, size = 0, 2
        place = "node", "bus 1"

        def gather(self, value):
            if isinstance(value, tuple) and len(value) == 3:
                return [value, ("", self.place, value[2])]
            return [value, ("", b"handle") if isinstance(value, tuple) else value]

    class Other(Two):
        place = "another node", "bus 0"

    cleared, given = [], []
    runtime = SimpleNamespace(
        malloc=lambda size: given.append(size) or 4096, ipcGetMemHandle=lambda at: b"own",
        ipcOpenMemHandle=lambda handle: 8192, free=given.clear, deviceSynchronize=lambda: None,
        memset=lambda *args: cleared.append(args),
    )  # fmt: skip
    cuda = ModuleType("cupy.cuda")
    cuda.runtime = runtime
    cuda.Device = lambda: SimpleNamespace(pci_bus_id="bus 0")
    cupy = ModuleType("cupy")
    cupy.cuda = cuda
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setattr(peers, "_SLABS", {})
    monkeypatch.setattr("platform.node", lambda: "node")
    for _ in range(2):
        link, reason = connect_peers(Backend(), Two())
        assert link is not None and not reason
    assert given == [head_of(2) + 4 * peers.PLACE]
    assert cleared == [(4096, 0, head_of(2))] * 2
    assert connect_peers(Backend(), Other()) == (None, "each host has one process")
    Other.place = "node", "bus 0"
    assert connect_peers(Backend(), Other()) == (None, "processes share a GPU")


def test_messages_are_cut_where_their_place_ends(monkeypatch):
    """Both ends cut alike, whatever the addresses; parcels begin at even places."""
    monkeypatch.setattr(peers, "PLACE", 64)
    sizes = [(24, 1), (100, 1), (8, 2), (64, 1), (4, 2)]
    address, parcels = 1000, []
    for size, peer in sizes:
        parcels.append((address, size, peer))
        address += size
    found = list(peers.parts_of(parcels))
    for parcel, (size, peer) in zip(parcels, sizes, strict=True):
        begin = parcel[0]
        of_it = [part for part in found if begin <= part[1] < begin + size]
        assert sum(part[3] for part in of_it) == size
        assert all(part[4] == peer for part in of_it)
        number, _, place, *_ = of_it[0]
        assert (64 * number + place) % 16 == 0
    taken = {}
    for number, _, place, size, peer in found:
        assert 0 < size <= 64 - place
        for byte in range(place, place + size):
            assert (peer, number, byte) not in taken
            taken[peer, number, byte] = True
