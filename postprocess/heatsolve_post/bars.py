"""The figure of `heatsolve bench`: sweeps as fractions of copy bandwidth, solvers in copies."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from heatsolve.errors import InputError
from heatsolve_post.pieces import drawing_style, save

OWN, OTHER = "#2a6f97", "#b8b8b8"
BAR_HEIGHT = 0.21  # inches from one bar to the next
HALF_COLUMN = 3.5

Row = Mapping[str, Any]


def plot_bench(rows: Sequence[Row], output: Path) -> Path:
    """Draw the rows of a benchmark, as in its JSON, and return the image's path.

    Raises InputError where there is nothing to draw, or for an image format that there is not;
    FileFailure when the image cannot be written.
    """
    return save(figure(rows), Path(output))


@drawing_style()
def figure(rows: Sequence[Row]) -> Figure:
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
