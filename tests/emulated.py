"""Kernels of passes without a GPU: CUDA C as C++, a fiber for each thread of a block.

A shuffle or a barrier lets the other threads run until all have come to it. A warp is as far ahead
of the others, or as far behind, as its waits allow. Asynchronous copies arrive as early as they
may, when they are begun, or as late as they may, when they are waited for. A kernel that is right
in both ways depends neither on the order of warps nor on the time of copies.
"""

import ctypes
import fcntl
import functools
import math
import os
import re
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from heatsolve.backends import exact_sums as sums
from heatsolve.backends.compilation import cache_folder, digest
from heatsolve.backends.gpu.backend import DeviceBackend
from heatsolve.backends.gpu.device import CARDS
from heatsolve.backends.gpu.emit import cuda_text
from heatsolve.backends.gpu.launch import SPREAD
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.stencil.trace import ARRAY, describe, record

DRIVER = r"""
extern "C" void launch(
    int x, int y, int z, int threads, int late, unsigned char noise, @PARAMETERS@
) {
    prepare(late, @SHARED@);
    blockDim = {threads, 1, 1};
    gridDim = {x, y, z};
    auto kernel = [&] { sweeps(@NAMES@); };
    auto call = [](void* given) { (*static_cast<decltype(kernel)*>(given))(); };
    const int in_cluster = @CLUSTER@ ? x : 1;
    if (in_cluster > 1) x = 1, memset(of_blocks, noise, sizeof of_blocks);
    for (blockIdx.z = 0; blockIdx.z < z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < x; blockIdx.x++) {
                memset(@SHARED@, noise, 1 << 18);
                run_block(threads, in_cluster, call, &kernel);
            }
    release();
}
"""
HERE = Path(__file__).parent
TIMER = 'asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));'
# Kernels of one process may stand for several GPUs: they share no variable, unique ones neither.
OPTIONS = ["-std=c++17", "-w", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing",
           "-fno-gnu-unique", f"-I{HERE}"]  # fmt: skip


LEVEL = "-O1"
"""How g++ optimises a kernel: most are made for one run."""


def compiled(kind, source, *options):
    """The file that g++ makes of a text, kept in the cache."""
    path = (
        cache_folder() or Path(tempfile.mkdtemp())
    ) / f"emulated_{digest(header(), source, *options)}.{kind}"
    if not path.exists():
        # The processes of a run want the same file: one makes it, the others wait.
        with path.with_suffix(".cpp").open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not path.exists():
                file.truncate(0)
                file.write(source)
                file.flush()
                own = path.with_suffix(f".{os.getpid()}.{kind}")
                command = ["g++", *OPTIONS, *options, file.name, "-o", str(own)]
                done = subprocess.run(command, capture_output=True, text=True)
                assert done.returncode == 0, done.stderr[:3000]
                own.replace(path)
                os.unlink(file.name)
    return path


@functools.cache
def header():
    return (HERE / "emulated.h").read_text()


@functools.cache
def machine():
    """Of emulated.cpp, once for all kernels: it takes longer to compile than they do."""
    return compiled("o", (HERE / "emulated.cpp").read_text(), "-O2", "-c")


@functools.cache
def library(source):
    """The function `launch` of a kernel's source, and the C types of what it takes."""
    signature = source[source.rindex("sweeps(const integer* gate") :]
    signature = signature[signature.index("(") + 1 : signature.index(") {")]
    if "PARAMETERS" in signature:
        more = re.search("#define PARAMETERS (.*)", source)
        signature = signature.replace("PARAMETERS", more[1])
    parameters = [" ".join(p.split()) for p in signature.split(",")]
    names = [p.split()[-1].lstrip("*") for p in parameters]
    cluster, own = "__cluster_dims__" in source, "unsigned char* const shared = of_blocks[block]"
    text = source.replace(cuda_text("ptx.cuh"), "").replace(TIMER, "now = nanoseconds_now();")
    if cluster:  # each block has a memory of its own
        text = text.replace("extern __shared__ __align__(16) unsigned char shared[]", own)
    text = text.replace("extern __shared__ __align__(16) unsigned char", "extern unsigned char")
    driver = (
        DRIVER.replace("@PARAMETERS@", ", ".join(parameters))
        .replace("@NAMES@", ", ".join(names))
        .replace("@CLUSTER@", str(int(cluster)))
        .replace("@SHARED@", "memory" if "char memory[]" in source else "shared")
    )
    source = f'#include "emulated.h"\n{text}{driver}'
    path = compiled("so", source, LEVEL, "-shared", "-Wl,-Bsymbolic", str(machine()))
    function = ctypes.CDLL(str(path)).launch
    function.restype = None
    kinds = [
        ctypes.c_void_p if "*" in p else
        {"double": ctypes.c_double, "float": ctypes.c_float}.get(p.split()[0], ctypes.c_longlong)
        for p in parameters
    ]  # fmt: skip
    function.argtypes = [*[ctypes.c_int] * 5, ctypes.c_ubyte, *kinds]
    return function


def with_ends(arguments, region, wraps, tape):
    """The arguments of a sweep, the first with the other ends of its periodic axes beside its
    unknowns: in a copy, because the ghosts of the array itself are not to count."""
    if not any(wraps):
        return arguments
    first, *others = arguments
    first = first.copy()
    places = next(subscript for number, subscript in tape.loads() if number == 0)
    for axis, ((low, high), place) in enumerate(zip(region, places, strict=True)):
        count = {1: high - low, 2: 2 * (high - low), -2: (high - low) // 2}[place.scale]
        array = np.moveaxis(first, axis, 0)
        if wraps[axis]:
            array[0], array[1 + count] = array[count], array[1]
    return first, *others


def read_other_ends(backend, monkeypatch):
    """Let a host read the other ends of periodic axes without ghosts, as a device does."""
    kind = type(backend)
    plain = kind.sweep

    def sweep(self, point, out, region, *arguments, wraps=()):
        if wraps:
            kinds = tuple(k if isinstance(k, str) else ARRAY for k in map(describe, arguments))
            arguments = with_ends(arguments, region, wraps, record(point, kinds, len(region)))
        plain(self, point, out, region, *arguments)

    monkeypatch.setattr(kind, "sweep", sweep)
    # A recording would hold the copies.
    monkeypatch.setattr(kind, "replayed", lambda self, work, *_: work)
    monkeypatch.setattr(backend, "most_wrapped", DeviceBackend.most_wrapped)


class Emulated(NumpyBackend):
    """The numpy backend with the passes of a GPU, emulated; `late`: copies arrive late."""

    name = "emulated"
    on_device = True
    vectors = False
    limits = replace(CARDS["H100"], processors=2)
    integer = int
    lookahead = 1

    def __init__(self, precision="float64", late=False):
        super().__init__(precision)
        self.late = late
        self.launched = 0
        self.shut = False
        """Whether the gate is."""

    padded = DeviceBackend.padded
    fewest_in_legs = DeviceBackend.fewest_in_legs
    most_fused = DeviceBackend.most_fused
    cycle_leg = DeviceBackend.cycle_leg
    reads_other_ends = DeviceBackend.reads_other_ends
    _compile_fused = DeviceBackend._compile_fused
    _cluster = DeviceBackend._cluster
    _prepare_resident = DeviceBackend._prepare_resident
    accumulators = DeviceBackend.accumulators
    fused_sweeps = DeviceBackend.fused_sweeps

    def replayed(self, work, gated=True, continues=False):
        return work  # NumPy's own way plays back the sweeps of NumPy alone

    def integers(self, count):
        return np.zeros(count, np.int64)

    def new_register(self):
        return np.zeros(SPREAD * sums.WIDTH, np.int64)

    def read_register(self, register):
        return sums.merge(register.reshape(SPREAD, sums.WIDTH))

    def c_kernel(self, source, bytes_shared):
        assert bytes_shared <= self.limits.shared_of_block
        function = library(source)

        def queue(launch, operands):
            self.launched += 1
            gate = np.array([self.shut, 0], np.int64)
            given = [
                value.ctypes.data if isinstance(value, np.ndarray) else value
                for value in (gate, *operands, *launch.bounds)
            ]
            # Shared memory begins with anything at all, here with bytes that make NaNs.
            function(*launch.grid, launch.block[0], int(self.late), 255, *given)

        return queue


class GatedScalars(sums.Scalars):
    """Sums that a device divides unless its gate is closed."""

    def divide(self, *given):
        device = self._backend
        if device.calls is not None:
            device.calls.append((self.divide, given, {}))
        elif not (device.gated and device.shut):
            super().divide(*given)


class Ahead(Emulated):
    """A device that the host runs ahead of.

    `early`: its gate closes at so many times the limit; `refuses`: the number of a ledger behind
    which it does not continue; `continuations` counts the others.
    """

    lookahead = 64
    continues = True
    early = 1.0

    def __init__(self, precision="float64", refuses=None):
        super().__init__(precision)
        self.refuses, self.ledgers, self.continuations = refuses, 0, 0
        self.confirmations = 0
        self.ahead_shut, self.continues_at = False, 0
        self.calls = None  # of what is being recorded

    def replayed(self, work, gated=True, continues=False):
        """Work that continues is played back with the arrays of its recording, as by a graph."""
        if not continues:
            return work
        self.calls = calls = []
        work()
        self.calls = None

        def play():
            with self.continuing():
                for make, given, named in calls:
                    make(*given, **named)

        return play

    def scalars(self, count):
        return GatedScalars(self, count)

    def open_gate(self, continues_at=0):
        self.shut, self.gated, self.checked, self.continues_at = False, True, [], continues_at
        self.found = None
        self.ahead_shut = continues_at > 0

    def check(self, accumulators, threshold):
        if self.shut or not accumulators:
            return
        (accumulator,) = accumulators
        self.checked.append(accumulator.value)
        accumulator.clear()
        self.shut = self.checked[-1] <= (self.early * threshold if threshold > 0.0 else threshold)
        if self.continues_at:
            self.ahead_shut = not (self.shut and len(self.checked) == self.continues_at)

    def confirm(self, accumulator, threshold):
        if self.ahead_shut:
            return
        self.found = accumulator.take()
        self.confirmations += 1
        self.ahead_shut = not self.found <= threshold

    def posted_ledger(self):
        self.gated = self.shut = False
        self.ledgers += self.continues_at > 0
        self.ahead_shut |= self.continues_at > 0 and self.ledgers == self.refuses
        values, asked, found = self.checked, self.continues_at > 0, self.found

        def read():
            self.confirmed = found
            self.continued = asked and not self.ahead_shut
            self.continuations += self.continued
            self.ahead_shut = False
            return values

        return read

    @contextmanager
    def continuing(self):
        before = self.gated, self.shut
        self.gated, self.shut = True, self.ahead_shut
        yield
        self.gated, self.shut = before

    def sweep(self, *given, **named):
        if self.calls is not None:
            self.calls.append((self.sweep, given, named))
        elif not (self.gated and self.shut):
            super().sweep(*given, **named)

    def post_register(self, register):
        if self.calls is not None:
            self.calls.append((self.post_register, (register,), {}))


class Collecting(Emulated):
    """Makes nothing of kernels but a note of what a card of this name would be given.

    `kernels`: by source the bytes of shared memory and the threads of a block.
    """

    def __init__(self, card, precision="float64"):
        super().__init__(precision)
        self.limits = CARDS[card]
        self.kernels = {}

    def c_kernel(self, source, bytes_shared):
        def queue(launch, operands):
            self.kernels[source] = bytes_shared, math.prod(launch.block), launch.grid

        return queue
