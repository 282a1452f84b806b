"""What surrounds a field in a figure: axes that reach the walls, and the obstacles within them."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import MaxNLocator

from heatsolve.errors import InputError
from heatsolve_post.view import View

EQUAL_UP_TO = 8  # a longer box than this is not drawn to scale
NOTHING = "0.8"
"""The grey of points that have no number."""
SOLID, OUTLINE = "0.7", "0.15"
"""The grey of obstacles, and the one around them."""
ABOVE = 2.8
"""Obstacles are drawn over the field, arrows and streamlines, and below labels."""
ACROSS, UP = 0.65, 0.32
"""Inches from one number of an axis to the next, at least about."""
MOST = 5
"""Steps from number to number."""


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
    ax.set_facecolor(NOTHING)
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
    steps = MaxNLocator(min(max(1, most), MOST), steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
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
