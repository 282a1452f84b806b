"""What a run of transport would do, in words; what a run refuses is refused here, too.

So it is with a user's own model, which marches in the same way.
"""

import math
from collections.abc import Iterator

import numpy as np

from heatsolve.backends import Backend
from heatsolve.case import Case
from heatsolve.convection import Convection
from heatsolve.evolution import Evolution
from heatsolve.grid import Grid
from heatsolve.preview_rows import field_bytes, points_of, walled_rows, words
from heatsolve.transport import RUNGE_KUTTA, SLOPES
from heatsolve.walled import Walled

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
    assert case.time is not None
    scheme = f"{CONVECTIONS[case.model.convection]}, {SCHEMES[case.time.scheme]}"
    texts = _equation(case), scheme
    yield from walled_rows(case, machine, reason, ranks, Convection, texts, _memory)


def evolution_rows(case: Case, machine: Backend, reason: str, ranks: int) -> Iterator[str]:
    """The same of a user's own model."""
    equations = case.model.equations
    assert case.time is not None and equations is not None
    numbers = [f"{name} = {getattr(case.model, name):g}" for name in equations.parameters]
    equation = "; ".join([equations.text or f"rates of {', '.join(equations.fields)}", *numbers])
    texts = equation, SCHEMES[case.time.scheme]
    yield from walled_rows(case, machine, reason, ranks, Evolution, texts, _memory)


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


def _memory(problem: Walled, block: Grid) -> tuple[int, int]:
    """Bytes of the arrays of a run, those of its backend and those of the host beside it."""
    case = problem.case
    assert isinstance(problem, Convection | Evolution)
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
