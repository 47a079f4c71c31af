"""From a model to parts: annotate, merge into regions, split, fall back, order.

In: a simplified model and a machine.  Out: parts in execution order, a placement row for every node
and a decision for every candidate region.  Weighing by cost is a second step (`weigh`), since it
needs simulated times of what this one returns.
Source: BYOC sections 3.1.2 and 3.1.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from worker.compiler.frontend.model import OnnxModel
from worker.compiler.machine.machine import Criteria, Machine, PartitionMode
from worker.compiler.partition.annotate import annotate
from worker.compiler.partition.fallback import dropped_regions
from worker.compiler.partition.flow import Flow, read_flow
from worker.compiler.partition.measure import Measured, Ruler
from worker.compiler.partition.parts import Region, build_parts
from worker.compiler.partition.plan import (
    HOST,
    Action,
    Composite,
    Partitioning,
    Placement,
    RegionDecision,
)
from worker.compiler.partition.regions import merge_regions
from worker.compiler.partition.split import Piece, split_region
from worker.compiler.rejection import ReasonCode, Rejection


def partition(
    model: OnnxModel,
    machine: Machine,
    refused: Mapping[str, Rejection],
    mode: PartitionMode | None = None,
) -> Partitioning:
    """Place every node.

    `refused` adds rejections found later (an operator that fits no memory), by node name.  `mode`
    overrides the targets' own; GREEDY ignores their criteria, AUTO is CRITERIA here.
    Cost: near-linear in nodes and edges, plus the annotation.
    """
    found = annotate(model, machine, refused)
    return partition_annotated(model, machine, found.placement, found.composites, mode)


def partition_annotated(
    model: OnnxModel,
    machine: Machine,
    placement: Sequence[Placement],
    composites: Sequence[tuple[str, Composite]],
    mode: PartitionMode | None = None,
) -> Partitioning:
    """Everything after annotation: `placement` has a row per node, `composites` go with a target.

    A composite may share nodes (a dequantisation) with others.  One that ends up in another region
    than a node that it shares cannot run: it goes to the host, and everything is partitioned again.
    Cost: near-linear in nodes and edges.
    """
    flow = read_flow(model)
    ruler = Ruler(flow, tuple(model.ir.graph))
    criteria_of = {
        target.name: target.criteria
        for target in machine.targets
        if (mode or target.criteria.mode) is not PartitionMode.GREEDY
    }
    rows, whole = list(placement), list(composites)
    while True:
        found = _partition_once(machine, flow, ruler, criteria_of, rows, whole)
        torn = _torn(found, whole)
        if not torn:
            return found
        for number in torn:
            _tear(rows, whole, number)
        whole = [entry for number, entry in enumerate(whole) if number not in torn]


def all_on_host(model: OnnxModel) -> Partitioning:
    """The partitioning without regions.  Cost: linear."""
    reason = "the whole model is best on the host by its simulation"
    rows = tuple(
        Placement(node.name or "", node.op_type, HOST, ReasonCode.ALL_ON_HOST, reason)
        for node in model.ir.graph
    )
    return Partitioning(build_parts(read_flow(model), ()), rows)


def _torn(found: Partitioning, composites: Sequence[tuple[str, Composite]]) -> list[int]:
    """Composites that lie neither in one region nor on the host as a whole."""
    region_of = {node: r for r, part in enumerate(found.regions) for node in part.nodes}
    torn: list[int] = []
    for number, (_, composite) in enumerate(composites):
        homes = [region_of.get(node) for node in composite.nodes]
        if homes[-1] is not None and any(home != homes[-1] for home in homes):
            torn.append(number)
    return torn


def _tear(rows: list[Placement], composites: Sequence[tuple[str, Composite]], number: int) -> None:
    """Send the nodes that only composite `number` has to the host."""
    elsewhere = {n for k, (_, c) in enumerate(composites) if k != number for n in c.nodes}
    nodes = composites[number][1].nodes
    shared = next((rows[n].node for n in nodes if n in elsewhere), rows[nodes[0]].node)
    for node in nodes:
        if node not in elsewhere:
            rows[node] = replace(
                rows[node],
                target=HOST,
                reason_code=ReasonCode.CRITERION,
                reason=f"it would run with {shared}, which runs in another region",
                composite="",
            )


def _partition_once(
    machine: Machine,
    flow: Flow,
    ruler: Ruler,
    criteria_of: Mapping[str, Criteria],
    placement: Sequence[Placement],
    composites: Sequence[tuple[str, Composite]],
) -> Partitioning:
    pieces: list[Piece] = []
    for region in merged(flow, placement, composites):
        rules = criteria_of.get(region.target)
        pieces += (
            (Piece(region, True),)
            if rules is None
            else split_region(region, rules, machine, flow, ruler)
        )
    return _finish(flow, ruler, pieces, criteria_of, tuple(placement))


def merged(
    flow: Flow, placement: Sequence[Placement], composites: Sequence[tuple[str, Composite]]
) -> tuple[Region, ...]:
    """Maximal regions of an annotated model, in the order of their first nodes."""
    targets = [None if row.target == HOST else row.target for row in placement]
    groups = merge_regions(flow.successors, targets, [c.nodes for _, c in composites])
    members: dict[int, list[int]] = {}
    for node, group in enumerate(groups):
        if targets[node] is not None:
            members.setdefault(group, []).append(node)
    inside: dict[int, list[Composite]] = {}
    for _, composite in composites:
        homes = {groups[node] for node in composite.nodes}
        if len(homes) == 1:
            inside.setdefault(homes.pop(), []).append(composite)
    return tuple(
        Region(placement[nodes[0]].target, tuple(nodes), tuple(inside.get(group, ())))
        for group, nodes in members.items()
    )


def _finish(
    flow: Flow,
    ruler: Ruler,
    pieces: Sequence[Piece],
    criteria_of: Mapping[str, Criteria],
    placement: tuple[Placement, ...],
) -> Partitioning:
    """Drop what does not fit or is not worth it; rows, decisions and parts of the rest."""
    rows = list(placement)
    decisions: list[tuple[int, RegionDecision]] = []
    fitting: list[tuple[Piece, Measured]] = []
    for piece in pieces:
        measured = ruler.measure(piece.region)
        if piece.fits:
            fitting.append((piece, measured))
            continue
        sentence = (
            f"an operator that breaks the limit by itself cannot be split further: {piece.sentence}"
        )
        _to_host(rows, piece.region, ReasonCode.CRITERION, sentence)
        decision = ruler.decide(piece.region, measured, Action.DROPPED, piece.rule, sentence)
        decisions.append((piece.region.nodes[0], decision))
    dropped = dropped_regions(
        [piece.region for piece, _ in fitting], [m for _, m in fitting], criteria_of, flow.names
    )
    kept: list[Region] = []
    for (piece, measured), reason in zip(fitting, dropped, strict=True):
        region = piece.region
        if reason is not None:
            _to_host(rows, region, reason.reason_code, reason.sentence)
            decision = ruler.decide(region, measured, Action.DROPPED, reason.rule, reason.sentence)
        elif piece.rule:
            kept.append(region)
            decision = ruler.decide(region, measured, Action.SPLIT, piece.rule, piece.sentence)
        else:
            kept.append(region)
            decision = _kept(ruler, region, measured, region.target in criteria_of)
        decisions.append((region.nodes[0], decision))
    decisions.sort(key=lambda entry: entry[0])
    return Partitioning(build_parts(flow, kept), tuple(rows), tuple(d for _, d in decisions))


def _kept(ruler: Ruler, region: Region, measured: Measured, by_criteria: bool) -> RegionDecision:
    if by_criteria:
        rule, why = "criteria", f"within every limit of {region.target}"
    else:
        rule, why = "greedy", f"as large as {region.target} allows without a cycle"
    sentence = f"{measured.num_ops} operators with {measured.macs} MACs: {why}"
    return ruler.decide(region, measured, Action.KEPT, rule, sentence)


def _to_host(rows: list[Placement], region: Region, code: ReasonCode, sentence: str) -> None:
    for node in region.nodes:
        rows[node] = replace(
            rows[node], target=HOST, reason_code=code, reason=sentence, composite=""
        )
