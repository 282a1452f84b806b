"""The walls of heat conduction: one class for each kind of condition, with its keys and formulas.

Every kind is a flux c (T_ghost - T) + f into a unit of volume beside the wall: a conductance c of
the face, a value of the ghost, and a flux f (W/m3) that is added to the source. So one point
function serves inside and at every wall, the matrix is symmetric, and ghosts change only when a
wall's value changes with time.

A new kind is a class here: its name is the key of `boundary.WALL.temperature`, its attributes are
the keys of that table. The case reader, `heatsolve check` and docs/reference.md follow from it.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from heatsolve.case.sections import Section
from heatsolve.case.types import SpaceField, SpaceTimeField
from heatsolve.models.grid import Wall
from heatsolve.models.heat.equations import harmonic_mean
from heatsolve.stencil.expressions import Expression, demand, evaluate, words
from heatsolve.stencil.grid import Axis, Grid
from heatsolve.stencil.language import where


def ratio_line(axis: Axis) -> np.ndarray:
    """The ratio of a full cell to the points' volumes along an axis; one number if all are full."""
    if not any(axis.half_volumes):
        return np.ones(1)
    ratio = np.ones(axis.unknowns + 2)
    for half, index in zip(axis.half_volumes, (1, -2), strict=True):
        if half:
            ratio[index] = 2.0
    return ratio


class WallFaces:
    """The faces at a wall, and the layer of unknowns beside them.

    On a cell grid the wall is half a spacing from the unknown; on a node grid it passes through the
    ghost (if the temperature is given) or through the unknown.
    """

    def __init__(self, wall: Wall, grid: Grid, k: Expression, values: np.ndarray):
        self._wall, self._grid, self._k, self._values = wall, grid, k, values
        self.on_nodes = grid.axes[wall.axis].on_nodes
        self.spacing = grid.axes[wall.axis].spacing
        """h, across the wall (m)."""

    @property
    def conductivity(self) -> np.ndarray:
        """k of the unknowns beside the wall (W/(m K))."""
        return self._wall.beside(self._values)

    @property
    def mean_conductivity(self) -> np.ndarray:
        """The mean of k at the unknowns beside the wall and at the ghosts."""
        return harmonic_mean(self._wall.beside(self._values, ghosts=True), self.conductivity)

    @property
    def conductivity_at_wall(self) -> np.ndarray:
        """k at the wall itself: k half a cell away would cost an order of accuracy."""
        return evaluate(self._grid, "model.conductivity", self._k, positive=True, wall=self._wall)

    @property
    def ratio(self) -> np.ndarray:
        """The ratio of a full cell to the volume of an unknown beside the wall."""
        axis = self._grid.axes[self._wall.axis]
        return self._wall.beside(self._grid.along(self._wall.axis, ratio_line(axis)))

    def evaluate(
        self, key: str, expression: Expression, time: float = 0.0, nonnegative: bool = False
    ) -> np.ndarray:
        """The values of an expression along the wall; `key` is its key in the wall's condition."""
        path = f"boundary.{self._wall.name}.temperature.{key}"
        values = evaluate(self._grid, path, expression, time, wall=self._wall)
        if nonnegative:
            demand(self._grid, values >= 0.0, values, path, "not be negative")
        return values


class WallKind(Section):
    """A kind of condition at a wall; by default the wall lets no heat through."""

    name: ClassVar[str]
    """The key of the kind in a case file."""
    known: ClassVar[dict[str, type["WallKind"]]] = {}
    """All kinds, by their names."""

    def __init_subclass__(cls, name: str, **options: Any):
        super().__init_subclass__(**options)
        cls.name = name
        WallKind.known[name] = cls

    @property
    def ghost(self) -> Expression | None:
        """The temperature that the ghosts hold; None where they hold none."""
        return None

    @property
    def given_flux(self) -> Expression | None:
        """The expression of which f is a multiple; None if the wall has no f.

        It tells the size of the flux, and whether the flux varies in time.
        """
        return None

    def coefficients(self) -> Iterator[Expression]:
        """Yield the expressions that the conductance depends on."""
        yield from ()

    def conductance(self, faces: WallFaces) -> np.ndarray:
        """c, from the unknowns beside the wall to the ghosts (W/(m3 K))."""
        return np.zeros((1,) * faces.conductivity.ndim)

    def flux(self, faces: WallFaces, time: float) -> np.ndarray:
        """f, the given heat flux into a unit of volume (W/m3)."""
        return np.zeros((1,) * faces.conductivity.ndim)

    def summary(self) -> str:
        """The words of `heatsolve check` for the wall."""
        raise NotImplementedError


class Value(WallKind, name="value"):
    """The field at the wall."""

    value: SpaceTimeField

    @property
    def ghost(self) -> Expression:
        return self.value

    @staticmethod
    def on_nodes(mean, h):
        """Conductance to a node on the wall: k / h^2, k the mean of both nodes."""
        return mean / (h * h)

    @staticmethod
    def on_cells(k, h):
        """Conductance to a wall half a cell away: k / (h/2) / h."""
        return 2.0 * k / (h * h)

    def conductance(self, faces: WallFaces) -> np.ndarray:
        if faces.on_nodes:
            return self.on_nodes(faces.mean_conductivity, faces.spacing)
        return self.on_cells(faces.conductivity, faces.spacing)

    def summary(self) -> str:
        return f"temperature {words(self.value)}"


class Gradient(WallKind, name="gradient"):
    """The outward normal derivative of the field."""

    gradient: SpaceTimeField

    @property
    def given_flux(self) -> Expression:
        return self.gradient

    @staticmethod
    def through(k, h, ratio, gradient):
        """k dT/dn through the wall, per unit of the volume beside it; a full cell is `ratio` times
        as large as this volume."""
        return k * gradient * ratio / h

    def flux(self, faces: WallFaces, time: float) -> np.ndarray:
        gradient = faces.evaluate("gradient", self.gradient, time)
        return self.through(faces.conductivity_at_wall, faces.spacing, faces.ratio, gradient)

    def summary(self) -> str:
        gradient = words(self.gradient)
        return "insulated" if gradient == "0" else f"outward derivative dT/dn = {gradient}"


class Robin(WallKind, name="robin"):
    """Exchange of heat with the surroundings: -k dT/dn = h (T - ambient)."""

    h: SpaceField
    """The surface coefficient (W/m2/K); it may not vary in time."""
    ambient: SpaceTimeField
    """The temperature outside."""

    @property
    def ghost(self) -> Expression:
        return self.ambient

    def coefficients(self) -> Iterator[Expression]:
        yield self.h

    @staticmethod
    def on_nodes(h, transfer):
        """Conductance from a node on the wall to the ambient."""
        return transfer / h

    @staticmethod
    def on_cells(k, h, transfer):
        """Conductance to the ambient: half a cell and the surface coefficient in series, over h.

        -k dT/dn = transfer (T_wall - ambient), T_wall eliminated.
        """
        series = 2.0 * k + h * transfer
        return where(transfer == 0.0, 0.0 * series, 2.0 * k * transfer / (h * series))

    def conductance(self, faces: WallFaces) -> np.ndarray:
        transfer = faces.evaluate("robin.h", self.h, nonnegative=True)
        if faces.on_nodes:
            return self.on_nodes(faces.spacing, transfer)
        return self.on_cells(faces.conductivity, faces.spacing, transfer)

    def summary(self) -> str:
        h, ambient = words(self.h), words(self.ambient)
        return f"exchange with surroundings at {ambient}, -k dT/dn = h (T - {ambient}), h = {h}"
