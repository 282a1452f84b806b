"""Case files: what they mean, every mistake with its line, overrides, and the way back to TOML."""

import os
import pickle
import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import heatsolve
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.case import load as case_module
from heatsolve.case.case import Case
from heatsolve.case.load import CaseError, load, parse, shipped, title
from heatsolve.case.toml import dump, lines_of, with_key
from heatsolve.errors import FileFailure, InputError
from heatsolve.models.unused import unused_keys
from heatsolve.time.schedule import Schedule
from heatsolve.tools.template import STARTER

PLATE = """\
[case]
title = "Plate"
[constants]
hot = 2
k = "hot/4"
[grid]
nodes = ["8*hot", 9]
[boundary.left]
temperature = {value = "hot*y"}
[boundary.right]
temperature = {gradient = 0}
[boundary.bottom]
temperature = {robin = {h = "k", ambient = 1}}
[boundary.top]
temperature.value = 1
[solver]
tolerance = "k/1e5"
"""
TORUS = '[grid]\ncells = [4, 4]\nperiodic = ["x", "y"]\n'
MARCH = TORUS + "[model]\nsteady = false\n[time]\nend = 1\nstep = 0.1\n"
LINE = "[grid]\ncells = [4]\n[boundary]\nleft.temperature.value = 0\nright.temperature.value = 1\n"


def mistakes(text, *overrides):
    with pytest.raises(CaseError) as error:
        parse(text, "case.toml", overrides)
    return str(error.value).split("\n")


# ---- what a case means ------------------------------------------------------------------------


def test_values_and_defaults():
    case = parse(PLATE, "cases/plate.toml")
    assert (case.name, case.text, case.about.title) == ("plate", PLATE, "Plate")
    assert case.constants == {"hot": 2.0, "k": 0.5}
    assert (case.grid.kind, case.grid.counts, case.grid.dimension) == ("nodes", (16, 9), 2)
    assert (case.grid.axes, case.grid.lower, case.grid.upper) == (("x", "y"), (0, 0), (1, 1))
    assert case.boundary.left.temperature.value(y=np.array([0.0, 3.0])).tolist() == [0.0, 6.0]
    assert case.boundary.left.temperature.value.names == {"y"}
    assert case.boundary.right.temperature.gradient() == 0.0
    assert case.boundary.bottom.temperature.robin.h() == 0.5
    assert case.boundary.back is None
    assert case.solver.tolerance == 5e-6
    assert case.solver.max_iterations == 1_000_000
    assert (case.model.steady, case.time, case.source.points) == (True, None, ())
    assert (case.model.conductivity(), case.initial.temperature()) == (1.0, 0.0)
    assert (case.output.fields, case.units.length) == (None, "1")


def test_transient_case():
    text = MARCH + '[source]\ntemperature = "x*t"\n[reference]\nexact = {temperature = "t"}\n'
    case = parse(text, "march.toml")
    assert (case.time.end, case.time.step, case.time.scheme) == (1.0, 0.1, "explicit")
    assert case.source.temperature.names == {"x", "t"}
    assert case.reference.exact.temperature(t=2) == 2.0


@pytest.mark.parametrize(
    ("every", "steps", "seconds"),
    [
        ("250", 250, None),
        ("1e3", 1000, None),
        ("'2*n'", 8, None),
        ("'30 min'", None, 1800.0),
        ("'2 h'", None, 7200.0),
        ("' 1.5h '", None, 5400.0),
        ("'2 H'", None, 7200.0),
        ("'90 s'", None, 90.0),
    ],
)
def test_checkpoint(every, steps, seconds):
    text = f"[constants]\nn = 4\n{TORUS}[checkpoint]\nevery = {every}\n"
    checkpoint = parse(text, "a.toml").checkpoint
    every = Schedule.of(checkpoint.every)
    assert (every.steps, every.seconds) == (steps, seconds)
    assert checkpoint.keep == 2


def test_a_constant_does_not_hide_a_column():
    text = "[constants]\ndt = 0.1\n" + MARCH + "[stop]\nwhen = '{}'\n"
    (said,) = mistakes(text.format("dt > 1"))
    assert said.endswith(
        'stop.when: "dt" is a column of the history and a constant here: rename the constant'
    )
    assert parse(text.format("time > 0.5"), "a.toml").stop.when is not None


def test_a_relative_norm_is_not_relative_to_a_right_side():
    text = TORUS + "[solver]\nmonitor = 'update'\nnorm = 'sum-abs-change'\nrelative = {}\n"
    (said,) = mistakes(text.format("true"))
    assert 'must be false with norm = "sum-abs-change"' in said
    parse(text.format("false"), "a.toml")


def test_no_checkpoint():
    checkpoint = parse(TORUS + "[checkpoint]\nkeep = 3\n", "a.toml").checkpoint
    assert (checkpoint.every, checkpoint.keep) == (None, 3)


@pytest.mark.parametrize(
    ("every", "shown"),
    [
        ("0", "0"),
        ("-5", "-5"),
        ("1e300", "1e+300"),
        ("true", "true"),
        ("[1]", "a list"),
        ("'0 s'", '"0 s"'),
        ("'-1 h'", '"-1 h"'),
        ("'30 mins'", '"30 mins"'),
        ("'1 h 30 min'", '"1 h 30 min"'),
        ("'often'", '"often"'),
    ],
)
def test_checkpoint_mistake(every, shown):
    assert mistakes(f"{TORUS}[checkpoint]\nevery = {every}\n") == [
        "case.toml:5: checkpoint.every: must be a number of iterations or steps, such as 1000, "
        f'or a time, such as "30 min", "2 h" or "90 s", not {shown}'
    ]


def test_an_interval_with_a_decimal_point_may_be_a_time():
    (said,) = mistakes(f"{TORUS}[checkpoint]\nevery = 2.5\n")
    assert said.endswith('or a time, such as "2.5 s", not 2.5')


def test_checkpoint_in_terms_of_a_mistaken_constant():
    text = f"[constants]\nn = 'm'\n{TORUS}[checkpoint]\nevery = 'n'\n"
    assert mistakes(text) == ['case.toml:2: constants.n: unknown name "m" (known: pi, e)']


def test_point_sources():
    point = '[[source.point]]\nfield = "temperature"\n'
    text = TORUS + point + "index = [0, 3]\nvalue = 1\n" + point + "position = [1, 0]\nvalue = -1\n"
    first, second = parse(text, "points.toml").source.points
    assert (first.index, first.position, first.value) == ((0, 3), None, 1.0)
    assert (second.index, second.position, second.value) == (None, (1.0, 0.0), -1.0)


def test_is_frozen_and_travels():
    case = parse(PLATE, "plate.toml")
    with pytest.raises(ValidationError):
        case.grid = None
    with pytest.raises(ValidationError):
        case.solver.norm = "max"
    assert pickle.loads(pickle.dumps(case)) == case


def test_windows_line_ends_keep_the_lines():
    text = PLATE.replace("hot/4", "hat/4").replace("\n", "\r\n")
    sentence = 'unknown name "hat", did you mean "hot"? (known: pi, e, hot)'
    assert mistakes(text) == [f"case.toml:5: constants.k: {sentence}"]


# ---- mistakes: what is added to a valid case, and the line that it gives ------------------------

UPDATE = '[solver]\nupdate = "laplace"\nmonitor = "update"\n'
POINT = '[[source.point]]\nfield = "temperature"\nvalue = 1\n'
MISTAKES = [
    (
        TORUS,
        "[solver]\ntolerence = 1",
        '5: solver.tolerence: unknown key, did you mean "tolerance"?',
    ),
    (TORUS, "[sovler]", '4: sovler: unknown key, did you mean "solver"?'),
    (
        TORUS,
        "[units]\nqq = 1",
        "5: units.qq: unknown key (known: temperature, concentration, velocity_x, velocity_y, "
        "velocity_z, pressure, length, time)",
    ),
    (TORUS, "[case]\ntitle = 3", "5: case.title: must be a string, not 3"),
    (
        TORUS,
        "schema = 2",
        "4: grid.schema: unknown key (known: nodes, cells, lower, upper, periodic)",
    ),
    (
        TORUS,
        "[model]\nkind = 'haet'",
        '5: model.kind: must be one of "heat", "transport", "flow", not "haet"',
    ),
    (TORUS, "[model]\nsteady = 'no'", '5: model.steady: must be true or false, not "no"'),
    (TORUS, "[model]\ndensity = 0", "5: model.density: must be greater than 0, not 0"),
    (
        TORUS,
        "[model]\nconductivity = 't'",
        '5: model.conductivity: unknown name "t" (known: x, y, z, pi, e)',
    ),
    (
        TORUS,
        "[solver]\nnorm = 'l3'",
        '5: solver.norm: must be one of "l2", "max", "sum-abs-change", not "l3"',
    ),
    (TORUS, "[solver]\ntolerance = -1", "5: solver.tolerance: must be greater than 0, not -1"),
    (TORUS, "[solver]\ntolerance = true", "5: solver.tolerance: must be a number, not true"),
    (TORUS, "[solver]\ntolerance = [1]", "5: solver.tolerance: must be a number, not a list"),
    (TORUS, "[solver]\ntolerance = nan", "5: solver.tolerance: must be finite, not nan"),
    (TORUS, "[solver]\ntolerance = '1/0'", "5: solver.tolerance: must be finite, not inf"),
    (
        TORUS,
        "[solver]\ntolerance = 'abc'",
        '5: solver.tolerance: unknown name "abc" (known: pi, e)',
    ),
    (TORUS, "[solver]\niterations = 1.5", "5: solver.iterations: must be a whole number, not 1.5"),
    (TORUS, "[solver]\niterations = 0", "5: solver.iterations: must be greater than 0, not 0"),
    (
        TORUS,
        "[solver]\niterations = 1e300",
        "5: solver.iterations: is too large for a whole number",
    ),
    (
        TORUS,
        "[solver]\nmethod = 'sor'\nomega = 2",
        "6: solver.omega: must be less than 2, not 2",
    ),
    (TORUS, "[solver]\nomega = 1.5", '5: solver.omega: only for method = "sor", not "auto"'),
    (TORUS, "[solver]\nweight = 1", '5: solver.weight: only for method = "jacobi", not "auto"'),
    (
        TORUS,
        "[parallel]\nhalo = 2",
        '5: parallel.halo: must be 1 with method "auto"',
    ),
    (TORUS, "[solver]\nweight = 3", "5: solver.weight: must be at most 2, not 3"),
    (
        TORUS,
        UPDATE + "method = 'cg'",
        '5: solver.update: only for method = "jacobi", not "cg"',
    ),
    (
        TORUS,
        '[solver]\nupdate = "laplace"',
        '4: solver.monitor: must be "update" with solver.update, which defines no residual',
    ),
    (
        TORUS,
        UPDATE + "method = 'jacobi'\nweight = 0.5",
        "8: solver.weight: has no effect with solver.update",
    ),
    (
        TORUS,
        UPDATE + "[model]\nconductivity = 2",
        "8: model.conductivity: must be 1 with solver.update",
    ),
    (
        TORUS,
        UPDATE + "[model]\nconductivity = '1 + 0*x'",
        "8: model.conductivity: must be 1 with solver.update",
    ),
    (LINE, UPDATE, "7: solver.update: only for a steady case in 2D"),
    (MARCH, UPDATE, "10: solver.update: only for a steady case in 2D"),
    (TORUS, "[model]\nsteady = false", "time: missing, a transient case needs it"),
    (
        TORUS,
        "[time]\nend = 1\nstep = 1",
        "4: time: only for a transient case (model.steady = false)",
    ),
    (MARCH, "cfl = 1", "6: time: give exactly one of step, cfl"),
    (TORUS, "[checkpoint]\nkeep = 0", "5: checkpoint.keep: must be greater than 0, not 0"),
    (TORUS, "[parallel]\nthreads = -1", "5: parallel.threads: must be greater than 0, not -1"),
    (
        TORUS,
        "[source]\ntemperature = 't'",
        "5: source.temperature: t has no meaning in a steady case",
    ),
    (LINE, "[initial]\ntemperature = 'x*y'", "7: initial.temperature: the case has no y axis"),
    (
        TORUS,
        "[initial]\ntemperature = {value = 1}",
        "5: initial.temperature: must be a number or an expression, not a table without file, "
        "image or solid",
    ),
    (TORUS, "[initial]\ntemperature = '1/0'", "5: initial.temperature: must be finite, not inf"),
    (
        TORUS,
        "[output]\nfields = 'temperature'",
        '5: output.fields: must be a list, not "temperature"',
    ),
    (
        TORUS,
        "[output]\nfields = ['p']",
        "5: output.fields.0: the model has no p (it has temperature)",
    ),
    (TORUS, "[constants]\nx = 1", '5: constants.x: "x" already has a meaning in expressions'),
    (
        TORUS,
        "[constants]\na = 'b'\nb = 1",
        '5: constants.a: unknown name "b" (known: pi, e)',
    ),
    (
        TORUS,
        "[boundary.top]\ntemperature.value = 1",
        "4: boundary.top: y is periodic and has no walls",
    ),
    (LINE, "[boundary.top]\ntemperature.value = 1", "6: boundary.top: the case has no y axis"),
    (TORUS, "[boundary.left]", "4: boundary.left: x is periodic and has no walls"),
    (TORUS, "[boundary]\nleft = 3", "5: boundary.left: must be a table, not 3"),
    (
        TORUS,
        "[boundary.left]\ntemperature = {value = 1, gradient = 1}",
        "5: boundary.left.temperature: give exactly one of value, gradient, robin",
    ),
    (
        TORUS,
        "[boundary.left]\ntemperature.robin = {h = 't', ambient = 't'}",
        '5: boundary.left.temperature.robin.h: unknown name "t" (known: x, y, z, pi, e)',
    ),
    (TORUS, POINT, "4: source.point.0: give exactly one of index, position"),
    (
        TORUS,
        POINT + "index = [1]",
        "7: source.point.0.index: must have length 2, as the grid has axes",
    ),
    (TORUS, POINT + "index = [1, 4]", "7: source.point.0.index: 4 is outside 0 to 3 along y"),
    (
        TORUS,
        POINT + "index = [1, 1]\n" + POINT + "position = [-0.5, 0]",
        "11: source.point.1.position: -0.5 is outside 0 to 1 along x",
    ),
]


@pytest.mark.parametrize(("valid", "added", "line"), MISTAKES)
def test_mistake(valid, added, line):
    separator = ":" if line[0].isdigit() else ": "
    assert mistakes(valid + added + "\n") == [f"case.toml{separator}{line}"]


SPOT = """\
[grid]
nodes = [5, 9]
upper = [1, 2]
[boundary]
left.temperature.value = "y"
right.temperature.value = 0
bottom.temperature.value = 0
top.temperature.value = 1
[solver]
update = "five-point-mean"
monitor = "update"
"""
SOURCELESS = 'must be absent, solver.update = "five-point-mean" has no source'


@pytest.mark.parametrize(
    ("added", "settings"),
    [
        ("", []),
        ("[source]\ntemperature = 0\n", []),
        ("[source]\ntemperature = 'x'\n", ["solver.update=laplace"]),
        ("", ["solver.monitor=residual", "solver.iterations=10"]),
        ("", ["grid.upper=[0.1, 0.2]"]),
        ("", ["grid.upper=[1, 1]", "solver.update=laplace"]),
    ],
)
def test_literal_update(added, settings):
    assert parse(SPOT + added, "case.toml", settings).solver.update


@pytest.mark.parametrize(
    ("added", "setting", "line"),
    [
        (
            "",
            "grid.upper=[1, 1]",
            'grid: solver.update = "five-point-mean" needs equal spacings, not 0.25 and 0.125',
        ),
        (
            "",
            "grid.cells=[4, 8]",
            "grid.cells: must be nodes with solver.update, which has walls on points",
        ),
        (
            "",
            "boundary.left.temperature.gradient=1",
            "boundary.left.temperature: must be a value, or a gradient of 0, with solver.update",
        ),
        (
            "",
            "boundary.top.temperature.robin={h = 1, ambient = 0}",
            "boundary.top.temperature: must be a value, or a gradient of 0, with solver.update",
        ),
        ("[source]\ntemperature = 1\n", "case.title=a", f"source.temperature: {SOURCELESS}"),
        ("[source]\ntemperature = 'x'\n", "case.title=a", f"source.temperature: {SOURCELESS}"),
        (POINT + "index = [1, 1]\n", "case.title=a", f"source.point: {SOURCELESS}"),
    ],
)
def test_literal_update_mistake(added, setting, line):
    (mistake,) = mistakes(SPOT + added, setting)
    assert mistake.endswith(f": {line}")


GRIDS = [
    ("", "1: grid: give exactly one of nodes, cells"),
    ("nodes = [3]\ncells = [3]", "1: grid: give exactly one of nodes, cells"),
    ("cells = []", "2: grid.cells: must have length 1 to 3, not 0"),
    ("cells = [3, 3, 3, 3]", "2: grid.cells: must have length 1 to 3, not 4"),
    ("cells = 3", "2: grid.cells: must be a list, not 3"),
    ("cells = [3, 'a']", '2: grid.cells.1: unknown name "a" (known: pi, e)'),
    ("cells = [3, 1]", "2: grid.cells: y needs at least 2 cells, not 1"),
    ("nodes = [2, 3]", "2: grid.nodes: x needs at least 3 nodes, not 2"),
    ("nodes = [1_000_000, 2_000_000]", "2: grid.nodes: more than 2**40 points in total"),
    ("cells = [\n  3, # x\n  2.5,\n]", "2: grid.cells.1: must be a whole number, not 2.5"),
    ("cells = [3]\nlower = [0, 0]", "3: grid.lower: must have length 1, not 2"),
    ("cells = [3, 3]\nupper = [1, -1]", "3: grid.upper: must be above lower along y: 0 to -1"),
    ("cells = [3, 3]\nlower = [2, 0]", "1: grid.upper: must be above lower along x: 2 to 1"),
    ("cells = [3]\nperiodic = ['y']", "3: grid.periodic.0: the case has no y axis"),
    ("cells = [3]\nperiodic = ['x', 'x']", "3: grid.periodic.1: x is listed twice"),
    (
        "cells = [3]\nperiodic = ['a']",
        '3: grid.periodic.0: must be one of "x", "y", "z", not "a"',
    ),
]


@pytest.mark.parametrize(("grid", "line"), GRIDS)
def test_grid_mistake(grid, line):
    assert mistakes(f"[grid]\n{grid}\n") == [f"case.toml:{line}"]


def test_schema_version():
    assert parse("schema = 1\n" + TORUS, "a.toml").schema_version == 1
    assert mistakes("schema = true\n" + TORUS) == [
        "case.toml:1: schema: must be a number, not true"
    ]


def test_odd_keys_stay_on_one_line():
    assert mistakes(TORUS + '[units]\n"a\\nb" = 1') == [
        r'case.toml:5: units."a\nb": unknown key (known: temperature, '
        "concentration, velocity_x, velocity_y, velocity_z, pressure, length, time)"
    ]


def test_missing_sections():
    assert mistakes("") == ["case.toml: grid: missing"]
    wall = "missing, every wall that is not periodic needs a condition"
    assert mistakes("[grid]\ncells = [4]") == [
        f"case.toml: boundary.{side}: {wall}" for side in ("left", "right")
    ]
    assert mistakes(PLATE.replace("[boundary.top]\ntemperature.value = 1\n", "")) == [
        f"case.toml:8: boundary.top: {wall}"
    ]


ALL_AT_ONCE = '''\
schema = 3
[case]
title = "Not [here]"
description = """
[solver]
tolerence = 1
"""
[constants]
bad = "q"  # and what rests on it is no further mistake
worse = "bad + 1"
[grid]
cells = [
  "worse",
  "bad",
]
[initial]
temperature = "worse*x"
[source]
"point" = [
  {field = "temperature", index = [0], value = 1},
]
[boundary.left]
temperature.robin.h = true
[boundary.right]
temperature = {value = "zz"}
[solver]
"tol" = 1
'''


def test_all_mistakes_at_once_in_the_order_of_the_file():
    assert mistakes(ALL_AT_ONCE, "solver.methd=cg", "time.end=-1") == [
        "case.toml:1: schema: must be 1, not 3",
        'case.toml:9: constants.bad: unknown name "q" (known: pi, e)',
        "case.toml:23: boundary.left.temperature.robin.h: "
        "must be a number or an expression, not true",
        "case.toml:23: boundary.left.temperature.robin.ambient: missing",
        'case.toml:25: boundary.right.temperature.value: unknown name "zz", did you mean "z"? '
        "(known: x, y, z, t, bad, worse, pi, e)",
        "case.toml:27: solver.tol: unknown key (known: method, update, cycle, smoother, "
        "sweeps, weight, omega, tolerance, relative, norm, monitor, max_iterations, iterations, "
        "check_every, precision)",
        '--set solver.methd=cg: solver.methd: unknown key, did you mean "method"?',
        "--set time.end=-1: time.end: must be greater than 0, not -1",
    ]


FORMS = [
    ("[boundary]\nleft.temperature = 100", "8: boundary.left.temperature: must be a table: "
     "write { value = 100 }"),
    ('[boundary]\nleft.temperature = "x*y"', "8: boundary.left.temperature: must be a table: "
     'write { value = "x*y" }'),
    ("[source.point]\nvalue = 1", "7: source.point: must be a list of tables, not a table: "
     "write [[source.point]], not [source.point]"),
    ("[obstacle]\nradius = 1", "7: obstacle: must be a list of tables, not a table: "
     "write [[obstacle]], not [obstacle]"),
    ('[[case]]\ntitle = "x"', "7: case: must be one table, not a list: "
     "write [case], not [[case]]"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "sentence"), FORMS)
def test_a_section_of_another_form_is_told_how_to_be_written(text, sentence):
    torus = '[grid]\nnodes = [9, 9]\nperiodic = ["y"]\n[boundary.right]\n'
    assert f"case.toml:{sentence}" in mistakes(f"{torus}temperature = {{ value = 0 }}\n\n{text}")


SYNTAX = [
    ("[grid]\ncells = [4\n[x]", "case.toml:2: the bracket [ that opens here is not closed"),
    ("[a]\nn = [1, 2\nm = [3]", "case.toml:2: the bracket [ that opens here is not closed"),
    ("b = 1\n[grid\nn = 2", "case.toml:2: the bracket [ that opens here is not closed"),
    ("[[a.b]\nn = 2", "case.toml:1: the bracket [ that opens here is not closed"),
    ("a = { b = 1\nc = 2", "case.toml:1: the bracket { that opens here is not closed"),
    ("a = { b = [1, 2 }", "case.toml:1: the bracket [ that opens here is not closed"),
    ("a = 3]", "case.toml:1: the bracket ] closes nothing"),
    ('\n# "[\na = "x\nb = 1', 'case.toml:3: the quote " that opens here is not closed'),
    ('a = x"', 'case.toml:1: the quote " that opens here is not closed'),
    ("a = ['x', 'y]\nb = 1", "case.toml:1: the quote ' that opens here is not closed"),
    ('a = """x\ny\n', 'case.toml:1: the quote """ that opens here is not closed'),
    ("a = '''[\n{'''\nb = 1\nb = 2", "case.toml:4: cannot overwrite a value"),
    (
        "a = x + y # z",
        'case.toml:1: invalid value in "x + y": a text or an expression stands in quotes',
    ),
    (
        "a = 2*x",
        'case.toml:1: expected newline or end of document after a statement in "2*x": '
        "a text or an expression stands in quotes",
    ),
    ("a = 1\na = 2", "case.toml:2: cannot overwrite a value"),
    ("a = ", "case.toml:1: invalid value"),
    ("x", "case.toml:1: expected '=' after a key in a key/value pair"),
    ("a = " + "[" * 5000, "case.toml: nested too deeply"),
]


@pytest.mark.parametrize(("text", "sentence"), SYNTAX)
def test_syntax_error(text, sentence):
    assert mistakes(text) == [sentence]


# ---- overrides --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ("solver.method=cg", lambda case: case.solver.method == "cg"),
        ("solver.method='cg'", lambda case: case.solver.method == "cg"),
        (" solver.relative = true", lambda case: case.solver.relative is True),
        ("constants.hot=3", lambda case: case.constants == {"hot": 3.0, "k": 0.75}),
        ("source.temperature=x*y", lambda case: case.source.temperature(x=2, y=3) == 6),
        ("grid.nodes=[5, 6]", lambda case: case.grid.counts == (5, 6)),
        ("grid.cells=[5, 6]", lambda case: (case.grid.kind, case.grid.nodes) == ("cells", None)),
        ("case.title==a\nb = 3", lambda case: case.about.title == "=a\nb = 3"),
        ('case.title="a"\nb = 3', lambda case: case.about.title == '"a"\nb = 3'),
        ("case.title=", lambda case: case.about.title == ""),
        (
            "boundary.left.temperature.gradient=2",
            lambda case: case.boundary.left.temperature.value is None,
        ),
        (
            "boundary.bottom.temperature.robin.h=2",
            lambda case: case.boundary.bottom.temperature.robin.ambient() == 1,
        ),
    ],
)
def test_override(setting, found):
    assert found(parse(PLATE, "plate.toml", [setting]))


def test_overrides_add_up():
    case = parse(TORUS, "a.toml", ["model.steady=false", "time.end=1", "time.step=1", "time.cfl=2"])
    assert (case.time.step, case.time.cfl) == (None, 2.0)


def test_override_drops_rivals_only_in_their_own_table():
    case = parse(TORUS + "[constants]\nstep = 1\n", "a.toml", ["constants.cfl=2"])
    assert case.constants == {"step": 1.0, "cfl": 2.0}


def test_override_of_a_table_in_an_array():
    text = TORUS + POINT + "index = [1, 1]\n" + POINT + "index = [2, 2]\n"
    case = parse(text, "a.toml", ["source.point.0.value=3", "source.point.1.position=[0, 0]"])
    assert case.source.points[0].value == 3.0
    assert (case.source.points[1].index, case.source.points[1].position) == (None, (0.0, 0.0))
    assert mistakes(text, "source.point.2.value=3") == [
        "--set source.point.2.value=3: source.point has 2 items, counted from 0"
    ]
    assert mistakes(text, "source.point.1.index=[7, 0]") == [
        "--set source.point.1.index=[7, 0]: source.point.1.index: 7 is outside 0 to 3 along x"
    ]


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("solver.tolerence=1", 'solver.tolerence: unknown key, did you mean "tolerance"?'),
        ("grid.cells=[1]", "grid.cells: x needs at least 2 cells, not 1"),
        ("solver", "must be KEY=VALUE"),
        ("=3", "must be KEY=VALUE"),
        ("solver..norm=3", "must be KEY=VALUE"),
        ("case.title.x=3", "case.title is not a table"),
        ("grid.nodes.0=3", "grid.nodes is a list, and a list is replaced whole"),
        ("grid.nodes.0.x=3", "grid.nodes.0 is not a table"),
        ("grid.nodes.two.x=3", "grid.nodes has 2 items, counted from 0"),
    ],
)
def test_override_mistake(setting, sentence):
    assert mistakes(PLATE, setting) == [f"--set {setting}: {sentence}"]


# ---- the way back to TOML ---------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["a\0b", "\ud800", "\udcff"])
def test_texts_that_no_file_can_hold(bad):
    """NUL and halves of characters are told at once, not when the file is written."""
    words = "holds a NUL or half a character (a surrogate), which no file can hold"
    written = bad.replace("\0", "\\u0000")
    (said,) = mistakes(f'{PLATE}[units]\ntemperature = "{written}"\n')
    assert said == f"case.toml:19: units.temperature: {words}"
    (said,) = mistakes(PLATE, f"case.reference={bad}")
    assert said == f"--set case.reference={bad}: case.reference: {words}"
    (said,) = mistakes(f'{PLATE}[units]\n"{written}" = "K"\n')
    assert said.endswith(words)
    with pytest.raises(CaseError, match="which no file can hold"):
        heatsolve.load({"case": {"title": bad}})


def test_text_repeats_the_run_without_overrides():
    text = PLATE + '[[source.point]]\nfield = "temperature"\nindex = [1, 1]\nvalue = 1\n'
    settings = ["constants.hot=3", 'case.title=a "b" \\ \x7f\té', "source.point.0.value=-2.5e-7"]
    case = parse(text, "plate.toml", settings)
    again = parse(case.text, "plate.toml")
    assert again == case
    assert again.constants == {"hot": 3.0, "k": 0.75}
    assert again.about.title == 'a "b" \\ \x7f\té'


SPELLED = {
    "a table": "[grid]\ncells = [4]\n[solver] # a comment\ntolerance = 1e-5\n",
    "the last line": "[grid]\ncells = [4]\n[ solver ]",
    "no table": "[grid]\ncells = [4] # a comment\n[boundary.left]\nx = 1",
    "dotted keys": "solver.tolerance = 1e-5\n[grid]\ncells = [4]\n",
    "in one line": "solver = {tolerance = 1e-5}\n[grid]\ncells = [4]\n",
    "in a text": "[case]\ntitle = '''\n[solver]\n'''\n[solver]\ntolerance = 1e-5\n",
}
"""Ways to write a table, of which not all can be added to."""


@pytest.mark.parametrize("text", SPELLED.values(), ids=SPELLED)
def test_a_key_is_added_to_a_text(text):
    wanted = tomllib.loads(text)
    wanted.setdefault("solver", {})["relative"] = True
    written = with_key(text, "solver", "relative", True)
    assert tomllib.loads(written) == wanted
    if not text.startswith("solver"):  # all that was there is still there
        assert [row for row in written.split("\n") if row in text.split("\n")] == text.split("\n")


def test_files_hold_defaults_that_change():
    """A text for files names them where they have an effect, and repeats the run."""
    plate = parse(PLATE, "plate.toml")
    recorded = parse(plate.recorded, "plate.toml")
    assert recorded.solver.relative is plate.solver.is_relative
    assert recorded.recorded == plate.recorded
    given = parse(PLATE, "plate.toml", ["solver.relative=false"])
    assert given.recorded == given.text
    march = ["model.steady=false", "time.end=1", "time.step=1"]
    implicit = parse(PLATE, "plate.toml", [*march, "time.scheme=backward-euler"])
    assert "relative" in implicit.recorded
    without = [march, ["solver.monitor=update"], ["solver.iterations=3"]]
    for overrides in without:
        case = parse(PLATE, "plate.toml", overrides)
        assert case.recorded == case.text
    assert load("cavity-re100").recorded == load("cavity-re100").text


def test_dump_reads_well():
    table = {"schema": 1, "grid": {"nodes": [3, 4]}, "boundary": {"left": {"a": {"value": 1.5}}}}
    assert dump(table | {"source": {"point": [{"x": True}, {"y z": {}}]}}) == (
        "schema = 1\n\n[grid]\nnodes = [3, 4]\n\n[boundary]\n\n[boundary.left]\na = {value = 1.5}\n"
        '\n[source]\n\n[[source.point]]\nx = true\n\n[[source.point]]\n"y z" = {}\n'
    )


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
SCALARS = st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_dump_round_trip(table):
    text = dump(table)
    assert tomllib.loads(text) == table
    lines_of(text)


@given(st.dictionaries(st.sampled_from(["grid", "solver", "constants", "time", "q"]), VALUES))
def test_any_document_is_a_case_or_a_list_of_mistakes(table):
    try:
        parse(dump(table), "case.toml")
    except CaseError as error:
        assert all(line.startswith("case.toml") for line in str(error).split("\n"))


@given(TEXTS, st.sampled_from(["", "grid", "grid.cells", "source.point.0.value", "constants.a"]))
def test_any_override_is_carried_out_or_refused(text, key):
    try:
        parse(TORUS, "case.toml", [f"{key}={text}"])
    except CaseError as error:
        assert "--set" in str(error) or "case.toml" in str(error)


# ---- files ------------------------------------------------------------------------------------


def test_load_names_the_file_as_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torus.toml").write_text(TORUS)
    assert isinstance(load("torus.toml"), Case)
    assert load(tmp_path / "torus.toml", ["grid.cells=[3, 3]"]).name == "torus"
    with pytest.raises(CaseError, match=r"^./torus.toml:2: "):
        (tmp_path / "torus.toml").write_text("[grid]\ncells = 3")
        load("./torus.toml")


def test_load_accepts_a_byte_order_mark(tmp_path):
    (tmp_path / "bom.toml").write_bytes(b"\xef\xbb\xbf" + TORUS.encode())
    assert load(tmp_path / "bom.toml").text == TORUS


def test_load_refuses_what_is_no_text(tmp_path):
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9")
    with pytest.raises(InputError, match="is not UTF-8 text"):
        load(tmp_path / "latin.toml")
    with pytest.raises(InputError, match="is a directory, not a case file"):
        load(tmp_path)


@pytest.mark.parametrize("source", ["no-such-case", "no/such.toml", "nul\0.toml"])
def test_load_misses(source):
    with pytest.raises(InputError, match=r"^no case file or shipped case is called "):
        load(source)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_load_unreadable(tmp_path):
    (tmp_path / "a.toml").write_text(TORUS)
    (tmp_path / "a.toml").chmod(0)
    with pytest.raises(FileFailure, match="Permission denied"):
        load(tmp_path / "a.toml")


def test_load_too_long_a_name():
    with pytest.raises(FileFailure, match=r"^cannot read .*: File name too long$"):
        load("a" * 5000)


def test_shipped_cases(tmp_path, monkeypatch):
    (tmp_path / "hot-plate.toml").write_text('[case]\ntitle = "Hot"\n' + TORUS)
    (tmp_path / "plain.toml").write_text(TORUS)
    (tmp_path / "notes.txt").write_text("no case")
    monkeypatch.setattr(case_module, "_folder", lambda: tmp_path)
    assert shipped() == ["hot-plate", "plain"]
    assert (title("hot-plate"), title("plain")) == ("Hot", "")
    assert load("hot-plate").about.title == "Hot"
    with pytest.raises(InputError) as error:
        load("hot-plat")
    assert str(error.value) == (
        'no case file or shipped case is called "hot-plat", did you mean "hot-plate"?'
    )


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_case_is_valid(name):
    assert load(name).name == name


# ---- keys without effect ----------------------------------------------------------------------

HEAT_MARCH = LINE + "[model]\nsteady = false\n[time]\nend = 1e-3\nstep = 1e-3\n"
CARRIED = MARCH.replace("[model]", '[model]\nkind = "transport"')
FLOW = MARCH.replace("[model]", '[model]\nkind = "flow"\nviscosity = 1')
IMPLICIT = "scheme = 'backward-euler'\n"
UNUSED = [
    *[
        (HEAT_MARCH, f"[solver]\n{key} = {value}", f"solver.{key}", "march solves no system")
        for key, value in (
            ("method", "'cg'"),
            ("tolerance", "1e-3"),
            ("relative", "true"),
            ("norm", "'max'"),
            ("monitor", "'update'"),
            ("max_iterations", "3"),
            ("iterations", "3"),
        )
    ],
    (HEAT_MARCH, "[solver]\nmethod = 'sor'\nomega = 1", "solver.method solver.omega", "no system"),
    (HEAT_MARCH, "[solver]\nprecision = 'float32'\ncheck_every = 7", "", ""),
    (HEAT_MARCH, IMPLICIT + "[solver]\nmethod = 'cg'\nnorm = 'max'", "", ""),
    (HEAT_MARCH, IMPLICIT + "allow_unstable = true", "time.allow_unstable", "stable at any"),
    (LINE, "[output]\nevery = 2", "output.every", "a steady case has no time"),
    (HEAT_MARCH, "[output]\nevery = 1", "", ""),
    (HEAT_MARCH, "[output]\nevery = '9e9 s'", "output.every", "the march ends before, at"),
    (HEAT_MARCH, "[output]\nevery = [1e-9, 9e9]", "output.every.1", "the march ends before, at"),
    (LINE, "[units]\ntime = 's'\nlength = 'm'", "units.time", "a steady case has no time"),
    (LINE, "[model]\ndensity = 2", "model.density", "a steady temperature does not depend on it"),
    (LINE, "[model]\nspecific_heat = '1+x'", "model.specific_heat", "does not depend on it"),
    (HEAT_MARCH.replace("[time]", "density = 2\nspecific_heat = 3\n[time]"), "", "", ""),
    (LINE, "[units]\npressure = 'Pa'\ntemperature = 'K'", "units.pressure", "has temperature"),
    (CARRIED, "[units]\ntemperature = 'K'\ntime = 's'", "units.temperature", "has concentration"),
    (LINE, "[solver]\niterations = 9\ntolerance = 1", "solver.tolerance", "exactly so many"),
    (LINE, "[solver]\niterations = 9\nmax_iterations = 9", "solver.max_iterations", "exactly"),
    (FLOW.replace("[time]", "thermal_diffusivity = 1\nreference_temperature = 1\n[time]"), "",
     "model.reference_temperature", "buoyancy"),
    (CARRIED, "[output]\nfields = ['concentration']\n[reference]\nexact.concentration = 1", "", ""),
    (FLOW, "[output]\nfields = ['pressure']\n[reference]\nexact.velocity_x = 1",
     "reference.exact.velocity_x", "not among output.fields"),
    (LINE, "[constants]\na = 1\nb = 2\n[initial]\ntemperature = 'a'", "constants.b", "names it"),
    (LINE, "[parallel]\nranks = [1]", "parallel.ranks", "there is one process"),
    (LINE, "[parallel]\nhalo = 1", "parallel.halo", "there is one process"),
    (LINE, "[parallel]\ntransport = 'host'", "parallel.transport", "there is one process"),
    (LINE, "[parallel]\nthreads = 2", "parallel.threads", "only numba has threads"),
    (LINE, "[parallel]\nranks = 'auto'\nhalo = 'auto'\ntransport = 'auto'", "", ""),
]  # fmt: skip


@pytest.mark.parametrize(("valid", "added", "keys", "why"), UNUSED)
def test_unused_keys(valid, added, keys, why):
    case = parse(f"{valid}{added}\n", "case.toml")
    found = list(unused_keys(case, NumpyBackend(), 1))
    assert [".".join(map(str, path)) for path, _ in found] == keys.split()
    assert all(said.startswith("has no effect: ") and why in said for _, said in found)


def test_an_override_takes_the_place_of_a_key():
    """What it replaces was meant to have an effect, and nothing is said of it."""
    text = LINE + "[solver]\ntolerance = 1e-3\n"
    for settings, count in (
        (["solver.iterations=3"], 0),
        (["solver.iterations=3", "solver.tolerance=1"], 1),
    ):
        found = list(unused_keys(parse(text, "case.toml", settings), NumpyBackend(), 1))
        assert len(found) == count
    text = LINE.replace("[4]", "['n']") + "[constants]\nn = 4\n"
    case = parse(text, "case.toml", ["grid.cells=[5]"])
    assert not list(unused_keys(case, NumpyBackend(), 1))


BOX = "[[initial.box]]\nvalue = 1\nfield = "


@pytest.mark.parametrize(
    ("case", "box", "unused"),
    [
        (LINE, "'temperature'\nlower = [2]\nupper = [3]", True),
        (LINE, "'temperature'\nfirst = [4]\nlast = [9]", True),
        (LINE, "'temperature'\nlower = [0.4]\nupper = [0.6]", True),  # between two centres
        (LINE, "'temperature'\nlower = [0.8]\nupper = [3]", False),
        (LINE.replace("cells", "nodes"), "'temperature'\nfirst = [0]\nlast = [0]", True),  # a wall
        (LINE.replace("cells", "nodes"), "'temperature'\nfirst = [0]\nlast = [1]", False),
        (FLOW, "'velocity_x'\nlower = [0.2, 0]\nupper = [0.3, 1]", False),  # faces at 1/4
        (FLOW, "'velocity_y'\nlower = [0.2, 0]\nupper = [0.3, 1]", True),  # centres at 1/8, 3/8
    ],
)
def test_unused_box(case, box, unused):
    """A box of initial values in which no unknown lies."""
    found = list(unused_keys(parse(case + BOX + box, "case.toml"), NumpyBackend(), 1))
    assert [path for path, _ in found] == [("initial", "box", 0)] * unused


def test_unused_keys_of_many_processes():
    text = LINE + "[parallel]\nranks = [2]\nhalo = 1\ntransport = 'host'\n"
    found = list(unused_keys(parse(text, "case.toml"), NumpyBackend(), 2))
    assert [path for path, _ in found] == [("parallel", "transport")]
    # What a run of one process refuses needs no warning, too.
    found = list(unused_keys(parse(text, "case.toml"), NumpyBackend(), 1))
    assert [path[1] for path, _ in found] == ["halo", "transport"]


@pytest.mark.parametrize("name", [*shipped(), "starter"])
def test_no_shipped_case_has_unused_keys(name):
    case = parse(STARTER, "starter.toml") if name == "starter" else load(name)
    assert not list(unused_keys(case, NumpyBackend(), 1))


def test_an_override_removes_a_key():
    text = load("cylinder-re20").text
    case = parse(text, "case", ["time.tolerance=", "output.probes="])
    assert case.time.tolerance is None and case.output.probes == ()
    assert parse(case.text, "case") == case  # the text repeats it without any override
    point = "[[source.point]]\nfield = 'temperature'\nindex = [1, 1]\nvalue = "
    two = f"{point}1\n{point}2\n"
    shipped = load("hot-plate").text
    case = parse(shipped + two, "case", ["source.point.0="])
    assert [point.value for point in case.source.points] == [2]
    assert parse(shipped + two, "case", ["source="]).source == load("hot-plate").source
    for setting, said in (
        ("time.end=", "time.end: missing"),
        (
            "time.toleranze=",
            "--set time.toleranze=: the case gives no time.toleranze that",
        ),
        ("stop.when=", "--set stop.when=: the case gives no stop.when that could be removed"),
    ):
        with pytest.raises(CaseError) as refused:
            parse(text, "case", [setting])
        assert said in str(refused.value)
