"""Backends on the processor's cores, whose arrays are NumPy's."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from heatsolve.backends import Backend, Region
from heatsolve.stencil.grid import slices

Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments: a ufunc or a compiled loop, and its operands."""


class HostBackend(Backend):
    """Holds its arrays in the memory of the host, and calls functions on them."""

    def zeros(self, shape: Sequence[int]) -> np.ndarray:
        return np.zeros(shape, self.dtype)

    def to_device(self, host: np.ndarray) -> np.ndarray:
        return np.array(host, self.dtype, order="C")

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def take(self, array: np.ndarray, region: Region) -> np.ndarray:
        return array[slices(region)].copy()

    def put(self, array: np.ndarray, region: Region, values: np.ndarray) -> None:
        array[slices(region)] = values

    def sync(self) -> None:
        pass

    def clear_register(self, register: np.ndarray) -> None:
        if self._progress.recorded is None:  # nearly always: saves a call
            register[:] = 0
        else:
            self._progress.recorded.append((register.fill, (0,)))

    def _make(self, calls: Iterable[Call]) -> None:
        """Make calls now, or record them."""
        if self._progress.recorded is not None:
            self._progress.recorded += calls
            return
        launches = 0
        for function, operands in calls:
            function(*operands)
            launches += 1
        self._progress.launches += launches

    def enqueue(self, work: Callable[[], None]) -> None:
        self._make([(work, ())])

    def replayed(
        self, work: Callable[[], None], gated: bool = True, continues: bool = False
    ) -> Callable[[], None]:
        """A call that makes the recorded calls of `work`, prepared once, one after the other."""
        calls, points, moved = self.record(work)

        def play() -> None:
            self._make(calls)
            self.count(points, moved)

        return play
