"""Figures of a field file: 2D contours, 3D mid-planes, 1D lines, the residual history."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from heatsolve.errors import InputError
from heatsolve.output import Solution, read
from heatsolve.postprocess.pieces import (
    STYLE,
    add_bar_beside,
    add_colourbar,
    box_of,
    colour_map,
    draw_to_scale,
    label_of,
    levels_of,
    main_field,
    moment_of,
    name_axes,
    quantity,
    save,
    set_title,
    thinned,
)


def plot(
    path: Path, output: Path | None = None, field: str | None = None, history: bool = False
) -> Path:
    """Draw the field file `path` and return the image's path, by default `path` ending in .png.

    `field` and `history` as for `figure`. The suffix of `output` chooses the format (png, pdf,
    svg). Raises InputError for a missing file, field, history or format, FileFailure when the
    field file is damaged or the image cannot be written.
    """
    path = Path(path)
    stem = path.name.removesuffix(".h5") + ("_history" if history else "")
    output = Path(output) if output else path.with_name(f"{stem}.png")
    return save(figure(path, field, history), output)


@matplotlib.rc_context(STYLE)
def figure(path: Path, field: str | None = None, history: bool = False) -> Figure:
    """The Figure of one field, by default of the temperature or else of the first one.

    A transient file shows its last frame (in 1D several). history: the residual instead.
    Raises as `read` does, and InputError for a file without history.
    """
    solution = read(path, fields=())
    if history:
        return _history(solution)
    axes = list(solution.coordinates)
    field = field or main_field(solution)
    solution = read(path, fields=(field,), last_only=len(axes) > 1)
    draw = {1: _lines, 2: _contours, 3: _midplanes}[len(axes)]
    return draw(solution, field)


def _history(solution: Solution) -> Figure:
    """Residual against iteration (or step), logarithmic, with the norm that was to be reached."""
    axis = "step" if "step" in solution.history else "iteration"
    if "residual" not in solution.history:
        raise InputError(f"{solution.path} has no residual history")
    residual = solution.history["residual"].astype(float)
    residual[~(residual > 0)] = np.nan  # an exact zero has no logarithm
    drawing = Figure(figsize=(4.2, 3.0))
    ax = drawing.add_subplot(yscale="log")
    name_axes(ax, axis, "residual")
    few = "." if residual.size < 40 else None
    ax.plot(solution.history[axis], residual, marker=few)
    threshold = solution.attributes.get("threshold")
    if threshold is not None:
        ax.axhline(float(threshold), color="0.3", dashes=(4, 3), linewidth=0.8, label="tolerance")
        ax.legend(loc="upper right")
    ax.grid(color="0.88", linewidth=0.5)
    ax.margins(x=0.01)
    set_title(drawing, solution.title, ax)
    return drawing


def _lines(solution: Solution, field: str) -> Figure:
    """A profile; of a transient run at up to six times, evenly spread."""
    ((axis, x),) = solution.coordinates.items()
    values = solution.fields[field]
    kept = thinned(len(x))
    drawing = Figure(figsize=(4.2, 3.0))
    ax = drawing.add_subplot()
    name_axes(ax, label_of(solution, axis), label_of(solution, field))
    if solution.time is None:
        ax.plot(x[kept], values[kept])
    else:
        frames = np.unique(np.linspace(0, len(values) - 1, 6).round().astype(int))
        colours = matplotlib.colormaps[colour_map(field)](np.linspace(0.05, 0.8, len(frames)))
        for frame, colour in zip(frames, colours, strict=True):
            when = quantity("t", solution.time[frame], solution.units["time"])
            ax.plot(x[kept], values[frame, kept], color=colour, label=when)
        drawing.legend(loc="outside right center")
    ax.grid(color="0.88", linewidth=0.5)
    ax.margins(x=0)
    set_title(drawing, solution.title, ax)
    return drawing


def _contours(solution: Solution, field: str) -> Figure:
    """Filled contours of a 2D field."""
    (y_axis, y), (x_axis, x) = solution.coordinates.items()
    values = solution.fields[field].reshape(-1, len(y), len(x))[-1]
    width, height = box_of(x, y, longest=3.4)
    drawing = Figure(figsize=(width + 1.6, height + 1.4))
    ax = drawing.add_subplot()
    name_axes(ax, label_of(solution, x_axis), label_of(solution, y_axis))
    filled = _fill(ax, x, y, values, levels_of(values), colour_map(field))
    add_bar_beside(ax, (width, height), filled, label_of(solution, field))
    set_title(drawing, moment_of(solution), ax)
    return drawing


def _midplanes(solution: Solution, field: str) -> Figure:
    """The three mid-planes of a 3D field on one colour scale."""
    values = solution.fields[field].reshape(-1, *map(len, solution.coordinates.values()))[-1]
    levels = levels_of(values)
    lines = dict(zip("zyx", solution.coordinates.values(), strict=True))
    planes = [("z", "y", "x"), ("y", "z", "x"), ("x", "z", "y")]  # normal, up, right
    spans = {axis: np.ptp(line) or 1.0 for axis, line in lines.items()}
    widths = [spans[right] for _, _, right in planes]
    tallest = 4.2 / sum(widths) * max(spans[up] for _, up, _ in planes)
    drawing = Figure(figsize=(7, np.clip(tallest, 1.1, 3.5) + 1))
    panels = drawing.subplots(1, 3, width_ratios=[max(width, max(widths) / 4) for width in widths])
    for ax, (normal, up, right) in zip(panels, planes, strict=True):
        middle = len(lines[normal]) // 2
        plane = values.take(middle, axis="zyx".index(normal))
        filled = _fill(ax, lines[right], lines[up], plane, levels, colour_map(field))
        name_axes(ax, label_of(solution, right), label_of(solution, up))
        where = quantity(normal, lines[normal][middle], solution.units[normal])
        ax.set_title(where, parse_math=False)
        ax.xaxis.set_major_locator(MaxNLocator(2))  # more labels would touch in a narrow panel
    add_colourbar(drawing, filled, label_of(solution, field), ax=panels)
    set_title(drawing, moment_of(solution))
    return drawing


def _fill(
    ax: Axes, x: np.ndarray, y: np.ndarray, values: np.ndarray, levels: np.ndarray, colours: str
) -> QuadContourSet:
    """Contours of a plane `(y, x)`, to scale unless it is very long; NaN stays grey."""
    if min(values.shape) < 2:
        raise InputError("a plane one point wide cannot be drawn: it needs two points on each axis")
    across, up = thinned(len(x)), thinned(len(y))
    plane = np.ma.masked_invalid(values[np.ix_(up, across)].astype(float))
    ax.set_facecolor("0.8")
    draw_to_scale(ax, x, y)
    return ax.contourf(x[across], y[up], plane, levels, cmap=colours)
