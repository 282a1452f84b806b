"""The time that compilers take: told to whoever wants to know, as it is no part of solving.

Machine code is kept from run to run, so a case compiles once on a machine.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Watch:
    """Notices when compilation begins and ends; one compiler may call another.

    `begun()` is called as it begins, `ended(seconds)` when it has ended.
    """

    def __init__(self) -> None:
        self.begun: Callable[[], None] = _ignore
        self.ended: Callable[[float], None] = _ignore
        self._depth, self._since = 0, 0.0

    def begin(self) -> None:
        if not self._depth:
            self._since = time.perf_counter()
            self.begun()
        self._depth += 1

    def end(self) -> None:
        self._depth -= 1
        if not self._depth:
            self.ended(time.perf_counter() - self._since)


def _ignore(*_: Any) -> None:
    """Nobody wants to know."""


WATCH = Watch()


@contextmanager
def compiling() -> Iterator[None]:
    """Around every call of a compiler."""
    WATCH.begin()
    try:
        yield
    finally:
        WATCH.end()


@contextmanager
def told(begun: Callable[[], None], ended: Callable[[float], None]) -> Iterator[None]:
    """Let these be called, as by a `Watch`, for what is compiled inside."""
    before = WATCH.begun, WATCH.ended
    WATCH.begun, WATCH.ended = begun, ended
    try:
        yield
    finally:
        WATCH.begun, WATCH.ended = before
