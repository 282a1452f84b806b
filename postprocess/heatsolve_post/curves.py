"""Curves: the norm and the history of a run, profiles beside a reference, figures of speed."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter

from heatsolve.case.sections import Profile
from heatsolve.errors import InputError
from heatsolve.io.layout import ROW_TIMES, WAVES, along_column_axis, column_axis, row_axis
from heatsolve.io.reader import Solution, cuts, evenly
from heatsolve.report import count
from heatsolve_post.compare import brackets
from heatsolve_post.style import Figure, drawing_style, one_curve, shades
from heatsolve_post.view import domain_of, label_of

OF_THE_MARCH = (
    *("iteration", "step", "time", "dt", "residual", "divergence", "courant"),
    *ROW_TIMES.values(),
)
"""Columns on the progress of a march, not on its results."""
AXES = ("time", "step", "iteration")
"""Other columns are drawn over the first of these columns that the history has."""
SIDE_BY_SIDE = 2
MOST_ROWS = 6
"""Rows of a column with several values that are drawn, evenly spread in time."""


def norm_figure(solution: Solution) -> Figure:
    """The norm against iteration (or step), logarithmic, with the tolerance."""
    axis = "step" if "step" in solution.history else "iteration"
    unit = axis if solution.time is None else "step"
    if "residual" not in solution.history:
        raise InputError(f"{solution.path} has no residual history")
    scale, relative = solution.relative
    norms = solution.history["residual"].astype(float) / scale
    norms[~(norms > 0)] = np.nan  # an exact zero has no logarithm
    label = "\n".join(filter(None, (solution.norm, relative.strip())))
    drawing, ax = one_curve(unit, label, solution.title, yscale="log")
    few = "." if norms.size < 40 else None
    ax.plot(solution.history[axis], norms, marker=few)
    threshold = solution.attributes.get("threshold")
    if threshold is not None:
        ax.axhline(
            float(threshold) / scale, color="0.3", dashes=(4, 3), linewidth=0.8, label="tolerance"
        )
        ax.legend(loc="upper right")
    ax.margins(x=0.01)
    return drawing


def column_figure(solution: Solution, name: str) -> Figure:
    """One column of the history over time, or over iterations where there is no time; a profile, a
    spectrum or a line over its own axis, at up to six times.

    Raises InputError for a column that is not there.
    """
    axes = (*AXES, *ROW_TIMES.values())
    curves = {k: v for k, v in solution.history.items() if k not in axes}
    if name not in curves:
        known = ", ".join(curves) or "nothing"
        raise InputError(f"{solution.path} has no history of {name!r}, only of {known}")
    if curves[name].ndim > 1:
        return _rows_figure(solution, name)
    axis = next((axis for axis in AXES if axis in solution.history), "")
    unit = solution.units.get("time", "1") if axis == "time" else "1"
    label = axis + (f" ({unit})" if unit != "1" else "")
    drawing, ax = one_curve(label, name.replace("_", " "), solution.title)
    ax.plot(solution.history[axis], curves[name])
    ax.margins(x=0.0)
    return drawing


def _rows_figure(solution: Solution, name: str) -> Figure:
    """Rows of a column that has several values at each of its times."""
    rows = solution.history[name]
    times = solution.history[row_axis(name, "time", solution.history)]
    axis = column_axis(name, rows.shape[1])
    line = along_column_axis(axis, rows.shape[1], solution.coordinates)
    label = label_of(solution, axis) if axis in solution.coordinates else axis.replace("_", " ")
    scales = {}
    if axis.startswith(WAVES):  # wave number 0, the mean, has no logarithm
        line, rows, scales = line[1:], rows[:, 1:], {"xscale": "log", "yscale": "log"}
    drawing, ax = one_curve(label, name.replace("_", " "), solution.title, **scales)
    shown = evenly(len(times), MOST_ROWS)
    for n, colour in zip(shown, shades(len(shown)), strict=True):
        ax.plot(line, rows[n], color=colour, label=f"t = {times[n]:.4g}")
    ax.margins(x=0.01)
    drawing.legend(loc="outside right center")
    return drawing


def watched(solution: Solution) -> list[str]:
    """The columns of forces, energies, probes and the like, which have values along a march."""
    if "time" not in solution.history:
        return []
    columns = {k: v for k, v in solution.history.items() if k not in OF_THE_MARCH}
    return [k for k, v in columns.items() if v.dtype.kind == "f" and np.isfinite(v).sum() > 1]


def watched_figure(solution: Solution) -> Figure:
    """A panel for each watched column, over time."""
    names = watched(solution)
    columns = min(SIDE_BY_SIDE, len(names))
    rows = -(-len(names) // columns)
    drawing = Figure(figsize=(3.6 * columns, 0.5 + 1.3 * rows))
    panels = drawing.subplots(rows, columns, sharex=True, squeeze=False).ravel()
    for ax, name in zip(panels, names, strict=False):
        time = solution.history[row_axis(name, "time", solution.history)]
        ax.plot(time, solution.history[name], linewidth=1.0)
        ax.set_title(name.replace("_", " "), loc="left", fontsize=9, parse_math=False)
        ax.grid()
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

    Across the line the field is interpolated linearly between the points around it, around the ends
    of periodic axes, and extrapolated to a wall half a cell away. Along a periodic axis the line
    has the point beyond each end, too.
    """
    lines = solution.coordinates
    through = dict(zip("xyz", wanted.through, strict=False))
    across = [axis for axis in lines if axis != wanted.along]
    frame = len(solution.time) - 1 if solution.time is not None else 0
    line = lines[wanted.along]
    values = np.zeros(len(line))
    periods = domain_of(solution).periods
    around = [_around(lines[axis], through[axis], periods.get(axis, 0.0)) for axis in across]
    for corner in itertools.product(*around):
        at = {axis: number for axis, (number, _) in zip(across, corner, strict=True)}
        weight = float(np.prod([share for _, share in corner]))
        (profile,) = cuts(solution, wanted.field, [frame], at, len(line))
        values += weight * profile
    if period := periods.get(wanted.along, 0.0):
        line = np.concatenate([[line[-1] - period], line, [line[0] + period]])
        values = np.concatenate([values[-1:], values, values[:1]])
    return line, values


def _around(line: np.ndarray, place: float, period: float) -> Sequence[tuple[int, float]]:
    """The numbers of the two points around a place, and their weights; `period`: see `brackets`."""
    (low,), (share,) = brackets(line, np.array([place]), period)
    pairs = ((int(low), 1.0 - share), (int(low) + 1, share))
    return [(n % len(line), w) for n, w in pairs if w != 0.0]


def holds_profile(solution: Solution, wanted: Profile) -> bool:
    """Whether a file holds the field, and points on both sides of the line or half a spacing off.

    A file of a box or a plane need not.
    """
    through = dict(zip("xyz", wanted.through, strict=False))
    periods = domain_of(solution).periods
    for axis, line in solution.coordinates.items():
        if axis != wanted.along and axis not in periods:
            beyond = 0.5 * (line[1] - line[0]) if len(line) > 1 else 0.0
            beyond += 1e-9 * np.abs(line).max()
            if not line[0] - beyond <= through[axis] <= line[-1] + beyond:
                return False
    return wanted.field in solution.units


def profile_figure(solution: Solution, wanted: Profile) -> tuple[Figure, str]:
    """Both profiles in one Figure, and a text: their largest difference at the reference's
    positions that lie between points of the file."""
    line, values = profile_of(solution, wanted)
    positions, reference = np.array(wanted.positions), np.array(wanted.values)
    inside = (positions >= line[0]) & (positions <= line[-1])
    difference = np.abs(np.interp(positions, line, values) - reference)[inside]
    place = ", ".join(f"{axis} = {x:g}" for axis, x in zip("xyz", wanted.through, strict=False)
                      if axis != wanted.along)  # fmt: skip
    x, y = label_of(solution, wanted.along), label_of(solution, wanted.field)
    drawing, ax = one_curve(x, y, place)
    ax.plot(line, values, label="this run")
    ax.plot(positions, reference, "o", markersize=3.5, markerfacecolor="none", color="0.2",
            label=wanted.source or "reference")  # fmt: skip
    ax.margins(x=0.01)
    drawing.legend(loc="outside lower center", fontsize=8)
    if not difference.size:
        return drawing, "no position of the reference lies between points of this file"
    apart = f"at most {difference.max():.2g} apart"
    if not inside.all():
        apart += f" at the {inside.sum()} of {inside.size} positions between points of this file"
    return drawing, apart


# ---- speed --------------------------------------------------------------------------------------

OWN, OTHER = "#2a6f97", "#b8b8b8"
BAR_HEIGHT = 0.21  # inches from one bar to the next
HALF_COLUMN = 3.5
DECADE = 10.0
"""The factor between the point of a run and either end of the roof."""
PREFIXES = ((1e9, "G "), (1e6, "M "), (1e3, "k "))

Row = Mapping[str, Any]


@drawing_style()
def bench_figure(rows: Sequence[Row]) -> Figure:
    """The rows of a benchmark, as in its JSON: horizontal bars, grey for other ways of the work.

    Each of the two units has a panel. Raises InputError where there is nothing to draw.
    """
    others = [row for row in rows if not row["name"].startswith("copy")]  # copy is the unit
    panels = [
        ([row for row in others if row.get(unit) is not None], unit)
        for unit in ("fraction_of_copy", "copies")
    ]
    panels = [(chosen, unit) for chosen, unit in panels if chosen]
    if not panels:
        raise InputError("no bar to draw: none of these benchmarks is compared with copy bandwidth")
    heights = [len(chosen) + 0.6 for chosen, _ in panels]
    tall = BAR_HEIGHT * sum(heights) + 0.55 * len(panels) + 0.5
    drawing = Figure(figsize=(HALF_COLUMN, tall))
    axes = drawing.subplots(len(panels), 1, height_ratios=heights, squeeze=False)[:, 0]
    for ax, (chosen, unit) in zip(axes, panels, strict=True):
        _bars(ax, chosen, unit)
        if unit == "copies":
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter("{x:g}")
            # Bars begin at one copy; the last label needs room.
            ax.set_xlim(1.0, 4.0 * max(row[unit] for row in chosen))
            ax.set_xlabel("time of a solution or a step, in copies of one field", loc="right")
        else:
            ax.set_xlim(0.0, 1.22 * max(1.0, *[row[unit] for row in chosen]))
            ax.axvline(1.0, color="0.25", linewidth=0.8, dashes=(4, 3), zorder=3)
            ax.set_xlabel("speed of a sweep, as a fraction of copy", loc="right")
    if any(row.get("rival_of") for chosen, _ in panels for row in chosen):
        patches = [Patch(color=OWN, label="heatsolve"), Patch(color=OTHER, label="other ways")]
        drawing.legend(handles=patches, loc="outside upper right", ncols=2, fontsize=8)
    return drawing


def _bars(ax: Axes, rows: Sequence[Row], unit: str) -> None:
    places = range(len(rows))
    values = [row[unit] for row in rows]
    colours = [OTHER if row.get("rival_of") else OWN for row in rows]
    bars = ax.barh(places, values, height=0.72, color=colours)
    labels = [f"{value:.2f}" if value < 10.0 else f"{value:.0f}" for value in values]
    # White behind a number, where the line of copy would cross it.
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
    ax.bar_label(bars, labels, padding=3, fontsize=8, bbox=behind, zorder=4)
    ax.set_yticks(places, [row["name"] for row in rows])
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.set_ylim(len(rows) - 0.4, -0.6)


# ---- scaling ---------------------------------------------------------------------------------


@drawing_style()
def scaling_figure(
    sizes: Sequence[Any], model: Sequence[tuple[int, float]] = (), title: str = ""
) -> Figure:
    """The sizes of a study (`tools.scaling`) and a model of more, over the number of processes.

    The upper panel shows the throughput with its spread, the lower panel the efficiency.
    """
    drawing = Figure(figsize=(HALF_COLUMN, 4.2))
    above, below = drawing.subplots(2, 1, sharex=True)
    ranks = [size.ranks for size in sizes]
    reference = sizes[0].throughput
    scale, prefix = next((each for each in PREFIXES if reference >= each[0]), (1.0, ""))
    middle = [size.throughput / scale for size in sizes]
    errors = [
        [(size.throughput - size.lowest) / scale for size in sizes],
        [(size.highest - size.throughput) / scale for size in sizes],
    ]
    above.axhline(reference / scale, color=OTHER, linewidth=0.9, label="ideal")
    above.errorbar(ranks, middle, errors, color=OWN, marker="o", markersize=4, capsize=2,
                   label="measured")  # fmt: skip
    below.axhline(1.0, color=OTHER, linewidth=0.9)
    below.plot(ranks, [size.efficiency for size in sizes], color=OWN, marker="o", markersize=4)
    highest = max([size.highest for size in sizes] + [rate for _, rate in model]) / scale
    beyond = [(count, rate) for count, rate in model if count >= ranks[-1]]
    if beyond:
        many, rates = zip(*beyond, strict=True)
        dashed = {"color": "#c1666b", "linestyle": (0, (4, 2))}
        above.plot(many, [rate / scale for rate in rates], label="model", **dashed)
        below.plot(many, [rate / model[0][1] for rate in rates], **dashed)
    above.set_ylim(0.0, 1.15 * highest)
    below.set_ylim(0.0, 1.15 * max(1.0, *[size.efficiency for size in sizes]))
    above.set_ylabel(f"{prefix}unknowns/s a process")
    below.set_ylabel("efficiency")
    below.set_xlabel("processes")
    above.set_title(title, fontsize=8, loc="left", parse_math=False)
    drawing.legend(loc="outside upper right", ncols=3, fontsize=8)
    for ax in (above, below):
        _over_processes(ax, sorted({*ranks, *[count for count, _ in beyond]}))
    return drawing


def _over_processes(ax: Axes, counts: Sequence[int]) -> None:
    """A logarithmic axis of numbers of processes, with at most eight labels."""
    ax.set_xscale("log", base=2)
    shown = counts[:: max(1, -(-len(counts) // 8))]
    ax.set_xticks(shown, [str(count) for count in shown])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.tick_params(axis="x", which="minor", length=0)
    ax.spines[["top", "right"]].set_visible(False)


@drawing_style()
def time_line_figure(processes: Sequence[Sequence[tuple[str, float, float]]], title: str) -> Figure:
    """A unit of work on several processes: a lane of sweeps and a lane of exchanges for each."""
    drawing = Figure(figsize=(2 * HALF_COLUMN, 0.9 + 0.35 * len(processes)))
    ax = drawing.subplots()
    kinds = {"sweeps": (OWN, 0.0), "exchanges": ("#c1666b", 0.4)}
    for number, spans in enumerate(processes):
        for kind, (color, below) in kinds.items():
            bars = [
                (1e3 * begin, 1e3 * time)
                for name, begin, time in spans
                if (name == "exchange") == (kind == "exchanges")
            ]
            label = kind if number == 0 else None
            ax.broken_barh(bars, (number + below, 0.36), facecolor=color, label=label)
    ax.set_ylim(len(processes), -0.1)
    ax.set_yticks([n + 0.38 for n in range(len(processes))], map(str, range(len(processes))))
    ax.set_ylabel("process")
    ax.set_xlabel("ms")
    ax.set_title(title, fontsize=8, loc="left", parse_math=False)
    ax.spines[["top", "right"]].set_visible(False)
    drawing.legend(loc="outside upper right", ncols=2, fontsize=8)
    return drawing


# ---- the roofline ----------------------------------------------------------------------------


def roofline_figure(attributes: dict[str, Any], bandwidth: float) -> Figure:
    """Points updated in a second against points for each byte that must move, both logarithmic.

    The roof is bandwidth x points a byte: S. Williams, A. Waterman and D. Patterson, Comm. ACM 52
    (2009), 65, with updates for operations. Runs with several sweeps in one pass may lie above it.
    """
    points, moved = attributes["points_updated"], attributes["bytes_moved"]
    intensity, rate = points / moved, points / attributes["solve_seconds"]
    names = "points updated for each byte", "points updated a second"
    drawing, ax = one_curve(*names, xscale="log", yscale="log")
    around = intensity * np.array([1.0 / DECADE, DECADE])
    ax.plot(around, bandwidth * around, color="0.3", label=f"copy, {count(bandwidth)}B/s")
    share = rate / (bandwidth * intensity)
    ax.plot(intensity, rate, "o", label=f"this run, {share:.2g} of the roof")
    ax.set_ylim(min(rate, bandwidth * intensity) / DECADE, bandwidth * around[1])
    ax.legend(loc="upper left")
    return drawing
