"""The command line: every command with good and bad input, its exit codes and its sentences."""

import os
import re
import socket
import subprocess
import sys

import numpy as np
import pytest

from heatsolve import __version__, api, cli
from heatsolve.backends import registry as choice
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.case.load import load, load_shipped, parse, shipped
from heatsolve.io.reader import read
from heatsolve.models.grid import SAMPLED, grid_of
from heatsolve.models.heat.conduction import Conduction, thinned
from heatsolve.report import size
from heatsolve.time import step_size
from heatsolve.tools.check import preview

PLATE = """\
[case]
title = "Plate"
[grid]
nodes = [9, 9]
[boundary]
left.temperature.value = 1
right.temperature.value = "y"
bottom.temperature.gradient = 0
top.temperature.robin = {h = 2, ambient = "x"}
[parallel]
backend = "numpy"
"""
MARCH = PLATE + "[model]\nsteady = false\n[time]\nend = 0.01\ncfl = 1\n[output]\nevery = 10\n"
DIVERGES = ["time.allow_unstable=true", "time.cfl=50", "time.end=50"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in, with a steady and a transient case."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plate.toml").write_text(PLATE)
    (tmp_path / "march.toml").write_text(MARCH)
    return tmp_path


@pytest.fixture
def heatsolve(folder, monkeypatch, capsys):
    """The program, in this process: exit code, standard output, standard error."""

    def program(*arguments):
        monkeypatch.setattr(sys, "argv", ["heatsolve", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as leaving:
            code = leaving.code or 0
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return program


@pytest.fixture
def refuses(heatsolve):
    """The sentence with which the program ends, after its exit code."""

    def program(code, *arguments):
        given, _, said = heatsolve(*arguments)
        assert given == code
        assert "Traceback" not in said
        *warnings, sentence = said.splitlines()
        assert all(line.startswith("heatsolve: warning: ") for line in warnings)
        assert re.match(r"heatsolve: |bad\.toml:\d+: |march\.toml:\d+: |--set ", sentence)
        return sentence.removeprefix("heatsolve: ")

    return program


def settings(*pairs):
    return [word for pair in pairs for word in ("--set", pair)]


# ---- run --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("run", "--quiet"), ("check", "--untimed")])
def test_keys_without_effect(heatsolve, refuses, folder, command):
    """A warning that names the key, its place and why; with --strict an error."""
    given = ("march.toml", *settings("solver.tolerance=1e-3"))
    key = "solver.tolerance: has no effect: an explicit march solves no system"
    code, _, said = heatsolve(*command, *given)
    assert (code, said) == (0, f"heatsolve: warning: --set solver.tolerance=1e-3: {key}\n")
    assert refuses(2, *command, *given, "--strict") == f"--set solver.tolerance=1e-3: {key}"
    (folder / "march.toml").write_text(MARCH + "[solver]\nmethod = 'cg'\nnorm = 'max'\n")
    code, _, said = heatsolve(*command, "march.toml", "--strict")
    assert (code, said.count("\n")) == (2, 2)
    assert said.startswith("march.toml:20: solver.method: has no effect: ")
    assert heatsolve(*command, "plate.toml", "--strict")[::2] == (0, "")


def test_run(heatsolve, folder):
    code, said, complaint = heatsolve("run", "plate.toml")
    assert (code, complaint) == (0, "")
    assert "plate: Plate\nbackend numpy (as asked for), float64\n9 x 9 nodes, 63 unknowns" in said
    assert "converged in" in said
    assert "wrote plate.h5\n" in said
    assert read(folder / "plate.h5").fields["temperature"].shape == (9, 9)
    assert sorted(path.suffix for path in folder.glob("plate.*")) == [".h5", ".toml", ".xdmf"]


def test_run_counts_its_own_sweeps(heatsolve, monkeypatch):
    """Points, bytes, and the unknowns of solved systems: of the iteration, not of its set-up."""
    counted = []

    def speed(seconds, points, moved, solved):
        counted.append((points, moved, solved))
        return ""

    monkeypatch.setattr("heatsolve.runner.speed", speed)
    unknowns = 63

    def run(*arguments):
        assert heatsolve("run", *arguments)[0] == 0
        return counted.pop()

    points, moved, solved = run("plate.toml", *settings("solver.method=jacobi",
                                                        "solver.iterations=200"))  # fmt: skip
    # With the start, the norm at the end, and the inverse of the diagonal at two walls.
    assert 200 * unknowns <= points <= 204 * unknowns + 9
    assert 15 * points < moved < 40 * points
    assert solved == 0
    assert run("plate.toml")[2] == unknowns
    step_length = step_size.step_length

    def laborious(problem):
        problem.backend.points_updated += 1_000_000
        return step_length(problem)

    monkeypatch.setattr(step_size, "step_length", laborious)
    assert run("march.toml", *settings("time.end=0.001"))[0] < 1_000_000
    assert run("march.toml", *settings("time.end=0.001"))[2] == 0
    implicit = settings("time.scheme=backward-euler", "time.step=0.005", "checkpoint.every=1")
    assert run("march.toml", *implicit)[2] == 2 * unknowns
    # What was solved before a restart is no work of this run.
    again = settings("time.end=0.015")
    assert run("march.toml", "--restart", *implicit, *again)[2] == unknowns


def test_run_quietly_to_another_file(heatsolve, folder):
    assert heatsolve("run", "march.toml", "--quiet", "--output", "there.h5") == (0, "", "")
    assert (folder / "there.h5").exists()
    assert not (folder / "march.h5").exists()


def test_set_changes_the_run_and_the_case_that_it_keeps(heatsolve, folder):
    changes = settings("grid.nodes=[5, 4]", "case.title=Small")
    assert heatsolve("run", "plate.toml", *changes)[0] == 0
    solution = read(folder / "plate.h5")
    assert (solution.title, solution.fields["temperature"].shape) == ("Small", (4, 5))
    assert parse(solution.attributes["case"], "again.toml").grid.counts == (5, 4)


def test_named_backend_comes_before_that_of_the_case(heatsolve):
    changes = settings("parallel.backend=cuda")
    assert heatsolve("run", "plate.toml", "--backend", "numpy", *changes)[0] == 0


def test_not_converged_writes_what_there_is(heatsolve, folder):
    code, said, complaint = heatsolve("run", "plate.toml", *settings("solver.max_iterations=2"))
    assert (code, complaint) == (3, "")
    assert "NOT converged in 2 iterations" in said
    assert "a larger solver.max_iterations (it is 2)" in said
    assert read(folder / "plate.h5").attributes["converged"] == 0


def test_a_step_that_does_not_converge(refuses, folder):
    changes = ("time.scheme=backward-euler", "time.step=0.01", "solver.max_iterations=1")
    sentence = refuses(3, "run", "march.toml", "--quiet", *settings(*changes))
    assert sentence.startswith("warning: the step to t = 0.01 did not converge in 1 iterations")
    stored = read(folder / "march.h5")
    assert list(stored.time) == [0.0, 0.01]  # what there is, is written
    assert not stored.attributes["converged"]


def test_divergence_leaves_the_earlier_file(refuses, heatsolve, folder):
    heatsolve("run", "march.toml", "--quiet")
    before = (folder / "march.h5").read_bytes()
    sentence = refuses(4, "run", "march.toml", "--quiet", *settings(*DIVERGES))
    assert re.match(r"diverged by step \d+ \(t = .*\): ", sentence)
    assert (folder / "march.h5").read_bytes() == before


def test_unstable_step(refuses):
    for command in ("run", "check"):
        sentence = refuses(2, command, "march.toml", *settings("time.cfl=1.1"))
        assert sentence.startswith("--set time.cfl=1.1: time.cfl: a step of ")
        assert "is unstable, explicit Euler allows at most" in sentence


@pytest.mark.parametrize("command", ["run", "check"])
def test_bad_input(refuses, folder, command):
    assert refuses(2, command, "nowhere.toml") == (
        'no case file or shipped case is called "nowhere.toml"'
    )
    assert refuses(2, command, "plate.toml", *settings("solver.norm=l3")) == (
        '--set solver.norm=l3: solver.norm: must be one of "l2", "max", "sum-abs-change", not "l3"'
    )
    assert refuses(2, command, "plate.toml", "--backend", "abacus") == (
        "no backend 'abacus': there are numpy, numba, cupy, cuda, or auto"
    )
    sentence = refuses(2, command, "plate.toml", *settings("model.conductivity=x - 0.5"))
    assert sentence == (
        "--set model.conductivity=x - 0.5: model.conductivity: "
        "must be greater than 0, but is -0.5 at x = 0"
    )
    (folder / "bad.toml").write_text("[gird]\n")
    around = settings("grid.cells=[4, 4]", "grid.periodic=['x', 'y']")
    assert "unknown key" in refuses(2, command, "bad.toml", *around)


def test_missing_walls_are_told_with_other_mistakes(heatsolve, folder):
    (folder / "bad.toml").write_text("[grid]\ncells = [4]\n[solver]\ntolerence = 1\n")
    code, _, complaint = heatsolve("run", "bad.toml")
    assert code == 2
    assert 'bad.toml:4: solver.tolerence: unknown key, did you mean "tolerance"?' in complaint
    assert complaint.count("missing, every wall") == 2


def test_every_mistake_has_its_line(heatsolve, folder):
    (folder / "bad.toml").write_text("[grid]\ncells = [4]\nupper = [-1]\n[gird]\n")
    code, _, complaint = heatsolve("run", "bad.toml")
    assert code == 2
    assert re.findall(r"bad\.toml:(\d):", complaint) == ["3", "4"]


@pytest.mark.skipif(choice.count_gpus() > 0, reason="there is a GPU")
@pytest.mark.parametrize("backend", ["cuda", "cupy"])
def test_missing_device(refuses, backend):
    assert refuses(2, "run", "plate.toml", "--backend", backend)


@pytest.mark.parametrize("target", ["no/such/folder/a.h5", "."])
def test_output_that_cannot_be_written(refuses, target):
    assert refuses(6, "run", "plate.toml", "--quiet", "--output", target).startswith("cannot write")


@pytest.fixture
def odd(folder):
    """What has a name in a folder, but must not be replaced by a file."""
    os.mkfifo(folder / "fifo")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind("socket")  # a short name: there is no room for a long one
        (folder / "link").symlink_to("/dev/null")
        yield folder


@pytest.mark.parametrize(
    ("target", "kind"),
    [("/dev/null", "a device"), ("link", "a device"), ("fifo", "a FIFO"), ("socket", "a socket")],
)
def test_an_output_that_is_no_file(refuses, heatsolve, odd, target, kind):
    """Is refused at once, by whatever writes, and stays what it is."""
    before = os.lstat(target).st_mode, os.lstat(target).st_ino
    said = f"{target} is {kind}, and is not replaced: name a file"
    assert refuses(2, "run", "plate.toml", "--quiet", "--output", target) == said
    job = ("submit", "plate.toml", "--time", "4:00:00", "--dry-run")
    assert refuses(2, *job, "--output", target) == said
    heatsolve("run", "plate.toml", "--quiet", "--output", "a.h5")
    assert refuses(2, "gather", "a.h5", "--output", target) == said
    assert refuses(2, "plot", "a.h5", "--output", target) == said
    assert refuses(2, "verify", "hot-plate", "--json", target) == said
    assert (os.lstat(target).st_mode, os.lstat(target).st_ino) == before
    assert not list(odd.rglob(".*"))


def test_an_output_that_is_a_link(heatsolve, folder):
    """It stays, and what it points to is written, with its checkpoints beside it."""
    (folder / "far").mkdir()
    (folder / "a.h5").symlink_to("far/b.h5")
    (folder / "a.png").symlink_to("far/b.png")
    for _ in range(2):
        given = ("--output", "a.h5", "--overwrite", "--set", "checkpoint.every=5")
        assert heatsolve("run", "plate.toml", "--quiet", *given)[0] == 0
        assert heatsolve("plot", "a.h5")[:2] == (0, "wrote a.png\n")
    found = {path.name for path in (folder / "far").iterdir()}
    assert found == {"b.h5", "b.xdmf", "b.checkpoints", "b.png"}
    assert (folder / "a.h5").is_symlink() and (folder / "a.png").is_symlink()
    (folder / "loop").symlink_to("loop")
    assert heatsolve("run", "plate.toml", "--quiet", "--output", "loop")[0] in (2, 6)


def test_a_sidecar_is_treated_as_its_file(refuses, heatsolve, folder):
    """What cannot be written is said before anything is computed; a link is followed."""
    (folder / "a.xdmf").mkdir()
    os.mkfifo(folder / "b.xdmf")
    said = refuses(6, "run", "plate.toml", "--quiet", "--output", "a.h5")
    assert said == "cannot write a.xdmf: Is a directory"
    said = refuses(2, "run", "plate.toml", "--quiet", "--output", "b.h5")
    assert said == "b.xdmf is a FIFO, and is not replaced: name a file"
    assert not list(folder.glob("*.h5")) and not list(folder.glob(".*"))
    (folder / "far").mkdir()
    (folder / "c.xdmf").symlink_to("far/d.xdmf")
    assert heatsolve("run", "plate.toml", "--quiet", "--output", "c.h5")[0] == 0
    assert (folder / "c.xdmf").is_symlink() and "c.h5" in (folder / "far/d.xdmf").read_text()
    assert [path.name for path in (folder / "far").iterdir()] == ["d.xdmf"]


@pytest.mark.parametrize("suffix", ["png", "PDF", "svg", "mp4", "html"])
def test_an_output_with_the_name_of_a_picture(refuses, suffix):
    said = refuses(2, "run", "plate.toml", "--quiet", "--output", f"a.{suffix}")
    assert said.startswith(f"a.{suffix} is the name of a picture: results are HDF5, call them a.h5")


@pytest.mark.parametrize("given", [("--output", ""), ("--output=",)])
@pytest.mark.parametrize("command", ["run plate.toml", "plot a.h5", "gather a.h5", "report a.h5"])
def test_an_output_without_a_name(refuses, command, given):
    assert refuses(2, *command.split(), *given) == "--output is given nothing"


def test_wrong_usage(heatsolve):
    for arguments in (["run"], ["fly"], ["run", "plate.toml", "--fast"]):
        code, _, complaint = heatsolve(*arguments)
        assert code == 2
        assert "Usage" in complaint


# ---- check ------------------------------------------------------------------------------------


def rows(case, backend="numpy"):
    """The rows of a preview by their labels, behind the title."""
    return {line[:12].strip(): line[12:] for line in list(preview(case, backend))[1:]}


def test_check(heatsolve, folder):
    code, said, complaint = heatsolve("check", "plate.toml")
    assert (code, complaint) == (0, "")
    assert said.startswith("plate: Plate\nequation    div(k grad T) + q = 0, k = 1, q = 0\n")
    found = rows(load("plate.toml"))
    assert found["grid"] == "9 x 9 nodes, 63 unknowns, spacing 0.125 x 0.125"
    assert [found[wall] for wall in ("left", "right", "bottom")] == [
        "temperature 1",
        "temperature y",
        "insulated",
    ]
    assert found["top"] == "exchange with surroundings at x, -k dT/dn = h (T - x), h = 2"
    assert found["method"].startswith("auto chooses multigrid: geometric multigrid")
    assert found["criterion"] == (
        "l2 norm of the residual below 1e-08 times that of the right side, walls included, "
        "at most 1000000 iterations"
    )
    assert found["backend"] == "numpy (as asked for), float64"
    assert not list(folder.glob("*.h5"))


def test_check_of_a_march():
    found = rows(parse(MARCH, "march.toml"))
    assert found["equation"].startswith("rho c dT/dt = div(k grad T) + q, k = 1, q = 0, rho = 1")
    assert found["stability"] == "a step of at most 0.00367647"
    assert found["steps"] == "3 of 0.00367647 to t = 0.01"
    assert "2 frames" in found["files"]
    assert "criterion" not in found
    text = parse(MARCH, "march.toml", ["time.cfl=3", "time.allow_unstable=true"])
    assert rows(text)["steps"].endswith("UNSTABLE but allowed")


def test_check_of_many_processes(heatsolve, folder):
    code, said, _ = heatsolve("check", "plate.toml", "--ranks", "6", "--backend", "numba")
    assert code == 0
    assert "processes   6 as 2 x 3, blocks of at most 4 x 3 unknowns" in said
    assert "halo        1 layer, at most 120 bytes to 3 neighbours in each exchange" in said
    assert "for each process" in said
    code, said, _ = heatsolve("check", "plate.toml", "--ranks", "6", "--set", "parallel.halo=3",
                              "--set", "solver.method=jacobi")  # fmt: skip
    assert code == 0
    assert "3 layers" in said and "once in 3 sweeps" in said
    code, said, _ = heatsolve(
        "check", "plate.toml", "--ranks", "6", "--set", "parallel.ranks=[6, 1]"
    )
    assert code == 0
    assert "processes   6 as 6 x 1, blocks of at most 2 x 9 unknowns" in said
    for ranks in ("100", "1000000007"):
        code, _, complaint = heatsolve("check", "plate.toml", "--ranks", ranks)
        assert code == 2
        assert f"{ranks} processes are too many for 7 x 9 unknowns" in complaint
    code, _, complaint = heatsolve("check", "plate.toml", "--ranks", "1000000007",
                                   "--set", "grid.nodes=[40000, 40000]")  # fmt: skip
    assert code == 2
    assert "1000000007 processes are too many for 39998 x 40000 unknowns" in complaint


@pytest.mark.parametrize("name", shipped())
def test_check_of_every_shipped_case(name):
    assert {"equation", "grid", "backend", "memory", "files"} <= rows(load(name)).keys()


@pytest.mark.parametrize(
    ("added", "sentence"),
    [
        ('[initial]\ntemperature = "1/(x - 0.5)"', "initial.temperature: must be finite"),
        ("[model]\nconductivity = 'y'", "model.conductivity: must be greater than 0"),
        (
            '[[source.point]]\nfield = "temperature"\nindex = [0, 4]\nvalue = 1',
            "source.point: ",
        ),
    ],
)
def test_check_refuses_what_run_refuses(heatsolve, folder, added, sentence):
    (folder / "plate.toml").write_text(f"{PLATE}{added}\n")
    checked, ran = heatsolve("check", "plate.toml"), heatsolve("run", "plate.toml")
    assert checked[0] == ran[0] == 2
    assert checked[2] == ran[2]
    assert sentence in ran[2]


STABLE = [
    (PLATE, []),
    (PLATE, ["grid.cells=[31, 7]", "model.density=2", "grid.upper=[0.3, 0.7]"]),
    (PLATE, ["grid.nodes=[31, 7]", "model.density=1 + y", "model.specific_heat=3"]),
    (PLATE, ["grid.nodes=[6, 40]", "model.conductivity=2 + x", "grid.lower=[-1, -2]"]),
    (PLATE, ["grid.nodes=[30, 40]", "boundary.top.temperature.robin.h=100*x"]),
    ("[grid]\ncells = [40, 7, 5]\nperiodic = ['x', 'y', 'z']\nupper = [1, 0.3, 0.3]\n", []),
]


@pytest.mark.parametrize(("text", "changes"), STABLE)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_thinned_grid_gives_the_same_largest_step(text, changes, precision):
    more = ["model.steady=false", "time.end=1", "time.step=1", f"solver.precision={precision}"]
    case = parse(text, "case.toml", [*changes, *more])
    machine, grid = NumpyBackend(precision), grid_of(case)
    thin = thinned(case, grid)
    largest = Conduction(case, machine).largest_step()
    assert Conduction(case, machine, thin).largest_step() == largest
    assert thin.all_unknowns <= grid.all_unknowns


def test_check_of_a_large_case_needs_no_memory(monkeypatch):
    largest = 0

    def zeros(self, shape):
        nonlocal largest
        largest = max(largest, int(np.prod(shape)))
        return np.zeros(shape, self.dtype)

    monkeypatch.setattr(NumpyBackend, "zeros", zeros)
    case = parse(MARCH, "march.toml", ["grid.nodes=[16384, 16384]", "time.end=1e-6"])
    found = rows(case)
    assert found["steps"].startswith("1074 of 9.31408e-10")
    assert found["not checked"]
    assert found["memory"].startswith("about 14 GiB")  # two fields, three of scratch, two to write
    assert largest < 1.1 * SAMPLED


def test_sizes():
    assert [size(n) for n in (0, 2**20 - 1, 2**20, 2.5 * 2**30)] == [
        "0 bytes",
        "1048575 bytes",
        "1 MiB",
        "2.5 GiB",
    ]


# ---- cases, new, info, plot ---------------------------------------------------------------------


def test_cases(heatsolve):
    code, said, complaint = heatsolve("cases")
    assert (code, complaint) == (0, "")
    assert [line.split()[0] for line in said.splitlines()] == shipped()


def test_new_case_runs(heatsolve, folder):
    code, said, _ = heatsolve("new", "first")
    assert (code, said) == (0, "wrote first.toml; run it with: heatsolve run first.toml\n")
    assert heatsolve("check", "first.toml")[0] == 0
    assert heatsolve("run", "first.toml", "--quiet", "--backend", "numpy") == (0, "", "")
    solution = read(folder / "first.h5")
    assert solution.units["temperature"] == "K"
    temperature = solution.fields["temperature"]
    assert 293.0 < temperature.min() < temperature.max() < 330.0


def test_a_copy_of_a_case(heatsolve, refuses, folder):
    code, said, _ = heatsolve("new", "--from", "hot-plate")
    assert (code, "wrote hot-plate.toml" in said) == (0, True)
    assert load("./hot-plate.toml").text == load_shipped("hot-plate").text
    assert heatsolve("new", "mine", "--from", "plate.toml")[0] == 0
    assert (folder / "mine.toml").read_text() == PLATE
    assert refuses(2, "new", "--from", "plate.toml").startswith("plate.toml exists already")
    assert "no case file or shipped case is called" in refuses(2, "new", "a", "--from", "hotplate")
    assert "needs a name for the case, or --from CASE" in refuses(2, "new")
    (folder / "bad.toml").write_text("root:x:0:0:root:/root:/bin/bash\n")
    assert "bad.toml:1: expected" in refuses(2, "new", "a", "--from", "bad.toml")
    assert not (folder / "a.toml").exists()


def test_a_file_goes_before_the_shipped_case_of_its_name(heatsolve, folder):
    """With or without its ending; nothing else is changed by it."""
    assert heatsolve("check", "hot-plate", "--untimed")[1].startswith("hot-plate: ")
    (folder / "hot-plate.toml").write_text(PLATE)
    note = 'hot-plate: the file "hot-plate.toml" in this folder, not the shipped case'
    for command in (("run", "-q"), ("run",), ("check", "--untimed")):
        code, said, _ = heatsolve(command[0], "hot-plate", *command[1:])
        assert code == 0
        assert said == "" if "-q" in command else said.splitlines()[0] == note
    assert read(folder / "hot-plate.h5").title == "Plate"
    assert "not the shipped" not in heatsolve("check", "hot-plate.toml", "--untimed")[1]
    assert load("hot-plate").grid.counts == (9, 9) != load_shipped("hot-plate").grid.counts
    (folder / "hot-plate").write_text(PLATE)
    assert '"hot-plate" in this folder' in heatsolve("check", "hot-plate", "--untimed")[1]


def test_one_shipped_case_is_printed(heatsolve, refuses):
    code, said, _ = heatsolve("cases", "hotspot")
    assert (code, said) == (0, load_shipped("hotspot").text)
    assert refuses(2, "cases", "hotsopt").endswith('did you mean "hotspot"?')


def test_short_options(heatsolve, folder):
    assert heatsolve("run", "plate.toml", "-q", "-o", "a.h5") == (0, "", "")
    assert heatsolve("plot", "a.h5", "-o", "b.png")[1] == "wrote b.png\n"
    for arguments in (("-h",), ("run", "-h"), ("plot", "-h")):
        code, said, _ = heatsolve(*arguments)
        assert code == 0 and "Usage:" in said and "--help" in said
    assert heatsolve("--version") == (0, f"heatsolve {__version__}\n", "")


def test_starter_with_all_its_comments_opened(heatsolve, folder):
    """What stands commented out in a starter is valid, too."""
    heatsolve("new", "first")
    text = (folder / "first.toml").read_text().replace("steady = true", "steady = false")
    key = r"^# (\[+[a-z.]+\]+|[a-z_]+ = .*)"
    text = re.sub(key, r"\1", text, flags=re.MULTILINE).replace("\nperiodic", "\n# periodic")
    (folder / "first.toml").write_text(text)
    case = load("first.toml")
    assert (case.time.scheme, case.output.every) == ("crank-nicolson", 10)
    assert len(case.source.points) == 1
    assert heatsolve("run", "first.toml", "--quiet", *settings("time.end=2"))[0] == 0


def test_new_does_not_overwrite(refuses, folder):
    assert refuses(2, "new", "plate") == "plate.toml exists already, and is not overwritten"
    assert refuses(2, "new", "plate.toml").startswith("plate.toml exists already")
    assert (folder / "plate.toml").read_text() == PLATE


@pytest.mark.parametrize("name", ["a/b", "..", "", ".hidden", "-x", "a b", "a\nb", "/tmp/a"])
def test_new_refuses_what_is_no_file_name(refuses, folder, name):
    assert "is no name for a case" in refuses(2, "new", "--", name)
    assert sorted(path.name for path in folder.iterdir()) == ["march.toml", "plate.toml"]


def test_new_that_cannot_be_written(refuses):
    assert refuses(6, "new", "a" * 300).endswith("File name too long")


def test_info_and_plot(heatsolve, folder):
    heatsolve("run", "plate.toml", "--quiet")
    code, said, _ = heatsolve("info", "plate.h5")
    assert code == 0
    assert said.startswith("title ")
    assert heatsolve("plot", "plate.h5") == (0, "wrote plate.png\n", "")
    assert heatsolve("plot", "plate.h5", "--history", "--output", "r.png")[0] == 0
    assert (folder / "r.png").read_bytes().startswith(b"\x89PNG")


def test_info_and_plot_of_bad_files(refuses, heatsolve, folder):
    heatsolve("run", "plate.toml", "--quiet")
    for command in ("info", "plot"):
        assert refuses(2, command, "nothing.h5") == "there is no file nothing.h5"
        assert refuses(6, command, "plate.toml").startswith("cannot read plate.toml")
    assert refuses(2, "plot", "plate.h5", "--field", "pressure").startswith(
        "plate.h5 has no field 'pressure'"
    )
    assert refuses(6, "plot", "plate.h5", "--output", "no/a.png").startswith("cannot write")


# ---- the program ------------------------------------------------------------------------------

HEAVY = ("numpy", "numba", "matplotlib", "cupy", "h5py", "pydantic")


def python(*arguments):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from heatsolve import cli; sys.argv = ['heatsolve', '--help']\n"
        "try: cli.main()\n"
        f"finally: print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    )
    done = python("-c", code)
    assert done.returncode == 0
    assert "run" in done.stdout
    assert done.stderr == "[]\n"


def test_program(folder):
    done = python("-m", "heatsolve", "run", "plate.toml", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = python("-m", "heatsolve", "run", "nowhere.toml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'heatsolve: no case file or shipped case is called "nowhere.toml"\n'


def test_progress_goes_where_nobody_reads(folder):
    """A closed pipe (`heatsolve cases | head -0`) is no crash."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "heatsolve", "cases"]
    done = subprocess.run(
        command, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(write_end)
    assert "Traceback" not in done.stderr


def test_the_command_line_imports_lazily():
    heavy = {"numba", "matplotlib", "cupy", "h5py", "numpy", "pydantic", "mpi4py", "cuda", "scipy"}
    # CUDA's packages put redirectors into every interpreter; only what the import adds counts.
    script = "import sys; n = set(sys.modules); import heatsolve.cli; print(*set(sys.modules) - n)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert "heatsolve.cli" in loaded
    assert not heavy & {name.split(".")[0] for name in loaded}
    assert {n for n in loaded if n.split(".")[0] == "heatsolve"} <= {
        "heatsolve", "heatsolve.cli", "heatsolve.errors", "heatsolve.report",
    }  # fmt: skip


def test_check_of_a_march_that_a_condition_ends(folder):
    """A bound of the time to the end would be none; each file in 2D has XDMF beside it."""
    stop = {"stop.when": "time > 0.5", "output.file": [{"name": "west", "upper": [0.5, 1]}]}
    march = {"model.steady": False, "time": {"end": 1, "step": 0.1, "scheme": "backward-euler"}}
    found = api.check("plate.toml", overrides=stop | march, backend="numpy")
    assert found["in all"].startswith("not known: it ends when stop.when holds, or after 10 steps")
    assert "plate_west.xdmf" in found["files"]


def test_a_finished_run_is_not_made_again(heatsolve):
    saved = ("run", "march.toml", "--set", "checkpoint.every=5")
    assert heatsolve(*saved)[0] == 0
    code, said, _ = heatsolve(*saved, "--restart")
    assert code == 0 and "march.h5 holds this already, nothing to do" in said
