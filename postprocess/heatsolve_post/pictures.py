"""The pictures and films that a case asks for, drawn of its file when the run is at its end.

One process draws them. It reads the slices that they show, wherever these lie in the parts of many
processes: nothing is gathered.
"""

from collections.abc import Callable
from pathlib import Path

from heatsolve.case.schema import Output
from heatsolve.errors import HeatsolveError
from heatsolve.report import Report
from heatsolve_post.animate import animate, usual_format
from heatsolve_post.plot import plot


def draw(path: Path, wanted: Output, report: Report) -> None:
    """Draw what `[output]` wants of the file `path`, as NAME_FIELD.png, .mp4 or .gif beside it.

    A picture that cannot be drawn is a warning: the run is not lost for it.
    """
    stem = path.name.removesuffix(".h5")
    tasks: list[tuple[Callable[..., Path], str, str]]
    tasks = [(plot, field, f"{stem}_{field}.png") for field in wanted.plot]
    for field in wanted.films:
        name = f"{stem}_{field}" if field else stem
        tasks.append((animate, field, f"{name}.{usual_format()}"))
    for make, field, name in tasks:
        try:
            report.line(f"wrote {make(path, path.with_name(name), field)}")
        except HeatsolveError as error:
            report.warn(f"{name} is not drawn: {error}")
