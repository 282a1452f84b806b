"""Pauses of a run, at which whoever drives it looks at the fields and says how it goes on."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heatsolve.models.base import Model
from heatsolve.time.schedule import Schedule


@dataclass(frozen=True)
class Until:
    """How far a run goes before it pauses again, or why it ends here.

    It pauses after iteration or step `number`, or before that after a step at which `schedule` is
    due: a pause never changes the length of a step. `stop` is the reason to end the run.
    """

    number: int = sys.maxsize
    schedule: Schedule = field(default_factory=Schedule)
    stop: str = ""

    @property
    def said(self) -> str:
        """In words."""
        if self.number < sys.maxsize:
            return f"step {self.number}"
        if self.schedule.times:
            return f"t = {self.schedule.times[-1]:g}"
        return f"every {self.schedule.seconds:g} s" if self.schedule.seconds else "all steps"


@dataclass(frozen=True)
class Pause:
    """A run between two iterations or steps, all processes at the same one.

    `number`: iterations or steps so far; `time`: where a march is (s), None of a steady case;
    `norm`: the one that was checked last; `restarted`: whether a checkpoint brought the run here.
    `present` makes the fields of a frame and returns them by name (asks all processes), each
    multiplied by 1 / `back`; they are lent until the run goes on.
    """

    problem: Model
    number: int
    time: float | None
    norm: float
    restarted: bool
    present: Callable[[], Mapping[str, Any]]
    history: Mapping[str, Any] = field(default_factory=dict)
    back: float = 1.0

    def stored(self, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Fields, by default those of a file, at its points that this process owns (asks all)."""
        blocks = self.problem.stored(names, self.present())
        return blocks if self.back == 1.0 else {k: self.back * v for k, v in blocks.items()}
