"""Loop nests for Numba: the source of a module that sweeps a point function over a region."""

from heatsolve.backends import Signature
from heatsolve.backends.host import numba_cache
from heatsolve.backends.host import numba_reductions as reductions
from heatsolve.stencil.language import INDEX_NAMES
from heatsolve.stencil.trace import Tape, spelled

KEY = "DIGEST"
"""What a generated module calls the digest of itself, which it is given."""
SEGMENT = 2048
"""Points of the innermost axis that one task sweeps: their terms of a sum stay in cache."""


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
        f"@kept({KEY}, parallel={threaded}, nogil=True, error_model='numpy')",
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
    imports.append(f"from {numba_cache.__name__} import kept")
    if terms:
        imports.append(
            f"from {reductions.__name__} import add_largest, add_sum  # {reductions.DIGEST}"
        )
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
            "0" if constant[axis] else _index(INDEX_NAMES[axis], shift, added)
            for axis, (shift, added) in enumerate(subscript)
        ]
        element = f"a{number}[{', '.join(indices)}]"
        return f"real({element})" if f"a{number}" in signature.narrow else element
    return spelled(operation, "{1} if {0} else {2}", "np.sqrt({0})")


def _index(axis: str, shift: int, added: tuple[int, ...]) -> str:
    index = axis
    if shift:
        index += f" {'+' if shift > 0 else '-'} uint64({abs(shift)})"
    return index + "".join(f" + uint64(a{number})" for number in added)
