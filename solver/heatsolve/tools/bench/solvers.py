"""Benchmarks of linear solvers: Poisson's equation with white noise on its right side."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from heatsolve.backends import Backend
from heatsolve.case.load import parse
from heatsolve.linear import Method
from heatsolve.linear.iterate import Criterion, Outcome, iterate, make_method
from heatsolve.models.heat.conduction import Conduction
from heatsolve.report import Report
from heatsolve.stencil.grid import WALLS
from heatsolve.stencil.language import fill
from heatsolve.tools.bench.measure import Bench, Row, medians_of
from heatsolve.tools.bench.noise import noise_inside

TOLERANCE = 1e-10
"""Of the l2 norm of b - A u, relative to that of b."""
MOST_ITERATIONS = 100

Measure = Callable[[str, Bench, Sequence[int]], Iterator[Row]]


class Poisson:
    """-div grad u = noise on nodes 1 apart, from u = 0; 0 on the walls, or no walls at all.

    `shape` is that of the arrays, but has no ghosts of a periodic grid; `settings` are keys of
    `[solver]`.
    """

    def __init__(
        self, machine: Backend, shape: Sequence[int], settings: Mapping[str, Any],
        periodic: bool = False,
    ):  # fmt: skip
        self.case = parse(case_text(shape, settings, periodic), "bench")
        self.problem = Conduction(self.case, machine)
        self.u = self.problem.temperature
        b = noise_inside(self.problem.grid.shape)
        self.system = self.problem.system(machine.to_device(b))
        if self.system.singular:
            self.system.remove_mean(self.system.b)

    @property
    def unknowns(self) -> int:
        return self.problem.whole.all_unknowns

    def method(self) -> Method:
        return make_method(self.case, self.system, self.u)

    def iterate(self, method: Method) -> Outcome:
        """Iterate as a run does, from what stands in u."""
        criterion = Criterion(self.case, self.system, self.u)
        return iterate(method, criterion, Report(quiet=True, mute=True))

    def begin_anew(self) -> None:
        """u = 0, which is also the value of its walls."""
        grid = self.system.grid
        self.system.backend.sweep(fill, self.u, grid.everything, 0.0)


def case_text(shape: Sequence[int], settings: Mapping[str, Any], periodic: bool = False) -> str:
    """The case of so many nodes, slowest axis first."""
    axes = list("xyz"[: len(shape)])
    nodes = list(reversed(shape))
    upper = nodes if periodic else [n - 1 for n in nodes]
    lines = ["[grid]", f"nodes = {nodes}", f"upper = {upper}", "[solver]"]
    # What JSON writes of numbers and strings is TOML, too.
    lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    if periodic:
        lines.insert(1, f"periodic = {json.dumps(axes)}")
    else:
        walls = [wall for axis in axes for wall in WALLS[axis]]
        lines += [f"[boundary.{wall}]\ntemperature.value = 0" for wall in walls]
    return "\n".join(lines)


class Solution:
    """A solver at work: `repeat` solves anew and returns the seconds of the set-up and after it."""

    def __init__(
        self, machine: Backend, shape: Sequence[int], settings: Mapping[str, Any],
        periodic: bool = False,
    ):  # fmt: skip
        until: dict[str, Any] = {}
        if "iterations" not in settings:
            until = {"tolerance": TOLERANCE, "relative": True, "max_iterations": MOST_ITERATIONS}
        self.problem = Poisson(machine, shape, {**settings, **until}, periodic)
        self.outcome: Outcome | None = None

    def repeat(self) -> tuple[float, float]:
        problem, machine = self.problem, self.problem.system.backend
        problem.begin_anew()
        seconds = machine.stopwatch()
        method = problem.method()
        setup = seconds()
        seconds = machine.stopwatch()
        self.outcome = problem.iterate(method)
        return setup, seconds()


def solving(periodic: bool = False, **settings: Any) -> Measure:
    """The benchmark of a method of `[solver]`, with its other keys."""

    def measure(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
        solution = Solution(bench.machine, shape, settings, periodic)
        setup, seconds = medians_of(solution.repeat)
        outcome = solution.outcome
        assert outcome is not None
        dtype = settings.get("precision", bench.machine.precision)
        if not (outcome.converged or "iterations" in settings):
            note = f"NOT solved in {outcome.count} iterations"
            yield Row(name, bench.machine.name, tuple(shape), dtype, seconds, note=note)
            return
        plural = "" if outcome.count == 1 else "s"
        yield bench.solver_row(
            name, shape, setup, seconds, solution.problem.unknowns, dtype=dtype,
            note=f"{outcome.count} iteration{plural}",
        )  # fmt: skip

    return measure
