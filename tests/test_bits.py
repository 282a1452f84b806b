"""Every shipped case and every kind of problem give the bits and the counts on record.

`bits.json` holds them by kind of processor, because sine and exponential differ between kinds in
their last bit. A kind that is not on record skips; `python test_bits.py` puts this machine's on
record.
"""

import hashlib
import json
import sys
from pathlib import Path

import h5py
import pytest
from many import texts, texts_of_levels

import heatsolve

RECORD = Path(__file__).with_name("bits.json")
FLOW = ["constants.n=16", "time.end=0.3"]
CYLINDER = ["constants.n=41", "time.end=0.05"]
CASES = {
    **{f"cfdpython-0{lesson}": [] for lesson in range(1, 10)},
    "backward-step": ["constants.n=8", "time.end=1"],
    "cavity-re100": FLOW,
    "cavity-re400": FLOW,
    "cavity-re1000": FLOW,
    "cfdpython-04": ["constants.nu=0.07"],
    "cfdpython-06": ["grid.nodes=[41, 41]"],
    "cfdpython-09-correct": [],
    "cfdpython-10": [],
    "cfdpython-11": ["time.end=0.03"],
    "cfdpython-12": ["time.end=0.3"],
    "cfdpython-12-correct": ["time.end=1"],
    "channel": FLOW,
    "composite-wall": [],
    "cooling-cube": ["grid.nodes=[13, 14, 15]"],
    "couette": FLOW,
    "cylinder-re20": CYLINDER,
    "cylinder-re100": CYLINDER,
    "heat-sink": ["grid.cells=[28, 10, 24]"],
    "heated-cylinder": ["constants.n=4", "time.end=0.3"],
    "hot-plate": ["grid.nodes=[41, 41]"],
    "hotspot": ["solver.iterations=300"],
    "legate-cfd": ["constants.n=21"],
    "legate-stencil": ["constants.N=60"],
    "natural-convection": FLOW,
    "nvidia-jacobi": ["constants.nx=70", "constants.ny=43", "solver.iterations=30"],
    "rayleigh-benard": FLOW,
    "sine-source": [],
    "sine-source-3d": ["grid.nodes=[17, 17, 17]"],
    "taylor-green": FLOW,
    "taylor-green-3d": FLOW,
}
"""The shipped cases, each at a small size."""

METHODS = {
    f"hot-plate, {method} {precision}": (
        "hot-plate",
        ["grid.nodes=[33, 33]", f"solver.method={method}", f"solver.precision={precision}",
         "solver.tolerance=1e-5", "solver.max_iterations=4000"],
    )
    for method in ("jacobi", "sor", "chebyshev", "cg", "multigrid", "mgcg", "fft")
    for precision in ("float64", "float32", "mixed")
    if not (precision == "mixed" and method != "multigrid")
}  # fmt: skip
"""One problem by every method and precision."""


def problems():
    """Names of problems, each with its case (a name or a text) and overrides."""
    found = {name: (name, sets) for name, sets in CASES.items()} | METHODS
    found |= {name: (text, []) for name, text in texts()}
    return found | {f"levels: {name}": (text, []) for name, text in texts_of_levels(False)}


PROBLEMS = problems()


def machine():
    """The kind of processor: the widest set of vector instructions that NumPy uses here."""
    from numpy._core._multiarray_umath import __cpu_features__ as features

    kinds = ("X86_V4", "AVX512_SKX", "X86_V3", "AVX2", "ASIMDHP", "ASIMD")
    return f"{sys.platform} " + " ".join(kind for kind in kinds if features.get(kind))


def summary(name, backend, folder):
    """The count of iterations or steps, and a digest of the fields and the history, of a run."""
    case, sets = PROBLEMS[name]
    if "\n" in case:
        (folder / "case.toml").write_text(case)
        case = folder / "case.toml"
    path = folder / "case.h5"
    heatsolve.run(case, backend=backend, overrides=sets, output=path)
    digest = hashlib.sha256()
    with h5py.File(path) as file:
        attributes = file.attrs
        count = int(attributes["iterations" if "iterations" in attributes else "steps"])
        names: list[str] = []
        file.visit(names.append)
        for key in sorted(names):
            item = file[key]
            if isinstance(item, h5py.Dataset) and item.dtype.kind in "fi":
                digest.update(key.encode() + item[()].tobytes())
    return [count, digest.hexdigest()[:16]]


@pytest.fixture(scope="module")
def record():
    kinds = json.loads(RECORD.read_text())
    if machine() not in kinds:
        pytest.skip(f"no bits on record for a processor like this one: {machine()}")
    return kinds[machine()]


@pytest.mark.few(25)
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("backend", ["numpy", pytest.param("numba", marks=pytest.mark.thorough)])
def test_bits_on_record(name, backend, record, tmp_path):
    assert summary(name, backend, tmp_path) == record[name]


if __name__ == "__main__":
    import tempfile

    kinds = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        kinds[machine()] = {name: summary(name, "numpy", Path(folder)) for name in PROBLEMS}
    lines = [
        f" {json.dumps(kind)}: {{\n"
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in bits.items())
        + "\n }"
        for kind, bits in kinds.items()
    ]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
