"""A steady solution, and the march to the end time."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from heatsolve.case.case import Case
from heatsolve.control.controller import CheckpointController, State, Stopped
from heatsolve.errors import Diverged, NotConverged
from heatsolve.linear.iterate import Outcome, Watcher, solve
from heatsolve.linear.stopping import GROWTH, Criterion, first_not_finite, largest_place
from heatsolve.linear.system import Method, System
from heatsolve.models.base import FUZZ, Model, Stepper
from heatsolve.models.heat.solver import make_method, stall
from heatsolve.stencil.language import copy
from heatsolve.time.probes import LINE_TIME, Probes
from heatsolve.time.step_size import TimeStep, TimeStepController

LOOKS_AT_START = 10
"""Looks at a march whose largest change is what later ones are compared with."""
RISE = 10.0
FEW_LOOKS = 1000
"""Looks at a march of which nobody asks for more than the norm, at least."""


def steady(
    problem: Model,
    watcher: Watcher,
    controller: CheckpointController | None = None,
    resumed: State | None = None,
) -> Outcome:
    """Solve A u = b, as div(k grad T) + q = 0; the solution is left in the model's field.

    From a `resumed` state it goes on as if it had not stopped.
    """
    system = problem.steady_system()
    if reason := stall(problem.case, system.singular):
        watcher.warn(reason)
    (field,) = problem.fields.values()
    total = problem.add_magnitudes

    def begin(system: System, exponent: int) -> tuple[Method, Criterion]:
        # The criterion first: the array that it needs is free again when the method makes its own.
        criterion = Criterion(problem.case.solver, system, field, total=total, exponent=exponent)
        method = make_method(problem.case, system, field)
        if resumed is not None:
            for name, array in method.memory(resumed.number).items():
                problem.restore(array, resumed.fields[name])
        return method, criterion

    outcome = solve(system, field, begin, problem.reset, watcher, controller, resumed)
    if system.singular:
        system.remove_mean(field)
    if problem.case.solver.update is not None:
        problem.set_walls(0.0)  # wall nodes that copy what is inside
    return outcome


# ---- transient ---------------------------------------------------------------------------------

Frame = Callable[[float], None]


@dataclass
class TimeLoopState:
    """How a march went so far: the time, the norm of the last change that was looked at, how many
    of the first ones were not 0, the largest of their norms, the largest magnitude of the fields at
    the start and of what drove them since, and whether the last step was shorter than the others.
    """

    time: float = 0.0
    norm: float = math.nan
    looks: int = 0
    largest: float = 0.0
    size: float = 0.0
    shortened: bool = False


def passed_by(case: Case, time_steps: TimeStepController | None, state: State) -> str:
    """Why the march, or the iteration, of a case does not come through a state of an earlier one.

    Nothing if it does.
    """
    if time_steps is None:
        most = case.solver.iterations
        over = most is not None and state.number > most
        return f"it lies beyond the end of this run, solver.iterations = {most}" if over else ""
    march = TimeLoopState(**state.record["march"])
    if time_steps.passes(state.number, march.time, march.shortened):
        return ""
    assert case.time is not None
    if march.shortened and march.time < case.time.end:
        return (
            f"its last step was shortened to end at t = {march.time:g}, where no step of a run "
            f"to time.end = {case.time.end:g} ends"
        )
    return (
        f"it lies at t = {march.time:g}, beyond the end of this run, time.end = {case.time.end:g}"
    )


def transient(
    problem: Model,
    time_steps: TimeStepController,
    watcher: Watcher,
    frame: Frame,
    controller: CheckpointController | None = None,
    resumed: State | None = None,
) -> Outcome:
    """March to the end time; `frame(t)` is called whenever the field is to be written.

    From a `resumed` state it goes on as if it had not stopped.
    """
    case = problem.case
    assert case.time is not None
    every, look = case.output.every, steps_to_look(case, time_steps.count)
    controller = controller or CheckpointController()
    number, log, stepper = begin(problem, time_steps, resumed)

    def write(time: float) -> None:
        stepper.present()
        frame(time)
        log.read_lines(time)

    def capture() -> State:
        record: dict[str, Any] = {"unit": "steps", "march": asdict(log.state)}
        record |= {"pace": time_steps.state, "stepper": stepper.scalars}
        return State(number, record, log.history, stepper.fields)

    if resumed is None:
        write(0.0)
    controller.begin(number, resumed is not None and resumed.finished)
    while not (time_steps.over(number, log.state.time) or log.steady):
        if number >= controller.next:
            problem.backend.sync()
            controller.check(number, capture)
        time_step = time_steps.next_step(number, log.state.time, stepper.fields)
        sampled = time_step.last or log.samples(number + 1, time_step)
        looks = sampled or (number + 1) % look == 0
        if looks:
            log.begin(stepper)
        try:
            stepper.step(time_step.parts, log.change if looks else None, controller.inside)
        except Stopped as stopped:
            stepper.undo()
            controller.interrupt(capture, stopped.exit_code)
        except Diverged:  # by an iteration inside the step
            raise log.divergence(stepper, number + 1) from None
        except NotConverged as error:
            watcher.warn(str(error))
            stepper.finish()
            frame(stepper.time)
            log.read_lines(stepper.time)
            return Outcome("limit", number + 1, stepper.norm, history=log.history)
        number += 1
        log.state.time, log.state.shortened = stepper.time, time_step.shortened
        if looks:
            log.look(stepper, number, time_step, sampled)
            in_all = time_steps.steps_in_all(number, stepper.time)
            watcher.progress(number, log.state.norm, in_all)
        if every and number % every == 0:
            write(case.time.end if time_step.last else stepper.time)
    # A last frame that a march to a later end would not have is not kept for one.
    controller.finish(capture)
    if not (every and number % every == 0):
        write(case.time.end if time_steps.over(number, log.state.time) else stepper.time)
    ending = "count" if case.time.tolerance is None else "tolerance" if log.steady else "limit"
    threshold = case.time.tolerance or 0.0
    return Outcome(ending, number, log.state.norm, threshold=threshold, history=log.history)


def steps_to_look(case: Case, count: int) -> int:
    """Steps from one checked step to the next, in a march of about `count` steps.

    `solver.check_every`; where nobody asks for more than the norm, some 1000 in all. Steps that
    `output.sample` asks for are looked at besides.
    """
    assert case.time is not None
    forces = case.obstacles or any(name.startswith("mean") for name in case.source.model_fields_set)
    told = case.time.tolerance is not None or "check_every" in case.solver.model_fields_set
    measured = (case.output.probes or forces) and case.output.sample is None
    if measured or told:
        return case.solver.check_every
    return max(1, count // FEW_LOOKS)


def begin(
    problem: Model, time_steps: TimeStepController, resumed: State | None
) -> tuple[int, "Log", Stepper]:
    """The number of steps that are done, the log of them, and who makes the others."""
    log = Log(problem)
    if resumed is not None:
        log.recall(resumed)
        time_steps.recall(resumed.record["pace"])
        problem.recall(resumed.fields, log.state.time)
    stepper = problem.stepper(log.state.time, time_steps.step)
    if resumed is None:
        stepper.prepare()
        log.start()
        return 0, log, stepper
    stepper.recall(resumed.number, resumed.record["stepper"], resumed.fields)
    return resumed.number, log, stepper


class Log:
    """Keeps the state of a march and the history of the steps that are looked at.

    The norm of a step is the l2 norm of the rate of change, and a step is judged by that of its
    change; where the march ends at a steady state, it is the largest rate of change, or the change
    of the sum of the first field relative to that sum.
    """

    def __init__(self, problem: Model):
        time = problem.case.time
        assert time is not None
        self._problem, self._tolerance = problem, time.tolerance
        self._norm = time.norm if time.tolerance is not None else "l2"
        self._total = 0.0
        self._output = problem.case.output
        self._probes, self._lines = Probes(problem), Probes(problem, lines=True)
        self.state = TimeLoopState()
        self._drive_at_end: tuple[int, tuple[float, float]] | None = None
        """The last step that was judged by what drives it, and what does at its end."""
        self.history: dict[str, list[Any]]
        self.history = {"iteration": [], "residual": [], "time": [], "dt": []}
        self.change = problem.backend.accumulator("max" if self._norm == "max" else "sum")
        """Takes the squares of the changes in a step that is looked at, or the largest one."""

    @property
    def steady(self) -> bool:
        """Whether the march has come to the steady state that it was to reach."""
        return self._tolerance is not None and self.state.norm <= self._tolerance

    def samples(self, number: int, time_step: TimeStep) -> bool:
        """Whether `output.sample` asks for a row of the history after step `number`."""
        if (seconds := self._output.sample_seconds) is None:
            return number % (self._output.sample_steps or math.inf) == 0
        # A time that rounding leaves before a moment counts as that moment.
        slack = FUZZ * time_step.length
        begin, end = (time_step.parts[n] for n in (0, -1))
        return (end.end + slack) // seconds > (begin.start + slack) // seconds

    def read_lines(self, time: float) -> None:
        """Add what the newest fields are along lines, at the time of a frame."""
        if self._lines:
            row = {LINE_TIME: time, **self._lines.read(self._problem.fields)}
            self._add(row)

    def _add(self, row: dict[str, Any]) -> None:
        for name, value in row.items():
            self.history.setdefault(name, []).append(value)

    def start(self) -> None:
        """A march begins anew."""
        problem = self._problem
        sizes = [
            problem.backend.reduce("max", copy, problem.grid.interior, array)
            for name, array in problem.fields.items()
            if name != "pressure"  # of which only differences count
        ]
        self.state.size = max(sizes)

    def begin(self, stepper: Stepper) -> None:
        """A step begins that will be looked at."""
        if self._norm == "sum-change":
            self._total = self._sum(stepper)

    def _sum(self, stepper: Stepper) -> float:
        """Of the first field, over all points of a file."""
        stepper.finish()
        problem = self._problem
        first = next(iter(problem.fields.values()))
        return problem.backend.reduce("sum", copy, problem.grid.stored, first)

    def _norm_of(self, stepper: Stepper, dt: float) -> float:
        change = self.change.take()
        if self._norm == "max":
            return change / dt
        if not math.isfinite(change):  # as squares may be of values that are
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
        if "looks" not in state.record["march"]:  # an earlier version: norms were those of changes
            self.state.looks = len(self.history["residual"])
            if self._norm == "l2":
                norms = zip(self.history["residual"], self.history["dt"], strict=True)
                self.history["residual"] = [norm / dt for norm, dt in norms]
        if self._lines and LINE_TIME not in self.history:  # an earlier version read them in rows
            self.history[LINE_TIME] = list(self.history["time"])

    def look(self, stepper: Stepper, number: int, time_step: TimeStep, sampled: bool) -> None:
        """Take the change in step `number`; the history has a row of each such step, but where the
        case says of which: of those that are `sampled`, and of the last.

        Raises Diverged where the change grew without bound.
        """
        state, dt = self.state, time_step.length
        state.norm = self._norm_of(stepper, dt)
        self._judge(stepper, number, time_step)
        if self._norm == "l2":  # which is kept per time: a short last step does not bend it
            state.norm /= dt * math.sqrt(len(time_step.parts))
        if not (sampled or self.steady or self._output.sample is None):
            return
        row: dict[str, Any]
        row = {"iteration": number, "residual": state.norm, "time": state.time, "dt": dt}
        row |= stepper.measures()
        if self._probes:
            stepper.finish()  # walls of this very time
            row |= self._probes.read(stepper.fields)
        self._add(row)

    def _judge(self, stepper: Stepper, number: int, time_step: TimeStep) -> None:
        """Demand that a change is no blow-up, by all that drives the march, and the changes before.

        That is the largest magnitude of the fields at the start, or that walls gave and sources
        added up to now. The first changes, LOOKS_AT_START of them that are not 0, raise what later
        ones are compared with, each to RISE times of it at most: a blow-up shall not be its own
        measure.
        """
        state, problem = self.state, self._problem
        if not state.looks or problem.driven_in_time:
            state.size = max(state.size, self._drive_in(number, time_step))
        driven = {
            "l2": state.size * math.sqrt(problem.whole.all_unknowns),
            "max": state.size / time_step.length,
        }
        known = max(state.largest, driven.get(self._norm, 0.0))
        if not state.looks and problem.driven_by_rates:
            known = max(known, state.norm)
        if not (math.isfinite(state.norm) and state.norm <= (GROWTH * known or math.inf)):
            raise self.divergence(stepper, number, state.norm)
        if state.norm > 0.0 and state.looks < LOOKS_AT_START:
            state.largest = max(state.largest, min(state.norm, RISE * known or math.inf))
            state.looks += 1

    def _drive_in(self, number: int, time_step: TimeStep) -> float:
        """The largest magnitude that walls give the fields in step `number`, or that sources add
        to them in a part of it: at the ends of its parts. The end of a step before is known."""
        times = [part.end for part in time_step.parts]
        drives = []
        if self._problem.driven_in_time:
            known = self._drive_at_end
            if known is not None and known[0] == number - 1:
                drives.append(known[1])
            else:
                times.insert(0, time_step.parts[0].start)
        drives += [self._problem.drive(time) for time in times]
        self._drive_at_end = number, drives[-1]
        return max(max(at_walls, time_step.length * rate) for at_walls, rate in drives)

    def divergence(self, stepper: Stepper, number: int, norm: float = math.nan) -> Diverged:
        """What to say of a march that has grown without bound by step `number`, by a change of
        this norm if that is what told."""
        stepper.finish()
        problem = stepper.problem
        result = [first_not_finite(problem, u, name) for name, u in problem.fields.items()]
        where = next(filter(None, result), "") or largest_place(problem, problem.fields)
        if not any(result) and math.isfinite(norm):
            where = f"the field changes by {norm:.3g} in one step, {where}"
        return Diverged(f"diverged by step {number} (t = {stepper.time:g}): {where}")
