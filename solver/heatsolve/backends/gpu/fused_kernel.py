"""Fused sweeps, several in one pass through memory: what their CUDA C is assembled from.

The first argument of the point function is the field that the sweeps advance; all others are the
same for every sweep, but for numbers. See `fused_2d` and `fused_3d`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heatsolve.backends.gpu.emit import (
    C_DIALECT,
    REAL_OF,
    constants,
    cuda_text,
    macro,
)
from heatsolve.stencil.trace import BYTES_OF, Signature, Tape, spelled

INVERSE = 3
"""The number of the inverse of the diagonal: behind the field, b, and the weight."""


@dataclass(frozen=True)
class Transfer:
    """What a leg of a multigrid cycle does besides its sweeps.

    If it `restricts`, it ends with the residual of the result, restricted to the coarse level;
    otherwise it begins with what is interpolated from there. `norm`: the kind of that of the
    `residual`, if it is wanted. `operands`: the numbers of the kernel's arguments that the residual
    takes after the field.
    """

    restricts: bool
    residual: Tape | None = None
    operands: tuple[int, ...] = ()
    norm: str | None = None


@dataclass(frozen=True)
class FusedSweeps:
    """Sweeps of one point function, fused in one kernel, as far as its text depends on them.

    `varying`: the numbers of the scalar arguments that differ from sweep to sweep; `norms`: for
    each sweep None, "max" or "sum"; `aligned`: of so many elements, 4, 2 or 1, rows begin at a
    multiple. `colours`: for each sweep 1 or -1 if it updates only the red or black points, else 0;
    `odd`: whether the first plane that is read is odd. `from_zero`: whether the sweeps begin at 0
    wherever they read. `margin`: layers beside the walls beyond which all arrays but the field and
    b hold one value each, if they do. `inverse`: what makes the argument of number INVERSE of those
    behind it, if it is made of them. `transfer`: what a leg of a multigrid cycle does besides.
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

    def is_uniform(self, number: int) -> bool:
        """Whether an argument has the same value at all points far from walls."""
        return self.margin is not None and number > 1

    def is_recomputed(self, number: int) -> bool:
        """Whether a uniform argument is made anew near walls: it lies in no cache there."""
        return self.is_uniform(number) and number == INVERSE and self.inverse is not None

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
    def has_residual(self) -> bool:
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
        result = [(f"{self.real}* __restrict__", "o0"), (array, "a0")]
        for number, kind in enumerate(self.signature.arguments[1:], 1):
            if not isinstance(kind, str):
                result.append((array, f"a{number}"))
            elif number in self.varying:
                result += [(self.real, f"a{number}_{t}") for t in range(self.sweeps)]
            else:
                result.append((self.real, f"a{number}"))
        result += [("integer*", f"reg{t}") for t, kind in enumerate(self.norms) if kind]
        if self.transfer is not None:
            if self.transfer.norm is not None:
                result.append(("integer*", "reg_residual"))
            coarse = f"{self.real}* __restrict__"
            result.append((coarse if self.restricts else f"const {coarse}", "coarse"))
            axes = "ijk"[: self.signature.dimension]
            result += [(array, f"line_{axis}{n}") for axis in axes for n in range(4)]
            result += [("integer", f"coarse_{end}") for end in (*axes, "pitch")]
        return result

    def numbers(self) -> list[str]:
        """The statements that collect the numbers that differ from sweep to sweep."""
        return [
            f"const real s{n}[T] = {{{', '.join(f'a{n}_{t}' for t in range(self.sweeps))}}};"
            for n in self.varying
        ]

    def scalar(self, number: int) -> str:
        """A scalar argument in sweep t."""
        return f"s{number}[t]" if number in self.varying else f"a{number}"


def assembled(
    file: str,
    work: FusedSweeps,
    numbers: Mapping[str, int],
    pieces: Mapping[str, str | Sequence[str]],
) -> str:
    """The text of the kernel in a file: behind its numbers, its pieces and its point functions.

    A piece is an expression, or a sequence of lines: statements.
    """
    operands, transfer = work.operands(), work.transfer
    norm = None if transfer is None else transfer.norm
    defines = {
        **numbers, "GATED": work.signature.gated, "RESTRICTS": work.restricts,
        "CORRECTS": work.corrects, "FROM_ZERO": work.from_zero, "MAX_NORM": 1, "SUM_NORM": 2,
        "RESIDUAL_NORM": {None: 0, "max": 1, "sum": 2}[norm],
    }  # fmt: skip
    defined = {
        "PARAMETERS": ", ".join(f"{kind} {name}" for kind, name in operands),
        "ARGUMENTS": ", ".join(name for _, name in operands),
        **pieces,
    }
    head = "".join(f"#define {name} {int(value)}\n" for name, value in defines.items())
    head += "".join(macro(name, value) for name, value in defined.items())
    types = f"typedef {work.real} real;\ntypedef {work.real}2 pack;\n"
    functions = c_function("point", work.tape, work.signature.precision)
    if transfer is not None and transfer.residual is not None:
        functions += c_function("residual", transfer.residual, work.signature.precision)
    if work.inverse is not None:
        functions += c_function("inverse", work.inverse, work.signature.precision)
    common = cuda_text("ptx.cuh") + cuda_text("fused.cuh")
    return constants() + head + types + common + functions + cuda_text(file)


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
