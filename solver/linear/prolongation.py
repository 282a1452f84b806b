"""The solution of a coarse level on the next finer one, by cubics along one axis after the other.

A correction is interpolated linearly; a solution needs two orders more, or its interpolation adds
high frequencies as large as the error of the discretisation, and one cycle would not remove them
(U. Trottenberg, C. Oosterlee and A. Schueller, "Multigrid", 2001, section 2.6).

A cubic takes two coarse points on each side. A block has one layer of ghosts, so the solution is
copied to an array with one layer more around it. Beyond an end of an axis that layer takes no
part; the weights see to that by the points' numbers along the whole axis, so that the result does
not depend on the blocks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from heatsolve.backends import Backend, Region
from heatsolve.linear.interpolation import Interpolation, roomy
from heatsolve.linear.plane import NEAR, PlaneInterpolation
from heatsolve.linear.transfer import Cut, Exchange, at_once, takes_rows
from heatsolve.points import shifted

WIDE = 2000
"""Coarse points along both axes of a plane, from which on they are copied beside the walls only.

With fewer it takes no longer to copy all (H200).
"""


class Prolongation:
    """From a coarse level to the next finer one; `cuts` holds the axes that are halved.

    `coarse` is the array of the solution, `finer` that into which is interpolated. `across` makes
    for an axis and a shape the exchange of two layers with the neighbours there.
    """

    def __init__(
        self,
        backend: Backend,
        cuts: Mapping[int, Cut],
        finer: Any,
        coarse: Any,
        across: Callable[[int, Sequence[int]], Exchange],
    ):
        self._sweep, self._coarse = backend.sweep, coarse
        more = [int(number in cuts) for number in range(len(coarse.shape))]
        extents = [extent + 2 * m for extent, m in zip(coarse.shape, more, strict=True)]
        self._copied = tuple((m, extent - m) for extent, m in zip(extents, more, strict=True))
        self._wide = source = backend.zeros(extents)
        self._plane: PlaneInterpolation | None = None
        self._near = [self._copied]
        if at_once(backend, cuts, coarse.shape):
            weights = [cut.halving.solution_weights for cut in cuts.values()]
            inner = None
            if min(coarse.shape) >= WIDE:
                inner, self._near = coarse, list(_layers(self._copied, NEAR + 2))
            self._plane = PlaneInterpolation(backend, source, weights, inner)
            self._exchange_rows = across(0, source.shape)
        # Rows of a plane lie together, those of a block in space do not.
        self.can_leave_ghosts = takes_rows(cuts, extents)
        self._steps: list[Step] = []
        for number, cut in reversed(list(cuts.items())):
            extents[number] = finer.shape[number]
            last = len(self._steps) == len(cuts) - 1
            memory, result = (finer, finer) if last else roomy(backend, extents, number)
            exchange = across(number, source.shape)
            walls = [other for other in cuts if other < number]  # their turn is yet to come
            given = (source, memory, tuple(extents), exchange, walls)
            self._steps.append(Step(backend, cut, number, *given))
            source = result

    def interpolate(self, into: Any = None) -> None:
        """`finer` from the coarse solution, its ghosts up to date.

        Or the unknowns of the array `into`, if it `can_leave_ghosts`: those of `into` stay.
        """
        distances = [-low for low, _ in self._copied]
        plane = self._plane if into is not None else None
        for region in self._near if plane else [self._copied]:
            self._sweep(shifted, self._wide, region, self._coarse, *distances)
        *others, last = self._steps
        if plane is not None:
            others[0].complete()
            self._exchange_rows(self._wide)
            plane(into)
            return
        for step in others:
            step.interpolate()
        last.interpolate(into)


def _layers(region: Region, depth: int) -> Iterator[Region]:
    """The outermost layers of a plane: rows, and what columns have left."""
    (low, high), columns = region
    yield (low, low + depth), columns
    yield (high - depth, high), columns
    for pair in ((columns[0], columns[0] + depth), (columns[1] - depth, columns[1])):
        yield (low + depth, high - depth), pair


class Step:
    """The interpolation along one axis, also in the ghosts of the axes `walls`.

    The result is an array of a shape in `memory`; see `Interpolation`.
    """

    def __init__(
        self,
        backend: Backend,
        cut: Cut,
        number: int,
        source: Any,
        memory: Any,
        shape: tuple[int, ...],
        exchange: Exchange,
        walls: Sequence[int],
    ):
        self._sweep, self._source, self._exchange = backend.sweep, source, exchange
        given = (cut.halving.solution_weights, cut.fine[0], *cut.coarse)
        # One layer more stands before those of the coarse array.
        self._make = Interpolation(backend, number, source, memory, shape, *given)
        self._corners = list(_corners(cut, number, source.shape, walls))

    def interpolate(self, into: Any = None) -> None:
        """The result, or the unknowns of an array `into`, whose first axis is this one."""
        self.complete()
        self._make(into)

    def complete(self) -> None:
        """The ghosts of the source: from its neighbours, and at corners."""
        self._exchange(self._source)
        for region, share, steps in self._corners:
            self._sweep(extrapolated, self._source, region, self._source, share, *steps)


def _corners(
    cut: Cut, number: int, shape: Sequence[int], walls: Sequence[int]
) -> Iterator[tuple[Region, float, tuple[int, ...]]]:
    """Where walls of other axes end at those of this one: regions, shares, steps to two points.

    There cells have no value of their own: the ghost holds that of half a cell before.
    """
    first, count = cut.coarse
    at_ends = (first == 0, first + count == cut.halving.count)
    ends = zip(at_ends, cut.halving.end_shares, (1, count + 2), (1, -1), strict=True)
    for here, share, place, inward in ends:
        if not here or share is None:
            continue
        steps = [0] * (2 * len(shape))
        steps[number] = inward
        steps[len(shape) + number] = 2 * inward
        for wall in walls:
            for ghost in (1, shape[wall] - 2):
                region = [(0, extent) for extent in shape]
                region[number], region[wall] = (place, place + 1), (ghost, ghost + 1)
                yield tuple(region), share, tuple(steps)


def extrapolated(at, u, share, *steps):
    """The line through two points, so much of their distance further on."""
    near = shifted(at, u, *steps[: len(at)])
    far = shifted(at, u, *steps[len(at) :])
    return near + share * (near - far)
