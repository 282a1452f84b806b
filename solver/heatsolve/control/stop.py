"""The request to stop a run, which a signal makes; the module imports little, to load at once."""

import atexit
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from heatsolve.errors import ExitCode
from heatsolve.report import complain

ECHO = 0.25
"""Seconds within which a second SIGINT is the first one again: the terminal sends it to all
processes, and a launcher of MPI passes it on to them."""
PATIENCE = 0.5
"""Seconds that Ctrl-C waits for the main thread, which may be inside a library."""


class StopRequest:
    """A request to stop this process; a signal handler may make it, also twice.

    SIGTERM and SIGUSR1 make the request, and the run saves its state when it next asks. While the
    run is `held`, because work would be lost, Ctrl-C does so, too, and a second Ctrl-C ends the
    program at once. While nothing would be lost, the first Ctrl-C ends it.
    """

    made = False
    by_hand = False
    """Whether Ctrl-C made it."""
    held = False
    mute = False
    """Whether another process speaks for all."""
    answered = False
    """Whether the program has said how it ends."""
    deadline = math.inf
    """When a run that has a wall-clock limit stops, by the clock of `time.monotonic`."""
    _heard = 0.0

    @property
    def code(self) -> int:
        """The exit code of a run that ends on this request; 0 without a request."""
        if self.made:
            return ExitCode.INTERRUPTED if self.by_hand else ExitCode.STOPPED
        return ExitCode.STOPPED if time.monotonic() >= self.deadline else 0

    def make(self, *_: object) -> None:
        self.made = True

    def interrupt(self, *_: object) -> None:
        """Take a Ctrl-C. Raises KeyboardInterrupt if the program must end at once."""
        now = time.monotonic()
        if self.by_hand and now - self._heard < ECHO:
            return
        again, self._heard = self.by_hand, now
        self.made = self.by_hand = True
        if again or not self.held:
            raise KeyboardInterrupt

    def hold(self) -> None:
        """From now on Ctrl-C would lose work."""
        self.held = True

    def release(self) -> None:
        """From now on Ctrl-C loses nothing. Raises KeyboardInterrupt if it came in the meantime."""
        self.held = False
        if self.by_hand:
            raise KeyboardInterrupt

    def listen(self) -> None:
        """Hear the signals from now on, for the rest of the program.

        If SIGINT is ignored, as shells do for background processes, it stays ignored.
        """
        numbers = {signal.SIGTERM: self.make, signal.SIGUSR1: self.make}
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            numbers[signal.SIGINT] = self.interrupt
        for number, handler in numbers.items():
            signal.signal(number, handler)
            # While Python ends, a late signal would kill the program and change its exit code.
            atexit.register(signal.signal, number, signal.SIG_IGN)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Hear Ctrl-C in the context, where otherwise it would raise KeyboardInterrupt at once."""
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if not usual or threading.current_thread() is not threading.main_thread():
            yield
            return
        self.hold()
        signal.signal(signal.SIGINT, self.interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def watch(self, leave: Callable[[int], None]) -> None:
        """Answer Ctrl-C where the main thread does not: inside a compiler, or a long step.

        `leave` ends this process, and all others of its run, with an exit code. Python calls a
        signal's handler between two operations of the main thread only; the signal's number comes
        through a pipe at once.
        """
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(read_end, leave), daemon=True).start()

    def _watch(self, read_end: int, leave: Callable[[int], None]) -> None:
        heard, again, wait = 0.0, False, None
        while True:
            if select.select([read_end], [], [], wait)[0]:
                now = time.monotonic()
                if signal.SIGINT in os.read(read_end, 64) and not (heard and now - heard < ECHO):
                    again, heard = heard > 0.0, now
                    wait = 2.0 * PATIENCE if self.mute else PATIENCE
            elif again or not self.held:
                self._say("interrupted")
                if sys.stdout.isatty():
                    os.write(1, b"\x1b[?25h")  # the cursor, which a progress bar hides
                leave(ExitCode.INTERRUPTED)
            else:
                wait = None
                if not self.answered:
                    self._say("will stop when this step is done; Ctrl-C again ends it at once")

    def _say(self, what: str) -> None:
        if not self.mute and not self.answered:
            complain(f"heatsolve: {what}")
