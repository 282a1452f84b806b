"""Reductions of the cuda backend: `sums` by a warp, and the check of a gate."""

import math
from typing import Any

import numba.cuda
import numpy as np
from numba import int32, int64

from heatsolve.backends.exact_sums import (
    ANCHORS,
    LARGEST,
    LOWEST,
    NOT_FINITE,
    SLICE_BITS,
    SLICES,
    TOP,
    WIDTH,
)
from heatsolve.backends.gpu.numba_device import simulated

MAGNITUDE = 0x7FFFFFFFFFFFFFFF
INFINITE = 0x7FF0000000000000
EVERY_LANE = 0xFFFFFFFF

cuda: Any = numba.cuda
device_function: Any
largest_of: Any
add_up: Any
lane_number: Any
double_bits: Any
double_of: Any
upper_half: Any


if simulated():  # it has no shuffles: a thread does the work of a warp
    device_function = cuda.jit(device=True)

    def double_bits(x):
        return int(np.float64(x).view(np.int64))

    def double_of(n):
        return float(np.int64(n).view(np.float64))

    def upper_half(x):
        return double_bits(x) >> 32

    @device_function
    def lane_number():
        """The number of a thread in its warp."""
        return 0

    @device_function
    def largest_of(value):
        """The largest of integers over a warp, in every lane."""
        return value

    @device_function
    def add_up(a, b, c, d, register, place):
        """Add sums of slices over a warp, the top slice first, to the bins from `place` down."""
        for slice, value in enumerate((a, b, c, d)):
            units = int64(value * 2.0 ** (SLICE_BITS * slice))
            cuda.atomic.add(register, place - slice, units)

else:
    from numba.cuda import libdevice
    from numba.cuda.extending import register_jitable  # type: ignore[attr-defined]

    device_function = register_jitable
    double_bits = libdevice.double_as_longlong
    double_of = libdevice.longlong_as_double
    upper_half = libdevice.double2hiint

    @device_function
    def lane_number():
        """The number of a thread in its warp."""
        return (cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x) % 32

    @device_function
    def largest_of(value):
        """The largest of integers over a warp, in every lane."""
        step = 16
        while step > 0:
            value = max(value, cuda.shfl_xor_sync(EVERY_LANE, value, step))
            step //= 2
        return value

    @device_function
    def add_up(a, b, c, d, register, place):
        """Add sums of slices over a warp, the top slice first, to the bins from `place` down.

        Half of the lanes go on with two of them, a quarter with one: shuffles are few.
        """
        lane = lane_number()
        if lane & 16:
            a, b, c, d = c, d, a, b
        a += cuda.shfl_xor_sync(EVERY_LANE, c, 16)
        b += cuda.shfl_xor_sync(EVERY_LANE, d, 16)
        if lane & 8:
            a, b = b, a
        a += cuda.shfl_xor_sync(EVERY_LANE, b, 8)
        step = 4
        while step > 0:
            a += cuda.shfl_xor_sync(EVERY_LANE, a, step)
            step //= 2
        if lane % 8 == 0:
            slice = lane // 8
            for _ in range(slice):
                a *= 2.0**SLICE_BITS
            cuda.atomic.add(register, place - slice, int64(a))


@device_function
def add_largest(terms, register, first):
    """Take the largest magnitude of a warp's terms into a register."""
    mine = int64(0)
    for n in range(len(terms)):
        mine = max(mine, double_bits(terms[n]) & MAGNITUDE)
    largest = largest_of(mine)
    if largest < INFINITE:
        if lane_number() == 0:
            cuda.atomic.max(register, first + LARGEST, largest)
    elif mine >= INFINITE:
        cuda.atomic.add(register, first + NOT_FINITE, int64(1))


@device_function
def add_sum(terms, register, first):
    """Add a warp's terms to a register: `sums.add_block` by a warp.

    The slices are added as doubles: they stay exact below 2^53 units.
    """
    mine = int32(0)  # the upper half of a double holds its exponent
    for n in range(len(terms)):
        mine = max(mine, int32(upper_half(terms[n]) & (MAGNITUDE >> 32)))
    largest = largest_of(mine)
    if largest >= INFINITE >> 32:
        if mine >= INFINITE >> 32:
            cuda.atomic.add(register, first + NOT_FINITE, int64(1))
        return
    top = max(int64(0), (int64(largest >> 20) - 1022 - LOWEST) // SLICE_BITS)
    scale = double_of((1023 - (SLICE_BITS * top + LOWEST)) << int64(52))
    a = 0.0
    b = 0.0
    c = 0.0
    d = 0.0
    for n in range(len(terms)):
        rest = terms[n] * scale
        rounded = (rest + ANCHORS[0]) - ANCHORS[0]
        a += rounded
        rest -= rounded
        rounded = (rest + ANCHORS[1]) - ANCHORS[1]
        b += rounded
        rest -= rounded
        rounded = (rest + ANCHORS[2]) - ANCHORS[2]
        c += rounded
        rest -= rounded
        d += (rest + ANCHORS[3]) - ANCHORS[3]
    add_up(a, b, c, d, register, first + top + SLICES - 1)
    if lane_number() == 0:
        cuda.atomic.max(register, first + TOP, top + 1)


@device_function
def merged(register, copies, place):
    """What the copies of a register together hold at a place; it is taken out of them."""
    total = int64(0)
    for copy in range(copies):
        following = register[copy * WIDTH + place]
        if place in (TOP, LARGEST):
            total = max(total, following)
        else:
            total += following
    # Stores between the loads would make each of them wait.
    for copy in range(copies):
        register[copy * WIDTH + place] = 0
    return total


def merge(register, copies, gate, row):
    """Merge a register into a row, and clear it; one block."""
    if gate[0] != 0:
        return
    place = cuda.threadIdx.x
    if place < WIDTH:
        row[place] = merged(register, copies, place)


def check(register, copies, is_sum, limit, gate, rows):
    """Merge a register into a row of the ledger, clear it, and close the gate; one block."""
    if gate[0] != 0:
        return
    row = gate[1] * WIDTH
    place = cuda.threadIdx.x
    if place < WIDTH:
        rows[row + place] = merged(register, copies, place)
    cuda.syncthreads()
    if place != 0:
        return
    top = rows[row + TOP]
    value = 0.0
    if is_sum == 0:
        value = double_of(rows[row + LARGEST])
    elif top > 0:
        for k in range(SLICES):
            units = float(rows[row + top - 1 + SLICES - 1 - k])
            value += math.ldexp(units, int(LOWEST + SLICE_BITS * (top - 1 - k)))
    gate[1] += 1
    if rows[row + NOT_FINITE] != 0 or value <= limit:
        gate[0] = 1
