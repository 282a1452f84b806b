"""When a run begins from a checkpoint, saves its state and stops: all processes decide together.

A signal reaches some processes at some moment, clocks differ, and a checkpoint needs all
processes at the same iteration. So they ask each other, at iterations that all know: often enough
that a request is heard within half a second of computing, and seldom enough to cost nothing.
"""

import math
import time as clock
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from heatsolve.control.stop import StopRequest
from heatsolve.errors import Interrupted
from heatsolve.parallel.ranks import Ranks

PAUSE = 0.25
"""Seconds of computing between two questions."""
PATIENCE = 1.0
"""The most seconds that a question waits for the end of a pass of several sweeps."""


@dataclass
class State:
    """All that a run needs to go on after `number` iterations or steps, bit for bit.

    `record` holds plain numbers and words, `history` one list for each quantity. `fields` are
    arrays of the backend where a state is captured, and host arrays of this process's own unknowns
    where it comes from a checkpoint; `points` are such arrays at the points of a file.
    """

    number: int
    record: dict[str, Any] = field(default_factory=dict)
    history: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    points: dict[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether the state is the end of a run."""
        return self.record.get("finished", False)

    @property
    def lists(self) -> dict[str, list[float]]:
        """The history from a checkpoint, as lists of Python's numbers that can go on."""
        return {name: values.tolist() for name, values in self.history.items()}


Capture = Callable[[], State]
Agree = Callable[[State], None]
"""Checks the number and the record of a state; raises an error if the run cannot go on from it."""


class Stopped(Exception):
    """Raised by all processes, to leave an iteration inside a time step with this exit code."""

    def __init__(self, exit_code: int):
        self.exit_code = exit_code


class StopController:
    """Asks all processes from time to time whether one of them has a request to stop."""

    stride = 1
    """Iterations of one pass: questions are a multiple of it apart, unless that takes too long."""
    least = 1
    """The fewest iterations between two questions, however long they take."""
    state = State
    """The class of the states that an iteration captures."""

    def __init__(self, ranks: Ranks, request: StopRequest):
        self._ranks, self._request = ranks, request
        self._gap = 1
        self.begin(0)

    def begin(self, number: int, finished: bool = False) -> None:
        """Begin at the iteration or step `number`, the last one of a `finished` run."""
        self.next = self._asked_at = number
        self._asked = clock.perf_counter()

    def poll(self, number: int, due: bool = False) -> tuple[int, bool]:
        """The exit code of a request to stop, 0 for none; whether a process has a checkpoint due.

        Sets the number of the next question by the speed of the slowest process.
        """
        now = clock.perf_counter()
        speed = (number - self._asked_at) / max(now - self._asked, 1e-9)
        gap = max(self.least, min(2 * self._gap, int(speed * PAUSE)))
        if gap < self.stride <= speed * PATIENCE:
            gap = self.stride
        answers = np.array([-self._request.code, not due, gap], float)
        code, not_due, gap_of_all = self._ranks.smallest(answers)
        self._gap = int(gap_of_all)
        if self._gap > self.stride:
            self._gap -= self._gap % self.stride
        self._asked_at, self._asked = number, now
        self.next = number + self._gap
        return -int(code), not not_due

    def check(self, number: int, capture: Capture | None = None) -> None:
        """Ask all processes; raise Stopped if there is a request."""
        code, _ = self.poll(number)
        if code:
            raise Stopped(code)

    def finish(self, capture: Capture) -> None:
        """End the run; nothing is saved."""


class CheckpointController(StopController):
    """Saves a run every `every` iterations or steps, every `seconds`, and before it stops.

    `save` writes a state and returns the name of the checkpoint. With `at_end` the end is saved,
    too, so that a later run goes on from it with another end time or tolerance.
    """

    def __init__(
        self,
        ranks: Ranks | None = None,
        request: StopRequest | None = None,
        save: Callable[[State], Any] | None = None,
        every: int | None = None,
        seconds: float | None = None,
        at_end: bool = False,
    ):
        self._save, self._every, self._seconds, self._at_end = save, every, seconds, at_end
        self._saved_at = -1
        self._saved = clock.monotonic()
        super().__init__(ranks or Ranks(), request or StopRequest())
        self.inside = StopController(self._ranks, self._request)
        """The controller of an iteration inside a step: it only stops, and the step is repeated."""

    def begin(self, number: int, finished: bool = False) -> None:
        super().begin(number)
        self._begun = number
        self._saved_at = number if number > 0 else -1
        self._finished_at = number if finished else -1

    def check(self, number: int, capture: Capture | None = None) -> None:
        """Save the state if it is due; on a request to stop save it and raise Interrupted."""
        assert capture is not None
        if number > self._begun:
            self._request.hold()
        late = self._seconds is not None and clock.monotonic() - self._saved >= self._seconds
        code, due = self.poll(number, late)
        if self._every is not None:
            due = due or (number > 0 and number % self._every == 0)
            self.next = min(self.next, number - number % self._every + self._every)
        if code:
            self.interrupt(capture, code)
        elif due and number != self._saved_at:
            self.save(capture())

    def interrupt(self, capture: Capture, exit_code: int = Interrupted.exit_code) -> None:
        """Save the state and raise Interrupted."""
        state = capture()
        timed = not self._request.made and math.isfinite(self._request.deadline)
        how = "stopped at its wall-clock limit" if timed else "interrupted"
        saved = self.save(state)
        more = f", go on with --restart from {saved}" if saved is not None else ""
        unit = state.record.get("unit", "iterations")
        raise Interrupted(f"{how} after {state.number} {unit}{more}", exit_code)

    def finish(self, capture: Capture) -> None:
        """Save the end of a run, unless the run began with it."""
        self._request.hold()
        state = capture()
        if self._at_end and state.number != self._finished_at:
            state.record["finished"] = True
            self.save(state)

    def save(self, state: State) -> Any:
        path = self._save(state) if self._save is not None else None
        self._saved_at, self._saved = state.number, clock.monotonic()
        return path


# ---- where a run begins -------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """Where the user wants a run to begin.

    `restart`: at the newest checkpoint, if there is one; `checkpoint`: at this one; `overwrite`:
    anew, also if that removes the checkpoints of an unfinished run.
    """

    restart: bool = False
    checkpoint: Path | None = None
    overwrite: bool = False
