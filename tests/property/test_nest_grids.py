"""Grids of tilings: what they are estimated at, and what is found in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from math import inf, prod

import lower_toys as toys
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from machine_rates import with_every_format
from registers import with_registers
from test_lower_naive import conv_graph

from worker.compiler.audit.audit import audit
from worker.compiler.cost.compute import engines_of
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.signature import canonicalize
from worker.compiler.isa.program import Opcode
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import load_preset
from worker.compiler.machine.bursts import burst_bytes
from worker.compiler.machine.machine import Machine, Managed
from worker.compiler.options import Objective
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.verify import verify
from worker.compiler.strategies.naive.strategy import chains
from worker.compiler.tiling.factors import divisors
from worker.compiler.tiling.nest.emit import emit
from worker.compiler.tiling.nest.estimate import (
    MOST_LEAVES,
    Around,
    Contexts,
    Estimate,
    is_estimated,
)
from worker.compiler.tiling.nest.facts import Facts, facts_of, homes_of_sums
from worker.compiler.tiling.nest.grid_boxes import Floats, Tiles, burst_arrays
from worker.compiler.tiling.nest.grid_search import COARSE, LONG_FACTOR, search_grids
from worker.compiler.tiling.nest.levels import Sizes, StageFrame, levels_of
from worker.compiler.tiling.nest.measure import Measure
from worker.compiler.tiling.nest.plan import Plan, Stage, Team, stages_of
from worker.compiler.tiling.nest.price import Pricer
from worker.compiler.tiling.nest.search import (
    loop_orders,
    measured,
    needed_units,
    ordered_plan,
    score,
    search,
)
from worker.simulator.run import simulate_unit

ADDITIVE = [Objective.LATENCY, Objective.ENERGY, Objective.OFFCHIP]
PRESETS = [
    "a100", "stcp920-inferred", "kapla-16x16", "eyeriss", "nvdla-large", "tpuv1", "ethos-u65",
    "simba", "ipu-gc200",
]  # fmt: skip
extents = st.sampled_from([1, 2, 3, 7, 16, 50, 64, 128])
graphs = st.one_of(
    st.builds(toys.matmul_graph, extents, extents, extents),
    st.builds(
        conv_graph, st.sampled_from([1, 3, 8, 32]), st.sampled_from([7, 14, 28]),
        st.sampled_from([1, 3]), st.sampled_from([1, 8, 24]), st.sampled_from([1, 2]),
    ),
)  # fmt: skip


class Layer:
    """One operator on the scratchpads of one chain of a machine."""

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        chain: int = 0,
        *,
        alone: bool = False,
        objective: Objective = Objective.LATENCY,
        inside: bool = True,
        joins: bool = True,
    ) -> None:
        """`inside`: sums stand in registers, where the engine has some."""
        self.graph = canonicalize(graph).graph
        self.machine = machine
        (op,) = self.graph.ops
        found = engines_of((op,), self.graph.tensors, machine)
        assert not isinstance(found, str)
        self.engine = found[op.name]
        homes = homes_of_sums(facts_of(op, self.graph.tensors), self.engine, machine)
        self.facts: Facts = replace(homes[0 if inside else -1], is_alone=alone)
        offered = chains(machine, self.engine.memory, self.facts)
        team = Team.everyone(machine, joins=joins)
        self.stages: tuple[Stage, ...] = stages_of(machine, offered[chain % len(offered)], team)
        self.needed = needed_units(self.facts, self.stages)
        self.frame = StageFrame(self.facts, self.needed)
        self.measure = Measure.of(objective, machine)
        self.pricer = Pricer(self.facts, self.engine, self.needed, machine, self.measure)
        self.orders = loop_orders(self.facts)

    def plan(self, sizes: Sizes) -> Plan | None:
        levels = levels_of(self.frame, sizes)
        if levels is None:
            return None
        return ordered_plan(self.pricer, levels, self.orders, MOST_LEAVES)

    def estimate(self, tile: Mapping[str, int], ways: Mapping[str, int], *, double: bool) -> float:
        """Of one tiling on one stage."""
        shape = (1,) * (1 + len(tile))
        zero, none = np.zeros(shape), np.zeros(shape, np.int64)
        contexts = Contexts(
            {name: none + extent for name, extent in self.facts.extents.items()},
            {name: none + ways.get(name, 1) for name in tile},
            none + 1, none + 1,
            tuple(
                Around.nothing(order, zero)
                for order in self.orders
            ),
        )  # fmt: skip
        tiles = {name: none + size for name, size in tile.items()}
        found = Estimate(self.frame, 0, self.pricer, self.machine).of(
            contexts, tiles, double=double
        )
        return float(found.ravel()[0])


@given(
    graphs, st.sampled_from(PRESETS), st.booleans(), st.booleans(), st.sampled_from(ADDITIVE),
    st.booleans(), st.data(),
)  # fmt: skip
def test_estimates_are_prices_but_for_the_array(
    graph: Graph, preset: str, double: bool, alone: bool, objective: Objective, inside: bool,
    data: st.DataObject,
) -> None:  # fmt: skip
    """Never above the price; equal, where no array has to be loaded; and fits are fits.

    Energy leaves out what engines draw, too.
    """
    machine = with_every_format(load_preset(preset))
    layer = Layer(graph, machine, alone=alone, objective=objective, inside=inside)
    facts = layer.facts
    assume(is_estimated(facts))
    tile = {
        name: 1 if name in facts.single
        else data.draw(st.sampled_from(divisors(n)) if name in facts.exact else st.integers(1, n))
        for name, n in facts.extents.items()
    }  # fmt: skip
    ways: dict[str, int] = {}
    left = layer.needed[0].units
    for name in facts.out_axes:
        count = -(-facts.extents[name] // tile[name])
        number = data.draw(st.integers(1, min(left, count)))
        number = -(-count // -(-count // number))
        if number > 1:
            ways[name] = number
            left //= number
    found = layer.estimate(tile, ways, double=double)
    plan = layer.plan(Sizes((tile,), double, (ways,)))
    if plan is None:
        assert found == inf
        return
    price = score(plan, MOST_LEAVES)
    assert found <= price * (1 + 1e-9)
    if layer.pricer.pace.folding is None and objective is not Objective.ENERGY:
        # A cycle, and what many leaves make of it.
        off = 1.01 * layer.measure.per_cycle + 1e-9 * plan.charge
        assert found >= price - off * max(1.0, plan.num_leaves / MOST_LEAVES)


@given(st.data(), st.sampled_from([1, 2, 4]), st.sampled_from([1, 8, 64]))
def test_bursts_of_many_boxes(data: st.DataObject, item: int, align: int) -> None:
    shape = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    boxes = [
        [data.draw(st.integers(1, size)) for size in shape]
        for _ in range(data.draw(st.integers(1, 4)))
    ]
    pitches = [[data.draw(st.integers(0, 12)) for _ in shape] for _ in boxes]
    burst = data.draw(st.sampled_from([16, 32, 128]))
    columns = [np.array(column, np.int64) for column in zip(*boxes, strict=True)]
    steps = [np.array(column, np.int64) for column in zip(*pitches, strict=True)]
    found = burst_arrays(columns, shape, item, steps, align, burst)
    assert np.broadcast_to(found, len(boxes)).tolist() == [
        burst_bytes(box, shape, item, own, align, burst)
        for box, own in zip(boxes, pitches, strict=True)
    ]


def grown(layer: Layer) -> Plan | None:
    """What tiles grow into, by the layer's measure."""
    plan = search(layer.facts, layer.engine, layer.stages, layer.machine)
    return None if plan is None else measured(plan, layer.machine, layer.measure)


def in_grids(layer: Layer, plan: Plan) -> Plan:
    return search_grids(layer.facts, layer.engine, layer.stages, layer.machine, plan)


def best_of_all(layer: Layer) -> float:
    """By looking at every split, every tile and both ways to buffer, on one stage."""
    facts, units, best = layer.facts, layer.needed[0].units, inf
    for tile in product(*(range(1, n + 1) for n in facts.extents.values())):
        sizes = dict(zip(facts.extents, tile, strict=True))
        counts = {n: -(-facts.extents[n] // sizes[n]) for n in facts.out_axes}
        for ways in product(*(range(1, min(units, n) + 1) for n in counts.values())):
            if prod(ways) > units:
                continue
            split = {n: w for n, w in zip(counts, ways, strict=True) if w > 1}
            for double in (False, True):
                plan = layer.plan(Sizes((sizes,), double, (split,)))
                if plan is not None:
                    best = min(best, score(plan, MOST_LEAVES))
    return best


@COSTLY
@given(
    st.integers(1, 12), st.integers(1, 12), st.integers(1, 12),
    st.sampled_from([64, 160, 512, 4096]), st.integers(1, 4), st.sampled_from(ADDITIVE),
    st.sampled_from([0, 4, 40, 1024]),
)  # fmt: skip
def test_toys_come_near_the_best_of_all(
    m: int, n: int, k: int, capacity: int, num_cores: int, objective: Objective, registers: int
) -> None:
    machine = toys.flat_machine(num_cores, capacity)
    if registers:
        machine = with_registers(machine, registers)
    layer = Layer(toys.matmul_graph(m, n, k, DType.F32), machine, objective=objective)
    plan = grown(layer)
    assume(plan is not None)
    assert plan is not None
    found = score(in_grids(layer, plan), MOST_LEAVES)
    assert found <= score(plan, MOST_LEAVES)
    assert found <= 1.1 * best_of_all(layer)


@COSTLY
@given(
    graphs, st.sampled_from(PRESETS), st.integers(0, 1), st.sampled_from(ADDITIVE),
    st.sampled_from([0, 64, 4096]),
)  # fmt: skip
def test_what_is_found_is_sound(
    graph: Graph, preset: str, chain: int, objective: Objective, registers: int
) -> None:
    machine = with_every_format(load_preset(preset))
    if registers and all(level.name != "REG" for level in machine.levels):
        machine = with_registers(machine, registers)
    layer = Layer(graph, machine, chain, objective=objective)
    plan = grown(layer)
    assume(plan is not None)
    assert plan is not None
    found = in_grids(layer, plan)
    assert score(found, MOST_LEAVES) <= score(plan, MOST_LEAVES)
    schedule = Schedule(layer.graph, emit(found, machine.home.name), "grids", 0)
    verify(schedule, machine)
    audit(schedule, lower_unit(schedule, machine, "s" * 64), machine)


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
        schedule = Schedule(layer.graph, emit(plan, machine.home.name), "grids", 0)
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
    schedule = Schedule(layer.graph, emit(plan, machine.home.name), "grids", 0)
    program = lower_unit(schedule, machine, "s" * 64)
    home = next(t for t in simulate_unit(program, machine).traffic if t.level == machine.home.name)
    if np.any(program.instructions["opcode"] == Opcode.MULTICAST) or prod(ways.values()) == 1:
        assert home.read_bytes + home.write_bytes == plan.charge
    else:
        assert home.read_bytes + home.write_bytes >= plan.charge


def test_grids_of_vast_layers_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many sizes seven long axes have."""
    sizes: list[int] = []
    whole = Estimate.of

    def counted(self: Estimate, contexts: Contexts, tiles: Tiles, *, double: bool) -> Floats:
        found = whole(self, contexts, tiles, double=double)
        sizes.append(found.size)
        return found

    monkeypatch.setattr(Estimate, "of", counted)
    machine = with_every_format(load_preset("a100"))
    layer = Layer(conv_graph(5040, 1024, 7, 5040, 1), machine)
    in_grids(layer, grown(layer))
    assert sizes
    assert max(sizes) <= COARSE * LONG_FACTOR


@pytest.mark.parametrize(
    ("preset", "dtype", "size", "gain"),
    [("a100", DType.F16, 4096, 4.0), ("a100", DType.F16, 2048, 4.0),
     ("h200", DType.F16, 2048, 2.0), ("stcp920-inferred", DType.F16, 2048, 1.25)],
)  # fmt: skip
def test_large_products_are_not_stuck(preset: str, dtype: DType, size: int, gain: float) -> None:
    """Growing tiles got there only so far: by any strategy a100 took 27 times its peak's time."""
    graph = toys.matmul_graph(size, size, size, dtype)
    layer = Layer(graph, load_preset(preset), 1, inside=False)
    plan = grown(layer)
    assert in_grids(layer, plan).predicted_cycles * gain <= plan.predicted_cycles


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
        schedule = Schedule(layer.graph, emit(plan, machine.home.name), "grids", 0)
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


def ran(layer: Layer, plan: Plan) -> int:
    """Simulated cycles."""
    schedule = Schedule(layer.graph, emit(plan, layer.machine.home.name), "grids", 0)
    verify(schedule, layer.machine)
    return simulate_unit(lower_unit(schedule, layer.machine, "s" * 64), layer.machine).cycles


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
    layer = Layer(toys.matmul_graph(*shape), load_preset(preset), chain, joins=False)
    plan = layer.plan(sizes)
    assert plan is not None
    assert plan.predicted_cycles == pytest.approx(ran(layer, plan), rel=0.03)


def test_units_that_get_no_tile_are_not_split_over() -> None:
    """In tiles of 48 each of 15 parts gets two, so that four would get none."""
    layer = Layer(toys.matmul_graph(1024, 224, 256), load_preset("a100"))
    plan = layer.plan(Sizes(({"a0": 48, "a1": 32, "a2": 256},), True, ({"a0": 15, "a1": 7},)))
    assert plan is not None
    assert plan.levels[0].splits == {"a0": 11, "a1": 7}


def test_few_units_with_large_tiles() -> None:
    """Where a port is all that counts, units that are left idle make room for reuse."""
    layer = Layer(toys.matmul_graph(64, 3072, 768), load_preset("kapla-16x16"), joins=False)
    plan = grown(layer)
    assert plan is not None
    found = in_grids(layer, plan)
    assert found.levels[0].units_used <= layer.needed[0].units // 4
    many = layer.plan(Sizes(({"a0": 32, "a1": 64, "a2": 64},), True, ({"a0": 2, "a1": 48},)))
    assert many is not None
    assert ran(layer, found) * 1.5 < ran(layer, many)
