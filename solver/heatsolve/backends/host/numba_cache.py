"""Keeps the machine code of functions that Numba compiles, in files of our own cache.

Numba's own cache needs a source file in a folder that can be written, takes any damaged file for
sound, and ends a run whose disk is full.
"""

import pickle
import sys
from collections.abc import Callable
from typing import Any

import llvmlite
import numba
from numba.core import serialize
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult

from heatsolve.backends import cache

VERSIONS = (numba.__version__, llvmlite.__version__, sys.version)


class Kept(_Cache):
    """The machine code of one function: a file for each signature.

    digest: of all that the function depends on but its types, the processor and the compiler.
    """

    def __init__(self, name: str, digest: str):
        self._name, self._digest = name, digest

    cache_path = ""

    def _file(self, signature: Any, codegen: Any) -> str:
        parts = (self._digest, self._name, signature, codegen.magic_tuple(), *VERSIONS)
        return f"heatsolve_{self._name}_{cache.digest(*parts)}.nbc"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        content = cache.read(self._file(sig, target_context.codegen()))
        if content is None:
            return None
        return CompileResult._rebuild(target_context, *pickle.loads(content))

    def save_overload(self, sig: Any, data: Any) -> None:
        if not data.library.has_dynamic_globals:
            content = serialize.dumps(data._reduce())
            cache.write(self._file(sig, data.codegen), content)

    def enable(self) -> None:
        """It always is."""

    def disable(self) -> None:
        """Never."""

    def flush(self) -> None:
        """Files stay."""


def kept(digest: str, *signatures: Any, **options: Any) -> Callable[[Any], Any]:
    """Numba's `njit`, with the machine code kept in our cache; see `Kept` for the digest."""

    def compiled(function: Any) -> Any:
        dispatcher = numba.njit(**options)(function)
        dispatcher._cache = Kept(function.__name__, digest)
        for signature in signatures:
            dispatcher.compile(signature)
        if signatures:
            dispatcher.disable_compile()
        return dispatcher

    return compiled
