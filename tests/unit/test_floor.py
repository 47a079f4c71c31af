"""The tight bound of one kernel by hand, a case for each of its terms."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernel_toys import conv_graph, elementwise_graph, matmul_graph
from toy_schedules import machine, span

from worker.compiler.cost.floor import kernel_floor, needed_bytes
from worker.compiler.ir.affine import var
from worker.compiler.ir.axis import Axis
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Cast, Const, Fn, Read, Scalar
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Compute, Init, Move, Node, Place, Schedule, Seq
from worker.compiler.schedule.verify import verify
from worker.simulator.run import simulate_unit

HOP = 1 + 8
"""A transfer of one cycle, seen after home's latency."""


def chip(num_cores: int = 1, *, wide: bool = True, **changes: object) -> Machine:
    """The toy chip, in one piece: an array of 4 x 4 at 16 MACs and a vector engine of 8; home as
    wide as it takes for bytes not to count."""
    on = machine(num_cores, l1_bytes=1 << 16)
    home = replace(on.home, read_bytes_per_cycle=1e6, write_bytes_per_cycle=1e6)
    levels = (home if wide else on.home, *on.levels[1:])
    levels = tuple(
        replace(m, read_bytes_per_cycle=1e6, write_bytes_per_cycle=1e6) if m.name != "DDR" else m
        for m in levels
    )
    return replace(on, levels=levels, **changes)  # type: ignore[arg-type]


def only(on: Machine, *names: str) -> Machine:
    return replace(on, engines=tuple(e for e in on.engines if e.name in (*names, "in", "out")))


def parts(graph: Graph, on: Machine) -> dict[str, int]:
    return dict(kernel_floor(graph, on))


def test_depth_is_padded_to_the_array_and_columns_are_filled() -> None:
    # 10 x 6 results of depth 5, which takes two rows of arrays: 60 x 8 MACs at 16 a cycle.
    found = parts(matmul_graph(10, 6, 5), only(chip(), "mme"))
    assert found == {"compute:mme": 4 + 30, "latency": 2 * HOP}
    # Depth 4 fills its rows, and six columns are no more than 60 results, spread by lanes.
    assert parts(matmul_graph(10, 6, 4), only(chip(), "mme"))["compute:mme"] == 4 + 15
    # Three results leave a column empty, however they are spread.
    assert parts(matmul_graph(1, 3, 8), only(chip(), "mme"))["compute:mme"] == 4 + 2


def test_work_comes_in_whole_arrays_shared_out_to_the_cores() -> None:
    # Nine arrays of 16 MACs, a cycle each, on two cores: one of them has five.
    graph = matmul_graph(6, 6, 4)
    assert parts(graph, only(chip(), "mme"))["compute:mme"] == 4 + 9
    assert parts(graph, only(chip(2), "mme"))["compute:mme"] == 4 + 5


def test_each_operator_has_its_own_number_format() -> None:
    slow = parts(matmul_graph(16, 16, 16), only(chip(), "mme"))
    fast = parts(matmul_graph(16, 16, 16, DType.F16), only(chip(), "mme"))
    assert (slow["compute:mme"], fast["compute:mme"]) == (4 + 256, 4 + 128)
    # Both in one kernel: each at its own rate, two thirds on the array and a third beside it.
    both = _add((matmul_graph(16, 16, 16), matmul_graph(16, 16, 16, DType.F16)))
    assert parts(both, only(chip(), "mme"))["compute:mme"] == 4 + 256 + 128
    assert parts(both, chip())["compute:mme+vec"] == 4 + 256


def _add(graphs: tuple[Graph, Graph]) -> Graph:
    """Two graphs of one operator each, side by side."""
    ops: list[TensorOp] = []
    tensors: list[Tensor] = []
    inputs: list[str] = []
    outputs: list[str] = []
    for k, graph in enumerate(graphs):
        (op,) = graph.ops
        reads = tuple(replace(a, tensor=f"{a.tensor}{k}") for a in op.reads)
        write = replace(op.write, tensor=f"{op.write.tensor}{k}")
        ops.append(replace(op, name=f"{op.name}{k}", reads=reads, write=write))
        tensors += [replace(t, name=f"{t.name}{k}") for t in graph.tensors.values()]
        inputs += [f"{name}{k}" for name in (*graph.inputs, *graph.constants)]
        outputs += [f"{name}{k}" for name in graph.outputs]
    return Graph.build(tuple(ops), tuple(tensors), tuple(inputs), tuple(outputs))


def test_two_engines_share_the_work_in_proportion() -> None:
    # 768 MACs at 16 and 8 a cycle: 512 and 256 of them, both 32 cycles; the earlier start counts,
    # so that of 2 for both is weighed with that of 4: (4 + 32) * 2/3 + (2 + 32) * 1/3.
    graph = matmul_graph(8, 8, 12)
    assert parts(graph, chip())["compute:mme+vec"] == 36
    # What pads badly moves: depth 1 is four times as dear on the array, and the others are faster.
    assert "compute:mme+vec" in parts(matmul_graph(16, 16, 1), chip())


def test_a_schedule_that_shares_the_work_reaches_the_bound() -> None:
    """One product on the array, a smaller one beside it: less than any bound of one engine."""
    on = chip()
    graph = _add((matmul_graph(8, 8, 8), matmul_graph(4, 8, 8)))
    whole = {t.name: tuple(span(0, size) for size in t.shape) for t in graph.tensors.values()}
    fills = (Move(name, "DDR", "L1", whole[name]) for name in graph.inputs)
    both = (
        Compute("mm0", (span(0, 8), span(0, 8), span(0, 8)), "mme"),
        Compute("mm1", (span(0, 4), span(0, 8), span(0, 8)), "vec"),
    )
    body: Node = Seq((*fills, *both, *(Move(c, "L1", "DDR", whole[c]) for c in graph.outputs)))
    for name in whole:
        init = Init.IDENTITY if name in graph.outputs else Init.UNDEFINED
        body = Place(name, "L1", whole[name], 1, body, None, init)
    shared = Schedule(graph, body, "hand", 0)
    verify(shared, on)
    cycles = simulate_unit(lower_unit(shared, on, "s"), on).cycles
    bound = sum(parts(graph, on).values())
    # Four fills and two stores follow each other, of which the bound knows one each.
    assert bound == 36 + 2 * HOP
    assert bound <= cycles <= bound + 4
    assert cycles < sum(parts(graph, only(on, "mme")).values())


def test_bytes_are_those_that_some_point_needs() -> None:
    # Every second row and column of 9 x 9, three channels of four bytes; all weights.
    assert needed_bytes(conv_graph(3, 2, 9, 1, 2)) == (
        {"x": 3 * 25 * 4, "w": 6 * 4}, {"y": 2 * 25 * 4},
    )  # fmt: skip
    # Windows of 3 at steps of 2 reach all of it, and beyond, where nothing is.
    assert needed_bytes(conv_graph(3, 2, 9, 3, 2, 1))[0]["x"] == 3 * 81 * 4


def test_traffic_takes_homes_ports() -> None:
    graph = matmul_graph(8, 8, 8)
    # 512 B in at 16 a cycle; the last byte is seen 8 later, computed with (3 at least), and stored.
    assert parts(graph, chip(64, wide=False)) == {"traffic:DDR": 32, "latency": 8 + 3 + HOP}
    # 4 x 16 B in, 1 KiB out: the first byte out needs a fetch and a computation before.
    outer = matmul_graph(16, 16, 1)
    found = parts(outer, chip(64, wide=False))
    assert found == {"traffic:DDR": 64, "latency": HOP + 3 + 8}


def halved(on: Machine, *names: str) -> Machine:
    return replace(on, levels=tuple(
        replace(m, half_duplex=m.name in names) for m in on.levels))  # fmt: skip


def test_a_port_of_both_directions_takes_the_sum() -> None:
    # 512 B in and 256 B out at 16 a cycle; the last byte is seen 8 later.
    found = parts(matmul_graph(8, 8, 8), halved(chip(64, wide=False), "DDR"))
    assert found == {"traffic:DDR": 32 + 16, "latency": 8}
    # What little goes out costs less than to compute with what came in last, and store that.
    thin = halved(chip(64, wide=False), "DDR")
    assert parts(matmul_graph(4, 4, 40), thin) == {"traffic:DDR": 80, "latency": 8 + 3 + HOP}


def test_first_steps_of_both_directions_take_the_weighted_sum() -> None:
    # In at 4 and out at 2 a cycle: 512 / 4 + 256 / 2 of the one memory below home.
    on = halved(chip(64), "L1")
    levels = (on.levels[0], replace(on.levels[2], instances=1, write_bytes_per_cycle=4.0,
                                    read_bytes_per_cycle=2.0))  # fmt: skip
    found = parts(matmul_graph(8, 8, 8), replace(on, levels=levels))
    assert found == {"traffic:L1": 128 + 128, "latency": 8}
    # Beside a second memory of the same rates, with a port for each direction: 1 + 2 halves of the
    # weight of what both do side by side, (512 / 8 + 256 / 4) / 1.5; but either way alone takes 64.
    twice = (*levels, replace(levels[1], name="GB", half_duplex=False))
    found = parts(matmul_graph(8, 8, 8), replace(on, levels=twice))
    assert found == {"traffic:L1+GB": 86, "latency": 8}


def test_engines_on_home_wait_for_no_transfer() -> None:
    at_home = replace(chip(wide=False), engines=tuple(
        replace(e, memory="DDR") for e in chip().engines))  # fmt: skip
    assert set(parts(matmul_graph(8, 8, 8), at_home)) == {"compute:mme+vec"}


def test_points_that_nobody_needs_may_come_last() -> None:
    """A product of which a later operator reads every second row: no store need follow its end."""
    product = matmul_graph(8, 8, 8)
    double = Apply(Fn.ADD, (Read(0), Read(0)))

    def halved(step: int) -> Graph:
        take = TensorOp(
            "take", (Axis("r", 8 // step), Axis("s", 8)),
            (Access("c", (var("r") * step, var("s"))),), Access("z", (var("r"), var("s"))), double,
            None, product.ops[0].origin,
        )  # fmt: skip
        tensors = (*product.tensors.values(), Tensor("z", (8 // step, 8), DType.F32))
        return Graph.build((*product.ops, take), tensors, product.inputs, ("z",), product.constants)

    assert parts(halved(1), chip())["latency"] == 2 * HOP
    assert parts(halved(2), chip())["latency"] == HOP


def test_a_point_outside_its_tensor_waits_for_nothing() -> None:
    padded = elementwise_graph(Read(0), (DType.F32,), DType.F32, (64, 64))
    (op,) = padded.ops
    read = replace(op.reads[0], fill=0.0, index=(var("i0") - 9, var("i1")))
    graph = replace(padded, ops=(replace(op, reads=(read,)),))
    assert parts(padded, chip())["latency"] == 2 * HOP
    assert parts(graph, chip())["latency"] == HOP


def _requantised(out: DType) -> Scalar:
    scaled = Apply(Fn.MUL, (Cast(DType.F32, Read(0)), Const(0.5, DType.F32)))
    return Cast(out, Apply(Fn.ROUND, (scaled,)))


@pytest.mark.parametrize(("out", "price"), [(DType.I8, 1), (DType.F32, 4)])
def test_an_output_stage_takes_an_element_in_one_operation(out: DType, price: int) -> None:
    """From integers to integers; what becomes a float has each of its four operations counted."""
    on = only(chip(), "vec")
    rates = {DType.I32: 8.0, DType.I8: 8.0, DType.F32: 8.0}
    on = replace(on, engines=tuple(
        replace(e, macs_per_cycle=rates) if e.name == "vec" else e
        for e in on.engines))  # fmt: skip
    graph = elementwise_graph(_requantised(out), (DType.I32,), out, (64,))
    assert parts(graph, on)["compute:vec"] == 2 + price * 64 // 8
    # The fastest type that it touches is what the stage is rated in.
    faster = replace(on, engines=tuple(
        replace(e, macs_per_cycle={**rates, DType.I8: 32.0}) if e.name == "vec" else e
        for e in on.engines))  # fmt: skip
    assert parts(graph, faster)["compute:vec"] == 2 + (64 // 32 if out is DType.I8 else 32)


def test_a_chain_of_output_stages_is_one_pass() -> None:
    first = elementwise_graph(_requantised(DType.I8), (DType.I32,), DType.I8, (64,))
    (op,) = first.ops
    more = Apply(Fn.MAX, (Read(0), Const(0, DType.I8)))
    again = replace(op, name="relu", reads=(replace(op.reads[0], tensor="z"),),
                    write=replace(op.write, tensor="y"), body=more)  # fmt: skip
    tensors = (*first.tensors.values(), Tensor("y", (64,), DType.I8))
    both = Graph.build((op, again), tensors, first.inputs, ("y",), first.constants)
    on = only(chip(), "vec")
    assert parts(both, on)["compute:vec"] == parts(first, on)["compute:vec"]


def test_rows_and_columns_of_other_arrays() -> None:
    """One dimension pads columns alone, three pad rows too: few of them leave a side empty."""
    for array, cycles in (((8,), 1 * 8 * 16 / 16), ((4, 2, 4), 4 * 4 * 16 / 16), ((), 64 / 16)):
        on = only(chip(), "mme")
        on = replace(on, engines=tuple(
            replace(e, array=array) if e.name == "mme" else e for e in on.engines))  # fmt: skip
        # One row, four columns, depth 16.
        assert parts(matmul_graph(1, 4, 16), on)["compute:mme"] == 4 + cycles
