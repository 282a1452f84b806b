"""Statistics in time: exact values, Welford's sums bit by bit, on all backends and processes, and
across restarts."""

import numpy as np
import pytest
import xarray
from many import Impatient
from test_outputs import FLOW as CAVITY
from test_ranks import launch, mpi

import heatsolve
from heatsolve.backends.registry import make
from heatsolve.budget import budget_of
from heatsolve.case.load import load, parse
from heatsolve.control.controller import Start
from heatsolve.errors import CaseError, InputError, Interrupted
from heatsolve.io.reader import read
from heatsolve.models.base import make_model
from heatsolve.models.unused import unused_keys
from heatsolve.runner import run
from heatsolve.stencil.language import fill
from heatsolve.tools.check import preview
from heatsolve_post.plot import plot
from heatsolve_post.view import look

RESTART = Start(restart=True)
BAR = """
[model]
steady = false
[grid]
{kind} = [{n}, 3]
[initial]
temperature = "cos(pi*x)"
[boundary]
left.temperature.gradient = 0
right.temperature.gradient = 0
bottom.temperature.gradient = 0
top.temperature.gradient = 0
[time]
end = 0.1
step = 0.0005
[statistics]
mean = ["temperature"]
variance = ["temperature"]
minimum = ["temperature"]
maximum = ["temperature"]
"""
# Walls of nodes are no unknowns, and change in time; steps follow the flow.
HEAT = """
[model]
steady = false
[grid]
nodes = [9, 8]
[initial]
temperature = "sin(5*x)*y"
[boundary]
left.temperature.value = "1 + sin(40*t)*y"
right.temperature.value = 0
bottom.temperature.gradient = 0
top.temperature.value = "cos(30*t)"
[time]
step = 0.002
end = 0.1
[output]
every = 1
fields = ["temperature", "temperature_gradient_x", "mean_temperature", "variance_temperature",
          "covariance_temperature_temperature_gradient_x", "minimum_temperature",
          "maximum_temperature_gradient_x"]
[statistics]
begin = 0.0213
every = 3
mean = ["temperature"]
variance = ["temperature"]
covariance = [["temperature", "temperature_gradient_x"]]
minimum = ["temperature"]
maximum = ["temperature_gradient_x"]
"""
FLOW = CAVITY.replace("end = 0.5", "end = 0.2")
FLOW += """
[output]
every = 1
[statistics]
mean = ["velocity_x", "pressure"]
variance = ["velocity_y"]
covariance = [["velocity_x", "velocity_y"]]
maximum = ["speed"]
[units]
velocity_x = "m/s"
velocity_y = "m/s"
"""
FLOW_INTEGRALS = """
[[statistics.integral]]
name = "lid"
fields = ["velocity_x", "pressure"]
wall = "top"
[[statistics.integral]]
name = "core"
fields = ["speed", "mean_velocity_x", "covariance_velocity_x_velocity_y"]
lower = [0.21, 0.3]
upper = [0.77, 0.86]
"""
HEAT_INTEGRALS = """
[[statistics.integral]]
name = "part"
fields = ["temperature", "temperature_gradient_x", "variance_temperature"]
lower = [0.11, 0.2]
upper = [0.93, 0.7]
"""
PROFILES = """
[statistics.profile]
x = ["{0}", "mean_{0}"]
y = ["{0}"]
"""
CASES = {
    "heat": HEAT + HEAT_INTEGRALS + PROFILES.format("temperature"),
    "flow": FLOW + FLOW_INTEGRALS + PROFILES.format("velocity_x"),
}


def welford(section, found, schedule):
    """The statistics of each frame after some of the steps, in NumPy."""
    values = found.fields
    sums, weight, last = {}, 0.0, section.begin
    for n, time in enumerate(found.time):
        if n == 0 or not schedule(n) or time <= last:
            yield {} if not weight else None
            continue
        w, last = time - last, time
        first, weight = not weight, weight + w
        result = {}
        names = {name for each in section.fields.values() for name in each.sources}
        old = {name: sums.get(name, np.zeros_like(values[name][n])) for name in names}
        away = {name: values[name][n] - old[name] for name in names}
        for name in names:
            sums[name] = old[name] + w / weight * away[name]
        for name, asked in section.fields.items():
            u, kind = asked.sources[0], asked.kind
            here = values[u][n]
            if kind == "mean":
                result[name] = sums[u]
            elif kind == "product":
                v = asked.sources[1]
                change = w * (away[u] * (values[v][n] - sums[v]))
                sums[name] = sums.get(name, 0.0) + change
                result[name] = sums[name] * (1.0 / weight)
            else:
                pick = np.minimum if kind == "minimum" else np.maximum
                sums[name] = here if first else pick(here, sums[name])
                result[name] = sums[name]
        yield result


@pytest.mark.few(2)
@pytest.mark.parametrize("kind, n", [("cells", 16), ("nodes", 17)])
def test_statistics_of_a_mode_that_decays(kind, n, backend, tmp_path):
    """T = a^k cos(pi x): each step multiplies it by a, so sums over steps are geometric series."""
    text = BAR.format(kind=kind, n=n)
    found = read(run(parse(text, "case"), backend, tmp_path / "a.h5").path)
    first, last = found.fields["temperature"][[0, -1]]
    h, dt, steps = 1 / 16, 0.0005, 200
    a = 1.0 - dt * (2.0 - 2.0 * np.cos(np.pi * h)) / h**2
    assert last == pytest.approx(a**steps * first, rel=1e-10, abs=1e-14)
    mean = a * (1.0 - a**steps) / (1.0 - a) / steps
    square = a**2 * (1.0 - a ** (2 * steps)) / (1.0 - a**2) / steps
    result = {name: values[-1] for name, values in found.fields.items()}
    assert result["mean_temperature"] == pytest.approx(mean * first, rel=1e-10, abs=1e-14)
    variance = (square - mean**2) * first**2
    assert result["variance_temperature"] == pytest.approx(variance, rel=1e-9, abs=1e-14)
    pair = np.stack([a * first, last])
    assert result["minimum_temperature"] == pytest.approx(pair.min(axis=0), rel=1e-10, abs=1e-14)
    assert result["maximum_temperature"] == pytest.approx(pair.max(axis=0), rel=1e-10, abs=1e-14)
    # Before the first sample there is none.
    assert np.isnan(found.fields["mean_temperature"][0]).all()


@pytest.mark.few(1, among="numpy-heat")
@pytest.mark.parametrize("name", CASES)
def test_welfords_sums_bit_by_bit(name, backend, tmp_path):
    """Those of the values in a file, weighted by the steps; statistics bend no step."""
    case = parse(CASES[name], "case", [] if name == "heat" else ["output.fields=[\
        'velocity_x','velocity_y','pressure','speed','mean_velocity_x','variance_velocity_y',\
        'covariance_velocity_x_velocity_y','maximum_speed']"])  # fmt: skip
    found = read(run(case, backend, tmp_path / "a.h5").path)
    every = case.statistics.every
    exact, count = None, 0
    for n, result in enumerate(welford(case.statistics, found, lambda n: n % every == 0)):
        exact = exact if result is None else result
        for statistic in case.statistic_fields:
            if statistic not in found.fields:  # a pressure is that of the last stage
                continue
            values = found.fields[statistic][n]
            if exact:
                assert np.array_equal(values, exact[statistic]), (statistic, n)
                count += 1
            else:
                assert np.isnan(values).all()
    assert count > 50
    plain = parse(CASES[name].partition("[output]")[0] + "[output]\nevery = 1\n", "case")
    plain = read(run(plain, backend, tmp_path / "b.h5").path)
    assert np.array_equal(plain.time, found.time)
    for field in set(plain.fields) & set(found.fields):
        assert np.array_equal(plain.fields[field], found.fields[field]), field


def test_means_of_even_steps_are_those_of_numpy(tmp_path):
    """To rounding, with every sample of one weight; and where several steps are made at once."""
    more = ["statistics.begin=0", "statistics.every=5", "time.end=0.1"]
    case = parse(HEAT, "case", more)
    found = read(run(case, "numpy", tmp_path / "a.h5").path).fields
    samples = found["temperature"][5::5]
    assert found["mean_temperature"][-1] == pytest.approx(samples.mean(axis=0), rel=1e-13)
    assert found["variance_temperature"][-1] == pytest.approx(samples.var(axis=0), abs=1e-15)
    assert np.array_equal(found["minimum_temperature"][-1], samples.min(axis=0))
    other = found["temperature_gradient_x"][5::5]
    away = (samples - samples.mean(axis=0)) * (other - other.mean(axis=0))
    covariance = found["covariance_temperature_temperature_gradient_x"][-1]
    assert covariance == pytest.approx(away.mean(axis=0), abs=1e-14)


def test_samples_by_time_among_steps_that_are_made_at_once(other_backend, tmp_path):
    text = BAR.format(kind="cells", n=64).replace("end = 0.1\nstep = 0.0005",
                                                  "end = 0.01\nstep = 0.0001")  # fmt: skip
    text += "every = '0.0007 s'\nbegin = 0.0033\n[solver]\ncheck_every = 50\n"
    results = {}
    for backend in ("numpy", other_backend):
        results[backend] = read(run(parse(text, "case"), backend, tmp_path / "a.h5").path).fields
    for name, values in results["numpy"].items():
        assert np.array_equal(values, results[other_backend][name], equal_nan=True), name
    run(parse(text, "case", ["output.every=1"]), "numpy", tmp_path / "b.h5")
    values, last = read(tmp_path / "b.h5").fields, results["numpy"]
    for name in last:
        assert np.array_equal(last[name][-1], values[name][-1]), name
    lowest = values["temperature"][[35, 42, 49, 56, 63, 70, 77, 84, 91, 98]].min(axis=0)
    assert np.array_equal(last["minimum_temperature"][-1], lowest)


@pytest.mark.few(1, among="heat")
@pytest.mark.parametrize("name", CASES)
def test_a_restart_goes_on_with_statistics(name, tmp_path):
    text = CASES[name] + f"[checkpoint]\nevery = {9 if name == 'heat' else 4}\n"
    path = tmp_path / "twice.h5"
    end = {"heat": 0.05, "flow": 0.2}[name]
    case = parse(text, "case", [f"time.end={end}"])
    whole = read(run(case, "numpy", tmp_path / "whole.h5").path)
    with pytest.raises(Interrupted):
        run(case, "numpy", path, request=Impatient(3))
    with pytest.raises(InputError, match=r"statistics\.begin: was 0(\.0213)? in the checkpoint"):
        changed = parse(text, "case", [f"time.end={end}", "statistics.begin=0.01"])
        run(changed, "numpy", path, start=RESTART)
    run(case, "numpy", path, start=RESTART)
    same(read(path), whole)
    # A finished march goes on to a later end.
    longer = parse(text, "case", [f"time.end={1.2 * end}"])
    run(longer, "numpy", path, start=RESTART)
    run(longer, "numpy", tmp_path / "longer.h5")
    for name, values in read(tmp_path / "longer.h5").fields.items():
        assert np.array_equal(read(path).fields[name][-1], values[-1]), name


def same(one, other):
    assert np.array_equal(one.time, other.time)
    assert one.fields.keys() == other.fields.keys()
    for name, values in one.fields.items():
        assert np.array_equal(values, other.fields[name], equal_nan=True), name
    assert one.history.keys() == other.history.keys()
    for name, values in one.history.items():
        assert np.array_equal(values, other.history[name], equal_nan=True), name


@mpi
@pytest.mark.parametrize("ranks, dims", [
    (2, "[1,2]"),
    pytest.param(3, "[3,1]", marks=pytest.mark.thorough),
    pytest.param(4, "[2,2]", marks=pytest.mark.thorough),
])  # fmt: skip
@pytest.mark.parametrize("name", ["heat", pytest.param("flow", marks=pytest.mark.thorough)])
def test_the_same_bits_on_many_processes(name, ranks, dims, tmp_path):
    """Also where one process stops and several go on: each takes its walls of nodes."""
    short = CASES[name].replace("end = 0.1", "end = 0.05").replace("end = 0.2", "end = 0.1")
    text = short + f"[checkpoint]\nevery = {9 if name == 'heat' else 3}\n"
    (tmp_path / "case.toml").write_text(text)
    case = parse(text, "case")
    whole = read(run(case, "numpy", tmp_path / "whole.h5").path)
    with pytest.raises(Interrupted):
        run(case, "numpy", tmp_path / "many.h5", start=Start(overwrite=True), request=Impatient(3))
    command = ("-m", "heatsolve", "run", tmp_path / "case.toml", "--backend", "numpy",
               "--set", f"parallel.ranks={dims}")  # fmt: skip
    done = launch(ranks, *command, "--output", tmp_path / "many.h5", "--restart")
    assert done.returncode == 0, done.stderr
    same(read(tmp_path / "many.h5"), whole)
    if ranks > 2:
        done = launch(ranks, *command, "--output", tmp_path / "new.h5")
        assert done.returncode == 0, done.stderr
        same(read(tmp_path / "new.h5"), whole)


def test_a_program_reads_statistics_and_sets_values_meanwhile(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = parse(FLOW, "case", ["time.end=0.2", "output.every="])
    sim = heatsolve.Simulation(case, backend="numpy")
    sim.step(3)
    before = np.asarray(sim["mean_velocity_x"])
    assert np.isfinite(before).all() and np.abs(before).max() > 0.0
    sim.set("boundary.top.velocity_x.value", 1.0)  # which makes another model of an equal case
    assert np.array_equal(np.asarray(sim["mean_velocity_x"]), before)
    sim.set("boundary.top.velocity_x.value", 2.0)
    assert np.array_equal(np.asarray(sim["mean_velocity_x"]), before)
    sim.step(1)
    assert not np.array_equal(np.asarray(sim["mean_velocity_x"]), before)


def test_units_and_files_of_statistics(tmp_path):
    case = parse(FLOW + "[[output.file]]\nname='means'\nfields=['mean_velocity_x']\nevery=100\n",
                 "case", ["time.end=0.05", "output.plot=['variance_velocity_y']"])  # fmt: skip
    found = read(run(case, "numpy", tmp_path / "a.h5").path)
    units = {name: found.units[name] for name in case.statistic_fields}
    assert units == {
        "mean_velocity_x": "m/s",
        "mean_pressure": "1",
        "variance_velocity_y": "(m/s)^2",
        "covariance_velocity_x_velocity_y": "(m/s)^2",
        "maximum_speed": "m/s",
    }
    assert look(tmp_path / "a.h5").field == "pressure"  # no statistic is the main field
    means = read(tmp_path / "a_means.h5")
    assert np.array_equal(means.fields["mean_velocity_x"][-1], found.fields["mean_velocity_x"][-1])
    # `check` counts the arrays that stay: three means, two products, one maximum.
    large = parse(FLOW, "case", ["grid.cells=[96,96]"])
    plain = parse(FLOW, "case", ["grid.cells=[96,96]", "statistics="])
    machine = make("numpy")
    more = budget_of(large, machine).arrays - budget_of(plain, machine).arrays
    assert 6 * 98**2 * 8 <= more <= 16 * 98**2 * 8


# ---- integrals -----------------------------------------------------------------------------------

EXACT = "1 + 2*x - 3*y + 0.5*z"
BOX = f"""
[model]
steady = false
[grid]
KIND
lower = [-0.5, 0, 0]
upper = [0.5, 0.8, 1.2]
PERIODIC
[initial]
temperature = "{EXACT}"
[boundary]
WALLS
[time]
end = 1e-12
step = 1e-12
[statistics]
maximum = ["temperature"]
"""
INTEGRALS = """
[[statistics.integral]]
name = "all"
fields = ["temperature", "temperature_gradient_y", "maximum_temperature"]
[[statistics.integral]]
name = "box"
fields = ["temperature"]
lower = [-0.3, 0.2, 0.3]
upper = [0.1, 0.6, 0.9]
[[statistics.integral]]
name = "plane"
fields = ["temperature"]
lower = [-0.5, 0.37, 0]
upper = [0.5, 0.37, 1.2]
[[statistics.integral]]
name = "wall"
fields = ["temperature"]
wall = "front"
[[statistics.integral]]
name = "point"
fields = ["temperature"]
lower = [0.11, 0.22, 0.33]
upper = [0.11, 0.22, 0.33]
"""
SIDES = ("left", "right", "bottom", "top", "back", "front")


def box_text(kind, sides=SIDES):
    points = {"cells": "cells = [10, 8, 12]", "nodes": "nodes = [11, 9, 13]"}[kind]
    walls = "\n".join(f'{side}.temperature = {{ value = "{EXACT}" }}' for side in sides)
    return BOX.replace("KIND", points).replace("WALLS", walls).replace("PERIODIC", "")


def mean_of(low, high):
    x, y, z = (0.5 * (a + b) for a, b in zip(low, high, strict=True))
    return 1 + 2 * x - 3 * y + 0.5 * z


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["cells", "nodes"])
def test_integrals_of_a_linear_field_are_exact(kind, backend, tmp_path):
    """Midpoints of cells, the trapezoidal rule on nodes, linear interpolation to planes."""
    lower = (-0.3, 0.2, 0.3), (0.1, 0.6, 0.9)
    if kind == "nodes":  # whose volumes end midway
        lower = (-0.35, 0.25, 0.25), (0.15, 0.65, 0.95)
    more = [f"statistics.integral.1.{key}={list(corner)}"
            for key, corner in zip(("lower", "upper"), lower, strict=True)]  # fmt: skip
    case = parse(box_text(kind) + INTEGRALS, "case", more)
    history = read(run(case, backend, tmp_path / "a.h5").path).history
    whole = (-0.5, 0, 0), (0.5, 0.8, 1.2)
    exact = {
        "all_temperature": 0.96 * mean_of(*whole),
        "all_maximum_temperature": 0.96 * mean_of(*whole),
        "all_temperature_gradient_y": -3 * 0.96,
        "box_temperature": np.prod(np.subtract(*lower[::-1])) * mean_of(*lower),
        "plane_temperature": 1.2 * mean_of((-0.5, 0.37, 0), (0.5, 0.37, 1.2)),
        "wall_temperature": 0.8 * mean_of((-0.5, 0, 1.2), (0.5, 0.8, 1.2)),
        "point_temperature": mean_of((0.11, 0.22, 0.33), (0.11, 0.22, 0.33)),
    }
    found = {name: values[-1] for name, values in history.items() if name.startswith("integral")}
    assert found.keys() == {f"integral_{name}" for name in exact}
    for name, value in exact.items():
        assert found[f"integral_{name}"] == pytest.approx(value, rel=1e-10), name
    (row,) = (row for row in preview(case) if row.startswith("history"))
    assert "rows of 11 columns" in row


@pytest.mark.parametrize("kind, n", [("cells", 8), ("nodes", 8)])
def test_integrals_along_a_periodic_axis(kind, n, tmp_path):
    """A node at its begin stands for half a spacing at its end, too."""
    text = f"""
[model]
steady = false
[grid]
{kind} = [{n}]
upper = [4]
periodic = ["x"]
[initial]
temperature = "1 if x < 0.4 else 0"
[time]
end = 1e-12
step = 1e-12
[[statistics.integral]]
name = "whole"
fields = ["temperature"]
[[statistics.integral]]
name = "end"
fields = ["temperature"]
lower = [3.5]
[[statistics.integral]]
name = "last"
fields = ["temperature"]
lower = [4]
"""
    history = read(run(parse(text, "case"), "numpy", tmp_path / "a.h5").path).history
    at_end, last = (0.25, 1.0) if kind == "nodes" else (0.0, 0.5)
    found = [history[f"integral_{name}_temperature"][-1] for name in ("whole", "end", "last")]
    assert found == pytest.approx([0.5, at_end, last], abs=1e-9)


def test_integrals_of_a_steady_case(tmp_path):
    text = box_text("nodes")
    text = text[text.index("[grid]") : text.index("[time]")] + "[solver]\ntolerance = 1e-12\n"
    integrals = INTEGRALS.replace(', "maximum_temperature"', "")
    about = read(run(parse(text + integrals, "case"), "numpy", tmp_path / "a.h5").path).attributes
    assert about["integral_all_temperature"] == pytest.approx(0.96 * mean_of((0, 0.4, 0.6), (0, 0.4,
                                                              0.6)), rel=1e-9)  # fmt: skip
    assert about["integral_point_temperature"] == pytest.approx(
        mean_of((0.11, 0.22, 0.33), (0.11, 0.22, 0.33)), rel=1e-9
    )


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["cells", "nodes"])
def test_profiles_are_means_over_planes(kind, backend, tmp_path):
    """Weighted by the volumes of points; each sample has a row."""
    text = box_text(kind).replace("end = 1e-12\nstep = 1e-12", "end = 0.01\nstep = 0.001")
    text += "every = 2\n[statistics.profile]\n"
    text += "\n".join(f"{axis} = ['temperature', 'maximum_temperature']" for axis in "xyz")
    case = parse(text, "case", ["output.every=1", "initial.temperature='exp(x*y*z)'"])
    found = read(run(case, backend, tmp_path / "a.h5").path)
    assert found.history["sample_time"] == pytest.approx([0.002, 0.004, 0.006, 0.008, 0.01])
    lines, h = list(found.coordinates.values()), 0.1
    widths = [np.full(len(line), h) for line in lines]
    for width in widths if kind == "nodes" else ():
        width[[0, -1]] *= 0.5
    for n, axis in enumerate("zyx"):
        for name in ("temperature", "maximum_temperature"):
            profile = found.history[f"profile_{axis}_{name}"]
            assert profile.shape == (5, len(lines[n]))
            values = found.fields[name][2::2]
            others = [m for m in range(3) if m != n]
            area = np.prod([widths[m].sum() for m in others])
            weights = np.multiply.outer(*[widths[m] for m in others])
            shape = [1 if m == n else len(widths[m]) for m in range(3)]
            means = (values * weights.reshape(shape)).sum(axis=tuple(m + 1 for m in others)) / area
            assert profile == pytest.approx(means, rel=1e-13), (axis, name)
    (row,) = (row for row in preview(case) if row.startswith("history"))
    assert "5 samples" in row


@pytest.mark.few(2)
@pytest.mark.parametrize("kind, n", [("cells", 12), ("nodes", 13)])
def test_spectra_of_a_few_waves(kind, n, backend, tmp_path):
    """3 + 2 cos(k x) + y sin(2 k x): 9 of the mean, 4/2, and (1/2) of the mean of y^2."""
    text = f"""
[model]
kind = "transport"
velocity = [0, 0]
diffusivity = 0
[grid]
{kind} = [{n}, 64]
upper = [3, 1]
periodic = ["x"]
[initial]
concentration = "3 + 2*cos(2*pi*x/3) + y*sin(4*pi*x/3)"
[boundary]
bottom.concentration.gradient = 0
top.concentration.gradient = 0
[time]
end = 0.02
step = 0.01
[output]
every = 1
[statistics.spectrum]
x = ["concentration"]
"""
    case = parse(text, "case")
    found = read(run(case, backend, tmp_path / "a.h5").path)
    energies = found.history["spectrum_x_concentration"]
    assert energies.shape == (2, n // 2 + 1)
    exact = np.zeros(n // 2 + 1)
    exact[:3] = 9.0, 2.0, 1 / 6
    assert energies[-1] == pytest.approx(exact, abs=1e-4)  # a midpoint rule of y^2
    square = found.fields["concentration"][-1] ** 2
    lines = np.ones(64)
    if kind == "nodes":
        lines[[0, -1]] = 0.5
    assert energies[-1].sum() == pytest.approx((lines @ square).sum() / n / lines.sum(), rel=1e-12)
    (row,) = (row for row in preview(case) if row.startswith("history"))
    assert "2 samples of profiles or spectra" in row


WAVES = """
[model]
kind = "flow"
viscosity = 0.02
[grid]
cells = [12, 10]
periodic = ["x", "y"]
[initial]
velocity_x = "sin(2*pi*x)*cos(2*pi*y) + 0.3*cos(6*pi*y)"
velocity_y = "-cos(2*pi*x)*sin(2*pi*y) + 0.2*sin(4*pi*x)"
[time]
step = 0.01
end = 0.03
scheme = "rk3"
[statistics.spectrum]
x = ["velocity_x", "vorticity"]
y = ["velocity_x"]
[statistics.profile]
x = ["speed"]
"""


@mpi
@pytest.mark.parametrize("ranks, dims", [
    (2, "[2,1]"),
    pytest.param(3, "[3,1]", marks=pytest.mark.thorough),
    pytest.param(4, "[2,2]", marks=pytest.mark.thorough),
])  # fmt: skip
def test_spectra_of_many_processes(ranks, dims, tmp_path):
    """To rounding: they are the only statistic without equal bits."""
    (tmp_path / "case.toml").write_text(WAVES)
    whole = read(run(parse(WAVES, "case"), "numpy", tmp_path / "whole.h5").path).history
    done = launch(ranks, "-m", "heatsolve", "run", tmp_path / "case.toml", "--backend", "numpy",
                  "--set", f"parallel.ranks={dims}", "--output", tmp_path / "many.h5")  # fmt: skip
    assert done.returncode == 0, done.stderr
    many = read(tmp_path / "many.h5").history
    assert {name for name in whole if name.startswith("spectrum")} == {
        "spectrum_x_velocity_x", "spectrum_x_vorticity", "spectrum_y_velocity_x"
    }  # fmt: skip
    for name, values in whole.items():
        if name.startswith("spectrum"):
            assert many[name] == pytest.approx(values, rel=1e-11, abs=1e-14), name
        else:
            assert np.array_equal(many[name], values), name


@pytest.mark.parametrize("given, said", [
    ("mean = ['heat']", "statistics.mean.0: the model has no heat"),
    ("mean = ['mean_temperature']", "statistics.mean.0: the model has no mean_temperature"),
    ("covariance = [['temperature']]", "statistics.covariance.0: must be a pair of fields, not 1"),
    ("every = 5", "statistics: every without samples: name fields"),
    ("profile.z = ['temperature']", "statistics.profile.z: the case has no z axis"),
    ("spectrum.x = ['temperature']", "spectrum.x: needs a periodic axis, and x has walls"),
    ("profile.x = ['heat']", "statistics.profile.x.0: the model has no heat"),
    ("mean = ['temperature']\nbegin = -1", "statistics.begin"),
    ("mean = ['temperature']\nevery = 0", "must be a number of iterations or steps"),
    ("mean = ['temperature']\nevery = 0.005", 'such as "0.005 s", not 0.005'),
])  # fmt: skip
def test_statistics_that_make_no_sense_are_refused(given, said):
    with pytest.raises(CaseError) as refused:
        parse(f"{HEAT[: HEAT.index('[output]')]}[statistics]\n{given}\n", "case")
    assert said in str(refused.value)
    for given, said in (
        ("name='a b'\nfields=['temperature']", "integral.0.name: must be letters, digits and _"),
        ("name='a'\nfields=['heat']", "integral.0.fields.0: the model has no heat"),
        ("name='a'\nfields=[]", "integral.0.fields: must name a field"),
        ("name='a'\nfields=['temperature']\nlower=[2, 0]", "lower: 2 is outside 0 to 1 along x"),
        ("name='a'\nfields=['temperature']\nlower=[0.5,0]\nupper=[0.4,1]", "below lower"),
        ("name='a'\nfields=['temperature']\nwall='back'", "the case has no wall back"),
        ("name='a'\nfields=['temperature']\nwall='top'\nlower=[0,0]", "is a box of its own"),
        ("name='a'\nfields=['mean_temperature']", "name temperature in statistics.mean"),
        (
            "name='a'\nfields=['temperature']\n[[statistics.integral]]\nname='a'\n"
            "fields=['temperature']",
            "integral_a_temperature is a column of another one, too",
        ),
    ):
        with pytest.raises(CaseError) as refused:
            text = HEAT[: HEAT.index("[output]")]
            parse(f"{text}[[statistics.integral]]\n{given}\n", "case")
        assert said in str(refused.value)
    with pytest.raises(CaseError, match="statistics: only for a transient case"):
        load("hot-plate", ["statistics.mean=['temperature']"])


def test_statistics_without_effect_are_told():
    case = parse(HEAT, "case", ["output.fields=['temperature']", "statistics.begin=7"])
    told = dict(unused_keys(case, make("numpy"), 1))
    assert "no file holds mean_temperature" in told["statistics", "mean", 0]
    assert "no file holds covariance_temperature" in told["statistics", "covariance", 0]
    assert "the march ends before" in told["statistics", "begin"]
    never = parse(HEAT, "case", ["statistics.every='2 s'"])
    told = dict(unused_keys(never, make("numpy"), 1))
    assert "the march ends before" in told["statistics", "every"]


def test_columns_of_two_integrals_are_not_mixed_up():
    """`a` of a mean, and `a_mean` of the temperature, would have one name."""
    text = HEAT[: HEAT.index("[output]")] + "[statistics]\nmean=['temperature']\n" + "".join(
        f"[[statistics.integral]]\nname='{name}'\nfields=['{field}']\n"
        for name, field in (("a", "mean_temperature"), ("a_mean", "temperature"))
    )  # fmt: skip
    with pytest.raises(CaseError, match="integral_a_mean_temperature is a column of another one"):
        parse(text, "case")


def test_names_that_a_model_has_already_are_refused():
    """And two covariances of one name."""

    def several(at, u, mean_u, u_v, v, v_w, w, *spacings):
        """Nothing changes."""
        return (0.0 * u[at],) * 6

    fields = ("u", "mean_u", "u_v", "v", "v_w", "w")
    name = "fields-of-statistics"
    heatsolve.model(name, fields=fields, diffusivities=())(several)
    text = f"""
[model]
kind = "{name}"
[grid]
cells = [8]
periodic = ["x"]
[time]
end = 0.1
step = 0.01
[statistics]
"""
    with pytest.raises(CaseError, match=r"statistics.mean.0: mean_u is a field of the model"):
        parse(text + "mean = ['u']\n", "case")
    with pytest.raises(CaseError, match=r"covariance.1: covariance_u_v_w is the name of another"):
        parse(text + "covariance = [['u_v', 'w'], ['u', 'v_w']]\n", "case")


def test_single_precision_keeps_its_sums_in_double(backend):
    """A drift of 10 K in 2000 samples: sums in single precision would lose a part of each."""
    case = parse(BAR.format(kind="cells", n=8), "case", ["solver.precision=float32"])
    machine = make(backend, "float32")
    model = make_model(case, machine)
    samples = (300.0 + 0.005 * np.arange(2000)).astype(np.float32)
    for sample in samples:
        array = model.fields["temperature"]
        machine.sweep(fill, array, model.grid.stored, float(sample))
        model.statistics.take(model.fields, 1.0)
    exact = samples.astype(float)
    sums = model.statistics.arrays
    assert machine.to_host(sums["mean temperature"])[2, 4] == pytest.approx(exact.mean(), rel=1e-13)
    found = {n: machine.to_host(model.statistics.field(n)) for n in case.statistic_fields}
    assert found["variance_temperature"].dtype == np.float32
    assert found["variance_temperature"][2, 4] == pytest.approx(exact.var(), rel=1e-6)
    assert found["maximum_temperature"][2, 4] == samples.max()


def test_a_box_that_rounding_makes_thin_is_a_plane(tmp_path):
    """0.1 + 0.2 is not 0.3."""
    text = (
        HEAT
        + """
[[statistics.integral]]
name = "thin"
fields = ["temperature"]
lower = [0.3, 0]
upper = ["0.1 + 0.2", 1]
[[statistics.integral]]
name = "thick"
fields = ["temperature"]
lower = ["0.1 + 0.2", 0]
upper = [0.3, 1]
[[statistics.integral]]
name = "plane"
fields = ["temperature"]
lower = [0.3, 0]
upper = [0.3, 1]
"""
    )
    history = read(run(parse(text, "case"), "numpy", tmp_path / "a.h5").path).history
    plane = history["integral_plane_temperature"]
    assert np.abs(plane).max() > 0.1
    for name in ("thin", "thick"):
        assert history[f"integral_{name}_temperature"] == pytest.approx(plane, rel=1e-9)


def test_the_number_of_samples_that_check_tells(tmp_path):
    for every, begin, number in ((3, 0.0213, 13), ("'0.03 s'", 0.0, 3), (7, 0.0, 7)):
        given = [f"statistics.every={every}", f"statistics.begin={begin}"]
        case = parse(HEAT + PROFILES.format("temperature"), "case", given)
        history = read(run(case, "numpy", tmp_path / "a.h5").path).history
        assert len(history["sample_time"]) == number
        (row,) = (row for row in preview(case) if row.startswith("history"))
        assert f"{number} samples of profiles" in row


def test_columns_have_positions_units_and_pictures(tmp_path):
    """Of a profile those of the grid, of a spectrum its wave numbers."""
    text = WAVES + "[units]\nvelocity_x = 'm/s'\nlength = 'm'\ntime = 's'\n"
    path = run(parse(text, "case", ["output.probes=[[0.2,0.3]]"]), "numpy", tmp_path / "a.h5").path
    whole = read(path)
    with xarray.open_dataset(path, engine="h5netcdf", group="history") as history:
        assert history.profile_x_speed.dims == ("sample_time", "x")
        assert np.array_equal(history.x, whole.coordinates["x"])
        spectrum = history.spectrum_y_velocity_x
        assert spectrum.dims == ("sample_time", "wave_number_y")
        assert history.wave_number_y.values == pytest.approx(2 * np.pi * np.arange(6))
        assert history.probe_0_velocity_x.attrs["units"] == "m/s"
        assert history.x.attrs["units"] == "m"
        assert history.dt.attrs["units"] == history.time.attrs["units"] == "s"
    assert "x" not in whole.history
    for name in ("profile_x_speed", "spectrum_x_velocity_x", "probe_0_velocity_x"):
        assert plot(path, tmp_path / f"{name}.png", name, history=True).exists()
    with pytest.raises(InputError, match="no history of 'sample_time', only of"):
        plot(path, tmp_path / "b.png", "sample_time", history=True)


def test_probes_read_statistics_that_are_written(tmp_path):
    text = HEAT.replace("[output]", "[output]\nprobes = [[0.25, 0.5]]")
    found = read(run(parse(text, "case"), "numpy", tmp_path / "a.h5").path)
    probe = found.history["probe_0_mean_temperature"]
    assert np.isnan(probe[0]) and np.isfinite(probe[-1])
    x, y = found.coordinates["x"], found.coordinates["y"]
    column = found.fields["mean_temperature"][-1][:, np.flatnonzero(x == 0.25)[0]]
    assert probe[-1] == pytest.approx(np.interp(0.5, y, column), rel=1e-12)


def test_a_restart_with_other_statistics_names_them(tmp_path):
    """And no `output.fields` that nobody wrote."""
    text = HEAT[: HEAT.index("fields =")] + HEAT[HEAT.index("[statistics]") :]
    start = ["time.end=0.06", "checkpoint.every=10"]
    run(parse(text, "case", start), "numpy", tmp_path / "a.h5")
    more = parse(text, "case", ["checkpoint.every=10", "statistics.maximum=['temperature']"])
    with pytest.raises(InputError) as refused:
        run(more, "numpy", tmp_path / "a.h5", start=RESTART)
    assert "statistics.maximum" in str(refused.value)
    assert "output.fields" not in str(refused.value)


def test_the_longest_names_can_be_read_again(tmp_path):
    covariance = "covariance_heat_flux_x_heat_flux_y"
    wanted = {
        "statistics.covariance": [["heat_flux_x", "heat_flux_y"]],
        "statistics.integral": [{"name": "n" * 60, "fields": [covariance]}],
    }
    heatsolve.run("cooling-cube", backend="numpy", output=tmp_path / "a.h5",
                  overrides=wanted | {"grid.nodes": [9, 9, 9], "time.end": 0.02})  # fmt: skip
    history = heatsolve.open(tmp_path / "a.h5").history
    assert any(name.startswith("integral_nnn") for name in history)
