"""What a run of flow would do, in words; what a run refuses is refused here, too."""

from collections.abc import Generator

from heatsolve.backends import Backend
from heatsolve.case.case import Case
from heatsolve.models.flow.collocated import Collocated
from heatsolve.models.flow.staggered import Staggered
from heatsolve.models.heat.solver import method_name
from heatsolve.time.step_size import TimeStepController
from heatsolve.tools.preview_rows import walled_rows, words
from heatsolve.tools.preview_transport import SCHEMES

CONVECTIONS = {
    "central": "central convection",
    "skew": "skew-symmetric convection",
    "central4": "central convection of fourth order",
    "upwind3": "upwind-biased convection",
}
STEPS = {**SCHEMES, "adams-bashforth": "Adams and Bashforth's steps of second order"}


def flow_rows(
    case: Case, machine: Backend, ranks: int
) -> Generator[str, None, TimeStepController | None]:
    """Equation, grid, walls, scheme and steps, as `preview` promises them."""
    assert case.time is not None
    if case.model.scheme == "collocated":
        sweeps = case.solver.iterations
        scheme = f"collocated, backward convection, explicit Euler, {sweeps} sweeps for p"
        return (yield from walled_rows(case, Collocated, (_equation(case), scheme)))
    convection, steps = CONVECTIONS[case.model.convection], STEPS[case.time.scheme]
    if case.time.diffusion != "explicit":
        steps += ", Crank and Nicolson's diffusion"
    pressure = f"pressure by {method_name(case)} to a divergence of {case.solver.tolerance:g}"
    texts = _equation(case), f"staggered, {convection}, {steps}, {pressure}"
    return (yield from walled_rows(case, Staggered, texts))


def _equation(case: Case) -> str:
    forces = ", ".join(words(getattr(case.source, name)) for name in case.velocity_names)
    equation = "du/dt + u . grad u = -grad p / rho + nu div grad u + f"
    model, rho = case.model, case.model.density
    given = [f"rho = {rho:g}", f"nu = {model.viscosity:g}", f"f = ({forces})"]
    if model.lift is not None:
        lift = ", ".join(f"{component:g}" for component in model.lift)
        equation += " + (T - T0) g"
        given += [f"g = ({lift})", f"T0 = {model.reference_temperature:g}"]
    if case.obstacles:
        given.append(f"{len(case.obstacles)} obstacle{'s' * (len(case.obstacles) > 1)}")
    for name, alpha in case.diffusivities.items():
        given.append(f"{name} carried along, its diffusivity {alpha:g}")
    return f"{equation}, div u = 0, {', '.join(given)}"
