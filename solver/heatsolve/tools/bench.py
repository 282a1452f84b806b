"""`heatsolve bench`: how fast this machine sweeps and solves, in units of its own copy bandwidth.

Copy bandwidth is measured first, in the same run: one array copied to another, counted as read
plus written. A sweep is compared with the time in which its fewest bytes (each array that it
touches, once) could be copied; a solver with the time in which one field could be copied.
"""

import gc
import itertools
import json
import math
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from heatsolve.backends import Accumulator, Backend, SweepSequence
from heatsolve.backends.registry import choose, gpu_name, make, processor
from heatsolve.case.load import load_shipped, parse
from heatsolve.control.controller import State
from heatsolve.errors import InputError
from heatsolve.io.checkpoints import CheckpointStore
from heatsolve.io.writer import FieldFile, Results
from heatsolve.linear.iterate import Outcome, finished, iterate
from heatsolve.linear.stationary import Jacobi
from heatsolve.linear.stopping import Criterion
from heatsolve.linear.system import Method
from heatsolve.models.base import make_model
from heatsolve.models.flow.collocated import Collocated
from heatsolve.models.flow.projection import Projection
from heatsolve.models.heat.conduction import Conduction
from heatsolve.models.heat.solver import make_method
from heatsolve.parallel.ranks import Ranks
from heatsolve.report import Report
from heatsolve.runner import Run
from heatsolve.stencil.grid import WALLS
from heatsolve.stencil.language import fill
from heatsolve.time.loop import iterating
from heatsolve.time.pause import Until
from heatsolve.tools.measure import (
    Bench,
    Comparison,
    March,
    Repeat,
    Row,
    inner_points,
    medians_of,
    noise_and_zeros,
    noise_inside,
    repeat_of,
    seconds_of,
    seconds_of_copy,
    time_of,
)

Shape = tuple[int, ...]
Measure = Callable[[str, Bench, Sequence[int]], Iterator[Row]]
"""Measures the rows of a name, on arrays of a shape."""

# ---- sweeps --------------------------------------------------------------------------------------

MOST_SWEEPS = 31
"""The most sweeps of one pass that a backend is asked for."""
LAUNCHES = 100
"""Sweeps that a device may play back from one graph."""
SOURCE_SWEEPS = {False: 120, True: 300}
"""Sweeps of one run of Jacobi's iteration, on a host and on a device, where the host asks for
numbers at the beginning of a run; even numbers of sweeps leave u in its array. After twice as many
sweeps an H200 lowers its clock."""


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
    """A function that makes one sweep of the mean of the neighbours."""
    u, v = noise_and_zeros(machine, shape)
    region = tuple((1, extent - 1) for extent in shape)
    point, args = MEANS[len(shape)]
    return lambda: machine.sweep(point, v, region, u, *args)


def sweep(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """One sweep, by the generic kernel."""
    seconds = seconds_of(one_sweep(bench.machine, shape), bench.machine)
    yield bench.row(name, shape, seconds, inner_points(shape), arrays=2)


def launch(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """Sweeps so small that only their launch takes time, many at once."""
    machine = bench.machine
    one = one_sweep(machine, shape)

    def many() -> None:
        for _ in range(LAUNCHES):
            one()

    seconds = seconds_of(machine.replayed(many), machine) / LAUNCHES
    yield bench.row(name, shape, seconds)


def blocked(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """The same sweep, several in one pass through memory; no row where each pass is one sweep."""
    machine = bench.machine
    u, v = noise_and_zeros(machine, shape)
    region = tuple((1, extent - 1) for extent in shape)
    point, args = MEANS[len(shape)]
    walls = (False,) * len(shape)
    unlooked: list[Accumulator | None] = [None] * MOST_SWEEPS
    sweeps = SweepSequence(point, u, region, [args] * MOST_SWEEPS, walls, unlooked)
    most = machine.most_fused(sweeps)
    depth = most - (most + 1) % 2  # an odd number, as the method of Jacobi makes them
    if depth < 3:
        return

    def one_pass() -> None:
        machine.fused_sweeps(sweeps.up_to(depth), v, region)

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


# ---- linear solvers: Poisson's equation with white noise on its right side -----------------------

TOLERANCE = 1e-10
"""The tolerance of the l2 norm of b - A u, relative to the norm of b."""
MOST_ITERATIONS = 100


class Poisson:
    """-div grad u = noise on nodes 1 apart, from u = 0; u = 0 on all walls, or all axes periodic.

    `shape` is the shape of the arrays, without ghosts of a periodic grid; `settings` are keys of
    `[solver]`.
    """

    outcome: Outcome | None = None
    """How the last repeat ended."""

    def __init__(
        self, machine: Backend, shape: Sequence[int], settings: Mapping[str, Any],
        periodic: bool = False,
    ):  # fmt: skip
        self.case = parse(case_text(shape, settings, periodic), "bench")
        problem = Conduction(self.case, machine)
        self.u, self.unknowns = problem.temperature, problem.whole.all_unknowns
        b = noise_inside(problem.grid.shape)
        self.system = problem.system(machine.to_device(b))
        if self.system.singular:
            self.system.remove_mean(self.system.b)

    def method(self) -> Method:
        return make_method(self.case, self.system, self.u)

    def iterate(self, method: Method) -> Outcome:
        """Iterate as a run does, from the values in u."""
        criterion = Criterion(self.case.solver, self.system, self.u)
        return iterate(method, criterion, Report(quiet=True, mute=True))

    def begin_anew(self) -> None:
        """Set u = 0, on the walls, too."""
        grid = self.system.grid
        self.system.backend.sweep(fill, self.u, grid.everything, 0.0)

    def repeat(self) -> tuple[float, float]:
        """Solve anew; return the seconds of the set-up and of the iteration."""
        machine = self.system.backend
        self.begin_anew()
        seconds = machine.stopwatch()
        method = self.method()
        setup = seconds()
        seconds = machine.stopwatch()
        self.outcome = self.iterate(method)
        return setup, seconds()


def case_text(shape: Sequence[int], settings: Mapping[str, Any], periodic: bool = False) -> str:
    """The text of a case with nodes of this shape, slowest axis first."""
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


def solving(
    name: str, bench: Bench, shape: Sequence[int], periodic: bool = False, **settings: Any
) -> Iterator[Row]:
    """The solution of a linear system by a method; `settings` are keys of `[solver]`."""
    keys = {"tolerance": TOLERANCE, "relative": True, "max_iterations": MOST_ITERATIONS}
    if "iterations" in settings:
        keys = {}
    poisson = Poisson(bench.machine, shape, settings | keys, periodic)
    setup, seconds = medians_of(poisson.repeat)
    outcome = poisson.outcome
    assert outcome is not None
    about = {"dtype": settings.get("precision", bench.machine.precision)}
    if outcome.converged or "iterations" in settings:
        note = f"{outcome.count} iteration{'' if outcome.count == 1 else 's'}"
        about |= {"unknowns": poisson.unknowns, "setup_seconds": setup}
    else:
        note = f"NOT solved in {outcome.count} iterations"
    yield bench.row(name, shape, seconds, note=note, **about)


def hot_spot(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """The solve of the README's case: Jacobi's iteration, the exact norm of every update."""
    n, _ = shape
    settings = [
        f"grid.nodes=[{n}, {n}]", f'grid.upper=["{n - 1}*dx", "{n - 1}*dx"]',
        f'constants.dx="1/{n}"', f"source.point.0.index=[{n // 2}, {n // 2}]",
        f"solver.precision={bench.machine.precision}",
    ]  # fmt: skip
    problem = make_model(load_shipped("hotspot", settings), bench.machine)
    outcomes: list[Outcome] = []

    def solve() -> None:
        problem.reset()
        outcomes.append(finished(iterating(problem, Report(quiet=True, mute=True))))

    seconds = seconds_of(solve, bench.machine)
    yield bench.row(name, shape, seconds, note=f"{outcomes[-1].count} iterations")


# ---- explicit steps of heat conduction ----------------------------------------------------------

EXPLICIT_PASSES = {False: 3, True: 15}
"""Whole passes of explicit steps without a check, on a host and on a device."""


def heating(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """Explicit steps of heat conduction: a single step moves 16 bytes a point in doubles."""
    text = case_text(shape, {"precision": bench.machine.precision}) + HEATING
    march = March(make_model(parse(text, "bench"), bench.machine))
    if march.stepper.most_steps == 1:
        return
    count = EXPLICIT_PASSES[bench.machine.on_device] * march.stepper.longest
    seconds = seconds_of(lambda: march.step(count - 1), bench.machine) / count
    note = f"{march.stepper.longest} steps a pass"
    yield bench.row(name, shape, seconds, inner_points(shape), arrays=2, note=note)


HEATING = """
[model]
steady = false
[initial]
temperature = "sin(3*x) + cos(5*y)"
[time]
scheme = "explicit"
step = 0.1
end = 1e6
"""


# ---- steps of flow: shipped cases ----------------------------------------------------------------

FIRST_STEPS, STEPS_AT_REST = 3, 17
"""Steps before the clock starts: the first pressure is computed from zero; and a flow that begins
at rest takes more iterations at first."""
STEPS_ON_DEVICE, STEPS_ON_HOST = 40, 4
"""Steps of a repeat, a march of its own: later steps may take more iterations."""
RUN_STEPS = 50


class Flow(March):
    """A march of a shipped flow, on arrays of a shape; `step` makes one step of the length `dt`."""

    def __init__(self, name: str, machine: Backend, shape: Sequence[int], *more: str):
        cells = [extent - 2 for extent in reversed(shape)]
        if name == "legate-cfd":  # on nodes: ghosts along its periodic axis x only
            settings = [f"constants.n={cells[0]}", f"grid.nodes={[cells[0], shape[0]]}"]
        else:
            settings = [f"grid.cells={cells}", "time.cfl=0.5", "model.convection=central", *more]
        self.case = load_shipped(name, [*settings, f"solver.precision={machine.precision}"])
        super().__init__(make_model(self.case, machine))
        for _ in range(FIRST_STEPS):
            self.step()

    @property
    def points(self) -> int:
        return self.problem.whole.all_unknowns

    @property
    def note(self) -> str:
        """The sweeps of a step or, where their number is not fixed, the divergence after it."""
        if sweeps := self.case.solver.iterations:
            return f"a step of {sweeps} sweeps"
        assert isinstance(self.stepper, Projection)
        count = sum(self.stepper.pressure.counts.values())
        divergence = self.stepper.posted_measures()()[1]["divergence"]
        return f"divergence {divergence:.1e}, {count} iterations a step"


def marching(name: str, bench: Bench, shape: Sequence[int], case: str, *more: str) -> Iterator[Row]:
    """A step of a shipped flow; `more` are settings of its case."""
    machine, marched = bench.machine, list[Flow]()
    steps = STEPS_ON_DEVICE if machine.on_device else STEPS_ON_HOST

    def repeat() -> Sequence[float]:
        marched.clear()
        gc.collect()  # the arrays of the march before
        marched.append(flow := Flow(case, machine, shape, *more))
        for _ in range(STEPS_AT_REST):
            flow.step()
        return repeat_of(flow.step, machine, steps)()

    (seconds,) = medians_of(repeat)
    before, (flow,) = machine.launches, marched
    flow.step()
    note = f"{flow.note}, {machine.launches - before} launches"
    copies = bench.copies(seconds, flow.points)
    yield bench.row(name, shape, seconds, flow.points, copies=copies, note=note)


def running(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """A step of `heatsolve run taylor-green-3d`, with its choice of step lengths and its checks:
    the mean of RUN_STEPS steps, after the same number of steps."""
    machine = bench.machine
    cells = [extent - 2 for extent in reversed(shape)]
    settings = [f"grid.cells={cells}", f"solver.precision={machine.precision}", "time.end=1e6"]
    case = load_shipped("taylor-green-3d", settings)
    drive = Run(case, machine.name, kept=True)
    drive.advance()
    drive.advance(Until(RUN_STEPS))
    began = time.perf_counter()
    pause = drive.advance(Until(2 * RUN_STEPS))
    assert pause is not None
    pause.problem.backend.sync()
    seconds = (time.perf_counter() - began) / RUN_STEPS
    drive.abandon()
    points = pause.problem.whole.all_unknowns
    note = f"steps {RUN_STEPS} to {2 * RUN_STEPS} of a run"
    copies = bench.copies(seconds, points)
    yield bench.row(name, shape, seconds, points, copies=copies, note=note)


def march_by_fft(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """A step of the vortex in space, its pressure by FFT."""
    yield from marching(name, bench, shape, "taylor-green-3d", "solver.method=fft")


def marching_numpy(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """The step of the cavity on the numpy backend."""
    machine = make("numpy", bench.machine.precision)
    own, other = (Flow("cavity-re1000", each, shape) for each in (bench.machine, machine))
    yield bench.rival(
        name, shape, "flow2d", repeat_of(own.step, bench.machine), repeat_of(other.step, machine),
        points=own.points, backend="numpy", note=other.note,
    )  # fmt: skip


def collocated_slices(name: str, bench: Bench, shape: Sequence[int]) -> Iterator[Row]:
    """The collocated step with slices of NumPy arrays, or of CuPy arrays on a GPU with CuPy."""
    if (machine := machine_of_slices(bench)) is None:
        return
    flow = Flow("legate-cfd", bench.machine, shape)
    other = repeat_of(sliced_step(machine, shape, flow), machine)
    yield bench.rival(
        name, shape, "collocated2d", repeat_of(flow.step, bench.machine), other,
        points=flow.points, backend=f"{machine.name} slices",
    )  # fmt: skip


def sliced_step(machine: Backend, shape: Sequence[int], flow: Flow) -> Callable[[], None]:
    """A step as one writes it with slices, on arrays with a column of ghosts at either end."""
    u, v, p, b, old = (machine.zeros(tuple(shape)) for _ in range(5))
    assert isinstance(flow.problem, Collocated)
    dt, nu, sweeps = flow.dt, flow.case.constants["nu"], flow.case.solver.iterations or 0
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
        for _ in range(sweeps):
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


# ---- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Benchmark:
    """The measurement of a row, and the shapes of its arrays: small for a CPU, large for a GPU."""

    measure: Measure
    small: Shape
    large: Shape


SWEPT_2D, LARGE_2D = (8192, 8192), (16384, 16384)
SWEPT_3D, LARGE_3D = (256, 256, 256), (640, 640, 640)
SOLVED_2D, LARGE_SOLVED_2D = (2048, 2048), (8192, 8192)
SOLVED_3D, LARGE_SOLVED_3D = (128, 128, 128), (512, 512, 512)

BENCHMARKS = {
    "jacobi2d": Benchmark(sweep, SWEPT_2D, LARGE_2D),
    "jacobi2d-blocked": Benchmark(blocked, SWEPT_2D, LARGE_2D),
    "jacobi2d-source": Benchmark(source, SWEPT_2D, LARGE_2D),
    "jacobi2d-numpy": Benchmark(numpy_backend, SWEPT_2D, (4096, 4096)),
    "jacobi2d-slices": Benchmark(slices, SWEPT_2D, LARGE_2D),
    "jacobi3d": Benchmark(sweep, SWEPT_3D, LARGE_3D),
    "jacobi3d-blocked": Benchmark(blocked, SWEPT_3D, LARGE_3D),
    "jacobi3d-slices": Benchmark(slices, SWEPT_3D, LARGE_3D),
    "multigrid2d": Benchmark(partial(solving, method="multigrid"), SOLVED_2D, LARGE_SOLVED_2D),
    "multigrid2d-mixed": Benchmark(
        partial(solving, method="multigrid", precision="mixed"), SOLVED_2D, LARGE_SOLVED_2D
    ),
    "multigrid3d": Benchmark(partial(solving, method="multigrid"), SOLVED_3D, LARGE_SOLVED_3D),
    "multigrid3d-mixed": Benchmark(
        partial(solving, method="multigrid", precision="mixed"), SOLVED_3D, LARGE_SOLVED_3D
    ),
    # To the accuracy of the discretisation, which takes one cycle.
    "fmg2d": Benchmark(
        partial(solving, method="multigrid", cycle="FMG", iterations=1), SOLVED_2D, LARGE_SOLVED_2D
    ),
    "fft3d": Benchmark(partial(solving, periodic=True, method="fft"), SOLVED_3D, LARGE_SOLVED_3D),
    "hotspot": Benchmark(hot_spot, (256, 256), (256, 256)),
    "heat2d-explicit": Benchmark(heating, (4096, 4096), LARGE_2D),
    "heat3d-explicit": Benchmark(heating, SWEPT_3D, LARGE_SOLVED_3D),
    "flow2d": Benchmark(partial(marching, case="cavity-re1000"), (514, 514), (2050, 2050)),
    "flow2d-numpy": Benchmark(marching_numpy, (514, 514), (514, 514)),
    "flow3d": Benchmark(partial(marching, case="taylor-green-3d"), (66, 66, 66), (258, 258, 258)),
    "flow3d-128": Benchmark(
        partial(marching, case="taylor-green-3d"), (34, 34, 34), (130, 130, 130)
    ),
    "flow3d-fft": Benchmark(march_by_fft, (66, 66, 66), (258, 258, 258)),
    "flow3d-128-fft": Benchmark(march_by_fft, (34, 34, 34), (130, 130, 130)),
    "flow3d-run": Benchmark(running, (34, 34, 34), (258, 258, 258)),
    "flow2d-obstacle": Benchmark(partial(marching, case="cylinder-re100"), (43, 222), (248, 1322)),
    "collocated2d": Benchmark(partial(marching, case="legate-cfd"), (1024, 1024), (4096, 4096)),
    "collocated2d-slices": Benchmark(collocated_slices, (1024, 1024), (4096, 4096)),
    "launch": Benchmark(launch, (64, 64), (64, 64)),
}
NAMES = ("copy", *BENCHMARKS)


def bench(
    backend: str = "auto",
    only: Sequence[str] = (),
    precision: str = "float64",
    ranks: Ranks | None = None,
    shapes: Mapping[str, Shape] | None = None,
) -> Iterator[Row | Comparison]:
    """The rows of the table, as they are measured; `shapes` replaces shapes by name.

    Several processes, or one that is asked for them by name, measure the COMPARISONS. Raises
    InputError for an unknown name, and where the backend cannot work.
    """
    ranks = ranks or Ranks()
    known = (*NAMES, *COMPARISONS) if ranks.size == 1 else tuple(COMPARISONS)
    for name in only:
        if name not in known:
            raise InputError(f"no benchmark {name!r} here: there are {', '.join(known)}")
    threads = 1 if ranks.size > 1 else None
    machine, _ = choose(backend, precision, threads, ranks.local_rank, ranks.gather)
    compared = [name for name in COMPARISONS if name in only or (ranks.size > 1 and not only)]
    for name in compared:
        own, plain = COMPARISONS[name](machine, ranks)
        yield Comparison(name, machine.name, ranks.size, own, plain)
    measured = [name for name in NAMES if name in only or not only]
    if ranks.size == 1 and measured:
        yield from table(machine, measured, shapes or {})


def table(machine: Backend, names: Sequence[str], shapes: Mapping[str, Shape]) -> Iterator[Row]:
    """The rows of these names; copy bandwidth is measured in any case, and once more at the end.

    The second measurement tells how much of the machine other programs used in between.
    """
    chosen = {
        name: shapes.get(name, benchmark.large if machine.on_device else benchmark.small)
        for name, benchmark in BENCHMARKS.items()
    }
    shape = chosen["jacobi2d"]
    points = math.prod(shape)
    seconds = seconds_of_copy(machine, shape)
    bench = Bench(machine, 2 * points * machine.dtype.itemsize / seconds)
    if "copy" in names:
        yield bench.row("copy", shape, seconds, points, arrays=2)
    measured = False
    for name, benchmark in BENCHMARKS.items():
        if name in names:
            yield from benchmark.measure(name, bench, chosen[name])
            measured = True
    if measured:
        yield bench.row("copy-again", shape, seconds_of_copy(machine, shape), points, arrays=2)


def records(rows: Sequence[Row | Comparison], ranks: Ranks | None = None) -> list[dict[str, Any]]:
    """The rows as dictionaries, each with the machine that it was measured on."""
    machine = {
        "node": platform.machine(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "gpu": gpu_name((ranks or Ranks()).local_rank),
    }
    return [asdict(row) | {"machine": machine} for row in rows]


# ---- the cost of several processes ---------------------------------------------------------------

REPEATS = 9
SECONDS_A_REPEAT = 0.2
POINTS = 2048
"""Unknowns of a process along each axis, for the halo."""
FIELD = 4096
"""Points along each axis of the field that is written."""

CASE = """
[grid]
cells = [{x}, {y}]
upper = [{x}, {y}]
[boundary]
left.temperature = {{ value = 1 }}
right.temperature = {{ value = 0 }}
bottom.temperature = {{ value = 0 }}
top.temperature = {{ value = 0 }}
[solver]
method = "jacobi"
"""


def together(
    ranks: Ranks,
    works: list[Callable[[], Any]],
    least: float,
    tidy: Callable[[], None] = lambda: None,
) -> list[float]:
    """The median seconds of each work on the slowest process; works take turns, all start together.

    A work is repeated for `least` seconds; `tidy` is called before each of its runs, not timed.
    """

    def run(work: Callable[[], Any], times: int = 1) -> float:
        tidy()
        return time_of(ranks, work, times)

    counts = []
    for work in works:
        run(work)
        counts.append(max(1, int(least / max(run(work), 1e-7))))
    rounds = [[run(w, n) for w, n in zip(works, counts, strict=True)] for _ in range(REPEATS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def _halo(machine: Backend, ranks: Ranks) -> list[float]:
    """Seconds of a step of Jacobi's iteration, and of its sweep alone over the same points."""
    case = parse(CASE.format(x=POINTS * ranks.size, y=POINTS), "halo", [
        f"parallel.ranks=[{ranks.size}, 1]"])  # fmt: skip
    problem = Conduction(case, machine, ranks=ranks)
    b = machine.to_device(problem.source(0.0))
    method = make_method(case, problem.system(b), problem.temperature)
    assert isinstance(method, Jacobi)
    steps, sweeps = itertools.count(), itertools.count()

    def step() -> None:
        method.step(next(steps), None)
        machine.sync()

    def sweep() -> None:
        number = next(sweeps)
        old, new = method.solution(number), method.solution(number + 1)
        machine.sweep(method.point, new, problem.grid.interior, old, *method.args)
        machine.sync()

    return together(ranks, [step, sweep], SECONDS_A_REPEAT)


def _output(machine: Backend, ranks: Ranks) -> list[float]:
    """Seconds to write FIELD squared doubles in parts, and gathered into one process."""
    windows = _windows(ranks)
    window = windows[ranks.rank]
    block = np.random.default_rng(ranks.rank).random([high - low for low, high in window])
    line = np.arange(FIELD, dtype=float)
    axes, attributes = {"y": line, "x": line}, {"case": ""}
    with _folder(ranks) as folder:

        def in_parts() -> None:
            path = folder / "parts.h5"
            with Results(path, axes, {}, window, ranks, transient=False) as results:
                results.append({"temperature": block})
                results.finish(attributes, {})

        def gathered() -> None:
            blocks = ranks.collect(block)
            if blocks is not None:
                field = np.empty((FIELD, FIELD))
                for values, place in zip(blocks, windows, strict=True):
                    field[tuple(slice(*pair) for pair in place)] = values
                with FieldFile(folder / "plain.h5", axes, {}, transient=False) as file:
                    file.append({"temperature": field})
                    file.finish(attributes, {})

        def tidy() -> None:
            if ranks.rank == 0:
                shutil.rmtree(folder / "parts.parts", ignore_errors=True)
                for path in folder.glob("*.h5"):
                    path.unlink()

        return together(ranks, [in_parts, gathered], 0.0, tidy)


def _checkpoint(machine: Backend, ranks: Ranks) -> list[float]:
    """Seconds of a checkpoint of three fields, and of the same bytes written raw and flushed."""
    window = _windows(ranks)[ranks.rank]
    shape = [high - low for low, high in window]
    rng = np.random.default_rng(ranks.rank)
    fields = {name: rng.random(shape) for name in ("u", "r", "p")}
    numbers = itertools.count(1)
    with _folder(ranks) as folder:
        store = CheckpointStore(folder / "case.checkpoints", (FIELD, FIELD), window, ranks)

        def saved() -> None:
            store.save(State(next(numbers), {}, {}, fields))

        def raw() -> None:
            with open(folder / f"raw-{ranks.rank}", "wb") as file:
                for values in fields.values():
                    values.tofile(file)
                file.flush()
                os.fsync(file.fileno())
            # A checkpoint replaces an older one, too.
            with suppress(OSError):
                os.replace(folder / f"raw-{ranks.rank}", folder / f"old-{ranks.rank}")

        return together(ranks, [saved, raw], 0.0)


def _windows(ranks: Ranks) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """The rows of the field that each process has."""
    cuts = np.linspace(0, FIELD, ranks.size + 1).astype(int).tolist()
    return [(pair, (0, FIELD)) for pair in itertools.pairwise(cuts)]


@contextmanager
def _folder(ranks: Ranks) -> Iterator[Path]:
    """A temporary folder in the current one, known to all processes."""
    with ExitStack() as stack:
        name = ""
        if ranks.rank == 0:
            name = stack.enter_context(tempfile.TemporaryDirectory(dir=".", prefix="heatsolve-"))
        yield Path(ranks.gather(name)[0])
        ranks.gather(None)  # no process needs it any more


COMPARISONS = {"halo": _halo, "output": _output, "checkpoint": _checkpoint}
