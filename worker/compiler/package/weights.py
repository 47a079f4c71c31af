"""`weights.safetensors`, written and read as a stream.

The safetensors library wants all tensors in memory at once; a bundle may hold gigabytes of weights,
so the (very small) format is produced here, one tensor at a time, in address order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

import msgspec
import numpy as np

from worker.compiler.errors import InternalError
from worker.compiler.ir.dtype import DType
from worker.compiler.package.archive import Member, damaged
from worker.compiler.package.executable import Array, Constants, HomeTensor

WEIGHTS_NAME = "weights.safetensors"
_TYPE_NAME = {
    DType.F64: "F64", DType.F32: "F32", DType.F16: "F16", DType.BF16: "BF16", DType.I64: "I64",
    DType.I32: "I32", DType.I16: "I16", DType.I8: "I8", DType.U64: "U64", DType.U32: "U32",
    DType.U16: "U16", DType.U8: "U8", DType.BOOL: "BOOL", DType.F8E4M3FN: "F8_E4M3",
    DType.F8E5M2: "F8_E5M2", DType.F8E4M3FNUZ: "U8", DType.F8E5M2FNUZ: "U8", DType.F4E2M1: "U8",
    DType.I4: "I8", DType.U4: "U8", DType.I2: "I8", DType.U2: "U8",
}  # fmt: skip
"""Names of the safetensors format; a type that it has not is named as the bytes it lies in."""
_HEADER_LIMIT_BYTES = 100 << 20
_CHUNK_BYTES = 1 << 22


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def weights_member(tensors: Sequence[HomeTensor], constants: Constants) -> Member:
    """The archive member with the values of `tensors`, made while it is written."""
    header: dict[str, _Entry] = {}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.size_bytes
        header[tensor.name] = _Entry(_TYPE_NAME[DType(tensor.dtype)], tensor.shape, (offset, end))
        offset = end
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)

    def chunks() -> Iterator[bytes]:
        yield len(text).to_bytes(8, "little") + text
        for tensor in tensors:
            raw = stored_bytes(tensor, constants[tensor.name]())
            for start in range(0, len(raw), _CHUNK_BYTES):
                yield bytes(raw[start : start + _CHUNK_BYTES])

    return Member(WEIGHTS_NAME, chunks(), 8 + len(text) + offset, stored=True)


def stored_bytes(tensor: HomeTensor, value: Array) -> memoryview:
    """The bytes of a constant as they lie in the home arena.

    Raises:
        InternalError: the value has another shape or size than the program expects.
    """
    dtype = DType(tensor.dtype)
    array = np.ascontiguousarray(value)
    has_bits = array.dtype.itemsize == dtype.size_bytes and (
        dtype is DType.BF16 or dtype.is_narrow_float
    )
    if array.dtype != dtype.numpy and not has_bits:
        array = array.astype(dtype.numpy)
    if array.nbytes != tensor.size_bytes:
        raise InternalError(
            "TW-INT-001",
            f"constant {tensor.name} has {array.nbytes} bytes, the program expects"
            f" {tensor.size_bytes}",
            stage="package",
        )
    return array.reshape(-1).view(np.uint8).data


def read_weights(source: IO[bytes], tensors: Sequence[HomeTensor], arena: memoryview) -> None:
    """Copy every weight to its address in the home arena.

    Raises:
        InputError: TW-RUN-001 when the file does not hold exactly these tensors.
    """
    length = int.from_bytes(source.read(8), "little")
    if length > _HEADER_LIMIT_BYTES:
        raise damaged("the weights' header is too large")
    try:
        header = msgspec.json.decode(source.read(length), type=dict[str, _Entry])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise damaged(f"the weights' header cannot be read: {error}") from error
    if list(header) != [t.name for t in tensors]:
        raise damaged("the weights do not match the program's constants")
    for tensor in tensors:
        entry = header[tensor.name]
        start, end = entry.data_offsets
        if (
            end - start != tensor.size_bytes
            or entry.shape != tensor.shape
            or entry.dtype != _TYPE_NAME[DType(tensor.dtype)]
        ):
            raise damaged(f"weight {tensor.name} has another type or shape than the program's")
        _read_into(source, arena[tensor.address : tensor.address + tensor.size_bytes])


def _read_into(source: IO[bytes], target: memoryview) -> None:
    done = 0
    while done < len(target):
        chunk = source.read(min(_CHUNK_BYTES, len(target) - done))
        if not chunk:
            raise damaged("the weights end too early")
        target[done : done + len(chunk)] = chunk
        done += len(chunk)
