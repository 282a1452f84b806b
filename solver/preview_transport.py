"""What a run of transport would do, in words; what a run refuses is refused here, too.

So it is with a user's own model, which marches in the same way.
"""

from collections.abc import Generator

from heatsolve.backends import Backend
from heatsolve.case import Case
from heatsolve.convection import Convection
from heatsolve.evolution import Evolution
from heatsolve.pace import Pace
from heatsolve.preview_rows import walled_rows, words

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


def transport_rows(case: Case, machine: Backend, ranks: int) -> Generator[str, None, Pace | None]:
    """Equation, grid, walls, scheme and steps, as `preview` promises them."""
    assert case.time is not None
    scheme = f"{CONVECTIONS[case.model.convection]}, {SCHEMES[case.time.scheme]}"
    texts = _equation(case), scheme
    return (yield from walled_rows(case, Convection, texts))


def evolution_rows(case: Case, machine: Backend, ranks: int) -> Generator[str, None, Pace | None]:
    """The same of a user's own model."""
    equations = case.model.equations
    assert case.time is not None and equations is not None
    numbers = [f"{name} = {getattr(case.model, name):g}" for name in equations.parameters]
    equation = "; ".join([equations.text or f"rates of {', '.join(equations.fields)}", *numbers])
    texts = equation, SCHEMES[case.time.scheme]
    return (yield from walled_rows(case, Evolution, texts))


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
