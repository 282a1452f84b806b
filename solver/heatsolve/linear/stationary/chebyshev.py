"""The Chebyshev semi-iteration."""

from typing import Any

from heatsolve.backends import Accumulator
from heatsolve.linear import Pairwise, System
from heatsolve.linear.diagonal import quotient


class Chebyshev(Pairwise):
    """u_{k+1} = omega_{k+1} (u_k + gamma D^-1 (b - A u_k) - u_{k-1}) + u_{k-1}.

    For eigenvalues of D^-1 A in [low, high]: gamma = 2 / (low + high), mu = (high - low) /
    (high + low), omega_1 = 1, omega_2 = 1 / (1 - mu^2 / 2), omega_{k+1} = 1 / (1 - mu^2
    omega_k / 4) (G. H. Golub and R. S. Varga, Numer. Math. 3 (1961), 147). It needs no inner
    product, so a device can run ahead of its host.
    """

    def __init__(self, system: System, u: Any):
        super().__init__(system, u)
        low, high = system.spectrum()
        self._mu2 = ((high - low) / (high + low)) ** 2
        self._omegas = [1.0]
        residual = system.residual
        divided, self._scale = quotient(system, 2.0 / (low + high))

        def chebyshev(at, u, previous, b, omega, scale, *coefficients):
            step = divided(residual(at, u, b, *coefficients), at, scale, *coefficients)
            return omega * (u[at] + step - previous[at]) + previous[at]

        self._point = chebyshev

    def step(self, number: int, change: Accumulator | None) -> None:
        old, new = self.solution(number), self.solution(number + 1)
        halo = self.system.halo
        if halo.depth > 1 and number % halo.depth == 0:
            halo.exchange(new)  # the iterate before the last is read in the margin, too
        given = (new, self.system.b, self._omega(number), self._scale, *self.system.coefficients)
        self.system.update(self._point, new, old, *given, change=change, number=number)

    def memory(self, steps: int) -> dict[str, Any]:
        return {"u": self.solution(steps), "previous": self.solution(steps + 1)}

    def _omega(self, number: int) -> float:
        while len(self._omegas) <= number:
            last = self._omegas[-1]
            divisor = 2.0 if len(self._omegas) == 1 else 4.0
            self._omegas.append(1.0 / (1.0 - self._mu2 * last / divisor))
        return self._omegas[number]
