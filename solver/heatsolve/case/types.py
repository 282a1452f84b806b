"""The values of keys of a case file: numbers, expressions, times; read from values of TOML.

Wherever a number may stand, an expression in the constants of the case may stand too. Values are
validated against a context `{"constants": {}, "faulty": []}`, which `[constants]` fills in first.
"""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Gt, Le
from pydantic import BeforeValidator, PlainValidator, ValidationInfo

from heatsolve.case.toml import KeyPath
from heatsolve.report import printable
from heatsolve.stencil.data import Data
from heatsolve.stencil.expressions import (
    NATURAL,
    Expression,
    ExpressionError,
    check_constant_name,
    compile_expression,
    finite,
    show,
    suggestion,
)
from heatsolve.stencil.grid import AXIS_NAMES
from heatsolve.stencil.solid import Solid

MAX_INTEGER = 2**53  # up to here every whole number is a float64 too
WALL_TIME = re.compile(r"\s*(\d+(?:\.\d+)?(?:e[-+]?\d+)?)\s*(s|min|h)\s*", re.ASCII | re.I)
COLUMNS = frozenset(
    ("iteration", "time", "dt", "residual", "divergence", "courant", "kinetic_energy", "enstrophy")
)
"""Columns of the history that a constant could hide in a condition."""
UNITS_OF_TIME = {"s": 1.0, "min": 60.0, "h": 3600.0}

Mistake = tuple[KeyPath, str]  # a key path below the checked section, and a sentence
Found = Iterator[Mistake]


class Mistakes(ValueError):
    """Mistakes in one section; none at all if the cause is a mistake reported elsewhere."""

    def __init__(self, *found: Mistake):
        super().__init__("; ".join(sentence for _, sentence in found))
        self.found = found


def _compile(text: str, variables: Sequence[str], info: ValidationInfo) -> Expression:
    context: Any = info.context
    # A constant that is itself a mistake stands in as a variable: its value is unknown.
    return compile_expression(text, (*variables, *context["faulty"]), context["constants"])


def real(value: Any, info: ValidationInfo) -> float:
    """A finite number, or an expression in the constants that gives one."""
    if isinstance(value, str):
        expression = _compile(value, (), info)
        if expression.names:
            raise Mistakes()
        value = expression()
    return finite(value)


DATA = {
    "file": ("field", "time", "interpolation"),
    "image": ("black", "white", "interpolation"),
    "solid": ("inside", "outside", "scale", "shift"),
    "array": ("time", "interpolation"),
}
"""The keys for the place of a field's values, each with the other keys of its table."""
NUMBERS = ("black", "white", "inside", "outside", "scale", "time")
INTERPOLATIONS = ("linear", "nearest", "conservative")


def _data(table: dict[str, Any], in_time: bool, info: ValidationInfo) -> Data:
    """A field that is data: `{ file = ..., field = ... }`, `{ image = ... }`."""
    kinds = [key for key in DATA if key in table]
    if len(kinds) != 1:
        wanted = "must be a number or an expression, not a table without file, image or solid"
        raise ExpressionError(f"must have only one of {', '.join(kinds)}" if kinds else wanted)
    (kind,) = kinds
    names = '"linear", "nearest" or "conservative"'
    given, faults = dict(table), list[Mistake]()
    for key, value in table.items():
        try:
            if key == "time" and value == "t" and kind != "image":
                continue
            if key == "shift" and key in DATA[kind]:
                given[key] = _vector(value, info)
            elif key in NUMBERS and key in DATA[kind]:
                given[key] = real(value, info)
            elif key not in (kind, *DATA[kind]):
                near = suggestion(key, DATA[kind])
                faults.append(((key,), f"unknown key{near or f', not with {kind}'}"))
            elif not isinstance(value, str) or not value:
                faults.append(((key,), f"must be a text, not {show(value)}"))
            elif key == "interpolation" and value not in INTERPOLATIONS:
                faults.append(((key,), f"must be {names}, not {show(value)}"))
        except ExpressionError as error:
            faults.append(((key,), str(error)))
    if faults:
        raise Mistakes(*faults)
    return data_of(given, info, in_time)


def data_of(given: dict[str, Any], info: ValidationInfo, in_time: bool = False) -> Data:
    """The data of a table whose keys are right."""
    context: Any = info.context
    kind = next(key for key in DATA if key in given)
    text = "the array" if kind == "array" else str(given[kind])
    text = f"{given['field']} of {text}" if "field" in given else text
    args = printable(text), given, context.get("folder", Path()), in_time
    return Solid(*args) if kind == "solid" else Data(*args)


def _vector(value: Any, info: ValidationInfo) -> tuple[float, ...]:
    """Numbers along x, y, z."""
    if not isinstance(value, list) or len(value) != len(AXIS_NAMES):
        raise ExpressionError(f"must be a list of {len(AXIS_NAMES)} numbers, not {show(value)}")
    return tuple(real(each, info) for each in value)


def _start(value: Any, info: ValidationInfo) -> Data:
    """A file of results."""
    if not isinstance(value, str) or not value:
        raise ExpressionError(f"must be the name of a file, not {show(value)}")
    return data_of({"file": value}, info)


def _field(variables: Sequence[str], value: Any, info: ValidationInfo) -> Expression:
    if isinstance(value, dict):
        return _data(value, "t" in variables, info)
    if not isinstance(value, str):
        value = repr(finite(value, "a number or an expression"))
    expression = _compile(value, variables, info)
    if not expression.names:
        finite(expression())
    return expression


def _velocity(value: Any, info: ValidationInfo) -> tuple[Expression, ...] | str:
    """One field for each axis, or "self"."""
    if value == "self":
        return value
    if not isinstance(value, list):
        words = 'must be a list of numbers or expressions, one for each axis, or "self"'
        raise ExpressionError(f"{words}, not {show(value)}")
    found, faults = [], []
    for number, item in enumerate(value):
        try:
            found.append(_field(AXIS_NAMES, item, info))
        except ValueError as error:
            faults.append(((number,), str(error)))
    if faults:
        raise Mistakes(*faults)
    return tuple(found)


def _shape(value: Any, info: ValidationInfo) -> Expression | str:
    """The name of a shape, or a field that is not 0 inside it."""
    if value in ("circle", "box"):
        return value
    if not isinstance(value, str | dict):
        raise ExpressionError(f'must be "circle", "box" or an expression, not {show(value)}')
    return _field(AXIS_NAMES, value, info)


def seconds_of(value: Any) -> float | None:
    """The seconds of a wall time such as "30 min"; None for any other value."""
    parts = WALL_TIME.fullmatch(value) if isinstance(value, str) else None
    return float(parts[1]) * UNITS_OF_TIME[parts[2].lower()] if parts else None


def interval(value: Any, info: ValidationInfo) -> int | str:
    """A number of iterations or steps, or the text of a wall time."""
    seconds = seconds_of(value)
    if seconds is not None and 0.0 < seconds < math.inf:
        return value
    times = '"30 min", "2 h" or "90 s"'
    with suppress(ExpressionError):
        number = real(value, info)
        if number.is_integer() and 0 < number <= MAX_INTEGER:
            return int(number)
        if number > 0.0 and not number.is_integer():
            times = f'"{number:g} s"'
    raise ExpressionError(
        "must be a number of iterations or steps, such as 1000, or a time, such as "
        f"{times}, not {show(value)}"
    )


def _stride(value: Any, info: ValidationInfo) -> int | tuple[int, ...]:
    """A whole number above 0 for all axes, or one for each."""
    several = isinstance(value, list)
    numbers = [real(item, info) for item in (value if several else [value])]
    if not all(number.is_integer() and 0 < number <= MAX_INTEGER for number in numbers):
        raise ExpressionError(f"must be whole numbers above 0, not {show(value)}")
    return tuple(map(int, numbers)) if several else int(numbers[0])


def _row_condition(value: Any, info: ValidationInfo) -> Expression:
    """An expression in the columns of a row of the history, which are known only during a march."""
    if not isinstance(value, str):
        raise ExpressionError(f"must be an expression, not {show(value)}")
    context: Any = info.context
    named = set(re.findall(r"[^\W\d]\w*", value))
    if both := sorted(named & COLUMNS & set(context["constants"])):
        raise ExpressionError(
            f'"{both[0]}" is a column of the history and a constant here: rename the constant'
        )
    names = named - {*NATURAL, *context["constants"]}
    expression = _compile(value, sorted(names), info)
    if not expression.names:
        raise ExpressionError("names no column of the history")
    return expression


def _constants(table: Any, info: ValidationInfo) -> dict[str, float]:
    """Evaluate the constants in their order; each may use earlier ones."""
    if not isinstance(table, dict):
        raise Mistakes(((), f"must be a table, not {show(table)}"))
    context: Any = info.context
    found: list[Mistake] = []
    for name, value in table.items():
        try:
            check_constant_name(name)
            context["constants"][name] = real(value, info)
        except ValueError as error:
            context["faulty"].append(name)
            found += [((name,), str(error))] if str(error) else []
    if found:
        raise Mistakes(*found)
    return context["constants"]


Real = Annotated[float, BeforeValidator(real)]
PositiveReal = Annotated[Real, Gt(0)]
Integer = Annotated[int, BeforeValidator(real), Le(MAX_INTEGER)]
PositiveInteger = Annotated[Integer, Gt(0)]
SpaceField = Annotated[Expression, PlainValidator(partial(_field, AXIS_NAMES))]
VelocityField = Annotated[tuple[Expression, ...] | str | None, PlainValidator(_velocity)]
StartFile = Annotated[Data, PlainValidator(_start)]
Shape = Annotated[Expression | str, PlainValidator(_shape)]
SpaceTimeField = Annotated[Expression, PlainValidator(partial(_field, (*AXIS_NAMES, "t")))]
Stride = Annotated[int | tuple[int, ...], PlainValidator(_stride)]
RowCondition = Annotated[Expression, PlainValidator(_row_condition)]
Constants = Annotated[dict[str, float], PlainValidator(_constants)]
Interval = Annotated[int | str, PlainValidator(interval)]
