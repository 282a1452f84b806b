"""A transport case put on its grid, and its steps by SSP Runge-Kutta schemes."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from heatsolve.backends import Accumulator, Backend
from heatsolve.case.case import Case
from heatsolve.models.base import (
    Fields,
    MultiFieldModel,
    Recordings,
    Row,
    RungeKutta,
    Stepper,
    Substep,
)
from heatsolve.models.transport import equations as transport
from heatsolve.parallel.ranks import Ranks
from heatsolve.stencil.expressions import evaluate, words
from heatsolve.stencil.grid import Grid, SampledAxis
from heatsolve.stencil.language import ZERO, Point, copy

SAMPLES = 16
"""Points along each axis at which the divergence of a given velocity is computed."""
STEP = 1e-4
"""Half the distance between the points of these differences, as a share of the axis."""
DIVERGES = 1e-3
"""A velocity diverges if |div v| h exceeds this share of its largest speed, the sum of all axes."""
DIVERGING = (
    'u is compressed and thinned, as div(v u) has it; form = "advective" carries it unchanged'
)
"""The consequence of a velocity that diverges, in flux form, and the remedy."""
CONVECTIONS = {
    "backward": "backward differences",
    "upwind": "first-order upwind differences",
    "central": "central differences",
    "upwind3": "third-order upwind-biased differences",
    "tvd": "van Leer's limited slopes",
}

SCHEMES = {
    "explicit": "explicit Euler",
    "rk2": "Runge-Kutta of second order, strong-stability-preserving",
    "rk3": "Runge-Kutta of third order, strong-stability-preserving",
}


class Staged(MultiFieldModel):
    """A model whose step is one point function, swept once for each stage of Runge-Kutta."""

    velocities: tuple[Any, ...] = ()
    wall_lines: tuple[Any, ...] = ()

    def stepper(self, time: float, step: float) -> Stepper:
        return StagedSteps(self, time, step)

    @abstractmethod
    def stage(self) -> Point:
        """The point function of a stage."""

    @property
    @abstractmethod
    def numbers(self) -> tuple[float, ...]:
        """The numbers that the point function of `stage` takes after dt."""


class Convection(Staged):
    """The quantities of a transport case on a backend, and the velocities that carry them.

    `own_velocity` tells whether the quantities are these velocities themselves.
    """

    def __init__(
        self, case: Case, backend: Backend, grid: Grid | None = None, ranks: Ranks | None = None
    ):
        super().__init__(case, backend, grid, ranks)
        self.own_velocity = case.model.velocity == "self"
        self.moved = dict.fromkeys(self.names, case.model.diffusivity)
        self.in_flux_form = case.model.form == "flux"

    def demand_scheme(self) -> None:
        self.largest_step()  # refuses backward differences where a velocity is negative

    @property
    def numbers(self) -> tuple[float, ...]:
        nu = self.case.model.diffusivity
        if not self.in_flux_form:
            return (nu, *self.spacings)
        return (*[1.0 / h for h in self.spacings], *[nu / (h * h) for h in self.spacings])

    def stage(self) -> Point:
        model, count = self.case.model, len(self.names)
        args = self.grid.dimension, count, model.convection, model.form, self.own_velocity
        return transport.stage(*args, model.diffusivity > 0.0, self.case.grid.kind == "nodes")

    @cached_property
    def velocities(self) -> tuple[Any, ...]:  # type: ignore[override]
        """The given velocities along x, y, z, in flux form at faces; none with `own_velocity`."""
        if self.own_velocity:
            return ()
        given = self.case.model.velocity
        if given is None:
            return tuple(self.backend.zeros((1,) * self.grid.dimension) for _ in self.grid.axes)
        result = []
        for n, expression in enumerate(given):
            grid = self.grid.faces(self.grid.dimension - 1 - n) if self.in_flux_form else self.grid
            result.append(self.backend.to_device(evaluate(grid, f"model.velocity.{n}", expression)))
        return tuple(result)

    def places_of_data(self, key: str) -> Grid:
        velocity, _, number = key.rpartition(".")
        if velocity != "model.velocity" or not self.in_flux_form:
            return self.whole
        return self.whole.faces(self.grid.dimension - 1 - int(number))

    def doubts_of_data(self) -> Iterator[str]:
        given = any(key.startswith("model.velocity") for key, _ in self.case.data())
        if not (self.in_flux_form and given):
            return
        axes, reduce, inside = self.grid.axes, self.backend.reduce, self.grid.interior
        per_h = [1.0 / axis.spacing for axis in axes]
        v = self.velocities[::-1]
        largest = reduce("max", transport.divergence, inside, *v, *per_h)
        speeds = [reduce("max", copy, inside, each) for each in v]
        if largest > DIVERGES * sum(u * n for u, n in zip(speeds, per_h, strict=True)):
            at_faces = "at faces, where the data are interpolated, div v is up to"
            yield f"model.velocity: {at_faces} {largest:.3g} /s: {DIVERGING}"

    @cached_property
    def wall_lines(self) -> tuple[Any, ...]:  # type: ignore[override]
        """For x, y, z the lines of the low and of the high wall that `transport.stage` takes."""
        on_nodes, result = self.case.grid.kind == "nodes", []
        second_order = self.case.model.convection in transport.SECOND_ORDER
        if not self.in_flux_form and not (on_nodes and second_order):
            return (ZERO,) * (2 * self.grid.dimension)
        for n, number in enumerate(reversed(range(self.grid.dimension))):
            # One quantity stands for all: on nodes a wall gives all of them values, or none. Of own
            # velocities it is the velocity across the wall.
            walls = self.walls[self.names[n if self.own_velocity else 0]]
            marked = {
                wall.side
                for wall in walls
                if wall.axis == number and on_nodes == (wall.condition.gradient is not None)
            }
            for side in (0, 1):
                line = self.grid.beside(number, side) if side in marked else None
                result.append(ZERO if line is None else self.backend.to_device(line))
        return tuple(result)

    stable_choice = '"rk3", or "upwind"'
    other_convection = 'use "upwind", or '

    def flows_backward(self) -> bool:
        return super().flows_backward() or any(below for below, _ in self._given_speeds())

    def speeds(
        self, fields: Mapping[str, Any], *times: float, largest: Sequence[float] | None = None
    ) -> list[float]:
        if self.own_velocity:
            return super().speeds(fields, *times, largest=largest)
        return [speed for _, speed in reversed(self._given_speeds())]

    def _given_speeds(self) -> list[tuple[float, float]]:
        """The largest negative part and speed of each given velocity (asks all processes)."""
        result = []
        for n, v in enumerate(self.velocities):
            axis = self.grid.dimension - 1 - n
            below, speed = transport.negative_part, copy
            # In a sample of points, two neighbouring faces are not the faces of one cell.
            if self.in_flux_form and not isinstance(self.grid.axes[axis], SampledAxis):
                below, speed = transport.negative_part_at_faces(axis), transport.speed_out(axis)
            args = self.grid.interior, v
            reduce = self.backend.reduce
            result.append((reduce("max", below, *args), reduce("max", speed, *args)))
        return result

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
        convection = CONVECTIONS[self.case.model.convection]
        yield "scheme", f"{convection}, {SCHEMES[self.case.march.scheme]}"

    def cautions(self) -> Iterator[Row]:
        if self.in_flux_form and (largest := divergence_of_velocity(self.case)) > 0.0:
            yield "velocity", f"div v is not 0 (up to {largest:.3g} /s): {DIVERGING}"


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


class StagedSteps(RungeKutta):
    """Steps of a `Staged` model: each stage is one sweep over all quantities."""

    def __init__(self, problem: Staged, time: float, step: float):
        case, grid, backend = problem.case, problem.grid, problem.backend
        super().__init__(problem, time, case.march.scheme, problem.names)
        self.problem: Staged = problem
        self._before = step
        """The length of the step before (s): the first step from a time on sets a box again."""
        self._point, self._recordings = problem.stage(), Recordings(problem.sweeps)
        self._slopes = [
            (number, name, [backend.zeros(grid.shape) for _ in range(each)])
            for each in [transport.SLOPES.get(case.model.convection, 0)]
            for name in problem.names
            for number in reversed(range(grid.dimension if each else 0))
        ]

    @property
    def fields(self) -> Fields:  # type: ignore[override]
        return self._now

    @property
    def scalars(self) -> dict[str, float]:
        return {"step before": self._before}

    def recall(self, steps: int, scalars: Mapping[str, float], fields: Mapping[str, Any]) -> None:
        self._before = scalars.get("step before", self._before)

    def speeds(self, *times: float) -> list[float]:
        self.problem.stamp(self._now, times[0], self._before)  # the step is chosen for its values
        return super().speeds(*times)

    def _advance(self, part: Substep, change: Accumulator | None) -> None:
        self.problem.stamp(self._now, part.start, self._before)
        self._before = part.length
        work = partial(self._make_stages, part, change)
        if self.problem.driven_in_time:
            self._take(work())
        else:
            self._take(self._recordings.make((part.length, change, *self._places), work))

    def _make_stages(self, part: Substep, change: Accumulator | None) -> Fields:
        """Make all stages of a step, and add its change; return the new fields."""
        problem, start, new = self.problem, self._now, self._now
        for stage, new, now in self._each_stage(change):
            time = part.start + stage.begin * part.length
            problem.write_walls(now, time)
            slopes = self._find_slopes(now)
            args = (*start.values(), *now.values(), *problem.sources(time), *problem.velocities)
            args = (*args, *slopes, *problem.wall_lines, stage.a, stage.b, part.length)
            out, interior = tuple(new.values()), problem.grid.interior
            problem.backend.sweep(self._point, out, interior, *args, *problem.numbers)
        if change is not None:
            self._add_change(new, start, change)
        return new

    def _find_slopes(self, fields: dict[str, Any]) -> list[Any]:
        """The slopes of all quantities, in the order of `transport.stage`."""
        problem, convection = self.problem, self.problem.case.model.convection
        sweep, grid = problem.backend.sweep, problem.grid
        for axis, name, arrays in self._slopes:
            point = transport.slopes(convection, axis)
            out = tuple(arrays) if len(arrays) > 1 else arrays[0]
            sweep(point, out, grid.interior, fields[name])
            for array in arrays:
                problem.halo.exchange(array)
            for wall in problem.walls[name]:
                if wall.axis == axis:
                    # Of a ghost only the slope towards the inside is read.
                    slope, sign = arrays[-1 if wall.side else 0], -1.0 if wall.side else 1.0
                    distances = [0] * grid.dimension
                    distances[axis] = int(sign)
                    region = grid.ghost(axis, wall.side)
                    point = transport.slope_at_wall
                    sweep(point, slope, region, fields[name], sign, *distances)
        return [array for *_, arrays in self._slopes for array in arrays]

    def finish(self) -> None:
        self.problem.write_walls(self._now, self.time)
        super().finish()
