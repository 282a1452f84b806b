"""Keys of a case that may be given but change nothing: a warning each, or an error.

Keys that a user could misread are refused when the case is read, by its `mistakes`.
"""

import itertools
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from heatsolve.backends import Backend
from heatsolve.case.case import Case
from heatsolve.case.load import lines_about
from heatsolve.case.sections import FIELDS, IMPLICIT, Time
from heatsolve.case.toml import KeyPath, walk
from heatsolve.case.types import Found, seconds_of
from heatsolve.errors import CaseError
from heatsolve.models.grid import grid_of, regions_of

STEADY = "a steady case has no time"
TOLD_BY_MARCHES = {"precision", "check_every"}
"""Keys of `[solver]` that every march follows."""


def warn_of_unused(
    case: Case, machine: Backend, ranks: int, warn: Callable[[str], None], strict: bool
) -> None:
    """Warn of every key that changes nothing in a run of this number of processes on this machine.

    Raises CaseError with a line for each if `strict`.
    """
    lines = lines_about(case, unused_keys(case, machine, ranks))
    if strict and lines:
        raise CaseError("\n".join(lines))
    for line in lines:
        warn(line)


def unused_keys(case: Case, machine: Backend, ranks: int) -> Found:
    """Yield each key that is given and changes nothing, and why."""
    table = tomllib.loads(case.text)
    reasons = {
        "solver": _of_solver(case, table.get("solver", {})),
        "parallel": _of_parallel(table.get("parallel", {}), machine, ranks),
        **_of_steadiness(case),
    }
    own = case.field_names
    lacking = f"the model has no such field (it has {', '.join(own)})"
    reasons["units"] |= {name: lacking for name in FIELDS if name not in own}
    if case.model.equations is None and getattr(case.model, "buoyancy", None) is None:
        unmoved = "without model.buoyancy the temperature moves nothing"
        reasons["model"]["reference_temperature"] = unmoved
    in_sections = [
        ((section, key), keys[key])
        for section, keys in reasons.items()
        for key in table.get(section, {})
        if key in keys
    ]
    others = [_references(case), _statistics(case), _boxes(case), _start(case), _times(case)]
    others.append(_constants(case, table))
    for path, why in (*in_sections, *itertools.chain(*others)):
        yield path, f"has no effect: {why}"


def _of_solver(case: Case, solver: Mapping[str, Any]) -> dict[str, str]:
    """Keys that no solver of this case uses."""
    if case.model.kind == "heat" and case.time is not None and case.time.scheme not in IMPLICIT:
        return dict.fromkeys(set(solver) - TOLD_BY_MARCHES, "an explicit march solves no system")
    if case.solver.iterations is None:
        return {}
    overridden = {path for path, _ in case.origin.overrides} if case.origin else set()
    counted = "solver.iterations makes exactly so many iterations"
    # `--set solver.iterations=N` is meant to take the place of a file's tolerance.
    return {
        key: counted
        for key in ("tolerance", "relative", "max_iterations")
        if ("solver", "iterations") not in overridden or ("solver", key) in overridden
    }


def _of_parallel(parallel: Mapping[str, Any], machine: Backend, ranks: int) -> dict[str, str]:
    """Keys, with other values than "auto", that only several processes, GPUs or numba use."""
    reasons = {}
    if machine.name != "numba":
        reasons["threads"] = f"the backend is {machine.name}, only numba has threads"
    if ranks == 1:
        reasons |= dict.fromkeys(("ranks", "halo", "transport"), "there is one process")
        asked = parallel.get("ranks", "auto")
        if asked != "auto" and math.prod(asked) != 1:  # a run refuses it
            del reasons["ranks"]
    elif not machine.on_device:
        reasons["transport"] = "it moves ghosts between GPUs only"
    return {key: why for key, why in reasons.items() if parallel.get(key) != "auto"}


def _of_steadiness(case: Case) -> dict[str, dict[str, str]]:
    """Keys that a steady case, or an implicit march, does not use, by sections."""
    reasons: dict[str, dict[str, str]] = {"units": {}, "model": {}}
    if case.model.steady:
        capacity = "a steady temperature does not depend on it"
        reasons["output"] = {"every": STEADY, "sample": STEADY}
        reasons["units"] = {"time": STEADY}
        reasons["model"] = {"density": capacity, "specific_heat": capacity}
    elif case.time is not None and case.time.scheme in IMPLICIT:
        reasons["time"] = {"allow_unstable": f"{case.time.scheme} is stable at any step"}
    return reasons


def _references(case: Case) -> Found:
    """References for fields that are not written."""
    written = case.output.fields
    if written is None:
        return
    unwritten = "{} is not among output.fields, and is compared with nothing"
    for name in case.field_names:
        if name not in written and getattr(case.reference.exact, name) is not None:
            yield ("reference", "exact", name), unwritten.format(name)
    for n, profile in enumerate(case.reference.profiles):
        if profile.field not in written:
            yield ("reference", "profile", n, "field"), unwritten.format(profile.field)


def _statistics(case: Case) -> Found:
    """Statistics that no file holds, and statistics that begin after the end of the march."""
    written = case.in_files
    written |= {name for integral in case.statistics.integrals for name in integral.fields}
    written |= {name for names in case.statistics.recorded.values() for name in names}
    for place, name, _ in case.statistics.named:
        if name not in written:
            yield ("statistics", *place), f"no file holds {name} (add it to output.fields)"
    samples = case.statistic_fields or case.statistics.recorded
    if samples and case.time:
        ends = f"the march ends before, at {case.time.end:g}"
        if case.statistics.begin >= case.time.end:
            yield ("statistics", "begin"), ends
        elif _outlasts(case.statistics.every, case.time):
            yield ("statistics", "every"), ends


def _boxes(case: Case) -> Found:
    """Boxes of initial values in which no unknown lies."""
    whole = grid_of(case)
    faces = [f"velocity_{axis.name}" for axis in whole.axes]
    for n, box in enumerate(case.initial.boxes):
        staggered = case.scheme == "staggered" and box.field in faces
        places = whole.faces(faces.index(box.field)) if staggered else whole
        if not regions_of(box, places):
            yield ("initial", "box", n), f"no unknown of {box.field} lies in it"


def _times(case: Case) -> Found:
    """Times after the end of a march, and any times of files of a steady case."""
    given: list[tuple[KeyPath, Any]] = [(("output",), case.output.every)]
    for n, file in enumerate(case.output.files):
        here = ("output", "file", n)
        given.append((here, file.every))
        if case.model.steady and file.every is not None:
            yield (*here, "every"), STEADY
    for path, length in (*(((*path, "every"), every) for path, every in given),
                         (("stop", "over"), case.stop.over)):  # fmt: skip
        if case.time is not None and _outlasts(length, case.time):
            yield path, f"the march ends before, at {case.time.end:g}"
    for path, every in given:
        for n, time in enumerate(every if case.time and isinstance(every, tuple) else ()):
            if time > case.march.end:
                yield (*path, "every", n), f"the march ends before, at {case.march.end:g}"


def _outlasts(length: Any, time: Time) -> bool:
    """Whether a number of steps, or a time, is longer than a march."""
    seconds = seconds_of(length)
    if seconds is None and isinstance(length, int) and time.step is not None:
        seconds = (length - 0.5) * time.step
    return seconds is not None and seconds > time.end


def _start(case: Case) -> Found:
    """A file of initial values that no field uses, because every field has a key of its own."""
    follows = {"pressure"} if case.scheme == "staggered" else set()
    if case.initial.file and set(case.field_names) - follows <= case.initial.model_fields_set:
        yield ("initial", "file"), "every field has a key of its own"


def _constants(case: Case, table: Mapping[str, Any]) -> Found:
    """Constants that no expression names, also no expression that an override has replaced."""
    tables = [table, tomllib.loads(case.origin.text) if case.origin else {}]
    rest = [{key: each[key] for key in each if key not in ("case", "units")} for each in tables]
    texts = [value for _, value in walk(rest) if isinstance(value, str)]
    named = {name for text in texts for name in re.findall(r"[^\W\d]\w*", text)}
    for name in table.get("constants", {}):
        if name not in named:
            yield ("constants", name), "no expression names it"
