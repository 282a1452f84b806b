"""What may change in a case between a checkpoint and its restart, and what is said of the rest."""

import pytest

from heatsolve.case.changes import refuse_another
from heatsolve.case.load import CaseError, locating, parse
from heatsolve.errors import InputError
from heatsolve.models.heat.solver import method_name

PLATE = """\
[case]
title = "Plate"
[constants]
hot = 2
k = "hot/4"
unused = 1
[grid]
cells = ["4*hot", 9, 5]
periodic = ["x", "y"]
[model]
conductivity = "k*(1 + x)"
[source]
temperature = "2*x"
[[source.point]]
field = "temperature"
index = [1, 1, 1]
value = "hot"
[boundary.back]
temperature.value = 1
[boundary.front]
temperature = {robin = {h = 2, ambient = 0}}
[solver]
weight = 0.9
method = "jacobi"
"""
MARCH = """\
[grid]
cells = [8]
periodic = ["x"]
[model]
steady = false
[time]
end = 1
step = 0.1
"""


def compare(old, new, *overrides):
    case = parse(new, "case.toml", overrides)
    with locating(case):
        refuse_another(old, case, method_name)


def refusal(old, *overrides):
    with pytest.raises(CaseError) as error:
        compare(old, old, *overrides)
    assert str(error.value).endswith(" (--overwrite starts anew)")
    return str(error.value).removesuffix(" (--overwrite starts anew)")


@pytest.mark.parametrize(
    "override",
    [
        "case.title=Other",
        "case.description=Other",
        "output.every=3",
        "output.fields=['temperature']",
        "checkpoint.every='30 min'",
        "checkpoint.keep=3",
        "parallel.backend=numpy",
        "parallel.ranks=[2, 1, 1]",
        "reference.exact.temperature=x",
        "units.length=m",
        "solver.tolerance=1e-3",
        "solver.relative=true",
        "solver.max_iterations=10",
        "solver.iterations=10",
        "constants.unused=2",
        "constants.new=2",
    ],
)
def test_may_change(override):
    compare(PLATE, PLATE, override)


@pytest.mark.parametrize("override", ["time.end=2", "time.allow_unstable=true"])
def test_may_change_in_a_march(override):
    compare(MARCH, MARCH, override)


@pytest.mark.parametrize(
    "override",
    [
        "grid.cells=[8, 9.0, 5]",
        "grid.lower=[0, 0, 0]",
        "grid.periodic=['y', 'x']",
        "initial.temperature=0",
        "initial.temperature='0.0'",
        "model.density='1.'",
        "model.conductivity='  k * (1+x)'",
        "model.conductivity='0.5*(1 + x)'",
        "solver.norm=l2",
        "boundary.back.temperature.value='hot/2'",
        "source.point.0.value=2.0",
    ],
)
def test_the_same_in_other_words(override):
    compare(PLATE, PLATE, override)


def test_order_and_comments_make_no_difference():
    new = """\
schema = 1.0
time = {step = 0.10, end = 1} # the whole march
[model]
steady = false
[grid]
periodic = ["x"]
cells = ["2**3"]
"""
    compare(MARCH, new)
    compare(new, MARCH)


def test_auto_is_what_it_chooses():
    compare(MARCH, MARCH, "solver.method=multigrid")
    compare(MARCH + "[solver]\nmethod = 'multigrid'\n", MARCH)
    assert refusal(MARCH, "solver.method=sor") == (
        '--set solver.method=sor: solver.method: was "multigrid" in the checkpoint, is "sor" now'
    )


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("grid.cells=[16, 9, 5]", "grid.cells: was [8, 9, 5] in the checkpoint, is [16, 9, 5] now"),
        (
            "grid.upper=[1, 1, 2.5]",
            "grid.upper: was [1, 1, 1] in the checkpoint, is [1, 1, 2.5] now",
        ),
        (
            "source.temperature='2*y'",
            'source.temperature: was "2*x" in the checkpoint, is "2*y" now',
        ),
        (
            "source.temperature=2",
            'source.temperature: was "2*x" in the checkpoint, is 2 now',
        ),
        ("initial.temperature=3", "initial.temperature: was 0 in the checkpoint, is 3 now"),
        ("source.point.0.value=3", "source.point.0.value: was 2 in the checkpoint, is 3 now"),
        (
            "source.point.0.position=[0, 0, 0]",
            "source.point.0.position: was absent in the checkpoint, is [0, 0, 0] now; "
            "source.point.0.index: was [1, 1, 1] in the checkpoint, is absent now",
        ),
        ("source.point=[]", "source.point: was 1 given in the checkpoint, is absent now"),
        (
            "boundary.front.temperature.robin.h=3",
            "boundary.front.temperature.robin.h: was 2 in the checkpoint, is 3 now",
        ),
        (
            "boundary.back.temperature.gradient=0",
            "boundary.back.temperature.gradient: was absent in the checkpoint, is 0 now; "
            "boundary.back.temperature.value: was 1 in the checkpoint, is absent now",
        ),
        ("solver.weight=1", "solver.weight: was 0.9 in the checkpoint, is 1 now"),
        ("solver.check_every=5", "solver.check_every: was 1 in the checkpoint, is 5 now"),
        (
            "solver.precision=float32",
            'solver.precision: was "float64" in the checkpoint, is "float32" now',
        ),
    ],
)
def test_refused(override, sentence):
    assert refusal(PLATE, override) == f"--set {override}: {sentence}"


def test_refused_with_its_line():
    with pytest.raises(CaseError, match=r"^case\.toml:4: grid\.cells: was \[8\] in the"):
        compare(MARCH, "# changed\n\n[grid]\ncells = [9]" + MARCH[18:])


def test_a_march_that_changed():
    assert refusal(MARCH, "time.step=0.2", "time.scheme=backward-euler") == (
        "--set time.step=0.2: time.step: was 0.1 in the checkpoint, is 0.2 now; "
        'time.scheme: was "explicit" in the checkpoint, is "backward-euler" now'
    )
    steady = MARCH.partition("[model]")[0]
    with pytest.raises(
        InputError, match=r"model\.steady: was false .*is true now; time: was given"
    ):
        compare(MARCH, steady)


def test_a_used_constant_is_named():
    assert refusal(PLATE, "constants.k=3") == (
        "--set constants.k=3: constants.k: was 0.5 in the checkpoint, is 3 now"
    )
    # k changes with it: the cause is named once.
    assert refusal(PLATE, "constants.hot=4") == (
        "--set constants.hot=4: constants.hot: was 2 in the checkpoint, is 4 now"
    )


def test_a_constant_whose_use_changed_with_it():
    assert refusal(PLATE, "constants.unused=2", "source.temperature='2*x*unused'") == (
        "--set source.temperature='2*x*unused': source.temperature: was \"2*x\" in the checkpoint, "
        'is "2*x*unused" now'
    )


def test_many_changes_are_cut_short():
    sentence = refusal(
        PLATE,
        "initial.temperature=1",
        "model.density=2",
        "model.specific_heat=2",
        "solver.norm=max",
    )
    assert sentence.count(" now") == 3
    assert sentence.endswith("; and other keys changed")


def test_a_checkpoint_whose_case_is_not_valid_here():
    with pytest.raises(
        InputError, match="the case in the checkpoint is not valid here: checkpoint:1"
    ):
        compare("[grid\n", MARCH)


FILES = """
[[output.file]]
name = "a"
stride = 2
[[output.line]]
from = [0]
to = [1]
points = 5
"""


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("output.file.0.stride=4", "output.file.0.stride: was [2] in the checkpoint, is [4] now"),
        ("output.line.0.points=6", "output.line.0.points: was 5 in the checkpoint, is 6 now"),
        ("output.file.0.stride=[2]", ""),
        ("output.file.0.fields=['temperature']", ""),
        ("output.file.0.every=7", ""),
        ("output.file=[]", "output.file: was 1 given in the checkpoint, is absent now"),
    ],
)
def test_files_and_lines_name_their_keys(override, sentence):
    """A default, or the same points, may be written in another way."""
    text = MARCH + FILES
    if sentence:
        assert refusal(text, override).endswith(sentence)
    else:
        compare(text, text, override)
