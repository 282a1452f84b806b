"""The processes of a run: their grid, their blocks, and the exchange of ghosts between them.

A ghost that is somebody's unknown is brought up to date before an array is read at a shift: from
another process, or, on a periodic axis that is not divided, from the other end of the same array.
One axis at a time, the fastest first, each over the ghosts of those before it: so corners come
right. Three verbs: `start`, `finish`, and `exchange` for both.

Under no MPI nothing of it is imported.
"""

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from heatsolve.backends import Backend, Region, sums
from heatsolve.errors import InputError
from heatsolve.grid import Grid
from heatsolve.points import shifted

LAUNCHERS = ("PMI_SIZE", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS")
"""Variables by which the launchers of MPI tell a process that it is one of several."""

SECONDS_TO_FAIL_TOGETHER = 5.0
"""So long a failing process waits for the others to fail with it, before it ends them."""


class Ranks:
    """The processes of a run, alone: what every sum and every exchange asks."""

    size = 1
    rank = 0

    def combine(self, register: np.ndarray) -> np.ndarray:
        """The register of all processes' terms."""
        return register

    def smallest(self, values: np.ndarray) -> np.ndarray:
        """The smallest of all processes' values, element by element."""
        return values

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in the order of ranks, on every process."""
        return [value]

    def collect(self, value: Any) -> list[Any] | None:
        """The values of all processes on rank 0, None on the others."""
        return [value]

    def fail(self, message: str, code: int) -> None:
        """Say why this process cannot go on, and end all others; alone, do nothing."""


class World(Ranks):
    """The processes of MPI_COMM_WORLD."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self.comm = MPI.COMM_WORLD
        self.size, self.rank = self.comm.size, self.comm.rank
        self._failing = self.comm.Dup()

    def combine(self, register: np.ndarray) -> np.ndarray:
        # One message: bins add up; the top slices and largest values of all are looked through.
        tops = np.zeros((self.size, 2), np.int64)
        tops[self.rank] = register[[sums.TOP, sums.LARGEST]]
        message = np.concatenate([register, tops.ravel()])
        self.comm.Allreduce(self._mpi.IN_PLACE, message)
        total = message[: sums.WIDTH]
        total[[sums.TOP, sums.LARGEST]] = message[sums.WIDTH :].reshape(-1, 2).max(axis=0)
        return total

    def smallest(self, values: np.ndarray) -> np.ndarray:
        result = np.array(values, float)
        self.comm.Allreduce(self._mpi.IN_PLACE, result, self._mpi.MIN)
        return result

    def gather(self, value: Any) -> list[Any]:
        return self.comm.allgather(value)

    def collect(self, value: Any) -> list[Any] | None:
        return self.comm.gather(value)

    def fail(self, message: str, code: int) -> None:
        # What fails everywhere is said once, by rank 0, and a failure of few by those few: a
        # barrier of its own shows which it is, because only a failing process comes to it.
        everywhere, waited = self._failing.Ibarrier(), 0.0
        while not everywhere.Test() and waited < SECONDS_TO_FAIL_TOGETHER:
            time.sleep(0.01)
            waited += 0.01
        if waited < SECONDS_TO_FAIL_TOGETHER and self.rank > 0:
            time.sleep(SECONDS_TO_FAIL_TOGETHER)  # rank 0 ends this process meanwhile
        print(f"{message} (rank {self.rank} of {self.size})", file=sys.stderr, flush=True)
        self.comm.Abort(code)
        os._exit(code)  # some MPI return from Abort while the launcher is still at work


def find_ranks() -> Ranks:
    """The processes that were launched together with this one; imports MPI only if there are any.

    Raises InputError where Slurm started several processes that do not know of each other.
    """
    tasks = int(os.environ.get("SLURM_NTASKS", "1") or "1")
    in_step = "SLURM_STEP_ID" in os.environ and os.environ.get("SLURM_STEP_ID") != "4294967291"
    if not any(name in os.environ for name in LAUNCHERS) and not (tasks > 1 and in_step):
        return Ranks()
    world = World()
    if in_step and tasks > 1 and world.size == 1:
        raise InputError(
            f"Slurm started {tasks} tasks, but MPI sees one process: launch with "
            "srun --mpi=pmi2 (MPICH) or srun --mpi=pmix (Open MPI)"
        )
    return world if world.size > 1 else Ranks()


def process_grid(grid: Grid, size: int, wanted: Sequence[int] | None = None) -> tuple[int, ...]:
    """Processes along each axis of the grid (slowest first): as wanted, or with least surface.

    `wanted` is in the order of the case, x first. Raises InputError where that cannot be.
    """
    counts = [axis.all_unknowns for axis in grid.axes]
    if wanted is not None:
        dims = tuple(reversed(wanted))
        if len(dims) != grid.dimension or int(np.prod(dims)) != size:
            raise InputError(
                f"parallel.ranks: {list(wanted)} does not give {size} processes in {len(counts)}D"
            )
        if any(p > n for p, n in zip(dims, counts, strict=True)):
            raise InputError(f"parallel.ranks: {list(wanted)} leaves processes without unknowns")
        return dims
    fitting = [
        dims
        for dims in factorisations(size, grid.dimension)
        if all(p <= n for p, n in zip(dims, counts, strict=True))
    ]
    if not fitting:
        unknowns = " x ".join(map(str, reversed(counts)))
        raise InputError(f"{size} processes are too many for {unknowns} unknowns")
    periodic = [axis.periodic for axis in grid.axes]
    return min(fitting, key=lambda dims: (surface(counts, dims, periodic), [-p for p in dims]))


def factorisations(number: int, factors: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as an ordered product of so many factors."""
    if factors == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            for rest in factorisations(number // first, factors - 1):
                yield (first, *rest)


def surface(counts: Sequence[int], dims: Sequence[int], periodic: Sequence[bool]) -> float:
    """Faces that the busiest block shares with others."""
    sides = [-(-n // p) for n, p in zip(counts, dims, strict=True)]
    total = 0.0
    for side, parts, around in zip(sides, dims, periodic, strict=True):
        ends = 0 if parts == 1 else 2 if parts > 2 or around else 1
        total += ends * math.prod(sides) / side
    return total


def block_of(count: int, parts: int, number: int) -> tuple[int, int]:
    """Part `number` of so many unknowns: the first ones are one longer where it does not divide."""
    length, longer = divmod(count, parts)
    start = number * length + min(number, longer)
    return start, start + length + (number < longer)


class Halo:
    """The exchange of the ghosts of a block with those who own them.

    `dims` are the processes along each axis; without them, this one is alone.
    """

    def __init__(
        self,
        grid: Grid,
        backend: Backend,
        ranks: Ranks | None = None,
        dims: Sequence[int] | None = None,
    ):
        self.grid, self.ranks, self._backend = grid, ranks or Ranks(), backend
        ranks, dims = self.ranks, dims or (1,) * grid.dimension
        self._axes: list[Itself | Neighbours] = []
        place = np.unravel_index(ranks.rank, tuple(dims))
        for number, axis in reversed(list(enumerate(grid.axes))):
            if dims[number] > 1:
                self._axes.append(Neighbours(grid, backend, ranks, dims, place, number))
            elif axis.periodic:
                self._axes.append(Itself(grid, backend, number))
        # Up to the first divided axis all is copied at once, and from there on it takes time.
        divided = [isinstance(axis, Neighbours) for axis in self._axes]
        self._first = divided.index(True) if any(divided) else len(divided)
        touched = {axis.number: axis.present for axis in self._axes} if any(divided) else {}
        self.inner, self.rim = inner_and_rim(grid, touched)

    def start(self, array: Any) -> None:
        """Begin the exchange: the ghosts of the fastest divided axis are on their way."""
        for axis in self._axes[: self._first + 1]:
            axis.start(array)

    def finish(self, array: Any) -> None:
        """Complete the exchange begun by `start`."""
        for number, axis in enumerate(self._axes[self._first :]):
            if number > 0:
                axis.start(array)
            axis.finish(array)

    def exchange(self, array: Any) -> None:
        """Fill the ghosts of an array."""
        self.start(array)
        self.finish(array)


def edge(grid: Grid, number: int, side: int) -> Region:
    """The unknowns that are the neighbour's ghosts, over the same part of the other axes."""
    region = list(grid.ghost(number, side))
    last = grid.shape[number] - 2
    region[number] = ((1, 2), (last, last + 1))[side]
    return tuple(region)


def inner_and_rim(
    grid: Grid, touched: dict[int, tuple[bool, bool]]
) -> tuple[Region, tuple[Region, ...]]:
    """The unknowns that read no ghost of a touched end, and the others, in slabs."""
    inner, rim = list(grid.interior), []
    for number, sides in touched.items():
        low, high = inner[number]
        cut = (min(low + sides[0], high), max(high - sides[1], min(low + sides[0], high)))
        for slab in ((low, cut[0]), (cut[1], high)):
            if slab[0] < slab[1]:
                rim.append((*inner[:number], slab, *inner[number + 1 :]))
        inner[number] = cut
    return tuple(inner), tuple(rim)


class Itself:
    """A periodic axis that is not divided: the other end of the same array."""

    present = (True, True)

    def __init__(self, grid: Grid, backend: Backend, number: int):
        self.number, self._backend = number, backend
        distances = [0] * grid.dimension
        distances[number] = grid.axes[number].unknowns
        self._copies = (
            (grid.ghost(number, 0), tuple(distances)),
            (grid.ghost(number, 1), tuple(-d for d in distances)),
        )

    def start(self, array: Any) -> None:
        for region, distances in self._copies:
            self._backend.sweep(shifted, array, region, array, *distances)

    def finish(self, array: Any) -> None:
        pass


class Neighbours:
    """A divided axis: the processes below and above, by messages of packed layers."""

    def __init__(
        self, grid: Grid, backend: Backend, ranks: Any, dims: Any, place: Any, number: int
    ):
        self.number, self._backend, self._ranks = number, backend, ranks
        self._sides = []
        self.present = (False, False)
        for side, step in enumerate((-1, 1)):
            other = list(place)
            other[number] += step
            if grid.axes[number].periodic:
                other[number] %= dims[number]
            if not 0 <= other[number] < dims[number]:
                continue
            self.present = (side == 0 or self.present[0], side == 1 or self.present[1])
            peer = int(np.ravel_multi_index(other, tuple(dims)))
            self._sides.append(Side(grid, backend, number, side, peer))
        self._requests: list[Any] = []

    def start(self, array: Any) -> None:
        comm = self._ranks.comm
        # A layer sent down arrives at an upper end: the tag is the side at which it arrives.
        self._requests = [
            comm.Irecv(side.arriving, side.peer, 2 * self.number + side.side)
            for side in self._sides
        ]
        for side in self._sides:
            self._backend.sweep(shifted, side.leaving, side.packed, array, *side.to_edge)
        self._backend.sync()
        self._requests += [
            comm.Isend(side.leaving, side.peer, 2 * self.number + 1 - side.side)
            for side in self._sides
        ]

    def finish(self, array: Any) -> None:
        self._ranks._mpi.Request.Waitall(self._requests)
        for side in self._sides:
            self._backend.sweep(shifted, array, side.ghost, side.arriving, *side.from_ghost)


class Side:
    """One end of a divided axis: whom it faces, and the layers that leave and arrive, packed."""

    def __init__(self, grid: Grid, backend: Backend, number: int, side: int, peer: int):
        self.side, self.peer = side, peer
        self.ghost = grid.ghost(number, side)
        shape = tuple(high - low for low, high in self.ghost)
        self.leaving, self.arriving = backend.zeros(shape), backend.zeros(shape)
        self.packed = tuple((0, extent) for extent in shape)
        self.to_edge = tuple(low for low, _ in edge(grid, number, side))
        self.from_ghost = tuple(-low for low, _ in self.ghost)
