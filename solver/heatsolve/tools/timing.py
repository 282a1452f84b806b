"""How long a run takes at least: the bytes that it moves, and its calls, at a machine's best.

Start-up, compilation, files and pictures come on top, and what a machine does in a worse way than
it copies memory.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from heatsolve import __version__
from heatsolve.backends import Backend, digest, kept
from heatsolve.backends.registry import machine_name
from heatsolve.budget import Budget
from heatsolve.case.case import Case
from heatsolve.errors import InputError
from heatsolve.models.heat.solver import method_name
from heatsolve.report import duration, size
from heatsolve.stencil.language import copy
from heatsolve.time.step_size import TimeStepController
from heatsolve.tools.check import Timing, row

CACHED = 64 << 20
"""Bytes of arrays up to which a cache may hold them."""
COPIED = {False: (1 << 15, 1 << 22), True: (1 << 20, 1 << 25)}
"""Doubles of the copies that measure a cache and the memory, of a host and of a device."""
CALLS = 100
"""Copies of one measurement."""
SECONDS = 0.03
"""The time for which each measurement is repeated, FEWEST times at least; the fastest counts."""
FEWEST = 5


@dataclass(frozen=True)
class Speed:
    """The best of a machine: bytes that it copies a second (read plus written), in its memory and
    in a cache, and the seconds of a call of a kernel."""

    memory: float
    cache: float
    call: float

    def least(self, budget: Budget) -> float:
        """Seconds that an iteration or a step takes at least."""
        bandwidth = self.cache if budget.arrays <= CACHED else self.memory
        return max(budget.moved / bandwidth, budget.calls * self.call)


MACHINES = {"h200": ("one NVIDIA H200", Speed(4.27e12, 1.2e13, 1.2e-6))}
"""Machines of the tables in docs/performance.md, each with its name."""


def timing(processes: int, known: str | None = None) -> Timing:
    """The function that makes the rows on time of `heatsolve check`.

    On this machine processes share its memory, unless it is a GPU; `known` names one of MACHINES,
    of which each process has one. Raises InputError for a machine that is not known.
    """
    if known is not None and known not in MACHINES:
        raise InputError(f"--machine {known!r} must be one of {', '.join(MACHINES)}")
    return partial(_rows, processes, known)


def _rows(
    processes: int, known: str | None, case: Case, machine: Backend, budget: Budget,
    time_steps: TimeStepController | None,
) -> Iterator[str]:  # fmt: skip
    if known is None:
        speed, where = speed_of(machine), "here"
        sharing = 1 if machine.on_device else processes
    else:
        name, speed = MACHINES[known]
        sharing = 1
        where = f"on {name}" if processes == 1 else f"on {processes} processes, each with {name}"
    seconds = sharing * speed.least(budget)
    unit = "iteration" if time_steps is None else "step"
    work = f"{size(budget.moved)} in {calls_in_words(budget.calls, unit)}"
    yield row("time", f"at least {_words(seconds)} for each {unit} {where}: {work}")
    count, said = _units(case, time_steps)
    if count is None:
        yield row("in all", said)
    else:
        yield row("in all", f"at least {_words(count * seconds)}: {said}")


def _units(case: Case, time_steps: TimeStepController | None) -> tuple[int | None, str]:
    """How many iterations or steps there are, if that is known, and how it is."""
    if time_steps is None:
        if method_name(case) == "fft":
            return 1, "1 iteration"
        count = case.solver.iterations
        if count is not None:
            return count, f"{count} iterations"
        return None, "not known, for the number of iterations is not"
    time = case.time
    assert time is not None
    if time.tolerance is not None:
        return None, f"not known: it ends when it is steady, or after {time_steps.count} steps"
    follows = (
        ", if the flow stays as fast as at t = 0"
        if time_steps is not None and time_steps.follows
        else ""
    )
    return time_steps.count, f"{time_steps.count} steps{follows}"


def calls_in_words(number: float, unit: str) -> str:
    """Calls of kernels in one iteration or step, a mean; a call may make several of them."""
    if number <= 0.75:
        return f"1 call for about {round(1.0 / number)} {unit}s" if number > 0.0 else "no call"
    count = round(number)
    return "1 call" if count == 1 else f"{count} calls"


def _words(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= factor:
            return duration(seconds) if seconds > 60.0 else f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


# ---- the best of a machine ---------------------------------------------------------------------


def speed_of(machine: Backend) -> Speed:
    """The speed of a machine here, measured once and kept in the cache folder."""
    name = digest("speed", __version__, machine.name, machine_name(machine), _threads(machine))
    text = kept(f"{name}.json", lambda: json.dumps(asdict(measured(machine))).encode())
    return Speed(**json.loads(text))


def _threads(machine: Backend) -> int:
    return 1 if machine.on_device else machine.library().threads


def measured(machine: Backend) -> Speed:
    """By copies: a device's own, in a queue; on a host NumPy's, on the threads of the backend."""
    small, large = COPIED[machine.on_device]
    if machine.on_device:
        return Speed(_copied(machine, large), _copied(machine, small), _seconds_of_call(machine))
    with ThreadPoolExecutor(_threads(machine)) as pool:
        in_memory = _copied_by(pool, machine, large // _threads(machine), 1)
        in_cache = _copied_by(pool, machine, small, CALLS)
    return Speed(in_memory, in_cache, _seconds_of_call(machine))


def _copied(machine: Backend, count: int) -> float:
    """Bytes a second of a device's copies of `count` elements."""
    u, v = machine.zeros((count,)), machine.zeros((count,))

    def copies() -> None:
        for _ in range(CALLS):
            machine.copy(v, u)

    return 2 * CALLS * u.nbytes / _fastest(machine, machine.replayed(copies))


def _copied_by(pool: ThreadPoolExecutor, machine: Backend, count: int, times: int) -> float:
    """The same of a host, each thread with arrays of its own."""
    pairs = [(np.zeros(count), np.ones(count)) for _ in range(_threads(machine))]

    def copies(pair: tuple[np.ndarray, np.ndarray]) -> None:
        for _ in range(times):
            np.copyto(*pair)

    seconds = _fastest(machine, lambda: list(pool.map(copies, pairs)))
    return 2 * times * len(pairs) * pairs[0][0].nbytes / seconds


def _seconds_of_call(machine: Backend) -> float:
    """Seconds of a copy of one element; with NumPy of a sweep, as it has a cost in Python."""
    u, v = machine.zeros((1,)), machine.zeros((1,))

    def calls() -> None:
        for _ in range(CALLS):
            if machine.name == "numpy":
                machine.sweep(copy, v, ((0, 1),), u)
            else:
                machine.copy(v, u)

    return _fastest(machine, machine.replayed(calls)) / CALLS


def _fastest(machine: Backend, work: Callable[[], Any]) -> float:
    """The shortest of some times of a work (s)."""
    work()
    times: list[float] = []
    while len(times) < FEWEST or sum(times) < SECONDS:
        seconds = machine.stopwatch()
        work()
        times.append(seconds())
    return max(min(times), 1e-9)
