"""When an iteration is at its end: judged check by check."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from heatsolve.errors import Diverged
from heatsolve.linear import Method
from heatsolve.linear.criterion import Criterion

GROWTH = 1e12
"""Growth of a norm beyond its first value that counts as divergence."""
FAST = 0.5
"""A residual that fell by this since the check before is not at its rounding level yet."""


@dataclass(frozen=True)
class ResidualCheck:
    """A check after iteration `number`, made in a pass from iteration `start` to `stop`."""

    number: int
    start: int
    stop: int

    def go_back(self, method: Method) -> None:
        """Bring the method from the end of the pass to the check."""
        if self.number < self.stop:
            for number in range(self.start, self.number):
                method.step(number, None)


@dataclass
class IterationState:
    """How an iteration went so far: what the judge of its checks remembers.

    `floor` is the rounding level of the residual as far as somebody had to look for it; `first` and
    `lowest` are norms, `before` that of the check before; `confirmed` is the last true residual of
    a method that updates it by recurrence, `value` what the last check found.
    """

    norm: float = math.nan
    floor: float = math.nan
    checks: int = 0
    first: float = math.nan
    before: float = math.nan
    lowest: float = math.inf
    without_fall: int = 0
    confirmed: float = math.inf
    value: float = math.nan
    ending: str = ""


class ConvergenceTest:
    """Decides, check by check, whether an iteration is at its end; keeps the history."""

    def __init__(self, method: Method, criterion: Criterion):
        self._method, self._criterion = method, criterion
        self.state = IterationState()
        self.history: dict[str, list[float]] = {"iteration": [], "residual": []}

    @property
    def ending(self) -> str:
        """How the iteration ended; empty while it goes on."""
        return self.state.ending

    @property
    def norm(self) -> float:
        """The norm at the last check."""
        return self.state.norm

    def begin(self) -> None:
        """Examine what the iteration begins with, where a residual is monitored."""
        if self._criterion.total is not None:
            accumulator = self._method.accumulator(self._criterion.kind)
            self._criterion.find(self._method, 0, accumulator)
            self.state.value = accumulator.take()
        criterion = self._criterion
        if criterion.monitor == "residual" and not criterion.fixed and criterion.looks_first:
            self.examine(ResidualCheck(0, 0, 0), self._criterion.first_residual(self._method))

    def recall(self, state: IterationState, history: dict[str, list[float]]) -> None:
        """Go on from an earlier state; an end holds only if the criterion still says so."""
        self.state = state
        self.history = history
        self._criterion.begin_with(state.first)
        if state.ending == "tolerance" and not self._criterion.met(state.norm):
            state.ending = ""

    def most_checks(self, wanted: int) -> int:
        """So many checks may be queued without passing one at which the host must decide."""
        if self._criterion.total is not None or self._criterion.waits:
            return 1
        if self._criterion.monitor == "update":
            return wanted
        state = self.state
        method = self._method
        until_floor = method.checks_per_floor - state.checks % method.checks_per_floor
        if math.isnan(state.floor):  # until it is known nothing counts as being there
            return min(wanted, until_floor)
        return min(wanted, until_floor, method.checks_without_fall - state.without_fall)

    def examine(self, check: ResidualCheck, value: float) -> None:
        """Take the value of a check."""
        criterion, state, number = self._criterion, self.state, check.number
        state.norm = criterion.norm(value, state.value)
        state.value = value
        if state.checks == 0:
            criterion.demand_range(state.norm, self._method.solution(number))
        self.history["iteration"].append(number)
        self.history["residual"].append(state.norm)
        if state.checks == 0:
            state.first = state.before = state.norm
        self._demand_finite(check)
        if state.checks == 0:
            criterion.begin_with(state.first)
        state.checks += 1
        if number == 0:
            self._examine_start()
        elif criterion.met(state.norm) and not self._method.recurrent:
            state.ending = "tolerance"
        elif criterion.monitor == "residual" and not criterion.fixed:
            self._examine_rounding(number)
        elif criterion.met(state.norm):
            state.ending = "tolerance"

    def _examine_start(self) -> None:
        """What a solve begins with may meet the tolerance, but ends it only at rounding level."""
        state = self.state
        state.lowest = state.norm
        if state.norm == 0.0:
            state.ending = "tolerance"
        elif self._criterion.met(state.norm):
            self._find_floor(0)
            state.ending = "rounding" if state.norm <= state.floor else ""

    def _examine_rounding(self, number: int) -> None:
        state, method = self.state, self._method
        fast = state.norm < FAST * state.before and not method.recurrent
        state.before = state.norm
        due = state.checks % method.checks_per_floor == 0 and not fast
        if due or (method.direct and number > 0):
            self._find_floor(number)
        if method.recurrent:
            if self._criterion.met(state.norm) or state.norm < 0.25 * state.floor:
                self._confirm(number)
            return
        falls = state.norm < method.fall * state.lowest
        if state.norm <= state.floor and not falls:
            state.without_fall += 1
        state.lowest = min(state.lowest, state.norm)
        if state.without_fall == method.checks_without_fall:
            state.ending = "rounding"

    def _residual(self, number: int) -> float:
        """The residual's sum of squares, or its largest magnitude."""
        accumulator = self._method.accumulator(self._criterion.kind)
        self._method.residual_norm(number, accumulator)
        return accumulator.take()

    def _find_floor(self, number: int) -> None:
        method, kind = self._method, self._criterion.kind
        self.state.floor = method.system.residual_floor(method.solution(number), kind)

    def _confirm(self, number: int) -> None:
        """A recurrence says converged: look at the true residual, and go on from it."""
        state = self.state
        self._method.confirm(number)
        state.norm = self.history["residual"][-1] = self._criterion.norm(self._residual(number))
        if self._criterion.met(state.norm):
            state.ending = "tolerance"
            return
        self._find_floor(number)
        if state.norm <= state.floor and state.norm > 0.5 * state.confirmed:
            state.ending = "rounding"
        state.confirmed = state.norm

    def _demand_finite(self, check: ResidualCheck) -> None:
        norm, first = self.state.norm, self.state.first
        if math.isfinite(norm) and not norm > GROWTH * first > 0.0:
            return
        what, number = self._criterion.monitor, check.number
        check.go_back(self._method)
        place = first_not_finite(self._method.system, self._method.solution(number))
        where = place or f"the {what} grew from {first:g} to {norm:g}"
        raise Diverged(f"diverged by iteration {number}: {where}")


def first_not_finite(placed: Any, u: Any, name: str = "temperature") -> str:
    """Where a field is not finite, in words; empty if it is finite (asks all processes).

    `placed`: a system or a problem, with the grid, the backend and the halo of the field. A place
    at a wall, or where others' values lie, counts only if no process has one inside.
    """
    grid, host = placed.grid, placed.backend.to_host(u)
    found = []
    for regions in ((grid.interior,), grid.ghosts):
        bad = np.zeros(grid.shape, bool)
        for region in regions:
            here = tuple(slice(*pair) for pair in region)
            bad[here] = ~np.isfinite(host[here])
        words = ""
        if bad.any():
            index = np.unravel_index(int(np.argmax(bad)), bad.shape)
            place = grid.place(index, grid.shape)
            words = f"{name.replace('_', ' ')} is {host[index]:g} at {place}"
        found.append(words)
    inside, beside = zip(*placed.halo.ranks.gather(found), strict=True)
    return next(filter(None, (*inside, *beside)), "")


def largest_place(placed: Any, fields: Mapping[str, Any]) -> str:
    """Where the largest of all fields has its largest magnitude, in words (asks all processes)."""
    grid = placed.grid
    own = tuple(slice(*pair) for pair in grid.interior)
    found = (-1.0, "")
    for name, array in fields.items():
        magnitudes = np.abs(placed.backend.to_host(array)[own])
        index = np.unravel_index(int(np.argmax(magnitudes)), magnitudes.shape)
        at = tuple(int(n) + low for n, (low, _) in zip(index, grid.interior, strict=True))
        words = f"{name.replace('_', ' ')} is {magnitudes[index]:.3g} in magnitude"
        words += f" at {grid.place(at, grid.shape)}"
        found = max(found, (float(magnitudes[index]), words))
    return max(placed.halo.ranks.gather(found))[1]
