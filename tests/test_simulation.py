"""A run that a Python program drives: steps one by one, callbacks, results in memory, notebooks."""

import doctest
import gc
import math
import os
import pickle
import re
import signal
import threading
import time

import numpy as np
import pytest
from test_ranks import launch, mpi

import heatsolve
from heatsolve import api
from heatsolve.cli import app
from heatsolve.errors import CaseError, Diverged, FileFailure, InputError
from heatsolve.time.pause import changes_of

PLATE = {"grid.nodes": [17, 17]}
FLOW = {"grid.cells": [12, 12], "time.end": 0.09}
HEAT = {"grid.cells": [24, 16], "time.end": 0.02}
thorough = pytest.mark.thorough
BACKENDS = [
    "numpy",
    pytest.param("numba", marks=thorough),
    pytest.param("cupy", marks=pytest.mark.gpu),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
MORE = ("implicit", "crank-nicolson", "nodes", "transport")
"""Cases that everyday tests leave out."""
WALLS = ("left", "right", "bottom", "top")
MARCH = {
    "model": {"steady": False},
    "grid": {"cells": (12, 8)},
    "initial": {"temperature": "sin(pi*x)*y"},
    "boundary": {side: {"temperature": {"value": 1.5}} for side in WALLS},
    "time": {"end": 0.1, "step": 0.001},
    "output": {"every": 40},
}
CASES = {
    "explicit": (MARCH, {}),
    "implicit": (MARCH, {"time.scheme": "crank-nicolson", "time.step": 0.005}),
    "flow": ("taylor-green", FLOW),
    "steady": ("hot-plate", PLATE),
    "jacobi": ("hot-plate", PLATE | {"solver.method": "jacobi", "solver.check_every": 7}),
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def same(a, b):
    """Whether two results have the same bits: fields, times, and history."""
    assert list(a) == list(b)
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert np.array_equal(a.time, b.time)
    assert a.history.keys() == b.history.keys()
    return all(np.array_equal(a.history[name], b.history[name]) for name in a.history)


# ---- steps -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=thorough if name in MORE else ()) for name in CASES]
)
def test_steps_have_the_bits_of_a_run(name, backend):
    """However they are asked for, and whatever is read between them."""
    case, overrides = CASES[name]
    alone = heatsolve.run(case, backend=backend, overrides=overrides)
    sim = heatsolve.Simulation(case, backend=backend, overrides=overrides)
    assert sim.steps == 0 and not sim.over
    for count in (1, 2, 5):
        first = sim.steps
        made = sim.step(count)
        assert sim.steps == first + made and (made == count or sim.over)
        for field in sim:
            assert np.isfinite(sim[field]).all()
    sim.run()
    assert sim.over and same(sim.result, alone)
    assert sim.steps == alone.attributes.get("steps", alone.attributes.get("iterations"))
    assert all(np.array_equal(sim[f], alone[f][-1] if sim.time else alone[f]) for f in sim)
    assert sim.step(3) == 0
    for key in ("converged", "residual", "threshold", "case", "backend"):
        assert sim.result.attributes.get(key) == alone.attributes.get(key)


def test_a_field_between_steps_is_that_of_a_frame():
    """With its coordinates and units, walls included, at the true time."""
    frames = heatsolve.run(MARCH, overrides={"output.every": 1}, backend="numpy")
    sim = heatsolve.Simulation(MARCH, backend="numpy")
    for n in range(1, 8):
        assert sim.step() == 1
        assert sim.time == frames.time[n]
        assert np.array_equal(sim["temperature"], frames["temperature"][n])
    assert sim["temperature"].dims == ("y", "x")
    assert sim["temperature"].x.attrs["units"] == "1"
    assert np.array_equal(sim.coordinates["x"], frames.coordinates["x"])
    assert sim.history["iteration"].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert sim.norm == frames.history["residual"][6]


def test_iterations_of_numbers_of_any_size():
    """Where squares of norms overflow the field is still in the units of the case."""
    large = {"boundary.top.temperature.value": 1e200, "solver.method": "cg"} | PLATE
    alone = heatsolve.run("hot-plate", backend="numpy", overrides=large)
    sim = heatsolve.Simulation("hot-plate", backend="numpy", overrides=large)
    sim.step(30)
    assert sim.steps == 30 and not sim.over
    assert 1e199 < np.abs(sim["temperature"]).max() < 1e201
    assert np.array_equal(sim.field("temperature", device=True), sim["temperature"])
    sim.run()
    assert np.array_equal(sim["temperature"], alone["temperature"])


def test_derived_fields_between_steps():
    """Those that a case may write, at any step."""
    wanted = {"output.fields": ["velocity_x", "vorticity"], "output.every": 1}
    frames = heatsolve.run("taylor-green", backend="numpy", overrides=FLOW | wanted)
    sim = heatsolve.Simulation("taylor-green", backend="numpy", overrides=FLOW)
    for n in range(1, 4):
        sim.step()
        assert np.array_equal(sim["vorticity"], frames["vorticity"][n])
        assert np.array_equal(sim.field("vorticity", device=True), sim["vorticity"])
    assert sim["vorticity"].attrs == frames["vorticity"].attrs and "vorticity" not in list(sim)
    heat = heatsolve.Simulation(MARCH, backend="numpy")
    heat.step(7)
    frames = heatsolve.run(
        MARCH, backend="numpy", overrides={"output.every": 7, "output.fields": ["heat_flux_x"]}
    )
    assert np.array_equal(heat["heat_flux_x"], frames["heat_flux_x"][1])


def test_run_until_a_time():
    """The first step that reaches it: no step is bent."""
    sim = heatsolve.Simulation(MARCH, backend="numpy")
    sim.run(until=0.0105)
    assert (sim.steps, sim.time) == (11, pytest.approx(0.011))
    sim.run(until=0.02)
    assert sim.steps == 20
    sim.run(until=0.01)
    assert sim.steps == 20
    with pytest.raises(InputError, match=r"until = 1 lies behind time\.end = 0\.1"):
        sim.run(until=1.0)
    sim.run(until=0.1)
    assert sim.over and sim.time == 0.1 and sim.steps == 100
    with pytest.raises(InputError, match="a steady case has no time"):
        heatsolve.Simulation("hot-plate", overrides=PLATE).run(until=1.0)


@pytest.mark.parametrize("step", [0.01, 0.3])
def test_run_until_the_time_that_it_has(step):
    """Whose rounding errors may make it a little earlier than a decimal number."""
    overrides = {"time.step": step, "time.end": 12 * step, "time.scheme": "backward-euler"}
    sim = heatsolve.Simulation(MARCH, backend="numpy", overrides=overrides)
    for number in range(1, 12):
        for until in (round(number * step, 6), sim.time, round(number * step, 6)):
            sim.run(until=until)
        assert sim.steps == number
    sim = heatsolve.Simulation(MARCH, backend="numpy", overrides=overrides)
    sim.step(7)
    sim.run(until=sim.time * (1.0 + 1e-8))
    assert sim.steps <= 8


def test_a_restart_checks_the_steps_that_the_march_checks():
    """Also where a value that was set has changed how many steps the march will need."""
    case = {
        "model": {"kind": "transport", "velocity": "self", "diffusivity": 0.0005},
        "grid": {"cells": [16]},
        "initial": {"velocity_x": 0.01},
        "boundary": {"left": {"velocity_x": {"value": 0.01}},
                     "right": {"velocity_x": {"gradient": 0}}},
        "time": {"end": 2000, "cfl": 0.5},
        "checkpoint": {"every": 100},
    }  # fmt: skip
    rows = []
    for pause, name in ((900, "a.h5"), (400, "b.h5")):
        sim = heatsolve.Simulation(case, backend="numpy", output=name)
        sim.step(50)
        sim.set("boundary.left.velocity_x.value", 1.0)
        sim.step(pause - 50)
        if pause < 900:
            sim.close()
            sim = heatsolve.Simulation(case, backend="numpy", output=name, restart=True)
            sim.step(900 - sim.steps)
        rows.append(list(sim.history["iteration"]))
        sim.close()
    assert rows[0] == rows[1]


def test_a_snapshot_of_a_run_that_is_over_knows_how_it_ended():
    sim = heatsolve.Simulation(MARCH, backend="numpy")
    assert not sim.snapshot().converged
    sim.run()
    assert sim.result.converged and sim.snapshot().converged


def test_a_loaded_case_takes_no_overrides():
    case = heatsolve.load("hot-plate", PLATE)
    for call in (heatsolve.Simulation, heatsolve.check):
        with pytest.raises(InputError, match="overrides: a loaded case takes none"):
            call(case, overrides={"grid.nodes": [9, 9]})


def test_wall_nodes_of_a_literal_update_are_up_to_date_at_a_pause():
    case = {
        "grid": {"nodes": [9, 9]},
        "boundary": {
            "left": {"temperature": {"value": 0}},
            "right": {"temperature": {"value": "y"}},
            **{side: {"temperature": {"gradient": 0}} for side in ("bottom", "top")},
        },
        "solver": {"update": "laplace", "monitor": "update", "iterations": 20},
    }
    sim = heatsolve.Simulation(case, backend="numpy")
    for count in (3, 7, 10):
        sim.step(count)
        alone = heatsolve.run(case, overrides={"solver.iterations": sim.steps}, backend="numpy",
                              output=False)  # fmt: skip
        assert np.array_equal(sim["temperature"], alone["temperature"])
    sim.run()
    assert np.array_equal(sim.result["temperature"], alone["temperature"])


def test_a_step_that_is_not_solved_has_no_rate_of_change():
    """The norm of its linear system is another quantity."""
    unsolved = {"time.scheme": "backward-euler", "solver.method": "jacobi",
                "solver.max_iterations": 1, "solver.tolerance": 1e-14}  # fmt: skip
    result = heatsolve.run(MARCH, backend="numpy", overrides=unsolved, output="a.h5")
    assert not result.converged and math.isnan(result.attributes["residual"])


def test_steps_of_one_s_own_between_the_turns_of_a_loop():
    sim = heatsolve.Simulation(MARCH, backend="numpy", overrides={"time.end": 0.012})
    seen = []
    for _ in sim.march("4 steps"):
        seen.append(sim.steps)
        if sim.steps == 0:
            sim.step(5)
    assert seen == [0, 8, 12]


def test_the_array_itself():
    """It is the one that the scheme works in, for reading."""
    sim = heatsolve.Simulation(MARCH, backend="numpy")
    sim.step(3)
    lent = sim.field("temperature", device=True)
    assert np.shares_memory(lent, sim._at.problem.fields["temperature"])
    assert np.array_equal(lent, sim["temperature"])
    with pytest.raises(ValueError, match="read-only"):
        lent[0, 0] = 1.0
    copy = sim.field("temperature")
    copy[:] = 0.0
    assert sim["temperature"].max() > 0.0
    with pytest.raises(KeyError, match="there is no field 'speed', only temperature, "):
        sim["speed"]


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cupy", "cuda"])
def test_the_array_itself_on_a_device(backend):
    """No copy: the scheme's memory, as the library of the backend has it."""
    import cupy

    sim = heatsolve.Simulation(MARCH, backend=backend)
    sim.step(3)
    lent = sim.field("temperature", device=True)
    assert isinstance(lent, cupy.ndarray) == (backend == "cupy")
    assert np.array_equal(cupy.asnumpy(cupy.asarray(lent)), sim["temperature"])
    held = sim._at.problem.fields["temperature"].__cuda_array_interface__["data"][0]
    assert held <= lent.__cuda_array_interface__["data"][0] < held + 14 * 10 * 8


# ---- loops and callbacks -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "steps"),
    [
        ("40 steps", [0, 40, 80, 100]),
        ("1 step", list(range(101))),
        (0.03, [0, 30, 60, 90, 100]),
        ("0.05 s", [0, 50, 100]),
        ([0.0105, 0.02], [0, 11, 20, 100]),
        (7.0, [0, 100]),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every(every, steps, backend):
    """Also where a backend makes several steps in one pass."""
    assert [sim.steps for sim in heatsolve.march(MARCH, every, backend=backend)] == steps


@pytest.mark.parametrize("every", [10, True, 0.0, -1.0, "often", "0 steps", [2.0, 1.0], np.nan, []])
def test_every_that_says_nothing(every):
    with pytest.raises(InputError, match="must be a number of steps such as"):
        heatsolve.march(MARCH, every, backend="numpy")


def test_every_needs_each():
    with pytest.raises(InputError, match="every says how often each is called: give each, or a"):
        heatsolve.run(MARCH, every="10 steps", backend="numpy")


def test_every_of_a_steady_case():
    found = [sim.steps for sim in heatsolve.march("hot-plate", "4 steps", overrides=PLATE)]
    assert found == [0, 4, 6]
    with pytest.raises(InputError, match="is a time, a steady case has"):
        heatsolve.march("hot-plate", 0.5, overrides=PLATE)


def test_a_callback_sees_the_steps_of_a_run():
    seen = []
    alone = heatsolve.run(MARCH, backend="numpy", output="alone.h5")
    result = heatsolve.run(MARCH, each=lambda sim: seen.append(sim.time), every=0.04)
    assert seen == [pytest.approx(t) for t in (0.0, 0.04, 0.08, 0.1)]
    assert result.path.name == "case.h5" and same(result, alone)
    assert "stopped" not in result.attributes


@pytest.mark.parametrize(
    ("each", "reason"),
    [
        (lambda sim: sim.steps == 20, "the callback said so"),
        (lambda sim: "hot enough" if sim.steps == 20 else None, "hot enough"),
        (lambda sim: sim.stop("seen it") if sim.steps == 20 else None, "seen it"),
    ],
)
def test_a_callback_stops_the_run(each, reason, capsys):
    """In order: the file is complete, with the last field; a restart goes on."""
    given = {"backend": "numpy", "overrides": {"checkpoint.every": 1000}}
    result = heatsolve.run(MARCH, each=each, every="10 steps", quiet=False, **given)
    assert f"stopped in 20 steps: {reason}\n" in capsys.readouterr().out
    assert not result.converged
    assert (result.attributes["steps"], result.attributes["stopped"]) == (20, reason)
    assert result.time.tolist() == [0.0, pytest.approx(0.02)]
    further = heatsolve.run(MARCH, restart=True, **given)
    assert further.attributes["steps"] == 100 and "stopped" not in further.attributes
    assert same(further, heatsolve.run(MARCH, output="alone.h5", **given))


def test_a_loop_that_is_left_ends_the_run():
    for sim in heatsolve.march(MARCH, "10 steps", backend="numpy", output="left.h5"):
        if sim.steps == 30:
            break
    assert sim.over and sim.result.attributes["stopped"] == "the loop was left"
    assert heatsolve.open("left.h5").time[-1] == sim.time == pytest.approx(0.03)


def test_an_error_in_a_callback_loses_nothing():
    def each(sim):
        if sim.steps == 20:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        heatsolve.run(MARCH, each=each, every="10 steps", backend="numpy")
    result = heatsolve.open("case.h5")
    assert result.attributes["stopped"] == "the callback raised ZeroDivisionError"
    assert result.time[-1] == pytest.approx(0.02)
    with (
        pytest.raises(ZeroDivisionError),
        heatsolve.Simulation(MARCH, backend="numpy", output="block.h5") as sim,
    ):
        sim.step(5)
        each(sim.step(15) and sim)
    assert heatsolve.open("block.h5").attributes["stopped"] == "its block raised ZeroDivisionError"


def test_a_stopped_march_is_compared_with_the_exact_solution_of_its_last_time():
    given = {"grid.cells": [16, 16], "time.end": 0.4}
    whole = heatsolve.run("taylor-green", backend="numpy", overrides=given)
    given["time.end"] = 2.0
    stopped = heatsolve.run("taylor-green", backend="numpy", overrides=given,
                            each=lambda sim: sim.time > 0.399)  # fmt: skip
    assert stopped.time[-1] == pytest.approx(0.4, abs=0.02)
    for name in ("velocity_x", "pressure"):
        error = stopped.attributes[f"error_l2_{name}"]
        assert error == pytest.approx(whole.attributes[f"error_l2_{name}"], rel=0.2)


def test_a_stopped_iteration_leaves_its_field():
    def each(sim):
        seen.append(sim["temperature"].values)
        return sim.steps == 3

    seen = []
    result = heatsolve.run("hot-plate", each=each, backend="numpy", overrides=PLATE)
    assert result.attributes["iterations"] == 3 and not result.converged
    assert np.array_equal(result["temperature"], seen[-1]) and len(seen) == 4


# ---- mistakes of a program -----------------------------------------------------------------------


@pytest.mark.parametrize("count", [-1, 2.5, "3", None, True, np.nan])
def test_steps_that_are_no_number_are_refused(count):
    sim = heatsolve.Simulation(MARCH, backend="numpy")
    with pytest.raises(InputError, match=r"step: .* must be a whole number of steps, 0 or more"):
        sim.step(count)
    assert sim.step(0) == 0 == sim.steps
    assert sim.step(np.int64(2)) == 2


def test_mistakes_of_a_program_are_sentences(tmp_path):
    sim = heatsolve.Simulation(MARCH, backend="numpy")
    sim.run(until="0.01 s")
    assert sim.steps == 10
    for until in ("soon", np.nan, True, [0.1]):
        with pytest.raises(InputError, match=r'until = .* must be a time such as 0\.5 or "0\.5 s"'):
            sim.run(until=until)
    for key in ({}, 3, {3: 3}, None):
        with pytest.raises(InputError, match=r'set: give a key such as "source\.temperature"'):
            sim.set(key, 3)
    with pytest.raises(InputError, match="path = None must be the name of a file"):
        sim.save(None)
    assert sim.steps == 10
    with pytest.raises(InputError, match="case = None must be a file, the name of a shipped case"):
        heatsolve.run(None)
    with pytest.raises(InputError, match="each = 3 must be a function"):
        heatsolve.run(MARCH, each=3)
    assert not list(tmp_path.iterdir())


def test_nothing_is_set_after_the_end():
    """But a callback, which is called at the end too, need not know; a wrong key is refused."""
    sim = heatsolve.Simulation(MARCH, backend="numpy")
    sim.run()
    with pytest.raises(InputError, match="set: the run is over"):
        sim.set("source.temperature", 1.0)
    with pytest.raises(InputError, match="is not a key of"):
        sim.set("time.end", 1.0)
    for last in heatsolve.march(MARCH, "100 steps", backend="numpy"):
        last.set("source.temperature", 1.0)
        if last.over:
            with pytest.raises(InputError, match="is not a key of"):
                last.set("time.end", 1.0)
    assert len(last.changes) == 1
    with pytest.raises(InputError, match="set: the run is over"):
        last.set("source.temperature", 1.0)


def test_no_file_of_a_run_replaces_its_data():
    """Neither the main file, nor another one, nor one that is saved between steps."""
    files = [{"name": "p"}]
    heatsolve.run(MARCH, backend="numpy", overrides={"output.file": files}, output="q.h5")
    again = {"initial.temperature": {"file": "q_p.h5"}}
    before = (api.Path("q.h5").read_bytes(), api.Path("q_p.h5").read_bytes())
    refused = r"initial\.temperature: the run would replace .*q_p\.h5: "
    for more in ({"output.file": [{"name": "p", "stride": 4}]}, {"output.file": files}):
        with pytest.raises(InputError, match=f"{refused}name another --output"):
            heatsolve.run(MARCH, backend="numpy", overrides=again | more, output="q.h5")
    with pytest.raises(InputError, match=refused):
        heatsolve.run(MARCH, backend="numpy", overrides=again, output="q_p.h5")
    sim = heatsolve.Simulation(MARCH, backend="numpy", overrides=again)
    sim.step()
    with pytest.raises(InputError, match=f"{refused}save to another file"):
        sim.save("./q_p.h5")
    sim.save("keep.h5")
    sim.figure("temperature").savefig("q_temperature.png")
    drawn = {
        "initial.temperature": {"image": "q_temperature.png", "black": 0, "white": 1},
        "output.plot": ["temperature"],
    }
    with pytest.raises(InputError, match=r"the run would replace q_temperature\.png: name"):
        heatsolve.run(MARCH, backend="numpy", overrides=drawn, output="q.h5")
    assert before == (api.Path("q.h5").read_bytes(), api.Path("q_p.h5").read_bytes())
    heatsolve.run(MARCH, backend="numpy", overrides=again, output="q.h5")


@mpi
def test_an_error_in_a_callback_on_one_process_is_said_once(tmp_path):
    script = tmp_path / "raises.py"
    script.write_text(
        "import heatsolve\n"
        "def each(sim):\n"
        "    if sim.steps == 2 and heatsolve.api.find_ranks().rank == 1:\n"
        "        raise ValueError('seen')\n"
        "heatsolve.run('taylor-green', overrides={'grid.cells': [8, 8]}, each=each, "
        "backend='numpy', output=False)\n"
    )
    done = launch(2, script)
    assert done.returncode != 0 and "ValueError: seen" in done.stderr
    assert "begin another one" not in done.stderr and "ignored" not in done.stderr


def test_figures_and_places_name_the_case():
    sim = heatsolve.Simulation(MARCH, backend="numpy")
    sim.step(3)
    short = {"time.end": 0.003, "output.fields": ["heat_flux_x"]}
    written = heatsolve.run(MARCH, backend="numpy", overrides=short, output=False)
    levels, expected = (
        each.figure("heat_flux_x").axes[0].collections[0].get_array() for each in (sim, written)
    )
    assert len(levels) and np.array_equal(levels, expected)
    with pytest.raises(InputError, match=r"^case has no field 'nope', only temperature, "):
        sim.figure("nope")
    with pytest.raises(InputError, match=r"^the result in memory has no field 'nope', only temp"):
        sim.snapshot().figure("nope")
    with pytest.raises(CaseError, match=r"^the case: time\.end: "):
        heatsolve.run(MARCH | {"time": {"end": -1, "step": 0.1}})


# ---- values that are set during a march ----------------------------------------------------------

WARMER = {"boundary.left.FIELD.value": "1 + y", "source.FIELD": 3.0}
MOVED = {"kind": "transport", "velocity": [1.0, 0.5], "diffusivity": 0.1}
CARRIED = MARCH | {
    "model": MOVED,
    "initial": {"concentration": "y"},
    "boundary": {side: {"concentration": {"value": 1.5}} for side in WALLS},
}
SET = {
    "explicit": (MARCH, {"time.end": 0.03}),
    "nodes": (MARCH, {"time.end": 0.03, "grid.nodes": [13, 9]}),
    "crank-nicolson": (MARCH, {"time.end": 0.03, "time.scheme": "crank-nicolson"}),
    "transport": (CARRIED, {"time.end": 0.03}),
    "flow": ("natural-convection", {"grid.cells": [6, 4], "time.end": 12.0}),
}


def warmer(sim):
    """Set other values after step 12, whenever that is seen."""
    name = "temperature" if "temperature" in sim else "concentration"
    if sim.steps == 12:
        sim.set({key.replace("FIELD", name): value for key, value in WARMER.items()})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scheme", ["explicit", "nodes"])
def test_a_value_is_another_one_from_the_next_step_on(scheme, backend):
    """As if the case had said so: of Euler's steps, which read their beginning."""
    case, overrides = SET[scheme]
    later = "(t > 0.0115)"
    said = {
        "boundary.left.temperature.value": f"where({later}, 1 + y, 1.5)",
        "source.temperature": f"where({later}, 3.0, 0.0)",
    }
    given = {"backend": backend, "output": False, "every": "3 steps"}
    found = heatsolve.run(case, each=warmer, overrides=overrides, **given)
    alone = heatsolve.run(case, backend=backend, output=False, overrides=overrides | said)
    assert np.array_equal(found["temperature"], alone["temperature"])
    plain = heatsolve.run(case, backend=backend, output=False, overrides=overrides)
    assert not np.array_equal(found["temperature"], plain["temperature"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "scheme", [pytest.param(name, marks=thorough if name in MORE else ()) for name in SET]
)
def test_a_restart_knows_what_was_set(scheme, backend):
    """It goes on with the values, from checkpoints where they were set, or later."""
    case, overrides = SET[scheme]
    given = {"backend": backend, "overrides": overrides | {"checkpoint.every": 1000}}
    alone = heatsolve.run(case, each=warmer, every="4 steps", output="alone.h5", **given)
    assert alone.attributes["steps"] > 24
    said, name = alone.attributes["changes"], next(iter(alone))
    value = r'boundary\.left\.\w+\.value = "1 \+ y", source\.\w+ = 3\.0'
    assert re.fullmatch(rf"after step 12 \(t = [\d.]+\): {value}", said)
    for stop in (12, 20):
        with heatsolve.Simulation(case, output="own.h5", overwrite=True, **given) as sim:
            for _ in sim.march("4 steps"):
                warmer(sim)
                if sim.steps == stop:
                    break
        again = heatsolve.run(case, output="own.h5", restart=True, **given)
        assert same(again, alone) and again.attributes["changes"] == said
        assert again.attributes["case"] == alone.attributes["case"]
    plain = heatsolve.run(case, output="plain.h5", **given)
    assert "changes" not in plain.attributes
    assert not np.array_equal(plain[name][-1], alone[name][-1])


def test_values_beside_data():
    """Fields of data stay what they are; none can be set."""
    start = np.add.outer(np.arange(8.0), np.arange(12.0))
    case = MARCH | {"initial": {"temperature": start}, "source": {"temperature": start}}
    sim = heatsolve.Simulation(case, backend="numpy", overrides={"time.end": 0.02})
    sim.step(12)
    sim.set("boundary.left.temperature.value", "y")
    with pytest.raises((CaseError, InputError), match=r"set: .*source.temperature"):
        sim.set("source.temperature", start)
    sim.run()
    later = {"boundary.left.temperature.value": "where((t > 0.0115), y, 1.5)", "time.end": 0.02}
    alone = heatsolve.run(case, backend="numpy", output=False, overrides=later)
    assert np.array_equal(sim["temperature"], alone["temperature"][-1])


@pytest.mark.parametrize("record", [3, [[1]], [["a", 0.0, []]], [[1, 0.0, [["k", 2]]]]])
def test_changes_of_a_damaged_checkpoint(record):
    with pytest.raises(FileFailure, match="the checkpoint is damaged"):
        changes_of(record)


def test_what_was_set_is_told():
    sim = heatsolve.Simulation(MARCH, backend="numpy")
    sim.step(3)
    sim.set("source.temperature", np.float32(2))
    sim.step(2)
    sim.set("source.temperature", 2)  # which it has
    sim.set("source", {"temperature": "x"})
    assert sim.changes == [
        (3, sim.history["time"][2], {"source.temperature": "2.0"}),
        (5, sim.time, {"source": '{temperature = "x"}'}),
    ]
    assert "after step 5 (t = 0.005): source = " in sim.snapshot().attributes["changes"]
    sim.run()
    with pytest.raises(InputError, match="set: the run is over"):
        sim.set("source.temperature", 3)
    assert len(sim.changes) == 2


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"time.end": 3}, InputError, 'set: "time.end" is not a key of [source] or [boundary]'),
        ({"source.temperatur": 3}, CaseError, "set: source.temperatur=3: source.temperatur: unkn"),
        ({"source.temperature": "1/"}, CaseError, "set: source.temperature="),
        ({"source.temperature": 1j}, CaseError, 'set: "source.temperature": complex is no number'),
        ({"boundary.left.temperature.gradient": 1}, InputError, "a wall keeps its kind of"),
        ({"source.temperature": "1/(x - x)"}, InputError, "source.temperature"),
    ],
)
def test_values_that_cannot_be_set(settings, error, message):
    """One sentence, and the run goes on without them."""
    sim = heatsolve.Simulation(MARCH, backend="numpy")
    sim.step(3)
    with pytest.raises(error, match=re.escape(message)):
        sim.set(settings)
    sim.run()
    assert not sim.changes and same(sim.result, heatsolve.run(MARCH, backend="numpy"))


def test_an_unstable_step_is_refused_when_a_value_is_set():
    lid = {"grid.cells": [8, 8], "time.end": 1.0, "time.step": 0.05}
    sim = heatsolve.Simulation("cavity-re100", backend="numpy", overrides=lid)
    sim.step(5)
    with pytest.raises(InputError, match=r"a step of 0\.05 is unstable"):
        sim.set("boundary.top.velocity_x.value", 100.0)
    sim.set("boundary.top.velocity_x.value", "1 + t")
    sim.run()
    assert sim.steps == 20 and len(sim.changes) == 1


def test_a_steady_case_has_no_steps_to_set_values_for():
    sim = heatsolve.Simulation("hot-plate", overrides=PLATE)
    with pytest.raises(InputError, match="set: a steady case has no steps"):
        sim.set("source.temperature", 1.0)


# ---- files and memory ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["explicit", "flow", "steady"])
def test_results_in_memory(name, tmp_path):
    """They are those of the file, but that there is none."""
    case, overrides = CASES[name]
    kept = heatsolve.run(case, backend="numpy", overrides=overrides, output=False)
    assert not list(tmp_path.iterdir()) and kept.path is None
    written = heatsolve.run(case, backend="numpy", overrides=overrides)
    assert same(kept, written)
    differing = {"wall_seconds", "solve_seconds", "machine"}
    assert kept.attributes.keys() == written.attributes.keys()
    for key in kept.attributes.keys() - differing:
        assert kept.attributes[key] == written.attributes[key]
    for name in written:
        assert kept[name].attrs == written[name].attrs and kept[name].dims == written[name].dims
    assert repr(kept).startswith("<heatsolve.Result in memory: ")
    assert "base64,iVBOR" in kept._repr_html_()
    with pytest.raises(KeyError, match="in memory has no field 'x'"):
        kept["x"]


def test_save():
    """The fields now, in a file like any other, and the run goes on as if nothing had been."""
    alone = heatsolve.run(MARCH, backend="numpy")
    sim = heatsolve.Simulation(MARCH, backend="numpy")
    sim.step(30)
    sim.save("now.h5")
    now = heatsolve.open("now.h5")
    assert np.array_equal(now["temperature"][0], sim["temperature"])
    assert (now.attributes["steps"], now.time.tolist()) == (30, [sim.time])
    assert not now.converged and len(now.history["residual"]) == 30
    assert np.array_equal(sim.snapshot()["temperature"], now["temperature"])
    assert sim.figure("temperature")._repr_png_().startswith(b"\x89PNG")
    sim.run()
    assert same(sim.result, alone)
    steady = heatsolve.Simulation("hot-plate", backend="numpy", overrides=PLATE)
    steady.step(2)
    steady.save("steady.h5")
    assert np.array_equal(heatsolve.open("steady.h5")["temperature"], steady["temperature"])
    with pytest.raises(InputError, match="is the name of a picture"):
        steady.save("steady.png")
    steady.run()  # as if nobody had tried
    assert steady.result.converged


def test_a_simulation_with_a_file():
    """It is there when the run is over, frames and all; a restart goes on from its checkpoints."""
    alone = heatsolve.run(MARCH, backend="numpy", output="alone.h5")
    saved = {"backend": "numpy", "overrides": {"checkpoint.every": 10}, "output": "own.h5"}
    with heatsolve.Simulation(MARCH, **saved) as sim:
        sim.step(25)
        with pytest.raises(InputError, match="not over yet"):
            sim.result  # noqa: B018
    assert heatsolve.open("own.h5").attributes["stopped"] == "closed"
    again = heatsolve.Simulation(MARCH, restart=True, **saved)
    assert again.steps == 25
    assert [sim.steps for sim in again.march("50 steps")] == [50, 100]
    assert same(heatsolve.open("own.h5"), alone)
    with pytest.raises(InputError, match="checkpoints lie beside a file"):
        heatsolve.Simulation(MARCH, restart=True)
    assert [*heatsolve.march(MARCH, "50 steps", restart=True, **saved)] == []


def test_a_simulation_that_is_dropped_leaves_no_file(tmp_path, capfd):
    sim = heatsolve.Simulation(MARCH, backend="numpy", output="own.h5")
    sim.step(5)
    del sim
    gc.collect()
    assert not list(tmp_path.iterdir())
    assert "own.h5 is not written: its run was neither taken to its end nor closed" in (
        capfd.readouterr().err
    )


def test_without_a_file_nothing_is_drawn_or_saved(capfd):
    heatsolve.run(MARCH, backend="numpy", overrides={"checkpoint.every": 10}, output=False)
    said = "a run without a file writes no others, draws nothing, saves nothing"
    assert capfd.readouterr().err == f"heatsolve: warning: {said}\n"


def test_waiting_is_no_computing():
    """Time between two steps is not that of the run, and other runs may use it."""
    sim = heatsolve.Simulation(MARCH, backend="numpy", quiet=False)
    sim.step(3)
    sim._run._left -= 1000.0
    other = heatsolve.run(MARCH, backend="numpy")
    sim.run()
    assert sim.result.attributes["wall_seconds"] < 100.0
    assert sim.result.attributes["solve_seconds"] < 100.0
    assert same(sim.result, other)
    with np.errstate(divide="raise"):
        sim = heatsolve.Simulation(MARCH, backend="numpy")
        with pytest.raises(FloatingPointError):
            np.ones(1) / np.zeros(1)


def interrupted(call):
    """Call a function that takes long, and press Ctrl-C half a second after it hears that."""

    def press():
        patience = time.monotonic() + 60
        while signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            assert time.monotonic() < patience
            time.sleep(0.01)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        call()
    pressing.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


LONG = {"time.end": 1e5, "output.every": 10**9}
SLOW = {"grid.nodes": [33, 33], "solver.method": "jacobi", "solver.tolerance": 1e-300,
        "solver.max_iterations": 10**9}  # fmt: skip


@pytest.mark.parametrize(("case", "overrides"), [(MARCH, LONG), ("hot-plate", SLOW)])
def test_a_simulation_outlives_an_interrupt(case, overrides):
    """As in a notebook: it is between two steps, and goes on when it is asked to."""
    sim = heatsolve.Simulation(case, backend="numpy", overrides=overrides)
    interrupted(sim.run)
    steps = sim.steps
    assert steps > 10 and not sim.over
    assert sim.step(5) == 5 and sim.steps == steps + 5
    alone = heatsolve.Simulation(case, backend="numpy", overrides=overrides)
    alone.step(sim.steps)
    assert np.array_equal(sim["temperature"], alone["temperature"])


def test_a_run_that_is_interrupted_leaves_its_file():
    interrupted(lambda: heatsolve.run(MARCH, backend="numpy", overrides=LONG))
    result = heatsolve.open("case.h5")
    assert result.attributes["stopped"] == "interrupted" and result.attributes["steps"] > 10
    assert len(result.time) == 2


def test_a_run_that_failed_is_over():
    unstable = {"time.allow_unstable": True, "time.end": 5000, "time.step": 5}
    sim = heatsolve.Simulation(MARCH, backend="numpy", overrides=unstable)
    with pytest.raises(Diverged):
        sim.run()
    with pytest.raises(InputError, match="has ended with an error"):
        sim.step()


# ---- many processes ----------------------------------------------------------------------------

DRIVEN = """
import os, pickle, sys, numpy as np, heatsolve
os.chdir(sys.argv[1])
case, more = {case!r}, {overrides!r}
seen = []
for sim in heatsolve.march(case, {every!r}, backend="numpy", overrides=more, output="many.h5"):
    seen.append([sim.steps, *(sim[name].values.tobytes() for name in sim)])
    if sim.steps == 4:
        sim.set("boundary.left.temperature.value", "y")
block = sim.field(next(iter(sim)))
whole = sim[next(iter(sim))]
rank = sim._ranks.rank
assert block.size < whole.size and sim._ranks.size == 2
def each(sim):
    if sim.steps == 4:
        sim.set("boundary.left.temperature.value", "y")
saved = more | {{"checkpoint.every": 1000}}
heatsolve.run(case, restart=True, backend="numpy", overrides=saved, output="own.h5")
result = heatsolve.run(case, each=each, backend="numpy", overrides=more, output=False)
assert all(np.array_equal(sim[name], result[name][-1]) for name in sim)
with open("rank%d" % rank, "wb") as file:
    pickle.dump(seen, file)
sim = heatsolve.Simulation(case, backend="numpy", overrides=more)
sim.step(1)
if rank == 1:
    sim.stop("rank 1 has seen enough")
assert sim.step(1) == 0 and sim.result.attributes["stopped"] == "rank 1 has seen enough"
sim = heatsolve.Simulation(case, backend="numpy", overrides=more)
{last}
"""


@mpi
@pytest.mark.parametrize(
    ("last", "others", "first"),
    [
        (
            "sim.set('source.temperature', rank)",
            "source.temperature = 1",
            "source.temperature = 0",
        ),
        pytest.param("sim.step(1 + rank)", "step 2", "step 1", marks=thorough),
    ],
)
def test_many_processes(last, others, first, tmp_path):
    """Each sees the whole fields, with the bits of one, and they go on from a checkpoint of one; a
    stop of one stops all; different calls are refused."""
    script = tmp_path / "script.py"
    given = {"case": MARCH, "overrides": {"time.end": 0.01}, "every": "4 steps"}
    script.write_text(DRIVEN.format(last=last, **given))
    saved = {"checkpoint.every": 1000} | given["overrides"]
    with heatsolve.Simulation(MARCH, backend="numpy", overrides=saved, output="own.h5") as sim:
        sim.step(4)
        sim.set("boundary.left.temperature.value", "y")
        sim.step(2)
    done = launch(2, script, tmp_path)
    assert done.returncode == 2, done.stderr
    sentence = f"rank 1 of 2 asks for {others}, but rank 0 for {first}: all of them must make the"
    assert sentence in done.stderr
    alone = []
    for sim in heatsolve.march(backend="numpy", **given):
        alone.append([sim.steps, *(sim[name].values.tobytes() for name in sim)])
        if sim.steps == 4:
            sim.set("boundary.left.temperature.value", "y")
    for rank in (0, 1):
        assert pickle.loads((tmp_path / f"rank{rank}").read_bytes()) == alone
    for name in ("many.h5", "own.h5"):  # the latter was begun by one process
        many = heatsolve.open(name)
        assert many.attributes["ranks"] == 2 and same(many, sim.result)
        assert many.attributes["changes"] == sim.result.attributes["changes"]


# ---- words -------------------------------------------------------------------------------------


def test_check_answers_with_numbers(capfd):
    """The text is that of the command, and a mapping of its rows; numbers are those of a run."""
    answer = heatsolve.check("taylor-green", backend="numpy", overrides=FLOW, ranks=2)
    words = [word for key, value in FLOW.items() for word in ("--set", f"{key}={value}")]
    given = ["--backend", "numpy", "--ranks", "2", "--untimed"]
    app(["check", "taylor-green", *given, *words], standalone_mode=False)
    told = capfd.readouterr().out.splitlines()
    assert len(told) > 8 and told == str(answer).splitlines()[: len(told)]
    assert {"equation", "grid", "steps", "memory", "files", "time"} <= set(answer)
    assert answer["backend"].startswith("numpy") and repr(answer) == str(answer)
    sim = heatsolve.Simulation("taylor-green", backend="numpy", overrides=FLOW)
    sim.step()
    assert answer.step == sim.time and answer.unknowns == 144
    sim.run()
    assert answer.steps == sim.steps and answer.seconds > 0.0 and answer.memory > 0
    steady = heatsolve.check("hot-plate", overrides=PLATE, timed=False)
    assert steady.steps is steady.step is steady.seconds is steady.stable_step is None
    explicit = heatsolve.check(MARCH, timed=False)
    assert explicit.stable_step == pytest.approx(1 / (2 * (12**2 + 8**2)))
    with pytest.raises(InputError, match="is unstable"):
        heatsolve.check(MARCH, overrides={"time.step": 1.0})


NOTEBOOK = [
    "import heatsolve\nfrom IPython.display import display",
    "shown = display(None, display_id=True)\n"
    "for sim in heatsolve.march({case!r}, '40 steps', backend='numpy'):\n"
    "    shown.update(sim.figure('temperature'))",
    "from heatsolve import report\nreport.SECONDS_BETWEEN_FRAMES = 0.0\n"
    "heatsolve.run({case!r}, backend='numpy', output=False, quiet=False)",
    "heatsolve.check({case!r}, timed=False)",
    "sim",
]


@thorough
def test_a_notebook(tmp_path):
    """It shows a live picture, a bar while a run goes on, results and answers."""
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    cells = [nbformat.v4.new_code_cell(text.format(case=MARCH)) for text in NOTEBOOK]
    book = nbformat.v4.new_notebook(cells=cells)
    seen = []
    client = nbclient.NotebookClient(
        book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    )
    update = client.process_message

    def noted(message, *args):
        if message["msg_type"] == "update_display_data":
            seen.append(message["content"]["data"])
        return update(message, *args)

    client.process_message = noted
    client.execute()
    live = [data["image/png"] for data in seen if "image/png" in data]
    assert len(live) == 4 and len(set(live)) == 4  # at 0, 40, 80, 100 steps
    assert cells[1].outputs[0]["data"]["image/png"] == live[-1]
    (result,) = (output for output in cells[2].outputs if output["output_type"] == "execute_result")
    assert "<img src" in result["data"]["text/html"]
    bars = [data.get("text/html", "") for data in seen]
    assert sum('<progress max="1"' in bar and "step " in bar for bar in bars) > 20
    assert bars[-1] == ""  # it is taken away
    assert "equation" in cells[3].outputs[0]["data"]["text/plain"]
    assert cells[4].outputs[0]["data"]["text/plain"].startswith("<heatsolve.Simulation case: 100")


def test_examples_of_docstrings():
    found = doctest.testmod(api, extraglobs={"heatsolve": heatsolve})
    assert found.attempted >= 8 and not found.failed
