"""Generic energies, used where a hardware document gives none.

Anchors at 45 nm and 7 nm (int and float adds and multiplies, SRAM reads by size), interpolated
linearly in the logarithm of both feature size and capacity; DRAM energies by technology.  What
comes from here is listed among the machine's guesses.
Source: 5-hardware.md section 14 (Horowitz ISSCC'14 and the TPUv4i paper's 7 nm column).
"""

from __future__ import annotations

from math import exp, log

from worker.compiler.ir.dtype import DType

_OLD_NM, _NEW_NM = 45.0, 7.0

_MAC_PJ: dict[DType, tuple[float, float]] = {
    # add + multiply, (45 nm, 7 nm); int8 accumulates in int32.
    DType.I8: (0.1 + 0.2, 0.03 + 0.07),
    DType.U8: (0.1 + 0.2, 0.03 + 0.07),
    DType.F16: (0.4 + 1.1, 0.16 + 0.34),
    DType.BF16: (0.4 + 1.1, 0.11 + 0.21),
    DType.F32: (0.9 + 3.7, 0.38 + 1.31),
    DType.I32: (0.1 + 3.1, 0.03 + 1.48),
    DType.U32: (0.1 + 3.1, 0.03 + 1.48),
    # Multipliers grow with the square of the word.
    DType.I16: (0.1 + 0.8, 0.03 + 0.37),
    DType.U16: (0.1 + 0.8, 0.03 + 0.37),
    DType.F64: (4 * 4.6, 4 * 1.69),
    DType.I64: (4 * 3.2, 4 * 1.51),
    DType.U64: (4 * 3.2, 4 * 1.51),
    DType.BOOL: (0.03, 0.007),
    # An 8-bit float has a multiplier of 4 bits or fewer, and pays for aligning: as int8.
    **{dtype: (0.1 + 0.2, 0.03 + 0.07) for dtype in DType if dtype.is_narrow_float},
    # Adders shrink with the word, multipliers with its square; sums are kept in int32.
    **dict.fromkeys((DType.I4, DType.U4), (0.1 + 0.05, 0.03 + 0.0175)),
    **dict.fromkeys((DType.I2, DType.U2), (0.1 + 0.0125, 0.03 + 0.0044)),
}
_SRAM_PJ_PER_8_BYTES = ((8 << 10, 10.0, 7.5), (32 << 10, 20.0, 8.5), (1 << 20, 100.0, 14.0))
_DRAM_PJ_PER_8_BYTES = {"ddr": 1300.0, "lpddr": 512.0, "hbm": 350.0, "gddr": 415.0}
_REGISTER_PJ_PER_8_BYTES = (1.0, 0.5)
DEFAULT_NM = 16.0
HOP_PJ_PER_BYTE = 0.61 * 8
"""On-chip hop at 28 nm."""


def _at(nm: float, old: float, new: float) -> float:
    """Interpolate between the two anchors; beyond them the nearer anchor's slope continues."""
    weight = (log(nm) - log(_NEW_NM)) / (log(_OLD_NM) - log(_NEW_NM))
    return exp(log(new) + weight * (log(old) - log(new)))


def mac_pj(dtype: DType, nm: float) -> float:
    """Energy of one multiply-accumulate, in pJ."""
    return _at(nm, *_MAC_PJ[dtype])


def memory_pj_per_byte(technology: str, capacity_bytes: float, nm: float) -> float:
    """Energy of moving one byte in or out of a memory, in pJ."""
    if technology in _DRAM_PJ_PER_8_BYTES:
        return _DRAM_PJ_PER_8_BYTES[technology] / 8
    if technology == "register":
        return _at(nm, *_REGISTER_PJ_PER_8_BYTES) / 8
    points = [(log(size), log(_at(nm, old, new))) for size, old, new in _SRAM_PJ_PER_8_BYTES]
    x = log(max(capacity_bytes, 1.0))
    (x0, y0), (x1, y1) = points[:2] if x < points[1][0] else points[1:]
    return exp(y0 + (x - x0) * (y1 - y0) / (x1 - x0)) / 8
