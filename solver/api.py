"""heatsolve from Python: run a case, look at what it left, register a model.

import heatsolve
result = heatsolve.run("hotspot", backend="numba")
result["temperature"].max()
"""

import base64
import html
import io
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from heatsolve import case as cases
from heatsolve.case import Case
from heatsolve.cli import main
from heatsolve.models import model
from heatsolve.output import Solution, read, summary
from heatsolve.ranks import failing_together, find_ranks
from heatsolve.report import Report
from heatsolve.restart import Start
from heatsolve.runner import run as run_case
from heatsolve.toml import dump, inline

__all__ = ["Result", "load", "main", "model", "open", "run"]

Overrides = Mapping[str, Any] | Sequence[str]
"""Keys of a case and their values, `{"grid.cells": [64, 64]}`, or texts as those of `--set`."""


class Result(Mapping[str, Any]):
    """A file of results, as a mapping from the names of its fields to their values.

    `result["temperature"]` is an `xarray.DataArray` with coordinates and units where xarray is
    installed, else a NumPy array; axes are (y, x) or (z, y, x), behind time in a march. Fields are
    read when they are asked for. Raises InputError for a file that is not there, FileFailure for
    one that is damaged.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._about: Solution = read(self.path, fields=())
        self._names = [n for n in self._about.units if n not in {*self._about.coordinates, "time"}]

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(f"{self.path} has no field {name!r}, only {', '.join(self._names)}")
        values = read(self.path, fields=(name,)).fields[name]
        try:
            import xarray
        except ImportError:
            return values
        units = self._about.units
        lines = self._about.coordinates
        if self.time is not None:
            lines = {"time": self.time, **lines}
        coordinates = {axis: (axis, line, {"units": units[axis]}) for axis, line in lines.items()}
        attributes = {"units": units[name], "long_name": name.replace("_", " ")}
        return xarray.DataArray(values, coordinates, list(lines), name, attributes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

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
        """`iteration` and `residual`; of a march `time`, `dt`, forces and probes as well."""
        return self._about.history

    @property
    def coordinates(self) -> dict[str, np.ndarray]:
        """The positions along each axis, slowest first."""
        return self._about.coordinates

    @property
    def time(self) -> np.ndarray | None:
        """The times of the frames; None of a steady run."""
        return self._about.time

    def figure(self, field: str | None = None, history: bool = False) -> Any:
        """A matplotlib Figure of a field, or of the residual; see `postprocess.plot.figure`."""
        from heatsolve.postprocess.plot import figure

        return figure(self.path, field, history)

    def __repr__(self) -> str:
        return f"<heatsolve.Result {self.path}: {', '.join(self)}>"

    @cached_property
    def _html(self) -> str:
        image = io.BytesIO()
        self.figure().savefig(image, format="png", dpi=110, bbox_inches="tight")
        picture = base64.b64encode(image.getvalue()).decode("ascii")
        text = html.escape(summary(self.path))
        return f'<img src="data:image/png;base64,{picture}"><pre>{text}</pre>'

    def _repr_html_(self) -> str:
        """What a notebook shows: the main field, and what `heatsolve info` says."""
        return self._html


def load(case: str | Path | Mapping[str, Any], overrides: Overrides = ()) -> Case:
    """The case of a file, of a shipped name, or of a table as `tomllib` gives it.

    Raises CaseError, with a line for each mistake; InputError if there is no such case.
    """
    settings = list(overrides)
    if isinstance(overrides, Mapping):
        settings = [f"{key}={inline(value)}" for key, value in overrides.items()]
    if isinstance(case, Mapping):
        return cases.parse(dump(case), "case", settings)
    return cases.load(case, settings)


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
    """Run a case, write its file (by default NAME.h5 in the current folder), and return that.

    Under mpiexec or srun the processes run it together, and each has the whole result. `restart`,
    `overwrite` and `strict` are those of the command line. Raises HeatsolveError: InputError,
    Diverged, FileFailure. A run that has not converged is no error: see `Result.converged`.
    """
    ranks = find_ranks()
    report = Report(quiet, mute=ranks.rank > 0)
    try:
        with failing_together(ranks):
            given = case if isinstance(case, Case) else load(case, overrides)
            path = Path(output) if output is not None else None
            start = Start(restart, overwrite=overwrite)
            written = run_case(given, backend, path, report, ranks, start, strict=strict).path
            ranks.gather(None)  # nobody reads before all have written
            if ranks.rank == 0 and given.output.drawn:
                from heatsolve.postprocess.pictures import draw

                draw(written, given.output, report)
            return Result(written)
    finally:
        report.end()


def open(path: str | Path) -> Result:
    """What an earlier run left in a file."""
    return Result(path)
