"""A case put on its grid: this process's block of it, its halo, and its fields by name."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heatsolve.backends import Backend
from heatsolve.case.load import Case
from heatsolve.models.evaluate import Wall, evaluate
from heatsolve.parallel.decomposition import block_of_rank, process_grid
from heatsolve.parallel.halo import Halo
from heatsolve.parallel.ranks import Ranks
from heatsolve.parallel.transport import transport_of
from heatsolve.stencil.grid import WALLS, Grid, Region, make_grid
from heatsolve.stencil.language import ZERO, copy

THICK_SLAB = 64
"""Layers of a slab on a device, at least."""
FUZZ = 1e-6
"""A part of a step that is rounding."""


def mirrors(walls: Sequence[Wall], grid: Grid, backend: Backend) -> tuple[Any, ...]:
    """What `points.Mirrored` takes: lines for those walls that give a gradient."""
    mirroring = {(w.number, w.side) for w in walls if w.condition.gradient is not None}
    return tuple(
        backend.to_device(grid.beside(number, side)) if (number, side) in mirroring else ZERO
        for number in range(grid.dimension)
        for side in (0, 1)
    )


def grid_of(case: Case) -> Grid:
    """The grid of a case: on nodes, a wall of given values is no unknown.

    Neither is a wall node that copies what is inside it, as in teaching codes.
    """
    walls = {name: getattr(case.boundary, name) for pair in WALLS.values() for name in pair}

    def fixed(name: str) -> bool:
        wall = walls[name]
        given = [getattr(wall, field) for field in case.field_names] if wall is not None else []
        if not given or case.grid.kind == "cells":
            return False
        return copies or all(condition.value is not None for condition in given)

    copies = case.solver.update is not None or case.model.scheme == "collocated"

    ends = {axis: (fixed(low), fixed(high)) for axis, (low, high) in WALLS.items()}
    grid = case.grid
    return make_grid(grid.counts, grid.lower, grid.upper, grid.kind == "nodes", grid.periodic, ends)


def dims_of(case: Case, grid: Grid, size: int, on_device: bool) -> tuple[int, ...]:
    """So many processes along each axis, as the case wants them.

    Devices have slabs if these are thick: a layer across the slowest axis lies together in memory,
    and passes reach beyond such blocks only.
    """
    wanted = None if case.parallel.ranks == "auto" else case.parallel.ranks
    if wanted is None and on_device and grid.axes[0].all_unknowns >= THICK_SLAB * size:
        return (size, *[1] * (grid.dimension - 1))
    return process_grid(grid, size, wanted)


def region_of(box: Any, grid: Grid) -> Region:
    """The unknowns of a block in a box of initial values; empty along an axis if there are none."""
    region = []
    for axis, low, high in zip(grid.axes, *map(reversed, box.corners), strict=True):
        lines = axis.numbers if box.by_index else axis.coordinates
        first, stop = axis.own
        inside = np.flatnonzero((lines[first:stop] >= low) & (lines[first:stop] <= high))
        ends = (int(first + inside[0]), int(first + inside[-1]) + 1) if inside.size else (0, 0)
        region.append(ends)
    return tuple(region)


class Problem(ABC):
    """The arrays of a case on a backend.

    `whole` is the grid of the case, `grid` the block of it that this process owns.
    """

    def __init__(
        self, case: Case, backend: Backend, grid: Grid | None = None, ranks: Ranks | None = None
    ):
        self.case, self.backend, self.ranks = case, backend, ranks or Ranks()
        self.whole = whole = grid or grid_of(case)
        self.dims = dims = dims_of(case, whole, self.ranks.size, backend.on_device)
        depth = case.parallel.layers if self.ranks.size > 1 else 1
        self.grid = block_of_rank(whole, dims, self.ranks.rank, depth)
        transport = None
        if self.ranks.size > 1:
            transport = transport_of(self.ranks, backend, case.parallel.transport)
            backend.join(self.ranks.combine, transport.nccl)
        self.halo = Halo(self.grid, backend, self.ranks, dims, depth, transport)

    @property
    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """The fields by name, at first the initial ones with the walls' values at t = 0."""

    @abstractmethod
    def set_walls(self, time: float) -> None:
        """Write what the walls say at a time into the ghosts of the fields."""

    @abstractmethod
    def largest_step(self) -> float:
        """The largest stable step of the case's explicit scheme (s)."""

    @property
    @abstractmethod
    def walls_vary(self) -> bool:
        """Whether what walls write into ghosts depends on time (the same on all processes)."""

    @property
    @abstractmethod
    def sources_vary(self) -> bool:
        """Whether the right side of an equation depends on time (the same on all processes)."""

    @property
    def driven_in_time(self) -> bool:
        """Whether any wall or source depends on time (the same on all processes)."""
        return self.walls_vary or self.sources_vary

    @abstractmethod
    def drive(self, time: float) -> tuple[float, float]:
        """The largest magnitude that walls give the fields at a time, and the largest rate (1/s)
        at which sources change them (asks all processes)."""

    @property
    def driven_by_rates(self) -> bool:
        """Whether rates that `drive` does not know may change the fields, too."""
        return False

    @property
    def remark(self) -> str:
        """What a user should know of how the case was put on its grid; empty if nothing."""
        return ""

    def places(self, name: str) -> Grid:
        """The grid with the positions of a field."""
        return self.grid

    def scale(self, name: str, fields: Mapping[str, Any]) -> tuple[float, float]:
        """What is taken off a field, and then multiplied with, for what a file holds of it."""
        return 0.0, 1.0

    def own(self, array: Any) -> np.ndarray:
        """This process's own unknowns of an array, on the host."""
        window = tuple(slice(*pair) for pair in self.grid.interior)
        return np.ascontiguousarray(self.backend.to_host(array)[window])

    def stored(self) -> dict[str, np.ndarray]:
        """The fields at the points of a file that this process owns."""
        window = tuple(slice(*pair) for pair in self.grid.stored)
        return {
            name: np.ascontiguousarray(self.backend.to_host(array)[window])
            for name, array in self.fields.items()
            if self.case.output.fields is None or name in self.case.output.fields
        }

    def restore(self, array: Any, own: np.ndarray) -> None:
        """The reverse of `own`: an array's unknowns, and those of its neighbours; walls stay."""
        held = np.zeros(self.grid.shape)
        held[tuple(slice(*pair) for pair in self.grid.interior)] = own
        self.place(array, self.grid.interior, held)
        self.halo.exchange(array)

    def recall(self, stored: Mapping[str, np.ndarray], time: float) -> None:
        """The fields of a checkpoint, and the walls of its time."""
        for name, array in self.fields.items():
            self.restore(array, stored[name])
        self.set_walls(time)

    def stamp(self, fields: Mapping[str, Any], time: float | None, step: float = 0.0) -> None:
        """Set the boxes of the start (None), or those that are due again at a time.

        Those are whose time has come since the step before, which began a `step` earlier.
        """
        for number, box in enumerate(self.case.initial.boxes):
            if time is not None and not any(
                -FUZZ * step <= time - due < (1.0 - FUZZ) * step for due in box.again
            ):
                continue
            region = region_of(box, self.places(box.field))
            if all(low < high for low, high in region):
                path = f"initial.box.{number}.value"
                values = evaluate(self.places(box.field), path, box.value)
                self.place(fields[box.field], region, values)

    def place(self, array: Any, region: Region, values: np.ndarray) -> None:
        """Copy host values into a region; an extent of 1 spreads along its axis."""
        self.backend.sweep(copy, array, region, self.backend.to_device(values))
