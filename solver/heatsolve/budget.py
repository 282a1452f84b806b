"""The needs of a run: the memory of its arrays, and the work of one iteration or step.

A backend that allocates and computes nothing (`CountingBackend`) counts both while it makes the
problem, its method or stepper, and an iteration or some steps. Where memory does not suffice, a
sentence tells how much the case needs, and the part of it that would fit.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heatsolve.backends import Backend
from heatsolve.backends.registry import CountingBackend
from heatsolve.case.case import Case
from heatsolve.case.sections import IMPLICIT
from heatsolve.errors import InputError, MachineFailure
from heatsolve.linear.iterate import Queue
from heatsolve.linear.stopping import Criterion
from heatsolve.models.base import Model, Substep, dims_of, make_model
from heatsolve.models.grid import grid_of
from heatsolve.models.heat.case import coefficient_names
from heatsolve.models.heat.solver import make_method, method_name
from heatsolve.parallel.decomposition import largest_block
from heatsolve.report import size
from heatsolve.stencil.grid import Grid, Outline
from heatsolve.time.integrals import Integrals, Profiles
from heatsolve.time.loop import steps_per_check
from heatsolve.time.step_size import TimeStepController, substeps

WIDE_LEVELS = 2
"""Further arrays of grid shape in multigrid where the blocks of several GPUs overlap."""
CHECKED_OFTEN = 64
"""The most iterations between two checks for which the work of a check counts."""
EXACT_ARRAYS = 3
"""Arrays in double precision that a comparison with an exact solution takes on the host."""
SPECTRUM_ARRAYS = 5
"""Arrays in double precision that a spectrum takes on the host: a field, its whole lines, their
coefficients, and the squares of these."""
COARSENED_TO = 1 << 18
"""Unknowns of the grid that is counted in place of a larger grid whose arrays the host fills."""
SIGNS = ("OUT_OF_MEMORY", "MemoryAllocation", "ALLOC_FAILED", "Out of memory")
"""Words by which the driver, the runtime and the libraries of CUDA report a lack of memory."""
MOST_ARRAYS = 20
"""Arrays for each field: hardly any run needs more."""


@dataclass(frozen=True)
class Budget:
    """The needs of one process: bytes of the arrays of its backend, and of further arrays on the
    host; bytes that one iteration or step reads and writes, and its kernel calls."""

    arrays: int
    host: int
    moved: float
    calls: float

    def needed(self, on_device: bool) -> int:
        """Bytes of the memory in which the arrays lie."""
        return self.arrays if on_device else self.arrays + self.host


def budget_of(
    case: Case, machine: Backend, processes: int = 1, time_steps: TimeStepController | None = None
) -> Budget:
    """The needs of the process with the largest block, where `processes` share a case.

    `time_steps` has the length and the number of the steps; by default a step has the length 1.
    """
    alone = case.altered(parallel={"ranks": "auto"})
    if case.time is not None and case.solver.iterations is None:
        alone = alone.altered(solver={"iterations": 1})
    block = _block(case, machine, processes)
    grid, stretch = Outline(block.axes), 1.0
    if grid.is_large and _fills_on_host(case):
        stretch = (block.all_unknowns / COARSENED_TO) ** (1.0 / block.dimension)
        axes = [replace(a, points=max(4, round(a.points / stretch))) for a in block.axes]
        grid = Outline(tuple(axes))
    if processes > 1 or stretch > 1.0:
        alone = _moved(alone, grid)
    backend = CountingBackend(machine, stretch)
    if processes > 1:
        backend.join(lambda registers: registers)
    with np.errstate(all="ignore"):
        problem = make_model(alone, backend, grid=grid)
        work = _iteration(problem) if case.time is None else _step(problem, time_steps)
    times = math.prod(block.shape) / math.prod(grid.shape)
    one = math.prod(block.shape) * machine.dtype.itemsize
    arrays = times * backend.tally.most + sum(backend.tally.rooms.values())
    if machine.on_device and processes > 1 and method_name(case) in ("multigrid", "mgcg"):
        arrays += WIDE_LEVELS * one
    host = times * _bytes_on_host(problem) + 2 * len(case.written) * one
    if any(getattr(case.reference.exact, name, None) is not None for name in case.written):
        host += 8 * EXACT_ARRAYS * math.prod(block.shape)
    if any(kind == "spectrum" for kind, _ in case.statistics.recorded):
        host += 8 * SPECTRUM_ARRAYS * math.prod(block.shape)
    moved, calls = work
    return Budget(round(arrays), round(host), times * moved, calls)


def _block(case: Case, machine: Backend, processes: int) -> Grid:
    """The largest block as a grid of its own; it ends at walls."""
    grid = grid_of(case)
    if processes == 1:
        return grid
    dims = dims_of(case, grid, processes, machine.on_device)
    axes = []
    for axis in largest_block(grid, dims, case.parallel.layers).axes:
        points = axis.unknowns + sum(axis.fixed)
        own = replace(axis, points=points, block=None, margin=(0, 0))
        axes.append(replace(own, upper=own.lower + own.intervals * axis.spacing))
    return Grid(tuple(axes))


def _fills_on_host(case: Case) -> bool:
    """Whether the host may make arrays of conductances point by point.

    It does where the conductances along one axis also vary along all other axes.
    """
    if case.model.kind != "heat":
        return bool(case.obstacles)
    return len(coefficient_names(case)) >= max(1, len(case.grid.counts) - 1)


def _moved(case: Case, grid: Grid) -> Case:
    """The case with its obstacles and point sources moved to the middle of a grid, which may not
    contain their own places."""
    along, bodies = list(reversed(grid.axes)), []
    for number, obstacle in enumerate(case.obstacles):
        first, last = (0.25 + 0.5 * n / len(case.obstacles) for n in (number, number + 1))
        ends = [(first, last), *[(0.25, 0.75)] * (len(along) - 1)]
        corners = [
            tuple(
                a.lower + end[n] * (a.upper - a.lower) for a, end in zip(along, ends, strict=True)
            )
            for n in (0, 1)
        ]
        box = {"shape": "box", "center": None, "lower": corners[0], "upper": corners[1]}
        bodies.append(obstacle.model_copy(update=box))
    middle = tuple(0.5 * (axis.lower + axis.upper) for axis in along)
    points = tuple(
        point.model_copy(update={"index": None, "position": middle}) for point in case.source.points
    )
    case = case.altered(source={"point_sources": points})
    return case.model_copy(update={"bodies": tuple(bodies)})


Work = tuple[float, float]
"""Bytes moved, and calls, of one iteration or step."""


def _work(backend: CountingBackend, units: Callable[[], int]) -> Work:
    """The work of one unit; `units` makes several units and returns their number."""
    moved, calls = backend.bytes_moved, backend.tally.calls
    count = units()
    return (backend.bytes_moved - moved) / count, (backend.tally.calls - calls) / count


def _iteration(problem: Model) -> Work:
    """Work of an iteration for a steady state, its share of a check included."""
    backend = problem.backend
    assert isinstance(backend, CountingBackend)
    (field,) = problem.fields.values()
    with backend.only_counting():
        system = problem.steady_system()
        total = problem.add_magnitudes
        criterion = Criterion(problem.case.solver, system, field, total=total)
    method = make_method(problem.case, system, field)
    method.settle()
    criterion.limit = 1 << 60
    queue = Queue(method, criterion)

    def some(done: int) -> int:
        """Make some iterations, with their checks; return the number of the next iteration."""
        if criterion.every > CHECKED_OFTEN:
            return method.march(done, done + 2 * method.longest)
        count = max(criterion.every, method.longest)
        return queue.run(done, done + count, count, lambda: -1.0)[-1].stop

    with backend.only_counting():
        first = some(0)
        return _work(backend, lambda: some(first) - first)


def _step(problem: Model, time_steps: TimeStepController | None) -> Work:
    """Work of a step, with one iteration of each system that it solves.

    A frame, a check, and steps of other substeps or lengths are counted, too: they may need arrays.
    """
    backend, time = problem.backend, problem.case.march
    assert isinstance(backend, CountingBackend)
    step, count = (1.0, 1 << 40) if time_steps is None else (time_steps.step, time_steps.count)

    def parts(number: int) -> list[Substep]:
        if time_steps is None or not time_steps.follows:
            return list(substeps(time, number, step, count))
        # Every second step has half the length, as if the flow had become twice as fast.
        return [Substep(number * step, step / (1 + number % 2), 0.0)]

    numbers = {0, min(1, count - 1)}
    if time.scheme in IMPLICIT:  # parts of other lengths have solvers of their own
        numbers |= {min(2, count - 1), count - 1}
    stepper = problem.stepper(0.0, step)
    change: Any = backend.accumulator("sum")
    statistics = problem.statistics  # its arrays stay
    for number in sorted(numbers):
        stepper.make_solvers(parts(number))
        with backend.only_counting():
            stepper.step(parts(number), change, None)

    before = max(0, min(stepper.most_steps, steps_per_check(problem, count), count - 2) - 1)

    def one() -> int:
        """Make one step, or the steps that are made at once; return their number."""
        stepper.step(parts(min(2 + before, count - 1)), None, None, before)
        return before + 1

    with backend.only_counting():
        stepper.posted_measures()()
        stepper.present()
        if statistics:
            statistics.take(stepper.fields, 1.0)
        Integrals(problem).read(stepper.fields)
        Profiles(problem).read(stepper.fields)
        # A derived field needs copies of its sources, two derivatives and an array for itself.
        case = problem.case
        names = case.in_files
        made = [derived for name, derived in case.derived.items() if name in names]
        derived = max((2 * len(each.sources) + 3 for each in made), default=0)
        for _ in range(problem.arrays_of_a_frame + derived):
            backend.zeros(problem.grid.shape)
        return _work(backend, one)


def _bytes_on_host(problem: Model) -> int:
    """Bytes of the arrays that a problem keeps on the host, in double precision."""
    keepers = [getattr(problem, "volumes", None)]
    bodies = getattr(problem, "bodies", None)
    if bodies is not None:
        keepers += bodies.stencils.values()
    values = [value for keeper in keepers if keeper is not None for value in vars(keeper).values()]
    lists = [value if isinstance(value, list | tuple) else [value] for value in values]
    return sum(array.nbytes for each in lists for array in each if isinstance(array, np.ndarray))


# ---- where memory does not suffice ---------------------------------------------------------------


@contextmanager
def explained(case: Case, machine: Backend, processes: int) -> Iterator[None]:
    """Turn a lack of memory, on the host or on a GPU, into an InputError.

    An operating system may kill a process that takes too much, without a word: so a run that cannot
    fit is refused before it begins.
    """
    free, total = machine.memory()
    grid = grid_of(case)
    fields = len(case.field_names) * grid.all_unknowns * machine.dtype.itemsize / processes
    if MOST_ARRAYS * fields > total and budget_of(case, machine, processes).arrays > total:
        where = "on the GPU" if machine.on_device else "on the host"
        raise InputError(_too_little(where, case, machine, processes, free, total))
    try:
        yield
    except Exception as error:
        if machine.failure:
            raise MachineFailure(machine.failure) from error
        said = f"{type(error).__name__}: {error}"
        on_device = machine.on_device and any(sign in said for sign in SIGNS)
        if not (on_device or isinstance(error, MemoryError)):
            raise
        where = "on the GPU" if on_device else "on the host"
        if machine.on_device and not on_device:
            raise InputError(f"not enough memory {where} ({error})") from error
        raise InputError(_too_little(where, case, machine, processes, free, total)) from error


def _too_little(
    where: str, case: Case, machine: Backend, processes: int, free: int, total: int
) -> str:  # fmt: skip
    """The sentence on a lack of memory, with an estimate of the need if there is one."""
    told = f"not enough memory {where}, where {size(free)} of {size(total)} were free"
    with suppress(Exception):  # an estimate needs memory, too
        told += _what_would_fit(case, machine, processes, free)
    return told


def _what_would_fit(case: Case, machine: Backend, processes: int, free: int) -> str:
    """The memory that a case needs, and the part of it for which the free memory is enough."""
    wanted = budget_of(case, machine, processes).needed(machine.on_device)
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
