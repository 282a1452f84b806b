"""Every kernel family at its smallest size under NVIDIA's compute-sanitizer: `pytest -m sanitize`.

The kernels are those of tests that run on GPUs anyway; a tool looks at them.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

TOOLS = {
    "memcheck": [["--report-api-errors", "no"]],
    "racecheck": [["--num-cuda-barriers", "32"]],
    "initcheck": [[]],
    "synccheck": [["--num-cuda-barriers", str(number)] for number in (16384, 65536)],
}
"""The options of each tool; the next ones are tried where a table of the tool overflows.

Kernels are looked at, not calls of the driver: cuda.core asks it for the device of a context before
there is one, and takes the error for the answer. A block has 19 barriers at most, but synccheck
counts those of many blocks at a time. A large table takes so much of the card's memory that
synccheck runs alone.
"""

OVERFLOWED = re.compile(r"launch[ _]?fail", re.IGNORECASE)
"""What synccheck says where barriers overflow its table."""
FOUND = "Barrier error"
"""What it says of a kernel whose threads wait in a wrong way: no other table helps there."""

FAMILIES = {
    "test_conformance.py": [
        "test_regions[2-{0}]", "test_regions[3-{0}]", "test_periodic_ghosts[2-{0}]",
        "test_arrays_of_different_shapes[3-{0}]", "test_reductions_of_different_shapes[{0}]",
        "test_accumulators_gather_until_cleared[{0}]",
        "test_ends_of_periodic_axes[{0}-gated-array and sum-(5, 6, 41) ppp]",
    ],
    "test_fused_sweeps.py": [
        "test_fused_sweeps_have_the_bits_of_single_sweeps[float64-tiny-walls-{0}]",
        "test_fused_sweeps_have_the_bits_of_single_sweeps[float64-heat, varying-torus-{0}]",
        "test_fused_sweeps_have_the_bits_of_single_sweeps[float32-mean of six-torus-{0}]",
        "test_fused_sweeps_have_the_bits_of_single_sweeps[float64-explicit heat 3D-torus-{0}]",
        "test_cycle_legs_have_the_bits_of_single_sweeps[three sweeps-multigrid-{0}]",
        "test_cycle_legs_have_the_bits_of_single_sweeps[odd torus-mgcg-{0}]",
        "test_norms_that_cycles_find_on_their_way[cells-fewest0-{0}]",
        "test_norms_that_cycles_find_on_their_way[3D-fewest0-{0}]",
        "test_norms_that_cycles_find_on_their_way[3D-fewest1-{0}]",
        "test_small_legs_have_the_bits_of_single_sweeps[three sweeps, multigrid-1000-{0}]",
        "test_small_legs_have_the_bits_of_single_sweeps[torus-0-{0}]",
        "test_cycle_legs_in_3d_have_the_bits_of_single_sweeps[small-{0}]",
        "test_cycle_legs_in_3d_have_the_bits_of_single_sweeps[nodes-{0}]",
        "test_cycle_legs_in_3d_have_the_bits_of_single_sweeps[torus-{0}]",
        "test_cycle_legs_in_3d_have_the_bits_of_single_sweeps[cells-{0}]",
        "test_resident_sweeps_have_the_bits_of_single_sweeps[float64-laplace-torus-all-sum-{0}]",
        "test_resident_sweeps_have_the_bits_of_single_sweeps[float32-tiny-walls-last-max-{0}]",
    ],
}  # fmt: skip
"""Generic sweeps with and without reductions, of arrays alike and apart; passes of several sweeps;
half cycles of multigrid, with the small sweeps that share a kernel on its coarse levels; checks."""


HERE = Path(__file__).parent


def family_tests(backend):
    """The tests of `FAMILIES` on one backend, as pytest names them."""
    return [f"{file}::{name.format(backend)}" for file, names in FAMILIES.items() for name in names]


@contextmanager
def card(alone):
    """The card, which the tests of all workers share unless one needs it `alone`."""
    path = Path(tempfile.gettempdir()) / f"heatsolve-sanitize-{os.getuid()}.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


@pytest.mark.sanitize
@pytest.mark.parametrize("backend", ["cupy", "cuda"])
@pytest.mark.parametrize("tool", TOOLS)
def test_kernels_are_clean(tool, backend):
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer, which comes with CUDA's toolkit, is not on the path")
    tests = family_tests(backend)
    for options in TOOLS[tool]:
        command = [
            sanitizer, "--tool", tool, *options, "--error-exitcode", "86", "--print-limit", "5",
            sys.executable, "-m", "pytest", "-q", "-x", "-m", "gpu", "-p", "no:cacheprovider",
            *tests,
        ]  # fmt: skip
        with card(alone=tool == "synccheck"):
            done = subprocess.run(command, capture_output=True, text=True, cwd=HERE)
        said = done.stdout + done.stderr
        if done.returncode == 0 or FOUND in said or not OVERFLOWED.search(said):
            break
    assert done.returncode == 0, said[:3000] + "\n...\n" + said[-2000:]
    assert f"{len(tests)} passed" in said


def test_every_family_has_a_test_of_its_name():
    """A renamed test would leave its kernels unwatched until somebody has a GPU."""
    tests = [*family_tests("cupy"), *family_tests("cuda")]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu", *tests]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE)
    found = [line.partition("tests/")[2] for line in done.stdout.splitlines() if "::" in line]
    assert sorted(found) == sorted(tests), done.stdout + done.stderr
