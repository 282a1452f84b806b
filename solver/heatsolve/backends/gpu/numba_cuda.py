"""The cuda backend: generated Python, compiled by Numba-CUDA, launched by cuda.core."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from heatsolve.backends import Signature
from heatsolve.backends.gpu.cuda_arrays import AsArray, DeviceArray
from heatsolve.backends.gpu.cuda_machine import Device, Simulator, simulated
from heatsolve.backends.gpu.cuda_source import (
    check_types,
    kernel_function,
    kernel_source,
    merge_types,
    parameter_types,
)
from heatsolve.backends.gpu.device import DeviceBackend, Kernel
from heatsolve.backends.gpu.device_passes import Compiled
from heatsolve.backends.gpu.launch import SPREAD, Launch
from heatsolve.backends.gpu.pass_source import PASS_OPTIONS
from heatsolve.backends.library import ArrayLibrary
from heatsolve.errors import InputError
from heatsolve.stencil.trace import Tape

ONE_BLOCK = Launch((1, 1, 1), (128, 1, 1), ())


class CudaBackend(DeviceBackend):
    """Runs generated Numba-CUDA kernels on a CUDA device (of a number, or the current one).

    Under NUMBA_ENABLE_CUDASIM=1 they run on the simulator.
    """

    name = "cuda"

    def __init__(self, precision: str = "float64", device: int | None = None):
        super().__init__(precision)
        try:
            from numba import cuda
        except ImportError:
            raise InputError(
                "the cuda backend needs Numba-CUDA: install heatsolve[cuda12] or heatsolve[cuda13]"
            ) from None
        self._machine: Device | Simulator
        self._machine = Simulator() if simulated() else Device(cuda, device)
        self.limits = self._machine.limits
        from heatsolve.backends.gpu.cuda_reductions import check

        self._check = self._machine.compile(check, check_types(), "check")
        self._make_gate()

    def integers(self, count: int) -> DeviceArray:
        return self._machine.zeros((count,), np.dtype(np.int64))

    def zeros(self, shape: Sequence[int]) -> DeviceArray:
        return self._machine.zeros(tuple(shape), self.dtype)

    def to_device(self, host: np.ndarray) -> DeviceArray:
        return self._machine.copy_in(np.array(host, self.dtype, order="C"))

    def to_host(self, array: DeviceArray) -> np.ndarray:
        return self._machine.copy_out(array)

    def part(self, array: DeviceArray, shape: Sequence[int], first: int = 0) -> DeviceArray:
        return array.part(tuple(shape), first)

    def memory(self) -> tuple[int, int]:
        return self._machine.memory() if isinstance(self._machine, Device) else super().memory()

    def _copy(self, target: DeviceArray, source: DeviceArray) -> None:
        self._machine.copy(target, source)

    def pinned(self, shape: Sequence[int]) -> np.ndarray:
        return self._machine.pinned(tuple(shape), self.dtype)

    def queue_to_host(self, host: np.ndarray, array: DeviceArray) -> None:
        self._machine.queue_to_host(host, array)

    def queue_to_device(self, array: DeviceArray, host: np.ndarray) -> None:
        self._machine.queue_to_device(array, host)

    def exposed(self, array: DeviceArray) -> Any:
        return array.memory

    def library(self) -> ArrayLibrary:
        return self._machine.library()

    def sync(self) -> None:
        self._machine.sync()

    def stopwatch(self) -> Callable[[], float]:
        return self._machine.stopwatch()

    def _zero(self, array: DeviceArray) -> None:
        self._machine.zero(array)

    def stored(self, values: np.ndarray) -> DeviceArray:
        return self._machine.copy_in(values)

    def address(self, array: DeviceArray) -> int:
        return array.pointer

    def read_integers(self, array: DeviceArray) -> np.ndarray:
        return self._machine.copy_out(array)

    @cached_property
    def _merge(self) -> Any:
        from heatsolve.backends.gpu.cuda_reductions import merge

        return self._machine.compile(merge, merge_types(), "merge")

    def _queue_merge(self, register: DeviceArray, row: DeviceArray) -> None:
        self._merge(ONE_BLOCK, (register, SPREAD, self._gate, row))

    def _queue_check(self, register: DeviceArray, copies: int, is_sum: bool, limit: float) -> None:
        given = (register, copies, int(is_sum), float(limit), self._gate, self._rows)
        self._check(ONE_BLOCK, given)

    def _aside(self, work: Callable[[int], None]) -> None:
        assert isinstance(self._machine, Device)
        self._machine.aside(work)

    def _rejoin(self) -> None:
        assert isinstance(self._machine, Device)
        self._machine.rejoin()

    def _kernel(self, name: str, signature: Signature, tape: Tape) -> Kernel:
        source = kernel_source(name, signature, tape)
        kernel = self._machine.compile(kernel_function(source), parameter_types(signature), source)
        registers = [n for n, kind in enumerate(signature.outputs) if kind != "array"]

        def queue(launch: Launch, extents: tuple[int, ...], operands: tuple[Any, ...]) -> None:
            given = list(operands)
            for n in registers:
                given[n] = AsArray(given[n])
            kernel(launch, (self._gate, *launch.bounds, *extents, *given))

        return queue

    @property
    def compiles_c(self) -> bool:  # type: ignore[override]
        return isinstance(self._machine, Device)

    def _compile_c(self, source: str, bytes_shared: int) -> Compiled:
        assert isinstance(self._machine, Device)
        kernel = self._machine.compile_c(source, "sweeps", PASS_OPTIONS, bytes_shared)

        def queue(launch: Launch, operands: tuple[Any, ...]) -> None:
            kernel(launch, (self._gate, *operands, *launch.bounds))

        return queue

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        assert isinstance(self._machine, Device)
        return self._machine.captured(work)
