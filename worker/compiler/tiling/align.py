"""Rounding sizes to what a memory can address."""

from __future__ import annotations

from math import lcm, prod

from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import MemoryLevel
from worker.compiler.memory.allocate import align_up


def buffer_bytes(extents: tuple[int, ...], dtype: DType, level: MemoryLevel, copies: int) -> int:
    """Bytes that `copies` copies of a tile take in `level`, each copy aligned."""
    unit = lcm(level.align_bytes, dtype.size_bytes)
    return align_up(prod(extents) * dtype.size_bytes, unit) * copies
