"""CUDA C generated from a tape, and the reductions that it calls: the text of the cupy backend."""

from collections.abc import Iterable

from heatsolve.backends import Signature
from heatsolve.backends import exact_sums as sums
from heatsolve.backends.gpu.emit import Dialect, body, extent_names, thread_indices
from heatsolve.backends.gpu.launch import SPREAD, shape_of
from heatsolve.backends.gpu.pair_source import STORE, march
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

REDUCTIONS = """
typedef long long integer;
typedef unsigned long long word;
#define MAGNITUDE 0x7FFFFFFFFFFFFFFFll
#define INFINITE 0x7FF0000000000000ll
#define EVERY_LANE 0xffffffffu

__device__ int thread() { return threadIdx.y * blockDim.x + threadIdx.x; }
__device__ int lane() { return thread() & 31; }

// The largest value of a warp, in every lane.
#if __CUDA_ARCH__ < 800
template <typename T> __device__ T __reduce_max_sync(unsigned, T value) {
    for (int step = 16; step; step >>= 1)
        value = max(value, __shfl_xor_sync(EVERY_LANE, value, step));
    return value;
}
__device__ int __reduce_add_sync(unsigned, int value) {
    for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(EVERY_LANE, value, step);
    return value;
}
#endif
__device__ int warp_max(int value) { return __reduce_max_sync(EVERY_LANE, value); }
__device__ integer warp_max(integer value) {
    const int high = warp_max((int)(value >> 32));  // values are not negative
    const unsigned low = (int)(value >> 32) == high ? (unsigned)value : 0u;
    return ((integer)high << 32) + __reduce_max_sync(EVERY_LANE, low);
}

// Warps add their terms each for itself: one that waits for the others of its block reads nothing.
template <int N> __device__ void add_largest(const double (&terms)[N], integer* reg) {
    integer mine = 0;
    for (int n = 0; n < N; n++) mine = max(mine, __double_as_longlong(terms[n]) & MAGNITUDE);
    const integer largest = warp_max(mine);
    if (largest < INFINITE) {
        if (lane() == 0) atomicMax(reg + LARGEST, largest);
    } else if (mine >= INFINITE) atomicAdd((word*)(reg + NOT_FINITE), 1ull);
}

// Slices are whole units, so a warp adds them as integers. The sum with an anchor holds one in its
// lower half: that of a term is 2^27 units at most, those of eight fit an int.
template <int N> __device__ void add_sum(double (&terms)[N], integer* reg) {
    static_assert(N <= 8, "the terms of a thread");
    int mine = 0;  // the upper half of a double holds its exponent
    for (int n = 0; n < N; n++) mine = max(mine, __double2hiint(terms[n]) & 0x7FFFFFFF);
    const int largest = warp_max(mine);
    if (largest >= 0x7FF00000) {
        if (mine >= 0x7FF00000) atomicAdd((word*)(reg + NOT_FINITE), 1ull);
        return;
    }
    const int top = max(0, (largest >> 20) - 1022 - LOWEST) / SLICE_BITS;
    const double scale = __longlong_as_double((integer)(1023 - (SLICE_BITS * top + LOWEST)) << 52);
    for (int n = 0; n < N; n++) terms[n] *= scale;
    integer units = 0;  // a lane takes the slice of its number
    double anchor = 6755399441055744.0;  // 1.5 * 2^52
    for (int k = 0; k < SLICES; k++, anchor *= 1.0 / (1 << SLICE_BITS)) {
        int sum = 0;
        for (int n = 0; n < N; n++) {
            const double lifted = terms[n] + anchor;
            sum += __double2loint(lifted);
            terms[n] -= lifted - anchor;
        }
        const int low = __reduce_add_sync(EVERY_LANE, sum & 0xFFFF);
        const int high = __reduce_add_sync(EVERY_LANE, sum >> 16);
        if (lane() == k) units = (integer)high * 0x10000 + low;
    }
    if (lane() < SLICES) atomicAdd((word*)(reg + top + SLICES - 1 - lane()), (word)units);
    if (lane() == 0) atomicMax(reg + TOP, (integer)top + 1);
}
"""

CHECK_SOURCE = """
__device__ void merge_into(integer* row, integer* reg, int copies) {
    for (int place = threadIdx.x; place < WIDTH; place += blockDim.x) {
        integer value = 0;
        for (int copy = 0; copy < copies; copy++) {
            const integer next = reg[copy * WIDTH + place];
            value = place == TOP || place == LARGEST ? max(value, next) : value + next;
        }
        // Stores between the loads would make each of them wait.
        for (int copy = 0; copy < copies; copy++) reg[copy * WIDTH + place] = 0;
        row[place] = value;
    }
}

// Merges a register into a row, and clears it; one block.
extern "C" __global__ void merge(integer* reg, int copies, integer* gate, integer* row) {
    if (!gate[0]) merge_into(row, reg, copies);
}

// Merges a register into a row of the ledger, clears it, and closes the gate; one block.
extern "C" __global__ void check(
    integer* reg, int copies, int sum, double limit, integer* gate, integer* rows
) {
    if (gate[0]) return;
    integer* merged = rows + gate[1] * WIDTH;
    merge_into(merged, reg, copies);
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
    head = STORE if signature.pairs else constants() + REDUCTIONS if reductions else ""
    return (
        f"// {name}\n{head}\n"
        f'extern "C" __global__ void __launch_bounds__({x * y})\n'
        f"sweep({', '.join(parameters)}) {{\n" + "\n".join(lines) + "\n}\n"
    )


def check_source() -> str:
    """CUDA C of the kernels `check` and `merge`."""
    return constants() + "typedef long long integer;\n" + CHECK_SOURCE
