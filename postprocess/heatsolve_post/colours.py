"""The colours of fields in figures: maps, scales, and the bars that explain them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import CenteredNorm, Colormap, LogNorm, Normalize, SymLogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterMathtext, LogLocator, MaxNLocator, SymmetricalLogLocator

from heatsolve.errors import InputError

LEVELS = 41
"""Bands of colour: an odd number, so that 0 lies within a white one between equal limits."""
ROUNDING = 1e-9
"""Of a range: what is beyond it by less counts as inside."""
DECADES = 1e-8
"""Of the largest value: a logarithmic scale shows nothing smaller."""
SIGNED_DECADES = 1e-3
"""The same where there are values of both signs; what is smaller is drawn on a linear scale."""
FEW_DECADES = 100.0  # what spans less may have no power of ten to be marked
DIVERGING = "RdBu_r"
"""Blue for values below 0, white for 0, red for those above."""
DIFFERENCE = "difference"

Limits = tuple[float, float]
Extend = Literal["neither", "min", "max", "both"]
EXTENDS: dict[tuple[bool, bool], Extend] = {
    (False, False): "neither",
    (True, False): "min",
    (False, True): "max",
    (True, True): "both",
}
"""What matplotlib calls it that values lie below a range, above it, or both."""


@dataclass(frozen=True)
class Colours:
    """How values become colours: those from `low` to `high` by a scale `norm` and a map.

    `extend` says whether there are values below or above, which have the colours of the ends.
    """

    map: Colormap
    norm: Normalize
    low: float
    high: float
    extend: Extend

    @property
    def levels(self) -> np.ndarray:
        """Of contours, evenly spread on the scale."""
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
    """The colours of a field for all finite values of some arrays, or from one limit to another.

    Velocities, pressures and differences have a diverging map that is centred at 0, unless 0 lies
    further from their values than these from each other. Raises InputError for a logarithmic
    scale where nothing has a logarithm.
    """
    every = np.concatenate([array[np.isfinite(array)] for array in values]).astype(float)
    norm = logarithmic(every, limits) if log else Normalize(*(limits or span_of(every)))
    assert norm.vmin is not None and norm.vmax is not None
    low, high = float(norm.vmin), float(norm.vmax)
    chosen, largest = matplotlib.colormaps[_map_of(field, low, high)], max(abs(low), abs(high))
    if chosen.name == DIVERGING and isinstance(norm, SymLogNorm):
        norm = SymLogNorm(norm.linthresh, vmin=-largest, vmax=largest)
    elif chosen.name == DIVERGING and not isinstance(norm, LogNorm):
        norm = CenteredNorm(0.0, largest)
    room = ROUNDING * (high - low)
    beyond = bool((every < low - room).any()), bool((every > high + room).any())
    under, over = (tuple(colour) for colour in chosen(np.asarray(norm([low, high]))))
    chosen = chosen.with_extremes(under=under, over=over)
    return Colours(chosen, norm, low, high, EXTENDS[beyond])


def _map_of(field: str, low: float, high: float) -> str:
    """The name of a perceptually uniform map, or of a diverging one."""
    signed = field in ("pressure", DIFFERENCE) or field.startswith("velocity_")
    if signed and max(low, -high) <= high - low:
        return DIVERGING
    return "inferno" if field == "temperature" else "viridis"


def span_of(values: np.ndarray) -> Limits:
    """The range of finite values; that of a constant field is a narrow one around it."""
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    size = max(abs(low), abs(high))
    if high - low <= 1e-12 * size:
        margin = 0.01 * size or 1.0
        low, high = low - margin, high + margin
    return low, high


def logarithmic(values: np.ndarray, limits: Limits | None = None) -> LogNorm | SymLogNorm:
    """A logarithmic scale for finite values; where they have both signs it is linear about 0.

    Raises InputError where there is nothing that has a logarithm.
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
    drawing: Figure,
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
    """Whether the bar of a plane lies below it."""
    return width > 2.5 * height


def add_bar_beside(
    ax: Axes, box: tuple[float, float], filled: ScalarMappable, colours: Colours, label: str
) -> None:
    """A colour bar as long as a plane, whose width and height (inches) are those of `box`."""
    width, height = box
    below = bar_lies_below(width, height)
    # As an inset the bar follows the plane, whatever its shape; its bounds here are in inches.
    left, bottom, across, up = (0, -0.58, width, 0.12) if below else (width + 0.12, 0, 0.12, height)
    bar = ax.inset_axes((left / width, bottom / height, across / width, up / height))
    way = "horizontal" if below else "vertical"
    drawing = ax.get_figure(root=True)
    assert drawing is not None
    most = 6 if max(width, height) > 2.5 else 4  # or their numbers would touch
    add_colourbar(drawing, filled, colours, label, most, cax=bar, orientation=way)
