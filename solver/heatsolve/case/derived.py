"""The names of derived fields, made of a model's fields when they are written, drawn or probed.

`models.derived` computes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True)
class Derived:
    """A derived field: its kind, the fields it is made of, and the axis of a gradient or a flux.

    unit: its unit in the words of `[units]`, such as "velocity_x/length".
    """

    kind: str
    sources: tuple[str, ...]
    axis: str = ""
    unit: str = ""


def derived_fields(
    names: Sequence[str],
    velocities: Sequence[str],
    axes: Sequence[str],
    conducts: bool,
    closed: bool,
) -> dict[str, Derived]:
    """The derived fields that a model with some fields has, by their names.

    `conducts`: whether it has a flux of heat; `closed`: whether each cell's inflow is its outflow.
    """
    result = {
        f"{name}_gradient_{axis}": Derived("gradient", (name,), axis, f"{name}/length")
        for name in names
        for axis in axes
    }
    if conducts:
        result |= {
            f"heat_flux_{axis}": Derived("heat flux", tuple(names[:1]), axis) for axis in axes
        }
    if velocities:
        whole = tuple(velocities)
        result["speed"] = Derived("speed", whole, unit=whole[0])
    if len(velocities) > 1:
        rate = f"{velocities[0]}/length"
        result["q_criterion"] = Derived("q criterion", tuple(velocities), unit=f"({rate})^2")
        if closed and len(axes) == 2:
            unit = f"{whole[0]}*length"
            result["stream_function"] = Derived("stream function", whole, unit=unit)
        # rot u: along z d(u_y)/dx - d(u_x)/dy, and so on in turn.
        for first, second in combinations(axes, 2):
            across = ({"x", "y", "z"} - {first, second}).pop()
            name = "vorticity" if len(axes) == 2 else f"vorticity_{across}"
            pair = (second, first) if across == "y" else (first, second)
            sources = tuple(f"velocity_{axis}" for axis in pair)
            result[name] = Derived("vorticity", sources, unit=rate)
    return result


def unit_of(derived: Derived, units: Mapping[str, str]) -> str:
    """The unit of a derived field, if the case names the units of its parts; otherwise "1"."""
    if not derived.unit:
        return "1"
    if "*" in derived.unit:
        factors = [units.get(name, "1") for name in derived.unit.split("*")]
        return " ".join(unit for unit in factors if unit != "1") or "1"
    source, _, square = derived.unit.strip("(").partition(")")
    over, _, below = source.partition("/")
    numerator, denominator = units.get(over, "1"), units.get(below, "1") if below else "1"
    unit = numerator
    if denominator != "1":
        unit += f"/{denominator}" if denominator.isalnum() else f"/({denominator})"
    return f"({unit}){square}" if square and unit != "1" else unit
