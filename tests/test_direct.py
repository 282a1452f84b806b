"""The inverse of a small system: a direct solution, on every backend to the same bits."""

import numpy as np
import pytest
from test_multigrid import noisy_system, residual
from test_solvers import case_text

from heatsolve.backends.registry import make
from heatsolve.case.load import parse
from heatsolve.linear.multigrid.cycle import Multigrid
from heatsolve.linear.multigrid.direct import MOST, Inverse, inverse_of, matrix_of
from heatsolve.linear.multigrid.mixed import Refinement
from heatsolve.models.heat.conduction import Conduction
from heatsolve.tools.measure import noise_inside

GRIDS = {
    "line": ("nodes = [398]", "vg"),
    "nodes": ("nodes = [17, 20]", "vgrv"),
    "cells": ("cells = [18, 12]", "rvgg"),
    "box": ("nodes = [5, 6, 7]", "vvgvrv"),
    "ring": ("cells = [7, 9]\nperiodic = ['x']", "--vg"),
    "free": ("nodes = [9, 11]", "gggg"),
    "free torus": ("cells = [5, 4]\nperiodic = ['x', 'y']", "----"),
    "ring of two": ("cells = [2, 5]\nperiodic = ['x']", "--vv"),
    "one": ("nodes = [3]", "vv"),
}


GPU = [pytest.param(name, marks=pytest.mark.gpu) for name in ("cupy", "cuda")]


@pytest.mark.parametrize("name", GRIDS)
def test_solution(name):
    system, u = noisy_system(*GRIDS[name], conductivity="1 + x")
    first, before = residual(system, u), u.tobytes()
    assert np.prod(system.grid.shape) <= MOST
    x = system.like(u)
    Inverse(system).solve(u, x)
    assert u.tobytes() == before
    assert residual(system, x) <= max(1e-12 * first, system.residual_floor(x, "sum"))
    if system.singular:
        mean = system.reduce("sum", lambda at, a: a[at], x)
        assert abs(mean) < 1e-10 or name == "free"  # halves of cells count half there


@pytest.mark.parametrize("name", GRIDS)
def test_matrix(name):
    """Products with the matrix are those of the system."""
    system, u = noisy_system(*GRIDS[name], conductivity="1 + x")
    if system.singular:
        return
    inside = tuple(slice(*own) for own in system.grid.interior)
    u[inside] = np.random.default_rng(1).random(u[inside].shape)
    r, matrix = system.like(u), matrix_of(system)
    for array in (u, r):
        kept = array[inside].copy()
        array[...] = 0.0
        array[inside] = kept
    system.sweep(system.residual, r, u, np.zeros_like(u), *system.coefficients)
    expected = -(matrix @ u[inside].ravel())
    np.testing.assert_allclose(r[inside].ravel(), expected, rtol=1e-13, atol=1e-13 * matrix.max())


@pytest.mark.parametrize("name", GRIDS)
def test_ghosts_of_periodic_axes_come_with_the_solution(name):
    """Those of an exchange, bit by bit; all others are 0."""
    system, _ = noisy_system(*GRIDS[name], conductivity="1 + x")
    x = np.full(system.grid.shape, np.nan)
    Inverse(system).solve_from_zero(x)
    exchanged = np.zeros_like(x)
    inside = tuple(slice(*own) for own in system.grid.interior)
    exchanged[inside] = x[inside]
    system.halo.exchange(exchanged)
    assert np.array_equal(x, exchanged) and x[inside].any()


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("name", ["cells", "box"])
@pytest.mark.parametrize("other", ["numba", *GPU])
def test_same_bits(other, name, precision):
    found = []
    for backend in (make("numpy", precision), make(other, precision)):
        system, u = noisy_system(*GRIDS[name], conductivity="1 + x", backend=backend)
        Inverse(system).solve(u, u)
        found.append(backend.to_host(u).tobytes())
    assert found[0] == found[1]


def test_single_precision():
    system, u = noisy_system(*GRIDS["nodes"], backend=make("numpy", "float32"))
    first = residual(system, u)
    Inverse(system).solve(u, u)
    assert u.dtype == np.float32
    assert residual(system, u) < 1e-4 * first


@pytest.mark.parametrize("band", [1, 2, 7, 30])
def test_inverse(band):
    n = 30
    rows, columns = np.indices((n, n))
    matrix = np.where(abs(rows - columns) < band, -np.random.default_rng(band).random((n, n)), 0.0)
    np.fill_diagonal(matrix, 1.0 - matrix.sum(axis=1))
    np.testing.assert_allclose(inverse_of(matrix) @ matrix, np.eye(n), atol=1e-13)


NEARLY_SINGULAR = {
    "insulated, a long step": ("cells = [64, 64]", "gggg", 1e-5),
    "insulated, a step": ("cells = [64, 64]", "gggg", 1e-4),
    "stretched": ("cells = [48, 160]\nupper = [3000, 1]", "vvgg", 0.0),
    "little exchange": ("cells = [64, 64]", "rrrr", 0.0),
}


@pytest.mark.parametrize("precision", ["mixed", "float32"])
@pytest.mark.parametrize("name", NEARLY_SINGULAR)
def test_levels_go_on_where_single_precision_has_no_inverse(name, precision, monkeypatch):
    """As good as with levels down to a single unknown."""
    grid, walls, s = NEARLY_SINGULAR[name]
    text = case_text(grid, walls.replace("v", "0"), model="density = 1").replace(
        "h = 2", "h = 1e-6"
    )
    make_method = Refinement if precision == "mixed" else Multigrid
    found = []
    for most in (MOST, 9):
        monkeypatch.setattr("heatsolve.linear.multigrid.hierarchy.MOST", most)
        backend = make("numpy", "float64" if precision == "mixed" else precision)
        problem = Conduction(parse(text, "case"), backend)
        b = backend.to_device(noise_inside(problem.grid.shape))
        system = problem.system(b, s)
        method = make_method(system, problem.temperature)
        for number in range(8):
            method.step(number, None)
        found.append(residual(system, method.solution(8)))
    assert found[0] <= 2.0 * found[1]
