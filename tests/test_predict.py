"""How long a run would take: the arithmetic, the counts of iterations and steps, the rows."""

import re

import numpy as np
import pytest
from typer.testing import CliRunner

import heatsolve
from heatsolve.backends.choice import make
from heatsolve.case import load
from heatsolve.cli import app
from heatsolve.errors import InputError
from heatsolve.study import predict
from heatsolve.study import trial as trials
from heatsolve.study.predict import LOADED, LONGEST_START, MACHINES, Known, predictions, start_up
from heatsolve.study.trial import Mark, Trial, later_half, trial_of, tried

PLATE = ["grid.nodes=[65, 65]", "solver.tolerance=1e-6"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def rows(case, *overrides, **given):
    return "\n".join(predictions(load(case, overrides), case, list(overrides), **given))


def given(monkeypatch, **found):
    """Let a trial find this."""
    trial = Trial(
        **{"units": 10, "seconds": 2e-3, "before": 1.0, "marks": [Mark(0, 0.0, 0)]} | found
    )
    monkeypatch.setattr(trials, "tried", lambda case, machine, seconds: trial)


def test_iterations_follow_from_the_rate_of_the_later_half():
    norms = 100.0 * 0.5 ** np.arange(11)  # halved by each
    norms[:5] = 1e6  # whatever came before
    history = {"iteration": range(11), "time": np.arange(11) / 4, "residual": norms}
    trial = Trial(10, threshold=100.0 * 0.5**30, history=history)
    assert trial.end() == pytest.approx(30)
    assert trial.end("time") == pytest.approx(30 / 4)
    for last in (1.0, 0.0):
        history = {"iteration": (0, 5), "residual": (1.0, last)}
        assert Trial(10, threshold=1e-3, history=history).end() == np.inf
    assert Trial(10, ended=True).end() == 10


def test_other_steps_are_as_long_as_the_last_one():
    trial = Trial(10, history={"iteration": [4, 8], "time": [1.0, 3.0], "dt": [0.25, 0.5]})
    assert trial.steps_to(4.1) == 8 + 3
    assert trial.steps_to(2.0) == 6
    assert trial.steps_to(0.5) == 2


def test_a_start_that_takes_longer_does_not_count():
    marks = [Mark(0, 0.0, 0), Mark(1, 5.0, 50), Mark(2, 6.0, 60), Mark(4, 6.2, 62)]
    marks += [Mark(8, 6.6, 66), Mark(16, 7.4, 74)]
    half, last = later_half(marks)
    assert (last.clock - half.clock) / (last.units - half.units) == pytest.approx(0.1)
    assert not Trial(16, marks=marks).held_up


def test_a_trial_in_which_something_was_compiled_is_made_again(monkeypatch):
    """Conjugate gradients compute their residual anew after some iterations, by another kernel."""
    compiling = Trial(24, marks=[Mark(n, n + 50.0 * (n > 16), n) for n in (0, 1, 2, 4, 8, 16, 24)])
    assert compiling.held_up
    found = [Trial(1), compiling, Trial(32)]
    monkeypatch.setattr(trials, "tried", lambda case, machine, seconds: found.pop(0))
    assert trial_of(None, None).units == 32


def marching(work, steps=100, unknowns=10, length=0.5):
    """A march of so many steps, each of so much work (by its number), and of so long."""
    length = length if callable(length) else lambda number, dt=length: dt
    points = [0, *np.cumsum([work(number) * unknowns for number in range(steps)])]
    dt = [length(number) for number in range(steps)]
    history = {"iteration": range(1, steps + 1), "time": np.cumsum(dt), "dt": dt}
    marks = [Mark(number, 1e-3 * point, point) for number, point in enumerate(points)]
    return Trial(steps, history=history, marks=marks, unknowns=unknowns)


def test_steps_become_as_much_shorter_as_on_a_coarser_grid():
    trial = marching(lambda number: 1, length=lambda number: 0.5 if number < 40 else 0.25)
    assert trial.shorter(10.0, 35.0) == pytest.approx((20 + 60) / 50)
    assert trial.shorter(25.0, 35.0) == pytest.approx(1)
    assert trial.shorter(25.0, 70.0) == pytest.approx(1)  # beyond its end: as the last one
    assert trial.shorter(35.0, 35.0) == 1


def test_work_falls_to_the_same_as_on_a_coarser_grid():
    coarse = marching(lambda number: 30 if number < 20 else 10)
    early = marching(lambda number: 50, steps=16, unknowns=160, length=0.25)
    assert early.timed == (1.75, 4.0)
    assert early.work_of_a_step(*early.timed) == 50
    # A fifth of the steps in 50 units of time have the excess work.
    assert coarse.harder(early, 50.0) == pytest.approx((10 + 40 / 5) / 50)
    assert coarse.harder(early, 100.0) == pytest.approx((10 + 40 / 10) / 50)  # goes on as it did
    least = marching(lambda number: 9, steps=16)
    assert coarse.harder(least, 50.0) == 1  # as little as it ever becomes
    rising = marching(lambda number: 10 if number < 20 else 30)
    assert rising.harder(early, 50.0) == 1


def test_time_grows_with_the_units(monkeypatch):
    given(monkeypatch)
    monkeypatch.setattr(predict, "start_up", lambda: 2.0)
    said = rows("hot-plate", *PLATE, "solver.method=jacobi", "solver.iterations=5000")
    assert "time        2 ms for each iteration here" in said
    assert "about 13 s: 5000 iterations, 10 were tried" in said


def test_a_start_takes_what_this_one_took(monkeypatch):
    monkeypatch.setattr(predict.clock, "thread_time", lambda: 1.25)
    assert start_up() == 1.25 + LOADED
    monkeypatch.setattr(predict.clock, "thread_time", lambda: 60.0)  # which compiled
    assert start_up() == LONGEST_START + LOADED


def test_conjugate_gradients_are_counted_on_a_coarser_grid(monkeypatch):
    """Extrapolated from the part that was tried there would be nearly twice as many."""
    tried_on = []

    def partly(case, machine, seconds):
        tried_on.append(case.grid.counts)
        limit = 400 if case.grid.counts == (257, 257) else case.solver.max_iterations
        changes = case.solver.model_copy(update={"max_iterations": limit})
        return tried(case.model_copy(update={"solver": changes}), machine, 60.0)

    monkeypatch.setattr(trials, "tried", partly)
    overrides = ["grid.nodes=[257, 257]", "solver.method=cg"]
    said = rows("hot-plate", *overrides, backend="numpy")
    assert tried_on == [(257, 257), (257, 257), (64, 64), (64, 64)]
    count = heatsolve.run("hot-plate", backend="numpy", overrides=overrides).attributes[
        "iterations"
    ]
    assert float(re.search(r"some (\d+) iterations", said)[1]) == pytest.approx(count, rel=0.1)


def test_a_large_case_is_tried_on_fewer_points(monkeypatch):
    tried_on = []

    def trial(case, machine, seconds):
        tried_on.append(case.grid.counts)
        return Trial(10, 2e-3, 0.0, True, marks=[Mark(0, 0.0, 0)])

    monkeypatch.setattr(trials, "tried", trial)
    monkeypatch.setitem(predict.MOST_UNKNOWNS, False, 256 * 256)
    said = rows("hot-plate", "grid.nodes=[1026, 1026]", "solver.method=jacobi")
    assert 250 < tried_on[-1][0] < 262
    seconds = float(re.search(r"time +([\d.]+) ms", said)[1])
    assert seconds == pytest.approx(32, rel=0.05)  # 16 times the points
    count = float(re.search(r"some (\d+) iterations", said)[1])
    assert count == pytest.approx(160, rel=0.05)  # Jacobi's grow with the square of 4
    said = rows("hot-plate", "grid.nodes=[1026, 1026]", "solver.method=multigrid")
    assert "some 10 iterations" in said


def test_steps_are_those_of_the_full_grid(monkeypatch):
    given(monkeypatch)
    monkeypatch.setitem(predict.MOST_UNKNOWNS, False, 20**3)
    whole = heatsolve.run("cooling-cube", overrides={"grid.nodes": [33, 33, 33]})
    said = rows("cooling-cube", "grid.nodes=[33, 33, 33]")
    assert f": {whole.attributes['steps']} steps," in said
    explicit = ["grid.nodes=[33, 33, 33]", "time.scheme=explicit", "time.cfl=0.5", "time.end=0.01"]
    steps = heatsolve.run("cooling-cube", overrides=explicit).attributes["steps"]
    found = float(re.search(r": (\d+) steps", rows("cooling-cube", *explicit))[1])
    assert found == pytest.approx(steps, rel=0.25)


def test_another_machine(monkeypatch):
    given(monkeypatch)
    monkeypatch.setattr(predict, "seconds_of_copy", lambda machine, shape: 16 * shape[0] / 1e10)
    monkeypatch.setitem(MACHINES, "fast", Known("a fast one", 1e12, 1e-6))
    overrides = (*PLATE, "solver.method=jacobi", "solver.iterations=5000")
    assert "time        20 us for each iteration on a fast one" in rows(
        "hot-plate", *overrides, known="fast"
    )
    four = rows("hot-plate", *overrides, known="fast", ranks=4)
    assert "time        5 us for each iteration on 4 processes, each with a fast one" in four
    monkeypatch.setitem(MACHINES, "fast", Known("a fast one", 1e12, 1e-4))
    assert "time        100 us" in rows("hot-plate", *overrides, known="fast")  # its launches
    with pytest.raises(InputError, match="--machine 'quick' must be one of h200"):
        rows("hot-plate", known="quick")


@pytest.mark.parametrize(
    ("method", "factor"),
    # Conjugate gradients fall faster and faster.
    [("jacobi", 1.5), ("sor", 1.5), ("chebyshev", 1.5), ("cg", 2.2), ("multigrid", 1.5)],
)
def test_iterations_of_real_runs(method, factor):
    """Extrapolated from a trial of a third of them."""
    tolerance = "1e-11" if method == "multigrid" else "1e-6"
    overrides = [PLATE[0], f"solver.tolerance={tolerance}", f"solver.method={method}"]
    case, machine = load("hot-plate", overrides), make("numpy")
    count = heatsolve.run(case, backend="numpy").attributes["iterations"]
    part = load("hot-plate", [*overrides, f"solver.max_iterations={max(3, count // 3)}"])
    trial = tried(part, machine, 60.0)
    assert not trial.ended and trial.units == max(3, count // 3)
    assert count / factor < trial.end() < count * factor


def test_a_trial_of_a_march_ends_in_time():
    case = load("cavity-re100", ["constants.n=16", "time.end=1000"])
    trial = tried(case, make("numpy"), 0.2)
    assert 1 < trial.units < 100_000 and not trial.ended
    assert 0 < trial.seconds < 1


def test_implicit_steps_are_tried_whole():
    trial = tried(load("cooling-cube", ["grid.nodes=[17, 17, 17]"]), make("numpy"), 0.0)
    assert trial.units >= 1


def test_a_case_that_has_no_smaller_one_is_tried_whole(monkeypatch):
    monkeypatch.setitem(predict.MOST_UNKNOWNS, False, 1000)
    given(monkeypatch)
    said = rows("hotspot", "solver.iterations=5000")  # its source has an index
    assert "time        2 ms for each iteration here" in said


def test_writing_takes_its_time(monkeypatch, tmp_path):
    assert predict.seconds_to_write(predict.WRITTEN - 1) == 0.0
    one, ten = (predict.seconds_to_write(n * predict.WRITTEN) for n in (1, 10))
    assert 0.0 < one < 10.0 and ten > one
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(predict, "start_up", lambda: 2.0)
    monkeypatch.setattr(predict, "seconds_to_write", lambda count: count / 1e6)
    given(monkeypatch)
    sweeps = ("solver.method=jacobi", "solver.iterations=5000")
    said = rows("hot-plate", "grid.nodes=[1025, 1025]", *sweeps)
    assert "about 21 s" in said  # 8.4 MB at 1 MB/s after 13 s


def test_pictures_are_not_counted(monkeypatch):
    given(monkeypatch)
    sweeps = ("grid.nodes=[33, 33]", "solver.method=jacobi", "solver.iterations=5000")
    assert "without its pictures" not in rows("hot-plate", *sweeps)
    assert rows("hot-plate", *sweeps, "output.plot=['temperature']").endswith(
        "10 were tried, without its pictures"
    )


def test_what_is_not_predicted_is_said(monkeypatch):
    monkeypatch.setitem(predict.MOST_UNKNOWNS, False, 1000)
    monkeypatch.setattr(predict, "needed", lambda case, machine: 1 << 60)
    said = rows("hotspot")  # its source has an index that a smaller grid has not
    assert "time        not predicted: " in said and "source.point.0.index" in said
    history = {"iteration": (0, 5), "residual": (1.0, 1.0)}
    given(monkeypatch, history=history, threshold=1e-3)
    said = rows("hot-plate", *PLATE[:1], "solver.method=jacobi", "grid.nodes=[17, 17]")
    assert "in all      about" in said  # up to max_iterations
    assert "some 1000000 iterations" in said


def test_the_command(tmp_path):
    case = ["check", "hot-plate", "--set", "grid.nodes=[33, 33]", "--backend=numpy"]
    done = CliRunner().invoke(app, case)
    assert done.exit_code == 0
    assert re.search(r"^time +[\d.]+ (us|ms|s) for each iteration here$", done.stdout, re.M)
    assert re.search(r"^in all +about [\d.]+ s: some \d+ iterations, \d+ were", done.stdout, re.M)
    assert not list(tmp_path.iterdir())
    done = CliRunner().invoke(app, [*case, "--untimed"])
    assert "in all" not in done.stdout and "files" in done.stdout


def test_steps_to_a_steady_state_are_known_from_a_coarser_grid(monkeypatch):
    monkeypatch.setattr(trials, "TRIED_SECONDS", 1.0)
    overrides = ["constants.n=24", "time.tolerance=1e-4"]
    whole = heatsolve.run("cavity-re100", overrides=overrides).attributes["steps"]
    found = re.search(r": (some|at most) (\d+) steps", rows("cavity-re100", *overrides))
    assert found[1] == "some" and float(found[2]) == pytest.approx(whole, rel=0.3)


def test_steps_that_follow_a_flow_are_counted_from_the_last_one():
    """Behind the cylinder the flow becomes faster than it is at the beginning."""
    overrides = ["constants.n=41", "time.end=1", "solver.tolerance=1e-3"]
    whole = heatsolve.run("cylinder-re100", overrides=overrides).attributes["steps"]
    found = re.search(r": (\d+) steps, unless the flow", rows("cylinder-re100", *overrides))
    assert float(found[1]) == pytest.approx(whole, rel=0.3)
