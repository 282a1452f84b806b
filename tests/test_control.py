"""When a run is saved and when it stops."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from heatsolve.control import controller as controllers
from heatsolve.control.controller import PAUSE, CheckpointController, State, StopController, Stopped
from heatsolve.control.stop import StopRequest
from heatsolve.errors import Interrupted
from heatsolve.parallel.ranks import Ranks


@pytest.fixture
def clock(monkeypatch):
    """A clock that only `walk` moves on."""
    now = SimpleNamespace(now=0.0)
    now.perf_counter = now.monotonic = lambda: now.now
    monkeypatch.setattr(controllers, "clock", now)
    return now


def walk(controller, steps, clock=None, seconds=0.0, begin=0):
    """Attend as an iteration does, so long each; the numbers at which it was asked."""
    asked = []
    controller.begin(begin)
    for number in range(begin, steps):
        if number >= controller.next:
            asked.append(number)
            controller.check(number, lambda: State(number))  # noqa: B023
        if clock is not None:
            clock.now += seconds
    return asked


def test_questions_become_seldom_but_keep_their_pace(clock):
    asked = walk(CheckpointController(), 100_000, clock, seconds=1e-6)
    assert asked[:5] == [0, 1, 3, 7, 15]
    assert len(asked) < 40
    slow = walk(CheckpointController(), 60, clock, seconds=0.01)
    assert max(np.diff(slow)) <= 2 * PAUSE / 0.01


def test_saved_every_so_many_steps_and_no_more():
    saved = []
    walk(CheckpointController(save=lambda state: saved.append(state.number), every=700), 3000)
    assert saved == [700, 1400, 2100, 2800]
    saved.clear()
    walk(
        CheckpointController(save=lambda state: saved.append(state.number), every=700),
        3000,
        begin=1400,
    )
    assert saved == [2100, 2800]


def test_saved_every_so_many_seconds(clock):
    saved = []
    walk(
        CheckpointController(save=lambda s: saved.append(s.number), seconds=0.2),
        100,
        clock,
        seconds=0.01,
    )
    assert 2 <= len(saved) <= 6


def test_a_wish_saves_and_stops_and_a_second_changes_nothing():
    request, saved = StopRequest(), []
    controller = CheckpointController(
        request=request, save=lambda state: saved.append(state.number) or "there"
    )
    walk(controller, 10)
    request.make(15, None)
    request.make(15, None)
    with pytest.raises(Interrupted, match=r"after 20 iterations.*--restart from there") as caught:
        walk(controller, 100, begin=20)
    assert caught.value.exit_code == 75
    assert saved == [20]


def test_ctrl_c_ends_at_once_before_the_first_step_and_saves_after_it():
    request, saved = StopRequest(), []
    with pytest.raises(KeyboardInterrupt):
        request.interrupt()
    request = StopRequest()
    controller = CheckpointController(
        request=request, save=lambda state: saved.append(state.number) or "there"
    )
    controller.begin(20)
    controller.check(20, lambda: State(20))
    assert not request.held
    controller.check(21, lambda: State(21))
    request.interrupt()
    request.interrupt()  # as launchers of MPI pass it on
    with pytest.raises(Interrupted, match="go on with --restart from there") as caught:
        controller.check(22, lambda: State(22))
    assert caught.value.exit_code == 130
    assert saved == [22]
    request._heard -= 1.0
    with pytest.raises(KeyboardInterrupt):
        request.interrupt()


def test_ctrl_c_while_nothing_may_end_is_heard_afterwards():
    request = StopRequest()
    request.release()
    request.hold()
    request.interrupt()
    with pytest.raises(KeyboardInterrupt):
        request.release()


def test_the_end_is_saved_if_wanted():
    saved = []
    CheckpointController(save=lambda state: saved.append(state)).finish(lambda: State(3))
    assert not saved
    CheckpointController(save=lambda state: saved.append(state), at_end=True).finish(
        lambda: State(3)
    )
    assert [state.number for state in saved] == [3]
    assert saved[0].record["finished"]


def test_inside_a_step_it_only_stops():
    request = StopRequest()
    controller = CheckpointController(
        request=request, save=lambda state: pytest.fail("saved inside a step")
    )
    controller.inside.begin(0)
    controller.inside.check(0)
    request.make()
    with pytest.raises(Stopped):
        controller.inside.check(1)


class Threads(Ranks):
    """Processes that are threads: they agree as those of MPI do."""

    def __init__(self, size, rank, shared):
        self.size, self.rank, self._shared = size, rank, shared

    def smallest(self, values):
        self._shared["barrier"].wait(10)
        self._shared[self.rank] = values
        self._shared["barrier"].wait(10)
        return np.min([self._shared[rank] for rank in range(self.size)], axis=0)


def test_processes_stop_at_the_same_number():
    """One is slow, another gets the signal: they still ask and stop together."""
    size, shared, ends = 3, {"barrier": threading.Barrier(3)}, {}

    def one(rank):
        request = StopRequest()
        questions = StopController(Threads(size, rank, shared), request)
        for number in range(100_000):
            if number >= questions.next:
                try:
                    questions.check(number)
                except Stopped:
                    ends[rank] = number
                    return
            if rank == 1 and number == 40:
                request.make()
            time.sleep(0.004 if rank == 2 else 0.001)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(ends) == size and len(set(ends.values())) == 1
    assert 40 < ends[0] < 400
