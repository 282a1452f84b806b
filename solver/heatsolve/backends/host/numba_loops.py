"""Loop nests for Numba: the source of a module that sweeps a point function over a region.

The machine code of loops, and of the reductions that they call, is kept in files of our own cache:
Numba's cache takes a damaged file for sound, and ends a run whose disk is full.
"""

import inspect
import math
import pickle
import sys
from collections.abc import Callable
from typing import Any

import llvmlite
import numba
from numba import float64, int64
from numba.core import serialize
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult

from heatsolve.backends import Signature, compilation
from heatsolve.backends import exact_sums as sums
from heatsolve.backends.exact_sums import (
    ANCHORS,
    LARGEST,
    LOWEST,
    NOT_FINITE,
    SLICE_BITS,
    SLICES,
    TOP,
    UNITS,
)
from heatsolve.stencil.language import INDEX_NAMES
from heatsolve.stencil.trace import Coordinate, Tape, spelled

KEY = "DIGEST"
"""The name of a generated module's own digest in the module."""
SEGMENT = 2048
"""Points of the innermost axis that one task sweeps: their terms of a sum stay in cache."""
KEPT = f"from {__name__} import cached_njit"


def loop_nest(name: str, signature: Signature, tape: Tape, threaded: bool, innermost: int) -> str:
    """The source of a module whose `loops` sweeps the point function over a region.

    A task is one segment of one row (along axis `innermost`); the tasks are dealt to `chunks`.
    Indices are unsigned, because Numba tests signed ones for wrap-around in every access.
    """
    axes = INDEX_NAMES[: tape.dimension]
    inner = axes[innermost]
    outer = tuple(axis for axis in axes if axis != inner)
    arguments = [f"a{n}" for n in range(len(signature.arguments))]
    targets = [f"o{n}" for n in range(len(signature.outputs))]
    bounds = [f"{end}_{axis}" for axis in axes for end in ("low", "high")]
    loop = "prange" if threaded else "range"
    lines = [
        f"@cached_njit({KEY}, parallel={threaded}, nogil=True, error_model='numpy')",
        f"def loops({', '.join(['chunks', 'scratch', *bounds, *targets, *arguments])}):",
        f'    """{name}"""',
        f"    segments = (high_{inner} - low_{inner} + {SEGMENT - 1}) // {SEGMENT}",
        "    tasks = segments" + "".join(f" * (high_{a} - low_{a})" for a in outer),
        f"    for chunk in {loop}(chunks):",
        "        for task in range(tasks * chunk // chunks, tasks * (chunk + 1) // chunks):",
        f"            start = uint64(low_{inner} + task % segments * {SEGMENT})",
        f"            stop = min(start + uint64({SEGMENT}), uint64(high_{inner}))",
        "            row = task // segments",
    ]
    for axis in reversed(outer):
        lines.append(f"            {axis} = uint64(low_{axis} + row % (high_{axis} - low_{axis}))")
        lines.append(f"            row //= high_{axis} - low_{axis}")
    terms = [n for n, kind in enumerate(signature.outputs) if kind != "array"]
    lines += [f"            t{n} = scratch[chunk, {m}]" for m, n in enumerate(terms)]
    lines.append(f"            for {inner} in range(start, stop):")
    lines += [f"                {line}" for line in _body(signature, tape, inner)]
    for n in terms:
        bits = f"t{n}.view(np.int64), int64(stop - start), o{n}[chunk]"
        call = f"add_sum(t{n}, {bits})" if signature.outputs[n] == "sum" else f"add_largest({bits})"
        lines.append(f"            {call}")
    imports = ["import numpy as np", "from numba import int64, prange, uint64", ""]
    imports.append(KEPT)
    if terms:
        imports.append(REDUCTIONS)
    imports.append(f"real = np.{signature.precision}")
    return "\n".join([*imports, "", "", *lines]) + "\n"


def _body(signature: Signature, tape: Tape, inner: str) -> list[str]:
    lines = [
        f"v{place} = {python_expression(signature, tape, place)}"
        for place in range(len(tape.operations))
    ]
    here = ", ".join(INDEX_NAMES[: tape.dimension])
    for n, (kind, place) in enumerate(zip(signature.outputs, tape.results, strict=True)):
        array, term = f"{signature.target(n)}[{here}]", f"t{n}[{inner} - start]"
        lines.append(f"{array if kind == 'array' else term} = v{place}")
    return lines


def python_expression(signature: Signature, tape: Tape, place: int) -> str:
    """One operation of a tape as Python for Numba."""
    operation = tape.operations[place]
    name, operands = operation.name, operation.operands
    if name == "constant":
        return f"real({float.fromhex(operands[0])!r})"
    if name == "scalar":
        return f"a{operands[0]}"
    if name == "load":
        number, subscript = operands
        constant = signature.arguments[number]
        indices = [
            "0" if constant[axis] else _index(INDEX_NAMES[axis], place)
            for axis, place in enumerate(subscript)
        ]
        element = f"a{number}[{', '.join(indices)}]"
        return f"real({element})" if f"a{number}" in signature.narrow else element
    return spelled(operation, "{1} if {0} else {2}", "np.sqrt({0})")


def _index(axis: str, place: Coordinate) -> str:
    index = f"uint64(2) * {axis}" if place.scale == 2 else axis
    if place.shift:
        index += f" {'+' if place.shift > 0 else '-'} uint64({abs(place.shift)})"
    if place.scale == -2:
        index = f"(({index}) >> uint64(1))"
    return index + "".join(f" + uint64(a{number})" for number in place.added)


# ---- machine code, kept from run to run ----------------------------------------------------------

FASTER = {"no_rewrites": True, "no_cfunc_wrapper": True, "_nrt": False}
"""No rewrites, which concern whole arrays, and no wrapper for C, which calls no loop: compilation
takes a third less time and gives the same machine code. No counts of references (an option that
Numba does not document), so loops must make no arrays: to count the views of a row, one thread at a
time, took up to a quarter of the time of short rows."""
VERSIONS = (numba.__version__, llvmlite.__version__, sys.version)


class Kept(_Cache):
    """The machine code of one function: a file for each signature.

    digest: the digest of all that the function depends on but types, processor and compiler.
    """

    def __init__(self, name: str, digest: str):
        self._name, self._digest = name, digest

    cache_path = ""

    def _file(self, signature: Any, codegen: Any) -> str:
        parts = (self._digest, self._name, signature, codegen.magic_tuple(), *VERSIONS)
        return f"heatsolve_{self._name}_{compilation.digest(*parts)}.nbc"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        content = compilation.read(self._file(sig, target_context.codegen()))
        if content is None:
            return None
        return CompileResult._rebuild(target_context, *pickle.loads(content))

    def save_overload(self, sig: Any, data: Any) -> None:
        if not data.library.has_dynamic_globals:
            content = serialize.dumps(data._reduce())
            compilation.write(self._file(sig, data.codegen), content)

    def enable(self) -> None:
        """Do nothing: the cache is always enabled."""

    def disable(self) -> None:
        """Do nothing: the cache is never disabled."""

    def flush(self) -> None:
        """Do nothing: files stay."""


def cached_njit(digest: str, *signatures: Any, **options: Any) -> Callable[[Any], Any]:
    """Numba's `njit`, with the machine code kept in our cache; see `Kept` for the digest, which is
    without the options."""
    options |= FASTER
    digest = compilation.digest(digest, sorted(options.items()))

    def compiled(function: Any) -> Any:
        dispatcher = numba.njit(**options)(function)
        dispatcher._cache = Kept(function.__name__, digest)
        for signature in signatures:
            dispatcher.compile(signature)
        if signatures:
            dispatcher.disable_compile()
        return dispatcher

    return compiled


# ---- reductions: `exact_sums` as loops over the terms of one segment -----------------------------

DIGEST = compilation.digest(inspect.getsource(sys.modules[__name__]), inspect.getsource(sums))
"""The digest of the reductions: a function into which a reduction was inlined changes with it."""
REDUCTIONS = f"from {__name__} import add_largest, add_sum  # {DIGEST}"
MAGNITUDE = 0x7FFFFFFFFFFFFFFF
INFINITE = 0x7FF0000000000000
PER_UNIT = tuple(1.0 / unit for unit in UNITS)


@cached_njit(DIGEST, (int64[::1], int64, int64[::1]))
def add_largest(bits, count, register):
    """Take the largest magnitude of `count` terms, given as bits, into a register.

    Without the sign, the bits of doubles order like integers, Inf and NaN last; integers vectorise.
    """
    largest = int64(0)
    for n in range(count):
        largest = max(largest, bits[n] & MAGNITUDE)
    if largest >= INFINITE:
        for n in range(count):
            register[NOT_FINITE] += int64(1) if bits[n] & MAGNITUDE >= INFINITE else int64(0)
        return int64(0)
    register[LARGEST] = max(register[LARGEST], largest)
    return largest


@cached_njit(DIGEST, (float64[::1], int64[::1], int64, int64[::1]))
def add_sum(terms, bits, count, register):
    """Add `count` terms to a register: `sums.add_block` as loops that vectorise."""
    largest = add_largest(bits, count, register)
    if largest == 0:
        return
    top = max(int64(0), ((largest >> 52) - 1022 - LOWEST) // SLICE_BITS)
    scale = math.ldexp(1.0, -(SLICE_BITS * top + LOWEST))
    for n in range(count):
        terms[n] *= scale
    for k in range(SLICES):
        anchor = ANCHORS[k]
        units = int64(0)
        for n in range(count):
            rounded = (terms[n] + anchor) - anchor
            units += int64(rounded * PER_UNIT[k])
            terms[n] -= rounded
        register[top + SLICES - 1 - k] += units
    register[TOP] = max(register[TOP], top + 1)
