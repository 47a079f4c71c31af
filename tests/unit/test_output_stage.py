"""Output stages by hand: which bodies are one pass, what it takes, and that bounds still hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest
from corpus_files import CORPUS, body, machine_named
from kernel_toys import ORIGIN, conv_graph, elementwise_graph, graph_of
from kernel_toys import machine as flat_machine
from naive_schedules import naive_schedule

from worker.compiler.cost.bounds import bound_cycles
from worker.compiler.cost.compute import able_engines, elementary_ops, engine_cycles, pick_engine
from worker.compiler.cost.floor import kernel_floor
from worker.compiler.cost.output_stage import stage_passes
from worker.compiler.descriptors import strategies
from worker.compiler.ir.affine import Affine, const, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Reduce, Tensor, TensorOp
from worker.compiler.ir.parse import parse_graph
from worker.compiler.ir.scalar import Apply, Cast, Const, Fn, Index, Read, Scalar, Select
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import EngineKind, Machine, StageOperation
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.strategies.base import Budget
from worker.simulator.run import simulate_unit

B, Q, A, ADD, SCALED, MUL, POOL, TABLE = StageOperation
SHAPE = (1, 4, 6, 6)


def f32(value: float) -> Const:
    return Const(value, DType.F32)


def i32(value: int) -> Const:
    return Const(value, DType.I32)


def do(fn: Fn, *args: Scalar) -> Scalar:
    return Apply(fn, args)


def scaled(value: Scalar, scale: float | Scalar) -> Scalar:
    return do(Fn.MUL, Cast(DType.F32, value), scale if not isinstance(scale, float) else f32(scale))


def saturated(value: Scalar) -> Scalar:
    return Cast(DType.I8, do(Fn.ROUND, value))


def epilogue(
    value: Scalar, reads: str, dtypes: tuple[DType, ...], out: DType = DType.I8,
    shape: tuple[int, ...] = SHAPE,
) -> Graph:  # fmt: skip
    """`reads`: d an element for each point, c one per channel, b broadcast over rows, s all one."""
    axes = tuple(Axis(f"i{k}", extent) for k, extent in enumerate(shape))
    index = tuple(var(a.name) if a.extent > 1 else const(0) for a in axes)
    kinds: Mapping[str, tuple[tuple[Affine, ...], tuple[int, ...]]] = {
        "d": (index, shape), "c": ((index[1],), shape[1:2]), "s": ((const(0),), (1,)),
        "b": ((const(0), const(0), *index[2:]), (1, 1, *shape[2:])),
    }  # fmt: skip
    accesses = tuple(Access(f"x{k}", kinds[kind][0]) for k, kind in enumerate(reads))
    op = TensorOp("ew", axes, accesses, Access("z", index), value, None, ORIGIN)
    tensors = tuple(
        Tensor(f"x{k}", kinds[kind][1], dtype)
        for k, (kind, dtype) in enumerate(zip(reads, dtypes, strict=True))
    )
    return graph_of(op, (*tensors, Tensor("z", shape, out)))


def passes(graph: Graph) -> list[set[StageOperation]]:
    (op,) = graph.ops
    types = tuple(graph.tensors[a.tensor].dtype for a in (*op.reads, op.write))
    return [set(found) for found in stage_passes(op, types)[1]]


ACC = (DType.I32, DType.I32, DType.F32)
REQUANTISED = saturated(scaled(do(Fn.ADD, Read(0), Read(1)), Read(2)))
SUM = do(Fn.ADD, scaled(do(Fn.SUB, Read(0), i32(3)), 0.5), scaled(Read(1), 0.25))
"""Of two quantised tensors with scales of their own."""

ONE_PASS: dict[str, tuple[Scalar, str, tuple[DType, ...], set[StageOperation]]] = {
    "bias and requantisation": (REQUANTISED, "dcc", ACC, {B, Q}),
    "one scale": (saturated(scaled(do(Fn.ADD, Read(0), Read(1)), 0.5)), "dc", ACC[:2], {B, Q}),
    "limits after the rounding": (
        Cast(DType.I8, do(Fn.MIN, do(Fn.MAX, do(Fn.ADD, do(Fn.ROUND, scaled(Read(0), 0.1)),
                                                f32(-4.0)), f32(0.0)), f32(6.0))),
        "d", ACC[:1], {Q, A},
    ),
    "relu alone": (do(Fn.MAX, Read(0), i32(0)), "d", (DType.I8,), {A}),
    "leaky": (
        saturated(Select(do(Fn.LT, scaled(Read(0), 0.5), f32(0.0)),
                         do(Fn.MUL, scaled(Read(0), 0.5), f32(0.1)), scaled(Read(0), 0.5))),
        "d", ACC[:1], {Q, A},
    ),
    "addition": (saturated(do(Fn.DIV, SUM, f32(0.7))), "dd", (DType.I8,) * 2,
                 {Q, SCALED}),
    "addition of one scale": (
        saturated(do(Fn.SUB, scaled(Read(0), 0.5), scaled(do(Fn.SUB, Read(1), i32(9)), 0.5))), "dd",
        (DType.I8,) * 2, {Q, ADD},
    ),
    "addition and relu": (
        saturated(do(Fn.DIV, do(Fn.MAX, SUM, f32(0.0)), f32(0.7))), "dd", (DType.I8,) * 2,
        {Q, A, SCALED},
    ),
    "product": (
        saturated(do(Fn.MUL, scaled(Read(0), 0.5), scaled(Read(1), 0.1))), "dd", (DType.I8,) * 2,
        {Q, MUL},
    ),
    "narrowed by its write": (Read(0), "d", (DType.I32,), {Q}),
}  # fmt: skip

NO_PASS: dict[str, tuple[Scalar, str, tuple[DType, ...]]] = {
    "a copy": (Read(0), "d", (DType.I8,)),
    "exponential": (saturated(do(Fn.EXP, scaled(Read(0), 0.5))), "d", ACC[:1]),
    "two roundings": (
        saturated(do(Fn.MUL, do(Fn.ROUND, scaled(Read(0), 0.1)), f32(3.0))), "d", ACC[:1]),
    "half a step after the rounding": (
        Cast(DType.I8, do(Fn.ADD, do(Fn.ROUND, scaled(Read(0), 0.1)), f32(0.5))), "d", ACC[:1]),
    "limits twice": (
        saturated(do(Fn.MAX, scaled(do(Fn.MAX, Read(0), i32(0)), 0.1), f32(1.0))), "d", ACC[:1]),
    "a limit before the addition": (
        saturated(do(Fn.ADD, scaled(do(Fn.MAX, Read(0), i32(0)), 0.1), scaled(Read(1), 0.1))),
        "dd", (DType.I8,) * 2),
    "a square": (saturated(do(Fn.MUL, scaled(Read(0), 0.1), scaled(Read(0), 0.1))), "d", ACC[:1]),
    "three summands": (
        saturated(do(Fn.ADD, SUM, scaled(Read(2), 0.1))), "ddd", (DType.I8,) * 3),
    "two biases": (
        saturated(scaled(do(Fn.ADD, do(Fn.ADD, Read(0), Read(1)), Read(2)), 0.5)), "dcc",
        (DType.I32,) * 3),
    "a mask over rows": (saturated(scaled(do(Fn.ADD, Read(0), Read(1)), 0.5)), "db", ACC[:2]),
    "a divisor by place": (
        saturated(do(Fn.DIV, scaled(Read(0), 0.5), Cast(DType.F32, Index(var("i2"))))), "d",
        ACC[:1]),
    "a quotient of data": (do(Fn.DIV, f32(1.0), scaled(Read(0), 0.5)), "d", ACC[:1]),
    "another offset on one side": (
        Select(do(Fn.LT, Read(0), i32(0)), do(Fn.ADD, Read(0), i32(5)), Read(0)), "d", ACC[:1]),
    "a comparison": (do(Fn.LT, Read(0), i32(0)), "d", ACC[:1]),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_PASS)
def test_one_pass(name: str) -> None:
    value, reads, dtypes, needs = ONE_PASS[name]
    assert needs in passes(epilogue(value, reads, dtypes))


@pytest.mark.parametrize("name", NO_PASS)
def test_no_pass(name: str) -> None:
    value, reads, dtypes = NO_PASS[name]
    assert passes(epilogue(value, reads, dtypes)) == []


def test_any_function_of_a_byte_is_a_table() -> None:
    wave = saturated(do(Fn.SIN, scaled(Read(0), 0.1)))
    assert passes(epilogue(wave, "d", (DType.I8,))) == [{TABLE}]
    assert passes(epilogue(wave, "d", (DType.I16,))) == []
    assert passes(epilogue(wave, "d", (DType.I8,), DType.I16)) == []


def test_a_vector_is_added_as_a_bias_and_rows_of_one_place_as_tensors() -> None:
    """A result of one row has as many elements as channels: rank tells them apart."""
    row = epilogue(REQUANTISED, "dcc", ACC, shape=(1, 10))
    assert {B, Q} in passes(row)
    both = epilogue(saturated(SUM), "dd", (DType.I8,) * 2, shape=(1, 10))
    assert passes(both) == [{Q, SCALED}]


def window(reduce: Reduce, value: Scalar) -> Graph:
    axes = (*(Axis(f"i{k}", n) for k, n in enumerate((4, 3, 3))),
            *(Axis(f"k{k}", 2, AxisKind.REDUCE) for k in range(2)))  # fmt: skip
    index = (var("i0"), var("i1") * 2 + var("k0"), var("i2") * 2 + var("k1"))
    write = Access("z", (var("i0"), var("i1"), var("i2")))
    op = TensorOp("pool", axes, (Access("x0", index),), write, value, reduce, ORIGIN)
    out = DType.I8 if reduce is Reduce.MAX else DType.I32
    return graph_of(op, (Tensor("x0", (4, 6, 6), DType.I8), Tensor("z", (4, 3, 3), out)))


def test_pools() -> None:
    assert passes(window(Reduce.MAX, Read(0))) == [{POOL}]
    assert passes(window(Reduce.ADD, do(Fn.SUB, Read(0), i32(3)))) == [{POOL}]
    assert passes(window(Reduce.MUL, Read(0))) == []
    assert passes(window(Reduce.ADD, do(Fn.MUL, Read(0), Read(0)))) == []
    assert passes(conv_graph(4, 4, 6, 3, 1, 1, DType.I8)) == []


# -- what a pass takes -----------------------------------------------------------------------------


def staged(
    stage: Mapping[StageOperation, Mapping[DType, float]], num_cores: int = 1, special: float = 4.0
) -> Machine:
    on = flat_machine(num_cores)
    return replace(on, engines=tuple(
        replace(e, output_stage=stage, startup_cycles=2, special_ops_per_cycle=special)
        if e.kind is EngineKind.VECTOR else e
        for e in on.engines))  # fmt: skip


def cycles(graph: Graph, on: Machine) -> int:
    (op,) = graph.ops
    engine = pick_engine(op, on, graph.tensors)
    assert engine is not None
    assert engine.name == "vec"
    return engine_cycles(op, tuple(a.extent for a in op.domain), engine, graph.tensors)


STAGE = {
    B: {DType.I8: 8.0}, Q: {DType.I8: 8.0}, A: {DType.I8: 4.0}, ADD: {DType.I8: 6.0},
    SCALED: {DType.I8: 2.0},
    POOL: {DType.I8: 12.0},
}  # fmt: skip


def test_the_slowest_operation_of_a_pass_is_its_rate() -> None:
    """144 elements, 2 cycles to start; elementary operations at 16 a cycle without a stage."""
    on = staged(STAGE)
    graph = epilogue(*ONE_PASS["bias and requantisation"][:3])
    assert cycles(graph, on) == 2 + 144 // 8
    assert elementary_ops(graph.ops[0]) == (5, 0)
    assert cycles(graph, staged({})) == 2 + 144 * 5 // 16
    assert cycles(epilogue(*ONE_PASS["limits after the rounding"][:3]), on) == 2 + 144 // 4
    assert cycles(epilogue(*ONE_PASS["addition and relu"][:3]), on) == 2 + 144 // 2
    one_scale = epilogue(*ONE_PASS["addition of one scale"][:3])
    assert cycles(one_scale, on) == 2 + 144 // 6
    assert cycles(one_scale, staged({k: v for k, v in STAGE.items() if k is not ADD})) == 2 + 72
    assert cycles(window(Reduce.ADD, Read(0)), on) == 2 + 4 * 3 * 3 * 2 * 2 // 12


def test_what_the_stage_lacks_costs_as_before() -> None:
    """A product, which this stage has not; a format that it has not; and data wider than its
    accumulators."""
    for graph in (
        epilogue(*ONE_PASS["product"][:3]),
        epilogue(REQUANTISED, "dcc", ACC, DType.I16),
        epilogue(saturated(scaled(Read(0), 0.5)), "d", (DType.I64,)),
    ):
        assert cycles(graph, staged(STAGE)) == cycles(graph, staged({}))


def test_a_stage_is_a_rate_of_its_own() -> None:
    """Division by a scale needs no special rate in a stage that rescales."""
    graph = epilogue(*ONE_PASS["addition"][:3])
    op = graph.ops[0]
    assert able_engines(op, staged({}, special=0.0), graph.tensors) == ()
    assert [e.name for e in able_engines(op, staged(STAGE, special=0.0), graph.tensors)] == ["vec"]


def test_a_table_is_taken_where_the_stage_has_no_limits() -> None:
    graph = epilogue(*ONE_PASS["relu alone"][:3])
    assert cycles(graph, staged({TABLE: {DType.I8: 1.0}})) == 2 + 144
    both = {TABLE: {DType.I8: 1.0}, A: {DType.I8: 4.0}}
    assert cycles(graph, staged(both)) == 2 + 144 // 4


@pytest.mark.parametrize("name", ONE_PASS)
@pytest.mark.parametrize("num_cores", [1, 2])
def test_bounds_stay_below_the_simulated_run(name: str, num_cores: int) -> None:
    """The fast stage too, where a run takes fewer cycles than operations / rate."""
    value, reads, dtypes, _ = ONE_PASS[name]
    graph = epilogue(value, reads, dtypes)
    for rate in (0.5, 3.0, 64.0):
        on = staged({name: {DType.I8: rate} for name in StageOperation}, num_cores)
        run = simulate_unit(lower_unit(naive_schedule(graph, on), on, "stage"), on)
        assert all(check.passed for check in run.checks), run.checks
        floor = sum(part for _, part in kernel_floor(graph, on))
        assert 0 < bound_cycles(graph, on) <= run.cycles
        assert 0 < floor <= run.cycles
        if rate < 1:
            busy = sum(use.busy_cycles for use in run.engines if use.engine == "vec")
            assert busy >= 144 / rate


def test_the_roofline_of_a_lone_pass_is_its_elements_at_the_rate_of_all_cores() -> None:
    graph = elementwise_graph(do(Fn.MAX, Read(0), i32(0)), (DType.I8,), DType.I8, (64, 64))
    on = staged({A: {DType.I8: 0.25}}, 4)
    assert bound_cycles(graph, on) == 64 * 64 * 4 // 4


@pytest.mark.parametrize("strategy", ["naive", "graphturbo"])
@pytest.mark.parametrize("name", ["one_core", "two_clusters"])
def test_a_requantised_product_is_bounded_whatever_its_stage_does(strategy: str, name: str) -> None:
    """Every candidate of a strategy: an array and a stage behind it, in one kernel."""
    graph = parse_graph(body(CORPUS / "10_requantised.graph"))
    chip = machine_named(name)
    best: dict[float, int] = {}
    for rate in (0.0, 1.0, 8.0, 64.0):
        stage = {operation: {DType.I8: rate} for operation in (Q, A) if rate}
        engines = tuple(
            replace(e, output_stage=stage) if e.kind is EngineKind.VECTOR else e
            for e in chip.engines
        )
        on = replace(chip, engines=engines)
        descriptor = strategies()[strategy]
        options = msgspec.convert({}, descriptor.options)
        least = kernel_floor(graph, on)
        found = []
        for candidate in descriptor.load().candidates(graph, on, options, Budget(4)):
            if isinstance(candidate, Schedule):
                run = simulate_unit(lower_unit(candidate, on, name), on, floor=least)
                assert all(check.passed for check in run.checks), run.checks
                assert 0 < sum(cycles for _, cycles in least) <= run.cycles
                found.append(run.cycles)
        best[rate] = min(found)
    # 96 elements of five operations at 4 a cycle without a stage.
    assert best[64.0] <= best[8.0] <= best[1.0]
    assert best[8.0] < best[0.0]
