"""What a run of heat conduction would do, in words.

The refusals of a run come here too, but not its memory: coefficients are evaluated on a grid
whose axes are thinned out wherever nothing varies along them.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from heatsolve import march, pace
from heatsolve.backends import Backend
from heatsolve.backends.numpy import NumpyBackend
from heatsolve.case import Case
from heatsolve.conduction import Conduction
from heatsolve.converge import method_name
from heatsolve.errors import InputError
from heatsolve.evaluate import Wall
from heatsolve.grid import Axis, Grid
from heatsolve.linear.modes import ALONE, modes_of
from heatsolve.points import NOTHING, ONES
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

OWN_FIELDS = {"cg": 3, "multigrid": 4, "mgcg": 8, "fft": 4}
"""Arrays of grid shape that a method needs besides the field itself; every other method 1.

Coarse levels of multigrid count together, as in 2D: a third of what the finest one needs.
"""
OWN_FIELDS_MIXED = 3
"""The same of multigrid in mixed precision, whose own arrays are of single precision."""
METHODS = {
    "jacobi": "Jacobi's iteration",
    "sor": "red-black successive over-relaxation",
    "chebyshev": "the Chebyshev semi-iteration",
    "cg": "conjugate gradients, preconditioned with the diagonal",
    "multigrid": "geometric multigrid",
    "mgcg": "conjugate gradients, preconditioned with a multigrid cycle",
    "fft": "a direct solver by fast sine, cosine and Fourier transforms",
}
UPDATES = {
    "laplace": "T <- 0.25 (its four neighbours + h^2 q)",
    "five-point-mean": "T <- 0.2 (T + its four neighbours)",
    "four-point-mean": "T <- 0.25 (its four neighbours)",
}
SCHEMES = {
    "explicit": "explicit Euler",
    "crank-nicolson": "Crank-Nicolson, begun with four half-steps of backward Euler",
    "backward-euler": "backward Euler",
}


def heat_rows(case: Case, machine: Backend, reason: str, ranks: int) -> Iterator[str]:
    """Equation, grid, walls, method, machine, memory and files, as `preview` promises them."""
    grid = grid_of(case)
    # One process stands for all, whatever process grid the case wants.
    alone = case.model_copy(update={"parallel": case.parallel.model_copy(update={"ranks": "auto"})})
    # The same precision as the run's, so that the limit of stability has the same bits.
    with np.errstate(all="ignore"):
        problem = Conduction(alone, NumpyBackend(case.solver.field_precision), thinned(case, grid))
    yield row("equation", _equation(case))
    yield from _places(problem, grid)
    if case.time is not None:
        yield row("scheme", SCHEMES[case.time.scheme])
    if case.time is None or case.time.scheme != "explicit":
        if method_name(case) == "fft":
            demand_direct(problem, machine, ranks)
        yield row("method", _method(case))
        yield row("criterion", _criterion(case))
    count = 1
    if case.time is not None:
        count = yield from steps(problem)
    yield row("backend", f"{machine.name} ({reason}), {case.solver.precision}")
    yield from memories(
        case, machine, grid, ranks, lambda block: _memory(problem, machine, block, count)
    )
    yield row("files", files(case, grid, count))
    if grid.all_unknowns <= EVALUATED_UP_TO:
        rehearse(alone, grid)
    else:
        yield row("not checked", "initial values and sources, too many to evaluate here")


def demand_direct(problem: Conduction, machine: Backend, ranks: int) -> None:
    """Refuse what the direct solver cannot solve, or cannot solve with this backend."""
    if ranks > 1:
        raise InputError(ALONE)
    machine.library()
    b = problem.backend.zeros((1,) * problem.grid.dimension)
    modes_of(problem.system(b, NOTHING if problem.case.model.steady else 1.0))


def thinned(case: Case, grid: Grid) -> Grid:
    """The grid with four intervals along every axis along which no coefficient varies.

    The points beside the walls and one between them then stand for all; a run's coefficients take
    the same values on it, bit by bit, because four times the spacing is exact.
    """
    robins = [wall.temperature.robin for _, wall in case.boundary if wall is not None]
    transfers = [robin.h for robin in robins if robin is not None]
    model = case.model
    coefficients = [model.conductivity, model.density, model.specific_heat, *transfers]
    names = frozenset().union(*(coefficient.names for coefficient in coefficients))

    def thin(axis: Axis) -> Axis:
        if axis.name in names or axis.intervals <= 4:
            return axis
        points = 4 + axis.points - axis.intervals
        return replace(axis, points=points, lower=0.0, upper=4.0 * axis.spacing)

    return Grid(tuple(thin(axis) for axis in grid.axes))


@np.errstate(all="ignore")
def rehearse(case: Case, grid: Grid) -> None:
    """Evaluate what a run evaluates before its first step, so that its refusals come now."""
    problem = Conduction(case, NumpyBackend(case.solver.field_precision), grid)
    assert np.shape(problem.temperature) == problem.grid.shape
    source = np.broadcast_to(problem.source(0.0), problem.grid.shape)
    system = problem.system(problem.backend.to_device(source))
    if case.model.steady and system.singular:
        march.make_compatible(system)


def _places(problem: Conduction, grid: Grid) -> Iterator[str]:
    """The grid and what holds at each of its ends."""
    yield row("grid", grid_words(problem.case, grid))
    for axis in reversed(grid.axes):
        if axis.periodic:
            yield row(axis.name, "periodic")
    for wall in sorted(problem.walls, key=lambda wall: -wall.number):
        yield row(wall.name, _wall(wall))


def _equation(case: Case) -> str:
    model, points = case.model, len(case.source.points)
    if case.solver.update is not None:
        equation = UPDATES[case.solver.update]
    elif model.steady:
        equation = "div(k grad T) + q = 0"
    else:
        equation = "rho c dT/dt = div(k grad T) + q"
    given = {"k": model.conductivity, "q": case.source.temperature}
    if not model.steady:
        given |= {"rho": model.density, "c": model.specific_heat, "T(0)": case.initial.temperature}
    parts = [f"{name} = {words(expression)}" for name, expression in given.items()]
    if points:
        parts.append(f"{points} point source{'s' * (points > 1)}")
    return f"{equation}, {', '.join(parts)}"


def _wall(wall: Wall) -> str:
    condition = wall.condition
    if condition.value is not None:
        return f"temperature {words(condition.value)}"
    if condition.robin is not None:
        h, ambient = words(condition.robin.h), words(condition.robin.ambient)
        return f"exchange with surroundings at {ambient}, -k dT/dn = h (T - {ambient}), h = {h}"
    gradient = words(condition.gradient)
    return "insulated" if gradient == "0" else f"outward derivative dT/dn = {gradient}"


def _method(case: Case) -> str:
    name = method_name(case)
    update = f', the literal update "{case.solver.update}"' if case.solver.update else ""
    chosen = "auto chooses " if case.solver.method == "auto" else ""
    cycles = f", {case.solver.cycle} cycles with {case.solver.smoother} smoothing"
    kind = cycles if name in ("multigrid", "mgcg") else ""
    if case.solver.precision == "mixed":
        kind += " in single precision, corrections in double"
    return f"{chosen}{name}: {METHODS[name]}{kind}{update}"


def _criterion(case: Case) -> str:
    solver = case.solver
    each = "" if case.model.steady else " in each step"
    if solver.iterations is not None:
        return f"exactly {solver.iterations} iterations{each}"
    share = " times that of the right side" if solver.is_relative else ""
    every = f", looked at every {solver.check_every}" if solver.check_every > 1 else ""
    return (
        f"{solver.norm} norm of the {solver.monitor} below {solver.tolerance:g}{share}{every}, "
        f"at most {solver.max_iterations} iterations{each}"
    )


def _memory(problem: Conduction, machine: Backend, grid: Grid, count: int) -> tuple[int, int]:
    """Bytes of the arrays of a run, those of its backend and those of the host beside it."""
    case, item = problem.case, np.dtype(problem.case.solver.field_precision).itemsize
    arrays = [a for a in (*problem.faces, problem.capacity) if a is not ONES]
    coefficients = sum(
        math.prod(full for extent, full in zip(a.shape, grid.shape, strict=True) if extent > 1)
        for a in arrays
    )
    gradients = [wall.condition.gradient for wall in problem.walls]
    fluxes = any(g is not None and (g.names or g() != 0.0) for g in gradients)
    everywhere = bool(case.source.points) or fluxes
    source = case.source.temperature
    b = math.prod(grid.shape) if everywhere else points_of([source], grid)
    own = OWN_FIELDS.get(method_name(case), 1)
    if case.solver.precision == "mixed":
        own = OWN_FIELDS_MIXED
    if case.time is None:
        fields = 1 + own
        given = machine.on_device and grid.dimension == 3 and method_name(case) == "multigrid"
        if given and case.solver.precision != "mixed" and b < math.prod(grid.shape):
            fields += 1  # passes in space read the source as an array of all points
    elif case.time.scheme == "explicit":
        fields = 2
    else:
        # The field, its old values, the right side; and a method for every length of step.
        step, _ = pace.step_length(problem)
        ends = {0, count - 1}
        parts = [p for n in ends for p in pace.substeps(case.time, n, step, count)]
        fields = 3 + own * len({part.theta * part.length for part in parts})
    if problem.source_varies:
        b *= 2
    device = fields * field_bytes(case, grid) + (coefficients + b) * item
    # On the host in double precision: the coefficients, and the field with its exact solution.
    host = coefficients + points_of([case.model.conductivity], grid)
    copies = 2 * field_bytes(case, grid)
    if case.reference.exact.temperature is not None:
        host += 3 * grid.all_unknowns
    return device, 8 * host + copies
