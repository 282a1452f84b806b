"""The rooms of the house: who may import whom, and which outside package has which room."""

import ast
from pathlib import Path

import pytest

import heatsolve
import heatsolve_post

ROOMS = {
    "errors": "",
    "report": "",
    "stencil": "",
    "backends": "stencil",
    "parallel": "stencil backends",
    "linear": "stencil parallel backends",
    "case": "stencil",
    "models": "stencil case linear parallel backends",
    "control": "stencil parallel models",
    "time": "stencil case linear parallel backends models control",
    "io": "stencil parallel control case",
    "budget": "stencil backends backends.registry parallel linear case models time",
    "outputs": "stencil case models time control io",
    "runner": "stencil backends backends.registry parallel linear case models time control io "
    "budget outputs",
    "tools": "stencil backends backends.registry parallel linear case models time control io "
    "budget outputs runner",
    "heatsolve_post": "io case",
}
"""The rooms, and which others the modules of each may import.

All may import `errors` and `report`. Of `backends` the others see the interface, which is the
package itself; `runner`, `budget` and `tools` choose a backend from its registry. `cli` and `api`
see all.
"""

OUTSIDE = {
    "mpi4py": "parallel",
    "h5py": "io",
    "PIL": "io.data",
    "trimesh": "io.data",
    "numba": "backends",
    "cupy": "backends",
    "cupyx": "backends",
    "cuda": "backends",
    "scipy": "linear.fft",
    "matplotlib": "heatsolve_post",
}
"""The room of each outside package: all others of this table's packages stay out of it."""


def modules():
    """The source files by their names."""
    found = {}
    for package in (heatsolve, heatsolve_post):
        root = Path(package.__file__).parent.parent
        for path in sorted(Path(package.__file__).parent.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(name):
    """All modules that one imports, wherever in its text."""
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def inside(name, room):
    """Whether a module, its name without the package's, stands in a room."""
    return name == room or name.startswith(room + ".")


def short(name):
    return name.removeprefix("heatsolve.")


def forbidden(name):
    """What a module imports of ours and may not."""
    room = next((room for room in ROOMS if inside(short(name), room)), None)
    if room is None:  # __init__, __main__, api, cli
        return set()
    allowed = {"errors", "report", "heatsolve", *ROOMS[room].split()}
    found = {short(n) for n in imports(name) if n in MODULES}
    return {n for n in found if not inside(n, room) and n not in allowed
            and not any(inside(n, other) for other in allowed - {"backends"})}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_downward(name):
    assert not forbidden(name)


@pytest.mark.parametrize("package", OUTSIDE)
def test_packages_have_their_rooms(package):
    users = {short(n) for n in MODULES if package in {i.split(".")[0] for i in imports(n)}}
    assert not {name for name in users if not inside(name, OUTSIDE[package])}
