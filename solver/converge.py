"""The loop to convergence: when it ends, and what is said of it."""

import math
import time as clock
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from heatsolve import heat
from heatsolve.backends import Accumulator
from heatsolve.case import Case
from heatsolve.errors import Diverged
from heatsolve.keeper import Keeper, Questions, State
from heatsolve.linear import Method, System
from heatsolve.linear.cg import ConjugateGradients
from heatsolve.linear.chebyshev import Chebyshev
from heatsolve.linear.jacobi import Jacobi
from heatsolve.linear.mgcg import MultigridCG
from heatsolve.linear.multigrid import Multigrid
from heatsolve.linear.sor import Sor
from heatsolve.points import fill

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

    def check_after(self, number: int) -> int:
        """The iteration of the first check after iteration `number`."""
        return min(number - number % self.every + self.every, self.limit)

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
    """The method that a case asks for; `auto` is the fastest one for the case.

    A literal update is Jacobi's. Multigrid alone is enough where the conductivity is constant.
    """
    if case.solver.update is not None:
        return "jacobi"
    if case.solver.method != "auto":
        return case.solver.method
    return "mgcg" if case.model.conductivity.names else "multigrid"


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
    if name in ("multigrid", "mgcg"):
        make = Multigrid if name == "multigrid" else MultigridCG
        return make(system, u, solver.cycle, solver.smoother)
    return ConjugateGradients(system, u)


def iterate(
    method: Method,
    criterion: Criterion,
    watcher: Watcher,
    questions: Questions | None = None,
    resumed: State | None = None,
) -> Outcome:
    """Iterate to the first check that meets the criterion, or to the limit.

    The host looks at the device once in many checks, but the device stops at the right one. The
    solution is then in `method.u`. `questions` may save it or stop it on the way; from a `resumed`
    state it goes on as if it had not stopped. Raises Diverged when a norm is not finite or has
    grown.
    """
    backend = method.system.backend
    judge = Judge(method, criterion)
    accumulator = backend.accumulator(criterion.kind)
    questions = questions or Keeper()
    done, ahead = 0, 1

    def capture() -> State:
        record = {"unit": "iterations", "judge": asdict(judge.course), "method": method.scalars}
        return State(done, record, judge.history, method.memory(done))

    if resumed is not None:
        done = resumed.number
        method.recall(resumed.record["method"])
        judge.recall(Course(**resumed.record["judge"]), resumed.lists)
    elif criterion.monitor == "residual" and not criterion.fixed:
        method.residual_norm(0, accumulator)
        judge.judge(0, accumulator.value)
        accumulator.clear()
    questions.begin(done, resumed is not None and resumed.finished)
    while not judge.ending and done < criterion.limit:
        if done >= questions.next:
            questions.attend(done, capture)
        until = min(criterion.limit, questions.next)
        if criterion.check_after(done) > until:  # a question comes before the next check
            for number in range(done, until):
                method.step(number, None)
            backend.sync()
            done = until
            continue
        began = clock.perf_counter()
        numbers = _queue(method, criterion, accumulator, done, until, judge.most_checks(ahead))
        for number, value in zip(numbers, backend.ledger(), strict=False):
            done = number
            judge.judge(done, value)
            if judge.ending:
                break
        watcher.progress(done, judge.norm)
        if clock.perf_counter() - began < LONGEST_QUEUE:
            ahead = min(2 * ahead, backend.lookahead)
    questions.conclude(capture)
    method.finish(done)
    ending = judge.ending or ("count" if criterion.fixed else "limit")
    course = judge.course
    return Outcome(ending, done, course.norm, course.floor, criterion.threshold, judge.history)


def _queue(
    method: Method,
    criterion: Criterion,
    accumulator: Accumulator,
    done: int,
    until: int,
    checks: int,
) -> list[int]:
    """Queue the steps of so many checks up to `until`; the iterations at which the checks stand."""
    backend = method.system.backend
    if not method.queues:
        checks = 1
    numbers = []
    backend.open_gate()
    for _ in range(checks):
        following = criterion.check_after(done)
        if following == done or following > until:
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


@dataclass
class Course:
    """How an iteration went so far: what the judge of its checks remembers.

    `floor` is the rounding level of the residual, `first` and `lowest` are norms; `confirmed` is
    the last true residual of a method that updates it by recurrence.
    """

    norm: float = math.nan
    floor: float = math.nan
    checks: int = 0
    first: float = math.nan
    lowest: float = math.inf
    without_fall: int = 0
    confirmed: float = math.inf
    ending: str = ""


class Judge:
    """Decides, check by check, whether an iteration is at its end; keeps the history."""

    def __init__(self, method: Method, criterion: Criterion):
        self._method, self._criterion = method, criterion
        self.course = Course()
        self.history: dict[str, list[float]] = {"iteration": [], "residual": []}

    @property
    def ending(self) -> str:
        """How the iteration ended; empty while it goes on."""
        return self.course.ending

    @property
    def norm(self) -> float:
        """The norm at the last check."""
        return self.course.norm

    def recall(self, course: Course, history: dict[str, list[float]]) -> None:
        """Go on from an earlier course; an end holds only if the criterion still says so."""
        self.course = course
        self.history = history
        if course.ending == "tolerance" and not self._criterion.met(course.norm):
            course.ending = ""

    def most_checks(self, wanted: int) -> int:
        """So many checks may be queued without passing one at which the host must decide."""
        if self._criterion.monitor == "update":
            return wanted
        course = self.course
        method = self._method
        until_floor = method.checks_per_floor - course.checks % method.checks_per_floor
        return min(wanted, until_floor, method.checks_without_fall - course.without_fall)

    def judge(self, number: int, value: float) -> None:
        """Take the value of the check after iteration `number`."""
        criterion, course = self._criterion, self.course
        course.norm = criterion.norm(value)
        self.history["iteration"].append(number)
        self.history["residual"].append(course.norm)
        if course.checks == 0:
            course.first = course.norm
        self._demand_finite(number)
        course.checks += 1
        if criterion.met(course.norm) and not self._method.recurrent:
            course.ending = "tolerance"
        elif criterion.monitor == "residual" and not criterion.fixed:
            self._judge_rounding(number)
        elif criterion.met(course.norm):
            course.ending = "tolerance"

    def _judge_rounding(self, number: int) -> None:
        course = self.course
        if course.checks % self._method.checks_per_floor == 0:
            self._find_floor(number)
        if self._method.recurrent:
            if self._criterion.met(course.norm) or course.norm < 0.25 * course.floor:
                self._confirm(number)
            return
        if course.norm <= course.floor and course.norm >= course.lowest:
            course.without_fall += 1
        course.lowest = min(course.lowest, course.norm)
        if course.without_fall == self._method.checks_without_fall:
            course.ending = "rounding"

    def _find_floor(self, number: int) -> None:
        method, kind = self._method, self._criterion.kind
        self.course.floor = method.system.residual_floor(method.solution(number), kind)

    def _confirm(self, number: int) -> None:
        """A recurrence says converged: look at the true residual, and go on from it."""
        course, method = self.course, self._method
        method.confirm(number)
        accumulator = method.system.backend.accumulator(self._criterion.kind)
        method.residual_norm(number, accumulator)
        course.norm = self.history["residual"][-1] = self._criterion.norm(accumulator.value)
        if self._criterion.met(course.norm):
            course.ending = "tolerance"
            return
        self._find_floor(number)
        if course.norm <= course.floor and course.norm > 0.5 * course.confirmed:
            course.ending = "rounding"
        course.confirmed = course.norm

    def _demand_finite(self, number: int) -> None:
        norm, first = self.course.norm, self.course.first
        if math.isfinite(norm) and not norm > GROWTH * first > 0.0:
            return
        what = self._criterion.monitor
        place = first_not_finite(self._method.system, self._method.solution(number))
        where = place or f"the {what} grew from {first:g} to {norm:g}"
        raise Diverged(f"diverged by iteration {number}: {where}")


def first_not_finite(system: System, u: Any) -> str:
    """Where a field is not finite, in words; empty if it is finite (asks all processes)."""
    own = system.grid.interior
    inside = system.backend.to_host(u)[tuple(slice(*pair) for pair in own)]
    bad = ~np.isfinite(inside)
    found = ""
    if bad.any():
        place = np.unravel_index(int(np.argmax(bad)), bad.shape)
        position = [
            f"{axis.name} = {axis.coordinates[first + index]:g}"
            for axis, (first, _), index in zip(system.grid.axes, own, place, strict=True)
        ]
        found = f"temperature is {inside[place]:g} at {', '.join(reversed(position))}"
    return next((words for words in system.halo.ranks.gather(found) if words), "")
