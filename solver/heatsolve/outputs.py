"""The files of a run: `CASE.h5` with all points, and one for each `[[output.file]]`.

Each file has its own fields, points, precision and schedule; many processes write it in parts, by
`io.writer.Results`.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heatsolve.case.case import Case
from heatsolve.case.output import OutputFile, beside
from heatsolve.control.controller import State
from heatsolve.errors import InputError
from heatsolve.io.data import file_of
from heatsolve.io.memory import Kept
from heatsolve.io.writer import Results
from heatsolve.models.base import Model
from heatsolve.stencil.grid import TOUCH, Axis, Grid, whole
from heatsolve.stencil.language import shifted
from heatsolve.time.schedule import Schedule

COLUMNS = ("iteration", "residual", "time", "dt")
"""The columns of the history that each file has; CASE.h5 has all columns."""


@dataclass(frozen=True)
class Points:
    """The points of a file along one axis, and which of them this process owns.

    coordinates: the positions of all points; window: the numbers of the own points in the file, as
    (first, last + 1), (0, 0) if there are none; low, high: the range of array indices in which the
    own points are every `stride`-th element.
    """

    coordinates: np.ndarray
    window: tuple[int, int]
    low: int
    high: int
    stride: int

    @classmethod
    def of(cls, whole_axis: Axis, own: Axis, low: float, high: float, stride: int) -> "Points":
        """Every `stride`-th point between two positions; the nearest point if none lies there."""
        line = whole_axis.coordinates[slice(*whole_axis.stored)]
        near = TOUCH * whole_axis.spacing
        inside = np.flatnonzero((line >= low - near) & (line <= high + near))
        if not inside.size:
            inside = np.array([np.argmin(np.abs(line - 0.5 * (low + high)))])
        numbers = inside[::stride]
        begin, end = own.stored_at
        mine = np.flatnonzero((numbers >= begin) & (numbers < end))
        window = (int(mine[0]), int(mine[-1]) + 1) if mine.size else (0, 0)
        first = own.stored[0] - begin
        ends = numbers[[window[0], window[1] - 1]] + first if mine.size else (0, -1)
        return cls(line[numbers], window, int(ends[0]), int(ends[1]) + 1, stride)


def refuse_to_replace_data(case: Case, paths: Iterable[Path], advice: str) -> None:
    """Raise InputError, with the key, if a file that is to be written holds data of the case."""
    written = [path for path in paths if path.exists()]
    for key, data in case.data():
        source = file_of(data)
        if source is None or not source.exists():
            continue
        if any(path.samefile(source) for path in written):
            raise InputError(f"{key}: the run would replace {source}: {advice}")


def points_of(section: OutputFile | None, case: Case, grid: Grid, own: Grid) -> list[Points]:
    """The points of a file along the axes, slowest first; `own` is the block of this process."""
    low, high, strides = case.grid.lower, case.grid.upper, (1,) * case.grid.dimension
    if section is not None:
        low, high = section.lower or low, section.upper or high
        strides = section.strides(case.grid.dimension)
    axes = zip(grid.axes, own.axes, low[::-1], high[::-1], strides[::-1], strict=True)
    return [Points.of(*each) for each in axes]


class File(AbstractContextManager["File"]):
    """A file of a run: its points, its fields and its schedule.

    `section` is its table in the case, None for the file of all points. Without a path the file is
    kept in memory.
    """

    def __init__(
        self, problem: Model, path: Path | None, section: OutputFile | None, secured: Any = ()
    ) -> None:
        case, self.problem, self.section = problem.case, problem, section
        self.path = path
        if path is not None and section is not None:
            self.path = beside(path, f"_{section.name}.h5")
        self._points = points_of(section, case, problem.whole, problem.grid)
        self._shape = [points.high - points.low for points in self._points]
        self._box: Any = None
        self.schedule = Schedule.of((section or case.output).every)
        args = (
            {a.name: p.coordinates for a, p in zip(problem.whole.axes, self._points, strict=True)},
            case.all_units,
            tuple(points.window for points in self._points),
            problem.ranks,
        )
        transient, compression = not case.model.steady, (section or case.output).compression
        self._results: Results | Kept
        if self.path is not None:
            given = {"secured": secured, "compression": compression}
            self._results = Results(self.path, *args, transient=transient, **given)
        else:
            self._results = Kept(*args, transient=transient)
        self.secure = self._results.secure

    @property
    def names(self) -> tuple[str, ...]:
        """The fields that the file holds."""
        case = self.problem.case
        return case.written if self.section is None else self.section.fields or case.field_names

    @property
    def presents(self) -> bool:
        """Whether a frame needs the pressure of its own time, for which a flow solves once more;
        lines, which are read with the frames of the first file, need it, too."""
        lines = self.problem.case.output.lines if self.section is None else ()
        return bool(lines) or any(name.startswith("pressure") for name in self.names)

    @property
    def newest(self) -> float | None:
        """The time of the last frame."""
        return self._results.last

    def append(
        self, time: float | None = None, fields: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """Write a frame, by default of the model's fields; `time` is None in a steady case."""
        self._results.append(self._values() if fields is None else fields, time)

    def finish(self, attributes: Mapping[str, object], history: Mapping[str, Any]) -> Any:
        """Complete the file; return its content, a Solution, if it is in memory only."""
        columns = {name: np.asarray(values) for name, values in history.items()}
        if self.section is not None:
            attributes = {**attributes, "output": self.section.name}
            columns = {name: columns[name] for name in COLUMNS if name in columns}
        return self._results.finish(attributes, columns)

    def __exit__(self, *error: object) -> None:
        self._results.__exit__(*error)

    def _values(self) -> dict[str, np.ndarray]:
        """The fields at the points of this process, on the host."""
        problem = self.problem
        if self.section is None:
            return problem.stored()
        precision = self.section.precision or problem.case.solver.field_precision
        thin = tuple(slice(None, None, points.stride) for points in self._points)
        result = {}
        for name in self.names:
            array = problem.written(name)
            if 0 in self._shape:  # no own points here, but all processes make the field
                values = np.empty(self._shape)
            else:
                # Cut out on the device, so that only the box of a field travels to the host.
                if self._box is None:
                    self._box = problem.backend.zeros(self._shape)
                lows = [points.low for points in self._points]
                problem.backend.sweep(shifted, self._box, whole(self._shape), array, *lows)
                values = problem.backend.to_host(self._box)[thin]
            result[name] = np.ascontiguousarray(values, precision)
        return result


class Files(AbstractContextManager["Files"]):
    """All files of a run; the first one has all points.

    A context, as `Results` is: leaving it without `finish` removes frames that are not secured.
    """

    def __init__(self, problem: Model, path: Path | None, resumed: State | None) -> None:
        record = resumed.record if resumed is not None else {}
        others, self.problem = record.get("files", {}), problem
        with ExitStack() as stack:
            made = stack.enter_context(File(problem, path, None, record.get("frames", ())))
            self._files = [made]
            for section in problem.case.output.files if path is not None else ():
                secured = others.get(section.name, ())
                made = stack.enter_context(File(problem, path, section, secured))
                self._files.append(made)
            self._end = stack.pop_all()

    def __exit__(self, *_: object) -> None:
        self._end.close()

    def __iter__(self) -> Iterator[File]:
        return iter(self._files)

    def take(self, problem: Model) -> None:
        """From now on write the fields of another model on the same grid."""
        self.problem = problem
        for file in self._files:
            file.problem = problem

    def secure(self) -> dict[str, Any]:
        """Make all frames durable; return the record from which a restart goes on behind them."""
        first, *others = self._files
        files = {file.section.name: file.secure() for file in others if file.section is not None}
        return {"frames": first.secure()} | ({"files": files} if files else {})

    @property
    def newest(self) -> float | None:
        """The time of the last frame."""
        return self._files[0].newest

    def finish(self, attributes: Mapping[str, object], history: Mapping[str, Any]) -> Any:
        """Complete all files, the file of all points last; return its content as `File` does."""
        return [file.finish(attributes, history) for file in reversed(self._files)][-1]
