"""The cuda backend: Python generated from the tape, compiled by Numba-CUDA, launched by cuda.core.

Numba only compiles: its kernels take plain pointers and its launches cost five times those of
cuda.core. Under the CUDA simulator (NUMBA_ENABLE_CUDASIM=1) the same source runs as Python.
"""

import inspect
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from heatsolve.backends import Signature, cache, sums
from heatsolve.backends.device import (
    ALIGNMENT,
    THREADS,
    DeviceBackend,
    Dialect,
    Launch,
    body,
    launches,
    rows_of,
)
from heatsolve.backends.tape import INTEGER, REAL, Tape
from heatsolve.errors import InputError
from heatsolve.points import INDEX_NAMES, Point

PYTHON_DIALECT = Dialect(
    where="{1} if {0} else {2}",
    sqrt="math.sqrt({0})",
    assign="{name} = {value}",
    constants={"float64": "{value!r}", "float32": "np.float32({value!r})"},
)
PREAMBLE = """\
import math

import numpy as np
from numba import cuda, float64, int64

from heatsolve.backends.cuda_reductions import SPREAD, WIDTH, add_largest, add_sum
"""


def kernel_source(name: str, signature: Signature, tape: Tape) -> str:
    """Python of the kernel `kernel` for a point function."""
    axes = INDEX_NAMES[: tape.dimension]
    rows = rows_of(signature)
    parameters = ["gate"]
    parameters += [f"{end}_{axis}" for axis in axes for end in ("low", "high")]
    parameters += [f"extent_{axis}" for axis in axes[1:]]
    parameters += [f"o{n}" for n in range(len(signature.outputs))]
    parameters += [f"a{n}" for n in range(len(signature.arguments))]
    reductions = [n for n, kind in enumerate(signature.outputs) if kind != "array"]
    zero = PYTHON_DIALECT.constant(0.0, signature.precision)
    lines = ["    if gate[0] != 0:", "        return"] if signature.gated else []
    lines += _thread_indices(tape.dimension, rows)
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
        lines.append(f"    work = cuda.shared.array({sums.SLICES * THREADS}, float64)")
        block = "cuda.blockIdx.x + cuda.blockIdx.y * 7 + cuda.blockIdx.z * 13"
        lines.append(f"    first = int64(({block}) % SPREAD) * WIDTH")
    for n in reductions:
        terms = "".join(f"float(t{n}_{row}), " for row in range(rows))
        call = {"sum": "add_sum", "max": "add_largest"}[signature.outputs[n]]
        lines.append(f"    {call}(({terms}), work, o{n}, first)")
    return f"{PREAMBLE}\n\ndef kernel({', '.join(parameters)}):\n" + "\n".join(lines) + "\n"


def _thread_indices(dimension: int, rows: int) -> list[str]:
    start = f"low_{INDEX_NAMES[dimension - 1]} % {ALIGNMENT}"
    x = f"int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x - {start}"
    y = "int64(cuda.blockIdx.y) * cuda.blockDim.y + cuda.threadIdx.y"
    if dimension == 1:
        return [f"    i = low_i + {x}", "    p = i"]
    if dimension == 2:
        return [
            f"    j = low_j + {x}",
            f"    i = low_i + ({y}) * {rows}",
            "    stride_i = extent_j",
            "    p = i * stride_i + j",
        ]
    return [
        f"    k = low_k + {x}",
        f"    j = low_j + {y}",
        f"    i = low_i + int64(cuda.blockIdx.z) * {rows}",
        "    stride_j = extent_k",
        "    stride_i = extent_j * extent_k",
        "    p = i * stride_i + j * stride_j + k",
    ]


# ---- compiling and launching ------------------------------------------------------------------


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


def kernel_function(source: str) -> Any:
    """The function `kernel` of a generated module."""
    namespace: dict[str, Any] = {"__name__": "heatsolve_generated"}
    exec(compile(source, "<heatsolve kernel>", "exec"), namespace)
    return namespace["kernel"]


def check_types() -> tuple[Any, ...]:
    """Numba types of the parameters of `cuda_reductions.check`."""
    from numba import types

    pointer = types.CPointer(types.int64)
    return (pointer, types.int64, types.float64, pointer, pointer)


def parameter_types(signature: Signature, dimension: int) -> tuple[Any, ...]:
    """Numba types of a kernel's parameters: pointers, but registers as arrays for their atomics."""
    from numba import types

    real = getattr(types, signature.precision)
    named = {REAL: real, INTEGER: types.int64}
    return (
        types.CPointer(types.int64),
        *[types.int64] * (3 * dimension - 1),
        *[
            types.CPointer(real) if kind == "array" else types.int64[::1]
            for kind in signature.outputs
        ],
        *[
            named[kind] if isinstance(kind, str) else types.CPointer(real)
            for kind in signature.arguments
        ],
    )


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
    found = re.search(r"\.entry\s+([\w$]+)", ptx)
    assert found, "PTX without a kernel"
    return found.group(1)


@dataclass(frozen=True)
class DeviceArray:
    """An array on the device: its memory is flat, so that a kernel takes one pointer."""

    shape: tuple[int, ...]
    memory: Any
    pointer: int


class CudaBackend(DeviceBackend):
    """Runs generated Numba-CUDA kernels on the current device, or on the simulator."""

    name = "cuda"

    def __init__(self, precision: str = "float64"):
        super().__init__(precision)
        try:
            from numba import cuda
        except ImportError:
            raise InputError(
                "the cuda backend needs Numba-CUDA: install heatsolve[cuda12] or heatsolve[cuda13]"
            ) from None
        self._cuda = cuda
        self._machine = Simulator() if simulated() else Device(cuda)
        from heatsolve.backends.cuda_reductions import check

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

    def copy(self, target: DeviceArray, source: DeviceArray) -> None:
        self._machine.copy(target, source)

    def sync(self) -> None:
        self._machine.sync()

    def zero(self, array: DeviceArray) -> None:
        self._machine.zero(array)

    def read_integers(self, array: DeviceArray) -> np.ndarray:
        return self._machine.copy_out(array)

    def _queue_check(self, register: DeviceArray, is_sum: bool, limit: float) -> None:
        one = Launch((1, 1, 1), (128, 1, 1), ())
        self._check(one, (register, int(is_sum), float(limit), self._gate, self._rows))

    def _compile(self, point: Point, signature: Signature, tape: Tape) -> Any:
        source = kernel_source(point.__name__, signature, tape)
        types = parameter_types(signature, tape.dimension)
        kernel = self._machine.compile(kernel_function(source), types, source)
        rows = rows_of(signature)
        converts = [
            {REAL: self.dtype.type, INTEGER: int}.get(kind) if isinstance(kind, str) else None
            for kind in signature.arguments
        ]

        def run(region, outputs, arguments) -> None:
            arrays = tuple(
                o for o, kind in zip(outputs, signature.outputs, strict=True) if kind == "array"
            )
            shape = self._common_shape(arrays, arguments)
            targets = [
                o if kind == "array" else AsArray(o.register)
                for o, kind in zip(outputs, signature.outputs, strict=True)
            ]
            given = [
                a if convert is None else convert(a)
                for a, convert in zip(arguments, converts, strict=True)
            ]
            for launch in launches(region, shape, rows):
                kernel(launch, (self._gate, *launch.bounds, *targets, *given))

        return run


@dataclass(frozen=True)
class AsArray:
    """A device array to be passed as Numba's array structure instead of a pointer."""

    array: DeviceArray


class Device:
    """A real GPU: memory by Numba, launches by cuda.core, one stream for both."""

    def __init__(self, cuda: Any):
        try:
            import cuda.core as core

            self._core = core
            self._device = core.Device()
            self._device.set_current()
            self._stream = self._device.create_stream()
            self._numba_stream = cuda.external_stream(int(self._stream.handle))
            cuda.current_context()
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

    def zero(self, array: DeviceArray) -> None:
        from numba.cuda.cudadrv import driver

        driver.device_memset(array.memory, 0, array.memory.nbytes, stream=self._numba_stream)

    def copy_in(self, host: np.ndarray) -> DeviceArray:
        memory = self._cuda.to_device(host.reshape(-1), stream=self._numba_stream)
        self.sync()
        return DeviceArray(host.shape, memory, memory.device_ctypes_pointer.value)

    def copy_out(self, array: DeviceArray) -> np.ndarray:
        host = array.memory.copy_to_host(stream=self._numba_stream)
        self.sync()
        return host.reshape(array.shape)

    def copy(self, target: DeviceArray, source: DeviceArray) -> None:
        target.memory.copy_to_device(source.memory, stream=self._numba_stream)

    def sync(self) -> None:
        self._stream.sync()

    def compile(self, function: Any, types: tuple[Any, ...], source: str) -> Any:
        capability = tuple(self._device.compute_capability)
        ptx = self._cached_ptx(function, types, capability, source)
        kernel = self._core.ObjectCode.from_ptx(ptx.encode()).get_kernel(entry_of(ptx))

        def launch(numbers: Launch, arguments: tuple) -> None:
            config = self._core.LaunchConfig(grid=numbers.grid, block=numbers.block)
            self._core.launch(self._stream, config, kernel, *_flat(arguments))

        return launch

    def _cached_ptx(self, function: Any, types: Any, capability: Any, source: str) -> str:
        from numba_cuda import __version__ as version

        from heatsolve.backends import cuda_reductions

        parts = (source, types, capability, version, np.__version__)
        digest = cache.digest(*parts, inspect.getsource(cuda_reductions), inspect.getsource(sums))
        path = cache.folder() / f"heatsolve_kernel_{digest}.ptx"
        if not path.exists():
            cache.store(path, ptx_of(function, types, capability).encode())
        return path.read_text()


def _flat(arguments: tuple) -> Iterator[Any]:
    for argument in arguments:
        if isinstance(argument, DeviceArray):
            yield argument.pointer
        elif isinstance(argument, AsArray):
            array = argument.array
            (count,) = array.shape
            # Numba's array structure: owner, parent, items, item size, data, shape, strides.
            yield from (0, 0, count, 8, array.pointer, count, 8)
        else:
            yield argument


class Simulator:
    """Numba's CUDA simulator: kernels run as Python threads, about a millisecond each."""

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

    def sync(self) -> None:
        pass

    def compile(self, function: Any, types: tuple[Any, ...], source: str) -> Any:
        kernel = self._cuda.jit(function)

        def launch(numbers: Launch, arguments: tuple) -> None:
            given = [
                a.memory
                if isinstance(a, DeviceArray)
                else a.array.memory
                if isinstance(a, AsArray)
                else a
                for a in arguments
            ]
            kernel[numbers.grid, numbers.block](*given)

        return launch
