"""The documentation: its code runs, its command lines are known, its links lead somewhere.

Blocks of `python` run page by page in one namespace, those of `sh` where they call heatsolve,
blocks of `toml` are cases. A comment before a block says that it is for a `gpu`, for `slurm`, takes
`long`, or is a `fragment`: then it is read and not run. `patched` needs the program with what the
`diff` block of the page changes in it. `output` is what the last command printed.
"""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from heatsolve.case import load as registry
from heatsolve.case.case import Case
from heatsolve.case.load import parse
from heatsolve.cli import app
from heatsolve.errors import CaseError, ExitCode

ROOT = Path(__file__).parent.parent
PAGES = {path.name: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
BLOCK = re.compile(
    r'^(?:<!-- (?P<mark>\w+) -->\n)?```(?P<kind>\w+)(?: title="(?P<title>[^"]+)")?\n'
    r"(?P<text>.*?)^```$",
    re.S | re.M,
)
UNREAD = ("gpu", "slurm", "long", "fragment")
"""Marks of what is read and not run."""
MARKS = (None, *UNREAD, "patched", "output")
MEASURED = re.compile(
    r"^(?:\[.* s\] |backend |compiling, once|.* more of compiling, once|.*LUP/s).*\n", re.M
)
"""Lines that differ from machine to machine and from run to run."""
LONG = ("tutorial.md", "extending.md", "output.md", "cases.md")
"""Pages whose code takes long: their runs are those that other tests make, or like them."""
RUN = re.compile(r"(heatsolve|mpiexec|python) ")


class Block(NamedTuple):
    kind: str
    mark: str | None
    title: str | None
    text: str


def blocks(page):
    found = BLOCK.finditer(PAGES[page].read_text())
    return [Block(m["kind"], m["mark"], m["title"], m["text"]) for m in found]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a page runs, with this Python's programs first, and no model of another page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "REGISTERED", {})
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return tmp_path


def patch(package, text):
    """Change a copy of the package as a `diff` says; what a hunk replaces is found by its text."""
    for change in text.split("+++ ")[1:]:
        name, *hunks = re.split(r"^@@\n", change, flags=re.M)
        path = package / name.strip()
        source = path.read_text()
        for hunk in hunks:
            lines = hunk.splitlines(keepends=True)
            old = "".join(line[1:] for line in lines if line[0] in " -")
            assert source.count(old) == 1, f"{path.name} has changed: {old}"
            source = source.replace(old, "".join(line[1:] for line in lines if line[0] in " +"))
        path.write_text(source)


@pytest.fixture
def package(tmp_path_factory):
    """A copy of the program to be patched: its two source roots and its cases."""
    copy = tmp_path_factory.mktemp("patched")
    for folder in ("solver", "postprocess", "cases"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def shell(text, path=None):
    """What the last line that calls the program prints; `path` is where another one may lie."""
    printed = ""
    surroundings = os.environ | (
        {"PYTHONPATH": f"{path}/solver:{path}/postprocess"} if path else {}
    )
    for line in filter(RUN.match, text.replace("\\\n", " ").splitlines()):
        done = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, timeout=300, env=surroundings
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        assert "is not drawn" not in done.stderr, f"{line}\n{done.stderr}"
        printed = done.stdout
    return printed


def agrees(printed, shown):
    """Whether it is what is shown, but for times and machines; `...` stands for anything."""
    printed, shown = (MEASURED.sub("", text).strip() for text in (printed, shown))
    return re.fullmatch(".*".join(map(re.escape, shown.split("..."))), printed, re.S)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.thorough if page in LONG else ()) for page in PAGES],
)
def test_the_code_of_a_page_runs(page, folder, package):
    """Block after block, as a reader would: one that is left out is missed by those behind it."""
    names, printed = {"__name__": "documentation"}, ""
    for block in blocks(page):
        assert block.mark in MARKS
        if block.title:
            (folder / block.title).write_text(block.text)
        path = package if block.mark == "patched" else None
        if block.mark in UNREAD:
            continue
        if block.kind == "python":
            exec(compile(block.text, page, "exec"), names)
        elif block.kind == "toml" and not path:
            parse(block.text, page)
        elif block.kind == "diff":
            patch(package, block.text)
        elif block.kind == "sh":
            printed = shell(block.text, path)
        elif block.mark == "output":
            assert agrees(printed, block.text), f"{page} shows\n{block.text}but it is\n{printed}"


@pytest.mark.parametrize("page", PAGES)
def test_command_lines_are_known(page):
    """Every line that calls heatsolve, run or not, has options that there are."""
    program = typer.main.get_command(app)
    for block in blocks(page):
        text = block.text.replace("\\\n", " ")
        for line in text.splitlines() if block.kind == "sh" else ():
            for part in line.split("&&"):
                words = shlex.split(part, comments=True)
                if "heatsolve" not in {Path(w).name for w in words}:
                    continue
                name, *given = words[[Path(w).name for w in words].index("heatsolve") + 1 :]
                command = program.get_command(None, name)
                assert command is not None, line
                command.make_context(name, given)


@pytest.mark.parametrize("page", PAGES)
def test_toml_is_valid(page):
    """Of a fragment of a case, too: what it lacks may be missing, but no key is unknown."""
    for block in blocks(page):
        if block.kind != "toml":
            continue
        table = tomllib.loads(block.text)
        assert table
        if block.mark == "fragment" and set(table) & set(Case.attributes()):
            with pytest.raises(CaseError) as refused:
                parse(block.text, page)
            sentences = str(refused.value).splitlines()
            assert all(": missing" in line for line in sentences), sentences


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = PAGES[page].read_text()
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (PAGES[page].parent / target).exists(), target


def test_the_readme_names_every_command():
    text = PAGES["README.md"].read_text()
    program = typer.main.get_command(app)
    assert not {name for name in program.commands if f"`heatsolve {name}" not in text}


def test_all_exit_codes_are_explained():
    """In a table that the help of the program names."""
    rows = re.findall(r"^\| (\d+) \| .+ \|$", PAGES["output.md"].read_text(), re.MULTILINE)
    assert [int(row) for row in rows] == [int(code) for code in ExitCode]
    said = " ".join(str(typer.main.get_command(app).help).split())
    assert 'see docs/output.md, "Exit codes"' in said
    assert all(f" {code} " in said for code in ExitCode if code != ExitCode.INTERNAL_ERROR)


def test_the_reference_is_that_of_the_sections():
    """As `python docs/reference.py` writes it now, with a meaning for every key."""
    text = runpy.run_path(str(ROOT / "docs" / "reference.py"))["reference"]()
    assert PAGES["reference.md"].read_text() == text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) > 90 and all(len(row) == 4 for row in rows)
    assert not [row for row in rows if len(row[3]) < 5 or not row[1].strip()]
    assert not re.findall(r"<class|typing|Annotated", text)
    for heading in ("[case]", "[model]", "[[initial.box]]", "[boundary.WALL.FIELD.robin]"):
        assert f"# `{heading}`" in text
    assert '| `periodic` | list of `"x"`, `"y"` or `"z"` |' in text
    assert "| `weight` | number > 0 and <= 2 | `1` |" in text
    assert '| `FIELD` | text | `"1"` | The unit of a field' in text


def test_examples_are_short():
    """What is shown to extend the program fits a screen or two."""
    for block in blocks("extending.md"):
        assert len(block.text.splitlines()) <= 60
    (model,) = [b for b in blocks("extending.md") if b.title == "gray_scott.py"]
    assert len(model.text.splitlines()) <= 40


def test_the_site_builds(tmp_path):
    pytest.importorskip("material", reason="the site needs heatsolve[docs]")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet",
         "-f", ROOT / "docs" / "site" / "mkdocs.yml", "-d", tmp_path / "site"],
        capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert all((tmp_path / "site" / page / "index.html").exists() for page in pages)
    # Nothing is fetched from elsewhere.
    html = (tmp_path / "site" / "tutorial" / "index.html").read_text()
    assert not re.findall(r'(?:src|href)="https?://(?!squidfunk)[^"]+\.(?:js|css|woff2?)', html)


def test_the_site_names_every_page():
    listed = re.findall(r"[\w-]+\.md", (ROOT / "docs" / "site" / "mkdocs.yml").read_text())
    assert sorted(listed) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_the_picture_of_the_house():
    """`python docs/house.py` draws it anew where the imports have changed."""
    picture = runpy.run_path(str(ROOT / "docs" / "house.py"))["draw"]()
    assert (ROOT / "docs" / "house.svg").read_text() == picture
