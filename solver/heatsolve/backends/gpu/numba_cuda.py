"""The cuda backend: sweeps compiled by Numba-CUDA, and CUDA C; launched by cuda.core.

Numba only compiles, and is imported only where a kernel is not in the cache, because the import
takes half a second. Kernels take plain pointers. A launch by Numba costs five times a launch by
cuda.core, and a copy some 20 us more than a call of the driver. Sweeps that reduce, and fused
sweeps, are the CUDA C of the cupy backend.
"""

import math
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np

from heatsolve.backends import ArrayLibrary, Signature, digest
from heatsolve.backends.gpu.backend import CupyLibrary, DeviceBackend, queued
from heatsolve.backends.gpu.device import (
    NON_PORTABLE_CLUSTER,
    PORTABLE_CLUSTER,
    limits_of,
)
from heatsolve.backends.gpu.emit import (
    Dialect,
    extent_names,
    indented,
    thread_indices,
    updates,
)
from heatsolve.backends.gpu.launch import Compiled, Launch, shape_of
from heatsolve.backends.gpu.links import PRIORITY
from heatsolve.errors import InputError
from heatsolve.stencil.language import INDEX_NAMES
from heatsolve.stencil.trace import INTEGER, Tape

# ---- sweeps in Python for Numba-CUDA -------------------------------------------------------------

PYTHON_DIALECT = Dialect(
    end="",
    branch="if {0}:",
    conjunction=" and ",
    otherwise="else:",
    close=(),
    where="{1} if {0} else {2}",
    sqrt="math.sqrt({0})",
    assign="{name} = {value}",
    assign_integer="{name} = {value}",
    wide="int64({0})",
    real="float64({0})",
    launch="cuda.",
    constants={"float64": "{value!r}", "float32": "np.float32({value!r})"},
)
PREAMBLE = """\
import math

import numpy as np
from numba import cuda, float64, int64
"""


def python_source(signature: Signature, tape: Tape) -> str:
    """Python of the kernel `kernel` for a point function, whose outputs are arrays."""
    axes, shape = INDEX_NAMES[: tape.dimension], shape_of(signature, tape)
    parameters = ["gate"]
    parameters += [f"{end}_{axis}" for axis in axes for end in ("low", "high")]
    parameters += extent_names(signature)
    parameters += [f"o{n}" for n in range(len(signature.outputs))]
    parameters += [f"a{n}" for n in range(len(signature.arguments))]
    lines = PYTHON_DIALECT.chosen(["gate[0] != 0"], ["return"]) if signature.gated else []
    lines += thread_indices(signature, PYTHON_DIALECT, shape)
    lines += updates(signature, tape, PYTHON_DIALECT)
    head = f"def kernel({', '.join(parameters)}):"
    return "\n".join([PREAMBLE, "", head, *indented(lines), ""])


def kernel_function(source: str) -> Any:
    """The function `kernel` of a generated module."""
    namespace: dict[str, Any] = {"__name__": "heatsolve_generated"}
    exec(compile(source, "<heatsolve kernel>", "exec"), namespace)
    return namespace["kernel"]


def parameter_types(signature: Signature) -> tuple[Any, ...]:
    """Numba types of a kernel's parameters: arrays are pointers."""
    from numba import types

    def type_of(name: str, kind: Any) -> Any:
        if kind == INTEGER:
            return types.int64
        real = getattr(types, signature.real_of(name))
        return real if isinstance(kind, str) and kind != "array" else types.CPointer(real)

    return (
        types.CPointer(types.int64),
        *[types.int64] * (2 * signature.dimension + len(extent_names(signature))),
        *[type_of(f"o{n}", kind) for n, kind in enumerate(signature.outputs)],
        *[type_of(f"a{n}", kind) for n, kind in enumerate(signature.arguments)],
    )


@contextmanager
def uncontracted() -> Iterator[None]:
    """Numba-CUDA compiles without fused multiply-add inside this block.

    a * b + c must round twice, as on a CPU. Numba has no keyword for this, NVVM has an option.
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


ENTRY = "sweep"
"""The name of every kernel."""


def ptx_of(source: str, signature: Signature, capability: tuple[int, int]) -> str:
    """PTX of a generated kernel. Raises InputError where Numba-CUDA cannot be loaded."""
    try:
        from numba import cuda
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"the cuda backend cannot load Numba-CUDA ({reason})") from None

    function, types = kernel_function(source), parameter_types(signature)
    with uncontracted():
        ptx, _ = cuda.compile(
            function, types, device=False, abi="numba", output="ptx", cc=capability
        )
    mangled = re.search(r"\.entry\s+([\w$]+)", ptx)
    assert mangled, "PTX without a kernel"
    return ptx.replace(mangled.group(1), ENTRY)


def assembled(ptx: str, architecture: str) -> bytes:
    """Machine code of PTX; the PTX itself for an architecture "compute_80"."""
    if architecture.startswith("compute"):
        return ptx.encode()
    from cuda.core import Program, ProgramOptions

    return Program(ptx, "ptx", ProgramOptions(arch=architecture)).compile("cubin").code


# ---- CUDA C --------------------------------------------------------------------------------------


def checked(result: Any) -> Any:
    """The value of a call of CUDA's driver or of NVRTC. Raises RuntimeError where it failed."""
    error, *values = result
    if int(error):
        raise RuntimeError(f"CUDA: {error.name}")
    return values[0] if values else None


def compiled_c(source: str, options: tuple[str, ...]) -> bytes:
    """Machine code of CUDA C by NVRTC; PTX for an architecture "compute_80"."""
    from cuda.bindings import nvrtc

    program = checked(nvrtc.nvrtcCreateProgram(source.encode(), b"heatsolve.cu", 0, [], []))
    args = [option.encode() for option in options]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(args), args)
    if int(error):
        log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
        checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(f"NVRTC: {log.decode()}")
    ptx = "=compute" in options[-1]
    size, get = (
        (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
        if ptx
        else (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    )
    code = b" " * checked(size(program))
    checked(get(program, code))
    return code


# ---- arrays --------------------------------------------------------------------------------------


class Memory:
    """Memory of a device, or of the host at a fixed place: its size in bytes, and its address."""

    def __init__(self, size: int, pointer: int):
        self.pointer = pointer
        self.__array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (pointer, False), "version": 3
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Event:
    """A place in the queue of a device."""

    handle: Any


@dataclass(frozen=True)
class DeviceArray:
    """An array on the device: all or a part of the memory that its `owner` holds."""

    shape: tuple[int, ...]
    dtype: np.dtype
    pointer: int
    owner: Any

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        data = self.pointer, False
        return {"shape": self.shape, "typestr": self.dtype.str, "data": data, "version": 3,
                "strides": None}  # fmt: skip

    def reshape(self, shape: Sequence[int]) -> "DeviceArray":
        """The same memory as an array of another shape; as in NumPy, one extent may be -1."""
        known = abs(math.prod(shape))
        result = tuple([self.size // known if extent == -1 else extent for extent in shape])
        if math.prod(result) != self.size:
            raise ValueError(f"{self.size} elements are no array of {tuple(shape)}")
        return replace(self, shape=result)

    def part(self, shape: tuple[int, ...], first: int) -> "DeviceArray":
        """The elements from number `first` on, with this shape, in the same memory."""
        if first + math.prod(shape) > self.size:
            raise ValueError(f"{shape} elements from {first} on are not in {self.size}")
        return replace(self, shape=shape, pointer=self.pointer + first * self.dtype.itemsize)


class Borrowing(CupyLibrary):
    """CuPy on memory of the cuda backend, in the stream of the sweeps."""

    def __init__(self, cupy: Any, fft: Any, stream: Any):
        """`stream`: a stream of cuda.core."""
        super().__init__(cupy, fft)
        if hasattr(cupy.cuda.Stream, "from_external"):  # CuPy 14.2 deprecates ExternalStream
            self._stream = cupy.cuda.Stream.from_external(stream)
        else:
            self._stream = cupy.cuda.ExternalStream(int(stream.handle))

    @contextmanager
    def queue(self) -> Iterator[None]:
        with self._stream:
            yield

    def view(self, array: DeviceArray) -> Any:
        # Before a transform CuPy copies an array that is a view of another array: this one is not.
        cupy = self.namespace
        owned = cupy.cuda.UnownedMemory(array.pointer, array.nbytes, array)
        pointer = cupy.cuda.MemoryPointer(owned, 0)
        return cupy.ndarray(array.shape, array.dtype, memptr=pointer)

    def lend(self, array: Any) -> DeviceArray:
        return DeviceArray(array.shape, array.dtype, array.data.ptr, array)


# ---- the backends --------------------------------------------------------------------------------


class CudaBackend(DeviceBackend):
    """Runs on the CUDA device number `device`, or on the current device.

    The driver allocates memory, cuda.core launches kernels; all work is in one stream.
    """

    name = "cuda"

    def __init__(self, precision: str = "float64", device: int | None = None):
        super().__init__(precision)
        try:
            import cuda.core as core
            from cuda.bindings import driver

            self._core, self._driver = core, driver
            self._versions = version("numba-cuda"), np.__version__
            self._device = core.Device(device)
            self._device.set_current()
            self.limits = limits_of(self._device.device_id)
            self._stream = self._device.create_stream()
            self._handle = driver.CUstream(int(self._stream.handle))
            flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
            self._side = checked(driver.cuStreamCreateWithPriority(flags, PRIORITY))
            untimed = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
            self._forked, self._joined = (checked(driver.cuEventCreate(untimed)) for _ in range(2))
        except ImportError:
            raise InputError(
                "the cuda backend needs Numba-CUDA: install heatsolve[cuda12] or heatsolve[cuda13]"
            ) from None
        except InputError:
            raise
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"the cuda backend found no usable CUDA GPU ({reason})") from None
        self._needless: list[tuple[Callable[[int], Any], int]] = []
        self._make_gate()

    def _allocated(self, size: int, on_host: bool = False) -> Memory:
        """New memory of `size` bytes, on the device or pinned on the host.

        The memory of arrays that are gone is freed here: Python may drop an array while launches
        are captured, when the driver frees nothing.
        """
        driver = self._driver
        while self._needless:
            release, pointer = self._needless.pop()
            checked(release(pointer))
        if on_host:
            pointer, release = checked(driver.cuMemHostAlloc(max(size, 1), 0)), driver.cuMemFreeHost
        else:
            pointer, release = checked(driver.cuMemAlloc(max(size, 1))), driver.cuMemFree
        memory = Memory(size, int(pointer))
        needless = release, memory.pointer
        weakref.finalize(memory, self._needless.append, needless).atexit = False
        return memory

    def _empty(self, shape: Sequence[int], dtype: np.dtype) -> DeviceArray:
        memory = self._allocated(math.prod(shape) * dtype.itemsize)
        return DeviceArray(tuple(shape), dtype, memory.pointer, memory)

    def _zeros(self, shape: Sequence[int], dtype: np.dtype) -> DeviceArray:
        array = self._empty(shape, dtype)
        self.zero(array)
        return array

    def zeros(self, shape: Sequence[int]) -> DeviceArray:
        return self._zeros(shape, self.dtype)

    def integers(self, count: int) -> DeviceArray:
        return self._zeros((count,), np.dtype(np.int64))

    def to_device(self, host: np.ndarray) -> DeviceArray:
        return self.stored(np.array(host, self.dtype, order="C"))

    def stored(self, values: np.ndarray) -> DeviceArray:
        array = self._empty(values.shape, values.dtype)
        self.queue_to_device(array, np.ascontiguousarray(values))
        self.sync()
        return array

    def lent(self, array: DeviceArray) -> Any:
        from numba import cuda

        return cuda.as_cuda_array(array)

    def part(self, array: DeviceArray, shape: Sequence[int], first: int = 0) -> DeviceArray:
        return array.part(tuple(shape), first)

    def memory(self) -> tuple[int, int]:
        error, free, total = self._driver.cuMemGetInfo()
        checked((error,))
        return free, total

    def address(self, array: DeviceArray) -> int:
        return array.pointer

    def zero(self, array: DeviceArray) -> None:
        checked(self._driver.cuMemsetD8Async(array.pointer, 0, array.nbytes, self._handle))

    @queued
    def copy(self, target: DeviceArray, source: DeviceArray) -> None:
        copy = self._driver.cuMemcpyDtoDAsync
        checked(copy(target.pointer, source.pointer, source.nbytes, self._handle))

    def pinned(self, shape: Sequence[int], dtype: Any = None) -> np.ndarray:
        kind = np.dtype(dtype or self.dtype)
        memory = self._allocated(math.prod(shape) * kind.itemsize, on_host=True)
        return np.asarray(memory).view(kind).reshape(shape)

    def mark(self) -> Callable[[], None]:
        return self._stream.record().sync

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
        return Borrowing(cupy, cupyx.scipy.fft, self._stream)

    def sync(self) -> None:
        self._stream.sync()

    def now(self) -> Event:
        driver = self._driver
        event = Event(checked(driver.cuEventCreate(0)))
        weakref.finalize(event, driver.cuEventDestroy, event.handle).atexit = False
        checked(driver.cuEventRecord(event.handle, driver.CUstream(int(self._stream.handle))))
        return event

    def elapsed(self, began: Event, ended: Event) -> float:
        checked(self._driver.cuEventSynchronize(ended.handle))
        return float(checked(self._driver.cuEventElapsedTime(began.handle, ended.handle))) / 1e3

    def _kernel(self, name: str, signature: Signature, tape: Tape) -> Compiled:
        if signature.reduces:
            return super()._kernel(name, signature, tape)
        source, architecture = python_source(signature, tape), self.limits.architecture
        key = digest(source, signature, architecture, *self._versions)

        def make() -> bytes:
            return assembled(ptx_of(source, signature, self.limits.target), architecture)

        return self._made(f"heatsolve_kernel_{key}.cubin", make, ENTRY, 0, alone=True)

    def _nvrtc(self) -> tuple[Any, Callable[[str, tuple[str, ...]], bytes]]:
        from cuda.bindings import nvrtc

        return nvrtc.nvrtcVersion(), compiled_c

    def _loaded(self, code: bytes, name: str, bytes_shared: int) -> Compiled:
        driver, module = self._driver, self._core.ObjectCode
        loaded = module.from_ptx if self.limits.pretended else module.from_cubin
        kernel = loaded(code).get_kernel(name)
        if not bytes_shared:
            return self._launching(kernel, 0)
        largest = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        handle = driver.CUkernel(int(kernel.handle))
        checked(driver.cuKernelSetAttribute(largest, bytes_shared, handle, self._device.device_id))
        if self.limits.cluster > PORTABLE_CLUSTER:
            attribute = driver.CUfunction_attribute(NON_PORTABLE_CLUSTER)
            checked(driver.cuKernelSetAttribute(attribute, 1, handle, self._device.device_id))
        return self._launching(kernel, bytes_shared)

    def _launching(self, kernel: Any, bytes_shared: int) -> Compiled:
        def queue(launch: Launch, args: tuple[Any, ...]) -> None:
            config = self._core.LaunchConfig(
                grid=launch.grid, block=launch.block, shmem_size=bytes_shared
            )
            plain = [a.pointer if isinstance(a, DeviceArray) else a for a in args]
            self._core.launch(self._stream, config, kernel, *plain)

        return queue

    @queued
    def in_line(self, work: Callable[[int], None]) -> None:
        work(int(self._handle))

    @queued
    def aside(self, work: Callable[[int], None]) -> None:
        driver = self._driver
        checked(driver.cuEventRecord(self._forked, self._handle))
        checked(driver.cuStreamWaitEvent(self._side, self._forked, 0))
        stream, self._stream = self._stream, self._core.Stream.from_handle(int(self._side))
        try:
            work(int(self._side))
        finally:
            self._stream = stream
        checked(driver.cuEventRecord(self._joined, self._side))

    @queued
    def rejoin(self) -> None:
        checked(self._driver.cuStreamWaitEvent(self._handle, self._joined, 0))

    def captured(self, calls: Sequence[Callable[[], None]]) -> Callable[[], None]:
        driver, stream = self._driver, self._handle
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        checked(driver.cuStreamBeginCapture(stream, mode))
        try:
            for call in calls:
                call()
        finally:
            graph = checked(driver.cuStreamEndCapture(stream))
        executable = checked(driver.cuGraphInstantiate(graph, 0))
        checked(driver.cuGraphDestroy(graph))
        checked(driver.cuGraphUpload(executable, stream))  # now, not at the first launch

        def play() -> None:
            checked(driver.cuGraphLaunch(executable, stream))

        # The driver destroys a graph only after a launch that is under way.
        weakref.finalize(play, driver.cuGraphExecDestroy, executable).atexit = False
        return play
