"""CUDA C of a thread that marches along the slowest axis with a pair of columns, k and k + 1.

A pair begins at an even place of its array, so that it is loaded and stored at once. The element
before it and the one behind it are loaded by themselves: they lie in cache lines that neighbours
ask for. What the next row reads again stays in registers, in a ring of names, so that a row loads
little and many threads are at work at a time.

Where a region begins or ends within a pair, its thread computes both columns and stores one. A
branch of its own for it would hold up all threads of its warp, in one block of five.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from heatsolve.backends import Signature
from heatsolve.backends.gpu.emit import Dialect, expression, needed, place_at, unrolled
from heatsolve.stencil.language import INDEX_NAMES
from heatsolve.stencil.trace import Operation, Tape

KINDS = {"float64": ("double", "double2"), "float32": ("float", "float2")}
"""An element and a pair, by precision."""


@dataclass(frozen=True)
class Word:
    """What is loaded at once: an element of an argument, or the pair that begins with it."""

    number: int
    subscript: tuple
    places: tuple[int, ...]
    """Of the elements, on the tape."""

    def next_row(self) -> tuple[int, tuple, int]:
        """What it is in the next row, as `key` tells it."""
        (shift, added), *others = self.subscript
        return self.number, ((shift + 1, added), *others), len(self.places)

    @property
    def key(self) -> tuple[int, tuple, int]:
        return self.number, self.subscript, len(self.places)

    @property
    def column(self) -> int:
        """Of its first element, from that of the thread on."""
        return self.subscript[-1][0]

    def values(self, name: str) -> Iterator[str]:
        """What gives the elements of a word of this name their names on the tape."""
        parts = (".x", ".y") if len(self.places) == 2 else ("",)
        for place, part in zip(self.places, parts, strict=True):
            yield f"const auto v{place} = {name}{part};"


def words_of(tape: Tape, varying: Sequence[bool]) -> list[Word]:
    """The loads of a tape from arguments that vary along all axes, two in one where they can be."""
    loads = {
        operation.operands: place
        for place, operation in enumerate(tape.operations)
        if operation.name == "load" and varying[operation.operands[0]]
    }
    words: list[Word] = []
    paired: set[int] = set()
    for (number, (*others, (column, added))), place in loads.items():
        beside = loads.get((number, (*others, (column + 1, added))))
        if column % 2 == 0 and not added and beside is not None:
            words.append(Word(number, (*others, (column, added)), (place, beside)))
            paired |= {place, beside}
    words += [
        Word(number, subscript, (place,))
        for (number, subscript), place in loads.items()
        if place not in paired
    ]
    return words


def chains_of(words: Sequence[Word]) -> list[list[Word]]:
    """Words of which each becomes the one before it in the next row: only the last is loaded.

    Those whose last one lies ahead come last: it has to come from memory, while what lies around
    has been loaded by others and may wait for it.
    """
    at = {word.key: word for word in words}
    followed = {word.next_row() for word in words}
    chains = []
    for word in words:
        if word.key not in followed:
            chain = [word]
            while (following := at.get(chain[-1].next_row())) is not None:
                chain.append(following)
            chains.append(chain)
    return sorted(chains, key=lambda chain: (chain[-1].subscript[0][0], len(chain[-1].places)))


def march(tape: Tape, signature: Signature, dialect: Dialect, rows: int) -> list[str]:
    """The lines of a thread with one point or two in the region, as `first` and `second` tell.

    They read what `thread_indices` wrote.
    """
    wide, (_, vector) = unrolled(tape, 1, 2), KINDS[signature.precision]
    varying = [not isinstance(kind, str) and not any(kind) for kind in signature.arguments]
    words = words_of(wide, varying)
    chains = chains_of(words)
    period = max([len(chain) for chain in chains], default=1)
    targets = [signature.target(n) for n in range(len(tape.results))]
    pointers = sorted({f"a{word.number}" for word in words} | set(targets))

    lines = [f"auto at_{name} = {name} + p;" for name in pointers]
    lines += _insides(wide, signature, INDEX_NAMES[tape.dimension - 1])
    for number, chain in enumerate(chains):
        if len(chain) > 1:
            kind = KINDS[signature.precision][len(chain[0].places) - 1]
            lines.append(f"{kind} {', '.join(f'w{number}_{n}' for n in range(period))};")
            lines += [f"w{number}_{n} = {_load(w, kind)};" for n, w in enumerate(chain[:-1])]
    lines += [
        f"const long long i_0 = i, end = min(i + {rows}, high_i);",
        "for (long long i = i_0;;) {",
    ]
    for row in range(period):
        loads: list[str] = []
        values: list[str] = []
        for number, chain in enumerate(chains):
            names = [f"w{number}_{(n + row) % period}" for n in range(len(chain))]
            kind = KINDS[signature.precision][len(chain[0].places) - 1]
            new = f"const {kind} " if len(chain) == 1 else ""
            loads.append(f"{new}{names[-1]} = {_load(chain[-1], kind)};")
            for name, word in zip(names, chain, strict=True):
                values += word.values(name)
        loaded = {place for word in words for place in word.places}
        for place in needed(wide, wide.results, loaded):
            value = expression(wide, place, signature, dialect)
            column = _column_read(wide.operations[place], signature)
            if column not in (None, 0, 1):
                element = KINDS[signature.precision][0]
                value = f"{_inside(column)} ? {value} : {element}{{}}"
            values.append(dialect.assign.format(name=f"v{place}", value=value) + ";")
        for n, target in enumerate(targets):
            pair = ", ".join(f"v{result}" for result in wide.results[n :: len(targets)])
            values.append(f"store(at_{target}, first, second, make_{vector}({pair}));")
        values += [f"at_{name} += stride_i;" for name in pointers]
        values.append("if (++i >= end) break;")
        lines += ["    {", *[f"        {line}" for line in loads + values], "    }"]
    return [*lines, "}"]


def _load(word: Word, kind: str) -> str:
    element = f"at_a{word.number}[{place_at(word.subscript, '')}]"
    value = f"*(const {kind}*)&{element}" if len(word.places) == 2 else element
    return value if word.column in (0, 1) else f"{_inside(word.column)} ? {value} : {kind}{{}}"


def _inside(column: int) -> str:
    return f"inside_{abs(column)}_{'before' if column < 0 else 'ahead'}"


def _column_read(operation: Operation, signature: Signature) -> int | None:
    """The column, from that of the thread on, that a load of an array varying along it reads."""
    if operation.name != "load":
        return None
    number, subscript = operation.operands
    return None if signature.arguments[number][-1] else subscript[-1][0]


def _insides(wide: Tape, signature: Signature, axis: str) -> Iterator[str]:
    """What tells whether elements beside a pair are in its row: who needs them may be no point.

    Rows are whole pairs, so a pair does if its first element does.
    """
    columns = {_column_read(operation, signature) for operation in wide.operations}
    for column in sorted(n for n in columns if n not in (None, 0, 1)):
        condition = f"{axis} >= {-column}" if column < 0 else f"{axis} + {column} < extent_{axis}"
        yield f"const bool {_inside(column)} = {condition};"
