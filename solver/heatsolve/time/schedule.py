"""When a frame or a row of the history is due: after numbers of steps, or at times of the march."""

import bisect
import math
from dataclasses import dataclass

from heatsolve.case.types import seconds_of
from heatsolve.models.base import ROUNDING
from heatsolve.time.step_size import TimeStep


@dataclass(frozen=True)
class Schedule:
    """The steps after which something is due.

    steps: every `steps`-th step. seconds, times: the first step that ends at or after each multiple
    of this time, or at or after each of these times (s); no step is shortened to meet a time. A
    step that ends before such a time by rounding only counts as ending at it.
    """

    steps: int | None = None
    seconds: float | None = None
    times: tuple[float, ...] = ()

    @classmethod
    def of(cls, every: int | str | tuple[float, ...] | None) -> "Schedule":
        """The schedule of a key of a case: steps, a time such as "0.5 s", a list of times."""
        if isinstance(every, tuple):
            return cls(times=every)
        return cls(seconds=seconds_of(every)) if isinstance(every, str) else cls(steps=every)

    @property
    def empty(self) -> bool:
        """Whether nothing is ever due."""
        return self.steps is None and self.seconds is None and not self.times

    def due(self, number: int, time_step: TimeStep) -> bool:
        """Whether something is due after step `number`, counted from 1."""
        if self.steps is not None:
            return number % self.steps == 0
        if self.empty:
            return False
        slack = ROUNDING * time_step.length
        begin, end = time_step.parts[0].start + slack, time_step.parts[-1].end + slack
        return self._passed(end) > self._passed(begin)

    def _passed(self, time: float) -> float:
        """The number of moments up to a time."""
        if self.seconds is not None:
            return time // self.seconds
        return bisect.bisect_right(self.times, time)

    def until(self, number: int, time: float, step: float) -> int:
        """The number of steps of length `step`, after step `number`, which ended at `time`, up to
        the first step after which something can be due; at least 1."""
        if self.steps is not None:
            return self.steps - number % self.steps
        if self.empty:
            return 2**53
        begin = time + ROUNDING * step
        if self.seconds is not None:
            moment = (begin // self.seconds + 1.0) * self.seconds
        else:
            later = self.times[bisect.bisect_right(self.times, begin) :]
            moment = later[0] if later else math.inf
        steps = (moment - time) / step - 2.0 * ROUNDING
        return max(1, math.ceil(min(steps, 2.0**53)))

    def count_with_last(self, steps: int, end: float) -> int:
        """How often something is due in about `steps` even steps to `end`, the last included."""
        if self.empty:
            return 1
        if self.steps is not None:
            return math.ceil(steps / self.steps)
        length = end / steps
        if self.seconds is not None:
            return math.ceil(steps / max(1.0, self.seconds / length))
        last = min(self.times[-1], end)  # times within one step share a frame
        hit = {max(1, math.ceil(t / length - ROUNDING)) for t in self.times if 0.0 < t <= last}
        return len(hit | {steps})
