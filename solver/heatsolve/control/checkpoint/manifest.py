"""The manifest of a checkpoint: what belongs to it, with size and checksum of every part.

It is JSON, and it carries its own checksum, too.
"""

import json
import os
import re
import zlib
from pathlib import Path
from typing import Any

from heatsolve.control.checkpoint.part import checksum_of
from heatsolve.errors import FileFailure, InputError
from heatsolve.io.disk import failing

SCHEMA = 1
MANIFEST = "manifest.json"
FORM = {
    "heatsolve": str, "number": int, "shape": list, "fields": dict, "parts": list, "record": dict
}  # fmt: skip
FORM_OF_PART = {"name": str, "window": list, "bytes": int, "crc32": int}
NUMBER_TYPE, PART_NAME = re.compile(r"[<>|]?[fiu]\d"), re.compile(r"part-\d{4,}\.h5")


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    """Write the manifest and force it to the disk. Raises OSError if that fails."""
    with open(folder / MANIFEST, "xb") as file:
        file.write(_sealed(json.dumps({"schema": SCHEMA, **content}).encode()))
        file.flush()
        os.fsync(file.fileno())


def read_manifest(path: Path) -> dict[str, Any]:
    """The content of a checkpoint's manifest.

    Raises InputError where there is no checkpoint, FileFailure if the manifest is damaged or of
    a version that is not known here.
    """
    if not path.is_dir():
        raise InputError(f"there is no checkpoint {path}")
    if not (path / MANIFEST).exists():
        raise _damage(path, f"{MANIFEST} is missing")
    with failing("read", path / MANIFEST):
        data = (path / MANIFEST).read_bytes()
    content = data.partition(b"\n")[2][:-2]
    if data != _sealed(content):
        raise _damage(path, f"{MANIFEST} is not what was written")
    with failing("read", path / MANIFEST):
        manifest = json.loads(content)
        if not isinstance(manifest, dict) or "schema" not in manifest:
            raise ValueError("no manifest")
    if manifest["schema"] != SCHEMA:
        raise FileFailure(
            f"the checkpoint {path} is in the form {manifest['schema']} of heatsolve "
            f"{manifest.get('heatsolve')}, which is not known here"
        )
    if not _has_form(manifest):
        raise _damage(path, f"{MANIFEST} has not the form of one")
    return manifest


def _has_form(manifest: dict[str, Any]) -> bool:
    """Whether a manifest says what it should: its seal guards against accidents, not intent."""

    def fits(table: Any, form: dict[str, type]) -> bool:
        given = table if isinstance(table, dict) else {}
        return all(isinstance(given.get(key), kind) for key, kind in form.items())

    def is_window(pairs: Any) -> bool:
        return len(pairs) == len(manifest["shape"]) and all(
            isinstance(pair, list) and len(pair) == 2 and all(isinstance(n, int) for n in pair)
            for pair in pairs
        )

    return (
        fits(manifest, FORM)
        and all(isinstance(kind, str) and NUMBER_TYPE.fullmatch(kind)
                for kind in manifest["fields"].values())
        and all(fits(part, FORM_OF_PART) and PART_NAME.fullmatch(part["name"])
                and is_window(part["window"]) for part in manifest["parts"])
    )  # fmt: skip


def verify(path: Path, parts: list[dict[str, Any]]) -> None:
    """Raise FileFailure if one of the parts is not, to the last bit, what was written."""
    for part in parts:
        file = path / part["name"]
        if not file.exists():
            raise _damage(path, f"{file.name} is missing")
        with failing("read", file):
            size, checksum = checksum_of(file)
        if size != part["bytes"]:
            raise _damage(path, f"{file.name} has {size} bytes in place of {part['bytes']}")
        if checksum != part["crc32"]:
            raise _damage(path, f"{file.name} is not what was written")


def _sealed(content: bytes) -> bytes:
    return b'{"crc32": %d, "content":\n%s}\n' % (zlib.crc32(content), content)


def _damage(path: Path, what: str) -> FileFailure:
    return FileFailure(f"the checkpoint {path} is damaged: {what}")
