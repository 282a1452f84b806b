"""The section `[statistics]`, and the names of the fields that it adds to a file."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import Field

from heatsolve.case.sections import FieldName, Grid, Section
from heatsolve.case.toml import KeyPath
from heatsolve.case.types import Found, Interval, Real
from heatsolve.stencil.expressions import show
from heatsolve.stencil.grid import WALLS


@dataclass(frozen=True)
class Statistic:
    """A statistic of one field, or of a pair (of one field twice for a variance).

    Its kind is mean, product (the mean product of the deviations from the means), minimum or
    maximum.
    """

    kind: str
    sources: tuple[str, ...]


Corners = tuple[tuple[float, ...], tuple[float, ...]]


class Integral(Section):
    """`[[statistics.integral]]`: integrals of fields over a box, a plane or a wall."""

    name: str
    """Its name in columns of the history, as `integral_NAME_temperature`: letters, digits, `_`."""
    fields: tuple[FieldName, ...]
    """Fields that a file may have: of the model, derived ones, statistics."""
    lower: tuple[Real, ...] | None = None
    """The low corner of a box; the corner of the grid if not given."""
    upper: tuple[Real, ...] | None = None
    """The high corner. Where both corners have the same coordinate along an axis, the box is a
    plane, to which values are interpolated: the integral is over its area."""
    wall: Literal["left", "right", "bottom", "top", "back", "front"] | None = None
    """In place of a box: all of a wall."""

    def ends(self, grid: Grid) -> Corners:
        """Both corners, along x, y, z."""
        low, high = list(self.lower or grid.lower), list(self.upper or grid.upper)
        for n, axis in enumerate(grid.axes):
            if self.wall in WALLS[axis]:
                low[n] = high[n] = (low[n], high[n])[WALLS[axis].index(self.wall)]
        return tuple(low), tuple(high)

    @property
    def columns(self) -> list[str]:
        """The columns of the history, in the order of the fields."""
        return [f"integral_{self.name}_{name}" for name in self.fields]

    def mistakes(self) -> Found:
        if not re.fullmatch(r"[A-Za-z0-9_]{1,60}", self.name):
            yield ("name",), f"must be letters, digits and _, not {show(self.name)}"
        if not self.fields:
            yield ("fields",), "must name a field"
        if self.wall is not None and (self.lower or self.upper):
            yield ("wall",), "is a box of its own: give it, or lower and upper"


class Profiles(Section):
    """`[statistics.profile]`: fields along one axis, averaged over the other axes."""

    x: tuple[FieldName, ...] = ()
    """Fields that a file may have, whose means over y and z each sample adds to the history, as
    `profile_x_temperature`: a value for each point of the file along x."""
    y: tuple[FieldName, ...] = ()
    """As `x`: profiles along y, means over x and z."""
    z: tuple[FieldName, ...] = ()
    """As `x`: profiles along z, means over x and y."""


class Spectra(Section):
    """`[statistics.spectrum]`: spectra along a periodic axis, averaged over the other axes."""

    x: tuple[FieldName, ...] = ()
    """Fields that a file may have, whose spectra along x each sample adds to the history, as
    `spectrum_x_velocity_y`: a value for each number of waves from 0 to half the number of
    points."""
    y: tuple[FieldName, ...] = ()
    """As `x`: spectra along y."""
    z: tuple[FieldName, ...] = ()
    """As `x`: spectra along z."""


class Statistics(Section):
    """`[statistics]`: means and other statistics in time, at each point of a march; integrals."""

    begin: Annotated[Real, Ge(0)] = 0.0
    """The time at which sampling begins."""
    every: Interval = 1
    """From one sample of the fields to the next: steps, or seconds of the march's own time such as
    `"0.1 s"`. A sample stands for the time since the sample before. Profiles and spectra have a row
    for each sample."""
    mean: tuple[FieldName, ...] = ()
    """Fields, of the model or derived, whose mean in time the file has, as `mean_temperature`."""
    variance: tuple[FieldName, ...] = ()
    """Fields whose variance, the mean square of the deviation from the mean, the file has, as
    `variance_temperature`."""
    covariance: tuple[tuple[FieldName, ...], ...] = ()
    """Pairs of fields whose covariance, the mean product of both deviations, the file has, as
    `covariance_velocity_x_velocity_y`."""
    minimum: tuple[FieldName, ...] = ()
    """Fields whose lowest value the file has, as `minimum_temperature`."""
    maximum: tuple[FieldName, ...] = ()
    """Fields whose highest value the file has, as `maximum_temperature`."""

    integrals: tuple[Integral, ...] = Field(default=(), alias="integral")
    """Integrals in space, which the history holds in each row; for a steady case attributes of the
    file."""

    profile: Profiles = Profiles()
    """Fields along one axis, averaged over the other axes; in the history for each sample."""
    spectrum: Spectra = Spectra()
    """Spectra along a periodic axis, which the history holds for each sample."""

    @property
    def recorded(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """The fields whose profiles or spectra the history holds, by kind and axis."""
        sections = {"profile": self.profile, "spectrum": self.spectrum}
        return {
            (kind, axis): names
            for kind, section in sections.items()
            for axis in WALLS
            if (names := getattr(section, axis))
        }

    @property
    def named(self) -> Iterator[tuple[KeyPath, str, Statistic]]:
        """Yield the place in this section, the name in the file, and each statistic in time."""
        for key in ("mean", "variance", "covariance", "minimum", "maximum"):
            kind = key if key in ("mean", "minimum", "maximum") else "product"
            for n, given in enumerate(getattr(self, key)):
                sources = (given,) if isinstance(given, str) else given
                both = (given, given) if key == "variance" else sources
                yield (key, n), "_".join((key, *sources)), Statistic(kind, both)

    @property
    def fields(self) -> dict[str, Statistic]:
        """The statistics in time, by their names in the file."""
        return {name: statistic for _, name, statistic in self.named}

    def mistakes(self) -> Found:
        for n, pair in enumerate(self.covariance):
            if len(pair) != 2:
                yield ("covariance", n), f"must be a pair of fields, not {len(pair)}"
        known: dict[str, Statistic] = {}
        for place, name, statistic in self.named:
            if known.setdefault(name, statistic) != statistic:
                yield place, f"{name} is the name of another statistic, too"
        columns = set[str]()
        for n, integral in enumerate(self.integrals):
            if again := columns.intersection(integral.columns):
                yield ("integral", n, "name"), f"{min(again)} is a column of another one, too"
            columns.update(integral.columns)
        given = [*self.fields, *self.recorded]
        keys = {"begin", "every"} & self.model_fields_set
        if keys and not given:
            yield (), f"{' and '.join(sorted(keys))} without samples: name fields, as in mean"


def unit_of(statistic: Statistic, units: Mapping[str, str]) -> str:
    """The unit of a statistic if the units of its fields are known; otherwise "1"."""
    first, *second = (units.get(name, "1") for name in statistic.sources)
    if not second:
        return first
    if "1" in (first, *second):
        return "1"
    return f"({first})^2" if first == second[0] else f"{first} {second[0]}"
