"""When an iteration is at its end, for residuals that fall as they are told."""

from types import SimpleNamespace

import pytest

from heatsolve.linear.stopping import ConvergenceTest, ResidualCheck

FLOOR = 1e-10


class Recurrence:
    """A method whose residual falls by a factor at each check, down to its rounding level."""

    direct = recurrent = False
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
    met=lambda norm: norm < 1e-12,
)


@pytest.mark.parametrize("factor", [0.02, 0.05, 0.08, 0.1, 0.15, 0.3])
def test_the_end_at_the_rounding_level(factor):
    """Within four checks, so also a solver with a limit of iterations ends in time."""
    method = Recurrence(factor)
    test, number = ConvergenceTest(method, CRITERION), 0
    while not test.state.ending:
        test.examine(ResidualCheck(number, number, number), method.residual(number))
        number += 1
    assert test.state.ending == "rounding"
    arrival = next(n for n in range(100) if factor**n < FLOOR)
    assert arrival < number - 1 <= arrival + 4
    assert method.checks == 1


def test_nobody_looks_while_a_residual_falls_fast():
    method = Recurrence(0.05)
    test = ConvergenceTest(method, CRITERION)
    for number in range(7):
        assert test.most_checks(64) == 4 - number % 4
        test.examine(ResidualCheck(number, number, number), method.residual(number))
    assert method.checks == 0
