"""The sections of a case of transport, and its rules."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import pydantic
from annotated_types import Ge
from pydantic import Field

from heatsolve.case.case import Case
from heatsolve.case.sections import Box, Initial, Model
from heatsolve.case.toml import ChangedDefault
from heatsolve.case.types import Found, PositiveReal, Real, VelocityField


class TransportModel(Model):
    """Transport: du/dt + div(v u) = nu div grad u + f, where u is a concentration, or the velocity
    itself (`velocity = "self"`)."""

    kind: Literal["transport"] = "transport"
    """Transport."""
    velocity: VelocityField = None
    """v along x, y, z; 0 if not given. `"self"`: the quantities `velocity_x`, `velocity_y`,
    `velocity_z` carry themselves."""
    diffusivity: Annotated[Real, Ge(0)] = 0.0
    """nu (m2/s)."""
    convection: Literal["upwind", "backward", "central", "upwind3", "tvd"] = "upwind"
    """The scheme of the convection term; see [transport](cases.md#transport)."""
    form: Literal["flux", "advective"] = "flux"
    """`flux` has div(v u) and conserves u, `advective` v . grad u. `"flux"` if not given,
    `"advective"` with `convection = "backward"`."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _usual_form(cls, table: Any) -> Any:
        if isinstance(table, Mapping) and table.get("convection") == "backward":
            return {"form": "advective", **table}
        return table


class TransportBox(Box):
    """`[[initial.box]]`: another value inside a box, of indices or coordinates, ends included. A
    box across the end of a periodic axis goes on at the other end."""

    times: tuple[PositiveReal, ...] = Field(default=(), alias="again")
    """With transport: times at which the box is set again, by the first step from each time on."""

    @property
    def again(self) -> tuple[float, ...]:
        return self.times


class TransportInitial(Initial):
    """`[initial]`: where a march in time or an iteration starts."""

    boxes: tuple[TransportBox, ...] = Field(default=(), alias="box")
    """Other values inside boxes; where boxes overlap, the last one counts."""


class TransportCase(Case):
    """A case of transport."""

    kind = "transport"
    owners = 'model.kind = "transport"'
    model_class = "heatsolve.models.transport.convection:Convection"

    model: TransportModel
    initial: TransportInitial = TransportInitial()

    @property
    def field_names(self) -> tuple[str, ...]:
        if self.model.velocity == "self":
            return tuple(f"velocity_{axis}" for axis in self.grid.axes)
        return ("concentration",)

    @property
    def velocity_changes(self) -> bool:
        return self.model.velocity == "self"

    def changed_defaults(self) -> Iterator[ChangedDefault]:
        yield ChangedDefault("model", "form", "advective", self.model.form)

    def mistakes(self) -> Found:
        yield from super().mistakes()
        velocity, dimension = self.model.velocity, self.grid.dimension
        if isinstance(velocity, tuple) and len(velocity) != dimension:
            yield ("model", "velocity"), f"must have length {dimension}, as the grid has axes"
        yield from self._mistaken_stages()


def cases(model: Mapping[str, Any]) -> list[type[Case]]:
    """The classes of case that a `[model]` may mean, first the class that this one means."""
    return [TransportCase]
