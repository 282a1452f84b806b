"""A transport case put on its grid: the arrays that the point functions of `transport` take."""

from functools import cached_property
from typing import Any

from heatsolve import stability, transport
from heatsolve.backends import Backend
from heatsolve.case import Case
from heatsolve.errors import InputError
from heatsolve.evaluate import Wall, evaluate, walls_of
from heatsolve.grid import Grid
from heatsolve.points import copy
from heatsolve.problem import Problem
from heatsolve.ranks import Ranks


class Convection(Problem):
    """The quantities of a transport case on a backend, and what carries them.

    `names` are the quantities; `own` tells whether they are their own velocity.
    """

    def __init__(
        self, case: Case, backend: Backend, grid: Grid | None = None, ranks: Ranks | None = None
    ):
        super().__init__(case, backend, grid, ranks)
        self.names = case.field_names
        self.own_velocity = case.model.velocity == "self"
        self.walls = {name: tuple(walls_of(case, self.grid, name)) for name in self.names}
        self._at_walls: dict[tuple[str, Wall], Any] = {}
        self._sources: list[Any] | None = None

    @property
    def fields(self) -> dict[str, Any]:
        return self._fields

    @cached_property
    def _fields(self) -> dict[str, Any]:
        fields = {}
        for name in self.names:
            fields[name] = self.backend.zeros(self.grid.shape)
            expression = getattr(self.case.initial, name)
            values = evaluate(self.grid, f"initial.{name}", expression)
            self.place(fields[name], self.grid.interior, values)
        self.stamp(fields, None)
        self.write_walls(fields, 0.0)
        return fields

    @cached_property
    def velocities(self) -> tuple[Any, ...]:
        """Along x, y, z; none where the quantities are their own."""
        if self.own_velocity:
            return ()
        given = self.case.model.velocity
        if given is None:
            return tuple(self.backend.zeros((1,) * self.grid.dimension) for _ in self.grid.axes)
        return tuple(
            self.backend.to_device(evaluate(self.grid, f"model.velocity.{n}", expression))
            for n, expression in enumerate(given)
        )

    @property
    def spacings(self) -> tuple[float, ...]:
        """Along x, y, z."""
        return tuple(axis.spacing for axis in reversed(self.grid.axes))

    # ---- walls and sources -------------------------------------------------------------------

    def set_walls(self, time: float) -> None:
        self.write_walls(self.fields, time)

    def write_walls(self, fields: dict[str, Any], time: float) -> None:
        """Fill the ghosts of all fields: from neighbours, and from what walls say at a time."""
        for name, array in fields.items():
            self.halo.exchange(array)
            for wall in self.walls[name]:
                self._write_wall(array, name, wall, time)

    def _write_wall(self, array: Any, name: str, wall: Wall, time: float) -> None:
        axis = self.grid.axes[wall.number]
        region = self.grid.ghost(wall.number, wall.side)
        values = self._wall_values(name, wall, time)
        sweep = self.backend.sweep
        gradient = wall.condition.gradient is not None
        if axis.on_nodes and not gradient:
            sweep(copy, array, region, values)
            return
        # The ghost's mirror image: the point beside it, or two from it about a node on the wall.
        distances = [0] * self.grid.dimension
        distances[wall.number] = (-1 if wall.side else 1) * (2 if axis.on_nodes else 1)
        point = transport.with_rise if gradient else transport.about_value
        sweep(point, array, region, array, values, *distances)

    def _wall_values(self, name: str, wall: Wall, time: float) -> Any:
        """What stands at a wall, or for a gradient the rise from inside to its ghost."""
        condition = wall.condition
        kind = "value" if condition.value is not None else "gradient"
        expression = getattr(condition, kind)
        if (name, wall) not in self._at_walls or "t" in expression.names:
            path = f"boundary.{wall.name}.{name}.{kind}"
            values = evaluate(self.grid, path, expression, time, wall=wall)
            if kind == "gradient":
                axis = self.grid.axes[wall.number]
                values = values * ((2.0 if axis.on_nodes else 1.0) * axis.spacing)
            self._at_walls[name, wall] = self.backend.to_device(values)
        return self._at_walls[name, wall]

    def sources(self, time: float) -> list[Any]:
        """f of each quantity at a time."""
        expressions = [getattr(self.case.source, name) for name in self.names]
        if self._sources is None or any("t" in e.names for e in expressions):
            self._sources = [
                self.backend.to_device(evaluate(self.grid, f"source.{name}", expression, time))
                for name, expression in zip(self.names, expressions, strict=True)
            ]
        return self._sources

    # ---- stability ---------------------------------------------------------------------------

    def largest_step(self) -> float:
        """The largest stable step for the largest speeds at t = 0 (asks all processes).

        Raises InputError where no step is stable for the scheme.
        """
        case, model = self.case, self.case.model
        assert case.time is not None
        arrays = self.fields.values() if self.own_velocity else self.velocities
        interior, reduce = self.grid.interior, self.backend.reduce
        speeds = [reduce("max", copy, interior, array) for array in arrays]
        lowest = [reduce("max", transport.against, interior, array) for array in arrays]
        if self.own_velocity:
            at_walls = [self._given_at_walls(name) for name in self.names]
            pairs = list(zip(speeds, lowest, at_walls, strict=True))
            speeds = [max(speed, -low, high) for speed, _, (low, high) in pairs]
            lowest = [max(against, -low) for _, against, (low, _) in pairs]
        limit = stability.largest_step(
            model.convection, case.time.scheme, speeds, model.diffusivity, self.spacings
        )
        if case.time.allow_unstable:
            return limit
        if model.convection == "backward" and any(lowest):
            raise InputError(
                'model.convection: "backward" is unstable where a velocity is negative '
                '(use "upwind", or set time.allow_unstable = true)'
            )
        if limit == 0.0:
            raise InputError(
                f'time.scheme: no step is stable with scheme = "{case.time.scheme}" and '
                f'convection = "{model.convection}" here (try "rk3", or "upwind")'
            )
        return limit

    def _given_at_walls(self, name: str) -> tuple[float, float]:
        """The lowest and the highest value that walls give a field at t = 0, or 0 (asks all)."""
        given = [0.0]
        for wall in self.walls[name]:
            if wall.condition.value is not None:
                path = f"boundary.{wall.name}.{name}.value"
                values = evaluate(self.grid, path, wall.condition.value, wall=wall)
                given += [float(values.min()), float(values.max())]
        found = self.ranks.gather((min(given), max(given)))
        return min(low for low, _ in found), max(high for _, high in found)
