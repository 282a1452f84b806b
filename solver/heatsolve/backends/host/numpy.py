"""The numpy backend: whole-array operations on views, in place; it is the reference for bits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heatsolve.backends import Backend, Region, Signature
from heatsolve.backends import exact_sums as sums
from heatsolve.stencil.language import Point
from heatsolve.stencil.trace import Tape

UFUNCS: dict[str, Any] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "neg": np.negative,
    "sqrt": np.sqrt,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
    "&": np.logical_and,
    "|": np.logical_or,
}
LEAVES = ("load", "scalar", "constant")
CONDITIONS = ("<", "<=", ">", ">=", "==", "!=", "&", "|")
REDUCED_AT_ONCE = 1 << 18
"""Points of a reduction that are evaluated together, so that it needs little memory of its own."""


@dataclass(frozen=True)
class Step:
    """One ufunc call: the places of its operands on the tape, and the scratch array it writes.

    `scratch` is None for the last operation of a sweep with one output: it writes the output.
    """

    name: str
    place: int
    operands: tuple[int, ...]
    scratch: int | None


class NumpyBackend(Backend):
    """Runs a tape as ufuncs that write into reused scratch arrays and, last, into the output."""

    name = "numpy"

    def __init__(self, precision: str = "float64"):
        super().__init__(precision)
        self._scratch: dict[Any, np.ndarray] = {}

    def zeros(self, shape: Sequence[int]) -> np.ndarray:
        return np.zeros(shape, self.dtype)

    def to_device(self, host: np.ndarray) -> np.ndarray:
        return np.array(host, self.dtype, order="C")

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def sync(self) -> None:
        pass

    def new_register(self) -> np.ndarray:
        return np.zeros(sums.WIDTH, np.int64)

    def read_register(self, register: np.ndarray) -> np.ndarray:
        return register

    def clear_register(self, register: np.ndarray) -> None:
        register[:] = 0

    def _compile(self, point: Point, signature: Signature, tape: Tape) -> Any:
        # `where` writes its target twice, and must not do that to an array that it also reads.
        in_place_where = signature.in_place[0] is not None and tape.operations[-1].name == "where"
        steps = plan(tape, signature.outputs == ("array",) and not in_place_where)
        reduces = signature.outputs.count("array") < len(signature.outputs)

        def run(region: Region, targets: Sequence[Any], arguments: Sequence[Any]) -> None:
            with np.errstate(all="ignore"):
                for block in slabs(region) if reduces else (region,):
                    self._run(tape, steps, signature.outputs, block, targets, arguments)

        return run

    def _run(self, tape, steps, kinds, region, targets, arguments) -> None:
        shape = tuple([high - low for low, high in region])
        values: list[Any] = [self._leaf(op, region, arguments) for op in tape.operations]
        for step in steps:
            operands = [values[operand] for operand in step.operands]
            if step.scratch is None:
                target = _view(targets[0], region)
            else:
                target = self._scratch_array(step, shape)
            if step.name == "where":
                condition, a, b = operands
                np.copyto(target, b)
                np.copyto(target, a, where=condition)
            else:
                UFUNCS[step.name](*operands, out=target)
            values[step.place] = target
        if len(targets) > 1:  # what one output holds may be another's value
            for place in tape.results:
                if tape.operations[place].name == "load":
                    values[place] = values[place].copy()
        for target, kind, place in zip(targets, kinds, tape.results, strict=True):
            if kind == "array":
                if not (steps and steps[-1].scratch is None):
                    np.copyto(_view(target, region), values[place])
            else:
                terms = np.broadcast_to(np.asarray(values[place], np.float64), shape)
                (sums.add_block if kind == "sum" else sums.add_largest)(terms, target)

    def _leaf(self, operation, region, arguments) -> Any:
        if operation.name == "constant":
            return self.dtype.type(float.fromhex(operation.operands[0]))
        if operation.name == "scalar":
            return arguments[operation.operands[0]]
        if operation.name == "load":
            number, subscript = operation.operands
            shifts = [shift + sum(arguments[n] for n in added) for shift, added in subscript]
            view = _view(arguments[number], region, shifts)
            return view if view.dtype == self.dtype else view.astype(self.dtype)
        return None

    def _scratch_array(self, step: Step, shape: tuple[int, ...]) -> np.ndarray:
        dtype = np.dtype(bool) if step.name in CONDITIONS else self.dtype
        key = (shape, dtype, step.scratch)
        if key not in self._scratch:
            self._scratch[key] = np.empty(shape, dtype)
        return self._scratch[key]


def plan(tape: Tape, writes_output: bool) -> list[Step]:
    """The ufunc calls of a tape, with as few scratch arrays as its values need."""
    last_use = {
        o: place
        for place, op in enumerate(tape.operations)
        for o in op.operands
        if op.name not in LEAVES
    }
    last_use.update(dict.fromkeys(tape.results, len(tape.operations)))
    free: dict[bool, list[int]] = {False: [], True: []}
    held: dict[int, tuple[bool, int]] = {}
    count = 0
    steps = []
    for place, operation in enumerate(tape.operations):
        if operation.name in LEAVES:
            continue
        dying = [o for o in dict.fromkeys(operation.operands) if last_use[o] == place and o in held]
        condition = operation.name in CONDITIONS
        scratch: int | None = None
        if operation.name != "where":  # where writes its output twice: it must not be an operand
            _release(dying, held, free)
        if not (writes_output and tape.results == (place,) and place == len(tape.operations) - 1):
            if free[condition]:
                scratch = free[condition].pop()
            else:
                scratch, count = count, count + 1
            held[place] = (condition, scratch)
        if operation.name == "where":
            _release(dying, held, free)
        steps.append(Step(operation.name, place, operation.operands, scratch))
    return steps


def _release(places: list[int], held: dict, free: dict[bool, list[int]]) -> None:
    for place in places:
        condition, scratch = held.pop(place)
        free[condition].append(scratch)


def _view(array: np.ndarray, region: Region, shifts: Sequence[int] | None = None) -> np.ndarray:
    shifts = shifts or (0,) * len(region)
    return array[
        tuple(
            [
                slice(0, 1) if extent == 1 else slice(low + shift, high + shift)
                for extent, (low, high), shift in zip(array.shape, region, shifts, strict=True)
            ]
        )
    ]


def slabs(region: Region) -> Iterator[Region]:
    """The region in pieces of few points, cut along its slowest axes."""
    (low, high), *rest = region
    across = 1
    for rest_low, rest_high in rest:
        across *= rest_high - rest_low
    if across > REDUCED_AT_ONCE and rest:
        for index in range(low, high):
            yield from (((index, index + 1), *slab) for slab in slabs(tuple(rest)))
        return
    depth = max(1, REDUCED_AT_ONCE // across)
    for start in range(low, high, depth):
        yield ((start, min(high, start + depth)), *rest)
