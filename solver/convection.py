"""A transport case put on its grid: the arrays that the point functions of `transport` take."""

from functools import cached_property
from typing import Any

from heatsolve import transport
from heatsolve.backends import Backend
from heatsolve.case import Case
from heatsolve.evaluate import evaluate
from heatsolve.grid import Grid
from heatsolve.points import Point, copy
from heatsolve.ranks import Ranks
from heatsolve.walled import Walled


class Convection(Walled):
    """The quantities of a transport case on a backend, and what carries them.

    `own_velocity` tells whether they are their own velocity.
    """

    def __init__(
        self, case: Case, backend: Backend, grid: Grid | None = None, ranks: Ranks | None = None
    ):
        super().__init__(case, backend, grid, ranks)
        self.own_velocity = case.model.velocity == "self"

    @property
    def coefficients(self) -> tuple[float, ...]:
        """The diffusivity."""
        return (self.case.model.diffusivity,)

    def stage(self) -> Point:
        """The point function of a Runge-Kutta stage."""
        model, count = self.case.model, len(self.names)
        given = self.grid.dimension, count, model.convection, self.own_velocity
        return transport.stage(*given, model.diffusivity > 0.0)

    @cached_property
    def velocities(self) -> tuple[Any, ...]:
        """Along x, y, z; none where the quantities are their own."""
        if self.own_velocity:
            return ()
        given = self.case.model.velocity
        if given is None:
            return tuple(self.backend.zeros((1,) * self.grid.dimension) for _ in self.grid.axes)
        return tuple(
            self.backend.to_device(evaluate(self.grid, f"model.velocity.{n}", expression))
            for n, expression in enumerate(given)
        )

    def largest_step(self) -> float:
        """The largest stable step for the largest speeds at t = 0 (asks all processes).

        Raises InputError where no step is stable for the scheme.
        """
        if self.own_velocity:
            return self.stable_step(self.largest_magnitudes(self.names))
        reduce, interior = self.backend.reduce, self.grid.interior
        magnitudes = [
            (reduce("max", transport.against, interior, v), reduce("max", copy, interior, v))
            for v in self.velocities
        ]
        return self.stable_step(magnitudes)
