"""The pressure of a stage: lap p = div u* / dt, from a guess, to a small divergence."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from heatsolve.case.case import Case
from heatsolve.errors import NotConverged
from heatsolve.linear.iterate import iterate
from heatsolve.linear.stopping import Criterion
from heatsolve.linear.system import Method, Sweeps, System
from heatsolve.models.base import Silent
from heatsolve.models.flow import equations as flow
from heatsolve.models.heat.solver import make_method
from heatsolve.models.transport.equations import Stage

if TYPE_CHECKING:
    from heatsolve.models.flow.staggered import Staggered

REST = 1e-4
"""A fluid at less than this share of the velocity that forces would give it in a step is at rest:
what is left of them is rounding, to which no pressure converges."""


class Pressure:
    """p / rho of the last stage in `now`, that of the stage before in `before`.

    `known` counts the stages that were solved for, `case` holds the options of the solver.
    """

    def __init__(self, problem: "Staggered", case: Case, stages: tuple[Stage, ...]):
        self._problem, self._case, self._stages = problem, case, stages
        copy = Sweeps(problem.grid, problem.backend, problem.halo).like
        self.now = copy(problem.fields["pressure"])
        self.before = copy(self.now)
        self.known = 0
        self.norm = float("nan")
        """That at which the last iteration ended."""
        self._speed = problem.backend.accumulator("max")
        self._solvers: dict[float, tuple[System, Method]] = {}

    def reach_of(self, stage: Stage) -> float:
        """How far the guess for a stage lies beyond the last two, in units of their distance."""
        count, number = len(self._stages), stage.number
        last, before = (self._stages[(number - n) % count].begin - (number < n) for n in (1, 2))
        if count == 1:
            before = -2.0
        if self.known > 1 and last != before:
            return (stage.begin - last) / (last - before)
        return 0.0

    def guess(self, reach: float) -> None:
        """Begin with what the last two stages' pressures say of the time of this one."""
        pair = self.now, self.before
        self._problem.backend.sweep(
            flow.extrapolated, pair, self._problem.grid.interior, *pair, reach
        )

    def begin(self, fields: Mapping[str, Any], dt: float, length: float) -> None:
        """The right side -div u* / dt, and the largest velocity of u*; sweeps only."""
        problem = self._problem
        system, _ = self.solver(length)
        given = (*problem.velocities(fields), *problem.steps_along_axes)
        interior = problem.grid.interior
        problem.backend.sweep(flow.scaled_divergence, system.b, interior, -1.0 / dt, *given)
        problem.add_speeds(fields, self._speed)

    def solve(self, dt: float, length: float, fastest: float, time: float) -> None:
        """The p for which u* - dt grad p has no divergence, after `begin`.

        `fastest` is the largest velocity at the start of the step, of whose length the system
        beside obstacles depends. Raises NotConverged.
        """
        system, method = self.solver(length)
        # The residual of the pressure is what is left of div u, over dt.
        speed = max(fastest, REST * self._speed.take())
        scale = speed / (min(self._problem.steps_along_axes) * dt)
        # An iteration in any case: a pressure that is good enough would otherwise stay as it is,
        # and a march never come to rest.
        criterion = Criterion(self._case.solver, system, self.now, scale=scale, looks_first=False)
        method.restart()
        outcome = iterate(method, criterion, Silent())
        self.norm = outcome.norm
        if outcome.ending == "limit":
            raise NotConverged(
                f"the pressure at t = {time:g} did not converge in {outcome.count} iterations "
                f"(norm {outcome.norm:.3g})"
            )

    def solver(self, length: float) -> tuple[System, Method]:
        """The system and its method; beside obstacles they depend on the length of the step."""
        length = length if self._problem.bodies is not None else 0.0
        if length not in self._solvers:
            while len(self._solvers) > 1:  # that of the last step, which may be a short one
                del self._solvers[next(iter(self._solvers))]
            system = self._problem.pressure_system(length)
            self._solvers[length] = system, make_method(self._case, system, self.now)
        return self._solvers[length]
