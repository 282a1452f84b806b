"""The standard streams: whatever becomes of them, a run goes on; and how numbers are said there."""

import io
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any


@contextmanager
def outliving(stream: IO[str]) -> Iterator[None]:
    """Write to a stream in the context; where nobody reads any more, all of it is dropped."""
    try:
        yield
    except BrokenPipeError:
        silence(stream)


class Plain:
    """A stream of text that makes a terminal print and nothing else, and outlives its reader.

    What is not printable, such as an escape sequence in the name of a stranger's file, becomes an
    escape. Where nobody reads any more, the rest is dropped without a word.
    """

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        if not isinstance(text, str):  # which is how some find out what a stream takes
            raise TypeError(f"a stream of text takes no {type(text).__name__}")
        with outliving(self.stream):
            self.stream.write("".join(c if c in "\n\t" else printable(c) for c in text))
        return len(text)

    def flush(self) -> None:
        with outliving(self.stream):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def prepare() -> None:
    """Let the program begin with three streams that take every text, and print it as it is.

    Without them the next file that is opened would be what the C library takes for the output.
    What an encoding cannot say becomes an escape.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            stream = open(os.devnull, "w")  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, stream if isinstance(stream, Plain) else Plain(stream))


def terminal(stream: IO[str]) -> IO[str]:
    """The same stream for somebody who moves the cursor of a terminal."""
    return stream.stream if isinstance(stream, Plain) else stream


def emit(text: str) -> None:
    """The text of a file on standard output: not on a terminal with the bytes of that file."""
    stream = terminal(sys.stdout)
    if stream.isatty() or not isinstance(stream, io.TextIOWrapper):
        print(text, end="")
        return
    stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    with outliving(stream):
        print(text, end="", file=stream, flush=True)


def complain(text: str) -> None:
    """Say something on standard error, if somebody is there to hear it."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def silence(stream: IO[str]) -> None:
    """Let a stream that has failed take all the rest, also what Python holds of it at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def printable(text: str) -> str:
    """A text of somebody's file, without what would make a terminal do anything but print it."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shown(text: str, most: int = 200) -> str:
    """A text of somebody's file in one line, of at most so many letters."""
    return printable(text if len(text) <= most else f"{text[:most]}...")


def duration(seconds: float) -> str:
    """A time as people say it: 0.4 s, 12 s, 3 min 20 s, 5 h 12 min."""
    if not 10.0 <= seconds < math.inf:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def count(number: float) -> str:
    """A large number with its prefix: 1.2 G, 512 k."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {prefix}"
    return f"{number:.3g} "


def size(count: float) -> str:
    """A number of bytes as people say it."""
    for factor, unit in ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB")):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} bytes"
