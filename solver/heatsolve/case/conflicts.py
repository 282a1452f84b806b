"""What only shows between the sections of a case: keys that do not go together."""

import math
from collections.abc import Collection, Iterator, Sequence

from heatsolve.case.schema import (
    FIELDS,
    IMPLICIT,
    Condition,
    Document,
    Grid,
    PointSource,
    Section,
)
from heatsolve.case.toml import KeyPath
from heatsolve.case.types import Found
from heatsolve.stencil.expressions import Expression, show, suggestion
from heatsolve.stencil.grid import WALLS, make_grid

SWEPT = ("jacobi", "sor", "chebyshev")
"""Methods of which several sweeps can be made without a word from other processes."""
ONE_PROCESS = ("fft",)
"""Methods that do not run on several processes."""
SIDES = {side: axis for axis, walls in WALLS.items() for side in walls}


def conflicts(case: Document) -> Found:
    """Yield what only shows between sections: key path, sentence."""
    grid, steady = case.grid, case.model.steady
    given = {side for side in SIDES if getattr(case.boundary, side) is not None}
    yield from wall_conflicts(grid, given)
    for n, point in enumerate(case.source.points):
        for path, sentence in _misplaced(point, grid):
            yield ("source", "point", n, *path), sentence
    for path, expression in _expressions(case):
        for name in sorted(expression.names.difference(grid.axes)):
            if name != "t":
                yield path, f"the case has no {name} axis"
            elif steady:
                yield path, "t has no meaning in a steady case"
        if case.solver.precision == "float32" and not expression.names:
            value = abs(float(expression()))
            if 0.0 < value < 2.0**-126 or 2.0**128 <= value < math.inf:
                sentence = "float32 does not hold it (1.2e-38 to 3.4e38); take other units"
                yield path, f'{sentence}, or solver.precision = "float64"'
    yield from _field_conflicts(case, given)
    for side in given:
        if getattr(case.boundary, side).kind is not None and case.model.scheme != "staggered":
            yield ("boundary", side, "kind"), "only for a flow on the staggered grid"
    yield from _probe_conflicts(case)
    if case.model.scheme != "staggered":
        for key in sorted(case.source.model_fields_set):
            if key.startswith("mean_velocity"):
                yield ("source", key), "only for a flow on the staggered grid"
        if case.time and "diffusion" in case.time.model_fields_set:
            yield ("time", "diffusion"), "only for a flow on the staggered grid"
    if case.obstacles and case.model.scheme != "staggered":
        yield ("obstacle",), "only for a flow on the staggered grid"
    if case.model.kind == "heat":
        if case.time and case.time.scheme in ("rk2", "rk3", "adams-bashforth"):
            yield ("time", "scheme"), 'only for model.kind = "transport" or "flow"'
        if case.time and case.time.tolerance is not None:
            yield ("time", "tolerance"), 'not for model.kind = "heat": set model.steady = true'
    else:
        yield from _flow_conflicts(case)
        own = case.model.equations is not None
        yield from (_evolution if own else MODELS[case.model.scheme or "transport"])(case)
    if steady and case.time:
        yield ("time",), "only for a transient case (model.steady = false)"
    if not steady and not case.time:
        yield ("time",), "missing, a transient case needs it"
    if case.solver.precision == "mixed":
        if case.time and case.time.scheme == "explicit":
            yield ("solver", "precision"), '"mixed" needs a system to solve, not explicit steps'
        elif case.solver.method == "auto" and case.model.conductivity.names:
            sentence = '"mixed" is only for method = "multigrid", and auto means "mgcg" here'
            yield ("solver", "precision"), sentence
    if case.parallel.layers > 1 and not (case.time and case.time.scheme == "explicit"):
        method = "jacobi" if case.solver.update else case.solver.method
        if method not in SWEPT:
            why = ", which is for one process" if method in ONE_PROCESS else ""
            yield ("parallel", "halo"), f'must be 1 with method "{method}"{why}'
    if case.solver.update and not (steady and grid.dimension == 2):
        yield ("solver", "update"), "only for a steady case in 2D"
    elif case.solver.update:
        yield from _update_conflicts(case)


def _field_conflicts(case: Document, walls: Collection[str]) -> Found:
    """Yield fields that the model does not have, and conditions of its own that are missing."""
    own, needed = case.field_names, needed_walls(case.grid)
    sections: list[tuple[KeyPath, Section]] = [
        (("initial",), case.initial),
        (("source",), case.source),
        (("reference", "exact"), case.reference.exact),
        *[(("boundary", side), getattr(case.boundary, side)) for side in walls],
    ]
    for path, section in sections:
        for name in FIELDS:
            if name in section.model_fields_set and name not in own:
                yield (*path, name), f"the model has no such field (it has {', '.join(own)})"
    boxes, points, written = case.initial.boxes, case.source.points, case.output.fields or ()
    profiles = case.reference.profiles
    named: list[tuple[KeyPath, str]] = [
        *[(("initial", "box", n, "field"), box.field) for n, box in enumerate(boxes)],
        *[(("source", "point", n, "field"), point.field) for n, point in enumerate(points)],
        *[(("output", "fields", n), name) for n, name in enumerate(written)],
        *[(("reference", "profile", n, "field"), p.field) for n, p in enumerate(profiles)],
        *_drawn(case),
    ]
    for path, name in named:
        if name not in own:
            near = suggestion(name, own) or f" (it has {', '.join(own)})"
            yield path, f"the model has no {name}{near}"
    for path, name in _drawn(case):
        if name in own and written and name not in written:
            yield path, f"{name} is not among output.fields, and cannot be drawn"
    if case.output.film and (case.model.steady or case.output.every is None):
        need = "output.every, the steps from one frame to the next"
        needs = "a transient case (model.steady = false)" if case.model.steady else need
        yield ("output", "film"), f"needs {needs}"
    for side in walls:
        for name in own if case.model.scheme != "staggered" else case.diffusivities:
            if side in needed and getattr(getattr(case.boundary, side), name) is None:
                yield ("boundary", side, name), "missing, the wall needs a condition for it"
    for n, box in enumerate(boxes):
        if any(len(corner) != case.grid.dimension for corner in box.corners):
            yield ("initial", "box", n), f"needs {case.grid.dimension} numbers for each corner"
        if box.again and case.model.kind in ("heat", "flow"):
            yield ("initial", "box", n, "again"), 'only for model.kind = "transport"'
        for m, time in enumerate(box.again):
            if case.time and time >= case.time.end:
                yield ("initial", "box", n, "again", m), "must be before time.end"


def _drawn(case: Document) -> list[tuple[KeyPath, str]]:
    """The fields of pictures and films, and where they stand."""
    output = case.output
    films = output.film if isinstance(output.film, tuple) else ()
    return [
        (("output", key, n), name)
        for key, names in (("plot", output.plot), ("film", films))
        for n, name in enumerate(names)
    ]


def _probe_conflicts(case: Document) -> Found:
    """Yield points to be read that are none of the grid."""
    grid, output = case.grid, case.output
    points: list[tuple[KeyPath, Sequence[float]]] = [
        (("output", "probes", n), point) for n, point in enumerate(output.probes)
    ]
    for n, line in enumerate(output.lines):
        points += [(("output", "line", n, key), end) for key, end in
                   (("from", line.start), ("to", line.end))]  # fmt: skip
    for path, _ in points if case.model.steady else ():
        yield path, "only for a transient case (model.steady = false)"
    for n, profile in enumerate(case.reference.profiles):
        here = ("reference", "profile", n)
        points.append(((*here, "through"), profile.through))
        if profile.along not in grid.axes:
            yield (*here, "along"), f"the case has no {profile.along} axis"
            continue
        number = grid.axes.index(profile.along)
        low, high = grid.lower[number], grid.upper[number]
        for m, at in enumerate(profile.positions):
            if not low <= at <= high:
                outside = f"{show(at)} is outside {show(low)} to {show(high)}"
                yield (*here, "positions", m), f"{outside} along {profile.along}"
    for path, point in points:
        if case.model.steady and path[0] == "output":
            continue
        if len(point) != grid.dimension:
            yield path, f"must have length {grid.dimension}, as the grid has axes"
        else:
            for axis, at, low, high in zip(grid.axes, point, grid.lower, grid.upper, strict=True):
                if not low <= at <= high:
                    yield path, f"{show(at)} is outside {show(low)} to {show(high)} along {axis}"


def _flow_conflicts(case: Document) -> Found:
    """Yield what neither transport nor flow have."""
    kind = case.model.kind
    if case.solver.precision == "mixed":
        sentence = f'must be "float64" or "float32" with model.kind = "{kind}"'
        yield ("solver", "precision"), sentence
    if case.source.points:
        yield ("source", "point"), 'only for model.kind = "heat"'
    for side, conditions in _conditions(case).items():
        for name, condition in conditions.items():
            if condition.robin is not None:
                yield ("boundary", side, name, "robin"), 'only for model.kind = "heat"'


def _conditions(case: Document) -> dict[str, dict[str, Condition]]:
    """The conditions of each wall that needs some, by the names of the fields."""
    found = {}
    for side in needed_walls(case.grid):
        wall = getattr(case.boundary, side)
        given = {n: getattr(wall, n) for n in case.field_names} if wall is not None else {}
        found[side] = {name: c for name, c in given.items() if c is not None}
    return found


def _transport(case: Document) -> Found:
    """Yield what the transport of a quantity does not have, or not yet."""
    model, grid = case.model, case.grid
    if isinstance(model.velocity, tuple) and len(model.velocity) != grid.dimension:
        yield ("model", "velocity"), f"must have length {grid.dimension}, as the grid has axes"
    yield from _stages(case)


def _evolution(case: Document) -> Found:
    """Yield what a user's own model does not have."""
    equations = case.model.equations
    assert equations is not None
    if case.time and case.time.cfl is not None and not equations.diffusivities:
        yield (
            ("time", "cfl"),
            f'needs a model with diffusivities, which "{case.model.kind}" has not',
        )
    yield from _stages(case)


def _stages(case: Document) -> Found:
    """Yield what the stages of a Runge-Kutta scheme do not have, or not yet."""
    grid, here = case.grid, f'with model.kind = "{case.model.kind}"'
    if case.time and case.time.scheme in (*IMPLICIT, "adams-bashforth"):
        yield ("time", "scheme"), f'must be "explicit", "rk2" or "rk3" {here}'
    for key in sorted(case.solver.model_fields_set - {"precision", "check_every"}):
        yield ("solver", key), f"has no effect {here}: it solves no system"
    if case.parallel.layers > 1:
        yield ("parallel", "halo"), f"must be 1 {here}"
    for side, conditions in _conditions(case).items():
        kinds = {condition.value is not None for condition in conditions.values()}
        if grid.kind == "nodes" and len(kinds) > 1:
            sentence = "on nodes, all fields of a wall must have values, or none"
            yield ("boundary", side), sentence


def _collocated(case: Document) -> Found:
    """Yield what the collocated scheme does not have: it is the listing of a lesson."""
    here = 'with model.scheme = "collocated"'
    for side, conditions in _conditions(case).items():
        gradient = conditions["pressure"].gradient if "pressure" in conditions else None
        if gradient is not None and (gradient.names or gradient() != 0.0):
            yield ("boundary", side, "pressure", "gradient"), f"must be 0 {here}"
    if case.grid.dimension != 2:
        yield ("grid",), f"must have two axes {here}"
    if case.grid.kind != "nodes":
        yield ("grid", "cells"), f"must be nodes {here}"
    if case.time and case.time.scheme != "explicit":
        yield ("time", "scheme"), f'must be "explicit" {here}'
    if case.solver.method not in ("auto", "jacobi"):
        yield ("solver", "method"), f'must be "jacobi" {here}'
    if case.solver.iterations is None:
        yield ("solver", "iterations"), f"missing, so many sweeps for the pressure a step {here}"
    known = {"precision", "check_every", "method", "iterations"}
    for key in sorted(case.solver.model_fields_set - known):
        yield ("solver", key), f"has no effect {here}"
    for key in sorted({"pressure"} & case.source.model_fields_set):
        yield ("source", key), "a pressure has no source"


def _staggered(case: Document) -> Found:
    """Yield what the staggered scheme does not have."""
    model, grid, here = case.model, case.grid, 'with model.scheme = "staggered"'
    if grid.dimension == 1:
        yield ("grid",), f"must have two or three axes {here}"
    if grid.kind != "cells":
        yield ("grid", "nodes"), f"must be cells {here}"
    if case.time and case.time.scheme in IMPLICIT:
        schemes = '"explicit", "rk2", "rk3" or "adams-bashforth"'
        yield ("time", "scheme"), f"must be {schemes} {here}"
    if case.time and case.time.diffusion != "explicit":
        if case.time.scheme != "adams-bashforth":
            yield ("time", "scheme"), 'must be "adams-bashforth" with time.diffusion'
        if case.obstacles:
            yield ("time", "diffusion"), 'must be "explicit" with obstacles'
    if model.buoyancy is not None and len(model.buoyancy) != grid.dimension:
        yield ("model", "buoyancy"), f"must have length {grid.dimension}, as the grid has axes"
    for key in ("norm", "monitor", "relative", "iterations", "update"):
        if key in case.solver.model_fields_set:
            yield ("solver", key), f"has no effect {here}"
    if case.parallel.layers > 1:
        yield ("parallel", "halo"), f"must be 1 {here}"
    if "pressure" in case.source.model_fields_set:
        yield ("source", "pressure"), "a pressure has no source"
    if "pressure" in case.initial.model_fields_set:
        yield ("initial", "pressure"), "follows from the velocity, and cannot be given"
    for axis in WALLS:
        key = f"mean_velocity_{axis}"
        if getattr(case.source, key) is not None and axis not in grid.periodic:
            yield ("source", key), f"only where {axis} is periodic"
        elif getattr(case.source, key) is not None and case.obstacles:
            yield ("source", key), "not with obstacles"
    yield from _obstacle_conflicts(case)
    for n, box in enumerate(case.initial.boxes):
        if box.field == "pressure":
            yield ("initial", "box", n, "field"), "follows from the velocity, and cannot be given"
    for side in needed_walls(grid):
        wall = getattr(case.boundary, side)
        if wall is None:
            continue
        path, across = ("boundary", side), f"velocity_{SIDES[side]}"
        if wall.kind is None:
            yield (*path, "kind"), "missing: no-slip, free-slip, inflow or outflow"
        if wall.kind == "outflow" and side == WALLS[SIDES[side]][0]:
            yield (*path, "kind"), "fluid leaves at high walls only: right, top or front"
        if "pressure" in wall.model_fields_set:
            yield (*path, "pressure"), f"has no effect {here}"
        for name in case.velocity_names:
            condition = getattr(wall, name)
            if condition is None:
                continue
            if condition.value is None:
                yield (*path, name), "must be a value"
            elif wall.kind in ("free-slip", "outflow"):
                yield (*path, name), f'has no effect with kind = "{wall.kind}"'
            elif wall.kind == "no-slip" and name == across:
                value = condition.value
                if value.names or value() != 0.0:
                    yield (*path, name), 'must be 0 with kind = "no-slip", which nothing passes'


def _obstacle_conflicts(case: Document) -> Found:
    """Yield what obstacles cannot be here."""
    if case.obstacles and case.solver.method in ("fft", "sor", "chebyshev"):
        yield ("solver", "method"), f'must not be "{case.solver.method}" with obstacles'
    for n, obstacle in enumerate(case.obstacles):
        if any(len(corner) != case.grid.dimension for corner in obstacle.corners):
            yield ("obstacle", n), f"needs {case.grid.dimension} numbers, as the grid has axes"
        if obstacle.extent and len(obstacle.extent) == case.grid.dimension:
            ends = zip(
                case.grid.axes, obstacle.extent, case.grid.lower, case.grid.upper, strict=True
            )
            for axis, (first, last), low, high in ends:
                beyond = (first < low, last > high)
                if axis in case.grid.periodic and any(beyond) and not all(beyond):
                    yield ("obstacle", n), f"reaches beyond an end of {axis}, which is periodic"
        for name in ("temperature", "concentration"):
            if getattr(obstacle, name) is not None and name not in case.diffusivities:
                yield ("obstacle", n, name), "the flow carries none"


MODELS = {"transport": _transport, "collocated": _collocated, "staggered": _staggered}


def needed_walls(grid: Grid) -> list[str]:
    """Return the walls that need a condition."""
    bounded = [axis for axis in grid.axes if axis not in grid.periodic]
    return [side for side, axis in SIDES.items() if axis in bounded]


def wall_conflicts(grid: Grid, given: Collection[str]) -> Found:
    """Yield the walls that lack a condition, and those with one that have no use for it."""
    needed = needed_walls(grid)
    for side, axis in SIDES.items():
        path = ("boundary", side)
        if side in needed and side not in given:
            yield path, "missing, every wall that is not periodic needs a condition"
        elif side in given and side not in needed:
            reason = f"{axis} is periodic and has no walls"
            yield path, reason if axis in grid.axes else f"the case has no {axis} axis"


def _update_conflicts(case: Document) -> Found:
    """Yield what a literal update cannot know: it has no coefficient, and all but one of them have
    one spacing."""
    grid = case.grid
    box = make_grid(grid.counts, grid.lower, grid.upper, grid.kind == "nodes", grid.periodic)
    if case.solver.update != "laplace" and not box.equal_spacings:
        given = " and ".join(show(axis.spacing) for axis in reversed(box.axes))
        sentence = f'solver.update = "{case.solver.update}" needs equal spacings, not {given}'
        yield ("grid",), sentence
    if grid.kind == "cells" and len(grid.periodic) < grid.dimension:
        yield ("grid", "cells"), "must be nodes with solver.update, which has walls on points"
    conductivity = case.model.conductivity
    if conductivity.names or conductivity() != 1.0:
        yield ("model", "conductivity"), "must be 1 with solver.update"
    for side in SIDES:
        wall = getattr(case.boundary, side)
        condition = wall.temperature if wall is not None else None
        if condition is None or condition.value is not None:
            continue
        gradient = condition.gradient
        if gradient is None or gradient.names or gradient() != 0.0:
            path = ("boundary", side, "temperature")
            yield path, "must be a value, or a gradient of 0, with solver.update"
    if case.solver.update != "laplace":
        sentence = f'must be absent, solver.update = "{case.solver.update}" has no source'
        source = case.source.temperature
        if source.names or source() != 0.0:
            yield ("source", "temperature"), sentence
        if case.source.points:
            yield ("source", "point"), sentence


def _misplaced(point: PointSource, grid: Grid) -> Found:
    key, place = ("index", point.index) if point.index is not None else ("position", point.position)
    low = (0,) * grid.dimension if key == "index" else grid.lower
    high = tuple(n - 1 for n in grid.counts) if key == "index" else grid.upper
    if place is None or len(place) != grid.dimension:
        yield (key,), f"must have length {grid.dimension}, as the grid has axes"
        return
    for axis, at, first, last in zip(grid.axes, place, low, high, strict=True):
        if not first <= at <= last:
            yield (key,), f"{show(at)} is outside {show(first)} to {show(last)} along {axis}"


def _expressions(section: Section, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Expression]]:
    """Yield every expression of a section and of those inside it, with its key path."""
    for key, name in type(section).attributes().items():
        value = getattr(section, name)
        if isinstance(value, Expression):
            yield (*path, key), value
        elif isinstance(value, tuple):
            for number, item in enumerate(value):
                if isinstance(item, Expression):
                    yield (*path, key, number), item
                elif isinstance(item, Section):
                    yield from _expressions(item, (*path, key, number))
        elif isinstance(value, Section):
            yield from _expressions(value, (*path, key))
