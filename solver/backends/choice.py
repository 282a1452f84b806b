"""Which backend runs: the one that was named, or the fastest one that works here."""

import ctypes
import os

from heatsolve.backends import Backend
from heatsolve.errors import InputError

NAMES = ("numpy", "numba", "cupy", "cuda")


def make(name: str, precision: str = "float64", threads: int | None = None) -> Backend:
    """The backend of this name. Raises InputError where it cannot work, saying why."""
    if name == "numpy":
        from heatsolve.backends.numpy import NumpyBackend

        return NumpyBackend(precision)
    if name == "numba":
        try:
            from heatsolve.backends.numba import NumbaBackend
        except ImportError as error:
            raise InputError(f"the numba backend cannot load Numba ({error})") from None
        return NumbaBackend(precision, threads)
    if name == "cupy":
        from heatsolve.backends.cupy import CupyBackend

        return CupyBackend(precision)
    if name == "cuda":
        from heatsolve.backends.cuda import CudaBackend

        return CudaBackend(precision)
    raise InputError(f"no backend {name!r}: there are {', '.join(NAMES)}, or auto")


def choose(
    name: str, precision: str = "float64", threads: int | None = None
) -> tuple[Backend, str]:
    """The backend to use and the reason: for `auto` a GPU before threads before plain NumPy.

    The CUDA simulator is never chosen, though it calls itself available.
    """
    if name != "auto":
        return make(name, precision, threads), "as asked for"
    failures = []
    gpus = count_gpus()
    candidates = ["numba", "numpy"]
    if gpus and os.environ.get("NUMBA_ENABLE_CUDASIM", "0") != "1":
        candidates = ["cuda", "cupy", *candidates]
    for candidate in candidates:
        try:
            backend = make(candidate, precision, threads)
        except InputError as error:
            failures.append(str(error))
            continue
        reason = "the fastest that works here" + ("" if gpus else ", there is no CUDA GPU")
        return backend, "; ".join([reason, *failures])
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
