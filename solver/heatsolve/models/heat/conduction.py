"""The model of heat conduction: the coefficients of a case on its grid, its walls and systems."""

import itertools
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Self

import numpy as np

from heatsolve.backends import Accumulator, Backend
from heatsolve.case.case import Case
from heatsolve.case.derived import Derived
from heatsolve.errors import InputError
from heatsolve.linear.fft import ALONE, modes_of
from heatsolve.linear.system import (
    Coefficients,
    System,
    lowest_eigenvalue,
    weighted,
    weighted_magnitude,
)
from heatsolve.models.base import Model, Row, Stepper
from heatsolve.models.derived import axis_number
from heatsolve.models.grid import Wall, grid_of, sample_of, walls_of
from heatsolve.models.heat import equations as heat
from heatsolve.models.heat.case import coefficient_names
from heatsolve.models.heat.flux import heat_flows, heat_flux
from heatsolve.models.heat.solver import (
    Explicit,
    Implicit,
    diffusion_system,
    doubt,
    make_method,
    method_name,
    stall,
)
from heatsolve.models.heat.walls import WallFaces, WallKind, ratio_line
from heatsolve.parallel.ranks import Ranks
from heatsolve.stencil.expressions import demand, evaluate, words
from heatsolve.stencil.grid import Grid, Outline
from heatsolve.stencil.language import ZERO, fill, shifted

METHODS = {
    "jacobi": "Jacobi's iteration",
    "sor": "red-black successive over-relaxation",
    "chebyshev": "the Chebyshev semi-iteration",
    "cg": "conjugate gradients, preconditioned with the diagonal",
    "multigrid": "geometric multigrid",
    "mgcg": "conjugate gradients, preconditioned with a multigrid cycle",
    "fft": "a direct solver by fast sine, cosine and Fourier transforms",
}
UPDATES = {
    "laplace": "T <- 0.25 (its four neighbours + h^2 q)",
    "laplace-unequal": "T <- (dy^2 (both neighbours along x) + dx^2 (both along y) + dx^2 dy^2 q) "
    "/ (2 (dx^2 + dy^2))",
    "five-point-mean": "T <- 0.2 (T + its four neighbours)",
    "four-point-mean": "T <- 0.25 (its four neighbours)",
}
SCHEMES = {
    "explicit": "explicit Euler",
    "crank-nicolson": "Crank-Nicolson, begun with four half-steps of backward Euler",
    "backward-euler": "backward Euler",
}
COMPATIBLE = 1e-10
"""Relative imbalance of sources up to which a problem without given values has a solution."""


class Volumes:
    """The coefficients of the volumes of a block, and the fluxes through their faces.

    `whole` is the grid of the case, `grid` the block of it that this process owns; `dtype` is the
    type of the arrays for the coefficients. Raises InputError for coefficients that are not finite,
    not positive, or out of the range of `dtype`.
    """

    def __init__(self, case: Case, whole: Grid, grid: Grid, dtype: np.dtype):
        self.case, self.whole, self.grid, self.dtype = case, whole, grid, dtype
        self.nothing = np.zeros((1,) * grid.dimension)
        self.walls = tuple(walls_of(case, grid))
        self.wall_kinds: list[WallKind] = [w.condition.kind for w in walls_of(case, whole)]
        """The conditions of all walls of the case, also beside other processes' blocks."""
        self.ratios = [grid.along(n, ratio_line(axis)) for n, axis in enumerate(grid.axes)]
        """Along each axis, the ratio of a full cell to the points' volumes."""
        self.conductivity = self.evaluate("model.conductivity", positive=True)
        self.faces = [self._conductances(number) for number in range(grid.dimension)]
        """Along each axis, the conductances of the faces below each point (W/(m3 K))."""

    def capacity(self) -> np.ndarray:
        """rho c; 0 where nothing depends on time."""
        if self.case.model.steady:
            return self.nothing
        density = self.evaluate("model.density", positive=True)
        return density * self.evaluate("model.specific_heat", positive=True)

    @property
    def heated_through_walls(self) -> bool:
        """Whether any wall of the case gives a flux of heat, also beside another process's block.

        The shape of the source depends on this, and must be the same on all processes.
        """
        fluxes = [kind.given_flux for kind in self.wall_kinds]
        return any(f.names or f() != 0.0 for f in fluxes if f is not None)

    def source(self, time: float) -> np.ndarray:
        """q, point sources and fluxes through walls of given gradient (W/m3)."""
        density = self.evaluate("source.temperature", time=time)
        fluxes = [
            (wall, self.flux(wall, time))
            for wall in self.walls
            if wall.condition.kind.given_flux is not None
        ]
        if not self.heated_through_walls and not self.case.source.points:
            return density
        if isinstance(self.grid, Outline) and self.grid.is_large:
            return np.broadcast_to(density, self.grid.shape)
        total = np.array(np.broadcast_to(density, self.grid.shape))
        for point in self.case.source.points:
            for place in self.places_of(point):
                total[place] += point.value
        for wall, flux in fluxes:
            layer = [slice(1, -1)] * self.grid.dimension
            layer[wall.axis] = (slice(1, 2), slice(-2, -1))[wall.side]
            shape = [n - 2 for n in self.grid.shape]
            shape[wall.axis] = 1
            trimmed = flux[tuple(slice(None) if n == 1 else slice(1, -1) for n in flux.shape)]
            total[tuple(layer)] += np.broadcast_to(trimmed, shape)
        return total

    def ghost_values(self, wall: Wall, time: float) -> np.ndarray | None:
        """The values that a wall's ghosts hold at a time; None for a wall without any."""
        ghost = wall.condition.kind.ghost
        if ghost is None:
            return None
        return evaluate(self.grid, f"boundary.{wall.name}.temperature", ghost, time, wall=wall)

    def wall_conductance(self, wall: Wall) -> np.ndarray:
        """Conductance of the faces at a wall (W/(m3 K)); 0 where a gradient gives the flux."""
        return wall.condition.kind.conductance(self._faces_at(wall))

    def flux(self, wall: Wall, time: float) -> np.ndarray:
        """The given flux through a wall, per unit of the volume beside it (W/m3)."""
        return wall.condition.kind.flux(self._faces_at(wall), time)

    def _faces_at(self, wall: Wall) -> WallFaces:
        return WallFaces(wall, self.grid, self.case.model.conductivity, self.conductivity)

    def evaluate(self, path: str, time: float = 0.0, positive: bool = False) -> np.ndarray:
        """The expression of a key of the case at all points; finite, or InputError."""
        section, key = path.split(".")
        expression = getattr(getattr(self.case, section), key)
        return evaluate(self.grid, path, expression, time, positive)

    def _conductances(self, number: int) -> np.ndarray:
        """Conductances of the faces below each point along one axis (W/(m3 K))."""
        axis = self.grid.axes[number]
        shape = list(self.conductivity.shape)
        shape[number] = axis.unknowns + 2
        k = np.moveaxis(np.broadcast_to(self.conductivity, shape), number, 0)
        inside = heat.harmonic_mean(k[:-1], k[1:]) / (axis.spacing * axis.spacing)
        walls = {
            w.side: np.moveaxis(self.wall_conductance(w), number, 0)
            for w in self.walls
            if w.axis == number
        }
        across = np.broadcast_shapes(k.shape[1:], *[c.shape[1:] for c in walls.values()])
        faces = np.zeros((axis.unknowns + 2, *across))
        faces[1:] = inside
        for side, conductance in walls.items():
            faces[(1, -1)[side]] = conductance[0]
        faces = np.ascontiguousarray(np.moveaxis(faces, 0, number))
        limits = np.finfo(self.dtype)  # 0 is the conductance of an insulated wall
        normal = (faces == 0.0) | ((faces >= limits.tiny) & (faces <= limits.max))
        demand(self.grid, normal, faces, f"conductance along {axis.name}", f"fit {limits.dtype}")
        return faces

    def places_of(self, point: Any) -> Iterator[tuple[int, ...]]:
        """The array indices of the unknown that carries a point source.

        No indices if it is outside this block; two if a margin also holds its periodic image.
        """
        places = []
        for number, axis in enumerate(reversed(self.whole.axes)):
            if point.index is not None:
                index = axis.number(int(point.index[number]))
            else:
                from_lower = (point.position[number] - axis.lower) / axis.spacing
                nearest = round(from_lower) if axis.on_nodes else int(from_lower)
                nearest %= axis.points if axis.periodic else axis.points + 1
                index = min(max(axis.number(nearest), 1), axis.unknowns)
            if not 1 <= index <= axis.unknowns:
                raise InputError(
                    f"source.point: {point.index} lies on a wall of given temperature, "
                    "where a source has no effect"
                )
            here = self.grid.axes[-1 - number]
            images = (-1, 0, 1) if axis.periodic else (0,)
            indices = [index + image * axis.all_unknowns - here.start for image in images]
            places.append([i for i in indices if 1 <= i <= here.unknowns])
        return itertools.product(*reversed(places))


class Conduction(Model):
    """The arrays of a heat case on a backend, and the linear systems made of them."""

    def __init__(
        self, case: Case, backend: Backend, grid: Grid | None = None, ranks: Ranks | None = None
    ):
        super().__init__(case, backend, grid, ranks)
        self.volumes = volumes = Volumes(case, self.whole, self.grid, backend.dtype)
        self.walls = volumes.walls
        place = backend.to_device
        # The point functions take the axes in the order x, y, z.
        self.ratios = tuple(map(backend.factor, reversed(volumes.ratios)))
        faces = [place(shortened(faces, number)) for number, faces in enumerate(volumes.faces)]
        pairs = zip(reversed(faces), self.ratios, strict=True)
        self.faces = tuple(array for pair in pairs for array in pair)
        self.capacity = place(volumes.capacity())

    @cached_property
    def singular(self) -> bool:
        """Whether no wall gives a temperature (asks all processes)."""
        gives = any(np.any(self.volumes.wall_conductance(wall)) for wall in self.walls)
        return not any(self.ranks.gather(gives))

    @cached_property
    def temperature(self) -> Any:
        """The field, at first the initial one with the walls' values at t = 0.

        Made at the first access, so that the coefficients alone need no memory for it.
        """
        field = self.backend.zeros(self.grid.shape)
        self._place_initial(field)
        return field

    def reset(self) -> None:
        """Make the field the initial one again."""
        self._place_initial(self.temperature)

    def take(self, u: Any) -> None:
        self.temperature = u

    def _place_initial(self, field: Any) -> None:
        self.place(field, self.grid.interior, self.volumes.evaluate("initial.temperature"))
        self.stamp({"temperature": field}, None)
        self.write_walls(field, 0.0)

    @property
    def fields(self) -> dict[str, Any]:
        return {"temperature": self.temperature}

    # ---- what varies with time ----

    @cached_property
    def walls_vary(self) -> bool:
        ghosts = [kind.ghost for kind in self.volumes.wall_kinds]
        return any("t" in expression.names for expression in ghosts if expression is not None)

    @cached_property
    def sources_vary(self) -> bool:
        fluxes = [kind.given_flux for kind in self.volumes.wall_kinds]
        varying = [self.case.source.temperature, *[f for f in fluxes if f is not None]]
        return any("t" in expression.names for expression in varying)

    @property
    def joins_steps(self) -> bool:
        return self.case.march.scheme == "explicit" and not self.driven_in_time

    def drive_of_walls(self, time: float) -> list[np.ndarray]:
        ghosts = [self.volumes.ghost_values(wall, time) for wall in self.walls]
        return [values for values in ghosts if values is not None]

    def drive_of_sources(self, time: float) -> list[np.ndarray]:
        return [self.source(time) / self._smallest_capacity]

    @cached_property
    def _smallest_capacity(self) -> float:
        """The smallest rho c of all blocks (J/(m3 K); asks all processes)."""
        return min(self.ranks.gather(float(self.volumes.capacity().min())))

    def set_walls(self, time: float) -> None:
        self.write_walls(self.temperature, time)

    def write_walls(self, array: Any, time: float) -> None:
        """Write the walls' values at a time into the ghosts of an array."""
        for wall in reversed(self.walls):  # walls of slower axes own the corners
            values = self.volumes.ghost_values(wall, time)
            ghosts = self.grid.ghost(wall.axis, wall.side)
            if values is not None:
                self.place(array, ghosts, values)
            elif self.case.solver.update is not None:
                inside = [0] * self.grid.dimension
                inside[wall.axis] = -1 if wall.side else 1
                self.backend.sweep(shifted, array, ghosts, array, *inside)

    def derive(self, derived: Derived, fields: Mapping[str, Any] | None = None) -> Any:
        if derived.kind != "heat flux":
            return super().derive(derived, fields)
        field = (fields or self.fields)["temperature"]
        return heat_flux(self, axis_number(self, derived.axis), field)

    def heat_flows(self) -> dict[str, float]:
        return heat_flows(self)

    def complete(self, u: Any) -> Any:
        if self.case.solver.update is not None:
            self.write_walls(u, 0.0)
        return u

    def add_magnitudes(self, array: Any, into: Accumulator) -> None:
        """Add |T| at all points of a file, walls included."""
        self.write_walls(array, 0.0)
        self.backend.sweep(weighted_magnitude, into, self.grid.stored, array)

    def source(self, time: float) -> np.ndarray:
        """The right side of the equation at a time (W/m3), on the host; see `Volumes`."""
        return self.volumes.source(time)

    # ---- what `heatsolve check` says ----

    @classmethod
    def dry_run(cls, case: Case, backend: Backend) -> Self:
        """As in `Model`, with few points along each axis along which no coefficient varies: so the
        largest stable step has the bits of a run."""
        grid = grid_of(case)
        sample, few = sample_of(grid), thinned(case, grid)
        problem, evaluated = cls(case, backend, few), case
        if sample is not grid:
            volumes = Volumes(case, grid, few, backend.dtype)
            for point in case.source.points:  # raises at a wall, which the sample may lack
                volumes.places_of(point)
            evaluated = case.altered(source={"point_sources": ()})
        whole = cls(evaluated, backend, sample)
        assert np.shape(whole.temperature) == sample.shape
        source = np.broadcast_to(whole.source(0.0), sample.shape)
        system = whole.system(backend.to_device(source))
        if sample is grid and case.model.steady and system.singular:
            make_compatible(system)
        return problem

    @property
    def _solves(self) -> bool:
        """Whether there is a linear system."""
        return self.case.time is None or self.case.time.scheme != "explicit"

    def demand_machine(self, machine: Backend, ranks: int) -> None:
        if not (self._solves and method_name(self.case) == "fft"):
            return
        if ranks > 1:
            raise InputError(ALONE)
        machine.library()
        b = self.backend.zeros((1,) * self.grid.dimension)
        modes_of(self.system(b, ZERO if self.case.model.steady else 1.0))

    @property
    def equation(self) -> str:
        case, model, points = self.case, self.case.model, len(self.case.source.points)
        if case.solver.update is not None:
            equal = "" if grid_of(case).equal_spacings else "-unequal"
            equation = UPDATES[case.solver.update + equal]
        elif model.steady:
            equation = "div(k grad T) + q = 0"
        else:
            equation = "rho c dT/dt = div(k grad T) + q"
        coefficients = {"k": model.conductivity, "q": case.source.temperature}
        if not model.steady:
            coefficients |= {"rho": model.density, "c": model.specific_heat}
            coefficients["T(0)"] = case.initial.temperature
        parts = [f"{name} = {words(expression)}" for name, expression in coefficients.items()]
        if points:
            parts.append(f"{points} point source{'s' * (points > 1)}")
        return f"{equation}, {', '.join(parts)}"

    def wall_text(self, wall: Any) -> str:
        kind: WallKind = wall.temperature.kind
        return kind.summary()

    def methods(self) -> Iterator[Row]:
        if self.case.time is not None:
            yield "scheme", SCHEMES[self.case.time.scheme]
        if self._solves:
            yield "method", self._method
            yield "criterion", self._criterion

    @property
    def _method(self) -> str:
        solver, name = self.case.solver, method_name(self.case)
        chosen = "auto chooses " if solver.method == "auto" else ""
        kind = ""
        if name in ("multigrid", "mgcg"):
            kind = f", {solver.cycle} cycles with {solver.smoother} smoothing"
        if solver.precision == "mixed":
            kind += " in single precision, corrections in double"
        update = f', the literal update "{solver.update}"' if solver.update else ""
        return f"{chosen}{name}: {METHODS[name]}{kind}{update}"

    @property
    def _criterion(self) -> str:
        solver = self.case.solver
        each = "" if self.case.model.steady else " in each step"
        if solver.iterations is not None:
            return f"exactly {solver.iterations} iterations{each}"
        relative = " times that of the right side, walls included" if solver.is_relative else ""
        every = f", looked at every {solver.check_every}" if solver.check_every > 1 else ""
        return (
            f"{solver.norm} norm of the {solver.monitor} below {solver.tolerance:g}{relative}"
            f"{every}, at most {solver.max_iterations} iterations{each}"
        )

    def cautions(self) -> Iterator[Row]:
        if self.case.time is None and (reason := stall(self.case, self.singular)):
            yield "warning", reason
        conductivity = self.volumes.conductivity
        if reason := doubt(self.case, float(conductivity.max() / conductivity.min())):
            yield "warning", reason

    # ---- linear systems ----

    def system(self, b: Any, s: float = ZERO) -> System:
        """A T = b with A T = rho c s T - div(k grad T); b is a device array, s in 1/s.

        Without s the problem is steady.
        """
        coefficients = Coefficients(self.capacity, s, self.faces[0::2], self.ratios)
        lowest, singular = lambda: self._lowest(s), self.singular and s == 0.0
        return diffusion_system(self, coefficients, b, lowest, singular, self.homogeneous)

    def steady_system(self) -> System:
        source = self.source(0.0)
        if self.singular:  # make_compatible writes to all of it
            source = np.broadcast_to(source, self.grid.shape)
        system = self.system(self.backend.to_device(source))
        if system.singular:
            make_compatible(system)
        return system

    def stepper(self, time: float, step: float) -> Stepper:
        kind = Explicit if self.case.march.scheme == "explicit" else Implicit
        return kind(self, time)

    def longest_pass(self) -> int:
        if self.case.time is not None:
            return super().longest_pass()
        system = self.system(self.backend.to_device(self.source(0.0)))
        return make_method(self.case, system, self.backend.zeros(self.grid.shape)).longest

    @property
    def homogeneous(self) -> bool:
        """Whether no wall gives its ghosts another value than 0."""
        ghosts = [kind.ghost for kind in self.volumes.wall_kinds]
        given = [ghost for ghost in ghosts if ghost is not None]
        return all(not ghost.names and float(ghost()) == 0.0 for ghost in given)

    def _lowest(self, s: float) -> float:
        """A lower bound of the smallest eigenvalue of A (asks all processes)."""
        lines = []
        pairs = zip(self.grid.axes, self.volumes.faces, strict=True)
        for number, (axis, faces) in enumerate(pairs):
            others = tuple(n for n in range(self.grid.dimension) if n != number)
            line = np.full(axis.all_unknowns + 2, np.inf)
            first, stop = axis.own
            own = faces.min(axis=others)[first : stop + 1]
            line[axis.start + first : axis.start + stop + 1] = own
            lines.append(self.ranks.smallest(line))
        ratios = [ratio_line(axis) for axis in self.whole.axes]
        capacity = self.ranks.smallest(np.array(self._smallest_capacity))
        return lowest_eigenvalue(self.whole, lines, ratios) + s * float(capacity)

    def largest_step(self) -> float:
        """The largest stable step of explicit Euler (s), 2 over Gershgorin's bound."""
        one = self.backend.zeros(self.grid.shape)
        self.backend.sweep(fill, one, self.grid.interior, 1.0)
        self.halo.exchange(one)
        args = (one, self.capacity, *self.faces)
        largest = self.backend.reduce("max", heat.gershgorin, self.grid.interior, *args)
        return 2.0 / largest if largest > 0.0 else np.inf


def thinned(case: Case, grid: Grid) -> Grid:
    """The grid with few points along every axis along which no coefficient varies.

    On this grid coefficients have the values of a run, bit by bit.
    """
    return sample_of(grid, coefficient_names(case))


def shortened(faces: np.ndarray, axis: int) -> np.ndarray:
    """Conductances of faces, with an extent of 1 along their axis if they do not vary along it.

    No sweep reads element 0.
    """
    read = np.moveaxis(faces, axis, 0)[1:]
    same = np.all(read == read[:1])
    return np.moveaxis(read[:1], 0, axis) if same else faces


def make_compatible(system: System) -> None:
    """Remove the rounding of the sum of sources and fluxes, which must cancel without any given
    value. Raises InputError if they do not."""
    args = (system.grid.interior, system.b, *system.coefficients.ratios)
    total = system.backend.reduce("sum", weighted, *args)
    size = system.backend.reduce("sum", weighted_magnitude, *args)
    if abs(total) > COMPATIBLE * size:
        raise InputError(
            "no steady state: no wall gives a temperature, and sources and wall fluxes do not "
            f"cancel (sum {total:.6g} of magnitudes {size:.6g})"
        )
    if total != 0.0:
        system.remove_mean(system.b)
        system.halo.exchange(system.b)  # the margin reads it, too
