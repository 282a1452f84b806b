"""How the arrays of a sweep lie in the memory of a device, as far as kernels depend on it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from heatsolve.backends import Region, Signature
from heatsolve.backends.gpu.launch import PAIRS
from heatsolve.stencil.trace import Tape

WIDE = 64
"""Points along the innermost axis from which on pairs of columns pay."""


@dataclass(frozen=True)
class ArrayOperand:
    """An array among the operands of a sweep (outputs, then arguments).

    `name` is that in generated code; `constant` tells for each axis whether the array is read as
    constant along it, which an output never is.
    """

    name: str
    place: int
    constant: tuple[bool, ...]


def arrays_of(signature: Signature) -> tuple[ArrayOperand, ...]:
    """The arrays of a sweep, one that is both output and argument once."""
    count = len(signature.outputs)
    whole = (False,) * signature.dimension
    outputs = [
        ArrayOperand(signature.target(n), n, whole)
        for n, kind in enumerate(signature.outputs)
        if kind == "array"
    ]
    read = [
        ArrayOperand(f"a{n}", count + n, constant)
        for n, constant in enumerate(signature.arguments)
        if not isinstance(constant, str) and n not in signature.in_place
    ]
    return (*outputs, *read)


def layout(
    arrays: Sequence[ArrayOperand], shapes: Sequence[tuple[int, ...]]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The names of the arrays apart, and the extents that the kernel takes.

    The largest array has the common extents. Only extents below the first axis along which an array
    varies matter for its strides: a layer of a few rows is not apart, one of a few columns is.
    """
    pairs = list(zip(arrays, shapes, strict=True))
    whole = [shape for array, shape in pairs if not any(array.constant)]
    # Where every array is constant along some axis, they are the largest extents of all.
    widest = tuple(max(extents) for extents in zip(*shapes, strict=True))
    common = max(whole, key=math.prod, default=widest)
    apart = []
    for array, shape in pairs:
        varying = [axis for axis, constant in enumerate(array.constant) if not constant]
        if any(shape[axis] != common[axis] for axis in varying[1:]):
            apart.append((array.name, shape))
    extents = [extent for shape in (common, *[shape for _, shape in apart]) for extent in shape[1:]]
    return tuple(name for name, _ in apart), tuple(extents)


def may_pair(tape: Tape, signature: Signature, extents: tuple[int, ...]) -> bool:
    """Whether pairs pay for a sweep, and rows of its arrays begin with a pair if the arrays do.

    They pay where something of a row is read again for the next; a sweep that copies is as fast
    without. `extents` are those that the kernel takes, see `layout`. Sums are no matter of memory,
    and two precisions would need pairs of two kinds.
    """
    loads = tape.loads()
    return (
        signature.dimension in PAIRS
        and signature.outputs.count("array") == len(signature.outputs)
        and not signature.apart
        and not signature.narrow
        and extents[-1] % 2 == 0
        and not any(subscript[-1][1] for _, subscript in loads)  # unknown columns
        and any(
            (number, ((shift + 1, added), *others)) in loads
            for number, ((shift, added), *others) in loads
            if not any(signature.arguments[number])
        )
    )


def begin_with_pairs(region: Region, addresses: Sequence[int], itemsize: int) -> bool:
    """Whether a region is worth pairs, and arrays at these addresses begin with one."""
    (low, high) = region[-1]
    return high - low >= WIDE and all(address % (2 * itemsize) == 0 for address in addresses)
