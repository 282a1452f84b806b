"""The whole of an array whose blocks are spread over the processes, on each of them."""

from collections.abc import Sequence
from typing import Any

from heatsolve.backends import Backend, Region
from heatsolve.parallel.transport import Transport
from heatsolve.stencil.language import shifted


class Assembly:
    """Brings the block of every process into the whole array of every process, by one message.

    `own` is the region of this process's block in its own array, `regions` tells for each process
    where its block lies in the whole. Blocks travel in boxes as large as the largest of them.
    """

    def __init__(
        self,
        backend: Backend,
        transport: Transport,
        own: Region,
        regions: Sequence[Region],
    ):
        self._backend, self._transport = backend, transport
        sizes = [[high - low for low, high in region] for region in regions]
        box = [max(extents) for extents in zip(*sizes, strict=True)]
        self._leaving = transport.message(backend, box)
        self._arriving = transport.message(backend, (len(regions) * box[0], *box[1:]))
        self._packed = tuple((0, high - low) for low, high in own)
        self._from_own = tuple(low for low, _ in own)
        # The boxes lie one behind the other along the slowest axis.
        self._places = [
            (region, (rank * box[0] - region[0][0], *(-low for low, _ in region[1:])))
            for rank, region in enumerate(regions)
        ]

    def bring(self, whole: Any, array: Any) -> None:
        """Fill `whole` from the blocks in the `array` of each process."""
        sweep = self._backend.sweep
        sweep(shifted, self._leaving.array, self._packed, array, *self._from_own)
        self._transport.gather(self._leaving, self._arriving)
        for region, distances in self._places:
            sweep(shifted, whole, region, self._arriving.array, *distances)
