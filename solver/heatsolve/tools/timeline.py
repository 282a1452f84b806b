"""The time line of a unit of work: when each sweep and each exchange of a process begins and ends.

Work that a run plays back is played back, too, but call by call: events of a device, or the clock
of a host, tell the time of each. A device copies something before each such work, so that the host
fills its queue meanwhile; the time line leaves these copies out.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from heatsolve.backends import Backend, CycleLeg, SweepSequence
from heatsolve.parallel.ranks import Ranks
from heatsolve.parallel.transport import Message, Peer, Transport
from heatsolve.stencil.language import Point

Span: TypeAlias = tuple[str, float, float]
"""A sweep by the name of its point function, or an exchange: begin and duration (s)."""
EXCHANGE, SMALL, COPY = "exchange", "small sweeps", "copy of the clock"
MOST_SPANS, MOST_PROCESSES = 500, 16
"""The most spans of a process, and the most processes, of which a record keeps the time line."""
COPIED, CALLS = 1 << 24, 2
"""Elements of a copy, and calls that a host queues meanwhile; a copy takes 60 us on an H200."""


@dataclass
class Clock:
    """Takes the times of a machine's calls while it runs; `taken`: names, begins, and ends.

    `name`: the name of calls that the machine now queues or records; None: they take no time.
    `blocks`: arrays of a device, to be copied while the host queues calls.
    """

    machine: Backend
    runs: bool = False
    blocks: Sequence[Any] = ()
    name: str | None = None
    taken: list[tuple[str, Any, Any]] = field(default_factory=list)

    @contextmanager
    def naming(self, name: str | None) -> Iterator[None]:
        before, self.name = self.name, name
        try:
            yield
        finally:
            self.name = before

    def fill(self, calls: int) -> None:
        """Keep a device busy while the host queues calls."""
        if self.runs and self.blocks:
            for _ in range(1 + calls // CALLS):
                self.call(COPY, self.machine.copy, *self.blocks)

    def of(self, call: Callable[..., Any]) -> "Clocked":
        """A call whose time this clock takes, by its present name unless the call has one."""
        return call if isinstance(call, Clocked) else Clocked(self, self.name, call)

    def call(self, name: str | None, work: Callable[..., Any], *operands: Any) -> None:
        if name is None or not self.runs:
            work(*operands)
            return
        began = self.machine.now()
        work(*operands)
        self.taken.append((name, began, self.machine.now()))


@dataclass(frozen=True)
class Clocked:
    """A call whose time a clock takes."""

    clock: Clock
    name: str | None
    work: Callable[..., Any]

    def __call__(self, *operands: Any) -> None:
        self.clock.call(self.name, self.work, *operands)


def clocked(machine: Backend) -> Clock:
    """A clock that takes the times of all work of a machine from now on."""
    kind: Any = type(machine)
    clock = Clock(machine)

    class Machine(kind):  # type: ignore[misc]
        def sweep(self, point: Point, *args: Any, **more: Any) -> None:
            with clock.naming(point.__name__):
                super().sweep(point, *args, **more)

        def fused_sweeps(self, sweeps: SweepSequence, *args: Any) -> None:
            with clock.naming(f"{len(sweeps.stages)} {sweeps.point.__name__}"):
                super().fused_sweeps(sweeps, *args)

        def cycle_leg(self, leg: CycleLeg) -> Callable[[Any, Any], None] | None:
            run, name = super().cycle_leg(leg), "descent" if leg.restricts else "ascent"

            def named(new: Any, u: Any) -> None:
                with clock.naming(name):
                    run(new, u)

            return named if run else None

        def enqueue(self, work: Callable[[], None]) -> None:
            super().enqueue(clock.of(work) if self.on_device else work)

        def _make(self, calls: Iterable[tuple[Callable[..., Any], Any]]) -> None:
            super()._make([(clock.of(call), args) for call, args in calls])

        def in_line(self, work: Callable[[int], None]) -> None:
            with clock.naming(EXCHANGE):
                super().in_line(work)

        def aside(self, work: Callable[[int], None]) -> None:
            with clock.naming(None):  # the second stream tells the time
                super().aside(lambda stream: clock.call(EXCHANGE, work, stream))

        def captured(self, calls: Sequence[Callable[[], None]]) -> Callable[[], None]:
            with clock.naming(SMALL):
                each = list(map(clock.of, calls))

            def play() -> None:
                clock.fill(len(each))
                for call in each:
                    call()

            return play

    machine.__class__ = Machine
    return clock


def clocked_transport(transport: Transport, clock: Clock) -> None:
    """Let a clock take the times of messages by MPI; devices tell the times of their own."""
    kind: Any = type(transport)

    class Messages(kind):  # type: ignore[misc]
        def start(self, peers: Sequence[Peer]) -> None:
            self._named(super().start, peers)

        def finish(self, peers: Sequence[Peer]) -> None:
            self._named(super().finish, peers)

        def gather(self, leaving: Message, arriving: Message) -> None:
            self._named(super().gather, leaving, arriving)

        def _named(self, move: Callable[..., None], *args: Any) -> None:
            if self.replays:  # its messages are calls of the machine
                with clock.naming(EXCHANGE):
                    move(*args)
            else:
                clock.call(EXCHANGE, move, *args)

    if transport.link is None:
        transport.__class__ = Messages


def spans_of(work: Callable[[], None], clock: Clock, ranks: Ranks) -> list[Span]:
    """The spans of some work of this process, from the first span of all processes on."""
    machine = clock.machine
    if machine.on_device:
        clock.blocks = [machine.zeros((COPIED,)) for _ in range(2)]
    machine.sync()
    ranks.gather(None)
    origin = machine.now()
    clock.runs = True
    work()
    clock.runs = False
    spans, copied = [], 0.0
    for name, began, ended in clock.taken:
        time = machine.elapsed(began, ended)
        if name == COPY:
            copied += time
        else:
            spans.append((name, machine.elapsed(origin, began) - copied, time))
    first = min(ranks.gather(min([begin for _, begin, _ in spans], default=0.0)))
    return [(name, round(begin - first, 8), round(time, 8)) for name, begin, time in spans]


def parts_of(spans: Sequence[Span]) -> tuple[float, float]:
    """Seconds in which a process sweeps, and in which it only exchanges."""
    sweeping = _covered((b, b + t) for name, b, t in spans if name != EXCHANGE)
    return sweeping, _covered((b, b + t) for _, b, t in spans) - sweeping


def _covered(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    total, reached = 0.0, -float("inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
