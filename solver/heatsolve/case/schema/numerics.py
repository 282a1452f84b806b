"""The sections on how it is solved: the grid, the solver of systems, the march in time."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic
from annotated_types import Le, Lt
from pydantic import StrictBool

from heatsolve.case.schema.section import Section
from heatsolve.case.types import Found, Integer, PositiveInteger, PositiveReal, Real
from heatsolve.stencil.expressions import show
from heatsolve.stencil.grid import AXIS_NAMES

MAX_POINTS = 2**40
OPTIONS = {
    "weight": ("jacobi",),
    "omega": ("sor",),
    "cycle": ("multigrid", "mgcg"),
    "smoother": ("multigrid", "mgcg"),
    "sweeps": ("multigrid", "mgcg"),
}
"""Keys of `[solver]` that only some methods have."""
IMPLICIT = ("crank-nicolson", "backward-euler")
"""The schemes that solve a system in each step."""


class Grid(Section):
    """`[grid]`: the box and its points; lists run x, y, z."""

    nodes: tuple[Integer, ...] | None = None
    """Points along x, y, z, those on the walls included; this or `cells`."""
    cells: tuple[Integer, ...] | None = None
    """Cells along x, y, z: unknowns at their centres, walls on faces."""
    lower: tuple[Real, ...] = ()
    """The low corner of the box; all 0 if not given."""
    upper: tuple[Real, ...] = ()
    """The high corner; all 1 if not given."""
    periodic: tuple[Literal["x", "y", "z"], ...] = ()
    """Axes that are periodic; nodes there do not repeat the end point."""

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


class Solver(Section):
    """`[solver]`: how a steady case, or one implicit step, is solved."""

    method: Literal["auto", "jacobi", "sor", "chebyshev", "cg", "multigrid", "mgcg", "fft"] = "auto"
    """See [what `auto` chooses](cases.md#what-auto-chooses). `sor` is red-black, `mgcg` conjugate
    gradients with a multigrid cycle, `fft` [the direct solver](cases.md#the-direct-solver)."""
    update: Literal["laplace", "five-point-mean", "four-point-mean"] | None = None
    """Of jacobi: a literal teaching update in place of the general operator; a wall of gradient 0
    then copies the row inside after each sweep. `laplace` takes different spacings, too."""
    cycle: Literal["V", "W", "FMG"] = "V"
    """Of multigrid and mgcg. `FMG`, of multigrid only: full multigrid from the coarsest grid up in
    place of the initial field, then V cycles. Its first iteration leaves less than half the error
    of the discretisation where the solution is smooth, so `iterations = 1` is often enough."""
    smoother: Literal["red-black", "chebyshev"] = "red-black"
    """Of multigrid and mgcg: Gauss-Seidel in red-black order, or weighted Jacobi."""
    sweeps: Annotated[PositiveInteger, Le(8)] | None = None
    """Of multigrid and mgcg: smoothing sweeps before and after each correction (one is both
    colours, or two weighted Jacobi steps). Without it 2, but 1 of red-black multigrid in 3D and
    with FMG. There, and with FMG in 2D, the finest level makes all of them after the
    correction."""
    weight: Annotated[PositiveReal, Le(2)] = 1.0
    """Of jacobi: the weight of an update."""
    omega: Annotated[PositiveReal, Lt(2)] | None = None
    """Of sor: over-relaxation; without it Young's optimum."""
    tolerance: PositiveReal = 1e-8
    """The norm to get below; of a step, see [Flow](cases.md#flow)."""
    relative: StrictBool | None = None
    """Whether the tolerance is relative: to the norm of b with the walls' values in it or, if that
    is 0, to the norm at the first check. If not given, true with `monitor = "residual"`, false with
    `"update"`."""
    norm: Literal["l2", "max", "sum-abs-change"] = "l2"
    """`l2` is the root of the sum of squares, `max` the largest magnitude, `sum-abs-change` the
    change of the sum of magnitudes at all points relative to itself (with `monitor =
    "update"`)."""
    monitor: Literal["update", "residual"] = "residual"
    """What the norm is of: the residual b - A u, or new - old."""
    max_iterations: PositiveInteger = 1_000_000
    """Beyond it the run ends with exit code 3."""
    iterations: PositiveInteger | None = None
    """Exactly so many, in place of a tolerance."""
    check_every: PositiveInteger = 1
    """Iterations from one check to the next."""
    precision: Literal["float64", "float32", "mixed"] = "float64"
    """Of fields and arithmetic. `mixed`, of multigrid: see [mixed
    precision](cases.md#mixed-precision)."""

    @property
    def is_relative(self) -> bool:
        """Whether the tolerance is relative, as given or by default."""
        return self.monitor == "residual" if self.relative is None else self.relative

    @property
    def check_interval(self) -> int:
        """Iterations from one check to the next; of a fixed number the last, if nothing is said."""
        if self.iterations is None or "check_every" in self.model_fields_set:
            return self.check_every
        return self.iterations

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


class Time(Section):
    """`[time]`: the march of a transient case from t = 0."""

    end: PositiveReal
    """The march goes from t = 0 to here."""
    step: PositiveReal | None = None
    """The length of a step; this or `cfl`."""
    cfl: PositiveReal | None = None
    """Of explicit schemes: a share of the largest stable step, that at t = 0; of flow, and of a
    velocity that carries itself, that of the moment."""
    scheme: Literal[
        "explicit", "rk2", "rk3", "adams-bashforth", "crank-nicolson", "backward-euler"
    ] = "explicit"
    """`explicit` (Euler) of all; of heat also `crank-nicolson` and `backward-euler`; of transport
    and flow `rk2` and `rk3` (strong-stability-preserving Runge-Kutta); of flow `adams-bashforth`
    (second order)."""
    diffusion: Literal["explicit", "crank-nicolson"] = "explicit"
    """Of flow with `adams-bashforth`: `crank-nicolson` sets no limit to the step."""
    allow_unstable: StrictBool = False
    """Do not refuse an unstable explicit step, warn only."""
    tolerance: PositiveReal | None = None
    """The march ends when it is steady, when the norm of its change is at most this; not before
    `end` means exit code 3."""
    norm: Literal["max", "sum-change"] = "max"
    """`max`: the largest rate of change. `sum-change`: the change in a step of the sum of the
    first field, relative to itself."""

    def mistakes(self) -> Found:
        yield from self._one_of("step", "cfl")
        if "norm" in self.model_fields_set and self.tolerance is None:
            yield ("norm",), "only with time.tolerance"
        if self.cfl is not None and self.scheme in IMPLICIT:
            yield ("cfl",), f'only for explicit schemes, not "{self.scheme}"'
