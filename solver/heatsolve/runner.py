"""One run, from a case to its file."""

import math
import time as clock
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from heatsolve import __version__
from heatsolve.backends import Backend, told, trouble
from heatsolve.backends.registry import choose, machine_name, make
from heatsolve.budget import explained
from heatsolve.case.case import Case
from heatsolve.case.changes import refuse_another
from heatsolve.case.load import locating, recorded
from heatsolve.case.sections import IMPLICIT
from heatsolve.control.controller import CheckpointController, Start, State, find_state
from heatsolve.control.stop import StopRequest
from heatsolve.errors import HeatsolveError, InputError
from heatsolve.io.checkpoints import CheckpointStore
from heatsolve.io.disk import folder_beside
from heatsolve.io.reader import read
from heatsolve.io.writer import Results, target
from heatsolve.linear.iterate import Outcome
from heatsolve.linear.system import term_of
from heatsolve.models.base import Model, dims_of, grid_of, make_model
from heatsolve.models.heat.solver import method_name
from heatsolve.models.unused import warn_of_unused
from heatsolve.parallel.decomposition import largest_block
from heatsolve.parallel.ranks import Ranks, demand_same
from heatsolve.report import Report, Shares, duration, shown, speed, together
from heatsolve.stencil.language import copy
from heatsolve.time import loop as march
from heatsolve.time.step_size import TimeStepController, time_step_controller

EXIT_NOT_CONVERGED = 3
TOLD_FROM = 0.1
"""Seconds of compilation that are worth a word."""
THICK = 16
"""Times its layers a block is thick at least: else what two processes compute costs too much."""


@dataclass(frozen=True)
class Result:
    """What a run left: its file, this process's part of the fields in it, and how it ended."""

    path: Path
    fields: dict[str, np.ndarray]
    outcome: Outcome
    exit_code: int


# What overflows shows in a norm, which ends the run with a sentence; a warning adds nothing.
@np.errstate(all="ignore")
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

    `ranks` are the processes that run it together; `strict` refuses keys that have no effect,
    which are warned of otherwise. Raises HeatsolveError: InputError, Diverged,
    FileFailure, or Interrupted when a `request` to stop is made; each with its exit code.
    """
    with locating(case):
        path = target(output or Path(f"{case.name}.h5"))
        report, ranks = report or Report(quiet=True), ranks or Ranks()
        start = start or Start()
        demand_same(ranks, everything_given(case, backend, path, start, strict))
        with told(report.compiles, report.has_compiled):
            machine = machine_of(case, backend, report, ranks)
            warn_of_unused(case, machine, ranks.size, report.warn, strict)
            with explained(case, machine, ranks.size):
                return _run(case, machine, path, report, ranks, start, request or StopRequest())


def everything_given(
    case: Case, backend: str | None, path: Path, start: Start, strict: bool
) -> dict[str, Any]:
    """The case and the options of a run, which all of its processes must share."""
    return {
        "heatsolve": __version__,
        **tomllib.loads(case.text),
        "--backend": backend,
        "--output": str(path),
        "--restart": start.restart,
        "--restart-from": str(start.checkpoint or ""),
        "--overwrite": start.overwrite,
        "--strict": strict,
    }


def _run(
    case: Case,
    machine: Backend,
    path: Path,
    report: Report,
    ranks: Ranks,
    start: Start,
    request: StopRequest,
) -> Result:
    began = clock.perf_counter()
    problem = set_up(case, machine, report, ranks)
    pace = None if case.model.steady else time_step_controller(problem)
    if pace is not None and pace.warning:
        report.warn(pace.warning)
    store = store_of(problem, path)
    resumed = restarted(problem, store, start, pace, report)
    frames = resumed.record["frames"] if resumed is not None else []
    with results_of(problem, path, frames) as results:
        if resumed is None:
            store.clear()
        controller = controller_of(problem, store, results, start, request)
        compiled = report.compiled
        outcome, seconds = solve(problem, pace, results, report, controller, resumed)
        elapsed = seconds + report.compiled - compiled
        if said := trouble():
            report.warn(said)
        fields = problem.stored()
        done_before = resumed is not None and resumed.number == outcome.count
        if done_before and holds(path, case, outcome, ranks):
            report.line(f"{path} holds this already, nothing to do")
            return Result(path, fields, outcome, exit_code(outcome))
        errors = error_norms(problem, fields)
        work = ranks.gather((machine.points_updated, machine.bytes_moved))
        points, moved = map(int, np.sum(work, axis=0))
        attributes = attributes_of(problem, outcome) | errors
        attributes |= {"machine": machine_name(machine, ranks.local_rank), "solve_seconds": seconds}
        attributes |= {"points_updated": points, "bytes_moved": moved}
        attributes["wall_seconds"] = clock.perf_counter() - began
        results.finish(attributes, {k: np.asarray(v) for k, v in outcome.history.items()})
    solved = systems_solved(case, outcome, resumed) * problem.whole.all_unknowns
    summarise(report, case, outcome, errors)
    report.line(speed(seconds, points, moved, solved))
    if report.compiled >= TOLD_FROM:
        report.line(f"{duration(report.compiled)} more of compiling, once")
    if ranks.size > 1:
        report.line(together(shares(problem, elapsed)))
    report.line(f"wrote {path}")
    return Result(path, fields, outcome, exit_code(outcome))


def machine_of(case: Case, backend: str | None, report: Report, ranks: Ranks) -> Backend:
    """The machine that a case asks for, or that is best for it; says which, and why."""
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
    """The case on a machine; says what it is."""
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


def with_layers(case: Case, machine: Backend, ranks: Ranks) -> Case:
    """The case with a halo of as many layers as a pass makes sweeps, if it leaves that open.

    Asks all processes.
    """
    swept = case.model.scheme == "collocated" or (not case.time and method_name(case) == "jacobi")
    # Around obstacles a pass gains little, and on another grid there may be none.
    if case.parallel.halo != "auto" or ranks.size == 1 or not swept or case.obstacles:
        return case
    grid = grid_of(case)
    dims = dims_of(case, grid, ranks.size, machine.on_device)
    block = largest_block(grid, dims)
    extents = [stop - first for first, stop in block.interior]
    most = min(n for n, parts in zip(extents, dims, strict=True) if parts > 1) // THICK
    if most < 3:
        return case
    # What a pass makes is asked of a grid of the size of a block, which has no other processes,
    # nor all points by number of the case's own grid.
    counts = [n + sum(axis.fixed) for n, axis in zip(extents, block.axes, strict=True)]
    of_block = {
        "grid": case.grid.model_copy(update={case.grid.kind: tuple(reversed(counts))}),
        "parallel": case.parallel.model_copy(update={"ranks": "auto"}),
        "source": case.source.model_copy(update={"point_sources": ()}),
    }
    try:
        alone = make_model(case.model_copy(update=of_block), machine)
        layers = min(most, *ranks.gather(alone.longest_pass()))
    except InputError:  # an expression that has no value at points of another grid
        return case
    layers -= 1 - layers % 2  # as the sweeps of a pass, which are odd
    parallel = case.parallel.model_copy(update={"halo": layers})
    return case.model_copy(update={"parallel": parallel})


def store_of(problem: Model, path: Path) -> CheckpointStore:
    """The checkpoints of the run that writes a file: NAME.checkpoints beside NAME.h5."""
    axes = problem.grid.axes
    window = [axis.block or (0, axis.all_unknowns) for axis in axes]
    shape = [axis.all_unknowns for axis in axes]
    folder, keep = folder_beside(path, "checkpoints"), problem.case.checkpoint.keep
    return CheckpointStore(folder, shape, window, problem.ranks, keep)


def restarted(
    problem: Model,
    store: CheckpointStore,
    start: Start,
    pace: TimeStepController | None,
    report: Report,
) -> State | None:
    """The state that a run begins from, None for a fresh start; raises as `find_state`."""
    case = problem.case

    def obstacle(state: State) -> str:
        refuse_another(recorded(state.record["case"]).text, case, method_name)
        return march.passed_by(case, pace, state)

    state = find_state(store, start, obstacle, report)
    for note in recorded(state.record["case"]).notes if state is not None else ():
        report.line(f"the checkpoint: {note}")
    return state


def controller_of(
    problem: Model, store: CheckpointStore, results: Results, start: Start, request: StopRequest
) -> CheckpointController:
    """Who saves the run as the case plans it; with each state goes what the file holds by then."""
    case, plan = problem.case, problem.case.checkpoint

    def save(state: State) -> Path:
        record = state.record | {
            "case": case.recorded,
            "frames": results.secure() if not case.model.steady else [],
        }
        fields = {name: problem.own(array) for name, array in state.fields.items()}
        return store.save(replace(state, record=record, fields=fields))

    at_end = plan.every is not None or start.restart or start.checkpoint is not None
    return CheckpointController(
        problem.ranks, request, save, plan.every_steps, plan.every_seconds, at_end
    )


def solve(
    problem: Model,
    pace: TimeStepController | None,
    results: Results,
    report: Report,
    controller: CheckpointController,
    resumed: State | None,
) -> tuple[Outcome, float]:
    """Iterate, or march in steps, to the end; the fields go to `results`. How, and how long."""
    case, machine = problem.case, problem.backend

    def frame(time: float | None) -> None:
        results.append(problem.stored(), time)

    machine.points_updated = machine.bytes_moved = 0  # by the set-up
    problem.halo.transport.restart_clocks()
    problem.ranks.summing = 0.0
    if pace is None:
        report.begin("iteration", case.solver.iterations or case.solver.max_iterations)
        outcome = march.steady(problem, report, controller, resumed)
    else:
        report.begin("step", pace.count)
        outcome = march.transient(problem, pace, report, frame, controller, resumed)
    machine.sync()
    seconds = report.end()
    if case.model.steady:
        frame(None)
    return outcome, seconds


def exit_code(outcome: Outcome) -> int:
    return EXIT_NOT_CONVERGED if outcome.ending == "limit" else 0


def results_of(problem: Model, path: Path, secured: Sequence[Any]) -> Results:
    """The file of a run, with the coordinates of all its points, behind earlier frames."""
    case, axes = problem.case, problem.whole.axes
    coordinates = {axis.name: axis.coordinates[slice(*axis.stored)] for axis in axes}
    window = tuple(axis.stored_at for axis in problem.grid.axes)
    transient = not case.model.steady
    units = case.units.model_dump()
    return Results(
        path, coordinates, units, window, problem.ranks, transient=transient, secured=secured
    )


def holds(path: Path, case: Case, outcome: Outcome, ranks: Ranks) -> bool:
    """Whether a file holds the results of this case, as far as it has gone (asks all)."""
    same = False
    if ranks.rank == 0:
        with suppress(HeatsolveError):
            found = read(path, fields=()).attributes
            count = found.get("iterations" if case.model.steady else "steps")
            same = (found.get("case"), count) == (case.recorded, outcome.count)
    return ranks.gather(same)[0]


def error_norms(problem: Model, fields: dict[str, np.ndarray]) -> dict[str, float]:
    """Root mean square and largest difference from the case's exact solution, where it has one."""
    case = problem.case
    time = case.time.end if case.time is not None else 0.0
    window = tuple(slice(*pair) for pair in problem.grid.stored)
    positions = {
        name: values[tuple(s if n > 1 else slice(None) for s, n in zip(window, values.shape))]  # noqa: B905
        for name, values in problem.grid.positions().items()
    }
    # Summed exactly, so that it does not depend on the number of processes.
    reference = make("numpy")
    reference.join(problem.ranks.combine)
    points = math.prod(axis.points for axis in problem.whole.axes)
    errors = {}
    for name, field in fields.items():
        exact = getattr(case.reference.exact, name)
        if exact is None:
            continue
        difference = np.broadcast_to(field - np.asarray(exact(**positions, t=time)), field.shape)
        everything = tuple((0, extent) for extent in field.shape)
        total = reference.reduce("sum", term_of(copy, "sum"), everything, difference)
        errors[f"error_l2_{name}"] = math.sqrt(total / points)
        errors[f"error_max_{name}"] = reference.reduce("max", copy, everything, difference)
    return errors


def attributes_of(problem: Model, outcome: Outcome) -> dict[str, Any]:
    case = problem.case
    return {
        "case": case.recorded,
        "schema": case.schema_version,
        "heatsolve_version": __version__,
        "backend": problem.backend.name,
        "ranks": problem.ranks.size,
        "precision": case.solver.precision,
        "iterations" if case.model.steady else "steps": outcome.count,
        "converged": outcome.converged or outcome.ending == "count",
        "threshold": outcome.threshold or None,
        "residual": outcome.norm,
        "norm_of": case.norm_words,
        "scale": outcome.scale if outcome.relative_to else None,
        "relative_to": outcome.relative_to or None,
    }


def shares(problem: Model, elapsed: float) -> Shares:
    """What it cost to be several processes (asks all).

    The time is that which elapsed, compilation included: others wait while one process compiles.
    """
    transport, ranks = problem.halo.transport, problem.ranks
    own = math.prod(high - low for low, high in problem.grid.interior)
    mine = transport.waited, transport.hidden, ranks.summing, own, elapsed
    waited, hidden, summing, sizes, times = zip(*ranks.gather(mine), strict=True)
    whole = max(sum(times), 1e-9)
    ghosts = None if transport.nccl is not None else sum(waited) / whole
    balance = sum(sizes) / ranks.size / max(sizes)
    return Shares(ghosts, sum(hidden) / whole, sum(summing) / whole, balance)


def systems_solved(case: Case, outcome: Outcome, resumed: State | None) -> int:
    """How many linear systems this run has solved from beginning to end."""
    if case.time is None:
        return int(outcome.converged and resumed is None)
    done_before = resumed.number if resumed is not None else 0
    return outcome.count - done_before if case.time.scheme in IMPLICIT else 0


def summarise(report: Report, case: Case, outcome: Outcome, errors: dict[str, float]) -> None:
    """How it ended, and how far from the exact solution."""
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
        "limit": f"NOT converged {number}, {case.norm_words} {norm:.6e}{relative}",
    }
    report.line(endings[outcome.ending])
    if outcome.ending == "limit":
        report.line(what_to_try(case, outcome))
    for name, value in errors.items():
        report.line(f"{name.replace('_', ' ')}: {value:.3e}")


def what_to_try(case: Case, outcome: Outcome) -> str:
    """After a run that has not converged: keys that may help."""
    solver, march = case.solver, case.time
    if march is not None and outcome.threshold:  # it came to its end, but was not steady
        tries = [f"a later time.end (it is {march.end:g})"]
        tries += [f"a larger time.tolerance (it is {march.tolerance:g})"]
        return f"try {' or '.join(tries)}"
    tries = []
    best = method_name(
        case.model_copy(update={"solver": solver.model_copy(update={"method": "auto"})})
    )
    if solver.update is None and method_name(case) not in ("multigrid", "mgcg"):
        tries = [f'solver.method = "auto" (here: {best})']
    elif method_name(case) == "multigrid":
        tries = ['solver.method = "mgcg"']
    tries += [f"a larger solver.max_iterations (it is {solver.max_iterations})"]
    tries += [f"a larger solver.tolerance (it is {solver.tolerance:g})"]
    return f"try {', '.join(tries[:-1])} or {tries[-1]}"
