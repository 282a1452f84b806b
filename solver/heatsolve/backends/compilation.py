"""The cache of compiled code, kept from run to run, and the time of compilation.

A file in the cache folder is named by the digest of everything that it depends on, and put in place
by one rename, so that any number of processes can start at once. It begins with the checksum of its
rest: a damaged file is removed, and its content is compiled again. Where no folder can be used, no
code is kept.
"""

import gc
import hashlib
import os
import random
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from heatsolve.backends.machine import cores

_troubles: list[str] = []
"""The reasons why files could not be kept."""


def wanted_folder() -> Path | None:
    """HEATSOLVE_CACHE, or a folder in the user's cache folder; None for a user without a home."""
    named, base = os.environ.get("HEATSOLVE_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if named:
        return Path(named)
    try:
        return Path(base or Path.home() / ".cache") / "heatsolve"
    except RuntimeError:
        return None


def cache_folder() -> Path | None:
    """The wanted folder, or a private temporary folder; None where neither can be used."""
    folder = wanted_folder()
    with suppress(OSError):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    return temporary()


def temporary() -> Path | None:
    """A private folder among the temporary files; None where another user may have put files into
    it, because code in it is run.
    """
    with suppress(OSError):
        folder = Path(tempfile.gettempdir()) / f"heatsolve-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        private = stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o700
        if private and status.st_uid == os.getuid():
            return folder
    return None


def trouble() -> str:
    """The warning if this process could not keep compiled code; "" if it could."""
    if not _troubles:
        return ""
    return (
        f"compiled code is not kept from run to run ({_troubles[0]}): "
        "set HEATSOLVE_CACHE to a folder of your own"
    )


def digest(*parts: object) -> str:
    """A name for content that depends on these parts alone."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:24]


def load_or_make(name: str, make: Callable[[], bytes]) -> bytes:
    """The result of `make`: from the file of this name, or made now and kept for the next run."""
    content = read(name)
    if content is None:
        content = make()
        write(name, content)
    return content


def load_or_make_all(
    in_threads: Mapping[str, Callable[[], bytes]], here: Mapping[str, Callable[[], bytes]]
) -> dict[str, bytes]:
    """The results of several `load_or_make`, some of them by a thread for each core.

    Processes that start together share the work: each goes through the files in an order of its
    own, and looks for each once more before it makes it.
    """
    order = random.Random(os.getpid())

    def mixed(files: Mapping[str, Callable[[], bytes]]) -> list[tuple[str, Callable[[], bytes]]]:
        return order.sample(list(files.items()), len(files))

    pool = ThreadPoolExecutor(len(cores()))
    coming: dict[str, Future[bytes]] = {}
    try:
        with suppress(RuntimeError):  # there may be too many threads
            for name, make in mixed(in_threads):
                coming[name] = pool.submit(load_or_make, name, make)
        left = {name: make for name, make in in_threads.items() if name not in coming}
        made = {name: load_or_make(name, make) for name, make in mixed({**here, **left})}
        return made | {name: future.result() for name, future in coming.items()}
    finally:
        pool.shutdown(cancel_futures=True)


def read(name: str) -> bytes | None:
    """The content of a file; None if there is none, or if it is damaged."""
    where = cache_folder()
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
    """Keep a file, if possible; a run goes on without it."""
    where = cache_folder()
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


# ---- time: no part of solving ------------------------------------------------------------------


class Watch:
    """Notices when compilation begins and ends; nested compilations count as one.

    `begun()` is called when compilation begins, `ended(seconds)` when it has ended. In between
    Python collects no garbage: a compiler makes millions of objects that stay, and to look through
    them again and again took an eighth of its time.
    """

    def __init__(self) -> None:
        self.begun: Callable[[], None] = _ignore
        self.ended: Callable[[float], None] = _ignore
        self._depth, self._since, self._collects = 0, 0.0, True

    def begin(self) -> None:
        if not self._depth:
            self._since, self._collects = time.perf_counter(), gc.isenabled()
            gc.disable()
            self.begun()
        self._depth += 1

    def end(self) -> None:
        self._depth -= 1
        if not self._depth:
            if self._collects:
                gc.enable()
            self.ended(time.perf_counter() - self._since)


def _ignore(*_: Any) -> None:
    """The default of `begun` and `ended`: do nothing."""


WATCH = Watch()


@contextmanager
def compiling() -> Iterator[None]:
    """A context for every call of a compiler, which tells `WATCH`."""
    WATCH.begin()
    try:
        yield
    finally:
        WATCH.end()


@contextmanager
def watched(begun: Callable[[], None], ended: Callable[[float], None]) -> Iterator[None]:
    """A context in which `WATCH` calls these functions for each compilation."""
    before = WATCH.begun, WATCH.ended
    WATCH.begun, WATCH.ended = begun, ended
    try:
        yield
    finally:
        WATCH.begun, WATCH.ended = before
