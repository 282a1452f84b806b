"""What a run of transport would do, in words; what a run refuses is refused here, too.

So it is with a user's own model, which marches in the same way.
"""

from collections.abc import Generator

import numpy as np

from heatsolve.backends import Backend
from heatsolve.case.case import Case
from heatsolve.models.evolution import Evolution
from heatsolve.models.transport.convection import Convection
from heatsolve.time.step_size import TimeStepController
from heatsolve.tools.preview_rows import row, walled_rows, words

SAMPLES = 16
"""Points along each axis at which a velocity's divergence is looked for."""
STEP = 1e-4
"""Half the distance of its differences there, as a share of the axis."""
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


def transport_rows(
    case: Case, machine: Backend, ranks: int
) -> Generator[str, None, TimeStepController | None]:
    """Equation, grid, walls, scheme and steps, as `preview` promises them."""
    assert case.time is not None
    scheme = f"{CONVECTIONS[case.model.convection]}, {SCHEMES[case.time.scheme]}"
    texts = _equation(case), scheme
    pace = yield from walled_rows(case, Convection, texts)
    if case.model.form == "flux" and (largest := _divergence(case)) > 0.0:
        yield row(
            "velocity",
            f"div v is not 0 (up to {largest:.3g} /s): u is compressed and thinned, as div(v u) "
            'has it; form = "advective" carries it unchanged',
        )
    return pace


def evolution_rows(
    case: Case, machine: Backend, ranks: int
) -> Generator[str, None, TimeStepController | None]:
    """The same of a user's own model."""
    equations = case.model.equations
    assert case.time is not None and equations is not None
    numbers = [f"{name} = {getattr(case.model, name):g}" for name in equations.parameters]
    equation = "; ".join([equations.text or f"rates of {', '.join(equations.fields)}", *numbers])
    texts = equation, SCHEMES[case.time.scheme]
    return (yield from walled_rows(case, Evolution, texts))


def _divergence(case: Case) -> float:
    """The largest |div v| of a given velocity at some points; 0 if it is no more than rounding."""
    given, grid = case.model.velocity, case.grid
    if not isinstance(given, tuple):
        return 0.0
    lengths = [high - low for low, high in zip(grid.lower, grid.upper, strict=True)]
    shares = (np.arange(SAMPLES) + 0.5) / SAMPLES
    lines = [low + length * shares for low, length in zip(grid.lower, lengths, strict=True)]
    positions = dict(zip(grid.axes, np.meshgrid(*lines, indexing="ij"), strict=True))
    slopes, rounding = [], 0.0
    with np.errstate(all="ignore"):
        for axis, length, expression in zip(grid.axes, lengths, given, strict=True):
            ends = []
            for distance in (-STEP * length, STEP * length):
                at = positions | {axis: positions[axis] + distance}
                ends.append(expression(**{name: at[name] for name in expression.names}))
            slopes.append((ends[1] - ends[0]) / (2.0 * STEP * length))
            at_ends = max(float(np.max(np.abs(end))) for end in ends)
            rounding = max(rounding, 1e-9 * at_ends / length)
        largest = float(np.max(np.abs(sum(slopes))))
        terms = float(np.max(sum(map(np.abs, slopes))))
    return largest if largest > max(rounding, 1e-3 * terms) else 0.0


def _equation(case: Case) -> str:
    model, names = case.model, case.field_names
    if model.velocity == "self":
        u, carried = "u", "u = (" + ", ".join(names) + ")"
    else:
        given = model.velocity if isinstance(model.velocity, tuple) else ()
        u, carried = "v", "v = (" + (", ".join(map(words, given)) or "0") + ")"
    sources = [words(getattr(case.source, name)) for name in names]
    convected = f"{u} . grad u"
    if model.form == "flux" and u == "v":
        convected = "div(v u)"
    elif model.form == "flux":
        convected = "d(u^2/2)/dx" if len(names) == 1 else f"{convected} (own axis: d(u^2/2))"
    equation = f"du/dt + {convected} = nu div grad u + f"
    return f"{equation}, {carried}, nu = {model.diffusivity:g}, f = {', '.join(sources)}"
