"""The numba backend: one compiled loop nest per point function, on all threads of the machine.

For each point function a small Python module is generated and compiled by Numba; its machine code
is kept in the user's cache folder, so that a second run compiles nothing.
"""

import math
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

# A spinning barrier makes two threads on shared cores slower than one; the policy must be set
# before Numba loads OpenMP, and a user's own setting stays.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numba
from numba.core import event

from heatsolve.backends import MOST_FUSED, ArrayLibrary, Region, Signature, SweepSequence
from heatsolve.backends import exact_sums as sums
from heatsolve.backends.compilation import WATCH, digest
from heatsolve.backends.host import HostBackend
from heatsolve.backends.host.numba_loops import KEY, SEGMENT, loop_nest
from heatsolve.backends.host.time_tiling import (
    KINDS,
    Pass,
    Tiling,
    in_lines,
    radii,
    row_functions,
)
from heatsolve.stencil.language import Point
from heatsolve.stencil.trace import INTEGER, Tape

THREADED_FROM = 1 << 16
"""The fewest points for which waking a second thread gains more than it costs."""
LONG_FROM = 1 << 12
"""The fewest points of a region one point wide for which its own loop nest is worth compiling."""
CHUNKS_PER_THREAD = 4


class _Compilation(event.Listener):
    """Tells `WATCH` when Numba compiles, at the first call of a function without machine code."""

    def on_start(self, event: Any) -> None:
        WATCH.begin()

    def on_end(self, event: Any) -> None:
        WATCH.end()


event.register("numba:compile", _Compilation())


class NumbaBackend(HostBackend):
    """Runs generated loop nests; `threads` defaults to all that Numba sees (NUMBA_NUM_THREADS)."""

    name = "numba"

    def __init__(self, precision: str = "float64", threads: int | None = None):
        super().__init__(precision)
        most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
        self.threads = min(threads or most, most)
        self._chunks = CHUNKS_PER_THREAD * self.threads if self.threads > 1 else 1
        self._woken = False
        self.tiling = Tiling()

    @property
    def threading(self) -> str:
        if self.threads == 1:
            return "one thread"
        layer = numba.threading_layer() if self._woken else "no threads"
        return f"{self.threads} threads ({layer})"

    def library(self) -> ArrayLibrary:
        return ArrayLibrary(self.threads)

    def new_register(self) -> np.ndarray:
        return np.zeros((self._chunks, sums.WIDTH), np.int64)

    def read_register(self, register: np.ndarray) -> np.ndarray:
        return sums.merge(register)

    def _compile(self, point: Point, signature: Signature, tape: Tape) -> Any:
        terms = sum(kind != "array" for kind in signature.outputs)
        scratch = np.empty((self._chunks, max(1, terms), SEGMENT))
        compiled: dict[tuple[bool, int], Any] = {}

        def run(region: Region, targets: Sequence[Any], arguments: Sequence[Any]) -> None:
            points = math.prod([high - low for low, high in region])
            # Threaded loops take three times as long to compile: only where they gain time.
            threaded = self.threads > 1 and points >= THREADED_FROM
            inner = innermost(region) if points >= LONG_FROM else len(region) - 1
            if (threaded, inner) not in compiled:
                source = loop_nest(point.__name__, signature, tape, threaded, inner)
                compiled[threaded, inner] = _load(source).loops
            self._wake(threaded)
            bounds = [bound for pair in region for bound in pair]
            chunks = self._chunks if threaded else 1
            args = (chunks, scratch, *bounds, *targets, *arguments)
            self._make([(compiled[threaded, inner], args)])

        return run

    def _wake(self, threaded: bool) -> None:
        if threaded and numba.get_num_threads() != self.threads:
            numba.set_num_threads(self.threads)  # the setting is common to all backends
        self._woken |= threaded

    def most_fused(self, sweeps: SweepSequence) -> int:
        if sweeps.u.nbytes <= self.tiling.worth:
            return 1
        reach = self._analysed(_reach, sweeps)
        if reach is None or not _lies_within(sweeps.u.shape, sweeps.region, reach):
            return 1
        extents = [high - low for low, high in sweeps.region]
        most = min(len(sweeps.stages), MOST_FUSED)
        return self.tiling.levels(extents, reach, sweeps.wraps, most)

    def _compile_fused(
        self,
        point: Point,
        signature: Signature,
        tape: Tape,
        wraps: tuple[bool, ...],
        kinds: tuple[str | None, ...],
    ) -> Any:
        reach = radii(tape)
        assert reach is not None
        compiled: dict[bool, Any] = {}
        levels, chunks = len(kinds), self._chunks
        numbered = np.array([KINDS[kind] for kind in kinds], np.int64)
        reals = [n - 1 for n, a in enumerate(signature.arguments) if isinstance(a, str)]
        arrays = [n - 1 for n, a in enumerate(signature.arguments) if n and not isinstance(a, str)]
        accumulated = np.zeros((chunks, levels, sums.WIDTH), np.int64)
        room: dict[Any, Any] = {}

        def run(*args: Any) -> None:
            self._make([(sweep, args)])

        def sweep(
            new: Any,
            u: Any,
            region: Region,
            stages: Sequence[Sequence[Any]],
            registers: Sequence[Any],
            counted: Region,
        ) -> None:
            extents = tuple([high - low for low, high in region])
            threaded = self.threads > 1 and math.prod(extents) >= THREADED_FROM
            if threaded not in compiled:
                shared = _load(row_functions()).__name__
                made = Pass(point.__name__, signature, tape, wraps, threaded, shared)
                compiled[threaded] = _load(made.source).loops
            self._wake(threaded)
            if extents not in room:
                tile, ring = self._tile_and_ring(extents, levels, reach)
                terms = np.empty((chunks, tile[-1]))
                room[extents] = tile, in_lines((chunks, *ring), self.dtype), terms
            tile, rings, terms = room[extents]
            numbers = np.empty((levels, len(reals)), self.dtype)
            numbers[:] = [[stage[n] for n in reals] for stage in stages]
            bounds = [bound for pair in (*region, *counted) for bound in pair]
            for level, register in enumerate(registers):
                if register is not None:
                    accumulated[:, level] = register
            args = [stages[0][n] for n in arrays]
            compiled[threaded](
                chunks, levels, *tile, rings, terms, accumulated, numbered, numbers, *bounds,
                new, u, *args,
            )  # fmt: skip
            for level, register in enumerate(registers):
                if register is not None:
                    register[:] = accumulated[:, level]

        return run

    def _tile_and_ring(
        self, extents: tuple[int, ...], levels: int, reach: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The extents of a pass's tiles, and the shape of the rings of one tile."""
        size = self.dtype.itemsize
        tile = self.tiling.tile(extents, levels, reach, size, self._chunks)
        return tile, self.tiling.ring_shape(tile, levels, reach, size)

    def room_of_pass(self, extents: tuple[int, ...], levels: int, tape: Tape) -> int:
        reach = radii(tape)
        assert reach is not None
        _, ring = self._tile_and_ring(extents, levels, reach)
        return self._chunks * math.prod(ring) * self.dtype.itemsize


def _reach(tape: Tape, signature: Signature) -> tuple[int, ...] | None:
    """How far a pass must read along each axis; None where that cannot be known beforehand."""
    return None if INTEGER in signature.arguments else radii(tape)


def _lies_within(shape: Sequence[int], region: Region, reach: Sequence[int]) -> bool:
    """Whether an array of this shape holds all points in reach of a region."""
    along = zip(shape, region, reach, strict=True)
    return all(radius <= low and high + radius <= n for n, (low, high), radius in along)


def innermost(region: Region) -> int:
    """The axis of the innermost loop: the last one along which there is more than one point."""
    axes = [axis for axis, (low, high) in enumerate(region) if high - low > 1]
    return axes[-1] if axes else len(region) - 1


# ---- generated modules ------------------------------------------------------------------------


def _load(source: str) -> ModuleType:
    """A generated module, whose functions keep their machine code in the cache."""
    key = digest(source)
    name = f"heatsolve_sweep_{key}"
    if name in sys.modules:
        return sys.modules[name]
    # Numba looks a function's module up by name when it loads machine code.
    sys.modules[name] = module = ModuleType(name)
    module.__dict__[KEY] = key
    exec(compile(source, f"<{name}>", "exec"), module.__dict__)
    return module
