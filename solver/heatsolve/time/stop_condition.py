"""The condition at which a march ends before its end time: `stop.when`."""

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heatsolve.case.sections import CHANGE, Stop
from heatsolve.case.types import seconds_of
from heatsolve.errors import InputError
from heatsolve.stencil.expressions import comparing_finite


class StopCondition:
    """Whether `stop.when` holds, by the last rows of a history.

    So all processes decide alike, also after a restart.
    """

    def __init__(self, stop: Stop):
        self.text = stop.when.text if stop.when is not None else ""
        self._when = comparing_finite(stop.when) if stop.when is not None else None
        self._steps = stop.over if isinstance(stop.over, int) else None
        self._seconds = seconds_of(stop.over)

    def holds(self, history: Mapping[str, Sequence[Any]]) -> bool:
        """Whether the condition holds at the last row; a value that is not finite does not hold.

        Raises InputError for a column that the history does not have.
        """
        count = len(history["iteration"])
        if self._when is None or not count:
            return False
        columns = {name: rows for name, rows in history.items() if len(rows) == count
                   and not isinstance(rows[-1], list)}  # fmt: skip
        values = {}
        for name in self._when.names:
            column = name.removesuffix(CHANGE)
            if column not in columns:
                raise InputError(
                    f"stop.when: the history has no {column}; it has {', '.join(columns)}"
                )
            changes = name != column
            values[name] = self._change(columns, column) if changes else columns[column][-1]
        value = self._when(**values)
        return bool(value) and bool(np.isfinite(value))

    def _change(self, columns: Mapping[str, Sequence[float]], name: str) -> float:
        """(largest - smallest) / largest magnitude over the last rows, which span `stop.over`;
        infinite if the history is shorter."""
        axis = "time" if self._steps is None else "iteration"
        over = self._seconds if self._steps is None else float(self._steps)
        assert over is not None
        rows = columns[axis]
        begin = rows[-1] - over * (1.0 - 1e-9)
        first = bisect.bisect_right(rows, begin) - 1
        if first < 0:
            return math.inf
        window = columns[name][first:]
        if any(math.isnan(value) for value in window):
            return math.nan
        low, high = min(window), max(window)
        return (high - low) / (max(abs(low), abs(high)) or 1.0)
