"""White noise for right sides: every frequency at once, the same numbers everywhere.

A smooth right side would flatter a solver: its residual is at rounding level long before 1e-10.
"""

from collections.abc import Sequence

import numpy as np


def noise(count: int) -> np.ndarray:
    """White noise in (-0.5, 0.5) by hashing the number of the point.

    The hash is splitmix64 (G. Steele, D. Lea and C. Flood, OOPSLA 2014, figure 17).
    """
    bits = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return (bits ^ (bits >> np.uint64(31))) / 2.0**64 - 0.5


def noise_inside(shape: Sequence[int]) -> np.ndarray:
    """An array of noise within a ring of zeros."""
    field = np.zeros(shape)
    inside = field[(slice(1, -1),) * len(shape)]
    inside[...] = noise(inside.size).reshape(inside.shape)
    return field
