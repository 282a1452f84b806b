"""A case as a job of Slurm: the script that runs it to its end, and its submission.

The script makes a chain of jobs: Slurm signals the run before the limit of wall time, the run ends
with a checkpoint and exit code 75, and the job puts itself back into the queue to continue.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any

from heatsolve.backends.registry import NAMES
from heatsolve.case.case import Case
from heatsolve.case.load import load, locating
from heatsolve.errors import InputError
from heatsolve.io.disk import failing, write_text
from heatsolve.io.writer import target
from heatsolve.parallel.ranks import mpi_library, python
from heatsolve.report import shown
from heatsolve.tools.check import preview

WARNING_SECONDS = 120
"""Slurm signals the run this time (s) before the limit of wall time; it may be a minute early."""

SHEBANG, TITLE = "#!/bin/bash", "# A run of heatsolve under Slurm, as long as it takes:"
HEADER = f"""\
{SHEBANG}
{TITLE} a chain of jobs within the limit of wall time.
#
# Two minutes before the limit Slurm signals the run, which writes a checkpoint and ends with code
# 75. The job then puts itself back into the queue, and its next turn continues to the same bits.
# Any other end of the run, and scancel, end the chain.
#
# Edit:   the resources, the environment, and the case behind `heatsolve run`;
#         or let `heatsolve submit CASE` write such a script for a case
# Submit: sbatch THIS_FILE

"""
ENVIRONMENT = """
# module load mpich
# source ~/venv/bin/activate

# How srun starts the ranks: pmi2 for MPICH, pmix for Open MPI, else see srun --mpi=list.
mpi=${{HEATSOLVE_MPI:-{pmi}}}
# The cores of a rank, by default all of the node; since Slurm 22.05 srun must be told again. For
# several ranks more than one each needs --set parallel.threads, too.
cores=${{SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}}
export SRUN_CPUS_PER_TASK=$cores OMP_NUM_THREADS=$cores NUMBA_NUM_THREADS=$cores

# A step for each earlier turn, so that the run's own number is new: MPICH keeps shared memory under
# the numbers of job and step, and that of a turn that was killed may still be there.
for _ in $(seq "${{SLURM_RESTART_COUNT:-0}}"); do srun --nodes=1 --ntasks=1 --mpi=none true; done

# Five seconds after the first rank the last one must have ended, or the others are ended, too: so
# a dead rank ends the run. --kill-on-bad-exit=1 could turn a 75 into the 143 of a killed rank.
"""
CHAIN = """
code=$?
[ "$code" = 75 ] || exit "$code"

# A job that somebody cancels is no longer running, and must not come back.
state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)
if [ "$state" = RUNNING ] && scontrol requeue "$SLURM_JOB_ID"; then
    exit 0
fi
echo "heatsolve: stopped with a checkpoint, not requeued; to continue submit the script again" >&2
exit 75
"""


@dataclass(frozen=True)
class Resources:
    """The resources of a job; `time` in a format of Slurm, such as 4:00:00 or 1-12.

    Raises InputError for resources that Slurm cannot give.
    """

    time: str
    nodes: int = 1
    ranks_per_node: int = 1
    gpus_per_node: int = 0
    partition: str | None = None
    account: str | None = None

    def __post_init__(self) -> None:
        least = {"nodes": 1, "ranks_per_node": 1, "gpus_per_node": 0}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise InputError(
                    f"--{name.replace('_', '-')} must be at least {low}, not {getattr(self, name)}"
                )
        if self.gpus_per_node > self.ranks_per_node:
            raise InputError(
                f"--gpus-per-node {self.gpus_per_node} with --ranks-per-node {self.ranks_per_node} "
                "leaves GPUs idle, for a rank uses one"
            )
        for option in ("partition", "account"):
            name = getattr(self, option)
            # A line break in it would be another line of the script.
            if name is not None and not re.fullmatch(r"\w[\w.,@+-]*", name, re.ASCII):
                raise InputError(f"--{option} {name!r} is no name that Slurm knows")
        if wall_seconds(self.time) <= WARNING_SECONDS + 60:
            raise InputError(
                f"--time {self.time} is too short, the run may be asked to stop "
                f"{WARNING_SECONDS + 60} s before its end"
            )


def wall_seconds(time: str) -> int:
    """Seconds of a wall time as Slurm writes it: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S.

    Raises InputError for anything else.
    """
    if not re.fullmatch(r"(\d{1,9}-)?\d{1,9}(:\d{1,9}){0,2}", time, re.ASCII):
        raise InputError(
            f"--time {shown(time)!r} is no wall time: write minutes, hours:minutes:seconds, "
            "or days-hours:minutes:seconds"
        )
    days, dash, clock = time.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    units = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    return 86400 * int(days or 0) + sum(n * unit for n, unit in zip(parts, units, strict=False))


def script(
    name: str,
    resources: Resources,
    command: Sequence[str],
    cores: int | None = 1,
    pmi: str = "pmi2",
) -> str:
    """The text of a script that runs a command of heatsolve as a chain of jobs.

    name: the name of the job, and of its output NAME-JOBID.out.
    command: the words of the program and its arguments, which are quoted here.
    cores: the cores of each rank; None: all cores of its node.
    pmi: how srun starts MPI, unless HEATSOLVE_MPI says otherwise.
    """
    asked = {
        "job-name": re.sub(r"[^\w.+-]", "_", name, flags=re.ASCII),
        "partition": resources.partition,
        "account": resources.account,
        "nodes": resources.nodes,
        "ntasks-per-node": resources.ranks_per_node,
        "cpus-per-task": cores,
        "exclusive": True if cores is None else None,
        "gpus-per-node": resources.gpus_per_node or None,
        "time": resources.time,
        "signal": f"USR1@{WARNING_SECONDS}",
        "requeue": True,
        "open-mode": "append",
        "output": "%x-%j.out",
    }
    launch = 'srun --mpi="$mpi" --kill-on-bad-exit=0 --wait=5'
    if resources.gpus_per_node:
        share = -(-resources.ranks_per_node // resources.gpus_per_node)
        launch += f" --gpu-bind=single:{share}"
    return (
        HEADER + directives(asked) + "\n" + ENVIRONMENT.format(pmi=pmi)
        + f"{launch} \\\n    {shlex.join(command)}" + CHAIN
    )  # fmt: skip


def directives(asked: Mapping[str, Any]) -> str:
    """The lines of a script that give Slurm its options; an option without a value has True."""
    return "\n".join(
        f"#SBATCH --{option}" if value is True else f"#SBATCH --{option}={value}"
        for option, value in asked.items()
        if value is not None
    )


def script_for(
    source: str,
    resources: Resources,
    overrides: Sequence[str] = (),
    backend: str | None = None,
    output: Path | None = None,
) -> tuple[str, str]:
    """The name of a case and the script that runs it, once everything about it has been checked.

    Raises HeatsolveError for whatever a run would refuse before its first step, InputError also
    for more ranks than the grid has room for and for a backend that does not fit the resources.
    """
    case = load(source, overrides)
    with locating(case):
        check(case, resources, backend)
    command = [*program(), "run", "--restart"]
    if backend is not None:
        command += ["--backend", backend]
    for setting in overrides:
        command += ["--set", setting]
    if output is not None:
        target(output)
        command += ["--output", str(output)]
    # Behind the two dashes a case may have any name.
    command += ["--", source] if source.startswith("-") else [source]
    cores = cores_of(case, resources, backend)
    return case.name, script(case.name, resources, command, cores, pmi())


def cores_of(case: Case, resources: Resources, backend: str | None) -> int | None:
    """The cores that each rank of a run uses; None: all cores of its node.

    One process alone has a thread on every core; each of several processes has one thread, and so
    have NumPy and the host of a GPU.
    """
    if case.parallel.threads is not None:
        return case.parallel.threads
    alone = resources.nodes * resources.ranks_per_node == 1
    threaded = (backend or case.parallel.backend) in ("numba", "auto")
    return None if alone and threaded and not resources.gpus_per_node else 1


def check(case: Case, resources: Resources, backend: str | None) -> None:
    """Raise InputError for a job that would be refused after its wait in the queue."""
    chosen = backend or case.parallel.backend
    if chosen not in (*NAMES, "auto"):
        raise InputError(f"no backend {chosen!r}: there are {', '.join(NAMES)}, or auto")
    if resources.gpus_per_node and chosen in ("numpy", "numba"):
        raise InputError(f"--gpus-per-node: the {chosen} backend runs on no GPU")
    if chosen in ("cupy", "cuda") and not resources.gpus_per_node:
        raise InputError(f"the {chosen} backend needs --gpus-per-node")
    ranks = resources.nodes * resources.ranks_per_node
    # The login node may lack the backend of the nodes; every backend refuses the same cases.
    for _ in preview(case, "numpy", ranks):
        pass


def submit(name: str, text: str) -> str:
    """Write a script as NAME.sbatch in the current directory, submit it, return the job's id.

    Raises InputError where there is no sbatch, where it refuses, and where an earlier NAME.sbatch
    is no script of `heatsolve submit`, FileFailure when it cannot be written.
    """
    if which("sbatch") is None:
        raise InputError(
            "there is no sbatch here: submit where your cluster has Slurm, "
            "or look at the script with --dry-run"
        )
    path = Path(f"{name}.sbatch").absolute()
    with failing("read", path):
        earlier = path.read_bytes() if path.is_file() else b""
    if earlier and not earlier.startswith(f"{SHEBANG}\n{TITLE}".encode()):
        raise InputError(f"{path.name} is no script of heatsolve submit, it is not overwritten")
    write_text(path, text)
    done = subprocess.run(["sbatch", "--parsable", str(path)], capture_output=True, text=True)
    if done.returncode != 0:
        said = "; ".join(line.removeprefix("sbatch: error: ") for line in done.stderr.splitlines())
        raise InputError(f"sbatch refused {path.name}: {said}")
    return done.stdout.splitlines()[-1].partition(";")[0]


def program() -> list[str]:
    """The words that start this program on a node, whatever the environment there."""
    beside = Path(sys.executable).with_name("heatsolve")
    return [str(beside)] if beside.exists() else python("-m", "heatsolve")


def pmi() -> str:
    """How srun must start the MPI of this environment: pmix if it is Open MPI, else pmi2."""
    return "pmix" if "Open MPI" in mpi_library() else "pmi2"
