"""Derived fields: gradients, speed, vorticity and the Q criterion, from values at the points.

They are second-order differences of the values that a file holds: central differences inside and at
periodic ends, and at a wall the derivative of the parabola through the first three points. So all
models, backends and numbers of processes have the same differences.
"""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from heatsolve.case.derived import Derived
from heatsolve.errors import InputError
from heatsolve.parallel.halo import replaced
from heatsolve.stencil.language import Point, change, neighbour, sqrt

if TYPE_CHECKING:
    from heatsolve.models.base import Model


@cache
def central_difference(axis: int) -> Point:
    """du/dx by both neighbours: (u_above - u_below) / (2 h)."""

    def difference(at, u, per_h):
        return 0.5 * per_h * (u[neighbour(at, axis, 1)] - u[neighbour(at, axis, -1)])

    return difference


@cache
def difference_at_end(axis: int, inwards: int) -> Point:
    """du/dx at an end, by a parabola: -+(3 u_0 - 4 u_1 + u_2) / (2 h), u_1 and u_2 inwards."""

    def difference(at, u, per_h):
        near, far = u[neighbour(at, axis, inwards)], u[neighbour(at, axis, 2 * inwards)]
        rise = 4.0 * near - 3.0 * u[at] - far
        return (0.5 * inwards) * per_h * rise

    return difference


@cache
def difference_of_two(axis: int, inwards: int) -> Point:
    """du/dx at an end of an axis of two points."""

    def difference(at, u, per_h):
        return (1.0 * inwards) * per_h * (u[neighbour(at, axis, inwards)] - u[at])

    return difference


def speed(at, *velocities):
    """|u|."""
    total = velocities[0][at] * velocities[0][at]
    for w in velocities[1:]:
        total = total + w[at] * w[at]
    return sqrt(total)


def add_product(at, total, a, b, weight):
    """A sum plus `weight` a b."""
    return total[at] + weight * (a[at] * b[at])


def derive(problem: "Model", derived: Derived, fields: Mapping[str, Any] | None) -> Any:
    """A derived field at the points of a file (asks all processes); `fields`: see `at_points`.

    Raises InputError where a process has too few points beside a wall.
    """
    arrays = [problem.at_points(name, fields) for name in derived.sources]
    zeros, sweep, region = problem.backend.zeros, problem.backend.sweep, problem.grid.stored
    shape = problem.grid.shape
    result = zeros(shape)
    if derived.kind == "speed":
        sweep(speed, result, region, *arrays)
        return result
    velocities = [with_ghosts(problem, array) for array in arrays]
    if derived.kind == "gradient":
        take_gradient(problem, result, velocities[0], axis_number(problem, derived.axis))
    elif derived.kind == "vorticity":
        first, second = (axis_number(problem, name[-1]) for name in derived.sources)
        along, across = zeros(shape), zeros(shape)
        take_gradient(problem, along, velocities[1], first)
        take_gradient(problem, across, velocities[0], second)
        sweep(change, result, region, along, across)
    else:  # Q = -1/2 sum over i, j of du_i/dx_j du_j/dx_i
        numbers = [axis_number(problem, name[-1]) for name in derived.sources]
        along, across = zeros(shape), zeros(shape)
        for n, one in enumerate(numbers):
            for m, other in enumerate(numbers[n:], n):
                take_gradient(problem, along, velocities[n], other)
                take_gradient(problem, across, velocities[m], one)
                weight = -0.5 if n == m else -1.0
                sweep(add_product, result, region, result, along, across, weight)
    return result


def axis_number(problem: "Model", name: str) -> int:
    """The number of an axis, slowest first."""
    return [axis.name for axis in problem.grid.axes].index(name)


def with_ghosts(problem: "Model", array: Any) -> Any:
    """A copy of the values at points, with neighbours' values in the ghosts beside the block."""
    copied = problem.sweeps.like(array)
    problem.halo.exchange(copied)
    return copied


def take_gradient(problem: "Model", into: Any, array: Any, number: int) -> None:
    """The derivative along an axis, at the points of a file."""
    axis, region, sweep = problem.grid.axes[number], problem.grid.stored, problem.backend.sweep
    per_h = 1.0 / axis.spacing
    (low, high), inner = axis.stored, list(axis.stored)
    for side, (at_end, inwards) in enumerate(zip(axis.at_ends, (1, -1), strict=True)):
        if axis.periodic or not at_end:
            continue
        few = axis.points < 3
        if high - low < 2 and not few:
            raise InputError(
                f"parallel.ranks: a derivative along {axis.name} needs at least 2 points of each "
                "process there: take fewer processes"
            )
        point = (difference_of_two if few else difference_at_end)(number, inwards)
        layer = ((low, low + 1), (high - 1, high))[side]
        sweep(point, into, replaced(region, number, layer), array, per_h)
        inner[side] += inwards
    if inner[0] < inner[1]:
        inside = replaced(region, number, (inner[0], inner[1]))
        sweep(central_difference(number), into, inside, array, per_h)
