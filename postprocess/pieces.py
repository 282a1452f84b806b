"""What the figures share: their style, their scales, their words, and how they are written."""

import io
import textwrap
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.figure
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, SymLogNorm
from matplotlib.ticker import LogFormatterMathtext, LogLocator, MaxNLocator, SymmetricalLogLocator

from heatsolve.errors import FileFailure, InputError
from heatsolve.output import Solution

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
EQUAL_UP_TO = 8  # a longer box than this is not drawn to scale
LEVELS = 40
FEW_DECADES = 100.0  # what spans less may have no power of ten to be marked


class Figure(matplotlib.figure.Figure):
    """A figure that a notebook shows where it is the last value of a cell."""

    def _repr_png_(self) -> bytes:
        image = io.BytesIO()
        self.savefig(image, format="png", dpi=110, bbox_inches="tight")
        return image.getvalue()


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


def levels_of(values: np.ndarray) -> np.ndarray:
    """Contour levels over the finite range; a constant field gets a narrow range around it."""
    finite = values[np.isfinite(values)].astype(float)
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    size = max(abs(low), abs(high))
    if high - low <= 1e-12 * size:
        margin = 0.01 * size or 1.0
        low, high = low - margin, high + margin
    return np.linspace(low, high, LEVELS + 1)


def box_of(x: np.ndarray, y: np.ndarray, longest: float) -> tuple[float, float]:
    """Width and height (inches) for a plane, to scale where `draw_to_scale` does so."""
    ratio = np.ptp(y) / np.ptp(x)
    if not 1 / EQUAL_UP_TO <= ratio <= EQUAL_UP_TO:
        ratio = np.clip(ratio, 1 / 3, 3)
    return longest / max(ratio, 1), longest * min(ratio, 1)


def draw_to_scale(ax: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """Let both axes have one scale, unless the plane is very long."""
    if 1 / EQUAL_UP_TO <= np.ptp(y) / np.ptp(x) <= EQUAL_UP_TO:
        ax.set_aspect("equal")


def add_colourbar(
    drawing: matplotlib.figure.Figure, filled: ScalarMappable, label: str, **place: Any
) -> None:
    norm = filled.norm
    if isinstance(norm, SymLogNorm):
        place["ticks"] = SymmetricalLogLocator(base=10, linthresh=norm.linthresh)
        place["format"] = LogFormatterMathtext(linthresh=norm.linthresh)
    elif isinstance(norm, LogNorm):
        if norm.inverse(1.0) >= FEW_DECADES * norm.inverse(0.0):
            place["ticks"] = LogLocator(base=10)
        else:
            place["ticks"], place["format"] = MaxNLocator(6), "%g"
    else:
        place.setdefault("ticks", MaxNLocator(6))
    bar = drawing.colorbar(filled, **place)
    bar.ax.minorticks_off()
    bar.set_label(label, parse_math=False)


def bar_lies_below(width: float, height: float) -> bool:
    """Whether the bar of a plane lies below it."""
    return width > 2.5 * height


def add_bar_beside(ax: Axes, box: tuple[float, float], filled: ScalarMappable, label: str) -> None:
    """A colour bar as long as a plane, whose width and height (inches) are those of `box`."""
    width, height = box
    below = bar_lies_below(width, height)
    # As an inset the bar follows the plane, whatever its shape; its bounds here are in inches.
    left, bottom, across, up = (0, -0.58, width, 0.12) if below else (width + 0.12, 0, 0.12, height)
    bar = ax.inset_axes((left / width, bottom / height, across / width, up / height))
    way = "horizontal" if below else "vertical"
    drawing = ax.get_figure(root=True)
    assert drawing is not None
    few = MaxNLocator(6 if max(width, height) > 2.5 else 4)  # or their numbers would touch
    add_colourbar(drawing, filled, label, cax=bar, orientation=way, ticks=few)


# Names, units and titles are the user's: a `$` in them is no mathematics.


def name_axes(ax: Axes, x: str, y: str) -> None:
    ax.set_xlabel(x, parse_math=False)
    ax.set_ylabel(y, parse_math=False)


def set_title(drawing: Figure, text: str, ax: Axes | None = None) -> None:
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
    unit = solution.units[name]
    return name.replace("_", " ") + (f" ({unit})" if unit != "1" else "")


def quantity(name: str, value: float, unit: str) -> str:
    """Name, value and unit, as `t = 0.5 s`."""
    return f"{name} = {value:.4g}" + (f" {unit}" if unit != "1" else "")


def colour_map(field: str) -> str:
    """A perceptually uniform colour map."""
    return "inferno" if field == "temperature" else "viridis"


def main_field(solution: Solution) -> str:
    """The temperature, or else the first field of a file."""
    return "temperature" if "temperature" in solution.names else solution.names[0]
