"""Results of a run as a Python program has them."""

import base64
import html
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from heatsolve.io.reader import Solution, read, summary

KEPT_BYTES = 256 * 2**20
"""Fields of a Result up to this size in all are read at once, and kept."""


def labelled(
    values: np.ndarray, name: str, axes: Mapping[str, np.ndarray], units: Mapping[str, str]
) -> Any:
    """A field with its coordinates and units where xarray is installed, else as it is."""
    try:
        import xarray
    except ImportError:
        return values
    coordinates = {axis: (axis, line, {"units": units[axis]}) for axis, line in axes.items()}
    attributes = {"units": units[name], "long_name": name.replace("_", " ")}
    return xarray.DataArray(values, coordinates, list(axes), name, attributes)


class Result(Mapping[str, Any]):
    """Results of a run, in a file or in memory, as a mapping from the names of the fields to their
    values.

    `result["temperature"]` is an `xarray.DataArray` with coordinates and units where xarray is
    installed, else a NumPy array; axes are (y, x) or (z, y, x), behind time in a march. Fields of
    up to 256 MiB in all (8 bytes a value) are read at once and kept, whatever becomes of the file;
    larger fields are read at each access, as long as the file is the same. Raises InputError for a
    missing file, FileFailure for a file that is damaged or was replaced.
    """

    path: Path | None
    """The file; None for results that are in memory only."""

    def __init__(self, source: str | Path | Solution):
        if isinstance(source, Solution):
            self.path, self._about = None, source
            return
        self.path = Path(source)
        self._about = read(self.path, fields=())
        if 8 * math.prod(self._about.shape) * len(self) <= KEPT_BYTES:
            self._about = read(self._about)

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(f"{self._where} has no field {name!r}, only {', '.join(self)}")
        values = read(self._about, fields=(name,)).fields[name].copy()
        axes = self._about.coordinates
        if self.time is not None:
            axes = {"time": self.time, **axes}
        return labelled(values, name, axes, self._about.units)

    def __contains__(self, name: object) -> bool:
        return name in self._about.names

    def __iter__(self) -> Iterator[str]:
        return iter(self._about.names)

    def __len__(self) -> int:
        return len(self._about.names)

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the run: its case, `backend`, `iterations` or `steps`, `residual`..."""
        return self._about.attributes

    @property
    def converged(self) -> bool:
        """Whether the run came to its end: its tolerance, its last iteration or its end time."""
        return bool(self.attributes.get("converged"))

    @property
    def history(self) -> dict[str, np.ndarray]:
        """`iteration` and `residual`, the norm that was checked; of a march also `time`, `dt`,
        forces and probes."""
        return self._about.history

    @property
    def coordinates(self) -> dict[str, np.ndarray]:
        """The positions along each axis, slowest first."""
        return self._about.coordinates

    @property
    def time(self) -> np.ndarray | None:
        """The times of the frames; None for a steady run."""
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
        return f"<heatsolve.Result {self._where}: {', '.join(self)}>"

    @property
    def _where(self) -> str:
        return "in memory" if self.path is None else str(self.path)

    def _repr_html_(self) -> str:
        """The page in a notebook: the main field, and the text of `heatsolve info`."""
        picture = base64.b64encode(self.figure()._repr_png_()).decode("ascii")
        text = html.escape(summary(self._about))
        return f'<img src="data:image/png;base64,{picture}"><pre>{text}</pre>'
