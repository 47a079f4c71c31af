"""The cost model by hand on toy schedules: work, padding, traffic, bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernel_toys import conv_graph, elementwise_graph
from toy_schedules import TOYS, double_then_blur, matmul, row_fused, weight_prefetch

from worker.compiler.cost.bounds import bound_cycles
from worker.compiler.cost.compute import (
    contraction,
    elementary_ops,
    engine_cycles,
    pick_engine,
    rate,
    work,
)
from worker.compiler.cost.floor import kernel_floor
from worker.compiler.cost.traffic import compulsory_bytes
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce
from worker.compiler.ir.scalar import Apply, Const, Fn, Read
from worker.compiler.lower.lower import lower_unit
from worker.simulator.run import simulate_unit


def test_roles_of_a_matmul() -> None:
    op = matmul("mm", "t0", "t1", "t2", 10, 6, 5)
    roles = contraction(op)
    assert roles is not None
    assert (roles.rows, roles.columns, roles.depth, roles.batch) == ((0,), (1,), (2,), ())
    assert work(op, 300) == 300
    blur = double_then_blur(4, 3).op("blur")
    assert contraction(blur) is None
    assert elementary_ops(blur) == (1, 0)


def test_array_padding_counts() -> None:
    schedule, toy, _ = row_fused()
    op = schedule.graph.op("mm")
    engine = toy.engine("mme")
    # m 10, n 6 -> 8 columns, k 5 -> 8 rows: 640 padded MACs at 16 a cycle, plus 4 to start.
    assert engine_cycles(op, (10, 6, 5), engine, schedule.graph.tensors) == 4 + 40
    assert engine_cycles(op, (10, 2, 5), engine, schedule.graph.tensors, lanes=3) == 4 + 40
    assert engine_cycles(op, (0, 6, 5), engine, schedule.graph.tensors) == 0


def test_engines_by_kind_and_type() -> None:
    schedule, toy, _ = row_fused()
    graph = schedule.graph
    # Padded to the array, the small product takes 44 cycles there and 40 on the vector engine.
    picked = [pick_engine(graph.op(n), toy, graph.tensors) for n in ("mm", "relu")]
    assert [e.name for e in picked if e] == ["vec", "vec"]
    full = weight_prefetch()[0].graph
    engine = pick_engine(full.op("mm0"), toy, full.tensors)
    assert engine is not None
    assert engine.name == "mme"
    assert rate(toy.engine("mme"), DType.I64) == 0
    assert rate(toy.engine("vec"), DType.I64) == 8, "not listed: at the slowest rate"


def test_a_multiply_accumulate_is_one_operation_of_a_vector_engine() -> None:
    """Points / rate cycles, and two to start: a rate is of MACs on every kind of engine."""
    toy = row_fused()[1]
    vec = toy.engine("vec")
    alone = replace(toy, engines=tuple(e for e in toy.engines if e.name != "mme"))
    for dtype, speed in ((DType.F32, 8), (DType.F16, 16)):
        graph = conv_graph(16, 16, 14, 5, 1, 2, dtype, groups=16)
        (op,) = graph.ops
        points = 16 * 14 * 14 * 5 * 5
        assert pick_engine(op, toy, graph.tensors) == vec  # 25 x 1 would be padded up to 28 x 4
        assert elementary_ops(op) == (1, 0)
        assert work(op, points) == points
        extents = tuple(a.extent for a in op.domain)
        assert engine_cycles(op, extents, vec, graph.tensors) == 2 + points // speed
        # The bound is what the engines of both cores need without the start.
        assert bound_cycles(graph, alone) == points // (2 * speed)


def test_what_is_not_a_sum_of_products_counts_every_operation() -> None:
    toy = row_fused()[1]
    vec = toy.engine("vec")
    product = Apply(Fn.MUL, (Read(0), Read(1)))
    graph = elementwise_graph(product, (DType.F32,) * 2, DType.F32, (16, 8))
    (multiply,) = graph.ops
    assert elementary_ops(multiply) == (1, 0)
    assert engine_cycles(multiply, (16, 8), vec, graph.tensors) == 2 + 128 // 8
    # An average adds what it reads: one operation.  (The blur reads three points for each.)
    average = double_then_blur(16, 8)
    blur = average.op("blur")
    assert elementary_ops(blur) == (1, 0)
    assert engine_cycles(blur, (16, 8, 3), vec, average.tensors) == 2 + 3 * 128 // 8
    # The largest product takes a product and a comparison; a zero point is taken off besides.
    largest = replace(matmul("mm", "t0", "t1", "t2", 10, 6, 5), reduce=Reduce.MAX)
    assert elementary_ops(largest) == (2, 0)
    assert work(largest, 300) == 600
    less_zero = Apply(Fn.MUL, (Apply(Fn.SUB, (Read(0), Const(3.0, DType.F32))), Read(1)))
    shifted = replace(matmul("mm", "t0", "t1", "t2", 10, 6, 5), body=less_zero)
    assert contraction(shifted) is not None
    assert elementary_ops(shifted) == (2, 0)


def test_what_must_cross_home() -> None:
    """t0 6x8, t1 8x8 and t3 8x8 are read, t4 6x8 is written; f32."""
    graph = weight_prefetch()[0].graph
    assert compulsory_bytes(graph) == ((48 + 64 + 64) * 4, 48 * 4)


@pytest.mark.parametrize("name", TOYS)
def test_bounds_hold_for_the_simulated_run(name: str) -> None:
    schedule, toy, _ = TOYS[name]()
    simulated = simulate_unit(lower_unit(schedule, toy, name), toy).cycles
    assert 0 < bound_cycles(schedule.graph, toy) <= simulated
    least = sum(cycles for _, cycles in kernel_floor(schedule.graph, toy))
    assert 0 < least <= simulated
