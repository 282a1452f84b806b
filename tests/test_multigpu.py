"""Several GPUs: every model to the bits of one GPU, over each link."""

import numpy as np
import pytest
from test_ranks import launch, mpi

from heatsolve.backends.choice import count_gpus
from heatsolve.case import load
from heatsolve.output import read
from heatsolve.run import run

CASES = {
    "sweeps": ("hot-plate", "grid.nodes=[200, 150]", "solver.method=jacobi",
               "solver.tolerance=1e-3"),
    "deep halo": ("hot-plate", "grid.nodes=[200, 150]", "solver.method=jacobi",
                  "solver.tolerance=1e-3", "parallel.halo=3"),
    "cg": ("hot-plate", "grid.nodes=[200, 150]", "solver.method=cg"),
    "multigrid": ("sine-source", "grid.nodes=[257, 257]", "solver.method=multigrid"),
    "heat in time": ("cooling-cube", "time.end=0.01"),
    "transport": ("cfdpython-08",),
    "collocated": ("legate-cfd",),
    "flow": ("cavity-re100", "time.end=0.05"),
    "flow in space": ("taylor-green-3d", "constants.n=32", "time.end=0.2"),
    "heat and flow": ("rayleigh-benard", "constants.n=24", "time.end=1"),
}  # fmt: skip


@mpi
@pytest.mark.multigpu
@pytest.mark.parametrize("what", CASES)
@pytest.mark.parametrize("name", ["cupy", "cuda"])
@pytest.mark.parametrize("transport", ["nccl", "host"])
@pytest.mark.parametrize("gpus", [2, 8])
def test_same_bits_as_one_gpu(gpus, transport, name, what, tmp_path, monkeypatch):
    if count_gpus() < gpus:
        pytest.skip(f"needs {gpus} GPUs")
    for key in ("ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM", "MCA_rmaps_base_oversubscribe"):
        monkeypatch.setenv(f"OMPI_{key}", "1")
    case, *overrides = CASES[what]
    one, many = tmp_path / "one.h5", tmp_path / "many.h5"
    given = [f"--set={override}" for override in (*overrides, f"parallel.transport={transport}")]
    done = launch(gpus, "-m", "heatsolve", "run", case, *given, "--backend", name,
                  "--output", many)  # fmt: skip
    assert done.returncode in (0, 3), done.stderr  # a steady march may be cut short
    assert f"linked by {'NCCL' if transport == 'nccl' else 'MPI through'}" in done.stdout
    run(load(case, overrides), name, one)
    found, exact = read(many), read(one)
    assert found.attributes["ranks"] == gpus
    for kind in ("fields", "history"):
        expected, computed = getattr(exact, kind), getattr(found, kind)
        assert expected.keys() == computed.keys()
        for key, values in expected.items():
            assert np.array_equal(values, computed[key], equal_nan=True), key


@mpi
@pytest.mark.multigpu
@pytest.mark.skipif(count_gpus() == 0, reason="needs a GPU")
def test_processes_that_share_a_gpu_have_no_nccl(tmp_path):
    done = launch(count_gpus() + 1, "-m", "heatsolve", "run", "hot-plate", "--backend", "cupy",
                  "--set=parallel.transport=nccl", "--output", tmp_path / "a.h5")  # fmt: skip
    assert done.returncode == 2
    assert "NCCL does not work here (processes share a GPU)" in done.stderr
