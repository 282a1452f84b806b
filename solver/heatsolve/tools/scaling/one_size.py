"""One size of a scaling study: a case on the processes that were launched together.

python -m heatsolve.tools.scaling.one_size CASE KIND PER_RANK BACKEND FILE [KEY=VALUE ...]

measures its sweeps, cycles or steps and writes a record of them to a file of JSON.
"""

import json
import math
import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from heatsolve.backends.registry import ON_GPU, count_gpus, gpu_name
from heatsolve.case.case import Case
from heatsolve.case.load import load, locating
from heatsolve.errors import CaseError, HeatsolveError
from heatsolve.io.disk import write_text
from heatsolve.models.base import THICK_SLAB, Model, grid_of
from heatsolve.models.heat.solver import make_method, method_name
from heatsolve.parallel.decomposition import factorisations
from heatsolve.parallel.ranks import Ranks, find_ranks
from heatsolve.parallel.transport import ring
from heatsolve.report import Report
from heatsolve.runner import machine_of, set_up, shares
from heatsolve.time.step_size import MOST_STEPS, step_length, substeps
from heatsolve.tools.bench.measure import time_of

REPEATS = 7
SECONDS_A_REPEAT = 0.5
WARM_UP = 3
MESSAGES = (64, 1 << 20)
"""Elements of the messages that tell the latency and the bandwidth of a transport."""
EXCHANGES = 20
SIZES = ("n", "N")
"""Constants of a case that its grid is a function of."""
LEAST_EVEN = 24
"""A count becomes even from twice this number on, and a multiple of 16 from 16 times."""
MOST_AWAY = 50
"""The largest distance from the wanted size at which the search for another one ends."""


def sized(source: str, overrides: Sequence[str], unknowns: float) -> list[str]:
    """Overrides that give a case about `unknowns` unknowns, after the overrides that it has.

    Its constant n (or N) is changed if it has one, to the nearest with which there are whole
    numbers of points; else the counts of its grid, which covers what it did, with spacings in the
    same ratio. Both become multiples of a power of two, which multigrid can halve. Raises CaseError
    as `load` does.
    """
    case = load(source, overrides)
    grid = grid_of(case)
    factor = (unknowns / grid.all_unknowns) ** (1.0 / grid.dimension)
    for name in SIZES:
        if name in case.constants:
            return _with_constant(source, overrides, name, even(case.constants[name] * factor))
    intervals = {axis.name: even(axis.intervals * factor) for axis in grid.axes}
    wider = max(axis.intervals / intervals[axis.name] for axis in grid.axes)
    return [*overrides, *_resized(case, intervals, wider), *_numbered(case, intervals)]


def even(count: float) -> int:
    """The nearest multiple of a power of two: the larger, the more there are."""
    unit = 2 ** min(4, max(0, int(math.log2(max(count, 1.0) / LEAST_EVEN))))
    return max(1, round(count / unit)) * unit


def _resized(case: Case, intervals: Mapping[str, int], wider: float = 1.0) -> list[str]:
    """The overrides that give a case these intervals along its axes, `wider` times as wide."""
    axes = list(reversed(grid_of(case).axes))
    counts = [intervals[axis.name] + axis.points - axis.intervals for axis in axes]
    upper = [axis.lower + intervals[axis.name] * (wider * axis.spacing) for axis in axes]
    return [f"grid.{case.grid.kind}={counts}", f"grid.upper={upper}"]


def _numbered(case: Case, intervals: Mapping[str, int]) -> Iterator[str]:
    """The overrides that keep sources and boxes given by indices at their places."""
    axes = list(reversed(grid_of(case).axes))
    indices = {f"source.point.{n}.index": point.index for n, point in enumerate(case.source.points)}
    for n, box in enumerate(case.initial.boxes):
        indices |= {f"initial.box.{n}.{end}": getattr(box, end) for end in ("first", "last")}
    for key, numbers in indices.items():
        if numbers is not None:
            pairs = zip(numbers, axes, strict=True)
            moved = [int(i) * intervals[axis.name] // axis.intervals for i, axis in pairs]
            yield f"{key}={moved}"


def _with_constant(
    source: str, overrides: Sequence[str], name: str, nearest: int
) -> list[str]:  # fmt: skip
    refusal: CaseError | None = None
    for away in range(MOST_AWAY):
        for n in dict.fromkeys((nearest - away, nearest + away)):
            try:
                if n > 0:
                    changed = [*overrides, f"constants.{name}={n}"]
                    load(source, changed)
                    return changed
            except CaseError as error:
                refusal = refusal or error
    assert refusal is not None
    raise refusal


def of_kind(
    kind: str,
    source: str,
    overrides: Sequence[str],
    ranks: int,
    per_rank: float | None,
    backend: str | None = None,
) -> Case:
    """The case of a weak study for this number of processes; of a strong one for any number.

    In a weak study every process has the block of one process alone: counts and extents
    grow along the axes that are divided.
    """
    changed = list(overrides) if per_rank is None else sized(source, overrides, per_rank)
    case = load(source, changed)
    if kind == "strong" or ranks == 1:
        return case
    name = backend or case.parallel.backend
    on_device = name in ON_GPU or (name == "auto" and count_gpus() > 0)
    axes = grid_of(case).axes
    dims = growth([axis.all_unknowns for axis in axes], ranks, on_device)
    intervals = {
        axis.name: axis.intervals + (parts - 1) * axis.all_unknowns
        for axis, parts in zip(axes, dims, strict=True)
    }
    grown = [*_resized(case, intervals), f"parallel.ranks={list(reversed(dims))}"]
    return load(source, [*changed, *grown])


def growth(block: Sequence[int], ranks: int, on_device: bool) -> tuple[int, ...]:
    """The factors by which the axes of a block grow with the processes, slowest first.

    As evenly as can be, the slowest axis first; devices have slabs, as in a run, if these are
    thick.
    """
    if on_device and block[0] >= THICK_SLAB:
        return (ranks, *[1] * (len(block) - 1))
    ways = factorisations(ranks, len(block))
    return min(ways, key=lambda dims: (sum(dims), [-parts for parts in dims]))


def worker(problem: Model) -> tuple[Callable[[int], None], str]:
    """A function that makes a number of iterations, cycles or steps, and the name of the unit."""
    case = problem.case
    if case.time is None:
        (field,) = problem.fields.values()
        method, made = make_method(case, problem.steady_system(), field), 0

        def iterate(count: int) -> None:
            nonlocal made
            made = method.march(made, made + count)

        cycles = method_name(case) in ("multigrid", "mgcg")
        return iterate, "cycle" if cycles else "iteration"
    step, _ = step_length(problem)
    stepper, number, times = problem.stepper(0.0, step), 0, case.time
    stepper.prepare()

    def march(count: int) -> None:
        nonlocal number
        for _ in range(count):
            parts = list(substeps(times, number, step, int(MOST_STEPS)))
            stepper.step(parts, None, None)
            number += 1

    return march, "step"


def measure(case: Case, kind: str, backend: str | None, ranks: Ranks) -> dict[str, Any]:
    """The record of this size; all processes together.

    `seconds`: of one unit of work, of the slowest process, of each repeat. `updates` and `bytes`:
    of one unit, of all processes. `waited`: the share of the time in which a process only waited
    for what others send it (None where a device does so). `balance`: unknowns of the mean process
    over the largest. `latency`, `bandwidth`: of an exchange with both neighbours (s, B/s).
    """
    quiet = Report(quiet=True)
    problem = set_up(case, machine_of(case, backend, quiet, ranks), quiet, ranks)
    machine, transport = problem.backend, problem.halo.transport
    work, unit = worker(problem)

    def timed(count: int) -> float:
        def units() -> None:
            work(count)
            machine.sync()

        machine.sync()
        return time_of(ranks, units) / count

    timed(WARM_UP)
    count = max(1, int(SECONDS_A_REPEAT / max(timed(WARM_UP), 1e-7)))
    machine.points_updated = machine.bytes_moved = 0
    transport.restart_clocks()
    seconds = [timed(count) for _ in range(REPEATS)]
    cost = shares(problem, count * sum(seconds))
    work_done = ranks.gather((machine.points_updated, machine.bytes_moved))
    updates, moved = (sum(each) / (count * REPEATS) for each in zip(*work_done, strict=True))
    latency, bandwidth = speed_of(problem) if ranks.size > 1 else (None, None)
    return {
        "case": case.name, "kind": kind, "ranks": ranks.size, "backend": machine.name,
        "precision": case.solver.precision, "unit": unit, "link": transport.name(machine),
        "dims": list(reversed(problem.dims)), "counts": list(case.grid.counts),
        "periodic": list(case.grid.periodic),
        "unknowns": problem.whole.all_unknowns, "seconds": seconds,
        "updates": updates, "bytes": moved, "waited": cost.waited, "balance": cost.balance,
        "latency": latency, "bandwidth": bandwidth,
        "machine": {"node": platform.node(), "nodes": len(set(ranks.gather(platform.node()))),
                    "cores": os.cpu_count(), "gpu": gpu_name(ranks.local_rank)},
    }  # fmt: skip


def speed_of(problem: Model) -> tuple[float, float]:
    """Latency (s) and bandwidth (bytes a second) of an exchange between neighbours in a ring.

    An exchange sends to both and receives from both.
    """
    ranks, machine, transport = problem.ranks, problem.backend, problem.halo.transport
    times = []
    for count in MESSAGES:
        sides = ring(transport, machine, count, ranks)

        def exchanges(times: int, sides: Any = sides) -> None:
            for _ in range(times):
                transport.start(sides)
                transport.finish(sides)
            machine.sync()

        exchanges(1)
        times.append(time_of(ranks, partial(exchanges, EXCHANGES)) / EXCHANGES)
    more = 2 * (MESSAGES[1] - MESSAGES[0]) * machine.dtype.itemsize
    return times[0], more / max(times[1] - times[0], 1e-12)


def main(arguments: Sequence[str]) -> None:
    """Measure, and let rank 0 write the record; an error ends all processes with its code."""
    source, kind, per_rank, backend, path, *overrides = arguments
    ranks = find_ranks()
    try:
        wanted = float(per_rank) if per_rank != "-" else None
        named = None if backend == "-" else backend
        case = of_kind(kind, source, overrides, ranks.size, wanted, named)
        if case.parallel.threads is None:  # one, whatever the number of processes: they compare
            parallel = case.parallel.model_copy(update={"threads": 1})
            case = case.model_copy(update={"parallel": parallel})
        with locating(case):
            record = measure(case, kind, named, ranks)
        if ranks.rank == 0:
            write_text(Path(path), json.dumps(record, indent=1))
    except HeatsolveError as error:
        ranks.fail(f"heatsolve: {error}", error.exit_code)
        print(f"heatsolve: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except Exception:
        ranks.fail(traceback.format_exc(), 1)
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
