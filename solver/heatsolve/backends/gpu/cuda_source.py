"""Python generated from a tape, to be compiled by Numba-CUDA: the text of the cuda backend."""

from typing import Any

from heatsolve.backends import Signature
from heatsolve.backends.gpu.emit import Dialect, body, extent_names, thread_indices
from heatsolve.backends.gpu.launch import shape_of
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

from heatsolve.backends.gpu.cuda_reductions import WIDTH, add_largest, add_sum
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
    """Numba types of the parameters of `cuda_reductions.check`."""
    from numba import types

    pointer = types.CPointer(types.int64)
    return (pointer, types.int64, types.int64, types.float64, pointer, pointer)


def merge_types() -> tuple[Any, ...]:
    """Numba types of the parameters of `cuda_reductions.merge`."""
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
