"""heatsolve doctor: what it says of a sound machine, and of each thing that can be wrong."""

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
from test_ranks import launch, mpi

from heatsolve.backends import compilation, machine
from heatsolve.backends import registry as choice
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.errors import InputError
from heatsolve.parallel import transport as transports
from heatsolve.parallel.ranks import Ranks
from heatsolve.tools import doctor as environment
from heatsolve.tools.doctor import CHECKS, examined


def doctor(*given, **variables):
    return subprocess.run(
        [sys.executable, "-m", "heatsolve", "doctor", *given],
        capture_output=True, text=True, env=os.environ | variables, timeout=120,
    )  # fmt: skip


def found_by(check, ranks=None):
    return list(examined(check, ranks or Ranks()))


def levels(found):
    return [finding.level for finding in found]


def topics(done):
    """What each line is about. The machine of the tests may lack something: then it ends with 2."""
    lines = done.stdout.splitlines()
    assert done.returncode == (2 if any(line.startswith("error") for line in lines) else 0)
    assert not done.stderr
    return [line.split()[1] for line in lines]


def test_a_sound_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = doctor()
    about = topics(done)
    for what in ("python", "cpu", "memory", "numba", "bandwidth", "gpu", "mpi", "hdf5", "folder"):
        assert what in about
    assert re.search(r"^ok +numba +has the bits of NumPy on (\d+ threads|one)", done.stdout, re.M)
    rate = re.search(r"bandwidth +([\d.]+) GB/s", done.stdout)
    assert 0.5 < float(rate[1]) < 10_000
    assert not list(tmp_path.iterdir())


@mpi
def test_several_processes(tmp_path):
    done = launch(2, "-m", "heatsolve", "doctor")
    assert topics(done).count("python") == 1
    assert re.search(r"processes +2, linked by", done.stdout)


def test_what_differs_is_told_with_its_ranks(monkeypatch):
    class Three(Ranks):
        size = 3

        def gather(self, value):
            (finding,) = value
            other = environment.Finding("error", "folder", "is full", "make room")
            return [[finding], [other], [other]]

    monkeypatch.setattr(environment, "find_ranks", Three)
    monkeypatch.setattr(environment, "CHECKS", (environment.folder,))
    lines = list(map(str, environment.diagnose()))
    assert lines == [
        "ok       folder     files can be written, renamed and locked here (rank 0)",
        "error    folder     is full (rank 1, 2); make room",
    ]


def test_a_check_that_fails_is_an_error():
    def broken(ranks):
        raise RuntimeError("no such thing\nand more")
        yield

    (finding,) = found_by(broken)
    assert str(finding) == "error    broken     the check failed (no such thing)"


def test_a_missing_package(monkeypatch):
    real = environment.version

    def version(name):
        if name == "scipy":
            raise PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(environment, "version", version)
    assert "scipy is not installed; pip install scipy" in "\n".join(
        map(str, found_by(environment.python))
    )


def test_a_numpy_that_numba_cuda_does_not_know(monkeypatch):
    monkeypatch.setattr(environment, "version", lambda name: "0.30.4")
    assert levels(found_by(environment.python)) == ["ok"]
    monkeypatch.setattr(np, "__version__", "2.5.1")
    last = found_by(environment.python)[-1]
    assert (last.level, last.cure) == ("error", "pip install 'numpy<2.5'")


def test_a_control_group_with_few_cores(monkeypatch):
    monkeypatch.setattr(environment, "control_group", lambda name: "50000 100000")
    first, second = found_by(environment.cpu)
    assert (first.level, second.level) == ("ok", "warning")
    assert "allows 0.5 cores" in second.said and second.cure == "set NUMBA_NUM_THREADS=1"


def test_little_memory(monkeypatch):
    monkeypatch.setattr(environment, "host_memory", lambda: (2**28, 2**29))
    (finding,) = found_by(environment.memory)
    assert finding.level == "warning" and finding.said == "0.25 GiB of 0.5 GiB are free"


GROUPS = {
    "version 2": ("0::/slurm/job_7/step_0/task_0", "", "memory.max", "memory.current",
                  "inactive_file"),
    "version 1": ("4:cpu,memory:/slurm/job_7/step_0/task_0", "memory/", "memory.limit_in_bytes",
                  "memory.usage_in_bytes", "total_inactive_file"),
}  # fmt: skip


@pytest.mark.parametrize("version", GROUPS)
@pytest.mark.parametrize("folder", ["slurm/job_7", "slurm/job_7/step_0/task_0", ""])
def test_memory_of_a_control_group(monkeypatch, tmp_path, version, folder):
    """Also of one around it, and of a container, which is in the root that it sees."""
    line, root, limit, used, cached = GROUPS[version]
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(f"9:devices:/x\n{line}\n")
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 1048576 kB\n")
    group = tmp_path / "groups" / root / folder
    group.mkdir(parents=True)
    for name, text in {
        limit: 2**29,
        used: 2**28,
        "memory.stat": f"anon 7\n{cached} {2**27}",
    }.items():
        (group / name).write_text(f"{text}\n")
    monkeypatch.setattr(machine, "PROC", tmp_path)
    monkeypatch.setattr(machine, "GROUPS", tmp_path / "groups")
    assert machine.host_memory() == (2**29 - 2**28 + 2**27, 2**29)
    (group / limit).write_text("max\n" if version == "version 2" else f"{2**63 - 4096}\n")
    free, total = machine.host_memory()
    assert free == 2**30 and total > 2**29


def test_other_bits(monkeypatch):
    """A backend that contracts to a fused multiply-add is noticed."""

    class Other(NumpyBackend):
        def to_host(self, array):
            return np.nextafter(super().to_host(array), 1)

    with pytest.raises(InputError, match="has other bits than NumPy"):
        environment.demand_same_bits(Other())
    environment.demand_same_bits(NumpyBackend())


def test_threads_that_spin(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert levels(found_by(environment.threads)) == ["ok", "warning"]


def test_a_driver_without_gpus(monkeypatch):
    monkeypatch.setattr(choice, "count_gpus", lambda: 0)
    monkeypatch.setattr(Path, "exists", lambda path: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (finding,) = found_by(environment.gpus)
    assert finding.level == "error" and "CUDA_VISIBLE_DEVICES is ''" in finding.said


def fake_gpus(monkeypatch, count, make):
    monkeypatch.setattr(choice, "count_gpus", lambda: count)
    monkeypatch.setattr(choice, "identity", lambda device: f"gpu {device}")
    monkeypatch.setattr(choice, "gpu_name", lambda rank: "NVIDIA Test")
    monkeypatch.setattr(choice, "driver_version", lambda: "13.0")
    monkeypatch.setattr(choice, "make", make)


def test_gpus_that_a_backend_cannot_use(monkeypatch):
    def make(name, device):
        assert device == 0
        if name == "cupy":
            raise InputError("the cupy backend needs CuPy")
        return NumpyBackend()

    fake_gpus(monkeypatch, 2, make)
    gpu, cuda, cupy = found_by(environment.gpus)
    assert (gpu.level, gpu.said) == ("ok", "2 of them, NVIDIA Test, CUDA 13.0")
    assert cuda.level == "ok" and cuda.said.startswith("has the bits of NumPy, copies ")
    assert (cupy.level, cupy.said) == ("error", "the cupy backend needs CuPy")


def test_processes_that_share_a_gpu(monkeypatch):
    class Two(Ranks):
        size = 2

        def gather(self, value):
            return [value, value]

    fake_gpus(monkeypatch, 1, lambda name, device: NumpyBackend())
    warning = found_by(environment.gpus, Two())[1]
    assert (warning.level, warning.said) == ("warning", "2 processes share 1 of them")


def test_no_mpi(monkeypatch):
    monkeypatch.setattr(environment, "mpi_library", lambda: "")
    (finding,) = found_by(environment.mpi)
    assert finding.level == "warning" and "heatsolve[mpich]" in finding.cure


@pytest.mark.parametrize(
    ("offered", "library", "level"),
    [
        ("none pmi2 pmix", "MPICH", "ok"),
        ("none pmi2", "Open MPI", "error"),
        ("none, pmix", "Open MPI", "ok"),
        ("none", "MPICH", "error"),
    ],
)
def test_a_slurm(offered, library, level, tmp_path, monkeypatch):
    srun = tmp_path / "srun"
    srun.write_text(f'#!/bin/sh\n[ "$1" = --mpi=list ] && echo "MPI plugin types are... {offered}"')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("heatsolve.tools.submit.mpi_library", lambda: library)
    (finding,) = found_by(environment.slurm)
    assert finding.level == level
    assert ("pmix" if library == "Open MPI" else "pmi2") in finding.said


def test_a_slurm_that_does_not_answer(tmp_path, monkeypatch):
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\necho "a\nsrun: fatal: no configuration source" >&2\nexit 1')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (finding,) = found_by(environment.slurm)
    assert finding.level == "warning"
    assert finding.said == "srun does not work here (srun: fatal: no configuration source)"


@pytest.mark.thorough
def test_singletons_under_slurm():
    """srun with another PMI starts processes that do not know of each other."""
    done = doctor(SLURM_NTASKS="2", SLURM_STEP_ID="0")
    assert done.returncode == 2
    assert re.search(r"^error +processes +Slurm started 2 tasks, but MPI sees one", done.stdout)


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    def refuse(**given):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(environment.tempfile, "mkstemp", refuse)
    (finding,) = found_by(environment.folder)
    assert (finding.level, finding.said) == ("error", "cannot write here (Permission denied)")


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def refuse(*given):
        raise OSError(38, "Function not implemented")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environment.fcntl, "flock", refuse)
    finding = found_by(environment.folder)[0]
    assert finding.level == "warning" and "cannot be locked" in finding.said
    assert not list(tmp_path.iterdir())


def test_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environment, "LITTLE", 1 << 62)
    assert levels(found_by(environment.folder)) == ["ok", "warning"]


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEATSOLVE_CACHE", str(tmp_path / "file" / "cache"))
    (finding,) = found_by(environment.compiled)
    assert finding.level == "warning" and finding.cure.startswith("set HEATSOLVE_CACHE")
    monkeypatch.setenv("HEATSOLVE_CACHE", str(tmp_path / "cache"))
    assert levels(found_by(environment.compiled)) == ["ok"]
    assert compilation.cache_folder() == tmp_path / "cache"


def test_what_is_not_installed(monkeypatch):
    monkeypatch.setattr(environment, "find_spec", lambda name: None)
    found = found_by(environment.extras)
    assert levels(found) == ["ok", "ok"]
    assert "heatsolve[video]" in found[0].said


def test_a_link_that_does_not_deliver(monkeypatch):
    class Two(Ranks):
        size = 2

        def gather(self, value):
            return [value, value]

    transport = transports.Transport(Two())
    monkeypatch.setattr(choice, "choose", lambda name, **given: (NumpyBackend(), ""))
    monkeypatch.setattr(transports, "transport_of", lambda ranks, machine: transport)
    monkeypatch.setattr(transports, "proved", lambda *given: False)
    (finding,) = found_by(environment.processes, Two())
    assert (finding.level, finding.said) == ("error", "MPI does not deliver what is sent")


def test_every_check_has_a_word_of_what_it_does():
    assert all(check.__doc__ for check in CHECKS)
