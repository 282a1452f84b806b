"""How fast a run was, beside the roof that the memory of its machine is."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from heatsolve.backends.registry import machine_name, make
from heatsolve.errors import HeatsolveError
from heatsolve.report import count
from heatsolve.tools.bench.sweeps import seconds_of_copy
from heatsolve_post.pieces import name_axes

COPIED = 1 << 24
"""Doubles of the copy that measures the roof, beyond the caches."""
DECADE = 10.0


def copy_bandwidth(attributes: dict[str, Any]) -> float | None:
    """Bytes read plus written in a second by the backend of a run; None on another machine."""
    if attributes.get("ranks", 1) != 1:
        return None
    try:
        backend = make(str(attributes.get("backend")))
    except HeatsolveError:
        return None
    if machine_name(backend) != attributes.get("machine"):
        return None
    return 16 * COPIED / seconds_of_copy(backend, (COPIED,))


def roofline_figure(attributes: dict[str, Any], bandwidth: float) -> Figure:
    """Points updated in a second against points for each byte that must move, both logarithmic.

    The roof is bandwidth x points a byte: S. Williams, A. Waterman and D. Patterson, Comm. ACM 52
    (2009), 65, with updates for operations. Above it is what several sweeps of one pass gain.
    """
    points, moved = attributes["points_updated"], attributes["bytes_moved"]
    intensity, rate = points / moved, points / attributes["solve_seconds"]
    drawing = Figure(figsize=(4.2, 3.0))
    ax = drawing.add_subplot(xscale="log", yscale="log")
    around = intensity * np.array([1.0 / DECADE, DECADE])
    ax.plot(around, bandwidth * around, color="0.3", label=f"copy, {count(bandwidth)}B/s")
    share = rate / (bandwidth * intensity)
    ax.plot(intensity, rate, "o", label=f"this run, {share:.2g} of the roof")
    name_axes(ax, "points updated for each byte", "points updated a second")
    ax.set_ylim(min(rate, bandwidth * intensity) / DECADE, bandwidth * around[1])
    ax.grid(color="0.88", linewidth=0.5)
    ax.legend(loc="upper left")
    return drawing
