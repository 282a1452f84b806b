"""What a compiled sweep depends on: the kinds of its arguments and of its outputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heatsolve.stencil.language import ONE, Known, Point
from heatsolve.stencil.trace import ARRAY, INTEGER, REAL, Tape, record

Region = tuple[tuple[int, int], ...]
BYTES_OF = {"float64": 8, "float32": 4}


@dataclass(frozen=True)
class Signature:
    """What a compiled sweep depends on besides its point function.

    `arguments`: for each argument REAL, INTEGER, one of KNOWN (passed as a real that nobody reads),
    or for an array a tuple that tells for each axis whether the array is constant along it.
    `outputs`: for each result "array", "sum" or "max". `in_place`: for each output, the number of
    the argument that is the same array, or None. `gated`: whether the sweep does nothing once the
    device's gate is closed. `apart`: the arrays, by their names in generated code, whose extents
    are not those that the others share. `narrow`: the arrays in single precision, by the same
    names, of a sweep that computes in double. `pairs`: whether a thread may load and store two
    neighbours of the innermost axis at once.
    """

    arguments: tuple[Any, ...]
    outputs: tuple[str, ...]
    in_place: tuple[int | None, ...]
    precision: str
    dimension: int
    gated: bool = False
    apart: tuple[str, ...] = ()
    narrow: tuple[str, ...] = ()
    pairs: bool = False

    def tape(self, point: Point) -> Tape:
        kinds = [argument if isinstance(argument, str) else ARRAY for argument in self.arguments]
        tape = record(point, tuple(kinds), self.dimension)
        if len(tape.results) != len(self.outputs):
            raise TypeError(
                f"{point.__name__} returns {len(tape.results)} values, "
                f"the sweep has {len(self.outputs)} outputs"
            )
        return tape

    def target(self, output: int) -> str:
        """The name by which generated code writes an array output: one name for one array."""
        argument = self.in_place[output]
        return f"o{output}" if argument is None else f"a{argument}"

    def suffix(self, name: str) -> str:
        """What generated code appends to the names of an array's extents, strides and place."""
        return f"_{name}" if name in self.apart else ""

    def real_of(self, name: str) -> str:
        """The precision of an array, by its name in generated code."""
        return "float32" if name in self.narrow else self.precision

    def _touched(self, tape: Tape) -> list[str]:
        """The full arrays that one sweep moves through memory: those read, and those written."""
        read = {number for number, _ in tape.loads() if not any(self.arguments[number])}
        written = [f"o{n}" for n, kind in enumerate(self.outputs) if kind == "array"]
        return [*[f"a{number}" for number in read], *written]

    def arrays_touched(self, tape: Tape) -> int:
        """How many full arrays one sweep moves through memory, read plus written."""
        return len(self._touched(tape))

    def bytes_touched(self, tape: Tape) -> int:
        """How many bytes of full arrays one sweep moves through memory for each point."""
        return sum(BYTES_OF[self.real_of(name)] for name in self._touched(tape))


def place_of(output: Any, arguments: Sequence[Any]) -> int | None:
    """The number of the argument that is the same array as an output, if there is one."""
    for number, argument in enumerate(arguments):
        if argument is output:
            return number
    return None


def describe(argument: Any) -> Any:
    """An entry of `Signature.arguments`."""
    shape = getattr(argument, "shape", None)
    if shape:
        return tuple([extent == 1 for extent in shape])
    if type(argument) is Known:
        return "one" if argument is ONE else "zero"
    return INTEGER if isinstance(argument, int) else REAL
