"""Figures of a field file: 2D contours, 3D mid-planes, 1D lines, the residual history."""

import textwrap
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from heatsolve.errors import FileFailure, InputError
from heatsolve.output import Solution, read

FORMATS = ("png", "pdf", "svg")
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.linewidth": 0.6,
    "axes.formatter.use_mathtext": True,
    "axes.formatter.limits": (-3, 6),
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "savefig.bbox": "tight",
    "savefig.dpi": 250,
    "savefig.pad_inches": 0.04,
}
DRAWN_POINTS = 1000  # an axis of a figure shows no more than this
EQUAL_UP_TO = 8  # a longer box than this is not drawn to scale
LEVELS = 40


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


def image_format(output: Path) -> str:
    """The format that the suffix of a path asks for. Raises InputError if it is none of FORMATS."""
    kind = output.suffix[1:].lower() or "png"
    if kind not in FORMATS:
        raise InputError(f"cannot draw {output}: {kind} is not an image format")
    return kind


def save(drawing: Figure, output: Path) -> Path:
    """Write a figure in the format that its suffix asks for, and return its path.

    Raises InputError for an unknown format, FileFailure when the image cannot be written.
    """
    kind = image_format(output)
    try:
        with matplotlib.rc_context(STYLE):
            drawing.savefig(output, format=kind)
    except OSError as error:
        raise FileFailure(f"cannot write {output}: {error.strerror or error}") from error
    return output


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
    names = [name for name in solution.units if name not in {*axes, "time"}]
    field = field or ("temperature" if "temperature" in names else names[0])
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
    _name_axes(ax, axis, "residual")
    few = "." if residual.size < 40 else None
    ax.plot(solution.history[axis], residual, marker=few)
    threshold = solution.attributes.get("threshold")
    if threshold is not None:
        ax.axhline(float(threshold), color="0.3", dashes=(4, 3), linewidth=0.8, label="tolerance")
        ax.legend(loc="upper right")
    ax.grid(color="0.88", linewidth=0.5)
    ax.margins(x=0.01)
    _title(drawing, solution.title, ax)
    return drawing


def _lines(solution: Solution, field: str) -> Figure:
    """A profile; of a transient run at up to six times, evenly spread."""
    ((axis, x),) = solution.coordinates.items()
    values = solution.fields[field]
    kept = _thinned(len(x))
    drawing = Figure(figsize=(4.2, 3.0))
    ax = drawing.add_subplot()
    _name_axes(ax, _label(solution, axis), _label(solution, field))
    if solution.time is None:
        ax.plot(x[kept], values[kept])
    else:
        frames = np.unique(np.linspace(0, len(values) - 1, 6).round().astype(int))
        colours = matplotlib.colormaps[_colours(field)](np.linspace(0.05, 0.8, len(frames)))
        for frame, colour in zip(frames, colours, strict=True):
            when = _quantity("t", solution.time[frame], solution.units["time"])
            ax.plot(x[kept], values[frame, kept], color=colour, label=when)
        drawing.legend(loc="outside right center")
    ax.grid(color="0.88", linewidth=0.5)
    ax.margins(x=0)
    _title(drawing, solution.title, ax)
    return drawing


def _contours(solution: Solution, field: str) -> Figure:
    """Filled contours of a 2D field."""
    (y_axis, y), (x_axis, x) = solution.coordinates.items()
    values = solution.fields[field].reshape(-1, len(y), len(x))[-1]
    width, height = _box(x, y, longest=3.4)
    drawing = Figure(figsize=(width + 1.6, height + 1.4))
    ax = drawing.add_subplot()
    _name_axes(ax, _label(solution, x_axis), _label(solution, y_axis))
    filled = _fill(ax, x, y, values, _levels(values), _colours(field))
    # As an inset the bar follows the plane, whatever its shape; its bounds here are in inches.
    below = width > 2.5 * height
    left, bottom, across, up = (0, -0.58, width, 0.12) if below else (width + 0.12, 0, 0.12, height)
    bar = ax.inset_axes((left / width, bottom / height, across / width, up / height))
    _colourbar(
        drawing,
        filled,
        _label(solution, field),
        cax=bar,
        orientation="horizontal" if below else "vertical",
    )
    _title(drawing, _moment(solution), ax)
    return drawing


def _midplanes(solution: Solution, field: str) -> Figure:
    """The three mid-planes of a 3D field on one colour scale."""
    values = solution.fields[field].reshape(-1, *map(len, solution.coordinates.values()))[-1]
    levels = _levels(values)
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
        filled = _fill(ax, lines[right], lines[up], plane, levels, _colours(field))
        _name_axes(ax, _label(solution, right), _label(solution, up))
        where = _quantity(normal, lines[normal][middle], solution.units[normal])
        ax.set_title(where, parse_math=False)
        ax.xaxis.set_major_locator(MaxNLocator(2))  # more labels would touch in a narrow panel
    _colourbar(drawing, filled, _label(solution, field), ax=panels)
    _title(drawing, _moment(solution))
    return drawing


def _fill(
    ax: Axes, x: np.ndarray, y: np.ndarray, values: np.ndarray, levels: np.ndarray, colours: str
) -> QuadContourSet:
    """Contours of a plane `(y, x)`, to scale unless it is very long; NaN stays grey."""
    if min(values.shape) < 2:
        raise InputError("a plane one point wide cannot be drawn: it needs two points on each axis")
    across, up = _thinned(len(x)), _thinned(len(y))
    plane = np.ma.masked_invalid(values[np.ix_(up, across)].astype(float))
    ax.set_facecolor("0.8")
    if 1 / EQUAL_UP_TO <= np.ptp(y) / np.ptp(x) <= EQUAL_UP_TO:
        ax.set_aspect("equal")
    return ax.contourf(x[across], y[up], plane, levels, cmap=colours)


def _thinned(count: int) -> np.ndarray:
    """Indices of the points to draw, both ends among them."""
    return np.unique(np.linspace(0, count - 1, min(count, DRAWN_POINTS)).round().astype(int))


def _levels(values: np.ndarray) -> np.ndarray:
    """Contour levels over the finite range; a constant field gets a narrow range around it."""
    finite = values[np.isfinite(values)].astype(float)
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    size = max(abs(low), abs(high))
    if high - low <= 1e-12 * size:
        margin = 0.01 * size or 1.0
        low, high = low - margin, high + margin
    return np.linspace(low, high, LEVELS + 1)


def _box(x: np.ndarray, y: np.ndarray, longest: float) -> tuple[float, float]:
    """Width and height (inches) for a plane, to scale where `_fill` draws it so."""
    ratio = np.ptp(y) / np.ptp(x)
    if not 1 / EQUAL_UP_TO <= ratio <= EQUAL_UP_TO:
        ratio = np.clip(ratio, 1 / 3, 3)
    return longest / max(ratio, 1), longest * min(ratio, 1)


def _colourbar(drawing: Figure, filled: QuadContourSet, label: str, **place: Any) -> None:
    bar = drawing.colorbar(filled, ticks=MaxNLocator(6), **place)
    bar.set_label(label, parse_math=False)


# Names, units and titles are the user's: a `$` in them is no mathematics.


def _name_axes(ax: Axes, x: str, y: str) -> None:
    ax.set_xlabel(x, parse_math=False)
    ax.set_ylabel(y, parse_math=False)


def _title(drawing: Figure, text: str, ax: Axes | None = None) -> None:
    """Title of one axes, or of the whole figure, in lines of like length that fit its width."""
    most = int(14 * drawing.get_figwidth())
    count = -(-len(text) // most)
    lines = textwrap.fill(text, min(most, len(text) // max(count, 1) + 8))
    if ax:
        ax.set_title(lines, parse_math=False)
    else:
        drawing.suptitle(lines, fontsize="medium", parse_math=False)


def _moment(solution: Solution) -> str:
    """The title, with the time of the frame if the run was transient."""
    if solution.time is None:
        return solution.title
    return f"{solution.title}, {_quantity('t', solution.time[-1], solution.units['time'])}"


def _label(solution: Solution, name: str) -> str:
    """Name and unit, as `velocity x (m/s)`."""
    unit = solution.units[name]
    return name.replace("_", " ") + (f" ({unit})" if unit != "1" else "")


def _quantity(name: str, value: float, unit: str) -> str:
    """Name, value and unit, as `t = 0.5 s`."""
    return f"{name} = {value:.4g}" + (f" {unit}" if unit != "1" else "")


def _colours(field: str) -> str:
    """A perceptually uniform colour map."""
    return "inferno" if field == "temperature" else "viridis"
