"""Arrays of NumPy and xarray in a case that is given as a table in Python.

A text cannot hold them, so it has `{ array = "DIGEST" }` in their places: the same text then means
the same values, in a restart and on every process.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from heatsolve.case.toml import KeyPath, dotted
from heatsolve.errors import CaseError, InputError
from heatsolve.stencil.data import array_digest

SECTIONS = ("initial", "source", "model", "boundary", "obstacle", "reference")
"""The sections in which a field may stand."""
LISTS = ("again", "positions", "values", "through")
"""Keys in these sections whose values are lists of any length."""
MOST_COORDINATES = 3
"""The most numbers of a point or a vector; an array of more numbers is a field."""


def without_arrays(value: Any, arrays: dict[str, Any], path: KeyPath = ()) -> Any:
    """A table, or a value in it, with references in place of arrays; the arrays go to `arrays`.

    Raises CaseError for an array that cannot be a field.
    """
    if isinstance(value, Mapping):
        return {k: without_arrays(v, arrays, (*path, k)) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_arrays(v, arrays, (*path, n)) for n, v in enumerate(value)]
    if hasattr(value, "coords") and value.ndim == 0:
        return value.item()
    if not _is_field(value, path):
        return value
    named = path[-1] == "array"  # in a table with more keys for the array
    try:
        name = array_digest(value)
    except InputError as error:
        raise CaseError(f"{dotted(path)}: {error}") from None
    # Later changes of the caller's own array must not change the case.
    arrays[name] = value.copy()
    return name if named else {"array": name}


def _is_field(value: Any, path: KeyPath) -> bool:
    """Whether a value is an array where a field may stand."""
    if not path or path[0] not in SECTIONS or path[-1] in LISTS:
        return False
    if not (isinstance(value, np.ndarray) or hasattr(value, "coords")):
        return False
    named = path[-1] == "array"
    return named or value.ndim > 1 or hasattr(value, "coords") or value.size > MOST_COORDINATES
