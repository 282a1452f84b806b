"""The steps of heat in time: explicit Euler, and the theta scheme with a system to solve."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from heatsolve.backends import Accumulator
from heatsolve.errors import NotConverged
from heatsolve.linear.iterate import Controller, solve
from heatsolve.linear.stopping import Criterion
from heatsolve.linear.system import Method, System
from heatsolve.models.base import Silent, Stepper, Substep
from heatsolve.models.heat import equations as heat
from heatsolve.models.heat.solver import make_method
from heatsolve.stencil.language import copy

if TYPE_CHECKING:
    from heatsolve.models.heat.conduction import Conduction


class Explicit(Stepper):
    """Explicit Euler: T + dt (div(k grad T) + q) / (rho c), from one array into another.

    Its step has one part, which is never left half done.
    """

    def __init__(self, problem: "Conduction", time: float):
        super().__init__(time)
        self.problem: Conduction = problem
        self.field = problem.temperature
        place = problem.backend.to_device
        self.system = problem.system(place(problem.source(time)))
        self._b = self.system.b
        self._next = self.system.like(self.field)
        self._sweeps = 0

    def _advance(
        self, part: Substep, change: Accumulator | None, controller: Controller | None
    ) -> None:
        problem = self.problem
        if problem.walls_vary:
            problem.write_walls(self.field, part.start)
        if problem.sources_vary:
            self._b = problem.backend.to_device(problem.source(part.start))
        args = (self._b, part.length, problem.capacity, *problem.faces)
        self.system.update(
            heat.explicit_step, self._next, self.field, *args, change=change, number=self._sweeps
        )
        self._sweeps += 1
        self.field, self._next = self._next, self.field
        if problem.walls_vary:
            problem.write_walls(self.field, part.end)

    @property
    def fields(self) -> dict[str, Any]:  # type: ignore[override]
        return {"temperature": self.field}

    def finish(self) -> None:
        if self.field is not self.problem.temperature:
            everything = self.problem.grid.everything
            self.problem.backend.sweep(copy, self._next, everything, self.field)
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
        if parts > 1:  # each of which overwrites the old field
            self._before = self.problem.backend.zeros(self.problem.grid.shape)
            self._restore(self._before, self.field)

    def undo(self) -> None:
        self._restore(self.field, self._before)

    def _advance(
        self, part: Substep, change: Accumulator | None, controller: Controller | None
    ) -> None:
        problem, backend, grid = self.problem, self.problem.backend, self.problem.grid
        t, end = problem.temperature, part.end
        s = 1.0 / (part.theta * part.length)
        self._restore(self._old, t)
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
        usual, self.system = self._solver(s)

        def begin(system: System, exponent: int) -> tuple[Method, Criterion]:
            method = usual if exponent == 0 else make_method(problem.case, system, t)
            method.restart()
            scratch = self._scratch
            return method, Criterion(problem.case.solver, system, t, scratch, exponent=exponent)

        def reset() -> None:
            self._restore(t, self._old)
            if problem.walls_vary:
                problem.write_walls(t, end)

        outcome = solve(self.system, t, begin, reset, Silent(), controller)
        self.norm = outcome.norm
        if outcome.ending == "limit":
            raise NotConverged(
                f"the step to t = {end:g} did not converge in {outcome.count} iterations "
                f"(norm {outcome.norm:.3g})"
            )
        if change is not None:
            backend.sweep(squared_difference, change, grid.interior, t, self._old)

    def _restore(self, array: Any, source: Any) -> None:
        self.problem.backend.sweep(copy, array, self.problem.grid.everything, source)

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
