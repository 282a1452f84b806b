"""The direct solver of constant coefficients on a box: fast sine, cosine and Fourier transforms."""

import math
from functools import cache
from typing import Any

from heatsolve.backends import Accumulator, ArrayLibrary
from heatsolve.linear import Method, System, term, with_change
from heatsolve.linear.fft.modes import Modes, modes_of
from heatsolve.linear.fft.real_transforms import RealTransforms
from heatsolve.stencil.grid import whole
from heatsolve.stencil.language import Point, where

AHEAD = "ahead"
"""The scalar that says that the next step is made already."""


class Fourier(Method):
    """u += A^-1 (b - A u): expand in the eigenvectors of A, divide by its eigenvalues, sum up.

    R. W. Hockney, J. ACM 12 (1965), 95, for every axis. One step solves the system, another one
    refines what rounding left. Where A is singular the mode of its null space keeps its place. The
    residual carries the walls' values, so that the transforms know of none; where no wall has one,
    and the residual's norm is wanted relative to that of b, the first step is u = A^-1 b instead,
    and that norm the one of b: what u was before plays no part. Nor does the host's look at the
    norm, so a device need not wait for it. Two libraries of FFTs round in different ways: the bits
    are those of one backend only.

    Raises InputError where A has other eigenvectors, see `modes`, or the backend has no FFT.
    """

    queues = False
    direct = True
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
        self._free = all(modes.free for modes in self._modes)
        self._right = backend.zeros(self._lengths)
        self._is_packed = False
        self._share = 1.0 / math.prod(modes.factor for modes in self._modes)
        self._lines = [
            backend.to_device(system.grid.along(number, line))
            for number, line in enumerate(self._eigenvalues())
        ]

    def step(self, number: int, change: Accumulator | None) -> None:
        system, sweep = self.system, self.system.backend.sweep
        if self.scalars.pop(AHEAD, 0.0) > 0.0:
            assert change is None
            return
        if not self._is_packed:
            self._pack()
        self._is_packed = False
        with self._library.queue():
            correction = self._solve(self._library.view(self._right))
            out = self.u if change is None else (self.u, change)
            point = CORRECTED[change.kind if change else None]
            sweep(point, out, system.grid.interior, self.u, correction)

    def _solve_ahead(self, norm: Accumulator) -> None:
        """u = A^-1 b, and the terms of a norm of b."""
        system, sweep = self.system, self.system.backend.sweep
        sweep(taken_in(norm.kind), (self._right, norm), self._everywhere, system.b)
        with self._library.queue():
            solution = self._solve(self._library.view(self._right))
            sweep(placed, self.u, system.grid.interior, solution)
        self.scalars[AHEAD] = 1.0

    def _pack(self, *norms: Accumulator) -> None:
        """The residual into the array of the transforms; terms of norms of it, and of b."""
        system = self.system
        system.halo.exchange(self.u)
        given = (self.u, system.b, *system.coefficients)
        point = packed(system.residual, tuple(norm.kind for norm in norms))
        system.backend.sweep(point, (self._right, *norms), self._everywhere, *given)
        self._is_packed = True

    def residual_norm(self, steps: int, into: Accumulator) -> None:
        """Before the first step the residual stays for it; `restart` forgets it."""
        if steps > 0:
            super().residual_norm(steps, into)
            return
        self._pack(into)

    def first_values(self, into: Accumulator, *of_b: Accumulator) -> list[float]:
        backend = self.system.backend
        if self._free and of_b:
            self._solve_ahead(into)
            return backend.values([into]) * 2
        self._pack(into, *of_b)
        return backend.values([into, *of_b])

    def restart(self) -> None:
        self.scalars.clear()
        self._is_packed = False

    def solution(self, steps: int) -> Any:
        return self.u

    def _solve(self, x: Any) -> Any:
        """A^-1 of an array of all unknowns without ghosts, which is overwritten."""
        transforms, walls = self._transforms, self._between_walls()
        for axis, modes in walls:
            x = transforms.real(x, modes.transform, modes.kind, axis)
        if self._periodic:
            x = transforms.spectrum(x, self._periodic)
        # Real and imaginary parts are divided alike, as neighbours along the fastest axis.
        parts = self._library.lend(x.view(self.system.backend.dtype))
        given = (parts, self._share, *self._lines)
        self.system.backend.sweep(divided, parts, whole(parts.shape), *given)
        if self._periodic:
            lengths = tuple(self._lengths[axis] for axis in self._periodic)
            x = transforms.values(x, lengths, self._periodic)
        for axis, modes in reversed(walls):
            x = transforms.real(x, modes.transform, modes.inverse, axis)
        return self._library.lend(x)

    def _between_walls(self) -> list[tuple[int, Modes]]:
        return [(axis, modes) for axis, modes in enumerate(self._modes) if not modes.periodic]

    def _eigenvalues(self) -> list[Any]:
        """What each axis adds to the eigenvalues of A; the first one also the capacity."""
        capacity, s, *_ = self.system.coefficients
        lines = [modes.eigenvalues for modes in self._modes]
        if self._periodic:  # of conjugate modes one is enough
            halved = self._periodic[-1]
            lines[halved] = lines[halved][: self._lengths[halved] // 2 + 1]
            lines[-1] = lines[-1].repeat(2)
        if s != 0.0:
            lines[0] = lines[0] + s * float(self.system.backend.to_host(capacity).flat[0])
        return lines


class SciPyTransforms:
    """The transforms of SciPy, on threads; see `RealTransforms`."""

    def __init__(self, threads: int):
        import scipy.fft  # here: it takes a moment to load, and no other method needs it

        self._fft, self._threads = scipy.fft, threads

    def real(self, x: Any, transform: str, kind: int, axis: int) -> Any:
        given = {"axis": axis, "overwrite_x": True, "workers": self._threads}
        return getattr(self._fft, transform)(x, kind, **given)

    def spectrum(self, x: Any, axes: tuple[int, ...]) -> Any:
        return self._fft.rfftn(x, axes=axes, workers=self._threads)

    def values(self, z: Any, lengths: tuple[int, ...], axes: tuple[int, ...]) -> Any:
        given = {"norm": "forward", "overwrite_x": True, "workers": self._threads}
        return self._fft.irfftn(z, lengths, axes, **given)


def transforms_of(library: ArrayLibrary) -> Any:
    """SciPy's transforms on a host, on a device those that its FFT allows."""
    if library.transforms is not None:
        return library.transforms
    if library.fft is None:
        return SciPyTransforms(library.threads)
    return RealTransforms(library.namespace, library.fft)


@cache
def packed(residual: Point, kinds: tuple[str, ...]) -> Point:
    """The residual for an array without ghosts: one point further on along each axis.

    With the terms of a norm of it, and of one of b, for kinds that are given. Made once for each
    system, as backends know a sweep by its function.
    """

    def residual_inside(at, u, b, *coefficients):
        there = tuple([index + 1 for index in at])
        value = residual(there, u, b, *coefficients)
        terms = zip((value, b[there]), kinds, strict=False)
        return (value, *[term(one, kind) for one, kind in terms])

    return residual_inside


def divided(at, parts, share, *lines):
    """A share of it, divided by the sum of one number for each axis; 0 where that is 0."""
    total = lines[0][at]
    for line in lines[1:]:
        total = total + line[at]
    return where(total > 0.0, share * parts[at] / total, 0.0)


@cache
def taken_in(kind: str) -> Point:
    """An array for one without ghosts, with the terms of a norm of it."""

    def taken(at, b):
        value = b[tuple([index + 1 for index in at])]
        return value, term(value, kind)

    return taken


def placed(at, inside):
    """An array without ghosts: one point further on along each axis."""
    return inside[tuple([index - 1 for index in at])]


def corrected(at, u, correction):
    """u plus a correction without ghosts."""
    return u[at] + placed(at, correction)


CORRECTED: dict[str | None, Point] = {
    None: corrected,
    "max": with_change(corrected, "max"),
    "sum": with_change(corrected, "sum"),
}
