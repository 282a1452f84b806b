"""The section `[statistics]`, and the names of the fields that it adds to a file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import Field

from heatsolve.case.sections import FieldName, Grid, Section
from heatsolve.case.types import Found, Interval, Real
from heatsolve.stencil.expressions import show
from heatsolve.stencil.grid import WALLS


@dataclass(frozen=True)
class Statistic:
    """A statistic of one field, or of two of which the second may be the first: its kind is mean,
    product (the mean product of their deviations from their means), minimum or maximum."""

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
    """The low corner of a box; that of the grid if not given."""
    upper: tuple[Real, ...] | None = None
    """The high corner. Along an axis on which it is the same as that of the low one, the box is a
    plane, to which values are interpolated: the integral is one over its area."""
    wall: Literal["left", "right", "bottom", "top", "back", "front"] | None = None
    """In place of a box: all of a wall."""

    def ends(self, grid: Grid) -> Corners:
        """Both corners, along x, y, z."""
        low, high = list(self.lower or grid.lower), list(self.upper or grid.upper)
        for n, axis in enumerate(grid.axes):
            if self.wall in WALLS[axis]:
                low[n] = high[n] = (low[n], high[n])[WALLS[axis].index(self.wall)]
        return tuple(low), tuple(high)

    def mistakes(self) -> Found:
        if not re.fullmatch(r"[A-Za-z0-9_]{1,60}", self.name):
            yield ("name",), f"must be letters, digits and _, not {show(self.name)}"
        if not self.fields:
            yield ("fields",), "must name a field"
        if self.wall is not None and (self.lower or self.upper):
            yield ("wall",), "is a box of its own: give it, or lower and upper"


class Profiles(Section):
    """`[statistics.profile]`: fields along one axis, averaged over the others."""

    x: tuple[FieldName, ...] = ()
    """Fields that a file may have, whose means over y and z each sample adds to the history, as
    `profile_x_temperature`: a value for each point of the file along x."""
    y: tuple[FieldName, ...] = ()
    """The same along y, over x and z."""
    z: tuple[FieldName, ...] = ()
    """The same along z, over x and y."""


class Spectra(Section):
    """`[statistics.spectrum]`: spectra along a periodic axis, averaged over the others."""

    x: tuple[FieldName, ...] = ()
    """Fields that a file may have, whose spectra along x each sample adds to the history, as
    `spectrum_x_velocity_y`: a value for each number of waves from 0 to half the number of
    points."""
    y: tuple[FieldName, ...] = ()
    """The same along y."""
    z: tuple[FieldName, ...] = ()
    """The same along z."""


class Statistics(Section):
    """`[statistics]`: means and other statistics in time, at each point of a march; integrals."""

    begin: Annotated[Real, Ge(0)] = 0.0
    """The time from which on steps count."""
    every: Interval = 1
    """From one sample of the fields to the next: steps, or seconds of the march's own time such as
    `"0.1 s"`. A sample stands for the time since the one before. Profiles and spectra have a
    row for each."""
    mean: tuple[FieldName, ...] = ()
    """Fields of the model, or derived ones, of which the file has the mean in time, as
    `mean_temperature`."""
    variance: tuple[FieldName, ...] = ()
    """Those of which it has the mean square of the deviation from the mean, as
    `variance_temperature`."""
    covariance: tuple[tuple[FieldName, ...], ...] = ()
    """Pairs of which it has the mean product of both deviations, as
    `covariance_velocity_x_velocity_y`."""
    minimum: tuple[FieldName, ...] = ()
    """Those of which it has the lowest value, as `minimum_temperature`."""
    maximum: tuple[FieldName, ...] = ()
    """Those of which it has the highest value, as `maximum_temperature`."""

    integrals: tuple[Integral, ...] = Field(default=(), alias="integral")
    """Integrals in space, which the history holds in each row; of a steady case attributes of the
    file."""

    profile: Profiles = Profiles()
    """Fields along one axis, averaged over the others, which the history holds for each sample."""
    spectrum: Spectra = Spectra()
    """Spectra along a periodic axis, which the history holds for each sample."""

    @property
    def recorded(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """What each sample adds to the history: fields, by the kind and the axis."""
        sections = {"profile": self.profile, "spectrum": self.spectrum}
        return {
            (kind, axis): names
            for kind, section in sections.items()
            for axis in WALLS
            if (names := getattr(section, axis))
        }

    @property
    def fields(self) -> dict[str, Statistic]:
        """What is asked for, by the names in the file."""
        result = {f"mean_{name}": Statistic("mean", (name,)) for name in self.mean}
        for name in self.variance:
            result[f"variance_{name}"] = Statistic("product", (name, name))
        for pair in self.covariance:
            result[f"covariance_{'_'.join(pair)}"] = Statistic("product", pair)
        for kind, names in (("minimum", self.minimum), ("maximum", self.maximum)):
            result |= {f"{kind}_{name}": Statistic(kind, (name,)) for name in names}
        return result

    def mistakes(self) -> Found:
        for n, pair in enumerate(self.covariance):
            if len(pair) != 2:
                yield ("covariance", n), f"must be a pair of fields, not {len(pair)}"
        for n, integral in enumerate(self.integrals):
            if integral.name in [other.name for other in self.integrals[:n]]:
                yield ("integral", n, "name"), f"{integral.name} is the name of another one, too"
        given = [*self.fields, *self.recorded]
        keys = {"begin", "every"} & self.model_fields_set
        if keys and not given:
            yield (), f"{' and '.join(sorted(keys))} without samples: name fields, as in mean"


def unit_of(statistic: Statistic, units: Mapping[str, str]) -> str:
    """Its unit, where those of its fields are known; else "1"."""
    first, *second = (units.get(name, "1") for name in statistic.sources)
    if not second:
        return first
    if first == second[0]:
        return first if first == "1" else f"({first})^2"
    return " ".join(unit for unit in (first, *second) if unit != "1")
