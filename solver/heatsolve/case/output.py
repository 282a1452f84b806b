"""The section `[output]`: the fields, frames, points and pictures that a run writes."""

import itertools
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le
from pydantic import Field, PlainValidator, StrictBool, ValidationInfo

from heatsolve.case.sections import FieldName, Section
from heatsolve.case.types import Found, Integer, Interval, Real, Stride, interval, real, seconds_of
from heatsolve.stencil.expressions import ExpressionError, show


class Line(Section):
    """`[[output.line]]`: points from one place to another, evenly spaced, ends included."""

    start: tuple[Real, ...] = Field(alias="from")
    """The first point."""
    end: tuple[Real, ...] = Field(alias="to")
    """The last point."""
    points: Annotated[Integer, Ge(2), Le(1000)]
    """The number of points."""

    def positions(self) -> list[tuple[float, ...]]:
        """The points along x, y, z."""
        shares = [n / (self.points - 1) for n in range(self.points)]
        ends = list(zip(self.start, self.end, strict=True))
        return [tuple((1.0 - s) * low + s * high for low, high in ends) for s in shares]


def _film(value: Any) -> Any:
    """Whether there is a film, or the fields that have one."""
    if not isinstance(value, bool | list):
        raise ValueError(f"must be true, false or a list of fields, not {show(value)}")
    for item in value if isinstance(value, list) else ():
        if not isinstance(item, str):
            raise ValueError(f"must be a list of names of fields, not of {show(item)}")
    return value if isinstance(value, bool) else tuple(value)


Film = Annotated[bool | tuple[str, ...], PlainValidator(_film)]


def _every(value: Any, info: ValidationInfo) -> int | str | tuple[float, ...]:
    """A number of steps, the text of a time, or a list of times that ascend."""
    if not isinstance(value, list):
        try:
            return interval(value, info)
        except ExpressionError:
            raise ExpressionError(
                'must be a number of steps, such as 100, a time of the march, such as "0.5 s", or '
                f"a list of times, such as [0.1, 0.5], not {show(value)}"
            ) from None
    for item in value:
        if seconds_of(item) is not None:
            raise ExpressionError(
                f"a list of times has numbers of seconds, such as [0.1, 0.5], not {show(item)}"
            )
    times = tuple(real(item, info) for item in value)
    if not times or times[0] < 0.0 or any(b <= a for a, b in itertools.pairwise(times)):
        raise ExpressionError("a list of times must ascend from 0 or later")
    return times


Every = Annotated[int | str | tuple[float, ...], PlainValidator(_every)]

Compression = Literal["gzip", "lzf"]

LINE_TIME, SAMPLE_TIME = "line_time", "sample_time"
"""Columns of the history: the times of lines, and of profiles and spectra."""


def beside(path: Path, end: str) -> Path:
    """The path beside CASE.h5, the file of all points, of a file named CASE and this end."""
    return path.with_name(path.name.removesuffix(".h5") + end)


def film_of(path: Path, field: str, kind: str) -> Path:
    """The path of the film of a field, or of the main field (""), of a file; `kind`: mp4 or gif."""
    return beside(path, f"_{field}.{kind}" if field else f".{kind}")


class OutputFile(Section):
    """`[[output.file]]`: one more file, `CASE_NAME.h5`, of some fields at some points."""

    name: str
    """The NAME in `CASE_NAME.h5`: letters, digits, `-` and `_`."""
    fields: tuple[FieldName, ...] | None = None
    """The fields that are written; by default those of the model, without statistics."""
    every: Every | None = None
    """From one frame to the next, as `output.every`."""
    lower: tuple[Real, ...] | None = None
    """The low corner of a box, whose points are written; the corner of the grid if not given."""
    upper: tuple[Real, ...] | None = None
    """The high corner. Along an axis without a point in the box, the nearest point is written: so
    two corners at z = 0.5 give a plane."""
    stride: Stride = 1
    """From one written point of the box to the next, from its low corner on; one number, or one for
    each axis."""
    precision: Literal["float64", "float32"] | None = None
    """The precision of the numbers in the file; the precision of the fields if not given."""
    compression: Compression | None = None
    """As `output.compression`."""

    def strides(self, dimension: int) -> tuple[int, ...]:
        """The strides along x, y, z."""
        return self.stride if isinstance(self.stride, tuple) else (self.stride,) * dimension

    def mistakes(self) -> Found:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,60}", self.name):
            yield ("name",), f"must be letters, digits, - and _, not {show(self.name)}"
        if self.fields == ():
            yield ("fields",), "must name a field"


class Output(Section):
    """`[output]`: fields, frames and pictures of a run."""

    fields: tuple[FieldName, ...] | None = None
    """The fields that are written: of the model, [derived ones](cases.md#derived-fields), or
    [statistics](cases.md#statistics); if not given, all fields of the model and all statistics."""
    every: Every | None = None
    """From one frame to the next: steps, or seconds of the march's own time such as `"0.5 s"`; or a
    list of times. A time means the first step at or after it; no step is shortened to meet a time.
    The first and the last frame are always written."""
    compression: Compression | None = None
    """Values in the file are compressed without loss: `gzip` is read everywhere, `lzf` is
    faster, and read by h5py only."""
    files: tuple[OutputFile, ...] = Field(default=(), alias="file")
    """More files, of some fields at some points."""
    plot: tuple[FieldName, ...] = ()
    """Fields that are drawn at the end of the run, as `CASE_pressure.png`."""
    film: Film = False
    """`true`, or the fields whose frames become a film, as `CASE.mp4` or `CASE_pressure.mp4`; a GIF
    where there is no encoder. Needs `output.every`."""
    sample: Interval | None = None
    """From one row of a march's history to the next (norm, probes, forces, energies): steps, or
    seconds of its own time such as `"0.01 s"`; see [the history of a
    march](output.md#the-history-of-a-march)."""
    probes: tuple[tuple[Real, ...], ...] = ()
    """Points at which the history of a march holds all fields of the model, and derived ones that
    are written, as `probe_0_pressure`."""
    heat_flow: StrictBool = False
    """For heat conduction: the heat that leaves through each wall by the scheme's own fluxes, in
    columns of the history such as `heat_flow_left`; for a steady case in attributes of the file."""
    lines: tuple[Line, ...] = Field(default=(), alias="line")
    """Lines of points that the history holds with each frame, as `line_0_velocity_x`, at the times
    `line_time`."""

    @property
    def films(self) -> tuple[str, ...]:
        """The fields of films; "" stands for the main field, whose film is named CASE alone."""
        return self.film if isinstance(self.film, tuple) else ("",) * self.film

    @property
    def drawn(self) -> bool:
        """Whether there is anything to draw."""
        return bool(self.plot or self.film)

    def mistakes(self) -> Found:
        if self.fields == ():
            yield ("fields",), "must name a field"
        for n, file in enumerate(self.files):
            if file.name in [other.name for other in self.files[:n]]:
                yield ("file", n, "name"), f"{file.name} is the name of another one, too"
