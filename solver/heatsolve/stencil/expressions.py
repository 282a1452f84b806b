"""Safe mathematics in case files.

A text is parsed by Python's own grammar, and only the few kinds of node named here become nodes of
a tree of NumPy functions; nothing is ever handed to `eval`. Everything is float64: a comparison
gives 1 or 0, and any number but 0 counts as true. `evaluate` gives the values of an expression at
the points of a grid.
"""

import ast
import difflib
import keyword
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heatsolve.errors import InputError
from heatsolve.report import printable
from heatsolve.stencil.grid import Grid

MAX_LENGTH = 1000
MAX_DEPTH = 60
VARIABLES = ("x", "y", "z", "t")
NATURAL = {"pi": math.pi, "e": math.e}

# A number, the name of a variable, or (function, operand, operand, ...): plain tuples, so that
# expressions compare, hash and travel between processes.
Tree = Any


class ExpressionError(InputError, ValueError):
    """A text is not an expression of the allowed kind; the message is one sentence.

    Also a ValueError, which is how a validator of pydantic reports a mistake.
    """


def _truth(test: Callable[..., Any], *operands: ArrayLike) -> Any:
    """1.0 where the test holds, 0.0 elsewhere: NumPy's own booleans cannot be subtracted."""
    return test(*operands).astype(np.float64)


def _and(*operands: ArrayLike) -> Any:
    return _truth(np.logical_and.reduce, np.broadcast_arrays(*operands))


def _or(*operands: ArrayLike) -> Any:
    return _truth(np.logical_or.reduce, np.broadcast_arrays(*operands))


def _not(operand: ArrayLike) -> Any:
    return _truth(np.logical_not, operand)


def _where(condition: ArrayLike, chosen: ArrayLike, otherwise: ArrayLike) -> Any:
    return np.where(np.not_equal(condition, 0.0), chosen, otherwise)


def _min(*operands: ArrayLike) -> Any:
    return reduce(np.minimum, operands)


def _max(*operands: ArrayLike) -> Any:
    return reduce(np.maximum, operands)


@dataclass(frozen=True)
class _Finite:
    """A comparison that does not hold where an operand is not finite."""

    chain: "_Chain"

    def __call__(self, *operands: ArrayLike) -> Any:
        return _and(self.chain(*operands), *map(np.isfinite, operands))


@dataclass(frozen=True)
class _Chain:
    """A comparison such as a < b <= c. Each operand is one branch of the tree, because a tree
    that repeated the middle one would double in size with every level of nesting."""

    tests: tuple[Callable[..., Any], ...]

    def __call__(self, *operands: ArrayLike) -> Any:
        pairs = zip(self.tests, pairwise(operands), strict=True)
        return _and(*(test(*pair) for test, pair in pairs))


# Functions of NumPy rather than operators: `**` on a scalar takes another path through NumPy
# than `**` on an array, and could round differently.
OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
    ast.USub: np.negative,
    ast.UAdd: np.positive,
    ast.Not: _not,
    ast.And: _and,
    ast.Or: _or,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}

OF_SEVERAL: dict[str, tuple[Callable[..., Any], int, float]] = {
    "atan2": (np.atan2, 2, 2),
    "min": (_min, 2, math.inf),
    "max": (_max, 2, math.inf),
    "where": (_where, 3, 3),
}
NAMES = (
    "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "exp", "log",
    "log10", "sqrt", "abs", "min", "max", "floor", "ceil", "sign", "where",
)  # fmt: skip
FUNCTIONS = {name: OF_SEVERAL.get(name) or (getattr(np, name), 1, 1) for name in NAMES}
"""By name: the function, the fewest and the most arguments."""

OTHER_LANGUAGES = {
    "&&": "write and",
    "&": "write and",
    "||": "write or",
    "|": "write or",
    "!": "write not",
    "^": "a power is **",
}
"""Operators of other languages, with the advice for each."""
FOREIGN = re.compile(r"&&?|\|\|?|!(?!=)|\^")


@dataclass(frozen=True)
class Expression:
    """A compiled expression: its text, and the names of the variables that it really uses."""

    text: str
    names: frozenset[str]
    tree: Tree = field(repr=False)

    def __call__(self, **variables: ArrayLike) -> float | NDArray[np.float64]:
        """Return the value in float64, broadcast over the variables used; others are ignored.

        Raises KeyError if a variable in `names` is not given. Division by zero and the like
        give inf or NaN without a warning.
        """
        # Contiguous, because NumPy's vector loops may round differently from its strided loops.
        arrays = {n: np.asarray(variables[n], np.float64, order="C") for n in self.names}
        with np.errstate(all="ignore"):
            value = np.asarray(_evaluate(self.tree, arrays), np.float64)
        return value if value.ndim else float(value)


def comparing_finite(expression: Expression) -> Expression:
    """The same expression, but a comparison with a value that is not finite does not hold."""

    def changed(tree: Tree) -> Tree:
        if not isinstance(tree, tuple):
            return tree
        function, *branches = tree
        function = _Finite(function) if isinstance(function, _Chain) else function
        return (function, *map(changed, branches))

    return replace(expression, tree=changed(expression.tree))


def words(expression: Expression) -> str:
    """An expression for use in a sentence: its text, or its value if it is constant."""
    return expression.text if expression.names else f"{float(expression()):g}"


def compile_expression(
    text: str, variables: Sequence[str], constants: Mapping[str, float]
) -> Expression:
    """Return the expression that `text` stands for in the given variables and constants.

    Raises ExpressionError if the text is not an expression, is too long or too deep, or uses
    a name or a construct that is not allowed.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"expression longer than {MAX_LENGTH} characters")
    if "#" in text:
        raise ExpressionError(f'"#" is not allowed in the expression {quoted(text)}')
    line = " ".join(text.split())
    foreign = FOREIGN.search(line)
    if foreign:
        advice = OTHER_LANGUAGES[foreign[0]]
        raise ExpressionError(f'"{foreign[0]}" is not allowed in {quoted(line)}: {advice}')
    try:
        with warnings.catch_warnings():
            # Python warns about "1or 2"; a warning about its source is of no use to our user.
            warnings.simplefilter("ignore")
            body = ast.parse(line, mode="eval").body
    except SyntaxError as error:
        reason = error.msg.partition(". ")[0]
        raise ExpressionError(f"cannot read the expression {quoted(line)}: {reason}") from None
    except (ValueError, RecursionError, MemoryError):
        raise ExpressionError(f"cannot read the expression {quoted(line)}") from None
    reader = _Reader(line, variables, constants)
    tree = reader.read(body, depth=1)
    return Expression(text, frozenset(reader.used), tree)


def finite(value: object, wanted: str = "a number") -> float:
    """Return a value of a case file as a float; raise ExpressionError if it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ExpressionError(f"must be {wanted}, not {show(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ExpressionError(f"must be finite, not {show(value)}")
    return number


def check_constant_name(name: str) -> None:
    """Raise ExpressionError if a constant cannot have this name."""
    if name in VARIABLES or name in NATURAL or name in FUNCTIONS:
        raise ExpressionError(f"{quoted(name)} already has a meaning in expressions")
    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name):
        raise ExpressionError(
            f"{quoted(name)} is not a name: write letters, digits and _, not a digit first"
        )


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `, did you mean "..."?` with the known word nearest to this one, or nothing."""
    by_lower = {k.lower(): k for k in known}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f', did you mean "{by_lower[near[0]]}"?' if near else ""


def quoted(text: str, limit: int = 60) -> str:
    """Return the text in quotation marks, shortened, with control characters escaped."""
    short = text if len(text) <= limit else text[:limit] + "..."
    return f'"{printable(short)}"'


def show(value: object) -> str:
    """Return how a value of a TOML document is quoted in a message."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, int) and value.bit_length() > 64:
        return "a huge number"
    return str(value).removesuffix(".0")


def _evaluate(tree: Tree, variables: Mapping[str, NDArray[np.float64]]) -> Any:
    if isinstance(tree, float):
        return tree
    if isinstance(tree, str):
        return variables[tree]
    function, *operands = tree
    return function(*(_evaluate(operand, variables) for operand in operands))


class _Reader:
    """Converts a parsed text to a tree, and records the variables that the text uses."""

    def __init__(self, text: str, variables: Sequence[str], constants: Mapping[str, float]):
        self.text = text
        self.variables = variables
        self.values = {**NATURAL, **constants}
        self.used: set[str] = set()

    def read(self, node: ast.expr, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise ExpressionError(f"expression nested deeper than {MAX_DEPTH} levels")

        def branch(function: Callable[..., Any], *operands: ast.expr) -> Tree:
            return (function, *(self.read(operand, depth + 1) for operand in operands))

        match node:
            # A boolean is an int to Python.
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return self._number(value)
            case ast.Name(id=name):
                return self._name(name)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
                return branch(OPERATORS[type(op)], operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return branch(OPERATORS[type(op)], left, right)
            case ast.BoolOp(op=op, values=values):
                return branch(OPERATORS[type(op)], *values)
            case ast.Compare(left=left, ops=ops, comparators=others) if all(
                type(op) in OPERATORS for op in ops
            ):
                return branch(_Chain(tuple(OPERATORS[type(op)] for op in ops)), left, *others)
            case ast.IfExp(test=test, body=chosen, orelse=otherwise):
                return branch(_where, test, chosen, otherwise)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return branch(self._function(name, len(arguments)), *arguments)
        part = ast.get_source_segment(self.text, node) or self.text
        raise ExpressionError(f"{quoted(part)} is not allowed in an expression")

    def _number(self, value: float) -> float:
        # Integers become floats at once, so that 9**9**9 is inf and not an endless computation.
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isinf(number):
            raise ExpressionError(f"a number in {quoted(self.text)} is too large")
        return number

    def _name(self, name: str) -> Tree:
        if name in self.variables:
            self.used.add(name)
            return name
        if name in self.values:
            return float(self.values[name])
        if name in FUNCTIONS:
            raise ExpressionError(f'"{name}" is a function: write {name}(...)')
        known = [*self.variables, *self.values]
        raise ExpressionError(
            f"unknown name {quoted(name)}{suggestion(name, known)} (known: {', '.join(known)})"
        )

    def _function(self, name: str, given: int) -> Callable[..., Any]:
        if name not in FUNCTIONS:
            raise ExpressionError(
                f"unknown function {quoted(name)}{suggestion(name, FUNCTIONS)} "
                f"(known: {', '.join(FUNCTIONS)})"
            )
        function, fewest, most = FUNCTIONS[name]
        if not fewest <= given <= most:
            wanted = f"{fewest}" if fewest == most else f"at least {fewest}"
            plural = "" if fewest == 1 else "s"
            raise ExpressionError(f"{name} takes {wanted} argument{plural}, not {given}")
        return function


# ---- quantities on a grid -----------------------------------------------------------------------


class End(Protocol):
    """An end of the grid: the number of its axis (slowest first), low (0) or high (1) side."""

    @property
    def axis(self) -> int: ...
    @property
    def side(self) -> int: ...


def evaluate(
    grid: Grid,
    path: str,
    expression: Expression,
    time: float = 0.0,
    positive: bool = False,
    wall: End | None = None,
) -> np.ndarray:
    """An expression at all points of a grid, or along a wall; finite, or InputError.

    It is evaluated on the host by NumPy, so that its bits do not depend on the backend. A quantity
    that does not vary along an axis stays an array of extent 1 along it: constants need no memory.
    `path` is the key that messages name.
    """
    positions = grid.positions()
    if wall is not None:
        axis = grid.axes[wall.axis]
        at_wall = np.array([(axis.lower, axis.upper)[wall.side]])
        positions[axis.name] = grid.along(wall.axis, at_wall)
    known: dict[str, ArrayLike] = {**positions, "t": time}
    variables = {name: known[name] for name in expression.names}
    args = variables if wall is not None else grid.to_evaluate(variables)
    values = np.asarray(expression(**args), float)
    values = values if values.ndim else values.reshape((1,) * grid.dimension)
    if "t" in expression.names and time > 0.0:
        path = f"{path} at t = {time:g}"
    demand(grid, np.isfinite(values), values, path, "be finite")
    if positive:
        demand(grid, values > 0.0, values, path, "be greater than 0")
    if args is not variables:
        shapes = [np.shape(each) for each in variables.values()]
        values = np.broadcast_to(values, np.broadcast_shapes(*shapes))
    return values


def demand(grid: Grid, holds: np.ndarray, values: np.ndarray, path: str, what: str) -> None:
    """Raise InputError at the first place where `holds` is false; `what`: the demand in words."""
    if holds.all():
        return
    index = tuple(int(n) for n in np.unravel_index(int(np.argmin(holds)), values.shape))
    where = grid.place(index, values.shape)
    at = f" at {where}" if where else ""
    raise InputError(f"{path}: must {what}, but is {values[index]:g}{at}")
