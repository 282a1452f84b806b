"""Every point function of the project, with arguments to try it on, and the oracles for its bits.

The point functions that a method of `linear` makes for itself are found by letting the method run
on a backend that notes what it is asked to sweep; the others are listed with their arguments.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from heatsolve.backends import Accumulator, Backend, Region, Signature
from heatsolve.backends import exact_sums as sums
from heatsolve.backends.host.numpy import NumpyBackend
from heatsolve.linear.fft import Fourier
from heatsolve.linear.krylov import ConjugateGradients, MultigridCG
from heatsolve.linear.multigrid import direct, transfer, transfer_2d, transfer_at_once
from heatsolve.linear.multigrid.cycle import Multigrid
from heatsolve.linear.multigrid.levels import added_from, copied, filled
from heatsolve.linear.multigrid.mixed import Refinement
from heatsolve.linear.multigrid.transfer import (
    coloured,
    extrapolated,
    interpolated,
    interpolated_pair,
    restricted,
)
from heatsolve.linear.multigrid.transfer_2d import interpolated_2d
from heatsolve.linear.stationary import Chebyshev, Jacobi, Sor
from heatsolve.linear.system import Coefficients, System, added, weighted_magnitude
from heatsolve.models import derived, statistics
from heatsolve.models.flow import equations as flow
from heatsolve.models.heat import equations as heat
from heatsolve.models.heat import flux, walls
from heatsolve.models.transport import equations as transport
from heatsolve.parallel.halo import Halo
from heatsolve.stencil import language as points
from heatsolve.stencil.grid import make_grid
from heatsolve.stencil.language import Point, evaluate
from heatsolve.stencil.trace import INTEGER, REAL, describe
from heatsolve.time import integrals

DIMENSIONS = (1, 2, 3)
PRECISIONS = ("float64", "float32")
SMALL = {1: (9,), 2: (5, 7), 3: (5, 4, 6)}
"""Fields small enough for a loop in plain Python."""


@dataclass(frozen=True)
class Field:
    """An array argument: whether it varies along each axis, and whether it must be positive."""

    varies: tuple[bool, ...]
    positive: bool = False

    def make(self, shape: Sequence[int], dtype: np.dtype, rng: Any, wild: bool) -> np.ndarray:
        extents = [n if varies else 1 for n, varies in zip(shape, self.varies, strict=True)]
        return random_field(extents, dtype, rng, wild, self.positive)


class Marks(Field):
    """-1, 0 and 1: where obstacles are, and what is beside them."""

    def make(self, shape: Sequence[int], dtype: np.dtype, rng: Any, wild: bool) -> np.ndarray:
        return rng.integers(-1, 2, shape).astype(dtype)


@dataclass(frozen=True)
class Entry:
    """A point function with arguments to try it on.

    `arguments`: a Field for an array, REAL for a random positive number, or an integer. `outputs`:
    "array", "sum", "max", or the number of the argument that is overwritten in place.
    """

    name: str
    point: Point
    dimension: int
    arguments: tuple[Any, ...]
    outputs: tuple[str | int, ...] = ("array",)

    def make(self, shape: Sequence[int], precision: str, seed: int, wild: bool) -> list[Any]:
        """Arguments on the host: random, and the same for the same seed."""
        rng, dtype = np.random.default_rng(seed), np.dtype(precision)
        return [
            argument.make(shape, dtype, rng, wild) if isinstance(argument, Field)
            else 10.0 ** rng.uniform(-2, 2) if argument == REAL
            else argument
            for argument in self.arguments
        ]  # fmt: skip

    def signature(self, precision: str, gated: bool = False) -> Signature:
        """What a backend would compile, without an array."""
        arguments = tuple(
            tuple(not varies for varies in a.varies) if isinstance(a, Field)
            else describe(a) if isinstance(a, points.Known)
            else REAL if a == REAL else INTEGER
            for a in self.arguments
        )  # fmt: skip
        outputs = tuple("array" if isinstance(kind, int) else kind for kind in self.outputs)
        in_place = tuple(kind if isinstance(kind, int) else None for kind in self.outputs)
        return Signature(arguments, outputs, in_place, precision, self.dimension, gated)

    def region(self, shape: Sequence[int]) -> Region:
        """The points of arrays of this shape inside a ring of one, less those that read beyond."""
        loads = self.signature("float64").tape(self.point).loads()
        places = {place._replace(added=()) for _, subscript in loads for place in subscript}

        def fits(index: int, extent: int) -> bool:
            return all(0 <= place.at(index, ()) < extent for place in places)

        inside = [
            [index for index in range(low, high) if fits(index, extent)]
            for (low, high), extent in zip(interior(shape), shape, strict=True)
        ]
        return tuple((indices[0], indices[-1] + 1) for indices in inside)


def random_field(shape, dtype, rng, wild: bool, positive: bool = False) -> np.ndarray:
    """Mixed signs with zeros of both signs and denormals; `wild`: over nearly all magnitudes."""
    limits = np.finfo(dtype)
    decades = 0.95 * np.log10(float(limits.max)) if wild else 2.0
    if positive:
        # Products of a few stay finite and above zero.
        return (10.0 ** rng.uniform(-decades / 4, decades / 4, shape)).astype(dtype)
    signs = rng.choice([-1.0, 1.0], shape)
    values = (signs * 10.0 ** rng.uniform(-decades, decades, shape)).astype(dtype)
    special = rng.integers(0, 30, shape)
    values[special == 0] = 0.0
    values[special == 1] = -0.0
    values[special == 2] = limits.smallest_subnormal * dtype.type(3)
    values[special == 3] = -limits.smallest_normal / dtype.type(2)
    return values


# ---- the registry -----------------------------------------------------------------------------


def pointwise(function: Callable[..., Any]) -> Point:
    """A helper of one or more numbers as a point function of as many arrays."""

    def point(at, *arrays):
        return function(*[array[at] for array in arrays])

    point.__name__ = function.__name__
    return point


WORDS = {points.where: 3, points.minimum: 2, points.maximum: 2, points.sqrt: 1, points.magnitude: 1}
HELPERS = {
    heat.harmonic_mean: 2,
    walls.Value.on_cells: 2,
    walls.Value.on_nodes: 2,
    walls.Robin.on_cells: 3,
    walls.Robin.on_nodes: 2,
    walls.Gradient.through: 4,
}
"""Helpers that are no point functions themselves, and how many numbers they take."""


def chosen(a, b, c):
    """`where`, with both `&` and `|` in its condition."""
    return points.where((a < b) & (b != c) | (c >= 0.5), a, b)


@cache
def registry() -> tuple[Entry, ...]:
    """All entries, in every dimension in which their point functions exist."""
    return tuple(
        entry for d in DIMENSIONS
        for entry in (
            *_of_points(d), *_of_heat(d), *_of_walls(d), *_of_transport(d), *_of_flow(d),
            *_of_derived(d), *_of_statistics(d), *_of_methods(d), *_of_transfers(d),
        )
    )  # fmt: skip


def _mixed(d: int) -> Field:
    return Field((True,) * d)


def _along(d: int, *axes: int, positive: bool = True) -> Field:
    """A field that varies along some axes only."""
    return Field(tuple(n in axes for n in range(d)), positive)


def _faces(d: int) -> tuple[Field, ...]:
    """Conductance and ratio for x, y, z: one varies everywhere, one along its axis, one nowhere."""
    conductances = [_along(d, *range(d)), _along(d, d - 2), _along(d)]
    ratios = [_along(d, d - 1), _along(d, d - 2), _along(d)]
    return tuple(f for pair in zip(conductances[:d], ratios[:d], strict=True) for f in pair)


def _of_points(d: int) -> list[Entry]:
    u = _mixed(d)
    words = [
        Entry(f"{d}d-{word.__name__}", pointwise(chosen if word is points.where else word), d,
              (u,) * count, ("max",) if word is points.magnitude else ("array",))
        for word, count in WORDS.items()
    ]  # fmt: skip
    return [
        Entry(f"{d}d-copy", points.copy, d, (_along(d, d - 1, positive=False),)),
        Entry(f"{d}d-fill", points.fill, d, (REAL,)),
        Entry(f"{d}d-shifted", points.shifted, d, (u, *(1, -1, 0)[:d])),
        Entry(f"{d}d-change", points.change, d, (u, u), ("max",)),
        Entry(f"{d}d-largest-magnitude", points.largest_magnitude, d, (u, u, u)),
        Entry(f"{d}d-largest-magnitudes", points.largest_magnitude, d, (u, u), ("max",)),
        Entry(
            f"{d}d-together",
            points.together((points.copy, points.change), ((1,), (0, 1))),
            d,
            (u, u),
            ("array", 0),
        ),
        Entry(f"{d}d-squared-change", points.term_of(points.change, "sum"), d, (u, u), ("sum",)),
        Entry(f"{d}d-weighted-magnitude", weighted_magnitude, d, (u, *_faces(d)[1::2]), ("sum",)),
        *words,
    ]


def _of_heat(d: int) -> list[Entry]:
    t, faces, m = _mixed(d), _faces(d), _along(d, d - 1)
    listed = [
        (heat.flux_divergence, (t, *faces)),
        (heat.conductance, faces),
        (heat.residual, (t, t, m, REAL, *faces)),
        (heat.diagonal, (m, REAL, *faces)),
        (heat.rounding, (t, t, m, REAL, *faces)),
        (heat.gershgorin, (_along(d, *range(d)), m, *faces)),
        (heat.rate, (REAL, m)),
        (heat.explicit_step, (t, t, m, *faces)),
        (heat.implicit_source, (t, t, t, m, REAL, REAL, *faces)),
    ]
    entries = [Entry(f"{d}d-{point.__name__}", point, d, given) for point, given in listed]
    # What is known beforehand: full cells, and nothing stored.
    known = [points.ONE if n % 2 else face for n, face in enumerate(faces)]
    entries += [
        Entry(f"{d}d-steady-residual", heat.residual, d, (t, t, m, points.ZERO, *known)),
        Entry(f"{d}d-steady-diagonal", heat.diagonal, d, (m, points.ZERO, *known)),
        Entry(f"{d}d-steady-rounding", heat.rounding, d, (t, t, m, points.ZERO, *known)),
    ]
    if d == 2:
        entries += [
            Entry(f"2d-{name}", point, 2, (t, t, REAL))
            for name, point in heat.LITERAL_UPDATES.items()
        ]
        entries.append(Entry("2d-laplace-unequal", heat.laplace_unequal, 2, (t, t, *[REAL] * 3)))
    return entries


def _of_transport(d: int) -> list[Entry]:
    u, constant = _mixed(d), _along(d)
    along = _along(d, d - 1, positive=False)
    entries = [
        Entry(f"{d}d-against", transport.negative_part, d, (along,)),
        Entry(f"{d}d-about-value", transport.about_value, d, (u, along, *(1, -1, 0)[:d])),
        Entry(f"{d}d-with-rise", transport.with_rise, d, (u, along, *(1, -1, 0)[:d])),
    ]
    wall = (u, REAL, *(1, -1, 0)[:d])
    entries.append(Entry(f"{d}d-slope-at-wall", transport.slope_at_wall, d, wall))
    for convection, each in transport.SLOPES.items():
        for axis in range(d):
            point = transport.slopes(convection, axis)
            name = f"{d}d-{convection}-slopes-{axis}"
            entries.append(Entry(name, point, d, (u,), ("array",) * each))
    for axis in range(d):
        entries += [
            Entry(
                f"{d}d-against-faces-{axis}",
                transport.negative_part_at_faces(axis),
                d,
                (u,),
                ("max",),
            ),
            Entry(f"{d}d-speed-out-{axis}", transport.speed_out(axis), d, (u,), ("max",)),
        ]
    for convection, form in product(transport.CONVECTIONS, ("flux", "advective")):
        slopes = [u] * (transport.SLOPES.get(convection, 0) * d)
        velocities = [u, along, constant][:d]
        # A low wall along one axis, a high one along another, as blocks of several processes have.
        lines = [_along(d, axis, positive=False) for axis in reversed(range(d))]
        walls = [lines[0], *[points.ZERO] * (2 * d - 2), lines[-1]]
        numbers = [REAL] * (1 + 2 * d if form == "flux" else 2 + d)  # the step first
        name, given = f"{d}d-{convection}-{form}", (convection, form)
        euler = (points.ZERO, points.ONE, *numbers)
        other = form == "flux" and not slopes  # with slopes cells are nodes without these lines
        for on_nodes in (True, False) if other else (True,):
            kind = "" if on_nodes else "-cells"
            carried = transport.stage(d, 1, *given, False, True, on_nodes)
            own = transport.stage(d, d, *given, True, True, on_nodes)
            entries += [
                Entry(f"{name}{kind}-euler", carried, d,
                      (u, u, u, *velocities, *slopes, *walls, *euler)),
                Entry(f"{name}{kind}-self", own, d,
                      (*[u] * (2 * d), *[constant] * d, *slopes * d, *walls, REAL, REAL, *numbers),
                      tuple(range(d))),
            ]  # fmt: skip
        last = transport.stage(d, 1, *given, False, False)
        free = [points.ZERO] * (2 * d)
        arguments = (u, u, u, *velocities, *slopes, *free, REAL, REAL, *numbers)
        entries.append(Entry(f"{name}-last", last, d, arguments, (0,)))
    for kind in ("sum", "max"):
        change = transport.changes(d, kind)
        entries.append(Entry(f"{d}d-changes-{kind}", change, d, (u,) * (2 * d), (kind,)))
    return entries


def _of_flow(d: int) -> list[Entry]:
    return [] if d == 1 else [*_of_staggered(d), *(_of_collocated() if d == 2 else [])]


def _of_staggered(d: int) -> list[Entry]:
    u, step = _mixed(d), [points.ZERO, points.ONE]
    given, velocities, spacings = [REAL, REAL], [u] * d, [REAL] * d
    stage, around = (u, u, REAL, REAL, REAL), (*velocities, u, REAL, *spacings)
    bends, weights = [u] * d, [u] * (2 * d)
    marks = Marks((True,) * d)
    surface = (REAL, *spacings, *weights, u, u, marks, points.ONE)
    entries = []
    for axis in range(d):
        plain = flow.stage(flow.momentum(d, axis, "central", False))
        lifted = flow.stage(flow.momentum(d, axis, "central", True))
        biased = flow.momentum(d, axis, "upwind3", False)
        wide = flow.momentum(d, axis, "central4", False)
        heat_ = (*velocities, u, u, REAL, REAL, REAL, *spacings)
        entries += [
            Entry(f"{d}d-central-momentum-{axis}", plain, d, (u, u, *step, REAL, *around)),
            Entry(f"{d}d-skew-rate-{axis}", flow.momentum(d, axis, "skew", False), d, around),
            Entry(
                f"{d}d-rate-ahead-{axis}",
                flow.ahead(wide),
                d,
                (u, REAL, *velocities, *bends, u, points.ZERO, *spacings),
                ("array", 0),
            ),
            Entry(f"{d}d-buoyant-momentum-{axis}", lifted, d, (*stage, *heat_), (0,)),
            Entry(
                f"{d}d-biased-momentum-{axis}",
                flow.stage(biased, 1),
                d,
                (*stage, u, *velocities, *bends, u, REAL, *spacings, *weights),
                (0,),
            ),
            Entry(f"{d}d-leaving-{axis}", flow.leaving(axis), d, (u, REAL)),
            Entry(f"{d}d-projected-{axis}", flow.projected(axis), d, (u, u, *given), (0,)),
            Entry(
                f"{d}d-projected-beside-{axis}",
                flow.projected(axis),
                d,
                (u, u, *given, u),
                (0,),
            ),
            Entry(f"{d}d-conductance-{axis}", flow.conductance(axis), d, (u, u)),
            Entry(
                f"{d}d-force-{axis}",
                flow.force(d, axis, "central"),
                d,
                (u, *velocities, *surface),
                ("sum",),
            ),
            Entry(f"{d}d-slope-{axis}", flow.slope_outward(axis, 1), d, (u, REAL), ("sum",)),
            Entry(f"{d}d-centred-{axis}", flow.centred(axis), d, (u,)),
        ]
    return [
        *entries,
        Entry(f"{d}d-bends", flow.second_differences(d), d, (u,), ("array",) * d),
        Entry(f"{d}d-carried", flow.carried(d, "central"), d, (u, *around)),
        Entry(f"{d}d-carried-only", flow.carried(d, "central"), d,
              (u, *velocities, u, points.ZERO, *spacings)),
        Entry(f"{d}d-diffused", flow.diffused, d, (u, u, REAL, *spacings)),
        Entry(f"{d}d-blended", flow.blended, d, (u, u, REAL), (0,)),
        Entry(f"{d}d-biased-carried", flow.stage(flow.carried(d, "upwind3"), 2), d,
              (*stage, u, u, u, *velocities, *bends, u, REAL, *spacings, *weights), (0,)),
        Entry(f"{d}d-release", flow.release(d, "upwind3"), d,
              (u, *velocities, *bends, *surface), ("sum",)),
        Entry(f"{d}d-enclosed", flow.enclosed, d, tuple(velocities)),
        Entry(f"{d}d-filled-inside", flow.filled, d, (u, marks, u), (0,)),
        Entry(f"{d}d-enstrophy", flow.enstrophy, d, (*velocities, *spacings), ("sum",)),
        Entry(f"{d}d-courant", flow.courant, d, (*velocities, *spacings), ("max",)),
        Entry(f"{d}d-divergence", transport.divergence, d, (*velocities, *spacings), ("max",)),
        Entry(f"{d}d-scaled-divergence", flow.scaled_divergence, d,
              (REAL, *velocities, *spacings)),
        Entry(f"{d}d-projected-outflow", flow.projected_outflow, d, (u, u, *given), (0,)),
        Entry(f"{d}d-projected-outflow-beside", flow.projected_outflow, d, (u, u, *given, u), (0,)),
        *_of_joint_sweeps(d),
        Entry(f"{d}d-adams", flow.adams(flow.momentum(d, 0, "central", False)), d,
              (u, u, REAL, REAL, *around), ("array", 1)),
        Entry(f"{d}d-scaled-pressure", flow.scaled_pressure, d, (u, REAL, points.ZERO, REAL)),
        Entry(f"{d}d-scaled-pressure-inside", flow.scaled_pressure, d, (u, REAL, marks, REAL)),
        Entry(f"{d}d-raised", flow.raised, d, (u, REAL), (0,)),
        Entry(f"{d}d-extrapolated", flow.extrapolated(4), d, (*[u] * 4, *[REAL] * 4), (0, 3)),
        Entry(f"{d}d-extrapolated-ahead", flow.extrapolated(4, 3), d, (*[u] * 4, *[REAL] * 7),
              (0, 3, 2)),
        Entry(f"{d}d-kinetic-energy", flow.kinetic_energy, d, tuple(velocities), ("sum",)),
    ]  # fmt: skip


def _of_derived(d: int) -> list[Entry]:
    u, k = _mixed(d), _along(d, d - 1)
    entries = [
        Entry(f"{d}d-speed", derived.speed, d, (u,) * d),
        Entry(f"{d}d-difference", points.change, d, (u, u)),
        Entry(f"{d}d-add-product", derived.add_product, d, (u, u, u, REAL), (0,)),
        Entry(f"{d}d-product", flux.product, d, (u, k), ("sum",)),
    ]
    for axis in range(d):
        entries += [
            Entry(f"{d}d-central-difference-{axis}", derived.central_difference(axis), d,
                  (u, REAL)),
            Entry(f"{d}d-through-face-{axis}", flux.through_face(axis), d, (u, k, REAL)),
            Entry(f"{d}d-mean-of-faces-{axis}", flux.mean_of_faces(axis), d, (u,)),
        ]  # fmt: skip
        for inwards in (1, -1):
            end, two = derived.difference_at_end, derived.difference_of_two
            side = f"{axis}-{'low' if inwards > 0 else 'high'}"
            reach = (1, 2) if inwards > 0 else (0, -1)
            entries += [
                Entry(f"{d}d-difference-at-end-{side}", end(axis, inwards), d, (u, REAL)),
                Entry(f"{d}d-difference-of-two-{side}", two(axis, inwards), d, (u, REAL)),
                Entry(f"{d}d-beyond-two-{side}", flux.beyond_two(axis, *reach), d, (u,)),
            ]
    return entries


def _of_statistics(d: int) -> list[Entry]:
    """Of two fields: their means, a variance, a covariance, the extremes; and a mean alone."""
    u = _mixed(d)
    several = statistics.welford_update(2, 2, ((0, 0), (0, 1)), (1,), (0,))
    mean = statistics.welford_update(1, 1, (), (), ())
    places = tuple(range(4, 10))
    return [
        Entry(f"{d}d-sampled", several, d, (REAL, REAL, *[u] * 8), places),
        Entry(f"{d}d-sampled-mean", mean, d, (REAL, REAL, u, u), (3,)),
        Entry(f"{d}d-scaled", points.scaled, d, (u, REAL)),
        Entry(f"{d}d-weighted", integrals.weighted, d, (u, *[_along(d, n) for n in range(d)]),
              ("sum",)),
    ]  # fmt: skip


def _of_joint_sweeps(d: int) -> list[Entry]:
    """A stage of all components at once, its right side, and its projection."""
    u, axes = _mixed(d), range(d)
    velocities, numbers = tuple(axes), tuple(range(2 * d, 2 * d + 5 + d))
    momenta = [flow.stage(flow.momentum(d, axis, "central", False)) for axis in axes]
    places = [(d + n, n, *numbers[:3], *velocities, *numbers[3:]) for n in axes]
    last = tuple(range(d + 2, 2 * d + 2))
    projections = [(n, d, d + 1, last[n]) for n in axes]
    begins = flow.scaled_divergence, points.largest_magnitude, flow.extrapolated(7, 7, 5)
    # Seven pressures, and the weights of seven, seven and five of them.
    pressures = tuple(range(2 * d + 1, 2 * d + 27))
    of_begins = ((d, *velocities, *range(d + 1, 2 * d + 1)), velocities, pressures)
    return [
        Entry(f"{d}d-stage", points.together(tuple(momenta), tuple(places)), d,
              (*[u] * (2 * d), *[REAL] * 3, u, REAL, *[REAL] * d), (*range(d, 2 * d),)),
        Entry(f"{d}d-projection",
              points.together(tuple(map(flow.projected, axes)), tuple(projections)), d,
              (*[u] * d, u, REAL, *[REAL] * d), velocities),
        Entry(f"{d}d-right-side", points.together(begins, of_begins), d,
              (*[u] * d, *[REAL] * (1 + d), *[u] * 7, *[REAL] * 19),
              ("array", "max", pressures[0], *pressures[6:3:-1])),
    ]  # fmt: skip


def _of_collocated() -> list[Entry]:
    u = _mixed(2)
    lines = [_along(2, axis, positive=False) for axis in (0, 0, 1, 1)]
    some = [lines[0], points.ZERO, points.ZERO, lines[3]]
    copied = heat.mirrored(heat.laplace)
    return [
        Entry("2d-pressure-source", flow.pressure_source, 2, (u, u, *[REAL] * 4)),
        Entry("2d-pressure-sweep", flow.pressure_sweep, 2, (u, u, *[REAL] * 2, *lines)),
        Entry("2d-pressure-sweep-some", flow.pressure_sweep, 2, (u, u, *[REAL] * 2, *some)),
        Entry(
            "2d-collocated-step", flow.collocated_step, 2, (*[u] * 5, *[REAL] * 8), ("array",) * 2
        ),
        *[
            Entry(
                f"2d-collocated-step-{kind}",
                flow.collocated_step_with_change(kind),
                2,
                (*[u] * 5, *[REAL] * 8),
                ("array", "array", kind),
            )
            for kind in ("sum", "max")
        ],
        Entry("2d-mirrored-laplace", copied, 2, (u, u, REAL, *some)),
        Entry(
            "2d-mirrored-laplace-unequal",
            heat.mirrored(heat.laplace_unequal),
            2,
            (u, u, *[REAL] * 3, *some),
        ),
    ]


def _of_walls(d: int) -> list[Entry]:
    # Host arrays in the solver, but the same rules: the wall's terms once along an axis, once full.
    return [
        Entry(f"{d}d-{helper.__qualname__}", pointwise(helper), d,
              (*[_along(d, *range(d))] * (count - 1), _mixed(d)))
        for helper, count in HELPERS.items()
    ]  # fmt: skip


def _of_transfers(d: int) -> list[Entry]:
    """What leads from one level of multigrid to another: shifts stand for places of pairs."""
    u = _mixed(d)
    entries = [
        Entry(f"{d}d-added-from", added_from, d, (u, u, *(1, -1, 0)[:d])),
        Entry(f"{d}d-coloured", coloured, d, (u, u, REAL, _along(d, 0, positive=False))),
        Entry(f"{d}d-copied", copied, d, (u,), ("array", "array")),
        Entry(f"{d}d-filled", filled, d, (REAL,), ("array", "array")),
        Entry(f"{d}d-added", added, d, (u, u)),
        Entry(
            f"{d}d-extrapolated-corner", extrapolated, d, (u, REAL, *(1, 0, 0)[:d], *(-1, 0, 0)[:d])
        ),
    ]
    if d == 3:
        line, lines = (_along(3, axis, positive=False) for axis in (1, 0))
        taps = (-1, 0, -1, 1, 0, 0, 1, -1)
        entries += [
            Entry("3d-restricted", restricted, 3, (u, *[line] * 4, *taps)),
            *[
                Entry(
                    f"3d-one-of-{taps}-{adds}",
                    interpolated(taps, adds),
                    3,
                    (u, *[line] * taps, *taps_of(taps), 1, *[u] * adds),
                )
                for taps, adds in ((2, False), (2, True), (4, False))
            ],
            *[
                Entry(
                    f"3d-two-of-{taps}-{lag}-{ahead}-{adds}",
                    interpolated_pair(taps, lag, ahead, adds),
                    3,
                    (u, *[line] * (2 * taps), *taps_of(taps + abs(ahead)), *[u] * (2 * adds)),
                    ("array", "array"),
                )
                for taps, lag, ahead, adds in WAYS
            ],
            Entry(
                "3d-one-plane",
                interpolated(2, True, 0),
                3,
                (u, *[lines] * 2, *taps_of(2), 0, u),
            ),
            Entry(
                "3d-two-planes",
                interpolated_pair(2, 0, 1, True, 0),
                3,
                (u, *[lines] * 4, *taps_of(3), u, u),
                ("array", "array"),
            ),
            *_of_transfers_2d(),
            *_of_transfers_at_once(2),
            *_of_transfers_at_once(3),
        ]
    return entries


def _of_transfers_2d() -> list[Entry]:
    """What leads from a level to another along both axes of a 2D grid at once."""
    of_rows = _along(3, 0, positive=False)
    coarse, by_parity = _along(3, 0, 1, positive=False), _along(3, 1, 2, positive=False)
    return [
        Entry(
            f"3d-interpolated-2d-{taps}-{rows}-{back}",
            interpolated_2d(taps, rows, back),
            3,
            (coarse, *[by_parity] * taps, *[of_rows] * (rows * taps)),
            ("array",) * rows,
        )
        for taps, rows, back in ((2, 1, 0), (3, 1, 1), (3, 2, 1), (2, 2, 0))
    ]


def _of_transfers_at_once(axes: int) -> list[Entry]:
    """What leads from a level to another along all axes at once."""
    lines = [_along(axes, axis, positive=False) for axis in range(axes)]
    means = [line for line in lines for _ in range(4)]
    weights, field = [line for line in lines for _ in range(2)], _mixed(axes)
    of = transfer_at_once
    return [
        Entry(f"{axes}d-restricted-at-once", of.restricted(axes), axes, (field, *means)),
        Entry(f"{axes}d-at-once", of.interpolated(axes, False), axes, (field, *weights)),
        Entry(
            f"{axes}d-added-at-once", of.interpolated(axes, True), axes, (field, *weights, field)
        ),
    ]


WAYS = (
    (2, 0, 0, False), (2, 0, 1, False), (2, 1, -1, True), (2, 1, 0, True),
    (4, 0, 0, False), (4, 0, 1, False), (4, 1, -1, False),
)  # fmt: skip
"""How two layers are interpolated: taps, lag, how far ahead, whether added."""


def taps_of(count: int) -> tuple[int, ...]:
    """Shifts to so many layers, none of them far away."""
    return (-1, 0, 1, 0, -1)[:count]


BY_HAND = tuple(
    module.__name__ for module in (points, transfer, transfer_2d, transfer_at_once, direct)
)
"""Modules whose point functions have shifts that must fit: listed by hand, or in test_direct."""


class Recorder(NumpyBackend):
    """A backend that notes every point function that it is asked to sweep, once for each use."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[Any, Entry] = {}
        self.label = ""

    def sweep(self, point: Point, out: Any, region: Region, *arguments: Any) -> None:
        super().sweep(point, out, region, *arguments)
        if point.__module__ in BY_HAND:
            return
        outputs = out if isinstance(out, tuple) else (out,)
        kinds = tuple(self._kind(output, arguments) for output in outputs)
        if (point, kinds) in self.entries:
            return
        words = [f"{len(region)}d", self.label, point.__name__.strip("_"), *map(str, kinds)]
        name = "-".join(words)
        if any(entry.name == name for entry in self.entries.values()):
            name += f"-{len(self.entries)}"  # the square of another point function
        given = tuple(self._describe(argument) for argument in arguments)
        self.entries[point, kinds] = Entry(name, point, len(region), given, kinds)

    @staticmethod
    def _kind(output: Any, arguments: Sequence[Any]) -> str | int:
        if isinstance(output, Accumulator):
            return output.kind
        return next((n for n, argument in enumerate(arguments) if argument is output), "array")

    @staticmethod
    def _describe(argument: Any) -> Any:
        if isinstance(argument, np.ndarray):
            return Field(tuple(n > 1 for n in argument.shape), bool(argument.min() > 0.0))
        return argument if isinstance(argument, int) else REAL


def _of_methods(d: int) -> list[Entry]:
    """What the methods of `linear`, and the system itself, sweep."""
    backend = Recorder()
    rng = np.random.default_rng(d)
    grid = make_grid((3,) * d, (0.0,) * d, (1.0,) * d, on_nodes=False)

    def array(field: Field) -> np.ndarray:
        return field.make(grid.shape, backend.dtype, rng, wild=False)

    faces = [array(field) for field in _faces(d)]
    conductances, ratios = tuple(faces[0::2]), tuple(faces[1::2])
    u, b = array(_mixed(d)), array(_mixed(d))
    coefficients = Coefficients(array(_along(d, d - 1)), 1.0, conductances, ratios)
    system = System(
        grid, backend, Halo(grid, backend), heat.residual, heat.diagonal, heat.rounding,
        coefficients, b, lambda: 1.0,
    )  # fmt: skip
    literal = [Jacobi(system, u, update=heat.laplace, arguments=(b, 1.0))] if d == 2 else []
    backend.label = "cg"
    conjugate = ConjugateGradients(system, u)
    backend.label = "mg"
    cycles = [
        make(*given)
        for given in _of_multigrid(system, u, array)
        for make in (Multigrid, MultigridCG, Refinement)
    ]
    for method in (
        Jacobi(system, u),
        Sor(system, u),
        Chebyshev(system, u),
        conjugate,
        *cycles,
        *literal,
    ):
        backend.label = type(method).__name__.lower()
        if method in literal:
            backend.label = "literal"
        for change in (None, backend.accumulator("sum"), backend.accumulator("max")):
            method.step(0, change)
            if change is not None:
                method.residual_norm(1, change)
                system.residual_floor(u, change.kind)
    backend.label = "fourier"

    def of_line(line: list[float]) -> System:
        """The system of one capacity, and of these conductances along every axis."""
        along = tuple(grid.along(axis, np.array(line)) for axis in reversed(range(d)))
        even = Coefficients(array(_along(d)), 1.0, along, ratios)
        return replace(system, coefficients=even)

    direct = Fourier(of_line([0.0, 4.0, 2.0, 2.0, 4.0]), u)  # walls of given value
    for change in (None, backend.accumulator("sum"), backend.accumulator("max")):
        direct.step(0, change)
    backend.label = "fourier alone"
    alone = Fourier(of_line([0.0, 0.0, 2.0, 2.0, 0.0]), u)  # no wall has a value
    for kind in ("sum", "max"):
        alone.first_values(backend.accumulator(kind), backend.accumulator(kind))
    backend.label = "system"
    system.remove_mean(u)
    return list(backend.entries.values())


def _of_multigrid(system: System, u: Any, array: Callable[[Field], np.ndarray]) -> Iterator[Any]:
    """Arguments of Multigrid: with coefficients that vary, and that are constant."""
    d = system.grid.dimension
    one = array(_along(d))
    constant = replace(system, coefficients=Coefficients(one, 1.0, (one,) * d, (one,) * d))
    for given in (system, constant):
        for smoother in ("red-black", "chebyshev"):
            yield given, u, "V", smoother


# ---- the oracles ------------------------------------------------------------------------------


class Spread:
    """An array read by plain integers, whose extents of 1 are constant along their axis."""

    def __init__(self, array: np.ndarray):
        self._array = array

    def __getitem__(self, index: Any) -> Any:
        index = index if isinstance(index, tuple) else (index,)
        extents = self._array.shape
        return self._array[tuple(0 if n == 1 else i for i, n in zip(index, extents, strict=True))]


def interior(shape: Sequence[int]) -> Region:
    return tuple((1, n - 1) for n in shape)


def sweep(
    entry: Entry, backend: Backend, given: list[Any], before: np.ndarray, region: Region
) -> list[Any]:
    """The outputs of a sweep on a backend: whole arrays, that began as `before`, or numbers."""
    placed = [backend.to_device(a) if isinstance(a, np.ndarray) else a for a in given]
    outputs = tuple(
        placed[kind] if isinstance(kind, int)
        else backend.to_device(before) if kind == "array"
        else backend.accumulator(kind)
        for kind in entry.outputs
    )  # fmt: skip
    backend.sweep(entry.point, outputs, region, *placed)
    return [o.value if isinstance(o, Accumulator) else backend.to_host(o) for o in outputs]


def sweep_plainly(entry: Entry, given: list[Any], before: np.ndarray, region: Region) -> list[Any]:
    """The same as a loop over indices that calls the point function with NumPy's scalars."""
    real = before.dtype.type
    arrays = [a.copy() if isinstance(a, np.ndarray) else a for a in given]
    arguments = [Spread(a) if isinstance(a, np.ndarray) else real(a) if type(a) is float else a
                 for a in arrays]  # fmt: skip
    outputs: list[Any] = [
        arrays[kind] if isinstance(kind, int) else before.copy() if kind == "array" else []
        for kind in entry.outputs
    ]
    corner = [low for low, _ in region]
    with np.errstate(all="ignore"):
        for offset in np.ndindex(*[high - low for low, high in region]):
            at = tuple(low + n for low, n in zip(corner, offset, strict=True))
            returned = evaluate(entry.point, at, *arguments)
            values = returned if isinstance(returned, tuple) else (returned,)
            for output, value in zip(outputs, values, strict=True):
                # A literal's type must not have taken over: float32 stays float32.
                assert np.asarray(value).dtype == before.dtype
                if isinstance(output, list):
                    output.append(float(value))
                else:
                    output[at] = value
    return [_reduced(kind, o) if isinstance(o, list) else o
            for kind, o in zip(entry.outputs, outputs, strict=True)]  # fmt: skip


def _reduced(kind: str | int, terms: list[float]) -> float:
    if not all(map(math.isfinite, terms)):
        return math.nan
    if kind == "max":
        return max(map(abs, terms))
    register = np.zeros(sums.WIDTH, np.int64)
    sums.add_block(np.array(terms), register)
    return sums.sum_of(register)


def same(a: Any, b: Any) -> bool:
    """Equal bit for bit, but any NaN equals any other."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    equal = (a == b) & (np.signbit(a) == np.signbit(b))
    return bool(np.all(equal | (np.isnan(a) & np.isnan(b))))


# ---- packing ----------------------------------------------------------------------------------


def layers(shape: Sequence[int], depth: int, inset: int) -> Iterator[tuple[Region, Region]]:
    """For both ends of every axis: the layers beside the ghosts, and as many layers of ghosts.

    They leave out `inset` points at the ends of the other axes.
    """
    for axis, n in enumerate(shape):
        across = [(inset, m - inset) for m in shape]
        low = ((depth, 2 * depth), (0, depth))
        high = ((n - 2 * depth, n - depth), (n - depth, n))
        for edge, ghosts in (low, high):
            yield (
                (*across[:axis], edge, *across[axis + 1 :]),
                (*across[:axis], ghosts, *across[axis + 1 :]),
            )


def carry(backend: Backend, array: Any, edge: Region, ghosts: Region) -> np.ndarray:
    """Bring layers of an array to its ghosts by messages; returns what MPI would have sent."""
    shape = tuple(high - low for low, high in edge)
    whole = tuple((0, extent) for extent in shape)
    leaving, arriving = backend.message(shape), backend.message(shape)
    backend.sweep(points.shifted, leaving.array, whole, array, *[low for low, _ in edge])
    leaving.to_buffer()
    arriving.buffer[...] = leaving.buffer
    arriving.from_buffer()
    backend.sweep(points.shifted, array, ghosts, arriving.array, *[-low for low, _ in ghosts])
    return leaving.buffer


def compare_packing(backend: Backend, shape: Sequence[int], depth: int, inset: int) -> None:
    """Assert that layers carried to the ghosts are those that NumPy's slices would bring."""
    host = np.random.default_rng(depth).normal(size=shape).astype(backend.dtype)
    array = backend.to_device(host)
    for edge, ghosts in layers(shape, depth, inset):
        window = tuple(slice(*pair) for pair in edge)
        assert same(carry(backend, array, edge, ghosts), host[window]), edge
        host[tuple(slice(*pair) for pair in ghosts)] = host[window]
        assert same(backend.to_host(array), host), ghosts


def compare_quotients(backend: Backend) -> None:
    """Sums that are kept, and their quotients: those of exact sums, 0 without a meaning."""
    kind = backend.dtype.type
    values = np.random.default_rng(8).normal(size=(3, 700)) ** 2
    arrays = [backend.to_device(row) for row in values]
    out, total = backend.zeros((1,)), backend.accumulator("sum")
    kept = backend.scalars(3)
    exact = [sums.exact_sum([row.astype(kind).astype(float)], lambda row: row) for row in values]
    for number, array in enumerate(arrays):
        backend.sweep(points.copy, total, ((0, 700),), array)
        kept.divide(total, number, number, 0, out)
        assert backend.to_host(out)[0] == kind(exact[number] / exact[0])
    assert kept.sums == exact and total.value == 0.0
    kept.sums = [1.0, 2.0, 3.0]
    kept.divide(None, 2, 0, 1, out)
    assert kept.sums == [1.0, 2.0, 3.0] and backend.to_host(out)[0] == 0.5
    backend.sweep(points.fill, total, ((1, 3), (2, 5)), 0.5)  # without any array
    assert total.take() == 3.0
    for value, quotient in ((math.nan, 0.0), (-1.0, 0.0), (0.0, 0.0), (4.0, 0.25)):
        backend.sweep(points.fill, total, ((0, 1),), value)
        kept.divide(total, 1, 0 if value == 4.0 else 1, 1, out)
        assert backend.to_host(out)[0] == quotient
    backend.open_gate()  # which the first check closes, where there is one
    for value in (5.0, 7.0):
        backend.sweep(points.fill, total, ((0, 1),), value)
        kept.divide(total, 2, 2, 0, out)
        backend.sweep(points.fill, total, ((0, 1),), 0.0)
        backend.check([total], 1.0)
    checks = len(backend.ledger())
    assert kept.sums[2] == backend.to_host(out)[0] == (5.0 if checks == 1 else 7.0)
    backend.sweep(points.fill, total, ((0, 1),), 9.0)  # without the gate
    kept.divide(total, 2, 2, 0, out)
    assert kept.sums[2] == 9.0
