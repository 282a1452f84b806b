"""The domain behind a file of results: where its walls are, and the obstacles in it."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from heatsolve.case.load import Case, parse
from heatsolve.errors import HeatsolveError
from heatsolve.io.output import Solution

FINE, PARTS = 600, 3
"""Along the longer side of a plane: squares for which it is said how much of them is solid, and
points along each side of a square at which that is asked."""

MOST = 10**8
"""Points times obstacles that are looked at: with many obstacles the squares are larger."""

Place = tuple[tuple[str, float], ...]
"""Where a plane or a line lies: axes across which it is cut, with the positions."""


@dataclass(frozen=True, eq=False)
class Domain:
    """The ends of each axis, those axes that are periodic, and the obstacles.

    Fields on cells end half a cell before the walls, and periodic ones before they repeat.
    """

    ends: Mapping[str, tuple[float, float]]
    periodic: frozenset[str]
    obstacles: tuple[Any, ...]


@lru_cache(maxsize=8)
def solid(
    domain: Domain, axes: tuple[str, ...], at: Place
) -> tuple[list[np.ndarray], np.ndarray] | None:
    """How much of a line or a plane is solid, square by square: positions by axis, and shares.

    `axes` slowest first. The outermost positions are on the walls. None without obstacles.
    """
    if not domain.obstacles:
        return None
    squares = min(FINE, round((MOST / len(domain.obstacles)) ** 0.5 / PARTS))
    spans = [high - low for low, high in (domain.ends[axis] for axis in axes)]
    counts = [max(FINE // 10, round(squares * span / max(spans))) for span in spans]
    points: dict[str, np.ndarray] = {axis: np.array(position) for axis, position in at}
    lines = []
    for number, (axis, count) in enumerate(zip(axes, counts, strict=True)):
        low, high = domain.ends[axis]
        width = (high - low) / (count * PARTS)
        fine = low + width * (np.arange(count * PARTS) + 0.5)
        points[axis] = fine.reshape([-1 if n == number else 1 for n in range(len(axes))])
        middles = fine.reshape(count, PARTS).mean(axis=1)
        lines.append(np.concatenate([[low], middles, [high]]))
    inside = within(domain.obstacles, points)
    whole = np.broadcast_to(inside, [count * PARTS for count in counts])
    parts = whole.reshape([n for count in counts for n in (count, PARTS)])
    share = parts.mean(axis=tuple(range(1, 2 * len(axes), 2)))
    return lines, np.pad(share, 1, mode="edge")


def hidden(domain: Domain, field: str, positions: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Whether points lie in obstacles where a field says nothing; None without such obstacles.

    A pressure says nothing there, nor does a quantity of which an obstacle has no value: it keeps
    what it was at the start. `positions` along the axes, in the shape of the points.
    """
    if field.startswith("velocity_"):
        return None
    mute = [each for each in domain.obstacles if getattr(each, field, None) is None]
    return within(mute, positions) if mute else None


def within(obstacles: Sequence[Any], positions: Mapping[str, np.ndarray]) -> np.ndarray:
    """Whether points lie in any of some obstacles."""
    ordered = dict(sorted(positions.items()))
    return reduce(np.logical_or, [obstacle.contains(ordered) for obstacle in obstacles])


def continued(values: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Values outside obstacles, with the mean of the neighbours at points just inside, NaN deeper.

    So the contours beside a surface do not bend towards what is behind it.
    """
    outside = np.pad(np.where(inside, np.nan, values), 1, constant_values=np.nan)
    total, count = np.zeros(values.shape), np.zeros(values.shape)
    for start in itertools.product(range(3), repeat=values.ndim):
        near = outside[tuple(slice(n, n + k) for n, k in zip(start, values.shape, strict=True))]
        total += np.nan_to_num(near, nan=0.0)
        count += ~np.isnan(near)
    mean = np.divide(total, count, out=np.full(values.shape, np.nan), where=count > 0)
    return np.where(inside, mean, values)


def domain_of(solution: Solution) -> Domain:
    """That of the case in a file; of a file without one the points alone, between their ends."""
    case = _of_text(str(solution.attributes.get("case", "")))
    lines = solution.coordinates
    if case is not None and _is_grid_of(case, lines):
        return case[1]
    return Domain({axis: (line[0], line[-1]) for axis, line in lines.items()}, frozenset(), ())


@lru_cache(maxsize=8)
def _of_text(text: str) -> tuple[Case, Domain] | None:
    try:
        case = parse(text, "case")
    except HeatsolveError:  # a model that is not registered here, or no case at all
        return None
    grid = case.grid
    ends = zip(grid.lower, grid.upper, strict=True)
    return case, Domain(
        dict(zip(grid.axes, ends, strict=True)), frozenset(grid.periodic), case.obstacles
    )


def _is_grid_of(case: tuple[Case, Domain], lines: Mapping[str, np.ndarray]) -> bool:
    """Whether points lie on the grid of a case: a stranger's file may hold any."""
    (read, domain), counts = case, {axis: len(line) for axis, line in lines.items()}
    return counts == dict(zip(read.grid.axes, read.grid.counts, strict=True)) and all(
        low - 1e-6 * (high - low) <= line[0] and line[-1] <= high + 1e-6 * (high - low)
        for line, (low, high) in ((lines[axis], domain.ends[axis]) for axis in lines)
    )
