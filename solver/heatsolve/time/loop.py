"""A steady solution, and the march to the end time."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

import numpy as np

from heatsolve.case.case import Case
from heatsolve.control.controller import CheckpointController, State, Stopped
from heatsolve.errors import CaseError, Diverged, InputError, NotConverged
from heatsolve.linear.iterate import Outcome, Watcher, solving
from heatsolve.linear.stopping import Criterion, demand_normal
from heatsolve.linear.system import Method, System
from heatsolve.models.base import ROUNDING, Model, Stepper
from heatsolve.models.heat.solver import make_method, stall
from heatsolve.time.history import Log, TimeLoopState
from heatsolve.time.pause import Pause, Until
from heatsolve.time.sampling import Sampling
from heatsolve.time.schedule import Schedule
from heatsolve.time.step_size import TimeStep, TimeStepController

FEWEST_CHECKS, FEWEST_OF_PASSES = 1000, 100
"""The least number of checks in a march whose history needs only the norm, and in one that makes
the steps between two checks in passes, if it can."""
Pauses = Generator[Pause, Until | None, Outcome]
"""A run that pauses before its first iteration or step. At each pause the program sends the place
of the next pause; None: go on to the end."""


def iterating(
    problem: Model,
    watcher: Watcher,
    controller: CheckpointController | None = None,
    resumed: State | None = None,
) -> Pauses:
    """Solve A u = b, for instance div(k grad T) + q = 0; the solution is in the model's field.

    A run that goes on from a `resumed` state gives the bits of an uninterrupted run.
    """
    system = problem.steady_system()
    if reason := stall(problem.case, system.singular):
        watcher.warn(reason)
    ((name, field),) = problem.fields.items()
    total, made = problem.add_magnitudes, list[Method]()

    def begin(system: System, exponent: int) -> tuple[Method, Criterion]:
        made.clear()
        # The criterion first: it frees its array before the method allocates its own.
        criterion = Criterion(problem.case.solver, system, field, total=total, exponent=exponent)
        method = make_method(problem.case, system, field)
        made.append(method)
        if exponent == 0:  # else the field itself is scaled
            method.settle()
        if resumed is not None:
            for key, array in method.memory(resumed.number).items():
                problem.restore(array, resumed.fields[key])
        return method, criterion

    iterates = solving(system, field, begin, problem.reset, watcher, controller, resumed)
    until: Until | None = None
    while True:
        try:
            at = iterates.send(until)
        except StopIteration as end:
            outcome: Outcome = end.value
            break

        def present(u: Any = at.u) -> dict[str, Any]:
            return {name: problem.complete(u)}

        again = resumed is not None
        until = yield Pause(problem, at.number, None, at.norm, again, present, back=at.back)
    problem.take(field := made[-1].u)
    if outcome.count == 0 and outcome.norm == 0.0:
        demand_normal(system, field)
    if system.singular:
        system.remove_mean(field)
    problem.complete(field)
    return outcome


# ---- transient ---------------------------------------------------------------------------------


class Output(Protocol):
    """A file that takes frames of a march."""

    schedule: Schedule

    @property
    def newest(self) -> float | None:
        """The time of its last frame, which an interrupted run may have written."""

    @property
    def presents(self) -> bool:
        """Whether it holds fields that only a frame needs, such as the pressure at its time."""

    def append(self, time: float, /) -> None:
        """Write the fields of a time."""


Settings = Sequence[tuple[str, str]]
Commit = Callable[[int, float], None]
Remodel = Callable[[Settings], tuple[Model, TimeStepController, Commit] | None]
"""Makes the model and the time steps of the case with new settings, and the function that commits
the run to these settings after a step, at its time; None where the settings change nothing. Raises
InputError for settings that no case can have."""


def passed_by(case: Case, time_steps: TimeStepController | None, state: State) -> str:
    """Why a run of a case cannot go on from the state of an earlier run; "" if it can.

    It cannot where its own march, or iteration, does not pass through that state.
    """
    if time_steps is None:
        most = case.solver.iterations
        over = most is not None and state.number > most
        return f"it lies beyond the end of this run, solver.iterations = {most}" if over else ""
    march = TimeLoopState(**state.record["march"])
    if time_steps.contains_step(state.number, march.time, march.shortened):
        return ""
    if march.shortened and march.time < case.march.end:
        return (
            f"its last step was shortened to end at t = {march.time:g}, where no step of a run "
            f"to time.end = {case.march.end:g} ends"
        )
    return (
        f"it lies at t = {march.time:g}, beyond the end of this run, time.end = {case.march.end:g}"
    )


class TimeLoop:
    """A march to the end time; outputs get the first frame, their scheduled frames, and the last.

    Lines are read with the frames of the first output. A march that goes on from a `resumed` state
    gives the bits of an uninterrupted march. Settings that are sent at a pause need `remodel`.
    """

    def __init__(
        self,
        problem: Model,
        time_steps: TimeStepController,
        watcher: Watcher,
        outputs: Sequence[Output],
        controller: CheckpointController | None = None,
        resumed: State | None = None,
        remodel: Remodel | None = None,
    ):
        self._problem, self._time_steps, self._case = problem, time_steps, problem.case
        self._watcher, self._outputs = watcher, outputs
        self._controller = controller or CheckpointController()
        self._resumed, self._remodel = resumed, remodel
        self._check_every = steps_per_check(problem, time_steps.count)
        self._number, self._log, self._stepper, self._sampling = begin(problem, time_steps, resumed)
        self._asked = Until()

    def run(self) -> Pauses:
        """Make all steps. The march pauses before the first step, and where it is asked to."""
        resumed = self._resumed
        if resumed is None:
            self._write(0.0, self._outputs)
        self._controller.begin(self._number, resumed is not None and resumed.finished)
        yield from self._pause()
        while not self._ends:
            if self._number >= self._controller.next:
                self._problem.backend.sync()
                self._controller.check(self._number, self._capture)
            time_step = self._step()
            if time_step is None:
                norm, history = self._log.state.norm, self._log.history
                return Outcome("limit", self._number + 1, norm, history=history)
            if not self._ends and self._reaches(time_step):
                yield from self._pause()
        # Saved before the last frame, which a march that goes on to a later end does not keep.
        self._controller.finish(self._capture)
        self._write(self._case.march.end if self._over else self._stepper.time, self._outputs)
        return self._outcome()

    def _step(self) -> TimeStep | None:
        """Make a step, after steps without checks and frames if there are any; None: not converged.

        The log takes the step, and the outputs write it if a frame is due.
        """
        log, stepper, time_steps = self._log, self._stepper, self._time_steps
        before = self._steps_before()
        number = self._number + before + 1
        time_step = time_steps.next_step(number - 1, log.state.time, stepper)
        has_row = log.has_row(number, time_step, self._check_every)
        checked = has_row or time_step.last or number % self._check_every == 0
        if checked:
            log.begin(stepper, has_row or time_step.last)
        try:
            change = log.change if checked else None
            stepper.step(time_step.parts, change, self._controller.inside, before)
        except Stopped as stopped:
            stepper.undo()
            self._controller.interrupt(self._capture, stopped.exit_code)
        except Diverged:  # raised by an iteration inside the step
            raise log.divergence(stepper, self._number + 1) from None
        except NotConverged as error:
            self._watcher.warn(str(error))
            stepper.finish()
            self._append(stepper.time, self._outputs)
            log.read_lines(stepper.time)
            return None
        self._number = number
        log.go_on()
        log.state.time, log.state.shortened = stepper.time, time_step.shortened
        log.add(self._sampling.take(stepper, number, time_step))
        if checked:
            log.check(stepper, number, time_step, has_row)
            in_all = time_steps.steps_in_all(number, stepper.time)
            self._watcher.progress(number, log.state.norm, in_all)
        if due := [each for each in self._outputs if each.schedule.due(number, time_step)]:
            self._write(self._case.march.end if time_step.last else stepper.time, due)
        if time_step.last:
            self._tell_of_boxes(time_step)
        return time_step

    def _tell_of_boxes(self, last: TimeStep) -> None:
        """Warn of boxes whose times lie within the last step: no step begins later to set them."""
        begin = last.parts[0].start + ROUNDING * last.length
        for number, box in enumerate(self._case.initial.boxes):
            for due in box.again:
                if due > begin:
                    self._watcher.warn(
                        f"initial.box.{number}.again: no step begins at t = {due:g} or later, so "
                        "the box is not set again then"
                    )

    def _steps_before(self) -> int:
        """How many steps are made in one call, before the next step with a check or a frame."""
        stepper, asked, number = self._stepper, self._asked, self._number
        if stepper.most_steps == 1:
            return 0
        now = number, self._log.state.time, self._time_steps.step
        schedules = [asked.schedule, *(output.schedule for output in self._outputs)]
        until = min(
            stepper.most_steps,
            self._time_steps.steps_of_one_length(number),
            self._log.steps_to_check(*now, self._check_every),
            self._sampling.until(*now),
            self._controller.next - number,
            asked.number - number,
            Schedule(times=(asked.time,)).until(*now),
            *(schedule.until(*now) for schedule in schedules),
        )
        return max(until, 1) - 1

    @property
    def _over(self) -> bool:
        """Whether the march has come to its end time."""
        return self._time_steps.over(self._number, self._log.state.time)

    @property
    def _ends(self) -> bool:
        """Whether there is no further step."""
        log = self._log
        return bool(self._over or log.steady or log.stopped or self._asked.stop)

    def _reaches(self, time_step: TimeStep) -> bool:
        """Whether a step reaches the next pause that was asked for."""
        asked, number = self._asked, self._number
        reached = time_step.parts[-1].end + ROUNDING * time_step.length >= asked.time
        due = asked.schedule.due(number, time_step)
        return reached or due or number >= asked.number or asked.hurried

    def _outcome(self) -> Outcome:
        log, march = self._log, self._case.march
        reason = "" if self._over or log.steady else log.stopped or self._asked.stop
        ending = "count" if march.tolerance is None else "tolerance" if log.steady else "limit"
        threshold, norm = march.tolerance or 0.0, log.state.norm
        outcome = Outcome(ending, self._number, norm, threshold=threshold, history=log.history)
        return replace(outcome, ending="stopped", reason=reason) if reason else outcome

    # ---- frames and checkpoints ----

    def _write(self, time: float, due: Sequence[Output]) -> None:
        """Write the frame of a time to outputs that do not have it yet."""
        due = [output for output in due if output.newest != time]
        if any(output.presents for output in due):
            self._stepper.present()
        elif due:
            self._stepper.finish()
        self._append(time, due)
        if any(output is self._outputs[0] for output in due):
            self._log.read_lines(time)

    def _append(self, time: float, outputs: Sequence[Output]) -> None:
        self._problem.time = time
        for output in outputs:
            output.append(time)

    def _capture(self) -> State:
        """The state, for a checkpoint."""
        record: dict[str, Any] = {"unit": "steps", "march": asdict(self._log.state)}
        record |= {"pace": self._time_steps.state, "stepper": self._stepper.scalars}
        record |= self._sampling.record
        history, points = self._log.history, self._problem.statistics.arrays
        return State(self._number, record, history, self._stepper.fields, points)

    # ---- pauses ----

    def _pause(self) -> Generator[Pause, Until | None, None]:
        """Pause until the program says how far to go on; take its settings at once."""
        refused = None
        while True:
            self._problem.backend.sync()
            state, restarted = self._log.state, self._resumed is not None
            args = self._problem, self._number, state.time, state.norm, restarted
            pause = Pause(*args, self._present, self._log.history, refused=refused)
            self._asked = (yield pause) or Until()
            if not self._asked.settings:
                return
            refused = None
            try:
                self._change(self._asked.settings)
            except InputError as error:
                if self._problem.ranks.size > 1 and not isinstance(error, CaseError):
                    raise  # perhaps only this process has the error
                refused = error

    def _present(self) -> Mapping[str, Any]:
        """The fields of a frame at the present time."""
        self._stepper.present()
        self._problem.time = self._log.state.time
        return self._problem.fields

    def _change(self, settings: Settings) -> None:
        """Go on with other walls or sources: with a model of the changed case, from the same state.

        This is a restart without a file, so that a restart from a file gives the same bits.
        """
        assert self._remodel is not None
        if (new := self._remodel(settings)) is None:
            return
        problem, time_steps, commit = new
        old = self._problem
        old.backend.sync()
        state = self._capture()
        state = replace(
            state,
            fields={name: old.own(array) for name, array in state.fields.items()},
            history={name: np.asarray(values) for name, values in state.history.items()},
            points={name: old.own_points(array) for name, array in state.points.items()},
        )
        _, log, stepper, sampling = begin(problem, time_steps, state)
        problem.driving_magnitudes(log.state.time)  # may raise, before the run is committed
        commit(self._number, log.state.time)
        self._problem, self._time_steps = problem, time_steps
        self._check_every = steps_per_check(problem, time_steps.count)
        self._log, self._stepper, self._sampling = log, stepper, sampling
        log.drive_anew()
        time_steps.drive_anew()


def steps_per_check(problem: Model, count: int) -> int:
    """Steps from one checked step to the next, in a march of about `count` steps.

    It is `solver.check_every` where the case sets that key, or where the history needs more than
    the norm; otherwise there are about FEWEST_CHECKS checks in all, or FEWEST_OF_PASSES. The steps
    of `output.sample` are checked in addition.
    """
    case = problem.case
    forces = case.obstacles or any(name.startswith("mean") for name in case.source.model_fields_set)
    told = case.march.tolerance is not None or "check_every" in case.solver.model_fields_set
    output, integrals = case.output, case.statistics.integrals
    rows = output.probes or output.heat_flow or integrals or forces
    measured = rows and output.sample is None
    if measured or told:
        return case.solver.check_every
    in_passes = problem.joins_steps and case.stop.when is None
    return max(1, count // (FEWEST_OF_PASSES if in_passes else FEWEST_CHECKS))


def begin(
    problem: Model, time_steps: TimeStepController, resumed: State | None
) -> tuple[int, "Log", Stepper, Sampling]:
    """The number of steps so far, their log, and the stepper and sampling of the next steps."""
    log, sampling = Log(problem), Sampling(problem)
    if resumed is not None:
        log.recall(resumed)
        time_steps.recall(resumed.record["pace"])
        problem.recall(resumed.fields, log.state.time)
        sampling.recall(resumed.record, resumed.points)
    stepper = problem.stepper(log.state.time, time_steps.step)
    if resumed is None:
        stepper.prepare()
        log.start()
        return 0, log, stepper, sampling
    stepper.recall(resumed.number, resumed.record["stepper"], resumed.fields)
    return resumed.number, log, stepper, sampling
