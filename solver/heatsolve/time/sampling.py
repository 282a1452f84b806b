"""The samples that statistics in time are made of: when a march takes one, and its weight.

Each sample is added to the fields' statistics (`models/statistics.py`); its profiles and spectra
go to the history.
"""

import math
from collections.abc import Mapping
from typing import Any

from heatsolve.case.case import Case
from heatsolve.case.output import SAMPLE_TIME
from heatsolve.models.base import ROUNDING, Model, Stepper
from heatsolve.time.integrals import Profiles
from heatsolve.time.schedule import Schedule
from heatsolve.time.spectra import Spectra
from heatsolve.time.step_size import TimeStep


def samples_of(case: Case, steps: int) -> int:
    """The number of samples in a march of about `steps` even steps."""
    section, end = case.statistics, case.march.end
    schedule = Schedule.of(section.every)
    apart = max((schedule.steps or 1) * end / steps, schedule.seconds or 0.0)
    taken, skipped = (math.floor(time / apart + ROUNDING) for time in (end, section.begin))
    return max(0, taken - skipped)


class Sampling:
    """Takes samples of a march after the steps of `statistics.every`, from `statistics.begin` on.

    The weight of a sample is the time since the sample before it, or since `statistics.begin`: a
    sample stands for the steps up to it, and each step counts by its length.
    """

    def __init__(self, problem: Model):
        section = problem.case.statistics
        self._statistics = problem.statistics
        self._readers = [reader for reader in (Profiles(problem), Spectra(problem)) if reader]
        self._active = bool(self._statistics or self._readers)
        self._begin, self._last = Schedule(times=(section.begin,)), section.begin
        self._schedule = Schedule.of(section.every) if self._active else Schedule()

    @property
    def record(self) -> dict[str, Any]:
        """The numbers that a restart needs."""
        if not self._active:
            return {}
        return {"statistics": {"weight": self._statistics.weight, "last": self._last}}

    def recall(self, record: Mapping[str, Any], points: Mapping[str, Any]) -> None:
        """Go on from the record and the arrays of a checkpoint."""
        if self._active:
            saved = record["statistics"]
            self._last = saved["last"]
            self._statistics.recall(saved["weight"], points)

    def until(self, number: int, time: float, step: float) -> int:
        """As `Schedule.until`; no sample is due before `statistics.begin`."""
        steps = self._schedule.until(number, time, step)
        return max(steps, self._begin.until(number, time, step)) if time < self._last else steps

    def take(self, stepper: Stepper, number: int, time_step: TimeStep) -> dict[str, Any]:
        """Take a sample after step `number` if one is due; return its columns of the history, if it
        has any (asks all processes)."""
        weight = stepper.time - self._last
        if not (self._schedule.due(number, time_step) and weight > ROUNDING * time_step.length):
            return {}
        stepper.finish()  # with the walls of this very time
        problem = stepper.problem
        problem.time = self._last = stepper.time
        if self._statistics:
            self._statistics.take(stepper.fields, weight)
        row: dict[str, Any] = {SAMPLE_TIME: stepper.time} if self._readers else {}
        for reader in self._readers:
            row |= reader.read(stepper.fields)
        return row
