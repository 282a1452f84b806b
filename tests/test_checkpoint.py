"""Checkpoints: bit for bit, on any processes, whole or not at all, and every damage is found."""

import math
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from saving import is_whole, state

from heatsolve.control.controller import State
from heatsolve.errors import Diverged, FileFailure, HeatsolveError, InputError
from heatsolve.io.checkpoints import MANIFEST, CheckpointStore, delete
from heatsolve.parallel.decomposition import block_of
from heatsolve.parallel.ranks import Ranks

HERE = Path(__file__).parent
BESIDE = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
mpi = pytest.mark.skipif(BESIDE is None, reason="no mpiexec: install heatsolve[mpich]")

TINY = np.nextafter(0.0, 1.0)
RECORD = {
    "case": 'title = "é \\ \n\x7f"',
    "unit": "iterations",
    "dt": 0.1 + 0.2,
    "method": {"scalars": [-0.0, math.inf, -math.inf, math.nan, TINY, 1e308, None, True, 2**53]},
}
HISTORY = {"iteration": np.arange(5), "residual": np.array([1.0, -0.0, TINY, 1e300, np.inf])}


class Threads(Ranks):
    """One of several processes in one: each is a thread, and they meet where they gather."""

    def __init__(self, rank, table, barrier):
        self.rank, self.size = rank, len(table)
        self._table, self._barrier = table, barrier

    def gather(self, value):
        self._table[self.rank] = value
        self._barrier.wait(20)
        values = list(self._table)
        self._barrier.wait(20)
        return values


def together(size, work):
    """What `work(ranks)` gives, or the error that it raises, on each of several processes."""
    barrier, table, results = threading.Barrier(size), [None] * size, [None] * size

    def run(rank):
        try:
            results[rank] = work(Threads(rank, table, barrier))
        except Exception as error:
            results[rank] = error
            if not isinstance(error, HeatsolveError):
                barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def windows_of(shape, dims):
    """The windows of a process grid, in the order of ranks."""
    return [
        tuple(block_of(*axis) for axis in zip(shape, dims, place, strict=True))
        for place in np.ndindex(*dims)
    ]


def block(field, window):
    return field[tuple(slice(*pair) for pair in window)]


def store_of(folder, ranks=None, shape=(6, 7), dims=(1, 1), keep=2):
    ranks = ranks or Ranks()
    return CheckpointStore(folder, shape, windows_of(shape, dims)[ranks.rank], ranks, keep)


def small(number, value=0.0, shape=(6, 7)):
    field = np.arange(math.prod(shape), dtype=float).reshape(shape) + value
    return State(number, RECORD, HISTORY, {"temperature": field, "direction": -field})


def saved(folder, numbers=(3, 12), **options):
    store = store_of(folder, **options)
    for number in numbers:
        store.save(small(number, number))
    return store


def names(folder):
    """What is in a folder, once what is being deleted is gone."""
    patience = 100
    while (found := sorted(os.listdir(folder)))[:1] and found[0].startswith(".") and patience:
        time.sleep(0.01)
        patience -= 1
    return found


def bits(value):
    """A nested record with the bits of its floats."""
    if isinstance(value, float):
        return struct.pack("d", value)
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    return [bits(item) for item in value] if isinstance(value, list) else value


def assert_same(found, wanted):
    assert found.number == wanted.number
    assert bits(found.record) == bits(wanted.record)
    for ours, theirs in ((found.history, wanted.history), (found.fields, wanted.fields)):
        assert set(ours) == set(theirs)
        for name, values in theirs.items():
            assert (ours[name].dtype, ours[name].shape) == (values.dtype, values.shape)
            assert ours[name].tobytes() == values.tobytes()


# ---- what is saved is found ---------------------------------------------------------------------


def awkward(shape, dtype):
    """A field with every kind of finite number."""
    generator = np.random.default_rng(len(shape))
    field = generator.standard_normal(shape).astype(dtype)
    odd = [-0.0, np.nextafter(dtype(0), dtype(1)), np.finfo(dtype).max, np.finfo(dtype).tiny / 2]
    field.ravel()[: len(odd)] = odd
    return field


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "dims", "others"),
    [
        ((23,), (3,), (4,)),
        ((13, 17), (2, 2), (1, 1)),
        ((13, 17), (1, 1), (3, 2)),
        ((13, 17), (4, 1), (1, 3)),
        ((7, 8, 9), (1, 2, 3), (2, 2, 1)),
    ],
)
def test_any_processes_find_what_any_processes_saved(tmp_path, shape, dims, others, dtype):
    fields = {"temperature": awkward(shape, dtype), "direction": awkward(shape, dtype) * dtype(0.5)}

    def snapshot(ranks, dims):
        window = windows_of(shape, dims)[ranks.rank]
        blocks = {name: block(field, window) for name, field in fields.items()}
        return State(40, RECORD, HISTORY, blocks)

    def save(ranks):
        return store_of(tmp_path / "c", ranks, shape, dims).save(snapshot(ranks, dims))

    def newest(ranks):
        found = store_of(tmp_path / "c", ranks, shape, others).newest()
        assert_same(found, snapshot(ranks, others))
        return True

    assert together(math.prod(dims), save) == [tmp_path / "c" / "000000000040"] * math.prod(dims)
    assert together(math.prod(others), newest) == [True] * math.prod(others)


def test_without_history_and_fields_that_are_views(tmp_path):
    around = np.arange(80.0).reshape(8, 10)
    snapshot = State(0, {}, {}, {"t": around[1:-1, 1:-2]})
    store_of(tmp_path).save(snapshot)
    assert_same(store_of(tmp_path).newest(), snapshot)


def test_a_long_history_and_many_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("heatsolve.io.checkpoints.CHUNK_BYTES", 100)
    snapshot = State(1, {}, {"residual": np.random.default_rng(0).random(5000)}, {})
    snapshot.fields["t"] = awkward((6, 7), np.float64)
    store_of(tmp_path).save(snapshot)
    assert_same(store_of(tmp_path).newest(), snapshot)


@mpi
def test_under_mpi(tmp_path):
    program = f"""
import sys; sys.path.insert(0, {str(HERE)!r})
from test_checkpoint import *
from heatsolve.parallel.ranks import find_ranks
ranks = find_ranks()
field = awkward((13, 17), np.float64)
window = windows_of((13, 17), (3, 1))[ranks.rank]
store = CheckpointStore(Path({str(tmp_path)!r}) / "c", (13, 17), window, ranks)
store.save(State(5, RECORD, HISTORY, dict(t=block(field, window))))
assert_same(store.newest(), State(5, RECORD, HISTORY, dict(t=block(field, window))))
if ranks.rank == 1:
    field[window[0][0], 3] = np.nan
try:
    store.save(State(6, RECORD, HISTORY, dict(t=block(field, window))))
except Diverged as error:
    said = ranks.gather(str(error))
    assert ranks.rank or print(len(set(said)), said[0])
"""
    done = subprocess.run(
        [BESIDE, "-n", "3", sys.executable, "-c", program],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == (
        "1 diverged: t is not finite (NaN or Inf) after 6 iterations, no checkpoint is made of it\n"
    ), done.stderr
    store = store_of(tmp_path / "c", shape=(13, 17))
    assert store.newest().fields["t"].tobytes() == awkward((13, 17), np.float64).tobytes()


# ---- which are kept -----------------------------------------------------------------------------


def test_none_to_find(tmp_path):
    store = store_of(tmp_path / "c")
    assert store.newest() is None
    assert not (tmp_path / "c").exists()
    with pytest.raises(InputError, match="there is no checkpoint"):
        store.load(tmp_path / "c" / "000000000007")


@pytest.mark.parametrize(("keep", "kept"), [(1, [30]), (2, [12, 30]), (5, [3, 12, 30])])
def test_the_newest_are_kept(tmp_path, keep, kept):
    saved(tmp_path, (3, 12, 30), keep=keep)
    assert names(tmp_path) == [f"{number:012d}" for number in kept]


def test_numbers_beyond_the_padding(tmp_path):
    store = saved(tmp_path, (999_999_999_999, 10**12))
    assert store.newest().number == 10**12


def test_the_same_number_is_replaced(tmp_path):
    store = saved(tmp_path)
    store.save(small(12, -5.0))
    assert names(tmp_path) == ["000000000003", "000000000012"]
    assert_same(store.newest(), small(12, -5.0))


@pytest.mark.parametrize("removed", [False, True])
def test_a_replacement_that_was_cut_short_is_found_and_completed(tmp_path, removed):
    old = saved(tmp_path / "old", (12,))
    saved(tmp_path / "new", (12,)).save(small(12, -5.0))
    (tmp_path / "new" / "000000000012").rename(tmp_path / "old" / "000000000012.new")
    if removed:
        (tmp_path / "old" / "000000000012").rename(tmp_path / "old" / ".000000000012.01234567")
    assert_same(old.newest(), small(12, -5.0))
    old.save(small(13))
    assert names(tmp_path / "old") == ["000000000012", "000000000013"]
    assert_same(old.load(tmp_path / "old" / "000000000012"), small(12, -5.0))


def test_what_is_not_ours_in_a_checkpoint_stays(tmp_path):
    store = saved(tmp_path)
    (tmp_path / "000000000003" / "notes.txt").write_text("mine")
    store.save(small(20))
    assert names(tmp_path) == ["000000000003", "000000000012", "000000000020"]
    assert names(tmp_path / "000000000003") == ["notes.txt"]


def test_a_course_that_was_given_up_is_removed(tmp_path):
    store = saved(tmp_path, (3, 12))
    store.save(small(7))
    assert names(tmp_path) == ["000000000003", "000000000007"]
    assert store.newest().number == 7


def test_leftovers_are_removed(tmp_path):
    store = saved(tmp_path)
    for leftover in (".000000000013.89abcdef", ".000000000003.01234567"):
        shutil.copytree(tmp_path / "000000000012", tmp_path / leftover)
    assert store.newest().number == 12
    store.save(small(20))
    assert names(tmp_path) == ["000000000012", "000000000020"]


def test_clear_leaves_what_is_not_ours(tmp_path):
    store = saved(tmp_path / "c")
    store.clear()
    assert not (tmp_path / "c").exists()
    store.clear()
    saved(tmp_path / "c")
    others = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "c" / "000000000012", others)
    (tmp_path / "c" / "000000000099").symlink_to(others)
    (tmp_path / "c" / "000000000012" / "notes.txt").write_text("mine")
    (tmp_path / "c" / "0042").mkdir()
    (tmp_path / "c" / "000000000077").write_text("mine")
    shutil.copytree(others, tmp_path / "c" / ".000000000013.89abcdef")
    store.clear()
    assert names(tmp_path / "c") == ["000000000012", "000000000077", "000000000099", "0042"]
    assert names(tmp_path / "c" / "000000000012") == ["notes.txt"]
    assert len(names(others)) == 2
    assert store.newest() is None


def test_the_case_is_asked_before_the_fields_are_read(tmp_path):
    saved(tmp_path)
    (tmp_path / "000000000012" / "part-0000.h5").unlink()

    def refuse(state):
        assert (state.number, state.record["unit"]) == (12, "iterations")
        raise InputError("grid.cells: other")

    with pytest.raises(InputError, match=r"grid\.cells: other"):
        store_of(tmp_path, shape=(5, 5)).newest(refuse)
    with pytest.raises(InputError, match="12 is of 7 x 6 unknowns, the case has 5 x 5"):
        store_of(tmp_path, shape=(5, 5)).newest()


def test_a_form_of_later_times(tmp_path, monkeypatch):
    store = saved(tmp_path)
    monkeypatch.setattr("heatsolve.io.checkpoints.SCHEMA", 2)
    store.save(small(20))
    monkeypatch.undo()
    assert store.newest().number == 12
    assert "000000000020 is in the form 2 of heatsolve" in store.damaged[0]


def test_what_cannot_be_saved(tmp_path):
    store = saved(tmp_path)
    with pytest.raises(ValueError, match=r"the shape \(6, 7\) of the window"):
        store.save(small(20, shape=(7, 6)))
    with pytest.raises(TypeError):
        store.save(State(20, {"count": np.int64(3)}, {}, {}))
    assert names(tmp_path) == ["000000000003", "000000000012"]


# ---- damage -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two checkpoints of two processes: the newest is damaged by the tests, and repaired."""
    folder = tmp_path_factory.mktemp("two")

    def save(ranks):
        window = windows_of((6, 7), (2, 1))[ranks.rank]
        for number in (3, 12):
            snapshot = small(number, number)
            snapshot.fields = {name: block(f, window) for name, f in snapshot.fields.items()}
            store_of(folder, ranks, dims=(2, 1)).save(snapshot)

    together(2, save)
    return folder


FILES = ("manifest.json", "part-0000.h5", "part-0001.h5")


@contextmanager
def damage(file, data):
    """Other content of a file, for a while; None for no file."""
    original = file.read_bytes()
    file.unlink() if data is None else file.write_bytes(data)
    try:
        yield
    finally:
        file.write_bytes(original)


def assert_older_is_taken(folder, reason):
    store = store_of(folder)
    assert_same(store.newest(), small(3, 3))
    (sentence,) = store.damaged
    assert reason in sentence
    assert str(folder / "000000000012") in sentence
    with pytest.raises(FileFailure) as failure:
        store.load(folder / "000000000012")
    assert str(failure.value) == sentence


def test_undamaged(two):
    store = store_of(two)
    assert sorted(FILES) == names(two / "000000000012")
    assert_same(store.newest(), small(12, 12))
    assert store.damaged == []


@pytest.mark.parametrize("name", FILES)
def test_every_truncation_is_found(two, name):
    file = two / "000000000012" / name
    data = file.read_bytes()
    reason = "is not what was written" if name == MANIFEST else f"in place of {len(data)}"
    for cut in np.linspace(0, len(data) - 1, 10).astype(int):
        with damage(file, data[:cut]):
            assert_older_is_taken(two, f"{name} {reason}" if name == MANIFEST else reason)
    with damage(file, data + b"\0"):
        assert_older_is_taken(two, name)
    with damage(file, None):
        assert_older_is_taken(two, f"{name} is missing")


def test_every_flipped_bit_is_found(two):
    files = [two / "000000000012" / name for name in FILES]
    choose = random.Random(7)
    for number in range(100):
        file = files[number % 3]
        data = bytearray(file.read_bytes())
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        with damage(file, data):
            assert_older_is_taken(two, f"{file.name} is not what was written")


def test_all_processes_learn_of_the_damage_that_one_finds(two):
    file = two / "000000000012" / "part-0001.h5"
    with damage(file, file.read_bytes()[:-1]):

        def newest(ranks):
            store = store_of(two, ranks, dims=(3, 1))
            return store.newest().number, store.damaged

        results = together(3, newest)
    assert results[0][0] == 3
    assert "part-0001.h5" in results[0][1][0]
    assert results == [results[0]] * 3


# ---- failing disks, and numbers that are none ----------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_saved(tmp_path, bad):
    saved(tmp_path, dims=(1, 1))

    def save(ranks):
        window = windows_of((6, 7), (2, 1))[ranks.rank]
        snapshot = small(20)
        snapshot.fields["direction"][5, 6] = bad  # of process 1 only
        snapshot.fields = {name: block(f, window) for name, f in snapshot.fields.items()}
        return store_of(tmp_path, ranks, dims=(2, 1)).save(snapshot)

    for error in together(2, save):
        assert isinstance(error, Diverged)
        assert str(error).startswith("diverged: direction is not finite (NaN or Inf) after 20 ")
    assert names(tmp_path) == ["000000000003", "000000000012"]


def assert_intact(folder, before):
    assert names(folder) == before
    assert_same(store_of(folder).newest(), small(12, 12))


def test_an_earlier_run_still_deletes(tmp_path, monkeypatch):
    """Two runs of one process: the thread of the first removes files that the second has listed."""
    saved(tmp_path)
    aside = tmp_path / ".000000000001.75bc64ee"
    aside.mkdir()
    (aside / "part-0000.h5").touch()
    listing = Path.iterdir

    def overtaken(self):
        found = list(listing(self))
        if self == aside:
            shutil.rmtree(self)
        return iter(found)

    monkeypatch.setattr(Path, "iterdir", overtaken)
    store = store_of(tmp_path)
    store.save(small(20))
    assert not aside.exists() and store.newest().number == 20
    monkeypatch.undo()
    delete(aside)  # the folder itself is gone


def test_a_folder_that_cannot_be(tmp_path):
    with pytest.raises(FileFailure, match="missing is not a directory"):
        saved(tmp_path / "missing" / "c")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileFailure, match="file: File exists"):
        saved(tmp_path / "file")
    saved(tmp_path / "c")
    (tmp_path / "c" / "000000000020").write_text("mine")
    with pytest.raises(FileFailure, match="000000000020: File exists"):
        saved(tmp_path / "c", (20,))


def test_one_process_fails_and_all_say_so(tmp_path, monkeypatch):
    saved(tmp_path)
    write, lock = os.pwrite, threading.Lock()
    calls = []

    def fail_once(*arguments):
        with lock:
            calls.append(1)
            if len(calls) == 2:
                raise OSError(28, "No space left on device")
        return write(*arguments)

    monkeypatch.setattr(os, "pwrite", fail_once)

    def save(ranks):
        window = windows_of((6, 7), (3, 1))[ranks.rank]
        fields = {"temperature": block(small(0).fields["temperature"], window)}
        return store_of(tmp_path, ranks, dims=(3, 1)).save(State(20, {}, {}, fields))

    sentence = f"cannot write {tmp_path / '000000000020'}: No space left on device"
    assert [str(error) for error in together(3, save)] == [sentence] * 3
    assert_intact(tmp_path, ["000000000003", "000000000012"])


@contextmanager
def largest_file(size):
    """Files of this process cannot grow beyond so many bytes, for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("limit", [0, 300, 2500, 4096])
def test_disk_full(tmp_path, limit):
    saved(tmp_path)
    with largest_file(limit), pytest.raises(FileFailure) as failure:
        store_of(tmp_path, shape=(60, 70)).save(small(20, shape=(60, 70)))
    assert str(failure.value) == f"cannot write {tmp_path / '000000000020'}: File too large"
    assert_intact(tmp_path, ["000000000003", "000000000012"])


@contextmanager
def mounted(folder, *options):
    """A small file system of its own on a folder."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a file system")
    command = ["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a file system: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_file_system_full(tmp_path):
    with mounted(tmp_path, "-o", "size=200k"):
        saved(tmp_path / "c")
        for _ in range(3):
            with pytest.raises(FileFailure) as failure:
                store_of(tmp_path / "c", shape=(160, 170)).save(small(20, shape=(160, 170)))
            where = tmp_path / "c" / "000000000020"
            assert str(failure.value) == f"cannot write {where}: No space left on device"
            assert_intact(tmp_path / "c", ["000000000003", "000000000012"])


def test_read_only_file_system(tmp_path):
    with mounted(tmp_path):
        saved(tmp_path / "c")
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
        for action in (lambda store: store.save(small(20)), lambda store: store.clear()):
            with pytest.raises(FileFailure, match="Read-only file system"):
                action(store_of(tmp_path / "c"))
        assert_intact(tmp_path / "c", ["000000000003", "000000000012"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write where others may not")
def test_read_only_folder(tmp_path):
    saved(tmp_path / "c")
    (tmp_path / "c").chmod(0o555)
    with pytest.raises(FileFailure, match="Permission denied"):
        store_of(tmp_path / "c").save(small(20))
    assert_intact(tmp_path / "c", ["000000000003", "000000000012"])


# ---- killed at any moment -----------------------------------------------------------------------


def killed(command, folder, moments, rows, width, ranks=1):
    """Kill a program that saves without end at random moments; it goes on where it was."""
    choose, shape = random.Random(11), (ranks * rows, width)
    window = tuple((0, extent) for extent in shape)
    for _ in range(moments):
        arguments = [*command, str(folder), str(rows), str(width)]
        with subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as program:
            processes = program.stdout.readline().split()
            lines = [program.stdout.readline()]
            time.sleep(choose.uniform(0.0, 0.2))
            for process in processes:
                os.kill(int(process), signal.SIGKILL)
            lines += program.stdout.read().splitlines()
            assert lines[0], program.stderr.read()
        told = [int(line) for line in lines if line.strip().isdigit()]  # not what mpiexec says
        store = CheckpointStore(folder, shape, window, Ranks())
        found = store.newest()
        assert store.damaged == []
        assert found.number >= told[-1]
        assert is_whole(found, window, width)
    store.save(state(found.number + 1, window, width))
    assert not [name for name in names(folder) if not name.isdigit()]


@pytest.mark.thorough
def test_killed_at_any_moment(tmp_path):
    killed([sys.executable, str(HERE / "saving.py")], tmp_path, 20, 600, 600)


@mpi
def test_processes_killed_at_any_moment(tmp_path):
    command = [BESIDE, "-n", "2", sys.executable, str(HERE / "saving.py")]
    killed(command, tmp_path, 3, 300, 600, ranks=2)
