"""One field file, written by several processes together: where h5py was built with MPI.

Only blocks of values are written in parallel. All else, from the axes to the final name, is the
work of rank 0, which makes room for a frame and closes the file before all open and fill it. So
no process has to follow the others through the making of a file, and between two frames nothing
is open that could only be closed together.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeGuard

import h5py
import numpy as np

from heatsolve.errors import FileFailure
from heatsolve.io import fieldfile
from heatsolve.io.disk import failing, sync
from heatsolve.io.fieldfile import Arrays, FieldFile
from heatsolve.parallel.ranks import Ranks, World


def can_share(ranks: Ranks) -> TypeGuard[World]:
    """Whether these are several processes, which HDF5 lets write one file."""
    return isinstance(ranks, World) and ranks.size > 1 and h5py.get_config().mpi


def library() -> tuple[str, bool]:
    """The versions of h5py and HDF5, and whether several processes could write one file."""
    versions = f"h5py {h5py.version.version}, HDF5 {h5py.version.hdf5_version}"
    return versions, h5py.get_config().mpi


@contextmanager
def agreed(ranks: Ranks) -> Iterator[None]:
    """Raise on all processes what one of them has raised in the context, which all of them leave.

    Of several errors each process raises its own, and those without any the first.
    """
    mine = None
    try:
        yield
    except Exception as error:
        mine = error
    found = [error for error in ranks.gather(mine) if error is not None]
    if found:
        raise mine or found[0]


class SharedFile:
    """A field file in the making, as `FieldFile`; every method is called by all processes together.

    window: this process's points of the whole grid, `(low, high)` of each axis, slowest first.
    The other arguments are those of `FieldFile`, and so are the errors, but on all processes.
    """

    def __init__(
        self,
        path: Path,
        coordinates: Arrays,
        units: Mapping[str, str],
        window: Sequence[Sequence[int]],
        ranks: World,
        *,
        transient: bool,
    ) -> None:
        self._path, self._window, self._ranks = Path(path), window, ranks
        self._file: FieldFile | None = None  # of rank 0
        part = None
        shapes = ranks.gather(tuple(high - low for low, high in window))
        self._shape, self._largest = shapes[ranks.rank], max(map(math.prod, shapes))
        self._fewest_rows = min(shape[0] for shape in shapes)
        with agreed(ranks), ExitStack() as stack:
            if ranks.rank == 0:
                self._file = FieldFile(path, coordinates, units, transient=transient, shared=True)
                stack.callback(self.discard)
                part = self._file.pause()
                stack.pop_all()
        self._part: Path = ranks.gather(part)[0]

    def append(self, fields: Arrays, time: float | None = None) -> None:
        """Write one frame: host arrays in the shape of this process's window, kept in their dtype.

        time: as of `FieldFile.append`, and so are the errors.
        """
        place = None
        with agreed(self._ranks):
            if any(values.shape != self._shape for values in fields.values()):
                raise ValueError(f"every frame has the same fields, in the shape {self._shape}")
            if self._file is not None:
                self._file.resume()
                dtypes = {name: values.dtype for name, values in fields.items()}
                place = self._file.make_room(dtypes, time)
                self._file.pause()
        self._fill(self._ranks.gather(place)[0], fields)

    def seal(self, path: Path) -> int:
        """As `FieldFile.seal`."""
        size = 0
        self._sync()
        with agreed(self._ranks):
            if self._file is not None:
                size = self._file.seal(path)
        return self._ranks.gather(size)[0]

    def finish(self, attributes: Mapping[str, object], history: Arrays) -> None:
        """As `FieldFile.finish`."""
        self._sync()
        with agreed(self._ranks):
            if self._file is not None:
                self._file.resume()
                self._file.finish(attributes, history)

    def discard(self) -> None:
        """Remove what has not been given a name; it waits for no other process."""
        if self._file is not None:
            self._file.discard()

    def _fill(self, place: tuple[int, ...], fields: Arrays) -> None:
        """Write the blocks of all processes into a place of every field."""
        with agreed(self._ranks), failing("write", self._path):
            file = h5py.File(
                self._part, "r+", driver="mpio", comm=self._ranks.comm, libver=fieldfile.FORMAT
            )
        try:
            for name in sorted(fields):  # the same order on all processes
                self._write(file[name], place, fields[name])
        except FileFailure:  # of all processes, so that they close it together
            with suppress(Exception):
                file.close()
            raise
        with agreed(self._ranks), failing("write", self._path):
            file.close()

    def _write(self, dataset: h5py.Dataset, place: tuple[int, ...], values: np.ndarray) -> None:
        """Write a block of each process, in so many pieces on all of them, each of some rows.

        Not collectively: where the disk is full, some MPI never return from that on all processes.
        """
        pieces = self._largest * values.itemsize // fieldfile.BLOCK_BYTES + 1
        start = self._window[0][0]
        rest = [slice(low, high) for low, high in self._window[1:]]
        for piece in np.array_split(values, min(pieces, self._fewest_rows)):
            rows = slice(start, start + len(piece))
            with agreed(self._ranks), failing("write", self._path):
                dataset[(*place, rows, *rest)] = piece
            start = rows.stop

    def _sync(self) -> None:
        """Force to the disk what each process has written, maybe on a machine of its own."""
        with agreed(self._ranks), failing("write", self._path):
            sync(self._part)
