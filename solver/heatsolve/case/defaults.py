"""Defaults that earlier versions had otherwise: files hold what they are in a case.

The case in a file names these keys, so that it repeats the run whatever the defaults of the
program that reads it. Where it does not name one, an earlier version wrote it, and its default then
is meant.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from heatsolve.case.schema import IMPLICIT, Document
from heatsolve.case.toml import dotted, dump, inline
from heatsolve.stencil.expressions import show


class ChangedDefault(NamedTuple):
    """A key with another default than before: `before`, and its value in a case (None where the
    key has no effect there)."""

    section: str
    key: str
    before: Any
    value: Callable[[Document], Any]


def _relative(case: Document) -> bool | None:
    """Of a case that stops at a norm of its residual: whether that norm is a relative one."""
    solves = case.model.steady or (case.time is not None and case.time.scheme in IMPLICIT)
    stops = case.solver.monitor == "residual" and case.solver.iterations is None
    return case.solver.is_relative if case.model.kind == "heat" and solves and stops else None


CHANGED_DEFAULTS = (
    ChangedDefault("solver", "relative", False, _relative),
    ChangedDefault("model", "form", "advective", lambda case: case.model.form),
)


def resolved(text: str, case: Document) -> str:
    """The text of a case, with the value of each of these keys that it does not name."""
    for default, value in _unnamed(text, case):
        text = with_key(text, default.section, default.key, value)
    return text


def completed(text: str, case: Document) -> tuple[str, tuple[str, ...]]:
    """The text of a case from a file as the version meant it that wrote it; and a sentence for each
    key that had another default then. `case` is what the text means now."""
    notes = []
    for default, value in _unnamed(text, case):
        text = with_key(text, default.section, default.key, default.before)
        if value != default.before:
            notes.append(
                f"an earlier version wrote it, in which {dotted((default.section, default.key))} "
                f"was {show(default.before)} by default, not {show(value)}"
            )
    return text, tuple(notes)


def _unnamed(text: str, case: Document) -> Iterator[tuple[ChangedDefault, Any]]:
    """The keys that have an effect in a case, but are not in its text; and their values."""
    table = tomllib.loads(text)
    for default in CHANGED_DEFAULTS:
        value = default.value(case)
        if value is not None and default.key not in table.get(default.section, {}):
            yield default, value


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
    """Whether a text is this table: what looks like a header may stand in a string."""
    try:
        return tomllib.loads(text) == table
    except ValueError:
        return False
