"""heatsolve: stencils, heat and flow; one case file, any machine, the same bits."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a program imports them when it asks for them
    from heatsolve.api import Check as Check
    from heatsolve.api import Result as Result
    from heatsolve.api import Simulation as Simulation
    from heatsolve.api import check as check
    from heatsolve.api import load as load
    from heatsolve.api import main as main
    from heatsolve.api import march as march
    from heatsolve.api import model as model
    from heatsolve.api import open as open
    from heatsolve.api import run as run

__version__ = "0.1.0"
MODELS = {
    "heat": "heatsolve.models.heat",
    "transport": "heatsolve.models.transport",
    "flow": "heatsolve.models.flow",
}
"""The built-in models: the folder of each `model.kind`, the default kind first."""

PUBLIC = ("Check", "Result", "Simulation", "check", "load", "march", "model", "open", "run")
"""The names that Python programs use; each is imported from `api` at its first use."""


def __dir__() -> list[str]:
    return sorted(["__version__", *PUBLIC])


def __getattr__(name: str) -> Any:
    if name in (*PUBLIC, "main"):  # the command, for programs that register models of their own
        from heatsolve import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
