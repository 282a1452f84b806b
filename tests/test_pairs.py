"""Sweeps in space by pairs of columns: the bits of NumPy, on a GPU and, emulated, without one."""

import ctypes
from dataclasses import replace

import conformance
import numpy as np
import pytest
from conformance import registry, same, sweep
from emulated import compiled, machine

from heatsolve.backends import Signature
from heatsolve.backends.gpu.emit import kernel_source
from heatsolve.backends.gpu.launch import (
    arrays_of,
    begin_with_pairs,
    launches,
    layout,
    may_pair,
    shape_of,
)
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.stencil.language import copy, shifted

ENTRIES = [
    entry
    for entry in registry()
    if entry.dimension == 3
    and all(kind not in ("sum", "max") for kind in entry.outputs)
    and "at-once" not in entry.name  # they read another grid's columns
]
(FLUX_DIVERGENCE,) = [entry for entry in ENTRIES if entry.name == "3d-flux_divergence"]
SHAPE = (7, 10, 140)
REGIONS = [((1, 6), (1, 9), (1, 139)), ((2, 6), (3, 4), (4, 70)), ((1, 2), (1, 9), (33, 98))]
"""Rows that are no multiple of a thread's, and both ends of the columns even, odd, and either."""

for_entries = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
in_precisions = pytest.mark.parametrize("precision", conformance.PRECISIONS)

DRIVER = """
extern "C" void launch(int x, int y, int z, int across, int down, @PARAMETERS@) {
    blockDim = {across, down, 1};
    for (blockIdx.z = 0; blockIdx.z < z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < x; blockIdx.x++)
                for (threadIdx.y = 0; threadIdx.y < down; threadIdx.y++)
                    for (threadIdx.x = 0; threadIdx.x < across; threadIdx.x++) sweep(@NAMES@);
}
"""
C_TYPES = {"double": ctypes.c_double, "float": ctypes.c_float, "long": ctypes.c_longlong}


def emulated(source):
    """The function `launch` of a kernel whose threads need nothing of each other."""
    given = source[source.index("sweep(const") + len("sweep(") :]
    given = given[: given.index(") {")]
    parameters = given.split(", ")
    names = ", ".join(parameter.split()[-1] for parameter in parameters)
    driver = DRIVER.replace("@PARAMETERS@", given).replace("@NAMES@", names)
    # On a device a vector that is not aligned is an error.
    options = ["-O1", "-shared", "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]
    path = compiled("so", f'#include "emulated.h"\n{source}{driver}', *options, str(machine()))
    function = ctypes.CDLL(str(path)).launch
    function.restype = None
    function.argtypes = [ctypes.c_int] * 5 + [
        ctypes.c_void_p if "*" in parameter else C_TYPES[parameter.split()[0]]
        for parameter in parameters
    ]
    return function


def aligned(array):
    """A copy that begins with a pair, in the midst of NaNs."""
    room = np.full(array.size + 64, np.nan, array.dtype)
    first = 32 + -(room.ctypes.data // array.itemsize + 32) % 32
    result = room[first : first + array.size].reshape(array.shape)
    result[...] = array
    return result


@pytest.mark.few(20)
@for_entries
@in_precisions
def test_pairs_equal_numpy(entry, precision):
    signature = entry.signature(precision)
    for region in REGIONS:
        region = tuple(
            (max(low, first), min(high, last))
            for (low, high), (first, last) in zip(region, entry.region(SHAPE), strict=True)
        )
        given = [
            aligned(value) if isinstance(value, np.ndarray) else value
            for value in entry.make(SHAPE, precision, 1, wild=False)
        ]
        before = np.random.default_rng(2).normal(size=SHAPE).astype(precision)
        expected = sweep(entry, NumpyBackend(precision), given, before, region)
        outputs = [
            given[kind] if isinstance(kind, int) else aligned(before) for kind in entry.outputs
        ]
        operands = [*outputs, *given]
        shapes = [operands[array.place].shape for array in arrays_of(signature)]
        apart, extents = layout(arrays_of(signature), shapes)
        assert not apart
        paired = replace(signature, pairs=True)
        tape = paired.tape(entry.point)
        function = emulated(kernel_source(entry.name, paired, tape))
        gate = np.zeros(2, np.int64)
        for launch in launches(region, shape_of(paired, tape)):
            numbers = [gate, *launch.bounds, *extents, *operands]
            plain = [
                n.ctypes.data if isinstance(n, np.ndarray) else float(n) if isinstance(n, float)
                else 0.0 if type(n).__name__ == "Known" else n
                for n in numbers
            ]  # fmt: skip
            function(*launch.grid, *launch.block[:2], *plain)
        assert all(map(same, outputs, expected)), region


def test_what_lies_together_is_loaded_at_once():
    signature = replace(FLUX_DIVERGENCE.signature("float64"), pairs=True)
    source = kernel_source(FLUX_DIVERGENCE.name, signature, signature.tape(FLUX_DIVERGENCE.point))
    (before, first), second, *_ = source.split("for (long"), *source.split("break;")[1:]
    # Of t: two rows before the loop, then in each row its neighbours and the row ahead.
    assert before.count("*(const double2*)&at_a0[") == 2
    for row in (first.split("break;")[0], second):
        assert row.count("*(const double2*)&at_a0[") == 3
        assert row.count(" ? at_a0[") == 2
        assert row.count("store(at_o0,") == 1


@pytest.mark.parametrize(
    "change, extents",
    [({"outputs": ("sum",)}, (10, 140)), ({"apart": ("a0",)}, (10, 140, 10, 3)),
     ({"narrow": ("a0",)}, (10, 140)), ({"dimension": 2}, (140,)), ({}, (10, 141))],
)  # fmt: skip
def test_sweeps_that_may_not_pair(change, extents):
    signature = FLUX_DIVERGENCE.signature("float64")
    tape = signature.tape(FLUX_DIVERGENCE.point)
    assert may_pair(tape, signature, (10, 140))
    assert not may_pair(tape, replace(signature, **change), extents)


def test_lines_of_coefficients_are_not_read_beyond_their_ends():
    """A thread with one point in the region computes both: of the other one nothing is there."""
    line, one = (True, True, False), (True, True, True)
    signature = Signature(
        ((False,) * 3, line, one, one, one, one, one), ("array",), (None,), "float64", 3, pairs=True
    )
    source = kernel_source("line", signature, signature.tape(FLUX_DIVERGENCE.point))
    assert source.count("a1[(k + 2)]") == 3  # of each row in a period
    assert source.count("inside_2_ahead ? a1[(k + 2)]") == 3
    assert "const bool inside_2_ahead = k + 2 < extent_k;" in source


@pytest.mark.parametrize("point", [shifted, copy])
def test_sweeps_that_copy_do_not_pair(point):
    (entry,) = [entry for entry in ENTRIES if entry.point is point]
    signature = entry.signature("float64")
    assert not may_pair(signature.tape(point), signature, (10, 140))


def test_arrays_that_begin_within_a_pair_are_not_paired():
    region = ((1, 6), (1, 9), (1, 139))
    assert begin_with_pairs(region, [512, 4096], 8)
    assert not begin_with_pairs(region, [512, 4096 + 8], 8)
    assert begin_with_pairs(region, [512, 4096 + 8], 4)
    assert not begin_with_pairs((*region[:2], (1, 60)), [512, 4096], 8)


@pytest.mark.gpu
@for_entries
@in_precisions
def test_pairs_equal_numpy_on_a_gpu(entry, precision, monkeypatch):
    from heatsolve.backends.gpu.cupy import CupyBackend

    monkeypatch.setattr("heatsolve.backends.gpu.backend.FEW_POINTS", 0)
    backend = CupyBackend(precision)
    region = entry.region(SHAPE)
    given = entry.make(SHAPE, precision, 1, wild=True)
    before = np.random.default_rng(2).normal(size=SHAPE).astype(precision)
    expected = sweep(entry, NumpyBackend(precision), given, before, region)
    assert all(map(same, sweep(entry, backend, given, before, region), expected))
