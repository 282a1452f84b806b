"""What a run of flow would do, in words; what a run refuses is refused here, too."""

from collections.abc import Iterator

import numpy as np

from heatsolve import flow
from heatsolve.backends import Backend
from heatsolve.case import Case
from heatsolve.collocated import Collocated
from heatsolve.converge import method_name
from heatsolve.grid import Grid
from heatsolve.preview_heat import OWN_FIELDS as OWN_FIELDS_OF_METHODS
from heatsolve.preview_rows import field_bytes, points_of, walled_rows, words
from heatsolve.preview_transport import SCHEMES
from heatsolve.staggered import Staggered
from heatsolve.walled import Walled

OWN_FIELDS = 7
"""Arrays of grid shape of the collocated scheme: velocity and pressure twice, and its source."""
PRESSURES = 5
"""Those of the pressure on the staggered grid: three of its own, its source, one for frames."""
FIELDS_OF_DIFFUSION = {"multigrid": 12, "fft": 12, "mgcg": 20}
"""For each quantity: its system, whose coefficients vary on all levels, its method, and a copy."""
CONVECTIONS = {
    "central": "central convection",
    "skew": "skew-symmetric convection",
    "central4": "central convection of fourth order",
    "upwind3": "upwind-biased convection",
}
STEPS = {**SCHEMES, "adams-bashforth": "Adams and Bashforth's steps of second order"}


def flow_rows(case: Case, machine: Backend, reason: str, ranks: int) -> Iterator[str]:
    """Equation, grid, walls, scheme, machine, memory and files, as `preview` promises them."""
    assert case.time is not None
    if case.model.scheme == "collocated":
        sweeps = case.solver.iterations
        scheme = f"collocated, backward convection, explicit Euler, {sweeps} sweeps for p"
        texts = _equation(case), scheme
        yield from walled_rows(case, machine, reason, ranks, Collocated, texts, _collocated)
        return
    convection, steps = CONVECTIONS[case.model.convection], STEPS[case.time.scheme]
    if case.time.diffusion != "explicit":
        steps += ", Crank and Nicolson's diffusion"
    pressure = f"pressure by {method_name(case)} to a divergence of {case.solver.tolerance:g}"
    texts = _equation(case), f"staggered, {convection}, {steps}, {pressure}"
    yield from walled_rows(case, machine, reason, ranks, Staggered, texts, _staggered)


def _equation(case: Case) -> str:
    forces = ", ".join(words(getattr(case.source, name)) for name in case.velocity_names)
    equation = "du/dt + u . grad u = -grad p / rho + nu div grad u + f"
    model, rho = case.model, float(case.model.density())
    given = [f"rho = {rho:g}", f"nu = {model.viscosity:g}", f"f = ({forces})"]
    if model.buoyancy is not None:
        lift = ", ".join(f"{component:g}" for component in model.buoyancy)
        equation += " + (T - T0) g"
        given += [f"g = ({lift})", f"T0 = {model.reference_temperature:g}"]
    if case.obstacles:
        given.append(f"{len(case.obstacles)} obstacle{'s' * (len(case.obstacles) > 1)}")
    for name, alpha in case.diffusivities.items():
        given.append(f"{name} carried along, its diffusivity {alpha:g}")
    return f"{equation}, div u = 0, {', '.join(given)}"


def _collocated(problem: Walled, block: Grid) -> tuple[int, int]:
    """Bytes of the arrays of a run, those of its backend and those of the host beside it."""
    one = field_bytes(problem.case, block)
    return OWN_FIELDS * one + _sources(problem, block), 2 * len(problem.names) * one


def _staggered(problem: Walled, block: Grid) -> tuple[int, int]:
    """The same."""
    case = problem.case
    assert case.time is not None
    one, advanced = field_bytes(case, block), len(problem.names) - 1
    # Of Adams and Bashforth's steps the rates are the third.
    copies = {"explicit": 2, "rk2": 3, "adams-bashforth": 3, "rk3": 4}[case.time.scheme]
    method = OWN_FIELDS_OF_METHODS.get(method_name(case), 1)
    fields = advanced * copies + PRESSURES + method
    if case.model.convection in flow.WIDE:
        fields += block.dimension
    if case.time.diffusion != "explicit":  # its right side, its unknown, and its systems
        fields += 2 + advanced * FIELDS_OF_DIFFUSION.get(method_name(case), method + 2)
    if case.obstacles:  # the stencils of each, and conductances of the pressure
        fields += advanced * (2 * block.dimension + 4) + block.dimension + 1
    return fields * one + _sources(problem, block), 2 * len(problem.names) * one


def _sources(problem: Walled, block: Grid) -> int:
    case = problem.case
    item = np.dtype(case.solver.field_precision).itemsize
    given = [getattr(case.source, name) for name in problem.names]
    return sum(points_of([source], block) for source in given) * item
