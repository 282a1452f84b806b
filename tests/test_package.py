"""The distribution: its folders, the files in a wheel and an sdist, and every way to install it."""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
ROOTS = {"heatsolve": "solver", "heatsolve_post": "postprocess"}
CASES = {path.name for path in (HERE / "cases").glob("*.toml")}
DATA = {
    "heatsolve_post/page.html", "heatsolve/py.typed", "heatsolve_post/py.typed",
    "heatsolve/tools/starter.toml",
}  # fmt: skip
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def test_every_folder_is_a_package():
    found = {"heatsolve.cases"}
    for name, root in ROOTS.items():
        for pattern in ("__init__.py", "*.cuh"):  # a folder of kernels is one, too
            for file in (HERE / root / name).rglob(pattern):
                found.add(".".join(file.parent.relative_to(HERE / root).parts))
    told = tomllib.loads((HERE / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert len(told) == len(set(told)) and set(told) == found


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of all that makes the distribution, as building writes beside it."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("solver", "postprocess", "cases"):
        shutil.copytree(
            HERE / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(HERE / name, folder)
    return folder


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A folder of links to all packages that this Python sees but heatsolve."""
    folder = tmp_path_factory.mktemp("packages")
    for place in map(Path, sys.path):
        for entry in place.iterdir() if place.name == "site-packages" else ():
            ours = entry.name.startswith(("heatsolve", "__editable__", "__pycache__"))
            if not ours and entry.suffix != ".pth" and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture
def python(packages, tmp_path):
    """The Python of an environment of its own, which sees the packages of this one."""
    venv.create(tmp_path / "venv", symlinks=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "others.pth").write_text(f"{packages}\n")
    return tmp_path / "venv" / "bin" / "python"


def output_of(*command, cwd, **environment):
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=ENVIRONMENT | environment,
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(checkout, folder, kind):
    code = f"import setuptools.build_meta as made; print(made.build_{kind}({str(folder)!r}))"
    return folder / output_of(sys.executable, "-c", code, cwd=checkout).splitlines()[-1]


def sources():
    """All files of the packages, by their paths in a wheel."""
    found = {f"heatsolve/cases/{name}" for name in CASES}
    for name, root in ROOTS.items():
        for path in (HERE / root / name).rglob("*"):
            if path.is_file() and path.suffix != ".pyc" and path.name[0] != ".":
                found.add(path.relative_to(HERE / root).as_posix())
    return found


def test_a_wheel_has_all_files(checkout, tmp_path):
    names = zipfile.ZipFile(build(checkout, tmp_path, "wheel")).namelist()
    held = {name for name in names if ".dist-info/" not in name}
    assert held - {"heatsolve/cases/__init__.py"} == sources() and held >= DATA


def test_an_sdist_has_all_files(checkout, tmp_path):
    with tarfile.open(build(checkout, tmp_path, "sdist")) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    wanted = {f"cases/{name}" for name in CASES}
    for name in sources():
        if not name.startswith("heatsolve/cases/"):
            wanted.add(f"{ROOTS[name.partition('/')[0]]}/{name}")
    assert wanted <= names


@pytest.mark.few(1)
@pytest.mark.parametrize("way", ["wheel", "lenient", "strict", "checkout"])
def test_every_way_to_install_it_finds_the_cases(way, checkout, python, tmp_path):
    """And runs one, from a folder elsewhere."""
    elsewhere, told = tmp_path / "elsewhere", {}
    elsewhere.mkdir()
    if way == "checkout":
        told["PYTHONPATH"] = os.pathsep.join(str(checkout / root) for root in ROOTS.values())
    else:
        chosen = [build(checkout, tmp_path, "wheel")] if way == "wheel" else ["-e", checkout]
        if way == "strict":
            chosen += ["--config-settings", "editable_mode=strict"]
        output_of(
            python, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation",
            "--disable-pip-version-check", *chosen, cwd=elsewhere,
        )  # fmt: skip
    place = "import heatsolve, pathlib; print(pathlib.Path(heatsolve.__file__).resolve())"
    found = Path(output_of(python, "-c", place, cwd=elsewhere, **told).strip())
    expected = checkout if way in ("lenient", "checkout") else tmp_path if way == "wheel" else None
    assert expected is None or found.is_relative_to(expected.resolve())
    programs = [[python, "-m", "heatsolve"]]
    if way != "checkout":
        programs.append([python.with_name("heatsolve")])
    for program in programs:
        listed = output_of(*program, "cases", cwd=elsewhere, **told)
        assert all(name.removesuffix(".toml") in listed for name in CASES)
    output_of(
        *programs[-1], "run", "hotspot", "--backend", "numpy", "--quiet",
        "--set", "solver.iterations=3", cwd=elsewhere, **told,
    )  # fmt: skip
    assert (elsewhere / "hotspot.h5").stat().st_size
