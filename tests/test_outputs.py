"""When frames are due, and what files of a run hold: the same on every backend and restart."""

import math

import numpy as np
import pytest
from many import Impatient

from heatsolve.case.load import parse
from heatsolve.control.controller import Start
from heatsolve.errors import CaseError, Interrupted
from heatsolve.io.reader import read
from heatsolve.models.base import Substep
from heatsolve.runner import run
from heatsolve.time.schedule import Schedule
from heatsolve.time.step_size import TimeStep
from heatsolve.tools.check import frames_of

RESTART = Start(restart=True)
MARCH = """
[model]
steady = false
[grid]
cells = [12, 10]
[initial]
temperature = "sin(5*x)*y"
[boundary]
left.temperature = { value = 1 }
right.temperature = { value = 0 }
bottom.temperature = { gradient = 0 }
top.temperature = { value = 0 }
[time]
step = 0.001
end = 0.1
"""
FLOW = """
[model]
kind = "flow"
viscosity = 0.01
[grid]
cells = [12, 8]
[boundary]
left.kind = "no-slip"
right.kind = "no-slip"
bottom.kind = "no-slip"
top = { kind = "no-slip", velocity_x = { value = 1 } }
[time]
cfl = 0.5
end = 0.5
"""


def step(number, length, end=math.inf):
    """Step `number`, counted from 1, of even ones."""
    start = (number - 1) * length
    return TimeStep((Substep(start, min(length, end - start), 0.0),), last=False)


@pytest.mark.parametrize("every, due", [
    (None, []),
    (4, [4, 8]),
    ("0.25 s", [3, 5, 8, 10]),  # 0.25, 0.5, 0.75, 1 end steps 2.5, 5, 7.5, 10
    ("0.3 s", [3, 6, 9]),  # which rounding leaves at 0.30000000000000004
    ("0.01 s", range(1, 11)),
    ("1 h", []),
    ((0.0, 0.05, 0.06, 0.3, 0.95, 7.0), [1, 3, 10]),
])  # fmt: skip
def test_a_moment_is_met_by_the_first_step_at_or_after_it(every, due):
    schedule = Schedule.of(every)
    assert [n for n in range(1, 11) if schedule.due(n, step(n, 0.1))] == list(due)
    assert schedule.count_with_last(10, 1.0) == len({*due, 10})
    # No step that is due lies within those that are made at once.
    number = 0
    while number < 10:
        until = schedule.until(number, number * 0.1, 0.1)
        assert not any(number < n < number + until for n in due)
        number += until
    assert due == [] or not schedule.empty


@pytest.mark.parametrize("every, times", [
    ('"0.0125 s"', [0, 0.013, 0.025, 0.038, 0.05, 0.063, 0.075, 0.088, 0.1]),
    ("[0.01, 0.0205, 0.05]", [0, 0.01, 0.021, 0.05, 0.1]),
    ('["0.1 / 4", 0.1]', [0, 0.025, 0.1]),
    ("40", [0, 0.04, 0.08, 0.1]),
])  # fmt: skip
def test_frames_have_their_true_times(every, times, backend, tmp_path):
    """Those of a run that writes every step, also where a backend makes several at once."""
    given = parse(f"{MARCH}[output]\nevery = {every}\n[solver]\ncheck_every = 50\n", "case")
    run(given, backend, tmp_path / "some.h5")
    run(parse(MARCH + "[output]\nevery = 1\n", "case"), "numpy", tmp_path / "all.h5")
    some, everything = read(tmp_path / "some.h5"), read(tmp_path / "all.h5")
    assert some.time == pytest.approx(times, abs=1e-12)
    assert frames_of(given, 100) == len(times)
    places = np.searchsorted(everything.time, some.time)
    assert np.array_equal(some.time, everything.time[places])
    assert np.array_equal(some.fields["temperature"], everything.fields["temperature"][places])


def test_output_bends_no_step_of_a_flow(tmp_path):
    run(parse(FLOW, "case"), "numpy", tmp_path / "plain.h5")
    run(parse(f"{FLOW}[output]\nevery = '0.11 s'\n", "case"), "numpy", tmp_path / "some.h5")
    plain, some = read(tmp_path / "plain.h5"), read(tmp_path / "some.h5")
    assert plain.history["time"].tolist() == some.history["time"].tolist()
    ends = plain.history["time"]
    first = [ends[ends >= moment - 1e-9][0] for moment in (0.11, 0.22, 0.33, 0.44)]
    assert some.time == pytest.approx([0.0, *first, 0.5], rel=1e-12)
    for name, values in plain.fields.items():
        assert np.array_equal(values[-1], some.fields[name][-1]), name


@pytest.mark.parametrize("every", ["'0.03 s'", "[0.02, 0.025, 0.09]"])
@pytest.mark.parametrize("text", [MARCH, FLOW], ids=["heat", "flow"])
def test_no_frame_is_lost_or_doubled_by_a_restart(text, every, tmp_path):
    text += f"[output]\nevery = {every}\n[checkpoint]\nevery = 7\n"
    case, path = parse(text, "case", ["time.end=0.1"]), tmp_path / "twice.h5"
    whole = read(run(case, "numpy", tmp_path / "whole.h5").path)
    with pytest.raises(Interrupted):
        run(case, "numpy", path, request=Impatient(3))
    run(case, "numpy", path, start=RESTART)
    again = read(path)
    assert np.array_equal(again.time, whole.time)
    for name, values in whole.fields.items():
        assert np.array_equal(values, again.fields[name]), name
    # A later end drops the frame of the earlier end, unless its step is due.
    if text.startswith(MARCH):
        longer = parse(text, "case", ["time.end=0.12"])
        run(longer, "numpy", path, start=RESTART)
        run(longer, "numpy", tmp_path / "longer.h5")
        assert np.array_equal(read(path).time, read(tmp_path / "longer.h5").time)


@pytest.mark.parametrize("every, said", [
    ("0", "must be a number of iterations or steps"),
    ("'soon'", "must be a number of iterations or steps"),
    ("[]", "a list of times must ascend from 0 or later"),
    ("[0.2, 0.1]", "a list of times must ascend from 0 or later"),
    ("[-1, 0.1]", "a list of times must ascend from 0 or later"),
])  # fmt: skip
def test_times_that_are_none_are_refused(every, said):
    with pytest.raises(CaseError, match=said):
        parse(f"{MARCH}[output]\nevery = {every}\n", "case")
