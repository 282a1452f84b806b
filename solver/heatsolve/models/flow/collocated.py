"""A case of the collocated teaching scheme of flow: its fields, and the steps of its march."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from heatsolve.backends import Accumulator, Backend
from heatsolve.case.case import Case
from heatsolve.models.base import MultiFieldModel, Row, RungeKutta, Stepper, Substep
from heatsolve.models.flow import equations as flow
from heatsolve.models.flow.case import equation
from heatsolve.models.grid import mirrors
from heatsolve.parallel.ranks import Ranks
from heatsolve.stencil.grid import Grid

MOST_KEPT = 16
"""Steps that are kept for playing back; the oldest make room for steps of other lengths."""


class Collocated(MultiFieldModel):
    """Velocity and pressure on the same nodes; wall nodes hold a value, or copy the node inside.

    `density` is rho (kg/m3).
    """

    def __init__(
        self, case: Case, backend: Backend, grid: Grid | None = None, ranks: Ranks | None = None
    ):
        super().__init__(case, backend, grid, ranks)
        self.density = case.model.density
        self.moved = dict.fromkeys(self.components, case.model.viscosity)
        # Of the layers of a deep halo, only the sweeps of the pressure read more than the nearest.
        self._nearest = self.halo if self.halo.depth == 1 else self.halo.of(self.grid)

    def write_walls(self, fields: dict[str, Any], time: float, exchanged: bool = False) -> None:
        if not exchanged:
            self._nearest.exchange(*fields.values())
        super().write_walls(fields, time, exchanged=True)

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
        self._machine = problem.sweeps
        self._machine.like(self._p, self._q)
        walls = mirrors(problem.walls["pressure"], grid, backend)
        *weights, self._of_b = flow.pressure_weights(*problem.spacings)
        self._given = (self._b, *weights, *walls)
        self.longest = self._machine.longest_pass(flow.pressure_sweep, self._q, self._given)
        self._plays_back = not problem.driven_in_time
        # `_ends` and `_plays`, by the length and the arrays of a step: the arrays of the pressure
        # after the step, the newer first; and the recorded step. `_pressures`, by their first
        # array: recorded sweeps.
        self._ends: dict[Any, tuple[Any, Any]] = {}
        self._plays: dict[Any, Callable[[], None]] = {}
        self._pressures: dict[int, tuple[Callable[[], None], dict[str, Any]]] = {}

    @property
    def fields(self) -> dict[str, Any]:  # type: ignore[override]
        return {**self._now, "pressure": self._p}

    def _advance(self, part: Substep, change: Accumulator | None) -> None:
        start, (new,) = self._now, self._others
        key = part.length, id(self._p), id(next(iter(new.values())))
        args = part, start, new, self._p, self._q
        if self._plays_back and key in self._ends:
            if key not in self._plays:
                work = partial(self._make_step, *args, self._find_pressure)
                self._plays[key] = self._machine.replayed(work, gated=False)
            self._plays[key]()
        else:
            while len(self._ends) >= MOST_KEPT:
                oldest = next(iter(self._ends))
                del self._ends[oldest]
                self._plays.pop(oldest, None)
            self._ends[key] = self._make_step(*args, self._play_pressure)
        self._p, self._q = self._ends[key]
        if change is not None:
            self.problem.write_walls(new, part.end)
        self._end_step(new, start, change)

    def _make_step(
        self,
        part: Substep,
        start: dict[str, Any],
        new: dict[str, Any],
        p: Any,
        q: Any,
        find_pressure: Callable[[Any, Any], tuple[Any, Any]],
    ) -> tuple[Any, Any]:
        """Find the pressure and the new velocities.

        Return the arrays of the pressure, the newer first.
        """
        problem, grid, sweep = self.problem, self.problem.grid, self.problem.backend.sweep
        model, spacings = problem.case.model, problem.spacings
        dt, rho, nu = part.length, problem.density, model.viscosity
        old = tuple(start.values())
        problem.write_walls(start, part.start)
        problem.write_walls({"pressure": p}, part.start, exchanged=True)  # `_find_pressure` does
        for wall in reversed(problem.walls["pressure"]):  # an odd number of sweeps ends in q
            if wall.condition.value is not None:
                problem.write_wall(q, "pressure", wall, part.start)
        reciprocals = [1.0 / number for number in (dt, *[2.0 * h for h in spacings])]
        sweep(flow.pressure_source, self._b, grid.interior, *old, self._of_b * rho, *reciprocals)
        p, q = find_pressure(p, q)
        problem.write_walls({"pressure": p}, part.start)
        forces = problem.sources(part.start)[: len(old)]
        weights = flow.collocated_weights(*map(problem.backend.dtype.type, (dt, rho, *spacings)))
        advance = (*old, p, *forces, dt, nu, *map(float, weights))
        sweep(flow.collocated_step, tuple(new.values()), grid.interior, *advance)
        return p, q

    def _find_pressure(self, p: Any, q: Any) -> tuple[Any, Any]:
        """Make all sweeps, from p to q and back; return both arrays, the newer first."""
        done = 0
        along = (self._b,) if self.problem.halo.depth > 1 else ()  # the margin reads b, too
        while done < self._sweeps:
            left = self._sweeps - done
            args = [self._given] * left, [None] * left, done, along
            done += self._machine.updates(flow.pressure_sweep, q, p, *args)
            p, q, along = q, p, ()
        return p, q

    def _play_pressure(self, p: Any, q: Any) -> tuple[Any, Any]:
        """As `_find_pressure`, played back: for a step whose length may not come again."""
        if id(p) not in self._pressures:
            ends: dict[str, Any] = {}

            def work() -> None:
                ends["both"] = self._find_pressure(p, q)

            self._pressures[id(p)] = self._machine.replayed(work, gated=False), ends
        play, ends = self._pressures[id(p)]
        play()
        return ends["both"]

    def finish(self) -> None:
        problem = self.problem
        problem.write_walls(self.fields, self.time)
        super().finish()
        p = problem.fields["pressure"]
        if self._p is not p:
            problem.sweeps.like(self._p, p)
            self._p, self._q = self._q, self._p
