"""Run alone or under mpiexec: save checkpoints without end, and tell of each that is complete.

It goes on where an earlier run was killed. The first line names the processes.
"""

import os
import sys
from pathlib import Path

import numpy as np

from heatsolve.control.controller import State
from heatsolve.io.checkpoints import CheckpointStore
from heatsolve.parallel.ranks import find_ranks


def state(number: int, window: tuple, width: int) -> State:
    """A state that the number gives away: all values of all its parts are known."""
    (low, high), _ = window
    rows = np.arange(low, high, dtype=float)[:, np.newaxis]
    field = np.repeat(rows + 1000.0 * number, width, axis=1)
    return State(number, {"number": number}, {"iteration": np.arange(number)}, {"t": field})


def is_whole(snapshot: State, window: tuple, width: int) -> bool:
    wanted = state(snapshot.number, window, width)
    return (
        snapshot.record == wanted.record
        and np.array_equal(snapshot.history["iteration"], wanted.history["iteration"])
        and np.array_equal(snapshot.fields["t"], wanted.fields["t"])
    )


def main(folder: str, rows: int, width: int) -> None:
    ranks = find_ranks()
    window = ((ranks.rank * rows, (ranks.rank + 1) * rows), (0, width))
    store = CheckpointStore(Path(folder), (ranks.size * rows, width), window, ranks)
    found = store.newest()
    assert found is None or is_whole(found, window, width), found.number
    assert not store.damaged, store.damaged
    processes = ranks.gather(os.getpid())
    if ranks.rank == 0:
        print(*processes, flush=True)
    number = found.number if found is not None else 0
    while True:
        # Every second time at the number of the one before, which is replaced.
        for _ in range(2):
            store.save(state(number, window, width))
            if ranks.rank == 0:
                print(number, flush=True)
        number += 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
