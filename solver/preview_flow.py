"""What a run of flow would do, in words; what a run refuses is refused here, too."""

from collections.abc import Iterator

import numpy as np

from heatsolve.backends import Backend
from heatsolve.case import Case
from heatsolve.collocated import Collocated
from heatsolve.grid import Grid
from heatsolve.preview_rows import field_bytes, points_of, walled_rows, words
from heatsolve.walled import Walled

OWN_FIELDS = 7
"""Arrays of grid shape of the collocated scheme: velocity and pressure twice, and its source."""


def flow_rows(case: Case, machine: Backend, reason: str, ranks: int) -> Iterator[str]:
    """Equation, grid, walls, scheme, machine, memory and files, as `preview` promises them."""
    sweeps = case.solver.iterations
    scheme = f"collocated, backward convection, explicit Euler, {sweeps} sweeps for p"
    texts = _equation(case), scheme
    yield from walled_rows(case, machine, reason, ranks, Collocated, texts, _memory)


def _equation(case: Case) -> str:
    forces = ", ".join(words(getattr(case.source, name)) for name in case.velocity_names)
    equation = "du/dt + u . grad u = -grad p / rho + nu div grad u + f, div u = 0"
    rho, nu = float(case.model.density()), case.model.viscosity
    return f"{equation}, rho = {rho:g}, nu = {nu:g}, f = ({forces})"


def _memory(problem: Walled, block: Grid) -> tuple[int, int]:
    """Bytes of the arrays of a run, those of its backend and those of the host beside it."""
    case = problem.case
    item = np.dtype(case.solver.field_precision).itemsize
    sources = [getattr(case.source, name) for name in problem.names]
    stored = sum(points_of([source], block) for source in sources) * item
    one = field_bytes(case, block)
    return OWN_FIELDS * one + stored, 2 * len(problem.names) * one
