"""A run that talks: a progress bar on a terminal, plain lines in a batch job, one summary."""

import math
import sys
import time
from typing import IO, Any, NamedTuple

from heatsolve import streams
from heatsolve.streams import count, duration

SECONDS_BETWEEN_LINES = 5.0
SECONDS_BETWEEN_FRAMES = 0.1
POINTS_OF_FIT = 20
NORM = "norm {:.3e}"
COMPILING = "compiling, once: later runs find the machine code"


class Report:
    """Writes to `stream`; quiet, only warnings; mute (one of many processes), not even those.

    `begin` says what is counted ("iteration" or "step") and its greatest number, `aim` the norm to
    reach, if one ends the run.
    """

    def __init__(self, quiet: bool = False, stream: IO[str] | None = None, mute: bool = False):
        self._stream = stream or sys.stdout
        self._quiet, self._mute = quiet or mute, mute
        self._bar: Any = None
        self._task: Any = None
        self._recent: list[tuple[float, int, float]] = []
        self._shown = 0.0
        self.began = time.perf_counter()
        self.compiled = 0.0
        """Seconds of compilation, which are not counted as solving."""
        self._compiles = False

    def line(self, text: str = "") -> None:
        """Say something. Where nobody reads any more, or the disk is full, the run goes on."""
        if self._quiet:
            return
        try:
            print(text, file=self._stream, flush=True)
        except OSError as error:
            self._quiet = True
            streams.silence(self._stream)
            if not isinstance(error, BrokenPipeError):
                self.warn(f"the run goes on without its report: {error.strerror}")

    def warn(self, sentence: str) -> None:
        """A warning goes to standard error, also from a quiet run."""
        if not self._mute:
            streams.complain(f"heatsolve: warning: {sentence}")

    def aim(self, threshold: float, scale: float = 1.0, said: str = NORM) -> None:
        """The norm to reach, where one ends the run; how a norm over `scale` is said."""
        self._threshold, self._scale, self._said = threshold, scale, said

    def begin(self, unit: str, total: int) -> None:
        self._unit, self._total = unit, total
        self.aim(0.0)
        self.began = self._shown = time.perf_counter()
        if self._quiet or not self._stream.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"),
            console=Console(file=streams.terminal(self._stream)), transient=True,
        )  # fmt: skip
        self._bar.start()
        self._task = self._bar.add_task(unit, total=1.0, state="")

    def compiles(self) -> None:
        """A compiler is at work: said once."""
        if self._bar is not None:
            self._bar.update(self._task, state=COMPILING)
        elif not self._compiles:
            self.line(COMPILING)
        self._compiles = True

    def has_compiled(self, seconds: float) -> None:
        """So many seconds were no part of solving."""
        self.compiled += seconds
        self.began += seconds
        self._shown += seconds
        self._recent = [(moment + seconds, number, norm) for moment, number, norm in self._recent]

    def progress(self, number: int, norm: float | None, total: int | None = None) -> None:
        """Say how far the run is, if it is time to say something; of how many, if that changes."""
        if total is not None:
            self._total = total
        now = time.perf_counter()
        wait = SECONDS_BETWEEN_FRAMES if self._bar is not None else SECONDS_BETWEEN_LINES
        if self._quiet or now - self._shown < wait:
            return
        self._shown = now
        self._recent = [*self._recent[1 - POINTS_OF_FIT :], (now, number, norm or math.nan)]
        state = f"{self._unit} {number}"
        if norm is not None and math.isfinite(norm):
            state += ", " + self._said.format(norm / self._scale if self._scale else norm)
        state += f", {number / (now - self.began):.0f}/s"
        left = self.seconds_left()
        if left is not None:
            state += f", about {duration(left)} left"
        if self._bar is not None:
            self._bar.update(self._task, completed=self._share(number, norm), state=state)
        else:
            self.line(f"[{duration(now - self.began)}] {state}")

    def seconds_left(self) -> float | None:
        """Time to the threshold at the fitted rate of convergence, or to the last number."""
        if len(self._recent) < 2:
            return None
        (t0, n0, norm0), (t1, n1, norm1) = self._recent[0], self._recent[-1]
        if n1 <= n0:
            return None
        by_count = (self._total - n1) * (t1 - t0) / (n1 - n0)
        if not (self._threshold > 0.0 and norm0 > norm1 > 0.0):
            return by_count
        rate = math.log(norm0 / norm1) / (t1 - t0)
        return min(by_count, max(0.0, math.log(norm1 / self._threshold) / rate))

    def _share(self, number: int, norm: float | None) -> float:
        first = next((n for _, _, n in self._recent if math.isfinite(n) and n > 0.0), 0.0)
        if self._threshold > 0.0 and norm and first > self._threshold:
            return min(1.0, math.log(first / norm) / math.log(first / self._threshold))
        return number / self._total

    def end(self) -> float:
        """Take the bar away; the seconds since `begin`, less those of compilation."""
        seconds = time.perf_counter() - self.began
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        return seconds


class Shares(NamedTuple):
    """What it cost to be several processes: shares of the time of the mean one, compilation too.

    `waited`: for ghosts of others, None where GPUs do so in their own queues; `hidden`: work while
    ghosts were under way; `sums`: of all processes. `balance`: the mean block over the largest.
    """

    waited: float | None
    hidden: float
    sums: float
    balance: float


def together(shares: Shares) -> str:
    """These shares as a report says them."""
    said = "ghosts travelled in the GPUs' queues"
    if shares.waited is not None:
        said = (
            f"ghosts: waited {100.0 * shares.waited:.1f} % of the time, "
            f"{100.0 * shares.hidden:.1f} % hidden behind work"
        )
    return (
        f"{said}; sums: {100.0 * shares.sums:.1f} %; "
        f"the mean block is {shares.balance:.3f} of the largest"
    )


def speed(seconds: float, points: float, moved: float, solved: float = 0) -> str:
    """How long a run took, and how fast its sweeps were.

    `points` are lattice updates, one for each point in each sweep; `moved` the bytes that these
    sweeps had to read and write at least; `solved` the unknowns of the systems that were solved.
    """
    if not seconds > 0.0:
        return duration(seconds)
    rates = [f"{count(points / seconds)}LUP/s", f"{count(moved / seconds)}B/s"]
    if solved:
        rates.append(f"{count(solved / seconds).rstrip()} unknowns solved per second")
    return ", ".join([duration(seconds), *rates])
