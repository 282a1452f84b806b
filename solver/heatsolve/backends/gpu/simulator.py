"""The cuda backend on Numba's CUDA simulator: generated kernels run as Python, on host arrays.

A thread takes about a millisecond. What is not a kernel of Numba-CUDA is done by the host.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from heatsolve.backends import ArrayLibrary, Region, Signature
from heatsolve.backends import exact_sums as sums
from heatsolve.backends.gpu.backend import DeviceBackend
from heatsolve.backends.gpu.device import CARDS
from heatsolve.backends.gpu.launch import Compiled, Launch
from heatsolve.backends.gpu.numba_cuda import kernel_function, python_source
from heatsolve.backends.host import HostBackend
from heatsolve.errors import InputError
from heatsolve.stencil.language import Point
from heatsolve.stencil.trace import Tape


class SimulatedBackend(DeviceBackend, HostBackend):
    """A GPU without fused sweeps, graphs and a compiler of CUDA C."""

    name = "cuda"
    limits = replace(CARDS["P100"], processors=1)

    def __init__(self, precision: str = "float64"):
        super().__init__(precision)
        self._make_gate()

    def integers(self, count: int) -> np.ndarray:
        return np.zeros(count, np.int64)

    def pinned(self, shape: Sequence[int]) -> np.ndarray:
        return self.zeros(shape)

    def _zero(self, array: np.ndarray) -> None:
        array[...] = 0

    def _copy(self, target: np.ndarray, source: np.ndarray) -> None:
        np.copyto(target, source)

    def queue_to_host(self, host: np.ndarray, array: np.ndarray) -> None:
        np.copyto(host, array)

    def queue_to_device(self, array: np.ndarray, host: np.ndarray) -> None:
        np.copyto(array, host)

    def library(self) -> ArrayLibrary:
        raise InputError("FFTs on the cuda backend need a GPU: the simulator has none")

    def replayed(self, work: Callable[[], None]) -> Callable[[], None]:
        return work

    def _compile(self, point: Point, signature: Signature, tape: Tape) -> Any:
        """A sweep that writes the terms of a reduction to an array, which the host adds up."""
        kinds = signature.outputs
        run = super()._compile(point, replace(signature, outputs=("array",) * len(kinds)), tape)

        def reducing(region: Region, targets: Sequence[Any], arguments: Sequence[Any]) -> None:
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

    def _kernel(self, name: str, signature: Signature, tape: Tape) -> Compiled:
        from numba import cuda
        from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

        kernel = cuda.jit(kernel_function(python_source(signature, tape)))

        def queue(launch: Launch, args: tuple[Any, ...]) -> None:
            flat = [FakeCUDAArray(a.reshape(-1)) if isinstance(a, np.ndarray) else a for a in args]
            kernel[launch.grid, launch.block](*flat)

        return queue

    def _queue_check(self, register: np.ndarray, copies: int, kind: str, limit: float) -> None:
        closed, passed = self._gate
        if closed:
            return
        merged = self.read_register(register)
        self._rows.reshape(-1, sums.WIDTH)[passed] = merged
        register[:] = 0
        self._gate[:] = not sums.VALUE_OF[kind](merged) > limit, passed + 1

    def _unknown(self, *args: Any, **named: Any) -> Any:
        raise NotImplementedError("the simulator has neither CUDA C nor graphs nor streams")

    stored = address = captured = _aside = _rejoin = _nvrtc = _loaded = _unknown
