"""What feeding an array costs, by hand: SCALE-Sim's formula, second registers, ports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from export_cases import matmul_nest
from kernel_toys import conv_graph, elementwise_graph, matmul_graph
from naive_schedules import naive_schedule
from test_floor import chip, only
from test_machine_lint import tiny
from toy_schedules import double_then_blur

from worker.compiler.cost.compute import engine_cycles, pace_of, pick_engine
from worker.compiler.cost.floor import kernel_floor
from worker.compiler.export.unroll import Unrolled, unroll
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import load_machine
from worker.compiler.machine.dataflow import Dataflow, Stationary
from worker.compiler.machine.machine import Engine, EngineKind, Machine
from worker.simulator.run import simulate_unit

WEIGHT = Dataflow(Stationary.WEIGHT)
OUTPUT = Dataflow(Stationary.OUTPUT)
ADD = Apply(Fn.ADD, (Read(0), Read(1)))


def array(flow: Dataflow, rows: int = 128, columns: int = 128, **more: Any) -> Engine:
    """An int8 array of a MAC a cycle and cell; its ports are free."""
    rates = {DType.I8: float(rows * columns)}
    return Engine("pe", EngineKind.MATRIX, "L1", rates, (rows, columns), dataflow=flow, **more)


def product(engine: Engine, m: int, n: int, k: int, whole: int | None = None) -> int:
    """Cycles of an int8 product; `whole`: depth of the operator that it is a part of."""
    graph = matmul_graph(m, n, whole or k, DType.I8)
    return engine_cycles(graph.ops[0], (m, n, k), engine, graph.tensors)


# -- arrays ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "cycles"), [(512, 57_216), (49, 27_584), (1, 24_512)])
def test_weights_kept_take_what_scale_sim_publishes(m: int, cycles: int) -> None:
    """64 folds of 2 rows + columns + m - 2: weights in, inputs through, skew."""
    assert cycles == 64 * (2 * 128 + 128 + m - 2)
    assert product(array(WEIGHT), m, 1024, 1024) == cycles


def test_sums_kept_take_what_scale_sim_publishes() -> None:
    """Four by eight folds of 2 rows + columns + k - 2; edges cost as much as whole folds."""
    assert product(array(OUTPUT), 512, 1024, 300) == 32 * (2 * 128 + 128 + 300 - 2)
    assert product(array(OUTPUT), 385, 897, 300) == 32 * (2 * 128 + 128 + 300 - 2)
    # Rows and columns differ: rows are shifted out.
    assert product(array(OUTPUT, 16, 32), 16, 32, 7) == 2 * 16 + 32 + 7 - 2


def test_second_registers_hide_loads_behind_the_fold_before() -> None:
    doubled = replace(WEIGHT, is_double_buffered=True)
    skewed = 512 + 254
    assert product(array(doubled), 512, 1024, 1024) == 128 + 64 * skewed
    # One row takes 1 + 254 to pass: longer than the 128 of the next load.
    assert product(array(doubled), 1, 1024, 1024) == 128 + 64 * 255
    # And without gaps between folds one skew is left; of a single row the loads count.
    pipelined = replace(doubled, is_pipelined=True)
    assert product(array(pipelined), 512, 1024, 1024) == 128 + 64 * 512 + 254
    assert product(array(pipelined), 1, 1024, 1024) == 64 * 128 + 1 + 254
    # Kept sums leave while the next fold is computed.
    leaving = replace(OUTPUT, is_double_buffered=True)
    assert product(array(leaving), 512, 1024, 300) == 32 * (300 + 254) + 128


def least(engine: Engine, m: int, n: int, k: int) -> tuple[int, int]:
    """(cycles of a product at least, however it is cut; cycles of each instruction besides)."""
    graph = matmul_graph(m, n, k, DType.I8)
    pace = pace_of(graph.ops[0], engine, graph.tensors)
    return pace.least((m, n, k)), pace.least_of((m, n, k))[0].once


def test_the_least_has_each_load_once() -> None:
    plain = array(WEIGHT)
    assert least(plain, 512, 1024, 1024) == (57_216, 0)
    # Loads are hidden but the first, and of skews one is left.
    both = array(replace(WEIGHT, is_double_buffered=True, is_pipelined=True))
    assert least(both, 512, 1024, 1024) == (64 * 512, 254 + 128)
    # Where loads take longest they are all there is: the first is among them.
    assert least(both, 1, 1024, 1024) == (64 * 128, 254)
    # Accumulators of 40 bytes hold ten rows of four sums: ten stripes, each with its load.
    small = array(replace(WEIGHT, accumulator_bytes=40), 8, 4)
    assert product(small, 100, 4, 8) == 10 * (8 + 10 + 10)
    assert least(small, 100, 4, 8) == (10 * (8 + 10 + 10), 0)


def test_loads_with_a_way_of_their_own() -> None:
    """A fold of 16 KiB at 64 bytes a cycle takes 256, the shift 128: the longer counts."""
    narrow = replace(WEIGHT, load_bytes_per_cycle=64.0)
    assert product(array(narrow), 512, 1024, 1024) == 64 * (256 + 512 + 254)
    wide = replace(WEIGHT, load_bytes_per_cycle=1024.0)
    assert product(array(wide), 512, 1024, 1024) == 57_216
    # Nothing is shifted where cells are addressed: 16 cycles, no skew.
    flat = replace(wide, is_systolic=False)
    assert product(array(flat), 512, 1024, 1024) == 64 * (16 + 512)


def test_depthwise_products_load_an_array_for_each_channel() -> None:
    """25 of 128 rows and one column: 64 folds of 128 + 36 + 254."""
    graph = conv_graph(64, 64, 10, 5, dtype=DType.I8, groups=64)
    (op,) = graph.ops
    extents = tuple(axis.extent for axis in op.domain)
    assert engine_cycles(op, extents, array(WEIGHT), graph.tensors) == 64 * (128 + 36 + 254)
    # Nor do lanes help: columns of one fold share what streams.
    one = engine_cycles(op, (1, *extents[1:]), array(WEIGHT), graph.tensors, lanes=64)
    assert one == 64 * (128 + 36 + 254)


def test_an_array_that_loads_for_long_loses_small_products() -> None:
    on = chip()
    fast = next(e for e in on.engines if e.name == "mme")
    slow = replace(fast, dataflow=replace(WEIGHT, load_bytes_per_cycle=0.5))
    graph = matmul_graph(4, 64, 64)
    for engine, winner in ((fast, "mme"), (slow, "vec")):
        machine = replace(on, engines=(engine, *on.engines[1:]))
        picked = pick_engine(graph.ops[0], machine, graph.tensors)
        assert picked is not None
        assert picked.name == winner


# -- ports -----------------------------------------------------------------------------------------


def test_a_feed_brings_weights_once_and_inputs_for_every_fold_of_columns() -> None:
    """100 x 8 inputs in two folds of columns and the weights once: 2 x 800 + 64 bytes."""
    flow = replace(WEIGHT, is_systolic=False, is_double_buffered=True, accumulator_bytes=1 << 20)
    engine = array(flow, 8, 4, feed_bytes_per_cycle=2.0)
    # A load of 32 bytes takes 16; 800 bytes of inputs 400, with the next weights 416.
    assert product(engine, 100, 8, 8) == 16 + 416 + 400
    # At 16 a cycle: 2, and the array needs 100 for each fold.
    assert product(replace(engine, feed_bytes_per_cycle=16.0), 100, 8, 8) == 2 + 100 + 100


def test_sums_return_to_memory_unless_accumulators_hold_them() -> None:
    """Two folds of depth, 100 x 4 sums of a byte: out twice and in once, or out once."""
    flow = replace(WEIGHT, is_systolic=False)
    engine = array(flow, 8, 4, feed_bytes_per_cycle=8.0, drain_bytes_per_cycle=2.0)
    assert product(engine, 100, 4, 16) == 2 * 4 + 200 + 200
    held = replace(engine, dataflow=replace(flow, accumulator_bytes=400))
    assert product(held, 100, 4, 16) == 2 * 4 + 100 + 200
    # A byte less holds 99 rows: a stripe of them, then one of a single row, each with its loads.
    short = replace(engine, dataflow=replace(flow, accumulator_bytes=399))
    assert product(short, 100, 4, 16) == (4 + 99 + 4 + 198) + (4 + 1 + 4 + 2)
    none = replace(engine, dataflow=replace(flow, accumulator_bytes=3))
    assert product(none, 100, 4, 16) == product(engine, 100, 4, 16)
    # A part of the depth takes sums in and gives them back, whichever part it is.
    fed = replace(held, feed_bytes_per_cycle=2.0, drain_bytes_per_cycle=0.0)
    assert product(fed, 100, 4, 8, whole=16) == 16 + (800 + 400) // 2
    assert product(fed, 100, 4, 8) == 16 + 800 // 2


def test_kept_sums_stream_both_factors() -> None:
    """A fold of 4 x 8: 10 x (4 + 8) bytes in at 4 a cycle, 32 out at 8."""
    flow = replace(OUTPUT, is_systolic=False)
    engine = array(flow, 4, 8, feed_bytes_per_cycle=4.0, drain_bytes_per_cycle=8.0)
    assert product(engine, 4, 8, 10) == 30 + 4
    # Folds of 16 x 16 read each factor less often: of 32 x 32 x 10 each comes twice.
    wide = replace(engine, dataflow=replace(flow, hold=(16, 16)))
    assert product(wide, 32, 32, 10) == 4 * (max(80, 10 * 32 // 4) + 32)
    assert product(engine, 32, 32, 10) == 32 * (30 + 4)


def test_a_vector_engine_waits_for_its_ports() -> None:
    """1024 sums at 8 a cycle take 128; 8 KiB in at 16 take 512, 4 KiB out at 4 take 1024."""
    graph = elementwise_graph(ADD, (DType.F32,) * 2, DType.F32, (32, 32))
    (op,) = graph.ops
    vec = next(e for e in chip().engines if e.name == "vec")
    for ports, cycles in (((0.0, 0.0), 128), ((16.0, 0.0), 512), ((16.0, 4.0), 1024)):
        engine = replace(vec, feed_bytes_per_cycle=ports[0], drain_bytes_per_cycle=ports[1])
        assert engine_cycles(op, (32, 32), engine, graph.tensors) == 2 + cycles
        assert pace_of(op, engine, graph.tensors).least((32, 32)) == cycles
    # A window of three reads an element thrice; a part of it takes sums in and gives them back.
    average = double_then_blur(16, 8)
    blur = average.op("blur")
    narrow = replace(vec, feed_bytes_per_cycle=4.0)
    assert engine_cycles(blur, (16, 8, 3), narrow, average.tensors) == 2 + 3 * 128
    assert engine_cycles(blur, (16, 8, 1), narrow, average.tensors) == 2 + 2 * 128


# -- documents -------------------------------------------------------------------------------------


def loaded(**changes: Any) -> Machine:
    document = tiny()
    document["engines"][0].update(changes)
    return load_machine(document)


def test_what_is_left_out_is_a_guess() -> None:
    machine = loaded()
    guesses = {g.pointer: (g.value, g.note) for g in machine.guesses}
    assert machine.engine("MM").dataflow is None
    assert guesses["/engines/0/dataflow"][0] == "none"
    for k in (0, 1):
        value, note = guesses[f"/engines/{k}/feed_bytes_per_cycle"]
        assert (value, note) == ("unlimited", "not given; its operands cost the engine no time")
    # An array that is described is fed by its memory's port: L1 has one in each of four cores.
    machine = loaded(dataflow={"stationary": "weight"})
    guesses = {g.pointer: (g.value, g.note) for g in machine.guesses}
    engine = machine.engine("MM")
    assert (engine.feed_bytes_per_cycle, engine.drain_bytes_per_cycle) == (8, 8)
    assert guesses["/engines/0/feed_bytes_per_cycle"] == (
        "8", "not given; the core's share of L1's port"
    )  # fmt: skip
    assert "/engines/0/dataflow" not in guesses
    # What is given is no guess, unless it says so.
    machine = loaded(
        dataflow={"stationary": {"value": "output", "tag": "G"}, "systolic": False},
        feed_bytes_per_cycle=4, drain_bytes_per_cycle={"value": 2, "tag": "P"},
    )  # fmt: skip
    engine = machine.engine("MM")
    assert engine.dataflow == Dataflow(Stationary.OUTPUT, is_systolic=False)
    assert (engine.feed_bytes_per_cycle, engine.drain_bytes_per_cycle) == (4, 2)
    mine = [(g.pointer, g.value) for g in machine.guesses if g.pointer.startswith("/engines/0/")]
    assert ("/engines/0/dataflow/stationary", "output") in mine
    assert not [p for p, _ in mine if p.endswith("_bytes_per_cycle")]


def test_a_narrow_port_of_the_memory_is_felt() -> None:
    """10-truth: from 4096 to 64 bytes a cycle a buffer's port moved a product by a tenth."""
    cycles = []
    for port in (4096, 64):
        document = tiny()
        document["engines"][0].update(dataflow={"stationary": "weight"})
        document["levels"][2]["read_bytes_per_cycle"] = port / 32
        machine = load_machine(document)
        graph = matmul_graph(256, 64, 64)
        extents = (256, 64, 64)
        cycles.append(engine_cycles(graph.ops[0], extents, machine.engine("MM"), graph.tensors))
    assert cycles[1] > 4 * cycles[0]


# -- whole kernels ---------------------------------------------------------------------------------


def run(graph: Graph, machine: Machine) -> tuple[int, dict[str, int]]:
    found = simulate_unit(lower_unit(naive_schedule(graph, machine), machine, "s"), machine)
    assert sum(cycles for _, cycles in kernel_floor(graph, machine)) <= found.cycles
    return found.cycles, {c.cause: c.cycles for c in found.causes}


@pytest.mark.parametrize("flow", [WEIGHT, OUTPUT, replace(WEIGHT, is_double_buffered=True)])
def test_a_starved_feed_takes_time_and_is_blamed(flow: Dataflow) -> None:
    """The kernel is longer by what its feed lacks."""
    graph = matmul_graph(64, 64, 64)
    fed = only(chip(), "mme")
    engine = replace(fed.engine("mme"), dataflow=flow)
    wide, narrow = (
        replace(fed, engines=(replace(engine, feed_bytes_per_cycle=rate), *fed.engines[1:]))
        for rate in (1e6, 2.0)
    )
    (fast, _), (slow, causes) = run(graph, wide), run(graph, narrow)
    assert slow > 2 * fast
    assert max(causes, key=causes.__getitem__) == "feed:mme"


# -- exports ---------------------------------------------------------------------------------------


def test_exports_unroll_what_the_dataflow_lays_along_the_array() -> None:
    """A tile of 4 x 16 x 4 on 4 x 4 cells takes 16 steps, over the extent that streams first."""
    nest = matmul_nest()
    rows, columns, depth = range(3)
    for kept, sides in (
        (Stationary.WEIGHT, (depth, columns)),
        (Stationary.INPUT, (depth, rows)),
        (Stationary.OUTPUT, (rows, columns)),
    ):
        engine = replace(nest.engine, dataflow=Dataflow(kept))
        found = unroll(replace(nest, engine=engine))
        assert isinstance(found, Unrolled)
        assert found.spatial == tuple(((side, 4),) for side in sides)
        assert found.num_passes == 16


# -- whom a wait is blamed on ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("narrow", "flow"),
    [
        ({"feed_bytes_per_cycle": 2.0}, WEIGHT),
        ({"drain_bytes_per_cycle": 0.5}, OUTPUT),
        ({"feed_bytes_per_cycle": 64.0}, replace(WEIGHT, load_bytes_per_cycle=0.25)),
        ({"feed_bytes_per_cycle": 1e6}, WEIGHT),
    ],
)
def test_a_program_says_what_ports_cost(narrow: dict[str, float], flow: Dataflow) -> None:
    """Of every instruction, what the same engine with ports of any width would not take."""
    graph = matmul_graph(24, 20, 28, DType.I8)
    own = array(flow, 8, 8, **narrow)
    at_once = replace(
        own, dataflow=replace(flow, load_bytes_per_cycle=0.0), feed_bytes_per_cycle=0.0,
        drain_bytes_per_cycle=0.0,
    )  # fmt: skip
    on = chip()
    rest = tuple(
        replace(e, macs_per_cycle=dict.fromkeys(e.macs_per_cycle, 1e-3))  # nobody multiplies there
        for e in on.engines
        if e.kind is not EngineKind.MATRIX
    )
    machine, apart = (replace(on, engines=(engine, *rest)) for engine in (own, at_once))
    schedule = naive_schedule(graph, machine)
    unit = lower_unit(schedule, machine, "s" * 64)
    rows = unit.instructions[unit.instructions["op"] >= 0]
    free = lower_unit(schedule, apart, "s" * 64).instructions
    cost = rows["cycles"] - free[free["op"] >= 0]["cycles"]
    assert rows["starved"].tolist() == cost.tolist()
    assert (cost > 0).any() == (narrow != {"feed_bytes_per_cycle": 1e6})
    run = simulate_unit(unit, machine)
    blamed = {blame.cause: blame.cycles for blame in run.blame}
    assert sum(b.cycles for b in run.blame) == run.cycles
    assert ("feed:pe" in blamed) == (cost > 0).any()
