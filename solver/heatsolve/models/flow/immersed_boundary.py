"""Obstacles in a staggered flow: the changed differences beside them, and the forces on them.

A velocity is 0 at the faces inside an obstacle. Beside it the second derivatives come from a
parabola through the surface (G. H. Shortley and R. Weller, J. Appl. Phys. 9 (1938), 334): with
the surface at a distance s h before the point, s < 1, and a neighbour at h behind it,

    h^2 u'' = 2 / (1 + s) (u_behind - u) - 2 / (s (1 + s)) (u - u_surface).

The last term may be large, so it is implicit: a step multiplies the new velocity, and the pressure
gradient, by the *mobility* 1 / (1 + dt nu sum 2 / (s (1 + s) h^2)), which falls to 0 near the
surface. So the velocity through open faces is free of divergence, and the pressure needs no
condition at an obstacle except closed faces. An obstacle with a temperature acts on the fluid's
temperature in the same way; one without a temperature insulates.

Forces follow from the balance of momentum: the momentum that the faces inside and beside an
obstacle would gain by the scheme without obstacles, minus their true gain.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from heatsolve.backends import Accumulator
from heatsolve.case.case import Case
from heatsolve.models.flow import equations as flow
from heatsolve.stencil.grid import Grid, slices
from heatsolve.stencil.language import copy

if TYPE_CHECKING:
    from heatsolve.models.flow.staggered import Staggered

HALVINGS = 40
"""Bisections of the distance between two points to find the surface between them."""
NEAREST = 1e-6
"""The least distance of a surface (in spacings), so that rates stay finite."""


@dataclass(frozen=True)
class SurfaceCuts:
    """The lines from points to their neighbours in one direction that meet a surface.

    `cut` is true where a point's line meets a surface, from either side. For points of the fluid
    beside a surface `share` is the distance to it in spacings, `owner` the number of its obstacle,
    from 1; for all other points they are 1 and 0.
    """

    cut: np.ndarray
    share: np.ndarray
    owner: np.ndarray


def owners(
    obstacles: Sequence[Any], positions: Mapping[str, np.ndarray], slack: Sequence[float] = ()
) -> np.ndarray:
    """The number, from 1, of the first obstacle that contains a point; 0 in the fluid.

    `positions` are along x, y, z, in this order; `slack`: see `Obstacle.contains`.
    """
    owner = np.zeros((), int)
    for number, obstacle in enumerate(obstacles, 1):
        owner = np.where((owner == 0) & obstacle.contains(positions, slack), number, owner)
    return owner


class Obstacles:
    """The obstacles of a case on a grid of positions, its ghosts included.

    The host finds them, because it evaluates expressions. At ghosts only `owner` is valid: all
    other results need neighbours beyond the ghosts.
    """

    def __init__(self, case: Case, grid: Grid):
        self._obstacles, self._grid = case.obstacles, grid
        positions = dict(reversed(grid.positions().items()))
        slack = [NEAREST * axis.spacing for axis in reversed(grid.axes)]
        self.owner = np.array(np.broadcast_to(self._owners(positions, slack), grid.shape))
        """The number of the obstacle at every point, see `owners`."""

    def _owners(
        self, positions: Mapping[str, np.ndarray], slack: Sequence[float] = ()
    ) -> np.ndarray:
        """As `owners`, also beyond the ends of periodic axes, and with both ends as one place."""
        images: list[dict[str, np.ndarray]] = [dict(positions)]
        for axis in self._grid.axes:
            if axis.periodic:
                length = axis.upper - axis.lower
                x = axis.lower + (positions[axis.name] - axis.lower) % length
                twins = x, np.where(x == axis.lower, axis.upper, x)
                images = [image | {axis.name: twin} for image in images for twin in twins]
        result = [owners(self._obstacles, image, slack) for image in images]
        return np.max(np.broadcast_arrays(*result), axis=0)

    def surface_cuts(self, axis: int, side: int) -> SurfaceCuts:
        """The cut lines along an axis, downward (side 0) or upward."""
        step = 1 if side else -1
        beyond = np.roll(self.owner, -step, axis=axis)
        outside = (self.owner == 0) & (beyond > 0)
        share, owner = np.ones(self.owner.shape), np.where(outside, beyond, 0)
        share[outside] = self._distances(axis, step, np.nonzero(outside))
        return SurfaceCuts((self.owner > 0) != (beyond > 0), share, owner)

    def _distances(self, number: int, step: int, places: Sequence[np.ndarray]) -> np.ndarray:
        """The distances to the surface, by bisection; also across the ends of a periodic axis."""
        axes = self._grid.axes
        points = {
            axis.name: axis.coordinates[index]
            for axis, index in reversed(list(zip(axes, places, strict=True)))
        }
        moving, h = axes[number].name, step * axes[number].spacing
        low, high = np.zeros(places[0].size), np.ones(places[0].size)
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            inside = self._owners(points | {moving: points[moving] + middle * h}) > 0
            low, high = np.where(inside, low, middle), np.where(inside, middle, high)
        return np.maximum(high, NEAREST)


class Stencil:
    """Differences beside obstacles for one quantity, on the host; `values` are its surface values.

    An obstacle without a value insulates: the neighbour inside it is a mirror image of the point.
    """

    def __init__(self, case: Case, grid: Grid, values: Sequence[float | None]):
        obstacles = Obstacles(case, grid)
        valued = np.array([False, *(value is not None for value in values)])
        surface = np.array([0.0, *(value or 0.0 for value in values)])
        self.inside = valued[obstacles.owner]
        """Whether a point lies in an obstacle with a value: the quantity has this value there."""
        self.owner = np.where(self.inside, -obstacles.owner, 0)
        """The number of the obstacle beside a point; negative for a point inside it."""
        self.weights: list[np.ndarray] = []
        """The weights of the differences to the neighbours before and behind, for each axis."""
        self.drag = np.zeros(obstacles.owner.shape)
        """The coefficient of u_surface - u (1/m2)."""
        pull, insulated = np.zeros(obstacles.owner.shape), (obstacles.owner > 0) & ~self.inside
        for number, axis in enumerate(grid.axes):
            sides = [obstacles.surface_cuts(number, side) for side in (0, 1)]
            shares = [np.where(valued[link.owner], link.share, 1.0) for link in sides]
            both = shares[0] + shares[1]
            for link, share in zip(sides, shares, strict=True):
                # Nothing is conducted inside an obstacle that insulates.
                self.weights.append(np.where(link.cut | insulated, 0.0, 2.0 / both))
                pulls = 2.0 / (share * both) / (axis.spacing * axis.spacing)
                pulls = np.where(valued[link.owner], pulls, 0.0)
                self.drag += pulls
                pull += pulls * surface[link.owner]
                beside = (self.owner == 0) & valued[link.owner]
                self.owner = np.where(beside, link.owner, self.owner)
        self.outside = obstacles.owner == 0
        """Where the fluid is."""
        self.present = [bool((obstacles.owner == n + 1).any()) for n in range(len(values))]
        """Whether any point lies in each obstacle."""
        fluid = self.drag > 0.0
        self.value = np.where(
            fluid, pull / np.where(fluid, self.drag, 1.0), surface[obstacles.owner]
        )
        """The value that a quantity approaches where only the surface acts on it."""

    def mobility(self, dt: float, nu: float) -> np.ndarray:
        """1 / (1 + dt nu drag), 0 inside obstacles: the share of a change that a step keeps."""
        return np.where(self.inside, 0.0, 1.0 / (1.0 + dt * nu * self.drag))


class ImmersedBoundary:
    """The obstacles of a flow on a backend; `stencils` holds one for each quantity it moves."""

    def __init__(self, problem: "Staggered"):
        case, place = problem.case, problem.backend.to_device
        self._case, self._backend, self._halo = case, problem.backend, problem.halo
        self._grid, self._components = problem.grid, problem.components
        self._diffusivities = problem.moved
        self._regions = {name: problem.inside(name) for name in problem.moved}
        self.stencils = {}
        for name in problem.moved:
            values = [getattr(obstacle, name, 0.0) for obstacle in case.obstacles]
            self.stencils[name] = Stencil(case, problem.places(name), values)
        self._weights = {
            name: tuple(map(place, stencil.weights)) for name, stencil in self.stencils.items()
        }
        self._surfaces = {
            name: (place(stencil.drag), place(stencil.value), place(stencil.owner.astype(float)))
            for name, stencil in self.stencils.items()
        }
        """Drag, value and owner of each quantity."""
        self.fluid = {name: place(self.stencils[name].outside + 0.0) for name in problem.carried}
        """1 where the fluid is and 0 inside obstacles, for each carried quantity."""
        self._mobilities: dict[str, dict[float, Any]] = {name: {} for name in problem.moved}
        self._labels = [
            f"_{n}" if len(case.obstacles) > 1 else "" for n in range(len(case.obstacles))
        ]

    @property
    def present(self) -> list[bool]:
        """Whether any point of this process lies in each obstacle."""
        lists = [stencil.present for stencil in self.stencils.values()]
        return [any(each) for each in zip(*lists, strict=True)]

    def outside(self, name: str, source: Any) -> Any:
        """A source, 0 inside obstacles."""
        host = self._backend.to_host(source) * self.stencils[name].outside
        return self._backend.to_device(host)

    def mobility(self, name: str, dt: float) -> Any:
        """The mobility of a quantity in a step of this length, ghosts included."""
        by_step = self._mobilities[name]
        if dt not in by_step:
            while len(by_step) > 1:  # keep one more: the last step may be shorter than the others
                del by_step[next(iter(by_step))]
            host = self.stencils[name].mobility(dt, self._diffusivities[name])
            array = self._backend.zeros(self._grid.shape)
            self._backend.sweep(copy, array, self._grid.everything, self._backend.to_device(host))
            self._halo.exchange(array)
            by_step[dt] = array
        return by_step[dt]

    def weights(self, name: str) -> tuple[Any, ...]:
        """The weights of the differences in `flow.laplacian`."""
        return self._weights[name]

    def surface(self, name: str, dt: float) -> tuple[Any, ...]:
        """The arguments of `flow.stage` that describe surfaces, for a step of this length."""
        _, value, _ = self._surfaces[name]
        mobility = self.mobility(name, dt)
        return (mobility,) if name in self._components else (mobility, value)

    def fill(self, fields: Mapping[str, Any]) -> None:
        """Set the points inside obstacles to the obstacles' values."""
        for name, (_, value, owner) in self._surfaces.items():
            args = (fields[name], owner, value)
            self._backend.sweep(flow.filled, fields[name], self._grid.interior, *args)

    def conductances(self, dt: float, lines: Sequence[Any]) -> list[Any]:
        """The conductances of the pressure, from `lines` without obstacles; slowest axis first."""
        result = []
        for number, (name, line) in enumerate(zip(self._components, lines, strict=True)):
            array = self._backend.zeros(self._grid.shape)
            region = list(self._grid.interior)
            region[number] = (region[number][0], region[number][1] + 1)
            args = (self.mobility(name, dt), line)
            self._backend.sweep(flow.conductance(number), array, tuple(region), *args)
            result.append(array)
        return result

    def columns(self) -> Iterator[tuple[str, str, int]]:
        """Yield the columns of the history: the force on each obstacle along each axis, and its
        release of each carried quantity that has a value on its surface; each with the name of the
        quantity and the number of the obstacle."""
        for name in self._surfaces:
            across = name in self._components
            key = f"force_{name[-1]}" if across else f"{name}_released"
            for number, obstacle in enumerate(self._case.obstacles):
                if across or getattr(obstacle, name) is not None:
                    yield key + self._labels[number], name, number

    def forces_of_level(self, enclosed: Any) -> dict[str, float]:
        """The forces, over rho and the volume of a cell, of a unit of pressure throughout the fluid
        (asks all processes): not 0 where an obstacle covers part of a wall, or touches another one.
        `enclosed` is 1 in cells that are cut off from the flow, whose pressure has no level; its
        ghosts are known."""
        cells, forces, count = self._backend.to_host(enclosed), {}, 1 + len(self._case.obstacles)
        for axis, name in enumerate(self._components):
            inside = slices(self._regions[name])
            falls = (np.roll(cells, -1, axis=axis) - cells)[inside]
            owner = np.maximum(-self.stencils[name].owner[inside], 0)
            mine = np.bincount(owner.ravel(), falls.ravel(), count)
            forces[name] = sum(self._halo.ranks.gather(mine)) / self._grid.axes[axis].spacing
        columns = [each for each in self.columns() if each[1] in forces]
        totals = {column: float(forces[name][1 + number]) for column, name, number in columns}
        return {column: total for column, total in totals.items() if total != 0.0}

    def add_forces(
        self,
        fields: Mapping[str, Any],
        second_differences: Callable[[Any, str], Sequence[Any]],
        totals: Mapping[str, Accumulator],
    ) -> None:
        """Add the terms of the forces, over rho and the volume of a cell, and of the releases, over
        this volume, to the totals of their columns.

        In 2D both are per unit of thickness. The ghosts of `fields` hold the walls' values;
        `second_differences` gives the second differences of a quantity for wide convection.
        """
        dimension, form = self._grid.dimension, self._case.model.convection
        per_h = [1.0 / axis.spacing for axis in self._grid.axes]
        velocities = [fields[name] for name in self._components]
        for name, columns in groupby(self.columns(), itemgetter(1)):
            if name in self._components:
                component = self._components.index(name)
                point, first = flow.force(dimension, component, form), fields["pressure"]
            else:
                point, first = flow.release(dimension, form), fields[name]
            args = (first, *velocities, *second_differences(fields[name], name))
            args = (*args, self._diffusivities[name], *per_h, *self._weights[name])
            args = (*args, *self._surfaces[name])
            for column, _, number in columns:
                owner = float(number + 1)
                self._backend.sweep(point, totals[column], self._regions[name], *args, owner)
