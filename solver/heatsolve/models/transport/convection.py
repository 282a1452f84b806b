"""A transport case put on its grid: the arrays that the point functions of `transport` take."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from heatsolve.backends import Backend
from heatsolve.case.case import Case
from heatsolve.models.base import Carrier, Stepper
from heatsolve.models.multifield import MultiFieldModel
from heatsolve.models.transport import equations as transport
from heatsolve.models.transport.runge_kutta import RungeKutta
from heatsolve.parallel.ranks import Ranks
from heatsolve.stencil.evaluate import evaluate
from heatsolve.stencil.grid import Grid, SampledAxis
from heatsolve.stencil.language import ZERO, Point, copy


class Convection(MultiFieldModel):
    """The quantities of a transport case on a backend, and what carries them.

    `own_velocity` tells whether they are their own velocity.
    """

    def __init__(
        self, case: Case, backend: Backend, grid: Grid | None = None, ranks: Ranks | None = None
    ):
        super().__init__(case, backend, grid, ranks)
        self.own_velocity = case.model.velocity == "self"
        self.moved = dict.fromkeys(self.names, case.model.diffusivity)

        self.in_flux_form = case.model.form == "flux"

    def stepper(self, time: float, step: float) -> Stepper:
        return RungeKutta(self, time, step)

    @property
    def carrier(self) -> Carrier | None:
        return self if self.own_velocity else None

    def demand_scheme(self) -> None:
        self.largest_step()  # refuses backward differences where a velocity is negative

    @property
    def numbers(self) -> tuple[float, ...]:
        """Those that `transport.stage` takes after the step."""
        nu = self.case.model.diffusivity
        if not self.in_flux_form:
            return (nu, *self.spacings)
        return (*[1.0 / h for h in self.spacings], *[nu / (h * h) for h in self.spacings])

    def stage(self) -> Point:
        """The point function of a Runge-Kutta stage."""
        model, count = self.case.model, len(self.names)
        given = self.grid.dimension, count, model.convection, model.form, self.own_velocity
        return transport.stage(*given, model.diffusivity > 0.0, self.case.grid.kind == "nodes")

    @cached_property
    def velocities(self) -> tuple[Any, ...]:
        """Along x, y, z, in flux form at the faces; none where the quantities are their own."""
        if self.own_velocity:
            return ()
        given = self.case.model.velocity
        if given is None:
            return tuple(self.backend.zeros((1,) * self.grid.dimension) for _ in self.grid.axes)
        found = []
        for n, expression in enumerate(given):
            grid = self.grid.faces(self.grid.dimension - 1 - n) if self.in_flux_form else self.grid
            found.append(self.backend.to_device(evaluate(grid, f"model.velocity.{n}", expression)))
        return tuple(found)

    @cached_property
    def wall_lines(self) -> tuple[Any, ...]:
        """For x, y, z the lines of the low and of the high wall that `transport.stage` takes."""
        on_nodes, found = self.case.grid.kind == "nodes", []
        second_order = self.case.model.convection in transport.SECOND_ORDER
        if not self.in_flux_form and not (on_nodes and second_order):
            return (ZERO,) * (2 * self.grid.dimension)
        for n, number in enumerate(reversed(range(self.grid.dimension))):
            # On nodes all quantities have values at a wall, or none; along its own axis a velocity.
            walls = self.walls[self.names[n if self.own_velocity else 0]]
            marked = {
                wall.side
                for wall in walls
                if wall.number == number and on_nodes == (wall.condition.gradient is not None)
            }
            for side in (0, 1):
                line = self.grid.beside(number, side) if side in marked else None
                found.append(ZERO if line is None else self.backend.to_device(line))
        return tuple(found)

    def largest_step(self) -> float:
        """The largest stable step for the largest speeds at t = 0 (asks all processes).

        Raises InputError where no step is stable for the scheme.
        """
        if self.own_velocity:
            return self.stable_step(self.largest_magnitudes(self.names))
        magnitudes = []
        for n, v in enumerate(self.velocities):
            axis = self.grid.dimension - 1 - n
            below, speed = transport.negative_part, copy
            # The faces of a sample of points are not those of one cell.
            if self.in_flux_form and not isinstance(self.grid.axes[axis], SampledAxis):
                below, speed = transport.negative_part_at_faces(axis), transport.speed_out(axis)
            given = self.grid.interior, v
            reduce = self.backend.reduce
            magnitudes.append((reduce("max", below, *given), reduce("max", speed, *given)))
        return self.stable_step(magnitudes)

    # ---- steps that follow velocities which carry themselves ---------------------------------

    def speeds(self, fields: Mapping[str, Any], *times: float) -> list[float]:
        """The largest along each axis, slowest first, those of walls at these times (asks all)."""
        return [
            max(
                self.backend.reduce("max", copy, self.grid.interior, fields[name]),
                self.largest_at_walls(name, *times),
            )
            for name in reversed(self.names)
        ]

    def accelerations(self, fields: Mapping[str, Any], *times: float) -> list[float]:
        """The largest that sources give along each axis, slowest first (m/s2; asks all)."""
        found = [0.0] * self.grid.dimension
        for time in times if self.sources_vary else times[:1]:
            sources = [self.backend.reduce("max", copy, self.grid.interior, source)
                       for source in reversed(self.sources(time))]  # fmt: skip
            found = [max(pair) for pair in zip(found, sources, strict=True)]
        return found

    def stable_step_at(self, speeds: Sequence[float]) -> float:
        """The largest stable step (s) for these speeds along the axes, slowest first."""
        return self.stable_step([(0.0, speed) for speed in reversed(speeds)])
