"""CUDA C generated from a tape, and the reductions that it calls: the text of the cupy backend."""

from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files

from heatsolve.backends import Signature
from heatsolve.backends import exact_sums as sums
from heatsolve.backends.gpu.emit import Dialect, body, extent_names, thread_indices
from heatsolve.backends.gpu.launch import SPREAD, shape_of
from heatsolve.backends.gpu.pair_source import march
from heatsolve.stencil.language import INDEX_NAMES
from heatsolve.stencil.trace import INTEGER, Tape

# CuPy's RawKernel is of no use: it adds -ftz=true to its options, which loses denormals.
OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
"""As on a CPU: a * b + c rounds twice, denormals are kept, division and root are exact."""

REAL_OF = {"float64": "double", "float32": "float"}

C_DIALECT = Dialect(
    where="({0} ? {1} : {2})",
    sqrt="sqrt({0})",
    assign="const auto {name} = {value}",
    assign_integer="const long long {name} = {value}",
    wide="(long long){0}",
    real="(double){0}",
    launch="",
    constants={"float64": "{hex}", "float32": "{hex}f"},
)


@cache
def cuda_text(name: str) -> str:
    """The text of a file of CUDA C."""
    return (files("heatsolve.backends.gpu") / "cuda" / name).read_text(encoding="utf-8")


def macro(name: str, value: str | Sequence[str]) -> str:
    """The definition of a macro: one expression, or lines."""
    lines = [value] if isinstance(value, str) else value
    return " \\\n    ".join([f"#define {name}", *lines]) + "\n"


def constants() -> str:
    """The layout of a register as preprocessor constants."""
    names = ("SLICE_BITS", "SLICES", "LOWEST", "TOP", "NOT_FINITE", "LARGEST", "WIDTH")
    values = {name: getattr(sums, name) for name in names} | {"SPREAD": SPREAD}
    return "\n".join(f"#define {name} {value}" for name, value in values.items()) + "\n"


def indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def updates(signature: Signature, tape: Tape) -> list[str]:
    """The lines that update the points of one column where they are in the region."""
    axes, rows = INDEX_NAMES[: tape.dimension], shape_of(signature).rows
    inside = [f"{axes[-1]} >= low_{axes[-1]}", *[f"{axis} < high_{axis}" for axis in axes[1:]]]
    lines = [f"if ({' && '.join(inside)}) {{", f"    if (i + {rows - 1} < high_i) {{"]
    lines += [f"        {line};" for line in body(tape, signature, C_DIALECT, 0, rows)]
    lines.append("    } else {")
    for row in range(rows - 1):
        lines.append(f"        if (i + {row} < high_i) {{")
        lines += [f"            {line};" for line in body(tape, signature, C_DIALECT, row, 1)]
        lines.append("        }")
    return [*lines, "    }", "}"]


def paired(signature: Signature, tape: Tape) -> list[str]:
    """The lines that update those points of two columns that are in the region."""
    axes = INDEX_NAMES[: tape.dimension]
    last, between = axes[-1], [f"{axis} < high_{axis}" for axis in axes[1:-1]]
    return [
        f"const bool first = {last} >= low_{last} && {last} < high_{last};",
        f"const bool second = {last} + 1 >= low_{last} && {last} + 1 < high_{last};",
        f"if ({' && '.join([*between, '(first || second)'])}) {{",
        *indented(march(tape, signature, C_DIALECT, shape_of(signature).rows)),
        "}",
    ]


def kernel_source(name: str, signature: Signature, tape: Tape) -> str:
    """CUDA C of the kernel `sweep` for a point function."""
    axes = INDEX_NAMES[: tape.dimension]
    real = REAL_OF[signature.precision]
    parameters = ["const long long* gate"]
    parameters += [f"long long {end}_{axis}" for axis in axes for end in ("low", "high")]
    parameters += [f"long long {name}" for name in extent_names(signature)]
    parameters += [
        f"{REAL_OF[signature.real_of(f'o{n}')]}* __restrict__ o{n}"
        if kind == "array"
        else f"long long* o{n}"
        for n, kind in enumerate(signature.outputs)
    ]
    for n, kind in enumerate(signature.arguments):
        constant = "" if n in signature.in_place else "const "
        element = REAL_OF[signature.real_of(f"a{n}")]
        number = "long long" if kind == INTEGER else real
        kind_type = number if isinstance(kind, str) else f"{constant}{element}* __restrict__"
        parameters.append(f"{kind_type} a{n}")
    shape = shape_of(signature)
    rows, (x, y) = shape.rows, shape.block
    reductions = [n for n, kind in enumerate(signature.outputs) if kind != "array"]
    lines = ["    if (*gate) return;"] if signature.gated else []
    lines += [f"    {line};" for line in thread_indices(signature, C_DIALECT, shape)]
    lines += [f"    {real} {', '.join(f't{n}_{r} = 0' for r in range(rows))};" for n in reductions]
    lines += indented(paired(signature, tape) if signature.pairs else updates(signature, tape))
    for n in reductions:
        terms = ", ".join(f"(double)t{n}_{r}" for r in range(rows))
        warp = "(thread() >> 5) + blockIdx.x * 3 + blockIdx.y * 7 + blockIdx.z * 13"
        lines.append(f"    double terms{n}[] = {{{terms}}};")
        call = {"sum": "add_sum", "max": "add_largest"}[signature.outputs[n]]
        lines.append(f"    {call}(terms{n}, o{n} + ({warp}) % {SPREAD} * WIDTH);")
    head = cuda_text("pairs.cuh") if signature.pairs else ""
    if reductions:
        head = constants() + cuda_text("reductions.cuh")
    return (
        f"// {name}\n{head}\n"
        f'extern "C" __global__ void __launch_bounds__({x * y})\n'
        f"sweep({', '.join(parameters)}) {{\n" + "\n".join(lines) + "\n}\n"
    )


def check_source() -> str:
    """CUDA C of the kernels `check` and `merge`."""
    return constants() + cuda_text("check.cuh")
