"""Energy of operands inside an array: by hand, cell by cell, and predicted as simulated."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import lower_toys as toys
import pytest
from nest_layers import Layer

from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import Opcode, UnitProgram, expanded
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import load_machine, load_preset
from worker.compiler.machine.dataflow import Dataflow, Stationary
from worker.compiler.machine.machine import Machine, Managed
from worker.compiler.options import Objective
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.tiling.nest.emit import emit
from worker.compiler.tiling.nest.levels import Sizes
from worker.simulator.run import simulate_unit

FOLDED = Stationary.WEIGHT, Stationary.INPUT, Stationary.OUTPUT
ITEM, SUM = 2, 4
"""Bytes of f16 and of its sums."""


def fed(kept: Stationary, energy: float, num_cores: int = 1) -> Machine:
    """4 x 4 cells that keep something; half a picojoule a byte, say."""
    machine = toys.flat_machine(num_cores)
    engines = tuple(
        replace(e, dataflow=Dataflow(kept), bus_energy_pj_per_byte=energy) if e.array
        else replace(e, macs_per_cycle=dict.fromkeys(e.macs_per_cycle, 0.1))
        for e in machine.engines
    )  # fmt: skip
    levels = tuple(m for m in machine.levels if m.managed is not Managed.CACHE)
    return replace(machine, engines=engines, levels=levels)


def spent(unit: UnitProgram, machine: Machine) -> dict[str, float]:
    """Energy by item."""
    found = simulate_unit(unit, machine, formats={0: DType.F16})
    assert all(check.passed for check in found.checks)
    return {line.item: line.pj for line in found.energy}


def taken_by_cells(kept: Stationary, m: int, n: int, k: int) -> int:
    """Bytes that cells of a 4 x 4 array take, one by one, for a product."""
    total = 0
    for row, column, depth in product(range(m), range(n), range(k)):
        cell = {
            Stationary.WEIGHT: (depth % 4, column % 4), Stationary.INPUT: (depth % 4, row % 4),
            Stationary.OUTPUT: (row % 4, column % 4),
        }[kept]  # fmt: skip
        assert cell < (4, 4)
        if kept is Stationary.OUTPUT:
            total += ITEM + ITEM  # a factor from the left, one from above
        else:
            total += ITEM + SUM  # what streams, and what the cell above has summed up
    return total


@pytest.mark.parametrize("kept", FOLDED)
@pytest.mark.parametrize("size", [(4, 4, 4), (8, 4, 16), (5, 7, 3)])
def test_every_byte_is_one_that_a_cell_takes_or_that_crosses_the_edge(
    kept: Stationary, size: tuple[int, int, int]
) -> None:
    machine = fed(kept, 0.5)
    unit = lower_unit(toys.naive_matmul(*size, size, 1), machine, "s" * 64)
    (work,) = unit.instructions[unit.instructions["opcode"] == Opcode.COMPUTE]
    moved = taken_by_cells(kept, *size) + int(work["drawn"] + work["returned"])
    assert spent(unit, machine)["bus:mme"] == pytest.approx(0.5 * moved)


def test_one_fold_by_hand() -> None:
    """4 x 4 x 4, weights kept: 32 bytes of them and 32 of inputs come in, 64 of sums leave; each of
    64 multiply-accumulates takes an input of 2 bytes and a sum of 4."""
    machine = fed(Stationary.WEIGHT, 1.0)
    unit = lower_unit(toys.naive_matmul(4, 4, 4, (4, 4, 4), 1), machine, "s" * 64)
    items = spent(unit, machine)
    assert items["bus:mme"] == 32 + 32 + 64 + 64 * (2 + 4)
    free = fed(Stationary.WEIGHT, 0.0)
    assert spent(unit, free) == {k: v for k, v in items.items() if k != "bus:mme"}


@pytest.mark.parametrize("kept", FOLDED)
@pytest.mark.parametrize("tile", [(4, 4, 4), (8, 4, 16), (4, 16, 8), (16, 16, 16)])
def test_what_is_predicted_is_what_is_simulated(
    kept: Stationary, tile: tuple[int, int, int]
) -> None:
    """But for what cells take, which no tiling changes."""
    machine = fed(kept, 3.0)
    layer = Layer(toys.matmul_graph(16, 16, 16), machine, objective=Objective.ENERGY)
    plan = layer.plan(Sizes((dict(zip(layer.facts.extents, tile, strict=True)),), True))
    assert plan is not None
    schedule = Schedule(layer.graph, emit(plan, machine.home.name), "tiles", 0)
    items = spent(lower_unit(schedule, machine, "s" * 64), machine)
    moved = sum(pj for item, pj in items.items() if item.partition(":")[0] in ("level", "feed"))
    cells = 3.0 * taken_by_cells(kept, 16, 16, 16)
    assert plan.charge == pytest.approx(moved + items["bus:mme"] - cells)


def test_a_dear_bus_makes_tiles_that_cross_it_less() -> None:
    """By energy, where the buffer has little room: half a kilobyte."""
    crossings = []
    for energy in (0.0, 100.0):
        machine = fed(Stationary.WEIGHT, energy)
        levels = tuple(
            replace(m, capacity_bytes=512) if m.name == "L1" else m for m in machine.levels
        )
        machine = replace(machine, levels=levels)
        layer = Layer(toys.matmul_graph(32, 32, 32), machine, objective=Objective.ENERGY)
        grown = layer.grown()
        assert grown is not None
        plan = layer.bounded(grown)
        schedule = Schedule(layer.graph, emit(plan, machine.home.name), "tiles", 0)
        rows = expanded(lower_unit(schedule, machine, "s" * 64)).instructions
        crossings.append(int((rows["drawn"] + rows["returned"])[rows["op"] >= 0].sum()))
    assert crossings[1] < crossings[0]


def spec(**fields: Any) -> dict[str, Any]:
    engine = {"name": "PE", "dataflow": {"stationary": "weight", **fields}}
    return {"name": "mine", "inherits": "kapla-edge", "engines": [engine]}


def test_left_out_beside_a_dataflow_it_is_a_guess_of_nothing() -> None:
    at = "/engines/0/dataflow/bus_energy_pj_per_byte"
    machine = load_machine(spec(bus_energy_pj_per_byte=None))
    assert machine.engine("PE").bus_energy_pj_per_byte == 0
    assert [g.value for g in machine.guesses if g.pointer == at] == ["0"]
    said = load_machine(spec(bus_energy_pj_per_byte={"value": 2, "low": 1, "high": 5}))
    assert said.engine("PE").bus_energy_pj_per_byte == 2
    assert at not in [g.pointer for g in said.guesses]
    assert [(r.low, r.high) for r in said.energy_ranges if r.pointer == at] == [(1, 5)]
    eyeriss = load_preset("eyeriss")
    assert eyeriss.engine("PE").bus_energy_pj_per_byte == 2
    assert not any("bus_energy" in g.pointer for g in eyeriss.guesses)


def test_the_ledger_has_both_ends_of_its_range() -> None:
    machine = load_machine(spec(bus_energy_pj_per_byte={"value": 2, "low": 1, "high": 5}))
    layer = Layer(toys.matmul_graph(32, 32, 32), machine)
    plan = layer.grown()
    assert plan is not None
    schedule = Schedule(layer.graph, emit(plan, machine.home.name), "tiles", 0)
    found = simulate_unit(lower_unit(schedule, machine, "s" * 64), machine)
    (line,) = [line for line in found.energy if line.item == "bus:PE"]
    assert (line.low_pj, line.high_pj) == pytest.approx((line.pj / 2, line.pj * 5 / 2))
