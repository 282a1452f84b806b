"""The solvers of heat conduction: which method solves a system, why it may stall, and the steps in
time, explicit Euler and the theta scheme.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from heatsolve.backends import Accumulator
from heatsolve.case.case import Case
from heatsolve.linear import iterate
from heatsolve.linear.iterate import finished, solving
from heatsolve.linear.stationary import Jacobi
from heatsolve.linear.stopping import Criterion
from heatsolve.linear.system import Coefficients, Method, System, two_coloured
from heatsolve.models.base import Model, Silent, Stepper, Substep, demand_converged
from heatsolve.models.grid import grid_of, mirrors, walls_of
from heatsolve.models.heat import equations as heat
from heatsolve.stencil.grid import whole
from heatsolve.stencil.language import ZERO

if TYPE_CHECKING:
    from heatsolve.models.heat.conduction import Conduction


def method_name(case: Case) -> str:
    """The method that a case asks for; `auto` is the fastest method for the case.

    A literal update is a Jacobi iteration. Multigrid converges by itself where the conductivity is
    constant; where it varies, multigrid preconditions conjugate gradients.
    """
    if case.solver.update is not None:
        return "jacobi"
    if case.solver.method != "auto":
        return case.solver.method
    return "mgcg" if case.has_jumps else "multigrid"


def diffusion_system(
    problem: Model,
    coefficients: Coefficients,
    b: Any,
    lowest: Callable[[], float],
    singular: bool = False,
    homogeneous: bool = True,
) -> System:
    """A u = b with the point functions of heat conduction; arguments are those of `System`."""
    functions = heat.residual, heat.diagonal, heat.rounding
    return System(
        problem.grid, problem.backend, problem.halo, *functions, coefficients, b, lowest,
        singular, homogeneous,
    )  # fmt: skip


def make_method(case: Case, system: System, u: Any) -> Method:
    """The method of a case, which begins at u."""
    solver = case.solver
    if solver.update is None:
        return iterate.make_method(method_name(case), solver, system, u)
    dy, dx = (axis.spacing for axis in system.grid.axes)
    update, scales = heat.literal_update(solver.update, dx, dy, system.grid.equal_spacings)
    walls = list(walls_of(case, system.grid))
    if all(wall.condition.gradient is None for wall in walls):
        return Jacobi(system, u, update=update, arguments=(system.b, *scales))
    arguments = (system.b, *scales, *mirrors(walls, system.grid, system.backend))
    return Jacobi(system, u, update=heat.mirrored(update), arguments=arguments)


def stall(case: Case, singular: bool) -> str:
    """Why the iteration of a steady case cannot converge, and the remedy; "" if it can.

    `singular`: no wall gives a temperature. Then the checkerboard, +1 on red unknowns and -1 on
    black ones, is an eigenvector of D^-1 A with the eigenvalue 2, so of 1 - D^-1 A with -1.
    """
    solver = case.solver
    if solver.update is not None or solver.iterations is not None or solver.weight != 1.0:
        return ""
    if not (method_name(case) == "jacobi" and singular and two_coloured(grid_of(case))):
        return ""
    return (
        "solver.weight: no wall gives a temperature, and Jacobi's iteration of weight 1 then has "
        "the eigenvalue -1: a checkerboard changes its sign in each sweep and never fades, so the "
        "iteration stalls; take a weight below 1, such as solver.weight = 0.9"
    )


HIDDEN, CONTRAST = 0.1, 1e3
"""Beyond this product of a relative tolerance and the ratio of the largest to the smallest
conductivity there is a warning, if the ratio has this size."""


def doubt(case: Case, contrast: float) -> str:
    """Why the tolerance of a steady case may hide errors, and the remedy; "" if it does not.

    `contrast`: the ratio of the largest to the smallest conductivity.
    """
    solver = case.solver
    relative = solver.monitor == "residual" and solver.is_relative and solver.iterations is None
    hides = contrast >= CONTRAST and contrast * solver.tolerance > HIDDEN
    if not (relative and case.model.steady and hides):
        return ""
    return (
        f"solver.tolerance: conductivities differ by a factor of {contrast:.0e}, and a residual of "
        f"{solver.tolerance:g} times the right side may hide large errors where the conductivity "
        "is low; compare with a smaller tolerance"
    )


# ---- steps in time ----

MOST_AT_ONCE = 1000
"""The most explicit steps that are made at once."""


class Explicit(Stepper):
    """Explicit Euler: T + a (div(k grad T) + q), a = dt / (rho c), from one array into another.

    Its step has one part and is never interrupted.
    """

    def __init__(self, problem: "Conduction", time: float):
        super().__init__(time)
        self.problem: Conduction = problem
        self.field = problem.temperature
        source = problem.source(time)
        self.system = problem.system(problem.backend.to_device(source))
        self._b: Any = self.system.b
        volumes, points = problem.volumes, problem.case.source.points
        may = problem.sources_vary or volumes.heated_through_walls or points
        if not may and not any(problem.ranks.gather(bool(np.any(source)))):
            self._b = ZERO  # leaves out a load and a sum
        self._next = self.system.like(self.field)
        self._sweeps = 0
        self._length, self._rate = math.nan, problem.backend.zeros(problem.capacity.shape)
        if problem.joins_steps:
            args = self._arguments(1.0)
            self.longest = self.system.longest_pass(heat.explicit_step, self.field, args)
            self.most_steps = MOST_AT_ONCE if self.longest > 1 else 1

    def _arguments(self, length: float) -> tuple[Any, ...]:
        """The arguments of a step of this length after the field.

        A point takes dt / (rho c) as one number, because a division costs as much as ten sums.
        """
        if length != self._length:
            everywhere, args = whole(self._rate.shape), (length, self.problem.capacity)
            self.problem.backend.sweep(heat.rate, self._rate, everywhere, *args)
            self._length = length
        return (self._b, self._rate, *self.problem.faces)

    def _advance(self, part: Substep, change: Accumulator | None) -> None:
        problem = self.problem
        if problem.walls_vary:
            problem.write_walls(self.field, part.start)
        if problem.sources_vary:
            self._b = problem.backend.to_device(problem.source(part.start))
        args, changes = self._arguments(part.length), [*[None] * self._steps_before, change]
        while changes:
            stages = [args] * len(changes)
            count = self.system.updates(
                heat.explicit_step, self._next, self.field, stages, changes, self._sweeps
            )
            del changes[:count]
            self._sweeps += count
            self.field, self._next = self._next, self.field
        if problem.walls_vary:
            problem.write_walls(self.field, part.end)

    @property
    def fields(self) -> dict[str, Any]:  # type: ignore[override]
        return {"temperature": self.field}

    def finish(self) -> None:
        if self.field is not self.problem.temperature:
            self.problem.sweeps.like(self.field, self._next)
            self.field, self._next = self._next, self.field


class Implicit(Stepper):
    """The theta scheme: each step solves rho c s T - div(k grad T) = b, s = 1 / (theta dt).

    The newest field is always in `problem.temperature`.
    """

    def __init__(self, problem: "Conduction", time: float):
        super().__init__(time)
        self.problem: Conduction = problem
        self.field, self.fields = problem.temperature, problem.fields
        backend = problem.backend
        self._right = backend.zeros(problem.grid.shape)
        self._old = backend.zeros(problem.grid.shape)
        solver = problem.case.solver
        relative = solver.is_relative and solver.iterations is None
        wanted = relative and not problem.homogeneous
        self._scratch = backend.zeros(problem.grid.shape) if wanted else None
        self._b = backend.to_device(problem.source(time))
        self._solvers: dict[float, tuple[Method, System]] = {}

    def _begin(self, parts: int) -> None:
        self._before = self._old
        if parts > 1:  # each part overwrites the old field
            self._before = self.problem.sweeps.like(self.field)

    def undo(self) -> None:
        self.problem.sweeps.like(self._before, self.field)

    def _advance(self, part: Substep, change: Accumulator | None) -> None:
        problem, backend, grid = self.problem, self.problem.backend, self.problem.grid
        t, end = problem.temperature, part.end
        s = 1.0 / (part.theta * part.length)
        problem.sweeps.like(t, self._old)
        b_new = self._b
        if problem.sources_vary:
            b_new = backend.to_device(problem.source(end))
        args = (self._b, b_new, problem.capacity, s, 1.0 / part.theta - 1.0, *problem.faces)
        problem.halo.exchange(t)
        backend.sweep(heat.implicit_source, self._right, grid.interior, t, *args)
        if problem.halo.depth > 1:
            problem.halo.exchange(self._right)  # the margin reads it, too
        self._b = b_new
        if problem.walls_vary:
            problem.write_walls(t, end)
        kept_method, self.system = self._solver(s)

        def begin(system: System, exponent: int) -> tuple[Method, Criterion]:
            method = kept_method if exponent == 0 else make_method(problem.case, system, t)
            method.restart()
            scratch = self._scratch
            return method, Criterion(problem.case.solver, system, t, scratch, exponent=exponent)

        def reset() -> None:
            problem.sweeps.like(self._old, t)
            if problem.walls_vary:
                problem.write_walls(t, end)

        iterates = solving(self.system, t, begin, reset, Silent(), self._controller)
        outcome = finished(iterates)
        self.norm = outcome.norm
        demand_converged(outcome, f"the step to t = {end:g}")
        if change is not None:
            backend.sweep(squared_difference, change, grid.interior, t, self._old)

    def make_solvers(self, parts: Sequence[Substep]) -> None:
        for part in parts:
            self._solver(1.0 / (part.theta * part.length))

    def _solver(self, s: float) -> tuple[Method, System]:
        if s not in self._solvers:
            system = self.problem.system(self._right, s)
            method = make_method(self.problem.case, system, self.problem.temperature)
            self._solvers[s] = (method, system)
        return self._solvers[s]


def squared_difference(at: Any, u: Any, v: Any) -> Any:
    difference = u[at] - v[at]
    return difference * difference
