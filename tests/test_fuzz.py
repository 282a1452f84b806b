"""Mutated case files: each runs, or ends in a sentence and its exit code; nothing else happens."""

import math
import re
import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.case.case import Case
from heatsolve.case.load import load, parse, shipped
from heatsolve.case.toml import dump
from heatsolve.errors import HeatsolveError
from heatsolve.models.base import make_model
from heatsolve.models.grid import grid_of
from heatsolve.runner import run

MOST_UNKNOWNS = 2000
MOST_POINTS = {1: 2000, 2: 44, 3: 12}
MOST_FLOW_STEPS = 5
"""Each of them solves a system in every stage."""
MOST_STEPS = 200

RICH = """\
schema = 1
[case]
title = "All that a steady case can say"
[constants]
k = 2
wide = "k/4"
[model]
conductivity = "k + sin(pi*x)*y"
[grid]
cells = [9, 8, 7]
lower = [-1, 0, 0]
upper = [1, "wide", 2]
periodic = ["z"]
[initial]
temperature = "x*y"
[source]
temperature = "where(x < 0, 1, -z)"
[[source.point]]
field = "temperature"
index = [1, 2, 3]
value = 3
[[source.point]]
field = "temperature"
position = [0.2, 0.1, 1]
value = "-k"
[boundary.left]
temperature = {value = "y"}
[boundary.right]
temperature = {gradient = -0.5}
[boundary.bottom]
temperature = {robin = {h = "1 + x**2", ambient = 4}}
[boundary.top]
temperature.value = 1e2
[solver]
method = "sor"
omega = 1.5
tolerance = 1e-6
relative = true
norm = "max"
monitor = "update"
max_iterations = 200
check_every = 3
precision = "float64"
[output]
fields = ["temperature"]
[parallel]
backend = "auto"
[units]
temperature = "K"
[reference.exact]
temperature = "x + y"
"""
MARCH = """\
[model]
steady = false
conductivity = 0.1
density = "1 + x"
specific_heat = 2
[grid]
nodes = [11, 12]
periodic = []
[initial]
temperature = "exp(-x)"
[source]
temperature = "cos(t)*y"
[boundary]
left.temperature = {value = "t"}
right.temperature = {gradient = "sin(t)"}
bottom.temperature = {robin = {h = 1, ambient = "t*x"}}
top.temperature = {gradient = 0}
[time]
end = 0.1
step = 0.01
scheme = "crank-nicolson"
allow_unstable = true
[solver]
method = "chebyshev"
tolerance = 1e-5
[output]
every = 4
[reference.exact]
temperature = "t"
"""
TORUS = """\
[grid]
cells = [16]
periodic = ["x"]
[source]
temperature = "sin(2*pi*x)"
[solver]
method = "jacobi"
weight = 0.7
iterations = 20
precision = "float32"
"""
CARRIED = """\
[constants]
c = 0.5
[model]
kind = "transport"
velocity = ["c", "x - 0.3"]
diffusivity = 0.01
convection = "tvd"
[grid]
cells = [12, 9]
periodic = ["x"]
[initial]
concentration = "sin(x)"
[[initial.box]]
field = "concentration"
value = "2*c"
first = [2, 3]
last = [5, 6]
again = [0.05]
[source]
concentration = "t*x"
[boundary.bottom]
concentration = {value = "x + t"}
[boundary.top]
concentration = {gradient = -1}
[time]
end = 0.2
cfl = 0.5
scheme = "rk3"
[solver]
precision = "float32"
[output]
fields = ["concentration"]
[units]
concentration = "mol/m3"
"""
RICH_TEXTS = [RICH, MARCH, TORUS, CARRIED]
TEXTS = [*RICH_TEXTS, *(load(name).text for name in shipped())]

NUMBERS = st.one_of(
    st.sampled_from(["0", "-0.0", "1", "2", "3", "7", "-1", "0.5", "nan", "inf", "-inf"]),
    st.sampled_from(["1e-300", "5e-324", "1e-160", "1e-20", "1e20", "1e160", "1e300", "2**53"]),
    st.sampled_from(["9007199254740993", "1e309", "99999999999999999999"]),
    st.integers(-5, 60).map(str),
    st.floats(-10, 10).map(repr),
)
OPERATORS = ["+", "-", "*", "/", "**", "<", "and"]
EXPRESSIONS = st.recursive(
    st.sampled_from(["x", "y", "z", "t", "pi", "k", "1", "0", "2.5", "1e200", "-1"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(OPERATORS), inner).map(" ".join),
        st.builds("{}({})".format, st.sampled_from(["sin", "exp", "log", "sqrt", "abs"]), inner),
        st.builds("({})".format, inner),
        st.builds("where({}, {}, {})".format, inner, inner, inner),
    ),
    max_leaves=5,
)
WORDS = st.sampled_from(
    ["jacobi", "sor", "chebyshev", "cg", "auto", "l2", "max", "update", "residual", "laplace",
     "float32", "float64", "explicit", "crank-nicolson", "backward-euler", "five-point-mean",
     "x", "y", "z", "temperature", "heat", "numpy"]
)  # fmt: skip
SIMPLE = st.one_of(
    NUMBERS,
    st.one_of(EXPRESSIONS, WORDS, st.text(max_size=5)).map(repr),
    st.sampled_from(["true", "false", "1979-05-27", "07:32:00", '"""a\nb"""', "0x1F", "1_0"]),
)
VALUES = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.builds(
            "{{{} = {}}}".format,
            st.sampled_from(["value", "gradient", "robin", "h", "ambient", "temperature", "q"]),
            inner,
        ),
    ),
    max_leaves=4,
)
KEYS = sorted({match for text in TEXTS for match in re.findall(r"^\[*([\w.]+)\]* *=", text, re.M)})
HEADERS = sorted({match for text in TEXTS for match in re.findall(r"^\[.*\]$", text, re.M)})
# Values of any sign and size: most of them are valid, and few computations survive them.
SIZES = [0, 1, 2.5, -3, 1e-300, 5e-324, 1e-160, 1e-20, 1e20, 1e160, 1e300, 1.7e308, -1e300]
FIELDS = [*SIZES, "x", "exp(-700*x)", "1e300*sin(9*x)", "x - x", "where(x < 0.5, 1, 1e9)"]
# What changes a run while its text stays valid, so that the loops are exercised, too.
SWITCHES = [
    ("solver", "method", ["auto", "jacobi", "sor", "chebyshev", "cg"]),
    ("solver", "norm", ["l2", "max"]),
    ("solver", "monitor", ["update", "residual"]),
    ("solver", "relative", [True, False]),
    ("solver", "precision", ["float64", "float32"]),
    ("solver", "check_every", [1, 2, 50]),
    ("solver", "iterations", [1, 7, 200]),
    ("solver", "tolerance", [1e-300, 1e-14, 1, 1e300]),
    ("solver", "omega", [1e-300, 1.0, 1.9999]),
    ("solver", "weight", [1e-300, 0.5, 2]),
    ("time", "scheme", ["explicit", "crank-nicolson", "backward-euler"]),
    ("time", "allow_unstable", [True]),
    ("time", "cfl", [0.5, 1.0, 1.5, 30]),
    ("time", "step", [5e-324, 1e-300, 1e-3, 0.03, 1, 1e300]),
    ("time", "end", [5e-324, 1e-300, 1e-3, 0.07, 1e6, 1e300]),
    ("output", "every", [1, 3, 1000]),
    ("grid", "periodic", [[], ["x"], ["x", "y"]]),
    ("grid", "nodes", [[5], [3, 3], [3, 4, 5]]),
    ("grid", "cells", [[5], [2, 2], [3, 2, 4]]),
    ("model", "conductivity", FIELDS),
    ("model", "density", FIELDS),
    ("initial", "temperature", FIELDS),
    ("source", "temperature", FIELDS),
    ("boundary", "left.temperature.value", FIELDS),
    ("boundary", "right.temperature.gradient", FIELDS),
    ("boundary", "bottom.temperature.robin", [{"h": h, "ambient": 1e9} for h in FIELDS]),
    ("boundary", "top.temperature.robin", [{"h": 1, "ambient": value} for value in FIELDS]),
]


DIVERGES = ['time.scheme="explicit"', "time.step=1e3", "time.end=1e6"]
MUTATIONS = ["value"] * 3 + ["number"] * 3 + ["part", "key", "delete", "again", "swap"]


def inline(value):
    """A value as it stands in a case file."""
    return dump({"a": {"b": {"v": value}}}).partition("v = ")[2].rstrip()


@st.composite
def mutants(draw):
    """A text with a few changes, or a few overrides, or both."""
    text = draw(st.one_of(st.sampled_from(RICH_TEXTS), st.sampled_from(TEXTS)))
    lines, overrides = text.splitlines(), []
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        mutate(draw, lines)
    known = [switch for switch in SWITCHES if f"[{switch[0]}" in text]
    for _ in range(draw(st.integers(0, 3))):
        section, key, choices = draw(st.sampled_from(known))
        overrides.append(f"{section}.{key}={inline(draw(st.sampled_from(choices)))}")
    return "\n".join(lines) + "\n", overrides


def mutate(draw, lines):
    """Change one line, mostly a value."""
    place = draw(st.integers(0, max(0, len(lines) - 1)))
    line = lines[place] if lines else ""
    key, equals, value = line.partition("=")
    kind = draw(st.sampled_from(MUTATIONS))
    if kind == "delete" and lines:
        del lines[place]
    elif kind == "again":
        lines.insert(draw(st.integers(0, len(lines))), line)
    elif kind == "swap" and lines:
        other = draw(st.integers(0, len(lines) - 1))
        lines[place], lines[other] = lines[other], line
    elif kind == "number" and re.search(r"\d", value):
        numbers = list(re.finditer(r"-?\d+(\.\d+)?(e-?\d+)?", value))
        chosen = draw(st.sampled_from(numbers))
        new = value[: chosen.start()] + draw(NUMBERS) + value[chosen.end() :]
        lines[place] = f"{key}={new}"
    elif kind == "key":
        new = draw(st.one_of(st.sampled_from(KEYS), st.sampled_from(HEADERS), st.text(max_size=4)))
        lines.insert(place, new if new.startswith("[") else f"{new} = {draw(VALUES)}")
    elif kind == "part" and line:
        start = draw(st.integers(0, len(line)))
        lines[place] = line[:start] + draw(st.text(max_size=2)) + line[start + 1 :]
    elif equals:
        lines[place] = f"{key}= {draw(VALUES)}"


def small(text: str, overrides: list[str]) -> Case:
    """The case, with so few unknowns and steps that it runs in a moment."""
    case = parse(text, "case.toml", overrides)
    changes = [*overrides, *fewer_points(case)]
    keys = {"transport": (), "collocated": ("iterations",), "staggered": ("max_iterations",)}
    for key in keys.get(case.scheme or case.model.kind, ("iterations", "max_iterations")):
        if (getattr(case.solver, key) or 0) > MOST_STEPS:
            changes.append(f"solver.{key}={MOST_STEPS}")
    case = parse(text, "case.toml", changes)
    if case.time is None:
        return case
    step = case.time.step or case.time.cfl * largest_step(case)
    most = MOST_FLOW_STEPS if case.model.kind == "flow" else MOST_STEPS
    if case.time.end < most * step:
        return case
    return parse(text, "case.toml", [*changes, f"time.end={min((most - 0.5) * step, 1e308)}"])


def fewer_points(case: Case) -> list[str]:
    """Overrides that cut a large grid down, at the same spacing; with obstacles at a larger one."""
    grid = case.grid
    if math.prod(grid.counts) <= MOST_UNKNOWNS:
        return []
    most = MOST_POINTS[grid.dimension]
    counts = [min(count, most) for count in grid.counts]
    shares = zip(grid.lower, reversed(grid_of(case).axes), counts, strict=True)
    upper = [
        low + axis.spacing * (count - axis.points + axis.intervals) for low, axis, count in shares
    ]
    changes = [f"grid.{grid.kind}={counts}"]
    if case.obstacles:
        return changes
    changes.append(f"grid.upper={upper}")
    if case.output.probes:  # which may lie in what is cut off
        changes.append("output.probes=[]")
    if case.output.lines:
        changes.append("output.line=[]")
    if case.reference.profiles:
        changes.append("reference.profile=[]")
    for n, point in enumerate(case.source.points):
        if point.index is not None:
            pairs = zip(point.index, counts, strict=True)
            changes.append(f"source.point.{n}.index={[min(i, c - 2) for i, c in pairs]}")
    return changes


def largest_step(case: Case) -> float:
    """The step at cfl = 1, finite so that the guard can count with it."""
    problem = make_model(case, NumpyBackend(case.solver.precision))
    return min(problem.largest_step(), 1e300)


@pytest.mark.few(10)
@pytest.mark.parametrize("text", TEXTS, ids=["rich", "march", "torus", "carried", *shipped()])
def test_the_seeds_run(text, tmp_path):
    case = small(text, [])
    assert run(case, "numpy", tmp_path / "a.h5").exit_code in (0, 3)


@pytest.mark.parametrize(
    "examples",
    [
        100,
        pytest.param(500, marks=pytest.mark.thorough),
        pytest.param(2000, marks=pytest.mark.slow),
    ],
)
def test_mutants(examples, tmp_path):
    """So many mutants, the same ones each time."""
    endings: dict[object, int] = {}

    @settings(
        max_examples=examples, derandomize=True, deadline=None, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @example((MARCH, DIVERGES))  # one mutant in hundreds does
    @given(mutants())
    def look(mutant):
        text, overrides = mutant
        try:
            code = run(small(text, overrides), "numpy", tmp_path / "a.h5").exit_code
        except HeatsolveError as error:
            code = error.exit_code
            assert str(error).strip()
        assert code in (0, 2, 3, 4)
        endings[code] = endings.get(code, 0) + 1

    began = time.perf_counter()
    look()
    print(f"{time.perf_counter() - began:.0f} s, exit codes {endings}")
    assert set(endings) == {0, 2, 3, 4}
    assert sum(endings.values()) >= examples
