"""The section `[statistics]`, and the names of the fields that it adds to a file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from heatsolve.case.sections import FieldName, Section
from heatsolve.case.types import Found, Interval, Real


@dataclass(frozen=True)
class Statistic:
    """A statistic of one field, or of two of which the second may be the first: its kind is mean,
    product (the mean product of their deviations from their means), minimum or maximum."""

    kind: str
    sources: tuple[str, ...]


class Statistics(Section):
    """`[statistics]`: means and other statistics in time, at each point of a march."""

    begin: Annotated[Real, Ge(0)] = 0.0
    """The time from which on steps count."""
    every: Interval = 1
    """From one sample of the fields to the next: steps, or seconds of the march's own time such as
    `"0.1 s"`. A sample stands for the time since the one before."""
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
        given = [*self.mean, *self.variance, *self.covariance, *self.minimum, *self.maximum]
        keys = {"begin", "every"} & self.model_fields_set
        if keys and not given:
            yield (), f"{' and '.join(sorted(keys))} without any statistic: name fields, as in mean"


def unit_of(statistic: Statistic, units: Mapping[str, str]) -> str:
    """Its unit, where those of its fields are known; else "1"."""
    first, *second = (units.get(name, "1") for name in statistic.sources)
    if not second:
        return first
    if first == second[0]:
        return first if first == "1" else f"({first})^2"
    return " ".join(unit for unit in (first, *second) if unit != "1")
