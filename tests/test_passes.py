"""Several sweeps in one pass through memory: the bits of single sweeps, norms and ends included."""

import itertools
import math
import os
import subprocess
import sys
from contextlib import suppress
from functools import cache, partial

import numpy as np
import pytest
from conformance import PRECISIONS, random_field
from many import SMALL_TILES, Impatient, assert_same, texts
from test_ranks import launch, mpi
from test_solvers import PROBLEMS, case_text

import heatsolve.backends.host.numba
from heatsolve.backends import MOST_FUSED, SweepSequence
from heatsolve.backends.host.numba import NumbaBackend
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.backends.host.time_tiling import Tiling
from heatsolve.case.load import parse
from heatsolve.control.controller import Start
from heatsolve.errors import Diverged, Interrupted
from heatsolve.linear.system import with_change
from heatsolve.models.heat import equations as heat
from heatsolve.runner import run

SHAPES = {1: (23,), 2: (14, 19), 3: (9, 8, 11)}
JACOBI = {name: text for name, text in texts() if name.endswith("jacobi")}


def far(i, j, u, f):
    """Reads u two rows and three columns away, and diagonally."""
    return 0.25 * (u[i - 2, j] + u[i + 1, j + 1]) + 0.5 * (u[i, j + 3] - f[i, j - 1])


def sideways(i, j, u, f):
    """Reads u along rows only."""
    return 0.5 * u[i, j - 1] + 0.25 * u[i, j + 1] + f[i, j]


def scaled(at, u, f, factor):
    """Reads u at the point itself only."""
    return factor * u[at] + f[at]


def slanted(at, u, f):
    """Reads u beside the point along the first axis and the last one."""
    first, *between, last = at
    beside = u[(first, *between, last - 1)] + u[(first, *between, last + 1)]
    return 0.5 * u[(first - 1, *between, last)] + 0.25 * beside + f[at]


# Made once for each: backends know a compiled sweep by its point function.
with_norm = cache(with_change)


def conduction(d, rng):
    """The arguments of an explicit step, conductances and ratios of every kind of variation."""

    def positive(*axes):
        return rng.uniform(0.5, 1.5, [n if a in axes else 1 for a, n in enumerate(SHAPES[d])])

    faces = [(positive(*range(d)), positive(d - 1)), (positive(d - 2), positive()),
             (positive(*range(d)), positive(0))]  # fmt: skip
    rate = 0.05 * positive(d - 1)
    return (positive(*range(d)), rate, *sum(faces[:d], ()))


POINTS = {
    **{f"explicit step {d}D": (d, heat.explicit_step, conduction) for d in (1, 2, 3)},
    "laplace": (2, heat.laplace, lambda d, rng: (rng.random(SHAPES[2]), 0.1)),
    "laplace, unequal": (
        2,
        heat.laplace_unequal,
        lambda d, rng: (rng.random(SHAPES[2]), 0.1, 0.2, 0.6),
    ),
    "mean": (2, heat.five_point_mean, lambda d, rng: (rng.random((1, 1)), 0.1)),
    "far": (2, far, lambda d, rng: (rng.random(SHAPES[2]),)),
    "sideways": (2, sideways, lambda d, rng: (rng.random(SHAPES[2]),)),
    "scaled": (3, scaled, lambda d, rng: (rng.random(SHAPES[3]), 0.9)),
}
WRAPS = {
    name: [w for w in itertools.product((False, True), repeat=d) if name != "far" or not any(w)]
    for name, (d, _, _) in POINTS.items()
}
CASES = [
    # Each is compiled for seconds: the small type for one way to wrap, and one point function of
    # each dimension; those that read what an explicit step reads, not wrapped.
    (name, wraps, precision)
    for name in POINTS
    for wraps in WRAPS[name]
    for precision in PRECISIONS
    if precision == PRECISIONS[0] or ("step" in name and wraps == WRAPS[name][-1])
    if name == "explicit step 2D" or wraps in (WRAPS[name][0], WRAPS[name][-1])
    if name not in ("laplace", "mean") or not any(wraps)
]


def wrap(u, wraps):
    """Bring the ghosts of the periodic axes up to date, corners included."""
    for axis in reversed(range(u.ndim)):
        if wraps[axis]:
            view = np.moveaxis(u, axis, 0)
            view[0], view[-1] = view[-2], view[1]


def one_by_one(point, u, region, stages, wraps, kinds, counted, precision):
    """The result of the sweeps, one after the other, and the norms of their changes."""
    backend = NumpyBackend(precision)
    old, norms = u.copy(), []
    for stage, kind in zip(stages, kinds, strict=True):
        new = old.copy()
        backend.sweep(point, new, region, old, *stage)
        if kind is not None:
            change = backend.accumulator(kind)
            backend.sweep(with_norm(point, kind), (new.copy(), change), counted, old, *stage)
            norms.append(change.value)
        wrap(new, wraps)
        old = new
    return old, norms


@pytest.mark.few(1, among="step 2D")
@pytest.mark.parametrize(("name", "wraps", "precision"), CASES)
def test_same_bits_as_single_sweeps(name, wraps, precision):
    """Any number of sweeps of any point function, each with other numbers and its own norm."""
    d, point, make = POINTS[name]
    rng, shape = np.random.default_rng(len(name)), SHAPES[d]
    dtype = np.dtype(precision)
    given = [a.astype(dtype) if isinstance(a, np.ndarray) else a for a in make(d, rng)]
    u = random_field(shape, dtype, rng, wild=False)
    wrap(u, wraps)
    margin = 3 if name == "far" else 1
    region = tuple((margin, n - margin) for n in shape)
    counted = tuple(
        pair if wrapped else (pair[0] + 1, pair[1] - 2)
        for pair, wrapped in zip(region, wraps, strict=True)
    )
    backend = NumbaBackend(precision)
    for count, height in ((3, 4), (5, 100)):
        backend.tiling = SMALL_TILES(height=height)
        stages = [
            [a * (1 + 0.1 * n) if isinstance(a, float) else a for a in given] for n in range(count)
        ]
        kinds = ["sum", None, "max", "sum", "max"][:count]
        changes = [None if kind is None else backend.accumulator(kind) for kind in kinds]
        sweeps = SweepSequence(point, u, region, stages, wraps, changes)
        most = backend.most_fused(sweeps)
        assert most == min(count, SMALL_TILES().depth[d - 1])
        given_stages, given_changes = stages[:most], changes[:most]
        before, new = u.copy(), u.copy()
        for _ in range(2):  # an accumulator goes on where it was: norms twice
            backend.fused_sweeps(sweeps.up_to(most), new, counted)
        inside = tuple(slice(*pair) for pair in region)
        expected, norms = one_by_one(
            point, u, region, given_stages, wraps, kinds[:most], counted, precision
        )
        assert new[inside].tobytes() == expected[inside].tobytes()
        assert u.tobytes() == before.tobytes()
        found = [(c.kind, c.value) for c in given_changes if c is not None]
        twice = [2.0 * v if kind == "sum" else v for (kind, _), v in zip(found, norms, strict=True)]
        assert [value for _, value in found] == twice
        ghosts = np.ones(shape, bool)
        ghosts[inside] = False
        assert new[ghosts].tobytes() == u[ghosts].tobytes()


LONG_ROWS = [((14, 40), (False, True)), ((9, 8, 40), (True, False, True))]
"""Rows longer than several tiles, walls beside periodic axes."""


@pytest.mark.parametrize(
    ("shape", "wraps"),
    [LONG_ROWS[0], pytest.param(*LONG_ROWS[1], marks=pytest.mark.thorough)],
)
def test_loops_stay_within_arrays(shape, wraps, tmp_path):
    """What they read beyond may be overwritten, so Numba checks the bounds, in another process."""
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "HEATSOLVE_CACHE": str(tmp_path)}
    args = [sys.executable, __file__, *map(str, shape), *[str(int(w)) for w in wraps]]
    done = subprocess.run(args, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr


def test_threads_make_the_bits_of_one(monkeypatch):
    monkeypatch.setattr(heatsolve.backends.host.numba, "THREADED_FROM", 1)
    backend = NumbaBackend(threads=2)
    check_long_rows(backend, *LONG_ROWS[0])
    assert backend._woken


def check_long_rows(backend, shape, wraps):
    """That three sweeps in tiles, and a norm of each, are those of single sweeps."""
    rng, region = np.random.default_rng(1), tuple((1, n - 1) for n in shape)
    u, backend.tiling = rng.random(shape), SMALL_TILES()
    wrap(u, wraps)
    kinds, stages = ("sum", "max", "sum"), [(rng.random(shape),)] * 3
    changes = [backend.accumulator(kind) for kind in kinds]
    sweeps = SweepSequence(slanted, u, region, stages, wraps, changes)
    assert backend.most_fused(sweeps) == 3
    new = u.copy()
    backend.fused_sweeps(sweeps, new, region)
    expected, norms = one_by_one(slanted, u, region, stages, wraps, kinds, region, "float64")
    inside = tuple(slice(*pair) for pair in region)
    assert new[inside].tobytes() == expected[inside].tobytes()
    assert [change.value for change in changes] == norms


def test_an_array_without_room_beside_the_region_makes_single_sweeps():
    """A point function that reads two points to one side may be swept up to the other end."""
    backend, u = NumbaBackend(), np.zeros((20, 20))
    backend.tiling = SMALL_TILES()

    def ahead(i, j, u):
        return u[i, j + 2]

    for first, most in ((0, 1), (1, 1), (2, 5)):
        region = ((0, 20), (first, 18))
        given = (region, [()] * 9, (False, False), [None] * 9)
        assert backend.most_fused(SweepSequence(ahead, u, *given)) == most


def test_refuses_arrays_that_do_not_fit():
    backend, u = NumbaBackend(), np.zeros((9, 9))
    region, stages = ((1, 8), (1, 8)), [(u, 1.0)] * 3
    given = (region, stages, (False, False), [None] * 3)
    with pytest.raises(ValueError, match="does not write what it reads"):
        backend.fused_sweeps(SweepSequence(heat.laplace, np.ones((9, 9)), *given), u, region)
    with pytest.raises(ValueError, match="does not fit"):
        backend.fused_sweeps(SweepSequence(heat.laplace, u, *given), np.zeros((7, 9)), region)


def test_only_fields_beyond_the_cache_gain():
    """And a point function whose reach depends on an argument makes single sweeps."""
    backend = NumbaBackend()
    backend.tiling = Tiling(worth=8 * 40 * 40)
    for n, most in ((40, 1), (41, 13)):
        u, inner = np.zeros((n, n)), ((1, n - 1),) * 2
        stages = [(np.zeros((1, 1)), 1.0)] * MOST_FUSED
        given = (inner, stages, (False, False), [None] * MOST_FUSED)
        assert backend.most_fused(SweepSequence(heat.laplace, u, *given)) == most

    def moved(at, u, distance):
        return u[(at[0] + distance, at[1])]

    given = (((5, 20),) * 2, [(1,)] * 9, (False, False), [None] * 9)
    assert backend.most_fused(SweepSequence(moved, np.zeros((50, 50)), *given)) == 1


def test_a_tile_fits_the_cache_and_there_is_one_for_each_chunk():
    tiling = Tiling(worth=0, ring=1 << 20)
    for extents in ((8192, 8192), (384, 384, 384), (5000, 100), (1 << 24,)):
        levels, reach = tiling.depth[len(extents) - 1], (1,) * len(extents)
        tile = tiling.tile(extents, levels, reach, 8, 8)
        parts = [math.ceil(n / part) for n, part in zip(extents, tile, strict=True)]
        assert math.prod(parts) >= 8
        assert 8 * math.prod(tiling.ring_shape(tile, levels, reach, 8)) <= tiling.ring


# ---- whole runs --------------------------------------------------------------------------------


@pytest.fixture
def passes(monkeypatch):
    """Passes of the numba backend on small grids; how many sweeps each pass made."""
    made = []
    single = NumbaBackend.fused_sweeps

    def noted(self, sweeps, *rest):
        made.append(len(sweeps.stages))
        single(self, sweeps, *rest)

    monkeypatch.setattr(heatsolve.backends.host.numba, "Tiling", SMALL_TILES)
    monkeypatch.setattr(NumbaBackend, "fused_sweeps", noted)
    return made


RULES = {
    "each update": "monitor = 'update'",
    "each fourth": "monitor = 'update'\ncheck_every = 4",
    "largest change": "monitor = 'update'\nnorm = 'max'",
    "residual": "monitor = 'residual'\ncheck_every = 7",
    "limit": "monitor = 'update'\nmax_iterations = 29",
}


ALIKE = ("nodes, mixed, jacobi", "cells, no value, jacobi", "3D nodes, jacobi")
"""Runs whose sweeps differ from those of cells or nodes, the others, in their numbers only."""


@pytest.mark.few(1, among="torus, jacobi-each update")
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        pytest.param(name, "each update", marks=pytest.mark.slow if name in ALIKE else ())
        for name in JACOBI
    ]
    + [(name, rule) for name in ("torus, jacobi", "3D cells, jacobi") for rule in list(RULES)[1:]],
)
def test_a_run_ends_as_with_single_sweeps(name, rule, passes, tmp_path):
    """At the same iteration, also inside a pass, with the same history and field."""
    text = JACOBI[name].replace("method =", f"{RULES[rule]}\nmethod =")
    case = parse(text, "case")
    run(case, "numpy", tmp_path / "single.h5")
    run(case, "numba", tmp_path / "passes.h5")
    assert passes and all(count % 2 == 1 and count > 1 for count in passes)
    assert_same(tmp_path / "passes.h5", tmp_path / "single.h5", name)


CYCLES = {
    "changes": ("nodes = [18, 19, 17]", "vgrvgv", "monitor = 'update'\ntolerance = 1e-4", ""),
    "changes, FMG": ("nodes = [33, 34]", "vvgr", "cycle = 'FMG'\nmonitor = 'update'", ""),
    "a march to rest": ("nodes = [65, 66]", "0000", "cycle = 'FMG'\ntolerance = 1e-13",
                        "scheme = 'backward-euler'\nstep = 10\nend = 400"),
    "a march in space": ("nodes = [18, 17, 13]", "000000", "tolerance = 1e-12",
                         "scheme = 'crank-nicolson'\nstep = 0.01\nend = 0.1"),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CYCLES)
def test_cycles_in_passes_end_as_with_single_sweeps(name, passes, monkeypatch, tmp_path):
    """Also by norms of changes, and in a march each step of which begins where the last ended."""
    grid, walls, solver, time = CYCLES[name]
    tiling = partial(SMALL_TILES, depth=(5, 5, 5))
    monkeypatch.setattr(heatsolve.backends.host.numba, "Tiling", tiling)
    march = {"time": time, "initial": 'temperature = "sin(3*x)*y"'} if time else {}
    model = "steady = false" if time else ""
    text = case_text(grid, walls, "x", f"method = 'multigrid'\n{solver}", model, **march)
    case = parse(text, "case")
    for backend in ("numpy", "numba"):
        run(case, backend, tmp_path / f"{backend}.h5")
    assert max(passes) > 1
    assert_same(tmp_path / "numba.h5", tmp_path / "numpy.h5", name)


@pytest.mark.few(2)
@pytest.mark.parametrize("count", range(1, 13))
def test_a_fixed_number_of_iterations(count, passes, tmp_path):
    text = JACOBI["cells, mixed, jacobi"].replace("relative = true\ntolerance = 1e-5", "")
    rule = f"iterations = {count}\ncheck_every = 1\nmonitor = 'update'"
    text = text.replace("method =", f"{rule}\nmethod =")
    for backend in ("numpy", "numba"):
        run(parse(text, "case"), backend, tmp_path / f"{backend}.h5")
    assert_same(tmp_path / "numba.h5", tmp_path / "numpy.h5", count)


@pytest.mark.few(1, among="torus")
@pytest.mark.parametrize("name", ["3D cells, jacobi", "torus, jacobi"])
def test_goes_on_after_an_interruption(name, passes, tmp_path):
    """Interrupted again and again, at iterations at which no pass of the whole run ends."""
    text = JACOBI[name].replace("method =", "monitor = 'update'\nmethod =")
    case = parse(text, "case")
    run(case, "numpy", tmp_path / "alone.h5")
    for questions in (1, 2, 3, 2, 4, 1000):
        with suppress(Interrupted):
            run(case, "numba", tmp_path / "often.h5", start=Start(restart=True),
                request=Impatient(questions))  # fmt: skip
    assert passes
    assert_same(tmp_path / "often.h5", tmp_path / "alone.h5", "interrupted")


def test_a_growing_iteration_says_the_same(passes, tmp_path):
    """Divergence found inside a pass names the place that single sweeps name."""
    text = JACOBI["cells, mixed, jacobi"].replace(
        "weight = 0.9", "weight = 2.0\nmonitor = 'update'"
    )
    said = []
    for backend in ("numpy", "numba"):
        with pytest.raises(Diverged) as caught:
            run(parse(text, "case"), backend, tmp_path / "case.h5")
        said.append(str(caught.value))
    assert passes and said[0] == said[1]


EXPLICIT = "scheme = 'explicit'\nend = 0.2\nstep = 0.0015"
EXPLICIT_PROBLEMS = ("cells, mixed", "nodes, mixed", "cells, periodic", "3D cells")
LOOKS = {
    "each": "every = 50",
    "each fortieth": "every = 50\n[solver]\ncheck_every = 40",
    "frames": "every = 7\n[solver]\ncheck_every = 40",
    "samples": "sample = 12\n[solver]\ncheck_every = 40",
    "moments": "sample = '0.01 s'\n[solver]\ncheck_every = 40",
}


def explicit(problem, looks):
    grid, walls, source = PROBLEMS[problem]
    text = case_text(
        grid, walls, source, model="steady = false", time=EXPLICIT, output=LOOKS[looks]
    )
    return parse(text.replace("[solver]\n\n", ""), "case")


@pytest.mark.few(2)
@pytest.mark.parametrize("looks", LOOKS)
@pytest.mark.parametrize("problem", EXPLICIT_PROBLEMS)
def test_explicit_steps_at_once(problem, looks, other_backend, passes, tmp_path):
    """Steps between two looks, in passes or on the chip: the history, frames and field of single
    steps, and the same after interruptions."""
    case = explicit(problem, looks)
    run(case, "numpy", tmp_path / "single.h5")
    run(case, other_backend, tmp_path / "passes.h5")
    assert_same(tmp_path / "passes.h5", tmp_path / "single.h5", problem)
    if other_backend == "numba":
        assert bool(passes) == (looks != "each")
    for questions in (1, 2, 3, 1000):
        with suppress(Interrupted):
            run(case, other_backend, tmp_path / "often.h5", start=Start(restart=True),
                request=Impatient(questions))  # fmt: skip
    assert_same(tmp_path / "often.h5", tmp_path / "single.h5", problem)


def test_explicit_steps_one_by_one_where_a_source_varies(passes, tmp_path):
    grid, walls, _ = PROBLEMS["cells, mixed"]
    more = "every = 50\n[solver]\ncheck_every = 40"
    text = case_text(grid, walls, "x*t", model="steady = false", time=EXPLICIT, output=more)
    case = parse(text.replace("[solver]\n\n", ""), "case")
    for backend in ("numpy", "numba"):
        run(case, backend, tmp_path / f"{backend}.h5")
    assert not passes
    assert_same(tmp_path / "numba.h5", tmp_path / "numpy.h5", "varying")


@mpi
@pytest.mark.parametrize(
    ("what", "least"),
    [("some-passes", 3), pytest.param("other-passes", 10, marks=pytest.mark.thorough)],
)
def test_passes_between_two_exchanges(what, least):
    """Deep halos: as many sweeps in a pass as there are layers, on every process grid."""
    done = launch(2, "many.py", "numba", what)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split("compared")[1]) > least


if __name__ == "__main__":
    numbers = list(map(int, sys.argv[1:]))
    extents, periodic = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
    check_long_rows(NumbaBackend(threads=1), tuple(extents), tuple(map(bool, periodic)))
