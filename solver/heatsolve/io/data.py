"""Fields of a case from files: HDF5 (results of heatsolve among them), netCDF-4, NPY, CSV, images.

`connect` opens all files that a case names. HDF5, netCDF-4 and NPY files are read window by window,
CSV files and images as a whole.
"""

import csv
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from heatsolve.case.case import SIDES, Case
from heatsolve.errors import InputError
from heatsolve.io.disk import failing
from heatsolve.io.layout import field_names
from heatsolve.io.reader import field_of, opened
from heatsolve.parallel.ranks import Ranks
from heatsolve.report import printable
from heatsolve.stencil.data import TIME, Data, Samples, arranged, array_samples, digest, pieces
from heatsolve.stencil.expressions import suggestion
from heatsolve.stencil.grid import AXIS_NAMES, Grid
from heatsolve.stencil.solid import Solid

CF = ("scale_factor", "add_offset", "_FillValue", "missing_value")
"""Attributes by which netCDF packs values: value = scale_factor * stored + add_offset."""
FILES = ("file", "image", "solid")
HOW = {
    "linear": "interpolated linearly",
    "nearest": "each point takes the nearest one",
    "conservative": "averaged over cells",
}
"""Words for the interpolation of values to the points of another grid."""
COUNTED = "This is a netCDF dimension but not a netCDF variable"
"""The name that netCDF gives an axis without positions."""
HEADER = " (a header needs columns x, y, z or t, in lower case, and a field)"
"""A hint for a CSV file without a header."""
NETCDF_3 = b"CDF"
"""The first bytes of a netCDF-3 file."""


def connect(case: Case, grid: Grid) -> None:
    """Open all data of a case, for its grid.

    Raises InputError, with the key, for a file that is missing, lacks the field or does not cover
    the grid, and FileFailure for a file that cannot be read.
    """
    axes = [axis.name for axis in grid.axes]
    end = case.time.end if case.time is not None else None
    for key, data in case.data():
        section, side, *_ = key.split(".")
        across = SIDES.get(side) if section == "boundary" else None
        try:
            data.connect(key, _samples(data, axes, across, case.arrays), grid, end)
        except InputError as error:
            said = str(error)
            raise InputError(said if said.startswith(f"{key}: ") else f"{key}: {said}") from None


def make_digests(case: Case, ranks: Ranks) -> None:
    """Make the digest of each field of data; each process reads a share (asks all processes)."""
    for _, data in case.data():
        assert data.samples is not None
        windows = pieces(data.samples)
        first, stop = (len(windows) * n // ranks.size for n in (ranks.rank, ranks.rank + 1))
        shares = ranks.gather(data.sums(windows[first:stop]))
        data.set_digest(digest(data.samples, [each for share in shares for each in share]))


def refuse_other_data(before: object, now: Mapping[str, str]) -> None:
    """Raise InputError if digests `now` of the data differ from a checkpoint's digests `before`."""
    known = before if isinstance(before, dict) else {}
    for key, value in now.items():
        if not key.startswith("reference.") and known.get(key, value) != value:
            raise InputError(
                f"{key}: the data are not those of the checkpoint, their digest was "
                f"{known[key]} and is {value}; restore the file (--overwrite starts anew)"
            )


def described(key: str, data: Data, grid: Grid) -> str:
    """A line of the log: the values of a field, and their interpolation to the grid."""
    assert data.samples is not None
    if isinstance(data, Solid):
        return f"{key}: {data.text}, {data.samples.shape[0]} triangles, {data.extent}"
    in_time = data.samples.axes[0] == "t"
    times, extents = data.samples.shape[:in_time], data.samples.shape[in_time:]
    parts = [data.text, *(f"{count} times" for count in times)]
    if extents:
        parts.append(" x ".join(map(str, reversed(extents))) + " points")
        met = data.interpolation != "nearest" and data.meets(grid)
        parts.append("point by point" if met else HOW[data.interpolation])
    return f"{key}: {', '.join(parts)}"


def file_of(data: Data) -> Path | None:
    """The file that holds some data; None for an array from Python."""
    return next((data.folder / str(data.given[key]) for key in FILES if key in data.given), None)


def _samples(
    data: Data, axes: Sequence[str], across: str | None, arrays: Mapping[str, Any]
) -> Samples:
    """The values of a field for a case with these axes, slowest first. `across`: the axis normal to
    the wall, for a field on a wall."""
    given = data.given
    if "array" in given:
        if given["array"] not in arrays:
            raise InputError(
                f"the array {given['array']} was given from Python, and is not in the case's text: "
                "give it again"
            )
        array = arrays[given["array"]]
        return array_samples(array, axes, across, _frame(given, getattr(array, "coords", {})))
    path = file_of(data)
    assert path is not None
    with failing("read", path):
        if path.is_dir():
            raise InputError(f"{path} is a folder: name a file in it")
        if not path.is_file():
            raise InputError(f"there is no file {path}")
        if "image" in given:
            return _image(path, given, axes)
        if "solid" in given:
            return _solid(path)
        if path.suffix == ".npy":
            return _npy(path, given, axes, across)
        if path.suffix in (".csv", ".txt", ".dat"):
            return _csv(path, given, axes, across)
        if h5py.is_hdf5(path):
            return _hdf5(path, given, axes, across)
        with path.open("rb") as file:
            if file.read(3) == NETCDF_3:
                raise InputError(
                    f"{path} is netCDF-3: convert it, for example by nccopy -k netCDF-4"
                )
    raise InputError(f"{path} is none of HDF5, netCDF-4, NPY (.npy) and CSV (.csv)")


def _no_field(path: Path, given: Mapping[str, Any]) -> None:
    for key in ("field", "time"):
        if key in given:
            start = " (initial.file needs a file with named fields)" if key == "field" else ""
            raise InputError(f"{path} holds one array: leave {key} out{start}")


# ---- arrays and tables ---------------------------------------------------------------------------


def _npy(path: Path, given: Mapping[str, Any], axes: Sequence[str], across: str | None) -> Samples:
    _no_field(path, given)
    try:
        array = np.lib.format.open_memmap(path, mode="r")  # refuses objects of Python
    except ValueError as error:
        raise InputError(f"{path} is no NPY file of numbers: {error}") from None
    if array.dtype.kind not in "fiub":
        raise InputError(f"{path} holds {array.dtype}, not real numbers")
    unknown = [None] * array.ndim

    def load(key: tuple[Any, ...]) -> np.ndarray:
        return np.array(array[key])  # in memory, whatever becomes of the file

    return _of_file(path, load, array.shape, unknown, unknown, array.dtype, axes, across)


def _of_file(path: Path, *args: Any) -> Samples:
    try:
        return arranged(*args)
    except InputError as error:
        raise InputError(f"{path} {error}") from None


def _csv(path: Path, given: Mapping[str, Any], axes: Sequence[str], across: str | None) -> Samples:
    """A table with the columns t, x, y, z and fields, its rows in any order; or a bare matrix,
    whose first row is the lowest."""
    if "time" in given:
        raise InputError(f"{path}: a table has its times in a column t: leave time out")
    header, table, lines_at = _table(path)
    named = bool(header)
    if not named:
        _no_field(path, given)
        lines = 1 if len(axes) == 1 or (across is not None and len(axes) == 2) else 2
        table = table.reshape(-1) if 1 in table.shape and lines == 1 else table
        unknown = [None] * table.ndim
        get = table.__getitem__
        return _of_file(path, get, table.shape, unknown, unknown, table.dtype, axes, across)
    own = [axis for axis in ("t", *reversed(AXIS_NAMES)) if axis in header]
    fields = [word for word in header if word not in ("t", *AXIS_NAMES)]
    if again := next((word for n, word in enumerate(header) if word in header[:n]), None):
        raise InputError(f"{path} has two columns {again}")
    name = _chosen(path, given, fields)
    if not {"t", *axes} & set(own):
        raise InputError(f"{path} has none of the columns {', '.join(['t', *reversed(axes)])}")
    for word in own:
        column = table[:, header.index(word)]
        if not (sound := np.isfinite(column)).all():
            n = int(np.argmin(sound))
            raise InputError(
                f"{path}, line {lines_at[n]}: {word} is {column[n]:g}, positions must be finite"
            )
    found = [np.unique(table[:, header.index(axis)], return_inverse=True) for axis in own]
    shape = tuple(line.size for line, _ in found)
    values = np.full(shape, np.nan)
    places = tuple(index.reshape(-1) for _, index in found)
    if len(table) != values.size or len(set(zip(*places, strict=True))) != values.size:
        raise InputError(
            f"{path} has {len(table)} points, which are no grid of {' x '.join(map(str, shape))}"
        )
    values[places] = table[:, header.index(name)]
    along, get = [line for line, _ in found], values.__getitem__
    return _of_file(path, get, shape, own, along, values.dtype, axes, across, None)


def _table(path: Path) -> tuple[list[str], np.ndarray, list[int]]:
    """The header of a CSV file (empty if it has none), its numbers, and the line of each row."""
    try:
        written = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"{path} is no text in UTF-8: save it as UTF-8") from None
    text = [(n, line) for n, line in enumerate(written, start=1) if line.strip()]
    # NumPy begins the lines of a header with "#", like comments; one of them may name the columns.
    first, begin = text[0] if text else (0, "")
    top = list(itertools.takewhile(lambda each: each[1].lstrip().startswith("#"), text))
    text = [(n, line) for n, line in text if not line.lstrip().startswith("#")]
    if text:
        values = text[0][1]
        count = len(_split(values, values))
        for n, line in top:
            words = _split(line.lstrip("# "), values)
            if len(words) == count and {"t", *AXIS_NAMES} & set(words):
                first, begin = n, line.lstrip()
    if begin.startswith("#") and {"t", *AXIS_NAMES} & set(re.split(r"\W+", begin)):
        text.insert(0, (first, begin.lstrip("# ")))
    if not text:
        raise InputError(f"{path} is empty")
    mark = _mark(text[0][1])
    rows = csv.reader([line for _, line in text], delimiter=mark, skipinitialspace=True)
    try:
        cells = [[cell.strip() for cell in row] for row in rows]
    except csv.Error as error:
        raise InputError(f"{path}, line {text[rows.line_num - 1][0]}: {error}") from None
    if len(cells) < len(text):
        raise InputError(f"{path} has a quotation mark without its other")
    header, numbers = cells[0], [n for n, _ in text]
    width = len(header) - (not header[-1])
    named = any(word in ("t", *AXIS_NAMES) for word in header)
    words = [word.strip() for word in begin.lstrip("# ").lower().split(mark.strip() or None)]
    if not named and len(words) == width and {"time", *AXIS_NAMES} & set(words):
        said = printable(begin[:40])
        raise InputError(f'{path}, line {first}: "{said}" is no header{HEADER}')
    if named and len(cells) == 1:
        raise InputError(f"{path} has a header and no rows")
    table = np.empty((len(cells) - named, width))
    for row, n in zip(range(len(table)), numbers[named:], strict=True):
        given = cells[row + named]
        if len(given) == width + 1 and not given[-1]:
            given = given[:-1]  # the row ends with a comma
        for column, cell in enumerate(given[:width]):
            try:
                table[row, column] = float(cell)
            except ValueError:
                said = _no_number(cell) + HEADER * (row == 0 and not named and cell[:1].isalpha())
                raise InputError(f"{path}, line {n}, column {column + 1}: {said}") from None
        if len(given) != width:
            raise InputError(f"{path}, line {n}: has {len(given)} cells, the first row has {width}")
    return header[:width] if named else [], table, numbers[named:]


def _mark(line: str) -> str:
    """The mark between the cells of a line."""
    return next((each for each in (";", ",", "\t") if each in line), " ")


def _split(line: str, like: str) -> list[str]:
    """The cells of a line, divided by the mark of the line `like`."""
    return [cell.strip() for cell in line.split(_mark(like).strip() or None)]


def _no_number(cell: str) -> str:
    """The message for a cell of a CSV file that holds no number."""
    if not cell:
        return "is empty"
    decimal = re.fullmatch(r"[-+]?\d+,\d+(e[-+]?\d+)?", cell, re.I)
    return f'"{printable(cell[:40])}" is no number' + (": write 1.5, not 1,5" if decimal else "")


def _chosen(path: Path, given: Mapping[str, Any], fields: Sequence[str]) -> str:
    """The field that a case names, or the only one."""
    if "field" not in given and len(fields) == 1:
        return fields[0]
    name = given.get("field")
    if name in fields:
        return str(name)
    if not fields:
        raise InputError(f"{path} has no field")
    has = f"only {', '.join(fields)}" if len(fields) < 20 else f"but {len(fields)} others"
    if name is None:
        raise InputError(f"{path} has several fields: give field, one of {', '.join(fields)}")
    raise InputError(f'{path} has no field "{name}"{suggestion(name, fields)}, {has}')


# ---- HDF5 and netCDF-4 ---------------------------------------------------------------------------


def _hdf5(path: Path, given: Mapping[str, Any], axes: Sequence[str], across: str | None) -> Samples:
    with _file(path) as (file, ours):
        wanted = dict(given)
        if "field" in given:
            wanted["field"] = given["field"].strip("/")
        field = _chosen(path, wanted, field_names(file) if ours else _numbers(file))
        about: Any = file[field]
        dims, lines = [], []
        for dimension in about.dims:
            name, line = dimension.label or None, None
            if len(dimension):
                name, line = dimension[0].name.rpartition("/")[2], _positions(dimension[0])
            dims.append(name)
            lines.append(line)
        packing = {key: float(np.ravel(about.attrs[key])[0]) for key in CF if key in about.attrs}
        known = zip(dims, about.dims, lines, strict=True)
        frame = _frame(given, {name: axis[0] for name, axis, line in known if line is not None})
        shape, dtype = about.shape, np.dtype(float) if packing else about.dtype

    def load(key: tuple[Any, ...]) -> np.ndarray:
        # The file was examined when its axes were read.
        with failing("read", path), h5py.File(path, "r", locking="best-effort") as file:
            dataset = field_of(file, field) if ours else file[field]
            return _unpacked(np.asarray(dataset[key]), packing)

    return _of_file(path, load, shape, dims, lines, dtype, axes, across, frame)


def _numbers(file: h5py.File) -> list[str]:
    """The datasets of numbers, at any depth, that are no axes."""
    result = []

    def look(name: str, item: Any) -> None:
        field = isinstance(item, h5py.Dataset) and item.dtype.kind in "fiu" and item.ndim > 0
        if field and not item.is_scale:
            result.append(name)

    file.visititems(look)
    return result


def _positions(scale: h5py.Dataset) -> np.ndarray | None:
    """The positions along an axis; None for a dimension that netCDF only counts."""
    counts = str(scale.attrs.get("NAME", b"")).strip("b'").startswith(COUNTED)
    numbers = scale.ndim == 1 and scale.dtype.kind in "fiu"
    return np.asarray(scale[:], np.float64) if numbers and not counts else None


@contextmanager
def _file(path: Path) -> Iterator[tuple[h5py.File, bool]]:
    """An open file, and whether it is a result of heatsolve: a result is examined first, and its
    values may lie in parts."""
    with h5py.File(path, "r", locking="best-effort") as file:
        ours = "heatsolve_version" in file.attrs
        if not ours:
            yield file, ours
    if ours:
        with opened(path) as file:
            yield file, ours


def _frame(given: Mapping[str, Any], lines: Mapping[Any, Any]) -> int | None:
    """The number of the frame nearest to the time in `given`, the last one if no time is given;
    None where the values vary in time. `lines`: the positions along the axes, by name; in netCDF
    their attribute `units` may name a date from which they count."""
    if "time" not in given:
        return -1
    line = next((lines[name] for name in TIME if name in lines), None)
    if line is None:
        raise InputError("there is no axis of times with values: leave time out")
    if (kind := np.asarray(line).dtype.kind) not in "fiu":
        said = {"M": "dates", "m": "durations"}.get(kind, "no numbers")
        raise InputError(f"its times are {said}: give numbers, in the case's unit of time")
    units = getattr(line, "attrs", {}).get("units", "")
    said = units.decode() if isinstance(units, bytes) else str(units)
    if " since " in said and said.split()[0] not in ("s", "sec", "second", "seconds"):
        raise InputError(f"its times are {printable(said)}: give them in the case's unit of time")
    if given["time"] == "t":
        return None
    return int(np.argmin(np.abs(np.asarray(line, float) - given["time"])))


def _unpacked(stored: np.ndarray, packing: Mapping[str, float]) -> np.ndarray:
    """Values unpacked by netCDF's conventions, NaN where a value is missing."""
    if not packing:
        return stored
    values = stored * packing.get("scale_factor", 1.0) + packing.get("add_offset", 0.0)
    for key in ("_FillValue", "missing_value"):
        if key in packing:
            values = np.where(stored == packing[key], np.nan, values)
    return values


# ---- images --------------------------------------------------------------------------------------


def _image(path: Path, given: Mapping[str, Any], axes: Sequence[str]) -> Samples:
    """The brightness of pixels, from `black` to `white`; the last row is the lowest."""
    from PIL import Image, UnidentifiedImageError

    if len(axes) != 2:
        raise InputError(f"{path} is an image, for cases with two axes, not {len(axes)}")
    try:
        with Image.open(path) as opened_image:
            image: Image.Image = opened_image
            deep = image.mode.startswith("I;16") or (image.mode, image.format) == ("I", "PNG")
            if image.mode in ("I", "F") and not deep:
                raise InputError(
                    f"{path} is an image of 32-bit numbers, whose black and white are not known: "
                    "save it with 8 or 16 bits of grey, or its numbers as NPY"
                )
            clear = image.info.get("transparency")
            if not deep and (image.mode in ("RGBA", "LA", "PA") or clear is not None):
                paper = Image.new("RGBA", image.size, "white")
                image = Image.alpha_composite(paper, image.convert("RGBA"))
            grey = np.asarray(image if deep else image.convert("L"))
            if deep and isinstance(clear, int):
                grey = np.where(grey == clear, 65535, grey)
    except (UnidentifiedImageError, Image.DecompressionBombError, SyntaxError) as error:
        raise InputError(f"{path} is no image that can be read: {error}") from None
    black, white = given.get("black", 0.0), given.get("white", 1.0)
    share = grey.astype(float) / (65535.0 if deep else 255.0)
    values = np.where(share == 1.0, white, black + share * (white - black))[::-1]
    shape, none = values.shape, (None, None)
    return Samples(tuple(axes), shape, none, values.dtype, lambda key: values[key], cells=True)


# ---- solids --------------------------------------------------------------------------------------


def _solid(path: Path) -> Samples:
    """The triangles of a closed surface, 9 numbers each."""
    try:
        import trimesh
    except ImportError:
        raise InputError(f"{path} needs trimesh: pip install 'heatsolve[solid]'") from None
    try:
        mesh: Any = trimesh.load(path, force="mesh")  # not all versions declare its type
        corners = np.ascontiguousarray(mesh.triangles, np.float64).reshape(-1, 9)
    except Exception as error:  # trimesh has no error of its own for files that it cannot read
        raise InputError(f"{path} is no solid that trimesh can read: {error}") from None
    if not len(corners) or not np.isfinite(corners).all():
        raise InputError(f"{path} has no triangles, or some without finite corners")
    if not mesh.is_watertight or not mesh.is_winding_consistent:
        raise InputError(
            f"{path} has a surface with holes or with triangles the wrong way round: repair it, "
            "for example by trimesh.repair"
        )
    shape, none = corners.shape, (None, None)
    return Samples(("triangle", "x"), shape, none, corners.dtype, corners.__getitem__)
