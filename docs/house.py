"""The picture of the house in contributing.md: its rooms, and who imports whom.

`python docs/house.py` writes house.svg beside itself, from the imports of both packages. An arrow
that others imply (a imports b, b imports c, a imports c) is left out.
"""

import ast
from html import escape
from pathlib import Path
from textwrap import wrap

HERE = Path(__file__).parent
ROOTS = (HERE.parent / "solver", HERE.parent / "postprocess")
EVERYWHERE = {"errors", "report"}
"""Rooms that all others import: they are drawn without arrows."""
WIDTH, HEIGHT, GAP, RISE = 180, 66, 24, 120
LETTERS = 31
"""Letters in a line of a box."""


def modules() -> dict[str, Path]:
    """The source files by the names of their modules."""
    found = {}
    for root in ROOTS:
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room(name: str) -> str:
    """The room of a module: the folder or file below `heatsolve`, or the other package."""
    package, *inner = name.split(".")
    return inner[0] if package == "heatsolve" and inner else package


def imports(path: Path, known: set[str]) -> set[str]:
    """The modules of ours that a file imports."""
    result = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            result |= inner & known or {str(node.module)}
    return result & known


def arrows(files: dict[str, Path]) -> dict[str, set[str]]:
    """For each room the rooms that it imports."""
    rooms: dict[str, set[str]] = {room(name): set() for name in files}
    for name, path in files.items():
        rooms[room(name)] |= {room(other) for other in imports(path, set(files))}
    return {name: others - {name, "heatsolve"} - EVERYWHERE for name, others in rooms.items()}


def floors(rooms: dict[str, set[str]]) -> dict[str, int]:
    """The floor of each room: one above the rooms that it imports; a circle shares one."""
    floor = dict.fromkeys(rooms, 0)
    for _ in rooms:
        for name, others in rooms.items():
            below = [floor[other] for other in others if name not in rooms[other]]
            floor[name] = max([floor[name], *(level + 1 for level in below)])
    return floor


def direct(rooms: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The arrows that no longer way of arrows implies."""

    def below(name: str) -> set[str]:
        seen: set[str] = set()
        waiting = list(rooms[name])
        while waiting:
            if (other := waiting.pop()) not in seen:
                seen.add(other)
                waiting += rooms[other]
        return seen

    reach = {name: below(name) for name in rooms}
    return [
        (name, other)
        for name, others in rooms.items()
        for other in sorted(others)
        if not any(other in reach[between] for between in others - {other})
    ]


def purpose(name: str, files: dict[str, Path]) -> str:
    """The first line of a room's docstring."""
    path = files.get(f"heatsolve.{name}", files.get(name))
    assert path is not None
    return (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]


def lines(text: str) -> list[str]:
    """A text in lines of a box, three at most."""
    return wrap(text.rstrip("."), LETTERS, max_lines=3, placeholder=" ...")


def draw() -> str:
    """The picture, as SVG."""
    files = modules()
    rooms = {name: others for name, others in arrows(files).items() if name != "__main__"}
    rooms.pop("heatsolve")
    floor = floors(rooms)
    rows: dict[int, list[str]] = {}
    for name in sorted(rooms, key=lambda name: (floor[name], name)):
        rows.setdefault(floor[name], []).append(name)
    wide = max(map(len, rows.values())) * (WIDTH + GAP) + GAP
    high = len(rows) * RISE + GAP
    at = {}
    for level, names in rows.items():
        start = (wide - len(names) * (WIDTH + GAP) + GAP) / 2
        for place, name in enumerate(names):
            at[name] = (start + place * (WIDTH + GAP), high - (level + 1) * RISE + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" '
        f'width="{wide}" height="{high}" font-family="sans-serif">',
        f'<rect width="{wide}" height="{high}" fill="white"/>',
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#567"/></marker>',
    ]
    lower = {name: {o for o in others if floor[o] < floor[name]} for name, others in rooms.items()}
    for name, other in direct(lower):
        x, y = at[name][0] + WIDTH / 2, at[name][1] + HEIGHT
        to_x, to_y = at[other][0] + WIDTH / 2, at[other][1]
        parts.append(
            f'<line x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" stroke="#567" '
            'stroke-width="1.2" marker-end="url(#head)"/>'
        )
    for name, (x, y) in at.items():
        parts += [
            f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="5" fill="#eef3f7" '
            'stroke="#345"/>',
            f'<text x="{x + 8:g}" y="{y + 17:g}" font-size="13" font-weight="bold">'
            f"{escape(name)}</text>",
        ]
        parts += [
            f'<text x="{x + 8:g}" y="{y + 31 + 11 * row:g}" font-size="10">{escape(line)}</text>'
            for row, line in enumerate(lines(purpose(name, files)))
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    (HERE / "house.svg").write_text(draw())
