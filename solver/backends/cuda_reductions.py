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

cuda: Any = numba.cuda
device_function: Any
fold: Any
double_bits: Any
double_of: Any


if simulated():
    device_function = cuda.jit(device=True)

    def double_bits(x):
        return int(np.float64(x).view(np.int64))

    def double_of(n):
        return float(np.int64(n).view(np.float64))

    @device_function
    def fold(values, work, take_max):
        """Fold up to four values of every thread of a block, each to its sum or largest.

        The fold of value number n ends in work[n * THREADS].
        """
        thread = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
        cuda.syncthreads()
        for n in range(len(values)):
            work[n * THREADS + thread] = values[n]
        cuda.syncthreads()
        if thread < len(values):
            column = work[thread * THREADS : (thread + 1) * THREADS]
            work[thread * THREADS] = max(column) if take_max else sum(column)
        cuda.syncthreads()

else:
    from numba.cuda import libdevice
    from numba.cuda.extending import register_jitable  # type: ignore[attr-defined]

    device_function = register_jitable
    double_bits = libdevice.double_as_longlong
    double_of = libdevice.longlong_as_double

    @device_function
    def fold(values, work, take_max):
        """Fold up to four values of every thread of a block, each to its sum or largest.

        The fold of value number n ends in work[n * THREADS]. The simulator has no shuffles.
        """
        thread = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
        cuda.syncthreads()
        for n in range(len(values)):
            folded = values[n]
            step = 16
            while step > 0:
                other = cuda.shfl_xor_sync(0xFFFFFFFF, folded, step)
                folded = max(folded, other) if take_max else folded + other
                step //= 2
            if thread % 32 == 0:
                work[n * THREADS + thread // 32] = folded
        cuda.syncthreads()
        if thread < len(values):
            folded = work[thread * THREADS]
            for warp in range(1, THREADS // 32):
                other = work[thread * THREADS + warp]
                folded = max(folded, other) if take_max else folded + other
            work[thread * THREADS] = folded
        cuda.syncthreads()


@device_function
def add_largest(terms, work, register, first):
    """Take the largest magnitude of a block's terms into a register."""
    mine = int64(0)
    for n in range(len(terms)):
        mine = max(mine, double_bits(terms[n]) & MAGNITUDE)
    # As a double again: `fold` has one type to deal with.
    fold((double_of(min(mine, INFINITE)),), work, True)
    if work[0] < math.inf:
        if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0:
            cuda.atomic.max(register, first + LARGEST, double_bits(work[0]))
    elif mine >= INFINITE:
        cuda.atomic.add(register, first + NOT_FINITE, int64(1))
    cuda.syncthreads()


@device_function
def add_sum(terms, work, register, first):
    """Add a block's terms to a register: `sums.add_block` by a block of threads.

    The slices are added as doubles: they stay exact below 2^53 units.
    """
    mine = int64(0)
    for n in range(len(terms)):
        mine = max(mine, double_bits(terms[n]) & MAGNITUDE)
    fold((double_of(min(mine, INFINITE)),), work, True)
    largest = double_bits(work[0])
    if largest >= INFINITE:
        if mine >= INFINITE:
            cuda.atomic.add(register, first + NOT_FINITE, int64(1))
        return
    top = max(int64(0), ((largest >> int64(52)) - 1022 - LOWEST) // SLICE_BITS)
    scale = math.ldexp(1.0, int(-(SLICE_BITS * top + LOWEST)))
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
    fold((a, b, c, d), work, False)
    thread = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    if thread < SLICES:
        units = work[thread * THREADS]
        for _ in range(thread):
            units *= 2.0**SLICE_BITS
        cuda.atomic.add(register, first + top + SLICES - 1 - thread, int64(units))
    if thread == 0:
        cuda.atomic.max(register, first + TOP, top + 1)
    cuda.syncthreads()


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
