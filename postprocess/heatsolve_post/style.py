"""The style of figures: fonts, axes that reach the walls, obstacles, and how files are written."""

import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import matplotlib
import matplotlib.figure
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import CenteredNorm, Colormap, LogNorm, Normalize, SymLogNorm
from matplotlib.ticker import LogFormatterMathtext, LogLocator, MaxNLocator, SymmetricalLogLocator

from heatsolve.errors import InputError
from heatsolve.io.disk import aside
from heatsolve_post.view import View

DOTS = {"png": 250, "pdf": 400, "svg": 400}
"""Dots an inch, by format: for a whole PNG, for the fields within a PDF or SVG."""
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.linewidth": 0.6,
    "axes.formatter.use_mathtext": True,
    "axes.formatter.limits": (-3, 6),
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.2,
    "grid.color": "0.88",
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "savefig.bbox": "tight",
    "savefig.pad_inches": 0.04,
    "pdf.fonttype": 42,  # TrueType: journals refuse the Type 3 fonts of matplotlib's default
    "ps.fonttype": 42,
}
EAST_ASIAN = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC",
    "Source Han Sans CN", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Droid Sans Fallback",
    "PingFang SC", "Hiragino Sans GB", "Heiti TC", "STHeiti", "Microsoft YaHei", "SimHei",
    "Arial Unicode MS",
)  # fmt: skip
"""Fonts of Linux, macOS and Windows with letters that matplotlib's own font lacks, best first."""
CURVE = (4.2, 3.0)
"""Width and height of the figure of a curve, inches."""
EQUAL_UP_TO = 8  # a longer box than this is not drawn to scale
MISSING = "0.8"
"""The grey of points without a value."""
SOLID, OUTLINE = "0.7", "0.15"
"""The grey of obstacles, and the grey of their outlines."""
ABOVE = 2.8
"""The order of obstacles: drawn over the field, arrows and streamlines, and below labels."""
ACROSS, UP = 0.65, 0.32
"""Least distance between two numbers of an axis, inches, along x and along y."""
MOST_TICKS = 5
"""Intervals between the numbers of an axis."""


@cache
def families() -> list[str]:
    """The fonts of figures: matplotlib's own, then a font with more letters, if this machine has
    one."""
    known = {font.name for font in font_manager.fontManager.ttflist}
    return ["sans-serif", *[name for name in EAST_ASIAN if name in known][:1]]


@contextmanager
def drawing_style(more: Mapping[str, Any] | None = None) -> Iterator[None]:
    """The style of figures, with `more` settings: the context in which they are drawn and written.

    Letters without a glyph are drawn as boxes, and a value far beyond the limits has the colour of
    their end: both show in the picture, so no warning is given.
    """
    style = STYLE | {"font.family": families()} | (more or {})
    with warnings.catch_warnings(), np.errstate(over="ignore"), matplotlib.rc_context(style):
        warnings.filterwarnings("ignore", r"Glyph .* missing from font", UserWarning)
        yield


class Figure(matplotlib.figure.Figure):
    """A figure that a notebook shows where it is the last value of a cell."""

    def _repr_png_(self) -> bytes:
        image = io.BytesIO()
        with drawing_style():
            self.savefig(image, format="png", dpi=110, bbox_inches="tight")
        return image.getvalue()


def one_curve(x: str, y: str, title: str = "", **scales: str) -> tuple[Figure, Axes]:
    """A figure of one curve, its axes named, with a light grid."""
    drawing = Figure(figsize=CURVE)
    ax = drawing.add_subplot(**scales)
    name_axes(ax, x, y)
    ax.grid()
    set_title(drawing, title, ax)
    return drawing, ax


def shades(count: int) -> list[Any]:
    """Colours of this number of successive lines."""
    if count == 1:
        return ["C0"]
    return list(matplotlib.colormaps["viridis"](np.linspace(0.05, 0.8, count)))


def image_format(output: Path) -> str:
    """The format that the suffix of a path asks for. Raises InputError if it is none of DOTS."""
    kind = output.suffix[1:].lower() or "png"
    if kind not in DOTS:
        raise InputError(f"cannot draw {output}: {kind} is not an image format")
    return kind


def save(drawing: matplotlib.figure.Figure, output: Path) -> Path:
    """Write a figure in the format that its suffix asks for, and return its path.

    Raises InputError for an unknown format, FileFailure when the image cannot be written.
    """
    kind = image_format(output)
    with aside(output) as part, drawing_style():
        drawing.savefig(part, format=kind, dpi=DOTS[kind])
    return output


def name_axes(ax: Axes, x: str, y: str) -> None:
    """Name both axes; a `$` in the name of a user's field is no mathematics."""
    ax.set_xlabel(x, parse_math=False)
    ax.set_ylabel(y, parse_math=False)


def set_title(drawing: matplotlib.figure.Figure, text: str, ax: Axes | None = None) -> None:
    """Title of one axes, or of the whole figure, in lines of like length that fit its width."""
    most = int(14 * drawing.get_figwidth())
    count = -(-len(text) // most)
    lines = textwrap.fill(text, min(most, len(text) // max(count, 1) + 8))
    if ax:
        ax.set_title(lines, parse_math=False)
    else:
        drawing.suptitle(lines, fontsize="medium", parse_math=False)


# ---- axes of lines and planes ----------------------------------------------------------------


def box_of(view: View, longest: float) -> tuple[float, float]:
    """Width and height (inches) for a plane, to scale where `set_up_plane` draws to scale."""
    ratio = _ratio(view)
    if not 1 / EQUAL_UP_TO <= ratio <= EQUAL_UP_TO:
        ratio = float(np.clip(ratio, 1 / 3, 3))
    return longest / max(ratio, 1), longest * min(ratio, 1)


def _ratio(view: View) -> float:
    """Height over width of a plane. Raises InputError for a plane without width or height."""
    if min(map(len, view.axes.values())) < 2:
        raise InputError("a plane one point wide cannot be drawn: it needs two points on each axis")
    up, across = (high - low for low, high in view.ends)
    return up / across


def set_up_plane(ax: Axes, view: View, box: tuple[float, float]) -> None:
    """Axes from wall to wall, with one scale unless the plane is very long.

    `box` is their width and height (inches).
    """
    if 1 / EQUAL_UP_TO <= _ratio(view) <= EQUAL_UP_TO:
        ax.set_aspect("equal")
    ax.set_facecolor(MISSING)
    up, across = view.ends
    ax.set(xlim=across, ylim=up)
    mark_ends(ax.xaxis, across, round(box[0] / ACROSS))
    mark_ends(ax.yaxis, up, round(box[1] / UP))


def set_up_line(ax: Axes, view: View, width: float) -> None:
    """An axis from wall to wall, `width` inches long, with the obstacles that it crosses."""
    (ends,) = view.ends
    ax.set_xlim(ends)
    mark_ends(ax.xaxis, ends, round(width / ACROSS))
    solid = view.solid()
    if solid is None:
        return
    (x,), share = solid
    (turns,) = np.nonzero(np.diff(np.concatenate([[0], share > 0.5, [0]])))
    for first, stop in turns.reshape(-1, 2):
        ax.axvspan(x[first], x[stop - 1], facecolor=SOLID, edgecolor=OUTLINE, linewidth=0.6)


def draw_obstacles(ax: Axes, view: View) -> None:
    """Fill and outline the obstacles in a plane."""
    solid = view.solid()
    if solid is None or not (solid[1] > 0.5).any():
        return
    (y, x), share = solid
    ax.contourf(x, y, share, [0.5, 2.0], colors=[SOLID], zorder=ABOVE)
    ax.contour(x, y, share, [0.5], colors=[OUTLINE], linewidths=0.8, zorder=ABOVE)


def mark_ends(axis: Axis, ends: tuple[float, float], most: int) -> None:
    """Put numbers on an axis: at both ends, and round numbers between, in at most `most` steps."""
    low, high = ends
    steps = MaxNLocator(min(max(1, most), MOST_TICKS), steps=[1, 2, 2.5, 5, 10]).tick_values(
        low, high
    )
    room = 0.5 * (steps[1] - steps[0])
    inner = [step for step in steps if low + room < step < high - room] if most > 1 else []
    ticks = [low, *inner, high]
    axis.set_ticks(ticks, _short(ticks))


def _short(ticks: list[float]) -> list[str] | None:
    """Numbers in the fewest digits that suffice, as 0, 2, 4, 6.28; None if five do not."""
    room = 0.02 * float(np.diff(ticks).min())
    for digits in (3, 4, 5):
        texts = [f"{tick:.{digits}g}" for tick in ticks]
        off = max(abs(float(text) - tick) for text, tick in zip(texts, ticks, strict=True))
        if off <= room and not any("e" in text for text in texts):
            return [text.replace("-", "\N{MINUS SIGN}") for text in texts]
    return None


# ---- colours: maps, scales and bars -------------------------------------------------------------

LEVELS = 41
"""Bands of colour: an odd number, so that 0 lies within a white one between equal limits."""
ROUNDING = 1e-9
"""Values beyond a range by less than this share of it count as inside."""
DECADES = 1e-8
"""A logarithmic scale shows no values below this share of the largest value."""
SIGNED_DECADES = 1e-3
"""With values of both signs the scale is linear below this share of the largest magnitude."""
FEW_DECADES = 100.0  # a shorter range may have no power of ten to be marked
DIVERGING = "RdBu_r"
"""Blue for values below 0, white for 0, red for values above."""
DIFFERENCE = "difference"

Limits = tuple[float, float]
Extend = Literal["neither", "min", "max", "both"]
EXTENDS: dict[tuple[bool, bool], Extend] = {
    (False, False): "neither",
    (True, False): "min",
    (False, True): "max",
    (True, True): "both",
}
"""Matplotlib's word for values below a range, above it, or both."""


@dataclass(frozen=True)
class Colours:
    """The colours of values from `low` to `high`, by a scale `norm` and a map.

    `extend` says whether there are values below or above, which have the colours of the ends.
    """

    map: Colormap
    norm: Normalize
    low: float
    high: float
    extend: Extend

    @property
    def levels(self) -> np.ndarray:
        """The levels of contours, evenly spread on the scale."""
        low, high = np.asarray(self.norm([self.low, self.high]))
        return np.unique(self.norm.inverse(np.linspace(low, high, LEVELS + 1)))

    def ticks(self, most: int) -> np.ndarray:
        """Round numbers from the lowest value to the highest."""
        steps = np.asarray(MaxNLocator(most).tick_values(self.low, self.high))
        room = ROUNDING * (self.high - self.low)
        return steps[(steps >= self.low - room) & (steps <= self.high + room)]


def colours_of(
    field: str, values: Sequence[np.ndarray], log: bool = False, limits: Limits | None = None
) -> Colours:
    """The colours of a field for all finite values of some arrays, or between the `limits`.

    Velocities, pressures and differences have a diverging map that is centred at 0, unless 0 is
    further from the range of their values than the range is wide. Raises InputError for a
    logarithmic scale where no value has a logarithm.
    """
    every = np.concatenate([array[np.isfinite(array)] for array in values]).astype(float)
    norm = logarithmic(every, limits) if log else Normalize(*(limits or span_of(every)))
    assert norm.vmin is not None and norm.vmax is not None
    low, high = float(norm.vmin), float(norm.vmax)
    largest, name = max(abs(low), abs(high)), "inferno" if field == "temperature" else "viridis"
    if SIGNED.match(field) and max(low, -high) <= high - low:
        name = DIVERGING
    chosen = matplotlib.colormaps[name]
    if chosen.name == DIVERGING and isinstance(norm, SymLogNorm):
        norm = SymLogNorm(norm.linthresh, vmin=-largest, vmax=largest)
    elif chosen.name == DIVERGING and not isinstance(norm, LogNorm):
        norm = CenteredNorm(0.0, largest)
    room = ROUNDING * (high - low)
    beyond = bool((every < low - room).any()), bool((every > high + room).any())
    under, over = (tuple(colour) for colour in chosen(np.asarray(norm([low, high]))))
    chosen = chosen.with_extremes(under=under, over=over)
    return Colours(chosen, norm, low, high, EXTENDS[beyond])


SIGNED = re.compile(
    r"pressure|velocity_|vorticity|q_criterion|stream_function|heat_flux_|.*_gradient_[xyz]$"
    rf"|{re.escape(DIFFERENCE)}$"
)
"""The names of fields of both signs, which have a level of its own for 0."""


def span_of(values: np.ndarray) -> Limits:
    """The range of finite values; around a constant field a narrow one."""
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    size = max(abs(low), abs(high))
    if high - low <= 1e-12 * size:
        margin = 0.01 * size or 1.0
        low, high = low - margin, high + margin
    return low, high


def logarithmic(values: np.ndarray, limits: Limits | None = None) -> LogNorm | SymLogNorm:
    """A logarithmic scale for finite values; where they have both signs it is linear about 0.

    Raises InputError where no value has a logarithm.
    """
    largest = float(np.abs(limits if limits else values).max(initial=0.0))
    if largest == 0.0:
        raise InputError("a field that is 0 everywhere has no logarithm")
    if values.min(initial=0.0) < 0.0:
        linear = 10.0 ** np.ceil(np.log10(largest * SIGNED_DECADES))
        ends = (min(values.min(), -linear), max(values.max(), linear))
        low, high = limits or map(float, ends)
        return SymLogNorm(linear, vmin=low, vmax=high)
    if limits:
        if limits[0] <= 0.0:
            raise InputError("--limits of a logarithmic scale must be greater than 0")
        return LogNorm(*limits)
    lowest = max(float(values[values > 0.0].min()), largest * DECADES)
    return LogNorm(min(lowest, 0.5 * largest), largest)


def add_colourbar(
    drawing: matplotlib.figure.Figure,
    filled: ScalarMappable,
    colours: Colours,
    label: str,
    most: int = 6,
    **place: Any,
) -> None:
    """A bar of the colours from the lowest to the highest value, with at most `most` numbers."""
    norm = colours.norm
    if isinstance(norm, SymLogNorm):
        place["ticks"] = SymmetricalLogLocator(base=10, linthresh=norm.linthresh)
        place["format"] = LogFormatterMathtext(linthresh=norm.linthresh)
    elif isinstance(norm, LogNorm):
        if colours.high >= FEW_DECADES * colours.low:
            place["ticks"] = LogLocator(base=10)
        else:
            place["ticks"], place["format"] = colours.ticks(most), "%g"
    else:
        place["ticks"] = colours.ticks(most)
    bar = drawing.colorbar(filled, extend=colours.extend, **place)
    # A map that is centred at 0 may reach further to one side than the values.
    along = bar.ax.set_xlim if bar.orientation == "horizontal" else bar.ax.set_ylim
    along(colours.low, colours.high)
    if bar.solids is not None:
        bar.solids.set_edgecolor("face")  # else viewers of PDF show seams between the colours
    bar.ax.minorticks_off()
    bar.set_label(label, parse_math=False)


def bar_lies_below(width: float, height: float) -> bool:
    """Whether the colour bar of a plane lies below the plane, not beside it."""
    return width > 2.5 * height


def add_bar_beside(
    ax: Axes, box: tuple[float, float], filled: ScalarMappable, colours: Colours, label: str
) -> None:
    """A colour bar as long as a plane of the width and height `box` (inches)."""
    width, height = box
    below = bar_lies_below(width, height)
    # As an inset the bar follows the plane, whatever its shape; its bounds here are in inches.
    left, bottom, across, up = (0, -0.58, width, 0.12) if below else (width + 0.12, 0, 0.12, height)
    bar = ax.inset_axes((left / width, bottom / height, across / width, up / height))
    way = "horizontal" if below else "vertical"
    drawing = ax.get_figure(root=True)
    assert drawing is not None
    most = 6 if max(width, height) > 2.5 else 4  # more numbers would touch
    add_colourbar(drawing, filled, colours, label, most, cax=bar, orientation=way)
