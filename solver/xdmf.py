"""XDMF: the sidecar that tells ParaView where the fields lie in an HDF5 file."""

from collections.abc import Iterable
from typing import Any
from xml.sax.saxutils import escape

import numpy as np


def xdmf(name: str, file: Any, fields: Iterable[str]) -> str:
    """The XDMF 3 text that shows ParaView some fields of the 2D or 3D HDF5 `file` called `name`."""
    # Slowest axis first. 2D is one plane of a 3D mesh: ParaView lays a 2DCoRectMesh into yz.
    lines = [file[axis][:] if axis in file else np.zeros(1) for axis in ("z", "y", "x")]
    spacing = [np.ptp(line) / max(len(line) - 1, 1) or 1 for line in lines]
    mesh = f"""<Topology TopologyType="3DCoRectMesh" Dimensions="{_words(map(len, lines))}"/>
<Geometry GeometryType="ORIGIN_DXDYDZ">
<DataItem Dimensions="3" Precision="8">{_words(line[0] for line in lines)}</DataItem>
<DataItem Dimensions="3" Precision="8">{_words(spacing)}</DataItem>
</Geometry>"""
    datasets = {field: file[field] for field in fields}
    grids, kinds = "", {"f": "Float", "i": "Int", "u": "UInt"}
    for frame, time in enumerate(file.get("time", [None])):
        clock = f'<Time Value="{time}"/>\n' if time is not None else ""
        grids += f'<Grid Name="frame {frame}">\n{clock}{mesh}\n'
        for field, data in datasets.items():
            number = f'NumberType="{kinds[data.dtype.kind]}" Precision="{data.dtype.itemsize}"'
            item = f"""<DataItem Format="HDF" {number} Dimensions="{_words(data.shape)}">
{escape(name)}:/{field}</DataItem>"""
            if time is not None:
                shape = data.shape[1:]
                start, stride = [frame, *[0] * len(shape)], [1] * data.ndim
                item = f"""<DataItem ItemType="HyperSlab" Dimensions="{_words(shape)}">
<DataItem Dimensions="3 {data.ndim}">{_words([*start, *stride, 1, *shape])}</DataItem>
{item}</DataItem>"""
            grids += f'<Attribute Name="{field}" Center="Node">\n{item}\n</Attribute>\n'
        grids += "</Grid>\n"
    if "time" in file:
        grids = f'<Grid GridType="Collection" CollectionType="Temporal">\n{grids}</Grid>\n'
    return f'<Xdmf Version="3.0">\n<Domain>\n{grids}</Domain>\n</Xdmf>\n'


def _words(values: Iterable[float]) -> str:
    return " ".join(map(str, values))
