"""A case file, read: TOML and overrides in, a validated and frozen `Case` out.

Every mistake is reported at once, each with the file and line (or the override) where it stands.
"""

import math
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from heatsolve.errors import CaseError, FileFailure, InputError
from heatsolve.expressions import Expression, show, suggestion
from heatsolve.grid import WALLS, make_grid
from heatsolve.schema import Document, Grid, PointSource, Section
from heatsolve.toml import KeyPath, dotted, dump, lines_of
from heatsolve.values import Found, Mistake

# Keys that exclude each other in the table of this path: setting one drops the others.
RIVALS = {
    r"grid": {"nodes", "cells"},
    r"time": {"step", "cfl"},
    r"boundary\.\w+\.\w+": {"value", "gradient", "robin"},
    r"source\.point\.\d+": {"index", "position"},
}
# Our words for what pydantic reports.
SENTENCES = {
    "missing": "missing",
    "int_from_float": "must be a whole number, not {given}",
    "int_parsing_size": "is too large for a whole number",
    "string_type": "must be a string, not {given}",
    "bool_type": "must be true or false, not {given}",
    "tuple_type": "must be a list, not {given}",
    "model_type": "must be a table, not {given}",
    "greater_than": "must be greater than {gt}, not {given}",
    "less_than": "must be less than {lt}, not {given}",
    "less_than_equal": "must be at most {le}, not {given}",
    "literal_error": "must be {expected}, not {given}",
}


SWEPT = ("jacobi", "sor", "chebyshev")
"""Methods of which several sweeps can be made without a word from other processes."""
ONE_PROCESS = ("fft",)
"""Methods that do not run on several processes."""
SIDES = {side: axis for axis, walls in WALLS.items() for side in walls}


@dataclass(frozen=True)
class Origin:
    """The text and the overrides that a case was read from, to say where a key was given.

    No part of what the case is: two cases may be equal though they were written differently.
    """

    text: str = field(compare=False)
    name: str = field(compare=False)
    overrides: tuple[tuple[KeyPath, str], ...] = field(compare=False)

    def place_of(self, key: str) -> str:
        """File and line of a dotted key, or the override that gave it."""
        path = tuple(int(part) if part.isdigit() else part for part in key.split("."))
        return _place(path, lines_of(self.text), self.name, self.overrides)[2]


class Case(Document):
    """A validated case, its name, and TOML that repeats the run without any override."""

    name: str
    text: str
    origin: Any = None


def load(source: str | Path, overrides: Sequence[str] = ()) -> Case:
    """Return the case in a file, or the shipped case of this name, under `KEY=VALUE` overrides.

    Raises CaseError for an invalid case, InputError if there is none of this name or if it is
    not text, and FileFailure if the file cannot be read.
    """
    name = show(str(source))
    try:
        content = Path(source).read_bytes()
    except (OSError, ValueError) as error:
        known = shipped()
        if str(source) in known:
            content = files("heatsolve.cases").joinpath(f"{source}.toml").read_bytes()
        elif isinstance(error, IsADirectoryError):
            raise InputError(f"{name} is a directory, not a case file") from None
        elif isinstance(error, FileNotFoundError | NotADirectoryError | ValueError):
            near = suggestion(Path(source).stem, known)
            raise InputError(f"no case file or shipped case is called {name}{near}") from None
        else:
            raise FileFailure(f"cannot read {name}: {error.strerror}") from None
    try:
        return parse(content.decode("utf-8-sig"), str(source), overrides)
    except UnicodeDecodeError:
        raise InputError(f"{name} is not UTF-8 text") from None


def parse(text: str, name: str, overrides: Sequence[str] = ()) -> Case:
    """Return the case in a TOML text; `name` is the file that messages speak of.

    Raises CaseError, with a line for each mistake.
    """
    text = text.replace("\r\n", "\n")
    table = _toml(text, name)
    origins = [(_override(table, setting), setting) for setting in overrides]
    context: dict[str, Any] = {"constants": {}, "faulty": []}
    try:
        document = Document.model_validate(table, context=context)
        found = list(_conflicts(document))
    except ValidationError as invalid:
        found = [row for error in invalid.errors() for row in _sentences(error)]
        # Missing walls can be told although another section is wrong, if the grid is right.
        with suppress(ValidationError, KeyError):
            grid = Grid.model_validate(table["grid"], context=context)
            walls = table.get("boundary", {})
            present = walls if isinstance(walls, dict) else SIDES
            found += _wall_conflicts(grid, {side for side in present if side in _needed(grid)})
    if found:
        raise CaseError(_report(found, text, name, origins))
    repeated = dump(table) if overrides else text
    origin = Origin(text, name, tuple(origins))
    return Case.model_construct(
        **dict(document), name=Path(name).stem, text=repeated, origin=origin
    )


def shipped() -> dict[str, str]:
    """Return the title of every shipped case by its name."""
    titles = {}
    for file in sorted(files("heatsolve.cases").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            about = tomllib.loads(file.read_text("utf-8")).get("case", {})
            titles[file.name.removesuffix(".toml")] = about.get("title", "")
    return titles


def _toml(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise CaseError(f"{name}: nested too deeply") from None
    except ValueError as error:
        reason, _, place = str(error).partition(" (at ")
        number = re.search(r"\d+", place)
        line = number[0] if number else text.count("\n") + 1
        raise CaseError(f"{name}:{line}: {reason[:1].lower()}{reason[1:]}") from None


def _override(table: dict[str, Any], setting: str) -> KeyPath:
    """Carry out one KEY=VALUE on the document; return the path of its key."""
    where = f"--set {setting}"
    key, equals, text = setting.partition("=")
    *parents, last = (part.strip() for part in key.split("."))
    if not equals or not all((*parents, last)):
        raise CaseError(f"{where}: must be KEY=VALUE")
    here: Any = table
    path: KeyPath = ()
    for part in parents:
        if isinstance(here, list):
            if part not in map(str, range(len(here))):
                raise CaseError(f"{where}: {dotted(path)} has {len(here)} items, counted from 0")
            path, here = (*path, int(part)), here[int(part)]
        else:
            _drop_rivals(here, path, part)
            path, here = (*path, part), here.setdefault(part, {})
        if not isinstance(here, dict | list):
            raise CaseError(f"{where}: {dotted(path)} is not a table")
    if isinstance(here, list):
        raise CaseError(f"{where}: {dotted(path)} is a list, and a list is replaced whole")
    _drop_rivals(here, path, last)
    here[last] = _toml_value(text)
    return (*path, last)


def _toml_value(text: str) -> Any:
    try:
        table = tomllib.loads(f"v = {text}")
    except (ValueError, RecursionError):
        return text
    # A line break in the text could smuggle in more keys.
    return table["v"] if len(table) == 1 else text


def _drop_rivals(table: dict[str, Any], path: KeyPath, key: str) -> None:
    place = dotted(path)
    for pattern, rivals in RIVALS.items():
        if key in rivals and re.fullmatch(pattern, place):
            for rival in rivals - {key}:
                table.pop(rival, None)


def _conflicts(case: Document) -> Found:
    """Yield what only shows between sections."""
    grid, steady = case.grid, case.model.steady
    given = {side for side in SIDES if getattr(case.boundary, side) is not None}
    yield from _wall_conflicts(grid, given)
    for n, point in enumerate(case.source.points):
        for key, sentence in _misplaced(point, grid):
            yield ("source", "point", n, *key), sentence
    for path, expression in _expressions(case):
        for name in sorted(expression.names.difference(grid.axes)):
            if name != "t":
                yield path, f"the case has no {name} axis"
            elif steady:
                yield path, "t has no meaning in a steady case"
    if steady and case.time:
        yield ("time",), "only for a transient case (model.steady = false)"
    if not steady and not case.time:
        yield ("time",), "missing, a transient case needs it"
    if case.solver.precision == "mixed":
        if case.time and case.time.scheme == "explicit":
            yield ("solver", "precision"), '"mixed" needs a system to solve, not explicit steps'
        elif case.solver.method == "auto" and case.model.conductivity.names:
            sentence = '"mixed" is only for method = "multigrid", and auto means "mgcg" here'
            yield ("solver", "precision"), sentence
    if case.parallel.halo > 1 and not (case.time and case.time.scheme == "explicit"):
        method = "jacobi" if case.solver.update else case.solver.method
        if method not in SWEPT:
            why = ", which is for one process" if method in ONE_PROCESS else ""
            yield ("parallel", "halo"), f'must be 1 with method "{method}"{why}'
    if case.solver.update and not (steady and grid.dimension == 2):
        yield ("solver", "update"), "only for a steady case in 2D"
    elif case.solver.update:
        yield from _update_conflicts(case)


def _needed(grid: Grid) -> list[str]:
    """Return the walls that need a condition."""
    bounded = [axis for axis in grid.axes if axis not in grid.periodic]
    return [side for side, axis in SIDES.items() if axis in bounded]


def _wall_conflicts(grid: Grid, given: Collection[str]) -> Found:
    needed = _needed(grid)
    for side, axis in SIDES.items():
        path = ("boundary", side)
        if side in needed and side not in given:
            yield path, "missing, every wall that is not periodic needs a condition"
        elif side in given and side not in needed:
            reason = f"{axis} is periodic and has no walls"
            yield path, reason if axis in grid.axes else f"the case has no {axis} axis"


def _update_conflicts(case: Document) -> Found:
    """Yield what a literal update cannot know: it has one spacing and no coefficient."""
    grid = case.grid
    box = make_grid(grid.counts, grid.lower, grid.upper, grid.kind == "nodes", grid.periodic)
    spacings = [axis.spacing for axis in reversed(box.axes)]
    if not math.isclose(*spacings, rel_tol=1e-9):
        given = " and ".join(show(spacing) for spacing in spacings)
        yield ("grid",), f"solver.update needs equal spacings, not {given}"
    if grid.kind == "cells" and len(grid.periodic) < grid.dimension:
        yield ("grid", "cells"), "must be nodes with solver.update, which has walls on points"
    conductivity = case.model.conductivity
    if conductivity.names or conductivity() != 1.0:
        yield ("model", "conductivity"), "must be 1 with solver.update"
    for side in SIDES:
        wall = getattr(case.boundary, side)
        if wall is not None and wall.temperature.value is None:
            yield ("boundary", side, "temperature"), "must be a value with solver.update"
    if case.solver.update != "laplace":
        sentence = f'must be absent, solver.update = "{case.solver.update}" has no source'
        source = case.source.temperature
        if source.names or source() != 0.0:
            yield ("source", "temperature"), sentence
        if case.source.points:
            yield ("source", "point"), sentence


def _misplaced(point: PointSource, grid: Grid) -> Found:
    key, place = ("index", point.index) if point.index is not None else ("position", point.position)
    low = (0,) * grid.dimension if key == "index" else grid.lower
    high = tuple(n - 1 for n in grid.counts) if key == "index" else grid.upper
    if place is None or len(place) != grid.dimension:
        yield (key,), f"must have length {grid.dimension}, as the grid has axes"
        return
    for axis, at, first, last in zip(grid.axes, place, low, high, strict=True):
        if not first <= at <= last:
            yield (key,), f"{show(at)} is outside {show(first)} to {show(last)} along {axis}"


def _expressions(section: Section, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Expression]]:
    """Yield every expression of a section and of those inside it, with its key path."""
    for key, name in _attributes(type(section)).items():
        value = getattr(section, name)
        if isinstance(value, Expression):
            yield (*path, key), value
        elif isinstance(value, Section):
            yield from _expressions(value, (*path, key))


def _attributes(section: type[Section]) -> dict[str, str]:
    """Return the attribute of each key of a section."""
    return {info.alias or name: name for name, info in section.model_fields.items()}


def _keys(path: KeyPath) -> list[str]:
    """Return the keys that may stand in the section at this path."""
    section: type[Section] = Document
    for key in (part for part in path if isinstance(part, str)):
        kind = section.model_fields[_attributes(section)[key]].annotation
        section = next(k for k in (kind, *get_args(kind)) if isinstance(k, type(Section)))
    return list(_attributes(section))


def _sentences(error: ErrorDetails) -> Found:
    """Yield the mistakes of one error of pydantic, in our own words."""
    kind, path, context = error["type"], error["loc"], error.get("ctx", {})
    if kind == "value_error":
        cause = context["error"]
        for below, sentence in getattr(cause, "found", [((), str(cause))]):
            yield (*path, *below), sentence
    elif kind == "extra_forbidden":
        known = _keys(path[:-1])
        near = suggestion(str(path[-1]), known) or f" (known: {', '.join(known)})"
        yield path, f"unknown key{near}"
    elif kind in SENTENCES:
        words = {name: show(bound) for name, bound in context.items()}
        if "expected" in context:
            choices = context["expected"].replace("'", '"').replace(" or ", ", ")
            words["expected"] = f"one of {choices}" if ", " in choices else choices
        yield path, SENTENCES[kind].format(given=show(error["input"]), **words)
    else:
        yield path, error["msg"]


def _report(found: list[Mistake], text: str, name: str, origins: list[tuple[KeyPath, str]]) -> str:
    """Return one line for each mistake: those of the file in its order, then the overrides'."""
    lines = lines_of(text)
    rows = []
    for path, sentence in found:
        from_setting, line, where = _place(path, lines, name, origins)
        what = f"{dotted(path)}: {sentence}" if path else sentence
        rows.append((from_setting, line, f"{where}: {what}"))
    return "\n".join(row for *_, row in sorted(rows, key=lambda row: row[:2]))


def _place(
    path: KeyPath, lines: Mapping[KeyPath, int], name: str, origins: Sequence[tuple[KeyPath, str]]
) -> tuple[bool, int, str]:
    """Return where a key was given: whether by an override, its line, and both in words."""
    settings = [
        setting
        for origin, setting in origins
        if path[: len(origin)] == origin or (origin[: len(path)] == path and path not in lines)
    ]
    if settings:
        return True, 0, f"--set {settings[-1]}"
    around = (path[:length] for length in range(len(path), 0, -1))
    line = next((lines[p] for p in around if p in lines), 0)
    return False, line, f"{name}:{line}" if line else name


@contextmanager
def locating(case: "Case") -> Iterator[None]:
    """Say of an InputError that begins with a key, such as `time.step: ...`, where the key is."""
    try:
        yield
    except InputError as error:
        key = re.match(r"(\w+(?:\.\w+)+): ", str(error))
        if key is None or isinstance(error, CaseError) or case.origin is None:
            raise
        raise CaseError(f"{case.origin.place_of(key[1])}: {error}") from None
