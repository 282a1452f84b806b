"""That MPI reads a device's memory is believed only after a transfer that shows it."""

import subprocess
import sys
from pathlib import Path

import pytest

from heatsolve.backends import Message
from heatsolve.backends.numpy import NumpyBackend
from heatsolve.halo import device_aware
from heatsolve.ranks import Ranks, World


class Exposed:
    """Host memory behind the interface of device arrays, which MPI's binding reads alike."""

    def __init__(self, array):
        self._array = array
        self.__cuda_array_interface__ = {**array.__array_interface__, "version": 3}


class Pretended(NumpyBackend):
    """A device whose memory is the host's; `broken`: MPI's transfers go to some other place."""

    on_device = True

    def __init__(self, broken=False):
        super().__init__()
        self._broken = broken

    def message(self, shape, direct=False):
        array = self.zeros(shape)
        if not direct:
            return Message(array, array)
        return Message(array, Exposed(array.copy() if self._broken else array))


class Claiming(World):
    """An MPI that says of itself what it is told to say."""

    claim = True

    def claims_device_memory(self):
        return self.claim


def check():
    ranks = Claiming()
    assert device_aware(ranks, Pretended())
    assert not device_aware(ranks, Pretended(broken=True))
    assert not device_aware(ranks, NumpyBackend())
    # Processes decide together: one whose data do not arrive is enough, one that cannot, too.
    assert not device_aware(ranks, Pretended(broken=ranks.rank == 0))
    ranks.claim = ranks.rank != 0
    assert not device_aware(ranks, Pretended())
    # No MPI from a wheel knows CUDA: asking it is safe, and the answer is no.
    assert not World().claims_device_memory()
    assert not device_aware(World(), Pretended())


@pytest.mark.parametrize("processes", (1, 2, 3))
def test_device_memory_is_proved(processes):
    done = subprocess.run(
        [Path(sys.executable).with_name("mpiexec"), "-n", str(processes), sys.executable, __file__],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_process_alone_asks_nobody():
    assert not device_aware(Ranks(), Pretended())


if __name__ == "__main__":
    check()
