"""What the GPU backends generate, checked without a GPU: it compiles, nothing contracts, and on
Numba's CUDA simulator it gives the bits of NumPy."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conformance import PRECISIONS, registry

from heatsolve.backends import cupy as cuda_c

HOPPER = (9, 0)
FUSED = re.compile(r"\bfma\.|\bmad\.(rn|rz|rm|rp)|\.ftz|\.approx")
"""Instructions that round otherwise than a CPU does."""

ENTRIES = {entry.name: entry for entry in registry()}
by_name = pytest.mark.parametrize("name", ENTRIES)
in_precisions = pytest.mark.parametrize("precision", PRECISIONS)


# ---- CUDA C -----------------------------------------------------------------------------------


def nvrtc(source, kind="cubin"):
    """The code that NVRTC makes of CUDA C; skips the test where there is no NVRTC."""
    core = pytest.importorskip("cuda.core", reason="cuda.core is not installed")
    given = [option.removeprefix("--").split("=") for option in cuda_c.OPTIONS]
    words = {"fmad": "fma", "true": True, "false": False}
    named = {words.get(k, k.replace("-", "_")): words.get(value, value) for k, value in given}
    assert named["fma"] is False
    try:
        program = core.Program(source, "c++", core.ProgramOptions(arch="sm_90", **named))
    except Exception as error:
        if "not found" in str(error).lower() or type(error).__name__.endswith("NotFoundError"):
            pytest.skip(f"no NVRTC here ({str(error).splitlines()[0]})")
        raise
    return program.compile(kind).code


@pytest.fixture(autouse=True)
def never_cached(monkeypatch):
    """A kernel that was compiled before must compile again."""
    monkeypatch.setenv("CUDA_CACHE_DISABLE", "1")


@in_precisions
@by_name
def test_cuda_c_compiles(name, precision):
    entry = ENTRIES[name]
    signature = entry.signature(precision, gated=entry.dimension == 2)
    source = cuda_c.kernel_source(name, signature, signature.tape(entry.point))
    assert b"sweep" in nvrtc(source)
    if precision == "float32" and not {"sum", "max"} & set(entry.outputs):
        assert "double" not in source  # it would round otherwise than NumPy


def test_check_compiles():
    assert b"check" in nvrtc(cuda_c.check_source())


# ---- Numba-CUDA -------------------------------------------------------------------------------

REPRESENTATIVE = (
    "1d-explicit_step", "2d-where", "2d-sqrt", "2d-laplace", "2d-sor-updated-array-sum",
    "3d-shifted", "3d-chebyshev-updated-1-max", "2d-conjugategradients-advance-0-1-sum",
)  # fmt: skip


@pytest.fixture
def python(monkeypatch):
    """The module of the cuda backend, on a machine that may have no GPU."""
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "1":
        pytest.skip("the simulator compiles nothing")
    from numba.cuda import dispatcher

    from heatsolve.backends import cuda

    gpu = SimpleNamespace(compute_capability=HOPPER)
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: gpu)
    return cuda


@pytest.mark.parametrize("name", REPRESENTATIVE)
@in_precisions
def test_numba_cuda_compiles_without_contraction(python, name, precision):
    entry = ENTRIES[name]
    signature = entry.signature(precision, gated=True)
    source = python.kernel_source(name, signature, signature.tape(entry.point))
    function = python.kernel_function(source)
    types = python.parameter_types(signature, entry.dimension)
    ptx = python.ptx_of(function, types, HOPPER)
    assert "kernel" in python.entry_of(ptx)
    assert not FUSED.findall(ptx)
    if precision == "float32" and "sum" not in entry.outputs:
        assert not re.search(r"\b(add|sub|mul|div|sqrt)\S*\.f64", ptx)


def test_numba_cuda_check_compiles(python):
    from heatsolve.backends.cuda_reductions import check

    ptx = python.ptx_of(check, python.check_types(), HOPPER)
    assert "fma." not in ptx


# ---- the simulator ----------------------------------------------------------------------------


def test_simulator():
    """In a process of its own: Numba reads the switch when it is imported."""
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("simulated.py")],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
