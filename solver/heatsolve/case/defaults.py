"""Defaults that differed in earlier versions: files hold their values in a case.

The case in a file names these keys, so that it repeats the run whatever the defaults of the
program that reads it. Where it does not name one, an earlier version wrote it, and its default then
is meant.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from heatsolve.case.toml import dotted, dump, inline
from heatsolve.stencil.expressions import show


class ChangedDefault(NamedTuple):
    """A key of a case with another default than before, and its value in the case."""

    section: str
    key: str
    before: Any
    value: Any


def resolved(text: str, defaults: Iterable[ChangedDefault]) -> str:
    """The text of a case, with the value of each of these keys that it does not name."""
    for default in _unnamed(text, defaults):
        text = with_key(text, default.section, default.key, default.value)
    return text


def completed(text: str, defaults: Iterable[ChangedDefault]) -> tuple[str, tuple[str, ...]]:
    """The text of a case from a file as the version meant it that wrote it; and a sentence for each
    key that had another default then. `defaults`: of the case that the text means now."""
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
    """The keys that are not in the text of a case."""
    table = tomllib.loads(text)
    return (d for d in defaults if d.key not in table.get(d.section, {}))


def with_key(text: str, section: str, key: str, value: Any) -> str:
    """A TOML text with one more key in one of its tables, which is added where there is none.

    The text stays as it is written, comments included, but for tables that cannot be added to.
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
