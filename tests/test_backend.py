"""What a backend is that offers nothing but what it must, and work that one plays back."""

import gc
from functools import partial

import numba
import numpy as np
import pytest

from heatsolve import backends
from heatsolve.backends import MOST_FUSED, Backend, CycleLeg, SweepSequence
from heatsolve.backends.gpu.backend import MOST_AT_ONCE
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.backends.registry import make
from heatsolve.models.heat import equations as heat
from heatsolve.stencil.grid import slices
from heatsolve.stencil.language import copy


@pytest.fixture
def machine():
    return NumpyBackend()


def test_without_passes_it_makes_one_sweep_at_a_time(machine):
    u, inner, stages = np.ones((6, 7)), ((1, 5), (1, 6)), [(np.zeros((1, 1)), 1.0)] * MOST_FUSED
    sweeps = SweepSequence(heat.laplace, u, inner, stages, (False, False), [None] * MOST_FUSED)
    assert machine.most_fused(sweeps) == 1
    new = np.zeros_like(u)
    for count in (1, 3):
        with pytest.raises(ValueError, match="numpy makes one sweep at a time"):
            machine.fused_sweeps(sweeps.up_to(count), new, inner)
    assert not new.any()
    assert machine.points_updated == machine.bytes_moved == 0


def test_without_cycle_legs_it_says_so(machine):
    coarse, where = np.zeros((4, 5)), ((6, 7), 7, ((1, 5), (1, 6)), (False, False))
    half = CycleLeg(heat.laplace, [()], [0], *where, coarse, coarse.shape, [])
    assert machine.cycle_leg(half) is None


GPU = [pytest.param(name, marks=pytest.mark.gpu) for name in ("cupy", "cuda")]


@pytest.mark.parametrize("kind", ["float64", "float32"])
@pytest.mark.parametrize("name", GPU)
def test_large_arrays_come_in_pieces(name, kind):
    """The last piece is a short one; an array that fits one piece comes at once."""
    machine = make(name, kind)
    rows = MOST_AT_ONCE // machine.dtype.itemsize // 1024
    for count in (5, rows, rows + 1, 7 * rows + 3):
        host = np.arange(1024 * count, dtype=kind).reshape(count, 1024)
        array = machine.to_device(host)
        assert machine.to_host(array).tobytes() == host.tobytes()
        got = machine.take(array, ((2, count - 1), (1, 1020)))
        assert got.shape == (count - 3, 1019)
        assert got.tobytes() == host[2 : count - 1, 1:1020].tobytes()


@pytest.mark.parametrize("kind", ["float64", "float32"])
@pytest.mark.parametrize("name", ["numpy", "numba", *GPU])
def test_blocks_come_and_go(name, kind, monkeypatch):
    """A region is read, and written in several copies; all other elements stay."""
    monkeypatch.setattr(backends, "LARGEST_PUT", 150)
    machine, rng = make(name, kind), np.random.default_rng(7)
    for shape, region in (
        ((9,), ((2, 8),)),
        ((9, 11), ((1, 8), (3, 10))),
        ((5, 6, 7), ((0, 5), (1, 5), (2, 7))),
    ):
        host = rng.random(shape).astype(kind)
        array, inside = machine.to_device(host), slices(region)
        got = machine.take(array, region)
        assert got.flags.c_contiguous and got.tobytes() == host[inside].tobytes()
        assert Backend.take(machine, array, region).tobytes() == got.tobytes()
        for put in (machine.put, partial(Backend.put, machine)):
            host[inside] = block = rng.random(got.shape)
            put(array, region, block)
            assert machine.to_host(array).tobytes() == host.tobytes()


@pytest.mark.parametrize("name", ["numpy", "numba", *GPU])
def test_work_is_played_back(name):
    """It is not done ahead of time, then as often as it is asked for; and it counts each time."""
    machine, host = make(name), np.random.default_rng(5).random((9, 8))
    inner, b = ((1, 8), (1, 7)), machine.to_device(np.full((9, 8), 0.25))

    def worker():
        u, other = machine.to_device(host), machine.to_device(host)
        total = machine.accumulator("sum")

        def work():
            machine.sweep(heat.laplace, other, inner, u, b, 0.5)
            machine.sweep(heat.laplace, u, inner, other, b, 0.5)
            if name == "numba":
                given = inner, [(b, 0.5)] * 3, (False, False), [None] * 3
                machine.fused_sweeps(SweepSequence(heat.laplace, u, *given), other, inner)
            machine.sweep(copy, total, inner, u)

        return u, other, total, work

    u, other, total, work = worker()
    work()
    once = machine.points_updated, machine.bytes_moved
    work()
    mine, others, mine_total, noted = worker()
    play = machine.replayed(noted)
    assert (machine.points_updated, machine.bytes_moved) == tuple(2 * n for n in once)
    np.testing.assert_array_equal(machine.to_host(mine), host)
    for _ in range(2):
        play()
    assert (machine.points_updated, machine.bytes_moved) == tuple(4 * n for n in once)
    for first, second in ((u, mine), (other, others)):
        np.testing.assert_array_equal(machine.to_host(first), machine.to_host(second))
    assert mine_total.value == total.value


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cupy", "cuda"])
def test_garbage_waits_for_the_end_of_a_capture(name):
    """While work is captured, no graph, event or array of garbage is destroyed: CUDA would give up
    the capture, or wait for the device."""
    machine, everything = make(name), ((0, 8),)
    u, other = machine.to_device(np.arange(8.0)), machine.zeros((8,))
    sweep = partial(machine.sweep, copy, other, everything, u)
    sweep()
    unused = [machine.replayed(sweep), machine.now(), machine.zeros((8,)), machine.pinned((8,))]
    unused[0]()
    undisturbed = []

    def litter():
        garbage = [unused.pop() for _ in range(len(unused))]
        garbage.append(garbage)
        del garbage
        begun = gc.get_stats()
        _ = [[number] for number in range(100)]
        undisturbed.append(gc.get_stats() == begun)

    def work():
        machine.enqueue(litter)
        machine.sweep(copy, other, everything, u)

    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        play = machine.replayed(work)
    finally:
        gc.set_threshold(*before)
    machine.zero(other)
    play()
    assert undisturbed and all(undisturbed) and not unused
    assert machine.to_host(other).tobytes() == machine.to_host(u).tobytes()


def test_threads_are_those_of_the_backend_that_sweeps():
    """Numba has one setting for a thread of Python, which other backends and programs change."""
    machine = make("numba")
    if machine.threads == 1:
        pytest.skip("one thread")
    u, region = machine.zeros((300, 300)), ((1, 299), (1, 299))
    for _ in range(2):
        machine.sweep(copy, machine.zeros((300, 300)), region, u)
        assert numba.get_num_threads() == machine.threads
        numba.set_num_threads(1)
