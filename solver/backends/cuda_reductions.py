"""Reductions of the cuda backend: `sums` by a block of threads, and the check of a gate."""

import math
from typing import Any

import numba.cuda
import numpy as np
from numba import int64

from heatsolve.backends.cuda import simulated
from heatsolve.backends.device import SPREAD, THREADS
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
double_bits: Any
double_of: Any


if simulated():
    device_function = cuda.jit(device=True)

    def double_bits(x):
        return int(np.float64(x).view(np.int64))

    def double_of(n):
        return float(np.int64(n).view(np.float64))

else:
    from numba.cuda import libdevice
    from numba.cuda.extending import register_jitable  # type: ignore[attr-defined]

    device_function = register_jitable
    double_bits = libdevice.double_as_longlong
    double_of = libdevice.longlong_as_double


@device_function
def fold(values, work, take_max):
    """Fold up to four values of every thread of a block, each to its sum or largest, into `work`.

    The fold of value number n ends in work[n * THREADS]. Eight shared numbers fold into one at
    each level, which costs a third of the barriers of a binary tree.
    """
    thread = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    cuda.syncthreads()
    for n in range(len(values)):
        work[n * THREADS + thread] = values[n]
    cuda.syncthreads()
    width = THREADS
    while width > 1:
        part = min(8, width)
        width //= part
        if thread < len(values) * width:
            place = thread // width * THREADS + thread % width
            folded = work[place]
            for m in range(1, part):
                other = work[place + m * width]
                folded = max(folded, other) if take_max else folded + other
            work[place] = folded
        cuda.syncthreads()


@device_function
def add_largest(terms, work, register, first):
    """Take the largest magnitude of a block's terms into a register; 0 if none is usable."""
    mine = int64(0)
    for n in range(len(terms)):
        mine = max(mine, double_bits(terms[n]) & MAGNITUDE)
    fold((mine,), work, True)
    largest = work[0]
    if largest >= INFINITE:
        if mine >= INFINITE:
            cuda.atomic.add(register, first + NOT_FINITE, int64(1))
        return int64(0)
    if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0:
        cuda.atomic.max(register, first + LARGEST, largest)
    return largest


@device_function
def add_sum(terms, work, register, first):
    """Add a block's terms to a register: `sums.add_block` by a block of threads."""
    largest = add_largest(terms, work, register, first)
    if largest == 0:
        return
    top = max(int64(0), ((largest >> int64(52)) - 1022 - LOWEST - 1) // SLICE_BITS)
    scale = math.ldexp(1.0, int(-(SLICE_BITS * top + LOWEST)))
    a = int64(0)
    b = int64(0)
    c = int64(0)
    d = int64(0)
    for n in range(len(terms)):
        rest = terms[n] * scale
        raised = rest + ANCHORS[0]
        a += double_bits(raised) - double_bits(ANCHORS[0])
        rest -= raised - ANCHORS[0]
        raised = rest + ANCHORS[1]
        b += double_bits(raised) - double_bits(ANCHORS[1])
        rest -= raised - ANCHORS[1]
        raised = rest + ANCHORS[2]
        c += double_bits(raised) - double_bits(ANCHORS[2])
        rest -= raised - ANCHORS[2]
        d += double_bits(rest + ANCHORS[3]) - double_bits(ANCHORS[3])
    fold((a, b, c, d), work, False)
    thread = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    if thread < SLICES:
        cuda.atomic.add(register, first + top + SLICES - 1 - thread, work[thread * THREADS])
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
