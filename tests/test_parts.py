"""Results of many processes: parts and their master, restarts, and what failures leave behind."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import xarray
from test_output import HISTORY, TIMES, UNITS, axes, field
from test_ranks import launch, mpi
from typer.testing import CliRunner

from heatsolve.cli import app
from heatsolve.errors import FileFailure, InputError
from heatsolve.io import reader, writer
from heatsolve.io import subfiles as parts
from heatsolve.io.disk import reserved
from heatsolve.io.reader import cuts, evenly, read, summary
from heatsolve.io.writer import Results, gather
from heatsolve.parallel.ranks import Ranks, agreed

ATTRIBUTES = {"case": "[case]\ntitle = 'a'", "converged": True, "residual": 1e-9, "ranks": None}


class Team(Ranks):
    """One of several simulated processes, which are threads."""

    def __init__(self, rank, size, board, barrier):
        self.rank, self.size, self._board, self._barrier = rank, size, board, barrier

    def gather(self, value):
        self._board[self.rank] = value
        self._barrier.wait(10)
        values = list(self._board)
        self._barrier.wait(10)
        return values


def together(size, job):
    """Run `job(ranks)` in simulated processes; the first failure ends all, as `Ranks.fail` does."""
    board, barrier, failures = [None] * size, threading.Barrier(size), []

    def work(rank):
        try:
            job(Team(rank, size, board, barrier))
        except threading.BrokenBarrierError:
            pass
        except BaseException as failure:
            failures.append(failure)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def window_of(shape, ranks):
    """Uneven blocks: four processes divide two axes, fewer one."""
    dims = [1] * len(shape)
    dims[-1 if ranks.size == 3 else 0] = ranks.size
    if ranks.size == 4 and len(shape) > 1:
        dims[:2] = 2, 2
    place = np.unravel_index(ranks.rank, dims)
    return tuple((i * n // p, (i + 1) * n // p) for i, n, p in zip(place, shape, dims, strict=True))


def begin(path, ranks, dimensions=2, transient=True, secured=()):
    shape = tuple(map(len, axes(dimensions).values()))
    window = window_of(shape, ranks)
    return Results(
        path, axes(dimensions), UNITS, window, ranks, transient=transient, secured=secured
    )


def append(results, ranks, time, dimensions=2):
    """The fields of a time, or of a steady run; one of them in single precision."""
    values = field(dimensions, time or 0.0)
    block = values[tuple(slice(*pair) for pair in window_of(values.shape, ranks))]
    results.append({"temperature": block, "pressure": (2 * block).astype("f4")}, time)


def write(path, size, dimensions=2, transient=True, times=TIMES, secured=(), history=HISTORY):
    """Results of so many processes; a time that is None stands for a checkpoint."""
    secured_last = []

    def job(ranks):
        with begin(path, ranks, dimensions, transient, secured) as results:
            for time in times if transient else (0.0,):
                if time is None:
                    secured_last[:] = json.loads(json.dumps(results.secure()))
                else:
                    append(results, ranks, time if transient else None, dimensions)
            results.finish(ATTRIBUTES, history)

    together(size, job)
    return path if None not in times else secured_last


def interrupted(path, size, times, secured=()):
    """As `write`, but the run ends without `finish`."""
    secured_last = []

    def job(ranks):
        with begin(path, ranks, secured=secured) as results:
            for time in times:
                if time is None:
                    secured_last[:] = json.loads(json.dumps(results.secure()))
                else:
                    append(results, ranks, time)

    together(size, job)
    return secured_last


def part_names(path):
    folder = parts.folder_of(path)
    return sorted(os.listdir(folder)) if folder.exists() else []


def tree(folder):
    """All files below a folder, with what they hold."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def same(path, other):
    """All that two files say is the same, to us, to xarray and to ParaView."""
    ours, theirs = read(path), read(other)
    for mine, its in (
        (ours.fields, theirs.fields),
        (ours.coordinates, theirs.coordinates),
        (ours.history, theirs.history),
        ({"time": ours.time}, {"time": theirs.time}),
    ):
        assert mine.keys() == its.keys()
        for name, values in mine.items():
            np.testing.assert_array_equal(values, its[name])
            assert np.asarray(values).dtype == np.asarray(its[name]).dtype
    assert (ours.attributes, ours.units) == (theirs.attributes, theirs.units)
    assert summary(path) == summary(other)
    for group in (None, "history"):
        with (
            xarray.open_dataset(path, engine="h5netcdf", group=group) as first,
            xarray.open_dataset(other, engine="h5netcdf", group=group) as second,
        ):
            xarray.testing.assert_identical(first.load(), second.load())
    sidecars = [p.with_suffix(".xdmf") for p in (path, other)]
    assert sidecars[0].exists() == sidecars[1].exists() == (len(ours.coordinates) > 1)
    if sidecars[0].exists():
        text = sidecars[1].read_text().replace(f"{other.name}:", f"{path.name}:")
        assert sidecars[0].read_text() == text
    return True


@pytest.mark.parametrize("transient", [False, True])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
class TestSameAsPlain:
    @pytest.mark.few(4)
    @pytest.mark.parametrize("size", [2, 3, 4])
    def test_master(self, tmp_path, dimensions, transient, size):
        history = {**HISTORY, "step": np.arange(3), "time": np.ones(3)}
        plain, master = (
            write(tmp_path / name, n, dimensions, transient, history=history)
            for name, n in (("plain.h5", 1), ("master.h5", size))
        )
        assert len(part_names(master)) == size
        assert not parts.folder_of(plain).exists()
        assert same(master, plain)
        wanted = 2 * field(dimensions, TIMES[-1] if transient else 0.0)
        (last,) = cuts(master, "pressure", [len(TIMES) - 1 if transient else 0], {}, 1000)
        np.testing.assert_array_equal(last, wanted)
        kept = [evenly(n, 2) for n in wanted.shape]
        (thinned,) = cuts(master, "pressure", [len(TIMES) - 1 if transient else 0], {}, 2)
        np.testing.assert_array_equal(thinned, wanted[np.ix_(*kept)])

    @pytest.mark.few(1)
    def test_gather(self, tmp_path, dimensions, transient, monkeypatch):
        plain = write(tmp_path / "plain.h5", 1, dimensions, transient)
        master = write(tmp_path / "master.h5", 4, dimensions, transient)
        monkeypatch.setattr(writer, "BLOCK_BYTES", 60)  # so that it goes in pieces
        before = tree(tmp_path)
        gather(master, tmp_path / "gathered.h5")
        assert before.items() <= tree(tmp_path).items()
        assert same(tmp_path / "gathered.h5", plain)
        gather(plain, tmp_path / "copy.h5")
        assert same(tmp_path / "copy.h5", plain)
        gather(master, master)
        assert same(master, plain)
        assert not parts.folder_of(master).exists()
        assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


class TestMaster:
    def test_it_moves_with_its_folder(self, tmp_path, monkeypatch):
        plain, master = write(tmp_path / "plain.h5", 1), write(tmp_path / "a.h5", 3)
        place = tmp_path / "elsewhere"
        place.mkdir()
        for path in (master, parts.folder_of(master), tmp_path / "a.xdmf"):
            shutil.move(path, place)
        assert same(place / "a.h5", plain)
        monkeypatch.chdir(place)
        assert same(Path("a.h5"), plain)
        (tmp_path / "link.h5").symlink_to(place / "a.h5")
        np.testing.assert_array_equal(
            read(tmp_path / "link.h5").fields["temperature"], read(plain).fields["temperature"]
        )

    @pytest.mark.parametrize("name", ["50%b & more.h5", "no suffix", "a.nc"])
    def test_names(self, tmp_path, name):
        path = write(tmp_path / name, 2)
        wanted = read(write(tmp_path / "plain.h5", 1)).fields["temperature"]
        np.testing.assert_array_equal(read(path).fields["temperature"], wanted)
        with xarray.open_dataset(path, engine="h5netcdf") as data:
            np.testing.assert_array_equal(data.temperature, wanted)

    def test_no_two_files_share_a_folder(self, tmp_path):
        names = ["a", "a.h5", "a.h5.h5", "a.nc", "a-parts", "a.parts"]
        assert len({parts.folder_of(Path(name)) for name in names}) == len(names)

    def test_names_and_sizes_of_the_parts(self, tmp_path):
        path = write(tmp_path / "a.h5", 3)
        with xarray.open_dataset(path, engine="h5netcdf", group="parts") as data:
            assert [str(name) for name in data.name.values] == [
                f"a.parts/{name}" for name in part_names(path)
            ]
            assert [(tmp_path / str(name)).stat().st_size for name in data.name.values] == list(
                data["size"].values
            )

    def test_single_blocks_of_a_field(self, tmp_path):
        path = write(tmp_path / "a.h5", 4, dimensions=3)
        wanted = np.array([field(3, time) for time in TIMES])
        with h5py.File(path) as file:
            linked = parts.Linked(file["temperature"])
        for key in np.s_[-1], np.s_[:], np.s_[-1:], np.s_[1, 1:3], np.s_[2, :, 2:4, 3], np.s_[0:0]:
            np.testing.assert_array_equal(linked[key], wanted[key])

    def test_segments_must_fit(self, tmp_path):
        half = parts.Part("a", 1, [[0, 2]])
        first = parts.Segment([0.0], {"t": "<f8"}, [half, parts.Part("b", 1, [[2, 4]])])
        lacking = parts.Segment([1.0], {"t": "<f8"}, [half])
        other = parts.Segment([1.0], {"p": "<f8"}, first.parts)
        for second in (lacking, other):
            with pytest.raises(ValueError, match="same fields, and covers the grid once"):
                parts.layout("folder", [first, second], "t", (4,), transient=True)

    def test_memory(self, tmp_path, monkeypatch):
        """Neither the processes nor `gather` hold more than a block beyond what was given."""
        monkeypatch.setattr(writer, "BLOCK_BYTES", 2**18)
        monkeypatch.setattr(reader, "BLOCK_BYTES", 2**18)
        line, values = np.arange(1024.0), np.ones((1024, 1026))[:, 1:-1]

        def job(ranks):
            window = window_of((1024, 1024), ranks)
            axes = {"y": line, "x": line}
            with Results(tmp_path / "a.h5", axes, {}, window, ranks, transient=False) as results:
                results.append({"temperature": values[tuple(slice(*pair) for pair in window)]})
                results.finish({}, {})

        tracemalloc.start()
        together(4, job)
        gather(tmp_path / "a.h5", tmp_path / "plain.h5")
        summary(tmp_path / "a.h5")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 3 * 2**20  # of 8 MiB


def missing(part):
    part.unlink()


def truncated(part):
    part.write_bytes(part.read_bytes()[:-1])


def garbage(part):
    part.write_bytes(b"\0" * part.stat().st_size)


class TestDamage:
    @pytest.mark.parametrize(
        ("harm", "words"),
        [(missing, "is missing"), (truncated, "it has .* bytes, not"), (garbage, "no HDF5 file")],
    )
    @pytest.mark.parametrize("number", [0, 2])
    def test_the_part_is_named(self, tmp_path, harm, words, number):
        path = write(tmp_path / "a.h5", 3)
        name = part_names(path)[number]
        harm(parts.folder_of(path) / name)
        before = tree(tmp_path)
        for use in (
            read,
            lambda path: read(path, fields=()),
            summary,
            lambda path: gather(path, tmp_path / "plain.h5"),
            lambda path: gather(path, path),
        ):
            with pytest.raises(FileFailure, match=f"part .*a.parts/{name} .*{words}"):
                use(path)
        assert tree(tmp_path) == before

    def test_a_part_that_is_another_file(self, tmp_path):
        path = write(tmp_path / "a.h5", 3)
        part = parts.folder_of(path) / part_names(path)[1]
        size = part.stat().st_size
        with h5py.File(part, "w") as file:
            file["temperature"] = np.ones(3)
        os.truncate(part, size)
        with pytest.raises(FileFailure, match=f"cannot read .*{part.name}"):
            read(path)

    def test_a_master_that_has_lost_a_mapping(self, tmp_path):
        path = write(tmp_path / "a.h5", 3)
        with h5py.File(path, "r+") as file:
            shape, name = file["temperature"].shape, f"a.parts/{part_names(path)[0]}"
            layout = h5py.VirtualLayout(shape, "f8")
            layout[:, :, :1] = h5py.VirtualSource(name, "temperature", (*shape[:2], 1))
            del file["temperature"]
            file.create_virtual_dataset("temperature", layout).attrs["units"] = "K"
        with pytest.raises(FileFailure, match="damaged: parts do not cover its fields"):
            read(path)

    def test_other_programs_see_no_number(self, tmp_path):
        path = write(tmp_path / "a.h5", 3)
        missing(parts.folder_of(path) / part_names(path)[0])
        with h5py.File(path) as file:
            assert np.isnan(file["temperature"][...]).sum() == 3 * 5 * 2


class TestRestart:
    TIMES = (0.0, 0.1, None, 0.2, 0.3, None)

    @pytest.mark.parametrize(("size", "then"), [(2, 3), (3, 1), (1, 2), (1, 1), (3, 3)])
    def test_on_another_number_of_processes(self, tmp_path, size, then):
        path = tmp_path / "a.h5"
        secured = interrupted(path, size, [*self.TIMES, 0.9])
        assert not path.exists()
        assert len(part_names(path)) == 2 * size
        assert [segment["times"] for segment in secured] == [[0.0, 0.1], [0.2, 0.3]]
        write(path, then, times=(0.4, None, 0.5), secured=secured)
        plain = write(tmp_path / "plain.h5", 1, times=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5))
        assert same(path, plain)
        assert len(part_names(path)) == (0 if then == 1 else 2 * size + 2 * then)

    def test_later_frames_are_dropped(self, tmp_path):
        path = tmp_path / "a.h5"
        secured = interrupted(path, 2, self.TIMES)
        write(path, 2, times=(0.25, 0.35), secured=secured[:1])
        np.testing.assert_array_equal(read(path).time, [0.0, 0.1, 0.25, 0.35])
        assert len(part_names(path)) == 4

    def test_a_failure_keeps_what_is_secured(self, tmp_path):
        path = tmp_path / "a.h5"
        secured = interrupted(path, 2, self.TIMES)
        before = tree(tmp_path)
        for size in (1, 3):
            interrupted(path, size, (0.4, 0.5), secured)
            assert tree(tmp_path) == before

    def test_nothing_new_is_no_segment(self, tmp_path):
        path = tmp_path / "a.h5"
        assert interrupted(path, 2, (None, None)) == []
        secured = interrupted(path, 2, (0.0, None, None))
        assert len(secured) == 1
        write(path, 3, times=(), secured=secured)
        np.testing.assert_array_equal(read(path).time, [0.0])

    @pytest.mark.parametrize("harm", [missing, truncated, garbage])
    def test_damaged_parts_are_named(self, tmp_path, harm):
        path = tmp_path / "a.h5"
        secured = interrupted(path, 2, self.TIMES)
        name = secured[1]["parts"][1]["name"]
        harm(parts.folder_of(path) / name)
        with pytest.raises(FileFailure, match=f"part .*{name}"):
            interrupted(path, 2, (), secured)

    @pytest.mark.parametrize("links", [True, False])
    @pytest.mark.parametrize("then", [1, 2])
    def test_of_a_finished_run(self, tmp_path, monkeypatch, then, links):
        """Its parts have gone into the plain file, from where the frames come back."""
        if not links:
            monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links")))
        path = tmp_path / "a.h5"
        secured = write(path, 1, times=self.TIMES)
        before = tree(tmp_path)
        interrupted(path, then, (0.25,), secured[:1])
        assert tree(tmp_path) == before
        again = write(path, then, times=(0.25, None), secured=secured[:1])
        np.testing.assert_array_equal(read(path).time, [0.0, 0.1, 0.25])
        if then == 1:  # from the first checkpoint once more, and from the new one
            with pytest.raises(FileFailure, match="is missing"):  # its frames have been dropped
                interrupted(path, then, (), secured)
            write(path, then, times=(0.26,), secured=secured[:1])
            np.testing.assert_array_equal(read(path).time, [0.0, 0.1, 0.26])
            with pytest.raises(FileFailure, match="is missing"):
                interrupted(path, then, (), again)
        plain = write(tmp_path / "plain.h5", 1, times=(0.0, 0.1, 0.25 + 0.01 * (then == 1)))
        assert same(path, plain)

    def test_of_a_gathered_run(self, tmp_path):
        path = tmp_path / "a.h5"
        secured = write(path, 3, times=self.TIMES)
        gather(path, path)
        gather(path, path)
        write(path, 2, times=(0.4,), secured=secured)
        np.testing.assert_array_equal(read(path).time, [0.0, 0.1, 0.2, 0.3, 0.4])

    def test_a_checkpoint_costs_no_copy(self, tmp_path):
        """Alone, the unfinished plain file itself becomes the first part."""
        with begin(tmp_path / "a.h5", Ranks()) as results:
            append(results, Ranks(), 0.0)
            (unfinished,) = tmp_path.glob(".a.h5.*.part")
            number = unfinished.stat().st_ino
            results.secure()
            (part,) = parts.folder_of(tmp_path / "a.h5").iterdir()
            assert part.stat().st_ino == number


class TestReplacement:
    def test_stale_parts_are_removed(self, tmp_path):
        path = write(tmp_path / "a.h5", 4)
        folder = parts.folder_of(path)
        stale = part_names(path)
        killed = [f".{'0' * 8}-0003-0001.h5.4711-{'f' * 8}.part", f"{'0' * 8}-0001-0000.h5"]
        for name in (*killed, "notes.txt", "other-0001-0000.h5"):
            (folder / name).touch()
        write(path, 2)
        assert not {*stale, *killed} & set(part_names(path))
        assert len(part_names(path)) == 4
        assert {"notes.txt", "other-0001-0000.h5"} < set(part_names(path))
        write(path, 1)
        assert part_names(path) == ["notes.txt", "other-0001-0000.h5"]

    def test_a_plain_file_takes_the_folder_with_it(self, tmp_path):
        write(tmp_path / "a.h5", 3)
        write(tmp_path / "a.h5", 1)
        assert sorted(os.listdir(tmp_path)) == ["a.h5", "a.xdmf"]


@pytest.mark.parametrize("size", [1, 3])
class TestFailures:
    @pytest.fixture(params=[1, 2])
    def old(self, tmp_path, request):
        """A folder with an earlier output, which every failure must leave as it is."""
        path = write(tmp_path / "a.h5", request.param, 3)
        before = tree(tmp_path)
        yield path
        assert tree(tmp_path) == before

    def test_exception_in_the_run(self, old, size):
        def job(ranks):
            with begin(old, ranks) as results:
                append(results, ranks, 0.0)
                ranks.gather(None)
                if ranks.rank == size - 1:
                    raise KeyboardInterrupt
                ranks.gather(None)

        with pytest.raises(KeyboardInterrupt):
            together(size, job)

    @pytest.mark.parametrize("call", ["fsync", "replace"])
    def test_disk_full_at_the_end(self, old, size, monkeypatch, call):
        real = getattr(os, call)

        def fail(target, *rest):
            """Where the new output is complete but for its name."""
            name = target if call == "replace" else os.readlink(f"/proc/self/fd/{target}")
            if Path(name).name.startswith(".a.h5."):
                raise OSError(28, os.strerror(28))
            real(target, *rest)

        monkeypatch.setattr(os, call, fail)
        with pytest.raises(FileFailure, match=r"cannot write .*a\.h5: No space left on device"):
            write(old, size)

    @pytest.mark.few(2)
    def test_disk_full_in_the_middle(self, old, size):
        """Real limits, in a process of its own, each as of one file that grows too large."""
        program = f"""
import resource, signal
from pathlib import *
import numpy as np
from heatsolve.errors import FileFailure
from heatsolve.io.writer import Results
from test_parts import together, window_of
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
line = np.arange(300.0)
def job(ranks):
    window = window_of((300, 300), ranks)
    values = np.ones([b - a for a, b in window])
    axes = dict(y=line, x=line)
    with Results({old!r}, axes, {{}}, window, ranks, transient=time is not None) as results:
        results.append(dict(temperature=values), time)
        results.finish({{}}, {{}})
for time in None, 0.0:
    for limit in 100, 5_000, 200_000, 240_500:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            together({size}, job)
        except FileFailure as failure:
            print(failure, flush=True)
"""
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True, text=True, cwd=Path(__file__).parent,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        assert len(lines) == 8
        for line in lines:
            assert line.startswith("cannot write ") and line.endswith(": File too large")

    def test_targets_that_cannot_be(self, old, size):
        text = old.with_name("text.h5")
        text.write_text("no results")
        for target, error, words in (
            (old.parent, FileFailure, "Is a directory"),
            (old.parent / "missing" / "b.h5", FileFailure, "missing is not a directory"),
            (text, InputError, "text.h5 is no file of results"),
        ):
            with pytest.raises(error, match=words):
                together(size, lambda ranks, target=target: begin(target, ranks))
        text.unlink()

    def test_frames_that_do_not_fit(self, old, size):
        def misshapen(ranks):
            with begin(old, ranks) as results:
                results.append({"temperature": np.ones((1, 1))}, 0.0)

        def none_at_all(ranks):
            with begin(old, ranks) as results:
                results.finish({}, {})

        with pytest.raises(ValueError, match="same fields"):
            together(size, misshapen)
        with pytest.raises(ValueError, match="has no fields"):
            together(size, none_at_all)

    def test_a_second_writer(self, old, size):
        with reserved(old):
            for attempt in (
                lambda: interrupted(old, size, ()),
                lambda: gather(old, old),
            ):
                with pytest.raises(FileFailure, match=f"another run is writing {old}"):
                    attempt()
            with reserved(old.with_name("b.h5")):
                pass


class TestReservation:
    def test_ends_with_the_process(self, tmp_path):
        path = tmp_path / "a.h5"
        program = (
            "import sys, pathlib\nfrom heatsolve.io.disk import reserved\n"
            "with reserved(pathlib.Path(sys.argv[1])):\n    print(flush=True); input()"
        )
        command = [sys.executable, "-c", program, str(path)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            other.stdout.readline()
            with pytest.raises(FileFailure, match="another run is writing"), reserved(path):
                pass
            other.kill()
        with reserved(path):
            assert os.listdir(tmp_path) == [".a.h5.lock"]
        assert os.listdir(tmp_path) == []

    def test_only_one_at_a_time(self, tmp_path):
        """Also while lock files come and go."""
        inside, seen, done = [], [], []

        def work():
            while len(done) < 300:
                try:
                    with reserved(tmp_path / "a.h5"):
                        inside.append(1)
                        seen.append(len(inside))
                        done.append(inside.pop())
                except FileFailure:
                    pass

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(seen) == {1}
        assert os.listdir(tmp_path) == []

    def test_a_file_system_without_locks(self, tmp_path, monkeypatch):
        def flock(*_):
            raise OSError(38, os.strerror(38))

        monkeypatch.setattr(fcntl, "flock", flock)
        write(tmp_path / "a.h5", 1)
        assert sorted(os.listdir(tmp_path)) == ["a.h5", "a.xdmf"]


class TestCommand:
    @pytest.mark.few(1)
    def test_gather(self, tmp_path):
        path = write(tmp_path / "a.h5", 3)
        plain = tmp_path / "plain.h5"
        done = CliRunner().invoke(app, ["gather", str(path), "--output", str(plain)])
        assert (done.exit_code, done.output) == (0, f"wrote {plain}\n")
        assert same(path, plain)

    def test_a_missing_part_is_exit_code_6(self, tmp_path):
        path = write(tmp_path / "a.h5", 3)
        missing(parts.folder_of(path) / part_names(path)[0])
        command = [sys.executable, "-m", "heatsolve", "gather", path, "--output", path]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        assert done.returncode == 6
        assert done.stderr.startswith("heatsolve: part ") and done.stderr.count("\n") == 1


@mpi
def test_under_mpi(tmp_path):
    program = """
import sys
from pathlib import Path
from types import SimpleNamespace
from heatsolve.parallel.ranks import World
from test_parts import append, begin
world, times = World(), (0.0, 0.1, None, 0.25)
with begin(Path(sys.argv[1]), world) as results:
    for time in times:
        results.secure() if time is None else append(results, world, time)
    results.finish({"ranks": world.size}, {})
    assert Path(sys.argv[1]).exists()
"""
    done = launch(3, "-c", program, tmp_path / "a.h5")
    assert done.returncode == 0, done.stderr
    found = read(tmp_path / "a.h5")
    assert found.attributes == {"ranks": 3}
    wanted = [field(2, time) for time in TIMES]
    np.testing.assert_array_equal(found.fields["temperature"], wanted)
    assert len(part_names(tmp_path / "a.h5")) == 2 * 3


def test_all_raise_what_one_raises():
    seen = []

    def job(ranks):
        with agreed(ranks):
            pass
        try:
            with agreed(ranks):
                if ranks.rank > 0:
                    raise FileFailure(f"rank {ranks.rank}")
        except FileFailure as failure:
            seen.append((ranks.rank, str(failure)))

    together(3, job)
    assert sorted(seen) == [(0, "rank 1"), (1, "rank 1"), (2, "rank 2")]


def test_an_h5py_that_was_built_with_mpi(tmp_path, monkeypatch):
    """It serves as a plain one: each process has a part."""
    config = SimpleNamespace(mpi=True, track_order=h5py.get_config().track_order)
    monkeypatch.setattr(h5py, "get_config", lambda: config)
    write(tmp_path / "a.h5", 2)
    assert len(part_names(tmp_path / "a.h5")) == 2
