"""The finite volumes of a heat case: coefficients, walls and sources, as arrays on the host.

They are made where expressions are, see `evaluate`.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from heatsolve.case.case import Case
from heatsolve.errors import InputError
from heatsolve.models.base import Wall, walls_of
from heatsolve.models.heat import equations as heat
from heatsolve.models.heat.walls import WallFaces, ratio_line
from heatsolve.stencil.evaluate import demand, evaluate
from heatsolve.stencil.grid import Grid, Outline


class Volumes:
    """What the volumes of a block hold, and what flows through their faces.

    `whole` is the grid of the case, `grid` the block of it that this process owns; `dtype` is that
    of the arrays that the coefficients go to. Raises InputError for coefficients that are not
    finite, not positive, or beyond that precision.
    """

    def __init__(self, case: Case, whole: Grid, grid: Grid, dtype: np.dtype):
        self.case, self.whole, self.grid, self.dtype = case, whole, grid, dtype
        self.nothing = np.zeros((1,) * grid.dimension)
        self.walls = tuple(walls_of(case, grid))
        self.ratios = [grid.along(n, ratio_line(axis)) for n, axis in enumerate(grid.axes)]
        """Along each axis, the ratio of a full cell to the points' volumes."""
        self.conductivity = self.evaluate("model.conductivity", positive=True)
        self.faces = [self._conductances(number) for number in range(grid.dimension)]
        """Along each axis, the conductances of the faces below each point (W/(m3 K))."""

    def capacity(self) -> np.ndarray:
        """rho c; 0 where nothing depends on time."""
        if self.case.model.steady:
            return self.nothing
        density = self.evaluate("model.density", positive=True)
        return density * self.evaluate("model.specific_heat", positive=True)

    @property
    def heated_through_walls(self) -> bool:
        """Whether heat is given to pass a wall, also one beside which another process's block lies:
        on all processes the source has one shape, for what they do together depends on it."""
        walls = [wall.temperature for _, wall in self.case.boundary if wall is not None]
        drives = [condition.kind.drive for condition in walls if condition is not None]
        return any(d.names or d() != 0.0 for d in drives if d is not None)

    def source(self, time: float) -> np.ndarray:
        """q, point sources and fluxes through walls of given gradient (W/m3)."""
        density = self.evaluate("source.temperature", time=time)
        fluxes = [
            (wall, self.flux(wall, time))
            for wall in self.walls
            if wall.condition.kind.drive is not None
        ]
        if not self.heated_through_walls and not self.case.source.points:
            return density
        if isinstance(self.grid, Outline) and self.grid.is_large:
            return np.broadcast_to(density, self.grid.shape)
        total = np.array(np.broadcast_to(density, self.grid.shape))
        for point in self.case.source.points:
            for place in self.places_of(point):
                total[place] += point.value
        for wall, flux in fluxes:
            layer = [slice(1, -1)] * self.grid.dimension
            layer[wall.number] = (slice(1, 2), slice(-2, -1))[wall.side]
            shape = [n - 2 for n in self.grid.shape]
            shape[wall.number] = 1
            trimmed = flux[tuple(slice(None) if n == 1 else slice(1, -1) for n in flux.shape)]
            total[tuple(layer)] += np.broadcast_to(trimmed, shape)
        return total

    def ghost_values(self, wall: Wall, time: float) -> np.ndarray | None:
        """The values that a wall's ghosts hold at a time; None for a wall without any."""
        ghost = wall.condition.kind.ghost
        if ghost is None:
            return None
        return evaluate(self.grid, f"boundary.{wall.name}.temperature", ghost, time, wall=wall)

    def wall_conductance(self, wall: Wall) -> np.ndarray:
        """Conductance of the faces at a wall (W/(m3 K)); 0 where a gradient gives the flux."""
        return wall.condition.kind.conductance(self._faces_at(wall))

    def flux(self, wall: Wall, time: float) -> np.ndarray:
        """The flux that a wall gives besides, for a unit of the volume beside it (W/m3)."""
        return wall.condition.kind.flux(self._faces_at(wall), time)

    def _faces_at(self, wall: Wall) -> WallFaces:
        return WallFaces(wall, self.grid, self.case.model.conductivity, self.conductivity)

    def evaluate(self, path: str, time: float = 0.0, positive: bool = False) -> np.ndarray:
        """The expression of a key of the case at all points; finite, or InputError."""
        section, key = path.split(".")
        expression = getattr(getattr(self.case, section), key)
        return evaluate(self.grid, path, expression, time, positive)

    def _conductances(self, number: int) -> np.ndarray:
        """Conductances of the faces below each point along one axis (W/(m3 K))."""
        axis = self.grid.axes[number]
        shape = list(self.conductivity.shape)
        shape[number] = axis.unknowns + 2
        k = np.moveaxis(np.broadcast_to(self.conductivity, shape), number, 0)
        inside = heat.harmonic_mean(k[:-1], k[1:]) / (axis.spacing * axis.spacing)
        walls = {
            w.side: np.moveaxis(self.wall_conductance(w), number, 0)
            for w in self.walls
            if w.number == number
        }
        across = np.broadcast_shapes(k.shape[1:], *[c.shape[1:] for c in walls.values()])
        faces = np.zeros((axis.unknowns + 2, *across))
        faces[1:] = inside
        for side, conductance in walls.items():
            faces[(1, -1)[side]] = conductance[0]
        faces = np.ascontiguousarray(np.moveaxis(faces, 0, number))
        self._demand_normal(faces, axis.name)
        return faces

    def _demand_normal(self, faces: np.ndarray, axis: str) -> None:
        """Refuse conductances that the precision cannot hold; 0 is that of an insulated wall."""
        limits = np.finfo(self.dtype)
        normal = (faces == 0.0) | ((faces >= limits.tiny) & (faces <= limits.max))
        demand(self.grid, normal, faces, f"conductance along {axis}", f"fit {limits.dtype}")

    def places_of(self, point: Any) -> Iterator[tuple[int, ...]]:
        """The array indices of the unknown that carries a point source.

        None if it is beyond this block; two if a margin holds its periodic image, too.
        """
        places = []
        for number, axis in enumerate(reversed(self.whole.axes)):
            if point.index is not None:
                index = axis.number(int(point.index[number]))
            else:
                from_lower = (point.position[number] - axis.lower) / axis.spacing
                nearest = round(from_lower) if axis.on_nodes else int(from_lower)
                nearest %= axis.points if axis.periodic else axis.points + 1
                index = min(max(axis.number(nearest), 1), axis.unknowns)
            if not 1 <= index <= axis.unknowns:
                raise InputError(
                    f"source.point: {point.index} lies on a wall of given temperature, "
                    "where a source has no effect"
                )
            here = self.grid.axes[-1 - number]
            images = (-1, 0, 1) if axis.periodic else (0,)
            indices = [index + image * axis.all_unknowns - here.start for image in images]
            places.append([i for i in indices if 1 <= i <= here.unknowns])
        return itertools.product(*reversed(places))
