"""The sections of a case file that all models have, one class for each section.

An attribute is a key (`alias` where the key would be a poor attribute name), and the sentence below
it is its meaning. `types` defines the values. A model adds its own `[model]`, and narrows or
extends other sections, in its folder.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import pydantic
from annotated_types import Le, Lt
from pydantic import Field, Strict, StrictBool

from heatsolve.case.types import (
    Found,
    Integer,
    Interval,
    Mistakes,
    PositiveInteger,
    PositiveReal,
    Real,
    RowCondition,
    SpaceField,
    SpaceTimeField,
    StartFile,
    data_of,
    seconds_of,
)
from heatsolve.stencil.expressions import Expression, compile_expression, show
from heatsolve.stencil.grid import AXIS_NAMES

ZERO, ONE = (compile_expression(text, (), {}) for text in ("0.0", "1.0"))

FIELDS = ("temperature", "concentration", "velocity_x", "velocity_y", "velocity_z", "pressure")
"""The fields of the built-in models."""
FieldName = Annotated[str, Strict()]
"""The name of a field of the model; the case checks it."""


class Section(pydantic.BaseModel):
    """A table of the case file: frozen, and without any keys except its own."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    one_of: ClassVar[tuple[str, ...]] = ()
    """Keys that exclude each other: exactly one must be given."""

    @classmethod
    def attributes(cls) -> dict[str, str]:
        """The attribute of each key."""
        return {info.alias or name: name for name, info in cls.model_fields.items()}

    @classmethod
    def rivals(cls, key: str) -> set[str]:
        """The keys that a key replaces."""
        return set(cls.one_of) - {key} if key in cls.one_of else set()

    def mistakes(self) -> Found:
        """Yield mistakes in combinations of values: the key path below this section, a sentence."""
        if self.one_of and sum(getattr(self, key) is not None for key in self.one_of) != 1:
            yield (), f"give exactly one of {', '.join(self.one_of)}"

    @pydantic.model_validator(mode="after")
    def _refuse_mistakes(self) -> "Section":
        if found := tuple(self.mistakes()):
            raise Mistakes(*found)
        return self


class About(Section):
    """`[case]`: title and description."""

    title: str = ""
    """One line, shown by `heatsolve cases`, at the start of a run and above pictures."""
    description: str = ""
    """The problem, in a few sentences."""
    reference: str = ""
    """The source of the problem, or of the result to expect."""


class Model(Section):
    """`[model]`: the equation and its coefficients.

    Its `kind` is `"heat"` if not given, `"transport"`, `"flow"`, or the name of [a model of your
    own](extending.md#a-model); each has its own keys.
    """

    equations: ClassVar[Any] = None
    """The equations of a user's own model."""

    kind: str
    """The name of the model."""
    steady: StrictBool = False
    """Must be false: the model always marches in time."""

    if TYPE_CHECKING:  # the keys of each model are its own

        def __getattr__(self, key: str) -> Any: ...

    def mistakes(self) -> Found:
        if self.steady:
            yield ("steady",), f'must be false with kind = "{self.kind}"'


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
    """`[grid]`: the box and its points; lists have the order x, y, z."""

    one_of = ("nodes", "cells")

    nodes: tuple[Integer, ...] | None = None
    """Points along x, y, z, points on the walls included; this or `cells`."""
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
        yield from super().mistakes()
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
    """`[[initial.box]]`: another value inside a box, of indices or coordinates, ends included. A
    box across the end of a periodic axis goes on at the other end."""

    field: FieldName
    """The field that has the value."""
    value: SpaceField
    """The value inside."""
    first: tuple[Integer, ...] | None = None
    """The low corner as indices from 0."""
    last: tuple[Integer, ...] | None = None
    """The high corner as indices."""
    lower: tuple[Real, ...] | None = None
    """The low corner as coordinates."""
    upper: tuple[Real, ...] | None = None
    """The high corner as coordinates."""

    @property
    def again(self) -> tuple[float, ...]:
        """Times at which the box is set once more."""
        return ()

    @property
    def by_index(self) -> bool:
        return self.first is not None

    @property
    def corners(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The low and the high corner, in indices or coordinates along x, y, z."""
        low, high = (self.first, self.last) if self.by_index else (self.lower, self.upper)
        return low or (), high or ()

    def mistakes(self) -> Found:
        given = {key for key in ("first", "last", "lower", "upper") if getattr(self, key)}
        if given not in ({"first", "last"}, {"lower", "upper"}):
            yield (), "give first and last, or lower and upper"


class Initial(Section):
    """`[initial]`: where a march in time or an iteration starts."""

    temperature: SpaceField = ZERO
    """The values at the start of the march or of the iteration."""
    concentration: SpaceField = ZERO
    velocity_x: SpaceField = ZERO
    velocity_y: SpaceField = ZERO
    velocity_z: SpaceField = ZERO
    pressure: SpaceField = ZERO
    file: StartFile | None = None
    """A file with all fields of the model, for instance a result on another grid: the start of each
    field that has no key here; see [fields from files](cases.md#fields-from-files)."""
    boxes: tuple[Box, ...] = Field(default=(), alias="box")
    """Other values inside boxes; where boxes overlap, the last one counts."""

    @pydantic.model_validator(mode="after")
    def _from_file(self, info: pydantic.ValidationInfo) -> "Initial":
        for name in set(type(self).model_fields) - {"file", "boxes"} - self.model_fields_set:
            if self.file is not None:  # the keys that were given stay as they are
                self.__dict__[name] = data_of({**self.file.given, "field": name}, info)
        return self


class Source(Section):
    """`[source]`: the density f of the equation."""

    temperature: SpaceTimeField = ZERO
    """f of the field's equation: for heat q (W/m3), for a velocity the force per unit of mass."""
    concentration: SpaceTimeField = ZERO
    velocity_x: SpaceTimeField = ZERO
    velocity_y: SpaceTimeField = ZERO
    velocity_z: SpaceTimeField = ZERO
    pressure: SpaceTimeField = ZERO

    @property
    def points(self) -> tuple[Any, ...]:
        """Densities that are added at single unknowns."""
        return ()


class Condition(Section):
    """One field at one wall: its value, or its outward normal derivative."""

    value: SpaceTimeField | None = None
    """The field at the wall."""
    gradient: SpaceTimeField | None = None
    """The outward normal derivative of the field."""

    @property
    def key(self) -> str:
        """`value` or `gradient`, whichever is given."""
        return "gradient" if self.value is None else "value"

    @property
    def expression(self) -> Expression:
        """The expression of this key."""
        return getattr(self, self.key)

    @classmethod
    def rivals(cls, key: str) -> set[str]:
        return set(cls.model_fields) - {key}

    def mistakes(self) -> Found:
        if len(self.model_fields_set) != 1:
            yield (), f"give exactly one of {', '.join(type(self).model_fields)}"


class Wall(Section):
    """`[boundary.left]` and its like: a condition for every field of the model."""

    temperature: Condition | None = None
    """The condition of a field. A wall without a kind needs a condition for every field; a wall
    with a kind needs conditions for velocities that are not 0, and for a temperature and a
    concentration that a flow carries."""
    concentration: Condition | None = None
    velocity_x: Condition | None = None
    velocity_y: Condition | None = None
    velocity_z: Condition | None = None
    pressure: Condition | None = None


class Boundary(Section):
    """`[boundary]`: the walls of the box."""

    left: Wall | None = None
    """`left` and `right` are the walls at low and high x, `bottom` and `top` at low and high y,
    `back` and `front` at low and high z."""
    right: Wall | None = None
    bottom: Wall | None = None
    top: Wall | None = None
    back: Wall | None = None
    front: Wall | None = None


class Solver(Section):
    """`[solver]`: how a steady case, or one implicit step, is solved."""

    method: Literal["auto", "jacobi", "sor", "chebyshev", "cg", "multigrid", "mgcg", "fft"] = "auto"
    """See [what `auto` chooses](cases.md#what-auto-chooses). `sor` is red-black, `mgcg` conjugate
    gradients with a multigrid cycle, `fft` [the direct solver](cases.md#the-direct-solver)."""
    update: Literal["laplace", "five-point-mean", "four-point-mean"] | None = None
    """With jacobi: the literal update of a teaching code in place of the general operator; a wall
    of gradient 0 then copies the row inside after each sweep. `laplace` allows different
    spacings."""
    cycle: Literal["V", "W", "FMG"] = "V"
    """With multigrid and mgcg. `FMG`, with multigrid only: full multigrid from the coarsest grid up
    in place of the initial field, then V cycles. Where the solution is smooth, its first iteration
    leaves less than half the error of the discretisation, so `iterations = 1` is often enough."""
    smoother: Literal["red-black", "chebyshev"] = "red-black"
    """With multigrid and mgcg: Gauss-Seidel in red-black order, or weighted Jacobi."""
    sweeps: Annotated[PositiveInteger, Le(8)] | None = None
    """With multigrid and mgcg: smoothing sweeps before and after each correction (one is both
    colours, or two weighted Jacobi steps). By default 2, but 1 for red-black multigrid in 3D and
    with FMG. In 3D, and with FMG in 2D, the finest level makes all sweeps after the correction."""
    weight: Annotated[PositiveReal, Le(2)] = 1.0
    """With jacobi: the weight of an update."""
    omega: Annotated[PositiveReal, Lt(2)] | None = None
    """With sor: the over-relaxation factor. If not given: Young's optimum, but 1 where a periodic
    axis has an odd number of points, because neighbours across its end have one colour."""
    tolerance: PositiveReal = 1e-8
    """The norm below which an iteration ends; for a step of flow see [flow](cases.md#flow)."""
    relative: StrictBool | None = None
    """Whether the tolerance is relative to the norm of b, the walls' values included, or, if this
    norm is 0, to the norm at the first check. If not given, true with `monitor = "residual"`, false
    with `"update"`."""
    norm: Literal["l2", "max", "sum-abs-change"] = "l2"
    """`l2` is the root of the sum of squares, `max` the largest magnitude, `sum-abs-change` the
    change of the sum of magnitudes at all points relative to itself (with `monitor =
    "update"`)."""
    monitor: Literal["update", "residual"] = "residual"
    """The vector of the norm: the residual b - A u, or new - old."""
    max_iterations: PositiveInteger = 1_000_000
    """The largest number of iterations; a run that needs more ends with exit code 3."""
    iterations: PositiveInteger | None = None
    """Exactly this number of iterations, in place of a tolerance."""
    check_every: PositiveInteger = 1
    """Iterations from one check to the next."""
    precision: Literal["float64", "float32", "mixed"] = "float64"
    """The precision of fields and arithmetic. `mixed`, with multigrid: see [mixed
    precision](cases.md#mixed-precision)."""

    @property
    def is_relative(self) -> bool:
        """Whether the tolerance is relative, as given or by default."""
        return self.monitor == "residual" if self.relative is None else self.relative

    @property
    def check_interval(self) -> int:
        """Iterations from one check to the next; by default only the last one of a fixed number."""
        if self.iterations is None or "check_every" in self.model_fields_set:
            return self.check_every
        return self.iterations

    @property
    def field_precision(self) -> str:
        """The precision of fields and residual; only a solver's own arrays may have another."""
        return "float64" if self.precision == "mixed" else self.precision

    def mistakes(self) -> Found:
        if self.update and self.method not in ("auto", "jacobi"):
            yield ("update",), f'only for method = "jacobi", not "{self.method}"'
        if self.update and self.monitor != "update" and self.iterations is None:
            yield ("monitor",), 'must be "update" with solver.update, which defines no residual'
        if self.norm == "sum-abs-change" and self.monitor != "update":
            yield ("monitor",), 'must be "update" with norm = "sum-abs-change"'
        if self.norm == "sum-abs-change" and self.relative:
            yield ("relative",), 'must be false with norm = "sum-abs-change", itself relative'
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

    one_of = ("step", "cfl")

    end: PositiveReal
    """The end of the march, which begins at t = 0."""
    step: PositiveReal | None = None
    """The length of a step; this or `cfl`."""
    cfl: PositiveReal | None = None
    """With explicit schemes: the step as a fraction of the largest stable step at t = 0; for flow
    and for `velocity = "self"` of the largest stable step at the present time."""
    scheme: Literal[
        "explicit", "rk2", "rk3", "adams-bashforth", "crank-nicolson", "backward-euler"
    ] = "explicit"
    """`explicit` (Euler) for all models; for heat also `crank-nicolson` and `backward-euler`; for
    transport and flow `rk2` and `rk3` (strong-stability-preserving Runge-Kutta); for flow
    `adams-bashforth` (second order)."""
    allow_unstable: StrictBool = False
    """Warn of an unstable explicit step in place of refusing it."""
    tolerance: PositiveReal | None = None
    """The march ends as steady when the norm of its change is at most this, no box is to be set
    again, and walls and sources rest until `end`, examined at some 250 times (sources on large
    grids at fewer); exit code 3 if it is not steady at `end`."""
    norm: Literal["max", "sum-change"] = "max"
    """`max`: the largest rate of change. `sum-change`: the change of the first field's sum in a
    step, relative to that sum."""

    @property
    def diffusion(self) -> str:
        """How the diffusion of a flow is marched."""
        return "explicit"

    def mistakes(self) -> Found:
        yield from super().mistakes()
        if "norm" in self.model_fields_set and self.tolerance is None:
            yield ("norm",), "only with time.tolerance"
        if self.cfl is not None and self.scheme in IMPLICIT:
            yield ("cfl",), f'only for explicit schemes, not "{self.scheme}"'


class Checkpoint(Section):
    """`[checkpoint]`: how often the state of a run is saved, and how many states are kept."""

    every: Interval | None = None
    """From one checkpoint to the next: iterations or steps, or a wall time such as `"30 min"`, `"2
    h"`, `"90 s"`; if not given, there are no checkpoints at intervals."""
    keep: PositiveInteger = 2
    """The number of checkpoints that are kept, the newest ones."""


CHANGE = "_change"
"""The end of a name of `stop.when` that stands for the change of a column."""


def _wall_time(value: Any) -> str:
    """The text of a wall time."""
    seconds = seconds_of(value)
    if seconds is None or not 0.0 < seconds < math.inf:
        raise ValueError(f'must be a wall time, such as "110 min" or "90 s", not {show(value)}')
    return str(value)


WallTime = Annotated[str, pydantic.PlainValidator(_wall_time)]


class Stop(Section):
    """`[stop]`: when a run ends early."""

    when: RowCondition | None = None
    """A march ends at the first row of its history at which this holds: an expression in the
    columns, such as `"probe_0_temperature > 350"`; `NAME_change` is the change of a column over
    `stop.over`, relative to its largest magnitude there. A comparison with a value that is not
    finite, as 1/0, does not hold. See [when a run
    stops](cases.md#when-a-run-stops)."""
    over: Interval | None = None
    """The period of a change: steps, or seconds of the march's own time, as `"0.5 s"`."""
    wall_time: WallTime | None = None
    """After this time from its beginning, such as `"110 min"`, a run saves a checkpoint and ends
    with exit code 75; `--restart` goes on."""

    def mistakes(self) -> Found:
        changes = self.when is not None and any(n.endswith(CHANGE) for n in self.when.names)
        if changes and self.over is None:
            yield ("over",), f"missing: stop.when asks for a change ({CHANGE}), over how long?"
        if self.over is not None and not changes:
            yield ("over",), f"only with a change in stop.when, a name that ends in {CHANGE}"


class Parallel(Section):
    """`[parallel]`: the machine of a run; it never changes the result."""

    backend: Literal["auto", "numpy", "numba", "cupy", "cuda"] = "auto"
    """`auto` takes the fastest backend that works here: a GPU, else numba."""
    threads: PositiveInteger | None = None
    """The threads of numba; if not given, all processors for one process, 1 for each of several."""
    ranks: Literal["auto"] | tuple[PositiveInteger, ...] = "auto"
    """Processes along x, y, z; `auto`: the blocks with the least surface."""
    halo: Literal["auto"] | PositiveInteger = "auto"
    """Layers of ghosts that are exchanged at once: the number of sweeps for each exchange. `auto`:
    the sweeps of one pass, between GPUs of up to seven passes; otherwise 1. See [many
    processes](cases.md#many-processes)."""
    transport: Literal["auto", "peer", "nccl", "mpi", "host"] = "auto"
    """How ghosts move between GPUs: by stores into each other's memory (between hosts by NCCL), by
    NCCL, by MPI from the memory of GPUs, or by MPI through pinned memory of the host; `auto`: by
    the faster of the first two, measured at the start, else by the first that works."""

    @property
    def layers(self) -> int:
        """Layers of ghosts; 1 for "auto", until the length of a pass is known."""
        return 1 if self.halo == "auto" else self.halo


class Units(Section):
    """`[units]`: names of units for the output."""

    temperature: str = "1"
    """The unit of a field, for files and pictures."""
    concentration: str = "1"
    velocity_x: str = "1"
    velocity_y: str = "1"
    velocity_z: str = "1"
    pressure: str = "1"
    length: str = "1"
    """The unit of x, y, z."""
    time: str = "1"
    """The unit of t."""


class Exact(Section):
    """`[reference.exact]`: the exact solution of each field."""

    temperature: SpaceTimeField | None = None
    """The exact solution; the run then reports its error."""
    concentration: SpaceTimeField | None = None
    velocity_x: SpaceTimeField | None = None
    velocity_y: SpaceTimeField | None = None
    velocity_z: SpaceTimeField | None = None
    pressure: SpaceTimeField | None = None


class Profile(Section):
    """`[[reference.profile]]`: values along a line, which a report draws beside the run's own.

    The line goes along an axis, through a point. The values may be measured or published.
    """

    field: FieldName
    """The field of the values."""
    along: Literal["x", "y", "z"]
    """The axis of the line."""
    through: tuple[Real, ...]
    """A point of the line."""
    positions: tuple[Real, ...]
    """Coordinates along the axis."""
    values: tuple[Real, ...]
    """The values of the field at these positions."""
    source: str = ""
    """The source of the values."""

    def mistakes(self) -> Found:
        if len(self.values) != len(self.positions):
            counts = f"{len(self.positions)} positions and {len(self.values)} values"
            yield ("values",), f"must be as many as positions, not {counts}"


class Reference(Section):
    """`[reference]`: exact solutions and measured profiles to compare with."""

    exact: Exact = Exact()
    """The exact solution of each field."""
    profiles: tuple[Profile, ...] = Field(default=(), alias="profile")
    """Values along lines, measured or published, that `heatsolve report` draws beside the run's
    own."""
