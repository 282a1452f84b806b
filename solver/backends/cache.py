"""The folder in which generated and compiled code is kept from run to run.

Files are named by the digest of all that they depend on, and put in place by one rename, so that
any number of processes can start at once. Existing files are left alone.
"""

import hashlib
import os
import tempfile
from pathlib import Path


def wanted() -> Path:
    """HEATSOLVE_CACHE, or a folder in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("HEATSOLVE_CACHE") or Path(base) / "heatsolve")


def folder() -> Path:
    """The wanted one, or a temporary one where that is read-only."""
    found = wanted()
    try:
        found.mkdir(parents=True, exist_ok=True)
        if os.access(found, os.W_OK):
            return found
    except OSError:
        pass
    temporary = Path(tempfile.gettempdir()) / f"heatsolve-{os.getuid()}"
    temporary.mkdir(mode=0o700, exist_ok=True)
    return temporary


def digest(*parts: object) -> str:
    """A name for what depends on these parts alone."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:24]


def store(path: Path, content: bytes) -> None:
    """Write a file that other processes may be writing or reading now."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.replace(temporary, path)
