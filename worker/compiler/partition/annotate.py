"""Which target each node could go to: clusters, then composites, then single operators.

Targets are asked in order of priority; what one takes, the next is not asked for.  Regions are
built from the result elsewhere.
Source: BYOC section 3.1.2.  Deviates: the paper annotates for one target by op name and user
predicate; here several targets share a model, and the algebra must be able to say the operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from types import MappingProxyType

import onnx_ir

from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.ops.call import DTYPES
from worker.compiler.frontend.qdq import QdqCluster, cluster_rejection, find_clusters
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.build_targets import ONLY_TARGET
from worker.compiler.machine.machine import AcceleratorTarget, Conversion, Machine
from worker.compiler.machine.pattern import PatternRule, op_types
from worker.compiler.partition.attributes import STANDARD_DOMAINS
from worker.compiler.partition.conditions import Miss
from worker.compiler.partition.implied import implied_rules
from worker.compiler.partition.patterns.matching import Match, match_patterns
from worker.compiler.partition.plan import HOST, Composite, CompositeKind, Placement
from worker.compiler.partition.rules import (
    FREE_DTYPES,
    dtypes_pointer,
    element_type,
    find_miss,
    misfit,
    node_text,
    sentence,
    tensor_miss,
)
from worker.compiler.partition.trials import Trials
from worker.compiler.partition.vendor_calls import CONVERTING, VendorCall, vendor_calls
from worker.compiler.partition.vendor_rows import Ask, match_calls, other_rows, unmet
from worker.compiler.rejection import ReasonCode, Rejection

INSERTED = "tilewright.inserted"
"""Key in a node's metadata: a conversion added the node."""
_ONNX_TYPES = {dtype: element for element, dtype in DTYPES.items()}
_FLOATS = tuple(_ONNX_TYPES[d] for d in (DType.F32, DType.F16, DType.BF16, DType.F64))


@dataclass(frozen=True, slots=True)
class Annotation:
    """A row for every node, and what runs as one operator."""

    placement: tuple[Placement, ...]
    """In model order."""
    composites: tuple[tuple[str, Composite], ...]
    """(target, composite), by last node.  A dequantisation that several operators read is in the
    cluster of each of them; every other node is in one composite at most."""
    matches: tuple[tuple[str, Match], ...] = ()
    """(target, row that a composite is of, with positions in the model), by last node.  Of a
    quantised operator all nodes belong to it."""


NO_CONVERSIONS: Mapping[str, Conversion] = MappingProxyType({})


def annotate(
    model: OnnxModel,
    machine: Machine,
    refused: Mapping[str, Rejection],
    conversions: Mapping[str, Conversion] = NO_CONVERSIONS,
) -> Annotation:
    """Offer every node to the targets, highest priority first.

    `refused` keeps nodes on the host, by name.  `conversions`, by target name: ask as if the
    model's numbers were converted for that target already.

    Cost: near-linear in nodes and operands, plus one trial expression per node and cluster that a
    target's rules allow.
    """
    return _Annotator(model, machine, refused, conversions).run()


def target_label(machine: Machine, target: AcceleratorTarget) -> str:
    """What sentences call a target: the machine, where it is the only one and has no name."""
    return machine.name if target.name == ONLY_TARGET else target.name


class _Annotator:
    """The state of one annotation: who owns each node, and what has been asked before."""

    def __init__(
        self,
        model: OnnxModel,
        machine: Machine,
        refused: Mapping[str, Rejection],
        conversions: Mapping[str, Conversion],
    ) -> None:
        self._machine = machine
        self._nodes = tuple(model.ir.graph)
        self._opset = model.opset
        self._outputs = tuple(v.name for v in model.ir.graph.outputs if v.name is not None)
        self._refused = [refused.get(node.name or "") for node in self._nodes]
        if not conversions:  # they make tensors smaller
            self._refused = [
                known or misfit(node, machine)
                for known, node in zip(self._refused, self._nodes, strict=True)
            ]
        self._inserted = [INSERTED in node.metadata_props for node in self._nodes]
        self._conversions = conversions
        self._rows: list[Placement | None] = [None] * len(self._nodes)
        self._composites: list[tuple[int, str, Composite]] = []
        self._matches: list[tuple[str, Match]] = []
        self._misses: list[list[tuple[AcceleratorTarget, Miss]]] = [[] for _ in self._nodes]
        self._trials = Trials(self._nodes, self._opset)
        self._calls = tuple(
            call
            for call in vendor_calls(self._nodes, self._outputs)
            if not unmet(call, machine.operators)
        )
        self._cluster_expressed: dict[int, Rejection | None] = {}

    def run(self) -> Annotation:
        clusters = find_clusters(self._nodes, self._outputs)
        for target in self._machine.targets:
            self._take_clusters(target, clusters)
            self._take_calls(target)
            self._take_composites(target)
            self._take_singles(target)
        rows = tuple(self._host_row(k) if row is None else row for k, row in enumerate(self._rows))
        composites = sorted(self._composites, key=lambda found: found[0])
        matches = sorted(self._matches, key=lambda found: found[1].nodes[-1])
        return Annotation(rows, tuple((target, c) for _, target, c in composites), tuple(matches))

    def _is_open(self, k: int) -> bool:
        return self._rows[k] is None and self._refused[k] is None

    def _stand_in(
        self, node: onnx_ir.Node, target: AcceleratorTarget
    ) -> dict[onnx_ir.DataType, DType]:
        """Element types that the conversion replaces at this node, if the target has the new."""
        wanted = self._conversions.get(target.name)
        if wanted is None or wanted.dtype not in target.capabilities.dtypes:
            return {}
        if wanted.op_types and node.op_type not in wanted.op_types:
            return {}
        return {_ONNX_TYPES[source]: wanted.dtype for source in wanted.sources}

    # Clusters

    def _take_clusters(self, target: AcceleratorTarget, clusters: Sequence[QdqCluster]) -> None:
        taken = [c for c in clusters if self._takes_cluster(target, c)]
        while True:
            cores = {id(self._nodes[c.core]) for c in taken}
            kept = [c for c in taken if not self._lends(target, c, cores)]
            if len(kept) == len(taken):
                break
            taken = kept
        rule_of = self._rules_of(target, taken)
        for cluster in taken:
            self._place_cluster(target, cluster, rule_of.get(cluster.core))

    def _takes_cluster(self, target: AcceleratorTarget, cluster: QdqCluster) -> bool:
        if not all(self._is_open(k) for k in cluster.nodes):
            return False
        miss = self._cluster_miss(target, cluster)
        if miss is not None:
            self._misses[cluster.core].append((target, miss))
            return False
        if cluster.core not in self._cluster_expressed:
            found = cluster_rejection(self._nodes, cluster, self._opset)
            self._cluster_expressed[cluster.core] = found
        unsaid = self._cluster_expressed[cluster.core]
        if unsaid is not None:
            fact = f"it has no integer form: {unsaid.sentence}"
            lever = "another quantisation of its operands would allow it"
            self._misses[cluster.core].append((target, Miss(unsaid.code, fact, lever)))
        return unsaid is None

    def _cluster_miss(self, target: AcceleratorTarget, cluster: QdqCluster) -> Miss | None:
        """The core's rule, asked for the integer type of the result; then the types of all edges.

        An activation inside the chain must be listed too.
        """
        label = target_label(self._machine, target)
        core = self._nodes[cluster.core]
        support = target.capabilities.support(core.op_type)
        allowed = (support.dtypes if support else ()) or target.capabilities.dtypes
        result = self._cluster_dtype(cluster)
        stand_in = dict.fromkeys(_FLOATS, result)
        for k in cluster.nodes:
            node = self._nodes[k]
            if node.op_type in CONVERTING:
                continue
            miss = find_miss(node, target, stand_in, label, self._opset)
            if miss is not None:
                return miss
        for k in cluster.nodes:
            node = self._nodes[k]
            value = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
            if node.op_type not in CONVERTING or value is None:
                continue
            found = element_type(value)
            dtype = None if found is None else DTYPES.get(found)
            if dtype is not None and dtype not in allowed and dtype not in FREE_DTYPES:
                return Miss(
                    ReasonCode.CAPABILITY_DTYPE,
                    f"{value.name} is {dtype}, {label} allows {core.op_type} of"
                    f" {' or '.join(allowed)}",
                    f"quantising {value.name} to one of them would allow it",
                    dtypes_pointer(target.capabilities, support),
                )
        return None

    def _cluster_dtype(self, cluster: QdqCluster) -> DType:
        for k in reversed(cluster.nodes):
            node = self._nodes[k]
            if node.op_type == "QuantizeLinear":
                found = element_type(node.outputs[0])
                if found is not None and found in DTYPES:
                    return DTYPES[found]
        return DType.I8

    def _lends(
        self, target: AcceleratorTarget, cluster: QdqCluster, cores: AbstractSet[int]
    ) -> bool:
        """Whether something else needs a dequantisation of the cluster in memory, and the target
        cannot compute it by itself: then the cluster cannot leave it behind, and is refused.

        `cores`: identities of the nodes that are cores of clusters taken so far.
        """
        label = target_label(self._machine, target)
        for k in cluster.nodes:
            node = self._nodes[k]
            if node.op_type != "DequantizeLinear":
                continue
            value = node.outputs[0]
            others = [use.node for use in value.uses() if id(use.node) not in cores]
            if not others and not value.is_graph_output():
                continue
            miss = find_miss(node, target, {}, label, self._opset)
            if miss is None and self._trials.rejection(k) is None:
                continue
            reader = node_text(others[0]) if others else "the caller"
            self._misses[cluster.core].append(
                (
                    target,
                    Miss(
                        ReasonCode.CAPABILITY_DTYPE,
                        f"its operand {value.name} is also read outside the integer operator, by"
                        f" {reader}, and {label} cannot dequantise it",
                        f"a DequantizeLinear of its own for {reader} would allow it",
                    ),
                )
            )
            return True
        return False

    def _rules_of(
        self, target: AcceleratorTarget, clusters: Sequence[QdqCluster]
    ) -> dict[int, Match]:
        """The row that all float nodes of a cluster match together, by the cluster's core.

        Patterns are written in float operators; a cluster is their quantised form.  A cluster
        that no row matches as it is may be one of a row whose activation its saturation is.
        """
        of_position: dict[int, int] = {}
        floats: dict[int, set[int]] = {}
        for cluster in clusters:
            own = [k for k in cluster.nodes if self._nodes[k].op_type not in CONVERTING]
            floats[cluster.core] = set(own)
            of_position.update(dict.fromkeys(own, cluster.core))
        positions = sorted(of_position)
        nodes = [self._nodes[k] for k in positions]
        found: dict[int, Match] = {}
        known = set(positions)
        calls = [call for call in self._calls if known.issuperset(call.nodes)]
        for match in match_calls(self._ask(target, calls, positions)):
            core = of_position[match.root]
            if set(match.nodes) == floats[core]:
                found[core] = match
        rules = other_rows(target)
        for match in match_patterns(nodes, rules, self._outputs):
            core = of_position[positions[match.root]]
            if {positions[k] for k in match.nodes} == floats[core]:
                found.setdefault(core, match)
        for cluster in clusters:
            if cluster.core not in found:
                implied = self._implied(rules, cluster, sorted(floats[cluster.core]))
                found.update(() if implied is None else ((cluster.core, implied),))
        return found

    def _implied(
        self, rules: Sequence[PatternRule], cluster: QdqCluster, floats: Sequence[int]
    ) -> Match | None:
        """The row that a cluster is of when its saturation counts as the activation."""
        ends = [k for k in cluster.nodes if self._nodes[k].op_type == "QuantizeLinear"]
        if len(ends) != 1 or cluster.core in ends:
            return None
        nodes = [self._nodes[k] for k in floats]
        shorter = implied_rules(rules, self._nodes[ends[0]])
        for match in match_patterns(nodes, shorter, self._outputs):
            if len(match.nodes) == len(nodes):
                (rule,) = (rule for rule in rules if rule.name == match.rule.name)
                return replace(match, rule=rule)
        return None

    def _place_cluster(
        self, target: AcceleratorTarget, cluster: QdqCluster, match: Match | None
    ) -> None:
        core = self._nodes[cluster.core]
        rule = None if match is None else match.rule
        name = f"qdq_{cluster.op_type}" if rule is None else rule.name
        if match is not None:
            found = replace(match, nodes=cluster.nodes, root=cluster.nodes[-1])
            self._matches.append((target.name, found))
        dtype = self._cluster_dtype(cluster)
        for k in cluster.nodes:
            if self._rows[k] is None:
                text = (
                    f"runs as an integer operator of {dtype}"
                    if k == cluster.core
                    else f"part of the integer operator {core.name}"
                )
                self._place(k, target, ReasonCode.COMPOSITE, text, name)
        intrinsic = None if rule is None else rule.intrinsic
        composite = Composite(name, CompositeKind.CLUSTER, cluster.nodes, intrinsic)
        self._composites.append((cluster.nodes[-1], target.name, composite))

    # Composites

    def _ask(
        self, target: AcceleratorTarget, calls: Sequence[VendorCall], others: Sequence[int]
    ) -> Ask:
        return Ask(
            self._nodes, self._outputs, calls, others, target, target_label(self._machine, target),
            self._opset, lambda node: self._stand_in(node, target),
        )  # fmt: skip

    def _take_calls(self, target: AcceleratorTarget) -> None:
        """Composites of rows about foreign operators."""
        calls = [c for c in self._calls if all(self._may_join(k, target) for k in c.nodes)]
        if not calls:
            return
        others = [k for k in range(len(self._nodes)) if self._may_join(k, target)]
        whole = tuple(range(len(self._nodes)))
        for match in match_calls(self._ask(target, calls, others)):
            self._place_match(target, match, whole)

    def _take_composites(self, target: AcceleratorTarget) -> None:
        rules = other_rows(target)
        if not rules:
            return
        named = {t for rule in rules for t in op_types(rule.root)}
        positions = [
            k
            for k, node in enumerate(self._nodes)
            if node.op_type in named and self._may_join(k, target)
        ]
        nodes = [self._nodes[k] for k in positions]
        for match in match_patterns(nodes, rules, self._outputs):
            self._place_match(target, match, positions)

    def _may_join(self, k: int, target: AcceleratorTarget) -> bool:
        """Whether a composite may hold the node: types allowed, rank allowed, expressible."""
        node = self._nodes[k]
        if not self._is_open(k) or node.domain not in STANDARD_DOMAINS or self._inserted[k]:
            return False
        label = target_label(self._machine, target)
        stand_in = self._stand_in(node, target)
        return tensor_miss(node, None, target, stand_in, label) is None and (
            self._trials.rejection(k) is None
        )

    def _place_match(
        self, target: AcceleratorTarget, match: Match, positions: Sequence[int]
    ) -> None:
        nodes = tuple(positions[k] for k in match.nodes)
        rule = match.rule
        what = f"instruction {rule.intrinsic}" if rule.intrinsic else "composite"
        text = f"part of {rule.name}, which {target.name} runs as one {what}"
        for k in nodes:
            self._place(k, target, ReasonCode.COMPOSITE, text, rule.name)
        self._matches.append((target.name, replace(match, nodes=nodes, root=positions[match.root])))
        composite = Composite(rule.name, CompositeKind.PATTERN, nodes, rule.intrinsic)
        self._composites.append((nodes[-1], target.name, composite))

    # Single operators

    def _take_singles(self, target: AcceleratorTarget) -> None:
        label = target_label(self._machine, target)
        crosses = any(c.on_accelerator for c in target.conversions)
        for k, node in enumerate(self._nodes):
            if not self._is_open(k) or (self._inserted[k] and not crosses):
                continue
            if self._inserted[k]:  # what the target converts by itself needs no rule of its own
                miss = tensor_miss(node, None, target, {}, label)
            else:
                miss = find_miss(node, target, self._stand_in(node, target), label, self._opset)
            if miss is not None:
                if all(known.name != target.name for known, _ in self._misses[k]):
                    self._misses[k].append((target, miss))
            elif self._trials.rejection(k) is None:
                self._place(k, target, ReasonCode.OFFLOADED, f"offered by {label}", "")

    # Rows

    def _place(
        self, k: int, target: AcceleratorTarget, code: ReasonCode, reason: str, composite: str
    ) -> None:
        node = self._nodes[k]
        self._rows[k] = Placement(
            node.name or "", node.op_type, target.name, code, reason, composite, self._inserted[k]
        )

    def _host_row(self, k: int) -> Placement:
        node = self._nodes[k]
        known = self._refused[k]
        if self._inserted[k] and known is None:
            text = "a conversion between number formats at the edge of a region"
            return Placement(
                node.name or "", node.op_type, HOST, ReasonCode.BOUNDARY, text, "", True
            )
        found = known or self._host_reason(k)
        return Placement(
            node.name or "", node.op_type, HOST, found.code, found.sentence, "", self._inserted[k]
        )

    def _host_reason(self, k: int) -> Rejection:
        """The highest target's refusal, and who else refused; what the algebra cannot say counts
        first, since no spec can lift it."""
        node = self._nodes[k]
        unsaid = self._trials.rejection(k)
        misses = self._misses[k]
        if not misses:
            assert unsaid is not None, "a node that every rule allows stays on the host"
            return Rejection(unsaid.code, f"{node_text(node)}: {unsaid.sentence}")
        target, miss = misses[0]
        if unsaid is not None:
            lever = f"nor can it be compiled: {unsaid.sentence}"
            miss = replace(miss, lever=lever)
        text = sentence(node, miss, target.capabilities.support(node.op_type))
        others = [target_label(self._machine, t) for t, _ in misses[1:]]
        return Rejection(
            miss.code, text + (f" (also refused by {', '.join(others)})" if others else "")
        )
