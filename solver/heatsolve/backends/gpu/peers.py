"""Peer memory: transfers between the GPUs of one host by stores into each other's memory.

Each process has a slab of memory that the others map (CUDA IPC), with a mailbox and a flag for each
of them. An exchange is one kernel: it stores what leaves into the mailboxes of the peers, raises
its flags there, waits for theirs, and takes what has arrived. The host plays no part, so graphs
hold exchanges as they hold sweeps; messages are counted in the memory of the device, and a peer
that sends message n + 2 knows that message n was taken, because it has seen message n + 1.
"""

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from heatsolve.backends.gpu.emit import peer_source
from heatsolve.backends.gpu.launch import Launch
from heatsolve.backends.gpu.links import Link, Parcels, first_line

if TYPE_CHECKING:
    from heatsolve.backends.gpu.backend import DeviceBackend

MOST_PEERS = 32
"""Processes that one host may have: threads of a block, one for each peer."""
PLACE = 8 << 20
"""Bytes of a message; longer ones are sent in parts."""
LINE = 128
"""Bytes from one flag to the next, so that each lies in a line of the cache of its own."""
VECTOR = 16
"""Bytes that a thread moves at once; parcels begin at a multiple of them in a mailbox."""
THREADS, MOST_BLOCKS = 512, 64
PATIENCE = {False: 10.0, True: 900.0}
"""Seconds after which a silent peer is given up, while the link is proved and later on."""
_SLABS: dict[tuple[str, str, int], "Slabs"] = {}
"""The slabs of all runs of this process, by host, GPU and number of processes."""


@dataclass(frozen=True)
class Slabs:
    """The addresses of the slabs of all processes, in the order of ranks, as `rank` sees them.

    A slab holds, for each process, a flag and a count of messages, then the state of a kernel, and
    for each process a mailbox with places for an even and for an odd message. It lives as long as
    its process: a peer may still write to it.
    """

    rank: int
    addresses: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.addresses)

    @property
    def head(self) -> int:
        """Bytes before the mailboxes."""
        return (2 * self.size + 1) * LINE

    def flag(self, of: int, at: int) -> int:
        """The address of a process's flag in the slab of another one."""
        return self.addresses[at] + of * LINE

    def count(self, peer: int) -> int:
        """The address of the number of messages to and from a peer."""
        return self.addresses[self.rank] + (self.size + peer) * LINE

    @property
    def state(self) -> int:
        return self.addresses[self.rank] + 2 * self.size * LINE

    def mailbox(self, of: int, at: int) -> int:
        """The address, in the slab of a process, of what another one sends to it."""
        return self.addresses[at] + self.head + 2 * PLACE * of


class PeerMemory(Link):
    """Transfers by stores into the memory of peers; see the module."""

    name = "GPU peer memory"

    def __init__(self, backend: "DeviceBackend", slabs: Slabs):
        super().__init__(backend, slabs.size)
        self._slabs = slabs
        self._kernel = backend.compiled(peer_source(MOST_PEERS), "exchange")
        self._lost = backend.pinned((1,), np.int64)
        self._lost[:] = 0
        self._tables: dict[Any, list[tuple[Launch, tuple[Any, ...]]]] = {}

    def _transfers(self, leaving: Parcels, arriving: Parcels) -> Callable[[int], None]:
        kernels = self._kernels_of(leaving, arriving)  # now: no memory is stored during a capture

        def work(stream: int) -> None:
            for launch, args in kernels:
                self._kernel(launch, args)

        return work

    def gather(self, mine: Any, all_of_them: Any) -> None:
        rank, count = self._slabs.rank, mine.nbytes // mine.dtype.itemsize

        def part(number: int) -> Any:
            return self._backend.part(all_of_them, (count,), number * count)

        others = [peer for peer in range(self.size) if peer != rank]
        # What stays here travels along.
        leaving = [*[(mine, peer) for peer in others], (mine, rank)]
        self.exchange(leaving, [*[(part(peer), peer) for peer in others], (part(rank), rank)])
        self.rejoin()

    @property
    def failure(self) -> str:
        if not self._lost[0]:
            return ""
        return (
            f"another process has sent nothing for {PATIENCE[True]:.0f} s through GPU peer memory: "
            "it has ended, or waits for this one; parallel.transport = nccl takes another way"
        )

    def _kernels_of(
        self, leaving: Parcels, arriving: Parcels
    ) -> list[tuple[Launch, tuple[Any, ...]]]:
        """The launches of an exchange, one for each part of its longest message, with arguments."""
        address = self._backend.address
        both = [
            tuple([(address(array), array.nbytes, peer) for array, peer in parcels])
            for parcels in (leaving, arriving)
        ]
        key = (*both, self.trusted)
        if key not in self._tables:
            parts = [list(parts_of(parcels)) for parcels in both]
            numbers = sorted({number for pieces in parts for number, *_ in pieces})
            self._tables[key] = [
                self._kernel_of(*[[p for n, *p in pieces if n == number] for pieces in parts])
                for number in numbers
            ]
        return self._tables[key]

    def _kernel_of(
        self, leaving: Sequence[Sequence[int]], arriving: Sequence[Sequence[int]]
    ) -> tuple[Launch, tuple[Any, ...]]:
        """The launch of parts of parcels that all fit into their places."""
        slabs, integer, stored = self._slabs, self._backend.integer, self._backend.stored
        rank = slabs.rank
        own = [address for address, *_, peer in leaving if peer == rank]
        leaving = [piece for piece in leaving if piece[-1] != rank]
        peers = sorted({piece[-1] for piece in (*leaving, *arriving)} - {rank})
        row_of = {peer: row for row, peer in enumerate((*peers, rank))}
        rows = [
            (there, slabs.mailbox(rank, peer) + place, size, row_of[peer])
            for there, place, size, peer in leaving
        ]
        for here, place, size, peer in arriving:
            # From itself: a copy, whose source is no mailbox.
            box = own.pop(0) if peer == rank else slabs.mailbox(peer, rank) + place
            rows.append((here, box, size, row_of[peer]))
        about_peers = [
            (slabs.flag(rank, peer), slabs.flag(peer, rank), slabs.count(peer)) for peer in peers
        ]
        total = max(sum(row[2] for row in rows[: len(leaving)]), 1)
        blocks = min(-(-total // (2 * VECTOR * THREADS)), MOST_BLOCKS)
        numbers = len(leaving), len(arriving)
        args = (
            stored(np.array(rows, np.int64).reshape(-1)), *map(integer, numbers),
            stored(np.array(about_peers, np.int64).reshape(-1)), integer(len(peers)),
            integer(PLACE), integer(slabs.state), integer(self._lost.ctypes.data),
            integer(1e9 * PATIENCE[self.trusted]), integer(self.trusted),
        )  # fmt: skip
        return Launch((blocks, 1, 1), (THREADS, 1, 1), ()), args


def parts_of(parcels: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int, int, int, int]]:
    """Cut parcels (address, bytes, peer) where the place of a message to their peer ends.

    Yield the number of the message, the address, the place in it, the bytes and the peer.
    """
    filled: dict[int, int] = {}
    for address, size, peer in parcels:
        begin = -(-filled.get(peer, 0) // VECTOR) * VECTOR
        filled[peer] = begin + size
        done = 0
        while done < size:
            number, place = divmod(begin + done, PLACE)
            part = min(size - done, PLACE - place)
            yield number, address + done, place, part, peer
            done += part


def connect_peers(backend: "DeviceBackend", ranks: Any) -> tuple[PeerMemory | None, str]:
    """The `PeerMemory` of these processes, or why there is none; all ask together."""
    reason, place = "", ("", "")
    try:
        import cupy

        place = platform.node(), cupy.cuda.Device().pci_bus_id
    except Exception as error:
        reason = f"CuPy cannot be loaded: {first_line(error)}"
    key = (*place, ranks.size)
    answers = ranks.gather((reason, place, key in _SLABS))
    reasons = [reason for reason, *_ in answers if reason]
    if reasons:
        return None, reasons[0]
    if len({host for _, (host, _), _ in answers}) > 1 or ranks.size > MOST_PEERS:
        return None, f"it joins up to {MOST_PEERS} processes of one host"
    if len({place for _, place, _ in answers}) < ranks.size:
        return None, "processes share a GPU"
    runtime = cupy.cuda.runtime
    if not all(known for *_, known in answers):
        reason, slabs = mapped(runtime, ranks)
        if slabs is None:
            return None, reason
        _SLABS[key] = slabs
    slabs = _SLABS[key]
    # An earlier run may have ended amid an exchange.
    runtime.deviceSynchronize()
    ranks.gather(None)
    runtime.memset(slabs.addresses[slabs.rank], 0, slabs.head)
    runtime.deviceSynchronize()
    ranks.gather(None)
    return PeerMemory(backend, slabs), ""


def mapped(runtime: Any, ranks: Any) -> tuple[str, Slabs | None]:
    """A slab of this process and the slabs of the others, or why they cannot be mapped."""
    reason, own, handle = "", 0, b""
    size = (2 * ranks.size + 1) * LINE + 2 * PLACE * ranks.size
    try:
        own = runtime.malloc(size)
        handle = runtime.ipcGetMemHandle(own)
    except Exception as error:
        reason = first_line(error)
    handles = ranks.gather((reason, handle))
    addresses = [own] * ranks.size
    for rank, (why, other) in enumerate(handles):
        reason = reason or why
        if rank != ranks.rank and not reason:
            try:
                addresses[rank] = runtime.ipcOpenMemHandle(other)
            except Exception as error:
                reason = first_line(error)
    reason = next(filter(None, ranks.gather(reason)), "")
    if reason:
        if own:
            runtime.free(own)
        return reason, None
    return "", Slabs(ranks.rank, tuple(addresses))
