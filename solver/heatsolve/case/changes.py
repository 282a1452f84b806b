"""The keys of a case that may change: between a checkpoint and its restart, and during a march.

A run goes on from a checkpoint only if the case still asks for the same solution. Cases are
compared by their meaning: the form of a value, a default that is given explicitly, and unused
constants make no difference.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from heatsolve.case.case import Case
from heatsolve.case.data import LISTS, MOST_COORDINATES
from heatsolve.case.load import parse
from heatsolve.case.output import OutputFile
from heatsolve.case.sections import Section
from heatsolve.case.toml import KeyPath, dotted
from heatsolve.case.types import DATA
from heatsolve.errors import CaseError, InputError
from heatsolve.stencil.data import Data
from heatsolve.stencil.expressions import Expression, quoted, show

MAY_CHANGE = {
    ("case",),
    ("constants",),  # where they are used, they are compared
    ("output",),  # except the fields of frames, and columns of the history
    ("checkpoint",),
    ("stop",),
    ("parallel",),
    ("reference",),
    ("units",),
    ("solver", "method"),  # compared by the choice of `auto`
    ("solver", "tolerance"),
    ("solver", "relative"),
    ("solver", "max_iterations"),
    ("solver", "iterations"),
    ("time", "end"),
    ("time", "tolerance"),  # except whether there is one
    ("time", "allow_unstable"),
}
FREE: dict[str, Any] = {"every": None, "compression": None}
"""The keys of `[[output.file]]` that do not choose its values, with their defaults."""
DURING_A_MARCH = ("source", "boundary")
"""The sections of a case whose values a program may set while its steps are made."""
NAMED = 3
"""The most keys in one message."""

Change = tuple[KeyPath, Any, Any]  # a key, its value before, its value now
MethodName = Callable[[Case], str]
"""Gives the method that solves a case, also if the case says `auto`."""


def refuse_another(text: str, case: Case, method_name: MethodName) -> None:
    """Raise InputError, with the keys that changed, for a checkpoint of another solution.

    text: the case of the checkpoint, as its `Case.text`.
    """
    try:
        old = parse(text, "checkpoint")
    except CaseError as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"the case in the checkpoint is not valid here: {reason}") from None
    changes = [
        cause for change in _changes(old, case, method_name) for cause in _causes(change, old, case)
    ]
    changes.sort(key=lambda change: change[2] is None)  # first keys that stand in the case
    told = {
        f"{dotted(path)}: was {_shown(was)} in the checkpoint, is {_shown(now)} now": None
        for path, was, now in changes
    }
    if told:
        more = ["and other keys changed"] if len(told) > NAMED else []
        sentence = "; ".join([*list(told)[:NAMED], *more])
        raise InputError(f"{sentence} (--overwrite starts anew)")


Setting = tuple[str, str]
"""A dotted key of a case, and a value as TOML."""


def with_values(case: Case, settings: Sequence[Setting]) -> Case:
    """A case with other sources and values at walls, as a program sets them during its march.

    Its text stays the text of the case, without these values. Raises CaseError for a value that the
    case cannot have, InputError for a key of another section.
    """
    for key, value in settings:
        if key.split(".")[0] not in DURING_A_MARCH:
            raise InputError(
                f"set: {quoted(key)} is not a key of [{'] or ['.join(DURING_A_MARCH)}], the others "
                "stay as they are during a run"
            )
        if _is_data(tomllib.loads(f"value = {value}")["value"], tuple(key.split("."))):
            raise InputError(f"set: {key}: data cannot be set during a run")
    assert case.origin is not None
    folder, result = Path(case.origin.name).parent, case
    try:
        asked = [f"{key}={value}" for key, value in settings]
        new = parse(case.text, case.origin.name, asked, folder if folder.is_dir() else None)
    except CaseError as error:
        raise CaseError(str(error).replace("--set ", "set: ")) from None
    for path, was, now in _differences(case, new):
        if was is None or now is None or path[-1] == "kind":
            raise InputError(
                f"set: {dotted(path)}: was {_shown(was)}, would be {_shown(now)}: a wall keeps its "
                "kind of condition during a run, only values change"
            )
        if isinstance(now, Data):
            raise InputError(f"set: {dotted(path)}: data cannot be set during a run")
        result = _replaced(result, path, now)
    for (key, before), (_, after) in zip(case.data(), new.data(), strict=False):
        if before.given != after.given:  # only digests would show it
            raise InputError(f"set: {key}: data cannot be set during a run")
    for name in new.source.model_fields_set - case.source.model_fields_set:
        if name.startswith("mean"):
            raise InputError(f"set: source.{name} must be in the case from the start of a run")
    return result


def _is_data(value: Any, path: KeyPath) -> bool:
    """Whether a value of TOML is, or holds, a table of data or the numbers of an array."""
    if isinstance(value, dict):
        return any(key in DATA or _is_data(item, (*path, key)) for key, item in value.items())
    if not isinstance(value, list) or path[-1] in LISTS:
        return False
    return len(value) > MOST_COORDINATES or any(isinstance(item, list | dict) for item in value)


def _replaced(old: Any, path: KeyPath, value: Any) -> Any:
    """A section, or a list of tables, with another value at a path below it."""
    if not path:
        return value
    key, below = path[0], path[1:]
    if isinstance(old, tuple):
        items = list(old)
        items[int(key)] = _replaced(items[int(key)], below, value)
        return tuple(items)
    name = type(old).attributes()[key]
    new = old.model_copy(update={name: _replaced(getattr(old, name), below, value)})
    for found in vars(new).keys() - type(new).model_fields.keys():
        del vars(new)[found]  # a cached property
    return new


def driven_alike(old: Case, new: Case) -> bool:
    """Whether two cases have the same sources and walls."""
    return not any(path[0] in DURING_A_MARCH for path, *_ in _differences(old, new))


def _changes(old: Case, new: Case, method_name: MethodName) -> Iterator[Change]:
    was, now = method_name(old), method_name(new)
    if was != now:
        yield ("solver", "method"), was, now
    # Where statistics were added or left out, their own keys are the changes.
    alike = old.statistic_fields == new.statistic_fields
    own = [case.output.fields or case.field_names for case in (old, new)]
    fields = [case.written for case in (old, new)] if alike else own
    if set(fields[0]) != set(fields[1]) and not new.model.steady:
        yield ("output", "fields"), fields[0], fields[1]
    columns = {"probes": "probes", "line": "lines", "heat_flow": "heat_flow"}
    for key, attribute in columns.items():
        read = [getattr(case.output, attribute) for case in (old, new)]
        if key == "line":
            yield from _differences(read[0], read[1], ("output", key))
        elif read[0] != read[1]:
            yield ("output", key), read[0], read[1]
    if not new.model.steady:
        yield from _differences(_files(old), _files(new, _files(old)), ("output", "file"))
    if new.scheme == "collocated" and old.solver.iterations != new.solver.iterations:
        yield ("solver", "iterations"), old.solver.iterations, new.solver.iterations
    before, after = (case.time.tolerance if case.time else None for case in (old, new))
    if (before is None) != (after is None):  # the march then has another norm
        yield ("time", "tolerance"), before, after
    yield from _differences(old, new)


def _files(case: Case, like: Sequence[OutputFile] = ()) -> tuple[OutputFile, ...]:
    """`[[output.file]]` with its defaults, and without the keys that may change; in the order of
    the names of the files `like`, if these are the same."""
    files = {}
    for file in case.output.files:
        strides = file.strides(len(case.grid.counts))
        given = {"fields": file.fields or case.field_names, "stride": strides}
        files[file.name] = file.model_copy(update=FREE | given)
    order = [file.name for file in like]
    return tuple(files[name] for name in (order if set(order) == set(files) else files))


def _differences(old: Any, new: Any, path: KeyPath = ()) -> Iterator[Change]:
    """Yield the keys of two values, sections or tables in arrays that differ in meaning."""
    if isinstance(old, Section) and isinstance(new, Section):
        for key, name in type(old).attributes().items():
            below = (*path, key)
            if below not in MAY_CHANGE:
                yield from _differences(getattr(old, name), getattr(new, name, None), below)
    elif _are_tables(old) and _are_tables(new) and len(old) == len(new):
        for number, pair in enumerate(zip(old, new, strict=True)):
            yield from _differences(*pair, (*path, number))
    elif _meaning(old) != _meaning(new):
        yield path, old, new


def _are_tables(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, Section) for item in value)


def _meaning(value: Any) -> Any:
    if isinstance(value, Expression):
        return value.tree if value.names else value()
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return frozenset(value)  # periodic axes, in any order
    if isinstance(value, tuple):
        return tuple(map(_meaning, value))
    return value


def _causes(change: Change, old: Case, new: Case) -> Iterator[Change]:
    """Yield the changed constants that explain a change of a key, or else the change itself."""
    path, *_ = change
    before, after = (_item(tomllib.loads(case.text), path) for case in (old, new))
    alike = "".join(repr(before).split()) == "".join(repr(after).split())  # but for blanks
    constants = list(_constants(before, old, new)) if alike else []
    yield from constants or [change]


def _constants(written: Any, old: Case, new: Case) -> Iterator[Change]:
    """Yield the constants in a value that changed."""
    for name in sorted(_names(written)):
        was, now = old.constants.get(name), new.constants.get(name)
        if was != now:
            yield from _causes((("constants", name), was, now), old, new)


def _item(table: Any, path: KeyPath) -> Any:
    """The value at a path of a TOML document, None if there is none."""
    for key in path:
        inside = isinstance(table, Mapping) and key in table
        if not inside and not (isinstance(table, list) and isinstance(key, int)):
            return None
        table = table[key]
    return table


def _names(written: Any) -> set[str]:
    if isinstance(written, list):
        return set().union(*map(_names, written))
    return set(re.findall(r"\b[A-Za-z_]\w*", written)) if isinstance(written, str) else set()


def _shown(value: Any) -> str:
    if value is None:
        return "absent"
    if _are_tables(value):
        return f"{len(value)} given" if value else "absent"
    if isinstance(value, Section):
        return "given"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, Expression):
        try:
            return show(float(value.text))
        except ValueError:
            return quoted(value.text)
    return show(value)
