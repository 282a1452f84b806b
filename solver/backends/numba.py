"""The numba backend: one compiled loop nest per point function, on all threads of the machine.

For each point function a small Python module is written into the user's cache folder and compiled
by Numba, which keeps the machine code beside it, so that a second run compiles nothing.
"""

import importlib.util
import inspect
import math
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

# A spinning barrier makes two threads on shared cores slower than one; it must be set before
# Numba loads OpenMP, and a user's own setting stays.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numba

from heatsolve.backends import Backend, Region, Signature, cache, sums
from heatsolve.backends import numba_reductions as reductions
from heatsolve.backends.tape import Tape
from heatsolve.points import INDEX_NAMES, Point

SEGMENT = 2048
"""Points of the innermost axis that one task sweeps: their terms of a sum stay in cache."""
THREADED_FROM = 1 << 16
"""Points below which waking a second thread costs more than it brings."""
LONG_FROM = 1 << 12
"""Points from which it pays to compile a loop nest of its own for regions one point wide."""
CHUNKS_PER_THREAD = 4
DIGEST = cache.digest(inspect.getsource(reductions), inspect.getsource(sums))
"""Of the reductions: without it Numba would not notice that a function it has inlined changed."""


class NumbaBackend(Backend):
    """Runs generated loop nests; `threads` defaults to all that Numba sees (NUMBA_NUM_THREADS)."""

    name = "numba"

    def __init__(self, precision: str = "float64", threads: int | None = None):
        super().__init__(precision)
        most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
        self.threads = min(threads or most, most)
        self._chunks = CHUNKS_PER_THREAD * self.threads if self.threads > 1 else 1
        self._threads_set = False

    def zeros(self, shape: Sequence[int]) -> np.ndarray:
        return np.zeros(shape, self.dtype)

    def to_device(self, host: np.ndarray) -> np.ndarray:
        return np.array(host, self.dtype, order="C")

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def sync(self) -> None:
        pass

    def new_register(self) -> np.ndarray:
        return np.zeros((self._chunks, sums.WIDTH), np.int64)

    def read_register(self, register: np.ndarray) -> np.ndarray:
        return sums.merge(register)

    def clear_register(self, register: np.ndarray) -> None:
        register[:] = 0

    def _compile(self, point: Point, signature: Signature, tape: Tape) -> Any:
        terms = sum(kind != "array" for kind in signature.outputs)
        scratch = np.empty((self._chunks, max(1, terms), SEGMENT))
        compiled: dict[tuple[bool, int], Any] = {}

        def run(region: Region, targets: Sequence[Any], arguments: Sequence[Any]) -> None:
            points = math.prod([high - low for low, high in region])
            # Threaded loops take three times as long to compile: only where they bring something.
            threaded = self.threads > 1 and points >= THREADED_FROM
            inner = innermost(region) if points >= LONG_FROM else len(region) - 1
            if (threaded, inner) not in compiled:
                source = loop_nest(point.__name__, signature, tape, threaded, inner)
                compiled[threaded, inner] = _load(source).loops
            if threaded and not self._threads_set:
                numba.set_num_threads(self.threads)
                self._threads_set = True
            bounds = [bound for pair in region for bound in pair]
            chunks = self._chunks if threaded else 1
            compiled[threaded, inner](chunks, scratch, *bounds, *targets, *arguments)

        return run


# ---- the generated module ---------------------------------------------------------------------


def innermost(region: Region) -> int:
    """The axis of the innermost loop: the last one along which there is more than one point."""
    axes = [axis for axis, (low, high) in enumerate(region) if high - low > 1]
    return axes[-1] if axes else len(region) - 1


def loop_nest(name: str, signature: Signature, tape: Tape, threaded: bool, innermost: int) -> str:
    """The source of a module whose `loops` sweeps the point function over a region.

    A task is one segment of one row (innermost axis); the tasks are dealt to `chunks` in order.
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
        f"@njit(parallel={threaded}, nogil=True, cache=True, error_model='numpy')",
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
    imports = ["import numpy as np", "from numba import int64, njit, prange, uint64", ""]
    if terms:
        imports.append(f"from {reductions.__name__} import add_largest, add_sum  # {DIGEST}")
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
    name, operands = tape.operations[place].name, tape.operations[place].operands
    if name == "constant":
        return f"real({float.fromhex(operands[0])!r})"
    if name == "scalar":
        return f"a{operands[0]}"
    if name == "load":
        number, subscript = operands
        constant = signature.arguments[number]
        indices = [
            "0" if constant[axis] else _index(INDEX_NAMES[axis], shift, added)
            for axis, (shift, added) in enumerate(subscript)
        ]
        return f"a{number}[{', '.join(indices)}]"
    values = [f"v{operand}" for operand in operands]
    if name == "where":
        return f"{values[1]} if {values[0]} else {values[2]}"
    if name == "sqrt":
        return f"np.sqrt({values[0]})"
    if name == "neg":
        return f"-{values[0]}"
    return f"{values[0]} {name} {values[1]}"


def _index(axis: str, shift: int, added: tuple[int, ...]) -> str:
    index = axis
    if shift:
        index += f" {'+' if shift > 0 else '-'} uint64({abs(shift)})"
    return index + "".join(f" + uint64(a{number})" for number in added)


# ---- the folder of generated modules ----------------------------------------------------------


def _load(source: str) -> ModuleType:
    """A generated module, from a file, so that Numba can keep its machine code beside it.

    A file that exists is not written again: Numba forgets the machine code of one that was touched.
    """
    name = f"heatsolve_sweep_{cache.digest(source)}"
    if name in sys.modules:
        return sys.modules[name]
    path = cache.folder() / f"{name}.py"
    if not path.exists():
        cache.store(path, source.encode())
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification and specification.loader
    # Numba looks a function's module up by name when it loads machine code.
    sys.modules[name] = module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
