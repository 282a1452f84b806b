"""The cupy backend: generated CUDA C, compiled by NVRTC, memory and launches by CuPy."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from heatsolve.backends import ArrayLibrary
from heatsolve.backends.gpu.backend import CupyLibrary, DeviceBackend, queued
from heatsolve.backends.gpu.device import NON_PORTABLE_CLUSTER, PORTABLE_CLUSTER, limits_of
from heatsolve.backends.gpu.launch import Compiled, Launch
from heatsolve.backends.gpu.links import PRIORITY
from heatsolve.errors import InputError


class CupyBackend(DeviceBackend):
    """Runs generated CUDA C on the CUDA device number `device`, or on the current device."""

    name = "cupy"
    integer = np.int64
    vectors = True

    def __init__(self, precision: str = "float64", device: int | None = None):
        super().__init__(precision)
        try:
            import cupy

            cupy.cuda.Device(device).use()
            cupy.zeros(1)
        except ImportError:
            raise InputError(
                "the cupy backend needs CuPy: install heatsolve[cuda12] or heatsolve[cuda13]"
            ) from None
        except Exception as error:
            # CuPy says "driver version is insufficient" where there is no driver at all.
            reason = str(error).splitlines()[0]
            raise InputError(f"the cupy backend found no usable CUDA GPU ({reason})") from None
        self._cupy = cupy
        self.limits = limits_of(cupy.cuda.Device().id)
        self._side = cupy.cuda.Stream(non_blocking=True, priority=PRIORITY)
        self._forked, self._joined = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
        self._make_gate()

    def _nvrtc(self) -> tuple[Any, Callable[[str, tuple[str, ...]], bytes]]:
        nvrtc = self._cupy.cuda.nvrtc

        def compile_c(source: str, options: tuple[str, ...]) -> bytes:
            program = nvrtc.createProgram(source, "heatsolve.cu", (), ())
            try:
                nvrtc.compileProgram(program, options)
                code = (nvrtc.getPTX if self.limits.pretended else nvrtc.getCUBIN)(program)
            except nvrtc.NVRTCError as error:
                raise RuntimeError(f"NVRTC: {nvrtc.getProgramLog(program)}") from error
            finally:
                nvrtc.destroyProgram(program)
            return code if isinstance(code, bytes) else code.encode()

        return nvrtc.getVersion(), compile_c

    def _loaded(self, code: bytes, name: str, bytes_shared: int) -> Compiled:
        module, driver = self._cupy.cuda.function.Module(), self._cupy.cuda.driver
        module.load(code)
        kernel = module.get_function(name)
        if bytes_shared:
            largest = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            driver.funcSetAttribute(kernel.ptr, largest, bytes_shared)

        if bytes_shared and self.limits.cluster > PORTABLE_CLUSTER:
            driver.funcSetAttribute(kernel.ptr, NON_PORTABLE_CLUSTER, 1)

        def queue(launch: Launch, args: tuple[Any, ...]) -> None:
            kernel(launch.grid, launch.block, args, shared_mem=bytes_shared)

        return queue

    def zeros(self, shape: Sequence[int]) -> Any:
        return self._cupy.zeros(tuple(shape), self.dtype)

    def to_device(self, host: np.ndarray) -> Any:
        return self._cupy.asarray(np.array(host, self.dtype, order="C"))

    def memory(self) -> tuple[int, int]:
        return self._cupy.cuda.runtime.memGetInfo()

    @queued
    def copy(self, target: Any, source: Any) -> None:
        stream = self._cupy.cuda.get_current_stream()
        target.data.copy_from_device_async(source.data, source.nbytes, stream)

    def library(self) -> ArrayLibrary:
        import cupyx.scipy.fft

        return CupyLibrary(self._cupy, cupyx.scipy.fft)

    def sync(self) -> None:
        self._cupy.cuda.get_current_stream().synchronize()

    def now(self) -> Any:
        event = self._cupy.cuda.Event()
        event.record()
        return event

    def elapsed(self, began: Any, ended: Any) -> float:
        ended.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(began, ended)) / 1e3

    def pinned(self, shape: Sequence[int], dtype: Any = None) -> np.ndarray:
        # As cupyx.empty_pinned does, without cupyx: its import would load SciPy, which takes time.
        kind = np.dtype(dtype or self.dtype)
        memory = self._cupy.cuda.alloc_pinned_memory(math.prod(shape) * kind.itemsize)
        return np.ndarray(tuple(shape), kind, memory)

    def mark(self) -> Callable[[], None]:
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record()
        return event.synchronize

    def queue_to_host(self, host: np.ndarray, array: Any) -> None:
        # CuPy's own copy refuses to be captured, though the memory is pinned.
        runtime, stream = self._cupy.cuda.runtime, self._cupy.cuda.get_current_stream()
        places = host.ctypes.data, array.data.ptr, host.nbytes
        runtime.memcpyAsync(*places, runtime.memcpyDeviceToHost, stream.ptr)

    def queue_to_device(self, array: Any, host: np.ndarray) -> None:
        array.data.copy_from_host_async(host.ctypes.data, host.nbytes)

    def integers(self, count: int) -> Any:
        return self._cupy.zeros(count, self._cupy.int64)

    def zero(self, array: Any) -> None:
        array.data.memset_async(0, array.nbytes)

    def stored(self, values: np.ndarray) -> Any:
        return self._cupy.asarray(values)

    def address(self, array: Any) -> int:
        return array.data.ptr

    @queued
    def in_line(self, work: Callable[[int], None]) -> None:
        work(self._cupy.cuda.get_current_stream().ptr)

    @queued
    def aside(self, work: Callable[[int], None]) -> None:
        self._forked.record()
        self._side.wait_event(self._forked)
        with self._side:
            work(self._side.ptr)
        self._joined.record(self._side)

    @queued
    def rejoin(self) -> None:
        self._cupy.cuda.get_current_stream().wait_event(self._joined)

    def captured(self, calls: Sequence[Callable[[], None]]) -> Callable[[], None]:
        stream = self._cupy.cuda.Stream(non_blocking=True)  # the default stream cannot be captured
        with stream:
            stream.begin_capture()
            try:
                for call in calls:
                    call()
            finally:
                graph = stream.end_capture()
        graph.upload()  # now, not at the first launch
        return graph.launch
