"""The limits of a GPU: from the driver, or pretended."""

import ctypes
import os
from dataclasses import dataclass, replace
from typing import Any

from heatsolve.errors import InputError

KIB, MIB = 1 << 10, 1 << 20
VARIABLE = "HEATSOLVE_PRETEND_GPU"
"""The environment variable that names a card of CARDS, for which kernels are then compiled."""


@dataclass(frozen=True)
class Limits:
    """The limits of a GPU.

    cluster: the most blocks that may write into each other's shared memory, 0 if none may.
    shared_of_block: the most shared memory of a block (bytes).
    shared: the shared memory of a multiprocessor; each block also uses `reserved` bytes of it.
    threads, registers (of four bytes): of a multiprocessor.
    cache: the second-level cache (bytes).
    """

    capability: tuple[int, int]
    processors: int
    shared_of_block: int
    shared: int
    reserved: int
    threads: int
    cache: int
    registers: int = 1 << 16
    cluster: int = 0
    pretended: bool = False

    @property
    def has_fused_sweeps(self) -> bool:
        """Whether the GPU makes fused sweeps, or only single sweeps."""
        return self.capability >= (7, 5)

    @property
    def target(self) -> tuple[int, int]:
        """The capability for which kernels are compiled: 7.5 is the oldest that CUDA 13 knows."""
        return max(self.capability, (7, 5)) if self.pretended else self.capability

    @property
    def architecture(self) -> str:
        """The compiler's target: machine code, or for a pretended GPU PTX for newer GPUs."""
        return ("compute_{}{}" if self.pretended else "sm_{}{}").format(*self.target)

    def __str__(self) -> str:
        said = (
            f"compute capability {'.'.join(map(str, self.capability))}"
            f"{' (pretended)' if self.pretended else ''}, {self.processors} multiprocessors, "
            f"{self.shared_of_block // KIB} KiB of shared memory a block, "
            f"{self.cache / MIB:.3g} MiB of cache"
        )
        return said if self.has_fused_sweeps else f"{said}; makes single sweeps"

    def blocks(self, threads: int, bytes_shared: int) -> int:
        """The number of blocks that fit on a multiprocessor, by their threads and shared memory."""
        if bytes_shared > self.shared_of_block:
            return 0
        return min(self.threads // threads, self.shared // max(bytes_shared + self.reserved, 1))


CARDS = {
    "P100": Limits((6, 0), 56, 48 * KIB, 64 * KIB, 0, 2048, 4 * MIB),
    "V100": Limits((7, 0), 80, 96 * KIB, 96 * KIB, 0, 2048, 6 * MIB),
    "T4": Limits((7, 5), 40, 64 * KIB, 64 * KIB, 0, 1024, 4 * MIB),
    "A100": Limits((8, 0), 108, 163 * KIB, 164 * KIB, KIB, 2048, 40 * MIB),
    "A30": Limits((8, 0), 56, 163 * KIB, 164 * KIB, KIB, 2048, 24 * MIB),
    "A30 1g.6gb": Limits((8, 0), 14, 163 * KIB, 164 * KIB, KIB, 2048, 6 * MIB),
    "RTX 3090": Limits((8, 6), 82, 99 * KIB, 100 * KIB, KIB, 1536, 6 * MIB),
    "RTX 4090": Limits((8, 9), 128, 99 * KIB, 100 * KIB, KIB, 1536, 72 * MIB),
    "H100": Limits((9, 0), 132, 227 * KIB, 228 * KIB, KIB, 2048, 50 * MIB, cluster=16),
    "B200": Limits((10, 0), 148, 227 * KIB, 228 * KIB, KIB, 2048, 126 * MIB, cluster=16),
    "RTX 5090": Limits((12, 0), 170, 99 * KIB, 100 * KIB, KIB, 1536, 96 * MIB, cluster=8),
}
"""By name; from "Technical specifications per compute capability", CUDA C++ Programming Guide."""

ATTRIBUTES = {
    "processors": 16,
    "cache": 38,
    "threads": 39,
    "shared": 81,
    "registers": 82,
    "shared_of_block": 97,
    "reserved": 111,
}
"""The driver's numbers of attributes: CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT and so on."""
MAJOR, MINOR = 75, 76


def limits_of(device: int) -> Limits:
    """The limits of this CUDA device, each reduced to the limit of the pretended card, if any.

    Raises InputError where the driver does not tell a limit, or VARIABLE names no card of CARDS.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    handle = ctypes.c_int(0)

    def asked(attribute: int) -> int:
        value = ctypes.c_int(0)
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle) != 0:
            raise InputError(f"the driver does not tell attribute {attribute} of GPU {device}")
        return value.value

    if driver.cuInit(0) != 0 or driver.cuDeviceGet(ctypes.byref(handle), device) != 0:
        raise InputError(f"the driver shows no GPU {device}")
    numbers: dict[str, Any] = {name: asked(number) for name, number in ATTRIBUTES.items()}
    capability = asked(MAJOR), asked(MINOR)
    cluster = largest_cluster(driver, numbers["shared_of_block"]) if capability >= (9, 0) else 0
    return pretended(Limits(capability, **numbers, cluster=cluster))


PORTABLE_CLUSTER = 8
"""The most blocks of a cluster that every device with clusters allows."""
MAX_SHARED, NON_PORTABLE_CLUSTER = 8, 14
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES and _NON_PORTABLE_CLUSTER_SIZE_ALLOWED."""
NOTHING = b".version 7.8 .target sm_90 .address_size 64 .visible .entry nothing() { ret; }"
"""The PTX of an empty kernel."""


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *[(f"{of}_{axis}", ctypes.c_uint) for of in ("grid", "block") for axis in "xyz"],
        ("bytes_shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


def largest_cluster(driver: Any, bytes_shared: int) -> int:
    """The most blocks of a cluster on the current device if each takes `bytes_shared` bytes.

    It depends on the multiprocessors of the device's parts: the driver tells it for an empty
    kernel.
    """
    module, kernel, blocks = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int(0)
    config = LaunchConfig(16, 1, 1, 1024, 1, 1, bytes_shared)
    asked = (
        driver.cuModuleLoadData(ctypes.byref(module), NOTHING)
        or driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"nothing")
        or driver.cuFuncSetAttribute(kernel, MAX_SHARED, bytes_shared)
        or driver.cuFuncSetAttribute(kernel, NON_PORTABLE_CLUSTER, 1)
        or driver.cuOccupancyMaxPotentialClusterSize(
            ctypes.byref(blocks), kernel, ctypes.byref(config)
        )
    )
    driver.cuModuleUnload(module)
    return min(blocks.value, 16) if asked == 0 else PORTABLE_CLUSTER


def pretended(real: Limits) -> Limits:
    """These limits, but no larger than the limits of the card that VARIABLE names, if set."""
    name = os.environ.get(VARIABLE)
    if not name:
        return real
    if name not in CARDS:
        raise InputError(f"{VARIABLE}={name!r}: no such card, there are {', '.join(CARDS)}")
    card = CARDS[name]
    smaller: dict[str, Any] = {
        n: min(getattr(real, n), getattr(card, n)) for n in ("capability", "cluster", *ATTRIBUTES)
    }
    smaller["reserved"] = max(real.reserved, card.reserved)
    return replace(real, **smaller, pretended=True)
