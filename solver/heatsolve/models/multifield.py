"""A case of quantities that share a grid, each with a value or a gradient at every wall."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from heatsolve.backends import Backend
from heatsolve.case.case import Case
from heatsolve.errors import InputError
from heatsolve.models import stability
from heatsolve.models.base import Model
from heatsolve.models.transport import equations as transport
from heatsolve.models.walls import Wall, walls_of
from heatsolve.parallel.ranks import Ranks
from heatsolve.stencil.evaluate import evaluate
from heatsolve.stencil.grid import Grid
from heatsolve.stencil.language import copy


class MultiFieldModel(Model):
    """The quantities of a case on a backend, and the ghosts that its walls ask for.

    `names` are the quantities.
    """

    def __init__(
        self, case: Case, backend: Backend, grid: Grid | None = None, ranks: Ranks | None = None
    ):
        super().__init__(case, backend, grid, ranks)
        self.names = case.field_names
        self.walls = {name: tuple(walls_of(case, self.grid, name)) for name in self.names}
        self._at_walls: dict[tuple[str, Wall], Any] = {}
        self._sources: list[Any] | None = None
        self._largest_at_walls: dict[str, float] = {}

    @property
    def fields(self) -> dict[str, Any]:
        return self._fields

    @cached_property
    def _fields(self) -> dict[str, Any]:
        fields = {}
        for name in self.names:
            fields[name] = self.backend.zeros(self.grid.shape)
            expression = getattr(self.case.initial, name)
            values = evaluate(self.places(name), f"initial.{name}", expression)
            self.place(fields[name], self.grid.interior, values)
        self.stamp(fields, None)
        self.write_walls(fields, 0.0)
        return fields

    @property
    def spacings(self) -> tuple[float, ...]:
        """Along x, y, z."""
        return tuple(axis.spacing for axis in reversed(self.grid.axes))

    @property
    def steps_along_axes(self) -> tuple[float, ...]:
        """The spacings, slowest axis first."""
        return tuple(axis.spacing for axis in self.grid.axes)

    def courant_rate(self, speeds: Sequence[float]) -> float:
        """The sum over the axes of speed / h (1/s); of accelerations, in 1/s2."""
        return sum(u / h for u, h in zip(speeds, self.steps_along_axes, strict=True))

    # ---- walls and sources -------------------------------------------------------------------

    @cached_property
    def walls_vary(self) -> bool:
        """Whether any wall's condition depends on time, also a wall of another process's block."""
        walls = [wall for _, wall in self.case.boundary if wall is not None]
        conditions = [getattr(wall, name) for wall in walls for name in self.names]
        given = [c.gradient if c.value is None else c.value for c in conditions if c is not None]
        return any("t" in expression.names for expression in given)

    @cached_property
    def sources_vary(self) -> bool:
        """Whether a source depends on time."""
        return any("t" in getattr(self.case.source, name).names for name in self.names)

    def drive(self, time: float) -> tuple[float, float]:
        given, rates = [np.zeros(1)], [np.zeros(1)]
        for name in self.names:
            if name == "pressure":  # of which only differences count
                continue
            places, source = self.places(name), getattr(self.case.source, name)
            rates.append(evaluate(places, f"source.{name}", source, time))
            for wall in self.walls[name]:
                slope = wall.condition.gradient is not None
                # As the case gives it: what a flow balances is asked by all processes together.
                values = MultiFieldModel.wall_value(self, name, wall, time)
                given.append(values * (self.grid.axes[wall.number].spacing if slope else 1.0))
        mine = [max(float(np.abs(values).max()) for values in each) for each in (given, rates)]
        at_walls, of_sources = zip(*self.ranks.gather(mine), strict=True)
        return max(at_walls), max(of_sources)

    def set_walls(self, time: float) -> None:
        self.write_walls(self.fields, time)

    def write_walls(self, fields: dict[str, Any], time: float) -> None:
        """Fill the ghosts of all fields: from neighbours, and from what walls say at a time."""
        for name, array in fields.items():
            self.halo.exchange(array)
            # The walls of slower axes own the corners: they come later.
            for wall in reversed(self.walls[name]):
                self.write_wall(array, name, wall, time)

    def write_wall(self, array: Any, name: str, wall: Wall, time: float) -> None:
        axis = self.grid.axes[wall.number]
        region = self.grid.ghost(wall.number, wall.side)
        values = self._wall_values(name, wall, time)
        sweep = self.backend.sweep
        gradient = wall.condition.gradient is not None
        if axis.on_nodes and not gradient:
            sweep(copy, array, region, values)
            return
        distances = [0] * self.grid.dimension
        distances[wall.number] = (-1 if wall.side else 1) * self._reach(wall)
        point = transport.with_rise if gradient else transport.about_value
        sweep(point, array, region, array, values, *distances)

    def _reach(self, wall: Wall) -> int:
        """How far from a ghost lies its mirror image: two points, about a node on the wall.

        A ghost beyond a face, or one that is the wall's own node, has the point beside it.
        """
        axis = self.grid.axes[wall.number]
        return 2 if axis.on_nodes and not axis.fixed[wall.side] else 1

    def _wall_values(self, name: str, wall: Wall, time: float) -> Any:
        """What stands at a wall, or for a gradient the rise from inside to its ghost."""
        condition = wall.condition
        kind = "value" if condition.value is not None else "gradient"
        expression = getattr(condition, kind)
        if (name, wall) not in self._at_walls or "t" in expression.names:
            values = self.wall_value(name, wall, time)
            if kind == "gradient":
                values = values * (self._reach(wall) * self.grid.axes[wall.number].spacing)
            self._at_walls[name, wall] = self.backend.to_device(values)
        return self._at_walls[name, wall]

    def wall_value(self, name: str, wall: Wall, time: float) -> np.ndarray:
        """The value, or the gradient, that a wall gives a quantity at a time."""
        condition = wall.condition
        kind = "value" if condition.value is not None else "gradient"
        path, expression = f"boundary.{wall.name}.{name}.{kind}", getattr(condition, kind)
        return evaluate(self.places(name), path, expression, time, wall=wall)

    def sources(self, time: float) -> list[Any]:
        """f of each quantity at a time."""
        expressions = [getattr(self.case.source, name) for name in self.names]
        if self._sources is None or self.sources_vary:
            self._sources = [
                self.backend.to_device(
                    evaluate(self.places(name), f"source.{name}", expression, time)
                )
                for name, expression in zip(self.names, expressions, strict=True)
            ]
        return self._sources

    def largest_magnitudes(self, names: Sequence[str]) -> list[tuple[float, float]]:
        """How far each quantity is below 0 and above, walls included, at t = 0 (asks all)."""
        found = []
        for name in names:
            low, high = self.given_at_walls(name)
            given = self.grid.interior, self.fields[name]
            below = self.backend.reduce("max", transport.negative_part, *given)
            largest = self.backend.reduce("max", copy, *given)
            found.append((max(below, -low), max(largest, -low, high)))
        return found

    def stable_step(self, magnitudes: Sequence[tuple[float, float]]) -> float:
        """The largest stable step for velocities so far below 0, and so large, along x, y, z.

        Raises InputError where no step is stable for the scheme.
        """
        model, time = self.case.model, self.case.time
        assert time is not None
        speeds = [speed for _, speed in magnitudes]
        nu = model.viscosity if model.kind == "flow" else model.diffusivity
        limit = stability.largest_step(model.convection, time.scheme, speeds, nu, self.spacings)
        if time.allow_unstable:
            return limit
        if model.convection == "backward" and any(below for below, _ in magnitudes):
            raise InputError(
                'model.convection: "backward" is unstable where a velocity is negative '
                '(use "upwind", or set time.allow_unstable = true)'
            )
        if limit == 0.0:
            raise InputError(
                f'time.scheme: no step is stable with scheme = "{time.scheme}" and '
                f'convection = "{model.convection}" here (try "rk3", or "upwind")'
            )
        return limit

    def given_at_walls(
        self, name: str, time: float = 0.0, besides: float = 0.0
    ) -> tuple[float, float]:
        """The lowest and the highest value that walls give a field, or `besides` (asks all)."""
        given = [besides]
        for wall in self.walls[name]:
            if wall.condition.value is not None:
                path = f"boundary.{wall.name}.{name}.value"
                values = evaluate(self.places(name), path, wall.condition.value, time, wall=wall)
                given += [float(values.min()), float(values.max())]
        found = self.ranks.gather((min(given), max(given)))
        return min(low for low, _ in found), max(high for _, high in found)

    def largest_at_walls(self, name: str, *times: float) -> float:
        """The largest magnitude that walls give a field at these times (asks all processes)."""
        if name not in self._largest_at_walls or self.walls_vary:
            given = [value for time in times for value in self.given_at_walls(name, time)]
            self._largest_at_walls[name] = max(map(abs, given))
        return self._largest_at_walls[name]
