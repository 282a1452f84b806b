"""The axes of multigrid levels, and the coarsening of an axis to every second point.

Everything is computed on the host, from the numbers of the points along the whole axis. A line, an
array along an axis, holds a value for each unknown 1 ... n and each ghost; a face has the number of
the point above it, 1 ... n + 1.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from heatsolve.stencil.grid import Axis

Conductances = Callable[[np.ndarray], np.ndarray]
"""A call for the conductances of the fine faces with these numbers."""


@dataclass(frozen=True)
class AxisMetrics:
    """The points of one axis.

    `spacing`: the extent of a full cell. It is the unit of all other lengths, so that multiples and
    halves are exact and equal points have equal coefficients. `sizes`: extents of the control
    volumes, 0 at ghosts that are no image of an unknown. `distances`: lengths of the intervals
    across the faces, 0 for face 0.
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
        """The ratio for the points in the arrays of a block."""
        ratio = self.ratio
        return ratio if ratio.size == 1 else ratio[block.start :][: block.unknowns + 2]

    @property
    def can_coarsen(self) -> bool:
        return self.axis.unknowns > 1


def finest_metrics(block: Axis) -> AxisMetrics:
    """The metrics of a whole axis of a grid, of which this process may own a block."""
    axis = replace(block, block=None, margin=(0, 0))
    n = axis.unknowns
    sizes = np.ones(n + 2)
    for half, end in zip(axis.half_volumes, (1, -2), strict=True):
        sizes[end] *= 0.5 if half else 1.0
    sizes[[0, -1]] = 0.0
    set_images(sizes, axis)
    distances = np.ones(n + 2)
    distances[0] = 0.0
    if not (axis.on_nodes or axis.periodic):
        distances[[1, -1]] = 0.5
    return AxisMetrics(axis, sizes, distances, axis.spacing)


def set_images(values: np.ndarray, axis: Axis) -> None:
    """Set the ghosts of a periodic axis to the values of the unknowns whose images they are."""
    if axis.periodic:
        values[0], values[-1] = values[-2], values[1]


@dataclass(frozen=True)
class AxisCoarsening:
    """The coarsening of an axis to every second point.

    With an odd number of intervals or cells the last one stays as it is, or joins those before it
    if it is short: two points much closer than all other points would need a special smoother.

    Interpolation is `linear` or constant. Constant interpolation merges nodes in pairs like cells,
    by their volumes: across a jump of the conductivity no profile is linear. `ends`: the distances
    beyond the first and the last unknown at which a linear profile vanishes, infinite at an
    insulated wall. Restriction is the transpose of interpolation, weighted with the volumes.
    """

    fine: AxisMetrics
    linear: bool
    ends: tuple[float, float]

    @property
    def _on_nodes(self) -> bool:
        """Whether every second node becomes a coarse node; if not, two cells form a coarse cell."""
        return self.fine.axis.on_nodes and self.linear

    @cached_property
    def _joins(self) -> bool:
        """Whether the last point joins those before it, though by its number it would be coarse."""
        fine, axis, n = self.fine, self.fine.axis, self.fine.axis.unknowns
        if not self._on_nodes:
            return n % 2 == 1 and bool(fine.sizes[n] <= 0.5)
        if axis.periodic:
            return n % 2 == 1 and bool(fine.distances[1] <= 0.5)
        odd = (n + axis.fixed[0]) % 2 == 0 and not axis.fixed[1]
        return odd and (n == 2 or bool(fine.distances[n] <= 0.5))

    @cached_property
    def count(self) -> int:
        """Coarse unknowns."""
        axis, n = self.fine.axis, self.fine.axis.unknowns
        if not self._on_nodes or axis.periodic:
            return (n + 1) // 2 - self._joins
        low, high = axis.fixed
        if high:
            return (n + 1 - low) // 2
        return ((n + 1) // 2 if low else n // 2 + 1) - self._joins

    @cached_property
    def places(self) -> np.ndarray:
        """The fine numbers of the coarse nodes, ghosts included."""
        axis, n = self.fine.axis, self.fine.axis.unknowns
        places = 2 * np.arange(self.count + 2) - (0 if axis.fixed[0] else 1)
        if axis.periodic:
            places[0] = places[-2] - n
        else:
            places[0] = 0
            if not (axis.fixed[1] or self._joins):
                places[-2] = n
        places[-1] = n + 1
        return places

    @cached_property
    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """The weights of coarse points q and q + 1 in the points 2q and 2q + 1: [q, parity]."""
        axis, n, m = self.fine.axis, self.fine.axis.unknowns, self.count
        numbers = np.arange(2 * (m + 2)).reshape(-1, 2)
        if self.linear:
            right = self._linear_shares(numbers)
            images = axis.periodic
        else:
            right = np.where(numbers % 2 == 1, 1.0, 0.0)
            right[m] = 0.0  # a last point that joins
            images = False
        # Only unknowns take part, and on a periodic axis the images of the ends.
        outside = (numbers > n + images) | ((numbers == 0) & (not images))
        return np.where(outside, 0.0, 1.0 - right), np.where(outside, 0.0, right)

    def _linear_shares(self, numbers: np.ndarray) -> np.ndarray:
        """The position of each point between the coarse points q and q + 1, from 0 to 1."""
        fine, m = self.fine, self.count
        position, others = self._positions
        known = position[np.minimum(numbers[: m + 1], position.size - 1)]
        low, high = others[: m + 1, None], others[1:, None]
        shares = np.ones(numbers.shape)
        with np.errstate(invalid="ignore"):
            shares[: m + 1] = np.where(low == -np.inf, 1.0, (known - low) / (high - low))
        if fine.axis.periodic and self._joins:
            # The restriction does not reach an image further away than the next pair.
            shares[m, 0] = 0.0
            shares[0, 1] = 1.0
        return np.clip(shares, 0.0, 1.0)

    @cached_property
    def _positions(self) -> tuple[np.ndarray, np.ndarray]:
        """The positions of the fine and the coarse points, in units of the fine spacing, as `ends`.

        A coarse ghost has the position at which its value holds.
        """
        fine = self.fine
        position = np.cumsum(fine.distances)
        if self._on_nodes:
            others = position[self.places]
            if fine.axis.periodic:
                others[0] = others[-2] - position[-2]
        else:
            coarse = self.coarse
            others = 2.0 * np.cumsum(coarse.distances)
            others += position[1] - 0.5 * fine.sizes[1] - others[1] + coarse.sizes[1]
        others[0] = others[0] if fine.axis.periodic else position[1] - self.ends[0]
        others[-1] = others[-1] if fine.axis.periodic else position[-2] + self.ends[1]
        return position, others

    @cached_property
    def solution_weights(self) -> tuple[np.ndarray, ...]:
        """The weights of q - 1 ... q + 2 in the points 2q and 2q + 1 of a solution: [q, parity].

        Lagrange's cubic through the four points, w_a = prod_b (x - x_b) / (x_a - x_b); beside a
        wall the polynomial through fewer points. The ghost of a wall with a given value is one of
        these points, the ghost of an insulated wall is not. Where the conductivity jumps, only the
        two nearest points count.
        """
        n, m = self.fine.axis.unknowns, self.count
        position, others = self._positions
        numbers = np.arange(2 * (m + 2)).reshape(-1, 2)
        here = position[np.minimum(numbers, n + 1)]
        taken = np.arange(m + 2)[:, None] + np.arange(-1, 3)  # [q, place]
        there = others[np.clip(taken, 0, m + 1)]
        known = (taken >= 0) & (taken <= m + 1) & np.isfinite(there)
        if not self.linear:
            known[:, [0, 3]] = False
        weights = []
        for a in range(4):
            weight = known[:, a, None] & (numbers >= 1) & (numbers <= n)
            weight = weight.astype(float)
            for b in set(range(4)) - {a}:
                both = known[:, a] & known[:, b]
                with np.errstate(invalid="ignore"):
                    apart = np.where(both, there[:, a] - there[:, b], 1.0)[:, None]
                    way = np.where(both[:, None], here - there[:, b, None], apart)
                weight *= way / apart
            weights.append(weight)
        return tuple(weights)

    @property
    def end_shares(self) -> tuple[float | None, float | None]:
        """For both ends, the distance of the wall beyond the last point, over the last interval.

        None where the wall has no value, or where the last point is a node on the wall.
        """
        if self.fine.axis.on_nodes or self.fine.axis.periodic:
            return None, None
        apart = np.diff(self._positions[1])

        def share(beyond: float, last: float) -> float | None:
            if not np.isfinite(beyond):
                return None
            return float(beyond / last) if self.count > 1 else 0.0

        return share(apart[0], apart[1]), share(apart[-1], apart[-2])

    @property
    def off_centre(self) -> list[tuple[int, int]]:
        """Coarse nodes that are not in the middle of their volumes, and their fine numbers.

        They lie at a wall, or beside a short last interval, so their volumes are not full cells.
        """
        if not self._on_nodes:
            return []
        others = ~np.isclose(self.coarse.sizes[1:-1], 1.0, rtol=1e-6)
        return [(int(q), int(self.places[q])) for q in np.flatnonzero(others) + 1]

    @cached_property
    def restriction_weights(self) -> tuple[np.ndarray, ...]:
        """The weights of the points 2q - 2 ... 2q + 1 in the coarse point q, in restriction."""
        sizes = 2.0 * self.coarse.sizes
        sizes[[0, -1]] = 1.0
        return tuple(volume / sizes for volume in self._taken(*self.weights))

    @cached_property
    def mean_weights(self) -> tuple[np.ndarray, ...]:
        """The weights for means of given quantities: a coarse cell consists of fine cells."""
        by_volumes = self if self._on_nodes else replace(self, linear=False)
        return by_volumes.restriction_weights

    def _taken(self, left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, ...]:
        """The volumes of the points 2q - 2 ... 2q + 1 in the coarse point q; 0 for ghosts."""
        sizes = np.zeros(left.size)
        known = self.fine.sizes[: sizes.size]
        sizes[: known.size] = known
        volumes = sizes.reshape(-1, 2)
        below, here = np.zeros_like(left), left * volumes
        below[1:] = (right * volumes)[:-1]
        below[[0, -1]], here[[0, -1]] = 0.0, 0.0
        return below[:, 0], below[:, 1], here[:, 0], here[:, 1]

    @cached_property
    def coarse(self) -> AxisMetrics:
        """The axis of every second point."""
        fine, m = self.fine, self.count
        axis = fine.axis
        twin = replace(axis, points=m + sum(axis.fixed), block=None)
        distances = np.zeros(m + 2)
        if self._on_nodes:
            low, lengths = self.places[:-1], np.diff(self.places)
            for length in range(int(lengths.max())):
                faces = np.minimum(low + 1 + length, axis.unknowns + 1)
                faces = np.where(faces > 0, faces, faces + axis.unknowns)
                distances[1:] += np.where(lengths > length, fine.distances[faces], 0.0)
            sizes = sum(self._taken(*self.weights), np.zeros(m + 2))
            set_images(sizes, axis)
        else:
            sizes = np.zeros(m + 2)
            numbers = np.minimum((np.arange(axis.unknowns) + 2) // 2, m)
            np.add.at(sizes, numbers, fine.sizes[1:-1])
            set_images(sizes, axis)
            distances[1:] = 0.5 * (sizes[:-1] + sizes[1:])
        return AxisMetrics(twin, 0.5 * sizes, 0.5 * distances, 2.0 * fine.spacing)

    def conductances(self, fine: np.ndarray, first: int, block: tuple[int, int]) -> np.ndarray:
        """Conductances of the faces below each point of a coarse block, and of the face above it.

        `fine` holds the conductances of the fine faces along its last axis, from number `first` on.
        Between nodes the fine faces lie in series. Between cells the resistance grows with the
        distance. At a wall it does not: there the resistance of half a cell is added to the wall's,
        if that gives a smaller resistance.
        """
        faces = np.arange(block[0] + 1, block[1] + 2)
        if self.count == 1 and self.fine.axis.periodic:  # its own neighbour
            return np.zeros((*fine.shape[:-1], faces.size))

        def known(numbers: np.ndarray) -> np.ndarray:
            return _taken_at(fine, numbers - first)

        rule = self._between_nodes if self._on_nodes else self._between_cells
        return 0.5 * rule(known, faces)

    def _between_nodes(self, known: Conductances, faces: np.ndarray) -> np.ndarray:
        low = self.places[faces - 1]
        lengths = self.places[faces] - low
        total = known(low + 1)
        for length in range(1, int(lengths.max())):
            longer = in_series(total, known(low + 1 + length))
            total = np.where(lengths > length, longer, total)
        return total

    def _between_cells(self, known: Conductances, faces: np.ndarray) -> np.ndarray:
        metrics, m = self.fine, self.count
        distances, n = 2.0 * self.coarse.distances, metrics.axis.unknowns
        chosen = np.where(faces == m + 1, n + 1, 2 * faces - 1)
        result = known(chosen)
        result = result * np.minimum(1.0, metrics.distances[chosen] / distances[faces])
        if metrics.axis.periodic:
            return result
        for wall, fine_wall, inside in ((1, 1, 2), (m + 1, n + 1, n)):
            more = distances[wall] - metrics.distances[fine_wall]
            if more > 0.0 and wall in faces:
                pair = known(np.array([fine_wall, inside]))
                near = in_series(pair[..., 0], pair[..., 1] * metrics.distances[inside] / more)
                here = result[..., wall - faces[0]]
                result[..., wall - faces[0]] = np.maximum(here, near)
        return result

    def mean(self, fine: np.ndarray, first: int, block: tuple[int, int]) -> np.ndarray:
        """Means over the volumes of a coarse block along the last axis of an array.

        `fine` holds the values of the fine points from number `first` on.
        """
        points = np.arange(block[0] + 1, block[1] + 1)
        a, b, c, d = (
            weight[points] * _taken_at(fine, 2 * points - 2 + place - first)
            for place, weight in enumerate(self.mean_weights)
        )
        return a + b + c + d


def _taken_at(array: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Elements along the last axis; indices beyond it are clipped, their weights are 0."""
    return array[..., np.clip(places, 0, array.shape[-1] - 1)]


def in_series(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The conductance of two conductances in series; 0 if one of them is 0."""
    with np.errstate(all="ignore"):
        return np.where((a == 0.0) | (b == 0.0), 0.0, a / (1.0 + a / b))
