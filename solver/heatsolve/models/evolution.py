"""A case of a user's own model put on its grid: the arrays that its point function takes."""

from functools import cache
from typing import Any

from heatsolve.errors import InputError
from heatsolve.models import stability
from heatsolve.models.base import Stepper
from heatsolve.models.multifield import MultiFieldModel
from heatsolve.models.transport import equations as transport
from heatsolve.models.transport.runge_kutta import RungeKutta
from heatsolve.models.user import Equations
from heatsolve.stencil import language as points
from heatsolve.stencil.language import Point


class Evolution(MultiFieldModel):
    """Fields whose rates of change are a point function of a user's own; see `models`."""

    velocities: tuple[Any, ...] = ()
    wall_lines: tuple[Any, ...] = ()
    """Both are the affair of the point function."""

    def stepper(self, time: float, step: float) -> Stepper:
        return RungeKutta(self, time, step)

    @property
    def equations(self) -> Equations:
        assert self.case.model.equations is not None
        return self.case.model.equations

    @property
    def driven_by_rates(self) -> bool:
        return True

    @property
    def numbers(self) -> tuple[float, ...]:
        """The parameters, in their order, and the spacings."""
        given = tuple(getattr(self.case.model, name) for name in self.equations.parameters)
        return (*given, *self.spacings)

    def stage(self) -> Point:
        """The point function of a Runge-Kutta stage."""
        return stage(self.equations)

    def largest_step(self) -> float:
        """The largest step that is stable for the largest diffusivity alone (s)."""
        time, model = self.case.time, self.case.model
        assert time is not None
        largest = max((getattr(model, name) for name in self.equations.diffusivities), default=0.0)
        still = [0.0] * self.grid.dimension
        return stability.largest_step("central", time.scheme, still, largest, self.spacings)


@cache
def stage(equations: Equations) -> Point:
    """The point function of one stage: a f_0 + b (f + dt (rates + source)) for each field f.

    Its arguments: the fields at the start of the step, those now, the sources, then a, b, dt, the
    parameters and the spacings along x, y, z.
    """
    count = len(equations.fields)

    def advanced(at, *given):
        start, now, sources = (given[n * count : (n + 1) * count] for n in range(3))
        a, b, dt, *numbers = given[3 * count :]
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
