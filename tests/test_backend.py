"""What a backend is that offers nothing but what it must."""

import numpy as np
import pytest

from heatsolve import heat
from heatsolve.backends import LONGEST_PASS, HalfCycle
from heatsolve.backends.numpy import NumpyBackend


@pytest.fixture
def machine():
    return NumpyBackend()


def test_without_passes_it_makes_one_sweep_at_a_time(machine):
    u, inner, stages = np.ones((6, 7)), ((1, 5), (1, 6)), [(np.zeros((1, 1)), 1.0)] * LONGEST_PASS
    wraps, changes = (False, False), [None] * LONGEST_PASS
    assert machine.most_sweeps(heat.laplace, u, inner, stages, wraps, changes) == 1
    new = np.zeros_like(u)
    for count in (1, 3):
        with pytest.raises(ValueError, match="numpy makes one sweep at a time"):
            machine.sweeps(
                heat.laplace, new, u, inner, stages[:count], wraps, changes[:count], inner
            )
    assert not new.any()
    assert machine.points_updated == machine.bytes_moved == 0


def test_without_half_cycles_it_says_so(machine):
    coarse, where = np.zeros((4, 5)), ((6, 7), 7, ((1, 5), (1, 6)), (False, False))
    half = HalfCycle(heat.laplace, [()], [0], *where, coarse, coarse.shape, [])
    assert machine.half_cycle(half) is None
