"""The cupy backend: CUDA C generated from the tape, compiled by NVRTC, launched as a RawKernel."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from heatsolve.backends import Signature, cache, sums
from heatsolve.backends.device import (
    ALIGNMENT,
    BLOCK,
    SPREAD,
    DeviceBackend,
    Dialect,
    body,
    launches,
    rows_of,
)
from heatsolve.backends.tape import INTEGER, REAL, Tape
from heatsolve.errors import InputError
from heatsolve.points import INDEX_NAMES, Point

# RawKernel is of no use: CuPy adds -ftz=true to its options, which loses denormals.
OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
"""As on a CPU: a * b + c rounds twice, denormals are kept, division and root are exact."""

C_DIALECT = Dialect(
    where="({0} ? {1} : {2})",
    sqrt="sqrt({0})",
    assign="const auto {name} = {value}",
    constants={"float64": "{hex}", "float32": "{hex}f"},
)

REDUCTIONS = """
typedef long long integer;
typedef unsigned long long word;
#define MAGNITUDE 0x7FFFFFFFFFFFFFFFll
#define INFINITE 0x7FF0000000000000ll
#define MOST_WARPS 32

__device__ int thread() { return threadIdx.y * blockDim.x + threadIdx.x; }
__device__ int warps() { return (blockDim.x * blockDim.y) >> 5; }

// The largest value of a block, in every thread.
template <typename T> __device__ T block_max(T value) {
    __shared__ T lanes[MOST_WARPS];
    for (int step = 16; step; step >>= 1)
        value = max(value, __shfl_xor_sync(0xffffffffu, value, step));
    __syncthreads();
    if ((thread() & 31) == 0) lanes[thread() >> 5] = value;
    __syncthreads();
    for (int warp = 0; warp < warps(); warp++) value = max(value, lanes[warp]);
    return value;
}

template <int N> __device__ void add_largest(const double (&terms)[N], integer* reg) {
    integer mine = 0;
    for (int n = 0; n < N; n++) mine = max(mine, __double_as_longlong(terms[n]) & MAGNITUDE);
    const integer largest = block_max(mine);
    if (largest < INFINITE) {
        if (thread() == 0) atomicMax(reg + LARGEST, largest);
    } else if (mine >= INFINITE) atomicAdd((word*)(reg + NOT_FINITE), 1ull);
}

// The slices of a block's terms are added as doubles: they stay exact below 2^53 units.
template <int N> __device__ void add_sum(double (&terms)[N], integer* reg) {
    int mine = 0;  // the upper half of a double holds its exponent
    for (int n = 0; n < N; n++) mine = max(mine, __double2hiint(terms[n]) & 0x7FFFFFFF);
    const int largest = block_max(mine);
    if (largest >= 0x7FF00000) {
        if (mine >= 0x7FF00000) atomicAdd((word*)(reg + NOT_FINITE), 1ull);
        return;
    }
    const int top = max(0, (largest >> 20) - 1022 - LOWEST - 1) / SLICE_BITS;
    const double scale = __longlong_as_double((integer)(1023 - (SLICE_BITS * top + LOWEST)) << 52);
    for (int n = 0; n < N; n++) terms[n] *= scale;
    __shared__ double units[SLICES][MOST_WARPS];
    double anchor = 6755399441055744.0;  // 1.5 * 2^52
    for (int k = 0; k < SLICES; k++, anchor *= 1.0 / (1 << SLICE_BITS)) {
        double sum = 0;
        for (int n = 0; n < N; n++) {
            const double rounded = (terms[n] + anchor) - anchor;
            sum += rounded;
            terms[n] -= rounded;
        }
        for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if ((thread() & 31) == 0) units[k][thread() >> 5] = sum;
    }
    __syncthreads();
    if (thread() < SLICES) {
        double sum = 0;
        for (int warp = 0; warp < warps(); warp++) sum += units[thread()][warp];
        for (int k = 0; k < thread(); k++) sum *= 1 << SLICE_BITS;
        atomicAdd((word*)(reg + top + SLICES - 1 - thread()), (word)(integer)sum);
        if (thread() == 0) atomicMax(reg + TOP, (integer)top + 1);
    }
    __syncthreads();
}
"""

CHECK_SOURCE = """
// Merges a register into a row of the ledger, clears it, and closes the gate; one block.
extern "C" __global__ void check(
    integer* reg, int sum, double limit, integer* gate, integer* rows
) {
    if (gate[0]) return;
    integer* merged = rows + gate[1] * WIDTH;
    for (int place = threadIdx.x; place < WIDTH; place += blockDim.x) {
        integer value = 0;
        for (int copy = 0; copy < SPREAD; copy++) {
            const integer next = reg[copy * WIDTH + place];
            value = place == TOP || place == LARGEST ? max(value, next) : value + next;
            reg[copy * WIDTH + place] = 0;
        }
        merged[place] = value;
    }
    __syncthreads();
    if (threadIdx.x) return;
    double value = 0;
    if (!sum) value = __longlong_as_double(merged[LARGEST]);
    else if (merged[TOP])
        for (int k = SLICES - 1; k >= 0; k--)
            value += scalbn((double)merged[merged[TOP] - 1 + SLICES - 1 - k],
                            (int)(LOWEST + SLICE_BITS * (merged[TOP] - 1 - k)));
    gate[1] += 1;
    if (merged[NOT_FINITE] || value <= limit) gate[0] = 1;
}
"""


def constants() -> str:
    """The layout of a register as preprocessor constants."""
    names = ("SLICE_BITS", "SLICES", "LOWEST", "TOP", "NOT_FINITE", "LARGEST", "WIDTH")
    values = {name: getattr(sums, name) for name in names} | {"SPREAD": SPREAD}
    return "\n".join(f"#define {name} {value}" for name, value in values.items()) + "\n"


def kernel_source(name: str, signature: Signature, tape: Tape) -> str:
    """CUDA C of the kernel `sweep` for a point function."""
    axes = INDEX_NAMES[: tape.dimension]
    real = {"float64": "double", "float32": "float"}[signature.precision]
    parameters = ["const long long* gate"]
    parameters += [f"long long {end}_{axis}" for axis in axes for end in ("low", "high")]
    parameters += [f"long long extent_{axis}" for axis in axes[1:]]
    parameters += [
        f"{real}* __restrict__ o{n}" if kind == "array" else f"long long* o{n}"
        for n, kind in enumerate(signature.outputs)
    ]
    for n, kind in enumerate(signature.arguments):
        types = {REAL: real, INTEGER: "long long"}
        constant = "" if n in signature.in_place else "const "
        kind_type = types[kind] if isinstance(kind, str) else f"{constant}{real}* __restrict__"
        parameters.append(f"{kind_type} a{n}")
    x, y = BLOCK[tape.dimension]
    rows = rows_of(signature)
    reductions = [n for n, kind in enumerate(signature.outputs) if kind != "array"]
    lines = ["    if (*gate) return;"] if signature.gated else []
    lines += _thread_indices(tape.dimension, rows)
    lines += [f"    {real} {', '.join(f't{n}_{r} = 0' for r in range(rows))};" for n in reductions]
    full = body(tape, signature, C_DIALECT, 0, rows)
    inside = " && ".join(
        [f"{axes[-1]} >= low_{axes[-1]}", *[f"{axis} < high_{axis}" for axis in axes[1:]]]
    )
    lines.append(f"    if ({inside}) {{")
    lines.append(f"        if (i + {rows - 1} < high_i) {{")
    lines += [f"            {line};" for line in full]
    lines.append("        } else {")
    for row in range(rows - 1):
        lines.append(f"            if (i + {row} < high_i) {{")
        lines += [f"                {line};" for line in body(tape, signature, C_DIALECT, row, 1)]
        lines.append("            }")
    lines += ["        }", "    }"]
    for n in reductions:
        terms = ", ".join(f"(double)t{n}_{r}" for r in range(rows))
        copy = f"(blockIdx.x + blockIdx.y * 7 + blockIdx.z * 13) % {SPREAD}"
        lines.append(f"    double terms{n}[] = {{{terms}}};")
        call = {"sum": "add_sum", "max": "add_largest"}[signature.outputs[n]]
        lines.append(f"    {call}(terms{n}, o{n} + ({copy}) * WIDTH);")
    head = constants() + REDUCTIONS if reductions else ""
    return (
        f"// {name}\n{head}\n"
        f'extern "C" __global__ void __launch_bounds__({x * y})\n'
        f"sweep({', '.join(parameters)}) {{\n" + "\n".join(lines) + "\n}\n"
    )


def _thread_indices(dimension: int, rows: int) -> list[str]:
    start = f"low_{INDEX_NAMES[dimension - 1]} % {ALIGNMENT}"
    x = f"(long long)blockIdx.x * blockDim.x + threadIdx.x - {start}"
    y = "(long long)blockIdx.y * blockDim.y + threadIdx.y"
    if dimension == 1:
        return [f"    const long long i = low_i + {x};", "    const long long p = i;"]
    if dimension == 2:
        return [
            f"    const long long j = low_j + {x};",
            f"    const long long i = low_i + ({y}) * {rows};",
            "    const long long stride_i = extent_j;",
            "    const long long p = i * stride_i + j;",
        ]
    return [
        f"    const long long k = low_k + {x};",
        f"    const long long j = low_j + {y};",
        f"    const long long i = low_i + (long long)blockIdx.z * {rows};",
        "    const long long stride_j = extent_k, stride_i = extent_j * extent_k;",
        "    const long long p = i * stride_i + j * stride_j + k;",
    ]


def check_source() -> str:
    """CUDA C of the kernel `check`."""
    return constants() + "typedef long long integer;\n" + CHECK_SOURCE


class CupyBackend(DeviceBackend):
    """Runs generated CUDA C on the current CUDA device."""

    name = "cupy"

    def __init__(self, precision: str = "float64"):
        super().__init__(precision)
        try:
            import cupy

            cupy.cuda.Device().use()
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
        self._check = self._kernel(check_source(), "check")
        self._make_gate()

    def _kernel(self, source: str, name: str) -> Any:
        """A kernel, compiled by NVRTC or read from the cache."""
        compiler, device = self._cupy.cuda.compiler, self._cupy.cuda.Device()
        nvrtc = self._cupy.cuda.nvrtc.getVersion()
        digest = cache.digest(source, OPTIONS, device.compute_capability, nvrtc)
        path = cache.folder() / f"heatsolve_{name}_{digest}.cubin"
        if not path.exists():
            code, _ = compiler.compile_using_nvrtc(source, OPTIONS)
            cache.store(path, code if isinstance(code, bytes) else code.encode())
        return self._cupy.RawModule(path=str(path)).get_function(name)

    def zeros(self, shape: Sequence[int]) -> Any:
        return self._cupy.zeros(tuple(shape), self.dtype)

    def to_device(self, host: np.ndarray) -> Any:
        return self._cupy.asarray(np.array(host, self.dtype, order="C"))

    def to_host(self, array: Any) -> np.ndarray:
        return array.get()

    def copy(self, target: Any, source: Any) -> None:
        stream = self._cupy.cuda.get_current_stream()
        target.data.copy_from_device_async(source.data, source.nbytes, stream)

    def sync(self) -> None:
        self._cupy.cuda.get_current_stream().synchronize()

    def integers(self, count: int) -> Any:
        return self._cupy.zeros(count, self._cupy.int64)

    def zero(self, array: Any) -> None:
        array.data.memset_async(0, array.nbytes)

    def read_integers(self, array: Any) -> np.ndarray:
        return array.get()

    def _queue_check(self, register: Any, is_sum: bool, limit: float) -> None:
        given = (register, np.int32(is_sum), np.float64(limit), self._gate, self._rows)
        self._check((1,), (128,), given)

    def _compile(self, point: Point, signature: Signature, tape: Tape) -> Any:
        source = kernel_source(point.__name__, signature, tape)
        kernel = self._kernel(source, "sweep")
        rows = rows_of(signature)
        real = self.dtype.type
        converts = [
            {REAL: real, INTEGER: np.int64}.get(kind) if isinstance(kind, str) else None
            for kind in signature.arguments
        ]

        def run(region, outputs, arguments) -> None:
            targets = [
                o if kind == "array" else o.register
                for o, kind in zip(outputs, signature.outputs, strict=True)
            ]
            given = [
                a if convert is None else convert(a)
                for a, convert in zip(arguments, converts, strict=True)
            ]
            shape = self._common_shape(
                tuple(
                    o for o, kind in zip(outputs, signature.outputs, strict=True) if kind == "array"
                ),
                arguments,
            )
            for launch in launches(region, shape, rows):
                numbers = [np.int64(number) for number in launch.bounds]
                kernel(launch.grid, launch.block, (self._gate, *numbers, *targets, *given))

        return run
