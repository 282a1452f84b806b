"""A case file, read: TOML and overrides in, a validated and frozen `Case` out.

Every mistake is reported at once, each with the file and line (or the override) where it stands.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from heatsolve.case import defaults
from heatsolve.case.conflicts import conflicts, needed_walls, wall_conflicts
from heatsolve.case.schema import Condition, Document, Grid, Section, document_for
from heatsolve.case.toml import KeyPath, dotted, dump, lines_of, loads, unclosed, unheld
from heatsolve.case.types import Found, Mistake
from heatsolve.errors import CaseError, FileFailure, InputError
from heatsolve.models.user import Equations, find, known
from heatsolve.stencil.expressions import quoted, show, suggestion

# Keys that exclude each other in the table of this path: setting one drops the others.
RIVALS = {
    r"grid": {"nodes", "cells"},
    r"time": {"step", "cfl"},
    r"boundary\.\w+\.\w+": {"value", "gradient", "robin"},
    r"source\.point\.\d+": {"index", "position"},
}
# A case is a page or two: what exceeds these is none, or shall not cost more than a moment.
MOST_BYTES = 8 * 2**20
MOST_JUDGED, MOST_TOLD = 1000, 20
"""Mistakes that are put into words, and that are told."""
UNHELD_WORDS = "holds a NUL or half a character (a surrogate), which no file can hold"
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
    "greater_than_equal": "must be at least {ge}, not {given}",
    "less_than": "must be less than {lt}, not {given}",
    "less_than_equal": "must be at most {le}, not {given}",
    "literal_error": "must be {expected}, not {given}",
}


@dataclass(frozen=True)
class Origin:
    """The text and the overrides that a case was read from, to say where a key was given.

    No part of what the case is: two cases may be equal though they were written differently.
    """

    text: str = field(compare=False)
    name: str = field(compare=False)
    overrides: tuple[tuple[KeyPath, str], ...] = field(compare=False)
    note: str = field(default="", compare=False)
    """What to say of the file that was taken."""

    def place_of(self, key: str) -> str:
        """File and line of a dotted key, or the override that gave it."""
        path = tuple(int(part) if part.isdigit() else part for part in key.split("."))
        return _place(path, lines_of(self.text), self.name, self.overrides)[2]


class Case(Document):
    """A validated case, its name, and TOML that repeats the run without any override."""

    name: str
    text: str
    origin: Any = None

    @property
    def recorded(self) -> str:
        """The text for a file: with each default written out that was another one before."""
        return defaults.resolved(self.text, self)


def load(source: str | Path, overrides: Sequence[str] = ()) -> Case:
    """Return the case in a file, or the shipped case of this name, under `KEY=VALUE` overrides.

    Raises CaseError for an invalid case, and as `read`.
    """
    found = read(source)
    case = parse(found.text, found.name, overrides)
    return case.model_copy(update={"origin": replace(case.origin, note=found.note)})


def load_shipped(name: str, overrides: Sequence[str] = ()) -> Case:
    """The shipped case of this name, whatever files there are. Raises as `load`."""
    return parse(text_of(name), name, overrides)


class Source(NamedTuple):
    """The text of a case, the file or the shipped case that it is, and what to say of that."""

    text: str
    name: str
    note: str = ""


def read(source: str | Path) -> Source:
    """The text of a case in a file, or of the shipped case of this name.

    A file in the current folder goes before a shipped case of its name, with or without ".toml".
    Raises InputError if there is none of this name or if it is not text, and FileFailure if the
    file cannot be read.
    """
    given, name, known = str(source), show(str(source)), shipped()
    beside = Path(f"{source}.toml")
    note = ""
    if given in known and not Path(source).is_file() and beside.is_file():
        source, name = beside, show(str(beside))
    try:
        with open(source, "rb") as file:  # which may be a device without an end
            content = file.read(MOST_BYTES + 1)
        if given in known:
            note = f"{given}: the file {name} in this folder, not the shipped case"
    except (OSError, ValueError) as error:
        if str(source) in known:
            return Source(text_of(given), given)
        if isinstance(error, IsADirectoryError):
            raise InputError(f"{name} is a directory, not a case file") from None
        if isinstance(error, FileNotFoundError | NotADirectoryError | ValueError):
            near = suggestion(Path(source).stem, known)
            raise InputError(f"no case file or shipped case is called {name}{near}") from None
        raise FileFailure(f"cannot read {name}: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise InputError(f"{name} is longer than {MOST_BYTES >> 20} MiB, no case is")
    try:
        return Source(content.decode("utf-8-sig"), str(source), note)
    except UnicodeDecodeError:
        raise InputError(f"{name} is not UTF-8 text") from None


def text_of(name: str) -> str:
    """The text of a shipped case. Raises InputError for another name."""
    known = shipped()
    if name not in known:
        near = suggestion(name, known) or "; heatsolve cases lists them"
        raise InputError(f"no shipped case is called {show(name)}{near}")
    return (_folder() / f"{name}.toml").read_text("utf-8")


def _folder() -> Path:
    """The folder of the shipped cases: in an installed package, else beside its source root."""
    package = Path(__file__).parents[1]
    installed = package / "cases"
    return installed if installed.is_dir() else package.parents[1] / "cases"


def parse(text: str, name: str, overrides: Sequence[str] = ()) -> Case:
    """Return the case in a TOML text; `name` is the file that messages speak of.

    Raises CaseError, with a line for each mistake.
    """
    text = text.replace("\r\n", "\n")
    table = _toml(text, name)
    settings = map(_as_text, overrides)
    origins = [(_override(table, setting), setting) for setting in settings]
    if found := [(path, UNHELD_WORDS) for path in unheld(table)]:
        raise CaseError(_report(found, 0, text, name, origins))
    context: dict[str, Any] = {"constants": {}, "faulty": []}
    kind = document_for(_equations(table))
    unseen = 0
    try:
        document = kind.model_validate(table, context=context)
        found = list(conflicts(document))
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
        found = [row for error in errors[:MOST_JUDGED] for row in _sentences(error, kind)]
        unseen = len(errors[MOST_JUDGED:])
        # Missing walls can be told although another section is wrong, if the grid is right.
        with suppress(ValidationError, KeyError):
            grid = Grid.model_validate(table["grid"], context=context)
            walls, needed = table.get("boundary", {}), needed_walls(grid)
            present = walls if isinstance(walls, dict) else needed
            found += wall_conflicts(grid, set(needed).intersection(present))
    if found:
        raise CaseError(_report(found, unseen, text, name, origins))
    repeated = dump(table) if overrides else text
    origin = Origin(text, name, tuple(origins))
    return Case.model_construct(
        **dict(document), name=Path(name).stem, text=repeated, origin=origin
    )


class Recorded(NamedTuple):
    """The case in a file as it was meant when it was written, None if it is none here; its text;
    and a sentence for each default that is another one since.
    """

    case: Case | None
    text: str
    notes: tuple[str, ...] = ()


@lru_cache(maxsize=64)
def recorded(text: str) -> Recorded:
    """The case whose `Case.recorded` a file holds; a text that is no case is left as it is."""
    if len(text) > MOST_BYTES:
        return Recorded(None, text)
    try:
        text, notes = defaults.completed(text, parse(text, "case"))
        return Recorded(parse(text, "case"), text, notes)
    except InputError:
        return Recorded(None, text)


def lines_about(case: Case, found: Iterable[Mistake]) -> list[str]:
    """A line for each key that something is to be said of, with the place where it was given."""
    origin, rows = case.origin or Origin("", case.name, ()), list(found)
    told = _report(rows, 0, origin.text, origin.name, list(origin.overrides))
    return told.split("\n") if rows else []


def shipped() -> dict[str, str]:
    """Return the title of every shipped case by its name."""
    titles = {}
    for file in sorted(_folder().glob("*.toml")):
        about = tomllib.loads(file.read_text("utf-8")).get("case", {})
        titles[file.stem] = about.get("title", "")
    return titles


def _toml(text: str, name: str) -> dict[str, Any]:
    try:
        return loads(text)
    except RecursionError:
        raise CaseError(f"{name}: nested too deeply") from None
    except ValueError as error:
        # What Python says of too many digits ends with advice to programmers.
        reason, _, place = str(error).partition("; use sys.")[0].partition(" (at ")
        number = re.search(r"\d+", place)
        line = int(number[0]) if number else text.count("\n") + 1
        opened = unclosed(text)
        if opened is not None and opened.line <= line:
            raise CaseError(f"{name}:{opened.line}: {opened}") from None
        hint = ""
        if (
            reason.startswith(("Invalid value", "Expected newline"))
            and line <= text.count("\n") + 1
        ):
            value = text.split("\n")[line - 1].partition("=")[2].partition("#")[0].strip()
            hint = f" in {quoted(value)}: a text or an expression stands in quotes" if value else ""
        raise CaseError(f"{name}:{line}: {reason[:1].lower()}{reason[1:]}{hint}") from None


def _as_text(setting: str) -> str:
    """An override from the command line, also where the locale knows fewer characters than it."""
    with suppress(UnicodeError):
        return os.fsencode(setting).decode()
    return setting


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


def _equations(table: Mapping[str, Any]) -> Equations | None:
    """Those of the model that a case asks for, if it is a user's own."""
    model = table.get("model")
    return find(model.get("kind")) if isinstance(model, dict) else None


def _section(path: KeyPath, section: type[Section]) -> type[Section] | None:
    """The section at this path, below another one; None for a key that is no section."""
    for key in (part for part in path if isinstance(part, str)):
        kind = section.model_fields[section.attributes()[key]].annotation
        kinds = [k for k in (kind, *get_args(kind)) if isinstance(k, type(Section))]
        if not kinds:
            return None
        section = kinds[0]
    return section


def _form(error: ErrorDetails, document: type[Document]) -> str:
    """How to write a section that was given as something else; nothing where that is not clear."""
    path, given = error["loc"], error["input"]
    section, header = _section(path, document), dotted(path)
    if error["type"] == "tuple_type" and isinstance(given, dict) and section is not None:
        return f"must be a list of tables, not a table: write [[{header}]], not [{header}]"
    if error["type"] != "model_type" or not isinstance(given, str | int | float | list):
        return ""
    if isinstance(given, list) and all(isinstance(item, dict) for item in given):
        return f"must be one table, not a list: write [{header}], not [[{header}]]"
    if section is not None and issubclass(section, Condition) and not isinstance(given, list):
        return f"must be a table: write {{ value = {show(given)} }}"
    return ""


def _sentences(error: ErrorDetails, document: type[Document]) -> Found:
    """Yield the mistakes of one error of pydantic in a document, in our own words."""
    kind, path, context = error["type"], error["loc"], error.get("ctx", {})
    if kind == "value_error":
        cause = context["error"]
        for below, sentence in getattr(cause, "found", [((), str(cause))]):
            yield (*path, *below), sentence
    elif kind == "extra_forbidden":
        section = _section(path[:-1], document)
        keys = list(section.attributes()) if section is not None else []
        near = suggestion(str(path[-1]), keys) or f" (known: {', '.join(keys)})"
        yield path, f"unknown key{near}"
    elif path == ("model", "kind") and kind == "literal_error":
        given = show(error["input"])
        yield path, f"must be one of {', '.join(map(show, known()))}, not {given}"
    elif form := _form(error, document):
        yield path, form
    elif kind in SENTENCES:
        words = {name: show(bound) for name, bound in context.items()}
        if "expected" in context:
            choices = context["expected"].replace("'", '"').replace(" or ", ", ")
            words["expected"] = f"one of {choices}" if ", " in choices else choices
        yield path, SENTENCES[kind].format(given=show(error["input"]), **words)
    else:
        yield path, error["msg"]


def _report(
    found: list[Mistake], unseen: int, text: str, name: str, origins: list[tuple[KeyPath, str]]
) -> str:
    """Return one line for each mistake: those of the file in its order, then the overrides'.

    Of many only the first, and how many more there are, with those that nobody put into words.
    """
    lines = lines_of(text)
    rows = []
    for path, sentence in found:
        from_setting, line, where = _place(path, lines, name, origins)
        what = f"{dotted(path)}: {sentence}" if path else sentence
        rows.append((from_setting, line, f"{where}: {what}"))
    told = [row for *_, row in sorted(rows, key=lambda row: row[:2])]
    more = unseen + len(told[MOST_TOLD:])
    return "\n".join(told[:MOST_TOLD] + ([f"{name}: and {more} more mistakes"] if more else []))


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
