"""Sums and largest magnitudes of what sweeps find, kept where the sweeps run."""

from typing import TYPE_CHECKING, Any

from heatsolve.backends import exact_sums as sums

if TYPE_CHECKING:
    from heatsolve.backends import Backend


class Accumulator:
    """Where a sweep puts the sum, or the largest magnitude, of a value over its region.

    A device keeps it without telling the host; `value` waits for it.
    """

    def __init__(self, kind: str, register: Any, backend: "Backend"):
        self.kind, self.register, self._backend = kind, register, backend

    @property
    def value(self) -> float:
        register = self._backend.read_register(self.register)
        return sums.VALUE_OF[self.kind](self._backend.combine(register))

    def take(self) -> float:
        """The value; what comes next begins anew."""
        value = self.value
        self.clear()
        return value

    def clear(self) -> None:
        """Begin anew."""
        self._backend.clear_register(self.register)
