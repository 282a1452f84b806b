"""Slurm: the scripts, shipped and written, and their jobs on a real cluster of this machine."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from heatsolve import cli
from heatsolve.errors import InputError
from heatsolve.io.reader import read
from heatsolve.tools import submit
from heatsolve.tools.submit import Resources, script, wall_seconds

HERE = Path(__file__).parent
SCRIPTS = HERE.parent / "scripts" / "slurm"
# Exactly so many iterations: some seconds of them where a job has to be met while it runs.
CASE = """\
[case]
title = "Plate"
[grid]
nodes = [{points}, {points}]
[boundary]
left.temperature.value = 1
right.temperature.value = "y"
bottom.temperature.gradient = 0
top.temperature.value = 0
[solver]
method = "jacobi"
iterations = {iterations}
[parallel]
backend = "numpy"
"""
SHORT = CASE.format(points=17, iterations=50)
LONG = CASE.format(points=130, iterations=200000)

# ---- scripts ----------------------------------------------------------------------------------


@pytest.fixture
def heatsolve(tmp_path, monkeypatch, capsys):
    """`heatsolve submit` in this process, in a folder with a case: exit code, output, error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "case.toml").write_text(SHORT)

    def program(*arguments):
        monkeypatch.setattr(sys, "argv", ["heatsolve", "submit", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as leaving:
            code = leaving.code or 0
        return code, *capsys.readouterr()

    return program


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """Put a stand-in for sbatch in the path: a script of bash."""

    def install(text):
        (tmp_path / "bin").mkdir()
        program = tmp_path / "bin" / "sbatch"
        program.write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return install


def test_the_shipped_chain_is_what_submit_writes():
    command = ["heatsolve", "run", "--restart", "case.toml"]
    written = script("case", Resources("4:00:00", ranks_per_node=4), command)
    assert (SCRIPTS / "chain.sbatch").read_text() == written


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.sbatch")), ids=lambda path: path.name)
def test_shipped_scripts_are_bash(path):
    subprocess.run(["bash", "-n", path], check=True)


def test_written_for_gpus(heatsolve, tmp_path):
    code, said, complaint = heatsolve(
        "case.toml", "--nodes", 2, "--ranks-per-node", 4, "--gpus-per-node", 2, "--time", "1-12",
        "--backend", "cuda", "--partition", "gpu", "--account", "p.1", "--dry-run",
        "--set", "parallel.threads=3",
    )  # fmt: skip
    assert (code, complaint) == (0, "")
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", said, re.MULTILINE))
    assert asked == {
        "job-name": "case", "partition": "gpu", "account": "p.1", "nodes": "2",
        "ntasks-per-node": "4", "cpus-per-task": "3", "gpus-per-node": "2", "time": "1-12",
        "signal": "USR1@120", "open-mode": "append", "output": "%x-%j.out",
    }  # fmt: skip
    assert "#SBATCH --requeue\n" in said
    assert "--gpu-bind=single:2 \\\n" in said
    assert [path.name for path in tmp_path.iterdir()] == ["case.toml"]


CORES = {
    "one process alone": (["--backend", "numba"], None),
    "which chooses": (["--backend", "auto"], None),
    "of so many threads": (["--backend", "numba", "--set", "parallel.threads=3"], "3"),
    "NumPy": ([], "1"),
    "a GPU": (["--backend", "cuda", "--gpus-per-node", 1], "1"),
    "several": (["--backend", "numba", "--ranks-per-node", 2], "1"),
}


@pytest.mark.parametrize("name", CORES)
def test_a_job_has_the_cores_that_the_run_uses(name, heatsolve):
    """One process has a thread on every core: it gets the node."""
    given, cores = CORES[name]
    code, said, _ = heatsolve("case.toml", "--time", 60, "--dry-run", *given)
    assert code == 0
    asked = re.findall(r"^#SBATCH --cpus-per-task=(.*)$", said, re.MULTILINE)
    assert asked == ([cores] if cores else [])
    assert ("#SBATCH --exclusive\n" in said) == (cores is None)
    told = said[said.index("cores=") :].partition("\n\n")[0]
    for variables, expected in (({"SLURM_CPUS_PER_TASK": "3"}, "3"), ({}, "48")):
        shell = ["bash", "-c", f"{told}; echo $SRUN_CPUS_PER_TASK $NUMBA_NUM_THREADS"]
        given = {"SLURM_CPUS_ON_NODE": "48", **variables}
        found = subprocess.run(shell, env=given, text=True, capture_output=True, check=True).stdout
        assert found.split() == [expected, expected]


def test_the_command_is_repeated_exactly(heatsolve, tmp_path):
    (tmp_path / "my $case.toml").write_text(SHORT)
    settings = ['case.title=it\'s "$HOME" `id`', "case.description=two\nlines"]
    overrides = [word for setting in settings for word in ("--set", setting)]
    code, said, _ = heatsolve(
        "my $case.toml", "--time", 60, "--output", "a b.h5", *overrides, "--dry-run"
    )
    assert code == 0
    assert "#SBATCH --job-name=my__case\n" in said
    command = said.partition("--wait=5 \\\n    ")[2].partition("\ncode=$?")[0]
    words = shlex.split(command)
    assert words[words.index("run") :] == [
        "run", "--restart", *overrides, "--output", "a b.h5", "my $case.toml"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--time", "2:60"], "--time 2:60 is too short, the run may be asked to stop 180 s before"),
        (["--time", "soon"], "--time 'soon' is no wall time: write minutes, "),
        (["--nodes", 0], "--nodes must be at least 1, not 0"),
        (["--ranks-per-node", -1], "--ranks-per-node must be at least 1, not -1"),
        (["--gpus-per-node", 2], "--gpus-per-node 2 with --ranks-per-node 1 leaves GPUs idle"),
        (["--gpus-per-node", 1], "--gpus-per-node: the numpy backend runs on no GPU"),
        (["--backend", "cupy"], "the cupy backend needs --gpus-per-node"),
        (["--backend", "abacus"], "no backend 'abacus': there are numpy, numba"),
        (["--account", "a\n#SBATCH --exclusive"], "--account 'a\\n#SBATCH --exclusive' is no name"),
        (["--nodes", 400], "400 processes are too many for 15 x 16 unknowns"),
        (["--set", "solver.norm=l3"], "--set solver.norm=l3: solver.norm: must be one of"),
        (["--set", "model.conductivity=x - 2"], "must be greater than 0, but is -2 at x = 0"),
    ],
)
def test_refused_before_anything_is_submitted(heatsolve, sbatch, tmp_path, arguments, sentence):
    sbatch("touch submitted")
    code, _, complaint = heatsolve("case.toml", "--time", 60, *arguments)
    assert code == 2
    assert sentence in complaint
    assert "Traceback" not in complaint
    assert not (tmp_path / "submitted").exists()
    assert not (tmp_path / "case.sbatch").exists()


def test_no_sbatch(heatsolve, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, complaint = heatsolve("case.toml", "--time", 60)
    assert code == 2
    assert complaint.startswith("heatsolve: there is no sbatch here: ")
    assert not (tmp_path / "case.sbatch").exists()


def test_sbatch_refuses(heatsolve, sbatch):
    sbatch("echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1")
    code, _, complaint = heatsolve("case.toml", "--time", 60)
    assert code == 2
    assert complaint == (
        "heatsolve: sbatch refused case.sbatch: Batch job submission failed: Invalid account\n"
    )


def test_written_anew_but_only_over_its_own(heatsolve, sbatch, tmp_path):
    sbatch("echo '17;far'")
    for time_limit in (60, 90):
        code, said, _ = heatsolve("case.toml", "--time", time_limit)
        assert (code, said) == (0, "submitted case.sbatch as job 17, which writes to case-17.out\n")
    assert "--time=90\n" in (tmp_path / "case.sbatch").read_text()
    (tmp_path / "case.sbatch").write_text("#!/bin/bash\n# mine\n")
    code, _, complaint = heatsolve("case.toml", "--time", 60)
    assert code == 2
    assert "case.sbatch is no script of heatsolve submit, it is not overwritten" in complaint
    assert (tmp_path / "case.sbatch").read_text() == "#!/bin/bash\n# mine\n"


def test_wall_times():
    times = {"90": 5400, "5:30": 330, "4:00:00": 14400, "1-12": 129600, "2-0:30": 174600,
             "1-1:1:1": 90061}  # fmt: skip
    assert {text: wall_seconds(text) for text in times} == times
    for text in ("", "1h", "1:2:3:4", "-1", "1-", "1.5", "٣"):
        with pytest.raises(InputError, match="is no wall time"):
            wall_seconds(text)


@pytest.mark.parametrize(("library", "pmi"), [("Open MPI v5.0.8", "pmix"), ("MPICH 5", "pmi2")])
def test_srun_option_of_the_library(monkeypatch, tmp_path, library, pmi):
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("class rc: pass\n")
    version = f"class MPI: Get_library_version = lambda: {library!r}\n"
    (tmp_path / "mpi4py" / "MPI.py").write_text(version.replace("class MPI: ", ""))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert submit.pmi() == pmi


# ---- jobs -------------------------------------------------------------------------------------

FINAL = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}


def why_no_cluster():
    missing = [name for name in ("slurmctld", "slurmd", "munged", "srun") if not shutil.which(name)]
    if missing:
        return f"no {', '.join(missing)}: .ci/run installs Slurm on Debian"
    if os.geteuid() != 0:
        return "only root can start a Slurm"
    if not Path(sys.executable).with_name("mpiexec").exists():
        return "no MPI beside Python: install heatsolve[mpich]"
    return ""


slurm = pytest.mark.skipif(bool(why_no_cluster()), reason=why_no_cluster())


class Cluster:
    """The commands of a running Slurm, in a folder with a case and the shipped scripts."""

    def __init__(self, conf, folder):
        self.conf, self.folder = conf, folder
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
        self.environment |= {"SLURM_CONF": str(conf), "PATH": path}

    def __call__(self, *words, **more):
        done = subprocess.run(
            list(map(str, words)), capture_output=True, text=True, cwd=self.folder, timeout=60,
            env=self.environment | more,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    def program(self, text):
        """Let a script of bash stand in for heatsolve."""
        (self.folder / "bin").mkdir()
        program = self.folder / "bin" / "heatsolve"
        program.write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)
        self.environment["PATH"] = f"{program.parent}:{self.environment['PATH']}"

    def sbatch(self, name, *options, **more):
        return self("sbatch", "--parsable", *options, SCRIPTS / name, **more).strip()

    def states(self, job):
        return self("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}").split()

    def wait(self, job, wanted=FINAL, seconds=150):
        """Until all tasks of a job are in a wanted state; return how long that took."""
        began = time.monotonic()
        while not set(states := self.states(job)) <= set(wanted):
            assert time.monotonic() < began + seconds, (states, self.said(job))
            time.sleep(0.2)
        return time.monotonic() - began

    def until(self, job, text, seconds=30):
        began = time.monotonic()
        while text not in self.said(job):
            assert time.monotonic() < began + seconds, (self.states(job), self.said(job))
            time.sleep(0.1)

    def ended(self, job):
        """State and exit code of a job."""
        self.wait(job)
        shown = self("scontrol", "show", "--oneliner", "job", job)
        return (re.findall(r"JobState=(\w+)", shown)[0],
                int(re.findall(r" ExitCode=(\d+)", shown)[0]))  # fmt: skip

    def said(self, job):
        return "".join(p.read_text() for p in self.folder.glob(f"*-{job}*.out"))


@pytest.fixture(scope="module")
def conf():
    """The configuration of a cluster that runs as long as the tests of this file."""
    # The path of a socket must be short, pytest's folders are not always.
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    try:
        # Its daemons keep the standard streams, so these must be no pipes.
        with (folder / "up.log").open("w") as log:
            up = subprocess.run([HERE / "slurm/up.sh", folder], stdout=log, stderr=log, timeout=60)
        assert up.returncode == 0, (folder / "up.log").read_text()
        yield folder / "slurm.conf"
    finally:
        subprocess.run([HERE / "slurm/down.sh", folder], timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(conf, tmp_path):
    (tmp_path / "case.toml").write_text(SHORT)
    return Cluster(conf, tmp_path)


def alone(cluster, text):
    """The temperature after a run without Slurm."""
    (cluster.folder / "alone.toml").write_text(text)
    cluster("heatsolve", "run", "alone.toml")
    return read(cluster.folder / "alone.h5").fields["temperature"]


@slurm
def test_launch(cluster):
    job = cluster.sbatch("cpu.sbatch", "--ntasks-per-node=2")
    assert cluster.ended(job) == ("COMPLETED", 0), cluster.said(job)
    stored = read(cluster.folder / "case.h5")
    assert stored.attributes["ranks"] == 2
    assert stored.fields["temperature"].tobytes() == alone(cluster, SHORT).tobytes()


@slurm
def test_ranks_that_do_not_know_of_each_other_are_refused(cluster):
    job = cluster.sbatch("cpu.sbatch", "--ntasks-per-node=2", HEATSOLVE_MPI="none")
    assert cluster.ended(job) == ("FAILED", 2), cluster.said(job)
    assert "srun --mpi=pmi2 (MPICH)" in cluster.said(job)
    assert not (cluster.folder / "case.h5").exists()


@pytest.mark.thorough
@slurm
def test_array(cluster):
    job = cluster.sbatch("array.sbatch")
    cluster.wait(job)
    assert cluster.states(job) == ["COMPLETED"] * 3, cluster.said(job)
    for value in (1, 10, 100):
        stored = read(cluster.folder / f"case-k{value}.h5")
        assert stored.case["model"]["conductivity"] == value


@pytest.mark.thorough
@slurm
@pytest.mark.parametrize("kind", ["weak", "strong"])
def test_a_scaling_study(cluster, kind):
    given = {"CASE": "legate-stencil", "PER_RANK": "10000", "UNKNOWNS": "10000"}
    job = cluster.sbatch(f"{kind}-scaling.sbatch", "--ntasks-per-node=2", **given)
    assert cluster.ended(job) == ("COMPLETED", 0), cluster.said(job)
    folder = cluster.folder / f"scale-{kind}-legate-stencil"
    rows = (folder / "table.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["ranks", "1", "2"]
    assert (folder / "scaling.png").exists()


@slurm
def test_one_gpu_a_rank(cluster):
    cluster.program("echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES")
    job = cluster.sbatch("gpu.sbatch", "--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2")
    assert cluster.ended(job) == ("COMPLETED", 0), cluster.said(job)
    found = sorted(line for line in cluster.said(job).splitlines() if line.startswith("node"))
    assert found == ["node1 0", "node1 1", "node2 0", "node2 1"]


@slurm
def test_submitted_over_two_nodes(cluster):
    said = cluster(
        "heatsolve", "submit", "case.toml", "--nodes", 2, "--time", 10, "--set", "case.title=it's"
    )
    job = re.findall(r"as job (\d+)", said)[0]
    assert cluster.ended(job) == ("COMPLETED", 0), cluster.said(job)
    stored = read(cluster.folder / "case.h5")
    assert (stored.attributes["ranks"], stored.title) == (2, "it's")
    assert stored.fields["temperature"].tobytes() == alone(cluster, SHORT).tobytes()


@pytest.mark.thorough
@slurm
def test_a_dead_rank_ends_the_job(cluster):
    (cluster.folder / "case.toml").write_text(LONG)
    job = cluster.sbatch("cpu.sbatch", "--ntasks-per-node=2")
    os.kill(running_rank(cluster, job, 1), signal.SIGKILL)
    assert cluster.wait(job) < 10
    assert cluster.states(job) == ["FAILED"]
    assert not (cluster.folder / "case.h5").exists()


def running_rank(cluster, job, rank, seconds=30):
    """The process of a rank, once it has run for a while."""
    cluster.wait(job, {"RUNNING"})
    wanted = {f"SLURM_JOB_ID={job}".encode(), f"SLURM_PROCID={rank}".encode()}
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        for path in Path("/proc").glob("[0-9]*"):
            try:
                environment = set((path / "environ").read_bytes().split(b"\0"))
                if wanted <= environment and b"heatsolve" in (path / "cmdline").read_bytes():
                    time.sleep(2)
                    assert path.exists(), cluster.said(job)
                    return int(path.name)
            except OSError:  # it has just ended
                continue
        time.sleep(0.1)
    raise AssertionError(cluster.said(job))


@pytest.mark.thorough
@slurm
def test_signal_checkpoint_requeue_continue(cluster):
    """A chain that is signalled twice gives the bits of a run that was never interrupted."""
    (cluster.folder / "case.toml").write_text(LONG)
    job = cluster.sbatch("chain.sbatch", "--ntasks-per-node=2")
    for turn in (1, 2):
        running_rank(cluster, job, 1)
        cluster("scancel", "--signal=USR1", job)
        cluster.wait(job, {"PENDING"})
        assert list((cluster.folder / "case.checkpoints").iterdir())
        assert f"Restarts={turn}" in cluster("scontrol", "show", "job", job)
        assert not (cluster.folder / "case.h5").exists()
    assert cluster.ended(job) == ("COMPLETED", 0), cluster.said(job)
    stored = read(cluster.folder / "case.h5")
    assert (stored.attributes["ranks"], stored.attributes["iterations"]) == (2, 200000)
    expected = alone(cluster, LONG)
    assert np.array_equal(stored.fields["temperature"].view(np.int64), expected.view(np.int64))


@slurm
@pytest.mark.slow
def test_the_limit_of_wall_time(cluster):
    """Slurm's own signal before the limit, looked for twice a minute."""
    (cluster.folder / "case.toml").write_text(CASE.format(points=400, iterations=100000))
    job = cluster.sbatch("chain.sbatch", "--ntasks-per-node=2", "--time=3")
    cluster.wait(job, {"RUNNING"})
    cluster.wait(job, {"PENDING"})
    assert list((cluster.folder / "case.checkpoints").iterdir())
    cluster("scancel", job)


# The chain around a stand-in for the program: signalled, it ends with 75 after a moment.
STAND_IN = """\
trap 'sleep 0.5; exit 75' USR1 TERM
echo "turn ${SLURM_RESTART_COUNT:-0}"
while true; do sleep 0.1; done
"""


@pytest.mark.thorough
@slurm
@pytest.mark.parametrize("own_trap", ["", "trap : TERM\n"])
def test_cancelled_means_cancelled(cluster, own_trap):
    """A cancelled run ends with 75, too, but its job stays away, even if the script lives on."""
    cluster.program(STAND_IN)
    text = (SCRIPTS / "chain.sbatch").read_text().replace("\nsrun", f"\n{own_trap}srun")
    (cluster.folder / "own.sbatch").write_text(text)
    job = cluster.sbatch(cluster.folder / "own.sbatch", "--ntasks-per-node=1")
    cluster.until(job, "turn 0")
    cluster("scancel", job)
    cluster.wait(job)
    time.sleep(7)  # a requeued job would begin again after 5
    assert cluster.states(job) == ["CANCELLED"]
    assert "turn 1" not in cluster.said(job)
    assert ("not requeued" in cluster.said(job)) == bool(own_trap)


@slurm
def test_where_requeue_is_disabled(cluster):
    cluster.program(STAND_IN)
    job = cluster.sbatch("chain.sbatch", "--ntasks-per-node=1", "--no-requeue")
    cluster.until(job, "turn 0")
    cluster("scancel", "--signal=USR1", job)
    assert cluster.ended(job) == ("FAILED", 75)
    assert "to continue submit the script again" in cluster.said(job)


@pytest.mark.thorough
@slurm
def test_where_the_site_requeues_on_75(cluster):
    plain = cluster.conf.read_text()
    cluster.conf.write_text(plain + "RequeueExit=75\n")
    cluster("scontrol", "reconfigure")
    try:
        cluster.program(STAND_IN)
        job = cluster.sbatch("chain.sbatch", "--ntasks-per-node=1")
        cluster.until(job, "turn 0")
        cluster("scancel", "--signal=USR1", job)
        cluster.until(job, "turn 1")
        assert "Restarts=1" in cluster("scontrol", "show", "job", job)
        cluster("scancel", job)
        cluster.wait(job)
        time.sleep(7)
        assert cluster.states(job) == ["CANCELLED"]
    finally:
        cluster.conf.write_text(plain)
        cluster("scontrol", "reconfigure")


@pytest.mark.thorough
@slurm
def test_a_turn_after_one_that_was_killed(cluster):
    """What MPI left in memory does not meet the next turn of the same job on the same node."""
    cluster.program(f"""exec {sys.executable} -c '
import os, signal, time
from mpi4py import MPI
signal.signal(signal.SIGTERM, signal.SIG_IGN)
turn = os.environ.get("SLURM_RESTART_COUNT", "0")
print("turn", turn, "of", MPI.COMM_WORLD.allreduce(1), flush=True)
time.sleep(60 if turn == "0" else 0)'""")
    job = cluster.sbatch("chain.sbatch", "--ntasks-per-node=2", "--nodelist=node1")
    cluster.until(job, "turn 0 of 2")
    cluster("scontrol", "requeue", job)
    assert cluster.ended(job) == ("COMPLETED", 0), cluster.said(job)
    assert cluster.said(job).count("turn 1 of 2") == 2


@slurm
def test_another_end_of_the_run_ends_the_chain(cluster):
    cluster.program("exit 3")
    job = cluster.sbatch("chain.sbatch", "--ntasks-per-node=2")
    assert cluster.ended(job) == ("FAILED", 3)
