"""A case: all its sections, and the rules between sections."""

import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, create_model

from heatsolve.case.derived import Derived, derived_fields, unit_of
from heatsolve.case.output import Output
from heatsolve.case.sections import (
    FIELDS,
    About,
    Boundary,
    Checkpoint,
    Grid,
    Initial,
    Model,
    Parallel,
    Reference,
    Section,
    Solver,
    Source,
    Stop,
    Time,
    Units,
    Wall,
)
from heatsolve.case.statistics import Statistic, Statistics
from heatsolve.case.statistics import unit_of as unit_of_statistic
from heatsolve.case.toml import ChangedDefault, KeyPath, dotted, lines_of, place_of, resolved
from heatsolve.case.types import Constants, Found, real
from heatsolve.stencil.data import Data
from heatsolve.stencil.expressions import Expression, show, suggestion
from heatsolve.stencil.grid import TOUCH, WALLS

SWEPT = ("jacobi", "sor", "chebyshev")
"""Methods that can make several sweeps without data from other processes."""
TRANSIENT = "only for a transient case (model.steady = false)"
SIDES = {side: axis for axis, walls in WALLS.items() for side in walls}


@dataclass(frozen=True)
class Origin:
    """The text and the overrides that a case was read from, to say where a key was given.

    They are no part of the meaning of a case: two cases may be equal though their texts differ.
    """

    text: str = field(compare=False)
    name: str = field(compare=False)
    overrides: tuple[tuple[KeyPath, str], ...] = field(compare=False)
    note: str = field(default="", compare=False)
    """A sentence on the choice of the file."""

    def place_of(self, key: str) -> str:
        """File and line of a dotted key, or the override that gave it."""
        path = tuple(int(part) if part.isdigit() else part for part in key.split("."))
        return place_of(path, lines_of(self.text), self.name, self.overrides).words


class Case(Section):
    """A whole case file. `[constants]` comes first, because expressions in other sections use it.

    It is validated and frozen. A model narrows its sections, and adds its own rules to `mistakes`.
    """

    kind: ClassVar[str]
    """Its `model.kind`; of a user's own model its name."""
    scheme: ClassVar[str | None] = None
    """Its `model.scheme`, of a flow."""
    owners: ClassVar[str]
    """The words for these cases in a message: a key is `only for` them."""
    model_class: ClassVar[str]
    """Where the class of its model is, as `package.module:Class`."""

    constants: Constants = Field(default_factory=dict)
    """Names for numbers in expressions; each may use earlier ones."""
    schema_version: Annotated[Literal[1], BeforeValidator(real)] = Field(default=1, alias="schema")
    """The version of this format."""
    about: About = Field(default=About(), alias="case")
    model: Model
    grid: Grid
    initial: Initial = Initial()
    source: Source = Source()
    boundary: Boundary = Boundary()
    solver: Solver = Solver()
    time: Time | None = None
    output: Output = Output()
    statistics: Statistics = Statistics()
    checkpoint: Checkpoint = Checkpoint()
    stop: Stop = Stop()
    parallel: Parallel = Parallel()
    units: Units = Units()
    reference: Reference = Reference()

    _name: str = PrivateAttr("case")
    _text: str = PrivateAttr("")
    _origin: Origin | None = PrivateAttr(None)
    _arrays: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its file, without the end."""
        return self._name

    @property
    def text(self) -> str:
        """TOML that repeats the run without any override."""
        return self._text

    @property
    def recorded(self) -> str:
        """The text for a file, with values of keys whose defaults differed in earlier versions."""
        return resolved(self.text, self.changed_defaults())

    @property
    def origin(self) -> Origin | None:
        """The text and the overrides that it was read from."""
        return self._origin

    @property
    def arrays(self) -> Mapping[str, Any]:
        """Arrays that were given from Python, by the digests that stand for them in the text."""
        return self._arrays

    def with_arrays(self, arrays: Mapping[str, Any]) -> "Case":
        """The same case with these arrays."""
        case = self.model_copy()
        case._arrays = dict(arrays)
        return case

    def data(self) -> Iterator[tuple[str, Data]]:
        """Yield the fields that are data, each with its dotted key."""
        for path, expression in _expressions(self):
            lacking = path[0] == "initial" and len(path) == 2 and path[1] not in self.field_names
            if isinstance(expression, Data) and not lacking:
                yield dotted(path), expression

    def digests(self) -> dict[str, str]:
        """The digests of the fields that are data, by their keys, in a run that has read them."""
        return {key: data.digest for key, data in self.data()}

    def altered(self, **sections: Mapping[str, Any]) -> Self:
        """The case with other values of keys in these sections, which are not validated."""
        new = {name: getattr(self, name).model_copy(update=keys) for name, keys in sections.items()}
        return self.model_copy(update=new)

    def named(self, name: str, text: str, origin: Origin | None) -> "Case":
        """The same case with a name, a text and an origin."""
        case = self.model_copy()
        case._name, case._text, case._origin = name, text, origin
        return case

    @property
    def march(self) -> Time:
        """The section `[time]` of a case that marches in time."""
        assert self.time is not None
        return self.time

    # ---- properties of a model ----

    @property
    def field_names(self) -> tuple[str, ...]:
        """The fields of the model."""
        raise NotImplementedError

    @property
    def obstacles(self) -> tuple[Any, ...]:
        """The bodies in a flow."""
        return ()

    @property
    def diffusivities(self) -> dict[str, float]:
        """The diffusivity of each quantity that a flow carries along."""
        return {}

    @property
    def has_jumps(self) -> bool:
        """Whether coefficients of its linear systems vary in space."""
        return False

    @property
    def velocity_changes(self) -> bool:
        """Whether the velocity that limits a step changes in time."""
        return False

    def changed_defaults(self) -> Iterator[ChangedDefault]:
        """Yield the keys that have an effect here, and had another default in earlier versions."""
        yield from ()

    # ---- consequences of these properties ----

    @property
    def norm_words(self) -> str:
        """The norm in the history of a run, in words."""
        if self.time is None or self.model.steady:
            return f"{self.solver.norm} of the {self.solver.monitor}"
        if self.time.tolerance is None:
            return "l2 of the rate of change"
        return {"max": "largest rate of change", "sum-change": "change of the sum"}[self.time.norm]

    @property
    def velocity_names(self) -> tuple[str, ...]:
        """The fields that are components of a velocity."""
        return tuple(name for name in self.field_names if name.startswith("velocity"))

    @property
    def derived(self) -> dict[str, Derived]:
        """The fields that may be written besides the model's fields, by their names."""
        names, velocities = self.field_names, self.velocity_names
        conducts, closed = self.kind == "heat", self.scheme == "staggered"
        made = derived_fields(names, velocities, self.grid.axes, conducts, closed)
        return {name: derived for name, derived in made.items() if name not in names}

    @property
    def statistic_fields(self) -> dict[str, Statistic]:
        """The statistics that may be written, by their names."""
        return self.statistics.fields

    @property
    def written(self) -> tuple[str, ...]:
        """The fields in the file of all points; probes read them besides the model's fields."""
        return self.output.fields or (*self.field_names, *self.statistic_fields)

    @property
    def in_files(self) -> set[str]:
        """The fields that some file of the run holds, by `output.fields` or `fields` of a file."""
        return {*self.written, *(name for file in self.output.files for name in file.fields or ())}

    @property
    def probed(self) -> tuple[str, ...]:
        """The fields that probes and lines hold: the model's, and others that are written."""
        return tuple(dict.fromkeys((*self.field_names, *self.written)))

    @property
    def all_units(self) -> dict[str, str]:
        """The units of all fields, of the axes and of time."""
        units = self.units.model_dump()
        units |= {name: unit_of(derived, units) for name, derived in self.derived.items()}
        made = self.statistic_fields.items()
        return units | {name: unit_of_statistic(statistic, units) for name, statistic in made}

    @property
    def needed_walls(self) -> list[str]:
        """The walls that need a condition."""
        return needed_walls(self.grid)

    def condition(self, field: str, side: str) -> Any:
        """The condition of a field at a wall; None where it needs none."""
        return getattr(getattr(self.boundary, side), field)

    def conditions(self) -> Iterator[tuple[KeyPath, str, Any]]:
        """Yield the path, the field and the condition of each condition at a wall."""
        for side in self.needed_walls:
            wall = getattr(self.boundary, side)
            for name in self.field_names if wall is not None else ():
                if (condition := getattr(wall, name)) is not None:
                    yield ("boundary", side, name), name, condition

    # ---- rules ----

    def mistakes(self) -> Found:
        given = {side for side in SIDES if getattr(self.boundary, side) is not None}
        yield from wall_mistakes(self.grid, given)
        yield from self._mistaken_expressions()
        yield from self._mistaken_fields(given)
        yield from self._mistaken_output()
        yield from self._mistaken_boxes()
        if self.model.steady:
            steps: dict[KeyPath, Any] = {
                ("time",): self.time,
                ("stop", "when"): self.stop.when,
                ("statistics",): self.statistics.fields or self.statistics.recorded,
            }
            yield from ((path, TRANSIENT) for path, value in steps.items() if value)
        elif not self.time:
            yield ("time",), "missing, a transient case needs it"
        if self.output.heat_flow and self.kind != "heat":
            yield ("output", "heat_flow"), 'only for model.kind = "heat"'
        if self.parallel.layers > 1 and not (self.time and self.time.scheme == "explicit"):
            method = "jacobi" if self.solver.update else self.solver.method
            if method not in SWEPT:
                why = ", which is for one process" if method == "fft" else ""
                yield ("parallel", "halo"), f'must be 1 with method "{method}"{why}'

    def _mistaken_expressions(self) -> Found:
        """Yield expressions in missing axes, or in time if steady, and numbers out of range."""
        for path, expression in _expressions(self):
            if path[0] == "stop":  # its names are columns of the history
                continue
            if isinstance(expression, Data):  # its file tells the axes along which it varies
                continue
            for name in sorted(expression.names.difference(self.grid.axes)):
                if name != "t":
                    yield path, f"the case has no {name} axis"
                elif self.model.steady:
                    yield path, "t has no meaning in a steady case"
            if not expression.names:
                value = abs(float(expression()))
                if self.solver.precision == "float32":
                    if 0.0 < value < 2.0**-126 or 2.0**128 <= value < math.inf:
                        sentence = "float32 does not hold it (1.2e-38 to 3.4e38); take other units"
                        yield path, f'{sentence}, or solver.precision = "float64"'
                elif 0.0 < value < 2.0**-1022:
                    yield path, "float64 holds no digits below 2.2e-308; take other units"

    def _mistaken_fields(self, walls: Collection[str]) -> Found:
        """Yield fields that the model does not have, and missing conditions of its own fields."""
        own = self.field_names
        sections: list[tuple[KeyPath, Section]] = [
            (("initial",), self.initial),
            (("source",), self.source),
            (("reference", "exact"), self.reference.exact),
            *[(("boundary", side), getattr(self.boundary, side)) for side in walls],
        ]
        for path, section in sections:
            for name in FIELDS:
                if name in section.model_fields_set and name not in own:
                    yield (*path, name), f"the model has no such field (it has {', '.join(own)})"
        boxes, points, written = self.initial.boxes, self.source.points, self.output.fields or ()
        profiles = self.reference.profiles
        given: list[tuple[KeyPath, str]] = [
            *[(("initial", "box", n, "field"), box.field) for n, box in enumerate(boxes)],
            *[(("source", "point", n, "field"), point.field) for n, point in enumerate(points)],
        ]
        shown: list[tuple[KeyPath, str]] = [
            *[(("reference", "profile", n, "field"), p.field) for n, p in enumerate(profiles)],
            *[
                (("statistics", "integral", m, "fields", n), name)
                for m, integral in enumerate(self.statistics.integrals)
                for n, name in enumerate(integral.fields)
            ],
            *[
                (("statistics", *place, n), name)
                for place, names in self.statistics.recorded.items()
                for n, name in enumerate(names)
            ],
            *[(("output", "fields", n), name) for n, name in enumerate(written)],
            *[
                (("output", "file", m, "fields", n), name)
                for m, file in enumerate(self.output.files)
                for n, name in enumerate(file.fields or ())
            ],
            *self._drawn(),
        ]
        sampled: list[tuple[KeyPath, str]] = [
            (("statistics", *place), name)
            for place, _, statistic in self.statistics.named
            for name in dict.fromkeys(statistic.sources)
        ]
        named_all = [name for _, name in (*shown, *sampled)]
        derived = self.derived if not set(own).issuperset(named_all) else {}
        every = (*own, *derived, *self.statistic_fields)
        named = [(*each, own) for each in given]
        named += [(*each, (*own, *derived)) for each in sampled]
        named += [(*each, every) for each in shown]
        for path, name, known in named:
            if name not in known:
                key, _, source = name.partition("_")
                sampled_too = known is every and source in (*own, *derived)
                if sampled_too and key in ("mean", "variance", "minimum", "maximum"):
                    yield path, f"is no field of the case: name {source} in statistics.{key}"
                    continue
                near = suggestion(name, known) or f" (it has {', '.join(own)})"
                yield path, f"the model has no {name}{near}"
        for place, name, _ in self.statistics.named:
            if name in own or name in self.derived:
                yield ("statistics", *place), f"{name} is a field of the model"
        for side in set(walls).intersection(self.needed_walls):
            for name in self._fields_at_walls():
                if getattr(getattr(self.boundary, side), name) is None:
                    yield ("boundary", side, name), "missing, the wall needs a condition for it"

    def _fields_at_walls(self) -> Collection[str]:
        """The fields that need a condition at every wall."""
        return self.field_names

    def _drawn(self) -> list[tuple[KeyPath, str]]:
        """The fields of pictures and films, and where they stand."""
        output = self.output
        films = output.film if isinstance(output.film, tuple) else ()
        return [
            (("output", key, n), name)
            for key, names in (("plot", output.plot), ("film", films))
            for n, name in enumerate(names)
        ]

    def _mistaken_output(self) -> Found:
        """Yield pictures that cannot be drawn, and points to be read that are outside the grid."""
        grid, output, steady = self.grid, self.output, self.model.steady
        for path, name in self._drawn():
            known = (*self.field_names, *self.derived, *self.statistic_fields)
            if name in known and name not in self.written:
                yield path, f"{name} is not among output.fields, and cannot be drawn"
        if output.film and (steady or output.every is None):
            need = "output.every, the steps from one frame to the next"
            needs = "a transient case (model.steady = false)" if steady else need
            yield ("output", "film"), f"needs {needs}"
        points: list[tuple[KeyPath, Sequence[float]]] = [
            (("output", "probes", n), point) for n, point in enumerate(output.probes)
        ]
        for n, line in enumerate(output.lines):
            points += [(("output", "line", n, key), end) for key, end in
                       (("from", line.start), ("to", line.end))]  # fmt: skip
        for path, _ in points if steady else ():
            yield path, TRANSIENT
        points = [] if steady else points
        yield from self._mistaken_files()
        yield from self._mistaken_integrals()
        for n, profile in enumerate(self.reference.profiles):
            here = ("reference", "profile", n)
            points.append(((*here, "through"), profile.through))
            if profile.along not in grid.axes:
                yield (*here, "along"), f"the case has no {profile.along} axis"
                continue
            number = grid.axes.index(profile.along)
            low, high = grid.lower[number], grid.upper[number]
            for m, at in enumerate(profile.positions):
                if not low <= at <= high:
                    outside = f"{show(at)} is outside {show(low)} to {show(high)}"
                    yield (*here, "positions", m), f"{outside} along {profile.along}"
        for path, point in points:
            yield from outside_grid(path, point, grid, grid.lower, grid.upper)

    def _mistaken_files(self) -> Found:
        """Yield boxes and strides of files that do not fit the grid."""
        grid = self.grid
        for n, file in enumerate(self.output.files):
            here = ("output", "file", n)
            for key, corner in (("lower", file.lower), ("upper", file.upper)):
                if corner is not None:
                    yield from outside_grid((*here, key), corner, grid, grid.lower, grid.upper)
            low, high = file.lower or grid.lower, file.upper or grid.upper
            if any(a > b for a, b in zip(low, high, strict=False)):
                yield (*here, "upper"), "must not be below lower"
            if len(file.strides(grid.dimension)) != grid.dimension:
                yield (*here, "stride"), f"must be one number, or a list of {grid.dimension}"

    def _mistaken_integrals(self) -> Found:
        """Yield boxes of integrals that do not fit the grid, and missing axes and walls."""
        grid = self.grid
        for kind, axis in self.statistics.recorded:
            if axis not in grid.axes:
                yield ("statistics", kind, axis), f"the case has no {axis} axis"
            elif kind == "spectrum" and axis not in grid.periodic:
                yield ("statistics", kind, axis), f"needs a periodic axis, and {axis} has walls"
        for n, integral in enumerate(self.statistics.integrals):
            here = ("statistics", "integral", n)
            for key, corner in (("lower", integral.lower), ("upper", integral.upper)):
                if corner is not None:
                    yield from outside_grid((*here, key), corner, grid, grid.lower, grid.upper)
            sizes = (high - low for low, high in zip(grid.lower, grid.upper, strict=True))
            ends = zip(*integral.ends(grid), sizes, strict=False)
            if any(low - high > TOUCH * size for low, high, size in ends):
                yield (*here, "upper"), "must not be below lower"
            if integral.wall is not None and integral.wall not in self.needed_walls:
                yield (*here, "wall"), f"the case has no wall {integral.wall}"

    def _mistaken_boxes(self) -> Found:
        """Yield boxes of initial values that do not fit the grid, or times beyond the march."""
        for n, box in enumerate(self.initial.boxes):
            if any(len(corner) != self.grid.dimension for corner in box.corners):
                yield ("initial", "box", n), f"needs {self.grid.dimension} numbers for each corner"
            for m, time in enumerate(box.again):
                if self.time and time >= self.time.end:
                    yield ("initial", "box", n, "again", m), "must be before time.end"

    def _mistaken_stages(self) -> Found:
        """Yield keys that mean nothing to the stages of a Runge-Kutta scheme."""
        here = f'with model.kind = "{self.model.kind}"'
        if self.time and self.time.scheme not in ("explicit", "rk2", "rk3"):
            yield ("time", "scheme"), f'must be "explicit", "rk2" or "rk3" {here}'
        if self.solver.precision == "mixed":
            yield ("solver", "precision"), f'must be "float64" or "float32" {here}'
        for key in sorted(self.solver.model_fields_set - {"precision", "check_every"}):
            yield ("solver", key), f"has no effect {here}: it solves no system"
        if self.parallel.layers > 1:
            yield ("parallel", "halo"), f"must be 1 {here}"
        kinds: dict[KeyPath, set[bool]] = {}
        for path, _, condition in self.conditions():
            kinds.setdefault(path[:2], set()).add(condition.value is not None)
        for path, values in kinds.items():
            if self.grid.kind == "nodes" and len(values) > 1:
                yield path, "on nodes, all fields of a wall must have values, or none"


def with_keys(module: str, section: type[Any], **keys: Any) -> type[Any]:
    """A section with more keys, or with other values of its own, made for a module.

    The new class is an attribute of the module, so that cases can be pickled.
    """
    name = f"Own{section.__name__}"
    doc = section.__doc__
    made = create_model(name, __base__=section, __doc__=doc, __module__=module, **keys)
    setattr(sys.modules[module], name, made)
    return made


def with_walls(module: str, wall: type[Wall]) -> type[Boundary]:
    """The section `[boundary]` with walls of this class."""
    walls = dict.fromkeys(Boundary.model_fields, (wall | None, None))
    return with_keys(module, Boundary, **walls)


def needed_walls(grid: Grid) -> list[str]:
    """The walls of a grid that need a condition."""
    bounded = [axis for axis in grid.axes if axis not in grid.periodic]
    return [side for side, axis in SIDES.items() if axis in bounded]


def wall_mistakes(grid: Grid, given: Collection[str]) -> Found:
    """Yield the walls that lack a condition, and the walls that have a needless condition."""
    needed = needed_walls(grid)
    for side, axis in SIDES.items():
        path = ("boundary", side)
        if side in needed and side not in given:
            yield path, "missing, every wall that is not periodic needs a condition"
        elif side in given and side not in needed:
            reason = f"{axis} is periodic and has no walls"
            yield path, reason if axis in grid.axes else f"the case has no {axis} axis"


def outside_grid(
    path: KeyPath, point: Sequence[float], grid: Grid, low: Sequence[float], high: Sequence[float]
) -> Found:
    """Yield why a point does not lie in a grid between `low` and `high`."""
    if len(point) != grid.dimension:
        yield path, f"must have length {grid.dimension}, as the grid has axes"
        return
    for axis, at, first, last in zip(grid.axes, point, low, high, strict=True):
        if not first <= at <= last:
            yield path, f"{show(at)} is outside {show(first)} to {show(last)} along {axis}"


def _expressions(section: Section, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Expression]]:
    """Yield every expression of a section and of the sections inside it, with its key path."""
    for key, name in type(section).attributes().items():
        value = getattr(section, name)
        if isinstance(value, Expression):
            yield (*path, key), value
        elif isinstance(value, tuple):
            for number, item in enumerate(value):
                if isinstance(item, Expression):
                    yield (*path, key, number), item
                elif isinstance(item, Section):
                    yield from _expressions(item, (*path, key, number))
        elif isinstance(value, Section):
            yield from _expressions(value, (*path, key))
