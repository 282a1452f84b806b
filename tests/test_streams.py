"""Odd surroundings: streams that are closed, full or of another tongue, clocks that go wrong."""

import os
import subprocess
import sys
import time

import pytest
from test_faults import heatsolve, sentence
from test_restart import MARCH, STEADY
from test_strangers import program

from heatsolve.case.load import parse
from heatsolve.io.reader import read
from heatsolve.report import Report
from heatsolve.runner import run

RUN = ("run", "case.toml", "--backend", "numpy")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "case.toml").write_text(f"[case]\ntitle = 'Plätte 温度'\n{STEADY}", "utf-8")
    return tmp_path


def shell(folder, command, environment=None):
    """A line of the shell in which `heatsolve` is the program."""
    return subprocess.run(
        ["bash", "-c", f'heatsolve() {{ "{sys.executable}" -m heatsolve "$@"; }}\n{command}'],
        cwd=folder, capture_output=True, text=True, timeout=60, env=environment,
    )  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "streams", [">&-", "2>&-", "<&-", "<&- >&- 2>&-", ">/dev/full", ">/dev/full 2>/dev/full"]
)
def test_a_run_survives_its_streams(folder, streams):
    done = shell(folder, f"heatsolve {' '.join(RUN)} {streams}")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert read(folder / "case.h5").attributes["converged"]
    if streams == ">/dev/full":
        said = "heatsolve: warning: the run goes on without its report: No space left on device\n"
        assert done.stderr == said


def test_a_run_whose_reader_leaves(folder):
    done = shell(folder, f"heatsolve {' '.join(RUN)} | head -1; echo ${{PIPESTATUS[0]}}")
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""
    assert read(folder / "case.h5").attributes["converged"]


@pytest.mark.parametrize(
    ("command", "code"),
    [("info case.h5", 0), ("compare case.h5 other.h5", 5)],
)
def test_a_reader_who_leaves(folder, command, code):
    """Changes neither the exit code nor what is said."""
    for name, wall in (("case", 1), ("other", 2)):
        case = parse(STEADY, "case", [f"boundary.left.temperature.value={wall}"])
        run(case, "numpy", folder / f"{name}.h5")
    done = shell(folder, f"(sleep 0.1; heatsolve {command}) | true; echo ${{PIPESTATUS[0]}}")
    assert done.stdout == f"{code}\n"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("command", "code"),
    [("cases >/dev/full", 6), ("run nothing.toml 2>/dev/full", 2), ("run nothing.toml 2>&-", 2),
     ("run nothing.toml >&- 2>&- <&-", 2)],
)  # fmt: skip
def test_exit_codes_of_other_commands(folder, command, code):
    done = shell(folder, f"heatsolve {command}")
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "surroundings",
    [
        {"LC_ALL": "de_DE.UTF-8", "LANG": "de_DE.UTF-8"},
        {"LC_ALL": "tr_TR.UTF-8", "TZ": "Pacific/Apia"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii", "TERM": "dumb", "COLUMNS": "0"},
    ],
    ids=["german", "turkish", "C", "ascii"],
)
def test_tongues(folder, surroundings):
    """Without a home or a terminal; numbers keep their point, what cannot be said is escaped."""
    kept = {name: os.environ[name] for name in ("PATH", "HEATSOLVE_CACHE") if name in os.environ}
    environment = kept | surroundings
    done = heatsolve(folder, *RUN, env=environment, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    title = done.stdout.splitlines()[0]
    assert title in ("case: Plätte 温度", "case: Pl\\xe4tte \\u6e29\\u5ea6")
    assert "below 1.000e-03" in done.stdout
    assert read(folder / "case.h5").title == "Plätte 温度"
    assert heatsolve(folder, "info", "case.h5", env=environment).returncode == 0
    said = sentence(heatsolve(folder, "run", "nothäre.toml", env=environment), 2)
    assert said.startswith("no case file or shipped case is called")


def test_texts_are_utf8_in_every_tongue(folder):
    """Also where the locale does not know the letters of names and titles."""
    kept = {name: os.environ[name] for name in ("PATH", "HEATSOLVE_CACHE") if name in os.environ}
    environment = kept | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for command in (
        (*RUN, "--output", "è.h5", "--set", "case.description=Gerät"),
        ("report", "è.h5", "--bandwidth", "10"),
    ):
        done = heatsolve(folder, *command, env=environment)
        assert done.returncode == 0, done.stderr
    with (folder / "job").open("wb") as file:
        given = ("submit", "case.toml", "--time", "4:00:00", "--output", "è.h5", "--dry-run")
        assert heatsolve(folder, *given, env=environment, stdout=file).returncode == 0
    assert read(folder / "è.h5").case["case"]["description"] == "Gerät"
    assert "Plätte 温度" in (folder / "è.html").read_text("utf-8")
    for name in ("è.xdmf", "job"):
        assert (folder / name).read_text("utf-8").count("è.h5") == 1


def test_a_title_does_nothing_to_a_terminal(folder):
    text = STEADY + '[case]\ntitle = "\\u001b[31mRed\\u0007 \\u202e"\n'
    (folder / "case.toml").write_text(text)
    for command in (RUN, ("check", "case.toml"), ("info", "case.h5")):
        done = heatsolve(folder, *command)
        assert done.returncode == 0
        assert "\\x1b[31mRed\\x07 \\u202e" in done.stdout
        assert all(c.isprintable() or c == "\n" for c in done.stdout)


def test_a_name_does_nothing_to_a_terminal(folder):
    for command in (("info",), ("run", "case.toml", "--output")):
        done = heatsolve(folder, *command, "no\x1b[31m/\x9b.h5")
        assert done.returncode in (2, 6)
        assert "no\\x1b[31m/\\x9b.h5" in done.stderr
        assert all(c.isprintable() or c == "\n" for c in done.stderr)


def test_a_clock_that_is_set_back(folder, monkeypatch):
    """Nothing depends on the time of day: neither checkpoints by time nor what is reported."""
    times = iter(range(10**9, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(times)))
    case = parse(MARCH, "case", ["checkpoint.every='0.001 s'"])
    result = run(case, "numpy", folder / "case.h5", Report(quiet=True))
    assert result.exit_code == 0
    assert 0.0 < read(result.path).attributes["wall_seconds"] < 60.0
    assert len(list((folder / "case.checkpoints").iterdir())) == 2


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("NUMBA_NUM_THREADS", "abc", "it must be a number of threads, at least 1"),
        ("NUMBA_NUM_THREADS", "0", "it must be a number of threads, at least 1"),
        ("NUMBA_THREADING_LAYER", "nonsense", "it must be omp, tbb, workqueue, default, safe"),
        ("NUMBA_OPT", "x", "it must be 0, 1, 2, 3 or max"),
        ("NUMBA_DISABLE_JIT", "1", "it lets Numba compile nothing, which only the numpy backend"),
        ("SLURM_NTASKS", "abc", "it must be a number"),
        ("SLURM_NTASKS", "1" * 5000, ""),
    ],
)
def test_settings_of_the_environment(name, value, words, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv(name, value)
    for backend in ("auto", "numba"):
        code, said = program(monkeypatch, "run", "case.toml", "--backend", backend)
        assert code == 2
        assert said.startswith(
            f"heatsolve: the environment says {name}={value[:200]}{words and f': {words}'}"
        )
        assert said.count("\n") == 1


def test_another_setting_of_numba(folder):
    """Which it reads when it is imported."""
    done = heatsolve(folder, "run", "case.toml", "--backend", "numba", "--quiet",
                     env={**os.environ, "NUMBA_LOOP_VECTORIZE": "x"})  # fmt: skip
    said = sentence(done, 2)
    assert said.startswith("the numba backend cannot load Numba (Environment variable 'NUMBA_LOOP")


def test_a_window_that_matplotlib_does_not_know(folder):
    """As where a notebook starts the program: pictures go to files."""
    run(parse(STEADY, "case"), "numpy", folder / "case.h5")
    given = {"env": {**os.environ, "MPLBACKEND": "nonsense"}}
    done = heatsolve(folder, "plot", "case.h5", **given)
    assert (done.returncode, done.stdout, done.stderr) == (0, "wrote case.png\n", "")
