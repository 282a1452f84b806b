"""Expressions: what they mean, what they refuse, and that no text can do worse than be refused."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsolve.errors import InputError
from heatsolve.stencil.expressions import (
    FUNCTIONS,
    MAX_DEPTH,
    MAX_LENGTH,
    ExpressionError,
    check_constant_name,
    compile_expression,
    suggestion,
)

VALUES = {"x": 0.5, "y": -2.0, "z": 3.0, "t": 1.25}
CONSTANTS = {"k": 4.0}


def compiled(text):
    return compile_expression(text, tuple(VALUES), CONSTANTS)


MEANINGS = [
    ("1", 1.0),
    (" 1e-3 ", 1e-3),
    ("x\n + y", -1.5),
    ("-x**2", -0.25),
    ("2**-1", 0.5),
    ("+x - -y", -1.5),
    ("k*x/y", -1.0),
    ("pi + e", math.pi + math.e),
    ("x < 1", 1.0),
    ("x >= 1", 0.0),
    ("y < x <= 0.5 < z", 1.0),
    ("y < x < 0.5 < z", 0.0),
    ("x == 0.5 and y != 0", 1.0),
    ("0 or y and 0", 0.0),
    ("not x", 0.0),
    ("(x > 0) - (y > 0)", 1.0),
    ("-(x > 0)", -1.0),
    ("(x > 0) + (z > 0)", 2.0),
    ("1 if x > 1 else 2 if x > 0 else 3", 2.0),
    ("where(y, 7, 8)", 7.0),
    ("min(x, y, z)", -2.0),
    ("max(x, y, z)", 3.0),
    ("atan2(1, 1) * 4", math.pi),
    ("log(e) + log10(100)", 3.0),
    ("abs(y) + floor(x) + ceil(x) + sign(y)", 2.0),
    ("1 / 0", math.inf),
    ("9**9**9", math.inf),
]


@pytest.mark.parametrize(("text", "value"), MEANINGS)
def test_meaning(text, value):
    assert compiled(text)(**VALUES) == value


SAME_NAME_IN_MATH = [name for name in FUNCTIONS if hasattr(math, name) and name != "atan2"]


@pytest.mark.parametrize("name", SAME_NAME_IN_MATH)
def test_functions_of_one_argument(name):
    assert compiled(f"{name}(x)")(x=0.5) == pytest.approx(getattr(math, name)(0.5), rel=1e-15)


def test_not_a_number_without_a_warning():
    assert math.isnan(compiled("sqrt(y)")(y=-1.0))


def test_broadcasts_in_double_precision():
    x = np.linspace(0, 1, 4, dtype=np.float32)
    y = np.arange(3.0)[:, None]
    value = compiled("x + y if x > 0 else -1")(x=x, y=y)
    assert value.dtype == np.float64
    np.testing.assert_array_equal(value, np.where(x > 0, x.astype(float) + y, -1.0))


def test_logic_broadcasts():
    value = compiled("x > 0 and y > 0 or not t")(x=np.ones((1, 2)), y=np.ones((3, 1)), t=1)
    np.testing.assert_array_equal(value, np.ones((3, 2)))


def test_same_bits_for_every_layout():
    x = np.linspace(0.1, 3, 64).reshape(8, 8)
    expression = compiled("exp(sin(x))**1.7")
    np.testing.assert_array_equal(expression(x=x.T), expression(x=x).T)


def test_scalars_give_a_float():
    assert type(compiled("where(x > 0, x, 1)")(x=2)) is float


def test_names_are_the_variables_used():
    assert compiled("k*x + sin(t) + pi").names == {"x", "t"}
    assert compiled("k").names == frozenset()


def test_ignores_other_variables_and_misses_its_own():
    assert compiled("x")(**VALUES) == 0.5
    with pytest.raises(KeyError):
        compiled("x")(y=1.0)


def test_is_a_value():
    one, two = compiled("sin(x) < k < t"), compiled("sin(x) < k < t")
    assert one == two == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(two)
    assert one != compile_expression("sin(x) < k < t", ("x", "t"), {"k": 5.0})
    with pytest.raises(AttributeError):
        one.text = "x"


def test_nested_chains_do_not_explode():
    text = "x"
    for _ in range(MAX_DEPTH - 2):
        text = f"0<({text})<2"
    assert compiled(text)(x=1.0) == 1.0


KNOWN = "(known: x, y, z, t, pi, e, k)"
REFUSED = [
    ("xx", f'unknown name "xx", did you mean "x"? {KNOWN}'),
    ("K", f'unknown name "K", did you mean "k"? {KNOWN}'),
    ("inf", f'unknown name "inf" {KNOWN}'),
    ("π", f'unknown name "π" {KNOWN}'),
    ("sine(x)", f'unknown function "sine", did you mean "sin"? (known: {", ".join(FUNCTIONS)})'),
    ("k(x)", f'unknown function "k" (known: {", ".join(FUNCTIONS)})'),
    ("sin", '"sin" is a function: write sin(...)'),
    ("sin()", "sin takes 1 argument, not 0"),
    ("atan2(x)", "atan2 takes 2 arguments, not 1"),
    ("min(x)", "min takes at least 2 arguments, not 1"),
    ("x^2", '"^" is not allowed in "x^2": a power is **'),
    ("x > 0 && y > 0", '"&&" is not allowed in "x > 0 && y > 0": write and'),
    ("x & y", '"&" is not allowed in "x & y": write and'),
    ("x || y", '"||" is not allowed in "x || y": write or'),
    ("x | y", '"|" is not allowed in "x | y": write or'),
    ("!x", '"!" is not allowed in "!x": write not'),
    ("x # y", '"#" is not allowed in the expression "x # y"'),
    ("x // 2", '"x // 2" is not allowed in an expression'),
    ("x.real", '"x.real" is not allowed in an expression'),
    ("x[0]", '"x[0]" is not allowed in an expression'),
    ("sin(x=1)", '"sin(x=1)" is not allowed in an expression'),
    ("max(*x, *y)", '"*x" is not allowed in an expression'),
    ("sin(x)(y)", '"sin(x)(y)" is not allowed in an expression'),
    ("lambda: 1", '"lambda: 1" is not allowed in an expression'),
    ("(x := 1)", '"x := 1" is not allowed in an expression'),
    ("'a'", "\"'a'\" is not allowed in an expression"),
    ("True", '"True" is not allowed in an expression'),
    ("1j", '"1j" is not allowed in an expression'),
    ("~x", '"~x" is not allowed in an expression'),
    ("x is y", '"x is y" is not allowed in an expression'),
    ("1e999", 'a number in "1e999" is too large'),
    ("9" * 400, f'a number in "{"9" * 60}..." is too large'),
    ("x +", 'cannot read the expression "x +": invalid syntax'),
    ("", 'cannot read the expression "": invalid syntax'),
    ("x" * (MAX_LENGTH + 1), f"expression longer than {MAX_LENGTH} characters"),
    ("-" * MAX_DEPTH + "x", f"expression nested deeper than {MAX_DEPTH} levels"),
    ("x" + "+x" * MAX_DEPTH, f"expression nested deeper than {MAX_DEPTH} levels"),
]


@pytest.mark.parametrize(("text", "sentence"), REFUSED)
def test_refused(text, sentence):
    with pytest.raises(ExpressionError) as refusal:
        compiled(text)
    assert str(refusal.value) == sentence
    assert isinstance(refusal.value, InputError)


@pytest.mark.parametrize("text", ["x\0", "(" * 900, "-" * 999, "\ud800", "exec('x')", "[x]*9"])
def test_nasty_texts_are_refused(text):
    with pytest.raises(ExpressionError):
        compiled(text)


def test_as_deep_as_promised():
    assert compiled("-" * (MAX_DEPTH - 1) + "x")(x=1.0) == -1.0


PIECES = [*"xyztk()+-*/<>=!.,0123456789e# ", "**", " and ", " or ", "not ", " if ", " else "]


@given(st.text(max_size=80) | st.lists(st.sampled_from(PIECES + list(FUNCTIONS))).map("".join))
def test_any_text_compiles_or_is_refused(text):
    try:
        expression = compiled(text)
    except ExpressionError as error:
        assert "\n" not in str(error)
    else:
        assert isinstance(expression(**VALUES), float)


@pytest.mark.parametrize("name", ["k", "length_2", "_a"])
def test_names_a_constant_may_have(name):
    check_constant_name(name)


@pytest.mark.parametrize("name", ["x", "y", "z", "t", "pi", "e", *FUNCTIONS])
def test_names_that_are_taken(name):
    with pytest.raises(ExpressionError, match="already has a meaning"):
        check_constant_name(name)


@pytest.mark.parametrize("name", ["", "2a", "a-b", "a b", "if", "not", "True", "α"])
def test_names_that_are_none(name):
    with pytest.raises(ExpressionError, match="is not a name"):
        check_constant_name(name)


def test_suggestion():
    assert suggestion("tolerence", ["norm", "tolerance"]) == ', did you mean "tolerance"?'
    assert suggestion("q", ["norm"]) == ""
