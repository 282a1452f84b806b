"""The folders of checkpoints: their names, and how one goes so that no half of it looks whole.

What is not ours in them is never removed.
"""

import re
import secrets
from contextlib import suppress
from pathlib import Path

from heatsolve.io.disk import failing, sync

COMPLETE = re.compile(r"(\d{12,})(\.new)?")
"""A checkpoint; `.new` is one that replaces another of its number."""
ASIDE = re.compile(r"\.\d{12,}(\.new)?\.[0-9a-f]{8}")
"""What is being written or removed."""
OURS = re.compile(r"manifest\.json|part-\d{4,}\.h5")


def folders(where: Path, pattern: re.Pattern[str]) -> list[Path]:
    """The folders in a folder whose names have this pattern. Raises FileFailure."""
    if not where.is_dir():
        return []
    with failing("read", where):
        named = [path for path in where.iterdir() if pattern.fullmatch(path.name)]
    return [path for path in named if path.is_dir() and not path.is_symlink()]


def number_of(path: Path) -> int:
    """Iterations or steps of a checkpoint."""
    return int(path.name.removesuffix(".new"))


def hidden(path: Path) -> Path:
    """A name of its own for a checkpoint while it is written or removed."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def replace(newer: Path) -> None:
    """Let a `.new` checkpoint take the place of the other of its number: it is valid meanwhile.

    Raises OSError, as the next two.
    """
    place = newer.with_suffix("")
    if place.exists():
        remove(place)
    newer.rename(place)
    sync(place.parent)


def remove(path: Path) -> None:
    """Remove a checkpoint: out of the way first, so that none which is half removed looks whole."""
    delete(path.rename(hidden(path)), path)


def delete(aside: Path, path: Path | None = None) -> None:
    """Delete our files in a folder, and it; if there are others in it, it goes back to `path`."""
    for file in aside.iterdir():
        if OURS.fullmatch(file.name):
            file.unlink()
    with suppress(OSError):
        aside.rmdir()
    if path is not None and aside.exists():
        aside.rename(path)
