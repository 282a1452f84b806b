"""The eigenvectors of the heat operator on a box: which transform expands in them, eigenvalues.

With one conductivity everywhere A = m s + the sum over the axes of -k d2/dx2, each a matrix with
the conductance c = k / h^2 beside its diagonal, whose eigenvectors are sines or cosines

    v_j = sin or cos(theta_k (j + a)),  theta_k = pi (k + values / 2) / intervals,

sines where the low wall has a given value, else cosines, `values` the number of such walls at both
ends; all with the eigenvalue 2 c (1 - cos theta_k). a is the distance of the first unknown from
the low wall in spacings: 0, 1/2 or 1. Source: U. Schumann and R. A. Sweet, J. Comput. Phys. 75
(1988), 123, table I; G. Strang, SIAM Review 41 (1999), 135.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from heatsolve.errors import InputError
from heatsolve.linear import System
from heatsolve.stencil.grid import WALLS, Axis

ALONE = "solver.method: fft runs on one process, not on several"
INVERSE = {1: 1, 2: 3, 3: 2, 4: 4}
"""Types of the sine and cosine transforms, and of those that undo them but for a factor."""


@dataclass(frozen=True)
class Modes:
    """The eigenvectors along one axis.

    `transform`: "dst" or "dct" as in scipy.fft, or "" for the Fourier transform of a periodic
    axis; `kind`: its type. Without norms, the transform and its inverse multiply by `factor`.
    """

    transform: str
    kind: int
    eigenvalues: np.ndarray
    factor: float

    @property
    def periodic(self) -> bool:
        return not self.transform

    @property
    def free(self) -> bool:
        """Whether no wall of the axis has a given value."""
        return self.periodic or (self.transform == "dct" and self.kind <= 2)

    @property
    def inverse(self) -> int:
        """The type of the transform that undoes this one."""
        return INVERSE[self.kind]


def modes_of(system: System) -> tuple[Modes, ...]:
    """The eigenvectors of a system along each axis of its grid, slowest first.

    The coefficients of the system are those of `heat`: a capacity, its factor, and conductances
    and ratios for x, y, z. Raises InputError on several processes, where a coefficient varies in
    space, and for a Robin condition, whose eigenvectors no fast transform knows.
    """
    if system.halo.ranks.size > 1:
        raise InputError(ALONE)
    backend = system.backend
    capacity, s, *pairs = system.coefficients
    if s != 0.0 and not _even(backend.to_host(capacity)):
        raise InputError("solver.method: fft needs the same density * specific_heat everywhere")
    faces = [backend.to_host(array) for array in reversed(pairs[0::2])]
    along = [np.moveaxis(array, number, 0) for number, array in enumerate(faces)]
    return tuple(_of_axis(*given) for given in zip(system.grid.axes, along, strict=True))


def _of_axis(axis: Axis, faces: np.ndarray) -> Modes:
    """The eigenvectors along an axis, from the conductances of its faces; that axis first."""
    faces = np.broadcast_to(faces, (axis.unknowns + 2, *faces.shape[1:]))
    # A node on a wall of given value is a neighbour like any other.
    inside = [axis.periodic or fixed for fixed in axis.fixed]
    within = faces[1 if inside[0] else 2 : faces.shape[0] - (0 if inside[1] else 1)]
    if not _even(within):
        raise InputError("solver.method: fft needs the same conductivity everywhere")
    conductance = float(within.flat[0])
    if axis.periodic:
        angles = 2.0 * np.pi * np.arange(axis.all_unknowns) / axis.intervals
        return Modes("", 0, _eigenvalues(conductance, angles), axis.intervals)
    ends = zip(axis.fixed, faces[[1, -1]], WALLS[axis.name], strict=True)
    values = [fixed or _gives_value(axis, end, conductance, name) for fixed, end, name in ends]
    mixed = values[0] != values[1]
    kind = (3 if mixed else 1) if axis.on_nodes else (4 if mixed else 2)
    angles = np.pi * (np.arange(axis.all_unknowns) + 0.5 * sum(values)) / axis.intervals
    eigenvalues = _eigenvalues(conductance, angles)
    return Modes("dst" if values[0] else "dct", kind, eigenvalues, 2.0 * axis.intervals)


def _gives_value(axis: Axis, end: np.ndarray, conductance: float, name: str) -> bool:
    """Whether a wall has a given value, told by the conductance to it, rather than none at all."""
    if np.all(end == 0.0):
        return False
    if not axis.on_nodes and np.all(end == 2.0 * conductance):
        return True
    raise InputError(f"solver.method: fft cannot solve the Robin condition of the {name} wall")


def _eigenvalues(conductance: float, angles: np.ndarray) -> np.ndarray:
    """2 c (1 - cos theta), without its cancellation at small angles."""
    halves = np.sin(0.5 * angles)
    return 4.0 * conductance * halves * halves


def _even(array: Any) -> bool:
    return bool(np.all(array == array.flat[0]))
