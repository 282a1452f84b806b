"""What GPUs can hold: asked, pretended, and never exceeded by the kernels that are chosen."""

import ctypes
import math
import shutil
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import ClassVar

import numpy as np
import pytest
from cubin import takes
from emulated import Collecting, Emulated
from test_cuda_source import nvrtc
from test_fused_sweeps import INSIDE, two_plain_steps, two_steps

from heatsolve.backends import Signature, SweepSequence
from heatsolve.backends import exact_sums as sums
from heatsolve.backends.gpu import cycle_legs, graphs, peers
from heatsolve.backends.gpu import device as device_limits
from heatsolve.backends.gpu import emit as cuda_c
from heatsolve.backends.gpu.device import CARDS, KIB, Limits, limits_of
from heatsolve.backends.gpu.fused_sweeps import cut_of, shape_for, work_of
from heatsolve.errors import InputError
from heatsolve.linear.multigrid import hierarchy
from heatsolve.models.heat import equations as heat
from heatsolve.stencil.language import Point
from heatsolve.stencil.trace import REAL

COMPILER = pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler, g++")
GENERIC_ONLY = ("P100", "V100")
WITH_PASSES = [card for card in CARDS if card not in GENERIC_ONLY]


@pytest.fixture(autouse=True)
def fused_on_small_grids(monkeypatch):
    monkeypatch.setattr(cycle_legs, "FEWEST_POINTS", {2: 0, 3: 0})
    monkeypatch.setattr(hierarchy, "MOST", 9)


# ---- the driver ---------------------------------------------------------------------------------


class Driver:
    """A driver with one device, an H100 by what it answers."""

    answers: ClassVar = {
        16: 132, 38: 50 << 20, 39: 2048, 75: 9, 76: 0, 81: 228 << 10, 82: 1 << 16, 97: 227 << 10,
        111: 1 << 10,
    }  # fmt: skip

    def cuInit(self, flags):
        return 0

    def cuDeviceGet(self, handle, number):
        return 0 if number == 0 else 101

    def cuDeviceGetAttribute(self, value, attribute, handle):
        value._obj.value = self.answers.get(attribute, -1)
        return 0 if attribute in self.answers else 1

    def cuModuleLoadData(self, module, code):
        return 0

    cuModuleGetFunction = cuFuncSetAttribute = lambda self, *args: 0
    cuModuleUnload = cuInit
    largest_cluster = 16

    def cuOccupancyMaxPotentialClusterSize(self, blocks, kernel, config):
        blocks._obj.value = self.largest_cluster
        return 0 if self.largest_cluster else 1


@pytest.fixture
def driver(monkeypatch):
    monkeypatch.delenv(device_limits.VARIABLE, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())


def test_a_device_is_asked_for_its_limits(driver, monkeypatch):
    assert limits_of(0) == CARDS["H100"]
    assert limits_of(0).architecture == "sm_90"
    assert str(limits_of(0)) == (
        "compute capability 9.0, 132 multiprocessors, 227 KiB of shared memory a block, "
        "50 MiB of cache"
    )
    assert str(CARDS["P100"]).endswith("4 MiB of cache; makes single sweeps")
    monkeypatch.setattr(Driver, "largest_cluster", 0)  # an older driver does not tell
    assert limits_of(0).cluster == 8
    with pytest.raises(InputError, match="no GPU 1"):
        limits_of(1)
    monkeypatch.setattr(Driver, "answers", {75: 9, 76: 0})
    with pytest.raises(InputError, match="attribute 16 of GPU 0"):
        limits_of(0)


def test_limits_of_another_card_are_pretended(driver, monkeypatch):
    monkeypatch.setenv(device_limits.VARIABLE, "A30")
    assert limits_of(0) == replace(CARDS["A30"], pretended=True)
    assert limits_of(0).architecture == "compute_80"  # which any newer device compiles
    monkeypatch.setenv(device_limits.VARIABLE, "P100")
    assert not limits_of(0).has_fused_sweeps
    assert limits_of(0).architecture == "compute_75"  # the oldest that all compilers know
    monkeypatch.setenv(device_limits.VARIABLE, "B200")  # no more than there is
    assert limits_of(0) == replace(CARDS["H100"], pretended=True)
    monkeypatch.setenv(device_limits.VARIABLE, "GTX 480")
    with pytest.raises(InputError, match="no such card, there are P100"):
        limits_of(0)


def test_blocks_of_a_multiprocessor():
    """By shared memory, with what each reserves, and by threads."""
    a30, t4 = CARDS["A30"], CARDS["T4"]
    assert a30.blocks(128, 160 * KIB) == 1
    assert a30.blocks(128, 163 * KIB + 1) == 0
    assert a30.blocks(128, 81 * KIB) == 2
    assert a30.blocks(128, 82 * KIB) == 1  # each takes one more
    assert t4.blocks(512, 1 * KIB) == 2
    assert t4.blocks(128, 32 * KIB) == 2


# ---- the kernels that are chosen ----------------------------------------------------------------


def mean_of_six(i, j, k, u, sixth):
    near = u[i - 1, j, k] + u[i + 1, j, k] + u[i, j - 1, k] + u[i, j + 1, k]
    return sixth * (near + u[i, j, k - 1] + u[i, j, k + 1])


def make_pass(backend, point: Point, shape, arguments, count=7) -> int:
    """Queue as many of these sweeps as one pass makes; how many."""
    u, new = np.zeros(shape, backend.dtype), np.zeros(shape, backend.dtype)
    region, wraps = tuple((1, extent - 1) for extent in shape), (False,) * len(shape)
    given = SweepSequence(point, u, region, [arguments] * count, wraps, [None] * count)
    sweeps = backend.most_fused(given)
    if sweeps > 1:
        changes = [*[None] * (sweeps - 1), backend.accumulator("sum")]
        given = given.up_to(sweeps)._replace(changes=changes)
        backend.fused_sweeps(given, new, region)
    return sweeps


@cache
def chosen(card, precision="float64"):
    """What a card is given: how many sweeps are fused in 2D and in 3D, and the kernels."""
    backend = Collecting(card, precision)
    b = np.zeros((30, 140), backend.dtype)
    two = make_pass(backend, heat.laplace, b.shape, (b, 0.1))
    three = make_pass(backend, mean_of_six, (20, 30, 70), (1.0 / 6.0,))
    if CARDS[card].cluster:
        assert make_pass(backend, heat.laplace, b.shape, (b, 0.1), 99) == 99
        assert make_pass(backend, mean_of_six, (20, 20, 20), (1.0 / 6.0,), 99) == 99
    two_steps(backend, "nodes = [20, 18]", "vgvv", "", "multigrid")
    two_steps(backend, "nodes = [12, 10, 11]", "vgvrvv", "", "multigrid")
    with pytest.MonkeyPatch.context() as patch:  # small legs
        patch.setattr(cycle_legs, "FEWEST_POINTS", {2: 1 << 20, 3: 1 << 20})
        two_steps(backend, "nodes = [20, 18]", "vgvv", "", "multigrid")
        two_steps(backend, "nodes = [12, 10, 11]", "vgvrvv", "", "multigrid")
    return two, three, backend.kernels


def defined(source, name):
    """A number that a text defines; None if it does not."""
    _, *rest = source.split(f"#define {name} ")
    return int(rest[0].split()[0]) if rest else None


def families(kernels):
    """One kernel of each: in how many dimensions, with which sweeps, and what else it does."""
    names = ("WRAPS_K", "T", "LEVELS", "RESTRICTS", "CORRECTS", "OWN", "AXES")
    found = {}
    for source, taken in kernels.items():
        found.setdefault(tuple(defined(source, name) for name in names), (source, *taken))
    return found.values()


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("card", WITH_PASSES)
def test_blocks_fit_their_card(card, precision):
    two, three, kernels = chosen(card, precision)
    assert (two, three) == (7, 3)
    assert len(kernels) > 2
    for bytes_shared, threads, _ in kernels.values():
        assert CARDS[card].blocks(threads, bytes_shared) > 0


@pytest.mark.parametrize("card", GENERIC_ONLY)
def test_old_cards_make_generic_sweeps(card):
    assert chosen(card) == (1, 1, {})


def spread(i, j, u, share, *source):
    """u and a share of the differences to its neighbours; the next row takes over one of them."""
    along_i = (u[i + 1, j] - u[i, j]) - (u[i, j] - u[i - 1, j])
    along_j = (u[i, j + 1] - u[i, j]) - (u[i, j] - u[i, j - 1])
    result = u[i, j] + share * (along_i + along_j)
    return result + source[0][i, j] if source else result


def strips_of_passes(rows, columns, precision="float64", sources=0, counted=None):
    """The cut of an H100 for passes over a field of this size, and the columns of a thread; norms
    are taken over the rows `counted`, if these are given."""
    field, norms = (False, False), [None] * 6 + ["sum" if counted else None]
    signature = Signature((field, REAL, *[field] * sources), ("array",), (None,), precision, 2)
    stages, tape = [(0.25, *[np.zeros(1)] * sources)] * 7, signature.tape(spread)
    work = work_of(tape, signature, stages, norms, field, columns + 2)
    across = 1, columns + 1
    args = ((1, rows + 1), across), CARDS["H100"]
    strip = shape_for(work, *args)
    return cut_of(work, strip, *args, counted and (counted, across)), strip.columns


def test_strips_of_passes_keep_a_card_busy():
    """Wide strips for large fields; close to the cuts that were the fastest on an H100, where other
    cuts of the same sizes took up to 70 % longer."""
    assert strips_of_passes(16384, 16384)[1] == strips_of_passes(8213, 16384)[1] == 4
    assert strips_of_passes(2048, 2048)[1] == strips_of_passes(1045, 4096)[1] == 2
    assert strips_of_passes(8192, 8192, sources=1)[1] == 2
    assert strips_of_passes(4096, 4096, "float32", sources=1)[1] == 4
    for rows, columns, fewest, most in ((2048, 2048, 76, 92), (1045, 4096, 46, 62)):
        cut, _ = strips_of_passes(rows, columns)
        assert fewest <= cut.rows <= most
        assert cut.across * cut.pieces <= 4 * 132  # all run at once


@pytest.mark.parametrize("rows", [8304, 8317, 8330, 4168, 1070])
@pytest.mark.parametrize(("below", "above"), [(0, 0), (12, 12), (0, 12), (34, 34)])
def test_rows_without_a_norm_lie_in_the_first_and_the_last_piece(rows, below, above):
    """A piece of which only some rows count is an edge: an ascent on 8287 squared with layers of
    two neighbours took 563 us where the last piece but one had two such rows, else 491 (H200)."""
    cut, _ = strips_of_passes(rows, 8289, counted=(1 + below, 1 + rows - above))
    assert cut.rows - cut.fewer >= below
    assert (cut.pieces - 1) * cut.rows - cut.fewer <= rows - above


@pytest.mark.parametrize(
    ("rows", "columns", "counted"),
    [(70, 8289, (1, 12)), (100, 8289, (1, 1)), (1825, 2061, (35, 1792)), (1000, 8289, (1, 1))],
)
def test_pieces_too_short_for_rows_without_a_norm(rows, columns, counted):
    """They are those of a field in which all rows have one."""
    assert strips_of_passes(rows, columns, counted=counted)[0] == strips_of_passes(
        rows, columns, counted=(1, rows + 1)
    )[0]  # fmt: skip


def shapes_of_legs(card, cells=256):
    """The warps and the planes ahead of blocks that cover a cube, by the sweeps of their leg."""
    works = {}

    def noted(work, shapes, region, limits):
        works[work.sweeps] = work
        return chosen_shape(work, shapes, region, limits)

    chosen_shape = cycle_legs.fastest_shape
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cycle_legs, "fastest_shape", noted)
        two_steps(Collecting(card), "nodes = [12, 10, 11]", "vgvrvv", "", "multigrid")
    region = ((1, cells + 1),) * 3
    shapes = {
        sweeps: chosen_shape(work, cycle_legs.shapes_of(work), region, CARDS[card])
        for sweeps, work in works.items()
    }
    return {sweeps: (shape.warps, shape.ahead) for sweeps, shape in shapes.items()}


def test_blocks_of_legs_are_as_large_as_keeps_a_card_busy():
    """What was fastest on an H100; with less shared memory fewer planes are on their way."""
    assert shapes_of_legs("H100") == {0: (14, 3), 2: (12, 3), 4: (12, 3)}
    assert shapes_of_legs("H100", 512)[0] == (16, 3)
    assert shapes_of_legs("A100")[4] == (12, 3) and shapes_of_legs("A30")[4] == (16, 2)
    assert {warps for warps, _ in shapes_of_legs("RTX 4090").values()} <= {12, 10, 8}
    assert {ahead for _, ahead in shapes_of_legs("RTX 4090").values()} == {2, 3}


def test_few_multiprocessors_get_long_pieces():
    """A slice of an A30 has a quarter of its multiprocessors: fewer blocks keep them busy."""

    def blocks(card):
        backend = Collecting(card)
        make_pass(backend, heat.laplace, (3000, 140), (np.zeros((3000, 140)), 0.1))
        ((_, _, grid),) = backend.kernels.values()
        return grid[1]

    assert blocks("A30 1g.6gb") < blocks("A30")


def test_tables_of_small_sweeps_fit_their_card():
    """A P100's block has 48 KiB, where a table of a hundred sweeps does not fit."""
    sweep = graphs.SmallSweep(
        LAPLACE, LAPLACE.tape(heat.laplace), ((1, 3), (1, 3)), (5,),
        (np.zeros((5, 5)), np.ones((5, 5)), np.ones((5, 5)), 0.1), lambda: lambda: None,
    )  # fmt: skip
    for card in ("P100", "H100"):
        backend = Collecting(card)
        backend.address, backend.stored = lambda array: array.ctypes.data, lambda values: values
        queues = list(graphs.together(backend, [sweep] * 100))
        for queue in queues:
            queue()
        assert len(queues) == (2 if card == "P100" else 1)
        for bytes_shared, threads, _ in backend.kernels.values():
            assert CARDS[card].blocks(threads, bytes_shared) > 0


@pytest.mark.few(2, among="T4")
@COMPILER
@pytest.mark.parametrize("card", ["RTX 4090", "T4"])
@pytest.mark.parametrize(
    "case",
    [("nodes = [66, 40]", "vgvv", "", "multigrid"),
     ("nodes = [20, 29, 19]", "vgvrvv", "", "multigrid")],
    ids=["2D", "3D"],
)  # fmt: skip
def test_small_blocks_have_the_same_bits(case, card):
    backend = Emulated()
    backend.limits = replace(CARDS[card], processors=2)
    got, expected = two_steps(backend, *case), two_plain_steps(*case)
    assert backend.launched > 0
    inside = INSIDE[: got.ndim]
    assert got[inside].tobytes() == expected[inside].tobytes()


# ---- machine code for every capability ----------------------------------------------------------

FULL, ONE = (False, False), (True, True)
LAPLACE = Signature((FULL, FULL, REAL), ("array",), (None,), "float64", 2)


def generic_kernels():
    """Names, sources, threads and shared memory of generic kernels: each kind of sweep, checks."""
    space = (False,) * 3
    for name, point, signature in (
        ("sweep", heat.laplace, LAPLACE),
        ("sweep", heat.laplace, replace(LAPLACE, outputs=("sum",))),
        ("sweep", heat.laplace, replace(LAPLACE, outputs=("max",))),
        ("sweep", mean_of_six, Signature((space, REAL), ("array",), (None,), "float64", 3)),
        ("sweep", mean_of_six,
         Signature((space, REAL), ("array",), (None,), "float64", 3, pairs=True)),
    ):  # fmt: skip
        tape = signature.tape(point)
        threads = math.prod(cuda_c.shape_of(signature, tape).block)
        yield name, cuda_c.kernel_source("sweep", signature, tape), threads, 0
    of_checks = "check", "confirm", "merge", "merge_several", "merge_series", "close_gate"
    for name in (*of_checks, "post", "quotient"):
        yield name, cuda_c.check_source(), cuda_c.GROUPS * sums.WIDTH, 0
    yield "exchange", cuda_c.peer_source(peers.THREADS, peers.FLAG), peers.THREADS, 0
    functions = tuple((LAPLACE, LAPLACE.tape(heat.laplace), kind) for kind in ("int", "integer"))
    yield "sweeps", graphs.source(functions, 20, False), graphs.THREADS, 48 * KIB
    yield "sweeps", graphs.source(functions, 20, True), graphs.THREADS_BESIDE, 0


def hold(limits: Limits, code, name, threads, bytes_shared, blocks=1):
    """Assert that a multiprocessor has room for so many blocks of a kernel."""
    taken = takes(code, name)
    own = taken.shared
    if limits.capability >= (9, 0):
        own -= limits.reserved  # counted by the compiler from there on
    assert limits.blocks(threads, bytes_shared + max(own, 0)) >= 1
    registers = -(-taken.registers // 8) * 8  # a warp is given 256 at a time
    assert taken.registers <= 255 and blocks * registers * threads <= limits.registers


ONE_OF_EACH = ("P100", "V100", "T4", "A30", "RTX 3090", "RTX 4090", "H100", "B200", "RTX 5090")


def test_every_file_of_cuda_c_is_compiled():
    """By the kernels of the next tests."""
    sources = [source for _, source, *_ in generic_kernels()]
    sources += [source for source, *_ in families(chosen("H100")[2])]
    folder = resources.files("heatsolve.backends.gpu") / "cuda"
    texts = [file.read_text() for file in folder.iterdir() if file.name.endswith(".cuh")]
    assert len(texts) >= 9
    assert all(any(text in source for source in sources) for text in texts)


def test_one_card_of_each_capability():
    wanted = {(6, 0), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)}
    assert {CARDS[card].capability for card in ONE_OF_EACH} == wanted


@pytest.mark.few(1)
@pytest.mark.parametrize("card", ONE_OF_EACH)
def test_generic_kernels_compile_for_every_capability(card):
    limits = CARDS[card]
    for name, source, threads, bytes_shared in generic_kernels():
        hold(limits, nvrtc(source, limits.architecture), name, threads, bytes_shared)


@pytest.mark.few(1)
@pytest.mark.parametrize("card", [card for card in ONE_OF_EACH if card in WITH_PASSES])
def test_fused_sweeps_compile_for_every_capability(card):
    """In one precision each: their text differs in one word."""
    limits = CARDS[card]
    _, _, kernels = chosen(card, "float32" if card in ("A30", "RTX 4090", "B200") else "float64")
    assert len(families(kernels)) >= 7
    for source, bytes_shared, threads, _ in families(kernels):
        blocks = defined(source, "BLOCKS") or 1
        hold(limits, nvrtc(source, limits.architecture), "sweeps", threads, bytes_shared, blocks)
