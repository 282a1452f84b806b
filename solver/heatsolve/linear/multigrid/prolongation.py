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
from functools import cached_property
from typing import Any

from heatsolve.backends import Backend, Region
from heatsolve.linear.multigrid.interpolation import Interpolation, parities_of, roomy
from heatsolve.linear.multigrid.plane import NEAR, PlaneInterpolation
from heatsolve.linear.multigrid.transfer import AxisTransfer, Exchange, at_once, takes_rows
from heatsolve.stencil.language import shifted

WIDE = 2000
"""Coarse points along both axes of a plane, from which on they are copied beside the walls only.

With fewer it takes no longer to copy all (H200).
"""


class Prolongation:
    """From a coarse level to the next finer one; `transfers` holds the axes that are halved.

    `coarse` is the array of the solution, `finer` that into which is interpolated. `across` makes
    for an axis and a shape the exchange of two layers with the neighbours there.
    """

    def __init__(
        self,
        backend: Backend,
        transfers: Mapping[int, AxisTransfer],
        finer: Any,
        coarse: Any,
        across: Callable[[int, Sequence[int]], Exchange],
    ):
        self._backend, self._cuts, self._across = backend, transfers, across
        self._coarse, self._finer = coarse, finer
        more = [int(number in transfers) for number in range(len(coarse.shape))]
        extents = list(coarse.shape)
        for number, along in transfers.items():  # whose arrays may have room in their rows
            extents[number] = along.coarse[1] + 4
        self._copied = tuple((m, extent - m) for extent, m in zip(extents, more, strict=True))
        self._wide = backend.zeros(extents)
        # Rows of a plane lie together, those of a block in space do not.
        self.can_leave_ghosts = takes_rows(transfers, extents)
        self._plane: PlaneInterpolation | None = None
        if at_once(backend, transfers, coarse.shape):
            self._near, inner = [self._copied], None
            if min(coarse.shape) >= max(WIDE, 2 * (NEAR + 2)):
                self._near, inner = list(_layers(self._copied, NEAR + 2)), coarse
            weights = [along.coarsening.solution_weights for along in transfers.values()]
            unknowns = [along.fine[1] for along in transfers.values()]
            self._plane = PlaneInterpolation(backend, self._wide, weights, unknowns, inner)
            self._ghosts = [
                self._ghosts_of(number, self._wide) for number in reversed(list(transfers))
            ]

    def _ghosts_of(self, number: int, source: Any) -> "Ghosts":
        walls = [other for other in self._cuts if other < number]  # their turn is yet to come
        exchange = self._across(number, source.shape)
        return Ghosts(self._backend, self._cuts[number], number, source, exchange, walls)

    @cached_property
    def _steps(self) -> list[tuple["Ghosts", Interpolation]]:
        """For each axis in turn the ghosts of its source, and what makes the next one's."""
        backend, source, extents = self._backend, self._wide, list(self._wide.shape)
        steps: list[tuple[Ghosts, Interpolation]] = []
        for number, along in reversed(list(self._cuts.items())):
            extents[number] = self._finer.shape[number]
            memory = result = self._finer
            if len(steps) < len(self._cuts) - 1:
                memory, result = roomy(backend, extents, number)
            # One layer more stands before those of the coarse array.
            args = (
                along.coarsening.solution_weights,
                extents[number],
                along.fine[0],
                *along.coarse,
            )
            parities = parities_of(backend, *args)
            make = Interpolation(backend, number, source, memory, tuple(extents), parities)
            steps.append((self._ghosts_of(number, source), make))
            source = result
        return steps

    def interpolate(self, into: Any = None) -> None:
        """`finer` from the coarse solution, its ghosts up to date.

        Or the unknowns of the array `into`, if it `can_leave_ghosts`: those of `into` stay.
        """
        if into is not None and self._plane is not None:
            for region in self._near:
                self._widen(region)
            for ghosts in self._ghosts:
                ghosts.complete()
            self._plane(into)
            return
        self._widen(self._copied)
        *others, (ghosts, make_last) = self._steps
        for before, make in others:
            before.complete()
            make()
        ghosts.complete()
        make_last(into)

    def _widen(self, region: Region) -> None:
        """The coarse solution, one layer further on."""
        distances = [-low for low, _ in self._copied]
        self._backend.sweep(shifted, self._wide, region, self._coarse, *distances)


def _layers(region: Region, depth: int) -> Iterator[Region]:
    """The outermost layers of a plane: rows, and what columns have left."""
    (low, high), columns = region
    yield (low, low + depth), columns
    yield (high - depth, high), columns
    for pair in ((columns[0], columns[0] + depth), (columns[1] - depth, columns[1])):
        yield (low + depth, high - depth), pair


class Ghosts:
    """Those of an array at the ends of one axis, and where the axes `walls` end at those."""

    def __init__(
        self,
        backend: Backend,
        along: AxisTransfer,
        number: int,
        array: Any,
        exchange: Exchange,
        walls: Sequence[int],
    ):
        self._sweep, self._array, self._exchange = backend.sweep, array, exchange
        self._corners = list(_corners(along, number, array.shape, walls))

    def complete(self) -> None:
        """From the neighbours of the array, and at corners from itself."""
        self._exchange(self._array)
        for region, share, steps in self._corners:
            self._sweep(extrapolated, self._array, region, self._array, share, *steps)


def _corners(
    along: AxisTransfer, number: int, shape: Sequence[int], walls: Sequence[int]
) -> Iterator[tuple[Region, float, tuple[int, ...]]]:
    """Where walls of other axes end at those of this one: regions, shares, steps to two points.

    There cells have no value of their own: the ghost holds that of half a cell before.
    """
    first, count = along.coarse
    at_ends = (first == 0, first + count == along.coarsening.count)
    ends = zip(at_ends, along.coarsening.end_shares, (1, count + 2), (1, -1), strict=True)
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
