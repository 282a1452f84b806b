"""Fused sweeps in three dimensions: a block goes up the planes of a tile.

A block of threads owns a tile of columns along z and goes up the planes. Plane z arrives; sweep 1
then has all it needs for plane z - 1, sweep 2 for plane z - 2, and so on. Of what each sweep reads
a thread keeps its own points of two planes in registers; the neighbours along x come from the other
lanes, those along y from a copy of the newest plane in shared memory. That copy was written a step
before, so that one barrier a step is enough for all sweeps. The outermost points of a tile, one
layer for each sweep, are wrong and are made again by the tile beside it (A. Nguyen et al., "3.5-D
Blocking Optimization for Stencil Computations", SC 2010).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from heatsolve.backends.gpu.fused_kernel import FusedSweeps, assembled, place_of
from heatsolve.stencil.trace import Tape


@dataclass(frozen=True)
class Shape:
    """How a kernel of three dimensions is cut: tuned for a device."""

    columns: int = 2
    """Points of a thread along x."""
    rows: int = 3
    """Points of a thread along y."""
    warps: int = 16
    """Warps of a block, one below the other along y."""
    ahead: int = 3
    """Planes that are on their way."""

    def halo(self, reach: int) -> int:
        """Columns at each side of a tile that are wrong in the end."""
        return -(-reach // self.columns) * self.columns

    def right(self, work: FusedSweeps) -> tuple[int, int]:
        """Rows and columns of a tile that are right in the end."""
        reach = work.sweeps
        return self.rows * self.warps - 2 * reach, 32 * self.columns - 2 * self.halo(reach)

    def first(self, work: FusedSweeps, low: int) -> int:
        """Where the columns begin that the first tile covers."""
        return low // 2 * 2

    def more_planes(self, work: FusedSweeps) -> int:
        """Planes that a block goes up besides those of its piece."""
        return 3 * work.sweeps

    def bytes_shared(self, work: FusedSweeps) -> int:
        """Shared memory of a block: planes on their way, and rims of each further sweep."""
        row = 32 * self.columns * self.warps * work.bytes
        return row * (self.rows * (self.ahead + 2) + 4 * (work.sweeps - 1))


INDEX = (
    "inside(of(here, last_i, WRAPS_I), last_i)",
    "inside(ys[r], last_j)",
    "inside(xs[k], last_k)",
)
"""The indices of a point in the arrays, never those of a ghost."""


@cache
def source(work: FusedSweeps, shape: Shape) -> str:
    """CUDA C of the kernel `sweeps`; written once, as each level of a hierarchy asks."""
    own = {number: number for number in range(len(work.signature.arguments))}
    reads = Reads(work, work.tape, own, FIELD)
    width, height = 32 * shape.columns, shape.rows * shape.warps
    state, each, last = _norms(work)
    defines = {
        "T": work.sweeps, "C": shape.columns, "R": shape.rows, "WARPS": shape.warps,
        "X": width, "Y": height, "TILE": width * height,
        "RIMS": 2 * width * shape.warps, "AHEAD": shape.ahead,
        "RING": shape.ahead + 2, "HALO": shape.halo(work.sweeps), "WRAPS_I": work.wraps[0],
        "WRAPS_J": work.wraps[1], "WRAPS_K": work.wraps[2], "ALIGNED": work.aligned > 1,
    }  # fmt: skip
    pieces = {
        "PREPARE": [*work.numbers(), *reads.lines], "READ_PLANE": reads.planes,
        "POINT_ARGUMENTS": ", ".join(reads.args),
        "CHANGE_STATE": state, "CHANGE_OF_PLANE": each, "CHANGE_END": last,
    }  # fmt: skip
    return assembled("sweeps_3d.cuh", work, defines, pieces)


FIELD: dict[tuple[int, ...], str] = {
    (0, 0, 0): "newer[t][r][k]",
    (-1, 0, 0): "older[t][r][k]",
    (1, 0, 0): "arrived[r][k]",
    (0, -1, 0): "(r == 0 ? above[k] : newer[t][r - 1][k])",
    (0, 1, 0): "(r == R - 1 ? below[k] : newer[t][r + 1][k])",
    (0, 0, -1): "(k == 0 ? left : newer[t][r][k - 1])",
    (0, 0, 1): "(k == C - 1 ? right : newer[t][r][k + 1])",
}
"""The field at a point and at its six neighbours: no others are at hand."""


class Reads:
    """What a point function reads, as statements before it and as its arguments.

    `numbers`: for each argument that it takes after the field, its number among the kernel's;
    `field`: the field at a point and at its neighbours. `letter` begins its names. `along`: the
    number of an array that is fetched with the field and read at the point itself; `across`: rows
    and columns of a thread; `on_any_plane`: it is far from the first and the last one, and uniform
    arguments are asked.
    """

    def __init__(
        self,
        work: FusedSweeps,
        tape: Tape,
        numbers: Mapping[int, int],
        field: Mapping[tuple[int, ...], str],
        letter: str = "l",
        along: int = 0,
        across: tuple[str, str] = ("R", "C"),
        on_any_plane: bool = False,
    ):
        self._across, self._on_any_plane = across, on_any_plane
        self.lines: list[str] = []
        self.planes: list[str] = []
        self.args: list[str] = []
        for place, operation in enumerate(tape.operations):
            if operation.name == "scalar":
                self.args.append(work.scalar(numbers[operation.operands[0]]))
            elif operation.name == "load":
                number, subscript = operation.operands
                shift = tuple(distance for distance, _ in subscript)
                if numbers.get(number, 0) == 0:
                    self.args.append(field[shift])
                elif numbers[number] == along and not any(shift):
                    self.args.append("b[t][r][k]")
                else:
                    element = self._element(f"{letter}{place}", work, numbers[number], shift)
                    self.args.append(element)

    def _element(self, name: str, work: FusedSweeps, number: int, shift: tuple[int, ...]) -> str:
        """An element of an array: held by a thread if it is the same on all planes."""
        (rows, columns), (di, dj, dk) = self._across, shift
        array, constant = f"a{number}", work.signature.arguments[number]

        def inside(value: str) -> str:
            """The value, or what stands everywhere far from the walls."""
            if not work.is_uniform(number):
                return value
            middle = place_of(constant, [f"extent_{axis} / 2" for axis in "ijk"])
            self.lines.append(f"const real {name}_inside = {array}[{middle}];")
            return f"(EDGE ? {value} : {name}_inside)"

        if all(constant):
            self.lines.append(f"const real {name} = {array}[0];")
            return name
        if work.is_recomputed(number) and not any(constant):
            assert work.inverse is not None
            taken = dict(enumerate(work.made_of))
            args = (work, work.inverse, taken, dict[tuple[int, ...], str]())
            made = Reads(*args, letter=f"{name}_", across=self._across)
            beside = Reads(*args, letter=f"{name}s_", across=self._across, on_any_plane=True)
            self.planes += made.planes
            self.lines += [
                *made.lines, *beside.lines, f"real {name}_side[{rows}][{columns}];",
                f"for (int r = 0; r < {rows}; r++) for (int k = 0; k < {columns}; k++)",
                f"    {name}_side[r][k] = EDGE ? inverse({', '.join(beside.args)}) : 0;",
            ]  # fmt: skip
            at_ends = "(here < region_i.low + MARGIN || here >= region_i.high - MARGIN)"
            here = f"{at_ends} ? inverse({', '.join(made.args)}) : {name}_side[r][k]"
            return inside(f"({here})")
        if constant == (True, True, False):
            value = inside(f"{array}[{INDEX[2]} + {dk}]")
            self.lines.append(f"real {name}[{columns}];")
            self.lines.append(f"for (int k = 0; k < {columns}; k++) {name}[k] = {value};")
            return f"{name}[k]"
        if constant == (True, False, True):
            value = inside(f"{array}[{INDEX[1]} + {dj}]")
            self.lines.append(f"real {name}[{rows}];")
            self.lines.append(f"for (int r = 0; r < {rows}; r++) {name}[r] = {value};")
            return f"{name}[r]"
        if constant == (False, True, True):
            value = inside(f"{array}[{INDEX[0]} + {di}]")
            if self._on_any_plane:
                return f"{name}_inside"
            self.planes.append(f"const real {name} = {value};")
            return name
        indices = [f"{index} + {d}" for index, d in zip(INDEX, shift, strict=True)]
        return inside(f"{array}[{place_of(constant, indices)}]")


def _norms(work: FusedSweeps) -> tuple[list[str], list[str], list[str]]:
    """The statements of the norms: before the planes, after each plane of a sweep, at the end."""
    if not any(work.norms):
        return [], [], []
    loop = "for (int r = 0; r < R; r++) for (int k = 0; k < C; k++)"
    state = [
        "bool within[R][C];",
        loop,
        "    within[r][k] = lane * C >= HALO && lane * C < X - HALO && warp * R + r >= T &&",
        "        warp * R + r < Y - T && y + r >= counted_j.low && y + r < counted_j.high &&",
        "        x + k >= counted_k.low && x + k < counted_k.high;",
        "const int copy = COPY;",
    ]
    each, last = [], []
    where = "here >= max(begin, counted_i.low) && here < min(end, counted_i.high)"
    for t, kind in enumerate(work.norms):
        if kind == "max":
            state.append(f"integer most{t} = 0;")
            each.append(
                f"if (t == {t} && {where}) {loop} if (within[r][k]) "
                f"most{t} = max(most{t}, magnitude(value[r][k] - newer[t][r][k]));"
            )
            last.append(f"add_largest(most{t}, reg{t} + copy * WIDTH);")
        elif kind == "sum":
            state.append(f"Sum sum{t}(reg{t} + copy * WIDTH);")
            each += [
                f"if (t == {t} && {where}) {{",
                "    double terms[R * C];",
                f"    {loop} {{",
                "        const real change = value[r][k] - newer[t][r][k];",
                "        terms[r * C + k] = within[r][k] ? (double)(change * change) : 0.0;",
                "    }",
                f"    sum{t}.add(terms);",
                "}",
            ]
            last.append(f"sum{t}.finish();")
    return state, each, last
