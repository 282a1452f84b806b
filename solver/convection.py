"""A transport case put on its grid: the arrays that the point functions of `transport` take."""

from functools import cached_property
from typing import Any

import numpy as np

from heatsolve import stability, transport
from heatsolve.backends import Backend
from heatsolve.case import Case
from heatsolve.errors import InputError
from heatsolve.evaluate import Wall, evaluate, walls_of
from heatsolve.grid import Grid, Region
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

    def stamp(self, fields: dict[str, Any], time: float | None, length: float = 0.0) -> None:
        """Set the boxes of the start (None), or those that are set again at a time.

        `length`: of the step that begins then; a time within half of it is meant.
        """
        for number, box in enumerate(self.case.initial.boxes):
            if time is not None and not any(abs(t - time) < 0.5 * length for t in box.again):
                continue
            values = evaluate(self.grid, f"initial.box.{number}.value", box.value)
            region = self._region_of(box)
            if all(low < high for low, high in region):
                window = tuple(
                    slice(*pair) if extent > 1 else slice(None)
                    for pair, extent in zip(region, values.shape, strict=True)
                )
                self.place(fields[box.field], region, np.ascontiguousarray(values[window]))

    def _region_of(self, box: Any) -> Region:
        """The unknowns of this process in a box."""
        region = []
        for axis, low, high in zip(self.grid.axes, *map(reversed, box.corners), strict=True):
            if box.by_index:
                lines = np.arange(axis.unknowns + 2) - axis.number(0)
            else:
                lines = axis.coordinates
            first, stop = axis.own
            inside = np.flatnonzero((lines[first:stop] >= low) & (lines[first:stop] <= high))
            region.append((first + inside[0], first + inside[-1] + 1) if inside.size else (0, 0))
        return tuple(region)

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
        reduce, everything = self.backend.reduce, self.grid.everything
        if self.own_velocity:
            arrays = list(self.fields.values())
            speeds = [reduce("max", copy, everything, array) for array in arrays]
            lowest = [reduce("max", transport.against, everything, array) for array in arrays]
        else:
            arrays = list(self.velocities)
            region = self.grid.interior
            speeds = [reduce("max", copy, region, array) for array in arrays]
            lowest = [reduce("max", transport.against, region, array) for array in arrays]
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
