"""A case of the collocated teaching scheme of flow: its fields, and the steps of its march."""

from collections.abc import Callable, Iterator
from typing import Any

from heatsolve.backends import Accumulator, Backend
from heatsolve.case.case import Case
from heatsolve.linear.system import Sweeps
from heatsolve.models.base import MultiFieldModel, Row, RungeKutta, Stepper, Substep
from heatsolve.models.flow import equations as flow
from heatsolve.models.flow.case import equation
from heatsolve.models.grid import mirrors
from heatsolve.parallel.ranks import Ranks
from heatsolve.stencil.grid import Grid
from heatsolve.stencil.language import copy


class Collocated(MultiFieldModel):
    """Velocity and pressure on the same nodes; a wall's nodes hold a value, or copy what is inside.

    `density` is rho (kg/m3).
    """

    def __init__(
        self, case: Case, backend: Backend, grid: Grid | None = None, ranks: Ranks | None = None
    ):
        super().__init__(case, backend, grid, ranks)
        self.density = case.model.density
        self.moved = dict.fromkeys(self.components, case.model.viscosity)

    def stepper(self, time: float, step: float) -> Stepper:
        return CollocatedStep(self, time)

    @property
    def equation(self) -> str:
        return equation(self.case)

    def methods(self) -> Iterator[Row]:
        sweeps = self.case.solver.iterations
        text = f"collocated, backward convection, explicit Euler, {sweeps} sweeps for p"
        yield "scheme", text


class CollocatedStep(RungeKutta):
    """The pressure by a number of Jacobi's sweeps, then the velocity by explicit Euler."""

    def __init__(self, problem: Collocated, time: float):
        super().__init__(problem, time, "explicit", problem.case.velocity_names)
        self.problem: Collocated = problem
        case, grid, backend = problem.case, problem.grid, problem.backend
        assert case.solver.iterations is not None
        self._sweeps = case.solver.iterations
        self._p = problem.fields["pressure"]
        self._q, self._b = backend.zeros(grid.shape), backend.zeros(grid.shape)
        self._machine = Sweeps(grid, backend, problem.halo)
        self._machine.like(self._p, self._q)
        walls = mirrors(problem.walls["pressure"], grid, backend)
        *weights, self._of_b = flow.pressure_weights(*problem.spacings)
        self._given = (self._b, *weights, *walls)
        self.longest = self._machine.longest_pass(flow.pressure_sweep, self._q, self._given)
        self._work: dict[bool, tuple[Callable[[], None], Any]] = {}

    @property
    def fields(self) -> dict[str, Any]:  # type: ignore[override]
        return {**self._now, "pressure": self._p}

    def _advance(self, part: Substep, change: Accumulator | None) -> None:
        problem, grid, sweep = self.problem, self.problem.grid, self.problem.backend.sweep
        model, spacings = problem.case.model, problem.spacings
        dt, rho, nu = part.length, problem.density, model.viscosity
        start, (new,) = self._now, self._others
        old = tuple(start.values())
        problem.write_walls(self.fields, part.start)
        for wall in reversed(problem.walls["pressure"]):  # for sweeps that end in this array
            if wall.condition.value is not None:
                problem.write_wall(self._q, "pressure", wall, part.start)
        reciprocals = [1.0 / number for number in (dt, *[2.0 * h for h in spacings])]
        sweep(flow.pressure_source, self._b, grid.interior, *old, self._of_b * rho, *reciprocals)
        if problem.halo.depth > 1:
            problem.halo.exchange(self._b)  # the margin reads it, too
        self._find_pressure()
        problem.write_walls({"pressure": self._p}, part.start)
        forces = problem.sources(part.start)[: len(old)]
        weights = flow.collocated_weights(*map(problem.backend.dtype.type, (dt, rho, *spacings)))
        advance = (*old, self._p, *forces, dt, nu, *map(float, weights))
        sweep(flow.collocated_step, tuple(new.values()), grid.interior, *advance)
        if change is not None:
            problem.write_walls(new, part.end)
        self._end_step(new, start, change)

    def _find_pressure(self) -> None:
        """All sweeps, from `_p` to `_q` and back; a device plays them back at once."""
        first = self._p is self.problem.fields["pressure"]
        if first not in self._work:
            pair, ends = (self._p, self._q), [0]

            def work() -> None:
                done = calls = 0
                while done < self._sweeps:
                    old, new = pair[calls % 2], pair[1 - calls % 2]
                    left = self._sweeps - done
                    args = [self._given] * left, [None] * left, done
                    done += self._machine.updates(flow.pressure_sweep, new, old, *args)
                    calls += 1
                ends[0] = calls % 2

            self._work[first] = self._machine.replayed(work), (pair, ends)
        work, (pair, ends) = self._work[first]
        work()
        self._p, self._q = pair[ends[0]], pair[1 - ends[0]]

    def finish(self) -> None:
        problem, backend = self.problem, self.problem.backend
        problem.write_walls(self.fields, self.time)
        super().finish()
        p = problem.fields["pressure"]
        if self._p is not p:
            backend.sweep(copy, p, problem.grid.everything, self._p)
            self._p, self._q = self._q, self._p
