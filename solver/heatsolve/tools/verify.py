"""`heatsolve verify`: shipped cases against exact solutions and against the literature.

A verification runs cases as any user would and yields a line for each quantity: the computed value,
the reference, its source, and the tolerance.
"""

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heatsolve.backends.registry import ON_GPU
from heatsolve.case.load import load_shipped, shipped
from heatsolve.errors import InputError
from heatsolve.io.disk import write_text
from heatsolve.io.reader import read
from heatsolve.runner import run
from heatsolve.stencil.expressions import suggestion


@dataclass(frozen=True)
class Line:
    """One quantity: the error is |computed - reference|, over its `scale`."""

    name: str
    quantity: str
    computed: float
    reference: float
    source: str
    tolerance: float
    scale: float = 1.0

    @property
    def error(self) -> float:
        return abs(self.computed - self.reference) / self.scale

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance

    def __str__(self) -> str:
        verdict = "pass" if self.passed else "FAIL"
        return (
            f"{verdict}  {self.name:20} {self.quantity:34} {self.computed:22.15g} "
            f"{self.reference:22.15g}  error {self.error:8.2e} of {self.tolerance:8.2e}  "
            f"{self.source}"
        )


@dataclass(frozen=True)
class Solution:
    """The results of a run: fields of the last frame, attributes and history of its file."""

    fields: Mapping[str, np.ndarray]
    attributes: Mapping[str, Any]
    history: Mapping[str, np.ndarray]
    x: np.ndarray
    constants: Mapping[str, float]


@dataclass(frozen=True)
class Runs:
    """Runs of a shipped case on a backend; `quick`: smaller or fewer runs."""

    name: str
    backend: str
    quick: bool
    folder: Path

    def __call__(self, *overrides: str) -> Solution:
        case = load_shipped(self.name, overrides)
        result = run(case, self.backend, self.folder / "case.h5")
        stored = read(result.path, fields=())
        x = stored.coordinates["x"]
        return Solution(result.fields, stored.attributes, stored.history, x, case.constants)

    def line(self, quantity: str, *figures: Any) -> Line:
        """The line of a quantity of this case; `figures` are the other attributes of a Line."""
        return Line(self.name, quantity, *figures)

    def sizes(self, quick: Sequence[int], full: Sequence[int]) -> Sequence[int]:
        return quick if self.quick else full


# ---- figures of the literature -------------------------------------------------------------------

LESSONS: dict[str, tuple[str, float, int]] = {
    "cfdpython-01": ("concentration", 51.9994559586048, 0),
    "cfdpython-02": ("velocity_x", 45.0254251598721, 0),
    "cfdpython-03": ("concentration", 51.9994784879949, 0),
    "cfdpython-04": ("velocity_x", 384.223887567688, 0),
    "cfdpython-05": ("concentration", 7001.99968515438, 0),
    "cfdpython-06": ("velocity_x", 10760.833754631883, 0),
    "cfdpython-07": ("concentration", 1074.844853661326, 0),
    "cfdpython-08": ("velocity_x", 1796.079269618067, 0),
    "cfdpython-09": ("temperature", 231.8167538742652, 1132),
    "cfdpython-10": ("temperature", 0.0, 100),
    "cfdpython-11": ("velocity_x", 57.125839299091, 700),
    "cfdpython-12": ("velocity_x", 3892.64070952243, 499),
    "legate-cfd": ("velocity_x", 1.8327658261354953, 51),
}
"""By case: a field, its sum, and the number of iterations or steps, 0 where it is not compared."""

CAVITIES: dict[
    int, tuple[tuple[float, float, float], str, dict[int, tuple[float, float]], bool]
] = {
    100: (
        (-0.2140433, 0.1795746, -0.2538052), "limit of the scheme",
        {64: (0.01, 0.01), 128: (0.002, 0.002)}, True,
    ),
    400: (
        (-0.3287349, 0.3038402, -0.4540727), "limit of the scheme",
        {64: (0.03, 0.03), 128: (0.008, 0.008)}, True,
    ),
    1000: (
        (-0.3885698, 0.3769447, -0.5270771), "Botella, Peyret 1998",
        {64: (0.025, 0.03), 128: (0.007, 0.008), 256: (0.002, 0.0022)}, False,
    ),
}  # fmt: skip
"""By Reynolds number: lowest u on x = 1/2, highest and lowest v on y = 1/2; their source; by cells
the tolerances of u and of v; and whether the tolerances are relative. A limit of the scheme is
Richardson's extrapolation of a second-order central staggered scheme from 128 and 256 cells."""

CONVECTION: dict[str, tuple[float, str, dict[int, float]]] = {
    "1e4": (2.24481576, "spectral, de Vahl Davis 1983: 2.243", {32: 0.012, 64: 0.003, 128: 0.0008}),
    "1e5": (4.52164, "spectral, de Vahl Davis 1983: 4.519", {32: 0.04, 64: 0.01, 128: 0.003}),
}
"""By Rayleigh number: the mean Nusselt number, its source, and by cells the relative tolerance.
The first number of cells is for a quick verification."""

PLATE = 0.06797166811306164
"""T of `hot-plate` at (1/4, 1/4): its series in 40 digits."""

CYLINDER = {
    "drag": (5.57953523, {41: 0.03, 123: 0.01}),
    "lift": (0.010618948, {41: 0.05, 123: 0.02}),
    "pressure": (0.117520167, {41: 0.06, 123: 0.01}),
}
"""Of the steady cylinder: coefficients of drag and lift, the difference of the pressures before and
behind it, with the spectral values of Nabh 1998, and by cells across the channel the relative
tolerance."""

EDDIES: tuple[tuple[str, float, dict[int, float]], ...] = (
    ("end of the lower eddy", 6.10, {32: 0.04, 64: 0.015}),
    ("begin of the upper eddy", 4.85, {32: 0.1, 64: 0.04}),
    ("end of the upper eddy", 10.48, {32: 0.03, 64: 0.015}),
)
"""Of the backward step: an end of an eddy, its place, by cells across the channel the relative
tolerance."""

DISSIPATION = (0.01285753, 8.97)
"""The largest loss of energy of `taylor-green-3d`, a unit of volume, and its time; spectral
solution with 512^3 modes of the Workshop on High-Order CFD Methods 2012, problem C3.5."""


# ---- the verifications ---------------------------------------------------------------------------

Verification = Callable[[Runs], Iterator[Line]]
BARBA = "Barba, Forsyth 2018"


def lesson(solve: Runs) -> Iterator[Line]:
    """The sum of a field of a teaching case, as its listing gives it."""
    field, total, count = LESSONS[solve.name]
    solution = solve()
    values = solution.fields[field]
    if solve.name == "cfdpython-04":  # the lesson stores the first point again as the last
        values = np.append(values, values[0])
    size = float(np.abs(values).sum())
    yield solve.line(f"sum of {field}", float(values.sum()), total, BARBA, 1e-12, size)
    if count:
        made = solution.attributes.get("iterations", solution.attributes.get("steps"))
        yield solve.line("iterations or steps", float(made), float(count), BARBA, 0.0)


def order_line(solve: Runs, what: str, errors: Sequence[float], source: str) -> Line:
    """The order at which an error falls when the spacing is halved, from the last two errors."""
    order = math.log2(abs(errors[-2] / errors[-1]))
    return solve.line(f"order in space, {what}", order, 2.0, source, 0.1)


def hot_plate(solve: Runs) -> Iterator[Line]:
    """The value at the centre, and the order at a point far from the jumps at the corners."""
    errors = []
    for n in solve.sizes((40, 80), (40, 80, 160)):
        field = solve(f"grid.nodes=[{n + 1}, {n + 1}]").fields["temperature"]
        errors.append(float(field[n // 4, n // 4]) - PLATE)
    centre = float(field[n // 2, n // 2])
    yield solve.line(f"T at the centre, n = {n}", centre, 0.25, "series", 1e-10)
    yield order_line(solve, "T at (1/4, 1/4)", errors, "series")


def laplace(solve: Runs) -> Iterator[Line]:
    """The order at a wall without flux."""
    errors = []
    wave = np.pi * np.arange(1, 60, 2)
    series = np.sinh(wave) / (wave * wave * np.sinh(2.0 * wave))
    exact = 0.25 - 4.0 * float(series.sum())
    for n in (31, 61, 121):
        field = solve(f"grid.nodes=[{n}, {n}]").fields["temperature"]
        errors.append(float(field[0, n // 2]) - exact)
    yield order_line(solve, "p at (1, 0)", errors, "series")


def sine_source(solve: Runs) -> Iterator[Line]:
    """The largest error against the exact discrete solution."""
    solution = solve()
    x, values = solution.x, solution.fields["temperature"]
    h = x[1] - x[0]
    factor = (math.pi * h / 2) ** 2 / math.sin(math.pi * h / 2) ** 2
    exact = factor * np.sin(np.pi * x)[:, None] * np.sin(np.pi * x)[None, :]
    error = float(np.abs(values - exact).max())
    yield solve.line("largest error", error, 0.0, "exact discrete solution", 1e-12)


def taylor_green(solve: Runs) -> Iterator[Line]:
    """The decay of the energy by the discrete operator, and the order of the fields."""
    sizes = solve.sizes((16, 32), (32, 64, 128))
    errors: dict[str, list[float]] = {"velocity_x": [], "pressure": []}
    for n in sizes:
        solution = solve(f"constants.n={n}")
        for field, results in errors.items():
            results.append(float(solution.attributes[f"error_l2_{field}"]))
        nu, h = solution.constants["nu"], 2.0 * math.pi / n
        step = -2.0 * nu * (2.0 * math.sin(h / 2.0) / h) ** 2 * float(solution.history["dt"][0])
        growth = 1.0 + step + step**2 / 2.0 + step**3 / 6.0
        energy, number = (solution.history[name] for name in ("kinetic_energy", "iteration"))
        decay, exact = float(energy[-1] / energy[0]), growth ** (2 * int(number[-1] - number[0]))
        source = "exact discrete decay"
        yield solve.line(f"decay of energy, n = {n}", decay, exact, source, 1e-12, exact)
    for field, results in errors.items():
        yield order_line(solve, field, results, "exact solution")


def breakdown(solve: Runs) -> Iterator[Line]:
    """The loss of energy equals the dissipation; on a GPU, with enough cells, its peak, too."""
    balance = "balance of energy"
    solution = solve("constants.n=64", "time.cfl=0.3")
    _, lost, taken = losses(solution)
    growing = float(np.count_nonzero(lost <= 0.0))
    yield solve.line("steps in which energy grows, n = 64", growing, 0.0, balance, 0.0)
    apart = float(np.abs(lost - taken).max() / lost.max())
    yield solve.line("loss but for friction, n = 64", apart, 0.0, balance, 1e-3)
    if solution.attributes["backend"] not in ON_GPU:
        return
    time, lost, _ = losses(solve("constants.n=256", "model.convection=central4"))
    n, (peak, moment), source = int(np.argmax(lost)), DISSIPATION, "spectral, Workshop 2012"
    yield solve.line("largest loss, n = 256", float(lost[n]), peak, source, 0.04, peak)
    yield solve.line("its time, n = 256", float(time[n]), moment, source, 0.3)


def losses(solution: Solution) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each step of a flow in the cube of side 2 pi: the middle of its time, and by unit of
    volume and time the loss of kinetic energy and the dissipation, 2 nu times the enstrophy."""
    time, energy, enstrophy = (
        solution.history[name] for name in ("time", "kinetic_energy", "enstrophy")
    )
    volume, nu = (2.0 * math.pi) ** 3, 1.0 / solution.constants["Re"]
    taken = nu * (enstrophy[1:] + enstrophy[:-1]) / volume
    return 0.5 * (time[1:] + time[:-1]), -np.diff(energy) / np.diff(time) / volume, taken


def straight(solve: Runs) -> Iterator[Line]:
    """A flow that the scheme reproduces to round-off."""
    (n,) = solve.sizes((16,), (32,))
    error = float(solve(f"constants.n={n}").attributes["error_max_velocity_x"])
    yield solve.line(f"largest error, n = {n}", error, 0.0, "exact discrete solution", 2e-11)


def vertex(low: Any, middle: Any, high: Any) -> tuple[Any, Any]:
    """The vertex of a parabola through values at -1, 0 and 1: its place and its value."""
    share = 0.5 * (low - high) / (low - 2.0 * middle + high)
    return share, middle - 0.25 * (low - high) * share


def extremum(line: np.ndarray, sign: float) -> float:
    """The minimum (`sign` 1) or maximum (-1) of a line, by the parabola through three points."""
    n = int(np.argmin(sign * line))
    return float(vertex(*line[n - 1 : n + 2])[1])


def cavity(solve: Runs) -> Iterator[Line]:
    """Extrema of the velocities on the lines through the centre."""
    reynolds = int(solve.name.removeprefix("cavity-re"))
    references, source, tolerances, relative = CAVITIES[reynolds]
    for n in solve.sizes(list(tolerances)[:1], list(tolerances)):
        fields, half = solve(f"constants.n={n}").fields, n // 2
        u = 0.5 * (fields["velocity_x"][:, half - 1] + fields["velocity_x"][:, half])
        v = 0.5 * (fields["velocity_y"][half - 1] + fields["velocity_y"][half])
        of_u, of_v = tolerances[n]
        lines = [
            ("lowest u", extremum(u, 1.0), of_u),
            ("highest v", extremum(v, -1.0), of_v),
            ("lowest v", extremum(v, 1.0), of_v),
        ]
        for (what, value, tolerance), exact in zip(lines, references, strict=True):
            scale = abs(exact) if relative else 1.0
            yield solve.line(f"{what}, n = {n}", value, exact, source, tolerance, scale)


def flux_in_the_middle(temperature: np.ndarray, u: np.ndarray, alpha: float) -> float:
    """The mean of the scheme's u T - alpha dT/dx at x = 1/2, in a unit square between walls.

    Files hold u at the centres, means of two faces: u at faces follows from u = 0 at the wall.
    """
    n = temperature.shape[1]
    face = np.zeros(len(u))
    for column in u.T[: n // 2]:
        face = 2.0 * column - face
    left, right = temperature[:, n // 2 - 1], temperature[:, n // 2]
    return float(np.mean(face * 0.5 * (left + right) - alpha * n * (right - left)))


def natural_convection(solve: Runs) -> Iterator[Line]:
    """The heat through the hot wall, through the cold wall, and through the middle."""
    for rayleigh, (reference, source, tolerances) in CONVECTION.items():
        if solve.quick and rayleigh != "1e4":
            continue
        for n in solve.sizes(list(tolerances)[:1], list(tolerances)[1:]):
            solution = solve(f"constants.Ra={rayleigh}", f"constants.n={n}")
            temperature = solution.fields["temperature"]
            wall = float(np.mean((0.5 - temperature[:, 0]) * 2.0 * n))
            cold = float(np.mean((0.5 + temperature[:, -1]) * 2.0 * n))
            label = f"Ra = {rayleigh}, n = {n}"
            args = (reference, source, tolerances[n], reference)
            yield solve.line(f"Nu at the wall, {label}", wall, *args)
            yield solve.line(f"Nu at the other wall, {label}", cold, wall, "balance", 1e-8, wall)
            alpha = 1.0 / math.sqrt(solution.constants["Ra"] * solution.constants["Pr"])
            middle = flux_in_the_middle(temperature, solution.fields["velocity_x"], alpha) / alpha
            # The heat that half of the fluid still takes up when the march counts as steady.
            left = 0.5 * solution.attributes["threshold"] / (alpha * wall)
            yield solve.line(f"Nu in the middle, {label}", middle, wall, "balance", left, wall)


def rayleigh_benard(solve: Runs) -> Iterator[Line]:
    """The heat through a plate above and below the onset of convection."""
    above = (48, "constants.Ra=1e4", 2.661, "Clever, Busse 1974", 0.01)
    if solve.quick:
        above = (24, *above[1:-1], 0.03)
    below = (24, "constants.Ra=1000", 1.0, "Chandrasekhar 1961", 1e-10)
    for n, override, reference, source, tolerance in (above, below):
        temperature = solve(override, f"constants.n={n}").fields["temperature"]
        nusselt = float(np.mean((0.5 - temperature[0]) * 2.0 * n))
        label = f"Nu, {override.removeprefix('constants.')}, n = {n}"
        yield solve.line(label, nusselt, reference, source, tolerance, reference)


def cylinder(solve: Runs) -> Iterator[Line]:
    """The forces on the cylinder, and the difference of the pressures before and behind it."""
    for n in solve.sizes((41,), (41, 123)):
        history = solve(f"constants.n={n}").history
        drag, lift = (500.0 * float(history[f"force_{axis}"][-1]) for axis in "xy")
        drop = float(history["probe_0_pressure"][-1] - history["probe_1_pressure"][-1])
        results = {"drag": drag, "lift": lift, "pressure": drop}
        for what, value in results.items():
            reference, tolerances = CYLINDER[what]
            label = "difference of pressures" if what == "pressure" else f"coefficient of {what}"
            args = (reference, "Nabh 1998", tolerances[n], reference)
            yield solve.line(f"{label}, n = {n}", value, *args)


def peaks(time: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Times and values of the maxima of a quantity, by parabolas through three points each."""
    low, middle, high = values[:-2], values[1:-1], values[2:]
    (at,) = np.nonzero((low < middle) & (middle >= high))
    share, value = vertex(low[at], middle[at], high[at])
    return time[at + 1] + share * np.diff(time)[at], value


def shedding(solve: Runs) -> Iterator[Line]:
    """Ten periods of the forces, which are periodic when successive maxima of the lift agree."""
    (n,) = solve.sizes((123,), (246,))
    history = solve(f"constants.n={n}").history
    time, drag, lift = history["time"], 20.0 * history["force_x"], 20.0 * history["force_y"]
    instants, maxima = peaks(time, lift)
    instants, maxima = instants[maxima > 0.5][-11:], maxima[maxima > 0.5][-11:]
    if len(maxima) < 11:
        yield solve.line(f"maxima of the lift, n = {n}", len(maxima), 11.0, "ten periods", 0.0)
        return
    late = time >= instants[0]
    period = float(np.diff(instants).mean())
    change = float(np.abs(np.diff(maxima[-3:])).max() / maxima[-1])
    most = float(peaks(time[late], drag[late])[1].max())
    source, label = "Schaefer, Turek 1996", f", n = {n}"
    yield solve.line(f"change of successive maxima{label}", change, 0.0, "periodic", 1e-3)
    yield solve.line(f"Strouhal number{label}", 0.1 / period, 0.3, source, 0.005)
    yield solve.line(f"largest coefficient of drag{label}", most, 3.2274, "featflow", 0.03, 3.2274)
    args = (0.995, source, 0.045 if n > 200 else 0.06)
    yield solve.line(f"largest coefficient of lift{label}", float(maxima.mean()), *args)


def backward_step(solve: Runs) -> Iterator[Line]:
    """Where the shear at the walls changes its sign."""
    for n in solve.sizes((32,), (32, 64)):
        solution = solve(f"constants.n={n}")
        u, x = solution.fields["velocity_x"], solution.x
        ends = []
        for near, next_one in ((u[0], u[1]), (u[-1], u[-2])):
            shear = 9.0 * near - next_one
            (at,) = np.nonzero(shear[:-1] * shear[1:] < 0.0)
            ends.append(x[at] - shear[at] * (x[at + 1] - x[at]) / (shear[at + 1] - shear[at]))
        missing = [math.nan] * 2
        results = ([math.nan, *ends[0]][-1], *[*ends[1], *missing][:2])
        for (what, reference, tolerances), value in zip(EDDIES, results, strict=True):
            args = (reference, "Gartling 1990", tolerances[n], reference)
            yield solve.line(f"{what}, n = {n}", float(value), *args)


def heated_cylinder(solve: Runs) -> Iterator[Line]:
    """The heat that the cylinder gives off."""
    (n,) = solve.sizes((8,), (10,))
    solution = solve(f"constants.n={n}")
    alpha = solution.constants["nu"] / 0.7
    nusselt = float(solution.history["temperature_released"][-1]) / (math.pi * alpha)
    source = "Bharti, Chhabra, Eswaran 2007"
    yield solve.line(f"Nu, n = {n}", nusselt, 2.4653, source, 0.02, 2.4653)


VERIFICATIONS: dict[str, Verification] = {
    **dict.fromkeys(LESSONS, lesson),
    "cfdpython-09-correct": laplace,
    "hot-plate": hot_plate,
    "sine-source": sine_source,
    "taylor-green": taylor_green,
    "taylor-green-3d": breakdown,
    "channel": straight,
    "couette": straight,
    **{f"cavity-re{reynolds}": cavity for reynolds in CAVITIES},
    "natural-convection": natural_convection,
    "rayleigh-benard": rayleigh_benard,
    "cylinder-re20": cylinder,
    "cylinder-re100": shedding,
    "backward-step": backward_step,
    "heated-cylinder": heated_cylinder,
}
SLOW = (
    "taylor-green-3d",
    "cavity-re400",
    "cavity-re1000",
    "rayleigh-benard",
    "cylinder-re100",
    "backward-step",
    "heated-cylinder",
)
"""Cases that a quick verification of all cases leaves out."""


def verify(names: Sequence[str] = (), backend: str = "auto", quick: bool = False) -> Iterator[Line]:
    """The lines of the verifications of these names, by default of all, one by one.

    Raises InputError for an unknown name, or a case without a table.
    """
    for name in names:
        if name not in VERIFICATIONS and (name in shipped() or Path(name).is_file()):
            raise InputError(
                f"{name} has no table to verify: it would need quantities with reference values, "
                "their source and tolerances, in heatsolve.tools.verify; a run of any case tells "
                "its error from [reference.exact]"
            )
        if name not in VERIFICATIONS:
            near = suggestion(name, VERIFICATIONS) or f": there are {', '.join(VERIFICATIONS)}"
            raise InputError(f"no verification {name!r}{near}")
    wanted = names or [name for name in VERIFICATIONS if not (quick and name in SLOW)]
    with tempfile.TemporaryDirectory(prefix="heatsolve-verify-") as folder:
        for name in wanted:
            yield from VERIFICATIONS[name](Runs(name, backend, quick, Path(folder)))


def records(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """The lines as dictionaries."""
    return [asdict(line) | {"error": line.error, "passed": line.passed} for line in lines]


def write_markdown(lines: Sequence[Line], path: Path) -> None:
    """The lines as a table in Markdown. Raises FileFailure."""
    rows = [
        "| case | quantity | computed | reference | source | error | tolerance | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows += [
        f"| {line.name} | {line.quantity} | {line.computed:.12g} | {line.reference:.12g} "
        f"| {line.source} | {line.error:.2g} | {line.tolerance:.2g} "
        f"| {'pass' if line.passed else '**fails**'} |"
        for line in lines
    ]
    write_text(path, "\n".join(rows) + "\n")
