"""What engines draw from their own memory and return to it: bytes by hand, and what they cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernel_toys import elementwise_graph, matmul_graph
from naive_schedules import naive_schedule
from test_feeds import ADD, OUTPUT, WEIGHT, array
from test_floor import chip
from test_simulator_units import MACHINE, chain
from toy_schedules import double_then_blur

from worker.compiler.cost.compute import compute_dtypes
from worker.compiler.cost.feeds import feeds_of
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import Opcode
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import Engine
from worker.simulator.results import UnitSimulation
from worker.simulator.run import simulate_unit


def product(engine: Engine, m: int, n: int, k: int, whole: int | None = None) -> tuple[int, int]:
    """(drawn, returned) by an int8 product; `whole`: depth of the operator it is a part of."""
    graph = matmul_graph(m, n, whole or k, DType.I8)
    return feeds_of(graph.ops[0], engine, graph.tensors).of((m, n, k))


def test_an_array_of_which_nothing_is_said_keeps_the_sums_of_a_fold() -> None:
    """Four by eight cells: of 8 x 16 sums two by two folds, each 10 x (4 + 8) bytes."""
    engine = replace(array(OUTPUT, 4, 8), dataflow=None)
    assert product(engine, 8, 16, 10) == (4 * 10 * 12, 8 * 16)
    assert product(engine, 5, 9, 10) == (10 * (2 * 5 + 2 * 9), 5 * 9)
    # A part of the depth takes sums in.
    assert product(engine, 8, 16, 10, whole=20) == (4 * 10 * 12 + 128, 128)
    # A cube reads as its face says, whatever its depth; a lone cell reads both factors each time.
    cube = replace(engine, array=(4, 8, 16))
    assert product(cube, 8, 16, 10) == product(engine, 8, 16, 10)
    assert product(replace(engine, array=()), 8, 16, 10) == (2 * 8 * 16 * 10, 128)


def test_an_array_that_is_described_moves_what_its_dataflow_says() -> None:
    """Weights once, 100 x 8 inputs for each of two folds of columns; sums out once for each of two
    folds of depth and in for the second, or held."""
    engine = array(WEIGHT, 8, 4)
    assert product(engine, 100, 8, 8) == (64 + 2 * 800, 800)
    assert product(engine, 100, 8, 16) == (128 + 2 * 1600 + 800, 1600)
    held = replace(engine, dataflow=replace(WEIGHT, accumulator_bytes=400))
    assert product(held, 100, 8, 16) == (128 + 2 * 1600, 800)


def test_lanes_and_batches_move_their_own() -> None:
    engine = replace(array(OUTPUT, 4, 8), dataflow=None)
    graph = matmul_graph(8, 16, 10, DType.I8)
    feeds = feeds_of(graph.ops[0], engine, graph.tensors)
    assert feeds.of((8, 16, 10), lanes=3) == (3 * 480, 3 * 128)
    assert feeds.of((0, 16, 10)) == (0, 0)


def test_a_vector_engine_moves_each_element_of_an_instruction_once() -> None:
    vec = next(e for e in chip().engines if e.name == "vec")
    graph = elementwise_graph(ADD, (DType.F32,) * 2, DType.F32, (32, 32))
    assert feeds_of(graph.ops[0], vec, graph.tensors).of((32, 32)) == (2 * 4096, 4096)
    # A product reads both factors for every multiply-accumulate: nobody says what would spare it.
    dense = matmul_graph(8, 16, 10)
    feeds = feeds_of(dense.ops[0], vec, dense.tensors)
    assert feeds.of((8, 16, 10)) == (2 * 8 * 16 * 10 * 4, 8 * 16 * 4)
    # A window of three reads an element thrice; a part of it takes sums in.
    average = double_then_blur(16, 8)
    feeds = feeds_of(average.op("blur"), vec, average.tensors)
    assert feeds.of((16, 8, 3)) == (3 * 512, 512)
    assert feeds.of((16, 8, 1)) == (512 + 512, 512)


def item(sim: UnitSimulation, name: str) -> float:
    return {line.item: line.pj for line in sim.energy}[name]


def test_a_kernel_is_charged_for_what_its_instructions_move() -> None:
    """However it is tiled, an addition reads both summands and writes the sum, once."""
    on = chip()
    graph = elementwise_graph(ADD, (DType.F32,) * 2, DType.F32, (64, 96))
    program = lower_unit(naive_schedule(graph, on), on, "s")
    rows = program.instructions
    computes = rows[rows["opcode"] == int(Opcode.COMPUTE)]
    assert (rows["drawn"] == 0).sum() == len(rows) - len(computes)
    num_bytes = 64 * 96 * 4
    assert (computes["drawn"].sum(), computes["returned"].sum()) == (2 * num_bytes, num_bytes)
    memory = on.level(on.engine("vec").memory)
    expected = (2 * memory.read_energy_pj_per_byte + memory.write_energy_pj_per_byte) * num_bytes
    assert item(simulate_unit(program, on), f"feed:{memory.name}") == pytest.approx(expected)


def test_operations_cost_what_their_own_format_costs() -> None:
    """The engine's price of f32 is 2, of i8 0.5; the operand is f32."""
    for dtype, per_op in ((None, 2.0), (DType.F32, 2.0), (DType.I8, 0.5)):
        formats = {} if dtype is None else {0: dtype}
        assert item(simulate_unit(chain(), MACHINE, formats=formats), "mac") == 40 * per_op
    # One that the engine has no price for: as if nothing were known.
    assert item(simulate_unit(chain(), MACHINE, formats={0: DType.F16}), "mac") == 40 * 2.0


def test_formats_are_those_of_the_operators() -> None:
    graph = matmul_graph(8, 16, 10, DType.I8)
    assert compute_dtypes(graph) == {0: DType.I8}
