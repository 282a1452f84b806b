"""What a run of heat conduction would do, in words.

The refusals of a run come here too, but not its memory: expressions are evaluated at a sample of
the points where there are many, and coefficients not along axes along which they do not vary.
"""

from collections.abc import Generator, Iterator

import numpy as np

from heatsolve.backends import Backend
from heatsolve.backends.registry import make
from heatsolve.case.case import Case
from heatsolve.errors import InputError
from heatsolve.linear.fft import ALONE, modes_of
from heatsolve.models.base import grid_of
from heatsolve.models.heat.conduction import Conduction, make_compatible
from heatsolve.models.heat.solver import method_name, stall
from heatsolve.models.heat.volumes import Volumes
from heatsolve.stencil.grid import Grid
from heatsolve.stencil.language import ZERO
from heatsolve.time.step_size import TimeStepController
from heatsolve.tools.preview_rows import alone, grid_words, row, sample_of, steps, words

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
    "laplace-unequal": "T <- (dy^2 (both neighbours along x) + dx^2 (both along y) + dx^2 dy^2 q) "
    "/ (2 (dx^2 + dy^2))",
    "five-point-mean": "T <- 0.2 (T + its four neighbours)",
    "four-point-mean": "T <- 0.25 (its four neighbours)",
}
SCHEMES = {
    "explicit": "explicit Euler",
    "crank-nicolson": "Crank-Nicolson, begun with four half-steps of backward Euler",
    "backward-euler": "backward Euler",
}


def heat_rows(
    case: Case, machine: Backend, ranks: int
) -> Generator[str, None, TimeStepController | None]:
    """Equation, grid, walls, method and steps, as `preview` promises them."""
    grid, one = grid_of(case), alone(case)
    # The same precision as the run's, so that the limit of stability has the same bits.
    with np.errstate(all="ignore"):
        backend = make("numpy", case.solver.field_precision)
        problem = Conduction(one, backend, thinned(case, grid))
        rehearse(one, grid)
    yield row("equation", _equation(case))
    yield from _places(problem, grid)
    if case.time is not None:
        yield row("scheme", SCHEMES[case.time.scheme])
    if case.time is None or case.time.scheme != "explicit":
        if method_name(case) == "fft":
            demand_direct(problem, machine, ranks)
        yield row("method", _method(case))
        yield row("criterion", _criterion(case))
    if case.time is None and (reason := stall(case, grid, problem.singular)):
        yield row("warning", reason)
    return (yield from steps(problem)) if case.time is not None else None


def demand_direct(problem: Conduction, machine: Backend, ranks: int) -> None:
    """Refuse what the direct solver cannot solve, or cannot solve with this backend."""
    if ranks > 1:
        raise InputError(ALONE)
    machine.library()
    b = problem.backend.zeros((1,) * problem.grid.dimension)
    modes_of(problem.system(b, ZERO if problem.case.model.steady else 1.0))


def thinned(case: Case, grid: Grid) -> Grid:
    """The grid with few points along every axis along which no coefficient varies.

    A run's coefficients take the same values there, bit by bit.
    """
    model = case.model
    coefficients = [model.conductivity, model.density, model.specific_heat]
    for _, _, condition in case.conditions():
        coefficients += condition.kind.coefficients()
    return sample_of(grid, frozenset().union(*(each.names for each in coefficients)))


def rehearse(case: Case, grid: Grid) -> None:
    """Evaluate what a run evaluates before its first step, so that its refusals come now."""
    backend, sample, points = make("numpy", case.solver.field_precision), sample_of(grid), True
    if sample is not grid:
        volumes = Volumes(case, grid, thinned(case, grid), backend.dtype)
        for point in case.source.points:  # whether it is an unknown; the sample may lack it
            volumes.places_of(point)
        case = case.model_copy(
            update={"source": case.source.model_copy(update={"point_sources": ()})}
        )
        points = False
    problem = Conduction(case, backend, sample)
    assert np.shape(problem.temperature) == problem.grid.shape
    source = np.broadcast_to(problem.source(0.0), problem.grid.shape)
    system = problem.system(backend.to_device(source))
    if points and case.model.steady and system.singular:
        make_compatible(system)


def _places(problem: Conduction, grid: Grid) -> Iterator[str]:
    """The grid and what holds at each of its ends."""
    yield row("grid", grid_words(problem.case, grid))
    for axis in reversed(grid.axes):
        if axis.periodic:
            yield row(axis.name, "periodic")
    for wall in sorted(problem.walls, key=lambda wall: -wall.number):
        yield row(wall.name, wall.condition.kind.summary())


def _equation(case: Case) -> str:
    model, points = case.model, len(case.source.points)
    if case.solver.update is not None:
        equation = UPDATES[
            case.solver.update + ("" if grid_of(case).equal_spacings else "-unequal")
        ]
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
    share = " times that of the right side, walls included" if solver.is_relative else ""
    every = f", looked at every {solver.check_every}" if solver.check_every > 1 else ""
    return (
        f"{solver.norm} norm of the {solver.monitor} below {solver.tolerance:g}{share}{every}, "
        f"at most {solver.max_iterations} iterations{each}"
    )
