"""The direct solver of constant coefficients on a box: fast sine, cosine and Fourier transforms.

With one conductivity everywhere, A = m s + the sum over the axes of -k d2/dx2. Along each axis the
operator is a matrix with -c beside its diagonal, where c = k / h^2 is the conductance. Its
eigenvectors are

    v_j = sin or cos(theta_k (j + a)),  theta_k = pi (k + values / 2) / intervals,

sines if the low wall has a given value, cosines if not, with the eigenvalues 2 c (1 - cos theta_k).
`values` is the number of walls, 0 to 2, that have a given value. a is the distance of the first
unknown from the low wall in spacings: 0, 1/2 or 1. Source: U. Schumann and R. A. Sweet, J. Comput.
Phys. 75 (1988), 123, table I; G. Strang, SIAM Review 41 (1999), 135.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import numpy as np

from heatsolve.backends import Accumulator, ArrayLibrary
from heatsolve.errors import InputError
from heatsolve.linear.system import Method, System, with_norm_of_change
from heatsolve.stencil.grid import WALLS, Axis, whole
from heatsolve.stencil.language import Point, shifted, term, where

AHEAD = "ahead"
"""The key of the scalar which tells that the next step has already been made."""
ALONE = "solver.method: fft runs on one process, not on several"
INVERSE = {1: 1, 2: 3, 3: 2, 4: 4}
"""For each type of a sine or cosine transform, the type of its inverse, apart from a factor."""


# ---- the eigenvectors along each axis ------------------------------------------------------------


@dataclass(frozen=True)
class Modes:
    """The eigenvectors along one axis.

    `transform`: "dst" or "dct" as in scipy.fft, or "" for the Fourier transform of a periodic
    axis; `kind`: its type. Not normalised, the transform and its inverse multiply by `factor`.
    """

    transform: str
    kind: int
    eigenvalues: np.ndarray
    factor: float

    @property
    def periodic(self) -> bool:
        return not self.transform

    @property
    def free(self) -> bool:
        """Whether no wall of the axis has a given value."""
        return self.periodic or (self.transform == "dct" and self.kind <= 2)

    @property
    def inverse(self) -> int:
        """The type of the transform that undoes this one."""
        return INVERSE[self.kind]


def modes_of(system: System) -> tuple[Modes, ...]:
    """The eigenvectors of a system along each axis of its grid, slowest first.

    Raises InputError on several processes, where a coefficient varies in space, and for a Robin
    condition, because no fast transform has its eigenvectors.
    """
    if system.halo.ranks.size > 1:
        raise InputError(ALONE)
    backend = system.backend
    coefficients = system.coefficients
    if coefficients.s != 0.0 and not _even(backend.to_host(coefficients.capacity)):
        raise InputError("solver.method: fft needs the same density * specific_heat everywhere")
    faces = [backend.to_host(array) for array in reversed(coefficients.conductances)]
    along = [np.moveaxis(array, number, 0) for number, array in enumerate(faces)]
    return tuple(_of_axis(*args) for args in zip(system.grid.axes, along, strict=True))


def _of_axis(axis: Axis, faces: np.ndarray) -> Modes:
    """The eigenvectors along an axis, from the array of its conductances, with this axis first."""
    faces = np.broadcast_to(faces, (axis.unknowns + 2, *faces.shape[1:]))
    # A node on a wall of given value is a neighbour like any other.
    inside = [axis.periodic or fixed for fixed in axis.fixed]
    within = faces[1 if inside[0] else 2 : faces.shape[0] - (0 if inside[1] else 1)]
    if not _even(within):
        raise InputError("solver.method: fft needs the same conductivity everywhere")
    conductance = float(within.flat[0])
    if axis.periodic:
        angles = 2.0 * np.pi * np.arange(axis.all_unknowns) / axis.intervals
        return Modes("", 0, _eigenvalues(conductance, angles), axis.intervals)
    ends = zip(axis.fixed, faces[[1, -1]], WALLS[axis.name], strict=True)
    values = [fixed or _gives_value(axis, end, conductance, name) for fixed, end, name in ends]
    mixed = values[0] != values[1]
    kind = (3 if mixed else 1) if axis.on_nodes else (4 if mixed else 2)
    angles = np.pi * (np.arange(axis.all_unknowns) + 0.5 * sum(values)) / axis.intervals
    eigenvalues = _eigenvalues(conductance, angles)
    return Modes("dst" if values[0] else "dct", kind, eigenvalues, 2.0 * axis.intervals)


def _gives_value(axis: Axis, end: np.ndarray, conductance: float, name: str) -> bool:
    """Whether a wall has a given value (the conductance to it is 2 c) or none (it is 0)."""
    if np.all(end == 0.0):
        return False
    if not axis.on_nodes and np.all(end == 2.0 * conductance):
        return True
    raise InputError(f"solver.method: fft cannot solve the Robin condition of the {name} wall")


def _eigenvalues(conductance: float, angles: np.ndarray) -> np.ndarray:
    """2 c (1 - cos theta), without its cancellation at small angles."""
    halves = np.sin(0.5 * angles)
    return 4.0 * conductance * halves * halves


def _even(array: Any) -> bool:
    return bool(np.all(array == array.flat[0]))


# ---- the solver ----------------------------------------------------------------------------------


class Fourier(Method):
    """u += A^-1 (b - A u): expand in the eigenvectors of A, divide by its eigenvalues, sum up.

    The method of R. W. Hockney, J. ACM 12 (1965), 95, along every axis. One step solves the system;
    another step reduces the rounding errors. Where A is singular, A^-1 gives 0 in its null space.
    The residual contains the walls' values, so the transforms assume values of 0. Where no wall has
    a given value, and the norm of the residual is wanted relative to the norm of b, the first step
    is u = A^-1 b, and the norm of b counts as the first norm: both are independent of the initial
    u. The step does not depend on the norm, so a device need not wait until the host has read it.
    FFT libraries round in different ways, so the bits are the same on one backend only.

    Raises InputError where `modes_of` does, and where the backend has no FFT.
    """

    queues = False
    direct = True
    reduces_smooth_errors = True
    checks_without_fall = 1
    fall = 0.1

    def __init__(self, system: System, u: Any):
        super().__init__(system, u)
        self._modes = modes_of(system)
        self._periodic = tuple(n for n, modes in enumerate(self._modes) if modes.periodic)
        self._lengths = tuple(axis.all_unknowns for axis in system.grid.axes)
        backend = system.backend
        self._library = backend.library()
        self._transforms = transforms_of(self._library)
        self._everywhere = whole(self._lengths)
        self.needs_start = not all(modes.free for modes in self._modes)
        self._among_ghosts: Any = None
        self._is_packed = self._from_zero = False
        self._share = 1.0 / math.prod(modes.factor for modes in self._modes)
        self._lines = [
            backend.to_device(system.grid.along(number, line))
            for number, line in enumerate(self._eigenvalues())
        ]

    @cached_property
    def _right(self) -> Any:
        """The array that is transformed, without ghosts."""
        return self.system.backend.zeros(self._lengths)

    def settle(self, from_zero: bool = False) -> None:
        super().settle(from_zero)
        backend = self.system.backend
        if from_zero and len(self._periodic) == len(self._lengths):
            self._among_ghosts = self._library.fft_among_ghosts(self._lengths, backend.dtype)
        if self._among_ghosts is None:
            return
        before, shape = self._among_ghosts.before, self.system.grid.shape
        u, b = (
            backend.part(backend.zeros((before + math.prod(shape),)), shape, before)
            for _ in range(2)
        )
        self._work_in(u, b)

    def step(self, number: int, change: Accumulator | None) -> None:
        system, sweep = self.system, self.system.backend.sweep
        if self.scalars.pop(AHEAD, 0.0) > 0.0:
            assert change is None
            return
        if self._from_zero and change is None:
            self._from_zero = False
            if self._among_ghosts is not None:
                self.play("solve", self._solve_among_ghosts)
                return
            ones = (1,) * len(self._lengths)
            sweep(shifted, self._right, self._everywhere, system.b, *ones)
            self._place_solution()
            return
        if not self._is_packed:
            self._pack()
        self._is_packed = False
        with self._library.queue():
            correction = self._solve(self._library.view(self._right))
            point, out = with_norm_of_change(corrected, self.u, change)
            sweep(point, out, system.grid.interior, self.u, correction)

    def _solve_ahead(self, norm: Accumulator) -> None:
        """u = A^-1 b; add the terms of a norm of b."""
        system, sweep = self.system, self.system.backend.sweep
        sweep(taken_in(norm.kind), (self._right, norm), self._everywhere, system.b)
        self._place_solution()
        self.scalars[AHEAD] = 1.0

    def _place_solution(self) -> None:
        """u = A^-1 b, where the array of the transforms holds b."""
        with self._library.queue():
            solution = self._solve(self._library.view(self._right))
            self.system.backend.sweep(placed, self.u, self.system.grid.interior, solution)

    def _solve_among_ghosts(self) -> None:
        """u = A^-1 b, by transforms that read and write the unknowns among their ghosts."""
        fft, backend = self._among_ghosts, self.system.backend
        backend.enqueue(partial(self._transform, fft.forward, self.system.b))
        self._divide(fft.spectrum)
        backend.enqueue(partial(self._transform, fft.inverse, self.u))

    def _transform(self, transform: Callable[[Any], None], array: Any) -> None:
        """Queue a transform that reads or writes the unknowns of an array among its ghosts."""
        with self._library.queue():
            transform(self._library.view(array))

    def _pack(self, *norms: Accumulator) -> None:
        """Write the residual into the array of the transforms; add terms of its norm and b's."""
        system = self.system
        system.halo.exchange(self.u)
        args = (self.u, system.b, *system.coefficients)
        point = packed(system.residual, tuple(norm.kind for norm in norms))
        system.backend.sweep(point, (self._right, *norms), self._everywhere, *args)
        self._is_packed = True

    def residual_norm(self, steps: int, into: Accumulator) -> None:
        """Keep the residual before the first step for that step; `restart` forgets it."""
        if steps > 0:
            super().residual_norm(steps, into)
            return
        self._pack(into)

    def first_values(self, into: Accumulator, *of_b: Accumulator) -> list[float]:
        backend = self.system.backend
        if not self.needs_start and of_b:
            self._solve_ahead(into)
            return backend.values([into]) * 2
        self._pack(into, *of_b)
        return backend.values([into, *of_b])

    def restart(self) -> None:
        self.scalars.clear()
        self._is_packed = self._from_zero = False

    def restart_from_zero(self) -> None:
        self.restart()
        self._from_zero = not self.needs_start

    def _solve(self, x: Any) -> Any:
        """A^-1 x for an array x of all unknowns, without ghosts; x is overwritten."""
        transforms = self._transforms
        walls = [(axis, modes) for axis, modes in enumerate(self._modes) if not modes.periodic]
        for axis, modes in walls:
            x = transforms.real(x, modes.transform, modes.kind, axis)
        if self._periodic:
            x = transforms.spectrum(x, self._periodic)
        self._divide(x)
        if self._periodic:
            lengths = tuple(self._lengths[axis] for axis in self._periodic)
            x = transforms.values(x, lengths, self._periodic)
        for axis, modes in reversed(walls):
            x = transforms.real(x, modes.transform, modes.inverse, axis)
        return self._library.lend(x)

    def _divide(self, x: Any) -> None:
        """Divide the expansion of an array by the eigenvalues and the factors of the transforms.

        Real and imaginary parts are neighbours along the fastest axis, and divided alike.
        """
        parts = self._library.lend(x.view(self.system.backend.dtype))
        args = (parts, self._share, *self._lines)
        self.system.backend.sweep(divided, parts, whole(parts.shape), *args)

    def _eigenvalues(self) -> list[Any]:
        """The eigenvalues along each axis, whose sums are A's; the first adds the capacity."""
        coefficients = self.system.coefficients
        lines = [modes.eigenvalues for modes in self._modes]
        if self._periodic:  # one of two conjugate modes is enough
            halved = self._periodic[-1]
            lines[halved] = lines[halved][: self._lengths[halved] // 2 + 1]
            lines[-1] = lines[-1].repeat(2)
        if coefficients.s != 0.0:
            capacity = float(self.system.backend.to_host(coefficients.capacity).flat[0])
            lines[0] = lines[0] + coefficients.s * capacity
        return lines


@cache
def packed(residual: Point, kinds: tuple[str, ...]) -> Point:
    """The residual for an array without ghosts: it is read one point further on along each axis.

    If `kinds` are given, with the terms of norms of the residual and of b. Cached, because a
    backend identifies a compiled sweep by its function.
    """

    def residual_inside(at, u, b, *coefficients):
        there = tuple([index + 1 for index in at])
        value = residual(there, u, b, *coefficients)
        terms = zip((value, b[there]), kinds, strict=False)
        return (value, *[term(one, kind) for one, kind in terms])

    return residual_inside


def divided(at, parts, share, *lines):
    """share times `parts`, over the sum of one number for each axis; 0 where that sum is 0."""
    total = lines[0][at]
    for line in lines[1:]:
        total = total + line[at]
    return where(total > 0.0, share * parts[at] / total, 0.0)


@cache
def taken_in(kind: str) -> Point:
    """b for an array without ghosts, with the terms of a norm of b."""

    def taken(at, b):
        value = b[tuple([index + 1 for index in at])]
        return value, term(value, kind)

    return taken


def placed(at, inside):
    """An array without ghosts, for one with ghosts: one point further on along each axis."""
    return inside[tuple([index - 1 for index in at])]


def corrected(at, u, correction):
    """u plus a correction without ghosts."""
    return u[at] + placed(at, correction)


# ---- transforms ----------------------------------------------------------------------------------


def transforms_of(library: ArrayLibrary) -> Any:
    """SciPy's transforms on a host; on a device its own, or `RealTransforms` by its FFT."""
    if library.transforms is not None:
        return library.transforms
    if library.fft is None:
        return SciPyTransforms(library.threads)
    return RealTransforms(library.namespace, library.fft)


class SciPyTransforms:
    """The transforms of SciPy, on threads; see `RealTransforms`."""

    def __init__(self, threads: int):
        import scipy.fft  # here: it takes a moment to load, and no other method needs it

        self._fft, self._threads = scipy.fft, threads

    def real(self, x: Any, transform: str, kind: int, axis: int) -> Any:
        args = {"axis": axis, "overwrite_x": True, "workers": self._threads}
        return getattr(self._fft, transform)(x, kind, **args)

    def spectrum(self, x: Any, axes: tuple[int, ...]) -> Any:
        return self._fft.rfftn(x, axes=axes, workers=self._threads)

    def values(self, z: Any, lengths: tuple[int, ...], axes: tuple[int, ...]) -> Any:
        args = {"norm": "forward", "overwrite_x": True, "workers": self._threads}
        return self._fft.irfftn(z, lengths, axes, **args)


class RealTransforms:
    """Sine and cosine transforms by real FFTs, for array libraries that have no other transforms.

    `fft` has rfft, irfft, rfftn and irfftn. The transforms are those of scipy.fft, not normalised.
    Type 1 is the FFT of the line continued to its period. Cosine types 2 and 3 are FFTs of the line
    itself, reordered (J. Makhoul, IEEE Trans. Acoust. Speech Signal Process. 28 (1980), 27). All
    other transforms follow from these by reversing a line, by alternating signs, and by continuing
    it beyond a wall.
    """

    def __init__(self, namespace: Any, fft: Any):
        self._xp, self._fft = namespace, fft

    def real(self, x: Any, transform: str, kind: int, axis: int) -> Any:
        """The "dst" or "dct" of a type along an axis; x may be overwritten."""
        names = {"dst": "sine", "dct": "cosine"}
        along = getattr(self, f"_{names[transform]}_{kind}")
        lines = self._xp.moveaxis(x, axis, -1)
        return self._xp.ascontiguousarray(self._xp.moveaxis(along(lines), -1, axis))

    def spectrum(self, x: Any, axes: tuple[int, ...]) -> Any:
        """The Fourier transform of reals along `axes`, of which the last keeps half its modes."""
        return self._xp.ascontiguousarray(self._fft.rfftn(x, axes=axes))

    def values(self, z: Any, lengths: tuple[int, ...], axes: tuple[int, ...]) -> Any:
        """The inverse of `spectrum`, not divided by the product of the lengths; overwrites z."""
        args = {"s": lengths, "axes": axes, "norm": "forward", "overwrite_x": True}
        return self._xp.ascontiguousarray(self._fft.irfftn(z, **args))

    def _cosine_1(self, x: Any) -> Any:
        """x_0 + (-1)^k x_N-1 + 2 sum x_n cos(pi k n / (N - 1))."""
        whole = self._xp.concatenate([x, x[..., -2:0:-1]], axis=-1)
        return self._fft.rfft(whole).real

    def _sine_1(self, x: Any) -> Any:
        """2 sum x_n sin(pi (k + 1) (n + 1) / (N + 1))."""
        zero = self._xp.zeros_like(x[..., :1])
        whole = self._xp.concatenate([zero, x, zero, -x[..., ::-1]], axis=-1)
        return -self._fft.rfft(whole).imag[..., 1:-1]

    def _cosine_2(self, x: Any) -> Any:
        """2 sum x_n cos(pi k (2 n + 1) / (2 N))."""
        n = x.shape[-1]
        line = self._xp.concatenate([x[..., 0::2], x[..., 1::2][..., ::-1]], axis=-1)
        half = self._fft.rfft(line)
        half *= 2.0 * self._turns(n, half.dtype, -1.0)
        ahead = half.imag[..., (n - 1) // 2 : 0 : -1]
        return self._xp.concatenate([half.real, -ahead], axis=-1)

    def _cosine_3(self, x: Any) -> Any:
        """x_0 + 2 sum x_n cos(pi (2 k + 1) n / (2 N))."""
        xp, n = self._xp, x.shape[-1]
        # The point N - k for each point k; there is none for k = 0.
        beside = xp.concatenate([xp.zeros_like(x[..., :1]), x[..., : (n - 1) // 2 : -1]], axis=-1)
        half = x[..., : n // 2 + 1] - 1j * beside[..., : n // 2 + 1]
        half *= self._turns(n, half.dtype, 1.0)
        line = self._fft.irfft(half, n=n, norm="forward")
        result = xp.empty_like(line)
        result[..., 0::2] = line[..., : (n + 1) // 2]
        result[..., 1::2] = line[..., (n + 1) // 2 :][..., ::-1]
        return result

    def _cosine_4(self, x: Any) -> Any:
        """2 sum x_n cos(pi (2 k + 1) (2 n + 1) / (4 N)): every second mode of a line twice as long.

        Beyond the wall of value 0 the line continues with opposite sign, up to an insulated wall.
        """
        whole = self._xp.concatenate([x, -x[..., ::-1]], axis=-1)
        return 0.5 * self._cosine_2(whole)[..., 1::2]

    def _sine_2(self, x: Any) -> Any:
        return self._cosine_2(x * self._signs(x))[..., ::-1]

    def _sine_3(self, x: Any) -> Any:
        return self._cosine_3(x[..., ::-1]) * self._signs(x)

    def _sine_4(self, x: Any) -> Any:
        return self._cosine_4(x[..., ::-1]) * self._signs(x)

    def _turns(self, n: int, dtype: Any, sign: float) -> Any:
        """exp(+- i pi k / (2 N)) for the frequencies of a real line of N points."""
        xp = self._xp
        return xp.exp(sign * 0.5j * xp.pi / n * xp.arange(n // 2 + 1)).astype(dtype)

    def _signs(self, x: Any) -> Any:
        """1, -1, 1, ... along a line."""
        return (1 - 2 * (self._xp.arange(x.shape[-1]) % 2)).astype(x.dtype)
