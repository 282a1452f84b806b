"""One axis of a multigrid level: its points, and how every second one makes the next level.

All of it is made on the host from the points' numbers along the whole axis. Lines hold a value for
each unknown 1 ... n and each ghost; a face has the number of the point above it, 1 ... n + 1.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from heatsolve.grid import Axis


@dataclass(frozen=True)
class Line:
    """The points of one axis.

    `sizes`: extents of the control volumes, 0 at ghosts that are nobody's; `distances`: lengths of
    the faces' intervals, number 0 unused; `spacing`: the extent of a full cell.
    """

    axis: Axis
    sizes: np.ndarray
    distances: np.ndarray
    spacing: float

    @property
    def ratio(self) -> np.ndarray:
        """The ratio of a full cell to each control volume; one number if all are full."""
        inside = self.sizes[1:-1]
        if np.all(inside == self.spacing):
            return np.ones(1)
        ratio = np.ones(self.sizes.size)
        ratio[1:-1] = self.spacing / inside
        return ratio

    @property
    def can_coarsen(self) -> bool:
        return self.axis.unknowns > 1


def finest(axis: Axis, ratio: np.ndarray) -> Line:
    """The line of a grid's axis; `ratio` is that of a full cell to each control volume."""
    h, n = axis.spacing, axis.unknowns
    sizes = np.zeros(n + 2)
    sizes[1:-1] = h / (ratio[1:-1] if ratio.size > 1 else ratio)
    _close(sizes, axis)
    distances = np.full(n + 2, h)
    if not (axis.on_nodes or axis.periodic):
        distances[[1, -1]] = 0.5 * h
    return Line(axis, sizes, distances, h)


def _close(line: np.ndarray, axis: Axis) -> None:
    """On a periodic axis a ghost is the image of an unknown."""
    if axis.periodic:
        line[0], line[-1] = line[-2], line[1]


@dataclass(frozen=True)
class Halving:
    """The step from a line to that of every second point.

    On nodes interpolation is linear, on cells piecewise constant. Of an odd number of intervals or
    cells the last one stays as it is. `left` and `right`, [pair, parity], are what the points
    2q and 2q + 1 take from the coarse points q and q + 1; restriction is the transpose, weighted
    with the volumes.
    """

    fine: Line

    @cached_property
    def count(self) -> int:
        """Coarse unknowns."""
        axis, n = self.fine.axis, self.fine.axis.unknowns
        if not axis.on_nodes or axis.periodic:
            return (n + 1) // 2
        low, high = axis.fixed
        if low:
            return n // 2 if high else (n + 1) // 2
        return (n + 1) // 2 if high else max(1, n // 2 + 1 if n > 2 else 1)

    @cached_property
    def places(self) -> np.ndarray:
        """The fine numbers of the coarse nodes, ghosts included."""
        axis, n = self.fine.axis, self.fine.axis.unknowns
        low = axis.fixed[0]
        places = 2 * np.arange(self.count + 2) - (0 if low else 1)
        # The last unknown of a free end, and every wall, stay where they are.
        if axis.periodic:
            places[0] = places[-2] - n
        else:
            places[0] = 0
            if not axis.fixed[1] and self.count > 1:
                places[-2] = n
        places[-1] = n + 1
        return places

    @cached_property
    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """`left` and `right`, each of shape (coarse unknowns + 2, 2)."""
        axis, n = self.fine.axis, self.fine.axis.unknowns
        left, right = np.zeros((self.count + 2, 2)), np.zeros((self.count + 2, 2))
        if not axis.on_nodes:
            left[:, 0], right[:, 1] = 1.0, 1.0
        else:
            position = np.cumsum(self.fine.distances)
            position -= position[0]
            # Ghosts that carry no value give none.
            free = [not (fixed or axis.periodic) for fixed in axis.fixed]
            for q in range(self.count + 1):
                low, high = self.places[q : q + 2]
                start = position[low] if low >= 0 else position[0] - self.fine.distances[n]
                for parity in range(2):
                    f = 2 * q + parity
                    if not low <= f <= high:
                        continue
                    share = (position[f] - start) / (position[high] - start)
                    if q == 0 and free[0]:
                        share = 1.0
                    elif q == self.count and free[1]:
                        share = 0.0
                    left[q, parity], right[q, parity] = 1.0 - share, share
        # Only unknowns, and on periodic axes their images, take part.
        numbers = np.arange(2 * (self.count + 2)).reshape(-1, 2)
        last = n + 1 if axis.periodic else n
        outside = (numbers > last) | ((numbers == 0) & (not axis.periodic))
        left[outside], right[outside] = 0.0, 0.0
        return left, right

    @cached_property
    def shares(self) -> tuple[np.ndarray, ...]:
        """What a coarse point q takes, in a mean, from the points 2q - 2 ... 2q + 1."""
        taken = self._taken
        sizes = self.coarse.sizes
        shares = []
        for line in taken:
            share = np.zeros(self.count + 2)
            share[1:-1] = line[1:-1] / sizes[1:-1]
            shares.append(share)
        return tuple(shares)

    @cached_property
    def _taken(self) -> tuple[np.ndarray, ...]:
        """The volumes that a coarse point takes of the points 2q - 2 ... 2q + 1."""
        left, right = self.weights
        sizes = np.zeros(2 * (self.count + 2))
        known = self.fine.sizes[: sizes.size]
        sizes[: known.size] = known
        volumes = sizes.reshape(-1, 2)
        below, here = np.zeros_like(left), left * volumes
        below[1:] = (right * volumes)[:-1]
        return below[:, 0], below[:, 1], here[:, 0], here[:, 1]

    @cached_property
    def coarse(self) -> Line:
        """The line of every second point."""
        fine, m = self.fine, self.count
        axis = fine.axis
        fixed = axis.fixed
        points = m + sum(fixed)
        twin = Axis(axis.name, points, axis.lower, axis.upper, axis.on_nodes, axis.periodic, fixed)
        sizes = np.zeros(m + 2)
        a, b, c, d = self._taken
        sizes[1:-1] = (a + b + c + d)[1:-1]
        _close(sizes, axis)
        distances = np.zeros(m + 2)
        if axis.on_nodes:
            for face in range(1, m + 2):
                distances[face] = sum(fine.distances[f] for f in self._faces(face))
        else:
            distances[1:] = 0.5 * (sizes[:-1] + sizes[1:])
        return Line(twin, sizes, distances, 2.0 * fine.spacing)

    def _faces(self, face: int) -> list[int]:
        """The fine faces between two coarse nodes."""
        n = self.fine.axis.unknowns
        low, high = self.places[face - 1], self.places[face]
        return [f if f > 0 else f + n for f in range(low + 1, high + 1)]

    def conductances(self, fine: np.ndarray) -> np.ndarray:
        """Conductances of the coarse faces along this axis, which is the last one of the array.

        Between nodes the fine faces lie in series. Between cells the distance grows, and with it
        the resistance; a wall's own does not, so there only half a cell comes on top, if that is
        less.
        """
        m, line, coarse = self.count, self.fine, self.coarse
        result = np.zeros((*fine.shape[:-1], m + 2))
        if m == 1 and line.axis.periodic:  # its own neighbour
            return result
        g = fine * line.spacing
        if line.axis.on_nodes:
            for face in range(1, m + 2):
                first, *others = self._faces(face)
                total = g[..., first]
                for other in others:
                    total = in_series(total, g[..., other])
                result[..., face] = total
        else:
            n = line.axis.unknowns
            chosen = np.minimum(2 * np.arange(1, m + 2) - 1, n + 1)
            farther = line.distances[chosen] / coarse.distances[1:]
            result[..., 1:] = g[..., chosen] * farther
            if not line.axis.periodic:
                for wall, fine_wall, inside in ((1, 1, 2), (m + 1, n + 1, n)):
                    more = coarse.distances[wall] - line.distances[fine_wall]
                    if more > 0.0:
                        half = g[..., inside] * line.distances[inside] / more
                        near = in_series(g[..., fine_wall], half)
                        result[..., wall] = np.maximum(result[..., wall], near)
        return result / coarse.spacing

    def mean(self, fine: np.ndarray) -> np.ndarray:
        """Means over the coarse volumes along this axis, the last one of the array."""
        result = np.zeros((*fine.shape[:-1], self.count + 2))
        numbers = np.minimum(np.arange(2 * (self.count + 2)), fine.shape[-1] - 1)
        padded = fine[..., numbers]
        a, b, c, d = self.shares
        inside = slice(1, -1)
        result[..., inside] = (
            a[inside] * padded[..., 0:-4:2]
            + b[inside] * padded[..., 1:-4:2]
            + c[inside] * padded[..., 2:-2:2]
            + d[inside] * padded[..., 3:-2:2]
        )
        if self.fine.axis.periodic:
            result[..., 0], result[..., -1] = result[..., -2], result[..., 1]
        return result


def in_series(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The conductance of two in series, 0 if one of them is."""
    with np.errstate(all="ignore"):
        return np.where((a == 0.0) | (b == 0.0), 0.0, a / (1.0 + a / b))
