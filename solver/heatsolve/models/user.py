"""A user's own models: equations of evolution, written as one point function.

    @heatsolve.model(
        "decay", fields=("u",), parameters={"rate": 1.0, "nu": 0.1}, diffusivities=("nu",)
    )
    def decay(at, u, rate, nu, *spacings):
        "du/dt = nu div grad u - rate u"
        return nu * laplacian(u, at, *spacings) - rate * u[at]

A case then says `kind = "decay"`, and may give `rate` and `nu` in its `[model]`. Such functions use
the words of `stencil.language`, and `laplacian`, `diffusion`, `upwind` and others of
`models.transport.equations`. Installed packages offer their models as entry points of the group
"heatsolve.models", by the same name.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal

import heatsolve
from heatsolve.case import load
from heatsolve.case.case import Case, with_keys, with_walls
from heatsolve.case.sections import (
    ZERO,
    Condition,
    Exact,
    Model,
    Reference,
    Section,
    Source,
    Units,
    Wall,
)
from heatsolve.case.types import Found, Real, SpaceField, SpaceTimeField
from heatsolve.errors import InputError
from heatsolve.models import stability
from heatsolve.models.base import Row
from heatsolve.models.transport import equations as transport
from heatsolve.models.transport.case import TransportInitial
from heatsolve.models.transport.convection import SCHEMES, Staged
from heatsolve.stencil import language as points
from heatsolve.stencil.language import Point
from heatsolve.stencil.trace import ARRAY, REAL, PointRuleError, record

TAKEN = frozenset(
    ("x", "y", "z", "t", "time", "kind", "steady", "box", "boxes", "file", "point", "points")
) | {"history", "equations", "mistakes", "model_config", "one_of"}
"""Names that neither a field nor a parameter may have: axes, keys and attributes of sections."""
NAME = re.compile(r"[a-z][a-z0-9_]{,59}")


@dataclass(frozen=True, eq=False)
class Equations:
    """df/dt = rates(f) + source for each of some fields.

    `rates` is the point function: after its index it takes the fields, the parameters, both under
    their names, and the spacings along x, y, z; it gives the rate of each field, in their order.
    """

    name: str
    fields: tuple[str, ...]
    parameters: Mapping[str, float]
    diffusivities: tuple[str, ...]
    rates: Point

    @property
    def text(self) -> str:
        """The first paragraph of the docstring of `rates`, in one line."""
        first, *_ = (inspect.getdoc(self.rates) or "").split("\n\n")
        return " ".join(first.split()).removesuffix(".")


def model(
    name: str,
    *,
    fields: Sequence[str],
    parameters: Mapping[str, float] | None = None,
    diffusivities: Sequence[str] = (),
) -> Callable[[Point], Point]:
    """Register the decorated point function as the model `kind = name`, with these fields.

    `parameters` are keys of `[model]` with their defaults. `diffusivities` names the parameters
    that multiply a Laplacian: they bound the step. Raises ValueError for names that are not
    allowed, and TypeError for a function that does not take the fields and the parameters.
    """

    def register(rates: Point) -> Point:
        args = dict(parameters or {})
        _demand_names(name, fields, args, diffusivities)
        _demand_signature(rates, [*fields, *args])
        case = case_with(Equations(name, tuple(fields), args, tuple(diffusivities), rates))
        load.REGISTERED[name] = lambda table: [case]
        return rates

    return register


class UserModel(Model):
    """A user's own model."""

    convection: ClassVar[str] = ""
    """Its built-in convection: none, so that no stage needs slopes."""


class UserCase(Case):
    """A case of a user's own model."""

    owners = "a model of one's own"
    model_class = "heatsolve.models.user:Evolution"

    @property
    def field_names(self) -> tuple[str, ...]:
        return self.model.equations.fields

    def mistakes(self) -> Found:
        yield from super().mistakes()
        if self.time and self.time.cfl is not None and not self.model.equations.diffusivities:
            sentence = f'needs a model with diffusivities, which "{self.model.kind}" has not'
            yield ("time", "cfl"), sentence
        wraps = len(self.grid.periodic) == len(self.grid.counts)
        if sentence := mistaken_reads(self.model.equations, len(self.grid.counts), wraps):
            yield ("model", "kind"), sentence
        yield from self._mistaken_stages()


def case_with(equations: Equations) -> type[UserCase]:
    """The class of case of a user's own model, with keys for its fields and parameters."""

    def with_fields(section: type[Section], kind: Any, usual: Any) -> Any:
        return with_keys(__name__, section, **dict.fromkeys(equations.fields, (kind, usual)))

    numbers = {name: (Real, value) for name, value in equations.parameters.items()}
    model = with_keys(
        __name__, UserModel, kind=(Literal[equations.name], equations.name), **numbers
    )
    model.equations = equations
    exact = with_fields(Exact, SpaceTimeField | None, None)
    sections = {
        "model": model,
        "initial": with_fields(TransportInitial, SpaceField, ZERO),
        "source": with_fields(Source, SpaceTimeField, ZERO),
        "boundary": with_walls(__name__, with_fields(Wall, Condition | None, None)),
        "units": with_fields(Units, str, "1"),
        "reference": with_keys(__name__, Reference, exact=(exact, exact())),
    }
    keys = {name: (section, section()) for name, section in sections.items()}
    case: type[UserCase] = with_keys(__name__, UserCase, **keys)
    case.kind = equations.name
    return case


class Evolution(Staged):
    """A case of a user's own model put on its grid."""

    @property
    def equations(self) -> Equations:
        return self.case.model.equations

    driven_by_rates = True

    @property
    def numbers(self) -> tuple[float, ...]:
        """The parameters, in their order, and the spacings."""
        args = tuple(getattr(self.case.model, name) for name in self.equations.parameters)
        return (*args, *self.spacings)

    def stage(self) -> Point:
        """The point function of a Runge-Kutta stage."""
        return stage(self.equations)

    @property
    def equation(self) -> str:
        equations, model = self.equations, self.case.model
        numbers = [f"{name} = {getattr(model, name):g}" for name in equations.parameters]
        return "; ".join([equations.text or f"rates of {', '.join(equations.fields)}", *numbers])

    def methods(self) -> Iterator[Row]:
        yield "scheme", SCHEMES[self.case.march.scheme]

    def largest_step(self) -> float:
        """The largest step that is stable for the largest diffusivity alone (s)."""
        time, model = self.case.march, self.case.model
        largest = max((getattr(model, name) for name in self.equations.diffusivities), default=0.0)
        still = (0.0,) * self.grid.dimension
        return stability.largest_step("central", time.scheme, still, (largest,), self.spacings)


@cache
def stage(equations: Equations) -> Point:
    """The point function of one stage: a f_0 + b (f + dt (rates + source)) for each field f.

    Its arguments: the fields at the start of the step and now, the sources, then a, b, dt, the
    parameters and the spacings along x, y, z.
    """
    count = len(equations.fields)

    def advanced(at, *args):
        start, now, sources = (args[n * count : (n + 1) * count] for n in range(3))
        a, b, dt, *numbers = args[3 * count :]
        rates = points.evaluate(equations.rates, at, *now, *numbers)
        rates = rates if isinstance(rates, tuple) else (rates,)
        if len(rates) != count:
            raise InputError(
                f"the model {equations.name} gives {len(rates)} rates for {count} fields"
            )
        each = zip(start, now, sources, rates, strict=True)
        return tuple(
            transport.advanced(f, at, f_0, f_rate + source[at], a, b, dt)
            for f_0, f, source, f_rate in each
        )

    return advanced


def mistaken_reads(equations: Equations, axes: int, wraps: bool) -> str:
    """Why no grid of this number of axes can give the values that `rates` reads; "" if one can.

    Fields have one layer of ghosts, whose corners hold values only if all axes are periodic, which
    `wraps` tells.
    """
    kinds = [ARRAY] * len(equations.fields) + [REAL] * (len(equations.parameters) + axes)
    try:
        tape = record(equations.rates, tuple(kinds), axes)
    except PointRuleError as error:
        return str(error)
    for number, subscript in tape.loads():
        shifts = [abs(place.shift) for place in subscript]
        reads = f"{equations.rates.__name__} reads {equations.fields[number]}"
        if any(place.scale != 1 for place in subscript):
            return f"{reads} at multiples of an index: fields have only one grid"
        if max(shifts) > 1:
            return f"{reads} {max(shifts)} points away: it can read neighbours only"
        if sum(shifts) > 1 and not wraps:
            return f"{reads} at a diagonal neighbour: for that all axes must be periodic"
    return ""


def _demand_names(
    name: str, fields: Sequence[str], parameters: Mapping[str, float], diffusivities: Sequence[str]
) -> None:
    if isinstance(fields, str):
        raise ValueError(f"model {name!r}: fields must be a sequence of names, not a string")
    if not NAME.fullmatch(name.replace("-", "_")) or name in heatsolve.MODELS:
        raise ValueError(f"a model cannot be called {name!r}")
    names = [*fields, *parameters]
    for each in names:
        reason = ""
        if not NAME.fullmatch(each):
            reason = "write up to 60 lower-case letters, digits and _, a letter first"
        elif each in TAKEN:
            reason = "the word has a meaning in every case"
        elif names.count(each) > 1:
            reason = "it is there twice"
        if reason:
            what = "field" if each in fields else "parameter"
            raise ValueError(f"model {name!r}: no {what} can be called {each!r}: {reason}")
    if not fields:
        raise ValueError(f"model {name!r} needs a field")
    for each in diffusivities:
        if each not in parameters:
            raise ValueError(f"model {name!r}: the diffusivity {each!r} is none of its parameters")


def _demand_signature(rates: Point, names: Sequence[str]) -> None:
    """Raise TypeError unless a function takes an index, these names, and then spacings."""
    first = points.dimension(rates) or 1
    taken = list(inspect.signature(rates).parameters)[first : first + len(names)]
    if taken != list(names):
        raise TypeError(
            f"{rates.__name__} must take {', '.join(names)} after its index, in this order, "
            f"and not {', '.join(taken) or 'nothing'}"
        )
