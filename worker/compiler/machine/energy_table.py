"""Generic energies, used where a hardware document gives none.

Anchors at 45 nm and 7 nm (int and float adds and multiplies, SRAM reads by size), interpolated
linearly in the logarithm of both feature size and capacity; DRAM energies by technology.  What
comes from here is listed among the machine's guesses.
Source: 5-hardware.md section 14 (Horowitz ISSCC'14 and the TPUv4i paper's 7 nm column).
"""

from __future__ import annotations

from math import exp, log
from typing import NamedTuple

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
_HOP_PJ_PER_BYTE = 0.61 * 8
"""On-chip hop at 28 nm."""


class Spread(NamedTuple):
    """Factors between which the true value of a guess is taken to lie."""

    low: float
    high: float

    def around(self, value: float) -> tuple[float, float]:
        """Both ends for a value, which lies between them however small it is."""
        low, high = (float(f"{value * factor:.6g}") for factor in self)
        return min(low, value), max(high, value)


# From the least to the greatest ratio of published energies to those above, which
# tests/unit/test_energy_table.py lists and divides.  Where all of them are at or above 1, so is the
# range: then this table flatters, and says by how much.
_OPERATION_SPREAD = Spread(0.55, 1.9)
_SRAM_SPREAD = Spread(0.3, 1.5)
_REGISTER_SPREAD = Spread(0.6, 4.8)
_DRAM_SPREAD = {
    "ddr": Spread(1.0, 2.0),
    "lpddr": Spread(0.6, 3.6),
    "hbm": Spread(0.7, 1.3),
    "gddr": Spread(0.84, 1.16),
}
_HOP_SPREAD = Spread(0.65, 4.1)
STATIC_SPREAD = Spread(0.8, 1.9)
"""Of a guess that is a fifth of the design power, as those of presets are: three chips of 2017 idle
at 0.17 to 0.37 of it (Jouppi et al., table 2)."""
HOST_SPREAD = Spread(0.8, 3.8)
"""Processors need 50 to 112 pJ per operation at their peak and their design power (EPYC 9654,
Haswell of the same table), twice that where they reach half of it; presets guess 60 or 100."""


class Generic(NamedTuple):
    """A value of the table."""

    pj: float
    what: str
    spread: Spread


def _at(nm: float, old: float, new: float) -> float:
    """Interpolate between the two anchors; beyond them the nearer anchor's slope continues."""
    weight = (log(nm) - log(_NEW_NM)) / (log(_OLD_NM) - log(_NEW_NM))
    return exp(log(new) + weight * (log(old) - log(new)))


def mac_pj(dtype: DType, nm: float) -> Generic:
    """Energy of one multiply-accumulate, in pJ."""
    return Generic(_at(nm, *_MAC_PJ[dtype]), f"one {dtype} operation", _OPERATION_SPREAD)


def hop_pj_per_byte(nm: float) -> Generic:
    """Energy of moving one byte over a link, in pJ."""
    return Generic(_HOP_PJ_PER_BYTE * nm / 28.0, "one hop", _HOP_SPREAD)


def memory_pj_per_byte(technology: str, capacity_bytes: float, nm: float) -> Generic:
    """Energy of moving one byte in or out of a memory, in pJ."""
    if technology in _DRAM_PJ_PER_8_BYTES:
        return Generic(_DRAM_PJ_PER_8_BYTES[technology] / 8, technology, _DRAM_SPREAD[technology])
    if technology == "register":
        return Generic(_at(nm, *_REGISTER_PJ_PER_8_BYTES) / 8, technology, _REGISTER_SPREAD)
    points = [(log(size), log(_at(nm, old, new))) for size, old, new in _SRAM_PJ_PER_8_BYTES]
    x = log(max(capacity_bytes, 1.0))
    (x0, y0), (x1, y1) = points[:2] if x < points[1][0] else points[1:]
    pj = exp(y0 + (x - x0) * (y1 - y0) / (x1 - x0)) / 8
    return Generic(pj, technology, _SRAM_SPREAD)
