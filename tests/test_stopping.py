"""When an iteration is at its end, for residuals that fall as they are told."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from emulated import Ahead
from test_solvers import case_text

from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.case.load import parse
from heatsolve.errors import ExitCode
from heatsolve.io.reader import read
from heatsolve.linear.iterate import iterate
from heatsolve.linear.stopping import ConvergenceTest, Criterion, ResidualCheck
from heatsolve.models.base import Silent
from heatsolve.models.heat.conduction import Conduction
from heatsolve.models.heat.solver import make_method
from heatsolve.runner import run
from heatsolve.stencil.grid import whole
from heatsolve.stencil.language import fill

FLOOR = 1e-10


class Recurrence:
    """A method whose residual falls by a factor at each check, down to its rounding level."""

    direct = recurrent = False
    reduces_smooth_errors = True
    checks_per_floor, checks_without_fall, fall = 4, 2, 0.5

    def __init__(self, factor):
        self.factor, self.checks = factor, 0
        self.system = SimpleNamespace(residual_floor=self.residual_floor)

    def residual(self, number):
        # At the rounding level residuals go up and down a little.
        return max(self.factor**number, FLOOR * (0.8 + 0.1 * (number % 3)))

    def residual_floor(self, u, kind):
        self.checks += 1
        return FLOOR

    def solution(self, number):
        return None


CRITERION = SimpleNamespace(
    kind="max",
    monitor="residual",
    fixed=False,
    total=None,
    looks_first=True,
    waits=False,
    begin_with=lambda first: None,
    demand_range=lambda norm, u: None,
    norm=lambda value, before: float(value),
    threshold=1e-12,
    met=lambda norm: norm < 1e-12,
    tells_nothing=lambda norm, u: True,
)


@pytest.mark.parametrize("smooth, ending", [(True, "rounding"), (False, "lost")])
@pytest.mark.parametrize("factor", [0.02, 0.05, 0.08, 0.1, 0.15, 0.3])
def test_the_end_at_the_rounding_level(factor, smooth, ending):
    """Within four checks, so also a solver with a limit of iterations ends in time."""
    method = Recurrence(factor)
    method.reduces_smooth_errors = smooth
    test, number = ConvergenceTest(method, CRITERION), 0
    while not test.state.ending:
        test.examine(ResidualCheck(number, number, number), method.residual(number))
        number += 1
    assert test.state.ending == ending
    arrival = next(n for n in range(100) if factor**n < FLOOR)
    assert arrival < number - 1 <= arrival + 4
    assert method.checks == 1


LONG_CELLS = """
    [grid]
    cells = [32, 32]
    upper = [{length}, 1.0]
    [source]
    temperature = 1.0
    [boundary]
    left.temperature = {{ value = 0.0 }}
    right.temperature = {{ gradient = 0.0 }}
    bottom.temperature = {{ gradient = 0.0 }}
    top.temperature = {{ gradient = 0.0 }}
    [solver]
    method = "{method}"
    relative = {relative}
"""


@pytest.mark.parametrize("relative", ["true", "false"])
@pytest.mark.parametrize("method", ["cg", "mgcg", "multigrid", "fft"])
@pytest.mark.parametrize("length", [1e5, 1e7])
def test_a_residual_at_rounding_level_may_tell_nothing(length, method, relative, tmp_path):
    """Where its rounding exceeds the right side. T = x (L - x / 2), exact but for h^2 / 8."""
    text = LONG_CELLS.format(length=length, method=method, relative=relative)
    result = run(parse(text, "case"), "numpy", tmp_path / "case.h5")
    x = (np.arange(32) + 0.5) * length / 32
    exact = x * (length - x / 2)
    error = np.abs(read(result.path).fields["temperature"] - exact).max() / exact.max()
    lost = method == "cg" and length == 1e7
    assert (error > 0.5) == lost and (lost or error < 3e-4)
    assert result.outcome.converged != lost
    assert result.exit_code == (ExitCode.NOT_CONVERGED if lost else ExitCode.DONE)
    if lost:
        assert result.outcome.ending == "lost"


@pytest.mark.parametrize("method", ["multigrid", "mgcg", "fft"])
@pytest.mark.parametrize(("tolerance", "source"), [("1e-320", "1e20"), ("1e-300", "1e30")])
def test_the_smallest_tolerance_asks_for_the_rounding_level(method, tolerance, source, tmp_path):
    """Its quotient with the norm is 0."""
    solver = f"method = '{method}'\nrelative = false\ntolerance = {tolerance}"
    text = case_text("cells = [20, 20]", "vvvv", source, solver)
    result = run(parse(text, "case"), "numpy", tmp_path / "case.h5")
    assert result.outcome.ending == "rounding"


@pytest.mark.parametrize(
    ("norms", "count"),
    [
        ([1.0], math.inf),
        ([1.0, 2e-2], 5),
        ([1.0, 1e-9], 1),
        ([1.0, 0.6], math.inf),
        ([1e-2, 1.0], math.inf),
        ([1.0, 0.0], math.inf),
        ([1.0, math.nan], math.inf),
    ],
)
def test_the_checks_to_come_follow_from_the_last_fall(norms, count):
    """For a tolerance of 1e-10. Before two norms nobody asks for the tolerance itself."""
    asked = []

    class Told:
        fixed = False

        @property
        def threshold(self):
            asked.append(True)
            return 1e-10

    method = Recurrence(0.5)
    test = ConvergenceTest(method, Told())
    test.history["residual"] = norms
    assert test.checks_to_come() == count
    assert len(asked) == (len(norms) > 1)
    method.reduces_smooth_errors = False
    assert test.checks_to_come() == math.inf and len(asked) == (len(norms) > 1)


def test_nobody_looks_while_a_residual_falls_fast():
    method = Recurrence(0.05)
    test = ConvergenceTest(method, CRITERION)
    for number in range(7):
        assert test.most_checks(64) == 4 - number % 4
        test.examine(ResidualCheck(number, number, number), method.residual(number))
    assert method.checks == 0


def solved(backend, method, tolerance, expected=0):
    """The outcome and solution of a system, and whether the following work was done."""
    options = f"method = '{method}'\ntolerance = {tolerance}\nrelative = false\nnorm = 'max'"
    grid = "cells = [34, 30]", "vgvr", "0", options, "conductivity = '1 + 100*x'"
    case = parse(case_text(*grid), "case")
    problem = Conduction(case, backend)
    b = np.random.default_rng(3).normal(size=problem.grid.shape)
    system, u = problem.system(backend.to_device(b)), problem.temperature
    done = backend.zeros((1, 1))

    def following(_):
        def work():
            with backend.continuing():
                backend.sweep(fill, done, whole(done.shape), 1.0)

        return work

    criterion = Criterion(case.solver, system, u, scale=1.0, looks_first=False)
    args = make_method(case, system, u), criterion, Silent(), expected
    outcome = iterate(*args, following if expected else None)
    told = outcome.count, outcome.ending, outcome.norm, outcome.history
    return (*told, u.tobytes()), bool(done.any())


@pytest.mark.parametrize(
    ("method", "tolerance", "ending"),
    [("cg", 1e-6, "tolerance"), ("cg", 3e-12, "rounding"), ("mgcg", 1e-6, "tolerance"),
     ("mgcg", 3e-12, "rounding")],
)  # fmt: skip
def test_a_device_goes_on_if_the_true_residual_meets_the_tolerance(method, tolerance, ending):
    """The residual by recurrence may meet a tolerance that the true one never does."""
    expected, _ = solved(NumpyBackend(), method, tolerance)
    count, unmet = expected[0], 0
    assert expected[1] == ending
    for number in {1, 2, *range(max(1, count - 9), count + 2)}:
        device = Ahead()
        got, done = solved(device, method, tolerance, number)
        assert got == expected
        assert done == device.continued == (ending == "tolerance" and number == count)
        unmet += device.confirmations - done
    assert (unmet > 0) == (ending == "rounding")
