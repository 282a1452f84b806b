"""How layers of ghosts and blocks travel between the processes of a run.

All transports carry the same bits. GPUs store into each other's memory, or use NCCL, in the order
of their own queues and without the host. MPI moves memory of GPUs directly if a test transfer has
shown that it can; otherwise it moves memory of the host, through which devices stage messages.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from heatsolve.backends import Backend, Link, Message
from heatsolve.errors import InputError
from heatsolve.parallel.ranks import Ranks
from heatsolve.stencil.language import copy

PROVING = (64, 1 << 17)
"""Elements of the messages of a test transfer: libraries send small and large ones differently."""

LINKS = {"peer": "GPU peer memory", "nccl": "NCCL"}
"""The links between GPUs by the names of a case, and in words."""
MEASURED, EXCHANGES, SERIES = 1 << 16, 20, 4
"""Elements of a message whose time is measured; exchanges in a series; number of series."""


@dataclass
class Peer:
    """The messages to and from another process; the tags tell the two ends of an axis apart."""

    leaving: Message
    arriving: Message
    rank: int
    tags: tuple[int, int]


class Transport:
    """Messages by MPI; `direct`: MPI moves the memory of devices."""

    link: Link | None = None
    """The link that moves memory in the queue of a device, if there is one."""
    packs = True
    """Whether layers must be packed into messages, because parts of arrays cannot be sent."""
    replays = False
    """Whether a device that plays its work back plays back the messages, too."""

    def __init__(self, ranks: Any, direct: bool = False):
        self._ranks, self._direct = ranks, direct
        self._under_way: list[Any] = []
        self._sent_at = self._waited = self._hidden = 0.0

    def restart_clocks(self) -> None:
        self._waited = self._hidden = 0.0

    def clocks(self) -> tuple[float | None, float | None]:
        """Seconds in which this process only waited for messages, and seconds of work while
        messages were under way; None: unknown."""
        return self._waited, self._hidden

    def name(self, backend: Backend) -> str:
        """The name of the transport in a report."""
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
        # Only now: until these copies a device may have been unpacking the last messages.
        comm = self._ranks.comm
        self._under_way = [comm.Irecv(p.arriving.buffer, p.rank, p.tags[1]) for p in peers]
        self._under_way += [comm.Isend(p.leaving.buffer, p.rank, p.tags[0]) for p in peers]
        self._sent_at = time.perf_counter()

    def finish(self, peers: Sequence[Peer]) -> None:
        """Wait until the messages have left and arrived, and may be unpacked."""
        began = time.perf_counter()
        self._hidden += began - self._sent_at
        for request in self._under_way:
            self._ranks.wait(request)
        self._waited += time.perf_counter() - began
        for peer in peers:
            peer.arriving.from_buffer()

    def exchange(self, peers: Sequence[Peer]) -> None:
        """Both halves of an exchange."""
        self.start(peers)
        self.finish(peers)

    def gather(self, leaving: Message, arriving: Message) -> None:
        """Gather the messages of all processes in one message, in the order of ranks."""
        leaving.to_buffer()
        self._ranks.collective("Allgather", leaving.buffer, arriving.buffer)
        arriving.from_buffer()


class HostTransport(Transport):
    """Messages by MPI between the sweeps of a host, recorded and played back together."""

    replays = True

    def __init__(self, ranks: Any, backend: Backend):
        super().__init__(ranks)
        self._backend = backend

    def clocks(self) -> tuple[float | None, float | None]:
        return self._waited, None

    def start(self, peers: Sequence[Peer]) -> None:
        self._backend.enqueue(partial(super().start, peers))

    def finish(self, peers: Sequence[Peer]) -> None:
        self._backend.enqueue(partial(super().finish, peers))

    def gather(self, leaving: Message, arriving: Message) -> None:
        self._backend.enqueue(partial(super().gather, leaving, arriving))


class QueuedTransport(Transport):
    """Messages that a device moves itself, between the sweeps before and after them.

    The messages of `start` travel beside the work that is queued before `finish`.
    """

    link: Link
    packs = False
    measured = ""
    """The times by which it was chosen, in words."""

    def __init__(self, link: Link):
        self.link = link

    @property
    def replays(self) -> bool:  # type: ignore[override]
        return self.link.replays

    def restart_clocks(self) -> None:
        self.link.restart_clock()

    def clocks(self) -> tuple[float | None, float | None]:
        return self.link.waited, None

    def name(self, backend: Backend) -> str:
        return self.link.name + self.measured

    def message(self, backend: Backend, shape: Sequence[int]) -> Message:
        array = backend.zeros(shape)
        return Message(array, array)

    def start(self, peers: Sequence[Peer]) -> None:
        self.link.start(*_parcels(peers))

    def exchange(self, peers: Sequence[Peer]) -> None:
        self.link.exchange(*_parcels(peers))

    def finish(self, peers: Sequence[Peer]) -> None:
        self.link.rejoin()

    def gather(self, leaving: Message, arriving: Message) -> None:
        self.link.gather(leaving.array, arriving.array)

    def spread(self, leaving: Message, arriving: Sequence[Message]) -> None:
        """Send a message to all processes, and receive one from each, by rank; to and from this
        process, too."""
        self.link.spread(leaving.array, [each.array for each in arriving])


def _parcels(peers: Sequence[Peer]) -> tuple[list[tuple[Any, int]], list[tuple[Any, int]]]:
    """The arrays that leave and that arrive, each with the process that it goes to or comes from.

    Links pair messages by their order, and both sides may face the same process: a message that
    leaves here below arrives there above.
    """
    leaving, arriving = (sorted(peers, key=lambda peer: peer.tags[n]) for n in (0, 1))
    return (
        [(peer.leaving.array, peer.rank) for peer in leaving],
        [(peer.arriving.array, peer.rank) for peer in arriving],
    )


def transport_of(ranks: Ranks, backend: Backend, wanted: str = "auto") -> Transport:
    """The transport of a run's processes, by default the fastest that works (asks all).

    Raises InputError where the `wanted` transport (a name of LINKS, "mpi" or "host") does not work.
    """
    found: dict[str, QueuedTransport] = {}
    for name, said in LINKS.items() if wanted in ("auto", *LINKS) else ():
        if wanted not in ("auto", name):
            continue
        link, reason = None, "there is no GPU"
        if all(ranks.gather(backend.on_device)):
            link, reason = backend.connect(ranks, name)
        if link is not None:
            reason = "what it sent did not arrive"
            queued = QueuedTransport(link)
            if proved(queued, ranks, backend):
                link.replays = proved(queued, ranks, backend, played_back=True)
                # A library that has failed inside a graph may send nothing more.
                if link.replays or proved(queued, ranks, backend):
                    found[name] = queued
        if wanted == name and not found:
            raise InputError(f"parallel.transport: {said} does not work here ({reason})")
    if found:
        fastest = fastest_of(list(found.values()), ranks, backend)
        fastest.link.trusted = True
        return fastest
    transport: Transport
    if wanted in ("auto", "mpi"):
        claims = backend.on_device and ranks.claims_device_memory()
        transport = Transport(ranks, direct=True)
        # An MPI that cannot move memory of devices would crash on the first pointer: ask first.
        if all(ranks.gather(claims)) and proved(transport, ranks, backend):
            return transport
        if wanted == "mpi" and any(ranks.gather(backend.on_device)):
            raise InputError("parallel.transport: this MPI does not move memory of GPUs")
    return Transport(ranks) if backend.on_device else HostTransport(ranks, backend)


def fastest_of(found: Sequence[QueuedTransport], ranks: Ranks, backend: Backend) -> QueuedTransport:
    """The transport with the shortest exchange, measured if there are several transports."""
    if len(found) == 1:
        return found[0]
    times = [seconds_of(transport, ranks, backend) for transport in found]
    (time, fastest), *others = sorted(zip(times, found, strict=True), key=lambda pair: pair[0])
    size = MEASURED * backend.dtype.itemsize / 1e6
    compared = "".join([f"; {each.link.name} {1e6 * other:.0f}" for other, each in others])
    fastest.measured = f" ({1e6 * time:.0f} us for {size:.2g} MB{compared})"
    return fastest


def seconds_of(transport: Transport, ranks: Ranks, backend: Backend) -> float:
    """The seconds of an exchange with both neighbours: the least mean of a few series, the most of
    all processes."""
    sides, seconds = ring(transport, backend, MEASURED, ranks), []

    def series() -> None:
        for _ in range(EXCHANGES):
            transport.exchange(sides)

    play = backend.replayed(series) if transport.replays else series
    for _ in range(SERIES):
        backend.sync()
        ranks.gather(None)
        began = time.perf_counter()
        play()
        backend.sync()
        seconds.append((time.perf_counter() - began) / EXCHANGES)
    return max(ranks.gather(min(seconds)))


def proved(transport: Transport, ranks: Ranks, backend: Backend, played_back: bool = False) -> bool:
    """Whether messages to both neighbours in a ring arrive unchanged, on all processes, by an
    exchange at once and by its two halves.

    `played_back`: test exchanges that a device has recorded and plays back.
    """
    halves: Callable[[Sequence[Peer]], None] = partial(Transport.exchange, transport)
    result = True
    for count, way in itertools.product(PROVING, (transport.exchange, halves)):
        sides = ring(transport, backend, count, ranks)
        # A message that leaves on one side arrives on the other; the two sides differ by a half.
        values = np.arange(count, dtype=backend.dtype)
        for side, half in zip(sides, (0.0, 0.5), strict=True):
            sent = backend.to_device(values + ranks.rank + half)
            backend.sweep(copy, side.leaving.array, ((0, count),), sent)
        exchange: Callable[[], None] = partial(way, sides)
        if played_back:
            try:
                exchange = backend.replayed(exchange)
            except Exception:  # there are libraries whose work no graph can hold
                result = False
            if not all(ranks.gather(result)):  # all processes play it back, or none
                return False
        backend.sync()  # compilation may have taken other processes longer
        ranks.gather(None)
        exchange()
        for side, half in zip(sides, (0.5, 0.0), strict=True):
            arrived = backend.to_host(side.arriving.array)
            result &= np.array_equal(arrived, values + side.rank + half)
    return all(ranks.gather(result))


def ring(transport: Transport, backend: Backend, count: int, ranks: Ranks) -> list[Peer]:
    """The two sides of this process in a ring; each exchanges `count` elements with the next."""
    sides = []
    for number, step in enumerate((-1, 1)):
        leaving, arriving = (transport.message(backend, (count,)) for _ in range(2))
        peer = (ranks.rank + step) % ranks.size
        sides.append(Peer(leaving, arriving, peer, (1 - number, number)))
    return sides
