"""The generic energies against published ones: what ranges of guesses rest on."""

from __future__ import annotations

import pytest

from worker.compiler.ir.dtype import DType
from worker.compiler.machine.energy_table import (
    HOST_SPREAD,
    STATIC_SPREAD,
    Generic,
    Spread,
    hop_pj_per_byte,
    mac_pj,
    memory_pj_per_byte,
)

WORD, LONG = 2, 8
"""Bytes of what sources give energies for: words of 16 bits, accesses of 64."""
MACS = [
    ("Accelergy's Eyeriss, 65 nm", DType.I8, 65, 0.21),
    ("nn_dataflow fitted to Eyeriss", DType.I16, 65, 2.0),
    ("nn_dataflow fitted to Eyeriss", DType.F16, 65, 2.0),
    ("nn_dataflow's default, 28 nm", DType.I16, 28, 1.0),
    ("nn_dataflow's default, 28 nm", DType.F16, 28, 1.0),
    ("Simba, two operations of 0.11", DType.I8, 16, 0.22),
]
MEMORIES = [
    ("Accelergy's Eyeriss, read", "sram", 108 << 10, 65, 18.2 / LONG),
    ("Accelergy's Eyeriss, write", "sram", 108 << 10, 65, 14.1 / LONG),
    ("nn_dataflow fitted to Eyeriss", "sram", 108 << 10, 65, 15 / WORD),
    ("nn_dataflow's default", "sram", 32 << 10, 28, 6 / WORD),
    ("nn_dataflow's default", "sram", 64 << 10, 28, 6 / WORD),
    ("Accelergy's Eyeriss, inputs, write", "register", 24, 65, 0.18 / WORD),
    ("nn_dataflow fitted to Eyeriss", "register", 512, 65, 1 / WORD),
    ("nn_dataflow's default", "register", 64, 28, 1 / WORD),
    ("DDR3, least", "ddr", 1 << 30, 28, 1300 / LONG),
    ("DDR3, most", "ddr", 1 << 30, 28, 2600 / LONG),
    ("nn_dataflow for stacked DRAM", "lpddr", 1 << 30, 28, 80 / WORD),
    ("Accelergy's Eyeriss", "lpddr", 1 << 30, 65, 512 / LONG),
    ("nn_dataflow fitted to Eyeriss", "lpddr", 1 << 30, 65, 460 / WORD),
    ("HBM2, least", "hbm", 1 << 30, 7, 250 / LONG),
    ("HBM2, most", "hbm", 1 << 30, 7, 450 / LONG),
    ("GDDR6, least", "gddr", 1 << 30, 7, 350 / LONG),
    ("GDDR6, most", "gddr", 1 << 30, 7, 480 / LONG),
]
HOPS = [
    ("KAPLA's network", 28, 0.61 * 8),
    ("on chip at 7 nm, least", 7, 0.1 * 8),
    ("on chip at 7 nm, most", 7, 0.2 * 8),
    ("nn_dataflow for TETRIS", 28, 40 / WORD),
    ("Simba's package", 16, 1.2 * 8),
]


def held(spread: Spread, ratios: list[float]) -> None:
    """The spread reaches from the least ratio to the greatest, and hardly further."""
    assert 0.85 * min(ratios) <= spread.low <= min(ratios) * 1.001
    assert max(ratios) * 0.999 <= spread.high <= 1.15 * max(ratios)


def ratio(found: Generic, published: float) -> tuple[Spread, float]:
    return found.spread, published / found.pj


def by_spread(found: list[tuple[Spread, float]]) -> dict[Spread, list[float]]:
    table: dict[Spread, list[float]] = {}
    for spread, each in found:
        table.setdefault(spread, []).append(each)
    return table


def test_ranges_are_what_published_energies_span() -> None:
    found = [ratio(mac_pj(dtype, nm), pj) for _, dtype, nm, pj in MACS]
    found += [ratio(memory_pj_per_byte(*key), pj) for _, *key, pj in MEMORIES]
    found += [ratio(hop_pj_per_byte(nm), pj) for _, nm, pj in HOPS]
    table = by_spread(found)
    assert len(table) == 8
    for spread, ratios in table.items():
        held(spread, ratios)


def test_leakage_and_hosts() -> None:
    idle = {"TPUv1": (28, 75), "K80": (25, 150), "Haswell": (41, 145)}
    held(STATIC_SPREAD, [watts / design * 5 for watts, design in idle.values()])
    # Watts per billion operations in a second, of guesses of 60.
    peak = {"EPYC 9654": (360, 7400), "Haswell E5-2699 v3": (145, 1300)}
    each = [1000 * watts / rate for watts, rate in peak.values()]
    held(HOST_SPREAD, [min(each) / 60, 2 * max(each) / 60])


@pytest.mark.parametrize("capacity", [1, 8 << 10, 20 << 10, 1 << 20, 1 << 28])
def test_memories_cost_more_the_larger_they_are(capacity: int) -> None:
    small, large = (memory_pj_per_byte("sram", c, 16).pj for c in (capacity, capacity * 2))
    assert 0 < small < large
