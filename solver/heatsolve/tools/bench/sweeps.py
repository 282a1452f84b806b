"""Benchmarks of sweeps, by generic kernels and in a run's own ways, and of linear solvers."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from heatsolve.backends import Accumulator, Backend
from heatsolve.backends.registry import machine_name, make
from heatsolve.case.load import parse
from heatsolve.errors import HeatsolveError, InputError
from heatsolve.linear.iterate import Outcome, iterate
from heatsolve.linear.stopping import Criterion
from heatsolve.linear.system import Method
from heatsolve.models.heat.conduction import Conduction
from heatsolve.models.heat.solver import make_method
from heatsolve.report import Report
from heatsolve.stencil.grid import WALLS
from heatsolve.stencil.language import copy, fill
from heatsolve.tools.bench.measure import (
    Bench,
    Repeat,
    Row,
    in_turn,
    inner_points,
    medians_of,
    noise_inside,
    repeat_of,
    seconds_of,
)

TOLERANCE = 1e-10
"""Of the l2 norm of b - A u, relative to that of b."""
MOST_ITERATIONS = 100

Measure = Callable[[str, Bench, Sequence[int]], Iterator[Row]]
COPIED = 1 << 24
"""Doubles of the copy that measures the bandwidth of a run's machine, beyond the caches."""
MOST_SWEEPS = 31
"""Sweeps that a backend is offered for one pass."""
LAUNCHES = 100
"""Sweeps that a device may play back from one graph."""
SOURCE_SWEEPS = {False: 120, True: 300}
"""Sweeps of one run of Jacobi's iteration, on a host and on a device, where a run begins with
questions of its host; even numbers, which leave u where it was. After twice as many an H200 lowers
its clock."""


def jacobi2d(i: Any, j: Any, u: Any) -> Any:
    """The four-point mean: 16 bytes a point in double precision."""
    return 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1])


def jacobi3d(i: Any, j: Any, k: Any, u: Any, sixth: Any) -> Any:
    """The six-point mean: 16 bytes a point in double precision."""
    return sixth * (
        u[i - 1, j, k] + u[i + 1, j, k] + u[i, j - 1, k]
        + u[i, j + 1, k] + u[i, j, k - 1] + u[i, j, k + 1]
    )  # fmt: skip


MEANS: dict[int, tuple[Any, tuple[Any, ...]]] = {2: (jacobi2d, ()), 3: (jacobi3d, (1.0 / 6.0,))}
"""By dimension, the point function and what it takes after u."""


def fields(machine: Backend, shape: Sequence[int]) -> tuple[Any, Any]:
    """Two arrays with noise in the first: zeros would be kinder than real data."""
    u, v = machine.zeros(shape), machine.zeros(shape)
    line = np.random.default_rng(1).standard_normal((*shape[:-1], 1))
    machine.sweep(copy, u, tuple((0, extent) for extent in shape), machine.to_device(line))
    return u, v


def seconds_of_copy(machine: Backend, shape: Sequence[int]) -> float:
    """By the machine's own copy or by a sweep that copies, whichever is faster."""
    u, v = fields(machine, shape)
    region = tuple((0, extent) for extent in shape)
    swept = seconds_of(lambda: machine.sweep(copy, v, region, u), machine)
    return min(swept, seconds_of(lambda: machine.copy(v, u), machine))


def copy_bandwidth(attributes: Mapping[str, Any]) -> float | None:
    """Bytes that the backend of a run copies a second, read plus written; None on another machine.

    The attributes are those of the run's file.
    """
    if attributes.get("ranks", 1) != 1:
        return None
    try:
        backend = make(str(attributes.get("backend")))
    except HeatsolveError:
        return None
    if machine_name(backend) != attributes.get("machine"):
        return None
    return 16 * COPIED / seconds_of_copy(backend, (COPIED,))


def one_sweep(machine: Backend, shape: Sequence[int]) -> Callable[[], None]:
    """The work of one sweep of the mean of the neighbours."""
    u, v = fields(machine, shape)
    region = tuple((1, extent - 1) for extent in shape)
    point, given = MEANS[len(shape)]
    return lambda: machine.sweep(point, v, region, u, *given)


def sweep(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """One sweep, by the generic kernel."""
    seconds = seconds_of(one_sweep(bench.machine, shape), bench.machine)
    yield bench.sweep_row(name, shape, seconds, inner_points(shape))


def launch(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """A sweep so small that its time is that of telling the machine to do it, many at once."""
    machine = bench.machine
    one = one_sweep(machine, shape)

    def many() -> None:
        for _ in range(LAUNCHES):
            one()

    seconds = seconds_of(machine.replayed(many), machine) / LAUNCHES
    yield Row(name, machine.name, tuple(shape), machine.precision, seconds)


def blocked(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """The same sweep, as many in one pass through memory as pay; nothing where only one does."""
    machine = bench.machine
    u, v = fields(machine, shape)
    region = tuple((1, extent - 1) for extent in shape)
    point, given = MEANS[len(shape)]
    walls = (False,) * len(shape)
    unlooked: list[Accumulator | None] = [None] * MOST_SWEEPS
    most = machine.most_fused(point, u, region, [given] * MOST_SWEEPS, walls, unlooked)
    depth = most - (most + 1) % 2  # an odd number, as the method of Jacobi makes them
    if depth < 3:
        return
    stages, changes = [given] * depth, unlooked[:depth]

    def one_pass() -> None:
        machine.fused_sweeps(point, v, u, region, stages, walls, changes, region)

    seconds = seconds_of(one_pass, machine) / depth
    note = f"{depth} sweeps a pass"
    yield bench.sweep_row(name, shape, seconds, inner_points(shape), note=note)


def source(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """Jacobi's iteration as a run makes it: a source term, and the norm of every update.

    It reads u and the source and writes u: 24 bytes a point in double precision.
    """
    sweeps = SOURCE_SWEEPS[bench.machine.on_device]
    settings = {
        "update": "laplace", "iterations": sweeps, "monitor": "update", "norm": "max",
        "check_every": 1,
    }  # fmt: skip
    problem = Poisson(bench.machine, shape, settings)
    method = problem.method()
    seconds = seconds_of(lambda: problem.iterate(method), bench.machine) / sweeps
    yield bench.sweep_row(name, shape, seconds, inner_points(shape), arrays=3)


def other_row(
    name: str, bench: Bench, shape: Sequence[int], other: Repeat, backend: str
) -> Row:  # fmt: skip
    """The row of another way to make one sweep."""
    own = repeat_of(one_sweep(bench.machine, shape), bench.machine)
    (seconds,), speedup = in_turn(own, other)
    row = bench.sweep_row(name, shape, seconds, inner_points(shape), backend=backend)
    return replace(row, rival_of=f"jacobi{len(shape)}d", speedup=speedup)


def numpy_backend(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """The same sweep on the numpy backend."""
    machine = make("numpy", bench.machine.precision)
    yield other_row(name, bench, shape, repeat_of(one_sweep(machine, shape), machine), "numpy")


def slices(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """The same sweep with slices of NumPy arrays, or of CuPy arrays on a GPU that has CuPy."""
    try:
        machine = make("cupy" if bench.machine.on_device else "numpy", bench.machine.precision)
    except InputError:
        return
    u, v = fields(machine, shape)

    def plane() -> None:
        v[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])

    def space() -> None:
        v[1:-1, 1:-1, 1:-1] = (1.0 / 6.0) * (
            u[:-2, 1:-1, 1:-1] + u[2:, 1:-1, 1:-1] + u[1:-1, :-2, 1:-1]
            + u[1:-1, 2:, 1:-1] + u[1:-1, 1:-1, :-2] + u[1:-1, 1:-1, 2:]
        )  # fmt: skip

    other = repeat_of({2: plane, 3: space}[len(shape)], machine)
    yield other_row(name, bench, shape, other, f"{machine.name} slices")


# ---- linear solvers: Poisson's equation with white noise on its right side ------------------


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
        criterion = Criterion(self.case.solver, self.system, self.u)
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
