"""Same bits everywhere: every point function, on random fields, on every backend of the machine."""

import ast
import copy
import inspect
import pickle
from functools import cache
from itertools import product

import conformance
import numpy as np
import pytest
from conformance import Entry, Field, interior, registry, same, sweep, sweep_plainly

from heatsolve.backends import registry as choice
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.errors import InputError
from heatsolve.linear import fft, krylov, stationary, system
from heatsolve.linear.multigrid import (
    cycle,
    levels,
    mixed,
    smoothers,
    transfer,
    transfer_2d,
    transfer_at_once,
)
from heatsolve.models import derived
from heatsolve.models.flow import equations as flow
from heatsolve.models.heat import equations as heat
from heatsolve.models.heat import flux
from heatsolve.models.heat.walls import WallKind
from heatsolve.models.transport import equations as transport
from heatsolve.parallel.halo import Halo
from heatsolve.stencil import language as points
from heatsolve.stencil.grid import make_grid
from heatsolve.stencil.language import INDEX_NAMES, maximum, minimum, neighbour, shifted, where
from heatsolve.stencil.trace import ARRAY, INTEGER, REAL, PointRuleError, record

MODULES = (points, heat, transport, flow, system, stationary, krylov, fft,
           derived, flux, cycle, mixed, levels, smoothers, transfer, transfer_2d,
           transfer_at_once)  # fmt: skip
SHAPES = {1: (69,), 2: (6, 37), 3: (5, 4, 35)}
NAMES = ("numba-1", "numba-2", "cupy", "cupy-many", "cuda")
"""`cupy-many`: by the kernels for sweeps of many points."""
MARKS = {name: [pytest.mark.gpu] for name in NAMES[2:]}
OTHERS = [pytest.param(name, marks=MARKS.get(name, ())) for name in NAMES]
EVERY = ["numpy", *OTHERS]


@cache
def make(name, precision):
    kind, _, more = name.partition("-")
    return choice.make(kind, precision, int(more) if more.isdigit() else None)


@pytest.fixture
def machine(request, monkeypatch):
    """The backends, by precision; skips the test where the machine has none of this name."""
    name = request.param
    if name.startswith("numba"):
        from heatsolve.backends.host import numba

        monkeypatch.setattr(numba, "THREADED_FROM", 1)  # two threads on small fields, too
        if name == "numba-2" and make(name, "float64").threads < 2:
            pytest.skip("this machine has one thread")
    if name == "cupy-many":
        monkeypatch.setattr("heatsolve.backends.gpu.backend.FEW_POINTS", 0)
    try:
        make(name, "float64")
    except InputError as error:
        pytest.skip(str(error))
    return lambda precision: make(name, precision)


on_others = pytest.mark.parametrize("machine", OTHERS, indirect=True)
on_every = pytest.mark.parametrize("machine", EVERY, indirect=True)
for_entries = pytest.mark.parametrize("entry", registry(), ids=lambda entry: entry.name)
in_precisions = pytest.mark.parametrize("precision", conformance.PRECISIONS)


def trial(entry, shape, precision, wild, seed=1):
    """Arguments, the former contents of an output, and the region of a sweep."""
    before = np.random.default_rng(99).normal(size=shape).astype(precision)
    return entry.make(shape, precision, seed, wild), before, entry.region(shape)


def outside(array, region):
    """The elements of an array outside a region."""
    mask = np.ones(array.shape, bool)
    mask[tuple(slice(low, high) for low, high in region)] = False
    return array[mask]


# ---- the registry is complete -----------------------------------------------------------------


def point_functions(module):
    """Qualified names of all functions in a module, nested ones too, that begin with an index."""
    found = []

    def visit(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.FunctionDef):
                parameters = child.args.posonlyargs + child.args.args
                if parameters and parameters[0].arg in ("at", *INDEX_NAMES[:1]):
                    found.append(prefix + child.name)
                visit(child, f"{prefix}{child.name}.<locals>.")
            else:
                visit(child, prefix)

    visit(ast.parse(inspect.getsource(module)), "")
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_point_function_is_registered(module):
    known = {e.point.__qualname__ for e in registry() if e.point.__module__ == module.__name__}
    known |= {"neighbour", "sides", "face_after", "face_before"}  # of an index: they read nothing
    assert set(point_functions(module)) <= known


def test_every_helper_is_registered():
    public = {getattr(kind, name) for kind in WallKind.known.values()
              for name, f in vars(kind).items() if isinstance(f, staticmethod)}  # fmt: skip
    assert public <= set(conformance.HELPERS)
    assert set(heat.LITERAL_UPDATES.values()) <= {entry.point for entry in registry()}


def test_every_method_is_registered():
    methods = {*system.Method.__subclasses__(), *system.Pairwise.__subclasses__()}
    assert {method.__module__ for method in methods} <= {module.__name__ for module in MODULES}


def test_names_are_unique():
    names = [entry.name for entry in registry()]
    assert len(set(names)) == len(names)


# ---- the same bits ----------------------------------------------------------------------------


@pytest.mark.few(300)
@in_precisions
@for_entries
def test_numpy_equals_plain_python(entry, precision):
    shape = conformance.SMALL[entry.dimension]
    for wild in (False, True):
        given, before, region = trial(entry, shape, precision, wild)
        expected = sweep_plainly(entry, given, before, region)
        for got, wanted in zip(
            sweep(entry, make("numpy", precision), given, before, region), expected, strict=True
        ):
            assert same(got, wanted)


def trials():
    """Every entry in both precisions on every backend.

    Threaded loops differ in their outer loop only and compile slowly: a quick run does those of
    2D in double precision. On one thread it does single precision in 2D: in 1D and 3D the loops
    around it are those of double precision. Of transport and flow, whose point functions are many
    and long, a quick run does 2D in double precision.
    """
    for entry, precision, name in product(registry(), conformance.PRECISIONS, NAMES):
        few = (entry.dimension, precision) == (2, "float64")
        long = entry.point.__module__ in (transport.__name__, flow.__name__)
        plain = {"numba-1": few if long else entry.dimension == 2 or precision == "float64",
                 "numba-2": few and not long}  # fmt: skip
        quick = plain.get(name, True)
        marks = [*MARKS.get(name, ()), *([] if quick else [pytest.mark.slow])]
        identity = f"{entry.name}-{precision}-{name}"
        yield pytest.param(entry, precision, name, marks=marks, id=identity)


@pytest.mark.few(12)
@pytest.mark.parametrize("entry, precision, machine", list(trials()), indirect=["machine"])
def test_backend_equals_numpy(entry, precision, machine):
    for wild in (False, True):
        given, before, region = trial(entry, SHAPES[entry.dimension], precision, wild)
        expected = sweep(entry, make("numpy", precision), given, before, region)
        for kind, got, wanted in zip(
            entry.outputs, sweep(entry, machine(precision), given, before, region), expected,
            strict=True,
        ):  # fmt: skip
            assert same(got, wanted)
            if kind == "array":
                assert same(outside(got, region), outside(before, region))


def named(*names):
    found = {entry.name: entry for entry in registry()}
    return [found[name] for name in names]


AWKWARD = {
    1: ((3,), (5,), (33,), (67,), (5003,)),
    2: ((3, 3), (3, 67), (67, 3), (5, 33), (33, 5), (4, 4200), (70, 130)),
    3: ((3, 3, 3), (3, 5, 67), (67, 3, 5), (5, 33, 3), (4, 11, 70)),
}


@pytest.mark.few(6)
@on_others
@pytest.mark.parametrize("entry", named(
    "1d-residual", "2d-residual", "3d-residual",
    "1d-conjugategradients-apply-array-sum", "2d-conjugategradients-apply-array-sum",
    "3d-conjugategradients-apply-array-sum", "2d-jacobi-updated-array-max",
), ids=lambda entry: entry.name)  # fmt: skip
@pytest.mark.few(2)
def test_awkward_sizes(machine, entry):
    for shape in AWKWARD[entry.dimension]:
        given, before, region = trial(entry, shape, "float64", wild=False)
        got = sweep(entry, machine("float64"), given, before, region)
        expected = sweep(entry, make("numpy", "float64"), given, before, region)
        assert all(map(same, got, expected)), shape


@pytest.mark.few(3)
@on_others
@pytest.mark.parametrize("d", conformance.DIMENSIONS)
def test_regions(machine, d):
    """One point, one row, off the alignment, and nothing: no point outside a region changes."""
    (entry,) = named(f"{d}d-residual")
    shape = SHAPES[d]
    outer, last = interior(shape)[:-1], shape[-1]
    for region in (
        ((2, 3),) * d,
        (*[(1, 2)] * (d - 1), (1, last - 1)),
        (*outer, (last - 2, last - 1)),
        (*outer, (33, 34)),
        ((2, 2), *[(1, 3)] * (d - 1)),
    ):
        given, before, _ = trial(entry, shape, "float64", wild=False)
        (got,) = sweep(entry, machine("float64"), given, before, region)
        (wanted,) = sweep(entry, make("numpy", "float64"), given, before, region)
        assert same(got, wanted), region
        assert same(outside(got, region), outside(before, region)), region


@pytest.mark.few(3)
@on_every
@pytest.mark.parametrize("d", conformance.DIMENSIONS)
def test_periodic_ghosts(machine, d):
    """The exchange of a grid with itself is NumPy's wrap-around padding, corners included."""
    backend = machine("float64")
    grid = make_grid((5, 4, 3)[:d], (0.0,) * d, (1.0,) * d, on_nodes=False, periodic="xyz"[:d])
    inside = np.random.default_rng(d).normal(size=[n - 2 for n in grid.shape])
    array = backend.to_device(np.pad(inside, 1))
    Halo(grid, backend).exchange(array)
    assert same(backend.to_host(array), np.pad(inside, 1, mode="wrap"))


# Those that compile in threads differ in their outer loop only.
on_one_of_each = pytest.mark.parametrize(
    "machine", [name for name in EVERY if name != OTHERS[1]], indirect=True
)


@pytest.mark.few(6)
@on_one_of_each
@pytest.mark.parametrize("inset", (0, 1))
@pytest.mark.parametrize("depth", (1, 3))
@pytest.mark.parametrize("d", conformance.DIMENSIONS)
def test_packing(machine, d, depth, inset):
    """Layers are packed, moved and unpacked as NumPy's slices would do it, on all sides."""
    conformance.compare_packing(machine("float64"), (12, 13, 14)[:d], depth, inset)


@on_one_of_each
@pytest.mark.parametrize("precision", ("float64", "float32"))
def test_quotients(machine, precision):
    conformance.compare_quotients(machine(precision))


@on_one_of_each
def test_messages(machine):
    """What is received gets into the array, what is packed into the buffer; once or without end."""
    backend = machine("float32")
    message, whole = backend.message((3, 4)), ((0, 3), (0, 4))
    assert message.buffer.dtype == np.float32
    for value in (1.0, 2.0):
        backend.sweep(points.fill, message.array, whole, value)
        message.to_buffer()
        assert (message.buffer == value).all()
        message.buffer[...] = -value
        message.from_buffer()
        assert (backend.to_host(message.array) == -value).all()


@on_one_of_each
def test_direct_messages(machine):
    """MPI is given the array itself: on a device by the interface that MPI's binding knows."""
    backend = machine("float64")
    message = backend.message((3, 4), direct=True)
    if not backend.on_device:
        assert message.buffer is message.array
        return
    interface = message.buffer.__cuda_array_interface__
    assert np.prod(interface["shape"]) == 12
    assert interface["typestr"] == "<f8"
    assert interface["strides"] is None


def difference(at, a, b, c):
    return a[at] - 0.5 * b[at] * c[at]


@pytest.mark.few(3)
@on_one_of_each
@pytest.mark.parametrize("d", conformance.DIMENSIONS)
def test_arrays_of_different_shapes(machine, d):
    """Every array keeps its own strides: the output, arguments, those constant along an axis."""
    rng, backend = np.random.default_rng(d), machine("float64")
    region = ((1, 4),) * d
    window = tuple(slice(*pair) for pair in region)
    out, a, b = (rng.normal(size=np.add((5, 6, 4)[:d], n)) for n in (0, 2, 1))
    c = rng.normal(size=(1, 9, 5)[-d:])
    for outputs in ("out", "a", "b"):
        arrays = {"out": out, "a": a, "b": b}
        placed = {name: backend.to_device(array) for name, array in arrays.items()}
        backend.sweep(difference, placed[outputs], region, placed["a"], placed["b"],
                      backend.to_device(c))  # fmt: skip
        expected = arrays[outputs].copy()
        line = c[tuple(slice(0, 1) if n == 1 else s for n, s in zip(c.shape, window, strict=True))]
        expected[window] = a[window] - 0.5 * b[window] * line
        assert same(backend.to_host(placed[outputs]), expected), outputs


@on_one_of_each
def test_reductions_of_different_shapes(machine):
    backend, rng = machine("float64"), np.random.default_rng(7)
    a, b = rng.normal(size=(6, 9)), rng.normal(size=(7, 5))
    got = backend.accumulator("max")
    copied = backend.zeros((4, 4))
    backend.sweep(apart, (copied, got), ((1, 4), (1, 4)), *map(backend.to_device, (a, b)))
    expected = a[1:4, 1:4] - b[1:4, 1:4]
    assert same(backend.to_host(copied)[1:4, 1:4], expected)
    assert got.value == np.abs(expected).max()


def apart(at, a, b):
    return a[at] - b[at], a[at] - b[at]


def swap(at, a, b):
    return b[at], a[at]


def least(at, u, f):
    return minimum(u[at], f[at])


def greatest(at, u, f):
    return maximum(f[at], u[at])


@pytest.mark.few(5)
@on_every
@pytest.mark.parametrize("entry", [
    Entry("swap", swap, 2, (Field((True, True)),) * 2, (0, 1)),
    Entry("least", least, 2, (Field((True, True)),) * 2, (0,)),
    Entry("greatest", greatest, 2, (Field((True, True)),) * 2, (0,)),
], ids=lambda entry: entry.name)  # fmt: skip
def test_an_output_may_be_read_at_the_point(machine, entry):
    given, before, region = trial(entry, (5, 7), "float64", wild=False)
    expected = sweep_plainly(entry, given, before, region)
    for got, wanted in zip(
        sweep(entry, machine("float64"), given, before, region), expected, strict=True
    ):
        assert same(got, wanted)


@pytest.mark.few(2)
@on_every
def test_accumulators_gather_until_cleared(machine):
    backend = machine("float64")
    ones = backend.to_device(np.ones((5, 7)))
    total = backend.accumulator("sum")
    for _ in range(3):
        backend.sweep(points.copy, total, ((1, 4), (1, 6)), ones)
    assert total.value == 45.0
    total.clear()
    assert total.value == 0.0
    assert backend.reduce("max", points.copy, ((0, 5), (0, 7)), ones) == 1.0


# ---- the rules --------------------------------------------------------------------------------


def left(i, u):
    return u[i - 1]


def coarser(i, u):
    return u[i // 2]


def finer(i, u):
    return u[2 * i]


@on_every
@pytest.mark.parametrize("point", [left, coarser, finer])
def test_output_read_at_a_shift_is_refused(point, machine):
    backend = machine("float64")
    u, v = backend.zeros((9,)), backend.zeros((9,))
    with pytest.raises(ValueError, match="shift"):
        backend.sweep(point, u, ((1, 4),), u)
    backend.sweep(point, v, ((1, 4),), u)
    with pytest.raises(ValueError, match="shift"):  # also once it is compiled
        backend.sweep(point, u, ((1, 4),), u)


def odd_factor(i, u):
    return u[3 * i]


def halved_sum(i, u):
    return u[(i + 1) // 2]


@pytest.mark.parametrize("point", [odd_factor, halved_sum])
def test_an_index_is_doubled_or_halved_as_it_is(point):
    with pytest.raises(PointRuleError, match="an index is doubled, as 2"):
        record(point, (ARRAY,), 1)


def branch(at, u):
    return u[at] if u[at] > 0.0 else 0.0


def both(at, u):
    return where(u[at] > 0.0 and u[at] < 1.0, u[at], 0.0)


def chained(at, u):
    return where(0.0 < u[at] < 1.0, u[at], 0.0)


def power(at, u):
    return u[at] ** 2


def power_of_two(at, u):
    return 2.0 ** u[at]


def number_of(i, u):
    return i * u[i]


def index_compared(i, u):
    return where(i == 3, u[i], 0.0)


def index_returned(i, u):
    return i


def half_way(i, u):
    return u[i + 0.5]


def fixed_place(at, u):
    return u[0]


def whole_array(at, u):
    return 2.0 * u


def array_compared(at, u):
    return where(u == 0.0, 1.0, u[at])


def absolute(at, u):
    return abs(u[at])


def sine(at, u):
    return np.sin(u[at])


def inverted(at, u):
    return where(~(u[at] > 0.0), u[at], 0.0)


def transposed(i, j, u):
    return u[j, i]


def incomplete(i, j, u):
    return u[i]


def repeated(i, j, u):
    return u[i, i]


@pytest.mark.parametrize("point", [
    branch, both, chained, power, power_of_two, number_of, index_compared, index_returned,
    half_way, fixed_place, whole_array, array_compared, absolute, sine, inverted, transposed,
    incomplete, repeated,
], ids=lambda point: point.__name__)  # fmt: skip
def test_rules(point):
    with pytest.raises(PointRuleError):
        record(point, (ARRAY,), points.dimension(point) or 1)


def integer_as_number(at, u, n):
    return n * u[at]


def integer_compared(at, u, n):
    return where(n == 0, u[at], 0.0)


@pytest.mark.parametrize("point", [integer_as_number, integer_compared])
def test_integers_only_shift(point):
    with pytest.raises(PointRuleError):
        record(point, (ARRAY, INTEGER), 1)


def test_copies_of_what_is_known_are_the_very_object():
    for known in (points.ONE, points.ZERO):
        assert copy.copy(known) is copy.deepcopy(known) is known
        assert pickle.loads(pickle.dumps(known)) is known


def test_values_between_rows():
    """A flux through a face above a point is the flux through the face below the next point."""

    def divergence(i, j, u, c, k):
        above, below = c[i + 1, j] * (u[i + 1, j] - u[i, j]), c[i, j] * (u[i, j] - u[i - 1, j])
        return (above - below) + k[i, j] * (u[i, j + 1] - u[i, j - 1])

    tape = record(divergence, (ARRAY,) * 3, 2)
    carrying, carried = tape.between_rows([False, True, False])
    assert [each.name for each in carrying.operations].count("carried") == len(carried) == 1
    shifts = {subscript[0].shift for number, subscript in carrying.loads() if number == 0}
    assert shifts == {0, 1} and carrying.operations[carried[0]].name == "*"
    # A conductance that varies from row to row is not the same one for the next row.
    carrying, carried = tape.between_rows([False] * 3)
    assert [carrying.operations[place].name for place in carried] == ["-"]
    carrying, carried = record(heat.laplace, (ARRAY, ARRAY, REAL), 2).between_rows([False] * 3)
    assert not carried

    def rising(i, j, u):
        above, below = u[i + 1, j] - u[i, j], u[i, j] - u[i - 1, j]
        return where((above > 0.0) & (below > 0.0), above, below)

    carrying, carried = record(rising, (ARRAY,), 2).between_rows([False])  # numbers only
    assert [carrying.operations[place].name for place in carried] == ["-"]


def test_wrong_dimension():
    with pytest.raises(PointRuleError):
        record(heat.laplace, (ARRAY, ARRAY, REAL), 3)


def test_no_point_function():
    with pytest.raises(TypeError, match="neither i nor at"):
        points.dimension(heat.harmonic_mean)


def literals(at, u):
    return 2 * u[at] + 1 / 3 - u[at] / 3


@on_every
def test_literals_take_the_precision_of_the_field(machine):
    u = np.random.default_rng(0).normal(size=50).astype(np.float32)
    entry = Entry("literals", literals, 1, (Field((True,)),))
    (got,) = sweep(entry, machine("float32"), [u], np.zeros_like(u), ((0, 50),))
    assert same(got, 2 * u + np.float32(1 / 3) - u / np.float32(3))


def test_shifted_reads_where_it_says():
    backend = make("numpy", "float64")
    u = np.arange(20.0).reshape(4, 5)
    out = backend.zeros((4, 5))
    backend.sweep(shifted, out, ((1, 3), (1, 4)), u, 1, -1)
    np.testing.assert_array_equal(out[1:3, 1:4], u[2:4, 0:3])


# ---- sweeps that read the other end of periodic axes themselves --------------------------------


PERIODIC = [
    pytest.param(shape, axes, id=f"{shape} {''.join('-p'[wraps] for wraps in axes)}")
    for shape in ((40,), (9, 70), (3, 3), (5, 6, 41), (3, 4, 3))
    for axes in product((False, True), repeat=len(shape))
    if any(axes)
]


@pytest.mark.parametrize(("shape", "wraps"), PERIODIC)
@pytest.mark.parametrize("kinds", [("array",), ("array", "sum"), ("max",)], ids=" and ".join)
@pytest.mark.parametrize("gated", [False, True], ids=["open", "gated"])
@pytest.mark.parametrize("machine", OTHERS[2:], indirect=True)
def test_ends_of_periodic_axes(shape, wraps, kinds, gated, machine):
    """Whatever the ghosts there hold."""
    device = machine("float64")
    rng, host = np.random.default_rng(4), NumpyBackend()
    u, b = (rng.standard_normal(shape) for _ in range(2))
    inside = tuple((1, n - 1) for n in shape)
    full, stale = u.copy(), u.copy()
    for axis, around in enumerate(wraps):
        if around:
            ends, others = np.moveaxis(full, axis, 0), np.moveaxis(stale, axis, 0)
            ends[0], ends[-1] = ends[-2], ends[1]
            others[0] = others[-1] = np.nan
    point = joint_residual(len(kinds))
    results = []
    for each, field, around in ((host, full, ()), (device, stale, wraps)):
        out = [each.zeros(shape) if kind == "array" else each.accumulator(kind) for kind in kinds]
        if gated:
            each.open_gate()
        given = tuple(out) if len(out) > 1 else out[0]
        u_there, b_there = each.to_device(field), each.to_device(b)
        each.sweep(point, given, inside, u_there, b_there, 0.3, wraps=around)
        if gated:
            each.ledger()
        results.append([
            each.to_host(o).tobytes() if kind == "array" else o.value
            for o, kind in zip(out, kinds, strict=True)
        ])  # fmt: skip
    assert results[0] == results[1]


@cache
def joint_residual(count):
    """A sum over neighbours along each axis, once or twice."""

    def point(at, u, b, factor):
        total = b[at] - factor * u[at]
        for axis in range(len(at)):
            total = total + (u[neighbour(at, axis, -1)] - factor * u[neighbour(at, axis, 1)])
        return total if count == 1 else (total, factor * total)

    return point
