"""Keys of a case that may be given but change nothing: a warning each, or an error.

Keys that could be mistaken for something else are refused when the case is read, see `conflicts`.
"""

import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from heatsolve.backends import Backend
from heatsolve.case.case import Case
from heatsolve.case.load import lines_about
from heatsolve.case.sections import FIELDS, IMPLICIT
from heatsolve.case.types import Found
from heatsolve.errors import CaseError
from heatsolve.models.base import grid_of, region_of

EXPLICIT = "an explicit march solves no system"
STEADY = "a steady case has no time"
TOLD_BY_MARCHES = {"precision", "check_every"}
"""Keys of `[solver]` that every march follows."""
COUNTED = "solver.iterations makes exactly so many iterations"


def warn_of_unused(
    case: Case, machine: Backend, ranks: int, warn: Callable[[str], None], strict: bool
) -> None:
    """Warn of every key that changes nothing in a run on this machine, by so many processes.

    Raises CaseError with a line for each if `strict`.
    """
    lines = lines_about(case, unused_keys(case, machine, ranks))
    if strict and lines:
        raise CaseError("\n".join(lines))
    for line in lines:
        warn(line)


def unused_keys(case: Case, machine: Backend, ranks: int) -> Found:
    """Yield each key that is given and changes nothing, and why."""
    given = tomllib.loads(case.text)
    for rules in (_solver, _time_and_model, _fields, _boxes, _constants):
        for path, why in rules(case, given):
            yield path, f"has no effect: {why}"
    for path, why in _parallel(given, machine, ranks):
        yield path, f"has no effect: {why}"


def _among(given: Mapping[str, Any], section: str, keys: Mapping[str, str]) -> Found:
    """Those of some keys of a section that are given, and why they change nothing."""
    for key in given.get(section, {}):
        if key in keys:
            yield (section, key), keys[key]


def _solver(case: Case, given: Mapping[str, Any]) -> Found:
    """What no solver of this case asks."""
    time, keys = case.time, dict[str, str]()
    if case.model.kind == "heat" and time is not None and time.scheme not in IMPLICIT:
        keys = dict.fromkeys(set(given.get("solver", {})) - TOLD_BY_MARCHES, EXPLICIT)
    elif case.solver.iterations is not None:
        overridden = {path for path, _ in case.origin.overrides} if case.origin else set()
        for key in ("tolerance", "relative", "max_iterations"):
            # `--set solver.iterations=N` is meant to take the place of a file's tolerance.
            if ("solver", "iterations") not in overridden or ("solver", key) in overridden:
                keys[key] = COUNTED
    yield from _among(given, "solver", keys)


def _time_and_model(case: Case, given: Mapping[str, Any]) -> Found:
    """What a steady case, or an implicit march, does not ask."""
    model, time = case.model, case.time
    if model.steady:
        yield from _among(given, "output", {"every": STEADY, "sample": STEADY})
        yield from _among(given, "units", {"time": STEADY})
        capacity = "a steady temperature does not depend on it"
        yield from _among(given, "model", {"density": capacity, "specific_heat": capacity})
    elif time is not None and time.scheme in IMPLICIT:
        stable = f"{time.scheme} is stable at any step"
        yield from _among(given, "time", {"allow_unstable": stable})
    if getattr(model, "buoyancy", None) is None:
        unmoved = "without model.buoyancy the temperature moves nothing"
        yield from _among(given, "model", {"reference_temperature": unmoved})


def _fields(case: Case, given: Mapping[str, Any]) -> Found:
    """Units of fields that the model lacks, and references for fields that are not written."""
    own, written = case.field_names, case.output.fields
    lacking = f"the model has no such field (it has {', '.join(own)})"
    yield from _among(given, "units", {name: lacking for name in FIELDS if name not in own})
    if written is None:
        return
    unwritten = "{} is not among output.fields, and is compared with nothing"
    for name in own:
        if name not in written and getattr(case.reference.exact, name) is not None:
            yield ("reference", "exact", name), unwritten.format(name)
    for n, profile in enumerate(case.reference.profiles):
        if profile.field not in written:
            yield ("reference", "profile", n, "field"), unwritten.format(profile.field)


def _boxes(case: Case, given: Mapping[str, Any]) -> Found:
    """Boxes of initial values in which no unknown lies."""
    whole = grid_of(case)
    faces = [f"velocity_{axis.name}" for axis in whole.axes]
    for n, box in enumerate(case.initial.boxes):
        staggered = case.model.scheme == "staggered" and box.field in faces
        places = whole.faces(faces.index(box.field)) if staggered else whole
        if any(low >= high for low, high in region_of(box, places)):
            yield ("initial", "box", n), f"no unknown of {box.field} lies in it"


def _constants(case: Case, given: Mapping[str, Any]) -> Found:
    """Constants whose names stand in no expression, nor in one that an override has replaced."""
    tables = [given, tomllib.loads(case.origin.text) if case.origin else {}]
    rest = [{key: table[key] for key in table if key not in ("case", "units")} for table in tables]
    named = {name for text in _texts(rest) for name in re.findall(r"[^\W\d]\w*", text)}
    for name in given.get("constants", {}):
        if name not in named:
            yield ("constants", name), "no expression names it"


def _texts(value: Any) -> Iterator[str]:
    """All texts in a table, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _parallel(given: Mapping[str, Any], machine: Backend, ranks: int) -> Found:
    """What only several processes, GPUs or numba's threads ask; not what is left to "auto"."""
    asked = {key: value for key, value in given.get("parallel", {}).items() if value != "auto"}
    keys = {}
    if machine.name != "numba":
        keys["threads"] = f"the backend is {machine.name}, only numba has threads"
    if ranks == 1:
        alone = "there is one process"
        keys |= {"ranks": alone, "halo": alone, "transport": alone}
        if math.prod(asked.get("ranks", ())) != 1:  # which a run refuses
            del keys["ranks"]
    elif not machine.on_device:
        keys["transport"] = "it moves ghosts between GPUs only"
    yield from _among({"parallel": asked}, "parallel", keys)
