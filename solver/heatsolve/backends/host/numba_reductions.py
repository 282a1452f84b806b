"""Reductions of the numba backend: `sums` as loops over the terms of one segment.

Their machine code is kept by the digest of this file; the modules that call them carry it, too.
"""

import inspect
import math
import sys

from numba import float64, int64

from heatsolve.backends import cache
from heatsolve.backends import exact_sums as sums
from heatsolve.backends.exact_sums import (
    ANCHORS,
    LARGEST,
    LOWEST,
    NOT_FINITE,
    SLICE_BITS,
    SLICES,
    TOP,
    UNITS,
)
from heatsolve.backends.host.numba_cache import kept

DIGEST = cache.digest(inspect.getsource(sys.modules[__name__]), inspect.getsource(sums))
"""Of the reductions: a function into which one was inlined changes with it."""
MAGNITUDE = 0x7FFFFFFFFFFFFFFF
INFINITE = 0x7FF0000000000000
PER_UNIT = tuple(1.0 / unit for unit in UNITS)


@kept(DIGEST, (int64[::1], int64, int64[::1]))
def add_largest(bits, count, register):
    """Take the largest magnitude of `count` terms, given as bits, into a register.

    Doubles without their sign order like integers, Inf and NaN last; integers vectorise.
    """
    largest = int64(0)
    for n in range(count):
        largest = max(largest, bits[n] & MAGNITUDE)
    if largest >= INFINITE:
        for n in range(count):
            register[NOT_FINITE] += int64(1) if bits[n] & MAGNITUDE >= INFINITE else int64(0)
        return int64(0)
    register[LARGEST] = max(register[LARGEST], largest)
    return largest


@kept(DIGEST, (float64[::1], int64[::1], int64, int64[::1]))
def add_sum(terms, bits, count, register):
    """Add `count` terms to a register: `sums.add_block` as loops that vectorise."""
    largest = add_largest(bits, count, register)
    if largest == 0:
        return
    top = max(int64(0), ((largest >> 52) - 1022 - LOWEST) // SLICE_BITS)
    scale = math.ldexp(1.0, -(SLICE_BITS * top + LOWEST))
    for n in range(count):
        terms[n] *= scale
    for k in range(SLICES):
        anchor = ANCHORS[k]
        units = int64(0)
        for n in range(count):
            rounded = (terms[n] + anchor) - anchor
            units += int64(rounded * PER_UNIT[k])
            terms[n] -= rounded
        register[top + SLICES - 1 - k] += units
    register[TOP] = max(register[TOP], top + 1)
