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

import numpy as np

from heatsolve.backends import Signature
from heatsolve.backends.host.numba_loops import KEPT, KEY, REDUCTIONS, python_expression
from heatsolve.stencil.grid import even_part
from heatsolve.stencil.language import INDEX_NAMES, change, term_of
from heatsolve.stencil.trace import ARRAY, HERE, Coordinate, Tape, record, spelled

KINDS = {None: 0, "sum": 1, "max": 2}
"""Numbers of the norms of a change in generated code."""


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


def pass_source(
    name: str, signature: Signature, tape: Tape, wraps: Sequence[bool], threaded: bool
) -> str:
    """The source of a module whose `loops` makes the sweeps of a pass."""
    reach = radii(tape)
    assert reach is not None
    arrays = [f"a{n}" for n, a in enumerate(signature.arguments) if n and not isinstance(a, str)]
    vector = LINE // np.dtype(signature.precision).itemsize
    lines = [_line(part, signature, tape, reach, arrays) for part in ("first", "middle", "last")]
    imports = f"""\
        import numpy as np
        from numba import int64, prange, uint64

        {KEPT}
        {REDUCTIONS}
        real = np.{signature.precision}
        """
    loops = _loops(name, tape.dimension, reach, wraps, arrays, threaded, vector)
    return "\n\n".join([textwrap.dedent(imports), *lines, loops]) + "\n"


# ---- one row of one level ----------------------------------------------------------------------


def _places(dimension: int) -> list[str]:
    """Where a row begins: in the rings (`in_`), and in the arrays (`at_`)."""
    axes = INDEX_NAMES[:dimension]
    return [f"in_{a}" for a in axes] + [f"at_{a}" for a in axes]


def _line(
    part: str, signature: Signature, tape: Tape, reach: Sequence[int], arrays: Sequence[str]
) -> str:
    """The function that makes one row of the first level, of a middle level, or of the last."""
    axes = INDEX_NAMES[: tape.dimension]
    here = (HERE,) * len(axes)
    target = (
        f"new[{_global(here, ())}]"
        if part == "last"
        else f"rings[chunk, level, {_local(here, reach)}]"
    )
    center = f"u[{_global(here, ())}]" if part == "first" else _before(here, reach)
    parameters = ["new", "rings", "u", *arrays, "numbers", "chunk", "level"]
    parameters += [*_places(tape.dimension), "count", "kind", "begin", "end"]
    parameters += ["terms_of", "registers"]
    lines = [
        f"@cached_njit({KEY}, nogil=True, error_model='numpy')",
        f"def {part}({', '.join(parameters)}):",
    ]
    if len(axes) > 1:
        rows = 2 * reach[0] + 1
        lines += [
            f"    s{m} = (in_i + uint64({m - reach[0] + rows})) % uint64({rows})"
            for m in range(rows)
        ]
    scalars = [n for n, argument in enumerate(signature.arguments) if isinstance(argument, str)]
    lines += [f"    a{n} = numbers[level, {m}]" for m, n in enumerate(scalars)]
    fixed, varying = _body(part, signature, tape, reach)
    lines += [f"    {line}" for line in fixed]
    lines.append("    for n in range(count):")
    lines += [f"        {line}" for line in varying]
    lines.append(f"        {target} = v{tape.results[0]}")
    measure = [
        "if kind == 0:",
        "    return",
        "terms, register = terms_of[chunk], registers[chunk, level]",
    ]
    for kind, reduce in (("sum", "add_sum(terms, "), ("max", "add_largest(")):
        measure += [
            f"if kind == {KINDS[kind]}:",
            "    for n in range(begin, end):",
            *[f"        {line}" for line in _term(kind, target, center)],
            f"    {reduce}terms.view(np.int64), int64(end - begin), register)",
        ]
    return "\n".join([*lines, *_indented(measure)])


def _term(kind: str, new: str, old: str) -> list[str]:
    """The lines that compute a term of a norm of the change."""
    tape, values = record(term_of(change, kind), (ARRAY, ARRAY), 1), iter((new, old))
    texts = [
        next(values) if operation.name == "load" else spelled(operation, "", "").replace("v", "c")
        for operation in tape.operations
    ]
    lines = [f"c{place} = {text}" for place, text in enumerate(texts)]
    return [*lines, f"terms[n - begin] = c{tape.results[0]}"]


def _body(
    part: str, signature: Signature, tape: Tape, reach: Sequence[int]
) -> tuple[list[str], list[str]]:
    """The operations that are the same for a whole row, and the operations that vary along it."""
    fixed: list[str] = []
    varying: list[str] = []
    varies: set[int] = set()
    for place, operation in enumerate(tape.operations):
        name, operands = operation.name, operation.operands
        if name == "load":
            number, subscript = operands
            constant = signature.arguments[number]
            along_row = not constant[-1]
            if number == 0 and part != "first":
                text = _before(subscript, reach)
            else:
                array = "u" if number == 0 else f"a{number}"
                text = f"{array}[{_global(subscript, constant)}]"
        else:
            along_row = name not in ("constant", "scalar") and not varies.isdisjoint(operands)
            text = python_expression(signature, tape, place)
        if along_row:
            varies.add(place)
        (varying if along_row else fixed).append(f"v{place} = {text}")
    return fixed, varying


def _global(subscript: Sequence[Coordinate], constant: Sequence[bool]) -> str:
    """A subscript of an array; 0 along an axis along which the array is constant."""
    indices = []
    for axis, (shift, *_) in enumerate(subscript):
        start = f"at_{INDEX_NAMES[axis]}" + (" + n" if axis == len(subscript) - 1 else "")
        indices.append("0" if constant and constant[axis] else _shifted(start, shift))
    return ", ".join(indices)


def _before(subscript: Sequence[Coordinate], reach: Sequence[int]) -> str:
    """A value of the level before, in its ring."""
    return f"rings[chunk, level - uint64(1), {_local(subscript, reach)}]"


def _local(subscript: Sequence[Coordinate], reach: Sequence[int]) -> str:
    """A subscript of the ring of one level."""
    indices = []
    for axis, (shift, *_) in enumerate(subscript):
        last = axis == len(subscript) - 1
        start = f"in_{INDEX_NAMES[axis]}" + (" + n" if last else "")
        slot = axis == 0 and not last
        indices.append(f"s{shift + reach[0]}" if slot else _shifted(start, shift))
    return ", ".join(indices)


def _shifted(start: str, shift: int) -> str:
    return f"{start} {'+' if shift > 0 else '-'} uint64({abs(shift)})" if shift else start


# ---- tiles, levels, rows -----------------------------------------------------------------------


def _loops(
    name: str,
    dimension: int,
    reach: Sequence[int],
    wraps: Sequence[bool],
    arrays: Sequence[str],
    threaded: bool,
    vector: int,
) -> str:
    """The function that goes through the tiles, and in each through rows and levels; `vector`: the
    elements of a cache line."""
    axes = INDEX_NAMES[:dimension]
    bounds = [f"{end}_{a}" for a in axes for end in ("low", "high")]
    counted = [f"{end}_{a}" for a in axes for end in ("from", "to")]
    tiles = [f"tile_{a}" for a in axes]
    parameters = ["chunks", "levels", *tiles, "rings", "terms", "registers", "kinds", "numbers"]
    lines = [
        f"@cached_njit({KEY}, parallel={threaded}, nogil=True, error_model='numpy')",
        f"def loops({', '.join([*parameters, *bounds, *counted, 'new', 'u', *arrays])}):",
        f'    """{name}"""',
        *[f"    tiles_{a} = (high_{a} - low_{a} + tile_{a} - 1) // tile_{a}" for a in axes],
        f"    tasks = {' * '.join(f'tiles_{a}' for a in axes)}",
        f"    for chunk in {'prange' if threaded else 'range'}(chunks):",
        "        for task in range(tasks * chunk // chunks, tasks * (chunk + 1) // chunks):",
        "            block = task",
    ]
    for axis in reversed(axes):
        lines += [
            f"            first_{axis} = low_{axis} + block % tiles_{axis} * tile_{axis}",
            f"            last_{axis} = min(first_{axis} + tile_{axis}, high_{axis})",
            f"            block //= tiles_{axis}",
        ]
    body = _levels(axes, reach, wraps, arrays, vector)
    return "\n".join(lines) + "\n" + textwrap.indent(body, " " * 12)


def _levels(
    axes: Sequence[str],
    reach: Sequence[int],
    wraps: Sequence[bool],
    arrays: Sequence[str],
    vector: int,
) -> str:
    """The rows of a tile, level behind level."""
    outer, inner = axes[:-1], axes[-1]
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
        put(f"own = own and max(first_{axis}, from_{axis}) <= {axis} < min(last_{axis}, to_{axis})")
    # Rows begin at a line of the cache: a vector across two lines takes as long as two. So a level
    # makes up to a line of points that no later level needs, from points that nobody has made.
    start, stop = _extent(inner, reach[-1], wraps[-1], vector)
    put(f"start = {start}", f"stop = {stop}")
    row = _row(axes, reach, wraps[-1], arrays, vector)
    return "\n".join(lines) + "\n" + textwrap.indent(row, "    " * depth)


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


def _row(
    axes: Sequence[str], reach: Sequence[int], wrap: bool, arrays: Sequence[str], vector: int
) -> str:
    """One row of one level: fixed points keep the values of u, the sweep makes the rest."""
    outer, inner = axes[:-1], axes[-1]
    local = [f"uint64({a} - first_{a} + levels * {r})" for a, r in zip(outer, reach, strict=False)]
    place = [f"uint64(at_{a})" for a in outer]
    kept = [f"uint64({outer[0]} - first_i + levels * {reach[0]}) % uint64({2 * reach[0] + 1})",
            *local[1:]] if outer else []  # fmt: skip
    base = f"first_{inner} - {_rounded_up(f'levels * {reach[-1]}', vector)}"

    def keep(low: str, high: str) -> list[str]:
        ring = ", ".join(["chunk", "level", *kept, f"uint64(x - ({base}))"])
        source = ", ".join([*place, "uint64(x - shift)"])
        return [f"for x in range({low}, {high}):", f"    rings[{ring}] = u[{source}]"]

    def make(part: str) -> str:
        args = ["new", "rings", "u", *arrays, "numbers", "uint64(chunk)"]
        args += ["uint64(level)", *local, f"uint64(low - ({base}))", *place, "uint64(low - shift)"]
        args += ["uint64(high - low)", "kind", "uint64(begin - low)", "uint64(end - low)"]
        return f"{part}({', '.join([*args, 'terms', 'registers'])})"

    lines = [
        f"low, high = max(start, low_{inner} + shift), min(stop, high_{inner} + shift)",
        "if inside and low < high:",
        f"    begin = max(low, max(first_{inner}, from_{inner}))",
        f"    end = min(high, min(last_{inner}, to_{inner}))",
        "    kind = kinds[level] if own and begin < end else 0",
        "    begin, end = (begin, end) if kind != 0 else (low, low)",
        "    if level == 0:",
        f"        {make('first')}",
        "    elif level < levels - 1:",
        f"        {make('middle')}",
        "    else:",
        f"        {make('last')}",
    ]
    if wrap:
        lines += ["if not inside:", *_indented(keep("low", "high"))]
        head = ["for image in range(-1, 2):", f"    shift = image * (high_{inner} - low_{inner})"]
        return "\n".join([*head, *_indented(lines)])
    lines += [
        "if not inside:",
        *_indented(keep("start", "stop")),
        "elif level < levels - 1:",
        *_indented(keep("start", "low")),
        *_indented(keep("high", "stop")),
    ]
    return "\n".join(["shift = 0", *lines])


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


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
    """An array of zeros that begins at a line of the cache, with a line before it.

    The first row of a ring is read there, for points that no later level needs.
    """
    size = math.prod(shape) * dtype.itemsize
    memory = np.zeros(size + 2 * LINE, np.uint8)
    first = LINE + -memory.ctypes.data % LINE
    return memory[first : first + size].view(dtype).reshape(shape)


def ring_row(tile: int, levels: int, reach: int, size: int) -> int:
    """Elements from one row of a ring to the next: whole lines before the tile, and behind it."""
    before = -(-levels * reach * size // LINE) * LINE
    row = before + -(-(tile + levels * reach) * size // LINE) * LINE
    while not APART <= row % PAGE <= PAGE - APART:
        row += LINE
    return row // size
