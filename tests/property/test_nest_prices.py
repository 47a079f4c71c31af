"""Prices of tilings: what is charged, and what is predicted, beside what is simulated."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import lower_toys as toys
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from nest_layers import Layer
from registers import with_registers

from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import Opcode
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import load_machine, load_preset
from worker.compiler.machine.machine import Managed
from worker.compiler.options import Objective
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.verify import verify
from worker.compiler.tiling.factors import divisors
from worker.compiler.tiling.nest.emit import emit
from worker.compiler.tiling.nest.levels import Sizes
from worker.simulator.run import simulate_unit


@COSTLY
@given(
    st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.sampled_from([64, 160, 512]),
    st.integers(1, 3), st.booleans(), st.booleans(), st.sampled_from([DType.F32, DType.F16]),
    st.sampled_from([0, 16, 256]), st.data(),
)  # fmt: skip
def test_what_is_charged_is_what_is_simulated(
    m: int, n: int, k: int, capacity: int, num_cores: int, double: bool, cached: bool,
    dtype: DType, registers: int, data: st.DataObject,
) -> None:  # fmt: skip
    """Bytes, and the energy of memories: equal where tiles are whole and nothing is found in a
    cache, never less than simulated."""
    machine = toys.flat_machine(num_cores, capacity)
    if not cached:
        levels = tuple(m for m in machine.levels if m.managed is not Managed.CACHE)
        machine = replace(machine, levels=levels)
    if registers:
        machine = with_registers(machine, registers)
    graph = toys.matmul_graph(m, n, k, dtype)
    tile = {
        name: data.draw(st.integers(1, extent))
        for name, extent in Layer(graph, machine).facts.extents.items()
    }
    for objective in (Objective.OFFCHIP, Objective.ENERGY):
        layer = Layer(graph, machine, objective=objective)
        plan = layer.plan(Sizes((tile,), double))
        assume(plan is not None)
        assert plan is not None
        schedule = Schedule(layer.graph, emit(plan, machine.home.name), "tiles", 0)
        program = lower_unit(schedule, machine, "s" * 64)
        ran = simulate_unit(program, machine)
        spent = sum(
            line.pj for line in ran.energy if line.item.partition(":")[0] in ("level", "feed")
        )
        moved = sum(
            t.read_bytes + t.write_bytes for t in ran.traffic if t.level == machine.home.name
        )
        actual = moved if objective is Objective.OFFCHIP else spent
        assert actual <= plan.charge * (1 + 1e-9)
        extents, (level,) = layer.facts.extents, plan.levels
        if not cached and all(
            extents[name] == size * level.trips[name] * level.splits.get(name, 1)
            for name, size in level.tile.items()
        ):
            assert actual == pytest.approx(plan.charge)


@given(
    st.sampled_from([24, 32, 48]), st.sampled_from([24, 32, 48]), st.sampled_from([32, 64]),
    st.sampled_from([(1, 1), (4, 1), (4, 2), (6, 2), (6, 3), (8, 2)]), st.data(),
)  # fmt: skip
def test_what_is_multicast_is_read_once_for_a_cluster(
    m: int, n: int, k: int, cores: tuple[int, int], data: st.DataObject
) -> None:
    """By whatever split, in the order in which its loops over cores stand."""
    machine = replace(toys.multicast_machine(cores[0]), num_clusters=cores[1])
    levels = tuple(m for m in machine.levels if m.managed is not Managed.CACHE)
    machine = replace(machine, levels=levels)
    graph = toys.matmul_graph(m, n, k, DType.F32)
    layer = Layer(graph, machine, objective=Objective.OFFCHIP)
    names = list(layer.facts.extents)
    tile = {
        name: data.draw(st.sampled_from([d for d in divisors(extent) if d >= 4]))
        for name, extent in layer.facts.extents.items()
    }
    ways: dict[str, int] = {}
    for name in names[:2]:
        count = layer.facts.extents[name] // tile[name]
        left = layer.needed[0].units // prod(ways.values())
        number = data.draw(st.sampled_from([d for d in divisors(count) if d <= left]))
        if number > 1:
            ways[name] = number
    plan = layer.plan(Sizes((tile,), False, (ways,)))
    assume(plan is not None)
    assert plan is not None
    schedule = Schedule(layer.graph, emit(plan, machine.home.name), "tiles", 0)
    program = lower_unit(schedule, machine, "s" * 64)
    home = next(t for t in simulate_unit(program, machine).traffic if t.level == machine.home.name)
    if np.any(program.instructions["opcode"] == Opcode.MULTICAST) or prod(ways.values()) == 1:
        assert home.read_bytes + home.write_bytes == plan.charge
    else:
        assert home.read_bytes + home.write_bytes >= plan.charge


def test_a_result_alone_leaves_room_and_waits() -> None:
    """One copy of the sums, two of what they are made of: less room, and every store counts."""
    machine = load_preset("a100")
    tile, ways = {"a0": 64, "a1": 64, "a2": 64}, ({"a0": 4, "a1": 4},)
    rooms, predicted, simulated = [], [], []
    for alone in (False, True):
        layer = Layer(toys.matmul_graph(2048, 2048, 2048), machine, alone=alone)
        plan = layer.plan(Sizes((tile,), True, ways))
        assert plan is not None
        out = plan.facts.out
        assert out is not None
        copies = plan.levels[0].copies
        assert {copies[name] for name in copies if name != out.tensor} == {2}
        assert copies[out.tensor] == (1 if alone else 2)
        schedule = Schedule(layer.graph, emit(plan, machine.home.name), "tiles", 0)
        verify(schedule, machine)
        sim = simulate_unit(lower_unit(schedule, machine, "0" * 64), machine)
        rooms.append(next(use.peak_bytes for use in sim.occupancy if use.level == "REG"))
        predicted.append(plan.predicted_cycles)
        simulated.append(sim.cycles)
    assert rooms[0] - rooms[1] == 64 * 64 * 4
    assert predicted[1] > predicted[0]
    assert simulated[1] > simulated[0]
    # Loads go on while a store is waited for; the price counts every store whole.
    assert simulated[1] - simulated[0] <= predicted[1] - predicted[0]


@pytest.mark.parametrize(
    ("preset", "shape", "chain", "sizes"),
    [
        # One copy of all, one operand brought again: 28 cores keep the port busy.
        ("kapla-16x16", (784, 512, 256), 0,
         Sizes(({"a0": 28, "a1": 4, "a2": 256},), False, ({"a0": 28},))),
        # Two operands brought again: a port serves who asked first, so all cores wait together.
        ("kapla-16x16", (112, 512, 4608), 0,
         Sizes(({"a0": 16, "a1": 64, "a2": 144},), False, ({"a0": 7},))),
        # Sums come back from the scratchpad around, and wait there for what was stored last.
        ("stcp920-inferred", (512, 4096, 4096), 1,
         Sizes(({"a0": 512, "a1": 1024, "a2": 1024}, {"a0": 16, "a1": 128, "a2": 1024}), True,
               ({"a1": 4}, {"a1": 8}))),
        # Transfers of 128 bytes take whole cycles of a port that passes more than 100 in one.
        ("stcp920-inferred", (4096, 64, 8), 0,
         Sizes(({"a0": 8, "a1": 8, "a2": 8},), True, ({"a0": 32},))),
    ],
)  # fmt: skip
def test_prices_are_near_what_is_simulated(
    preset: str, shape: tuple[int, int, int], chain: int, sizes: Sizes
) -> None:
    machine = replace(load_preset(preset), links=())  # every node beside home, none behind a mesh
    layer = Layer(toys.matmul_graph(*shape), machine, chain, joins=False)
    plan = layer.plan(sizes)
    assert plan is not None
    assert plan.predicted_cycles == pytest.approx(layer.ran(plan), rel=0.03)


@pytest.mark.parametrize("numbering", ["rows", "home"])
def test_prices_know_that_few_nodes_share_a_corner_of_a_mesh(numbering: str) -> None:
    """Of 16 x 16 nodes by rows the first seven load by one corner: shared out over four, the price
    was half of what runs.  From home they load by four."""
    noc = {"name": "NOC", "multicast": False, "mesh": {"numbering": numbering}}
    machine = load_machine({"name": "m", "inherits": "kapla-16x16", "links": [noc]})
    layer = Layer(toys.matmul_graph(112, 512, 4608), machine, joins=False)
    plan = layer.plan(Sizes(({"a0": 16, "a1": 64, "a2": 144},), False, ({"a0": 7},)))
    assert plan is not None
    assert plan.predicted_cycles == pytest.approx(layer.ran(plan), rel=0.1)


@pytest.mark.parametrize(
    ("shape", "tile", "ways"),
    [
        ((64, 112, 112), (8, 8, 32), (4, 14)),
        ((784, 112, 512), (4, 32, 32), (16, 4)),
        ((784, 512, 112), (32, 4, 32), (2, 4)),
        ((112, 256, 784), (16, 4, 32), (7, 16)),
        ((256, 256, 256), (16, 16, 32), (16, 16)),
        ((512, 64, 512), (4, 32, 32), (16, 2)),
    ],
)
def test_prices_know_trees_over_a_mesh(
    shape: tuple[int, int, int], tile: tuple[int, int, int], ways: tuple[int, int]
) -> None:
    """What several nodes need passes home and its links once, as it does when lowered: priced as
    loads of their own, these cost up to eight times what they take."""
    layer = Layer(toys.matmul_graph(*shape), load_preset("kapla-16x16"))
    sizes = Sizes(
        (dict(zip(("a0", "a1", "a2"), tile, strict=True)),), True,
        (dict(zip(("a0", "a1"), ways, strict=True)),),
    )  # fmt: skip
    plan = layer.plan(sizes)
    alone = Layer(layer.graph, layer.machine, joins=False).plan(sizes)
    assert plan is not None and alone is not None
    ran = layer.ran(plan)
    assert plan.predicted_cycles == pytest.approx(ran, rel=0.3)
    assert abs(plan.predicted_cycles - ran) < abs(alone.predicted_cycles - ran)


def test_units_that_get_no_tile_are_not_split_over() -> None:
    """In tiles of 48 each of 15 parts gets two, so that four would get none."""
    layer = Layer(toys.matmul_graph(1024, 224, 256), load_preset("a100"))
    plan = layer.plan(Sizes(({"a0": 48, "a1": 32, "a2": 256},), True, ({"a0": 15, "a1": 7},)))
    assert plan is not None
    assert plan.levels[0].splits == {"a0": 11, "a1": 7}
