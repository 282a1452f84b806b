"""Tracing: a point function, run once on symbols, gives the input of every code generator.

`record` calls the point function with symbols in place of its arguments. It returns a `Tape`: a
list of operations in the order of evaluation, each with the places of its operands, without
repeats. The generators only translate this list, so that no backend can change the order of
operations. A point function that breaks the rules of the language is refused here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partialmethod
from typing import Any, NamedTuple

from heatsolve.stencil.language import ONE, ZERO, Known, Point, dimension, evaluate

ARRAY, REAL, INTEGER, HELD = "array", "real", "integer", "held"
KNOWN: dict[str, Known] = {"one": ONE, "zero": ZERO}
"""The kinds of argument of a point function; ONE and ZERO are known beforehand, and on no tape.

A product with ONE is left out. A point function may test for ZERO and leave terms out.
"""

LEAVES = ("load", "scalar", "constant", "carried")
"""The entries of a tape whose operands are no places."""
CONDITIONS = ("<", "<=", ">", ">=", "==", "!=", "&", "|")
"""The entries that are no numbers."""


@dataclass(frozen=True)
class Operation:
    """One entry of a tape: a name, and operands (places on the tape, or data of the entry)."""

    name: str
    operands: tuple[Any, ...]


class Coordinate(NamedTuple):
    """The place along one axis at which a point function reads an array.

    By `scale` the index plus the `shift` (1), twice the index plus the shift (2), or half of the
    sum of the index and the shift, rounded down (-2); plus the integer arguments `added`.
    """

    shift: int
    added: tuple[int, ...] = ()
    scale: int = 1

    def moved(self, distance: int) -> "Coordinate":
        """The coordinate of the point at this distance."""
        return self._replace(shift=self.shift + max(self.scale, 1) * distance)

    def at(self, index: int, arguments: Sequence[Any]) -> int:
        """Its value for an index and the arguments of a sweep."""
        value = max(self.scale, 1) * index + self.shift
        added = sum(int(arguments[number]) for number in self.added)
        return (value // 2 if self.scale < 0 else value) + added


HERE = Coordinate(0)
"""The index itself."""


@dataclass(eq=False)
class Tape:
    """The operations of a point function and the places of its results.

    There is one tape for each function and its kinds of arguments, so a tape equals only itself.

    Entries: `("load", (argument, subscript))`, `("scalar", (argument,))`, `("constant", (value,))`,
    `("+ - * /", (a, b))`, `("neg", (a,))`, `("sqrt", (a,))`, comparisons, `("&", (a, b))`,
    `("|", (a, b))`, `("where", (c, a, b))` and `("carried", (n,))`, see `between_rows`. A subscript
    holds a `Coordinate` for each axis. `edges`: the arguments that are 0 except at points beside
    the walls of an axis.
    """

    dimension: int
    operations: list[Operation] = field(default_factory=list)
    results: tuple[int, ...] = ()
    edges: set[int] = field(default_factory=set)
    _places: dict[Operation, int] = field(default_factory=dict, repr=False)

    def add(self, name: str, *operands: Any) -> int:
        operation = Operation(name, operands)
        if operation not in self._places:
            self._places[operation] = len(self.operations)
            self.operations.append(operation)
        return self._places[operation]

    def loads(self) -> set[tuple[int, tuple[Any, ...]]]:
        """All (argument, subscript) that the point function reads."""
        return {op.operands for op in self.operations if op.name == "load"}

    def read_at_a_shift(self, argument: int) -> bool:
        """Whether an array is read at a constant shift from the point itself, or as an array of a
        finer or coarser grid."""
        return any(
            number == argument and any(p.shift or p.scale != 1 for p in subscript)
            for number, subscript in self.loads()
        )

    def between_rows(self, constant: Sequence[Any]) -> "tuple[Tape, list[int]]":
        """This tape with `("carried", (n,))` for values between a row and the row before it, and
        the places of these values one row further on.

        So the value between this row and the next one can be kept until the next row needs it:
        the flux through a face is computed once. Such a value depends on two rows of the first
        argument, and otherwise on numbers and on arrays that are `constant` from row to row.
        """
        further: list[int | None] = []  # for each place the place of its value one row further on
        rows: list[set[Any]] = []  # and the rows of the first argument on which it depends
        for place, operation in enumerate(self.operations):
            name, operands = operation.name, operation.operands
            if name == "load":
                number, (first, *others) = operands
                moved = Operation(name, (number, (first.moved(1), *others)))
                same = number > 0 and constant[number]
                after = self._places.get(moved, place if same else None)
                further.append(after if number == 0 or same else None)
                rows.append(set() if number else {first.shift})
            elif name in LEAVES:
                further.append(place)
                rows.append(set())
            else:
                moved = Operation(name, tuple(further[operand] for operand in operands))
                further.append(self._places.get(moved))
                rows.append(set().union(*[rows[operand] for operand in operands]))
        result, kept = Tape(self.dimension, edges=self.edges), list[int]()

        @cache
        def place_in_result(place: int) -> int:
            operation, after = self.operations[place], further[place]
            is_number = operation.name not in CONDITIONS
            if is_number and len(rows[place]) == 2 and after is not None:
                kept.append(after)
                return result.add("carried", len(kept) - 1)
            leaf = operation.name in LEAVES
            operands = operation.operands if leaf else map(place_in_result, operation.operands)
            return result.add(operation.name, *operands)

        result.results = tuple(map(place_in_result, self.results))
        return result, list(map(place_in_result, kept))


def spelled(operation: Operation, where: str, sqrt: str) -> str:
    """An operation on other places of the tape, as text that is the same for all generators.

    The value of a place is called `v{place}`; `where` and `sqrt` are templates of the language.
    """
    values = [f"v{operand}" for operand in operation.operands]
    if operation.name == "where":
        return where.format(*values)
    if operation.name == "sqrt":
        return sqrt.format(*values)
    if operation.name == "neg":
        return f"-{values[0]}"
    return f"{values[0]} {operation.name} {values[1]}"


class PointRuleError(TypeError):
    """A point function breaks a rule of the point language."""


class Symbol:
    """A value on the tape; arithmetic with it is recorded on the tape."""

    __slots__ = ("place", "tape")

    def __init__(self, tape: Tape, place: int):
        self.tape, self.place = tape, place

    def _operand(self, other: Any) -> int:
        if isinstance(other, Symbol):
            return other.place
        if isinstance(other, (int, float)) and not isinstance(other, bool):
            # float.hex tells 0.0 from -0.0, which compare as equal.
            return self.tape.add("constant", float(other).hex())
        raise PointRuleError(f"{type(other).__name__} does not belong into a point function")

    def _apply(self, name: str, other: Any) -> "Symbol":
        return Symbol(self.tape, self.tape.add(name, self.place, self._operand(other)))

    def _applied(self, name: str, other: Any) -> "Symbol":
        return Symbol(self.tape, self.tape.add(name, self._operand(other), self.place))

    __add__ = partialmethod(_apply, "+")
    __radd__ = partialmethod(_applied, "+")
    __sub__ = partialmethod(_apply, "-")
    __rsub__ = partialmethod(_applied, "-")
    __rtruediv__ = partialmethod(_applied, "/")
    __lt__ = partialmethod(_apply, "<")
    __le__ = partialmethod(_apply, "<=")
    __gt__ = partialmethod(_apply, ">")
    __ge__ = partialmethod(_apply, ">=")
    __eq__ = partialmethod(_apply, "==")
    __ne__ = partialmethod(_apply, "!=")
    __and__ = partialmethod(_apply, "&")
    __or__ = partialmethod(_apply, "|")
    __hash__ = None  # type: ignore[assignment]

    def __mul__(self, other):
        return self if _is_one(other) else self._apply("*", other)

    def __rmul__(self, other):
        return self if _is_one(other) else self._applied("*", other)

    def __truediv__(self, other):
        return self if _is_one(other) else self._apply("/", other)

    def __neg__(self):
        return Symbol(self.tape, self.tape.add("neg", self.place))

    def __pos__(self):
        return self

    def __pow__(self, _):
        raise PointRuleError("no ** in a point function: backends round it differently")

    def __bool__(self):
        raise PointRuleError("no branch in a point function: use where")

    def choose_point(self, a: Any, b: Any) -> "Symbol":
        operands = (self.place, self._operand(a), self._operand(b))
        return Symbol(self.tape, self.tape.add("where", *operands))

    def sqrt_point(self) -> "Symbol":
        return Symbol(self.tape, self.tape.add("sqrt", self.place))


def _is_one(factor: Any) -> bool:
    """Whether a factor is the literal 1: a product with it changes no bit."""
    return isinstance(factor, float) and factor == 1.0


@dataclass(frozen=True, eq=False)
class ShiftArgument:
    """An integer argument: it may only be added to an index."""

    number: int

    def __eq__(self, other: object) -> bool:
        raise PointRuleError("an integer argument is added to an index only")

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class Index:
    """A coordinate along one axis, made from the index along this axis."""

    axis: int
    place: Coordinate = HERE

    def __eq__(self, other: object) -> bool:
        # Two indices may be compared while a point function is recorded, their values may not.
        if not isinstance(other, Index):
            raise PointRuleError("an index is used in subscripts only")
        return (self.axis, self.place) == (other.axis, other.place)

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Any) -> "Index":
        place = self.place
        if isinstance(other, ShiftArgument):
            return Index(self.axis, place._replace(added=(*place.added, other.number)))
        if isinstance(other, int) and not isinstance(other, bool):
            shift = 2 * other if place.scale < 0 else other
            return Index(self.axis, place._replace(shift=place.shift + shift))
        raise PointRuleError("an index takes whole shifts only")

    def __rmul__(self, factor: Any) -> "Index":
        return self._scaled(factor, 2)

    def __floordiv__(self, divisor: Any) -> "Index":
        return self._scaled(divisor, -2)

    def _scaled(self, factor: Any, scale: int) -> "Index":
        if factor != 2 or self.place != HERE:
            raise PointRuleError("an index is doubled, as 2 * i, or halved, as i // 2")
        return Index(self.axis, Coordinate(0, (), scale))

    def __sub__(self, other: Any) -> "Index":
        if isinstance(other, ShiftArgument):
            raise PointRuleError("integer arguments are added to an index, not subtracted")
        return self + (-other)


@dataclass(frozen=True, eq=False)
class ArrayArgument:
    """An array argument: it may only be read, at the point or at a shift from it."""

    tape: Tape
    number: int

    def __eq__(self, other: object) -> bool:
        raise PointRuleError("an array is read at an index, not compared")

    __hash__ = None  # type: ignore[assignment]

    def stands_at_edges(self) -> None:
        """Note that it is 0 except at points beside the walls of an axis."""
        self.tape.edges.add(self.number)

    def __getitem__(self, subscript: Any) -> Symbol:
        indices = subscript if isinstance(subscript, tuple) else (subscript,)
        axes = [index.axis if isinstance(index, Index) else None for index in indices]
        if axes != list(range(self.tape.dimension)):
            raise PointRuleError("a subscript holds every index once and in order, as u[i, j - 1]")
        places = tuple(index.place for index in indices)
        return Symbol(self.tape, self.tape.add("load", self.number, places))


@lru_cache(4096)
def record(point: Point, kinds: tuple[str, ...], axes: int) -> Tape:
    """The tape of a point function on a grid of `axes` axes, for arguments of the given kinds.

    All callers get the same tape, and none may change it.
    Raises PointRuleError where the function breaks a rule of the point language.
    """
    if dimension(point) not in (0, axes):
        raise PointRuleError(f"{point.__name__} is for {dimension(point)}D, not for {axes}D")
    tape = Tape(axes)
    arguments: list[Any] = []
    for number, kind in enumerate(kinds):
        if kind == ARRAY:
            arguments.append(ArrayArgument(tape, number))
        elif kind == HELD:
            here = tuple([Index(axis) for axis in range(axes)])
            arguments.append(ArrayArgument(tape, number)[here])
        elif kind == INTEGER:
            arguments.append(ShiftArgument(number))
        elif kind in KNOWN:
            arguments.append(KNOWN[kind])
        else:
            arguments.append(Symbol(tape, tape.add("scalar", number)))
    indices = [Index(axis) for axis in range(tape.dimension)]
    try:
        returned = evaluate(point, tuple(indices), *arguments)
        values = returned if isinstance(returned, tuple) else (returned,)
        anchor = Symbol(tape, -1)
        tape.results = tuple(anchor._operand(value) for value in values)
    except PointRuleError as error:
        raise PointRuleError(f"{point.__name__}: {error}") from None
    except TypeError as error:
        raise PointRuleError(f"{point.__name__} leaves the point language: {error}") from error
    return tape


# ---- the properties of a sweep on which its compiled code depends --------------------------------

BYTES_OF = {"float64": 8, "float32": 4}


@dataclass(frozen=True)
class Signature:
    """All that a compiled sweep depends on, except its point function.

    `arguments`: for each argument REAL, INTEGER, one of KNOWN (passed as a real that is not read),
    or for an array a tuple that tells for each axis whether the array is constant along it.
    `outputs`: for each result "array", "sum" or "max". `in_place`: for each output, the number of
    the argument that is the same array, or None. `gated`: whether the sweep does nothing once the
    device's gate is closed. `apart`: the arrays, by their names in generated code, with extents of
    their own; all other arrays share one set of extents. `narrow`: the arrays in single precision,
    by the same names, of a sweep that computes in double. `pairs`: whether a thread may load and
    store two neighbours of the innermost axis at once. `aligned`: whether rows of arrays begin with
    a cache line. `few`: whether a sweep has few points, so that each thread updates few of them.
    `wraps`: for each axis, whether the first argument is read at the other end where a point has no
    neighbour in the region; empty: never.
    """

    arguments: tuple[Any, ...]
    outputs: tuple[str, ...]
    in_place: tuple[int | None, ...]
    precision: str
    dimension: int
    gated: bool = False
    apart: tuple[str, ...] = ()
    narrow: tuple[str, ...] = ()
    pairs: bool = False
    aligned: bool = False
    few: bool = False
    wraps: tuple[bool, ...] = ()

    def tape(self, point: Point) -> Tape:
        kinds = [
            argument if isinstance(argument, str) else HELD if type(argument) is Held else ARRAY
            for argument in self.arguments
        ]
        tape = record(point, tuple(kinds), self.dimension)
        if len(tape.results) != len(self.outputs):
            raise TypeError(
                f"{point.__name__} returns {len(tape.results)} values, "
                f"the sweep has {len(self.outputs)} outputs"
            )
        return tape

    def constant_from_row_to_row(self) -> list[bool]:
        """For each argument whether it is an array that is constant along the first axis."""
        return [not isinstance(kind, str) and kind[0] for kind in self.arguments]

    @property
    def reduces(self) -> bool:
        """Whether an output is a sum or a largest magnitude."""
        return any(kind != "array" for kind in self.outputs)

    def target(self, output: int) -> str:
        """The name of an array output in generated code: one name for one array."""
        argument = self.in_place[output]
        return f"o{output}" if argument is None else f"a{argument}"

    def suffix(self, name: str) -> str:
        """The suffix of the names of an array's extents, strides and place in generated code."""
        return f"_{name}" if name in self.apart else ""

    def real_of(self, name: str) -> str:
        """The precision of an array, by its name in generated code."""
        return "float32" if name in self.narrow else self.precision

    def arrays_moved(self, tape: Tape) -> list[str]:
        """The full arrays that one sweep reads or writes."""
        read = {number for number, _ in tape.loads() if not any(self.arguments[number])}
        written = [f"o{n}" for n, kind in enumerate(self.outputs) if kind == "array"]
        return [*[f"a{number}" for number in read], *written]

    def bytes_moved(self, tape: Tape) -> int:
        """How many bytes of full arrays one sweep moves through memory for each point."""
        return sum(BYTES_OF[self.real_of(name)] for name in self.arrays_moved(tape))


def place_of(output: Any, arguments: Sequence[Any]) -> int | None:
    """The number of the argument that is the same array as an output, if there is one."""
    for number, argument in enumerate(arguments):
        if argument is output:
            return number
    return None


@dataclass(frozen=True, eq=False)
class HeldNumber:
    """A number in an array of one element, which a point function takes as a number.

    A recorded sweep reads the number that the array holds when the sweep is played back.
    """

    array: Any


class Held(tuple[bool, ...]):
    """The entry of a `HeldNumber` in `Signature.arguments`: an array constant along all axes."""

    def __eq__(self, other: object) -> bool:
        return type(other) is Held and super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return f"Held({super().__repr__()})"

    __hash__ = tuple.__hash__


def describe(argument: Any) -> Any:
    """An entry of `Signature.arguments`."""
    if type(argument) is HeldNumber:
        return Held([True] * len(argument.array.shape))
    shape = getattr(argument, "shape", None)
    if shape:
        return tuple([extent == 1 for extent in shape])
    if type(argument) is Known:
        return "one" if argument is ONE else "zero"
    return INTEGER if isinstance(argument, int) else REAL
