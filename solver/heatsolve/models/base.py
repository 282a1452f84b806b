"""The interface of a model, a kind of physics, for the loop, the files and the tools.

A `Model` is a case on its grid: this process's block, its halo, its fields by name, and the
`Stepper` that makes its steps or the linear system of its steady state.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pkgutil import resolve_name
from typing import Any, Self, TypeVar

import numpy as np

from heatsolve.backends import Accumulator, Backend, PointSweep
from heatsolve.case.case import Case
from heatsolve.case.derived import Derived
from heatsolve.errors import InputError, NotConverged
from heatsolve.linear.iterate import Controller, Outcome
from heatsolve.linear.stopping import Criterion
from heatsolve.linear.system import Sweeps, System
from heatsolve.models import stability
from heatsolve.models.derived import derive
from heatsolve.models.grid import Wall, grid_of, regions_of, sample_of, walls_of
from heatsolve.models.statistics import Statistics
from heatsolve.models.transport import equations as transport
from heatsolve.models.transport.equations import Stage
from heatsolve.parallel.decomposition import block_of_rank, process_grid
from heatsolve.parallel.halo import Halo
from heatsolve.parallel.ranks import Ranks
from heatsolve.parallel.transport import transport_of
from heatsolve.stencil.expressions import evaluate, words
from heatsolve.stencil.grid import WALLS, Grid, Region, slices
from heatsolve.stencil.language import copy, largest_magnitude

T = TypeVar("T")
Drive = tuple[list[np.ndarray], list[np.ndarray]]
"""What walls give the fields, and the rates of sources: arrays of one process's block."""
Fields = dict[str, Any]
THICK_SLAB = 32
"""The least number of layers of a slab on a device."""
MOST_RECORDED = 32
"""The most recordings of the work of steps."""
ROUNDING = 1e-6
"""The share of a step up to which a difference of times is rounding."""


def is_past(due: float, time: float, step: float) -> bool:
    """Whether a box that is due at a time was set by an earlier step than the step that begins at
    `time`, after a step of this length."""
    return time - due >= (1.0 - ROUNDING) * step


def dims_of(case: Case, grid: Grid, size: int, on_device: bool) -> tuple[int, ...]:
    """The number of processes along each axis, slowest first.

    Devices have slabs if these are thick: a layer across the slowest axis is contiguous in memory,
    and only slabs let fused sweeps reach beyond a block.
    """
    wanted = None if case.parallel.ranks == "auto" else case.parallel.ranks
    if wanted is None and on_device and grid.axes[0].all_unknowns >= THICK_SLAB * size:
        return (size, *[1] * (grid.dimension - 1))
    return process_grid(grid, size, wanted)


@dataclass(frozen=True)
class Substep:
    """One step of the theta scheme, from `start` over `length`; theta = 0 is explicit Euler."""

    start: float
    length: float
    theta: float

    @property
    def end(self) -> float:
        return self.start + self.length


Measured = Callable[[], tuple[list[float], dict[str, float]]]
"""Waits for values of accumulators, and for columns of the history."""


class Stepper(ABC):
    """Makes the time steps of a model.

    `fields` are the newest fields by name, `time` the end of the last part of a step that was
    begun, `norm` the norm at which the last iteration inside a step ended.
    """

    problem: "Model"
    fields: dict[str, Any]
    norm = math.nan
    longest = 1
    """The most sweeps of Jacobi's iteration, or explicit steps, in one pass."""
    is_measured = False
    """Whether `posted_measures` comes after the next step, which may then measure its fields."""
    most_steps = 1
    """The most steps that one call of `step` makes, where nothing is checked between them."""

    def __init__(self, time: float):
        self.time, self._steps_before = time, 0
        self._controller: Controller | None = None

    @property
    def scalars(self) -> dict[str, float]:
        """The numbers that a state holds besides the fields."""
        return {}

    def prepare(self) -> None:
        """Get ready for the first step of a new march."""

    def recall(self, steps: int, scalars: Mapping[str, float], fields: Mapping[str, Any]) -> None:
        """Get ready for a march that goes on after `steps` steps, with the numbers and the arrays
        that a state holds besides the fields of the model."""

    def make_solvers(self, parts: Sequence[Substep]) -> None:
        """Make the solvers of a step of these parts in advance; by default the step makes them."""

    def step(
        self,
        parts: Sequence[Substep],
        change: Accumulator | None,
        controller: Controller | None,
        before: int = 0,
    ) -> None:
        """Make one step, in its parts; `change` takes the sum of the squared changes.

        A stepper that can make several steps at once makes `before` equal steps first. Raises
        NotConverged, and Stopped on a request to stop that the `controller` finds.
        """
        self._steps_before, self._controller = before, controller
        self._begin(len(parts))
        for part in parts:
            self.time = part.end
            self._advance(part, change)

    def _begin(self, parts: int) -> None:
        """Begin a step of this number of parts."""

    @abstractmethod
    def _advance(self, part: Substep, change: Accumulator | None) -> None:
        """One part of a step."""

    def undo(self) -> None:
        """Go back to the fields before a step that was interrupted."""

    def speeds(self, *times: float) -> list[float]:
        """`Model.speeds` of the newest fields."""
        return self.problem.speeds(self.fields, *times)

    def posted_measures(self, *besides: Accumulator) -> Measured:
        """Begin to measure the newest fields; return a call that waits for the values of the
        accumulators `besides`, and for the columns of the history that fields are measured for."""
        read = self.problem.backend.posted_values(besides)
        return lambda: (read(), {})

    def finish(self) -> None:
        """Leave the newest fields in the arrays of the model."""

    def present(self) -> None:
        """Leave the fields of a frame in these arrays, with fields that only a frame needs."""
        self.finish()


class Recordings:
    """Work of steps that comes again: done at first, then recorded, and played back from then on.

    A key names the work, with the numbers and the places of the arrays that a recording holds. The
    oldest keys make room for new ones.
    """

    def __init__(self, sweeps: Sweeps):
        self._sweeps = sweeps
        self._results: dict[Any, Any] = {}
        self._plays: dict[Any, Callable[[], None]] = {}

    def make(self, key: Any, work: Callable[[], T], first: Callable[[], T] | None = None) -> T:
        """Do the work of a key, at first in the way of `first`; return its result, which is always
        the same."""
        if key not in self._results:
            while len(self._results) >= MOST_RECORDED:
                oldest = next(iter(self._results))
                del self._results[oldest]
                self._plays.pop(oldest, None)
            self._results[key] = (first or work)()
        else:
            if key not in self._plays:
                self._plays[key] = self._sweeps.replayed(work, gated=False)
            self._plays[key]()
        return self._results[key]


class RungeKutta(Stepper):
    """Stages of `transport.RUNGE_KUTTA` for fields of a problem, by their names.

    The last of several stages overwrites the fields at the start of the step, which it reads only
    at the point that it writes, unless the change of the step is wanted: then it makes other
    arrays, which take turns with the first. A step has one part and is never interrupted.
    """

    def __init__(self, problem: "MultiFieldModel", time: float, scheme: str, names: Sequence[str]):
        super().__init__(time)
        self._model, self._stages = problem, transport.RUNGE_KUTTA[scheme]
        self._now: Fields = {name: problem.fields[name] for name in names}
        self._others = [self._arrays() for _ in range(2 if len(self._stages) == 3 else 1)]
        self._old: Fields = {}

    def _arrays(self) -> Fields:
        return {name: self._model.backend.zeros(self._model.grid.shape) for name in self._now}

    def _each_stage(self, change: Accumulator | None) -> Iterator[tuple[Stage, Fields, Fields]]:
        """Yield each stage of a step, the fields that it makes, and the fields before it."""
        now = self._now
        for stage in self._stages:
            if 0 < stage.number == len(self._stages) - 1:
                new = self._now if change is None else self._old_arrays()
            else:
                new = self._others[stage.number]
            yield stage, new, now
            now = new

    def _old_arrays(self) -> Fields:
        """The arrays that held the fields before the last step whose change was wanted."""
        self._old = self._old or self._arrays()
        return self._old

    def _copy_to(self, fields: Fields) -> None:
        """Copy the newest fields, ghosts included, to `fields`, unless the arrays are the same."""
        for name, array in self._now.items():
            if array is not fields[name]:
                self._model.backend.sweep(copy, fields[name], self._model.grid.everything, array)

    @property
    def _places(self) -> tuple[int, ...]:
        """The places of the arrays of all fields, in the order in which a step takes them."""
        every = (self._now, *self._others, self._old)
        return tuple(id(next(iter(fields.values()), None)) for fields in every)

    def _add_change(self, new: Fields, before: Fields, change: Accumulator) -> None:
        """Add the change of the fields in a step."""
        point = transport.changes(len(new), change.kind)
        args = (*before.values(), *new.values())
        self._model.backend.sweep(point, change, self._model.grid.interior, *args)

    def finish(self) -> None:
        own = {name: self._model.fields[name] for name in self._now}
        if any(array is not own[name] for name, array in self._now.items()):
            self._copy_to(own)
            self._take(own)

    def _take(self, fields: Fields) -> None:
        """Take these fields as the newest; steps may now overwrite the arrays before."""
        if all(array is self._now[name] for name, array in fields.items()):
            return
        if len(self._stages) == 1:
            self._others = [self._now]
        else:
            self._old = self._now
        self._now = fields


class Silent:
    """A watcher of the iterations inside a time step, which reports nothing."""

    def warn(self, sentence: str) -> None:
        pass

    def aim(self, goal: Criterion) -> None:
        pass

    def progress(self, number: int, norm: float | None, total: int | None = None) -> None:
        pass


def demand_converged(outcome: Outcome, what: str) -> None:
    """Raise NotConverged where an iteration inside a step did not converge."""
    if outcome.failed:
        raise NotConverged(
            f"{what} did not converge in {outcome.count} iterations (norm {outcome.norm:.3g})"
        )


Row = tuple[str, str]
"""A line of `heatsolve check`: its label and its text."""


class Model(ABC):
    """A kind of physics on a backend: the arrays of a case, its stepper, its measurements.

    `whole` is the grid of the case, `grid` the block of it that this process owns.
    """

    arrays_of_a_frame = 0
    """Additional arrays of the grid's size that writing the model's fields needs."""
    time = 0.0
    """The time of the newest fields, where they are written or probed."""

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
            backend.join(self.ranks.combine, transport.link)
        self.halo = Halo(self.grid, backend, self.ranks, dims, depth, transport)
        self.sweeps = Sweeps(self.grid, backend, self.halo)
        self.steps_along_axes = tuple(axis.spacing for axis in self.grid.axes)
        """The spacings, slowest axis first (m)."""
        self.spacings = self.steps_along_axes[::-1]
        """The spacings along x, y, z (m)."""

    @property
    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """The fields by name, at first the initial ones with the walls' values at t = 0."""

    @abstractmethod
    def stepper(self, time: float, step: float) -> Stepper:
        """The stepper of the case's time scheme, from a time on; `step` is the first length."""

    def steady_system(self) -> System:
        """The system A u = b of the steady state, for the single field of a case without `time`.

        Raises InputError where there is no steady state.
        """
        raise NotImplementedError

    def reset(self) -> None:
        """Make the field of a steady case the initial one again."""
        raise NotImplementedError

    def take(self, u: Any) -> None:
        """Take an array as the field of a steady case."""
        raise NotImplementedError

    def complete(self, u: Any) -> Any:
        """An iterate of a steady case, with the values of wall nodes that copy the nodes inside."""
        raise NotImplementedError

    def add_magnitudes(self, array: Any, into: Accumulator) -> None:
        """Add |u| at all points of a file, walls included, for a steady case."""
        raise NotImplementedError

    def longest_pass(self) -> int:
        """The most sweeps of Jacobi's iteration, for the field or the pressure, in one pass."""
        return self.stepper(0.0, 0.0).longest

    @abstractmethod
    def set_walls(self, time: float) -> None:
        """Write the walls' values at a time into the ghosts of the fields."""

    @abstractmethod
    def largest_step(self) -> float:
        """The largest stable step of the case's explicit scheme (s)."""

    # ---- where steps follow the velocities of the moment; one number an axis, slowest first ----

    moved: dict[str, float]
    """The coefficient of diffusion of each quantity that a step moves (m2/s)."""

    def speeds(
        self, fields: Mapping[str, Any], *times: float, largest: Sequence[float] | None = None
    ) -> list[float]:
        """The largest speeds of fields, and of walls at these times (m/s; asks all processes);
        `largest`: of the fields alone, where they are known."""
        raise NotImplementedError

    def accelerations(self, fields: Mapping[str, Any], *times: float) -> list[float]:
        """The largest accelerations by forces at these times (m/s2; asks all processes)."""
        raise NotImplementedError

    def stable_step_at(self, speeds: Sequence[float]) -> float:
        """The largest stable step for these speeds (s). Raises InputError where none is stable."""
        raise NotImplementedError

    def demand_scheme(self) -> None:
        """Raise InputError for a scheme that no step makes stable for the initial velocities."""

    # ---- what drives the fields ----

    @property
    @abstractmethod
    def walls_vary(self) -> bool:
        """Whether the walls' conditions depend on time (the same on all processes)."""

    @property
    @abstractmethod
    def sources_vary(self) -> bool:
        """Whether the right side of an equation depends on time (the same on all processes)."""

    @property
    def driven_in_time(self) -> bool:
        """Whether any wall or source depends on time (the same on all processes)."""
        return self.walls_vary or self.sources_vary

    @abstractmethod
    def drive_of_walls(self, time: float) -> list[np.ndarray]:
        """What walls give the fields of this block: values, and gradients times the spacing."""

    @abstractmethod
    def drive_of_sources(self, time: float) -> list[np.ndarray]:
        """The rates at which sources change the fields of this block (1/s)."""

    def driving_magnitudes(self, time: float) -> tuple[float, float]:
        """The largest magnitude that walls give the fields at a time, and the largest rate (1/s)
        at which sources change them (asks all processes)."""
        return self._largest_of(self.drive_of_walls(time), self.drive_of_sources(time))

    def varying_drive(self, time: float, sources: bool = True) -> Drive:
        """The drive of walls, and of sources if wanted, where it varies in time; else nothing."""
        return (
            self.drive_of_walls(time) if self.walls_vary else [],
            self.drive_of_sources(time) if self.sources_vary and sources else [],
        )

    def drive_changes(self, one: Drive, other: Drive) -> tuple[float, float]:
        """The largest difference of what walls give, and of rates, between two drives (asks all
        processes)."""
        pairs = [zip(a, b, strict=False) for a, b in zip(one, other, strict=True)]
        return self._largest_of(*[[a - b for a, b in each] for each in pairs])

    def _largest_of(self, *groups: Sequence[np.ndarray]) -> tuple[float, float]:
        """The largest magnitude in both groups of arrays (asks all processes)."""
        mine = [max((float(np.abs(a).max()) for a in group), default=0.0) for group in groups]
        at_walls, of_sources = zip(*self.ranks.gather(mine), strict=True)
        return max(at_walls), max(of_sources)

    @property
    def joins_steps(self) -> bool:
        """Whether a march makes the steps between two checks in passes where it gains by it."""
        return False

    driven_by_rates = False
    """Whether rates that `driving_magnitudes` does not know may change the fields, too."""

    # ---- what `heatsolve check` says ----

    @classmethod
    @abstractmethod
    def dry_run(cls, case: Case, backend: Backend) -> Self:
        """The model at a sample of the points, after it has evaluated all that a run evaluates
        before its first step: it raises the errors of a run, but needs less memory."""

    def demand_machine(self, machine: Backend, ranks: int) -> None:
        """Raise InputError for a machine, or a number of processes, that cannot begin a run."""

    def summary(self) -> Iterator[Row]:
        """Equation, grid, walls and methods: a label and a text each."""
        case, grid = self.case, grid_of(self.case)
        yield "equation", self.equation
        axes = grid.axes[::-1]
        points = " x ".join(str(axis.points) for axis in axes)
        spacing = " x ".join(f"{axis.spacing:g}" for axis in axes)
        text = f"{points} {case.grid.kind}, {grid.all_unknowns} unknowns, spacing {spacing}"
        yield "grid", text
        for axis in axes:
            if axis.periodic:
                yield axis.name, "periodic"
            for name in () if axis.periodic else WALLS[axis.name]:
                yield name, self.wall_text(getattr(case.boundary, name))
        if self.remark:
            yield "walls", self.remark
        yield from self.methods()

    @property
    @abstractmethod
    def equation(self) -> str:
        """The equation and its coefficients."""

    @abstractmethod
    def wall_text(self, wall: Any) -> str:
        """The conditions at a wall of the case."""

    @abstractmethod
    def methods(self) -> Iterator[Row]:
        """The schemes and solvers."""

    def cautions(self) -> Iterator[Row]:
        """Properties of the result that a user may not expect."""
        yield from ()

    @property
    def remark(self) -> str:
        """A remark on how the case was put on its grid; may be empty."""
        return ""

    def places(self, name: str) -> Grid:
        """The grid with the positions of a field."""
        return self.grid

    def places_of_data(self, key: str) -> Grid:
        """The whole grid with the positions at which a key of the case is evaluated."""
        return self.whole

    def doubts_of_data(self) -> Iterator[str]:
        """Sentences on data that do not fit the model (asks all processes)."""
        yield from ()

    def scale(self, name: str, fields: Mapping[str, Any]) -> tuple[float, float]:
        """The offset that a file subtracts from a field, and the factor it then multiplies by."""
        return 0.0, 1.0

    def own(self, array: Any) -> np.ndarray:
        """The values of an array at this process's own unknowns, on the host."""
        return self.backend.take(array, self.grid.interior)

    def at_points(self, name: str, fields: Mapping[str, Any] | None = None) -> Any:
        """A field of the model as a file has it, at the points of a file (asks all processes).

        `fields`: the arrays to take it from, by default the model's own.
        """
        return (fields or self.fields)[name]

    def written(self, name: str, fields: Mapping[str, Any] | None = None) -> Any:
        """As `at_points`, for any field of a file: also derived fields and statistics."""
        if name in self.case.statistic_fields:
            return self.statistics.field(name)
        derived = self.case.derived.get(name)
        return self.at_points(name, fields) if derived is None else self.derive(derived, fields)

    def derive(self, derived: Derived, fields: Mapping[str, Any] | None = None) -> Any:
        """A derived field (asks all processes); `fields`: see `at_points`."""
        return derive(self, derived, fields)

    def stored(
        self, names: Sequence[str] | None = None, fields: Mapping[str, Any] | None = None
    ) -> dict[str, np.ndarray]:
        """The fields `names`, by default of the case's file, at this process's points of a file
        (asks all processes); `fields`: see `at_points`."""
        every = (*self.fields, *self.case.derived, *self.case.statistic_fields)
        return {
            name: self.own_points(self.written(name, fields))
            for name in (every if names is None else names)
            if names is not None or name in self.case.written
        }

    @cached_property
    def statistics(self) -> Statistics:
        """The statistics of the march up to now."""
        return Statistics(self)

    def heat_flows(self) -> dict[str, float]:
        """The heat that leaves through each wall, of the newest fields (W; asks all processes)."""
        raise NotImplementedError

    def restore(self, array: Any, own: np.ndarray) -> None:
        """The reverse of `own`: set the unknowns and exchange ghosts; walls keep their values."""
        self.backend.put(array, self.grid.interior, own)
        self.halo.exchange(array)

    def own_points(self, array: Any) -> np.ndarray:
        """The values of an array at this process's own points of a file, on the host."""
        return self.backend.take(array, self.grid.stored)

    def recall(self, stored: Mapping[str, np.ndarray], time: float) -> None:
        """Take the fields of a checkpoint, and the walls' values at its time."""
        for name, array in self.fields.items():
            self.restore(array, stored[name])
        self.set_walls(time)

    def stamp(self, fields: Mapping[str, Any], time: float | None, step: float = 0.0) -> None:
        """Set the boxes of `[[initial.box]]`: at the start (`time` None), or again at their times.

        A box is set again, in the order of these times, if one of them lies between `time` and the
        start of the last `step`.
        """
        boxes = self.case.initial.boxes
        due = list(range(len(boxes)))
        if time is not None:
            times = sorted((at, number) for number in due for at in boxes[number].again)
            due = [
                number
                for at, number in times
                if at <= time + ROUNDING * step and not is_past(at, time, step)
            ]
        for number in due:
            box = boxes[number]
            if regions := regions_of(box, self.places(box.field)):
                values = self._values_of_box(number)
                for region in regions:
                    self.place(fields[box.field], region, values)

    def _values_of_box(self, number: int) -> np.ndarray:
        """The values of a box of `[[initial.box]]` at all points of its field."""
        box = self.case.initial.boxes[number]
        return evaluate(self.places(box.field), f"initial.box.{number}.value", box.value)

    def place(self, array: Any, region: Region, values: np.ndarray) -> None:
        """Copy host values into a region; an extent of 1 spreads along its axis."""
        self.backend.sweep(copy, array, region, self.backend.to_device(values))


class MultiFieldModel(Model):
    """The quantities of a case on a backend, and the ghosts beyond its walls.

    `names` are the quantities, `components` the velocities among them, slowest axis first.
    """

    def __init__(
        self, case: Case, backend: Backend, grid: Grid | None = None, ranks: Ranks | None = None
    ):
        super().__init__(case, backend, grid, ranks)
        self.names = case.field_names
        self.components = [
            name for axis in self.grid.axes if (name := f"velocity_{axis.name}") in self.names
        ]
        self.walls = {name: tuple(walls_of(case, self.grid, name)) for name in self.names}
        self.low_faces: dict[str, list[Region]] = {}
        """The faces of each velocity at the low wall across it, which are no unknowns."""
        self.mean_velocities: dict[str, float] = {}
        """The mean velocities that a uniform force keeps, by their names (m/s)."""
        self._at_walls: dict[tuple[str, Wall], Any] = {}
        self._sources: list[Any] | None = None
        self._largest_at_walls: dict[str, float] = {}
        self._forces: list[float] | None = None
        """The accelerations by sources, once they are known; new at each time if sources vary."""
        self._recordings = Recordings(self.sweeps)

    @classmethod
    def dry_run(cls, case: Case, backend: Backend) -> Self:
        sampled_case, grid = case, grid_of(case)
        sample = sample_of(grid)
        if sample is not grid:  # a sample may miss an obstacle
            sampled_case = case.model_copy(update={"bodies": ()})
        problem = cls(sampled_case, backend, sample)
        assert problem.fields and problem.sources(0.0)
        problem.case = case
        return problem

    @cached_property
    def fields(self) -> dict[str, Any]:
        fields = {}
        for name in self.names:
            fields[name] = self.backend.zeros(self.grid.shape)
            expression = getattr(self.case.initial, name)
            values = evaluate(self.places(name), f"initial.{name}", expression)
            self.place(fields[name], self.grid.interior, values)
        self.stamp(fields, None)
        self.write_walls(fields, 0.0)
        return fields

    # ---- walls and sources -------------------------------------------------------------------

    @cached_property
    def walls_vary(self) -> bool:
        """Whether any wall's condition depends on time, also a wall of another process's block."""
        walls = [wall for _, wall in self.case.boundary if wall is not None]
        conditions = [getattr(wall, name) for wall in walls for name in self.names]
        return any("t" in c.expression.names for c in conditions if c is not None)

    @cached_property
    def sources_vary(self) -> bool:
        """Whether a source depends on time."""
        return any("t" in getattr(self.case.source, name).names for name in self.names)

    @property
    def _driven(self) -> list[str]:
        """The quantities that walls and sources drive: of pressure only differences matter."""
        return [name for name in self.names if name != "pressure"]

    def drive_of_walls(self, time: float) -> list[np.ndarray]:
        return [
            self._case_value(name, wall, time)
            * (1.0 if wall.condition.gradient is None else self.grid.axes[wall.axis].spacing)
            for name in self._driven
            for wall in self.walls[name]
        ]

    def drive_of_sources(self, time: float) -> list[np.ndarray]:
        return [
            evaluate(self.places(name), f"source.{name}", getattr(self.case.source, name), time)
            for name in self._driven
        ]

    def set_walls(self, time: float) -> None:
        self.write_walls(self.fields, time)

    def write_walls(self, fields: dict[str, Any], time: float, exchanged: bool = False) -> None:
        """Fill the ghosts of all fields: from neighbours, unless they were `exchanged`, and from
        the walls' conditions."""
        if not exchanged:
            self.halo.exchange(*fields.values())
        for name, array in fields.items():
            # The walls of slower axes own the corners, so they are written later.
            for wall in reversed(self.walls[name]):
                self.write_wall(array, name, wall, time)

    def write_wall(self, array: Any, name: str, wall: Wall, time: float) -> None:
        """Write the ghosts of a field at a wall.

        A node on the wall gets the given value. Otherwise the ghost is mirrored about the value at
        the wall, or is the mirror image plus the rise by the gradient.
        """
        axis = self.grid.axes[wall.axis]
        region = self.grid.ghost(wall.axis, wall.side)
        values = self._wall_values(name, wall, time)
        sweep = self.backend.sweep
        gradient = wall.condition.gradient is not None
        if axis.on_nodes and not gradient:
            sweep(copy, array, region, values)
            return
        distances = [0] * self.grid.dimension
        distances[wall.axis] = (-1 if wall.side else 1) * self._reach(wall)
        point = transport.with_rise if gradient else transport.about_value
        sweep(point, array, region, array, values, *distances)

    def _reach(self, wall: Wall) -> int:
        """The distance from a ghost to its mirror image, in points.

        It is 2 where the mirror is a node on the wall. It is 1 where the mirror is a face, or where
        the ghost itself is the wall's node.
        """
        axis = self.grid.axes[wall.axis]
        return 2 if axis.on_nodes and not axis.fixed[wall.side] else 1

    def _wall_values(self, name: str, wall: Wall, time: float) -> Any:
        """The value at a wall, or for a gradient the rise from the mirror image to the ghost."""
        condition = wall.condition
        if (name, wall) not in self._at_walls or "t" in condition.expression.names:
            values = self.wall_value(name, wall, time)
            if condition.key == "gradient":
                values = values * (self._reach(wall) * self.grid.axes[wall.axis].spacing)
            self._at_walls[name, wall] = self.backend.to_device(values)
        return self._at_walls[name, wall]

    def wall_value(self, name: str, wall: Wall, time: float) -> np.ndarray:
        """The value, or the gradient, that a wall gives a quantity at a time."""
        return self._case_value(name, wall, time)

    def _case_value(self, name: str, wall: Wall, time: float) -> np.ndarray:
        """The value or gradient as the case gives it, before a model corrects it."""
        condition = wall.condition
        path = f"boundary.{wall.name}.{name}.{condition.key}"
        return evaluate(self.places(name), path, condition.expression, time, wall=wall)

    def sources(self, time: float) -> list[Any]:
        """The source f of each quantity at a time."""
        expressions = [getattr(self.case.source, name) for name in self.names]
        if self._sources is None or self.sources_vary:
            self._sources = [
                self.backend.to_device(
                    evaluate(self.places(name), f"source.{name}", expression, time)
                )
                for name, expression in zip(self.names, expressions, strict=True)
            ]
        return self._sources

    # ---- the largest stable step: speeds and accelerations along the axes, slowest first ------

    def largest_step(self) -> float:
        """The largest stable step for the speeds at t = 0 (s; asks all processes).

        Raises InputError where no step is stable for the scheme.
        """
        time = self.case.march
        demanded = self.case.model.convection == "backward" and not time.allow_unstable
        slowest, fastest = self._velocities_of_boxes()
        if demanded and (self.flows_backward() or min(slowest) < 0.0):
            raise InputError(
                'model.convection: "backward" is unstable where a velocity is negative '
                f"({self.other_convection}set time.allow_unstable = true)"
            )
        speeds = zip(self.speeds(self.fields, 0.0), slowest, fastest, strict=True)
        return self.stable_step_at([max(speed, -low, high) for speed, low, high in speeds])

    def _velocities_of_boxes(self) -> tuple[list[float], list[float]]:
        """The least and the largest velocity that boxes set again later, along each axis, and 0
        (asks all processes). Where the flow is given, nothing moves with the values of a box."""
        low, high = [0.0] * self.grid.dimension, [0.0] * self.grid.dimension
        for number, box in enumerate(self.case.initial.boxes if self.case.velocity_changes else ()):
            if box.again and box.field in self.components:
                axis, places = self.components.index(box.field), self.places(box.field)
                values = np.broadcast_to(self._values_of_box(number), places.shape)
                for region in regions_of(box, places):
                    low[axis] = min(low[axis], float(values[slices(region)].min()))
                    high[axis] = max(high[axis], float(values[slices(region)].max()))
        lows, highs = zip(*self.ranks.gather((low, high)), strict=True)
        return [min(each) for each in zip(*lows, strict=True)], [
            max(each) for each in zip(*highs, strict=True)
        ]

    def stable_step_at(self, speeds: Sequence[float]) -> float:
        model, time = self.case.model, self.case.march
        form = "central" if model.convection == "skew" else model.convection
        args = form, time.scheme, tuple(reversed(speeds))
        implicit = time.diffusion != "explicit"
        diffusivities = tuple(set(self.moved.values()))
        limit = stability.largest_step(*args, diffusivities, self.spacings, implicit)
        if limit == 0.0 and not time.allow_unstable:
            raise InputError(
                f'time.scheme: no step is stable with scheme = "{time.scheme}" and '
                f'convection = "{model.convection}" here (try {self.stable_choice})'
            )
        return limit

    stable_choice = '"rk3"'
    """Values of the keys with which some step is stable."""
    other_convection = ""
    """The advice to take a convection that negative velocities do not make unstable, if any."""

    def flows_backward(self) -> bool:
        """Whether any velocity is negative at t = 0, walls included (asks all processes)."""
        args, below = ("max", transport.negative_part, self.grid.interior), 0.0
        for name in self.components:
            low, _ = self.given_at_walls(name)
            below = max(below, -low, self.backend.reduce(*args, self.fields[name]))
        return below > 0.0

    def speeds(
        self, fields: Mapping[str, Any], *times: float, largest: Sequence[float] | None = None
    ) -> list[float]:
        inside = self.posted_largest_speeds(fields)() if largest is None else largest
        return [
            max(
                speed,
                abs(self.mean_velocities.get(name, 0.0)),
                self.largest_at_walls(name, *times),
            )
            for name, speed in zip(self.components, inside, strict=True)
        ]

    def posted_largest_speeds(self, fields: Mapping[str, Any]) -> Callable[[], list[float]]:
        """Begin to find the largest magnitude of each velocity, by one sweep; return a call that
        waits for it (asks all processes)."""
        velocities = [fields[name] for name in self.components]
        self.play("speeds", velocities, lambda: self.add_largest(fields))
        return self.backend.posted_values(self.of_speeds)

    def add_largest(self, fields: Mapping[str, Any], besides: Sequence[PointSweep] = ()) -> None:
        """Add the magnitudes of each velocity to its accumulator in `of_speeds`.

        The sweeps `besides`, over the same points, run together with this sweep.
        """
        both, region = list(zip(self.components, self.of_speeds, strict=True)), self.grid.interior
        sweeps = [PointSweep(copy, largest, region, (fields[name],)) for name, largest in both]
        self.backend.sweep_together([*besides, *sweeps])
        for name, largest in both:
            self._add_low_faces(name, fields, largest)

    @cached_property
    def of_speeds(self) -> list[Accumulator]:
        """For each velocity, the accumulator of its largest magnitude."""
        return [self.backend.accumulator("max") for _ in self.components]

    def play(self, name: str, arrays: Sequence[Any], work: Callable[[], None]) -> None:
        """Make sweeps of these arrays, from the second time on by playing them back."""
        self._recordings.make((name, *map(id, arrays)), work)

    def speed_sweep(self, fields: Mapping[str, Any], largest: Accumulator) -> PointSweep:
        """The sweep that adds the magnitudes of all velocities to `largest`, without the low faces;
        see `add_low_faces`."""
        velocities = tuple([fields[name] for name in self.components])
        return PointSweep(largest_magnitude, largest, self.grid.interior, velocities)

    def add_low_faces(self, fields: Mapping[str, Any], largest: Accumulator) -> None:
        """Add the magnitudes of velocities at the low walls across them to `largest`."""
        for name in self.components:
            self._add_low_faces(name, fields, largest)

    def _add_low_faces(self, name: str, fields: Mapping[str, Any], largest: Accumulator) -> None:
        for region in self.low_faces.get(name, ()):
            self.backend.sweep(copy, largest, region, fields[name])

    def accelerations(self, fields: Mapping[str, Any], *times: float) -> list[float]:
        if self._forces is not None and not self.sources_vary:
            return self._forces
        self._forces = result = [0.0] * self.grid.dimension
        for time in times if self.sources_vary else times[:1]:
            sources = dict(zip(self.names, self.sources(time), strict=True))
            for n, name in enumerate(self.components):
                args = "max", copy, self.grid.interior, sources[name]
                result[n] = max(result[n], self.backend.reduce(*args))
        return result

    def given_at_walls(
        self, name: str, time: float = 0.0, besides: float = 0.0
    ) -> tuple[float, float]:
        """The lowest and highest of `besides` and a field's wall values (asks all processes)."""
        given = [besides]
        for wall in self.walls[name]:
            if wall.condition.value is not None:
                values = self._case_value(name, wall, time)
                given += [float(values.min()), float(values.max())]
        result = self.ranks.gather((min(given), max(given)))
        return min(low for low, _ in result), max(high for _, high in result)

    def largest_at_walls(self, name: str, *times: float) -> float:
        """The largest magnitude that walls give a field at these times (asks all processes)."""
        if name not in self._largest_at_walls or self.walls_vary:
            given = [value for time in times for value in self.given_at_walls(name, time)]
            self._largest_at_walls[name] = max(map(abs, given))
        return self._largest_at_walls[name]

    def wall_text(self, wall: Any) -> str:
        kind = getattr(wall, "kind", None)  # only walls of a flow have it
        said = [kind] if kind is not None else []
        for name in self.names:
            condition = getattr(wall, name)
            if condition is not None and condition.value is not None:
                said.append(f"{name} {words(condition.value)}")
            elif condition is not None:
                said.append(f"outward derivative of {name} {words(condition.gradient)}")
        return ", ".join(said)


def model_class(case: Case) -> type[Model]:
    """The class of the model of a case, imported when it is asked for."""
    return resolve_name(case.model_class)


def make_model(
    case: Case, machine: Backend, ranks: Ranks | None = None, grid: Grid | None = None
) -> Model:
    """The model of a case on a machine; `grid` replaces the case's own grid."""
    return model_class(case)(case, machine, grid, ranks)
