"""A transport case put on its grid: the arrays that the point functions of `transport` take."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from heatsolve.backends import Backend
from heatsolve.case.case import Case
from heatsolve.models.base import MultiFieldModel, Row, Stepper
from heatsolve.models.transport import equations as transport
from heatsolve.models.transport.runge_kutta import SCHEMES, RungeKutta
from heatsolve.parallel.ranks import Ranks
from heatsolve.stencil.evaluate import evaluate
from heatsolve.stencil.expressions import words
from heatsolve.stencil.grid import Grid, SampledAxis
from heatsolve.stencil.language import ZERO, Point, copy

SAMPLES = 16
"""Points along each axis at which a velocity's divergence is looked for."""
STEP = 1e-4
"""Half the distance of its differences there, as a share of the axis."""
CONVECTIONS = {
    "backward": "backward differences",
    "upwind": "first-order upwind differences",
    "central": "central differences",
    "upwind3": "third-order upwind-biased differences",
    "tvd": "van Leer's limited slopes",
}


class Convection(MultiFieldModel):
    """The quantities of a transport case on a backend, and what carries them.

    `own_velocity` tells whether they are their own velocity.
    """

    def __init__(
        self, case: Case, backend: Backend, grid: Grid | None = None, ranks: Ranks | None = None
    ):
        super().__init__(case, backend, grid, ranks)
        self.own_velocity = case.model.velocity == "self"
        self.moved = dict.fromkeys(self.names, case.model.diffusivity)

        self.in_flux_form = case.model.form == "flux"

    def stepper(self, time: float, step: float) -> Stepper:
        return RungeKutta(self, time, step)

    def demand_scheme(self) -> None:
        self.largest_step()  # refuses backward differences where a velocity is negative

    @property
    def numbers(self) -> tuple[float, ...]:
        """Those that `transport.stage` takes after the step."""
        nu = self.case.model.diffusivity
        if not self.in_flux_form:
            return (nu, *self.spacings)
        return (*[1.0 / h for h in self.spacings], *[nu / (h * h) for h in self.spacings])

    def stage(self) -> Point:
        """The point function of a Runge-Kutta stage."""
        model, count = self.case.model, len(self.names)
        given = self.grid.dimension, count, model.convection, model.form, self.own_velocity
        return transport.stage(*given, model.diffusivity > 0.0, self.case.grid.kind == "nodes")

    @cached_property
    def velocities(self) -> tuple[Any, ...]:
        """Along x, y, z, in flux form at the faces; none where the quantities are their own."""
        if self.own_velocity:
            return ()
        given = self.case.model.velocity
        if given is None:
            return tuple(self.backend.zeros((1,) * self.grid.dimension) for _ in self.grid.axes)
        found = []
        for n, expression in enumerate(given):
            grid = self.grid.faces(self.grid.dimension - 1 - n) if self.in_flux_form else self.grid
            found.append(self.backend.to_device(evaluate(grid, f"model.velocity.{n}", expression)))
        return tuple(found)

    @cached_property
    def wall_lines(self) -> tuple[Any, ...]:
        """For x, y, z the lines of the low and of the high wall that `transport.stage` takes."""
        on_nodes, found = self.case.grid.kind == "nodes", []
        second_order = self.case.model.convection in transport.SECOND_ORDER
        if not self.in_flux_form and not (on_nodes and second_order):
            return (ZERO,) * (2 * self.grid.dimension)
        for n, number in enumerate(reversed(range(self.grid.dimension))):
            # On nodes all quantities have values at a wall, or none; along its own axis a velocity.
            walls = self.walls[self.names[n if self.own_velocity else 0]]
            marked = {
                wall.side
                for wall in walls
                if wall.number == number and on_nodes == (wall.condition.gradient is not None)
            }
            for side in (0, 1):
                line = self.grid.beside(number, side) if side in marked else None
                found.append(ZERO if line is None else self.backend.to_device(line))
        return tuple(found)

    def largest_step(self) -> float:
        """The largest stable step for the largest speeds at t = 0 (asks all processes).

        Raises InputError where no step is stable for the scheme.
        """
        if self.own_velocity:
            return self.stable_step(self.largest_magnitudes(self.names))
        magnitudes = []
        for n, v in enumerate(self.velocities):
            axis = self.grid.dimension - 1 - n
            below, speed = transport.negative_part, copy
            # The faces of a sample of points are not those of one cell.
            if self.in_flux_form and not isinstance(self.grid.axes[axis], SampledAxis):
                below, speed = transport.negative_part_at_faces(axis), transport.speed_out(axis)
            given = self.grid.interior, v
            reduce = self.backend.reduce
            magnitudes.append((reduce("max", below, *given), reduce("max", speed, *given)))
        return self.stable_step(magnitudes)

    # ---- what `heatsolve check` says ---------------------------------------------------------

    @property
    def equation(self) -> str:
        case, model, names = self.case, self.case.model, self.names
        if model.velocity == "self":
            u, carried = "u", "u = (" + ", ".join(names) + ")"
        else:
            given = model.velocity if isinstance(model.velocity, tuple) else ()
            u, carried = "v", "v = (" + (", ".join(map(words, given)) or "0") + ")"
        sources = [words(getattr(case.source, name)) for name in names]
        convected = f"{u} . grad u"
        if model.form == "flux" and u == "v":
            convected = "div(v u)"
        elif model.form == "flux":
            convected = "d(u^2/2)/dx" if len(names) == 1 else f"{convected} (own axis: d(u^2/2))"
        equation = f"du/dt + {convected} = nu div grad u + f"
        return f"{equation}, {carried}, nu = {model.diffusivity:g}, f = {', '.join(sources)}"

    def methods(self) -> Iterator[Row]:
        assert self.case.time is not None
        convection = CONVECTIONS[self.case.model.convection]
        yield "scheme", f"{convection}, {SCHEMES[self.case.time.scheme]}"

    def cautions(self) -> Iterator[Row]:
        if self.in_flux_form and (largest := divergence_of_velocity(self.case)) > 0.0:
            text = f"div v is not 0 (up to {largest:.3g} /s): u is compressed and thinned, "
            yield "velocity", text + 'as div(v u) has it; form = "advective" carries it unchanged'

    # ---- steps that follow velocities which carry themselves ---------------------------------

    def speeds(self, fields: Mapping[str, Any], *times: float) -> list[float]:
        """The largest along each axis, slowest first, those of walls at these times (asks all)."""
        return [
            max(
                self.backend.reduce("max", copy, self.grid.interior, fields[name]),
                self.largest_at_walls(name, *times),
            )
            for name in reversed(self.names)
        ]

    def accelerations(self, fields: Mapping[str, Any], *times: float) -> list[float]:
        """The largest that sources give along each axis, slowest first (m/s2; asks all)."""
        found = [0.0] * self.grid.dimension
        for time in times if self.sources_vary else times[:1]:
            sources = [self.backend.reduce("max", copy, self.grid.interior, source)
                       for source in reversed(self.sources(time))]  # fmt: skip
            found = [max(pair) for pair in zip(found, sources, strict=True)]
        return found

    def stable_step_at(self, speeds: Sequence[float]) -> float:
        """The largest stable step (s) for these speeds along the axes, slowest first."""
        return self.stable_step([(0.0, speed) for speed in reversed(speeds)])


def divergence_of_velocity(case: Case) -> float:
    """The largest |div v| of a given velocity at some points; 0 if it is no more than rounding."""
    given, grid = case.model.velocity, case.grid
    if not isinstance(given, tuple):
        return 0.0
    lengths = [high - low for low, high in zip(grid.lower, grid.upper, strict=True)]
    shares = (np.arange(SAMPLES) + 0.5) / SAMPLES
    lines = [low + length * shares for low, length in zip(grid.lower, lengths, strict=True)]
    positions = dict(zip(grid.axes, np.meshgrid(*lines, indexing="ij"), strict=True))
    slopes, rounding = [], 0.0
    with np.errstate(all="ignore"):
        for axis, length, expression in zip(grid.axes, lengths, given, strict=True):
            ends = []
            for distance in (-STEP * length, STEP * length):
                at = positions | {axis: positions[axis] + distance}
                ends.append(expression(**{name: at[name] for name in expression.names}))
            slopes.append((ends[1] - ends[0]) / (2.0 * STEP * length))
            at_ends = max(float(np.max(np.abs(end))) for end in ends)
            rounding = max(rounding, 1e-9 * at_ends / length)
        largest = float(np.max(np.abs(sum(slopes))))
        terms = float(np.max(sum(map(np.abs, slopes))))
    return largest if largest > max(rounding, 1e-3 * terms) else 0.0
