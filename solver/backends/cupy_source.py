"""CUDA C generated from a tape, and the reductions that it calls: the text of the cupy backend."""

from heatsolve.backends import Signature, sums
from heatsolve.backends.device_launch import BLOCK, SPREAD, rows_of
from heatsolve.backends.device_source import Dialect, body, extent_names, thread_indices
from heatsolve.backends.tape import INTEGER, Tape
from heatsolve.points import INDEX_NAMES

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
#define EVERY_LANE 0xffffffffu
typedef long long integer;
typedef unsigned long long word;
#define MAGNITUDE 0x7FFFFFFFFFFFFFFFll
#define INFINITE 0x7FF0000000000000ll

__device__ __forceinline__ int lane() { return (threadIdx.y * blockDim.x + threadIdx.x) & 31; }

// |value| as the bits of a double, which order like integers.
__device__ __forceinline__ integer magnitude(double value) {
    return __double_as_longlong(value) & MAGNITUDE;
}

// The largest magnitude that a warp has seen.
__device__ inline void add_largest(integer mine, integer* reg) {
    for (int step = 16; step; step >>= 1)
        mine = max(mine, __shfl_xor_sync(EVERY_LANE, mine, step));
    if (lane()) return;
    if (mine >= INFINITE) atomicAdd((word*)(reg + NOT_FINITE), 1ull);
    else atomicMax(reg + LARGEST, mine);
}

// The terms of a warp in slices, as in `sums`: exact, so in any order. They stay with their threads
// until `finish`, or until there is a larger one. A slice of a term is whole units, 2^27 at most:
// the sum with an anchor holds them in its lower half, and those of eight terms fit an int.
struct Sum {
    integer* const reg;
    integer slices[SLICES];
    double scale;
    int top = -1, too_large = 0;  // the top slice; the upper half of a double that it cannot hold

    __device__ __forceinline__ explicit Sum(integer* reg) : reg(reg) {}
    template <int N> __device__ __forceinline__ void add(double (&terms)[N]) {
        static_assert(N <= 8, "the terms of a thread");
        int mine = 0;  // the upper half of a double holds its exponent
        for (int n = 0; n < N; n++) mine = max(mine, __double2hiint(terms[n]) & 0x7FFFFFFF);
        const int largest = __reduce_max_sync(EVERY_LANE, mine);
        if (largest >= too_large) {
            if (largest >= INFINITE >> 32) {
                if (!lane()) atomicAdd((word*)(reg + NOT_FINITE), 1ull);
                return;
            }
            finish();
            top = max(0, (largest >> 20) - 1022 - LOWEST) / SLICE_BITS;
            const int above = SLICE_BITS * top + LOWEST;
            scale = __longlong_as_double((integer)(1023 - above) << 52);
            too_large = min(2047, above + SLICE_BITS + 1022) << 20;
            for (int k = 0; k < SLICES; k++) slices[k] = 0;
        }
        double anchor = 6755399441055744.0;  // 1.5 * 2^52
        for (int n = 0; n < N; n++) terms[n] *= scale;
        for (int k = 0; k < SLICES; k++) {
            int units = 0;
            for (int n = 0; n < N; n++) {
                const double lifted = terms[n] + anchor;
                units += __double2loint(lifted);
                terms[n] -= lifted - anchor;
            }
            slices[k] += units;
            anchor *= 1.0 / (1 << SLICE_BITS);
        }
    }
    __device__ void finish() {
        if (top < 0) return;
        for (int k = 0; k < SLICES; k++) {
            integer sum = slices[k];
            for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(EVERY_LANE, sum, step);
            if (!lane()) atomicAdd((word*)(reg + top + SLICES - 1 - k), (word)sum);
        }
        if (!lane()) atomicMax(reg + TOP, (integer)top + 1);
    }
};
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
    x, y = BLOCK[tape.dimension]
    rows = rows_of(signature)
    inside = " && ".join(
        [f"{axes[-1]} >= low_{axes[-1]}", *[f"{axis} < high_{axis}" for axis in axes[1:]]]
    )
    points = [f"if ({inside}) {{", f"    if (i + {rows - 1} < high_i) {{"]
    points += [f"        {line};" for line in body(tape, signature, C_DIALECT, 0, rows)]
    points.append("    } else {")
    for row in range(rows - 1):
        points.append(f"        if (i + {row} < high_i) {{")
        points += [f"            {line};" for line in body(tape, signature, C_DIALECT, row, 1)]
        points.append("        }")
    points += ["    }", "}"]
    reductions = [n for n, kind in enumerate(signature.outputs) if kind != "array"]
    if reductions:
        points = _reducing(signature, points, reductions, rows)
    else:
        points = [f"{line};" for line in thread_indices(signature, C_DIALECT, rows)] + points
    lines = ["if (*gate) return;"] if signature.gated else []
    text = "\n    ".join([*lines, *points])
    head = constants() + REDUCTIONS if reductions else ""
    return (
        f"// {name}\n{head}\n"
        f'extern "C" __global__ void __launch_bounds__({x * y})\n'
        f"sweep({', '.join(parameters)}) {{\n    {text}\n}}\n"
    )


def _reducing(
    signature: Signature, points: list[str], reductions: list[int], rows: int
) -> list[str]:
    """The statements for `rows` points in a loop: a thread goes on as far as the launch leaves it.

    All lanes of a warp go together, because they look at their terms together.
    """
    copy = f"(blockIdx.x + blockIdx.y * 7 + blockIdx.z * 13) % {SPREAD}"
    before, inside, after = [f"const int copy = {copy};"], [], []
    for n in reductions:
        zeros = ", ".join(f"t{n}_{row} = 0" for row in range(rows))
        terms = ", ".join(f"(double)t{n}_{row}" for row in range(rows))
        points = [f"{REAL_OF[signature.precision]} {zeros};", *points]
        inside.append(f"double terms{n}[] = {{{terms}}};")
        if signature.outputs[n] == "sum":
            before.append(f"Sum sum{n}(o{n} + copy * WIDTH);")
            inside.append(f"sum{n}.add(terms{n});")
            after.append(f"sum{n}.finish();")
        else:
            before.append(f"integer most{n} = 0;")
            inside.append(f"for (double term : terms{n}) most{n} = max(most{n}, magnitude(term));")
            after.append(f"add_largest(most{n}, o{n} + copy * WIDTH);")
    loop = {
        1: "",
        2: loop_over(f"{C_DIALECT.thread('y')}", "gridDim.y * blockDim.y", rows),
        3: loop_over(f"{C_DIALECT.block('z')}", "gridDim.z", rows),
    }[signature.dimension]
    start = "first" if loop else None
    found = [f"{line};" for line in thread_indices(signature, C_DIALECT, rows, start)]
    return [*before, f"{loop}{{", *[f"    {s}" for s in (*found, *points, *inside)], "}", *after]


def loop_over(thread: str, threads: str, rows: int) -> str:
    """A loop over rows: of all threads that share them, this one takes its share."""
    start, step = f"low_i + ({thread}) * {rows}", f"{rows} * (long long)({threads})"
    return f"for (long long first = {start}; first < high_i; first += {step}) "


def check_source() -> str:
    """CUDA C of the kernel `check`."""
    return constants() + "typedef long long integer;\n" + CHECK_SOURCE
