"""Sweeps that are recorded once and played back; a device may begin them ahead of its host."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain, islice
from typing import Any

import numpy as np

from heatsolve.backends import Backend
from heatsolve.linear.system import Sweeps, System
from heatsolve.models.base import Fields
from heatsolve.models.flow.pressure import Guesses, Pressure
from heatsolve.models.transport.equations import Stage
from heatsolve.stencil.grid import whole
from heatsolve.stencil.trace import HeldNumber

Key = tuple[Any, ...]
"""The names of sweeps that are made together, each with its arrays."""
Solved = tuple[Key, int, Hashable]
"""The sweeps before a pressure, its iterations, and what the step does at its end."""


class Recorded(dict[Key, Callable[[], None] | None]):
    """Recorded sweeps; None for sweeps that ran only once.

    `next` names the sweeps that came after a pressure, by the sweeps before the pressure, by the
    number of its iterations, which decides the array that holds it, and by the end of the step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.next: dict[Solved, Key] = {}


class Playback:
    """The sweeps of a step from one pressure to the next: they wait, and are made together.

    With `plays_back` the first time allocates the arrays that the sweeps need, the second time
    records the sweeps, and from the third time on they are played back. With `continues` a device
    begins the sweeps behind the iteration for the pressure, before the host has read its end; they
    do nothing unless the iteration converges after as many iterations as in the step before.

    A record serves one system of the `pressure`, and one length of a step unless a device holds the
    `numbers` of a step.
    """

    def __init__(
        self,
        machine: Sweeps,
        pressure: Pressure,
        numbers: "StepNumbers",
        plays_back: bool,
        continues: bool,
    ):
        self._machine, self._pressure, self._numbers = machine, pressure, numbers
        self._plays_back, self._continues = plays_back, continues
        self._waiting: list[tuple[Key, Callable[[], None]]] = []
        self._recorded: dict[float, tuple[System, Recorded]] = {}
        self._made: Key = ()
        """The sweeps that were made last."""
        self._solved: Solved | None = None
        """Of the last pressure; None after the next sweeps."""
        self._end: Hashable = None
        """What the present step does at its end."""
        self._followed: Key | None = None
        """The sweeps that are queued behind an iteration."""
        self._continued: Key | None = None
        """The sweeps of `_followed`, if the device has made them."""

    def add(self, name: Hashable, fields: Fields, work: Callable[[], None], *read: Fields) -> None:
        """Let sweeps wait until `make`. They are known by a name, by the fields that they write,
        and by the fields that they `read` where the former do not tell these."""
        arrays = [id(next(iter(each.values()))) for each in (fields, *read)]
        key = name, *arrays, id(self._pressure.now)
        self._waiting.append((key, work))
        if not self._plays_back:
            self.make()

    def make(self) -> None:
        """Make the sweeps that wait, unless the device has made them already."""
        if not self._waiting:
            return
        key, works = zip(*self._waiting, strict=True)
        self._waiting.clear()

        def work() -> None:
            with self._machine.backend.continuing() if self._continues else nullcontext():
                for make_sweeps in works:
                    make_sweeps()

        if not self._plays_back:
            work()
            return
        plays, self._made = self._present(), key
        if self._solved is not None:
            plays.next[self._solved], self._solved = key, None
        if self._continued is not None:
            assert self._continued == key
            self._continued = None
            return
        play = plays.get(key)
        if play is None:
            args = work, False, self._continues
            plays[key] = self._machine.replayed(*args) if key in plays else None
            play = plays[key] or work
        play()

    def following(self, iterations: int) -> Callable[[], None] | None:
        """The sweeps that follow this number of iterations for the pressure, if they are known."""
        if not self._continues:
            return None
        plays = self._present()
        self._followed = plays.next.get((self._made, iterations, self._end))
        return None if self._followed is None else plays.get(self._followed)

    def solved(self, iterations: int) -> None:
        """The pressure has converged after this number of iterations."""
        if self._continues:
            self._solved = self._made, iterations, self._end
            self._continued = self._followed if self._machine.backend.continued else None

    def begin_step(self, end: Hashable) -> None:
        """Begin a step, also after a step that broke off; `end` tells what it does at its end."""
        self._waiting.clear()
        self._solved = self._continued = None
        self._end = end

    def _present(self) -> Recorded:
        """The sweeps that are recorded for the present step."""
        of_system, _ = self._pressure.solver(self._numbers.length)
        length = 0.0 if self._numbers.holds else self._numbers.length
        system, plays = self._recorded.get(length, (None, Recorded()))
        if system is not of_system:  # recorded with other arrays
            self._recorded.pop(length, None)
            while len(self._recorded) > 1:
                del self._recorded[next(iter(self._recorded))]
            plays = Recorded()
            self._recorded[length] = of_system, plays
        return plays


class StepNumbers:
    """The numbers in the sweeps of a step that follow from its length and from those before.

    `dt` is the `length`, `shares` are b dt of each stage, `factors` -1 / (b dt), `weights` see
    `Pressure.guesses`: these lie in memory, so that steps behind a step of another length are not
    recorded anew. A device that `holds` the others, too, records no sweep anew for another length.
    """

    def __init__(
        self, backend: Backend, axes: int, stages: Sequence[Stage], weights: Guesses, holds: bool
    ):
        self._backend, self._stages, self.holds = backend, stages, holds
        self.length, self._weights, one = 0.0, weights, (1,) * axes
        self._held = backend.zeros((len(list(self._flat)),))
        self._put(self._held, list(self._flat))
        held = (HeldNumber(backend.part(self._held, one, n)) for n in range(self._held.shape[0]))
        self.weights = [
            tuple(tuple(islice(held, len(row))) for row in of_stage) for of_stage in weights
        ]
        if holds:
            self._all = backend.zeros((count := 1 + 2 * len(stages),))
            self._place([HeldNumber(backend.part(self._all, one, n)) for n in range(count)])

    @property
    def _flat(self) -> Iterator[float]:
        return chain.from_iterable(chain.from_iterable(self._weights))

    def _place(self, numbers: Sequence[Any]) -> None:
        self.dt, *others = numbers
        self.shares, self.factors = others[: len(self._stages)], others[len(self._stages) :]

    def take(self, length: float) -> None:
        """Take the length of the step that follows."""
        if length == self.length:
            return
        self.length = length
        shares = [stage.b * length for stage in self._stages]
        numbers = [length, *shares, *[-1.0 / share for share in shares]]
        if self.holds:
            self._put(self._all, numbers)
        else:
            self._place(numbers)

    def take_weights(self, weights: Guesses) -> None:
        """Take the weights of the guesses of a step."""
        if weights != self._weights:
            self._weights = weights
            self._put(self._held, list(self._flat))

    def _put(self, array: Any, numbers: Sequence[float]) -> None:
        self._backend.put(array, whole(array.shape), np.array(numbers))
