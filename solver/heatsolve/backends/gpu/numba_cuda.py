"""The cuda backend: generated Python, compiled by Numba-CUDA, launched by cuda.core."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from heatsolve.backends import ArrayLibrary, Signature
from heatsolve.backends.gpu.backend import DeviceBackend, Kernel
from heatsolve.backends.gpu.emit import Dialect, body, extent_names, thread_indices
from heatsolve.backends.gpu.fused_kernel import FUSED_OPTIONS
from heatsolve.backends.gpu.fused_sweeps import Compiled
from heatsolve.backends.gpu.launch import SPREAD, Launch, shape_of
from heatsolve.backends.gpu.numba_device import AsArray, Device, DeviceArray, Simulator, simulated
from heatsolve.errors import InputError
from heatsolve.stencil.language import INDEX_NAMES
from heatsolve.stencil.trace import INTEGER, Tape

PYTHON_DIALECT = Dialect(
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

from heatsolve.backends.gpu.reductions import WIDTH, add_largest, add_sum
from heatsolve.backends.gpu.launch import SPREAD
"""


def kernel_source(name: str, signature: Signature, tape: Tape) -> str:
    """Python of the kernel `kernel` for a point function."""
    axes = INDEX_NAMES[: tape.dimension]
    shape = shape_of(signature)
    rows = shape.rows
    parameters = ["gate"]
    parameters += [f"{end}_{axis}" for axis in axes for end in ("low", "high")]
    parameters += extent_names(signature)
    parameters += [f"o{n}" for n in range(len(signature.outputs))]
    parameters += [f"a{n}" for n in range(len(signature.arguments))]
    reductions = [n for n, kind in enumerate(signature.outputs) if kind != "array"]
    zero = PYTHON_DIALECT.constant(0.0, signature.precision)
    lines = ["    if gate[0] != 0:", "        return"] if signature.gated else []
    lines += [f"    {line}" for line in thread_indices(signature, PYTHON_DIALECT, shape)]
    lines += [f"    t{n}_{row} = {zero}" for n in reductions for row in range(rows)]
    inside = " and ".join(
        [f"{axes[-1]} >= low_{axes[-1]}", *[f"{axis} < high_{axis}" for axis in axes[1:]]]
    )
    lines += [f"    if {inside}:", f"        if i + {rows - 1} < high_i:"]
    lines += [f"            {line}" for line in body(tape, signature, PYTHON_DIALECT, 0, rows)]
    if rows > 1:
        lines.append("        else:")
    for row in range(rows - 1):
        lines.append(f"            if i + {row} < high_i:")
        lines += [f"                {s}" for s in body(tape, signature, PYTHON_DIALECT, row, 1)]
    if reductions:
        thread = "cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x"
        block = "cuda.blockIdx.x * 3 + cuda.blockIdx.y * 7 + cuda.blockIdx.z * 13"
        lines.append(f"    first = int64((({thread}) // 32 + {block}) % SPREAD) * WIDTH")
    for n in reductions:
        terms = "".join(f"float(t{n}_{row}), " for row in range(rows))
        call = {"sum": "add_sum", "max": "add_largest"}[signature.outputs[n]]
        lines.append(f"    {call}(({terms}), o{n}, first)")
    return f"{PREAMBLE}\n\ndef kernel({', '.join(parameters)}):\n" + "\n".join(lines) + "\n"


def kernel_function(source: str) -> Any:
    """The function `kernel` of a generated module."""
    namespace: dict[str, Any] = {"__name__": "heatsolve_generated"}
    exec(compile(source, "<heatsolve kernel>", "exec"), namespace)
    return namespace["kernel"]


def check_types() -> tuple[Any, ...]:
    """Numba types of the parameters of `reductions.check`."""
    from numba import types

    pointer = types.CPointer(types.int64)
    return (pointer, types.int64, types.int64, types.float64, pointer, pointer)


def merge_types() -> tuple[Any, ...]:
    """Numba types of the parameters of `reductions.merge`."""
    from numba import types

    pointer = types.CPointer(types.int64)
    return (pointer, types.int64, pointer, pointer)


def parameter_types(signature: Signature) -> tuple[Any, ...]:
    """Numba types of a kernel's parameters: pointers, but registers as arrays for their atomics."""
    from numba import types

    real = getattr(types, signature.precision)

    def pointer(name: str) -> Any:
        return types.CPointer(getattr(types, signature.real_of(name)))

    return (
        types.CPointer(types.int64),
        *[types.int64] * (2 * signature.dimension + len(extent_names(signature))),
        *[
            pointer(f"o{n}") if kind == "array" else types.int64[::1]
            for n, kind in enumerate(signature.outputs)
        ],
        *[
            pointer(f"a{n}")
            if not isinstance(kind, str)
            else types.int64
            if kind == INTEGER
            else real
            for n, kind in enumerate(signature.arguments)
        ],
    )


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
        from heatsolve.backends.gpu.reductions import check

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
        from heatsolve.backends.gpu.reductions import merge

        return self._machine.compile(merge, merge_types(), "merge")

    def _queue_merge(self, register: DeviceArray, row: DeviceArray) -> None:
        self._merge(ONE_BLOCK, (register, SPREAD, self._gate, row))

    def _queue_check(self, register: DeviceArray, copies: int, is_sum: bool, limit: float) -> None:
        args = (register, copies, int(is_sum), float(limit), self._gate, self._rows)
        self._check(ONE_BLOCK, args)

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
            args = list(operands)
            for n in registers:
                args[n] = AsArray(args[n])
            kernel(launch, (self._gate, *launch.bounds, *extents, *args))

        return queue

    @property
    def compiles_c(self) -> bool:  # type: ignore[override]
        return isinstance(self._machine, Device)

    def _compile_c(self, source: str, bytes_shared: int) -> Compiled:
        assert isinstance(self._machine, Device)
        kernel = self._machine.compile_c(source, "sweeps", FUSED_OPTIONS, bytes_shared)

        def queue(launch: Launch, operands: tuple[Any, ...]) -> None:
            kernel(launch, (self._gate, *operands, *launch.bounds))

        return queue

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        assert isinstance(self._machine, Device)
        return self._machine.captured(work)
