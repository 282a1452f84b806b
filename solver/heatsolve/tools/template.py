"""A commented case file to start from: the answer of `heatsolve new`."""

import re
from pathlib import Path

from heatsolve.case.load import parse, read
from heatsolve.errors import InputError
from heatsolve.io.disk import write_text
from heatsolve.stencil.expressions import quoted

STARTER = Path(__file__).with_name("starter.toml").read_text("utf-8")


def write_starter(name: str) -> Path:
    """Write NAME.toml, a case to start from, in the current directory and return its path.

    Raises InputError for a name that is no plain file name and for a file that is there already,
    FileFailure when it cannot be written.
    """
    path = _path_for(name)
    return _write(path, STARTER.replace("NAME", path.stem))


def write_copy(source: str, name: str | None = None) -> Path:
    """Write a copy of a case, by default under its own name, and return its path.

    Raises as `write_starter`, and as `case.load` for a text that is no case.
    """
    result = read(source)
    parse(result.text, result.name)
    return _write(_path_for(name or Path(source).stem), result.text)


def _path_for(name: str) -> Path:
    if not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
        raise InputError(
            f"{quoted(name)} is no name for a case: write letters, digits, _, - and ., "
            "a letter, digit or _ first"
        )
    return Path(f"{name.removesuffix('.toml')}.toml")


def _write(path: Path, text: str) -> Path:
    try:
        write_text(path, text, new=True)
    except FileExistsError:
        raise InputError(f"{path} exists already, and is not overwritten") from None
    return path
