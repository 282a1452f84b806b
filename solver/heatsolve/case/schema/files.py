"""The sections on what comes out, on what it runs, and what it is measured against."""

from typing import Annotated, Any, Literal

from annotated_types import Ge, Le
from pydantic import Field, PlainValidator

from heatsolve.case.schema.section import FieldName, Section
from heatsolve.case.types import (
    Found,
    Integer,
    Interval,
    PositiveInteger,
    Real,
    SpaceTimeField,
    seconds_of,
)
from heatsolve.stencil.expressions import show


class Line(Section):
    """`[[output.line]]`: so many points from one to another, evenly spaced, ends included."""

    start: tuple[Real, ...] = Field(alias="from")
    """Where it begins."""
    end: tuple[Real, ...] = Field(alias="to")
    """Where it ends."""
    points: Annotated[Integer, Ge(2), Le(1000)]
    """How many points it has."""

    def positions(self) -> list[tuple[float, ...]]:
        """Along x, y, z."""
        shares = [n / (self.points - 1) for n in range(self.points)]
        ends = list(zip(self.start, self.end, strict=True))
        return [tuple((1.0 - s) * low + s * high for low, high in ends) for s in shares]


def _film(value: Any) -> Any:
    """Whether there is a film, or of which fields."""
    if not isinstance(value, bool | list):
        raise ValueError(f"must be true, false or a list of fields, not {show(value)}")
    for item in value if isinstance(value, list) else ():
        if not isinstance(item, str):
            raise ValueError(f"must be a list of names of fields, not of {show(item)}")
    return value if isinstance(value, bool) else tuple(value)


Film = Annotated[bool | tuple[str, ...], PlainValidator(_film)]


class Output(Section):
    """`[output]`: what is written and drawn, and after how many steps each time."""

    fields: tuple[FieldName, ...] | None = None
    """Those that are written; all if not given."""
    every: PositiveInteger | None = None
    """Steps from one frame to the next; the first and the last one are always written."""
    plot: tuple[FieldName, ...] = ()
    """Fields that are drawn when the run is at its end, as `CASE_pressure.png`."""
    film: Film = False
    """`true`, or fields of which the frames become a film, as `CASE.mp4` or `CASE_pressure.mp4`; a
    GIF where there is no encoder. Needs `output.every`."""
    sample: Interval | None = None
    """From one row of a march's history to the next (norm, probes, forces, energies): steps, or
    seconds of its own time such as `"0.01 s"`; see [the history of a
    march](output.md#the-history-of-a-march)."""
    probes: tuple[tuple[Real, ...], ...] = ()
    """Points at which the history of a march holds all fields, as `probe_0_pressure`."""
    lines: tuple[Line, ...] = Field(default=(), alias="line")
    """Lines of points that the history holds with each frame, as `line_0_velocity_x`, at the times
    `line_time`."""

    @property
    def sample_steps(self) -> int | None:
        """Steps from one row of the history to the next."""
        return self.sample if isinstance(self.sample, int) else None

    @property
    def sample_seconds(self) -> float | None:
        """Time of the march from one row of the history to the next (s)."""
        return seconds_of(self.sample)

    @property
    def films(self) -> tuple[str, ...]:
        """The fields of films; "" stands for the main one, in a film without its name."""
        return self.film if isinstance(self.film, tuple) else ("",) * self.film

    @property
    def drawn(self) -> bool:
        """Whether there is anything to draw."""
        return bool(self.plot or self.film)

    def mistakes(self) -> Found:
        if self.fields == ():
            yield ("fields",), "must name a field"


class Checkpoint(Section):
    """`[checkpoint]`: how often the state of a run is saved, and how many states are kept."""

    every: Interval | None = None
    """From one checkpoint to the next: iterations or steps, or a wall time such as `"30 min"`, `"2
    h"`, `"90 s"`; without it none is made at intervals."""
    keep: PositiveInteger = 2
    """So many are kept, the newest ones."""

    @property
    def every_steps(self) -> int | None:
        """Iterations or steps from one checkpoint to the next."""
        return self.every if isinstance(self.every, int) else None

    @property
    def every_seconds(self) -> float | None:
        """Seconds of wall time from one checkpoint to the next."""
        return seconds_of(self.every)


class Parallel(Section):
    """`[parallel]`: what the run runs on; it never changes the result."""

    backend: Literal["auto", "numpy", "numba", "cupy", "cuda"] = "auto"
    """`auto` takes the fastest one that works here: a GPU, else numba."""
    threads: PositiveInteger | None = None
    """Of numba: all processors if not given; one for each of many processes."""
    ranks: Literal["auto"] | tuple[PositiveInteger, ...] = "auto"
    """Processes along x, y, z; `auto`: the blocks with the least surface."""
    halo: Literal["auto"] | PositiveInteger = "auto"
    """Layers of ghosts that are exchanged at once, and so sweeps for each exchange; `auto`: as
    many as a machine makes in one pass, else 1. See [many processes](cases.md#many-processes)."""
    transport: Literal["auto", "nccl", "mpi", "host"] = "auto"
    """What moves ghosts between GPUs: NCCL, MPI of memory of GPUs, MPI through pinned memory of
    the host, or the first of these that works."""

    @property
    def layers(self) -> int:
        """Layers of ghosts to begin with: "auto" may find more, where passes are made of sweeps."""
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
    """`[[reference.profile]]`: values of a field along a line that a report draws beside its own.

    The line goes along an axis, through a point. They may be measured, or of the literature.
    """

    field: FieldName
    """Whose values they are."""
    along: Literal["x", "y", "z"]
    """The axis of the line."""
    through: tuple[Real, ...]
    """A point of it."""
    positions: tuple[Real, ...]
    """Coordinates along the axis."""
    values: tuple[Real, ...]
    """Of the field there."""
    source: str = ""
    """Who says so."""

    def mistakes(self) -> Found:
        if len(self.values) != len(self.positions):
            counts = f"{len(self.positions)} positions and {len(self.values)} values"
            yield ("values",), f"must be as many as positions, not {counts}"


class Reference(Section):
    """`[reference]`: what the result is measured against."""

    exact: Exact = Exact()
    """The exact solution of each field."""
    profiles: tuple[Profile, ...] = Field(default=(), alias="profile")
    """Values along lines, measured or of the literature, that `heatsolve report` draws beside the
    run's own."""
