"""Several sweeps in one pass through memory, for Numba: the source of a module that makes them.

The region is cut into tiles. For each tile a thread marches along the slowest axis: it makes the
newest row (2D) or plane (3D) of the first level, then the row or plane of the second level a radius
behind, and so on. So a level between u and the last level needs only 2 * radius + 1 rows, kept in a
ring that stays in the core's cache. Around its tile a level also makes the points that later levels
read, so tiles need nothing from each other (M. Wolfe, "More iteration space tiling", 1989;
overlapped tiles: S. Krishnamoorthy et al., PLDI 2007). For each point of each level the point
function's operations and their values are those of single sweeps, hence the bits are, too.
"""

import math
import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from heatsolve.backends import Signature
from heatsolve.backends.host.numba_loops import KEPT, KEY, REDUCTIONS, python_expression
from heatsolve.stencil.grid import even_part
from heatsolve.stencil.language import INDEX_NAMES, change, term_of
from heatsolve.stencil.trace import ARRAY, Coordinate, Tape, record, spelled

KINDS = {None: 0, "sum": 1, "max": 2}
"""Numbers of the norms of a change in generated code."""
OF_ROWS = f"@cached_njit({KEY}, nogil=True, error_model='numpy')"
"""The decorator of functions of one row."""


def radii(tape: Tape) -> tuple[int, ...] | None:
    """How far the point function reads u along each axis; None if that depends on an argument, or
    if it reads a grid twice as fine or as coarse."""
    reach = [0] * tape.dimension
    for number, subscript in tape.loads():
        for axis, place in enumerate(subscript):
            if place.scale != 1 or (number == 0 and place.added):
                return None
            if number == 0:
                reach[axis] = max(reach[axis], abs(place.shift))
    return tuple(reach)


def row_functions() -> str:
    """The source of a module with the functions that passes of all point functions share.

    `copy_row` copies a row. `add_change` adds to a register the terms of a norm, of the number
    `kind`, of the change from a row `old` to a row `new`; it leaves them in `terms`.
    """
    lines = [
        "import numpy as np",
        "from numba import uint64",
        "",
        KEPT,
        REDUCTIONS,
        "",
        "",
        OF_ROWS,
        "def copy_row(new, old):",
        "    for n in range(uint64(len(new))):",
        "        new[n] = old[n]",
        "",
        "",
        OF_ROWS,
        "def add_change(kind, new, old, terms, register):",
        "    count = len(new)",
    ]
    for kind, reduce in (("sum", "add_sum(terms, "), ("max", "add_largest(")):
        lines += [
            f"    if kind == {KINDS[kind]}:",
            "        for n in range(uint64(count)):",
            *[f"            {line}" for line in _term(kind)],
            f"        {reduce}terms.view(np.int64), count, register)",
        ]
    return "\n".join(lines) + "\n"


def _term(kind: str) -> list[str]:
    """The lines that compute a term of a norm of the change."""
    tape, values = record(term_of(change, kind), (ARRAY, ARRAY), 1), iter(("new[n]", "old[n]"))
    texts = [
        next(values) if operation.name == "load" else spelled(operation, "", "")
        for operation in tape.operations
    ]
    lines = [f"v{place} = {text}" for place, text in enumerate(texts)]
    return [*lines, f"terms[n] = v{tape.results[0]}"]


@dataclass(frozen=True)
class Pass:
    """A pass, as the source of a module whose `loops` makes its sweeps.

    wraps: for each axis, whether it is periodic; threaded: whether tiles are dealt to threads;
    shared: the name of the module of `row_functions`.
    """

    name: str
    signature: Signature
    tape: Tape
    wraps: tuple[bool, ...]
    threaded: bool
    shared: str

    @property
    def source(self) -> str:
        imports = f"""\
            import numpy as np
            from numba import prange, uint64

            {KEPT}
            from {self.shared} import add_change, copy_row
            real = np.{self.signature.precision}
            """
        return "\n\n".join([textwrap.dedent(imports), self._make_row(), self._loops()]) + "\n"

    @cached_property
    def _axes(self) -> tuple[str, ...]:
        return INDEX_NAMES[: self.tape.dimension]

    @cached_property
    def _reach(self) -> tuple[int, ...]:
        reach = radii(self.tape)
        assert reach is not None
        return reach

    @cached_property
    def _arrays(self) -> list[str]:
        """The arguments behind u that are arrays."""
        arguments = enumerate(self.signature.arguments)
        return [f"a{n}" for n, a in arguments if n and not isinstance(a, str)]

    @cached_property
    def _rows(self) -> list[tuple[int, ...]]:
        """The rows of the previous level that a row reads, by their shifts along the outer axes."""
        loads = [subscript for number, subscript in self.tape.loads() if number == 0]
        return sorted({tuple(place.shift for place in subscript[:-1]) for subscript in loads})

    @property
    def _vector(self) -> int:
        """The elements of a line of the cache."""
        return LINE // np.dtype(self.signature.precision).itemsize

    # ---- one row of one level ----

    def _make_row(self) -> str:
        """The function that makes a row of a level from rows of the previous level.

        These begin a radius before the row's first point; arrays of arguments are whole, the row's
        first point lies in them at `at_`.
        """
        rows = [f"row{m}" for m in range(len(self._rows))]
        places = [f"at_{axis}" for axis in self._axes]
        parameters = ["new", *rows, *self._arrays, "numbers", "level", *places]
        lines = [OF_ROWS, f"def make_row({', '.join(parameters)}):"]
        arguments = enumerate(self.signature.arguments)
        scalars = [n for n, argument in arguments if isinstance(argument, str)]
        lines += [f"    a{n} = numbers[level, {m}]" for m, n in enumerate(scalars)]
        fixed, varying = self._body()
        lines += [f"    {line}" for line in fixed]
        lines.append("    for n in range(uint64(len(new))):")
        lines += [f"        {line}" for line in varying]
        lines.append(f"        new[n] = v{self.tape.results[0]}")
        return "\n".join(lines)

    def _body(self) -> tuple[list[str], list[str]]:
        """The operations that are the same for a whole row, and those that vary along it."""
        fixed: list[str] = []
        varying: list[str] = []
        varies: set[int] = set()
        for place, operation in enumerate(self.tape.operations):
            name, operands = operation.name, operation.operands
            if name == "load":
                number, subscript = operands
                along_row = not self.signature.arguments[number][-1]
                text = self._element(number, subscript)
            else:
                along_row = name not in ("constant", "scalar") and not varies.isdisjoint(operands)
                text = python_expression(self.signature, self.tape, place)
            if along_row:
                varies.add(place)
            (varying if along_row else fixed).append(f"v{place} = {text}")
        return fixed, varying

    def _element(self, number: int, subscript: Sequence[Coordinate]) -> str:
        """An element of u, in a row of the previous level, or of an array of the arguments, at the
        index 0 along an axis along which the array is constant."""
        *outer, last = [place.shift for place in subscript]
        if number == 0:
            row = self._rows.index(tuple(outer))
            return f"row{row}[n + uint64({last + self._reach[-1]})]"
        starts = [f"at_{axis}" for axis in self._axes]
        starts[-1] += " + n"
        constant = self.signature.arguments[number]
        indices = [
            "0" if same else _shifted(start, place.shift, "uint64({})")
            for start, place, same in zip(starts, subscript, constant, strict=True)
        ]
        return f"a{number}[{', '.join(indices)}]"

    # ---- tiles, levels, rows ----

    def _loops(self) -> str:
        """The function that goes through the tiles, and in each through levels and rows."""
        axes = self._axes
        bounds = [f"{end}_{a}" for a in axes for end in ("low", "high")]
        counted = [f"{end}_{a}" for a in axes for end in ("from", "to")]
        tiles = [f"tile_{a}" for a in axes]
        parameters = ["chunks", "levels", *tiles, "rings", "terms", "registers", "kinds", "numbers"]
        parameters += [*bounds, *counted, "new", "u", *self._arrays]
        lines = [
            f"@cached_njit({KEY}, parallel={self.threaded}, nogil=True, error_model='numpy')",
            f"def loops({', '.join(parameters)}):",
            f'    """{self.name}"""',
            *[f"    tiles_{a} = (high_{a} - low_{a} + tile_{a} - 1) // tile_{a}" for a in axes],
            f"    tasks = {' * '.join(f'tiles_{a}' for a in axes)}",
            f"    for chunk in {'prange' if self.threaded else 'range'}(chunks):",
            "        for task in range(tasks * chunk // chunks, tasks * (chunk + 1) // chunks):",
            "            block = task",
        ]
        for axis in reversed(axes):
            lines += [
                f"            first_{axis} = low_{axis} + block % tiles_{axis} * tile_{axis}",
                f"            last_{axis} = min(first_{axis} + tile_{axis}, high_{axis})",
                f"            block //= tiles_{axis}",
            ]
        inner, before = axes[-1], _rounded_up(f"levels * {self._reach[-1]}", self._vector)
        lines.append(f"            ring_{inner} = first_{inner} - {before} - {self._vector}")
        return "\n".join(lines) + "\n" + textwrap.indent(self._levels(), " " * 12)

    def _levels(self) -> str:
        """The rows of a tile, level behind level."""
        axes, reach, wraps = self._axes, self._reach, self.wraps
        outer = axes[:-1]
        lines: list[str] = []
        depth = 0

        def put(*texts: str) -> None:
            lines.extend("    " * depth + text for text in texts)

        if outer:
            behind = f"(levels - 1) * {reach[0]}"
            put(f"for front in range(first_i - {behind}, last_i + {behind}):")
            depth += 1
        put("for level in range(levels):")
        depth += 1
        put("around = levels - 1 - level")
        put("inside = True", "own = kinds[level] != 0")
        for axis, radius, wrap in zip(outer, reach, wraps, strict=False):
            start, stop = _extent(axis, radius, wrap)
            if axis == "i":
                put(f"i = front - level * {radius}")
                put(f"if i < {start} or i >= {stop}:", "    continue")
            else:
                put(f"inside_{outer[0]}, own_{outer[0]} = inside, own")
                put(f"for {axis} in range({start}, {stop}):")
                depth += 1
                put(f"inside, own = inside_{outer[0]}, own_{outer[0]}")
            put(f"at_{axis} = {axis}")
            if wrap:
                put(*_wrapped(axis))
            else:
                put(f"inside = inside and low_{axis} <= {axis} < high_{axis}")
            put(
                f"own = own and max(first_{axis}, from_{axis}) <= {axis} < "
                f"min(last_{axis}, to_{axis})"
            )
        # Rows begin at a line of the cache: a vector across two lines takes as long as two. So a
        # level makes up to a line of points that no later level needs, from points that nobody has
        # made.
        start, stop = _extent(axes[-1], reach[-1], wraps[-1], self._vector)
        put(f"start = {start}", f"stop = {stop}")
        return "\n".join(lines) + "\n" + textwrap.indent(self._row(), "    " * depth)

    def _row(self) -> str:
        """One row of one level: fixed points keep the values of u, the sweep makes the rest."""
        outer, inner = self._axes[:-1], self._axes[-1]
        radius, wrap = self._reach[-1], self.wraps[-1]
        here = (0,) * len(outer)

        def keep(low: str, high: str) -> str:
            kept = self._in_ring("level", here, low, high)
            return f"copy_row({kept}, {_in_array('u', outer, here, low, high)})"

        low, high = f"low - {radius}", f"high + {radius}"
        # The row itself comes first: the norm of a change needs it, even if the sweep does not.
        before = [here, *[shifts for shifts in self._rows if shifts != here]]
        names = {shifts: f"before{m}" for m, shifts in enumerate(before)}
        place = [f"uint64({start})" for start in [*[f"at_{a}" for a in outer], "low - shift"]]
        rows = [names[shifts] for shifts in self._rows]
        arguments = ["made", *rows, *self._arrays, "numbers", "level", *place]
        lines = [
            f"low, high = max(start, low_{inner} + shift), min(stop, high_{inner} + shift)",
            "if inside and low < high:",
            "    if level == 0:",
            *[f"        {names[s]} = {_in_array('u', outer, s, low, high)}" for s in before],
            "    else:",
            *[f"        {names[s]} = {self._in_ring('level - 1', s, low, high)}" for s in before],
            "    if level < levels - 1:",
            f"        made = {self._in_ring('level', here, 'low', 'high')}",
            "    else:",
            f"        made = {_in_array('new', outer, here, 'low', 'high')}",
            f"    make_row({', '.join(arguments)})",
            f"    begin = max(low, max(first_{inner}, from_{inner}))",
            f"    end = min(high, min(last_{inner}, to_{inner}))",
            "    if own and begin < end:",
            "        begin, end = begin - low, end - low",
            f"        old = before0[begin + {radius} : end + {radius}]",
            "        into = registers[chunk, level]",
            "        add_change(kinds[level], made[begin:end], old, terms[chunk], into)",
        ]
        if wrap:
            lines += ["if not inside and low < high:", f"    {keep('low', 'high')}"]
            image = f"shift = image * (high_{inner} - low_{inner})"
            body = textwrap.indent("\n".join([image, *lines]), "    ")
            return f"for image in range(-1, 2):\n{body}"
        lines += [
            "if not inside:",
            f"    {keep('start', 'stop')}",
            "elif level < levels - 1:",
            f"    {keep('start', 'low')}",
            f"    {keep('high', 'stop')}",
        ]
        return "\n".join(["shift = 0", *lines])

    def _in_ring(self, level: str, shifts: Sequence[int], low: str, high: str) -> str:
        """Points of a row of a level, in its ring; the row is shifted along the outer axes."""
        indices: list[str] = []
        for axis, radius, shift in zip(self._axes, self._reach, shifts, strict=False):
            index = _shifted(f"{axis} - first_{axis} + levels * {radius}", shift)
            indices.append(index if indices else f"({index}) % {2 * radius + 1}")
        points = f"{low} - ring_{self._axes[-1]} : {high} - ring_{self._axes[-1]}"
        return f"rings[{', '.join(['chunk', level, *indices, points])}]"


def _in_array(array: str, outer: Sequence[str], shifts: Sequence[int], low: str, high: str) -> str:
    """Points of a row of an array; the row is shifted along the outer axes."""
    indices = [_shifted(f"at_{axis}", shift) for axis, shift in zip(outer, shifts, strict=True)]
    return f"{array}[{', '.join([*indices, f'{low} - shift : {high} - shift'])}]"


def _shifted(start: str, shift: int, form: str = "{}") -> str:
    """An index that is shifted by a number, which is written in this form."""
    return f"{start} {'+' if shift > 0 else '-'} {form.format(abs(shift))}" if shift else start


def _extent(axis: str, radius: int, wrap: bool, vector: int = 1) -> tuple[str, str]:
    """The points along an axis that a level needs: around the tile, and not beyond the ghosts; up
    to a whole `vector` below it where the axis is not periodic."""
    start, stop = f"first_{axis} - around * {radius}", f"last_{axis} + around * {radius}"
    if wrap:
        return start, stop
    if vector > 1:
        start = f"first_{axis} - {_rounded_up(f'around * {radius}', vector)}"
    return f"max({start}, low_{axis} - {radius})", f"min({stop}, high_{axis} + {radius})"


def _rounded_up(number: str, vector: int) -> str:
    """The text of a number, rounded up to whole vectors."""
    return f"({number} + {vector - 1}) // {vector} * {vector}"


def _wrapped(axis: str) -> list[str]:
    return [
        f"if {axis} < low_{axis}:",
        f"    at_{axis} += high_{axis} - low_{axis}",
        f"elif {axis} >= high_{axis}:",
        f"    at_{axis} -= high_{axis} - low_{axis}",
    ]


# ---- the depth of a pass and the size of tiles: by the caches ------------------------------------

LINE = 64
"""Bytes of a cache line."""
PAGE = 4096
"""Loads that lie a multiple of PAGE bytes behind a store wait for the store; rows of a ring stay
APART bytes from such distances (0.18 ns a point instead of 0.27)."""
APART = 512


def cache_size(level: int, otherwise: int) -> int:
    """Bytes of a processor's cache of this level; `otherwise` where the system does not tell."""
    try:
        return os.sysconf(f"SC_LEVEL{level}_CACHE_SIZE") or otherwise
    except (ValueError, OSError, AttributeError):
        return otherwise


@dataclass(frozen=True)
class Tiling:
    """The numbers that decide on passes and tiles; none changes any bits.

    `worth`: bytes of a field from which passes pay, because two such fields do not stay in the
    cache that the cores share. `ring`: bytes that the levels of one tile take, four times a core's
    own cache, because in 3D wide tiles gain more than a ring in that cache. `depth`: sweeps of a
    pass, and `row`: points of a tile along the innermost axis, by dimension. `height`: the most
    points of a tile along the slowest axis.
    """

    worth: int = field(default_factory=lambda: cache_size(3, 32 << 20))
    ring: int = field(default_factory=lambda: 4 * cache_size(2, 1 << 20))
    depth: tuple[int, int, int] = (15, 13, 5)
    row: tuple[int, int, int] = (4096, 2048, 512)
    height: int = 1024

    def levels(
        self, extents: Sequence[int], reach: Sequence[int], wraps: Sequence[bool], most: int
    ) -> int:
        """The number of sweeps of a pass over a region of these extents, at most `most`."""
        levels = min(most, self.depth[len(extents) - 1])
        # The points that a tile makes around itself go at most once around a periodic axis.
        for extent, radius, wrap in zip(extents, reach, wraps, strict=True):
            if wrap and radius:
                levels = min(levels, extent // radius)
        return levels

    def tile(
        self, extents: Sequence[int], levels: int, reach: Sequence[int], size: int, chunks: int
    ) -> tuple[int, ...]:
        """The points of a tile along each axis, for elements of `size` bytes.

        There are at least as many tiles as chunks, if the region is not too small for them.
        """
        tile = list(extents)
        tile[-1] = even_part(extents[-1], self.row[len(extents) - 1])
        if len(extents) == 3:
            rows = self.ring // (ring_row(tile[-1], levels, reach[-1], size) * size)
            rows //= (levels - 1) * (2 * reach[0] + 1)
            tile[1] = even_part(extents[1], max(rows - 2 * levels * reach[1], 8))
        if len(extents) > 1:
            beside = 1
            for extent, part in zip(extents[1:], tile[1:], strict=True):
                beside *= -(-extent // part)
            shares = -(-chunks // beside)
            tallest = min(self.height, max(-(-extents[0] // shares), 4 * levels * reach[0]))
            tile[0] = even_part(extents[0], tallest)
        return tuple(tile)

    def ring_shape(
        self, tile: Sequence[int], levels: int, reach: Sequence[int], size: int
    ) -> tuple[int, ...]:
        """The shape of the rings of one tile: the levels between u and the last level."""
        inner = ring_row(tile[-1], levels, reach[-1], size)
        if len(tile) == 1:
            return levels - 1, inner
        middle = [n + 2 * levels * r for n, r in zip(tile[1:-1], reach[1:-1], strict=True)]
        return levels - 1, 2 * reach[0] + 1, *middle, inner


def in_lines(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array of zeros that begins at a line of the cache."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.zeros(size + LINE, np.uint8)
    first = -memory.ctypes.data % LINE
    return memory[first : first + size].view(dtype).reshape(shape)


def ring_row(tile: int, levels: int, reach: int, size: int) -> int:
    """Elements from one row of a ring to the next: whole lines before the tile, and behind it.

    The first line is read for points that no later level needs.
    """
    before = -(-levels * reach * size // LINE) * LINE + LINE
    row = before + -(-(tile + levels * reach) * size // LINE) * LINE
    while not APART <= row % PAGE <= PAGE - APART:
        row += LINE
    return row // size
