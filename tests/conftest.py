"""What all tests share: backends by name, and a place of their own for compiled loops."""

import os

# Threads that wait by spinning would keep the other workers of a test run from working.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
from hypothesis import HealthCheck, settings

# How fast texts are drawn says nothing of the program: the first draw on a machine builds tables.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(
    params=[
        "numpy",
        "numba",
        pytest.param("cupy", marks=pytest.mark.gpu),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ]
)
def backend(request):
    """The name of each backend; those of GPUs run with `pytest -m gpu` only."""
    return request.param


def pytest_collection_modifyitems(config, items):
    """Without a word on markers, tests that need a GPU or much time are left out."""
    wanted = config.getoption("-m")
    for marker in ("gpu", "multigpu", "sanitize", "slow"):
        if marker not in wanted.split():
            reason = pytest.mark.skip(reason=f"run with: pytest -m {marker}")
            for item in items:
                if item.get_closest_marker(marker):  # a folder of that name is a keyword, too
                    item.add_marker(reason)
