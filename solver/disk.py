"""Files that are written whole or not at all: what output and checkpoints share.

Nothing here knows what the files hold.
"""

import errno
import fcntl
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from heatsolve.errors import FileFailure

RESERVED_FROM = 1 << 20
"""Bytes of a write for which the place on the disk is reserved before."""


def write_text(path: Path, text: str) -> None:
    """Write a small text. Raises FileFailure."""
    try:
        path.write_text(text)
    except OSError as error:
        raise FileFailure(f"cannot write {path}: {error.strerror}") from None


class Disk(io.FileIO):
    """What HDF5 writes to. It must not see a failure: its close would then crash the process."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        rest = memoryview(data)
        try:
            if len(rest) >= RESERVED_FROM:
                reserve(self.fileno(), self.tell(), len(rest))
            while rest:  # the system takes at most 2 GiB at a time
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.error = error
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = error
            return self.tell()

    def check(self) -> None:
        if self.error:
            raise self.error


@contextmanager
def failing(verb: str, path: Path) -> Iterator[None]:
    """Make one sentence of what the system or h5py raises, whose long text buries the cause."""
    try:
        yield
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        buried = re.search(r"errno = (\d+)", str(error))
        reason = re.search(r"\((.*)\)", str(error))
        number = int(buried[1]) if buried else getattr(error, "errno", None)
        cause = os.strerror(number) if number else reason[1] if reason else str(error)
        if number == errno.EAGAIN:
            cause = "another program has it locked"
        elif not path.parent.is_dir():
            cause = f"{path.parent} is not a directory"
        raise FileFailure(f"cannot {verb} {path}: {cause}") from error


@contextmanager
def reserved(path: Path) -> Iterator[None]:
    """Be the only one who writes a file, for the time of the context.

    That holds a lock beside the target; the system releases it however the process ends. Raises
    FileFailure while another process holds it, or where the lock cannot be made.
    """
    lock = path.with_name(f".{path.name}.lock")
    with failing("write", path):
        descriptor = _locked(lock, path)
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()  # while still locked: who opened it before finds that it is gone
        os.close(descriptor)


def _locked(lock: Path, path: Path) -> int:
    """A descriptor of the lock file, which is locked and still has its name."""
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(lock)):
                return descriptor
        except BlockingIOError as error:
            os.close(descriptor)
            raise FileFailure(f"another run is writing {path}") from error
        except FileNotFoundError:
            pass
        except OSError:  # a file system without locks: then it is the user who keeps order
            return descriptor
        os.close(descriptor)


def reserve(descriptor: int, start: int, count: int) -> None:
    """Take the space of a write at once, where the system can: faster than bit by bit.

    Raises OSError where there is not so much.
    """
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, start, count)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise


def folder_beside(path: Path, kind: str) -> Path:
    """NAME.KIND beside NAME.h5, and NAME-KIND beside a NAME without it: no two files share one."""
    stem = path.name.removesuffix(".h5")
    return path.parent / (f"{stem}.{kind}" if stem != path.name else f"{stem}-{kind}")


def sync(path: Path) -> None:
    """Force a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
