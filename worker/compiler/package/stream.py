"""`regions/<k>/stream.bin`: one region as a binary instruction stream.  FORMATS.md has every byte.

Source: BYOC section 3.3, option 3 (a custom representation, with its own serialiser and reader).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from zlib import crc32

from worker.compiler.errors import InputError
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.binary import decode_program, encode_program
from worker.compiler.isa.program import Program
from worker.compiler.package.archive import damaged
from worker.compiler.package.region_code import DataEntry, EntryRole, RegionCall, RegionCode
from worker.compiler.package.stream_checks import check_region

STREAM_VERSION = 1
MAGIC = b"TWSTREAM"
HEADER = struct.Struct("<8sIIQIIIIIIII")
"""magic, version, checksum, bytes in all, region, target, function, and the counts of strings,
entries, units, calls, and a zero."""
CHECKED_FROM = 16
"""The checksum covers everything from this byte on."""
NO_ALIAS = 0xFFFFFFFF
_ENTRY = struct.Struct("<IBBHIIQQ")
_CALL = struct.Struct("<IIIIQ")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_DTYPES = tuple(DType)
_MAX_RANK = 64


def encode_stream(code: RegionCode) -> bytes:
    """Bytes of a region's stream.  Same region, same bytes.  Cost: one copy of the programs."""
    strings: dict[str, int] = {}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    target, function = text(code.target), text(code.function)
    body: list[bytes] = []
    for entry in code.entries:
        alias = NO_ALIAS if entry.alias_of is None else entry.alias_of
        body.append(
            _ENTRY.pack(
                text(entry.name), _DTYPES.index(DType(entry.dtype)), int(entry.role),
                len(entry.shape), alias, 0, entry.address, entry.size_bytes,
            )
        )  # fmt: skip
        body.append(struct.pack(f"<{len(entry.shape)}Q", *entry.shape))
    body += [_U32.pack(text(name)) for name in code.kernels]
    for call in code.calls:
        nodes = [text(node) for node in call.onnx_nodes]
        body.append(
            _CALL.pack(
                call.unit, text(call.op_type), len(call.entries), len(nodes), call.launch_cycles
            )
        )
        body.append(struct.pack(f"<{len(call.entries) + len(nodes)}I", *call.entries, *nodes))
    programs = encode_program(Program(code.units, (), 0, 0, 0))
    packed = [name.encode() for name in strings]
    content = b"".join(
        [
            *(_U32.pack(len(raw)) + raw for raw in packed),
            *body,
            _U64.pack(len(programs)),
            programs,
        ]
    )
    total = HEADER.size + len(content)
    counts = (len(strings), len(code.entries), len(code.units), len(code.calls), 0)
    head = HEADER.pack(MAGIC, STREAM_VERSION, 0, total, code.index, target, function, *counts)
    checksum = crc32(content, crc32(head[CHECKED_FROM:]))
    return head[: CHECKED_FROM - 4] + _U32.pack(checksum) + head[CHECKED_FROM:] + content


def decode_stream(data: bytes) -> RegionCode:
    """Read a region's stream, checking everything a reader relies on.

    Raises:
        InputError: TW-RUN-001 when the bytes are not a whole, undamaged stream of this version, or
            an id points outside its table.
    Cost: linear; memory grows with the bytes given, never with what they claim.
    """
    if data[: len(MAGIC)] != MAGIC:
        raise damaged("the stream does not start with its magic number")
    if len(data) < HEADER.size:
        raise _short(HEADER.size, len(data))
    (
        _, version, checksum, total, index, target, function,
        num_strings, num_entries, num_units, num_calls, zero,
    ) = HEADER.unpack_from(data)  # fmt: skip
    if version != STREAM_VERSION:
        raise damaged(f"the stream has version {version}, this reader knows {STREAM_VERSION}")
    if total != len(data):
        raise _short(total, len(data))
    if crc32(data[CHECKED_FROM:]) != checksum:
        raise damaged("the stream does not match its checksum")
    if zero:
        raise damaged("the stream's reserved field is not zero")
    reader = _Reader(data, HEADER.size)
    strings = [reader.string() for _ in range(num_strings)]
    table = _Strings(strings)
    entries = tuple(reader.entry(table) for _ in range(num_entries))
    kernels = tuple(table.at(reader.u32(), "kernel") for _ in range(num_units))
    calls = tuple(reader.call(table) for _ in range(num_calls))
    programs = reader.take(reader.u64())
    if reader.position != len(data):
        raise _short(reader.position, len(data))
    code = RegionCode(
        index, table.at(target, "target"), table.at(function, "function"), entries,
        decode_program(programs).units, kernels, calls,
    )  # fmt: skip
    check_region(code)
    return code


class _Strings:
    """The string table; ids are checked."""

    def __init__(self, strings: list[str]) -> None:
        self._strings = strings

    def at(self, number: int, what: str) -> str:
        if number >= len(self._strings):
            raise damaged(
                f"the stream's {what} is string {number}, it has {len(self._strings)} strings"
            )
        return self._strings[number]


class _Reader:
    """Takes fields off the front of the bytes."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = memoryview(data)
        self.position = position

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self._data):
            raise _short(end, len(self._data))
        found = bytes(self._data[self.position : end])
        self.position = end
        return found

    def fields(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self.take(form.size))

    def numbers(self, letter: str, count: int) -> tuple[int, ...]:
        size = struct.calcsize(f"<{letter}")
        return struct.unpack(f"<{count}{letter}", self.take(size * count))

    def u32(self) -> int:
        return self.fields(_U32)[0]

    def u64(self) -> int:
        return self.fields(_U64)[0]

    def string(self) -> str:
        raw = self.take(self.u32())
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise damaged(f"a string of the stream is not UTF-8: {error}") from error

    def entry(self, table: _Strings) -> DataEntry:
        name, dtype, role, rank, alias, zero, address, size_bytes = self.fields(_ENTRY)
        if dtype >= len(_DTYPES) or role >= len(EntryRole) or rank > _MAX_RANK or zero:
            raise damaged(
                f"a data entry of the stream has element type {dtype}, role {role}, rank {rank},"
                f" reserved field {zero}"
            )
        shape = self.numbers("Q", rank)
        return DataEntry(
            table.at(name, "entry"), EntryRole(role), str(_DTYPES[dtype]), shape, address,
            size_bytes, None if alias == NO_ALIAS else alias,
        )  # fmt: skip

    def call(self, table: _Strings) -> RegionCall:
        unit, op_type, num_entries, num_nodes, launch_cycles = self.fields(_CALL)
        entries = self.numbers("I", num_entries)
        nodes = _texts(self.numbers("I", num_nodes), table)
        return RegionCall(unit, entries, launch_cycles, table.at(op_type, "operator"), nodes)


def _texts(numbers: Iterable[int], table: _Strings) -> tuple[str, ...]:
    return tuple(table.at(number, "node") for number in numbers)


def _short(expected: int, actual: int) -> InputError:
    return InputError(
        "TW-RUN-001", f"the stream has {actual} bytes, its fields promise {expected}",
        limit=expected, actual=actual,
    )  # fmt: skip
