"""Incompressible flow, on staggered or on collocated grids."""

from heatsolve.backends import Backend
from heatsolve.case.case import Case
from heatsolve.models.base import Model
from heatsolve.models.flow.collocated import Collocated
from heatsolve.models.flow.staggered import Staggered
from heatsolve.parallel.ranks import Ranks
from heatsolve.stencil.grid import Grid


def flow(
    case: Case, backend: Backend, grid: Grid | None = None, ranks: Ranks | None = None
) -> Model:
    """A case of flow, of the scheme that it names."""
    kind = Collocated if case.model.scheme == "collocated" else Staggered
    return kind(case, backend, grid, ranks)
