"""Launches that a device records once, and plays back without the host."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from heatsolve.backends.gpu.small_sweeps import SmallSweep, together

if TYPE_CHECKING:
    from heatsolve.backends.gpu.backend import DeviceBackend

RecordedLaunch: TypeAlias = Callable[[], None] | SmallSweep
"""What queues a kernel, or a sweep that may share one with others."""


class Replay:
    """Work that a device plays back from a graph: about a microsecond for each kernel.

    Its kernels are recorded, small sweeps joined, and all of them compiled before they are
    captured; the host does so once, ahead of the first call. Without the gate there are other
    kernels, which it records where they are first called for.
    """

    def __init__(self, backend: "DeviceBackend", work: Callable[[], None]):
        self._backend, self._work = backend, work
        self._graphs: dict[bool, tuple[Callable[[], None], int, int]] = {}
        self._kept: list[Callable[[], None]] = []  # with the tables that the graphs' kernels read
        self._prepare(backend.lookahead > 1)

    def _prepare(self, gated: bool) -> None:
        backend, before = self._backend, self._backend.gated
        backend.gated = gated
        try:
            launches, points, moved = backend.record(self._work)
        finally:
            backend.gated = before
        queued = list(joined(backend, launches))
        self._kept += queued

        def queue_all() -> None:
            for queue in queued:
                queue()

        self._graphs[gated] = backend.captured(queue_all), points, moved

    def __call__(self) -> None:
        backend = self._backend
        if backend.gated not in self._graphs:
            self._prepare(backend.gated)
        play, points, moved = self._graphs[backend.gated]
        play()
        backend.points_updated += points
        backend.bytes_moved += moved


def joined(
    backend: "DeviceBackend", launches: Iterable[RecordedLaunch]
) -> Iterator[Callable[[], None]]:
    """What queues the kernels of these launches; small sweeps that follow each other share one."""
    waiting: list[SmallSweep] = []

    def waited_for() -> Iterator[Callable[[], None]]:
        yield from together(backend, waiting)
        waiting.clear()

    for launch in launches:
        if isinstance(launch, SmallSweep):
            waiting.append(launch)
        else:
            yield from waited_for()
            yield launch
    yield from waited_for()
