"""A run on one page: the problem, the convergence, the results; HTML that needs no other file."""

import base64
import html
import io
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from matplotlib.figure import Figure

from heatsolve.case.load import recorded
from heatsolve.errors import InputError
from heatsolve.io.disk import write_text
from heatsolve.io.reader import Solution, ranges, read
from heatsolve.report import count, duration
from heatsolve_post.curves import (
    holds_profile,
    norm_figure,
    profile_figure,
    roofline_figure,
    watched,
    watched_figure,
)
from heatsolve_post.plot import figure
from heatsolve_post.style import drawing_style

Roof = float | Callable[[dict[str, Any]], float | None] | None
"""Copy bandwidth of the machine of a run (bytes a second, read plus written), or a function of
the attributes of its file."""

FACTS = {
    "heatsolve_version": "heatsolve",
    "backend": "backend",
    "machine": "machine",
    "ranks": "processes",
    "precision": "precision",
}
"""Attributes of the environment, and their names on the page."""
NO_ROOF = (
    "Without a roofline: the run was made on another machine than this page, or on several "
    "processes. The option --bandwidth gives the copy bandwidth of its machine."
)


def report(path: Path, output: Path | None = None, bandwidth: Roof = None) -> Path:
    """Write a page about the field file `path`, by default beside it as NAME.html; return its path.

    `bandwidth` is the roof of the roofline figure; without it the figure is left out. Raises
    InputError for a missing file, FileFailure for a damaged file, or a page that cannot be written.
    """
    path = Path(path)
    output = Path(output) if output else path.with_name(f"{path.name.removesuffix('.h5')}.html")
    if output.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"cannot write {output}: a report is an .html file")
    with drawing_style():
        write_text(output, page(read(path, fields=()), bandwidth))
    return output


def page(solution: Solution, bandwidth: Roof) -> str:
    """The HTML. All text from the file is escaped: it may be a stranger's file."""
    good, verdict = verdict_of(solution)
    about = solution.case.get("case")
    about = about if isinstance(about, dict) else {}
    described = [str(about.get(key, "")).strip() for key in ("description", "reference")]
    sections = [
        *_fields(solution),
        *_profiles(solution),
        *_watched(solution),
        *_convergence(solution),
        *_timings(solution, bandwidth),
        _environment(solution),
        *_case(solution),
    ]
    template = Template(files("heatsolve_post").joinpath("page.html").read_text("utf-8"))
    return template.substitute(
        title=_text(solution.title),
        description=_text(" ".join(filter(None, described))),
        mood="good" if good else "bad",
        verdict=_text(verdict),
        sections="\n".join(sections),
    )


def verdict_of(solution: Solution) -> tuple[bool, str]:
    """Whether the run came to its end, and a sentence on it."""
    attributes = solution.attributes
    steady = solution.time is None
    number = attributes.get("iterations" if steady else "steps")
    counted = f" in {number} {'iterations' if steady else 'steps'}" if number is not None else ""
    (scale, relative), residual = solution.relative, attributes.get("residual")
    norm = ""
    if isinstance(residual, float) and residual == residual:
        norm = f", norm {residual / scale:.3g}{relative}"
    if "stopped" in attributes:
        return False, f"Stopped{counted}: {attributes['stopped']}."
    if not attributes.get("converged", False):
        return False, f"Not converged{counted}{norm}."
    if solution.time is not None:
        when = f"t = {solution.time[-1]:g}" if len(solution.time) else "its end"
        sought = norm if solution.attributes.get("threshold") is not None else ""
        return True, f"Came to {when}{counted}{sought}."
    return True, f"Converged{counted}{norm}."


def _text(value: Any) -> str:
    return html.escape(str(value))


def _image(drawing: Figure, said: str, caption: str = "", wide: bool = False) -> str:
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", dpi=170)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    kind = ' class="wide"' if wide else ""
    below = f"\n<figcaption>{_text(caption)}</figcaption>" if caption else ""
    source = f"data:image/png;base64,{data}"
    return f'<figure{kind}><img alt="{_text(said)}" src="{source}">{below}</figure>'


def _table(rows: list[list[Any]], kind: str = "") -> str:
    """A table in HTML; the first row is the head."""
    head, *body = [[_text(cell) for cell in row] for row in rows]
    lines = [f"<tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr>"]
    lines += [f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in body]
    return f'<div class="scroll"><table{kind}>\n' + "\n".join(lines) + "\n</table></div>"


def _fields(solution: Solution) -> Iterator[str]:
    """A picture of each field, and a table of their ranges."""
    yield '<h2>Fields</h2>\n<div class="figures">'
    wide = len(solution.coordinates) == 3
    statistics = ranges(solution)
    for name in statistics:
        try:
            yield _image(figure(solution, name), name, wide=wide)
        except InputError as error:  # a plane one point wide
            yield f"<p>{_text(name)}: {_text(error)}</p>"
    yield "</div>"
    rows: list[list[Any]] = [["field", "unit", "lowest", "highest", "mean", "NaN"]]
    for name, (low, high, mean, missing) in statistics.items():
        numbers = [f"{value:.6g}" for value in (low, high, mean)]
        rows.append([name.replace("_", " "), solution.units[name], *numbers, missing])
    yield _table(rows)
    errors = {k: v for k, v in solution.attributes.items() if k.startswith("error_")}
    if errors:
        rows = [["difference from the exact solution", ""]]
        rows += [[name[6:].replace("_", " "), f"{value:.4g}"] for name, value in errors.items()]
        yield _table(rows)


def _profiles(solution: Solution) -> Iterator[str]:
    """Profiles of the run beside the reference of its case."""
    case = recorded(str(solution.attributes.get("case", ""))).case
    wanted = case.reference.profiles if case is not None else ()
    drawn = [profile for profile in wanted if holds_profile(solution, profile)]
    if drawn:
        yield '<h2>Beside the reference</h2>\n<div class="figures">'
        for profile in drawn:
            drawing, apart = profile_figure(solution, profile)
            name = profile.field.replace("_", " ")
            yield _image(drawing, f"profile of {name}", f"{name}: {apart}.")
        yield "</div>"


def _watched(solution: Solution) -> Iterator[str]:
    """Forces, energies and probes along a march."""
    names = watched(solution)
    if names:
        yield "<h2>In the course of time</h2>"
        yield _image(watched_figure(solution), ", ".join(names), wide=len(names) > 1)


def _convergence(solution: Solution) -> Iterator[str]:
    if "residual" in solution.history and len(solution.history["residual"]):
        marches = solution.time is not None
        yield f"<h2>{'Change from step to step' if marches else 'Convergence'}</h2>"
        of_a_step = marches and "rate" not in solution.norm
        said = "It changes with the length of a step." if of_a_step else ""
        yield _image(norm_figure(solution), solution.norm, said)


def _timings(solution: Solution, bandwidth: Roof) -> Iterator[str]:
    """Times and rates; the roofline where the roof is known."""
    attributes = solution.attributes
    rows = [["", ""]]
    for name, said in (("wall_seconds", "from start to file"), ("solve_seconds", "solving")):
        if name in attributes:
            rows.append([said, duration(attributes[name])])
    work = [attributes.get(key) for key in ("solve_seconds", "points_updated", "bytes_moved")]
    numbers = [each for each in work if isinstance(each, int | float) and each > 0]
    if len(numbers) == len(work):
        seconds, points, moved = numbers
        rows.append(["points updated", f"{count(points / seconds)}/s"])
        rows.append(["bytes that must move", f"{count(moved / seconds)}B/s"])
    yield "<h2>Speed</h2>"
    yield _table(rows)
    if len(rows) == 5:
        roof = bandwidth(attributes) if callable(bandwidth) else bandwidth
        if roof is None:
            yield f"<p>{NO_ROOF}</p>"
        else:
            yield _image(roofline_figure(attributes, roof), "roofline")


def _case(solution: Solution) -> Iterator[str]:
    yield "<h2>The case</h2>"
    for note in solution.notes:
        yield f"<p>{_text(note[:1].upper() + note[1:])}.</p>"
    yield f"<pre>{_text(solution.attributes.get('case', ''))}</pre>"


def _environment(solution: Solution) -> str:
    known = solution.attributes
    rows = [[said, known[name]] for name, said in FACTS.items() if name in known]
    return "<h2>Environment</h2>\n" + _table([["", ""], *rows], ' class="facts"')
