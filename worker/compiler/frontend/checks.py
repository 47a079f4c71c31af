"""Our own checks of a parsed model: every problem in one answer, each with its node.

The libraries below us accept empty files, cycles, missing inputs and damaged tensors, or stop at
the first problem.  Order: whole model, then graph by graph (names, nodes, tensors, cycles); only a
model that is sound so far is given to the type and shape checker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx.checker
import onnx.defs
import onnx.shape_inference

from worker.compiler.errors import Detail, Finding, ModelError
from worker.compiler.frontend.attribute_checks import attribute_findings, empty_operands
from worker.compiler.frontend.contrib import MICROSOFT, known_contrib_ops
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.tensor_checks import check_dims, check_tensor, has_nan

OLDEST_OPSET = 7
MAIN_DOMAINS = ("", "ai.onnx")
ML_DOMAIN = "ai.onnx.ml"
_GRAPH, _GRAPHS = onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS
_SCALAR_ELEMENTS = 1
_OLDEST_IR_VERSION = 3
_LARGEST_VERSION = (1 << 31) - 1
"""Of any domain: ONNX's own code has no room for more."""
_MAX_NAME_BYTES = (1 << 16) - 1 - len(".npy")
"""Of inputs and outputs: what a member of an .npz may have, in which they are given and written."""
_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")


@dataclass(slots=True)
class _Check:
    limits: Limits
    opsets: Mapping[str, int]
    stored: Mapping[int, int]
    """Bytes of main-graph initializers whose data lies outside the message, by position."""
    context: Any
    findings: list[Finding] = field(default_factory=list)
    schemas: dict[tuple[str, str], str | None] = field(default_factory=dict)
    num_nodes: int = 0

    def add(
        self,
        code: str,
        message: str,
        node: str | None = None,
        allowed: Detail = None,
        actual: Detail = None,
    ) -> None:
        self.findings.append(Finding(code, message, None, node, allowed, actual))

    @property
    def is_full(self) -> bool:
        return len(self.findings) >= self.limits.max_findings


def refuse(findings: list[Finding], limits: Limits) -> None:
    """Raise one ModelError for all findings, or return when there are none."""
    if not findings:
        return
    first = findings[0]
    more = f" (and {len(findings) - 1} more problems)" if len(findings) > 1 else ""
    raise ModelError(
        first.code, first.message + more, node=first.node, limit=first.allowed,
        actual=first.actual, findings=tuple(findings[: limits.max_findings]),
    )  # fmt: skip


def check_model(proto: onnx.ModelProto, stored: Mapping[int, int], limits: Limits) -> None:
    """Check everything but types.

    Raises:
        ModelError: with one finding per problem; its code is that of the first.

    Cost: linear in nodes, values and small tensors.
    """
    findings = _versions(proto)
    refuse(findings, limits)
    opsets = {entry.domain: entry.version for entry in proto.opset_import}
    opsets[""] = opsets.get("", opsets.get("ai.onnx", 0))
    context = onnx.checker.C.CheckerContext()
    context.ir_version = min(proto.ir_version, onnx.IR_VERSION)
    context.opset_imports = {d: v for d, v in opsets.items() if d != "ai.onnx"}
    check = _Check(limits, opsets, stored, context)
    graph = proto.graph
    if not graph.node or not graph.output:
        what = "nodes" if not graph.node else "outputs"
        check.add("TW-MODEL-013", f"the graph has no {what}", None, 1, 0)
    if len(graph.sparse_initializer):
        check.add("TW-MODEL-008", "sparse initializers are not understood")
    _graph(graph, check, {}, 1, "")
    refuse(check.findings, limits)


def _versions(proto: onnx.ModelProto) -> list[Finding]:
    found: list[Finding] = []
    if not _OLDEST_IR_VERSION <= proto.ir_version <= onnx.IR_VERSION:
        found.append(
            Finding(
                "TW-MODEL-009",
                f"IR version {proto.ir_version} is not supported",
                None,
                None,
                f"{_OLDEST_IR_VERSION} to {onnx.IR_VERSION}",
                proto.ir_version,
            )
        )
    newest = onnx.defs.onnx_opset_version()
    main = [e.version for e in proto.opset_import if e.domain in MAIN_DOMAINS]
    if len(set(main)) != 1 or not OLDEST_OPSET <= main[0] <= newest:
        said = ", ".join(map(str, main)) or "missing"
        found.append(
            Finding(
                "TW-MODEL-009",
                f"opset {said} is not supported",
                None,
                None,
                f"{OLDEST_OPSET} to {newest}",
                said,
            )
        )
    found += [
        Finding(
            "TW-MODEL-009", f"version {entry.version} of domain {entry.domain} is not supported",
            None, None, f"0 to {_LARGEST_VERSION}", entry.version,
        )
        for entry in proto.opset_import
        if entry.domain not in MAIN_DOMAINS and not 0 <= entry.version <= _LARGEST_VERSION
    ]  # fmt: skip
    return found


def _graph(graph: Any, check: _Check, outer: dict[str, None], depth: int, owner: str) -> None:
    limits = check.limits
    if depth > limits.max_depth:
        check.add(
            "TW-MODEL-014",
            f"graphs are nested deeper than {limits.max_depth}",
            owner or None,
            limits.max_depth,
            depth,
        )
        return
    check.num_nodes += len(graph.node)
    if check.num_nodes > limits.max_nodes:
        check.add(
            "TW-MODEL-014",
            f"the model has more than {limits.max_nodes} nodes",
            None,
            limits.max_nodes,
            check.num_nodes,
        )
        return
    main = depth == 1
    tensors: dict[str, Any] = {}
    sound: set[str] = set()
    for position, tensor in enumerate(graph.initializer):
        where = f"initializer {tensor.name!r}"
        if tensor.name in tensors or not tensor.name:
            check.add("TW-MODEL-016", f"{where} is defined twice or has no name")
        problems = check_tensor(tensor, where, limits, check.stored.get(position) if main else None)
        check.findings += problems
        if not problems and not (main and position in check.stored):
            sound.add(tensor.name)
        tensors[tensor.name] = tensor
        if check.is_full:
            return
    defined = _declared(graph, check, outer, tensors, main)
    produced: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        for name in node.output:
            if not name:
                continue
            if name in defined or name in produced or name in outer:
                check.add("TW-MODEL-016", f"tensor {name!r} is defined twice", label(node, index))
            produced[name] = index
    scope = {**outer, **defined, **dict.fromkeys(produced)}
    edges = [
        _node(node, index, check, scope, produced, tensors, sound, depth)
        for index, node in enumerate(graph.node)
        if not check.is_full
    ]
    for value in graph.output:
        if (
            value.name not in produced
            and value.name not in defined
            and (main or value.name not in outer)
        ):
            check.add("TW-MODEL-005", f"graph output {value.name!r} is not produced by any node")
    if len(edges) == len(graph.node):
        _cycles(graph, edges, check)


def _declared(
    graph: Any, check: _Check, outer: Mapping[str, None], tensors: Mapping[str, Any], main: bool
) -> dict[str, None]:
    """Names of inputs and initializers, their declared dimensions checked."""
    names: dict[str, None] = {}
    for value in graph.input:
        if not value.name or value.name in names or value.name in outer:
            check.add("TW-MODEL-016", f"graph input {value.name!r} is defined twice or has no name")
        names[value.name] = None
        if main and value.type.WhichOneof("value") is None:
            check.add("TW-MODEL-006", f"graph input {value.name!r} has no type")
    for name in tensors:
        if name in outer:
            check.add("TW-MODEL-016", f"initializer {name!r} hides a tensor of the outer graph")
        names[name] = None
    for value in (*graph.input, *graph.output) if main else ():
        size = len(value.name.encode())
        if size > _MAX_NAME_BYTES:
            words = f"{value.name[:40]!r}..., an input or output, has a name of {size} bytes"
            check.add("TW-MODEL-016", words, allowed=_MAX_NAME_BYTES, actual=size)
    seen: set[str] = set()
    for value in graph.output:
        if value.name in seen:
            check.add("TW-MODEL-016", f"graph output {value.name!r} is listed twice")
        seen.add(value.name)
    for role, values in (
        ("input", graph.input),
        ("output", graph.output),
        ("value", graph.value_info),
    ):
        for value in values:
            for dim in value.type.tensor_type.shape.dim:
                if dim.WhichOneof("value") != "dim_value":
                    continue
                where = f"{role} {value.name!r}"
                bad = check_dims((dim.dim_value,), where, check.limits)
                if bad is not None:
                    check.findings.append(bad)
                elif role == "input" and main and dim.dim_value == 0 and value.name not in tensors:
                    check.add(
                        "TW-MODEL-007", f"{where} has dimension 0", None, check.limits.max_dim, 0
                    )
    return names


def label(node: Any, index: int) -> str:
    """The user's name of a node, or one made from its operator and position."""
    return node.name or f"{node.op_type}_{index}"


def _node(
    node: Any, index: int, check: _Check, scope: dict[str, None], produced: Mapping[str, int],
    tensors: Mapping[str, Any], sound: set[str], depth: int,
) -> set[int]:  # fmt: skip
    """Check one node; give the positions of the nodes of its graph that it reads."""
    name = label(node, index)
    problem = _schema_problem(node, check)
    if problem is not None:
        check.add("TW-MODEL-008", problem, name)
    needs: set[int] = set()
    for read in node.input:
        if read and read not in scope:
            check.add("TW-MODEL-005", f"{node.op_type} reads {read!r}, which nothing defines", name)
        elif read in produced:
            needs.add(produced[read])
    for position in empty_operands(node, check.opsets) if problem is None else ():
        check.add("TW-MODEL-005", f"{node.op_type}: input {position} is left out", name)
    quantizes = node.op_type in _QUANTIZERS and len(node.input) > 1
    scale = node.input[1] if quantizes else ""
    if scale in sound and has_nan(tensors[scale], infinite_too=True):
        check.add("TW-MODEL-018", f"the scale {node.input[1]!r} is not finite", name)
    nested = False
    is_sound = problem is None
    if problem is None:
        before = len(check.findings)
        check.findings += attribute_findings(node, name, check.opsets)
        is_sound = len(check.findings) == before
    for attribute in node.attribute:
        before = len(check.findings)
        _attribute(attribute, name, check)
        is_sound = is_sound and len(check.findings) == before
        graphs = [attribute.g] if attribute.type == _GRAPH else list(attribute.graphs)
        for graph in graphs:
            nested = True
            for read in _captured(graph, check.limits.max_depth - depth):
                if read in produced:
                    needs.add(produced[read])
            _graph(graph, check, scope, depth + 1, name)
    if is_sound and not nested:
        try:
            onnx.checker.C.check_node(
                node.SerializeToString(), check.context, onnx.checker.C.LexicalScopeContext()
            )
        except onnx.checker.ValidationError as error:
            check.add("TW-MODEL-006", str(error).strip().split("\n", 1)[0][:500], name)
    return needs


def _schema_problem(node: Any, check: _Check) -> str | None:
    key = (node.domain, node.op_type)
    if key not in check.schemas:
        check.schemas[key] = _find_schema(node.domain, node.op_type, check.opsets)
    return check.schemas[key]


def _find_schema(domain: str, op_type: str, opsets: Mapping[str, int]) -> str | None:
    if domain == MICROSOFT:
        if op_type in known_contrib_ops() and domain in opsets:
            return None
        return f"operator {op_type!r} is not one of ONNX Runtime's, or {domain!r} is not imported"
    if domain not in (*MAIN_DOMAINS, ML_DOMAIN):
        return f"operator {op_type!r} belongs to domain {domain!r}, and nothing defines it"
    plain = "" if domain in MAIN_DOMAINS else domain
    version = opsets.get(plain)
    if version is None:
        return f"operator {op_type!r} needs an opset of domain {domain!r}, which is not imported"
    try:
        schema = onnx.defs.get_schema(op_type, version, plain)
    except onnx.defs.SchemaError:
        return f"operator {op_type!r} does not exist in opset {version} of {domain or 'ai.onnx'!r}"
    if schema.deprecated:
        return f"operator {op_type!r} was removed before opset {version}"
    return None


def _attribute(attribute: Any, name: str, check: _Check) -> None:
    where = f"attribute {attribute.name!r}"
    if attribute.ref_attr_name:
        check.add("TW-MODEL-006", f"{where} refers to a function's attribute", name)
    if math.isnan(attribute.f) or any(math.isnan(value) for value in attribute.floats):
        check.add("TW-MODEL-018", f"{where} is not a number", name)
    tensors = [attribute.t] if attribute.HasField("t") else []
    for tensor in [*tensors, *attribute.tensors]:
        problems = check_tensor(tensor, where, check.limits, None)
        check.findings += [
            Finding(p.code, p.message, None, name, p.allowed, p.actual) for p in problems
        ]
        if not problems and math.prod(tensor.dims) == _SCALAR_ELEMENTS and has_nan(tensor):
            check.add("TW-MODEL-018", f"{where} is not a number", name)


def _captured(graph: Any, depth_left: int) -> set[str]:
    """Names a sub-graph may read from outside (its own names included; they do no harm)."""
    names: set[str] = {value.name for value in graph.output}
    stack = [(graph, depth_left)]
    while stack:
        current, left = stack.pop()
        for node in current.node:
            names.update(node.input)
            for attribute in node.attribute:
                if left > 0:
                    inner = [attribute.g] if attribute.type == _GRAPH else list(attribute.graphs)
                    stack += [(each, left - 1) for each in inner]
    return names


def _cycles(graph: Any, edges: list[set[int]], check: _Check) -> None:
    """A finding per node that waits for itself (and for nodes stuck behind those)."""
    waiting = [len(needs) for needs in edges]
    users: list[list[int]] = [[] for _ in edges]
    for index, needs in enumerate(edges):
        for need in needs:
            users[need].append(index)
    ready = [index for index, count in enumerate(waiting) if count == 0]
    done = 0
    while ready:
        done += 1
        for user in users[ready.pop()]:
            waiting[user] -= 1
            if waiting[user] == 0:
                ready.append(user)
    if done == len(edges):
        return
    for index, count in enumerate(waiting):
        if count > 0 and not check.is_full:
            node = graph.node[index]
            check.add(
                "TW-MODEL-004", f"{node.op_type} is on a cycle or behind one", label(node, index)
            )
