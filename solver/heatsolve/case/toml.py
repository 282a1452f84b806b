"""TOML with its lines: where the definition of each key starts, and the way back to text."""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, time
from typing import Any, NamedTuple

from heatsolve.stencil.expressions import show

KeyPath = tuple[str | int, ...]
PAIRS = {"[": "]", "{": "}"}
TOKENS = re.compile(
    "|".join(
        (
            r"#[^\n]*",  # a comment
            r'"""(?:\\.|[^\\])*?"""',  # texts of many lines, and an opening without an end
            r"'{3}.*?'{3}",
            r'"""',
            r"'{3}",
            r'"(?:\\.|[^"\\\n])*"',  # texts of one line
            r"'[^'\n]*'",
            r"""["'\[\]{}=\n]""",
        )
    ),
    re.DOTALL,
)
MOST_PARTS = 100
"""The most parts of a dotted key: tomllib's time grows with the square of their number."""
ENDS = ("]", "}", "'''", '"""')
"""Marks in the last line of a statement of several lines."""
MOST_TRIED = 1 << 22
"""The most characters that are read again to find where statements end: a few seconds."""
MOST_SCANNED = 1 << 20
"""The most characters in which open quotes are looked for: more would take too long."""


class Unclosed(NamedTuple):
    """A quote or a bracket, and the line where it opens; or a bracket that closes nothing."""

    line: int
    mark: str

    def __str__(self) -> str:
        if self.mark in PAIRS.values():
            return f"the bracket {self.mark} closes nothing"
        what = "bracket" if self.mark in PAIRS else "quote"
        return f"the {what} {self.mark} that opens here is not closed"


def unclosed(text: str) -> Unclosed | None:
    """The bracket or quote left open in a text that is no TOML, or None."""
    line, stack = 1, list[Unclosed]()
    for token in TOKENS.findall(text[:MOST_SCANNED]):
        top = stack[-1] if stack else None
        if token == "\n":
            if top is not None and top.mark == "{":  # such a table ends with its line
                return top
            line += 1
        elif token in PAIRS:
            stack.append(Unclosed(line, token))
        elif token in PAIRS.values():
            if top is None or PAIRS[top.mark] != token:
                return top or Unclosed(line, token)
            stack.pop()
        elif token == "=":
            if top is not None and top.mark == "[":  # the key of a later line
                return top
        elif token in ('"', "'", '"""', "'''"):
            return Unclosed(line, token)
        else:
            line += token.count("\n")
    return stack[-1] if stack and len(text) <= MOST_SCANNED else None


UNHELD = re.compile("[\0\ud800-\udfff]")
"""NUL, and the halves of characters (surrogates) that stand for bytes which are no text."""


def loads(text: str) -> dict[str, Any]:
    """The table of a TOML text, which may come from an untrusted source.

    Raises ValueError, with the line as tomllib words it, and RecursionError for a text that is
    nested too deeply.
    """
    for count, row in enumerate(text.split("\n"), 1):
        before_equals = (re.split(r"[{,]", piece)[-1] for piece in row.split("="))
        if any(len(re.findall(r"\.(?!\.)", key)) >= MOST_PARTS for key in before_equals):
            raise ValueError(f"A key of more than {MOST_PARTS} parts (at line {count})")
    return tomllib.loads(text)


def lines_of(text: str) -> dict[KeyPath, int]:
    """Return the line where the definition of each key starts, for a text that is valid TOML.

    A statement of TOML ends with a line, and it is valid by itself as soon as it is complete. Keys
    of a statement with very many lines, and of the text below it, are left out.
    """
    left = MOST_TRIED
    lines: dict[KeyPath, int] = {}
    arrays: dict[KeyPath, int] = {}  # the index of the latest table of each [[array]]
    table: KeyPath = ()
    rows: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        rows.append(line)
        start = number + 1 - len(rows)
        if number > start and not any(mark in line for mark in ENDS):
            continue  # it goes on
        statement = "\n".join(rows)
        left -= len(statement) - len(line)
        if left < 0:
            break
        try:
            paths = [path for path, _ in walk(tomllib.loads(statement))]
        except (ValueError, RecursionError):
            continue
        if statement.lstrip().startswith("["):
            table = ()
            for *_, key in paths:
                if isinstance(key, int):
                    arrays[table] = arrays.get(table, -1) + 1
                if table in arrays:
                    table = (*table, arrays[table])
                if isinstance(key, str):
                    table = (*table, key)
                lines.setdefault(table, start)
            lines[table] = start
        else:
            for path in paths:
                lines.setdefault((*table, *path), start)
        rows = []
    return lines


def walk(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the path and the value of everything inside a table or a list."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key), inner
        if isinstance(inner, dict | list):
            yield from walk(inner, (*path, key))


def unheld(table: Mapping[str, Any]) -> Iterator[KeyPath]:
    """Yield the places of texts that HDF5 cannot hold: with NUL, or with half a character."""
    for path, value in walk(table):
        if any(isinstance(text, str) and UNHELD.search(text) for text in (path[-1], value)):
            yield path


def dotted(path: KeyPath) -> str:
    """Return a key path as a dotted key, such as boundary.left."""
    return ".".join(_key(str(part)) for part in path)


class Place(NamedTuple):
    """Where a key was given: whether by an override, its line, and both in words."""

    overridden: bool
    line: int
    words: str


TABLE = "the case"
"""The name of a case that a program gives as a table: its text has no lines that a user knows."""


def place_of(
    path: KeyPath, lines: Mapping[KeyPath, int], name: str, origins: Sequence[tuple[KeyPath, str]]
) -> Place:
    """The place of a key in the file `name`; `lines`: see `lines_of`; `origins`: the paths that
    overrides set, and the overrides."""
    settings = [
        setting
        for origin, setting in origins
        if path[: len(origin)] == origin or (origin[: len(path)] == path and path not in lines)
    ]
    if settings:
        return Place(True, 0, f"--set {settings[-1]}")
    around = (path[:length] for length in range(len(path), 0, -1))
    line = next((lines[p] for p in around if p in lines), 0)
    return Place(False, line, f"{name}:{line}" if line and name != TABLE else name)


def dump(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """Return a table of strings, numbers, booleans, lists and tables as TOML text.

    Arrays and scalars of NumPy are lists and numbers. Raises TypeError for a value outside TOML.
    """
    # Deeper than [boundary.left] or [[source.point]], a table is easier to read in one line.
    blocks = {k: v for k, v in table.items() if len(path) < 2 and _is_block(v)}
    place = tuple(filter(None, path))
    lines = [f"{_key(k)} = {inline(v, (*place, k))}\n" for k, v in table.items() if k not in blocks]
    for key, value in blocks.items():
        header = ".".join(map(_key, (*path, key)))
        if isinstance(value, dict):
            lines.append(f"\n[{header}]\n{dump(value, (*path, key))}")
        else:
            lines += [f"\n[[{header}]]\n{dump(item, (*path, key, ''))}" for item in value]
    return "".join(lines)


def _is_block(value: Any) -> bool:
    items = value if isinstance(value, list) else [value]
    return bool(items) and all(isinstance(item, dict) for item in items)


def inline(value: Any, path: KeyPath = ()) -> str:
    """Return a value of TOML as text in one line. Raises TypeError for a value outside TOML."""
    value = _plain(value)
    if isinstance(value, dict):
        pairs = (f"{_key(k)} = {inline(v, (*path, k))}" for k, v in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(inline(v, (*path, n)) for n, v in enumerate(value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float | date | time):
        given = f"{type(value).__name__} is no number, text, list or table"
        raise TypeError(f"{dotted(path)}: {given}")
    return _string(value) if isinstance(value, str) else str(value)


def _plain(value: Any) -> Any:
    """An array or a scalar of NumPy as lists and numbers; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _key(key: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a key is a text, not {key!r:.40}")
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _string(key)


def _string(text: str) -> str:
    # JSON lets DEL stand, TOML does not.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# ---- defaults that differed in earlier versions: files hold their values ------------------------

# The case in a file names these keys, so that it repeats the run whatever the defaults of the
# program that reads it. A case without such a key is older, and means the default of its version.


class ChangedDefault(NamedTuple):
    """A key of a case whose default has changed, its default before, and its value in the case."""

    section: str
    key: str
    before: Any
    value: Any


def resolved(text: str, defaults: Iterable[ChangedDefault]) -> str:
    """The text of a case, with the value of each key of `defaults` that the text does not name."""
    for default in _unnamed(text, defaults):
        text = with_key(text, default.section, default.key, default.value)
    return text


def completed(text: str, defaults: Iterable[ChangedDefault]) -> tuple[str, tuple[str, ...]]:
    """The text of a case from a file, with the defaults of the version that wrote it; and a
    sentence for each key that had another default then. `defaults`: of the text as it stands."""
    notes = []
    for default in _unnamed(text, defaults):
        text = with_key(text, default.section, default.key, default.before)
        if default.value != default.before:
            notes.append(
                f"an earlier version wrote it, in which {dotted((default.section, default.key))} "
                f"was {show(default.before)} by default, not {show(default.value)}"
            )
    return text, tuple(notes)


def _unnamed(text: str, defaults: Iterable[ChangedDefault]) -> Iterator[ChangedDefault]:
    """The keys of `defaults` that are not in the text of a case."""
    table = tomllib.loads(text)
    return (d for d in defaults if d.key not in table.get(d.section, {}))


def with_key(text: str, section: str, key: str, value: Any) -> str:
    """A TOML text with one more key in one of its tables, which is added where there is none.

    The text stays as it is written, comments included, unless the table cannot take another key.
    """
    table = tomllib.loads(text)
    wanted = {**table, section: {**table.get(section, {}), key: value}}
    line = f"{key} = {inline(value)}\n"
    header = re.compile(rf"^[ \t]*\[[ \t]*{section}[ \t]*\][^\n]*$", re.MULTILINE)
    ends = [found.end() for found in header.finditer(text)]
    written = [f"{text[:end]}\n{line.strip()}{text[end:]}" for end in ends]
    if section not in table:
        written.append(f"{text.rstrip()}\n\n[{section}]\n{line}")
    return next((each for each in written if _means(each, wanted)), None) or dump(wanted)


def _means(text: str, table: Mapping[str, Any]) -> bool:
    """Whether a text is this table: a line in a string may look like a header."""
    try:
        return tomllib.loads(text) == table
    except ValueError:
        return False
