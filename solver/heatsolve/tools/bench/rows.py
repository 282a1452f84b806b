"""The rows of `heatsolve bench`: sweeps, linear solvers and steps of flow."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from heatsolve.backends import Accumulator, Backend
from heatsolve.backends.registry import make
from heatsolve.case.load import parse
from heatsolve.errors import InputError
from heatsolve.linear.iterate import Outcome, iterate
from heatsolve.linear.stopping import Criterion
from heatsolve.linear.system import Method
from heatsolve.models.base import Model, Substep
from heatsolve.models.flow.collocated import Collocated
from heatsolve.models.flow.staggered import Staggered
from heatsolve.models.heat.conduction import Conduction
from heatsolve.models.heat.solver import make_method
from heatsolve.report import Report
from heatsolve.stencil.grid import WALLS
from heatsolve.stencil.language import fill
from heatsolve.time.step_size import step_length
from heatsolve.tools.bench.measure import (
    Bench,
    Repeat,
    Row,
    inner_points,
    medians_of,
    noise_and_zeros,
    noise_inside,
    repeat_of,
    seconds_of,
)

TOLERANCE = 1e-10
"""Of the l2 norm of b - A u, relative to the norm of b."""
MOST_ITERATIONS = 100

Measure = Callable[[str, Bench, Sequence[int]], Iterator[Row]]
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
"""By dimension, the point function and its arguments after u."""


def one_sweep(machine: Backend, shape: Sequence[int]) -> Callable[[], None]:
    """The work of one sweep of the mean of the neighbours."""
    u, v = noise_and_zeros(machine, shape)
    region = tuple((1, extent - 1) for extent in shape)
    point, args = MEANS[len(shape)]
    return lambda: machine.sweep(point, v, region, u, *args)


def sweep(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """One sweep, by the generic kernel."""
    seconds = seconds_of(one_sweep(bench.machine, shape), bench.machine)
    yield bench.row(name, shape, seconds, inner_points(shape), arrays=2)


def launch(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """A sweep so small that only its launch takes time, many at once."""
    machine = bench.machine
    one = one_sweep(machine, shape)

    def many() -> None:
        for _ in range(LAUNCHES):
            one()

    seconds = seconds_of(machine.replayed(many), machine) / LAUNCHES
    yield bench.row(name, shape, seconds)


def blocked(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """The same sweep, as many in one pass through memory as pay; nothing where only one does."""
    machine = bench.machine
    u, v = noise_and_zeros(machine, shape)
    region = tuple((1, extent - 1) for extent in shape)
    point, args = MEANS[len(shape)]
    walls = (False,) * len(shape)
    unlooked: list[Accumulator | None] = [None] * MOST_SWEEPS
    most = machine.most_fused(point, u, region, [args] * MOST_SWEEPS, walls, unlooked)
    depth = most - (most + 1) % 2  # an odd number, as the method of Jacobi makes them
    if depth < 3:
        return
    stages, changes = [args] * depth, unlooked[:depth]

    def one_pass() -> None:
        machine.fused_sweeps(point, v, u, region, stages, walls, changes, region)

    seconds = seconds_of(one_pass, machine) / depth
    note = f"{depth} sweeps a pass"
    yield bench.row(name, shape, seconds, inner_points(shape), arrays=2, note=note)


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
    yield bench.row(name, shape, seconds, inner_points(shape), arrays=3)


def other_row(
    name: str, bench: Bench, shape: Sequence[int], other: Repeat, backend: str
) -> Row:  # fmt: skip
    """The row of another way to make one sweep."""
    own = repeat_of(one_sweep(bench.machine, shape), bench.machine)
    figures = {"points": inner_points(shape), "arrays": 2, "backend": backend}
    return bench.rival(name, shape, f"jacobi{len(shape)}d", own, other, **figures)


def numpy_backend(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """The same sweep on the numpy backend."""
    machine = make("numpy", bench.machine.precision)
    yield other_row(name, bench, shape, repeat_of(one_sweep(machine, shape), machine), "numpy")


def machine_of_slices(bench: Bench) -> Backend | None:
    """The backend whose arrays are sliced; None on a GPU without CuPy."""
    try:
        return make("cupy" if bench.machine.on_device else "numpy", bench.machine.precision)
    except InputError:
        return None


def slices(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """The same sweep with slices of NumPy arrays, or of CuPy arrays on a GPU that has CuPy."""
    if (machine := machine_of_slices(bench)) is None:
        return
    u, v = noise_and_zeros(machine, shape)

    def in_2d() -> None:
        v[1:-1, 1:-1] = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])

    def in_3d() -> None:
        v[1:-1, 1:-1, 1:-1] = (1.0 / 6.0) * (
            u[:-2, 1:-1, 1:-1] + u[2:, 1:-1, 1:-1] + u[1:-1, :-2, 1:-1]
            + u[1:-1, 2:, 1:-1] + u[1:-1, 1:-1, :-2] + u[1:-1, 1:-1, 2:]
        )  # fmt: skip

    other = repeat_of({2: in_2d, 3: in_3d}[len(shape)], machine)
    yield other_row(name, bench, shape, other, f"{machine.name} slices")


# ---- linear solvers: Poisson's equation with white noise on its right side ------------------


class Poisson:
    """-div grad u = noise on nodes 1 apart, from u = 0; 0 on the walls, or no walls at all.

    `shape` is the shape of the arrays, without ghosts of a periodic grid; `settings` are keys of
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
        """Iterate as a run does, from the values in u."""
        criterion = Criterion(self.case.solver, self.system, self.u)
        return iterate(method, criterion, Report(quiet=True, mute=True))

    def begin_anew(self) -> None:
        """u = 0, which is also the value of its walls."""
        grid = self.system.grid
        self.system.backend.sweep(fill, self.u, grid.everything, 0.0)


def case_text(shape: Sequence[int], settings: Mapping[str, Any], periodic: bool = False) -> str:
    """The case with nodes of the shape, slowest axis first."""
    axes = list("xyz"[: len(shape)])
    nodes = list(reversed(shape))
    upper = nodes if periodic else [n - 1 for n in nodes]
    lines = ["[grid]", f"nodes = {nodes}", f"upper = {upper}", "[solver]"]
    # Numbers and strings of JSON are TOML, too.
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
        about = {"dtype": settings.get("precision", bench.machine.precision)}
        if outcome.converged or "iterations" in settings:
            plural = "" if outcome.count == 1 else "s"
            note = f"{outcome.count} iteration{plural}"
            about |= {"unknowns": solution.problem.unknowns, "setup_seconds": setup}
        else:
            note = f"NOT solved in {outcome.count} iterations"
        yield bench.row(name, shape, seconds, note=note, **about)

    return measure


# ---- steps of flow ------------------------------------------------------------------------------

SWEEPS = 50
"""For the pressure, in each step."""
VISCOSITY = 0.1


def channel_text(shape: Sequence[int], precision: str) -> str:
    """The channel of `legate-cfd` with arrays of this shape, ghosts included."""
    rows, columns = shape[0], shape[1] - 2
    wall = "{ velocity_x = { value = 0 }, velocity_y = { value = 0 }, pressure = { gradient = 0 } }"
    return f"""
    [constants]
    dx = "2/{columns - 1}"
    dy = "2/{rows - 1}"
    [model]
    kind = "flow"
    scheme = "collocated"
    viscosity = {VISCOSITY}
    [grid]
    nodes = [{columns}, {rows}]
    upper = ["{columns}*dx", 2]
    periodic = ["x"]
    [initial]
    pressure = 1
    [source]
    velocity_x = 1
    [boundary]
    bottom = {wall}
    top = {wall}
    [solver]
    method = "jacobi"
    iterations = {SWEEPS}
    precision = "{precision}"
    [time]
    end = 1
    step = "0.0009*dx*dy/{VISCOSITY}"
    """


CAVITY = """
[model]
kind = "flow"
viscosity = 1e-3
[grid]
cells = {cells}
[boundary]
left.kind = "no-slip"
right.kind = "no-slip"
bottom.kind = "no-slip"
top = {{ kind = "no-slip", velocity_x.value = 1 }}
"""
VORTEX = """
[model]
kind = "flow"
viscosity = "1/1600"
[grid]
cells = {cells}
upper = ["2*pi", "2*pi", "2*pi"]
periodic = ["x", "y", "z"]
[initial]
velocity_x = "sin(x)*cos(y)*cos(z)"
velocity_y = "-cos(x)*sin(y)*cos(z)"
"""
MARCH = """
[time]
end = 1
cfl = 0.5
scheme = "rk3"
[solver]
precision = "{precision}"
"""
FIRST_STEPS = 3
"""Before the clock starts: the first pressure is found from zero."""


class Flow:
    """A flow on its way; `step` makes one step of the length `dt`."""

    def __init__(self, problem: Model, dt: float, first_steps: int = 0):
        self.problem, self.dt = problem, dt
        self.stepper = problem.stepper(0.0, dt)
        self.stepper.prepare()
        self._count = 0
        for _ in range(first_steps):
            self.step()

    def step(self) -> None:
        self.stepper.step([Substep(self._count * self.dt, self.dt, 0.0)], None, None)
        self._count += 1

    @property
    def note(self) -> str:
        """The divergence, as in the history of a run."""
        return f"divergence {self.stepper.measures()['divergence']:.1e}"


def channel(machine: Backend, shape: Sequence[int]) -> Flow:
    """The channel on the collocated grid."""
    case = parse(channel_text(shape, machine.precision), "bench")
    assert case.time is not None and case.time.step is not None
    return Flow(Collocated(case, machine), case.time.step)


def projected(machine: Backend, shape: Sequence[int]) -> Flow:
    """A flow on the staggered grid: a cavity in 2D, a Taylor-Green vortex in 3D."""
    text = (CAVITY if len(shape) == 2 else VORTEX) + MARCH
    cells = [extent - 2 for extent in reversed(shape)]
    case = parse(text.format(cells=cells, precision=machine.precision), "bench")
    problem = Staggered(case, machine)
    return Flow(problem, step_length(problem)[0], FIRST_STEPS)


def collocated(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """A step of the collocated channel."""
    flow = channel(bench.machine, shape)
    seconds = seconds_of(flow.step, bench.machine)
    points, note = flow.problem.whole.all_unknowns, f"a step of {SWEEPS} sweeps"
    yield bench.row(name, shape, seconds, points, note=note)


def marching(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """A step of the staggered flow, with three projections."""
    flow = projected(bench.machine, shape)
    seconds = seconds_of(flow.step, bench.machine)
    yield bench.row(name, shape, seconds, flow.problem.whole.all_unknowns, note=flow.note)


def marching_numpy(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """The same step on the numpy backend."""
    machine = make("numpy", bench.machine.precision)
    own, other = projected(bench.machine, shape), projected(machine, shape)
    yield bench.rival(
        name, shape, f"flow{len(shape)}d",
        repeat_of(own.step, bench.machine), repeat_of(other.step, machine),
        points=own.problem.whole.all_unknowns, backend="numpy", note=other.note,
    )  # fmt: skip


def collocated_slices(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """The same step with slices of NumPy arrays, or of CuPy arrays on a GPU that has CuPy."""
    if (machine := machine_of_slices(bench)) is None:
        return
    flow = channel(bench.machine, shape)
    other = repeat_of(sliced_step(machine, shape, flow), machine)
    yield bench.rival(
        name, shape, "collocated2d", repeat_of(flow.step, bench.machine), other,
        points=flow.problem.whole.all_unknowns, backend=f"{machine.name} slices",
    )  # fmt: skip


def sliced_step(machine: Backend, shape: Sequence[int], flow: Flow) -> Callable[[], None]:
    """A step as one writes it with slices, on arrays with a column of ghosts at either end."""
    u, v, p, b, old = (machine.zeros(tuple(shape)) for _ in range(5))
    assert isinstance(flow.problem, Collocated)
    dt, nu = flow.dt, VISCOSITY
    dx, dy = flow.problem.spacings
    p[:] = 1.0
    inner, lower, upper = slice(1, -1), slice(-2), slice(2, None)
    here, west, east = (inner, inner), (inner, lower), (inner, upper)
    south, north = (lower, inner), (upper, inner)

    def wrap(a: Any) -> None:
        a[:, 0] = a[:, -2]
        a[:, -1] = a[:, 1]

    def momentum(w: Any, w_old: Any, u_old: Any, v_old: Any, gradient: Any, force: float) -> None:
        w[here] = (
            w_old[here]
            - u_old[here] * dt / dx * (w_old[here] - w_old[west])
            - v_old[here] * dt / dy * (w_old[here] - w_old[south])
            - gradient
            + nu * (dt / dx**2 * (w_old[east] - 2 * w_old[here] + w_old[west])
                    + dt / dy**2 * (w_old[north] - 2 * w_old[here] + w_old[south]))
            + force * dt
        )  # fmt: skip
        wrap(w)

    def step() -> None:
        b[here] = (
            1 / dt * ((u[east] - u[west]) / (2 * dx) + (v[north] - v[south]) / (2 * dy))
            - ((u[east] - u[west]) / (2 * dx)) ** 2
            - 2 * ((u[north] - u[south]) / (2 * dy) * (v[east] - v[west]) / (2 * dx))
            - ((v[north] - v[south]) / (2 * dy)) ** 2
        )
        for _ in range(SWEEPS):
            old[:] = p
            p[here] = ((old[east] + old[west]) * dy**2 + (old[north] + old[south]) * dx**2) / (
                2 * (dx**2 + dy**2)
            ) - dx**2 * dy**2 / (2 * (dx**2 + dy**2)) * b[here]
            wrap(p)
            p[0], p[-1] = p[1], p[-2]
        u_old, v_old = u.copy(), v.copy()
        momentum(u, u_old, u_old, v_old, dt / (2 * dx) * (p[east] - p[west]), 1.0)
        momentum(v, v_old, u_old, v_old, dt / (2 * dy) * (p[north] - p[south]), 0.0)

    return step
