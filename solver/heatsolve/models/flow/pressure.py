"""The pressure of a projection: its right side, its solver, and its initial guess."""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from operator import mul
from typing import TYPE_CHECKING, Any

import numpy as np

from heatsolve.backends import PointSweep
from heatsolve.case.case import Case
from heatsolve.linear.iterate import Following, in_range, iterate
from heatsolve.linear.stopping import Criterion
from heatsolve.linear.system import Method, System
from heatsolve.models.base import Fields, Silent, demand_converged
from heatsolve.models.flow import equations as flow
from heatsolve.models.heat.solver import make_method, method_name
from heatsolve.models.transport.equations import Stage

if TYPE_CHECKING:
    from heatsolve.models.flow.staggered import Staggered

REST, ROUNDINGS = 1e-4, 4.0
"""A fluid counts as at rest below this share of the velocity that forces would give it in a step:
the forces that no pressure balances are then rounding, to which no iteration converges. Nor does it
converge to less than this number of rounding errors of that velocity."""


BEGINS = {
    1: ((0.0, 0.0),),
    2: ((0.0, 0.0), (1.0, -0.5)),
    3: ((0.0, 0.0), (1.0, -0.5), (0.5, 0.125)),
}
"""By the number of stages: the time at which each stage begins, in steps, and the number e of
`cubic_weights`."""
LAST = {1: (4,), 2: (7, 7), 3: (7, 8, 7)}
"""The last pressures from which the guess of each stage is made, by the number of stages.

With seven in the second of three stages the weights would be twice as large in steps of one length,
and the errors that the tolerance leaves would grow from step to step, until a cycle more is needed
(256 cubed, RK3).
"""
MOST_STEPS = 5
"""The steps, the present one included, to which these pressures may belong."""
MOST_UNLIKE = 16.0
"""The ratio of the longest to the shortest of these steps beyond which their pressures do not tell
the next one: weights would be large, and double precision would not hold their conditions."""


@lru_cache(1 << 8)
def cubic_weights(stages: int, number: int, lengths: tuple[float, ...]) -> tuple[float, ...]:
    """The weights of the last pressures, the newest first, in the initial guess of a stage.

    Stage s begins from u(t) + e_s dt^2 u'' + O(dt^3), t its time and e_s a number of the
    Runge-Kutta scheme: so its pressure is p(t) + e_s dt^2 q(t), where p and q are smooth. The guess
    is exact if p is cubic in time and q linear; of such weights these have the least sum of
    squares, as the errors that the tolerance leaves in the last pressures grow with them.
    `lengths`: of the present step and of the steps before, the newest first; very unlike ones
    (MOST_UNLIKE) give wrong weights.
    """
    begins, (now, e_now) = BEGINS[stages], BEGINS[stages][number]
    conditions = []
    for back in range(1, 1 + LAST[stages][number]):
        step, stage = divmod(number - back, stages)
        shares = [length / lengths[0] for length in lengths[: 1 - step]]
        begin, e = begins[stage]
        t = begin * shares[-1] - now - math.fsum(shares[1:])
        e *= shares[-1] * shares[-1]
        conditions.append((1.0, t, t * t, t * t * t, e, e * t))
    # The least w with C^T w = c is C y with C^T C y = c, here by elimination, whose operations all
    # machines round alike. Columns of zeros, where all e are 0, have no pivot.
    wanted = (1.0, 0.0, 0.0, 0.0, e_now, 0.0)
    columns = list(zip(*conditions, strict=True))
    rows = [
        [*[math.fsum(map(mul, one, other)) for other in columns], right]
        for one, right in zip(columns, wanted, strict=True)
    ]
    for n, pivots in enumerate(rows):
        if pivots[n] == 0.0:
            continue
        pivots[:] = [value / pivots[n] for value in pivots]
        for row in rows:
            if row is not pivots:
                row[:] = [value - row[n] * pivot for value, pivot in zip(row, pivots, strict=True)]
    found = [row[-1] for row in rows]
    return tuple(math.fsum(map(mul, of_one, found)) for of_one in conditions)


CENTRED_EVERY = 100
"""Steps after which the means of all pressures are removed, where only differences of pressures
matter and no cycle changes a mean: sums of sums repeat their rounding, which would grow with the
cube of the number of steps, in single precision to the size of the pressure in 500 steps."""
SMALL_WEIGHTS = {
    1: ((2.0, -1.0),),
    2: ((0.0, 2.0, 0.0, -1.0),) * 2,
    3: ((0.0, 1.0), (3.0, -2.0), (0.5, 0.5)),
}
"""Smaller weights by the number of stages, for methods other than multigrid: these end closer to
the tolerance, and the errors that it leaves grow with the weights. Guesses are linear in time; with
two stages from the pressures of the same stage."""


Guesses = tuple[tuple[tuple[float, ...], ...], ...]
"""For each stage of a step, the weights of some sums."""


class Pressure:
    """p / rho and its solver: `now` of the last stage, `older` of the stages before.

    `known` counts the stages solved so far, `case` holds the options of the solver.
    """

    def __init__(self, problem: "Staggered", case: Case, stages: tuple[Stage, ...]):
        self._problem, self._case = problem, case
        self._stages, self._is_cubic = len(stages), method_name(case) == "multigrid"
        self._last = LAST[len(stages)]
        if not self._is_cubic:
            self._last = tuple(map(len, SMALL_WEIGHTS[len(stages)]))
        self.lengths: tuple[float, ...] = ()
        """The lengths of the present step and of the steps before, the newest first."""
        # Whether the first stage of a step begins the guesses of the others, so that they need not
        # read the pressures before the step: arrays that the step no longer needs hold the parts.
        self._begins_all = self._last[0] >= len(stages)
        self.now = problem.sweeps.like(problem.fields["pressure"])
        self._older = [problem.sweeps.like(self.now) for _ in range(self._last[0] - 1)]
        self.known = 0
        self.norm = float("nan")
        """The norm at which the last iteration ended."""
        self._speed = problem.backend.accumulator("max")
        rounding = ROUNDINGS * float(np.finfo(problem.backend.dtype).eps)
        self._rest = max(REST, rounding / case.solver.tolerance)
        self._solvers: dict[float, Method] = {}
        self.counts: dict[int, int] = {}
        """The iterations of the step before, by stage."""

    def begin_step(self, length: float) -> None:
        """Begin a step of this length."""
        self.lengths = self.next_lengths(length)
        system, _ = self.solver(length)
        steps = self.known // self._stages
        if self._is_cubic and system.singular and steps > 0 and steps % CENTRED_EVERY == 0:
            for array in (self.now, *self.older):
                system.remove_mean(array)

    def next_lengths(self, length: float) -> tuple[float, ...]:
        """The lengths behind the present step, if the next step has this length."""
        return (length, *self.lengths[: MOST_STEPS - 1])

    def guesses(self, lengths: tuple[float, ...]) -> Guesses:
        """The weights of the sums by which `begin` makes the guesses of a step, the first of these
        lengths."""
        stages = range(self._stages)
        weights = tuple(self.weights(number, lengths) for number in stages)
        if not self._begins_all:
            return tuple((of_stage,) for of_stage in weights)
        first = tuple(of_stage[later:] for later, of_stage in enumerate(weights))
        return (first, *[((*weights[n][:n], 1.0),) for n in stages[1:]])

    def weights(self, stage: int, lengths: tuple[float, ...]) -> tuple[float, ...]:
        """The weights of the last pressures in the guess of a stage.

        While pressures are missing, or steps are very unlike, the guess is the last pressure.
        """
        unlike = lengths and max(lengths) > MOST_UNLIKE * min(lengths)
        if self.known < self._last[0] or (self._is_cubic and unlike):
            return (1.0, *[0.0] * (self._last[stage] - 1))
        if self._is_cubic:
            return cubic_weights(self._stages, stage, lengths)
        return SMALL_WEIGHTS[self._stages][stage]

    @property
    def older(self) -> list[Any]:
        """The pressures of the stages before the last one, the newest first.

        Each stage puts its predecessor's pressure in place of the oldest.
        """
        count = len(self._older)
        return [self._older[(self.known - n) % count] for n in range(1, 1 + count)]

    def begin(
        self,
        fields: Fields,
        factor: Any,
        length: float,
        sums: Sequence[Sequence[Any]] = (),
    ) -> None:
        """Make the right side, `factor` (-1 / dt) times div u*, and the largest velocity of u*;
        sweeps only.

        With the weights of `sums` also the initial guess, and the parts of the guesses of the next
        stages. The part that an earlier stage of the step has made is in the oldest array, and
        newer pressures are those of the step.
        """
        problem, older = self._problem, self.older
        interior, (system, method) = problem.grid.interior, self.solver(length)
        args = (factor, *problem.velocities(fields), *problem.inverse_spacings)
        sweeps = [PointSweep(flow.scaled_divergence, system.b, interior, args)]
        if sums:
            count = len(sums[0])
            args = (self.now, *older[: count - 2], older[-1], *itertools.chain(*sums))
            out = (self.now, *older[: -1 - len(sums) : -1])
            sweeps.append(PointSweep(flow.extrapolated(*map(len, sums)), out, interior, args))
        sweeps.append(problem.speed_sweep(fields, self._speed))
        method.sweep_start(partial(problem.backend.sweep_together, sweeps))
        problem.add_low_faces(fields, self._speed)
        self._speed.post()

    def solve(
        self,
        dt: float,
        length: float,
        fastest: Callable[[], float],
        time: float,
        stage: int | None = None,
        following: Following | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Solve for the p that makes u* - dt grad p free of divergence, after `begin`.

        `fastest` gives the largest velocity at the start of the step, of this `length`; `stage` is
        the number of the stage in its step, None outside a step; `following`: see `iterate`;
        `meanwhile`: work of the host before it waits for the device, with a tolerance while the
        first cycle runs; it may be called again. Raises NotConverged.
        """
        system, method = self.solver(length)
        of_rest, spacing = self._speed.posted(), min(self._problem.steps_along_axes)

        def scale() -> float:
            """The residual of the pressure is the remaining div u, over dt."""
            meanwhile()  # before the host waits for numbers of the device
            return max(fastest(), self._rest * of_rest()) / (spacing * dt)

        options = self._case.solver
        with in_range(method, scale) as factor:
            args = options, system, self.now
            # At least one iteration: otherwise a pressure within the tolerance would not change,
            # and a march would never come to rest.
            criterion = Criterion(*args, scale=lambda: factor * scale(), looks_first=False)
            method.restart_from_zero()
            expected = 0 if stage is None else self.counts.get(stage, 0)
            follow = following if factor == 1.0 else None
            outcome = iterate(method, criterion, Silent(), expected=expected, following=follow)
            outcome = outcome.times(1.0 / factor)
        self.now = method.u
        self.norm = outcome.norm
        if stage is not None:
            self.counts[stage] = outcome.count
        demand_converged(outcome, f"the pressure at t = {time:g}")

    def solver(self, length: float) -> tuple[System, Method]:
        """The system and its method; with obstacles they depend on the length of the step."""
        length = length if self._problem.bodies is not None else 0.0
        if length not in self._solvers:
            while len(self._solvers) > 1:  # keep one more: the last step may be shorter
                del self._solvers[next(iter(self._solvers))]
            system = self._problem.pressure_system(length)
            method = make_method(self._case, system, self.now)
            method.settle(from_zero=True)
            self._solvers[length] = method
        method = self._solvers[length]
        if method.u is not self.now:  # the steps before had another length
            self.now = method.system.like(self.now, method.u)
        return method.system, method
