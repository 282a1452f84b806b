"""One run, from a case to its file."""

import math
import time as clock
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heatsolve import __version__, march
from heatsolve.backends.choice import choose
from heatsolve.case import Case, locating
from heatsolve.conduction import Conduction
from heatsolve.converge import Outcome
from heatsolve.halo import Ranks
from heatsolve.output import FieldFile
from heatsolve.report import Report, count, duration

EXIT_NOT_CONVERGED = 3


@dataclass(frozen=True)
class Result:
    """What a run left: its file, the fields in it, and how it ended."""

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
) -> Result:
    """Run a case and write its file (by default NAME.h5 in the current directory).

    `ranks` are the processes that run it together. Rank 0 gathers the fields and writes the file;
    the result of the others holds their own blocks. Raises HeatsolveError: InputError, Diverged,
    FileFailure, each with its exit code.
    """
    with locating(case):
        return _run(case, backend, output, report or Report(quiet=True), ranks or Ranks())


def _run(
    case: Case, backend: str | None, output: Path | None, report: Report, ranks: Ranks
) -> Result:
    began = clock.perf_counter()
    threads = case.parallel.threads or (1 if ranks.size > 1 else None)
    machine, reason = choose(backend or case.parallel.backend, case.solver.precision, threads)
    report.line(f"{case.name}: {case.about.title or 'untitled'}")
    report.line(f"backend {machine.name} ({reason}), {case.solver.precision}")
    problem = Conduction(case, machine, ranks=ranks)
    points = " x ".join(str(axis.points) for axis in reversed(problem.whole.axes))
    report.line(f"{points} {case.grid.kind}, {problem.whole.all_unknowns} unknowns")
    if ranks.size > 1:
        report.line(f"{ranks.size} processes as {' x '.join(map(str, reversed(problem.dims)))}")
    path = output or Path(f"{case.name}.h5")
    with field_file(problem, path) if ranks.rank == 0 else nullcontext() as file:
        stored: dict[str, np.ndarray] = {}

        def frame(time: float | None) -> None:
            stored["temperature"] = stored_field(problem)
            if file is not None:
                file.append(stored, time)

        if case.model.steady:
            report.begin("iteration", case.solver.iterations or case.solver.max_iterations)
            outcome = march.steady(problem, report)
            seconds = finish(problem, report)
            frame(None)
        else:
            step, warning = march.step_length(problem)
            if warning:
                report.warn(warning)
            report.begin("step", march.count_steps(case.time.end, step))
            outcome = march.transient(problem, step, report, frame)
            seconds = finish(problem, report)
        errors = error_norms(problem, stored["temperature"]) if file is not None else {}
        attributes = attributes_of(problem, outcome) | errors
        attributes["wall_seconds"] = clock.perf_counter() - began
        if file is not None:
            file.finish(attributes, {k: np.asarray(v) for k, v in outcome.history.items()})
    work = ranks.gather((machine.points_updated, machine.bytes_moved))
    summarise(report, case, np.sum(work, axis=0), outcome, errors, seconds, path)
    code = EXIT_NOT_CONVERGED if outcome.ending == "limit" else 0
    return Result(path, stored, outcome, code)


def field_file(problem: Conduction, path: Path) -> FieldFile:
    """The file of a run, with the coordinates of all its points."""
    case, axes = problem.case, problem.whole.axes
    coordinates = {axis.name: axis.coordinates[slice(*axis.stored)] for axis in axes}
    return FieldFile(path, coordinates, case.units.model_dump(), transient=not case.model.steady)


def finish(problem: Conduction, report: Report) -> float:
    problem.backend.sync()
    return report.end()


def stored_field(problem: Conduction) -> np.ndarray:
    """The temperature at all points that a file holds, on rank 0; its own points on others."""
    array = problem.backend.to_host(problem.temperature)
    block = np.ascontiguousarray(array[tuple(slice(*pair) for pair in problem.grid.stored)])
    if problem.ranks.size == 1:
        return block
    window = tuple(slice(*axis.stored_at) for axis in problem.grid.axes)
    blocks = problem.ranks.collect((window, block))
    if blocks is None:
        return block
    field = np.empty([axis.points for axis in problem.whole.axes], block.dtype)
    for place, values in blocks:
        field[place] = values
    return field


def error_norms(problem: Conduction, field: np.ndarray) -> dict[str, float]:
    """Root mean square and largest difference from the case's exact solution, if it has one."""
    case = problem.case
    exact = case.reference.exact.temperature
    if exact is None:
        return {}
    window = tuple(slice(*pair) for pair in problem.whole.stored)
    positions = {
        name: values[tuple(s if n > 1 else slice(None) for s, n in zip(window, values.shape))]  # noqa: B905
        for name, values in problem.whole.positions().items()
    }
    time = case.time.end if case.time is not None else 0.0
    difference = field - np.asarray(exact(**positions, t=time))
    return {
        "error_l2_temperature": math.sqrt(float(np.mean(difference * difference))),
        "error_max_temperature": float(np.abs(difference).max()),
    }


def attributes_of(problem: Conduction, outcome: Outcome) -> dict[str, Any]:
    case = problem.case
    return {
        "case": case.text,
        "schema": case.schema_version,
        "heatsolve_version": __version__,
        "backend": problem.backend.name,
        "ranks": problem.ranks.size,
        "precision": case.solver.precision,
        "iterations" if case.model.steady else "steps": outcome.count,
        "converged": outcome.converged or outcome.ending == "count",
        "threshold": outcome.threshold or None,
        "residual": outcome.norm,
    }


def summarise(
    report: Report, case: Case, work: np.ndarray, outcome: Outcome,
    errors: dict[str, float], seconds: float, path: Path,
) -> None:  # fmt: skip
    """The closing lines: how it ended, how long it took, how fast that was, where it is."""
    unit = "iterations" if case.model.steady else "steps"
    norm = f"{case.solver.norm} of the {case.solver.monitor}"
    endings = {
        "tolerance": f"converged in {outcome.count} {unit}, {norm} {outcome.norm:.6e}",
        "rounding": f"converged at rounding level in {outcome.count} {unit}, {norm} "
        f"{outcome.norm:.3e} at a floor of {outcome.floor:.3e}",
        "count": f"done, {outcome.count} {unit}",
        "limit": f"NOT converged in {outcome.count} {unit}, {norm} {outcome.norm:.6e}",
    }
    aim = f", below {outcome.threshold:.3e}" if outcome.ending == "tolerance" else ""
    report.line(endings[outcome.ending] + aim)
    for name, value in errors.items():
        report.line(f"{name.replace('_', ' ')}: {value:.3e}")
    rate = work[0] / seconds if seconds > 0.0 else 0.0
    bandwidth = work[1] / seconds / 1e9 if seconds > 0.0 else 0.0
    report.line(
        f"{duration(seconds)}, {count(rate)}points updated per second, {bandwidth:.3g} GB/s"
    )
    report.line(f"wrote {path}")
