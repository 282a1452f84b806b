"""Figures of a field file: contours of planes, and lines."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize, SymLogNorm
from matplotlib.contour import QuadContourSet
from matplotlib.ticker import MaxNLocator

from heatsolve.errors import InputError
from heatsolve.output import Source, read
from heatsolve.postprocess.flowlines import FLOWLINES
from heatsolve.postprocess.history import norm_figure
from heatsolve.postprocess.pieces import (
    LEVELS,
    STYLE,
    Figure,
    add_bar_beside,
    add_colourbar,
    bar_lies_below,
    box_of,
    colour_map,
    draw_to_scale,
    levels_of,
    name_axes,
    save,
    set_title,
)
from heatsolve.postprocess.view import View, look

DECADES = 1e-8
"""Of the largest value: a logarithmic scale shows nothing smaller."""
SIGNED_DECADES = 1e-3
"""The same where there are values of both signs; what is smaller is drawn on a linear scale."""
ROUNDING = 1e-9
"""Of levels, relative."""
DIFFERENCE = "coolwarm"
"""The colours of a difference, with grey for none."""


@dataclass(frozen=True)
class Look:
    """How a field is drawn: `over` a plane "vectors", "streamlines" or nothing."""

    log: bool = False
    over: str = ""


def plot(
    path: Path,
    output: Path | None = None,
    field: str | None = None,
    history: bool = False,
    **options: Any,
) -> Path:
    """Draw the field file `path` and return the image's path, by default `path` ending in .png.

    What is drawn is said as for `figure`. The suffix of `output` chooses the format (png, pdf,
    svg). Raises InputError for a missing file, field, history or format, FileFailure when the
    field file is damaged or the image cannot be written.
    """
    path = Path(path)
    stem = path.name.removesuffix(".h5") + ("_history" if history else "")
    output = Path(output) if output else path.with_name(f"{stem}.png")
    return save(figure(path, field, history, **options), output)


@matplotlib.rc_context(STYLE)
def figure(
    source: Source,
    field: str | None = None,
    history: bool = False,
    *,
    slices: Mapping[str, float] | None = None,
    at_time: float | None = None,
    vectors: bool = False,
    streamlines: bool = False,
    log: bool = False,
    compare: Source | None = None,
) -> Figure:
    """The Figure of one field, or of the residual with `history`; the options of `heatsolve plot`.

    `field`, `slices` (positions by axis) and `at_time` choose what is drawn, as for `view.look`: a
    line, a plane, or of a field in space its three mid-planes. `log`: on a logarithmic scale.
    `vectors` or `streamlines` of the velocity go over a plane. `compare`: another file, whose field
    is drawn beside, with the difference. Raises as `read` does, and InputError for what cannot be
    drawn.
    """
    if vectors and streamlines:
        raise InputError("--vectors and --streamlines exclude each other")
    over = "vectors" if vectors else "streamlines" if streamlines else ""
    if history:
        if slices or over or log or compare or at_time is not None:
            raise InputError("--history draws the residual, and takes no option of fields")
        return norm_figure(read(source, fields=()))
    view, how = look(source, field, slices, at_time), Look(log, over)
    dimension = len(view.axes)
    if over and dimension != 2:
        raise InputError(f"{over} are drawn over a plane: cut it out with --slice")
    if compare is not None:
        return _comparison(view, look(compare, view.field, slices, at_time), how)
    return {1: _lines, 2: _plane, 3: _midplanes}[dimension](view, how)


# ---- lines -----------------------------------------------------------------------------------


def _lines(view: View, how: Look) -> Figure:
    """A profile; of a march at up to six times, evenly spread."""
    drawing = Figure(figsize=(4.2, 3.0))
    ax = drawing.add_subplot()
    ((axis, x),) = view.axes.items()
    name_axes(ax, view.label(axis), view.label(view.field))
    colours = _colours_of_moments(view)
    for frame, values, colour in zip(view.frames, view.values, colours, strict=True):
        ax.plot(x, values, color=colour, label=view.moment(frame))
    if len(view.frames) > 1:
        drawing.legend(loc="outside right center")
    _finish_lines(ax, how, view.values)
    set_title(drawing, view.title, ax)
    return drawing


def _colours_of_moments(view: View) -> list:
    if len(view.frames) == 1:
        return ["C0"]
    return list(
        matplotlib.colormaps[colour_map(view.field)](np.linspace(0.05, 0.8, len(view.frames)))
    )


def _finish_lines(ax: Axes, how: Look, values: list[np.ndarray]) -> None:
    if how.log:
        norm = norm_of(values, log=True)
        if isinstance(norm, SymLogNorm):
            ax.set_yscale("symlog", linthresh=norm.linthresh)
        else:
            ax.set_yscale("log")
    ax.grid(color="0.88", linewidth=0.5)
    ax.margins(x=0)


# ---- planes ----------------------------------------------------------------------------------


def _plane(view: View, how: Look) -> Figure:
    """Filled contours of a plane."""
    (up, y), (across, x) = view.axes.items()
    width, height = box_of(x, y, longest=3.4)
    drawing = Figure(figsize=(width + 1.6, height + 1.4))
    ax = drawing.add_subplot()
    name_axes(ax, view.label(across), view.label(up))
    filled = _fill(ax, view, norm_of(view.values, how.log))
    said = FLOWLINES[how.over](ax, view) if how.over else ""
    add_bar_beside(ax, (width, height), filled, view.label(view.field))
    set_title(drawing, ", ".join(filter(None, (view.title, said))), ax)
    return drawing


def _midplanes(view: View, how: Look) -> Figure:
    """The three mid-planes of a field in space on one colour scale."""
    lines = view.solution.coordinates
    planes = [view.cut(normal, len(lines[normal]) // 2) for normal in "zyx"]
    norm = norm_of([values for plane in planes for values in plane.values], how.log)
    spans = {axis: np.ptp(line) or 1.0 for axis, line in lines.items()}
    sides = [tuple(spans[axis] for axis in plane.axes) for plane in planes]  # up, right
    widths = [right for _, right in sides]
    tallest = 4.2 / sum(widths) * max(up for up, _ in sides)
    drawing = Figure(figsize=(7, np.clip(tallest, 1.1, 3.5) + 1))
    panels = drawing.subplots(1, 3, width_ratios=[max(width, max(widths) / 4) for width in widths])
    for ax, plane in zip(panels, planes, strict=True):
        filled = _panel(ax, plane, norm, plane.place)
    add_colourbar(drawing, filled, view.label(view.field), ax=panels)
    set_title(drawing, view.title)
    return drawing


def _panel(ax: Axes, view: View, norm: Normalize, title: str) -> QuadContourSet:
    """One of several planes in a row."""
    up, across = view.axes
    filled = _fill(ax, view, norm)
    name_axes(ax, view.label(across), view.label(up))
    ax.set_title(title, parse_math=False)
    ax.xaxis.set_major_locator(MaxNLocator(2))  # more labels would touch in a narrow panel
    return filled


def _fill(
    ax: Axes, view: View, norm: Normalize, values: np.ndarray | None = None, colours: str = ""
) -> QuadContourSet:
    """Contours of a plane `(up, across)`, to scale unless it is very long; NaN stays grey."""
    y, x = view.axes.values()
    values = view.values[-1] if values is None else values
    if min(values.shape) < 2:
        raise InputError("a plane one point wide cannot be drawn: it needs two points on each axis")
    ax.set_facecolor("0.8")
    draw_to_scale(ax, x, y)
    plane = np.ma.masked_invalid(values)
    levels = norm.inverse(np.linspace(0.0, 1.0, LEVELS + 1))
    extend = "neither"
    if isinstance(norm, LogNorm):
        below = bool((plane < (1.0 - ROUNDING) * levels[0]).any())
        extend = "min" if below else "neither"
        # Half of the lowest level is drawn as what is below the scale.
        plane = np.ma.maximum(plane, (0.5 if below else 1.0) * levels[0])
    cmap = colours or colour_map(view.field)
    return ax.contourf(x, y, plane, np.unique(levels), cmap=cmap, norm=norm, extend=extend)


def norm_of(arrays: list[np.ndarray], log: bool = False) -> Normalize:
    """The scale of colours for all finite values of some arrays.

    A logarithmic one is symmetric about 0 where there are values of both signs. Raises InputError
    where there is nothing that has a logarithm.
    """
    every = np.concatenate([values[np.isfinite(values)] for values in arrays])
    if not log:
        levels = levels_of(every)
        return Normalize(levels[0], levels[-1])
    largest = float(np.abs(every).max(initial=0.0))
    if largest == 0.0:
        raise InputError("a field that is 0 everywhere has no logarithm")
    if every.min() < 0.0:
        linear = 10.0 ** np.ceil(np.log10(largest * SIGNED_DECADES))
        low, high = min(every.min(), -linear), max(every.max(), linear)
        return SymLogNorm(linear, vmin=float(low), vmax=float(high))
    lowest = max(float(every[every > 0.0].min()), largest * DECADES)
    return LogNorm(min(lowest, 0.5 * largest), largest)


# ---- two files -------------------------------------------------------------------------------


def _comparison(view: View, other: View, how: Look) -> Figure:
    """Two fields and their difference."""
    if len(view.axes) == 3:
        raise InputError("--compare draws planes and lines: cut them out with --slice")
    if not _same_points(view, other):
        paths = f"{view.solution.path} and {other.solution.path}"
        raise InputError(f"{paths} have other points: nothing can be subtracted")
    return (_comparison_of_lines if len(view.axes) == 1 else _comparison_of_planes)(
        view, other, how
    )


def _same_points(view: View, other: View) -> bool:
    return list(view.axes) == list(other.axes) and all(
        line.shape == other.axes[axis].shape and np.allclose(line, other.axes[axis])
        for axis, line in view.axes.items()
    )


def _comparison_of_lines(view: View, other: View, how: Look) -> Figure:
    """Both, the one dashed, at the last moment; below them the first less the other."""
    drawing = Figure(figsize=(4.2, 4.2))
    above, below = drawing.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    ((axis, x),) = view.axes.items()
    values, others = view.values[-1], other.values[-1]
    above.plot(x, values, label=view.solution.path.name)
    above.plot(x, others, linestyle=(0, (4, 2)), label=other.solution.path.name)
    above.legend()
    name_axes(above, "", view.label(view.field))
    below.plot(x, values - others, color="0.2")
    name_axes(below, view.label(axis), "difference")
    _finish_lines(above, how, [values, others])
    _finish_lines(below, Look(), [])
    when = view.moment(view.frames[-1])
    set_title(drawing, ", ".join(filter(None, (view.solution.title, view.place, when))), above)
    return drawing


def _comparison_of_planes(view: View, other: View, how: Look) -> Figure:
    """Both on one scale of colours, and the first less the other."""
    y, x = view.axes.values()
    width, height = box_of(x, y, longest=2.0)
    below = bar_lies_below(width, height)
    lefts = [0.7, 1.0 + width, (1.3 if below else 2.1) + 2 * width]  # inches
    bottom, right = (1.2, 0.3) if below else (0.6, 1.1)
    size = lefts[-1] + width + right, bottom + height + 0.55
    drawing = Figure(figsize=size)
    drawing.set_layout_engine("none")
    panels = [
        drawing.add_axes((left / size[0], bottom / size[1], width / size[0], height / size[1]))
        for left in lefts
    ]
    values, others = view.values[-1], other.values[-1]
    difference = values - others
    most = float(np.abs(difference[np.isfinite(difference)]).max(initial=0.0)) or 1.0
    norm, around = norm_of([values, others], how.log), Normalize(-most, most)
    for ax, each in zip(panels[:2], (view, other), strict=True):
        filled = _panel(ax, each, norm, each.solution.path.name)
        if how.over:
            FLOWLINES[how.over](ax, each)
    add_bar_beside(panels[1], (width, height), filled, view.label(view.field))
    changed = _fill(panels[2], view, around, difference, DIFFERENCE)
    panels[2].set_title("difference")
    panels[2].xaxis.set_major_locator(MaxNLocator(2))
    add_bar_beside(panels[2], (width, height), changed, "difference")
    for ax in panels[1:]:
        name_axes(ax, view.label(list(view.axes)[1]), "")
        ax.yaxis.set_ticklabels([])
    set_title(drawing, view.title)
    return drawing
