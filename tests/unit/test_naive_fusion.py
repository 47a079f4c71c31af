"""Composites as one kernel: numbers through every stage, bytes saved, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import fused_graphs as fused
import numpy as np
import pytest
from fused_graphs import ADD, ORIGIN, Graph, Step
from kernel_toys import machine as roomy
from kernel_toys import run_units

from worker.compiler.cost.floor import kernel_floor
from worker.compiler.cost.traffic import compulsory_bytes
from worker.compiler.errors import Shortfall, VerifyError
from worker.compiler.ir.affine import Affine, Lookup, var
from worker.compiler.ir.axis import Axis
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.op import Access, Reduce, Tensor, TensorOp
from worker.compiler.ir.region import Cuts
from worker.compiler.ir.scalar import Apply, Const, Fn, Read
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import EngineKind, Machine
from worker.compiler.schedule.interpret import interpret
from worker.compiler.schedule.nodes import Compute, Init, Loop, LoopKind, Move, Place, Schedule, Seq
from worker.compiler.schedule.text import parse_schedule, print_schedule
from worker.compiler.schedule.verify import verify
from worker.compiler.schedule.walk import walk
from worker.compiler.strategies.naive.strategy import NaiveStrategy
from worker.simulator.run import simulate_unit

F32, F16, I8, I32 = DType.F32, DType.F16, DType.I8, DType.I32


def two_engines(capacity_bytes: int = 1 << 24, cores: int = 2) -> Machine:
    """A matrix and a vector engine at one scratchpad per core.

    The vector engine does half the MACs of the matrix engine: products stay on the latter.
    """
    toy = roomy(cores, capacity_bytes)
    halves = dict.fromkeys(DType, 8.0)
    return replace(toy, engines=tuple(
        replace(e, macs_per_cycle=halves, special_ops_per_cycle=2.0) if e.name == "vec" else e
        for e in toy.engines))  # fmt: skip


def gelu_like() -> tuple[Step, ...]:
    """x + b, erf of it, and the product of both: a diamond."""
    return (
        (ADD, ("channel",), F32),
        (Apply(Fn.ERF, (Read(0),)), (), F32),
        (Apply(Fn.MUL, (Read(0), Read(1))), ("@1", "@2"), F32),
    )


GRAPHS: dict[str, Graph] = {
    "conv-bias-relu": fused.composite(
        fused.conv(5, 12, 9, 3), F32, F32,
        ((ADD, ("channel",), F32), (fused.relu(F32), (), F32))),
    "conv-bias-relu-f16": fused.composite(
        fused.conv(5, 12, 9, 3, 2), F16, F16,
        ((ADD, ("channel",), F16), (fused.relu(F32), (), F16))),
    "integer-conv": fused.composite(
        fused.conv(6, 8, 8, 3), I8, I32,
        ((ADD, ("channel",), I32), (fused.requantise(0.037, -128, 127), (), I8))),
    "matmul-gelu": fused.composite(fused.matmul(13, 11, 17), F32, F32, gelu_like()),
    "residual": fused.composite(
        fused.conv(4, 6, 7, 1), F32, F32, ((ADD, ("same",), F32), (fused.relu(F32), (), F32))),
    "grouped": fused.composite(
        fused.grouped(3, 4, 9), F32, F32,
        ((ADD, ("channel",), F32), (Apply(Fn.MUL, (Read(0), Read(1))), ("one",), F32))),
    "max-then-shift": fused.composite(
        fused.reduction(19, 23, Reduce.MAX), F16, F16, ((ADD, ("one",), F16),)),
}  # fmt: skip


def values(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        name: random.integers(-9, 10, graph.tensors[name].shape).astype(
            graph.tensors[name].dtype.numpy
        )
        for name in (*graph.inputs, *graph.constants)
    }


def schedule_of(graph: Graph, machine: Machine) -> Schedule:
    found = fused.planned(graph, machine)
    assert isinstance(found, Schedule), found
    return found


@pytest.mark.parametrize("capacity", [1 << 24, 1200])
def test_every_stage_agrees_with_the_algebra(capacity: int) -> None:
    machine = two_engines(capacity)
    cases = []
    for seed, graph in enumerate(GRAPHS.values()):
        assert fused.grouped_names(graph, machine) == (fused.names(graph),)
        schedule = schedule_of(graph, machine)
        verify(schedule, machine)
        assert parse_schedule(print_schedule(schedule)) == schedule
        program = lower_unit(schedule, machine, "s")
        verify_program(program, machine)
        inputs = values(schedule.graph, seed)
        cases.append((schedule, program, inputs))
        simulated = simulate_unit(program, machine, floor=kernel_floor(schedule.graph, machine))
        assert simulated.cycles >= max(simulated.roofline.cycles, simulated.lower_bound_cycles) > 0
        assert all(check.passed for check in simulated.checks), simulated.checks
    for (schedule, _, inputs), got in zip(cases, run_units(cases, machine), strict=True):
        (name,) = schedule.graph.outputs
        want = evaluate(schedule.graph, inputs)[name]
        meant = interpret(schedule, inputs, home="DDR")[name]
        np.testing.assert_array_equal(meant, want)
        if any(op.body == Apply(Fn.ERF, (Read(0),)) for op in schedule.graph.ops):
            np.testing.assert_allclose(got[name], want, rtol=1e-6)  # numpy's erf is not C's
        else:
            np.testing.assert_array_equal(got[name], want)


@pytest.mark.parametrize("name", GRAPHS)
def test_intermediates_stay_on_the_chip(name: str) -> None:
    """Off-chip bytes: the compulsory ones of the group, and fewer than one by one."""
    graph, machine = GRAPHS[name], two_engines(cores=1)
    # Costly instructions make one tile of everything the best plan.
    slow = tuple(replace(e, startup_cycles=10**6) for e in machine.engines)
    machine = replace(machine, engines=slow)
    schedule = schedule_of(graph, machine)
    assert sum(isinstance(leaf.node, Compute) for leaf in walk(schedule).leaves) == len(graph.ops)
    assert not any(leaf.frames for leaf in walk(schedule).leaves), "one tile"
    home = simulate_unit(lower_unit(schedule, machine, "s"), machine).traffic[0]
    assert (home.read_bytes, home.write_bytes) == compulsory_bytes(graph)
    between = {op.write.tensor for op in graph.ops} - set(graph.outputs)
    cuts, alone = Cuts.of(graph), 0
    for op in graph.ops:
        single = schedule_of(cuts.piece((op.name,)), machine)
        traffic = simulate_unit(lower_unit(single, machine, "s"), machine).traffic[0]
        alone += traffic.read_bytes + traffic.write_bytes
    saved = sum(graph.tensors[t].size_bytes * (1 + len(cuts.readers[t])) for t in sorted(between))
    assert alone == home.read_bytes + home.write_bytes + saved


@pytest.mark.parametrize("capacity", [1 << 24, 1200])
def test_what_the_epilogue_alone_reads_is_fetched_behind_the_sum(capacity: int) -> None:
    """A fetch in front of the sum waits, a tile ahead, for the epilogue of the tile before; loads
    are in order, so the next tile's sum would wait with it (ResNet-50 lost a twentieth)."""
    graph, machine = GRAPHS["residual"], two_engines(capacity)
    schedule = schedule_of(graph, machine)
    (shortcut,) = set(schedule.graph.inputs) & set(schedule.graph.ops[1].input_names())
    leaves = [leaf.node for leaf in walk(schedule).leaves]
    sums = [k for k, node in enumerate(leaves) if isinstance(node, Compute)]
    fetched = [k for k, n in enumerate(leaves) if isinstance(n, Move) and n.tensor == shortcut]
    assert len(fetched) == 1
    assert leaves[sums[0]].op == schedule.graph.ops[0].name
    assert sums[0] < fetched[0] < sums[1]


def test_engines_are_chosen_per_operator() -> None:
    schedule = schedule_of(GRAPHS["conv-bias-relu"], two_engines())
    engines = {n.op: n.engine for n in (leaf.node for leaf in walk(schedule).leaves)
               if isinstance(n, Compute)}  # fmt: skip
    assert engines == {"op0": "mme", "op1": "vec", "op2": "vec"}


def test_two_scratchpads_keep_the_intermediate_inside() -> None:
    machine = load_preset("goya")
    channels = fused.composite(
        fused.conv(64, 64, 14, 3), F16, F16, ((ADD, ("channel",), F16), (fused.relu(F32), (), F16))
    )
    schedule = schedule_of(channels, machine)
    verify(schedule, machine)
    verify_program(lower_unit(schedule, machine, "s"), machine)
    moved = {leaf.node.tensor for leaf in walk(schedule).leaves if isinstance(leaf.node, Move)}
    (stored,) = schedule.graph.outputs
    written = {op.write.tensor for op in schedule.graph.ops}
    assert moved & written == {stored}


def test_reading_an_accumulator_rounds_as_a_drain_does() -> None:
    """1 + 2048 is not an f16: without rounding to f16 in between, minus 2048 would give 1."""
    graph = fused.composite(
        fused.matmul(2, 2, 2), F16, F16,
        ((Apply(Fn.SUB, (Read(0), Read(1))), ("one",), F16),),
    )  # fmt: skip
    machine = two_engines()
    schedule = schedule_of(graph, machine)
    inputs = {"t0": np.array([[2048, 1], [2048, 1]], np.float16),
              "t1": np.ones((2, 2), np.float16), "t3": np.array(2048, np.float16)}  # fmt: skip
    assert set(inputs) == set(schedule.graph.inputs)
    (name,) = schedule.graph.outputs
    want = np.zeros((2, 2), np.float16)
    np.testing.assert_array_equal(evaluate(schedule.graph, inputs)[name], want)
    np.testing.assert_array_equal(interpret(schedule, inputs, home="DDR")[name], want)
    program = lower_unit(schedule, machine, "s")
    np.testing.assert_array_equal(run_units([(schedule, program, inputs)], machine)[0][name], want)


def test_the_longest_beginning_fuses() -> None:
    graph = GRAPHS["conv-bias-relu"]
    machine = two_engines()
    groups = fused.grouped_names(fused.escaping(graph, "r1"), machine)
    assert groups == (("op0", "op1"), ("op2",))
    assert fused.grouped_names(fused.escaping(graph, "r0"), machine) == (
        ("op0",), ("op1",), ("op2",),
    )  # fmt: skip
    assert fused.grouped_names(graph, machine, "op1", "op2") == (("op0",), ("op1", "op2"))


def test_nothing_fuses_unasked() -> None:
    graph = GRAPHS["conv-bias-relu"]
    groups = NaiveStrategy().group(graph, two_engines()).groups
    assert tuple(g.ops for g in groups) == (("op0",), ("op1",), ("op2",))


def with_op(graph: Graph, op: TensorOp, tensor: Tensor, *more: Tensor, at: int = 1) -> Graph:
    """`graph` with an operator put at a position; its result is an output when nothing reads it."""
    ops = (*graph.ops[:at], op, *graph.ops[at:])
    read = {a.tensor for o in ops if isinstance(o, TensorOp) for a in o.reads}
    written = {o.write.tensor for o in ops}
    tensors = (*graph.tensors.values(), tensor, *more)
    table = {t.name: t for t in tensors}
    return Graph.build(
        ops, tuple(table.values()), tuple(n for n in table if n not in written),
        tuple(n for n in table if n in written and n not in read),
    )  # fmt: skip


ROW, COL = var("i"), var("j")


def after_matmul(
    index: tuple[Affine, ...], n: int = 4, write: tuple[Affine, ...] = (ROW, COL)
) -> Graph:
    """A square matmul and an operator that reads it at `index`."""
    graph = fused.composite(fused.matmul(n, n, n), F32, F32, ())
    op = TensorOp(
        "op1", (Axis("i", n), Axis("j", n)), (Access("r0", index, 0.0),), Access("r1", write),
        fused.relu(F32), None, ORIGIN,
    )  # fmt: skip
    return with_op(graph, op, Tensor("r1", (n, n), F32))


@pytest.mark.parametrize(
    "graph",
    [
        after_matmul((COL, ROW)),
        after_matmul((ROW, Affine.of(0))),
        after_matmul((ROW, COL + 1)),
        after_matmul((ROW, COL), write=(COL, ROW)),
    ],
    ids=["transposed", "broadcast", "shifted", "written elsewhere"],
)
def test_a_read_that_is_not_elementwise_is_refused(graph: Graph) -> None:
    assert fused.grouped_names(graph, two_engines()) == (("op0",), ("op1",))
    assert fused.grouped_names(after_matmul((ROW, COL)), two_engines()) == (("op0", "op1"),)


def test_a_path_through_an_operator_outside_is_refused() -> None:
    """op1 reads op0 and feeds op2: op0 and op2 in one kernel would wait for each other."""
    graph = after_matmul((ROW, COL))
    op = TensorOp(
        "op2", (Axis("i", 4), Axis("j", 4)), (Access("r0", (ROW, COL)), Access("r1", (ROW, COL))),
        Access("r2", (ROW, COL)), ADD, None, ORIGIN,
    )  # fmt: skip
    whole = with_op(graph, op, Tensor("r2", (4, 4), F32), at=2)
    machine = two_engines()
    assert fused.grouped_names(whole, machine, "op0", "op2") == (("op0",), ("op1",), ("op2",))
    assert fused.grouped_names(whole, machine) == (("op0", "op1", "op2"),)


def test_a_group_stands_where_its_last_operator_was() -> None:
    graph = after_matmul((ROW, COL))
    other = TensorOp(
        "side", (Axis("i", 4), Axis("j", 4)), (Access("s", (ROW, COL)),), Access("q", (ROW, COL)),
        fused.relu(F32), None, ORIGIN,
    )  # fmt: skip
    add = TensorOp(
        "op2", (Axis("i", 4), Axis("j", 4)), (Access("r1", (ROW, COL)), Access("q", (ROW, COL))),
        Access("r2", (ROW, COL)), ADD, None, ORIGIN,
    )  # fmt: skip
    square = Tensor("s", (4, 4), F32)
    whole = with_op(graph, other, replace(square, name="q"), square)
    whole = with_op(whole, add, replace(square, name="r2"), at=3)
    machine = two_engines()
    assert fused.grouped_names(whole, machine, "op0", "op1", "op2") == (
        ("side",), ("op0", "op1", "op2"),
    )  # fmt: skip


def test_operands_that_cannot_be_placed_are_refused() -> None:
    machine = two_engines()
    graph = fused.composite(fused.matmul(4, 4, 4), F32, F32, ())
    square = (Axis("i", 4), Axis("j", 4))
    looked = Affine(((Lookup(1), 1),), 0)
    gather = TensorOp(
        "op1", square, (Access("r0", (ROW, COL)), Access("at", (ROW,)), Access("table", (looked,))),
        Access("r1", (ROW, COL)), Apply(Fn.ADD, (Read(0), Read(2))), None, ORIGIN,
    )  # fmt: skip
    whole = with_op(
        graph, gather, Tensor("r1", (4, 4), F32), Tensor("at", (4,), DType.I64),
        Tensor("table", (9,), F32),
    )  # fmt: skip
    assert fused.grouped_names(whole, machine) == (("op0",), ("op1",))
    own = TensorOp(
        "op1", square, (Access("r0", (ROW, COL)), Access("x", (ROW, COL))),
        Access("r1", (ROW, COL)), ADD, None, ORIGIN,
    )  # fmt: skip
    whole = with_op(graph, own, Tensor("r1", (4, 4), F32))
    assert fused.grouped_names(whole, machine) == (("op0",), ("op1",)), "x has one Place"


def test_engines_at_different_memories_do_not_share_a_kernel() -> None:
    machine = load_preset("goya")
    outer = tuple(
        replace(e, memory="SRAM") if e.kind is EngineKind.VECTOR else e for e in machine.engines
    )
    apart = replace(machine, engines=outer)
    # 81 pixels, 12 filters, 45 products each: padded to 32 x 64 they take 64 + 162 cycles on the
    # matrix engine and 4 + 342 on the vector engine, so the two parts need different memories.
    graph = fused.composite(
        fused.conv(5, 12, 9, 3), F16, F16,
        ((ADD, ("channel",), F16), (fused.relu(F32), (), F16)))  # fmt: skip
    assert fused.grouped_names(graph, machine) == (("op0", "op1", "op2"),)
    assert fused.grouped_names(graph, apart) == (("op0",), ("op1",), ("op2",))
    assert fused.grouped_names(graph, apart, "op1", "op2") == (("op0",), ("op1", "op2"))


def test_a_group_that_does_not_fit_says_so() -> None:
    found = fused.planned(GRAPHS["residual"], two_engines(20))
    assert isinstance(found, Shortfall)
    assert (found.resource, found.bound) == ("memory:L1", 20)
    assert found.demand == sum(size for _, size in found.terms) > 20
    cuts = Cuts.of(GRAPHS["residual"])
    assert isinstance(fused.planned(cuts.piece(("op0",)), two_engines(20)), Schedule)


def test_tile_refuses_what_is_no_group() -> None:
    found = fused.planned(after_matmul((COL, ROW)), two_engines())
    assert isinstance(found, Shortfall)
    assert found.resource == "group"


def test_verify_refuses_partial_sums_in_an_epilogue() -> None:
    """The same tree with the epilogue moved into the reduction loop, or before the sum."""
    machine = two_engines(420, 1)
    schedule = schedule_of(
        fused.composite(fused.matmul(4, 4, 40), F32, F32, ((fused.relu(F32), (), F32),)), machine
    )
    verify(schedule, machine)
    inside = replace(schedule, root=_rearranged(schedule.root, inside=True))
    with pytest.raises(VerifyError, match="is read inside loop"):
        verify(inside, machine)
    before = replace(schedule, root=_rearranged(schedule.root, inside=False))
    with pytest.raises(VerifyError, match="not written before its use"):
        verify(before, machine)


def _rearranged(node: object, *, inside: bool) -> Loop | Place | Seq:
    """Put the epilogue of an accumulator's Place into its reduction loop, or before it."""
    assert isinstance(node, Loop | Place | Seq)
    if isinstance(node, Place) and node.init is Init.IDENTITY:
        assert isinstance(node.body, Seq)
        loop, then = node.body.parts
        assert isinstance(loop, Loop)
        assert loop.kind is LoopKind.TIME
        if not inside:
            return replace(node, body=Seq((then, loop)))
        assert isinstance(then, Place)
        assert isinstance(then.body, Seq)
        compute, move = then.body.parts
        assert isinstance(compute, Compute)
        again = replace(then, body=Seq((replace(compute, recompute=True), move)))
        return replace(node, body=replace(loop, body=Seq((loop.body, again))))
    if isinstance(node, Seq):
        return Seq(
            tuple(
                p if isinstance(p, Move | Compute) else _rearranged(p, inside=inside)
                for p in node.parts
            )
        )
    return replace(node, body=_rearranged(node.body, inside=inside))


def test_constants_in_a_body_do_not_change_a_group() -> None:
    """A step without operands from outside needs nothing but the running result."""
    graph = fused.composite(
        fused.conv(2, 3, 5, 3), F32, F32,
        ((Apply(Fn.MUL, (Read(0), Const(0.5, F32))), (), F32),),
    )  # fmt: skip
    assert fused.grouped_names(graph, two_engines()) == (("op0", "op1"),)
