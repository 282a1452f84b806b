"""heatsolve from Python: run a case, look at its results, register a model.

import heatsolve
result = heatsolve.run("hotspot", backend="numba")
result["temperature"].max()
"""

import base64
import html
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from heatsolve.case import load as cases
from heatsolve.case.case import Case
from heatsolve.case.changes import refuse_another
from heatsolve.case.toml import dump, inline
from heatsolve.cli import main
from heatsolve.control.controller import Start
from heatsolve.errors import CaseError, InputError
from heatsolve.io.checkpoints import CheckpointStore
from heatsolve.io.reader import Solution, read, summary
from heatsolve.models.heat.solver import method_name
from heatsolve.models.user import model
from heatsolve.parallel.ranks import Ranks, failing_together, find_ranks
from heatsolve.report import Report
from heatsolve.runner import run as run_case

__all__ = ["Result", "load", "main", "model", "open", "run"]

Overrides = Mapping[str, Any] | Sequence[str]
"""Keys of a case and their values, `{"grid.cells": [64, 64]}`, or texts as for `--set`."""


KEPT_BYTES = 256 * 2**20
"""Of the fields of a Result: up to here they are read at once, and kept."""
TABLE = "<table>"
"""Where a case that is given as a table comes from, as messages say it."""
WRITTEN: dict[tuple[Path, str], str] = {}
"""By folder and name the texts of the cases given as tables that this process has run."""


class Result(Mapping[str, Any]):
    """A file of results, as a mapping from the names of its fields to their values.

    `result["temperature"]` is an `xarray.DataArray` with coordinates and units where xarray is
    installed, else a NumPy array; axes are (y, x) or (z, y, x), behind time in a march. Fields of
    up to 256 MiB in all (8 bytes a value) are read at once and kept, whatever becomes of the file;
    larger ones are read when they are asked for, as long as the file is the same. Raises
    InputError for a file that is not there, FileFailure for one that is damaged or was replaced.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._about: Solution = read(self.path, fields=())
        if 8 * math.prod(self._about.shape) * len(self) <= KEPT_BYTES:
            self._about = read(self._about)

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(f"{self.path} has no field {name!r}, only {', '.join(self)}")
        values = read(self._about, fields=(name,)).fields[name].copy()
        try:
            import xarray
        except ImportError:
            return values
        units = self._about.units
        axes = self._about.coordinates
        if self.time is not None:
            axes = {"time": self.time, **axes}
        coordinates = {axis: (axis, line, {"units": units[axis]}) for axis, line in axes.items()}
        attributes = {"units": units[name], "long_name": name.replace("_", " ")}
        return xarray.DataArray(values, coordinates, list(axes), name, attributes)

    def __contains__(self, name: object) -> bool:
        return name in self._about.names

    def __iter__(self) -> Iterator[str]:
        return iter(self._about.names)

    def __len__(self) -> int:
        return len(self._about.names)

    @property
    def attributes(self) -> dict[str, Any]:
        """Of the run: the case as run, `backend`, `iterations` or `steps`, `residual`..."""
        return self._about.attributes

    @property
    def converged(self) -> bool:
        """Whether the run came to its end: its tolerance, its last iteration or its end time."""
        return bool(self.attributes.get("converged"))

    @property
    def history(self) -> dict[str, np.ndarray]:
        """`iteration` and `residual`, the norm that was watched; of a march `time`, `dt`, forces
        and probes as well."""
        return self._about.history

    @property
    def coordinates(self) -> dict[str, np.ndarray]:
        """The positions along each axis, slowest first."""
        return self._about.coordinates

    @property
    def time(self) -> np.ndarray | None:
        """The times of the frames; None of a steady run."""
        return self._about.time

    def figure(self, field: str | None = None, history: bool = False, **options: Any) -> Any:
        """A matplotlib Figure of a field, or of how a norm fell, which a notebook shows.

        Options are as in `heatsolve plot`: `slices={"z": 0.5}`, `at_time`, `vectors`,
        `streamlines`, `log`, `limits=(-1, 1)`, and `compare` with another file or Result. See
        `heatsolve_post.plot.figure`.
        """
        from heatsolve_post.plot import figure

        other = options.get("compare")
        if isinstance(other, Result):
            options["compare"] = other._about
        return figure(self._about, field, history, **options)

    def __repr__(self) -> str:
        return f"<heatsolve.Result {self.path}: {', '.join(self)}>"

    def _repr_html_(self) -> str:
        """The page in a notebook: the main field, and the text of `heatsolve info`."""
        picture = base64.b64encode(self.figure()._repr_png_()).decode("ascii")
        text = html.escape(summary(self._about))
        return f'<img src="data:image/png;base64,{picture}"><pre>{text}</pre>'


def load(case: str | Path | Mapping[str, Any], overrides: Overrides = ()) -> Case:
    """The case of a file, of a shipped name, or of a table as `tomllib` gives it.

    In a table and in overrides arrays of NumPy are lists, and its scalars numbers. Raises
    CaseError, with a line for each mistake; InputError if there is no such case.
    """
    try:
        settings = list(overrides)
        if isinstance(overrides, Mapping):
            pairs = overrides.items()
            settings = [f"{key}={inline(value, tuple(key.split('.')))}" for key, value in pairs]
        text = dump(case) if isinstance(case, Mapping) else None
    except (TypeError, AttributeError, RecursionError) as error:
        raise CaseError(f"{TABLE}: {error}") from None
    if text is None:
        return cases.load(case, settings)  # type: ignore[arg-type]
    parsed = cases.parse(text, TABLE, settings)
    return parsed.named("case", parsed.text, parsed.origin)


def run(
    case: str | Path | Mapping[str, Any] | Case,
    *,
    backend: str | None = None,
    overrides: Overrides = (),
    output: str | Path | None = None,
    restart: bool = False,
    overwrite: bool = False,
    strict: bool = False,
    quiet: bool = True,
) -> Result:
    """Run a case, write its file, and return that.

    The file is NAME.h5 in the current folder. A case given as a table is called "case", and the
    next, other ones in that folder "case-2", "case-3" and so on, as far as this process goes;
    `restart` takes the one whose checkpoints are of this case.

    Under mpiexec or srun the processes run it together, and each has the whole result. `restart`,
    `overwrite` and `strict` are those of the command line. Raises HeatsolveError: InputError,
    Diverged, FileFailure. A run that has not converged is no error: see `Result.converged`.
    """
    ranks = find_ranks()
    report = Report(quiet, mute=ranks.rank > 0)
    try:
        with failing_together(ranks):
            loaded = case if isinstance(case, Case) else load(case, overrides)
            if output is None and loaded.origin is not None and loaded.origin.name == TABLE:
                name = _name_of(loaded, restart) if ranks.rank == 0 else None
                output = f"{ranks.gather(name)[0]}.h5"
            if output == "":
                raise InputError("output is given nothing")
            path = Path(output) if output is not None else None
            start = Start(restart, overwrite=overwrite)
            written = run_case(loaded, backend, path, report, ranks, start, strict=strict).path
            ranks.gather(None)  # nobody reads before all have written
            if ranks.rank == 0 and loaded.output.drawn:
                from heatsolve_post import draw

                draw(written, loaded.output, report.line, report.warn)
            return Result(written)
    finally:
        report.end()


def _name_of(case: Case, restart: bool) -> str:
    """The name of a case given as a table: the name of the same case before, or else a new one."""
    here = Path.cwd()
    earlier = {name: text for (folder, name), text in WRITTEN.items() if folder == here}
    names = (f"case-{n}" if n > 1 else "case" for n in itertools.count(1))
    name = (
        (_name_to_go_on(case) if restart else None)
        or next((name for name, text in earlier.items() if text == case.text), None)
        or next(name for name in names if name not in earlier)
    )
    WRITTEN[here, name] = case.text
    return name


def _name_to_go_on(case: Case) -> str | None:
    """The name of the table whose checkpoints in the current folder belong to this case."""
    names = {}
    for folder in Path().glob("case*.checkpoints"):
        if number := re.fullmatch(r"case(?:-(\d+))?", folder.stem):
            state = CheckpointStore(folder, (), (), Ranks()).latest()
            with suppress(InputError):  # it is of another case
                refuse_another(str(state.record.get("case")) if state else "", case, method_name)
                names[int(number[1] or 1)] = folder.stem
    return names[min(names)] if names else None


def open(path: str | Path) -> Result:
    """The results of an earlier run, in a file."""
    return Result(path)
