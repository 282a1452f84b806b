"""What a step of flow tells of its fields: the largest velocities, the columns of the history."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from heatsolve.backends import Accumulator, PointSweep
from heatsolve.models.base import Fields, Measured
from heatsolve.models.flow import equations as flow
from heatsolve.models.transport import equations as transport
from heatsolve.parallel.halo import replaced
from heatsolve.stencil.grid import WALLS
from heatsolve.stencil.language import copy

if TYPE_CHECKING:
    from heatsolve.models.flow.staggered import Staggered

MAXIMA = ("divergence", "courant")
"""The columns that are largest magnitudes; all others are sums."""


class Measures:
    """The largest velocities of a flow, and the columns of its history.

    `fastest` gives the largest velocity at the start of the present step. `are_made`: whether the
    newest fields have been measured, by `make`.
    """

    def __init__(self, problem: "Staggered"):
        self._problem, self._speed = problem, problem.backend.accumulator("max")
        self._level_forces: dict[str, float] = {}
        """The forces of a unit of pressure throughout the fluid, where no wall gives the pressure:
        they are subtracted with its mean, as from the pressure in a file."""
        if problem.bodies is not None and not problem.open_ends:
            self._level_forces = problem.bodies.forces_of_level(problem.enclosed)
        self._totals = dict(self._columns())
        self._largest: list[float] | None = None
        """The largest magnitude of each velocity in the newest fields, once they are known."""
        self.fastest: Callable[[], float] = float  # 0, as there is no field yet
        self.are_made = False

    def posted_largest(self, fields: Fields) -> Callable[[], list[float]]:
        """Begin to find the largest magnitude of each velocity in the newest fields, if it is not
        known; return a call that waits for it (asks all processes)."""
        read = self._problem.posted_largest_speeds(fields) if self._largest is None else None

        def largest() -> list[float]:
            if read is not None:
                self._largest = read()
            assert self._largest is not None
            return self._largest

        return largest

    def begin_step(self) -> bool:
        """Take the largest velocity at the start of a step, if it is known; return whether it must
        be found instead: by `post_speed`, then `await_speed`."""
        known, self._largest = self._largest, None
        if known is None or self._problem.walls_vary:
            return True
        self.fastest = partial(max, known)
        return False

    def post_speed(self, fields: Fields) -> None:
        """Find the largest velocity; sweeps only."""
        problem = self._problem
        problem.backend.sweep_together([problem.speed_sweep(fields, self._speed)])
        problem.add_low_faces(fields, self._speed)
        self._speed.post()

    def await_speed(self) -> None:
        """Let `fastest` wait for the velocity of `post_speed`, whose sweeps are queued."""
        self.fastest = cache(self._speed.posted())

    def make(self, fields: Mapping[str, Any]) -> None:
        """Add the terms of all columns, and the velocities' magnitudes; sweeps only."""
        problem, totals = self._problem, self._totals
        velocities, region = problem.velocities(fields), problem.grid.interior
        args: tuple[Any, ...] = (*velocities, *problem.inverse_spacings)
        if not all(axis.periodic for axis in problem.whole.axes):
            # Enstrophy also reads ghosts at walls of other blocks.
            problem.halo.exchange(*velocities)
        of_cells = {
            "divergence": (transport.divergence, args),
            "courant": (flow.courant, args),
            "kinetic_energy": (flow.kinetic_energy, tuple(velocities)),
            "enstrophy": (flow.enstrophy, args),
        }
        if self._level_forces:
            of_cells["pressure"] = copy, (fields["pressure"],)
        problem.add_largest(
            fields,
            [PointSweep(point, totals[name], region, of) for name, (point, of) in of_cells.items()],
        )
        for column, axis, side, name in self._gradients():
            if (axis, side) in [(wall.axis, wall.side) for wall in problem.walls[name]]:
                low, high = region[axis]
                beside = ((low, low + 1), (high - 1, high))[side]
                point, per_h = flow.slope_outward(axis, side), problem.inverse_spacings[axis]
                at_wall = replaced(region, axis, beside)
                fluid = () if problem.bodies is None else (problem.bodies.fluid[name],)
                args = (fields[name], per_h, *fluid)
                problem.backend.sweep(point, totals[column], at_wall, *args)
        if problem.bodies is not None:
            problem.bodies.add_forces(fields, problem.second_differences, totals)

    def posted(
        self,
        fields: Mapping[str, Any],
        dt: float,
        besides: Sequence[Accumulator],
        more: Mapping[str, float],
    ) -> Measured:
        """Begin to measure the newest fields; return a call that waits for the values `besides`,
        and for the columns of the history, with `more` columns (asks all processes).

        The divergence is relative to the largest velocity over a spacing, at the start of the step
        or now.
        """
        if not self.are_made:
            self._problem.play("measures", list(fields.values()), lambda: self.make(fields))
        self.are_made = False
        totals = [*self._problem.of_speeds, *self._totals.values(), *besides]
        read = self._problem.backend.posted_values(totals)

        def measured() -> tuple[list[float], dict[str, float]]:
            values, first = read(), len(self._problem.of_speeds)
            last = first + len(self._totals)
            self._largest = values[:first]
            columns = dict(zip(self._totals, values[first:last], strict=True))
            return values[last:], self._scaled(columns, self._largest, dt) | dict(more)

        return measured

    def _scaled(
        self, columns: dict[str, float], speeds: Sequence[float], dt: float
    ) -> dict[str, float]:
        """The columns of the history from sums and largest magnitudes of terms."""
        problem, spacings = self._problem, self._problem.steps_along_axes
        largest = max([self.fastest(), *speeds])
        relative, volume = columns["divergence"] * min(spacings), math.prod(spacings)
        columns["divergence"] = relative / largest if largest > 0.0 else relative
        columns["courant"] *= dt
        for name in ("kinetic_energy", "enstrophy"):
            columns[name] *= volume
        for column, axis, *_ in self._gradients():
            count = problem.whole.axes[axis].unknowns
            columns[column] = columns[column] * count / problem.whole.all_unknowns
        if self._level_forces:
            mean = columns.pop("pressure") / problem.fluid_cells
            for column, force in self._level_forces.items():
                columns[column] -= mean * force
        for column, _, _ in problem.bodies.columns() if problem.bodies is not None else ():
            columns[column] *= volume
            if "force" in column:
                columns[column] *= problem.density
        return columns

    def _columns(self) -> Iterator[tuple[str, Accumulator]]:
        """Yield the columns of the history that come from sweeps, each with its accumulator."""
        names = ["divergence", "kinetic_energy", "enstrophy", "courant"]
        names += [column for column, *_ in self._gradients()]
        if self._problem.bodies is not None:
            names += [column for column, _, _ in self._problem.bodies.columns()]
        if self._level_forces:
            names.append("pressure")
        for name in names:
            yield name, self._problem.backend.accumulator("max" if name in MAXIMA else "sum")

    def _gradients(self) -> Iterator[tuple[str, int, int, str]]:
        """Yield the column of each mean outward derivative at a wall, its axis, side, quantity."""
        for name in self._problem.carried:
            for number, axis in enumerate(self._problem.whole.axes):
                for side, wall in enumerate(() if axis.periodic else WALLS[axis.name]):
                    yield f"{name}_gradient_{wall}", number, side, name
