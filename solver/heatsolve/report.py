"""How the program speaks: the report of a run, streams that it outlives, numbers in words."""

import io
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any, NamedTuple, Protocol

SECONDS_BETWEEN_LINES = 5.0
SECONDS_BETWEEN_FRAMES = 0.1
POINTS_OF_FIT = 20
COMPILING = "compiling, once: later runs find the machine code"


class Goal(Protocol):
    """The aim of an iteration: the threshold of its norm, and words for the norm over `scale`."""

    @property
    def threshold(self) -> float: ...
    @property
    def scale(self) -> float: ...
    @property
    def said(self) -> str: ...


@dataclass(frozen=True)
class NormAlone:
    """A norm that ends no run, unless there is a threshold."""

    threshold: float = 0.0
    scale: float = 1.0
    said: str = "norm {:.3e}"


class Report:
    """The report of a run on `stream`: a bar on a terminal, lines elsewhere.

    A quiet report prints only warnings, a mute report (of ranks above 0) nothing. `begin` sets the
    unit ("iteration" or "step") and its greatest number, `aim` the norm that ends the run.
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
        self.waited = 0.0
        """Seconds in which the run waited for the program that drives it."""

    def line(self, text: str = "") -> None:
        """Print a line. If the stream has lost its reader, or the disk is full, the run goes on."""
        if self._quiet:
            return
        try:
            print(text, file=self._stream, flush=True)
        except OSError as error:
            self._quiet = True
            silence(self._stream)
            if not isinstance(error, BrokenPipeError):
                self.warn(f"the run goes on without its report: {error.strerror}")

    def warn(self, sentence: str) -> None:
        """Print a warning on standard error, also from a quiet run."""
        if not self._mute:
            complain(f"heatsolve: warning: {sentence}")

    def aim(self, goal: Goal) -> None:
        """Set the norm to reach; its properties are read when a line tells of it."""
        self._goal = goal

    def begin(self, unit: str, total: int, done: int = 0) -> None:
        """Iterations or steps begin; `done` of them an earlier run has made."""
        self._unit, self._total, self._done = unit, total, done
        self._goal = NormAlone()
        self.began = self._shown = time.perf_counter()
        if self._quiet:
            return
        if self._stream is sys.stdout and in_notebook():
            self._bar = NotebookBar()
            return
        if not self._stream.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"),
            console=Console(file=terminal(self._stream)), transient=True,
        )  # fmt: skip
        self._bar.start()
        self._task = self._bar.add_task(unit, total=1.0, state="")

    def compiles(self) -> None:
        """Say, once, that a compiler is at work."""
        if self._bar is not None:
            self._bar.update(self._task, state=COMPILING)
        elif not self._compiles:
            self.line(COMPILING)
        self._compiles = True

    def has_compiled(self, seconds: float) -> None:
        """Leave the seconds of a compilation out of the time of solving."""
        self.compiled += seconds
        self._leave_out(seconds)

    def has_waited(self, seconds: float) -> None:
        """Leave out the seconds in which the run waited for the program that drives it."""
        self.waited += seconds
        self._leave_out(seconds)

    def _leave_out(self, seconds: float) -> None:
        self.began += seconds
        self._shown += seconds
        self._recent = [(moment + seconds, number, norm) for moment, number, norm in self._recent]

    def progress(self, number: int, norm: float | None, total: int | None = None) -> None:
        """Say how far the run is, if the last line is old; `total` replaces the greatest number."""
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
            scale = self._goal.scale
            state += ", " + self._goal.said.format(norm / scale if scale else norm)
        state += f", {(number - self._done) / (now - self.began):.0f}/s"
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
        threshold = self._goal.threshold
        if not (threshold > 0.0 and norm0 > norm1 > 0.0):
            return by_count
        rate = math.log(norm0 / norm1) / (t1 - t0)
        return min(by_count, max(0.0, math.log(norm1 / threshold) / rate))

    def _share(self, number: int, norm: float | None) -> float:
        first = next((n for _, _, n in self._recent if math.isfinite(n) and n > 0.0), 0.0)
        threshold = self._goal.threshold
        if threshold > 0.0 and norm and first > threshold:
            return min(1.0, math.log(first / norm) / math.log(first / threshold))
        return number / self._total

    def end(self) -> float:
        """Remove the bar; return the seconds since `begin`, without compilation and waiting."""
        seconds = time.perf_counter() - self.began
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        return seconds


def in_notebook() -> bool:
    """Whether the program runs in a notebook, which shows more than text."""
    shell = sys.modules.get("IPython")
    return shell is not None and hasattr(shell.get_ipython(), "kernel")


class NotebookBar:
    """A bar in a notebook, with the methods of rich's bar that a report calls: rich's own bar needs
    widgets there."""

    def __init__(self) -> None:
        from IPython.display import display

        self._share, self._state = 0.0, ""
        self._shown = display(self, display_id=True)

    def update(self, _: Any, completed: float | None = None, state: str = "") -> None:
        self._share, self._state = self._share if completed is None else completed, state
        self._shown.update(self)

    def stop(self) -> None:
        from IPython.display import HTML

        self._shown.update(HTML(""))

    def __repr__(self) -> str:
        return f"{100.0 * self._share:.0f} % {self._state}"

    def _repr_html_(self) -> str:
        return f'<progress max="1" value="{self._share:.4f}"></progress> {self._state}'


class Shares(NamedTuple):
    """The cost of several processes, in shares of their mean time, compilation included.

    `waited`: waiting for ghosts, None where GPUs exchange ghosts in their own queues and do not
    measure it; `hidden`: work while ghosts travelled, None where none is done meanwhile. `sums`:
    sums over all processes; `balance`: mean block over largest.
    """

    waited: float | None
    hidden: float | None
    sums: float
    balance: float


def together(shares: Shares) -> str:
    """The sentence on these shares."""
    said = "ghosts travelled in the GPUs' queues"
    if shares.waited is not None:
        said = f"ghosts: waited {100.0 * shares.waited:.1f} % of the time"
        if shares.hidden is not None:
            said += f", {100.0 * shares.hidden:.1f} % hidden behind work"
    return (
        f"{said}; sums: {100.0 * shares.sums:.1f} %; "
        f"the mean block is {shares.balance:.3f} of the largest"
    )


def speed(seconds: float, points: float, moved: float, solved: float = 0) -> str:
    """The duration of a run and the speed of its sweeps, in words.

    `points` counts lattice updates, one for each point in each sweep; `moved` the fewest bytes that
    these sweeps read and write; `solved` the unknowns of all linear systems that were solved.
    """
    if not seconds > 0.0:
        return duration(seconds)
    rates = [f"{count(points / seconds)}LUP/s", f"{count(moved / seconds)}B/s"]
    if solved:
        rates.append(f"{count(solved / seconds).rstrip()} unknowns solved per second")
    return ", ".join([duration(seconds), *rates])


# ---- the standard streams -----------------------------------------------------------------------


@contextmanager
def outliving(stream: IO[str]) -> Iterator[None]:
    """Write to a stream in the context; if the stream has lost its reader, all is dropped."""
    try:
        yield
    except BrokenPipeError:
        silence(stream)


class Plain:
    """A stream of text that sends a terminal only printable characters, and outlives its reader.

    An unprintable character, as in an escape sequence in the name of a stranger's file, is printed
    as an escape. If the stream has lost its reader, the rest is dropped without an error.
    """

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        if not isinstance(text, str):  # some libraries try which type a stream takes
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
    """Give the program three open standard streams, which take every text.

    If one were closed, the next file to be opened would get its number, and so its output. A
    character that the encoding lacks becomes an escape.
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
    """The stream below `Plain`, for a progress bar, which moves the cursor of a terminal."""
    return stream.stream if isinstance(stream, Plain) else stream


def emit(text: str) -> None:
    """Print the text of a file on standard output, byte by byte unless it is a terminal."""
    stream = terminal(sys.stdout)
    if stream.isatty() or not isinstance(stream, io.TextIOWrapper):
        print(text, end="")
        return
    stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    with outliving(stream):
        print(text, end="", file=stream, flush=True)


def complain(text: str) -> None:
    """Print a line on standard error, if it can be written."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def silence(stream: IO[str]) -> None:
    """Send the rest of a stream that has failed to nowhere, also the part in Python's buffer."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def printable(text: str) -> str:
    """A text of somebody's file, in which unprintable characters are escapes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shown(text: str, most: int = 200) -> str:
    """A text of somebody's file in one line, of at most `most` letters."""
    return printable(text if len(text) <= most else f"{text[:most]}...")


def duration(seconds: float) -> str:
    """A time in words: 0.4 s, 12 s, 3 min 20 s, 5 h 12 min."""
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
    """A number of bytes in words: 1.5 GiB, 300 bytes."""
    for factor, unit in ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB")):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} bytes"
