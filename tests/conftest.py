"""What all tests share: backends by name, and which tests and variants a run takes."""

import os

# Threads that wait by spinning would keep the other workers of a test run from working.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import signal
import zlib
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, settings

from heatsolve.case import load

# How fast texts are drawn says nothing of the program: the first draw on a machine builds tables.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

NAMED = ("gpu", "multigpu", "sanitize", "slow")
"""Markers of tests that run only where `-m` names them."""

ORDER = (
    "slurm", "strangers", "ranks", "restart", "docs", "overlap", "simulation", "outputs",
    "statistics", "data", "page", "parts", "fuzz", "faults", "scaling",
    "bits", "conformance", "passes", "fused_sweeps", "multigrid", "flow", "cuda_source",
    "transport", "solvers",
)  # fmt: skip
"""Files that begin first. Files that start processes come before files that compile much: a worker
grows to gigabytes, from which a fork takes a tenth of a second. All other files are short, so that
no worker waits at the end for another that has just begun with a long one."""

COMPILING = (
    "numba",
    pytest.param("cupy", marks=pytest.mark.gpu),
    pytest.param("cuda", marks=pytest.mark.gpu),
)


@pytest.fixture(params=["numpy", *COMPILING])
def backend(request):
    """The name of each backend; those of GPUs run with `pytest -m gpu` only."""
    return request.param


@pytest.fixture(params=COMPILING)
def other_backend(request):
    """The name of each backend whose bits can be compared with those of numpy."""
    return request.param


HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def signals():
    """Each test leaves the signals as it found them.

    The program hears them for the rest of its life, and some tests run it in their own process.
    """
    before = [signal.getsignal(number) for number in HEARD]
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in zip(HEARD, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def registered():
    """Each test leaves the users' models as it found them: messages list them."""
    before = dict(load.REGISTERED)
    yield
    load.REGISTERED.clear()
    load.REGISTERED.update(before)


def pytest_addoption(parser):
    parser.addoption(
        "--thorough",
        action="store_true",
        help="run all variants of all tests (but those of markers), and tell the time of each file",
    )


def pytest_configure(config):
    """pytest-xdist gives out files in the order of their tests, not by their numbers of tests.

    Tests send SIGINT, which a shell without job control lets its background jobs ignore.
    """
    config.option.loadscopereorder = False
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def place_of(item):
    """Of the file of a test, in the order in which files begin."""
    name = item.path.stem.removeprefix("test_")
    return ORDER.index(name) if name in ORDER else len(ORDER)


@pytest.hookimpl(trylast=True)  # after `-k` and `-m`
def pytest_collection_modifyitems(config, items):
    """Without a word on markers, tests that need a GPU or much time are left out.

    Without `--thorough` tests marked `thorough` are left out, too, and of those marked `few(n)` all
    but n variants. Where all chosen tests would be left out, they run, or say why they are skipped.
    """
    items.sort(key=place_of)
    wanted = config.getoption("-m").split()
    variants = defaultdict(list)
    left_out = set()
    for item in items:
        absent = [m for m in NAMED if m not in wanted and item.get_closest_marker(m)]
        if absent:  # a marker, as a folder of that name is a keyword, too
            item.add_marker(pytest.mark.skip(reason=f"run with: pytest -m {absent[0]}"))
            left_out.add(item)
        elif config.getoption("--thorough"):
            continue
        elif item.get_closest_marker("thorough"):
            left_out.add(item)
        elif item.get_closest_marker("few") and not any(map(item.get_closest_marker, NAMED)):
            variants[item.parent.nodeid, item.originalname].append(item)
    for each in variants.values():
        left_out.update(set(each) - set(some_of(each)))
    if left_out != set(items):
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def some_of(variants):
    """The variants of a test that always run: `few(n, among)` keeps n of those whose names have
    the text `among`, the same on every machine, but in no order that a parametrisation has."""
    few = variants[0].get_closest_marker("few")
    among = few.kwargs.get("among", "")
    named = [item for item in variants if among in item.name] or variants
    return sorted(named, key=lambda item: zlib.crc32(item.name.encode()))[: few.args[0]]


def pytest_terminal_summary(terminalreporter, config):
    """With `--thorough`: the seconds of each test file, fixtures included, and its tests."""
    if not config.getoption("--thorough"):
        return
    seconds, counts = defaultdict(float), defaultdict(int)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                file = report.nodeid.partition("::")[0]
                seconds[file] += report.duration
                counts[file] += report.when == "call"
    terminalreporter.section("seconds of each test file")
    for file in sorted(seconds, key=lambda file: -seconds[file]):
        terminalreporter.write_line(f"{seconds[file]:8.1f} s {counts[file]:6} tests  {file}")
    terminalreporter.write_line(f"{sum(seconds.values()):8.1f} s in all workers together")
