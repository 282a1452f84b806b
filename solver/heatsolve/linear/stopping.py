"""When an iteration is checked, and when it ends: criterion, checks, test of convergence."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from heatsolve.backends import Accumulator
from heatsolve.errors import Diverged, InputError
from heatsolve.linear.system import Method, System
from heatsolve.stencil.grid import slices
from heatsolve.stencil.language import copy, term_of

IN_RANGE = {"float64": (2.0**-400, 2.0**400), "float32": (2.0**-30, 2.0**50)}
"""The range of initial norms, by precision, whose squares do not under- or overflow in a run.

In float32 the norm of a residual falls by 2^24, and its terms are smaller by 2^12 or more; their
squares are still above 2^-149, the smallest number.
"""
FARTHEST = {"float64": (1000, 1000), "float32": (120, 50)}
"""The largest n of a factor 2^n, and the n of the range 2^-n ... 2^n of the scaled u."""
NORMAL = {"float64": 2.0**-1022, "float32": 2.0**-126}
"""The smallest normal number: smaller numbers lose digits."""
GROWTH = 1e12
"""Growth of a norm beyond its first value that counts as divergence."""
BELOW_FLOOR = 0.25
"""A residual found by recurrence is not believed below this share of its rounding level."""
FAST = 0.5
"""A residual that fell to this share since the last check is not at its rounding level."""


RIGHT_SIDE = "the right side"
"""The words for the norm to which a tolerance is relative, unless that norm is 0."""


class StoppingOptions(Protocol):
    """The keys of `[solver]` for the end of an iteration."""

    @property
    def norm(self) -> str: ...
    @property
    def monitor(self) -> str: ...
    @property
    def tolerance(self) -> float: ...
    @property
    def is_relative(self) -> bool: ...
    @property
    def iterations(self) -> int | None: ...
    @property
    def max_iterations(self) -> int: ...
    @property
    def check_every(self) -> int: ...
    @property
    def check_interval(self) -> int: ...


def kind_of(norm: str) -> str:
    """The kind of accumulator for a norm."""
    return "max" if norm == "max" else "sum"


class OutOfRange(Exception):
    """Raised where squares overflow or underflow; u and b times 2^exponent would be in range."""

    def __init__(self, exponent: int):
        super().__init__()
        self.exponent = exponent


class Criterion:
    """When an iteration ends: the norm of its update or of its residual, against a tolerance.

    A relative tolerance is a share of the norm of b, with the walls' values moved into b; where
    that norm is 0, a share of the norm at the first check. `relative_to` names the norm.
    """

    def __init__(
        self,
        options: StoppingOptions,
        system: System,
        u: Any,
        scratch: Any = None,
        total: Callable[[Any, Accumulator], None] | None = None,
        scale: float | Callable[[], float] | None = None,
        looks_first: bool = True,
        exponent: int | None = None,
    ):
        """Take the options of the user and, from the caller:

        total: adds the magnitudes of a field at all points, for "sum-abs-change".
        scale: the norm to which the tolerance is relative, or a call that finds it; None: unknown.
        scratch: an array of zeros, in which only ghosts are written.
        looks_first: whether a residual is checked before the first iteration.
        exponent: u and b have been multiplied by 2 to this power; None: their range is not checked.
        """
        self.exponent = exponent
        self.looks_first = looks_first
        self.total = total if options.norm == "sum-abs-change" else None
        self.kind = kind_of(options.norm)
        self.monitor = options.monitor
        self.fixed = options.iterations is not None
        self.limit = options.iterations or options.max_iterations
        self.every = options.check_interval if self.fixed else options.check_every
        self._system, self._tolerance = system, 0.0 if self.fixed else options.tolerance
        self._has_callers_scale = scale is not None
        relative = scale is None and not self.fixed and options.is_relative
        self.relative_to = RIGHT_SIDE if relative else ""
        self._scale: float | Callable[[], float] | None = scale
        if scale is None:
            self._scale = math.ldexp(1.0, exponent or 0)
        if relative:  # without values at walls the norm of b, which `scale` finds
            self._scale = None if system.homogeneous else self._norm_with_walls(u, scratch)

    @property
    def scale(self) -> float:
        """The norm to which the tolerance is relative; 1 for an absolute tolerance.

        It is 0 before the first check if b = 0. `first_residual` may compute it.
        """
        if self._scale is None:
            accumulator = self._system.backend.accumulator(self.kind)
            self._system.norm_of_b(accumulator)
            self._scale = self.norm(accumulator.value)
        elif callable(self._scale):
            self._scale = self._scale()
        return self._scale

    @property
    def waits(self) -> bool:
        """Whether the tolerance is relative to the norm at the first check, still unknown."""
        return bool(self.relative_to) and self.scale == 0.0

    def begin_with(self, first: float) -> None:
        """Take the norm of the first check."""
        if self.waits and first > 0.0:
            self._scale, self.relative_to = first, f"the first {self.monitor}"

    def demand_range(self, norm: float, u: Any) -> None:
        """Raise OutOfRange where squares of the first norm, or of the scale, overflow or underflow.

        The scale of an absolute norm is 1. A relative norm of 0 needs no range: u is the solution.
        """
        if self.exponent != 0 or self.total is not None:
            return
        solved = norm == 0.0 and self.relative_to and self._in_range(self.scale)
        if solved or (self._in_range(norm) and (self._in_range(self.scale) or self.scale == 0.0)):
            return
        system = self._system
        largest = system.reduce("max", system.rounding, u, system.b, *system.coefficients)
        if not self._in_range(largest) and (exponent := self._exponent_of(largest, u)):
            raise OutOfRange(exponent)

    def _in_range(self, norm: float) -> bool:
        smallest, largest = IN_RANGE[self._system.backend.precision]
        return smallest <= norm <= largest

    def _exponent_of(self, largest: float, u: Any) -> int:
        """The n with which 2^n times the largest |A| |u| + |b| is near 1, within the limits of u.

        Where |A| |u| + |b| overflows, |u| + |b| replaces it. n is 0 where scaling cannot help,
        because |u| + |b| is not a normal number, or |A| |u| + |b| is 0. Raises InputError where no
        n is enough.
        """
        system, backend = self._system, self._system.backend
        of_u, size = largest_of(system, u), largest_given(system, u)
        if largest == 0.0 or not NORMAL[backend.precision] <= size < math.inf:
            return 0
        overflows = not largest < math.inf
        farthest, of_field = FARTHEST[backend.precision]
        exponent = -math.frexp(size if overflows else largest)[1]
        if of_u > 0.0:
            place = math.frexp(of_u)[1]
            exponent = max(-of_field - place, min(of_field - place, exponent))
        exponent = max(-farthest, min(farthest, exponent))
        if not overflows and not self._in_range(math.ldexp(largest, exponent)):
            raise InputError(
                f"solver.precision: {backend.precision} does not hold both the temperatures, up to "
                f"{of_u:.1e}, and the fluxes between them, up to {largest:.1e}, with their squares;"
                ' take solver.precision = "float64", or other units'
            )
        return exponent

    @property
    def said(self) -> str:
        """The words of a message for a norm over `scale`."""
        relative = f" relative to {self.relative_to}" if self.relative_to else ""
        return f"norm of the {self.monitor} {{:.3e}}{relative}"

    @property
    def threshold(self) -> float:
        """The norm below which an iteration ends."""
        return self._tolerance * self.scale

    def first_residual(self, method: Method) -> float:
        """The value of the residual's accumulator before the first step."""
        norms = [method.accumulator(self.kind)]
        if self._scale is None:
            norms.append(self._system.backend.accumulator(self.kind))
        value, *of_b = method.first_values(*norms)
        if of_b:
            self._scale = self.norm(of_b[0])
        return value

    def find(self, method: Method, steps: int, into: Accumulator) -> None:
        """Add the terms of the checked norm after `steps` steps, where a step does not add them."""
        if self.total is not None:
            self.total(method.solution(steps), into)
        else:
            method.residual_norm(steps, into)

    def norm(self, value: float, before: float = math.nan) -> float:
        """The norm of an accumulator's value; `before`: its value at the last check."""
        if self.total is not None:
            scale = before if before != 0.0 else value
            return abs(value - before) / scale if value != before else 0.0
        return math.sqrt(value) if self.kind == "sum" else value

    def check_after(self, number: int) -> int:
        """The iteration of the first check after iteration `number`."""
        return min(number - number % self.every + self.every, self.limit)

    def checks(self, number: int) -> bool:
        """Whether there is a check after iteration `number`."""
        return number % self.every == 0 or number == self.limit

    def met(self, norm: float) -> bool:
        return not self.fixed and (norm < self.threshold or norm == 0.0)

    def tells_nothing(self, norm: float, u: Any) -> bool:
        """Whether the norm of a residual is no smaller than the norm for u = 0 inside.

        Where the caller has given the scale, a right side may be rounding itself.
        """
        if self._has_callers_scale or self.relative_to not in ("", RIGHT_SIDE):
            return False
        of_b = self.scale if self.relative_to else self._norm_with_walls(u, None)()
        return norm >= of_b > 0.0

    def gate(self, floor: float = 0.0) -> float:
        """The value of an accumulator up to which a device stops, and the host decides: the value
        at the tolerance, or at the norm `floor` if that is higher."""
        if self.fixed or self.total is not None or self.waits:
            return -1.0
        # A product: a power of floats raises an error where it overflows.
        limit = max(self.threshold, floor)
        return limit * limit if self.kind == "sum" else math.nextafter(limit, 0.0)

    def _norm_with_walls(self, u: Any, scratch: Any) -> Callable[[], float]:
        """A call that waits for the norm of b with the walls' values moved into it: the residual's
        for u = 0 inside."""
        system, grid, backend = self._system, self._system.grid, self._system.backend
        bare = backend.zeros(grid.shape) if scratch is None else scratch
        for number, axis in enumerate(grid.axes):
            for side, at_wall in enumerate(axis.at_walls):
                if at_wall:  # other ghosts are 0, as the unknowns are
                    backend.sweep(copy, bare, grid.ghost(number, side), u)
        accumulator = backend.accumulator(self.kind)
        args = bare, system.b, *system.coefficients
        backend.sweep(term_of(system.residual, self.kind), accumulator, grid.interior, *args)
        read = backend.posted_values([accumulator])
        return lambda: self.norm(*read())


def largest_of(system: System, u: Any) -> float:
    """The largest magnitude of u and of its walls' values, NaN where one is not finite."""
    return system.backend.reduce("max", copy, system.grid.everything, u)


def largest_given(system: System, u: Any) -> float:
    """The sum of the largest magnitudes of u and of b."""
    of_b = system.backend.reduce("max", copy, system.grid.interior, system.b)
    return largest_of(system, u) + of_b


def demand_normal(system: System, u: Any) -> None:
    """Raise InputError where u and b are not 0, but too small for all digits of their type."""
    largest, precision = largest_given(system, u), system.backend.precision
    if 0.0 < largest < NORMAL[precision]:
        raise InputError(_too_small("temperatures and sources", largest, precision))


def lost_digits(system: System, u: Any, largest: float) -> str:
    """The warning that u lost digits when it was divided by a factor 2^n; "" if it did not.

    `largest`: the largest magnitude that u should have. Raises InputError where u has overflowed.
    """
    precision = system.backend.precision
    if not largest_of(system, u) < math.inf:
        most = np.finfo(system.backend.dtype).max
        raise InputError(
            f"solver.precision: {precision} holds no temperatures beyond {most:.1e}, and the "
            "solution exceeds it; take other units"
        )
    small = 0.0 < largest < NORMAL[precision]
    return _too_small("temperatures", largest, precision) if small else ""


def _too_small(names: str, largest: float, precision: str) -> str:
    return (
        f"solver.precision: {names} are {largest:.1e} at most, and below {NORMAL[precision]:.1e} "
        f"{precision} does not have all of its digits; take other units"
    )


# ---- the test, check by check --------------------------------------------------------------------


class ResidualCheck(NamedTuple):
    """A check after iteration `number`, made in a pass from iteration `start` to `stop`."""

    number: int
    start: int
    stop: int

    def go_back(self, method: Method) -> None:
        """Bring the method from the end of the pass to the check."""
        if self.number < self.stop:
            method.march(self.start, self.number)


@dataclass
class IterationState:
    """The state of a convergence test, as checkpoints hold it.

    `norm`, `before` and `first` are the norms at the last check, at the check before and at the
    first check; `lowest` is the lowest norm. `floor` is the rounding level of the residual, if it
    was needed. For a method that updates the residual by recurrence, `confirmed` is the norm of the
    last true residual that it went on from, and `recurred` the norm of its own residual at the end,
    where `norm` is the true one. `value` is the accumulator's value at the last check. `ending`:
    how the iteration ended; "" while it goes on.
    """

    norm: float = math.nan
    floor: float = math.nan
    checks: int = 0
    first: float = math.nan
    before: float = math.nan
    lowest: float = math.inf
    without_fall: int = 0
    confirmed: float = math.inf
    recurred: float = math.nan
    value: float = math.nan
    ending: str = ""


class ConvergenceTest:
    """Decides, check by check, whether an iteration is at its end; keeps the history."""

    def __init__(self, method: Method, criterion: Criterion):
        self._method, self._criterion = method, criterion
        self.state = IterationState()
        self.history: dict[str, list[float]] = {"iteration": [], "residual": []}

    def begin(self) -> None:
        """Examine the initial residual, where a residual is monitored."""
        if self._criterion.total is not None:
            accumulator = self._method.accumulator(self._criterion.kind)
            self._criterion.find(self._method, 0, accumulator)
            self.state.value = accumulator.take()
        criterion = self._criterion
        if criterion.monitor == "residual" and not criterion.fixed and criterion.looks_first:
            self.examine(ResidualCheck(0, 0, 0), self._criterion.first_residual(self._method))

    def recall(self, state: IterationState, history: dict[str, list[float]]) -> None:
        """Go on from an earlier state; its end counts only if it still meets the criterion."""
        self.state = state
        self.history = history
        self._criterion.begin_with(state.first)
        if self._criterion.fixed:  # an exact number of iterations has no other end
            state.ending, state.without_fall = "", 0
        elif state.ending == "tolerance" and not self._criterion.met(state.norm):
            state.ending = ""
            if not math.isnan(state.recurred):  # go on as if there had been no end
                state.norm = history["residual"][-1] = state.recurred
                if self._criterion.met(state.norm):
                    self._confirm(int(history["iteration"][-1]))
        elif state.ending == "lost" and self._criterion.met(state.norm):
            state.ending = "tolerance"

    def most_checks(self, wanted: int) -> int:
        """The number of checks that may be queued before a check at which the host must decide."""
        if self._criterion.total is not None or self._criterion.waits:
            return 1
        if self._criterion.monitor == "update":
            return wanted
        state = self.state
        method = self._method
        until_floor = method.checks_per_floor - state.checks % method.checks_per_floor
        if math.isnan(state.floor):  # no check counts as at rounding level until the floor is known
            return min(wanted, until_floor)
        if method.recurrent:  # the gate closes at the rounding level
            return min(wanted, until_floor)
        return min(wanted, until_floor, method.checks_without_fall - state.without_fall)

    def checks_to_come(self) -> float:
        """The checks to the tolerance if each lowers the norm as the last one did.

        It is infinity where that is unknown: before two checks, behind a norm that did not fall,
        and for methods that leave smooth errors, whose norms fall unevenly.
        """
        last, smooth = self.history["residual"][-2:], self._method.reduces_smooth_errors
        if not smooth or len(last) < 2 or self._criterion.fixed:
            return math.inf
        (before, norm), limit = last, self._criterion.threshold  # which a device may have to find
        if not 0.0 < limit < norm < FAST * before < math.inf:
            return math.inf
        falls = math.log(norm) - math.log(before), math.log(limit) - math.log(norm)
        return max(1, math.ceil(falls[1] / falls[0]))

    def ends_without_floor(self, count: int) -> bool:
        """Whether no rounding level is due at the last of the next `count` checks: the host finds
        it from the solution of this check, which following work may change."""
        method = self._method
        return not (method.recurrent and (self.state.checks + count) % method.checks_per_floor == 0)

    @property
    def gate(self) -> float:
        """The value of a check up to which the host must decide: the tolerance or, for a residual
        by recurrence, a share of the rounding level below which the residual is in doubt."""
        doubt = BELOW_FLOOR * self.state.floor if self._method.recurrent else 0.0
        return self._criterion.gate(doubt if doubt > 0.0 else 0.0)

    def pass_over(self, checks: Sequence[ResidualCheck], values: Sequence[float]) -> int:
        """Take the values of all checks before one that ends the iteration; return their number.

        This is `examine` for many checks of changes of u at once: a device makes more checks in a
        second than the host can examine one by one.
        """
        criterion, state = self._criterion, self.state
        if state.checks == 0 or criterion.monitor != "update" or criterion.total is not None:
            return 0
        norms = np.sqrt(values) if criterion.kind == "sum" else np.array(values, float)
        goes_on = norms <= min(self._most or math.inf, sys.float_info.max)
        if not criterion.fixed:
            goes_on &= (norms >= criterion.threshold) & (norms != 0.0)
        count = norms.size if goes_on.all() else int(np.argmin(goes_on))
        if count > 0:
            state.checks += count
            state.norm, state.value = float(norms[count - 1]), values[count - 1]
            self.history["iteration"] += [check.number for check in checks[:count]]
            self.history["residual"] += norms[:count].tolist()
        return count

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
        """End at the initial u only if it is at rounding level: the tolerance is not enough."""
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
            if self._criterion.met(state.norm) or state.norm < BELOW_FLOOR * state.floor:
                self._confirm(number)
            return
        falls = state.norm < method.fall * state.lowest
        if state.norm <= state.floor and not falls:
            state.without_fall += 1
        state.lowest = min(state.lowest, state.norm)
        if state.without_fall == method.checks_without_fall:
            self._end_at_rounding(number)

    def _end_at_rounding(self, number: int) -> None:
        """End where the residual falls no more: u is not the solution if smooth errors remain."""
        method, criterion, norm = self._method, self._criterion, self.state.norm
        smooth = method.reduces_smooth_errors
        lost = not smooth and criterion.tells_nothing(norm, method.solution(number))
        self.state.ending = "lost" if lost else "rounding"

    def _find_floor(self, number: int) -> None:
        method, kind = self._method, self._criterion.kind
        self.state.floor = method.system.residual_floor(method.solution(number), kind)

    def _confirm(self, number: int) -> None:
        """The recurrence has converged: check the true residual, and go on from it if need be."""
        state = self.state
        state.recurred = state.norm
        value = self._method.confirm(self._criterion.kind)
        state.norm = self.history["residual"][-1] = self._criterion.norm(value)
        if self._criterion.met(state.norm):
            state.ending = "tolerance"
            return
        self._method.replace_residual(number)
        self._find_floor(number)
        if state.norm <= state.floor and state.norm > 0.5 * state.confirmed:
            self._end_at_rounding(number)
        state.confirmed = state.norm

    @property
    def _most(self) -> float:
        """The largest norm that is no divergence; 0 if no norm is. A first norm may be rounding."""
        first = self.state.first
        return GROWTH * max(first, self._criterion.threshold) if first > 0.0 else 0.0

    def _demand_finite(self, check: ResidualCheck) -> None:
        norm, first = self.state.norm, self.state.first
        if math.isfinite(norm) and not norm > self._most > 0.0:
            return
        what, number = self._criterion.monitor, check.number
        check.go_back(self._method)
        place = first_not_finite(self._method.system, self._method.solution(number))
        where = place or f"the {what} grew from {first:g} to {norm:g}"
        if not place and not math.isfinite(first):
            precision = self._method.system.backend.precision
            where = f"{precision} does not hold the norm of the {what}; take other units"
        raise Diverged(f"diverged by iteration {number}: {where}")


def first_not_finite(placed: Any, u: Any, name: str = "temperature") -> str:
    """Where a field is not finite, in words; empty if it is finite (asks all processes).

    `placed`: a system or a problem, with the grid, the backend and the halo of the field. A place
    at a wall, or among the values of other processes, counts only if no process has one inside.
    """
    grid, host = placed.grid, placed.backend.to_host(u)
    sayings = []
    for regions in ((grid.interior,), grid.ghosts):
        bad = np.zeros(grid.shape, bool)
        for region in regions:
            here = slices(region)
            bad[here] = ~np.isfinite(host[here])
        words = ""
        if bad.any():
            index = np.unravel_index(int(np.argmax(bad)), bad.shape)
            place = grid.place(index, grid.shape)
            words = f"{name.replace('_', ' ')} is {host[index]:g} at {place}"
        sayings.append(words)
    inside, beside = zip(*placed.halo.ranks.gather(sayings), strict=True)
    return next(filter(None, (*inside, *beside)), "")


def largest_place(placed: Any, fields: Mapping[str, Any]) -> str:
    """Where the largest of all fields has its largest magnitude, in words (asks all processes)."""
    grid = placed.grid
    result = (-1.0, "")
    for name, array in fields.items():
        magnitudes = np.abs(placed.backend.take(array, grid.interior))
        index = np.unravel_index(int(np.argmax(magnitudes)), magnitudes.shape)
        at = tuple(int(n) + low for n, (low, _) in zip(index, grid.interior, strict=True))
        words = f"{name.replace('_', ' ')} is {magnitudes[index]:.3g} in magnitude"
        words += f" at {grid.place(at, grid.shape)}"
        result = max(result, (float(magnitudes[index]), words))
    return max(placed.halo.ranks.gather(result))[1]
