"""Implicit diffusion of a staggered flow: the linear system for the increment of a quantity."""

from typing import TYPE_CHECKING, Any

import numpy as np

from heatsolve.case.case import Case
from heatsolve.linear.iterate import in_range, iterate
from heatsolve.linear.stopping import Criterion
from heatsolve.linear.system import Coefficients, Method, System, added
from heatsolve.models.base import Silent, demand_converged
from heatsolve.models.flow import equations as flow
from heatsolve.models.heat.solver import diffusion_system, make_method
from heatsolve.stencil.grid import WALLS
from heatsolve.stencil.language import ONE, copy, fill

if TYPE_CHECKING:
    from heatsolve.models.flow.staggered import Staggered


class ImplicitDiffusion:
    """Diffusion by the theta scheme: a linear system for d, the increment of a quantity in a step.

    (1/dt - theta nu div grad) d = r, where r is the sum of all rates, diffusion of the known field
    included. At walls d = 0, because the ghosts of the known field already hold the values at t +
    theta dt (J. Kim and P. Moin, J. Comput. Phys. 59 (1985), 308, eq. 3 with theta = 1/2,
    convection by Adams and Bashforth). `case.solver` has the tolerance.
    """

    def __init__(self, problem: "Staggered", case: Case):
        if case.solver.method == "fft":  # fft allows no wall between two unknowns
            case = case.altered(solver={"method": "auto"})
        self._problem, self._case = problem, case
        self._right = problem.backend.zeros(problem.grid.shape)
        self._added = problem.backend.zeros(problem.grid.shape)
        self._solvers: dict[str, tuple[tuple[float, float], System, Method]] = {}

    def explicit_part(self, name: str, rate: Any, now: Any) -> Any:
        """r: a rate plus diffusion of `now`, whose ghosts hold the walls at t + theta dt."""
        problem, right, region = self._problem, self._right, self._problem.inside(name)
        args = (rate, now, problem.moved[name], *problem.inverse_spacings)
        problem.backend.sweep(flow.diffused, right, region, *args)
        if region != problem.grid.interior:  # the face on the wall is an unknown: its d is 0
            wall = problem.face_at(problem.components.index(name), 1)
            problem.backend.sweep(fill, right, wall, 0.0)
        return right

    def advance(self, name: str, new: Any, now: Any, dt: float, theta: float) -> None:
        """Set `new` to now + d, for the r of `explicit_part`. Raises NotConverged."""
        problem, region = self._problem, self._problem.inside(name)
        backend, (system, method) = problem.backend, self.solver(name, dt, theta)
        backend.sweep(fill, self._added, problem.grid.everything, 0.0)
        interior = problem.grid.interior
        sizes = [backend.reduce("max", copy, interior, array) for array in (now, self._right)]
        scale = max(sizes[0] / dt, sizes[1])
        with in_range(method, lambda: scale) as factor:
            args = self._case.solver, system, self._added
            criterion = Criterion(*args, scale=factor * scale, looks_first=False)
            method.restart()
            outcome = iterate(method, criterion, Silent()).times(1.0 / factor)
        demand_converged(outcome, f"the diffusion of {name}")
        backend.sweep(added, new, region, now, self._added)

    def solver(self, name: str, dt: float, theta: float) -> tuple[System, Method]:
        """The system and the method of a quantity for a step of this length."""
        known = self._solvers.get(name)
        if known is None or known[0] != (dt, theta):
            system = self._system(name, dt, theta)
            known = (dt, theta), system, make_method(self._case, system, self._added)
            self._solvers[name] = known
        return known[1], known[2]

    def _system(self, name: str, dt: float, theta: float) -> System:
        """The system of d: walls, where d = 0, add to the capacity, so that they need no ghosts."""
        problem, place = self._problem, self._problem.backend.to_device
        nu, grid = theta * problem.moved[name], problem.grid
        lines, capacity = [], np.ones((1,) * grid.dimension)
        for number in range(grid.dimension):
            between, to_walls = self._lines(name, number)
            lines.append(place(grid.along(number, nu * between)))
            capacity = capacity + dt * nu * grid.along(number, to_walls)
        args = place(capacity), 1.0 / dt, tuple(reversed(lines)), (ONE,) * grid.dimension
        return diffusion_system(problem, Coefficients(*args), self._right, lambda: 1.0 / dt)

    def _lines(self, name: str, number: int) -> tuple[np.ndarray, np.ndarray]:
        """1 / h^2 between unknowns along an axis (before each), and from each unknown to walls."""
        problem = self._problem
        axis, block = problem.whole.axes[number], problem.grid.axes[number]
        share = 1.0 / (axis.spacing * axis.spacing)
        between = np.full(axis.all_unknowns + 2, share)
        to_walls = np.zeros(between.size)
        if not axis.periodic:
            across = name in problem.components and problem.components.index(name) == number
            between[[1, -1]] = 0.0
            if across:  # the last unknown is the wall
                between[-2] = 0.0
                to_walls[1] += share
                to_walls[-3] += share
            else:
                for beside, wall in zip((1, -2), WALLS[axis.name], strict=True):
                    condition = problem.case.condition(name, wall)
                    if condition is not None and condition.value is not None:
                        to_walls[beside] += 2.0 * share
        window = slice(block.start, block.start + block.unknowns + 2)
        return between[window], to_walls[window]
