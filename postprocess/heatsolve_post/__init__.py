"""Pictures, films and pages of results. It imports the solver, never the reverse."""

from collections.abc import Callable
from pathlib import Path

from heatsolve.case.output import Output, beside, film_of
from heatsolve.errors import HeatsolveError


def draw(
    path: Path, wanted: Output, say: Callable[[str], None], warn: Callable[[str], None]
) -> None:
    """Draw the pictures and films of the file `path` that `[output]` names, beside the file.

    Their names are NAME_FIELD.png, .mp4 or .gif. One process draws them: it reads the slices that
    they show, also from the parts of many processes. A picture that cannot be drawn causes a
    warning, no failure of the run.
    """
    from heatsolve_post.animate import animate, usual_format
    from heatsolve_post.plot import plot

    tasks: list[tuple[Callable[..., Path], str, Path]]
    tasks = [(plot, field, beside(path, f"_{field}.png")) for field in wanted.plot]
    for field in wanted.films:
        tasks.append((animate, field, film_of(path, field, usual_format())))
    for make, field, picture in tasks:
        try:
            say(f"wrote {make(path, picture, field)}")
        except HeatsolveError as error:
            warn(f"{picture.name} is not drawn: {error}")
