"""Benchmarks of sweeps: generic kernels, several sweeps in one pass, and a run's own iteration."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from heatsolve.backends import Accumulator, Backend
from heatsolve.backends.registry import machine_name, make
from heatsolve.errors import HeatsolveError
from heatsolve.stencil.language import copy
from heatsolve.tools.bench.measure import Bench, Row, inner_points, seconds_of
from heatsolve.tools.bench.solvers import Poisson

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
    most = machine.most_sweeps(point, u, region, [given] * MOST_SWEEPS, walls, unlooked)
    depth = most - (most + 1) % 2  # an odd number, as the method of Jacobi makes them
    if depth < 3:
        return
    stages, changes = [given] * depth, unlooked[:depth]

    def one_pass() -> None:
        machine.sweeps(point, v, u, region, stages, walls, changes, region)

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
