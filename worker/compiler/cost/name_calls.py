"""Writing into a schedule which instruction runs each of its computes.

Strategies price every box by the fastest way that the engine has (`EngineRate.cycles`); here that
choice becomes part of the tree, so that what is lowered, emitted and audited is what it says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from worker.compiler.cost.compute import pace_of
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import (
    Compute,
    Loop,
    Move,
    Node,
    Pipe,
    Place,
    Schedule,
    Seq,
)


def name_calls(schedule: Schedule, machine: Machine) -> Schedule:
    """The schedule whose computes name the instruction that is the fastest for their whole box.

    Edges of a domain are run by what runs the rest.  The same object where the machine declares no
    instruction.  Cost: linear in the tree, not in its iterations.
    """
    if not any(engine.intrinsics for engine in machine.engines):
        return schedule
    return replace(schedule, root=_named(schedule.root, schedule, machine))


def _named(node: Node, schedule: Schedule, machine: Machine) -> Node:
    match node:
        case Loop() | Place():
            return replace(node, body=_named(node.body, schedule, machine))
        case Seq(parts):
            return Seq(tuple(_named(part, schedule, machine) for part in parts))
        case Pipe(stages=stages):
            named = (replace(s, body=_named(s.body, schedule, machine)) for s in stages)
            return replace(node, stages=tuple(named))
        case Compute():
            op = schedule.graph.op(node.op)
            pace = pace_of(op, machine.engine(node.engine), schedule.graph.tensors)
            return replace(node, intrinsic=pace.chosen(tuple(span.extent for span in node.box)))
        case Move():
            return node
        case _:
            assert_never(node)
