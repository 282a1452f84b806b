"""A transport that moves memory of devices is believed only after a transfer that shows it."""

import gc
import itertools
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from weakref import ref

import numpy as np
import pytest

from heatsolve.backends import Message
from heatsolve.backends.gpu import links
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.case.load import parse
from heatsolve.errors import InputError
from heatsolve.models.heat.conduction import Conduction
from heatsolve.models.heat.solver import make_method
from heatsolve.parallel import halo as halos
from heatsolve.parallel import transport as transports
from heatsolve.parallel.ranks import Ranks, World
from heatsolve.parallel.transport import transport_of
from heatsolve.stencil.grid import slices

PERIODIC = """
schema = 1
[case]
[grid]
cells = [11, 14]
periodic = ["x", "y"]
[initial]
temperature = "sin(3*x) + cos(5*y)"
[source]
temperature = "x - y"
[solver]
method = "jacobi"
tolerance = 1e-3
"""


class Exposed:
    """Host memory behind the interface of device arrays, which MPI's binding reads alike."""

    def __init__(self, array):
        self._array = array
        self.__cuda_array_interface__ = {**array.__array_interface__, "version": 3}


class Pretended(NumpyBackend):
    """A device whose memory is the host's; `broken`: MPI's transfers go to some other place."""

    on_device = True

    def __init__(self, broken=False, nccl=None, graphs=True, peer=None):
        super().__init__()
        self._broken, self._links, self._graphs = broken, {"nccl": nccl, "peer": peer}, graphs

    def replayed(self, work, gated=True, continues=False):
        if not self._graphs:
            raise RuntimeError("operation not permitted when stream is capturing")
        return work  # which the capture of a graph only notes down

    def message(self, shape, direct=False):
        array = self.zeros(shape)
        if not direct:
            return Message(array, array)
        return Message(array, Exposed(array.copy() if self._broken else array))

    def connect(self, ranks, name):
        link = self._links[name]
        return (link, "") if link else super().connect(ranks, name)


class Pretending:
    """What moves memory in a device's queue, by MPI.

    It pairs what comes from a process with what that sends by their order, as NCCL does. An
    exchange takes `delay` seconds of `clock`, which no other program on the machine disturbs.
    """

    clock = 0.0

    name = "a pretended library"
    trusted, waited = False, None

    def __init__(self, ranks, delay=0.0):
        self._comm, self.size = ranks.comm, ranks.size
        self._waiting, self._delay = [], delay

    def exchange(self, leaving, arriving):
        self.start(leaving, arriving)
        self.rejoin()

    def start(self, leaving, arriving):
        Pretending.clock += self._delay
        self._waiting = [self._comm.Isend(array.copy(), peer, 7) for array, peer in leaving]
        self._waiting += [self._comm.Irecv(array, peer, 7) for array, peer in arriving]

    def rejoin(self):
        for request in self._waiting:
            request.Wait()
        self._waiting = []

    spread = links.Link.spread

    def gather(self, mine, all_of_them):
        self._comm.Allgather(mine, all_of_them)


class Careless(Pretending):
    """What sends zeros beside other work."""

    def exchange(self, leaving, arriving):
        super().start(leaving, arriving)
        self.rejoin()

    def start(self, leaving, arriving):
        super().start([(0.0 * array, peer) for array, peer in leaving], arriving)


class Claiming(World):
    """An MPI that says of itself what it is told to say."""

    claim = True

    def claims_device_memory(self):
        return self.claim


def name_of(ranks, backend, wanted="auto"):
    return transport_of(ranks, backend, wanted).name(backend)


def check():
    transports.time = SimpleNamespace(perf_counter=lambda: Pretending.clock)
    ranks = Claiming()
    direct, staged = "MPI from GPU to GPU", "MPI through pinned memory"
    assert name_of(ranks, Pretended()) == direct
    assert name_of(ranks, Pretended(), "host") == staged
    assert name_of(ranks, Pretended(broken=True)) == staged
    assert name_of(ranks, NumpyBackend()) == "MPI"
    assert name_of(ranks, NumpyBackend(), "host") == "MPI"
    # Processes decide together: one whose data do not arrive is enough, one that cannot, too.
    assert name_of(ranks, Pretended(broken=ranks.rank == 0)) == staged
    with pytest.raises(InputError, match="this MPI does not move memory of GPUs"):
        transport_of(ranks, Pretended(broken=ranks.rank == 0), "mpi")
    for name, said in ("nccl", "NCCL"), ("peer", "GPU peer memory"):
        with pytest.raises(InputError, match=f"{said} does not work here"):
            transport_of(ranks, Pretended(), name)
    nccl = Pretending(ranks)
    assert name_of(ranks, Pretended(nccl=nccl)) == nccl.name
    assert name_of(ranks, Pretended(nccl=nccl), "mpi") == direct
    assert name_of(ranks, Pretended(nccl=Careless(ranks))) == direct
    assert transport_of(ranks, Pretended(nccl=nccl)).replays
    # Without a graph that holds what it moves the library is as good, but for the host's time.
    transport = transport_of(ranks, Pretended(nccl=nccl, graphs=False))
    assert transport.link is nccl and not transport.replays
    assert not transport_of(ranks, Pretended(nccl=nccl, graphs=ranks.rank != 0)).replays
    assert nccl.trusted
    # Of two links the faster one is taken, by all processes the same.
    slow = Pretending(ranks, delay=2e-3 * (ranks.rank == 0))
    for both in {"nccl": nccl, "peer": slow}, {"nccl": slow, "peer": nccl}:
        transport = transport_of(ranks, Pretended(**both))
        assert transport.link is nccl
        assert transport.measured == " (0 us for 0.52 MB; a pretended library 2000)"
        assert transport_of(ranks, Pretended(**both), "peer").link is both["peer"]
    ranks.claim = ranks.rank != 0
    assert name_of(ranks, Pretended()) == staged
    # No MPI from a wheel knows CUDA: asking it is safe, and the answer is no.
    assert not World().claims_device_memory()
    assert name_of(World(), Pretended()) == staged
    check_layers(ranks, nccl)
    check_sweeps_beside(ranks, nccl)
    for transport in (transport_of(ranks, Pretended(nccl=nccl)), transport_of(ranks, Pretended())):
        backend = Pretended()
        leaving, arriving = (
            transport.message(backend, (3,)),
            transport.message(backend, (3 * ranks.size,)),
        )
        leaving.array[:] = ranks.rank
        transport.gather(leaving, arriving)
        assert np.array_equal(arriving.array, np.repeat(np.arange(ranks.size), 3))


def check_layers(ranks, nccl):
    """Layers that a queue moves as they lie in an array, and those that it packs."""

    def solved(ranks, *settings):
        case = parse(PERIODIC, "case", settings)
        problem = Conduction(case, Pretended(nccl=nccl), ranks=ranks)
        system = problem.system(problem.backend.to_device(problem.source(0.0)))
        method = make_method(case, system, problem.temperature)
        method.march(0, 70)
        assert problem.halo.transport.packs == (ranks.size == 1)
        return problem.own(method.solution(70)), [axis.stored_at for axis in problem.grid.axes]

    whole, _ = solved(Ranks())
    for dims in (ranks.size, 1), (1, ranks.size):
        block, places = solved(ranks, f"parallel.ranks={list(dims)}")
        assert np.array_equal(block, whole[tuple(slice(*place) for place in places)])
        assert ranks.size == 1 or block.size < whole.size


class Joining(Pretended):
    """A device that fills the ends of periodic axes in any order."""

    def joins(self, regions):
        return True


def check_sweeps_beside(ranks, nccl):
    """Layers that leave are swept first, every point once, and all ghosts are right afterwards,
    whichever axis is divided."""
    for dims, fewest in itertools.product(((ranks.size, 1), (1, ranks.size)), (0, 1 << 18)):
        halos.FEWEST_BESIDE = fewest
        case = parse(PERIODIC, "case", [f"parallel.ranks={list(dims)}"])
        halo = Conduction(case, Joining(nccl=nccl), ranks=ranks).halo
        start = [axis.start for axis in halo.grid.axes]
        of_all = [axis.all_unknowns for axis in halo.grid.axes]
        values = np.arange(2.0 * np.prod(of_all)).reshape(2, *of_all)
        indices = [np.arange(n) - 1 + s for n, s in zip(halo.grid.shape, start, strict=True)]
        expected = values[np.ix_([0, 1], *[i % n for i, n in zip(indices, of_all, strict=True)])]
        arrays, swept = [halo.backend.zeros(halo.grid.shape) for _ in range(2)], []

        def sweep(region, arrays=arrays, swept=swept, expected=expected):
            swept.append(region)
            for array, source in zip(arrays, expected, strict=True):
                array[slices(region)] = source[slices(region)]

        halo.sweep_and_exchange(sweep, *arrays)
        assert np.array_equal(arrays, expected)
        count = np.zeros(halo.grid.shape)
        for region in swept:
            count[slices(region)] += 1
        assert np.all(count[slices(halo.grid.interior)] == 1) and count.max() == 1
        assert len(swept) == (3 if fewest == 0 and ranks.size > 1 else 1)
        halo.wrap(arrays[0])
        assert np.array_equal(arrays[0], expected[0])


@pytest.mark.few(1)
@pytest.mark.parametrize("processes", (1, 2, 3))
def test_links_are_proved(processes):
    done = subprocess.run(
        [Path(sys.executable).with_name("mpiexec"), "-n", str(processes), sys.executable, __file__],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    check()


def test_a_communicator_serves_all_runs_and_is_never_destroyed(monkeypatch):
    """At its end NCCL would wait for graphs that hold its transfers, maybe for ever."""

    class Two(Ranks):
        size = 2

        def gather(self, value):
            other = ("", ("node", "bus 1"), value[2]) if len(value) == 3 else value
            return [value, other]

    class Communicator:
        def __init__(self, *of):
            made.append(ref(self))

    made = []
    nccl = SimpleNamespace(
        get_version=lambda: 1, get_unique_id=lambda: "id", NcclCommunicator=Communicator
    )
    cuda = SimpleNamespace(Device=lambda: SimpleNamespace(pci_bus_id="bus 0"), nccl=nccl)
    for name, module in {"cupy": SimpleNamespace(cuda=cuda), "cupy.cuda": cuda}.items():
        monkeypatch.setitem(sys.modules, name, module)
    known = {}
    monkeypatch.setattr(links, "_COMMUNICATORS", known)
    for _ in range(2):
        found, reason = links.connect_nccl(Pretended(), Two())
        assert found and not reason
    del found
    known.clear()
    gc.collect()
    (communicator,) = made
    assert communicator() is not None
