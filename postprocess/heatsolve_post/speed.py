"""Figures of speed: a benchmark's bars, a scaling study's curves, a run beside its roofline."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter

from heatsolve.errors import InputError
from heatsolve.report import count
from heatsolve_post.style import drawing_style, name_axes, save

OWN, OTHER = "#2a6f97", "#b8b8b8"
BAR_HEIGHT = 0.21  # inches from one bar to the next
HALF_COLUMN = 3.5
DECADE = 10.0
"""From the point of a run to either end of the roof."""
PREFIXES = ((1e9, "G "), (1e6, "M "), (1e3, "k "))

Row = Mapping[str, Any]


def plot_bench(rows: Sequence[Row], output: Path) -> Path:
    """Draw the rows of a benchmark, as in its JSON, and return the image's path.

    Raises InputError where there is nothing to draw, or for an image format that there is not;
    FileFailure when the image cannot be written.
    """
    return save(bench_figure(rows), Path(output))


@drawing_style()
def bench_figure(rows: Sequence[Row]) -> Figure:
    """Horizontal bars, a panel for each of the two units; rivals of the program are grey."""
    panels = [(_with(rows, unit), unit) for unit in ("fraction_of_copy", "copies")]
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
            ax.set_xlabel("time of a solution, in copies of one field", loc="right")
        else:
            ax.set_xlim(0.0, 1.22 * max(1.0, *[row[unit] for row in chosen]))
            ax.axvline(1.0, color="0.25", linewidth=0.8, dashes=(4, 3), zorder=3)
            ax.set_xlabel("speed of a sweep, as a fraction of copy", loc="right")
    if any(_is_rival(row) for chosen, _ in panels for row in chosen):
        patches = [Patch(color=OWN, label="heatsolve"), Patch(color=OTHER, label="other ways")]
        drawing.legend(handles=patches, loc="outside upper right", ncols=2, fontsize=8)
    return drawing


def _with(rows: Sequence[Row], unit: str) -> list[Row]:
    """The rows that have a figure in this unit; the copies themselves are the unit."""
    return [
        row for row in rows
        if row.get(unit) is not None and not row["name"].startswith("copy")
    ]  # fmt: skip


def _is_rival(row: Row) -> bool:
    return row.get("rival_of") is not None


def _bars(ax: Axes, rows: Sequence[Row], unit: str) -> None:
    places = range(len(rows))
    values = [row[unit] for row in rows]
    colours = [OTHER if _is_rival(row) else OWN for row in rows]
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


def plot_scaling(
    sizes: Sequence[Any],
    output: Path,
    model: Sequence[tuple[int, float]] = (),
    title: str = "",
) -> Path:
    """Draw the sizes of a scaling study, and a model of more; return the image's path.

    `sizes` are those of `tools.scaling`. Raises InputError for an image format that there is not,
    FileFailure where it cannot be written.
    """
    return save(scaling_figure(sizes, model, title), Path(output))


@drawing_style()
def scaling_figure(
    sizes: Sequence[Any], model: Sequence[tuple[int, float]] = (), title: str = ""
) -> Figure:
    """Two panels over the number of processes: throughput with its spread, and efficiency."""
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
        below.plot(many, [rate / reference for rate in rates], **dashed)
    above.set_ylim(0.0, 1.15 * highest)
    below.set_ylim(0.0, 1.15 * max(1.0, highest * scale / reference))
    above.set_ylabel(f"{prefix}unknowns/s a process")
    below.set_ylabel("efficiency")
    below.set_xlabel("processes")
    above.set_title(title, fontsize=8, loc="left", parse_math=False)
    drawing.legend(loc="outside upper right", ncols=3, fontsize=8)
    for ax in (above, below):
        _over_processes(ax, sorted({*ranks, *[count for count, _ in beyond]}))
    return drawing


def _over_processes(ax: Axes, counts: Sequence[int]) -> None:
    """An axis of powers of two; many of them share the room of eight labels."""
    ax.set_xscale("log", base=2)
    shown = counts[:: max(1, -(-len(counts) // 8))]
    ax.set_xticks(shown, [str(count) for count in shown])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.tick_params(axis="x", which="minor", length=0)
    ax.spines[["top", "right"]].set_visible(False)


# ---- the roofline ----------------------------------------------------------------------------


def roofline_figure(attributes: dict[str, Any], bandwidth: float) -> Figure:
    """Points updated in a second against points for each byte that must move, both logarithmic.

    The roof is bandwidth x points a byte: S. Williams, A. Waterman and D. Patterson, Comm. ACM 52
    (2009), 65, with updates for operations. Above it is what several sweeps of one pass gain.
    """
    points, moved = attributes["points_updated"], attributes["bytes_moved"]
    intensity, rate = points / moved, points / attributes["solve_seconds"]
    drawing = Figure(figsize=(4.2, 3.0))
    ax = drawing.add_subplot(xscale="log", yscale="log")
    around = intensity * np.array([1.0 / DECADE, DECADE])
    ax.plot(around, bandwidth * around, color="0.3", label=f"copy, {count(bandwidth)}B/s")
    share = rate / (bandwidth * intensity)
    ax.plot(intensity, rate, "o", label=f"this run, {share:.2g} of the roof")
    name_axes(ax, "points updated for each byte", "points updated a second")
    ax.set_ylim(min(rate, bandwidth * intensity) / DECADE, bandwidth * around[1])
    ax.grid(color="0.88", linewidth=0.5)
    ax.legend(loc="upper left")
    return drawing
