"""A case of flow on the staggered grid: its fields, its walls, and the pressure's linear system."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from heatsolve.backends import Backend
from heatsolve.case.case import Case
from heatsolve.case.derived import Derived
from heatsolve.errors import InputError
from heatsolve.linear.system import Coefficients, System, lowest_eigenvalue
from heatsolve.models.base import MultiFieldModel, Row, Stepper
from heatsolve.models.flow import equations as flow
from heatsolve.models.flow.case import equation
from heatsolve.models.flow.immersed_boundary import ImmersedBoundary
from heatsolve.models.flow.projection import Projection
from heatsolve.models.flow.stream_function import stream_function
from heatsolve.models.grid import Wall
from heatsolve.models.heat.solver import diffusion_system, method_name
from heatsolve.models.transport.convection import SCHEMES
from heatsolve.parallel.halo import replaced
from heatsolve.parallel.ranks import Ranks
from heatsolve.stencil.grid import WALLS, Grid, Region
from heatsolve.stencil.language import ONE, ZERO, Point, copy, fill

CONVECTIONS = {
    "central": "central convection",
    "skew": "skew-symmetric convection",
    "central4": "central convection of fourth order",
    "upwind3": "upwind-biased convection",
}
STEPS = {**SCHEMES, "adams-bashforth": "Adams and Bashforth's steps of second order"}
SLIGHT = 1e-2
"""The term that keeps the pressure 0 in a closed cell, relative to a face's conductance."""
BALANCED = 1e-10
"""The share of the gross flux by which inflow and outflow may differ, without an open end, before
the walls' values are corrected."""


@dataclass(frozen=True)
class Balance:
    """The fluxes through walls at a time (m3/s): `excess` is inflow less outflow, `gross` their
    sum, `allowed` the excess that values at midpoints of faces may cause; `area` is the area of the
    faces with a flux (m2)."""

    time: float
    excess: float
    gross: float
    allowed: float
    area: float

    @property
    def refused(self) -> bool:
        """Whether the excess is larger than a correction at the walls may remove."""
        return abs(self.excess) > max(BALANCED * self.gross, self.allowed)

    @property
    def correction(self) -> float:
        """The outward velocity that removes the excess, equal on all faces with a flux (m/s)."""
        if self.refused or abs(self.excess) <= BALANCED * self.gross:
            return 0.0
        return self.excess / self.area


class Staggered(MultiFieldModel):
    """Pressure and carried quantities at the centres of cells, velocities on the faces behind them.

    `carried` names the quantities besides velocities that the flow moves, `density` is rho (kg/m3).
    The field of the pressure holds p / rho.
    """

    def __init__(
        self, case: Case, backend: Backend, grid: Grid | None = None, ranks: Ranks | None = None
    ):
        super().__init__(case, backend, grid, ranks)
        self.density = case.model.density
        self.carried = [name for name in self.names if name in case.diffusivities]
        self.inverse_spacings = tuple(1.0 / spacing for spacing in self.steps_along_axes)
        """1 / h along each axis, slowest first (1/m): sweeps multiply in place of dividing."""
        self._faces = {name: self.grid.faces(n) for n, name in enumerate(self.components)}
        self.open_ends = [
            (number, side)
            for number, axis in enumerate(self.whole.axes)
            for side, wall in enumerate(WALLS[axis.name])
            if not axis.periodic and getattr(case.boundary, wall).kind == "outflow"
        ]
        """Axis and side of the open ends of the whole grid: the outflows, where p = 0."""
        self.low_faces = {
            name: [self.face_at(n, 0) for w in self.walls[name] if (w.axis, w.side) == (n, 0)]
            for n, name in enumerate(self.components)
        }
        wanted = {name: getattr(case.source, f"mean_{name}") for name in self.components}
        self.mean_velocities = {name: mean for name, mean in wanted.items() if mean is not None}
        self._balance: Balance | None = None
        self.demand_balance(0.0)
        moved = (*self.components, *self.carried)
        self.moved = {name: case.diffusivities.get(name, case.model.viscosity) for name in moved}
        """The coefficient of diffusion of each quantity that a stage moves (m2/s)."""
        wide = case.model.convection in flow.WIDE
        self.second = tuple([backend.zeros(self.grid.shape) for _ in self.grid.axes if wide])
        """The arrays for second differences along each axis; none unless convection is wide."""
        self._plain_sources: list[Any] | None = None
        self._outside: list[Any] = []
        self.bodies: ImmersedBoundary | None = None
        if case.obstacles:
            self.bodies = ImmersedBoundary(self)
            self._demand_fluid(self.bodies)

    arrays_of_a_frame = 1
    """The array for velocities at the centres of cells."""

    def stepper(self, time: float, step: float) -> Stepper:
        return Projection(self, time, step)

    def places(self, name: str) -> Grid:
        return self._faces.get(name, self.grid)

    def places_of_data(self, key: str) -> Grid:
        name = key.rpartition(".")[2]
        across = self.components.index(name) if name in self.components else None
        return self.whole if across is None else self.whole.faces(across)

    # ---- walls -------------------------------------------------------------------------------

    def write_wall(self, array: Any, name: str, wall: Wall, time: float) -> None:
        """Write the velocity through a wall into its faces, any other field into its ghosts."""
        if self.components[wall.axis] != name:
            super().write_wall(array, name, wall, time)
            return
        # The wall's face is behind the low ghost, or behind the last cell.
        values = self._wall_values(name, wall, time)
        self.backend.sweep(copy, array, self.face_at(wall.axis, wall.side), values)

    def write_walls(self, fields: dict[str, Any], time: float, exchanged: bool = False) -> None:
        if self.walls_vary:  # the ghosts of neighbours must hold the faces of this time, too
            self.write_faces(fields, time)
        super().write_walls(fields, time, exchanged)

    def face_at(self, axis: int, side: int) -> Region:
        """The faces at the low or the high end of an axis."""
        last = self.grid.shape[axis] - 2
        bounds = (0, 1) if side == 0 else (last, last + 1)
        return replaced(self.grid.ghost(axis, side), axis, bounds)

    def write_faces(self, fields: Mapping[str, Any], time: float) -> None:
        """Write the velocities that a divergence reads: of neighbours, and on faces at walls."""
        self.balance_at(time)  # asks all processes, also those without a wall
        for number, name in enumerate(self.components):
            if name not in fields:
                continue
            self.halo.exchange_along(number, fields[name])
            for wall in self.walls[name]:
                if wall.axis == number:
                    self.write_wall(fields[name], name, wall, time)

    def inside(self, name: str) -> Region:
        """The unknowns of a quantity; for a velocity without faces on the high wall across it."""
        region = self.grid.interior
        if name in self.components:
            number = self.components.index(name)
            axis = self.grid.axes[number]
            low, high = region[number]
            if axis.at_walls[1]:
                region = replaced(region, number, (low, high - 1))
        return region

    def open_faces(self) -> dict[int, Region]:
        """The faces of this block at open ends, by axis."""
        return {
            number: replaced(self.grid.interior, number, self.face_at(number, 1)[number])
            for number, _ in self.open_ends
            if self.grid.axes[number].at_ends[1]
        }

    def balance_at(self, time: float) -> Balance:
        """The balance of the walls at a time, all 0 with an open end (asks all processes).

        Its sums are exact, so that any number of processes finds the same bits.
        """
        known = self._balance
        if known is not None and (known.time == time or self.open_ends or not self.walls_vary):
            return known
        terms: list[tuple[np.ndarray, ...]] = []
        for number, name in enumerate(self.components):
            for wall in self.walls[name] if not self.open_ends else ():
                if wall.axis == number:
                    flux, area, share = self._through(name, wall, time)
                    terms.append((flux, abs(flux), abs(flux) * share, area * (flux != 0.0)))
        sums = [self.ranks.exact_sum([each[n] for each in terms]) for n in range(4)]
        self._balance = Balance(time, *sums)
        if known is not None and known.correction != self._balance.correction:
            self._at_walls.clear()
        return self._balance

    def _through(self, name: str, wall: Wall, time: float) -> tuple[np.ndarray, float, float]:
        """The inflow at each face of a wall of this block (m3/s), the area of a face (m2), and the
        relative error that values at midpoints of faces may cause."""
        values = self._case_value(name, wall, time)
        layer = [high - low for low, high in self.grid.interior]
        layer[wall.axis] = 1
        trimmed = values[tuple(
            slice(None) if n == 1 else slice(*self.grid.interior[axis])
            for axis, n in enumerate(values.shape)
        )]  # fmt: skip
        along = [axis for n, axis in enumerate(self.whole.axes) if n != wall.axis]
        area = float(np.prod([axis.spacing for axis in along]))
        inward = -area if wall.side else area
        flux = np.broadcast_to(trimmed * inward, layer)
        return flux, area, max(1.0 / axis.all_unknowns**2 for axis in along)

    def wall_value(self, name: str, wall: Wall, time: float) -> np.ndarray:
        values = super().wall_value(name, wall, time)
        if self.components[wall.axis : wall.axis + 1] != [name]:
            return values
        outward = self.balance_at(time).correction * (1.0 if wall.side else -1.0)
        return np.where(values != 0.0, values + outward, values) if outward else values

    def demand_balance(self, time: float) -> None:
        """Raise InputError if fluxes are refused and no wall is an outflow (asks all processes)."""
        balance = self.balance_at(time)
        if balance.refused:
            raise InputError(
                f"boundary: {balance.excess:g} m3/s more flow in than out, and no wall is an "
                f"outflow (up to {balance.allowed:g}, (h/L)^2 of the gross flux, would be spread)"
            )

    @property
    def remark(self) -> str:
        balance = self.balance_at(0.0)
        if balance.correction == 0.0:
            return ""
        share = abs(balance.excess) / balance.gross
        return (
            f"{balance.excess:.3g} m3/s more flow in than out, {share:.2g} of the gross flux: "
            f"spread as {balance.correction:.3g} m/s outward over the faces that let through"
        )

    def _demand_fluid(self, bodies: ImmersedBoundary) -> None:
        """Raise InputError if an obstacle has no point, or an inflow meets one, or there is no
        fluid (asks all processes)."""
        everywhere = self.ranks.gather(bodies.present)
        for number in range(len(self.case.obstacles)):
            if not any(present[number] for present in everywhere):
                raise InputError(f"obstacle.{number}: no point of the grid lies in it")
        if self.fluid_cells == 0.0:
            raise InputError("obstacle: they leave no fluid")
        enclosed, met = self.backend.to_host(self.enclosed) > 0.0, []
        for number, name in enumerate(self.components):
            for wall in self.walls[name]:
                if wall.axis == number:
                    given = self.wall_value(name, wall, 0.0)
                    if np.any((given != 0.0) & wall.beside(enclosed)):
                        met.append(wall.name)
        for name in sorted(set().union(*self.ranks.gather(met))):
            raise InputError(f"boundary.{name}: what flows in there meets an obstacle at once")

    # ---- the pressure ------------------------------------------------------------------------

    def pressure_system(self, dt: float) -> System:
        """-div grad p = b, dp/dn = 0 at walls, p = 0 at open ends: steady conduction with k = 1.

        Beside obstacles k is the mobility of a step of length dt. In cells without an open face a
        term holds p at 0, so small that it hardly acts on coarse levels, which merge these cells
        with others.
        """
        backend, grid = self.backend, self.grid
        b = backend.zeros(grid.shape)
        lines = tuple(reversed(self._conductances(dt)))
        capacity = backend.zeros((1,) * grid.dimension)
        share: float = ZERO
        if self.bodies is not None:
            capacity, share = self.enclosed, SLIGHT / max(self.steps_along_axes) ** 2
        coefficients = Coefficients(capacity, share, lines, (ONE,) * grid.dimension)
        return diffusion_system(self, coefficients, b, self._lowest, singular=not self.open_ends)

    def _conductances(self, dt: float) -> list[Any]:
        """The conductances of the pressure along each axis, slowest first."""
        grid, lines = self.grid, []
        for number in range(grid.dimension):
            line = grid.along(number, self._line(number, grid))
            lines.append(self.backend.to_device(line))
        return lines if self.bodies is None else self.bodies.conductances(dt, lines)

    @cached_property
    def enclosed(self) -> Any:
        """1 in cells without an open face, which have no pressure; 0 in all other cells."""
        array = self.backend.zeros(self.grid.shape)
        # Any step will do: it changes the mobility of a face, not whether that is 0.
        self.backend.sweep(flow.enclosed, array, self.grid.interior, *self._conductances(1.0))
        self.halo.exchange(array)
        return array

    def _line(self, number: int, grid: Grid) -> np.ndarray:
        """1 / h^2 of the faces along an axis; 0 at a wall, 2 / h^2 (half a cell) at an open end."""
        axis = grid.axes[number]
        share = 1.0 / (axis.spacing * axis.spacing)
        line = np.full(axis.unknowns + 2, share)
        line[0] = 0.0
        for side, index in enumerate((1, -1)):
            if axis.at_walls[side]:
                line[index] = 2.0 * share if (number, side) in self.open_ends else 0.0
        return line

    def _lowest(self) -> float:
        if self.bodies is not None:
            return 0.0
        lines = [self._line(number, self.whole) for number in range(self.whole.dimension)]
        return lowest_eigenvalue(self.whole, lines, [np.ones(1)] * len(lines))

    def driving_magnitudes(self, time: float) -> tuple[float, float]:
        given, rates = super().driving_magnitudes(time)
        fixed = list(self.mean_velocities.values())
        for obstacle in self.case.obstacles:
            fixed += [obstacle.temperature, obstacle.concentration]
        return max([given, *[abs(value) for value in fixed if value is not None]]), rates

    def sources(self, time: float) -> list[Any]:
        """As in `MultiFieldModel`, but 0 for carried quantities inside obstacles."""
        result = super().sources(time)
        if self.bodies is None:
            return result
        if result is not self._plain_sources:
            self._plain_sources = result
            self._outside = [
                self.bodies.outside(name, source) if name in self.carried else source
                for name, source in zip(self.names, result, strict=True)
            ]
        return self._outside

    # ---- fields of files ---------------------------------------------------------------------

    def at_points(self, name: str, fields: Mapping[str, Any] | None = None) -> Any:
        """Velocities at the centres of cells; the pressure with mean 0 where no wall gives it."""
        array, region = (fields or self.fields)[name], self.grid.interior
        if name not in ("pressure", *self.components):
            return array
        centre = self.backend.zeros(self.grid.shape)
        if name == "pressure":
            enclosed = ZERO if self.bodies is None else self.enclosed
            args = array, self._mean_pressure(array), enclosed, self.density
            self.backend.sweep(flow.scaled_pressure, centre, region, *args)
        else:
            point = flow.centred(self.components.index(name))
            self.backend.sweep(point, centre, region, array)
        return centre

    def derive(self, derived: Derived, fields: Mapping[str, Any] | None = None) -> Any:
        if derived.kind != "stream function":
            return super().derive(derived, fields)
        return stream_function(self, fields or self.fields)

    def scale(self, name: str, fields: Mapping[str, Any]) -> tuple[float, float]:
        if name != "pressure":
            return 0.0, 1.0
        return self._mean_pressure(fields[name]), self.density

    def _mean_pressure(self, array: Any) -> float:
        """The mean pressure over the fluid, subtracted where no wall gives the pressure."""
        if self.open_ends:
            return 0.0
        return self.backend.reduce("sum", copy, self.grid.interior, array) / self.fluid_cells

    @cached_property
    def fluid_cells(self) -> float:
        """The number of cells of all processes that are not cut off from the flow."""
        if self.bodies is None:
            return float(self.whole.all_unknowns)
        enclosed = self.backend.reduce("sum", copy, self.grid.interior, self.enclosed)
        return self.whole.all_unknowns - enclosed

    def velocities(self, fields: Mapping[str, Any]) -> list[Any]:
        """The components, slowest axis first."""
        return [fields[name] for name in self.components]

    def accelerations(self, fields: Mapping[str, Any], *times: float) -> list[float]:
        """As in `Model`, with buoyancy, but without pressure and friction, which may balance it."""
        model = self.case.model
        lifts = model.buoyancy or (0.0,) * self.grid.dimension
        warm = 0.0
        if any(lifts):
            neutral = model.reference_temperature
            args = flow.raised, self.grid.interior, fields["temperature"], -neutral
            warm = self.backend.reduce("max", *args)
            for time in times if self.walls_vary else times[:1]:
                at_walls = self.given_at_walls("temperature", time, neutral)
                warm = max([warm, *[abs(value - neutral) for value in at_walls]])
        forces = super().accelerations(fields, *times)
        return [f + abs(lift) * warm for f, lift in zip(forces, reversed(lifts), strict=True)]

    def rates(
        self, now: Mapping[str, Any], time: float, implicit: bool
    ) -> Iterator[tuple[str, Region, Point, tuple[Any, ...]]]:
        """Yield each quantity, a region, the point function of its rate there, and its arguments;
        without diffusion if it is `implicit`.

        With wide convection sweep each rate before the next: they share the second differences.
        """
        grid, per_h, open_faces = self.grid, self.inverse_spacings, self.open_faces()
        model, bodies = self.case.model, self.bodies
        sources = dict(zip(self.names, self.sources(time), strict=True))
        velocities, lifts = self.velocities(now), tuple(reversed(model.buoyancy or ()))
        for name in self.moved:
            second = self.second_differences(now[name], name)
            nu = ZERO if implicit else self.moved[name]
            weights = () if bodies is None else bodies.weights(name)
            source, diffusion = sources[name], (nu, *per_h, *weights)
            if name in self.carried:
                rate = flow.carried(grid.dimension, model.convection)
                args = (now[name], *velocities, *second, source, *diffusion)
                yield name, grid.interior, rate, args
                continue
            component = self.components.index(name)
            buoyant: tuple[Any, ...] = ()
            if lifts and lifts[component] != 0.0:
                buoyant = (now["temperature"], lifts[component], model.reference_temperature)
            rate = flow.momentum(grid.dimension, component, model.convection, bool(buoyant))
            args = (*velocities, *second, source, *buoyant, *diffusion)
            yield name, self.inside(name), rate, args
            if component in open_faces:
                args = (now[name], per_h[component])
                yield name, open_faces[component], flow.leaving(component), args

    def second_differences(self, array: Any, name: str) -> tuple[Any, ...]:
        """The second differences of a quantity for wide convection; 0 beyond walls."""
        if self.second:
            sweep, region = self.backend.sweep, self.inside(name)
            sweep(flow.second_differences(self.grid.dimension), self.second, region, array)
            for second in self.second:
                if region != self.grid.interior:  # a value of another quantity
                    sweep(fill, second, self.face_at(self.components.index(name), 1), 0.0)
                self.halo.exchange(second)
        return self.second

    @property
    def equation(self) -> str:
        return equation(self.case)

    def methods(self) -> Iterator[Row]:
        case = self.case
        steps = STEPS[case.march.scheme]
        if case.march.diffusion != "explicit":
            steps += ", Crank and Nicolson's diffusion"
        pressure = f"{method_name(case)} to a divergence of {case.solver.tolerance:g}"
        convection = CONVECTIONS[case.model.convection]
        yield "scheme", f"staggered, {convection}, {steps}, pressure by {pressure}"
