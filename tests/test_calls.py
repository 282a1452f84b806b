"""A step of flow is a small number of Python calls, through a small number of files."""

import sys
from collections import Counter
from pathlib import Path

import heatsolve
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.case.load import load
from heatsolve.models.base import make_model
from heatsolve.time.step_size import time_step_controller

MOST_CALLS = 900
"""Python functions that a step of the cavity enters, NumPy's wrappers and generated code included:
the mean of some steps."""
MOST_FILES = 14
"""Files of the package in which these functions stand."""
BEFORE, COUNTED = 60, 10
"""Steps after which all is noted down, and steps that are counted."""


def test_a_step_of_flow_is_played_back():
    """The cavity of 16 x 16 cells; 31,000 calls and 27 files before steps were played back."""
    case = load("cavity-re100", overrides=["constants.n=16", "time.end=50"])
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
    assert calls.total() / COUNTED <= MOST_CALLS
    assert sum(name.startswith(root) for name in calls) <= MOST_FILES
