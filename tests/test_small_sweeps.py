"""Small sweeps that share a kernel have the bits of sweeps apart; the kernel is emulated."""

import gc
import shutil
import weakref

import numpy as np
import pytest
from emulated import Emulated
from test_multigrid import noisy_system

from heatsolve.backends import device_cycles, small_sweeps
from heatsolve.backends.device import DeviceBackend
from heatsolve.backends.numpy import NumpyBackend
from heatsolve.linear.direct import MOST
from heatsolve.linear.mixed import Refinement, scaled
from heatsolve.linear.multigrid import Multigrid

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler, g++")


class Replaying(Emulated):
    """Notes down what it plays back, as a GPU does; other sweeps are NumPy's."""

    notes = None
    enqueue = DeviceBackend.enqueue
    replayed = DeviceBackend.replayed
    _compile = DeviceBackend._compile

    def _kernel(self, name, signature, tape):
        run = NumpyBackend._compile(self, None, signature, tape)
        count = len(signature.outputs)

        def kernel(launch, extents, operands):
            region = tuple(zip(launch.bounds[::2], launch.bounds[1::2], strict=True))
            run(region, operands[:count], operands[count:])

        return kernel

    def c_kernel(self, source, bytes_shared):
        compiled = super().c_kernel(source, bytes_shared)
        return lambda launch, operands: self.enqueue(lambda: compiled(launch, operands))

    def captured(self, work):
        return work

    def stored(self, values):
        return values.copy()

    def address(self, array):
        return array.ctypes.data


PROBLEMS = {
    "line": ("nodes = [130]", "gv", {}),
    "square": ("nodes = [66, 37]", "gvrv", {}),
    "FMG": ("cells = [35, 40]", "vrvg", {"cycle": "FMG"}),
    "torus": ("cells = [34, 24]\nperiodic = ['x', 'y']", "----", {"cycle": "W"}),
    "Chebyshev, stretched": ("nodes = [65, 21]\nupper = [1, 2]", "vvvv", {"smoother": "chebyshev"}),
    "box": ("nodes = [18, 13, 15]", "vgrvvv", {}),
}


def two_steps(backend, method, grid, walls, options):
    system, u = noisy_system(grid, walls, backend=backend)
    iteration = method(system, u, **options)
    for number in range(2):
        iteration.step(number, None)
    return backend.to_host(iteration.solution(2)).tobytes(), backend.points_updated


@pytest.mark.parametrize(("most", "of_last_level"), [(5000, MOST), (300, 9)])
@pytest.mark.parametrize("method", [Multigrid, Refinement])
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_bits_of_sweeps_apart(name, method, most, of_last_level, monkeypatch):
    if method is Refinement and PROBLEMS[name][2].get("cycle") == "FMG":
        pytest.skip("no such cycle in mixed precision")
    monkeypatch.setattr(small_sweeps, "MOST_POINTS", most)
    monkeypatch.setattr("heatsolve.linear.hierarchy.MOST", of_last_level)
    joined = []
    together = small_sweeps.together
    monkeypatch.setattr(
        "heatsolve.backends.replay.together",
        lambda backend, sweeps: joined.append(len(sweeps)) or together(backend, sweeps),
    )
    assert two_steps(Replaying(), method, *PROBLEMS[name]) == two_steps(
        NumpyBackend(), method, *PROBLEMS[name]
    )
    assert max(joined) > 5


def test_a_closed_gate():
    backend = Replaying()
    a, b, region = backend.zeros((4, 5)), backend.to_device(np.ones((4, 5))), ((0, 4), (1, 5))
    backend.gated, backend.notes = True, []
    for target in (a, b):
        backend.sweep(scaled, target, region, b, 3.0)
    notes, backend.notes = backend.notes, None
    play = small_sweeps.together(backend, notes)
    for backend.shut in (True, False):
        play()
        assert (a[:, 1:] == (0.0 if backend.shut else 3.0)).all()
    assert (b[:, 1:] == 3.0).all() and (b[:, 0] == 1.0).all()


def test_tables_live_as_long_as_what_plays_them():
    """A graph knows addresses only."""

    class Forgetful(Replaying):
        def captured(self, work):
            return lambda: None

        def stored(self, values):
            table = super().stored(values)
            tables.append(weakref.ref(table))
            return table

    tables = []
    system, u = noisy_system(*PROBLEMS["line"][:2], backend=Forgetful())
    iteration = Multigrid(system, u)
    iteration.step(0, None)
    assert tables
    gc.collect()
    assert all(table() is not None for table in tables)


def test_passes_between_them(monkeypatch):
    """Half cycles of a GPU and small sweeps take turns, each in its place."""
    monkeypatch.setattr(device_cycles, "FEWEST_POINTS", {2: 900, 3: 900})
    backend = Replaying()
    expected = two_steps(NumpyBackend(), Multigrid, *PROBLEMS["square"])
    assert two_steps(backend, Multigrid, *PROBLEMS["square"])[0] == expected[0]
    assert backend.launched > 4
