"""Small sweeps that share a kernel have the bits of sweeps apart; the kernel is emulated."""

import gc
import random
import shutil
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from emulated import Emulated, with_ends
from test_multigrid import noisy_system

from heatsolve.backends.gpu import cycle_legs, graphs, small_legs
from heatsolve.backends.gpu.backend import DeviceBackend
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.linear.multigrid.cycle import Multigrid
from heatsolve.linear.multigrid.direct import MOST
from heatsolve.linear.multigrid.mixed import Refinement
from heatsolve.stencil import dependencies as touched
from heatsolve.stencil.language import scaled, shifted

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler, g++")


@pytest.fixture(autouse=True)
def without_small_legs(monkeypatch):
    """Coarse levels of multigrid are then made by small sweeps."""
    monkeypatch.setattr(small_legs, "TILES", {2: [], 3: []})


class Replaying(Emulated):
    """Notes down what it plays back, as a GPU does; other sweeps are NumPy's."""

    _gate = None
    enqueue = DeviceBackend.enqueue
    replayed = DeviceBackend.replayed
    most_wrapped = DeviceBackend.most_wrapped
    joins = DeviceBackend.joins
    _compile = DeviceBackend._compile
    compiling_at_once = staticmethod(nullcontext)

    def _kernel(self, name, signature, tape):
        run = NumpyBackend._compile(self, None, signature, tape)
        count = len(signature.outputs)

        def kernel(launch, args):
            operands = list(args[-count - len(signature.arguments) :])
            region = tuple(zip(launch.bounds[::2], launch.bounds[1::2], strict=True))
            operands[count:] = with_ends(operands[count:], region, signature.wraps, tape)
            run(region, operands[:count], operands[count:])

        return kernel

    def c_kernel(self, source, bytes_shared):
        compiled = super().c_kernel(source, bytes_shared)
        return lambda launch, operands: self.enqueue(lambda: compiled(launch, operands))

    def captured(self, calls):
        return lambda: [call() for call in calls]

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
    "torus in space": ("cells = [16, 8, 12]\nperiodic = ['x', 'y', 'z']", "------", {}),
    "channel in space": ("cells = [12, 9, 16]\nperiodic = ['x', 'z']", "--vg--", {}),
}


def two_steps(backend, method, grid, walls, options):
    system, u = noisy_system(grid, walls, backend=backend)
    iteration = method(system, u, **options)
    for number in range(2):
        iteration.step(number, None)
    result, points = iteration.solution(2), backend.points_updated
    system.halo.exchange(result)  # ghosts that a device has not written
    return backend.to_host(result).tobytes(), points


@pytest.mark.few(6)
@pytest.mark.parametrize(("most", "of_last_level"), [(5000, MOST), (300, 9)])
@pytest.mark.parametrize("method", [Multigrid, Refinement])
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_bits_of_sweeps_apart(name, method, most, of_last_level, monkeypatch):
    if method is Refinement and PROBLEMS[name][2].get("cycle") == "FMG":
        pytest.skip("no such cycle in mixed precision")
    monkeypatch.setattr(graphs, "MOST_POINTS", most)
    monkeypatch.setattr("heatsolve.linear.multigrid.hierarchy.MOST", of_last_level)
    joined = []
    together = graphs.together
    monkeypatch.setattr(
        "heatsolve.backends.gpu.graphs.together",
        lambda backend, sweeps: joined.append(len(sweeps)) or together(backend, sweeps),
    )
    alone = NumpyBackend()
    alone.on_device = True  # the same sweeps
    mine, reference = (two_steps(each, method, *PROBLEMS[name]) for each in (Replaying(), alone))
    assert mine[0] == reference[0]
    assert mine == reference or "periodic" in PROBLEMS[name][0]  # where ghosts are points, too
    assert max(joined) > 5


def sweeps_beside(backend):
    """Along four walls of two arrays, which touch nothing of each other; and then some that do."""
    rng = np.random.default_rng(1)
    a, b, c = (backend.to_device(rng.normal(size=(400, 1100))) for _ in range(3))
    top, bottom = ((0, 1), (0, 1100)), ((399, 400), (0, 1100))
    left, right = ((1, 399), (0, 1)), ((1, 399), (1099, 1100))
    for target in (a, b):
        for wall in (top, bottom, left, right):
            backend.sweep(scaled, target, wall, c, 2.0)
    backend.sweep(shifted, c, top, a, 399, 0)  # from what was written
    backend.sweep(shifted, a, bottom, a, -398, 0)
    backend.sweep(shifted, a, ((1, 2), (1, 49)), a, 398, 0)
    backend.sweep(scaled, b, ((5, 6), (0, 1100)), b, 3.0)
    backend.sweep(scaled, c, ((20, 21), (0, 500)), b, 5.0)  # to what was only read
    other_shape = b.reshape(1100, 400), a.reshape(1100, 400)
    backend.sweep(scaled, other_shape[0], ((0, 2), (0, 400)), other_shape[1], 7.0)
    return a, b, c


@pytest.mark.parametrize("most", [1300, 10])
def test_sweeps_beside_each_other(most, monkeypatch):
    """There is no barrier between sweeps of which none touches what another one writes."""
    monkeypatch.setattr(graphs, "MOST_POINTS", most)
    backend = Replaying()
    arrays = []
    notes, _, _ = backend.record(lambda: arrays.extend(sweeps_beside(backend)))
    kernels = list(graphs.together(backend, notes))
    groups = graphs.grouped(notes, backend.address, 100)
    assert len(groups[0].sweeps) == 8 and len(groups) > 1
    assert len(kernels) < len(notes) - 6
    for play in kernels:
        play()
    for got, expected in zip(arrays, sweeps_beside(NumpyBackend()), strict=True):
        assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("periodic", ["xyz", "xy", "yz", "xz", "z", "x"])
@pytest.mark.parametrize("dimension", [2, 3])
def test_ghosts_of_all_fields_take_one_launch(dimension, periodic):
    """Those of edges and corners, and what stands at walls of faster axes, too."""
    names = [axis for axis in "xyz"[:dimension] if axis in periodic]
    if not names:
        pytest.skip("no such axis")
    grid = f"cells = {[40, 48, 44][:dimension]}\nperiodic = {names}"
    walls = "".join("--" if axis in names else "gv" for axis in "xyz"[:dimension])
    backend, fields = Replaying(), {}
    for machine in (NumpyBackend(), backend):
        system, _ = noisy_system(grid, walls, backend=machine)
        rng = np.random.default_rng(5)
        some = [rng.standard_normal(system.grid.shape) for _ in range(3)]
        fields[machine] = [machine.to_device(values) for values in some]

        def exchange(halo=system.halo, machine=machine):
            for array in fields[machine]:
                halo.exchange(array)

        machine.replayed(exchange)()
        if machine is backend:
            notes, _, _ = backend.record(exchange)
            one = len(graphs.grouped(notes, backend.address, 100)) == 1
            assert one or names == ["x", "z"]  # with walls between them
    for mine, reference in zip(*fields.values(), strict=True):
        assert mine.tobytes() == reference.tobytes()


class Measuring(Replaying):
    """Knows of how much shared memory a kernel makes use, and how much it gets."""

    def c_kernel(self, source, bytes_shared):
        kernel = super().c_kernel(source, bytes_shared)
        width = int(source.split("#define WIDTH ")[1].split()[0])

        def queue(launch, operands):
            self.fits.append(operands[1] * width * 8 <= bytes_shared)
            kernel(launch, operands)

        self.fits = getattr(self, "fits", [])
        return queue


def test_tables_fit_into_shared_memory():
    backend = Measuring()
    two_steps(backend, Multigrid, *PROBLEMS["FMG"])
    assert len(backend.fits) > 5 and all(backend.fits)


def test_a_kernel_is_known_by_its_shared_memory_too():
    backend = SimpleNamespace(_c_kernels={}, compiled=lambda source, name, size: size)
    for size in (8, 16, 8):
        DeviceBackend.c_kernel(backend, "text", size)
    assert list(backend._c_kernels.values()) == [8, 16]


def random_part(rng):
    """A region of one of several views of the same memory."""
    height, width = rng.choice([4, 6, 7]), rng.choice([4, 5, 6, 7])
    if rng.random() < 0.3:
        first, shape = 0, (height, width)
    else:
        first = rng.randrange(2 * width)
        shape = ((height * width - first) // (2 * width), width, 2)
    lows = [rng.randrange(extent) for extent in shape]
    region = tuple(
        (low, rng.randint(low + 1, extent)) for low, extent in zip(lows, shape, strict=True)
    )
    return touched.place_at(4096 + 8 * first, 8, shape), region


def addresses_of(part):
    place, region = part
    numbers = np.arange(np.prod(place.shape)).reshape(place.shape)
    return set((place.first + 8 * numbers[tuple(slice(*pair) for pair in region)]).ravel())


def test_what_views_of_the_same_memory_have_in_common():
    """Said of all parts that have something and, where views have equal rows, of no others."""
    rng, needless = random.Random(1), 0
    for _ in range(20000):
        one, other = random_part(rng), random_part(rng)
        common = bool(addresses_of(one) & addresses_of(other))
        said = touched.have_common(one, other)
        assert said or not common, (one, other)
        alike = np.prod(one[0].shape[1:]) == np.prod(other[0].shape[1:])
        assert not alike or said == common, (one, other)
        needless += said and not common
    assert needless > 0


def test_a_closed_gate():
    backend = Replaying()
    a, b, region = backend.zeros((4, 5)), backend.to_device(np.ones((4, 5))), ((0, 4), (1, 5))
    backend.gated = True
    notes, _, _ = backend.record(
        lambda: [backend.sweep(scaled, target, region, b, 3.0) for target in (a, b)]
    )
    (play,) = graphs.together(backend, notes)
    for backend.shut in (True, False):
        play()
        assert (a[:, 1:] == (0.0 if backend.shut else 3.0)).all()
    assert (b[:, 1:] == 3.0).all() and (b[:, 0] == 1.0).all()


def test_tables_live_as_long_as_what_plays_them():
    """A graph knows addresses only."""

    class Forgetful(Replaying):
        def captured(self, calls):
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
    monkeypatch.setattr(cycle_legs, "FEWEST_POINTS", {2: 450, 3: 900})
    backend = Replaying()
    expected = two_steps(NumpyBackend(), Multigrid, *PROBLEMS["square"])
    assert two_steps(backend, Multigrid, *PROBLEMS["square"])[0] == expected[0]
    assert backend.launched > 4
