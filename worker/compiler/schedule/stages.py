"""Which operators of a graph live together: what a strategy decides before it schedules."""

from __future__ import annotations

from dataclasses import dataclass

from worker.compiler.errors import VerifyError
from worker.compiler.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Group:
    """Operators (by name, in graph order) that live together in one unit."""

    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grouping:
    """A partition of the graph's operators; groups are in a legal execution order."""

    graph: Graph
    groups: tuple[Group, ...]
    is_final: bool = False
    """Groups run as they are: none is weighed against kernels of single operators (ablations)."""


def check_grouping(grouping: Grouping, graph: Graph) -> None:
    """Does a strategy's grouping of `graph` keep what is asked of it?  Cost: linear.

    Raises:
        VerifyError: other inputs or outputs; an operator in no group or two; a group that reads
            what a later one writes.
    """
    got = grouping.graph
    if (got.inputs, got.outputs) != (graph.inputs, graph.outputs):
        raise VerifyError("group", "graph", "interface", "its inputs or outputs are other ones")
    group_of = {name: k for k, group in enumerate(grouping.groups) for name in group.ops}
    names = [op.name for op in got.ops]
    if sorted(names) != sorted(name for group in grouping.groups for name in group.ops):
        raise VerifyError("group", "groups", "partition", "not every operator is in one group")
    last_write: dict[str, int] = {}
    for op in got.ops:
        tensor = op.write.tensor
        last_write[tensor] = max(last_write.get(tensor, 0), group_of[op.name])
    for op in got.ops:
        for tensor in op.input_names():
            if last_write.get(tensor, 0) > group_of[op.name]:
                raise VerifyError("group", op.name, "order", f"{tensor} is written later")
