"""How a benchmark measures, and what it says: one row of the table.

Times are medians of repeats, warm-up excluded, by the clock of the device where it has one.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heatsolve.backends import Backend
from heatsolve.report import count

REPEATS = 7
FEW_REPEATS = 3
"""Repeats of what takes longer than LONG."""
LONG = 1.0
SECONDS_A_REPEAT = 0.1
BYTES_OF_COPY = 16
"""Of one copy, for each point: a double is read and written."""


@dataclass(frozen=True)
class Row:
    """One line of the table; a figure that makes no sense for it is None.

    `seconds` are those of one sweep, copy or solution, `setup_seconds` what comes once before.
    `shape` is that of the arrays, ghosts included. `glups` counts the points updated (1e9 a
    second), `fraction_of_copy` is the time in which the fewest bytes of the sweep could be copied
    over its own time, `copies` the time of a solution over that of the copy of one field of
    doubles. `rival_of` names the program's own row of the same work, and `speedup` tells how many
    times as fast that one is, set-up included; both are measured in turn for it.
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


@dataclass(frozen=True)
class Bench:
    """The machine under test, and its copy bandwidth (bytes read plus written, a second)."""

    machine: Backend
    bandwidth: float

    def sweep_row(
        self, name: str, shape: Sequence[int], seconds: float, points: int, arrays: int = 2,
        backend: str = "", note: str = "",
    ) -> Row:  # fmt: skip
        """The row of a sweep that must move so many arrays, read plus written."""
        ideal = arrays * points * self.machine.dtype.itemsize / self.bandwidth
        return Row(
            name, backend or self.machine.name, tuple(shape), self.machine.precision, seconds,
            glups=points / seconds / 1e9, fraction_of_copy=ideal / seconds, note=note,
        )  # fmt: skip

    def solver_row(
        self, name: str, shape: Sequence[int], setup: float, seconds: float, unknowns: int,
        backend: str = "", dtype: str = "", note: str = "",
    ) -> Row:  # fmt: skip
        """The row of a linear solver."""
        one_copy = BYTES_OF_COPY * unknowns / self.bandwidth
        return Row(
            name, backend or self.machine.name, tuple(shape), dtype or self.machine.precision,
            seconds, unknowns_per_second=unknowns / seconds, copies=seconds / one_copy,
            setup_seconds=setup, note=note,
        )  # fmt: skip


def inner_points(shape: Sequence[int]) -> int:
    """Points of an array within its ring of ghosts."""
    return math.prod(extent - 2 for extent in shape)


Repeat = Callable[[], Sequence[float]]
"""Does some work once more and returns its times (s), those of its parts one by one."""


def repeat_of(work: Callable[[], Any], machine: Backend) -> Repeat:
    """As many calls as take SECONDS_A_REPEAT; the time is that of one call."""

    def run(times: int) -> float:
        seconds = machine.stopwatch()
        for _ in range(times):
            work()
        return seconds() / times

    run(1)
    times = max(1, int(SECONDS_A_REPEAT / max(run(1), 1e-7)))
    return lambda: [run(times)]


def medians_of(repeat: Repeat) -> list[float]:
    """The median of each time."""
    repeat()  # warm-up
    first = repeat()
    runs = [first, *[repeat() for _ in range(count_of(sum(first)) - 1)]]
    return [statistics.median(times) for times in zip(*runs, strict=True)]


def seconds_of(work: Callable[[], Any], machine: Backend) -> float:
    """The median time of one call."""
    (seconds,) = medians_of(repeat_of(work, machine))
    return seconds


def in_turn(own: Repeat, other: Repeat) -> tuple[list[float], float]:
    """The median of each time of `other`, and how many times as fast `own` is in all.

    Each repeat of one stands beside one of the other, so that both share the machine with the same
    neighbours; the ratio is the median of theirs.
    """
    own(), other()
    first = own(), other()
    more = count_of(sum(map(sum, first))) - 1
    pairs = [first, *[(own(), other()) for _ in range(more)]]
    times = [statistics.median(times) for times in zip(*[b for _, b in pairs], strict=True)]
    return times, statistics.median(sum(b) / sum(a) for a, b in pairs)


def count_of(seconds: float) -> int:
    """How many repeats of so long a work are made."""
    return REPEATS if seconds < LONG else FEW_REPEATS


# ---- white noise for right sides ------------------------------------------------------------
#
# Every frequency at once, the same numbers everywhere. A smooth right side would flatter a solver:
# its residual is at rounding level long before 1e-10.


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
