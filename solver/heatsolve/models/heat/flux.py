"""The flux of heat, -k grad T, from the scheme's fluxes through the faces between its volumes.

So it is right where the conductivity jumps. At a wall it is the flux of the wall's condition: by
the difference over half a cell, a given gradient, or an exchange with the surroundings.
"""

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from heatsolve.models.derived import with_ghosts
from heatsolve.parallel.halo import replaced
from heatsolve.stencil.grid import WALLS
from heatsolve.stencil.language import Point, neighbour, shifted

if TYPE_CHECKING:
    from heatsolve.models.heat.conduction import Conduction


@cache
def through_face(axis: int) -> Point:
    """The flux through the face below a point, c h (T_below - T), upwards (W/m2)."""

    def through(at, t, c, h):
        return h * (c[at] * (t[neighbour(at, axis, -1)] - t[at]))

    return through


@cache
def mean_of_faces(axis: int) -> Point:
    """The mean of both faces of a point."""

    def mean(at, q):
        return 0.5 * (q[at] + q[neighbour(at, axis, 1)])

    return mean


@cache
def beyond_two(axis: int, first: int, second: int) -> Point:
    """A flux half a spacing beyond two faces at these distances: 3/2 q_1 - 1/2 q_2."""

    def extrapolated(at, q):
        return 1.5 * q[neighbour(at, axis, first)] - 0.5 * q[neighbour(at, axis, second)]

    return extrapolated


def through_faces(problem: "Conduction", number: int, field: Any) -> Any:
    """The flux through the face below each point along an axis, walls included (W/m2).

    The fluxes through the faces above the last points of this process are included. The ghosts of
    the `field` are known.
    """
    grid, volumes, result = problem.grid, problem.volumes, problem.backend.zeros(problem.grid.shape)
    axis, (low, high) = grid.axes[number], grid.axes[number].own
    conductance = problem.faces[2 * (grid.dimension - 1 - number)]
    region = replaced(grid.stored, number, (low, high + 1))
    args = field, conductance, axis.spacing
    problem.backend.sweep(through_face(number), result, region, *args)
    for wall in volumes.walls:
        if wall.axis == number and wall.condition.kind.given_flux is not None:
            gained = volumes.flux(wall, problem.time) / wall.beside(volumes.ratios[number])
            layer = ((low, low + 1), (high, high + 1))[wall.side]
            inwards = -axis.spacing if wall.side else axis.spacing
            problem.place(result, replaced(grid.stored, number, layer), gained * inwards)
    return result


def heat_flux(problem: "Conduction", number: int, temperature: Any) -> Any:
    """The flux along an axis at the points of a file: the mean of both faces of a cell. At a node
    on a wall it is the flux through the wall; at a node of given temperature it is extrapolated
    from the faces inside."""
    grid, sweep = problem.grid, problem.backend.sweep
    axis, (low, high) = grid.axes[number], grid.axes[number].own
    field, result = with_ghosts(problem, temperature), problem.backend.zeros(grid.shape)
    for wall in problem.walls:  # at corners a wall of a slower axis has written its own ghosts
        if wall.axis == number and axis.half_volumes[wall.side]:
            ambient = problem.volumes.ghost_values(wall, problem.time)
            if ambient is not None:
                layer = ((low - 1, low), (high, high + 1))[wall.side]
                problem.place(field, replaced(grid.stored, number, layer), ambient)
    faces = through_faces(problem, number, field)
    # A literal update copies the points beside insulated walls to nodes on the wall.
    walls = [w for w in problem.walls if w.condition.kind.given_flux is not None]
    insulated = {w.side for w in walls if w.axis == number}
    inner = [low, high]
    for side, half in enumerate(axis.half_volumes):
        layer = ((low, low + 1), (high - 1, high))[side]
        if half:
            distances = [0] * grid.dimension
            distances[number] = side
            sweep(shifted, result, replaced(grid.stored, number, layer), faces, *distances)
            inner[side] += -1 if side else 1
        elif axis.fixed[side] and axis.at_ends[side] and side not in insulated:
            layer = ((low - 1, low), (high, high + 1))[side]
            point = beyond_two(number, 0, -1) if side else beyond_two(number, 1, 2)
            sweep(point, result, replaced(grid.stored, number, layer), faces)
    if inner[0] < inner[1]:
        inside = replaced(grid.stored, number, (inner[0], inner[1]))
        sweep(mean_of_faces(number), result, inside, faces)
    return result


def heat_flows(problem: "Conduction") -> dict[str, float]:
    """The heat that leaves through each wall, as `heat_flow_left`: the sum over its faces (W; asks
    all processes). In 2D for a depth of 1 m, in 1D for a cross-section of 1 m2."""
    grid, backend, result = problem.grid, problem.backend, {}
    field = with_ghosts(problem, problem.temperature)
    for number, whole in reversed(list(enumerate(problem.whole.axes))):
        if whole.periodic:
            continue
        area = np.ones((1,) * grid.dimension)
        for other, axis in enumerate(grid.axes):
            if other != number:
                area = area * axis.spacing / problem.volumes.ratios[other]
        args = through_faces(problem, number, field), backend.to_device(area)
        low, high = grid.axes[number].own
        for side, wall in enumerate(WALLS[whole.name]):
            total = backend.accumulator("sum")
            if grid.axes[number].at_ends[side]:
                layer = ((low, low + 1), (high, high + 1))[side]
                backend.sweep(product, total, replaced(grid.interior, number, layer), *args)
            result[f"heat_flow_{wall}"] = total.value if side else -total.value
    return result


def product(at, a, b):
    """a b."""
    return a[at] * b[at]
