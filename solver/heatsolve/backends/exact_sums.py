"""Sums that do not depend on the order of their terms.

A double is cut into slices of 28 bits at fixed binary places, counted from 2^-1084 to 2^1024 (a
*bin* each). The slices are whole multiples of their bin's unit, so 64-bit integers add them
exactly: any number of blocks, threads and ranks, in any order, gives the same integers. Each block
of terms fills the four bins below its own largest magnitude; at the end only the top four bins of
the whole sum count. A term rounded to a bin's unit (ties to even) is the same, whichever bin its
slicing began in. So the result is the sum of all terms, each rounded to one unit, 83 bits or more
below the largest term. The method follows Demmel and Nguyen, "Parallel reproducible summation",
IEEE Trans. Comput. 64 (2015); integers in place of floating-point bins give room for 2^34 terms and
make the merge of ranks one integer addition.

A term is below 2^27 units of the bin in which its slicing begins, half the range of a slice. So the
term rounds to 0 in every higher bin, even if the slicing of its block began there.

A *register* is a row of `WIDTH` integers: the bins, the number of the top slice ever used plus
one, the number of terms that were not finite, and the largest magnitude (as the bits of a double,
which order like integers).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from heatsolve.stencil.grid import whole
from heatsolve.stencil.language import fill

if TYPE_CHECKING:
    from heatsolve.backends import Backend

SLICE_BITS = 28
SLICES = 4
LOWEST = -1000  # binary exponent of the unit of slice number 0
BINS = 76  # slices -3 ... 72
TOP, NOT_FINITE, LARGEST = BINS, BINS + 1, BINS + 2
WIDTH = 80
MOST_TERMS = 1 << 24
"""The most terms that `add_block` takes at once."""
_sum, _maximum, _minimum = np.add.reduce, np.maximum.reduce, np.minimum.reduce

# Adding and subtracting 1.5 * 2^(52 - 28 k) rounds to a multiple of 2^(-28 k), ties to even.
ANCHORS = tuple(1.5 * 2.0 ** (52 - SLICE_BITS * k) for k in range(SLICES))
UNITS = tuple(2.0 ** (-SLICE_BITS * k) for k in range(SLICES))


def top_slice(largest: float) -> int:
    """The slice in which a block of this largest magnitude begins (positive, finite)."""
    return max(0, (math.frexp(largest)[1] - LOWEST) // SLICE_BITS)


def scale_of(top: int) -> float:
    """The power of two that brings a block with this top slice below 2^27."""
    return math.ldexp(1.0, -(SLICE_BITS * top + LOWEST))


def add_block(values: np.ndarray, register: np.ndarray) -> None:
    """Add the terms of an array (float64, at most MOST_TERMS) to a register."""
    if not add_largest(values, register):
        return
    largest = float(max(_maximum(values, None), -_minimum(values, None)))
    if largest == 0.0:
        return
    top = top_slice(largest)
    rest = values * scale_of(top)
    for k in range(SLICES):
        rounded = rest + ANCHORS[k]
        rounded -= ANCHORS[k]
        # Exact: 2^24 multiples of the unit, each below 2^28 units, fit into 53 bits.
        register[top + SLICES - 1 - k] += int(_sum(rounded, None) / UNITS[k])
        rest -= rounded
    register[TOP] = max(register[TOP], top + 1)


def add_largest(values: np.ndarray, register: np.ndarray) -> bool:
    """Take the largest magnitude of an array into a register; False if a value is not finite."""
    largest = np.float64(max(_maximum(values, None), -_minimum(values, None)))
    if not np.isfinite(largest):
        register[NOT_FINITE] += int(values.size - np.isfinite(values).sum())
        return False
    register[LARGEST] = max(register[LARGEST], int(np.abs(largest).view(np.int64)))
    return True


def merge(registers: np.ndarray) -> np.ndarray:
    """The register of all terms of several registers, along the first axis of `registers`; of
    several tables of registers the table of such registers."""
    total = _sum(registers, axis=0)
    for place in (TOP, LARGEST):
        total[..., place] = _maximum(registers[..., place], axis=0)
    return total


def sum_of(register: Any) -> float:
    """The sum in a register, rounded once; NaN when a term was not finite."""
    if register[NOT_FINITE]:
        return math.nan
    top = int(register[TOP])
    if top == 0:
        return 0.0
    lowest = top - 1  # bin of the last of the top four slices
    total = 0
    for place in range(lowest + SLICES - 1, lowest - 1, -1):
        total = (total << SLICE_BITS) + int(register[place])
    exponent = LOWEST + SLICE_BITS * (lowest - SLICES + 1)
    try:
        # Python divides integers with correct rounding.
        return float(total << exponent) if exponent >= 0 else total / (1 << -exponent)
    except OverflowError:
        return math.copysign(math.inf, total)


def max_of(register: Any) -> float:
    """The largest magnitude in a register; NaN when a value was not finite."""
    if register[NOT_FINITE]:
        return math.nan
    return float(np.int64(register[LARGEST]).view(np.float64))


VALUE_OF = {"sum": sum_of, "max": max_of}
"""For each kind of reduction, the function that reads its register."""

WORTH_MANY = 16
"""The number of registers from which on NumPy is faster than Python."""
LARGEST_HIGH, TWO_SLICES = 1 << 34, 2 * SLICE_BITS


def values_of(kinds: Sequence[str], registers: np.ndarray) -> list[float]:
    """The values of registers (rows), each by the function of its kind."""
    if len(kinds) < WORTH_MANY or "max" in kinds:
        return [VALUE_OF[kind](row) for kind, row in zip(kinds, registers, strict=True)]
    return sums_of(registers)


def sums_of(registers: np.ndarray) -> list[float]:
    """`sum_of` for many registers (rows) at once.

    With carries propagated, the four slices are two integers, high * 2^56 + low. The leading 60
    bits of that sum, with a sticky bit for all lower bits, round to a double as the whole sum does.
    """
    tops = np.maximum(registers[:, TOP], 1)
    slices = np.take_along_axis(registers, tops[:, None] - 1 + np.arange(SLICES), axis=1)
    for k in range(SLICES - 1):
        carry = slices[:, k] >> SLICE_BITS
        slices[:, k] -= carry << SLICE_BITS
        slices[:, k + 1] += carry
    fits = (slices[:, -1] >= 0) & (slices[:, -1] < LARGEST_HIGH) & (registers[:, NOT_FINITE] == 0)
    exponents = LOWEST + SLICE_BITS * (tops - SLICES)
    fits &= (exponents > -1000) & (exponents < 850)
    slices[~fits] = 0
    low, high = ((slices[:, k + 1] << SLICE_BITS) + slices[:, k] for k in (0, 2))
    shift = np.clip(60 - np.frexp(high.astype(float))[1].astype(np.int64), 0, TWO_SLICES)
    behind = TWO_SLICES - shift
    leading = (high << shift) + (low >> behind)
    leading |= (low & ((1 << behind) - 1)) != 0
    values: list[float] = np.ldexp(leading.astype(float), exponents + behind).tolist()
    for n in np.flatnonzero(~fits):
        values[n] = sum_of(registers[n])
    return values


def exact_sum(arrays: Sequence[np.ndarray], combine: Callable[[np.ndarray], np.ndarray]) -> float:
    """The sum of the arrays (float64) of all processes, whose registers `combine` adds up."""
    register = np.zeros(WIDTH, np.int64)
    for values in arrays:
        for part in np.array_split(values.ravel(), values.size // MOST_TERMS + 1):
            add_block(part, register)
    return sum_of(combine(register))


def to_message(registers: np.ndarray, rank: int, size: int) -> np.ndarray:
    """The message of a process: the sum of all processes' messages holds the registers of all
    terms; `registers`: one register, or rows of registers.

    Bins add up; the top slices and the largest values of all processes stand side by side.
    """
    tops = np.zeros((*registers.shape[:-1], size, 2), np.int64)
    tops[..., rank, :] = registers[..., [TOP, LARGEST]]
    return np.concatenate([registers, tops.reshape(*registers.shape[:-1], -1)], axis=-1)


def from_message(total: np.ndarray) -> np.ndarray:
    """The registers of all processes' terms, from the sum of their messages."""
    registers, tops = total[..., :WIDTH], total[..., WIDTH:]
    each = tops.reshape(*tops.shape[:-1], -1, 2)
    registers[..., [TOP, LARGEST]] = each.max(axis=-2)
    return registers


class Accumulator:
    """Holds the sum, or the largest magnitude, of a value over the region of a sweep.

    A device keeps the value in its memory; `value` waits for it. `series`: the array of the
    registers of all accumulators that were made together with this one, if any.
    """

    def __init__(self, kind: str, register: Any, backend: "Backend", series: Any = None):
        self.kind, self.register, self._backend = kind, register, backend
        self.series = series

    @property
    def value(self) -> float:
        register = self._backend.read_register(self.register)
        return VALUE_OF[self.kind](self._backend.combine(register))

    def take(self) -> float:
        """The value; then clear the accumulator."""
        value = self.value
        self.clear()
        return value

    def post(self) -> None:
        """Send the value to the host, in order with the sweeps, and clear the accumulator."""
        self._backend.post_register(self.register)

    def posted(self) -> Callable[[], float]:
        """A call for the value that was posted last; the call waits until the value has arrived.

        A device goes on with its queue meanwhile. Post the next value only after the call.
        """
        read = self._backend.posted_register(self.register)
        return lambda: VALUE_OF[self.kind](self._backend.combine(read()))

    def clear(self) -> None:
        """Empty the accumulator."""
        self._backend.clear_register(self.register)


def quotient(dividend: float, divisor: float) -> float:
    """dividend / divisor; 0 where the divisor is not positive, or the dividend is not finite."""
    return dividend / divisor if divisor > 0.0 and math.isfinite(dividend) else 0.0


class Scalars:
    """Numbered sums, and the quotients of two sums, which sweeps take as arguments.

    A device forms both in order with its sweeps, and the host need not read them. An iteration of
    conjugate gradients consists of such sums.
    """

    def __init__(self, backend: "Backend", count: int):
        self._backend, self._sums = backend, [0.0] * count

    def divide(
        self, total: Accumulator | None, number: int, above: int, below: int, out: Any
    ) -> None:
        """Keep `total` as sum `number` and clear it; out = quotient(sum `above`, sum `below`).

        `out` is an array of one element. With `total` None all sums stay as they are.
        """
        self._backend.enqueue(partial(self._divide, total, number, above, below, out))

    def _divide(
        self, total: Accumulator | None, number: int, above: int, below: int, out: Any
    ) -> None:
        if total is not None:
            self._sums[number] = total.take()
        value = quotient(self._sums[above], self._sums[below])
        self._backend.sweep(fill, out, whole(out.shape), value)

    @property
    def sums(self) -> list[float]:
        """The sums, in the order of their numbers (waits)."""
        return list(self._sums)

    @sums.setter
    def sums(self, values: list[float]) -> None:
        self._sums = list(values)
