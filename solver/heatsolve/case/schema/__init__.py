"""The sections and keys of a case file, and what may stand in each.

One class a section; an attribute is a key (`alias` where the key would be a poor attribute
name), and the sentence behind it is its meaning. What a value is made of is in `values`.
"""

from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, create_model

from heatsolve.case.schema.files import (
    Checkpoint,
    Exact,
    Output,
    Parallel,
    Profile,
    Reference,
    Units,
)
from heatsolve.case.schema.numerics import IMPLICIT, Grid, Solver, Time
from heatsolve.case.schema.physics import (
    About,
    Boundary,
    Condition,
    Initial,
    Model,
    Obstacle,
    PointSource,
    Source,
    Wall,
)
from heatsolve.case.schema.section import FIELDS, ZERO, Section
from heatsolve.case.types import Constants, Real, SpaceField, SpaceTimeField, real
from heatsolve.models.user import Equations

__all__ = [
    "FIELDS",
    "IMPLICIT",
    "Condition",
    "Document",
    "Grid",
    "Output",
    "PointSource",
    "Profile",
    "Section",
    "Time",
    "document_for",
]


class Document(Section):
    """A whole case file. `[constants]` comes first, because the others are read in terms of it."""

    constants: Constants = Field(default_factory=dict)
    """Names for numbers in expressions, each in terms of those before it."""
    schema_version: Annotated[Literal[1], BeforeValidator(real)] = Field(default=1, alias="schema")
    """The version of this format."""
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
    def norm_words(self) -> str:
        """What the norm in the history of a run is of."""
        if self.time is None or self.model.steady:
            return f"{self.solver.norm} of the {self.solver.monitor}"
        if self.time.tolerance is None:
            return "l2 of the rate of change"
        return {"max": "largest rate of change", "sum-change": "change of the sum"}[self.time.norm]

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
