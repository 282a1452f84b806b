"""Pauses of a run, at which the program that drives it reads fields and chooses the next pause."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter, ValidationError

from heatsolve.control.stop import StopRequest
from heatsolve.errors import FileFailure, InputError
from heatsolve.models.base import Model
from heatsolve.time.schedule import Schedule

MOST_SAID = 1000
"""The most changes that a file names; its checkpoints hold all."""


@dataclass(frozen=True)
class Until:
    """How far a run goes before it pauses again, or why it ends here.

    It pauses after iteration or step `number`, or earlier, after a step at which `schedule` is due:
    a pause never changes the length of a step; or after the first step that reaches `time`. `stop`
    is the reason to end the run. With
    `settings`, keys of the case and their new values, it takes these settings and pauses again at
    once. A run of one process also pauses at the next step after a `request` to stop.
    """

    number: int = sys.maxsize
    schedule: Schedule = field(default_factory=Schedule)
    time: float = math.inf
    stop: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    request: StopRequest | None = field(default=None, compare=False)

    @property
    def hurried(self) -> bool:
        """Whether somebody wants a pause as soon as possible."""
        return self.request is not None and self.request.made

    @property
    def said(self) -> str:
        """The pause, or the settings, in words."""
        if self.settings:
            return ", ".join(f"{key} = {value}" for key, value in self.settings)
        if self.number < sys.maxsize:
            return f"step {self.number}"
        if self.time < math.inf:
            return f"t = {self.time:g}"
        if self.schedule.times:
            return f"t = {self.schedule.times[-1]:g}"
        return f"every {self.schedule.seconds:g} s" if self.schedule.seconds else "all steps"


class Changed(NamedTuple):
    """Values that a program has set during a march, after a step."""

    number: int
    time: float
    settings: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        said = ", ".join(f"{key} = {value}" for key, value in self.settings)
        return f"after step {self.number} (t = {self.time:g}): {said}"


def changes_of(record: Any) -> list[Changed]:
    """The changes in a checkpoint's record. Raises FileFailure where it is damaged."""
    try:
        return TypeAdapter(list[Changed]).validate_python(record)
    except ValidationError:
        raise FileFailure("the checkpoint is damaged: its changes are none") from None


def said_of(changes: Sequence[Changed]) -> str | None:
    """The values that were set during a march, in words; None without any."""
    more = [f"and {len(changes) - MOST_SAID} more"] if len(changes) > MOST_SAID else []
    return "; ".join([*map(str, changes[:MOST_SAID]), *more]) or None


@dataclass(frozen=True)
class Pause:
    """A run between two iterations or steps, the same on all processes.

    `number`: iterations or steps so far; `time`: the time of a march (s), None for a steady case;
    `norm`: the norm that was checked last; `restarted`: whether a checkpoint brought the run here.
    `present` makes the fields of a frame and returns them by name (asks all processes), each
    multiplied by 1 / `back`; valid until the run goes on. `refused`: why the run did not take the
    settings that it was sent.
    """

    problem: Model
    number: int
    time: float | None
    norm: float
    restarted: bool
    present: Callable[[], Mapping[str, Any]]
    history: Mapping[str, Any] = field(default_factory=dict)
    back: float = 1.0
    refused: InputError | None = None

    def stored(self, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Fields, by default of a file, at this process's points of it (asks all processes)."""
        blocks = self.problem.stored(names, self.present())
        return blocks if self.back == 1.0 else {k: self.back * v for k, v in blocks.items()}
