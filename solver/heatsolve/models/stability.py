"""The largest stable step of transport, by von Neumann's analysis of the scheme.

On a periodic grid with constant coefficients a wave exp(i (theta_x x/h_x + ...)) is multiplied by
g(dt lambda) in each step, where lambda(theta) is the symbol of the discrete right side and g the
polynomial of the time scheme; a step is stable where |g| <= 1 for all waves (C. Hirsch, "Numerical
Computation of Internal and External Flows", vol. 1 (2007), chapter 8). A limited scheme is outside
linear analysis: its step is the longest of explicit Euler that makes no new extremum.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

WAVES = {1: 1024, 2: 64, 3: 24}
"""Angles along each axis, by dimension; along the first axis only the half from 0 to pi is used."""
LONG = 0.01
"""The angle of a long wave: long waves are the first to grow where diffusion is small."""
AMPLIFIED = 1e-13
"""|g| - 1 up to which the growth of a wave counts as rounding."""
SHORTEST = 2e-3
"""Below this share of the first guess the largest step is 0: all growth is then rounding."""
TRIES, SECANTS, TOGETHER = 60, 8, 1024
"""Halvings of an interval; secants for a guess of the step that they come to; and the most numbers
for which the halvings that the guess leads to are made together: a call of NumPy then takes little
longer than for one number."""
ON_EDGE = 129
"""Numbers on each edge of a rectangle on which |g| is examined."""
IN_CACHE = 4096
"""The most waves whose growth is computed at once: their numbers stay in a cache."""


def advection_symbol(convection: str, theta: np.ndarray) -> np.ndarray:
    """-h/v times the symbol of the discrete v du/dx, for v > 0."""
    shift = np.exp(-1j * theta)
    if convection in ("backward", "upwind"):
        return shift - 1.0
    if convection == "central":
        return -1j * np.sin(theta)
    if convection == "central4":
        return -1j * np.sin(theta) * (4.0 - np.cos(theta)) / 3.0
    return -(2.0 / shift + 3.0 - 6.0 * shift + shift * shift) / 6.0


def amplification(scheme: str, z: np.ndarray, implicit: np.ndarray | float = 0.0) -> np.ndarray:
    """|g(z)| of a time scheme; for SSP Runge-Kutta of order p, g is the series of exp to z^p.

    For Adams and Bashforth's scheme it is the larger root of (1 - i/2) g^2 = (1 + i/2 + 3/2 z) g -
    z/2; i is `implicit`, the diffusion by Crank and Nicolson's scheme, which other schemes ignore.
    """
    if scheme == "adams-bashforth":
        kept = 1.0 - 0.5 * implicit
        half = (0.5 + 0.25 * implicit + 0.75 * z) / kept
        root = np.sqrt(half * half - 0.5 * z / kept)
        return np.maximum(np.abs(half + root), np.abs(half - root))
    return np.abs(_series(scheme, z))


def _series(scheme: str, z: np.ndarray) -> np.ndarray:
    """The series of exp to z^p, p the order of a Runge-Kutta scheme."""
    g: Any = 1.0
    for n in range({"explicit": 1, "rk2": 2, "rk3": 3}[scheme], 0, -1):
        g = z * g if n == 1 else z * (1.0 / n) * g
        g += 1.0
    return g


def _grow(scheme: str, z: np.ndarray, *implicit: np.ndarray) -> Any:
    """Whether waves grow, more than by rounding."""
    if scheme == "adams-bashforth":
        return ~(amplification(scheme, z, *implicit) <= 1.0 + AMPLIFIED)
    g = _series(scheme, z)
    # A square root takes as long as all the rest, so it is drawn only where the square exceeds 1.
    squares = g.real * g.real
    squares += g.imag * g.imag
    grows = ~(squares <= 1.0)
    grows[grows] = ~(np.abs(g[grows]) <= 1.0 + AMPLIFIED)
    return grows


@lru_cache(8)
def largest_step(
    convection: str,
    scheme: str,
    speeds: tuple[float, ...],
    diffusivities: tuple[float, ...],
    spacings: tuple[float, ...],
    implicit: bool = False,
) -> float:
    """The largest stable step for speeds up to these along each axis and for each of some
    diffusivities; 0 where none is stable.

    `implicit`: whether diffusion is by Crank and Nicolson's scheme. The analysis covers velocities
    of these magnitudes or 0 along each axis. One direction is enough: a scheme that turns with the
    velocity has the same growth for the mirrored wave. The search takes a millisecond: it is
    cached.
    """
    least = math.inf
    for nu in sorted(diffusivities, reverse=True):  # the largest mostly has the least step
        for_nu = _largest_up_to(least, nu, convection, scheme, speeds, spacings, implicit)
        least = min(least, for_nu)
    return least


def _largest_up_to(
    least: float,
    nu: float,
    convection: str,
    scheme: str,
    speeds: Sequence[float],
    spacings: Sequence[float],
    implicit: bool,
) -> float:
    """The largest stable step for one diffusivity, or `least` if that is stable."""
    courant = sum(speed / h for speed, h in zip(speeds, spacings, strict=True))
    diffusive = sum(nu / h / h for h in spacings)
    if implicit and courant == 0.0:
        return math.inf
    # |lambda| is at most this rate; the search for the largest step begins at 3 / rate.
    rate = 2.0 * courant + (0.0 if implicit else 4.0 * diffusive)
    if rate == 0.0:
        return math.inf
    if not math.isfinite(3.0 * rate):
        return 0.0
    if convection == "tvd":
        return 1.0 / (2.0 * courant + 2.0 * diffusive)
    present = [speed for speed in speeds if speed > 0.0]
    if least <= SHORTEST * (3.0 / rate):  # it may be stable by rounding alone
        least = math.inf
    stable = 0.0, 0.0  # a rectangle, see `_is_stable`
    # Motion along all axes first: it mostly has the least step, and the others then end at once.
    for moving in itertools.product(*[(1.0, 0.0) if s > 0.0 else (0.0,) for s in speeds]):
        if nu == 0.0 and not any(moving) and present:
            continue
        given = [speed * share for speed, share in zip(speeds, moving, strict=True)]
        if implicit and not any(moving):
            continue
        if not implicit and math.isfinite(least):
            corner = _rectangle(convection, given, nu, spacings)
            left, right, above = (least * part for part in corner)
            inside = left >= stable[0] and above <= stable[1]
            if right <= AMPLIFIED and (inside or _is_stable(scheme, left, above)):
                stable = stable if inside else (left, above)
                continue
        moved, spread = _symbols(convection, given, nu, spacings)
        waves = (moved, spread) if implicit else (moved + spread,)
        least = _longest(scheme, waves, 3.0 / rate, least)
    return least


def _symbols(
    convection: str, speeds: Sequence[float], nu: float, spacings: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """The symbols of convection and of diffusion."""
    dimension = len(spacings)
    moved, spread = np.zeros((1,) * dimension, complex), np.zeros((1,) * dimension)
    for n, (speed, h) in enumerate(zip(speeds, spacings, strict=True)):
        advection, diffusion = _symbols_along(convection, n, dimension)
        moved = moved + speed / h * advection
        spread = spread - 2.0 * (nu / h / h) * diffusion
    return moved.ravel(), spread.ravel()


@cache
def _symbols_along(convection: str, n: int, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Along axis `n`, for the waves of the analysis: h/v times the symbol of convection, and
    1 - cos(theta)."""
    around = np.arange(WAVES[dimension]) * (2.0 * np.pi / WAVES[dimension])
    angles = around[: WAVES[dimension] // 2 + 1] if n == 0 else np.append(around, -LONG)
    angles = np.append(angles, LONG)
    shape = [1] * dimension
    shape[n] = angles.size
    advection = advection_symbol(convection, angles).reshape(shape)
    return advection, (1.0 - np.cos(angles)).reshape(shape)


def _rectangle(
    convection: str, speeds: Sequence[float], nu: float, spacings: Sequence[float]
) -> tuple[float, float, float]:
    """The least and the largest real part of all lambda, and the largest imaginary part."""
    left = right = above = 0.0
    for n, (speed, h) in enumerate(zip(speeds, spacings, strict=True)):
        least, most, height, spread = _extent_along(convection, n, len(spacings))
        left += speed / h * least - 2.0 * (nu / h / h) * spread
        right, above = right + speed / h * most, above + speed / h * height
    return left, right, above


@cache
def _extent_along(convection: str, n: int, dimension: int) -> tuple[float, float, float, float]:
    """Along axis `n`: the least and the largest real part of the symbol of convection, its largest
    imaginary part, and the largest 1 - cos(theta)."""
    advection, diffusion = _symbols_along(convection, n, dimension)
    real, height = advection.real, float(abs(advection.imag).max())
    most = max(float(real.max()), 0.0)
    return min(float(real.min()), 0.0), most, height, float(diffusion.max())


def _is_stable(scheme: str, left: float, above: float) -> bool:
    """Whether |g| is at most 1 in a rectangle of the plane, from `left` to 0 and up to `above` on
    both sides of the real axis: there it is at most as large as on the edge, by the maximum
    principle."""
    share = np.linspace(0.0, 1.0, ON_EDGE)
    rising = 1j * above * share
    edge = np.concatenate([rising, left + rising, left * share + 1j * above])
    return not _grow(scheme, edge).any()


def _longest(scheme: str, waves: tuple[np.ndarray, ...], most: float, enough: float) -> float:
    """The largest dt up to which no wave grows, by bisection; `enough` if that is stable.

    Stable steps form an interval from 0: below a step only the waves that grow in this step can
    bound dt, so each bisection has fewer waves to look at.
    """

    def grow(*steps: float) -> np.ndarray:
        """Which waves grow in each of some steps: a row for each step."""
        parts = []
        for first in range(0, waves[0].size, IN_CACHE):
            some = (symbol[first : first + IN_CACHE] for symbol in waves)
            parts.append(_grow(scheme, *[np.multiply.outer(steps, symbol) for symbol in some]))
        return np.concatenate(parts, axis=1)

    def kept(wanted: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple([symbol[wanted] for symbol in waves])

    low, high, tries = 0.0, most, TRIES
    if math.isfinite(enough):
        waves = kept(grow(enough)[0])
        if not waves[0].size:
            return enough
    while not (bounding := grow(high)[0]).any():
        low, high = high, 2.0 * high
        if not math.isfinite(high):
            return math.inf
    while tries > 0 and low < 0.5 * (low + high) < high:  # until no number lies between them
        waves = kept(bounding)
        at_once = min(tries, max(1, TOGETHER // waves[0].size))
        guess = _crossing(scheme, waves, low, high) if at_once > 1 else low
        middles = list(itertools.islice(_halvings(low, high, guess), at_once))
        growing: Any = grow(*middles)
        for middle, row, grows in zip(middles, growing, growing.any(axis=1).tolist(), strict=True):
            tries -= 1
            if grows:
                high, bounding = middle, row
            else:
                low, bounding = middle, np.full(row.size, True)
            if grows != (middle > guess):  # the others are not those of this interval
                break
    return low if low > SHORTEST * most else 0.0


def _halvings(low: float, high: float, guess: float) -> Iterator[float]:
    """Yield the middles of the intervals about a guess, each one half of the interval before."""
    while True:
        middle = 0.5 * (low + high)
        yield middle
        low, high = (low, middle) if middle > guess else (middle, high)


def _crossing(scheme: str, waves: tuple[np.ndarray, ...], low: float, high: float) -> float:
    """About the step at which the wave that grows most in the step `high` begins to grow, by the
    secant method."""
    most = int(np.argmax(amplification(scheme, *[high * symbol for symbol in waves])))
    wave = [symbol[most].item() for symbol in waves]

    def excess(step: float) -> float:
        return float(amplification(scheme, *[step * symbol for symbol in wave])) - 1.0 - AMPLIFIED

    one, other = high, 0.5 * (low + high)
    of_one, of_other = excess(one), excess(other)
    for _ in range(SECANTS):
        if of_one == of_other:
            break
        step = other - of_other * (other - one) / (of_other - of_one)
        if not low < step < high:
            break
        one, of_one, other, of_other = other, of_other, step, excess(step)
    return other
