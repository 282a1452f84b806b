"""What a run says: a bar on a terminal, lines elsewhere, nothing when quiet."""

import io
import math
import os
import pty
import subprocess
import sys

import pytest

from heatsolve import report
from heatsolve.backends import compilation
from heatsolve.report import NormAlone, Report, Shares, count, duration, speed, together


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""
    now = [0.0]
    monkeypatch.setattr(report.time, "perf_counter", lambda: now[0])
    return now


def converging(clock, quiet=False):
    """A run of 30 s at 100 iterations a second, whose norm falls by e every 5 s."""
    stream = io.StringIO()
    talk = Report(quiet, stream)
    talk.begin("iteration", 1_000_000)
    talk.aim(NormAlone(1e-6))
    for second in range(1, 31):
        clock[0] = float(second)
        talk.progress(100 * second, math.exp(-second / 5.0))
    return talk, stream.getvalue().splitlines()


def test_lines_every_few_seconds(clock):
    _, lines = converging(clock)
    assert len(lines) == 6
    assert lines[0] == "[5.0 s] iteration 500, norm 3.679e-01, 100/s"


def test_time_left_is_fitted_to_the_rate_of_convergence(clock):
    talk, lines = converging(clock)
    # The norm is e^-6 now and must reach 1e-6, a factor of e every 5 s.
    assert talk.seconds_left() == pytest.approx(5.0 * (math.log(1e6) - 6.0))
    assert lines[-1].endswith("about 39 s left")


def test_compilation_is_told_once_and_is_no_solving(clock):
    stream = io.StringIO()
    talk = Report(stream=stream)
    with compilation.watched(talk.compiles, talk.has_compiled):
        talk.begin("step", 1000)
        for seconds, more in ((30.0, 10.0), (20.0, 0.0)):
            with compilation.compiling(), compilation.compiling():  # one calls another
                clock[0] += seconds
            clock[0] += more
            talk.progress(20, 0.5)
    with compilation.compiling():  # of nobody's business
        clock[0] += 5.0
    assert stream.getvalue().splitlines() == [
        report.COMPILING,
        "[10 s] step 20, norm 5.000e-01, 2/s",
    ]
    assert talk.compiled == 50.0
    assert talk.end() == 15.0


def test_time_left_is_by_count_without_a_threshold(clock):
    talk = Report(stream=io.StringIO())
    talk.begin("step", 1000)
    for second in (10.0, 20.0):
        clock[0] = second
        talk.progress(int(10 * second), None)
    assert talk.seconds_left() == pytest.approx(80.0)


def test_the_rate_of_a_restart_leaves_out_earlier_steps(clock):
    stream = io.StringIO()
    talk = Report(stream=stream)
    talk.begin("step", 200_000, 100_000)
    clock[0] = 10.0
    talk.progress(100_050, None)
    assert stream.getvalue().startswith("[10 s] step 100050, 5/s")


def test_quiet(clock):
    _, lines = converging(clock, quiet=True)
    assert lines == []


def test_words():
    assert [duration(s) for s in (0.44, 12.3, 200.0, 18720.0)] == [
        "0.4 s",
        "12 s",
        "3 min 20 s",
        "5 h 12 min",
    ]
    assert [count(n) for n in (12.0, 5.12e5, 1.337e9)] == ["12 ", "512 k", "1.34 G"]


def test_speed():
    assert speed(2.0, 2.7e9, 4.3e10) == "2.0 s, 1.35 GLUP/s, 21.5 GB/s"
    assert speed(0.5, 1e6, 1.6e7, 5e5).endswith("32 MB/s, 1 M unknowns solved per second")
    assert speed(0.0, 0, 0) == "0.0 s"


def test_the_cost_of_several_processes():
    said = together(Shares(0.125, 0.3, 0.01, 0.9876))
    assert said.startswith("ghosts: waited 12.5 % of the time, 30.0 % hidden behind work; ")
    assert said.endswith("sums: 1.0 %; the mean block is 0.988 of the largest")
    said = together(Shares(0.125, None, 0.01, 0.9876))
    assert said.startswith("ghosts: waited 12.5 % of the time; sums: 1.0 %")
    said = together(Shares(None, None, 0.0, 1.0))
    assert said.startswith("ghosts travelled in the GPUs' queues; sums: 0.0 %")


def test_a_bar_on_a_terminal(tmp_path):
    """On a real pseudo-terminal the run draws a bar and takes it away again."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "heatsolve", "run", "hotspot", "--backend", "numpy",
               "--set", "solver.tolerance=2e-3", "--output", str(tmp_path / "a.h5")]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    )
    os.close(slave)
    said = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the terminal's other end is closed
            break
        if not part:
            break
        said += part
    assert process.wait() == 0
    text = said.decode()
    assert "━" in text
    assert "norm" in text
    assert "converged in" in text
