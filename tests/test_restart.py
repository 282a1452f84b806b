"""An interrupted run goes on as if nothing had happened: bit for bit, by signals, from the end."""

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
from many import Impatient, assert_same, texts

import heatsolve.linear.system
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.case.case import Case
from heatsolve.case.load import load, parse
from heatsolve.control.controller import Start
from heatsolve.errors import FileFailure, InputError, Interrupted
from heatsolve.io.reader import read
from heatsolve.linear.iterate import FEWEST_ON_DEVICE
from heatsolve.linear.krylov import ConjugateGradients
from heatsolve.models.base import make_model
from heatsolve.report import Report
from heatsolve.runner import run
from heatsolve.time.step_size import time_step_controller

ALL = dict(texts())
RESTART = Start(restart=True)
FEW = 9
"""Sweeps that a GPU makes at once of a field on its chip, in tests."""

STEADY = """
[grid]
cells = [24, 20]
[source]
temperature = "x"
[boundary]
left.temperature = { value = 1 }
right.temperature = { value = 0 }
bottom.temperature = { gradient = 0 }
top.temperature = { value = 0 }
[solver]
method = "jacobi"
tolerance = 1e-3
[checkpoint]
every = 100
"""
MARCH = (
    STEADY.replace("tolerance = 1e-3\n", "tolerance = 1e-9\n")
    + """
[model]
steady = false
[time]
end = 0.02
step = 0.0001
[output]
every = 30
"""
)


def interrupted(case, backend, path, questions, start=RESTART):
    """Run until so many questions were asked; the message."""
    with pytest.raises(Interrupted) as caught:
        run(case, backend, path, start=start, request=Impatient(questions))
    return str(caught.value)


@pytest.mark.few(10, among="numpy")
@pytest.mark.parametrize("name", ALL)
def test_goes_on_bit_for_bit(name, backend, tmp_path, monkeypatch):
    """Interrupted twice, early and later, on every problem with every method and scheme."""
    monkeypatch.setattr(heatsolve.linear.system, "MOST_RESIDENT", FEW)  # fewer than all of a run
    case = parse(ALL[name], "case")
    alone = run(case, backend, tmp_path / "alone.h5").outcome
    path = tmp_path / "twice.h5"
    least = FEW if "jacobi" in name else FEWEST_ON_DEVICE
    if alone.count > (1 if backend in ("numpy", "numba") else least):
        interrupted(case, backend, path, 1)
    with suppress(Interrupted):  # some are at their end by then
        run(case, backend, path, start=RESTART, request=Impatient(3))
    run(case, backend, path, start=RESTART)
    assert_same(path, tmp_path / "alone.h5", name)


@pytest.mark.few(2, among="numpy")
@pytest.mark.parametrize("questions", [3, 4])
def test_a_coarse_solve_begins_with_its_start_alone(questions, backend, tmp_path):
    """Chebyshev's first step reads the array before: nothing of the solve before is to be in it."""
    waves = ["initial.velocity_x='sin(x+0.4)*cos(y-0.3)+0.5*sin(3*y+2*x)'",
             "initial.velocity_y='cos(3*x+0.1)*sin(2*y)-0.6'"]  # fmt: skip
    solver = ["solver.method=chebyshev", "solver.tolerance=1e-3"]
    case = load("taylor-green", ["grid.cells=[16,16]", "time.end=1", *waves, *solver])
    run(case, backend, tmp_path / "alone.h5")
    path = tmp_path / "twice.h5"
    interrupted(case, backend, path, questions)
    run(case, backend, path, start=RESTART)
    assert_same(path, tmp_path / "alone.h5", "a march")


@pytest.mark.few(2, among="numpy")
@pytest.mark.parametrize("method", ["cg", "mgcg"])
def test_goes_on_to_a_smaller_tolerance(method, backend, tmp_path):
    """Questions come before the first check, where a device makes iterations without its gate."""
    settings = ["grid.nodes=[40, 30]", f"solver.method={method}", "solver.monitor=update",
                "solver.check_every=2", "checkpoint.every=1"]  # fmt: skip
    counts, fields = [], []
    for name in ("numpy", backend):
        path = tmp_path / f"{len(counts)}.h5"
        for tolerance in ("1", "1e-9"):
            case = load("hot-plate", [*settings, f"solver.tolerance={tolerance}"])
            result = run(case, name, path, start=RESTART)
            counts.append(result.outcome.count)
        fields.append(result.fields["temperature"].tobytes())
    assert counts[:2] == counts[2:] and counts[0] < counts[1]
    assert fields[0] == fields[1]


def test_continues_on_another_backend(tmp_path):
    case = parse(MARCH, "case")
    run(case, "numpy", tmp_path / "alone.h5")
    path = tmp_path / "two.h5"
    interrupted(case, "numba", path, 6)
    run(case, "numpy", path, start=RESTART)
    assert_same(path, tmp_path / "alone.h5", "numba, then numpy")


def everything_in(folder):
    return {path: path.is_file() and (path.read_bytes(), path.stat().st_mtime_ns)
            for path in folder.rglob("*")}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "text",
    [STEADY, MARCH, MARCH.replace("every = 30", "every = 20")],
    ids=["steady", "march", "march with a frame at its end"],
)
def test_a_finished_run_stays_as_it_is(tmp_path, text):
    path = tmp_path / "case.h5"
    case = parse(text, "case")
    run(case, "numpy", path)
    before = everything_in(tmp_path)
    again = run(case, "numpy", path, start=RESTART)
    assert again.exit_code == 0
    assert everything_in(tmp_path) == before
    # A change that is no other solution writes the file anew.
    run(parse(text, "case", ["checkpoint.keep=3"]), "numpy", path, start=RESTART)
    run(case, "numpy", path, start=RESTART)
    path.unlink()
    if case.time is None:  # a lost file is written anew
        run(case, "numpy", path, start=RESTART)
        run(case, "numpy", tmp_path / "alone.h5")
        assert_same(path, tmp_path / "alone.h5", "written anew")
    else:  # but the frames of a march are lost with it
        with pytest.raises(FileFailure, match=r"part .* is missing"):
            run(case, "numpy", path, start=RESTART)


@pytest.mark.parametrize("method", ["jacobi", "chebyshev", "multigrid", "cg", "mgcg"])
def test_a_smaller_tolerance_goes_on_from_the_end(method, tmp_path):
    """Also where the end was confirmed by the true residual, which a recurrence lacks."""
    path, text = tmp_path / "case.h5", STEADY.replace("jacobi", method)
    run(parse(text, "case"), "numpy", path)
    first = read(path).attributes["iterations"]
    finer = parse(text, "case", ["solver.tolerance=1e-9"])
    run(finer, "numpy", path, start=RESTART)
    run(finer, "numpy", tmp_path / "alone.h5")
    assert read(path).attributes["iterations"] > first
    assert_same(path, tmp_path / "alone.h5", "smaller tolerance")


def test_a_tolerance_between_the_residuals_at_the_end(tmp_path, monkeypatch):
    """The residual by recurrence meets it, the true one does not and replaces it, as in one go."""
    path, text = tmp_path / "case.h5", STEADY.replace("jacobi", "cg")
    text = text.replace("tolerance", "relative = false\ntolerance")
    true = ConjugateGradients.confirm
    monkeypatch.setattr(ConjugateGradients, "confirm", lambda *args: 1.05**2 * true(*args))
    run(parse(text, "case"), "numpy", path)
    norm = float(read(path).history["residual"][-1])
    finer = parse(text, "case", [f"solver.tolerance={norm / 1.02!r}"])
    run(finer, "numpy", path, start=RESTART)
    run(finer, "numpy", tmp_path / "alone.h5")
    assert norm / 1.02 > read(path).history["residual"][-1]
    assert_same(path, tmp_path / "alone.h5", "between")


@pytest.mark.parametrize("size", ["1e-200", "1e200"])
def test_goes_on_with_numbers_whose_squares_no_number_holds(size, tmp_path):
    path, text = tmp_path / "case.h5", STEADY.replace("value = 1 ", f"value = {size} ")
    case = parse(text.replace('"x"', f'"{size}*x"').replace("jacobi", "cg"), "case")
    interrupted(case, "numpy", path, 3)
    run(case, "numpy", path, start=RESTART)
    run(case, "numpy", tmp_path / "alone.h5")
    assert_same(path, tmp_path / "alone.h5", size)
    assert read(path).attributes["iterations"] > 5


def test_a_checkpoint_of_an_earlier_version(tmp_path, monkeypatch):
    """It does not name what has another default since; the run goes on with that of now."""
    path, said = tmp_path / "case.h5", io.StringIO()
    case = parse(STEADY, "case")
    with monkeypatch.context() as earlier:
        earlier.setattr(Case, "recorded", property(lambda case: case.text))
        interrupted(case, "numpy", path, 4)
    run(case, "numpy", path, Report(stream=said), start=RESTART)
    assert (
        "the checkpoint: an earlier version wrote it, in which solver.relative was false by "
        "default, not true"
    ) in said.getvalue()
    run(case, "numpy", tmp_path / "alone.h5")
    assert_same(path, tmp_path / "alone.h5", "with the default of now")


@pytest.mark.few(1)
@pytest.mark.parametrize("end", [0.03, 0.02345])
def test_a_later_end_time_goes_on_from_the_end(tmp_path, end):
    """The first end is a whole number of steps, but no frame is due there."""
    path = tmp_path / "case.h5"
    run(parse(MARCH, "case"), "numpy", path)
    longer = parse(MARCH, "case", [f"time.end={end}"])
    run(longer, "numpy", path, start=RESTART)
    run(longer, "numpy", tmp_path / "alone.h5")
    ours, alone = read(path), read(tmp_path / "alone.h5")
    assert ours.fields["temperature"].tobytes() == alone.fields["temperature"].tobytes()
    assert np.allclose(ours.time, alone.time, rtol=1e-14)
    assert ours.attributes["steps"] == alone.attributes["steps"]


def test_a_checkpoint_off_the_way_is_passed_over(tmp_path, capsys):
    """A last step that was shortened is no step of a longer march."""
    path = tmp_path / "case.h5"
    run(parse(MARCH, "case", ["time.end=0.02005"]), "numpy", path)
    longer = parse(MARCH, "case", ["time.end=0.0225"])
    run(longer, "numpy", path, start=RESTART)
    said = capsys.readouterr().err
    assert said.count("this run cannot go on from the checkpoint after 201 steps") == 1
    assert "its last step was shortened to end at t = 0.02005" in said
    run(longer, "numpy", tmp_path / "alone.h5")
    assert_same(path, tmp_path / "alone.h5", "longer march")


@pytest.mark.parametrize("name", ["heat", "still"])
def test_a_step_that_the_end_made_short_is_none_of_a_longer_march(name, tmp_path, capsys):
    """Also where `time.cfl` allows a longer one than the whole march, or any."""
    walls = {side: {"temperature": {"value": 0}} for side in ("left", "right")}
    heat = {"model": {"steady": False}, "boundary": walls, "initial": {"temperature": "sin(pi*x)"}}
    still = {"model": {"kind": "transport", "velocity": [0]}, "initial": {"concentration": "x"}}
    table = {"heat": heat, "still": still | {"grid": {"cells": [4], "periodic": ["x"]}}}[name]
    case = {"grid": {"cells": [4]}, "time": {"end": 0.01, "cfl": 0.9}, "checkpoint": {"every": 1}}
    heatsolve.run(case | table, backend="numpy", output=tmp_path / "a.h5")
    longer = {"overrides": {"time.end": 0.1}, "backend": "numpy"}
    with pytest.raises(InputError, match="its last step was shortened"):
        heatsolve.run(case | table, restart=True, output=tmp_path / "a.h5", **longer)
    heatsolve.run(case | table, output=tmp_path / "a.h5", overwrite=True, **longer)


@pytest.mark.parametrize("lid", ["1 + sin(9*t)", "sin(9*t)", "1 - t"])
def test_the_first_step_does_not_tell_the_end(lid):
    """Where walls vary in time, steps are tried that may reach beyond the end."""
    text = '[grid]\ncells = [12, 12]\n[model]\nkind = "flow"\nviscosity = 0.01\n[boundary]\n'
    text += "".join(f'{name}.kind = "no-slip"\n' for name in ("left", "right", "bottom", "top"))
    text += f'top.velocity_x.value = "{lid}"\n[time]\nend = 1\ncfl = 0.5'
    cases = [parse(text, "case", [f"time.end={end}"]) for end in (0.3, 1.0, 2.7)]
    problems = [make_model(case, NumpyBackend()) for case in cases]
    assert len({time_step_controller(problem).step for problem in problems}) == 1


def test_an_exact_number_of_iterations_goes_on_behind_the_rounding_level(tmp_path):
    path, settings = tmp_path / "a.h5", ["solver.method='cg'", "solver.tolerance=1e-30"]
    ended = run(parse(STEADY, "case", settings), "numpy", path).outcome
    assert ended.ending == "rounding" and ended.count < 150
    again = parse(STEADY, "case", [settings[0], "solver.tolerance=", "solver.iterations=150"])
    assert run(again, "numpy", path, start=RESTART).outcome.count == 150


@pytest.mark.parametrize(
    ("text", "setting", "reason"),
    [
        (
            MARCH,
            "time.end=0.0001",
            r"it lies at t = [\d.e-]+, beyond the end of this run, time.end =",
        ),
        (STEADY, "solver.iterations=1", "beyond the end of this run, solver.iterations = 1"),
    ],
)
def test_an_end_that_is_passed_already_is_refused(tmp_path, text, setting, reason):
    path = tmp_path / "case.h5"
    interrupted(parse(text, "case"), "numpy", path, 4)
    before = everything_in(tmp_path)
    with pytest.raises(InputError, match=rf"cannot go on from .*: .*{reason}.*--overwrite"):
        run(parse(text, "case", [setting]), "numpy", path, start=RESTART)
    assert everything_in(tmp_path) == before


@pytest.mark.thorough
def test_stopped_in_the_second_part_of_a_step(tmp_path):
    """Crank-Nicolson begins with steps of two parts; the step then begins anew."""
    case = parse(ALL["crank-nicolson"], "case")
    run(case, "numpy", tmp_path / "alone.h5")
    numbers = []
    for questions in range(1, 12):
        path = tmp_path / f"{questions}.h5"
        numbers.append(interrupted(case, "numpy", path, questions).split(",")[0])
        run(case, "numpy", path, start=RESTART)
        assert_same(path, tmp_path / "alone.h5", questions)
    assert len(set(numbers)) < len(numbers)


def test_an_unfinished_run_is_not_lost(tmp_path):
    path = tmp_path / "case.h5"
    case = parse(MARCH, "case")
    interrupted(case, "numpy", path, 4, Start())
    with pytest.raises(InputError, match=r"unfinished run.*--restart.*--overwrite"):
        run(case, "numpy", path)
    run(case, "numpy", path, start=Start(overwrite=True))
    run(case, "numpy", tmp_path / "alone.h5")
    assert_same(path, tmp_path / "alone.h5", "begun anew")


@pytest.mark.parametrize(
    ("setting", "key"),
    [("grid.cells=[12,20]", "grid.cells"), ("boundary.left.temperature.value=2", "boundary.left"),
     ("model.conductivity=2", "model.conductivity"), ("solver.method='sor'", "solver.method")],
)  # fmt: skip
def test_a_changed_problem_is_refused(tmp_path, setting, key):
    path = tmp_path / "case.h5"
    interrupted(parse(STEADY, "case"), "numpy", path, 4)
    with pytest.raises(InputError, match=re.escape(key)):
        run(parse(STEADY, "case", [setting]), "numpy", path, start=RESTART)


def test_from_one_checkpoint(tmp_path):
    path = tmp_path / "case.h5"
    case = parse(STEADY, "case")
    run(case, "numpy", path)
    newest = min((tmp_path / "case.checkpoints").glob("0*"))
    begin = Start(checkpoint=newest)
    run(case, "numpy", tmp_path / "other.h5", start=begin)
    assert_same(tmp_path / "other.h5", path, "from a checkpoint")
    with pytest.raises((InputError, FileFailure)):
        run(case, "numpy", path, start=Start(checkpoint=tmp_path / "nothing"))


def test_a_damaged_checkpoint_is_told_and_passed_over(tmp_path, capsys):
    path = tmp_path / "case.h5"
    case = parse(STEADY, "case", ["solver.relative=false"])  # long enough to be asked so often
    interrupted(case, "numpy", path, 12)
    done = sorted((tmp_path / "case.checkpoints").glob("0*"))
    assert len(done) == 2
    part = next(done[-1].glob("part*"))
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    run(case, "numpy", path, start=RESTART)
    assert part.name in capsys.readouterr().err
    run(case, "numpy", tmp_path / "alone.h5")
    assert_same(path, tmp_path / "alone.h5", "from the older one")


def test_the_memory_of_an_iteration_that_diverges_is_not_saved(tmp_path):
    from heatsolve.errors import Diverged

    path = tmp_path / "case.h5"
    unstable = parse(MARCH, "case", ["time.step=0.01", "time.end=40", "time.allow_unstable=true",
                                     "checkpoint.every=10"])  # fmt: skip
    with pytest.raises(Diverged):
        run(unstable, "numpy", path)
    from heatsolve.io.checkpoints import CheckpointStore
    from heatsolve.parallel.ranks import Ranks

    kept = CheckpointStore(
        tmp_path / "case.checkpoints", (20, 24), ((0, 20), (0, 24)), Ranks()
    ).newest()
    assert kept is not None and all(np.isfinite(v).all() for v in kept.fields.values())


# ---- the program and its signals ---------------------------------------------------------------

ENDLESS = STEADY.replace("1e-3", "1e-300").replace("[24, 20]", "[400, 300]")


def program(folder, *arguments, ranks=1, code=None, **options):
    mpiexec = shutil.which(
        "mpiexec", path=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    )
    if ranks > 1 and mpiexec is None:
        pytest.skip("no mpiexec: install heatsolve[mpich]")
    launcher = [mpiexec, "-n", str(ranks)] if ranks > 1 else []
    return subprocess.Popen(
        [*launcher, sys.executable, *(["-c", code] if code else ["-m", "heatsolve"]),
         *map(str, arguments)],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def wait_for(pattern, folder, seconds=60):
    """The first path that matches, as soon as there is one."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for path in folder.glob(pattern):
            return path
        time.sleep(0.02)
    raise AssertionError(f"no {pattern} in {folder} within {seconds} s")


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_with_a_checkpoint_and_75(tmp_path, number):
    (tmp_path / "case.toml").write_text(ENDLESS)
    run_of_it = program(tmp_path, "run", "case.toml", "--backend", "numba")
    wait_for("case.checkpoints/0*", tmp_path)
    run_of_it.send_signal(number)
    time.sleep(0.01)
    run_of_it.send_signal(number)  # a second one is safe
    _, errors = run_of_it.communicate(timeout=30)
    assert run_of_it.returncode == 75, errors
    assert errors.count("\n") == 1 and "--restart" in errors
    again = program(tmp_path, "run", "case.toml", "--backend", "numba", "--restart",
                    "--set", "solver.tolerance=1e9")  # fmt: skip
    output, errors = again.communicate(timeout=60)
    assert again.returncode == 0, errors
    assert "goes on after" in output


def test_a_signal_to_one_of_several_processes_stops_all(tmp_path):
    (tmp_path / "case.toml").write_text(ENDLESS)
    run_of_it = program(tmp_path, "run", "case.toml", "--backend", "numpy", ranks=2)
    wait_for("case.checkpoints/0*", tmp_path)
    children = [
        pid for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
        if f"{tmp_path}" == _folder_of(pid) and b"heatsolve" in _command_of(pid)
        and b"mpiexec" not in _command_of(pid)
    ]  # fmt: skip
    assert len(children) >= 2
    os.kill(max(children), signal.SIGUSR1)
    _, errors = run_of_it.communicate(timeout=30)
    assert run_of_it.returncode == 75, errors
    assert errors.count("interrupted after") == 1


HELD_UP = """
import hashlib, os, sys, time
from pathlib import Path
from heatsolve import cli
from heatsolve.parallel import ranks
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.models.flow.projection import Projection

def compiling(name):
    "As a compiler does, which no signal stops."
    Path(f"{name}, {os.getpid()}").touch()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30)

def waiting(name):
    Path(f"{name}, {os.getpid()}").touch()
    while not Path("go").exists():
        time.sleep(0.01)

def held_up(owner, name, here):
    original = getattr(owner, name)
    setattr(owner, name, lambda self, *given: (here(self), original(self, *given))[1])

what = sys.argv.pop(1)
if what == "compiling":
    held_up(NumpyBackend, "_compile", lambda self: compiling(what))
elif what == "in a step":
    held_up(Projection, "_correct_stage", lambda self: self.time > 0.07 and waiting(what))
else:
    held_up(ranks.World, "__init__", lambda self: waiting(what))
cli.main()
"""
"""A program that stays in one place: until there is a file `go`, or in a library for an hour."""
CAVITY = """
[model]
kind = "flow"
viscosity = 0.1
[grid]
cells = [6, 6]
[boundary]
left.kind = "no-slip"
right.kind = "no-slip"
bottom.kind = "no-slip"
top = { kind = "no-slip", velocity_x.value = 1 }
[time]
step = 0.05
end = 0.5
scheme = "rk2"
"""


def held_up(folder, what, ranks=1, **options):
    """The program of this case in a folder, once it is in that place."""
    process = program(folder, what, "run", "case.toml", "--backend", "numpy", ranks=ranks,
                      code=HELD_UP, **options)  # fmt: skip
    while len(list(folder.glob(f"{what}, *"))) < ranks:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return process


PATIENT = """
from heatsolve import cli
from heatsolve.control import stop

stop.PATIENCE = 60.0
cli.main()
"""
"""A program that does not say what Ctrl-C waits for where a busy machine is slow to answer."""


def test_ctrl_c_ends_with_a_checkpoint_and_130(tmp_path):
    (tmp_path / "case.toml").write_text(ENDLESS)
    run_of_it = program(tmp_path, "run", "case.toml", "--backend", "numpy", code=PATIENT)
    wait_for("case.checkpoints/0*", tmp_path)
    run_of_it.send_signal(signal.SIGINT)
    _, errors = run_of_it.communicate(timeout=30)
    assert run_of_it.returncode == 130, errors
    said = re.fullmatch(r"heatsolve: interrupted after (\d+) .* --restart from (.*)\n", errors)
    assert said, errors
    assert (tmp_path / said[2]).name == f"{int(said[1]):012}"
    assert (tmp_path / said[2]).is_dir()


def test_ctrl_c_while_something_is_compiled(tmp_path):
    """Nothing has been computed: the program ends, though its main thread hears nothing."""
    (tmp_path / "case.toml").write_text(STEADY)
    run_of_it = held_up(tmp_path, "compiling")
    run_of_it.send_signal(signal.SIGINT)
    _, errors = run_of_it.communicate(timeout=30)
    assert (run_of_it.returncode, errors) == (130, "heatsolve: interrupted\n")
    assert not list(tmp_path.glob("*.h5")) + list(tmp_path.glob("case.checkpoints/*"))


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_inside_a_step_of_a_flow(tmp_path, times):
    """It is answered there; the step is finished and the state saved. A second one ends it."""
    (tmp_path / "case.toml").write_text(CAVITY)
    run_of_it = held_up(tmp_path, "in a step")
    run_of_it.send_signal(signal.SIGINT)
    assert run_of_it.stderr.readline() == (
        "heatsolve: will stop when this step is done; Ctrl-C again ends it at once\n"
    )
    if times == 2:
        run_of_it.send_signal(signal.SIGINT)
        _, errors = run_of_it.communicate(timeout=30)
        assert (run_of_it.returncode, errors) == (130, "heatsolve: interrupted\n")
        assert not list(tmp_path.glob("case.checkpoints/*"))
        return
    (tmp_path / "go").touch()
    _, errors = run_of_it.communicate(timeout=30)
    assert run_of_it.returncode == 130
    assert re.match("heatsolve: interrupted after [23] steps, go on with --restart from ", errors)
    case = parse(CAVITY, "case")
    run(case, "numpy", tmp_path / "case.h5", start=RESTART)
    run(case, "numpy", tmp_path / "alone.h5")
    assert_same(tmp_path / "case.h5", tmp_path / "alone.h5", "after Ctrl-C")


def test_ctrl_c_while_mpi_starts(tmp_path):
    """It waits until all processes know each other, and then ends them together."""
    (tmp_path / "case.toml").write_text(STEADY)
    run_of_it = held_up(tmp_path, "in MPI", ranks=2, start_new_session=True)
    os.killpg(run_of_it.pid, signal.SIGINT)
    time.sleep(0.1)
    (tmp_path / "go").touch()
    _, errors = run_of_it.communicate(timeout=30)
    assert run_of_it.returncode == 130
    assert errors.count("heatsolve: interrupted") == 1
    assert "Traceback" not in errors


def test_ctrl_c_of_several_processes(tmp_path):
    """The launcher passes on what the terminal has told the processes already."""
    (tmp_path / "case.toml").write_text(ENDLESS)
    run_of_it = program(tmp_path, "run", "case.toml", "--backend", "numpy", ranks=2,
                        start_new_session=True)  # fmt: skip
    wait_for("case.checkpoints/0*", tmp_path)
    os.killpg(run_of_it.pid, signal.SIGINT)
    _, errors = run_of_it.communicate(timeout=30)
    assert run_of_it.returncode == 130, errors
    assert errors.count("interrupted after") == 1


def test_an_ignored_ctrl_c_stays_ignored(tmp_path):
    """As shells set it for what runs in the background."""
    (tmp_path / "case.toml").write_text(ENDLESS)
    ignore = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    run_of_it = program(tmp_path, "run", "case.toml", "--backend", "numpy", preexec_fn=ignore)
    wait_for("case.checkpoints/0*", tmp_path)
    run_of_it.send_signal(signal.SIGINT)
    run_of_it.send_signal(signal.SIGTERM)
    _, errors = run_of_it.communicate(timeout=30)
    assert run_of_it.returncode == 75, errors


def test_a_killed_process_ends_all(tmp_path):
    (tmp_path / "case.toml").write_text(ENDLESS)
    run_of_it = program(tmp_path, "run", "case.toml", "--backend", "numpy", ranks=2)
    wait_for("case.checkpoints/0*", tmp_path)
    child = max(
        pid for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
        if f"{tmp_path}" == _folder_of(pid) and b"mpiexec" not in _command_of(pid)
        and b"-m\0heatsolve" in _command_of(pid)
    )  # fmt: skip
    os.kill(child, signal.SIGKILL)
    run_of_it.communicate(timeout=30)
    assert run_of_it.returncode != 0


def _command_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _folder_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""
