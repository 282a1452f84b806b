"""The sections of a case of heat conduction, and its rules."""

from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from typing import Any, Literal

from pydantic import Field, StrictBool

from heatsolve.case.case import Case, outside_grid, with_keys, with_walls
from heatsolve.case.sections import (
    IMPLICIT,
    ONE,
    Condition,
    FieldName,
    Model,
    Section,
    Source,
    Wall,
)
from heatsolve.case.toml import ChangedDefault
from heatsolve.case.types import Found, Integer, Real, SpaceField
from heatsolve.models.heat.walls import WallKind
from heatsolve.stencil.expressions import show
from heatsolve.stencil.grid import make_grid


class HeatModel(Model):
    """Heat conduction: rho c dT/dt = div(k grad T) + f."""

    kind: Literal["heat"] = "heat"
    """Heat conduction."""
    steady: StrictBool = True
    """div(k grad T) + f = 0 in place of a march."""
    conductivity: SpaceField = ONE
    """k (W/m/K)."""
    density: SpaceField = ONE
    """rho (kg/m3)."""
    specific_heat: SpaceField = ONE
    """c (J/kg/K)."""

    def mistakes(self) -> Found:
        for key in ("conductivity", "density", "specific_heat"):
            coefficient = getattr(self, key)
            if not coefficient.names and not (value := float(coefficient())) > 0:
                yield (key,), f"must be greater than 0, not {show(value)}"


class PointSource(Section):
    """`[[source.point]]`: a source density at the unknown of this index or nearest position."""

    one_of = ("index", "position")

    field: FieldName
    """The field to whose equation the density is added: `temperature`, since only heat conduction
    has point sources."""
    index: tuple[Integer, ...] | None = None
    """The index of the unknown along x, y, z, from 0; this or `position`."""
    position: tuple[Real, ...] | None = None
    """Coordinates; the nearest unknown is taken."""
    value: Real
    """A density, as in `[source]`."""


class HeatSource(Source):
    """`[source]`: the density f of the equation."""

    point_sources: tuple[PointSource, ...] = Field(default=(), alias="point")
    """Densities that are added at single unknowns."""

    @property
    def points(self) -> tuple[PointSource, ...]:
        return self.point_sources


class HeatCondition(Condition):
    """One field at one wall: a condition of exactly one kind."""

    @cached_property
    def kind(self) -> WallKind:
        """The condition, as the class that has its formulas."""
        (name,) = self.model_fields_set
        given = getattr(self, name)
        if isinstance(given, WallKind):
            return given
        return WallKind.known[name].model_construct(**{name: given})


def _key(kind: type[WallKind]) -> tuple[Any, Any]:
    """The key of a kind of wall: a table, or one value if the kind's only key has its name."""
    meaning = " ".join((kind.__doc__ or "").split())
    alone = list(kind.model_fields) == [kind.name]
    given = kind.__annotations__[kind.name] if alone else kind
    return given | None, Field(default=None, description=meaning)


class HeatCase(Case):
    """A case of heat conduction."""

    kind = "heat"
    owners = 'model.kind = "heat"'
    model_class = "heatsolve.models.heat.conduction:Conduction"

    model: HeatModel = HeatModel()
    source: HeatSource = HeatSource()

    @property
    def field_names(self) -> tuple[str, ...]:
        return ("temperature",)

    @property
    def has_jumps(self) -> bool:
        return bool(self.model.conductivity.names)

    def changed_defaults(self) -> Iterator[ChangedDefault]:
        solves = self.model.steady or (self.time is not None and self.time.scheme in IMPLICIT)
        if solves and self.solver.monitor == "residual" and self.solver.iterations is None:
            yield ChangedDefault("solver", "relative", False, self.solver.is_relative)

    def mistakes(self) -> Found:
        grid, steady = self.grid, self.model.steady
        yield from super().mistakes()
        for n, point in enumerate(self.source.points):
            given = "index" if point.index is not None else "position"
            low = (0,) * grid.dimension if given == "index" else grid.lower
            high = tuple(n - 1 for n in grid.counts) if given == "index" else grid.upper
            path = ("source", "point", n, given)
            yield from outside_grid(path, getattr(point, given), grid, low, high)
        if self.time and self.time.scheme in ("rk2", "rk3", "adams-bashforth"):
            yield ("time", "scheme"), 'only for model.kind = "transport" or "flow"'
        if self.time and self.time.tolerance is not None:
            yield ("time", "tolerance"), 'not for model.kind = "heat": set model.steady = true'
        if self.solver.precision == "mixed":
            if self.time and self.time.scheme == "explicit":
                yield ("solver", "precision"), '"mixed" needs a system to solve, not explicit steps'
            elif self.solver.method == "auto" and self.has_jumps:
                sentence = '"mixed" is only for method = "multigrid", and auto means "mgcg" here'
                yield ("solver", "precision"), sentence
        if self.solver.update and not (steady and grid.dimension == 2):
            yield ("solver", "update"), "only for a steady case in 2D"
        elif self.solver.update:
            yield from self._mistakes_of_update()

    def _mistakes_of_update(self) -> Found:
        """Yield keys that mean nothing to a literal update: no update has a coefficient, and all
        except `laplace` need equal spacings."""
        grid, update = self.grid, self.solver.update
        box = make_grid(grid.counts, grid.lower, grid.upper, grid.kind == "nodes", grid.periodic)
        if update != "laplace" and not box.equal_spacings:
            given = " and ".join(show(axis.spacing) for axis in reversed(box.axes))
            yield ("grid",), f'solver.update = "{update}" needs equal spacings, not {given}'
        if grid.kind == "cells" and len(grid.periodic) < grid.dimension:
            yield ("grid", "cells"), "must be nodes with solver.update, which has walls on points"
        conductivity = self.model.conductivity
        if conductivity.names or conductivity() != 1.0:
            yield ("model", "conductivity"), "must be 1 with solver.update"
        for path, _, condition in self.conditions():
            gradient = condition.gradient
            level = gradient is not None and not gradient.names and gradient() == 0.0
            if condition.value is None and not level:
                yield path, "must be a value, or a gradient of 0, with solver.update"
        if update != "laplace":
            sentence = f'must be absent, solver.update = "{update}" has no source'
            source = self.source.temperature
            if source.names or source() != 0.0:
                yield ("source", "temperature"), sentence
            if self.source.points:
                yield ("source", "point"), sentence


@cache
def case_with(*kinds: type[WallKind]) -> type[HeatCase]:
    """The case in which walls are of these kinds."""
    condition = with_keys(__name__, HeatCondition, **{kind.name: _key(kind) for kind in kinds})
    boundary = with_walls(__name__, with_keys(__name__, Wall, temperature=(condition | None, None)))
    return with_keys(__name__, HeatCase, boundary=(boundary, boundary()))


case_with(*WallKind.known.values())


def cases(model: Mapping[str, Any]) -> list[type[Case]]:
    """The classes of case that a `[model]` may mean, first the class that this one means."""
    return [case_with(*WallKind.known.values())]


def coefficient_names(case: Case) -> frozenset[str]:
    """The variables on which conductivity, heat capacity and transfer at walls depend."""
    model = case.model
    coefficients = [model.conductivity, model.density, model.specific_heat]
    for _, _, condition in case.conditions():
        coefficients += condition.kind.coefficients()
    return frozenset().union(*(each.names for each in coefficients))
