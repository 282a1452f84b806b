"""The reference of case files as a page, made from the schema: every section, key and default.

`python docs/reference.py` writes reference.md beside itself.
"""

import ast
import inspect
import re
import types
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import StrictBool
from pydantic.fields import FieldInfo

from heatsolve.case.load import built_in
from heatsolve.case.output import Every, Film
from heatsolve.case.sections import FIELDS, Boundary, FieldName, Model, Section, WallTime
from heatsolve.case.types import (
    Constants,
    Integer,
    Interval,
    Real,
    RowCondition,
    Shape,
    SpaceField,
    SpaceTimeField,
    StartFile,
    Stride,
    VelocityField,
)
from heatsolve.stencil.expressions import Expression, show

HEAD = """\
# Keys of a case file

Every section and every key, made from the program's own schema. Lists run x, y, z. Where a number
or a field may stand, an expression in quotes may stand; what it may say, and how the parts work
together, is in [case files](cases.md). For a field of x, y, z a table may stand that names a file
or an image, `{ file = "a.h5", field = "T" }`: see [fields from
files](cases.md#fields-from-files). `--set KEY=VALUE` sets any key: `--set grid.cells=[64,64]`,
`--set obstacle.0.radius=0.1`; `--set KEY=` removes it.

`FIELD` is a field of the model: `temperature` (heat; flow), `concentration` (transport; flow),
`velocity_x`, `velocity_y`, `velocity_z` (transport of a velocity; flow), `pressure` (flow), or one
of [a model of your own](extending.md#a-model), whose parameters are keys of `[model]`. `WALL` is
`left`, `right`, `bottom`, `top`, `back` or `front`.
"""
WORDS = {
    Real: "number",
    Integer: "whole number",
    SpaceField: "field of x, y, z",
    SpaceTimeField: "field of x, y, z, t",
    VelocityField: 'list of fields of x, y, z; or `"self"`',
    Shape: '`"circle"`, `"box"` or field of x, y, z',
    StartFile: "name of a file",
    Constants: "table of numbers",
    Interval: "whole number > 0 or time",
    WallTime: "time",
    Every: "whole number > 0, time, or list of numbers",
    RowCondition: "expression in columns of the history",
    Stride: "whole number > 0, or list of them",
    Film: "true, false, or list of names of fields",
    FieldName: "name of a field",
    StrictBool: "true or false",
    str: "text",
}
PLURAL = re.compile(r"^(whole number|number|name|list|table)\b")
BOUNDS = {Gt: (">", "gt"), Ge: (">=", "ge"), Lt: ("<", "lt"), Le: ("<=", "le")}
COMMON_NAMES = {"FIELD": FIELDS, "WALL": tuple(Boundary.model_fields)}


class Key(NamedTuple):
    """A key of a section, or several that mean the same."""

    name: str
    info: FieldInfo
    annotation: Any
    meaning: str
    inner: list[type[Section]]
    """The sections of all models below this key, if it is a section."""


def reference() -> str:
    """The page, in Markdown."""
    return "\n".join([HEAD, *_sections(list(built_in()), "")])


def keys(sections: Sequence[type[Section]]) -> Iterator[Key]:
    """The keys of the sections of all models in one place, in their order; names of fields and of
    walls are one key."""
    result: dict[str, Key] = {}
    for section in sections:
        meanings = _meanings(section)
        for name, info in section.model_fields.items():
            group = _common_name(name) or info.alias or name
            annotation, meaning = meanings[name]
            inner = [i for key in (result.get(group),) if key for i in key.inner]
            if (own := _inner(annotation)) is not None and own not in inner:
                inner.append(own)
            if group not in result:
                result[group] = Key(group, info, annotation, meaning, inner)
            else:
                result[group] = result[group]._replace(inner=inner)
    yield from result.values()


def _common_name(name: str) -> str | None:
    for common, names in COMMON_NAMES.items():
        if name in names:
            return common
    shared = re.fullmatch(r"(\w+_)[xyz]", name)
    return f"{shared[1]}x`, `{shared[1]}y`, `{shared[1]}z" if shared else None


def _meanings(section: type[Section]) -> dict[str, tuple[Any, str]]:
    """The annotation of each attribute, and the text below it; pydantic could read them, but at
    every start, in 0.1 s. Attributes of a section that a program makes say it themselves."""
    result: dict[str, tuple[Any, str]] = {}
    for each in reversed(section.__mro__):
        if not issubclass(each, Section):
            continue
        texts = _attribute_docstrings(each)
        for name, annotation in inspect.get_annotations(each).items():
            if name in each.model_fields:
                said = each.model_fields[name].description or texts.get(name, "")
                result[name] = annotation, said or result.get(name, (None, ""))[1]
    return result


def _attribute_docstrings(section: type[Section]) -> dict[str, str]:
    """The text below each attribute of a section; none for one that a program makes."""
    if section.__name__.startswith("Own"):
        return {}
    (tree,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(tree, ast.ClassDef)
    result = {}
    for statement, after in pairwise(tree.body):
        match statement, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                result[name] = " ".join(text.split())
    return result


def _sections(sections: Sequence[type[Section]], path: str) -> Iterator[str]:
    """The table of the keys that sections of one place have, then the sections in them."""
    below = [key for key in keys(sections) if key.inner]
    # At the top every section has a heading of its own in place of a row.
    rows = [key for key in keys(sections) if path or not key.inner]
    yield from ("| key | what may stand there | default | meaning |", "|---|---|---|---|")
    for key in rows:
        words = _words(key.annotation)
        yield f"| `{key.name}` | {words} | {_default(key.info)} | {key.meaning} |"
    yield ""
    for key in below:
        repeated = get_origin(key.annotation) is tuple
        inner_path = f"{path}.{key.name}".removeprefix(".")
        heading = f"[[{inner_path}]]" if repeated else f"[{inner_path}]"
        level = "##" if not path else "###"
        if issubclass(key.inner[0], Model):  # each model has one of its own
            yield from (f"{level} `{heading}`", "", _about(Model), "")
            for inner in key.inner:
                yield from (f"### `{heading}` of {_first_words(inner)}", "", _about(inner), "")
                yield from _sections([inner], inner_path)
            continue
        yield from (f"{level} `{heading}`", "", _about(key.inner[0]), "")
        yield from _sections(key.inner, inner_path)


def _first_words(model: type[Section]) -> str:
    """The name of a model's equation."""
    first = re.split("[:,]", inspect.getdoc(model) or "")[0]
    return first[:1].lower() + first[1:]


def _about(section: type[Section]) -> str:
    """The docstring of a section, without the name at its beginning."""
    text = re.sub(r"^`\[.*?\]+`( and its like)?: ", "", inspect.getdoc(section) or "")
    return text[:1].upper() + text[1:]


def _inner(annotation: Any) -> type[Section] | None:
    """The section that a key holds, if it holds one."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(_inner, get_args(annotation))), None)


def _words(annotation: Any) -> str:
    """A type in words, for the author of a case."""
    if annotation in WORDS:
        return WORDS[annotation]
    kind, parts = get_origin(annotation), get_args(annotation)
    if kind is Annotated:
        return _bounded(*parts)
    if kind is Literal:
        return _either([f"`{show(part)}`" for part in parts])
    if kind is tuple:
        return "list of " + PLURAL.sub(r"\1s", _words(parts[0]))
    if kind in (Union, types.UnionType):
        return _either([_words(part) for part in parts if part is not types.NoneType])
    return "table"


def _bounded(base: Any, *metadata: Any) -> str:
    """A type with bounds: the longest known beginning of its metadata, and the rest."""
    for count in range(len(metadata), 0, -1):
        known = WORDS.get(Annotated[base, *metadata[:count]])
        if known:
            bounds = [item for item in metadata[count:] if type(item) in BOUNDS]
            limits = [(BOUNDS[type(item)], item) for item in bounds]
            said = [f"{sign} {show(getattr(item, name))}" for (sign, name), item in limits]
            return " ".join([known, " and ".join(said)]).strip()
    return _words(base)


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "needed"
    value = info.default
    if isinstance(value, Expression):
        return f"`{show(value())}`"
    if isinstance(value, str | bool | int | float):
        return f"`{show(value)}`"
    return ""


if __name__ == "__main__":
    Path(__file__).with_suffix(".md").write_text(reference(), encoding="utf-8")
