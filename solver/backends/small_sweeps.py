"""Small sweeps, one after the other, in one kernel of one block.

A kernel takes two microseconds, however few points it has; a block's barrier takes a tenth of one.
So of what is played back again and again, sweeps of few points that follow each other share a
kernel: it goes down a table, whose rows tell which point function comes next, where, and of what.
"""

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from heatsolve.backends.cupy_source import C_DIALECT, REAL_OF
from heatsolve.backends.device_launch import Launch
from heatsolve.backends.device_source import body, extent_names, places
from heatsolve.backends.signature import Region, Signature
from heatsolve.backends.tape import INTEGER, Tape
from heatsolve.points import INDEX_NAMES

MOST_POINTS = 1300
"""Points up to which a sweep is small: with more, one block takes longer than many do (H200)."""
THREADS = 1024


def is_small(signature: Signature, region: Region) -> bool:
    """Whether a sweep may share a kernel; it must not reduce."""
    points = math.prod(high - low for low, high in region)
    return points <= MOST_POINTS and all(kind == "array" for kind in signature.outputs)


@dataclass(frozen=True)
class SmallSweep:
    """A sweep that may share a kernel: its function, its region, and what a kernel takes.

    `extents` in the order of `extent_names`; `operands`: outputs, then arguments. `alone` makes it
    ready to be queued by itself.
    """

    signature: Signature
    tape: Tape
    region: Region
    extents: tuple[int, ...]
    operands: tuple[Any, ...]
    alone: Callable[[], Callable[[], None]]

    def row(self, address: Callable[[Any], int]) -> list[int]:
        """What the kernel's table holds of it, after the number of its function."""
        words = [bound for pair in self.region for bound in pair] + list(self.extents)
        for (_, kind), operand in zip(_operands(self.signature), self.operands, strict=True):
            if kind == INTEGER:
                words.append(int(operand))
            elif isinstance(kind, str) and kind != "array":
                words.append(struct.unpack("q", struct.pack("d", operand))[0])
            else:
                words.append(address(operand))
        return words


def _operands(signature: Signature) -> list[tuple[str, Any]]:
    """The names and kinds of what a kernel takes: outputs, which are arrays, then arguments."""
    outputs = [(f"o{n}", "array") for n in range(len(signature.outputs))]
    return outputs + [(f"a{n}", kind) for n, kind in enumerate(signature.arguments)]


@cache
def source(functions: tuple[tuple[Signature, Tape], ...], width: int) -> str:
    """CUDA C of the kernel `sweeps` for these point functions, and rows of so many words."""
    cases = [f"case {n}: sweep_{n}(row + 1); break;" for n in range(len(functions))]
    texts = [_function(n, *function) for n, function in enumerate(functions)]
    gated = any(signature.gated for signature, _ in functions)
    return (
        f"#define WIDTH {width}\n#define THREADS {THREADS}\ntypedef long long integer;\n"
        + "".join(texts)
        + KERNEL.replace("@CASES@", "\n            ".join(cases)).replace(
            "@GATE@", "if (*gate) return;" if gated else ""
        )
    )


KERNEL = """
extern "C" __global__ void __launch_bounds__(THREADS)
sweeps(const integer* gate, const integer* table, integer count) {
    @GATE@
    extern __shared__ __align__(16) unsigned char memory[];
    integer* const rows = reinterpret_cast<integer*>(memory);  // this one and the next
    const int word = threadIdx.x;
    if (word < WIDTH) rows[word] = table[word];
    __syncthreads();
    for (integer n = 0; n < count; n++) {
        const integer* const row = rows + n % 2 * WIDTH;
        if (word < WIDTH && n + 1 < count)
            rows[(n + 1) % 2 * WIDTH + word] = table[(n + 1) * WIDTH + word];
        switch (row[0]) {
            @CASES@
        }
        __syncthreads();
    }
}
"""


def _function(number: int, signature: Signature, tape: Tape) -> str:
    """The C function of a sweep: it takes all from its row."""
    axes = INDEX_NAMES[: tape.dimension]
    names = [f"{end}_{axis}" for axis in axes for end in ("low", "high")] + extent_names(signature)
    lines = [f"const integer {name} = row[{place}];" for place, name in enumerate(names)]
    for place, (name, kind) in enumerate(_operands(signature), len(names)):
        if kind == INTEGER:
            lines.append(f"const integer {name} = row[{place}];")
        elif isinstance(kind, str) and kind != "array":
            real = REAL_OF[signature.precision]
            lines.append(f"const {real} {name} = ({real})__longlong_as_double(row[{place}]);")
        else:
            real = REAL_OF[signature.real_of(name)]
            lines.append(f"{real}* const {name} = reinterpret_cast<{real}*>(row[{place}]);")
    lines += [f"const unsigned across_{axis} = high_{axis} - low_{axis};" for axis in axes]
    points = " * ".join(f"across_{axis}" for axis in axes)
    indices, rest = [], "n"
    for axis in reversed(axes[1:]):
        indices.append(f"const integer {axis} = low_{axis} + {rest} % across_{axis};")
        rest = f"{rest} / across_{axis}"
    indices.append(f"const integer {axes[0]} = low_{axes[0]} + {rest};")
    inside = [
        *indices,
        *[f"{line};" for line in places(signature, C_DIALECT)],
        *[f"{line};" for line in body(tape, signature, C_DIALECT, 0, 1)],
    ]
    return (
        f"__device__ void sweep_{number}(const integer* row) {{\n    "
        + "\n    ".join(lines)
        + f"\n    const unsigned points = {points};"
        + "\n    for (unsigned n = threadIdx.x; n < points; n += THREADS) {\n        "
        + "\n        ".join(inside)
        + "\n    }\n}\n"
    )


def together(backend: Any, sweeps: Sequence[SmallSweep]) -> Callable[[], None]:
    """What queues these sweeps as one kernel, compiled."""
    functions = tuple(dict.fromkeys((sweep.signature, sweep.tape) for sweep in sweeps))
    number_of = {function: number for number, function in enumerate(functions)}
    rows = [
        [number_of[sweep.signature, sweep.tape], *sweep.row(backend.address)] for sweep in sweeps
    ]
    width = max(map(len, rows))
    table = np.zeros((len(rows), width), np.int64)
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    given = backend.stored(table.reshape(-1))
    kernel = backend.c_kernel(source(functions, width), 2 * width * 8)
    one, kept = Launch((1, 1, 1), (THREADS, 1, 1), ()), [sweep.operands for sweep in sweeps]
    # The table holds addresses: what lies there lives as long as what queues the kernel.
    return lambda: kernel(one, (given, backend.integer(len(kept))))
