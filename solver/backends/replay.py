"""Work that a device notes down once, and plays back without the host."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heatsolve.backends.device import DeviceBackend


class Replay:
    """Work that a device plays back from a graph: about a microsecond for each kernel.

    It is rehearsed first, so that all kernels are there when it is noted down; the host does both
    once, ahead of the first call. Without the gate there are other kernels, which it notes down
    where they are first called for.
    """

    def __init__(self, backend: "DeviceBackend", work: Callable[[], None]):
        self._backend, self._work = backend, work
        self._graphs: dict[bool, tuple[Callable[[], None], int, int]] = {}
        self._prepare(backend.lookahead > 1)

    def _prepare(self, gated: bool) -> None:
        backend, before = self._backend, self._backend.gated
        points, moved = backend.points_updated, backend.bytes_moved
        backend.gated = gated
        try:
            backend.rehearses = True
            self._work()
            backend.rehearses = False
            points_twice, moved_twice = backend.points_updated, backend.bytes_moved
            graph = backend.captured(self._work)
            counts = backend.points_updated - points_twice, backend.bytes_moved - moved_twice
        finally:
            backend.rehearses, backend.gated = False, before
            backend.points_updated, backend.bytes_moved = points, moved
        self._graphs[gated] = (graph, *counts)

    def __call__(self) -> None:
        backend = self._backend
        if backend.gated not in self._graphs:
            self._prepare(backend.gated)
        play, points, moved = self._graphs[backend.gated]
        play()
        backend.points_updated += points
        backend.bytes_moved += moved
