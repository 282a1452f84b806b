"""The history of a march: norms, measurements, and fields at single points and along lines.

Values between points of the grid come from multilinear interpolation. A pressure beside an obstacle
comes from a plane through the fluid's cells around, by least squares weighted with 1 / r^4.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from heatsolve.case.output import LINE_TIME
from heatsolve.control.controller import State
from heatsolve.errors import Diverged, InputError
from heatsolve.linear.stopping import GROWTH, first_not_finite, largest_place
from heatsolve.models.base import Model, Stepper, is_past
from heatsolve.models.flow.immersed_boundary import owners
from heatsolve.stencil.grid import Axis
from heatsolve.stencil.language import copy, scaled
from heatsolve.time.integrals import Integrals
from heatsolve.time.schedule import Schedule
from heatsolve.time.step_size import GOLDEN, TimeStep
from heatsolve.time.stop_condition import StopCondition

CHECKS_AT_START = 10
"""Checks at the start of a march: later changes are compared with the largest change in them."""
RISE = 10.0
TIMES_TO_COME = tuple(n * GOLDEN % 1.0 for n in range(1, 257))
"""Shares of the time of a march, at which walls and sources must rest for it to be steady."""
POINTS_TO_COME, FEWEST_TO_COME = 1 << 24, 8
"""The most values of a source that are evaluated for it, a quarter of a second's work; and the
number of times at which sources of large grids are evaluated."""


@dataclass
class TimeLoopState:
    """The state of a march, as checkpoints hold it."""

    time: float = 0.0
    norm: float = math.nan
    """The norm of the change in the last step that was checked."""
    looks: int = 0
    """Checks of a change that was not 0, up to CHECKS_AT_START."""
    largest: float = 0.0
    """The largest norm in these checks."""
    size: float = 0.0
    """The largest magnitude of the initial fields, the walls' values and the sources' terms."""
    checked: float = math.nan
    """The time of the last check."""
    step: float = 0.0
    """The length of the step that was checked last (s)."""
    shortened: bool = False
    """Whether the last step was shorter than the others."""
    closing: list[str] = field(default_factory=list)
    """The columns of the newest row, if only the end of the march asked for this row: a march that
    goes on does not keep it."""


class Log:
    """Keeps the state of a march and the history of the steps that are checked.

    The norm of a step is the l2 norm of the rate of change; divergence is detected by the l2 norm
    of the change. Where a march ends at a steady state, the norm may be the largest rate of change
    instead, or the change of the first field's sum, relative to that sum.
    """

    def __init__(self, problem: Model):
        time = problem.case.march
        self._problem, self._tolerance = problem, time.tolerance
        self._norm = time.norm if time.tolerance is not None else "l2"
        self._total = 0.0
        self._samples = Schedule.of(problem.case.output.sample)
        self._probes, self._lines = Probes(problem), Probes(problem, lines=True)
        self._integrals = Integrals(problem)
        self.state = TimeLoopState()
        self._drive_at_end: tuple[int, tuple[float, float]] | None = None
        """The last step for which `Model.driving_magnitudes` was evaluated, and its values at the
        end of the step."""
        self._rests: tuple[float, bool] | None = None
        """The last time at which walls and sources were examined, and whether they rest."""
        self._changes: tuple[float, bool] = (-math.inf, False)
        """A time to come at which they have other values, and whether sources were evaluated."""
        boxes = problem.case.initial.boxes
        self._last_box = max((time for box in boxes for time in box.again), default=-math.inf)
        """The last time at which a box of `[[initial.box]]` is set again."""
        self.history: dict[str, list[Any]]
        self.history = {"iteration": [], "residual": [], "time": [], "dt": []}
        self._condition, self.stopped = StopCondition(problem.case.stop), ""
        """The condition `stop.when` of the case, and the reason to stop if it holds."""
        self.change = problem.backend.accumulator("max" if self._norm == "max" else "sum")
        """The sum of the squared changes in a checked step, or the largest change."""

    @property
    def steady(self) -> bool:
        """Whether the march has come to a steady state within `time.tolerance`, in which walls,
        sources and boxes keep it until the end."""
        state = self.state
        if self._tolerance is None or not state.norm <= self._tolerance:
            return False
        if state.checked != state.time or not is_past(self._last_box, state.time, state.step):
            return False
        return not self._problem.driven_in_time or self._drive_rests(self._tolerance)

    def _drive_rests(self, tolerance: float) -> bool:
        """Whether walls change by no more than `tolerance` a second, and sources by no more than it
        in all, from the start of the last step to many times until the end."""
        problem, now, end = self._problem, self.state.time, self._problem.case.march.end
        if self._rests is None or self._rests[0] != now:
            most = max(FEWEST_TO_COME, POINTS_TO_COME // problem.whole.all_unknowns)
            # The same times whenever they are asked for, so that a restart ends where a march ends.
            times = [(share * end, n < most) for n, share in enumerate(TIMES_TO_COME)]
            # The time that told last that they change comes first: it tells it most likely again.
            later = [each for each in (self._changes, (end, True), *times) if each[0] > now]
            present = problem.varying_drive(now)
            for time, sources in ((now - self.state.step, True), *later):
                drive = problem.varying_drive(time, sources)
                at_walls, of_sources = problem.drive_changes(drive, present)
                if not (at_walls <= tolerance * abs(time - now) and of_sources <= tolerance):
                    self._rests, self._changes = (now, False), (time, sources)
                    break
            else:
                self._rests = now, True
        return self._rests[1]

    def has_row(self, number: int, time_step: TimeStep, every: int) -> bool:
        """Whether the history has a row of step `number`: where `output.sample` asks for it, by
        default of each `every`-th step."""
        if self._samples.empty:
            return number % every == 0
        return self._samples.due(number, time_step)

    def steps_to_check(self, number: int, time: float, step: float, every: int) -> int:
        """Steps of this length after `number`, up to the next checked one: each `every`-th step,
        and the steps of `output.sample`."""
        if self._norm == "sum-change":
            return 1  # a check begins with the sum before its step
        return min(every - number % every, self._samples.until(number, time, step))

    def read_lines(self, time: float) -> None:
        """Add the values of the newest fields along lines, at the time of a frame."""
        if self._lines:
            row = {LINE_TIME: time, **self._lines.read(self._problem.fields)}
            self.add(row)

    def add(self, row: dict[str, Any]) -> None:
        """Add a row: a value for each of its columns."""
        for name, value in row.items():
            self.history.setdefault(name, []).append(value)

    def start(self) -> None:
        """Begin a new march."""
        problem = self._problem
        sizes = [
            problem.backend.reduce("max", copy, problem.grid.interior, array)
            for name, array in problem.fields.items()
            if name != "pressure"  # only its differences count
        ]
        self.state.size = max(sizes)

    def begin(self, stepper: Stepper, has_row: bool) -> None:
        """Begin a step that will be checked; `has_row`: whether it will have a row of the history
        also if the march is not steady."""
        stepper.is_measured = has_row
        if self._norm == "sum-change":
            self._total = self._sum(stepper)

    def _sum(self, stepper: Stepper) -> float:
        """The sum of the first field over all points of a file."""
        stepper.finish()
        problem = self._problem
        first = next(iter(problem.fields.values()))
        return problem.backend.reduce("sum", copy, problem.grid.stored, first)

    def _norm_of(self, stepper: Stepper, dt: float, change: float) -> float:
        """The norm of a step of length dt; `change`: the value of the accumulator."""
        if self._norm == "max":
            return change / dt
        if not math.isfinite(change):  # the squares may overflow although the values are finite
            largest = self._largest(stepper)
            if self._norm == "l2" or not math.isfinite(largest):
                return largest
        elif self._norm == "l2":
            return math.sqrt(change)
        total = self._sum(stepper)
        if total == self._total:
            return 0.0
        return abs(total - self._total) / (abs(total) or abs(self._total))

    def _largest(self, stepper: Stepper) -> float:
        """The largest magnitude of all fields: it stands for a norm whose squares overflow."""
        problem, fields = self._problem, stepper.fields
        args = "max", copy, problem.grid.interior
        largest = [problem.backend.reduce(*args, fields[name]) for name in problem.fields]
        return float(np.max(largest))  # NaN if one is

    def recall(self, state: State) -> None:
        """Go on from an earlier march."""
        self.state, self.history = TimeLoopState(**state.record["march"]), state.lists
        if "looks" not in state.record["march"]:  # earlier versions: norms of changes, not rates
            self.state.looks = len(self.history["residual"])
            if self._norm == "l2":
                norms = zip(self.history["residual"], self.history["dt"], strict=True)
                self.history["residual"] = [norm / dt for norm, dt in norms]
        if "checked" not in state.record["march"]:  # earlier versions
            steps = self.history["dt"]
            self.state.checked, self.state.step = self.state.time, steps[-1] if len(steps) else 0.0
        if self._lines and LINE_TIME not in self.history:  # earlier versions read lines in each row
            self.history[LINE_TIME] = list(self.history["time"])
        if not self.state.closing:
            self._ask()

    def go_on(self) -> None:
        """After a step: drop the row that only the end of an earlier march asked for."""
        for column in self.state.closing:
            del self.history[column][-1]
        self.state.closing = []

    def drive_anew(self) -> None:
        """After new walls or sources: compare the next changes as at the start of a march."""
        self.state.looks, self._drive_at_end, self._rests = 0, None, None
        self._changes = -math.inf, False

    def check(self, stepper: Stepper, number: int, time_step: TimeStep, has_row: bool) -> None:
        """Check the change in step `number`, and add a row to the history if it `has_row`, or is
        the last step. Raises Diverged where the change grows without bound."""
        state, dt = self.state, time_step.length
        state.checked, state.step = state.time, dt
        columns: dict[str, float] | None = None
        if has_row or time_step.last:
            (change,), columns = stepper.posted_measures(self.change)()
        else:
            (change,) = self._problem.backend.values([self.change])
        state.norm = self._norm_of(stepper, dt, change)
        self._judge(stepper, number, time_step)
        if self._norm == "l2":  # per unit of time, so that a short last step does not lower it
            state.norm /= dt * math.sqrt(len(time_step.parts))
        if columns is None:
            if not self.steady:
                return
            _, columns = stepper.posted_measures()()
        row: dict[str, Any]
        row = {"iteration": number, "residual": state.norm, "time": state.time, "dt": dt}
        row |= columns
        flows = self._problem.case.output.heat_flow
        if flows or self._probes or self._integrals:
            stepper.finish()  # with the walls of this time
            self._problem.time = stepper.time
        if flows:
            row |= self._problem.heat_flows()
        if self._probes:
            row |= self._probes.read(stepper.fields)
        if self._integrals:
            row |= self._integrals.read(stepper.fields)
        self.add(row)
        state.closing = [] if has_row else list(row)
        self._ask()

    def _ask(self) -> None:
        """Stop the march if `stop.when` holds at the newest row."""
        if self._condition.holds(self.history):
            self.stopped = f"stop.when holds, {self._condition.text}"

    def _judge(self, stepper: Stepper, number: int, time_step: TimeStep) -> None:
        """Raise Diverged for a change more than GROWTH times larger than is plausible.

        The largest plausible change is the largest of: the magnitude of the fields at the start,
        the values that walls gave and sources added so far, and the first CHECKS_AT_START changes
        that are not 0. Each of these changes raises this bound by a factor of RISE at most, so that
        a blow-up does not become its own measure.
        """
        state, problem = self.state, self._problem
        if not state.looks or problem.driven_in_time:
            state.size = max(state.size, self._drive_in(number, time_step))
        driven = {
            "l2": state.size * math.sqrt(problem.whole.all_unknowns),
            "max": state.size / time_step.length,
        }
        plausible = max(state.largest, driven.get(self._norm, 0.0))
        if not state.looks and problem.driven_by_rates:
            plausible = max(plausible, state.norm)
        if not (math.isfinite(state.norm) and state.norm <= (GROWTH * plausible or math.inf)):
            raise self.divergence(stepper, number, state.norm)
        if state.norm > 0.0 and state.looks < CHECKS_AT_START:
            state.largest = max(state.largest, min(state.norm, RISE * plausible or math.inf))
            state.looks += 1

    def _drive_in(self, number: int, time_step: TimeStep) -> float:
        """The largest magnitude that walls give the fields in step `number`, or that sources add in
        a part of it. Walls and sources are evaluated at the ends of the parts; their values at the
        start of the step are kept from the end of the step before."""
        times = [part.end for part in time_step.parts]
        drives = []
        if self._problem.driven_in_time:
            kept = self._drive_at_end
            if kept is not None and kept[0] == number - 1:
                drives.append(kept[1])
            else:
                times.insert(0, time_step.parts[0].start)
        drives += [self._problem.driving_magnitudes(time) for time in times]
        self._drive_at_end = number, drives[-1]
        return max(max(at_walls, time_step.length * rate) for at_walls, rate in drives)

    def divergence(self, stepper: Stepper, number: int, norm: float = math.nan) -> Diverged:
        """The error of a march that has diverged by step `number`; `norm`: of the change that
        showed it, if any."""
        stepper.finish()
        problem = stepper.problem
        result = [first_not_finite(problem, u, name) for name, u in problem.fields.items()]
        where = next(filter(None, result), "") or largest_place(problem, problem.fields)
        if not any(result) and math.isfinite(norm):
            where = f"the field changes by {norm:.3g} in one step, {where}"
        return Diverged(f"diverged by step {number} (t = {stepper.time:g}): {where}")


# ---- points and lines ----

Share = tuple[tuple[int, ...], float]
"""The numbers of a point along each axis, counted as in a case, and its weight."""


@dataclass(frozen=True)
class Place:
    """A column of the history, and the points from which each of its values comes."""

    column: str
    field: str
    shares: tuple[tuple[Share, ...], ...]
    single: bool


class Probes:
    """Reads the fields of a problem where its case wants them: at `output.probes`, or along `lines`
    (`output.line`)."""

    def __init__(self, problem: Model, lines: bool = False):
        self._problem = problem
        output, kind = problem.case.output, "line" if lines else "probe"
        probes = [[position] for position in output.probes]
        points = [line.positions() for line in output.lines] if lines else probes
        self._places = [
            Place(f"{kind}_{n}_{name}", name, tuple(
                tuple(self._shares(name, position)) for position in given
            ), not lines)
            for n, given in enumerate(points)
            for name in problem.case.probed
        ]  # fmt: skip
        self._names = list(dict.fromkeys(place.field for place in self._places))
        count = sum(len(place.shares) for place in self._places)
        self._sums = [problem.backend.accumulator("sum") for _ in range(count)]

    def __bool__(self) -> bool:
        return bool(self._sums)

    def read(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A number for each probe and a list for each line, by columns (asks all processes)."""
        backend, sums = self._problem.backend, iter(self._sums)
        own = self._problem.case.field_names
        # In the same order on all processes: derived fields exchange ghosts.
        made = {name: self._problem.written(name) for name in self._names if name not in own}
        fields = {**fields, **made}
        for place in self._places:
            for shares in place.shares:
                into = next(sums)
                for numbers, weight in shares:
                    region = self._own(place.field, numbers)
                    if region is not None:
                        backend.sweep(scaled, into, region, fields[place.field], weight)
        values, result = iter(backend.values(self._sums)), {}
        scales = {name: self._problem.scale(name, fields) for name in self._names}
        for place in self._places:
            datum, factor = scales[place.field]
            several = [(next(values) - datum) * factor for _ in place.shares]
            result[place.column] = several[0] if place.single else several
        return result

    def _own(self, name: str, numbers: Sequence[int]) -> Any:
        """The region of one point, if this process has it."""
        region = []
        for axis, number in zip(self._problem.places(name).axes, numbers, strict=True):
            index = axis.number(number)
            first, stop = axis.stored
            if axis.on_faces and axis.at_ends[0] and not axis.periodic:
                first -= 1
            if not first <= index < stop:
                return None
            region.append((index, index + 1))
        return tuple(region)

    def _shares(self, name: str, position: Sequence[float]) -> Iterator[Share]:
        """The points around a position along x, y, z, and the weights of their values."""
        problem = self._problem
        given = list(zip(problem.places(name).axes, position[::-1], strict=True))
        corners = itertools.product(*[axis.linear(at) for axis, at in given])
        shares = [tuple(zip(*corner, strict=True)) for corner in corners]
        if problem.case.obstacles and name == "pressure":
            cells = itertools.product(*[_around(axis, at, 2) for axis, at in given])
            fluid = [numbers for numbers in cells if not self._inside(numbers)]
            if not {numbers for numbers, _ in shares} <= set(fluid):
                if not fluid:
                    words = ", ".join(f"{x:g}" for x in position)
                    raise InputError(f"output: no fluid is beside the point ({words})")
                shares = [(numbers, (height,)) for numbers, height in plane_weights(fluid, given)]
        for numbers, weights in shares:
            wrapped = [
                number % axis.points if axis.periodic else number
                for number, (axis, _) in zip(numbers, given, strict=True)
            ]
            yield tuple(wrapped), float(np.prod(weights))

    def _inside(self, numbers: Sequence[int]) -> bool:
        """Whether the centre of a cell lies in an obstacle."""
        positions = {}
        for axis, number in zip(self._problem.grid.axes, numbers, strict=True):
            wrapped = number % axis.points if axis.periodic else number
            positions[axis.name] = np.array(axis.lower + (wrapped + 0.5) * axis.spacing)
        ordered = dict(reversed(positions.items()))
        return bool(owners(self._problem.case.obstacles, ordered) > 0)


def plane_weights(
    points: Sequence[tuple[int, ...]], given: Sequence[tuple[Axis, float]]
) -> Iterator[tuple[tuple[int, ...], float]]:
    """The weights of values at points that give the height of their plane at a position.

    The plane of weighted least squares, with 1 / (0.01 + distance^2)^2. Too few points for a plane
    give a level one, the weighted mean. In fractions, because libraries of linear algebra round
    differently on different processors.
    """
    at = [axis.number_at(x) for axis, x in given]
    offsets = [[number - a for number, a in zip(numbers, at, strict=True)] for numbers in points]
    spread = [math.fsum([0.01, *[d * d for d in away]]) for away in offsets]
    weights = [Fraction(1.0 / (s * s)) for s in spread]
    rows = [[Fraction(1), *map(Fraction, away)] for away in offsets]
    height = _height_of(rows, weights) or _height_of([row[:1] for row in rows], weights)
    assert height is not None
    for numbers, row, weight in zip(points, rows, weights, strict=True):
        share = sum(a * b for a, b in zip(row, height, strict=False))
        yield numbers, float(weight * share)


def _height_of(
    rows: Sequence[Sequence[Fraction]], weights: Sequence[Fraction]
) -> list[Fraction] | None:
    """The first row of the inverse of the normal equations; None if they are singular."""
    count = len(rows[0])
    # The normal equations beside the first unit vector, by elimination.
    matrix = [
        [sum((w * row[i] * row[j] for w, row in zip(weights, rows, strict=True)), Fraction())
         for j in range(count)] + [Fraction(i == 0)]
        for i in range(count)
    ]  # fmt: skip
    for k in range(count):
        if matrix[k][k] == 0:  # they are symmetric and semi-definite
            return None
        for i in range(count):
            if i != k:
                factor = matrix[i][k] / matrix[k][k]
                matrix[i] = [a - factor * b for a, b in zip(matrix[i], matrix[k], strict=True)]
    return [matrix[k][count] / matrix[k][k] for k in range(count)]


def _around(axis: Axis, at: float, reach: int) -> list[int]:
    """The numbers of `reach` points before a position and of `reach` points behind it."""
    low = math.floor(axis.number_at(at))
    numbers = range(low + 1 - reach, low + 1 + reach)
    first = -1 if axis.on_faces else 0
    return [n for n in numbers if axis.periodic or first <= n < axis.points]
