"""The style of figures: fonts, axes that reach the walls, obstacles, and how files are written."""

import io
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.figure
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import MaxNLocator

from heatsolve.errors import InputError
from heatsolve.io.disk import aside
from heatsolve_post.view import View

DOTS = {"png": 250, "pdf": 400, "svg": 400}
"""An inch, by format: those of all of a PNG, and of the fields within a PDF or SVG."""
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
EQUAL_UP_TO = 8  # a longer box than this is not drawn to scale
MISSING = "0.8"
"""The grey of points without a value."""
SOLID, OUTLINE = "0.7", "0.15"
"""The grey of obstacles, and the one around them."""
ABOVE = 2.8
"""Obstacles are drawn over the field, arrows and streamlines, and below labels."""
ACROSS, UP = 0.65, 0.32
"""Least distance between two numbers of an axis, inches, along x and along y."""
MOST_TICKS = 5
"""Intervals between the numbers of an axis."""


@cache
def families() -> list[str]:
    """The fonts of figures: matplotlib's own, and behind it one for what that lacks, if there is
    one on this machine."""
    known = {font.name for font in font_manager.fontManager.ttflist}
    return ["sans-serif", *[name for name in EAST_ASIAN if name in known][:1]]


@contextmanager
def drawing_style(more: Mapping[str, Any] | None = None) -> Iterator[None]:
    """The style of figures, and `more`; around everything that draws them or writes them.

    Letters without a glyph are drawn as boxes, and a value far beyond the limits has the colour of
    their end: both show in the picture, and are not warned of.
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


# Names, units and titles are the user's: a `$` in them is no mathematics.


def name_axes(ax: Axes, x: str, y: str) -> None:
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
    """Width and height (inches) for a plane, to scale where `set_up_plane` draws it so."""
    ratio = _ratio(view)
    if not 1 / EQUAL_UP_TO <= ratio <= EQUAL_UP_TO:
        ratio = float(np.clip(ratio, 1 / 3, 3))
    return longest / max(ratio, 1), longest * min(ratio, 1)


def _ratio(view: View) -> float:
    """How much higher than wide a plane is. Raises InputError for one without width or height."""
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
    found = view.solid()
    if found is None:
        return
    (x,), share = found
    (turns,) = np.nonzero(np.diff(np.concatenate([[0], share > 0.5, [0]])))
    for first, stop in turns.reshape(-1, 2):
        ax.axvspan(x[first], x[stop - 1], facecolor=SOLID, edgecolor=OUTLINE, linewidth=0.6)


def draw_obstacles(ax: Axes, view: View) -> None:
    """Fill and outline the obstacles in a plane."""
    found = view.solid()
    if found is None or not (found[1] > 0.5).any():
        return
    (y, x), share = found
    ax.contourf(x, y, share, [0.5, 2.0], colors=[SOLID], zorder=ABOVE)
    ax.contour(x, y, share, [0.5], colors=[OUTLINE], linewidths=0.8, zorder=ABOVE)


def mark_ends(axis: Axis, ends: tuple[float, float], most: int) -> None:
    """Numbers on an axis: at both ends, and round ones between them, with `most` steps at most."""
    low, high = ends
    steps = MaxNLocator(min(max(1, most), MOST_TICKS), steps=[1, 2, 2.5, 5, 10]).tick_values(
        low, high
    )
    room = 0.5 * (steps[1] - steps[0])
    inner = [step for step in steps if low + room < step < high - room] if most > 1 else []
    ticks = [low, *inner, high]
    axis.set_ticks(ticks, _short(ticks))


def _short(ticks: list[float]) -> list[str] | None:
    """Numbers in as few digits as show them well, as 0, 2, 4, 6.28; None if that takes many."""
    room = 0.02 * float(np.diff(ticks).min())
    for digits in (3, 4, 5):
        texts = [f"{tick:.{digits}g}" for tick in ticks]
        off = max(abs(float(text) - tick) for text, tick in zip(texts, ticks, strict=True))
        if off <= room and not any("e" in text for text in texts):
            return [text.replace("-", "\N{MINUS SIGN}") for text in texts]
    return None
