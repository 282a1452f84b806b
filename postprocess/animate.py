"""A film of a field: its frames one after the other, on one scale of colours."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.animation import AbstractMovieWriter, FFMpegWriter, PillowWriter
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from heatsolve.errors import FileFailure, InputError
from heatsolve.output import Solution, blocks, read
from heatsolve.postprocess.pieces import (
    STYLE,
    add_bar_beside,
    bar_lies_below,
    box_of,
    colour_map,
    draw_to_scale,
    label_of,
    main_field,
    moment_of,
    name_axes,
    quantity,
    set_title,
    thinned,
)

FORMATS = ("mp4", "gif")
MOST_FRAMES = 400
"""Of a film: of more, evenly spread ones are shown."""
DOTS = 130
"""Of an inch: a film of a plane has about 650 x 550 of them."""


def animate(
    path: Path, output: Path | None = None, field: str | None = None, rate: int = 15
) -> Path:
    """Draw the frames of a field file as a film, so many a second; its path.

    By default the field is the temperature, or else the first one, and the film an MP4 beside the
    file, or a GIF where there is no encoder (the `video` extra brings one). In space it shows the
    plane in the middle of the slowest axis. Raises InputError for a file of a single frame, for an
    unknown field or format, or a missing encoder, FileFailure where a file is damaged or cannot be
    written.
    """
    path = Path(path)
    solution = read(path, fields=())
    if solution.time is None or len(solution.time) < 2:
        raise InputError(f"{path} has one frame, and no film: heatsolve plot draws it")
    if not 1 <= rate <= 100:
        raise InputError(f"--rate must be 1 to 100 frames a second, not {rate}")
    encoder = _encoder()
    default = path.name.removesuffix(".h5") + (".mp4" if encoder else ".gif")
    output = Path(output) if output else path.with_name(default)
    kind = output.suffix[1:].lower()
    if kind not in FORMATS:
        raise InputError(f"cannot draw {output}: a film is one of {', '.join(FORMATS)}")
    if kind == "mp4" and not encoder:
        raise InputError("an MP4 needs an encoder: install heatsolve[video], or draw a GIF")
    field = field or main_field(solution)
    count = len(solution.time)
    shown = set(np.linspace(0, count - 1, min(count, MOST_FRAMES)).round().astype(int).tolist())
    # One layout and one size, for all frames.
    style = {"figure.constrained_layout.use": False, "savefig.bbox": None}
    with matplotlib.rc_context(STYLE | style | {"animation.ffmpeg_path": encoder}):
        low, high = _range(solution, field)
        stage = _line if len(solution.coordinates) == 1 else _plane
        drawing, show = stage(solution, field, low, high)
        writer = _writer(kind, rate)
        try:
            with writer.saving(drawing, str(output), DOTS):
                for frame, values in frames(solution, field):
                    if frame in shown:
                        show(frame, values)
                        writer.grab_frame()
        except OSError as error:
            raise FileFailure(f"cannot write {output}: {error.strerror or error}") from error
    return output


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


def frames(solution: Solution, field: str) -> Iterator[tuple[int, np.ndarray]]:
    """The frames of a field: lines, or planes; in space those in the middle of the slowest axis."""
    extents = [len(line) for line in solution.coordinates.values()]
    middle, rows = extents[0] // 2, []
    for (frame,), start, (block,) in blocks([solution.path], field):
        if len(extents) == 3:
            if start <= middle < start + len(block):
                yield frame, block[middle - start]
            continue
        rows.append(block)
        if start + len(block) == extents[0]:
            yield frame, np.concatenate(rows)
            rows = []


def _range(solution: Solution, field: str) -> tuple[float, float]:
    """The lowest and the highest number of all frames, apart from each other."""
    low, high = math.inf, -math.inf
    for _, values in frames(solution, field):
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


def _line(solution: Solution, field: str, low: float, high: float) -> tuple[Figure, Show]:
    ((axis, x),) = solution.coordinates.items()
    drawing, ax = _axes(3.8, 2.5, right=0.2)
    name_axes(ax, label_of(solution, axis), label_of(solution, field))
    (curve,) = ax.plot(x, np.full(x.shape, np.nan))
    room = 0.05 * (high - low)
    ax.set(xlim=(x[0], x[-1]), ylim=(low - room, high + room))
    ax.grid(color="0.88", linewidth=0.5)

    def show(frame: int, values: np.ndarray) -> None:
        curve.set_ydata(values)
        set_title(drawing, moment_of(solution, frame), ax)

    return drawing, show


def _plane(solution: Solution, field: str, low: float, high: float) -> tuple[Figure, Show]:
    (y_axis, y), (x_axis, x) = list(solution.coordinates.items())[-2:]
    if min(len(x), len(y)) < 2:
        raise InputError("a plane one point wide cannot be drawn: it needs two points on each axis")
    width, height = box_of(x, y, longest=3.8)
    lies_below = bar_lies_below(width, height)
    drawing, ax = _axes(width, height, 0.3 if lies_below else 1.1, 0.7 if lies_below else 0.0)
    ax.set_facecolor("0.8")
    name_axes(ax, label_of(solution, x_axis), label_of(solution, y_axis))
    draw_to_scale(ax, x, y)
    up, across = thinned(len(y)), thinned(len(x))
    mesh = ax.pcolormesh(
        x[across], y[up], np.full((len(up), len(across)), low), cmap=colour_map(field),
        norm=Normalize(low, high), shading="gouraud", rasterized=True,
    )  # fmt: skip
    add_bar_beside(ax, (width, height), mesh, label_of(solution, field))
    where = ""
    if len(solution.coordinates) == 3:
        normal, line = next(iter(solution.coordinates.items()))
        where = f", {quantity(normal, line[len(line) // 2], solution.units[normal])}"

    def show(frame: int, values: np.ndarray) -> None:
        mesh.set_array(np.ma.masked_invalid(values[np.ix_(up, across)].astype(float)))
        set_title(drawing, moment_of(solution, frame) + where, ax)

    return drawing, show
