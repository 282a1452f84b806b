"""When a running solution is saved and when it stops: decided by all processes together.

A signal reaches some processes at some moment, clocks differ, and a checkpoint needs all
processes at the same iteration. So they ask each other, at iterations that all know: often enough
that a request is heard within half a second of computing, and seldom enough to cost nothing.
"""

import time as clock
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from heatsolve.control.stop import StopRequest
from heatsolve.errors import Interrupted
from heatsolve.parallel.ranks import Ranks

PAUSE = 0.25
"""Seconds of computing between two questions."""
PATIENCE = 1.0
"""Seconds that a question waits for the end of a pass of several sweeps, at most."""


@dataclass
class State:
    """All that a run needs to go on after `number` iterations or steps, bit for bit.

    `record` holds plain numbers and words, `history` one list for each quantity. `fields` are
    arrays of the backend where a state is captured, and host arrays of this process's own
    unknowns where it comes from a checkpoint.
    """

    number: int
    record: dict[str, Any] = field(default_factory=dict)
    history: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether it is the end of a run."""
        return self.record.get("finished", False)

    @property
    def lists(self) -> dict[str, list[float]]:
        """The history from a checkpoint, as lists of Python's numbers that can go on."""
        return {name: values.tolist() for name, values in self.history.items()}


Capture = Callable[[], State]
Agree = Callable[[State], None]
"""Raises what there is against going on from a state, of which it sees number and record."""


class Store(Protocol):
    """Where the states of a run are kept; all processes call each method together."""

    @property
    def folder(self) -> Path:
        """The place of all of them."""

    @property
    def damaged(self) -> Sequence[str]:
        """The states that `newest` had to skip and why, one sentence each."""

    def newest(self, agree: Agree | None = None) -> State | None:
        """The newest valid state, None if there is none."""

    def latest(self) -> State | None:
        """Number and record of the newest state, None if there is none."""

    def load(self, path: Path, agree: Agree | None = None) -> State:
        """The state in a folder."""


class Stopped(Exception):
    """All processes leave an iteration inside a time step, to end with this exit code."""

    def __init__(self, exit_code: int):
        self.exit_code = exit_code


class StopController:
    """When to ask next, and what all answer."""

    stride = 1
    """Iterations that are made in one go: questions stand so many apart, if that is not long."""
    least = 1
    """Iterations between two questions, however long they take: so many surely do not take long."""

    state = State
    """Who iterates makes one of these of all that a run needs to go on."""

    def __init__(self, ranks: Ranks, request: StopRequest):
        self._ranks, self._request = ranks, request
        self._gap = 1
        self.begin(0)

    def begin(self, number: int, finished: bool = False) -> None:
        """Numbers begin at `number`, or end there if it is the end of a `finished` run."""
        self.next = self._asked_at = number
        self._asked = clock.perf_counter()

    def poll(self, number: int, due: bool = False) -> tuple[int, bool]:
        """The exit code of a request to stop, 0 for none; whether a process has a checkpoint due.

        Sets the number of the next question by the pace of the slowest.
        """
        now = clock.perf_counter()
        pace = (number - self._asked_at) / max(now - self._asked, 1e-9)
        gap = max(self.least, min(2 * self._gap, int(pace * PAUSE)))
        if gap < self.stride <= pace * PATIENCE:
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
        """Ask; raise Stopped if there is a request."""
        code, _ = self.poll(number)
        if code:
            raise Stopped(code)

    def finish(self, capture: Capture) -> None:
        """The numbers are at their end."""


class CheckpointController(StopController):
    """Saves a run every so many iterations or steps, every so many seconds, and before it stops.

    `save` writes a state and returns the name of the checkpoint; `every` counts iterations or
    steps, `seconds` wall time; `at_end`: whether the end is saved, too, so that it can be gone on
    from with another end time or tolerance.
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
        """For an iteration inside a step: it only stops, and its step is done anew."""

    def begin(self, number: int, finished: bool = False) -> None:
        super().begin(number)
        self._begun = number
        self._saved_at = number if number > 0 else -1
        self._finished_at = number if finished else -1

    def check(self, number: int, capture: Capture | None = None) -> None:
        """Save the state, if it is time to; save it and raise Interrupted, if somebody wants it."""
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
        raise Interrupted(
            f"interrupted after {state.number} {state.record.get('unit', 'iterations')}, "
            f"go on with --restart from {self.save(state)}",
            exit_code,
        )

    def finish(self, capture: Capture) -> None:
        """Save the end of a run, unless it is what the run began with."""
        self._request.hold()
        state = capture()
        if self._at_end and state.number != self._finished_at:
            state.record["finished"] = True
            self.save(state)

    def save(self, state: State) -> Any:
        path = self._save(state) if self._save is not None else None
        self._saved_at, self._saved = state.number, clock.monotonic()
        return path
