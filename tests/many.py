"""Run under mpiexec: every problem, method and process grid, against one process, bit by bit.

many.py BACKEND some-bits | bits | all-bits | some-passes | other-passes
many.py BACKEND some-levels | more-levels | other-levels | all-levels
many.py BACKEND some-restarts | other-restarts | all-restarts
"""

import itertools
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from test_solvers import PROBLEMS, case_text

import heatsolve.backends.host.numba
import heatsolve.runner
from heatsolve.backends.host.time_tiling import Tiling
from heatsolve.backends.registry import choose
from heatsolve.case.load import parse
from heatsolve.control.controller import Start
from heatsolve.control.stop import StopRequest
from heatsolve.errors import InputError, Interrupted
from heatsolve.io.reader import read
from heatsolve.linear.multigrid import hierarchy, partition
from heatsolve.parallel.decomposition import factorisations
from heatsolve.parallel.ranks import Ranks, World
from heatsolve.runner import run, with_layers

SMALL_TILES = partial(Tiling, worth=0, depth=(5, 5, 3), row=(7, 5, 3), ring=2000, height=4)
"""Passes even on small grids, with many tiles in each."""
MARCH = "end = 0.02\nstep = 0.0017\nscheme = '{}'"
SHARES = {2: (2, 3, 5, 8, 9, 11), 3: (1, 4, 6, 7, 10), 4: (0,)}
"""Of every twelve texts those that so many processes run, the fewer the more: together all."""
SOME = (
    "nodes, mixed, cg", "torus, jacobi", "stretched, multigrid", "nodes, periodic, mgcg",
    "crank-nicolson", "cells, rk3 central transport", "driven, staggered",
    "walls, collocated explicit", "few sweeps, collocated explicit",
)  # fmt: skip
"""Texts that two processes always run: each model, at little cost."""
SOME_PASSES = ("cells, values, jacobi", "torus, jacobi")
SOME_LEVELS = (0, 9, 18, 21, 30)
"""Of every third text of levels: mixed precision, a nested pass, a stretched grid, one in
space, a ring."""
SOME_RESTARTS = (
    "nodes, values, sor", "crank-nicolson", "nodes, advective transport", "heated, staggered",
)  # fmt: skip
"""Those whose runs are always interrupted and go on: of each model, steady and in time."""
SWEPT = ("jacobi", "sor", "chebyshev", "explicit")
"""What may make several sweeps for each exchange."""


def texts():
    """Names and case texts: all methods on all kinds of grids and walls, all time schemes."""
    for number, (name, (grid, walls, source)) in enumerate(PROBLEMS.items()):
        cycles = ("multigrid", "mgcg")[number % 2]  # they differ little in what they exchange
        for method in ("cg", "jacobi", "sor", "chebyshev", cycles):
            solver = f"method = '{method}'\nrelative = true\ntolerance = 1e-5"
            weight = "\nweight = 0.9" if method == "jacobi" else ""
            model = "" if "value" in name else "conductivity = '1 + x'"
            yield f"{name}, {method}", case_text(grid, walls, source, solver + weight, model)
    # A wall along which heat passes differently: blocks without it know no axis that varies.
    grid, _, source = PROBLEMS["nodes, values"]
    for method in ("cg", "jacobi", "sor", "chebyshev"):
        solver = f"method = '{method}'\nrelative = true\ntolerance = 1e-5"
        one_wall = case_text(grid, "rvvv", source, solver).replace("h = 2", "h = '1 + y'")
        yield f"one wall, {method}", one_wall
    for scheme in ("explicit", "crank-nicolson", "backward-euler"):
        grid, walls, _ = PROBLEMS["cells, mixed"]
        yield scheme, case_text(
            grid, walls, "x*t", "relative = true\ntolerance = 1e-8", "steady = false",
            time=MARCH.format(scheme), output="every = 4",
        )  # fmt: skip
    yield from texts_of_transport()
    yield from texts_of_flow()


TRANSPORT = """
[model]
kind = "transport"
{model}
[grid]
{grid}
[initial]
{initial}
[boundary]
{walls}
[time]
end = 0.02
{step}
scheme = "{scheme}"
[output]
every = 20
"""


def texts_of_transport():
    """Transport by all schemes: a concentration, and a velocity that carries itself."""
    walls = (
        "bottom.concentration = { value = 'sin(3*x) + t' }\n"
        "top.concentration = { gradient = 'cos(x)' }"
    )
    box = "[[initial.box]]\nfield = 'concentration'\nvalue = 2\nlower = [0.2, 0.3]\n"
    for convection, scheme in (
        ("upwind", "explicit"), ("central", "rk3"), ("upwind3", "rk3"), ("tvd", "rk2")
    ):  # fmt: skip
        for kind in ("nodes", "cells"):
            yield f"{kind}, {scheme} {convection} transport", TRANSPORT.format(
                model=f"velocity = ['1 + y', 'sin(9*x)']\ndiffusivity = 0.01\n"
                f"convection = '{convection}'",
                grid=f"{kind} = [20, 23]\nperiodic = ['x']",
                initial=f"concentration = 'x*y'\n{box}upper = [0.6, 0.6]\nagain = [0.01]",
                walls=walls, scheme=scheme, step="step = 0.0004",
            )  # fmt: skip
    yield "nodes, advective transport", TRANSPORT.format(
        model="velocity = ['sin(9*y)', '1 + x']\nconvection = 'central'\nform = 'advective'",
        grid="nodes = [20, 23]\nperiodic = ['x']", initial="concentration = 'x*y'", walls=walls,
        scheme="rk3", step="step = 0.0004",
    )  # fmt: skip
    fields = ("velocity_x", "velocity_y", "velocity_z")
    for convection, scheme in (("upwind", "explicit"), ("upwind3", "rk2"), ("tvd", "rk3")):
        yield f"self, {scheme} {convection} transport", TRANSPORT.format(
            model=f"velocity = 'self'\ndiffusivity = 0.01\nconvection = '{convection}'",
            grid="cells = [11, 9, 10]\nperiodic = ['y', 'z']",
            initial="velocity_x = 'sin(6*x)'\nvelocity_y = 'cos(2*pi*z)'\nvelocity_z = 'x - 0.4'",
            walls="\n".join(
                f"{wall}.{field} = {{ value = {value} }}"
                for wall, value in (("left", 0.1), ("right", -0.2)) for field in fields
            ),
            scheme=scheme, step="cfl = 0.2" if convection == "tvd" else "step = 0.0004",
        )  # fmt: skip


COLLOCATED = """
[model]
kind = "flow"
scheme = "collocated"
viscosity = 0.02
density = 1.5
[grid]
nodes = [20, 23]
{periodic}
[initial]
velocity_x = "sin(pi*y)"
velocity_y = "0.1 + 0.1*cos(2*pi*x)"
pressure = "x*(1 - x)"
[source]
velocity_x = "1 + t"
[boundary]
{walls}
bottom = {{ velocity_x.value = 0, velocity_y.value = 0, pressure.gradient = 0 }}
top = {{ velocity_x.value = "x", velocity_y.gradient = 0, pressure.value = "t" }}
[solver]
method = "jacobi"
iterations = 21
[time]
end = 0.02
step = 0.001
{time}
[output]
every = 7
"""


STAGGERED = """
[model]
kind = "flow"
viscosity = 0.02
{model}
[grid]
{grid}
[initial]
{initial}
[boundary]
{walls}
[time]
end = 0.02
step = 0.002
{time}
[output]
every = 4
"""


PROBES = """
probes = [[0.33, 0.52], [1.4, 0.9]]
[[output.line]]
from = [0.2, 0.1]
to = [1.3, 0.95]
points = 7
"""


def texts_of_flow():
    """Flow: with walls all around, and periodic until it is steady enough."""
    heated = "{ kind = 'no-slip', temperature.value = %s }"
    yield "heated, staggered", STAGGERED.format(
        model="thermal_diffusivity = 0.03\nbuoyancy = [0, 5]\nreference_temperature = 0.1",
        grid="cells = [20, 23]",
        initial="velocity_x = 'sin(pi*y)'\nvelocity_y = 'x'\ntemperature = 'x*y'",
        walls=f"left = {heated % 0}\nright = {heated % 1}\n"
        "bottom = { kind = 'no-slip', velocity_x.value = 't', temperature.gradient = 0 }\n"
        "top = { kind = 'free-slip', temperature.gradient = 'x' }",
        time="scheme = 'rk3'",
    )  # fmt: skip
    yield "channel, staggered", STAGGERED.format(
        model="diffusivity = 0.01\nconvection = 'skew'\ndensity = 2",
        grid="cells = [23, 18]\nupper = [2, 1]",
        initial="velocity_x = 1",
        walls="left = { kind = 'inflow', velocity_x.value = '6*y*(1 - y) + t', "
        "velocity_y.value = 0.1, concentration.value = 1 }\n"
        "right = { kind = 'outflow', concentration.gradient = 0 }\n"
        "bottom = { kind = 'no-slip', concentration.gradient = 0 }\n"
        "top = { kind = 'no-slip', concentration.gradient = 0 }",
        time="scheme = 'rk2'",
    )  # fmt: skip
    yield (
        "space, staggered",
        STAGGERED.format(
            model="convection = 'skew'",
            grid="cells = [10, 12, 9]\nperiodic = ['x', 'z']",
            initial="velocity_x = 'sin(2*pi*z)*y'\nvelocity_y = 'cos(2*pi*x)'\nvelocity_z = 'x*y'",
            walls="bottom.kind = 'no-slip'\ntop = { kind = 'no-slip', velocity_z.value = 1 }",
            time="scheme = 'rk3'",
        ),
    )
    yield "obstacles, staggered", STAGGERED.format(
        model="thermal_diffusivity = 0.03\nconvection = 'upwind3'",
        grid="cells = [33, 22]\nupper = [1.5, 1]",
        initial="velocity_x = 1",
        walls="left = { kind = 'inflow', velocity_x.value = 1, temperature.value = 0 }\n"
        "right = { kind = 'outflow', temperature.gradient = 0 }\n"
        "bottom = { kind = 'no-slip', temperature.gradient = 0 }\n"
        "top = { kind = 'free-slip', temperature.gradient = 0 }\n"
        "[[obstacle]]\nshape = 'circle'\ncenter = [0.5, 0.52]\nradius = 0.17\ntemperature = 1\n"
        "[[obstacle]]\nshape = 'x > 1 and x < 1.2 and y < 0.3'\n",
        time="scheme = 'rk3'\n[solver]\ntolerance = 1e-6",
    ).replace("step = 0.002", "cfl = 0.15") + PROBES  # fmt: skip
    yield "driven, staggered", STAGGERED.format(
        model="convection = 'central4'",
        grid="cells = [18, 20]\nperiodic = ['x']",
        initial="velocity_x = 'y'",
        walls="bottom.kind = 'no-slip'\ntop.kind = 'no-slip'\n"
        "[source]\nmean_velocity_x = 1",
        time="scheme = 'adams-bashforth'",
    )  # fmt: skip
    yield "nearly balanced, staggered", STAGGERED.format(
        model="",
        grid="cells = [19, 16]",
        initial="velocity_x = 1",
        walls="left = { kind = 'inflow', velocity_x.value = '1 + y**2' }\n"
        "right = { kind = 'inflow', velocity_x.value = '4/3 + 40*t*(y**2 - 1/3)' }\n"
        "bottom.kind = 'no-slip'\ntop.kind = 'no-slip'",
        time="scheme = 'rk2'",
    )  # fmt: skip
    yield "implicit, staggered", STAGGERED.format(
        model="diffusivity = 2\nconvection = 'upwind3'",
        grid="cells = [17, 14]\nperiodic = ['y']\nupper = [2, 1]",
        initial="velocity_x = 1\nvelocity_y = 'sin(2*pi*y)'",
        walls="left = { kind = 'inflow', velocity_x.value = '1 + sin(2*pi*y)/2', "
        "velocity_y.value = '300*t', concentration.value = 1 }\n"
        "right = { kind = 'outflow', concentration.gradient = 0 }\n"
        "[source]\nmean_velocity_y = 0.3",
        time="scheme = 'adams-bashforth'\ndiffusion = 'crank-nicolson'",
    ).replace("step = 0.002", "cfl = 0.05")  # fmt: skip
    side = "{ velocity_x.value = 0, velocity_y.value = 0.1, pressure.gradient = 0 }"
    walls = f"left = {side}\nright = {side}"
    yield "walls, collocated explicit", COLLOCATED.format(periodic="", walls=walls, time="")
    yield (
        "periodic, collocated explicit",
        COLLOCATED.format(
            periodic="periodic = ['x']", walls="", time="tolerance = 3e-2\nnorm = 'sum-change'"
        ),
    )
    few = COLLOCATED.format(periodic="", walls=walls, time="").replace("= 21", "= 5")
    for driven, steady in (('"1 + t"', "1"), ('pressure.value = "t"', "pressure.value = 2")):
        assert driven in few
        few = few.replace(driven, steady)
    yield "few sweeps, collocated explicit", few


class Impatient(StopRequest):
    """A request to stop that is made once so many questions have been asked."""

    def __init__(self, questions):
        self._left = questions

    @property
    def made(self):
        self._left -= 1
        return self._left < 0


LEVELS = {
    "nodes": ("nodes = [67, 50]", "gvrv"),
    "nodes, free": ("nodes = [50, 67]", "gggv"),
    "cells": ("cells = [65, 50]", "vrgv"),
    "nodes, periodic": ("nodes = [50, 41]\nperiodic = ['y']", "vr--"),
    "cells, periodic": ("cells = [41, 50]\nperiodic = ['x']", "--vg"),
    "stretched": ("cells = [33, 90]\nupper = [1, 1.5]", "vvgg"),
    "3D nodes": ("nodes = [26, 27, 21]", "vgrvgv"),
    "3D cells": ("cells = [25, 20, 31]", "vgrvgv"),
    "1D": ("nodes = [98]", "vr"),
    "cells, a ring": ("cells = [40, 48]\nperiodic = ['y']", "rv--"),
    "3D cells, a ring": ("cells = [20, 18, 24]\nperiodic = ['z']", "rvgv--"),
}
CONDUCTIVITIES = {"even": "1", "smooth": "1 + x", "jump": "where(x < 0.4, 100, 1)"}


def texts_of_levels(complete):
    """Multigrid on grids large enough for several levels in blocks of the processes.

    complete: with another conductivity, which varies as the one that jumps does.
    """
    for (name, (grid, walls)), (kind, conductivity) in itertools.product(
        LEVELS.items(), CONDUCTIVITIES.items()
    ):
        if kind == "smooth" and not complete:
            continue
        nested = "method = 'multigrid'\ncycle = 'FMG'"  # and V cycles after it
        solver = nested if kind == "even" else "method = 'mgcg'"
        end = "relative = true\ntolerance = 1e-9"
        source, model = "x - 0.3*cos(7*x)", f"conductivity = '{conductivity}'"
        if kind == "even" and name in ("nodes", "cells, periodic", "3D cells"):
            mixed = f"method = 'multigrid'\nprecision = 'mixed'\n{end}"
            yield f"{name}, mixed", case_text(grid, walls, source, mixed, model)
        yield f"{name}, {kind}", case_text(grid, walls, source, f"{solver}\n{end}", model)
        if kind == "jump":
            once = f"{nested}\niterations = 1"
            yield f"{name}, {kind}, nested", case_text(grid, walls, source, once, model)


def assert_same(ours, wanted, where):
    """Two files hold the same run: fields, history, times and counts."""
    a, b = read(ours), read(wanted)
    for field, values in b.fields.items():
        difference = np.abs(a.fields[field] - values).max()
        assert a.fields[field].tobytes() == values.tobytes(), (where, field, difference)
    for name, values in b.history.items():
        assert np.array_equal(a.history[name], values), (where, name)
    assert (a.time is None and b.time is None) or np.array_equal(a.time, b.time), where
    for name in ("iterations", "steps", "residual", "converged"):
        assert a.attributes.get(name) == b.attributes.get(name), (where, name)


def same_bits(world, backend, folder, texts, passes=False):
    """All process grids, and halos of several layers, against one process.

    passes: Jacobi's method only, with several sweeps in each pass through memory.
    """
    compared = deep = 0
    for name, text in texts:
        if passes and not name.endswith("jacobi"):
            continue
        if passes:
            text = text.replace("method =", "monitor = 'update'\nmethod =")
        case = parse(text, "case")
        alone = folder / "alone.h5"
        if world.rank == 0:
            run(case, "numpy" if passes else backend, alone, ranks=Ranks())
        depths = (3, 4, "auto") if passes else (1, 2, 3) if name.endswith(SWEPT) else (1,)
        if name.startswith("few sweeps"):  # all of a step behind one exchange, or two
            depths = (6, 5)
        for dims in factorisations(world.size, case.grid.dimension):
            depth = depths[compared % len(depths)]
            settings = [f"parallel.ranks={list(dims)}", f"parallel.halo={depth}"]
            if depth == "auto":
                wanted = with_layers(parse(text, "case", settings), choose(backend)[0], world)
                deep += wanted.parallel.layers > 1
            try:
                run(parse(text, "case", settings), backend, folder / "many.h5", ranks=world)
            except InputError as error:
                assert "without unknowns" in str(error) or "layers are more" in str(error), error
                continue
            if world.rank == 0:
                assert_same(folder / "many.h5", alone, f"{name} on {dims}, halo {depth}")
            compared = world.gather(compared + 1)[0]
    assert deep > (2 if len(texts) > len(SOME_PASSES) else 0) or not passes
    return compared


def restarts(world, backend, folder, what):
    """Interrupted on some processes, continued on others, interrupted again, against one run.

    Every second text with one pair of numbers of processes, some or the others; all-restarts: every
    text with all pairs.
    """
    complete = what == "all-restarts"
    compared = 0
    sizes = range(1, world.size + 1)
    groups = {size: group_of(world, size) for size in sizes}
    for number, (name, text) in enumerate(texts()):
        if not complete and (number % 2 or (name in SOME_RESTARTS) != (what == "some-restarts")):
            continue
        case = parse(text, "case")
        if world.rank == 0:
            run(case, backend, folder / "alone.h5", ranks=Ranks())
        pairs = list(itertools.product(sizes, sizes))
        for first, second in pairs if complete else [pairs[number % len(pairs)]]:
            path = folder / f"{number}-{first}-{second}.h5"
            plans = [(first, Impatient(3), Start()), (second, Impatient(6), Start(restart=True)),
                     (first, Impatient(10**9), Start(restart=True))]  # fmt: skip
            for size, request, start in plans:
                # One of them has the request; those that are not in the group wait.
                if world.rank < size:
                    mine = request if world.rank == size - 1 else None
                    try:
                        run(case, backend, path, ranks=groups[size], start=start, request=mine)
                    except Interrupted as error:
                        assert error.exit_code == 75
                world.gather(None)
            if world.rank == 0:
                assert_same(path, folder / "alone.h5", f"{name}, {first} then {second}")
            compared += 1
    return compared


def group_of(world, size):
    """The first so many processes; nothing for the others."""
    comm = world.comm.Split(0 if world.rank < size else 1, world.rank)
    if world.rank >= size:
        return None
    return World(comm) if size > 1 else Ranks()


def main(backend, what):
    world = World()
    name = tempfile.mkdtemp(prefix="heatsolve-many-") if world.rank == 0 else None
    folder = Path(world.gather(name)[0])
    if what.endswith("passes"):
        heatsolve.backends.host.numba.Tiling, heatsolve.runner.MIN_THICKNESS = SMALL_TILES, 1
        few = what == "some-passes"
        chosen = [text for text in texts() if (text[0] in SOME_PASSES) == few]
        compared = same_bits(world, backend, folder, chosen, passes=True)
    elif what == "some-bits":
        chosen = [text for text in texts() if text[0] in SOME]
        assert len(chosen) == len(SOME)
        compared = same_bits(world, backend, folder, chosen)
    elif what == "bits":
        share = [text for n, text in enumerate(texts()) if n % 12 in SHARES[world.size]]
        if world.size == 2:
            share = [text for text in share if text[0] not in SOME]
        compared = same_bits(world, backend, folder, share)
    elif what == "all-bits":
        compared = same_bits(world, backend, folder, list(texts()))
    elif what.endswith("levels"):
        # Blocks of as many levels as can be.
        partition.LEAST, hierarchy.MOST = 4, 9
        partition.GATHERED_UP_TO = partition.GATHERED_ON_DEVICES = 1
        chosen = list(texts_of_levels(what == "all-levels"))
        if what == "some-levels":
            chosen = [chosen[n] for n in SOME_LEVELS]
        elif what == "more-levels":
            chosen = [chosen[n] for n in range(0, len(chosen), 3) if n not in SOME_LEVELS]
        elif what == "other-levels":
            del chosen[::3]
        compared = same_bits(world, backend, folder, chosen)
    else:
        compared = restarts(world, backend, folder, what)
    if world.rank == 0:
        print(f"compared {compared}")


if __name__ == "__main__":
    main(*sys.argv[1:])
