"""What a run of transport would do, in words; what a run refuses is refused here, too."""

import math
from collections.abc import Iterator

import numpy as np

from heatsolve.backends import Backend
from heatsolve.backends.numpy import NumpyBackend
from heatsolve.case import Case
from heatsolve.convection import Convection
from heatsolve.grid import Grid
from heatsolve.preview_rows import (
    EVALUATED_UP_TO,
    field_bytes,
    files,
    grid_words,
    memories,
    points_of,
    row,
    steps,
    words,
)
from heatsolve.problem import grid_of
from heatsolve.transport import RUNGE_KUTTA, SLOPES

SCHEMES = {
    "explicit": "explicit Euler",
    "rk2": "Runge-Kutta of second order, strong-stability-preserving",
    "rk3": "Runge-Kutta of third order, strong-stability-preserving",
}
CONVECTIONS = {
    "backward": "backward differences",
    "upwind": "first-order upwind differences",
    "central": "central differences",
    "upwind3": "third-order upwind-biased differences",
    "tvd": "van Leer's limited slopes",
}


def transport_rows(case: Case, machine: Backend, reason: str, ranks: int) -> Iterator[str]:
    """Equation, grid, walls, scheme, machine, memory and files, as `preview` promises them."""
    grid = grid_of(case)
    assert case.time is not None
    # One process stands for all, whatever process grid the case wants.
    alone = case.model_copy(update={"parallel": case.parallel.model_copy(update={"ranks": "auto"})})
    with np.errstate(all="ignore"):
        problem = Convection(alone, NumpyBackend(case.solver.field_precision), grid)
        if grid.all_unknowns <= EVALUATED_UP_TO:
            assert problem.fields and problem.sources(0.0)
    yield row("equation", _equation(case))
    yield from _places(problem, grid)
    yield row("scheme", f"{CONVECTIONS[case.model.convection]}, {SCHEMES[case.time.scheme]}")
    count = yield from steps(problem)
    yield row("backend", f"{machine.name} ({reason}), {case.solver.precision}")
    yield from memories(case, machine, grid, ranks, lambda block: _memory(case, problem, block))
    yield row("files", files(case, grid, count))
    if grid.all_unknowns > EVALUATED_UP_TO:
        yield row("not checked", "initial values and sources, too many to evaluate here")


def _equation(case: Case) -> str:
    model, names = case.model, case.field_names
    if model.velocity == "self":
        u, carried = "u", "u = (" + ", ".join(names) + ")"
    else:
        given = model.velocity or ()
        u, carried = "v", "v = (" + (", ".join(map(words, given)) or "0") + ")"
    sources = [words(getattr(case.source, name)) for name in names]
    equation = f"du/dt + {u} . grad u = nu div grad u + f"
    return f"{equation}, {carried}, nu = {model.diffusivity:g}, f = {', '.join(sources)}"


def _places(problem: Convection, grid: Grid) -> Iterator[str]:
    """The grid and what holds at each of its ends."""
    yield row("grid", grid_words(problem.case, grid))
    for axis in reversed(grid.axes):
        if axis.periodic:
            yield row(axis.name, "periodic")
    first = problem.walls[problem.names[0]]
    for number in sorted(range(len(first)), key=lambda n: -first[n].number):
        said = []
        for name in problem.names:
            condition = problem.walls[name][number].condition
            if condition.value is not None:
                said.append(f"{name} {words(condition.value)}")
            else:
                said.append(f"outward derivative of {name} {words(condition.gradient)}")
        yield row(first[number].name, ", ".join(said))


def _memory(case: Case, problem: Convection, block: Grid) -> tuple[int, int]:
    """Bytes of the arrays of a run, those of its backend and those of the host beside it."""
    assert case.time is not None
    names, stages = len(problem.names), len(RUNGE_KUTTA[case.time.scheme])
    copies = {1: 2, 2: 3, 3: 4}[stages]  # and the field of a step that is looked at
    slopes = SLOPES.get(case.model.convection, 0) * block.dimension
    item = np.dtype(case.solver.field_precision).itemsize
    expressions = [getattr(case.source, name) for name in problem.names]
    given = sum(points_of([e], block) for e in expressions)
    stored = (given + sum(math.prod(array.shape) for array in problem.velocities)) * item
    one = field_bytes(case, block)
    return names * (copies + slopes) * one + stored, 2 * names * one
