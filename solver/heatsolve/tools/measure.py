"""Measurements: the rows of a benchmark, the bandwidth of a copy, the best of a machine.

Times are medians of repeats, warm-up excluded, by the clock of the device where it has one.
"""

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from heatsolve import __version__
from heatsolve.backends import Backend, digest, load_or_make
from heatsolve.backends.registry import machine_name, make
from heatsolve.budget import Budget
from heatsolve.errors import HeatsolveError
from heatsolve.models.base import Model
from heatsolve.parallel.ranks import Ranks
from heatsolve.report import count
from heatsolve.stencil.language import copy
from heatsolve.time.step_size import MOST_STEPS, step_length, substeps

REPEATS = 7
FEW_REPEATS = 3
"""Repeats of a work that takes longer than LONG."""
LONG = 1.0
SECONDS_A_REPEAT = 0.1
COPIED = 1 << 24
"""Doubles of the copy that measures the bandwidth of a run's machine, beyond the caches."""
BYTES_OF_COPY = 16
"""Bytes of a copy for each point: a double is read and written."""


@dataclass(frozen=True)
class Row:
    """One line of the table; a figure that makes no sense for it is None.

    `seconds`: the time of one sweep, copy or solution; `setup_seconds`: the time of the set-up
    before it. `shape`: the shape of the arrays, ghosts included. `glups`: points updated (1e9 a
    second). `fraction_of_copy`: the time to copy the fewest bytes of the sweep, over the time of
    the sweep. `copies`: the time of a solution, or of a step of flow, over the time to copy one
    field of doubles. `rival_of`: the program's own row of the same work; `speedup`: how many times
    as fast as this row the own row is, set-up included, with both measured in turn.
    """

    name: str
    backend: str
    shape: tuple[int, ...]
    dtype: str
    seconds: float
    glups: float | None = None
    fraction_of_copy: float | None = None
    unknowns_per_second: float | None = None
    copies: float | None = None
    setup_seconds: float | None = None
    note: str = ""
    rival_of: str | None = None
    speedup: float | None = None

    def __str__(self) -> str:
        shape = " x ".join(map(str, self.shape))
        figures = [f"{self.seconds * 1e3:11.4f} ms"]
        if self.setup_seconds is not None:
            figures.append(f"and {self.setup_seconds * 1e3:.1f} ms set-up")
        if self.glups is not None:
            figures.append(f"{self.glups:8.3f} GLUP/s")
        if self.fraction_of_copy is not None:
            figures.append(f"{self.fraction_of_copy:6.3f} of copy")
        if self.unknowns_per_second is not None:
            figures.append(f"{count(self.unknowns_per_second).rstrip()} unknowns/s")
        if self.copies is not None:
            figures.append(f"{self.copies:.4g} copies")
        if self.note:
            figures.append(self.note)
        if self.speedup is not None:
            figures.append(f"{self.rival_of} is {self.speedup:.3g} times as fast")
        start = f"{self.name:18} {self.backend:12} {shape:16} {self.dtype:8} "
        return start + "  ".join(figures)


PLAIN = {
    "halo": "without exchange",
    "output": "gathered and written by one",
    "checkpoint": "the same bytes raw",
}
"""The plain way of each comparison."""


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


@dataclass(frozen=True)
class Bench:
    """The machine under test, and its copy bandwidth (bytes read plus written, a second)."""

    machine: Backend
    bandwidth: float

    def row(
        self,
        name: str,
        shape: Sequence[int],
        seconds: float,
        points: int | None = None,
        arrays: int | None = None,
        unknowns: int | None = None,
        **more: Any,
    ) -> Row:
        """A row with the figures that follow from its time, and `more` of its attributes.

        `points`: points updated in the time; `arrays`: arrays that a sweep over them moves, read
        plus written; `unknowns`: unknowns of a solver.
        """
        about = {"backend": self.machine.name, "dtype": self.machine.precision} | more
        row = Row(name, shape=tuple(shape), seconds=seconds, **about)
        figures: dict[str, Any] = {}
        if points is not None:
            figures["glups"] = points / seconds / 1e9
            if arrays is not None:
                ideal = arrays * points * self.machine.dtype.itemsize / self.bandwidth
                figures["fraction_of_copy"] = ideal / seconds
        if unknowns is not None:
            figures["unknowns_per_second"] = unknowns / seconds
            figures["copies"] = self.copies(seconds, unknowns)
        return replace(row, **figures)

    def copies(self, seconds: float, points: int) -> float:
        """A time over the time in which one field of doubles is copied."""
        return seconds / (BYTES_OF_COPY * points / self.bandwidth)

    def rival(
        self, name: str, shape: Sequence[int], rival_of: str, own: "Repeat", other: "Repeat",
        **more: Any,
    ) -> Row:  # fmt: skip
        """The row of another way to do the work of the row `rival_of`, measured in turn with it."""
        (seconds,), speedup = in_turn(own, other)
        return self.row(name, shape, seconds, rival_of=rival_of, speedup=speedup, **more)


def inner_points(shape: Sequence[int]) -> int:
    """Points of an array within its ring of ghosts."""
    return math.prod(extent - 2 for extent in shape)


Repeat = Callable[[], Sequence[float]]
"""Does some work once more and returns the times of its parts (s)."""


def repeat_of(work: Callable[[], Any], machine: Backend, times: int | None = None) -> Repeat:
    """A Repeat that calls `work` several `times`, by default for SECONDS_A_REPEAT, and returns the
    time of one call."""

    def run(calls: int) -> float:
        seconds = machine.stopwatch()
        for _ in range(calls):
            work()
        return seconds() / calls

    if times is None:
        run(1)
    calls = times or max(1, int(SECONDS_A_REPEAT / max(run(1), 1e-7)))
    return lambda: [run(calls)]


def medians_of(repeat: Repeat) -> list[float]:
    """The median of each time of `repeat` (s)."""
    repeat()  # warm-up
    first = repeat()
    runs = [first, *[repeat() for _ in range(count_of(sum(first)) - 1)]]
    return [statistics.median(times) for times in zip(*runs, strict=True)]


def seconds_of(work: Callable[[], Any], machine: Backend, times: int | None = None) -> float:
    """The median time of one call; `times`: see `repeat_of`."""
    (seconds,) = medians_of(repeat_of(work, machine, times))
    return seconds


def times_of(ranks: Ranks, work: Callable[[], Any], times: int = 1) -> list[float]:
    """Seconds of one of `times` calls on each process; all processes begin together."""
    ranks.gather(None)
    began = time.perf_counter()
    for _ in range(times):
        work()
    return [seconds / times for seconds in ranks.gather(time.perf_counter() - began)]


def time_of(ranks: Ranks, work: Callable[[], Any], times: int = 1) -> float:
    """As `times_of`, on the slowest process."""
    return max(times_of(ranks, work, times))


def in_turn(own: Repeat, other: Repeat) -> tuple[list[float], float]:
    """The median of each time of `other`, and how many times as fast `own` is in all.

    Repeats of both take turns, so that both share the machine with the same other programs; the
    ratio is the median of the ratios of pairs.
    """
    own(), other()
    first = own(), other()
    more = count_of(sum(map(sum, first))) - 1
    pairs = [first, *[(own(), other()) for _ in range(more)]]
    times = [statistics.median(times) for times in zip(*[b for _, b in pairs], strict=True)]
    return times, statistics.median(sum(b) / sum(a) for a, b in pairs)


def count_of(seconds: float) -> int:
    """The number of repeats of a work that takes this time (s)."""
    return REPEATS if seconds < LONG else FEW_REPEATS


class March:
    """A march on its way, which `step` takes one time step further."""

    def __init__(self, problem: Model):
        self.problem, self._time = problem, problem.case.march
        self.dt, _ = step_length(problem)
        self.stepper = problem.stepper(0.0, self.dt)
        self.stepper.prepare()
        self._count = 0

    def step(self, before: int = 0) -> None:
        """Make one step, after `before` equal steps where the stepper makes several at once."""
        self._count += before
        parts = list(substeps(self._time, self._count, self.dt, int(MOST_STEPS)))
        self.stepper.step(parts, None, None, before)
        self._count += 1


# ---- white noise for right sides -----------------------------------------------------------------
#
# It has all frequencies, and the same numbers on every machine. A smooth right side would flatter a
# solver: its residual is at rounding level long before 1e-10.


def noise(count: int) -> np.ndarray:
    """White noise in (-0.5, 0.5) by hashing the number of the point.

    The hash is splitmix64 (G. Steele, D. Lea and C. Flood, OOPSLA 2014, figure 17).
    """
    bits = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return (bits ^ (bits >> np.uint64(31))) / 2.0**64 - 0.5


def noise_inside(shape: Sequence[int]) -> np.ndarray:
    """An array of noise within a ring of zeros."""
    field = np.zeros(shape)
    inside = field[(slice(1, -1),) * len(shape)]
    inside[...] = noise(inside.size).reshape(inside.shape)
    return field


# ---- copy bandwidth ------------------------------------------------------------------------------


def noise_and_zeros(machine: Backend, shape: Sequence[int]) -> tuple[Any, Any]:
    """Two arrays with noise in the first: zeros would be kinder than real data."""
    u, v = machine.zeros(shape), machine.zeros(shape)
    line = np.random.default_rng(1).standard_normal((*shape[:-1], 1))
    machine.sweep(copy, u, tuple((0, extent) for extent in shape), machine.to_device(line))
    return u, v


def seconds_of_copy(machine: Backend, shape: Sequence[int]) -> float:
    """Seconds of a copy, by the machine's own copy or by a sweep, whichever is faster."""
    u, v = noise_and_zeros(machine, shape)
    region = tuple((0, extent) for extent in shape)
    swept = seconds_of(lambda: machine.sweep(copy, v, region, u), machine)
    return min(swept, seconds_of(lambda: machine.copy(v, u), machine))


def copy_bandwidth(attributes: Mapping[str, Any]) -> float | None:
    """Bytes that the backend of a run copies a second, read plus written; None on another machine.

    `attributes`: the attributes of the run's file.
    """
    if attributes.get("ranks", 1) != 1:
        return None
    try:
        backend = make(str(attributes.get("backend")))
    except HeatsolveError:
        return None
    if machine_name(backend) != attributes.get("machine"):
        return None
    return BYTES_OF_COPY * COPIED / seconds_of_copy(backend, (COPIED,))


# ---- the best of a machine, for `heatsolve check` ------------------------------------------------

CACHED = 64 << 20
"""Bytes of arrays up to which a cache may hold them."""
CACHE_AND_MEMORY = {False: (1 << 15, 1 << 22), True: (1 << 20, 1 << 25)}
"""Doubles of the copies that measure a cache and the memory, of a host and of a device."""
CALLS = 100
"""Copies of one measurement."""
SECONDS_OF_FASTEST, FEWEST = 0.03, 5
"""The time for which a measurement is repeated, FEWEST times at least; the fastest counts."""


@dataclass(frozen=True)
class Speed:
    """The best speeds of a machine: bytes copied a second (read plus written), in its memory and in
    a cache, and the seconds of a kernel call."""

    memory: float
    cache: float
    call: float

    def least(self, budget: Budget) -> float:
        """Seconds that an iteration or a step takes at least."""
        bandwidth = self.cache if budget.arrays <= CACHED else self.memory
        return max(budget.moved / bandwidth, budget.calls * self.call)


def speed_of(machine: Backend) -> Speed:
    """The speed of a machine here, measured once and kept in the cache folder."""
    name = digest("speed", __version__, machine.name, machine_name(machine), _threads(machine))
    text = load_or_make(f"{name}.json", lambda: json.dumps(asdict(measured(machine))).encode())
    return Speed(**json.loads(text))


def _threads(machine: Backend) -> int:
    return 1 if machine.on_device else machine.library().threads


def measured(machine: Backend) -> Speed:
    """Measure copies: a device's own, queued; on a host NumPy's, on the threads of the backend."""
    small, large = CACHE_AND_MEMORY[machine.on_device]
    if machine.on_device:
        return Speed(_copied(machine, large), _copied(machine, small), seconds_of_call(machine))
    with ThreadPoolExecutor(_threads(machine)) as pool:
        in_memory = _copied_by(pool, machine, large // _threads(machine), 1)
        in_cache = _copied_by(pool, machine, small, CALLS)
    return Speed(in_memory, in_cache, seconds_of_call(machine))


def _copied(machine: Backend, count: int) -> float:
    """Bytes a second of a device's copies of `count` elements."""
    u, v = machine.zeros((count,)), machine.zeros((count,))

    def copies() -> None:
        for _ in range(CALLS):
            machine.copy(v, u)

    return 2 * CALLS * u.nbytes / _fastest(machine, machine.replayed(copies))


def _copied_by(pool: ThreadPoolExecutor, machine: Backend, count: int, times: int) -> float:
    """Bytes a second of a host's copies of `count` elements, each thread with its own arrays."""
    pairs = [(np.zeros(count), np.ones(count)) for _ in range(_threads(machine))]

    def copies(pair: tuple[np.ndarray, np.ndarray]) -> None:
        for _ in range(times):
            np.copyto(*pair)

    seconds = _fastest(machine, lambda: list(pool.map(copies, pairs)))
    return 2 * times * len(pairs) * pairs[0][0].nbytes / seconds


def seconds_of_call(machine: Backend) -> float:
    """Seconds of a copy of one element; for NumPy of a sweep, which takes its time in Python."""
    u, v = machine.zeros((1,)), machine.zeros((1,))

    def calls() -> None:
        for _ in range(CALLS):
            if machine.name == "numpy":
                machine.sweep(copy, v, ((0, 1),), u)
            else:
                machine.copy(v, u)

    return _fastest(machine, machine.replayed(calls)) / CALLS


def _fastest(machine: Backend, work: Callable[[], Any]) -> float:
    """The shortest of repeated times of a work (s)."""
    work()
    times: list[float] = []
    while len(times) < FEWEST or sum(times) < SECONDS_OF_FASTEST:
        seconds = machine.stopwatch()
        work()
        times.append(seconds())
    return max(min(times), 1e-9)
