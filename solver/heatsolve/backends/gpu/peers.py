"""Peer memory: transfers between the GPUs of one host by stores into each other's memory.

Each process has a slab of memory that the other processes map (CUDA IPC), with a mailbox and flags
for each of them. An exchange is one kernel. Each of its blocks stores a share of the leaving data
into the mailbox of a peer, raises its flag there, waits for the flag of the peer's block, and
copies the data that have arrived. The host plays no part, so graphs hold exchanges as they hold
sweeps. Messages are counted in the memory of the device, and a peer that sends message n + 2 knows
that message n was taken, because it has received message n + 1 since. The kernels of checks
exchange registers themselves, by words that hold the number of their message, so without flags.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from heatsolve.backends.exact_sums import WIDTH
from heatsolve.backends.gpu.emit import GROUPS, peer_source
from heatsolve.backends.gpu.launch import Launch
from heatsolve.backends.gpu.links import GpuKey, Link, Parcels, connect_nccl, first_line, meeting

if TYPE_CHECKING:
    from heatsolve.backends.gpu.backend import DeviceBackend

PLACE = 16 << 20
"""The most bytes of a message; longer messages are sent in parts. The layers of the pressure and of
its right side on 256 squared, which two GPUs on a ring send each other, take 10.6 MB."""
MOST_BLOCKS = 192
"""The most blocks of a kernel. Each waits for a block of a peer, so all must run at once: a large
GPU has room for them."""
BLOCKS_BESIDE = 48
"""The most blocks of a kernel beside sweeps, which share the multiprocessors with it: few blocks
are enough to fill a link (H200)."""
FLAG, LINE, VECTOR = 32, 128, 16
"""Bytes of a flag and of the counts of a peer, so that no two share a cache line; and bytes that a
thread moves at once: in a mailbox parcels begin at multiples of VECTOR."""
MOST_REGISTERS = 32
"""The most registers of a kernel, each of which a block exchanges: a small GPU, too, has room for
these blocks at once."""
REGISTERS = MOST_REGISTERS * WIDTH * 16
"""Bytes of a place for registers: two words for each of their integers."""
THREADS, TILE = 512, 512 * VECTOR
"""Threads of a block, and the bytes that they move at once."""
PATIENCE = {False: 10.0, True: 900.0}
"""Seconds after which a silent peer is given up, before and after the link is `trusted`."""
_SLABS: dict[GpuKey, "Slabs"] = {}
"""The slabs of all runs of this process."""


@dataclass(frozen=True)
class Slabs:
    """The slabs of the processes of one host, mapped by process `rank` at `addresses`.

    A slab holds, for each process, a flag of each block, the counts of its messages, and a mailbox
    with a place for even and a place for odd messages, and two such places for registers, whose
    messages to all processes have one count; and the state of the kernels. The slab lives as long
    as its process, because a peer may still write to it.
    """

    rank: int
    addresses: Mapping[int, int]
    """By rank, in the same order for all processes."""

    @cached_property
    def _places(self) -> dict[int, int]:
        return {rank: place for place, rank in enumerate(self.addresses)}

    @property
    def head(self) -> int:
        """Bytes before the mailboxes."""
        return head_of(len(self.addresses))

    def flags(self, of: int, at: int) -> int:
        """The address of the flags of process `of` in the slab of process `at`."""
        return self.addresses[at] + self._places[of] * MOST_BLOCKS * FLAG

    def counts(self, peer: int) -> int:
        """The address of the number of messages to and from a peer, and of finished blocks."""
        return self._behind_flags + self._places[peer] * LINE

    @property
    def state(self) -> int:
        return self._behind_flags + len(self.addresses) * LINE

    @property
    def count_of_registers(self) -> int:
        return self.state + LINE

    def registers(self, of: int, at: int) -> int:
        """The address of the places for registers of process `of` in the slab of process `at`."""
        behind_lines = self.addresses[at] + head_of(len(self.addresses))
        return behind_lines - (1 + self._places[of]) * 2 * REGISTERS

    @property
    def _behind_flags(self) -> int:
        return self.addresses[self.rank] + len(self.addresses) * MOST_BLOCKS * FLAG

    def mailbox(self, of: int, at: int) -> int:
        """The address, in the slab of process `at`, of the mailbox for data from process `of`."""
        return self.addresses[at] + self.head + 2 * PLACE * self._places[of]


def head_of(size: int) -> int:
    """Bytes before the mailboxes in a slab for `size` processes."""
    return size * MOST_BLOCKS * FLAG + (size + 2) * LINE + size * 2 * REGISTERS


class PeerMemory(Link):
    """Transfers by stores into the memory of peers, see the module; to other hosts by NCCL."""

    most_registers = MOST_REGISTERS

    def __init__(self, backend: "DeviceBackend", size: int, slabs: Slabs, far: Link | None = None):
        """`far`: the link to the processes of other hosts, if there are any."""
        super().__init__(backend, size)
        self._slabs, self._far = slabs, far
        self.name = "GPU peer memory" + (f" and {far.name}" if far is not None else "")
        self._kernel = backend.compiled(peer_source(THREADS, FLAG), "exchange")
        self._lost = backend.pinned((1,), np.int64)
        self._lost[:] = 0
        self._waits = backend.integers(size)
        self._tables: dict[Any, list[tuple[Launch, tuple[Any, ...]]]] = {}

    def _transfers(
        self, leaving: Parcels, arriving: Parcels, beside: bool = False
    ) -> Callable[[int], None]:
        here = self._slabs.addresses
        out, taken = ([each for each in of if each[1] in here] for of in (leaving, arriving))
        beyond = [[each for each in of if each[1] not in here] for of in (leaving, arriving)]
        most = BLOCKS_BESIDE if beside else MOST_BLOCKS
        kernels = self._kernels_of(out, taken, most)  # now: no table is stored during a capture
        far = None
        if any(beyond):
            assert self._far is not None
            far = self._far._transfers(beyond[0], beyond[1], beside)

        def work(stream: int) -> None:
            if far is not None:
                far(stream)
            for launch, args in kernels:
                self._kernel(launch, args)

        return work

    def gather(self, mine: Any, all_of_them: Any) -> None:
        if self._far is not None:
            self._far.gather(mine, all_of_them)
            return
        part, count = self._backend.part, mine.nbytes // mine.dtype.itemsize
        # The same kernel copies this process's own part.
        self.spread(mine, [part(all_of_them, (count,), n * count) for n in range(self.size)])

    @cached_property
    def peer_table(self) -> Any:
        peers = [rank for rank in self._slabs.addresses if rank != self._slabs.rank]
        if self._far is not None or not 0 < len(peers) <= GROUPS:
            return None
        slabs, here = self._slabs, self._slabs.rank
        numbers = [len(peers), slabs.count_of_registers, REGISTERS // 8, *self._for_awaiting]
        for peer in peers:
            places = slabs.registers(here, peer), slabs.registers(peer, here)
            numbers += [*places, self._clock(peer)]
        return self._backend.stored(np.array(numbers, np.int64))

    @property
    def _for_awaiting(self) -> tuple[int, ...]:
        """What a kernel needs to wait for a peer: the state, `lost`, the deadline and `fatal`."""
        deadline = int(1e9 * PATIENCE[self.trusted])
        return self._slabs.state, self._lost.ctypes.data, deadline, self.trusted

    def _clock(self, peer: int) -> int:
        """The address of the time that kernels have waited for a peer."""
        return self._backend.address(self._waits) + peer * self._waits.dtype.itemsize

    @property
    def waited(self) -> float:
        return 1e-9 * float(max(self._backend.to_host(self._waits)))

    def restart_clock(self) -> None:
        self._backend.zero(self._waits)

    @property
    def failure(self) -> str:
        if not self._lost[0]:
            return ""
        return (
            f"another process has sent nothing for {PATIENCE[True]:.0f} s through GPU peer memory: "
            "it has ended, or waits for this one; parallel.transport = nccl takes another way"
        )

    def _kernels_of(
        self, leaving: Parcels, arriving: Parcels, most: int
    ) -> list[tuple[Launch, tuple[Any, ...]]]:
        """The launches of an exchange, one for each part of its longest message, with arguments;
        each has `most` blocks or fewer."""
        address = self._backend.address
        both = [
            tuple([(address(array), array.nbytes, peer) for array, peer in parcels])
            for parcels in (leaving, arriving)
        ]
        key = (*both, self.trusted, most)
        if key not in self._tables:
            parts = [list(parts_of(parcels)) for parcels in both]
            numbers = sorted({part.number for parts_of_one in parts for part in parts_of_one})
            self._tables[key] = [
                self._kernel_of(
                    [part for part in parts[0] if part.number == number],
                    [part for part in parts[1] if part.number == number],
                    most,
                )
                for number in numbers
            ]
        return self._tables[key]

    def _kernel_of(
        self, leaving: "Sequence[Part]", arriving: "Sequence[Part]", most: int
    ) -> tuple[Launch, tuple[Any, ...]]:
        """The launch for parts of parcels that fit into their places, with arguments."""
        slabs, backend, rank = self._slabs, self._backend, self._slabs.rank
        parcels: list[tuple[int, int, int, int]] = []
        about: list[tuple[int, ...]] = []
        peers = sorted({part.peer for part in (*leaving, *arriving)})
        for peer in peers:
            sent, taken = ([p for p in of if p.peer == peer] for of in (leaving, arriving))
            tiles = max(sum(part.tiles for part in of) for of in (sent, taken))
            # Both ends must find the same number; there are at most two neighbours along an axis.
            neighbours = min(2, self.size - 1)
            blocks = min(max(tiles, 1), most // max(neighbours, len(peers)))
            first = len(parcels)
            if peer == rank:  # a copy, without a mailbox
                here = zip(taken, sent, strict=True)
                parcels += [(to.address, of.address, to.size, 0) for to, of in here]
                about.append((first, first, first, len(parcels), 0, 0, 0, blocks, 0))
                continue
            parcels += rows_of(sent, slabs.mailbox(rank, peer), blocks)
            middle = len(parcels)
            parcels += rows_of(taken, slabs.mailbox(peer, rank), blocks)
            flags = slabs.flags(rank, peer), slabs.flags(peer, rank)
            rows = first, middle, middle, len(parcels)
            about.append((*rows, *flags, slabs.counts(peer), blocks, self._clock(peer)))
        tables = [backend.stored(np.array(rows, np.int64).reshape(-1)) for rows in (parcels, about)]
        launch = Launch((max(row[7] for row in about), len(about), 1), (THREADS, 1, 1), ())
        return launch, (*tables, *map(backend.integer, (PLACE, *self._for_awaiting)))


class Part(NamedTuple):
    """A part of a parcel: the number of its message, its address, and its place in the mailbox."""

    number: int
    address: int
    place: int
    size: int
    peer: int

    @property
    def tiles(self) -> int:
        return -(-self.size // TILE)


def rows_of(
    parts: Sequence[Part], mailbox: int, blocks: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield for each part its address, its address in a mailbox, its size, and its first block."""
    before = 0
    for part in parts:
        yield part.address, mailbox + part.place, part.size, before % blocks
        before += part.tiles


def parts_of(parcels: Sequence[tuple[int, int, int]]) -> Iterator[Part]:
    """Cut parcels (address, bytes, peer) where the place of a message to their peer ends."""
    filled: dict[int, int] = {}
    for address, size, peer in parcels:
        begin = -(-filled.get(peer, 0) // VECTOR) * VECTOR
        filled[peer] = begin + size
        done = 0
        while done < size:
            number, place = divmod(begin + done, PLACE)
            part = min(size - done, PLACE - place)
            yield Part(number, address + done, place, part, peer)
            done += part


def connect_peers(backend: "DeviceBackend", ranks: Any) -> tuple[PeerMemory | None, str]:
    """The `PeerMemory` of these processes, or why there is none; all processes call this."""

    def load() -> Any:
        from cupy.cuda import runtime

        return runtime

    met = meeting(ranks, load, "CuPy", _SLABS)
    reason, runtime, far = met.reason, met.library, None
    if not reason and len(set(met.hosts)) == ranks.size:
        reason = "each host has one process"
    elif not reason and len(set(met.hosts)) > 1:
        far, reason = connect_nccl(backend, ranks)
    if reason:
        return None, reason
    if not met.known:
        reason, made = mapped(runtime, ranks, met.hosts)
        if made is None:
            return None, reason
        _SLABS[met.key] = made
    slabs = _SLABS[met.key]
    # An earlier run may have ended amid an exchange.
    runtime.deviceSynchronize()
    ranks.gather(None)
    runtime.memset(slabs.addresses[slabs.rank], 0, slabs.head)
    runtime.deviceSynchronize()
    ranks.gather(None)
    return PeerMemory(backend, ranks.size, slabs, far), ""


def mapped(runtime: Any, ranks: Any, hosts: Sequence[str]) -> tuple[str, Slabs | None]:
    """Why the slabs of this host cannot be mapped, or "" and the slabs; `hosts`: hosts by rank."""
    reason, own, handle = "", 0, b""
    here = [rank for rank, host in enumerate(hosts) if host == hosts[ranks.rank]]
    try:
        own = runtime.malloc(head_of(len(here)) + 2 * PLACE * len(here))
        handle = runtime.ipcGetMemHandle(own)
    except Exception as error:
        reason = first_line(error)
    told = ranks.gather((reason, handle))
    reason, addresses = next(filter(None, [why for why, _ in told]), ""), dict.fromkeys(here, own)
    for rank in here if not reason else ():
        if rank != ranks.rank and not reason:
            try:
                addresses[rank] = runtime.ipcOpenMemHandle(told[rank][1])
            except Exception as error:
                reason = first_line(error)
    reason = next(filter(None, ranks.gather(reason)), "")
    if reason:
        if own:
            runtime.free(own)
        return reason, None
    return "", Slabs(ranks.rank, addresses)
