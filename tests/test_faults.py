"""Runs under faults: numbers that are none, full disks, killed processes, signals.

Each ends with a sentence and its exit code, or goes on; what was there before is not lost.
"""

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
from contextlib import nullcontext, suppress

import numpy as np
import pytest
from many import assert_same, texts
from test_checkpoint import mounted
from test_ranks import BESIDE, launch, mpi
from test_restart import MARCH, RESTART, STEADY, _command_of, _folder_of, wait_for

from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.budget import explained
from heatsolve.case.load import parse
from heatsolve.control.controller import CheckpointController
from heatsolve.control.stop import StopRequest
from heatsolve.errors import Diverged, FileFailure, InputError, Interrupted
from heatsolve.io import checkpoints, disk, writer
from heatsolve.io import subfiles as parts
from heatsolve.io.disk import write_text
from heatsolve.io.reader import read
from heatsolve.runner import run
from heatsolve.tools.template import write_starter
from heatsolve_post.style import Figure, save

ALL = dict(texts())
FRAMES = ["output.every=1", "checkpoint.every=7"]


def heatsolve(folder, *arguments, **options):
    """The program, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "heatsolve", *map(str, arguments)], cwd=folder, timeout=60,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options},
    )  # fmt: skip


def sentence(done, code):
    """What a failed program said, which is one line."""
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    return done.stderr.removeprefix("heatsolve: ").rstrip()


def tree(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# ---- numbers that are none ---------------------------------------------------------------------

PLACES = {
    "inside": lambda shape: tuple(n // 2 for n in shape),
    "beside a wall": lambda shape: (1, *(n // 2 for n in shape[1:])),
    "in a wall": lambda shape: (0, *(n // 2 for n in shape[1:])),
}


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """The bytes of the output of an earlier run."""
    path = tmp_path_factory.mktemp("earlier") / "case.h5"
    return run(parse(STEADY, "case"), "numpy", path).path.read_bytes()


@pytest.mark.few(10)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "name",
    ["nodes, values, jacobi", "cells, mixed, sor", "explicit", "crank-nicolson",
     "self, explicit upwind transport", "walls, collocated explicit", "driven, staggered"],
)  # fmt: skip
def test_nan_is_found_at_the_next_look(name, place, earlier, tmp_path, monkeypatch):
    """With its place; the file of an earlier run stays, and so does the last checkpoint."""
    path = tmp_path / "case.h5"
    check = CheckpointController.check
    path.write_bytes(earlier)

    def poisoned(self, number, capture=None):
        check(self, number, capture)
        if number == 4:
            array = next(iter(capture().fields.values()))
            array[PLACES[place](array.shape)] = np.nan

    monkeypatch.setattr(CheckpointController, "check", poisoned)
    try:
        run(parse(ALL[name], "case", ["checkpoint.every=2"]), "numpy", path)
    except Diverged as error:
        assert error.exit_code == 4
        assert re.search(r"by (iteration|step) [56]\b.* is nan at x = .*y = ", str(error))
        assert path.read_bytes() == earlier
        kept = sorted((tmp_path / "case.checkpoints").iterdir())
        assert [p.name for p in kept] == ["000000000002", "000000000004"]
        assert not list(tmp_path.glob(".*"))
    else:  # walls that are written anew at every step, or not read there
        assert place == "in a wall"
        assert all(np.isfinite(values).all() for values in read(path).fields.values())


POISONED = """
import sys, numpy as np
from heatsolve import cli
from heatsolve.control.controller import CheckpointController
from heatsolve.parallel.ranks import find_ranks

rank, check = find_ranks().rank, CheckpointController.check

def poisoned(self, number, capture=None):
    check(self, number, capture)
    if number == 100 and rank == 1:
        capture().fields["u"][1, 5] = np.nan  # the first row of its own

CheckpointController.check = poisoned
sys.argv = ["heatsolve", "run", *sys.argv[1:]]
cli.main()
"""


@mpi
def test_nan_at_the_edge_of_a_process(tmp_path):
    (tmp_path / "case.toml").write_text(STEADY)
    case, path = tmp_path / "case.toml", tmp_path / "case.h5"
    given = (case, "--backend", "numpy", "--set", "parallel.ranks=[1,2]", "--output", path)
    done = launch(2, "-c", POISONED, *given, timeout=60)
    assert done.returncode == 4
    assert done.stderr.count("diverged by iteration 101: temperature is nan at x = ") == 1
    assert "Traceback" not in done.stderr
    assert [p.name for p in tmp_path.glob("case.checkpoints/*")] == ["000000000100"]
    assert not path.exists()


# ---- other systems -----------------------------------------------------------------------------

WITHOUT = """
import os, sys
{}
from heatsolve import cli
cli.main()
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("command", ["run", "check", "doctor"])
def test_a_system_that_binds_no_process_to_cores(command, tmp_path):
    """As macOS: what Python lacks there is taken away."""
    (tmp_path / "case.toml").write_text(STEADY)
    code = WITHOUT.format("del os.sched_getaffinity, os.sched_setaffinity, os.posix_fallocate")
    given = {"doctor": []}.get(command, ["case.toml", "--backend", "numpy"])
    done = subprocess.run([sys.executable, "-c", code, command, *given], cwd=tmp_path, timeout=120,
                          capture_output=True, text=True)  # fmt: skip
    assert "Traceback" not in done.stderr and "check failed" not in done.stdout
    if command != "doctor":  # which may find something else amiss here
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "case.h5").exists() == (command == "run")


@pytest.mark.parametrize("command", [["run", "hotspot"], ["cases"]])
def test_windows_is_told_of_wsl(command, tmp_path):
    code = WITHOUT.format("sys.modules['fcntl'] = None; import signal; del signal.SIGUSR1")
    done = subprocess.run([sys.executable, "-c", code, *command], cwd=tmp_path, timeout=60,
                          capture_output=True, text=True)  # fmt: skip
    assert sentence(done, 2).endswith("install it in WSL, the Windows Subsystem for Linux")


# ---- disks -------------------------------------------------------------------------------------


def test_a_full_disk_keeps_the_earlier_output(tmp_path):
    """Of the program, on a file system that really is full."""
    with mounted(tmp_path, "-o", "size=600k"):
        (tmp_path / "case.toml").write_text(re.sub(r"\[solver\][^\[]*", "", MARCH))
        arguments = ("run", "case.toml", "--backend", "numpy", "--quiet", "--overwrite")
        assert heatsolve(tmp_path, *arguments).returncode == 0
        before = tree(tmp_path)
        more = ("--set", "output.every=1", "--set", "checkpoint.every=10000")
        said = sentence(heatsolve(tmp_path, *arguments, *more), 6)
        assert said.endswith("case.h5: No space left on device")
        after = tree(tmp_path)
        assert after == {p: data for p, data in before.items() if "checkpoints" not in str(p)}


def test_a_full_disk_keeps_texts_and_pictures(tmp_path, monkeypatch):
    """And leaves no half of anything, nor of a new case."""
    with mounted(tmp_path, "-o", "size=64k"):
        monkeypatch.chdir(tmp_path)
        write_text(tmp_path / "a.html", "an earlier page")
        save(Figure(), tmp_path / "a.png")
        with open(tmp_path / "rest", "wb", buffering=0) as rest, suppress(OSError):
            while rest.write(bytes(4096)):
                pass
        before = tree(tmp_path)
        for write in (
            lambda: write_text(tmp_path / "a.html", "a page"),
            lambda: save(Figure(), tmp_path / "a.png"),
            lambda: write_starter("mine"),
        ):
            with pytest.raises(FileFailure, match=r"cannot write .*: No space left on device"):
                write()
        assert tree(tmp_path) == before
        monkeypatch.chdir("/")


def test_an_output_that_another_run_writes(tmp_path):
    (tmp_path / "case.toml").write_text(STEADY)
    with open(tmp_path / ".case.h5.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = sentence(heatsolve(tmp_path, "run", "case.toml", "--backend", "numpy", "--quiet"), 6)
    assert said == "another run is writing case.h5"
    assert not (tmp_path / "case.h5").exists()


# ---- killed, and stopped -----------------------------------------------------------------------


def killed_after_a_checkpoint(folder, ranks):
    """Kill a process of the run of case.toml in a folder; the others end with it."""
    launcher = [str(BESIDE), "-n", str(ranks)] if ranks > 1 else []
    command = [*launcher, sys.executable, "-m", "heatsolve", "run", "case.toml"]
    process = subprocess.Popen(
        [*command, "--backend", "numpy"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_for("case.checkpoints/0*", folder)
    child = max(
        pid for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
        if str(folder) == _folder_of(pid) and b"-m\0heatsolve" in _command_of(pid)
        and b"mpiexec" not in _command_of(pid)
    )  # fmt: skip
    os.kill(child, signal.SIGKILL)
    process.communicate(timeout=30)
    assert process.returncode != 0


@pytest.mark.few(1)
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=mpi)])
def test_a_killed_run_goes_on_bit_for_bit(ranks, earlier, tmp_path):
    """The earlier output is untouched until then, and nothing hidden is left afterwards."""
    text = MARCH.replace("[24, 20]", "[240, 200]").replace("0.0001", "0.000001")
    text = text.replace("end = 0.02", "end = 0.001")
    (tmp_path / "case.toml").write_text(text)
    alone = tmp_path / "alone"
    alone.mkdir()
    (tmp_path / "case.h5").write_bytes(earlier)
    killed_after_a_checkpoint(tmp_path, ranks)
    assert (tmp_path / "case.h5").read_bytes() == earlier
    case = parse(text, "case")
    run(case, "numpy", tmp_path / "case.h5", start=RESTART)
    run(case, "numpy", alone / "case.h5")
    assert_same(tmp_path / "case.h5", alone / "case.h5", "after a kill")
    assert not [p for p in tmp_path.rglob(".*") if not p.name.endswith(".lock")]


def test_killed_while_parts_are_removed(tmp_path, monkeypatch):
    """A file that was gathered from them stands for those that are gone."""
    path = tmp_path / "case.h5"
    case = parse(MARCH, "case")
    run(case, "numpy", tmp_path / "alone.h5")
    kept = {}

    def cut_short(folder, **_):
        kept.update({p.name: p.read_bytes() for p in folder.glob("*.h5")})

    with monkeypatch.context() as patched:
        patched.setattr(parts, "remove", cut_short)
        run(case, "numpy", path)
    assert len(kept) > 1
    folder = parts.folder_of(path)
    min(folder.glob("*.h5")).unlink()
    run(parse(MARCH, "case", ["output.every=30"]), "numpy", path, start=RESTART)
    assert_same(path, tmp_path / "alone.h5", "with some of its parts")


MOMENTS = {
    "a frame": (writer.FieldFile, "append"),
    "the name of a frame's file": (writer.FieldFile, "seal"),
    "a part of a checkpoint": (checkpoints.CheckpointStore, "_write_part"),
    "the name of a checkpoint": (checkpoints.CheckpointStore, "_finish"),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_while_files_are_written(moment, tmp_path, monkeypatch):
    """Then what is being written is complete, and the run goes on behind it."""
    owner, name = MOMENTS[moment]
    write, request, path = getattr(owner, name), StopRequest(), tmp_path / "case.h5"
    case = parse(MARCH, "case", FRAMES)
    run(case, "numpy", tmp_path / "alone.h5")
    count = iter(range(100))

    def signalled(*arguments, **named):
        if next(count, None) == 3:
            signal.raise_signal(signal.SIGTERM)
        return write(*arguments, **named)

    before = signal.signal(signal.SIGTERM, request.make)
    try:
        with monkeypatch.context() as patched, pytest.raises(Interrupted) as caught:
            patched.setattr(owner, name, signalled)
            run(case, "numpy", path, request=request)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert caught.value.exit_code == 75
    assert request.made
    assert not path.exists()
    run(case, "numpy", path, start=RESTART)
    assert_same(path, tmp_path / "alone.h5", moment)


# ---- memory ------------------------------------------------------------------------------------


class OutOfMemoryError(MemoryError):
    """As CuPy raises it."""


class CudaAPIError(Exception):
    """As Numba-CUDA raises it."""


SHORT = {
    "cupy": OutOfMemoryError("Out of memory allocating 8,589,934,592 bytes (allocated so far: 0)"),
    "cuda": CudaAPIError("[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"),
    "a graph": RuntimeError("CUDA: CUDA_ERROR_OUT_OF_MEMORY"),
    "an FFT": RuntimeError("CUFFT_ALLOC_FAILED"),
}


class Small(NumpyBackend):
    """A device of 48 KB."""

    on_device = True

    def __init__(self, error):
        super().__init__()
        self.name, self._error, self._left = "cuda", error, 48 * 1024

    def memory(self):
        return 48 * 1024, 1 << 20

    def zeros(self, shape):
        self._left -= 8 * int(np.prod(shape))
        if self._left < 0:
            raise self._error
        return super().zeros(shape)


@pytest.mark.parametrize("library", SHORT)
def test_memory_of_a_gpu(library, monkeypatch, tmp_path):
    """The sentence says what the case needs, and what would fit."""
    monkeypatch.setattr(
        "heatsolve.runner.choose", lambda *_: (Small(SHORT[library]), "as asked for")
    )
    case = parse(STEADY.replace("[24, 20]", "[240, 200]"), "case")
    with pytest.raises(InputError) as caught:
        run(case, None, tmp_path / "a.h5")
    found = re.fullmatch(
        r"not enough memory on the GPU, where 49152 bytes of 1 MiB were free: the case needs "
        r"about (.*) bytes; (.*) of its 4.8e\+04 unknowns would fit, or all of them on (\d+) "
        r"processes with a GPU each", str(caught.value),
    )  # fmt: skip
    needed, fitting, many = map(float, found.groups())
    assert needed == pytest.approx(2 * 8 * 242 * 202, rel=0.05)
    assert fitting == pytest.approx(48000 * 49152 / needed, rel=0.05)
    assert many == np.ceil(needed / 49152)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("on_device", [False, True])
def test_a_run_that_cannot_fit_does_not_begin(monkeypatch, tmp_path, on_device):
    """A control group would kill it without a word."""
    machine = Small(AssertionError("it began"))
    machine.on_device, machine._left = on_device, 0
    machine.memory = lambda: (1 << 15, 1 << 16)
    monkeypatch.setattr("heatsolve.runner.choose", lambda *_: (machine, "as asked for"))
    where = "GPU" if on_device else "host"
    with pytest.raises(InputError, match=f"^not enough memory on the {where}, where 32768 bytes of "
                       "65536 bytes were free: the case needs about"):  # fmt: skip
        run(parse(STEADY.replace("[24, 20]", "[240, 200]"), "case"), None, tmp_path / "a.h5")


def test_memory_of_the_host(tmp_path):
    (tmp_path / "case.toml").write_text(STEADY.replace("[24, 20]", "[1000000, 1000000]"))
    said = sentence(heatsolve(tmp_path, "run", "case.toml", "--backend", "numpy", "--quiet"), 2)
    assert said.startswith("not enough memory on the host")
    assert "TiB; " in said
    assert "unknowns would fit" in said


def test_other_errors_are_no_want_of_memory():
    wrong = RuntimeError("CUDA: CUDA_ERROR_INVALID_VALUE")
    with pytest.raises(RuntimeError) as caught, explained(parse(STEADY, "case"), Small(None), 1):
        raise wrong
    assert caught.value is wrong


LONG = """
import os, sys
from pathlib import Path
from heatsolve.case.load import parse
from heatsolve.io.writer import Results
from heatsolve.runner import run
from heatsolve.tools.template import write_starter

append, seen = Results.append, []

def watched(self, *given):
    append(self, *given)
    pages = int(open("/proc/self/statm").read().split()[1])
    seen.append((pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(os.listdir("/proc/self/fd"))))

Results.append = watched
case = parse(sys.argv[1], "case", ["time.end=0.05", "time.step=1e-5", "checkpoint.every=250"])
run(case, sys.argv[2], Path(sys.argv[3]))
assert len(seen) == 168, len(seen)
begin, end = seen[30], seen[-2]  # 900 steps, and nearly all
print(begin, end)
assert end[0] - begin[0] < 3.0 and end[1] == begin[1], seen
"""


@pytest.mark.few(1, among="numpy")
@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_memory_and_descriptors_stay_flat(backend, tmp_path):
    """Over 5,000 steps, with output and checkpoints."""
    command = [sys.executable, "-c", LONG, MARCH, backend, str(tmp_path / "a.h5")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    print(done.stdout)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_a_folder_that_cannot_be_forced_to_the_disk(tmp_path, monkeypatch, number):
    """Some file systems know no such call; a file must get there, and a real failure is one."""

    def fails(descriptor):
        raise OSError(number, "")

    monkeypatch.setattr(os, "fsync", fails)
    (tmp_path / "a").touch()
    with pytest.raises(OSError):
        disk.sync(tmp_path / "a")
    with pytest.raises(OSError) if number == errno.EIO else nullcontext():
        disk.sync(tmp_path)
