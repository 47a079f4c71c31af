"""Element types, their sizes, and the type in which a reduction accumulates."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


class DType(StrEnum):
    """Element types of tensors.  BF16 is carried in numpy as uint16 bit patterns.

    The narrow types (decision 0020) take one byte of memory each: floats as uint8 bit patterns,
    4-bit and 2-bit integers as int8 or uint8 values.
    """

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
    F8E4M3FN = "f8e4m3fn"
    F8E4M3FNUZ = "f8e4m3fnuz"
    F8E5M2 = "f8e5m2"
    F8E5M2FNUZ = "f8e5m2fnuz"
    F4E2M1 = "f4e2m1"
    I4 = "i4"
    U4 = "u4"
    I2 = "i2"
    U2 = "u2"

    @property
    def size_bytes(self) -> int:
        return _SIZE_BYTES[self]

    @property
    def bits(self) -> int:
        """Bits of a value; of a narrow type fewer than its memory has."""
        return _NARROW_BITS.get(self, 8 * self.size_bytes)

    @property
    def is_float(self) -> bool:
        return self in (DType.F64, DType.F32, DType.F16, DType.BF16) or self.is_narrow_float

    @property
    def is_narrow_float(self) -> bool:
        """A float of 8 or 4 bits."""
        return self in (
            DType.F8E4M3FN, DType.F8E4M3FNUZ, DType.F8E5M2, DType.F8E5M2FNUZ, DType.F4E2M1,
        )  # fmt: skip

    @property
    def is_narrow_int(self) -> bool:
        """An integer of 4 or 2 bits."""
        return self in (DType.I4, DType.U4, DType.I2, DType.U2)

    @property
    def is_signed(self) -> bool:
        return self not in (
            DType.U64, DType.U32, DType.U16, DType.U8, DType.U4, DType.U2, DType.BOOL,
        )  # fmt: skip

    @property
    def accumulator(self) -> DType:
        """Type in which sums of this type are kept: f32 for small floats, i32 for small ints."""
        match self:
            case DType.F16 | DType.BF16:
                return DType.F32
            case DType.I8 | DType.U8 | DType.I16 | DType.U16 | DType.BOOL:
                return DType.I32
            case _ if self.is_narrow_float:
                return DType.F32
            case _ if self.is_narrow_int:
                return DType.I32
            case _:
                return self

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """Storage type in numpy (bf16: uint16 bit patterns, narrow floats: uint8 ones)."""
        # Imported here because the API process reads machines and must not load numpy.
        import numpy as np

        return np.dtype(_NUMPY[self])


_SIZE_BYTES = {
    DType.F64: 8, DType.F32: 4, DType.F16: 2, DType.BF16: 2, DType.I64: 8, DType.I32: 4,
    DType.I16: 2, DType.I8: 1, DType.U64: 8, DType.U32: 4, DType.U16: 2, DType.U8: 1,
    DType.BOOL: 1, DType.F8E4M3FN: 1, DType.F8E4M3FNUZ: 1, DType.F8E5M2: 1, DType.F8E5M2FNUZ: 1,
    DType.F4E2M1: 1, DType.I4: 1, DType.U4: 1, DType.I2: 1, DType.U2: 1,
}  # fmt: skip
_NARROW_BITS = {DType.F4E2M1: 4, DType.I4: 4, DType.U4: 4, DType.I2: 2, DType.U2: 2}
_NUMPY = {
    DType.F64: "float64", DType.F32: "float32", DType.F16: "float16", DType.BF16: "uint16",
    DType.I64: "int64", DType.I32: "int32", DType.I16: "int16", DType.I8: "int8",
    DType.U64: "uint64", DType.U32: "uint32", DType.U16: "uint16", DType.U8: "uint8",
    DType.BOOL: "bool", DType.F8E4M3FN: "uint8", DType.F8E4M3FNUZ: "uint8", DType.F8E5M2: "uint8",
    DType.F8E5M2FNUZ: "uint8", DType.F4E2M1: "uint8", DType.I4: "int8", DType.U4: "uint8",
    DType.I2: "int8", DType.U2: "uint8",
}  # fmt: skip
