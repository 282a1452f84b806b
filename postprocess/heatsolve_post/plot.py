"""Figures of a field file: contours of planes, and lines."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, SymLogNorm
from matplotlib.contour import QuadContourSet

from heatsolve.errors import InputError
from heatsolve.io.reader import Source, read
from heatsolve_post.compare import alike
from heatsolve_post.curves import column_figure, norm_figure
from heatsolve_post.style import (
    CURVE,
    DIFFERENCE,
    DIVERGING,
    Colours,
    Figure,
    Limits,
    add_bar_beside,
    add_colourbar,
    bar_lies_below,
    box_of,
    colours_of,
    draw_obstacles,
    drawing_style,
    logarithmic,
    name_axes,
    one_curve,
    save,
    set_title,
    set_up_line,
    set_up_plane,
    shades,
)
from heatsolve_post.view import View, limits_of, look, quantity

ARROWS = 22
"""Arrows along the longer side of a plane."""
DENSITY, SPARSE = 1.1, 0.35
"""The density of streamlines along the longer side, and the least density, in matplotlib's unit."""


@dataclass(frozen=True)
class Look:
    """How a field is drawn.

    `limits`: the lowest and the highest value shown. `over`: "vectors", "streamlines" or "", drawn
    over a plane.
    """

    log: bool = False
    limits: Limits | None = None
    over: str = ""


def plot(
    path: Path,
    output: Path | None = None,
    field: str | None = None,
    history: bool = False,
    **options: Any,
) -> Path:
    """Draw the field file `path` and return the image's path, by default `path` ending in .png.

    The options are as for `figure`. The suffix of `output` chooses the format (png, pdf,
    svg). Raises InputError for a missing file, field, history or format, FileFailure when the
    field file is damaged or the image cannot be written.
    """
    path = Path(path)
    stem = path.name.removesuffix(".h5") + ("_history" if history else "")
    column = f"_{field}" if history and field else ""
    output = Path(output) if output else path.with_name(f"{stem}{column}.png")
    return save(figure(path, field, history, **options), output)


@drawing_style()
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
    limits: Limits | str | None = None,
    compare: Source | None = None,
) -> Figure:
    """The Figure of one field; with `history` of the norm, or of the history's column `field`.

    The options are as in `heatsolve plot`. `field`, `slices` (positions by axis) and `at_time`
    choose a line, a plane, or the three mid-planes of a 3D field, as for `view.look`. `log`: on a
    logarithmic scale. `limits`: the lowest and the highest value shown, in place of all values.
    `vectors`, `streamlines`: draw the velocity over a plane. `compare`: another file, whose field
    is drawn beside, with the difference. Raises as `read` does, and InputError for options that
    exclude each other or cannot be drawn.
    """
    if vectors and streamlines:
        raise InputError("--vectors and --streamlines exclude each other")
    over = "vectors" if vectors else "streamlines" if streamlines else ""
    if history:
        if slices or over or log or limits or compare or at_time is not None:
            raise InputError("--history draws the norm or one --field, and takes no other option")
        solution = read(source, fields=())
        return column_figure(solution, field) if field else norm_figure(solution)
    how = Look(log, limits_of(limits), over)
    view = look(source, field, slices, at_time)
    dimension = len(view.axes)
    if over and dimension != 2:
        raise InputError(f"{over} are drawn over a plane: cut it out with --slice")
    if compare is not None:
        return _comparison(view, look(compare, view.field, slices, at_time), how)
    return {1: _lines, 2: _plane, 3: _midplanes}[dimension](view, how)


# ---- lines -----------------------------------------------------------------------------------


def _lines(view: View, how: Look) -> Figure:
    """A profile; of a march at up to six times, evenly spread."""
    ((axis, x),) = view.axes.items()
    drawing, ax = one_curve(view.label(axis), view.label(view.field), view.title)
    colours = shades(len(view.frames))
    for frame, values, colour in zip(view.frames, view.values, colours, strict=True):
        ax.plot(x, values, color=colour, label=view.moment(frame))
    if len(view.frames) > 1:
        drawing.legend(loc="outside right center")
    _finish_lines(ax, view, how, view.values)
    return drawing


def _finish_lines(ax: Axes, view: View, how: Look, values: list[np.ndarray]) -> None:
    """Scale, limits and walls of the axes of lines."""
    if how.log:
        norm = logarithmic(np.concatenate([each[np.isfinite(each)] for each in values]))
        if isinstance(norm, SymLogNorm):
            ax.set_yscale("symlog", linthresh=norm.linthresh)
        else:
            ax.set_yscale("log")
    if how.limits:
        ax.set_ylim(how.limits)
    ax.grid()
    set_up_line(ax, view, CURVE[0] - 1.0)


# ---- planes ----------------------------------------------------------------------------------


def _plane(view: View, how: Look) -> Figure:
    """Filled contours of a plane."""
    width, height = box = box_of(view, longest=3.4)
    drawing = Figure(figsize=(width + 1.6, height + 1.4))
    ax = drawing.add_subplot()
    up, across = view.axes
    name_axes(ax, view.label(across), view.label(up))
    colours = colours_of(view.field, view.values, how.log, how.limits)
    filled = _fill(ax, view, colours, box)
    said = FLOWLINES[how.over](ax, view, colours) if how.over else ""
    add_bar_beside(ax, box, filled, colours, view.label(view.field))
    set_title(drawing, ", ".join(filter(None, (view.title, said))), ax)
    return drawing


def _midplanes(view: View, how: Look) -> Figure:
    """The three mid-planes of a 3D field on one colour scale."""
    lines = view.solution.coordinates
    planes = [view.cut(normal, len(lines[normal]) // 2) for normal in "zyx"]
    every = [values for plane in planes for values in plane.values]
    colours = colours_of(view.field, every, how.log, how.limits)
    sides = [[high - low or 1.0 for low, high in plane.ends] for plane in planes]  # up, right
    widths = [right for _, right in sides]
    tallest = 4.2 / sum(widths) * max(up for up, _ in sides)
    drawing = Figure(figsize=(7, np.clip(tallest, 1.1, 3.5) + 1))
    panels = drawing.subplots(1, 3, width_ratios=[max(width, max(widths) / 4) for width in widths])
    for ax, plane, (up, right) in zip(panels, planes, sides, strict=True):
        box = 4.2 * right / sum(widths), 4.2 * up / sum(widths)
        filled = _panel(ax, plane, colours, plane.place, box)
    add_colourbar(drawing, filled, colours, view.label(view.field), ax=panels)
    set_title(drawing, view.title)
    return drawing


def _panel(
    ax: Axes, view: View, colours: Colours, title: str, box: tuple[float, float]
) -> QuadContourSet:
    """One of several planes in a row."""
    up, across = view.axes
    filled = _fill(ax, view, colours, box)
    name_axes(ax, view.label(across), view.label(up))
    ax.set_title(title, parse_math=False)
    return filled


def _fill(
    ax: Axes,
    view: View,
    colours: Colours,
    box: tuple[float, float],
    values: np.ndarray | None = None,
) -> QuadContourSet:
    """Contours of a plane `(up, across)` from wall to wall, and the obstacles; NaN stays grey."""
    set_up_plane(ax, view, box)
    (y, x), plane = view.up_to_the_walls(view.values[-1] if values is None else values)
    plane, levels = np.ma.masked_invalid(plane), colours.levels
    if isinstance(colours.norm, LogNorm):
        # Values below the scale are drawn at half of the lowest level.
        below = colours.extend in ("min", "both")
        plane = np.ma.maximum(plane, (0.5 if below else 1.0) * levels[0])
    filled = ax.contourf(
        x, y, plane, levels, cmap=colours.map, norm=colours.norm, extend=colours.extend
    )
    filled.set_rasterized(True)  # else viewers of PDF show seams between the contours
    draw_obstacles(ax, view)
    return filled


# ---- two files -------------------------------------------------------------------------------


def _comparison(view: View, other: View, how: Look) -> Figure:
    """Two fields and their difference."""
    if len(view.axes) == 3:
        raise InputError("--compare draws planes and lines: cut them out with --slice")
    same = list(view.axes) == list(other.axes) and all(
        alike(line, other.axes[axis]) for axis, line in view.axes.items()
    )
    paths = f"{view.solution.path} and {other.solution.path}"
    if not same:
        raise InputError(f"{paths} have other points: nothing can be subtracted")
    drawn = [(each.solution.time, each.frames[-1]) for each in (view, other)]
    times = np.array([time[frame] for time, frame in drawn if time is not None])
    if len(times) == 2 and not alike(times[:1], times[1:]):
        raise InputError(
            f"{paths} are drawn at t = {times[0]:.10g} and t = {times[1]:.10g}: name a time of "
            "both by --at-time"
        )
    return (_comparison_of_lines if len(view.axes) == 1 else _comparison_of_planes)(
        view, other, how
    )


def _comparison_of_lines(view: View, other: View, how: Look) -> Figure:
    """Both lines at the last time, the other one dashed; below them the first less the other."""
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
    _finish_lines(above, view, how, [values, others])
    _finish_lines(below, view, Look(), [])
    when = view.moment(view.frames[-1])
    set_title(drawing, ", ".join(filter(None, (view.solution.title, view.place, when))), above)
    return drawing


def _comparison_of_planes(view: View, other: View, how: Look) -> Figure:
    """Both planes on one scale of colours, and the first less the other."""
    width, height = box = box_of(view, longest=2.0)
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
    finite = difference[np.isfinite(difference)]
    most = float(np.abs(finite).max(initial=0.0)) or 1.0
    colours = colours_of(view.field, [values, others], how.log, how.limits)
    around = colours_of(DIFFERENCE, [finite], limits=(-most, most))
    for ax, each in zip(panels[:2], (view, other), strict=True):
        filled = _panel(ax, each, colours, each.solution.path.name, box)
        if how.over:
            FLOWLINES[how.over](ax, each, colours)
    add_bar_beside(panels[1], box, filled, colours, view.label(view.field))
    changed = _fill(panels[2], view, around, box, difference)
    panels[2].set_title(DIFFERENCE)
    add_bar_beside(panels[2], box, changed, around, DIFFERENCE)
    for ax in panels[1:]:
        name_axes(ax, view.label(list(view.axes)[1]), "")
        ax.yaxis.set_ticklabels([])
    set_title(drawing, view.title)
    return drawing


# ---- the velocity over a plane ---------------------------------------------------------------


def velocity_in(view: View) -> tuple[np.ndarray, np.ndarray]:
    """The velocity's two components in a plane, across and up. Raises InputError if it has none."""
    up, across = (f"velocity_{axis}" for axis in view.axes)
    for name in (across, up):
        if name not in view.solution.units:
            raise InputError(f"{view.solution.path} has no {name}, and so no arrows or streamlines")
    return view.read(across)[-1], view.read(up)[-1]


def vectors(ax: Axes, view: View, _: Colours) -> str:
    """Draw arrows of the velocity at evenly spread points; return the longest arrow's caption."""
    u, v = velocity_in(view)
    y, x = view.axes.values()
    apart = max(np.ptp(x), np.ptp(y)) / ARROWS
    rows, columns = (_spread(line, apart) for line in (y, x))
    u, v = u[np.ix_(rows, columns)], v[np.ix_(rows, columns)]
    speed = np.hypot(u, v)
    largest = float(np.nanmax(speed, initial=0.0)) or 1.0
    # The longest arrow reaches to the next point.
    ax.quiver(
        x[columns], y[rows], u, v, scale=largest / apart, scale_units="xy", angles="xy",
        width=0.005, edgecolor="0.15", linewidth=0.3, pivot="mid", color="white",
    )  # fmt: skip
    name, unit = "longest arrow", view.solution.units[f"velocity_{list(view.axes)[1]}"]
    return quantity(name, largest, unit)


def _spread(line: np.ndarray, apart: float) -> np.ndarray:
    """Numbers of points of a line, about the distance `apart` from each other."""
    stride = max(1, round(apart / (np.ptp(line) / (len(line) - 1))))
    return np.arange((len(line) - 1) % stride // 2, len(line), stride)


def streamlines(ax: Axes, view: View, colours: Colours) -> str:
    """Draw streamlines, dark on a map with a white middle; they need no caption."""
    u, v = velocity_in(view)
    y, x = (np.linspace(line[0], line[-1], len(line)) for line in view.axes.values())
    ratio = float(np.ptp(y) / np.ptp(x))
    density = (max(DENSITY / max(1.0, ratio), SPARSE), max(DENSITY * min(1.0, ratio), SPARSE))
    if not (np.hypot(np.nan_to_num(u), np.nan_to_num(v)) > 0.0).any():
        return ""  # nothing moves
    ax.streamplot(
        x, y, np.ma.masked_invalid(u), np.ma.masked_invalid(v), density=density,
        linewidth=0.6, arrowsize=0.6, color="0.2" if colours.map.name == DIVERGING else "white",
    )  # fmt: skip
    up, across = view.ends
    ax.set(xlim=across, ylim=up)
    return ""


FLOWLINES: dict[str, Callable[[Axes, View, Colours], str]] = {
    "vectors": vectors,
    "streamlines": streamlines,
}
