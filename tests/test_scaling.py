"""`heatsolve scale`: the arithmetic of the table and the model, the files, the figure, launches."""

import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_ranks import mpi
from typer.testing import CliRunner

from heatsolve import cli
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.case.load import load, shipped
from heatsolve.errors import CaseError, InputError
from heatsolve.models.base import make_model
from heatsolve.models.grid import grid_of
from heatsolve.parallel.decomposition import block_of_rank
from heatsolve.parallel.ranks import Ranks
from heatsolve.parallel.transport import Transport
from heatsolve.runner import run
from heatsolve.tools import scaling
from heatsolve.tools.scaling import even, growth, of_kind, sized
from heatsolve.tools.timeline import clocked, parts_of, spans_of
from heatsolve_post.curves import scaling_figure, time_line_figure

ROOT = Path(__file__).parents[1]


def record(ranks, seconds, kind="weak", counts=(100, 100), **more):
    unknowns = counts[0] * counts[1]
    several = {"latency": 1e-5, "bandwidth": 1e9} if ranks > 1 else {"latency": None}
    return {
        "case": "plate", "kind": kind, "ranks": ranks, "backend": "numpy", "unit": "step",
        "precision": "float64", "link": "MPI", "dims": [ranks, 1], "counts": list(counts),
        "periodic": [], "unknowns": unknowns, "seconds": seconds,
        "alone": None, "slowest_alone": None, "updates": 3.0 * unknowns,
        "bytes": 48.0 * unknowns, "waited": 0.25, "balance": 1.0,
        "iterations": None, "steps": None, "launches": None, "halo": 1, "timeline": [],
        "sweeping": None, "exchanging": None,
        "machine": {"node": "n1", "nodes": 1, "cores": 2, "gpu": None}, **several, **more,
    }  # fmt: skip


WEAK = [record(1, [2e-3, 1e-3, 4e-3]), record(2, [2.5e-3] * 3, counts=(200, 100))]
STRONG = [record(1, [2e-3], "strong"), record(4, [8e-4], "strong")]


def test_a_size_has_whole_numbers_of_points():
    """The cylinder's grid has them for multiples of 41 only."""
    assert load("cylinder-re100", sized("cylinder-re100", (), 1000)).grid.counts == (220, 41)
    with pytest.raises(CaseError, match=r"grid\.cells\.0: must be a whole number"):
        sized("cavity-re100", ["grid.cells=['n/500', 'n']", "constants.n=1000"], 5000)


def test_the_table_of_a_weak_study():
    first, second = scaling.table(WEAK)
    assert (first.seconds, first.throughput, first.efficiency) == (2e-3, 1e4 / 2e-3, 1.0)
    assert (first.lowest, first.highest) == (1e4 / 4e-3, 1e4 / 1e-3)
    assert second.throughput == 1e4 / 2.5e-3  # of one process
    assert second.efficiency == pytest.approx(0.8)
    assert second.updates_per_second == pytest.approx(6e4 / 2.5e-3)


def test_gpus_are_compared_with_themselves_alone():
    """In their own launch: the clocks of another one may have been higher."""
    weak = [WEAK[0], WEAK[1] | {"alone": [2.2e-3, 2.0e-3, 2.1e-3]}]
    first, second = scaling.table(weak)
    assert (first.alone, first.efficiency) == (None, 1.0)
    assert second.efficiency == pytest.approx(2.1 / 2.5)
    said = "Efficiency of 2: over the mean of its GPUs alone, measured in turn, 2.1 ms."
    assert said in scaling.markdown([first, second])
    told = scaling.table([WEAK[0], weak[1] | {"slowest_alone": [2.3e-3, 2.1e-3, 2.2e-3]}])
    said = "alone, measured in turn, 2.1 ms; the slowest takes 2.2 ms."
    assert said in scaling.markdown(told)
    third = scaling.table([*weak, record(4, [2.5e-3], counts=(200, 200))])
    assert "Efficiency of 4: over the launch of 1." in scaling.markdown(third)
    assert "Efficiency" not in scaling.markdown(scaling.table(WEAK))
    strong = scaling.table([STRONG[0], STRONG[1] | {"alone": [2.4e-3]}])
    assert strong[1].efficiency == pytest.approx(2.4 / (4 * 0.8))


def test_a_gpu_is_measured_alone_if_it_has_room(monkeypatch):
    case = of_kind("strong", "taylor-green-3d", [], 1, 512)
    monkeypatch.setattr(scaling, "SECONDS_A_REPEAT", 1e-9)
    assert scaling.measure(case, "strong", "numpy", Ranks(), one=case)["alone"] is None  # a host
    monkeypatch.setattr(NumpyBackend, "on_device", True)
    monkeypatch.setattr(NumpyBackend, "memory", lambda machine: (2 << 30, 3 << 30))
    made = scaling.measure(case, "strong", "numpy", Ranks(), one=case)
    assert made["alone"] is None  # without a link it may share its GPU
    monkeypatch.setattr(Transport, "link", object())
    monkeypatch.setattr(NumpyBackend, "memory", lambda machine: (1 << 30, 1 << 31))
    made = scaling.measure(case, "strong", "numpy", Ranks(), one=case)
    assert made["alone"] is None  # as much again is not free
    monkeypatch.setattr(NumpyBackend, "memory", lambda machine: (2 << 30, 3 << 30))
    divided = case.altered(parallel={"ranks": [1, 1, 2]})  # of the case of all
    made = scaling.measure(case, "strong", "numpy", Ranks(), one=divided)
    assert len(made["alone"]) == len(made["seconds"]) == scaling.REPEATS
    assert made["slowest_alone"] == made["alone"]  # of one


def test_the_table_of_a_strong_study():
    first, second = scaling.table(STRONG)
    assert second.efficiency == pytest.approx(2e-3 / (4 * 8e-4))
    assert (
        "| 4 | 10000 | 0.8 | 3.125 | 3.125 to 3.125 | 0.625 |  |  | 1 | 25.0 % | 1.000 | MPI |"
        in (scaling.markdown([first, second]))
    )


def test_the_model_finds_its_own_constants():
    """Times made from the model: 2e-7 s an unknown, and three exchanges that nothing hides."""

    def made(kind):
        for ranks, counts, dims, faces, latencies in (
            (1, (100, 100), [1, 1], 0, 0), (2, (200, 100), [2, 1], 100, 1),
            (4, (200, 200), [2, 2], 200, 2),
        ):  # fmt: skip
            if kind == "strong":
                counts, faces = (100, 100), faces and 100
            exchange = latencies * 1e-5 + 8 * faces / 1e9
            time = 2e-7 * counts[0] * counts[1] / ranks + 3.0 * exchange
            yield record(ranks, [time], kind, counts, dims=dims)

    weak = dict(scaling.prediction(list(made("weak"))))
    assert max(weak) == 2048
    exchange = 2 * 1e-5 + 8 * 400 / 1e9  # a block in the middle has four neighbours
    assert weak[16] == pytest.approx(1e4 / (2e-3 + 3.0 * exchange))
    strong = dict(scaling.prediction(list(made("strong"))))
    share, exchange = 1e4 / 16, 2 * 1e-5 + 8 * 100 / 1e9
    assert strong[16] == pytest.approx(share / (2e-7 * share + 3.0 * exchange))
    with pytest.raises(InputError, match="needs a launch of several"):
        list(scaling.prediction(WEAK[:1]))


def test_the_largest_of_four_launches_checks_the_model():
    """A step of 2 ms, and of 4 ms on 8 processes, which the model cannot know of."""
    measured = [record(n, [2e-3], counts=(100 * n, 100)) for n in (1, 2, 4)]
    measured.append(record(8, [4e-3], counts=(800, 100)))
    predicted = list(scaling.prediction(measured))
    assert dict(predicted)[8] == pytest.approx(1e4 / 2e-3)
    said = scaling.checked(measured, predicted)
    assert said.endswith("2.5e+06 unknowns/s each were measured, 0.500 of the prediction")
    assert scaling.checked(measured[:3], list(scaling.prediction(measured[:3]))) == ""


def test_solves_of_different_lengths_are_told():
    ends = [record(n, [1e-3], unit="solve", iterations=count) for n, count in ((1, 8), (2, 9))]
    assert scaling.markdown(scaling.table(ends)).endswith(
        "\nThe numbers of processes were measured with more than one number of iterations: "
        "8 (1); 9 (2).\n"
    )


@pytest.mark.parametrize("method", ["multigrid", "mgcg", "cg", "fft"])
def test_solves_are_the_solves_of_a_run(method, tmp_path):
    """Each from the same start, to the tolerance, with all checks."""
    case = load("sine-source", [f"solver.method={method}", "grid.nodes=[33, 33]"])
    problem = make_model(case, NumpyBackend())
    work = scaling.Worker(problem)
    expected = run(case, "numpy", tmp_path / "plate.h5")
    for count in (1, 2):
        work.make(count)
        assert work.iterations == expected.outcome.count
    (field,) = problem.stored().values()
    assert field.tobytes() == expected.fields["temperature"].tobytes()


def test_a_measured_march_chooses_its_steps_and_has_no_end():
    case = load("taylor-green-3d", ["grid.cells=[8, 8, 8]", "time.end=0.2"])
    work = scaling.Worker(make_model(case, NumpyBackend()))
    work.make(40)
    pause = work.pause
    assert (pause.number, work.unit) == (40, "step")
    assert pause.time > case.time.end


def test_all_sizes_measure_the_same_steps_of_a_march(tmp_path, monkeypatch):
    """Later steps of a flow may take more iterations; the launch with the fewest processes chooses
    the steps, unless its record is of another study."""
    path, case = tmp_path / "1.json", of_kind("weak", "taylor-green-3d", [], 1, 512)
    monkeypatch.setattr(scaling, "SECONDS_A_REPEAT", 1e-9)
    scaling.main(["taylor-green-3d", "weak", "512", "numpy", str(path)])
    alone = scaling.records(tmp_path, pytest.fail)[0]
    before, count = alone["steps"]
    assert before > 0 and count == 1  # a choice of its own: a repeat is short
    doubled = of_kind("weak", "taylor-green-3d", [], 2, 512)
    two = SimpleNamespace(case=doubled, backend=NumpyBackend(), whole=grid_of(doubled))
    assert scaling.steps_of(alone, two, "weak", 2) == alone["steps"]
    assert scaling.steps_of(alone, two, "weak", 1) is None
    for other in ({"case": "cavity-re100"}, {"backend": "cupy"}, {"precision": "float32"},
                  {"unknowns": 1000}, {"kind": "strong"}, {"steps": None}):  # fmt: skip
        assert scaling.steps_of(alone | other, two, "weak", 2) is None
    monkeypatch.setattr(scaling, "steps_of", lambda *args: (5, 3))
    assert scaling.measure(case, "weak", "numpy", Ranks())["steps"] == [5, 3]


def test_repeats_have_their_length_though_each_number_of_units_compiles_a_kernel(monkeypatch):
    """A run of a new number of sweeps ends in passes that were not needed before."""
    counts = []

    def seconds(work, count, ranks):
        compiles = 0.0 if count in counts else 1.0
        counts.append(count)
        return [1e-4 + compiles / count]

    monkeypatch.setattr(scaling, "seconds_of_all", seconds)
    case = load("legate-stencil", ["grid.nodes=[18, 18]"])
    scaling.measure(case, "weak", "numpy", Ranks())
    assert counts[-scaling.REPEATS :] == [int(scaling.SECONDS_A_REPEAT / 1e-4)] * scaling.REPEATS


def test_differing_steps_are_told():
    given = record(1, [1e-3], case="taylor-green-3d", steps=[5, 3])
    other = [given, record(2, [1e-3], case="taylor-green-3d", steps=[6, 3])]
    assert [*scaling.differences(scaling.table(other))] == [
        "The numbers of processes were measured with more than one range of steps: "
        "5 to 41 (1); 6 to 42 (2)"
    ]


@pytest.mark.parametrize("case", shipped())
def test_every_process_of_a_weak_study_has_the_block_of_one(case):
    """Counts and extents grow along the axes that are divided; spacings stay."""
    alone = grid_of(of_kind("weak", case, [], 1, 3000))
    assert 800 < alone.all_unknowns < 10000  # some have whole numbers of points at few sizes
    for ranks in (2, 4, 6):
        grown = of_kind("weak", case, [], ranks, 3000, "numpy")
        grid, dims = grid_of(grown), tuple(reversed(grown.parallel.ranks))
        assert {block_of_rank(grid, dims, rank).shape for rank in range(ranks)} == {alone.shape}
        for axis, one in zip(grid.axes, alone.axes, strict=True):
            assert axis.spacing == pytest.approx(one.spacing, rel=1e-12)


@pytest.mark.parametrize("case", ["legate-stencil", "legate-cfd", "taylor-green-3d", "hotspot"])
def test_sizes(case):
    unknowns = grid_of(of_kind("strong", case, [], 2, 30000)).all_unknowns
    assert unknowns == pytest.approx(30000, rel=0.1)
    whole = grid_of(of_kind("strong", case, [], 4, None)).all_unknowns
    assert whole == grid_of(of_kind("weak", case, [], 1, None)).all_unknowns


def test_blocks_grow_in_turn():
    """256 x 256 x 256, then 256 x 256 x 512, ...; slowest axis first."""
    cube = ["grid.nodes=[256, 256, 256]"]
    counts = [grid_of(of_kind("weak", "sine-source-3d", cube, n, None)).shape for n in (1, 2, 4, 8)]
    assert counts == [(256,) * 3, (510, 256, 256), (510, 510, 256), (510,) * 3]  # 254 and 2 ghosts
    assert growth([254] * 3, 8, on_device=True) == (8, 1, 1)  # slabs, as a run on GPUs has them
    assert growth([30] * 3, 8, on_device=True) == (2, 2, 2)
    assert [even(n) for n in (17, 60.4, 173.2, 323, 3502)] == [17, 60, 172, 320, 3504]


def invoke(*arguments):
    return CliRunner().invoke(cli.app, ["scale", *map(str, arguments)])


@pytest.mark.thorough
@mpi
@pytest.mark.parametrize(
    ("kind", "case", "unit"),
    [("weak", "legate-stencil", "iteration"), ("strong", "legate-cfd", "step")],
)
def test_a_study_is_launched(kind, case, unit, tmp_path):
    folder = tmp_path / "study"
    done = invoke(kind, case, "--ranks", "2,1", "--per-rank", 10000, "--backend", "numpy",
                  "--output", folder, "--model")  # fmt: skip
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader((folder / "table.csv").open()))
    assert [row["ranks"] for row in rows] == ["1", "2"]
    assert {row["unit"] for row in rows} == {unit}
    total = [int(row["unknowns"]) for row in rows]
    assert total[1] == total[0] * (2 if kind == "weak" else 1)
    assert json.loads((folder / "table.json").read_text())[1]["link"] == "MPI"
    assert (folder / "table.md").read_text().splitlines()[2].startswith(f"| 1 | {total[0]} |")
    assert (folder / "scaling.png").stat().st_size > 10000
    assert "model: 2048 processes" in done.output
    measured = json.loads((folder / "2.json").read_text())
    for spans in measured["timeline"]:
        names = {name for name, _, _ in spans}
        assert "exchange" in names and len(names) > 1
        assert all(begin >= 0.0 and time >= 0.0 for _, begin, time in spans)
    sweeping = measured["sweeping"]
    assert len(measured["timeline"]) == 2 and sweeping > 0.0 and measured["exchanging"] > 0.0
    assert f"Time line of 2, for one {unit}: {1e3 * sweeping:.4g} ms of sweeps" in done.output
    assert (folder / "timeline.png").stat().st_size > 5000
    assert 0.0 < float(rows[1]["waited"]) < 1.0
    collected = invoke("collect", folder)
    assert collected.exit_code == 0
    assert collected.output.splitlines()[:4] == [
        line for line in done.output.splitlines() if line.startswith("|")
    ]


def test_jobs_are_written(tmp_path):
    done = invoke("weak", "hot-plate", "--ranks", "1,8", "--sbatch", "--ranks-per-node", 4,
                  "--backend", "cuda", "--output", tmp_path,
                  "--set", "case.title=it's")  # fmt: skip
    assert done.exit_code == 0, done.output
    text = (tmp_path / "8.sbatch").read_text()
    for line in ("nodes=2", "ntasks=8", "ntasks-per-node=4", "gpus-per-node=4", "time=0:20:00"):
        assert f"#SBATCH --{line}\n" in text
    assert f"{sys.executable} -P -m heatsolve.tools.scaling hot-plate weak 12264004 cuda" in text
    assert "'case.title=it'\"'\"'s'" in text
    assert "#SBATCH --gpus-per-node=1\n" in (tmp_path / "1.sbatch").read_text()


def test_what_draws_nothing_imports_no_pictures(tmp_path):
    command = ["scale", "weak", "hot-plate", "--sbatch", "--output", str(tmp_path)]
    code = f"import sys\nsys.argv[1:] = {command}\nimport heatsolve\n"
    code += "import atexit\natexit.register(lambda: print('matplotlib' in sys.modules))\n"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code + "heatsolve.main()"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("wide",), "must be weak, strong or collect"),
        (("weak", "--ranks", "1,0"), "must be numbers of processes"),
        (("weak", "--launcher", "ssh"), "must be mpiexec or srun"),
        (("weak", "nowhere"), "nowhere"),
        (("strong", "--per-rank", "0"), "must be at least 1"),
        *((("weak", "--per-rank", odd), "must be at least 1") for odd in ("nan", "inf", "1e300")),
        (("weak", "--ranks", "1" * 5000), "must be numbers of processes"),
        (("weak", "--sbatch", "--time", "1" * 5000), "is no wall time"),
        (("weak", "--sbatch", "--time", "soon"), "is no wall time"),
        (("weak", "--sbatch", "--ranks", "3", "--ranks-per-node", "2"), "do not fill 2 nodes"),
        (("collect", "nowhere"), "holds no record"),
        (("collect",), "needs a study's folder: heatsolve scale collect DIR"),
    ],
)
def test_what_cannot_be(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke(*arguments)
    assert isinstance(done.exception, InputError)
    assert sentence in str(done.exception)


def write_records(folder, *found):
    for number, each in enumerate(found, 1):
        (folder / f"{number}.json").write_text(json.dumps(each))


def test_records_of_one_study_only(tmp_path):
    write_records(tmp_path, WEAK[0], STRONG[1])
    with pytest.raises(InputError, match="several studies: they differ in kind"):
        scaling.records(tmp_path, pytest.fail)


MALFORMED = {
    "half of one": json.dumps(WEAK[1])[:100],
    "a list": "[1, 2]",
    "deep": "[" * 100_000,
    "no text": b"\xff\xfe",
    "large": " " * (2 << 20),
    "no times": json.dumps(WEAK[1] | {"seconds": []}),
    "times of words": json.dumps(WEAK[1] | {"seconds": ["soon"]}),
    "no time": json.dumps(WEAK[1] | {"seconds": [0.0]}),
    "no number": json.dumps(WEAK[1] | {"seconds": [float("nan")]}),
    "no processes": json.dumps(WEAK[1] | {"ranks": 0}),
    "other processes": json.dumps(WEAK[1] | {"dims": [5, 7]}),
    "no unit": json.dumps({key: value for key, value in WEAK[1].items() if key != "unit"}),
    "escapes": json.dumps(WEAK[1] | {"kind": "\x1b[2J"}),
}


@pytest.mark.few(5)
@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_record_is_left_out(name, tmp_path):
    write_records(tmp_path, WEAK[0])
    text = MALFORMED[name]
    (tmp_path / "2.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    done = invoke("collect", tmp_path)
    assert done.exit_code == 0, done.output
    assert "| 1 | 10000 | 2 | 5 |" in done.stdout
    (line,) = done.stderr.splitlines()
    assert "2.json is no record of a scaling study and is left out: " in line and line.isprintable()
    (tmp_path / "1.json").unlink()
    assert "holds no record" in str(invoke("collect", tmp_path).exception)


def test_a_table_says_what_its_records_differ_in(tmp_path):
    gpu = WEAK[0]["machine"] | {"gpu": "A100"}
    write_records(tmp_path, WEAK[0], WEAK[1] | {"backend": "cuda", "precision": "float32",
                                                "machine": gpu})  # fmt: skip
    done = invoke("collect", tmp_path)
    said = "The numbers of processes were measured with more than one "
    for line in ("backend: numpy (1); cuda (2).", "precision: float64 (1); float32 (2).",
                 "machine: 2 cores (1); A100 (2)."):  # fmt: skip
        assert said + line in done.stdout
        assert said + line in (tmp_path / "table.md").read_text()
    rows = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert [row["machine"] for row in rows] == ["2 cores", "A100"]
    found = scaling.records(tmp_path, pytest.fail)
    assert scaling.title(found).endswith("several backends, several machines, several precisions")
    write_records(tmp_path, *WEAK)
    assert said not in invoke("collect", tmp_path).stdout


def test_names_in_a_script_are_quoted(tmp_path, monkeypatch):
    """A line break, a quote or a dollar in a name is no line, no end and no variable of a shell."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "cases/hot-plate.toml", "it's\nrm $HOME.toml")
    folder = tmp_path / 'a "b" 50% $c'
    done = invoke("weak", "it's\nrm $HOME.toml", "--sbatch", "--output", folder)
    assert done.exit_code == 0, done.output
    script = (folder / "2.sbatch").read_text()
    held = str(folder).replace('"', '\\"').replace("%", "%%")
    assert f'#SBATCH --output="{held}/%x-%j.out"\n' in script
    plain = script.replace(shlex.quote("it's\nrm $HOME.toml"), "CASE")
    assert not re.search(r"^rm", plain, re.M)
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    # What the shell makes of it are the very words.
    command = script[script.index("srun --mpi") :]
    said = subprocess.run(["bash", "-c", f"srun() {{ printf '%s\\0' \"$@\"; }}; {command}"],
                          capture_output=True, text=True).stdout.split("\0")  # fmt: skip
    assert "it's\nrm $HOME.toml" in said and f"{folder}/2.json" in said
    done = invoke("weak", "hot-plate", "--sbatch", "--output", tmp_path / "a\nb")
    assert "needs a name that can be printed" in str(done.exception)


@mpi
def test_a_launch_that_fails_says_why(tmp_path):
    study = scaling.Study("weak", "hot-plate", "abacus", 100.0, (), tmp_path)
    with pytest.raises(InputError, match="2 processes: no backend 'abacus'"):
        scaling.launch(study, 2, "mpiexec")


@mpi
def test_a_record_without_a_time_line_counts(tmp_path, monkeypatch, capsys):
    """A second problem may not find the memory that the first one had."""
    study = scaling.Study("weak", "hot-plate", "numpy", 100.0, (), tmp_path)
    code = (
        f"open({str(tmp_path / '1.json')!r}, 'w').write('measured'); raise SystemExit('too small')"
    )
    monkeypatch.setattr(scaling.Study, "command", lambda *_: [sys.executable, "-c", code])
    scaling.launch(study, 1, "mpiexec")
    assert (tmp_path / "1.json").read_text() == "measured"
    assert "1 processes: there is no time line (too small)" in capsys.readouterr().err
    monkeypatch.setattr(scaling.Study, "command", lambda *_: [sys.executable, "-c", "1 / 0"])
    with pytest.raises(InputError, match="division by zero"):
        scaling.launch(study, 1, "mpiexec")


def test_no_launcher(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="there is no mpiexec here: install"):
        scaling.launched_by("mpiexec", 2)


def test_parts_of_a_time_line():
    """A sweep, an exchange that it hides by half, a gap, and two sweeps at the same time."""
    spans = [("mean", 1.0, 1.0), ("exchange", 1.5, 1.0), ("mean", 3.0, 1.0), ("copy", 3.5, 0.25)]
    assert parts_of(spans) == (2.0, 0.5)
    assert parts_of([]) == (0.0, 0.0)
    drawing = time_line_figure([spans, spans[:1]], "two processes")
    assert [len(bars.get_paths()) for bars in drawing.axes[0].collections] == [3, 1, 1, 0]


def test_a_clock_takes_the_times_of_what_is_played_back():
    """Each call by its name, and only while the clock runs; a clock changes no bit."""
    case, machine = load("cavity-re100", overrides=["constants.n=8"]), NumpyBackend()
    clock = clocked(machine)
    work, other = (scaling.Worker(make_model(case, each)) for each in (machine, NumpyBackend()))
    work.make(3)
    assert not clock.taken
    spans = spans_of(lambda: work.make(1), clock, Ranks())
    other.make(4)
    fields = [each.pause.problem.fields["pressure"] for each in (work, other)]
    assert fields[0].tobytes() == fields[1].tobytes()
    ends = [begin + time for _, begin, time in spans]
    assert all(end <= begin + 2e-8 for end, (_, begin, _) in zip(ends, spans[1:], strict=False))
    assert "residual" in {name for name, _, _ in spans} and len(spans) > 50


def test_the_title_says_what_was_measured():
    machine = {"node": "n1", "nodes": 1, "cores": 2, "gpu": ""}
    weak, strong = ([each | {"machine": machine} for each in kind] for kind in (WEAK, STRONG))
    assert scaling.title(weak) == "plate, weak scaling, 10 k unknowns a process\nnumpy, 2 cores"
    assert "strong scaling, 10 k unknowns in all" in scaling.title(strong)
    assert scaling.title([weak[0] | {"machine": machine | {"gpu": "A100"}}]).endswith(", A100")


def test_the_figure():
    sizes = scaling.table(WEAK)
    assert scaling_figure(sizes, title="a case").axes[0].get_title("left") == "a case"
    plain, modelled = scaling_figure(sizes), scaling_figure(sizes, [(1, 5e6), (2, 4e6), (4, 3e6)])
    throughput, efficiency = modelled.axes
    assert list(efficiency.lines[1].get_ydata()) == [size.efficiency for size in sizes]
    assert list(throughput.lines[-1].get_xdata()) == [2, 4]  # the model goes on from what was found
    assert len(plain.axes[0].lines) == len(throughput.lines) - 1
