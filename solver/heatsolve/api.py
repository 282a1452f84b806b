"""heatsolve from Python: run a case, or make its steps one by one; look at its results."""

import itertools
import math
import operator
import re
import time as clock
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np

from heatsolve.case import load as cases
from heatsolve.case.case import Case
from heatsolve.case.changes import refuse_another, with_values
from heatsolve.case.data import without_arrays
from heatsolve.case.load import locating
from heatsolve.case.toml import TABLE, dump, inline
from heatsolve.case.types import seconds_of
from heatsolve.cli import main as main
from heatsolve.control.controller import Start
from heatsolve.control.stop import StopRequest
from heatsolve.errors import CaseError, InputError
from heatsolve.io.checkpoints import CheckpointStore
from heatsolve.io.memory import whole
from heatsolve.io.writer import target
from heatsolve.linear.iterate import Outcome
from heatsolve.models.heat.solver import method_name
from heatsolve.models.user import model as model
from heatsolve.parallel.ranks import Ranks, failing_together, find_ranks
from heatsolve.report import Report
from heatsolve.result import Result as Result
from heatsolve.result import labelled
from heatsolve.runner import Run, save
from heatsolve.stencil.grid import slices
from heatsolve.time.pause import Until
from heatsolve.time.schedule import Schedule
from heatsolve.tools.check import Check as Check
from heatsolve.tools.check import preview

Every = str | float | Sequence[float] | None
"""How often: `"10 steps"`, 0.5 or `"0.5 s"` of the march's own time, a list of times."""
Overrides = Mapping[str, Any] | Sequence[str]
"""Keys of a case and their values, `{"grid.cells": [64, 64]}`, or texts as for `--set`."""

WRITTEN: dict[tuple[Path, str], str] = {}
"""The texts of cases given as tables that this process has run, by folder and name."""


def load(case: str | Path | Mapping[str, Any], overrides: Overrides = ()) -> Case:
    """The case of a file, of a shipped name, or of a table as `tomllib` gives it.

    In a table and in overrides arrays of NumPy may stand for lists, and its scalars for numbers;
    where a field may stand, an array of NumPy or xarray gives its values. Raises CaseError, with a
    line for each mistake; InputError if there is no such case.
    """
    arrays: dict[str, Any] = {}
    if not isinstance(case, str | PathLike | Mapping):
        raise InputError(f"case = {case!r} must be a file, the name of a shipped case, or a table")
    try:
        settings = list(overrides)
        if isinstance(overrides, Mapping):
            pairs = [(key, tuple(key.split("."))) for key in overrides]
            settings = [
                f"{key}={inline(without_arrays(overrides[key], arrays, path), path)}"
                for key, path in pairs
            ]
        text = dump(without_arrays(case, arrays)) if isinstance(case, Mapping) else None
    except (TypeError, AttributeError, RecursionError) as error:
        raise CaseError(f"{TABLE}: {error}") from None
    if text is None:
        return cases.load(case, settings).with_arrays(arrays)  # type: ignore[arg-type]
    parsed = cases.parse(text, TABLE, settings)
    return parsed.named("case", parsed.text, parsed.origin).with_arrays(arrays)


def run(
    case: str | Path | Mapping[str, Any] | Case,
    *,
    each: Callable[["Simulation"], object] | None = None,
    every: Every = None,
    backend: str | None = None,
    overrides: Overrides = (),
    output: str | Path | bool | None = None,
    restart: bool = False,
    overwrite: bool = False,
    strict: bool = False,
    quiet: bool = True,
) -> Result:
    """Run a case, write its file, and return its results.

    The file is NAME.h5 in the current folder. The first case that a process gives as a table there
    is called "case", further, different ones "case-2", "case-3" and so on; `restart` takes the name
    whose checkpoints are of this case. With `output=False` there is no file, and the result stays
    in memory.

    `each(simulation)` is called when `march` would yield, with `every` as there. The run ends when
    `each` returns True or a text, the reason, or calls `Simulation.stop`.

    Under mpiexec or srun the processes run it together, and each has the whole result. `restart`,
    `overwrite` and `strict` are as on the command line. Raises HeatsolveError: InputError,
    Diverged, FileFailure. A run that has not converged is no error: see `Result.converged`.

    >>> result = heatsolve.run("hot-plate", overrides={"grid.nodes": [17, 17]}, output=False)
    >>> result.converged, result["temperature"].shape
    (True, (17, 17))
    """
    if each is not None and not callable(each):
        raise InputError(f"each = {each!r} must be a function of the simulation")
    if each is None and every is not None:
        raise InputError("every says how often each is called: give each, or a loop over march")
    simulation = Simulation(
        case,
        backend=backend,
        overrides=overrides,
        output=output,
        restart=restart,
        overwrite=overwrite,
        strict=strict,
        quiet=quiet,
    )
    try:
        if each is None:
            simulation.run()
        else:
            simulation.call(each, every)
    except KeyboardInterrupt:
        simulation._leave("interrupted")
        raise
    return simulation.result


def march(
    case: str | Path | Mapping[str, Any] | Case, every: Every = None, **options: Any
) -> Iterator["Simulation"]:
    """The simulation of a case at its start, at the times of `every`, and at its end.

    `every` is a number of steps, `"10 steps"`; a time of the march, 0.5 or `"0.5 s"`; or a list of
    times. A time means the first step that reaches it: no step is shortened to meet a time. By
    default it is each step. The iterations of a steady case count as steps. A restart first yields
    after the step of its checkpoint. Other options are as for `Simulation`. A loop that is left
    early ends the run there.

    >>> plate = {"overrides": {"grid.cells": [16, 16], "time.end": 0.1}}
    >>> for sim in heatsolve.march("taylor-green", every=0.05, **plate):
    ...     print(sim.steps, round(sim.time, 3))
    0 0.0
    3 0.06
    5 0.1
    """
    return Simulation(case, **options).march(every)


class Simulation(Mapping[str, Any]):
    """A run of a case that makes steps when a program asks for them; a mapping of its fields.

    It begins before the first step, or behind the step of a checkpoint. Its steps have the bits of
    the steps of `run`, however a program asks for them. By default there is no file, and the frames
    that the case asks for are kept in memory; with `output`, a path or None for NAME.h5, they are
    written as by `run`, and the file is complete when the run is over. Options and errors are as
    for `run`. In a `with` block the run ends with the block.

    Under mpiexec or srun all processes make the same calls of each method that makes steps or reads
    fields.

    >>> sim = heatsolve.Simulation("hot-plate", overrides={"grid.nodes": [17, 17]})
    >>> sim.step(2)
    2
    >>> sim["temperature"].shape
    (17, 17)
    """

    def __init__(
        self,
        case: str | Path | Mapping[str, Any] | Case,
        *,
        backend: str | None = None,
        overrides: Overrides = (),
        output: str | Path | bool | None = False,
        restart: bool = False,
        overwrite: bool = False,
        strict: bool = False,
        quiet: bool = True,
    ):
        self._reason, self._broken, self._yielded = "", False, False
        self._result: Result | None = None
        self._began, self._ranks = clock.perf_counter(), find_ranks()
        self._report = Report(quiet, mute=self._ranks.rank > 0)
        with self._together():
            self.case = _loaded(case, overrides)
            """The case."""
            path = self._path(output, restart)
            start = Start(restart, overwrite=overwrite)
            args = self.case, backend, path, self._report, self._ranks, start
            self._run = Run(*args, strict=strict, kept=output is False)
            pause = self._run.advance()
            assert pause is not None
            self._at, self._first = pause, pause.number

    def _path(self, output: str | Path | bool | None, restart: bool) -> Path | None:
        """The path of the run's file; None for NAME.h5, or for no file."""
        case = self.case
        if output == "":
            raise InputError("output is given nothing")
        if output is False and restart:
            raise InputError("restart: checkpoints lie beside a file, so give output")
        if not isinstance(output, bool) and output is not None:
            return _file("output", output)
        if output is False or case.origin is None or case.origin.name != TABLE:
            return None
        name = _name_of(case, restart) if self._ranks.rank == 0 else None
        return Path(f"{self._ranks.gather(name)[0]}.h5")

    @contextmanager
    def _together(self) -> Iterator[None]:
        """In this context an error ends the run, on all processes."""
        try:
            with failing_together(self._ranks):
                yield
        except BaseException:
            self._broken = True
            self._report.end()
            raise

    # ---- steps ---------------------------------------------------------------------------------

    def step(self, count: int = 1) -> int:
        """Make `count` steps or iterations, fewer at the end of the run; return their number.

        Raises InputError for anything but a whole number from 0 on.

        >>> sim = heatsolve.Simulation("hot-plate", overrides={"grid.nodes": [17, 17]})
        >>> while sim.step(4):
        ...     print(sim.steps)
        4
        6
        """
        first, number = self.steps, -1
        with suppress(TypeError):
            number = -1 if isinstance(count, bool) else operator.index(count)
        if number < 0:
            raise InputError(f"step: {count!r} must be a whole number of steps, 0 or more")
        self._go(Until(first + number))
        return self.steps - first

    def run(self, until: float | str | None = None) -> None:
        """March to the first step that reaches a time, 0.5 or `"0.5 s"`, by default to the end.

        Raises InputError for a time behind the end of the march, or a value that is no time.
        """
        moment, end = math.inf, self.case.time
        if until is not None:
            if end is None:
                raise InputError("until: a steady case has no time, use step()")
            found = time_of(until)
            if found is None or math.isnan(found):
                raise InputError(f'until = {until!r} must be a time such as 0.5 or "0.5 s"')
            if found > end.end:
                raise InputError(f"until = {found:g} lies behind time.end = {end.end:g}")
            # The time of a step is rounded: 7 steps of 0.01 end before 0.07.
            if self.time is not None and found <= self.time + 1e-9 * abs(found):
                return
            moment = found
        self._go(Until(time=moment))

    def march(self, every: Every = None) -> Iterator[Self]:
        """Yield the simulation now, at the times of `every`, at the end: see `heatsolve.march`."""
        return self._march(schedule_of(every, self.case.model.steady))

    def _march(self, schedule: Schedule) -> Iterator[Self]:
        seen = self._first if self._at.restarted else -1
        try:
            while not self.over or self.steps != seen:
                if self.steps != seen:
                    seen, self._yielded = self.steps, True
                    yield self
                    self._yielded = False
                if steps := schedule.steps:
                    self._go(Until(self.steps - self.steps % steps + steps))
                else:
                    self._go(Until(schedule=schedule))
        except GeneratorExit:
            if not self._broken:
                self.close("the loop was left")
            raise
        finally:
            self._yielded = False

    def call(self, each: Callable[["Simulation"], object], every: Every = None) -> None:
        """Call a function each time that `march` would yield, up to the end of the run.

        The run ends when the function returns True or a text, the reason, or calls `stop`; the file
        is complete even if the function raises an error.
        """
        with failing_together(self._ranks):
            for _ in self.march(every):
                try:
                    answer = each(self)
                except BaseException as error:
                    self._leave(f"the callback raised {type(error).__name__}")
                    raise
                if answer:
                    self.stop(answer if isinstance(answer, str) else "the callback said so")

    def set(self, key: str | Mapping[str, Any], value: Any = None) -> None:
        """Give a source or a wall of a march another value from the next step on.

        `key` is a key of the case, or a mapping of several keys to values; a value may be an
        expression of x, y, z and t. All processes must set the same values. The file names them
        with their steps (`changes`), and checkpoints hold them. In the last call of a callback, and
        in the last turn of a loop over `march`, `set` has no effect.

        Raises CaseError for a value that the case cannot have, InputError for any other key, for a
        steady case, after the end of the run, and where the step of the march would be unstable;
        then nothing has changed.

        >>> sim = heatsolve.Simulation("cooling-cube", overrides={"grid.nodes": [9, 9, 9]})
        >>> sim.step(4)
        4
        >>> sim.set("boundary.top.temperature.value", 0.5)
        >>> sim.set({"source.temperature": "10*x", "boundary.left.temperature.value": "t"})
        >>> sim.changes[0]
        (4, 0.01, {'boundary.top.temperature.value': '0.5'})
        """
        pairs = list(key.items()) if isinstance(key, Mapping) else [(key, value)]
        if not pairs or not all(isinstance(name, str) for name, _ in pairs):
            raise InputError(f'set: give a key such as "source.temperature", not {key!r}')
        if self.case.time is None:
            raise InputError("set: a steady case has no steps, run another one")
        try:
            settings = tuple((name, inline(given, (name,))) for name, given in pairs)
        except (TypeError, AttributeError, RecursionError) as error:
            raise CaseError(f"set: {error}") from None
        self._demand_sound()
        if self.over:
            with_values(self.case, settings)
            if not self._yielded:
                raise InputError("set: the run is over, there is no next step")
            return
        with self._together():
            pause = self._run.advance(self._agreed(Until(settings=settings)))
            assert pause is not None
            self._at = replace(pause, refused=None)
        if pause.refused is not None:
            raise pause.refused

    @property
    def changes(self) -> list[tuple[int, float, dict[str, str]]]:
        """The changed settings: step, time, and the values of keys as TOML."""
        return [(each.number, each.time, dict(each.settings)) for each in self._run.changes]

    def stop(self, reason: str = "stopped") -> None:
        """End the run before its next step: after a callback, or after the body of a loop.

        A call on one process stops all processes.
        """
        self._reason = reason

    def close(self, reason: str = "closed") -> None:
        """End the run here, and complete its file; do nothing if the run is over."""
        self._reason = self._reason or reason
        self._go(Until())

    def _go(self, until: Until) -> None:
        """Go on as all processes ask; a stop comes first. Do nothing if the run is over."""
        self._demand_sound()
        if self.over:
            return
        request = StopRequest()
        with self._together(), request.heard() if self._ranks.size == 1 else nullcontext():
            until = replace(self._agreed(replace(until, stop=self._reason)), request=request)
            if until.number == self.steps and not until.stop:
                return
            while (pause := self._run.advance(until)) is not None:
                self._at = pause
                if pause.time is not None or pause.number >= until.number or request.made:
                    break  # else the iteration began anew, with scaled values
            else:
                self._end()
        if request.made:  # the simulation is as good as before
            raise KeyboardInterrupt

    def _demand_sound(self) -> None:
        if self._broken:
            raise InputError("this run has ended with an error: begin another one")

    def _agreed(self, until: Until) -> Until:
        """The request of all processes. Raises InputError where they differ."""
        asked = self._ranks.gather(until)
        if reasons := [each.stop for each in asked if each.stop]:
            return replace(until, stop=reasons[0])
        for rank, each in enumerate(asked):
            if each != asked[0]:
                raise InputError(
                    f"rank {rank} of {len(asked)} asks for {each.said}, but rank 0 for "
                    f"{asked[0].said}: all of them must make the same calls"
                )
        return until

    def _end(self) -> None:
        """Take the result of a run that is over."""
        done = self._run.result
        assert done is not None
        problem, outcome = self._at.problem, done.outcome
        self._at = replace(
            self._at, number=outcome.count, time=done.time, norm=outcome.norm, back=1.0,
            history=outcome.history, present=lambda: problem.fields,
        )  # fmt: skip
        self._report.end()
        self._ranks.gather(None)  # no process reads before all have written
        if done.solution is None and self._ranks.rank == 0 and self.case.output.drawn:
            from heatsolve_post import draw

            draw(done.path, self.case.output, self._report.line, self._report.warn)
        self._result = Result(done.path if done.solution is None else done.solution)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._leave(f"its block raised {kind.__name__}")

    def _leave(self, reason: str) -> None:
        """End the run after an error of the program; one of many processes asks no other."""
        if self._ranks.size == 1 and not self._broken:
            self.close(reason)
        elif not self.over:
            self._run.abandon()
            self._broken = True

    def __del__(self) -> None:
        if getattr(self, "_run", None) and not self.over:
            self._run.abandon()
            if self._run.path is not None and not self._broken:
                self._report.warn(
                    f"{self._run.path} is not written: its run was neither taken to its end nor "
                    "closed"
                )

    # ---- what can be seen ------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the run is at its end."""
        return self._result is not None

    @property
    def result(self) -> Result:
        """The result of a run that is over. Raises InputError before its end."""
        if self._result is None:
            raise InputError("the run is not over yet: run() takes it to its end, close() ends it")
        return self._result

    @property
    def steps(self) -> int:
        """Steps, or iterations of a steady case, up to now."""
        return self._at.number

    @property
    def time(self) -> float | None:
        """The time of a march (s); None for a steady case."""
        return self._at.time

    @property
    def norm(self) -> float:
        """The norm that was checked last, as in the history; NaN before the first check."""
        return self._at.norm

    @property
    def history(self) -> dict[str, np.ndarray]:
        """The history of a march up to now, as in `Result`; of a steady case only at its end."""
        return {name: np.array(values) for name, values in self._at.history.items()}

    @property
    def coordinates(self) -> dict[str, np.ndarray]:
        """The positions along each axis, slowest first."""
        axes = self._at.problem.whole.axes
        return {axis.name: axis.coordinates[slice(*axis.stored)] for axis in axes}

    def __iter__(self) -> Iterator[str]:
        return iter(self._at.problem.fields)

    def __len__(self) -> int:
        return len(self._at.problem.fields)

    def __contains__(self, name: object) -> bool:
        return name in self._at.problem.fields

    def __getitem__(self, name: str) -> Any:
        """The whole field now, on every process: an `xarray.DataArray` where xarray is installed,
        else an array; a copy."""
        mine = self.field(name)
        window = tuple(axis.stored_at for axis in self._at.problem.grid.axes)
        axes, units = self.coordinates, self.case.all_units
        with failing_together(self._ranks):
            values = whole(self._ranks.gather((window, mine)), [len(x) for x in axes.values()])
        known = {name: units.get(name, "1"), **dict.fromkeys(axes, units.get("length", "1"))}
        return labelled(values, name, axes, known)

    def field(self, name: str, device: bool = False) -> Any:
        """This process's own block of a field now, as in a file: an array on the host, a copy. The
        field may also be a derived one, such as "vorticity", or a statistic.

        With `device` it is the array of the scheme itself, a CuPy array on the backend cupy: only
        read it, and only until the next step. In it velocities of a staggered grid stand at faces,
        and a pressure is as the scheme has it.
        """
        problem = self._at.problem
        more = *problem.case.derived, *problem.case.statistic_fields
        if name not in self and name not in more:
            raise KeyError(f"there is no field {name!r}, only {', '.join((*self, *more))}")
        with failing_together(self._ranks), np.errstate(all="ignore"):
            if not device:
                return self._at.stored([name])[name]
            fields = self._at.present()
            array = fields[name] if name in fields else problem.written(name, fields)
            array = problem.backend.lent(array)
            problem.backend.sync()
        block = array[slices(problem.grid.stored)]
        if isinstance(block, np.ndarray):
            block.flags.writeable = False
        return block if self._at.back == 1.0 else self._at.back * block

    def save(self, path: str | Path) -> None:
        """Write the fields now, and the history up to now, to a file of results."""
        with failing_together(self._ranks), np.errstate(all="ignore"):
            args = self._seconds, self._run.changes, None, self._outcome
            save(self._at, target(_file("path", path)), *args)

    @property
    def _outcome(self) -> Outcome | None:
        """The outcome of a run that is over."""
        return None if self._run.result is None else self._run.result.outcome

    @property
    def _seconds(self) -> float:
        return clock.perf_counter() - self._began

    def snapshot(self) -> Result:
        """The fields now, and the history up to now, as a Result in memory."""
        return self._snapshot()

    def _snapshot(self, names: Sequence[str] | None = None) -> Result:
        with failing_together(self._ranks), np.errstate(all="ignore"):
            args = self._seconds, self._run.changes, names, self._outcome
            found = save(self._at, None, *args)
        assert found is not None
        return Result(found)

    def figure(self, field: str | None = None, **options: Any) -> Any:
        """A matplotlib Figure of a field now, derived ones among them; options are those of
        `Result.figure`."""
        derived = self.case.derived
        if field is None or field in self.case.written or options.get("history"):
            return self.snapshot().figure(field, **options)
        if field not in self and field not in derived:
            raise InputError(
                f"{self.case.name} has no field {field!r}, only {', '.join((*self, *derived))}"
            )
        return self._snapshot([field]).figure(field, **options)

    __eq__, __hash__ = object.__eq__, object.__hash__

    def __repr__(self) -> str:
        time = "" if self.time is None else f", t = {self.time:g}"
        return f"<heatsolve.Simulation {self.case.name}: {self.steps} steps{time}>"


def time_of(value: Any) -> float | None:
    """The seconds of a time, 0.5 or `"0.5 s"`; None for a value that is no time."""
    if isinstance(value, str):
        return seconds_of(value)
    real = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    return float(value) if real else None


def _file(name: str, value: Any) -> Path:
    try:
        return Path(value)
    except TypeError:
        raise InputError(f"{name} = {value!r} must be the name of a file") from None


def schedule_of(every: Every, steady: bool) -> Schedule:
    """The schedule of the yields of a march. Raises InputError for an invalid `every`."""
    if every is None:
        return Schedule(steps=1)
    if isinstance(every, str) and (
        steps := re.fullmatch(r"\s*0*([1-9]\d*)\s*(steps?|iterations?)\s*", every, re.ASCII)
    ):
        return Schedule(steps=int(steps[1]))
    schedule = None
    with suppress(TypeError, ValueError):
        if isinstance(every, str):
            seconds = seconds_of(every)
        elif isinstance(every, float | np.floating):
            seconds = float(every)
        else:
            seconds, times = None, tuple(map(float, every))
            if times and all(low < high for low, high in itertools.pairwise((-1.0, *times))):
                schedule = Schedule(times=times)
        if seconds is not None and 0.0 < seconds < math.inf:
            schedule = Schedule(seconds=seconds)
    if schedule is None:
        raise InputError(
            f'every = {every!r} must be a number of steps such as "10 steps", a time such as 0.5 '
            'or "0.5 s", or a list of times that ascend'
        )
    if steady:
        raise InputError(f'every = {every!r} is a time, a steady case has "10 steps"')
    return schedule


def check(
    case: str | Path | Mapping[str, Any] | Case,
    *,
    backend: str | None = None,
    overrides: Overrides = (),
    ranks: int = 1,
    machine: str | None = None,
    timed: bool = True,
    strict: bool = False,
) -> Check:
    """What a run of a case would do: equation, grid, steps, memory, files, and the time at least.

    `ranks`: the number of processes of the run; `machine`: a machine of known speed, "h200", by
    default this machine; without `timed` no speed is measured. Raises InputError where a run would
    do so before its first step.

    >>> answer = heatsolve.check("taylor-green", overrides={"grid.cells": [64, 64]}, timed=False)
    >>> answer["grid"]
    '64 x 64 cells, 4096 unknowns, spacing 0.0981748 x 0.0981748'
    >>> answer.steps * answer.step > 0.99
    True
    """
    loaded = _loaded(case, overrides)
    with locating(loaded):
        report = Report(quiet=True)
        return Check(preview(loaded, backend, ranks, report, strict, timed, machine))


def _loaded(case: str | Path | Mapping[str, Any] | Case, overrides: Overrides) -> Case:
    """The case itself, or loaded with overrides. Raises InputError for overrides of a `Case`."""
    if not isinstance(case, Case):
        return load(case, overrides)
    if overrides:
        raise InputError("overrides: a loaded case takes none, give them to heatsolve.load")
    return case


def _name_of(case: Case, restart: bool) -> str:
    """The name of a case given as a table: its name in an earlier run, or else a new name."""
    here = Path.cwd()
    earlier = {name: text for (folder, name), text in WRITTEN.items() if folder == here}
    names = (f"case-{n}" if n > 1 else "case" for n in itertools.count(1))
    name = (
        (_name_to_go_on(case) if restart else None)
        or next((name for name, text in earlier.items() if text == case.text), None)
        or next(name for name in names if name not in earlier)
    )
    WRITTEN[here, name] = case.text
    return name


def _name_to_go_on(case: Case) -> str | None:
    """The name of which checkpoints in the current folder belong to this case, a table."""
    names = {}
    for folder in Path().glob("case*.checkpoints"):
        if number := re.fullmatch(r"case(?:-(\d+))?", folder.stem):
            state = CheckpointStore(folder, (), (), Ranks()).latest()
            with suppress(InputError):  # it is of another case
                refuse_another(str(state.record.get("case")) if state else "", case, method_name)
                names[int(number[1] or 1)] = folder.stem
    return names[min(names)] if names else None


def open(path: str | Path) -> Result:
    """The results of an earlier run, in a file."""
    return Result(_file("path", path))
