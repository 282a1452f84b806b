"""Curves of a run: how its norm fell, what was watched, and profiles beside measured ones."""

import itertools
from collections.abc import Sequence

import numpy as np

from heatsolve.case.sections import Profile
from heatsolve.errors import InputError
from heatsolve.io.layout import LINE_TIME, row_axis
from heatsolve.io.reader import Solution, cuts
from heatsolve_post.style import Figure, name_axes, set_title
from heatsolve_post.view import label_of

OF_THE_MARCH = ("iteration", "step", "time", "dt", "residual", "divergence", "courant", LINE_TIME)
"""Columns that tell how a march went, not what it found."""
AXES = ("time", "step", "iteration")
"""Columns over which others are drawn, the first of them that there is."""
SIDE_BY_SIDE = 2


def norm_figure(solution: Solution) -> Figure:
    """The norm against iteration (or step), logarithmic, with that which was to be reached."""
    axis = "step" if "step" in solution.history else "iteration"
    unit = axis if solution.time is None else "step"
    if "residual" not in solution.history:
        raise InputError(f"{solution.path} has no residual history")
    scale, relative = solution.relative
    norms = solution.history["residual"].astype(float) / scale
    norms[~(norms > 0)] = np.nan  # an exact zero has no logarithm
    drawing = Figure(figsize=(4.2, 3.0))
    ax = drawing.add_subplot(yscale="log")
    name_axes(ax, unit, "\n".join(filter(None, (solution.norm, relative.strip()))))
    few = "." if norms.size < 40 else None
    ax.plot(solution.history[axis], norms, marker=few)
    threshold = solution.attributes.get("threshold")
    if threshold is not None:
        ax.axhline(
            float(threshold) / scale, color="0.3", dashes=(4, 3), linewidth=0.8, label="tolerance"
        )
        ax.legend(loc="upper right")
    ax.grid(color="0.88", linewidth=0.5)
    ax.margins(x=0.01)
    set_title(drawing, solution.title, ax)
    return drawing


def column_figure(solution: Solution, name: str) -> Figure:
    """One column of the history over time, or over iterations where there is no time.

    Raises InputError for a column that is not there, or that holds more than a number for each.
    """
    curves = {k: v for k, v in solution.history.items() if v.ndim == 1 and k not in AXES}
    if name not in curves:
        given = ", ".join(curves) or "nothing"
        raise InputError(f"{solution.path} has no history of {name!r}, only of {given}")
    axis = next((axis for axis in AXES if axis in solution.history), "")
    unit = solution.units.get("time", "1") if axis == "time" else "1"
    drawing = Figure(figsize=(4.2, 3.0))
    ax = drawing.add_subplot()
    name_axes(ax, axis + (f" ({unit})" if unit != "1" else ""), name.replace("_", " "))
    ax.plot(solution.history[axis], curves[name])
    ax.grid(color="0.88", linewidth=0.5)
    ax.margins(x=0.0)
    set_title(drawing, solution.title, ax)
    return drawing


def watched(solution: Solution) -> list[str]:
    """The columns of forces, energies, probes and the like, which have values along a march."""
    if "time" not in solution.history:
        return []
    found = {k: v for k, v in solution.history.items() if k not in OF_THE_MARCH}
    return [k for k, v in found.items() if v.dtype.kind == "f" and np.isfinite(v).sum() > 1]


def watched_figure(solution: Solution) -> Figure:
    """A panel for each of them, over time."""
    names = watched(solution)
    columns = min(SIDE_BY_SIDE, len(names))
    rows = -(-len(names) // columns)
    drawing = Figure(figsize=(3.6 * columns, 0.5 + 1.3 * rows))
    panels = drawing.subplots(rows, columns, sharex=True, squeeze=False).ravel()
    for ax, name in zip(panels, names, strict=False):
        time = solution.history[row_axis(name, "time", solution.history)]
        ax.plot(time, solution.history[name], linewidth=1.0)
        ax.set_title(name.replace("_", " "), loc="left", fontsize=9, parse_math=False)
        ax.grid(color="0.88", linewidth=0.5)
        ax.margins(x=0.0)
    for ax in panels[len(names) :]:
        ax.remove()
    for ax in panels[max(0, len(names) - columns) : len(names)]:
        ax.set_xlabel("time")
        ax.tick_params(axis="x", labelbottom=True)
    return drawing


# ---- profiles --------------------------------------------------------------------------------


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
