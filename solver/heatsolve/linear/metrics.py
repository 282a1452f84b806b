"""One axis of a multigrid level: its points, by their numbers along the whole axis.

Made on the host. Lines hold a value for each unknown 1 ... n and each ghost.
"""

from dataclasses import dataclass, replace

import numpy as np

from heatsolve.stencil.grid import Axis


@dataclass(frozen=True)
class AxisMetrics:
    """The points of one axis.

    `spacing`: the extent of a full cell. In units of it, so that multiples and halves are exact and
    points that are alike have the same coefficients: `sizes`, extents of the control volumes, 0 at
    ghosts that are nobody's; `distances`, lengths of the faces' intervals, 0 at number 0.
    """

    axis: Axis
    sizes: np.ndarray
    distances: np.ndarray
    spacing: float

    @property
    def ratio(self) -> np.ndarray:
        """The ratio of a full cell to each control volume; one number if all are full."""
        inside = self.sizes[1:-1]
        if np.all(inside == 1.0):
            return np.ones(1)
        ratio = np.ones(self.sizes.size)
        ratio[1:-1] = 1.0 / inside
        return ratio

    def ratio_of(self, block: Axis) -> np.ndarray:
        """The same for the points in the arrays of a block."""
        ratio = self.ratio
        return ratio if ratio.size == 1 else ratio[block.start :][: block.unknowns + 2]

    @property
    def can_coarsen(self) -> bool:
        return self.axis.unknowns > 1


def finest(block: Axis) -> AxisMetrics:
    """The metrics of a whole axis of a grid, of which this process may own a block."""
    axis = replace(block, block=None, margin=(0, 0))
    n = axis.unknowns
    sizes = np.ones(n + 2)
    for half, end in zip(axis.half_volumes, (1, -2), strict=True):
        sizes[end] *= 0.5 if half else 1.0
    sizes[[0, -1]] = 0.0
    close(sizes, axis)
    distances = np.ones(n + 2)
    distances[0] = 0.0
    if not (axis.on_nodes or axis.periodic):
        distances[[1, -1]] = 0.5
    return AxisMetrics(axis, sizes, distances, axis.spacing)


def close(values: np.ndarray, axis: Axis) -> None:
    """On a periodic axis a ghost is the image of an unknown."""
    if axis.periodic:
        values[0], values[-1] = values[-2], values[1]
