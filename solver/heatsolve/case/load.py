"""A case file, read: TOML and overrides in, a validated and frozen `Case` out.

Every mistake is reported at once, each with the file and line (or the override) where it stands.
"""

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

import heatsolve
from heatsolve.case.case import Case, Origin, needed_walls, wall_mistakes
from heatsolve.case.sections import FIELDS, Condition, Grid, Section
from heatsolve.case.toml import (
    KeyPath,
    completed,
    dotted,
    dump,
    lines_of,
    loads,
    place_of,
    unclosed,
    unheld,
)
from heatsolve.case.types import Found, Mistake
from heatsolve.errors import CaseError, FileFailure, InputError
from heatsolve.stencil.expressions import quoted, show, suggestion

# A case is a page or two: a longer text is no case, or must not take more than a moment.
MOST_BYTES = 8 * 2**20
MOST_JUDGED, MOST_TOLD = 1000, 20
"""The most mistakes that are put into words, and the most that are told."""
CONDITION = 4
"""Parts of the path of a key of a condition, such as boundary.left.temperature.value."""
UNHELD_WORDS = "holds a NUL or half a character (a surrogate), which no file can hold"
# Our words for the errors of pydantic, by their types.
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


def load(source: str | Path, overrides: Sequence[str] = ()) -> Case:
    """Return the case in a file, or the shipped case of this name, under `KEY=VALUE` overrides.

    Raises CaseError for an invalid case, and the errors of `read`.
    """
    found = read(source)
    folder = Path(found.name).parent if Path(found.name).is_file() else Path()
    return parse(found.text, found.name, overrides, folder, found.note)


def load_shipped(name: str, overrides: Sequence[str] = ()) -> Case:
    """The shipped case of this name, whatever files there are. Raises the errors of `load`."""
    return parse(text_of(name), name, overrides)


class Source(NamedTuple):
    """The text of a case, the name of its file or shipped case, and a note on the choice."""

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
        with open(source, "rb") as file:  # it may be a device without an end
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
    """The folder of the shipped cases: in an installed package, or beside its source root."""
    package = Path(__file__).parents[1]
    installed = package / "cases"
    return installed if installed.is_dir() else package.parents[1] / "cases"


def parse(
    text: str, name: str, overrides: Sequence[str] = (), folder: Path | None = None, note: str = ""
) -> Case:
    """Return the case in a TOML text; `name` is the file that messages name, `folder` the folder of
    files of data, by default the current folder; `note`: see `Origin`.

    Raises CaseError, with a line for each mistake.
    """
    text = text.replace("\r\n", "\n")
    table = _toml(text, name)
    settings = map(_as_text, overrides)
    origins = [(_override(table, setting), setting) for setting in settings]
    if found := [(path, UNHELD_WORDS) for path in unheld(table)]:
        raise CaseError(_report(found, 0, text, name, origins))
    context: dict[str, Any] = {"constants": {}, "faulty": [], "folder": folder or Path()}
    kind, unseen = case_of(table.get("model")), 0
    try:
        case = (kind or usual()).model_validate(table, context=context)
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
        found = [row for error in errors[:MOST_JUDGED] for row in _sentences(error, kind)]
        unseen = len(errors[MOST_JUDGED:])
        # Missing walls can be told although another section is wrong, if the grid is right.
        with suppress(ValidationError, KeyError):
            grid = Grid.model_validate(table["grid"], context=context)
            walls, needed = table.get("boundary", {}), needed_walls(grid)
            present = walls if isinstance(walls, dict) else needed
            lacking = wall_mistakes(grid, set(needed).intersection(present))
            found += [row for row in lacking if row not in found]
        raise CaseError(_report(found, unseen, text, name, origins)) from None
    repeated = dump(table) if overrides else text
    return case.named(Path(name).stem, repeated, Origin(text, name, tuple(origins), note))


class Recorded(NamedTuple):
    """The case in a file with the defaults of the version that wrote it, None if it is not valid
    here; its text; and a sentence for each default that has changed since.
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
        text, notes = completed(text, parse(text, "case").changed_defaults())
        return Recorded(parse(text, "case"), text, notes)
    except InputError:
        return Recorded(None, text)


def lines_about(case: Case, found: Iterable[Mistake]) -> list[str]:
    """A line for each sentence on a key in `found`, with the place where the key was given."""
    origin, rows = case.origin or Origin("", case.name, ()), list(found)
    told = _report(rows, 0, origin.text, origin.name, list(origin.overrides))
    return told.split("\n") if rows else []


def shipped() -> list[str]:
    """The names of the shipped cases, in the order of their files."""
    return [file.stem for file in sorted(_folder().glob("*.toml"))]


def title(name: str) -> str:
    """The title of a shipped case. Raises the errors of `text_of`."""
    return tomllib.loads(text_of(name)).get("case", {}).get("title", "")


def _toml(text: str, name: str) -> dict[str, Any]:
    try:
        return loads(text)
    except RecursionError:
        raise CaseError(f"{name}: nested too deeply") from None
    except ValueError as error:
        # Python's message on too many digits ends with advice to programmers.
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
    """An override from the command line, also if the locale lacks some of its characters."""
    with suppress(UnicodeError):
        return os.fsencode(setting).decode()
    return setting


def _override(table: dict[str, Any], setting: str) -> KeyPath:
    """Carry out one KEY=VALUE on the document, or KEY= which removes the key; return its path."""
    where = f"--set {setting}"
    key, equals, text = setting.partition("=")
    *parents, last = (part.strip() for part in key.split("."))
    if not equals or not all((*parents, last)):
        raise CaseError(f"{where}: must be KEY=VALUE")
    here: Any = table
    path: KeyPath = ()
    kind = case_of(table.get("model"))
    for part in parents:
        if isinstance(here, list):
            if part not in map(str, range(len(here))):
                raise CaseError(f"{where}: {dotted(path)} has {len(here)} items, counted from 0")
            path, here = (*path, int(part)), here[int(part)]
        else:
            if text:
                _drop_rivals(here, kind, path, part)
                here.setdefault(part, {})
            path, here = (*path, part), here.get(part, {})
        if not isinstance(here, dict | list):
            raise CaseError(f"{where}: {dotted(path)} is not a table")
    if not text:
        names = list(map(str, range(len(here)) if isinstance(here, list) else here))
        if last not in names:
            raise CaseError(
                f"{where}: the case gives no {dotted((*path, last))} that could be removed"
            )
        place: Any = int(last) if isinstance(here, list) else last
        del here[place]
        return (*path, place)
    if isinstance(here, list):
        raise CaseError(f"{where}: {dotted(path)} is a list, and a list is replaced whole")
    _drop_rivals(here, kind, path, last)
    here[last] = _toml_value(text)
    return (*path, last)


def _toml_value(text: str) -> Any:
    try:
        table = tomllib.loads(f"v = {text}")
    except (ValueError, RecursionError):
        return text
    # A line break in the text could smuggle in more keys.
    return table["v"] if len(table) == 1 else text


def _drop_rivals(table: dict[str, Any], kind: type[Case] | None, path: KeyPath, key: str) -> None:
    """Remove from a table the keys that `key` replaces."""
    section = _section(path, kind or usual())
    for rival in section.rivals(key) if section is not None else ():
        table.pop(rival, None)


def _section(path: KeyPath, section: type[Section]) -> type[Section] | None:
    """The section at a path below `section`; None for a key that is no section."""
    for key in (part for part in path if isinstance(part, str)):
        if key not in section.attributes():
            return None
        kind = _annotation(section, key)
        kinds = [k for k in (kind, *get_args(kind)) if isinstance(k, type(Section))]
        if not kinds:
            return None
        section = kinds[0]
    return section


def _form(path: KeyPath, given: Any, case: type[Case]) -> str:
    """How to write a section that was given in another form; "" where that is not clear."""
    section, header = _section(path, case), dotted(path)
    if section is None:
        return ""
    outer = _section(path[:-1], case)
    assert outer is not None
    key = path[-1]
    listed = isinstance(key, str) and get_origin(_annotation(outer, key)) is tuple
    if listed and isinstance(given, dict):
        return f"must be a list of tables, not a table: write [[{header}]], not [{header}]"
    if listed or not isinstance(given, str | int | float | list):
        return ""
    if isinstance(given, list) and all(isinstance(item, dict) for item in given):
        return f"must be one table, not a list: write [{header}], not [[{header}]]"
    if issubclass(section, Condition) and not isinstance(given, list):
        return f"must be a table: write {{ value = {show(given)} }}"
    return ""


def _annotation(section: type[Section], key: str) -> Any:
    return section.model_fields[section.attributes()[key]].annotation


def _keys(path: KeyPath, case: type[Case]) -> list[str]:
    """The keys of a section of a case."""
    section = _section(path, case)
    return list(section.attributes()) if section is not None else []


def _unknown(path: KeyPath, given: Any, case: type[Case] | None) -> Found:
    """Yield why a case does not know a key: other models have it, or it is misspelt.

    A key of other models yields nothing if the case's own model does not exist.
    """
    places = [path]
    if path[0] == "boundary" and len(path) == CONDITION:  # the fields of models have other names
        places = [(*path[:2], name, path[-1]) for name in FIELDS]
    others = [
        other
        for other in built_in()
        if any(place[-1] in _keys(place[:-1], other) for place in places)
    ]
    if not others:
        keys = _keys(path[:-1], case or usual())
        near = suggestion(str(path[-1]), keys) or f" (known: {', '.join(keys)})"
        yield path, f"unknown key{near}"
    elif form := _form(path, given, others[0]):
        yield path, form
    elif case is not None and path[0] != "model":
        yield path, f"only for {' or '.join(dict.fromkeys(each.owners for each in others))}"
    elif case is not None:
        word = "scheme" if case.kind in {each.kind for each in others} else "kind"
        names = dict.fromkeys(show(getattr(each, word)) for each in others)
        yield path, f"only for {word} = {' or '.join(names)}"


def _sentences(error: ErrorDetails, case: type[Case] | None) -> Found:
    """Yield the mistakes of one error of pydantic in our words; `case`: None for an unknown
    model."""
    kind, path, context = error["type"], error["loc"], error.get("ctx", {})
    if kind == "value_error":
        cause = context["error"]
        for below, sentence in getattr(cause, "found", [((), str(cause))]):
            yield (*path, *below), sentence
    elif kind == "extra_forbidden":
        yield from _unknown(path, error["input"], case)
    elif path == ("model", "kind") and kind == "literal_error":
        given = show(error["input"])
        yield path, f"must be one of {', '.join(map(show, known()))}, not {given}"
    elif kind in ("model_type", "tuple_type") and (
        form := _form(path, error["input"], case or usual())
    ):
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
    """Return one line for each mistake: first of the file in its order, then of the overrides.

    Of many mistakes only the first, and the number of the rest, which includes `unseen` ones.
    """
    lines = lines_of(text)
    rows = []
    for path, sentence in found:
        from_setting, line, where = place_of(path, lines, name, origins)
        what = f"{dotted(path)}: {sentence}" if path else sentence
        rows.append((from_setting, line, f"{where}: {what}"))
    told = [row for *_, row in sorted(rows, key=lambda row: row[:2])]
    more = unseen + len(told[MOST_TOLD:])
    return "\n".join(told[:MOST_TOLD] + ([f"{name}: and {more} more mistakes"] if more else []))


@contextmanager
def locating(case: Case) -> Iterator[None]:
    """Add the place of a key to an InputError that begins with it, such as `time.step: ...`."""
    try:
        yield
    except InputError as error:
        key = re.match(r"(\w+(?:\.\w+)+): ", str(error))
        if key is None or isinstance(error, CaseError) or case.origin is None:
            raise
        raise CaseError(f"{case.origin.place_of(key[1])}: {error}") from None


# ---- the models that a case may ask for ----

# A model is a folder and a line of `heatsolve.MODELS`; or one that a user's program registers; or
# an entry point of the group "heatsolve.models" of an installed package, by the same name.

GROUP = "heatsolve.models"
Cases = Callable[[Mapping[str, Any]], list[type[Case]]]
"""From a `[model]` to the classes of its cases, first the class that it means."""
REGISTERED: dict[str, Cases] = {}
"""Models that users' programs have registered."""


def find(name: object) -> Cases | None:
    """The cases of the model of this name; None if there is none."""
    if not isinstance(name, str):
        return None
    if name in heatsolve.MODELS:
        return import_module(f"{heatsolve.MODELS[name]}.case").cases
    if name not in REGISTERED:
        for offered in entry_points(group=GROUP, name=name):
            offered.load()
    return REGISTERED.get(name)


def case_of(model: Any) -> type[Case] | None:
    """The class of case that a `[model]` means, by default heat conduction;
    None if there is no such model."""
    table = model if isinstance(model, Mapping) else {}
    cases = find(table.get("kind", next(iter(heatsolve.MODELS))))
    return cases(table)[0] if cases is not None else None


def usual() -> type[Case]:
    """The class of a case that does not name its model."""
    case = case_of({})
    assert case is not None
    return case


def known() -> list[str]:
    """Names of all models, the built-in ones first."""
    offered = {entry.name for entry in entry_points(group=GROUP)}
    return [*heatsolve.MODELS, *sorted(offered | REGISTERED.keys())]


def built_in() -> Iterator[type[Case]]:
    """Yield all cases of the built-in models."""
    for name in heatsolve.MODELS:
        if (cases := find(name)) is not None:
            yield from cases({})
