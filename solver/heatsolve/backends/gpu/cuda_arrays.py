"""Arrays of the cuda backend, as its kernels and as CuPy take them."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heatsolve.backends.library import CupyLibrary


@dataclass(frozen=True)
class DeviceArray:
    """An array on the device: all or a part of an allocation, which is flat.

    A kernel takes its pointer only.
    """

    shape: tuple[int, ...]
    allocation: Any
    pointer: int
    first: int = 0
    """The element of the allocation with which the array begins."""

    @property
    def dtype(self) -> np.dtype:
        return self.allocation.dtype

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def memory(self) -> Any:
        """Numba's array of its own: a slice, which takes the host some 20 us."""
        return self.allocation[self.first : self.first + self.size]

    def reshape(self, shape: tuple[int, ...]) -> "DeviceArray":
        """The same memory, seen as an array of another shape."""
        return replace(self, shape=shape)

    def part(self, shape: tuple[int, ...], first: int) -> "DeviceArray":
        """So much of the memory, from an element on."""
        if first + math.prod(shape) > self.size:
            raise ValueError(f"{shape} elements from {first} on are not in {self.size}")
        pointer = self.pointer + first * self.dtype.itemsize
        return DeviceArray(shape, self.allocation, pointer, self.first + first)


@dataclass(frozen=True)
class AsArray:
    """A device array to be passed as Numba's array structure instead of a pointer."""

    array: DeviceArray


class Borrowing(CupyLibrary):
    """CuPy on memory of Numba's, in the stream of the sweeps."""

    def __init__(self, cupy: Any, fft: Any, stream: int):
        super().__init__(cupy, fft)
        self._stream = cupy.cuda.ExternalStream(stream)

    @contextmanager
    def queue(self) -> Iterator[None]:
        with self._stream:
            yield

    def view(self, array: DeviceArray) -> Any:
        # CuPy copies an array before a transform if it is a view of another: this one is not.
        cupy = self.namespace
        owned = cupy.cuda.UnownedMemory(array.pointer, array.nbytes, array)
        pointer = cupy.cuda.MemoryPointer(owned, 0)
        return cupy.ndarray(array.shape, array.dtype, memptr=pointer)

    def lend(self, array: Any) -> DeviceArray:
        return DeviceArray(array.shape, array, array.data.ptr)


def flat(arguments: tuple) -> Iterator[Any]:
    """What a launch takes of the arguments: pointers, numbers, and Numba's array structures."""
    for argument in arguments:
        if isinstance(argument, DeviceArray):
            yield argument.pointer
        elif isinstance(argument, AsArray):
            array = argument.array
            count = array.size
            # Numba's array structure: owner, parent, items, item size, data, shape, strides.
            yield from (0, 0, count, 8, array.pointer, count, 8)
        else:
            yield argument
