"""The findings of `heatsolve doctor`: whether heatsolve can run well on this machine.

Each check yields findings, with a cure where something is wrong. All processes of a run make the
checks together; checks that need messages come last.
"""

import fcntl
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from heatsolve import __version__
from heatsolve.backends import Backend, cache_folder, cores, host_memory, wanted_folder
from heatsolve.backends import registry as choice
from heatsolve.backends.registry import make
from heatsolve.errors import HeatsolveError, InputError
from heatsolve.io.layout import versions
from heatsolve.parallel import transport as transports
from heatsolve.parallel.ranks import LAUNCHERS, Ranks, find_ranks, mpi_library
from heatsolve.stencil.language import sqrt
from heatsolve.tools.measure import seconds_of_copy
from heatsolve.tools.submit import pmi

REQUIRED = ("numpy", "numba", "scipy", "h5py", "mpi4py", "typer", "pydantic", "matplotlib")
EXTRAS = {
    "imageio_ffmpeg": "films as MP4: pip install 'heatsolve[video]'",
    "xarray": "fields with coordinates in Python: pip install 'heatsolve[xarray]'",
}
"""Optional packages, and their use."""
PROOF = (300, 400)
"""Points of the sweep that proves a backend: enough for threads."""
COPIED = 1 << 23
"""Doubles of the copy that measures bandwidth: beyond the caches of most machines."""
LITTLE = 1 << 30
"""Free bytes of memory, or on a disk, below which a run may have too little."""


@dataclass(frozen=True)
class Finding:
    """One line: the level (ok, warning, error), the subject, the finding, and the cure."""

    level: str
    what: str
    said: str
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.level:8} {self.what:10} {self.said}" + (
            f"; {self.cure}" if self.cure else ""
        )


Findings = Iterator[Finding]


def diagnose() -> Findings:
    """The findings of all checks, on rank 0 of several processes; nothing on other ranks.

    A finding that only some processes have names their ranks.
    """
    try:
        ranks = find_ranks()
    except InputError as error:
        yield Finding("error", "processes", str(error))
        ranks = Ranks()
    for check in CHECKS:
        result = ranks.gather(list(examined(check, ranks)))
        if ranks.rank > 0:
            continue
        for finding in dict.fromkeys(each for several in result for each in several):
            where = [n for n, several in enumerate(result) if finding in several]
            if len(where) < ranks.size:
                said = f"{finding.said} (rank {', '.join(map(str, where))})"
                finding = Finding(finding.level, finding.what, said, finding.cure)
            yield finding


def examined(check: Callable[[Ranks], Findings], ranks: Ranks) -> Findings:
    """The findings of a check; if the check itself fails, its failure is a finding."""
    try:
        yield from check(ranks)
    except Exception as error:
        reason = str(error).strip() or type(error).__name__
        yield Finding("error", check.__name__, f"the check failed ({reason.splitlines()[0]})")


def python(ranks: Ranks) -> Findings:
    """Python and the packages that every run needs."""
    versions, missing = [], []
    for name in REQUIRED:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    said = f"{platform.python_version()}, heatsolve {__version__}, {', '.join(versions)}"
    yield Finding("ok", "python", said)
    for name in missing:
        yield Finding("error", "python", f"{name} is not installed", f"pip install {name}")
    with suppress(PackageNotFoundError):
        result = version("numba-cuda")
        if np.lib.NumpyVersion(np.__version__) >= "2.5.0":
            said = f"numba-cuda {result} does not work with NumPy {np.__version__}"
            yield Finding("error", "python", said, "pip install 'numpy<2.5'")


def cpu(ranks: Ranks) -> Findings:
    """The processor, and the cores that this process may use."""
    mine, all_cores = len(cores()), os.cpu_count() or 1
    share = "" if mine == all_cores else f" of {all_cores}"
    yield Finding("ok", "cpu", f"{choice.processor()}, {mine}{share} cores for this process")
    quota = control_group("cpu.max").split()
    if quota and quota[0] != "max" and int(quota[0]) / int(quota[1]) < 0.9 * mine:
        allowed = int(quota[0]) / int(quota[1])
        said = f"the control group allows {allowed:.3g} cores, threads are made for {mine}"
        cure = f"set NUMBA_NUM_THREADS={max(1, int(allowed))}"
        yield Finding("warning", "cpu", said, cure)


def control_group(name: str) -> str:
    """The text of a limit of this process's control group in Linux; empty where there is none."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        group = next(line[4:] for line in lines if line.startswith("0::/"))
        for folder in (Path("/sys/fs/cgroup") / group, Path("/sys/fs/cgroup")):
            if (folder / name).exists():
                return (folder / name).read_text().strip()
    return ""


def memory(ranks: Ranks) -> Findings:
    """The memory that a run may take."""
    free, total = host_memory()
    said = f"{free / 2**30:.2g} GiB of {total / 2**30:.2g} GiB are free"
    if free < LITTLE:
        yield Finding("warning", "memory", said, "end other programs, or ask for more")
    else:
        yield Finding("ok", "memory", said)


def threads(ranks: Ranks) -> Findings:
    """Numba's threads, proved by a sweep, and whether they spin while they wait."""
    choice.refuse_settings()
    machine = choice.make("numba", threads=1 if ranks.size > 1 else None)
    demand_same_bits(machine)
    yield Finding("ok", "numba", f"has the bits of NumPy on {machine.threading}")
    policy = os.environ.get("OMP_WAIT_POLICY", "").lower()
    if policy == "active":
        said = "OMP_WAIT_POLICY is active: threads that wait take the cores of those that work"
        yield Finding("warning", "numba", said, "unset it, or set it to passive")


def circle(i: Any, j: Any, u: Any) -> Any:
    """Arithmetic that a fused multiply-add, or another square root, would round differently."""
    return sqrt(u[i - 1, j] * u[i, j + 1] + 0.3 * u[i + 1, j]) / (1.0 + u[i, j - 1])


def demand_same_bits(machine: Backend) -> None:
    """Raise InputError where a backend has other bits than NumPy."""
    values = np.random.default_rng(1).random(PROOF)
    inside = tuple((1, extent - 1) for extent in PROOF)
    results = []
    for each in (make("numpy"), machine):
        out = each.zeros(PROOF)
        each.sweep(circle, out, inside, each.to_device(values))
        results.append(each.to_host(out))
    if not np.array_equal(results[0], results[1]):
        raise InputError(f"the {machine.name} backend has other bits than NumPy")


def bandwidth(ranks: Ranks) -> Findings:
    """The copy bandwidth of memory, read plus written, which bounds every sweep."""
    machine = choice.make("numba", threads=1 if ranks.size > 1 else None)
    rate = ranks.size * 16 * COPIED / seconds_of_copy(machine, (COPIED,))
    # The rate of the slowest process: all copy at once.
    rate = min(ranks.gather(rate))
    yield Finding("ok", "bandwidth", f"{rate / 1e9:.3g} GB/s, read plus written")


def gpus(ranks: Ranks) -> Findings:
    """The GPUs, and each backend for them, proved by a sweep."""
    count = choice.count_gpus()
    device = ranks.local_rank % count if count else None
    # Gathered before any branch that only some processes take.
    mine = None if device is None else choice.identity(device)
    used = [each for each in ranks.gather(mine) if each]
    if not count:
        if Path("/proc/driver/nvidia/version").exists():
            shown = os.environ.get("CUDA_VISIBLE_DEVICES")
            why = (
                f"CUDA_VISIBLE_DEVICES is {shown!r}"
                if shown is not None
                else "nvidia-smi may say why"
            )
            yield Finding("error", "gpu", f"there is a driver, but it shows no GPU ({why})")
        else:
            yield Finding("ok", "gpu", "none here: numba and numpy run on the CPU")
        return
    said = f"{count} of them, {choice.gpu_name(ranks.local_rank)}, CUDA {choice.driver_version()}"
    yield Finding("ok", "gpu", said)
    if len(set(used)) < len(used):
        said = f"{len(used)} processes share {len(set(used))} of them"
        yield Finding("warning", "gpu", said, "ask for one GPU for each process")
    for name in choice.ON_GPU:
        try:
            machine = choice.make(name, device=device)
            demand_same_bits(machine)
            rate = 16 * COPIED / seconds_of_copy(machine, (COPIED,))
            said = f"has the bits of NumPy, copies {rate / 1e9:.4g} GB/s"
            limits = getattr(machine, "limits", None)
            yield Finding("ok", name, f"{said}; {limits}" if limits else said)
        except HeatsolveError as error:
            yield Finding("error", name, str(error), "pip install 'heatsolve[cuda12]' or [cuda13]")


def mpi(ranks: Ranks) -> Findings:
    """The library of MPI, and its launcher."""
    said = mpi_library()
    if not said:
        cure = "load your cluster's module, or pip install 'heatsolve[mpich]'"
        yield Finding("warning", "mpi", "mpi4py finds no library: runs have one process", cure)
        return
    launcher = shutil.which("mpiexec")
    by = f"mpiexec is {launcher}" if launcher else "there is no mpiexec"
    yield Finding("ok", "mpi", f"{' '.join(said.split())[:60]}; {by}")


def slurm(ranks: Ranks) -> Findings:
    """Whether srun offers the protocol by which the MPI library starts processes."""
    if not shutil.which("srun"):
        return
    needed = pmi()
    asked = subprocess.run(
        ["srun", "--mpi=list"], capture_output=True, text=True, timeout=20, check=False
    )
    if asked.returncode:
        said = (asked.stderr.strip() or "it says nothing").splitlines()[-1]
        cure = "a cluster's Slurm answers on its own nodes; mpiexec needs none"
        yield Finding("warning", "slurm", f"srun does not work here ({said})", cure)
        return
    offered = {word.strip(",") for word in (asked.stdout + asked.stderr).split()}
    if needed not in offered:
        cure = "ask for an MPI that it knows, or launch with mpiexec"
        yield Finding("error", "slurm", f"srun has no --mpi={needed}, which this MPI needs", cure)
    else:
        yield Finding("ok", "slurm", f"launch with srun --mpi={needed}")


def hdf5(ranks: Ranks) -> Findings:
    """h5py and its HDF5."""
    yield Finding("ok", "hdf5", versions())


def folder(ranks: Ranks) -> Findings:
    """Whether files can be written, renamed and locked where a run would put them."""
    here = Path.cwd()
    try:
        handle, name = tempfile.mkstemp(dir=here, prefix=".heatsolve-doctor-")
    except OSError as error:
        yield Finding("error", "folder", f"cannot write here ({error.strerror})", "use another one")
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.replace(name, f"{name}.h5")
        yield Finding("ok", "folder", "files can be written, renamed and locked here")
    except OSError as error:
        said = f"files here cannot be locked ({error.strerror}): keep two runs of one file apart"
        yield Finding("warning", "folder", said)
    finally:
        os.close(handle)
        for path in (name, f"{name}.h5"):
            Path(path).unlink(missing_ok=True)
    free = shutil.disk_usage(here).free
    if free < LITTLE:
        yield Finding("warning", "folder", f"{free / 2**20:.0f} MiB are free here", "make room")


def compiled(ranks: Ranks) -> Findings:
    """The folder of compiled loops."""
    wanted, used = wanted_folder(), cache_folder()
    if used is not None and wanted == used:
        yield Finding("ok", "cache", "compiled loops are kept from run to run")
    else:
        said = f"{wanted} cannot be written" if wanted else "this user has no home folder"
        where = f"compiled loops go to {used}" if used else "each run compiles its loops anew"
        cure = "set HEATSOLVE_CACHE to a folder of your own"
        yield Finding("warning", "cache", f"{said}, {where}", cure)


def extras(ranks: Ranks) -> Findings:
    """Optional packages that are not installed."""
    for name, use in EXTRAS.items():
        if find_spec(name) is None:
            yield Finding("ok", "extras", f"not installed, {use}")


def processes(ranks: Ranks) -> Findings:
    """The transport between the processes of a run, proved by messages."""
    if ranks.size == 1:
        alone = not any(name in os.environ for name in LAUNCHERS)
        way = "mpiexec -n 2 heatsolve doctor shows more" if alone else "there is only this one"
        yield Finding("ok", "processes", f"one; {way}")
        return
    machine, _ = choice.choose("auto", local_rank=ranks.local_rank, gather=ranks.gather)
    transport = transports.transport_of(ranks, machine)
    if ranks.crowd:
        yield Finding("warning", "processes", ranks.crowd, "start as many as there are cores")
    if not transports.proved(transport, ranks, machine):
        yield Finding(
            "error", "processes", f"{transport.name(machine)} does not deliver what is sent"
        )
    elif machine.on_device and transport.link is None:
        why = machine.connect(ranks, "nccl")[1]
        way = transport.name(machine)
        said = f"{ranks.size} GPUs are linked by {way}, for there is no NCCL ({why})"
        yield Finding("warning", "processes", said, "pip install nvidia-nccl-cu12 or -cu13")
    else:
        yield Finding("ok", "processes", f"{ranks.size}, linked by {transport.name(machine)}")


CHECKS = (
    python, cpu, memory, threads, bandwidth, gpus, mpi, slurm, hdf5, folder, compiled, extras,
    processes,
)  # fmt: skip
