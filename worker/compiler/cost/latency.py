"""Cycles predicted for any schedule, without simulating it."""

from __future__ import annotations

from math import ceil, prod

from worker.compiler.cost.compute import engine_cycles
from worker.compiler.cost.traffic import busy_cores, traffic_bytes
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Compute, LoopKind, Schedule
from worker.compiler.schedule.walk import walk


def predicted_cycles(schedule: Schedule, machine: Machine) -> int:
    """Launch, plus the slowest of computing on the busiest core and moving through each level.

    Assumes that everything else hides behind that; queues and prologues are not modelled.
    """
    compute = 0
    for leaf in walk(schedule).leaves:
        if isinstance(leaf.node, Compute):
            op = schedule.graph.tensor_op(leaf.node.op)
            extents = tuple(
                min(span.extent, axis.extent)
                for span, axis in zip(leaf.node.box, op.domain, strict=True)
            )
            lanes = prod(f.trip for f in leaf.frames if f.kind is LoopKind.LANES)
            times = prod(
                f.trip for f in leaf.frames if f.kind not in (LoopKind.LANES, LoopKind.CORES)
            )
            engine = machine.engine(leaf.node.engine)
            compute += times * engine_cycles(op, extents, engine, schedule.graph.tensors, lanes)
    return machine.launch_overhead_cycles + max(compute, _transfer_cycles(schedule, machine))


def _transfer_cycles(schedule: Schedule, machine: Machine) -> int:
    cores = busy_cores(schedule)
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    for (src, dst), size in traffic_bytes(schedule, machine).items():
        for name in machine.route(src, dst)[:-1]:
            read[name] = read.get(name, 0) + size
        written[dst] = written.get(dst, 0) + size
    slowest = 0.0
    for level in machine.levels:
        ports = max(1, min(level.instances, cores))
        slowest = max(
            slowest,
            read.get(level.name, 0) / (level.read_bytes_per_cycle * ports),
            written.get(level.name, 0) / (level.write_bytes_per_cycle * ports),
        )
    return ceil(slowest)
