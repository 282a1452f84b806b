"""What only shows between the sections of a case: keys that do not go together."""

import math
from collections.abc import Collection, Iterator

from heatsolve.expressions import Expression, show
from heatsolve.grid import WALLS, make_grid
from heatsolve.schema import Document, Grid, PointSource, Section
from heatsolve.toml import KeyPath
from heatsolve.values import Found

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
        for key, sentence in _misplaced(point, grid):
            yield ("source", "point", n, *key), sentence
    for path, expression in _expressions(case):
        for name in sorted(expression.names.difference(grid.axes)):
            if name != "t":
                yield path, f"the case has no {name} axis"
            elif steady:
                yield path, "t has no meaning in a steady case"
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
    if case.parallel.halo > 1 and not (case.time and case.time.scheme == "explicit"):
        method = "jacobi" if case.solver.update else case.solver.method
        if method not in SWEPT:
            why = ", which is for one process" if method in ONE_PROCESS else ""
            yield ("parallel", "halo"), f'must be 1 with method "{method}"{why}'
    if case.solver.update and not (steady and grid.dimension == 2):
        yield ("solver", "update"), "only for a steady case in 2D"
    elif case.solver.update:
        yield from _update_conflicts(case)


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
    """Yield what a literal update cannot know: it has one spacing and no coefficient."""
    grid = case.grid
    box = make_grid(grid.counts, grid.lower, grid.upper, grid.kind == "nodes", grid.periodic)
    spacings = [axis.spacing for axis in reversed(box.axes)]
    if not math.isclose(*spacings, rel_tol=1e-9):
        given = " and ".join(show(spacing) for spacing in spacings)
        yield ("grid",), f"solver.update needs equal spacings, not {given}"
    if grid.kind == "cells" and len(grid.periodic) < grid.dimension:
        yield ("grid", "cells"), "must be nodes with solver.update, which has walls on points"
    conductivity = case.model.conductivity
    if conductivity.names or conductivity() != 1.0:
        yield ("model", "conductivity"), "must be 1 with solver.update"
    for side in SIDES:
        wall = getattr(case.boundary, side)
        if wall is not None and wall.temperature.value is None:
            yield ("boundary", side, "temperature"), "must be a value with solver.update"
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
        elif isinstance(value, Section):
            yield from _expressions(value, (*path, key))
