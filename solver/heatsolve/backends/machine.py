"""The cores and the memory that this machine has for a process."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
OF_GROUP = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
"""By the version of control groups: the files of the memory limit and of the memory in use, and the
line of memory.stat with the part of that memory that caches files."""


def cores() -> set[int]:
    """The numbers of the processor's cores that this process may use.

    Systems that bind no process to cores, such as macOS, tell only the number of cores.
    """
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def host_memory() -> tuple[int, int]:
    """Free and total bytes of the host's memory, or of this process's control group where the group
    has less (Slurm's --mem and containers set its limit)."""
    free = total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, KeyError):  # no Linux
        lines = dict(line.split(":") for line in (PROC / "meminfo").read_text().splitlines())
        free = 1024 * int(lines["MemAvailable"].split()[0])
    for limit, used in group_memory():
        free, total = min(free, max(0, limit - used)), min(total, limit)
    return free, total


def group_memory() -> Iterator[tuple[int, int]]:
    """Yield the memory limit, and the memory in use that cannot be freed, of each control group
    (version 1 or 2) that contains this process."""
    with suppress(OSError):
        for line in (PROC / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            version = 1 if controllers else 2
            root = GROUPS / "memory" if version == 1 else GROUPS
            # A container may see only its own group, as the root.
            own = root / path.lstrip("/")
            for folder in [own, *(each for each in own.parents if each.is_relative_to(root))]:
                with suppress(OSError, ValueError):
                    yield _group(folder, *OF_GROUP[version])


def _group(folder: Path, limit: str, used: str, cached: str) -> tuple[int, int]:
    """The limit and the use of a group, from its files; ValueError where there is no limit."""
    files = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    current = int((folder / used).read_text()) - int(files.get(cached, 0))
    return int((folder / limit).read_text()), current
