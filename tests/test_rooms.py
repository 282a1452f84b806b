"""The rooms of the house: imports point downward only, and every outside package has its room."""

import ast
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

import heatsolve

SOLVER = Path(heatsolve.__file__).parent
POSTPROCESS = SOLVER.parent / "postprocess"


def modules():
    """The source files by module name, `heatsolve.` left out."""
    found = {}
    for folder, prefix in ((SOLVER, ""), (POSTPROCESS, "postprocess.")):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found[(prefix + ".".join(parts)).rstrip(".")] = path
    return found


MODULES = modules()


def imports(name, top_level=False):
    """What a module imports: all names in absolute form, `heatsolve.` left out for ours."""
    tree = ast.parse(MODULES[name].read_text())
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            # Only `from heatsolve import march` names a module behind the word import.
            found = ([f"heatsolve.{alias.name}" for alias in node.names]
                     if node.module == "heatsolve" else [node.module])  # fmt: skip
        else:
            continue
        yield from found


def ours(name, top_level=False):
    return {found.removeprefix("heatsolve.") for found in imports(name, top_level)
            if found.split(".")[0] == "heatsolve"} & set(MODULES)  # fmt: skip


def outside(name):
    return {found.split(".")[0] for found in imports(name)}


INTERFACE = "backends"
ALLOWED = {
    "errors": (),
    "streams": (),
    "points": ("errors",),
    "grid": ("errors",),
    "expressions": ("streams", "errors"),
    "heat": ("points",),
    "boundary": ("points",),
    "ranks": (INTERFACE, "backends.machine", "backends.sums", "streams", "errors"),
    "blocks": ("grid", "errors"),
    "links": ("ranks", "points", INTERFACE, "errors"),
    "halo": ("links", "ranks", "points", "grid", INTERFACE, "errors"),
    "wish": ("streams",),
    "keeper": ("ranks", "wish", "errors"),
    "linear": ("points", "grid", INTERFACE, "halo", "errors"),
    "assembly": ("links", "points", INTERFACE),
    "linear.*": (
        "linear",
        "linear.*",
        "points",
        "grid",
        INTERFACE,
        "halo",
        "ranks",
        "blocks",
        "assembly",
        "errors",
    ),
    "models": ("points",),
    "values": ("expressions", "grid", "toml", "errors"),
    "schema*": ("schema", "schema.*", "models", "values", "expressions", "grid", "errors"),
    "toml": ("errors",),
    "conflicts": ("schema", "values", "expressions", "grid", "toml"),
    "defaults": ("schema", "expressions", "toml"),
    "case": (
        "conflicts",
        "defaults",
        "models",
        "schema",
        "values",
        "expressions",
        "toml",
        "errors",
    ),
    "disk": ("errors",),
    "inspection": ("errors",),
    "parts": ("disk", "inspection", "errors"),
    "fieldfile": ("disk", "parts", "xdmf", "errors"),
    "output": ("case", "disk", "fieldfile", "inspection", "parts", "streams", "toml", "errors"),
    "shared": ("disk", "fieldfile", "ranks", "errors"),
    "results": ("disk", "fieldfile", "output", "parts", "ranks", "shared", "errors"),
    "checkpoint.part": ("disk", "inspection"),
    "checkpoint.manifest": ("checkpoint.part", "disk", "errors"),
    "checkpoint.folder": ("disk",),
    "checkpoint": (
        "checkpoint.folder",
        "checkpoint.manifest",
        "checkpoint.part",
        "keeper",
        "disk",
        "ranks",
        "errors",
    ),
    "resume": ("case", "converge", "expressions", "schema", "toml", "errors"),
    "report": ("streams", "errors"),
    "evaluate": ("case", "grid", "errors"),
    "volumes": ("evaluate", "case", "heat", "boundary", "grid", "errors"),
    "problem": (
        "evaluate",
        "case",
        "halo",
        "links",
        "blocks",
        "ranks",
        "grid",
        "points",
        INTERFACE,
    ),
    "transport": ("points",),
    "flow": ("points",),
    "unused": ("case", "schema", "values", "problem", INTERFACE, "errors"),
    "walled": (
        "problem",
        "evaluate",
        "case",
        "transport",
        "stability",
        "ranks",
        "grid",
        "points",
        INTERFACE,
        "errors",
    ),
    "obstacles": ("case", "grid"),
    "bodies": ("obstacles", "case", "flow", "halo", "grid", "points", INTERFACE),
    "staggered": (
        "walled",
        "bodies",
        "evaluate",
        "case",
        "schema",
        "flow",
        "heat",
        "stability",
        "halo",
        "linear",
        "linear.spectrum",
        "ranks",
        "grid",
        "points",
        INTERFACE,
        "errors",
    ),
    "implicit_diffusion": (
        "staggered",
        "steppers",
        "converge",
        "criterion",
        "case",
        "flow",
        "heat",
        "linear",
        "grid",
        "points",
        "errors",
    ),
    "projection": (
        "staggered",
        "implicit_diffusion",
        "steppers",
        "converge",
        "criterion",
        "keeper",
        "flow",
        "linear",
        "transport",
        "grid",
        "points",
        INTERFACE,
        "errors",
    ),
    "probes": ("problem", "obstacles", "grid", "errors"),
    "collocated": (
        "walled",
        "problem",
        "steppers",
        "keeper",
        "case",
        "flow",
        "transport",
        "linear",
        "ranks",
        "grid",
        "points",
        INTERFACE,
    ),
    "stability": (),
    "convection": ("walled", "evaluate", "case", "transport", "ranks", "grid", "points", INTERFACE),
    "evolution": ("walled", "models", "stability", "transport", "points", "errors"),
    "runge_kutta": (
        "steppers",
        "convection",
        "evolution",
        "transport",
        "keeper",
        "points",
        INTERFACE,
    ),
    "conduction": (
        "problem",
        "evaluate",
        "volumes",
        "case",
        "heat",
        "halo",
        "blocks",
        "ranks",
        "grid",
        "linear",
        "linear.*",
        "points",
        INTERFACE,
        "errors",
    ),
    "criterion": (INTERFACE, "case", "linear", "points", "errors"),
    "judge": ("criterion", "linear", "errors"),
    "converge": (
        "problem",
        "grid",
        "evaluate",
        "case",
        "criterion",
        "judge",
        "keeper",
        "heat",
        "linear",
        "linear.*",
        INTERFACE,
    ),
    "steppers": (
        "problem",
        "converge",
        "criterion",
        "keeper",
        "conduction",
        "heat",
        "linear",
        "points",
        INTERFACE,
        "errors",
    ),
    "pace": ("staggered", "convection", "steppers", "problem", "case", "schema", "errors"),
    "march": (
        "grid",
        "ranks",
        "pace",
        "probes",
        "collocated",
        "projection",
        "staggered",
        "convection",
        "evolution",
        "runge_kutta",
        "points",
        "problem",
        "steppers",
        "converge",
        "judge",
        "criterion",
        "case",
        "keeper",
        "conduction",
        "linear",
        INTERFACE,
        "errors",
    ),
    "study.noise": (),
    "study.measure": (INTERFACE, "report"),
    "study.solvers": (
        "case",
        "conduction",
        "converge",
        "grid",
        "linear",
        "points",
        "report",
        "study.measure",
        "study.noise",
        INTERFACE,
    ),
    "submit": (
        "case",
        "preview",
        "ranks",
        "disk",
        "backends.choice",
        "streams",
        "fieldfile",
        "errors",
    ),
    "backends*": ("points", "backends", "backends.*", "streams", "errors"),
}
"""What the lower rooms may import of ours."""

ROOMS = {
    "numba": ("backends", "backends.*"),
    "cupy": ("backends.*",),
    "cupyx": ("backends.*",),
    "cuda": ("backends.*",),
    "h5py": (
        "fieldfile",
        "inspection",
        "output",
        "parts",
        "shared",
        "checkpoint.part",
        "postprocess.*",
    ),
    "mpi4py": ("ranks",),
    "matplotlib": ("postprocess.*",),
    "scipy": ("linear.fft",),
    "pyamg": ("study.rivals",),
}
"""Where an outside package may be imported."""


RULES = [(name, allowed) for pattern, allowed in ALLOWED.items() for name in MODULES
         if fnmatch(name, pattern)]  # fmt: skip


@pytest.mark.parametrize("name, allowed", RULES)
def test_imports_point_downward(name, allowed):
    forbidden = {m for m in ours(name) if not any(fnmatch(m, pattern) for pattern in allowed)}
    assert not forbidden


@pytest.mark.parametrize("package", ROOMS)
def test_packages_have_their_rooms(package):
    users = {name for name in MODULES if package in outside(name)}
    assert not {n for n in users if not any(fnmatch(n, room) for room in ROOMS[package])}


def test_no_circles():
    graph = {name: ours(name) for name in MODULES}
    for start in graph:
        seen, waiting = set(), list(graph[start] - {start})
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                # A package and its own modules count as one room.
                waiting += [m for m in graph[name] if not _one_room(name, m)]
        assert start not in seen, f"{start} imports itself through others"


def _one_room(a, b):
    return a.split(".")[0] == b.split(".")[0] and a.split(".")[0] in (
        "backends",
        "linear",
        "checkpoint",
        "schema",
    )


def test_the_command_line_imports_lazily():
    assert ours("cli", top_level=True) <= {"errors", "streams"}
    heavy = {"numba", "matplotlib", "cupy", "h5py", "numpy", "pydantic", "mpi4py", "cuda", "scipy"}
    # CUDA's packages put redirectors into every interpreter; only what the import adds counts.
    script = "import sys; n = set(sys.modules); import heatsolve.cli; print(*set(sys.modules) - n)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert "heatsolve.cli" in loaded
    assert not heavy & {name.split(".")[0] for name in loaded}
