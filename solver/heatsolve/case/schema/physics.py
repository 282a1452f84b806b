"""The sections on what is solved: the equation, where it starts, its sources, walls and bodies."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pydantic
from annotated_types import Ge
from pydantic import Field, StrictBool

from heatsolve.case.schema.section import ONE, ZERO, FieldName, Section
from heatsolve.case.types import (
    Found,
    Integer,
    PositiveReal,
    Real,
    Shape,
    SpaceField,
    SpaceTimeField,
    VelocityField,
)
from heatsolve.models.user import Equations
from heatsolve.stencil.expressions import Expression, show

Convection = Literal["backward", "upwind", "central", "upwind3", "tvd", "skew", "central4"]
HEAT_KEYS = ("conductivity", "density", "specific_heat")
KEYS = {
    "heat": HEAT_KEYS,
    "transport": ("velocity", "diffusivity", "convection", "form"),
    "flow": (
        "scheme",
        "viscosity",
        "density",
        "convection",
        "diffusivity",
        "thermal_diffusivity",
        "buoyancy",
        "reference_temperature",
    ),
}
"""The keys of `[model]` that not all kinds have."""
CONVECTIONS = {
    "transport": ("upwind", "backward", "central", "upwind3", "tvd"),
    "collocated": ("backward",),
    "staggered": ("central", "skew", "central4", "upwind3"),
}
"""The first one is the default."""

SHAPES = {"circle": ("center", "radius"), "box": ("lower", "upper")}
"""The keys of `[[obstacle]]` that a shape needs."""


class About(Section):
    """`[case]`: what the case is."""

    title: str = ""
    """One line, shown by `heatsolve cases`, at the start of a run and above pictures."""
    description: str = ""
    """What the case is about."""
    reference: str = ""
    """Where it, or the result to expect, comes from."""


class Model(Section):
    """`[model]`: the equation and its coefficients.

    - heat: rho c dT/dt = div(k grad T) + f.
    - transport: du/dt + div(v u) = nu div grad u + f, where u is a concentration, or the velocity
      itself (`velocity = "self"`).
    - flow: incompressible, du/dt + u . grad u = -grad p / rho + nu div grad u + f.
    """

    equations: ClassVar[Equations | None] = None
    """Those of a user's own model."""

    kind: Literal["heat", "transport", "flow"] = "heat"
    """The equation; or the name of [a model of your own](extending.md#a-model)."""
    steady: StrictBool = True
    """Of heat: div(k grad T) + f = 0 in place of a march. Transport and flow always march."""
    conductivity: SpaceField = ONE
    """Of heat: k (W/m/K)."""
    density: SpaceField = ONE
    """Of heat: rho (kg/m3). Of flow: rho, a number."""
    specific_heat: SpaceField = ONE
    """Of heat: c (J/kg/K)."""
    velocity: VelocityField = None
    """Of transport: v along x, y, z; 0 if not given. `"self"`: the quantities `velocity_x`,
    `velocity_y`, `velocity_z` carry themselves."""
    diffusivity: Annotated[Real, Ge(0)] = 0.0
    """Of transport: nu (m2/s). Of flow: if given, the flow carries a `concentration` with it."""
    convection: Convection = "upwind"
    """Of transport `upwind`, `backward`, `central`, `upwind3` or `tvd`; of staggered flow
    `central`, `skew`, `central4` or `upwind3`; of collocated flow `backward`. The first of each is
    the default."""
    form: Literal["flux", "advective"] | None = None
    """Of transport: `flux` has div(v u) and conserves u, `advective` v . grad u. `"flux"` if not
    given, `"advective"` with `convection = "backward"`."""
    scheme: Literal["staggered", "collocated"] | None = None
    """Of flow: where velocities and pressure stand; `"staggered"` if not given."""
    viscosity: Annotated[Real, Ge(0)] = 0.0
    """Of flow, which needs it: nu (m2/s), the kinematic one."""
    thermal_diffusivity: Annotated[Real, Ge(0)] | None = None
    """Of staggered flow: alpha (m2/s); if given, the flow carries a `temperature`."""
    buoyancy: tuple[Real, ...] | None = None
    """Of staggered flow with a temperature: acceleration along x, y, z for each unit of
    temperature."""
    reference_temperature: Real = 0.0
    """The temperature at which there is no buoyancy."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _march(cls, table: Any) -> Any:
        if isinstance(table, Mapping) and table.get("kind") in ("transport", "flow"):
            scheme = table.get("scheme", "staggered") if table["kind"] == "flow" else "transport"
            usual = CONVECTIONS.get(scheme) if isinstance(scheme, str) else None
            usually = {"convection": usual[0]} if usual else {}
            if usual and table["kind"] == "flow":
                usually["scheme"] = scheme
            elif usual:
                backward = table.get("convection") == "backward"
                usually["form"] = "advective" if backward else "flux"
            return {"steady": False, **usually, **table}
        if isinstance(table, Mapping) and cls.equations is not None:
            return {"steady": False, **table}
        return table

    def mistakes(self) -> Found:
        own = self.equations.parameters if self.equations is not None else ()
        for key in sorted((self.model_fields_set & set().union(*KEYS.values())).difference(own)):
            kinds = [kind for kind, keys in KEYS.items() if key in keys]
            if self.kind not in kinds:
                yield (key,), f"only for kind = {' or '.join(map(show, kinds))}"
        if self.kind != "heat" and self.steady:
            yield ("steady",), f'must be false with kind = "{self.kind}"'
        if self.kind == "flow":
            yield from self._mistakes_of_flow()
        choices = CONVECTIONS[self.scheme or "transport"]
        if self.kind != "heat" and self.convection not in choices:
            said = " or ".join(map(show, choices))
            yield ("convection",), f"must be {said} here, not {show(self.convection)}"
        for key in HEAT_KEYS:
            coefficient: Expression = getattr(self, key)
            if not coefficient.names and not (value := float(coefficient())) > 0:
                yield (key,), f"must be greater than 0, not {show(value)}"

    def _mistakes_of_flow(self) -> Found:
        if "viscosity" not in self.model_fields_set:
            yield ("viscosity",), 'missing, kind = "flow" needs it'
        for key in ("diffusivity", "thermal_diffusivity", "buoyancy"):
            if self.scheme == "collocated" and key in self.model_fields_set:
                yield (key,), 'only for scheme = "staggered"'
        for key in ("buoyancy", "reference_temperature"):
            if key in self.model_fields_set and self.thermal_diffusivity is None:
                yield (key,), "only with thermal_diffusivity, which has a temperature carried along"
        if self.density.names:
            yield ("density",), 'must be a number with kind = "flow"'


class Box(Section):
    """`[[initial.box]]`: another value inside a box, of indices or coordinates, ends included."""

    field: FieldName
    """The field that it is set in."""
    value: SpaceField
    """The value inside."""
    first: tuple[Integer, ...] | None = None
    """The low corner as indices from 0."""
    last: tuple[Integer, ...] | None = None
    """The high corner as indices."""
    lower: tuple[Real, ...] | None = None
    """The low corner as coordinates."""
    upper: tuple[Real, ...] | None = None
    """The high corner as coordinates."""
    again: tuple[PositiveReal, ...] = ()
    """Of transport: times; the box is set once more at the first step from each of them on."""

    @property
    def by_index(self) -> bool:
        return self.first is not None

    @property
    def corners(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Of indices or coordinates, along x, y, z."""
        low, high = (self.first, self.last) if self.by_index else (self.lower, self.upper)
        return low or (), high or ()

    def mistakes(self) -> Found:
        given = {key for key in ("first", "last", "lower", "upper") if getattr(self, key)}
        if given not in ({"first", "last"}, {"lower", "upper"}):
            yield (), "give first and last, or lower and upper"


class Initial(Section):
    """`[initial]`: where a march in time or an iteration starts."""

    temperature: SpaceField = ZERO
    """Where the march or the iteration starts."""
    concentration: SpaceField = ZERO
    velocity_x: SpaceField = ZERO
    velocity_y: SpaceField = ZERO
    velocity_z: SpaceField = ZERO
    pressure: SpaceField = ZERO
    boxes: tuple[Box, ...] = Field(default=(), alias="box")
    """Other values inside boxes, the last one on top."""


class Obstacle(Section):
    """`[[obstacle]]`: a body at rest in a flow; by an expression that is not 0 inside it, too.

    It has a temperature or concentration, or nothing of it goes through its surface.
    """

    shape: Shape
    """`"circle"` (in 3D a sphere), `"box"`, or an expression that holds inside, as `"x > 1 and y <
    0.5*x"`."""
    center: tuple[Real, ...] | None = None
    """Of a circle."""
    radius: PositiveReal | None = None
    """Of a circle."""
    lower: tuple[Real, ...] | None = None
    """Of a box: its low corner."""
    upper: tuple[Real, ...] | None = None
    """Of a box: its high corner."""
    temperature: Real | None = None
    """What it has of a quantity that the flow carries; without it nothing goes through the
    surface."""
    concentration: Real | None = None

    @property
    def corners(self) -> tuple[tuple[float, ...], ...]:
        """Every point that it is given by."""
        return tuple(c for c in (self.center, self.lower, self.upper) if c is not None)

    @property
    def extent(self) -> tuple[tuple[float, float], ...]:
        """From where to where it reaches along x, y, z; none for an expression."""
        if self.center is not None and self.radius is not None:
            return tuple((x - self.radius, x + self.radius) for x in self.center)
        return tuple(zip(self.lower or (), self.upper or (), strict=False))

    def contains(self, positions: Mapping[str, np.ndarray]) -> np.ndarray:
        """Whether points lie inside or on the surface; positions along x, y, z, in this order."""
        axes = list(positions.values())
        if self.center is not None and self.radius is not None:
            squares = [(x - c) * (x - c) for x, c in zip(axes, self.center, strict=True)]
            return np.asarray(sum(squares) <= self.radius * self.radius)
        if self.lower is not None and self.upper is not None:
            inside = np.asarray(True)
            for x, low, high in zip(axes, self.lower, self.upper, strict=True):
                inside = inside & (low <= x) & (x <= high)
            return inside
        assert not isinstance(self.shape, str)
        found = np.asarray(self.shape(**{name: positions[name] for name in self.shape.names}))
        return np.isfinite(found) & (found != 0.0)

    def mistakes(self) -> Found:
        shape = self.shape if isinstance(self.shape, str) else "an expression"
        for kind, keys in SHAPES.items():
            for key in keys:
                given = getattr(self, key) is not None
                if given and kind != shape:
                    yield (key,), f'only for shape = "{kind}"'
                elif kind == shape and not given:
                    yield (key,), f'missing, shape = "{kind}" needs it'
        for low, high in zip(self.lower or (), self.upper or (), strict=False):
            if not low < high:
                yield ("upper",), f"must be above lower: {show(low)} to {show(high)}"


class PointSource(Section):
    """`[[source.point]]`: a source density at the unknown of this index or nearest position."""

    field: FieldName
    """The field whose equation it is added to."""
    index: tuple[Integer, ...] | None = None
    """Of the unknown, from 0, in the order x, y, z; this or `position`."""
    position: tuple[Real, ...] | None = None
    """Coordinates; the nearest unknown is taken."""
    value: Real
    """A density, as in `[source]`."""

    def mistakes(self) -> Found:
        yield from self._one_of("index", "position")


class Source(Section):
    """`[source]`: the density f of the equation."""

    temperature: SpaceTimeField = ZERO
    """f of the field's equation: of heat q (W/m3), of a velocity a force on each unit of mass."""
    concentration: SpaceTimeField = ZERO
    velocity_x: SpaceTimeField = ZERO
    velocity_y: SpaceTimeField = ZERO
    velocity_z: SpaceTimeField = ZERO
    pressure: SpaceTimeField = ZERO
    mean_velocity_x: Real | None = None
    """Of staggered flow: a mean velocity along a periodic axis, held by a uniform force that
    follows from the flow."""
    mean_velocity_y: Real | None = None
    mean_velocity_z: Real | None = None
    points: tuple[PointSource, ...] = Field(default=(), alias="point")
    """Densities that are added at single unknowns."""


class Robin(Section):
    """-k dT/dn = h (T - ambient)."""

    h: SpaceField
    """The surface coefficient (W/m2/K); it may not vary in time."""
    ambient: SpaceTimeField
    """The temperature outside."""


class Condition(Section):
    """One field at one wall: its value, its outward normal derivative, or a Robin condition."""

    value: SpaceTimeField | None = None
    """The field at the wall."""
    gradient: SpaceTimeField | None = None
    """Its outward normal derivative."""
    robin: Robin | None = None
    """Of heat: -k dT/dn = h (T - ambient)."""

    def mistakes(self) -> Found:
        yield from self._one_of("value", "gradient", "robin")


class Wall(Section):
    """`[boundary.left]` and its like: a condition for every field of the model.

    Of a flow: its `kind`, and values where they are not 0.
    """

    kind: Literal["no-slip", "free-slip", "inflow", "outflow"] | None = None
    """Of staggered flow, which needs it."""

    temperature: Condition | None = None
    """The condition of a field: of every one where the wall has no kind, else where it is not
    0."""
    concentration: Condition | None = None
    velocity_x: Condition | None = None
    velocity_y: Condition | None = None
    velocity_z: Condition | None = None
    pressure: Condition | None = None


class Boundary(Section):
    """`[boundary]`: the walls of the box."""

    left: Wall | None = None
    """`left` and `right` are the low and the high x wall, `bottom` and `top` those of y, `back`
    and `front` those of z."""
    right: Wall | None = None
    bottom: Wall | None = None
    top: Wall | None = None
    back: Wall | None = None
    front: Wall | None = None
