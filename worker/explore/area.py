"""A proxy of a chip's area: bit cells of its memories and multipliers of its engines.

Wires, control, pads and memory interfaces are left out, so areas only compare chips that differ in
what is counted.  A memory is its bit cells over `ARRAY_SHARE`; cells are as foundries published
them (high-density 6T cells: 0.346 um2 at Intel's 45 nm, 0.127 at TSMC's 28 nm, 0.070 at its 16 nm,
0.027 at its 7 nm), between these linear in the logarithms.  A multiply-accumulate is that of
Horowitz (ISSCC 2014, 45 nm), shrunk by the square of the feature size: logic shrank less, so newer
chips' engines are larger than this.
"""

from __future__ import annotations

from math import exp, log

from worker.compiler.ir.dtype import DType
from worker.compiler.machine.energy_table import DEFAULT_NM
from worker.compiler.machine.machine import Machine

ARRAY_SHARE = 0.5
"""Of a memory's area that is bit cells: a round guess, of macros of some 64 KiB."""
_CELLS_UM2 = ((7.0, 0.027), (16.0, 0.070), (28.0, 0.127), (45.0, 0.346))
_MACS_UM2 = {
    # multiply + add at 45 nm
    DType.I8: 282 + 137, DType.U8: 282 + 137, DType.I32: 3495 + 137, DType.U32: 3495 + 137,
    DType.F16: 1640 + 1360, DType.BF16: 1640 + 1360, DType.F32: 7700 + 4184,
    # multipliers grow with the square of the word, floats' with that of the significand
    DType.I16: 4 * 282 + 137, DType.U16: 4 * 282 + 137,
    DType.I4: 282 / 4 + 137, DType.U4: 282 / 4 + 137,
    DType.I64: 4 * 3495 + 274, DType.U64: 4 * 3495 + 274, DType.F64: 4 * 7700 + 2 * 4184,
}  # fmt: skip


def on_chip_bytes(machine: Machine) -> int:
    """Capacity of all memories but home, all instances."""
    return sum(m.capacity_bytes * m.instances for m in machine.levels[1:])


def area_mm2(machine: Machine, process_nm: float | None) -> float:
    """Area of memories and multipliers, in mm2, at `process_nm` (None: as energies' default).

    Of every engine the largest of what its formats need: an engine that does 256 products of int8
    or 64 of fp16 has an area of either.
    """
    nm = process_nm or DEFAULT_NM
    um2 = 8 * on_chip_bytes(machine) * _cell_um2(nm) / ARRAY_SHARE
    for engine in machine.engines:
        needs = [
            rate * _MACS_UM2[dtype]
            for dtype, rate in (engine.macs_per_cycle or {}).items()
            if dtype in _MACS_UM2
        ]
        um2 += max(needs, default=0.0) * (nm / 45.0) ** 2 * machine.num_cores
    return um2 * 1e-6


def _cell_um2(nm: float) -> float:
    """Beyond the anchors the nearest two's slope continues."""
    points = [(log(size), log(area)) for size, area in _CELLS_UM2]
    at = next((k for k, (x, _) in enumerate(points[1:-1], 1) if log(nm) < x), len(points) - 1)
    (x0, y0), (x1, y1) = points[at - 1], points[at]
    return exp(y0 + (log(nm) - x0) * (y1 - y0) / (x1 - x0))
