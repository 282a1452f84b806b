"""The finite volumes of a heat case: coefficients, walls and sources, as arrays on the host.

They are made where expressions are, see `evaluate`.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from heatsolve.case.load import Case
from heatsolve.errors import InputError
from heatsolve.models import boundary
from heatsolve.models.evaluate import Wall, demand, evaluate, walls_of
from heatsolve.models.heat import equations as heat
from heatsolve.stencil.grid import Axis, Grid, Outline


def ratio_line(axis: Axis) -> np.ndarray:
    """The ratio of a full cell to the points' volumes along an axis; one number if all are full."""
    if not any(axis.half_volumes):
        return np.ones(1)
    ratio = np.ones(axis.unknowns + 2)
    for half, index in zip(axis.half_volumes, (1, -2), strict=True):
        if half:
            ratio[index] = 2.0
    return ratio


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
        given = [each.gradient for each in walls if each is not None and each.gradient is not None]
        return any(gradient.names or gradient() != 0.0 for gradient in given)

    def source(self, time: float) -> np.ndarray:
        """q, point sources and fluxes through walls of given gradient (W/m3)."""
        density = self.evaluate("source.temperature", time=time)
        fluxes = [
            (wall, self.flux(wall, time))
            for wall in self.walls
            if wall.condition.gradient is not None
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
        """What a wall's ghosts hold at a time; None for a gradient."""
        if wall.ghost is None:
            return None
        path = f"boundary.{wall.name}.temperature"
        return self.evaluate(path, time, wall=wall, expression=wall.ghost)

    def wall_conductance(self, wall: Wall) -> np.ndarray:
        """Conductance of the faces at a wall (W/(m3 K)); 0 where a gradient gives the flux."""
        condition, h = wall.condition, self.grid.axes[wall.number].spacing
        on_nodes = self.grid.axes[wall.number].on_nodes
        k = wall.beside(self.conductivity)
        if condition.value is not None:
            mean = heat.harmonic_mean(wall.beside(self.conductivity, ghosts=True), k)
            return boundary.value_on_nodes(mean, h) if on_nodes else boundary.value_on_cells(k, h)
        if condition.robin is None:
            return self.nothing
        path = f"boundary.{wall.name}.temperature.robin.h"
        transfer = self.evaluate(path, wall=wall, expression=condition.robin.h)
        demand(self.grid, transfer >= 0.0, transfer, path, "not be negative")
        if on_nodes:
            return boundary.robin_on_nodes(h, transfer)
        return boundary.robin_on_cells(k, h, transfer)

    def flux(self, wall: Wall, time: float) -> np.ndarray:
        """The flux through a wall of given gradient, for a unit of the volume beside it (W/m3)."""
        gradient = self.evaluate(
            f"boundary.{wall.name}.temperature.gradient", time, wall=wall,
            expression=wall.condition.gradient,
        )  # fmt: skip
        # k at the wall itself: half a cell away it would cost an order.
        conductivity = self.case.model.conductivity
        k = self.evaluate("model.conductivity", positive=True, wall=wall, expression=conductivity)
        ratio = wall.beside(self.ratios[wall.number])
        return boundary.gradient_flux(k, self.grid.axes[wall.number].spacing, ratio, gradient)

    def evaluate(
        self,
        path: str,
        time: float = 0.0,
        positive: bool = False,
        wall: Wall | None = None,
        expression: Any = None,
    ) -> np.ndarray:
        """An expression of the case at all points, or along a wall; finite, or InputError."""
        if expression is None:
            section, key = path.split(".")
            expression = getattr(getattr(self.case, section), key)
        return evaluate(self.grid, path, expression, time, positive, wall)

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
