"""The interface of all kinds of physics: what the loop, the files and the tools know of a model.

A `Model` is a case put on its grid: this process's block of it, its halo, its fields by name, and
what makes a step of it (a `Stepper`) or the system of its steady state.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from heatsolve.backends import Accumulator, Backend
from heatsolve.case.case import Case
from heatsolve.linear.iterate import Controller
from heatsolve.linear.system import System
from heatsolve.models.walls import Wall
from heatsolve.parallel.decomposition import block_of_rank, process_grid
from heatsolve.parallel.halo import Halo
from heatsolve.parallel.ranks import Ranks
from heatsolve.parallel.transport import transport_of
from heatsolve.stencil.evaluate import evaluate
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


@dataclass(frozen=True)
class Substep:
    """One step of the theta scheme, from `start` over `length`; theta = 0 is explicit Euler."""

    start: float
    length: float
    theta: float

    @property
    def end(self) -> float:
        return self.start + self.length


class Stepper(ABC):
    """Takes a problem from one time to the next.

    `fields` are the newest fields by name, `time` the end of the part of a step that was begun
    last, `norm` that at which the last iteration inside a step ended.
    """

    problem: "Model"
    fields: dict[str, Any]
    norm = math.nan
    longest = 1
    """Sweeps of Jacobi's iteration that one pass makes at most."""

    def __init__(self, time: float):
        self.time = time

    @property
    def scalars(self) -> dict[str, float]:
        """What a state holds besides the fields."""
        return {}

    def prepare(self) -> None:
        """What comes before the first step of a march that begins anew."""

    def recall(self, steps: int, scalars: Mapping[str, float], fields: Mapping[str, Any]) -> None:
        """What comes instead before a march goes on after these steps: take what a state holds
        besides the fields of the model."""

    def make_solvers(self, parts: Sequence[Substep]) -> None:
        """Make what solves the systems of a step of these parts; a step makes what it lacks."""

    def step(
        self,
        parts: Sequence[Substep],
        change: Accumulator | None,
        controller: Controller | None,
    ) -> None:
        """One step, in its parts; `change` takes the sum of squares of what they change.

        Raises NotConverged, and Stopped where `controller` says so.
        """
        self._begin(len(parts))
        for part in parts:
            self.time = part.end
            self._advance(part, change, controller)

    def _begin(self, parts: int) -> None:
        """A step begins, of so many parts."""

    @abstractmethod
    def _advance(
        self, part: Substep, change: Accumulator | None, controller: Controller | None
    ) -> None:
        """One part of a step."""

    def undo(self) -> None:
        """Go back to the field before the step, if a step can be left half done."""

    def measures(self) -> dict[str, float]:
        """What the history shall hold of a step, besides its change."""
        return {}

    def finish(self) -> None:
        """Leave the newest fields in those of the problem."""

    def present(self) -> None:
        """The same for a frame, with what only a frame needs."""
        self.finish()


class Silent:
    """A watcher of the iterations inside a time step."""

    def warn(self, sentence: str) -> None:
        pass

    def aim(self, threshold: float, scale: float = 1.0, said: str = "") -> None:
        pass

    def progress(self, number: int, norm: float | None, total: int | None = None) -> None:
        pass


class Carrier(Protocol):
    """A model whose fields carry themselves: its time steps follow their velocities.

    Speeds and accelerations are given along each axis, slowest first.
    """

    case: Case
    grid: Grid
    moved: dict[str, float]
    """The coefficient of diffusion of each quantity that a step moves (m2/s)."""

    @property
    def fields(self) -> dict[str, Any]: ...

    @property
    def walls_vary(self) -> bool: ...

    @property
    def steps_along_axes(self) -> tuple[float, ...]: ...

    def courant_rate(self, speeds: Sequence[float]) -> float: ...

    def speeds(self, fields: Mapping[str, Any], *times: float) -> list[float]: ...

    def accelerations(self, fields: Mapping[str, Any], *times: float) -> list[float]: ...

    def stable_step_at(self, speeds: Sequence[float]) -> float: ...

    def demand_scheme(self) -> None: ...


class Model(ABC):
    """A kind of physics on a backend: the arrays of a case, what makes its steps, what it measures.

    `whole` is the grid of the case, `grid` the block of it that this process owns.
    """

    arrays_of_a_frame = 0
    """Arrays of the grid's size that writing the fields needs besides."""

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
    def stepper(self, time: float, step: float) -> Stepper:
        """What makes the time steps that the case asks for, from a time; the first is this long."""

    def steady_system(self) -> System:
        """A u = b of the steady state of the one field of a case without `time`.

        Raises InputError where there is no steady state.
        """
        raise NotImplementedError

    def reset(self) -> None:
        """Make the field of a steady case the initial one again."""
        raise NotImplementedError

    def add_magnitudes(self, array: Any, into: Accumulator) -> None:
        """Add |u| at all points of a file, walls included, for a steady case."""
        raise NotImplementedError

    def longest_pass(self) -> int:
        """The most sweeps of Jacobi's iteration, for the field or the pressure, of one pass."""
        return self.stepper(0.0, 0.0).longest

    @property
    def carrier(self) -> Carrier | None:
        """This model, if its fields carry themselves."""
        return None

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
