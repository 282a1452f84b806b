"""The stream function psi of a plane flow: u = d psi/dy, v = -d psi/dx.

Its isolines are streamlines. It is 0 in the corner left and bottom, and its difference between two
corners of a cell is the flow through the face between them. So the host sums the flows along the
bottom, then upwards along each column, in double precision. Processes add one after another, in the
order and with the bits of a single process.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from heatsolve.models.derived import with_ghosts

if TYPE_CHECKING:
    from heatsolve.models.flow.staggered import Staggered


def stream_function(problem: "Staggered", fields: Mapping[str, Any]) -> Any:
    """psi at the centres of cells, the mean of psi at their corners (asks all processes)."""
    backend, ranks, grid = problem.backend, problem.ranks, problem.grid
    (low, high), (left, right) = (axis.own for axis in grid.axes)
    v, u = (backend.to_host(with_ghosts(problem, fields[name])) for name in problem.components)
    height, width = grid.axes[0].spacing, grid.axes[1].spacing
    rows, columns = (axis.block or (0, axis.all_unknowns) for axis in grid.axes)
    through_bottom = v[low - 1, left:right].astype(float) * width
    parts = ranks.gather((rows[0], columns[0], through_bottom))
    bottom = [part for row, _, part in sorted(parts, key=lambda part: part[:2]) if row == 0]
    edge = np.cumsum(np.concatenate([[0.0], *(-part for part in bottom)]))
    line = edge[columns[0] : columns[1] + 1]  # psi at the corners below this block
    rises = u[low:high, left - 1 : right].astype(float) * height
    psi = np.cumsum(np.concatenate([line[None], rises]), axis=0)
    for level in sorted({row for row, _, _ in parts})[1:]:
        tops = ranks.gather((rows[1], columns[0], psi[-1]))
        if level == rows[0]:
            line = next(top for row, column, top in tops if (row, column) == (level, columns[0]))
            psi = np.cumsum(np.concatenate([line[None], rises]), axis=0)
    centres = 0.25 * (psi[:-1, :-1] + psi[:-1, 1:] + psi[1:, :-1] + psi[1:, 1:])
    whole = np.zeros(grid.shape)
    whole[low:high, left:right] = centres
    result = backend.zeros(grid.shape)
    problem.place(result, grid.interior, whole)
    return result
