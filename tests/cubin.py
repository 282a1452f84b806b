"""What machine code of a kernel takes of a GPU: read from the ELF file that a compiler makes."""

import struct
from typing import NamedTuple


class Takes(NamedTuple):
    """Registers of a thread, bytes of shared memory that a block has itself, bytes of a stack."""

    registers: int
    shared: int
    stack: int


REGISTERS, STACK = 0x2F, 0x12
"""EIATTR_REGCOUNT and EIATTR_MIN_STACK_SIZE: a symbol's number, and its count."""
WITH_SIZE = 4
"""The format of attributes that are followed by a value of the size that they tell."""


def takes(code, name):
    """What the kernel of this name takes."""
    sections = dict(read_sections(code))
    _, info, _ = sections[f".text.{name}"]
    symbol = info & 0xFFFFFF  # the upper byte holds the registers, too
    found = {key: count for key, of, count in attributes(sections[".nv.info"][2]) if of == symbol}
    shared = sections.get(f".nv.shared.{name}", (0, 0, b""))[0]
    return Takes(found[REGISTERS], shared, found.get(STACK, 0))


OPERATIONS = {0x20: "mul", 0x21: "add", 0x23: "fma", 0x28: "mul", 0x29: "add", 0x2B: "fma"}
"""Floating-point operations, single and double, by the last byte of an instruction (sm_70 on)."""


def operations(code, name):
    """The floating-point operations in the instructions of a kernel, of 16 bytes each."""
    text = dict(read_sections(code))[f".text.{name}"][2]
    return [OPERATIONS[text[at]] for at in range(0, len(text), 16) if text[at] in OPERATIONS]


def read_sections(code):
    """Names of sections; their sizes, what their headers call info, and their bytes."""
    (begins,) = struct.unpack_from("<Q", code, 0x28)
    size, count, names = struct.unpack_from("<HHH", code, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", code, begins + n * size) for n in range(count)]
    strings = headers[names][4]
    for name, kind, _, _, at, length, _, info, _, _ in headers:
        text = code[strings + name : code.index(b"\0", strings + name)].decode()
        yield text, (length, info, b"" if kind == 8 else code[at : at + length])


def attributes(info):
    """The attributes of kernels: key, the number of a symbol, and a count."""
    at = 0
    while at < len(info):
        form, key, size = struct.unpack_from("<BBH", info, at)
        if form == WITH_SIZE and key in (REGISTERS, STACK):
            yield key, *struct.unpack_from("<II", info, at + 4)
        at += 4 + (size if form == WITH_SIZE else 0)
