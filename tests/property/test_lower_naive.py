"""Lowering what the naive strategy really emits, on toy memories and on presets."""

from __future__ import annotations

from collections import Counter

import lower_toys as toys
import pytest
from lower_oracle import Walk, finish_before, listed, order_of_events
from machine_rates import with_every_format
from naive_schedules import naive_schedule

from worker.compiler.ir.affine import var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.compiler.isa.program import UnitProgram
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule


def conv_graph(channels: int, size: int, kernel: int, filters: int, stride: int) -> Graph:
    """A padded convolution over one image."""
    pad = kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1
    row = var("a1") * stride + var("a4") - pad
    column = var("a2") * stride + var("a5") - pad
    op = TensorOp(
        "op0",
        (Axis("a0", filters), Axis("a1", out), Axis("a2", out),
         Axis("a3", channels, AxisKind.REDUCE), Axis("a4", kernel, AxisKind.REDUCE),
         Axis("a5", kernel, AxisKind.REDUCE)),
        (Access("t0", (var("a3"), row, column), 0),
         Access("t1", (var("a0"), var("a3"), var("a4"), var("a5")))),
        Access("t2", (var("a0"), var("a1"), var("a2"))),
        Apply(Fn.MUL, (Read(0), Read(1))), Reduce.ADD, toys.ORIGIN,
    )  # fmt: skip
    tensors = (
        Tensor("t0", (channels, size, size), DType.F32),
        Tensor("t1", (filters, channels, kernel, kernel), DType.F32),
        Tensor("t2", (filters, out, out), DType.F32),
    )
    return Graph.build((op,), tensors, ("t0",), ("t2",), ("t1",))


def planned(graph: Graph, machine: Machine) -> Schedule:
    return naive_schedule(graph, machine)


def check(schedule: Schedule, machine: Machine) -> UnitProgram:
    program = lower_unit(schedule, machine, "s")
    verify_program(program, machine)
    walk = Walk(schedule, machine, program)
    assert Counter(listed(program)) == Counter(
        (e.path, e.core, e.opcode, e.num_bytes, e.src_address, e.dst_address) for e in walk.events
    )
    order, before = order_of_events(program, walk), finish_before(program)
    writers: dict[object, list[int]] = {}
    readers: dict[object, list[int]] = {}
    for late, number in enumerate(order):
        event = walk.events[number]
        earlier = {e for b in event.reads for e in writers.get(b, ())}
        earlier |= {e for b in event.writes for e in (*writers.get(b, ()), *readers.get(b, ()))}
        for early in earlier - {late}:
            assert order[early] < number
            assert before[late] >> early & 1, (early, late, event.path)
        for b in event.reads:
            readers.setdefault(b, []).append(late)
        for b in event.writes:
            writers.setdefault(b, []).append(late)
    return program


MACHINES = {
    "flat": toys.flat_machine(2, 512),
    "one-dma": toys.flat_machine(2, 512, 1),
    "clusters": toys.cluster_machine(2, 2, 768),
}
GRAPHS = {
    "matmul": toys.matmul_graph(13, 10, 11),
    "thin": toys.matmul_graph(1, 17, 40),
    "conv": conv_graph(3, 7, 3, 5, 1),
    "strided": conv_graph(2, 9, 3, 4, 2),
}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("machine", MACHINES)
def test_naive_on_small_memories(machine: str, graph: str) -> None:
    program = check(planned(GRAPHS[graph], MACHINES[machine]), MACHINES[machine])
    assert program.num_instructions >= 8, "the memories are small enough to need tiles"


@pytest.mark.parametrize("name", ["stcp920-inferred", "a100", "kapla-16x16", "ipu-gc2", "dpu-u250"])
def test_naive_on_presets(name: str) -> None:
    machine = with_every_format(load_preset(name))
    for graph in (toys.matmul_graph(24, 20, 18, DType.F32), conv_graph(4, 8, 3, 8, 1)):
        check(planned(graph, machine), machine)
