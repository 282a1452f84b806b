"""Statistics of fields in time, at each point of a file: means, variances, covariances, extremes.

A sample of weight w updates, with W the sum of all weights so far,

    d_i = u_i - m_i,   m_i += (w / W) d_i,   s_ij += w d_i (u_j - m_j),

where the last factor has the new mean (B. P. Welford, Technometrics 4 (1962), 419; weighted by
D. H. D. West, Comm. ACM 22 (1979), 532). The mean is m_i, the covariance s_ij / W. Little accuracy
is lost where deviations are small against the mean. The sums of a point depend on the order of
times, not on the number of processes. They are in double precision, also for single-precision
fields.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from heatsolve.stencil.language import Point, copy, fill, maximum, minimum, scaled

if TYPE_CHECKING:
    from heatsolve.models.base import Model


@cache
def welford_update(
    fields: int,
    means: int,
    products: Sequence[tuple[int, int]],
    lowest: Sequence[int],
    highest: Sequence[int],
) -> Point:
    """The point function that adds a sample: Welford's update of means and products, and extremes.

    fields: the number of fields; the first `means` of them have means. products: pairs of fields
    whose deviations are multiplied. lowest, highest: fields whose extremes are kept.

    The point function takes w / W, w, and arrays: the fields, their means, the products s_ij, the
    lowest values, the highest values; it returns new values of all but the fields.
    """

    def statistics(at, share, weight, *arrays):
        u = [array[at] for array in arrays[:fields]]
        kept = arrays[fields:]
        deviations = [u[n] - kept[n][at] for n in range(means)]
        result = [kept[n][at] + share * deviations[n] for n in range(means)]
        for n, (i, j) in enumerate(products):
            product = deviations[i] * (u[j] - result[j])
            result.append(kept[means + n][at] + weight * product)
        first = means + len(products)
        for n, i in enumerate(lowest):
            result.append(minimum(u[i], kept[first + n][at]))
        first = first + len(lowest)
        for n, i in enumerate(highest):
            result.append(maximum(u[i], kept[first + n][at]))
        return tuple(result) if len(result) > 1 else result[0]

    return statistics


class Statistics:
    """The statistics that the case of a model asks for, from samples of its fields.

    `weight` is the sum of the weights of all samples (s), `arrays` hold the sums, as a checkpoint
    has them, by names.
    """

    def __init__(self, problem: "Model"):
        self._problem, self.weight = problem, 0.0
        self._asked = asked = problem.case.statistics.fields
        kinds = {kind: list(dict.fromkeys(source for each in asked.values() if each.kind == kind
                                          for source in each.sources))
                 for kind in ("mean", "product", "minimum", "maximum")}  # fmt: skip
        means = list(dict.fromkeys([*kinds["mean"], *kinds["product"]]))
        lowest, highest = kinds["minimum"], kinds["maximum"]
        self._names = list(dict.fromkeys([*means, *lowest, *highest]))
        pairs = [each.sources for each in asked.values() if each.kind == "product"]
        products = list(dict.fromkeys(pairs))
        place = self._names.index
        self._point = welford_update(
            len(self._names),
            len(means),
            tuple((place(i), place(j)) for i, j in products),
            tuple(map(place, lowest)),
            tuple(map(place, highest)),
        )
        keys = [
            *(("mean", name) for name in means),
            *(("product", *pair) for pair in products),
            *(("minimum", name) for name in lowest),
            *(("maximum", name) for name in highest),
        ]
        self._machine = problem.backend.double()
        self.arrays = {" ".join(key): self._machine.zeros(problem.grid.shape) for key in keys}

    def __bool__(self) -> bool:
        return bool(self._asked)

    def take(self, fields: Mapping[str, Any], weight: float) -> None:
        """Take a sample of this weight (s; asks all processes); `fields`: see `Model.at_points`."""
        problem, region = self._problem, self._problem.grid.stored
        values = [problem.written(name, fields) for name in self._names]
        if not self.weight:  # a first value is the lowest and the highest so far
            for key, array in self.arrays.items():
                kind, name, *_ = key.split()
                if kind in ("minimum", "maximum"):
                    self._machine.sweep(copy, array, region, values[self._names.index(name)])
        self.weight += weight
        arrays = tuple(self.arrays.values())
        out: Any = arrays if len(arrays) > 1 else arrays[0]
        args = (weight / self.weight, weight, *values, *arrays)
        self._machine.sweep(self._point, out, region, *args)

    def field(self, name: str) -> Any:
        """A statistic of all samples so far, at the points of a file; NaN before the first one."""
        asked, backend, region = self._asked[name], self._problem.backend, self._problem.grid.stored
        array = self.arrays[" ".join((asked.kind, *asked.sources))]
        if self.weight and asked.kind != "product" and self._machine is backend:
            return array
        result = backend.zeros(self._problem.grid.shape)
        if self.weight:
            factor = 1.0 / self.weight if asked.kind == "product" else 1.0
            self._machine.sweep(scaled, result, region, array, factor)
        else:
            backend.sweep(fill, result, region, math.nan)
        return result

    def recall(self, weight: float, points: Mapping[str, Any]) -> None:
        """Go on from the sums of a checkpoint."""
        self.weight = weight
        for name, array in self.arrays.items():
            self._machine.put(array, self._problem.grid.stored, points[name])
