"""Many sweeps of a small field in one kernel, which keeps the field in a cluster of blocks.

A kernel takes two microseconds, however few points it has. Blocks of a cluster (from compute
capability 9.0 on) write into each other's shared memory and wait for each other in a fraction of
that time, so a field that fits into their shared memory needs no other memory between sweeps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from heatsolve.backends import Accumulator, Region
from heatsolve.backends.gpu.device import Limits
from heatsolve.backends.gpu.fused_kernel import (
    NORMS,
    FusedSweeps,
    Reads,
    Shift,
    assembled,
    place_of,
)
from heatsolve.backends.gpu.launch import Launch

FEWEST_SWEEPS = 9
"""The least number of sweeps; with fewer, fused sweeps through memory are as fast."""
ALONE = 1 << 10
"""The most points with which one block is as fast as several."""
POINTS = 8
"""The most points of a thread: the terms that an exact sum takes at once."""
FEW_POINTS = 4
"""The most points of a thread where a block can have more threads."""
THREADS = (128, 256, 512, 1024)
"""The possible numbers of threads of a block."""
LARGEST_CLUSTER = 16
"""The most blocks of a cluster on any device."""


@dataclass(frozen=True)
class Cluster:
    """The blocks of a cluster that holds a field, each with some planes (in 2D rows)."""

    blocks: int
    threads: int
    points: int
    """Points of a thread."""
    bytes_shared: int
    """Shared memory of a block."""


@cache
def cluster_of(
    region: Region, shape: tuple[int, ...], bytes: int, limits: Limits
) -> Cluster | None:
    """The cluster that has room for a field of this shape; None if no cluster has."""
    low, high = region[0]
    beside = math.prod(high - low for low, high in region[1:])
    blocks = min(limits.cluster, high - low)
    if (high - low) * beside <= ALONE:
        blocks = min(blocks, 1)
    if blocks < 1:
        return None
    planes = -(-(high - low) // blocks)
    points = planes * beside
    threads = next((n for n in THREADS if FEW_POINTS * n >= points), THREADS[-1])
    bytes_shared = 2 * (planes + 2) * math.prod(shape[1:]) * bytes
    of_thread = -(-points // threads)
    if of_thread > POINTS or limits.blocks(threads, bytes_shared) < 1:
        return None
    return Cluster(blocks, threads, of_thread, bytes_shared)


def sweeps_at_once(stages: Sequence[Any], changes: Sequence[Accumulator | None]) -> int:
    """The sweeps of one kernel: with equal arguments, and norms of all, of the last, or of none."""
    if any(stage is not stages[0] for stage in stages):
        return 1
    first = first_norm(changes)
    if first > 0:
        return min(first + 1, len(changes))
    return next((n for n, change in enumerate(changes) if change is None), len(changes))


def first_norm(changes: Sequence[Accumulator | None]) -> int:
    """The number of the first sweep that has a norm; the number of sweeps where none has."""
    return next((n for n, change in enumerate(changes) if change is not None), len(changes))


@cache
def source_of(work: FusedSweeps, cluster: Cluster) -> str:
    """CUDA C of the kernel `sweeps`."""
    reads = RegisterReads(work, work.tape, work.own)
    defines = {
        "CLUSTER": cluster.blocks, "THREADS": cluster.threads, "OWN": cluster.points,
        "NORM": NORMS.get(f"{work.norms[0]}_NORM".upper(), 0),
        **dict(zip(("WRAPS_I", "WRAPS_J", "WRAPS_K"), in_space(work.wraps, False), strict=True)),
    }  # fmt: skip
    pieces = {
        "PREPARE": reads.lines,
        "PREPARE_POINT": reads.rows,
        "POINT_ARGUMENTS": ", ".join(reads.args),
    }
    return assembled("resident.cuh", work, defines, pieces)


def in_space(values: Sequence[Any], middle: Any) -> tuple[Any, ...]:
    """Values for each axis in 3D: in 2D a row is a plane of one line, with `middle` along j."""
    first, *others = values
    return (first, *([middle] if len(others) == 1 else []), *others)


class RegisterReads(Reads):
    """The operands of a point function: the field in shared memory, all other arrays in registers.

    `rows` come before each point.
    """

    def _element(self, name: str, number: int, shift: Shift) -> str:
        if number == 0:
            i, j, k = in_space(shift, 0)
            return f"field[{i} * plane + {j} * line + {k}]"
        constant = self._work.signature.arguments[number]
        indices = ("i", "k") if len(constant) == 2 else ("i", "j", "k")
        at = place_of(constant, [f"{n} + {d}" for n, d in zip(indices, shift, strict=True)])
        if not at:
            self.lines.append(f"const real {name} = a{number}[0];")
            return name
        self.lines.append(f"real {name}[OWN];")
        self.rows.append(f"{name}[n] = a{number}[{at}];")
        return f"{name}[n]"


def launch_of(
    cluster: Cluster,
    region: Region,
    shape: tuple[int, ...],
    count: int,
    first_norm: int,
    counted: Region,
) -> Launch:
    """The launch of `count` sweeps; sweeps from number `first_norm` on have norms."""
    pairs = (*in_space(region, (0, 1)), *in_space(counted, (0, 1)))
    bounds = [bound for pair in pairs for bound in pair]
    numbers = (count, first_norm, *bounds, *in_space(shape, 1), shape[-1])
    return Launch((cluster.blocks, 1, 1), (cluster.threads, 1, 1), tuple(numbers))
