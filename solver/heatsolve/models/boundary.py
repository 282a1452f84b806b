"""Walls: what each condition means for the face between a point and the ghost beyond it.

Every condition takes one form, a flux c (T_ghost - T) + f into a unit of volume beside the wall:
a conductance c of the face, a value for the ghost, and a flux f (W/m3) to add to the source. So
one point function serves inside and at every wall, the matrix stays symmetric, and ghosts change
only when a wall's value changes with time.

h is the spacing across the wall, k the conductivity beside it. On a cell grid the wall is half a
spacing from the unknown; on a node grid it passes through the ghost (`value`) or the unknown.
"""

from heatsolve.stencil.language import where


def value_on_cells(k, h):
    """Conductance to a wall of given temperature half a cell away: k / (h/2) / h."""
    return 2.0 * k / (h * h)


def value_on_nodes(k_mean, h):
    """Conductance to a wall node of given temperature: k / h^2, k the mean of both nodes'."""
    return k_mean / (h * h)


def robin_on_cells(k, h, transfer):
    """Conductance to the ambient: half a cell and the surface coefficient in series, over h.

    -k dT/dn = transfer (T_wall - ambient), T_wall eliminated.
    """
    series = 2.0 * k + h * transfer
    return where(transfer == 0.0, 0.0 * series, 2.0 * k * transfer / (h * series))


def robin_on_nodes(h, transfer):
    """Conductance from a node on the wall to the ambient: transfer / h."""
    return transfer / h


def gradient_flux(k, h, ratio, gradient):
    """The flux k dT/dn through the wall, for a unit of the volume beside it: k g r / h.

    `gradient` is the outward normal derivative, `ratio` that of a full cell to the volume.
    """
    return k * gradient * ratio / h
