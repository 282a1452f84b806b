"""The processes of a run: their number, and the values that they send each other.

A process that no launcher of MPI has started does not import MPI.
"""

import ctypes
import hashlib
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from heatsolve.backends import cores, exact_sum, from_message, to_message
from heatsolve.errors import HeatsolveError, InputError, Interrupted, sentence
from heatsolve.report import complain, shown

LAUNCHERS = ("PMI_SIZE", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS")
"""Variables by which the launchers of MPI tell a process that it is one of several."""

SECONDS_TO_FAIL_TOGETHER = 5.0
"""Seconds that a failing process waits for the others to fail, too, before it ends them."""

SECONDS_TO_BE_HEARD = 0.25
"""Seconds that a failing process leaves its launcher to read its message: MPICH's launcher drops
unread messages when a process aborts (2 of 160 were lost without a wait, none after 0.2 s).
"""

SECONDS_OF_YIELDING = 1e-4
"""Seconds that a process of a crowd polls for a message before it sleeps: processes that are awake
exchange faster than a process wakes up."""
SECONDS_OF_SLEEP = 2e-5
"""Seconds of sleep between two polls of a process in a crowd; the system makes it some 8e-5."""
ABSENT = "absent"
"""The text for a key that a process does not have."""


class Ranks:
    """The interface of the processes of a run, here for a single process."""

    size = 1
    rank = 0
    local_rank = 0
    """The number of this process among the processes of its node."""
    crowd = ""
    """The warning where there are more processes than cores."""
    summing = 0.0
    """Seconds that sums and largest values of all processes have taken."""

    def combine(self, registers: np.ndarray) -> np.ndarray:
        """The registers (one, or rows of them) of the terms of all processes together."""
        return registers

    def exact_sum(self, terms: Sequence[np.ndarray]) -> float:
        """The sum of arrays (float64) of all processes, to the same bits for any distribution."""
        return exact_sum(terms, self.combine)

    def smallest(self, values: np.ndarray) -> np.ndarray:
        """The smallest of all processes' values, element by element."""
        return values

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in the order of ranks, on every process."""
        return [value]

    def collect(self, value: Any) -> list[Any] | None:
        """The values of all processes on rank 0, None on all other ranks."""
        return [value]

    def trade(self, value: Any, to: int | None, source: int | None) -> Any:
        """Send a value to one process, and return the value of another; None: no process."""
        return value if source is not None else None

    def claims_device_memory(self) -> bool:
        """Whether MPI says that it reads the memory of CUDA devices."""
        return False

    def fail(self, message: str, code: int) -> None:
        """Say why this process cannot go on, and end all processes; do nothing for a single one."""

    def leave(self, code: int) -> None:
        """End this process and all other processes at once."""
        os._exit(code)


class World(Ranks):
    """The processes of a communicator of MPI, by default of all that were launched."""

    def __init__(self, comm: Any = None) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self.comm = comm or MPI.COMM_WORLD
        self.size, self.rank = self.comm.size, self.comm.rank
        self._failing = self.comm.Dup()
        node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank = node.rank
        usable = len(set().union(*node.allgather(cores())))
        if node.size > usable:
            self.crowd = f"{node.size} processes on {usable} core{'s' if usable > 1 else ''}"
        node.Free()
        # Known to all processes: they must make the same calls of MPI.
        self.crowd = max(self.comm.allgather(self.crowd))

    def combine(self, registers: np.ndarray) -> np.ndarray:
        message = to_message(registers, self.rank, self.size)
        began = time.perf_counter()
        self.collective("Allreduce", self._mpi.IN_PLACE, message)
        self.summing += time.perf_counter() - began
        return from_message(message)

    def smallest(self, values: np.ndarray) -> np.ndarray:
        result = np.array(values, float)
        self.collective("Allreduce", self._mpi.IN_PLACE, result, self._mpi.MIN)
        return result

    def gather(self, value: Any) -> list[Any]:
        if self.crowd:
            self.collective("Barrier")
        return self.comm.allgather(value)

    def collect(self, value: Any) -> list[Any] | None:
        if self.crowd:
            self.collective("Barrier")
        return self.comm.gather(value)

    def trade(self, value: Any, to: int | None, source: int | None) -> Any:
        sent = self.comm.isend(value, self._mpi.PROC_NULL if to is None else to)
        received = None
        if source is not None:
            if self.crowd:
                idle_until(partial(self.comm.iprobe, source))
            received = self.comm.recv(source=source)
        self.wait(sent)
        return received

    def wait(self, request: Any) -> None:
        """Wait until a request is complete.

        MPI spins: in a crowd this takes cores from processes that still work, and each exchange
        then lasts several time slices of the system.
        """
        if self.crowd:
            idle_until(request.Test)
        else:
            request.Wait()

    def collective(self, name: str, *args: Any) -> None:
        """Make a collective call of MPI, such as Allreduce; a crowd makes the non-blocking call."""
        if self.crowd:
            idle_until(getattr(self.comm, f"I{name.lower()}")(*args).Test)
        else:
            getattr(self.comm, name)(*args)

    def claims_device_memory(self) -> bool:
        library, answer = ctypes.CDLL(self._mpi.__file__), ctypes.c_int(0)
        if hasattr(library, "MPIX_GPU_query_support"):  # MPICH and its kin
            cuda = 0
            failed = library.MPIX_GPU_query_support(cuda, ctypes.byref(answer)) != 0
            return not failed and bool(answer.value)
        if hasattr(library, "MPIX_Query_cuda_support"):  # Open MPI
            return bool(library.MPIX_Query_cuda_support())
        return False

    def fail(self, message: str, code: int) -> None:
        # A failure of all processes is reported once, by rank 0, a failure of some by each of them:
        # a barrier tells the two apart, because only failing processes come to it.
        everywhere, waited = self._failing.Ibarrier(), 0.0
        while not everywhere.Test() and waited < SECONDS_TO_FAIL_TOGETHER:
            time.sleep(0.01)
            waited += 0.01
        if waited < SECONDS_TO_FAIL_TOGETHER and self.rank > 0:
            time.sleep(SECONDS_TO_FAIL_TOGETHER)  # rank 0 ends this process meanwhile
        complain(f"{message} (rank {self.rank} of {self.size})")
        time.sleep(SECONDS_TO_BE_HEARD)
        self.leave(code)

    def leave(self, code: int) -> None:
        self.comm.Abort(code)
        os._exit(code)  # some MPI return from Abort while the launcher is still at work


@contextmanager
def agreed(ranks: Ranks) -> Iterator[None]:
    """Raise on all processes the error that one raised in the context; all must leave the context.

    Of several errors each process raises its own, and a process without one raises the first.
    """
    mine = None
    try:
        yield
    except Exception as error:
        mine = error
    errors = [error for error in ranks.gather(mine) if error is not None]
    if errors:
        raise mine or errors[0]


def python(*words: str) -> list[str]:
    """The command words that start a Python which imports nothing from the current folder."""
    return [sys.executable, "-P", *words]


def idle_until(done: Callable[[], bool]) -> None:
    """Poll `done` until it is true, and leave the core to other processes in between."""
    give_way = getattr(os, "sched_yield", partial(time.sleep, SECONDS_OF_SLEEP))
    soon = time.perf_counter() + SECONDS_OF_YIELDING
    while not done():
        if time.perf_counter() < soon:
            give_way()
        else:
            time.sleep(SECONDS_OF_SLEEP)


def mpi_library() -> str:
    """The name and version that the MPI library gives; "" if there is no library.

    A separate process asks, because a library may end a process that no launcher has started.
    """
    code = (
        "import mpi4py; mpi4py.rc.initialize = False; "
        "from mpi4py import MPI; print(MPI.Get_library_version())"
    )
    asked = subprocess.run(python("-c", code), capture_output=True, text=True)
    return asked.stdout.replace("\0", "").strip()


@contextmanager
def failing_together(ranks: Ranks) -> Iterator[None]:
    """Let an error of this process end all other processes, too: they would wait for this one."""
    try:
        yield
    except Interrupted:  # raised by all processes together
        raise
    except HeatsolveError as error:
        ranks.fail(sentence(error), error.exit_code)
        raise
    except KeyboardInterrupt:
        ranks.fail("heatsolve: interrupted", 130)
        raise
    except Exception:
        ranks.fail(traceback.format_exc(), 1)
        raise


def demand_same(ranks: Ranks, options: Mapping[str, Any]) -> None:
    """Raise InputError on all processes if their options of the run differ.

    The error names the first key that differs, and the ranks whose value differs from the value of
    rank 0. `options` is a table of tables of plain values, as in a case file.
    """
    digest = hashlib.sha256(repr(options).encode()).hexdigest()
    if len(set(ranks.gather(digest))) == 1:
        return
    tables = ranks.gather(dict(_leaves(options)))
    for key in dict.fromkeys(key for table in tables for key in table):
        first, *others = [table.get(key, ABSENT) for table in tables]
        different = [rank for rank, value in enumerate(others, 1) if value != first]
        if different:
            which = f"rank{'s' if len(different) > 1 else ''} {', '.join(map(str, different))}"
            raise InputError(
                f"{key} is {shown(others[different[0] - 1], 60)} on {which} of {ranks.size}, but "
                f"{shown(first, 60)} on rank 0: give all of them the same case and options"
            )


def _leaves(table: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """The values in a table of tables by their dotted keys, as texts."""
    if isinstance(table, Mapping):
        for name, value in table.items():
            yield from _leaves(value, f"{key}.{name}" if key else name)
    elif isinstance(table, list) and any(isinstance(item, Mapping) for item in table):
        for number, value in enumerate(table):
            yield from _leaves(value, f"{key}.{number}")
    else:
        yield key, repr(table)


def find_ranks() -> Ranks:
    """The processes that were launched together with this one; imports MPI only if there are any.

    Raises InputError where MPI cannot be loaded, or where Slurm started several processes that do
    not know of each other.
    """
    said = os.environ.get("SLURM_NTASKS", "").strip() or "1"
    if not re.fullmatch(r"\d{1,9}", said, re.ASCII):
        raise InputError(
            f"the environment says SLURM_NTASKS={shown(said)}: it must be a number; unset it"
        )
    tasks = int(said)
    in_step = "SLURM_STEP_ID" in os.environ and os.environ.get("SLURM_STEP_ID") != "4294967291"
    if not any(name in os.environ for name in LAUNCHERS) and not (tasks > 1 and in_step):
        return Ranks()
    try:
        world = World()
    except (ImportError, RuntimeError) as error:  # mpi4py found no library
        reason = str(error).strip().split("\n")[0]
        raise InputError(
            f"a launcher started this process, but MPI cannot be loaded ({reason}): install "
            "heatsolve[mpich], or load the cluster's MPI"
        ) from None
    if in_step and tasks > 1 and world.size == 1:
        raise InputError(
            f"Slurm started {tasks} tasks, but MPI sees one process: launch with "
            "srun --mpi=pmi2 (MPICH) or srun --mpi=pmix (Open MPI)"
        )
    return world if world.size > 1 else Ranks()
