"""Bodies given by a surface of triangles, as fields with one value inside and one outside.

A point is inside where its winding number is not 0. A ray from the point along x crosses triangles;
the winding number is the sum of their orientations as the ray sees them (D. Sunday, "Inclusion of a
point in a polygon", 2001, in the plane across the ray). An edge that two triangles share is judged
by one formula from the same two points, so a ray through an edge or a corner counts rightly. The
sum has integer terms, so its order does not matter.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heatsolve.errors import InputError
from heatsolve.stencil.data import Data, Samples
from heatsolve.stencil.grid import Grid

MOST_PAIRS = 1 << 20
"""The most pairs of a ray and a triangle that are tested at once."""
MOST_BINS = 512
"""The most bins along y, and along z."""
SLACK = 1e-6
"""The share of a bin by which rounding may place a triangle beyond the edge of the bin."""


class Solid(Data):
    """The field of a body; its samples are the corners of its triangles, 9 numbers each."""

    def connect(self, key: str, samples: Samples, grid: Grid, end: float | None = None) -> None:
        """Set the triangles of the body. Raises InputError for a case without three axes."""
        if grid.dimension != 3:
            raise InputError(f"{key}: {self.text} is a solid, for cases with three axes")
        corners = np.asarray(samples.load((slice(None), slice(None))), float).reshape(-1, 3, 3)
        shift = np.array(self.given.get("shift", (0.0, 0.0, 0.0)))
        corners = corners * self.given.get("scale", 1.0) + shift
        self._set(key=key, samples=samples, names=frozenset("xyz"), _kept=None, _sums={})
        self._set(_surface=Surface(corners))

    _surface: "Surface"

    @property
    def extent(self) -> str:
        """The extent of the body along each axis, in words."""
        corners = self._surface.corners.reshape(-1, 3)
        ends = zip("xyz", corners.min(axis=0), corners.max(axis=0), strict=True)
        return ", ".join(f"{axis} = {low:g} to {high:g}" for axis, low, high in ends)

    def __call__(self, **variables: ArrayLike) -> float | NDArray[np.float64]:
        """The values at positions x, y, z, which are broadcast."""
        if self.samples is None:
            raise InputError(f"{self.text} has not been read")
        x, y, z = (np.asarray(variables[name], float) for name in "xyz")
        shape = np.broadcast_shapes(x.shape, y.shape, z.shape)
        rays = np.broadcast_shapes(y.shape, z.shape)
        if x.ndim == len(shape) == len(rays) and x.size == x.shape[-1] and rays[-1] == 1:
            numbers = self._surface.along(x.ravel(), *np.broadcast_arrays(y, z)).reshape(shape)
        else:
            points = (each.ravel() for each in np.broadcast_arrays(x, y, z))
            numbers = self._surface.at(*points).reshape(shape)
        inside, outside = self.given.get("inside", 1.0), self.given.get("outside", 0.0)
        values = np.where(numbers != 0, inside, outside)
        return values if shape else float(values)


class Surface:
    """A closed surface of triangles, `corners[triangle, corner, axis]`, axes x, y, z."""

    def __init__(self, corners: np.ndarray):
        self.corners = corners

    @cached_property
    def _bins(self) -> tuple[np.ndarray, np.ndarray, int, np.ndarray, np.ndarray]:
        """The plane across x in bins: its low corner, the widths of bins, their number along each
        axis; the first entry of each bin in a list of triangles, and this list."""
        flat = self.corners[:, :, 1:]
        low, high = flat.min(axis=(0, 1)), flat.max(axis=(0, 1))
        count = int(np.clip(np.sqrt(len(flat)), 1, MOST_BINS))
        width = np.maximum(high - low, np.finfo(float).tiny) / count
        first, last = (
            np.clip(np.floor((edge - low) / width + slack).astype(int), 0, count - 1)
            for edge, slack in ((flat.min(axis=1), -SLACK), (flat.max(axis=1), SLACK))
        )
        extents = last - first + 1
        triangle, place = _expanded(extents.prod(axis=1))
        row, column = np.divmod(place, extents[triangle, 1])
        bin_of = (first[triangle, 0] + row) * count + first[triangle, 1] + column
        order = np.argsort(bin_of, kind="stable")
        starts = np.searchsorted(bin_of[order], np.arange(count * count + 1))
        return low, width, count, starts, triangle[order]

    def _crossings(
        self, y: np.ndarray, z: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield the rays along x that cross triangles, the x of crossings, and orientations."""
        low, width, count, starts, triangles = self._bins
        bins = np.stack([(y - low[0]) / width[0], (z - low[1]) / width[1]])
        meets = np.flatnonzero(((bins >= -1.0) & (bins <= count + 1.0)).all(axis=0))
        rows, columns = np.clip(bins[:, meets].astype(int), 0, count - 1)
        first = starts[rows * count + columns]
        tries = starts[rows * count + columns + 1] - first
        part_of = np.cumsum(tries) // MOST_PAIRS
        for part in range(int(part_of.max(initial=-1)) + 1):
            here = part_of == part
            ray, place = _expanded(tries[here])
            triangle = triangles[first[here][ray] + place]
            ray = meets[here][ray]
            sign, x = _crossed(self.corners[triangle], y[ray], z[ray])
            yield ray[sign != 0], x[sign != 0], sign[sign != 0]

    def at(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """The winding numbers of points."""
        result = np.zeros(x.size, int)
        for ray, crossed, sign in self._crossings(y, z):
            np.add.at(result, ray, np.where(crossed > x[ray], sign, 0))
        return result

    def along(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """The winding numbers of the points at each x, on rays through y, z."""
        order = np.argsort(x, kind="stable")
        changes = np.zeros((y.size, x.size + 1), int)
        for ray, crossed, sign in self._crossings(y.ravel(), z.ravel()):
            np.add.at(changes, (ray, np.searchsorted(x[order], crossed, side="left")), sign)
        behind = np.cumsum(changes[:, ::-1], axis=1)[:, ::-1][:, 1:]
        result = np.empty_like(behind)
        result[:, order] = behind
        return result


def _expanded(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For owners of `counts` entries: the owner of each entry, and its number in the owner."""
    owner = np.repeat(np.arange(counts.size), counts)
    return owner, np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)


def _crossed(corners: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The orientation with which a ray along x crosses each triangle (0: none), and the x."""
    sign = np.zeros(y.size, int)
    for n in range(3):
        a, b = corners[:, n], corners[:, (n + 1) % 3]
        up = a[:, 2] < b[:, 2]
        low, high = np.where(up[:, None], a, b), np.where(up[:, None], b, a)
        level = (low[:, 2] <= z) & (z < high[:, 2])
        # One formula for an edge, whichever triangle it belongs to.
        (_, y_0, z_0), (_, y_1, z_1) = low.T, high.T
        side = (y_1 - y_0) * (z - z_0) - (y - y_0) * (z_1 - z_0)
        sign += np.where(level & (side > 0.0), np.where(up, 1, -1), 0)
    a = corners[:, 0]
    normal = np.cross(corners[:, 1] - a, corners[:, 2] - a)
    across = normal[:, 0]
    sign = np.where(across == 0.0, 0, sign)
    off = normal[:, 1] * (y - a[:, 1]) + normal[:, 2] * (z - a[:, 2])
    return sign, a[:, 0] - off / np.where(across == 0.0, 1.0, across)
