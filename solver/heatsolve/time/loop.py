"""A steady solution, and the march to the end time."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from heatsolve.case.case import Case
from heatsolve.control.controller import CheckpointController, State, Stopped
from heatsolve.errors import CaseError, Diverged, InputError, NotConverged
from heatsolve.linear.iterate import Outcome, Watcher, finished, solving
from heatsolve.linear.stopping import Criterion
from heatsolve.linear.system import Method, System
from heatsolve.models.base import Model, Stepper
from heatsolve.models.heat.solver import make_method, stall
from heatsolve.time.history import Log, TimeLoopState
from heatsolve.time.pause import Pause, Until
from heatsolve.time.sampling import Sampling
from heatsolve.time.schedule import Schedule
from heatsolve.time.step_size import TimeStepController

FEWEST_CHECKS = 1000
"""The least number of checks in a march whose history needs only the norm."""
Pauses = Generator[Pause, Until | None, Outcome]
"""A run that pauses before its first iteration or step. At each pause it is sent the place of the
next one; None: go on to the end."""


def steady(
    problem: Model,
    watcher: Watcher,
    controller: CheckpointController | None = None,
    resumed: State | None = None,
) -> Outcome:
    """Solve A u = b as `iterating` does, without a pause."""
    return finished(iterating(problem, watcher, controller, resumed))


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
    total = problem.add_magnitudes

    def begin(system: System, exponent: int) -> tuple[Method, Criterion]:
        # The criterion first: it frees its array before the method allocates its own.
        criterion = Criterion(problem.case.solver, system, field, total=total, exponent=exponent)
        method = make_method(problem.case, system, field)
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
        present: Callable[[], dict[str, Any]] = partial(dict, [(name, at.u)])
        again = resumed is not None
        until = yield Pause(problem, at.number, None, at.norm, again, present, back=at.back)
    if system.singular:
        system.remove_mean(field)
    if problem.case.solver.update is not None:
        problem.set_walls(0.0)  # wall nodes that copy the values inside
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
"""Makes the model and the time steps of the case with new settings, and the call that commits the
run to them after a step, at its time; None where the settings change nothing. Raises InputError for
settings that no case can have."""


def passed_by(case: Case, time_steps: TimeStepController | None, state: State) -> str:
    """Why a run of a case cannot go on from the state of an earlier run; "" if it can.

    It cannot where its own march, or iteration, never comes to that state.
    """
    if time_steps is None:
        most = case.solver.iterations
        over = most is not None and state.number > most
        return f"it lies beyond the end of this run, solver.iterations = {most}" if over else ""
    march = TimeLoopState(**state.record["march"])
    if time_steps.passes(state.number, march.time, march.shortened):
        return ""
    if march.shortened and march.time < case.march.end:
        return (
            f"its last step was shortened to end at t = {march.time:g}, where no step of a run "
            f"to time.end = {case.march.end:g} ends"
        )
    return (
        f"it lies at t = {march.time:g}, beyond the end of this run, time.end = {case.march.end:g}"
    )


def transient(
    problem: Model,
    time_steps: TimeStepController,
    watcher: Watcher,
    outputs: Sequence[Output],
    controller: CheckpointController | None = None,
    resumed: State | None = None,
    remodel: Remodel | None = None,
) -> Pauses:
    """March to the end time; outputs get the first frame, those of their schedules, and the last.

    Lines are read with the frames of the first output. A march that goes on from a `resumed` state
    gives the bits of an uninterrupted one. Settings that are sent at a pause need `remodel`.
    """
    case = problem.case
    check_every = steps_per_check(case, time_steps.count)
    controller = controller or CheckpointController()
    number, log, stepper, sampling = begin(problem, time_steps, resumed)

    def write(time: float, due: Sequence[Output]) -> None:
        due = [output for output in due if output.newest != time]
        if any(output.presents for output in due):
            stepper.present()
        elif due:
            stepper.finish()
        problem.time = time
        for output in due:
            output.append(time)
        if outputs[0] in due:
            log.read_lines(time)

    def capture() -> State:
        record: dict[str, Any] = {"unit": "steps", "march": asdict(log.state)}
        record |= {"pace": time_steps.state, "stepper": stepper.scalars}
        record |= sampling.record
        return State(number, record, log.history, stepper.fields, problem.statistics.arrays)

    def present() -> Mapping[str, Any]:
        stepper.present()
        problem.time = log.state.time
        return problem.fields

    def pause() -> Generator[Pause, Until | None, Until]:
        refused = None
        while True:
            problem.backend.sync()
            state, restarted = log.state, resumed is not None
            args = problem, number, state.time, state.norm, restarted, present, log.history
            asked = (yield Pause(*args, refused=refused)) or Until()
            if not asked.settings:
                return asked
            refused = None
            try:
                change_settings(asked.settings)
            except InputError as error:
                if problem.ranks.size > 1 and not isinstance(error, CaseError):
                    raise  # the error may be this process's alone
                refused = error

    def change_settings(settings: Settings) -> None:
        """Go on with other walls or sources: with a model of the changed case, from the same state.

        This is a restart without a file, so that a restart from a file gives the same bits.
        """
        nonlocal problem, time_steps, log, stepper, sampling
        assert remodel is not None
        if (new := remodel(settings)) is None:
            return
        new_problem, new_steps, commit = new
        problem.backend.sync()
        fields = {name: problem.own(array) for name, array in stepper.fields.items()}
        history = {name: np.asarray(values) for name, values in log.history.items()}
        points = {n: problem.own_points(array) for n, array in problem.statistics.arrays.items()}
        state = replace(capture(), fields=fields, history=history, points=points)
        _, new_log, new_stepper, new_sampling = begin(new_problem, new_steps, state)
        new_problem.drive(log.state.time)  # may raise, before the run is committed
        commit(number, log.state.time)
        problem, time_steps = new_problem, new_steps
        log, stepper, sampling = new_log, new_stepper, new_sampling
        log.drive_anew()
        time_steps.drive_anew()

    if resumed is None:
        write(0.0, outputs)
    controller.begin(number, resumed is not None and resumed.finished)
    asked, reached = (yield from pause()), False
    while not (time_steps.over(number, log.state.time) or log.steady or log.stopped or asked.stop):
        if reached:
            asked, reached = (yield from pause()), False
            continue
        if number >= controller.next:
            problem.backend.sync()
            controller.check(number, capture)
        before = 0  # steps made in one call, before the next step with a check or a frame
        if stepper.at_once > 1:
            now = number, log.state.time, time_steps.step
            schedules = [asked.schedule, *(output.schedule for output in outputs)]
            until = log.steps_to_check(*now, check_every)
            until = min(until, *(schedule.until(*now) for schedule in schedules))
            until = min(until, sampling.until(*now))
            until = min(until, stepper.at_once, time_steps.alike(number))
            until = min(until, controller.next - number, asked.number - number)
            before = max(until, 1) - 1
        time_step = time_steps.next_step(number + before, log.state.time, stepper.fields)
        sampled = time_step.last or log.samples(number + before + 1, time_step)
        checked = sampled or (number + before + 1) % check_every == 0
        if checked:
            log.begin(stepper)
        try:
            change = log.change if checked else None
            stepper.step(time_step.parts, change, controller.inside, before)
        except Stopped as stopped:
            stepper.undo()
            controller.interrupt(capture, stopped.exit_code)
        except Diverged:  # raised by an iteration inside the step
            raise log.divergence(stepper, number + 1) from None
        except NotConverged as error:
            watcher.warn(str(error))
            stepper.finish()
            problem.time = stepper.time
            for output in outputs:
                output.append(stepper.time)
            log.read_lines(stepper.time)
            return Outcome("limit", number + 1, stepper.norm, history=log.history)
        number += before + 1
        log.state.time, log.state.shortened = stepper.time, time_step.shortened
        log.add(sampling.take(stepper, number, time_step))
        if checked:
            log.check(stepper, number, time_step, sampled)
            in_all = time_steps.steps_in_all(number, stepper.time)
            watcher.progress(number, log.state.norm, in_all)
        if due := [output for output in outputs if output.schedule.due(number, time_step)]:
            write(case.march.end if time_step.last else stepper.time, due)
        reached = number >= asked.number or asked.schedule.due(number, time_step) or asked.hurried
    # Saved before the last frame, which a march that goes on to a later end does not keep.
    controller.finish(capture)
    over = time_steps.over(number, log.state.time)
    write(case.march.end if over else stepper.time, outputs)
    threshold = case.march.tolerance or 0.0
    reason = "" if over or log.steady else log.stopped or asked.stop
    ending = "count" if case.march.tolerance is None else "tolerance" if log.steady else "limit"
    outcome = Outcome(ending, number, log.state.norm, threshold=threshold, history=log.history)
    return replace(outcome, ending="stopped", reason=reason) if reason else outcome


def steps_per_check(case: Case, count: int) -> int:
    """Steps from one checked step to the next, in a march of about `count` steps.

    It is `solver.check_every` where the case sets that key, or where the history needs more than
    the norm; else there are about FEWEST_CHECKS checks in all. The steps of `output.sample` are
    checked in addition.
    """
    forces = case.obstacles or any(name.startswith("mean") for name in case.source.model_fields_set)
    told = case.march.tolerance is not None or "check_every" in case.solver.model_fields_set
    output, integrals = case.output, case.statistics.integrals
    rows = output.probes or output.heat_flow or integrals or forces
    measured = rows and output.sample is None
    if measured or told:
        return case.solver.check_every
    return max(1, count // FEWEST_CHECKS)


def begin(
    problem: Model, time_steps: TimeStepController, resumed: State | None
) -> tuple[int, "Log", Stepper, Sampling]:
    """The number of steps done so far, their log, and the stepper and sampling of the next ones."""
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
