"""One run, from a case to its file."""

import math
import time as clock
import tomllib
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from heatsolve import __version__
from heatsolve.backends import MOST_FUSED, Backend, trouble, watched
from heatsolve.backends.registry import choose, machine_name, make
from heatsolve.budget import explained
from heatsolve.case.case import Case
from heatsolve.case.changes import Setting, driven_alike, refuse_another, with_values
from heatsolve.case.load import locating, recorded
from heatsolve.case.output import beside, film_of
from heatsolve.case.sections import IMPLICIT
from heatsolve.case.types import seconds_of
from heatsolve.control.controller import CheckpointController, Start, State
from heatsolve.control.stop import StopRequest
from heatsolve.errors import ExitCode, HeatsolveError, InputError
from heatsolve.io.checkpoints import CheckpointStore, find_state
from heatsolve.io.data import connect, described, make_digests, refuse_other_data
from heatsolve.io.disk import folder_beside
from heatsolve.io.reader import Solution, read
from heatsolve.io.writer import target
from heatsolve.linear.iterate import Outcome
from heatsolve.models.base import Model, dims_of, make_model
from heatsolve.models.grid import grid_of
from heatsolve.models.heat.solver import method_name
from heatsolve.models.unused import warn_of_unused
from heatsolve.outputs import File, Files, refuse_to_replace_data
from heatsolve.parallel.decomposition import largest_block
from heatsolve.parallel.ranks import Ranks, demand_same
from heatsolve.report import Report, Shares, duration, shown, speed, together
from heatsolve.stencil.grid import slices
from heatsolve.stencil.language import copy, term_of
from heatsolve.time import loop as march
from heatsolve.time.integrals import Integrals
from heatsolve.time.pause import Changed, Pause, Until, changes_of, said_of
from heatsolve.time.schedule import Schedule
from heatsolve.time.step_size import TimeStepController, time_step_controller

TOLD_FROM = 0.1
"""A report mentions compilation that takes at least this time (s)."""
NO_ROWS = ("iteration", "residual")
"""The columns of a history without rows."""
EXCHANGE, UPDATE = 3e-5, 1e-12
"""Seconds of an exchange between GPUs, and of a point's update in a pass (H100, NVLink)."""
MOST_PASSES = 7
"""The most passes between two exchanges: more passes gain little."""
MIN_THICKNESS = 16
"""The least thickness of a block, in layers of its ghosts, which two processes compute."""


@dataclass(frozen=True)
class Result:
    """The results of a run."""

    path: Path
    fields: dict[str, np.ndarray]
    """This process's part of the fields."""
    outcome: Outcome
    time: float | None = None
    """The time of the fields (s), if the run was a march."""
    solution: Solution | None = None
    """The content that a file would have, if the run writes none; the same on all processes."""

    @property
    def exit_code(self) -> int:
        return ExitCode.NOT_CONVERGED if self.outcome.failed else ExitCode.DONE


@dataclass(frozen=True)
class Work:
    """The cost of a solution."""

    seconds: float
    """Without compilation."""
    elapsed: float
    """Seconds, compilation included."""
    points: int
    """Points updated by all processes."""
    moved: int
    """Bytes moved by all processes."""
    launches: int
    """Kernels launched by one process."""


def run(
    case: Case,
    backend: str | None = None,
    output: Path | None = None,
    report: Report | None = None,
    ranks: Ranks | None = None,
    start: Start | None = None,
    request: StopRequest | None = None,
    strict: bool = False,
) -> Result:
    """Run a case and write its file (by default NAME.h5 in the current directory).

    `ranks` are the processes that run it together. `strict` refuses keys that have no effect;
    otherwise they cause warnings. Raises HeatsolveError: InputError, Diverged, FileFailure, or
    Interrupted when a `request` to stop is made; each with its exit code.
    """
    running = Run(case, backend, output, report, ranks, start, request, strict)
    while running.result is None:
        running.advance()
    return running.result


Pauses = Generator[Pause, Until | None, Result]
"""A run that yields each pause, is sent the place of the next pause, and returns its result."""


class Run:
    """A run that the caller drives from pause to pause; options and errors as for `run`.

    The first `advance` goes to the pause before the first iteration or step. Time between two calls
    does not count as solving. A run that is `kept` writes no file and keeps its result in memory.
    """

    def __init__(
        self,
        case: Case,
        backend: str | None = None,
        output: Path | None = None,
        report: Report | None = None,
        ranks: Ranks | None = None,
        start: Start | None = None,
        request: StopRequest | None = None,
        strict: bool = False,
        kept: bool = False,
    ):
        self.report, self.ranks = report or Report(quiet=True), ranks or Ranks()
        self.result: Result | None = None
        """The result; None until the run is over."""
        self.path = None if kept else output or Path(f"{case.name}.h5")
        self.changes: list[Changed] = []
        """The settings that have been changed so far."""
        self._case = case
        self._start, self._request = start or Start(), request or StopRequest()
        self._pauses = self._checked(backend, strict)
        self._left = clock.perf_counter()

    def advance(self, until: Until | None = None) -> Pause | None:
        """Go on to the next pause, by default to the end; return None if the run is over."""
        self.report.has_waited(clock.perf_counter() - self._left)
        try:
            # An overflow makes a norm infinite, which ends the run with a message.
            with np.errstate(all="ignore"), watched(self.report.compiles, self.report.has_compiled):
                return self._pauses.send(until)
        except StopIteration as end:
            self.result = end.value
            return None
        finally:
            self._left = clock.perf_counter()

    def abandon(self) -> None:
        """End the run at once, without a result; files stay as they were."""
        self._pauses.close()

    def _checked(self, backend: str | None, strict: bool) -> Pauses:
        """Check the case, its options and its files, then run it."""
        case, path, report, ranks = self._case, self.path, self.report, self.ranks
        with locating(case):
            path = target(path) if path is not None else None
            demand_same(ranks, options_of(case, backend, path, self._start, strict))
            machine = machine_of(case, backend, report, ranks)
            warn_of_unused(case, machine, ranks.size, report.warn, strict)
            connect(case, grid_of(case))
            if path is not None:
                others = [beside(path, f"_{section.name}.h5") for section in case.output.files]
                pictures = [beside(path, f"_{field}.png") for field in case.output.plot]
                pictures += [film_of(path, field, "gif") for field in case.output.films]
                refuse_to_replace_data(case, [path, *others, *pictures], "name another --output")
            if path is None and (case.output.drawn or case.output.files or case.checkpoint.every):
                report.warn("a run without a file writes no others, draws nothing, saves nothing")
            with explained(case, machine, ranks.size):
                return (yield from self._run(machine, path))

    def _run(self, machine: Backend, path: Path | None) -> Pauses:
        """Run a checked case and write its file, or none where there is no path."""
        case, report, ranks, changes = self._case, self.report, self.ranks, self.changes
        start, request = self._start, self._request
        began = clock.perf_counter()
        if (limit := seconds_of(case.stop.wall_time)) is not None:
            request.deadline = clock.monotonic() + limit
        report.waited = 0.0
        problem = set_up(case, machine, report, ranks)
        read_data(problem, report)
        time_steps = None if case.model.steady else time_step_controller(problem)
        if time_steps is not None and time_steps.warning:
            report.warn(time_steps.warning)
        store = store_of(problem, path) if path is not None else None
        resumed = None
        if store is not None:
            resumed = restarted(problem, store, start, time_steps, report)
        projected = case.scheme == "staggered" and resumed is None
        if projected and any(key.startswith("initial.velocity") for key, _ in case.data()):
            report.line("the velocities are projected: the march begins without divergence")
        if resumed is not None:
            changes += changes_of(resumed.record.get("changes", []))
        if time_steps is not None and changes:
            settings = [pair for changed in changes for pair in changed.settings]
            problem, time_steps = model_in_time(with_values(case, settings), problem, time_steps)
            report.line(f"the checkpoint: {said_of(changes)}")
        with Files(problem, path, resumed) as results:
            if store is not None and resumed is None:
                store.clear()

            def remodel(
                settings: Sequence[Setting],
            ) -> tuple[Model, TimeStepController, march.Commit] | None:
                assert time_steps is not None
                before = [pair for changed in changes for pair in changed.settings]
                new = with_values(case, [*before, *settings])
                if driven_alike(results.problem.case, new):
                    return None
                model, steps = model_in_time(new, results.problem, time_steps)

                def commit(number: int, time: float) -> None:
                    changes.append(Changed(number, time, tuple(settings)))
                    report.line(str(changes[-1]))
                    results.take(model)

                return model, steps, commit

            controller = controller_of(case, store, results, start, request, changes)
            del problem  # else its arrays would stay in memory if a march replaces the model
            args = time_steps, results, report, controller, resumed, remodel
            outcome, work = yield from solve(*args)
            problem = results.problem
            result = Result(path or Path(), problem.stored(), outcome, results.newest)
            count = outcome.count - (resumed.number if resumed is not None else 0)
            is_over = resumed is not None and count == 0
            if is_over and files_hold(results, case, outcome, ranks, changes):
                report.line(f"{path} holds this already, nothing to do")
                return result
            if case.model.steady:
                for file in results:  # copying a large field from a device again would take long
                    file.append(fields=result.fields if file.section is None else None)
            errors = error_norms(problem, result.fields, results.newest or 0.0)
            attributes = attributes_of(problem, outcome, work) | errors
            attributes["changes"] = said_of(changes)
            attributes["wall_seconds"] = clock.perf_counter() - began - report.waited
            if case.model.steady and case.output.heat_flow:
                attributes |= problem.heat_flows()
            if case.model.steady:
                attributes |= Integrals(problem).read(problem.fields)
            solution = results.finish(attributes, outcome.history)
        say_ending(report, case, outcome, errors)
        say_speed(report, problem, outcome, work, count)
        for file in results if path is not None else ():
            report.line(f"wrote {file.path}")
        return replace(result, solution=solution)


def model_in_time(
    case: Case, before: Model, time_steps: TimeStepController
) -> tuple[Model, TimeStepController]:
    """The model and the time steps of a case whose values differ from the model `before`.

    Steps of constant length keep it. Raises InputError where this length is unstable now.
    """
    if not time_steps.follows:
        case = case.altered(time={"step": time_steps.step})
    machine, ranks = before.backend, before.ranks
    model = make_model(with_layers(case, machine, ranks), machine, ranks)
    changed = time_step_controller(model)
    changed.count = time_steps.count  # a restart checks the steps that this march checks
    return model, changed


def save(
    pause: Pause,
    path: Path | None,
    seconds: float,
    changes: Sequence[Changed],
    names: Sequence[str] | None = None,
    outcome: Outcome | None = None,
) -> Solution | None:
    """Write the fields `names` and the history at a pause to a file (asks all processes).

    By default it writes the fields of the case's own file. Without a path, it returns the content
    of the file instead. `seconds`: the time that the run has taken so far; `outcome`: the outcome
    of a run that is over.
    """
    problem = pause.problem
    outcome = outcome or Outcome("stopped", pause.number, pause.norm)
    if path is not None:
        refuse_to_replace_data(problem.case, [path], "save to another file")
    with File(problem, path, None) as file:
        file.append(pause.time, pause.stored(names))
        attributes = attributes_of(problem, outcome, work_of(problem, seconds, seconds))
        attributes |= {"wall_seconds": seconds, "changes": said_of(changes)}
        return file.finish(attributes, pause.history or dict.fromkeys(NO_ROWS, ()))


def options_of(
    case: Case, backend: str | None, path: Path | None, start: Start, strict: bool
) -> dict[str, Any]:
    """The case and the options of a run, which must be the same on all of its processes."""
    return {
        "heatsolve": __version__,
        **tomllib.loads(case.text),
        "--backend": backend,
        "--output": str(path or ""),
        "--restart": start.restart,
        "--restart-from": str(start.checkpoint or ""),
        "--overwrite": start.overwrite,
        "--strict": strict,
    }


def machine_of(case: Case, backend: str | None, report: Report, ranks: Ranks) -> Backend:
    """The backend that a case asks for, or the best one for it; reports which one, and why."""
    threads = case.parallel.threads or (1 if ranks.size > 1 else None)
    machine, reason = choose(
        backend or case.parallel.backend,
        case.solver.field_precision,
        threads,
        ranks.local_rank,
        ranks.gather,
    )
    if case.origin is not None and case.origin.note:
        report.line(case.origin.note)
    report.line(f"{case.name}: {shown(case.about.title) or 'untitled'}")
    report.line(f"backend {machine.name} ({reason}), {case.solver.precision}")
    return machine


def set_up(case: Case, machine: Backend, report: Report, ranks: Ranks) -> Model:
    """The model of the case on a backend; reports its size."""
    problem = make_model(with_layers(case, machine, ranks), machine, ranks)
    points = " x ".join(str(axis.points) for axis in reversed(problem.whole.axes))
    report.line(f"{points} {case.grid.kind}, {problem.whole.all_unknowns} unknowns")
    if problem.remark:
        report.line(problem.remark)
    if ranks.size > 1:
        blocks = " x ".join(map(str, reversed(problem.dims)))
        transport = problem.halo.transport.name(machine)
        layers = f", {n} layers of ghosts" if (n := problem.halo.depth) > 1 else ""
        report.line(f"{ranks.size} processes as {blocks}, linked by {transport}{layers}")
        if ranks.crowd:
            report.line(f"{ranks.crowd}: they wait without spinning, fewer would be faster")
    return problem


def read_data(problem: Model, report: Report) -> None:
    """Read the fields of the case that are data, make their digests, and report how the data are
    interpolated to the grid (asks all processes)."""
    case, data_fields = problem.case, list(problem.case.data())
    for key, data in data_fields:
        report.line(described(key, data, problem.places_of_data(key)))
    if data_fields:
        assert problem.fields  # evaluated first: digests then reuse the values in memory
        make_digests(case, problem.ranks)
        for sentence in problem.doubts_of_data():
            report.warn(sentence)


def with_layers(case: Case, machine: Backend, ranks: Ranks) -> Case:
    """The case with a number of layers of its halo in place of "auto" (asks all processes).

    A halo has as many layers as a pass makes sweeps; on GPUs, as several passes make.
    """
    swept = case.scheme == "collocated" or (not case.time and method_name(case) == "jacobi")
    # Around obstacles a pass gains little, and the grid of a block may not contain them.
    if case.parallel.halo != "auto" or ranks.size == 1 or not swept or case.obstacles:
        return case
    grid = grid_of(case)
    dims = dims_of(case, grid, ranks.size, machine.on_device)
    block = largest_block(grid, dims)
    extents = [stop - first for first, stop in block.interior]
    most = min(n for n, parts in zip(extents, dims, strict=True) if parts > 1) // MIN_THICKNESS
    if most < 3:
        return case
    # The number of sweeps in a pass comes from a model on a grid as large as a block, without
    # neighbours, in the low corner of the box; point sources at an index may lie outside it.
    counts = [n + sum(axis.fixed) for n, axis in zip(extents, block.axes, strict=True)]
    along = zip(case.grid.lower, reversed(counts), reversed(block.axes), strict=True)
    ends = tuple(low + (axis.upper - low) * n / axis.points for low, n, axis in along)
    of_block = case.altered(
        grid={case.grid.kind: tuple(reversed(counts)), "upper": ends},
        parallel={"ranks": "auto"},
        source={"point_sources": ()},
    )
    try:
        model = make_model(of_block, machine)
        layers = min(most, MOST_FUSED, *ranks.gather(model.longest_pass()))
    except InputError:  # an expression has no value at a point of the block's grid
        return case
    layers -= 1 - layers % 2  # odd, as the number of sweeps of a pass
    if machine.on_device and layers > 1:
        sweeps, in_step = layers, 0
        if case.scheme == "collocated":  # each step begins with all layers
            in_step = (case.solver.iterations or 0) + 1  # the velocities read one layer more
            most = min(most, in_step)
        divided = [n for n, parts in zip(extents, dims, strict=True) if parts > 1]
        layers *= passes_between_exchanges(layers, most, math.prod(extents) // min(divided))
        if layers < in_step <= min(layers + sweeps, most):
            layers = in_step  # no second exchange for the rest of a step
    return case.altered(parallel={"halo": layers})


def passes_between_exchanges(sweeps: int, most: int, points: int) -> int:
    """The number of passes, of `sweeps` each, that GPUs make between two exchanges; it is odd.

    A halo of d layers costs each sweep EXCHANGE / d for the exchange and UPDATE d `points` for the
    ghosts: least for d = sqrt(EXCHANGE / (UPDATE points)). There is room for `most` layers.
    """
    best = min(most, math.isqrt(round(EXCHANGE / UPDATE / points)))
    passes = max(1, min(MOST_PASSES, best // sweeps))
    return passes - 1 + passes % 2


def store_of(problem: Model, path: Path) -> CheckpointStore:
    """The checkpoints of a run, in the folder NAME.checkpoints beside its file NAME.h5."""
    axes = problem.grid.axes
    window = [axis.block or (0, axis.all_unknowns) for axis in axes]
    shape = [axis.all_unknowns for axis in axes]
    folder, keep = folder_beside(path, "checkpoints"), problem.case.checkpoint.keep
    points = [axis.stored_at for axis in axes]
    return CheckpointStore(folder, shape, window, problem.ranks, keep, points)


def restarted(
    problem: Model,
    store: CheckpointStore,
    start: Start,
    time_steps: TimeStepController | None,
    report: Report,
) -> State | None:
    """The state that a run begins from, None for a fresh start; raises as `find_state`."""
    case = problem.case

    def refusal(state: State) -> str:
        refuse_another(recorded(state.record["case"]).text, case, method_name)
        refuse_other_data(state.record.get("data"), case.digests())
        return march.passed_by(case, time_steps, state)

    state = find_state(store, start, refusal, report)
    for note in recorded(state.record["case"]).notes if state is not None else ():
        report.line(f"the checkpoint: {note}")
    return state


def controller_of(
    case: Case,
    store: CheckpointStore | None,
    results: Files,
    start: Start,
    request: StopRequest,
    changes: Sequence[Changed],
) -> CheckpointController:
    """The controller that saves checkpoints by the case's `[checkpoint]`, if there is a store.

    A state includes the files of the frames so far, the digests of the data, and the changes.
    """
    plan, ranks = case.checkpoint, results.problem.ranks
    if store is None:
        return CheckpointController(ranks, request)

    def save(state: State) -> Path:
        frames = {"frames": []} if case.model.steady else results.secure()
        record = state.record | {"case": case.recorded, "data": case.digests()} | frames
        if changes:
            record["changes"] = list(changes)
        fields = {name: results.problem.own(array) for name, array in state.fields.items()}
        points = {n: results.problem.own_points(array) for n, array in state.points.items()}
        return store.save(replace(state, record=record, fields=fields, points=points))

    at_end = plan.every is not None or start.restart or start.checkpoint is not None
    every = Schedule.of(plan.every)
    return CheckpointController(ranks, request, save, every.steps, every.seconds, at_end)


def solve(
    time_steps: TimeStepController | None,
    results: Files,
    report: Report,
    controller: CheckpointController,
    resumed: State | None,
    remodel: march.Remodel,
) -> Generator[Pause, Until | None, tuple[Outcome, Work]]:
    """Iterate, or march in steps, to the end; the frames of a march go to `results`."""
    problem = results.problem
    case, machine, ranks = problem.case, problem.backend, problem.ranks
    machine.points_updated = machine.bytes_moved = machine.launches = 0  # leave out the set-up
    problem.halo.transport.restart_clocks()
    ranks.summing = 0.0
    compiled, done = report.compiled, 0 if resumed is None else resumed.number
    if time_steps is None:
        most = case.solver.iterations or case.solver.max_iterations
        report.begin("iteration", most, done)
        outcome = yield from march.iterating(problem, report, controller, resumed)
    else:
        report.begin("step", time_steps.count, done)
        args = problem, time_steps, report, list(results), controller, resumed, remodel
        pauses = march.TimeLoop(*args).run()
        del problem, args
        outcome = yield from pauses
    machine.sync()
    seconds = report.end()
    elapsed = seconds + report.compiled - compiled
    if said := trouble():
        report.warn(said)
    return outcome, work_of(results.problem, seconds, elapsed)


def work_of(problem: Model, seconds: float, elapsed: float) -> Work:
    """The cost of a solution so far (asks all processes)."""
    machine = problem.backend
    work = problem.ranks.gather((machine.points_updated, machine.bytes_moved))
    points, moved = map(int, np.sum(work, axis=0))
    return Work(seconds, elapsed, points, moved, machine.launches)


def files_hold(
    files: Files, case: Case, outcome: Outcome, ranks: Ranks, changes: Sequence[Changed]
) -> bool:
    """Whether the files hold the results of this case at its last iteration or step (asks all)."""
    same = False
    if ranks.rank == 0:
        with suppress(HeatsolveError):
            paths = [file.path for file in files if file.path is not None]
            attributes = [read(path, fields=()).attributes for path in paths]
            unit = "iterations" if case.model.steady else "steps"
            wanted = [case.recorded, outcome.count, said_of(changes)]
            keys = ("case", unit, "changes")
            same = all([of_file.get(key) for key in keys] == wanted for of_file in attributes)
    return ranks.gather(same)[0]


def error_norms(problem: Model, fields: dict[str, np.ndarray], time: float) -> dict[str, float]:
    """Root mean square and largest difference from the case's exact solution at a time, where it
    has one."""
    case = problem.case
    stored = slices(problem.grid.stored)
    positions = {
        name: values[tuple(s if n > 1 else slice(None) for s, n in zip(stored, values.shape))]  # noqa: B905
        for name, values in problem.grid.positions().items()
    }
    # Exact sums, so that the norms do not depend on the number of processes.
    reference = make("numpy")
    reference.join(problem.ranks.combine)
    points = math.prod(axis.points for axis in problem.whole.axes)
    errors = {}
    for name, field in fields.items():
        exact = getattr(case.reference.exact, name, None)  # derived fields have none
        if exact is None:
            continue
        difference = np.broadcast_to(field - np.asarray(exact(**positions, t=time)), field.shape)
        everything = tuple((0, extent) for extent in field.shape)
        total = reference.reduce("sum", term_of(copy, "sum"), everything, difference)
        errors[f"error_l2_{name}"] = math.sqrt(total / points)
        errors[f"error_max_{name}"] = reference.reduce("max", copy, everything, difference)
    return errors


def attributes_of(problem: Model, outcome: Outcome, work: Work) -> dict[str, Any]:
    """The attributes of a run's file; None stands for an attribute that it does not have."""
    case = problem.case
    return {
        "case": case.recorded,
        "data": ", ".join(f"{key} = {value}" for key, value in case.digests().items()) or None,
        "schema": case.schema_version,
        "heatsolve_version": __version__,
        "backend": problem.backend.name,
        "ranks": problem.ranks.size,
        "precision": case.solver.precision,
        "iterations" if case.model.steady else "steps": outcome.count,
        "converged": outcome.converged or outcome.ending == "count",
        "threshold": outcome.threshold or None,
        "residual": outcome.norm,
        "stopped": outcome.reason or None,
        "norm_of": case.norm_words,
        "scale": outcome.scale if outcome.relative_to else None,
        "relative_to": outcome.relative_to or None,
        "machine": machine_name(problem.backend, problem.ranks.local_rank),
        "solve_seconds": work.seconds,
        "points_updated": work.points,
        "bytes_moved": work.moved,
        "launches": work.launches,
    }


def shares(problem: Model, elapsed: float) -> Shares:
    """The shares of time that several processes lose (asks all processes).

    The elapsed time includes compilation, because others wait while one process compiles.
    """
    transport, ranks = problem.halo.transport, problem.ranks
    own = math.prod(high - low for low, high in problem.grid.interior)
    local = *transport.clocks(), ranks.summing, own, elapsed
    waited, hidden, summing, sizes, times = zip(*ranks.gather(local), strict=True)

    def share(seconds: Sequence[float | None]) -> float | None:
        known = [each for each in seconds if each is not None]
        return sum(known) / max(sum(times), 1e-9) if len(known) == len(seconds) else None

    balance = sum(sizes) / ranks.size / max(sizes)
    return Shares(share(waited), share(hidden), share(summing) or 0.0, balance)


def say_ending(report: Report, case: Case, outcome: Outcome, errors: dict[str, float]) -> None:
    """Report how a run ended, and its errors against the exact solution."""
    unit = "iterations" if case.model.steady else "steps"
    number, scale = f"in {outcome.count} {unit}", outcome.scale or 1.0
    norm, floor = outcome.norm / scale, outcome.floor / scale
    relative = f" relative to {outcome.relative_to}" if outcome.relative_to else ""
    aim = f", below {outcome.threshold / scale:.3e}" if outcome.threshold else ""
    endings = {
        "tolerance": f"converged {number}, {case.norm_words} {norm:.6e}{relative}{aim}",
        "rounding": f"converged at rounding level {number}, {case.norm_words} {norm:.3e}{relative} "
        f"at a floor of {floor:.3e}",
        "count": f"done, {outcome.count} {unit}",
        "lost": f"NOT converged {number}: the {case.norm_words} {norm:.3e}{relative} is at "
        "rounding level, but no smaller than at temperature 0: "
        f"{case.solver.precision} has too few digits for this method and grid",
        "limit": f"NOT converged {number}"
        + (f", {case.norm_words} {norm:.6e}{relative}" if math.isfinite(norm) else ""),
        "stopped": f"stopped {number}: {outcome.reason}",
    }
    report.line(endings[outcome.ending])
    if outcome.failed:
        report.line(what_to_try(case, outcome))
    for name, value in errors.items():
        report.line(f"{name.replace('_', ' ')}: {value:.3e}")


def say_speed(report: Report, problem: Model, outcome: Outcome, work: Work, count: int) -> None:
    """Report the speed of `count` iterations or steps, and the cost of several processes.

    Asks all processes. A linear system counts as solved only if this run solved it from its
    beginning to its end.
    """
    case = problem.case
    if case.time is None:
        systems = int(outcome.converged and count == outcome.count)
    else:
        systems = count if case.time.scheme in IMPLICIT else 0
    solved = systems * problem.whole.all_unknowns
    said = speed(work.seconds, work.points, work.moved, solved)
    if problem.backend.on_device and count:
        unit = "an iteration" if case.time is None else "a step"
        said += f", {work.launches / count:.3g} kernels {unit}"
    report.line(said)
    if report.compiled >= TOLD_FROM:
        report.line(f"{duration(report.compiled)} more of compiling, once")
    if problem.ranks.size > 1:
        report.line(together(shares(problem, work.elapsed)))


def what_to_try(case: Case, outcome: Outcome) -> str:
    """Advice for a run that has not converged: the keys to change."""
    solver, march = case.solver, case.time
    if march is not None and outcome.threshold:  # the march ended before a steady state
        tries = [f"a later time.end (it is {march.end:g})"]
        tries += [f"a larger time.tolerance (it is {march.tolerance:g})"]
        return f"try {' or '.join(tries)}"
    tries = []
    best = method_name(case.altered(solver={"method": "auto"}))
    if solver.update is None and method_name(case) not in ("multigrid", "mgcg"):
        tries = [f'solver.method = "auto" (here: {best})']
    elif method_name(case) == "multigrid":
        tries = ['solver.method = "mgcg"']
    if outcome.ending == "lost":
        tries += ["spacings and conductivities that differ less"]
        return f"try {' or '.join(tries)}"
    tries += [f"a larger solver.max_iterations (it is {solver.max_iterations})"]
    tries += [f"a larger solver.tolerance (it is {solver.tolerance:g})"]
    return f"try {', '.join(tries[:-1])} or {tries[-1]}"
