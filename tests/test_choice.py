"""Which backend and which GPU a process takes, on a machine whose GPUs are made up."""

from types import SimpleNamespace

import pytest

from heatsolve.backends import registry as choice
from heatsolve.errors import InputError


@pytest.fixture
def gpus(monkeypatch):
    """Sets how many GPUs there seem to be; returns the devices that were asked for."""
    asked = []

    def make(name, precision="float64", threads=None, device=None):
        asked.append((name, device))
        return SimpleNamespace(name=name, on_device=name in choice.ON_GPU)

    def pretend(count):
        monkeypatch.setattr(choice, "count_gpus", lambda: count)
        monkeypatch.setattr(choice, "make", make)
        monkeypatch.setattr(choice, "identity", lambda device: f"gpu {device}")
        monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
        return asked

    return pretend


@pytest.mark.parametrize("name", ["cuda", "cupy"])
def test_processes_of_a_node_take_its_gpus_in_turn(gpus, name):
    asked = gpus(4)
    reasons = [choice.choose(name, local_rank=rank)[1] for rank in range(6)]
    assert asked == [(name, number) for number in (0, 1, 2, 3, 0, 1)]
    assert reasons[5] == "as asked for; GPU 1 of 4"


def test_a_single_gpu_is_not_worth_a_word(gpus):
    gpus(1)
    assert choice.choose("cuda")[1] == "as asked for"


@pytest.mark.parametrize("users, told", [
    (["gpu 0", "gpu 1", "gpu 0", "gpu 1", "gpu 0"], "; 5 processes share 2 GPUs"),
    (["gpu 0", "gpu 0"], "; 2 processes share 1 GPU"),
    (["gpu 0", "gpu of another node"], ""),
    (["gpu 0", None, None], ""),
])  # fmt: skip
def test_sharing_is_told(gpus, users, told):
    gpus(1)
    mine = []
    pairs = [("cuda", user) for user in users]
    _, reason = choice.choose("cuda", gather=lambda value: mine.append(value) or pairs)
    assert reason == "as asked for" + told
    assert mine == [("cuda", "gpu 0")]


def test_processes_with_different_backends_are_refused(gpus):
    """They would cut the grid, and send, in different ways."""
    gpus(0)
    with pytest.raises(InputError, match=r"different backends \(numba on 2, cuda on 1\): name one"):
        choice.choose("auto", gather=lambda value: [value, value, ("cuda", "gpu 0")])


def test_a_process_without_gpu_still_takes_part(gpus):
    gpus(0)
    told = []
    choice.choose("auto", gather=lambda value: told.append(value) or [value, value])
    assert told == [("numba", None)]


def test_host_backends_ask_no_driver(gpus, monkeypatch):
    asked = gpus(2)
    monkeypatch.setattr(choice, "count_gpus", lambda: pytest.fail("asked for GPUs"))
    assert choice.choose("numpy", local_rank=1)[1] == "as asked for"
    assert asked == [("numpy", None)]


def test_auto_prefers_a_gpu(gpus):
    asked = gpus(2)
    backend, reason = choice.choose("auto", local_rank=1)
    assert (backend.name, asked) == ("cuda", [("cuda", 1)])
    assert reason == "the fastest that works here; GPU 1 of 2"


def test_auto_says_what_failed(gpus, monkeypatch):
    gpus(1)
    made = choice.make

    def broken(name, *arguments):
        if name in choice.ON_GPU:
            raise InputError(f"no {name}")
        return made(name, *arguments)

    monkeypatch.setattr(choice, "make", broken)
    backend, reason = choice.choose("auto")
    assert backend.name == "numba"
    assert reason == "the fastest that works here; no cuda; no cupy"


def test_auto_without_gpu(gpus):
    asked = gpus(0)
    assert choice.choose("auto")[1] == "the fastest that works here, there is no CUDA GPU"
    assert asked == [("numba", None)]


def test_the_simulator_is_never_chosen(gpus, monkeypatch):
    gpus(1)
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    assert choice.choose("auto")[0].name == "numba"


def test_the_gpu_of_a_process_has_a_name(monkeypatch):
    """Asked of a driver that is made up: the second of two GPUs for the fourth process."""

    class Driver:
        def cuDeviceGet(self, handle, number):
            handle._obj.value = 10 + number

        def cuDeviceGetName(self, name, length, handle):
            name.value = f"GPU {handle.value}".encode()[: length - 1]

    monkeypatch.setattr(choice, "count_gpus", lambda: 2)
    monkeypatch.setattr(choice.ctypes, "CDLL", lambda path: Driver())
    assert choice.gpu_name(local_rank=3) == "GPU 11"
    monkeypatch.setattr(choice, "count_gpus", lambda: 0)
    assert choice.gpu_name() is None
