"""Reductions of the cuda backend: `sums` by a block of threads, and the check of a gate."""

import math
from typing import Any

import numba.cuda
import numpy as np
from numba import int64

from heatsolve.backends.cuda_machine import simulated
from heatsolve.backends.device_launch import SPREAD, THREADS
from heatsolve.backends.sums import (
    ANCHORS,
    LARGEST,
    LOWEST,
    NOT_FINITE,
    SLICE_BITS,
    SLICES,
    TOP,
    WIDTH,
)

MAGNITUDE = 0x7FFFFFFFFFFFFFFF
INFINITE = 0x7FF0000000000000
EVERY_LANE = 0xFFFFFFFF

cuda: Any = numba.cuda
device_function: Any
largest_of: Any
add_up: Any
double_bits: Any
double_of: Any


if simulated():  # it has no shuffles
    device_function = cuda.jit(device=True)

    def double_bits(x):
        return int(np.float64(x).view(np.int64))

    def double_of(n):
        return float(np.int64(n).view(np.float64))

    @device_function
    def largest_of(bits, work):
        """The largest of integers, those of doubles, over a block: in every thread."""
        thread = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
        cuda.syncthreads()
        work[thread] = double_of(bits)
        cuda.syncthreads()
        return max(double_bits(value) for value in work[:THREADS])

    @device_function
    def add_up(a, b, c, d, work):
        """The sums of four values over a block: one in each of the first four threads."""
        thread = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
        cuda.syncthreads()
        for n, value in enumerate((a, b, c, d)):
            work[n * THREADS + thread] = value
        cuda.syncthreads()
        return sum(work[thread * THREADS : (thread + 1) * THREADS])

else:
    from numba.cuda import libdevice
    from numba.cuda.extending import register_jitable  # type: ignore[attr-defined]

    device_function = register_jitable
    double_bits = libdevice.double_as_longlong
    double_of = libdevice.longlong_as_double

    @device_function
    def largest_of(bits, work):
        """The largest of integers, those of doubles, over a block: in every thread."""
        thread = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
        step = 16
        while step > 0:
            bits = max(bits, cuda.shfl_xor_sync(EVERY_LANE, bits, step))
            step //= 2
        cuda.syncthreads()
        if thread % 32 == 0:
            work[thread // 32] = double_of(bits)
        cuda.syncthreads()
        for warp in range(THREADS // 32):
            bits = max(bits, double_bits(work[warp]))
        return bits

    @device_function
    def add_up(a, b, c, d, work):
        """The sums of four values over a block: one in each of the first four threads.

        Half of the lanes go on with two of them, a quarter with one: shuffles are few.
        """
        thread = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
        lane = thread % 32
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
        cuda.syncthreads()
        if lane % 8 == 0:
            work[4 * (thread // 32) + lane // 8] = a
        cuda.syncthreads()
        total = 0.0
        if thread < 4:
            for warp in range(THREADS // 32):
                total += work[4 * warp + thread]
        return total


@device_function
def add_largest(terms, work, register, first):
    """Take the largest magnitude of a block's terms into a register."""
    mine = int64(0)
    for n in range(len(terms)):
        mine = max(mine, double_bits(terms[n]) & MAGNITUDE)
    largest = largest_of(mine, work)
    if largest < INFINITE:
        if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0:
            cuda.atomic.max(register, first + LARGEST, largest)
    elif mine >= INFINITE:
        cuda.atomic.add(register, first + NOT_FINITE, int64(1))


@device_function
def add_sum(terms, work, register, first):
    """Add a block's terms to a register: `sums.add_block` by a block of threads.

    The slices are added as doubles: they stay exact below 2^53 units.
    """
    mine = int64(0)
    for n in range(len(terms)):
        mine = max(mine, double_bits(terms[n]) & MAGNITUDE)
    largest = largest_of(mine, work)
    if largest >= INFINITE:
        if mine >= INFINITE:
            cuda.atomic.add(register, first + NOT_FINITE, int64(1))
        return
    top = max(int64(0), ((largest >> int64(52)) - 1022 - LOWEST) // SLICE_BITS)
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
    units = add_up(a, b, c, d, work)
    thread = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    if thread < SLICES:
        for _ in range(thread):
            units *= 2.0**SLICE_BITS
        cuda.atomic.add(register, first + top + SLICES - 1 - thread, int64(units))
    if thread == 0:
        cuda.atomic.max(register, first + TOP, top + 1)


def check(register, is_sum, limit, gate, rows):
    """Merge a register into a row of the ledger, clear it, and close the gate; one block."""
    if gate[0] != 0:
        return
    row = gate[1] * WIDTH
    place = cuda.threadIdx.x
    if place < WIDTH:
        merged = int64(0)
        for copy in range(SPREAD):
            following = register[copy * WIDTH + place]
            if place in (TOP, LARGEST):
                merged = max(merged, following)
            else:
                merged += following
        # Stores between the loads would make each of them wait.
        for copy in range(SPREAD):
            register[copy * WIDTH + place] = 0
        rows[row + place] = merged
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
