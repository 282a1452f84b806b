"""Results and checkpoints from strangers: damaged, forged, or made to do harm."""

import ast
import faulthandler
import io
import json
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import time
import zlib
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
from test_restart import MARCH, STEADY

import heatsolve_post
from heatsolve import cli
from heatsolve.case.load import parse
from heatsolve.errors import FileFailure
from heatsolve.io import layout
from heatsolve.io.checkpoints import MANIFEST, checksum_of
from heatsolve.io.reader import read
from heatsolve.parallel import ranks
from heatsolve.runner import run
from heatsolve.tools.scaling import Study

SOLVER = Path(cli.__file__).parent
SOURCES = [*SOLVER.rglob("*.py"), *Path(heatsolve_post.__file__).parent.rglob("*.py")]


def program(monkeypatch, *arguments):
    """The program, in this process: its exit code and what it said of a failure."""
    monkeypatch.setattr(sys, "argv", ["heatsolve", *map(str, arguments)])
    said = io.StringIO()
    code = 0
    with redirect_stdout(io.StringIO()), redirect_stderr(said):
        try:
            cli.main()
        except SystemExit as leaving:
            code = leaving.code or 0
    return code, said.getvalue()


# ---- results -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A steady file and a march."""
    folder = tmp_path_factory.mktemp("results")
    run(parse(STEADY, "steady"), "numpy", folder / "steady.h5")
    march = parse(MARCH, "march", ["time.end=0.004", "output.probes=[[0.5, 0.5]]"])
    run(march, "numpy", folder / "march.h5")
    return {"steady": folder / "steady.h5", "march": folder / "march.h5"}


@pytest.fixture
def copies(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, path in files.items():
        Path(f"{name}.h5").write_bytes(path.read_bytes())
    return tmp_path


def spoil(data, choose):
    """The bytes of a file with some of them changed, or cut short."""
    data = bytearray(data)
    if choose.randrange(6) == 0:
        return data[: choose.randrange(len(data))]
    for _ in range(choose.choice([1, 1, 2, 8])):
        at = choose.randrange(len(data))
        while not data[at] and choose.random() < 0.9:  # most bytes are zeros, and of no use
            at = choose.randrange(len(data))
        data[at] = choose.choice([data[at] ^ 1 << choose.randrange(8), 0, 255, 127, 128])
    return data


READERS = [("info",), ("compare", "march.h5"), ("compare", "--tolerance", "1e-3", "march.h5"),
           ("gather", "--output", "g.h5")]  # fmt: skip


@pytest.mark.thorough
def test_damaged_bytes(copies, monkeypatch):
    """No crash, no traceback and no endless loop, whatever byte is wrong; the file is only read."""
    good, choose = Path("march.h5").read_bytes(), random.Random(1)
    codes = {}
    for number in range(30):
        bad = spoil(good, choose)
        Path("bad.h5").write_bytes(bad)
        for command in (*READERS, *[("plot",), ("animate",)] * (number % 15 == 0)):
            code, said = program(monkeypatch, command[0], "bad.h5", *command[1:])
            assert code in (0, 2, 5, 6), (number, command, code, said)
            assert said.count("\n") == (code in (2, 6)), said
            assert Path("bad.h5").read_bytes() == bad
            codes[code] = codes.get(code, 0) + 1
    assert codes[6] > 50
    assert codes[0] > 5


def elsewhere(file, name):
    shape = file[name].shape
    del file[name]
    file.create_dataset(name, shape, "f8", external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])


def itself(file, name):
    shape = file[name].shape
    del file[name]
    layout = h5py.VirtualLayout(shape, "f8")
    layout[:] = h5py.VirtualSource(".", name, shape)
    file.create_virtual_dataset(name, layout)


def replaced(value):
    def replace(file, name):
        del file[name]
        file[name] = value(file) if callable(value) else value

    return replace


def sparse(file, name):
    shape = (2**40,) * file[name].ndim
    del file[name]
    file.create_dataset(name, shape, "f8", chunks=(8,) * len(shape))


HARMS = {
    "elsewhere": elsewhere,
    "itself": itself,
    "enormous": sparse,
    "removed": lambda file, name: file.pop(name),
    "a group": lambda file, name: (file.pop(name), file.create_group(name)),
    "a loop": replaced(lambda file: file["/"]),
    "a soft link": replaced(h5py.SoftLink("/y")),
    "a link to nowhere": replaced(h5py.SoftLink("/nowhere")),
    "another file": replaced(h5py.ExternalLink("steady.h5", "/temperature")),
    "text": replaced("text"),
    "nothing": replaced(h5py.Empty("f8")),
    "a number": replaced(1.0),
    "complex": replaced(np.ones((20, 24), complex)),
    "references": replaced(lambda file: np.array([file.ref] * 24, h5py.ref_dtype)),
    "a pickle": replaced(np.void(pickle.dumps(print))),
    "a compound": replaced(np.zeros(24, [("a", "f8"), ("b", "i4")])),
    "another shape": replaced(np.ones((3, 2))),
    "no unit": lambda file, name: file[name].attrs.pop("units"),
    "an odd unit": lambda file, name: file[name].attrs.create("units", [1.0, 2.0]),
}


@pytest.mark.few(12)
@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", ["temperature", "x", "history/residual"])
def test_harm_is_told(harm, name, copies, monkeypatch):
    """In a sentence, by every command that reads; nothing is shown of another file."""
    with h5py.File("steady.h5", "r+") as file:
        HARMS[harm](file, name)
    before = Path("steady.h5").read_bytes()
    for command in (("info",), ("plot",), ("compare", "steady.h5"), ("gather", "--output", "g.h5")):
        code, said = program(monkeypatch, command[0], "steady.h5", *command[1:])
        if code == 0:  # a history without residuals is one
            assert (harm, name) == ("removed", "history/residual")
            continue
        assert code == 6
        assert re.fullmatch(r"heatsolve: .*steady\.h5.*\n", said)
        assert Path("steady.h5").read_bytes() == before
        assert not Path("g.h5").exists()


@pytest.mark.thorough
def test_attributes_are_numbers_or_texts(copies, monkeypatch):
    """A known one that is not is told, by its name; and those of a run are all known."""
    for path in copies.glob("*.h5"):
        with h5py.File(path) as file:
            assert set(file.attrs) <= layout.TEXTS | layout.MEASURES
            good = dict(file.attrs)
    wrong = [None, "many", b"many", [1.0, 2.0], 1j, np.void(pickle.dumps(print)), h5py.Empty("f8")]
    for name, given in good.items():
        for value in wrong if name not in layout.TEXTS else [*wrong[3:], 1.5]:
            with h5py.File("march.h5", "r+") as file:
                file.attrs[name] = value if value is not None else file.ref
            with pytest.raises(FileFailure, match=rf"march\.h5 is damaged: '{name}' is an attr"):
                read(Path("march.h5"), fields=())
        with h5py.File("march.h5", "r+") as file:
            file.attrs[name] = [given]  # as netCDF has it
        assert read(Path("march.h5"), fields=()).attributes[name] == given
    code, said = program(monkeypatch, "info", "march.h5")
    assert (code, said) == (0, "")


@pytest.mark.parametrize("value", ["x" * (9 << 20), np.bytes_(b"x" * (9 << 20)), np.ones(2 << 20)])
@pytest.mark.parametrize("name", ["case", "more"])
def test_an_enormous_attribute(value, name, copies, monkeypatch):
    with h5py.File("steady.h5", "r+", libver="latest") as file:
        file.attrs[name] = value
    code, said = program(monkeypatch, "info", "steady.h5")
    size = 16 if isinstance(value, np.ndarray) else 9
    assert (code, said) == (
        6, f"heatsolve: steady.h5 is damaged: '{name}' is an attribute of {size} MiB\n"
    )  # fmt: skip


CASES = {
    "nested lists": f"a = {'[' * 5000}{']' * 5000}\n",
    "nested tables": f"a = {'{b = ' * 5000}1{'}' * 5000}\n",
    "brackets that stay open": "a = [\n" * 5000,
    "a key of many parts": f"{'a.' * 200_000}a = 1\n",
    "a text of many lines": "a = '''\n" + "line\n" * 200_000 + "'''\n",
    "a list of many lines": "a = [\n" + "1,\n" * 200_000 + "]\n",
    "many keys": "".join(f"a{n} = 1\n" for n in range(20_000)),
}


@pytest.mark.few(2, among="nested")
@pytest.mark.parametrize("kind", CASES)
def test_a_case_that_takes_forever(kind, copies, monkeypatch):
    """To read, or to find the line of its mistakes in: in a file of results, and as a case."""
    text = STEADY + "[case]\ntitle = 'A'\n[more]\n" + CASES[kind]
    with h5py.File("steady.h5", "r+", libver="latest") as file:
        file.attrs["case"] = text
    for command in ("info", "plot"):
        code, said = program(monkeypatch, command, "steady.h5")
        assert (code, said) == (0, "")
    Path("case.toml").write_text(text)
    code, said = program(monkeypatch, "run", "case.toml")
    assert code == 2
    assert said.startswith("case.toml")
    assert max(map(len, said.split("\n"))) < 200


@pytest.mark.thorough
def test_long_and_odd_words(copies, monkeypatch):
    """Titles, units and names of 200,000 letters, or with what would move a terminal."""
    for word in ("letter " * 30_000, "l" * 200_000, "\x1b[31mred\x07\u202e"):
        text = STEADY + f"[case]\ntitle = {json.dumps(word)}\n"
        with h5py.File("steady.h5", "r+", libver="latest") as file:
            file.attrs["case"], file.attrs[word[:60000]] = text, word
            file["temperature"].attrs["units"] = file["x"].attrs["units"] = word
        for command in (
            ("info",),
            ("plot",),
            ("plot", "--slice", "x=0.5"),
            ("compare", "steady.h5"),
        ):
            printed = io.StringIO()
            monkeypatch.setattr(sys, "argv", ["heatsolve", command[0], "steady.h5", *command[1:]])
            with redirect_stdout(printed), suppress(SystemExit):
                cli.main()
            said = printed.getvalue()
            assert max(map(len, said.split("\n"))) < 1000
            assert said.replace("\n", "").isprintable()
        code, said = program(monkeypatch, "plot", "steady.h5", "--field", word)
        assert (code, said.count("\n"), said[:-1].isprintable()) == (2, 1, True)
        with h5py.File("march.h5", "r+") as file:
            file.copy("temperature", word)
        code, said = program(monkeypatch, "info", "march.h5")
        assert code == 6
        assert re.fullmatch(
            r"heatsolve: march\.h5 is damaged: .{3,110} is not a name of ours\n", said
        )
        with h5py.File("march.h5", "r+") as file:
            del file[word]


@pytest.mark.parametrize(
    ("axis", "value"), [("x", 0.0), ("x", np.nan), ("y", np.inf), ("time", np.nan)]
)
def test_axes_ascend(axis, value, copies, monkeypatch):
    with h5py.File("march.h5", "r+") as file:
        file[axis][1:] = value
    for command in ("info", "plot", "animate"):
        code, said = program(monkeypatch, command, "march.h5")
        assert (code, said) == (6, f"heatsolve: march.h5 is damaged: {axis!r} is no axis\n")


@pytest.mark.parametrize(
    "target", ["../march.h5", "/etc/passwd", "march.h5", "deep/er/0123abcd-0000-0000.h5", "."]
)
def test_parts_lie_where_parts_do(target, copies):
    with h5py.File("steady.h5", "r+") as file:
        shape = file["temperature"].shape
        del file["temperature"]
        layout = h5py.VirtualLayout(shape, "f8")
        layout[:] = h5py.VirtualSource(target, "temperature", shape)
        file.create_virtual_dataset("temperature", layout).attrs["units"] = "1"
    with pytest.raises(FileFailure, match="is not the name of a part"):
        read(Path("steady.h5"))


def test_a_file_on_which_the_library_crashes(monkeypatch):
    """Or loops: it is tried in a process of its own, and this one goes on."""

    def forever():
        while True:
            time.sleep(0.1)

    def quietly(look):
        faulthandler.disable()  # pytest's tale of the crash would look like a failed test
        look()

    monkeypatch.setattr(layout, "PATIENCE", 1)
    for look in (os.abort, lambda: os.kill(os.getpid(), signal.SIGSEGV), forever):
        with pytest.raises(FileFailure, match=r"a\.h5 is damaged: the HDF5 library fails on it"):
            layout.survives(Path("a.h5"), partial(quietly, look))
    layout.survives(Path("a.h5"), lambda: 1 / 0)  # which is raised where it is done in earnest


def test_reading_changes_nothing(copies, monkeypatch):
    """Neither bytes nor times, and nothing in a file is run: a pickle stays bytes."""
    owned = Path("owned")

    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(owned),)

    with h5py.File("march.h5", "r+") as file:
        file.attrs["more"] = np.void(pickle.dumps(Harm()))
        file["temperature"].attrs["more"] = np.void(pickle.dumps(Harm()))
    for path in copies.iterdir():
        path.chmod(0o444)
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in copies.iterdir()}
    for command in (("info",), ("plot", "--output", "a.png"), ("animate", "--output", "a.gif"),
                    ("compare", "march.h5"), ("gather", "--output", "g.h5")):  # fmt: skip
        code, said = program(monkeypatch, command[0], "march.h5", *command[1:])
        assert (code, said) == (0, ""), (command, said)
    assert {name: (Path(name).read_bytes(), Path(name).stat().st_mtime_ns) for name in before} == (
        before
    )
    assert not owned.exists()


def calls():
    """All calls in our sources: what is called, and the call."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield path.name, ast.unparse(node.func), node


def test_files_are_opened_to_be_read():
    """What writes is the field file, and the part of a checkpoint."""
    modes = {(name, ast.literal_eval(node.args[1])) for name, called, node in calls()
             if called == "h5py.File"}  # fmt: skip
    assert {name for name, mode in modes if mode != "r"} == {"writer.py", "checkpoints.py"}
    assert {("reader.py", "r"), ("subfiles.py", "r"), ("checkpoints.py", "r")} <= modes


def test_nothing_is_evaluated_or_unpickled():
    found = {called for _, called, _ in calls()}
    assert not found & {"eval", "__import__", "np.load", "os.system", "os.popen"}
    # Loops that the program itself generates.
    generated = {"numba_cuda.py", "numba.py"}
    assert {name for name, called, _ in calls() if called == "exec"} == generated
    unpickling = re.compile(r"^\s*(import|from) (pickle|marshal|shelve|dill|yaml)", re.M)
    # Machine code of its own cache folder, which is trusted as a program is.
    own = {"numba_loops.py"}
    assert {path.name for path in SOURCES if unpickling.search(path.read_text())} == own


# ---- the current folder ------------------------------------------------------------------------

POISON = "with open('owned', 'a') as file:\n    print(__name__, file=file)\nraise ImportError\n"


@pytest.fixture
def poisoned(copies):
    """A folder with results, and with modules that would be imported in place of the real ones."""
    for name in ("numpy", "h5py", "mpi4py", "typer", "signal", "secrets", "matplotlib", "rich"):
        Path(f"{name}.py").write_text(POISON)
    Path("case.toml").write_text(STEADY)
    return copies


@pytest.mark.parametrize(
    "command",
    ["plot march.h5", "submit case.toml --time 4:00:00 --dry-run"],
)
def test_nothing_of_the_current_folder_is_imported(poisoned, command):
    """By the program, or by a Python that it starts."""
    given = [sys.executable, "-m", "heatsolve", *command.split()]
    done = subprocess.run(given, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not Path("owned").exists()


def test_every_python_is_started_in_one_way(poisoned):
    """Those of studies and of scripts, too."""
    study = Study("weak", "case.toml", None, None, (), Path())
    done = subprocess.run(study.command(1), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    ranks.mpi_library()
    assert not Path("owned").exists()
    used = [p.name for p in SOURCES if re.search(r"[\[(*]sys\.executable\b(?!\))", p.read_text())]
    assert used == ["ranks.py"]


# ---- checkpoints -------------------------------------------------------------------------------


def reseal(folder, change):
    """Change the manifest of a checkpoint, and give it a seal that fits."""
    path = folder / MANIFEST
    content = json.loads(path.read_bytes().partition(b"\n")[2][:-2])
    part = folder / "part-0000.h5"
    change(content, part)
    size, checksum = checksum_of(part)
    for about in content.get("parts", [])[:1]:
        about |= {"bytes": size, "crc32": checksum}
    data = json.dumps(content).encode()
    path.write_bytes(b'{"crc32": %d, "content":\n%s}\n' % (zlib.crc32(data), data))


def in_part(harm):
    def change(_, part):
        with h5py.File(part, "r+") as file:
            HARMS[harm](file, "fields/u")

    return change


FORGED = {
    "no parts": lambda content, _: content.pop("parts"),
    "a shape of words": lambda content, _: content.update(shape="ab"),
    "objects": lambda content, _: content["fields"].update(u="|O"),
    "a part elsewhere": lambda content, _: content["parts"].append(
        {"name": "../../x.h5", "window": [[0, 1], [0, 1]], "bytes": 1, "crc32": 1}
    ),
    "a window of one number": lambda content, _: content["parts"][0].update(window=[1]),
    "no case": lambda content, _: content["record"].pop("case"),
    "a list for a record": lambda content, _: content.update(record=[]),
    **{
        harm: in_part(harm)
        for harm in (
            "elsewhere",
            "itself",
            "a loop",
            "another file",
            "text",
            "references",
            "a pickle",
            "another shape",
        )
    },
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_checkpoint(kind, files, tmp_path, monkeypatch):
    """With a seal that fits: it is refused in a sentence, and never shows another file."""
    monkeypatch.chdir(tmp_path)
    text = STEADY + '[parallel]\nbackend = "numpy"\n'
    Path("case.toml").write_text(text)
    run(parse(text, "case"), None, Path("case.h5"))
    newest = max(Path("case.checkpoints").iterdir())
    reseal(newest, FORGED[kind])
    code, said = program(monkeypatch, "run", "case.toml", "--restart-from", newest)
    assert (code, said.count("\n")) == (6, 1), said
    code, said = program(monkeypatch, "run", "case.toml", "--restart")  # from the one before
    assert (code, said.count("heatsolve: warning: ")) == (0, 1), said
