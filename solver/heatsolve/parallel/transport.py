"""How layers of ghosts and blocks travel between the processes of a run.

Three transports carry the same bits. NCCL moves memory of GPUs in the order of their own queues,
unseen by the host. MPI moves memory of GPUs as it is, where a transfer has shown that it can; else
it moves memory of the host, through which devices stage their messages.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from heatsolve.backends import Backend, Message, Nccl
from heatsolve.errors import InputError
from heatsolve.parallel.ranks import Ranks
from heatsolve.stencil.language import copy

PROVING = (64, 1 << 17)
"""Elements of the arrays that prove a transfer: libraries send few and many in different ways."""


@dataclass
class Peer:
    """The messages to and from another process; the tags tell both ends of an axis."""

    leaving: Message
    arriving: Message
    rank: int
    tags: tuple[int, int]


class Transport:
    """Messages by MPI; `direct`: of memory of devices."""

    nccl: Nccl | None = None
    """The library that moves memory in the queue of a device, if there is one."""
    packs = True
    """Whether it only moves messages, so that layers are packed, and not parts of any array."""
    replays = False
    """Whether a device that plays its work back plays back the messages, too."""
    waited = 0.0
    """Seconds in which this process only waited for messages of others."""
    hidden = 0.0
    """Seconds of work while messages were under way."""

    def __init__(self, ranks: Any, direct: bool = False):
        self._ranks, self._direct = ranks, direct
        self._under_way: list[Any] = []
        self._sent_at = 0.0

    def restart_clocks(self) -> None:
        self.waited = self.hidden = 0.0

    def name(self, backend: Backend) -> str:
        """As a report says it."""
        if not backend.on_device:
            return "MPI"
        return "MPI from GPU to GPU" if self._direct else "MPI through pinned memory"

    def message(self, backend: Backend, shape: Sequence[int]) -> Message:
        """A message of zeros."""
        return backend.message(shape, self._direct)

    def start(self, peers: Sequence[Peer]) -> None:
        """Send the packed messages to all peers, and receive; one exchange at a time."""
        for peer in peers:
            peer.leaving.to_buffer()
        # Only now: a device may have been unpacking what arrived last until it came to these.
        comm = self._ranks.comm
        self._under_way = [comm.Irecv(p.arriving.buffer, p.rank, p.tags[1]) for p in peers]
        self._under_way += [comm.Isend(p.leaving.buffer, p.rank, p.tags[0]) for p in peers]
        self._sent_at = time.perf_counter()

    def finish(self, peers: Sequence[Peer]) -> None:
        """Wait until the messages have left and arrived, and may be unpacked."""
        began = time.perf_counter()
        self.hidden += began - self._sent_at
        for request in self._under_way:
            self._ranks.wait(request)
        self.waited += time.perf_counter() - began
        for peer in peers:
            peer.arriving.from_buffer()

    def exchange(self, peers: Sequence[Peer]) -> None:
        """Both halves of an exchange."""
        self.start(peers)
        self.finish(peers)

    def gather(self, leaving: Message, arriving: Message) -> None:
        """Bring the messages of all processes into one, in the order of ranks."""
        leaving.to_buffer()
        self._ranks.collective("Allgather", leaving.buffer, arriving.buffer)
        arriving.from_buffer()


class QueuedTransport(Transport):
    """Messages that a device moves itself, between the sweeps before and after them.

    The messages of `start` go beside the work that is queued until `finish`.
    """

    nccl: Nccl
    packs = False

    def __init__(self, nccl: Nccl):
        self.nccl = nccl

    def name(self, backend: Backend) -> str:
        return self.nccl.name

    def message(self, backend: Backend, shape: Sequence[int]) -> Message:
        array = backend.zeros(shape)
        return Message(array, array)

    def start(self, peers: Sequence[Peer]) -> None:
        # NCCL pairs by order, and both sides may face one process: what leaves here below arrives
        # there above.
        leaving, arriving = (sorted(peers, key=lambda peer: peer.tags[n]) for n in (0, 1))
        self.nccl.exchange(
            [(peer.leaving.array, peer.rank) for peer in leaving],
            [(peer.arriving.array, peer.rank) for peer in arriving],
        )

    def finish(self, peers: Sequence[Peer]) -> None:
        self.nccl.rejoin()

    def gather(self, leaving: Message, arriving: Message) -> None:
        self.nccl.gather(leaving.array, arriving.array)


def transport_of(ranks: Ranks, backend: Backend, wanted: str = "auto") -> Transport:
    """The transport of a run's processes, by default the fastest that works; all ask together.

    Raises InputError where the one that is wanted ("nccl", "mpi" or "host") does not work.
    """
    transport: Transport
    reason = "there is no GPU"
    if wanted in ("auto", "nccl"):
        nccl = None
        if all(ranks.gather(backend.on_device)):
            nccl, reason = backend.connect(ranks)
        if nccl is not None:
            transport = QueuedTransport(nccl)
            if proved(transport, ranks, backend):
                transport.replays = proved(transport, ranks, backend, played_back=True)
                # A library that has failed inside a graph may send nothing more.
                if transport.replays or proved(transport, ranks, backend):
                    return transport
            reason = "what it sent did not arrive"
        if wanted == "nccl":
            raise InputError(f"parallel.transport: NCCL does not work here ({reason})")
    if wanted in ("auto", "mpi"):
        claims = backend.on_device and ranks.claims_device_memory()
        transport = Transport(ranks, direct=True)
        # An MPI that cannot would crash on the first pointer, so the library is asked before.
        if all(ranks.gather(claims)) and proved(transport, ranks, backend):
            return transport
        if wanted == "mpi" and any(ranks.gather(backend.on_device)):
            raise InputError("parallel.transport: this MPI does not move memory of GPUs")
    return Transport(ranks)


def proved(transport: Transport, ranks: Ranks, backend: Backend, played_back: bool = False) -> bool:
    """Whether all messages arrive unchanged: each process sends to the next one, and all compare.

    `played_back`: whether they also do where a device plays the exchange back.
    """
    result = True
    for count in PROVING:
        sides = ring(transport, backend, count, ranks)
        # What leaves on one side arrives on the other, and is another by a half.
        values = np.arange(count, dtype=backend.dtype)
        for side, half in zip(sides, (0.0, 0.5), strict=True):
            sent = backend.to_device(values + ranks.rank + half)
            backend.sweep(copy, side.leaving.array, ((0, count),), sent)
        exchange: Callable[[], None] = partial(transport.exchange, sides)
        if played_back:
            try:
                exchange = backend.replayed(exchange)
            except Exception:  # there are libraries whose work no graph can hold
                result = False
            if not all(ranks.gather(result)):  # nobody plays what another one has not
                return False
        exchange()
        for side, half in zip(sides, (0.5, 0.0), strict=True):
            arrived = backend.to_host(side.arriving.array)
            result &= np.array_equal(arrived, values + side.rank + half)
    return all(ranks.gather(result))


def ring(transport: Transport, backend: Backend, count: int, ranks: Ranks) -> list[Peer]:
    """The two sides of this process where each exchanges `count` elements with the next one."""
    sides = []
    for number, step in enumerate((-1, 1)):
        leaving, arriving = (transport.message(backend, (count,)) for _ in range(2))
        peer = (ranks.rank + step) % ranks.size
        sides.append(Peer(leaving, arriving, peer, (1 - number, number)))
    return sides
