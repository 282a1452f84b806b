"""The standard streams: whatever becomes of them, a run goes on."""

import os
import sys
from contextlib import suppress
from typing import IO


def prepare() -> None:
    """Let the program begin with three streams that take every text.

    Without them the next file that is opened would be what the C library takes for the output.
    What an encoding cannot say becomes an escape.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


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
