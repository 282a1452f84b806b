"""A linear system A u = b on a grid, its sweeps and its spectrum, and the interface of a method."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import chain, product
from typing import Any

import numpy as np

from heatsolve.backends import MOST_RESIDENT, Accumulator, Backend, Region, SweepSequence
from heatsolve.parallel.halo import Halo
from heatsolve.stencil.grid import Axis, Grid
from heatsolve.stencil.language import ONE, Point, copy, evaluate, magnitude, term, term_of

INVERSE_ITERATIONS = 100
ENOUGH = 1e-3
"""Relative change at which the inverse iteration stops: a bound needs no more digits."""


@dataclass
class Sweeps:
    """Sweeps of point functions over the unknowns of a grid, after an exchange of ghosts."""

    grid: Grid
    backend: Backend
    halo: Halo

    def sweep(self, point: Point, out: Any, u: Any, *arguments: Any) -> None:
        """out[p] = point(p, u, *arguments) at all unknowns, with up-to-date values in the ghosts.

        The ghosts of u are written first, unless a device reads the other end of a periodic axis
        itself.
        """
        if self._own_ends:
            self.backend.sweep(point, out, self.halo.inner, u, *arguments, wraps=self._own_ends)
            return
        if not self.halo.overlaps:
            self.halo.exchange(u)
            self.backend.sweep(point, out, self.grid.interior, u, *arguments)
            return
        self.halo.start(u)  # overlaps with the sweep of points that need no such ghost
        self.backend.sweep(point, out, self.halo.inner, u, *arguments)
        self.halo.finish(u)
        for slab in self.halo.rim:
            self.backend.sweep(point, out, slab, u, *arguments)

    @cached_property
    def _own_ends(self) -> tuple[bool, ...]:
        """For each axis, whether sweeps read its other end themselves; empty: they read ghosts."""
        small = self.grid.all_unknowns <= self.backend.most_wrapped
        return self.halo.wraps if small and any(self.halo.wraps) and not self.halo.divided else ()

    def update(
        self,
        point: Point,
        new: Any,
        u: Any,
        *arguments: Any,
        change: Accumulator | None = None,
        number: int = 0,
        exchanged: bool = False,
    ) -> None:
        """Make sweep `number` of a sequence, new[p] = point(p, u, *arguments), where u is the
        result of the sweep before.

        Only every `halo.depth`-th sweep exchanges ghosts, unless they have been `exchanged`; each
        sweep also updates the part of the margin that later sweeps read. A norm of new - u goes
        into `change`.
        """
        halo, sweep = self.halo, self.backend.sweep
        changed, out = with_norm_of_change(point, new, change)
        since_exchange = number % halo.depth
        if since_exchange == 0 and not exchanged:
            self.sweep(changed, out, u, *arguments)
        else:
            if not exchanged:
                halo.wrap(u)
            sweep(changed, out, self.grid.interior, u, *arguments)
        for slab in halo.margin(since_exchange):
            sweep(point, new, slab, u, *arguments)

    def updates(
        self,
        point: Point,
        new: Any,
        u: Any,
        stages: Sequence[Sequence[Any]],
        changes: Sequence[Accumulator | None],
        number: int = 0,
        exchanged: bool = False,
    ) -> int:
        """Make as many updates of a sequence as pay in one pass through memory; return how many.

        Update n takes the arguments stages[n] after u, and puts a norm of its change into
        changes[n]. The result of the last update is in `new`; u is not changed. The number is odd,
        so single updates, to and fro between the two arrays, would also end in `new`. `exchanged`:
        the ghosts of u are up to date.
        """
        halo, grid = self.halo, self.grid
        since_exchange = number % halo.depth
        region = halo.around(since_exchange)
        sweeps = SweepSequence(point, u, region, stages, halo.wraps, changes)
        most = self._most(sweeps, number)
        if most == 1:
            self.update(
                point, new, u, *stages[0], change=changes[0], number=number, exchanged=exchanged
            )
            return 1
        # Each sweep spoils one more layer beside stale ghosts; the margin has a layer for each.
        if since_exchange == 0 and not exchanged:
            halo.exchange(u)
        elif not exchanged:
            halo.wrap(u)
        self.backend.fused_sweeps(sweeps.up_to(most), new, grid.interior)
        return most

    def longest_pass(self, point: Point, u: Any, arguments: Sequence[Any]) -> int:
        """The most updates that one call of `updates` makes, where no norm is wanted (asks all).

        It is the same on all processes, although some blocks could take longer passes: the
        iterations at which norms are checked and states are saved depend on it.
        """
        halo, stages, unlooked = self.halo, [arguments] * MOST_RESIDENT, [None] * MOST_RESIDENT
        sweeps = SweepSequence(point, u, halo.around(0), stages, halo.wraps, unlooked)
        return min(halo.ranks.gather(self._most(sweeps, 0)))

    def _most(self, sweeps: SweepSequence, number: int) -> int:
        """The number of these updates that one pass makes; it is odd."""
        left = self.halo.sweeps_left(number)
        most = _odd(int(min(len(sweeps.stages), MOST_RESIDENT, left)))
        if most == 1:
            return 1
        return _odd(min(most, self.backend.most_fused(sweeps.up_to(most))))

    def reduce(self, kind: str, point: Point, u: Any, *arguments: Any) -> float:
        """The sum, or largest magnitude, of point(p, u, *arguments) over all unknowns."""
        accumulator = self.backend.accumulator(kind)
        self.sweep(point, accumulator, u, *arguments)
        return accumulator.value

    def like(self, u: Any, array: Any = None) -> Any:
        """A copy of an array, ghosts included; in `array`, if one is given."""
        if array is None:
            array = self.backend.zeros(self.grid.shape)
        self.backend.sweep(copy, array, self.grid.everything, u)
        return array

    def replayed(
        self, work: Callable[[], Any], gated: bool = True, continues: bool = False
    ) -> Callable[[], None]:
        """A call that does `work`: recorded and replayed if the backend and the transport can."""
        if not self.replays:
            return work
        return self.backend.replayed(work, gated, continues)

    @property
    def replays(self) -> bool:
        """Whether the transport lets a device play work back."""
        return self.halo.ranks.size == 1 or self.halo.transport.replays


@dataclass(frozen=True)
class Coefficients:
    """The coefficients of A u = m s u - div(k grad u), in finite volumes.

    m is the `capacity`, `s` its factor (ZERO: there is no such term). `conductances` are k / h^2 of
    the faces, `ratios` the volume of a full cell over each control volume, along x, y, z. Point
    functions take them in the order m, s, cx, rx, cy, ry, cz, rz, the order of iteration.
    """

    capacity: Any
    s: float
    conductances: tuple[Any, ...]
    ratios: tuple[Any, ...]

    def __iter__(self) -> Iterator[Any]:
        pairs = zip(self.conductances, self.ratios, strict=True)
        return chain((self.capacity, self.s), *pairs)


@dataclass
class System(Sweeps):
    """A linear system A u = b: its point functions, and the arrays that they take.

    `residual(at, u, b, *coefficients)` is b - A u, `diagonal(at, *coefficients)` the diagonal of A
    and `rounding(at, u, b, *coefficients)` |A| |u| + |b|. A is symmetric in the inner product
    weighted with the control volumes, and positive definite, or semi-definite with the constants as
    its null space (`singular`). `lowest` returns a lower bound of A's smallest eigenvalue above 0.
    """

    residual: Point
    diagonal: Point
    rounding: Point
    coefficients: Coefficients
    b: Any
    lowest: Callable[[], float]
    singular: bool = False
    homogeneous: bool = False
    """Whether the values of all walls are known to be 0."""

    def residual_norm(self, u: Any, into: Accumulator) -> None:
        """Add the terms of a norm of b - A u: squares for a sum, values for a maximum."""
        self.sweep(term_of(self.residual, into.kind), into, u, self.b, *self.coefficients)

    def norm_of_b(self, into: Accumulator) -> None:
        """Add the terms of a norm of b alone."""
        self.backend.sweep(term_of(copy, into.kind), into, self.grid.interior, self.b)

    def residual_floor(self, u: Any, kind: str) -> float:
        """2 eps times the norm of |A| |u| + |b|: the rounding level of the residual's norm."""
        value = self.reduce(kind, term_of(self.rounding, kind), u, self.b, *self.coefficients)
        epsilon = {"float64": 2.0**-52, "float32": 2.0**-23}[self.backend.precision]
        return 2.0 * epsilon * (math.sqrt(value) if kind == "sum" else value)

    def remove_mean(self, u: Any) -> None:
        """Subtract the volume-weighted mean of all unknowns."""
        interior, ratios = self.grid.interior, self.coefficients.ratios
        total, volume = (
            self.backend.reduce("sum", weighted, interior, array, *ratios) for array in (u, ONE)
        )
        self.backend.sweep(lowered, u, interior, u, total / volume)

    def spectrum(self) -> tuple[float, float]:
        """Bounds of the eigenvalues of D^-1 A: `lowest` over the largest diagonal element, and 2.

        The 2 is Gershgorin's. It is 2 - low where neighbours can be coloured red and black: the
        spectrum is then symmetric about 1 (D. M. Young, "Iterative Solution of Large Linear
        Systems", 1971).
        """
        largest = self.backend.reduce("max", self.diagonal, self.grid.interior, *self.coefficients)
        low = min(0.999999, self.lowest() / largest)
        return low, (2.0 - low if two_coloured(self.grid) and not self.singular else 2.0)


def two_coloured(grid: Grid) -> bool:
    """Whether unknowns can be coloured red and black so that neighbours differ."""
    return all(axis.all_unknowns % 2 == 0 for axis in grid.axes if axis.periodic)


def _odd(number: int) -> int:
    """The largest odd number up to `number`."""
    return number - 1 + number % 2


@lru_cache(1 << 8)
def with_change(point: Point, kind: str) -> Point:
    """An update of u together with the term of a norm of its change."""

    def updated(at, u, *arguments):
        value = evaluate(point, at, u, *arguments)
        return value, term(value - u[at], kind)

    return updated


def with_norm_of_change(point: Point, out: Any, change: Accumulator | None) -> tuple[Point, Any]:
    """An update and its output, with a norm of its change if there is an accumulator for it."""
    if change is None:
        return point, out
    return with_change(point, change.kind), (out, change)


def share_of(value, at, ratios):
    """A value times the point's share of a full cell."""
    for ratio in ratios:
        value = value / ratio[at]
    return value


def weighted(at, u, *ratios):
    """u times the point's share of a full cell."""
    return share_of(u[at], at, ratios)


def weighted_magnitude(at, u, *ratios):
    """|u| times the point's share of a full cell."""
    return magnitude(weighted(at, u, *ratios))


def added(at, u, correction):
    """u + correction."""
    return u[at] + correction[at]


def lowered(at, u, amount):
    """u - amount."""
    return u[at] - amount


# ---- a bound of the smallest eigenvalue, axis by axis --------------------------------------------


def lowest_eigenvalue(
    grid: Grid, lines: Sequence[np.ndarray], ratios: Sequence[np.ndarray]
) -> float:
    """A lower bound of the smallest eigenvalue that is not 0 (1/s for a unit of rho c).

    A grows with every conductance. Replacing each conductance by the smallest one of its layer
    therefore gives a bound, and leaves a sum of operators along the axes, so the bound is the sum
    of their smallest eigenvalues. Where no wall has a given value, the bound is the smallest
    eigenvalue above 0 along any single axis.
    """
    smallest = [
        0.0 if axis.periodic or line[1] + line[-1] == 0.0 else _smallest(line, ratio.reshape(-1))
        for axis, line, ratio in zip(grid.axes, lines, ratios, strict=True)
    ]
    if sum(smallest) > 0.0:
        return sum(smallest)
    return min(
        _first_mode(axis, float(line[2:-1].min()) if line.size > 3 else 0.0)
        for axis, line in zip(grid.axes, lines, strict=True)
        if axis.unknowns > 1
    )


def _first_mode(axis: Axis, conductance: float) -> float:
    """The smallest eigenvalue above 0 along an axis of uniform conductance without given values."""
    half_waves = 1.0 if axis.periodic else 0.5
    return 4.0 * conductance * math.sin(half_waves * math.pi / axis.intervals) ** 2


def _smallest(faces: np.ndarray, ratio: np.ndarray) -> float:
    """The smallest eigenvalue of the operator along one line, by inverse iteration.

    r_i (c_{i+1} (u_i - u_{i+1}) + c_i (u_i - u_{i-1})), made symmetric by the square roots of r.
    The Rayleigh quotient converges from above, so its possible remaining fall is subtracted.
    """
    c = faces[1:]
    n = c.size - 1
    r = np.broadcast_to(ratio[1:-1] if ratio.size > 1 else ratio, (n,))
    diagonal = r * (c[:-1] + c[1:])
    off = -c[1:-1] * np.sqrt(r[:-1] * r[1:])
    pivots, factors = _factorise(diagonal.tolist(), off.tolist())
    u = [1.0] * n
    value = math.inf
    for _ in range(INVERSE_ITERATIONS):
        norm = math.hypot(*u)  # no square underflows or overflows
        u = [x / norm for x in u]
        solved = _solve(pivots, factors, u)
        estimate = 1.0 / sum(x * y for x, y in zip(u, solved, strict=True))
        done = abs(value - estimate) <= ENOUGH * estimate
        value, u = estimate, solved
        if done:
            break
    return value * (1.0 - 2.0 * ENOUGH)


def _factorise(diagonal: list[float], off: list[float]) -> tuple[list[float], list[float]]:
    pivots, factors = [diagonal[0]], []
    for d, e in zip(diagonal[1:], off, strict=True):
        factors.append(e / pivots[-1])
        pivots.append(d - factors[-1] * e)
    return pivots, factors


def _solve(pivots: list[float], factors: list[float], right: list[float]) -> list[float]:
    u = [right[0]]
    for factor, value in zip(factors, right[1:], strict=True):
        u.append(value - factor * u[-1])
    u = [value / pivot for value, pivot in zip(u, pivots, strict=True)]
    for n in range(len(u) - 2, -1, -1):
        u[n] -= factors[n] * u[n + 1]
    return u


# ---- methods -------------------------------------------------------------------------------------


class Method(ABC):
    """An iteration for A u = b that begins with the given array `u`, and works in it.

    `queues`: whether steps need nothing from the host, so that a device can run ahead of it.
    `recurrent`: whether the residual is updated by a recurrence, which `confirm` checks.
    `direct`: whether one step solves the system; further steps only reduce its rounding errors.
    `reduces_smooth_errors`: whether smooth errors fall as fast as the residual, which hardly shows
    them.
    `checks_per_floor`: checks after which the rounding level of the residual is computed anew.
    `checks_without_fall`: the number of checks below that level, without a new lowest residual,
    that ends the iteration. `fall`: a residual is a new lowest one if it is less than this share of
    the lowest residual before.
    """

    queues = True
    recurrent = False
    longest = 1
    """The most iterations that one `advance` makes."""
    needs_start = True
    """Whether the solution depends on the initial u by more than rounding."""
    stays = True
    """Whether `u`, and b of `system`, remain the arrays that the method was given."""
    direct = False
    reduces_smooth_errors = False
    brings_neighbours = False
    """Whether a check leaves the unknowns of neighbouring processes in the ghosts of u."""
    checks_per_floor = 50
    checks_without_fall = 10
    fall = 1.0

    def __init__(self, system: System, u: Any):
        self.system = system
        self.u = u
        self.scalars: dict[str, float] = {}
        """Numbers that a step leaves for the next step."""
        self._series: dict[str, list[Accumulator]] = {}
        self._plays: dict[Any, Callable[[], None]] = {}
        """Recorded work, by keys."""

    def play(self, key: Any, work: Callable[[], Any], continues: bool = False) -> None:
        """Play back the work of a key; record it at the first call with this key.

        `continues`: see `Backend.replayed`.
        """
        if key not in self._plays:
            self._plays[key] = self.system.replayed(work, self.system.backend.gated, continues)
        self._plays[key]()

    @abstractmethod
    def step(self, number: int, change: Accumulator | None) -> None:
        """Iteration `number` (from 0); a norm of its change goes into `change`."""

    def advance(self, number: int, changes: Sequence[Accumulator | None]) -> int:
        """Make one or more iterations from `number` on, `len(changes)` at most; return how many.

        A norm of the change of each iteration goes into its accumulator. If several are made, the
        array of the solution before them is not changed, so that `step` can repeat some of them.
        """
        self.step(number, changes[0])
        return 1

    def march(self, number: int, until: int) -> int:
        """Make the iterations `number` to `until` - 1; return the number of the next iteration."""
        while number < until:
            number += self.advance(number, [None] * min(self.longest, until - number))
        return number

    def solution(self, steps: int) -> Any:
        """The array that holds u after this number of steps."""
        return self.u

    def memory(self, steps: int) -> dict[str, Any]:
        """The arrays that step `steps` reads; a checkpoint holds them."""
        return {"u": self.solution(steps)}

    def record(self, steps: int) -> dict[str, float]:
        """The numbers that step `steps` needs besides the arrays of `memory`."""
        return self.scalars

    def recall(self, steps: int, scalars: dict[str, float]) -> None:
        """Go on with these numbers, and with the values that are now in the arrays of `memory`."""
        self.scalars = dict(scalars)

    def accumulator(self, kind: str) -> Accumulator:
        """An accumulator for norms of changes or residuals."""
        return self.system.backend.accumulator(kind)

    def accumulators(self, kind: str, count: int) -> list[Accumulator]:
        """Empty accumulators for the norms of successive iterations; the same objects each time."""
        if kind not in self._series:
            self._series[kind] = self.system.backend.accumulators(kind, count)
        else:  # an earlier iteration may have ended by an error
            self.system.backend.clear(self._series[kind])
        return self._series[kind]

    def residual_norm(self, steps: int, into: Accumulator) -> None:
        """Add the terms of a norm of the residual after this number of steps."""
        self._add_norm(self.system.residual_norm, self.solution(steps), into)

    def _add_norm(self, terms: Callable[..., Any], u: Any, into: Accumulator) -> None:
        """Add the terms of a norm of u: by a replay if the accumulator serves many iterations."""
        if into in self._series.get(into.kind, ()):
            self.play((terms.__name__, id(u), id(into)), partial(terms, u, into))
        else:
            terms(u, into)

    def first_values(self, into: Accumulator, *of_b: Accumulator) -> list[float]:
        """The accumulators' values for the first residual and, if `of_b` is given, for b."""
        self.residual_norm(0, into)
        for norm in of_b:
            self.system.norm_of_b(norm)
        read = self.system.backend.posted_values([into, *of_b])
        self.begin_ahead()
        return read()

    def begin_ahead(self) -> None:
        """Let a device begin the first iteration while its host waits for the first values; by
        default it does not."""

    def confirm(self, kind: str) -> float:
        """The true residual's sum of squares, or its largest magnitude, by the `kind` of
        accumulator, of a method that updates its residual by recurrence."""
        raise NotImplementedError

    def replace_residual(self, steps: int) -> None:
        """Go on from the true residual, from which a recurrence slowly departs.

        H. van der Vorst and Q. Ye, SIAM J. Sci. Comput. 22 (2000), 835.
        """
        raise NotImplementedError

    def confirm_ahead(self, kind: str, threshold: float) -> None:
        """Queue `confirm` as work that continues, of a method that updates its residual by
        recurrence: later work is done only if the true residual's largest magnitude is at most the
        threshold."""
        raise NotImplementedError

    def settle(self, from_zero: bool = False) -> None:
        """Allow the method to replace the arrays `u`, and b of `system`, if that saves copies;
        `from_zero`: of solves after `restart_from_zero`."""
        self.stays = False

    def _work_in(self, u: Any, b: Any) -> None:
        """Copy u and b into these arrays, and work in them from now on; the array for b may be the
        system's own."""
        system = self.system
        self.u = system.like(self.u, u)
        if b is not system.b:
            self.system = replace(system, b=system.like(system.b, b))

    def restart(self) -> None:
        """Begin again from the values now in `u` and b."""

    def restart_from_zero(self) -> None:
        """Begin again for a new b, from any `u`; if the method `needs_start`, from its values."""
        self.restart()

    def sweep_start(self, sweep: Callable[[Region], None]) -> None:
        """Make the sweep that gives b and the values in `u`; it gets the region of each part.

        The method may also bring what it needs of other processes, so a caller that uses this once
        must use it before each solve.
        """
        sweep(self.system.grid.interior)

    def finish(self, steps: int) -> None:
        """Leave the solution after this number of steps in `u`."""

    def finish_copies(self, steps: int) -> bool:
        """Whether `finish` copies the solution, so that work that reads it must come later."""
        return False


class Pairwise(Method):
    """A method with two arrays for u: each iterate is computed from one array into the other."""

    reads_before = False
    """Whether each step, also the first, reads the former values of the array that it writes."""

    def __init__(self, system: System, u: Any):
        super().__init__(system, u)
        self._pair = (u, system.like(u))

    def solution(self, steps: int) -> Any:
        return self._pair[steps % 2]

    def restart(self) -> None:
        system = self.system
        if self.reads_before:
            regions = [system.grid.everything]
        else:  # the walls' values; where all are 0, both arrays have them
            regions = [] if system.homogeneous else list(system.grid.ghosts)
        others = [array for array in self._pair if array is not self.u]
        for array, region in product(others, regions):
            system.backend.sweep(copy, array, region, self.u)

    def finish(self, steps: int) -> None:
        newest = self.solution(steps)
        if newest is not self.u:
            self.system.backend.sweep(copy, self.u, self.system.grid.everything, newest)

    def finish_copies(self, steps: int) -> bool:
        return self.solution(steps) is not self.u
