"""The velocity over a plane of a figure: arrows, or streamlines."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes

from heatsolve.errors import InputError
from heatsolve_post.colours import DIVERGING, Colours
from heatsolve_post.pieces import quantity
from heatsolve_post.view import View

ARROWS = 22
"""Along the longer side of a plane."""
DENSITY, SPARSE = 1.1, 0.35
"""Of streamlines along the longer side, and at least, in matplotlib's measure."""


def velocity_in(view: View) -> tuple[np.ndarray, np.ndarray]:
    """The two components of the velocity in a plane, across and up. Raises InputError for none."""
    up, across = (f"velocity_{axis}" for axis in view.axes)
    for name in (across, up):
        if name not in view.solution.units:
            raise InputError(f"{view.solution.path} has no {name}, and so no arrows or streamlines")
    return view.read(across)[-1], view.read(up)[-1]


def vectors(ax: Axes, view: View, _: Colours) -> str:
    """Arrows of the velocity at evenly spread points; what the longest one says."""
    u, v = velocity_in(view)
    y, x = view.axes.values()
    apart = max(np.ptp(x), np.ptp(y)) / ARROWS
    rows, columns = (_spread(line, apart) for line in (y, x))
    u, v = u[np.ix_(rows, columns)], v[np.ix_(rows, columns)]
    speed = np.hypot(u, v)
    largest = float(np.nanmax(speed, initial=0.0)) or 1.0
    # The longest one reaches to the next point.
    ax.quiver(
        x[columns], y[rows], u, v, scale=largest / apart, scale_units="xy", angles="xy",
        width=0.005, edgecolor="0.15", linewidth=0.3, pivot="mid", color="white",
    )  # fmt: skip
    name, unit = "longest arrow", view.solution.units[f"velocity_{list(view.axes)[1]}"]
    return quantity(name, largest, unit)


def _spread(line: np.ndarray, apart: float) -> np.ndarray:
    """Numbers of points of a line, about so far apart."""
    stride = max(1, round(apart / (np.ptp(line) / (len(line) - 1))))
    return np.arange((len(line) - 1) % stride // 2, len(line), stride)


def streamlines(ax: Axes, view: View, colours: Colours) -> str:
    """Lines along the velocity, which need no words; dark on a map that is white in its middle."""
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
