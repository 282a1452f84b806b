"""A machine in one precision: what it has compiled, what it has done, its twin in single."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy as duplicate
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from heatsolve.stencil.trace import INTEGER

Converts = tuple[Callable[[Any], Any] | None, ...]
"""For each argument of a compiled sweep the type it is converted to; None for an array."""
PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
OF_GROUP = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
"""By the version of control groups: the files of the limit and of what is in use, and the line of
memory.stat with what of that are copies of files."""


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


def cores() -> set[int]:
    """The numbers of the processor's cores that this process may use.

    Systems that bind no process to some of them, as macOS, tell only how many there are.
    """
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def host_memory() -> tuple[int, int]:
    """Bytes that are free, and all that there are, on the host, or for this process's control group
    where that has less (as Slurm's --mem and containers set it)."""
    free = total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, KeyError):  # no Linux
        lines = dict(line.split(":") for line in (PROC / "meminfo").read_text().splitlines())
        free = 1024 * int(lines["MemAvailable"].split()[0])
    for limit, used in group_memory():
        free, total = min(free, max(0, limit - used)), min(total, limit)
    return free, total


def group_memory() -> Iterator[tuple[int, int]]:
    """Of each control group that this process is in, of version 1 or 2: the limit of its memory,
    and what of that is in use and could not be given back."""
    with suppress(OSError):
        for line in (PROC / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            version = 1 if controllers else 2
            root = GROUPS / "memory" if version == 1 else GROUPS
            # A container may see only the group that it is in, as the root.
            own = root / path.lstrip("/")
            for folder in [own, *(each for each in own.parents if each.is_relative_to(root))]:
                with suppress(OSError, ValueError):
                    yield _group(folder, *OF_GROUP[version])


def _group(folder: Path, limit: str, used: str, cached: str) -> tuple[int, int]:
    """What files of a group say; ValueError where there is no limit."""
    files = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    current = int((folder / used).read_text()) - int(files.get(cached, 0))
    return int((folder / limit).read_text()), current


def converted(arguments: Sequence[Any], converts: Converts) -> list[Any]:
    """The arguments as a compiled sweep takes them."""
    return [
        a if convert is None else convert(a) for a, convert in zip(arguments, converts, strict=True)
    ]
