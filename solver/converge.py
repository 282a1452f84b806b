"""The loop to convergence: when it ends, and what is said of it."""

import math
import time as clock
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from heatsolve import heat
from heatsolve.backends import Accumulator
from heatsolve.case import Case
from heatsolve.errors import Diverged
from heatsolve.linear import Method, System
from heatsolve.linear.cg import ConjugateGradients
from heatsolve.linear.chebyshev import Chebyshev
from heatsolve.linear.jacobi import Jacobi
from heatsolve.linear.sor import Sor
from heatsolve.points import fill

CHECKS_PER_FLOOR = 50
"""Checks after which the rounding level of the residual is computed anew."""
CHECKS_WITHOUT_FALL = 10
"""Checks below the rounding level without a new lowest residual that end an iteration."""
GROWTH = 1e12
"""Growth of a norm beyond its first value that counts as divergence."""
LONGEST_QUEUE = 0.25
"""Seconds of work that the host queues before it looks at a device."""


class Watcher(Protocol):
    """Who wants to know how a run goes; see `report`."""

    def warn(self, sentence: str) -> None: ...

    def aim(self, threshold: float) -> None: ...

    def progress(self, number: int, norm: float | None) -> None: ...


@dataclass
class Outcome:
    """How an iteration or a march ended.

    `ending`: "tolerance", "rounding" (the residual is at rounding level and falls no further),
    "count" (the fixed number of iterations, or the end time) or "limit" (not converged).
    """

    ending: str
    count: int
    norm: float
    floor: float = math.nan
    threshold: float = 0.0
    history: dict[str, list[float]] = field(default_factory=dict)

    @property
    def converged(self) -> bool:
        return self.ending in ("tolerance", "rounding")


class Criterion:
    """When an iteration ends: the norm of its update or of its residual, against a tolerance."""

    def __init__(self, case: Case, system: System, u: Any, scratch: Any = None):
        solver = case.solver
        self.kind = "sum" if solver.norm == "l2" else "max"
        self.monitor = solver.monitor
        self.fixed = solver.iterations is not None
        self.limit = solver.iterations or solver.max_iterations
        self.every = solver.check_every
        if self.fixed and "check_every" not in solver.model_fields_set:
            self.every = self.limit
        relative = solver.relative and not self.fixed
        scale = self._norm_of_b(system, u, scratch) if relative else 1.0
        self.threshold = 0.0 if self.fixed else solver.tolerance * scale

    def norm(self, value: float) -> float:
        return math.sqrt(value) if self.kind == "sum" else value

    def met(self, norm: float) -> bool:
        return not self.fixed and (norm < self.threshold or norm == 0.0)

    @property
    def gate(self) -> float:
        """The threshold for the value of an accumulator."""
        if self.fixed:
            return -1.0
        # A product: a power of floats raises an error where it overflows.
        return self.threshold * self.threshold if self.kind == "sum" else self.threshold

    def _norm_of_b(self, system: System, u: Any, scratch: Any) -> float:
        """The norm of b with the walls' values moved into it: the residual of u = 0 inside."""
        bare = system.like(u, scratch)
        system.backend.sweep(fill, bare, system.grid.interior, 0.0)
        accumulator = system.backend.accumulator(self.kind)
        system.residual_norm(bare, accumulator)
        return self.norm(accumulator.value)


def method_name(case: Case) -> str:
    """The method that a case asks for; `auto` is the fastest one for the case."""
    if case.solver.update is not None:
        return "jacobi"
    return "cg" if case.solver.method == "auto" else case.solver.method


def make_method(case: Case, system: System, u: Any) -> Method:
    """The method of a case, ready to begin at u."""
    solver = case.solver
    if solver.update is not None:
        h = system.grid.axes[-1].spacing
        update = heat.LITERAL_UPDATES[solver.update]
        return Jacobi(system, u, update=update, arguments=(system.b, h * h))
    name = method_name(case)
    if name == "jacobi":
        return Jacobi(system, u, solver.weight)
    if name == "sor":
        return Sor(system, u, solver.omega)
    if name == "chebyshev":
        return Chebyshev(system, u)
    return ConjugateGradients(system, u)


def iterate(method: Method, criterion: Criterion, watcher: Watcher) -> Outcome:
    """Iterate to the first check that meets the criterion, or to the limit.

    The host looks at the device once in many checks, but the device stops at the right one. The
    solution is then in `method.u`. Raises Diverged when a norm is not finite or has grown.
    """
    judge = Judge(method, criterion)
    accumulator = method.system.backend.accumulator(criterion.kind)
    done, ahead = 0, 1
    if criterion.monitor == "residual" and not criterion.fixed:
        method.residual_norm(0, accumulator)
        judge.judge(0, accumulator.value)
        accumulator.clear()
    while not judge.ending and done < criterion.limit:
        began = clock.perf_counter()
        numbers = _queue(method, criterion, accumulator, done, judge.most_checks(ahead))
        for number, value in zip(numbers, method.system.backend.ledger(), strict=False):
            done = number
            judge.judge(done, value)
            if judge.ending:
                break
        watcher.progress(done, judge.norm)
        if clock.perf_counter() - began < LONGEST_QUEUE:
            ahead = min(2 * ahead, method.system.backend.lookahead)
    method.finish(done)
    ending = judge.ending or ("count" if criterion.fixed else "limit")
    return Outcome(ending, done, judge.norm, judge.floor, criterion.threshold, judge.history)


def _queue(
    method: Method, criterion: Criterion, accumulator: Accumulator, done: int, checks: int
) -> list[int]:
    """Queue the steps up to so many checks; the iterations at which the checks stand."""
    backend = method.system.backend
    if not method.queues:
        checks = 1
    numbers = []
    backend.open_gate()
    for _ in range(checks):
        following = min(done + criterion.every, criterion.limit)
        if following == done:
            break
        for number in range(done, following):
            looks = criterion.monitor == "update" and number + 1 == following
            method.step(number, accumulator if looks else None)
        done = following
        if criterion.monitor == "residual":
            method.residual_norm(done, accumulator)
        backend.check(accumulator, criterion.gate)
        numbers.append(done)
    return numbers


class Judge:
    """Decides, check by check, whether an iteration is at its end; keeps the history."""

    def __init__(self, method: Method, criterion: Criterion):
        self._method, self._criterion = method, criterion
        self.ending = ""
        self.norm = math.nan
        self.floor = math.nan
        self.history: dict[str, list[float]] = {"iteration": [], "residual": []}
        self._checks = 0
        self._first = math.nan
        self._lowest = math.inf
        self._without_fall = 0
        self._confirmed = math.inf

    def most_checks(self, wanted: int) -> int:
        """So many checks may be queued without passing one at which the host must decide."""
        if self._criterion.monitor == "update":
            return wanted
        until_floor = CHECKS_PER_FLOOR - self._checks % CHECKS_PER_FLOOR
        return min(wanted, until_floor, CHECKS_WITHOUT_FALL - self._without_fall)

    def judge(self, number: int, value: float) -> None:
        """Take the value of the check after iteration `number`."""
        criterion = self._criterion
        self.norm = criterion.norm(value)
        self.history["iteration"].append(number)
        self.history["residual"].append(self.norm)
        if self._checks == 0:
            self._first = self.norm
        self._demand_finite(number)
        self._checks += 1
        if criterion.met(self.norm) and not self._method.recurrent:
            self.ending = "tolerance"
        elif criterion.monitor == "residual" and not criterion.fixed:
            self._judge_rounding(number)
        elif criterion.met(self.norm):
            self.ending = "tolerance"

    def _judge_rounding(self, number: int) -> None:
        if self._checks % CHECKS_PER_FLOOR == 0:
            self._find_floor(number)
        if self._method.recurrent:
            if self._criterion.met(self.norm) or self.norm < 0.25 * self.floor:
                self._confirm(number)
            return
        if self.norm <= self.floor and self.norm >= self._lowest:
            self._without_fall += 1
        self._lowest = min(self._lowest, self.norm)
        if self._without_fall == CHECKS_WITHOUT_FALL:
            self.ending = "rounding"

    def _find_floor(self, number: int) -> None:
        system = self._method.system
        self.floor = system.residual_floor(self._method.solution(number), self._criterion.kind)

    def _confirm(self, number: int) -> None:
        """A recurrence says converged: look at the true residual, and go on from it."""
        self._method.confirm(number)
        accumulator = self._method.system.backend.accumulator(self._criterion.kind)
        self._method.residual_norm(number, accumulator)
        self.norm = self.history["residual"][-1] = self._criterion.norm(accumulator.value)
        if self._criterion.met(self.norm):
            self.ending = "tolerance"
            return
        self._find_floor(number)
        if self.norm <= self.floor and self.norm > 0.5 * self._confirmed:
            self.ending = "rounding"
        self._confirmed = self.norm

    def _demand_finite(self, number: int) -> None:
        if math.isfinite(self.norm) and not self.norm > GROWTH * self._first > 0.0:
            return
        what = self._criterion.monitor
        place = first_not_finite(self._method.system, self._method.solution(number))
        where = place or f"the {what} grew from {self._first:g} to {self.norm:g}"
        raise Diverged(f"diverged by iteration {number}: {where}")


def first_not_finite(system: System, u: Any) -> str:
    """Where a field is not finite, in words; empty if it is finite (asks all processes)."""
    inside = system.backend.to_host(u)[tuple(slice(1, -1) for _ in system.grid.axes)]
    bad = ~np.isfinite(inside)
    found = ""
    if bad.any():
        place = np.unravel_index(int(np.argmax(bad)), bad.shape)
        position = [
            f"{axis.name} = {axis.coordinates[index + 1]:g}"
            for axis, index in zip(system.grid.axes, place, strict=True)
        ]
        found = f"temperature is {inside[place]:g} at {', '.join(reversed(position))}"
    return next((words for words in system.halo.ranks.gather(found) if words), "")
