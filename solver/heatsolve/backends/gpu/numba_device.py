"""What the cuda backend runs on: a GPU, or Numba's simulator of one.

Numba only compiles: its kernels take plain pointers and its launches cost five times those of
cuda.core. Under the CUDA simulator (NUMBA_ENABLE_CUDASIM=1) the same source runs as Python.
"""

import inspect
import math
import os
import re
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heatsolve.backends import ArrayLibrary
from heatsolve.backends import exact_sums as sums
from heatsolve.backends.compilation import compiling, digest, kept
from heatsolve.backends.gpu.backend import CupyLibrary
from heatsolve.backends.gpu.device import CARDS, limits_of
from heatsolve.backends.gpu.launch import Launch
from heatsolve.backends.gpu.nccl import PRIORITY
from heatsolve.errors import InputError


@dataclass(frozen=True)
class DeviceArray:
    """An array on the device: all or a part of an allocation, which is flat.

    A kernel takes its pointer only.
    """

    shape: tuple[int, ...]
    allocation: Any
    pointer: int
    first: int = 0
    """The element of the allocation with which the array begins."""

    @property
    def dtype(self) -> np.dtype:
        return self.allocation.dtype

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def memory(self) -> Any:
        """Numba's array of its own: a slice, which takes the host some 20 us."""
        return self.allocation[self.first : self.first + self.size]

    def reshape(self, shape: tuple[int, ...]) -> "DeviceArray":
        """The same memory, seen as an array of another shape."""
        return replace(self, shape=shape)

    def part(self, shape: tuple[int, ...], first: int) -> "DeviceArray":
        """So much of the memory, from an element on."""
        if first + math.prod(shape) > self.size:
            raise ValueError(f"{shape} elements from {first} on are not in {self.size}")
        pointer = self.pointer + first * self.dtype.itemsize
        return DeviceArray(shape, self.allocation, pointer, self.first + first)


@dataclass(frozen=True)
class AsArray:
    """A device array to be passed as Numba's array structure instead of a pointer."""

    array: DeviceArray


class Borrowing(CupyLibrary):
    """CuPy on memory of Numba's, in the stream of the sweeps."""

    def __init__(self, cupy: Any, fft: Any, stream: int):
        super().__init__(cupy, fft)
        self._stream = cupy.cuda.ExternalStream(stream)

    @contextmanager
    def queue(self) -> Iterator[None]:
        with self._stream:
            yield

    def view(self, array: DeviceArray) -> Any:
        # CuPy copies an array before a transform if it is a view of another: this one is not.
        cupy = self.namespace
        owned = cupy.cuda.UnownedMemory(array.pointer, array.nbytes, array)
        pointer = cupy.cuda.MemoryPointer(owned, 0)
        return cupy.ndarray(array.shape, array.dtype, memptr=pointer)

    def lend(self, array: Any) -> DeviceArray:
        return DeviceArray(array.shape, array, array.data.ptr)


def flat(arguments: tuple[Any, ...]) -> Iterator[Any]:
    """What a launch takes of the arguments: pointers, numbers, and Numba's array structures."""
    for argument in arguments:
        if isinstance(argument, DeviceArray):
            yield argument.pointer
        elif isinstance(argument, AsArray):
            array = argument.array
            count = array.size
            # Numba's array structure: owner, parent, items, item size, data, shape, strides.
            yield from (0, 0, count, 8, array.pointer, count, 8)
        else:
            yield argument


@contextmanager
def uncontracted() -> Iterator[None]:
    """Numba-CUDA compiles without fused multiply-add inside this block.

    a * b + c must round twice, as on a CPU. Numba has no keyword for it, NVVM has an option.
    """
    from numba.cuda.cudadrv import nvvm

    original = nvvm.compile_ir

    def compile_ir(ir: Any, **options: Any) -> Any:
        return original(ir, **{**options, "fma": False})

    nvvm.compile_ir = compile_ir  # type: ignore[assignment]
    try:
        yield
    finally:
        nvvm.compile_ir = original


def simulated() -> bool:
    """Whether Numba runs kernels in its CUDA simulator."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "1"


def ptx_of(function: Any, types: tuple[Any, ...], capability: tuple[int, int]) -> str:
    """PTX of a kernel."""
    from numba import cuda

    with uncontracted():
        ptx, _ = cuda.compile(
            function, types, device=False, abi="numba", output="ptx", cc=capability
        )
    return ptx


def entry_of(ptx: str) -> str:
    """The name of the kernel in a PTX text."""
    entry = re.search(r"\.entry\s+([\w$]+)", ptx)
    assert entry, "PTX without a kernel"
    return entry.group(1)


def checked(result: Any) -> Any:
    """The value of a call of CUDA's driver or of NVRTC. Raises RuntimeError where it failed."""
    error, *values = result
    if int(error):
        raise RuntimeError(f"CUDA: {error.name}")
    return values[0] if values else None


def compiled_c(source: str, options: tuple[str, ...], target: str) -> bytes:
    """Machine code of CUDA C for a target "sm_80", PTX for "compute_80", by NVRTC."""
    from cuda.bindings import nvrtc

    program = checked(nvrtc.nvrtcCreateProgram(source.encode(), b"heatsolve.cu", 0, [], []))
    args = [option.encode() for option in (*options, f"--gpu-architecture={target}")]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(args), args)
    if int(error):
        log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
        checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(f"NVRTC: {log.decode()}")
    if target.startswith("compute"):
        code = b" " * checked(nvrtc.nvrtcGetPTXSize(program))
        checked(nvrtc.nvrtcGetPTX(program, code))
    else:
        code = b" " * checked(nvrtc.nvrtcGetCUBINSize(program))
        checked(nvrtc.nvrtcGetCUBIN(program, code))
    return code


class Device:
    """A real GPU: memory by Numba, launches by cuda.core, one stream for both.

    Numba follows whichever device cuda.core makes current. Copies are calls of the driver: by Numba
    each would cost the host some 20 us more.
    """

    def __init__(self, cuda: Any, number: int | None):
        try:
            import cuda.core as core
            from cuda.bindings import driver

            self._core, self._driver = core, driver
            self._device = core.Device(number)
            self._device.set_current()
            self.limits = limits_of(self._device.device_id)
            self._stream = self._device.create_stream()
            self._handle = driver.CUstream(int(self._stream.handle))
            self._numba_stream = cuda.external_stream(int(self._stream.handle))
            flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
            self._side = checked(driver.cuStreamCreateWithPriority(flags, PRIORITY))
            untimed = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
            self._forked, self._joined = (checked(driver.cuEventCreate(untimed)) for _ in range(2))
            cuda.current_context()
        except ImportError:
            raise InputError(
                "the cuda backend needs Numba-CUDA: install heatsolve[cuda12] or heatsolve[cuda13]"
            ) from None
        except InputError:
            raise
        except Exception as error:
            reason = (
                str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            )
            raise InputError(f"the cuda backend found no usable CUDA GPU ({reason})") from None
        self._cuda = cuda

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype) -> DeviceArray:
        memory = self._cuda.device_array(int(np.prod(shape)), dtype, stream=self._numba_stream)
        array = DeviceArray(shape, memory, memory.device_ctypes_pointer.value)
        self.zero(array)
        return array

    def memory(self) -> tuple[int, int]:
        error, free, total = self._driver.cuMemGetInfo()
        checked((error,))
        return free, total

    def zero(self, array: DeviceArray) -> None:
        checked(self._driver.cuMemsetD8Async(array.pointer, 0, array.nbytes, self._handle))

    def copy_in(self, host: np.ndarray) -> DeviceArray:
        memory = self._cuda.to_device(host.reshape(-1), stream=self._numba_stream)
        self.sync()
        return DeviceArray(host.shape, memory, memory.device_ctypes_pointer.value)

    def copy_out(self, array: DeviceArray) -> np.ndarray:
        host = np.empty(array.shape, array.dtype)
        self.queue_to_host(host, array)
        self.sync()
        return host

    def copy(self, target: DeviceArray, source: DeviceArray) -> None:
        copy = self._driver.cuMemcpyDtoDAsync
        checked(copy(target.pointer, source.pointer, source.nbytes, self._handle))

    def pinned(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return self._cuda.pinned_array(shape, dtype)

    def queue_to_host(self, host: np.ndarray, array: DeviceArray) -> None:
        copy = self._driver.cuMemcpyDtoHAsync
        checked(copy(host.ctypes.data, array.pointer, host.nbytes, self._handle))

    def queue_to_device(self, array: DeviceArray, host: np.ndarray) -> None:
        copy = self._driver.cuMemcpyHtoDAsync
        checked(copy(array.pointer, host.ctypes.data, host.nbytes, self._handle))

    def library(self) -> ArrayLibrary:
        try:
            import cupy
            import cupyx.scipy.fft
        except ImportError:
            raise InputError(
                "FFTs on the cuda backend need CuPy: install heatsolve[cuda12] or heatsolve[cuda13]"
            ) from None
        return Borrowing(cupy, cupyx.scipy.fft, int(self._stream.handle))

    def sync(self) -> None:
        self._stream.sync()

    def stopwatch(self) -> Callable[[], float]:
        began, ended = self._cuda.event(), self._cuda.event()
        began.record(self._numba_stream)

        def seconds() -> float:
            ended.record(self._numba_stream)
            ended.synchronize()
            return began.elapsed_time(ended) / 1e3

        return seconds

    def compile(self, function: Any, types: tuple[Any, ...], source: str) -> Any:
        ptx = self._cached_ptx(function, types, self.limits.target, source)
        kernel = self._core.ObjectCode.from_ptx(ptx.encode()).get_kernel(entry_of(ptx))
        return self._launching(kernel, 0)

    def compile_c(self, source: str, name: str, options: tuple[str, ...], bytes_shared: int) -> Any:
        """A kernel of CUDA C, compiled by NVRTC or read from the cache."""
        from cuda.bindings import nvrtc

        driver, target = self._driver, self.limits.architecture
        key = digest(source, options, target, nvrtc.nvrtcVersion())

        def make() -> bytes:
            with compiling():
                return compiled_c(source, options, target)

        code = kept(f"heatsolve_{name}_{key}.cubin", make)
        module = self._core.ObjectCode
        loaded = module.from_ptx if self.limits.pretended else module.from_cubin
        kernel = loaded(code).get_kernel(name)
        largest = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        handle = driver.CUkernel(int(kernel.handle))
        checked(driver.cuKernelSetAttribute(largest, bytes_shared, handle, self._device.device_id))
        return self._launching(kernel, bytes_shared)

    def aside(self, work: Callable[[int], None]) -> None:
        driver = self._driver
        checked(driver.cuEventRecord(self._forked, self._handle))
        checked(driver.cuStreamWaitEvent(self._side, self._forked, 0))
        work(int(self._side))
        checked(driver.cuEventRecord(self._joined, self._side))

    def rejoin(self) -> None:
        checked(self._driver.cuStreamWaitEvent(self._handle, self._joined, 0))

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """A graph of what `work` queues."""
        driver, stream = self._driver, self._handle
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        checked(driver.cuStreamBeginCapture(stream, mode))
        try:
            work()
        finally:
            graph = checked(driver.cuStreamEndCapture(stream))
        executable = checked(driver.cuGraphInstantiate(graph, 0))
        checked(driver.cuGraphDestroy(graph))
        checked(driver.cuGraphUpload(executable, stream))  # now, not at the first launch

        def play() -> None:
            checked(driver.cuGraphLaunch(executable, stream))

        # While it is being played the driver waits with it.
        weakref.finalize(play, driver.cuGraphExecDestroy, executable).atexit = False
        return play

    def _launching(self, kernel: Any, bytes_shared: int) -> Any:
        def launch(numbers: Launch, arguments: tuple[Any, ...]) -> None:
            config = self._core.LaunchConfig(
                grid=numbers.grid, block=numbers.block, shmem_size=bytes_shared
            )
            self._core.launch(self._stream, config, kernel, *flat(arguments))

        return launch

    def _cached_ptx(self, function: Any, types: Any, capability: Any, source: str) -> str:
        from numba_cuda import __version__ as version

        from heatsolve.backends.gpu import reductions

        parts = (source, types, capability, version, np.__version__)
        key = digest(*parts, inspect.getsource(reductions), inspect.getsource(sums))

        def make() -> bytes:
            with compiling():
                return ptx_of(function, types, capability).encode()

        return kept(f"heatsolve_kernel_{key}.ptx", make).decode()


class Simulator:
    """Numba's CUDA simulator: kernels run as Python threads, about a millisecond each."""

    limits = replace(CARDS["P100"], processors=1)

    def __init__(self) -> None:
        from numba import cuda

        self._cuda = cuda

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype) -> DeviceArray:
        return self.copy_in(np.zeros(shape, dtype))

    def zero(self, array: DeviceArray) -> None:
        array.memory.copy_to_device(np.zeros(array.memory.size, array.memory.dtype))

    def copy_in(self, host: np.ndarray) -> DeviceArray:
        return DeviceArray(host.shape, self._cuda.to_device(host.reshape(-1).copy()), 0)

    def copy_out(self, array: DeviceArray) -> np.ndarray:
        return array.memory.copy_to_host().reshape(array.shape)

    def copy(self, target: DeviceArray, source: DeviceArray) -> None:
        target.memory.copy_to_device(source.memory)

    def pinned(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return self._cuda.pinned_array(shape, dtype)

    def queue_to_host(self, host: np.ndarray, array: DeviceArray) -> None:
        array.memory.copy_to_host(host.reshape(-1))

    def queue_to_device(self, array: DeviceArray, host: np.ndarray) -> None:
        array.memory.copy_to_device(host.reshape(-1))

    def library(self) -> ArrayLibrary:
        raise InputError("FFTs on the cuda backend need a GPU: the simulator has none")

    def sync(self) -> None:
        pass

    def stopwatch(self) -> Callable[[], float]:
        began = time.perf_counter()
        return lambda: time.perf_counter() - began

    def compile(self, function: Any, types: tuple[Any, ...], source: str) -> Any:
        kernel = self._cuda.jit(function)

        def launch(numbers: Launch, arguments: tuple[Any, ...]) -> None:
            args = [
                a.memory
                if isinstance(a, DeviceArray)
                else a.array.memory
                if isinstance(a, AsArray)
                else a
                for a in arguments
            ]
            kernel[numbers.grid, numbers.block](*args)

        return launch
