"""What the figures share: their style, their words, and how they are written."""

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

from heatsolve.errors import InputError
from heatsolve.io.disk import aside
from heatsolve.io.output import Solution
from heatsolve.streams import shown

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


LETTERS_OF_UNIT = 30
"""More of them are cut off."""


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


def label_of(solution: Solution, name: str) -> str:
    """Name and unit, as `velocity x (m/s)`."""
    unit = shown(solution.units[name], LETTERS_OF_UNIT)
    return name.replace("_", " ") + (f" ({unit})" if unit != "1" else "")


def quantity(name: str, value: float, unit: str) -> str:
    """Name, value and unit, as `t = 0.5 s`."""
    return f"{name} = {value:.4g}" + (f" {shown(unit, LETTERS_OF_UNIT)}" if unit != "1" else "")


def main_field(solution: Solution) -> str:
    """The temperature, or else the first field of a file."""
    return "temperature" if "temperature" in solution.names else solution.names[0]
