"""The sections and keys of a case file, and what may stand in each.

One class a section; an attribute is a key (`alias` where the key would be a poor attribute
name). What a value is made of is in `values`.
"""

import math
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

import pydantic
from annotated_types import Ge, Le, Lt
from pydantic import BeforeValidator, Field, PlainValidator, Strict, StrictBool, create_model

from heatsolve.expressions import Expression, compile_expression, show
from heatsolve.grid import AXIS_NAMES
from heatsolve.models import Equations
from heatsolve.values import (
    Constants,
    Found,
    Integer,
    Interval,
    Mistakes,
    PositiveInteger,
    PositiveReal,
    Real,
    Shape,
    SpaceField,
    SpaceTimeField,
    VelocityField,
    real,
    seconds_of,
)

MAX_POINTS = 2**40
ZERO, ONE = (compile_expression(text, (), {}) for text in ("0.0", "1.0"))

FIELDS = ("temperature", "concentration", "velocity_x", "velocity_y", "velocity_z", "pressure")
"""Of the built-in models."""
FieldName = Annotated[str, Strict()]
"""Of the model: `conflicts` knows which it has."""
Convection = Literal["backward", "upwind", "central", "upwind3", "tvd", "skew", "central4"]
HEAT_KEYS = ("conductivity", "density", "specific_heat")
KEYS = {
    "heat": HEAT_KEYS,
    "transport": ("velocity", "diffusivity", "convection"),
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


class Section(pydantic.BaseModel):
    """A table of the case file: frozen, and without any key but its own."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def attributes(cls) -> dict[str, str]:
        """The attribute of each key."""
        return {info.alias or name: name for name, info in cls.model_fields.items()}

    def mistakes(self) -> Found:
        """Yield what no single value shows: key path below this section, sentence."""
        yield from ()

    @pydantic.model_validator(mode="after")
    def _refuse_mistakes(self) -> "Section":
        if found := tuple(self.mistakes()):
            raise Mistakes(*found)
        return self

    def _one_of(self, *keys: str) -> Found:
        if sum(getattr(self, key) is not None for key in keys) != 1:
            yield (), f"give exactly one of {', '.join(keys)}"


class About(Section):
    """`[case]`: what the case is."""

    title: str = ""
    description: str = ""
    reference: str = ""


class Model(Section):
    """`[model]`: the equation and its coefficients.

    heat: rho c dT/dt = div(k grad T) + f. transport: du/dt + v . grad u = nu div grad u + f, where
    u is a concentration, or the velocity itself (`velocity = "self"`). flow: incompressible,
    du/dt + u . grad u = -grad p / rho + nu div grad u + f.
    """

    equations: ClassVar[Equations | None] = None
    """Those of a user's own model."""

    kind: Literal["heat", "transport", "flow"] = "heat"
    steady: StrictBool = True
    conductivity: SpaceField = ONE
    density: SpaceField = ONE
    specific_heat: SpaceField = ONE
    velocity: VelocityField = None
    diffusivity: Annotated[Real, Ge(0)] = 0.0
    convection: Convection = "upwind"
    scheme: Literal["staggered", "collocated"] | None = None
    viscosity: Annotated[Real, Ge(0)] = 0.0
    thermal_diffusivity: Annotated[Real, Ge(0)] | None = None
    buoyancy: tuple[Real, ...] | None = None
    reference_temperature: Real = 0.0

    @pydantic.model_validator(mode="before")
    @classmethod
    def _march(cls, table: Any) -> Any:
        if isinstance(table, Mapping) and table.get("kind") in ("transport", "flow"):
            scheme = table.get("scheme", "staggered") if table["kind"] == "flow" else "transport"
            usual = CONVECTIONS.get(scheme) if isinstance(scheme, str) else None
            usually = {"convection": usual[0]} if usual else {}
            if usual and table["kind"] == "flow":
                usually["scheme"] = scheme
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


class Grid(Section):
    """`[grid]`: the box and its points; lists run x, y, z."""

    nodes: tuple[Integer, ...] | None = None
    cells: tuple[Integer, ...] | None = None
    lower: tuple[Real, ...] = ()
    upper: tuple[Real, ...] = ()
    periodic: tuple[Literal["x", "y", "z"], ...] = ()

    @pydantic.model_validator(mode="before")
    @classmethod
    def _unit_box(cls, table: Any) -> Any:
        counts = isinstance(table, Mapping) and (table.get("nodes") or table.get("cells"))
        if not isinstance(counts, list):
            return table
        return {"lower": [0.0] * len(counts), "upper": [1.0] * len(counts), **table}

    @property
    def kind(self) -> Literal["nodes", "cells"]:
        return "cells" if self.nodes is None else "nodes"

    @property
    def counts(self) -> tuple[int, ...]:
        """Points along x, y, z."""
        return self.nodes or self.cells or ()

    @property
    def dimension(self) -> int:
        return len(self.counts)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of the case, such as ("x", "y")."""
        return AXIS_NAMES[: self.dimension]

    def mistakes(self) -> Found:
        yield from self._one_of("nodes", "cells")
        if (self.nodes is None) == (self.cells is None):
            return
        if not 1 <= self.dimension <= 3:
            yield (self.kind,), f"must have length 1 to 3, not {self.dimension}"
            return
        least = 2 if self.cells else 3
        for axis, count in zip(self.axes, self.counts, strict=True):
            if count < least:
                yield (self.kind,), f"{axis} needs at least {least} {self.kind}, not {count}"
        if math.prod(self.counts) > MAX_POINTS:
            yield (self.kind,), "more than 2**40 points in total"
        for key, corner in (("lower", self.lower), ("upper", self.upper)):
            if len(corner) != self.dimension:
                yield (key,), f"must have length {self.dimension}, not {len(corner)}"
        for axis, low, high in zip(self.axes, self.lower, self.upper, strict=False):
            if not 0 < high - low < math.inf:
                yield ("upper",), f"must be above lower along {axis}: {show(low)} to {show(high)}"
        for n, axis in enumerate(self.periodic):
            if axis not in self.axes:
                yield ("periodic", n), f"the case has no {axis} axis"
            if axis in self.periodic[:n]:
                yield ("periodic", n), f"{axis} is listed twice"


class Box(Section):
    """`[[initial.box]]`: another value inside a box, of indices or coordinates, ends included.

    `again`: the box is set once more at the first step from each of these times on.
    """

    field: FieldName
    value: SpaceField
    first: tuple[Integer, ...] | None = None
    last: tuple[Integer, ...] | None = None
    lower: tuple[Real, ...] | None = None
    upper: tuple[Real, ...] | None = None
    again: tuple[PositiveReal, ...] = ()

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
    concentration: SpaceField = ZERO
    velocity_x: SpaceField = ZERO
    velocity_y: SpaceField = ZERO
    velocity_z: SpaceField = ZERO
    pressure: SpaceField = ZERO
    boxes: tuple[Box, ...] = Field(default=(), alias="box")


class Obstacle(Section):
    """`[[obstacle]]`: a body at rest in a flow; by an expression that is not 0 inside it, too.

    It has a temperature or concentration, or nothing of it goes through its surface.
    """

    shape: Shape
    center: tuple[Real, ...] | None = None
    radius: PositiveReal | None = None
    lower: tuple[Real, ...] | None = None
    upper: tuple[Real, ...] | None = None
    temperature: Real | None = None
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
    index: tuple[Integer, ...] | None = None
    position: tuple[Real, ...] | None = None
    value: Real

    def mistakes(self) -> Found:
        yield from self._one_of("index", "position")


class Source(Section):
    """`[source]`: the density f of the equation.

    A mean velocity along a periodic axis is held by a uniform force that follows from the flow.
    """

    temperature: SpaceTimeField = ZERO
    concentration: SpaceTimeField = ZERO
    velocity_x: SpaceTimeField = ZERO
    velocity_y: SpaceTimeField = ZERO
    velocity_z: SpaceTimeField = ZERO
    pressure: SpaceTimeField = ZERO
    mean_velocity_x: Real | None = None
    mean_velocity_y: Real | None = None
    mean_velocity_z: Real | None = None
    points: tuple[PointSource, ...] = Field(default=(), alias="point")


class Robin(Section):
    """-k dT/dn = h (T - ambient)."""

    h: SpaceField
    ambient: SpaceTimeField


class Condition(Section):
    """One field at one wall: its value, its outward normal derivative, or a Robin condition."""

    value: SpaceTimeField | None = None
    gradient: SpaceTimeField | None = None
    robin: Robin | None = None

    def mistakes(self) -> Found:
        yield from self._one_of("value", "gradient", "robin")


class Wall(Section):
    """`[boundary.left]` and its like: a condition for every field of the model.

    Of a flow: its `kind`, and values where they are not 0.
    """

    kind: Literal["no-slip", "free-slip", "inflow", "outflow"] | None = None

    temperature: Condition | None = None
    concentration: Condition | None = None
    velocity_x: Condition | None = None
    velocity_y: Condition | None = None
    velocity_z: Condition | None = None
    pressure: Condition | None = None


class Boundary(Section):
    """`[boundary]`: the walls of the box."""

    left: Wall | None = None
    right: Wall | None = None
    bottom: Wall | None = None
    top: Wall | None = None
    back: Wall | None = None
    front: Wall | None = None


SHAPES = {"circle": ("center", "radius"), "box": ("lower", "upper")}
"""The keys of `[[obstacle]]` that a shape needs."""

OPTIONS = {
    "weight": ("jacobi",),
    "omega": ("sor",),
    "cycle": ("multigrid", "mgcg"),
    "smoother": ("multigrid", "mgcg"),
    "sweeps": ("multigrid", "mgcg"),
}
"""Keys of `[solver]` that only some methods have."""


class Solver(Section):
    """`[solver]`: how a steady case, or one implicit step, is solved."""

    method: Literal["auto", "jacobi", "sor", "chebyshev", "cg", "multigrid", "mgcg", "fft"] = "auto"
    update: Literal["laplace", "five-point-mean", "four-point-mean"] | None = None
    cycle: Literal["V", "W", "FMG"] = "V"
    smoother: Literal["red-black", "chebyshev"] = "red-black"
    sweeps: Annotated[PositiveInteger, Le(8)] | None = None
    weight: Annotated[PositiveReal, Le(2)] = 1.0
    omega: Annotated[PositiveReal, Lt(2)] | None = None
    tolerance: PositiveReal = 1e-8
    relative: StrictBool = False
    norm: Literal["l2", "max", "sum-abs-change"] = "l2"
    monitor: Literal["update", "residual"] = "residual"
    max_iterations: PositiveInteger = 1_000_000
    iterations: PositiveInteger | None = None
    check_every: PositiveInteger = 1
    precision: Literal["float64", "float32", "mixed"] = "float64"

    @property
    def field_precision(self) -> str:
        """That of fields and of the residual; only a solver's own arrays may have another."""
        return "float64" if self.precision == "mixed" else self.precision

    def mistakes(self) -> Found:
        if self.update and self.method not in ("auto", "jacobi"):
            yield ("update",), f'only for method = "jacobi", not "{self.method}"'
        if self.update and self.monitor != "update" and self.iterations is None:
            yield ("monitor",), 'must be "update" with solver.update, which defines no residual'
        if self.norm == "sum-abs-change" and self.monitor != "update":
            yield ("monitor",), 'must be "update" with norm = "sum-abs-change"'
        if self.update and "weight" in self.model_fields_set:
            yield ("weight",), "has no effect with solver.update"
        for key, methods in OPTIONS.items():
            if key in self.model_fields_set and self.method not in methods:
                names = " or ".join(f'"{method}"' for method in methods)
                yield (key,), f'only for method = {names}, not "{self.method}"'
        if self.cycle == "FMG" and self.method == "mgcg":
            yield ("cycle",), '"FMG" is only for method = "multigrid", not "mgcg"'
        if self.precision == "mixed":
            if self.method not in ("auto", "multigrid") or self.update:
                method = "jacobi" if self.update else self.method
                yield ("precision",), f'"mixed" is only for method = "multigrid", not "{method}"'
            if self.cycle == "FMG":
                yield ("cycle",), 'must be "V" or "W" with precision = "mixed"'


IMPLICIT = ("crank-nicolson", "backward-euler")
"""The schemes that solve a system in each step."""


class Time(Section):
    """`[time]`: the march of a transient case from t = 0."""

    end: PositiveReal
    step: PositiveReal | None = None
    cfl: PositiveReal | None = None
    scheme: Literal[
        "explicit", "rk2", "rk3", "adams-bashforth", "crank-nicolson", "backward-euler"
    ] = "explicit"
    diffusion: Literal["explicit", "crank-nicolson"] = "explicit"
    allow_unstable: StrictBool = False
    tolerance: PositiveReal | None = None
    norm: Literal["max", "sum-change"] = "max"

    def mistakes(self) -> Found:
        yield from self._one_of("step", "cfl")
        if "norm" in self.model_fields_set and self.tolerance is None:
            yield ("norm",), "only with time.tolerance"
        if self.cfl is not None and self.scheme in IMPLICIT:
            yield ("cfl",), f'only for explicit schemes, not "{self.scheme}"'


class Line(Section):
    """`[[output.line]]`: so many points from one to another, evenly spaced, ends included."""

    start: tuple[Real, ...] = Field(alias="from")
    end: tuple[Real, ...] = Field(alias="to")
    points: Annotated[Integer, Ge(2), Le(1000)]

    def positions(self) -> list[tuple[float, ...]]:
        """Along x, y, z."""
        shares = [n / (self.points - 1) for n in range(self.points)]
        ends = list(zip(self.start, self.end, strict=True))
        return [tuple((1.0 - s) * low + s * high for low, high in ends) for s in shares]


def _film(value: Any) -> Any:
    """Whether there is a film, or of which fields."""
    if not isinstance(value, bool | list):
        raise ValueError(f"must be true, false or a list of fields, not {show(value)}")
    for item in value if isinstance(value, list) else ():
        if not isinstance(item, str):
            raise ValueError(f"must be a list of names of fields, not of {show(item)}")
    return value if isinstance(value, bool) else tuple(value)


Film = Annotated[bool | tuple[str, ...], PlainValidator(_film)]


class Output(Section):
    """`[output]`: what is written, and after how many steps each time.

    `probes` and `lines` are where the fields of a march are read into its history. `plot` are
    fields drawn at its end, `film` those of which the frames are, true the first of all.
    """

    fields: tuple[FieldName, ...] | None = None
    every: PositiveInteger | None = None
    plot: tuple[FieldName, ...] = ()
    film: Film = False
    probes: tuple[tuple[Real, ...], ...] = ()
    lines: tuple[Line, ...] = Field(default=(), alias="line")

    @property
    def drawn(self) -> bool:
        """Whether there is anything to draw."""
        return bool(self.plot or self.film)

    def mistakes(self) -> Found:
        if self.fields == ():
            yield ("fields",), "must name a field"


class Checkpoint(Section):
    """`[checkpoint]`: how often the state of a run is saved, and how many states are kept."""

    every: Interval | None = None
    keep: PositiveInteger = 2

    @property
    def every_steps(self) -> int | None:
        """Iterations or steps from one checkpoint to the next."""
        return self.every if isinstance(self.every, int) else None

    @property
    def every_seconds(self) -> float | None:
        """Seconds of wall time from one checkpoint to the next."""
        return seconds_of(self.every)


class Parallel(Section):
    """`[parallel]`: what the run runs on; it never changes the result."""

    backend: Literal["auto", "numpy", "numba", "cupy", "cuda"] = "auto"
    threads: PositiveInteger | None = None
    ranks: Literal["auto"] | tuple[PositiveInteger, ...] = "auto"
    halo: Literal["auto"] | PositiveInteger = "auto"
    transport: Literal["auto", "nccl", "mpi", "host"] = "auto"

    @property
    def layers(self) -> int:
        """Layers of ghosts to begin with: "auto" may find more, where passes are made of sweeps."""
        return 1 if self.halo == "auto" else self.halo


class Units(Section):
    """`[units]`: names of units for the output."""

    temperature: str = "1"
    concentration: str = "1"
    velocity_x: str = "1"
    velocity_y: str = "1"
    velocity_z: str = "1"
    pressure: str = "1"
    length: str = "1"
    time: str = "1"


class Exact(Section):
    """`[reference.exact]`: the exact solution of each field."""

    temperature: SpaceTimeField | None = None
    concentration: SpaceTimeField | None = None
    velocity_x: SpaceTimeField | None = None
    velocity_y: SpaceTimeField | None = None
    velocity_z: SpaceTimeField | None = None
    pressure: SpaceTimeField | None = None


class Profile(Section):
    """`[[reference.profile]]`: values of a field along a line that a report draws beside its own.

    The line goes along an axis, through a point. They may be measured, or of the literature.
    """

    field: FieldName
    along: Literal["x", "y", "z"]
    through: tuple[Real, ...]
    positions: tuple[Real, ...]
    values: tuple[Real, ...]
    source: str = ""

    def mistakes(self) -> Found:
        if len(self.values) != len(self.positions):
            counts = f"{len(self.positions)} positions and {len(self.values)} values"
            yield ("values",), f"must be as many as positions, not {counts}"


class Reference(Section):
    """`[reference]`: what the result is measured against."""

    exact: Exact = Exact()
    profiles: tuple[Profile, ...] = Field(default=(), alias="profile")


class Document(Section):
    """A whole case file. `[constants]` comes first, because the others are read in terms of it."""

    constants: Constants = Field(default_factory=dict)
    schema_version: Annotated[Literal[1], BeforeValidator(real)] = Field(default=1, alias="schema")
    about: About = Field(default=About(), alias="case")
    model: Model = Model()
    grid: Grid
    initial: Initial = Initial()
    source: Source = Source()
    boundary: Boundary = Boundary()
    obstacles: tuple[Obstacle, ...] = Field(default=(), alias="obstacle")
    solver: Solver = Solver()
    time: Time | None = None
    output: Output = Output()
    checkpoint: Checkpoint = Checkpoint()
    parallel: Parallel = Parallel()
    units: Units = Units()
    reference: Reference = Reference()

    @property
    def diffusivities(self) -> dict[str, float]:
        """Of each quantity that a flow carries along."""
        model, found = self.model, {}
        if model.kind == "flow" and model.thermal_diffusivity is not None:
            found["temperature"] = model.thermal_diffusivity
        if model.kind == "flow" and "diffusivity" in model.model_fields_set:
            found["concentration"] = model.diffusivity
        return found

    @property
    def velocity_names(self) -> tuple[str, ...]:
        """Those of the fields that are components of a velocity."""
        return tuple(name for name in self.field_names if name.startswith("velocity"))

    @property
    def field_names(self) -> tuple[str, ...]:
        """The fields of the model."""
        if self.model.equations is not None:
            return self.model.equations.fields
        if self.model.kind == "heat":
            return ("temperature",)
        if self.model.kind == "flow":
            velocities = (f"velocity_{axis}" for axis in self.grid.axes)
            return (*velocities, "pressure", *self.diffusivities)
        if self.model.velocity == "self":
            return tuple(f"velocity_{axis}" for axis in self.grid.axes)
        return ("concentration",)


@cache
def document_for(equations: Equations | None) -> type[Document]:
    """What a case file with a user's own model is: its fields and parameters are keys, too."""
    if equations is None:
        return Document

    def more(section: type[Section], **keys: Any) -> Any:
        return create_model(section.__name__, __base__=section, __doc__=section.__doc__, **keys)

    def with_fields(section: type[Section], kind: Any, usual: Any) -> Any:
        return more(section, **dict.fromkeys(equations.fields, (kind, usual)))

    numbers = {name: (Real, value) for name, value in equations.parameters.items()}
    model = more(Model, kind=(Literal[equations.name], equations.name), **numbers)
    model.equations = equations
    wall = with_fields(Wall, Condition | None, None)
    exact = with_fields(Exact, SpaceTimeField | None, None)
    sections = {
        "model": model,
        "initial": with_fields(Initial, SpaceField, ZERO),
        "source": with_fields(Source, SpaceTimeField, ZERO),
        "boundary": more(Boundary, **dict.fromkeys(Boundary.model_fields, (wall | None, None))),
        "units": with_fields(Units, str, "1"),
        "reference": more(Reference, exact=(exact, exact())),
    }
    return more(Document, **{name: (section, section()) for name, section in sections.items()})
