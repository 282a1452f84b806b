"""A machine in one precision: what it has compiled, what it has done, its twin in single."""

import os
from collections.abc import Callable, Sequence
from copy import copy as duplicate
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from heatsolve.backends.tape import INTEGER

Converts = tuple[Callable[[Any], Any] | None, ...]
"""For each argument of a compiled sweep the type it is converted to; None for an array."""


@dataclass
class Course:
    """What the sweeps of a machine have done, and whether they now obey its gate."""

    points_updated: int = 0
    bytes_moved: int = 0
    gated: bool = False
    notes: list[Any] | None = None
    """What is queued while it is only noted down."""


class Machine:
    """What every backend keeps, whatever it runs on.

    `points_updated` and `bytes_moved` count what its sweeps have done: a point once for each
    sweep, a byte for each array element that a sweep, or a pass of several sweeps, must read or
    write at least once.
    """

    name: str
    integer: Callable[[Any], Any] = int
    """The type in which compiled sweeps take an integer argument."""

    def __init__(self, precision: str = "float64"):
        self.precision = precision
        self.dtype = np.dtype(precision)
        self._course = Course()
        # Sweeps, passes, and what was told of sweeps, each by all that it depends on; their keys
        # differ in length.
        self._compiled: dict[Any, Any] = {}
        self._single: Self | None = None

    def single(self) -> Self:
        """The same machine in single precision.

        Its sweeps come in turn with those of this one, obey the same gate and count as the same
        work. Sweeps of this one take its arrays, too: they read them exactly, compute in double
        precision, and round what they write.
        """
        if self._single is None:
            single = duplicate(self)  # it shares the course
            single.precision, single.dtype = "float32", np.dtype("float32")
            single._compiled = {}
            self._single = single
        return self._single

    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and all that there are, where its arrays lie."""
        return host_memory()

    @property
    def points_updated(self) -> int:
        return self._course.points_updated

    @points_updated.setter
    def points_updated(self, points: int) -> None:
        self._course.points_updated = points

    @property
    def bytes_moved(self) -> int:
        return self._course.bytes_moved

    @bytes_moved.setter
    def bytes_moved(self, moved: int) -> None:
        self._course.bytes_moved = moved

    @property
    def gated(self) -> bool:
        """Whether sweeps now obey the gate; only devices that queue work have one."""
        return self._course.gated

    @gated.setter
    def gated(self, gated: bool) -> None:
        self._course.gated = gated

    def _converts(self, described: Sequence[Any]) -> Converts:
        """What makes numbers what compiled sweeps take; arrays stay as they are."""
        return tuple(
            None if not isinstance(argument, str)
            else self.integer if argument == INTEGER else self.dtype.type
            for argument in described
        )  # fmt: skip


def host_memory() -> tuple[int, int]:
    """Bytes that are free, and all that there are, on the host."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":") for line in file)
        return 1024 * int(lines["MemAvailable"].split()[0]), total
    except (OSError, KeyError):  # no Linux
        return total, total


def converted(arguments: Sequence[Any], converts: Converts) -> list[Any]:
    """The arguments as a compiled sweep takes them."""
    return [
        a if convert is None else convert(a) for a, convert in zip(arguments, converts, strict=True)
    ]
