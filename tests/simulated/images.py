"""Images of device code, made by hand: just enough of a cubin, a fat binary and PTX for a driver to find its way."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

PROGBITS, SYMTAB, STRTAB, NOBITS = 1, 2, 3, 8
FAT_MAGIC, WRAPPER_MAGIC = 0xBA55ED50, 0x466243B1
LZ4 = 0x2000


@dataclass(frozen=True)
class Kernel:
    name: str
    params: tuple[int, ...] = ()  # the sizes
    registers: int = 16
    shared: int = 0
    max_threads: int = 0


@dataclass(frozen=True)
class Variable:
    name: str
    size: int
    initial: bytes = b""
    managed: bool = False
    constant: bool = False


@dataclass
class _Section:
    name: str
    kind: int
    data: bytes = b""
    size: int | None = None
    link: int = 0
    info: int = 0
    entry: int = 0


class _Strings:
    def __init__(self) -> None:
        self.bytes = bytearray(b"\0")

    def add(self, text: str) -> int:
        at = len(self.bytes)
        self.bytes += text.encode() + b"\0"
        return at


def _attributes(kernel: Kernel) -> bytes:
    found, offset = b"", 0
    for ordinal, size in enumerate(kernel.params):
        offset = -(-offset // size) * size
        found += struct.pack("<BBHIHHI", 4, 0x17, 12, 0, ordinal, offset, size << 18 | 0x1F000)
        offset += size
    if kernel.max_threads:
        found += struct.pack("<BBHIII", 4, 0x05, 12, kernel.max_threads, 1, 1)
    return found


@dataclass
class _Cubin:
    sections: list[_Section] = field(default_factory=lambda: [_Section("", 0)])
    symbols: bytes = bytes(24)
    names: _Strings = field(default_factory=_Strings)

    def add(self, section: _Section) -> int:
        self.sections.append(section)
        return len(self.sections) - 1

    def symbol(self, name: str, *, info: int, other: int, section: int, value: int, size: int) -> None:
        self.symbols += struct.pack("<IBBHQQ", self.names.add(name), info, other, section, value, size)

    def kernel(self, kernel: Kernel) -> None:
        text = self.add(_Section(f".text.{kernel.name}", PROGBITS, bytes(16), info=kernel.registers << 24))
        self.add(_Section(f".nv.info.{kernel.name}", 0x70000000, _attributes(kernel)))
        if kernel.shared:
            self.add(_Section(f".nv.shared.{kernel.name}", NOBITS, size=kernel.shared))
        self.symbol(kernel.name, info=0x12, other=0x10, section=text, value=0, size=16)

    def variable(self, variable: Variable) -> None:
        where = ".nv.constant3" if variable.constant else ".nv.global.init" if variable.initial else ".nv.global"
        kind = NOBITS if where == ".nv.global" else PROGBITS
        data = variable.initial.ljust(variable.size, b"\0") if kind == PROGBITS else b""
        section = self.add(_Section(where, kind, data, size=variable.size))
        other = 4 if variable.managed else 0
        self.symbol(variable.name, info=1, other=other, section=section, value=0, size=variable.size)

    def bytes(self, architecture: int) -> bytes:
        strings = self.add(_Section(".strtab", STRTAB, bytes(self.names.bytes)))
        self.add(_Section(".symtab", SYMTAB, self.symbols, link=strings, entry=24))
        names = _Strings()
        offsets = [names.add(section.name) for section in self.sections] + [names.add(".shstrtab")]
        self.sections.append(_Section(".shstrtab", STRTAB, bytes(names.bytes)))
        data, headers = b"", b""
        for name, s in zip(offsets, self.sections, strict=True):
            size = len(s.data) if s.size is None else s.size
            headers += struct.pack("<IIQQQQIIQQ", name, s.kind, 0, 0, 64 + len(data), size, s.link, s.info, 1, s.entry)
            data += s.data
        ident = b"\x7fELF\x02\x01\x01\x41\x08" + bytes(7)
        count = len(self.sections)
        header = struct.pack(
            "<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(data), architecture << 8, 64, 0, 0, 64, count, count - 1
        )
        return ident + header + data + headers


def cubin(*parts: Kernel | Variable, architecture: int = 80) -> bytes:
    """A cubin of a device of that architecture with these kernels and variables."""
    made = _Cubin()
    for part in parts:
        if isinstance(part, Kernel):
            made.kernel(part)
        else:
            made.variable(part)
    return made.bytes(architecture)


def entry(data: bytes, *, kind: int = 2, architecture: int = 80, flags: int = 0x11) -> bytes:
    """One image in a fat binary: kind 1 is PTX, 2 a cubin."""
    data += bytes(-len(data) % 8)
    header = struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 64, len(data), 0, 0, 8, 1, architecture, 0, 0, flags, 0, 0)
    return header + data


def fat_binary(*entries: bytes) -> bytes:
    data = b"".join(entries)
    return struct.pack("<IHHQ", FAT_MAGIC, 1, 16, len(data)) + data


def wrapper(fat: int) -> bytes:
    """What compiled programs hold of a fat binary at that address."""
    return struct.pack("<IIQQ", WRAPPER_MAGIC, 1, fat, 0)


PTX = b"""
// A comment with .entry nothing() in it
.version 9.0
.target sm_75
.address_size 64
.extern .global .u32 elsewhere;
.global .align 4 .u32 counter = 7;
.const .align 8 .f64 factors[2] = {0d3FF0000000000000, 0d4000000000000000};
.global .attribute(.managed) .u32 shared_counter;
.func (.param .b32 r) helper(.param .b32 x) { ret; }
.visible .entry saxpy(
    .param .u64 .ptr .global .align 16 saxpy_y,
    .param .f32 saxpy_a,
    .param .align 8 .b8 saxpy_s[24]
)
.maxntid 128, 2, 1
{
    .shared .align 4 .b8 tile[256];
    { ret; }
}
.entry nothing() { ret; }
\0"""
