"""Several GPUs: every model to the bits of one GPU, over each link.

test_multigpu.py BACKEND TRANSPORT FOLDER, under mpiexec, runs all cases, each into its file.
"""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from test_ranks import launch, mpi

from heatsolve.backends.gpu import peers
from heatsolve.backends.registry import count_gpus
from heatsolve.case.load import load
from heatsolve.io.reader import read
from heatsolve.parallel.ranks import failing_together, find_ranks
from heatsolve.report import Report
from heatsolve.runner import run

JACOBI = ("grid.nodes=[200, 150]", "solver.method=jacobi")
CASES = {
    "sweeps": ("hot-plate", *JACOBI, "solver.tolerance=1e-2", "parallel.halo=1"),
    "many unchecked sweeps": ("hot-plate", *JACOBI, "solver.iterations=500", "parallel.halo=1",
                              "solver.check_every=100"),
    "deep halo": ("hot-plate", *JACOBI, "solver.tolerance=1e-2", "parallel.halo=3"),
    "passes": ("legate-stencil", "constants.N=800", "solver.check_every=50"),
    "cg": ("hot-plate", "grid.nodes=[200, 150]", "solver.method=cg"),
    "multigrid": ("sine-source", "grid.nodes=[1025, 1025]", "solver.method=multigrid"),
    "full multigrid": ("sine-source", "grid.nodes=[1025, 1025]", "solver.method=multigrid",
                       "solver.cycle=FMG"),
    "multigrid as a preconditioner": ("heat-sink", "solver.method=mgcg"),
    "mixed": ("sine-source", "grid.nodes=[1025, 1025]", "solver.precision=mixed",
              "solver.tolerance=1e-9"),
    "heated through a wall": ("hot-plate", "grid.nodes=[129, 1025]", "solver.method=multigrid",
                              "boundary.bottom.temperature.gradient=1"),
    "multigrid in space": ("sine-source-3d", "grid.nodes=[129, 129, 129]"),
    "heat in time": ("cooling-cube", "time.end=0.01"),
    "transport": ("cfdpython-08",),
    "collocated": ("legate-cfd",),
    "all sweeps behind one exchange": ("legate-cfd", "constants.n=1801", "time.end=6*dt"),
    "flow": ("cavity-re100", "time.end=0.05"),
    "flow in space": ("taylor-green-3d", "constants.n=32", "time.end=0.2"),
    "flow in overlapping blocks": ("taylor-green-3d", "constants.n=128", "time.end=0.05"),
    "flow about an obstacle": ("cylinder-re100", "constants.n=82", "time.end=0.02"),
    "heat and flow": ("rayleigh-benard", "constants.n=24", "time.end=0.2"),
}  # fmt: skip

LINKED = {"peer": "GPU peer memory", "nccl": "NCCL", "host": "MPI through"}


def solve_all(backend, transport, folder, ranks=None, report=None):
    if backend == "cuda":
        peers.PLACE = 1 << 12  # messages through peer memory in many parts
    for what, (case, *overrides) in CASES.items():
        given = load(case, [*overrides, f"parallel.transport={transport}"])
        run(given, backend, Path(folder) / f"{what}.h5", report, ranks)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder with what one GPU finds."""
    folder = tmp_path_factory.mktemp("alone")
    solve_all("cupy", "auto", folder)
    return folder


USUAL = (("peer", "cupy"), ("peer", "cuda"), ("nccl", "cuda"))
PAIRS = [
    pytest.param(*pair, marks=[] if pair in USUAL else pytest.mark.thorough)
    for pair in itertools.product(("peer", "nccl", "host"), ("cupy", "cuda"))
]
"""Transports and backends. In `-m gpu` three processes on one GPU send messages through hosts."""


@mpi
@pytest.mark.multigpu
@pytest.mark.parametrize(("transport", "name"), PAIRS)
@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_same_bits_as_one_gpu(gpus, transport, name, alone, tmp_path, monkeypatch):
    if count_gpus() < gpus:
        pytest.skip(f"needs {gpus} GPUs")
    check_bits(gpus, transport, name, alone, tmp_path, monkeypatch)


@mpi
@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cupy", "cuda"])
def test_same_bits_of_three_that_share_a_gpu(name, alone, tmp_path, monkeypatch):
    """Slow, but it shows on one GPU what several have: blocks, layers that overlap, messages."""
    check_bits(3, "host", name, alone, tmp_path, monkeypatch)


def check_bits(ranks, transport, name, alone, folder, monkeypatch):
    """That so many processes of that backend, linked in that way, find what one GPU finds."""
    for key in ("ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM", "MCA_rmaps_base_oversubscribe"):
        monkeypatch.setenv(f"OMPI_{key}", "1")
    done = launch(ranks, Path(__file__).name, name, transport, folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"linked by {LINKED[transport]}") == len(CASES)
    wrong = [what for what in CASES if differing(folder / f"{what}.h5", alone / f"{what}.h5")]
    assert not wrong


def differing(path, other):
    """Names of fields and columns of the history that are not the same in two files."""
    one, two = read(path), read(other)
    assert one.attributes["ranks"] > two.attributes["ranks"] == 1
    pairs = ((one.fields, two.fields), (one.history, two.history))
    return [
        name
        for found, expected in pairs
        for name in found.keys() | expected.keys()
        if not np.array_equal(found.get(name), expected.get(name), equal_nan=True)
    ]


@mpi
@pytest.mark.multigpu
@pytest.mark.skipif(count_gpus() == 0, reason="needs a GPU")
def test_processes_that_share_a_gpu_have_no_nccl(tmp_path):
    done = launch(count_gpus() + 1, "-m", "heatsolve", "run", "hot-plate", "--backend", "cupy",
                  "--set=parallel.transport=nccl", "--output", tmp_path / "a.h5")  # fmt: skip
    assert done.returncode == 2
    assert "NCCL does not work here (processes share a GPU)" in done.stderr


if __name__ == "__main__":
    ranks = find_ranks()
    with failing_together(ranks):
        solve_all(*sys.argv[1:], ranks, Report(mute=ranks.rank > 0))
