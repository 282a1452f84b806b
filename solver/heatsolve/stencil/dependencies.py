"""The memory that sweeps read and write, and whether one sweep depends on another.

An array is identified by its address, because views of the same memory are different objects.
"""

import math
from functools import lru_cache
from typing import NamedTuple

from heatsolve.stencil.grid import Region


class Place(NamedTuple):
    """An array: its first byte, the byte after its last, the bytes of an element, its shape."""

    first: int
    end: int
    item: int
    shape: tuple[int, ...]

    def meets(self, other: "Place") -> bool:
        """Whether they have memory in common."""
        return self.first < other.end and other.first < self.end


def place_at(first: int, item: int, shape: tuple[int, ...]) -> Place:
    """The array that begins at byte `first`."""
    return Place(first, first + item * math.prod(shape), item, shape)


Part = tuple[Place, Region]
"""The elements of a region of an array."""


@lru_cache(1 << 14)
def have_common(one: Part, other: Part) -> bool:
    """Whether two parts have an element in common, also where their arrays are views of one memory.

    Where rows have unequal lengths, the answer is yes if the views share memory: no caller needs a
    sharper answer.
    """
    place, ((low, high), *_) = one
    place_of_other, ((first, last), *_) = other
    if place == place_of_other:
        return all(a < d and c < b for (a, b), (c, d) in zip(one[1], other[1], strict=True))
    if not place.meets(place_of_other):
        return False
    item, across = place.item, math.prod(place.shape[1:])
    if (item, across) != (place_of_other.item, math.prod(place_of_other.shape[1:])):
        return True
    distance, between = divmod(place_of_other.first - place.first, item)
    down, right = divmod(distance, across)
    mine, others = columns_of(one), columns_of(other)
    if between or mine is None or others is None:
        return True
    # Columns beyond the end of a row lie in the next row.
    for rows, shift in ((down, right), (down + 1, right - across)):
        moved = range(others.start + shift, others.stop + shift, others.step)
        if low < last + rows and first + rows < high and meet(mine, moved):
            return True
    return False


def columns_of(part: Part) -> range | None:
    """The columns, or places within a row of an array, of a region; None if they are no range."""
    columns, (place, region) = range(1), part
    for (low, high), extent in zip(region[1:], place.shape[1:], strict=True):
        if len(columns) == 1:
            start = columns.start * extent
            columns = range(start + low, start + high)
        elif columns.step == 1 and (low, high) == (0, extent):
            columns = range(columns.start * extent, columns.stop * extent)
        elif columns.step == 1 and high - low == 1:
            columns = range(columns.start * extent + low, columns.stop * extent, extent)
        else:
            return None
    return columns


def meet(one: range, other: range) -> bool:
    """Whether two ranges have a number in common; their steps are equal, or one is 1."""
    if one.step > 1 and other.step > 1:
        if (one.start - other.start) % math.gcd(one.step, other.step):
            return False
        return max(one.start, other.start) < min(one.stop, other.stop)
    whole, some = (one, other) if one.step == 1 else (other, one)
    ahead = max(0, -(-(whole.start - some.start) // some.step))  # to the first number not before it
    return some.start + ahead * some.step < min(some.stop, whole.stop)


class Dependencies(NamedTuple):
    """The parts of arrays that sweeps write, and the other parts that they read."""

    written: list[Part]
    read: list[Part]

    def depends_on(self, other: "Dependencies") -> bool:
        """Whether either of the two writes a part that the other reads or writes."""
        return (
            any(have_common(part, new) for new in other.read for part in self.written)
            or any(have_common(part, new) for part in self.read for new in other.written)
            or any(have_common(part, new) for new in other.written for part in self.written)
        )

    def and_of(self, other: "Dependencies") -> "Dependencies":
        """The dependencies of both together."""
        return Dependencies(self.written + other.written, self.read + other.read)
