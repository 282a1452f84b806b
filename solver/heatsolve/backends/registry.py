"""Which backend runs, and on which GPU: the named backend, or the fastest that works here."""

import ctypes
import os
import platform
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heatsolve.backends import Backend, cores
from heatsolve.backends.counting import CountingBackend as CountingBackend
from heatsolve.errors import InputError
from heatsolve.report import printable

NAMES = ("numpy", "numba", "cupy", "cuda")
ON_GPU = ("cuda", "cupy")
"""The backends of GPUs, the faster one first."""
NO_GPU = ", there is no CUDA GPU"

SETTINGS = {
    "NUMBA_NUM_THREADS": (r"[1-9]\d*", "must be a number of threads, at least 1"),
    "NUMBA_THREADING_LAYER": (
        "default|safe|threadsafe|forksafe|omp|tbb|workqueue",
        "must be omp, tbb, workqueue, default, safe, threadsafe or forksafe",
    ),
    "NUMBA_OPT": ("[0-3]|max", "must be 0, 1, 2, 3 or max"),
    "NUMBA_DISABLE_JIT": ("0", "lets Numba compile nothing, which only the numpy backend can do"),
}
"""Environment variables that Numba reads: the pattern of valid values, and the error's words."""


def refuse_settings() -> None:
    """Raise InputError where Numba would fail on the value of an environment variable."""
    for name, (wanted, words) in SETTINGS.items():
        value = os.environ.get(name)
        if value is not None and not re.fullmatch(wanted, value.strip(), re.ASCII):
            raise InputError(
                f"the environment says {name}={printable(value)}: it {words}; unset it"
            )


def make(
    name: str,
    precision: str = "float64",
    threads: int | None = None,
    device: int | None = None,
) -> Backend:
    """The backend of this name; `device`: the number of its GPU among the GPUs that CUDA shows.

    Raises InputError, with the reason, where the backend cannot work.
    """
    if name == "numpy":
        from heatsolve.backends.host.numpy import NumpyBackend

        return NumpyBackend(precision)
    if name in ("numba", "cuda"):
        refuse_settings()
    if name == "numba":
        try:
            with warnings.catch_warnings():  # of other variables of the environment
                warnings.filterwarnings("error", "Environment variable 'NUMBA_")
                from heatsolve.backends.host.numba import NumbaBackend
        except (ImportError, RuntimeWarning) as error:
            reason = str(error).strip().split("\n")[0]
            raise InputError(f"the numba backend cannot load Numba ({reason})") from None
        return NumbaBackend(precision, threads)
    if name == "cupy":
        from heatsolve.backends.gpu.cupy import CupyBackend

        return CupyBackend(precision, device)
    if name == "cuda":
        if simulating():
            raise InputError("the cuda backend needs a compiler: unset NUMBA_ENABLE_CUDASIM")
        from heatsolve.backends.gpu.numba_cuda import CudaBackend

        return CudaBackend(precision, device)
    raise InputError(f"no backend {name!r}: there are {', '.join(NAMES)}, or auto")


def choose(
    name: str,
    precision: str = "float64",
    threads: int | None = None,
    local_rank: int = 0,
    gather: Callable[[Any], list[Any]] = lambda value: [value],
) -> tuple[Backend, str]:
    """The backend to use and the reason: for `auto` a GPU before threads before plain NumPy.

    `local_rank`: the number of this process on its node; the processes of a node take its GPUs in
    turn. `gather` collects a value of every process of the run, so all processes must call this.
    The CUDA simulator is never chosen, though it calls itself available.
    """
    gpus = count_gpus() if name in ("auto", *ON_GPU) else 0
    device = local_rank % gpus if gpus else None
    if name != "auto":
        backend, reasons = make(name, precision, threads, device), ["as asked for"]
    else:
        refuse_settings()  # otherwise a mistake would only make the run slow
        backend, reasons = fastest(precision, threads, device)
    gpu = identity(device) if backend.on_device and device is not None else None
    if gpu is not None and gpus > 1:
        reasons.append(f"GPU {device} of {gpus}")
    names, users = zip(*gather((backend.name, gpu)), strict=True)
    if len(set(names)) > 1:  # they would cut the grid, and send, in different ways
        counts = ", ".join(f"{each} on {names.count(each)}" for each in dict.fromkeys(names))
        raise InputError(f"processes have different backends ({counts}): name one with --backend")
    used = [user for user in users if user is not None]
    if len(set(used)) < len(used):
        count = len(set(used))
        reasons.append(f"{len(used)} processes share {count} GPU{'s' if count > 1 else ''}")
    return backend, "; ".join(reasons)


def simulating() -> bool:
    """Whether Numba's CUDA is its simulator, which compiles nothing."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "1"


def fastest(precision: str, threads: int | None, device: int | None) -> tuple[Backend, list[str]]:
    """The fastest backend that works here, and why no faster backend does."""
    failures = []
    use_gpu = device is not None and not simulating()
    for candidate in (*(ON_GPU if use_gpu else ()), "numba", "numpy"):
        try:
            backend = make(candidate, precision, threads, device)
        except InputError as error:
            failures.append(str(error))
            continue
        reason = "the fastest that works here" + ("" if device is not None else NO_GPU)
        return backend, [reason, *failures]
    raise InputError("no backend works here: " + "; ".join(failures))


def count_gpus() -> int:
    """CUDA devices that the driver shows; 0 without a driver. Loads no CUDA package."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def driver_version() -> str:
    """The newest CUDA version that the driver supports, as "13.0"."""
    number = ctypes.c_int(0)
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def identity(device: int) -> str:
    """The unique name of a GPU, or of a part of a GPU, independent of its number here."""
    driver = ctypes.CDLL("libcuda.so.1")
    handle, uuid = ctypes.c_int(0), (ctypes.c_ubyte * 16)()
    driver.cuDeviceGet(ctypes.byref(handle), device)
    driver.cuDeviceGetUuid_v2(uuid, handle)
    return bytes(uuid).hex()


def gpu_name(local_rank: int = 0) -> str | None:
    """The product name of the GPU that process `local_rank` of a node takes; None without a GPU."""
    gpus = count_gpus()
    if not gpus:
        return None
    driver = ctypes.CDLL("libcuda.so.1")
    handle, name = ctypes.c_int(0), ctypes.create_string_buffer(256)
    driver.cuDeviceGet(ctypes.byref(handle), local_rank % gpus)
    driver.cuDeviceGetName(name, len(name), handle)
    return name.value.decode()


def processor() -> str:
    """The model name of the processor, where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def machine_name(backend: Backend, local_rank: int = 0) -> str:
    """The name of the machine of a backend: a GPU, or cores of a processor."""
    gpu = gpu_name(local_rank) if backend.on_device else None
    return gpu or f"{processor()}, {len(cores())} cores"
