"""The models that a case may ask for by `model.kind`, and the cases that each understands.

A model is a folder and a line of `heatsolve.MODELS`; or one that a user's program registers; or an
entry point of the group "heatsolve.models" of an installed package, by the same name.
"""

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import heatsolve
from heatsolve.case.case import Case

GROUP = "heatsolve.models"
Cases = Callable[[Mapping[str, Any]], list[type[Case]]]
"""From a `[model]` to the classes of its cases, first the class that it means."""
REGISTERED: dict[str, Cases] = {}
"""Models of users' programs."""


def find(name: object) -> Cases | None:
    """The cases of the model of this name; None if there is none."""
    if not isinstance(name, str):
        return None
    if name in heatsolve.MODELS:
        result: Cases = import_module(f"{heatsolve.MODELS[name]}.case").cases
        return result
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
    """The case that says nothing of its model."""
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
