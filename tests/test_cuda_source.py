"""What the GPU backends generate, checked without a GPU: it compiles, nothing contracts, and on
Numba's CUDA simulator it gives the bits of NumPy."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from conformance import PRECISIONS, registry
from cubin import operations

from heatsolve.backends import Signature
from heatsolve.backends.gpu import emit as cuda_c
from heatsolve.linear.multigrid.mixed import corrected, scaled_residual
from heatsolve.linear.system import with_change
from heatsolve.models.heat import equations as heat
from heatsolve.stencil.trace import REAL

HOPPER = (9, 0)
FUSED = re.compile(r"\bfma\.|\bmad\.(rn|rz|rm|rp)|\.ftz|\.approx")
"""Instructions that round otherwise than a CPU does."""

ENTRIES = {entry.name: entry for entry in registry()}
by_name = pytest.mark.parametrize("name", ENTRIES)
in_precisions = pytest.mark.parametrize("precision", PRECISIONS)


# ---- CUDA C -----------------------------------------------------------------------------------


def nvrtc(source, target="sm_90"):
    """The code that NVRTC makes of CUDA C; skips the test where there is no NVRTC."""
    numba_cuda = pytest.importorskip("heatsolve.backends.gpu.numba_cuda")
    assert "--fmad=false" in cuda_c.OPTIONS
    try:
        return numba_cuda.compiled_c(source, (*cuda_c.OPTIONS, f"--gpu-architecture={target}"))
    except ImportError as error:
        pytest.skip(f"no NVRTC here ({error})")
    except RuntimeError as error:
        if "not found" in str(error).lower() or type(error).__name__.endswith("NotFoundError"):
            pytest.skip(f"no NVRTC here ({str(error).splitlines()[0]})")
        if "--gpu-architecture" in str(error):
            pytest.skip(f"NVRTC knows no {target}")
        raise


@pytest.fixture(autouse=True)
def never_cached(monkeypatch):
    """A kernel that was compiled before must compile again."""
    monkeypatch.setenv("CUDA_CACHE_DISABLE", "1")


@pytest.mark.few(15)
@in_precisions
@by_name
def test_cuda_c_compiles(name, precision):
    entry = ENTRIES[name]
    signature = entry.signature(precision, gated=entry.dimension == 2)
    source = cuda_c.kernel_source(name, signature, signature.tape(entry.point))
    assert b"sweep" in nvrtc(source)
    if precision == "float32" and not {"sum", "max"} & set(entry.outputs):
        assert "double" not in source  # it would round otherwise than NumPy


def layers(d):
    """Signatures of packing and unpacking a layer, and of unpacking one that is a single column."""
    entry = ENTRIES[f"{d}d-shifted"]
    usual = entry.signature("float64")
    column = ((*[False] * (d - 1), True), *usual.arguments[1:])
    yield entry, replace(usual, apart=("o0",))
    yield entry, replace(usual, apart=("a0",))
    yield entry, replace(usual, apart=("a0",), arguments=column)


LAYERS = [pytest.param(*found, id=f"{d}d-{n}") for d in (2, 3) for n, found in enumerate(layers(d))]


@pytest.mark.parametrize("entry, signature", LAYERS)
def test_cuda_c_of_arrays_apart_compiles(entry, signature):
    source = cuda_c.kernel_source(entry.name, signature, signature.tape(entry.point))
    (name,) = signature.apart
    assert f"long long extent_j_{name}" in source
    assert b"sweep" in nvrtc(source)


FULL, ONE = (False, False), (True, True)
NARROW = {
    "residual": (
        scaled_residual(heat.residual, ()),
        Signature(
            (FULL, FULL, REAL, ONE, REAL, *[ONE] * 4), ("array",), (None,), "float64", 2, True,
            narrow=("o0",),
        ),
    ),
    "correction": (
        with_change(corrected, "max"),
        Signature(
            (FULL, FULL, REAL), ("array", "max"), (0, None), "float64", 2, True, narrow=("a1",)
        ),
    ),
}  # fmt: skip
"""Sweeps in double precision, of arrays some of which are in single."""


@pytest.mark.parametrize("name", NARROW)
def test_cuda_c_of_both_precisions_compiles(name):
    point, signature = NARROW[name]
    source = cuda_c.kernel_source(name, signature, signature.tape(point))
    assert re.findall(r"float\* __restrict__ (\w+)", source) == list(signature.narrow)
    assert b"sweep" in nvrtc(source)


def test_check_compiles():
    assert b"check" in nvrtc(cuda_c.check_source())


@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
def test_exchange_compiles(target):
    assert b"exchange" in nvrtc(cuda_c.peer_source(512, 32), target)


# ---- Numba-CUDA -------------------------------------------------------------------------------

REPRESENTATIVE = (
    "1d-explicit_step", "2d-where", "2d-sqrt", "2d-laplace", "2d-sor-updated-array-sum",
    "3d-shifted", "3d-chebyshev-updated-1-max", "2d-conjugategradients-advance-0-1-sum",
)  # fmt: skip


@pytest.fixture
def python(monkeypatch):
    """The modules of the cuda backend, on a machine that may have no GPU."""
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "1":
        pytest.skip("the simulator compiles nothing")
    from numba.cuda import dispatcher

    from heatsolve.backends.gpu import numba_cuda

    gpu = SimpleNamespace(compute_capability=HOPPER)
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: gpu)
    return numba_cuda


def ptx_of(python, entry, signature, capability=HOPPER):
    """PTX of a sweep: by Numba-CUDA, of one that reduces by NVRTC."""
    tape = signature.tape(entry.point)
    if signature.reduces:
        source = cuda_c.kernel_source(entry.name, signature, tape)
        return nvrtc(source, "compute_{}{}".format(*capability)).decode()
    return python.ptx_of(python.python_source(signature, tape), signature, capability)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", REPRESENTATIVE)
@in_precisions
def test_numba_cuda_compiles_without_contraction(python, name, precision):
    entry = ENTRIES[name]
    signature = entry.signature(precision, gated=True)
    ptx = ptx_of(python, entry, signature)
    assert re.search(r"\.entry +sweep\(", ptx) or signature.reduces
    assert not FUSED.findall(ptx)
    if precision == "float32" and "sum" not in entry.outputs:
        assert not re.search(r"\b(add|sub|mul|div|sqrt)\S*\.f64", ptx)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "capability", [(6, 0), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]
)
def test_numba_cuda_compiles_for_every_capability(python, capability):
    entry = ENTRIES["2d-sor-updated-array-sum"]
    signature = entry.signature("float64")
    try:
        ptx = ptx_of(python, entry, signature, capability)
    except Exception as error:
        if type(error).__name__ == "CCSupportError":  # CUDA 13
            pytest.skip(str(error))
        raise
    assert f".target sm_{capability[0]}{capability[1]}" in ptx


@in_precisions
def test_machine_code_of_numba_cuda_has_no_fused_multiply_add(python, precision):
    entry = ENTRIES["2d-laplace"]
    ptx = ptx_of(python, entry, entry.signature(precision))
    made = operations(python.assembled(ptx, "sm_90"), "sweep")
    assert made.count("mul") and made.count("add") == 2 * made.count("mul")
    assert "fma" not in made


@pytest.mark.parametrize("name", NARROW)
def test_numba_cuda_of_both_precisions_compiles(python, name):
    point, signature = NARROW[name]
    ptx = ptx_of(python, SimpleNamespace(name=name, point=point), signature)
    assert not FUSED.findall(ptx)
    assert not re.search(r"\b(add|sub|mul)\S*\.f32", ptx)
    assert "cvt.rn.f32.f64" in ptx if "o0" in signature.narrow else "cvt.f64.f32" in ptx


@pytest.mark.parametrize("entry, signature", LAYERS)
def test_numba_cuda_of_arrays_apart_compiles(python, entry, signature):
    assert python.assembled(ptx_of(python, entry, signature), "sm_90").startswith(b"\x7fELF")


def test_check_rounds_as_a_cpu_does():
    assert "fma." not in nvrtc(cuda_c.check_source(), "compute_90").decode()


# ---- the simulator ----------------------------------------------------------------------------


@pytest.mark.thorough
def test_simulator():
    """In a process of its own: Numba reads the switch when it is imported."""
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("simulated.py")],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
