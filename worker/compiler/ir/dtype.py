"""Element types, their sizes, and the type in which a reduction accumulates."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


class DType(StrEnum):
    """Element types of tensors.  BF16 is carried in numpy as uint16 bit patterns."""

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U64 = "u64"
    U32 = "u32"
    U16 = "u16"
    U8 = "u8"
    BOOL = "bool"

    @property
    def size_bytes(self) -> int:
        return _SIZE_BYTES[self]

    @property
    def is_float(self) -> bool:
        return self in (DType.F64, DType.F32, DType.F16, DType.BF16)

    @property
    def is_signed(self) -> bool:
        return self not in (DType.U64, DType.U32, DType.U16, DType.U8, DType.BOOL)

    @property
    def accumulator(self) -> DType:
        """Type in which sums of this type are kept: f32 for 16-bit floats, i32 for small ints."""
        match self:
            case DType.F16 | DType.BF16:
                return DType.F32
            case DType.I8 | DType.U8 | DType.I16 | DType.U16 | DType.BOOL:
                return DType.I32
            case _:
                return self

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """Storage type in numpy (bf16: uint16 bit patterns)."""
        # Imported here because the API process reads machines and must not load numpy.
        import numpy as np

        return np.dtype(_NUMPY[self])


_SIZE_BYTES = {
    DType.F64: 8, DType.F32: 4, DType.F16: 2, DType.BF16: 2, DType.I64: 8, DType.I32: 4,
    DType.I16: 2, DType.I8: 1, DType.U64: 8, DType.U32: 4, DType.U16: 2, DType.U8: 1,
    DType.BOOL: 1,
}  # fmt: skip
_NUMPY = {
    DType.F64: "float64", DType.F32: "float32", DType.F16: "float16", DType.BF16: "uint16",
    DType.I64: "int64", DType.I32: "int32", DType.I16: "int16", DType.I8: "int8",
    DType.U64: "uint64", DType.U32: "uint32", DType.U16: "uint16", DType.U8: "uint8",
    DType.BOOL: "bool",
}  # fmt: skip
