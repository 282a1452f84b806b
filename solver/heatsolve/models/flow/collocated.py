"""A case of the collocated teaching scheme of flow: its fields, and the steps of its march."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from heatsolve.backends import Accumulator, Backend, Region
from heatsolve.case.case import Case
from heatsolve.models.base import (
    Measured,
    MultiFieldModel,
    Recordings,
    Row,
    RungeKutta,
    Stepper,
    Substep,
)
from heatsolve.models.flow import equations as flow
from heatsolve.models.flow.case import equation
from heatsolve.models.grid import mirrors
from heatsolve.parallel.ranks import Ranks
from heatsolve.stencil.grid import Grid


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
        self.nearest = self.halo if self.halo.depth == 1 else self.halo.of(self.grid)

    def write_walls(self, fields: dict[str, Any], time: float, exchanged: bool = False) -> None:
        if not exchanged:
            self.nearest.exchange(*fields.values())
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
        self._recordings = Recordings(self._machine)
        self._part = Substep(time, 0.0, 0.0)
        self._first = 0
        """The number of sweeps that `_begin_step` makes, always the same."""
        self._begun: Any = None
        """The length and the arrays of a step whose beginning has been made."""
        self._comes_again = False
        """Whether the last two steps have one length."""
        self._has_layers = False
        """Whether all layers of neighbours are there, as each step leaves them."""

    @property
    def fields(self) -> dict[str, Any]:  # type: ignore[override]
        return {**self._now, "pressure": self._p}

    def _advance(self, part: Substep, change: Accumulator | None) -> None:
        start, (new,) = self._now, self._others
        if not self._has_layers:
            self.problem.halo.exchange(*start.values(), self._p)
            self._has_layers = True
        key = part.length, id(self._p), *self._places
        begun, self._begun = self._begun == key, None
        self._comes_again, self._part = part.length == self._part.length, part
        args = part, start, new, self._p, self._q, begun, change
        work, first = (
            partial(self._make_step, *args, way)
            for way in (self._find_pressure, self._play_pressure)
        )
        if self._plays_back:
            self._p, self._q = self._recordings.make(("step", begun, change, *key), work, first)
        else:
            self._p, self._q = first()
        self._take(new)

    def posted_measures(self, *besides: Accumulator) -> Measured:
        """As `Stepper.posted_measures`; a device begins the next step while its host waits.

        It does so if nothing depends on time, and if the last two steps have one length. The next
        step begins anew if it has another length, or if its fields were moved for a frame.
        """
        read, queued = super().posted_measures(*besides), self._machine.backend.on_device
        if queued and self._machine.replays and self._plays_back and self._comes_again:
            self._begun = self._part.length, id(self._p), *self._places
            work = partial(self._begin_step, self._part, self._now, self._p, self._q)
            self._recordings.make(("begin", *self._begun), work)
        return read

    def _begin_step(self, part: Substep, start: dict[str, Any], p: Any, q: Any) -> None:
        """Write the walls at the start of a step, find the right side of its pressure, and make the
        first sweeps from p to q, which leave the fields as they are."""
        problem, halo = self.problem, self.problem.halo
        problem.write_walls({**start, "pressure": p}, part.start, exchanged=True)
        for wall in reversed(problem.walls["pressure"]):  # an odd number of sweeps ends in q
            if wall.condition.value is not None:
                problem.write_wall(q, "pressure", wall, part.start)
        reciprocals = [
            1.0 / number for number in (part.length, *[2.0 * h for h in problem.spacings])
        ]
        args = (*start.values(), self._of_b * problem.density, *reciprocals)
        problem.backend.sweep(flow.pressure_source, self._b, halo.around(0), *args)
        self._first = self._sweep(q, p, 0)

    def _sweep(self, new: Any, p: Any, done: int) -> int:
        """Make sweeps in one pass, of all that are left after `done`; return how many."""
        left = self._sweeps - done
        args = [self._given] * left, [None] * left, done
        return self._machine.updates(flow.pressure_sweep, new, p, *args, exchanged=done == 0)

    def _make_step(
        self,
        part: Substep,
        start: dict[str, Any],
        new: dict[str, Any],
        p: Any,
        q: Any,
        begun: bool,
        change: Accumulator | None,
        find_pressure: Callable[[Any, Any], tuple[Any, Any]],
    ) -> tuple[Any, Any]:
        """Find the pressure and the new velocities; `begun`: behind `_begin_step`.

        The neighbours' layers are exchanged at the end, while the last sweep goes on where the halo
        can. Return the arrays of the pressure, the newer first.
        """
        problem, halo = self.problem, self.problem.halo
        dt, rho, nu = part.length, problem.density, problem.case.model.viscosity
        if not begun:
            self._begin_step(part, start, p, q)
        p, q = find_pressure(p, q)
        problem.write_walls({"pressure": p}, part.start, exchanged=True)
        old, forces = tuple(start.values()), problem.sources(part.start)[: len(start)]
        dtype = problem.backend.dtype.type
        weights = flow.collocated_weights(*map(dtype, (dt, rho, *problem.spacings)))
        advance = (*old, p, *forces, dt, nu, *map(float, weights))

        out, point = tuple(new.values()), flow.collocated_step
        if change is not None:
            out, point = (*out, change), flow.collocated_step_with_change(change.kind)

        def sweep(region: Region) -> None:
            problem.backend.sweep(point, out, region, *advance)

        travel = [*new.values(), *([p] if halo.depth > 1 else [])]
        halo.sweep_and_exchange(sweep, *travel)
        return p, q

    def _find_pressure(self, p: Any, q: Any) -> tuple[Any, Any]:
        """Make all sweeps but the first, from q to p and back, and bring the ghosts that the
        velocities read. Return both arrays, the newer first.
        """
        done, halo = self._first, self.problem.halo
        p, q = q, p
        while done < self._sweeps:
            done += self._sweep(q, p, done)
            p, q = q, p
        if self._sweeps % halo.depth == 0:  # no layer is left
            self.problem.nearest.exchange(p)
        else:
            halo.wrap(p)
        return p, q

    def _play_pressure(self, p: Any, q: Any) -> tuple[Any, Any]:
        """As `_find_pressure`, played back: for a step whose length may not come again."""
        work = partial(self._find_pressure, p, q)
        return self._recordings.make(("pressure", id(p)), work)

    def finish(self) -> None:
        problem = self.problem
        problem.write_walls(self.fields, self.time)
        super().finish()
        p = problem.fields["pressure"]
        if self._p is not p:
            problem.sweeps.like(self._p, p)
            self._p, self._q = self._q, self._p
