"""Run by test_cuda_source under NUMBA_ENABLE_CUDASIM=1: the cuda backend against NumPy.

The simulator takes about a millisecond for each thread of a block, so the grids are tiny:
one block, or two where blocks must meet. Python's square root raises where the device's is NaN,
so `sqrt` is left to compilers and real devices.
"""

import math
import sys
from dataclasses import replace

import numpy as np
from conformance import compare_packing, compare_quotients, registry, same, sweep

import heatsolve.backends.gpu.backend as gpu
from heatsolve import backends
from heatsolve.backends import exact_sums as sums
from heatsolve.backends.gpu.backend import DeviceBackend
from heatsolve.backends.gpu.device import CARDS
from heatsolve.backends.gpu.numba_cuda import kernel_function, python_source
from heatsolve.backends.host import HostBackend
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.errors import InputError
from heatsolve.linear.multigrid.mixed import corrected
from heatsolve.linear.system import with_change
from heatsolve.stencil.grid import whole
from heatsolve.stencil.language import copy, neighbour


class SimulatedBackend(DeviceBackend, HostBackend):
    """The cuda backend on Numba's CUDA simulator: kernels run as Python, on arrays of the host.

    A thread takes about a millisecond. There are no fused sweeps, no graphs and no compiler of
    CUDA C; what is not a kernel of Numba-CUDA is done by the host.
    """

    name = "cuda"
    limits = replace(CARDS["P100"], processors=1)

    def __init__(self, precision="float64"):
        super().__init__(precision)
        self._make_gate()

    def integers(self, count):
        return np.zeros(count, np.int64)

    def pinned(self, shape, dtype=None):
        return np.zeros(shape, dtype or self.dtype)

    def mark(self):
        return self.sync

    def zero(self, array):
        array[...] = 0

    def queue_to_host(self, host, array):
        np.copyto(host, array)

    def queue_to_device(self, array, host):
        np.copyto(array, host)

    def library(self):
        raise InputError("FFTs on the cuda backend need a GPU: the simulator has none")

    continues = False
    posted_values = backends.Backend.posted_values

    def replayed(self, work, gated=True, continues=False):
        return work

    def _compile(self, point, signature, tape):
        """A sweep that writes the terms of a reduction to an array, which the host adds up."""
        kinds = signature.outputs
        run = super()._compile(point, replace(signature, outputs=("array",) * len(kinds)), tape)

        def reducing(region, targets, arguments):
            shape = [high for _, high in region]
            outputs = [
                target if kind == "array" else self.zeros(shape)
                for kind, target in zip(kinds, targets, strict=True)
            ]
            run(region, outputs, arguments)
            for kind, terms, register in zip(kinds, outputs, targets, strict=True):
                if kind != "array":
                    add = sums.add_block if kind == "sum" else sums.add_largest
                    add(terms.astype(np.float64), register[: sums.WIDTH])

        return reducing

    def _kernel(self, name, signature, tape):
        from numba import cuda
        from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

        kernel = cuda.jit(kernel_function(python_source(signature, tape)))

        def queue(launch, args):
            flat = [FakeCUDAArray(a.reshape(-1)) if isinstance(a, np.ndarray) else a for a in args]
            kernel[launch.grid, launch.block](*flat)

        return queue

    def _queue_check(self, register, copies, kind, limit):
        closed, passed = self._gate
        if closed:
            return
        merged = sums.merge(register.reshape(copies, sums.WIDTH))
        self._rows.reshape(-1, sums.WIDTH)[passed] = merged
        register[:] = 0
        self._gate[:] = not sums.VALUE_OF[kind](merged) > limit, passed + 1

    def mapped(self, host):
        return host

    def _of_checks(self, name):
        return {"merge": self._merge, "post": self._post}[name]

    def _post(self, launch, args):
        numbers, count, cleared, host = args
        host.reshape(-1)[:] = numbers[:count]
        numbers[:cleared] = 0

    def _merge(self, launch, args):
        register, copies, gate, row = args
        if not gate[0]:
            row[:] = sums.merge(register.reshape(copies, sums.WIDTH))
            register[:] = 0

    def queue_quotient(self, total, number, above, below, kept, out):
        if self.gated and self._gate[0]:
            return
        values = kept.view(np.float64)
        if total is not None:
            values[number] = total.take()
        out[...] = sums.quotient(values[above], values[below])

    def _unknown(self, *args, **named):
        raise NotImplementedError("the simulator has neither CUDA C nor graphs nor streams")

    def stored(self, values):
        return values.copy()

    address = captured = in_line = aside = rejoin = _nvrtc = _loaded = _unknown


SHAPES = {1: (20,), 2: (7, 19), 3: (5, 4, 9)}
CHOSEN = {
    "float64": (
        "1d-copy", "1d-residual", "1d-cg-first-array-array-sum", "2d-fill", "2d-shifted",
        "2d-where", "2d-maximum", "2d-against-faces-0", "2d-laplace", "2d-jacobi-updated-array-max",
        "2d-sor-updated-array-sum", "2d-chebyshev-chebyshev-1",
        "2d-conjugategradients-advance-0-1-sum", "3d-rounding",
        "3d-conjugategradients-apply-array-sum", "3d-jacobi-residual-max", "3d-against",
        "1d-tvd-flux-self", "2d-upwind-flux-cells-self", "2d-central-flux-euler",
    ),
    "float32": ("1d-explicit_step", "2d-minimum", "2d-jacobi-updated-array-sum", "3d-residual"),
}  # fmt: skip


@np.errstate(all="ignore")
def compare(entry, precision, host, device):
    """Tame fields, so that sums are finite, then wild ones."""
    shape = SHAPES[entry.dimension]
    before = np.random.default_rng(99).normal(size=shape).astype(precision)
    for wild in (False, True):
        given = entry.make(shape, precision, seed=1, wild=wild)
        expected = sweep(entry, host, given, before, entry.region(shape))
        got = sweep(entry, device, given, before, entry.region(shape))
        assert all(map(same, got, expected)), f"{entry.name} {precision} wild={wild}"


def compare_blocks(host, device):
    """Several blocks gather into one register; rows that are no multiple of a thread's eight."""
    values = np.random.default_rng(3).normal(size=(11, 140)) * np.logspace(-200, 200, 140)
    region = ((1, 10), (125, 138))
    for kind in ("sum", "max"):
        expected = host.reduce(kind, copy, region, values)
        assert device.reduce(kind, copy, region, device.to_device(values)) == expected
    values[5, 130] = math.nan
    assert math.isnan(device.reduce("sum", copy, region, device.to_device(values)))


def compare_ends(host, device):
    """A sweep that reads the other end of a periodic axis; more rows than a thread has."""
    for shape, wraps in (((9, 7), (True, True)), ((5, 4, 6), (True, False, True))):
        u = np.random.default_rng(6).normal(size=shape)
        region, stale = tuple((1, n - 1) for n in shape), u.copy()
        for axis in np.flatnonzero(wraps):
            ends, others = np.moveaxis(u, axis, 0), np.moveaxis(stale, axis, 0)
            ends[0], ends[-1] = ends[-2], ends[1]
            others[0] = others[-1] = math.nan
        expected, got = host.zeros(shape), device.zeros(shape)
        host.sweep(turned, expected, region, u)
        device.sweep(turned, got, region, device.to_device(stale), wraps=wraps)
        assert same(device.to_host(got), expected)


def turned(at, u):
    total = u[at]
    for axis in range(len(at)):
        total = 0.3 * total - u[neighbour(at, axis, 1)] + 0.7 * u[neighbour(at, axis, -1)]
    return total


def compare_copies(device):
    """Large arrays come to the host in pieces, the last of them shorter."""
    most = gpu.MOST_AT_ONCE, backends.LARGEST_PUT
    gpu.MOST_AT_ONCE = backends.LARGEST_PUT = 64
    for count in (5, 8, 9, 71):
        host = np.arange(2.0 * count).astype(device.dtype).reshape(count, 2)
        array = device.to_device(host)
        assert device.to_host(array).tobytes() == host.tobytes()
        region = ((1, count - 1), (1, 2))
        block = device.take(array, region)
        assert block.tobytes() == host[1:-1, 1:].tobytes()
        device.put(array, region, -block)
        host[1:-1, 1:] *= -1.0
        assert device.to_host(array).tobytes() == host.tobytes()
        host = host[::-1] * 3.0
        device.put(array, whole(host.shape), host)
        assert device.to_host(array).tobytes() == host.tobytes()
    gpu.MOST_AT_ONCE, backends.LARGEST_PUT = most


class Mirror:
    """A link to another process that has the same values."""

    size, replays, peer_table = 2, True, None

    def gather(self, mine, all_of_them):
        all_of_them.reshape(self.size, -1)[:] = mine


class Graph:
    """Recorded work, which uses the arrays that it was recorded with."""

    made = 0

    def __init__(self, backend, work, gated):
        Graph.made += 1
        self.work = work

    def __call__(self):
        self.work()


def compare_gatherings(device):
    """Each link has one recording, however many accumulators there are; a new link a new one."""
    whole, gpu.Replay = gpu.Replay, Graph
    kept = device.accumulator("sum")
    for links in (1, 2):
        device.join(lambda rows: rows, Mirror())
        for count in range(3, 40):
            own = device.accumulator("max")
            device.sweep(copy, kept, ((0, 4),), device.to_device(np.full(4, float(count))))
            device.sweep(copy, own, ((0, 4),), device.to_device(np.full(4, float(count))))
            device.open_gate()
            device.check([kept], -1.0)
            device.check([own], -1.0)
            assert device.ledger() == [2 * 4 * count, count]  # of both processes
        assert Graph.made == links
    gpu.Replay, device.link = whole, None


def halved(i, u):
    return 0.5 * u[i], 0.5 * u[i]


def compare_gate(device):
    """After a check that meets its threshold, queued sweeps change nothing."""
    # The values are 0.5, 0.25, ... for the maximum, four times that for the sum.
    for kind, threshold, checks in (("max", 0.25, 2), ("max", 0.2, 3), ("sum", 0.5, 3),
                                    ("max", -1.0, 5)):  # fmt: skip
        u = device.to_device(np.ones(6))
        value = device.accumulator(kind)
        device.open_gate()
        device.points_updated = device.bytes_moved = 0
        for _ in range(5):
            device.sweep(halved, (u, value), ((1, 5),), u)
            device.check([value], threshold)
        points = 4 if kind == "sum" else 1
        expected = [points * 0.5**n for n in range(1, checks + 1)]
        assert device.ledger() == expected, (kind, threshold)
        # Sweeps that the gate kept from running are no work.
        assert device.points_updated == 4 * checks
        assert device.bytes_moved == 4 * checks * 2 * 8
        assert device.to_host(u).tolist() == [1.0, *[0.5**checks] * 4, 1.0]
        # The ledger has ended the gate.
        value.clear()
        device.sweep(halved, (u, value), ((1, 5),), u)
        assert device.to_host(u)[1] == 0.5 ** (checks + 1)
        device.open_gate()
        assert device.ledger() == []
    broken = device.to_device(np.array([1.0, math.nan, 1.0]))
    device.open_gate()
    for _ in range(2):
        device.sweep(copy, value, ((0, 3),), broken)
        device.check([value], 0.0)
    assert len(device.ledger()) == 1


def compare_both_precisions(host, device):
    """A sweep in double precision that reads an array in single precision and writes another."""
    values = np.random.default_rng(4).normal(size=(6, 9)) * np.logspace(-45, 30, 9)
    results = []
    for machine in (host, device):
        single = machine.single()
        u, e, out = machine.to_device(values), single.to_device(values), single.zeros((6, 9))
        norm = machine.accumulator("max")
        machine.sweep(with_change(corrected, "max"), (out, norm), ((1, 5), (1, 8)), u, e, 1.0 / 3.0)
        results.append((machine.to_host(out), norm.value))
    (ours, norm), (wanted, other) = results
    assert ours.dtype == np.float32 and same(ours, wanted) and norm == other


def main():
    entries = {entry.name: entry for entry in registry()}
    for precision, names in CHOSEN.items():
        host, device = NumpyBackend(precision), SimulatedBackend(precision)
        for name in names:
            compare(entries[name], precision, host, device)
    host, device = NumpyBackend(), SimulatedBackend()
    compare_blocks(host, device)
    compare_ends(host, device)
    compare_gate(device)
    compare_copies(device)
    compare_gatherings(SimulatedBackend())
    compare_both_precisions(host, device)
    compare_quotients(device)
    compare_packing(device, (6, 7), depth=1, inset=1)
    compare_packing(device, (8, 9, 10), depth=2, inset=0)


if __name__ == "__main__":
    sys.exit(main())
