"""What a run needs, counted beforehand: memory, the work of an iteration or step, its time."""

import math
import os
import re
import subprocess
import sys
import weakref

import numpy as np
import pytest
from emulated import Collecting
from typer.testing import CliRunner

from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.backends.host.time_tiling import Tiling
from heatsolve.backends.registry import make
from heatsolve.budget import EXACT_ARRAYS, Budget, budget_of
from heatsolve.case.load import load, parse
from heatsolve.case.sections import Exact
from heatsolve.cli import app
from heatsolve.errors import InputError
from heatsolve.io.reader import read
from heatsolve.models.base import make_model
from heatsolve.models.grid import grid_of
from heatsolve.runner import run
from heatsolve.stencil.grid import make_grid, sampled
from heatsolve.time.step_size import time_step_controller
from heatsolve.tools import check, measure
from heatsolve.tools.check import preview
from heatsolve.tools.measure import Speed, speed_of


class Tracked(NumpyBackend):
    """Knows the most bytes that its arrays took together."""

    name = "tracked"

    def __init__(self, precision):
        super().__init__(precision)
        self.now, self.most = [0], [0]

    def _track(self, array):
        self._add(array.nbytes)
        weakref.finalize(array, self._add, -array.nbytes)
        return array

    def _add(self, count):
        self.now[0] += count
        self.most[0] = max(self.most[0], self.now[0])

    def zeros(self, shape):
        return self._track(super().zeros(shape))

    def to_device(self, host):
        return self._track(super().to_device(host))


RUNS = {
    "multigrid": ("hot-plate", "grid.nodes=[65,65]", "solver.max_iterations=3"),
    "full multigrid": ("hot-plate", "solver.method=multigrid", "solver.cycle=FMG",
                       "solver.max_iterations=3"),
    "mixed": ("hot-plate", "solver.precision=mixed", "solver.max_iterations=3"),
    "cg": ("hot-plate", "solver.method=cg", "solver.max_iterations=3"),
    "sor": ("hot-plate", "solver.method=sor", "solver.max_iterations=3"),
    "chebyshev": ("hot-plate", "solver.method=chebyshev", "solver.max_iterations=3"),
    "fft": ("hot-plate", "solver.method=fft"),
    "point source": ("hotspot", "solver.max_iterations=3"),
    "varying conductivity": ("heat-sink", "solver.max_iterations=2"),
    "implicit": ("cooling-cube", "grid.nodes=[17,17,17]", "time.end=0.01", "time.step=0.003"),
    "explicit": ("cooling-cube", "grid.nodes=[17,17,17]", "time.scheme=explicit", "time.cfl=0.9",
                 "time.end=0.01"),
    "transport": ("cfdpython-05",),
    "collocated": ("legate-cfd",),
    "flow": ("taylor-green-3d", "constants.n=16", "time.end=0.5"),
    # One step: later ones wait for Python to collect the solvers of other lengths.
    "obstacle": ("cylinder-re100", "constants.n=41", "time.end=0.0001"),
    "heat and flow": ("rayleigh-benard", "time.end=0.02"),
}  # fmt: skip


@pytest.mark.few(6)
@pytest.mark.parametrize("name", RUNS)
def test_memory_is_that_of_the_arrays_of_a_run(name, monkeypatch, tmp_path):
    source, *overrides = RUNS[name]
    case = load(source, overrides)
    machine = Tracked(case.solver.field_precision)
    monkeypatch.setattr("heatsolve.runner.choose", lambda *_: (machine, "as asked for"))
    run(case, None, tmp_path / "a.h5")
    reference = Tracked(case.solver.field_precision)
    steps = None if case.model.steady else time_step_controller(make_model(case, reference))
    assert budget_of(case, reference, time_steps=steps).arrays == pytest.approx(
        machine.most[0], rel=0.03
    )


@pytest.mark.parametrize(("method", "arrays"), [("jacobi", 3), ("sor", 6), ("chebyshev", 4)])
def test_work_is_that_of_a_run(method, arrays, tmp_path):
    """A sweep reads u, and b where it varies, and writes u; SOR makes two, of a colour each."""
    overrides = ["grid.nodes=[66, 66]", f"solver.method={method}", "solver.iterations=200",
                 "solver.check_every=100"]  # fmt: skip
    case = load("hot-plate", [*overrides, "source.temperature=x*y"])
    found = budget_of(case, make("numpy"))
    run(case, "numpy", tmp_path / "a.h5")
    made = read(tmp_path / "a.h5", fields=()).attributes
    assert found.moved <= made["bytes_moved"] / 200 < 1.05 * found.moved
    assert 8 * (arrays - 1) * 64 * 64 <= found.moved <= 8 * arrays * 64 * 64
    assert 1 <= found.calls <= 3


@pytest.mark.parametrize("name", ["taylor-green", "sine-source"])
def test_exact_solutions_take_memory_of_the_host(name):
    case = load(name)
    without = case.altered(reference={"exact": Exact()})
    machine = make("numpy")
    more = budget_of(case, machine).host - budget_of(without, machine).host
    assert more == 8 * EXACT_ARRAYS * math.prod(grid_of(case).shape)


EXPLICIT = """
[grid]
nodes = [4096, 4096]
[model]
steady = false
[time]
scheme = "explicit"
step = 1e-9
end = 1e-6
[boundary]
right.temperature.value = 0
bottom.temperature.value = 0
top.temperature.value = 0
left.temperature."""


@pytest.mark.parametrize(
    ("more", "arrays"),
    [
        ("value = 0", 2),
        ("value = 0\n[source]\ntemperature = 'x'", 2),  # a line takes no traffic
        ("gradient = 1", 3),
        ("value = 0\n[[source.point]]\nfield = 'temperature'\nposition = [0.5, 0.5]\nvalue = 1", 3),
    ],
)
def test_large_explicit_steps_read_their_source(more, arrays):
    """An outline of a large grid knows neither points nor fluxes by their values."""
    backend = NumpyBackend()
    budget = budget_of(parse(EXPLICIT + more, "case"), backend)
    assert budget.moved == pytest.approx(8 * arrays * 4096**2, rel=0.01)


def test_large_arrays_are_not_made(monkeypatch):
    """A flow of 1024 cubed, and heat with a conductivity that varies along all axes."""
    largest = 0

    def remember(function):
        def made(shape, *given, **more):
            nonlocal largest
            largest = max(largest, int(np.prod(shape)))
            return function(shape, *given, **more)

        return made

    for name in ("zeros", "empty", "ones"):
        monkeypatch.setattr(np, name, remember(getattr(np, name)))
    machine = make("numpy")
    flow = load("taylor-green-3d", ["constants.n=1024"])
    small = budget_of(load("taylor-green-3d", ["constants.n=64"]), machine)
    assert budget_of(flow, machine).arrays == pytest.approx(
        small.arrays * (1026 / 66) ** 3, rel=0.05
    )
    heat = ["grid.cells=[1120, 400, 960]"]
    small = budget_of(load("heat-sink"), machine)
    large = budget_of(load("heat-sink", heat), machine)
    ratio = (1122 * 402 * 962) / (58 * 22 * 50)
    assert large.arrays == pytest.approx(small.arrays * ratio, rel=0.1)
    assert largest <= 1 << 22


@pytest.mark.parametrize("name", ["hotspot", "cfdpython-10", "cylinder-re20", "heated-cylinder"])
@pytest.mark.parametrize("processes", [4, 7])
def test_a_block_need_not_have_what_a_case_places(name, processes):
    """The memory of a block is that of its share of the arrays, and some ghosts."""
    case, machine = load(name), make("numba")
    whole, block = budget_of(case, machine).arrays, budget_of(case, machine, processes).arrays
    assert 1.0 < block * processes / whole < 2.5


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux")
def test_a_large_flow_is_checked_in_little_memory():
    script = (
        "from heatsolve.cli import app\n"
        "try: app(['check', 'taylor-green-3d', '--set', 'constants.n=1024'])\n"
        "finally: print(*[line for line in open('/proc/self/status') if 'VmHWM' in line])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1073741824 unknowns" in done.stdout
    assert int(done.stdout.split()[-2]) < 350_000  # kB


def test_a_sample_has_points_of_the_grid():
    grid = make_grid((1000, 37, 11), (0,) * 3, (1, 2, 3), True)
    some = sampled(grid, 4000)
    assert some.all_unknowns <= 4000
    for axis, full in zip(some.axes, grid.axes, strict=True):
        assert axis.spacing == full.spacing
        assert set(axis.coordinates) <= set(full.coordinates)
        assert (axis.coordinates[0], axis.coordinates[-1]) == (full.lower, full.upper)
        assert len(axis.coordinates) == len(axis.numbers) == axis.unknowns + 2
    assert [axis.unknowns for axis in sampled(grid, 1 << 20, {"y"}).axes] == [5, 37, 5]
    assert sampled(grid, 1 << 20).axes == grid.axes


# ---- time --------------------------------------------------------------------------------------


@pytest.fixture
def slow(monkeypatch, tmp_path):
    """A machine that copies 1 GB/s in memory and 10 in a cache, and makes a call in 10 us."""
    monkeypatch.setattr(check, "speed_of", lambda machine: Speed(1e9, 1e10, 1e-5))
    monkeypatch.chdir(tmp_path)


def test_the_least_time():
    speed = Speed(memory=1e9, cache=1e10, call=1e-5)
    assert speed.least(Budget(1 << 30, 0, moved=5e9, calls=10)) == 5.0
    assert speed.least(Budget(1 << 20, 0, moved=5e9, calls=10)) == 0.5
    assert speed.least(Budget(1 << 20, 0, moved=1e3, calls=10)) == 1e-4


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1214.8, "1215 calls"),
        (2.0, "2 calls"),
        (1.25, "1 call"),
        (3.0 / 11.0, "1 call for about 4 steps"),
        (0.0, "no call"),
    ],
)
def test_calls_in_words(number, words):
    assert check.calls_in_words(number, "step") == words


def said(case, *overrides, ranks=1, known=None):
    lines = preview(load(case, overrides), "numpy", ranks, timed=True, known=known)
    return {line[:12].strip(): line[12:] for line in lines}


def test_iterations_that_are_known(slow):
    found = said("hot-plate", "solver.method=jacobi", "solver.iterations=5000")
    each = re.match(r"at least ([\d.]+) us for each iteration here: \d+ bytes in 1", found["time"])
    assert each
    assert found["in all"].startswith("at least ") and found["in all"].endswith(": 5000 iterations")
    two = said("hot-plate", "solver.method=jacobi", "grid.nodes=[4097, 4097]", ranks=2)
    one = said("hot-plate", "solver.method=jacobi", "grid.nodes=[4097, 4097]")
    # They share one memory.
    seconds = [float(re.search(r"least ([\d.]+) ms", each["time"])[1]) for each in (one, two)]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.02)


def test_iterations_that_are_not_known(slow):
    found = said("hot-plate")
    assert "for each iteration" in found["time"]
    assert found["in all"] == "not known, for the number of iterations is not"
    assert said("hot-plate", "solver.method=fft")["in all"].endswith(": 1 iteration")


def test_steps(slow):
    assert said("cooling-cube")["in all"].endswith(": 20 steps")
    flow = said("taylor-green-3d", "constants.n=16")
    assert flow["in all"].endswith("steps, if the flow stays as fast as at t = 0")
    assert "for each step here" in flow["time"]
    steady = said("cavity-re100", "constants.n=16")
    assert steady["in all"].startswith("not known: it ends when it is steady, or after ")


def test_another_machine(slow):
    found = said("hot-plate", known="h200")
    assert "for each iteration on one NVIDIA H200: " in found["time"]
    found = said("hot-plate", known="h200", ranks=4)
    assert "on 4 processes, each with one NVIDIA H200" in found["time"]
    with pytest.raises(InputError, match="--machine 'quick' must be one of h200"):
        said("hot-plate", known="quick")


def test_a_machine_is_measured_once(monkeypatch, tmp_path):
    monkeypatch.setenv("HEATSOLVE_CACHE", str(tmp_path))
    measured = []

    def once(machine):
        measured.append(machine.name)
        return Speed(1e9, 2e9, 1e-5)

    monkeypatch.setattr(measure, "measured", once)
    assert speed_of(make("numpy")) == speed_of(make("numpy")) == Speed(1e9, 2e9, 1e-5)
    assert measured == ["numpy"]
    (file,) = tmp_path.iterdir()
    file.write_text("{")  # a damaged one is made anew
    assert speed_of(make("numpy")).memory == 1e9 and len(measured) == 2


@pytest.mark.parametrize("name", ["numpy", "numba"])
def test_what_is_measured(name):
    speed = measure.measured(make(name))
    assert min(speed.memory, speed.cache, speed.call) > 0.0


def test_the_command_compiles_nothing_and_tries_nothing(monkeypatch, tmp_path):
    make("numba")  # its module compiles what all its loops need
    monkeypatch.setenv("HEATSOLVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    case = ["check", "cavity-re100", "--backend=numba"]
    done = CliRunner().invoke(app, case)
    assert done.exit_code == 0
    assert re.search(r"^time +at least [\d.]+ (us|ms|s) for each step here: ", done.stdout, re.M)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".json"]
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    done = CliRunner().invoke(app, [*case, "--untimed"])
    assert "in all" not in done.stdout and "files" in done.stdout


def test_more_memory_than_there_is(slow, monkeypatch):
    monkeypatch.setattr(NumpyBackend, "memory", lambda self: (2 << 20, 2 << 20))
    assert said("hot-plate")["memory"].endswith("there is no device; more than the 2 MiB here")
    assert "more than" not in said("hot-plate", "grid.nodes=[33, 33]")["memory"]


def test_passes_of_multigrid():
    """One process makes them: they move less, and keep rings of rows for each chunk of work."""
    case, found = load("hot-plate", ["grid.nodes=[257, 257]", "solver.method=multigrid"]), {}
    machine = make("numba")
    for passes in (False, True):
        machine.tiling = Tiling(worth=0 if passes else 1 << 40, ring=1 << 16)
        for processes in (1, 2):
            budget = budget_of(case, machine, processes)
            found[processes, passes] = budget.arrays, budget.moved
    assert found[2, True] == found[2, False]
    (rings, less), (none, more) = found[1, True], found[1, False]
    assert less < 0.8 * more
    _, ring = machine._tile_and_ring((255, 255), 4, (1, 1))
    assert rings - none >= 8 * machine._chunks * math.prod(ring)


def test_sweeps_on_the_chip_take_time():
    """A field that stays on the chip moves next to nothing, but each sweep takes half a call."""
    budget = budget_of(load("hotspot"), Collecting("H100"))
    assert 0.45 < budget.calls < 0.55
    assert budget.moved < 2 * 8 * 256**2 / 100
