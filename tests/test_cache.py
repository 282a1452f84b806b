"""Compiled loops are kept on disk, safely when processes start at once."""

import os
import subprocess
import sys

RUN = [sys.executable, "-m", "heatsolve", "run", "hot-plate", "--backend", "numba",
       "--set", "grid.nodes=[33, 33]"]  # fmt: skip


def start(cache, output):
    environment = {**os.environ, "HEATSOLVE_CACHE": str(cache)}
    return subprocess.Popen(
        [*RUN, "--output", str(output)], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def machine_code(cache):
    return {path.name: path.stat().st_mtime_ns for path in cache.rglob("*.nbc")}


def test_processes_that_start_at_once_share_an_empty_cache(tmp_path):
    cache = tmp_path / "cache"
    processes = [start(cache, tmp_path / f"{n}.h5") for n in range(3)]
    told = 0
    for process in processes:
        said, _ = process.communicate()
        assert process.returncode == 0, said
        told += "compiling, once" in said
    assert told
    assert not list(cache.glob("*.part"))
    compiled = machine_code(cache)
    assert compiled
    again = start(cache, tmp_path / "again.h5")
    said, _ = again.communicate()
    assert again.returncode == 0 and "compiling" not in said
    assert machine_code(cache) == compiled  # nothing was compiled again


def test_a_cache_that_cannot_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    process = start(blocked / "cache", tmp_path / "a.h5")
    said, _ = process.communicate()
    assert process.returncode == 0, said
