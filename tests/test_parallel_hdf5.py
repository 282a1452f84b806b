"""One file from many processes: with an h5py that was built with MPI, and what needs none."""

import h5py
import numpy as np
import pytest
from test_output import TIMES, UNITS, axes, field
from test_parts import ATTRIBUTES, HISTORY, part_names, same, together, write
from test_ranks import launch, mpi

from heatsolve.errors import FileFailure
from heatsolve.io.disk import reserved
from heatsolve.io.fieldfile import FieldFile
from heatsolve.io.output import read
from heatsolve.io.shared import agreed

parallel = pytest.mark.skipif(not h5py.get_config().mpi, reason="h5py was built without MPI")

BEGIN = """
import signal, sys
from pathlib import Path
from resource import RLIMIT_FSIZE, setrlimit
import numpy as np
from heatsolve import fieldfile
from heatsolve.errors import HeatsolveError
from heatsolve.parallel.ranks import World
from test_parts import ATTRIBUTES, HISTORY, TIMES, append, begin
world, folder = World(), Path(sys.argv[1])

def attempt(work):
    try:
        work()
    except (HeatsolveError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
    else:
        said = "done"
    everybody = set(world.gather(said))
    if world.rank == 0:
        print(*everybody, flush=True)
"""


def under_mpi(size, folder, program):
    """The lines that a program says after BEGIN."""
    done = launch(size, "-c", BEGIN + program, folder, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@mpi
@parallel
class TestParallel:
    @pytest.mark.parametrize("size", [2, 3, 4])
    def test_same_as_plain(self, tmp_path, size):
        """In one piece, and in pieces of which some processes have fewer rows than others."""
        under_mpi(size, tmp_path, """
for pieces in False, True:
    if pieces:
        fieldfile.BLOCK_BYTES = 60
    for dimensions in 1, 2, 3:
        for transient in False, True:
            name = f"{dimensions}-{transient}-{pieces}.h5"
            with begin(folder / name, world, dimensions, transient) as results:
                for time in TIMES if transient else (None,):
                    append(results, world, time, dimensions)
                results.finish(ATTRIBUTES, HISTORY)
""")  # fmt: skip
        for dimensions in 1, 2, 3:
            for transient in False, True:
                plain = write(tmp_path / "plain.h5", 1, dimensions, transient)
                for pieces in False, True:
                    path = tmp_path / f"{dimensions}-{transient}-{pieces}.h5"
                    assert same(path, plain)
                    assert not part_names(path)
        assert not [path for path in tmp_path.iterdir() if path.suffix not in (".h5", ".xdmf")]

    def test_secured_frames_are_one_part(self, tmp_path):
        """Two runs, the first of them interrupted, behind one whose processes had a part each."""
        path = tmp_path / "a.h5"
        secured = write(path, 2, times=(0.0, None, 0.1, None, 0.2))
        path.unlink()
        under_mpi(3, tmp_path, f"""
with begin(folder / "a.h5", world, secured={secured}) as results:
    append(results, world, 0.25)
    secured = results.secure()
    append(results, world, 0.9)
with begin(folder / "a.h5", world, secured=secured) as results:
    append(results, world, 0.3)
    append(results, world, 0.4)
    results.finish(ATTRIBUTES, HISTORY)
""")  # fmt: skip
        plain = write(tmp_path / "plain.h5", 1, times=(0.0, 0.1, 0.25, 0.3, 0.4))
        assert same(path, plain)
        assert len(part_names(path)) == 2 + 2 + 1 + 1

    def test_a_failure_is_everybodys(self, tmp_path):
        """Where rank 0 cannot make room, and where one process's block does not fit."""
        path = write(tmp_path / "a.h5", 1, 3)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        with reserved(tmp_path / "taken.h5"):
            said = under_mpi(3, tmp_path, """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

def work(name="a.h5", limit=10**9, misfit=False):
    if world.rank == 0:
        setrlimit(RLIMIT_FSIZE, (limit, -1))
    try:
        with begin(folder / name, world) as results:
            append(results, world, 0.0)
            if misfit and world.rank == 2:
                results.append({"temperature": np.ones((1, 1))}, 0.1)
            append(results, world, 0.1)
            results.finish({}, {})
    finally:
        setrlimit(RLIMIT_FSIZE, (-1, -1))

attempt(lambda: work(limit=100))
attempt(lambda: work(limit=9000))
attempt(lambda: work(misfit=True))
attempt(lambda: work("taken.h5"))
attempt(lambda: work("missing/a.h5"))
""")  # fmt: skip
        large = f"FileFailure: cannot write {path}: File too large"
        assert said[:2] == [large, large]
        assert said[2].startswith("ValueError: every frame has the same fields, in the shape")
        assert said[3] == f"FileFailure: another run is writing {tmp_path / 'taken.h5'}"
        assert said[4].endswith("missing is not a directory")
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

    def test_one_that_leaves_waits_for_nobody(self, tmp_path):
        """An exception of one process, here rank 0, which owns the unfinished file."""
        said = under_mpi(3, tmp_path, """
results = begin(folder / "a.h5", world)
append(results, world, 0.0)
if world.rank == 0:
    results.__exit__()
    print(*folder.iterdir())
world.gather(None)
if world.rank > 0:
    results.__exit__()
""")  # fmt: skip
        assert said == [""]


class TestAgreed:
    def test_all_raise_what_one_raises(self):
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


class TestPausedFile:
    @pytest.mark.parametrize("transient", [False, True])
    def test_others_fill_it(self, tmp_path, transient):
        """What several processes do, here one after the other."""
        path = tmp_path / "a.h5"
        with FieldFile(path, axes(2), UNITS, transient=transient, shared=True) as file:
            file.pause()
            for time in TIMES if transient else (None,):
                file.resume()
                place = file.make_room({"temperature": np.dtype("f8")}, time)
                unfinished, size = file.pause(), 0
                for rows in slice(0, 2), slice(2, 5):
                    with h5py.File(unfinished, "r+") as other:
                        size = size or unfinished.stat().st_size
                        other["temperature"][(*place, rows)] = field(2, time or 0.0)[rows]
                assert unfinished.stat().st_size == size  # there was room
            file.resume()
            file.finish(ATTRIBUTES, HISTORY)
        wanted = [field(2, time) for time in TIMES] if transient else field(2)
        np.testing.assert_array_equal(read(path).fields["temperature"], wanted)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a.h5", "a.xdmf"]
