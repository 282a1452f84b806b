"""Links between GPUs, one for each process: transfers in the order of the GPUs' queues.

`Nccl`, through CuPy, is the link of this file; `PeerMemory` is another link.
"""

import ctypes
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from heatsolve.errors import MachineFailure

if TYPE_CHECKING:
    from heatsolve.backends.gpu.backend import DeviceBackend

PRIORITY = -5
"""The priority of the stream of transfers, above the stream of sweeps."""
Parcels = Sequence[tuple[Any, int]]
"""Contiguous arrays, each with the process that it goes to or comes from."""
GpuKey = tuple[str, str, int]
"""A host, a GPU, and the number of processes."""
_COMMUNICATORS: dict[GpuKey, Any] = {}
"""The communicators of all runs of this process."""


class Link(ABC):
    """Transfers of arrays between the devices of all `size` processes, one device each.

    All processes must queue the same exchanges and gathers in the same order: the sends of one
    process are paired with the receives of another by their order.
    """

    name: str
    """The name in a report."""
    trusted = False
    """Whether transfers are proved to work: from then on a silent peer is a failure of the run."""
    replays = False
    """Whether a device can record transfers and play them back."""
    peer_table: Any = None
    """A table by which the kernels of checks exchange registers themselves; None: they cannot."""
    most_registers = 1
    """The most registers that such a kernel exchanges."""

    def __init__(self, backend: "DeviceBackend", size: int):
        self._backend, self.size = backend, size

    def exchange(self, leaving: Parcels, arriving: Parcels) -> None:
        """Queue transfers after all earlier work and before all later work."""
        self._backend.in_line(self._transfers(leaving, arriving))

    def start(self, leaving: Parcels, arriving: Parcels) -> None:
        """Queue transfers after all earlier work; later work until `rejoin` may run beside them."""
        self._backend.aside(self._transfers(leaving, arriving, beside=True))

    @abstractmethod
    def _transfers(
        self, leaving: Parcels, arriving: Parcels, beside: bool = False
    ) -> Callable[[int], None]:
        """A call that queues transfers in the stream of a handle, perhaps during its capture;
        `beside`: other work runs at the same time."""

    def rejoin(self) -> None:
        """Queue all later work after the transfers that were started."""
        self._backend.rejoin()

    @abstractmethod
    def gather(self, mine: Any, all_of_them: Any) -> None:
        """Queue all_of_them = the arrays `mine` of all processes, one after the other."""

    def spread(self, mine: Any, parts: Sequence[Any]) -> None:
        """Queue a transfer of `mine` to all processes, this one too, and of theirs to `parts`, by
        rank."""
        arriving = [(part, rank) for rank, part in enumerate(parts)]
        self.exchange([(mine, rank) for _, rank in arriving], arriving)

    @property
    def waited(self) -> float | None:
        """Seconds in which the device only waited for its slowest peer; None if unknown."""
        return None

    def restart_clock(self) -> None:
        """Set `waited` to 0."""

    @property
    def failure(self) -> str:
        """Why the device gave up a transfer; "" if it did not."""
        return ""


class Nccl(Link):
    """Transfers by NCCL."""

    name = "NCCL"

    def __init__(self, backend: "DeviceBackend", nccl: Any, communicator: Any, size: int):
        super().__init__(backend, size)
        self._nccl, self._communicator = nccl, communicator

    def _transfers(
        self, leaving: Parcels, arriving: Parcels, beside: bool = False
    ) -> Callable[[int], None]:
        nccl, communicator, address = self._nccl, self._communicator, self._backend.address

        def work(stream: int) -> None:
            with failing():
                nccl.groupStart()
                try:
                    for move, parcels in (
                        (communicator.send, leaving),
                        (communicator.recv, arriving),
                    ):
                        for array, peer in parcels:
                            move(address(array), array.nbytes, nccl.NCCL_UINT8, peer, stream)
                finally:  # in a group that stays open nothing is ever sent
                    nccl.groupEnd()

        return work

    def gather(self, mine: Any, all_of_them: Any) -> None:
        address, nccl = self._backend.address, self._nccl

        def work(stream: int) -> None:
            args = (address(mine), address(all_of_them), mine.nbytes, nccl.NCCL_UINT8, stream)
            with failing():
                self._communicator.allGather(*args)

        self._backend.in_line(work)


@contextmanager
def failing() -> Iterator[None]:
    """A context that raises errors of NCCL as a MachineFailure of one sentence."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "NcclError":
            raise
        raise MachineFailure(f"NCCL failed: {first_line(error)}") from None


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class Meeting(NamedTuple):
    """How the processes of a link meet: why they cannot, or ""; their library; the key of this
    process's GPU; the hosts by rank; and whether all have met before."""

    reason: str
    library: Any
    key: GpuKey
    hosts: tuple[str, ...]
    known: bool


def meeting(ranks: Any, load: Callable[[], Any], what: str, known: Container[GpuKey]) -> Meeting:
    """Load a library in all processes, which all call this; each needs a GPU of its own."""
    reason, library, place = "", None, ("", "")
    try:
        import cupy

        library, place = load(), (platform.node(), cupy.cuda.Device().pci_bus_id)
    except Exception as error:
        reason = f"{what} cannot be loaded: {first_line(error)}"
    key = (*place, ranks.size)
    reasons, places, all_known = zip(*ranks.gather((reason, place, key in known)), strict=True)
    reason = next(filter(None, reasons), "")
    if not reason and len(set(places)) < ranks.size:  # NCCL would refuse, or wait for ever
        reason = "processes share a GPU"
    return Meeting(reason, library, key, tuple([host for host, _ in places]), all(all_known))


def connect_nccl(backend: "DeviceBackend", ranks: Any) -> tuple[Nccl | None, str]:
    """The `Nccl` of these processes, or the reason why there is none; all processes call this."""

    def load() -> Any:
        from cupy.cuda import nccl

        nccl.get_version()
        return nccl

    met = meeting(ranks, load, "CuPy's NCCL", _COMMUNICATORS)
    if met.reason:
        return None, met.reason
    if not met.known:
        reason, communicator = introduced(met.library, ranks)
        if reason:
            return None, reason
        # Nothing destroys a communicator, not even the end of Python: NCCL would wait for all
        # graphs that hold its transfers, and forever for a graph that outlives it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(communicator))
        _COMMUNICATORS[met.key] = communicator
    return Nccl(backend, met.library, _COMMUNICATORS[met.key], ranks.size), ""


def introduced(nccl: Any, ranks: Any) -> tuple[str, Any]:
    """Why NCCL cannot make a communicator of these processes, or "" and the communicator."""
    reason, identity, communicator = "", None, None
    try:
        identity = nccl.get_unique_id() if ranks.rank == 0 else None
    except Exception as error:
        reason = first_line(error)
    (reason, identity), *_ = ranks.gather((reason, identity))
    if reason:
        return reason, None
    try:
        communicator = nccl.NcclCommunicator(ranks.size, identity, ranks.rank)
    except Exception as error:
        reason = first_line(error)
    return next(filter(None, ranks.gather(reason)), ""), communicator
