"""The folder in which compiled code is kept from run to run.

Files are named by the digest of all that they depend on, and put in place by one rename, so that
any number of processes can start at once. Each begins with the checksum of the rest: one that is
damaged is removed, and what it held is made anew. Where no folder can be used nothing is kept.
"""

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_troubles: list[str] = []
"""Why something could not be kept."""


def wanted() -> Path | None:
    """HEATSOLVE_CACHE, or a folder in the user's cache folder; None for a user without a home."""
    named, base = os.environ.get("HEATSOLVE_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if named:
        return Path(named)
    try:
        return Path(base or Path.home() / ".cache") / "heatsolve"
    except RuntimeError:
        return None


def folder() -> Path | None:
    """The wanted one, or one of our own among the temporary files; None where neither works."""
    found = wanted()
    with suppress(OSError):
        if found is not None:
            found.mkdir(parents=True, exist_ok=True)
            if os.access(found, os.W_OK):
                return found
    return temporary()


def temporary() -> Path | None:
    """A folder among the temporary files: only if no other user can have put anything there, for
    what lies in it is run.
    """
    with suppress(OSError):
        found = Path(tempfile.gettempdir()) / f"heatsolve-{os.getuid()}"
        found.mkdir(mode=0o700, exist_ok=True)
        status = found.lstat()
        private = stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o700
        if private and status.st_uid == os.getuid():
            return found
    return None


def trouble() -> str:
    """What to say where this process could not keep something; nothing where it could."""
    if not _troubles:
        return ""
    return (
        f"compiled code is not kept from run to run ({_troubles[0]}): "
        "set HEATSOLVE_CACHE to a folder of your own"
    )


def digest(*parts: object) -> str:
    """A name for what depends on these parts alone."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:24]


def kept(name: str, make: Callable[[], bytes]) -> bytes:
    """What `make` gives: from the file of this name, or made, and kept there for the next run."""
    content = read(name)
    if content is None:
        content = make()
        write(name, content)
    return content


def read(name: str) -> bytes | None:
    """The content of a file; None where there is none, or it is not what was written."""
    where = folder()
    if where is None:
        return None
    path = where / name
    with suppress(OSError):
        data = path.read_bytes()
        content = data[hashlib.sha256().digest_size :]
        if data == _sealed(content):
            return content
        path.unlink()
    return None


def write(name: str, content: bytes) -> None:
    """Keep a file, if that is possible: a run goes on without."""
    where = folder()
    if where is None:
        _troubles.append("there is no folder that can be written")
        return
    try:
        store(where / name, _sealed(content))
    except OSError as error:
        _troubles.append(f"{where}: {error.strerror}")


def store(path: Path, content: bytes) -> None:
    """Write a file that other processes may be writing or reading now. Raises OSError."""
    handle, aside = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(aside, path)
    except OSError:
        os.unlink(aside)
        raise


def _sealed(content: bytes) -> bytes:
    return hashlib.sha256(content).digest() + content
