"""Benchmarks of flow: whole time steps."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from heatsolve.backends import Backend
from heatsolve.backends.registry import make
from heatsolve.case.load import parse
from heatsolve.errors import InputError
from heatsolve.models.base import Substep
from heatsolve.models.flow.collocated import Collocated, CollocatedStep
from heatsolve.models.flow.projection import Projection
from heatsolve.models.flow.staggered import Staggered
from heatsolve.time.step_size import step_length
from heatsolve.tools.bench.measure import Bench, Row, in_turn, repeat_of, seconds_of

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


class Channel:
    """The collocated channel: `step` makes one step."""

    def __init__(self, machine: Backend, shape: Sequence[int]):
        case = parse(channel_text(shape, machine.precision), "bench")
        assert case.time is not None and case.time.step is not None
        self.dt = case.time.step
        self.problem = Collocated(case, machine)
        self._stepper = CollocatedStep(self.problem, 0.0)

    def step(self) -> None:
        self._stepper.step([Substep(0.0, self.dt, 0.0)], None, None)


def step_row(
    name: str, bench: Bench, shape: Sequence[int], points: int, seconds: float, note: str,
    backend: str = "",
) -> Row:  # fmt: skip
    """The row of one time step."""
    return Row(
        name, backend or bench.machine.name, tuple(shape), bench.machine.precision, seconds,
        glups=points / seconds / 1e9, note=note,
    )  # fmt: skip


def collocated(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """A step of the collocated channel."""
    channel = Channel(bench.machine, shape)
    seconds = seconds_of(channel.step, bench.machine)
    points = channel.problem.whole.all_unknowns
    yield step_row(name, bench, shape, points, seconds, f"a step of {SWEEPS} sweeps")


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
[time]
end = 1
cfl = 0.5
scheme = "rk3"
[solver]
precision = "{precision}"
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
[time]
end = 1
cfl = 0.5
scheme = "rk3"
[solver]
precision = "{precision}"
"""
FIRST_STEPS = 3
"""Before the clock starts: the first pressure is found from zero."""


class Marching:
    """A flow on the staggered grid on its way: a cavity in a plane, Taylor-Green in space."""

    def __init__(self, machine: Backend, shape: Sequence[int]):
        cells = [extent - 2 for extent in reversed(shape)]
        text = (CAVITY if len(shape) == 2 else VORTEX).format(
            cells=cells, precision=machine.precision
        )
        self.problem = Staggered(parse(text, "bench"), machine)
        self.dt, _ = step_length(self.problem)
        self._stepper = Projection(self.problem, 0.0, self.dt)
        self._stepper.prepare()
        self._count = 0
        for _ in range(FIRST_STEPS):
            self.step()

    def step(self) -> None:
        self._stepper.step([Substep(self._count * self.dt, self.dt, 0.0)], None, None)
        self._count += 1

    @property
    def divergence(self) -> float:
        """As the history of a run has it."""
        return self._stepper.measures()["divergence"]


def marching(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """A step of the staggered flow, with three projections."""
    flow = Marching(bench.machine, shape)
    seconds = seconds_of(flow.step, bench.machine)
    points, note = flow.problem.whole.all_unknowns, f"divergence {flow.divergence:.1e}"
    yield step_row(name, bench, shape, points, seconds, note)


def marching_numpy(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """The same step on the numpy backend."""
    machine = make("numpy", bench.machine.precision)
    own, other = Marching(bench.machine, shape), Marching(machine, shape)
    (seconds,), speedup = in_turn(
        repeat_of(own.step, bench.machine), repeat_of(other.step, machine)
    )
    points, note = own.problem.whole.all_unknowns, f"divergence {other.divergence:.1e}"
    row = step_row(name, bench, shape, points, seconds, note, "numpy")
    yield replace(row, rival_of=f"flow{len(shape)}d", speedup=speedup)


def collocated_slices(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """The same step with slices of NumPy arrays, or of CuPy arrays on a GPU that has CuPy."""
    try:
        machine = make("cupy" if bench.machine.on_device else "numpy", bench.machine.precision)
    except InputError:
        return
    channel = Channel(bench.machine, shape)
    other = repeat_of(sliced_step(machine, shape, channel), machine)
    (seconds,), speedup = in_turn(repeat_of(channel.step, bench.machine), other)
    points = channel.problem.whole.all_unknowns
    row = step_row(name, bench, shape, points, seconds, "", f"{machine.name} slices")
    yield replace(row, rival_of="collocated2d", speedup=speedup)


def sliced_step(machine: Backend, shape: Sequence[int], channel: Channel) -> Callable[[], None]:
    """A step as one writes it with slices, on arrays with a column of ghosts at either end."""
    u, v, p, b, old = (machine.zeros(tuple(shape)) for _ in range(5))
    dt, nu = channel.dt, VISCOSITY
    dx, dy = channel.problem.spacings
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
