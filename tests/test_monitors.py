"""What ends a run early: a condition on its history, a limit of wall time; flows of heat."""

import re

import numpy as np
import pytest
from test_ranks import launch, mpi

from heatsolve.case.load import load, parse
from heatsolve.control.controller import Start
from heatsolve.errors import CaseError, Interrupted
from heatsolve.io.reader import read
from heatsolve.runner import run
from heatsolve.time.stop_condition import StopCondition

BAR = """
[model]
steady = false
[grid]
{kind} = [{n}]
[boundary]
left.temperature = {{ value = 1 }}
right.temperature = {{ robin = {{ h = 2, ambient = 0 }} }}
[time]
end = 9
step = 0.0005
[solver]
check_every = 10
[output]
probes = [[0.5]]
heat_flow = true
"""
HOT = "[stop]\nwhen = 'probe_0_temperature > 0.5'\n"
STEADY = (
    "[stop]\nover = '0.2 s'\n"
    "when = 'probe_0_temperature_change < 1e-5 and heat_flow_right_change < 1e-5'\n"
)


def bar(*more, kind="cells", n=16):
    return parse(BAR.format(kind=kind, n=n) + "".join(more), "case")


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["cells", "nodes"])
def test_a_march_stops_when_its_monitors_are_steady(kind, backend, tmp_path):
    """T falls from 1 to 1/3 where the surroundings take 2/3 per second: exact on either grid."""
    result = run(bar(STEADY, kind=kind), backend, tmp_path / "a.h5")
    assert result.exit_code == 0 and result.outcome.ending == "stopped"
    history = read(result.path).history
    assert 0.5 < history["time"][-1] < 8.0
    assert history["probe_0_temperature"][-1] == pytest.approx(2 / 3, abs=1e-4)
    assert history["heat_flow_right"][-1] == pytest.approx(2 / 3, abs=1e-4)
    assert history["heat_flow_left"][-1] == pytest.approx(-2 / 3, abs=1e-4)
    # It stopped at the first row at which it might.
    rows = {name: values.tolist() for name, values in history.items()}
    condition = StopCondition(bar(STEADY, kind=kind).stop)
    ends = [condition.holds({n: v[:k] for n, v in rows.items()}) for k in range(len(rows["time"]))]
    assert not any(ends) and condition.holds(rows)


SPREADING = """
[model]
kind = "transport"
diffusivity = 1
[grid]
cells = [8]
[boundary]
left.concentration.value = "{}"
right.concentration.value = 0
[time]
end = {}
step = 0.002
tolerance = {}
[output]
probes = [[0.5]]
"""


@pytest.mark.parametrize(
    ("given", "least"), [("min(10*t, 1)", 0.1), ("where(t > 0.3, 1, 0)", 0.3), ("1 + exp(-9*t)", 0)]
)
def test_a_march_is_steady_when_its_walls_are(given, least, tmp_path):
    """Nothing changes in the first step, which has the walls of t = 0. A wall that still changes,
    but by less than the tolerance, is at rest."""
    case = parse(SPREADING.format(given, 9, 1e-6), "case")
    result = run(case, "numpy", tmp_path / "a.h5")
    assert result.exit_code == 0 and result.outcome.ending == "tolerance"
    history = read(result.path).history
    assert least + 1.0 < history["time"][-1] < 8.0
    assert history["probe_0_concentration"][-1] == pytest.approx(0.5, abs=1e-5)


def test_a_march_whose_walls_turn_is_not_steady(tmp_path):
    """Its rate of change is 0 in the first step."""
    case = parse(SPREADING.format("sin(2*pi*t)**3", 0.6, 1e-3), "case")
    result = run(case, "numpy", tmp_path / "a.h5")
    assert result.exit_code == 3 and result.outcome.count == 300


def test_a_condition_ends_at_its_first_row(tmp_path):
    path = run(bar(HOT), "numpy", tmp_path / "a.h5").path
    values = read(path).history["probe_0_temperature"]
    assert values[-1] > 0.5 >= values[-2]
    assert read(path).time[-1] == read(path).history["time"][-1]
    assert "probe_0_temperature > 0.5" in read(path).attributes["stopped"]
    # Behind a restart it holds already; without it the march goes on to its end.
    kept = "[checkpoint]\nevery = 1000\n"
    run(bar(HOT, kept), "numpy", path)
    count = read(path).attributes["steps"]
    assert run(bar(HOT, kept), "numpy", path, start=Start(restart=True)).outcome.count == count
    later = HOT.replace("0.5", "0.6")
    run(bar(later, kept), "numpy", path, start=Start(restart=True))
    run(bar(later, kept), "numpy", tmp_path / "b.h5")
    for name, column in read(tmp_path / "b.h5").history.items():
        assert np.array_equal(read(path).history[name], column), name


def test_heat_comes_in_and_goes_out(tmp_path):
    """In a fin, of a steady case: the sum over all walls is what sources give."""
    walls = "\n".join(
        f"{wall}.temperature = {condition}"
        for wall, condition in {
            "left": "{ value = 'y' }", "right": "{ robin = { h = 3, ambient = 0.2 } }",
            "bottom": "{ gradient = '0.5*x' }", "top": "{ value = 0 }",
        }.items()
    )  # fmt: skip
    for kind, points in (("cells", "[9, 12]"), ("nodes", "[10, 13]")):
        text = (
            f"[model]\nconductivity = '1 + x*y'\n[grid]\n{kind} = {points}\nupper = [1, 2]\n"
            f"[source]\ntemperature = 1.5\n[boundary]\n{walls}\n[solver]\ntolerance = 1e-12\n"
            "[output]\nheat_flow = true\n"
        )
        about = read(run(parse(text, "case"), "numpy", tmp_path / "a.h5").path).attributes
        flows = {name: about[f"heat_flow_{name}"] for name in ("left", "right", "bottom", "top")}
        # k dT/dn = (1 + 0) 0.5 x comes in from below: 1/4, at midpoints or trapezoids.
        assert flows["bottom"] == pytest.approx(-0.25, rel=1e-12)
        given = 1.5 * 2.0
        if kind == "nodes":  # whose volumes end half a cell before walls of given temperature
            given *= (1 - 0.5 / 9) * (1 - 0.5 / 12)
        assert sum(flows.values()) == pytest.approx(given, rel=1e-9), kind


@mpi
def test_flows_and_stops_are_the_same_on_many_processes(tmp_path):
    text = BAR.format(kind="nodes", n=17) + STEADY.replace("1e-5", "1e-2")
    (tmp_path / "case.toml").write_text(text)
    one = read(run(parse(text, "case"), "numpy", tmp_path / "one.h5").path)
    done = launch(3, "-m", "heatsolve", "run", tmp_path / "case.toml", "--backend", "numpy",
                  "--output", tmp_path / "many.h5", timeout=200)  # fmt: skip
    assert done.returncode == 0, done.stderr
    many = read(tmp_path / "many.h5")
    assert one.attributes["steps"] == many.attributes["steps"] > 100
    for name, column in one.history.items():
        assert np.array_equal(many.history[name], column), name


@pytest.mark.parametrize("steady", [True, False])
def test_a_limit_of_wall_time_saves_and_ends_with_75(steady, tmp_path):
    """The first part ends at once, as its time is over; the second has time enough."""
    if steady:
        settings = ["grid.nodes=[33,33]", "solver.method=jacobi", "solver.tolerance=1e-6"]
        case = lambda *more: load("hot-plate", [*settings, *more])  # noqa: E731
    else:
        case = lambda *more: parse(BAR.format(kind="cells", n=16), "case",  # noqa: E731
                                   ["time.end=0.5", *more])  # fmt: skip
    path = tmp_path / "a.h5"
    with pytest.raises(Interrupted, match="stopped at its wall-clock limit after") as caught:
        run(case("stop.wall_time=1e-6 s"), "numpy", path)
    assert caught.value.exit_code == 75 and "--restart from" in str(caught.value)
    run(case("stop.wall_time=2 h"), "numpy", path, start=Start(restart=True))
    run(case(), "numpy", tmp_path / "b.h5")
    for name, column in read(tmp_path / "b.h5").history.items():
        assert np.array_equal(read(path).history[name], column), name


@mpi
def test_all_processes_stop_at_the_limit(tmp_path):
    (tmp_path / "case.toml").write_text(BAR.format(kind="cells", n=16))
    more = ("--set", "stop.wall_time=0.5 s", "--set", "time.end=1e6")
    done = launch(2, "-m", "heatsolve", "run", tmp_path / "case.toml", "--backend", "numpy", *more,
                  "--output", tmp_path / "a.h5", timeout=100)  # fmt: skip
    assert done.returncode == 75, done.stderr
    assert len(re.findall("stopped at its wall-clock limit", done.stderr)) == 1


@pytest.mark.parametrize("given, said", [
    ("when = 'probe_0_temperature_change < 1'", "stop.over: missing"),
    ("when = 'time > 1'\nover = 3", "stop.over: only with a change in stop.when"),
    ("when = '1 > 2'", "stop.when: names no column of the history"),
    ("when = 3", "stop.when: must be an expression, not 3"),
    ("when = 'open(x)'", "stop.when"),
    ("wall_time = 20", 'stop.wall_time: must be a wall time, such as "110 min" or "90 s", not 20'),
    ("wall_time = 0", 'stop.wall_time: must be a wall time, such as "110 min"'),
])  # fmt: skip
def test_conditions_that_are_none_are_refused(given, said):
    with pytest.raises(CaseError) as refused:
        bar("[stop]\n", given)
    assert said in str(refused.value)


@pytest.mark.parametrize("when, steps", [
    ("residual/0 > 1", 5), ("residual/0", 5), ("0*residual/0", 5), ("not time/0 > 1", 1),
    ("time_change > 0.1", 3), ("time_change < 0.1 or time > 0.035", 4),
])  # fmt: skip
def test_a_comparison_with_what_is_not_finite_does_not_hold(when, steps, tmp_path):
    over = "over = 2\n" if "change" in when else ""
    case = bar("[stop]\n", f"when = '{when}'\n", over, n=4).text
    case = parse(case, "case", ["time.end=0.05", "time.step=0.01", "solver.check_every=1"])
    assert run(case, "numpy", tmp_path / "a.h5").outcome.count == steps


@pytest.mark.parametrize("key, value", [
    ("output.every", "9"), ("output.every", "'9 s'"),
    ("stop.over", "9"), ("stop.over", "'9 s'"),
])  # fmt: skip
def test_intervals_longer_than_the_march_are_warned_of(key, value, tmp_path, capfd):
    case = bar("[stop]\nwhen = 'time_change < 0'\nover = 1\n", n=4).text
    short = ["time.end=0.05", "time.step=0.01", f"{key}={value}"]
    run(parse(case, "case", short), "numpy", tmp_path / "a.h5")
    assert f"{key}: has no effect: the march ends before, at 0.05" in capfd.readouterr().err
    short[2] = f"{key}=5" if value == "9" else f"{key}='0.05 s'"
    run(parse(case, "case", short), "numpy", tmp_path / "a.h5")
    assert "no effect" not in capfd.readouterr().err


def test_other_mistakes_of_conditions(tmp_path):
    with pytest.raises(CaseError, match=r"the history has no probe_1_temperature; it has iter"):
        run(bar("[stop]\nwhen = 'probe_1_temperature > 1'\n"), "numpy", tmp_path / "a.h5")
    with pytest.raises(CaseError, match=r"stop\.when: only for a transient case"):
        load("hot-plate", ["stop.when='residual < 1'"])
    with pytest.raises(CaseError, match=r'heat_flow: only for model\.kind = "heat"'):
        load("cavity-re100", ["output.heat_flow=true"])
