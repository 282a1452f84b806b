"""The steps of transport and of users' models: Euler's, and those of SSP Runge-Kutta schemes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from heatsolve.backends import Accumulator
from heatsolve.linear.iterate import Controller
from heatsolve.models.base import Stepper, Substep
from heatsolve.models.transport import equations as transport
from heatsolve.stencil.language import copy

if TYPE_CHECKING:
    from heatsolve.models.transport.convection import Convection
    from heatsolve.models.user import Evolution


SCHEMES = {
    "explicit": "explicit Euler",
    "rk2": "Runge-Kutta of second order, strong-stability-preserving",
    "rk3": "Runge-Kutta of third order, strong-stability-preserving",
}


class RungeKutta(Stepper):
    """Stages of `transport.RUNGE_KUTTA`, each one sweep over all quantities.

    The last of several stages overwrites the field at the start of the step, which it reads at the
    point only. A step has one part, which is never left half done.
    """

    def __init__(self, problem: "Convection | Evolution", time: float, step: float):
        super().__init__(time)
        self.problem: Convection | Evolution = problem
        self._before = step
        """The length of the step before (s): boxes are due in the first step from a time on."""
        case, grid, backend = problem.case, problem.grid, problem.backend
        assert case.time is not None
        self._stages = transport.RUNGE_KUTTA[case.time.scheme]
        self._times = transport.TIMES[case.time.scheme]
        self.fields = problem.fields
        self._others = [
            {name: backend.zeros(grid.shape) for name in problem.names}
            for _ in range(2 if len(self._stages) == 3 else 1)
        ]
        self._old: dict[str, Any] | None = None
        self._point = problem.stage()
        self._slopes = [
            (number, name, [backend.zeros(grid.shape) for _ in range(each)])
            for each in [transport.SLOPES.get(case.model.convection, 0)]
            for name in problem.names
            for number in reversed(range(grid.dimension if each else 0))
        ]

    @property
    def scalars(self) -> dict[str, float]:
        return {"step before": self._before}

    def recall(self, steps: int, scalars: Mapping[str, float], fields: Mapping[str, Any]) -> None:
        self._before = scalars.get("step before", self._before)

    def _advance(
        self, part: Substep, change: Accumulator | None, controller: Controller | None
    ) -> None:
        problem, backend, start = self.problem, self.problem.backend, self.fields
        interior = problem.grid.interior
        problem.stamp(start, part.start, self._before)
        self._before = part.length
        before = start
        if change is not None and len(self._stages) > 1:
            before = self._keep(start)
        now = start
        for number, (stage, at) in enumerate(zip(self._stages, self._times, strict=True)):
            time = part.start + at * part.length
            problem.write_walls(now, time)
            slopes = self._find_slopes(now)
            last = number == len(self._stages) - 1
            new = start if last and number > 0 else self._others[number]
            given = (*start.values(), *now.values(), *problem.sources(time), *problem.velocities)
            numbers = (*stage, part.length, *problem.numbers)
            out = tuple(new.values())
            backend.sweep(
                self._point, out, interior, *given, *slopes, *problem.wall_lines, *numbers
            )
            now = new
        if len(self._stages) == 1:
            self.fields, self._others = now, [start]
        if change is not None:
            point = transport.changes(len(problem.names), change.kind)
            backend.sweep(point, change, interior, *before.values(), *now.values())

    def _find_slopes(self, fields: dict[str, Any]) -> list[Any]:
        """In the order of `transport.stage`."""
        problem, convection = self.problem, self.problem.case.model.convection
        sweep, grid = problem.backend.sweep, problem.grid
        for axis, name, arrays in self._slopes:
            point = transport.slopes(convection, axis)
            out = tuple(arrays) if len(arrays) > 1 else arrays[0]
            sweep(point, out, grid.interior, fields[name])
            for array in arrays:
                problem.halo.exchange(array)
            for wall in problem.walls[name]:
                if wall.number == axis:
                    # A face beside a ghost is reached from the ghost's side only.
                    slope, sign = arrays[-1 if wall.side else 0], -1.0 if wall.side else 1.0
                    distances = [0] * grid.dimension
                    distances[axis] = int(sign)
                    region = grid.ghost(axis, wall.side)
                    point = transport.slope_at_wall
                    sweep(point, slope, region, fields[name], sign, *distances)
        return [array for *_, arrays in self._slopes for array in arrays]

    def _keep(self, fields: dict[str, Any]) -> dict[str, Any]:
        """A copy of the fields, which a step overwrites."""
        problem = self.problem
        if self._old is None:
            self._old = {name: problem.backend.zeros(problem.grid.shape) for name in fields}
        for name, array in fields.items():
            problem.backend.sweep(copy, self._old[name], problem.grid.everything, array)
        return self._old

    def finish(self) -> None:
        problem = self.problem
        problem.write_walls(self.fields, self.time)
        if self.fields is not problem.fields:
            for name, array in self.fields.items():
                target = problem.fields[name]
                problem.backend.sweep(copy, target, problem.grid.everything, array)
            self._others, self.fields = [self.fields], problem.fields
