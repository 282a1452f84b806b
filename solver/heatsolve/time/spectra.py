"""Spectra of fields along a periodic axis, averaged over the lines along it.

NumPy's FFT makes them on the host, in double precision. FFT libraries and numbers of processes
differ in rounding, so spectra are the only statistic without a promise of equal bits.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from heatsolve.models.base import Model
from heatsolve.time.integrals import asked, weights_along


class Spectra:
    """Makes the spectra that the case of a model asks for (`statistics.spectrum`).

    With m waves along the axis, E_m is the mean over all lines of 2 |c_m|^2, where the c_m are the
    coefficients of the Fourier series; for m = 0, and for m = n/2 of n points, it is the mean of
    |c_m|^2. So the sum of all E_m is the mean of the square of the field (Parseval).
    """

    def __init__(self, problem: Model):
        self._problem, self._asked = problem, asked(problem, "spectrum")
        self._shares = [
            weights_along(axis, axis.lower, axis.upper)[slice(*axis.stored)]
            / (axis.upper - axis.lower)
            for axis in problem.grid.axes
        ]
        """Shares of the points of this process in means along each axis."""

    def __bool__(self) -> bool:
        return bool(self._asked)

    def read(self, fields: Mapping[str, Any]) -> dict[str, list[float]]:
        """E_0 ... E_(n/2) for each spectrum by columns, as `spectrum_x_velocity_x`; `fields`: see
        `Model.at_points` (asks all processes)."""
        problem, result = self._problem, {}
        names = dict.fromkeys(name for _, name in self._asked)
        blocks = {name: problem.own_points(problem.written(name, fields)) for name in names}
        for number, name in self._asked:
            mine = self._of_lines(number, blocks[name])
            parts = [part for part in problem.ranks.gather(mine) if part is not None]
            axis = problem.whole.axes[number].name
            result[f"spectrum_{axis}_{name}"] = np.sum(parts, axis=0).tolist()
        return result

    def _of_lines(self, number: int, block: np.ndarray) -> np.ndarray | None:
        """The part of E_m from lines that end in this block, None if they go on in another."""
        grid, axis = self._problem.grid, self._problem.grid.axes[number]
        padded = np.zeros([axis.points if n == number else m for n, m in enumerate(block.shape)])
        place: list[Any] = [slice(None)] * block.ndim
        place[number] = slice(*axis.stored_at)
        padded[tuple(place)] = block
        coefficients = self._summed(number, np.fft.rfft(padded, axis=number) / axis.points)
        if coefficients is None:
            return None
        power = coefficients.real**2 + coefficients.imag**2
        factors = np.full(power.shape[number], 2.0)
        factors[0] = 1.0
        if axis.points % 2 == 0:
            factors[-1] = 1.0
        power *= grid.along(number, factors)
        for n, shares in enumerate(self._shares):
            if n != number:
                power = power * grid.along(n, shares)
        return power.sum(axis=tuple(n for n in range(grid.dimension) if n != number))

    def _summed(self, number: int, coefficients: np.ndarray) -> np.ndarray | None:
        """The coefficients of whole lines, summed from block to block along the axis; None before
        the last block."""
        ranks, dims = self._problem.ranks, self._problem.dims
        if dims[number] == 1:
            return coefficients
        place = [int(n) for n in np.unravel_index(ranks.rank, dims)]

        def beside(distance: int) -> int | None:
            at = [n + distance if axis == number else n for axis, n in enumerate(place)]
            return int(np.ravel_multi_index(at, dims)) if 0 <= at[number] < dims[number] else None

        lower, upper = beside(-1), beside(1)
        if lower is not None:
            coefficients = ranks.trade(None, None, lower) + coefficients
        if upper is not None:
            ranks.trade(coefficients, upper, None)
            return None
        return coefficients
