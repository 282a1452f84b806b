"""What a run would do, in words: the answer of `heatsolve check`."""

from collections.abc import Iterator

from heatsolve.backends import Backend
from heatsolve.backends.choice import choose
from heatsolve.case import Case
from heatsolve.preview_flow import flow_rows
from heatsolve.preview_heat import heat_rows
from heatsolve.preview_transport import evolution_rows, transport_rows
from heatsolve.report import Report
from heatsolve.streams import printable
from heatsolve.unused import warn_of_unused

ROWS = {"heat": heat_rows, "transport": transport_rows, "flow": flow_rows}
"""By the kind of model."""


def rows_of(case: Case, machine: Backend, reason: str, ranks: int) -> Iterator[str]:
    """Those of the case's model, on a machine that was chosen for a reason."""
    return ROWS.get(case.model.kind, evolution_rows)(case, machine, reason, ranks)


def preview(
    case: Case,
    backend: str | None = None,
    ranks: int = 1,
    report: Report | None = None,
    strict: bool = False,
) -> Iterator[str]:
    """The lines of `heatsolve check`: equation, grid, walls, method, machine, memory and files.

    `ranks`: the processes of the run. Keys that have no effect are warned of, or refused if
    `strict`, as a run does.

    Raises InputError for what a run refuses before its first step, such as an unstable step.
    """
    wanted, precision = backend or case.parallel.backend, case.solver.field_precision
    machine, reason = choose(wanted, precision, case.parallel.threads)
    warn_of_unused(case, machine, ranks, (report or Report(mute=True)).warn, strict)
    yield f"{case.name}: {printable(case.about.title) or 'untitled'}"
    yield from rows_of(case, machine, reason, ranks)
