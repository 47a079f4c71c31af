"""One broken schedule per rule of `verify`; and what naive says when nothing fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from naive_schedules import naive_answer
from toy_schedules import (
    TOYS,
    Edit,
    double_then_blur,
    inputs_of,
    lane_stack,
    machine,
    rewrite,
    row_fused,
    span,
    split_with_halo,
    two_stage_pipe,
    weight_prefetch,
)

from worker.compiler.errors import MemoryFault, Shortfall, VerifyError
from worker.compiler.ir.affine import var
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.signature import canonicalize
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.interpret import interpret
from worker.compiler.schedule.nodes import (
    Compute,
    Init,
    Loop,
    LoopKind,
    Move,
    Node,
    Pipe,
    Place,
    Schedule,
    Seq,
)
from worker.compiler.schedule.text import parse_schedule, print_schedule
from worker.compiler.schedule.verify import verify


def refused(schedule: Schedule, on: Machine, rule: str, text: str) -> None:
    with pytest.raises(VerifyError, match=text) as error:
        verify(schedule, on)
    assert error.value.rule == rule
    assert error.value.path.startswith("0")
    assert error.value.stage == "schedule"


def edited(name: str, edit: Edit) -> tuple[Schedule, Machine]:
    schedule, on, _ = TOYS[name]()
    return replace(schedule, root=rewrite(schedule.root, edit)), on


def on_loop(var_name: str, **changes: object) -> Edit:
    def edit(node: Node) -> Node | None:
        if isinstance(node, Loop) and node.var == var_name:
            return replace(node, **changes)  # type: ignore[arg-type]  # one field each
        return None

    return edit


def on_place(tensor: str, **changes: object) -> Edit:
    def edit(node: Node) -> Node | None:
        if isinstance(node, Place) and node.tensor == tensor:
            return replace(node, **changes)  # type: ignore[arg-type]  # one field each
        return None

    return edit


def without_move(tensor: str, dst: str) -> Edit:
    def edit(node: Node) -> Node | None:
        if isinstance(node, Seq):
            kept = tuple(
                p for p in node.parts
                if not (isinstance(p, Move) and (p.tensor, p.dst) == (tensor, dst))
            )  # fmt: skip
            return Seq(kept)
        return None

    return edit


@pytest.mark.parametrize(
    ("toy", "edit", "rule", "text"),
    [
        ("row_fused", on_place("t2", memory="L9"), "names", "not a scratchpad"),
        ("row_fused", on_place("t2", memory="DDR"), "names", "not a scratchpad"),
        ("row_fused", on_loop("r", var="q"), "names", "from outside"),
        ("weight_prefetch", on_loop("b", var="a"), "names", "used twice"),
        ("row_fused", on_loop("r", trip=0), "shape", "trip count"),
        ("row_fused", on_place("t0", copies=0), "shape", "copies"),
        ("row_fused", on_place("t0", tile=(span(0, 4),)), "shape", "rank"),
        ("split_with_halo", on_loop("c", core_stride=0), "cores", "must be >= 1"),
        ("split_with_halo", on_loop("c", core_stride=2), "cores", "core 2 is reached"),
        ("lane_stack", on_loop("lane", trip=32), "lanes", "32 lanes on mme, which has 16"),
        ("row_fused", on_loop("r", trip=2), "coverage", "points of mm computed"),
        ("row_fused", on_place("t2", init=Init.UNDEFINED), "init", "starts undefined"),
        ("weight_prefetch", on_loop("a", kind=LoopKind.CORES, core_stride=1), "init", "over cores"),
        ("row_fused", on_place("t0", tile=(span(var("r") * 4, 3), span(0, 5))), "resident",
         "leaves the tile"),
        ("row_fused", without_move("t1", "L1"), "resident", "not written before its use"),
        ("row_fused", without_move("t3", "DDR"), "resident", "output t3"),
        ("two_stage_pipe", without_move("t1", "GB"), "resident", "not written before its use"),
        ("row_fused", on_place("t0", copies=400), "capacity", "must hold"),
    ],
)  # fmt: skip
def test_rule_refuses(toy: str, edit: Edit, rule: str, text: str) -> None:
    schedule, on = edited(toy, edit)
    refused(schedule, on, rule, text)


def test_partial_sums_need_the_accumulator() -> None:
    schedule, on, _ = weight_prefetch()
    narrow = replace(schedule, root=rewrite(schedule.root, on_place("t2", dtype=DType.F16)))
    refused(narrow, on, "partial", "partial sums need f32")
    # One chunk covers the whole reduction of the lane stack: a narrow place is legal there.
    whole, toy, _ = lane_stack()
    verify(replace(whole, root=rewrite(whole.root, on_place("t2", dtype=DType.F16))), toy)


def test_a_sum_may_not_leave_before_it_is_complete() -> None:
    schedule, on, _ = weight_prefetch()
    drain: list[Move] = []

    def inside(node: Node) -> Node | None:
        if isinstance(node, Compute) and node.op == "mm1":
            box = (span(0, 6), span(0, 8))
            drain.append(Move("t4", "L1", "DDR", box))
            return Seq((node, drain[0]))
        return None

    refused(replace(schedule, root=rewrite(schedule.root, inside)), on, "partial", "drained inside")


def test_padding_must_be_what_the_read_expects() -> None:
    schedule, on, _ = split_with_halo()

    def other_fill(node: Node) -> Node | None:
        if isinstance(node, Move) and node.tensor == "t1" and node.fill == 0:
            return replace(node, fill=1)
        return None

    refused(replace(schedule, root=rewrite(schedule.root, other_fill)), on, "fill", "padded with 0")


def test_queues_go_forward() -> None:
    schedule, on, _ = two_stage_pipe()
    assert isinstance(schedule.root, Pipe)
    queue = replace(schedule.root.queues[0], producer=1, consumers=(0,))
    backwards = replace(schedule, root=replace(schedule.root, queues=(queue,)))
    refused(backwards, on, "queues", "earlier stage")
    shallow = replace(schedule.root.queues[0], depth=0)
    empty = replace(schedule, root=replace(schedule.root, queues=(shallow,)))
    refused(empty, on, "shape", "copies")


def test_recomputation_must_be_declared() -> None:
    schedule, on, _ = split_with_halo()

    def undeclared(node: Node) -> Node | None:
        return replace(node, recompute=False) if isinstance(node, Compute) else None

    wrong = replace(schedule, root=rewrite(schedule.root, undeclared))
    refused(wrong, on, "coverage", "computed 2 times")


def test_accumulating_at_home_is_refused() -> None:
    graph = double_then_blur(4, 3)
    root = Seq((
        Compute("double", (span(0, 4), span(0, 3)), "vec"),
        Compute("blur", (span(0, 4), span(0, 3), span(0, 3)), "vec"),
    ))  # fmt: skip
    refused(Schedule(graph, root, "hand", 0), machine(), "init", "at home")


def test_interpret_faults_where_verify_would_refuse() -> None:
    schedule, _, inputs = row_fused()
    hollow = replace(schedule, root=rewrite(schedule.root, without_move("t1", "L1")))
    with pytest.raises(MemoryFault, match="undefined elements of t1"):
        interpret(hollow, inputs, home="DDR")
    small = on_place("t0", tile=(span(var("r") * 4, 3), span(0, 5)))
    with pytest.raises(MemoryFault, match="outside a buffer"):
        interpret(replace(schedule, root=rewrite(schedule.root, small)), inputs, home="DDR")


def test_text_errors_name_the_line() -> None:
    schedule, _, _ = lane_stack()
    text = print_schedule(schedule)
    with pytest.raises(VerifyError, match="unknown node 'leap'"):
        parse_schedule(text.replace("loop time", "leap time"))
    with pytest.raises(VerifyError, match="needs a tree"):
        parse_schedule("schedule x cycles=0\ngraph\n")


def test_naive_shortfall_names_terms_and_levers() -> None:
    schedule, _, _ = lane_stack()
    tiny = machine(l1_bytes=8)
    found = naive_answer(schedule.graph, tiny)
    assert isinstance(found, Shortfall)
    assert (found.resource, found.unit, found.bound) == ("memory:L1", "bytes", 8)
    assert found.demand == sum(size for _, size in found.terms) > found.bound
    assert {name for name, _ in found.terms} == set(canonicalize(schedule.graph).graph.tensors)
    assert "L1" in found.levers[0]


def test_toys_have_inputs_for_every_operand() -> None:
    for make in TOYS.values():
        schedule, _, inputs = make()
        assert set(inputs) == set(inputs_of(schedule.graph))


def doubled(memory: str) -> Schedule:
    """Two cores double half of the rows each, out of one Place around both."""
    rows, cols = 8, 3
    chain = double_then_blur(rows, cols)
    graph = Graph.build(
        chain.ops[:1], (chain.tensors["t0"], chain.tensors["t1"]), ("t0",), ("t1",), ()
    )
    whole, own = (span(0, rows), span(0, cols)), (span(var("c") * 4, 4), span(0, cols))
    work = Seq((
        Move("t0", memory, "L1", own), Compute("double", own, "vec"), Move("t1", "L1", "DDR", own),
    ))  # fmt: skip
    if memory == "L1":
        work = Seq((Move("t0", "DDR", "L1", own), *work.parts[1:]))
        inside: Node = Place("t1", "L1", own, 1, work)
        loop: Node = Loop("c", 2, LoopKind.CORES, inside, 1)
    else:
        inside = Place("t0", "L1", own, 1, Place("t1", "L1", own, 1, work))
        loop = Seq((Move("t0", "DDR", memory, whole), Loop("c", 2, LoopKind.CORES, inside, 1)))
    return Schedule(graph, Place("t0", memory, whole, 1, loop), "hand", 0)


def test_a_core_touches_no_memory_of_another() -> None:
    """A Place in private memory around a loop over cores; in memory that both share it is legal."""
    refused(doubled("L1"), machine(), "reach", "core 1 touches t0 in L1 of core 0")
    verify(doubled("GB"), machine())


def test_a_stage_on_another_core_touches_no_memory_of_the_first() -> None:
    schedule, on, _ = two_stage_pipe()
    assert isinstance(schedule.root, Pipe)
    second = schedule.root.stages[1]
    assert isinstance(second.body, Place)
    stages = (schedule.root.stages[0], replace(second, body=second.body.body))
    outside = replace(second.body, body=replace(schedule.root, stages=stages))
    refused(replace(schedule, root=outside), on, "reach", "core 1 touches t2 in L1 of core 0")
