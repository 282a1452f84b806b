"""The sections of a case of flow on either grid, and its rules."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge
from pydantic import Field

from heatsolve.case.case import SIDES, Case
from heatsolve.case.sections import (
    IMPLICIT,
    ZERO,
    Boundary,
    Condition,
    Model,
    Section,
    Source,
    Time,
    Wall,
)
from heatsolve.case.types import Found, PositiveReal, Real, Shape
from heatsolve.stencil.data import Data
from heatsolve.stencil.expressions import show, words
from heatsolve.stencil.grid import WALLS

SHAPES = {"circle": ("center", "radius"), "box": ("lower", "upper")}
"""The keys of `[[obstacle]]` that a shape needs."""
STILL = Condition.model_construct(value=ZERO)
LEVEL = Condition.model_construct(gradient=ZERO)
"""The conditions of a velocity that is 0 at a wall, and of a velocity that slips along it."""
NOT_MIXED = 'must be "float64" or "float32" with model.kind = "flow"'


class FlowModel(Model):
    """Incompressible flow, du/dt + u . grad u = -grad p / rho + nu div grad u + f, div u = 0."""

    kind: Literal["flow"] = "flow"
    """Flow."""
    scheme: Literal["staggered", "collocated"] = "staggered"
    """The arrangement of velocities and pressure on the grid."""
    viscosity: Annotated[Real, Ge(0)]
    """The kinematic viscosity nu (m2/s)."""
    density: PositiveReal = 1.0
    """The density rho, a constant (kg/m3)."""


class CollocatedModel(FlowModel):
    """Flow on a collocated grid, as a lesson lists it: du/dt + u . grad u = -grad p / rho + nu div
    grad u + f, div u = 0."""

    convection: Literal["backward"] = "backward"
    """The scheme of the convection term."""


class StaggeredModel(FlowModel):
    """Flow on a staggered grid: du/dt + u . grad u = -grad p / rho + nu div grad u + f,
    div u = 0."""

    convection: Literal["central", "skew", "central4", "upwind3"] = "central"
    """The scheme of the convection term; see [flow](cases.md#flow)."""
    diffusivity: Annotated[Real, Ge(0)] = 0.0
    """The diffusivity of a `concentration` (m2/s); if given, the flow carries a concentration."""
    thermal_diffusivity: Annotated[Real, Ge(0)] | None = None
    """The diffusivity alpha of a `temperature` (m2/s); if given, the flow carries a temperature."""
    buoyancy: tuple[Real, ...] | None = None
    """With a temperature: the acceleration along x, y, z per unit of temperature."""
    reference_temperature: Real = 0.0
    """The temperature at which there is no buoyancy."""

    def mistakes(self) -> Found:
        yield from super().mistakes()
        for key in ("buoyancy", "reference_temperature"):
            if key in self.model_fields_set and self.thermal_diffusivity is None:
                yield (key,), "only with thermal_diffusivity, which has a temperature carried along"


class CollocatedCase(Case):
    """A case of flow on a collocated grid."""

    kind, scheme = "flow", "collocated"
    owners = 'model.scheme = "collocated"'
    model_class = "heatsolve.models.flow.collocated:Collocated"

    model: CollocatedModel

    @property
    def field_names(self) -> tuple[str, ...]:
        return (*(f"velocity_{axis}" for axis in self.grid.axes), "pressure")

    def mistakes(self) -> Found:
        yield from super().mistakes()
        here = 'with model.scheme = "collocated"'
        for path, name, condition in self.conditions():
            gradient = condition.gradient if name == "pressure" else None
            if gradient is not None and (gradient.names or gradient() != 0.0):
                yield (*path, "gradient"), f"must be 0 {here}"
        if self.grid.dimension != 2:
            yield ("grid",), f"must have two axes {here}"
        if self.grid.kind != "nodes":
            yield ("grid", "cells"), f"must be nodes {here}"
        if self.time and self.time.scheme != "explicit":
            yield ("time", "scheme"), f'must be "explicit" {here}'
        if self.solver.precision == "mixed":
            yield ("solver", "precision"), NOT_MIXED
        if self.solver.method not in ("auto", "jacobi"):
            yield ("solver", "method"), f'must be "jacobi" {here}'
        if self.solver.iterations is None:
            yield (
                ("solver", "iterations"),
                f"missing, so many sweeps for the pressure a step {here}",
            )
        known = {"precision", "check_every", "method", "iterations"}
        for key in sorted(self.solver.model_fields_set - known):
            yield ("solver", key), f"has no effect {here}"
        if "pressure" in self.source.model_fields_set:
            yield ("source", "pressure"), "a pressure has no source"


class Obstacle(Section):
    """`[[obstacle]]`: a body at rest in a flow: a circle, a box, or any shape by an expression.

    Its surface has a given temperature or concentration, or lets none through.
    """

    shape: Shape
    """`"circle"` (in 3D a sphere), `"box"`, or an expression that is true inside, such as `"x > 1
    and y < 0.5*x"`; data are 0.5 or more inside."""
    center: tuple[Real, ...] | None = None
    """The centre of a circle."""
    radius: PositiveReal | None = None
    """The radius of a circle."""
    lower: tuple[Real, ...] | None = None
    """The low corner of a box."""
    upper: tuple[Real, ...] | None = None
    """The high corner of a box."""
    temperature: Real | None = None
    """The value of this carried quantity at the surface; without a value the flux there is 0."""
    concentration: Real | None = None

    @property
    def corners(self) -> tuple[tuple[float, ...], ...]:
        """The points that define the obstacle: its centre, or its corners."""
        return tuple(c for c in (self.center, self.lower, self.upper) if c is not None)

    @property
    def extent(self) -> tuple[tuple[float, float], ...]:
        """The bounds of the obstacle along x, y, z; empty for an expression."""
        if self.center is not None and self.radius is not None:
            return tuple((x - self.radius, x + self.radius) for x in self.center)
        return tuple(zip(self.lower or (), self.upper or (), strict=False))

    def contains(
        self, positions: Mapping[str, np.ndarray], slack: Sequence[float] = ()
    ) -> np.ndarray:
        """Whether points lie inside or on the surface; positions along x, y, z, in this order.

        `slack`: the distance along each axis within which a point counts as on the surface of a box
        or a circle: a face of the grid at 0.4 may have the coordinate 0.4000000000000001.
        """
        axes, slack = list(positions.values()), slack or (0.0,) * len(positions)
        if self.center is not None and self.radius is not None:
            squares = [(x - c) * (x - c) for x, c in zip(axes, self.center, strict=True)]
            radius = self.radius + min(slack)
            return np.asarray(sum(squares) <= radius * radius)
        if self.lower is not None and self.upper is not None:
            inside = np.asarray(True)
            for x, low, high, most in zip(axes, self.lower, self.upper, slack, strict=True):
                inside = inside & (low - most <= x) & (x <= high + most)
            return inside
        assert not isinstance(self.shape, str)
        result = np.asarray(self.shape(**{name: positions[name] for name in self.shape.names}))
        if isinstance(self.shape, Data):  # the surface lies half-way between 0 and 1
            return result >= 0.5
        return np.isfinite(result) & (result != 0.0)

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


class StaggeredSource(Source):
    """`[source]`: the density f of the equation."""

    mean_velocity_x: Real | None = None
    """With flow on a staggered grid: a mean velocity along a periodic axis, kept constant by a
    uniform force that follows from the flow."""
    mean_velocity_y: Real | None = None
    mean_velocity_z: Real | None = None


class StaggeredWall(Wall):
    """`[boundary.left]` and its like: the `kind` of the wall, and values where they are not 0."""

    kind: Literal["no-slip", "free-slip", "inflow", "outflow"] | None = None
    """The kind of wall; needed with flow on a staggered grid."""


class StaggeredBoundary(Boundary):
    """`[boundary]`: the walls of the box."""

    left: StaggeredWall | None = None
    right: StaggeredWall | None = None
    bottom: StaggeredWall | None = None
    top: StaggeredWall | None = None
    back: StaggeredWall | None = None
    front: StaggeredWall | None = None


class StaggeredTime(Time):
    """`[time]`: the march of a transient case from t = 0."""

    diffusion_scheme: Literal["explicit", "crank-nicolson"] = Field(
        default="explicit", alias="diffusion"
    )
    """With flow and `adams-bashforth`: `crank-nicolson` diffusion does not limit the step."""

    @property
    def diffusion(self) -> str:
        return self.diffusion_scheme


class StaggeredCase(Case):
    """A case of flow on a staggered grid."""

    kind, scheme = "flow", "staggered"
    owners = "a flow on the staggered grid"
    model_class = "heatsolve.models.flow.staggered:Staggered"

    model: StaggeredModel
    source: StaggeredSource = StaggeredSource()
    boundary: StaggeredBoundary = StaggeredBoundary()
    bodies: tuple[Obstacle, ...] = Field(default=(), alias="obstacle")
    time: StaggeredTime | None = None

    @property
    def field_names(self) -> tuple[str, ...]:
        velocities = (f"velocity_{axis}" for axis in self.grid.axes)
        return (*velocities, "pressure", *self.diffusivities)

    @property
    def obstacles(self) -> tuple[Obstacle, ...]:
        return self.bodies

    @property
    def diffusivities(self) -> dict[str, float]:
        model, result = self.model, {}
        if model.thermal_diffusivity is not None:
            result["temperature"] = model.thermal_diffusivity
        if "diffusivity" in model.model_fields_set:
            result["concentration"] = model.diffusivity
        return result

    @property
    def has_jumps(self) -> bool:
        return bool(self.bodies)

    @property
    def velocity_changes(self) -> bool:
        return True

    def condition(self, field: str, side: str) -> Condition | None:
        """The condition of a field at a wall; None where the projection finds its value.

        At a no-slip wall and an inflow a velocity has the given value, or 0; along a free-slip wall
        and at an outflow its gradient is 0.
        """
        wall = getattr(self.boundary, side)
        condition: Condition | None = getattr(wall, field)
        if field in self.diffusivities:
            return condition
        across = field == f"velocity_{SIDES[side]}"
        if field == "pressure" or (wall.kind == "outflow" and across):
            return None
        if wall.kind == "outflow" or (wall.kind == "free-slip" and not across):
            return LEVEL
        return condition or STILL

    def _fields_at_walls(self) -> Collection[str]:
        return self.diffusivities

    def mistakes(self) -> Found:
        yield from super().mistakes()
        model, grid, here = self.model, self.grid, 'with model.scheme = "staggered"'
        if grid.dimension == 1:
            yield ("grid",), f"must have two or three axes {here}"
        if grid.kind != "cells":
            yield ("grid", "nodes"), f"must be cells {here}"
        if self.time and self.time.scheme in IMPLICIT:
            schemes = '"explicit", "rk2", "rk3" or "adams-bashforth"'
            yield ("time", "scheme"), f"must be {schemes} {here}"
        if self.time and self.time.diffusion != "explicit":
            if self.time.scheme != "adams-bashforth":
                yield ("time", "scheme"), 'must be "adams-bashforth" with time.diffusion'
            if self.obstacles:
                yield ("time", "diffusion"), 'must be "explicit" with obstacles'
        if model.buoyancy is not None and len(model.buoyancy) != grid.dimension:
            yield ("model", "buoyancy"), f"must have length {grid.dimension}, as the grid has axes"
        if self.solver.precision == "mixed":
            yield ("solver", "precision"), NOT_MIXED
        for key in ("norm", "monitor", "relative", "iterations", "update"):
            if key in self.solver.model_fields_set:
                yield ("solver", key), f"has no effect {here}"
        if self.parallel.layers > 1:
            yield ("parallel", "halo"), f"must be 1 {here}"
        if "pressure" in self.source.model_fields_set:
            yield ("source", "pressure"), "a pressure has no source"
        if "pressure" in self.initial.model_fields_set:
            yield ("initial", "pressure"), "follows from the velocity, and cannot be given"
        for n, box in enumerate(self.initial.boxes):
            if box.field == "pressure":
                sentence = "follows from the velocity, and cannot be given"
                yield ("initial", "box", n, "field"), sentence
        for axis in WALLS:
            key = f"mean_velocity_{axis}"
            if getattr(self.source, key) is not None and axis not in grid.periodic:
                yield ("source", key), f"only where {axis} is periodic"
            elif getattr(self.source, key) is not None and self.obstacles:
                yield ("source", key), "not with obstacles"
        yield from self._mistaken_obstacles()
        yield from self._mistaken_walls()

    def _mistaken_walls(self) -> Found:
        """Yield walls without a kind, and conditions that their kind does not have."""
        for side in self.needed_walls:
            wall = getattr(self.boundary, side)
            if wall is None:
                continue
            path, across = ("boundary", side), f"velocity_{SIDES[side]}"
            if wall.kind is None:
                yield (*path, "kind"), "missing: no-slip, free-slip, inflow or outflow"
            if wall.kind == "outflow" and side == WALLS[SIDES[side]][0]:
                yield (*path, "kind"), "fluid leaves at high walls only: right, top or front"
            if "pressure" in wall.model_fields_set:
                yield (*path, "pressure"), 'has no effect with model.scheme = "staggered"'
            for name in self.velocity_names:
                condition = getattr(wall, name)
                if condition is None:
                    continue
                if condition.value is None:
                    yield (*path, name), "must be a value"
                elif wall.kind in ("free-slip", "outflow"):
                    yield (*path, name), f'has no effect with kind = "{wall.kind}"'
                elif wall.kind == "no-slip" and name == across:
                    value = condition.value
                    if value.names or value() != 0.0:
                        yield (*path, name), 'must be 0 with kind = "no-slip", which nothing passes'

    def _mistaken_obstacles(self) -> Found:
        """Yield obstacles that do not fit the grid, the solver or the carried quantities."""
        grid = self.grid
        if self.obstacles and self.solver.method in ("fft", "sor", "chebyshev"):
            yield ("solver", "method"), f'must not be "{self.solver.method}" with obstacles'
        for n, obstacle in enumerate(self.obstacles):
            if any(len(corner) != grid.dimension for corner in obstacle.corners):
                yield ("obstacle", n), f"needs {grid.dimension} numbers, as the grid has axes"
            if obstacle.extent and len(obstacle.extent) == grid.dimension:
                ends = zip(grid.axes, obstacle.extent, grid.lower, grid.upper, strict=True)
                for axis, (first, last), low, high in ends:
                    beyond = (first < low, last > high)
                    if axis in grid.periodic and any(beyond) and not all(beyond):
                        yield ("obstacle", n), f"reaches beyond an end of {axis}, which is periodic"
            for name in ("temperature", "concentration"):
                if getattr(obstacle, name) is not None and name not in self.diffusivities:
                    yield ("obstacle", n, name), "the flow carries none"


def equation(case: Case) -> str:
    """The equation of a flow and its coefficients, for `heatsolve check`."""
    forces = ", ".join(words(getattr(case.source, name)) for name in case.velocity_names)
    equation = "du/dt + u . grad u = -grad p / rho + nu div grad u + f"
    model, rho = case.model, case.model.density
    given = [f"rho = {rho:g}", f"nu = {model.viscosity:g}", f"f = ({forces})"]
    if (buoyancy := getattr(model, "buoyancy", None)) is not None:
        lift = ", ".join(f"{component:g}" for component in buoyancy)
        equation += " + (T - T0) g"
        given += [f"g = ({lift})", f"T0 = {model.reference_temperature:g}"]
    if case.obstacles:
        given.append(f"{len(case.obstacles)} obstacle{'s' * (len(case.obstacles) > 1)}")
    for name, alpha in case.diffusivities.items():
        given.append(f"{name} carried along, its diffusivity {alpha:g}")
    return f"{equation}, div u = 0, {', '.join(given)}"


def cases(model: Mapping[str, Any]) -> list[type[Case]]:
    """The classes of case that a `[model]` may mean, first the class that this one means."""
    result: list[type[Case]] = [StaggeredCase, CollocatedCase]
    return result[::-1] if model.get("scheme") == "collocated" else result
