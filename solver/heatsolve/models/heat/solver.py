"""Which method solves the systems of a case, and why it may stall."""

from typing import Any

from heatsolve.case.case import Case
from heatsolve.linear import iterate
from heatsolve.linear.stationary import Jacobi
from heatsolve.linear.system import Method, System, two_coloured
from heatsolve.models.base import grid_of, mirrors, walls_of
from heatsolve.models.heat import equations as heat


def method_name(case: Case) -> str:
    """The method that a case asks for; `auto` is the fastest one for the case.

    A literal update is Jacobi's. Multigrid alone is enough where the conductivity is constant.
    """
    if case.solver.update is not None:
        return "jacobi"
    if case.solver.method != "auto":
        return case.solver.method
    return "mgcg" if case.has_jumps else "multigrid"


def make_method(case: Case, system: System, u: Any) -> Method:
    """The method of a case, ready to begin at u."""
    solver = case.solver
    if solver.update is None:
        return iterate.make_method(method_name(case), solver, system, u)
    dy, dx = (axis.spacing for axis in system.grid.axes)
    update, scales = heat.literal_update(solver.update, dx, dy, system.grid.equal_spacings)
    walls = list(walls_of(case, system.grid))
    if all(wall.condition.gradient is None for wall in walls):
        return Jacobi(system, u, update=update, arguments=(system.b, *scales))
    arguments = (system.b, *scales, *mirrors(walls, system.grid, system.backend))
    return Jacobi(system, u, update=heat.mirrored(update), arguments=arguments)


def stall(case: Case, singular: bool) -> str:
    """Why the iteration of a steady case cannot converge, and what helps; empty if it can.

    `singular`: no wall gives a temperature. Then the checkerboard, +1 on red unknowns and -1 on
    black ones, is an eigenvector of D^-1 A with the eigenvalue 2, so of 1 - D^-1 A with -1.
    """
    solver = case.solver
    if solver.update is not None or solver.iterations is not None or solver.weight != 1.0:
        return ""
    if not (method_name(case) == "jacobi" and singular and two_coloured(grid_of(case))):
        return ""
    return (
        "solver.weight: no wall gives a temperature, and Jacobi's iteration of weight 1 then has "
        "the eigenvalue -1: a checkerboard changes its sign in each sweep and never fades, so the "
        "iteration stalls; take a weight below 1, such as solver.weight = 0.9"
    )
