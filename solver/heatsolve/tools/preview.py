"""What a run would do, in words: the answer of `heatsolve check`."""

from collections.abc import Callable, Generator, Iterator

from heatsolve.backends import Backend
from heatsolve.backends.registry import choose
from heatsolve.budget import Budget, budget_of
from heatsolve.case.case import Case
from heatsolve.models.base import grid_of
from heatsolve.models.unused import warn_of_unused
from heatsolve.report import Report, shown
from heatsolve.time.step_size import TimeStepController
from heatsolve.tools.preview_flow import flow_rows
from heatsolve.tools.preview_heat import heat_rows
from heatsolve.tools.preview_rows import files, memory_row, process_rows, row, sample_of
from heatsolve.tools.preview_transport import evolution_rows, transport_rows

ROWS: dict[str, Callable[[Case, Backend, int], Generator[str, None, TimeStepController | None]]] = {
    "heat": heat_rows,
    "transport": transport_rows,
    "flow": flow_rows,
}
"""By the kind of model: what is solved, and how; they return the pace of a march."""
Timing = Callable[[Case, Backend, Budget, TimeStepController | None], Iterator[str]]
"""The rows of the time that a run takes at least."""


def preview(
    case: Case,
    backend: str | None = None,
    ranks: int = 1,
    report: Report | None = None,
    strict: bool = False,
    timing: Timing | None = None,
) -> Iterator[str]:
    """The lines of `heatsolve check`: equation, grid, walls, method, machine, memory and files.

    `ranks`: the processes of the run. Keys that have no effect are warned of, or refused if
    `strict`, as a run does. `timing` adds rows on time.

    Raises InputError for what a run refuses before its first step, such as an unstable step, as far
    as the case, the options, the machine and a sample of the points tell.
    """
    wanted, precision = backend or case.parallel.backend, case.solver.field_precision
    machine, reason = choose(wanted, precision, case.parallel.threads)
    warn_of_unused(case, machine, ranks, (report or Report(mute=True)).warn, strict)
    grid = grid_of(case)
    if case.origin is not None and case.origin.note:
        yield case.origin.note
    yield f"{case.name}: {shown(case.about.title) or 'untitled'}"
    pace = yield from ROWS.get(case.model.kind, evolution_rows)(case, machine, ranks)
    yield row("backend", f"{machine.name} ({reason}), {case.solver.precision}")
    yield from process_rows(case, machine, grid, ranks)
    budget = budget_of(case, machine, ranks, pace)
    yield memory_row(budget, machine, ranks)
    yield row("files", files(case, grid, pace.count if pace is not None else 1))
    if timing is not None:
        yield from timing(case, machine, budget, pace)
    if (sample := sample_of(grid)) is not grid:
        said = "initial values and sources, but at a sample of "
        yield row("not checked", f"{said}{sample.all_unknowns} of the unknowns")
