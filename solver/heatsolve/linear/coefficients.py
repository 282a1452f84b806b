"""The coefficients of the levels of multigrid, on the host: conductances, and a capacity.

Every process has those of its own points. Where a coarse point is made of fine points of another
process, their coefficients are passed on, a few layers at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heatsolve.backends import Backend
from heatsolve.linear.multigrid.coarsening import AxisCoarsening
from heatsolve.linear.multigrid.partition import Partition
from heatsolve.stencil.grid import Grid

LAYERS = 3
"""Layers of the neighbours' coefficients that a coarse block is made of, at most."""
JUMP = 2.0
"""Ratio of neighbouring conductances from which no linear profile is expected between them."""


@dataclass(frozen=True)
class Coefficient:
    """One coefficient at this process's own points; its extent is 1 where it is constant.

    `varies`: whether it varies along each axis, on any process. `along`: the axis whose faces it
    belongs to, None for a capacity. Along that axis it varies, and holds the face below each point
    and the one above the last.
    """

    values: np.ndarray
    varies: tuple[bool, ...]
    along: int | None

    def last(self, number: int) -> np.ndarray:
        """The values with one axis as the last."""
        return np.moveaxis(self.values, number, -1)

    def first_of(self, number: int) -> "Coefficient":
        """The same where it is constant along an axis."""
        varies = (*self.varies[:number], False, *self.varies[number + 1 :])
        return replace(self, values=np.take(self.values, [0], axis=number), varies=varies)


def coefficients_of(
    arrays: Sequence[Any], grid: Grid, partition: Partition, backend: Backend
) -> list[Coefficient]:
    """From the arrays of a system: conductances of the faces along each axis, and a capacity.

    Asks all processes: conditions at a wall may make conductances vary on some of them only.
    """
    mine = [[extent > 1 for extent in array.shape] for array in arrays]
    anywhere = np.any(partition.ranks.gather(mine), axis=0)
    np.fill_diagonal(anywhere, True)  # the axes of the faces
    found = []
    for along, (array, varies) in enumerate(zip(arrays, anywhere, strict=True)):
        bounds = [
            (first, stop + (number == along)) if varies[number] else (0, 1)
            for number, (first, stop) in enumerate(grid.interior)
        ]
        host = np.asarray(backend.to_host(array), float)
        window = tuple(
            slice(None) if extent == 1 else slice(*pair)
            for extent, pair in zip(host.shape, bounds, strict=True)
        )
        values = np.broadcast_to(host[window], [high - low for low, high in bounds])
        place = along if along < grid.dimension else None
        found.append(Coefficient(values, tuple(map(bool, varies)), place))
    return found


def widened(
    given: Coefficient, number: int, partition: Partition, periodic: bool, layers: int = LAYERS
) -> np.ndarray:
    """The values with so many layers more on both sides along an axis, which is then the last one.

    Beyond the ends of the axis stands what is beside them.
    """
    values = given.last(number)
    count = values.shape[-1] - (number == given.along)
    core = values[..., :count]
    lowest = np.take(core, np.arange(layers), axis=-1, mode="wrap")
    highest = np.take(core, np.arange(count - layers, count), axis=-1, mode="wrap")
    below = partition.pass_on(highest, number, 1, periodic)
    above = partition.pass_on(lowest, number, -1, periodic)
    if below is None:
        below = np.repeat(values[..., :1], layers, axis=-1)
    if above is None:
        above = np.repeat(values[..., -1:], layers, axis=-1)
    return np.concatenate([below, core, above], axis=-1)


def constant(given: Coefficient, number: int, partition: Partition, periodic: bool) -> bool:
    """Whether all values along an axis are equal (asks all processes)."""
    if not given.varies[number]:
        return True
    wide = widened(given, number, partition, periodic)
    same = bool(np.all(wide == wide[..., :1]) and np.all(given.last(number) == wide[..., :1]))
    return all(partition.ranks.gather(same))


def shortened(given: Coefficient, partition: Partition, grid: Grid) -> Coefficient:
    """The same, with an extent of 1 along axes other than its own where it is constant."""
    for number, axis in enumerate(grid.axes):
        if number != given.along and constant(given, number, partition, axis.periodic):
            given = given.first_of(number)
    return given


def placed(
    given: Coefficient,
    partition: Partition,
    grid: Grid,
    backend: Backend,
    shape: Sequence[int],
    known: Any = None,
) -> Any:
    """The array that point functions take, with an extent of 1 along all axes where it can be.

    It has the shape of the field's arrays if it varies along all axes. `known` is taken where it is
    already that array. Element 0 of faces is read nowhere.
    """
    number, faces = given.along, given.along
    if number is not None and constant(given, number, partition, grid.axes[number].periodic):
        given, faces = given.first_of(number), None
    extents: list[int] = []
    window = []
    for number, (axis, varies) in enumerate(zip(grid.axes, given.varies, strict=True)):
        first, stop = axis.own
        extents.append(axis.unknowns + 2 if varies else 1)
        window.append(slice(first, stop + (number == faces)) if varies else slice(0, 1))
    if all(given.varies):
        extents = list(shape)
    if known is not None and known.shape == tuple(extents):
        return known
    host = np.zeros(extents)
    host[tuple(window)] = given.values
    return backend.to_device(host)


def halved(
    given: Coefficient, number: int, coarsening: AxisCoarsening, fine: Partition, coarse: Partition
) -> Coefficient:
    """The coefficient of the next level, with one axis halved."""
    if not given.varies[number]:
        return given
    wide = widened(given, number, fine, coarsening.fine.axis.periodic)
    first = fine.blocks()[number][0] + 1 - LAYERS
    rule = coarsening.conductances if number == given.along else coarsening.mean
    values = np.moveaxis(rule(wide, first, coarse.blocks()[number]), -1, number)
    return replace(given, values=np.ascontiguousarray(values))


def gathered(given: Coefficient, partition: Partition) -> Coefficient:
    """The coefficient of all points, on every process."""
    extents = []
    for number, (extent, ends) in enumerate(zip(given.values.shape, partition.ends, strict=True)):
        extents.append(ends[-1] + (number == given.along) if given.varies[number] else extent)
    whole = np.empty(extents)
    for rank, values in enumerate(partition.ranks.gather(given.values)):
        blocks = partition.blocks(rank)
        whole[
            tuple(
                slice(low, low + extent) if given.varies[number] else slice(None)
                for number, ((low, _), extent) in enumerate(zip(blocks, values.shape, strict=True))
            )
        ] = values
    return replace(given, values=whole)


def even(faces: Sequence[Coefficient], partition: Partition, grid: Grid) -> bool:
    """Whether no conductance is much larger than those beside it, walls apart (asks all)."""
    found = [_even(given, partition, grid) for given in faces]  # every one: all are asked
    return all(partition.ranks.gather(all(found)))


def _even(given: Coefficient, partition: Partition, grid: Grid) -> bool:
    number = given.along
    assert number is not None
    first, stop = partition.blocks()[number]
    # The walls' faces have the numbers 1 and n + 1.
    last = stop == partition.ends[number][-1]
    inside = slice(int(first == 0), given.values.shape[number] - last)
    trimmed = given.values[(slice(None),) * number + (inside,)]
    points = replace(given, values=trimmed, along=None)
    holds = True
    for other, axis in enumerate(grid.axes):
        values = points.last(other)
        if other != number and given.varies[other]:
            wide = widened(points, other, partition, axis.periodic)
            values = wide[..., LAYERS : wide.shape[-1] - LAYERS + 1]
        a, b = values[..., 1:], values[..., :-1]
        holds &= bool(np.all((a <= JUMP * b) & (b <= JUMP * a)))
    return holds


def margin(arrays: Sequence[np.ndarray]) -> int | None:
    """Layers beside the ends of all axes beyond which each array is the same; None: there are none.

    An array has an extent of 1 along axes where it is constant, and varies along one axis at most.
    """
    layers = 0
    for values in arrays:
        count = values.size
        if count > max(values.shape):
            return None
        line = values.reshape(-1)
        (others,) = np.nonzero(line != line[count // 2])
        layers = max([layers, *(np.minimum(others, count - 1 - others) + 1)])
    return int(layers)


def strongest(given: Coefficient, partition: Partition) -> list[tuple[float, float]]:
    """For the low and the high wall across the faces: the largest conductance there and beside it.

    Asks all processes.
    """
    assert given.along is not None
    values, place = given.last(given.along), partition.place()[given.along]
    at_ends = (place == 0, place == partition.dims[given.along] - 1)
    mine = [
        (float(values[..., wall].max()), float(values[..., beside].max())) if here else (0.0, 0.0)
        for here, wall, beside in zip(at_ends, (0, -1), (1, -2), strict=True)
    ]
    largest = np.max(partition.ranks.gather(mine), axis=0)
    return [(float(wall), float(beside)) for wall, beside in largest]
