"""A heat case put on its grid: the arrays that the point functions of `heat` take.

Expressions are evaluated here, on the host and with NumPy, so that their bits do not depend on
the backend. A quantity that does not vary along an axis stays an array of extent 1 along it:
constant coefficients need no memory.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from heatsolve import boundary, heat
from heatsolve.backends import Backend
from heatsolve.blocks import block_of_rank, process_grid
from heatsolve.case import Case
from heatsolve.errors import InputError
from heatsolve.grid import WALLS, Axis, Grid, Region, make_grid
from heatsolve.halo import Halo
from heatsolve.linear import System
from heatsolve.linear.spectrum import lowest_eigenvalue
from heatsolve.points import NOTHING, copy, fill
from heatsolve.ranks import Ranks


def grid_of(case: Case) -> Grid:
    """The grid of a case: on nodes, a wall of given value is no unknown."""
    walls = {name: getattr(case.boundary, name) for pair in WALLS.values() for name in pair}
    fixed = {
        axis: tuple(
            wall is not None and wall.temperature.value is not None
            for wall in (walls[low], walls[high])
        )
        for axis, (low, high) in WALLS.items()
    }
    grid = case.grid
    return make_grid(
        grid.counts, grid.lower, grid.upper, grid.kind == "nodes", grid.periodic, fixed
    )


def dims_of(case: Case, grid: Grid, size: int) -> tuple[int, ...]:
    """So many processes along each axis, as the case wants them."""
    wanted = None if case.parallel.ranks == "auto" else case.parallel.ranks
    return process_grid(grid, size, wanted)


def ratio_line(axis: Axis) -> np.ndarray:
    """The ratio of a full cell to the points' volumes along an axis; one number if all are full."""
    if not any(axis.half_volumes):
        return np.ones(1)
    ratio = np.ones(axis.unknowns + 2)
    for half, index in zip(axis.half_volumes, (1, -2), strict=True):
        if half:
            ratio[index] = 2.0
    return ratio


@dataclass(frozen=True)
class Wall:
    """One wall: its place, its name in the case, and its condition there."""

    number: int
    side: int
    name: str
    condition: Any

    def beside(self, array: np.ndarray, ghosts: bool = False) -> np.ndarray:
        """The layer of an array beside the wall (or of its ghosts), of extent 1 across it."""
        if array.shape[self.number] == 1:
            return array
        place = (0, -1)[self.side] if ghosts else (1, -2)[self.side]
        return np.take(array, [place], axis=self.number)


class Conduction:
    """The arrays of a heat case on a backend, and the linear systems made of them.

    `whole` is the grid of the case, `grid` the block of it that this process owns.
    """

    def __init__(
        self, case: Case, backend: Backend, grid: Grid | None = None, ranks: Ranks | None = None
    ):
        self.case, self.backend, self.ranks = case, backend, ranks or Ranks()
        self.whole = whole = grid or grid_of(case)
        self.dims = dims = dims_of(case, whole, self.ranks.size)
        depth = case.parallel.halo if self.ranks.size > 1 else 1
        self.grid = block_of_rank(whole, dims, self.ranks.rank, depth)
        self.halo = Halo(self.grid, backend, self.ranks, dims, depth)
        if self.ranks.size > 1:
            backend.join(self.ranks.combine)
        self.walls = tuple(self._find_walls())
        self.ratios = [self._ratio(number) for number in range(self.grid.dimension)]
        self._conductivity = self._evaluate("model.conductivity", positive=True)
        faces = [self._conductances(number) for number in range(self.grid.dimension)]
        self._host_faces = faces
        place = backend.to_device
        self.device_ratios = tuple(map(backend.factor, reversed(self.ratios)))
        # The point functions take the axes in the order x, y, z.
        self.faces = tuple(
            array
            for pair in zip(map(place, reversed(faces)), self.device_ratios, strict=True)
            for array in pair
        )
        self.capacity = place(self._capacity())

    @cached_property
    def singular(self) -> bool:
        """Whether no wall gives a temperature (asks all processes)."""
        gives = any(np.any(self._wall_conductance(wall)) for wall in self.walls)
        return not any(self.ranks.gather(gives))

    @cached_property
    def temperature(self) -> Any:
        """The field, at first the initial one with the walls' values at t = 0.

        Made when it is first asked for: who only wants to know the coefficients needs no memory.
        """
        field = self.backend.zeros(self.grid.shape)
        self.place(field, self.grid.interior, self._evaluate("initial.temperature"))
        self.set_walls(field, 0.0)
        return field

    def own(self, array: Any) -> np.ndarray:
        """This process's own unknowns of an array, on the host."""
        window = tuple(slice(*pair) for pair in self.grid.interior)
        return np.ascontiguousarray(self.backend.to_host(array)[window])

    def restore(self, array: Any, own: np.ndarray) -> None:
        """The reverse of `own`: an array's unknowns, and those of its neighbours; walls stay."""
        held = np.zeros(self.grid.shape)
        held[tuple(slice(*pair) for pair in self.grid.interior)] = own
        self.place(array, self.grid.interior, held)
        self.halo.exchange(array)

    # ---- what varies with time ----

    @property
    def walls_vary(self) -> bool:
        ghosts = [self._ghost_expression(wall) for wall in self.walls]
        return any("t" in expression.names for expression in ghosts if expression is not None)

    @property
    def source_varies(self) -> bool:
        gradients = [wall.condition.gradient for wall in self.walls]
        varying = [self.case.source.temperature, *[g for g in gradients if g is not None]]
        return any("t" in expression.names for expression in varying)

    def set_walls(self, array: Any, time: float) -> None:
        """Write the walls' values at a time into the ghosts of an array."""
        for wall in self.walls:
            expression = self._ghost_expression(wall)
            if expression is None:
                continue
            path = f"boundary.{wall.name}.temperature"
            values = self._evaluate(path, time, wall=wall, expression=expression)
            self.place(array, self.grid.ghost(wall.number, wall.side), values)

    def source(self, time: float) -> np.ndarray:
        """q, point sources and fluxes through walls of given gradient (W/m3), on the host."""
        density = self._evaluate("source.temperature", time=time)
        fluxes = [
            (wall, self._flux(wall, time))
            for wall in self.walls
            if wall.condition.gradient is not None
        ]
        fluxes = [(wall, flux) for wall, flux in fluxes if np.any(flux)]
        if not fluxes and not self.case.source.points:
            return density
        total = np.array(np.broadcast_to(density, self.grid.shape))
        for point in self.case.source.points:
            for place in self._source_indices(point):
                total[place] += point.value
        for wall, flux in fluxes:
            layer = [slice(1, -1)] * self.grid.dimension
            layer[wall.number] = (slice(1, 2), slice(-2, -1))[wall.side]
            shape = [n - 2 for n in self.grid.shape]
            shape[wall.number] = 1
            trimmed = flux[tuple(slice(None) if n == 1 else slice(1, -1) for n in flux.shape)]
            total[tuple(layer)] += np.broadcast_to(trimmed, shape)
        return total

    # ---- linear systems ----

    def system(self, b: Any, s: float = NOTHING) -> System:
        """A T = b with A T = rho c s T - div(k grad T); b is a device array, s in 1/s.

        Without s the problem is steady.
        """
        return System(
            grid=self.grid,
            backend=self.backend,
            halo=self.halo,
            residual=heat.residual,
            diagonal=heat.diagonal,
            rounding=heat.rounding,
            coefficients=(self.capacity, s, *self.faces),
            b=b,
            ratios=self.device_ratios,
            lowest=lambda: self._lowest(s),
            singular=self.singular and s == 0.0,
        )

    def _lowest(self, s: float) -> float:
        """A lower bound of the smallest eigenvalue of A (asks all processes)."""
        lines = []
        for number, (axis, faces) in enumerate(zip(self.grid.axes, self._host_faces, strict=True)):
            others = tuple(n for n in range(self.grid.dimension) if n != number)
            line = np.full(axis.all_unknowns + 2, np.inf)
            first, stop = axis.own
            own = faces.min(axis=others)[first : stop + 1]
            line[axis.start + first : axis.start + stop + 1] = own
            lines.append(self.ranks.smallest(line))
        ratios = [ratio_line(axis) for axis in self.whole.axes]
        capacity = self.ranks.smallest(self._capacity().min())
        return lowest_eigenvalue(self.whole, lines, ratios) + s * float(capacity)

    def largest_step(self) -> float:
        """The largest stable step of explicit Euler (s), 2 over Gershgorin's bound."""
        one = self.backend.zeros(self.grid.shape)
        self.backend.sweep(fill, one, self.grid.interior, 1.0)
        self.halo.exchange(one)
        given = (one, self.capacity, *self.faces)
        largest = self.backend.reduce("max", heat.gershgorin, self.grid.interior, *given)
        return 2.0 / largest if largest > 0.0 else np.inf

    def heat_through(self, wall: Wall, temperature: Any, time: float = 0.0) -> float:
        """The heat that enters through a wall (W, or W/m and W/m2 in 2D and 1D)."""
        flux = self._flux(wall, time) if wall.condition.gradient is not None else self._nothing
        region = list(self.grid.interior)
        last = self.grid.shape[wall.number] - 1
        region[wall.number] = ((1, 2), (last - 1, last))[wall.side]
        face = self.faces[2 * (self.grid.dimension - 1 - wall.number)]
        gain = heat.wall_gain(wall.number, wall.side)
        total = self.backend.reduce(
            "sum", gain, tuple(region), temperature, face, self.backend.to_device(flux),
            self.backend.to_device(self.ratios[wall.number]), *self.device_ratios,
        )  # fmt: skip
        return total * float(np.prod([axis.spacing for axis in self.grid.axes]))

    # ---- host arrays ----

    @property
    def _nothing(self) -> np.ndarray:
        return np.zeros((1,) * self.grid.dimension)

    def place(self, array: Any, region: Region, values: np.ndarray) -> None:
        """Copy host values into a region; an extent of 1 spreads along its axis."""
        self.backend.sweep(copy, array, region, self.backend.to_device(values))

    def _find_walls(self) -> Iterator[Wall]:
        for number, axis in enumerate(self.grid.axes):
            for side, name in enumerate(WALLS[axis.name]):
                if not axis.periodic and axis.at_ends[side]:
                    condition = getattr(self.case.boundary, name).temperature
                    yield Wall(number, side, name, condition)

    def _evaluate(
        self,
        path: str,
        time: float = 0.0,
        positive: bool = False,
        wall: Wall | None = None,
        expression: Any = None,
    ) -> np.ndarray:
        """An expression of the case at all points, or along a wall; finite, or InputError."""
        positions = self.grid.positions()
        if wall is not None:
            axis = self.grid.axes[wall.number]
            at_wall = np.array([(axis.lower, axis.upper)[wall.side]])
            positions[axis.name] = self.grid.along(wall.number, at_wall)
        if expression is None:
            section, key = path.split(".")
            expression = getattr(getattr(self.case, section), key)
        variables = {**positions, "t": time}
        values = np.asarray(expression(**{n: variables[n] for n in expression.names}), float)
        values = values if values.ndim else values.reshape((1,) * self.grid.dimension)
        self._demand(np.isfinite(values), values, path, "be finite")
        if positive:
            self._demand(values > 0.0, values, path, "be greater than 0")
        return values

    def _demand(self, holds: np.ndarray, values: np.ndarray, path: str, what: str) -> None:
        if holds.all():
            return
        place = np.unravel_index(int(np.argmin(holds)), values.shape)
        where = [
            f"{axis.name} = {axis.coordinates[index]:g}"
            for axis, index, extent in zip(self.grid.axes, place, values.shape, strict=True)
            if extent > 1
        ]
        at = f" at {', '.join(reversed(where))}" if where else ""
        raise InputError(f"{path}: must {what}, but is {values[place]:g}{at}")

    def _ratio(self, number: int) -> np.ndarray:
        """The ratio of a full cell to the points' volumes along one axis."""
        return self.grid.along(number, ratio_line(self.grid.axes[number]))

    def _capacity(self) -> np.ndarray:
        if self.case.model.steady:
            return self._nothing
        density = self._evaluate("model.density", positive=True)
        return density * self._evaluate("model.specific_heat", positive=True)

    def _conductances(self, number: int) -> np.ndarray:
        """Conductances of the faces below each point along one axis (W/(m3 K))."""
        axis = self.grid.axes[number]
        shape = list(self._conductivity.shape)
        shape[number] = axis.unknowns + 2
        k = np.moveaxis(np.broadcast_to(self._conductivity, shape), number, 0)
        inside = heat.harmonic_mean(k[:-1], k[1:]) / (axis.spacing * axis.spacing)
        walls = {
            w.side: np.moveaxis(self._wall_conductance(w), number, 0)
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
        limits = np.finfo(self.backend.dtype)
        normal = (faces == 0.0) | ((faces >= limits.tiny) & (faces <= limits.max))
        self._demand(normal, faces, f"conductance along {axis}", f"fit {limits.dtype}")

    def _wall_conductance(self, wall: Wall) -> np.ndarray:
        condition, h = wall.condition, self.grid.axes[wall.number].spacing
        on_nodes = self.grid.axes[wall.number].on_nodes
        k = wall.beside(self._conductivity)
        if condition.value is not None:
            mean = heat.harmonic_mean(wall.beside(self._conductivity, ghosts=True), k)
            return boundary.value_on_nodes(mean, h) if on_nodes else boundary.value_on_cells(k, h)
        if condition.robin is None:
            return self._nothing
        path = f"boundary.{wall.name}.temperature.robin.h"
        transfer = self._evaluate(path, wall=wall, expression=condition.robin.h)
        self._demand(transfer >= 0.0, transfer, path, "not be negative")
        if on_nodes:
            return boundary.robin_on_nodes(h, transfer)
        return boundary.robin_on_cells(k, h, transfer)

    def _flux(self, wall: Wall, time: float) -> np.ndarray:
        """The flux through a wall of given gradient, for a unit of the volume beside it (W/m3)."""
        gradient = self._evaluate(
            f"boundary.{wall.name}.temperature.gradient", time, wall=wall,
            expression=wall.condition.gradient,
        )  # fmt: skip
        # k at the wall itself: half a cell away it would cost an order.
        conductivity = self.case.model.conductivity
        k = self._evaluate("model.conductivity", positive=True, wall=wall, expression=conductivity)
        ratio = wall.beside(self.ratios[wall.number])
        return boundary.gradient_flux(k, self.grid.axes[wall.number].spacing, ratio, gradient)

    def _ghost_expression(self, wall: Wall) -> Any:
        """What a wall's ghosts hold: its value, or the ambient; nothing for a gradient."""
        condition = wall.condition
        return condition.robin.ambient if condition.robin is not None else condition.value

    def _source_indices(self, point: Any) -> Iterator[tuple[int, ...]]:
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
