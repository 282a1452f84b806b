"""Reproducible sums: the same bits in any order, near the exact sum, with room for 2^34 terms."""

import functools
import math
from fractions import Fraction

import emulated
import numpy as np
import pytest

from heatsolve.backends import exact_sums as sums
from heatsolve.backends.gpu.emit import GROUPS, check_source
from heatsolve.backends.gpu.launch import SPREAD, Launch
from heatsolve.backends.registry import make
from heatsolve.stencil.language import copy

RNG = np.random.default_rng(7)
TINY = 5e-324


def wide(n, decades, signs=(-1.0, 1.0)):
    return RNG.choice(signs, n) * 10.0 ** RNG.uniform(-decades, decades, n)


FIELDS = {
    "mixed signs": RNG.normal(size=5000),
    "one sign": RNG.uniform(1.0, 2.0, 5000),
    "cancelling": np.concatenate([x := wide(2500, 3), -x, [0.1]]),
    "large and small": np.concatenate([wide(3000, 300), [1e300, -1e300, 1e-300]]),
    "large": wide(3000, 2) * 1e300,
    "small": wide(3000, 2) * 1e-300,
    "denormal": RNG.integers(-1000, 1000, 3000) * TINY,
    "one denormal": np.array([TINY]),
    "around one": 1.0 + RNG.integers(-3, 4, 3000) * 2.0**-52,
    "slice borders": np.ldexp(RNG.choice([-1.0, 1.0], 3000), RNG.integers(-1074, 1000, 3000)),
    "ties": RNG.choice([-1.0, 1.0], 3000) * (1.0 + RNG.integers(0, 8, 3000) * 2.0**-85),
    "zero": np.zeros(100),
    "negative zero": np.full(100, -0.0),
    "single": np.array([-3.5]),
}  # fmt: skip
fields = pytest.mark.parametrize("values", FIELDS.values(), ids=FIELDS.keys())


def register_of(*blocks):
    register = np.zeros(sums.WIDTH, np.int64)
    for block in blocks:
        sums.add_block(np.asarray(block, float), register)
    return register


def total(*blocks):
    return sums.sum_of(register_of(*blocks))


def unit(values):
    """The promised unit, to which each term is rounded: 83 bits or more below the largest."""
    top = sums.top_slice(np.abs(values).max())
    exponent = sums.SLICE_BITS * (top - sums.SLICES + 1) + sums.LOWEST
    return Fraction(2) ** exponent


@fields
def test_near_the_exact_sum(values):
    """|sum - exact| <= n unit / 2 and then one rounding, half an ulp."""
    if not values.any():
        assert total(values) == 0.0
        return
    assert unit(values) <= max(Fraction(float(np.abs(values).max())) / 2**83, Fraction(TINY))
    exact = sum(map(Fraction, values.tolist()))
    bound = values.size * unit(values) / 2
    got = total(values)
    # Rounding is monotonic: the sum lies between the roundings of both ends of the bound.
    assert float(exact - bound) <= got <= float(exact + bound)
    assert abs(got - math.fsum(values)) <= float(bound) + math.ulp(got)


@fields
def test_rounded_once(values):
    """Each term is rounded to the unit, ties to even; then all is exact up to one rounding."""
    if not values.any():
        return
    step = unit(values)
    assert total(values) == float(sum(round(Fraction(v) / step) for v in values.tolist()) * step)


@fields
def test_permutations(values):
    expected = total(values)
    assert total(values[::-1]) == expected
    for _ in range(3):
        assert total(RNG.permutation(values)) == expected


@fields
def test_blocks(values):
    """Blocks cut their terms from their own largest magnitude on; the sum does not tell."""
    expected = total(values)
    by_size = values[np.argsort(np.abs(values))]
    for data in (values, by_size, by_size[::-1]):
        for pieces in (2, 3, min(64, data.size)):
            assert total(*(p for p in np.array_split(data, pieces) if p.size)) == expected
    registers = [register_of(piece) for piece in np.array_split(values, min(7, values.size))]
    assert sums.sum_of(sums.merge(np.array(registers))) == expected


def test_what_half_a_unit_of_the_lowest_bin_adds():
    """Nothing, alone or with larger terms: here it would carry into a sum that is a tie."""
    half = 2.0 ** (sums.LOWEST + sums.SLICE_BITS * (sums.top_slice(1.0) - sums.SLICES + 1) - 1)
    terms = np.array([1.0, 2.0**-53, 1.5 * half, 0.75 * half])
    assert total(terms[:2], terms[2:3]) == total(terms[:3])
    assert total(terms[:2], terms[3:]) == total(terms[[0, 1, 3]])
    assert total(terms[:1], terms[1:2], terms[2:]) == total(terms)


@pytest.mark.parametrize("value", [1.0, -1.0, 1.0 - 2.0**-53, -(2.0**27) * (2 - 2.0**-52), 1e300])
def test_two_to_the_34_terms(value):
    """A full block of 2^24 equal terms, merged 2^10 times, is exact: no bin overflows."""
    register = register_of(np.broadcast_to(value, 1 << 24))
    for _ in range(10):
        before = register[: sums.BINS].astype(object)
        register = sums.merge(np.array([register, register]))
        assert (register[: sums.BINS].astype(object) == 2 * before).all()
    expected = Fraction(value) * 2**34
    try:
        assert sums.sum_of(register) == float(expected)
    except OverflowError:
        assert sums.sum_of(register) == math.copysign(math.inf, value)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 2, -1])
def test_not_finite(bad, place):
    values = np.ones(5)
    values[place] = bad
    register = register_of([2.0], values, [3.0])
    assert math.isnan(sums.sum_of(register))
    assert math.isnan(sums.max_of(register))
    assert register[sums.NOT_FINITE] == 1


def test_overflow_is_infinite_and_cancels():
    assert total([1.7e308] * 4) == math.inf
    assert total([-1.7e308] * 4) == -math.inf
    assert total([1.7e308] * 4, [-1.7e308] * 4, [1.0]) == 0.0  # 1 is far below the unit
    assert total([1.7e308] * 4, [-1.7e308] * 3) == 1.7e308


def test_largest():
    register = register_of([1.0, -7.5], [-0.0, 3.0], [TINY])
    assert sums.max_of(register) == 7.5
    assert sums.max_of(register_of(np.zeros(3))) == 0.0
    assert sums.max_of(register_of([-TINY])) == TINY


BACKENDS = [
    ("numpy", None),
    ("numba", 1),
    ("numba", 2),
    pytest.param("cupy", None, marks=pytest.mark.gpu),
    pytest.param("cuda", None, marks=pytest.mark.gpu),
]
backends = pytest.mark.parametrize("name, threads", BACKENDS)


def machine(name, threads, monkeypatch):
    if name == "numba":
        from heatsolve.backends.host import numba

        monkeypatch.setattr(numba, "THREADED_FROM", 1)
    return make(name, threads=threads)


@pytest.mark.few(12)
@backends
@fields
def test_backends(name, threads, values, monkeypatch):
    backend = machine(name, threads, monkeypatch)
    array = backend.to_device(values)
    region = ((0, values.size),)
    assert backend.reduce("sum", copy, region, array) == total(values)
    assert backend.reduce("max", copy, region, array) == np.abs(values).max()


@backends
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_backends_not_finite(name, threads, bad, monkeypatch):
    backend = machine(name, threads, monkeypatch)
    for place in (0, 2999, 4999):
        values = RNG.normal(size=5000)
        values[place] = bad
        array = backend.to_device(values)
        for kind in ("sum", "max"):
            assert math.isnan(backend.reduce(kind, copy, ((0, 5000),), array))
            without = ((0, place),) if place else ((1, 5000),)
            assert math.isfinite(backend.reduce(kind, copy, without, array))


@backends
@pytest.mark.parametrize("count", [1, 3, 700])
def test_values_of_several_accumulators(name, threads, count, monkeypatch):
    """A line of 700 points, say: each has its value, also beside one that is not finite, and all
    are empty afterwards."""
    backend = machine(name, threads, monkeypatch)
    several = [backend.accumulator("max" if n % 3 else "sum") for n in range(count)]
    for faulty in (None, count // 2):
        given = wide(2 * count, 2).reshape(count, 2)
        if faulty is not None:
            given[faulty, 0] = math.nan
        array = backend.to_device(given)
        for row, into in enumerate(several):
            backend.sweep(copy, into, ((row, row + 1), (0, 2)), array)
        largest, both = np.abs(given).max(axis=1), given.sum(axis=1)
        expected = [largest[n] if n % 3 else both[n] for n in range(count)]
        np.testing.assert_array_equal(backend.posted_values(several)(), expected)
    assert backend.values(several) == [0.0] * count


@backends
def test_backends_gather(name, threads, monkeypatch):
    """Sweeps over rows of very different magnitude gather to the sum over all at once."""
    backend = machine(name, threads, monkeypatch)
    values = wide(12 * 500, 2).reshape(12, 500) * np.logspace(-290, 290, 12)[:, None]
    array = backend.to_device(values)
    expected = backend.reduce("sum", copy, ((0, 12), (0, 500)), array)
    for rows in (range(12), reversed(range(12))):
        gathered = backend.accumulator("sum")
        for row in rows:
            backend.sweep(copy, gathered, ((row, row + 1), (0, 500)), array)
        assert gathered.value == expected == total(values)


@functools.cache
def registers_of_all_sorts():
    """Rows of slices that carry, cancel or are too large for the quick way, too."""
    rng = np.random.default_rng(3)
    registers = [register_of(values) for values in FIELDS.values()]
    registers += [
        register_of(rng.random(int(n)) ** 2 * 10.0 ** rng.integers(-40, 40))
        for n in rng.integers(1, 400, 300)
    ]
    for size in (1, 1 << 27, 1 << 33, 1 << 50):
        for top in (1, 2, 37, sums.BINS - 3):
            for _ in range(20):
                register = np.zeros(sums.WIDTH, np.int64)
                register[sums.TOP] = top
                register[top - 1 : top + 3] = rng.integers(-size, size, 4, endpoint=True)
                register[top + 2] *= rng.integers(0, 2)
                registers.append(register)
    registers.append(register_of([math.nan]))
    return np.array(registers)


def test_many_sums_at_once_are_those_of_each():
    rows = registers_of_all_sorts()
    many, each = sums.sums_of(rows), [sums.sum_of(register) for register in rows]
    assert np.array(many).tobytes() == np.array(each).tobytes()
    assert sums.values_of(["sum"] * len(rows), rows) == pytest.approx(each, abs=0, nan_ok=True)


def test_halfway_sums_round_to_even_at_once():
    """A last bit far behind the leading ones decides."""
    rows = []
    for last in (0, 1, -1):
        for odd in (0, 1):
            terms = [1.0 + odd * 2.0**-52, 2.0**-53, last * 2.0**-80]
            rows.append(register_of(*[[term] for term in terms]))
    many = sums.sums_of(np.array(rows))
    assert many == [sums.sum_of(row) for row in rows]
    assert many[:4] == [1.0, 1.0 + 2.0**-51, 1.0 + 2.0**-52, 1.0 + 2.0**-51]


ROUND = """
extern "C" __global__ void sweeps(const integer* gate, const integer* rows, double* values) {
    for (int n = threadIdx.x; n < @COUNT@; n += 32) values[n] = rounded(rows + n * WIDTH);
}
"""


def test_a_device_rounds_as_the_host_does():
    rows = [*registers_of_all_sorts()]
    # Subnormal sums: the last places of a double are behind the first bins' slices.
    for slices in RNG.integers(-(1 << 27), 1 << 27, (500, 3)):
        register = np.zeros(sums.WIDTH, np.int64)
        register[sums.TOP] = 1
        register[: len(slices)] = slices // 2 ** RNG.integers(0, 28, 3)
        rows.append(register)
    values = np.zeros(len(rows))
    kernel = check_source() + ROUND.replace("@COUNT@", str(len(rows)))
    launch = Launch((1, 1, 1), (32, 1, 1), ())
    emulated.Emulated().c_kernel(kernel, 0)(launch, (np.array(rows), values))
    assert values.tobytes() == np.array([sums.sum_of(row) for row in rows]).tobytes()


CONFIRM = """
extern "C" __global__ void sweeps(const integer* gate, integer* reg, integer* state, double limit) {
    confirm(reg, SPREAD, limit, state, state + 4, state + 3, nullptr);
}
"""


@pytest.mark.parametrize(
    ("values", "limit", "closed", "goes_on"),
    [([1.0, 3.0], 3.0, 0, True), ([1.0, 3.0], 2.9, 0, False), ([1.0, np.nan], 3.0, 0, False),
     ([1.0, 3.0], 3.0, 1, False)],
)  # fmt: skip
def test_a_device_confirms_a_norm(values, limit, closed, goes_on):
    """It stands behind the ledger, here of two checks; a closed gate leaves all as it was."""
    register = np.zeros((SPREAD, sums.WIDTH), np.int64)
    for number, value in enumerate(values):
        sums.add_largest(np.array([value]), register[7 * number])
    state = np.zeros(4 + 3 * sums.WIDTH, np.int64)
    state[:4] = 1, 2, 0, closed
    launch = Launch((1, 1, 1), (GROUPS * sums.WIDTH, 1, 1), ())
    operands = register.reshape(-1), state, limit
    source = "#undef __shared__\n#define __shared__ static\n" + check_source() + CONFIRM
    emulated.Emulated().c_kernel(source, 0)(launch, operands)
    assert state[:4].tolist() == [1, 2, 1 - closed, 1 - goes_on]
    if closed:
        assert register.any() and not state[4:].any()
    else:
        found = sums.max_of(state[4:].reshape(3, -1)[2])
        assert not register.any()
        assert found == max(values) or np.isnan(values).any()
