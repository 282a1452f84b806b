"""Compiled loops are kept on disk, safely when processes start at once."""

import errno
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from test_faults import STEADY

from heatsolve.backends import compilation
from heatsolve.backends.gpu.backend import DeviceBackend
from heatsolve.backends.host.numba import NumbaBackend
from heatsolve.case.load import parse
from heatsolve.runner import run

RUN = [sys.executable, "-m", "heatsolve", "run", "hot-plate", "--backend", "numba",
       "--set", "grid.nodes=[33, 33]"]  # fmt: skip


def start(cache, output):
    environment = {**os.environ, "HEATSOLVE_CACHE": str(cache)}
    return subprocess.Popen(
        [*RUN, "--output", str(output)], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def machine_code(cache):
    return {path.name: path.stat().st_mtime_ns for path in cache.rglob("*.nbc")}


@pytest.mark.thorough
def test_processes_that_start_at_once_share_an_empty_cache(tmp_path):
    cache = tmp_path / "cache"
    processes = [start(cache, tmp_path / f"{n}.h5") for n in range(3)]
    told = 0
    for process in processes:
        said, _ = process.communicate()
        assert process.returncode == 0, said
        told += "compiling, once" in said
    assert told
    assert not list(cache.glob("*.part"))
    compiled = machine_code(cache)
    assert compiled
    again = start(cache, tmp_path / "again.h5")
    said, _ = again.communicate()
    assert again.returncode == 0 and "compiling" not in said
    assert machine_code(cache) == compiled  # nothing was compiled again


@pytest.mark.gpu
def test_a_cached_run_on_a_gpu_imports_no_compiler(tmp_path):
    """Numba takes half a second."""
    code = (
        "import heatsolve, sys\n"
        "heatsolve.run('hot-plate', backend='cuda', output=False)\n"
        "print('numba' in sys.modules)"
    )
    environment = {**os.environ, "HEATSOLVE_CACHE": str(tmp_path)}
    said = [
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True,
                       text=True, check=True).stdout.split()[-1]
        for _ in range(2)
    ]  # fmt: skip
    assert said == ["True", "False"]


def test_a_cache_that_cannot_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    process = start(blocked / "cache", tmp_path / "a.h5")
    said, _ = process.communicate()
    assert process.returncode == 0, said


# ---- folders -----------------------------------------------------------------------------------


@pytest.fixture
def homeless(tmp_path, monkeypatch):
    """A container's user: without a name, a home, or a variable; the folder of temporary files."""

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    for name in ("HEATSOLVE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(compilation, "_troubles", [])
    return tmp_path / f"heatsolve-{os.getuid()}"


def test_without_a_home_a_temporary_folder_of_our_own_is_used(homeless):
    assert compilation.cache_folder() == homeless
    assert homeless.stat().st_mode & 0o777 == 0o700
    assert compilation.load_or_make("name", lambda: b"made") == b"made"
    assert compilation.load_or_make("name", lambda: b"made anew") == b"made"
    assert not compilation.trouble()


def a_link(path):
    elsewhere = path.with_name("elsewhere")
    elsewhere.mkdir(mode=0o700)
    path.symlink_to(elsewhere)


def open_to_others(path):
    path.mkdir()
    path.chmod(0o777)


@pytest.mark.parametrize("make", [a_link, open_to_others, Path.touch])
def test_a_temporary_folder_that_is_not_our_own_is_not_used(homeless, make):
    make(homeless)
    assert compilation.cache_folder() is None
    assert compilation.load_or_make("name", lambda: b"made") == b"made"
    assert compilation.trouble().startswith(
        "compiled code is not kept from run to run (there is no"
    )
    assert not list(homeless.parent.glob("*/*"))


def test_a_temporary_folder_of_another_user_is_not_used(homeless, monkeypatch):
    uid = os.getuid()
    homeless.with_name(f"heatsolve-{uid + 1}").mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert compilation.cache_folder() is None


def compiler(name, made):
    """A compiler of this code, which notes down the threads that call it."""

    def make():
        made.append((name, threading.current_thread() is threading.main_thread()))
        return name.encode()

    return make


def test_kernels_are_compiled_together_at_the_end(homeless):
    """By threads, except code whose compiler serves one thread; none before, none twice."""
    made, loaded, launched = [], [], []

    class Device(DeviceBackend):
        def _loaded(self, code, name, bytes_shared):
            loaded.append((code, name, bytes_shared))
            return lambda *given: launched.append((code, *given))

    Device.__abstractmethods__ = frozenset()  # it needs no device
    device = object.__new__(Device)
    with device.compiling_at_once():
        kernels = [
            device._made(name, compiler(name, made), "sweep", size, alone)
            for name, size, alone in (("c", 0, False), ("n", 0, True), ("c", 8, False))
        ]
        assert not made and not loaded
    assert sorted(made) == [("c", False), ("n", True)]
    assert loaded == [(b"c", "sweep", 0), (b"n", "sweep", 0), (b"c", "sweep", 8)]
    kernels[1]("launch", "args")
    with device.compiling_at_once():
        device._made("c", compiler("c", made), "sweep", 0)("again", "args")
    device._made("later", compiler("later", made), "sweep", 0)("launch", "args")
    assert launched == [
        (b"n", "launch", "args"),
        (b"c", "again", "args"),
        (b"later", "launch", "args"),
    ]
    assert made[2:] == [("later", True)]
    with suppress(ZeroDivisionError), device.compiling_at_once():
        kernel = device._made("never", compiler("never", made), "sweep", 0)
        raise ZeroDivisionError
    assert made[3:] == []
    kernel("launch", "args")
    assert made[3:] == [("never", True)] and launched[-1][0] == b"never"


def test_kernels_are_compiled_without_threads_where_there_are_too_many(homeless, monkeypatch):
    def none(self):
        raise RuntimeError("can't start new thread")

    made = []
    monkeypatch.setattr(threading.Thread, "start", none)
    files = {name: compiler(name, made) for name in "abc"}
    assert compilation.load_or_make_all(files, {}) == {"a": b"a", "b": b"b", "c": b"c"}
    assert sorted(made) == [("a", True), ("b", True), ("c", True)]


def test_processes_share_the_work_of_compiling(homeless):
    """A file that another process has made meanwhile is not made again."""
    made = []

    def slow(name):
        time.sleep(0.02)
        return compiler(name, made)()

    def other():
        for n in range(20):
            compilation.load_or_make(f"{n}", lambda n=n: slow(f"{n}"))

    beside = threading.Thread(target=other)
    beside.start()
    found = compilation.load_or_make_all({}, {f"{n}": partial(slow, f"{n}") for n in range(20)})
    beside.join()
    assert found == {f"{n}": f"{n}".encode() for n in range(20)}
    assert len(made) < 30


def test_a_full_folder(homeless, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert compilation.load_or_make("name", lambda: b"made") == b"made"
    assert "No space left on device" in compilation.trouble()
    assert not list(homeless.iterdir())


def test_a_run_says_that_nothing_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compilation, "_troubles", ["no room"])
    run(parse(STEADY, "case"), "numpy", tmp_path / "case.h5")
    assert "warning: compiled code is not kept from run to run (no room)" in capsys.readouterr().err


# ---- files -------------------------------------------------------------------------------------

DAMAGES = {
    "empty": lambda data: b"",
    "cut short": lambda data: data[: len(data) // 2],
    "one bit": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "something else": lambda data: b"import os",
}


def thirds(i, j, u):
    return u[i, j] / 3.0


def swept():
    """What a sweep gives that a new process would make: it has no compiled loops yet."""
    for name in [name for name in sys.modules if name.startswith("heatsolve_sweep_")]:
        del sys.modules[name]
    machine = NumbaBackend(threads=1)
    out = machine.zeros((3, 4))
    machine.sweep(thirds, out, ((0, 3), (0, 4)), np.ones((3, 4)))
    return out


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_machine_code_is_compiled_anew(damage, tmp_path, monkeypatch):
    monkeypatch.setenv("HEATSOLVE_CACHE", str(tmp_path))
    first = swept()
    (path,) = tmp_path.glob("*.nbc")
    whole = path.read_bytes()
    path.write_bytes(DAMAGES[damage](whole))
    assert np.array_equal(swept(), first)
    (again,) = tmp_path.iterdir()
    assert again == path
    written = path.stat().st_mtime_ns
    assert np.array_equal(swept(), first)
    assert path.stat().st_mtime_ns == written  # and is whole now


def test_loops_are_compiled_without_any_folder(homeless):
    a_link(homeless)
    assert np.array_equal(swept(), np.full((3, 4), 1.0 / 3.0))
    assert compilation.trouble()
