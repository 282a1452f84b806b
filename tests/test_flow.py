"""Flow: what the schemes conserve, the orders of the staggered one, walls, and what is refused."""

import itertools
import math
import shutil

import numpy as np
import pytest
from emulated import Ahead

from heatsolve.backends.gpu import cycle_legs
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.backends.registry import choose
from heatsolve.case.load import load, parse
from heatsolve.control.controller import Start
from heatsolve.errors import CaseError, Diverged, InputError
from heatsolve.io.reader import read
from heatsolve.models.base import Substep, make_model
from heatsolve.models.flow import equations as flow
from heatsolve.models.flow.collocated import CollocatedStep
from heatsolve.models.flow.pressure import BEGINS, SMALL_WEIGHTS, Pressure, cubic_weights
from heatsolve.models.flow.projection import Projection
from heatsolve.models.flow.staggered import Staggered
from heatsolve.models.transport.equations import RUNGE_KUTTA
from heatsolve.report import Report
from heatsolve.runner import run
from heatsolve.time.step_size import step_length, time_step_controller
from heatsolve.tools.bench import Flow
from heatsolve.tools.check import preview

BOX = """
[model]
kind = "flow"
viscosity = {nu}
convection = "{form}"
{model}
[grid]
cells = {cells}
{grid}
[initial]
{initial}
[boundary]
{walls}
[time]
end = {end}
{time}
scheme = "{scheme}"
[solver]
tolerance = {tolerance}
"""


def text(**given):
    usual = {
        "nu": 0.01, "form": "central", "model": "", "cells": [16, 16], "grid": "", "initial": "",
        "walls": "", "end": 0.1, "time": "step = 0.01", "scheme": "rk3", "tolerance": 1e-8,
    }  # fmt: skip
    return BOX.format(**usual | given)


def noisy(form, dimension, tolerance=1e-13):
    """A flow without divergence, but otherwise without order, on a periodic box."""
    axes = ["x", "y", "z"][:dimension]
    case = parse(text(
        nu=0.0, form=form, cells=[12, 10, 8][:dimension], grid=f"periodic = {axes}",
        tolerance=tolerance, time="step = 0.01\nallow_unstable = true",
    ), "case")  # fmt: skip
    problem = Staggered(case, NumpyBackend())
    rng = np.random.default_rng(7)
    for name in problem.components:
        values = rng.standard_normal(problem.grid.shape)
        problem.place(problem.fields[name], problem.grid.interior, values)
        problem.halo.exchange(problem.fields[name])
    stepper = Projection(problem, 0.0, 0.01)
    stepper.prepare()
    return problem, stepper


@pytest.mark.parametrize("dimension", [2, 3])
@pytest.mark.parametrize("form", ["central", "skew"])
def test_convection_neither_makes_nor_takes_energy_and_momentum(form, dimension):
    problem, _ = noisy(form, dimension)
    velocities = problem.velocities(problem.fields)
    still = problem.backend.zeros((1,) * dimension)
    given = (0.0, *problem.inverse_spacings)
    inside = tuple(slice(*pair) for pair in problem.grid.interior)
    power = magnitude = 0.0
    for axis, w in enumerate(velocities):
        rate = problem.backend.zeros(problem.grid.shape)
        point = flow.momentum(dimension, axis, form, False)
        problem.backend.sweep(point, rate, problem.grid.interior, *velocities, still, *given)
        change = rate[inside]
        power += float((w[inside] * change).sum())
        magnitude += float(np.abs(w[inside] * change).sum())
        assert abs(change.sum()) <= 1e-12 * np.abs(change).sum()
    assert abs(power) <= 1e-13 * magnitude


def test_skew_convection_needs_no_freedom_from_divergence():
    problem, _ = noisy("skew", 2)
    rng = np.random.default_rng(3)
    w = problem.velocities(problem.fields)
    for array in w:
        array[:] = rng.standard_normal(array.shape)
        problem.halo.exchange(array)
    still = problem.backend.zeros((1, 1))
    power = {}
    for form in ("central", "skew"):
        power[form] = 0.0
        for axis in range(2):
            rate = problem.backend.zeros(problem.grid.shape)
            given = (*w, still, 0.0, *problem.inverse_spacings)
            point = flow.momentum(2, axis, form, False)
            problem.backend.sweep(point, rate, problem.grid.interior, *given)
            power[form] += float((w[axis] * rate)[1:-1, 1:-1].sum())
    assert abs(power["skew"]) < 1e-11 < 1.0 < abs(power["central"])


@pytest.mark.few(4, among="numpy")
@pytest.mark.parametrize("form", ["central", "skew", "central4", "upwind3"])
def test_waves_are_carried_as_the_scheme_says(form, backend, tmp_path):
    """By a uniform flow: a velocity across it and a quantity, each by g(dt lambda) a step."""
    n, dt, steps = 12, 0.05, 7
    case = parse(text(
        nu=0.02, form=form, cells=[n, 4], grid="upper = ['2*pi', 1]\nperiodic = ['x', 'y']",
        model="diffusivity = 0.03", time=f"step = {dt}", end=dt * steps,
        initial="velocity_x = 1\nvelocity_y = 'sin(2*x)'\nconcentration = 'cos(3*x)'",
    ), "case")  # fmt: skip
    run(case, backend, tmp_path / "case.h5")
    fields = read(tmp_path / "case.h5").fields
    for name, nu, waves in (("velocity_y", 0.02, 2), ("concentration", 0.03, 3)):
        theta, h = 2.0 * math.pi * waves / n, 2.0 * math.pi / n
        # What 1 - d^2 / 6 makes of a central difference; upwind3 damps by d^4 / 12, too.
        wide = (4.0 - math.cos(theta)) / 3.0 if form in flow.WIDE else 1.0
        damping = (1.0 - math.cos(theta)) ** 2 / 3.0 if form == "upwind3" else 0.0
        rate = -(1j * math.sin(theta) * wide + damping) / h
        z = dt * (rate - 2.0 * nu / h**2 * (1.0 - math.cos(theta)))
        factor = (1.0 + z + z**2 / 2.0 + z**3 / 6.0) ** steps
        first, last = np.fft.fft(fields[name][:, 0, :])[:, waves]
        assert last == pytest.approx(factor * first, rel=1e-12)


@pytest.mark.parametrize("scheme, order", [("rk2", 3.0), ("rk3", 3.0)])
def test_energy_drifts_at_the_order_of_the_integrator(scheme, order):
    """Or faster: Runge-Kutta's error in energy is of odd order."""

    def drift(step):
        case = parse(text(
            nu=0.0, form="skew", cells=[16, 16], scheme=scheme, tolerance=1e-13, end=0.4,
            grid="upper = ['2*pi', '2*pi']\nperiodic = ['x', 'y']",
            initial="velocity_x = 'sin(x)*cos(2*y) + sin(y)'\nvelocity_y = 'cos(x)*sin(x+y)'",
            time=f"step = {step}\nallow_unstable = true",
        ), "case")  # fmt: skip
        problem = Staggered(case, NumpyBackend())
        stepper = Projection(problem, 0.0, step)
        stepper.prepare()
        before = stepper.posted_measures()()[1]["kinetic_energy"]
        for number in range(round(0.4 / step)):
            stepper.step([Substep(number * step, step, 0.0)], None, None)
        return abs(stepper.posted_measures()()[1]["kinetic_energy"] - before)

    assert math.log2(drift(0.04) / drift(0.02)) > order - 0.4


@pytest.mark.few(1, among="numpy")
def test_vortices_decay_as_the_discrete_operator_says(backend, tmp_path):
    solution = run(load("taylor-green", ["constants.n=16"]), backend, tmp_path / "case.h5")
    energy = read(solution.path).history["kinetic_energy"]
    h = 2.0 * math.pi / 16
    step = -2.0 * 0.1 * (2.0 * math.sin(h / 2.0) / h) ** 2 * 0.02
    growth = (1.0 + step + step**2 / 2.0 + step**3 / 6.0) ** 2
    assert energy[-1] / energy[0] == pytest.approx(growth ** (len(energy) - 1), rel=1e-12)


def test_what_flows_in_flows_out_and_the_pressure_drives_it(backend, tmp_path):
    walls = (
        "left = { kind = 'inflow', velocity_x.value = '6*y*(1 - y)' }\nright.kind = 'outflow'\n"
        "bottom.kind = 'no-slip'\ntop.kind = 'no-slip'"
    )
    case = parse(text(
        nu=0.1, cells=[24, 12], grid="upper = [2, 1]", walls=walls, end=20,
        initial="velocity_x = '6*y*(1 - y)'", time="cfl = 0.8\ntolerance = 1e-9",
    ), "case")  # fmt: skip
    result = run(case, backend, tmp_path / "case.h5")
    assert result.outcome.ending == "tolerance"
    u, p = result.fields["velocity_x"], result.fields["pressure"]
    through = u.mean(axis=0)
    assert np.abs(through / through[0] - 1.0).max() < 1e-7
    assert (p[:, 12] - p[:, 11]).mean() * 12 == pytest.approx(-12 * 0.1, rel=0.02)


def test_the_divergence_keeps_to_the_tolerance(backend, tmp_path):
    case = load("cavity-re100", ["constants.n=24", "time.end=0.5"])
    assert run(case, backend, tmp_path / "case.h5").exit_code == 3  # it is not steady yet
    divergence = read(tmp_path / "case.h5").history["divergence"]
    assert 0.0 < divergence.max() <= 1e-8


@pytest.mark.thorough
def test_heat_in_is_heat_out(tmp_path):
    case = load("natural-convection", ["constants.n=16", "constants.Ra=1e4"])
    temperature = run(case, "numba", tmp_path / "case.h5").fields["temperature"]
    hot, cold = (0.5 - temperature[:, 0]).mean(), (0.5 + temperature[:, -1]).mean()
    assert hot == pytest.approx(cold, rel=1e-8)
    assert hot * 32 == pytest.approx(2.2448, rel=0.05)


def test_a_carried_quantity_is_conserved(backend, tmp_path):
    case = parse(text(
        model="diffusivity = 0.01", cells=[12, 14], grid="periodic = ['x', 'y']",
        initial="velocity_x = 'sin(2*pi*y)'\nvelocity_y = 'cos(2*pi*x)'\nconcentration = 'x > 0.5'",
        tolerance=1e-13,
    ), "case")  # fmt: skip
    run(case, backend, tmp_path / "case.h5")
    frames = read(tmp_path / "case.h5").fields["concentration"]
    assert frames[-1].sum() == pytest.approx(frames[0].sum(), rel=1e-12)
    assert np.abs(frames[-1] - frames[0]).max() > 0.1


def test_the_guess_behind_very_unlike_steps_is_the_last_pressure():
    problem = make_model(load("taylor-green-3d", ["constants.n=8"]), NumpyBackend())
    pressure = Pressure(problem, problem.case, RUNGE_KUTTA["rk3"])
    pressure.known = 9
    pressure.lengths = (1.0,) * 5
    pressure.begin_step(2.0)
    (first, _, _), *_ = pressure.guesses(pressure.lengths)
    assert sum(first) == pytest.approx(1.0, abs=1e-9) and max(map(abs, first)) > 1.0
    for length in (1e-3, 1.0, 1e-200, 1.0):
        pressure.begin_step(length)
        (first, second, third), *later = pressure.guesses(pressure.lengths)
        assert (first, second, third) == ((1.0, *[0.0] * 6), (0.0,) * 7, (0.0,) * 5)
        assert later == [((1.0, 1.0),), ((1.0, 0.0, 1.0),)]


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["explicit", "rk3"])
def test_a_pressure_between_walls_keeps_its_level(scheme):
    """No cycle changes its mean, and its guesses repeat the rounding of single precision."""
    sets = ["constants.n=16", "solver.tolerance=1e-5", "time.tolerance=", f"time.scheme={scheme}"]
    case = load("cavity-re100", ["solver.precision=float32", *sets])
    problem = make_model(case, choose("numba", precision="float32")[0])
    time_steps = time_step_controller(problem)
    stepper = problem.stepper(0.0, time_steps.step)
    stepper.prepare()
    for number in range(800):
        stepper.step(time_steps.next_step(number, stepper.time, stepper).parts, None, None)
    p = stepper.pressure.now[tuple(slice(*bounds) for bounds in problem.grid.interior)]
    assert abs(p.mean()) < 0.1 * np.ptp(p)
    assert np.ptp(p) == pytest.approx(0.8087, rel=0.02)


def weights_of(stages, cubic):
    """The weights of the guesses of all stages, in steps of one length."""
    if not cubic:
        return SMALL_WEIGHTS[stages]
    return [cubic_weights(stages, number, (0.1,) * 5) for number in range(stages)]


@pytest.mark.parametrize("order", [3, 2])
@pytest.mark.parametrize("scheme", RUNGE_KUTTA)
def test_the_order_of_the_guess_of_a_pressure(scheme, order):
    """Of u' = -u^2, in place of the pressure, at the beginning of each stage."""
    stages = RUNGE_KUTTA[scheme]
    weights = weights_of(len(stages), order == 3)

    def errors(steps):
        u, begins, dt = 1.0, [], 1.0 / steps
        for _ in range(steps):
            stage_u, wrong = u, []
            for stage in stages:
                count = len(weights[stage.number])
                older = begins[: -1 - count : -1]
                if len(older) == count:
                    guess = sum(w * p for w, p in zip(weights[stage.number], older, strict=True))
                    wrong.append(abs(guess - stage_u))
                begins.append(stage_u)
                stage_u = stage.a * u + stage.b * (stage_u - dt * stage_u**2)
            u = stage_u
        return np.array(wrong)

    fall = errors(40).max() / errors(80).max()
    assert fall > 0.9 * 2**order


@pytest.mark.parametrize("lengths", [(1.0,) * 5, (0.3, 0.35, 0.2, 0.2, 0.6)])
@pytest.mark.parametrize("scheme", RUNGE_KUTTA)
def test_guesses_of_a_cubic_pressure_are_exact_and_have_the_least_weights(scheme, lengths):
    begins = BEGINS[len(RUNGE_KUTTA[scheme])]
    starts = [-sum(lengths[1 : 1 + back]) for back in range(len(lengths))]

    def conditions(step, stage):
        time, e = (begins[stage][0], begins[stage][1]) * np.array(
            [lengths[step], lengths[step] ** 2]
        )
        time += starts[step]
        return [1.0, time, time**2, time**3, e, e * time]

    for number in range(len(begins)):
        weights = cubic_weights(len(begins), number, lengths)
        places = [divmod(number - back, len(begins)) for back in range(1, 1 + len(weights))]
        older = np.array([conditions(-step, stage) for step, stage in places])
        assert older.T @ weights == pytest.approx(conditions(0, number), abs=1e-9)
        least, *_ = np.linalg.lstsq(older.T, conditions(0, number), rcond=None)
        assert weights == pytest.approx(least, abs=1e-8)


def test_weights_of_equal_steps():
    """Fractions that fit into a table."""
    explicit, rk2, rk3 = ([cubic_weights(n, s, (0.1,) * 5) for s in range(n)] for n in (1, 2, 3))
    assert explicit[0] == pytest.approx([4, -6, 4, -1])
    assert rk2[1] == pytest.approx([1, 3, -3, -3, 3, 1, -1])
    assert 134 * np.array(rk3[0]) == pytest.approx([211, 65, -97, -114, -57, 191, -65])
    assert 314 * np.array(rk3[2]) == pytest.approx([93, 640, -24, -314, -290, 58, 151])


@pytest.mark.parametrize("scheme", ["explicit", "rk2", "rk3"])
@pytest.mark.parametrize("method", ["multigrid", "mgcg"])
def test_a_guess_is_the_weighted_sum_of_the_last_pressures(scheme, method):
    """Also where the first stage of a step has begun the guesses of the others."""
    sets = ["constants.n=8", f"time.scheme={scheme}", f"solver.method={method}"]
    problem = make_model(load("taylor-green-3d", sets), NumpyBackend())
    pressure = Pressure(problem, problem.case, stages := RUNGE_KUTTA[scheme])
    weights = weights_of(len(stages), method == "multigrid")
    random, last, compared = np.random.default_rng(1), [], 0
    for _ in range(6):
        pressure.begin_step(0.1)
        known, sums_of = pressure.known, pressure.guesses(pressure.lengths)
        for stage in stages:
            pressure.begin(problem.fields, 1.0, 0.1, sums_of[stage.number])
            if known >= len(weights[0]):
                newest = last[: -1 - len(weights[stage.number]) : -1]
                sums = sum(w * p for w, p in zip(weights[stage.number], newest, strict=True))
                inside = tuple(slice(*bounds) for bounds in problem.grid.interior)
                assert pressure.now[inside] == pytest.approx(sums[inside], abs=1e-12)
                compared += 1
            pressure.known += 1
            pressure.now[...] = random.random(pressure.now.shape)
            last.append(pressure.now.copy())
    assert compared > len(stages)


@pytest.mark.parametrize(
    ("case", "sets"),
    [
        ("taylor-green-3d", ["constants.n=12"]),
        ("cylinder-re100", ["grid.cells=[88, 16]"]),
        ("rayleigh-benard", ["constants.n=16"]),
        ("cavity-re1000", ["constants.n=16", "time.scheme=rk2"]),
    ],
)
def test_a_checked_step_is_the_same_step(case, sets):
    """It makes other arrays, measures its fields before it returns, and tells the next step their
    largest velocities; steps without a check overwrite their fields and find all this later."""

    def stepper_of():
        problem = make_model(load(case, sets), NumpyBackend())
        stepper = problem.stepper(0.0, time_step_controller(problem).step)
        stepper.prepare()
        return stepper

    plain, checked = stepper_of(), stepper_of()
    change = checked.problem.backend.accumulator("sum")
    arrays = set()
    for number in range(7):
        before = {name: array.copy() for name, array in plain.fields.items()}
        checked.is_measured = number != 3
        for stepper, into in ((plain, None), (checked, change)):
            length = length_of(stepper, number)
            stepper.step((Substep(stepper.time, length, 0.0),), into, None)
        for name, array in plain.fields.items():
            assert checked.fields[name].tobytes() == array.tobytes(), name
        inside = plain.problem.grid.interior
        window = tuple(slice(*pair) for pair in inside)
        moved = [name for name in before if name in plain.problem.names and name != "pressure"]
        squares = sum(np.sum((plain.fields[n] - before[n])[window] ** 2) for n in moved)
        assert change.take() == pytest.approx(squares, rel=1e-10)
        _, columns = checked.posted_measures()()
        assert plain.posted_measures()()[1] == columns
        assert columns["courant"] > 0.0
        speeds = checked.problem.speeds(checked.fields, checked.time)
        assert checked.speeds(checked.time) == speeds == plain.speeds(plain.time)
        arrays.add(id(checked.fields[checked.problem.components[0]]))
    assert len(arrays) == 2


@pytest.mark.parametrize(
    ("case", "sets"),
    [
        ("taylor-green-3d", ["constants.n=12"]),
        ("rayleigh-benard", ["constants.n=16"]),
        ("cavity-re1000", ["constants.n=16", "time.scheme=rk2"]),
    ],
)
def test_a_device_predicts_while_its_host_waits(case, sets, monkeypatch):
    """The next step takes this prediction if it has the length of the step before. It predicts anew
    after a step of another length, and after a frame, whose pressure takes the same arrays."""
    predictions, predict = [], Projection._predict

    def counted(self, stage, fields, time):
        predictions.append((self, stage.number))
        predict(self, stage, fields, time)

    steppers = []
    for backend in (NumpyBackend(), Ahead()):
        problem = make_model(load(case, sets), backend)
        steppers.append(problem.stepper(0.0, time_step_controller(problem).step))
        steppers[-1].prepare()
    monkeypatch.setattr(Projection, "_predict", counted)
    host, device = steppers
    changes = [stepper.problem.backend.accumulator("sum") for stepper in steppers]
    for number in range(8):
        told = []
        for stepper, change in zip(steppers, changes, strict=True):
            length = length_of(stepper, number)
            stepper.is_measured = True
            stepper.step((Substep(stepper.time, length, 0.0),), change, None)
            told.append(stepper.posted_measures(change)())
            if number == 3:
                stepper.present()
        assert told[0] == told[1]
        for name, array in host.fields.items():
            assert device.fields[name].tobytes() == array.tobytes(), name
        assert device.speeds(device.time) == host.speeds(host.time)
    of_host, of_device = (predictions.count((stepper, 0)) for stepper in steppers)
    # The first step, two shorter steps, and the one after the frame.
    assert (of_host, of_device) == (8, 8 + 1 + 2 + 1)


@pytest.mark.parametrize(
    ("sets", "unused"),
    [
        ([], 3),
        (["boundary.top.velocity_x.value=100*t"], 0),
        (["boundary.top.pressure={value='t'}"], 0),
    ],
)
def test_a_device_begins_a_collocated_step_while_its_host_waits(sets, unused, monkeypatch):
    """The next step goes on from this beginning if it has the same length and arrays: not if it is
    shorter, nor behind a frame, for which the fields move to the arrays of the model. Where walls
    depend on time, no step begins before its time."""
    begun, begin = [], CollocatedStep._begin_step

    def counted(self, *args):
        begun.append(self)
        begin(self, *args)

    monkeypatch.setattr(CollocatedStep, "_begin_step", counted)
    case = load("legate-cfd", ["constants.n=16", "solver.iterations=5", *sets])
    host, device = steppers = [
        make_model(case, backend).stepper(0.0, 0.0) for backend in (NumpyBackend(), Ahead())
    ]
    changes = [stepper.problem.backend.accumulator("sum") for stepper in steppers]
    lengths = [2e-4] * 4 + [1e-4] + [2e-4] * 4
    for number, length in enumerate(lengths):
        told = []
        for stepper, change in zip(steppers, changes, strict=True):
            stepper.step((Substep(stepper.time, length, 0.0),), change, None)
            told.append(stepper.posted_measures(change)())
            if number == 6:
                stepper.present()
        assert told[0] == told[1]
        for name, array in host.fields.items():
            assert device.fields[name].tobytes() == array.tobytes(), name
    # Nine steps, and beginnings that no step took: behind steps 3, 6 and 8.
    assert begun.count(device) == 9 + unused


def length_of(stepper, number):
    """The length of a step: a little shorter each third step."""
    return stepper.scalars["length"] * (0.9 if number % 3 == 2 else 1.0)


@pytest.mark.parametrize(("scheme", "iterations"), [("explicit", 168), ("rk2", 328), ("rk3", 347)])
def test_iterations_of_a_march(scheme, iterations):
    """Lines through the last two pressures need 304, 604 and 756, parabolas 211, 333 and 467."""
    total = 0
    sets = [f"time.scheme={scheme}", "constants.n=64"]
    problem = make_model(load("taylor-green", sets), NumpyBackend())
    time_steps = time_step_controller(problem)
    stepper = problem.stepper(0.0, time_steps.step)
    stepper.prepare()
    for number in range(time_steps.count):
        stepper.step(time_steps.next_step(number, stepper.time, stepper).parts, None, None)
        total += sum(stepper.pressure.counts.values())
    assert total == iterations


CONTINUING = {
    "box": ("taylor-green-3d", (14, 14, 14)),
    "box, fused": ("taylor-green-3d", (18, 18, 18)),
    "cavity": ("cavity-re100", (34, 34)),
    "direct": ("taylor-green-3d", (14, 14, 14), "solver.method=fft"),
    "cylinder": ("cylinder-re100", (26, 114)),
    "cylinder, cg": ("cylinder-re100", (26, 114), "solver.method=cg", "solver.tolerance=1e-3"),
    # Some of these end in an array from which the solution is copied.
    "full multigrid, fused": ("cavity-re100", (34, 34), "solver.method=multigrid",
                              "solver.cycle=FMG"),
    "jacobi": ("cavity-re100", (18, 18), "solver.method=jacobi", "solver.weight=0.8",
               "solver.tolerance=0.1"),
    "chebyshev": ("cavity-re100", (18, 18), "solver.method=chebyshev", "solver.tolerance=1e-3"),
}  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler, g++")
@pytest.mark.parametrize("refuses", [None, *range(1, 7)])
@pytest.mark.parametrize("name", CONTINUING)
def test_a_device_goes_on_before_the_host_knows(name, refuses, monkeypatch):
    """The sweeps behind a pressure, made early or refused at each place, give a host's bits."""
    if "fused" in name:
        monkeypatch.setattr(cycle_legs, "FEWEST_POINTS", {2: 0, 3: 0})
    case, shape, *settings = CONTINUING[name]
    device = Ahead(refuses=refuses)
    expected, flow = (Flow(case, each, shape, *settings) for each in (NumpyBackend(), device))
    for _ in range(6):
        expected.step()
        flow.step()
        assert flow.stepper.pressure.counts == expected.stepper.pressure.counts
        for field, array in expected.stepper.fields.items():
            assert flow.stepper.fields[field].tobytes() == array.tobytes()
    if name in ("box", "box, fused", "cavity", "direct", "cylinder"):  # others change their counts
        assert device.continuations >= 6 and device.ledgers > (refuses or 0)
    # By recurrence, the true residual must meet the tolerance, too.
    by_recurrence = "cylinder" in name
    assert 0 <= device.confirmations - device.continuations * by_recurrence <= by_recurrence


def test_a_device_goes_on_to_all_that_a_step_does_at_its_end():
    """Steps with and without a change to check, and with and without measures, in turn."""
    found = []
    for backend in (NumpyBackend(), device := Ahead()):
        stepper = make_model(load("taylor-green-3d", ["constants.n=12"]), backend).stepper(0.0, 0.1)
        stepper.prepare()
        change, values = backend.accumulator("sum"), []
        for number in range(1, 40):
            stepper.is_measured = number % 5 == 0
            checked = stepper.is_measured or number % 3 > 0
            part = Substep(stepper.time, 0.1, 0.0)
            stepper.step([part], change if checked else None, None)
            if stepper._measures.are_made:
                values.append(stepper.posted_measures(change)())
            elif checked:
                values.append(backend.values([change]))
        found.append((values, [array.tobytes() for array in stepper.fields.values()]))
    assert found[0] == found[1] and len(found[0][0]) > 25
    assert device.continuations > 60


def test_an_unstable_flow_is_refused_and_its_divergence_told(tmp_path):
    overrides = ["constants.n=16", "time.step=0.5", "time.end=1000"]
    with pytest.raises(InputError, match=r"time\.step: a step of 0\.5 is unstable, rk3 allows"):
        run(load("cavity-re100", overrides), "numpy", tmp_path / "case.h5")
    overrides.append("time.allow_unstable=true")
    with pytest.raises(Diverged, match=r"diverged by step \d+ .*(velocity|pressure)"):
        run(load("cavity-re100", overrides), "numpy", tmp_path / "case.h5")


WALLS = "left.kind = 'no-slip'\nright.kind = 'no-slip'\nbottom.kind = 'no-slip'\n"


@pytest.mark.parametrize(
    "given, sentence",
    [
        ({"walls": WALLS + "top = {}"}, "boundary.top.kind: missing"),
        ({"walls": WALLS + "top = { kind = 'no-slip', velocity_y.value = 1 }"}, "nothing passes"),
        ({"walls": WALLS + "top = { kind = 'free-slip', velocity_x.value = 1 }"}, "has no effect"),
        ({"walls": WALLS.replace("'no-slip'", "'outflow'") + "top.kind = 'no-slip'"}, "high walls"),
        (
            {"grid": "periodic = ['x', 'y']", "form": "upwind"},
            'model.convection: must be one of "central"',
        ),
        ({"grid": "periodic = ['x', 'y']", "model": "buoyancy = [0, 1]"}, "only with thermal_diff"),
        ({"grid": "periodic = ['x', 'y']", "scheme": "backward-euler"}, "time.scheme"),
        ({"cells": [16], "grid": "periodic = ['x']"}, "grid: must have two or three axes"),
        ({"grid": "periodic = ['x', 'y']", "model": "velocity = [1, 1]"}, 'only for kind = "trans'),
    ],
)
def test_refusals(given, sentence):
    with pytest.raises(CaseError) as caught:
        parse(text(**given), "case.toml")
    assert sentence in str(caught.value)


def test_what_flows_in_must_flow_out():
    walls = WALLS.replace(
        "left.kind = 'no-slip'", "left = { kind = 'inflow', velocity_x.value = 1 }"
    )
    case = parse(text(walls=walls + "top.kind = 'no-slip'"), "case")
    with pytest.raises(InputError, match="no wall is an outflow"):
        Staggered(case, NumpyBackend())


def through(left, right, top="top.kind = 'no-slip'"):
    """A flow from left to right, without an outflow."""
    given = "{} = {{ kind = 'inflow', velocity_x.value = '{}' }}\n"
    walls = given.format("left", left) + given.format("right", right)
    return parse(text(walls=f"{walls}bottom.kind = 'no-slip'\n{top}"), "case")


def what_remains(problem):
    """What flows in and not out through the faces of a field, of the gross flux."""
    problem.write_faces(problem.fields, 0.0)
    left, right = (np.take(problem.fields["velocity_x"], n, axis=1)[1:-1] for n in (0, -2))
    return (left.sum() - right.sum()) / (abs(left).sum() + abs(right).sum())


def test_a_slight_imbalance_is_spread_over_the_faces_that_let_through():
    """Up to (h/L)^2 of the gross flux, by which midpoints of faces may miss an integral."""
    problem = Staggered(through("where(y > 0.5, 2*y, 0)", "3/4 - 0.001"), NumpyBackend())
    assert abs(what_remains(problem)) < 1e-15
    left, right = (np.take(problem.fields["velocity_x"], n, axis=1)[1:-1] for n in (0, -2))
    spread = 0.001 / 1.5  # half of the left wall, and the right one
    assert np.all(left[:8] == 0.0)
    assert left[8:] == pytest.approx(2.0 * (np.arange(8, 16) + 0.5) / 16 - spread, rel=1e-13)
    assert right == pytest.approx(0.749 + spread, rel=1e-13)
    assert "0.001 m3/s more flow in than out, 0.00067 of the gross flux" in problem.remark
    assert "0.000667 m/s outward" in problem.remark
    # Rounding is left as it is.
    problem = Staggered(through("1", "1 + 1e-11"), NumpyBackend())
    assert what_remains(problem) == pytest.approx(-5e-12, rel=1e-3)
    assert problem.remark == ""
    # 1/256 of 2 m3/s may be missing.
    assert what_remains(Staggered(through("1", "0.9923"), NumpyBackend())) < 1e-15
    with pytest.raises(InputError, match=r"0\.0079 m3/s more flow in than out, and no wall is an"):
        Staggered(through("1", "0.9921"), NumpyBackend())


def test_a_march_tells_how_much_it_spreads(tmp_path, capsys):
    case = through("1", "0.999")
    case = case.model_copy(update={"time": case.time.model_copy(update={"end": 0.01})})
    run(case, "numpy", tmp_path / "case.h5", Report())
    assert "spread as 0.0005 m/s outward over the faces" in capsys.readouterr().out
    (row,) = (row for row in preview(case, "numpy") if row.startswith("walls"))
    assert row == f"walls       {Staggered(case, NumpyBackend()).remark}"


KOVASZNAY = {
    "velocity_x": "1 - exp(L*x)*cos(2*pi*y)",
    "velocity_y": "L/(2*pi)*exp(L*x)*sin(2*pi*y)",
}
"""L. I. G. Kovasznay, Proc. Camb. Phil. Soc. 44 (1948), 58: steady, behind a grid."""


def test_kovasznay_flow_is_of_second_order(tmp_path):
    """Given velocities on all walls, whose face sums cancel to O(h^2) only."""
    exact = "\n".join(f"{name} = '{value}'" for name, value in KOVASZNAY.items())
    given = ", ".join(f"{name}.value = '{value}'" for name, value in KOVASZNAY.items())
    walls = "\n".join(f"{wall} = {{ kind = 'inflow', {given} }}"
                      for wall in ("left", "right", "bottom", "top"))  # fmt: skip
    errors = []
    for n in (8, 16):
        case = parse(
            "[constants]\nL = '5 - sqrt(25 + 4*pi**2)'\n"
            + text(nu=0.1, cells=[n, n], grid="lower = [-0.5, -0.4]\nupper = [0.5, 0.7]",
                   initial=exact, walls=walls, end=4.0, time="cfl = 0.8\ntolerance = 1e-3",
                   tolerance=1e-6) + f"[reference.exact]\n{exact}\n", "case")  # fmt: skip
        assert run(case, "numpy", tmp_path / "case.h5").exit_code == 0
        found = read(tmp_path / "case.h5").attributes
        errors.append([found[f"error_l2_{name}"] for name in KOVASZNAY])
    orders = np.log2(np.divide(*errors))
    assert np.all((orders > 1.8) & (orders < 2.2)), orders


def test_the_limit_of_a_step_knows_the_lid():
    case = load("cavity-re1000", ["constants.n=128"])
    step, _ = step_length(Staggered(case, NumpyBackend()))
    assert step < 1.8 / 128


@pytest.mark.few(1)
def test_a_steady_march_goes_on_to_a_smaller_tolerance(backend, tmp_path):
    overrides = ["grid.nodes=[8, 9]", "time.step=0.1", "checkpoint.every=10000"]
    first = run(load("cfdpython-12-correct", [*overrides, "time.tolerance=1e-3"]), backend,
                tmp_path / "case.h5")  # fmt: skip
    whole = run(load("cfdpython-12-correct", [*overrides, "time.tolerance=1e-5"]), backend,
                tmp_path / "whole.h5")  # fmt: skip
    assert first.outcome.ending == whole.outcome.ending == "tolerance"
    again = run(load("cfdpython-12-correct", [*overrides, "time.tolerance=1e-5"]), backend,
                tmp_path / "case.h5", start=Start(restart=True))  # fmt: skip
    assert again.outcome.count == whole.outcome.count > first.outcome.count
    assert again.fields["velocity_x"].tobytes() == whole.fields["velocity_x"].tobytes()
    without = load("cfdpython-12-correct", [*overrides, "time.tolerance=1e-5"])
    table = without.text.replace("tolerance = 1e-05", "").replace("tolerance = 1e-5", "")
    with pytest.raises(InputError, match=r"time\.tolerance: was 1e-05"):
        run(parse(table, "cfdpython-12-correct"), backend, tmp_path / "case.h5",
            start=Start(restart=True))  # fmt: skip


@pytest.mark.parametrize("method", ["cg", "mgcg", "fft"])
def test_other_methods_find_the_same_pressure(method, tmp_path):
    overrides = ["constants.n=16", "time.end=0.1"]
    fields = [
        run(load("taylor-green", [*overrides, f"solver.method={name}"]), "numpy",
            tmp_path / "case.h5").fields
        for name in ("multigrid", method)
    ]  # fmt: skip
    for name, values in fields[0].items():
        assert np.abs(values - fields[1][name]).max() < 1e-11


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "scheme, diffusion, order",
    [
        ("adams-bashforth", "crank-nicolson", 2.0),
        ("adams-bashforth", "explicit", 2.0),
        ("rk2", "explicit", 2.0),
        ("rk3", "explicit", 3.0),
    ],
)
def test_the_order_in_time(scheme, diffusion, order, tmp_path):
    """Differences of runs with halved steps, between walls."""
    fields = []
    for step in (0.02, 0.01, 0.005):
        case = parse(text(
            nu=0.02, cells=[12, 12], end=0.2, scheme=scheme,
            time=f"step = {step}\ndiffusion = '{diffusion}'",
            initial="velocity_x = 'sin(pi*x)*cos(pi*y)'\nvelocity_y = '-cos(pi*x)*sin(pi*y)'",
            walls="left.kind = 'no-slip'\nright.kind = 'no-slip'\nbottom.kind = 'no-slip'\n"
            "top = { kind = 'no-slip', velocity_x.value = 'sin(pi*x)' }", tolerance=1e-12,
        ), "case")  # fmt: skip
        run(case, "numba", tmp_path / "case.h5")
        fields.append(read(tmp_path / "case.h5").fields["velocity_x"][-1])
    coarse, fine = (np.abs(a - b).max() for a, b in itertools.pairwise(fields))
    assert math.log2(coarse / fine) > order - 0.2


def test_steps_follow_the_flow(tmp_path):
    """A force drives it from rest: steps become shorter, few times, and end where they should."""
    case = parse(text(
        nu=1e-3, end=1, time="cfl = 0.5", grid="periodic = ['x', 'y']",
        initial="velocity_x = '0.1*sin(2*pi*y)'",
    ), "case", ["source.velocity_x=10"])  # fmt: skip
    result = run(case, "numba", tmp_path / "case.h5")
    history, fields = read(tmp_path / "case.h5").history, result.fields
    assert history["time"][-1] == pytest.approx(1.0, rel=1e-14)
    assert history["time"] == pytest.approx(np.cumsum(history["dt"]), rel=1e-12)
    assert fields["velocity_x"].mean() == pytest.approx(10.0, rel=1e-12)
    # Runge-Kutta's limit of central convection is a Courant number of sqrt(3).
    allowed = 0.5 * math.sqrt(3.0)
    late = history["courant"][history["time"] > 0.3]
    assert np.all(late < 1.1 * allowed) and np.all(late[:-1] > 0.8 * allowed)
    assert history["courant"].max() < math.sqrt(3.0)
    lengths = history["dt"][:-1]
    assert np.all(np.diff(lengths) <= 0.0)
    assert 5 < np.unique(lengths).size < lengths.size / 3


IMPLICIT = "cfl = 0.5\ndiffusion = 'crank-nicolson'"


@pytest.mark.thorough
@pytest.mark.parametrize("lid", ["t", "sin(2*pi*t)", "t**2", "exp(t) - 1"])
def test_steps_are_no_longer_than_what_walls_do_in_them(lid, tmp_path):
    """From rest, where nothing but the wall tells how fast the fluid will be."""
    walls = "\n".join(f"{w}.kind = 'no-slip'" for w in ("left", "right", "bottom"))
    case = parse(text(
        nu=0.05, end=3, time=IMPLICIT, scheme="adams-bashforth",
        walls=f"{walls}\ntop = {{ kind = 'no-slip', velocity_x.value = '{lid}' }}",
    ), "case")  # fmt: skip
    run(case, "numba", tmp_path / "case.h5")
    history = read(tmp_path / "case.h5").history
    assert history["courant"].max() < 1.0
    assert history["dt"].size > 15
    assert np.all(history["dt"][1:] <= 2.0 * history["dt"][:-1] * (1.0 + 1e-5))


@pytest.mark.thorough
def test_steps_from_rest_know_of_forces_and_of_warm_walls(tmp_path):
    force = parse(text(
        nu=0.01, end=0.5, time=IMPLICIT, scheme="adams-bashforth", grid="periodic = ['x', 'y']",
    ), "case", ["source.velocity_x=sin(2*pi*t)"])  # fmt: skip
    run(force, "numba", tmp_path / "case.h5")
    solution = read(tmp_path / "case.h5")
    assert solution.history["dt"].size > 2
    assert solution.history["kinetic_energy"][-1] > 0.03
    warm = load("natural-convection", [
        "constants.n=16", "time.scheme=adams-bashforth", "time.diffusion=crank-nicolson",
        "time.end=2", "initial.temperature=0",
    ])  # fmt: skip
    run(warm, "numba", tmp_path / "case.h5")
    history = read(tmp_path / "case.h5").history
    assert history["dt"].max() < 0.5
    assert history["kinetic_energy"][-1] > 1e-4


def test_steps_know_how_velocities_are_divided_among_the_axes(tmp_path):
    """The sum of |u| / h stays, but one axis with all of it allows half of the step."""
    case = parse(text(
        nu=0.01, cells=[32, 32], end=1, time="cfl = 0.9", scheme="explicit",
        grid="periodic = ['x', 'y']", initial="velocity_x = 1\nvelocity_y = 1",
    ), "case", ["source.velocity_x=1", "source.velocity_y=-1"])  # fmt: skip
    run(case, "numba", tmp_path / "case.h5")
    history = read(tmp_path / "case.h5").history
    limit = Staggered(case, NumpyBackend()).stable_step_at([0.0, 2.0])
    assert history["dt"][-2] <= limit < history["dt"][0]


@pytest.mark.parametrize(("force", "ending"), [("1e-200", "count"), ("1e308", None)])
def test_forces_beyond_all_measure(force, ending, tmp_path):
    case = parse(text(
        end=0.1, time=IMPLICIT, scheme="adams-bashforth", grid="periodic = ['x', 'y']",
    ), "case", [f"source.velocity_x={force}"])  # fmt: skip
    if ending is None:
        with pytest.raises(InputError, match="forces are too large for any step"):
            run(case, "numba", tmp_path / "case.h5")
    else:
        assert run(case, "numba", tmp_path / "case.h5").outcome.ending == ending


def test_a_system_of_diffusion_belongs_to_a_step_and_its_theta():
    """Half of a step of Crank and Nicolson's is a step of Euler's, but not 1 / dt."""
    case = parse(text(
        scheme="adams-bashforth", time="step = 0.01\ndiffusion = 'crank-nicolson'",
        grid="periodic = ['x', 'y']", initial="velocity_x = 'sin(2*pi*y)'",
    ), "case")  # fmt: skip
    diffusion = Projection(Staggered(case, NumpyBackend()), 0.0, 0.01)._diffusion
    solvers = [diffusion.solver("velocity_x", *of) for of in ((0.01, 1.0), (0.02, 0.5))]
    assert [system.coefficients.s for system, _ in solvers] == [100.0, 50.0]


def test_steps_become_longer_with_a_flow_that_comes_to_rest(tmp_path):
    run(load("taylor-green", ["constants.n=16", "time.end=8", "time.cfl=0.4"]), "numba",
        tmp_path / "case.h5")  # fmt: skip
    history = read(tmp_path / "case.h5").history
    assert history["dt"][-2] > 1.15 * history["dt"][0]
    assert history["courant"].max() == history["courant"][0]


@pytest.mark.few(1, among="numpy")
def test_implicit_diffusion_decays_as_its_scheme_says(backend, tmp_path):
    """Sines between walls, at nu dt / h^2 = 13: two steps of Euler's, four of Crank-Nicolson's."""
    case = parse(text(
        nu=1, cells=[4, 16], end=0.3, scheme="adams-bashforth", tolerance=1e-14,
        model="diffusivity = 2", grid="upper = [0.25, 1]\nperiodic = ['x']",
        time="step = 0.05\ndiffusion = 'crank-nicolson'",
        initial="velocity_x = 'sin(pi*y)'\nconcentration = 'cos(pi*y)'",
        walls="bottom = { kind = 'no-slip', concentration.gradient = 0 }\n"
        "top = { kind = 'no-slip', concentration.gradient = 0 }",
    ), "case")  # fmt: skip
    run(case, backend, tmp_path / "case.h5")
    fields = read(tmp_path / "case.h5").fields
    for name, nu in (("velocity_x", 1.0), ("concentration", 2.0)):
        z = nu * 0.05 * (2.0 * 16 * math.sin(math.pi / 32)) ** 2
        left = ((1.0 - 0.5 * z) / (1.0 + 0.5 * z)) ** 4 / (1.0 + z) ** 2
        assert fields[name][-1] == pytest.approx(left * fields[name][0], abs=1e-13)


def test_adams_and_bashforth_need_diffusion():
    """Their limit for diffusion alone is half of Euler's; waves grow slowly without any."""
    walls = "\n".join(f"{w}.kind = 'no-slip'" for w in ("left", "right", "bottom", "top"))
    still = {}
    for scheme in ("explicit", "adams-bashforth"):
        case = parse(text(nu=0.1, scheme=scheme, walls=walls), "case")
        still[scheme] = Staggered(case, NumpyBackend()).largest_step()
    assert still["adams-bashforth"] == pytest.approx(0.5 * still["explicit"], rel=1e-6)
    moving = text(nu=0.0, scheme="adams-bashforth", initial="velocity_x = 1", walls=walls)
    with pytest.raises(InputError, match="no step is stable"):
        Staggered(parse(moving, "case"), NumpyBackend()).largest_step()


@pytest.mark.slow
def test_a_vortex_that_breaks_down_keeps_its_budget_of_energy(tmp_path):
    """Taylor and Green's in space: what is lost is what friction takes."""
    # Runge-Kutta's steps take some, too, of third order in their length: a thousandth at 0.5.
    run(load("taylor-green-3d", ["time.cfl=0.3"]), "numba", tmp_path / "case.h5")
    history = read(tmp_path / "case.h5").history
    time, energy = history["time"], history["kinetic_energy"]
    assert np.all(np.diff(energy) < 0.0)
    assert history["divergence"].max() <= 1e-8
    lost = -np.diff(energy) / np.diff(time)
    taken = (history["enstrophy"][1:] + history["enstrophy"][:-1]) / 1600.0
    assert np.abs(lost - taken).max() < 5e-4 * lost.max()
