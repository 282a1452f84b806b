"""What goes from one process to another."""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from heatsolve.backends.gpu.backend import DeviceBackend


class Message:
    """An array on its way between processes: packed by a sweep, moved by MPI, unpacked by a sweep.

    `array` is what sweeps write and read, `buffer` is what MPI sends or receives. On a host they
    are the same, and nothing is to be done between packing and sending.
    """

    def __init__(self, array: Any, buffer: Any):
        self.array, self.buffer = array, buffer

    def to_buffer(self) -> None:
        """Bring the packed array into the buffer; once this returns, MPI may send it."""

    def from_buffer(self) -> None:
        """Bring what MPI has received into the array, for the sweeps that follow.

        A device does so in its own time: MPI may receive into the buffer again only after a later
        `to_buffer`, of any message of the backend, has returned.
        """


class StagedMessage(Message):
    """A message through pinned memory of the host, for any MPI."""

    def __init__(self, array: Any, buffer: np.ndarray, backend: "DeviceBackend"):
        super().__init__(array, buffer)
        self._backend = backend

    def to_buffer(self) -> None:
        self._backend.queue_to_host(self.buffer, self.array)
        self._backend.sync()

    def from_buffer(self) -> None:
        self._backend.queue_to_device(self.array, self.buffer)


class DirectMessage(Message):
    """A message that MPI reads from, and writes to, the memory of the device."""

    def __init__(self, array: Any, buffer: Any, backend: "DeviceBackend"):
        super().__init__(array, buffer)
        self._backend = backend

    def to_buffer(self) -> None:
        self._backend.sync()
