"""Neighbouring regions as one: for strategies whose kernels hold more than connected operators.

Regions are connected, as a path through the host would run between their parts otherwise.  A model
may have many of them beside each other (the classes of a detector); each would be launched by
itself although nothing runs between them.  Parts that follow each other in execution order may
always run as one: whatever else runs does so before or after both.
Source: our own (BYOC section 3.1.2 merges connected operators only).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from worker.compiler.frontend.model import OnnxModel
from worker.compiler.machine.machine import AcceleratorTarget, Machine, PartitionMode
from worker.compiler.partition.flow import read_flow
from worker.compiler.partition.parts import part_of
from worker.compiler.partition.plan import Action, Part, Partitioning


def joined(
    parts: Partitioning, model: OnnxModel, machine: Machine, mode: PartitionMode | None = None
) -> Partitioning:
    """`parts` with runs of neighbours of one target as one part each.

    `mode` is the one they were found with.  Targets with limits to the size of a region keep
    theirs apart.  The decisions of regions that lost their own part say with which they run.
    Cost: near-linear in the model.
    """
    free = {target.name for target in machine.targets if _is_free(target, mode)}
    runs = _runs(parts.parts, free)
    if len(runs) == len(parts.parts):
        return parts
    flow = read_flow(model)
    first_of: dict[str, str] = {}
    found: list[Part] = []
    for run in runs:
        if len(run) == 1:
            found.append(run[0])
            continue
        nodes = tuple(sorted(node for part in run for node in part.nodes))
        composites = tuple(composite for part in run for composite in part.composites)
        found.append(part_of(flow, run[0].target, nodes, composites))
        home = flow.names[run[0].nodes[0]]
        first_of.update((flow.names[part.nodes[0]], home) for part in run[1:])
    decisions = tuple(
        replace(
            decision, action=Action.JOINED,
            sentence=f"{decision.sentence}; runs as one with the region at "
            f"{first_of[decision.first_node]}, its neighbour",
        )
        if decision.first_node in first_of and decision.action is Action.KEPT
        else decision
        for decision in parts.decisions
    )  # fmt: skip
    return replace(parts, parts=tuple(found), decisions=decisions)


def _is_free(target: AcceleratorTarget, mode: PartitionMode | None) -> bool:
    """Whether nothing limits the size of the target's regions."""
    rules = target.criteria
    limits = (rules.max_ops, rules.max_macs, rules.max_weight_bytes, rules.buffer_fit)
    return (mode or rules.mode) is PartitionMode.GREEDY or all(limit is None for limit in limits)


def _runs(parts: Sequence[Part], free: set[str]) -> list[tuple[Part, ...]]:
    """Parts in order; neighbours of one target together where that is `free`."""
    keyed = enumerate(parts)
    groups = groupby(keyed, lambda entry: entry[1].target if entry[1].target in free else entry[0])
    return [tuple(part for _, part in group) for _, group in groups]
