"""The kinds of models: a folder and a line each; all others are users' equations."""

from collections.abc import Callable

from heatsolve.backends import Backend
from heatsolve.case.case import Case
from heatsolve.models.base import Model
from heatsolve.models.evolution import Evolution
from heatsolve.models.flow import flow
from heatsolve.models.heat.conduction import Conduction
from heatsolve.models.transport.convection import Convection
from heatsolve.parallel.ranks import Ranks
from heatsolve.stencil.grid import Grid

MODELS: dict[str, Callable[[Case, Backend, Grid | None, Ranks | None], Model]] = {
    "heat": Conduction,
    "transport": Convection,
    "flow": flow,
}
"""By `model.kind`."""


def make_model(
    case: Case, machine: Backend, ranks: Ranks | None = None, grid: Grid | None = None
) -> Model:
    """A case on a machine; on another grid than its own, if one is given."""
    return MODELS.get(case.model.kind, Evolution)(case, machine, grid, ranks)
