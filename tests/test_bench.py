"""The arithmetic of the tables; what they measure is not tested, that they measure it is."""

import json
import sys
import time

import numpy as np
import pytest

from heatsolve import cli
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.backends.registry import make
from heatsolve.errors import InputError
from heatsolve.linear.stationary import Jacobi
from heatsolve.parallel.ranks import Ranks
from heatsolve.stencil.language import copy
from heatsolve.tools import bench, measure
from heatsolve.tools.bench import Poisson, solving
from heatsolve.tools.measure import Bench, noise, noise_inside
from heatsolve_post.curves import bench_figure

TINY = {
    name: (10, 10, 10) if name.startswith("flow3d") else (17, 17, 17) if "3d" in name else (33, 33)
    for name in bench.BENCHMARKS
} | {"flow2d-obstacle": (19, 80)}  # fmt: skip
KEYS = {"name", "backend", "shape", "dtype", "seconds", "glups", "fraction_of_copy",
        "unknowns_per_second", "copies", "machine"}  # fmt: skip
STEPS = (
    "collocated2d", "collocated2d-slices", "flow2d", "flow2d-numpy", "flow2d-obstacle", "flow3d",
    "flow3d-128", "flow3d-128-fft", "flow3d-fft", "flow3d-run",
)  # fmt: skip
SOLVERS = {"multigrid2d", "multigrid2d-mixed", "multigrid3d",
           "multigrid3d-mixed", "fmg2d", "fft3d"}  # fmt: skip


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Repeats of a moment."""
    monkeypatch.setattr(measure, "SECONDS_A_REPEAT", 1e-4)
    monkeypatch.setattr(measure, "REPEATS", 3)
    monkeypatch.setattr(bench, "SOURCE_SWEEPS", {False: 4, True: 4})
    monkeypatch.setattr(bench, "RUN_STEPS", 2)


@pytest.fixture
def tiny(monkeypatch):
    """The program's table, on tiny arrays."""
    entries = {
        name: bench.Benchmark(entry.measure, TINY[name], TINY[name])
        for name, entry in bench.BENCHMARKS.items()
    }
    monkeypatch.setattr(bench, "BENCHMARKS", entries)


def program(monkeypatch, capsys, *arguments):
    """Exit code, standard output and standard error of `heatsolve bench`."""
    monkeypatch.setattr(sys, "argv", ["heatsolve", "bench", *map(str, arguments)])
    try:
        cli.main()
        code = 0
    except SystemExit as leaving:
        code = leaving.code or 0
    printed = capsys.readouterr()
    return code, printed.out, printed.err


# ---- the noise ---------------------------------------------------------------------------------


def test_noise_is_white_and_fixed():
    values = noise(1 << 16)
    assert np.abs(values).max() < 0.5
    assert abs(values.mean()) < 4 * 12**-0.5 / 256  # four standard errors
    spectrum = np.abs(np.fft.rfft(values)[1:]) ** 2
    low, high = spectrum[: spectrum.size // 2].mean(), spectrum[spectrum.size // 2 :].mean()
    assert low == pytest.approx(high, rel=0.05)
    # The first number of splitmix64 from seed 0 is 0xE220A8397B1DCDAF.
    assert noise(1)[0] == 0xE220A8397B1DCDAF / 2.0**64 - 0.5
    assert noise(9)[:5].tolist() == noise(5).tolist()


def test_noise_leaves_the_ring():
    field = noise_inside((4, 5))
    assert field[1:-1, 1:-1].ravel().tolist() == noise(6).tolist()
    assert np.count_nonzero(field) == 6


# ---- arithmetic --------------------------------------------------------------------------------


def test_a_sweep_is_compared_with_the_copy_of_its_bytes():
    bench_of = Bench(NumpyBackend(), bandwidth=16e9)  # a double copied each nanosecond
    row = bench_of.row("jacobi2d", (102, 52), 1e-5, points=5000, arrays=2)
    assert (row.glups, row.fraction_of_copy) == (pytest.approx(0.5), pytest.approx(0.5))
    assert row.unknowns_per_second is row.copies is None
    three = bench_of.row("jacobi2d-source", (102, 52), 1e-5, points=5000, arrays=3)
    assert three.fraction_of_copy == pytest.approx(0.75)
    single = Bench(NumpyBackend("float32"), bandwidth=16e9)
    row = single.row("jacobi2d", (102, 52), 1e-5, points=5000, arrays=2)
    assert row.fraction_of_copy == pytest.approx(0.25)


def test_a_solver_is_compared_with_the_copy_of_one_field():
    bench_of = Bench(NumpyBackend(), bandwidth=16e9)
    row = bench_of.row(
        "multigrid2d", (102, 52), 1e-3, unknowns=5000, setup_seconds=0.5, note="8 cycles"
    )
    assert row.unknowns_per_second == pytest.approx(5e6)
    assert row.copies == pytest.approx(200.0)
    assert row.glups is row.fraction_of_copy is None
    text = "1.0000 ms  and 500.0 ms set-up  5 M unknowns/s  200 copies  8 cycles"
    assert str(row).endswith(text)


def repeating(*times):
    """A work whose repeats take these times, warm-up first."""
    left = iter(times)
    return lambda: next(left), left


def test_long_work_is_repeated_less(monkeypatch):
    monkeypatch.setattr(measure, "REPEATS", 5)
    for seconds, repeats in ((0.5, 5), (2.0, 3)):
        work, left = repeating([100.0], *[[seconds + n] for n in range(repeats)])
        assert measure.medians_of(work) == [seconds + repeats // 2]
        assert list(left) == []


def test_rivals_take_turns():
    """The ratio is that of neighbours: a machine that becomes slower does not change it."""
    own, _ = repeating([9.0], [1.0, 1.0], [2.0, 2.0], [4.0, 4.0])
    other, left = repeating([9.0], [1.0, 5.0], [2.0, 10.0], [8.0, 20.0])
    times, speedup = measure.in_turn(own, other)
    assert times == [2.0, 10.0]
    assert speedup == 3.0
    assert list(left) == []


def test_a_rival_says_how_much_faster_the_program_is(monkeypatch):
    monkeypatch.setattr(measure, "in_turn", lambda own, other: (list(other()), 2.5))
    bench_of = Bench(NumpyBackend(), bandwidth=16e9)
    row = bench.other_row("jacobi3d-slices", bench_of, (6, 7, 8), lambda: [1e-6], "slices")
    assert (row.rival_of, row.speedup) == ("jacobi3d", 2.5)
    assert row.fraction_of_copy == pytest.approx(0.12)
    assert str(row).endswith("jacobi3d is 2.5 times as fast")


def test_stopwatch(backend):
    """It begins where the work before it ends, and waits for the work after."""
    machine = make(backend)
    shape = (400, 500)
    u, v = (machine.zeros(shape) for _ in range(2))
    region = tuple((0, extent) for extent in shape)

    def work():
        for _ in range(50):
            machine.sweep(copy, v, region, u)

    work()
    machine.sync()
    began = time.perf_counter()
    seconds = machine.stopwatch()
    work()
    measured = seconds()
    assert 50 * 16 * u.shape[0] * u.shape[1] / 20e12 < measured  # no machine copies at 20 TB/s
    assert measured <= 1.01 * (time.perf_counter() - began) + 1e-5


# ---- the table ---------------------------------------------------------------------------------


SHORT = [name for name in bench.NAMES if name not in (*STEPS[1:], "hotspot")]
"""All rows but hotspot and all flows but one, which take longest."""


@pytest.mark.few(1, among="numpy-short")
@pytest.mark.parametrize("only", [SHORT, []], ids=["short", "all"])
def test_every_row(only, backend):
    """On tiny arrays: the program's own rows in order, with the figures that make sense."""
    rows = list(bench.bench(backend, only, shapes=TINY))
    names = [row.name for row in rows]
    optional = {"jacobi2d-blocked", "jacobi3d-blocked", "jacobi2d-slices", "jacobi3d-slices",
                "collocated2d-slices", "heat2d-explicit", "heat3d-explicit"}  # fmt: skip
    assert set(only or bench.NAMES) - optional <= set(names)
    assert (names[0], names[-1]) == ("copy", "copy-again")
    for row in rows:
        assert row.seconds > 0.0
        solver = row.name in SOLVERS
        step = row.name in STEPS and row.rival_of is None
        assert (row.copies is not None) == (solver or step)
        assert (row.unknowns_per_second is not None) == solver
        assert ("launches" in row.note) == (step and row.name != "flow3d-run")
        assert (row.setup_seconds is not None) == solver
        step = row.name in STEPS
        assert (row.fraction_of_copy is None) == (row.glups is None or step)
        assert (row.glups is None) == (solver or row.name in ("launch", "hotspot"))
        whole = row.name.startswith("copy") or row.name == "fft3d"  # the latter has no walls
        points = np.prod([n - (0 if whole else 2) for n in row.shape])
        if row.glups is not None:
            assert row.glups * row.seconds * 1e9 == pytest.approx(points)
        if solver:
            assert row.unknowns_per_second * row.seconds == pytest.approx(points)
            count, word = row.note.split()
            assert word.startswith("iteration")
            fewest, most = (1, 1) if row.name in ("fft3d", "fmg2d") else (5, 14)
            if row.name.endswith("mixed"):  # of two cycles each, in 3D five
                fewest, most = (2, 2) if "3d" in row.name else (3, 4)
            assert fewest <= int(count) <= most


def test_only_some(backend):
    rows = list(bench.bench(backend, ["launch", "jacobi3d"], shapes=TINY))
    assert [row.name for row in rows] == ["jacobi3d", "launch", "copy-again"]
    assert [row.name for row in bench.bench(backend, ["copy"], shapes=TINY)] == ["copy"]


def test_solvers_solve():
    """The systems that are timed, against an independent program and to the promised residual."""
    pyamg = pytest.importorskip("pyamg")
    n = 33
    settings = {"method": "multigrid", "tolerance": 1e-10, "relative": True}
    problem = Poisson(NumpyBackend(), (n, n), settings)
    assert min(problem.repeat()) > 0.0
    history = problem.outcome.history["residual"]
    matrix = pyamg.gallery.poisson((n - 2, n - 2), format="csr")
    inside = problem.u[1:-1, 1:-1].ravel()
    b = noise(inside.size)
    limit = 1e-10 * np.linalg.norm(b)
    assert np.linalg.norm(b - matrix @ inside) <= limit
    assert history[-2] > limit  # and no cycle more than that takes
    problem.begin_anew()
    assert not problem.u.any()


def test_a_torus_has_all_points_as_unknowns():
    shape = (16, 8, 8)
    machine = Bench(NumpyBackend(), 1e9)
    (row,) = solving("torus", machine, shape, periodic=True, method="multigrid")
    assert row.unknowns_per_second * row.seconds == pytest.approx(16 * 8 * 8)
    assert row.note.endswith("iterations")


def test_what_is_not_solved_has_no_rate(monkeypatch):
    monkeypatch.setattr("heatsolve.tools.bench.MOST_ITERATIONS", 2)
    machine = Bench(NumpyBackend(), 1e9)
    (row,) = solving("multigrid2d", machine, (33, 33), method="multigrid")
    assert row.note == "NOT solved in 2 iterations"
    assert row.unknowns_per_second is row.copies is None


class Passing(NumpyBackend):
    """A backend that makes up to `most` sweeps in one pass, one after the other."""

    most = 6

    def most_fused(self, sweeps):
        assert len(sweeps.stages) == len(sweeps.changes)
        assert sweeps.wraps == (False,) * sweeps.u.ndim
        return min(self.most, len(sweeps.stages))

    def fused_sweeps(self, sweeps, new, counted):
        point, u, region, stages, _, changes = sweeps
        assert len(stages) == len(changes)
        old = u
        for stage in stages:
            result = u.copy()
            self.sweep(point, result, region, old, *stage)
            old = result
        new[...] = old


@pytest.mark.parametrize("shape", [(20, 30), (9, 8, 7)])
def test_passes_count_every_sweep(shape, monkeypatch):
    calls = []
    machine = Passing()
    monkeypatch.setattr(bench, "seconds_of", lambda work, _: calls.append(work()) or 5.0)
    (row,) = bench.blocked("blocked", Bench(machine, 1e9), shape)
    assert row.note == "5 sweeps a pass"  # an odd number
    assert row.seconds == 1.0
    assert machine.points_updated == 5 * np.prod([n - 2 for n in shape]) + np.prod(shape)
    machine.most = 2
    assert list(bench.blocked("blocked", Bench(machine, 1e9), shape)) == []
    assert len(calls) == 1


def test_the_source_row_is_a_run_of_jacobi(monkeypatch):
    """It is iterated as a run is, with the norm of every update."""
    outcomes = []
    iterate = Poisson.iterate

    def noted(problem, method):
        assert isinstance(method, Jacobi)
        assert problem.system.b[1:-1, 1:-1].ravel().tolist() == noise(10 * 11).tolist()
        outcomes.append(iterate(problem, method))

    monkeypatch.setattr(Poisson, "iterate", noted)
    (row,) = bench.source("source", Bench(NumpyBackend(), 1e9), (12, 13))
    for outcome in outcomes:
        assert outcome.history["iteration"] == [1, 2, 3, 4]
        assert min(outcome.history["residual"]) > 0.0
    assert row.fraction_of_copy == pytest.approx(row.glups * 24)  # 1 GB/s: 24 ns a point


def test_slices_without_cupy(monkeypatch):
    tiny_bench = Bench(NumpyBackend(), 1e9)
    monkeypatch.setattr(tiny_bench.machine, "on_device", True, raising=False)
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert list(bench.slices("s", tiny_bench, (9, 9))) == []


# ---- the command -------------------------------------------------------------------------------


def test_json_and_plot(tiny, monkeypatch, capsys, tmp_path):
    written, drawn = tmp_path / "rows.json", tmp_path / "bars.png"
    names = [word for name in ("copy", "jacobi2d", "jacobi2d-numpy", "multigrid2d", "launch")
             for word in ("--only", name)]  # fmt: skip
    code, said, complaint = program(
        monkeypatch, capsys, "--backend", "numpy", *names, "--json", written, "--plot", drawn
    )
    assert (code, complaint) == (0, "")
    rows = json.loads(written.read_text())
    lines = said.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == [row["name"] for row in rows]
    assert lines[-1] == f"wrote {drawn}"
    assert drawn.read_bytes().startswith(b"\x89PNG")
    for row in rows:
        assert set(row) >= KEYS
        assert set(row["machine"]) == {"node", "processor", "cores", "gpu"}
        assert row["backend"] == "numpy"
    by_name = {row["name"]: row for row in rows}
    assert by_name["copy"]["fraction_of_copy"] == pytest.approx(1.0)
    assert by_name["launch"]["fraction_of_copy"] is None
    assert by_name["multigrid2d"]["glups"] is None
    assert by_name["jacobi2d-numpy"]["rival_of"] == "jacobi2d"
    assert by_name["jacobi2d-numpy"]["speedup"] > 0.0


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--only", "jacobi4d"], 2, "no benchmark 'jacobi4d' here: there are copy, jacobi2d,"),
        (["--backend", "abacus"], 2, "no backend 'abacus'"),
        (["--plot", "bars.tiff"], 2, "cannot draw bars.tiff: tiff is not an image format"),
        (["--only", "launch", "--plot", "a.png"], 2, None),
        (["--only", "copy", "--json", "no/rows.json"], 6, "cannot write no/rows.json"),
        (["--only", "jacobi2d", "--plot", "no/bars.png"], 6, "cannot write no/bars.png"),
    ],
)
def test_mistakes(arguments, code, sentence, tiny, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    if "--backend" not in arguments:
        arguments = [*arguments, "--backend", "numpy"]
    given, rows, said = program(monkeypatch, capsys, *arguments)
    assert given == code
    # What can be known before is told before the measuring.
    assert (rows == "") == (sentence is not None and code == 2)
    sentence = sentence or "no bar to draw"
    assert said.startswith(f"heatsolve: {sentence}")
    assert len(said.splitlines()) == 1


def bar_row(name, unit, value, rival_of=None):
    return {"name": name, "rival_of": rival_of, unit: value}


def test_bars():
    """A panel for each unit, a bar for each figure, rivals in grey, the copies left out."""
    rows = [
        bar_row("copy", "fraction_of_copy", 1.0), bar_row("a", "fraction_of_copy", 0.9),
        bar_row("b", "fraction_of_copy", 0.1, "a"), bar_row("launch", "copies", None),
        bar_row("c", "copies", 120.0), bar_row("copy-again", "fraction_of_copy", 0.5),
    ]  # fmt: skip
    sweeping, solving_panel = bench_figure(rows).axes
    assert [bar.get_width() for bar in sweeping.patches] == [0.9, 0.1]
    assert sweeping.patches[0].get_facecolor() != sweeping.patches[1].get_facecolor()
    assert [tick.get_text() for tick in sweeping.get_yticklabels()] == ["a", "b"]
    assert [tick.get_text() for tick in solving_panel.get_yticklabels()] == ["c"]
    with pytest.raises(InputError, match="no bar"):
        bench_figure(rows[:1])


# ---- several processes -------------------------------------------------------------------------


def test_comparisons(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "POINTS", 20)
    monkeypatch.setattr(bench, "FIELD", 40)
    monkeypatch.setattr(bench, "SECONDS_A_REPEAT", 1e-3)
    rows = list(bench.bench("numpy", list(bench.COMPARISONS), ranks=Ranks()))
    assert [row.name for row in rows] == ["halo", "output", "checkpoint"]
    for row in rows:
        assert row.seconds > 0.0 and row.plain > 0.0
        assert f"ratio {row.ratio:.3f}" in str(row)
    assert not list(tmp_path.iterdir())
