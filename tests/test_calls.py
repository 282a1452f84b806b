"""A step is a small number of Python calls, through a small number of files."""

import sys
from collections import Counter
from pathlib import Path

import pytest

import heatsolve
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.case.load import load
from heatsolve.models.base import make_model
from heatsolve.time.step_size import time_step_controller

STEPS = {
    "staggered flow": ("cavity-re100", ["constants.n=16", "time.end=50"], 900),
    "collocated flow": ("legate-cfd", ["time.end=1000*dt"], 60),
    "transport": ("cfdpython-08", ["time.end=10"], 60),
}
"""A case of each model, its settings, and the most Python functions that a step of it enters,
NumPy's wrappers and generated code included: the mean of some steps. Before steps were played back,
a step of the cavity entered 31,000 functions of 27 files."""
MOST_FILES = 14
"""Files of the package in which these functions stand."""
BEFORE, COUNTED = 60, 10
"""Steps after which all is noted down, and steps that are counted."""


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_played_back(name):
    case_name, settings, most = STEPS[name]
    case = load(case_name, overrides=settings)
    problem = make_model(case, NumpyBackend())
    time_steps = time_step_controller(problem)
    stepper = problem.stepper(0.0, time_steps.step)
    stepper.prepare()

    def march(first, count):
        for number in range(first, first + count):
            step = time_steps.next_step(number, stepper.time, stepper)
            stepper.step(step.parts, None, None)

    calls = Counter()

    def count(frame, event, _):
        if event == "call":
            calls[frame.f_code.co_filename] += 1

    march(0, BEFORE)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        march(BEFORE, COUNTED)
    finally:
        sys.setprofile(before)
    root = str(Path(heatsolve.__file__).parent)
    assert calls.total() / COUNTED <= most
    assert sum(name.startswith(root) for name in calls) <= MOST_FILES
