"""The array library whose arrays lie in a backend's memory: for what no sweep can say, FFTs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class ArrayLibrary:
    """NumPy, which shares the memory of a host backend; `threads` are those that it may use.

    `namespace` has NumPy's functions. `fft` has the real FFTs of `scipy.fft`, or is None on a
    host, where whoever wants them may take SciPy itself. `transforms` are ready ones, if any.
    """

    namespace: Any = np
    fft: Any = None
    transforms: Any = None

    def __init__(self, threads: int = 1):
        self.threads = threads

    @contextmanager
    def queue(self) -> Iterator[None]:
        """Inside, what the library does comes in turn with the sweeps of the backend."""
        yield

    def view(self, array: Any) -> Any:
        """An array of the backend as one of the library, in the same memory."""
        return array

    def lend(self, array: Any) -> Any:
        """A contiguous array of the library as one of the backend, in the same memory."""
        return array


class CupyLibrary(ArrayLibrary):
    """CuPy on arrays of its own, in its current stream; it keeps the plans of its FFTs."""

    def __init__(self, cupy: Any, fft: Any):
        super().__init__()
        self.namespace, self.fft = cupy, fft
