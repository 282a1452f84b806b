"""heatsolve: stencils, heat and flow; one case file, any machine, the same bits."""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What Python programs use, from `api`: imported when it is asked for."""
    if name in ("Result", "load", "main", "model", "open", "run"):
        from heatsolve import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
