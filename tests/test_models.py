"""Models of a user's own: their rates, their steps, the same bits everywhere, their mistakes.

test_models.py OUTPUT SETTING..., under mpiexec, runs Gray and Scott's equations into a file.
"""

import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from many import Impatient
from test_ranks import launch, mpi

import heatsolve
from heatsolve.case import load as registry
from heatsolve.control.controller import Start
from heatsolve.errors import CaseError, InputError, Interrupted
from heatsolve.models import stability
from heatsolve.models import user as models
from heatsolve.models.stability import amplification
from heatsolve.models.transport.equations import laplacian
from heatsolve.runner import run
from heatsolve.stencil.language import where


@heatsolve.model(
    "gray-scott",
    fields=("u", "v"),
    parameters={"feed": 0.037, "kill": 0.06, "du": 2e-5, "dv": 1e-5},
    diffusivities=("du", "dv"),
)
def gray_scott(at, u, v, feed, kill, du, dv, *spacings):
    """du/dt = du lap u - u v^2 + feed (1 - u)

    J. E. Pearson, Science 261 (1993), 189, eq. 2.
    """
    reaction = u[at] * v[at] * v[at]
    return (
        du * laplacian(u, at, *spacings) - reaction + feed * (1.0 - u[at]),
        dv * laplacian(v, at, *spacings) + reaction - (feed + kill) * v[at],
    )


@heatsolve.model("decay", fields=("u",), parameters={"rate": 0.5, "nu": 0.1}, diffusivities=("nu",))
def decay(at, u, rate, nu, *spacings):
    return nu * laplacian(u, at, *spacings) - rate * u[at]


@heatsolve.model("clipped", fields=("concentration",))
def clipped(i, j, concentration, dx, dy):
    """By indices, with a field that others have too, and no parameter."""
    c = concentration
    return where(c[i, j] > 0.5, 0.0, (c[i, j + 1] - c[i, j - 1]) / dx + 0.0 * c[i + 1, j] / dy)


OWN = dict(registry.REGISTERED)
registry.REGISTERED.clear()  # other tests, which are collected together with these, know of none


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(registry, "REGISTERED", dict(OWN))


GRAY_SCOTT = {
    "model": {"kind": "gray-scott", "feed": 0.03},
    "grid": {"cells": [48, 40], "upper": [1.2, 1.0], "periodic": ["x"]},
    "initial": {
        "u": "1 - 0.5*exp(-80*((x-0.6)**2 + (y-0.5)**2))",
        "v": "0.3*exp(-80*((x-0.55)**2 + (y-0.5)**2))",
    },
    "source": {"v": "1e-5*sin(t)*x"},
    "boundary": {
        "bottom": {"u": {"value": 1.0}, "v": {"gradient": "0.01*x"}},
        "top": {"u": {"gradient": 0}, "v": {"value": "0.02*x*t/100"}},
    },
    "time": {"end": 100.0, "step": 1.5, "scheme": "rk3"},
    "output": {"every": 20, "probes": [[0.6, 0.5]]},
}
DECAY = {
    "model": {"kind": "decay"},
    "grid": {"cells": [24], "periodic": ["x"]},
    "initial": {"u": "cos(2*pi*x)"},
    "time": {"end": 0.5, "cfl": 0.5},
}


def same(one, other):
    assert list(one) == list(other)
    for name in one:
        assert np.array_equal(one[name], other[name]), name
    for name, values in one.history.items():
        assert np.array_equal(values, other.history[name], equal_nan=True), name


@pytest.mark.few(8)
@pytest.mark.parametrize("scheme", ["explicit", "rk2", "rk3"])
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_a_wave_decays_as_the_scheme_says(scheme, dimension, backend, tmp_path):
    """Each step multiplies a wave by the polynomial of the scheme at its discrete rate."""
    axes = "xyz"[:dimension]
    counts = [12, 10, 8][:dimension]
    case = DECAY | {
        "grid": {"cells": counts, "periodic": list(axes)},
        "initial": {"u": "*".join(f"cos(2*pi*{axis})" for axis in axes)},
        "time": {"end": 0.05, "step": 0.005, "scheme": scheme},
    }
    found = heatsolve.run(case, backend=backend, output=tmp_path / "a.h5")
    lines = [np.cos(2 * np.pi * found.coordinates[axis]) for axis in reversed(axes)]
    start = np.prod(np.meshgrid(*lines, indexing="ij"), axis=0)
    rate = -0.5 - 0.1 * sum((2 * n * math.sin(math.pi / n)) ** 2 for n in counts)
    factor = float(amplification(scheme, np.array([0.005 * rate]))[0]) ** 10
    assert np.abs(found["u"][-1] - factor * start).max() < 1e-13


@pytest.mark.parametrize("convection", ["central", "central4", "upwind", "upwind3"])
@pytest.mark.parametrize("scheme", ["explicit", "rk2", "rk3", "adams-bashforth"])
def test_a_rectangle_of_stable_numbers_spares_only_searches(convection, scheme, monkeypatch):
    """The largest step is that of a search among all waves, whichever axes move."""
    rng, found = np.random.default_rng(5), []
    given = []
    for dimension in (1, 2, 3):
        for _ in range(4):
            speeds = tuple(
                rng.choice([0.0, 1.0], dimension) * 10.0 ** rng.uniform(-2, 2, dimension)
            )
            spacings = tuple(10.0 ** rng.uniform(-2, 0, dimension))
            diffusivities = tuple(10.0 ** rng.uniform(-5, 0, rng.integers(1, 3)))
            given.append((convection, scheme, speeds, diffusivities, spacings))
    for spares in (True, False):
        stability.largest_step.cache_clear()
        if not spares:
            monkeypatch.setattr(stability, "_is_stable", lambda *args: False)
        found.append([stability.largest_step(*args) for args in given])
    assert found[0] == found[1]
    each = [
        min(stability.largest_step(*args[:3], (nu,), args[4]) for nu in args[3]) for args in given
    ]
    assert each == found[0]
    # Halvings that are made together come to the step of single ones, but for a few last places.
    stability.largest_step.cache_clear()
    monkeypatch.setattr(stability, "TOGETHER", 1)
    singly = [stability.largest_step(*args) for args in given]
    assert singly == pytest.approx(found[0], rel=1e-13, abs=0)
    stability.largest_step.cache_clear()


def test_steps_are_those_of_the_largest_diffusivity(tmp_path):
    found = heatsolve.run(DECAY, output=tmp_path / "a.h5")
    # Euler's is stable up to h^2 / (2 nu); it takes half of that.
    assert found.history["dt"][0] == pytest.approx(0.5 / 24**2 / 0.2, rel=1e-9)
    found = heatsolve.run(DECAY, overrides={"model.nu": 0.2}, output=tmp_path / "b.h5")
    assert found.history["dt"][0] == pytest.approx(0.5 / 24**2 / 0.4, rel=1e-9)
    with pytest.raises(InputError, match=r"a step of 0\.1 is unstable, explicit Euler allows"):
        heatsolve.run(DECAY, overrides={"time.step": 0.1}, output=tmp_path / "c.h5")


def test_gray_scott_is_its_loop_in_numpy(tmp_path):
    case = GRAY_SCOTT | {
        "grid": {"cells": [20, 16], "upper": [0.5, 0.4], "periodic": ["x", "y"]},
        "boundary": {},
        "source": {},
        "time": {"end": 40.0, "step": 1.0},
        "output": {},
    }
    found = heatsolve.run(case, backend="numba", output=tmp_path / "a.h5")
    u, v = (np.array(found[name][0]) for name in "uv")
    h = 0.5 / 20
    for _ in range(40):
        rates = [sum(np.roll(f, s, n) for s in (1, -1) for n in (0, 1)) - 4 * f for f in (u, v)]
        reaction = u * v * v
        u, v = (
            u + 2e-5 * rates[0] / h**2 - reaction + 0.03 * (1 - u),
            v + 1e-5 * rates[1] / h**2 + reaction - 0.09 * v,
        )
    assert np.abs(found["u"][-1] - u).max() < 1e-13
    assert np.abs(found["v"][-1] - v).max() < 1e-13


def test_same_bits_on_each_backend(backend, tmp_path):
    for name, case in {"a": GRAY_SCOTT, "b": index_case()}.items():
        one = heatsolve.run(case, backend="numpy", output=tmp_path / f"{name}.h5")
        same(heatsolve.run(case, backend=backend, output=tmp_path / f"{name}2.h5"), one)


def index_case():
    walls = {side: {"concentration": {"gradient": 0}} for side in ("left", "right")}
    walls |= {side: {"concentration": {"value": "0.1*x"}} for side in ("bottom", "top")}
    return {
        "model": {"kind": "clipped"},
        "grid": {"nodes": [11, 9]},
        "initial": {"concentration": "x*y"},
        "boundary": walls,
        "time": {"end": 0.2, "step": 0.01, "scheme": "rk2"},
    }


@pytest.mark.few(1, among="2")
@mpi
@pytest.mark.parametrize("ranks", [2, 3])
def test_same_bits_on_several_processes(ranks, tmp_path):
    one = heatsolve.run(GRAY_SCOTT, backend="numpy", output=tmp_path / "one.h5")
    done = launch(ranks, Path(__file__).name, tmp_path / "many.h5")
    assert done.returncode == 0, done.stderr
    many = heatsolve.open(tmp_path / "many.h5")
    assert many.attributes["ranks"] == ranks
    same(many, one)


def test_goes_on_bit_for_bit(tmp_path):
    one = heatsolve.run(GRAY_SCOTT, output=tmp_path / "one.h5")
    case, path = heatsolve.load(GRAY_SCOTT), tmp_path / "two.h5"
    with pytest.raises(Interrupted):
        run(case, None, path, request=Impatient(1))
    run(case, None, path, start=Start(restart=True))
    same(heatsolve.open(path), one)
    changed = heatsolve.load(GRAY_SCOTT, {"model.kill": 0.061})
    with pytest.raises(InputError, match=r"model.kill: was absent in the checkpoint|was 0.06 in"):
        run(changed, None, path, start=Start(restart=True))


@pytest.mark.parametrize("every", [1, 20, 60])
def test_noise_that_grows_is_no_blow_up(every, tmp_path):
    """From 1e-12 to 1, however few of its steps are looked at."""
    case = {
        "model": {"kind": "decay", "rate": -27.6, "nu": 0},
        "grid": {"cells": [16], "periodic": ["x"]},
        "initial": {"u": "1e-12*sin(2*pi*x)"},
        "time": {"end": 1, "step": 0.005, "scheme": "rk3"},
        "solver": {"check_every": every},
    }
    result = run(heatsolve.load(case), "numpy", tmp_path / "case.h5")
    assert 0.5 < result.fields["u"].max() < 2.0


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.fed=1", 'model.fed: unknown key, did you mean "feed"?'),
        ("model.kind='grey-scott'", '"flow", "clipped", "decay", "gray-scott", not "grey-scott"'),
        ("model.conductivity=2", 'model.conductivity: only for kind = "heat"'),
        ("model.steady=true", 'model.steady: must be false with kind = "gray-scott"'),
        ("initial.temperature=2", "initial.temperature: the model has no such field (it has u, v)"),
        ("output.fields=['uu']", 'output.fields.0: the model has no uu, did you mean "u"?'),
        ("boundary.top.u.robin={h=1, ambient=0}", "robin: only for model.kind"),
        ("boundary.left.u.value=1", "boundary.left: x is periodic and has no walls"),
        ("time.scheme='crank-nicolson'", 'must be "explicit", "rk2" or "rk3" with model.kind = "g'),
        ("solver.method='cg'", 'solver.method: has no effect with model.kind = "gray-scott"'),
        ("parallel.halo=2", 'parallel.halo: must be 1 with model.kind = "gray-scott"'),
        ("model.feed='x'", "model.feed"),
    ],
)
def test_mistakes_in_a_case(setting, message):
    with pytest.raises(CaseError) as caught:
        heatsolve.load(GRAY_SCOTT, [setting])
    assert message in str(caught.value)


def test_a_model_without_diffusivities_chooses_no_step():
    case = index_case() | {"time": {"end": 0.2, "cfl": 0.5}}
    with pytest.raises(CaseError, match='needs a model with diffusivities, which "clipped" has'):
        heatsolve.load(case)


def test_a_missing_condition_is_told():
    with pytest.raises(CaseError, match=r"boundary.top.v: missing, the wall needs a condition"):
        heatsolve.load(GRAY_SCOTT, {"boundary.top": {"u": {"value": 1}}})


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("heat", {"fields": ["u"]}, "cannot be called 'heat'"),
        ("Two words", {"fields": ["u"]}, "cannot be called 'Two words'"),
        ("m", {"fields": "uv"}, "not a string"),
        ("m", {"fields": []}, "needs a field"),
        ("m", {"fields": ["x"]}, "can be called 'x': the word has a meaning in every case"),
        ("m", {"fields": ["u"], "parameters": {"mistakes": 1}}, "no parameter can be called"),
        ("m", {"fields": ["points"]}, "no field can be called 'points'"),
        ("m", {"fields": ["model_config"]}, "no field can be called 'model_config'"),
        ("m", {"fields": ["T"]}, "no field can be called 'T': write up to 60 lower-case letters"),
        ("m", {"fields": ["u"], "parameters": {"T": 1}}, "no parameter can be called 'T'"),
        ("m", {"fields": ["u", "u"]}, "can be called 'u': it is there twice"),
        ("m", {"fields": ["u"], "parameters": {"steady": 1}}, "can be called 'steady'"),
        ("m", {"fields": ["u"], "diffusivities": ["d"]}, "'d' is none of its parameters"),
    ],
)
def test_names_that_cannot_be(name, given, message):
    with pytest.raises(ValueError, match=message):
        models.model(name, **given)(decay)


def test_a_parameter_has_an_effect_whatever_its_name(tmp_path):
    """A flow has a key of this name, which needs buoyancy."""

    def cooling(i, u, reference_temperature, dx):
        return reference_temperature - u[i]

    models.model("cooling", fields=["u"], parameters={"reference_temperature": 5.0})(cooling)
    case = {
        "model": {"kind": "cooling", "reference_temperature": 4.0},
        "grid": {"cells": [4], "periodic": ["x"]}, "time": {"end": 1.0, "step": 0.1},
    }  # fmt: skip
    found = heatsolve.run(case, backend="numpy", output=False, strict=True)
    assert found["u"][-1].min() > 1.0


def test_a_function_that_takes_other_things():
    with pytest.raises(TypeError, match="decay must take u, nu after its index, in this order"):
        models.model("m", fields=["u"], parameters={"nu": 1.0})(decay)
    with pytest.raises(TypeError, match="no point function"):
        models.model("m", fields=["u"])(lambda u: u)


def wide(at, u, *spacings):
    """Two points away, which no layer of ghosts holds."""
    *others, last = at
    return u[(*others, last + 2)] - u[at]


def crossed(i, j, u, dx, dy):
    """The mixed derivative, from diagonal neighbours."""
    across = u[i + 1, j + 1] - u[i + 1, j - 1] - u[i - 1, j + 1] + u[i - 1, j - 1]
    return across / (4.0 * dx * dy)


def doubled(i, j, u, dx, dy):
    return u[2 * i, j]


def squared(i, j, u, dx, dy):
    return u[i, j] ** 2


@pytest.mark.parametrize("boundary", ["walls", "a periodic axis", "periodic"])
@pytest.mark.parametrize(
    ("rates", "message"),
    [
        (wide, "wide reads u 2 points away: it can read neighbours only"),
        (crossed, "crossed reads u at a diagonal neighbour: for that all axes must be periodic"),
        (doubled, "doubled reads u at multiples of an index: fields have only one grid"),
        (squared, "squared: no ** in a point function"),
    ],
)
def test_points_that_rates_cannot_read(rates, message, boundary, monkeypatch):
    """Before, they read outside arrays, or at ghosts that nothing had filled."""
    monkeypatch.setattr(registry, "REGISTERED", {})
    models.model("reading", fields=["u"])(rates)
    axes = {"walls": [], "a periodic axis": ["y"], "periodic": ["x", "y"]}[boundary]
    walls = dict(zip(("left", "right", "bottom", "top"), [{"u": {"value": 1}}] * 4, strict=True))
    case = {
        "model": {"kind": "reading"}, "grid": {"cells": [6, 5], "periodic": axes},
        "boundary": dict(list(walls.items())[: 4 - 2 * len(axes)]),
        "time": {"end": 0.1, "step": 0.1},
    }  # fmt: skip
    if rates is crossed and boundary == "periodic":
        heatsolve.load(case)
        return
    with pytest.raises(CaseError, match=re.escape(f"model.kind: {message}")):
        heatsolve.load(case)


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_diagonal_neighbours_in_a_periodic_box(backend, monkeypatch):
    monkeypatch.setattr(registry, "REGISTERED", {})
    models.model("crossed", fields=["u"])(crossed)
    case = {
        "model": {"kind": "crossed"},
        "grid": {"cells": [6, 5], "periodic": ["x", "y"]},
        "initial": {"u": "sin(2*pi*x)*sin(2*pi*y) + cos(2*pi*y)"},
        "time": {"end": 0.02, "step": 0.01},
    }
    u, *_, last = np.asarray(heatsolve.run(case, backend=backend, output=False)["u"])
    for _ in range(2):
        east, west = np.roll(u, -1, 1), np.roll(u, 1, 1)
        across = np.roll(east, -1, 0) - np.roll(west, -1, 0) - np.roll(east, 1, 0)
        u = u + 0.01 * (across + np.roll(west, 1, 0)) * 30.0 / 4.0
    assert last == pytest.approx(u, abs=1e-14)


def test_rates_for_other_fields(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "REGISTERED", {})

    @models.model("two", fields=["u", "v"])
    def two(at, u, v, h):
        return u[at]

    case = DECAY | {"model": {"kind": "two"}, "initial": {}, "time": {"end": 1.0, "step": 0.5}}
    with pytest.raises(InputError, match="the model two gives 1 rates for 2 fields"):
        heatsolve.run(case, backend="numba", output=tmp_path / "a.h5")


def test_models_of_installed_packages(monkeypatch):
    """By their name in a case; nothing is imported for other cases."""
    monkeypatch.setattr(registry, "REGISTERED", {})
    loaded = []

    class Offered:
        name = "offered"

        def load(self):
            loaded.append(self.name)
            models.model("offered", fields=["u"], parameters={"rate": 0.5, "nu": 0.1},
                         diffusivities=["nu"])(decay)  # fmt: skip

    def offers(group, name=None):
        assert group == "heatsolve.models"
        return [Offered()] if name in (None, "offered") else []

    monkeypatch.setattr(registry, "entry_points", offers)
    heatsolve.load("hotspot")
    assert not loaded
    assert heatsolve.load(DECAY | {"model": {"kind": "offered"}}).field_names == ("u",)
    assert loaded == ["offered"]
    with pytest.raises(CaseError, match='"flow", "offered", not "other"'):
        heatsolve.load(DECAY | {"model": {"kind": "other"}})


def test_check_shows_the_equation(tmp_path, capsys):
    from heatsolve.tools.check import preview

    lines = "\n".join(preview(heatsolve.load(GRAY_SCOTT), "numba"))
    assert "du/dt = du lap u - u v^2 + feed (1 - u); feed = 0.03; kill = 0.06; du = 2e-05" in lines
    assert "Pearson" not in lines
    assert "67 of 1.5 to t = 100" in lines


if __name__ == "__main__":
    registry.REGISTERED.update(OWN)
    heatsolve.run(GRAY_SCOTT, backend="numpy", output=sys.argv[1])
