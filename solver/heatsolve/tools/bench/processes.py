"""What it costs to be several processes: the halo, the output in parts, the checkpoints.

Each cost is a ratio of two times that are measured in turn in the same run, by all processes at
once, so that both share the machine in the same way. Medians of repeats, warm-up excluded.
"""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from heatsolve.backends import Backend
from heatsolve.case.load import parse
from heatsolve.control.controller import State
from heatsolve.io.checkpoints import CheckpointStore
from heatsolve.io.writer import FieldFile, Results
from heatsolve.linear.stationary import Jacobi
from heatsolve.models.heat.conduction import Conduction
from heatsolve.models.heat.solver import make_method
from heatsolve.parallel.ranks import Ranks

REPEATS = 9
SECONDS_A_REPEAT = 0.2
POINTS = 2048
"""Unknowns of a process along each axis, for the halo."""
FIELD = 4096
"""Points along each axis of the field that is written."""

CASE = """
[grid]
cells = [{x}, {y}]
upper = [{x}, {y}]
[boundary]
left.temperature = {{ value = 1 }}
right.temperature = {{ value = 0 }}
bottom.temperature = {{ value = 0 }}
top.temperature = {{ value = 0 }}
[solver]
method = "jacobi"
"""


@dataclass(frozen=True)
class Comparison:
    """Two times of the same work (s), the second of the plain way."""

    name: str
    backend: str
    ranks: int
    seconds: float
    plain: float

    @property
    def ratio(self) -> float:
        """How many times as fast as the plain way."""
        return self.plain / self.seconds

    def __str__(self) -> str:
        return (
            f"{self.name:18} {self.backend:12} {self.ranks:3} processes {self.seconds * 1e3:10.3f} "
            f"ms, {PLAIN[self.name]} {self.plain * 1e3:10.3f} ms, ratio {self.ratio:.3f}"
        )


PLAIN = {
    "halo": "without exchange",
    "output": "gathered and written by one",
    "checkpoint": "the same bytes raw",
}


def compare(machine: Backend, ranks: Ranks, names: list[str]) -> Iterator[Comparison]:
    """The comparisons of these names; all processes together."""
    for name in names:
        own, plain = COMPARISONS[name](machine, ranks)
        yield Comparison(name, machine.name, ranks.size, own, plain)


def together(
    ranks: Ranks,
    works: list[Callable[[], Any]],
    least: float,
    tidy: Callable[[], None] = lambda: None,
) -> list[float]:
    """The median seconds of each work, in turn, begun by all at once, of the slowest process.

    A work is repeated for `least` seconds; `tidy` is called between them and not timed.
    """

    def run(work: Callable[[], Any], times: int) -> float:
        tidy()
        return time_of(ranks, work, times)

    counts = []
    for work in works:
        run(work, 1)
        counts.append(max(1, int(least / max(run(work, 1), 1e-7))))
    rounds = [[run(w, n) for w, n in zip(works, counts, strict=True)] for _ in range(REPEATS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def time_of(ranks: Ranks, work: Callable[[], Any], times: int = 1) -> float:
    """Seconds of a call of so many, begun by all at once, of the slowest process."""
    ranks.gather(None)
    began = time.perf_counter()
    for _ in range(times):
        work()
    return max(ranks.gather(time.perf_counter() - began)) / times


def _halo(machine: Backend, ranks: Ranks) -> list[float]:
    """A step of Jacobi's iteration, and its sweep alone over the same points."""
    case = parse(CASE.format(x=POINTS * ranks.size, y=POINTS), "halo", [
        f"parallel.ranks=[{ranks.size}, 1]"])  # fmt: skip
    problem = Conduction(case, machine, ranks=ranks)
    b = machine.to_device(problem.source(0.0))
    method = make_method(case, problem.system(b), problem.temperature)
    assert isinstance(method, Jacobi)
    steps = iter(range(1 << 60))
    sweeps = iter(range(1 << 60))

    def step() -> None:
        method.step(next(steps), None)
        machine.sync()

    def sweep() -> None:
        number = next(sweeps)
        old, new = method.solution(number), method.solution(number + 1)
        machine.sweep(method.point, new, problem.grid.interior, old, *method.args)
        machine.sync()

    return together(ranks, [step, sweep], SECONDS_A_REPEAT)


def _output(machine: Backend, ranks: Ranks) -> list[float]:
    """A field of FIELD squared doubles in parts, and gathered by one process that writes it."""
    windows = _windows(ranks)
    window = windows[ranks.rank]
    block = np.random.default_rng(ranks.rank).random([high - low for low, high in window])
    line = np.arange(FIELD, dtype=float)
    axes, attributes = {"y": line, "x": line}, {"case": ""}
    with _folder(ranks) as folder:

        def in_parts() -> None:
            path = folder / "parts.h5"
            with Results(path, axes, {}, window, ranks, transient=False) as results:
                results.append({"temperature": block})
                results.finish(attributes, {})

        def gathered() -> None:
            blocks = ranks.collect(block)
            if blocks is not None:
                field = np.empty((FIELD, FIELD))
                for values, place in zip(blocks, windows, strict=True):
                    field[tuple(slice(*pair) for pair in place)] = values
                with FieldFile(folder / "plain.h5", axes, {}, transient=False) as file:
                    file.append({"temperature": field})
                    file.finish(attributes, {})

        def tidy() -> None:
            if ranks.rank == 0:
                shutil.rmtree(folder / "parts.parts", ignore_errors=True)
                for path in folder.glob("*.h5"):
                    path.unlink()

        return together(ranks, [in_parts, gathered], 0.0, tidy)


def _checkpoint(machine: Backend, ranks: Ranks) -> list[float]:
    """A checkpoint of three fields, and the same bytes written raw and flushed."""
    window = _windows(ranks)[ranks.rank]
    shape = [high - low for low, high in window]
    rng = np.random.default_rng(ranks.rank)
    fields = {name: rng.random(shape) for name in ("u", "r", "p")}
    numbers = iter(range(1, 1 << 60))
    with _folder(ranks) as folder:
        store = CheckpointStore(folder / "case.checkpoints", (FIELD, FIELD), window, ranks)

        def saved() -> None:
            store.save(State(next(numbers), {}, {}, fields))

        def raw() -> None:
            with open(folder / f"raw-{ranks.rank}", "wb") as file:
                for values in fields.values():
                    values.tofile(file)
                file.flush()
                os.fsync(file.fileno())
            # Checkpoints replace others, too.
            with suppress(OSError):
                os.replace(folder / f"raw-{ranks.rank}", folder / f"old-{ranks.rank}")

        return together(ranks, [saved, raw], 0.0)


def _windows(ranks: Ranks) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """The rows of the field that each process has."""
    cuts = np.linspace(0, FIELD, ranks.size + 1).astype(int).tolist()
    return [(pair, (0, FIELD)) for pair in pairwise(cuts)]


@contextmanager
def _folder(ranks: Ranks) -> Iterator[Path]:
    """A temporary folder in the current one, known to all processes."""
    with ExitStack() as stack:
        name = ""
        if ranks.rank == 0:
            name = stack.enter_context(tempfile.TemporaryDirectory(dir=".", prefix="heatsolve-"))
        yield Path(ranks.gather(name)[0])
        ranks.gather(None)  # nobody needs it any more


COMPARISONS = {"halo": _halo, "output": _output, "checkpoint": _checkpoint}
