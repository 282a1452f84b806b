"""What the kernels of several sweeps in one pass have in common: the text of CUDA C.

The first argument of the point function is the field that the sweeps advance; all others are the
same for every sweep, but for numbers. See `pass_source_2d` and `pass_source_3d`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heatsolve.backends.gpu.cupy_source import C_DIALECT, OPTIONS, REAL_OF, constants
from heatsolve.stencil.signature import BYTES_OF, Signature
from heatsolve.stencil.trace import Tape, spelled

PASS_OPTIONS = (*OPTIONS, "--device-as-default-execution-space")
"""Lambdas in kernels count as functions of the host otherwise."""


INVERSE = 3
"""The number of the inverse of the diagonal: behind the field, b, and the weight."""


@dataclass(frozen=True)
class Transfer:
    """What a pass of a multigrid cycle does besides its sweeps.

    If it `restricts`, it ends with the residual of the result, restricted to the coarse level;
    otherwise it begins with what is interpolated from there. `norm`: the kind of that of the
    `residual`, if it is wanted. `operands`: the numbers of the pass's arguments that the residual
    takes after the field.
    """

    restricts: bool
    residual: Tape | None = None
    operands: tuple[int, ...] = ()
    norm: str | None = None


@dataclass(frozen=True)
class Pass:
    """Sweeps of one point function in one pass, as far as their text depends on it.

    `varying`: the numbers of the scalar arguments that differ from sweep to sweep; `norms`: for
    each sweep None, "max" or "sum"; `aligned`: of so many elements, 4, 2 or 1, rows begin at a
    multiple. `colours`: for each sweep 1 or -1 if it updates only the red or black points, else 0;
    `odd`: whether the first plane that is read is odd. `from_zero`: whether the sweeps begin at 0
    wherever they read. `margin`: layers beside the walls beyond which all arrays but the field and
    b hold one value each, if they do. `inverse`: what makes the argument of number INVERSE of those
    behind it, if it is made of them. `transfer`: see `cycle_source` and `cycle_source_3d`.
    """

    tape: Tape
    signature: Signature
    varying: tuple[int, ...]
    norms: tuple[str | None, ...]
    wraps: tuple[bool, ...]
    aligned: int
    colours: tuple[int, ...] = ()
    odd: bool = False
    from_zero: bool = False
    margin: int | None = None
    inverse: Tape | None = None
    transfer: Transfer | None = None

    def is_even(self, number: int) -> bool:
        """Whether an argument has the same value at all points far from walls."""
        return self.margin is not None and number > 1

    def is_made(self, number: int) -> bool:
        """Whether an even argument is made anew near walls: it lies in no cache there."""
        return self.is_even(number) and number == INVERSE and self.inverse is not None

    @property
    def made_of(self) -> range:
        """The numbers of the arguments that the inverse takes."""
        return range(INVERSE + 1, len(self.signature.arguments))

    @property
    def sweeps(self) -> int:
        return len(self.norms)

    @property
    def restricts(self) -> bool:
        """Whether the residual of the result is restricted, too."""
        return self.transfer is not None and self.transfer.restricts

    @property
    def corrects(self) -> bool:
        """Whether it begins with the interpolation of a correction."""
        return self.transfer is not None and not self.transfer.restricts

    @property
    def looks(self) -> bool:
        """Whether the residual of the result is computed, to be restricted or for its norm."""
        return self.transfer is not None and self.transfer.residual is not None

    @property
    def real(self) -> str:
        return REAL_OF[self.signature.precision]

    @property
    def bytes(self) -> int:
        return BYTES_OF[self.signature.precision]

    def operands(self) -> list[tuple[str, str]]:
        """The C types and the names of what a kernel takes between gate and bounds."""
        array = f"const {self.real}* __restrict__"
        found = [(f"{self.real}* __restrict__", "o0"), (array, "a0")]
        for number, kind in enumerate(self.signature.arguments[1:], 1):
            if not isinstance(kind, str):
                found.append((array, f"a{number}"))
            elif number in self.varying:
                found += [(self.real, f"a{number}_{t}") for t in range(self.sweeps)]
            else:
                found.append((self.real, f"a{number}"))
        found += [("integer*", f"reg{t}") for t, kind in enumerate(self.norms) if kind]
        if self.transfer is not None:
            if self.transfer.norm is not None:
                found.append(("integer*", "reg_residual"))
            coarse = f"{self.real}* __restrict__"
            found.append((coarse if self.restricts else f"const {coarse}", "coarse"))
            axes = "ijk"[: self.signature.dimension]
            found += [(array, f"line_{axis}{n}") for axis in axes for n in range(4)]
            found += [("integer", f"coarse_{end}") for end in (*axes, "pitch")]
        return found

    def numbers(self) -> list[str]:
        """The statements that collect the numbers that differ from sweep to sweep."""
        return [
            f"const real s{n}[T] = {{{', '.join(f'a{n}_{t}' for t in range(self.sweeps))}}};"
            for n in self.varying
        ]

    def scalar(self, number: int) -> str:
        """A scalar argument in sweep t."""
        return f"s{number}[t]" if number in self.varying else f"a{number}"


def filled(template: str, work: Pass, defines: Mapping[str, int], **pieces: str) -> str:
    """The text of a kernel: its template, with its pieces, behind what all kernels need."""
    operands = work.operands()
    pieces |= {
        "PARAMETERS": ", ".join(f"{kind} {name}" for kind, name in operands),
        "NAMES": ", ".join(name for _, name in operands),
        "GATE": "if (*gate) return;" if work.signature.gated else "",
    }
    for key, value in pieces.items():
        template = template.replace(f"@{key}@", value)
    head = "".join(f"#define {key} {int(value)}\n" for key, value in defines.items())
    types = f"typedef {work.real} real;\ntypedef {work.real}2 pack;\n"
    functions = c_function("point", work.tape, work.signature.precision)
    if work.transfer is not None and work.transfer.residual is not None:
        functions += c_function("residual", work.transfer.residual, work.signature.precision)
    if work.inverse is not None:
        functions += c_function("inverse", work.inverse, work.signature.precision)
    preamble = PREAMBLE.replace("@PTX@", PTX)
    return constants() + head + types + preamble + functions + template


def place_of(constant: tuple[bool, ...], indices: Sequence[str]) -> str:
    """The place of an element of an array that may be constant along some axes.

    From row to row of one that is not there may be more elements than a row has.
    """
    varying = [axis for axis, same in enumerate(constant) if not same]
    extents = [f"extent_{axis}" for axis in "ijk"[: len(constant)]]
    if not any(constant):
        extents[-1] = "pitch"
    terms = []
    for axis in varying:
        below = [extents[other] for other in varying if other > axis]
        terms.append(" * ".join([f"(size_t)({indices[axis]})", *below]))
    return " + ".join(terms)


def c_function(name: str, tape: Tape, precision: str) -> str:
    """A point function as a C function of all that it reads, in the order of the tape."""
    parameters, lines = [], []
    for place, operation in enumerate(tape.operations):
        if operation.name in ("load", "scalar"):
            parameters.append(f"const real v{place}")
            continue
        if operation.name == "constant":
            value = C_DIALECT.constant(float.fromhex(operation.operands[0]), precision)
        else:
            value = spelled(operation, C_DIALECT.where, C_DIALECT.sqrt)
        lines.append(f"    const auto v{place} = {value};\n")
    (result,) = tape.results
    return (
        f"__device__ __forceinline__ real {name}({', '.join(parameters)}) {{\n"
        f"{''.join(lines)}    return v{result};\n}}\n"
    )


PTX = """
#if __CUDA_ARCH__ >= 800
template <int N> __device__ __forceinline__ void fetch(unsigned to, const void* from) {
    if constexpr (N == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(N));
}
__device__ __forceinline__ void fetched() { asm volatile("cp.async.commit_group;"); }
template <int N> __device__ __forceinline__ void await_all_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
// Barriers in shared memory, eight bytes each: threads arrive, and wait for the others later.
__device__ __forceinline__ void make_barrier(unsigned barriers, int number, int threads) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;"
                 ::"r"(barriers + 8 * number), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive(unsigned barriers, int number) {
    asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}"
                 ::"r"(barriers + 8 * number) : "memory");
}
// Waits until all have arrived for the n-th time, where n is as even or odd as the parity.
__device__ __forceinline__ void await_all(unsigned barriers, int number, int parity) {
#if __CUDA_ARCH__ >= 900
#define ASK "mbarrier.try_wait.parity.shared.b64"
#else
#define ASK "mbarrier.test_wait.parity.shared.b64"
#endif
    asm volatile("{\\n.reg .pred done;\\nASK:\\n" ASK " done, [%0], %1;\\n@!done bra ASK;\\n}"
                 ::"r"(barriers + 8 * number), "r"(parity) : "memory");
}
#else
// Before compute capability 8.0 a thread copies by itself, at once, and there are no such barriers.
template <int N> __device__ __forceinline__ void fetch(unsigned to, const void* from) {
    if constexpr (N == 16) {
        const int4 a = *reinterpret_cast<const int4*>(from);
        asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};"
                     ::"r"(to), "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w) : "memory");
    } else if constexpr (N == 8) {
        const int2 a = *reinterpret_cast<const int2*>(from);
        asm volatile("st.shared.v2.s32 [%0], {%1, %2};" ::"r"(to), "r"(a.x), "r"(a.y) : "memory");
    } else {
        const int a = *reinterpret_cast<const int*>(from);
        asm volatile("st.shared.s32 [%0], %1;" ::"r"(to), "r"(a) : "memory");
    }
}
__device__ __forceinline__ void fetched() {}
template <int N> __device__ __forceinline__ void await_all_but() {}
__device__ __forceinline__ void make_barrier(unsigned, int, int) {}
__device__ __forceinline__ int __reduce_max_sync(unsigned lanes, int value) {
    for (int step = 16; step; step >>= 1)
        value = max(value, __shfl_xor_sync(lanes, value, step));
    return value;
}
#endif
// Stores where a condition holds, without a branch: behind one that may divide a warp the compiler
// looks before every shuffle whether it is whole again, and moves nothing across.
__device__ __forceinline__ void store_if(bool wanted, double* to, double a) {
    asm volatile("{.reg .pred p; setp.ne.s32 p, %0, 0; @p st.global.cs.f64 [%1], %2;}"
                 ::"r"(int(wanted)), "l"(to), "d"(a) : "memory");
}
__device__ __forceinline__ void store_if(bool wanted, float* to, float a) {
    asm volatile("{.reg .pred p; setp.ne.s32 p, %0, 0; @p st.global.cs.f32 [%1], %2;}"
                 ::"r"(int(wanted)), "l"(to), "f"(a) : "memory");
}
__device__ __forceinline__ void store_if(bool wanted, double* to, double a, double b) {
    asm volatile("{.reg .pred p; setp.ne.s32 p, %0, 0; @p st.global.cs.v2.f64 [%1], {%2, %3};}"
                 ::"r"(int(wanted)), "l"(to), "d"(a), "d"(b) : "memory");
}
__device__ __forceinline__ void store_if(bool wanted, float* to, float a, float b) {
    asm volatile("{.reg .pred p; setp.ne.s32 p, %0, 0; @p st.global.cs.v2.f32 [%1], {%2, %3};}"
                 ::"r"(int(wanted)), "l"(to), "f"(a), "f"(b) : "memory");
}
__device__ __forceinline__ void store_if(
    bool wanted, float* to, float a, float b, float c, float d
) {
    asm volatile("{.reg .pred p; setp.ne.s32 p, %0, 0; "
                 "@p st.global.cs.v4.f32 [%1], {%2, %3, %4, %5};}"
                 ::"r"(int(wanted)), "l"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
"""
"""What only the machine's own words say: copies and barriers that one waits for later, and stores
without a branch."""

PREAMBLE = """
#define EVERY_LANE 0xffffffffu
typedef long long integer;
typedef unsigned long long word;
#define MAGNITUDE 0x7FFFFFFFFFFFFFFFll
#define INFINITE 0x7FF0000000000000ll

template <int N> struct Number { static constexpr int value = N; };
struct Range { int low, high; };
__device__ __forceinline__ bool in_range(int index, Range range) {
    return index >= range.low && index < range.high;
}

// The index among 1 ... n of which an index is the periodic image.
__device__ __forceinline__ int wrapped(int index, int n) {
    const int rest = (index - 1) % n;
    return (rest < 0 ? rest + n : rest) + 1;
}

@PTX@template <typename V> __device__ __forceinline__ V from_left(V value) {
    return __shfl_up_sync(EVERY_LANE, value, 1);
}
template <typename V> __device__ __forceinline__ V from_right(V value) {
    return __shfl_down_sync(EVERY_LANE, value, 1);
}

// |value| as the bits of a double, which order like integers.
__device__ __forceinline__ integer magnitude(double value) {
    return __double_as_longlong(value) & MAGNITUDE;
}

// The largest magnitude that a warp has seen.
__device__ void add_largest(integer mine, integer* reg) {
    for (int step = 16; step; step >>= 1)
        mine = max(mine, __shfl_xor_sync(EVERY_LANE, mine, step));
    if (threadIdx.x & 31) return;
    if (mine >= INFINITE) atomicAdd((word*)(reg + NOT_FINITE), 1ull);
    else atomicMax(reg + LARGEST, mine);
}

// The terms of a warp in slices, as in `sums`: exact, so in any order; 2^24 of them at most.
// They stay with their threads until `finish`, or until there is a larger one.
struct Sum {
    integer* const reg;
    double slices[SLICES];
    double scale;
    int top = -1, too_large = 0;  // the top slice; the upper half of a double that it cannot hold

    __device__ __forceinline__ explicit Sum(integer* reg) : reg(reg) {}
    template <int N> __device__ __forceinline__ void add(double (&terms)[N]) {
        int mine = 0;  // the upper half of a double holds its exponent
        for (int n = 0; n < N; n++) mine = max(mine, __double2hiint(terms[n]) & 0x7FFFFFFF);
        const int largest = __reduce_max_sync(EVERY_LANE, mine);
        if (largest >= too_large) {
            if (largest >= INFINITE >> 32) {
                if ((threadIdx.x & 31) == 0) atomicAdd((word*)(reg + NOT_FINITE), 1ull);
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
            for (int n = 0; n < N; n++) {
                const double rounded = (terms[n] + anchor) - anchor;
                slices[k] += rounded;
                terms[n] -= rounded;
            }
            anchor *= 1.0 / (1 << SLICE_BITS);
        }
    }
    __device__ void finish() {
        if (top < 0) return;
        const bool first = (threadIdx.x & 31) == 0;
        double units = 1.0;
        for (int k = 0; k < SLICES; k++) {
            double sum = slices[k];
            for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(EVERY_LANE, sum, step);
            const word whole = (integer)(sum * units);
            if (first) atomicAdd((word*)(reg + top + SLICES - 1 - k), whole);
            units *= 1 << SLICE_BITS;
        }
        if (first) atomicMax(reg + TOP, (integer)top + 1);
    }
};
"""
