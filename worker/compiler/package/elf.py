"""What a shared library says of itself, read from its file: nothing of it is loaded or run.

Only what the check of a kernel library needs: class, processor, own name, dynamic symbols, bytes
of initialised data.  Source: System V ABI, "Object files" and "Program loading".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MACHINES = {3: "x86", 40: "ARM", 62: "x86-64", 183: "AArch64", 243: "RISC-V", 258: "LoongArch"}
"""Processors by their number in the header; others are called by the number."""
_SHARED, _LOAD, _DYNAMIC, _DYNSYM, _SONAME = 3, 1, 6, 11, 14
_GLOBAL, _WEAK = 1, 2
_CODE_OR_DATA = frozenset({0, 1, 2, 10})


@dataclass(frozen=True, slots=True)
class Architecture:
    """What decides whether a program can load a file."""

    bits: int
    is_little: bool
    machine: int

    def __str__(self) -> str:
        order = "little" if self.is_little else "big"
        return f"{MACHINES.get(self.machine, self.machine)}, {self.bits} bits, {order} endian"


class NotElf(Exception):
    """A file is no ELF file, is damaged, or has not what is asked for."""


class ElfFile:
    """One file, read whole; every offset in it is checked."""

    def __init__(self, data: bytes) -> None:
        """Raises: NotElf."""
        self._data = data
        architecture = architecture_of(data)
        self._is_64 = architecture.bits == 64
        self._order = "<" if architecture.is_little else ">"
        (self.kind,) = self._unpack("H", 16)
        header = self._unpack("IQQQIHHHHHH" if self._is_64 else "IIIIIHHHHHH", 20)
        self._segments = _rows(self._segment, header[2], header[6], header[7])
        self._sections = _rows(self._section, header[3], header[8], header[9])

    @property
    def is_shared(self) -> bool:
        """Whether it is a shared object."""
        return self.kind == _SHARED

    def _unpack(self, form: str, offset: int) -> tuple[int, ...]:
        form = self._order + form
        if offset < 0 or offset + struct.calcsize(form) > len(self._data):
            raise NotElf("it is cut off, or points outside of itself")
        return struct.unpack_from(form, self._data, offset)

    def _segment(self, at: int) -> tuple[int, ...]:
        """(kind, offset, address, bytes in the file)"""
        if self._is_64:
            kind, _, offset, address, _, size = self._unpack("IIQQQQ", at)
        else:
            kind, offset, address, _, size = self._unpack("IIIII", at)
        return kind, offset, address, size

    def _section(self, at: int) -> tuple[int, ...]:
        """(kind, offset, bytes, linked section, bytes of an entry)"""
        form = "IIQQQQIIQQ" if self._is_64 else "IIIIIIIIII"
        _, kind, _, _, offset, size, link, _, _, entry = self._unpack(form, at)
        return kind, offset, size, link, entry

    def _table(self, kind: int) -> tuple[list[int], bytes]:
        """(offsets of the entries, strings) of the first section of a kind.

        Raises: NotElf.
        """
        found = next((s for s in self._sections if s[0] == kind), None)
        if found is None:
            raise NotElf("it has no dynamic symbols: it is no shared library, or was stripped bare")
        _, offset, size, link, entry = found
        if not entry or link >= len(self._sections) or offset + size > len(self._data):
            raise NotElf("a table of it is damaged")
        _, start, length, *_ = self._sections[link]
        return list(range(offset, offset + size - entry + 1, entry)), self._data[start:][:length]

    def symbols(self) -> Mapping[str, int]:
        """Address of every symbol that others may use, by name.

        Raises: NotElf.
        """
        places, strings = self._table(_DYNSYM)
        found: dict[str, int] = {}
        for at in places:
            if self._is_64:
                name, info, _, section, value, _ = self._unpack("IBBHQQ", at)
            else:
                name, value, _, info, _, section = self._unpack("IIIBBH", at)
            if section and info >> 4 in (_GLOBAL, _WEAK) and info & 15 in _CODE_OR_DATA:
                found[_text(strings, name)] = value
        return found

    def own_name(self) -> str:
        """By which programs that are linked with it look for it; empty: it has none.

        Raises: NotElf.
        """
        places, strings = self._table(_DYNAMIC)
        for at in places:
            tag, value = self._unpack("QQ" if self._is_64 else "II", at)
            if tag == _SONAME:
                return _text(strings, value)
        return ""

    def bytes_at(self, address: int, count: int) -> bytes:
        """Initialised data.

        Raises: NotElf.
        """
        for kind, offset, start, size in self._segments:
            if kind == _LOAD and start <= address and address + count <= start + size:
                found = self._data[offset + address - start :][:count]
                if len(found) == count:
                    return found
        raise NotElf(f"it has no {count} bytes of data at address {address:#x}")


def _rows(
    read: Callable[[int], tuple[int, ...]], start: int, size: int, count: int
) -> list[tuple[int, ...]]:
    return [read(start + k * size) for k in range(count)]


def _text(strings: bytes, at: int) -> str:
    end = strings.find(b"\0", at)
    if end < 0:
        raise NotElf("a name in it has no end")
    return strings[at:end].decode("utf-8", "replace")


def architecture_of(head: bytes) -> Architecture:
    """Of an ELF file, from its first 20 bytes.

    Raises: NotElf.
    """
    if head[:4] != b"\x7fELF" or len(head) < 20 or not {head[4], head[5]} <= {1, 2}:
        raise NotElf("it does not begin as an ELF file")
    is_little = head[5] == 1
    machine = int.from_bytes(head[18:20], "little" if is_little else "big")
    return Architecture(64 if head[4] == 2 else 32, is_little, machine)
