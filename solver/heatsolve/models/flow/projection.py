"""The steps of a march of flow: Runge-Kutta stages, each made free of divergence."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from heatsolve.backends import Accumulator, PointSweep
from heatsolve.errors import Diverged, NotConverged
from heatsolve.models.base import Fields, Measured, RungeKutta, Substep
from heatsolve.models.flow import equations as flow
from heatsolve.models.flow.implicit_diffusion import ImplicitDiffusion
from heatsolve.models.flow.measures import Measures
from heatsolve.models.flow.playback import Playback, StepNumbers
from heatsolve.models.flow.pressure import MOST_STEPS, Pressure
from heatsolve.models.transport import equations as transport
from heatsolve.models.transport.equations import Stage
from heatsolve.stencil.language import copy

if TYPE_CHECKING:
    from heatsolve.models.flow.staggered import Staggered

EULER_STEPS = 2
"""The number of first steps that take implicit diffusion by Euler's backward scheme."""
OLDER = (
    "pressure of the stage before",
    "pressure two stages before",
    "pressure three stages before",
    "pressure four stages before",
    "pressure five stages before",
    "pressure six stages before",
)
"""The names, in a state, of the pressures of the stages before the last one."""


class Projection(RungeKutta):
    """The projection method: Runge-Kutta stages of the velocities and of the quantities that they
    carry, each followed by the pressure that removes the divergence (A. J. Chorin, Math. Comp. 22
    (1968), 745).
    """

    def __init__(self, problem: "Staggered", time: float, step: float):
        case, backend = problem.case, problem.backend
        adams = case.march.scheme == "adams-bashforth"
        scheme = "explicit" if adams else case.march.scheme  # Adams-Bashforth begins with Euler
        self._advanced = [*problem.components, *problem.carried]
        super().__init__(problem, time, scheme, self._advanced)
        self.problem: Staggered = problem
        self._rates = self._arrays() if adams else {}
        self._machine = problem.sweeps
        self._copy = self._machine.like
        self._case = case.altered(
            solver={"norm": "max", "monitor": "residual", "check_every": 1, "relative": False}
        )
        implicit = case.march.diffusion != "explicit"
        self._diffusion = ImplicitDiffusion(problem, self._case) if implicit else None
        self.pressure = Pressure(problem, self._case, self._stages)
        self._plays_back = not problem.driven_in_time
        # Sweeps with other terms that depend on a step's length are recorded for each length.
        plain = backend.on_device and self._plays_back and not (implicit or adams)
        holds = plain and problem.bodies is None
        args = backend, problem.grid.dimension, self._stages, self.pressure.guesses(()), holds
        self._numbers = StepNumbers(*args)
        self._numbers.take(step)
        continues = plain and backend.continues and self._machine.replays
        self._playback = Playback(
            self._machine, self.pressure, self._numbers, self._plays_back, continues
        )
        self._play = self._playback.add
        self._measures = Measures(problem)
        self._asks = False
        """Whether the present step must find its largest velocity: it was not known before."""
        self._predicted: float | None = None
        """The length of the step for which the first stage is predicted from the newest fields."""
        self._length, self._last = step, step
        self._driving: dict[str, float] = {}

    @property
    def norm(self) -> float:  # type: ignore[override]
        return self.pressure.norm

    @property
    def fields(self) -> Fields:  # type: ignore[override]
        result = {**self._now, "pressure": self.pressure.now}
        ordered = {name: result[name] for name in self.problem.names}
        rates = {f"rate of {name}": array for name, array in self._rates.items()}
        older = dict(zip(OLDER, self.pressure.older, strict=False))
        return {**ordered, **older, **rates}

    @property
    def scalars(self) -> dict[str, float]:
        before = self.pressure.lengths
        lengths = {f"length {n} steps before": before[n] for n in range(1, len(before))}
        return {"length": self._length, **lengths, **self._driving}

    def recall(self, steps: int, scalars: Mapping[str, float], fields: Mapping[str, Any]) -> None:
        self._driving = dict(scalars)
        self._length = length = self._driving.pop("length")
        # Checkpoints of earlier versions lack the lengths before.
        names = [f"length {n} steps before" for n in range(1, MOST_STEPS)]
        self.pressure.lengths = (length, *[self._driving.pop(name, length) for name in names])
        self.pressure.known = steps * len(self._stages)
        for name, array in zip(OLDER, self.pressure.older, strict=False):
            # Checkpoints of earlier versions lack most of them, and a guess may be any field.
            self.problem.restore(array, fields.get(name, fields["pressure"]))
        for name, array in self._rates.items():
            self.problem.restore(array, fields[f"rate of {name}"])

    def prepare(self) -> None:
        """Project the initial velocity; the pressure of this projection is not the flow's."""
        problem = self.problem
        if problem.bodies is not None:
            problem.bodies.fill(self._now)
        self._measures.post_speed(self._now)
        self._measures.await_speed()
        problem.write_faces(self._now, 0.0)
        with suppress(NotConverged, Diverged):  # the first step raises it again
            self._find_pressure(self._now, 1.0, 0.0)
        self._correct(self._now, 1.0)
        self._apply_mean_force(self._now, 1.0)
        self._driving = {}
        problem.write_walls(self._now, 0.0)
        if self._diffusion is not None:  # a step with implicit diffusion begins with the pressure
            self._find_present_pressure()
        else:
            self._copy(problem.fields["pressure"], self.pressure.now)

    def _advance(self, part: Substep, change: Accumulator | None) -> None:
        self._begin_step(part, change)
        dt, start = part.length, self._now
        predicted, self._predicted = self._predicted == dt, None
        before = start
        if change is not None and self._diffusion is not None:  # it writes later walls to `start`
            self._copy_to(before := self._old_arrays())
        for stage, new, now in self._each_stage(change):
            begin, end = part.start + stage.begin * dt, part.start + stage.end * dt
            if stage.number > 0 or not predicted:
                self._predict(stage, (new, start, now), begin)  # u* = a u_n + b (u + dt L(u))
                self._apply_walls(stage, new, end)  # velocities at walls and neighbours' faces
            if stage.number == 0:
                # Where the length has changed, a device begins while its host finds the weights.
                self._playback.make()
                self._numbers.take_weights(self.pressure.guesses(self.pressure.lengths))
            self._solve_pressure(stage, new, now, end)  # lap p = div u* / (b dt)
            self._correct_stage(stage, new, end)  # u = u* - b dt grad p
        if self.is_measured:  # here a device need not wait for its host before
            now = {**new, "pressure": self.pressure.now}
            self._play("measures", new, lambda: self._measures.make(now))
        self._measures.are_made, self.is_measured = self.is_measured, False
        if change is not None:
            name = f"change {id(change)}"
            self._play(name, new, lambda: self._add_change(new, before, change), before)
        self._playback.make()
        self._take(new)

    def _begin_step(self, part: Substep, change: Accumulator | None) -> None:
        """Take the length of a step, and the walls and the largest velocity at its start."""
        problem, start = self.problem, self._now
        self._playback.begin_step((self.is_measured, id(change)))
        self._last, self._length = self._length, part.length
        self._numbers.take(part.length)
        self.pressure.begin_step(part.length)
        if problem.walls_vary:
            problem.write_walls(start, part.start)
        self._asks = self._measures.begin_step()
        if self._asks:
            self._play("speed", start, lambda: self._measures.post_speed(start))

    def _predict(self, stage: Stage, fields: tuple[Fields, Fields, Fields], time: float) -> None:
        """Predict u* by convection, diffusion and forces; `fields`: new, at the start, and now."""
        new, start, now = fields
        name = f"predict {stage.number}, {self._share if self._rates else 0.0}"
        self._play(name, new, lambda: self._make_stage(fields, stage, time, self._rates), start)
        if self._diffusion is not None:
            self._playback.make()
            self._diffuse(self._diffusion, new, now, time)

    def _predict_ahead(self) -> None:
        """Let a device predict the first stage of a step of the present length while its host waits
        for the numbers from which the length follows: another length is predicted anew."""
        queued = self._numbers.holds and self._machine.replays  # also the exchange of walls
        if queued and len(self._stages) > 1 and self._predicted is None:
            stage, now, new = self._stages[0], self._now, self._others[0]
            self._predict(stage, (new, now, now), self.time)
            self._apply_walls(stage, new, self.time)
            self._playback.make()
            self._predicted = self._numbers.length

    def _apply_walls(self, stage: Stage, new: Fields, time: float) -> None:
        problem = self.problem
        self._play(f"walls {stage.number}", new, lambda: problem.write_faces(new, time))
        if problem.walls_vary:
            problem.demand_balance(time)

    def _solve_pressure(self, stage: Stage, new: Fields, now: Fields, time: float) -> None:
        pressure, share, length = self.pressure, stage.b * self._length, self._length
        _, method = pressure.solver(length)
        sums = self._numbers.weights[stage.number] if method.needs_start else ()

        # The place of the oldest pressure, which a guess overwrites, is part of the name.
        name = "pressure", stage.number, sums, id(pressure.older[-1]) if sums else 0
        factor = self._numbers.factors[stage.number]
        # `now` tells apart what may follow where the first stage was predicted ahead.
        self._play(name, new, lambda: pressure.begin(new, factor, length, sums), now)
        self._playback.make()
        if stage.number == 0 and self._asks:
            self._measures.await_speed()
        pressure.known += 1
        playback = self._playback
        args = share, length, self._measures.fastest, time, stage.number, playback.following
        pressure.solve(*args, partial(self._expect_step, stage))
        playback.solved(pressure.counts[stage.number])

    def _expect_step(self, stage: Stage) -> None:
        """Find the weights of the next step's guess of a stage, and with the last stage give all to
        the device, in case the next step has the length of this one."""
        if not self.problem.backend.on_device:
            return
        lengths = self.pressure.next_lengths(self._length)
        self.pressure.weights(stage.number, lengths)  # kept, so that `guesses` finds them at once
        if stage is self._stages[-1]:
            self._numbers.take_weights(self.pressure.guesses(lengths))

    def _correct_stage(self, stage: Stage, new: Fields, time: float) -> None:
        problem, share = self.problem, stage.b * self._length
        held, forced = self._numbers.shares[stage.number], bool(problem.mean_velocities)
        exchanges = not (forced or problem.walls_vary)
        name = f"correct {stage.number}"
        self._play(name, new, lambda: self._correct(new, held, solved=True, exchanges=exchanges))
        if forced:
            self._playback.make()
            self._apply_mean_force(new, share)
        name = f"ghosts {stage.number}"
        self._play(name, new, lambda: problem.write_walls(new, time, exchanged=exchanges))

    def _make_stage(
        self, fields: tuple[Fields, Fields, Fields], stage: Stage, time: float, rates: Fields
    ) -> None:
        """Make a stage of Runge-Kutta, or of Adams and Bashforth where there are `rates`.

        With implicit diffusion the new fields get the rates of all terms except diffusion.
        """
        problem, backend, dt = self.problem, self.problem.backend, self._numbers.dt
        implicit = bool(rates) and self._diffusion is not None
        new, start, now = fields
        waiting: list[PointSweep] = []
        for name, region, rate, args in problem.rates(now, time, implicit):
            surface = () if problem.bodies is None else problem.bodies.surface(name, self._length)
            u = now[name]
            inside = region == problem.inside(name)  # and not an open face
            out: Any = (new[name], rates[name]) if rates else new[name]
            if not rates:
                point = flow.stage(rate, len(surface))
                args = (start[name], u, stage.a, stage.b, dt, *surface, *args)
            elif implicit and inside:
                point, args = flow.ahead(rate), (rates[name], self._share, *args)
            else:  # an open face has no diffusion
                point = flow.adams(rate, len(surface))
                args = (u, rates[name], dt, self._share, *surface, *args)
            if inside and not problem.second:
                waiting.append(PointSweep(point, out, region, args))
            else:
                backend.sweep(point, out, region, *args)
        if waiting:
            backend.sweep_together(waiting)

    @property
    def _share(self) -> float:
        """Half the ratio of a step's length to the length of the step before; 0 in the first."""
        return 0.5 * self._length / self._last if self.pressure.known > 0 else 0.0

    def _diffuse(
        self, diffusion: "ImplicitDiffusion", new: Fields, now: Fields, time: float
    ) -> None:
        """Solve for diffusion: `new` holds the rates of all other terms, afterwards the fields.

        The gradient of the last pressure is applied first and removed at the end. This reduces the
        error at walls, because the new pressure is known only later (J. van Kan, SIAM J. Sci.
        Stat. Comput. 7 (1986), 870).
        """
        problem, dt = self.problem, self._length
        sweep, per_h = problem.backend.sweep, problem.inverse_spacings
        theta = self._theta
        self._correct(new, dt, only_open=True)
        for component, region in problem.open_faces().items():
            w = now[problem.components[component]]
            sweep(flow.blended, w, region, w, new[problem.components[component]], theta)
        if problem.walls_vary or problem.open_ends:
            problem.write_walls(now, time + theta * dt)
        for name in self._advanced:
            right = diffusion.explicit_part(name, new[name], now[name])
            if name in problem.components:
                component = problem.components.index(name)
                region = problem.inside(name)
                args = (self.pressure.now, 1.0, per_h[component])
                sweep(flow.projected(component), right, region, right, *args)
                force = self._driving.get(f"driving_force_{name[-1]}", 0.0)
                sweep(flow.raised, right, region, right, force)
            diffusion.advance(name, new[name], now[name], dt, theta)
        self._correct(new, -dt)

    @property
    def _theta(self) -> float:
        """0.5 (Crank-Nicolson), but 1 (backward Euler) in the first steps: it damps jumps."""
        return 1.0 if self.pressure.known < EULER_STEPS else 0.5

    def _find_pressure(self, fields: Fields, dt: float, time: float) -> None:
        self.pressure.begin(fields, -1.0 / dt, self._length)
        self.pressure.solve(dt, self._length, self._measures.fastest, time)

    def make_solvers(self, parts: Sequence[Substep]) -> None:
        (part,) = parts
        self._length = part.length
        self.pressure.solver(part.length)
        if self._diffusion is not None:
            for name in self._advanced:
                self._diffusion.solver(name, part.length, self._theta)

    def _correct(
        self,
        fields: Fields,
        dt: Any,
        only_open: bool = False,
        solved: bool = False,
        exchanges: bool = False,
    ) -> None:
        """Correct the velocities, u - dt grad p; `only_open`: at open faces (outflows) only.

        `solved`: nothing has changed the pressure since its last check. `exchanges`: also exchange
        the ghosts of all fields.
        """
        problem, p, per_h = self.problem, self.pressure.now, self.problem.inverse_spacings
        backend, open_faces = problem.backend, problem.open_faces()
        if solved and self.pressure.solver(self._length)[1].brings_neighbours:
            problem.halo.wrap(p)
        else:
            problem.halo.exchange(p)
        inside: list[PointSweep] = []
        for component, name in enumerate(problem.components):
            w = fields[name]
            args: tuple[Any, ...] = (w, p, dt, per_h[component])
            if problem.bodies is not None:
                args = (*args, problem.bodies.mobility(name, self._length))
            inside.append(PointSweep(flow.projected(component), w, problem.inside(name), args))
            if component in open_faces:
                backend.sweep(flow.projected_outflow, w, open_faces[component], *args)
        if exchanges:
            sweep = partial(backend.sweep_together, inside)
            problem.halo.sweep_and_exchange(sweep, *fields.values())
        elif not only_open:
            backend.sweep_together(inside)

    def _apply_mean_force(self, fields: Fields, dt: float) -> None:
        """Apply the uniform force that keeps a mean velocity; it does not change the pressure."""
        problem, region = self.problem, self.problem.grid.interior
        for name, mean in problem.mean_velocities.items():
            total = problem.backend.reduce("sum", copy, region, fields[name])
            missing = mean - total / problem.whole.all_unknowns
            problem.backend.sweep(flow.raised, fields[name], region, fields[name], missing)
            key = f"driving_force_{name[-1]}"
            applied = self._driving.get(key, 0.0) if self._diffusion is not None else 0.0
            self._driving[key] = applied + missing / dt

    def speeds(self, *times: float) -> list[float]:
        read = self._measures.posted_largest(self._now)
        self._predict_ahead()
        return self.problem.speeds(self._now, *times, largest=read())

    def posted_measures(self, *besides: Accumulator) -> Measured:
        now = {**self._now, "pressure": self.pressure.now}
        read = self._measures.posted(now, self._length, besides, self._driving)
        self._predict_ahead()
        return read

    def present(self) -> None:
        """Leave the fields of a frame, with the pressure at this time.

        The pressure of a stage belongs to the time of the stage before. The march goes on from that
        pressure, so that frames do not change its results.
        """
        self.finish()
        problem, kept = self.problem, self._copy(self.pressure.now)
        problem.write_walls(self._now, self.time)
        self._find_present_pressure()
        self._copy(self.pressure.now, problem.fields["pressure"])
        self._copy(kept, self.pressure.now)

    def _find_present_pressure(self) -> None:
        """Find the pressure that keeps du/dt free of divergence, from a step of explicit Euler."""
        problem, (stage,), dt = self.problem, transport.RUNGE_KUTTA["explicit"], self._length
        scratch, self._predicted = self._others[0], None
        self._numbers.take(dt)
        self._measures.post_speed(self._now)
        self._measures.await_speed()
        self._make_stage((scratch, self._now, self._now), stage, self.time, {})
        problem.write_faces(scratch, self.time + dt)
        with suppress(NotConverged, Diverged):  # the next step raises it again
            self._find_pressure(scratch, dt, self.time)
