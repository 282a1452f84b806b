"""When frames are due, and what files of a run hold: the same on every backend and restart."""

import math

import h5py
import numpy as np
import pytest
from many import Impatient
from test_ranks import launch, mpi

from heatsolve.case.load import parse
from heatsolve.control.controller import Start
from heatsolve.errors import CaseError, InputError, Interrupted
from heatsolve.io.reader import read
from heatsolve.models.base import Substep
from heatsolve.models.flow.projection import Projection
from heatsolve.runner import run
from heatsolve.time.schedule import Schedule
from heatsolve.time.step_size import TimeStep
from heatsolve.tools.check import frames_of, preview
from heatsolve_post.plot import plot
from heatsolve_post.view import look

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


@pytest.mark.few(2)
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
    ("0", 'must be a number of steps, such as 100, a time of the march, such as "0.5 s", or a'),
    ("'soon'", "must be a number of steps"),
    ("['0.01 s']", r'has numbers of seconds, such as \[0\.1, 0\.5\], not "0\.01 s"'),
    ("[]", "a list of times must ascend from 0 or later"),
    ("[0.2, 0.1]", "a list of times must ascend from 0 or later"),
    ("[-1, 0.1]", "a list of times must ascend from 0 or later"),
])  # fmt: skip
def test_times_that_are_none_are_refused(every, said):
    with pytest.raises(CaseError, match=said):
        parse(f"{MARCH}[output]\nevery = {every}\n", "case")


# ---- several files -------------------------------------------------------------------------------

HEATED = """
[model]
kind = "flow"
viscosity = 0.02
thermal_diffusivity = 0.03
buoyancy = [0, 5, 0]
[grid]
cells = [10, 6, 7]
upper = [1.0, 0.6, 0.7]
periodic = ["x"]
[initial]
temperature = "x*y*z"
velocity_x = "y*(0.6 - y)"
[boundary]
bottom = { kind = "no-slip", temperature.value = 1 }
top = { kind = "no-slip", temperature.value = 0 }
back = { kind = "free-slip", temperature.gradient = 0 }
front = { kind = "free-slip", temperature.gradient = 0 }
[time]
cfl = 0.1
end = 0.1
[output]
every = "0.04 s"
"""
PLANE = """
[[output.file]]
name = "plane"
every = 1
fields = ["temperature", "velocity_x"]
lower = [0, 0, 0.33]
upper = [1, 0.6, 0.33]
precision = "float32"
compression = "gzip"
"""
CORNER = """
[[output.file]]
name = "corner"
every = "0.03 s"
fields = ["pressure", "temperature"]
lower = [0.5, 0.1, 0]
stride = [2, 1, 3]
"""
FILES = HEATED + PLANE + CORNER
HERE = {"plane": np.s_[3:4, :, :], "corner": np.s_[::3, 1:, 5::2]}
"""The points of each file, [z, y, x]."""


def compare(path, whole, names=("", "_plane", "_corner")):
    """That the files of two runs hold the same."""
    for name in names:
        pair = [read(f.with_name(f"{f.stem}{name}.h5")) for f in (path, whole)]
        assert np.array_equal(pair[0].time, pair[1].time), name
        assert pair[0].fields.keys() == pair[1].fields.keys()
        for field, values in pair[0].fields.items():
            assert values.dtype == pair[1].fields[field].dtype
            assert np.array_equal(values, pair[1].fields[field]), (name, field)
        for column, values in pair[0].history.items():
            assert np.array_equal(values, pair[1].history[column]), column


@pytest.mark.few(1, among="numpy")
def test_files_hold_their_points_at_their_times(backend, tmp_path):
    case, path = parse(FILES, "case"), tmp_path / "case.h5"
    run(case, backend, path)
    run(parse(HEATED, "case", ["output.every=1"]), "numpy", tmp_path / "all.h5")
    everything = read(tmp_path / "all.h5")
    files = {name: read(tmp_path / f"case_{name}.h5") for name in HERE}
    assert files["plane"].time.tolist() == everything.time.tolist()
    assert files["corner"].time.size == 5
    for name, place in HERE.items():
        frames = np.searchsorted(everything.time, files[name].time)
        for n, axis in enumerate("zyx"):
            assert np.array_equal(files[name].coordinates[axis],
                                  everything.coordinates[axis][place[n]])  # fmt: skip
        for field, values in files[name].fields.items():
            exact = everything.fields[field][(frames, *place)]
            assert np.array_equal(values, exact.astype(values.dtype)), (name, field)
    assert set(files["plane"].fields) == {"temperature", "velocity_x"}
    assert files["plane"].fields["temperature"].dtype == np.float32
    assert files["corner"].fields["pressure"].dtype == np.float64
    assert files["plane"].attributes["output"] == "plane"
    with h5py.File(tmp_path / "case_plane.h5") as file:
        assert file["temperature"].compression == "gzip"
    names = [f"{case.name}_{name}.h5 (about" for name in HERE]
    (said,) = (row for row in preview(case) if row.startswith("files"))
    assert all(name in said for name in names)


def test_a_frame_without_a_pressure_needs_no_solution_for_it(tmp_path, monkeypatch):
    find, found = Projection._find_present_pressure, []
    monkeypatch.setattr(Projection, "_find_present_pressure", lambda self: found.append(find(self)))
    path = run(parse(HEATED + PLANE, "case"), "numpy", tmp_path / "case.h5").path
    assert len(found) == read(path).time.size < read(tmp_path / "case_plane.h5").time.size


@mpi
@pytest.mark.parametrize("ranks, dims", [
    (2, "[1,1,2]"),
    pytest.param(3, "[3,1,1]", marks=pytest.mark.thorough),
    pytest.param(4, "[2,1,2]", marks=pytest.mark.thorough),
])  # fmt: skip
def test_files_of_many_processes(ranks, dims, tmp_path):
    """Processes without a point of a file write nothing of it; a restart goes on with others."""
    text = FILES.replace("0.0", "0.01").replace("end = 0.1", "end = 0.04")
    text += "[checkpoint]\nevery = 2\n"
    (tmp_path / "case.toml").write_text(text)
    run(parse(text, "case"), "numpy", tmp_path / "whole.h5")
    more = ("--backend", "numpy", "--output", tmp_path / "case.h5", "--set")
    command = ("-m", "heatsolve", "run", tmp_path / "case.toml", *more, f"parallel.ranks={dims}")
    done = launch(ranks, *command)
    assert done.returncode == 0, done.stderr
    compare(tmp_path / "case.h5", tmp_path / "whole.h5")
    # One process stops, several go on: files are parts of different blocks.
    (tmp_path / "case.h5").unlink()
    with pytest.raises(Interrupted):
        run(parse(text, "case"), "numpy", tmp_path / "case.h5",
            start=Start(overwrite=True), request=Impatient(2))  # fmt: skip
    done = launch(ranks, *command, "--restart")
    assert done.returncode == 0, done.stderr
    compare(tmp_path / "case.h5", tmp_path / "whole.h5")


def test_no_file_loses_a_frame_by_a_restart(tmp_path):
    text = FILES.replace("end = 0.1", "end = 0.06") + "[checkpoint]\nevery = 3\n"
    case, path = parse(text, "case"), tmp_path / "twice.h5"
    run(case, "numpy", tmp_path / "whole.h5")
    for questions in (2, 3):
        with pytest.raises(Interrupted):
            run(case, "numpy", path, start=RESTART, request=Impatient(questions))
    # Other points are another file: a restart could not write its earlier frames.
    for change in ("output.file.0.stride=2", "output.file.1.name=edge", "output.file=[]"):
        with pytest.raises(InputError, match=r"output.file"):
            run(parse(text, "case", [change]), "numpy", path, start=RESTART)
    run(case, "numpy", path, start=RESTART)
    compare(path, tmp_path / "whole.h5")
    before = {each: each.read_bytes() for each in tmp_path.glob("twice*.h5")}
    run(case, "numpy", path, start=RESTART)
    assert before == {each: each.read_bytes() for each in tmp_path.glob("twice*.h5")}
    assert not list(tmp_path.glob("twice*.parts"))


def test_files_of_a_steady_case(tmp_path):
    text = MARCH[MARCH.index("[grid]") : MARCH.index("[time]")]
    text += "[output]\ncompression = 'lzf'\n[[output.file]]\nname = 'thin'\nstride = 3\n"
    run(parse(text, "case"), "numpy", tmp_path / "a.h5")
    whole, thin = read(tmp_path / "a.h5"), read(tmp_path / "a_thin.h5")
    assert np.array_equal(thin.fields["temperature"], whole.fields["temperature"][::3, ::3])
    assert thin.time is None and "residual" in thin.history
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["temperature"].compression == "lzf"


def test_a_plane_is_drawn_as_one(tmp_path):
    run(parse(HEATED + PLANE, "case"), "numpy", tmp_path / "case.h5")
    view = look(tmp_path / "case_plane.h5", "temperature")
    assert list(view.axes) == ["y", "x"] and view.place == "z = 0.35"
    assert view.ends == [(0.0, 0.6), (0.0, 1.0)] and view.domain.periodic == {"x"}
    assert plot(tmp_path / "case_plane.h5").stat().st_size > 10000
    run(parse(HEATED + CORNER, "case"), "numpy", tmp_path / "case.h5")
    view = look(tmp_path / "case_corner.h5", "temperature", {"z": 0.05})
    assert view.ends == [(pytest.approx(0.15), pytest.approx(0.55)),
                         (pytest.approx(0.55), pytest.approx(0.95))]  # fmt: skip


@pytest.mark.parametrize("given, said", [
    ("name = 'a/b'", "output.file.0.name: must be letters, digits, - and _, not \"a/b\""),
    ("name = 'a'\n[[output.file]]\nname = 'a'", "a is the name of another one, too"),
    ("name = 'a'\nfields = ['heat']", "output.file.0.fields.0: the model has no heat"),
    ("name = 'a'\nlower = [0.5, 2]", "output.file.0.lower: 2 is outside 0 to 1 along y"),
    ("name = 'a'\nlower = [0.5]", "output.file.0.lower: must have length 2"),
    ("name = 'a'\nlower = [0.5, 0.5]\nupper = [0.4, 1]", "upper: must not be below lower"),
    ("name = 'a'\nstride = [1, 2, 3]", "stride: must be one number, or a list of 2"),
    ("name = 'a'\nstride = 0", "stride: must be whole numbers above 0, not 0"),
    ("name = 'a'\ncompression = 'zip'", "output.file.0.compression"),
    ("every = 3", "output.file.0.name: missing"),
])  # fmt: skip
def test_files_that_make_no_sense_are_refused(given, said):
    with pytest.raises(CaseError) as refused:
        parse(f"{MARCH}[[output.file]]\n{given}\n", "case")
    assert said in str(refused.value)
