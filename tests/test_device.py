"""What the GPU backends share, on a device that only takes notes."""

import ctypes
import math
from dataclasses import replace
from types import SimpleNamespace
from weakref import ref

import numpy as np
import pytest

from heatsolve.backends import Accumulator
from heatsolve.backends import exact_sums as sums
from heatsolve.backends.gpu.backend import (
    CLEARED,
    HEAD,
    LETTERS,
    MOST_POSTED,
    NUMBERS,
    DeviceBackend,
    DeviceScalars,
)
from heatsolve.backends.gpu.device import CARDS
from heatsolve.backends.gpu.launch import (
    ALIGNMENT,
    MOST_BLOCKS,
    PAIRS,
    REDUCING,
    SHAPES,
    SPREAD,
    launches,
)
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.stencil.language import copy, shifted
from heatsolve.tools.bench import Flow

EMPTY = {name: lambda self, *given: None for name in DeviceBackend.__abstractmethods__}


class Notes(type("Nothing", (DeviceBackend,), EMPTY)):  # type: ignore[misc]
    """Arrays of the host, on which nothing runs; `done` is what the device was told."""

    name = "notes"

    def __init__(self):
        super().__init__()
        self.done, self._gate, self._head = [], None, None

    def zeros(self, shape):
        return np.zeros(shape)

    def pinned(self, shape, dtype=None):
        return np.zeros(shape, dtype)

    def mark(self):
        self.done.append("mark")
        return self.sync

    def queue_to_host(self, host, array):
        self.done.append("to host")

    def queue_to_device(self, array, host):
        self.done.append("to device")

    def sync(self):
        self.done.append("wait")

    def _kernel(self, name, signature, tape):
        self.done.append(("compile", signature.apart))
        count = len(signature.outputs) + len(signature.arguments)

        def launched(launch, args):
            self.done.append(("launch", args[1 + len(launch.bounds) : -count]))

        return launched


@pytest.fixture
def device():
    return Notes()


class Silent(Notes):
    """An H100 whose kernels are neither compiled nor run; all values of its ledgers are 0."""

    limits = CARDS["H100"]

    def __init__(self):
        super().__init__()
        self._make_gate()

    def integers(self, count):
        return np.zeros(count, np.int64)

    def to_device(self, host):
        return np.array(host, float)

    def to_host(self, array):
        return array.copy()

    def stored(self, values):
        return values

    def part(self, array, shape, first=0):
        return array.reshape(-1)[first : first + math.prod(shape)].reshape(shape)

    def address(self, array):
        return array.ctypes.data

    def _kernel(self, name, signature, tape):
        return lambda launch, args: None

    def compiled(self, source, name, bytes_shared=0):
        return lambda launch, args: None

    def captured(self, calls):
        return lambda: None

    def posted_ledger(self):
        self.gated = False
        return lambda: [0.0] * len(self._kinds)


def test_values_are_posted_by_way_of_memory_that_serves_again():
    """A solve makes accumulators of its own, in the memory of those of the solve before."""
    device, width = Silent(), SPREAD * sums.WIDTH
    registers = [device.integers(width) for _ in range(2)]
    first = [Accumulator("sum", register, device) for register in registers]
    again = [Accumulator("max", register, device) for register in registers]
    given = []
    device._check_kernels["merge_several"] = lambda launch, args: given.append(args)
    posted = device._posted_of(first)
    posted.post()
    (table, *_), *_ = given
    assert table.tolist() == [register.ctypes.data for register in registers]
    assert device._posted_of(again) is posted
    assert device._posted_of(first[1:]) is not posted
    kept = [device.integers(width) for _ in range(2 * MOST_POSTED)]
    for register in kept:
        device._posted_of([Accumulator("sum", register, device)])
    assert len(device._posted) == MOST_POSTED


def test_posted_values_hold_their_registers():
    """The memory of a register that is gone may serve another one, which would be posted over the
    values that wait."""
    device = Silent()
    register = device.integers(SPREAD * sums.WIDTH)
    kept, read = ref(register), device.posted_values([Accumulator("sum", register, device)])
    del register
    assert kept() is not None
    assert read() == [0.0]
    del read
    assert kept() is None


def test_values_of_linked_devices_are_posted_with_the_rows_of_all():
    """The device gathers them, and the host merges them without a message."""
    device, width, gathered = Silent(), SPREAD * sums.WIDTH, []
    link = SimpleNamespace(
        size=3,
        replays=True,
        peer_table=None,
        gather=lambda own, of_all: gathered.append((own.size, of_all.size)),
    )
    device.join(lambda rows: pytest.fail("a message"), link)
    accumulators = [Accumulator(kind, device.integers(width), device) for kind in ("sum", "max")]
    read = device.posted_values(accumulators)
    assert gathered == [(2 * sums.WIDTH, 6 * sums.WIDTH)]
    terms = np.random.default_rng(4).random((3, 2, 9)) * np.array([1e9, 1.0, 1e-9]).reshape(3, 1, 1)
    rows = np.zeros((3, 2, sums.WIDTH), np.int64)
    for row, values in zip(rows.reshape(6, -1), terms.reshape(6, -1), strict=True):
        sums.add_block(values, row)
    device._posted_of(accumulators).readback[:] = rows.reshape(-1)
    alone = np.zeros(sums.WIDTH, np.int64)
    sums.add_block(terms[:, 0], alone)
    assert read() == [sums.sum_of(alone), terms[:, 1].max()]


def test_kernels_with_a_table_of_peers_exchange_what_they_post():
    """Few blocks at a time, because a block waits for a block of each peer."""
    device, width, given = Silent(), SPREAD * sums.WIDTH, []
    link = SimpleNamespace(size=3, peer_table="table", most_registers=5)
    device.join(lambda rows: pytest.fail("a message"), link)
    device._check_kernels["merge_several"] = lambda launch, args: given.append((launch.grid, args))
    registers = [device.integers(width) for _ in range(8)]
    read = device.posted_values([Accumulator("max", each, device) for each in registers])
    (posted,) = device._posted.values()
    assert [grid for grid, _ in given] == [(5, 1, 1), (3, 1, 1)]
    addresses = np.concatenate([table for _, (table, *_) in given])
    assert addresses.tolist() == [register.ctypes.data for register in registers]
    rows = [int(to) - posted.readback.ctypes.data for _, (_, to, _) in given]
    assert rows == [0, 5 * sums.WIDTH * 8]
    assert all(peers == "table" for _, (_, _, peers) in given)
    for number, row in enumerate(posted.readback.reshape(-1, sums.WIDTH)):
        sums.add_largest(np.array([float(number)]), row)
    assert read() == [float(number) for number in range(8)]


def test_kernels_of_a_step_of_flow():
    """Three stages with a cycle of multigrid each, in space; a cycle is one graph."""
    device = Silent()
    flow = Flow("taylor-green-3d", device, (66, 66, 66))
    for _ in range(3):  # allocates, records, plays back
        flow.step()
    before = device.launches
    flow.step()
    assert sum(flow.stepper.pressure.counts.values()) == 3
    assert 60 < device.launches - before <= 100


class Posting(Silent):
    """Notes when its gates are cleared; a ledger that asks is not continued."""

    posted_ledger = DeviceBackend.posted_ledger

    def zero(self, array):
        self.done.append(array.size)


def test_a_posted_ledger_clears_its_gates():
    """The next queue clears only what a ledger that was not posted, or not read, has left."""
    device, posts = Posting(), []
    device._check_kernels["post"] = lambda launch, args: posts.append(int(args[2]))

    def zeroed(work):
        device.done.clear()
        device.open_gate(*work)
        return [each for each in device.done if isinstance(each, int)]

    assert zeroed(()) == []  # as it was made
    assert zeroed(()) == [HEAD]  # the ledger before was not posted
    device.posted_ledger()
    assert posts == [CLEARED] and zeroed((1,)) == []
    device.posted_ledger()  # not read, and the gate of work behind it may be closed
    assert zeroed((1,)) == [HEAD]
    read = device.posted_ledger()
    device._copied[:HEAD] = 0, 0, 0, 1
    device.done.clear()
    assert read() == [] and not device.continued
    assert device.is_clear and device.single().is_clear
    assert [each for each in device.done if isinstance(each, int)] == [1]  # its reader opens it
    assert zeroed(()) == []


def test_a_device_takes_numbers_by_turns_from_pinned_memory():
    device, given = Silent(), []
    device._check_kernels["post"] = lambda launch, args: given.append((int(args[1]), args[3]))
    array = np.zeros((NUMBERS,))
    for number in range(2 * LETTERS):
        device.done.clear()
        device.put(array[: 1 + number], ((0, 1 + number),), np.full(1 + number, 1.0 * number))
        # A piece of memory is written again only when the device has read it.
        assert device.done == ["wait", "mark"][number < LETTERS :]
    assert [count for count, _ in given] == list(range(1, 1 + 2 * LETTERS))
    assert [buffer[0] for buffer, _ in device._letters] == list(range(LETTERS, 2 * LETTERS))
    given.clear()
    device.put(array, ((1, 3),), np.ones(2))
    single = Silent()
    single.precision = "float32"
    single.put(np.zeros(2, np.float32), ((0, 2),), np.ones(2))
    assert not given


def test_weights_of_guesses_are_found_while_the_host_waits(monkeypatch):
    """They take the host longer than a device needs to predict the first stage. Only where the
    length changes must the step itself find them, behind the prediction."""
    device, events = Silent(), []
    flow = Flow("taylor-green-3d", device, (18, 18, 18))
    flow.dt *= 0.97  # a length that no other test has
    for _ in range(4):
        flow.step()
    step = flow.stepper

    def log(owner, name):
        method = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args: events.append(name) or method(*args))

    for owner, name in ((step, "_predict"), (step, "_solve_pressure"), (step._numbers, "_put")):
        log(owner, name)
    for shorter in (1.0, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0):
        flow.dt *= shorter
        step.posted_measures()
        events.clear()
        flow.step()
        first = events[: events.index("_solve_pressure")]
        assert first == (["_put", "_predict", "_put"] if shorter < 1.0 else [])


def test_steps_of_other_lengths_are_not_recorded_anew():
    device, captured = Silent(), []
    device.captured = lambda queue_all: captured.append(queue_all) or (lambda: None)
    flow = Flow("taylor-green-3d", device, (18, 18, 18))
    for _ in range(8):
        flow.step()
    before = len(captured)
    for number in range(9):
        flow.dt *= 0.9 if number % 3 == 0 else 1.0
        flow.step()
    assert len(captured) == before > 0


@pytest.mark.parametrize(
    "case", [("taylor-green-3d", (10, 10, 10)), ("cavity-re1000", (18, 18))], ids=["space", "walls"]
)
def test_numbers_that_a_device_holds_change_no_bit(case):
    fields = []
    for on_device in (False, True):
        machine = NumpyBackend()
        machine.on_device = on_device
        flow = Flow(case[0], machine, case[1])
        for number in range(9):
            flow.dt *= 0.7 if number % 3 == 2 else 1.0
            flow.step()
        assert flow.stepper._numbers.holds == on_device
        fields.append({name: array.tobytes() for name, array in flow.stepper.fields.items()})
    assert fields[0] == fields[1]


def test_arrays_of_numba_are_reshaped_as_those_of_numpy():
    module = pytest.importorskip("heatsolve.backends.gpu.numba_cuda")
    array = module.DeviceArray((4, 6), np.dtype(float), 0, None)
    for shape in ((24,), [2, -1, 3], [-1, 1], (4, 6)):
        found = array.reshape(shape).shape
        assert found == np.zeros((4, 6)).reshape(shape).shape
        hash(found)  # as keys of compiled sweeps
    with pytest.raises(ValueError, match="no array"):
        array.reshape((5, -1))


class Heap:
    """CUDA's driver, of which only memory works: it lies on the host."""

    def __init__(self):
        self.held = {}

    def cuMemAlloc(self, size):
        memory = ctypes.create_string_buffer(size)
        self.held[ctypes.addressof(memory)] = memory
        return 0, ctypes.addressof(memory)

    def cuMemHostAlloc(self, size, flags):
        return self.cuMemAlloc(size)

    def cuMemFree(self, place):
        del self.held[place]
        return (0,)

    cuMemFreeHost = cuMemFree

    def cuMemsetD8Async(self, place, value, size, stream):
        ctypes.memset(place, value, size)
        return (0,)


def test_memory_of_the_driver_is_given_back_at_the_next_allocation():
    """Not when Python drops the array, which may happen while launches are captured."""
    module = pytest.importorskip("heatsolve.backends.gpu.numba_cuda")
    device = object.__new__(module.CudaBackend)
    device.dtype, device._driver, device._handle, device._needless = np.dtype(float), Heap(), 0, []
    held = device._driver.held
    array, line = device.zeros((4, 6)), device.pinned((3,))
    part, last = device.part(array, (6,), 18), line[2:]
    assert part.pointer == array.pointer + 144 and held[array.pointer].raw == bytes(192)
    line[:] = 1.0, 2.0, 3.0
    del array, line
    device.integers(2)
    assert len(held) == 3 and last[0] == 3.0  # a part holds the memory of its array
    del part, last
    assert len(held) == 3
    kept = device.zeros((0, 5)), device.integers(1)
    assert len(held) == 2 and kept[0].nbytes == 0


def pack(device, array, layer):
    region = tuple((0, extent) for extent in layer.shape)
    device.done.clear()
    device.sweep(shifted, layer, region, array, *[0] * array.ndim)
    return device.done


def test_arrays_alike_need_one_kernel_for_all_shapes(device):
    for shape in ((8, 6), (4, 3), (8, 6)):
        a, b, line = np.zeros(shape), np.zeros(shape), np.zeros((1, shape[1]))
        for argument in (a, line):
            device.sweep(copy, b, ((1, 3), (1, 2)), argument)
    usual = [("compile", ()), ("launch", (6,))]
    assert device.done == [*usual * 2, *[("launch", (3,))] * 2, *[("launch", (6,))] * 2]


def test_layers_of_rows_are_packed_by_the_usual_kernel(device):
    for depth in (1, 3):
        assert ("launch", (6,)) in pack(device, np.zeros((8, 6)), np.zeros((depth, 6)))
    assert ("launch", ()) in pack(device, np.zeros(8), np.zeros(2))
    assert all(done[0] == "launch" or done == ("compile", ()) for done in device.done)


def test_layers_of_columns_are_apart(device):
    assert pack(device, np.zeros((8, 6)), np.zeros((8, 2))) == [
        ("compile", ("o0",)), ("launch", (6, 2))
    ]  # fmt: skip
    assert pack(device, np.zeros((8, 5, 6)), np.zeros((8, 1, 6))) == [
        ("compile", ("o0",)), ("launch", (5, 6, 1, 6))
    ]  # fmt: skip


def test_columns_are_unpacked_from_an_array_apart(device):
    array = np.zeros((8, 6))
    device.sweep(shifted, array, ((0, 8), (4, 6)), np.zeros((8, 2)), 0, -4)
    assert device.done == [("compile", ("a0",)), ("launch", (6, 2))]
    device.done.clear()
    # A single column is constant along its rows: it has no stride to tell.
    device.sweep(shifted, array, ((0, 8), (5, 6)), np.zeros((8, 1)), 0, -5)
    assert device.done == [("compile", ()), ("launch", (6,))]


def test_staged_messages_wait_for_what_is_sent_only(device):
    message = device.message((2, 3))
    assert message.buffer is not message.array
    message.to_buffer()
    assert device.done == ["to host", "wait"]
    device.done.clear()
    message.from_buffer()
    assert device.done == ["to device"]


def test_direct_messages_wait_for_the_packing_only(device):
    message = device.message((2, 3), direct=True)
    assert message.buffer is message.array
    message.to_buffer()
    message.from_buffer()
    assert device.done == ["wait"]


@pytest.mark.parametrize("alignment", [1, 2, ALIGNMENT])
@pytest.mark.parametrize("shapes", [SHAPES, REDUCING, SHAPES | PAIRS])
@pytest.mark.parametrize(
    "region",
    [((3, 900),), ((2, 17), (1, 400)), ((1, 1_700_000), (0, 9)), ((1, 5), (2, 9), (1, 200)),
     ((0, 300_001), (1, 2), (0, 3)), ((1, 3), (1, 640_001), (1, 65))],
)  # fmt: skip
def test_launches_cover_a_region_once_within_the_limits(region, shapes, alignment):
    shape, points = replace(shapes[len(region)], alignment=alignment), 0
    for launch in launches(region, shape):
        low = launch.bounds[0::2]
        extents = [high - at for at, high in zip(low, launch.bounds[1::2], strict=True)]
        points += math.prod(extents)
        assert max(launch.grid[1:]) <= MOST_BLOCKS
        (x, y, _), (across, down, deep) = launch.block, launch.grid
        assert x * y % 32 == 0 and x * across * shape.columns >= extents[-1] + low[-1] % alignment
        if len(region) == 2:
            assert extents[0] <= down * y * shape.rows < extents[0] + y * shape.rows
        if len(region) == 3:
            assert extents[1] <= down * y < extents[1] + y
            assert extents[0] <= deep * shape.rows < extents[0] + shape.rows
    assert points == math.prod(high - low for low, high in region)


def test_a_recorded_quotient_obeys_the_gate_of_its_recording(device):
    """It is queued, into a graph, when another one may be in use."""
    device._gate, device._open, device._peers = "gate", "open", 0
    device._of_checks = lambda _: lambda launch, args: device.done.append(args[6])
    kept, total = DeviceScalars(device, 2), Accumulator("sum", None, device)
    for gated, obeyed in ((True, "gate"), (False, "open")):
        device.gated = gated
        (queue,), *_ = device.record(lambda: kept.divide(total, 0, 0, 1, np.zeros(1)))
        device.gated = not gated
        queue()
        assert device.done.pop() == obeyed
