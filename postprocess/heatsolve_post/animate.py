"""A film of a field: its frames one after the other, on one scale of colours."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.animation import AbstractMovieWriter, FFMpegWriter, PillowWriter
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from heatsolve.case.output import film_of
from heatsolve.errors import InputError
from heatsolve.io.disk import aside
from heatsolve.io.reader import evenly, read
from heatsolve_post.style import (
    Colours,
    Limits,
    add_bar_beside,
    bar_lies_below,
    box_of,
    colours_of,
    draw_obstacles,
    drawing_style,
    name_axes,
    set_title,
    set_up_line,
    set_up_plane,
    span_of,
)
from heatsolve_post.view import View, limits_of, look

FORMATS = ("mp4", "gif")
MOST_FRAMES = 400
"""The most frames of a film: a longer march shows evenly spread frames."""
DOTS = 130
"""Dots of an inch: a film of a plane has about 650 x 550 dots."""
BRIEF = 0.2
"""The largest share of the frames (at least one frame) that counts as the unsettled start."""
FAR = 1.5
"""Initial frames that reach beyond FAR times the range of a film's second half do not count. With
both limits a quantity that decays steadily loses no more than a seventh of its range."""


def animate(
    path: Path,
    output: Path | None = None,
    field: str | None = None,
    rate: int = 15,
    slices: Mapping[str, float] | None = None,
    limits: Limits | str | None = None,
) -> Path:
    """Draw the frames of a field file as a film of `rate` frames a second; return its path.

    By default the field is the temperature, or else the first field, and the film an MP4 beside the
    file, or a GIF where there is no encoder (the `video` extra brings one). Of a 3D field it shows
    the plane in the middle of the slowest axis, or at `slices`; see `view.look`. The colours span
    the `limits`, or else the range of the field once the run has settled. Raises InputError for a
    file of a single frame, for an unknown field or format, or a missing encoder, FileFailure where
    a file is damaged or cannot be written.
    """
    path = Path(path)
    solution = read(path, fields=())
    if solution.time is None or len(solution.time) < 2:
        raise InputError(f"{path} has one frame, and no film: heatsolve plot draws it")
    if not 1 <= rate <= 100:
        raise InputError(f"--rate must be 1 to 100 frames a second, not {rate}")
    bounds, encoder = limits_of(limits), _encoder()
    output = Path(output) if output else film_of(path, field or "", usual_format())
    kind = output.suffix[1:].lower()
    if kind not in FORMATS:
        raise InputError(f"cannot draw {output}: a film is one of {', '.join(FORMATS)}")
    if kind == "mp4" and not encoder:
        raise InputError("an MP4 needs an encoder: install heatsolve[video], or draw a GIF")
    view = _view(path, field, slices)
    # One layout and one size, for all frames.
    style = {"figure.constrained_layout.use": False, "savefig.bbox": None}
    with drawing_style(style | {"animation.ffmpeg_path": encoder}):
        every, settled = _ranges(view)
        colours = colours_of(view.field, [every], limits=bounds or settled)
        drawing, show = (_line if len(view.axes) == 1 else _plane)(view, colours)
        writer = _writer(kind, rate)
        with aside(output) as part, writer.saving(drawing, str(part), DOTS):
            for frame, values in frames(view):
                show(frame, values)
                writer.grab_frame()
    return output


def _view(path: Path, field: str | None, slices: Mapping[str, float] | None) -> View:
    """The view that the film shows, with at most MOST_FRAMES of the frames, evenly spread."""
    view = look(path, field, slices)
    if len(view.axes) == 3:
        slowest, line = next(iter(view.solution.coordinates.items()))
        view = view.cut(slowest, len(line) // 2)
    assert view.solution.time is not None
    return replace(view, frames=evenly(len(view.solution.time), MOST_FRAMES).tolist())


def usual_format() -> str:
    """The format of a film by default."""
    return "mp4" if _encoder() else "gif"


def _encoder() -> str:
    """The path of the program that makes an MP4, "" if there is none."""
    try:
        import imageio_ffmpeg
    except ImportError:
        return ""
    return imageio_ffmpeg.get_ffmpeg_exe()


def _writer(kind: str, rate: int) -> AbstractMovieWriter:
    if kind == "gif":
        return PillowWriter(fps=rate)
    # Players need the colours of yuv420p, which has even numbers of dots.
    even = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2:color=white", "-pix_fmt", "yuv420p"]
    return FFMpegWriter(fps=rate, codec="libx264", extra_args=even)


def frames(view: View) -> Iterator[tuple[int, np.ndarray]]:
    """The numbers of the frames of a view, and their values, one by one."""
    return zip(view.frames, view.every(view.field), strict=True)


def _ranges(view: View) -> tuple[np.ndarray, Limits]:
    """The lowest and highest value of each frame, and their range once the run has settled.

    The range leaves out the first frames if they are few and reach far beyond the second half: the
    pressure of a flow that is set off suddenly would leave no colours for the rest.
    """
    extremes = []
    for _, values in frames(view):
        finite = values[np.isfinite(values)]
        extremes.append([finite.min(initial=np.inf), finite.max(initial=-np.inf)])
    bounds = np.array(extremes, dtype=float)
    bounds = np.where(np.isfinite(bounds), bounds, np.nan)
    count, first = len(bounds), 0
    half = bounds[count // 2 :]
    if np.isfinite(half).any():
        low, high = np.nanmin(half), np.nanmax(half)
        far = 0.5 * FAR * (high - low)
        beyond = np.abs(bounds - 0.5 * (low + high)).max(axis=1) > far
        after = 1 + int(np.max(np.nonzero(beyond)[0], initial=-1))
        if high > low and after <= max(1, BRIEF * count):
            first = after
    return bounds, span_of(bounds[first:][np.isfinite(bounds[first:])])


Show = Callable[[int, np.ndarray], None]
"""Shows a frame in a figure."""


def _axes(width: float, height: float, right: float, below: float = 0.0) -> tuple[Figure, Axes]:
    """Axes of a width and a height, with room to the right and below (inches)."""
    left, bottom, above = 0.75, 0.5 + below, 0.5
    across, up = left + width + right, bottom + height + above
    drawing = Figure(figsize=(across, up))
    return drawing, drawing.add_axes((left / across, bottom / up, width / across, height / up))


def _line(view: View, colours: Colours) -> tuple[Figure, Show]:
    ((axis, x),) = view.axes.items()
    width, height = 3.8, 2.5
    drawing, ax = _axes(width, height, right=0.2)
    name_axes(ax, view.label(axis), view.label(view.field))
    (curve,) = ax.plot(x, np.full(x.shape, np.nan))
    room = 0.05 * (colours.high - colours.low)
    ax.set_ylim(colours.low - room, colours.high + room)
    ax.grid()
    set_up_line(ax, view, width)

    def show(frame: int, values: np.ndarray) -> None:
        curve.set_ydata(values)
        set_title(drawing, replace(view, frames=(frame,)).title, ax)

    return drawing, show


def _plane(view: View, colours: Colours) -> tuple[Figure, Show]:
    up, across = view.axes
    width, height = box = box_of(view, longest=3.8)
    lies_below = bar_lies_below(width, height)
    drawing, ax = _axes(width, height, 0.3 if lies_below else 1.1, 0.7 if lies_below else 0.0)
    name_axes(ax, view.label(across), view.label(up))
    set_up_plane(ax, view, box)
    (y, x), values = view.up_to_the_walls(np.zeros([len(line) for line in view.axes.values()]))
    mesh = ax.pcolormesh(
        x, y, values, cmap=colours.map, norm=colours.norm, shading="gouraud", rasterized=True
    )
    draw_obstacles(ax, view)
    add_bar_beside(ax, box, mesh, colours, view.label(view.field))

    def show(frame: int, values: np.ndarray) -> None:
        _, values = view.up_to_the_walls(values.astype(float))
        # A centred scale reaches beyond one of the limits: values there keep the limit's colour.
        mesh.set_array(np.ma.masked_invalid(np.clip(values, colours.low, colours.high)))
        set_title(drawing, replace(view, frames=(frame,)).title, ax)

    return drawing, show
