"""XDMF: the sidecar that tells ParaView where the fields lie in an HDF5 file."""

from collections.abc import Iterable
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

AXES = ("z", "y", "x")
KINDS = {"f": "Float", "i": "Int", "u": "UInt"}


def xdmf(name: str, file: Any, fields: Iterable[str]) -> str:
    """The XDMF 3 text that shows ParaView some fields of the 2D or 3D HDF5 `file` called `name`.

    Components such as velocity_x and velocity_y are also shown as one vector, velocity.
    """
    # Slowest axis first. 2D is one plane of a 3D mesh: ParaView lays a 2DCoRectMesh into yz.
    lines = [file[axis][:] if axis in file else np.zeros(1) for axis in AXES]
    spacing = [np.ptp(line) / max(len(line) - 1, 1) or 1 for line in lines]
    # VTK takes as many values of an item as its dimensions say: all of these three, as the mesh.
    points = _words(map(len, lines))
    mesh = f"""<Topology TopologyType="3DCoRectMesh" Dimensions="{points}"/>
<Geometry GeometryType="ORIGIN_DXDYDZ">
<DataItem Dimensions="3" Precision="8">{_words(line[0] for line in lines)}</DataItem>
<DataItem Dimensions="3" Precision="8">{_words(spacing)}</DataItem>
</Geometry>"""
    datasets = {field: file[field] for field in fields}
    vectors = _vectors(datasets, [axis for axis in AXES if axis in file])
    grids = ""
    for frame, time in enumerate(file.get("time", [None])):
        clock = f'<Time Value="{time}"/>\n' if time is not None else ""
        grids += f'<Grid Name="frame {frame}">\n{clock}{mesh}\n'
        place = None if time is None else frame
        items = {field: _item(name, data, points, place) for field, data in datasets.items()}
        for field, item in items.items():
            grids += f'<Attribute Name="{field}" Center="Node">\n{item}\n</Attribute>\n'
        for vector, components in vectors.items():
            # A plane has no third component: it is 0 times the first one.
            joined = ", ".join(["$0", "$1", "$2" if len(components) > 2 else "0*$0"])
            inner = "\n".join(items[component] for component in components)
            grids += f"""<Attribute Name="{vector}" AttributeType="Vector" Center="Node">
<DataItem ItemType="Function" Function="JOIN({joined})" Dimensions="{points} 3">
{inner}
</DataItem>
</Attribute>
"""
        grids += "</Grid>\n"
    if "time" in file:
        grids = f'<Grid GridType="Collection" CollectionType="Temporal">\n{grids}</Grid>\n'
    return f'<Xdmf Version="3.0">\n<Domain>\n{grids}</Domain>\n</Xdmf>\n'


def _vectors(fields: Iterable[str], axes: list[str]) -> dict[str, list[str]]:
    """The components along x, y, z of each vector that has one along every axis, by its name."""
    known = set(fields)
    stems = [name.removesuffix("_x") for name in known if name.endswith("_x")]
    result = {stem: [f"{stem}_{axis}" for axis in reversed(axes)] for stem in sorted(stems)}
    return {k: v for k, v in result.items() if k not in known and known.issuperset(v)}


def _item(name: str, data: Any, points: str, frame: int | None) -> str:
    """The place of the values of a field, or of one of its frames."""
    number = f'NumberType="{KINDS[data.dtype.kind]}" Precision="{data.dtype.itemsize}"'
    place = f"{escape(name)}:{data.name}"
    if frame is None:
        return f'<DataItem Format="HDF" {number} Dimensions="{points}">\n{place}</DataItem>'
    shape = data.shape[1:]
    start, stride = [frame, *[0] * len(shape)], [1] * data.ndim
    return f"""<DataItem ItemType="HyperSlab" Dimensions="{points}">
<DataItem Dimensions="3 {data.ndim}">{_words([*start, *stride, 1, *shape])}</DataItem>
<DataItem Format="HDF" {number} Dimensions="{_words(data.shape)}">
{place}</DataItem></DataItem>"""


def _words(values: Iterable[float]) -> str:
    return " ".join(map(str, values))
