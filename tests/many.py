"""Run under mpiexec: every problem, method and process grid, against one process, bit by bit."""

import sys
import tempfile
from pathlib import Path

import numpy as np
from test_solvers import PROBLEMS, case_text

from heatsolve.case import parse
from heatsolve.errors import InputError
from heatsolve.halo import Ranks, World, factorisations
from heatsolve.run import run

MARCH = "end = 0.02\nstep = 0.0017\nscheme = '{}'"


def texts():
    """Names and case texts: all methods on all kinds of grids and walls, all time schemes."""
    for name, (grid, walls, source) in PROBLEMS.items():
        for method in ("cg", "jacobi", "sor", "chebyshev"):
            solver = f"method = '{method}'\nrelative = true\ntolerance = 1e-5"
            weight = "\nweight = 0.9" if method == "jacobi" else ""
            model = "" if "value" in name else "conductivity = '1 + x'"
            yield f"{name}, {method}", case_text(grid, walls, source, solver + weight, model)
    for scheme in ("explicit", "crank-nicolson", "backward-euler"):
        grid, walls, _ = PROBLEMS["cells, mixed"]
        yield scheme, case_text(
            grid, walls, "x*t", "relative = true\ntolerance = 1e-8", "steady = false",
            time=MARCH.format(scheme), output="every = 4",
        )  # fmt: skip


def main(backend: str) -> None:
    world = World()
    folder = Path(tempfile.gettempdir()) / f"heatsolve-many-{world.comm.bcast(id(world))}"
    if world.rank == 0:
        folder.mkdir()
    compared = 0
    for name, text in texts():
        case = parse(text, "case")
        alone = run(case, backend, folder / f"alone-{world.rank}.h5", ranks=Ranks()) if (
            world.rank == 0) else None  # fmt: skip
        for dims in factorisations(world.size, case.grid.dimension):
            try:
                divided = parse(text, "case", [f"parallel.ranks={list(dims)}"])
                many = run(divided, backend, folder / "many.h5", ranks=world)
            except InputError as error:
                assert "without unknowns" in str(error), error
                continue
            if alone is not None:
                where = f"{name} on {dims}"
                assert many.outcome.count == alone.outcome.count, where
                history = many.outcome.history
                assert history == alone.outcome.history, where
                ours, wanted = many.fields["temperature"], alone.fields["temperature"]
                assert ours.tobytes() == wanted.tobytes(), (where, np.abs(ours - wanted).max())
                compared += 1
    if world.rank == 0:
        print(f"compared {compared}")


if __name__ == "__main__":
    main(sys.argv[1])
