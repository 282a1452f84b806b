"""Many processes: blocks, the exchange of ghosts, and the bits of one process."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from heatsolve.errors import InputError
from heatsolve.io.reader import read
from heatsolve.parallel.decomposition import block_of, process_grid
from heatsolve.parallel.halo import inner_and_rim
from heatsolve.parallel.ranks import Ranks, _leaves, demand_same, find_ranks
from heatsolve.stencil.grid import make_grid

BESIDE = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
mpi = pytest.mark.skipif(BESIDE is None, reason="no mpiexec: install heatsolve[mpich]")


def launch(ranks, *command, timeout=600):
    return subprocess.run(
        [str(BESIDE), "-n", str(ranks), sys.executable, *map(str, command)],
        capture_output=True, text=True, timeout=timeout, cwd=Path(__file__).parent,
    )  # fmt: skip


@mpi
@pytest.mark.parametrize(
    ("ranks", "backend", "what"),
    [
        (2, "numpy", "some-bits"),
        *[pytest.param(n, "numpy", "bits", marks=pytest.mark.thorough) for n in (2, 3, 4)],
        *[
            pytest.param(ranks, backend, "all-bits", marks=pytest.mark.slow)
            for ranks, backend in [(n, "numpy") for n in (2, 3, 4, 6)] + [(4, "numba")]
        ],
    ],
)
def test_same_bits(ranks, backend, what):
    """Every problem, method, scheme and process grid; halos of one to three layers.

    Three blocks in a row have walls at no, one or the other end; four can cut both axes; of two
    on a ring each meets the other at both ends.
    """
    done = launch(ranks, "many.py", backend, what)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split("compared")[1]) > {"all-bits": 50, "some-bits": 12}.get(what, 15)


@mpi
@pytest.mark.parametrize(
    ("ranks", "backend", "pairs"),
    [
        (3, "numpy", "some-restarts"),
        pytest.param(3, "numpy", "other-restarts", marks=pytest.mark.thorough),
        pytest.param(4, "numpy", "all-restarts", marks=pytest.mark.slow),
        pytest.param(4, "numba", "all-restarts", marks=pytest.mark.slow),
    ],
)
def test_goes_on_with_other_processes(ranks, backend, pairs):
    """Interrupted with some processes, continued with others."""
    done = launch(ranks, "many.py", backend, pairs)
    assert done.returncode == 0, done.stderr
    least = {"some-restarts": 4, "other-restarts": 19}.get(pairs, 23)
    assert int(done.stdout.split("compared")[1]) >= least


@mpi
@pytest.mark.parametrize(
    ("ranks", "what"),
    [
        (3, "some-levels"),
        pytest.param(3, "more-levels", marks=pytest.mark.thorough),
        pytest.param(3, "other-levels", marks=pytest.mark.thorough),
        *[pytest.param(n, "all-levels", marks=pytest.mark.slow) for n in (3, 4)],
    ],
)
def test_same_bits_of_multigrid_in_blocks(ranks, what):
    """Several levels in blocks of the processes, before they are gathered."""
    done = launch(ranks, "many.py", "numpy", what)
    assert done.returncode == 0, done.stderr
    least = {"some-levels": 6, "more-levels": 9, "other-levels": 35}.get(what, 50)
    assert int(done.stdout.split("compared")[1]) > least


PLAYED_BACK = """
from heatsolve.backends import Backend
from heatsolve.backends.registry import make
from heatsolve.case.load import load
from heatsolve.models.base import make_model
from heatsolve.parallel.ranks import find_ranks
from heatsolve.tools.scaling import Worker

case = load("taylor-green-3d", overrides=["grid.cells=[16, 16, 16]"])
ranks, sweep, count = find_ranks(), Backend.sweep, 0
work = Worker(make_model(case, make("numpy", "float64"), ranks))
work.make(40)

def counted(*args, **more):
    global count
    count += 1
    sweep(*args, **more)

Backend.sweep = counted
work.make(10)
if ranks.rank == 0:
    print(count / 10)
"""


@mpi
def test_several_processes_play_steps_back(tmp_path):
    """Messages included; the sweeps of a step, some 2,000, were called one by one before."""
    done = launch(2, "-c", PLAYED_BACK)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 100


ON_ONE_CORE = [
    sys.executable,
    "-c",
    """if True:
    import os, sys
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.execv(sys.argv[1], sys.argv[1:])
""",
]
WAITING = """
import time, numpy as np
from heatsolve.parallel.transport import Transport, ring
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.parallel.ranks import find_ranks

ranks, transport = find_ranks(), None
assert ranks.crowd == "2 processes on 1 core"
sides = ring(Transport(ranks), NumpyBackend(), 10, ranks)
calls = {
    "an exchange": lambda: Transport(ranks).exchange(sides),
    "a sum": lambda: ranks.combine(np.zeros(1000, np.int64)),
    "an answer": lambda: ranks.smallest(np.zeros(3)),
    "values": lambda: ranks.gather(1),
    "a value": lambda: ranks.trade(1, 1 - ranks.rank, 1 - ranks.rank),
}
for name, call in calls.items():
    ranks.gather(None)
    if ranks.rank == 1:
        time.sleep(0.5)
    began = time.process_time()
    call()
    if ranks.rank == 0:
        print(f"{name}: {time.process_time() - began:.3f}")
"""


@mpi
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no process is bound to cores")
def test_more_processes_than_cores_wait_without_spinning(tmp_path):
    """The one that waits for half a second leaves most of it to the other."""
    command = [*ON_ONE_CORE, BESIDE, "-n", "2", sys.executable]
    done = subprocess.run(
        [*command, "-c", WAITING], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    spent = dict(line.split(": ") for line in done.stdout.splitlines())
    assert len(spent) == 5
    assert all(float(seconds) < 0.25 for seconds in spent.values()), spent
    arguments = ["-m", "heatsolve", "run", "hot-plate", "--backend", "numpy"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=tmp_path)
    assert "2 processes on 1 core: they wait without spinning, fewer would be faster" in done.stdout


@mpi
@pytest.mark.parametrize(
    "ranks",
    [pytest.param(2, marks=pytest.mark.thorough), pytest.param(4, marks=pytest.mark.slow)],
)
def test_hotspot_on_many_ranks(ranks, tmp_path):
    import hashlib

    from test_cases import HOTSPOT

    output = tmp_path / "hotspot.h5"
    command = ("-m", "heatsolve", "run", "hotspot", "--backend", "numba", "--output", output)
    done = launch(ranks, *command)
    assert done.returncode == 0, done.stderr
    stored = read(output)
    assert stored.attributes["iterations"] == 19008
    assert stored.attributes["ranks"] == ranks
    assert "linked by MPI\n" in done.stdout
    said = r"ghosts: waited (.*) % of the time; sums: (.*) %;"
    shares = re.search(said, done.stdout)
    assert all(0.0 < float(share) < 100.0 for share in shares.groups())
    assert hashlib.sha256(stored.fields["temperature"].tobytes()).hexdigest() == HOTSPOT


COMPILES = """
import time
import heatsolve
from heatsolve.backends.compilation import compiling
from heatsolve.parallel.transport import Transport
restart, start = Transport.restart_clocks, Transport.start
def restart_clocks(transport):
    restart(transport)
    transport.compiles = transport._ranks.rank == 0
def start_compiled(transport, sides):
    if getattr(transport, "compiles", False):
        transport.compiles = False
        with compiling():
            time.sleep(1.0)
    start(transport, sides)
Transport.restart_clocks, Transport.start = restart_clocks, start_compiled
heatsolve.main()
"""


@mpi
def test_shares_of_the_time_count_the_compilation(tmp_path):
    """The other process waits while the first one compiles, which is not counted as solving."""
    command = ("run", "hot-plate", "--backend", "numpy", "--output", tmp_path / "a.h5",
               "--set", "grid.nodes=[17, 17]", "--set", "solver.iterations=2")  # fmt: skip
    done = launch(2, "-c", COMPILES, *command)
    assert done.returncode == 0, done.stderr
    said = r"ghosts: waited (.*) % of the time; sums: (.*) %;"
    shares = [float(share) for share in re.search(said, done.stdout).groups()]
    assert 10.0 < sum(shares) < 100.0


@mpi
def test_one_error_from_one_rank(tmp_path):
    """Too many processes for the grid: one sentence, exit code 2."""
    done = launch(6, "-m", "heatsolve", "run", "hot-plate", "--set", "grid.nodes=[4, 4]",
                  "--output", tmp_path / "a.h5")  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("6 processes are too many for 2 x 2 unknowns") == 1
    assert "Traceback" not in done.stderr


@mpi
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--set", "grid.cells=[24, 21]"],
            r"grid.cells is \[24, 21\] on rank 1 of 2, but \[24, 20\]",
        ),
        (["--restart"], "--restart is True on rank 1 of 2, but False"),
        (["--output", "other.h5"], "--output is 'other.h5' on rank 1 of 2, but 'case.h5'"),
    ],
)
def test_processes_that_were_given_something_else(options, said, tmp_path):
    """All end with 2 before the run begins, and one sentence."""
    from test_restart import STEADY

    (tmp_path / "case.toml").write_text(STEADY)
    program = [sys.executable, "-m", "heatsolve", "run", "case.toml", "--backend", "numpy"]
    done = subprocess.run(
        [BESIDE, "-n", "1", *program, ":", "-n", "1", *program, *options],
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert re.search(f"heatsolve: {said} on rank 0: give all", done.stderr)
    assert done.stderr.count("heatsolve: ") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["case.toml"]


class Told(Ranks):
    """Processes of which the others are known beforehand."""

    def __init__(self, *given):
        self.size, self._given = len(given), given

    def gather(self, value):
        if isinstance(value, str):
            return [str(given) for given in self._given]
        return [dict(_leaves(given)) for given in self._given]


def test_the_first_key_that_differs_is_named():
    same = {"a": {"b": [1, 2]}, "obstacle": [{"radius": 1}]}
    demand_same(Told(same, same), same)
    with pytest.raises(
        InputError, match=r"obstacle.0.radius is 2 on ranks 1, 2 of 3, but 1 on rank 0"
    ):
        other = {**same, "obstacle": [{"radius": 2}]}
        demand_same(Told(same, other, other), same)
    with pytest.raises(InputError, match=r"c is absent on rank 2 of 3, but 'x+\.\.\. on rank 0"):
        more = {**same, "c": "x" * 1000}
        demand_same(Told(more, more, same), more)


def grid_of(*points, periodic=()):
    return make_grid(points, (0,) * 3, (1,) * 3, on_nodes=False, periodic=periodic)


@pytest.mark.parametrize(
    ("points", "size", "dims"),
    [((100,), 4, (4,)), ((64, 64), 4, (2, 2)), ((64, 64), 2, (2, 1)), ((400, 10), 4, (1, 4)),
     ((64, 64, 64), 8, (2, 2, 2)), ((3, 64), 7, (7, 1)), ((5, 1000), 6, (6, 1))],
)  # fmt: skip
def test_least_surface(points, size, dims):
    assert process_grid(grid_of(*points), size) == dims


def test_process_grid_as_wanted():
    assert process_grid(grid_of(64, 32), 6, (3, 2)) == (2, 3)
    with pytest.raises(InputError, match="does not give 6 processes"):
        process_grid(grid_of(64, 32), 6, (2, 2))
    with pytest.raises(InputError, match="without unknowns"):
        process_grid(grid_of(4, 2), 6, (2, 3))


def test_blocks_cover_all_unknowns_once():
    for count in range(1, 40):
        for parts in range(1, count + 1):
            blocks = [block_of(count, parts, number) for number in range(parts)]
            assert [start for start, _ in blocks[1:]] == [stop for _, stop in blocks[:-1]]
            assert (blocks[0][0], blocks[-1][1]) == (0, count)
            sizes = [stop - start for start, stop in blocks]
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("points", [(5, 4), (1, 3), (2, 2), (6, 5, 4)])
def test_inner_and_rim_are_the_interior(points):
    grid = make_grid(points, (0,) * 3, (1,) * 3, on_nodes=False)
    sides = dict(enumerate([(True, True), (False, True), (True, False)][: len(points)]))
    inner, rim = inner_and_rim(grid.interior, sides)
    seen = np.zeros(grid.shape, int)
    for region in (inner, *rim):
        seen[tuple(slice(*pair) for pair in region)] += 1
    assert np.array_equal(seen[tuple(slice(*pair) for pair in grid.interior)], np.ones(
        [high - low for low, high in grid.interior]))  # fmt: skip
    assert seen.sum() == np.prod([high - low for low, high in grid.interior])


def test_no_mpi_is_imported_alone():
    code = (
        "import sys; from heatsolve.parallel.ranks import find_ranks; r = find_ranks(); "
        "assert r.size == 1 and 'mpi4py' not in sys.modules"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "OMPI", "MPI"))}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_a_launcher_without_a_library_of_mpi(monkeypatch):
    """As srun sets its variables also where no MPI is loaded."""
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setenv("PMI_RANK", "0")
    with pytest.raises(InputError, match="MPI cannot be loaded"):
        find_ranks()


def test_singletons_under_slurm_are_refused(monkeypatch):
    pytest.importorskip("mpi4py.MPI", exc_type=ImportError)
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    with pytest.raises(InputError, match="srun --mpi=pmi2"):
        find_ranks()


RAISES = """
import sys, time
from heatsolve import cli
from heatsolve.time import loop as march
from heatsolve.parallel.ranks import World

def iterating(*_):
    if World().rank == 1:
        open(sys.argv[-1] + ".raised", "w").close()
        raise RuntimeError("a mistake of ours")
    time.sleep(60)

march.iterating = iterating
sys.argv = ["heatsolve", "run", "hot-plate", "--backend", "numpy", "--output", sys.argv[1]]
cli.main()
"""


@mpi
def test_a_process_that_raises_ends_all(tmp_path):
    """Within ten seconds, with one traceback that names it."""
    done = launch(3, "-c", RAISES, tmp_path / "a.h5", timeout=60)
    assert time.time() - (tmp_path / "a.h5.raised").stat().st_mtime < 10.0
    assert done.returncode != 0
    assert done.stderr.count("Traceback") == 1
    assert "RuntimeError: a mistake of ours\n (rank 1 of 3)" in done.stderr
    assert not list(tmp_path.glob("*.h5"))
