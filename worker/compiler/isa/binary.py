"""program.bin: a Program as bytes, the same bytes for the same value.

Layout: magic `TWPROG08`, header length (u64, little endian), header (MessagePack: everything but
arrays, with array lengths), then each unit's arrays one after another, each padded to 8 bytes:
instructions, wait_ptr, wait_token, signal_ptr, signal_token, then its loops and their strides
(`isa.loops`): table, stride, wait_stride, signal_stride.  All numbers little endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from worker.compiler.errors import InputError
from worker.compiler.isa.loops import LOOP, NO_LOOPS, STRIDE, Loops
from worker.compiler.isa.program import (
    INSTRUCTION,
    Buffer,
    HostCall,
    Operand,
    Program,
    Resource,
    Stream,
    UnitCall,
    UnitProgram,
)

PROGRAM_MAGIC = b"TWPROG08"
_PREFIX = struct.Struct("<8sQ")
_INT32 = np.dtype("<i4")
_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True)
class _UnitHeader:
    signature: str
    operands: tuple[Operand, ...]
    buffers: tuple[Buffer, ...]
    streams: tuple[Stream, ...]
    resources: tuple[Resource, ...]
    nodes: tuple[str, ...]
    num_rows: int
    num_waits: int
    num_signals: int
    num_tokens: int
    num_loops: int
    depth: int


@dataclass(frozen=True, slots=True)
class _Call:
    """Exactly one is set."""

    unit: UnitCall | None
    host: HostCall | None


@dataclass(frozen=True, slots=True)
class _Header:
    units: tuple[_UnitHeader, ...]
    calls: tuple[_Call, ...]
    home_bytes: int
    weight_bytes: int
    peak_activation_bytes: int


def encode_program(program: Program) -> bytes:
    """Bytes of program.bin.  Cost: one copy of the arrays."""
    return b"".join(program_parts(program))


def program_parts(program: Program) -> list[bytes | memoryview]:
    """The bytes of program.bin in pieces, none of which is a copy of an array."""
    header = msgspec.msgpack.encode(
        _Header(
            tuple(_unit_header(unit) for unit in program.units),
            tuple(
                _Call(call, None) if isinstance(call, UnitCall) else _Call(None, call)
                for call in program.calls
            ),
            program.home_bytes,
            program.weight_bytes,
            program.peak_activation_bytes,
        )
    )
    parts: list[bytes | memoryview] = [_PREFIX.pack(PROGRAM_MAGIC, len(header)), header]
    parts.append(_padding(len(header)))
    for unit in program.units:
        for array, dtype in _arrays(unit):
            raw = np.ascontiguousarray(array, dtype=dtype).reshape(-1).view(np.uint8).data
            parts += [raw, _padding(len(raw))]
    return parts


def decode_program(data: bytes) -> Program:
    """Read program.bin.

    Raises:
        InputError: TW-RUN-001 when the bytes are not a program of this version.
    """
    if len(data) < _PREFIX.size or data[: len(PROGRAM_MAGIC)] != PROGRAM_MAGIC:
        raise InputError("TW-RUN-001", "program.bin does not start with its magic number")
    _, length = _PREFIX.unpack_from(data)
    if _PREFIX.size + length > len(data):
        raise _truncated(_PREFIX.size + length, len(data))
    try:
        header = msgspec.msgpack.decode(
            memoryview(data)[_PREFIX.size : _PREFIX.size + length], type=_Header
        )
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError("TW-RUN-001", f"program.bin has a damaged header: {error}") from error
    cursor = _Cursor(data, _PREFIX.size + length + _gap(length))
    units = tuple(_read_unit(unit, cursor) for unit in header.units)
    if cursor.position != len(data):
        raise _truncated(cursor.position, len(data))
    calls: list[UnitCall | HostCall] = []
    for call in header.calls:
        chosen = call.unit or call.host
        if chosen is None:
            raise InputError("TW-RUN-001", "program.bin has a call that names nothing")
        calls.append(chosen)
    return Program(
        units, tuple(calls), header.home_bytes, header.weight_bytes, header.peak_activation_bytes
    )


def _unit_header(unit: UnitProgram) -> _UnitHeader:
    return _UnitHeader(
        unit.signature, unit.operands, unit.buffers, unit.streams, unit.resources, unit.nodes,
        unit.num_rows, len(unit.wait_token), len(unit.signal_token), unit.num_tokens,
        len(unit.loops.table), unit.loops.depth,
    )  # fmt: skip


def _arrays(unit: UnitProgram) -> tuple[tuple[npt.NDArray[np.generic], np.dtype[np.generic]], ...]:
    return (
        (unit.instructions, INSTRUCTION),
        (unit.wait_ptr, _INT32),
        (unit.wait_token, _INT32),
        (unit.signal_ptr, _INT32),
        (unit.signal_token, _INT32),
        (unit.loops.table, LOOP),
        (unit.loops.stride, STRIDE),
        (unit.loops.wait_stride, _INT32),
        (unit.loops.signal_stride, _INT32),
    )


class _Cursor:
    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position

    def take(self, dtype: np.dtype[_Scalar], count: int) -> npt.NDArray[_Scalar]:
        """The next array; read-only because the bytes are."""
        size = dtype.itemsize * count
        if count < 0 or self.position + size > len(self.data):
            raise _truncated(self.position + size, len(self.data))
        array = np.frombuffer(self.data, dtype=dtype, count=count, offset=self.position)
        self.position += size + _gap(size)
        return array


def _read_unit(header: _UnitHeader, cursor: _Cursor) -> UnitProgram:
    count = header.num_rows
    waits, signals = header.num_waits, header.num_signals
    return UnitProgram(
        header.signature, header.operands, header.buffers, header.streams, header.resources,
        header.nodes, cursor.take(INSTRUCTION, count), cursor.take(_INT32, count + 1),
        cursor.take(_INT32, waits), cursor.take(_INT32, count + 1),
        cursor.take(_INT32, signals), header.num_tokens,
        _read_loops(cursor, header) if header.num_loops else NO_LOOPS,
    )  # fmt: skip


def _read_loops(cursor: _Cursor, header: _UnitHeader) -> Loops:
    """Raises InputError when there are none of that depth."""
    if not 0 < header.depth <= header.num_loops:
        raise InputError(
            "TW-RUN-001", f"program.bin has {header.num_loops} loops {header.depth} deep",
            limit=header.num_loops, actual=header.depth,
        )  # fmt: skip
    shape = -1, header.depth
    return Loops(
        cursor.take(LOOP, header.num_loops),
        cursor.take(STRIDE, header.num_rows * header.depth).reshape(shape),
        cursor.take(_INT32, header.num_waits * header.depth).reshape(shape),
        cursor.take(_INT32, header.num_signals * header.depth).reshape(shape),
    )


def _gap(size: int) -> int:
    return -size % 8


def _padding(size: int) -> bytes:
    return bytes(_gap(size))


def _truncated(expected: int, actual: int) -> InputError:
    return InputError(
        "TW-RUN-001", f"program.bin has {actual} bytes, its header promises {expected}",
        limit=expected, actual=actual,
    )  # fmt: skip
