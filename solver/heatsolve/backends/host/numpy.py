"""The numpy backend: whole-array operations on views, in place; it is the reference for bits."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heatsolve.backends import Region, Signature
from heatsolve.backends import exact_sums as sums
from heatsolve.backends.host import Call, HostBackend
from heatsolve.stencil.language import Point
from heatsolve.stencil.trace import CONDITIONS, LEAVES, Operation, Tape

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
# The functions without NumPy's dispatch for other kinds of arrays.
_copyto, _putmask = np.copyto.__wrapped__, np.putmask.__wrapped__  # type: ignore[attr-defined]
BOOL, FIRST = np.dtype(bool), slice(0, 1)
REDUCED_AT_ONCE = 1 << 18
"""The most points of a reduction that are evaluated at once: scratch arrays stay small."""


@dataclass(frozen=True)
class Step:
    """One ufunc call: the places of its operands on the tape, and the scratch array it writes.

    `scratch` is None for the last operation of a sweep with one output: it writes the output.
    """

    name: str
    place: int
    operands: tuple[int, ...]
    scratch: int | None


class NumpyBackend(HostBackend):
    """Runs a tape as ufuncs that write into reused scratch arrays and, last, into the output."""

    name = "numpy"

    def __init__(self, precision: str = "float64"):
        super().__init__(precision)
        self._scratch: dict[Any, np.ndarray] = {}

    def new_register(self) -> np.ndarray:
        return np.zeros(sums.WIDTH, np.int64)

    def read_register(self, register: np.ndarray) -> np.ndarray:
        return register

    def _make(self, calls: Iterable[Call]) -> None:
        with np.errstate(all="ignore"):
            super()._make(calls)

    def _compile(self, point: Point, signature: Signature, tape: Tape) -> Any:
        # `where` writes its target twice, and must not do that to an array that it also reads.
        in_place_where = signature.in_place[0] is not None and tape.operations[-1].name == "where"
        steps = plan(tape, signature.outputs == ("array",) and not in_place_where)

        def run(region: Region, targets: Sequence[Any], arguments: Sequence[Any]) -> None:
            for block in slabs(region) if signature.reduces else (region,):
                self._make(self._bound(tape, steps, signature.outputs, block, targets, arguments))

        return run

    def _bound(
        self,
        tape: Tape,
        steps: Sequence[Step],
        kinds: Sequence[str],
        region: Region,
        targets: Sequence[Any],
        arguments: Sequence[Any],
    ) -> list[Call]:
        """The calls that make a sweep, each bound to views of its operands and its target."""
        shape = tuple([high - low for low, high in region])
        calls: list[Call] = []
        values: list[Any] = [None] * len(tape.operations)
        for place, operation in enumerate(tape.operations):
            if operation.name in LEAVES:
                values[place] = self._leaf(operation, region, arguments, calls)
        for step in steps:
            if step.scratch is None:
                target = _view(targets[0], region)
            else:
                dtype = BOOL if step.name in CONDITIONS else self.dtype
                target = self._scratch_array(shape, dtype, step.scratch)
            if step.name == "where":
                condition, a, b = step.operands
                calls.append((_copyto, (target, values[b])))
                calls.append(_chosen(target, values[condition], values[a]))
            elif len(step.operands) == 2:
                a, b = step.operands
                calls.append((UFUNCS[step.name], (values[a], values[b], target)))
            else:
                calls.append((UFUNCS[step.name], (values[step.operands[0]], target)))
            values[step.place] = target
        if len(targets) > 1:  # an output may hold the value of another output
            for place in tape.results:
                if tape.operations[place].name == "load":
                    kept = self._scratch_array(shape, self.dtype, ("kept", place))
                    calls.append((_copyto, (kept, values[place])))
                    values[place] = kept
        for target, kind, place in zip(targets, kinds, tape.results, strict=True):
            if kind != "array":
                calls.append((_reduce, (kind, values[place], shape, target)))
            elif not (steps and steps[-1].scratch is None):
                calls.append((_copyto, (_view(target, region), values[place])))
        return calls

    def _leaf(
        self, operation: Operation, region: Region, arguments: Sequence[Any], calls: list[Call]
    ) -> Any:
        """An operand: a number, or a view of an array.

        An array in another precision, or of a coarser grid, is copied, anew in each sweep."""
        if operation.name == "constant":
            return self.dtype.type(float.fromhex(operation.operands[0]))
        if operation.name == "scalar":
            return arguments[operation.operands[0]]
        number, subscript = operation.operands
        array = arguments[number]
        view = _view(array, region, subscript, arguments)
        for axis, ((low, high), place) in enumerate(zip(region, subscript, strict=True)):
            if place.scale < 0 and array.shape[axis] > 1:  # each element twice, in each sweep anew
                halves = (np.arange(low, high) + place.shift) // 2
                extents = (*view.shape[:axis], high - low, *view.shape[axis + 1 :])
                doubled = self._scratch_array(extents, view.dtype, (operation.operands, axis))
                calls.append((np.take, (view, halves - halves[:1], axis, doubled)))
                view = doubled
        if view.dtype == self.dtype:
            return view
        converted = self._scratch_array(view.shape, self.dtype, operation.operands)
        calls.append((_copyto, (converted, view)))
        return converted

    def _scratch_array(self, shape: tuple[int, ...], dtype: Any, number: Any) -> np.ndarray:
        key = (shape, dtype, number)
        array = self._scratch.get(key)
        if array is None:
            array = self._scratch[key] = np.empty(shape, dtype)
        return array


def _chosen(target: np.ndarray, condition: np.ndarray, values: Any) -> Call:
    """The call that overwrites a target where a condition holds."""
    if np.shape(values) in ((), target.shape):
        return _putmask, (target, condition, values)
    return _copyto, (target, values, "same_kind", condition)


def _reduce(kind: str, values: Any, shape: tuple[int, ...], register: np.ndarray) -> None:
    """Add the terms of a norm to a register."""
    terms = np.asarray(values, np.float64)
    if terms.shape != shape:
        terms = np.broadcast_to(terms, shape)
    (sums.add_block if kind == "sum" else sums.add_largest)(terms, register)


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
        if operation.name != "where":  # where writes its output twice: not to an operand
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


def _release(
    places: list[int], held: dict[int, tuple[bool, int]], free: dict[bool, list[int]]
) -> None:
    for place in places:
        condition, scratch = held.pop(place)
        free[condition].append(scratch)


def _view(
    array: np.ndarray, region: Region, subscript: Any = None, arguments: Sequence[Any] = ()
) -> np.ndarray:
    """The part of an array that a subscript reads over a region; all along axes of extent 1."""
    window = []
    for axis, (low, high) in enumerate(region):
        if array.shape[axis] == 1:
            window.append(FIRST)
            continue
        if subscript is None:
            window.append(slice(low, high))
            continue
        first, last = (subscript[axis].at(index, arguments) for index in (low, high - 1))
        window.append(slice(first, last + 1, max(subscript[axis].scale, 1)))
    return array[tuple(window)]


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
