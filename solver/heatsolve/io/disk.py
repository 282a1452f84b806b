"""Files that are written whole or not at all, for output and checkpoints.

Nothing here knows the content of the files.
"""

import errno
import io
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from heatsolve.errors import FileFailure, InputError

try:
    import fcntl
except ImportError:
    raise InputError(
        "heatsolve runs on Linux and macOS; on Windows install it in WSL, the Windows Subsystem "
        "for Linux"
    ) from None

RESERVED_FROM = 1 << 20
"""The smallest write (bytes) for which space on the disk is reserved first."""

KINDS = {
    "a device": lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode),
    "a FIFO": stat.S_ISFIFO,
    "a socket": stat.S_ISSOCK,
}
"""Kinds of paths that no file may replace, and their tests of `st_mode`."""


def target_of(path: Path) -> Path:
    """The file to write for this path: a symbolic link is followed.

    Raises InputError for a device, a FIFO and a socket, FileFailure for a directory.
    """
    with failing("write", path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "")
        mode = path.stat().st_mode if path.exists() else 0
        final = path.resolve() if path.is_symlink() else path
    for kind, matches in KINDS.items():
        if matches(mode):
            raise InputError(f"{path} is {kind}, and is not replaced: name a file")
    return final


@contextmanager
def aside(path: Path, new: bool = False) -> Iterator[Path]:
    """A temporary name for a file, which gets its own name when all of it is on the disk.

    If anything fails before, an earlier file stays as it is, and no temporary file is left. Raises
    as `target_of`, FileFailure where the disk fails, with `new` FileExistsError if there is an
    earlier file.
    """
    final = target_of(path)
    # The suffix stays: libraries choose a format by it.
    part = final.with_name(f".{final.stem}.{os.getpid()}-{secrets.token_hex(4)}.part{final.suffix}")
    try:
        yield part
        sync(part)
        if new:
            _name_new(part, final)
        else:
            os.replace(part, final)
        sync(final.parent)
    except FileExistsError:
        raise
    except OSError as error:
        raise _failure("write", path, error) from error
    finally:
        with suppress(OSError):
            part.unlink()


def _name_new(part: Path, final: Path) -> None:
    """Give a file its name, unless another file has it, even one made at this moment."""
    try:
        os.link(part, final)
    except FileExistsError:
        raise
    except OSError:  # not every file system has links
        if final.exists():
            raise FileExistsError(errno.EEXIST, "") from None
        os.replace(part, final)


def write_text(path: Path, text: str, new: bool = False) -> None:
    """Write a text by `aside`, in UTF-8 whatever the locale. Raises as `aside`."""
    with aside(path, new) as part:
        # Names of files that are no valid text, in this locale or in any, keep their bytes.
        part.write_bytes(text.encode("utf-8", "surrogateescape"))


def write_json(path: Path, content: Any) -> None:
    """Write plain values as JSON. Raises as `aside`."""
    write_text(path, json.dumps(content, indent=1) + "\n")


class Disk(io.FileIO):
    """The file to which HDF5 writes. HDF5 must not see a failure: its close would then crash."""

    error: OSError | None = None
    _aside: ThreadPoolExecutor | None = None

    def write(self, data: Any) -> int:
        rest = memoryview(data)
        large = len(rest) >= RESERVED_FROM
        try:
            if large:
                reserve(self.fileno(), self.tell(), len(rest))
            while rest:  # the system takes at most 2 GiB at a time
                rest = rest[super().write(rest) :]
            if large:
                self._begin_writing(self.tell() - len(data), len(data))
        except OSError as error:
            self.error = error
        return len(data)

    def _begin_writing(self, start: int, count: int) -> None:
        with suppress(RuntimeError):  # there may be too many threads
            self._aside = self._aside or ThreadPoolExecutor(1)
            self._aside.submit(begin_writing, self.fileno(), start, count)

    def close(self) -> None:
        try:
            if self._aside is not None:
                self._aside.shutdown(cancel_futures=True)
        finally:
            super().close()

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
    """Make one sentence of an error of the system or h5py, whose long text buries its cause."""
    try:
        yield
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise _failure(verb, path, error) from error


def _failure(verb: str, path: Path, error: Exception) -> FileFailure:
    buried = re.search(r"errno = (\d+)", str(error))
    reason = re.search(r"\((.*)\)", str(error))
    number = int(buried[1]) if buried else getattr(error, "errno", None)
    cause = os.strerror(number) if number else reason[1] if reason else str(error)
    if "file signature not found" in cause:
        cause = "it is no HDF5 file"
    if number == errno.EAGAIN:
        cause = "another program has it locked"
    elif not path.parent.is_dir():
        cause = f"{path.parent} is not a directory"
    return FileFailure(f"cannot {verb} {path}: {cause}")


@contextmanager
def reserved(path: Path) -> Iterator[None]:
    """Keep all other processes from writing a file, as long as the context lasts.

    It holds a lock file beside the target; the system releases the lock however the process ends.
    Raises FileFailure while another process holds the lock, or where it cannot be made.
    """
    lock = path.with_name(f".{path.name}.lock")
    with failing("write", path):
        descriptor = _locked(lock, path)
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()  # while still locked: a process that has it open finds that it is gone
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
        except OSError:  # a file system without locks: the user must keep two runs apart
            return descriptor
        os.close(descriptor)


def reserve(descriptor: int, start: int, count: int) -> None:
    """Reserve the space of a write at once, where the system can: faster than piece by piece.

    Raises OSError where the disk has not enough room.
    """
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, start, count)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise


def begin_writing(descriptor: int, start: int, count: int) -> None:
    """Let the system write this range to the disk now, where it can.

    Otherwise it begins when it is forced, at the end of the file. The call takes half as long as
    the write itself.
    """
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):  # no advice changes what a file holds
            os.posix_fadvise(descriptor, start, count, os.POSIX_FADV_DONTNEED)


def folder_beside(path: Path, kind: str) -> Path:
    """The folder NAME.KIND of a file NAME.h5, NAME-KIND of a file NAME: no two files share one."""
    stem = path.name.removesuffix(".h5")
    return path.parent / (f"{stem}.{kind}" if stem != path.name else f"{stem}-{kind}")


def sync(path: Path) -> None:
    """Force a file or a directory to the disk; not every file system can do that to a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)
