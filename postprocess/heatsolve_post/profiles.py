"""Profiles of a field beside those that its case names: measured, or of the literature."""

import itertools
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from heatsolve.case.schema import Profile
from heatsolve.io.output import Solution, cuts
from heatsolve_post.pieces import label_of, name_axes, set_title


def profile_of(solution: Solution, wanted: Profile) -> tuple[np.ndarray, np.ndarray]:
    """Positions and values of a field along a line, at the end of a march.

    Across the line it is interpolated linearly between the points around.
    """
    lines = solution.coordinates
    through = dict(zip("xyz", wanted.through, strict=False))
    across = [axis for axis in lines if axis != wanted.along]
    frame = len(solution.time) - 1 if solution.time is not None else 0
    line = lines[wanted.along]
    values = np.zeros(len(line))
    for corner in itertools.product(*[_around(lines[axis], through[axis]) for axis in across]):
        at = {axis: number for axis, (number, _) in zip(across, corner, strict=True)}
        weight = float(np.prod([share for _, share in corner]))
        (found,) = cuts(solution, wanted.field, [frame], at, len(line))
        values += weight * found
    return line, values


def _around(line: np.ndarray, place: float) -> Sequence[tuple[int, float]]:
    """The numbers of the two points around a place, and their weights."""
    above = int(np.clip(np.searchsorted(line, place), 1, max(1, len(line) - 1)))
    if len(line) == 1:
        return [(0, 1.0)]
    share = float(np.clip((place - line[above - 1]) / (line[above] - line[above - 1]), 0.0, 1.0))
    return [(n, w) for n, w in ((above - 1, 1.0 - share), (above, share)) if w > 0.0]


def profile_figure(solution: Solution, wanted: Profile) -> tuple[Figure, float]:
    """Both profiles in one Figure, and their largest difference at the positions given."""
    line, values = profile_of(solution, wanted)
    positions, given = np.array(wanted.positions), np.array(wanted.values)
    inside = (positions >= line[0]) & (positions <= line[-1])
    difference = np.abs(np.interp(positions, line, values) - given)[inside]
    drawing = Figure(figsize=(4.2, 3.0))
    ax = drawing.add_subplot()
    ax.plot(line, values, label="this run")
    ax.plot(positions, given, "o", markersize=3.5, markerfacecolor="none", color="0.2",
            label=wanted.source or "reference")  # fmt: skip
    name_axes(ax, label_of(solution, wanted.along), label_of(solution, wanted.field))
    ax.grid(color="0.88", linewidth=0.5)
    ax.margins(x=0.01)
    drawing.legend(loc="outside lower center", fontsize=8)
    place = ", ".join(f"{axis} = {x:g}" for axis, x in zip("xyz", wanted.through, strict=False)
                      if axis != wanted.along)  # fmt: skip
    set_title(drawing, place, ax)
    return drawing, float(difference.max(initial=0.0))
