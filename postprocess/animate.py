"""A film of a field: its frames one after the other, on one scale of colours."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.animation import AbstractMovieWriter, FFMpegWriter, PillowWriter
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from heatsolve.errors import FileFailure, InputError
from heatsolve.output import cuts, evenly, read
from heatsolve.postprocess.pieces import (
    STYLE,
    add_bar_beside,
    bar_lies_below,
    box_of,
    colour_map,
    draw_to_scale,
    name_axes,
    set_title,
)
from heatsolve.postprocess.view import DRAWN_POINTS, View, look

FORMATS = ("mp4", "gif")
MOST_FRAMES = 400
"""Of a film: of more, evenly spread ones are shown."""
DOTS = 130
"""Of an inch: a film of a plane has about 650 x 550 of them."""


def animate(
    path: Path,
    output: Path | None = None,
    field: str | None = None,
    rate: int = 15,
    slices: Mapping[str, float] | None = None,
) -> Path:
    """Draw the frames of a field file as a film, so many a second; its path.

    By default the field is the temperature, or else the first one, and the film an MP4 beside the
    file, or a GIF where there is no encoder (the `video` extra brings one). In space it shows the
    plane in the middle of the slowest axis, or that of `slices`; see `view.look`. Raises InputError
    for a file of a single frame, for an unknown field or format, or a missing encoder, FileFailure
    where a file is damaged or cannot be written.
    """
    path = Path(path)
    solution = read(path, fields=())
    if solution.time is None or len(solution.time) < 2:
        raise InputError(f"{path} has one frame, and no film: heatsolve plot draws it")
    if not 1 <= rate <= 100:
        raise InputError(f"--rate must be 1 to 100 frames a second, not {rate}")
    encoder = _encoder()
    chosen = f"_{field}" if field else ""  # as a film that a case asks for
    default = f"{path.name.removesuffix('.h5')}{chosen}.{usual_format()}"
    output = Path(output) if output else path.with_name(default)
    kind = output.suffix[1:].lower()
    if kind not in FORMATS:
        raise InputError(f"cannot draw {output}: a film is one of {', '.join(FORMATS)}")
    if kind == "mp4" and not encoder:
        raise InputError("an MP4 needs an encoder: install heatsolve[video], or draw a GIF")
    view = _view(path, field, slices)
    # One layout and one size, for all frames.
    style = {"figure.constrained_layout.use": False, "savefig.bbox": None}
    with matplotlib.rc_context(STYLE | style | {"animation.ffmpeg_path": encoder}):
        low, high = _range(view)
        drawing, show = (_line if len(view.axes) == 1 else _plane)(view, low, high)
        writer = _writer(kind, rate)
        try:
            with writer.saving(drawing, str(output), DOTS):
                for frame, values in frames(view):
                    show(frame, values)
                    writer.grab_frame()
        except OSError as error:
            raise FileFailure(f"cannot write {output}: {error.strerror or error}") from error
    return output


def _view(path: Path, field: str | None, slices: Mapping[str, float] | None) -> View:
    """What the film shows, of all frames or of so many as it may have."""
    view = look(path, field, slices)
    if len(view.axes) == 3:
        slowest, line = next(iter(view.solution.coordinates.items()))
        view = view.cut(slowest, len(line) // 2)
    assert view.solution.time is not None
    return replace(view, frames=evenly(len(view.solution.time), MOST_FRAMES).tolist())


def usual_format() -> str:
    """That of a film of which nothing else is said."""
    return "mp4" if _encoder() else "gif"


def _encoder() -> str:
    """The program that makes an MP4, or nothing."""
    try:
        import imageio_ffmpeg
    except ImportError:
        return ""
    return imageio_ffmpeg.get_ffmpeg_exe()


def _writer(kind: str, rate: int) -> AbstractMovieWriter:
    if kind == "gif":
        return PillowWriter(fps=rate)
    # Players want colours of a kind that needs even numbers of dots.
    even = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2:color=white", "-pix_fmt", "yuv420p"]
    return FFMpegWriter(fps=rate, codec="libx264", extra_args=even)


def frames(view: View) -> Iterator[tuple[int, np.ndarray]]:
    """The numbers of the frames of a view, and their values, one by one."""
    values = cuts(view.solution, view.field, view.frames, view.at, DRAWN_POINTS)
    return zip(view.frames, values, strict=True)


def _range(view: View) -> tuple[float, float]:
    """The lowest and the highest number of all frames, apart from each other."""
    low, high = math.inf, -math.inf
    for _, values in frames(view):
        finite = values[np.isfinite(values)]
        low, high = float(finite.min(initial=low)), float(finite.max(initial=high))
    if not low <= high:
        low = high = 0.0
    margin = 0.0 if high > low else 0.01 * abs(low) or 1.0
    return low - margin, high + margin


Show = Callable[[int, np.ndarray], None]
"""Shows a frame in a figure."""


def _axes(width: float, height: float, right: float, below: float = 0.0) -> tuple[Figure, Axes]:
    """Axes of that size (inches), with so much room beside and below them."""
    left, bottom, above = 0.75, 0.5 + below, 0.5
    across, up = left + width + right, bottom + height + above
    drawing = Figure(figsize=(across, up))
    return drawing, drawing.add_axes((left / across, bottom / up, width / across, height / up))


def _line(view: View, low: float, high: float) -> tuple[Figure, Show]:
    ((axis, x),) = view.axes.items()
    drawing, ax = _axes(3.8, 2.5, right=0.2)
    name_axes(ax, view.label(axis), view.label(view.field))
    (curve,) = ax.plot(x, np.full(x.shape, np.nan))
    room = 0.05 * (high - low)
    ax.set(xlim=(x[0], x[-1]), ylim=(low - room, high + room))
    ax.grid(color="0.88", linewidth=0.5)

    def show(frame: int, values: np.ndarray) -> None:
        curve.set_ydata(values)
        set_title(drawing, replace(view, frames=(frame,)).title, ax)

    return drawing, show


def _plane(view: View, low: float, high: float) -> tuple[Figure, Show]:
    (up, y), (across, x) = view.axes.items()
    if min(len(x), len(y)) < 2:
        raise InputError("a plane one point wide cannot be drawn: it needs two points on each axis")
    width, height = box_of(x, y, longest=3.8)
    lies_below = bar_lies_below(width, height)
    drawing, ax = _axes(width, height, 0.3 if lies_below else 1.1, 0.7 if lies_below else 0.0)
    ax.set_facecolor("0.8")
    name_axes(ax, view.label(across), view.label(up))
    draw_to_scale(ax, x, y)
    mesh = ax.pcolormesh(
        x, y, np.full((len(y), len(x)), low), cmap=colour_map(view.field),
        norm=Normalize(low, high), shading="gouraud", rasterized=True,
    )  # fmt: skip
    add_bar_beside(ax, (width, height), mesh, view.label(view.field))

    def show(frame: int, values: np.ndarray) -> None:
        mesh.set_array(np.ma.masked_invalid(values.astype(float)))
        set_title(drawing, replace(view, frames=(frame,)).title, ax)

    return drawing, show
