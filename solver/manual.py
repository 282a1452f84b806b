"""The reference of case files, made of the sections of `schema`: docs/reference.md.

python -m heatsolve.manual > docs/reference.md
"""

import ast
import inspect
import re
import typing
from collections.abc import Iterator
from types import UnionType
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from heatsolve import values
from heatsolve.expressions import Expression, show
from heatsolve.schema import Document, Section, section

INTRODUCTION = """\
# Every key of a case file

Made of the program's own sections by `python -m heatsolve.manual`; [case files](cases.md) explain
how they go together. A *field* is a number, or an expression in quotes of the variables named; a
*number* may be an expression of the case's constants. Lists run x, y, z. A model of one's own adds
its [fields and parameters](extending.md#a-model).
"""
KINDS: dict[Any, str] = {
    values.Real: "number",
    values.PositiveReal: "number above 0",
    values.Integer: "whole number",
    values.PositiveInteger: "whole number above 0",
    values.SpaceField: "field of x, y, z",
    values.SpaceTimeField: "field of x, y, z, t",
    values.VelocityField: 'list of fields, or "self"',
    values.Shape: '"circle", "box", or a field of x, y, z',
    values.Constants: "table of numbers",
    values.Interval: 'whole number, or a time such as "30 min"',
    section.FieldName: "name of a field",
    str: "text",
    bool: "true or false",
}


def reference() -> str:
    """The page, as Markdown."""
    return "\n".join([INTRODUCTION, *_page(Document, "")])


def _page(kind: type[Section], path: str) -> Iterator[str]:
    """A section, as a heading, what it is, and a table of its keys; then those inside it."""
    meanings, inner = _meanings(kind), []
    rows = []
    hints = typing.get_type_hints(kind, include_extras=True)
    for name, info in kind.model_fields.items():
        key = info.alias or name
        below = _section_of(info.annotation)
        if below is not None and not meanings.get(name):
            inner.append((below, _path(path, key, info)))
            continue
        if below is not None and below not in [each for each, _ in inner]:
            inner.append((below, _path(path, key, info)))
        said = _kind(hints[name]) if below is None else _table_of(info)
        rows.append(f"| `{key}` | {said} | {_default(info)} | {meanings.get(name, '')} |")
    if path:
        yield f"\n## `{path}`\n"
        yield _paragraph(kind) + "\n"
    if rows:
        yield "| key | what stands there | default | meaning |\n|---|---|---|---|"
        yield from rows
    for below, where in inner:
        yield from _page(below, where)


def _path(path: str, key: str, info: FieldInfo) -> str:
    """Where a section stands, in TOML's words; of alike ones the first stands for all."""
    whole = f"{path.strip('[]')}.{key}".lstrip(".")
    return f"[[{whole}]]" if typing.get_origin(info.annotation) is tuple else f"[{whole}]"


def _section_of(annotation: Any) -> type[Section] | None:
    """The section that a key holds, one or several of them."""
    for kind in (annotation, *typing.get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, Section):
            return kind
    return None


def _table_of(info: FieldInfo) -> str:
    return "tables" if typing.get_origin(info.annotation) is tuple else "table"


def _kind(hint: Any) -> str:
    """What may stand for a key, in words."""
    if hint in KINDS:
        return KINDS[hint]
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        base = {float: "number", int: "whole number"}.get(inside[0]) or _kind(inside[0])
        return base + "".join(map(_limit, inside[1:]))
    if origin in (typing.Union, UnionType):
        return ", or ".join(_kind(each) for each in inside if each is not type(None))
    if origin is typing.Literal:
        return ", ".join(map(show, inside))
    if origin is tuple:
        return f"list ({_kind(inside[0])})"
    return KINDS.get(inside[0], "") if inside else str(hint)


def _limit(constraint: Any) -> str:
    words = {"ge": "at least", "le": "at most", "lt": "below", "gt": "above"}
    found = {words[n]: getattr(constraint, n) for n in words if hasattr(constraint, n)}
    return "".join(f", {word} {n}" for word, n in found.items() if n != values.MAX_INTEGER)


def _default(info: FieldInfo) -> str:
    if info.default is PydanticUndefined:
        return "" if info.default_factory else "(needed)"
    default = info.default
    if default is None or default == () or isinstance(default, Section):
        return ""
    if isinstance(default, Expression):
        return f"{float(default()):g}"
    return f"`{show(default)}`"


def _paragraph(kind: type[Section]) -> str:
    """What a section says of itself, without its name."""
    text = " ".join((inspect.getdoc(kind) or "").split())
    text = re.sub(r"^`\[+[\w.]+\]+`(?: and its like)?: ", "", text)
    return text[:1].upper() + text[1:]


def _meanings(kind: type[Section]) -> dict[str, str]:
    """The sentence behind each attribute of a section."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            said = following.value if isinstance(following, ast.Expr) else None
            if isinstance(said, ast.Constant) and isinstance(said.value, str):
                found[statement.target.id] = " ".join(said.value.split()).removesuffix(".")
    return found


if __name__ == "__main__":
    print(reference(), end="")
