"""Where memory does not suffice: how much the case needs, and what would fit."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from heatsolve.backends import Backend
from heatsolve.case.case import Case
from heatsolve.errors import InputError
from heatsolve.models.base import grid_of
from heatsolve.tools.budget import budget_of
from heatsolve.tools.preview_rows import size

SIGNS = ("OUT_OF_MEMORY", "MemoryAllocation", "ALLOC_FAILED", "Out of memory")
"""How the driver, the runtime and the libraries of CUDA say that memory is short."""
LARGE = 20
"""Arrays for each field beyond which a run hardly needs any."""


@contextmanager
def explained(case: Case, machine: Backend, processes: int) -> Iterator[None]:
    """Make an InputError of memory that is short, on the host or on a GPU.

    A system that kills a process which takes too much says nothing: so a run that cannot fit is
    refused before it begins.
    """
    free, total = machine.memory()
    grid = grid_of(case)
    fields = len(case.field_names) * grid.all_unknowns * machine.dtype.itemsize / processes
    if LARGE * fields > total and budget_of(case, machine, processes).arrays > total:
        where = "on the GPU" if machine.on_device else "on the host"
        raise InputError(_told(where, case, machine, processes, free, total))
    try:
        yield
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        on_device = machine.on_device and any(sign in said for sign in SIGNS)
        if not (on_device or isinstance(error, MemoryError)):
            raise
        where = "on the GPU" if on_device else "on the host"
        if machine.on_device and not on_device:
            raise InputError(f"not enough memory {where} ({error})") from error
        raise InputError(_told(where, case, machine, processes, free, total)) from error


def _told(
    where: str, case: Case, machine: Backend, processes: int, free: int, total: int
) -> str:  # fmt: skip
    told = f"not enough memory {where}, where {size(free)} of {size(total)} were free"
    with suppress(Exception):  # an estimate needs memory, too
        told += _what_would_fit(case, machine, processes, free)
    return told


def needed(case: Case, machine: Backend, processes: int = 1) -> int:
    """Bytes of the arrays of each process, where they lie; about."""
    return budget_of(case, machine, processes).needed(machine.on_device)


def _what_would_fit(case: Case, machine: Backend, processes: int, free: int) -> str:
    wanted = needed(case, machine, processes)
    each = " in each process" if processes > 1 else ""
    said = f": the case needs about {size(wanted)}{each}"
    if wanted <= free:
        return said
    unknowns, many = grid_of(case).all_unknowns, math.ceil(processes * wanted / free)
    whose = "a GPU" if machine.on_device else "as much memory"
    return (
        f"{said}; {unknowns * free / wanted:.2g} of its {unknowns:.2g} unknowns would fit, "
        f"or all of them on {many} processes with {whose} each"
    )
